//! The paths of a hub, as a handler of a [`wireloom::Server`].

use std::net::SocketAddr;

use bytes::Bytes;
use prost::Message as _;
use tracing::warn;
use wireloom::{Body, IoUring, Request, Response, Upgrade, WebSocket, WebSocketConfig};

use crate::budget::{self, charge};
use crate::client::{Page, Transport};
use crate::config::namespace_of;
use crate::hub::Hub;
use crate::protocol::{self, Commands, EmulationRequest, Encoding};
use crate::proxy::Headers;
use crate::session::{Room, elements_len_max};
use crate::sessions::Delivered;
use crate::transport;
use crate::trusted_proxies::client_address;

/// The path for commands of clients whose connection cannot carry them.
const EMULATION_PATH: &str = "/emulation";
/// The prefix of paths where plain WebSocket clients join a channel of the namespace `rooms`.
const ROOMS_PATH: &str = "/rooms/";

impl Hub {
    /// Answers a request for one of the hub's paths, the server API included, and 404 to any other. See [`answer_own`](Self::answer_own).
    pub async fn answer(&self, mut request: Request) -> Response {
        self.answer_own(&mut request).await.unwrap_or_else(Response::not_found)
    }

    /// Answers a request for one of the hub's paths; `None` for any other. [`answer_client`](Self::answer_client) and
    /// [`answer_api`](Self::answer_api) are its parts, for servers with an address of their own for the server API.
    ///
    /// | path | |
    /// |---|---|
    /// | `/connection/websocket` | the client protocol over WebSocket, JSON, or Protobuf by the subprotocol `centrifuge-protobuf` |
    /// | `/connection/http_stream` | the client protocol for clients without WebSocket: commands in a POST body, replies and pushes as lines of JSON, or Protobuf if the body is `application/octet-stream` |
    /// | `/connection/sse` | the same as server-sent events, JSON; commands in a POST body, or `connect` and `subscribe` in the parameter `cf_connect` |
    /// | `/emulation` | further commands of the clients of the last two, on any node |
    /// | `/connection/uni_websocket` | pushes alone over WebSocket, JSON; the first message of the client is its connect request |
    /// | `/connection/uni_sse` | pushes as server-sent events; the connect request is JSON, the parameter `cf_connect` or a POST body |
    /// | `/connection/uni_http_stream` | the same as lines of JSON |
    /// | `/api/METHOD` | the server API, when the configuration has a key for it |
    /// | `/rooms/NAME` | the channel `rooms:NAME`, bare messages over WebSocket; a token in `Authorization: Bearer` or the parameter `token` |
    pub async fn answer_own(&self, request: &mut Request) -> Option<Response> {
        match self.answer_api(request).await {
            None => self.answer_client(request).await,
            answered => answered,
        }
    }

    /// Whether the configuration has a key for the server API.
    #[must_use]
    pub fn has_api(&self) -> bool {
        self.0.settings().config.api.key.is_some()
    }

    /// Answers a request for a path of clients; `None` for any other.
    pub async fn answer_client(&self, request: &mut Request) -> Option<Response> {
        let path = request.path();
        if !self.is_on(path) {
            return Some(Response::not_found());
        }
        match path {
            "/connection/websocket" | "/connection/uni_websocket" => {
                let is_one_way = path == "/connection/uni_websocket";
                return Some(match request.websocket() {
                    Ok(upgrade) => self.open(upgrade, Some(request.peer()), is_one_way),
                    Err(refusal) => refusal,
                });
            }
            "/connection/http_stream" => {
                let encoding = encoding_of(request);
                return Some(self.answer_page(request, Some(Transport::HttpStream(encoding))).await);
            }
            "/connection/sse" => return Some(self.answer_page(request, Some(Transport::Sse)).await),
            "/connection/uni_sse" => return Some(self.answer_page(request, Some(Transport::UniSse)).await),
            "/connection/uni_http_stream" => {
                return Some(self.answer_page(request, Some(Transport::UniHttpStream)).await);
            }
            EMULATION_PATH => return Some(self.answer_page(request, None).await),
            _ => {}
        }
        let name = path.strip_prefix(ROOMS_PATH).filter(|name| !name.is_empty())?;
        // RFC 3986 §2.1: names may have characters that a path cannot, such as the `#` of a channel for named users.
        let Ok(name) = percent_encoding::percent_decode_str(name).decode_utf8() else {
            return Some(Response::not_found());
        };
        let channel = format!("rooms:{name}");
        Some(match request.websocket() {
            Ok(upgrade) => {
                let token = bearer_token(request);
                self.open_room(upgrade, Some(request.peer()), channel, token)
            }
            Err(refusal) => refusal,
        })
    }

