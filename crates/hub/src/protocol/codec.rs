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
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, DeserializeOwned, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::command::Command;
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
}

impl Commands {
    /// The commands in `message`.
    #[must_use]
    pub fn new(encoding: Encoding, message: Bytes) -> Self {
        Self { encoding, rest: message }
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
                Some(Command::decode_length_delimited(&mut self.rest).map_err(|_| DecodeError))
            }
        }
    }
}

impl Iterator for Commands {
    type Item = Result<Command, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        let command = self.decode();
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
#[cfg(feature = "client")]
pub(crate) fn bounded<T>(max: usize, decode: impl FnOnce() -> T) -> T {
    let before = ROOM.replace(Some(max));
    let decoded = decode();
    ROOM.set(before);
    decoded
}

fn take_room<T, E: de::Error>() -> Result<(), E> {
    if let Some(room) = ROOM.get() {
        let room =
            room.checked_sub(size_of::<T>()).ok_or_else(|| E::custom("lists and maps are too long"))?;
        ROOM.set(Some(room));
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
                take_room::<T, _>()?;
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
                take_room::<(String, T), _>()?;
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
