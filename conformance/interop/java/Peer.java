// Java's own java.net.http as client of `wireloom serve`: requests over HTTP/1.1, over HTTP/2 by Upgrade (what it does for
// http URLs) and by ALPN, and WebSockets. Run from its source: java Peer.java BASE SECURE.

import java.io.ByteArrayOutputStream;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.net.http.WebSocket;
import java.net.http.WebSocketHandshakeException;
import java.nio.ByteBuffer;
import java.security.cert.X509Certificate;
import java.util.Arrays;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLEngine;
import javax.net.ssl.X509ExtendedTrustManager;

public final class Peer {
    /** What a WebSocket heard, message by message. */
    static final class Heard implements WebSocket.Listener {
        final BlockingQueue<Object> messages = new LinkedBlockingQueue<>();
        final CompletableFuture<Integer> closed = new CompletableFuture<>();
        private final StringBuilder text = new StringBuilder();
        private final ByteArrayOutputStream bytes = new ByteArrayOutputStream();

        @Override
        public CompletionStage<?> onText(WebSocket socket, CharSequence part, boolean last) {
            text.append(part);
            if (last) {
                messages.add(text.toString());
                text.setLength(0);
            }
            socket.request(1);
            return null;
        }

        @Override
        public CompletionStage<?> onBinary(WebSocket socket, ByteBuffer part, boolean last) {
            byte[] piece = new byte[part.remaining()];
            part.get(piece);
            bytes.writeBytes(piece);
            if (last) {
                messages.add(bytes.toByteArray());
                bytes.reset();
            }
            socket.request(1);
            return null;
        }

        @Override
        public CompletionStage<?> onPong(WebSocket socket, ByteBuffer content) {
            messages.add("pong of " + content.remaining());
            socket.request(1);
            return null;
        }

        @Override
        public CompletionStage<?> onClose(WebSocket socket, int code, String reason) {
            closed.complete(code);
            return null;
        }

        @Override
        public void onError(WebSocket socket, Throwable error) {
            closed.completeExceptionally(error);
        }

        Object next() throws InterruptedException {
            Object message = messages.poll(30, TimeUnit.SECONDS);
            check(message != null, "no message came");
            return message;
        }
    }

    public static void main(String[] args) throws Exception {
        HttpClient client = HttpClient.newBuilder().sslContext(trusting()).build();
        for (String base : args) {
            requests(client, base, HttpClient.Version.HTTP_2);
            requests(client, base, HttpClient.Version.HTTP_1_1);
            websockets(client, base.replaceFirst("^http", "ws"));
            System.out.println("ok: " + base);
        }
        System.exit(0);
    }

    static void requests(HttpClient client, String base, HttpClient.Version version) throws Exception {
        HttpRequest.Builder request = HttpRequest.newBuilder().version(version);
        HttpResponse<String> health =
                client.send(request.uri(URI.create(base + "/healthz")).build(), BodyHandlers.ofString());
        check(health.statusCode() == 200 && health.body().equals("ok\n"), "the first request");
        check(health.version() == version, "spoken: " + health.version());
        int missing = client.send(request.uri(URI.create(base + "/nothing")).build(), BodyHandlers.discarding()).statusCode();
        check(missing == 404, "status " + missing);
        byte[] sent = new byte[900_000];
        for (int at = 0; at < sent.length; at++) sent[at] = (byte) (at * 31 >>> 3);
        HttpRequest post = request.uri(URI.create(base + "/echo")).POST(BodyPublishers.ofByteArray(sent)).build();
        HttpResponse<byte[]> echoed = client.send(post, BodyHandlers.ofByteArray());
        check(echoed.statusCode() == 200 && Arrays.equals(echoed.body(), sent), "a body both ways");
        // Many at once share a connection of HTTP/2.
        HttpRequest get = HttpRequest.newBuilder(URI.create(base + "/source?size=1000&count=20")).version(version).build();
        var answers = IntStream.range(0, 100).mapToObj(n -> client.sendAsync(get, BodyHandlers.ofByteArray())).toList();
        for (var answer : answers) check(answer.get(30, TimeUnit.SECONDS).body().length == 20_000, "100 at once");
    }

    static void websockets(HttpClient client, String base) throws Exception {
        Heard heard = new Heard();
        WebSocket socket = client.newWebSocketBuilder().buildAsync(URI.create(base + "/echo"), heard).get(30, TimeUnit.SECONDS);
        for (String text : new String[] {"", "a", "häßlich 😀", "x".repeat(300_000)}) {
            socket.sendText(text, true).get(30, TimeUnit.SECONDS);
            check(heard.next().equals(text), text.length() + " characters");
        }
        for (int length : new int[] {0, 125, 126, 65_535, 65_536, 1 << 20}) {
            byte[] sent = new byte[length];
            Arrays.fill(sent, (byte) 0xA5);
            socket.sendBinary(ByteBuffer.wrap(sent), true).get(30, TimeUnit.SECONDS);
            check(Arrays.equals((byte[]) heard.next(), sent), length + " bytes");
        }
        socket.sendText("one ", false).get(30, TimeUnit.SECONDS);
        socket.sendText("two", true).get(30, TimeUnit.SECONDS);
        check(heard.next().equals("one two"), "fragments");
        socket.sendPing(ByteBuffer.wrap(new byte[] {1, 2, 3})).get(30, TimeUnit.SECONDS);
        check(heard.next().equals("pong of 3"), "a pong");
        socket.sendClose(4321, "bye").get(30, TimeUnit.SECONDS);
        int code = heard.closed.get(30, TimeUnit.SECONDS);
        check(code == 4321, "closed with " + code);

        Heard counting = new Heard();
        client.newWebSocketBuilder().buildAsync(URI.create(base + "/source?size=10&count=3"), counting).get(30, TimeUnit.SECONDS);
        code = counting.closed.get(30, TimeUnit.SECONDS);
        check(code == 1000 && counting.messages.size() == 3, "the source closed with " + code);

        try {
            client.newWebSocketBuilder().buildAsync(URI.create(base + "/nothing"), new Heard()).join();
            check(false, "a WebSocket where there is none");
        } catch (CompletionException refused) {
            int status = ((WebSocketHandshakeException) refused.getCause()).getResponse().statusCode();
            check(status == 404, "refused with " + status);
        }
    }

    static void check(boolean holds, String what) {
        if (!holds) throw new AssertionError(what);
    }

    /** Trusts whatever is shown: the certificate was made for this run. */
    static SSLContext trusting() throws Exception {
        X509ExtendedTrustManager all = new X509ExtendedTrustManager() {
            @Override
            public void checkClientTrusted(X509Certificate[] chain, String kind) {}

            @Override
            public void checkServerTrusted(X509Certificate[] chain, String kind) {}

            @Override
            public void checkClientTrusted(X509Certificate[] chain, String kind, java.net.Socket socket) {}

            @Override
            public void checkServerTrusted(X509Certificate[] chain, String kind, java.net.Socket socket) {}

            @Override
            public void checkClientTrusted(X509Certificate[] chain, String kind, SSLEngine engine) {}

            @Override
            public void checkServerTrusted(X509Certificate[] chain, String kind, SSLEngine engine) {}

            @Override
            public X509Certificate[] getAcceptedIssuers() {
                return new X509Certificate[0];
            }
        };
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(null, new javax.net.ssl.TrustManager[] {all}, null);
        return context;
    }
}
