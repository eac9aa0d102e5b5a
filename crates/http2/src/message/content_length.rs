//! `content-length` against the DATA that come (RFC 9113 §8.1.1, RFC 9110 §8.6).

use crate::error::Violation;

/// How many bytes of content are still to come, if that was announced; one number, for a stream to hold.
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
    /// Nothing was announced: any amount may come. (No content is 16 EiB long.)
    pub const UNKNOWN: Self = Self(u64::MAX);
    /// No content may come.
    pub const NOTHING: Self = Self(0);

    /// This many bytes are still to come.
    pub const fn bytes(len: u64) -> Self {
        Self(len)
    }

    /// How many bytes are to come; `None` when that is not known.
    pub const fn get(self) -> Option<u64> {
        match self {
            Self::UNKNOWN => None,
            Self(len) => Some(len),
        }
    }

    /// Takes the value of `content-length`; a repetition must have the same value.
    ///
    /// # Errors
    /// [`Violation::ContentLengthInvalid`]
    pub(crate) fn announce(&mut self, value: &[u8]) -> Result<(), Violation> {
        // RFC 9110 §8.6: digits and nothing else; several that differ are an unrecoverable error.
        match parse_digits(value).filter(|&len| len != u64::MAX) {
            Some(len) if *self == Self::UNKNOWN || *self == Self(len) => {
                *self = Self(len);
                Ok(())
            }
            _ => Err(Violation::ContentLengthInvalid),
        }
    }

    /// Counts the content of a DATA frame, padding not included.
    ///
    /// # Errors
    /// [`Violation::ContentLengthMismatch`] when it is more than announced.
    #[inline]
    pub fn receive(&mut self, len: usize) -> Result<(), Violation> {
        if *self == Self::UNKNOWN {
            return Ok(());
        }
        // RFC 9113 §8.1.1: malformed if content-length does not equal the sum of the DATA.
        self.0 = self.0.checked_sub(len as u64).ok_or(Violation::ContentLengthMismatch)?;
        Ok(())
    }

    /// Checks that nothing is left, when the message ends.
    ///
    /// # Errors
    /// [`Violation::ContentLengthMismatch`] when less came than announced.
    #[inline]
    pub const fn end(self) -> Result<(), Violation> {
        match self {
            Self::UNKNOWN | Self::NOTHING => Ok(()),
            _ => Err(Violation::ContentLengthMismatch),
        }
    }
}

/// A number in digits; `None` for anything else, and above 2^64-1.
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
    fn numbers_are_digits() {
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
    fn data_must_add_up() {
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
