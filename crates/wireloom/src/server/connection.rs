//! One connection of a server: told apart, then HTTP/1.1 requests one after the other (RFC 9112), until one becomes a
//! WebSocket, or HTTP/2 ([`super::http2`]).

use std::future::{Future as _, poll_fn};
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf as _, BytesMut};
use wireloom_http2::Role as Http2Role;
use wireloom_http2::upgrade::PREFACE;

use super::beginning::TLS_HANDSHAKE;
use super::body::Framing;
use super::head::{self, Refusal};
use super::intake::{Intake, Over, poll_read};
use super::panic;
use super::patience::{Deadline, Patience, Stopped, until};
use super::registry::{Handshaking, Phase, Registry, Seat};
use super::write::{self, Ending};
use super::{Handler, http2};
use crate::error::Error;
use crate::http::{Body, Open, Origin, Request, Response, Running, Version};
use crate::http2::Driver;
use crate::io::Io;

/// How long a refused peer may go on sending before it is cut: it should get to read why (RFC 9112 §9.6).
const LINGER: Duration = Duration::from_secs(1);

/// How much of that is read.
const LINGER_LEN_MAX: usize = 1 << 20;

/// RFC 7540 §3.2.
const SWITCHING_TO_HTTP2: &[u8] =
    b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n";

pub(super) struct Connection {
    io: Io,
    origin: Origin,
    registry: Arc<Registry>,
    seat: Seat,
    patience: Patience,
    /// What has arrived and was not taken.
    bytes: BytesMut,
}

/// How the wait for a head ended.
enum Arrived {
    Head(usize),
    Http2,
    /// The client went, or nothing came for too long, or the server goes: there is nobody to answer.
    End,
    Refused(Refusal),
}

/// What becomes of a connection after a request.
enum Next {
    Request,
    End,
    WebSocket(Box<dyn Open>),
}

impl Connection {
    pub(super) fn new(
        io: Io,
        bytes: BytesMut,
        origin: Origin,
        registry: Arc<Registry>,
        seat: Seat,
        patience: Patience,
    ) -> Self {
        Self { io, origin, registry, seat, patience, bytes }
    }

    /// Serves until the end, or until a request becomes a WebSocket: then what serves that is handed back, so that nothing
    /// of this is held as long as it lives. `handshaking` is let go when it is known what is spoken.
    pub(super) async fn run(
        mut self,
        handler: &Arc<impl Handler>,
        handshaking: Handshaking,
    ) -> Option<Running> {
        let mut handshaking = Some(handshaking);
        if self.origin.tls.as_ref().and_then(|tls| tls.alpn.as_deref()) == Some(b"h2") {
            drop(handshaking);
            self.speak_http2(handler).await;
            return None;
        }
        loop {
            let arrived = self.read_head(handshaking.is_some()).await;
            drop(handshaking.take());
            let taken = match arrived {
                Arrived::Head(len) => self.take_request(len),
                Arrived::Http2 => {
                    self.speak_http2(handler).await;
                    return None;
                }
                Arrived::End => return None,
                Arrived::Refused(refusal) => Err(refusal),
            };
            let (request, intake) = match taken {
                Ok(taken) => taken,
                Err((status, why)) => {
                    self.refuse(status, why).await;
                    return None;
                }
            };
            if intake.over() == Some(Over::Complete)
                && let Some(settings) = http2_settings(&request)
            {
                let config = self.origin.config.http2;
                match Driver::upgraded(self.io, config, &settings, request.kind()) {
                    Ok((driver, key)) => {
                        let Self { origin, registry, bytes, .. } = self;
                        let driver = driver.preceded_by(SWITCHING_TO_HTTP2).arrived(&bytes);
                        let first = Some((key, request));
                        Box::pin(http2::serve(driver, first, origin, registry, handler)).await;
                        return None;
                    }
                    // RFC 7540 §3.2.1: then it is answered as if nothing had been asked.
                    Err((_, io)) => self.io = io,
                }
            }
            match self.serve(request, intake, &**handler).await {
                Next::Request => {}
                Next::End => return None,
                Next::WebSocket(opening) => {
                    let Self { io, seat, bytes, .. } = self;
                    return Some(opening.open(io, &bytes, Some(seat)));
                }
            }
            if self.bytes.is_empty() {
                // Nothing is held between two requests.
                self.bytes = BytesMut::new();
            }
        }
    }

    /// In a box: what serves HTTP/1.1 is smaller without it.
    fn speak_http2(self, handler: &Arc<impl Handler>) -> Pin<Box<impl Future<Output = ()>>> {
        let Self { io, origin, registry, seat, bytes, .. } = self;
        Box::pin(async move {
            let _seat = seat;
            // The configuration is judged when the server begins.
            let Ok(driver) = Driver::new(io, Http2Role::Server, origin.config.http2) else { return };
            let driver = driver.arrived(&bytes);
            drop(bytes);
            http2::serve(driver, None, origin, registry, handler).await;
        })
    }

