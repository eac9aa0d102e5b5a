//! Proxies: URLs, credentials, and opening a tunnel.

mod connect;
mod environment;
mod socks5;

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;

use super::credentials::{Credentials, split_userinfo};
use super::dial::Dialer;
use super::target::split_authority;
#[cfg(feature = "tls")]
use super::tls::ClientTls;
pub use crate::error::ProxyError;

use crate::error::Error;
use crate::transport::{Io, is_lost, write_all as write};

pub(super) use environment::Environment;

/// A proxy that opens a tunnel to the server.
///
/// ```
/// use wireloom::client::Proxy;
///
/// let proxy = Proxy::new("socks5h://127.0.0.1:1080")?.credentials("anna", "secret");
/// let connector = wireloom::Connector::new().proxy(proxy);
/// # Ok::<(), wireloom::Error>(())
/// ```
#[derive(Clone)]
pub struct Proxy {
    kind: Kind,
    host: String,
    port: u16,
    credentials: Option<Credentials>,
    /// Instead of the connector's.
    #[cfg(feature = "tls")]
    tls: Option<ClientTls>,
}

impl PartialEq for Proxy {
    fn eq(&self, other: &Self) -> bool {
        #[cfg(feature = "tls")]
        let has_same_tls = match (&self.tls, &other.tls) {
            (Some(one), Some(other)) => one.is_same(other),
            (one, other) => one.is_none() && other.is_none(),
        };
        #[cfg(not(feature = "tls"))]
        let has_same_tls = true;
        self.kind == other.kind
            && self.host == other.host
            && self.port == other.port
            && self.credentials == other.credentials
            && has_same_tls
    }
}

impl Eq for Proxy {}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// CONNECT over HTTP/1.1 (RFC 9110 §9.3.6).
    Http,
    /// The same, over TLS to the proxy.
    Https,
    /// RFC 1928; names are resolved here.
    Socks5,
    /// RFC 1928; names are resolved by the proxy.
    Socks5h,
}

impl Proxy {
    /// A proxy by its URL: `http://`, `https://` (TLS to the proxy), `socks5://` (host names are resolved here, to an IPv4
    /// address where there is one) or `socks5h://` (the proxy resolves them), optionally with `user:password@`, escaped as in any URL
    /// (RFC 3986 §3.2.1). Without scheme it is `http://`. The default ports are 80, 443 and 1080.
    ///
    /// # Errors
    /// [`ProxyError::InvalidUrl`] when it is not a proxy URL; [`Error::NoTls`] for `https` in a build without TLS.
    pub fn new(url: &str) -> Result<Self, Error> {
        let (scheme, rest) = url.split_once("://").unwrap_or(("http", url));
        let kind = match &*scheme.to_ascii_lowercase() {
            "http" => Kind::Http,
            "https" if cfg!(feature = "tls") => Kind::Https,
            "https" => return Err(Error::NoTls),
            "socks5" => Kind::Socks5,
            "socks5h" => Kind::Socks5h,
            _ => return Err(ProxyError::InvalidUrl.into()),
        };
        let (authority, path) = split_authority(rest);
        if !matches!(path, "" | "/") {
            return Err(ProxyError::InvalidUrl.into());
        }
        let (userinfo, authority) = split_userinfo(authority);
        let credentials = match userinfo {
            None => None,
            Some(userinfo) => Some(Credentials::from_userinfo(userinfo).ok_or(ProxyError::InvalidUrl)?),
        };
        let default_port = match kind {
            Kind::Http => 80,
            Kind::Https => 443,
            Kind::Socks5 | Kind::Socks5h => 1080,
        };
        let (host, port) = split_port(authority).ok_or(ProxyError::InvalidUrl)?;
        Ok(Self {
            kind,
            host: host.to_owned(),
            port: port.unwrap_or(default_port),
            credentials,
            #[cfg(feature = "tls")]
            tls: None,
        })
    }

    /// Authenticates: with Basic credentials to an HTTP proxy (RFC 7617), by RFC 1929 to SOCKS5.
    #[must_use]
    pub fn credentials(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        let (user, password) = (user.into().into_bytes(), password.into().into_bytes());
        self.credentials = Some(Credentials { user, password });
        self
    }

