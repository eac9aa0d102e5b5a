//! `-v`: the steps of connecting, and the heads of requests and responses, in the manner of curl: `*` for notes, `>` for what is sent
//! and `<` for what is received.

use wireloom::client::{ConnectEvent, url_without_secrets};
use wireloom::http::TlsInfo;
use wireloom::{Error, Headers, HttpError, Tap, Version};
use wireloom_inspect::secret::FieldMask;

use super::notes::Notes;
use super::wire::Wire;
use crate::args::Connect;
use crate::recording::Observer;

/// Prints heads and steps.
#[derive(Clone)]
pub(super) struct Trace {
    notes: Notes,
    shows_secrets: bool,
    /// The heads as they arrived, if they are shown.
    wire: Option<Wire>,
    /// For `wire` and `--record`.
    tap: Option<Tap>,
}

impl Trace {
    /// `record` is what `--record` writes.
    pub(super) fn new(args: &Connect, notes: &Notes, record: Option<Observer>) -> Self {
        let shows_heads = args.shows_head() || args.display.verbose > 0;
        let wire = shows_heads.then(|| Wire::new(args.route.max_head));
        let tap = match (wire.clone(), record) {
            (None, None) => None,
            (None, Some(record)) => Some(Tap::new(record)),
            (Some(wire), None) => Some(Tap::new(move |connection, event| wire.observe(connection, event))),
            (Some(wire), Some(record)) => Some(Tap::new(move |connection, event| {
                wire.observe(connection, event);
                record(connection, event);
            })),
        };
        Self { notes: notes.clone(), shows_secrets: args.display.show_secrets, wire, tap }
    }

    /// Observes the bytes of the connections.
    pub(super) fn tap(&self) -> Option<Tap> {
        self.tap.clone()
    }

    /// Prints a step of connecting.
    pub(super) fn event(&self, event: &ConnectEvent<'_>) {
        match event {
            ConnectEvent::Connected { peer } => self.notes.print(&format!("* connected to {peer}")),
            ConnectEvent::Tls(TlsInfo { version, alpn, .. }) => {
                let alpn =
                    alpn.as_deref().map(|name| format!(", ALPN {}", name.escape_ascii())).unwrap_or_default();
                self.notes.print(&format!("* {version}{alpn}"));
            }
            ConnectEvent::Request { version, fields } => self.request(*version, fields),
            ConnectEvent::Response { version, status, headers, .. } => {
                self.response(*version, *status, headers);
            }
            _ => {}
        }
    }

    fn request(&self, version: Version, fields: &[(String, String)]) {
        let mut mask = FieldMask::default();
        for (position, (name, value)) in fields.iter().enumerate() {
            let line = match &**name {
                // The request line.
                method if position == 0 && version != Version::Http2 => {
                    let (target, version) = value.rsplit_once(' ').unwrap_or((value, ""));
                    format!("> {method} {} {version}", self.value(&mut mask, ":path", target.as_bytes()))
                }
                name => format!("> {name}: {}", self.value(&mut mask, name, value.as_bytes())),
            };
            self.notes.print(&line);
        }
    }

    /// The head of a response: over HTTP/1.1 as it arrived; over HTTP/2, which has neither reason phrases nor capitals, in the same form.
    pub(super) fn head(&self, version: Version, status: u16, headers: &Headers) -> Vec<u8> {
        let arrived =
            self.wire.as_ref().filter(|_| version != Version::Http2).and_then(|wire| wire.head(status));
        arrived.unwrap_or_else(|| {
            let mut head = format!("{} {status}\r\n", version_name(version)).into_bytes();
            for (name, value) in headers.iter() {
                head.extend_from_slice(name.as_bytes());
                head.extend_from_slice(b": ");
                head.extend_from_slice(value);
                head.extend_from_slice(b"\r\n");
            }
            head.extend_from_slice(b"\r\n");
            head
        })
    }

    /// Prints the head of a response.
    pub(super) fn response(&self, version: Version, status: u16, headers: &Headers) {
        let head = self.head(version, status, headers);
        let lines = head.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
        let mut mask = FieldMask::default();
        for line in lines.filter(|line| !line.is_empty()) {
            match line.iter().position(|byte| *byte == b':') {
                // RFC 9112 §5.2: the value continues.
                _ if line.starts_with(b" ") || line.starts_with(b"\t") => {
                    let line = line.trim_ascii();
                    let line = if self.shows_secrets {
                        String::from_utf8_lossy(line).into_owned()
                    } else {
                        mask.display_continuation(line)
                    };
                    self.notes.print(&format!("<  {line}"));
                }
                Some(colon) if !line.starts_with(b"HTTP/") => {
                    let name = String::from_utf8_lossy(&line[..colon]);
                    let value = self.value(&mut mask, &name, line[colon + 1..].trim_ascii());
                    self.notes.print(&format!("< {name}: {value}"));
                }
                _ => self.notes.print(&format!("< {}", String::from_utf8_lossy(line))),
            }
        }
    }

