//! One connection of a server: protocol detection, then HTTP/1.1 requests one after the other (RFC 9112) until one becomes a
//! WebSocket, or HTTP/2.

use std::future::{Future as _, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use tokio::time::{Sleep, sleep};
#[cfg(feature = "http2")]
use wireloom_http2::upgrade::PREFACE;
#[cfg(feature = "http2")]
use wireloom_http2::{Role as Http2Role, StreamKey};
use wireloom_ws::handshake::is_token_byte;

use super::Handler;
use super::accept::TLS_HANDSHAKE;
use super::config::ServerConfig;
#[cfg(feature = "http2")]
use super::http2;
use super::panic;
use super::timeouts::{Stopped, Timeouts, until};
use super::unsent::Unsent;
use crate::deadline::PeerDeadline;
use crate::error::HttpError;
use crate::http::{Afterwards, Body, Open, Origin, Request, Response, Running, Version};
use crate::http1::head::{self, Refusal};
use crate::http1::write::{self, Ending};
use crate::http1::{BodyEnd, BodyReader, Content, Framing};
#[cfg(feature = "http2")]
use crate::http2::Driver;
use crate::memory::{Category, FREE_LEN, Reservation};
use crate::registry::{Handshaking, Phase, Registration, Registry};
use crate::transport::{Io, Linger, PROGRESS_LEN_MIN, poll_read_at_most, poll_write_all};

/// How often a connection that waits without reading looks whether its socket has an error.
const ERROR_CHECK: Duration = Duration::from_secs(2);

/// The maximum length of a read for a head, in bytes. Bytes that follow the head stay in memory while the handler runs, so few are read
/// ahead: the others stay in the socket.
pub(super) const READ_LEN_MAX: usize = 16 << 10;

/// RFC 7540 §3.2.
#[cfg(feature = "http2")]
const SWITCHING_TO_HTTP2: &[u8] =
    b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n";

pub(super) struct Connection {
    pub(super) io: Io,
    pub(super) origin: Arc<Origin>,
    pub(super) config: Arc<ServerConfig>,
    pub(super) registry: Arc<Registry>,
    pub(super) registration: Registration,
    pub(super) timeouts: Timeouts,
    /// Bytes that were read and not consumed.
    pub(super) bytes: BytesMut,
    /// The memory of `bytes`.
    pub(super) bytes_memory: Reservation,
}

/// How the wait for a head ended.
enum HeadOutcome {
    Head(usize),
    #[cfg(feature = "http2")]
    Http2,
    /// The client disconnected or was silent for too long, or the server shuts down: no response is sent.
    End,
    Refused(Refusal),
}

/// The protocol that follows.
pub(super) enum Next {
    End,
    /// HTTP/2, perhaps with a request that was upgraded.
    #[cfg(feature = "http2")]
    Http2(Option<Box<Upgraded>>),
    WebSocket(Box<dyn Open>),
}

/// The HTTP/2 connection to which a request was upgraded, the stream of the request there, and the request.
#[cfg(feature = "http2")]
type Upgraded = (Arc<http2::Shared>, StreamKey, Request);

/// A request that has started.
enum StartedRequest<F> {
    /// With the memory of the head, which the handler may keep.
    Handling(RequestTraits, BodyReader, F, Option<Reservation>),
    #[cfg(feature = "http2")]
    Upgraded(Box<Upgraded>),
}

/// The memory of a request in addition to its head: what is parsed from it, and the rounding of allocations. Measured with
/// `conformance/memory/run`.
const REQUEST_COST: usize = 4 << 10;

/// RFC 9110 §15.6.4.
const OVERLOADED: Refusal = (503, "the server is overloaded");

impl Connection {
    pub(super) fn new(
        io: Io,
        origin: Arc<Origin>,
        config: Arc<ServerConfig>,
        registry: Arc<Registry>,
        registration: Registration,
    ) -> Self {
        let timeouts = Timeouts::new(registry.clone());
        let bytes_memory = origin.account.reservation(Category::Head);
        Self { io, origin, config, registry, registration, timeouts, bytes: BytesMut::new(), bytes_memory }
    }

    /// Wraps the transport in the configured tap, if any, which also receives the bytes that have arrived.
    pub(super) fn observe(&mut self) {
        let Some(tap) = &self.config.tap else { return };
        // An unconnected end temporarily replaces the transport.
        let none = Io::Other(Box::new(tokio::io::empty()));
        let io = std::mem::replace(&mut self.io, none);
        self.io = tap.wrap(io, &self.bytes);
    }

    /// Serves one request after the other until the connection ends or changes its protocol. `handshaking` is dropped when the
    /// protocol is known.
    pub(super) async fn run(&mut self, handler: &impl Handler, handshaking: Handshaking) -> Next {
        let mut handshaking = Some(handshaking);
        let alpn = self.origin.tls.as_ref().and_then(|tls| tls.alpn.as_deref());
        #[cfg(feature = "http2")]
        if alpn == Some(b"h2") {
            return Next::Http2(None);
        }
        // RFC 7301 §3.2: the protocol that was selected is definitive.
        let mut preface_allowed = cfg!(feature = "http2") && alpn.is_none();
        let registry = &*self.registry.clone();
        loop {
            let arrived = self.read_head(handshaking.is_some(), preface_allowed).await;
            drop(handshaking.take());
            preface_allowed = false;
            let started = match arrived {
                HeadOutcome::Head(_) if !self.origin.account.takes_new_work() => Err(OVERLOADED),
                HeadOutcome::Head(len) => {
                    self.begin_request(len, |request| panic::answer(registry, handler, request))
                }
                #[cfg(feature = "http2")]
                HeadOutcome::Http2 => return Next::Http2(None),
                HeadOutcome::End => {
                    self.notify_end();
                    return Next::End;
                }
                HeadOutcome::Refused(refusal) => Err(refusal),
            };
            let (mut traits, mut body_reader, handling, head_memory) = match started {
                Ok(StartedRequest::Handling(traits, body_reader, handling, head_memory)) => {
                    (traits, body_reader, handling, head_memory)
                }
                #[cfg(feature = "http2")]
                Ok(StartedRequest::Upgraded(upgraded)) => return Next::Http2(Some(upgraded)),
                Err((status, why)) => {
                    self.refuse(status, why).await;
                    return Next::End;
                }
            };
            let answer = {
                let Self { io, bytes, bytes_memory, .. } = self;
                let _head_memory = head_memory;
                let mut handling = pin!(handling);
                let mut leaving = Leaving::default();
                poll_fn(|cx| {
                    // The handler reads the body from the body reader.
                    let taken = body_reader.poll(cx, io, bytes);
                    match handling.as_mut().poll(cx) {
                        Poll::Pending => {
                            leaving.poll(cx, taken.is_ready(), io, bytes, bytes_memory).map(|()| None)
                        }
                        handled => handled.map(|(response, panicked)| {
                            // After a panic no other request follows.
                            traits.keep_alive &= !panicked
                                && registry.phase() == Phase::Serving
                                && response.afterwards == Afterwards::KeepAlive;
                            #[cfg(feature = "http2")]
                            if response.reset_code().is_some() {
                                io.abandon();
                                return None;
                            }
                            Some(encode_response(response, &traits, &mut body_reader))
                        }),
                    }
                })
                .await
            };
            // No response: the client has disconnected, or the handler resets the connection.
            let Some(Answer { head, whole, rest, opening, keep_alive }) = answer else { return Next::End };
            let sent = match rest {
                None => self.write(&[&head, &whole]).await,
                // Boxed: most bodies are complete.
                Some((body, ending)) => {
                    Box::pin(self.stream(head, body, ending, traits.trailers, &mut body_reader)).await
                }
            };
            if sent.is_err() {
                return Next::End;
            }
            if let Some(opening) = opening {
                return Next::WebSocket(opening);
            }
            // The body is read as long as the application wants it, whether or not another request may follow.
            if !self.read_rest(&mut body_reader).await || !keep_alive {
                self.linger().await;
                return Next::End;
            }
            if self.bytes.is_empty() {
                // Between two requests no memory is held.
                self.bytes = BytesMut::new();
                self.bytes_memory.set(0);
            }
        }
    }

    /// Sends close_notify (RFC 8446 §6.1) if nothing else is to be sent and the transport accepts it at once.
    fn notify_end(&mut self) {
        if self.io.buffers_writes() {
            let _ = self.io.poll_shutdown(&mut Context::from_waker(Waker::noop()));
        }
    }

    /// Opens the WebSocket.
    pub(super) fn open(self, opening: Box<dyn Open>) -> Running {
        let Self { io, registration, bytes, .. } = self;
        opening.open(io, &bytes, Some(registration))
    }

    /// Serves HTTP/2 until the end.
    #[cfg(feature = "http2")]
    pub(super) async fn serve_http2(self, upgraded: Option<Box<Upgraded>>, handler: &Arc<impl Handler>) {
        let Self { io, origin, config, registry, registration, bytes, bytes_memory, .. } = self;
        let (driver, first) = match upgraded.map(|upgraded| *upgraded) {
            Some((shared, key, request)) => {
                let driver = Driver::with_shared(io, shared);
                (driver.with_prefix(SWITCHING_TO_HTTP2), Some((key, request)))
            }
            // The configuration was validated when the server started.
            None => match Driver::new(io, Http2Role::Server, http2_config(&config)) {
                Ok(driver) => (driver, None),
                Err(_) => return,
            },
        };
        let driver = driver.with_read_ahead(&bytes).with_idle_timeout(config.keep_alive_timeout);
        let driver = driver.with_account(registration.account()).with_keepalive(config.http2_keepalive);
        drop((bytes, bytes_memory));
        // At least one message of the maximum length.
        let message_len_max = config.websocket.core.limits.message_len_max;
        let tunnels_memory_max = config.http2.memory_max.max(message_len_max);
        let tunnels = registry.memory.group(usize::try_from(tunnels_memory_max).unwrap_or(usize::MAX));
        http2::serve(driver, first, origin, registry, &registration, tunnels, handler).await;
    }

    /// The HTTP/2 connection that a request upgrades to, and its stream there. RFC 7540 §3.2.1: the upgrade of a request with
    /// invalid settings is ignored.
    #[cfg(feature = "http2")]
    fn upgrade(&self, request: &Request) -> Option<(Arc<http2::Shared>, StreamKey)> {
        let settings = if self.config.http2_upgrade { http2_settings(request) } else { None }?;
        http2::Shared::upgraded(http2_config(&self.config), &settings, request.kind()).ok()
    }

    /// `first`: this is the first head on the connection. `preface_allowed`: it may be the HTTP/2 preface instead.
    async fn read_head(&mut self, first: bool, preface_allowed: bool) -> HeadOutcome {
        let Self { io, config, timeouts, bytes, bytes_memory, .. } = self;
        let mut scanned = 0;
        let mut deadline =
            PeerDeadline::after(if first { config.handshake_timeout } else { config.keep_alive_timeout });
        let (mut has_begun, mut is_drained) = (first, false);
        loop {
            if bytes_memory.try_set(head_cost(bytes.capacity())).is_err() {
                // The connection stays open for the answer.
                *bytes = BytesMut::new();
                bytes_memory.set(0);
                return HeadOutcome::Refused(OVERLOADED);
            }
            if let Some(arrived) = scan_head(bytes, &mut scanned, preface_allowed, config.head_len_max) {
                return arrived;
            }
            // An empty line, of which half has arrived, does not begin a request.
            let quiet = matches!(**bytes, [] | [b'\r']);
            if !quiet && !std::mem::replace(&mut has_begun, true) {
                deadline = PeerDeadline::after(config.handshake_timeout);
            }
            let read = |cx: &mut Context<'_>| poll_read_at_most(cx, io, bytes, READ_LEN_MAX);
            // A request that has started is answered, also while the server shuts down. Empty lines start none.
            let read = match quiet {
                true if is_drained => return HeadOutcome::End,
                true => timeouts.until_drained(&mut deadline, read).await,
                false => timeouts.within(&mut deadline, Phase::Aborted, read).await,
            };
            is_drained = timeouts.is_drained();
            match read {
                Ok(Ok(1..)) => {}
                Err(Stopped::TimedOut) if !quiet => {
                    return HeadOutcome::Refused((408, "the request took too long"));
                }
                _ => return HeadOutcome::End,
            }
        }
    }

    /// Parses a request, and calls `handle` for it.
    fn begin_request<F>(
        &mut self,
        len: usize,
        handle: impl FnOnce(Request) -> F,
    ) -> Result<StartedRequest<F>, Refusal> {
        let mut head_memory = self.bytes_memory.take();
        let head = match self.bytes.len() == len {
            true => std::mem::take(&mut self.bytes).into(),
            false => self.bytes.split_to(len).to_vec(),
        };
        let mut head_len = head.capacity();
        let head = head::parse(head)?;
        let mut request = Request::http1(head.headers, head.method, head.target, head.version, &self.origin);
        // RFC 9110 §9.3.6: this server is not a proxy.
        if request.is_method("CONNECT") {
            return Err((501, "this server is not a proxy"));
        }
        let framing = Framing::of(request.head(), request.version())?;
        let expects = request.version() == Version::Http11 && request.names("expect", "100-continue");
        let (mut body, content) = BodyReader::new(framing, &mut self.bytes)?;
        if let Content::Whole(content) = &content {
            head_len += content.len();
        }
        if let Some(memory) = &mut head_memory {
            memory.set(head_cost(head_len));
        }
        self.bytes_memory.try_set(self.bytes.capacity()).map_err(|_| OVERLOADED)?;
        if expects {
            body.expect_continue();
        }
        request.set_body(Body::http1(content));
        #[cfg(feature = "http2")]
        if body.end() == Some(BodyEnd::Complete)
            && let Some((shared, key)) = self.upgrade(&request)
        {
            return Ok(StartedRequest::Upgraded(Box::new((shared, key, request))));
        }
        self.registry.counters.requests.fetch_add(1, Ordering::Relaxed);
        Ok(StartedRequest::Handling(RequestTraits::of(&request), body, handle(request), head_memory))
    }

    /// Reads the rest of a request's body; true when it is complete.
    async fn read_rest(&mut self, body_reader: &mut BodyReader) -> bool {
        let Self { io, bytes, timeouts, config, .. } = self;
        loop {
            // From one chunk to the next: a task of the application may read the body as it arrives.
            let mut deadline = PeerDeadline::after(config.body_timeout);
            let read =
                timeouts.within(&mut deadline, Phase::Aborted, |cx| match body_reader.poll(cx, io, bytes) {
                    Poll::Pending if body_reader.take_progress() => Poll::Ready(None),
                    read => read.map(Some),
                });
            match read.await {
                Ok(None) => {}
                read => return read == Ok(Some(BodyEnd::Complete)),
            }
        }
    }

    /// Sends a body as it is produced, the head with the first chunk.
    async fn stream(
        &mut self,
        mut out: Vec<u8>,
        mut body: Body,
        ending: Ending,
        trailers: bool,
        body_reader: &mut BodyReader,
    ) -> io::Result<()> {
        let mut left = match ending {
            Ending::Length(len) => len,
            _ => u64::MAX,
        };
        let mut leaving = Leaving::default();
        loop {
            let Self { io, bytes, bytes_memory, registry, .. } = self;
            let mut flushing = !out.is_empty();
            let next = poll_fn(|cx| {
                let taken = body_reader.poll(cx, io, bytes);
                let polled = panic::catch(registry, || body.poll_chunk(cx));
                match polled.unwrap_or(Poll::Ready(Some(Err(HttpError::ConnectionLost)))) {
                    // The head does not wait for the body.
                    Poll::Pending if std::mem::take(&mut flushing) => Poll::Ready(None),
                    Poll::Pending => leaving
                        .poll(cx, taken.is_ready(), io, bytes, bytes_memory)
                        .map(|()| Some(Some(Err(HttpError::ConnectionLost)))),
                    next => next.map(Some),
                }
            });
            let next = until(registry, Phase::Aborted, next).await.ok_or(io::ErrorKind::TimedOut)?;
            let Some(next) = next else {
                self.write_unless_aborted(&mut body, &[&out]).await?;
                out.clear();
                continue;
            };
            let Some(chunk) = next else { break };
            let Ok(chunk) = chunk else {
                // RFC 9112 §8: an incomplete body is recognized, unless the end of the connection is its only end.
                if ending == Ending::Close {
                    self.io.abandon();
                }
                return Err(io::ErrorKind::Interrupted.into());
            };
            left = left.checked_sub(chunk.len() as u64).ok_or(io::ErrorKind::InvalidData)?;
            if chunk.is_empty() {
                // RFC 9112 §7.1: a chunk of length 0 would end the body.
                continue;
            }
            if ending == Ending::Chunked {
                write::chunk_size(&mut out, chunk.len());
                self.write_unless_aborted(&mut body, &[&out, &chunk, b"\r\n"]).await?;
            } else {
                self.write_unless_aborted(&mut body, &[&out, &chunk]).await?;
            }
            out.clear();
        }
        match ending {
            Ending::Chunked => {
                write::last_chunk(&mut out, body.trailers().filter(|_| trailers));
            }
            Ending::Length(_) if left > 0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            _ => {}
        }
        self.write(&[&out]).await?;
        if ending == Ending::Close {
            // The client waits for it, and the rest of its request may take its time.
            let Self { io, timeouts, config, .. } = self;
            let mut deadline = PeerDeadline::after(config.http1_stall_timeout);
            let shutdown = timeouts.within(&mut deadline, Phase::Aborted, |cx| io.poll_shutdown(cx));
            shutdown.await.map_err(|_| io::ErrorKind::TimedOut)??;
        }
        Ok(())
    }

    /// Boxed: most requests are not refused.
    pub(super) fn refuse(&mut self, status: u16, why: &str) -> Pin<Box<impl Future<Output = ()>>> {
        let (_, headers, mut body) = Response::text(status, format!("{why}\n")).into_parts();
        let body = body.whole().unwrap_or_default();
        let mut out = Vec::with_capacity(256);
        write::head(&mut out, status, &headers, Ending::Length(body.len() as u64), Some(false));
        Box::pin(async move {
            if self.write(&[&out, &body]).await.is_ok() {
                self.linger().await;
            }
        })
    }

    /// Writes all of `parts`, unless the client stalls or the server has to free their memory.
    async fn write(&mut self, parts: &[&[u8]]) -> io::Result<()> {
        self.write_unless(|_| Poll::Pending, parts).await
    }

    /// As [`write`](Self::write); fails when the body is aborted while the client does not read.
    async fn write_unless_aborted(&mut self, body: &mut Body, parts: &[&[u8]]) -> io::Result<()> {
        self.write_unless(|cx| body.poll_aborted(cx), parts).await
    }

    async fn write_unless(
        &mut self,
        poll_aborted: impl FnMut(&mut Context<'_>) -> Poll<()>,
        parts: &[&[u8]],
    ) -> io::Result<()> {
        let (io, mut written) = (&mut self.io, 0);
        let at_once = poll_fn(|cx| Poll::Ready(poll_write_all(cx, io, parts, &mut written))).await;
        match at_once {
            Poll::Ready(end) => end,
            // Boxed: most responses are accepted at once.
            Poll::Pending => Box::pin(self.write_rest(poll_aborted, parts, written)).await,
        }
    }

    async fn write_rest(
        &mut self,
        mut poll_aborted: impl FnMut(&mut Context<'_>) -> Poll<()>,
        parts: &[&[u8]],
        mut written: usize,
    ) -> io::Result<()> {
        let Self { io, timeouts, config, origin, .. } = self;
        let mut unsent = None;
        loop {
            // A deadline for the next bytes.
            let mut deadline = PeerDeadline::after(config.http1_stall_timeout);
            let progress = |io: &Io, written| io.left_len().unwrap_or(written as u64);
            let goal = progress(io, written) + PROGRESS_LEN_MIN as u64;
            let work = timeouts.within(&mut deadline, Phase::Aborted, |cx| {
                match poll_write_all(cx, io, parts, &mut written) {
                    Poll::Pending if progress(io, written) >= goal => Poll::Ready(Write::Progress),
                    Poll::Pending => {
                        let len = || parts.iter().map(|part| part.len()).sum();
                        let unsent = unsent.get_or_insert_with(|| Unsent::new(&origin.account, len()));
                        let is_over = unsent.poll_evicted(cx).is_ready() || poll_aborted(cx).is_ready();
                        if is_over { Poll::Ready(Write::Aborted) } else { Poll::Pending }
                    }
                    Poll::Ready(end) => Poll::Ready(Write::End(end)),
                }
            });
            match work.await {
                Ok(Write::Progress) => {}
                Ok(Write::End(end)) => return end,
                Ok(Write::Aborted) | Err(_) => {
                    // Bytes that the client does not accept are dropped.
                    self.io.abandon();
                    return Err(io::ErrorKind::TimedOut.into());
                }
            }
        }
    }

    /// Shuts down the writing side and continues to read for a while, so that the client reads the response instead of a reset. Boxed: an idle
    /// connection has no room for it.
    fn linger(&mut self) -> Pin<Box<impl Future<Output = ()>>> {
        let Self { io, origin, registry, .. } = self;
        let mut linger = Linger::http().with_account(&origin.account);
        Box::pin(async move {
            if until(registry, Phase::Draining, poll_fn(|cx| linger.poll(io, cx))).await.is_none() {
                // The rest of a request need not arrive before the server ends.
                linger.hurry();
                until(registry, Phase::Aborted, poll_fn(|cx| linger.poll(io, cx))).await;
            }
        })
    }
}

/// The memory of a request whose head has this length, in bytes.
fn head_cost(len: usize) -> usize {
    if len > FREE_LEN { len + REQUEST_COST } else { 0 }
}

/// The HTTP/2 settings, with the timeout for a head.
#[cfg(feature = "http2")]
fn http2_config(config: &ServerConfig) -> wireloom_http2::Config {
    let mut http2 = config.http2;
    let limits = &mut http2.limits;
    limits.field_block_timeout = limits.field_block_timeout.min(config.handshake_timeout);
    // A client that is silent after TLS does not acknowledge SETTINGS either.
    limits.settings_timeout = limits.settings_timeout.min(config.handshake_timeout);
    http2
}

/// The head, or the preface of HTTP/2 where that is allowed, if `bytes` begin with one; `None` while more bytes are needed.
fn scan_head(
    bytes: &mut BytesMut,
    scanned: &mut usize,
    preface_allowed: bool,
    len_max: usize,
) -> Option<HeadOutcome> {
    // RFC 9112 §2.2: empty lines before a request are ignored.
    while let [b'\n', ..] | [b'\r', b'\n', ..] = **bytes {
        bytes.advance(if bytes[0] == b'\n' { 1 } else { 2 });
    }
    if **bytes == *b"\r" {
        return None;
    }
    #[cfg(feature = "http2")]
    if preface_allowed && bytes.starts_with(PREFACE) {
        return Some(HeadOutcome::Http2);
    }
    match bytes.first() {
        // RFC 8446 §5.1: a record of a TLS handshake.
        Some(&TLS_HANDSHAKE) => return Some(HeadOutcome::Refused((400, "this port does not use TLS"))),
        Some(&byte) if !is_token_byte(byte) => {
            return Some(HeadOutcome::Refused((400, "the request is not HTTP")));
        }
        _ => {}
    }
    #[cfg(feature = "http2")]
    let preface = preface_allowed && bytes.len() < PREFACE.len() && PREFACE.starts_with(bytes);
    #[cfg(not(feature = "http2"))]
    let preface = preface_allowed;
    match if preface { None } else { head::end(bytes, scanned) } {
        Some(len) if len <= len_max => Some(HeadOutcome::Head(len)),
        None if bytes.len() < len_max => None,
        // RFC 9110 §15.5.15, RFC 6585 §5.
        _ if bytes.iter().take(len_max).any(|&byte| byte == b'\n') => {
            Some(HeadOutcome::Refused((431, "the head of the request is too long")))
        }
        _ => Some(HeadOutcome::Refused((414, "the target of the request is too long"))),
    }
}

/// The result of a write.
enum Write {
    /// The client has accepted bytes, and others wait.
    Progress,
    /// The body was aborted, or the server has to free memory.
    Aborted,
    End(io::Result<()>),
}

/// A response that is ready to be sent.
struct Answer {
    head: Vec<u8>,
    /// The body, if it is complete.
    whole: Bytes,
    /// The body, if it is streamed.
    rest: Option<(Body, Ending)>,
    opening: Option<Box<dyn Open>>,
    /// Whether another request may follow.
    keep_alive: bool,
}

/// Encodes a response.
fn encode_response(mut response: Response, traits: &RequestTraits, body_reader: &mut BodyReader) -> Answer {
    let mut opening = response.opening.take();
    if opening.is_some() && body_reader.end() != Some(BodyEnd::Complete) {
        response = Response::text(400, "a WebSocket handshake must not have a body\n");
        opening = None;
    }
    let allows_body = response.allows_body();
    let (status, headers, mut body) = response.into_parts();
    let mut head = Vec::with_capacity(256);
    if opening.is_some() {
        write::head(&mut head, status, &headers, Ending::None, None);
        return Answer { head, whole: Bytes::new(), rest: None, opening, keep_alive: true };
    }
    let len = body.len_hint();
    let whole = body.whole();
    // RFC 9110 §9.3.2: the answer to HEAD has no body.
    let rest = Some(body).filter(|_| allows_body && !traits.is_head && whole.is_none());
    // A body that is not sent has been dropped: it may be that of the request, which then is not read.
    let may_follow = body_reader.respond(&mut head);
    let mut keep_alive = may_follow && traits.keep_alive;
    let ending = match (&whole, len) {
        _ if !allows_body => Ending::None,
        // RFC 9110 §9.3.2: the length that a response to GET would have.
        (_, Some(len)) if traits.is_head => Ending::Length(len),
        (Some(whole), _) => Ending::Length(whole.len() as u64),
        (None, Some(len)) => Ending::Length(len),
        (None, None) if traits.version == Version::Http11 => Ending::Chunked,
        // RFC 9112 §6.1: HTTP/1.0 has no chunks.
        (None, None) => {
            keep_alive = false;
            Ending::Close
        }
    };
    write::head(&mut head, status, &headers, ending, Some(keep_alive));
    let whole = whole.filter(|_| allows_body && !traits.is_head).unwrap_or_default();
    Answer { head, whole, rest: rest.map(|body| (body, ending)), opening, keep_alive }
}

/// The properties of a request that determine its response.
struct RequestTraits {
    version: Version,
    is_head: bool,
    keep_alive: bool,
    /// Whether the client accepts trailers.
    trailers: bool,
}

impl RequestTraits {
    fn of(request: &Request) -> Self {
        Self {
            version: request.version(),
            is_head: request.is_method("HEAD"),
            keep_alive: request.version() == Version::Http11 && !request.names("connection", "close"),
            trailers: request.names("te", "trailers"),
        }
    }
}

/// The settings of a request for an upgrade to HTTP/2 (RFC 7540 §3.2); `None` if the request may not be upgraded.
#[cfg(feature = "http2")]
fn http2_settings(request: &Request) -> Option<Vec<u8>> {
    let head = request.head();
    let is_upgrade = request.tls().is_none()
        && request.version() == Version::Http11
        // RFC 9110 §7.8: of several protocols the server chooses one.
        && !request.is_websocket()
        && head.names("upgrade", "h2c")
        && head.names("connection", "upgrade")
        && head.names("connection", "http2-settings");
    // RFC 7540 §3.2.1: exactly one.
    let mut settings = head.get_all("http2-settings");
    let first = settings.next().filter(|_| is_upgrade)?;
    settings.next().is_none().then(|| first.to_vec())
}

/// Notices that the client leaves while a handler or a body is waited for.
#[derive(Default)]
struct Leaving {
    /// The next look at the socket's error.
    check: Option<Pin<Box<Sleep>>>,
}

impl Leaving {
    /// Ready when the client has disconnected, or shut down its sending side, which cannot be distinguished. Stores the bytes of another
    /// request; if there is no memory for them, the connection ends too. Reading stops after them, and begins only when the body
    /// `is_taken`: while it is stopped, only an error of the socket reports that the client has left.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        is_taken: bool,
        io: &mut Io,
        bytes: &mut BytesMut,
        bytes_memory: &mut Reservation,
    ) -> Poll<()> {
        if is_taken
            && bytes.is_empty()
            && !matches!(ready!(poll_read_at_most(cx, io, bytes, READ_LEN_MAX)), Ok(1..))
        {
            return Poll::Ready(());
        }
        // Before, they are the buffer of the body.
        if is_taken && bytes_memory.try_set(bytes.capacity()).is_err() {
            return Poll::Ready(());
        }
        loop {
            let check = self.check.get_or_insert_with(|| Box::pin(sleep(ERROR_CHECK)));
            ready!(check.as_mut().poll(cx));
            self.check = None;
            if io.has_error() {
                return Poll::Ready(());
            }
        }
    }
}
