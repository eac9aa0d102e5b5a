//! The paths of a hub, as a handler of a [`wireloom::Server`].

use wireloom::{Request, Response, Upgrade, WebSocket, WebSocketConfig};

use crate::hub::{Hub, Origin};
use crate::protocol::Encoding;
use crate::transport;

/// Where clients of the client protocol connect.
const WEBSOCKET_PATH: &str = "/connection/websocket";
/// Where clients that only receive connect.
const EVENT_STREAM_PATH: &str = "/connection/uni_sse";
/// Where plain WebSocket clients join a channel of the namespace `rooms`.
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
    /// | `/rooms/NAME` | the channel `rooms:NAME`, bare messages over WebSocket |
    pub async fn answer_own(&self, request: &mut Request) -> Option<Response> {
        let path = request.path();
        if path == WEBSOCKET_PATH {
            return Some(self.open_protocol(request));
        }
        if path == EVENT_STREAM_PATH {
            return Some(self.open_event_stream(request).await);
        }
        if path == "/api" || path.starts_with("/api/") {
            return Some(self.answer_api(request).await);
        }
        let name = path.strip_prefix(ROOMS_PATH).filter(|name| !name.is_empty())?;
        let channel = format!("rooms:{name}");
        Some(self.open_room(request, channel))
    }

    fn open_protocol(&self, request: &Request) -> Response {
        let upgrade = match self.upgrade(request) {
            Ok(upgrade) => upgrade
                .subprotocols(&[Encoding::PROTOBUF_SUBPROTOCOL, Encoding::JSON_SUBPROTOCOL])
                .config(self.websocket_config()),
            Err(refusal) => return refusal,
        };
        let origin = upgrade.request().origin().map(str::to_owned);
        let peer = Some(request.peer());
        let node = self.0.clone();
        upgrade.on_open(move |socket: WebSocket| {
            let encoding = match socket.subprotocol() {
                Some(Encoding::PROTOBUF_SUBPROTOCOL) => Encoding::Protobuf,
                _ => Encoding::Json,
            };
            transport::protocol(node, socket, Origin { peer, origin, encoding })
        })
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
        let refused = || Response::text(403, "this origin may not connect\n");
        let Some(origin) = request.header("origin") else { return Ok(None) };
        let origin = std::str::from_utf8(origin).map_err(|_| refused())?;
        let host = request.header("host").and_then(|host| std::str::from_utf8(host).ok()).unwrap_or_default();
        if self.allows(origin, host) { Ok(Some(origin.to_owned())) } else { Err(refused()) }
    }

    fn allows(&self, origin: &str, host: &str) -> bool {
        let own = origin.split_once("://").is_some_and(|(_, from)| from.eq_ignore_ascii_case(host));
        let settings = self.0.settings();
        let allowed = &settings.config.client.allowed_origins;
        own || allowed.iter().any(|one| one == "*" || one.eq_ignore_ascii_case(origin))
    }

    fn open_room(&self, request: &Request, channel: String) -> Response {
        let settings = self.0.settings();
        let max = settings.config.client.channel_name_len_max;
        if channel.len() > max || settings.config.channel_options(&channel).is_none() {
            return Response::not_found();
        }
        let node = self.0.clone();
        match self.upgrade(request) {
            Ok(upgrade) => upgrade.on_open(move |socket| transport::bare(node, socket, channel)),
            Err(refusal) => refusal,
        }
    }

    /// The handshake of a client whose origin may connect.
    fn upgrade(&self, request: &Request) -> Result<Upgrade, Response> {
        let upgrade = request.websocket()?;
        let handshake = upgrade.request();
        match handshake.origin() {
            Some(origin) if !self.allows(origin, handshake.host()) => {
                Err(Response::text(403, "this origin may not connect\n"))
            }
            _ => Ok(upgrade),
        }
    }
}

/// A parameter of a URL's query (RFC 3986 §2.1, with `+` for a space as forms have it).
fn percent_decode(text: &str) -> Option<String> {
    let spaced = text.replace('+', " ");
    percent_encoding::percent_decode_str(&spaced).decode_utf8().ok().map(String::from)
}
