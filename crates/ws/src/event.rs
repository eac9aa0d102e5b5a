//! What a connection tells its owner, and the payloads that come with it.

use crate::assembly::Assembly;
use crate::close::CloseFrame;
use crate::opcode::Kind;
use bytes::Bytes;
use core::fmt;
use core::ops::{Deref, DerefMut};
use core::time::Duration;

/// Something that arrived.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A whole text message.
    Text(Text<'a>),
    /// A whole binary message.
    Binary(Binary<'a>),
    /// A piece of a message, when the connection was configured to lend messages in chunks.
    Chunk(Chunk<'a>),
    /// A ping; its pong is queued already (RFC 6455 §5.5.2).
    Ping(&'a [u8]),
    /// A pong (RFC 6455 §5.5.3).
    Pong(Pong<'a>),
    /// The peer's Close frame; if it was the first, its echo is queued already (RFC 6455 §5.5.1).
    Close(CloseFrame<'a>),
}

/// A pong that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pong<'a> {
    /// What the ping carried, or anything when the peer sent it unasked.
    pub payload: &'a [u8],
    /// Time from the ping that this answers, if this end sent one with this payload.
    pub round_trip: Option<Duration>,
}

/// A piece of a message. The pieces of a text message make valid UTF-8 together; a code point may be cut between two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk<'a> {
    /// Text or binary.
    pub kind: Kind,
    /// The first piece of its message.
    pub first: bool,
    /// The last piece of its message; `data` may then be empty.
    pub fin: bool,
    /// The piece.
    pub data: &'a [u8],
}

/// Where a message lies.
pub(crate) enum Payload<'a> {
    /// In the bytes that the caller passed in: it arrived whole.
    Input(&'a mut [u8]),
    /// In the connection: it came in pieces or compressed.
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

/// A whole text message, borrowed; it is a `str`.
pub struct Text<'a>(Payload<'a>);

impl<'a> Text<'a> {
    /// `payload` has been validated.
    #[inline]
    pub(crate) fn new(payload: Payload<'a>) -> Self {
        Self(payload)
    }

    /// The message.
    #[inline]
    #[allow(unsafe_code)]
    pub fn as_str(&self) -> &str {
        let bytes = self.0.as_slice();
        debug_assert!(core::str::from_utf8(bytes).is_ok());
        // SAFETY: `Text::new` is called for `Arrival::Message` and `Arrival::Assembled` of `Kind::Text` alone, whose bytes
        // `Decoder` (uncompressed) or `Receiver::inflate` (compressed) has run through `utf8` to the message's end, and a
        // `Text` hands out no mutable access to them.
        unsafe { core::str::from_utf8_unchecked(bytes) }
    }

    /// The message to keep, as UTF-8: moved out without a copy when the connection had to assemble it, and copied when it
    /// lies in the caller's buffer.
    pub fn into_bytes(self) -> Bytes {
        self.0.into_bytes()
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

/// A whole binary message, borrowed; it is a `[u8]`, and may be changed in place.
pub struct Binary<'a>(Payload<'a>);

impl<'a> Binary<'a> {
    #[inline]
    pub(crate) fn new(payload: Payload<'a>) -> Self {
        Self(payload)
    }

    /// The message to keep: moved out without a copy when the connection had to assemble it, and copied when it lies in
    /// the caller's buffer.
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
