//! The paths of a hub, as a handler of a [`wireloom::Server`].

use std::net::SocketAddr;

use tracing::warn;
use wireloom::{Request, Response, Upgrade, WebSocket, WebSocketConfig};

use crate::client::Format;
use crate::hub::Hub;
use crate::node::Origin;
use crate::protocol::Encoding;
use crate::proxy::Headers;
use crate::session::Room;
use crate::transport;

/// The path for clients of the client protocol.
const WEBSOCKET_PATH: &str = "/connection/websocket";
/// The path for clients that only receive (server-sent events).
const EVENT_STREAM_PATH: &str = "/connection/uni_sse";
/// The path for clients that only receive (lines of JSON).
const HTTP_STREAM_PATH: &str = "/connection/uni_http_stream";
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
        if path == WEBSOCKET_PATH {
            return Some(match request.websocket() {
                Ok(upgrade) => self.accept(upgrade, Some(request.peer())),
                Err(refusal) => refusal,
            });
        }
        if path == EVENT_STREAM_PATH {
            return Some(self.open_event_stream(request, Format::EventStream).await);
        }
        if path == HTTP_STREAM_PATH {
            return Some(self.open_event_stream(request, Format::HttpStream).await);
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

    /// Accepts a client of the client protocol whose handshake was received elsewhere, such as by axum's server with
    /// `wireloom::axum::WebSocketUpgrade`. Returns the response to the handshake: a refusal when the client's page may not connect.
    pub fn accept(&self, upgrade: Upgrade, peer: Option<SocketAddr>) -> Response {
        if let Err(refusal) = self.check_page(&upgrade) {
            return refusal;
        }
        let origin = upgrade.request().origin().map(str::to_owned);
        let headers = self.forwarded(upgrade.request().headers());
        let subprotocols = [Encoding::PROTOBUF_SUBPROTOCOL, Encoding::JSON_SUBPROTOCOL];
        let upgrade = upgrade.subprotocols(&subprotocols).config(self.websocket_config());
        let node = self.0.clone();
        upgrade.on_open(move |socket: WebSocket| {
            let encoding = match socket.subprotocol() {
                Some(Encoding::PROTOBUF_SUBPROTOCOL) => Encoding::Protobuf,
                _ => Encoding::Json,
            };
            transport::protocol(node, socket, Box::new(Origin { peer, origin, encoding, headers }))
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
        if self.0.check_channel(&channel).is_err() || self.0.options(&channel).is_none() {
            return Response::not_found();
        }
        let node = self.0.clone();
        let origin = upgrade.request().origin().map(str::to_owned);
        let headers = self.forwarded(upgrade.request().headers());
        let origin = Box::new(Origin { peer, origin, encoding: Encoding::Json, headers });
        let room = Box::new(Room { channel, token });
        upgrade.on_open(move |socket| transport::bare(node, socket, origin, room))
    }

    /// The header fields that endpoints of the backend receive.
    fn forwarded<'a>(&self, fields: impl Iterator<Item = (&'a str, &'a [u8])>) -> Headers {
        let settings = self.0.settings();
        let wanted = &settings.proxies.forwarded;
        if wanted.is_empty() {
            return Headers::new();
        }
        let fields = fields.map(|(name, value)| (name.to_ascii_lowercase(), value));
        let fields = fields.filter(|(name, _)| wanted.contains(name));
        fields.map(|(name, value)| (name, String::from_utf8_lossy(value).into_owned())).collect()
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
    fn websocket_config(&self) -> WebSocketConfig {
        let mut config = WebSocketConfig::default();
        let len_max = self.0.settings().config.client.message_len_max as u64;
        config.core.limits.message_len_max = len_max;
        config.core.limits.frame_len_max = len_max;
        config
    }

    async fn open_event_stream(&self, request: &mut Request, format: Format) -> Response {
        let connect = match request.method() {
            "GET" => match request.query_param("cf_connect").map(percent_decode) {
                Some(Some(connect)) => connect,
                Some(None) => return Response::text(400, "cf_connect is not percent-encoded UTF-8\n"),
                None => "{}".to_owned(),
            },
            "POST" => match request.bytes().await {
                Ok(body) => String::from_utf8_lossy(&body).into_owned(),
                Err(error) => return error.into(),
            },
            _ => return Response::text(405, "events are asked for by GET or POST\n"),
        };
        let Ok(connect) = serde_json::from_str(&connect) else {
            return Response::text(400, "the connect request is not a JSON object\n");
        };
        let origin = match self.origin(request) {
            Ok(origin) => origin,
            Err(refusal) => return refusal,
        };
        let allowed = origin.clone();
        let headers = self.forwarded(request.headers());
        let origin = Origin { peer: Some(request.peer()), origin, encoding: Encoding::Json, headers };
        let response = transport::event_stream(self.0.clone(), format, connect, Box::new(origin));
        match allowed {
            Some(origin) => {
                response.with_header("Access-Control-Allow-Origin", &origin).unwrap_or_else(Response::from)
            }
            None => response,
        }
    }

    /// The origin of the client's page, if there is one; a refusal when it may not connect, or when `Host` is a name that a page could
    /// have rebound.
    fn origin(&self, request: &Request) -> Result<Option<String>, Response> {
        let text = |name| request.header(name).map(|value| std::str::from_utf8(value).unwrap_or("?"));
        let (origin, host) = (text("origin"), text("host").unwrap_or_default());
        let settings = self.0.settings();
        if settings.pages.allows_page(origin, host) && settings.pages.allows_host(host) {
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
