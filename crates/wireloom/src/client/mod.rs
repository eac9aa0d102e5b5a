//! The client: from a URL to an open WebSocket. It connects, speaks TLS, makes the opening handshake and follows
//! redirects within bounds.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::BytesMut;
use tokio::net::TcpStream;
use wireloom_ws::Role;
use wireloom_ws::deflate::DeflateConfig;
use wireloom_ws::handshake::client::{ClientHandshake, ClientOptions, Progress};
use wireloom_ws::handshake::uri::Uri;
use wireloom_ws::handshake::{HandshakeLimits, Response};

use crate::error::{Error, Stage};
use crate::io::Io;
use crate::server::{read, write};
#[cfg(feature = "tls")]
use crate::tls::ClientTls;
use crate::websocket::{WebSocket, WebSocketConfig};

/// Opens a WebSocket: `ws://` or `wss://`, with the defaults of [`Connector`].
///
/// # Errors
/// As for [`Connector::connect`].
pub async fn connect(url: &str) -> Result<WebSocket, Error> {
    Connector::new().connect(url).await
}

/// What to ask a server for, and how long to wait for it.
///
/// ```no_run
/// # async fn example() -> Result<(), wireloom::Error> {
/// let socket = wireloom::Connector::new()
///     .subprotocol("chat")
///     .header("Authorization", "Bearer …")
///     .connect("wss://example.com/chat")
///     .await?;
/// assert_eq!(socket.subprotocol(), Some("chat"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Connector {
    config: WebSocketConfig,
    subprotocols: Vec<String>,
    headers: Vec<(String, String)>,
    origin: Option<String>,
    deflate: Option<DeflateConfig>,
    connect_timeout: Duration,
    handshake_timeout: Duration,
    redirects_max: u8,
    #[cfg(feature = "tls")]
    tls: ClientTls,
}

impl Default for Connector {
    fn default() -> Self {
        Self {
            config: WebSocketConfig::default(),
            subprotocols: Vec::new(),
            headers: Vec::new(),
            origin: None,
            deflate: None,
            connect_timeout: Duration::from_secs(10),
            handshake_timeout: Duration::from_secs(10),
            redirects_max: 0,
            #[cfg(feature = "tls")]
            tls: ClientTls::default(),
        }
    }
}

impl Connector {
    /// No subprotocols, no headers, no compression, no redirects; 10 s to connect and 10 s for the handshake; the
    /// platform's roots.
    pub fn new() -> Self {
        Self::default()
    }

    /// Chooses for the open WebSocket.
    pub fn config(mut self, config: WebSocketConfig) -> Self {
        self.config = config;
        self
    }

    /// Offers a subprotocol, after those that are preferred to it.
    pub fn subprotocol(mut self, name: impl Into<String>) -> Self {
        self.subprotocols.push(name.into());
        self
    }

    /// Adds a header, such as `Authorization` or `Cookie`.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Names the page that the connection is for, as browsers do.
    pub fn origin(mut self, origin: impl Into<String>) -> Self {
        self.origin = Some(origin.into());
        self
    }

    /// Offers permessage-deflate.
    pub fn deflate(mut self, deflate: DeflateConfig) -> Self {
        self.deflate = Some(deflate);
        self
    }

    /// How long finding the host and connecting to it may take.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// How long TLS and the opening handshake may take.
    pub fn handshake_timeout(mut self, timeout: Duration) -> Self {
        self.handshake_timeout = timeout;
        self
    }

    /// Follows so many redirects (RFC 6455 §4.1 lets a client do so). `Authorization`, `Cookie` and the like are not sent to
    /// another host, and TLS is never left.
    pub fn redirects_max(mut self, max: u8) -> Self {
        self.redirects_max = max;
        self
    }

