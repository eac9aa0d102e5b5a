//! A client of HTTP/2 for tests: the core over a socket, driven by hand, so that a test can do what no library would.

use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use wireloom_http2::error::ErrorCode;
use wireloom_http2::field::{Field, FieldList};
use wireloom_http2::{Config, Connection, Event, Role, StreamKey};

/// An event of a stream, or of the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    Head(u16, Vec<(String, Vec<u8>)>),
    Data(Vec<u8>),
    Trailers(Vec<(String, Vec<u8>)>),
    End,
    Reset(ErrorCode),
    GoAway(ErrorCode),
    Settings,
    Closed,
}

pub(crate) struct Peer {
    pub(crate) core: Connection,
    stream: TcpStream,
    began: Instant,
    /// Events that the test has not taken yet, each with its stream's identifier, or 0 for the connection.
    received: Vec<(u32, Received)>,
    closed: bool,
}

impl Peer {
    pub(crate) async fn connect(address: std::net::SocketAddr) -> Self {
        Self::with(address, Config::new(Role::Client)).await
    }

    pub(crate) async fn with(address: std::net::SocketAddr, mut config: Config) -> Self {
        // Tests send what a server has to refuse.
        config.check_outgoing = false;
        let stream = TcpStream::connect(address).await.unwrap();
        let core = Connection::new(Role::Client, config).unwrap();
        let mut peer = Self { core, stream, began: Instant::now(), received: Vec::new(), closed: false };
        // Wait for the server's SETTINGS, so that its limits are known before the first request.
        assert_eq!(peer.next(0).await, Received::Settings);
        peer
    }

    /// Sends the head of a request.
    pub(crate) async fn request(
        &mut self,
        method: &str,
        path: &str,
        more: &[(&str, &str)],
        end: bool,
    ) -> StreamKey {
        let fields = [(":method", method), (":scheme", "http"), (":authority", "a"), (":path", path)];
        let fields = fields.iter().chain(more);
        let fields = fields.map(|(name, value)| Field::new(name.as_bytes(), value.as_bytes()));
        let key = self.core.send_request(fields, end).unwrap();
        self.flush().await;
        key
    }

    /// Opens a WebSocket (RFC 8441 §5).
    pub(crate) async fn tunnel(&mut self, path: &str) -> StreamKey {
        let fields = [
            (":method", "CONNECT"),
            (":protocol", "websocket"),
            (":scheme", "http"),
            (":path", path),
            (":authority", "a"),
            ("sec-websocket-version", "13"),
        ];
        let fields = fields.map(|(name, value)| Field::new(name.as_bytes(), value.as_bytes()));
        let key = self.core.send_request(fields, false).unwrap();
        self.flush().await;
        key
    }

    pub(crate) async fn send(&mut self, key: StreamKey, data: &[u8], end: bool) {
        self.core.send_data(key, data.to_vec(), end).unwrap();
        self.flush().await;
    }

    pub(crate) async fn reset(&mut self, key: StreamKey) {
        self.core.reset(key, ErrorCode::CANCEL).unwrap();
        self.flush().await;
    }

    /// Sends bytes that no core would send.
    pub(crate) async fn send_raw(&mut self, bytes: &[u8]) {
        self.flush().await;
        self.stream.write_all(bytes).await.unwrap();
    }

    pub(crate) async fn flush(&mut self) {
        loop {
            let mut slices = [&[][..]; 8];
            let count = self.core.poll_transmit(self.began.elapsed(), &mut slices);
            let bytes = slices[..count].concat();
            if bytes.is_empty() {
                return;
            }
            // The next read reports that the server has closed.
            if self.stream.write_all(&bytes).await.is_err() {
                return;
            }
            self.core.transmitted(self.began.elapsed(), bytes.len());
        }
    }

    /// Whether an event of this stream has not been taken.
    pub(crate) fn has_received(&self, key: StreamKey) -> bool {
        self.received.iter().any(|(id, _)| *id == key.id())
    }

