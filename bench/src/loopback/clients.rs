//! The clients that consume a firehose, each written as its documentation shows. A client is this program, started with
//! `--connect`. It counts the events that it receives, decodes them if asked to, and prints the sums at the end.

use super::firehose::Carrier;
use super::raw_client;
use crate::checksum::consume;
use crate::events::{self, Decoded};
use fastwebsockets::{FragmentCollector, OpCode};
use futures_util::StreamExt;
use http_body_util::Empty;
use hyper::header::{CONNECTION, HOST, UPGRADE};
use std::error::Error;
use std::fmt;
use std::net::SocketAddr;
use std::process::ExitCode;
use tokio::net::TcpStream;
use tokio::runtime::Builder;

/// The work of a consumer for each event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Consumption {
    /// It only receives the bytes.
    Deliver,
    /// It decodes them.
    Decode,
}

/// The sums over all events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sums {
    pub(crate) events: u64,
    pub(crate) bytes: u64,
    pub(crate) decoded: Decoded,
}

impl Sums {
    /// The sums after the same events have been sent `times` times.
    pub(crate) fn times(self, times: u64) -> Self {
        let Decoded { blocks, block_bytes, operations } = self.decoded;
        let decoded = Decoded {
            blocks: blocks * times,
            block_bytes: block_bytes * times,
            operations: operations * times,
        };
        Self { events: self.events * times, bytes: self.bytes * times, decoded }
    }
}

impl fmt::Display for Sums {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { events, bytes, decoded: Decoded { blocks, block_bytes, operations } } = self;
        write!(
            f,
            "{events} events, {bytes} bytes, {blocks} blocks of {block_bytes} bytes, {operations} operations"
        )
    }
}

/// Consumes events.
struct Consumer {
    consumption: Consumption,
    sums: Sums,
}

impl Consumer {
    #[inline]
    async fn consume(&mut self, event: &[u8]) -> Result<(), String> {
        self.sums.events += 1;
        self.sums.bytes += consume(event) as u64;
        match self.consumption {
            Consumption::Deliver => Ok(()),
            Consumption::Decode => events::decode(event, &mut self.sums.decoded).await,
        }
    }
}

type Outcome = Result<(), Box<dyn Error + Send + Sync>>;

/// The argument of `--connect`: the name of a client, then `+decode` and `+http2` if wanted.
pub(crate) fn argument(name: &str, consumption: Consumption, is_http2: bool) -> String {
    let decode = if consumption == Consumption::Decode { "+decode" } else { "" };
    let http2 = if is_http2 { "+http2" } else { "" };
    format!("{name}{decode}{http2}")
}

/// The name of the client that drops the bytes.
pub(crate) const RAW: &str = "raw";

