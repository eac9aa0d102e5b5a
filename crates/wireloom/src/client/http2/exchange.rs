//! A request under way, and its response.

use std::fmt;
use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use wireloom_http2::error::ErrorCode;

use super::Http2;
use crate::error::Error;
use crate::headers::Headers;
use crate::http::Body;
use crate::http2::{Head, RecvStream, SendStream};

/// How long content waits for `100 Continue`: many servers never send it (RFC 9110 §10.1.1).
const CONTINUE_TIMEOUT: Duration = Duration::from_secs(1);

/// So much of a response is collected at most, unless [`Body::with_len_max`] says otherwise: a server is not to choose how much
/// memory a client needs.
const BODY_LEN_MAX: usize = 64 << 20;

/// A request under way. Dropped before the response, it takes the request back.
#[must_use]
pub struct Exchange {
    recv: RecvStream,
    /// The final head, when it has come before it was asked for.
    head: Option<Head>,
    /// What waits for `100 Continue`.
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

/// A response: its content is still to come.
#[derive(Debug)]
#[non_exhaustive]
pub struct Response {
    /// The status: 200 to 999.
    pub status: u16,
    /// The headers, their names in lower case.
    pub headers: Headers,
    /// The content, and the trailers behind it. Of what is not taken the server sends no more than the window allows;
    /// [`Body::bytes`] collects 64 MiB at most, unless it is told otherwise.
    pub body: Body,
    /// Keeps the connection.
    _http2: Http2,
    /// Content that the server did not ask for; resets the stream when it is dropped.
    _unsent: Option<Unsent>,
}

struct Unsent(#[allow(dead_code, reason = "held for its end")] SendStream);

impl Exchange {
    pub(super) fn new(
        recv: RecvStream,
        content: Option<(SendStream, Body)>,
        expects: bool,
        http2: Http2,
    ) -> Self {
        let mut exchange = Self { recv, head: None, held: content, http2 };
        if !expects {
            exchange.go_on();
        }
        exchange
    }

    /// Sends the content, beside everything else.
    fn go_on(&mut self) {
        if let Some((mut send, mut body)) = self.held.take() {
            match body.whole() {
                // It is held until the server takes it. When the stream is gone, the response says why.
                Some(bytes) => drop(send.send(bytes, true)),
                None => drop(tokio::spawn(pump(send, body))),
            }
        }
    }

    /// The next interim response; `None` when the final one has come.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    ///
    /// # Errors
    /// [`Error::NotProcessed`] when the request is safe to be sent again; [`Error::StreamReset`]; the connection failed.
    pub async fn informational(&mut self) -> Result<Option<Informational>, Error> {
        if self.head.is_some() {
            return Ok(None);
        }
        let head = if self.held.is_some() {
            match tokio::time::timeout(CONTINUE_TIMEOUT, self.recv.head()).await {
                Ok(head) => head?,
                Err(_) => {
                    self.go_on();
                    self.recv.head().await?
                }
            }
        } else {
            self.recv.head().await?
        };
        if head.status >= 200 {
            self.head = Some(head);
            return Ok(None);
        }
        if head.status == 100 {
            self.go_on();
        }
        Ok(Some(Informational { status: head.status, headers: head.headers }))
    }

    /// The response; interim ones are passed over.
    ///
    /// # Cancel safety
    /// Dropping the future takes the request back.
    ///
    /// # Errors
    /// As for [`informational`](Self::informational).
    pub async fn response(mut self) -> Result<Response, Error> {
        while self.informational().await?.is_some() {}
        let Head { status, headers } = self.head.take().ok_or(Error::Closed)?;
        let len = headers.get("content-length").and_then(|len| std::str::from_utf8(len).ok()?.parse().ok());
        let body = Body::http2(self.recv, len).with_len_max(BODY_LEN_MAX);
        let _unsent = self.held.map(|(send, _)| Unsent(send));
        Ok(Response { status, headers, body, _http2: self.http2, _unsent })
    }
}

/// For a server that asks another one: what that answers, content and trailers as they come.
impl From<Response> for crate::http::Response {
    fn from(response: Response) -> Self {
        let mut relayed = Self::new(response.status);
        relayed.headers = response.headers;
        // It is said again where the content is sent.
        relayed.headers.remove("content-length");
        *relayed.body_mut() = response.body;
        relayed
    }
}

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exchange").field("head", &self.head).finish_non_exhaustive()
    }
}

impl fmt::Debug for Unsent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Unsent")
    }
}

/// Sends content as it comes and as the server takes it.
async fn pump(mut send: SendStream, mut body: Body) {
    loop {
        // When the stream is gone, whoever waits for the response knows why.
        if poll_fn(|cx| send.poll_capacity(cx)).await.is_err() {
            return;
        }
        // Content that is long in coming is given up with the stream.
        let next = poll_fn(|cx| match send.poll_gone(cx) {
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
            // The server is not to take it for whole.
            Some(Err(_)) => return send.reset(ErrorCode::CANCEL),
        };
        if sent.is_err() {
            return;
        }
    }
}
