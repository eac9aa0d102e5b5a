//! Which web pages may open WebSockets (RFC 6455 §10.2). Browsers send cookies with the handshake and let any page begin one, so
//! that the server has to check the origin.

use std::net::IpAddr;

use wireloom_ws::handshake;

/// Which web pages may open WebSockets. Clients that send no `Origin` are not browsers and are always allowed.
///
/// ```
/// use wireloom::{OriginPolicy, ServerConfig};
///
/// let mut config = ServerConfig::default();
/// config.origins = OriginPolicy::listed(["https://example.com"]).with_same_origin(["api.example.com"]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginPolicy {
    rule: Rule,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Rule {
    Any,
    Listed {
        /// In lower case.
        origins: Vec<String>,
        /// `None` when pages of the server's own origin are not allowed.
        hosts: Option<Vec<String>>,
    },
}

impl Default for OriginPolicy {
    fn default() -> Self {
        Self::any()
    }
}

impl OriginPolicy {
    /// Every page.
    pub fn any() -> Self {
        Self { rule: Rule::Any }
    }

    /// Pages of these origins alone, each as browsers send it: `https://example.com`, with a port that is not the scheme's own. A
    /// [pattern](Self::is_pattern) such as `https://*.example.com` allows the subdomains of a host.
    pub fn listed<T: AsRef<str>>(origins: impl IntoIterator<Item = T>) -> Self {
        let origins = origins.into_iter().map(|origin| lower(origin.as_ref())).collect();
        Self { rule: Rule::Listed { origins, hosts: None } }
    }

    /// Whether a text has the form in which browsers send an origin (RFC 6454 §6.2): a scheme, a host, and a port unless it is the
    /// default one of `http` or `https`; or `null`. No other text can match an origin.
    pub fn is_origin(text: &str) -> bool {
        let is_in_scheme = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
        let is_in_host = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~[]:".contains(&byte);
        text.split_once("://").map_or(text == "null", |(scheme, host)| {
            !scheme.is_empty()
                && scheme.bytes().all(is_in_scheme)
                && !host.is_empty()
                && host.bytes().all(is_in_host)
                && without_default_port(&lower(scheme), host).is_none()
        })
    }

    /// Whether a text is a pattern of origins: an origin whose host begins with `*.`, which matches one or more labels, followed by at
    /// least two more.
    pub fn is_pattern(text: &str) -> bool {
        text.split_once("://*.").is_some_and(|(scheme, host)| {
            without_port(host).trim_matches('.').contains('.')
                && Self::is_origin(&format!("{scheme}://{host}"))
        })
    }

    /// Allows pages whose origin names the same host and port as the `Host` of the handshake, where that host is one of `hosts`
    /// (without port), `localhost`, or an IP address.
    ///
    /// Without the list a page could let its own name resolve to the server's address (DNS rebinding): then `Origin` and `Host`
    /// agree. An address is not resolved, and browsers resolve `localhost` themselves.
    #[must_use]
    pub fn with_same_origin<T: AsRef<str>>(mut self, hosts: impl IntoIterator<Item = T>) -> Self {
        if let Rule::Listed { hosts: known, .. } = &mut self.rule {
            let hosts = hosts.into_iter().map(|host| lower(host.as_ref()));
            known.get_or_insert_default().extend(hosts);
        }
        self
    }

    /// Whether the page that made this request may open a WebSocket.
    pub fn allows(&self, request: &handshake::Request) -> bool {
        self.allows_page(request.origin(), request.host())
    }

    /// Whether the page that made a request with this `Origin` and this `Host` is allowed. A request without `Origin` is.
    pub fn allows_page(&self, origin: Option<&str>, host: &str) -> bool {
        match (&self.rule, origin) {
            (Rule::Any, _) | (_, None) => true,
            (Rule::Listed { origins, hosts }, Some(origin)) => {
                let origin = lower(origin);
                origins.iter().any(|listed| matches(listed, &origin))
                    || hosts.as_ref().is_some_and(|hosts| is_same(&origin, &lower(host), hosts))
            }
        }
    }

