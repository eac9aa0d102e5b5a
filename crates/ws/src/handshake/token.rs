//! The `token` of HTTP, which names header fields, subprotocols and extensions.
//!
//! It owns the alphabet (RFC 9110 §5.6.2, the same as RFC 2616 §2.2) and refuses to know what any token means.

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

/// Whether a token may hold this byte.
pub(crate) fn is_token_byte(byte: u8) -> bool {
    TOKEN[usize::from(byte)]
}

/// Whether this is a token: at least one byte, all of them token bytes.
pub(crate) fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().all(|&byte| is_token_byte(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_hold_the_characters_of_the_rfc() {
        // RFC 9110 §5.6.2, written out.
        let tchar = b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
        for byte in 0..=255 {
            assert_eq!(is_token_byte(byte), tchar.contains(&byte), "{byte:#04x}");
        }
        assert!(is_token(b"permessage-deflate"));
        assert!(!is_token(b""));
        assert!(!is_token(b"a b"));
    }
}
