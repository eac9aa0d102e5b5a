//! The two encodings of the client protocol. JSON: one value a line. Protobuf: each message after its length as a
//! varint.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use prost::Message as _;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, DeserializeOwned, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::command::{Command, FilterNode, SubscribeRequest};
use super::reply::Reply;

/// How messages are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// Text, one JSON value a line.
    Json,
    /// Binary, each message after its length.
    Protobuf,
}

impl Encoding {
    /// The WebSocket subprotocol by which a client asks for Protobuf.
    pub const PROTOBUF_SUBPROTOCOL: &str = "centrifuge-protobuf";
    /// The WebSocket subprotocol by which a client may ask for JSON, which is the default.
    pub const JSON_SUBPROTOCOL: &str = "centrifuge-json";
}

/// A message of a client that is not a batch of commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeError;

/// The commands of one WebSocket message, decoded one at a time, so that a batch of many tiny commands costs no memory.
#[derive(Debug)]
pub struct Commands {
    encoding: Encoding,
    /// Empty after an error, because the rest of a malformed message cannot be decoded.
    rest: Bytes,
    elements_len_max: usize,
}

impl Commands {
    /// The commands in `message`.
    #[must_use]
    pub fn new(encoding: Encoding, message: Bytes) -> Self {
        Self { encoding, rest: message, elements_len_max: usize::MAX }
    }

    /// Refuses a command whose lists and maps would take more memory for their elements, in bytes. The default is no limit.
    #[must_use]
    pub fn elements_len_max(mut self, len: usize) -> Self {
        self.elements_len_max = len;
        self
    }

    fn decode(&mut self) -> Option<Result<Command, DecodeError>> {
        match self.encoding {
            Encoding::Json => {
                let begin = self.rest.iter().position(|byte| !byte.is_ascii_whitespace())?;
                // serde would also accept an array of the fields.
                if self.rest[begin] != b'{' {
                    return Some(Err(DecodeError));
                }
                let mut values = serde_json::Deserializer::from_slice(&self.rest).into_iter::<Command>();
                let command = values.next()?.map_err(|_| DecodeError);
                let used = values.byte_offset();
                self.rest = self.rest.slice(used..);
                Some(command)
            }
            Encoding::Protobuf if self.rest.is_empty() => None,
            Encoding::Protobuf => {
                let mut rest = self.rest.as_ref();
                let len = decode_varint(&mut rest).ok().and_then(|len| usize::try_from(len).ok());
                let message = len.and_then(|len| rest.get(..len));
                if message.is_none_or(|message| take_elements(message, &COMMAND, DEPTH_MAX).is_err()) {
                    return Some(Err(DecodeError));
                }
                Some(Command::decode_length_delimited(&mut self.rest).map_err(|_| DecodeError))
            }
        }
    }
}

impl Iterator for Commands {
    type Item = Result<Command, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        let command = bounded(self.elements_len_max, || self.decode());
        if !matches!(command, Some(Ok(_))) {
            self.rest = Bytes::new();
        }
        command
    }
}

/// A reply as one WebSocket message.
#[must_use]
pub fn encode_reply(encoding: Encoding, reply: &Reply) -> Vec<u8> {
    match encoding {
        // Serialization fails only for maps whose keys are not strings; there are none.
        Encoding::Json => serde_json::to_vec(reply).unwrap_or_default(),
        Encoding::Protobuf => reply.encode_length_delimited_to_vec(),
    }
}