    async fn read_head(&mut self, first: bool) -> Arrived {
        let Self { io, origin, patience, bytes, .. } = self;
        let config = &origin.config;
        let mut scanned = 0;
        let mut deadline =
            Deadline::after(if first { config.handshake_timeout } else { config.keep_alive_timeout });
        let mut begun = first;
        loop {
            if let Some(arrived) = look(bytes, &mut scanned, first, config.head_len_max) {
                return arrived;
            }
            let quiet = bytes.is_empty();
            if !quiet && !std::mem::replace(&mut begun, true) {
                deadline = Deadline::after(config.handshake_timeout);
            }
            // A request that has begun is answered, also while the server shuts down.
            let end = if quiet { Phase::Draining } else { Phase::Cut };
            match patience.within(&mut deadline, end, |cx| poll_read(cx, io, bytes)).await {
                Ok(Ok(1..)) => {}
                Err(Stopped::Late) if !quiet => return Arrived::Refused((408, "the request took too long")),
                _ => return Arrived::End,
            }
        }
    }

    fn take_request(&mut self, len: usize) -> Result<(Request, Intake), Refusal> {
        let head = match self.bytes.len() == len {
            true => std::mem::take(&mut self.bytes).into(),
            false => self.bytes.split_to(len).to_vec(),
        };
        let head = head::parse(head)?;
        let mut request = Request::http1(head.headers, head.method, head.target, head.version, &self.origin);
        // RFC 9110 §9.3.6: who wants to be led elsewhere is not at the right place.
        if request.method() == "CONNECT" {
            return Err((501, "CONNECT leads nowhere from here"));
        }
        let framing = Framing::of(request.head(), request.version())?;
        let expects = request.version() == Version::Http11 && request.names("expect", "100-continue");
        let intake = Intake::new(framing, &mut self.bytes, &mut request, expects)?;
        Ok((request, intake))
    }

    /// Has a request answered.
    async fn serve(&mut self, request: Request, mut intake: Intake, handler: &impl Handler) -> Next {
        self.registry.counters.requests.fetch_add(1, Ordering::Relaxed);
        let mut asked = Asked {
            version: request.version(),
            is_head: request.method() == "HEAD",
            keep_alive: request.version() == Version::Http11 && !request.names("connection", "close"),
            trailers: request.names("te", "trailers"),
        };
        let (mut response, panicked) = {
            let Self { io, bytes, registry, .. } = self;
            let mut handling = pin!(panic::answer(registry, handler, request));
            let handled = poll_fn(|cx| {
                // Whoever reads the body is answered by what there is of it.
                let taken = intake.poll(cx, io, bytes);
                match handling.as_mut().poll(cx) {
                    Poll::Pending if taken.is_ready() => poll_gone(cx, io, bytes).map(|()| None),
                    handled => handled.map(Some),
                }
            });
            match handled.await {
                Some(handled) => handled,
                // There is nobody to answer.
                None => return Next::End,
            }
        };
        // Whatever it has left undone is no beginning for another request.
        asked.keep_alive &= !panicked;
        if let Some(opening) = response.opening.take() {
            if intake.over() != Some(Over::Complete) {
                self.refuse(400, "a WebSocket does not begin with a body").await;
                return Next::End;
            }
            let mut out = Vec::with_capacity(256);
            write::head(&mut out, response.status(), &response.headers, Ending::None, None);
            drop(response);
            if self.write(&[&out]).await.is_err() {
                return Next::End;
            }
            return Next::WebSocket(opening);
        }
        match self.respond(response, &asked, &mut intake).await {
            Ok(true) => Next::Request,
            Ok(false) => {
                self.linger().await;
                Next::End
            }
            Err(_) => Next::End,
        }
    }

