//! Messages as they come and go: borrowed from the read buffer, owned, or about to be sent.

use std::fmt;
use std::ops::Deref;

use bytes::Bytes;
use wireloom_ws::Kind;

use super::prepared::PreparedMessage;
use super::receiver::Reading;

/// A message, borrowed from the connection until the next one is asked for.
///
/// [`into_owned`](Self::into_owned) makes it one to keep.
#[derive(Clone, Copy)]
pub struct Message<'a> {
    /// Where it lies is written there. One word is handed from future to future at less cost than what it stands for.
    reading: &'a Reading,
}

/// How much of a message something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Whole,
    First,
    Middle,
    Last,
}

impl Part {
    pub(crate) fn of(first: bool, last: bool) -> Self {
        match (first, last) {
            // Chunks are checked for UTF-8 over their edges alone.
            (true, false) => Self::First,
            (false, false) => Self::Middle,
            (_, true) => Self::Last,
        }
    }

    pub(crate) fn is_last(self) -> bool {
        matches!(self, Self::Whole | Self::Last)
    }
}

impl<'a> Message<'a> {
    /// What was found last.
    #[inline]
    pub(super) fn new(reading: &'a Reading) -> Self {
        Self { reading }
    }

    /// Whether this is text.
    #[inline]
    pub fn is_text(&self) -> bool {
        self.reading.lent().kind == Kind::Text
    }

    /// Whether this is binary.
    pub fn is_binary(&self) -> bool {
        self.reading.lent().kind == Kind::Binary
    }

    /// Whether the message ends here. It always does unless
    /// [`Delivery::Chunks`](wireloom_ws::Delivery::Chunks) was chosen: then what did not arrive at once comes in pieces, of
    /// which this is the last.
    pub fn is_last(&self) -> bool {
        self.reading.lent().part.is_last()
    }

    /// Whether this is all of the message.
    #[inline]
    pub fn is_whole(&self) -> bool {
        self.reading.lent().part == Part::Whole
    }

    /// The text; `None` when the message is binary, and for a piece of text that a cut code point keeps from being one. The
    /// pieces of a text are valid UTF-8 together.
    #[inline(always)]
    #[allow(unsafe_code)]
    pub fn as_text(&self) -> Option<&'a str> {
        if !self.is_text() {
            return None;
        }
        if !self.is_whole() {
            return self.piece_as_text();
        }
        let data = self.as_bytes();
        debug_assert!(std::str::from_utf8(data).is_ok());
        // SAFETY: `Reading` notes a whole text only for bytes that the core handed out as a `wireloom_ws::Text`, or unmasked and
        // validated as a whole message, and nothing writes to them while this borrows it.
        Some(unsafe { std::str::from_utf8_unchecked(data) })
    }

    #[cold]
    #[inline(never)]
    fn piece_as_text(&self) -> Option<&'a str> {
        std::str::from_utf8(self.as_bytes()).ok()
    }

    /// The payload, of text too.
    #[inline(always)]
    pub fn as_bytes(&self) -> &'a [u8] {
        self.reading.lent_bytes()
    }

    /// The message to keep; it is copied. A piece of a text whose code points are cut becomes binary.
    pub fn into_owned(self) -> OwnedMessage {
        let data = Bytes::copy_from_slice(self.as_bytes());
        match self.as_text() {
            Some(_) => OwnedMessage::Text(Utf8Bytes(data)),
            None => OwnedMessage::Binary(data),
        }
    }
}

impl fmt::Debug for Message<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.as_text() {
            Some(text) => f.debug_tuple("Text").field(&text).finish(),
            None => f.debug_tuple("Binary").field(&self.as_bytes()).finish(),
        }
    }
}

/// A message to keep.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum OwnedMessage {
    /// Text.
    Text(Utf8Bytes),
    /// Anything else.
    Binary(Bytes),
}

impl OwnedMessage {
    /// `data` has been validated if it is text.
    pub(crate) fn new(kind: Kind, data: Bytes) -> Self {
        match kind {
            Kind::Text => Self::Text(Utf8Bytes(data)),
            Kind::Binary => Self::Binary(data),
        }
    }

    /// The text; `None` when the message is binary.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Binary(_) => None,
        }
    }

    /// The payload, of text too.
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Text(text) => text.0.as_ref(),
            Self::Binary(data) => data,
        }
    }

    /// The payload, of text too.
    pub fn into_bytes(self) -> Bytes {
        match self {
            Self::Text(text) => text.0,
            Self::Binary(data) => data,
        }
    }
}