thread_local! {
    /// How many bytes of elements the lists and maps of the value that is being decoded may still have; without bound by default.
    static ROOM: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Decodes a value whose lists and maps together take at most `max` bytes for their elements: a text of two bytes may be an element of
/// hundreds.
pub(crate) fn bounded<T>(max: usize, decode: impl FnOnce() -> T) -> T {
    let before = ROOM.replace(Some(max));
    let decoded = decode();
    ROOM.set(before);
    decoded
}

fn take_room(len: usize) -> Result<(), DecodeError> {
    if let Some(room) = ROOM.get() {
        ROOM.set(Some(room.checked_sub(len).ok_or(DecodeError)?));
    }
    Ok(())
}

fn take_element<T, E: de::Error>() -> Result<(), E> {
    take_room(size_of::<T>()).map_err(|DecodeError| E::custom("lists and maps are too long"))
}

/// A field of commands whose elements may take more memory than their encoding in Protobuf, or that has such fields.
struct Field {
    number: u32,
    /// The size of an element in memory, in bytes; 0 for a field that is not repeated.
    element_len: usize,
    fields: &'static [Field],
}

impl Field {
    const fn one(number: u32, fields: &'static [Self]) -> Self {
        Self { number, element_len: 0, fields }
    }

    const fn many<T>(number: u32, fields: &'static [Self]) -> Self {
        Self { number, element_len: size_of::<T>(), fields }
    }
}

static COMMAND: [Field; 2] = [Field::one(4, &CONNECT), Field::one(5, &SUBSCRIBE)];
static CONNECT: [Field; 2] = [
    Field::many::<(String, SubscribeRequest)>(3, &[Field::one(2, &SUBSCRIBE)]),
    Field::many::<(String, String)>(6, &[]),
];
static SUBSCRIBE: [Field; 1] = [Field::one(13, &FILTER_NODE)];
static FILTER_NODE: [Field; 2] = [Field::many::<String>(5, &[]), Field::many::<FilterNode>(6, &FILTER_NODE)];

/// The depth to which prost decodes messages in messages.
const DEPTH_MAX: usize = 100;

/// Takes the room for the elements of a message in Protobuf, which is decoded afterwards.
fn take_elements(mut message: &[u8], fields: &[Field], depth_left: usize) -> Result<(), DecodeError> {
    let depth_left = depth_left.checked_sub(1).ok_or(DecodeError)?;
    while !message.is_empty() {
        let (number, wire_type) = decode_key(&mut message).map_err(|_| DecodeError)?;
        let field = fields.iter().find(|field| field.number == number);
        let Some(field) = field.filter(|_| wire_type == WireType::LengthDelimited) else {
            skip_field(wire_type, number, &mut message, DecodeContext::default()).map_err(|_| DecodeError)?;
            continue;
        };
        take_room(field.element_len)?;
        let len = decode_varint(&mut message).map_err(|_| DecodeError)?;
        let split = usize::try_from(len).ok().and_then(|len| message.split_at_checked(len));
        let (element, rest) = split.ok_or(DecodeError)?;
        message = rest;
        if !field.fields.is_empty() {
            take_elements(element, field.fields, depth_left)?;
        }
    }
    Ok(())
}

/// Deserializes a list, as [`bounded`] says.
pub(super) fn list<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<Vec<T>, D::Error> {
    struct List<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for List<T> {
        type Value = Vec<T>;

        fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
            to.write_str("a list")
        }

        /// As Go writes an empty one.
        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(Vec::new())
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Self::Value, A::Error> {
            let mut list = Vec::new();
            while let Some(element) = elements.next_element()? {
                take_element::<T, _>()?;
                list.push(element);
            }
            Ok(list)
        }
    }

    from.deserialize_any(List(PhantomData))
}

/// Deserializes a map, as [`bounded`] says.
pub(super) fn map<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    from: D,
) -> Result<HashMap<String, T>, D::Error> {
    struct Map<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for Map<T> {
        type Value = HashMap<String, T>;

        fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
            to.write_str("a map")
        }

        /// As Go writes an empty one.
        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(HashMap::new())
        }

        fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
            let mut map = HashMap::new();
            while let Some((key, value)) = entries.next_entry()? {
                take_element::<(String, T), _>()?;
                map.insert(key, value);
            }
            Ok(map)
        }
    }

    from.deserialize_any(Map(PhantomData))
}

/// Fields with their default value are left out of JSON.
pub(super) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Deserializes an object or null. The implementation that serde derives would also accept an array of the fields.
pub(super) fn object<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<Option<T>, D::Error> {
    struct Object<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for Object<T> {
        type Value = Option<T>;

        fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
            to.write_str("an object or null")
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(None)
        }

        fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<Self::Value, A::Error> {
            T::deserialize(MapAccessDeserializer::new(fields)).map(Some)
        }
    }

    from.deserialize_any(Object(PhantomData))
}

/// Decodes a text that is one JSON object.
pub(crate) fn decode_object<T: DeserializeOwned>(text: &[u8]) -> Result<T, DecodeError> {
    let mut from = serde_json::Deserializer::from_slice(text);
    let decoded = object(&mut from).map_err(|_| DecodeError)?;
    from.end().map_err(|_| DecodeError)?;
    decoded.ok_or(DecodeError)
}

/// A payload as JSON clients see it. Payloads are bytes in Protobuf and any JSON value in JSON. Bytes that are not JSON, which only a
/// Protobuf client can publish, are a string in base64. A newline separates messages, so that the line breaks of a payload become spaces.
pub(crate) fn json_text(bytes: &Bytes) -> Cow<'_, str> {
    match serde_json::from_slice::<&RawValue>(bytes) {
        Ok(value) => one_line(value.get()),
        Err(_) => format!("\"{}\"", base64(bytes)).into(),
    }
}

