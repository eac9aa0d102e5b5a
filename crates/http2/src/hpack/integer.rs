//! Integers with a prefix (RFC 7541 §5.1).
//!
//! ```text
//!   0   1   2   3   4   5   6   7
//! +---+---+---+---+---+---+---+---+
//! | flags     | prefix, all ones  |   value >= 2^N - 1: the remainder follows,
//! +---+---+---+-------------------+
//! | 1 |  7 bits, lowest first     |   as many as needed,
//! +---+---------------------------+
//! | 0 |  the highest 7 bits       |   the last without the high bit
//! +---+---------------------------+
//! ```
//!
//! Values have 32 bits, which need at most five bytes after the prefix.

use super::DecodeError;

/// The maximum length of an encoded integer, in bytes.
pub const LEN_MAX: usize = 6;

/// Decodes an integer that begins with `first` and continues in `rest`; `prefix` is the mask of the prefix (2^N - 1).
///
/// # Errors
/// [`DecodeError::Truncated`] and [`DecodeError::IntegerOverflow`].
#[inline]
pub fn decode(first: u8, prefix: u8, rest: &mut &[u8]) -> Result<u32, DecodeError> {
    let value = first & prefix;
    if value < prefix { Ok(u32::from(value)) } else { decode_continuation(prefix, rest) }
}

fn decode_continuation(prefix: u8, rest: &mut &[u8]) -> Result<u32, DecodeError> {
    let mut value = u64::from(prefix);
    // RFC 7541 §5.1: encodings that exceed limits, in value or in octets, MUST be treated as decoding errors.
    for shift in [0, 7, 14, 21, 28] {
        let (&byte, after) = rest.split_first().ok_or(DecodeError::Truncated)?;
        *rest = after;
        value += u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return u32::try_from(value).map_err(|_| DecodeError::IntegerOverflow);
        }
    }
    Err(DecodeError::IntegerOverflow)
}

/// Writes an integer with the flags above its prefix and returns its length, at most [`LEN_MAX`].
#[inline]
pub fn encode(flags: u8, prefix: u8, value: u32, out: &mut [u8; LEN_MAX]) -> usize {
    if value < u32::from(prefix) {
        out[0] = flags | value as u8;
        return 1;
    }
    out[0] = flags | prefix;
    let mut value = value - u32::from(prefix);
    let mut len = 1;
    while value >= 0x80 {
        out[len] = value as u8 | 0x80;
        value >>= 7;
        len += 1;
    }
    out[len] = value as u8;
    len + 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn encoded(flags: u8, prefix: u8, value: u32) -> Vec<u8> {
        let mut out = [0; LEN_MAX];
        let len = encode(flags, prefix, value, &mut out);
        out[..len].to_vec()
    }

    fn decoded(prefix: u8, bytes: &[u8]) -> Result<(u32, usize), DecodeError> {
        let (&first, mut rest) = bytes.split_first().unwrap();
        decode(first, prefix, &mut rest).map(|value| (value, bytes.len() - rest.len()))
    }

    #[test]
    fn matches_the_examples() {
        // RFC 7541 C.1.1, C.1.2 and C.1.3.
        for (prefix, value, bytes) in [(31, 10, &[0b01010][..]), (31, 1337, &[31, 154, 10]), (255, 42, &[42])]
        {
            assert_eq!(encoded(0, prefix, value), bytes);
            assert_eq!(decoded(prefix, bytes), Ok((value, bytes.len())));
        }
    }

    #[test]
    fn round_trips_at_every_prefix() {
        for bits in 1..=8 {
            let prefix = (0xff_u16 >> (8 - bits)) as u8;
            for power in 0..=32 {
                for near in -2..=2_i64 {
                    let Ok(value) = u32::try_from((1_i64 << power) + near) else { continue };
                    let bytes = encoded(!prefix, prefix, value);
                    assert_eq!(bytes[0] & !prefix, !prefix);
                    assert_eq!(decoded(prefix, &bytes), Ok((value, bytes.len())));
                }
            }
        }
    }

    #[test]
    fn refuses_integers_above_32_bits() {
        // RFC 7541 §5.1: encodings that exceed implementation limits, in value or octet length, MUST be refused.
        assert_eq!(decoded(31, &[31, 0xe0, 0xff, 0xff, 0xff, 0x0f]), Ok((u32::MAX, 6)));
        assert_eq!(decoded(31, &[31, 0xe1, 0xff, 0xff, 0xff, 0x0f]), Err(DecodeError::IntegerOverflow));
        assert_eq!(decoded(31, &[31, 0xff, 0xff, 0xff, 0xff, 0x7f]), Err(DecodeError::IntegerOverflow));
        assert_eq!(decoded(31, &[31, 0x80, 0x80, 0x80, 0x80, 0x80, 0]), Err(DecodeError::IntegerOverflow));
        assert_eq!(decoded(127, &[127, 0xff, 0xff, 0xff, 0xff, 0xff]), Err(DecodeError::IntegerOverflow));
    }

    #[test]
    fn refuses_truncated_integers() {
        let whole = [31, 0xe0, 0xff, 0xff, 0xff, 0x0f];
        for len in 1..whole.len() {
            assert_eq!(decoded(31, &whole[..len]), Err(DecodeError::Truncated));
        }
    }
}
