//! The memory of connections that wait for a message, counted by the allocator.

use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::counting::HELD;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use wireloom::wireloom_ws::handshake::Negotiated;
use wireloom::wireloom_ws::{Config, Connection, Event, Role};
use wireloom::{ClientTls, Connector, DeflateConfig, WebSocket, WebSocketConfig};
use wireloom_testing::frame::{masked, upgrade_request};

/// Connections of each test, beside those that fill the pools of the thread.
const CONNECTIONS: usize = 64;

/// A transport in memory. Its own memory is not counted: it exists before, and `Wire::free` empties its buffers.
#[derive(Clone, Default)]
struct Wire(Arc<Mutex<Buffers>>);

#[derive(Default)]
struct Buffers {
    input: VecDeque<u8>,
    output: Vec<u8>,
    reader: Option<Waker>,
}

impl Wire {
    /// Passes `bytes` to the WebSocket, and returns its answer.
    async fn exchange(&self, bytes: &[u8]) -> Vec<u8> {
        let reader = {
            let mut buffers = self.0.lock().unwrap();
            buffers.input.extend(bytes);
            buffers.reader.take()
        };
        reader.into_iter().for_each(Waker::wake);
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        std::mem::take(&mut self.0.lock().unwrap().output)
    }

    fn free(&self) {
        let mut buffers = self.0.lock().unwrap();
        assert!(buffers.input.is_empty() && buffers.output.is_empty());
        (buffers.input, buffers.output) = Default::default();
    }
}

impl AsyncRead for Wire {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut buffers = self.0.lock().unwrap();
        if buffers.input.is_empty() {
            buffers.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let len = into.remaining().min(buffers.input.len());
        buffers.input.drain(..len).for_each(|byte| into.put_slice(&[byte]));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.0.lock().unwrap().output.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Bytes that an idle connection holds, with its task, after `exchanges` echoes of `text`.
async fn held_by_idle(
    subprotocol: Option<&str>,
    deflate: Option<DeflateConfig>,
    text: &str,
    exchanges: usize,
    is_driven: bool,
) -> usize {
    let wires: Vec<Wire> = (0..CONNECTIONS + 8).map(|_| Wire::default()).collect();
    let mut tasks = Vec::with_capacity(wires.len());
    let mut held_before = 0;
    for (number, wire) in wires.iter().enumerate() {
        if number == 8 {
            // The first connections have filled the pools.
            held_before = HELD.get();
        }
        let mut negotiated = Negotiated::default();
        negotiated.subprotocol = subprotocol.map(Into::into);
        negotiated.deflate = deflate.as_ref().map(|_| Default::default());
        let transport = wire.clone();
        let socket = WebSocket::from_transport(
            transport,
            Role::Server,
            negotiated,
            deflate.as_ref(),
            WebSocketConfig::default(),
            &[],
        );
        tasks.push(if is_driven { tokio::spawn(socket.drive(echo)) } else { tokio::spawn(echo(socket)) });
        let mut client = Connection::client(
            Config::default(),
            deflate.as_ref().map(|deflate| (Default::default(), deflate)),
            [7; 32],
            Duration::ZERO,
        );
        for _ in 0..exchanges {
            client.send_text(text).unwrap();
            let mut answer = wire.exchange(&client.take_transmit()).await;
            let (used, event) = client.handle_input(Duration::ZERO, &mut answer).unwrap();
            assert!(matches!(event, Some(Event::Text(echo)) if *echo == *text));
            assert_eq!(used, answer.len());
        }
        tokio::task::yield_now().await;
        wire.free();
    }
    let held = HELD.get() - held_before;
    assert!(tasks.iter().all(|task| !task.is_finished()));
    held as usize / CONNECTIONS
}

async fn echo(socket: WebSocket) {
    let (mut sender, mut receiver) = socket.split();
    while let Ok(Some(message)) = receiver.recv().await {
        if sender.send(message).await.is_err() {
            return;
        }
    }
}

#[tokio::test]
async fn an_idle_websocket_and_its_task_hold_at_most_1024_bytes() {
    for is_driven in [true, false] {
        for exchanges in [0, 3] {
            let held = held_by_idle(None, None, "hello", exchanges, is_driven).await;
            println!("{held} bytes, driven: {is_driven}, {exchanges} exchanges");
            assert!(held <= 1_024, "{held} bytes");
        }
    }
}

#[tokio::test]
async fn a_subprotocol_that_many_have_costs_nothing_for_each() {
    let without = held_by_idle(None, None, "hello", 3, true).await;
    let with = held_by_idle(Some("centrifuge-protobuf"), None, "hello", 3, true).await;
    assert_eq!(with, without);
}

#[tokio::test]
async fn an_idle_compressed_websocket_holds_4_kib_and_its_windows() {
    let text = "{\"event\":\"tick\",\"price\":101.25}".repeat(20);
    for exchanges in [1, 3] {
        let held = held_by_idle(None, Some(DeflateConfig::default()), &text, exchanges, true).await;
        println!("{held} bytes, {exchanges} exchanges");
        // The messages are in the window of each direction.
        let windows = 2 * exchanges * text.len();
        assert!(held <= windows + 4_096, "{held} bytes with {windows} of windows");
    }
}

/// How far a client has come when it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Client {
    /// It has sent nothing.
    Silent,
    /// It has sent the start of a head.
    InHead,
    /// It has received a response.
    KeepAlive,
    /// It has received an echo.
    WebSocket,
    /// It has sent the start of a TLS handshake.
    InTls,
    /// It has opened a WebSocket over TLS.
    TlsWebSocket,
    /// As `WebSocket`, which the handler has passed on to another task.
    PassedOn,
}

impl Client {
    fn is_websocket(self) -> bool {
        matches!(self, Self::WebSocket | Self::TlsWebSocket | Self::PassedOn)
    }

