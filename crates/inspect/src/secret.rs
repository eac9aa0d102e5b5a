//! Secrets in heads: which fields and parameters contain them. A masked value keeps its length, so that offsets do not
//! change.

use crate::entry::{Entry, Payload, Protocol};

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

/// Whether the value of a header field with this name is a target of a request, or a URL.
pub fn is_target_field(name: &[u8]) -> bool {
    const TARGETS: [&[u8]; 4] = [b":path", b"referer", b"location", b"content-location"];
    TARGETS.iter().any(|target| name.eq_ignore_ascii_case(target))
}

/// Masks the secrets in the value of a header field.
pub fn mask_field(name: &[u8], value: &mut [u8]) {
    if is_secret_field(name) {
        value.fill(MASK);
    } else if is_target_field(name) {
        mask_target(value);
    } else if name.eq_ignore_ascii_case(b"sec-websocket-protocol") {
        mask_subprotocols(value);
    }
}

/// Masks tokens in a list of subprotocols. A page cannot set other fields for a WebSocket, so that some servers take their tokens from
/// this one: `base64url.bearer.authorization.k8s.io.TOKEN`, or a name and then `TOKEN`.
fn mask_subprotocols(list: &mut [u8]) {
    let mut follows_name = false;
    for item in list.split_mut(|&byte| byte == b',') {
        let name = item.to_ascii_lowercase();
        let end_of = |part: &&str| {
            Some(name.windows(part.len()).position(|found| found == part.as_bytes())? + part.len())
        };
        let begin = item.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        // The JSON of a header in base64 begins so (RFC 7519 §3.1).
        let is_token = follows_name || item[begin..].starts_with(b"eyJ");
        let end_of_name = NAMES.iter().chain(&["bearer"]).filter_map(end_of).max();
        // A name alone: the token is the next item.
        follows_name = !is_token && end_of_name == Some(item.len());
        match end_of_name {
            _ if is_token => item[begin..].fill(MASK),
            Some(end) => item[end..].fill(MASK),
            None => {}
        }
    }
}

/// Masks the secrets of a head of HTTP/1.1, which may be incomplete or malformed.
pub(crate) fn mask_head(head: &mut [u8]) {
    let mut name = Vec::new();
    let mut is_start = true;
    for line in head.split_mut(|&byte| byte == b'\n') {
        let len = line.strip_suffix(b"\r").map_or(line.len(), <[u8]>::len);
        let line = &mut line[..len];
        if is_start {
            // RFC 9112 §2.2: empty lines may precede it.
            is_start = line.is_empty();
            mask_target(line);
        } else if matches!(line.first(), Some(b' ' | b'\t')) {
            // RFC 9112 §5.2: the value continues.
            mask_field(&name, &mut line[1..]);
        } else if let Some(colon) = line.iter().position(|&byte| byte == b':') {
            name = line[..colon].to_vec();
            let value = &mut line[colon + 1..];
            let spaces = value.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
            mask_field(&name, &mut value[spaces..]);
        }
    }
}

/// As [`mask_head`], of bytes that may begin within a head, of which nothing is known then.
fn mask_unparsed(bytes: &mut [u8]) {
    let line = bytes.trim_ascii_start().split(|&byte| byte == b'\n').next().unwrap_or_default();
    let (method, target) = line.split_at(line.iter().position(|&byte| byte == b' ').unwrap_or(line.len()));
    let is_request = method.iter().all(u8::is_ascii_uppercase)
        && [&b" /"[..], b" *", b" http"].iter().any(|start| target.starts_with(start));
    if is_request || line.starts_with(b"HTTP/1.") {
        mask_head(bytes);
    } else {
        bytes.iter_mut().filter(|byte| !matches!(byte, b'\r' | b'\n')).for_each(|byte| *byte = MASK);
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
        let (start, fields) = match (&mut self.payload, self.protocol, &*self.kind) {
            (Payload::Fields { start, fields }, ..) => (start, fields),
            (_, Protocol::Http1, "body") => return,
            // A head that could not be read.
            (Payload::Text(text), Protocol::Http1, _) => return mask_text(text, mask_unparsed),
            (Payload::Binary(bytes), Protocol::Http1, _) => return mask_unparsed(bytes),
            // A field block that could not be read.
            (payload, Protocol::Http2, "HEADERS" | "PUSH_PROMISE" | "CONTINUATION") => {
                *payload = Payload::None;
                return;
            }
            _ => return,
        };
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
    fn masks_tokens_in_subprotocols() {
        for (list, shown) in [
            ("graphql-ws, chat", "graphql-ws, chat"),
            (
                "v4.channel.k8s.io, base64url.bearer.authorization.k8s.io.abc, x",
                "v4.channel.k8s.io, base64url.bearer.authorization***********, x",
            ),
            ("access_token, abc", "access_token, ***"),
            ("mqtt,eyJhbGciOi.J9.c", "mqtt,***************"),
        ] {
            let mut value = list.as_bytes().to_vec();
            mask_field(b"Sec-WebSocket-Protocol", &mut value);
            assert_eq!(String::from_utf8(value).unwrap(), shown);
        }
    }

    #[test]
    fn masks_heads_that_cannot_be_read() {
        for (head, shown) in [
            ("GET /?token=abc", "GET /?token=***"),
            ("GET / HTTP/1.1\r\nCookie: a", "GET / HTTP/1.1\r\nCookie: *"),
            ("HTTP/1.1 200\r\nSet-Cookie: a\r\n b", "HTTP/1.1 200\r\nSet-Cookie: *\r\n *"),
            // It begins within a field.
            ("er abc\r\nHost: h", "******\r\n*******"),
        ] {
            let mut bytes = head.as_bytes().to_vec();
            mask_unparsed(&mut bytes);
            assert_eq!(String::from_utf8(bytes).unwrap(), shown);
        }
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
