//! The server to load: its addresses, and whether they may be loaded.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use wireloom::{Connector, DeflateConfig, WebSocketConfig};

use crate::args::Load;
use crate::cmd::connect::connector;

/// A connector for the URL. The host is resolved once, so that each connection leads to an address that has been checked.
///
/// # Errors
/// The URL or an option that cannot be used, or a host that is not private.
pub(super) async fn connector(args: &Load) -> Result<Connector, String> {
    let mut config = WebSocketConfig::default();
    let limits = &mut config.core.limits;
    limits.message_len_max = limits.message_len_max.max(args.payload.size as u64);
    limits.frame_len_max = limits.frame_len_max.max(args.payload.size as u64);
    let mut connector = Connector::new()
        .config(config)
        .http2(args.http2)
        .http1_only(!args.http2)
        .connect_timeout(args.volume.timeout)
        .handshake_timeout(args.volume.timeout)
        .tls(connector::tls(&args.tls)?);
    for name in &args.subprotocol {
        connector = connector.subprotocol(name);
    }
    for (name, value) in &args.header {
        connector = match &*name.to_ascii_lowercase() {
            "host" => connector.host(value),
            "origin" => connector.origin(value),
            _ => connector.header(name, value),
        };
    }
    if args.payload.compress {
        connector = connector.deflate(DeflateConfig::default());
    }
    if let Some(name) = &args.tls.sni {
        connector = connector.server_name(name);
    }
    let Some((host, port)) = host(&args.url).zip(connector::port(&args.url)) else {
        // Connecting reports the reason.
        return Ok(connector);
    };
    // So does it for a host without addresses.
    let Ok(found) = tokio::net::lookup_host((host, port)).await else { return Ok(connector) };
    let addresses: Vec<SocketAddr> = found.collect();
    if !args.i_own_this_server
        && let Some(public) = addresses.iter().find(|address| !is_private(address.ip()))
    {
        let name = if host.parse::<IpAddr>().is_ok() {
            host.to_owned()
        } else {
            format!("{host} ({})", public.ip())
        };
        return Err(format!(
            "{name} is outside loopback and private networks; --i-own-this-server allows to load it"
        ));
    }
    Ok(connector.resolve(host, addresses))
}

/// The host of a URL, without brackets.
fn host(url: &str) -> Option<&str> {
    let (_, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next(),
        None => host.split(':').next(),
    }
    .filter(|host| !host.is_empty())
}

/// Loopback, private and link-local addresses (RFC 1918, RFC 4193, RFC 3927).
fn is_private(address: IpAddr) -> bool {
    let is_private_v6 = |address: Ipv6Addr| {
        address.is_loopback() || address.is_unique_local() || address.is_unicast_link_local()
    };
    match address.to_canonical() {
        IpAddr::V4(address) => {
            address.is_loopback()
                || address.is_private()
                || address.is_link_local()
                || address.is_unspecified()
        }
        IpAddr::V6(address) => is_private_v6(address) || address.is_unspecified(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_host_of_a_url() {
        for (url, expected) in [
            ("ws://h/", Some("h")),
            ("wss://u:p@h:81?x", Some("h")),
            ("ws://[::1]:8080/", Some("::1")),
            ("ws://[fe80::1]", Some("fe80::1")),
            ("ws:///", None),
            ("nonsense", None),
        ] {
            assert_eq!(host(url), expected, "{url}");
        }
    }

    #[test]
    fn knows_private_networks() {
        for private in [
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.1.1",
            "::1",
            "fd00::1",
            "fe80::1",
            "::ffff:10.0.0.1",
            "0.0.0.0",
        ] {
            assert!(is_private(private.parse().unwrap()), "{private}");
        }
        for public in ["8.8.8.8", "172.32.0.1", "192.169.0.1", "100.64.0.1", "2001:db8::1", "::ffff:8.8.8.8"]
        {
            assert!(!is_private(public.parse().unwrap()), "{public}");
        }
    }
}
