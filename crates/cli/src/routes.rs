//! What `wireloom serve` answers on which path.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::broadcast;
use wireloom::server::ServerStats;
use wireloom::{CloseCode, Error, OwnedMessage, Request, Response, ServerHandle, Upgrade, WebSocket};

/// Messages that a member of a room may lag behind before it is sent away.
const ROOM_LAG_MAX: usize = 1024;

/// The longest name of a room, in bytes.
const ROOM_NAME_MAX: usize = 128;

/// The longest message of `/source`, in bytes.
const SOURCE_SIZE_MAX: usize = 16 << 20;

pub(crate) struct Routes {
    origins: Vec<String>,
    rooms: Arc<Rooms>,
    sunk: Arc<Sunk>,
    servers: OnceLock<Vec<ServerHandle>>,
}

/// What went into `/sink`.
#[derive(Default)]
struct Sunk {
    messages: AtomicU64,
    bytes: AtomicU64,
}

impl Routes {
    pub(crate) fn new(origins: Vec<String>) -> Self {
        Self { origins, rooms: Arc::default(), sunk: Arc::default(), servers: OnceLock::new() }
    }

    /// The servers whose numbers `/metrics` tells.
    pub(crate) fn watch(&self, servers: Vec<ServerHandle>) {
        let _ = self.servers.set(servers);
    }

    pub(crate) async fn answer(&self, request: Request) -> Response {
        let path = request.path();
        match path {
            "/" => page(&request, Response::html(include_str!("page/start.html"))),
            "/healthz" => page(&request, Response::text(200, "ok\n")),
            "/metrics" => {
                let metrics =
                    Response::new(200).with_body("text/plain; version=0.0.4; charset=utf-8", self.metrics());
                page(&request, metrics)
            }
            "/echo" if !request.is_websocket() && matches!(request.method(), "POST" | "PUT") => {
                let kind = request.header("content-type").and_then(|kind| std::str::from_utf8(kind).ok());
                Response::new(200)
                    .with_body(kind.unwrap_or("application/octet-stream"), request.body().clone())
            }
            "/echo" => self.open(&request, |upgrade| upgrade.on_open(echo)),
            "/sink" => {
                let sunk = self.sunk.clone();
                self.open(&request, |upgrade| upgrade.on_open(|socket| sink(socket, sunk)))
            }
            "/source" => match Source::from_query(&request) {
                Some(source) => self.open(&request, |upgrade| upgrade.on_open(|socket| source.run(socket))),
                None => Response::text(400, "size, rate and count are numbers; size is at most 16777216\n"),
            },
            _ => match path.strip_prefix("/rooms/") {
                Some(name) if (1..=ROOM_NAME_MAX).contains(&name.len()) => {
                    let (rooms, name) = (self.rooms.clone(), name.to_owned());
                    self.open(&request, |upgrade| upgrade.on_open(|socket| room(socket, rooms, name)))
                }
                _ => Response::not_found(),
            },
        }
    }

    /// Accepts a WebSocket if its origin may.
    fn open(&self, request: &Request, accept: impl FnOnce(Upgrade) -> Response) -> Response {
        match request.websocket() {
            // RFC 6455 §10.2: a server that is not meant for every page judges the origin.
            Ok(upgrade) if !self.is_welcome(&upgrade) => Response::text(403, "this origin may not connect\n"),
            Ok(upgrade) => accept(upgrade),
            Err(refusal) => refusal,
        }
    }

    fn is_welcome(&self, upgrade: &Upgrade) -> bool {
        let request = upgrade.request();
        let Some(origin) = request.origin() else { return true };
        let own = origin.split_once("://").is_some_and(|(_, host)| host.eq_ignore_ascii_case(request.host()));
        own || self.origins.iter().any(|allowed| allowed == "*" || allowed.eq_ignore_ascii_case(origin))
    }

    fn metrics(&self) -> String {
        let stats: Vec<ServerStats> =
            self.servers.get().into_iter().flatten().map(ServerHandle::stats).collect();
        let sum = |number: fn(&ServerStats) -> u64| stats.iter().map(number).sum::<u64>();
        let mut out = String::new();
        for (name, kind, help, value) in [
            (
                "connections_accepted_total",
                "counter",
                "Connections accepted.",
                sum(|stats| stats.connections_accepted),
            ),
            (
                "connections_refused_total",
                "counter",
                "Connections closed at once: too many from one address.",
                sum(|stats| stats.connections_refused),
            ),
            ("connections_open", "gauge", "Connections open.", sum(|stats| stats.connections_open as u64)),
            (
                "requests_total",
                "counter",
                "Requests answered, handshakes among them.",
                sum(|stats| stats.requests),
            ),
            (
                "websockets_opened_total",
                "counter",
                "WebSockets opened.",
                sum(|stats| stats.websockets_opened),
            ),
            ("websockets_open", "gauge", "WebSockets open.", sum(|stats| stats.websockets_open as u64)),
            ("rooms_open", "gauge", "Rooms that have members.", lock(&self.rooms.open).len() as u64),
            (
                "sink_messages_total",
                "counter",
                "Messages that went into /sink.",
                self.sunk.messages.load(Ordering::Relaxed),
            ),
            (
                "sink_bytes_total",
                "counter",
                "Bytes of the messages that went into /sink.",
                self.sunk.bytes.load(Ordering::Relaxed),
            ),
        ] {
            // Writing to a string does not fail.
            let _ = writeln!(
                out,
                "# HELP wireloom_{name} {help}\n# TYPE wireloom_{name} {kind}\nwireloom_{name} {value}"
            );
        }
        out
    }
}

