//! The paths of a hub, as a handler of a [`wireloom::Server`].

use wireloom::{Request, Response, Upgrade, WebSocket};

use crate::hub::{Hub, Origin};
use crate::protocol::Encoding;
use crate::transport;

/// Where clients of the client protocol connect.
pub const WEBSOCKET_PATH: &str = "/connection/websocket";
/// Where plain WebSocket clients join a channel of the namespace `rooms`.
pub const ROOMS_PATH: &str = "/rooms/";

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
    /// | `/rooms/NAME` | the channel `rooms:NAME`, bare messages over WebSocket |
    pub async fn answer_own(&self, request: &mut Request) -> Option<Response> {
        let path = request.path();
        if path == WEBSOCKET_PATH {
            return Some(self.open_protocol(request));
        }
        let name = path.strip_prefix(ROOMS_PATH).filter(|name| !name.is_empty())?;
        let channel = format!("rooms:{name}");
        Some(self.open_room(request, channel))
    }

    fn open_protocol(&self, request: &Request) -> Response {
        let upgrade = match self.upgrade(request) {
            Ok(upgrade) => upgrade.subprotocols(&[Encoding::PROTOBUF_SUBPROTOCOL, Encoding::JSON_SUBPROTOCOL]),
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
        let settings = self.0.settings();
        let handshake = upgrade.request();
        let Some(origin) = handshake.origin() else { return Ok(upgrade) };
        let own = origin.split_once("://").is_some_and(|(_, host)| host.eq_ignore_ascii_case(handshake.host()));
        let allowed = &settings.config.client.allowed_origins;
        if own || allowed.iter().any(|one| one == "*" || one.eq_ignore_ascii_case(origin)) {
            Ok(upgrade)
        } else {
            Err(Response::text(403, "this origin may not connect\n"))
        }
    }
}