    /// Prints the trailers of a response.
    pub(super) fn trailers<'a>(&self, headers: impl Iterator<Item = (&'a str, &'a [u8])>) {
        let mut mask = FieldMask::default();
        for (name, value) in headers {
            self.notes.print(&format!("< {name}: {}", self.value(&mut mask, name, value)));
        }
    }

    fn value(&self, mask: &mut FieldMask, name: &str, value: &[u8]) -> String {
        if self.shows_secrets {
            String::from_utf8_lossy(value).into_owned()
        } else {
            mask.display(name.as_bytes(), value)
        }
    }
}

/// The name of a version in a status line.
pub(super) fn version_name(version: Version) -> &'static str {
    match version {
        Version::Http2 => "HTTP/2",
        Version::Http10 => "HTTP/1.0",
        _ => "HTTP/1.1",
    }
}

/// Prints why there is no connection, with the body of a refusal and a hint.
pub(super) fn print_failure(args: &Connect, error: &Error, notes: &Notes) {
    /// The number of lines of a refusal, and of characters in each, that are printed without `-v`.
    const SHOWN: (usize, usize) = (10, 200);
    let url = url_without_secrets(&args.url);
    let through = match &args.route.proxy {
        Some(proxy) => format!(" through the proxy {}", url_without_secrets(proxy)),
        None if args.route.proxy_from_env => " (with the proxy settings of the environment)".into(),
        None => String::new(),
    };
    let error_text = match error {
        Error::Http(HttpError::ConnectionLost) if args.is_request() => {
            "the server closed the connection before the response was complete".into()
        }
        error => error.to_string(),
    };
    let Error::Refused(response) = error else {
        return notes.print_error(&format!("{url}{through}: {error_text}"));
    };
    let location = response.header("location").map(String::from_utf8_lossy);
    let hint = match (response.status(), location) {
        (300..=399, Some(location)) if args.redirects_max() == 0 => {
            format!(": it redirects to {}; -L follows", url_without_secrets(&location))
        }
        (200..=299, _) => ": there is no WebSocket at this URL".into(),
        (404 | 405, _) => ": there is no WebSocket at this path".into(),
        (401, _) => ": it requires credentials, such as -u USER:PASSWORD".into(),
        (403, _) if args.origin.is_none() => ": it may require another --origin or credentials".into(),
        _ => String::new(),
    };
    notes.print_error(format!("{url}{through}: {}{hint}", error_text.trim_end()).trim_end());
    // A page is for a browser.
    let is_page = response.header("content-type").is_some_and(|kind| {
        kind.to_ascii_lowercase().starts_with(b"text/html")
            || kind.to_ascii_lowercase().starts_with(b"application/xhtml")
    });
    if is_page && args.display.verbose == 0 {
        return;
    }
    let body = String::from_utf8_lossy(response.body());
    let (lines, chars) = if args.display.verbose > 0 { (usize::MAX, usize::MAX) } else { SHOWN };
    for line in body.trim_end().lines().take(lines) {
        let shown: String = line.chars().take(chars).collect();
        notes.print(&format!("  {shown}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hides_secret_headers() {
        let mut trace = Trace { notes: Notes::new(false), shows_secrets: false, wire: None, tap: None };
        let value =
            |trace: &Trace, name: &str, value: &[u8]| trace.value(&mut FieldMask::default(), name, value);
        for name in ["Authorization", "Proxy-Authorization", "set-cookie", "X-Auth-Token", "x-api-key"] {
            assert_eq!(value(&trace, name, b"secret"), "…", "{name}");
        }
        for name in ["Sec-WebSocket-Key", "Host", "X-Request-Id"] {
            assert_eq!(value(&trace, name, b"value"), "value", "{name}");
        }
        for name in [":path", "Location", "referer", "SourceMap", "Destination", "X-Original-URL"] {
            assert_eq!(value(&trace, name, b"https://u:p@host/a?x=1#x"), "https://***@host/a?…", "{name}");
            assert_eq!(value(&trace, name, b"/a#x"), "/a#…", "{name}");
        }
        for (name, text, shown) in [
            ("Refresh", "0; url=?x=1", "0; url=?…"),
            ("Link", "<https://host/a?x=1>; rel=next", "<https://host/a?…"),
            ("Priority", "u=3, i=?0", "u=3, i=?0"),
            ("Alt-Svc", "h2=\"host:443\"", "h2=\"host:443\""),
            ("Sec-WebSocket-Protocol", "chat, bearer.abc", "chat, bearer****"),
        ] {
            assert_eq!(value(&trace, name, text.as_bytes()), shown);
        }
        trace.shows_secrets = true;
        assert_eq!(value(&trace, "Cookie", b"secret"), "secret");
        assert_eq!(value(&trace, ":path", b"/a?token=1"), "/a?token=1");
    }

    // RFC 9112 §5.2.
    #[test]
    fn hides_values_that_continue() {
        let mut mask = FieldMask::default();
        assert_eq!(mask.display(b"Location", b"/cb?a=1"), "/cb?…");
        assert_eq!(mask.display_continuation(b"&code=secret"), "…");
        assert_eq!(mask.display(b"Server", b"a"), "a");
        assert_eq!(mask.display_continuation(b"b"), "b");
    }
}
