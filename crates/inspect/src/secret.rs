//! Secrets in heads: which fields and parameters contain them. A masked value keeps its length, so that offsets do not
//! change.

use wireloom_ws::handshake::uri::is_authority;

use crate::entry::{Entry, Payload, Protocol};

/// Parts of the names of fields and parameters whose values are secret.
const NAMES: [&str; 14] = [
    "authorization",
    "cookie",
    "authentication",
    "token",
    "secret",
    "password",
    "passwd",
    "passphrase",
    "credential",
    "session",
    "signature",
    "api-key",
    "api_key",
    "apikey",
];

/// The same, where a word of a name ends with them: `X-Auth-Key`, but not `author`.
const WORD_ENDS: [&str; 7] = ["auth", "key", "pass", "pwd", "sig", "sign", "jwt"];

/// Names of parameters that are secret only if the whole name matches, because they are common words. `cf_connect` is the connect command
/// of a Centrifugal client, which contains its token.
const PARAMETERS: [&str; 3] = ["code", "ticket", "cf_connect"];

/// The byte that replaces each byte of a secret.
pub(crate) const MASK: u8 = b'*';

fn is_secret_field(name: &[u8]) -> bool {
    // RFC 6455 §1.3: the key proves that the server understands WebSocket; replays need it.
    if name.eq_ignore_ascii_case(b"sec-websocket-key") {
        return false;
    }
    let lower = name.to_ascii_lowercase();
    NAMES.iter().any(|secret| lower.windows(secret.len()).any(|part| part == secret.as_bytes()))
        || words(name).any(is_secret_word)
}

fn is_secret_word(word: &[u8]) -> bool {
    let word = word.to_ascii_lowercase();
    WORD_ENDS.iter().any(|end| word.ends_with(end.as_bytes()))
}

/// The words of a name such as `X-Auth-Key`, `auth_key` and `authKey`.
fn words(name: &[u8]) -> impl Iterator<Item = &[u8]> {
    name.chunk_by(|&byte, &next| {
        byte.is_ascii_alphabetic()
            && next.is_ascii_alphabetic()
            && !(byte.is_ascii_lowercase() && next.is_ascii_uppercase())
    })
}

/// Whether the value of a parameter of a URL with this name is a secret.
fn is_secret_parameter(name: &[u8]) -> bool {
    let name = percent_decode(name);
    is_secret_field(&name) || PARAMETERS.iter().any(|secret| name.eq_ignore_ascii_case(secret.as_bytes()))
}

/// RFC 3986 §2.1.
fn percent_decode(mut text: &[u8]) -> Vec<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let mut decoded = Vec::with_capacity(text.len());
    while let [first, rest @ ..] = text {
        let escaped = match text {
            [b'%', high, low, ..] => digit(*high).zip(digit(*low)),
            _ => None,
        };
        let (byte, len) = escaped.map_or((*first, 0), |(high, low)| ((high << 4 | low) as u8, 2));
        decoded.push(byte);
        text = &rest[len..];
    }
    decoded
}

/// Where the first query or fragment begins.
fn find_query(value: &[u8]) -> Option<usize> {
    value.iter().position(|byte| matches!(byte, b'?' | b'#'))
}

/// Masks the secrets in a target of a request, and in a value that may contain URLs: credentials before the host, and parameters of the
/// query and of the fragment, in which OAuth returns tokens (RFC 6749 §4.2.2).
///
/// A password may contain `/`, `?` and `#`: where no host precedes them, the credentials extend to the last `@`, as in
/// `wireloom::client::url_without_secrets`.
fn mask_target(target: &mut [u8]) {
    let mut at = 0;
    while let Some(slashes) = target[at..].windows(2).position(|part| part == b"//") {
        let begin = at + slashes + target[at + slashes..].iter().take_while(|&&byte| byte == b'/').count();
        let find =
            |is_end: fn(&u8) -> bool| target[begin..].iter().position(is_end).unwrap_or(target.len() - begin);
        let up_to = |len: usize| &target[begin..begin + len];
        let mut authority = up_to(find(|byte| matches!(byte, b'/' | b'?' | b'#' | b' ' | b'>' | b'"')));
        let host = authority.rsplit(|&byte| byte == b'@').next().unwrap_or_default();
        if !is_authority(host) || host.ends_with(b":") {
            // The whole URL, which is passed with that: a look at the rest for each `//` would take quadratic time.
            authority = up_to(find(|byte| matches!(byte, b' ' | b'>' | b'"')));
        }
        let user = authority.iter().rposition(|&byte| byte == b'@');
        at = begin + authority.len();
        if let Some(user) = user {
            target[begin..begin + user].fill(MASK);
            at = begin + user;
        }
    }
    let Some(begin) = find_query(target) else { return };
    // Where the name of the parameter begins; `None` within its value.
    let (mut name, mut is_secret) = (Some(begin + 1), false);
    for at in begin + 1..target.len() {
        match target[at] {
            b'&' | b' ' | b'>' | b'"' => (name, is_secret) = (Some(at + 1), false),
            _ if is_secret => target[at] = MASK,
            // They may separate parameters, or be part of a value.
            b';' | b',' | b'?' | b'#' => name = Some(at + 1),
            b'=' => is_secret = name.take().is_some_and(|name| is_secret_parameter(&target[name..at])),
            _ => {}
        }
    }
}