    /// The connection, which is open until it is dropped.
    fn connect(self, address: std::net::SocketAddr) -> Box<dyn std::any::Any> {
        if self == Self::TlsWebSocket {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let connector = Connector::new().tls(ClientTls::default().insecure());
            let socket = runtime.block_on(connector.connect(&format!("wss://{address}/"))).unwrap();
            return Box::new((socket, runtime));
        }
        let mut client = std::net::TcpStream::connect(address).unwrap();
        let mut receive = |request: &str| {
            client.write_all(request.as_bytes()).unwrap();
            let mut answer = Vec::new();
            while !answer.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                client.read_exact(&mut byte).unwrap();
                answer.push(byte[0]);
            }
        };
        match self {
            Self::Silent => {}
            Self::InHead => client.write_all(b"GET / HTTP/1.1\r\n").unwrap(),
            Self::KeepAlive => receive("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n"),
            Self::WebSocket | Self::PassedOn => {
                receive(&upgrade_request("/"));
                client.write_all(&masked(0x81, "hi")).unwrap();
                let mut echo = [0; 4];
                client.read_exact(&mut echo).unwrap();
                assert_eq!(&echo, b"\x81\x02hi");
            }
            Self::InTls | Self::TlsWebSocket => client.write_all(&[0x16, 3, 1, 2, 0, 1]).unwrap(),
        }
        Box::new(client)
    }
}

/// Bytes that a server and tokio hold for a connection over TCP, and those that the server counts.
async fn held_by_server(client: Client) -> (usize, usize) {
    let mut server = wireloom::Server::bind("127.0.0.1:0").await.unwrap();
    if matches!(client, Client::InTls | Client::TlsWebSocket) {
        server = server.tls(wireloom::ServerTls::self_signed(&["localhost"]).unwrap().0);
    }
    let (address, handle) = (server.local_addr().unwrap(), server.handle());
    tokio::spawn(server.serve(move |request: wireloom::Request| async move {
        match request.websocket() {
            Ok(upgrade) if client == Client::PassedOn => {
                upgrade.on_open(async |socket| drop(tokio::spawn(echo(socket))))
            }
            Ok(upgrade) => upgrade.on_open(echo),
            Err(refusal) => refusal,
        }
    }));
    // Clients of another thread are not counted.
    let (open, opened) = std::sync::mpsc::channel();
    let (report, mut reported) = tokio::sync::mpsc::unbounded_channel();
    let clients = std::thread::spawn(move || {
        let mut clients = Vec::new();
        while let Ok(()) = opened.recv() {
            clients.push(client.connect(address));
            report.send(()).unwrap();
        }
    });
    let (mut held_before, mut counted_before) = (0, 0);
    // A power of two, so that the tables of the server are full.
    for number in 0..256 {
        if number == 128 {
            held_before = HELD.get();
            counted_before = handle.stats().memory.total;
        }
        open.send(()).unwrap();
        reported.recv().await.unwrap();
        while handle.stats().connections_open <= number {
            tokio::task::yield_now().await;
        }
        // The server waits again.
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
    }
    let held = (HELD.get() - held_before) as usize / 128;
    let counted = (handle.stats().memory.total - counted_before) / 128;
    println!("{client:?}: {held} bytes, counted {counted}");
    assert_eq!(handle.stats().websockets_open, if client.is_websocket() { 256 } else { 0 });
    drop(open);
    clients.join().unwrap();
    (held, counted)
}

// Of these, tokio has 128 for the task and 256 for the registration of the socket.
#[tokio::test]
async fn an_idle_websocket_of_a_server_holds_at_most_1024_bytes() {
    let (held, _) = held_by_server(Client::WebSocket).await;
    assert!(held <= 1_024, "{held} bytes");
}

// The task of the server waits for its end, in a place that the connection has.
#[tokio::test]
async fn a_websocket_that_was_passed_on_holds_little_more_than_its_task() {
    let (own, _) = held_by_server(Client::WebSocket).await;
    let (passed_on, _) = held_by_server(Client::PassedOn).await;
    assert!(passed_on <= own + 400, "{passed_on} bytes, and {own} with the server's task alone");
}

// Else idle connections would fill the memory of the machine, whatever the limit is.
#[tokio::test]
async fn what_an_idle_connection_holds_is_counted() {
    use Client::{InHead, InTls, KeepAlive, Silent, TlsWebSocket, WebSocket};
    for client in [Silent, InHead, KeepAlive, WebSocket, InTls, TlsWebSocket] {
        let (held, counted) = held_by_server(client).await;
        assert!((held..held + 4_096).contains(&counted), "{client:?}: {held} bytes, counted {counted}");
    }
}
