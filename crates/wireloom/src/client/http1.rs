//! A request over HTTP/1.1 (RFC 9112), for servers without HTTP/2. Its connection is closed after it, or returns to a pool.
//!
//! ```text
//! Exchange <- heads, then the content's pipe -- task: RequestTask -- Io
//!     '------- dropped before the response: the task is stopped
//! ```

mod request_writer;

use std::future::poll_fn;
use std::net::SocketAddr;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf as _, BytesMut};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use wireloom_ws::handshake::HandshakeLimits;

use super::http11::{Http11Servers, Server};
use super::opened::http1_fields;
use super::pool::Home;
use super::request::Request;
use super::target::Target;
use super::{ConnectEvent, Connector};
use super::{failed, is_tls_alert};
use crate::deadline::{PeerDeadline, Timer};
use crate::error::{Error, HttpError};
use crate::headers::{Head, Headers};
use crate::http::{Body, TlsInfo, Version};
use crate::http1::write::fields;
use crate::http1::{BodyEnd, BodyReader, Framing, head};
use crate::transport::{Io, PROGRESS_LEN_MIN, poll_read};
use request_writer::RequestWriter;

/// Interim responses that are kept for a client that does not read them; further ones are dropped.
const INTERIM_MAX: usize = 16;

/// How long a server that has answered may take to accept [`PROGRESS_LEN_MIN`] bytes of the content.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);

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

/// A kept connection has failed before any byte of a response.
pub(super) struct Unanswered {
    /// Whether a part of the request may have left.
    pub(super) was_sent: bool,
}

/// Why there is no response.
struct Failure {
    error: Error,
    unanswered: Option<Unanswered>,
}

/// A request in progress.
pub(super) struct PendingResponse {
    answers: mpsc::UnboundedReceiver<Result<Answer, Failure>>,
    /// The first part, when [`unanswered`](Self::unanswered) has received it.
    first: Option<Result<Answer, Error>>,
    pub(super) peer: Option<SocketAddr>,
    pub(super) tls: Option<TlsInfo>,
    /// `None` once the response owns it: it continues until the exchange is complete.
    task: Option<JoinHandle<Result<(), Error>>>,
    server: Server,
    http11_servers: Http11Servers,
}

impl Http1 {
    /// Sends a request. `headers` are the connector's. `home` keeps the connection afterwards.
    ///
    /// # Errors
    /// The method or a header cannot be sent. Nothing was sent.
    pub(super) fn send(
        self,
        target: &Target,
        connector: &Connector,
        headers: &[(String, String)],
        request: Request,
        home: Option<Home>,
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
        match (home.is_some(), sent.get("te").is_some()) {
            (false, false) => sent.push("Connection", "close")?,
            (false, true) => sent.push("Connection", "close, TE")?,
            (true, false) => {}
            (true, true) => sent.push("Connection", "TE")?,
        }
        let mut head = format!("{method} {} HTTP/1.1\r\n", target.resource).into_bytes();
        fields(&mut head, &sent);
        head.extend_from_slice(b"\r\n");
        if connector.events.is_enabled() {
            let fields = http1_fields(&head);
            connector.events.emit(&ConnectEvent::Request { version: Version::Http11, fields: &fields });
        }
        let len = if is_chunked { None } else { Some(len.unwrap_or(0)) };
        let writer = RequestWriter::new(head, body, len, expects && !is_empty);
        let (sender, answers) = mpsc::unbounded_channel();
        let (peer, tls) = (self.peer, self.tls.clone());
        let request_task = RequestTask {
            connection: self,
            home,
            writer,
            bytes: BytesMut::new(),
            is_head: method == "HEAD",
            response: Response::Head(ResponseHead::default()),
            answers: sender,
        };
        let task = tokio::spawn(request_task.run());
        Ok(PendingResponse {
            answers,
            first: None,
            peer,
            tls,
            task: Some(task),
            server: target.into(),
            http11_servers: connector.http11_servers.clone(),
        })
    }
}