    /// Chooses whom to trust, and who to be.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, tls: ClientTls) -> Self {
        self.tls = tls;
        self
    }

    /// Opens a WebSocket.
    ///
    /// # Cancel safety
    /// Dropping the future closes what was opened.
    ///
    /// # Errors
    /// The URL is none of a WebSocket; the host cannot be found or reached in time; TLS fails; the server answers with
    /// something else, which [`Error::Refused`] hands out, or with what is no answer.
    pub async fn connect(&self, url: &str) -> Result<WebSocket, Error> {
        let mut url = url.to_owned();
        let mut headers = self.headers.clone();
        for _ in 0..=self.redirects_max {
            let response = match self.attempt(&url, &headers).await {
                Err(Error::Refused(response)) if matches!(response.status(), 301 | 302 | 303 | 307 | 308) => {
                    response
                }
                done => return done,
            };
            if self.redirects_max == 0 {
                return Err(Error::Refused(response));
            }
            let next = redirect(&url, &response).ok_or(Error::Redirect)?;
            let (from, to) = (parse(&url)?, parse(&next)?);
            if from.secure() && !to.secure() {
                return Err(Error::Redirect);
            }
            if (from.host(), from.port(), from.secure()) != (to.host(), to.port(), to.secure()) {
                headers.retain(|(name, _)| !is_secret(name));
            }
            url = next;
        }
        Err(Error::Redirect)
    }

    async fn attempt(&self, url: &str, headers: &[(String, String)]) -> Result<WebSocket, Error> {
        let uri = parse(url)?;
        let mut options = ClientOptions::new(uri.authority(), uri.resource());
        for name in &self.subprotocols {
            options = options.subprotocol(name);
        }
        for (name, value) in headers {
            options = options.header(name, value);
        }
        if let Some(origin) = &self.origin {
            options = options.origin(origin);
        }
        if let Some(deflate) = &self.deflate {
            options = options.deflate(deflate.clone());
        }
        let mut nonce = [0; 16];
        getrandom::getrandom(&mut nonce).map_err(|_| Error::Io(std::io::ErrorKind::Other))?;
        let handshake = ClientHandshake::new(options, nonce, HandshakeLimits::default())?;

        let connecting = dial(uri.host(), uri.port());
        let stream = tokio::time::timeout(self.connect_timeout, connecting)
            .await
            .map_err(|_| Error::Timeout(Stage::Connect))??;
        // What is written is meant to leave; nothing is gained by waiting for more.
        let _ = stream.set_nodelay(true);
        let shaking = self.shake_hands(&uri, stream, handshake);
        tokio::time::timeout(self.handshake_timeout, shaking)
            .await
            .map_err(|_| Error::Timeout(Stage::Handshake))?
    }

    async fn shake_hands(
        &self,
        uri: &Uri<'_>,
        stream: TcpStream,
        mut handshake: ClientHandshake,
    ) -> Result<WebSocket, Error> {
        let mut io = if uri.secure() {
            #[cfg(feature = "tls")]
            {
                let stream = self.tls.connect(uri.host(), stream).await?;
                Io::Tls(Box::new(tokio_rustls::TlsStream::Client(stream)))
            }
            #[cfg(not(feature = "tls"))]
            return Err(Error::NoTls);
        } else {
            Io::Tcp(stream)
        };
        write(&mut io, &[handshake.request()]).await?;
        let mut bytes = BytesMut::new();
        loop {
            bytes.clear();
            if read(&mut io, &mut bytes).await? == 0 {
                return Err(Error::Cut);
            }
            match handshake.handle_input(&bytes)? {
                Progress::Incomplete => {}
                Progress::Done { negotiated, consumed } => {
                    let arrived = &bytes[consumed..];
                    let deflate = self.deflate.as_ref();
                    return Ok(WebSocket::open(
                        io,
                        Role::Client,
                        negotiated,
                        deflate,
                        self.config.clone(),
                        arrived,
                    ));
                }
                Progress::Refused { response, .. } => return Err(Error::Refused(Box::new(response))),
            }
        }
    }
}

fn parse(url: &str) -> Result<Uri<'_>, Error> {
    Uri::parse(url).map_err(|_| Error::Url)
}

/// Connects to the first address of a host that answers.
async fn dial(host: &str, port: u16) -> Result<TcpStream, Error> {
    let addresses: Vec<SocketAddr> = tokio::net::lookup_host((host, port)).await?.collect();
    let mut failed = std::io::Error::from(std::io::ErrorKind::NotFound);
    for address in addresses {
        match TcpStream::connect(address).await {
            Ok(stream) => return Ok(stream),
            Err(error) => failed = error,
        }
    }
    Err(failed.into())
}

/// Where a redirect leads, as the URL of a WebSocket.
fn redirect(from: &str, response: &Response) -> Option<String> {
    let location = std::str::from_utf8(response.header("location")?).ok()?;
    let location = location.split('#').next()?;
    if let Some((scheme, rest)) = location.split_once("://") {
        let scheme = match &*scheme.to_ascii_lowercase() {
            "http" | "ws" => "ws",
            "https" | "wss" => "wss",
            _ => return None,
        };
        return Some(format!("{scheme}://{rest}"));
    }
    let (scheme, rest) = from.split_once("://")?;
    if let Some(rest) = location.strip_prefix("//") {
        return Some(format!("{scheme}://{rest}"));
    }
    let authority = rest.split(['/', '?']).next()?;
    // A path that is not absolute is rare in Location, and is not followed.
    location.starts_with('/').then(|| format!("{scheme}://{authority}{location}"))
}

/// Headers that are meant for one server alone.
fn is_secret(name: &str) -> bool {
    ["authorization", "cookie", "proxy-authorization"].iter().any(|secret| name.eq_ignore_ascii_case(secret))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_where_a_redirect_leads() {
        let to = |location: &str| {
            let response = Response::refusal(302).unwrap().with_header("Location", location).unwrap();
            redirect("wss://a.example:1/x?y", &response)
        };
        assert_eq!(to("https://b.example/z").as_deref(), Some("wss://b.example/z"));
        assert_eq!(to("/z?q#f").as_deref(), Some("wss://a.example:1/z?q"));
        assert_eq!(to("//b.example").as_deref(), Some("wss://b.example"));
        assert_eq!(to("ftp://b.example/"), None);
        assert_eq!(to("z"), None);
    }
}
