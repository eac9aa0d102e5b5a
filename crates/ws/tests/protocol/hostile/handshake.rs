//! §4, §9, §10.2, and RFC 7692 §7.1: requests and responses of the opening handshake, most of them invalid.

/// A head: a first line and header lines, of any bytes.
#[derive(Clone)]
pub(crate) struct Head {
    first: Vec<u8>,
    lines: Vec<Vec<u8>>,
    end: &'static [u8],
}

impl Head {
    /// The request of RFC 6455 §1.2.
    pub(crate) fn request() -> Self {
        Self::new(
            "GET /chat HTTP/1.1",
            &[
                "Host: server.example.com",
                "Upgrade: websocket",
                "Connection: Upgrade",
                "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
                "Origin: http://example.com",
                "Sec-WebSocket-Protocol: chat, superchat",
                "Sec-WebSocket-Version: 13",
            ],
        )
    }

    /// A valid response with this `Sec-WebSocket-Accept`.
    pub(crate) fn response(accept: &str) -> Self {
        let accept = format!("Sec-WebSocket-Accept: {accept}");
        Self::new("HTTP/1.1 101 Switching Protocols", &["Upgrade: websocket", "Connection: Upgrade", &accept])
    }

    fn new(first: &str, lines: &[&str]) -> Self {
        let lines = lines.iter().map(|line| line.as_bytes().to_vec()).collect();
        Self { first: first.into(), lines, end: b"\r\n" }
    }

    /// Replaces the first line.
    fn first(mut self, line: impl AsRef<[u8]>) -> Self {
        self.first = line.as_ref().to_vec();
        self
    }

    /// Appends a header line.
    fn add(mut self, line: impl AsRef<[u8]>) -> Self {
        self.lines.push(line.as_ref().to_vec());
        self
    }

    /// Removes the lines with this name.
    fn without(mut self, name: &str) -> Self {
        let start = format!("{name}:").to_ascii_lowercase();
        self.lines.retain(|line| !line.to_ascii_lowercase().starts_with(start.as_bytes()));
        self
    }

    /// Replaces the lines with this name.
    fn set(self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.without(name).add([name.as_bytes(), b": ", value.as_ref()].concat())
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = [&self.first[..], b"\r\n"].concat();
        for line in &self.lines {
            bytes.extend(line);
            bytes.extend(b"\r\n");
        }
        bytes.extend(self.end);
        bytes
    }
}

/// A request and the status of the response to it; 101 when it is valid.
pub(crate) struct Request {
    pub(crate) section: &'static str,
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
    pub(crate) status: u16,
}

/// A response and its expected outcome.
pub(crate) struct Response {
    pub(crate) section: &'static str,
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
    pub(crate) expected: Answer,
}

/// The outcome of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The connection is open.
    Opens,
    /// The server refuses with this status, which the application receives.
    Refused(u16),
    /// The client fails the connection.
    Fails,
    /// The client waits for more.
    Waits,
}

