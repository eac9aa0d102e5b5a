//! Parsers for values on the command line: sizes, times, counts, addresses, headers.

use std::net::{IpAddr, ToSocketAddrs as _};
use std::time::Duration;

use wireloom::{IpNet, OriginPolicy};

/// An address to use instead of what the resolver would find.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Resolve {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) address: IpAddr,
}

/// Whether a URL has this scheme.
pub(crate) fn has_scheme(url: &str, scheme: &str) -> bool {
    // `ws+unix:PATH` has no authority.
    url.split_once(':').is_some_and(|(found, _)| found.eq_ignore_ascii_case(scheme))
}

/// A JSON value, as text.
pub(super) fn json(text: &str) -> Result<String, String> {
    let checked: Result<serde_json::Value, _> = serde_json::from_str(text);
    checked.map(|_| text.to_owned()).map_err(|error| format!("it is not JSON: {error}"))
}

/// Bytes: `65536`, `64KiB`, `64K`, `16M`, `1G`.
pub(super) fn size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|char: char| char.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        _ => return Err("a size is a number of bytes, or one with K, M or G, such as 64K".into()),
    };
    let number: u64 =
        digits.parse().map_err(|_| "a size is a whole number of bytes, such as 65536 or 64K".to_owned())?;
    number.checked_mul(1 << shift).filter(|&bytes| bytes <= 1 << 40).ok_or_else(|| "at most 1024G".to_owned())
}

/// A size that is not 0 and fits into `usize`.
pub(super) fn memory(text: &str) -> Result<usize, String> {
    match size(text)? {
        0 => Err("it must be more than 0".into()),
        bytes => usize::try_from(bytes).map_err(|error| error.to_string()),
    }
}

/// A network, or an address: `10.1.0.0/16`, `::1`.
pub(super) fn network(text: &str) -> Result<IpNet, String> {
    let address = text.parse::<IpAddr>().map(IpNet::from);
    address.or_else(|_| text.parse()).map_err(|_| "an address or a network, such as 10.1.0.0/16".to_owned())
}

/// A time: `10` seconds, `1.5s`, `500ms`, `2m`, `1h`.
pub(crate) fn time(text: &str) -> Result<Duration, String> {
    const SHAPE: &str = "a time is a number of seconds, or one with ms, s, m or h, such as 500ms";
    let digits = text.trim_end_matches(|char: char| char.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" | "s" => 1.0,
        "ms" => 0.001,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(SHAPE.into()),
    };
    let number: f64 = digits.parse().map_err(|_| SHAPE.to_owned())?;
    let time = Duration::try_from_secs_f64(number * unit).map_err(|_| SHAPE.to_owned())?;
    if time < Duration::from_millis(1) || time > Duration::from_secs(366 * 86_400) {
        return Err("from 1ms to a year".into());
    }
    Ok(time)
}

/// A time, or 0.
pub(super) fn time_or_zero(text: &str) -> Result<Duration, String> {
    if matches!(text, "0" | "0s" | "0ms") { Ok(Duration::ZERO) } else { time(text) }
}

/// A count that is not 0.
pub(super) fn count(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number) if (1..=1 << 28).contains(&number) => Ok(number),
        _ => Err("a whole number, at least 1".into()),
    }
}

/// Where to listen: an address, or `unix:PATH`.
pub(super) fn listen(text: &str) -> Result<String, String> {
    match text.strip_prefix("unix:") {
        Some("") => Err("a Unix socket is unix:PATH, such as unix:/run/wireloom.sock".into()),
        Some(_) if cfg!(unix) => Ok(text.into()),
        _ => address(text),
    }
}

/// Where to listen: `127.0.0.1:8080`, `[::1]:8080`, `localhost:8080`, or `:8080` for all interfaces.
pub(super) fn address(text: &str) -> Result<String, String> {
    const SHAPE: &str =
        "an address is HOST:PORT, such as 127.0.0.1:8080 or [::1]:8080, or :PORT for all interfaces";
    let (host, port) = text.rsplit_once(':').ok_or(SHAPE)?;
    let bare_ipv6 = host.contains(':') && !host.starts_with('[');
    if bare_ipv6 || port.parse::<u16>().is_err() {
        return Err(SHAPE.into());
    }
    // Names are resolved when the address is bound.
    if host.starts_with('[') {
        text.to_socket_addrs().map_err(|_| SHAPE.to_owned())?;
    }
    Ok(text.into())
}

/// A URL. Without a scheme it is that of a WebSocket: `localhost:8080/echo`.
pub(super) fn url(text: &str) -> Result<String, String> {
    if text.starts_with("unix:/") {
        return Err("a server at a Unix socket has a URL such as ws+unix:PATH:/RESOURCE".into());
    }
    let is_unix = ["ws+unix", "http+unix"].iter().any(|scheme| has_scheme(text, scheme));
    let is_bare = !text.contains("://")
        && !is_unix
        && text.starts_with(|first: char| first.is_ascii_alphanumeric() || first == '[')
        && !text.contains(char::is_whitespace);
    Ok(if is_bare { format!("ws://{text}") } else { text.to_owned() })
}

