//! What `wireloom serve` answers on which path.

mod metrics;
mod rooms;
mod source;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Instant, SystemTime};

use tracing::debug;
use wireloom::{CloseCode, IntoResponse, Request, Response, ServerHandle, WebSocket};

use crate::args::Serve;
use rooms::{Member, Rooms};
use source::Source;

/// The routes, and what they share.
pub(crate) struct Routes {
    /// Bodies are limited, and so collected before they are echoed.
    collects: bool,
    rooms: Arc<Rooms>,
    sunk: Arc<Sunk>,
    servers: OnceLock<Vec<ServerHandle>>,
    /// Seconds since 1970.
    begun_at: u64,
}

/// What went into `/sink`.
#[derive(Default)]
struct Sunk {
    messages: AtomicU64,
    bytes: AtomicU64,
}

impl Sunk {
    fn add(&self, len: usize) {
        self.messages.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(len as u64, Ordering::Relaxed);
    }

    fn messages(&self) -> u64 {
        self.messages.load(Ordering::Relaxed)
    }

    fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

impl Routes {
    /// The routes as the arguments choose them.
    pub(crate) fn new(args: &Serve) -> Self {
        let begun_at = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Self {
            collects: args.http.max_body.is_some(),
            rooms: Rooms::new(args.websocket.max_room_lag, args.websocket.max_room_queue),
            sunk: Arc::default(),
            servers: OnceLock::new(),
            begun_at: begun_at.map_or(0, |since| since.as_secs()),
        }
    }

    /// The servers whose numbers `/metrics` tells.
    pub(crate) fn watch(&self, servers: Vec<ServerHandle>) {
        let _ = self.servers.set(servers);
    }

    /// Answers, and says so in the log.
    pub(crate) async fn answer(&self, mut request: Request) -> Response {
        let response = self.route(&mut request).await;
        debug!(
            peer = %request.peer(),
            method = request.method(),
            path = request.path(),
            status = response.status(),
            "request"
        );
        response
    }

    async fn route(&self, request: &mut Request) -> Response {
        match request.path() {
            "/" => page(request, Response::html(include_str!("../page/start.html"))),
            "/healthz" => page(request, Response::text(200, "ok\n")),
            "/metrics" => {
                let kind = "text/plain; version=0.0.4; charset=utf-8";
                page(request, Response::new(200).with_body(kind, metrics::page(self)))
            }
            "/echo" if has_content(request) => self.echo_body(request).await,
            "/sink" if has_content(request) => self.sink_body(request).await,
            "/echo" | "/sink" if !request.is_websocket() && !matches!(request.method(), "GET" | "HEAD") => {
                // RFC 9110 §15.5.6.
                Response::text(405, "content comes by POST or PUT\n")
                    .with_header("Allow", "GET, POST, PUT")
                    .into_response()
            }
            "/echo" => Self::open(request, Talk::Echo),
            "/sink" => Self::open(request, Talk::Sink(self.sunk.clone())),
            "/source" => match Source::from_query(request) {
                Some(source) if request.is_websocket() => Self::open(request, Talk::Source(source)),
                Some(source) => page(request, source.response()),
                None => {
                    Response::text(400, "size, rate and count are whole numbers; size is at most 16777216\n")
                }
            },
            path => match path.strip_prefix("/rooms/").and_then(|name| self.rooms.member(name)) {
                Some(member) => Self::open(request, Talk::Room(member)),
                None => Response::not_found(),
            },
        }
    }

    /// The body goes back: as it comes, or whole where its length is limited.
    async fn echo_body(&self, request: &mut Request) -> Response {
        let kind = request.header("content-type").and_then(|kind| std::str::from_utf8(kind).ok());
        let kind = kind.unwrap_or("application/octet-stream").to_owned();
        if self.collects {
            return match request.bytes().await {
                Ok(body) => Response::new(200).with_body(&kind, body),
                Err(error) => error.into(),
            };
        }
        Response::new(200).with_body(&kind, std::mem::take(request.body_mut()))
    }

    async fn sink_body(&self, request: &mut Request) -> Response {
        let mut bytes = 0;
        loop {
            match request.body_mut().chunk().await {
                Ok(Some(chunk)) => bytes += chunk.len(),
                Ok(None) => break,
                Err(error) => return error.into(),
            }
        }
        self.sunk.add(bytes);
        Response::text(200, format!("{bytes} bytes\n"))
    }

    /// Accepts a WebSocket.
    fn open(request: &Request, talk: Talk) -> Response {
        match request.websocket() {
            Ok(upgrade) => {
                let (peer, opened) = (request.peer(), Instant::now());
                upgrade.on_open(move |mut socket| async move {
                    talk.run(&mut socket).await;
                    let code = socket.end().map_or(CloseCode::ABNORMAL, |end| end.code());
                    debug!(%peer, code = u16::from(code), seconds = opened.elapsed().as_secs_f64(), "websocket closed");
                })
            }
            Err(refusal) => refusal,
        }
    }
}

/// What is done with an open WebSocket.
enum Talk {
    Echo,
    Sink(Arc<Sunk>),
    Source(Source),
    Room(Member),
}

impl Talk {
    async fn run(self, socket: &mut WebSocket) {
        match self {
            Self::Echo => {
                let (sender, receiver) = socket.halves();
                while let Ok(Some(message)) = receiver.recv().await {
                    if sender.send(message).await.is_err() {
                        return;
                    }
                }
            }
            Self::Sink(sunk) => {
                while let Ok(Some(message)) = socket.recv().await {
                    sunk.add(message.as_bytes().len());
                }
            }
            // In boxes, so that an echo that waits is not as large as they are.
            Self::Source(source) => Box::pin(source.run(socket)).await,
            Self::Room(member) => Box::pin(member.run(socket)).await,
        }
    }
}

fn has_content(request: &Request) -> bool {
    !request.is_websocket() && matches!(request.method(), "POST" | "PUT")
}

/// A page, for those who read it.
fn page(request: &Request, response: Response) -> Response {
    match request.method() {
        "GET" | "HEAD" => response,
        // RFC 9110 §15.5.6.
        _ => Response::text(405, "this can only be read\n").with_header("Allow", "GET, HEAD").into_response(),
    }
}
