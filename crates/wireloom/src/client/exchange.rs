//! Sending one request over a new connection; a request that was sent, and its response.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::task::JoinHandle;

#[cfg(feature = "server")]
use super::http1::parse_len;
use super::http1::{Answer, Http1, PendingResponse};
#[cfg(feature = "http2")]
use super::http2::{Http2, Stream};
use super::http11::Server;
use super::request::Request;
use super::target::Target;
use super::{Connector, Protocols};
use crate::error::{Error, HttpError};
use crate::headers::{Head, Headers};
use crate::http::{Body, TlsInfo, Version};
#[cfg(feature = "http2")]
use crate::http2::{RecvStream, SendStream};
use crate::transport::Io;

/// How long content is held back for `100 Continue`: many servers never send it (RFC 9110 §10.1.1).
pub(super) const CONTINUE_TIMEOUT: Duration = Duration::from_secs(1);

/// [`Body::bytes`] of a response collects at most this many bytes unless [`Body::with_len_max`] changes it: a server must not
/// choose how much memory a client needs.
pub(super) const BODY_LEN_MAX: usize = 64 << 20;

/// A connection over which a request can be sent.
pub(super) enum RequestConnection {
    Http1(Http1),
    #[cfg(feature = "http2")]
    Http2(Http2),
}

impl Connector {
    /// Sends one request over a new connection, with the [`header`](Self::header)s: over HTTP/2 (with the
    /// feature `http2`) where the server speaks it (`https`: as ALPN says; `http`: by prior knowledge, with [`http2`](Self::http2)),
    /// and otherwise over HTTP/1.1.
    ///
    /// # Cancel safety
    /// Dropping the future closes what was opened.
    ///
    /// # Errors
    /// As for [`connect`](Self::connect); a header cannot be sent. Nothing of the request was sent then, also if the connection was lost
    /// before the server's preface: only errors of the [`Exchange`] leave open whether the request had its effect.
    pub async fn send(&self, request: Request) -> Result<Exchange, Error> {
        let target = Target::http(request.url())?.for_request(&request);
        let headers = self.headers_for(&target)?;
        match self.negotiate(&target, &headers).await? {
            RequestConnection::Http1(http1) => {
                let http1 = self.ready_for(&request, &target, &headers, http1).await?;
                Ok(Exchange::http1(http1.send(&target, self, &headers, request, None)?))
            }
            #[cfg(feature = "http2")]
            RequestConnection::Http2(http2) => http2.send(request),
        }
    }

    /// A connection that may carry the request: chunked content is sent only to servers of HTTP/1.1.
    pub(super) async fn ready_for(
        &self,
        request: &Request,
        target: &Target,
        headers: &[(String, String)],
        http1: Http1,
    ) -> Result<Http1, Error> {
        if !request.needs_chunks(headers) || self.knows_http11(target, http1.tls.as_ref()) {
            return Ok(http1);
        }
        self.ask_for_http11(http1, target).await?;
        self.connect_http1(target).await
    }

    /// Whether the server is known to speak HTTP/1.1.
    fn knows_http11(&self, target: &Target, tls: Option<&TlsInfo>) -> bool {
        self.is_http11_assumed
            // RFC 7301 §6: the identifier of HTTP/1.1.
            || tls.and_then(|tls| tls.alpn.as_deref()) == Some(b"http/1.1")
            || self.http11_servers.contains(&Server::from(target))
    }

    /// Asks the server for its version, by a request for the whole server (RFC 9110 §9.3.7). Whatever its status, the answer has it.
    async fn ask_for_http11(&self, http1: Http1, target: &Target) -> Result<(), Error> {
        let whole = target.clone().for_server();
        let exchange = Exchange::http1(http1.send(&whole, self, &[], Request::new("OPTIONS", ""), None)?);
        let response = tokio::time::timeout(self.handshake_timeout, exchange.response())
            .await
            .map_err(|_| Error::HandshakeTimeout)??;
        if response.version == Version::Http11 { Ok(()) } else { Err(Error::LengthRequired) }
    }

    /// [`send`](Self::send)s one request and waits for the response; interim ones are skipped.
    ///
    /// # Errors
    /// As for [`send`](Self::send) and [`Exchange::response`].
    pub async fn request(&self, request: Request) -> Result<Response, Error> {
        self.send(request).await?.response().await
    }