/// `NAME=VALUE; NAME=VALUE`, as in curl; a file of cookies is not read.
pub(super) fn cookies(text: &str) -> Result<String, String> {
    if text.contains('=') { Ok(text.into()) } else { Err("cookies are NAME=VALUE; NAME=VALUE".into()) }
}

/// `*`, or an origin as browsers send it.
pub(super) fn origin(text: &str) -> Result<String, String> {
    if text == "*" || OriginPolicy::is_origin(text) {
        Ok(text.into())
    } else {
        Err("an origin is SCHEME://HOST or SCHEME://HOST:PORT, such as https://example.com".into())
    }
}

/// `Name: value`.
pub(super) fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once(':').ok_or("a header is NAME: VALUE")?;
    Ok((name.trim().into(), value.trim().into()))
}

/// `HOST:PORT:ADDRESS`, as in curl; the address may be in brackets.
pub(super) fn resolve(text: &str) -> Result<Resolve, String> {
    const SHAPE: &str = "it is HOST:PORT:ADDRESS, such as example.com:443:127.0.0.1";
    let mut parts = text.splitn(3, ':');
    let (Some(host), Some(port), Some(address)) = (parts.next(), parts.next(), parts.next()) else {
        return Err(SHAPE.into());
    };
    let bare = address.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(address);
    let address: IpAddr = bare.parse().map_err(|_| SHAPE.to_owned())?;
    let port: u16 = port.parse().map_err(|_| SHAPE.to_owned())?;
    if host.is_empty() { Err(SHAPE.into()) } else { Ok(Resolve { host: host.into(), port, address }) }
}

/// An HTTP method: a token (RFC 9110 §9.1), except CONNECT.
pub(super) fn method(text: &str) -> Result<String, String> {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if text.is_empty() || !text.bytes().all(is_token) {
        return Err("a method is a word, such as GET".into());
    }
    if text == "CONNECT" {
        return Err("CONNECT opens a tunnel, which this command does not use".into());
    }
    Ok(text.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_sizes() {
        assert_eq!(size("0"), Ok(0));
        assert_eq!(size("65536"), Ok(65_536));
        assert_eq!(size("64k"), Ok(65_536));
        assert_eq!(size("64KiB"), Ok(65_536));
        assert_eq!(size("2M"), Ok(2 << 20));
        assert_eq!(size("1G"), Ok(1 << 30));
        for wrong in ["", "k", "-1", "1.5M", "1T", "1 M", "99999999999999999999", "1025G"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
        assert!(memory("0").is_err());
    }

    #[test]
    fn reads_times() {
        assert_eq!(time("10"), Ok(Duration::from_secs(10)));
        assert_eq!(time("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(time("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(time("2m"), Ok(Duration::from_secs(120)));
        for wrong in ["", "s", "0", "-1", "1d", "nan", "inf", "1e30", "9000h", "0.9ms"] {
            assert!(time(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn reads_networks() {
        for (right, read) in [("10.1.0.0/16", "10.1.0.0/16"), ("::1", "::1/128"), ("0.0.0.0", "0.0.0.0/32")] {
            assert_eq!(network(right).map(|network| network.to_string()), Ok(read.to_owned()));
        }
        for wrong in ["", "10.1.0.0/33", "10.1/16", "host", "10.1.0.0/", "::/129"] {
            assert!(network(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn reads_addresses() {
        for right in ["127.0.0.1:8080", "[::1]:0", "localhost:80", ":8080"] {
            assert_eq!(address(right), Ok(right.to_owned()));
        }
        for wrong in ["", "8080", "127.0.0.1", ":", "127.0.0.1:65536", "::1:80", "[::g]:80"] {
            assert!(address(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn reads_overridden_addresses() {
        let expected =
            |address: &str| Resolve { host: "h".into(), port: 443, address: address.parse().unwrap() };
        assert_eq!(resolve("h:443:127.0.0.1"), Ok(expected("127.0.0.1")));
        assert_eq!(resolve("h:443:[::1]"), Ok(expected("::1")));
        assert_eq!(resolve("h:443:::1"), Ok(expected("::1")));
        for wrong in ["", "h", "h:443", "h:x:127.0.0.1", ":443:127.0.0.1", "h:443:name"] {
            assert!(resolve(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn reads_methods() {
        for right in ["GET", "M-SEARCH", "get"] {
            assert_eq!(method(right), Ok(right.to_owned()));
        }
        for wrong in ["", "G T", "GET\r\n", "CONNECT", "GÉT"] {
            assert!(method(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn completes_urls() {
        for (text, expected) in [
            ("localhost:8080/echo", "ws://localhost:8080/echo"),
            ("[::1]:80", "ws://[::1]:80"),
            ("example.com", "ws://example.com"),
            ("https://example.com", "https://example.com"),
            ("not a url", "not a url"),
            ("/path", "/path"),
        ] {
            assert_eq!(url(text).unwrap(), expected);
        }
        assert!(url("unix:/run/socket").unwrap_err().contains("ws+unix:"));
        assert_eq!(url("unix:9000/").unwrap(), "ws://unix:9000/");
    }

    #[test]
    fn reads_headers() {
        assert_eq!(header("Cookie: a=b: c"), Ok(("Cookie".into(), "a=b: c".into())));
        assert!(header("Cookie").is_err());
    }
}
