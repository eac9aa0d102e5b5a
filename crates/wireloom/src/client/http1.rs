//! A request over HTTP/1.1 (RFC 9112), for servers without HTTP/2: one request per connection, which is closed after it.
//!
//! ```text
//! Exchange <- heads, then the content's pipe -- task: RequestTask -- Io
//!     '------- dropped before the response: the task is stopped
//! ```

use std::collections::VecDeque;
use std::future::{Future as _, poll_fn};
use std::io::IoSlice;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::Sleep;
use wireloom_ws::handshake::HandshakeLimits;

use super::exchange::CONTINUE_TIMEOUT;
use super::http11::{Http11Servers, Server};
use super::opened::http1_fields;
use super::request::Request;
use super::target::Target;
use super::{ConnectEvent, Connector};
use super::{failed, is_tls_alert};
use crate::error::Error;
use crate::headers::{Head, Headers};
use crate::http::{Body, TlsInfo, Version};
use crate::http1::write::{chunk_size, fields, last_chunk};
use crate::http1::{BodyReader, Framing, head};
use crate::transport::{Io, poll_read};

/// Interim responses that are kept for a client that does not read them; further ones are dropped.
const INTERIM_MAX: usize = 16;

/// Slices of one write.
const SLICES_MAX: usize = 8;

/// The timeout for closing a transport.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

/// A connection for HTTP/1.1 on which nothing has been sent.
pub(super) struct Http1 {
    pub(super) io: Io,
    pub(super) peer: Option<SocketAddr>,
    pub(super) tls: Option<TlsInfo>,
    /// Of the head of a response.
    pub(super) limits: HandshakeLimits,
}

/// A part of the response, in order.
pub(super) enum Answer {
    Interim(Head),
    Final(Version, Head, Body),
}

/// A request in progress.
pub(super) struct PendingResponse {
    answers: mpsc::UnboundedReceiver<Result<Answer, Error>>,
    pub(super) peer: Option<SocketAddr>,
    pub(super) tls: Option<TlsInfo>,
    task: AbortHandle,
    server: Server,
    http11_servers: Http11Servers,
    /// The response has arrived: the task continues until the end of its body.
    answered: bool,
}

impl Http1 {
    /// Sends a request. `headers` are the connector's.
    ///
    /// # Errors
    /// The method or a header cannot be sent. Nothing was sent.
    pub(super) fn send(
        self,
        target: &Target,
        connector: &Connector,
        headers: &[(String, String)],
        request: Request,
    ) -> Result<PendingResponse, Error> {
        let mut sent = Headers::new();
        // RFC 9112 §3.2: first.
        sent.push("Host", connector.host_of(target))?;
        request.add_missing(headers, &mut sent)?;
        let (method, body, expects) = request.into_parts(&mut sent)?;
        let len = sent.get("content-length").map(parse_len).transpose()?;
        let is_empty = body.len_hint() == Some(0);
        let is_chunked = len.is_none() && !is_empty;
        if is_chunked {
            sent.push("Transfer-Encoding", "chunked")?;
        }
        // RFC 9110 §10.1.4: a sender of TE names it.
        sent.push("Connection", if sent.get("te").is_some() { "close, TE" } else { "close" })?;
        let mut head = format!("{method} {} HTTP/1.1\r\n", target.resource).into_bytes();
        fields(&mut head, &sent);
        head.extend_from_slice(b"\r\n");
        if connector.events.is_enabled() {
            let fields = http1_fields(&head);
            connector.events.emit(&ConnectEvent::Request { version: Version::Http11, fields: &fields });
        }
        let (sender, answers) = mpsc::unbounded_channel();
        let request_task = RequestTask {
            io: self.io,
            out: VecDeque::from([head.into()]),
            unflushed: false,
            content: Some(body),
            left: if is_chunked { None } else { Some(len.unwrap_or(0)) },
            continue_timer: (expects && !is_empty).then(|| Box::pin(tokio::time::sleep(CONTINUE_TIMEOUT))),
            bytes: BytesMut::new(),
            scanned: 0,
            limits: self.limits,
            is_head: method == "HEAD",
            interim_len: 0,
            body_reader: None,
            answers: sender,
        };
        let task = tokio::spawn(request_task.run()).abort_handle();
        Ok(PendingResponse {
            answers,
            peer: self.peer,
            tls: self.tls,
            task,
            server: target.into(),
            http11_servers: connector.http11_servers.clone(),
            answered: false,
        })
    }
}

