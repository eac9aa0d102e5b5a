//! Proxies from the environment: `ws_proxy`, `wss_proxy`, `http_proxy`, `https_proxy`, `all_proxy`, `no_proxy`.

use std::fmt;
use std::net::IpAddr;

use super::Proxy;
use crate::error::Error;

/// A snapshot of the variables.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Environment {
    plain: Option<String>,
    secure: Option<String>,
    exceptions: String,
}

impl Environment {
    pub(crate) fn read() -> Self {
        Self::from_variables(|name| std::env::var(name).ok())
    }

    fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Self {
        let find = |names: &[&str]| {
            let set = |name: &str| variable(name).filter(|value| !value.is_empty());
            names.iter().find_map(|name| {
                // A CGI script receives the request header `Proxy` as HTTP_PROXY, so the requester controls that variable.
                let capitals = || if *name == "http_proxy" { None } else { set(&name.to_ascii_uppercase()) };
                set(name).or_else(capitals)
            })
        };
        Self {
            plain: find(&["ws_proxy", "http_proxy", "all_proxy"]),
            secure: find(&["wss_proxy", "https_proxy", "all_proxy"]),
            exceptions: find(&["no_proxy"]).unwrap_or_default(),
        }
    }

    /// The proxy for this server, if any.
    pub(crate) fn proxy(&self, secure: bool, host: &str, port: u16) -> Result<Option<Proxy>, Error> {
        let proxy = if secure { &self.secure } else { &self.plain };
        match proxy {
            Some(url) if !self.is_exception(host, port) => Proxy::new(url).map(Some),
            _ => Ok(None),
        }
    }

    fn is_exception(&self, host: &str, port: u16) -> bool {
        let host = host.strip_suffix('.').unwrap_or(host);
        let mut entries = self.exceptions.split([',', ' ']).filter(|entry| !entry.is_empty());
        entries.any(|entry| covers(entry, host, port))
    }
}

/// Omits the values, which may contain passwords.
impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Environment").finish_non_exhaustive()
    }
}

/// Whether an entry of `no_proxy` matches this server: `*`, an address, a network (`10.0.0.0/8`), or a domain with its
/// subdomains, with or without a leading dot; all but the network may have a port.
fn covers(entry: &str, host: &str, port: u16) -> bool {
    if entry == "*" {
        return true;
    }
    if let Ok(address) = host.parse::<IpAddr>()
        && let Some((network, bits)) = entry.split_once('/')
    {
        let network = network.trim_matches(['[', ']']).parse::<IpAddr>();
        return network
            .ok()
            .zip(bits.parse().ok())
            .is_some_and(|(network, bits)| contains(network, bits, address));
    }
    let bare = entry.trim_matches(['[', ']']).parse::<IpAddr>();
    if let Ok(address) = bare {
        return host.parse() == Ok(address);
    }
    let entry = match entry.rsplit_once(':') {
        Some((name, number)) => match number.parse::<u16>() {
            Ok(number) if number == port => name,
            _ => return false,
        },
        None => entry,
    };
    let domain = entry.trim_matches(['[', ']']).trim_start_matches("*.").trim_matches('.');
    match host.len().checked_sub(domain.len()) {
        Some(_) if domain.is_empty() => false,
        Some(0) => host.eq_ignore_ascii_case(domain),
        Some(at) => {
            // An address has no domain.
            host.parse::<IpAddr>().is_err()
                && host.as_bytes()[at..].eq_ignore_ascii_case(domain.as_bytes())
                && host.as_bytes()[at - 1] == b'.'
        }
        None => false,
    }
}

fn contains(network: IpAddr, bits: u32, address: IpAddr) -> bool {
    let differ = |network: u128, address: u128, len: u32| {
        // Compares the first `bits` of `len`.
        bits > len || (bits > 0 && (network ^ address) >> (len - bits) != 0)
    };
    match (network, address) {
        (IpAddr::V4(network), IpAddr::V4(address)) => {
            !differ(network.to_bits().into(), address.to_bits().into(), 32)
        }
        (IpAddr::V6(network), IpAddr::V6(address)) => !differ(network.to_bits(), address.to_bits(), 128),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(variables: &[(&str, &str)]) -> Environment {
        Environment::from_variables(|name| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn finds_the_variable_for_a_scheme() {
        let all =
            environment(&[("all_proxy", "socks5://a:1"), ("HTTPS_PROXY", "b:2"), ("HTTP_PROXY", "evil:3")]);
        let at = |secure| all.proxy(secure, "h", 80).unwrap();
        assert_eq!(at(false), Some(Proxy::new("socks5://a:1").unwrap()));
        assert_eq!(at(true), Some(Proxy::new("http://b:2").unwrap()));
        let specific = environment(&[("ws_proxy", "a:1"), ("http_proxy", "b:2"), ("wss_proxy", "")]);
        assert_eq!(specific.proxy(false, "h", 80), Proxy::new("a:1").map(Some));
        assert_eq!(specific.proxy(true, "h", 80), Ok(None));
        // An unusable proxy is an error, never skipped silently.
        let broken = environment(&[("http_proxy", "ftp://a")]);
        assert!(broken.proxy(false, "h", 80).is_err());
    }

    #[test]
    fn exceptions_are_domains_addresses_and_networks() {
        let list = "example.com,.internal, 10.0.0.0/8 ,127.0.0.1,[::1],fd00::/8,*.wild.example,ported:81";
        let environment = environment(&[("http_proxy", "a:1"), ("no_proxy", list)]);
        let direct = |host| environment.proxy(false, host, 80).unwrap().is_none();
        for host in [
            "example.com",
            "EXAMPLE.com.",
            "a.example.com",
            "x.internal",
            "internal",
            "10.255.0.1",
            "127.0.0.1",
            "::1",
            "0:0::1",
            "fd12::1",
            "a.wild.example",
        ] {
            assert!(direct(host), "{host}");
        }
        for host in
            ["notexample.com", "example.org", "11.0.0.1", "127.0.0.2", "::2", "fe80::1", "ported", "m"]
        {
            assert!(!direct(host), "{host}");
        }
        assert_eq!(environment.proxy(false, "ported", 81), Ok(None));
        let none = super::tests::environment(&[("http_proxy", "a:1"), ("NO_PROXY", "*")]);
        assert_eq!(none.proxy(false, "h", 80), Ok(None));
    }
}