    /// Whether a request with this `Host` may be answered with data that other sites must not read: the host is an IP address,
    /// `localhost`, a name without a dot, or that of an origin or host which is allowed.
    ///
    /// Browsers send no `Origin` when a page reads from its own origin. A page that lets its name resolve to this server's address (DNS
    /// rebinding) reads from its own origin, so that only `Host` shows it. Public names have a dot.
    pub fn allows_host(&self, host: &str) -> bool {
        let Rule::Listed { origins, hosts } = &self.rule else { return true };
        let host = lower(host);
        let name = without_port(&host);
        let is_of = |origin: &String| match origin.split_once("://") {
            Some((scheme, listed)) if listed.starts_with("*.") => {
                matches(&format!("{scheme}://{}", without_port(listed)), &format!("{scheme}://{name}"))
            }
            Some((_, listed)) => without_port(listed) == name,
            None => false,
        };
        is_known(name, hosts.as_deref().unwrap_or_default())
            || !name.is_empty() && !name.contains(['.', ':'])
            || origins.iter().any(is_of)
    }
}

/// Whether an origin is a listed one, or one of a listed pattern; both in lower case.
fn matches(listed: &str, origin: &str) -> bool {
    match listed.split_once("://*.") {
        None => listed == origin,
        Some((scheme, host)) => origin.split_once("://").is_some_and(|(own, authority)| {
            let label = authority.strip_suffix(host).and_then(|rest| rest.strip_suffix('.'));
            own == scheme && label.is_some_and(|label| !label.is_empty() && !label.starts_with('.'))
        }),
    }
}

fn is_same(origin: &str, host: &str, hosts: &[String]) -> bool {
    let Some((scheme, authority)) = origin.split_once("://") else { return false };
    // RFC 6454 §6.1: an origin leaves the default port out, where a proxy may add it to Host.
    let same = authority == host || without_default_port(scheme, host) == Some(authority);
    same && is_known(without_port(host), hosts)
}

fn is_known(name: &str, hosts: &[String]) -> bool {
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    bare.parse::<IpAddr>().is_ok()
        || name == "localhost"
        || name.ends_with(".localhost")
        || hosts.iter().any(|host| host == name)
}

fn without_port(authority: &str) -> &str {
    match authority.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => authority,
    }
}

/// The authority without the default port of the scheme, which browsers leave out (RFC 6454 §6.1); `None` if it has another port or
/// none.
fn without_default_port<'a>(scheme: &str, authority: &'a str) -> Option<&'a str> {
    match scheme {
        "http" => authority.strip_suffix(":80"),
        "https" => authority.strip_suffix(":443"),
        _ => None,
    }
}

