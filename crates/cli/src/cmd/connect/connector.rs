//! Makes a [`Connector`] from the arguments.

use std::fmt::Display;
use std::fs::File;
use std::net::SocketAddr;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use wireloom::wireloom_ws::handshake::HandshakeLimits;
use wireloom::{ClientTls, Connector, DeflateConfig, Keepalive, Proxy, ServerTls, WebSocketConfig};

use super::journal::Journal;
use super::trace::Trace;
use crate::args::{Connect, Framing, Tls, has_scheme};
use crate::cmd::join::Joining;

/// The longest message to accept, in bytes.
const MAX_MESSAGE: u64 = 64 << 20;

/// Headers of a response over HTTP/1.1.
const HEADERS_MAX: usize = 1_000;

/// A connector for this URL.
///
/// # Errors
/// An option cannot be used; the text names it.
pub(super) fn new(
    args: &Connect,
    url: &str,
    trace: &Trace,
    journal: Option<&Journal>,
) -> Result<Connector, String> {
    let mut connector = Connector::new()
        .config(websocket_config(args, journal))
        .redirects_max(args.redirects_max())
        .http2(args.route.http2)
        .http1_only(args.route.http1 || (has_scheme(url, "http") && !args.route.http2))
        .response_limits(HandshakeLimits { head_len_max: args.route.max_head, headers_max: HEADERS_MAX })
        .tls(tls(&args.tls)?);
    if let Some(proxy) = &args.route.proxy {
        connector = connector.proxy(Proxy::new(proxy).map_err(|error| format!("--proxy: {error}"))?);
    }
    if args.route.proxy_from_env {
        connector = connector.proxy_from_env();
    }
    for name in &args.subprotocol {
        connector = connector.subprotocol(name);
    }
    for (name, value) in headers(args) {
        connector = with_header(connector, &name, &value, !args.is_request());
    }
    if let Some(origin) = &args.origin {
        connector =
            if args.is_request() { connector.header("Origin", origin) } else { connector.origin(origin) };
    }
    if args.messages.compress {
        connector = connector.deflate(DeflateConfig::default());
    }
    if let Some(timeout) = args.timeout {
        connector = connector.connect_timeout(timeout).handshake_timeout(timeout);
    }
    if let Some(name) = &args.tls.sni {
        connector = connector.server_name(name);
    }
    connector = resolve(connector, args, url);
    if args.display.verbose > 0 {
        let trace = trace.clone();
        connector = connector.on_event(move |event| trace.event(event));
    }
    if let Some(tap) = trace.tap() {
        connector = connector.tap(tap);
    }
    Ok(connector)
}

impl Connect {
    /// How the program of `--exec` is joined.
    pub(in crate::cmd) fn joining(&self) -> Joining {
        let len_max = self.messages.max_message.unwrap_or(MAX_MESSAGE);
        Joining {
            framing: self.join.framing.unwrap_or(Framing::Lines),
            len_max: usize::try_from(len_max).unwrap_or(usize::MAX),
            grace: self.join.grace(),
        }
    }
}

/// Adds a header; Host and Origin replace the usual ones.
pub(in crate::cmd) fn with_header(
    connector: Connector,
    name: &str,
    value: &str,
    is_websocket: bool,
) -> Connector {
    match &*name.to_ascii_lowercase() {
        "host" => connector.host(value),
        "origin" if is_websocket => connector.origin(value),
        _ => connector.header(name, value),
    }
}

/// The headers to add, with those of `--user`, `--cookie` and `--user-agent`.
fn headers(args: &Connect) -> Vec<(String, String)> {
    let mut headers = args.header.clone();
    if let Some(user) = &args.user {
        let credentials = if user.contains(':') { user.clone() } else { format!("{user}:") };
        headers.push(("Authorization".into(), format!("Basic {}", STANDARD.encode(credentials))));
    }
    if !args.cookie.is_empty() {
        headers.push(("Cookie".into(), args.cookie.join("; ")));
    }
    if let Some(name) = &args.user_agent {
        headers.push(("User-Agent".into(), name.clone()));
    }
    headers
}

fn websocket_config(args: &Connect, journal: Option<&Journal>) -> WebSocketConfig {
    use std::io::IsTerminal as _;
    let mut config = WebSocketConfig::client();
    let len_max = args.messages.max_message.unwrap_or(MAX_MESSAGE);
    config.core.limits.message_len_max = len_max;
    config.core.limits.frame_len_max = len_max;
    if args.join.exec.is_some() {
        args.joining().configure(&mut config.core);
    }
    // An observer costs time for each frame.
    let reports_frames = args.display.verbose > 1 || args.display.json || std::io::stdin().is_terminal();
    if let Some(journal) = journal.filter(|_| reports_frames) {
        config.observer = Some(journal.observer());
    }
    if args.route.reconnect
        && let Some(ping_after) = args.messages.ping
    {
        config.core.keepalive = Some(Keepalive { ping_after, dead_after: ping_after.saturating_mul(3) });
    }
    config
}

