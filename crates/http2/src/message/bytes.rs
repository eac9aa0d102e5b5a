//! The bytes that are allowed in the parts of a message.

/// Bytes of a token (RFC 9110 §5.6.2), such as a method or a protocol.
const TOKEN: u8 = 1;
/// Bytes of a scheme (RFC 3986 §3.1).
const SCHEME: u8 = 2;
/// Bytes of a registered name (RFC 3986 §3.2.2) except percent-encoding.
const REG_NAME: u8 = 4;
/// Bytes of a path and a query (RFC 3986 §3.3, §3.4): visible ASCII except `#`. Clients send characters that should be
/// percent-encoded, which are harmless. A space, a fragment or a byte above ASCII could be misinterpreted.
const PATH: u8 = 8;

static CLASSES: [u8; 256] = {
    let mut classes = [0; 256];
    let mut at = 0;
    while at < 256 {
        let byte = at as u8;
        let alphanumeric = byte.is_ascii_alphanumeric();
        if alphanumeric || contains(byte, b"!#$%&'*+-.^_`|~") {
            classes[at] |= TOKEN;
        }
        if alphanumeric || contains(byte, b"+-.") {
            classes[at] |= SCHEME;
        }
        if alphanumeric || contains(byte, b"-._~!$&'()*+,;=") {
            classes[at] |= REG_NAME;
        }
        if byte.is_ascii_graphic() && byte != b'#' {
            classes[at] |= PATH;
        }
        at += 1;
    }
    classes
};

const fn contains(byte: u8, set: &[u8]) -> bool {
    let mut at = 0;
    while at < set.len() {
        if set[at] == byte {
            return true;
        }
        at += 1;
    }
    false
}

#[inline]
fn all(bytes: &[u8], class: u8) -> bool {
    bytes.iter().all(|&byte| CLASSES[usize::from(byte)] & class != 0)
}

pub(super) fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && all(bytes, TOKEN)
}

pub(super) fn is_scheme(bytes: &[u8]) -> bool {
    bytes.first().is_some_and(u8::is_ascii_alphabetic) && all(bytes, SCHEME)
}

/// A host and an optional port (RFC 3986 §3.2), without user information. RFC 9110 §4.2.1: the host is not empty.
pub(super) fn is_authority(bytes: &[u8]) -> bool {
    let host_len = match bytes {
        [b'[', ..] => ip_literal_len(bytes),
        _ => reg_name_len(bytes),
    };
    match bytes.split_at(host_len) {
        ([], _) => false,
        (_, []) => true,
        // RFC 3986 §3.2.3: port = *DIGIT
        (_, [b':', port @ ..]) => port.iter().all(u8::is_ascii_digit),
        _ => false,
    }
}

/// The length of the registered name at the beginning.
#[inline]
fn reg_name_len(bytes: &[u8]) -> usize {
    let mut at = 0;
    loop {
        let rest = &bytes[at..];
        let other = rest.iter().position(|&byte| CLASSES[usize::from(byte)] & REG_NAME == 0);
        let Some(len) = other else { return bytes.len() };
        at += len;
        match rest[len..] {
            // RFC 3986 §2.1: percent-encoding.
            [b'%', high, low, ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => at += 3,
            _ => return at,
        }
    }
}

/// The length of the IP literal at the beginning, with its brackets (RFC 3986 §3.2.2); 0 if it is invalid.
#[cold]
fn ip_literal_len(bytes: &[u8]) -> usize {
    let Some(end) = bytes.iter().position(|&byte| byte == b']') else { return 0 };
    let inside = &bytes[1..end];
    let is_valid = match inside {
        // IPvFuture
        [b'v' | b'V', rest @ ..] => match rest.iter().position(|&byte| byte == b'.') {
            Some(dot) => {
                let (version, address) = (&rest[..dot], &rest[dot + 1..]);
                !version.is_empty()
                    && version.iter().all(u8::is_ascii_hexdigit)
                    && !address.is_empty()
                    && address.iter().all(|&byte| byte == b':' || CLASSES[usize::from(byte)] & REG_NAME != 0)
            }
            None => false,
        },
        _ => core::str::from_utf8(inside).is_ok_and(|text| text.parse::<core::net::Ipv6Addr>().is_ok()),
    };
    if is_valid { end + 1 } else { 0 }
}

pub(super) fn is_path(bytes: &[u8]) -> bool {
    all(bytes, PATH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_a_byte_anywhere_in_a_set() {
        for (set, expected) in
            [(&b"abc"[..], true), (b"xab", true), (b"bca", true), (b"bc", false), (b"", false)]
        {
            assert_eq!(contains(b'a', set), expected, "{}", set.escape_ascii());
        }
    }

    #[test]
    fn classes_are_those_of_the_rfcs() {
        for byte in 0..=255_u8 {
            let alphanumeric = byte.is_ascii_alphanumeric();
            assert_eq!(is_token(&[byte]), alphanumeric || b"!#$%&'*+-.^_`|~".contains(&byte), "{byte:#x}");
            assert_eq!(is_scheme(&[b'a', byte]), alphanumeric || b"+-.".contains(&byte), "{byte:#x}");
            assert_eq!(is_scheme(&[byte]), byte.is_ascii_alphabetic(), "{byte:#x}");
            let unreserved_or_sub_delim = b"-._~!$&'()*+,;=".contains(&byte);
            // A colon begins an empty port.
            let authority = alphanumeric || unreserved_or_sub_delim || byte == b':';
            assert_eq!(is_authority(&[b'a', byte]), authority, "{byte:#x}");
            assert_eq!(is_path(&[byte]), !matches!(byte, 0..=b' ' | b'#' | 0x7f..), "{byte:#x}");
        }
        assert!(!is_token(b"") && !is_scheme(b"") && !is_authority(b"") && !is_authority(b":80"));
    }
}