    /// Whether a path is none of a transport that the configuration turns off.
    fn is_on(&self, path: &str) -> bool {
        let on = &self.0.settings().config.transports;
        match path {
            "/connection/sse" => on.sse,
            "/connection/http_stream" => on.http_stream,
            "/connection/uni_websocket" => on.uni_websocket,
            "/connection/uni_sse" => on.uni_sse,
            "/connection/uni_http_stream" => on.uni_http_stream,
            _ => true,
        }
    }

    /// Accepts a client of the client protocol whose handshake was received elsewhere, such as by axum's server with
    /// `wireloom::axum::WebSocketUpgrade`. Returns the response to the handshake: a refusal when the client's page may not connect.
    pub fn accept(&self, upgrade: Upgrade, peer: Option<SocketAddr>) -> Response {
        self.open(upgrade, peer, false)
    }

    fn open(&self, upgrade: Upgrade, peer: Option<SocketAddr>, is_one_way: bool) -> Response {
        if let Err(refusal) = self.check_page(&upgrade) {
            return refusal;
        }
        let page = upgrade.request().origin().map(Page::with_origin);
        let peer = peer.map(|peer| self.client_address(peer, upgrade.request().headers()));
        let headers = self.forwarded(upgrade.request().headers());
        let subprotocols = [Encoding::PROTOBUF_SUBPROTOCOL, Encoding::JSON_SUBPROTOCOL];
        // Clients that only receive have JSON alone.
        let subprotocols = if is_one_way { &subprotocols[1..] } else { &subprotocols[..] };
        let config = self.websocket_config(upgrade.io_uring());
        let upgrade = upgrade.subprotocols(subprotocols).config(config);
        let node = self.0.clone();
        upgrade.on_open(move |socket: WebSocket| {
            let encoding = match socket.subprotocol() {
                Some(Encoding::PROTOBUF_SUBPROTOCOL) => Encoding::Protobuf,
                _ => Encoding::Json,
            };
            let transport = if is_one_way { Transport::UniWebSocket } else { Transport::WebSocket(encoding) };
            transport::protocol(node, socket, transport, peer, page, headers)
        })
    }

    /// Accepts a plain WebSocket client, whose messages are the publications of `channel`. It has the rights of an anonymous client, or
    /// those that the callback of [`on_connect`](crate::HubBuilder::on_connect) gives it. Returns the response to the handshake: a refusal
    /// when the client's page may not connect or the channel cannot exist.
    pub fn accept_bare(&self, upgrade: Upgrade, channel: &str) -> Response {
        self.open_room(upgrade, None, channel.to_owned(), String::new())
    }

