//! The target of a request: a `ws`, `wss`, `http` or `https` URL, parsed and validated, and the targets of redirects.

use std::fmt;

use wireloom_ws::handshake::uri::{Uri, UriError, is_authority};

use super::credentials::{Credentials, split_userinfo};
use super::request::Request;
use crate::error::Error;

/// A URL, taken apart.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub(super) secure: bool,
    /// An IPv6 address has no brackets.
    pub(super) host: String,
    pub(super) port: u16,
    /// The host, and the port if it is not the scheme's own.
    pub(super) authority: String,
    /// Path and query, never empty.
    pub(super) resource: String,
    /// The user information before the `@`.
    pub(super) credentials: Option<Credentials>,
    /// The path of a Unix socket, which is dialed instead of host and port.
    pub(super) unix: Option<String>,
}

impl Target {
    /// The URL of a WebSocket (RFC 6455 §3).
    pub(super) fn websocket(url: &str) -> Result<Self, Error> {
        if let Some(rest) = without_scheme(url, &["ws+unix"]) {
            return Self::unix(rest);
        }
        let (scheme, rest) = url.split_once("://").ok_or(Error::InvalidUrl(UriError::Scheme))?;
        if ["ws", "wss"].iter().any(|known| scheme.eq_ignore_ascii_case(known)) {
            Self::split(scheme, rest)
        } else {
            Err(Error::InvalidUrl(UriError::Scheme))
        }
    }

    /// The URL of anything that HTTP reaches. A fragment is left out: it is the client's own (RFC 9110 §7.1).
    pub(super) fn http(url: &str) -> Result<Self, Error> {
        if let Some(rest) = without_scheme(url, &["http+unix", "ws+unix"]) {
            return Self::unix(rest.split('#').next().unwrap_or_default());
        }
        let (scheme, rest) = url.split_once("://").ok_or(Error::InvalidUrl(UriError::Scheme))?;
        let scheme = match &*scheme.to_ascii_lowercase() {
            "http" | "ws" => "ws",
            "https" | "wss" => "wss",
            _ => return Err(Error::InvalidUrl(UriError::Scheme)),
        };
        Self::split(scheme, rest.split('#').next().unwrap_or_default())
    }

    /// The target of a request to this URL.
    pub(super) fn for_request(self, request: &Request) -> Self {
        if request.is_for_server() { self.for_server() } else { self }
    }

    /// The whole server (RFC 9112 §3.2.4, RFC 9113 §8.3.1).
    pub(super) fn for_server(self) -> Self {
        Self { resource: "*".to_owned(), ..self }
    }

    /// Another path, with query, of the same server.
    pub(super) fn with_resource(&self, resource: &str) -> Result<Self, Error> {
        let scheme = if self.secure { "wss" } else { "ws" };
        let resource = resource.split('#').next().unwrap_or_default();
        let port = if self.authority.ends_with(']') || !self.authority.contains(':') {
            format!(":{}", self.port)
        } else {
            String::new()
        };
        let target = Self::split(scheme, &format!("{}{port}{resource}", self.authority))?;
        Ok(Self { unix: self.unix.clone(), ..target })
    }

    /// `scheme` is `ws` or `wss`.
    fn split(scheme: &str, rest: &str) -> Result<Self, Error> {
        let (authority, resource) = split_authority(rest);
        let (userinfo, authority) = split_userinfo(authority);
        let credentials = match userinfo {
            None => None,
            // Browsers and curl send these as Basic; so they are accepted here too.
            Some(userinfo) => {
                Some(Credentials::from_userinfo(userinfo).ok_or(Error::InvalidUrl(UriError::UserInfo))?)
            }
        };
        let url = format!("{scheme}://{authority}{resource}");
        let uri = Uri::parse(&url).map_err(Error::InvalidUrl)?;
        Ok(Self {
            secure: uri.secure(),
            host: uri.host().to_owned(),
            port: uri.port(),
            authority: uri.authority().to_owned(),
            resource: uri.resource().to_owned(),
            credentials,
            unix: None,
        })
    }

