//! A client of HTTP/2 for tests: the core over a socket, driven by hand, so that a test can do what no library would.

use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use wireloom_http2::error::ErrorCode;
use wireloom_http2::field::Field;
use wireloom_http2::{Config, Connection, Event, Role, StreamKey};

/// What happened on a stream, or to the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
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
    /// What was seen and not asked for: the stream's identifier, or 0.
    seen: Vec<(u32, Seen)>,
    closed: bool,
}

impl Peer {
    pub(crate) async fn connect(address: std::net::SocketAddr) -> Self {
        Self::with(address, Config::new(Role::Client)).await
    }

    pub(crate) async fn with(address: std::net::SocketAddr, config: Config) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        let core = Connection::new(Role::Client, config).unwrap();
        let mut peer = Self { core, stream, began: Instant::now(), seen: Vec::new(), closed: false };
        // What the server allows is known before anything is asked.
        assert_eq!(peer.next(0).await, Seen::Settings);
        peer
    }

    /// Opens a request.
    pub(crate) async fn ask(
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

    /// Bytes that no core would send.
    pub(crate) async fn send_raw(&mut self, bytes: &[u8]) {
        self.flush().await;
        self.stream.write_all(bytes).await.unwrap();
    }

    pub(crate) async fn flush(&mut self) {
        loop {
            let mut slices = [&[][..]; 8];
            let count = self.core.poll_transmit(&mut slices);
            let bytes = slices[..count].concat();
            if bytes.is_empty() {
                return;
            }
            // A server that has closed is seen by reading.
            if self.stream.write_all(&bytes).await.is_err() {
                return;
            }
            self.core.transmitted(bytes.len());
        }
    }

    /// The next that is seen of a stream; of the connection when it is 0.
    pub(crate) async fn next(&mut self, id: u32) -> Seen {
        loop {
            if let Some(at) = self.seen.iter().position(|(seen, _)| *seen == id) {
                return self.seen.remove(at).1;
            }
            if self.closed {
                return Seen::Closed;
            }
            self.read().await;
        }
    }

    /// All of a stream, to its end: the head, the content, the trailers.
    pub(crate) async fn whole(&mut self, key: StreamKey) -> (u16, Vec<(String, Vec<u8>)>, Vec<u8>) {
        let Seen::Head(status, headers) = self.next(key.id()).await else { panic!("no head") };
        let mut content = Vec::new();
        loop {
            match self.next(key.id()).await {
                Seen::Data(data) => content.extend_from_slice(&data),
                Seen::End => return (status, headers, content),
                other => panic!("{other:?} after {} bytes", content.len()),
            }
        }
    }

    /// Content to the end of a stream whose head was seen, in bytes.
    pub(crate) async fn whole_content(&mut self, key: StreamKey) -> usize {
        let mut len = 0;
        loop {
            match self.next(key.id()).await {
                Seen::Data(data) => len += data.len(),
                Seen::End => return len,
                other => panic!("{other:?} after {len} bytes"),
            }
        }
    }

    /// `len` bytes of content.
    pub(crate) async fn content(&mut self, key: StreamKey, len: usize) -> Vec<u8> {
        let mut content = Vec::new();
        while content.len() < len {
            match self.next(key.id()).await {
                Seen::Data(data) => content.extend_from_slice(&data),
                other => panic!("{other:?} after {} bytes", content.len()),
            }
        }
        content
    }

    async fn read(&mut self) {
        self.flush().await;
        let mut bytes = vec![0; 64 << 10];
        let reading = self.stream.read(&mut bytes);
        let len = tokio::time::timeout(Duration::from_secs(20), reading).await.expect("nothing comes");
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
            note(event, &mut self.seen);
        }
        self.flush().await;
    }
}

fn note(event: Event<'_>, seen: &mut Vec<(u32, Seen)>) {
    let list = |fields: &wireloom_http2::field::FieldList| {
        let fields = fields.iter().filter(|field| !field.is_pseudo());
        fields
            .map(|field| (String::from_utf8_lossy(field.name()).into_owned(), field.value().to_vec()))
            .collect()
    };
    match event {
        Event::Response { stream, status, fields, end_stream } => {
            seen.push((stream.id(), Seen::Head(status, list(fields))));
            seen.extend(end_stream.then_some((stream.id(), Seen::End)));
        }
        Event::Informational { stream, status, fields } => {
            seen.push((stream.id(), Seen::Head(status, list(fields))));
        }
        Event::Data { stream, data, end_stream } => {
            if !data.is_empty() {
                seen.push((stream.id(), Seen::Data(data.to_vec())));
            }
            seen.extend(end_stream.then_some((stream.id(), Seen::End)));
        }
        Event::Trailers { stream, fields } => {
            seen.push((stream.id(), Seen::Trailers(list(fields))));
            seen.push((stream.id(), Seen::End));
        }
        Event::Reset { stream, code, .. } => seen.push((stream.id(), Seen::Reset(code))),
        Event::Refused { stream } => seen.push((stream.id(), Seen::Reset(ErrorCode::REFUSED_STREAM))),
        Event::GoAway { code, .. } => seen.push((0, Seen::GoAway(code))),
        Event::Settings => seen.push((0, Seen::Settings)),
        _ => {}
    }
}