/// A page, for those who read it.
fn page(request: &Request, response: Response) -> Response {
    match request.method() {
        "GET" | "HEAD" => response,
        // RFC 9110 §15.5.6.
        _ => Response::text(405, "this can only be read\n").with_header("Allow", "GET, HEAD"),
    }
}

async fn echo(socket: WebSocket) {
    let (mut sender, mut receiver) = socket.split();
    while let Ok(Some(message)) = receiver.recv().await {
        if sender.send(message).await.is_err() {
            return;
        }
    }
}

async fn sink(mut socket: WebSocket, sunk: Arc<Sunk>) {
    while let Ok(Some(message)) = socket.recv().await {
        sunk.messages.fetch_add(1, Ordering::Relaxed);
        sunk.bytes.fetch_add(message.as_bytes().len() as u64, Ordering::Relaxed);
    }
}

/// What `/source` is asked for.
struct Source {
    size: usize,
    /// Messages a second; 0 for as fast as they are taken.
    rate: u32,
    /// Messages; 0 for endless.
    count: u64,
}

impl Source {
    fn from_query(request: &Request) -> Option<Self> {
        fn number<T: std::str::FromStr>(request: &Request, name: &str, default: T) -> Option<T> {
            request.query_param(name).map_or(Some(default), |value| value.parse().ok())
        }
        let size = number(request, "size", 1024)?;
        let source = Self { size, rate: number(request, "rate", 0)?, count: number(request, "count", 0)? };
        (size <= SOURCE_SIZE_MAX).then_some(source)
    }

    async fn run(self, socket: WebSocket) {
        let (mut sender, mut receiver) = socket.split();
        // What arrives is dropped; pings are answered and a Close frame is heard.
        let hear = async { while let Ok(Some(_)) = receiver.recv().await {} };
        let send = async {
            self.send(&mut sender).await?;
            sender.close(CloseCode::NORMAL, "").await
        };
        let (_, sent) = tokio::join!(hear, send);
        // The client went before it had all.
        drop(sent);
    }

    async fn send(&self, sender: &mut wireloom::Sender) -> Result<(), Error> {
        let payload: Vec<u8> = (0..self.size).map(|at| at as u8).collect();
        let begin = tokio::time::Instant::now();
        let mut sent = 0u64;
        while self.count == 0 || sent < self.count {
            let left = if self.count == 0 { u64::MAX } else { self.count - sent };
            // As many as are due, at most 64 KiB or so at once.
            let batch = (65_536 / self.size.max(1)).max(1) as u64;
            let due = if self.rate == 0 {
                batch
            } else {
                let due = (begin.elapsed().as_secs_f64() * f64::from(self.rate)) as u64 + 1;
                due.saturating_sub(sent).min(batch)
            };
            if due == 0 {
                let next = Duration::from_secs_f64(sent as f64 / f64::from(self.rate));
                tokio::time::sleep_until(begin + next).await;
                continue;
            }
            for _ in 0..due.min(left) {
                sender.feed(&payload).await?;
                sent += 1;
            }
            sender.flush().await?;
        }
        Ok(())
    }
}

/// The rooms that have members.
#[derive(Default)]
struct Rooms {
    open: Mutex<HashMap<String, broadcast::Sender<OwnedMessage>>>,
}

impl Rooms {
    fn enter(&self, name: &str) -> (broadcast::Sender<OwnedMessage>, broadcast::Receiver<OwnedMessage>) {
        let mut open = lock(&self.open);
        let room = open.entry(name.into()).or_insert_with(|| broadcast::Sender::new(ROOM_LAG_MAX));
        (room.clone(), room.subscribe())
    }

    /// Closes a room when its last member has left.
    fn leave(&self, name: &str) {
        let mut open = lock(&self.open);
        if open.get(name).is_some_and(|room| room.receiver_count() == 0) {
            open.remove(name);
        }
    }
}

/// Leaves the room when the member goes, however it goes.
struct Member {
    rooms: Arc<Rooms>,
    name: String,
    heard: Option<broadcast::Receiver<OwnedMessage>>,
}

impl Drop for Member {
    fn drop(&mut self) {
        self.heard = None;
        self.rooms.leave(&self.name);
    }
}

async fn room(socket: WebSocket, rooms: Arc<Rooms>, name: String) {
    let (said, heard) = rooms.enter(&name);
    let mut member = Member { rooms, name, heard: Some(heard) };
    let Some(heard) = &mut member.heard else { return };
    let (mut sender, mut receiver) = socket.split();
    loop {
        tokio::select! {
            message = receiver.recv_owned() => match message {
                // There is at least this member to hear it.
                Ok(Some(message)) => drop(said.send(message)),
                _ => return,
            },
            message = heard.recv() => match message {
                Ok(message) => if tell(&mut sender, heard, message).await.is_err() {
                    return;
                },
                Err(broadcast::error::RecvError::Lagged(_)) => {
                    let _ = sender.close(CloseCode::TRY_AGAIN_LATER, "too far behind the room").await;
                    while let Ok(Some(_)) = receiver.recv().await {}
                    return;
                }
                Err(broadcast::error::RecvError::Closed) => return,
            },
        }
    }
}

/// Sends a message, and all that have come in the meantime, in one write.
async fn tell(
    sender: &mut wireloom::Sender,
    heard: &mut broadcast::Receiver<OwnedMessage>,
    message: OwnedMessage,
) -> Result<(), Error> {
    sender.feed(message).await?;
    while sender.queued_len() < 65_536
        && let Ok(message) = heard.try_recv()
    {
        sender.feed(message).await?;
    }
    sender.flush().await
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
