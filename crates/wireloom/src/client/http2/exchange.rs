//! A request that was sent, and its response.

use std::fmt;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use wireloom_http2::error::ErrorCode;

use super::Http2;
use crate::client::http1::{Answer, Asked};
use crate::error::Error;
use crate::headers::Headers;
use crate::http::{Body, TlsInfo, Version};
use crate::http2::{Head, RecvStream, SendStream};

/// How long content is held back for `100 Continue`: many servers never send it (RFC 9110 §10.1.1).
pub(in crate::client) const CONTINUE_TIMEOUT: Duration = Duration::from_secs(1);

/// [`Body::bytes`] of a response collects at most this many bytes unless [`Body::with_len_max`] changes it: a server must not
/// choose how much memory a client needs.
const BODY_LEN_MAX: usize = 64 << 20;

/// A request that was sent. Dropping it before the response cancels the request.
#[must_use]
pub struct Exchange {
    way: Way,
    /// The final response, when [`Exchange::informational`] has received it.
    response: Option<Response>,
}

/// The protocol of a request.
enum Way {
    Http2(Stream),
    Http1(Asked),
}

/// A stream of HTTP/2.
struct Stream {
    /// `None` once the response owns it.
    recv: Option<RecvStream>,
    /// The content, while it waits for `100 Continue`.
    held: Option<(SendStream, Body)>,
    http2: Http2,
}

/// An interim response (RFC 9110 §15.2), such as 103 with links to fetch early.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Informational {
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
    /// at most 64 MiB, see [`Body::with_len_max`].
    pub body: Body,
    /// Keeps the connection open.
    connection: Option<Http2>,
    /// Content that the server did not ask for: dropping it resets the stream.
    _unsent: Option<Unsent>,
}

struct Unsent(#[allow(dead_code, reason = "held for its end")] SendStream);

impl Stream {
    /// Sends the content that was held back.
    fn send_held(&mut self) {
        if let Some((mut send, mut body)) = self.held.take() {
            match body.whole() {
                // When this fails, the response reports the error of the stream.
                Some(bytes) => drop(send.send(bytes, true)),
                None => drop(tokio::spawn(pump(send, body))),
            }
        }
    }

    async fn head(&mut self) -> Result<Head, Error> {
        let recv = self.recv.as_mut().ok_or(Error::Closed)?;
        if self.held.is_none() {
            return recv.head().await;
        }
        match tokio::time::timeout(CONTINUE_TIMEOUT, recv.head()).await {
            Ok(head) => head,
            Err(_) => {
                self.send_held();
                self.recv.as_mut().ok_or(Error::Closed)?.head().await
            }
        }
    }

    fn response(&mut self, Head { status, headers }: Head) -> Result<Response, Error> {
        let recv = self.recv.take().ok_or(Error::Closed)?;
        let len = headers.get("content-length").and_then(|len| std::str::from_utf8(len).ok()?.parse().ok());
        let body = Body::http2(recv, len).with_len_max(BODY_LEN_MAX);
        let _unsent = self.held.take().map(|(send, _)| Unsent(send));
        let connection = Some(self.http2.clone());
        Ok(Response { version: Version::Http2, status, headers, body, connection, _unsent })
    }
}

impl Response {
    /// The connection that the response came over; `None` for HTTP/1.1. [`Http2::close`] ends it in order before a program does.
    pub fn into_http2(self) -> Option<Http2> {
        self.connection
    }
}

impl Exchange {
    pub(super) fn new(
        recv: RecvStream,
        content: Option<(SendStream, Body)>,
        expects: bool,
        http2: Http2,
    ) -> Self {
        let mut stream = Stream { recv: Some(recv), held: content, http2 };
        if !expects {
            stream.send_held();
        }
        Self { way: Way::Http2(stream), response: None }
    }

    pub(in crate::client) fn http1(asked: Asked) -> Self {
        Self { way: Way::Http1(asked), response: None }
    }

    /// The next interim response; `None` when the final one has arrived.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    ///
    /// # Errors
    /// [`Error::NotProcessed`] when the request is safe to be sent again; [`Error::StreamReset`]; [`Error::Malformed`]; the
    /// connection failed.
    pub async fn informational(&mut self) -> Result<Option<Informational>, Error> {
        if self.response.is_some() {
            return Ok(None);
        }
        let Head { status, headers } = match &mut self.way {
            Way::Http2(stream) => {
                let head = stream.head().await?;
                if head.status >= 200 {
                    self.response = Some(stream.response(head)?);
                    return Ok(None);
                }
                if head.status == 100 {
                    stream.send_held();
                }
                head
            }
            Way::Http1(asked) => match asked.answer().await? {
                Answer::Interim(head) => head,
                Answer::Final(version, Head { status, headers }, body) => {
                    let body = body.with_len_max(BODY_LEN_MAX);
                    let response =
                        Response { version, status, headers, body, connection: None, _unsent: None };
                    self.response = Some(response);
                    return Ok(None);
                }
            },
        };
        Ok(Some(Informational { status, headers }))
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
        self.response.take().ok_or(Error::Closed)
    }

    /// The address of the server, or of the proxy before it.
    pub fn peer(&self) -> Option<SocketAddr> {
        match &self.way {
            Way::Http2(stream) => stream.http2.peer(),
            Way::Http1(asked) => asked.peer,
        }
    }

    /// The outcome of the TLS handshake; `None` without TLS.
    pub fn tls(&self) -> Option<&TlsInfo> {
        match &self.way {
            Way::Http2(stream) => stream.http2.tls(),
            Way::Http1(asked) => asked.tls.as_ref(),
        }
    }
}

/// For reverse proxies: content and trailers are forwarded as they arrive.
impl From<Response> for crate::http::Response {
    fn from(response: Response) -> Self {
        let mut relayed = Self::new(response.status);
        relayed.headers = response.headers;
        // It is added again where the content is sent.
        relayed.headers.remove("content-length");
        *relayed.body_mut() = response.body;
        relayed
    }
}

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exchange").field("response", &self.response).finish_non_exhaustive()
    }
}

impl fmt::Debug for Unsent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Unsent")
    }
}

/// Sends content as the body produces it and the server accepts it.
async fn pump(mut send: SendStream, mut body: Body) {
    loop {
        // The response reports the error of the stream.
        if poll_fn(|cx| send.poll_capacity(cx)).await.is_err() {
            return;
        }
        // A body that is pending is dropped with the stream.
        let next = poll_fn(|cx| match send.poll_closed(cx) {
            Poll::Ready(()) => Poll::Ready(None),
            Poll::Pending => body.poll_chunk(cx).map(Some),
        });
        let Some(next) = next.await else { return };
        let sent = match next {
            Some(Ok(data)) => send.send(data, false),
            None => {
                let _ = match body.trailers() {
                    Some(mut trailers) => send.send_trailers(&mut trailers),
                    None => send.send(Bytes::new(), true),
                };
                return;
            }
            // The server must not take it for complete.
            Some(Err(_)) => return send.reset(ErrorCode::CANCEL),
        };
        if sent.is_err() {
            return;
        }
    }
}