/// The content of the value of a field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Content {
    #[default]
    Plain,
    /// A target of a request, a URL, or a value with the query of one.
    Target,
    Secret,
    Subprotocols,
}

impl Content {
    fn of(name: &[u8], value: &[u8]) -> Self {
        if is_secret_field(name) {
            Self::Secret
        } else if name.eq_ignore_ascii_case(b"sec-websocket-protocol") {
            Self::Subprotocols
        } else if is_target_field(name) || find_query(value).is_some() {
            Self::Target
        } else {
            Self::Plain
        }
    }
}

/// Whether the value of a field with this name is a target of a request, or may be a relative URL.
fn is_target_field(name: &[u8]) -> bool {
    const TARGETS: [&[u8]; 9] = [
        b":path",
        b"referer",
        b"location",
        b"content-location",
        b"refresh",
        b"link",
        b"sourcemap",
        b"x-sourcemap",
        b"destination",
    ];
    TARGETS.iter().any(|target| name.eq_ignore_ascii_case(target))
}

/// Masks the fields of one head, in their order: the token of a subprotocol may be in a later field than its name.
#[derive(Debug, Default)]
pub struct FieldMask {
    /// Of the latest field.
    content: Content,
    /// The latest subprotocol is the name of a token, which is the next one.
    follows_name: bool,
}

impl FieldMask {
    /// Masks the secrets in the value of the next field. Its length remains.
    pub(crate) fn mask(&mut self, name: &[u8], value: &mut [u8]) {
        self.content = Content::of(name, value);
        match self.content {
            Content::Secret => value.fill(MASK),
            Content::Subprotocols => self.mask_subprotocols(value),
            Content::Target | Content::Plain => mask_target(value),
        }
    }

    /// Masks a line that continues the latest value (RFC 9112 §5.2), which may be within a parameter.
    fn mask_continuation(&mut self, line: &mut [u8]) {
        match self.content {
            Content::Plain => self.mask(b"", line),
            _ => line.fill(MASK),
        }
    }

    /// The value of the next field for display: without secrets, and without the queries of URLs.
    pub fn display(&mut self, name: &[u8], value: &[u8]) -> String {
        let mut value = value.to_vec();
        self.mask(name, &mut value);
        match (self.content, find_query(&value)) {
            (Content::Secret, _) => "…".into(),
            // Elsewhere `?` and `#` need not begin a query: `i=?1` is a Boolean (RFC 9651 §3.3.6).
            (Content::Target, Some(query)) if is_target_field(name) || value[..query].contains(&b'/') => {
                format!("{}…", String::from_utf8_lossy(&value[..=query]))
            }
            _ => String::from_utf8_lossy(&value).into_owned(),
        }
    }

    /// As [`FieldMask::display`], of a line that continues the latest value.
    pub fn display_continuation(&mut self, line: &[u8]) -> String {
        match self.content {
            Content::Plain => self.display(b"", line),
            _ => "…".into(),
        }
    }

    /// Masks tokens in a list of subprotocols. A page cannot set other fields for a WebSocket, so that some servers take their tokens
    /// from this one: `base64url.bearer.authorization.k8s.io.TOKEN`, `header-TOKEN`, or a name and then `TOKEN`.
    fn mask_subprotocols(&mut self, list: &mut [u8]) {
        for item in list.split_mut(|&byte| byte == b',') {
            let begin = item.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
            let len = item.trim_ascii().len();
            if len == 0 {
                // RFC 9110 §5.6.1.2: it does not count.
                continue;
            }
            let item = &mut item[begin..begin + len];
            if std::mem::take(&mut self.follows_name) {
                item.fill(MASK);
                continue;
            }
            let lower = item.to_ascii_lowercase();
            let names = || NAMES.iter().chain(&["bearer"]).map(|name| name.as_bytes());
            self.follows_name =
                names().any(|name| lower.ends_with(name)) || words(item).last().is_some_and(is_secret_word);
            let end_of =
                |name: &[u8]| Some(lower.windows(name.len()).position(|part| part == name)? + name.len());
            // The JSON of a header in base64 begins so (RFC 7519 §3.1).
            let token = item.windows(3).position(|part| part == b"eyJ");
            if let Some(secret) = names().filter_map(end_of).chain(token).min() {
                item[secret..].fill(MASK);
            }
        }
    }
}