    /// The certificates that the proxy's are checked against, and the one to show to an `https` proxy that asks for one. By default
    /// the proxy is trusted as servers are ([`Connector::tls`](crate::Connector::tls)), and shown no certificate.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls(mut self, tls: ClientTls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Opens a tunnel through this proxy; returns the proxy's address too. Reads no bytes that belong to the tunnel.
    pub(super) async fn dial(
        &self,
        dialer: &Dialer,
        #[cfg(feature = "tls")] tls: &ClientTls,
        host: &str,
        port: u16,
    ) -> Result<(Io, Option<SocketAddr>), Error> {
        // A host that is resolved here is resolved before the proxy is dialed.
        let address = match self.kind {
            Kind::Socks5 => {
                let found = dialer.resolve(host, port).await?;
                found.iter().find(|address| address.is_ipv4()).or(found.first()).copied()
            }
            _ => None,
        };
        let (mut io, peer) = dialer.dial(&self.host, self.port).await?;
        #[cfg(feature = "tls")]
        if self.kind == Kind::Https {
            let tls = self.tls.clone().unwrap_or_else(|| tls.without_identity());
            io = tls.connect(&self.host, io, super::Protocols::Http1).await?.0;
        }
        let credentials = self.credentials.as_ref();
        match (self.kind, address) {
            (Kind::Http | Kind::Https, _) => connect::open(&mut io, host, port, credentials).await?,
            (_, Some(at)) => {
                socks5::open(&mut io, socks5::Destination::of(at.ip()), at.port(), credentials).await?;
            }
            (_, None) => socks5::open(&mut io, socks5::Destination::named(host), port, credentials).await?,
        }
        Ok((io, peer))
    }
}

/// Omits the credentials.
impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy")
            .field("kind", &self.kind)
            .field("host", &self.host)
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}

/// The host without brackets, and the port if there is one.
fn split_port(authority: &str) -> Option<(&str, Option<u16>)> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']')?;
            host.parse::<std::net::Ipv6Addr>().ok()?;
            (host, if rest.is_empty() { None } else { Some(rest.strip_prefix(':')?) })
        }
        None => match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    let valid = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:".contains(&byte);
    if host.is_empty() || !host.bytes().all(valid) {
        return None;
    }
    match port {
        None | Some("") => Some((host, None)),
        Some(port) if port.bytes().all(|byte| byte.is_ascii_digit()) => {
            Some((host, Some(port.parse().ok().filter(|&port| port != 0)?)))
        }
        Some(_) => None,
    }
}

/// Fills `into` exactly: the bytes after it belong to the tunnel.
async fn read_exact(io: &mut Io, into: &mut [u8]) -> Result<(), Error> {
    let mut filled = 0;
    while filled < into.len() {
        match poll_fn(|cx| io.poll_read(cx, &mut into[filled..])).await.map_err(cut)? {
            0 => return Err(ProxyError::ConnectionLost.into()),
            len => filled += len,
        }
    }
    Ok(())
}

async fn write_all(io: &mut Io, bytes: &[u8]) -> Result<(), Error> {
    write(io, &[bytes]).await.map_err(cut)
}

/// Attributes a closed connection to the proxy, not to the server.
fn cut(error: io::Error) -> Error {
    if is_lost(&error) { ProxyError::ConnectionLost.into() } else { error.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_urls() {
        for (url, kind, host, port) in [
            ("http://p.example:3128", Kind::Http, "p.example", 3128),
            ("p.example:3128/", Kind::Http, "p.example", 3128),
            ("http://p.example", Kind::Http, "p.example", 80),
            ("socks5://127.0.0.1", Kind::Socks5, "127.0.0.1", 1080),
            ("SOCKS5H://anna:x@[::1]:9", Kind::Socks5h, "::1", 9),
        ] {
            let proxy = Proxy::new(url).unwrap();
            assert_eq!((proxy.kind, &*proxy.host, proxy.port), (kind, host, port), "{url}");
        }
        for url in [
            "",
            "http://",
            "ftp://a",
            "socks4://a",
            "http://a:0",
            "http://a:99999",
            "http://a:b",
            "http://a/b",
            "http://[::1",
            "http://a b",
            "http://u:%zz@a",
            // RFC 3986 §3.2.1: they are escaped in user information.
            "http://u:1/2@a",
            "http://u:1?2@a",
            "http://u:p#w@a",
            "http://a\r\nX:1",
        ] {
            assert_eq!(Proxy::new(url), Err(ProxyError::InvalidUrl.into()), "{url:?}");
        }
    }

    #[test]
    fn keeps_credentials_out_of_logs() {
        let shown = format!("{:?}", Proxy::new("http://anna:hunter2@p:1").unwrap());
        assert!(!shown.contains("anna") && !shown.contains("hunter2"), "{shown}");
    }
}
