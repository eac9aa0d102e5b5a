//! Messages as they come and go: borrowed from the read buffer, owned, or about to be sent.

use std::fmt;
use std::ops::Deref;

use bytes::Bytes;
use wireloom_ws::Kind;

/// A message, borrowed from the connection until the next one is asked for.
///
/// [`into_owned`](Self::into_owned) makes it one to keep.
#[derive(Clone, Copy)]
pub struct Message<'a> {
    kind: Kind,
    /// Valid UTF-8 when the kind is text.
    data: &'a [u8],
}

impl<'a> Message<'a> {
    /// `data` has been validated if it is text.
    pub(crate) fn new(kind: Kind, data: &'a [u8]) -> Self {
        Self { kind, data }
    }

    /// Whether this is text.
    pub fn is_text(&self) -> bool {
        self.kind == Kind::Text
    }

    /// Whether this is binary.
    pub fn is_binary(&self) -> bool {
        self.kind == Kind::Binary
    }

    /// The text; `None` when the message is binary.
    #[allow(unsafe_code)]
    pub fn as_text(&self) -> Option<&'a str> {
        debug_assert!(!self.is_text() || std::str::from_utf8(self.data).is_ok());
        // SAFETY: `Message::new` is called by `Receiver::lend` alone, with bytes that the core handed out as a
        // `wireloom_ws::Text` and that nothing has written to since.
        self.is_text().then(|| unsafe { std::str::from_utf8_unchecked(self.data) })
    }

    /// The payload, of text too.
    pub fn as_bytes(&self) -> &'a [u8] {
        self.data
    }

    /// The message to keep; it is copied.
    pub fn into_owned(self) -> OwnedMessage {
        let data = Bytes::copy_from_slice(self.data);
        match self.kind {
            Kind::Text => OwnedMessage::Text(Utf8Bytes(data)),
            Kind::Binary => OwnedMessage::Binary(data),
        }
    }
}

impl fmt::Debug for Message<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.as_text() {
            Some(text) => f.debug_tuple("Text").field(&text).finish(),
            None => f.debug_tuple("Binary").field(&self.data).finish(),
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
}

impl Payload<'_> {
    /// Its length in bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Binary(data) => data.len(),
            Self::Shared(data) => data.len(),
            Self::SharedText(text) => text.len(),
        }
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<'a> From<Message<'a>> for Payload<'a> {
    fn from(message: Message<'a>) -> Self {
        match message.as_text() {
            Some(text) => Self::Text(text),
            None => Self::Binary(message.data),
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