    #[cfg(feature = "http2")]
    async fn negotiate(
        &self,
        target: &Target,
        headers: &[(String, String)],
    ) -> Result<RequestConnection, Error> {
        // Without TLS there is no ALPN: a connection preface would cost servers of HTTP/1.1 an error per request.
        if self.is_http1_only || !(target.secure || self.is_http2) {
            self.connect_http1(target).await.map(RequestConnection::Http1)
        } else {
            self.negotiate_http2(target, headers).await
        }
    }

    #[cfg(not(feature = "http2"))]
    async fn negotiate(&self, target: &Target, _: &[(String, String)]) -> Result<RequestConnection, Error> {
        self.connect_http1(target).await.map(RequestConnection::Http1)
    }

    pub(super) async fn connect_http1(&self, target: &Target) -> Result<Http1, Error> {
        let (io, peer) = self.reach(target).await?;
        let (io, tls) =
            tokio::time::timeout(self.handshake_timeout, self.secure(target, io, Protocols::Http1))
                .await
                .map_err(|_| Error::HandshakeTimeout)??;
        Ok(Http1 { io, peer, tls, limits: self.response_limits })
    }

    /// Connects to the server, or to the proxy before it, within the timeout.
    pub(super) async fn reach(&self, target: &Target) -> Result<(Io, Option<SocketAddr>), Error> {
        tokio::time::timeout(self.connect_timeout, self.dial(target))
            .await
            .map_err(|_| Error::ConnectTimeout)?
    }
}

/// A request that was sent. Dropping it before the response cancels the request.
#[must_use]
pub struct Exchange {
    protocol: ProtocolState,
    /// The final response, when [`Exchange::informational`] has received it.
    response: Option<Response>,
}

/// A request in progress, by protocol.
enum ProtocolState {
    #[cfg(feature = "http2")]
    Http2(Stream),
    Http1(PendingResponse),
}

/// An interim response (RFC 9110 §15.2), such as 103 with links to fetch early.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Informational {
    /// The version of HTTP.
    pub version: Version,
    /// The status: 100 to 199.
    pub status: u16,
    /// The headers.
    pub headers: Headers,
}

/// A response, whose content is read from its body.
#[derive(Debug)]
#[non_exhaustive]
pub struct Response {
    /// The version of HTTP.
    pub version: Version,
    /// The status: 200 to 999.
    pub status: u16,
    /// The headers, their names in lower case.
    pub headers: Headers,
    /// The content and the trailers. Until it is read, the server sends no more than the window allows. [`Body::bytes`] collects
    /// at most 64 MiB, see [`Body::with_len_max`]. Dropping it before its end also ends the content of the request.
    pub body: Body,
    /// The task that sends the rest of the request; `None` if there is none.
    pub(super) sending: Option<JoinHandle<Result<(), Error>>>,
    /// Kept open.
    #[cfg(feature = "http2")]
    pub(super) http2: Option<Http2>,
}

impl Response {
    /// The connection that the response came over; `None` for HTTP/1.1.
    #[cfg(feature = "http2")]
    pub fn into_http2(self) -> Option<Http2> {
        self.http2
    }

    /// Ends the exchange in order before a program does: waits until the content of the request was sent, which a server may answer before
    /// it has arrived, or the server takes no more of it. Over HTTP/2 this is [`Http2::close`]. A runtime that is dropped earlier aborts the
    /// connection.
    ///
    /// # Cancel safety
    /// Dropping the future stops waiting; the exchange goes on.
    ///
    /// # Errors
    /// The server answered with a status below 300, and the content of the request has not left to its end: it failed, has another length
    /// than `Content-Length` says, or [`body`](Self::body) was dropped before its end; or the connection was lost, or the server accepted less
    /// than 1 KiB of it in a minute ([`HttpError::BodyTimeout`]; over HTTP/2 as its limits say). It is no error if the server asks for no more
    /// (RFC 9113 §8.1).
    pub async fn close(self) -> Result<(), Error> {
        drop(self.body);
        let sent = match self.sending {
            // The content has panicked, or the runtime ends.
            Some(task) => task.await.unwrap_or(Err(Error::Http(HttpError::ConnectionLost))),
            None => Ok(()),
        };
        #[cfg(feature = "http2")]
        if let Some(http2) = self.http2 {
            http2.close().await;
        }
        sent
    }
}