/// Applies `--resolve` where it names the port of the URL.
fn resolve(mut connector: Connector, args: &Connect, url: &str) -> Connector {
    let port = port(url);
    let mut hosts: Vec<(&str, Vec<SocketAddr>)> = Vec::new();
    for entry in args.route.resolve.iter().filter(|entry| Some(entry.port) == port) {
        let address = SocketAddr::new(entry.address, entry.port);
        match hosts.iter_mut().find(|(host, _)| host.eq_ignore_ascii_case(&entry.host)) {
            Some((_, addresses)) => addresses.push(address),
            None => hosts.push((&entry.host, vec![address])),
        }
    }
    for (host, addresses) in hosts {
        connector = connector.resolve(host, addresses);
    }
    connector
}

/// The port of a URL: the explicit one, or the default of the scheme.
pub(in crate::cmd) fn port(url: &str) -> Option<u16> {
    let (scheme, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let is_secure = matches!(&*scheme.to_ascii_lowercase(), "wss" | "https");
    match host.rsplit_once(':') {
        Some((_, port)) if !port.ends_with(']') => port.parse().ok(),
        _ => Some(if is_secure { 443 } else { 80 }),
    }
}

/// # Errors
/// A file cannot be used; the text names its option.
pub(in crate::cmd) fn tls(args: &Tls) -> Result<ClientTls, String> {
    let mut tls = ClientTls::default().log_secrets();
    check_key_log()?;
    if args.insecure {
        tls = tls.insecure();
    }
    if let Some(file) = &args.cacert {
        check_file("--cacert", file)?;
        tls = tls.with_root_file(file).map_err(|error| format!("--cacert {}: {error}", file.display()))?;
    }
    if let (Some(cert), Some(key)) = (&args.cert, &args.key) {
        check_file("--cert", cert)?;
        check_file("--key", key)?;
        tls = tls.with_identity(cert, key).map_err(|error| unusable_pair(cert, key, &error))?;
    }
    Ok(tls)
}

/// The certificate of a server and its key, or a pair that is made for this run.
///
/// # Errors
/// A file cannot be used; the text names its option.
pub(in crate::cmd) fn server_tls(cert: Option<&Path>, key: Option<&Path>) -> Result<ServerTls, String> {
    let tls = match (cert, key) {
        (Some(cert), Some(key)) => {
            check_file("--cert", cert)?;
            check_file("--key", key)?;
            ServerTls::from_pem_files(cert, key).map_err(|error| unusable_pair(cert, key, &error))?
        }
        _ => ServerTls::self_signed(&["localhost", "127.0.0.1", "::1"])
            .map(|(tls, _)| tls)
            .map_err(|error| format!("cannot make a certificate: {error}"))?,
    };
    let tls = tls.log_secrets();
    check_key_log()?;
    Ok(tls)
}

/// Opens a file for the reason why it cannot be read: the library reports only the kind of an error.
fn check_file(option: &str, path: &Path) -> Result<(), String> {
    File::open(path).map(drop).map_err(|error| format!("{option} {}: {error}", path.display()))
}

fn unusable_pair(cert: &Path, key: &Path, error: &dyn Display) -> String {
    format!("--cert {} with --key {}: {error}", cert.display(), key.display())
}

/// Checks that the file of SSLKEYLOGFILE, which `log_secrets` has created, can be written: rustls only logs an error.
///
/// # Errors
/// It cannot; the text names it.
fn check_key_log() -> Result<(), String> {
    let Some(path) = std::env::var_os("SSLKEYLOGFILE").filter(|path| !path.is_empty()) else { return Ok(()) };
    let file = File::options().append(true).open(&path);
    file.map(drop).map_err(|error| format!("SSLKEYLOGFILE {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_port_of_a_url() {
        for (url, expected) in [
            ("ws://h/", Some(80)),
            ("WSS://h?a:1", Some(443)),
            ("http://u:p@h:81/", Some(81)),
            ("https://[::1]/", Some(443)),
            ("https://[::1]:8443", Some(8443)),
            ("nonsense", None),
        ] {
            assert_eq!(port(url), expected, "{url}");
        }
    }
}