/// RFC 9110 §8.6.
pub(super) fn parse_len(value: &[u8]) -> Result<u64, Error> {
    let digits = value.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(value)
        .ok()
        .filter(|_| digits)
        .and_then(|len| len.parse().ok())
        .ok_or(Error::Http(HttpError::InvalidHeader))
}

impl PendingResponse {
    /// The next part of the response.
    pub(super) async fn answer(&mut self) -> Result<Answer, Error> {
        let answer = match self.first.take() {
            Some(first) => first?,
            None => match self.answers.recv().await {
                Some(answer) => answer.map_err(|failure| failure.error)?,
                None => return Err(Error::Http(HttpError::ConnectionLost)),
            },
        };
        if let Answer::Final(Version::Http11, ..) = answer {
            self.http11_servers.insert(&self.server);
        }
        Ok(answer)
    }

    /// The task that sends and receives the rest. The response has arrived.
    pub(super) fn take_task(&mut self) -> Option<JoinHandle<Result<(), Error>>> {
        self.task.take()
    }

    /// Waits for the first part of the response. Returns `Some` if a reused connection failed before it.
    ///
    /// Cancel safe: dropping the future loses nothing.
    pub(super) async fn unanswered(&mut self) -> Option<Unanswered> {
        match self.answers.recv().await {
            Some(Err(Failure { error, unanswered })) => {
                self.first = Some(Err(error));
                unanswered
            }
            Some(Ok(answer)) => {
                self.first = Some(Ok(answer));
                None
            }
            None => None,
        }
    }
}

impl Drop for PendingResponse {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

/// Checks that the server accepts content after its response.
struct Progress {
    deadline: PeerDeadline,
    timer: Timer,
    /// The length of what must have been sent at the deadline.
    goal: Option<u64>,
}

impl Progress {
    fn new() -> Self {
        Self { deadline: PeerDeadline::after(STALL_TIMEOUT), timer: Timer::Unset, goal: None }
    }

