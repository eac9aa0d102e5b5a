//! Owned messages.

use crate::opcode::Kind;
use crate::utf8::{self, InvalidUtf8, Valid};
use alloc::string::String;
use alloc::vec::Vec;
use bytes::Bytes;
use core::borrow::Borrow;
use core::fmt;
use core::hash::{Hash, Hasher};
use core::ops::Deref;

/// An owned message.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum OwnedMessage {
    /// Text.
    Text(Utf8Bytes),
    /// Binary.
    Binary(Bytes),
}

impl OwnedMessage {
    /// Text or binary.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Text(_) => Kind::Text,
            Self::Binary(_) => Kind::Binary,
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
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Text(text) => text.as_bytes(),
            Self::Binary(data) => data,
        }
    }

    /// The payload, of text too.
    #[inline]
    pub fn into_bytes(self) -> Bytes {
        match self {
            Self::Text(text) => text.into_bytes(),
            Self::Binary(data) => data,
        }
    }

    /// A chunk of a message: text if it is UTF-8 by itself, and binary if it begins or ends within a code point.
    #[cold]
    pub(crate) fn from_chunk(kind: Kind, data: Bytes) -> Self {
        match kind {
            Kind::Text => Utf8Bytes::try_from(data.clone()).map_or(Self::Binary(data), Self::Text),
            Kind::Binary => Self::Binary(data),
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

/// `Bytes` that are UTF-8: an owned `str` whose clones share memory.
#[derive(Clone)]
pub struct Utf8Bytes {
    bytes: Bytes,
    valid: Valid,
}

impl Utf8Bytes {
    /// `valid` is the proof for these bytes.
    #[inline]
    pub(crate) fn new(bytes: Bytes, valid: Valid) -> Self {
        Self { bytes, valid }
    }

    /// The text.
    #[inline]
    pub fn as_str(&self) -> &str {
        self.valid.text(&self.bytes)
    }

    /// The bytes.
    #[inline]
    pub fn into_bytes(self) -> Bytes {
        self.bytes
    }
}

impl Default for Utf8Bytes {
    fn default() -> Self {
        "".into()
    }
}

impl Deref for Utf8Bytes {
    type Target = str;

    #[inline]
    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl AsRef<str> for Utf8Bytes {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl Borrow<str> for Utf8Bytes {
    fn borrow(&self) -> &str {
        self.as_str()
    }
}

impl PartialEq for Utf8Bytes {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl Eq for Utf8Bytes {}

impl PartialOrd for Utf8Bytes {
    fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Utf8Bytes {
    fn cmp(&self, other: &Self) -> core::cmp::Ordering {
        self.bytes.cmp(&other.bytes)
    }
}

impl Hash for Utf8Bytes {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl fmt::Debug for Utf8Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

impl fmt::Display for Utf8Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

impl From<&str> for Utf8Bytes {
    fn from(text: &str) -> Self {
        Self::new(Bytes::copy_from_slice(text.as_bytes()), Valid::of(text))
    }
}

impl From<String> for Utf8Bytes {
    fn from(text: String) -> Self {
        let valid = Valid::of(&text);
        Self::new(text.into(), valid)
    }
}

impl TryFrom<Bytes> for Utf8Bytes {
    type Error = InvalidUtf8;

    fn try_from(bytes: Bytes) -> Result<Self, InvalidUtf8> {
        let valid = utf8::validate_text(&bytes)?;
        Ok(Self::new(bytes, valid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_is_text_only_if_it_is_utf8() {
        let chunk = |data: &'static [u8]| OwnedMessage::from_chunk(Kind::Text, Bytes::from_static(data));
        assert_eq!(chunk("ß".as_bytes()).as_text(), Some("ß"));
        assert_eq!(chunk(b"\xc3"), OwnedMessage::Binary(Bytes::from_static(b"\xc3")));
        let binary = OwnedMessage::from_chunk(Kind::Binary, Bytes::from_static(b"x"));
        assert_eq!(binary.kind(), Kind::Binary);
    }

    #[test]
    fn takes_bytes_that_are_text() {
        assert_eq!(&*Utf8Bytes::try_from(Bytes::from_static(b"abc")).unwrap(), "abc");
        assert_eq!(Utf8Bytes::try_from(Bytes::from_static(b"\xff")), Err(InvalidUtf8));
    }

    #[test]
    fn a_message_has_its_payload_as_bytes() {
        for (message, text) in [(OwnedMessage::from("abc"), Some("abc")), (b"abc".to_vec().into(), None)] {
            assert_eq!((message.as_bytes(), message.as_text()), (&b"abc"[..], text));
            assert_eq!(message.into_bytes(), &b"abc"[..]);
        }
        assert_eq!(OwnedMessage::from(String::from("abc")), OwnedMessage::from("abc"));
        assert_eq!(OwnedMessage::from(Bytes::from_static(b"abc")), OwnedMessage::from(b"abc".to_vec()));
    }

    #[test]
    fn utf8_bytes_compare_and_hash_as_their_text() {
        let (a, b) = (Utf8Bytes::from("a"), Utf8Bytes::from(String::from("b")));
        assert!(a != b && a < b && a == Utf8Bytes::from("a"));
        assert_eq!((a.as_ref(), Borrow::<str>::borrow(&b)), ("a", "b"));
        assert_eq!((&*Utf8Bytes::default(), a.clone().into_bytes()), ("", Bytes::from_static(b"a")));
        let mut set = alloc::collections::BTreeSet::from([a]);
        assert!(set.contains("a") && set.insert(b) && set.contains("b"));
        let hash = |hash: &dyn Fn(&mut Fnv)| {
            let mut hasher = Fnv(0xcbf2_9ce4_8422_2325);
            hash(&mut hasher);
            hasher.finish()
        };
        assert_eq!(hash(&|hasher| Utf8Bytes::from("abc").hash(hasher)), hash(&|hasher| "abc".hash(hasher)));
    }

    struct Fnv(u64);

    impl Hasher for Fnv {
        fn finish(&self) -> u64 {
            self.0
        }

        fn write(&mut self, bytes: &[u8]) {
            for &byte in bytes {
                self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
            }
        }
    }
}
