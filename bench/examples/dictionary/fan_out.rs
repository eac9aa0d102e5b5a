//! One round: a server in one thread, its subscribers in another.

use super::clock;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, mpsc};
use tokio::sync::Notify;
use wireloom::{
    CloseCode, Connector, DeflateConfig, PreparedMessage, Request, Sender, Server, ServerConfig, WebSocket,
};
use zstd::bulk::{Compressor, Decompressor};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The level of DEFLATE and of zstd: the fastest of both.
const LEVEL: u8 = 1;
/// Bytes of an event, at most.
const EVENT_LEN_MAX: usize = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scheme {
    Plain,
    /// Each connection compresses for itself, with reference to what it has sent.
    DeflateEach,
    /// Each event is compressed once, without reference to others.
    DeflateOnce,
    /// Each event is compressed once, with the dictionary.
    Zstd,
}

impl Scheme {
    pub(crate) const ALL: [Self; 4] = [Self::Plain, Self::DeflateEach, Self::DeflateOnce, Self::Zstd];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Plain => "uncompressed",
            Self::DeflateEach => "permessage-deflate, each connection",
            Self::DeflateOnce => "permessage-deflate, once for all",
            Self::Zstd => "zstd with a dictionary, once for all",
        }
    }

    fn deflate(self) -> Option<DeflateConfig> {
        let config = DeflateConfig { level: LEVEL, ..DeflateConfig::default() };
        matches!(self, Self::DeflateEach | Self::DeflateOnce).then_some(config)
    }
}

/// Of one delivery of an event to one subscriber.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    /// On the wire, without TCP.
    pub(crate) bytes: f64,
    pub(crate) server_us: f64,
    pub(crate) client_us: f64,
}

/// The measurements of a thread.
struct Measured {
    cpu_us: f64,
    bytes: u64,
}

fn in_runtime<F: Future>(future: F) -> io::Result<F::Output> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(future))
}

/// Sends the events to all subscribers.
///
/// # Errors
/// A connection failed, or a subscriber received something else.
pub(crate) fn run(
    scheme: Scheme,
    dictionary: &[u8],
    events: &[String],
    subscribers: usize,
) -> Result<Cost, String> {
    let (address, listening) = mpsc::channel();
    let (served, received) = std::thread::scope(|scope| {
        let server = scope.spawn(move || in_runtime(serve(scheme, dictionary, events, subscribers, address)));
        let client = scope.spawn(move || {
            let address = listening.recv()?;
            in_runtime(subscribe(scheme, dictionary, events, subscribers, address))?
        });
        (server.join(), client.join())
    });
    let served = served.map_err(|_| "the server panicked")?.map_err(|error| error.to_string())?;
    let served = served.map_err(|error| error.to_string())?;
    let received = received.map_err(|_| "a client panicked")?.map_err(|error| error.to_string())?;
    let deliveries = (events.len() * subscribers) as f64;
    Ok(Cost {
        bytes: received.bytes as f64 / deliveries,
        server_us: served.cpu_us / deliveries,
        client_us: received.cpu_us / deliveries,
    })
}

/// The subscribers of a server.
#[derive(Default)]
struct Subscribers {
    senders: Mutex<Vec<Sender>>,
    joined: Notify,
}

impl Subscribers {
    /// All of them, once `count` have joined.
    fn take(&self, count: usize) -> Option<Vec<Sender>> {
        let mut senders = self.senders.lock().expect("no panic");
        (senders.len() == count).then(|| std::mem::take(&mut *senders))
    }
}

async fn serve(
    scheme: Scheme,
    dictionary: &[u8],
    events: &[String],
    count: usize,
    address: mpsc::Sender<SocketAddr>,
) -> Result<Measured, Failure> {
    let subscribers = Arc::new(Subscribers::default());
    let config = ServerConfig { deflate: scheme.deflate(), ..ServerConfig::default() };
    let server = Server::bind("127.0.0.1:0").await?.config(config);
    let _ = address.send(server.local_addr()?);
    let handle = server.handle();
    let joining = subscribers.clone();
    let serving =
        tokio::spawn(
            server.serve(move |request: Request| {
                let subscribers = joining.clone();
                async move {
                    request.websocket().map(|upgrade| upgrade.on_open(|socket| keep(socket, subscribers)))
                }
            }),
        );
    let mut senders = loop {
        let joined = subscribers.joined.notified();
        if let Some(senders) = subscribers.take(count) {
            break senders;
        }
        joined.await;
    };
    let mut compressor = Compressor::with_dictionary(LEVEL.into(), dictionary)?;
    let begin = clock::now();
    for event in events {
        if scheme == Scheme::DeflateEach {
            for sender in &mut senders {
                sender.send(event).await?;
            }
            continue;
        }
        let message = match scheme {
            Scheme::Zstd => PreparedMessage::binary(&compressor.compress(event.as_bytes())?),
            _ => PreparedMessage::text(event),
        };
        for sender in &mut senders {
            sender.send(&message).await?;
        }
    }
    for sender in &mut senders {
        sender.close(CloseCode::NORMAL, "").await?;
    }
    handle.shut_down();
    let _ = serving.await;
    Ok(Measured { cpu_us: (clock::now() - begin).as_secs_f64() * 1e6, bytes: 0 })
}

/// Hands out the sending half, and reads until the client closes.
async fn keep(socket: WebSocket, subscribers: Arc<Subscribers>) {
    let (sender, mut receiver) = socket.split();
    subscribers.senders.lock().expect("no panic").push(sender);
    subscribers.joined.notify_one();
    while let Ok(Some(_)) = receiver.recv().await {}
}

async fn subscribe(
    scheme: Scheme,
    dictionary: &[u8],
    events: &[String],
    count: usize,
    address: SocketAddr,
) -> Result<Measured, Failure> {
    let mut connector = Connector::new();
    if let Some(deflate) = scheme.deflate() {
        connector = connector.deflate(deflate);
    }
    let mut sockets = Vec::new();
    for _ in 0..count {
        sockets.push(connector.connect(&format!("ws://{address}/")).await?);
    }
    let len: usize = events.iter().map(String::len).sum();
    let begin = clock::now();
    let tasks: Vec<_> = sockets
        .into_iter()
        .map(|socket| tokio::spawn(receive(socket, (scheme == Scheme::Zstd).then(|| dictionary.to_vec()))))
        .collect();
    let mut bytes = 0;
    for task in tasks {
        let (on_wire, decoded) = task.await??;
        assert_eq!(decoded, len, "{}", scheme.name());
        bytes += on_wire;
    }
    Ok(Measured { cpu_us: (clock::now() - begin).as_secs_f64() * 1e6, bytes })
}

/// Receives until the server closes; returns the bytes on the wire and those of the events.
async fn receive(mut socket: WebSocket, dictionary: Option<Vec<u8>>) -> Result<(u64, usize), Failure> {
    let mut decompressor = match &dictionary {
        Some(dictionary) => Some(Decompressor::with_dictionary(dictionary)?),
        None => None,
    };
    let mut event = Vec::with_capacity(EVENT_LEN_MAX);
    let mut len = 0;
    while let Some(message) = socket.recv().await? {
        match &mut decompressor {
            Some(decompressor) => {
                event.clear();
                let result = decompressor.decompress_to_buffer(message.as_bytes(), &mut event);
                len += result?;
                std::hint::black_box(event.as_slice());
            }
            None => len += std::hint::black_box(message.as_bytes()).len(),
        }
    }
    Ok((socket.traffic().bytes_received, len))
}
