//! Message types: received and borrowed from the read buffer, received and owned, or to be sent.

use std::fmt;

use bytes::Bytes;
use wireloom_ws::{Kind, Reader};
pub use wireloom_ws::{OwnedMessage, Utf8Bytes};

use super::prepared::PreparedMessage;

/// A received message, borrowed from the connection until the next receive call.
///
/// [`into_owned`](Self::into_owned) copies it into an owned message.
#[derive(Clone, Copy)]
pub struct Message<'a> {
    /// A reference of one word is cheaper to pass between futures than the position of the message.
    reader: &'a Reader,
}

impl Message<'static> {
    /// A text message to send or to keep.
    ///
    /// ```
    /// # async fn example(mut socket: wireloom::WebSocket) -> Result<(), wireloom::Error> {
    /// use wireloom::Message;
    ///
    /// socket.send(Message::text("hello")).await?;
    /// socket.send(Message::binary(vec![1, 2, 3])).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn text(text: impl Into<Utf8Bytes>) -> OwnedMessage {
        OwnedMessage::Text(text.into())
    }

    /// A binary message to send or to keep.
    pub fn binary(data: impl Into<Bytes>) -> OwnedMessage {
        OwnedMessage::Binary(data.into())
    }
}

impl<'a> Message<'a> {
    /// The last message found by `reader`.
    #[inline]
    pub(super) fn new(reader: &'a Reader) -> Self {
        Self { reader }
    }

    /// Whether this is text.
    #[inline]
    pub fn is_text(&self) -> bool {
        self.reader.message().kind() == Kind::Text
    }

    /// Whether this is binary.
    pub fn is_binary(&self) -> bool {
        !self.is_text()
    }

    /// Whether this is the end of the message. Always true unless [`Delivery::Chunks`](wireloom_ws::Delivery::Chunks) is
    /// configured: then a message that did not arrive in one piece is returned in chunks, and this is true for the last one.
    pub fn is_last(&self) -> bool {
        self.reader.message().is_last()
    }

    /// Whether this is the complete message.
    #[inline]
    pub fn is_whole(&self) -> bool {
        self.reader.message().is_whole()
    }

    /// The text; `None` for a binary message, and for a chunk that begins or ends inside a code point. Together, the chunks of
    /// a text message are valid UTF-8.
    #[inline(always)]
    pub fn as_text(&self) -> Option<&'a str> {
        self.reader.message().text()
    }

    /// The payload of a text or binary message.
    #[inline(always)]
    pub fn as_bytes(&self) -> &'a [u8] {
        self.reader.message().payload()
    }

    /// Copies the message. A chunk of text that begins or ends inside a code point becomes binary.
    pub fn into_owned(self) -> OwnedMessage {
        self.reader.message().to_owned()
    }
}

impl fmt::Debug for Message<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reader.message().fmt(f)
    }
}

/// The payload of a message to send: text from `&str`, `&String`; binary from `&[u8]`, `&Vec<u8>`, [`Bytes`]; the content of a
/// [`Message`] or an [`OwnedMessage`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Payload<'a> {
    /// Text.
    Text(&'a str),
    /// Binary, copied.
    Binary(&'a [u8]),
    /// Binary, queued by reference where the connection allows it.
    Shared(Bytes),
    /// Text, queued by reference where the connection allows it.
    SharedText(Utf8Bytes),
    /// A message encoded once for many connections; queued by reference where the connection allows it.
    Prepared(&'a PreparedMessage),
}

impl Payload<'_> {
    /// The kind and the bytes of the message.
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

    /// The length in bytes.
    pub fn len(&self) -> usize {
        self.parts().1.len()
    }

    /// Whether the payload is empty.
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