fn lower(text: &str) -> String {
    text.to_ascii_lowercase()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn allows(policy: &OriginPolicy, origin: Option<&str>, host: &str) -> bool {
        let fields = [
            ("Host", Some(host)),
            ("Upgrade", Some("websocket")),
            ("Connection", Some("Upgrade")),
            ("Sec-WebSocket-Version", Some("13")),
            ("Sec-WebSocket-Key", Some("dGhlIHNhbXBsZSBub25jZQ==")),
            ("Origin", origin),
        ];
        let fields = fields.iter().filter_map(|(name, value)| Some((name.as_bytes(), (*value)?.as_bytes())));
        let version = handshake::Version::Http11;
        policy.allows(&handshake::Request::from_parts("GET", "/", version, fields).unwrap())
    }

    #[test]
    fn knows_the_form_of_an_origin() {
        for origin in
            ["https://example.com", "http://[::1]:8080", "https://a:80", "null", "chrome-extension://abc"]
        {
            assert!(OriginPolicy::is_origin(origin), "{origin}");
        }
        for other in [
            "",
            "*",
            "example.com",
            "https://",
            "://a",
            "https://a/",
            "https://*.a",
            "https://u@a",
            "https://a b",
            "https://a:443",
            "HTTP://a:80",
        ] {
            assert!(!OriginPolicy::is_origin(other), "{other}");
        }
    }

    #[test]
    fn allows_listed_origins_exactly() {
        let policy = OriginPolicy::listed(["https://Example.com", "http://b.example:81"]);
        for origin in ["https://example.com", "HTTPS://EXAMPLE.COM", "http://b.example:81"] {
            assert!(allows(&policy, Some(origin), "a"), "{origin}");
        }
        for origin in [
            "http://example.com",
            "https://example.com:444",
            "https://example.com.evil.example",
            "https://a.example.com",
            "https://evilexample.com",
            "http://a",
            "null",
        ] {
            assert!(!allows(&policy, Some(origin), "a"), "{origin}");
        }
        assert!(allows(&policy, None, "a"), "no browser");
        assert!(allows(&OriginPolicy::any(), Some("null"), "a"));
    }

    #[test]
    fn allows_the_subdomains_of_a_pattern() {
        let policy = OriginPolicy::listed(["https://*.Example.com", "http://*.b.example:81"]);
        for origin in ["https://a.example.com", "HTTPS://a.b.EXAMPLE.com", "http://x.b.example:81"] {
            assert!(allows(&policy, Some(origin), "a"), "{origin}");
        }
        for origin in [
            "https://example.com",
            "https://.example.com",
            "https://evilexample.com",
            "http://a.example.com",
            "https://a.example.com:444",
            "https://a.example.com.evil.example",
            "http://x.b.example",
            "https://*.example.com.evil.example",
        ] {
            assert!(!allows(&policy, Some(origin), "a"), "{origin}");
        }
        for pattern in ["https://*.example.com", "http://*.a.b:8080"] {
            assert!(OriginPolicy::is_pattern(pattern), "{pattern}");
        }
        for other in [
            "https://*",
            "https://*.com",
            "https://*.com:80",
            "https://a.*.com",
            "*.a.b",
            "https://*.*.a",
            "https://*.a.",
        ] {
            assert!(!OriginPolicy::is_pattern(other), "{other}");
        }
    }

    #[test]
    fn hosts_that_a_page_can_rebind_are_refused() {
        let policy = OriginPolicy::listed(["https://own.example", "https://*.sub.example:444"])
            .with_same_origin(["here.example"]);
        for host in [
            "127.0.0.1:80",
            "[::1]:80",
            "localhost",
            "wireloom:9090",
            "own.example",
            "OWN.example:8443",
            "here.example",
            "a.sub.example",
            "a.sub.example:9",
        ] {
            assert!(policy.allows_host(host), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "evil.example:8080",
            "own.example.evil.example",
            "sub.example",
            "127.0.0.1.evil.example",
            "[evil]:1:2",
        ] {
            assert!(!policy.allows_host(host), "{host}");
        }
        assert!(OriginPolicy::any().allows_host("evil.example"));
    }

    #[test]
    fn same_origin_is_for_known_hosts() {
        let policy = OriginPolicy::listed([""; 0]).with_same_origin(["own.example"]);
        for host in ["own.example", "OWN.example:8080", "127.0.0.1:80", "[::1]:80", "[::1]", "localhost:1"] {
            assert!(allows(&policy, Some(&format!("http://{host}")), host), "{host}");
        }
        // DNS rebinding: the name of the page resolves to this server.
        for host in
            ["evil.example", "evil.example:8080", "own.example.evil.example", "127.0.0.1.evil.example"]
        {
            assert!(!allows(&policy, Some(&format!("http://{host}")), host), "{host}");
        }
        assert!(!allows(&policy, Some("http://own.example"), "own.example:8080"));
        assert!(!allows(&policy, Some("http://own.example:8080"), "own.example"));
        for (origin, host, is_allowed) in [
            ("http://own.example", "own.example:80", true),
            ("https://own.example", "own.example:443", true),
            ("https://[::1]", "[::1]:443", true),
            ("http://own.example", "own.example:443", false),
            ("https://own.example", "own.example:80", false),
            ("https://evil.example", "evil.example:443", false),
        ] {
            assert_eq!(allows(&policy, Some(origin), host), is_allowed, "{origin} {host}");
        }
        assert!(!allows(&policy, Some("null"), "null"));
    }
}