/// Masks the secrets of a head of HTTP/1.1, which may be incomplete or malformed.
pub(crate) fn mask_head(head: &mut [u8]) {
    let mut fields = FieldMask::default();
    let mut is_start = true;
    for line in head.split_mut(|&byte| byte == b'\n') {
        let len = line.strip_suffix(b"\r").map_or(line.len(), <[u8]>::len);
        let line = &mut line[..len];
        if is_start {
            // RFC 9112 §2.2: empty lines may precede it.
            is_start = line.is_empty();
            mask_target(line);
        } else if matches!(line.first(), Some(b' ' | b'\t')) {
            fields.mask_continuation(&mut line[1..]);
        } else if let Some(colon) = line.iter().position(|&byte| byte == b':') {
            let (name, value) = line.split_at_mut(colon);
            let spaces = value[1..].iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
            fields.mask(name, &mut value[1 + spaces..]);
        }
    }
}

/// Whether the bytes of an unknown protocol may be the rest of a head of HTTP/1.1: one of their lines is a field, or the empty line at
/// its end.
pub(crate) fn may_be_head(bytes: &[u8]) -> bool {
    bytes.split(|&byte| byte == b'\n').any(|line| match line.iter().position(|&byte| byte == b':') {
        // RFC 9110 §5.6.2.
        Some(colon) => {
            let is_token = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
            colon > 0 && line[..colon].iter().all(is_token)
        }
        None => line == b"\r",
    })
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

fn mask_text(text: &mut String, mask: impl FnOnce(&mut [u8])) {
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
            (_, Protocol::Http1, "body") | (_, Protocol::Unknown, "data") => return,
            // A head that could not be read.
            (Payload::Text(text), Protocol::Http1 | Protocol::Unknown, _) => {
                return mask_text(text, mask_unparsed);
            }
            (Payload::Binary(bytes), Protocol::Http1 | Protocol::Unknown, _) => return mask_unparsed(bytes),
            // A field block that could not be read.
            (payload, Protocol::Http2, "HEADERS" | "PUSH_PROMISE" | "CONTINUATION") => {
                *payload = Payload::None;
                return;
            }
            _ => return,
        };
        mask_text(start, mask_target);
        let mut mask = FieldMask::default();
        for (name, value) in fields {
            mask.mask(name, value);
        }
        let mut mask = FieldMask::default();
        for detail in &mut self.details {
            let name = detail.name.as_bytes();
            if name == b"target" {
                mask_text(&mut detail.value, mask_target);
            } else {
                mask_text(&mut detail.value, |value| mask.mask(name, value));
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

    /// The head with its secrets masked, and with `*` for each run of the mask.
    fn masked_head(fields: &str) -> String {
        let mut head = format!("GET / HTTP/1.1\r\n{fields}").into_bytes();
        let len = head.len();
        mask_head(&mut head);
        assert_eq!(head.len(), len);
        let mut head = String::from_utf8(head).unwrap();
        while head.contains("**") {
            head = head.replace("**", "*");
        }
        head.split_once('\n').unwrap().1.to_owned()
    }

    #[test]
    fn masks_tokens_in_subprotocols() {
        for (list, shown) in [
            ("graphql-ws, chat", "graphql-ws, chat"),
            (
                "v4.channel.k8s.io, base64url.bearer.authorization.k8s.io.abc, x",
                "v4.channel.k8s.io, base64url.bearer*, x",
            ),
            ("access_token, abc", "access_token, *"),
            ("apikey-abc, chat", "apikey*, chat"),
            ("bearer , abc , chat", "bearer , * , chat"),
            ("bearer,, abc", "bearer,, *"),
            ("session_token, abc", "session*, *"),
            ("bearer.mysecret, chat", "bearer*, *"),
            ("mqtt,eyJhbGciOi.J9.c", "mqtt,*"),
            // AWS AppSync Events.
            ("aws-appsync-event-ws, header-eyJob3N0IjoiYSJ9", "aws-appsync-event-ws, header-*"),
        ] {
            let field = |list| format!("Sec-WebSocket-Protocol: {list}");
            assert_eq!(masked_head(&field(list)), field(shown));
        }
        // RFC 6455 §4.1: the field may appear several times.
        assert_eq!(
            masked_head("Sec-WebSocket-Protocol: bearer\r\nHost: h\r\nsec-websocket-protocol: abc, chat\r\n"),
            "Sec-WebSocket-Protocol: bearer\r\nHost: h\r\nsec-websocket-protocol: *, chat\r\n"
        );
    }

    // RFC 9112 §5.2.
    #[test]
    fn masks_values_that_continue() {
        for (head, shown) in [
            ("Location: /cb?a=1\r\n &code=abc\r\n", "Location: /cb?a=1\r\n *\r\n"),
            ("X-Url: /cb?a=1\r\n\t&code=abc\r\n", "X-Url: /cb?a=1\r\n\t*\r\n"),
            ("X-Url:\r\n /cb?a=1\r\n &code=abc", "X-Url:\r\n /cb?a=1\r\n *"),
            ("Sec-WebSocket-Protocol: bearer,\r\n abc", "Sec-WebSocket-Protocol: bearer,\r\n *"),
            ("Cookie: abc\r\n def", "Cookie: *\r\n *"),
            ("Transfer-Encoding:\r\n chunked", "Transfer-Encoding:\r\n chunked"),
        ] {
            assert_eq!(masked_head(head), shown);
        }
    }

    #[test]
    fn masks_urls_in_all_fields() {
        for (head, shown) in [
            ("Refresh: 0; url=/cb?code=abc", "Refresh: 0; url=/cb?code=*"),
            (
                "Link: <https://u:p@h/a?x=1&token=abc>; rel=next, <//u:p@h/?code=d>",
                "Link: <https://*@h/a?x=1&token=*>; rel=next, <//*@h/?code=*>",
            ),
            ("X-Original-URL: /a?token=abc;def&x=1", "X-Original-URL: /a?token=*&x=1"),
            ("Destination: https://u:p@h/a?code=abc", "Destination: https://*@h/a?code=*"),
            ("Origin: https://u:p@h", "Origin: https://*@h"),
            ("Via: /in?next=https://u:p@h/", "Via: /in?next=https://*@h/"),
            ("Alt-Svc: h2=\"a.example:443\"; ma=1", "Alt-Svc: h2=\"a.example:443\"; ma=1"),
            ("Priority: u=3, i=?0", "Priority: u=3, i=?0"),
            ("Set-Cookie: a=1", "Set-Cookie: *"),
            ("Proxy-Authorization: Basic abc", "Proxy-Authorization: *"),
        ] {
            assert_eq!(masked_head(head), shown);
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
    fn knows_the_names_of_secrets() {
        for name in [
            "Authorization",
            "proxy-authorization",
            "Authentication-Info",
            "Cookie",
            "set-cookie",
            "X-Api-Key",
            "apikey",
            "x-auth-token",
            "CB-ACCESS-PASSPHRASE",
            "CB-ACCESS-SIGN",
            "X-Auth-Key",
            "X-MBX-APIKEY",
            "Ocp-Apim-Subscription-Key",
            "X-Functions-Key",
            "x-goog-credential",
            "X-Auth",
            "X-Amz-Security-Token",
        ] {
            assert!(is_secret_field(name.as_bytes()), "{name}");
        }
        for name in [
            "host",
            "sec-websocket-key",
            "Sec-WebSocket-Protocol",
            "origin",
            "author",
            "x-error-code",
            "accept",
        ] {
            assert!(!is_secret_field(name.as_bytes()), "{name}");
        }
        for name in [
            "auth",
            "key",
            "Ocp-Apim-Subscription-Key",
            "pwd",
            "pass",
            "userPass",
            "access_key",
            "accessKey",
            "keyValue",
            "key1",
            "access%5Ftoken",
            "%70wd",
            "user%5Bpassword%5d",
            "X-Amz-Signature",
            "sig",
            "id_jwt",
            "code",
            "ticket",
        ] {
            assert!(is_secret_parameter(name.as_bytes()), "{name}");
        }
        for name in ["x", "keys", "keyboard", "country_code", "author", "passenger", "%", "%4", "%zz", ""] {
            assert!(!is_secret_parameter(name.as_bytes()), "{name}");
        }
    }

    // `wireloom::client::url_without_secrets` has the same rule.
    #[test]
    fn masks_passwords_with_delimiters() {
        for (target, shown) in [
            ("wss://anna:sec/ret@a.example/x", "wss://************@a.example/x"),
            ("wss://anna:a?b#c@a.example/x?pwd=1", "wss://**********@a.example/x?pwd=*"),
            ("wss://anna:/@a.example/x", "wss://******@a.example/x"),
            ("https://a.example/@anna", "https://a.example/@anna"),
            ("https://[::1]:80/@anna", "https://[::1]:80/@anna"),
            ("<https://anna:a/b@h/>, <https://h/x@y>", "<https://********@h/>, <https://h/x@y>"),
        ] {
            assert_eq!(masked(target), shown);
        }
    }
}