    /// Ready when too little was accepted in time, or the connection is lost.
    fn poll_stalled(&mut self, cx: &mut Context<'_>, io: &Io, writer: &RequestWriter) -> Poll<HttpError> {
        // Nothing is written while the caller produces nothing. The deadline wakes the task a few times before it is due.
        if io.has_error() {
            return Poll::Ready(HttpError::ConnectionLost);
        }
        let sent = io.left_len().unwrap_or(writer.written());
        loop {
            let goal = self.goal.get_or_insert(sent + PROGRESS_LEN_MIN as u64);
            // The caller has not produced more.
            if writer.is_idle() {
                *goal = sent;
            }
            ready!(self.deadline.poll(&mut self.timer, cx));
            if sent < *goal {
                return Poll::Ready(HttpError::BodyTimeout);
            }
            self.deadline.restart();
            self.goal = None;
        }
    }
}

/// Sends a request and receives its response, as a task.
struct RequestTask {
    connection: Http1,
    /// Where the connection returns to; `None` if it is closed.
    home: Option<Home>,
    writer: RequestWriter,
    /// Bytes that were read and not consumed.
    bytes: BytesMut,
    is_head: bool,
    response: Response,
    answers: mpsc::UnboundedSender<Result<Answer, Failure>>,
}

/// ```text
/// Head <--> interim responses
///   '------ final response ----> Content
/// ```
enum Response {
    Head(ResponseHead),
    Content(Box<ResponseContent>),
}

/// A head that has not arrived, or not all of it.
#[derive(Default)]
struct ResponseHead {
    /// A byte of it, or of an interim response before it, has arrived.
    has_begun: bool,
    /// The length of the prefix that is known not to contain its end.
    scanned: usize,
    /// Interim responses before it.
    interim_len: usize,
}

/// The content of the final response.
struct ResponseContent {
    reader: BodyReader,
    /// A response that arrived completely. It is handed over after its connection was kept, unless content is still to be sent.
    complete: Option<Answer>,
    /// After a response of success: the content of the request is sent to its end.
    progress: Option<Progress>,
    /// How long the server keeps the connection.
    announced: Option<Duration>,
}

impl ResponseContent {
    fn has_arrived(&self) -> bool {
        self.reader.end() == Some(BodyEnd::Complete)
    }
}

impl RequestTask {
    /// # Errors
    /// The content of the request was not sent to its end after a response of success. Failures before that are those of the exchange.
    async fn run(mut self) -> Result<(), Error> {
        let ended = poll_fn(|cx| {
            // The content has failed, not the connection.
            let sent = self.writer.poll_send(cx, &mut self.connection.io);
            sent.map_err(|error| Failure { error, unanswered: None })?;
            let received = ready!(self.poll_receive(cx));
            received.map_err(|error| Failure { error, unanswered: self.unanswered() })?;
            self.poll_sent(cx).map_err(|error| Failure { error: error.into(), unanswered: None })
        });
        let ended = ended.await;
        let Self { mut connection, home, answers, response, writer, bytes, .. } = self;
        let Response::Content(mut content) = response else {
            if let Err(failure) = ended {
                // The caller may have dropped the exchange.
                drop(answers.send(Err(failure)));
            }
            return Ok(());
        };
        let complete = content.complete.take();
        let hand_over = || complete.into_iter().for_each(|answer| drop(answers.send(Ok(answer))));
        if let Err(failure) = ended {
            hand_over();
            // A response body reports by itself that it is incomplete.
            return if content.progress.is_some() { Err(failure.error) } else { Ok(()) };
        }
        // The connection is between two messages, in both directions.
        let is_reusable = content.has_arrived() && bytes.is_empty() && writer.has_ended() && !writer.is_cut();
        match home.filter(|_| is_reusable) {
            Some(home) => {
                home.put(connection, content.announced);
                hand_over();
            }
            None => {
                hand_over();
                let shutdown = poll_fn(|cx| connection.io.poll_shutdown(cx));
                // The exchange is complete: errors do not matter.
                let _ = tokio::time::timeout(SHUTDOWN_TIMEOUT, shutdown).await;
            }
        }
        Ok(())
    }

    /// `Some` before the first byte of a response.
    fn unanswered(&self) -> Option<Unanswered> {
        match self.response {
            Response::Head(ResponseHead { has_begun: false, .. }) => {
                Some(Unanswered { was_sent: self.writer.written() > 0 })
            }
            _ => None,
        }
    }

    /// Ready when the content needs no more time after the response. RFC 9110 §7.5: a response of success does not end it. Any other does.
    ///
    /// # Errors
    /// Not all of the content was sent after a response of success. A caller that drops the response before its end ends it too.
    fn poll_sent(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), HttpError>> {
        let Response::Content(content) = &mut self.response else { return Poll::Ready(Ok(())) };
        let has_arrived = content.has_arrived();
        let Some(progress) = &mut content.progress else { return Poll::Ready(Ok(())) };
        if self.writer.is_cut() {
            return Poll::Ready(Err(HttpError::ConnectionLost));
        }
        if self.writer.has_ended() {
            return Poll::Ready(Ok(()));
        }
        if !has_arrived {
            return Poll::Ready(Err(HttpError::Closed));
        }
        // The caller may produce the content after it.
        if let Some(answer) = content.complete.take() {
            let _ = self.answers.send(Ok(answer));
        }
        progress.poll_stalled(cx, &self.connection.io, &self.writer).map(Err)
    }

