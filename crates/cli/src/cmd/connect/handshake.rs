//! What is said about how a connection was opened, or why it was not.

use std::net::SocketAddr;

use wireloom::client::Opened;
use wireloom::http::TlsInfo;
use wireloom::{Error, Version};

use super::output::Notes;
use crate::terminal;

/// What the names of headers have within them whose values are nobody's business but the two ends'.
const SECRET: [&str; 8] =
    ["authorization", "cookie", "authentication-info", "token", "secret", "password", "api-key", "apikey"];

/// Says how it was opened.
pub(super) fn tell(opened: &Opened, notes: &Notes) {
    tell_way(opened.peer, opened.tls.as_ref(), notes);
    for (place, (name, value)) in opened.request().iter().enumerate() {
        let line = match &**name {
            method if place == 0 && opened.version == Version::Http11 => {
                format!("> {method} {}", without_query(value))
            }
            ":path" => format!("> :path: {}", without_query(value)),
            name => format!("> {name}: {}", shown(name, value.as_bytes())),
        };
        notes.say(&line);
    }
    tell_response(opened.status, "", opened.headers.iter(), notes);
    let compressed = if opened.socket.is_compressed() { ", compressed" } else { "" };
    let subprotocol = terminal::visible(opened.socket.subprotocol().unwrap_or("none"));
    let version = if opened.version == Version::Http2 { " over HTTP/2" } else { "" };
    notes.say(&format!("open{version}{compressed}, subprotocol: {subprotocol}"));
}

/// Says where a connection leads, and what protects it.
pub(super) fn tell_way(peer: Option<SocketAddr>, tls: Option<&TlsInfo>, notes: &Notes) {
    if let Some(peer) = peer {
        notes.say(&format!("connected to {peer}"));
    }
    if let Some(tls) = tls {
        let alpn = tls.alpn.as_deref().map(|name| format!(", {}", name.escape_ascii())).unwrap_or_default();
        notes.say(&format!("{}{alpn}", tls.version));
    }
}

/// Says what is asked for.
pub(super) fn tell_request(method: &str, url: &str, headers: &[(String, String)], notes: &Notes) {
    notes.say(&format!("> {method} {}", without_secrets(url)));
    for (name, value) in headers {
        notes.say(&format!("> {name}: {}", shown(name, value.as_bytes())));
    }
}

/// Says what the server answered.
pub(super) fn tell_response<'a>(
    status: u16,
    reason: &str,
    headers: impl Iterator<Item = (&'a str, &'a [u8])>,
    notes: &Notes,
) {
    notes.say(format!("< {status} {}", terminal::visible(reason)).trim_end());
    tell_headers(headers, notes);
}

/// Says what came in headers or trailers.
pub(super) fn tell_headers<'a>(headers: impl Iterator<Item = (&'a str, &'a [u8])>, notes: &Notes) {
    for (name, value) in headers {
        let value = shown(name, value);
        notes.say(&format!("< {name}: {value}"));
    }
}

/// A target as far as everybody may see it, and what follows it.
fn without_query(target: &str) -> String {
    match (target.split_once('?'), target.rsplit_once(' ')) {
        (Some((path, _)), Some((_, version))) => format!("{path}?… {version}"),
        (Some((path, _)), None) => format!("{path}?…"),
        (None, _) => target.to_owned(),
    }
}

/// The value of a header as far as everybody may see it.
fn shown(name: &str, value: &[u8]) -> String {
    let name = name.to_ascii_lowercase();
    let is_secret = SECRET.iter().any(|secret| name.contains(secret));
    if is_secret { "…".into() } else { terminal::visible(&String::from_utf8_lossy(value)) }
}

/// Says why it was not opened.
pub(super) fn tell_failure(url: &str, error: &Error, is_verbose: bool, notes: &Notes) {
    notes.say_error(&format!("{}: {error}", without_secrets(url)));
    if let Error::Refused(response) = error
        && is_verbose
    {
        tell_response(response.status(), response.reason(), response.headers(), notes);
    }
}

/// A URL as far as everybody may see it: without user and query.
fn without_secrets(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").map_or(("", url), |(scheme, rest)| (scheme, rest));
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, resource) = rest.split_at(end);
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let path = resource.split(['?', '#']).next().unwrap_or_default();
    let separator = if scheme.is_empty() { "" } else { "://" };
    terminal::visible(&format!("{scheme}{separator}{host}{path}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_no_secrets_of_headers() {
        for name in ["Authorization", "Proxy-Authorization", "set-cookie", "X-Auth-Token", "x-api-key"] {
            assert_eq!(shown(name, b"hush"), "…", "{name}");
        }
        for name in ["Sec-WebSocket-Key", "Host", "X-Request-Id"] {
            assert_eq!(shown(name, b"value"), "value", "{name}");
        }
    }

    #[test]
    fn tells_no_secrets_of_a_url() {
        for (url, shown) in [
            ("ws://user:pass@host:80/path?token=1#x", "ws://host:80/path"),
            ("wss://host?token=1", "wss://host"),
            ("ws://u@p@host/a@b", "ws://host/a@b"),
            ("nonsense", "nonsense"),
        ] {
            assert_eq!(without_secrets(url), shown);
        }
    }
}
