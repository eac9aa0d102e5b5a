//! The protocols of fan-out servers above WebSocket: how a connection joins channels and publishes. No I/O.

use prost::Message as _;
use serde_json::{Value, json};
use wireloom_hub::protocol::{Command, ConnectRequest, PublishRequest, Reply, SubscribeRequest};

/// A protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// Bare messages; the path of the connection is its room.
    Bare,
    /// The Centrifugal client protocol, as JSON.
    Json,
    Protobuf,
    SocketIo,
    /// Bayeux.
    Faye,
}

/// The position from which a member continues.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Position {
    /// The epoch, or the id of the session.
    history: String,
    offset: String,
}

impl Protocol {
    /// The suffix of a server's name; empty for bare messages.
    pub(crate) fn suffix(self) -> &'static str {
        match self {
            Self::Json => ", JSON",
            Self::Protobuf => ", Protobuf",
            Self::Bare | Self::SocketIo | Self::Faye => "",
        }
    }

    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::Bare => "/rooms/w7",
            Self::Json | Self::Protobuf => "/connection/websocket",
            Self::SocketIo => "/socket.io/?EIO=4&transport=websocket",
            Self::Faye => "/faye",
        }
    }

    pub(crate) fn subprotocol(self) -> Option<&'static str> {
        (self == Self::Protobuf).then_some("centrifuge-protobuf")
    }

    /// Whether its messages are binary.
    pub(crate) fn is_binary(self) -> bool {
        self == Self::Protobuf
    }

    /// The message that publishes a JSON value.
    pub(crate) fn publication(self, channel: &str, data: &[u8], id: u32) -> Vec<u8> {
        let text = String::from_utf8_lossy(data);
        match self {
            Self::Bare => data.into(),
            Self::Json => {
                format!(r#"{{"id":{id},"publish":{{"channel":"{channel}","data":{text}}}}}"#).into_bytes()
            }
            Self::Protobuf => {
                let publish = PublishRequest { channel: channel.into(), data: data.to_vec().into() };
                let command = Command { id, publish: Some(publish), ..Command::default() };
                command.encode_length_delimited_to_vec()
            }
            Self::SocketIo => format!(r#"42["publish","{channel}",{text}]"#).into_bytes(),
            Self::Faye => {
                let channel = faye_channel(channel);
                format!(r#"[{{"channel":"{channel}","data":{text},"id":"{id}"}}]"#).into_bytes()
            }
        }
    }

    /// How many publications a message of the server carries, once a connection has joined. Centrifugo may put several into one.
    pub(crate) fn publications(self, message: &[u8]) -> usize {
        match self {
            Self::Bare | Self::SocketIo | Self::Faye => 1,
            Self::Json => 1 + newlines(message),
            Self::Protobuf => {
                let (mut rest, mut count) = (message, 0);
                while let Ok(len) = prost::decode_length_delimiter(&mut rest) {
                    rest = rest.get(len..).unwrap_or_default();
                    count += 1;
                }
                count
            }
        }
    }
}

/// The number of newlines. Counters of a byte fill whole vectors: with larger ones, the generator took longer than the server.
fn newlines(message: &[u8]) -> usize {
    let in_part = |part: &[u8]| usize::from(part.iter().map(|byte| u8::from(*byte == b'\n')).sum::<u8>());
    message.chunks(128).map(in_part).sum()
}

/// A name that Bayeux allows.
fn faye_channel(channel: &str) -> String {
    format!("/{}", channel.replace(':', "/"))
}

/// The next step of a connection that joins.
#[derive(Debug, PartialEq)]
pub(crate) enum Step {
    Wait,
    Send(Vec<u8>),
    /// Send this message; then it has joined.
    SendLast(Vec<u8>),
    Joined,
}

/// A connection that joins channels, or returns to them.
#[derive(Debug)]
pub(crate) struct Joining {
    protocol: Protocol,
    channels: Vec<String>,
    /// The position from which it continues, and how many publications it has missed.
    since: Option<(Position, usize)>,
    position: Position,
    /// The number of channels that are not joined yet.
    missing: usize,
    recovered: usize,
    is_connected: bool,
}

impl Joining {
    pub(crate) fn new(protocol: Protocol, channels: Vec<String>, since: Option<(Position, usize)>) -> Self {
        let missing = channels.len();
        let position = since.as_ref().map(|(position, _)| position.clone()).unwrap_or_default();
        Self { protocol, channels, since, position, missing, recovered: 0, is_connected: false }
    }

    pub(crate) fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// The position after everything that was received.
    pub(crate) fn position(&self) -> Position {
        self.position.clone()
    }

    /// The first step, once the WebSocket is open.
    pub(crate) fn start(&mut self) -> Step {
        match self.protocol {
            Protocol::Bare => Step::Joined,
            Protocol::SocketIo => Step::Wait,
            Protocol::Faye => Step::Send(
                br#"[{"channel":"/meta/handshake","version":"1.0","supportedConnectionTypes":["websocket"]}]"#.into(),
            ),
            Protocol::Json | Protocol::Protobuf => Step::Send(self.commands()),
        }
    }

    fn commands(&self) -> Vec<u8> {
        let connect = Command { id: 1, connect: Some(ConnectRequest::default()), ..Command::default() };
        let subscribe = self.channels.iter().zip(2..).map(|(channel, id)| {
            let channel = channel.clone();
            let subscribe = match &self.since {
                Some((Position { history, offset }, _)) => SubscribeRequest {
                    channel,
                    recover: true,
                    epoch: history.clone(),
                    offset: offset.parse().unwrap_or(0),
                    ..SubscribeRequest::default()
                },
                None => SubscribeRequest { channel, ..SubscribeRequest::default() },
            };
            Command { id, subscribe: Some(subscribe), ..Command::default() }
        });
        let mut message = Vec::new();
        for command in std::iter::once(connect).chain(subscribe) {
            if self.protocol == Protocol::Protobuf {
                message.extend(command.encode_length_delimited_to_vec());
            } else {
                message.extend(serde_json::to_vec(&command).unwrap_or_default());
                message.push(b'\n');
            }
        }
        message
    }

    /// Handles a message of the server. After the member has joined, a publication advances its position.
    ///
    /// # Errors
    /// The server refused a command, or the member did not recover everything.
    pub(crate) fn handle(&mut self, message: &[u8]) -> Result<Step, String> {
        match self.protocol {
            Protocol::Bare => Ok(Step::Joined),
            Protocol::Json => {
                for line in message.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
                    let reply = serde_json::from_slice(line).map_err(|error| error.to_string())?;
                    self.reply(reply)?;
                }
                Ok(self.state())
            }
            Protocol::Protobuf => {
                let mut rest = message;
                while !rest.is_empty() {
                    let reply =
                        Reply::decode_length_delimited(&mut rest).map_err(|error| error.to_string())?;
                    self.reply(reply)?;
                }
                Ok(self.state())
            }
            Protocol::SocketIo => self.socket_io(&String::from_utf8_lossy(message)),
            Protocol::Faye => self.faye(serde_json::from_slice(message).map_err(|error| error.to_string())?),
        }
    }

    fn state(&self) -> Step {
        if self.missing == 0 && self.is_connected { Step::Joined } else { Step::Wait }
    }

    fn reply(&mut self, reply: Reply) -> Result<(), String> {
        if let Some(error) = reply.error {
            return Err(format!("refused: {error:?}"));
        }
        self.is_connected |= reply.connect.is_some();
        if let Some(result) = reply.subscribe {
            self.missing = self.missing.saturating_sub(1);
            // As the SDKs do: centrifuge repeats the offset of the command, and what was recovered advances it.
            let offset =
                result.publications.last().map_or(result.offset, |last| last.offset.max(result.offset));
            self.position = Position { history: result.epoch, offset: offset.to_string() };
            if let Some((_, missed)) = self.since
                && (!result.recovered || result.publications.len() != missed)
            {
                return Err(format!("{} of {missed} publications recovered", result.publications.len()));
            }
        }
        if let Some(publication) = reply.push.and_then(|push| push.publication)
            && publication.offset > 0
        {
            self.position.offset = publication.offset.to_string();
        }
        Ok(())
    }

    /// Engine.IO 4 and Socket.IO 5: a digit for the type of each, then JSON.
    fn socket_io(&mut self, message: &str) -> Result<Step, String> {
        let parse = |json: &str| serde_json::from_str::<Value>(json).map_err(|error| error.to_string());
        if message.starts_with('0') {
            let auth = self.since.as_ref().map(|(Position { history, offset }, _)| {
                json!({ "pid": history, "offset": offset }).to_string()
            });
            return Ok(Step::Send(format!("40{}", auth.unwrap_or_default()).into_bytes()));
        }
        if message == "2" {
            return Ok(Step::Send(b"3".into()));
        }
        if let Some(connected) = message.strip_prefix("40") {
            let pid = parse(connected)?["pid"].as_str().unwrap_or_default().to_owned();
            self.is_connected = true;
            if self.since.is_none() {
                self.position.history = pid;
                let join = json!(["join", self.channels]);
                return Ok(Step::Send(format!("420{join}").into_bytes()));
            }
            if pid != self.position.history {
                return Err("the session was not restored".into());
            }
            self.missing = 0;
        } else if message.starts_with("430") {
            self.missing = 0;
        } else if let Some(event) = message.strip_prefix("42") {
            // With recovery, the last argument of an event is its offset.
            if let Some(offset) = parse(event)?.as_array().and_then(|event| event.get(2)?.as_str()) {
                self.position.offset = offset.into();
            }
            self.recovered += 1;
        } else {
            return Err(format!("unexpected: {message:?}"));
        }
        let has_all = self.since.as_ref().is_none_or(|(_, missed)| self.recovered >= *missed);
        Ok(if has_all { self.state() } else { Step::Wait })
    }

    fn faye(&mut self, messages: Vec<Value>) -> Result<Step, String> {
        for message in messages {
            let channel = message["channel"].as_str().unwrap_or_default();
            if channel.starts_with("/meta/") && message["successful"] != true {
                return Err(format!("refused: {message}"));
            }
            match channel {
                "/meta/handshake" => {
                    self.is_connected = true;
                    if self.channels.is_empty() {
                        return Ok(Step::Joined);
                    }
                    let client = &message["clientId"];
                    let subscribe = self.channels.iter().map(|channel| {
                        let channel = faye_channel(channel);
                        json!({ "channel": "/meta/subscribe", "clientId": client, "subscription": channel })
                    });
                    let messages: Vec<Value> = subscribe.collect();
                    return Ok(Step::Send(json!(messages).to_string().into_bytes()));
                }
                "/meta/subscribe" => {
                    self.missing = self.missing.saturating_sub(1);
                    self.position.history = message["clientId"].as_str().unwrap_or_default().into();
                }
                _ => return Ok(Step::Joined),
            }
        }
        if self.missing > 0 {
            return Ok(Step::Wait);
        }
        // A long-polling request: messages arrive over the connection that sent it. The server answers it, and every
        // batch that contains it, much later.
        let client = &self.position.history;
        let connect =
            json!([{ "channel": "/meta/connect", "clientId": client, "connectionType": "websocket" }]);
        Ok(Step::SendLast(connect.to_string().into_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joining(protocol: Protocol, since: Option<(&str, &str, usize)>) -> Joining {
        let since = since.map(|(history, offset, missed)| {
            (Position { history: history.into(), offset: offset.into() }, missed)
        });
        Joining::new(protocol, vec!["w7".into()], since)
    }

    #[test]
    fn publications_of_a_message_are_counted() {
        let message = "{}\n".repeat(1_000);
        assert_eq!(Protocol::Json.publications(message.as_bytes()), 1_001);
        assert_eq!(Protocol::Json.publications(b"{}"), 1);
        assert_eq!(Protocol::Protobuf.publications(b"\x01a\x02bc"), 2);
    }

    #[test]
    fn joins_by_the_client_protocol() {
        let mut joining = joining(Protocol::Json, None);
        let Step::Send(commands) = joining.start() else { panic!("no commands") };
        let expected = "{\"id\":1,\"connect\":{}}\n{\"id\":2,\"subscribe\":{\"channel\":\"w7\"}}\n";
        assert_eq!(String::from_utf8_lossy(&commands), expected);
        assert_eq!(joining.handle(br#"{"id":1,"connect":{"client":"a"}}"#), Ok(Step::Wait));
        assert_eq!(joining.handle(br#"{"id":2,"subscribe":{"epoch":"e","offset":3}}"#), Ok(Step::Joined));
        let push = br#"{"push":{"channel":"w7","pub":{"data":1,"offset":4}}}"#;
        assert_eq!(joining.handle(push), Ok(Step::Joined));
        assert_eq!(joining.position(), Position { history: "e".into(), offset: "4".into() });
    }

    #[test]
    fn counts_what_was_recovered() {
        let reply = br#"{"id":2,"subscribe":{"recovered":true,"publications":[{"data":1}]}}"#;
        let connected = br#"{"id":1,"connect":{"client":"a"}}"#;
        for (missed, joins) in [(1, true), (2, false)] {
            let mut joining = joining(Protocol::Json, Some(("e", "3", missed)));
            joining.start();
            joining.handle(connected).expect("connected");
            assert_eq!(joining.handle(reply).is_ok(), joins);
        }
    }

    #[test]
    fn what_was_recovered_advances_the_position() {
        let mut joining = joining(Protocol::Json, Some(("e", "3", 1)));
        let reply = br#"{"id":2,"subscribe":{"epoch":"e","offset":3,"recovered":true,"publications":[{"data":1,"offset":4}]}}"#;
        joining.handle(reply).expect("recovered");
        assert_eq!(joining.position(), Position { history: "e".into(), offset: "4".into() });
    }

    #[test]
    fn joins_and_returns_by_socket_io() {
        let mut first = joining(Protocol::SocketIo, None);
        assert_eq!(first.start(), Step::Wait);
        assert_eq!(first.handle(b"0{\"sid\":\"a\"}"), Ok(Step::Send(b"40".into())));
        assert_eq!(
            first.handle(b"40{\"sid\":\"b\",\"pid\":\"p\"}"),
            Ok(Step::Send(br#"420["join",["w7"]]"#.into()))
        );
        assert_eq!(first.handle(b"430[]"), Ok(Step::Joined));
        assert_eq!(first.handle(br#"42["message","text","o1"]"#), Ok(Step::Joined));
        let since = Some(("p", "o1", 1));
        assert_eq!(
            first.position(),
            since.map(|(p, o, _)| Position { history: p.into(), offset: o.into() }).expect("one")
        );
        let mut second = joining(Protocol::SocketIo, since);
        // The order of the keys depends on the features of serde_json.
        let Ok(Step::Send(connect)) = second.handle(b"0{}") else { panic!("no packet") };
        let auth: serde_json::Value = serde_json::from_slice(&connect[2..]).expect("JSON");
        assert_eq!((&connect[..2], auth), (&b"40"[..], serde_json::json!({ "pid": "p", "offset": "o1" })));
        assert_eq!(second.handle(br#"42["message","text","o2"]"#), Ok(Step::Wait));
        assert_eq!(second.handle(b"40{\"sid\":\"b\",\"pid\":\"p\"}"), Ok(Step::Joined));
    }

    #[test]
    fn joins_by_faye() {
        let mut joining = joining(Protocol::Faye, None);
        joining.start();
        let answer = br#"[{"channel":"/meta/handshake","successful":true,"clientId":"c"}]"#;
        assert!(matches!(joining.handle(answer), Ok(Step::Send(_))));
        let refused = br#"[{"channel":"/meta/subscribe","successful":false}]"#;
        assert!(joining.handle(refused).is_err());
        let answer = br#"[{"channel":"/meta/subscribe","successful":true,"clientId":"c"}]"#;
        assert!(matches!(joining.handle(answer), Ok(Step::SendLast(_))));
    }
}
