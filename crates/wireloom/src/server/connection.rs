//! One connection of a server: HTTP/1.1 requests one after the other (RFC 9112), until one becomes a WebSocket.

use std::future::poll_fn;
use std::io::{self, IoSlice, Write as _};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::ready;
use std::time::{Duration, SystemTime};

use bytes::{Buf, Bytes, BytesMut};
use tokio::sync::watch;
use wireloom_ws::Role;
use wireloom_ws::handshake::Version;

use super::body::{BodyReader, Framing};
use super::config::ServerConfig;
use super::head::{self, Refusal};
use super::registry::{Phase, Registered, Registry};
use super::{Handler, until};
use crate::buffer::Buffer;
use crate::http::{Request, Response, Running, TlsInfo};
use crate::io::Io;
use crate::websocket::WebSocket;

/// RFC 9113 §3.4: what a client of HTTP/2 begins with.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The least that a server of HTTP/2 says: empty SETTINGS (RFC 9113 §3.4), and a GOAWAY with HTTP_1_1_REQUIRED (§7).
const GO_AWAY: &[u8] = b"\0\0\0\x04\0\0\0\0\0\0\0\x08\x07\0\0\0\0\0\0\0\0\0\0\0\0\x0d";

/// How long a refused peer may go on sending before it is cut: it should get to read why (RFC 9112 §9.6).
const LINGER: Duration = Duration::from_secs(1);

/// How much of that is read.
const LINGER_LEN_MAX: usize = 1 << 20;

pub(super) struct Connection {
    io: Io,
    peer: SocketAddr,
    tls: Option<Arc<TlsInfo>>,
    config: Arc<ServerConfig>,
    registry: Arc<Registry>,
    phase: watch::Receiver<Phase>,
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

impl Connection {
    pub(super) fn new(
        io: Io,
        peer: SocketAddr,
        tls: Option<Arc<TlsInfo>>,
        config: Arc<ServerConfig>,
        registry: Arc<Registry>,
        phase: watch::Receiver<Phase>,
    ) -> Self {
        Self { io, peer, tls, config, registry, phase, bytes: BytesMut::new() }
    }

    /// Serves until the end, or until a request becomes a WebSocket: then what serves that is handed back, so that nothing
    /// of this is held as long as it lives.
    pub(super) async fn run(mut self, handler: &impl Handler) -> Option<(Running, Registered)> {
        let mut first = true;
        loop {
            let head = match self.read_head(first).await {
                Arrived::Head(len) => self.take_request(len),
                Arrived::Http2 => {
                    let _ = self.write(&[GO_AWAY]).await;
                    self.linger().await;
                    return None;
                }
                Arrived::End => return None,
                Arrived::Refused(refusal) => Err(refusal),
            };
            first = false;
            let request = match head {
                Ok(request) => self.read_body(request).await,
                Err(refusal) => Err(refusal),
            };
            let (request, keep_alive) = match request {
                Ok(Some(request)) => request,
                Ok(None) => return None,
                Err((status, why)) => {
                    self.refuse(status, why).await;
                    return None;
                }
            };
            self.registry.counters.requests.fetch_add(1, Ordering::Relaxed);
            let is_head = request.method() == "HEAD";
            let mut response = handler.handle(request).await;
            if let Some(opening) = response.opening.take() {
                let mut out = Vec::with_capacity(256);
                write_head(&mut out, &response, None);
                drop(response);
                if self.write(&[&out]).await.is_err() {
                    return None;
                }
                let (Self { io, registry, bytes, .. }, opening) = (self, *opening);
                let deflate = opening.deflate.as_ref();
                let socket =
                    WebSocket::open(io, Role::Server, opening.negotiated, deflate, opening.config, &bytes);
                drop(bytes);
                let registered = registry.add(socket.shared());
                return Some(((opening.run)(socket), registered));
            }
            let keep_alive = keep_alive && self.registry.phase() == Phase::Serving;
            if self.respond(response, keep_alive, is_head).await.is_err() {
                return None;
            }
            if !keep_alive {
                self.linger().await;
                return None;
            }
            if self.bytes.is_empty() {
                // Nothing is held between two requests.
                self.bytes = BytesMut::new();
            }
        }
    }