impl From<&str> for OwnedMessage {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl From<String> for OwnedMessage {
    fn from(text: String) -> Self {
        Self::Text(text.into())
    }
}

impl From<Bytes> for OwnedMessage {
    fn from(data: Bytes) -> Self {
        Self::Binary(data)
    }
}

impl From<Vec<u8>> for OwnedMessage {
    fn from(data: Vec<u8>) -> Self {
        Self::Binary(data.into())
    }
}

/// `Bytes` that are UTF-8: a `str` to keep and share.
#[derive(Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Utf8Bytes(Bytes);

impl Utf8Bytes {
    /// The text.
    #[allow(unsafe_code)]
    pub fn as_str(&self) -> &str {
        // SAFETY: the field is private and filled from a `str`, or by `Message::into_owned` and `OwnedMessage::new` with
        // what the core validated as text; `Bytes` do not change.
        unsafe { std::str::from_utf8_unchecked(&self.0) }
    }

    /// The bytes.
    pub fn into_bytes(self) -> Bytes {
        self.0
    }
}

impl Deref for Utf8Bytes {
    type Target = str;

    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl fmt::Debug for Utf8Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

impl From<&str> for Utf8Bytes {
    fn from(text: &str) -> Self {
        Self(Bytes::copy_from_slice(text.as_bytes()))
    }
}

impl From<String> for Utf8Bytes {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

/// What can be sent: text from `&str`, `&String`; binary from `&[u8]`, `&Vec<u8>`, [`Bytes`]; a [`Message`] or
/// [`OwnedMessage`] as what it is.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Payload<'a> {
    /// Text.
    Text(&'a str),
    /// Binary, copied.
    Binary(&'a [u8]),
    /// Binary, by reference where the connection allows it.
    Shared(Bytes),
    /// Text to keep, copied.
    SharedText(Utf8Bytes),
    /// Encoded before, for many connections; by reference where the connection allows it.
    Prepared(&'a PreparedMessage),
}

impl Payload<'_> {
    /// What kind of message it makes, and its bytes.
    #[inline(always)]
    pub(crate) fn parts(&self) -> (Kind, &[u8]) {
        match self {
            Self::Text(text) => (Kind::Text, text.as_bytes()),
            Self::Binary(data) => (Kind::Binary, data),
            Self::Shared(data) => (Kind::Binary, data),
            Self::SharedText(text) => (Kind::Text, text.as_bytes()),
            Self::Prepared(message) => (message.kind(), message.as_bytes()),
        }
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Binary(data) => data.len(),
            Self::Shared(data) => data.len(),
            Self::SharedText(text) => text.len(),
            Self::Prepared(message) => message.len(),
        }
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<'a> From<&'a PreparedMessage> for Payload<'a> {
    fn from(message: &'a PreparedMessage) -> Self {
        Self::Prepared(message)
    }
}

impl<'a> From<Message<'a>> for Payload<'a> {
    #[inline(always)]
    fn from(message: Message<'a>) -> Self {
        match message.as_text() {
            Some(text) => Self::Text(text),
            None => Self::Binary(message.as_bytes()),
        }
    }
}

impl<'a> From<&Message<'a>> for Payload<'a> {
    fn from(message: &Message<'a>) -> Self {
        (*message).into()
    }
}

impl From<OwnedMessage> for Payload<'_> {
    fn from(message: OwnedMessage) -> Self {
        match message {
            OwnedMessage::Text(text) => Self::SharedText(text),
            OwnedMessage::Binary(data) => Self::Shared(data),
        }
    }
}

impl<'a> From<&'a OwnedMessage> for Payload<'a> {
    fn from(message: &'a OwnedMessage) -> Self {
        match message {
            OwnedMessage::Text(text) => Self::Text(text),
            OwnedMessage::Binary(data) => Self::Shared(data.clone()),
        }
    }
}

impl<'a> From<&'a str> for Payload<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(text)
    }
}

impl<'a> From<&'a String> for Payload<'a> {
    fn from(text: &'a String) -> Self {
        Self::Text(text)
    }
}

impl From<String> for Payload<'_> {
    fn from(text: String) -> Self {
        Self::SharedText(text.into())
    }
}

impl<'a> From<&'a [u8]> for Payload<'a> {
    fn from(data: &'a [u8]) -> Self {
        Self::Binary(data)
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Payload<'a> {
    fn from(data: &'a [u8; N]) -> Self {
        Self::Binary(data)
    }
}

impl<'a> From<&'a Vec<u8>> for Payload<'a> {
    fn from(data: &'a Vec<u8>) -> Self {
        Self::Binary(data)
    }
}

impl From<Vec<u8>> for Payload<'_> {
    fn from(data: Vec<u8>) -> Self {
        Self::Shared(data.into())
    }
}

impl From<Bytes> for Payload<'_> {
    fn from(data: Bytes) -> Self {
        Self::Shared(data)
    }
}
