//! The characters of field names and values (RFC 9113 §8.2.1, RFC 9110 §5.1 and §5.5).

/// Why a list of fields makes its message malformed (RFC 9113 §8.1.1: a stream error, PROTOCOL_ERROR).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Malformed {
    /// A field name is empty.
    NameEmpty,
    /// A field name contains a character that is not a lower-case token character.
    NameCharacter,
    /// A field value contains a control character other than a tab, for example NUL, CR or LF.
    ValueCharacter,
    /// A field value begins or ends with a space or a tab.
    ValueWhitespace,
}

impl Malformed {
    /// The bit of this rule in the flags of a table entry.
    pub(crate) const fn flag(self) -> u8 {
        1 << self as u8
    }

    /// The first rule among these flags.
    pub(crate) const fn from_flags(flags: u8) -> Self {
        match flags.trailing_zeros() {
            0 => Self::NameEmpty,
            1 => Self::NameCharacter,
            2 => Self::ValueCharacter,
            _ => Self::ValueWhitespace,
        }
    }
}

impl core::fmt::Display for Malformed {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::NameEmpty => "field name is empty",
            Self::NameCharacter => "field name has a character that is not allowed",
            Self::ValueCharacter => "field value has a control character",
            Self::ValueWhitespace => "field value begins or ends with whitespace",
        })
    }
}

impl core::error::Error for Malformed {}

/// RFC 9110 §5.6.2 `tchar` without A-Z (RFC 9113 §8.2.1).
pub(crate) const fn is_name_byte(byte: u8) -> bool {
    matches!(byte,
        b'a'..=b'z' | b'0'..=b'9' | b'!' | b'#' | b'$' | b'%' | b'&' | b'\'' | b'*' | b'+' | b'-' | b'.' | b'^'
        | b'_' | b'`' | b'|' | b'~')
}

/// RFC 9110 §5.5 `field-content`: VCHAR, obs-text, SP and HTAB. RFC 9113 §8.2.1 forbids NUL, CR and LF; the other
/// control characters are invalid as well.
pub(crate) const fn is_value_byte(byte: u8) -> bool {
    byte == b'\t' || (byte >= 0x20 && byte != 0x7f)
}

static NAME_BYTES: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = is_name_byte(byte as u8);
        byte += 1;
    }
    table
};

/// Checks a name. A leading colon is allowed; `message` checks the names of pseudo-fields.
pub(crate) fn check_name(name: &[u8]) -> Result<(), Malformed> {
    let rest = match name {
        // RFC 9113 §8.2.1 together with RFC 9110 §5.1: a name is a token, one character at least.
        [] | [b':'] => return Err(Malformed::NameEmpty),
        [b':', rest @ ..] => rest,
        _ => name,
    };
    // RFC 9113 §8.2.1: 0x00-0x20, 0x41-0x5a, 0x7f-0xff, ':' and characters that are not allowed in tokens are refused.
    if rest.iter().all(|&byte| NAME_BYTES[usize::from(byte)]) {
        Ok(())
    } else {
        Err(Malformed::NameCharacter)
    }
}

/// Checks a value.
pub(crate) fn check_value(value: &[u8]) -> Result<(), Malformed> {
    check_value_edges(value)?;
    if has_control(value) { Err(Malformed::ValueCharacter) } else { Ok(()) }
}

/// RFC 9113 §8.2.1: a value does not start or end with a space or a tab.
pub(crate) fn check_value_edges(value: &[u8]) -> Result<(), Malformed> {
    if let (Some(b' ' | b'\t'), _) | (_, Some(b' ' | b'\t')) = (value.first(), value.last()) {
        return Err(Malformed::ValueWhitespace);
    }
    Ok(())
}

const ONES: u64 = u64::MAX / 255;
const HIGHS: u64 = ONES << 7;

/// Whether one of eight bytes may be a control character. There are false positives, a tab among them: the caller checks again.
const fn may_hold_control(word: u64) -> bool {
    // A byte below 0x20 borrows into its own high bit; so does 0 = byte ^ 0x7f. A borrow can cause a false positive only in the
    // byte above a true one.
    let below_space = word.wrapping_sub(ONES * 0x20) & !word;
    let delete = word ^ (ONES * 0x7f);
    let delete = delete.wrapping_sub(ONES) & !delete;
    (below_space | delete) & HIGHS != 0
}

fn has_control(value: &[u8]) -> bool {
    let (words, tail) = value.as_chunks::<8>();
    for word in words {
        if may_hold_control(u64::from_le_bytes(*word)) {
            return has_control_slow(value);
        }
    }
    if let Some(last) = value.last_chunk::<8>() {
        return may_hold_control(u64::from_le_bytes(*last)) && has_control_slow(value);
    }
    has_control_slow(tail)
}

fn has_control_slow(value: &[u8]) -> bool {
    !value.iter().all(|&byte| is_value_byte(byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn names_are_lower_case_tokens() {
        // RFC 9113 §8.2.1: MUST NOT contain 0x00-0x20, 0x41-0x5a, 0x7f-0xff, nor a colon but the first.
        for byte in 0..=255_u8 {
            let allowed =
                byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"!#$%&'*+-.^_`|~".contains(&byte);
            assert_eq!(check_name(&[b'a', byte]).is_ok(), allowed, "{byte:#x}");
            assert_eq!(check_name(&[b':', byte]).is_ok(), allowed, "{byte:#x}");
            assert_eq!(check_name(&[byte]).is_ok(), allowed, "{byte:#x}");
        }
        assert_eq!(check_name(b""), Err(Malformed::NameEmpty));
        assert_eq!(check_name(b":"), Err(Malformed::NameEmpty));
        assert_eq!(check_name(b"a:b"), Err(Malformed::NameCharacter));
        assert_eq!(check_name(b"::b"), Err(Malformed::NameCharacter));
    }

    #[test]
    fn values_contain_no_control_characters_at_any_position() {
        // RFC 9113 §8.2.1: MUST NOT contain NUL, LF or CR at any position.
        for len in 3..40 {
            for at in 1..len - 1 {
                for byte in 0..=255_u8 {
                    let mut value = vec![b'v'; len];
                    value[at] = byte;
                    let allowed = byte == b'\t' || (byte >= b' ' && byte != 0x7f);
                    assert_eq!(check_value(&value).is_ok(), allowed, "{byte:#x} at {at} of {len}");
                }
            }
        }
        assert_eq!(check_value(b""), Ok(()));
    }

    #[test]
    fn values_are_not_padded() {
        // RFC 9113 §8.2.1: MUST NOT start or end with 0x20 or 0x09.
        for bad in [&b" "[..], b"\t", b" a", b"a ", b"\ta", b"a\t", b"  "] {
            assert_eq!(check_value(bad), Err(Malformed::ValueWhitespace));
        }
        assert_eq!(check_value(b"a b\tc"), Ok(()));
    }

    #[test]
    fn fast_check_equals_the_naive_one() {
        wireloom_testing::rounds(10_000, |random| {
            let value: vec::Vec<u8> = (0..random.usize(..70))
                .map(|_| if random.u8(..) < 250 { random.u8(0x20..0x7f) } else { random.u8(..) })
                .collect();
            assert_eq!(has_control(&value), has_control_slow(&value), "{}", value.escape_ascii());
        });
    }

    #[test]
    fn values_of_one_repeated_byte_are_checked() {
        // The check of eight bytes at once must not cancel out.
        for byte in 0..=255_u8 {
            let allowed = byte == b'\t' || (byte >= b' ' && byte != 0x7f);
            assert_eq!(has_control(&[byte; 16]), !allowed, "{byte:#x}");
        }
    }
}
