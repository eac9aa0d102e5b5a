//! Secrets in heads: which fields and parameters contain them. A masked value keeps its length, so that offsets do not
//! change.

use crate::entry::{Entry, Payload};

/// Parts of the names of fields and parameters whose values are secret.
const NAMES: [&str; 12] = [
    "authorization",
    "cookie",
    "authentication-info",
    "token",
    "secret",
    "password",
    "passwd",
    "api-key",
    "api_key",
    "apikey",
    "session",
    "signature",
];

/// Names of parameters that are secret only if the whole name matches, because they are short. `cf_connect` is the connect command
/// of a Centrifugal client, which contains its token.
const PARAMETERS: [&str; 7] = ["auth", "key", "sig", "jwt", "code", "ticket", "cf_connect"];

/// The byte that replaces each byte of a secret.
pub(crate) const MASK: u8 = b'*';

/// Whether the value of a header field with this name is a secret.
pub fn is_secret_field(name: &[u8]) -> bool {
    let name = name.to_ascii_lowercase();
    NAMES.iter().any(|secret| name.windows(secret.len()).any(|part| part == secret.as_bytes()))
}

/// Whether the value of a parameter of a URL with this name is a secret.
fn is_secret_parameter(name: &[u8]) -> bool {
    is_secret_field(name) || PARAMETERS.iter().any(|secret| name.eq_ignore_ascii_case(secret.as_bytes()))
}

/// Masks the secrets in a target of a request, or in a URL: credentials before the host, and parameters of the query and of the
/// fragment, in which OAuth returns tokens (RFC 6749 §4.2.2).
pub fn mask_target(target: &mut [u8]) {
    if let Some(scheme) = target.windows(3).position(|part| part == b"://") {
        let authority = &mut target[scheme + 3..];
        let end =
            authority.iter().position(|byte| matches!(byte, b'/' | b'?' | b'#')).unwrap_or(authority.len());
        if let Some(at) = authority[..end].iter().rposition(|&byte| byte == b'@') {
            authority[..at].fill(MASK);
        }
    }
    let Some(begin) = target.iter().position(|byte| matches!(byte, b'?' | b'#')) else { return };
    for parameter in target[begin + 1..].split_mut(|byte| matches!(byte, b'&' | b';' | b'#' | b' ')) {
        if let Some(equals) = parameter.iter().position(|&byte| byte == b'=') {
            let (name, value) = parameter.split_at_mut(equals);
            if is_secret_parameter(name) {
                value[1..].fill(MASK);
            }
        }
    }
}

/// Masks the value of a field, if it is a secret.
pub(crate) fn mask_field(name: &[u8], value: &mut [u8]) {
    if is_secret_field(name) {
        value.fill(MASK);
    } else if name == b":path"
        || name.eq_ignore_ascii_case(b"referer")
        || name.eq_ignore_ascii_case(b"location")
    {
        mask_target(value);
    }
}

fn mask_text(text: &mut String, mask: impl Fn(&mut [u8])) {
    let mut bytes = std::mem::take(text).into_bytes();
    mask(&mut bytes);
    // Part of a multi-byte character may have been replaced.
    *text = String::from_utf8_lossy(&bytes).into_owned();
}

impl Entry {
    /// Masks credentials, cookies and tokens in heads.
    pub fn mask_secrets(&mut self) {
        let Payload::Fields { start, fields } = &mut self.payload else { return };
        mask_text(start, mask_target);
        for (name, value) in fields {
            mask_field(name, value);
        }
        for detail in &mut self.details {
            let name = detail.name.as_bytes();
            if name == b"target" {
                mask_text(&mut detail.value, mask_target);
            } else {
                mask_text(&mut detail.value, |value| mask_field(name, value));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masked(target: &str) -> String {
        let mut bytes = target.as_bytes().to_vec();
        mask_target(&mut bytes);
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn masks_parameters_and_credentials_of_urls() {
        assert_eq!(masked("/a?token=abc&x=1&Auth=q"), "/a?token=***&x=1&Auth=*");
        assert_eq!(masked("wss://u:p@host/a?x=1"), "wss://***@host/a?x=1");
        assert_eq!(
            masked("GET /chat?access_token=é&keys=1 HTTP/1.1"),
            "GET /chat?access_token=**&keys=1 HTTP/1.1"
        );
        assert_eq!(masked("GET /a?token=abc HTTP/1.1"), "GET /a?token=*** HTTP/1.1");
        assert_eq!(masked("https://host/a#access_token=abc&x=1"), "https://host/a#access_token=***&x=1");
        assert_eq!(masked("/a?x=1#access_token=abc"), "/a?x=1#access_token=***");
        // The connect command of SSE, whose token is within percent-encoded JSON.
        let connect = "GET /connection/sse?x=1&cf_connect=%7B%22token%22%3A%22abc%22%7D HTTP/1.1";
        let hidden = connect.replace("%7B%22token%22%3A%22abc%22%7D", &"*".repeat(29));
        assert_eq!(masked(connect), hidden);
        assert_eq!(masked("/plain"), "/plain");
    }

    #[test]
    fn knows_secret_fields() {
        for name in
            ["Authorization", "proxy-authorization", "Cookie", "set-cookie", "X-Api-Key", "x-auth-token"]
        {
            assert!(is_secret_field(name.as_bytes()), "{name}");
        }
        for name in ["host", "sec-websocket-key", "sec-websocket-protocol", "origin"] {
            assert!(!is_secret_field(name.as_bytes()), "{name}");
        }
    }
}
