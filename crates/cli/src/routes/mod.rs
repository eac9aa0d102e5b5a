//! The routes of `wireloom serve`.
//!
//! Layers: `assets`, `clients`, `figures`, `files`, `process`, `sink` → `metrics`, `source` → `websocket` → `live`.

mod assets;
mod clients;
mod figures;
mod files;
mod live;
mod metrics;
mod process;
mod sink;
mod source;
mod websocket;

use std::sync::{Arc, OnceLock};
use std::time::{Instant, SystemTime};

use tracing::{Level, debug, enabled};
use wireloom::{CloseCode, IntoResponse, OriginPolicy, Request, Response, ServerHandle};
use wireloom_hub::Hub;

use crate::args::{LiveStats, Serve};
use clients::Clients;
use figures::Figures;
use files::Files;
use live::Access;
use sink::SinkCounters;
use source::Source;
use websocket::{Client, Service};

/// The routes, and what they share.
pub(crate) struct Routes {
    /// Bodies are limited, so they are buffered before they are echoed.
    buffers_bodies: bool,
    /// Whether the routes are served that do not belong to channels.
    has_demo: bool,
    /// With `--dir`.
    files: Option<Files>,
    /// `/metrics` has an address of its own.
    has_admin: bool,
    /// The pages that may open WebSockets other than those of the hub and the server's state.
    pages: OriginPolicy,
    /// The server's own pages, and the hosts by which it may be asked: for figures, and for everything at the admin address.
    own_pages: OriginPolicy,
    live_stats: LiveStats,
    clients: Arc<Clients>,
    figures: Arc<Figures>,
    hub: Hub,
    sink_counters: Arc<SinkCounters>,
    server: OnceLock<ServerHandle>,
    /// In seconds since 1970.
    start_time: u64,
}

impl Routes {
    /// Makes the routes that the arguments choose.
    ///
    /// # Errors
    /// The directory of `--dir` cannot be read.
    pub(crate) fn new(args: &Serve, hub: Hub) -> Result<Self, String> {
        // Opens the files of `process`, which stay open.
        process::latest();
        let start_time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let files = args
            .dir
            .as_deref()
            .map(|dir| Files::open(dir).map_err(|error| format!("--dir {}: {error}", dir.display())));
        Ok(Self {
            buffers_bodies: args.http.max_body.is_some(),
            has_demo: args.has_demo(),
            files: files.transpose()?,
            has_admin: args.admin.is_some(),
            pages: match args.allow_origin.iter().any(|origin| origin == "*") {
                true => OriginPolicy::any(),
                false => OriginPolicy::listed(&args.allow_origin).with_same_origin(&args.allow_host),
            },
            own_pages: OriginPolicy::listed([""; 0]).with_same_origin(&args.allow_host),
            live_stats: args.live_stats.unwrap_or(match args.admin {
                None => LiveStats::Local,
                Some(_) => LiveStats::None,
            }),
            clients: Arc::default(),
            figures: Arc::new(Figures::new()),
            hub,
            sink_counters: Arc::default(),
            server: OnceLock::new(),
            start_time: start_time.map_or(0, |since| since.as_secs()),
        })
    }

    /// Sets the server whose figures `/metrics` includes.
    pub(crate) fn set_server(&self, server: ServerHandle) {
        let _ = self.server.set(server);
    }

    /// Answers a request, counts it and logs it.
    pub(crate) async fn handle(self: &Arc<Self>, mut request: Request) -> Response {
        let logged = enabled!(Level::DEBUG)
            .then(|| (request.peer(), request.method().to_owned(), request.path().to_owned()));
        let response = match (self.route(&mut request).await, &self.files) {
            (Some(response), _) => response,
            (None, Some(files)) => files.answer(request).await,
            (None, None) => Response::not_found(),
        };
        self.figures.count_response(response.status());
        if let Some((peer, method, path)) = logged {
            debug!(%peer, method, path, status = response.status(), "request");
        }
        response
    }

    /// Answers a request to the admin address.
    pub(crate) async fn handle_admin(self: &Arc<Self>, mut request: Request) -> Response {
        if let "/healthz" | "/livez" = request.path() {
            // The next probe is answered by a server that has room for it.
            return self.health(&request).close_connection();
        }
        if !self.allows_host(&request) {
            return other_host();
        }
        match request.path() {
            "/metrics" => self.metrics(&request),
            "/live" => {
                self.live(&request, self.is_own_page(&request), Access { has_metrics: true, is_admin: true })
            }
            _ => match assets::find(&request) {
                Some(file) => page(&request, file),
                None => match self.hub.answer_admin(&mut request, &self.own_pages).await {
                    Some(response) => response,
                    None => self.hub.answer_api(&mut request).await.unwrap_or_else(Response::not_found),
                },
            },
        }
    }

    /// Answers a request to the admin address while that has no room for others.
    pub(crate) fn handle_probe(&self, request: &Request) -> Response {
        let response = match request.path() {
            "/healthz" | "/livez" => self.health(request),
            "/metrics" => self.metrics(request),
            _ => Response::text(503, "the admin address has no room for another request\n")
                .with_header("Retry-After", "1")
                .into_response(),
        };
        response.close_connection()
    }

    /// `/livez` answers while the server does; `/healthz` also asks whether the engine stores everything.
    fn health(&self, request: &Request) -> Response {
        page(
            request,
            match self.hub.health().failure.filter(|_| request.path() == "/healthz") {
                None => Response::text(200, "ok\n"),
                Some(reason) => {
                    Response::text(503, format!("the engine cannot store everything: {reason}\n"))
                }
            },
        )
    }