    fn open_room(
        &self,
        upgrade: Upgrade,
        peer: Option<SocketAddr>,
        channel: String,
        token: String,
    ) -> Response {
        if let Err(refusal) = self.check_page(&upgrade) {
            return refusal;
        }
        if self.0.check_channel(&channel).is_err() {
            return Response::not_found();
        }
        if self.0.options(&channel).is_none() {
            let namespace = namespace_of(&channel);
            return Response::text(
                404,
                format!("the configuration of the hub has no namespace \"{namespace}\"\n"),
            );
        }
        let node = self.0.clone();
        let page = upgrade.request().origin().map(Page::with_origin);
        let peer = peer.map(|peer| self.client_address(peer, upgrade.request().headers()));
        let headers = self.forwarded(upgrade.request().headers());
        let room = Box::new(Room { channel, token });
        upgrade.on_open(move |socket| transport::bare(node, socket, peer, page, headers, room))
    }

    fn client_address<'a>(
        &self,
        peer: SocketAddr,
        fields: impl Iterator<Item = (&'a str, &'a [u8])>,
    ) -> SocketAddr {
        client_address(&self.0.settings().config.client.trusted_proxies, peer, fields)
    }

    /// The header fields that endpoints of the backend receive.
    fn forwarded<'a>(&self, fields: impl Iterator<Item = (&'a str, &'a [u8])>) -> Headers {
        let settings = self.0.settings();
        let wanted = &settings.proxies.forwarded;
        if wanted.is_empty() {
            return Headers::NONE;
        }
        let fields = fields.map(|(name, value)| (name.to_ascii_lowercase(), value));
        let fields = fields.filter(|(name, _)| wanted.contains(name));
        let of_request =
            fields.map(|(name, value)| (name, String::from_utf8_lossy(value).into_owned())).collect();
        Headers { of_request, ..Headers::NONE }
    }

    /// Checks the page that opens a WebSocket.
    fn check_page(&self, upgrade: &Upgrade) -> Result<(), Response> {
        let handshake = upgrade.request();
        if self.0.settings().pages.allows_page(handshake.origin(), handshake.host()) {
            return Ok(());
        }
        Err(self.refuse_page(handshake.origin(), handshake.host()))
    }

    /// A command is not as long as a message of a room may be.
    fn websocket_config(&self, io_uring: IoUring) -> WebSocketConfig {
        let mut config = WebSocketConfig { io_uring, ..WebSocketConfig::default() };
        let len_max = self.0.settings().config.client.message_len_max as u64;
        config.core.limits.message_len_max = len_max;
        config.core.limits.frame_len_max = len_max;
        config
    }

    /// Answers a request that a page makes without WebSocket: for a stream, or with commands for one if there is no `transport`.
    async fn answer_page(&self, request: &mut Request, transport: Option<Transport>) -> Response {
        let origin = match self.origin(request) {
            Ok(origin) => origin,
            Err(refusal) => return refusal,
        };
        let response = match (request.method(), transport) {
            // Fetch §4.8: a page of another origin asks before it sends a body of these types.
            ("OPTIONS", _) => Ok(preflight()),
            (_, Some(transport)) => {
                let page = match &origin {
                    Some(origin) => Some(Page::with_origin(origin)),
                    None => own_page(request),
                };
                self.open_stream(request, transport, page).await
            }
            (_, None) => self.emulate(request).await,
        };
        let response = response.unwrap_or_else(|refusal| refusal);
        // Fetch §3.3.2: the page may read the response. Its credentials are those that a WebSocket has, too.
        let Some(origin) = origin else { return response };
        let allowed = response.with_header("Access-Control-Allow-Origin", &origin);
        let allowed = allowed.and_then(|one| one.with_header("Access-Control-Allow-Credentials", "true"));
        allowed.and_then(|one| one.with_header("Vary", "Origin")).unwrap_or_else(Response::from)
    }

    async fn open_stream(
        &self,
        request: &mut Request,
        transport: Transport,
        page: Option<Page>,
    ) -> Result<Response, Response> {
        let sent = match (request.method(), transport) {
            ("POST", _) => self.body(request, 1).await?,
            ("GET", Transport::Sse | Transport::UniSse | Transport::UniHttpStream) => {
                match request.query_param("cf_connect").map(percent_decode) {
                    Some(Some(connect)) => connect.into(),
                    Some(None) => {
                        return Err(Response::text(400, "cf_connect is not percent-encoded UTF-8\n"));
                    }
                    None => Bytes::from_static(b"{}"),
                }
            }
            (_, Transport::HttpStream(_)) => return Err(refuse_method("POST")),
            _ => return Err(refuse_method("GET, POST")),
        };
        let elements_len_max = elements_len_max(&self.0.settings().config);
        let first = if transport.is_emulated() {
            // A link or an image on a page of another site makes such a request too, with the user's cookies.
            let is_url = request.method() == "GET";
            let commands = Commands::new(Encoding::Json, sent.clone()).elements_len_max(elements_len_max);
            if is_url && !commands.flatten().all(|one| one.only_opens()) {
                return Err(Response::text(
                    400,
                    "cf_connect has other commands than connect and subscribe; POST them\n",
                ));
            }
            transport::First::Commands(sent)
        } else {
            let connect = protocol::bounded(elements_len_max, || protocol::decode_object(&sent));
            let connect = connect.map_err(|_| {
                Response::text(400, "the connect request is not a JSON object, or names too many channels\n")
            })?;
            transport::First::Connect(Box::new(connect))
        };
        let peer = self.client_address(request.peer(), request.headers());
        let headers = self.forwarded(request.headers());
        let response = transport::stream(self.0.clone(), transport, peer, page, first, headers);
        // Proxies such as nginx would keep messages back until a buffer is full.
        let response = response.with_header("Cache-Control", "no-cache");
        response.and_then(|response| response.with_header("X-Accel-Buffering", "no")).map_err(Response::from)
    }

    /// Passes commands to the session that they are for.
    async fn emulate(&self, request: &mut Request) -> Result<Response, Response> {
        if request.method() != "POST" {
            return Err(refuse_method("POST"));
        }
        let encoding = encoding_of(request);
        let request = {
            // In a JSON string most quotes and backslashes are escaped.
            let body = self.body(request, 2).await?;
            // The session pays for the commands.
            charge(budget::COMMAND + body.len() / budget::BYTES_PER_UNIT).await;
            match encoding {
                Encoding::Json => protocol::decode_object::<JsonEmulationRequest>(&body).map(From::from).ok(),
                // Decoded from a slice, so that its fields are copies: the body is dropped before the commands wait.
                Encoding::Protobuf => EmulationRequest::decode(&*body).ok(),
            }
        };
        let malformed = || Response::text(400, "the body is not an emulation request\n");
        let EmulationRequest { node, session, data: commands } = request.ok_or_else(malformed)?;
        if commands.len() > self.0.settings().config.client.message_len_max {
            return Err(Response::text(413, "the commands are too long; see message_len_max\n"));
        }
        match self.0.emulate(&node, &session, commands).await {
            Ok(Delivered::Queued) => Ok(Response::new(204)),
            Ok(Delivered::Full) => Err(Response::text(429, "too many commands of this session wait\n")),
            Ok(Delivered::Unknown) => Err(Response::text(404, "there is no such session\n")),
            Err(error) => {
                if self.0.warnings.may_warn(self.0.clock.now()) {
                    warn!(node, %error, "commands were not passed to the node of their session");
                }
                Err(Response::text(503, "the node of the session cannot be reached\n"))
            }
        }
    }

    /// The body of a request with one message, which may be `times` as long as the message itself.
    async fn body(&self, request: &mut Request, times: usize) -> Result<Bytes, Response> {
        /// Room for the names and the ids in an emulation request.
        const ENVELOPE_LEN: usize = 512;
        let len_max = self.0.settings().config.client.message_len_max.saturating_mul(times);
        let body = std::mem::replace(request.body_mut(), Body::empty());
        let mut body = body.with_len_max(len_max.saturating_add(ENVELOPE_LEN));
        body.bytes().await.map_err(Response::from)
    }

    /// The origin of the client's page, if there is one; a refusal when it may not connect, or when `Host` is a name that a page could
    /// have rebound.
    fn origin(&self, request: &Request) -> Result<Option<String>, Response> {
        let text = |name| request.header(name).map(|value| std::str::from_utf8(value).unwrap_or("?"));
        let (origin, host) = (text("origin"), text("host").unwrap_or_default());
        // Fetch Metadata §2.3: browsers send no `Origin` with links and images, but say which site they are on.
        let is_own =
            origin.is_some() || matches!(text("sec-fetch-site"), None | Some("same-origin" | "none"));
        let settings = self.0.settings();
        if is_own && settings.pages.allows_page(origin, host) && settings.pages.allows_host(host) {
            return Ok(origin.map(str::to_owned));
        }
        Err(self.refuse_page(origin, host))
    }

    fn refuse_page(&self, origin: Option<&str>, host: &str) -> Response {
        if self.0.warnings.may_warn(self.0.clock.now()) {
            warn!(origin, host, "a page may not connect; see [client] allowed_origins");
        }
        Response::text(403, "this page may not connect; see allowed_origins\n")
    }
}

