//! The configuration of a server: limits on connections, heads, bodies, time and memory.

use std::net::IpAddr;
use std::time::Duration;

#[cfg(feature = "http2")]
use wireloom_ws::Keepalive;
use wireloom_ws::deflate::DeflateConfig;

use ipnet::IpNet;

use crate::http::{OriginPolicy, RequestConfig};
use crate::transport::Tap;
use crate::websocket::WebSocketConfig;

/// The configuration of a server. Each field documents the reason for its default. Fields may be added: use struct update.
///
/// ```
/// use wireloom::ServerConfig;
///
/// let config = ServerConfig { connections_max: 1_000, ..ServerConfig::default() };
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerConfig {
    /// Connections at once; further ones wait in the kernel's queue. 100,000: idle ones are cheap, and the limit on open
    /// files is mostly met before.
    pub connections_max: usize,
    /// Connections at once from one address (from one network of 64 bits, with IPv6); further ones are closed at once. Not
    /// limited by default, because all clients come from one address behind a proxy. With the PROXY protocol the limit is that of the
    /// clients that the proxy names. It does not apply to Unix sockets.
    pub connections_per_address_max: Option<usize>,
    /// Networks of proxies in front of the server that send a header of the PROXY protocol, version 1 or 2, first on each connection:
    /// [`Request::peer`](crate::Request::peer) is the client that it names. They must send it, and their connections are not counted per
    /// address. A header from any other address is refused. 0.0.0.0 matches peers without an address, such as those of a Unix socket. None.
    ///
    /// ```
    /// use wireloom::{IpNet, ServerConfig};
    ///
    /// let mut config = ServerConfig::default();
    /// config.proxy_protocol_from = vec!["10.1.0.0/16".parse()?, "::1/128".parse()?];
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub proxy_protocol_from: Vec<IpNet>,
    /// Connections at once that are in the TLS handshake or within their first head. Further ones wait, for at most
    /// `handshake_timeout`. 10,000: a TLS handshake costs up to 40 KiB, and slow clients must open 500 connections a second to
    /// block others.
    pub handshakes_max: usize,
    /// How long TLS and the head of a request may take, each. Time in which the server does not run does not count. 10 s.
    pub handshake_timeout: Duration,
    /// How long a client over HTTP/1.1 may take to accept 1 KiB of a response, or the rest of it, before its connection is reset. The time
    /// between two chunks of a streamed body does not count. 60 s, as over HTTP/2 (`http2.limits.stall_timeout`).
    pub http1_stall_timeout: Duration,
    /// How long a connection may be idle between two requests. 60 s.
    pub keep_alive_timeout: Duration,
    /// The idle time after which the kernel probes the peer (TCP keepalive). It ends the connection when its probes remain without
    /// an answer: after 11 minutes on Linux. A client that has lost its network sends no FIN, and would hold idle WebSockets and
    /// waiting handlers forever. 5 minutes: rare enough for the battery of a phone. From a second to nine hours.
    pub tcp_keepalive: Option<Duration>,
    /// How long the body of a request may take: until it is complete, plus a second for every 16 KiB, where it is collected; from
    /// one chunk to the next where it is streamed. Time in which the server itself does not read does not count. 30 s.
    pub body_timeout: Duration,
    /// Bytes of a request's head over HTTP/1.1. 16 KiB, as for [`wireloom_ws::handshake::HandshakeLimits`]. Over HTTP/2 it is
    /// `http2.settings.max_header_list_size`.
    pub head_len_max: usize,
    /// Bytes of a request's body that [`Request::bytes`](crate::Request::bytes) collects. 1 MiB: they are held in
    /// memory. A body that is streamed slows its sender down instead.
    pub body_len_max: usize,
    /// Bytes that all connections of the server may hold together: messages that are arriving, inflated data, send queues, HTTP
    /// heads and bodies that are collected, unread HTTP/2 data, and 16 KiB for the read buffer of each WebSocket whose handler waits
    /// for something else than a message, and 4 KiB for each connection, 1 KiB once it is a WebSocket, 8 KiB more over TLS. Idle
    /// connections may hold half of the limit: further ones are closed at once. Near the limit (three quarters) connections that hold
    /// memory are not read from; at the limit new work is refused and the connections that hold the most are closed, WebSockets with 1013,
    /// HTTP/1.1 with 503, or a reset within a response, and HTTP/2 with ENHANCE_YOUR_CALM. A quarter of the memory of the machine or of the control group:
    /// the application, the kernel's socket buffers and the allocator's overhead need the rest. So do longer read buffers, which belong
    /// to the threads: at most 64 of 256 KiB in the process. A read buffer whose WebSocket was handed to a task of the application is
    /// not counted.
    pub memory_max: usize,
    /// HTTP/2: settings, windows, limits. As [`wireloom_http2::Config::new`] says, but with extended CONNECT (RFC 8441), 60 s
    /// for a peer that does not read.
    #[cfg(feature = "http2")]
    pub http2: wireloom_http2::Config,
    /// Sends a PING (RFC 9113 §6.7) to HTTP/2 clients that have been silent, also while no request is open, and ends the connection when no
    /// byte follows. Off by default: TCP keepalive finds clients that have lost their network, and idle connections end after
    /// `keep_alive_timeout`.
    #[cfg(feature = "http2")]
    pub http2_keepalive: Option<Keepalive>,
    /// Values of `:protocol`, beside `websocket`, with which an extended CONNECT (RFC 8441 §4) reaches the handler, which may accept it by
    /// [`Request::tunnel`](crate::Request::tunnel): such as `connect-udp`. Others are answered 501 (RFC 9220 §3). None.
    #[cfg(feature = "http2")]
    pub connect_protocols: Vec<String>,
    /// Whether a request over plain HTTP/1.1 may switch to HTTP/2 by `Upgrade: h2c` (RFC 7540 §3.2). Off: RFC 9113 §3.1 deprecates it,
    /// and behind a reverse proxy that forwards `Upgrade`, HTTP/2 requests would bypass the rules of the proxy. Prior knowledge and ALPN
    /// do not depend on it.
    #[cfg(feature = "http2")]
    pub http2_upgrade: bool,
    /// How long connections may take to end once the server shuts down. 10 s.
    pub shutdown_grace: Duration,
    /// Choices for WebSockets.
    pub websocket: WebSocketConfig,
    /// permessage-deflate, for clients that offer it. Off by default: it costs CPU time for each message, and up to 32 KiB per
    /// direction and connection.
    pub deflate: Option<DeflateConfig>,
    /// The origins of web pages that may open WebSockets; others are answered 403. All: a server without cookies or other ambient
    /// credentials may serve any page. Others should list their own.
    pub origins: OriginPolicy,
    /// Observes the bytes of all connections above TLS, to record them. None by default: an observed connection is slower.
    pub tap: Option<Tap>,
}