    async fn read_head(&mut self, first: bool) -> Arrived {
        let mut scanned = 0;
        let began = tokio::time::Instant::now();
        loop {
            // RFC 9112 §2.2: empty lines before a request are ignored.
            if scanned == 0 {
                let empty = self.bytes.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
                self.bytes.advance(empty);
            }
            if self.bytes.starts_with(PREFACE) {
                return Arrived::Http2;
            }
            let preface = self.bytes.len() < PREFACE.len() && PREFACE.starts_with(&self.bytes);
            if !preface && let Some(len) = head::end(&self.bytes, &mut scanned) {
                if len > self.config.head_len_max {
                    return Arrived::Refused((431, "the head of the request is too long"));
                }
                return Arrived::Head(len);
            }
            if self.bytes.len() >= self.config.head_len_max {
                return Arrived::Refused((431, "the head of the request is too long"));
            }
            let quiet = self.bytes.is_empty();
            let patience =
                if quiet && !first { self.config.keep_alive_timeout } else { self.config.handshake_timeout };
            let Self { io, bytes, phase, .. } = self;
            // A request that has begun is answered, also while the server shuts down.
            let end = if quiet { Phase::Draining } else { Phase::Cut };
            let read = until(phase, end, tokio::time::timeout_at(began + patience, read(io, bytes))).await;
            match read {
                Some(Ok(Ok(len))) if len > 0 => {}
                Some(Err(_)) if !quiet => return Arrived::Refused((408, "the request took too long")),
                _ => return Arrived::End,
            }
        }
    }

    /// The head as a request without a body.
    fn take_request(&mut self, len: usize) -> Result<Request, Refusal> {
        let head = self.bytes.split_to(len).freeze();
        let parsed = head::parse(&head)?;
        Ok(Request {
            head,
            method: parsed.method,
            target: parsed.target,
            version: parsed.version,
            fields: parsed.fields,
            body: Bytes::new(),
            peer: self.peer,
            tls: self.tls.clone(),
            config: self.config.clone(),
        })
    }

    /// The request with its body, and whether another may follow it; `None` when the client went.
    async fn read_body(&mut self, mut request: Request) -> Result<Option<(Request, bool)>, Refusal> {
        let keep_alive = request.version == Version::Http11 && !request.names("connection", "close");
        let framing = Framing::of(&request, self.config.body_len_max)?;
        let mut reader = BodyReader::new(framing, self.config.body_len_max);
        let used = reader.push(&self.bytes)?;
        self.bytes.advance(used);
        // RFC 9110 §10.1.1: the client waits for this before it sends a body.
        if !reader.is_complete()
            && request.version == Version::Http11
            && request.names("expect", "100-continue")
            && self.write(&[b"HTTP/1.1 100 Continue\r\n\r\n"]).await.is_err()
        {
            return Ok(None);
        }
        let deadline = tokio::time::Instant::now() + self.config.body_timeout;
        while !reader.is_complete() {
            let Self { io, bytes, phase, .. } = self;
            let read = until(phase, Phase::Cut, tokio::time::timeout_at(deadline, read(io, bytes))).await;
            match read {
                Some(Ok(Ok(len))) if len > 0 => {}
                Some(Err(_)) => return Err((408, "the body took too long")),
                _ => return Ok(None),
            }
            let used = reader.push(bytes)?;
            bytes.advance(used);
        }
        request.body = reader.into_body().into();
        Ok(Some((request, keep_alive)))
    }

    async fn respond(&mut self, response: Response, keep_alive: bool, is_head: bool) -> io::Result<()> {
        let mut out = Vec::with_capacity(256);
        write_head(&mut out, &response, Some(keep_alive));
        let body = response.body().clone();
        drop(response);
        // RFC 9110 §9.3.2: the answer to HEAD has no body.
        if is_head { self.write(&[&out]).await } else { self.write(&[&out, &body]).await }
    }

    async fn refuse(&mut self, status: u16, why: &str) {
        let response = Response::text(status, format!("{why}\n"));
        if self.respond(response, false, false).await.is_ok() {
            self.linger().await;
        }
    }