    /// `ws+unix:/path/of/socket:/resource`, with an optional `//` before the path and an optional resource.
    fn unix(rest: &str) -> Result<Self, Error> {
        let path = rest.strip_prefix("//").unwrap_or(rest);
        let (path, resource) = path.split_once(':').unwrap_or((path, "/"));
        if cfg!(not(unix)) || path.is_empty() {
            return Err(Error::InvalidUrl(UriError::Scheme));
        }
        if !resource.starts_with('/') {
            return Err(Error::InvalidUrl(UriError::Authority));
        }
        let target = Self::split("ws", &format!("localhost{resource}"))?;
        Ok(Self { unix: Some(path.to_owned()), ..target })
    }

    /// RFC 6454 §5.
    pub(super) fn is_same_origin(&self, other: &Self) -> bool {
        let is_same_host = self.unix == other.unix && self.host.eq_ignore_ascii_case(&other.host);
        self.secure == other.secure && self.port == other.port && is_same_host
    }

    /// Where a `Location` leads (RFC 9110 §10.2.2); `None` when it is none, or not to be followed: it leaves TLS, has another
    /// scheme or brings credentials.
    pub(super) fn redirected(&self, location: &[u8]) -> Option<Self> {
        let location = std::str::from_utf8(location).ok()?.trim_ascii();
        let location = location.split('#').next()?;
        let mut unix = None;
        let (scheme, rest) = match split_scheme(location) {
            Some((scheme, rest)) => {
                let scheme = match &*scheme.to_ascii_lowercase() {
                    "http" | "ws" => "ws",
                    "https" | "wss" => "wss",
                    _ => return None,
                };
                (scheme, rest.strip_prefix("//")?.to_owned())
            }
            None => {
                let scheme = if self.secure { "wss" } else { "ws" };
                let rest = match location.strip_prefix("//") {
                    Some(rest) => rest.to_owned(),
                    None => {
                        unix.clone_from(&self.unix);
                        format!("{}{}", self.authority, self.resolve(location))
                    }
                };
                (scheme, rest)
            }
        };
        let to = Self { unix, ..Self::split(scheme, &rest).ok()? };
        let leaves_tls = self.secure && !to.secure;
        (!leaves_tls && to.credentials.is_none()).then_some(to)
    }

    /// A relative reference without authority (RFC 3986 §5.2.2).
    fn resolve(&self, reference: &str) -> String {
        let (path, _) = split_query(&self.resource);
        if reference.is_empty() {
            return self.resource.clone();
        }
        let (to, to_query) = split_query(reference);
        match to {
            "" => format!("{path}{to_query}"),
            _ if to.starts_with('/') => format!("{}{to_query}", without_dots(to)),
            _ => {
                let folder = &path[..path.rfind('/').map_or(0, |at| at + 1)];
                format!("{}{to_query}", without_dots(&format!("{folder}{to}")))
            }
        }
    }
}

/// The query goes unlogged: tokens travel there.
impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (path, _) = split_query(&self.resource);
        if let Some(unix) = &self.unix {
            return write!(f, "ws+unix:{unix}:{path}");
        }
        let scheme = if self.secure { "wss" } else { "ws" };
        write!(f, "{scheme}://{}{path}", self.authority)
    }
}

/// The rest of a URL with one of these schemes, after the colon.
fn without_scheme<'a>(url: &'a str, schemes: &[&str]) -> Option<&'a str> {
    let (scheme, rest) = url.split_once(':')?;
    schemes.iter().any(|known| scheme.eq_ignore_ascii_case(known)).then_some(rest)
}

/// The user information of a URL with an authority, as it is written there.
pub(super) fn userinfo(url: &str) -> Option<&str> {
    let (_, rest) = url.split_once("://")?;
    split_userinfo(split_authority(rest).0).0
}