    /// The next event of a stream; of the connection if `id` is 0.
    pub(crate) async fn next(&mut self, id: u32) -> Received {
        loop {
            if let Some(at) = self.received.iter().position(|(received, _)| *received == id) {
                return self.received.remove(at).1;
            }
            if self.closed {
                return Received::Closed;
            }
            self.read().await;
        }
    }

    /// The whole response: its status, its header fields and its content.
    pub(crate) async fn response(&mut self, key: StreamKey) -> (u16, Vec<(String, Vec<u8>)>, Vec<u8>) {
        let Received::Head(status, headers) = self.next(key.id()).await else { panic!("no head") };
        let mut content = Vec::new();
        loop {
            match self.next(key.id()).await {
                Received::Data(data) => content.extend_from_slice(&data),
                Received::End => return (status, headers, content),
                other => panic!("{other:?} after {} bytes", content.len()),
            }
        }
    }

    /// The length in bytes of the content up to the end of the stream, after the head.
    pub(crate) async fn rest_of_content(&mut self, key: StreamKey) -> usize {
        let mut len = 0;
        loop {
            match self.next(key.id()).await {
                Received::Data(data) => len += data.len(),
                Received::End => return len,
                other => panic!("{other:?} after {len} bytes"),
            }
        }
    }

    /// At least `len` bytes of content.
    pub(crate) async fn content(&mut self, key: StreamKey, len: usize) -> Vec<u8> {
        let mut content = Vec::new();
        while content.len() < len {
            match self.next(key.id()).await {
                Received::Data(data) => content.extend_from_slice(&data),
                other => panic!("{other:?} after {} bytes", content.len()),
            }
        }
        content
    }

    async fn read(&mut self) {
        self.flush().await;
        let mut bytes = vec![0; 64 << 10];
        let reading = self.stream.read(&mut bytes);
        let len =
            tokio::time::timeout(Duration::from_secs(20), reading).await.expect("the server sends something");
        let len = len.unwrap_or(0);
        if len == 0 {
            self.closed = true;
            return;
        }
        let mut input = &bytes[..len];
        loop {
            let (taken, event) = self.core.handle_input(self.began.elapsed(), input).unwrap();
            input = &input[taken..];
            let Some(event) = event else { break };
            record(event, self.core.fields(), &mut self.received);
        }
        self.flush().await;
    }
}

/// `fields` are those of the event, if it reports a message.
fn record(event: Event<'_>, fields: &FieldList, received: &mut Vec<(u32, Received)>) {
    let list = || {
        let fields = fields.iter().filter(|field| !field.is_pseudo());
        fields
            .map(|field| (String::from_utf8_lossy(field.name()).into_owned(), field.value().to_vec()))
            .collect()
    };
    match event {
        Event::Response { stream, status, end_stream } => {
            received.push((stream.id(), Received::Head(status, list())));
            received.extend(end_stream.then_some((stream.id(), Received::End)));
        }
        Event::Informational { stream, status } => {
            received.push((stream.id(), Received::Head(status, list())));
        }
        Event::Data { stream, data, end_stream } => {
            if !data.is_empty() {
                received.push((stream.id(), Received::Data(data.to_vec())));
            }
            received.extend(end_stream.then_some((stream.id(), Received::End)));
        }
        Event::Trailers { stream } => {
            received.push((stream.id(), Received::Trailers(list())));
            received.push((stream.id(), Received::End));
        }
        Event::Reset { stream, code, .. } => received.push((stream.id(), Received::Reset(code))),
        Event::Refused { stream } => received.push((stream.id(), Received::Reset(ErrorCode::REFUSED_STREAM))),
        Event::GoAway { code, .. } => received.push((0, Received::GoAway(code))),
        Event::Settings => received.push((0, Received::Settings)),
        _ => {}
    }
}
