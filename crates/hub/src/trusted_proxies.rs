//! The address of a client behind proxies that name it in `X-Forwarded-For`.
//!
//! Each proxy appends the address that it was reached from. The last one has connected to the hub: if it is trusted, so is the address that
//! it has appended, and if that is a trusted proxy too, the one before. What is further left may be of the client's invention.

use std::net::{IpAddr, SocketAddr};

use wireloom::IpNet;

/// The client of a request with these header fields, which `peer` has sent.
pub(crate) fn client_address<'a>(
    trusted: &[IpNet],
    peer: SocketAddr,
    fields: impl Iterator<Item = (&'a str, &'a [u8])>,
) -> SocketAddr {
    if !is_trusted(trusted, peer.ip()) {
        return peer;
    }
    let values = fields.filter(|(name, _)| name.eq_ignore_ascii_case("x-forwarded-for"));
    let values: Vec<_> = values.map(|(_, value)| value).collect();
    let mut appended = values.into_iter().rev().flat_map(|value| value.rsplit(|&byte| byte == b','));
    let mut client = peer;
    while is_trusted(trusted, client.ip())
        && let Some(before) = appended.next().and_then(address)
    {
        client = before;
    }
    client
}

fn is_trusted(trusted: &[IpNet], address: IpAddr) -> bool {
    // An IPv4 peer of an IPv6 socket has a mapped address (RFC 4291 §2.5.5.2).
    trusted.iter().any(|network| network.contains(&address) || network.contains(&address.to_canonical()))
}

/// An address, for which the port is 0, or one with its port.
fn address(text: &[u8]) -> Option<SocketAddr> {
    let text = std::str::from_utf8(text).ok()?.trim();
    let without_port = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let address = without_port.parse().map(|address: IpAddr| SocketAddr::new(address, 0));
    address.or_else(|_| text.parse()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_the_last_address_that_no_trusted_proxy_has() {
        let trusted = ["10.0.0.0/8", "::1/128", "0.0.0.0/32"].map(|network| network.parse().unwrap());
        for (peer, values, expected) in [
            ("10.0.0.1:1", &["1.1.1.1, 2.2.2.2"][..], "2.2.2.2:0"),
            ("10.0.0.1:1", &["1.1.1.1", "2.2.2.2 , 10.9.9.9", "10.0.0.2"], "2.2.2.2:0"),
            ("[::ffff:10.0.0.1]:1", &["2.2.2.2:80"], "2.2.2.2:80"),
            ("[::1]:1", &["2001:db8::1"], "[2001:db8::1]:0"),
            ("0.0.0.0:0", &["[2001:db8::1]"], "[2001:db8::1]:0"),
            ("10.0.0.1:1", &["[2001:db8::1]:80"], "[2001:db8::1]:80"),
            // Requests of a proxy itself, and what none has appended.
            ("10.0.0.1:1", &[], "10.0.0.1:1"),
            ("10.0.0.1:1", &["10.0.0.3, 10.0.0.2"], "10.0.0.3:0"),
            ("10.0.0.1:1", &["1.1.1.1, unknown"], "10.0.0.1:1"),
            ("10.0.0.1:1", &["1.1.1.1, unknown, 10.0.0.2"], "10.0.0.2:0"),
            ("10.0.0.1:1", &[""], "10.0.0.1:1"),
            // From others.
            ("3.3.3.3:1", &["1.1.1.1"], "3.3.3.3:1"),
        ] {
            let fields = values.iter().map(|value| ("X-Forwarded-For", value.as_bytes()));
            let fields = [("Forwarded", &b"for=4.4.4.4"[..])].into_iter().chain(fields);
            let client = client_address(&trusted, peer.parse().unwrap(), fields);
            assert_eq!(client.to_string(), expected, "{peer} {values:?}");
        }
    }
}
