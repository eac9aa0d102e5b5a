//! Identifiers that cannot be guessed, from the operating system's source of randomness.

use std::hash::{BuildHasher as _, RandomState};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// A UUID, version 4 (RFC 9562 §5.4). Each connection has one.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Uuid([u8; 16]);

/// The text of a [`Uuid`], in place.
pub(crate) struct UuidText([u8; 36]);

impl Uuid {
    pub(crate) fn new() -> Self {
        let mut bytes: [u8; 16] = random();
        bytes[6] = bytes[6] & 0x0f | 0x40;
        bytes[8] = bytes[8] & 0x3f | 0x80;
        Self(bytes)
    }

    /// The same, but with a number in it that only [`number`](Self::number) can read: it is masked by a keyed hash of the other bits, of
    /// which 90 are random.
    pub(crate) fn with_number(self, number: u32, key: &RandomState) -> Self {
        let mut bytes = self.0;
        bytes[..4].copy_from_slice(&(number ^ self.mask(key)).to_be_bytes());
        Self(bytes)
    }

    /// The number in an id that was made with this key; any number for others.
    pub(crate) fn number(self, key: &RandomState) -> u32 {
        let [a, b, c, d, ..] = self.0;
        u32::from_be_bytes([a, b, c, d]) ^ self.mask(key)
    }

    fn mask(self, key: &RandomState) -> u32 {
        key.hash_one(&self.0[4..]) as u32
    }

    pub(crate) fn text(self) -> UuidText {
        let mut text = [b'-'; 36];
        let places = (0..36).filter(|place| ![8, 13, 18, 23].contains(place));
        let digits = self.0.iter().flat_map(|byte| [byte >> 4, byte & 0x0f]);
        for (place, digit) in places.zip(digits) {
            text[place] = b"0123456789abcdef"[usize::from(digit)];
        }
        UuidText(text)
    }

    /// The one with this [`text`](Self::text), which has no capital letters.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut bytes = [0; 16];
        let digits = text.bytes().filter(|byte| *byte != b'-').take(32);
        for (place, digit) in digits.enumerate() {
            bytes[place / 2] = bytes[place / 2] << 4 | char::from(digit).to_digit(16)? as u8;
        }
        Some(Self(bytes)).filter(|id| *id.text() == *text)
    }
}

impl std::ops::Deref for UuidText {
    type Target = str;

    fn deref(&self) -> &str {
        // It is ASCII.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl std::fmt::Display for Uuid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text())
    }
}

impl serde::Serialize for Uuid {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text())
    }
}

impl std::fmt::Debug for Uuid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text())
    }
}

/// The length of a [`token`].
#[cfg(feature = "nats")]
pub(crate) const TOKEN_LEN: usize = 8;

/// A short name, for epochs and nodes.
pub(crate) fn token() -> String {
    URL_SAFE_NO_PAD.encode(random::<6>())
}

/// A secret of 256 bits, used in place of a password.
pub(crate) fn secret() -> String {
    URL_SAFE_NO_PAD.encode(random::<32>())
}

/// A number from 0 to 1.
#[cfg(feature = "client")]
pub(crate) fn fraction() -> f64 {
    f64::from(u32::from_le_bytes(random())) / f64::from(u32::MAX)
}

fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    // Without a source of randomness no id is safe: panic.
    getrandom::getrandom(&mut bytes).expect("the operating system's source of randomness");
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_hidden_in_a_uuid() {
        let keys = [RandomState::new(), RandomState::new()];
        let ids = [0, 1, 2, u32::MAX].map(|number| (number, Uuid::new().with_number(number, &keys[0])));
        for (number, id) in ids {
            assert_eq!(id.number(&keys[0]), number);
            assert_eq!(Uuid::parse(&id.text()), Some(id));
        }
        assert!(ids.iter().any(|(number, id)| id.number(&keys[1]) != *number));
    }

    #[test]
    fn a_uuid_has_the_form_of_version_4() {
        let (one, other) = (Uuid::new(), Uuid::new());
        assert_ne!(one, other);
        for id in [one.text(), other.text()] {
            let id = &*id;
            let parts: Vec<_> = id.split('-').collect();
            assert_eq!(parts.iter().map(|part| part.len()).collect::<Vec<_>>(), [8, 4, 4, 4, 12], "{id}");
            assert!(parts.concat().bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')), "{id}");
            assert_eq!(Uuid::parse(id).map(|id| id.to_string()).as_deref(), Some(id));
            let capital = "01234567-89AB-4000-8000-000000000000";
            for other in
                [capital, &id[1..], &format!("{id}0"), &id.replace('-', ""), &id.replacen('4', "g", 1), ""]
            {
                assert_eq!(Uuid::parse(other), None, "{other}");
            }
            assert!(parts[2].starts_with('4') && parts[3].starts_with(['8', '9', 'a', 'b']), "{id}");
        }
    }
}