impl Default for ServerConfig {
    fn default() -> Self {
        let RequestConfig { body_len_max, body_timeout, deflate, origins, .. } = RequestConfig::default();
        Self {
            connections_max: 100_000,
            connections_per_address_max: None,
            proxy_protocol_from: Vec::new(),
            handshakes_max: 10_000,
            handshake_timeout: Duration::from_secs(10),
            http1_stall_timeout: Duration::from_secs(60),
            keep_alive_timeout: Duration::from_secs(60),
            tcp_keepalive: Some(Duration::from_secs(300)),
            body_timeout,
            head_len_max: 16 << 10,
            body_len_max,
            memory_max: crate::memory::default_max(),
            #[cfg(feature = "http2")]
            http2: http2_config(),
            #[cfg(feature = "http2")]
            http2_keepalive: None,
            #[cfg(feature = "http2")]
            connect_protocols: Vec::new(),
            #[cfg(feature = "http2")]
            http2_upgrade: false,
            shutdown_grace: Duration::from_secs(10),
            websocket: WebSocketConfig::default(),
            deflate,
            origins,
            tap: None,
        }
    }
}

#[cfg(feature = "http2")]
fn http2_config() -> wireloom_http2::Config {
    let mut http2 = wireloom_http2::Config::new(wireloom_http2::Role::Server);
    http2.settings.enable_connect_protocol = true;
    http2.limits.stall_timeout = Duration::from_secs(60);
    http2
}

impl ServerConfig {
    /// Whether the PROXY protocol is spoken with this peer.
    pub(super) fn trusts_proxy(&self, peer: IpAddr) -> bool {
        // An IPv4 peer of an IPv6 socket has a mapped address (RFC 4291 §2.5.5.2), and a network may be written in either form.
        self.proxy_protocol_from
            .iter()
            .any(|trusted| trusted.contains(&peer) || trusted.contains(&peer.to_canonical()))
    }

    /// The limit on connections from this address. A proxy connects for many clients, which it names, and a peer may have no address.
    pub(super) fn connections_max_of(&self, peer: IpAddr) -> Option<usize> {
        self.connections_per_address_max.filter(|_| !peer.is_unspecified() && !self.trusts_proxy(peer))
    }

    pub(crate) fn for_requests(&self) -> RequestConfig {
        RequestConfig {
            body_len_max: self.body_len_max,
            body_timeout: self.body_timeout,
            websocket: self.websocket.clone().into(),
            deflate: self.deflate.clone(),
            origins: self.origins.clone(),
            #[cfg(feature = "http2")]
            connect_protocols: self.connect_protocols.clone(),
            #[cfg(feature = "http2")]
            streams_max: self.http2.settings.max_concurrent_streams as usize,
        }
    }
}