    /// Receives until the caller reads no more. Ready at the end of the response.
    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        loop {
            let head = match &mut self.response {
                Response::Head(head) => head,
                Response::Content(content) => {
                    return content.reader.poll(cx, &mut self.connection.io, &mut self.bytes).map(|_| Ok(()));
                }
            };
            match head::end(&self.bytes, &mut head.scanned) {
                Some(len) if len <= self.connection.limits.head_len_max => {
                    head.scanned = 0;
                    let head = self.bytes[..len].to_vec();
                    self.bytes.advance(len);
                    self.handle_head(head)?;
                    // `100 Continue` lets the content be sent.
                    if let Response::Head(_) = self.response {
                        self.writer.poll_send(cx, &mut self.connection.io)?;
                    }
                }
                None if self.bytes.len() < self.connection.limits.head_len_max => {
                    let read = ready!(poll_read(cx, &mut self.connection.io, &mut self.bytes));
                    if read.map_err(failed)? == 0 {
                        return Poll::Ready(Err(Error::Http(HttpError::ConnectionLost)));
                    }
                    head.has_begun = true;
                    if is_tls_alert(&self.bytes) {
                        return Poll::Ready(Err(Error::TlsRequired));
                    }
                }
                _ => {
                    return Poll::Ready(Err(Error::Http(HttpError::Malformed(
                        "the head of the response is too long",
                    ))));
                }
            }
        }
    }

    fn handle_head(&mut self, head: Vec<u8>) -> Result<(), Error> {
        let (status, version, mut headers) = head::parse_response(head, self.connection.limits.headers_max)
            .map_err(|(line, why)| Error::InvalidResponse(line, why))?;
        headers.make_names_lowercase();
        match status {
            // RFC 9110 §15.2.2: no upgrade was requested.
            101 => Err(Error::Http(HttpError::Malformed(
                "the server switches protocols without a request for that",
            ))),
            100..200 => {
                self.handle_interim(Head { status, headers });
                Ok(())
            }
            _ => self.handle_final(version, Head { status, headers }),
        }
    }

    fn handle_interim(&mut self, interim: Head) {
        if interim.status == 100 {
            self.writer.handle_continue();
        }
        let Response::Head(head) = &mut self.response else { return };
        head.interim_len += 1;
        if head.interim_len <= INTERIM_MAX {
            // Fails if the caller has dropped the exchange; then this task is stopped.
            let _ = self.answers.send(Ok(Answer::Interim(interim)));
        }
    }

    fn handle_final(&mut self, version: Version, head: Head) -> Result<(), Error> {
        let malformed = |(_, why)| Error::Http(HttpError::Malformed(why));
        let Head { status, headers } = &head;
        let is_wanted = self.writer.handle_response();
        let framing = Framing::of_response(headers, version, *status, self.is_head).map_err(malformed)?;
        // RFC 9112 §9.3.
        if version != Version::Http11
            || matches!(framing, Framing::Close)
            || headers.names("connection", "close")
        {
            self.home = None;
        }
        let (reader, content) = BodyReader::new(framing, &mut self.bytes).map_err(malformed)?;
        let mut response = ResponseContent {
            progress: (is_wanted && *status < 300).then(Progress::new),
            announced: headers.get("keep-alive").and_then(keep_alive_timeout),
            complete: None,
            reader,
        };
        let body = match headers.get("content-length").and_then(|len| parse_len(len).ok()) {
            // RFC 9110 §8.6: the length of content that is not sent.
            Some(len) if self.is_head || *status == 304 => Body::omitted(len),
            _ => Body::http1(content),
        };
        let answer = Answer::Final(version, head, body);
        if response.has_arrived() && self.home.is_some() {
            response.complete = Some(answer);
        } else {
            // Fails if the caller has dropped the exchange; then this task is stopped.
            let _ = self.answers.send(Ok(answer));
        }
        self.response = Response::Content(Box::new(response));
        Ok(())
    }
}

/// The parameter `timeout` of `Keep-Alive` (RFC 2068 §19.7.1), which servers send though HTTP/1.1 does not define it any more.
fn keep_alive_timeout(value: &[u8]) -> Option<Duration> {
    let value = std::str::from_utf8(value).ok()?;
    let timeout = value.split(',').find_map(|one| one.trim().strip_prefix("timeout="))?;
    timeout.trim().parse().ok().map(Duration::from_secs)
}
