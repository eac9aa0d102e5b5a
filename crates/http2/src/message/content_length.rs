//! [`ContentLeft`]: compares `content-length` with the length of the DATA (RFC 9113 §8.1.1, RFC 9110 §8.6).

use crate::error::Violation;

/// The announced content of a message that has not been received or sent yet, in bytes.
///
/// ```
/// use wireloom_http2::message::ContentLeft;
///
/// let mut left = ContentLeft::bytes(5);
/// left.receive(3)?;
/// assert!(left.end().is_err());
/// left.receive(2)?;
/// left.end()?;
/// # Ok::<(), wireloom_http2::error::Violation>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContentLeft(u64);

impl ContentLeft {
    /// No length was announced: any amount is allowed. (No content is 16 EiB long.)
    pub const UNKNOWN: Self = Self(u64::MAX);
    /// No content is allowed.
    pub const NOTHING: Self = Self(0);

    /// This many bytes remain.
    pub const fn bytes(len: u64) -> Self {
        Self(len)
    }

    /// The number of remaining bytes; `None` if it is not known.
    pub const fn get(self) -> Option<u64> {
        match self {
            Self::UNKNOWN => None,
            Self(len) => Some(len),
        }
    }

    /// Applies the value of a `content-length` field. Repeated fields must have the same value.
    ///
    /// # Errors
    /// [`Violation::ContentLengthInvalid`]
    pub(crate) fn announce(&mut self, value: &[u8]) -> Result<(), Violation> {
        // RFC 9110 §8.6: only digits. Several fields that differ are an unrecoverable error.
        match parse_digits(value).filter(|&len| len != u64::MAX) {
            Some(len) if *self == Self::UNKNOWN || *self == Self(len) => {
                *self = Self(len);
                Ok(())
            }
            _ => Err(Violation::ContentLengthInvalid),
        }
    }

    /// Counts the content of a DATA frame without its padding.
    ///
    /// # Errors
    /// [`Violation::ContentLengthMismatch`] if there is more than announced.
    #[inline]
    pub fn receive(&mut self, len: usize) -> Result<(), Violation> {
        if *self == Self::UNKNOWN {
            return Ok(());
        }
        // RFC 9113 §8.1.1: a message is malformed if content-length differs from the sum of the DATA.
        self.0 = self.0.checked_sub(len as u64).ok_or(Violation::ContentLengthMismatch)?;
        Ok(())
    }

    /// Checks that no content is missing at the end of the message.
    ///
    /// # Errors
    /// [`Violation::ContentLengthMismatch`] if there was less than announced.
    #[inline]
    pub const fn end(self) -> Result<(), Violation> {
        match self {
            Self::UNKNOWN | Self::NOTHING => Ok(()),
            _ => Err(Violation::ContentLengthMismatch),
        }
    }
}

/// Parses decimal digits; `None` for other characters, and above 2^64-1.
pub(super) fn parse_digits(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0_u64, |number, byte| {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        number.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_only_digits() {
        assert_eq!(parse_digits(b"0"), Some(0));
        assert_eq!(parse_digits(b"0042"), Some(42));
        assert_eq!(parse_digits(b"18446744073709551615"), Some(u64::MAX));
        for bad in
            [&b""[..], b"-1", b"+1", b" 1", b"1 ", b"0x1", b"1.0", b"1,1", b"18446744073709551616", b"\xb2"]
        {
            assert_eq!(parse_digits(bad), None, "{}", bad.escape_ascii());
        }
    }

    #[test]
    fn the_sum_of_data_must_be_the_announced_length() {
        // RFC 9113 §8.1.1
        let mut left = ContentLeft::bytes(10);
        assert_eq!((left.get(), ContentLeft::UNKNOWN.get()), (Some(10), None));
        assert_eq!(left.receive(0), Ok(()));
        assert_eq!(left.receive(9), Ok(()));
        assert_eq!(left.end(), Err(Violation::ContentLengthMismatch));
        assert_eq!(left.receive(2), Err(Violation::ContentLengthMismatch));
        assert_eq!(left.receive(1), Ok(()));
        assert_eq!(left.end(), Ok(()));
        assert_eq!(left.receive(1), Err(Violation::ContentLengthMismatch));
        let mut unknown = ContentLeft::UNKNOWN;
        assert_eq!(unknown.receive(usize::MAX), Ok(()));
        assert_eq!(unknown.end(), Ok(()));
    }
}