/// Runs the client that `argument` names until the server closes.
pub(crate) fn connect(argument: &str, url: &str) -> ExitCode {
    let mut parts = argument.split('+');
    let name = parts.next().unwrap_or_default();
    let (mut consumption, mut is_http2) = (Consumption::Deliver, false);
    for part in parts {
        match part {
            "decode" => consumption = Consumption::Decode,
            _ => is_http2 = true,
        }
    }
    let sums = Sums { events: 0, bytes: 0, decoded: Decoded::default() };
    let mut consumer = Consumer { consumption, sums };
    let runtime = Builder::new_current_thread().enable_all().build();
    let outcome = runtime.map_err(Into::into).and_then(|runtime| {
        runtime.block_on(async {
            match (name, is_http2) {
                (RAW, _) => {
                    let address = url.trim_start_matches("ws://").trim_end_matches('/');
                    let carrier = if is_http2 { Carrier::Http2 } else { Carrier::Http1 };
                    Ok(raw_client::receive(address, carrier)?)
                }
                ("wireloom", _) => wireloom(url, is_http2, &mut consumer).await,
                ("yawc", _) => yawc(url, is_http2, &mut consumer).await,
                ("sockudo-ws", _) => sockudo_ws(url, is_http2, &mut consumer).await,
                ("tokio-tungstenite", false) => tungstenite(url, &mut consumer).await,
                ("fastwebsockets", false) => fastwebsockets(url, &mut consumer).await,
                ("tokio-websockets", false) => tokio_websockets(url, &mut consumer).await,
                _ => Err("no client has this name".into()),
            }
        })
    });
    match outcome {
        Ok(()) => {
            println!("{}", consumer.sums);
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{argument}: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn wireloom(url: &str, is_http2: bool, consumer: &mut Consumer) -> Outcome {
    // No keepalive: the other clients have none, and the server sends nothing between two rounds.
    let config = wireloom::WebSocketConfig::default();
    let mut socket = wireloom::Connector::new().config(config).http2(is_http2).connect(url).await?;
    while let Some(message) = socket.recv().await? {
        consumer.consume(message.as_bytes()).await?;
    }
    Ok(())
}

async fn tungstenite(url: &str, consumer: &mut Consumer) -> Outcome {
    let (mut socket, _) = tokio_tungstenite::connect_async(url).await?;
    while let Some(message) = socket.next().await {
        let message = message?;
        if message.is_binary() {
            consumer.consume(&message.into_data()).await?;
        }
    }
    Ok(())
}

async fn tokio_websockets(url: &str, consumer: &mut Consumer) -> Outcome {
    let (mut socket, _) = tokio_websockets::ClientBuilder::new().uri(url)?.connect().await?;
    while let Some(message) = socket.next().await {
        let message = message?;
        if message.is_binary() {
            consumer.consume(message.as_payload()).await?;
        }
    }
    Ok(())
}

async fn yawc(url: &str, is_http2: bool, consumer: &mut Consumer) -> Outcome {
    use yawc::{HttpVersion, Options, WebSocket};
    let version = if is_http2 { HttpVersion::Http2 } else { HttpVersion::Http1 };
    let options = Options::default().without_compression();
    let connecting = WebSocket::connect(url.parse()?).with_options(options).http_version(version);
    let mut socket = connecting.await?;
    // Its stream ends instead of returning an error.
    while let Some(frame) = socket.next().await {
        if frame.opcode() == yawc::OpCode::Binary {
            consumer.consume(frame.payload()).await?;
        }
    }
    Ok(())
}

async fn sockudo_ws(url: &str, is_http2: bool, consumer: &mut Consumer) -> Outcome {
    use sockudo_ws::client::WebSocketClient;
    use sockudo_ws::{Config, Http1, Http2, Message};
    let uri: hyper::Uri = url.parse()?;
    let host = uri.authority().ok_or("a URL without a host")?.as_str();
    let stream = TcpStream::connect(host).await?;
    stream.set_nodelay(true)?;
    // No timers: the other clients have none.
    let config = Config::builder().auto_ping(false).idle_timeout(0).build();
    macro_rules! consume {
        ($socket:ident) => {
            while let Some(message) = $socket.next().await {
                match message? {
                    Message::Binary(event) => consumer.consume(&event).await?,
                    Message::Close(_) => break,
                    _ => {}
                }
            }
        };
    }
    if is_http2 {
        let client = WebSocketClient::<Http2>::new(config);
        let mut socket = client.connect(stream, &url.replace("ws://", "http://"), None).await?;
        consume!(socket);
        // It answers the Close frame during the next read.
        while socket.next().await.is_some_and(|message| message.is_ok()) {}
    } else {
        let client = WebSocketClient::<Http1>::new(config);
        let (mut socket, _) = client.connect(stream, host, uri.path(), None).await?;
        consume!(socket);
        while socket.next().await.is_some_and(|message| message.is_ok()) {}
    }
    Ok(())
}

/// Runs hyper's futures on tokio.
struct Spawn;

impl<F> hyper::rt::Executor<F> for Spawn
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, future: F) {
        tokio::spawn(future);
    }
}

async fn fastwebsockets(url: &str, consumer: &mut Consumer) -> Outcome {
    let uri: hyper::Uri = url.parse()?;
    let host = uri.authority().ok_or("a URL without a host")?.as_str();
    let stream = TcpStream::connect(host).await?;
    stream.set_nodelay(true)?;
    let request = hyper::Request::get(uri.path())
        .header(HOST, host)
        .header(UPGRADE, "websocket")
        .header(CONNECTION, "upgrade")
        .header("Sec-WebSocket-Key", fastwebsockets::handshake::generate_key())
        .header("Sec-WebSocket-Version", "13")
        .body(Empty::<bytes::Bytes>::new())?;
    let (socket, _) = fastwebsockets::handshake::client(&Spawn, request, stream).await?;
    let mut socket = FragmentCollector::new(socket);
    loop {
        let frame = socket.read_frame().await?;
        match frame.opcode {
            OpCode::Binary => consumer.consume(&frame.payload).await?,
            OpCode::Close => return Ok(()),
            _ => {}
        }
    }
}

/// `count` connections of Wireloom over TLS, each of which has received the echo of one message. They stay open until
/// the result is dropped.
///
/// # Errors
/// One could not be opened.
pub(crate) fn over_tls(address: SocketAddr, count: usize) -> Result<impl Sized, String> {
    let runtime = Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string())?;
    let opened: Result<Vec<_>, wireloom::Error> = runtime.block_on(async {
        let connector = wireloom::Connector::new().tls(wireloom::ClientTls::default().insecure());
        let mut sockets = Vec::with_capacity(count);
        for _ in 0..count {
            let mut socket = connector.connect(&format!("wss://{address}/echo")).await?;
            socket.send("hello").await?;
            socket.recv().await?;
            sockets.push(socket);
        }
        Ok(sockets)
    });
    // The runtime must be dropped after the sockets that belong to it.
    opened.map(|sockets| (sockets, runtime)).map_err(|error| error.to_string())
}
