//! `Sec-WebSocket-Key` and the `Sec-WebSocket-Accept` that answers it (RFC 6455 §1.3, §4.2.2).
//!
//! It protects no secret: it only shows that the other end speaks WebSocket. SHA-1 and base64 are libraries.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha1::{Digest as _, Sha1};

/// RFC 6455 §1.3: a suffix that no other protocol appends to a key.
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// The `Sec-WebSocket-Accept` that answers this `Sec-WebSocket-Key`, given in base64 as it was sent.
///
/// ```
/// // RFC 6455 §1.3.
/// let accept = wireloom_ws::handshake::accept_key(b"dGhlIHNhbXBsZSBub25jZQ==");
/// assert_eq!(&accept, b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
/// ```
pub fn accept_key(key: &[u8]) -> [u8; 28] {
    // RFC 6455 §4.2.2: SHA-1 of the key's text and the GUID, in base64.
    let digest = Sha1::new().chain_update(key).chain_update(GUID).finalize();
    let mut accept = [0; 28];
    let written = STANDARD.encode_slice(digest, &mut accept);
    debug_assert_eq!(written, Ok(28));
    accept
}

/// The `Sec-WebSocket-Key` of this nonce.
pub(crate) fn key(nonce: [u8; 16]) -> [u8; 24] {
    let mut key = [0; 24];
    let written = STANDARD.encode_slice(nonce, &mut key);
    debug_assert_eq!(written, Ok(24));
    key
}

/// Whether this decodes to 16 bytes (RFC 6455 §4.2.1). The RFC does not restrict the four unused bits of the last digit, and some
/// clients send 22 random digits.
pub(crate) fn is_key(key: &[u8]) -> bool {
    let digit = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
    key.len() == 24 && key[..22].iter().all(digit) && key[22..] == *b"=="
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_the_key_of_the_rfc() {
        // RFC 6455 §4.1, §1.3: the nonce 0x01..0x10, and the sample nonce.
        assert_eq!(&key(core::array::from_fn(|i| i as u8 + 1)), b"AQIDBAUGBwgJCgsMDQ4PEA==");
        assert_eq!(&key(*b"the sample nonce"), b"dGhlIHNhbXBsZSBub25jZQ==");
        assert_eq!(&accept_key(b"dGhlIHNhbXBsZSBub25jZQ=="), b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }

    #[test]
    fn keys_are_sixteen_bytes_in_base64() {
        assert!(is_key(b"dGhlIHNhbXBsZSBub25jZQ=="));
        assert!(is_key(b"+/AAAAAAAAAAAAAAAAAAAA=="));
        assert!(is_key(b"AAAAAAAAAAAAAAAAAAAAAB=="), "the unused bits are not checked");
        for not in [
            &b""[..],
            b"dGhlIHNhbXBsZSBub25jZQ",
            b"dGhlIHNhbXBsZSBub25jZQ=",
            b"dGhlIHNhbXBsZSBub25jZTE=",
            b"dGhlIHNhbXBsZSBub25jZTEy",
            b"dGhlIHNhbXBsZSBub25j====",
            b"dGhlIHNhbXBsZSBub25jZQ==A",
            b"-_AAAAAAAAAAAAAAAAAAAA==",
            b"dGhlIHNhbXBs SBub25jZQ==",
            b"\xFFGhlIHNhbXBsZSBub25jZQ==",
        ] {
            assert!(!is_key(not), "{not:?}");
        }
        wireloom_testing::rounds(500, |rng| {
            let nonce = rng.bytes(16).try_into().unwrap();
            assert!(is_key(&key(nonce)));
        });
    }
}
