//! Checks `:authority` and `host` (RFC 9113 §8.3.1, RFC 3986 §3.2).

use super::bytes::is_authority;
use crate::error::Violation;

/// The default port of "http" or "https", whose URIs must have an authority and a path; `None` for other schemes.
/// RFC 3986 §3.1: schemes are case-insensitive.
pub(super) fn port_default(scheme: &[u8]) -> Option<u16> {
    // Nearly all are in lower case.
    let is = |name: &[u8]| scheme == name || scheme.eq_ignore_ascii_case(name);
    match () {
        () if is(b"https") => Some(443),
        () if is(b"http") => Some(80),
        () => None,
    }
}

/// Checks `:authority` and `host` of a request; `port_default` is that of "http" or "https", `None` for other schemes.
pub(super) fn check(
    authority: Option<&[u8]>,
    host: Option<&[u8]>,
    port_default: Option<u16>,
) -> Result<(), Violation> {
    if port_default.is_none() {
        // RFC 9113 §8.3.1: other schemes may have no authority, or an empty one. `host` is compared with it below.
        if let Some(authority) = authority.or(host).filter(|authority| !authority.is_empty()) {
            check_authority(authority)?;
        }
        return check_same(authority, host, None);
    }
    // RFC 9113 §8.3.1: "http" and "https" have :authority or host, and neither is empty.
    match (authority, host) {
        (None, None) => return Err(Violation::AuthorityMissing),
        (Some(one), None) | (None, Some(one)) => check_authority(one)?,
        // `host` is compared with it below.
        (Some(authority), Some(_)) => check_authority(authority)?,
    }
    check_same(authority, host, port_default)
}

/// Checks the target of CONNECT: a host and a port (RFC 9113 §8.5).
pub(super) fn check_connect(target: &[u8], host: Option<&[u8]>) -> Result<(), Violation> {
    check_authority(target)?;
    match split_port(target) {
        (host, Some(port)) if !host.is_empty() && (1..=5).contains(&port.len()) => {}
        _ => return Err(Violation::AuthorityInvalid),
    }
    check_same(Some(target), host, None)
}

/// RFC 9113 §8.3.1: a request is malformed if `host` differs from `:authority`.
fn check_same(
    authority: Option<&[u8]>,
    host: Option<&[u8]>,
    port_default: Option<u16>,
) -> Result<(), Violation> {
    let (Some(authority), Some(host)) = (authority, host) else { return Ok(()) };
    if authority == host {
        return Ok(());
    }
    // RFC 3986 §6.2.2.1, §6.2.3: hosts are case-insensitive, and the default port may be omitted.
    let (host_a, port_a) = split_port(authority);
    let (host_b, port_b) = split_port(host);
    let same_port = port_number(port_a, port_default) == port_number(port_b, port_default);
    if host_a.eq_ignore_ascii_case(host_b) && same_port { Ok(()) } else { Err(Violation::HostMismatch) }
}

/// RFC 9113 §8.3.1: no user information, and not empty.
fn check_authority(authority: &[u8]) -> Result<(), Violation> {
    if is_authority(authority) { Ok(()) } else { Err(Violation::AuthorityInvalid) }
}

/// The host, and the digits of the port if a colon and only digits follow the host.
fn split_port(authority: &[u8]) -> (&[u8], Option<&[u8]>) {
    let digits = authority.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    let (before, port) = authority.split_at(authority.len() - digits);
    match before {
        // A valid host contains other colons only in brackets, and an invalid one equals none.
        [host @ .., b':'] => (host, Some(port)),
        _ => (authority, None),
    }
}