    /// Writes all of this, within the time that a head may take.
    async fn write(&mut self, parts: &[&[u8]]) -> io::Result<()> {
        let Self { io, phase, config, .. } = self;
        let total: usize = parts.iter().map(|part| part.len()).sum();
        // A slow line gets the time for what it is sent: 16 KiB a second at least.
        let patience = config.handshake_timeout + Duration::from_secs((total >> 14) as u64);
        let work = tokio::time::timeout(patience, write(io, parts));
        match until(phase, Phase::Cut, work).await {
            Some(Ok(written)) => written,
            _ => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// Ends the writing side and reads on for a while, so that the client gets to read the answer instead of a reset.
    async fn linger(&mut self) {
        let Self { io, bytes, phase, .. } = self;
        let work = async {
            poll_fn(|cx| io.poll_shutdown(cx)).await?;
            let mut total = 0;
            while total < LINGER_LEN_MAX {
                bytes.clear();
                match read(io, bytes).await? {
                    0 => break,
                    len => total += len,
                }
            }
            io::Result::Ok(())
        };
        let _ = until(phase, Phase::Cut, tokio::time::timeout(LINGER, work)).await;
    }
}

/// Reads what is there behind what was read; 0 at the end. No buffer is held while waiting.
pub(crate) async fn read(io: &mut Io, into: &mut BytesMut) -> io::Result<usize> {
    poll_fn(|cx| {
        ready!(io.poll_read_ready(cx))?;
        let mut buffer = Buffer::take();
        let len = ready!(io.poll_read(cx, buffer.space()))?;
        buffer.filled(len);
        into.extend_from_slice(buffer.waiting());
        std::task::Poll::Ready(Ok(len))
    })
    .await
}

/// Writes all of this.
pub(crate) async fn write(io: &mut Io, parts: &[&[u8]]) -> io::Result<()> {
    let mut left: Vec<&[u8]> = parts.iter().copied().filter(|part| !part.is_empty()).collect();
    while !left.is_empty() {
        let slices: Vec<IoSlice<'_>> = left.iter().map(|part| IoSlice::new(part)).collect();
        let mut written = poll_fn(|cx| io.poll_write(cx, &slices)).await?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        while let Some(part) = left.first_mut().filter(|_| written > 0) {
            let len = written.min(part.len());
            *part = &part[len..];
            written -= len;
            if part.is_empty() {
                left.remove(0);
            }
        }
    }
    poll_fn(|cx| io.poll_flush(cx)).await
}

/// A head; with `keep_alive` that of an ordinary response, without that of one that switches protocols.
fn write_head(out: &mut Vec<u8>, response: &Response, keep_alive: Option<bool>) {
    let status = response.status();
    // Writing to memory does not fail.
    let _ = write!(out, "HTTP/1.1 {status} {}\r\n", reason(status));
    for (name, value) in response.headers() {
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(b": ");
        out.extend_from_slice(value);
        out.extend_from_slice(b"\r\n");
    }
    // RFC 9110 §6.6.1.
    let _ = write!(out, "Date: {}\r\n", httpdate::fmt_http_date(SystemTime::now()));
    if let Some(keep_alive) = keep_alive {
        let upgrades = response.headers().any(|(name, _)| name.eq_ignore_ascii_case("upgrade"));
        match (keep_alive, upgrades) {
            (true, false) => {}
            // RFC 9110 §7.8: a sender of Upgrade names it in Connection.
            (true, true) => out.extend_from_slice(b"Connection: Upgrade\r\n"),
            (false, true) => out.extend_from_slice(b"Connection: Upgrade, close\r\n"),
            (false, false) => out.extend_from_slice(b"Connection: close\r\n"),
        }
        // RFC 9110 §8.6: none in a 204; a 304 has no body here either.
        if !matches!(status, 204 | 304) {
            let _ = write!(out, "Content-Length: {}\r\n", response.body().len());
        }
    }
    out.extend_from_slice(b"\r\n");
}

/// RFC 9110 §15; a phrase may be empty (RFC 9112 §4).
fn reason(status: u16) -> &'static str {
    match status {
        101 => "Switching Protocols",
        200 => "OK",
        201 => "Created",
        202 => "Accepted",
        204 => "No Content",
        301 => "Moved Permanently",
        302 => "Found",
        303 => "See Other",
        304 => "Not Modified",
        307 => "Temporary Redirect",
        308 => "Permanent Redirect",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        413 => "Content Too Large",
        426 => "Upgrade Required",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        503 => "Service Unavailable",
        505 => "HTTP Version Not Supported",
        _ => "",
    }
}