/// An [`EmulationRequest`] in JSON, whose commands are a string.
#[derive(serde::Deserialize)]
struct JsonEmulationRequest {
    #[serde(default)]
    node: String,
    #[serde(default)]
    session: String,
    data: String,
}

impl From<JsonEmulationRequest> for EmulationRequest {
    fn from(JsonEmulationRequest { node, session, data }: JsonEmulationRequest) -> Self {
        Self { node, session, data: data.into() }
    }
}

/// The page that has made a request without `Origin`, if a browser says that there is one. Fetch §3.1: it sends no `Origin` with a GET to the
/// page's own origin.
fn own_page(request: &Request) -> Option<Page> {
    let host = request.header("host").and_then(|host| std::str::from_utf8(host).ok());
    let is_own = request.header("sec-fetch-site").is_some_and(|site| site == b"same-origin");
    is_own.then(|| Page::of_host(host.unwrap_or_default()))
}

/// The encoding of a request's body, and of the response.
fn encoding_of(request: &Request) -> Encoding {
    match request.header("content-type") {
        Some(b"application/octet-stream") => Encoding::Protobuf,
        _ => Encoding::Json,
    }
}

/// The answer to a page of another origin that asks whether it may send its request.
fn preflight() -> Response {
    let response = Response::new(204).with_header("Access-Control-Allow-Methods", "GET, POST");
    let response = response.and_then(|one| one.with_header("Access-Control-Allow-Headers", "content-type"));
    let response = response.and_then(|one| one.with_header("Access-Control-Max-Age", "600"));
    response.unwrap_or_else(Response::from)
}

/// RFC 9110 §15.5.6: the response names the methods that there are.
fn refuse_method(allowed: &str) -> Response {
    let response = Response::text(405, format!("the methods are {allowed}\n"));
    response.with_header("Allow", allowed).unwrap_or_else(Response::from)
}

/// The token of a connection that cannot send commands: in `Authorization: Bearer` (RFC 6750 §2.1), or in the parameter `token`, for
/// browsers, which cannot set header fields of a WebSocket. Empty without one.
fn bearer_token(request: &Request) -> String {
    let field = request.header("authorization").and_then(|field| std::str::from_utf8(field).ok());
    let bearer = field.and_then(|field| field.split_once(' '));
    let bearer = bearer.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    match bearer {
        Some((_, token)) => token.trim().to_owned(),
        None => request.query_param("token").and_then(percent_decode).unwrap_or_default(),
    }
}

/// A parameter of a URL's query (RFC 3986 §2.1, with `+` for a space as forms have it).
fn percent_decode(text: &str) -> Option<String> {
    let spaced = text.replace('+', " ");
    percent_encoding::percent_decode_str(&spaced).decode_utf8().ok().map(String::from)
}