pub(crate) fn requests() -> Vec<Request> {
    let mut table = Vec::new();
    let mut put = |section, name: &str, status, head: Head| {
        table.push(Request { section, name: name.into(), bytes: head.bytes(), status });
    };
    let good = Head::request;
    put("§1.2", "the published request", 101, good());

    for (line, status) in [
        ("POST /chat HTTP/1.1", 405),
        ("HEAD /chat HTTP/1.1", 405),
        ("OPTIONS * HTTP/1.1", 405),
        ("CONNECT server.example.com:80 HTTP/1.1", 405),
        ("get /chat HTTP/1.1", 405),
        ("GET /chat HTTP/1.0", 426),
        ("GET /chat HTTP/0.9", 505),
        ("GET /chat HTTP/1.2", 101),
        ("GET /chat HTTP/2.0", 505),
        ("GET /chat http/1.1", 400),
        ("GET /chat", 400),
        ("GET", 400),
        ("", 400),
        ("GET  HTTP/1.1", 400),
        ("GET chat HTTP/1.1", 400),
        ("GET * HTTP/1.1", 400),
        ("GET ftp://server.example.com/ HTTP/1.1", 400),
        ("GET /a b HTTP/1.1", 400),
        ("GET /chat#fragment HTTP/1.1", 400),
        ("GET /chat HTTP/1.1 extra", 400),
        ("G\0T /chat HTTP/1.1", 400),
        ("GET /\u{7}chat HTTP/1.1", 400),
        (" GET /chat HTTP/1.1", 400),
        ("\u{16}\u{3}\u{1}", 400),
        ("PRI * HTTP/2.0", 505),
    ] {
        put("§4.2.1", &format!("the line {line:?}"), status, good().first(line));
    }
    for line in
        ["GET / HTTP/1.1", "GET /chat?a=b&c=%20 HTTP/1.1", "GET http://server.example.com/chat HTTP/1.1"]
    {
        put("§4.2.1", &format!("the line {line:?}"), 101, good().first(line));
    }

    for name in ["Host", "Upgrade", "Connection", "Sec-WebSocket-Key", "Sec-WebSocket-Version"] {
        // RFC 9110 §7.8, §15.5.22: without the protocol it is a request that needs an upgrade.
        let status = if name == "Upgrade" { 426 } else { 400 };
        put("§4.2.1", &format!("no {name}"), status, good().without(name));
        put("§4.2.1", &format!("an empty {name}"), status, good().set(name, ""));
    }
    for name in ["Host", "Sec-WebSocket-Key", "Sec-WebSocket-Version", "Origin"] {
        let line = |value: &str| format!("{name}: {value}");
        let value = match name {
            "Host" => "server.example.com",
            "Sec-WebSocket-Key" => "dGhlIHNhbXBsZSBub25jZQ==",
            "Origin" => "http://example.com",
            _ => "13",
        };
        put("§11.3", &format!("{name} twice"), 400, good().add(line(value)));
    }

    for value in
        ["h2c", "websockets", "web socket", "WebSocket/13x", "\"websocket\"", "websocket;x", ";", "-"]
    {
        put("§4.2.1", &format!("Upgrade: {value}"), 426, good().set("Upgrade", value));
    }
    for value in ["WebSocket", "WEBSOCKET", "h2c, websocket", "websocket, h2c", "websocket,", "  websocket  "]
    {
        put("§4.2.1", &format!("Upgrade: {value}"), 101, good().set("Upgrade", value));
    }
    for value in ["keep-alive", "close", "Upgrades", "Up grade", "\"Upgrade\"", "keep-alive; Upgrade", ","] {
        put("§4.2.1", &format!("Connection: {value}"), 400, good().set("Connection", value));
    }
    for value in
        ["upgrade", "UPGRADE", "keep-alive, Upgrade", "Upgrade,keep-alive", ", ,Upgrade,", "\tUpgrade"]
    {
        put("§4.2.1", &format!("Connection: {value}"), 101, good().set("Connection", value));
    }
    put(
        "§4.2.1",
        "Connection in two lines",
        101,
        good().set("Connection", "keep-alive").add("Connection: Upgrade"),
    );

    for value in [
        "dGhlIHNhbXBsZSBub25jZQ",
        "dGhlIHNhbXBsZSBub25jZQ=",
        "dGhlIHNhbXBsZSBub25jZQ===",
        "dGhlIHNhbXBsZSBub25jZ===",
        "dGhlIHNhbXBsZSBub25j",
        "dGhlIHNhbXBsZSBub25jZQAA",
        "dGhlIHNhbXBsZSBub25jZ!==",
        "dGhlIHNhbXBsZSBub25jZ ==",
        "dGhlIHNhbXBsZSBub25j-_==",
        "========================",
        "AAAA",
        "x",
        "dGhlIHNhbXBsZSBub25jZQ==, dGhlIHNhbXBsZSBub25jZQ==",
    ] {
        put("§4.1", &format!("Sec-WebSocket-Key: {value}"), 400, good().set("Sec-WebSocket-Key", value));
    }
    put("§4.1", "a key of zeros", 101, good().set("Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAA=="));

    for value in ["0", "1", "7", "8", "12", "14", "25", "255"] {
        let head = good().set("Sec-WebSocket-Version", value);
        put("§4.4", &format!("Sec-WebSocket-Version: {value}"), 426, head);
    }
    for value in ["13, 8", "thirteen", "-13", "+13", "0x0d", "1 3", "256", "99999999999", "13.0", "013", "٣"]
    {
        let head = good().set("Sec-WebSocket-Version", value);
        put("§4.1", &format!("Sec-WebSocket-Version: {value}"), 400, head);
    }

    for value in ["a b", "a, b, a", "a/b", "chat\u{7f}", "\"chat\"", "a;b", "é", "(x)"] {
        let head = good().set("Sec-WebSocket-Protocol", value);
        put("§4.1", &format!("Sec-WebSocket-Protocol: {value}"), 400, head);
    }
    put("§4.1", "a subprotocol twice, in two lines", 400, good().add("Sec-WebSocket-Protocol: chat"));
    put("§11.3.4", "no subprotocol in a list", 101, good().set("Sec-WebSocket-Protocol", ","));
    put("§11.3.4", "subprotocols in two lines", 101, good().add("Sec-WebSocket-Protocol: third"));

    for value in [
        ",",
        ";",
        "permessage-deflate;",
        "permessage-deflate;;server_no_context_takeover",
        "permessage-deflate; =10",
        "permessage-deflate; server_max_window_bits=",
        "permessage-deflate; server_max_window_bits=\"10",
        "permessage-deflate; server_max_window_bits=\"1 0\"",
        "permessage-deflate; server_max_window_bits=\"\"",
        "permessage-deflate; a=b=c",
        "permessage deflate",
        "\"permessage-deflate\"",
        "permessage-deflate; a = (",
        "a, b c",
        "@",
    ] {
        let head = good().set("Sec-WebSocket-Extensions", value);
        put("§9.1", &format!("Sec-WebSocket-Extensions: {value}"), 400, head);
    }
    for value in [
        "x-unknown; a; b=c; d=\"e\"",
        "permessage-deflate",
        "permessage-deflate; client_max_window_bits; server_max_window_bits=10",
        "permessage-deflate; server_max_window_bits=\"10\"",
        "permessage-deflate; server_max_window_bits=8, permessage-deflate",
        ",permessage-deflate,,x,",
    ] {
        let head = good().set("Sec-WebSocket-Extensions", value);
        put("§9.1", &format!("Sec-WebSocket-Extensions: {value}"), 101, head);
    }
    // RFC 7692 §7.1: an invalid parameter declines the offer, and the handshake continues without it.
    for value in [
        "permessage-deflate; server_max_window_bits",
        "permessage-deflate; server_max_window_bits=7",
        "permessage-deflate; server_max_window_bits=16",
        "permessage-deflate; server_max_window_bits=08",
        "permessage-deflate; server_max_window_bits=x",
        "permessage-deflate; client_max_window_bits=0",
        "permessage-deflate; client_max_window_bits=99999999999999999999",
        "permessage-deflate; server_no_context_takeover=1",
        "permessage-deflate; client_no_context_takeover=true",
        "permessage-deflate; unknown",
        "permessage-deflate; client_max_window_bits; client_max_window_bits",
        "permessage-deflate; server_no_context_takeover; server_no_context_takeover",
    ] {
        let head = good().set("Sec-WebSocket-Extensions", value);
        put("RFC 7692 §7.1", &format!("declined: {value}"), 101, head);
    }

    for line in [
        &b"no colon"[..],
        b": no name",
        b"na me: x",
        b"name : x",
        b"na\0me: x",
        b"name: a\0b",
        b"name: a\rb",
        b"name: a\x08b",
        b"n\xE4me: x",
        b"(): x",
        b" folded",
        b"\tfolded",
    ] {
        put(
            "§4.2.1",
            &format!("the header line {:?}", line.escape_ascii().to_string()),
            400,
            good().add(line),
        );
    }
    put("§4.2.1", "a value outside ASCII, elsewhere", 101, good().add(b"X-Name: J\xF6rg"));
    put("§4.2.1", "lower-case names", 101, good().without("Host").add("host: server.example.com"));
    put("§4.2.1", "no blank after the colon", 101, good().without("Host").add("Host:server.example.com"));
    for value in ["a b", "a/b", "user@host", "host:port", "host:99999", "[::1", "a,b", "\u{e9}"] {
        put("§4.2.1", &format!("Host: {value}"), 400, good().set("Host", value));
    }
    for value in
        ["localhost", "localhost:8080", "[::1]", "[2001:db8::1]:443", "192.0.2.1:1", "xn--bcher-kva.example"]
    {
        put("§4.2.1", &format!("Host: {value}"), 101, good().set("Host", value));
    }
    put("§4.2.1", "a body is announced", 400, good().add("Content-Length: 5"));
    put("§4.2.1", "a body in chunks is announced", 400, good().add("Transfer-Encoding: chunked"));
    put("§10.2", "an Origin outside ASCII", 400, good().set("Origin", "http://ex\u{e4}mple.com"));
    put("§10.2", "no Origin: a client that is no browser", 101, good().without("Origin"));
    put("§10.2", "the Origin null", 101, good().set("Origin", "null"));

    put(
        "§10.4",
        "a first line without end",
        431,
        good().first(format!("GET /{} HTTP/1.1", "a".repeat(20_000))),
    );
    put("§10.4", "a header without end", 431, good().add(format!("X: {}", "a".repeat(20_000))));
    let many = (0..200).fold(good(), |head, i| head.add(format!("X-{i}: y")));
    put("§10.4", "200 headers", 431, many);
    table
}

