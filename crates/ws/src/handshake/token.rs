//! The `token` of HTTP (RFC 9110 §5.6.2, the same as RFC 2616 §2.2), which names header fields, subprotocols and extensions,
//! comma-separated lists (RFC 2616 §2.1), and the fields that belong to one connection.

const TOKEN: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0x21;
    while byte < 0x7F {
        // RFC 9110 §5.6.2: any visible character except delimiters.
        table[byte] = !matches!(
            byte as u8,
            b'"' | b'(' | b')' | b',' | b'/' | b':'..=b'@' | b'[' | b'\\' | b']' | b'{' | b'}'
        );
        byte += 1;
    }
    table
};

/// Whether a token may contain this byte (RFC 9110 §5.6.2): the names of methods and fields are tokens.
pub fn is_token_byte(byte: u8) -> bool {
    TOKEN[usize::from(byte)]
}

/// Whether this is a token (RFC 9110 §5.6.2): at least one byte, all of them token bytes.
pub fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().all(|&byte| is_token_byte(byte))
}

/// The elements of a comma-separated list, trimmed.
///
/// RFC 2616 §2.1: null elements are allowed and do not count, so they are left out.
pub(crate) fn list(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|&byte| byte == b',').map(<[u8]>::trim_ascii).filter(|element| !element.is_empty())
}

/// Whether a comma-separated list contains this element, in any case.
#[inline(never)]
pub(crate) fn list_contains(value: &[u8], element: &str) -> bool {
    let is_element = |candidate: &[u8]| candidate.eq_ignore_ascii_case(element.as_bytes());
    // Most lists are nothing but the element.
    is_element(value) || list(value).any(is_element)
}

/// Whether a header field may have this value (RFC 9110 §5.5): no control byte except the tab, so that it can neither end its line
/// (CR, LF) nor be truncated by a reader in C (NUL).
pub fn is_field_value(bytes: &[u8]) -> bool {
    // Without a branch on each byte this is a vector loop.
    !bytes.iter().fold(false, |bad, &byte| bad | (byte != b'\t' && byte.is_ascii_control()))
}

/// Fields that describe one connection of HTTP/1.1: a proxy does not forward them (RFC 9110 §7.6.1), and HTTP/2 forbids them, except
/// `TE: trailers` in a request (RFC 9113 §8.2.2).
pub(super) const CONNECTION_SPECIFIC: [&str; 6] =
    ["connection", "keep-alive", "proxy-connection", "te", "transfer-encoding", "upgrade"];

/// Whether a field belongs to one connection, so that a proxy does not forward it (RFC 9110 §7.6.1) and no response of HTTP/2 has it
/// (RFC 9113 §8.2.2). Names match in any case.
pub fn is_connection_specific(name: &[u8]) -> bool {
    CONNECTION_SPECIFIC.iter().any(|known| name.eq_ignore_ascii_case(known.as_bytes()))
}

/// As [`is_connection_specific`], of a request: a client may announce over HTTP/2 too that it accepts trailers.
pub fn is_connection_specific_request_field(name: &[u8], value: &[u8]) -> bool {
    is_connection_specific(name)
        && !(name.eq_ignore_ascii_case(b"te") && value.eq_ignore_ascii_case(b"trailers"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_a_connection_are_known_in_any_case() {
        for name in CONNECTION_SPECIFIC.map(str::as_bytes) {
            assert!(is_connection_specific(name) && is_connection_specific(&name.to_ascii_uppercase()));
            assert!(is_connection_specific_request_field(name, b"1"));
        }
        assert!(!is_connection_specific(b"host") && !is_connection_specific(b"keep-alive2"));
        assert!(!is_connection_specific_request_field(b"TE", b"Trailers"));
        assert!(is_connection_specific_request_field(b"upgrade", b"trailers"));
    }

    #[test]
    fn tokens_contain_the_characters_of_the_rfc() {
        // RFC 9110 §5.6.2, written out.
        let tchar = b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
        for byte in 0..=255 {
            assert_eq!(is_token_byte(byte), tchar.contains(&byte), "{byte:#04x}");
        }
        assert!(is_token(b"permessage-deflate"));
        assert!(!is_token(b""));
        assert!(!is_token(b"a b"));
    }

    #[test]
    fn lists_leave_out_null_elements() {
        assert!(list(b" , a ,\t,b c,").eq([&b"a"[..], b"b c"]));
        assert_eq!(list(b" \t ").count(), 0);
        assert!(list_contains(b"keep-alive, UPGRADE", "upgrade"));
        assert!(!list_contains(b"upgrades, \"upgrade\"", "upgrade"));
    }
}