/// RFC 3986 §3.2: what follows the `//` of a URL is its authority, up to the first of `/`, `?` and `#`.
pub(super) fn split_authority(rest: &str) -> (&str, &str) {
    rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()))
}

/// A URL as errors and logs may show it: scheme, host and path. User information and the query may be secrets. In a text that is no URL
/// the user information may extend to the last `@`: passwords contain `/`, `?` and `#`.
pub(super) fn without_secrets(url: &str) -> String {
    let behind_scheme = split_scheme(url).map_or(url, |(_, rest)| rest);
    // RFC 3986 §4.2: a reference may begin with the authority.
    let rest = if behind_scheme.starts_with("//") { behind_scheme.trim_start_matches('/') } else { url };
    let scheme = &url[..url.len() - rest.len()];
    let path = |rest: &str| rest.split(['?', '#']).next().unwrap_or_default().to_owned();
    let (authority, resource) = split_authority(rest);
    let host = split_userinfo(authority).1;
    // The port of a URL may be empty, but then what follows is rather a password.
    let is_url = if scheme.is_empty() {
        authority.is_empty()
    } else {
        is_authority(host.as_bytes()) && !host.ends_with(':')
    };
    match rest.rsplit_once('@') {
        Some((_, rest)) if !is_url => {
            let host = split_authority(rest).0;
            // It may be the end of a query.
            let is_host = is_authority(host.as_bytes()) && !host.contains(['&', ';', '=']);
            format!("{scheme}{}", if is_host { path(rest) } else { "…".to_owned() })
        }
        _ => format!("{scheme}{host}{}", path(resource)),
    }
}

/// RFC 3986 §3.1; the rest begins behind the colon.
fn split_scheme(reference: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = reference.split_once(':')?;
    let valid = scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    valid.then_some((scheme, rest))
}

/// The query keeps its `?`.
fn split_query(resource: &str) -> (&str, &str) {
    resource.split_at(resource.find('?').unwrap_or(resource.len()))
}