pub(crate) fn responses(accept: &str) -> Vec<Response> {
    use Answer::{Fails, Opens, Refused, Waits};
    let mut table = Vec::new();
    let mut put = |section, name: &str, expected, head: Head| {
        table.push(Response { section, name: name.into(), bytes: head.bytes(), expected });
    };
    let good = || Head::response(accept);
    put("§4.1", "the plain answer", Opens, good());
    for (line, expected) in [
        ("HTTP/1.1 101", Opens),
        ("HTTP/1.1 101 ", Opens),
        ("HTTP/1.1 101 Web Socket Protocol Handshake", Opens),
        ("HTTP/1.0 101 Switching Protocols", Fails),
        ("HTTP/2.0 101 Switching Protocols", Fails),
        ("http/1.1 101 Switching Protocols", Fails),
        ("HTTP/1.1 1O1 Switching Protocols", Fails),
        ("HTTP/1.1 10 Switching Protocols", Fails),
        ("HTTP/1.1 1010 Switching Protocols", Fails),
        ("HTTP/1.1", Fails),
        ("", Fails),
        ("ICY 101 OK", Fails),
        ("SSH-2.0-OpenSSH_9.9", Fails),
        ("\u{15}\u{3}\u{1}\0\u{2}\u{2}F", Fails),
        ("220 smtp.example.com ESMTP", Fails),
    ] {
        put("§4.1", &format!("the line {line:?}"), expected, good().first(line));
    }
    for status in [200, 204, 301, 302, 303, 307, 308, 400, 401, 403, 404, 407, 426, 429, 500, 502, 503] {
        put(
            "§4.1",
            &format!("status {status}"),
            Refused(status),
            good().first(format!("HTTP/1.1 {status} Whatever")).add("Content-Length: 0"),
        );
    }
    put("§4.1", "nothing but 100 Continue", Waits, Head::new("HTTP/1.1 100 Continue", &[]));

    for name in ["Upgrade", "Connection", "Sec-WebSocket-Accept"] {
        put("§4.1", &format!("no {name}"), Fails, good().without(name));
        put("§4.1", &format!("an empty {name}"), Fails, good().set(name, ""));
    }
    for value in ["h2c", "websockets", "web socket", "\"websocket\""] {
        put("§4.1", &format!("Upgrade: {value}"), Fails, good().set("Upgrade", value));
    }
    for value in ["WebSocket", "WEBSOCKET", " websocket "] {
        put("§4.1", &format!("Upgrade: {value}"), Opens, good().set("Upgrade", value));
    }
    for value in ["keep-alive", "close", "Upgrades", "\"Upgrade\""] {
        put("§4.1", &format!("Connection: {value}"), Fails, good().set("Connection", value));
    }
    for value in ["upgrade", "UPGRADE", "keep-alive, Upgrade"] {
        put("§4.1", &format!("Connection: {value}"), Opens, good().set("Connection", value));
    }
    let swapped: String = accept
        .chars()
        .map(|c| if c.is_ascii_lowercase() { c.to_ascii_uppercase() } else { c.to_ascii_lowercase() })
        .collect();
    for (name, value) in [
        ("in the other case", swapped),
        ("of another key", "HSmrc0sMlYUkAGmm5OPpG2HaGWk=".into()),
        ("without padding", accept.trim_end_matches('=').into()),
        ("with a byte more", format!("{accept}=")),
        ("quoted", format!("\"{accept}\"")),
        ("twice in a line", format!("{accept}, {accept}")),
        ("short", "AAAA".into()),
    ] {
        put("§4.1", &format!("an accept {name}"), Fails, good().set("Sec-WebSocket-Accept", value));
    }
    put("§4.1", "an accept twice", Fails, good().add(format!("Sec-WebSocket-Accept: {accept}")));
    put(
        "§4.1",
        "blanks around the accept",
        Opens,
        good().set("Sec-WebSocket-Accept", format!("  {accept} ")),
    );

    for value in ["other", "Chat", "chat, superchat", "", "chat;q=1", "\"chat\"", "ch at"] {
        put(
            "§4.1",
            &format!("Sec-WebSocket-Protocol: {value}"),
            Fails,
            good().set("Sec-WebSocket-Protocol", value),
        );
    }
    put("§4.1", "a subprotocol that was offered", Opens, good().set("Sec-WebSocket-Protocol", "superchat"));
    put(
        "§11.3.4",
        "two subprotocols",
        Fails,
        good().set("Sec-WebSocket-Protocol", "chat").add("Sec-WebSocket-Protocol: superchat"),
    );

    for value in [
        "x-unknown",
        "permessage-deflate, permessage-deflate",
        "permessage-deflate, x-unknown",
        "permessage-bzip2",
        ",",
        "permessage-deflate;",
        "permessage-deflate; unknown",
        "permessage-deflate; server_max_window_bits",
        "permessage-deflate; server_max_window_bits=7",
        "permessage-deflate; server_max_window_bits=16",
        "permessage-deflate; server_max_window_bits=010",
        "permessage-deflate; client_max_window_bits",
        "permessage-deflate; client_max_window_bits=20",
        "permessage-deflate; server_no_context_takeover=true",
        "permessage-deflate; client_no_context_takeover; client_no_context_takeover",
        "permessage-deflate; server_max_window_bits=\"10",
    ] {
        let head = good().set("Sec-WebSocket-Extensions", value);
        put("RFC 7692 §7.1", &format!("Sec-WebSocket-Extensions: {value}"), Fails, head);
    }
    for value in [
        "permessage-deflate",
        "permessage-deflate; server_no_context_takeover",
        "permessage-deflate; client_no_context_takeover; server_max_window_bits=9",
        "permessage-deflate; client_max_window_bits=\"12\"",
    ] {
        let head = good().set("Sec-WebSocket-Extensions", value);
        put("RFC 7692 §7.1", &format!("Sec-WebSocket-Extensions: {value}"), Opens, head);
    }
    for line in [&b"no colon"[..], b": no name", b"na me: x", b"name : x", b"name: a\0b", b"name: a\rb"] {
        put(
            "§4.1",
            &format!("the header line {:?}", line.escape_ascii().to_string()),
            Fails,
            good().add(line),
        );
    }
    // RFC 9112 §5.2: a user agent replaces folded lines.
    put("§4.1", "a folded header", Opens, good().add("X: y").add(" folded"));
    put("§10.4", "a header without end", Fails, good().add(format!("X: {}", "a".repeat(20_000))));
    put("§10.4", "200 headers", Fails, (0..200).fold(good(), |head, i| head.add(format!("X-{i}: y"))));
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use wireloom_testing::rounds;
    use wireloom_testing::split::Split;
    use wireloom_ws::deflate::DeflateConfig;
    use wireloom_ws::handshake::{
        Acceptance, ClientHandshake, ClientOptions, HandshakeLimits, ServerHandshake, client, server,
    };

    /// Bytes behind the head: a masked `Hello`.
    const BEHIND: &[u8] = &[0x81, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58];

    /// The status of the response to these bytes, received in chunks of these lengths; 0 when the server waits for
    /// more.
    fn serve(bytes: &[u8], chunks: &[usize]) -> u16 {
        let mut handshake = ServerHandshake::new(HandshakeLimits::default());
        let mut at = 0;
        for &len in chunks {
            match handshake.handle_input(&bytes[at..at + len]) {
                Ok(server::Progress::Incomplete) => at += len,
                Ok(server::Progress::Complete { consumed }) => {
                    // The bytes behind the head are not consumed.
                    assert_eq!(at + consumed, bytes.len() - BEHIND.len());
                    let mut out = Vec::new();
                    let config = DeflateConfig::default();
                    let acceptance = Acceptance { deflate: Some(&config), ..Acceptance::default() };
                    handshake.accept(&acceptance, &mut out).expect("a valid request can be accepted");
                    return status_of(&out);
                }
                Err(error) => {
                    assert_eq!(handshake.handle_input(b"GET").unwrap_err(), error, "a failure stays");
                    let mut out = Vec::new();
                    error.refusal().write_to(&mut out);
                    let status = status_of(&out);
                    assert_eq!(status, error.status());
                    if status == 426 {
                        // RFC 6455 §4.4.
                        let text = String::from_utf8(out).expect("a refusal is ASCII");
                        assert!(text.contains("\r\nSec-WebSocket-Version: 13\r\n"), "{text}");
                    }
                    return status;
                }
            }
        }
        0
    }

    fn status_of(response: &[u8]) -> u16 {
        let line = std::str::from_utf8(&response[..response.len().min(12)]).expect("a status line");
        line.strip_prefix("HTTP/1.1 ").and_then(|status| status.parse().ok()).expect("a status line")
    }

    fn dial(bytes: &[u8], chunks: &[usize]) -> Answer {
        let options = ClientOptions::new("server.example.com", "/chat")
            .subprotocol("chat")
            .subprotocol("superchat")
            .deflate(DeflateConfig::default());
        let mut handshake = ClientHandshake::new(options, NONCE, HandshakeLimits::default()).unwrap();
        let mut at = 0;
        for &len in chunks {
            match handshake.handle_input(&bytes[at..at + len]) {
                Ok(client::Progress::Incomplete) => at += len,
                Ok(client::Progress::Done { consumed, .. }) => {
                    assert_eq!(at + consumed, bytes.len() - BEHIND.len());
                    return Answer::Opens;
                }
                Ok(client::Progress::Refused { response, .. }) => return Answer::Refused(response.status()),
                Err(error) => {
                    assert_eq!(handshake.handle_input(b"HTTP").unwrap_err(), error, "a failure stays");
                    return Answer::Fails;
                }
            }
        }
        Answer::Waits
    }

    /// `the sample nonce`: the key of RFC 6455 §1.3.
    const NONCE: [u8; 16] = *b"the sample nonce";
    const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

    fn cuts(len: usize, mut each: impl FnMut(&[usize])) {
        each(&[len]);
        each(&vec![1; len]);
        rounds(2, |rng| each(&Split::random(rng).parts(rng, len)));
    }

    #[test]
    fn a_server_answers_every_request_with_its_status() {
        let table = requests();
        let mut wrong = Vec::new();
        for row in &table {
            let bytes = [&row.bytes[..], BEHIND].concat();
            cuts(bytes.len(), |chunks| {
                let status = serve(&bytes, chunks);
                if status != row.status {
                    wrong.push(format!(
                        "{} {}: {status}, not {} ({})",
                        row.section,
                        row.name,
                        row.status,
                        chunks.len()
                    ));
                }
            });
        }
        assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), table.len(), wrong.join("\n"));
        assert!(table.len() >= 150, "{}", table.len());
    }

    #[test]
    fn a_client_opens_fails_or_waits_as_expected() {
        let table = responses(ACCEPT);
        let mut wrong = Vec::new();
        for row in &table {
            let bytes = [&row.bytes[..], BEHIND].concat();
            let bytes = if row.expected == Answer::Waits { &row.bytes } else { &bytes };
            cuts(bytes.len(), |chunks| {
                let answer = dial(bytes, chunks);
                if answer != row.expected {
                    wrong.push(format!("{} {}: {answer:?}, not {:?}", row.section, row.name, row.expected));
                }
            });
        }
        assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), table.len(), wrong.join("\n"));
        assert!(table.len() >= 80, "{}", table.len());
    }

    #[test]
    fn an_incomplete_head_is_no_error_and_an_endless_head_is() {
        let request = Head::request().bytes();
        for len in 0..request.len() {
            assert_eq!(serve(&request[..len], &[len]), 0, "cut at {len}");
        }
        let response = Head::response(ACCEPT).bytes();
        for len in 0..response.len() {
            assert_eq!(dial(&response[..len], &[len]), Answer::Waits, "cut at {len}");
        }
        let endless = [b"GET / HTTP/1.1\r\n".to_vec(), b"A: b\r\n".repeat(100_000)].concat();
        assert_eq!(serve(&endless, &vec![6; endless.len() / 6]), 431);
        let hints = b"HTTP/1.1 103 Early Hints\r\n\r\n".repeat(10_000);
        assert_eq!(dial(&hints, &vec![28; hints.len() / 28]), Answer::Fails);
    }
}