/// RFC 9110 §8.6.
pub(super) fn parse_len(value: &[u8]) -> Result<u64, Error> {
    let digits = value.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(value).ok().filter(|_| digits).and_then(|len| len.parse().ok()).ok_or(Error::Header)
}

impl PendingResponse {
    /// The next part of the response.
    pub(super) async fn answer(&mut self) -> Result<Answer, Error> {
        let answer = self.answers.recv().await.unwrap_or(Err(Error::Cut))?;
        if let Answer::Final(version, ..) = answer {
            self.answered = true;
            if version == Version::Http11 {
                self.http11_servers.insert(&self.server);
            }
        }
        Ok(answer)
    }
}

impl Drop for PendingResponse {
    fn drop(&mut self) {
        if !self.answered {
            self.task.abort();
        }
    }
}

/// Sends a request and receives its response, as a task.
struct RequestTask {
    io: Io,
    /// Bytes to write before more content.
    out: VecDeque<Bytes>,
    unflushed: bool,
    /// `None` when all of it is in `out`, or the server does not want it.
    content: Option<Body>,
    /// Remaining bytes of `Content-Length`; `None` for the chunked coding.
    left: Option<u64>,
    /// The deadline until which the content waits for `100 Continue`.
    continue_timer: Option<Pin<Box<Sleep>>>,
    /// Bytes that were read and not consumed.
    bytes: BytesMut,
    /// The length of the prefix that is known not to contain the end of a head.
    scanned: usize,
    limits: HandshakeLimits,
    is_head: bool,
    interim_len: usize,
    /// The content of the response.
    body_reader: Option<BodyReader>,
    answers: mpsc::UnboundedSender<Result<Answer, Error>>,
}

impl RequestTask {
    async fn run(mut self) {
        let ended = poll_fn(|cx| {
            if let Err(error) = self.poll_send(cx) {
                return Poll::Ready(Err(error));
            }
            self.poll_receive(cx)
        });
        match ended.await {
            Ok(()) => {
                let shutdown = poll_fn(|cx| self.io.poll_shutdown(cx));
                // The exchange is complete: errors do not matter.
                let _ = tokio::time::timeout(SHUTDOWN_TIMEOUT, shutdown).await;
            }
            // The caller may have dropped the exchange. A response body reports by itself that it is incomplete.
            Err(error) => drop(self.answers.send(Err(error))),
        }
    }