    /// Sends a response; says whether another request may follow.
    async fn respond(&mut self, response: Response, asked: &Asked, intake: &mut Intake) -> io::Result<bool> {
        let allows_body = response.allows_body();
        let (status, headers, mut body) = response.into_parts();
        let whole = body.whole();
        let may_follow = intake.respond();
        let mut keep_alive = may_follow && asked.keep_alive && self.registry.phase() == Phase::Serving;
        let ending = match (&whole, body.len_hint()) {
            _ if !allows_body => Ending::None,
            (Some(whole), _) => Ending::Length(whole.len() as u64),
            (None, Some(len)) => Ending::Length(len),
            (None, None) if asked.version == Version::Http11 => Ending::Chunked,
            // RFC 9112 §6.1: HTTP/1.0 has no chunks.
            (None, None) => {
                keep_alive = false;
                Ending::Close
            }
        };
        let mut out = Vec::with_capacity(256);
        write::head(&mut out, status, &headers, ending, Some(keep_alive));
        drop(headers);
        match whole {
            // RFC 9110 §9.3.2: the answer to HEAD has no body.
            _ if asked.is_head || !allows_body => self.write(&[&out]).await?,
            Some(whole) => self.write(&[&out, &whole]).await?,
            // In a box: most bodies are whole.
            None => Box::pin(self.stream(out, body, ending, asked.trailers, intake)).await?,
        }
        if !keep_alive {
            return Ok(false);
        }
        let Self { io, bytes, patience, origin, .. } = self;
        let mut deadline = Deadline::after(origin.config.body_timeout);
        let read = patience.within(&mut deadline, Phase::Cut, |cx| intake.poll(cx, io, bytes)).await;
        Ok(read == Ok(Over::Complete))
    }

    /// Sends a body as it comes into being; the head with what comes first.
    async fn stream(
        &mut self,
        mut out: Vec<u8>,
        mut body: Body,
        ending: Ending,
        trailers: bool,
        intake: &mut Intake,
    ) -> io::Result<()> {
        let mut left = match ending {
            Ending::Length(len) => len,
            _ => u64::MAX,
        };
        loop {
            let Self { io, bytes, registry, .. } = self;
            let mut flushing = !out.is_empty();
            let next = poll_fn(|cx| {
                let taken = intake.poll(cx, io, bytes);
                let polled = panic::catch(registry, || body.poll_chunk(cx));
                match polled.unwrap_or(Poll::Ready(Some(Err(Error::Cut)))) {
                    // The head does not wait for the body.
                    Poll::Pending if std::mem::take(&mut flushing) => Poll::Ready(None),
                    Poll::Pending if taken.is_ready() => {
                        poll_gone(cx, io, bytes).map(|()| Some(Some(Err(Error::Cut))))
                    }
                    next => next.map(Some),
                }
            });
            let next = until(registry, Phase::Cut, next).await.ok_or(io::ErrorKind::TimedOut)?;
            let Some(next) = next else {
                self.write(&[&out]).await?;
                out.clear();
                continue;
            };
            let Some(chunk) = next else { break };
            let Ok(chunk) = chunk else {
                // RFC 9112 §8: what ends too early is known by that, unless it has no other end.
                if ending == Ending::Close {
                    self.io.abandon();
                }
                return Err(io::ErrorKind::Interrupted.into());
            };
            left = left.checked_sub(chunk.len() as u64).ok_or(io::ErrorKind::InvalidData)?;
            if ending == Ending::Chunked {
                write::chunk_size(&mut out, chunk.len());
                self.write(&[&out, &chunk, b"\r\n"]).await?;
            } else {
                self.write(&[&out, &chunk]).await?;
            }
            out.clear();
        }
        match ending {
            Ending::Chunked => {
                write::last_chunk(&mut out, body.trailers().as_ref().filter(|_| trailers));
            }
            Ending::Length(_) if left > 0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            _ => {}
        }
        self.write(&[&out]).await
    }

    /// Tells a client that would have had to speak TLS.
    #[cfg(feature = "tls")]
    pub(super) async fn refuse_plain(mut self) {
        self.registry.counters.tls_failed.fetch_add(1, Ordering::Relaxed);
        self.refuse(400, "TLS is spoken here: the URL begins with https or wss").await;
    }