/// RFC 3986 §5.2.4, of a path that begins with a slash.
fn without_dots(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let mut segments = path.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let last = segments.peek().is_none();
        match segment {
            "." | ".." => {
                if segment == ".." {
                    kept.pop();
                }
                if last {
                    kept.push("");
                }
            }
            segment => kept.push(segment),
        }
    }
    format!("/{}", kept.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_credentials_out_of_a_url() {
        let target = Target::websocket("wss://anna:s%40x@h:8443/a?b").unwrap();
        assert_eq!((&*target.authority, &*target.resource), ("h:8443", "/a?b"));
        let basic = target.credentials.as_ref().and_then(Credentials::basic);
        assert_eq!(basic.as_deref(), Some("Basic YW5uYTpzQHg="));
        assert_eq!(format!("{target:?}"), "wss://h:8443/a");
        assert_eq!(Target::websocket("ws://h/@a").unwrap().resource, "/@a");
        assert_eq!(Target::websocket("ws://a%zz@h/"), Err(Error::InvalidUrl(UriError::UserInfo)));
        assert_eq!(Target::websocket("http://h/"), Err(Error::InvalidUrl(UriError::Scheme)));
        assert_eq!(Target::websocket("ws://h/#a"), Err(Error::InvalidUrl(UriError::Fragment)));
    }

    #[test]
    fn shows_no_secrets_of_a_url() {
        for (url, shown) in [
            ("ws://user:pass@host:80/path?token=1#x", "ws://host:80/path"),
            ("https://hub:se@cret@backend?token=secret", "https://backend"),
            ("wss://host?token=1", "wss://host"),
            ("ws://u@p@host/a@b", "ws://host/a@b"),
            ("http://[::1]:80/@a", "http://[::1]:80/@a"),
            ("ws+unix:/run/hub:/chat?secret", "ws+unix:/run/hub:/chat"),
            ("user:pass@host/path", "host/path"),
            ("/login?code=1&next=https://u:p@host/a", "/login"),
            ("//user:pass@host/path", "//host/path"),
            ("/a//b@c", "/a//b@c"),
            ("nonsense", "nonsense"),
            ("", ""),
            // Passwords that are not escaped.
            ("ws://u:p/w@h/", "ws://h/"),
            ("ws://u:p?w@h:1/a?b", "ws://h:1/a"),
            ("ws://u:p#w@h", "ws://h"),
            ("ws://u:/w@h", "ws://h"),
            ("u:p/w@h:3128", "h:3128"),
            ("ws//u:p@h/", "h/"),
            ("ws://a b/?to=c@d&token=1", "ws://…"),
        ] {
            assert_eq!(without_secrets(url), shown, "{url}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn takes_the_path_of_a_socket_out_of_a_url() {
        let parts = |url| {
            let target = Target::websocket(url).unwrap();
            (target.unix.clone().unwrap(), target.authority.clone(), target.resource)
        };
        let expected =
            |path: &str, resource: &str| (path.to_owned(), "localhost".to_owned(), resource.to_owned());
        assert_eq!(parts("ws+unix:/run/a.sock"), expected("/run/a.sock", "/"));
        assert_eq!(parts("ws+unix:///run/a.sock:/chat?b"), expected("/run/a.sock", "/chat?b"));
        assert_eq!(parts("WS+UNIX:a.sock:/chat"), expected("a.sock", "/chat"));
        assert_eq!(Target::websocket("ws+unix:"), Err(Error::InvalidUrl(UriError::Scheme)));
        assert_eq!(Target::websocket("ws+unix:/a:b"), Err(Error::InvalidUrl(UriError::Authority)));
        let from = Target::websocket("ws+unix:/run/a.sock:/x").unwrap();
        assert_eq!(from.redirected(b"/y").unwrap().unix, from.unix);
        assert!(from.is_same_origin(&from.redirected(b"y").unwrap()));
        let leaves = from.redirected(b"ws://localhost/").unwrap();
        assert!(leaves.unix.is_none() && !from.is_same_origin(&leaves));
    }

    #[test]
    fn finds_where_a_redirect_leads() {
        let from = Target::websocket("wss://a.example:1/x/y?q").unwrap();
        let to = |location: &str| {
            let to = from.redirected(location.as_bytes())?;
            Some(format!("{}://{}{}", if to.secure { "wss" } else { "ws" }, to.authority, to.resource))
        };
        for (location, expected) in [
            ("https://b.example/z", "wss://b.example/z"),
            ("WSS://b.example", "wss://b.example/"),
            ("/z?q#f", "wss://a.example:1/z?q"),
            ("//b.example", "wss://b.example/"),
            // RFC 3986 §5.4.
            ("z", "wss://a.example:1/x/z"),
            ("./z?r", "wss://a.example:1/x/z?r"),
            ("../z", "wss://a.example:1/z"),
            ("../../../z", "wss://a.example:1/z"),
            ("..", "wss://a.example:1/"),
            (".", "wss://a.example:1/x/"),
            ("/a/./b/../c", "wss://a.example:1/a/c"),
            ("?r", "wss://a.example:1/x/y?r"),
            ("", "wss://a.example:1/x/y?q"),
        ] {
            assert_eq!(to(location).as_deref(), Some(expected), "{location}");
        }
        for location in
            ["ftp://b.example/", "http://b.example/", "mailto:a@b", "https:z", "//u:p@b/", "//", "/é"]
        {
            assert_eq!(to(location), None, "{location}");
        }
        assert_eq!(from.redirected(b"/\xff"), None);
    }

    #[test]
    fn tells_origins_apart() {
        let at = |url| Target::websocket(url).unwrap();
        assert!(at("ws://h/a").is_same_origin(&at("ws://H:80/b")));
        for other in ["wss://h/", "ws://h:81/", "ws://i/"] {
            assert!(!at("ws://h/").is_same_origin(&at(other)), "{other}");
        }
    }
}