/// The number of a port, or the default if there is none (RFC 3986 §6.2.3); `None` if it is too large.
fn port_number(port: Option<&[u8]>, default: Option<u16>) -> Option<u64> {
    match port {
        None | Some(b"") => default.map(u64::from),
        Some(digits) => super::content_length::parse_digits(digits),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_compared_as_uris_are() {
        // RFC 9113 §8.3.1, RFC 3986 §6.2: authority, host, default port, and whether they are the same.
        let cases: &[(&[u8], &[u8], u16, bool)] = &[
            (b"example.org", b"example.org", 443, true),
            (b"Example.ORG", b"example.org", 443, true),
            (b"example.org:443", b"example.org", 443, true),
            (b"example.org:", b"example.org", 443, true),
            (b"example.org:0443", b"example.org:443", 443, true),
            (b"example.org:80", b"example.org", 443, false),
            (b"example.org:80", b"example.org", 80, true),
            (b"example.org", b"example.net", 443, false),
            (b"example.org", b"", 443, false),
            (b"[::1]", b"[::1]:443", 443, true),
            (b"[::1]:8443", b"[::1]:443", 443, false),
            (b"example.org:99999999999999999999", b"example.org:443", 443, false),
        ];
        for &(authority, host, port, same) in cases {
            let wanted = if same { Ok(()) } else { Err(Violation::HostMismatch) };
            assert_eq!(
                check(Some(authority), Some(host), Some(port)),
                wanted,
                "{}",
                authority.escape_ascii()
            );
        }
    }

    #[test]
    fn authorities_have_a_host_and_no_user_information() {
        // RFC 9113 §8.3.1: no user information; not empty; RFC 3986 §3.2.2 for the characters.
        for good in
            [&b"a"[..], b"a.b:1", b"[::1]", b"[::1]:80", b"127.0.0.1", b"a_b-c~d", b"%41", b"[v1.a:b]", b"a:"]
        {
            assert_eq!(check(Some(good), None, Some(443)), Ok(()), "{}", good.escape_ascii());
            assert_eq!(check(None, Some(good), Some(443)), Ok(()), "{}", good.escape_ascii());
        }
        let bad = [
            &b""[..],
            b":80",
            b"user@a",
            b"a/b",
            b"a b",
            b"a?b",
            b"a#b",
            b"a\\b",
            b"\xc3\xa4",
            b"[::1",
            b"::1",
            b"a:b",
            b"a:b:c",
            b"a:1:2",
            b"%zz",
            b"%4",
            b"%4z",
            b"%z4",
            b"a%",
            b"[]",
            b"[a]",
            b"[::1]x",
            b"[::1]:x",
            b"[1.2.3.4]",
            b"[::1%25eth0]",
            b"[v1]",
            b"[v.a]",
            b"[vg.a]",
            b"[v1.]",
            b"[v1.a@b]",
            b"a[::1]",
            b"a]",
        ];
        for bad in bad {
            let invalid = Err(Violation::AuthorityInvalid);
            assert_eq!(check(Some(bad), None, Some(443)), invalid, "{}", bad.escape_ascii());
            assert_eq!(check(None, Some(bad), Some(443)), invalid, "{}", bad.escape_ascii());
            if !bad.is_empty() {
                assert_eq!(check(Some(bad), None, None), invalid, "{}", bad.escape_ascii());
                assert_eq!(check(None, Some(bad), None), invalid, "{}", bad.escape_ascii());
            }
        }
        // RFC 9113 §8.3.1: schemes other than "http" and "https" may have an empty authority.
        assert_eq!(check(Some(b""), None, None), Ok(()));
        assert_eq!(check(None, Some(b""), None), Ok(()));
        assert_eq!(check(None, None, Some(443)), Err(Violation::AuthorityMissing));
        assert_eq!(check(None, None, None), Ok(()));
    }

    #[test]
    fn connect_requires_a_port() {
        // RFC 9113 §8.5: :authority holds the host and port to connect to.
        for good in [&b"a:1"[..], b"a.example:65535", b"[::1]:443"] {
            assert_eq!(check_connect(good, None), Ok(()), "{}", good.escape_ascii());
            assert_eq!(check_connect(good, Some(good)), Ok(()));
        }
        for bad in [
            &b"a"[..],
            b"a:",
            b":443",
            b"[::1]",
            b"a:x",
            b"u@a:1",
            b"a:123456",
            b"::1:443",
            b"fe80::1:443",
            b"",
        ] {
            assert_eq!(check_connect(bad, None), Err(Violation::AuthorityInvalid), "{}", bad.escape_ascii());
        }
        assert_eq!(check_connect(b"a:1", Some(b"b:1")), Err(Violation::HostMismatch));
    }
}
