//! The paths of a hub, as a handler of a [`wireloom::Server`].

use std::net::SocketAddr;

use wireloom::{Request, Response, Upgrade, WebSocket, WebSocketConfig};

use crate::hub::Hub;
use crate::node::Origin;
use crate::protocol::Encoding;
use crate::transport;

/// The path for clients of the client protocol.
const WEBSOCKET_PATH: &str = "/connection/websocket";
/// The path for clients that only receive (server-sent events).
const EVENT_STREAM_PATH: &str = "/connection/uni_sse";
/// The prefix of paths where plain WebSocket clients join a channel of the namespace `rooms`.
const ROOMS_PATH: &str = "/rooms/";

impl Hub {
    /// Answers a request for one of the hub's paths, and 404 to any other. See [`answer_own`](Self::answer_own).
    pub async fn answer(&self, mut request: Request) -> Response {
        self.answer_own(&mut request).await.unwrap_or_else(Response::not_found)
    }

    /// Answers a request for one of the hub's paths; `None` for any other.
    ///
    /// | path | |
    /// |---|---|
    /// | `/connection/websocket` | the client protocol over WebSocket, JSON, or Protobuf by the subprotocol `centrifuge-protobuf` |
    /// | `/connection/uni_sse` | pushes as server-sent events; the connect request is JSON, the parameter `cf_connect` or a POST body |
    /// | `/api/METHOD` | the server API, when the configuration has a key for it |
    /// | `/rooms/NAME` | the channel `rooms:NAME`, bare messages over WebSocket; a token in `Authorization: Bearer` or the parameter `token` |
    pub async fn answer_own(&self, request: &mut Request) -> Option<Response> {
        let path = request.path();
        if path == WEBSOCKET_PATH {
            return Some(match request.websocket() {
                Ok(upgrade) => self.accept(upgrade, Some(request.peer())),
                Err(refusal) => refusal,
            });
        }
        if path == EVENT_STREAM_PATH {
            return Some(self.open_event_stream(request).await);
        }
        if path == "/api" || path.starts_with("/api/") {
            return Some(self.answer_api(request).await);
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
        if !self.allows_page(&upgrade) {
            return other_origin();
        }
        let origin = upgrade.request().origin().map(str::to_owned);
        let subprotocols = [Encoding::PROTOBUF_SUBPROTOCOL, Encoding::JSON_SUBPROTOCOL];
        let upgrade = upgrade.subprotocols(&subprotocols).config(self.websocket_config());
        let node = self.0.clone();
        upgrade.on_open(move |socket: WebSocket| {
            let encoding = match socket.subprotocol() {
                Some(Encoding::PROTOBUF_SUBPROTOCOL) => Encoding::Protobuf,
                _ => Encoding::Json,
            };
            transport::protocol(node, socket, Origin { peer, origin, encoding })
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
        if !self.allows_page(&upgrade) {
            return other_origin();
        }
        if self.0.check_channel(&channel).is_err() || self.0.options(&channel).is_none() {
            return Response::not_found();
        }
        let node = self.0.clone();
        let origin = upgrade.request().origin().map(str::to_owned);
        let origin = Origin { peer, origin, encoding: Encoding::Json };
        upgrade.on_open(move |socket| transport::bare(node, socket, origin, channel, token))
    }

    /// Whether the page that opens a WebSocket may connect.
    fn allows_page(&self, upgrade: &Upgrade) -> bool {
        let handshake = upgrade.request();
        handshake.origin().is_none_or(|origin| self.allows(origin, handshake.host()))
    }

    /// A command is not as long as a message of a room may be.
    fn websocket_config(&self) -> WebSocketConfig {
        let mut config = WebSocketConfig::default();
        let len_max = self.0.settings().config.client.message_len_max as u64;
        config.core.limits.message_len_max = len_max;
        config.core.limits.frame_len_max = len_max;
        config
    }

    async fn open_event_stream(&self, request: &mut Request) -> Response {
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
        let origin = Origin { peer: Some(request.peer()), origin, encoding: Encoding::Json };
        let response = transport::event_stream(self.0.clone(), connect, origin);
        match allowed {
            Some(origin) => {
                response.with_header("Access-Control-Allow-Origin", &origin).unwrap_or_else(Response::from)
            }
            None => response,
        }
    }

    /// The origin of the client's page, if there is one; a refusal when it may not connect.
    fn origin(&self, request: &Request) -> Result<Option<String>, Response> {
        let Some(origin) = request.header("origin") else { return Ok(None) };
        let origin = std::str::from_utf8(origin).map_err(|_| other_origin())?;
        let host = request.header("host").and_then(|host| std::str::from_utf8(host).ok()).unwrap_or_default();
        if self.allows(origin, host) { Ok(Some(origin.to_owned())) } else { Err(other_origin()) }
    }

    fn allows(&self, origin: &str, host: &str) -> bool {
        let own = origin.split_once("://").is_some_and(|(_, from)| from.eq_ignore_ascii_case(host));
        let settings = self.0.settings();
        let allowed = &settings.config.client.allowed_origins;
        own || allowed.iter().any(|one| one == "*" || one.eq_ignore_ascii_case(origin))
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

fn other_origin() -> Response {
    Response::text(403, "this origin may not connect\n")
}

/// A parameter of a URL's query (RFC 3986 §2.1, with `+` for a space as forms have it).
fn percent_decode(text: &str) -> Option<String> {
    let spaced = text.replace('+', " ");
    percent_encoding::percent_decode_str(&spaced).decode_utf8().ok().map(String::from)
}