impl Exchange {
    #[cfg(feature = "http2")]
    pub(super) fn http2(
        recv: RecvStream,
        content: Option<(SendStream, Body)>,
        expects: bool,
        is_head: bool,
        http2: Http2,
    ) -> Self {
        let stream = Stream::new(recv, content, expects, is_head, http2);
        Self { protocol: ProtocolState::Http2(stream), response: None }
    }

    pub(super) fn http1(pending: PendingResponse) -> Self {
        Self { protocol: ProtocolState::Http1(pending), response: None }
    }

    /// The next interim response; `None` when the final one has arrived.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    ///
    /// # Errors
    /// [`HttpError::NotProcessed`] when the request is safe to be sent again; [`HttpError::StreamReset`]; [`HttpError::GoAway`];
    /// [`HttpError::Malformed`]; the connection failed.
    pub async fn informational(&mut self) -> Result<Option<Informational>, Error> {
        if self.response.is_some() {
            return Ok(None);
        }
        let (version, Head { status, headers }) = match &mut self.protocol {
            #[cfg(feature = "http2")]
            ProtocolState::Http2(stream) => {
                let head = stream.head().await?;
                if head.status >= 200 {
                    self.response = Some(stream.response(head)?);
                    return Ok(None);
                }
                if head.status == 100 {
                    stream.send_held();
                }
                (Version::Http2, head)
            }
            ProtocolState::Http1(pending) => match pending.answer().await? {
                // RFC 9110 §15.2: HTTP/1.0 has none.
                Answer::Interim(head) => (Version::Http11, head),
                Answer::Final(version, Head { status, headers }, body) => {
                    let body = body.with_len_max(BODY_LEN_MAX);
                    self.response = Some(Response {
                        version,
                        status,
                        headers,
                        body,
                        sending: pending.take_task(),
                        #[cfg(feature = "http2")]
                        http2: None,
                    });
                    return Ok(None);
                }
            },
        };
        Ok(Some(Informational { version, status, headers }))
    }

    /// The response; interim ones are skipped.
    ///
    /// # Cancel safety
    /// Dropping the future cancels the request.
    ///
    /// # Errors
    /// As for [`informational`](Self::informational).
    pub async fn response(mut self) -> Result<Response, Error> {
        while self.informational().await?.is_some() {}
        self.response.take().ok_or(Error::Http(HttpError::Closed))
    }

    /// Asks the server for another priority of the response, by PRIORITY_UPDATE (RFC 9218 §7.1), such as when an image comes into view. The
    /// first one is the request's header `priority`. Over HTTP/1.1, and once the response has arrived, it has no effect.
    ///
    /// # Errors
    /// The stream or the connection has ended.
    #[cfg(feature = "http2")]
    pub fn set_priority(&self, priority: wireloom_http2::priority::Priority) -> Result<(), HttpError> {
        match &self.protocol {
            ProtocolState::Http2(stream) => stream.set_priority(priority),
            ProtocolState::Http1(_) => Ok(()),
        }
    }

    /// The address of the server, or of the proxy before it.
    pub fn peer(&self) -> Option<SocketAddr> {
        match &self.protocol {
            #[cfg(feature = "http2")]
            ProtocolState::Http2(stream) => stream.http2.peer(),
            ProtocolState::Http1(pending) => pending.peer,
        }
    }

    /// The outcome of the TLS handshake; `None` without TLS.
    pub fn tls(&self) -> Option<&TlsInfo> {
        match &self.protocol {
            #[cfg(feature = "http2")]
            ProtocolState::Http2(stream) => stream.http2.tls(),
            ProtocolState::Http1(pending) => pending.tls.as_ref(),
        }
    }
}

/// For reverse proxies: content and trailers are forwarded as they arrive, without the fields of the connection
/// (RFC 9110 §7.6.1).
#[cfg(feature = "server")]
impl From<Response> for crate::http::Response {
    fn from(response: Response) -> Self {
        let mut relayed = Self::new(response.status);
        relayed.headers = response.headers;
        let len = relayed.headers.get("content-length").and_then(|len| parse_len(len).ok());
        relayed.headers.remove_connection_specific();
        // It is added again when the content is sent.
        relayed.headers.remove("content-length");
        *relayed.body_mut() = match len {
            // RFC 9110 §9.3.2: the response to HEAD.
            Some(len @ 1..) if response.body.len_hint() == Some(0) => Body::omitted(len),
            _ => response.body,
        };
        relayed
    }
}

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exchange").field("response", &self.response).finish_non_exhaustive()
    }
}