    /// In a box: most requests are not refused.
    fn refuse(&mut self, status: u16, why: &str) -> Pin<Box<impl Future<Output = ()>>> {
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

    /// Writes all of this, within the time that a head may take.
    async fn write(&mut self, parts: &[&[u8]]) -> io::Result<()> {
        let Self { io, patience, origin, .. } = self;
        let total: usize = parts.iter().map(|part| part.len()).sum();
        // A slow line gets the time for what it is sent: 16 KiB a second at least.
        let slowness = Duration::from_secs((total >> 14) as u64);
        let mut deadline = Deadline::after(origin.config.handshake_timeout + slowness);
        let mut written = 0;
        let work = patience.within(&mut deadline, Phase::Cut, |cx| poll_write(cx, io, parts, &mut written));
        match work.await {
            Ok(written) => written,
            Err(_) => {
                // What it does not take is not kept for it.
                self.io.abandon();
                Err(io::ErrorKind::TimedOut.into())
            }
        }
    }

    /// Ends the writing side and reads on for a while, so that the client gets to read the answer instead of a reset.
    async fn linger(&mut self) {
        let Self { io, bytes, patience, .. } = self;
        let mut deadline = Deadline::after(LINGER);
        let (mut shut, mut total) = (false, 0);
        let work = patience.within(&mut deadline, Phase::Cut, |cx| {
            if !shut {
                ready!(io.poll_shutdown(cx))?;
                shut = true;
            }
            while total < LINGER_LEN_MAX {
                bytes.clear();
                match ready!(poll_read(cx, io, bytes))? {
                    0 => break,
                    len => total += len,
                }
            }
            Poll::Ready(io::Result::Ok(()))
        });
        let _ = work.await;
    }
}

/// What has arrived so far, if that is known. `first` says that nothing came before it on this connection.
fn look(bytes: &mut BytesMut, scanned: &mut usize, first: bool, len_max: usize) -> Option<Arrived> {
    // RFC 9112 §2.2: empty lines before a request are ignored.
    if *scanned == 0 {
        let empty = bytes.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
        bytes.advance(empty);
    }
    if first && bytes.starts_with(PREFACE) {
        return Some(Arrived::Http2);
    }
    match bytes.first() {
        // RFC 8446 §5.1: a record of a TLS handshake.
        Some(&TLS_HANDSHAKE) => return Some(Arrived::Refused((400, "TLS is not spoken here"))),
        Some(&byte) if !head::is_method_byte(byte) => {
            return Some(Arrived::Refused((400, "this is not HTTP")));
        }
        _ => {}
    }
    let preface = first && bytes.len() < PREFACE.len() && PREFACE.starts_with(bytes);
    match if preface { None } else { head::end(bytes, scanned) } {
        Some(len) if len <= len_max => Some(Arrived::Head(len)),
        None if bytes.len() < len_max => None,
        // RFC 9110 §15.5.15, RFC 6585 §5.
        _ if bytes.iter().take(len_max).any(|&byte| byte == b'\n') => {
            Some(Arrived::Refused((431, "the head of the request is too long")))
        }
        _ => Some(Arrived::Refused((414, "the target of the request is too long"))),
    }
}

/// What a request says about its response.
struct Asked {
    version: Version,
    is_head: bool,
    keep_alive: bool,
    /// The client takes trailers.
    trailers: bool,
}

/// The settings of a request that asks for HTTP/2 (RFC 7540 §3.2), on a connection where that may be.
fn http2_settings(request: &Request) -> Option<Vec<u8>> {
    let head = request.head();
    let asked = request.tls().is_none()
        && request.version() == Version::Http11
        && head.names("upgrade", "h2c")
        && head.names("connection", "upgrade")
        && head.names("connection", "http2-settings");
    // RFC 7540 §3.2.1: exactly one.
    let mut settings = head.get_all("http2-settings");
    let first = settings.next().filter(|_| asked)?;
    settings.next().is_none().then(|| first.to_vec())
}

/// Ready when the client has gone, or says that it sends no more, which is the same to whoever looks. What is there of another
/// request is kept; behind it nothing is looked at.
fn poll_gone(cx: &mut Context<'_>, io: &mut Io, bytes: &mut BytesMut) -> Poll<()> {
    if !bytes.is_empty() {
        return Poll::Pending;
    }
    match ready!(poll_read(cx, io, bytes)) {
        Ok(1..) => Poll::Pending,
        _ => Poll::Ready(()),
    }
}

/// Reads what is there behind what was read; 0 at the end. No buffer is held while waiting.
pub(crate) async fn read(io: &mut Io, into: &mut BytesMut) -> io::Result<usize> {
    poll_fn(|cx| poll_read(cx, io, into)).await
}

/// Writes all of this.
pub(crate) async fn write(io: &mut Io, parts: &[&[u8]]) -> io::Result<()> {
    let mut written = 0;
    poll_fn(|cx| poll_write(cx, io, parts, &mut written)).await
}

/// Writes all of this but the first bytes, which were written before; counts on.
fn poll_write(
    cx: &mut Context<'_>,
    io: &mut Io,
    parts: &[&[u8]],
    written: &mut usize,
) -> Poll<io::Result<()>> {
    loop {
        let mut slices = [IoSlice::new(&[]); 4];
        let (mut count, mut passed) = (0, *written);
        for part in parts {
            let rest = &part[passed.min(part.len())..];
            passed = passed.saturating_sub(part.len());
            if !rest.is_empty() && count < slices.len() {
                slices[count] = IoSlice::new(rest);
                count += 1;
            }
        }
        if count == 0 {
            return io.poll_flush(cx);
        }
        match ready!(io.poll_write(cx, &slices[..count]))? {
            0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
            len => *written += len,
        }
    }
}