/// RFC 8259 §7: strings contain no unescaped control characters, so that line breaks are only between tokens.
fn one_line(json: &str) -> Cow<'_, str> {
    if json.as_bytes().contains(&b'\n') || json.as_bytes().contains(&b'\r') {
        json.replace(['\n', '\r'], " ").into()
    } else {
        json.into()
    }
}

fn base64(bytes: &Bytes) -> String {
    STANDARD.encode(bytes)
}

/// See [`json_text`].
pub(super) mod raw {
    use std::borrow::Cow;

    use bytes::Bytes;
    use serde::ser::Error as _;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use serde_json::value::RawValue;

    pub(in crate::protocol) fn serialize<S: Serializer>(bytes: &Bytes, to: S) -> Result<S::Ok, S::Error> {
        match serde_json::from_slice::<&RawValue>(bytes) {
            Ok(value) => match super::one_line(value.get()) {
                Cow::Borrowed(_) => value.serialize(to),
                Cow::Owned(text) => RawValue::from_string(text).map_err(S::Error::custom)?.serialize(to),
            },
            Err(_) => super::base64(bytes).serialize(to),
        }
    }

    pub(in crate::protocol) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Bytes, D::Error> {
        Box::<RawValue>::deserialize(from).map(|value| Bytes::from(String::from(Box::<str>::from(value))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{ConnectRequest, ErrorCode, Publication, Push};

    fn decode_commands(encoding: Encoding, message: &[u8]) -> Result<Vec<Command>, DecodeError> {
        Commands::new(encoding, Bytes::copy_from_slice(message)).collect()
    }

    #[test]
    fn a_list_and_a_map_may_be_null() {
        let result: crate::protocol::SubscribeResult =
            serde_json::from_str(r#"{"publications":null,"offset":7}"#).unwrap();
        assert_eq!((result.publications.len(), result.offset), (0, 7));
        let result: crate::protocol::PresenceResult = serde_json::from_str(r#"{"presence":null}"#).unwrap();
        assert!(result.presence.is_empty());
        assert!(serde_json::from_str::<crate::protocol::PresenceResult>(r#"{"presence":[]}"#).is_err());
    }

    #[test]
    fn decodes_a_batch_of_json_commands() {
        let batch = b"{\"id\":1,\"connect\":{\"token\":\"t\",\"data\":{\"a\": [1]}}}\n{\"id\":2,\"subscribe\":{\"channel\":\"c\"}}\n{}";
        let commands = decode_commands(Encoding::Json, batch).unwrap();
        assert_eq!(commands.len(), 3);
        let connect = commands[0].connect.as_ref().unwrap();
        assert_eq!((&*connect.token, &connect.data[..]), ("t", &b"{\"a\": [1]}"[..]));
        assert_eq!(commands[1].subscribe.as_ref().unwrap().channel, "c");
        assert_eq!(commands[2], Command::default());
    }

    #[test]
    fn the_elements_of_a_command_are_bounded() {
        let subscribe = |tf| Some(SubscribeRequest { tf: Some(tf), ..SubscribeRequest::default() });
        let node = FilterNode::default;
        let nodes = |count| FilterNode { nodes: vec![node(); count], ..node() };
        let subs = |count: usize, tf: FilterNode| {
            let subs = (0..count).map(|n| (n.to_string(), subscribe(tf.clone()).unwrap())).collect();
            Some(ConnectRequest { subs, ..ConnectRequest::default() })
        };
        let headers = (0..7).map(|n| (n.to_string(), String::new())).collect();
        let (node_len, sub_len) = (size_of::<FilterNode>(), size_of::<(String, SubscribeRequest)>());
        for (command, len) in [
            (Command { subscribe: subscribe(nodes(7)), ..Command::default() }, 7 * node_len),
            (
                Command {
                    subscribe: subscribe(FilterNode { nodes: vec![nodes(3), nodes(2)], ..node() }),
                    ..Command::default()
                },
                7 * node_len,
            ),
            (
                Command {
                    subscribe: subscribe(FilterNode { vals: vec![String::new(); 7], ..node() }),
                    ..Command::default()
                },
                7 * size_of::<String>(),
            ),
            (Command { connect: subs(7, node()), ..Command::default() }, 7 * sub_len),
            (Command { connect: subs(2, nodes(3)), ..Command::default() }, 2 * (sub_len + 3 * node_len)),
            (
                Command {
                    connect: Some(ConnectRequest { headers, ..ConnectRequest::default() }),
                    ..Command::default()
                },
                7 * size_of::<(String, String)>(),
            ),
        ] {
            let json = serde_json::to_vec(&command).unwrap();
            for (encoding, bytes) in
                [(Encoding::Json, json), (Encoding::Protobuf, command.encode_length_delimited_to_vec())]
            {
                for (max, fits) in [(len - 1, false), (len, true), (len + 1, true)] {
                    let mut commands = Commands::new(encoding, bytes.clone().into()).elements_len_max(max);
                    let expected = if fits { Ok(command.clone()) } else { Err(DecodeError) };
                    assert_eq!(commands.next(), Some(expected), "{encoding:?}, {max}");
                }
            }
        }
    }

    #[test]
    fn a_filter_that_is_too_deep_is_refused() {
        let deep = |depth: usize| {
            let node = |inner| FilterNode { nodes: vec![inner], ..FilterNode::default() };
            let tf = (1..depth).fold(FilterNode::default(), |inner, _| node(inner));
            let subscribe = SubscribeRequest { tf: Some(tf), ..SubscribeRequest::default() };
            let command = Command { subscribe: Some(subscribe), ..Command::default() };
            decode_commands(Encoding::Protobuf, &command.encode_length_delimited_to_vec())
        };
        assert!(deep(64).is_ok() && deep(1_000) == Err(DecodeError));
    }

    #[test]
    fn ignores_unknown_json_fields() {
        let commands = decode_commands(Encoding::Json, b"{\"id\":1,\"later\":{\"x\":1}}").unwrap();
        assert_eq!(commands, [Command { id: 1, ..Command::default() }]);
    }

    #[test]
    fn refuses_malformed_batches() {
        for bad in [
            &b"{"[..],
            b"[]",
            b"{}[]",
            b"{\"id\":-1}",
            b"{\"id\":\"x\"}",
            b"\xff",
            b"{\"id\":1}x",
            b"{\"connect\":[]}",
        ] {
            assert_eq!(decode_commands(Encoding::Json, bad), Err(DecodeError), "{}", bad.escape_ascii());
        }
        for bad in [&[1][..], &[0x80], &[2, 8, 0x80], &[3, 0x22, 9, 0]] {
            assert_eq!(decode_commands(Encoding::Protobuf, bad), Err(DecodeError), "{bad:?}");
        }
    }

    #[test]
    fn decodes_a_batch_of_protobuf_commands() {
        let command = Command {
            id: 7,
            connect: Some(ConnectRequest { token: "t".into(), ..ConnectRequest::default() }),
            ..Command::default()
        };
        let mut batch = command.encode_length_delimited_to_vec();
        batch.push(0);
        assert_eq!(decode_commands(Encoding::Protobuf, &batch).unwrap(), [command, Command::default()]);
    }

    #[test]
    fn leaves_out_empty_fields() {
        assert_eq!(encode_reply(Encoding::Json, &Reply::default()), b"{}");
        assert_eq!(encode_reply(Encoding::Protobuf, &Reply::default()), [0]);
        let reply = Reply { id: 3, error: Some(ErrorCode::BadRequest.into()), ..Reply::default() };
        assert_eq!(
            encode_reply(Encoding::Json, &reply),
            br#"{"id":3,"error":{"code":107,"message":"bad request"}}"#
        );
    }

    #[test]
    fn embeds_json_payloads_and_encodes_others_as_base64() {
        for (data, json) in [
            (&b"{\"x\": 1}"[..], r#"{"x": 1}"#),
            (&[0xff, 0], r#""/wA=""#),
            // Messages and server-sent events end at line breaks.
            (b"\n{\r\n\t\"x\": \"\\n\"\r}\n", "{  \t\"x\": \"\\n\" }"),
        ] {
            let publication =
                Publication { data: Bytes::copy_from_slice(data), offset: 5, ..Publication::default() };
            let push = Push { channel: "c".into(), publication: Some(publication), ..Push::default() };
            let reply = Reply { push: Some(push), ..Reply::default() };
            let expected = format!(r#"{{"push":{{"channel":"c","pub":{{"data":{json},"offset":5}}}}}}"#);
            assert_eq!(String::from_utf8(encode_reply(Encoding::Json, &reply)).unwrap(), expected);
            assert_eq!(json_text(&Bytes::copy_from_slice(data)), json);
        }
    }
}