    fn metrics(&self, request: &Request) -> Response {
        if !self.allows_host(request) {
            return other_host();
        }
        page(request, Response::new(200).with_body(metrics::CONTENT_TYPE, metrics::page(self)))
    }

    /// Whether `Host` is a name that no page can have rebound to this server.
    fn allows_host(&self, request: &Request) -> bool {
        self.own_pages.allows_host(text_of(request, "host").unwrap_or_default())
    }

    /// Whether a request is not of a page of another site.
    fn is_own_page(&self, request: &Request) -> bool {
        self.own_pages.allows_page(text_of(request, "origin"), text_of(request, "host").unwrap_or_default())
    }

    /// `None` where there is no route.
    async fn route(self: &Arc<Self>, request: &mut Request) -> Option<Response> {
        Some(match request.path() {
            "/healthz" | "/livez" => self.health(request),
            _ if !self.has_demo => return self.hub.answer_client(request).await,
            "/metrics" if !self.has_admin => self.metrics(request),
            "/echo" if has_content(request) => self.echo_body(request).await,
            "/sink" if has_content(request) => self.sink_body(request).await,
            "/echo" | "/sink" if !request.is_websocket() && !matches!(request.method(), "GET" | "HEAD") => {
                // RFC 9110 §15.5.6.
                Response::text(405, "content comes by POST or PUT\n")
                    .with_header("Allow", "GET, POST, PUT")
                    .into_response()
            }
            "/echo" => self.open(request, Service::Echo),
            "/sink" => self.open(request, Service::Sink(self.sink_counters.clone())),
            "/live" => {
                let is_allowed = live::is_allowed(self.live_stats, request);
                self.live(request, is_allowed, Access { has_metrics: !self.has_admin, is_admin: false })
            }
            "/source" => match Source::from_query(request) {
                Some(source) if request.is_websocket() => self.open(request, Service::Source(source)),
                Some(source) if source.has_content() => page(request, source.response()),
                Some(_) => Response::text(400, "size is at least 1 for a body\n"),
                None => {
                    Response::text(400, "size, rate and count are whole numbers; size is at most 16777216\n")
                }
            },
            // The files of --dir are at the paths of the page.
            _ => match assets::find(request).filter(|_| self.files.is_none()) {
                Some(file) => page(request, file),
                None => return self.hub.answer_client(request).await,
            },
        })
    }

    /// Sends the body back: as it arrives, or as a whole if its length is limited.
    async fn echo_body(&self, request: &mut Request) -> Response {
        let kind = request.header("content-type").and_then(|kind| std::str::from_utf8(kind).ok());
        let kind = kind.unwrap_or("application/octet-stream").to_owned();
        if self.buffers_bodies {
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
        self.sink_counters.add(bytes);
        Response::text(200, format!("{bytes} bytes\n"))
    }

    /// Answers `/live`: the state of the server over a WebSocket; for a plain GET, whether this client may see it.
    fn live(self: &Arc<Self>, request: &Request, is_allowed: bool, access: Access) -> Response {
        if !request.is_websocket() {
            return page(request, live::answer(is_allowed, access));
        }
        match request.websocket() {
            Ok(_) if !is_allowed => Response::text(403, "see --live-stats of wireloom serve\n"),
            Ok(upgrade) => {
                let routes = self.clone();
                upgrade.on_open(move |mut socket| async move {
                    // An error concerns only this client.
                    let _ended = live::run(&routes, &mut socket).await;
                })
            }
            Err(refusal) => refusal,
        }
    }

    /// Accepts a WebSocket, unless its page may not open one.
    fn open(&self, request: &Request, service: Service) -> Response {
        match request.websocket() {
            Ok(upgrade) if !self.pages.allows(upgrade.request()) => {
                Response::text(403, "the origin is not allowed; see --allow-origin\n")
            }
            Ok(upgrade) => {
                let (peer, version, begin) = (request.peer(), request.version(), Instant::now());
                let (figures, clients) = (self.figures.clone(), self.clients.clone());
                upgrade.on_open(move |mut socket| async move {
                    let opened = Instant::now();
                    figures.handshakes.record(opened - begin);
                    let _listed = clients.add(socket.halves().0.clone(), peer, service.route(), version);
                    let client = Client { socket: &mut socket, version, figures: &figures };
                    if let Err(error) = service.run(client).await {
                        figures.evict_for(&error, peer);
                    }
                    let code = socket.end().map_or(CloseCode::ABNORMAL, |end| end.code());
                    debug!(%peer, code = u16::from(code), seconds = opened.elapsed().as_secs_f64(), "websocket closed");
                })
            }
            Err(refusal) => refusal,
        }
    }
}

fn other_host() -> Response {
    Response::text(403, "this host name is not allowed; see --allow-host\n")
}

fn text_of<'a>(request: &'a Request, name: &str) -> Option<&'a str> {
    request.header(name).map(|value| std::str::from_utf8(value).unwrap_or("?"))
}

fn has_content(request: &Request) -> bool {
    !request.is_websocket() && matches!(request.method(), "POST" | "PUT")
}

/// Answers GET and HEAD with `response`, and other methods with 405.
fn page(request: &Request, response: Response) -> Response {
    match request.method() {
        "GET" | "HEAD" => response,
        // RFC 9110 §15.5.6.
        _ => Response::text(405, "this can only be read\n").with_header("Allow", "GET, HEAD").into_response(),
    }
}
