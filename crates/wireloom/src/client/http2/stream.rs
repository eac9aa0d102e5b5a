//! The stream of a request over HTTP/2: content that is sent, the response that arrives.

use std::future::poll_fn;

use tokio::task::JoinHandle;
use tokio::time::Instant;
use wireloom_http2::error::ErrorCode;
use wireloom_http2::priority::Priority;

use super::Http2;
use crate::client::exchange::{BODY_LEN_MAX, CONTINUE_TIMEOUT, Response};
use crate::error::{Error, HttpError};
use crate::headers::Head;
use crate::http::{Body, Version, send_body};
use crate::http2::{RecvStream, SendStream};

/// The content of the request once it is not held back.
enum Content {
    None,
    /// All of it is queued.
    Queued(SendStream),
    Streamed(JoinHandle<Result<(), Error>>),
}

/// A stream of HTTP/2.
pub(in crate::client) struct Stream {
    /// `None` once the response owns it.
    recv: Option<RecvStream>,
    /// The content, while it waits for `100 Continue`, and how long it waits.
    held: Option<(SendStream, Body)>,
    held_until: Instant,
    content: Content,
    is_head: bool,
    pub(in crate::client) http2: Http2,
}

impl Stream {
    /// With `expects` the content waits for `100 Continue`.
    pub(in crate::client) fn new(
        recv: RecvStream,
        content: Option<(SendStream, Body)>,
        expects: bool,
        is_head: bool,
        http2: Http2,
    ) -> Self {
        let held_until = Instant::now() + CONTINUE_TIMEOUT;
        let (recv, held, content) = (Some(recv), content, Content::None);
        let mut stream = Self { recv, held, held_until, content, is_head, http2 };
        if !expects {
            stream.send_held();
        }
        stream
    }

    /// Sends the content that was held back.
    pub(in crate::client) fn send_held(&mut self) {
        if let Some((mut send, mut body)) = self.held.take() {
            self.content = match body.whole() {
                Some(bytes) => {
                    // When this fails, the response reports the error of the stream.
                    let _ = send.send(bytes, true);
                    Content::Queued(send)
                }
                None => Content::Streamed(tokio::spawn(send_all(send, Some(body)))),
            };
        }
    }

    /// Asks for another priority of the response.
    pub(in crate::client) fn set_priority(&self, priority: Priority) -> Result<(), HttpError> {
        self.recv.as_ref().map_or(Ok(()), |recv| recv.send_priority_update(priority))
    }

    pub(in crate::client) async fn head(&mut self) -> Result<Head, HttpError> {
        let recv = self.recv.as_mut().ok_or(HttpError::Closed)?;
        if self.held.is_none() {
            return recv.head().await;
        }
        match tokio::time::timeout_at(self.held_until, recv.head()).await {
            Ok(head) => head,
            Err(_) => {
                self.send_held();
                self.recv.as_mut().ok_or(HttpError::Closed)?.head().await
            }
        }
    }

    pub(in crate::client) fn response(
        &mut self,
        Head { status, headers }: Head,
    ) -> Result<Response, HttpError> {
        let mut recv = self.recv.take().ok_or(HttpError::Closed)?;
        if let Some((send, _)) = self.held.take() {
            recv = recv.with_unsent(send);
        }
        let len = headers.get("content-length").and_then(|len| std::str::from_utf8(len).ok()?.parse().ok());
        let body = match len {
            // RFC 9110 §8.6: the length of content that is not sent.
            Some(len) if self.is_head || status == 304 => Body::omitted(len),
            _ => Body::http2(recv, len).with_len_max(BODY_LEN_MAX),
        };
        let sending = match std::mem::replace(&mut self.content, Content::None) {
            // A refusal says nothing of the content, which may end before it was sent.
            _ if status >= 300 => None,
            Content::Queued(send) if !send.is_sent() => Some(tokio::spawn(send_all(send, None))),
            Content::Streamed(task) => Some(task),
            Content::None | Content::Queued(_) => None,
        };
        let http2 = Some(self.http2.clone());
        Ok(Response { version: Version::Http2, status, headers, body, sending, http2 })
    }
}

/// Sends content, if not all of it is queued, and waits until everything has left.
///
/// # Errors
/// As for [`send_body`].
async fn send_all(mut send: SendStream, content: Option<Body>) -> Result<(), Error> {
    let sending = async {
        if let Some(body) = content {
            send_body(&mut send, body).await?;
        }
        poll_fn(|cx| send.poll_sent(cx)).await
    };
    match sending.await {
        // RFC 9113 §8.1: the response needs no more of the request.
        Err(HttpError::StreamReset(ErrorCode::NO_ERROR)) => Ok(()),
        sent => Ok(sent?),
    }
}
