//! The server to load: its addresses, whether they may be loaded, and how its connections are opened.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::sync::Mutex;
use wireloom::client::{Http2, Pool, Request};
use wireloom::wireloom_ws::handshake::uri::Uri;
use wireloom::{Connector, DeflateConfig, Error, WebSocket, WebSocketConfig};

use super::link::Link;
use crate::args::{Load, Scenario, has_scheme};
use crate::cmd::connect::connector;
use crate::signals::Signal;

/// Why there is no load.
#[derive(Debug)]
pub(super) enum Failure {
    /// The arguments are invalid.
    Usage(String),
    /// The server.
    Connect(Error),
    /// A signal, before the load began.
    Interrupted(Signal),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Connect(error)
    }
}

/// Opens the connections to one server.
pub(super) struct Opener {
    url: String,
    path: String,
    connector: Connector,
    scenario: Scenario,
    /// Requests over HTTP/1.1.
    is_http1: bool,
    /// One token for each connection, in turn.
    tokens: Vec<String>,
    headers: Vec<(String, String)>,
    /// HTTP/2 connections with several WebSockets each, and how many.
    shared: Option<(usize, Vec<Mutex<Option<Http2>>>)>,
}

impl Opener {
    /// The host is resolved once, so that each connection leads to an address that has been checked.
    ///
    /// # Errors
    /// The URL or an option cannot be used, or the host is not private.
    pub(super) async fn new(args: &Load, url: &str) -> Result<Self, Failure> {
        let mut config = WebSocketConfig::default();
        let limits = &mut config.core.limits;
        let len_max = args.sizes().max() as u64;
        limits.message_len_max = limits.message_len_max.max(len_max);
        limits.frame_len_max = limits.frame_len_max.max(len_max);
        let mut connector = Connector::new()
            .config(config)
            .http2(args.http2)
            .http1_only(!args.http2)
            .connect_timeout(args.volume.timeout)
            .handshake_timeout(args.volume.timeout)
            .tls(connector::tls(&args.tls).map_err(Failure::Usage)?);
        for name in &args.subprotocol {
            connector = connector.subprotocol(name);
        }
        if args.payload.compress {
            connector = connector.deflate(DeflateConfig::default());
        }
        if let Some(name) = &args.tls.sni {
            connector = connector.server_name(name);
        }
        // A Unix socket is on this machine.
        if !has_scheme(url, "ws+unix") {
            let (host, addresses) = private_addresses(url, args.i_own_this_server).await?;
            connector = connector.resolve(host, addresses);
        }
        let tokens = match &args.tokens {
            Some(path) => tokens(path).map_err(Failure::Usage)?,
            None => Vec::new(),
        };
        let mut headers = args.header.clone();
        let has_place = |text: &str| text.contains("{token}");
        if !tokens.is_empty() && !has_place(url) && !headers.iter().any(|(_, value)| has_place(value)) {
            headers.push(("Authorization".into(), "Bearer {token}".into()));
        }
        if tokens.is_empty() {
            connector = with_headers(connector, &headers, None);
        }
        let path = url.split_once("://").map_or(url, |(_, rest)| rest);
        let path = path.find(['/', '?']).map_or("/", |at| &path[at..]);
        let path = if path.starts_with('?') { format!("/{path}") } else { path.to_owned() };
        let shared = args.streams.map(|streams| {
            let cells = (0..args.volume.connections().div_ceil(streams)).map(|_| Mutex::new(None));
            (streams, cells.collect())
        });
        Ok(Self {
            url: url.to_owned(),
            path,
            connector,
            scenario: args.scenario(),
            is_http1: args.http1,
            tokens,
            headers,
            shared,
        })
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// The path of the URL, with its query and the token of the connection with this index.
    pub(super) fn path(&self, index: usize) -> String {
        with_token(&self.path, self.token(index))
    }

    /// Whether the scenario opens its connections itself.
    pub(super) fn opens_later(&self) -> bool {
        self.scenario == Scenario::Churn
    }

    /// Opens what the connection with this index uses.
    pub(super) async fn open(&self, index: usize) -> Result<Link, Error> {
        Ok(match self.scenario {
            Scenario::Churn => Link::None,
            Scenario::Requests if self.is_http1 => {
                let (connector, url) = self.with_token(index);
                // The server closes it, not the pool.
                const KEPT: Duration = Duration::from_secs(3600);
                let pool = Pool::with_limits(connector, 1, KEPT);
                if index == 0 {
                    // If the first one fails, the others would too. A status of any kind is an answer.
                    pool.request(Request::new("HEAD", &*url)).await?;
                }
                Link::Http1(pool, url)
            }
            Scenario::Requests => {
                let (connector, url) = self.with_token(index);
                Link::Http2(connector.connect_http2(&url).await?)
            }
            _ => Link::WebSocket(self.websocket(index).await?),
        })
    }

    /// Opens a WebSocket.
    pub(super) async fn websocket(&self, index: usize) -> Result<WebSocket, Error> {
        let (connector, url) = self.with_token(index);
        let Some((streams, cells)) = &self.shared else { return connector.connect(&url).await };
        let http2 = {
            let mut shared = cells[index / streams].lock().await;
            // The server may have closed it since, such as between two rounds.
            match shared.as_ref().filter(|http2| http2.is_open()) {
                Some(http2) => http2.with_connector(&connector)?,
                None => shared.insert(connector.connect_http2(&url).await?).clone(),
            }
        };
        http2.websocket(&url).await
    }

    fn token(&self, index: usize) -> Option<&str> {
        self.tokens.get(index % self.tokens.len().max(1)).map(String::as_str)
    }

    fn with_token(&self, index: usize) -> (Connector, String) {
        let token = self.token(index);
        let connector = match token {
            Some(_) => with_headers(self.connector.clone(), &self.headers, token),
            None => self.connector.clone(),
        };
        (connector, with_token(&self.url, token))
    }
}

fn with_headers(mut connector: Connector, headers: &[(String, String)], token: Option<&str>) -> Connector {
    for (name, value) in headers {
        connector = connector::with_header(connector, name, &with_token(value, token), true);
    }
    connector
}

fn with_token(text: &str, token: Option<&str>) -> String {
    token.map_or_else(|| text.to_owned(), |token| text.replace("{token}", token))
}

/// The lines of a file.
fn tokens(path: &std::path::Path) -> Result<Vec<String>, String> {
    let text =
        std::fs::read_to_string(path).map_err(|error| format!("--tokens {}: {error}", path.display()))?;
    let tokens: Vec<String> =
        text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect();
    if tokens.is_empty() { Err(format!("--tokens {}: it has no lines", path.display())) } else { Ok(tokens) }
}

/// The host of a URL and its addresses; an error if one is public and `may_be_public` is false.
async fn private_addresses(url: &str, may_be_public: bool) -> Result<(String, Vec<SocketAddr>), Failure> {
    // Split as the library does, for which credentials before `@` are not part of the authority.
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let authority = rest[..end].rsplit_once('@').map_or(&rest[..end], |(_, host)| host);
    let scheme = scheme.to_ascii_lowercase();
    let scheme = match &*scheme {
        "http" => "ws",
        "https" => "wss",
        scheme => scheme,
    };
    let uri = format!("{scheme}://{authority}/");
    let uri = Uri::parse(&uri).map_err(|error| Failure::Connect(Error::InvalidUrl(error)))?;
    let (host, port) = (uri.host().to_owned(), uri.port());
    let found = tokio::net::lookup_host((&*host, port)).await;
    let addresses: Vec<SocketAddr> =
        found.map_err(|error| Failure::Connect(Error::HostNotFound(Some(error.into()))))?.collect();
    if !may_be_public {
        check(&host, &addresses).map_err(Failure::Usage)?;
    }
    Ok((host, addresses))
}

fn check(host: &str, addresses: &[SocketAddr]) -> Result<(), String> {
    let Some(public) = addresses.iter().find(|address| !is_private(address.ip())) else { return Ok(()) };
    let name =
        if host.parse::<IpAddr>().is_ok() { host.to_owned() } else { format!("{host} ({})", public.ip()) };
    Err(format!("{name} is outside loopback and private networks; --i-own-this-server allows loading it"))
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

    #[tokio::test]
    async fn only_private_hosts_are_loaded() {
        for url in [
            "ws://127.0.0.1:9/",
            "ws://[::1]:9/",
            "wss://user:p%40@localhost/x",
            "http://[fd00::1]/",
            "ws://[::ffff:10.0.0.1]/",
            // The resolver accepts numbers as addresses.
            "ws://2130706433/",
        ] {
            assert!(private_addresses(url, false).await.is_ok(), "{url}");
        }
        for (url, name) in [
            ("ws://192.0.2.1/", "192.0.2.1"),
            ("ws://127.0.0.1@192.0.2.1/", "192.0.2.1"),
            ("ws://[2001:db8::1]:8080/x", "2001:db8::1"),
            ("ws://[::ffff:192.0.2.1]/", "::ffff:192.0.2.1"),
            // A name that resolves to 192.0.2.1, without a network.
            ("ws://3221225985/", "3221225985 (192.0.2.1)"),
            ("https://0xc0000201/", "0xc0000201 (192.0.2.1)"),
        ] {
            match private_addresses(url, false).await {
                Err(Failure::Usage(text)) => {
                    assert!(text.starts_with(&format!("{name} is outside")), "{text}")
                }
                other => panic!("{url}: {other:?}"),
            }
            assert!(private_addresses(url, true).await.is_ok(), "{url}");
        }
        assert!(matches!(
            private_addresses("ws://no.such.host.invalid/", false).await,
            Err(Failure::Connect(_))
        ));
        assert!(matches!(private_addresses("ftp://127.0.0.1/", false).await, Err(Failure::Connect(_))));
    }

    #[test]
    fn one_public_address_is_enough() {
        let addresses = ["127.0.0.1:1", "192.0.2.1:1"].map(|address| address.parse().unwrap());
        let text = check("name", &addresses).unwrap_err();
        assert_eq!(
            text,
            "name (192.0.2.1) is outside loopback and private networks; --i-own-this-server allows loading it"
        );
    }

    #[test]
    fn each_connection_has_a_token() {
        assert_eq!(with_token("a={token}&b", Some("x")), "a=x&b");
        assert_eq!(with_token("a={token}", None), "a={token}");
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