    /// Sends until the transport is full.
    ///
    /// # Errors
    /// The content failed, or has another length than was announced: the server must not take it for complete.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Result<(), Error> {
        loop {
            if !self.poll_written(cx) {
                return Ok(());
            }
            let Some(content) = &mut self.content else { return Ok(()) };
            if let Some(continue_timer) = &mut self.continue_timer {
                if continue_timer.as_mut().poll(cx).is_pending() {
                    return Ok(());
                }
                self.continue_timer = None;
            }
            match content.poll_chunk(cx) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Some(data)) => {
                    let data = data?;
                    if let Some(left) = &mut self.left {
                        *left = left.checked_sub(data.len() as u64).ok_or(LENGTH)?;
                        self.out.push_back(data);
                    } else if !data.is_empty() {
                        let mut size = Vec::with_capacity(18);
                        chunk_size(&mut size, data.len());
                        self.out.extend([size.into(), data, Bytes::from_static(b"\r\n")]);
                    }
                }
                Poll::Ready(None) => {
                    let trailers = content.trailers();
                    self.content = None;
                    match self.left {
                        Some(1..) => return Err(LENGTH),
                        // RFC 9112 §6.5: only the chunked coding has trailers.
                        Some(0) => {}
                        None => {
                            let mut last = Vec::new();
                            last_chunk(&mut last, trailers);
                            self.out.push_back(last.into());
                        }
                    }
                }
            }
        }
    }

    /// Writes `out`; `false` while the transport is full.
    fn poll_written(&mut self, cx: &mut Context<'_>) -> bool {
        while !self.out.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let mut count = 0;
            for (slice, piece) in slices.iter_mut().zip(&self.out) {
                *slice = IoSlice::new(piece);
                count += 1;
            }
            match self.io.poll_write(cx, &slices[..count]) {
                Poll::Ready(Ok(mut len))
                    if len > 0 || slices[..count].iter().all(|slice| slice.is_empty()) =>
                {
                    self.unflushed = true;
                    while let Some(piece) = self.out.front_mut() {
                        let step = len.min(piece.len());
                        piece.advance(step);
                        len -= step;
                        if !piece.is_empty() {
                            break;
                        }
                        self.out.pop_front();
                    }
                }
                Poll::Ready(_) => self.give_up_sending(),
                Poll::Pending => return false,
            }
        }
        if self.unflushed {
            match self.io.poll_flush(cx) {
                Poll::Ready(Ok(())) => self.unflushed = false,
                Poll::Ready(Err(_)) => self.give_up_sending(),
                Poll::Pending => return false,
            }
        }
        true
    }

    /// The server accepts no more. Its response may say why.
    fn give_up_sending(&mut self) {
        self.out.clear();
        self.unflushed = false;
        self.content = None;
    }

    /// Receives until the caller reads no more. Ready at the end of the response.
    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        loop {
            if let Some(body_reader) = &mut self.body_reader {
                return body_reader.poll(cx, &mut self.io, &mut self.bytes).map(|_| Ok(()));
            }
            match head::end(&self.bytes, &mut self.scanned) {
                Some(len) if len <= self.limits.head_len_max => {
                    self.scanned = 0;
                    let head = self.bytes[..len].to_vec();
                    self.bytes.advance(len);
                    self.take_head(head)?;
                    // `100 Continue` lets the content be sent.
                    if self.body_reader.is_none() {
                        self.poll_send(cx)?;
                    }
                }
                None if self.bytes.len() < self.limits.head_len_max => {
                    let read = ready!(poll_read(cx, &mut self.io, &mut self.bytes));
                    if read.map_err(failed)? == 0 {
                        return Poll::Ready(Err(Error::Cut));
                    }
                    if is_tls_alert(&self.bytes) {
                        return Poll::Ready(Err(Error::TlsPort));
                    }
                }
                _ => return Poll::Ready(Err(Error::Malformed("the head of the response is too long"))),
            }
        }
    }

    fn take_head(&mut self, head: Vec<u8>) -> Result<(), Error> {
        let (status, version, mut headers) = head::parse_response(head, self.limits.headers_max)
            .map_err(|(line, why)| Error::ResponseHead(line, why))?;
        headers.make_names_lowercase();
        let answer = match status {
            // RFC 9110 §15.2.2: no upgrade was requested.
            101 => return Err(Error::Malformed("the server switches protocols without a request for that")),
            100..200 => {
                if status == 100 {
                    self.continue_timer = None;
                }
                self.interim_len += 1;
                if self.interim_len > INTERIM_MAX {
                    return Ok(());
                }
                Answer::Interim(Head { status, headers })
            }
            _ => {
                if self.continue_timer.take().is_some() {
                    // The server does not want the content.
                    self.content = None;
                }
                let framing = Framing::of_response(&headers, version, status, self.is_head);
                let framing = framing.map_err(|(_, why)| Error::Malformed(why))?;
                let begun = BodyReader::new(framing, &mut self.bytes);
                let (body_reader, content) = begun.map_err(|(_, why)| Error::Malformed(why))?;
                self.body_reader = Some(body_reader);
                let body = match headers.get("content-length").and_then(|len| parse_len(len).ok()) {
                    // RFC 9110 §8.6: the length of content that is not sent.
                    Some(len) if self.is_head || status == 304 => Body::omitted(len),
                    _ => Body::http1(content),
                };
                Answer::Final(version, Head { status, headers }, body)
            }
        };
        // Fails if the caller has dropped the exchange; then this task is stopped.
        let _ = self.answers.send(Ok(answer));
        Ok(())
    }
}

const LENGTH: Error = Error::Malformed("the content is not as long as Content-Length says");
