//! Events of a connection, and the payloads that they borrow.

use crate::assembly::Assembly;
use crate::close::CloseFrame;
use crate::opcode::Kind;
use crate::owned::{OwnedMessage, Utf8Bytes};
use crate::utf8::Valid;
use bytes::Bytes;
use core::fmt;
use core::ops::{Deref, DerefMut};
use core::time::Duration;

/// Something that arrived.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A complete text message.
    Text(Text<'a>),
    /// A complete binary message.
    Binary(Binary<'a>),
    /// A chunk of a message; see [`Delivery::Chunks`](crate::Delivery::Chunks).
    Chunk(Chunk<'a>),
    /// A ping; its pong is queued already, unless this end is closing (RFC 6455 §5.5.2).
    Ping(&'a [u8]),
    /// A pong (RFC 6455 §5.5.3).
    Pong(Pong<'a>),
    /// The peer's Close frame; if it was the first, its echo is queued already (RFC 6455 §5.5.1).
    Close(CloseFrame<'a>),
}

/// A pong that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pong<'a> {
    /// The payload of the ping that it answers, or anything when it is unsolicited.
    pub payload: &'a [u8],
    /// Time from the ping that this answers, if this end sent one with this payload.
    pub round_trip: Option<Duration>,
}

/// A part of a message. The chunks of a text message form valid UTF-8 together; a code point may be split between two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk<'a> {
    /// Text or binary.
    pub kind: Kind,
    /// The first chunk of its message.
    pub first: bool,
    /// The last chunk of its message; `data` may then be empty.
    pub fin: bool,
    /// The bytes.
    pub data: &'a [u8],
}

/// The kind of a complete message; for text, with the proof that it was validated to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whole {
    Text(Valid),
    Binary,
}

impl Whole {
    #[inline]
    pub(crate) fn kind(self) -> Kind {
        match self {
            Self::Text(_) => Kind::Text,
            Self::Binary => Kind::Binary,
        }
    }

    /// The message with this payload.
    #[inline(always)]
    pub(crate) fn with_payload(self, data: Bytes) -> OwnedMessage {
        match self {
            Self::Text(valid) => OwnedMessage::Text(Utf8Bytes::new(data, valid)),
            Self::Binary => OwnedMessage::Binary(data),
        }
    }
}

/// The payload of a complete message.
pub(crate) enum Payload<'a> {
    /// In the input of the caller: it arrived in one piece.
    Input(&'a mut [u8]),
    /// In the connection: it arrived in fragments, in several reads, or compressed.
    Assembled(&'a mut Assembly),
}

impl Payload<'_> {
    #[inline]
    fn as_slice(&self) -> &[u8] {
        match self {
            Self::Input(bytes) => bytes,
            Self::Assembled(assembly) => assembly.as_slice(),
        }
    }

    #[inline]
    fn as_mut_slice(&mut self) -> &mut [u8] {
        match self {
            Self::Input(bytes) => bytes,
            Self::Assembled(assembly) => assembly.as_mut_slice(),
        }
    }

    fn into_bytes(self) -> Bytes {
        match self {
            Self::Input(bytes) => Bytes::copy_from_slice(bytes),
            Self::Assembled(assembly) => assembly.take(),
        }
    }
}

/// A complete text message, borrowed; it is a `str`.
pub struct Text<'a> {
    payload: Payload<'a>,
    valid: Valid,
}

impl<'a> Text<'a> {
    /// `valid` is the proof for this payload.
    #[inline]
    pub(crate) fn new(payload: Payload<'a>, valid: Valid) -> Self {
        Self { payload, valid }
    }

    /// The message.
    #[inline]
    pub fn as_str(&self) -> &str {
        self.valid.text(self.payload.as_slice())
    }

    /// The owned message. An assembled message is moved out with its buffer unless that is more than twice as long; others are copied.
    pub fn into_utf8_bytes(self) -> Utf8Bytes {
        Utf8Bytes::new(self.payload.into_bytes(), self.valid)
    }

    /// [`into_utf8_bytes`](Self::into_utf8_bytes) as bytes.
    pub fn into_bytes(self) -> Bytes {
        self.payload.into_bytes()
    }
}

impl Deref for Text<'_> {
    type Target = str;

    #[inline]
    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl fmt::Debug for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

impl From<Text<'_>> for OwnedMessage {
    fn from(text: Text<'_>) -> Self {
        Self::Text(text.into_utf8_bytes())
    }
}

/// A complete binary message, borrowed; it is a `[u8]`, and may be changed in place.
pub struct Binary<'a>(Payload<'a>);

impl<'a> Binary<'a> {
    #[inline]
    pub(crate) fn new(payload: Payload<'a>) -> Self {
        Self(payload)
    }

    /// The owned message; moved or copied like by [`Text::into_utf8_bytes`].
    pub fn into_bytes(self) -> Bytes {
        self.0.into_bytes()
    }
}

impl Deref for Binary<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.0.as_slice()
    }
}

impl DerefMut for Binary<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        self.0.as_mut_slice()
    }
}

impl fmt::Debug for Binary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl From<Binary<'_>> for OwnedMessage {
    fn from(binary: Binary<'_>) -> Self {
        Self::Binary(binary.into_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn messages_in_the_input_and_in_the_assembly_become_owned() {
        let mut input = *b"text";
        let mut assembly = Assembly::default();
        let mut payloads = |is_assembled: bool, run: &mut dyn FnMut(Payload<'_>)| {
            if is_assembled {
                assembly.clear();
                assembly.push(b"text", 0);
                run(Payload::Assembled(&mut assembly));
            } else {
                run(Payload::Input(&mut input));
            }
        };
        for is_assembled in [false, true] {
            let valid = Valid::of("text");
            payloads(is_assembled, &mut |payload| {
                let text = Text::new(payload, valid);
                assert_eq!((&*text, alloc::format!("{text:?}").as_str()), ("text", "\"text\""));
                assert_eq!(text.into_utf8_bytes().as_str(), "text");
            });
            payloads(is_assembled, &mut |payload| {
                assert_eq!(Text::new(payload, valid).into_bytes(), &b"text"[..]);
            });
            payloads(is_assembled, &mut |payload| {
                assert_eq!(OwnedMessage::from(Text::new(payload, valid)), "text".into());
            });
            payloads(is_assembled, &mut |payload| {
                let mut binary = Binary::new(payload);
                binary[0] = b'T';
                assert_eq!(binary.into_bytes(), &b"Text"[..]);
            });
            payloads(is_assembled, &mut |payload| {
                let first = if is_assembled { b't' } else { b'T' };
                let owned = OwnedMessage::from(Binary::new(payload));
                assert_eq!(owned, vec![first, b'e', b'x', b't'].into());
            });
        }
    }
}
