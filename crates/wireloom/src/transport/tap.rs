//! Observes the bytes of connections, above TLS.

use std::fmt;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::Io;

/// Observes the bytes of connections above TLS, such as to record them: set [`ServerConfig::tap`](crate::ServerConfig::tap) or
/// [`Connector::tap`](crate::Connector::tap).
///
/// The function is called in the task of the connection, for each read and write, with what was read or accepted for writing. Credentials
/// are among it.
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicUsize, Ordering};
/// use wireloom::{Connector, Tap, TapEvent};
///
/// let received = Arc::new(AtomicUsize::new(0));
/// let counter = received.clone();
/// let tap = Tap::new(move |_connection, event| {
///     if let TapEvent::Received(bytes) = event {
///         counter.fetch_add(bytes.len(), Ordering::Relaxed);
///     }
/// });
/// let connector = Connector::new().tap(tap);
/// ```
#[derive(Clone)]
pub struct Tap(Arc<Inner>);

struct Inner {
    /// Connections so far.
    connections: AtomicU64,
    observe: Box<dyn Fn(u64, TapEvent<'_>) + Send + Sync>,
}

/// Bytes of a connection, or the end of a direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TapEvent<'a> {
    /// Bytes that were read.
    Received(&'a [u8]),
    /// Bytes that the transport has accepted.
    Sent(&'a [u8]),
    /// The peer has ended its direction.
    ReceiveEnded,
    /// This end has ended its direction, or dropped the connection.
    SendEnded,
}

impl Tap {
    /// Calls `observe` with the number of the connection, from 1, and what happened on it.
    pub fn new(observe: impl Fn(u64, TapEvent<'_>) + Send + Sync + 'static) -> Self {
        Self(Arc::new(Inner { connections: AtomicU64::new(0), observe: Box::new(observe) }))
    }

    /// Observes a transport, of which `received` has been read already.
    pub(crate) fn wrap(&self, io: Io, received: &[u8]) -> Io {
        let connection = self.0.connections.fetch_add(1, Ordering::Relaxed) + 1;
        let tapped = Tapped { io, tap: self.clone(), connection, receive_ended: false, send_ended: false };
        if !received.is_empty() {
            tapped.observe(TapEvent::Received(received));
        }
        Io::Tapped(Box::new(tapped))
    }
}

impl fmt::Debug for Tap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tap").field("connections", &self.0.connections).finish_non_exhaustive()
    }
}

/// The same function.
impl PartialEq for Tap {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Tap {}

/// A transport that is observed.
pub(crate) struct Tapped {
    io: Io,
    tap: Tap,
    connection: u64,
    receive_ended: bool,
    send_ended: bool,
}

impl Tapped {
    /// The transport, for what concerns no bytes.
    pub(super) fn io(&self) -> &Io {
        &self.io
    }

    /// As the transport's. Not inlined, because that calls it.
    #[inline(never)]
    pub(super) fn poll_read_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.poll_read_ready(cx)
    }

    fn observe(&self, event: TapEvent<'_>) {
        (self.tap.0.observe)(self.connection, event);
    }

    fn end_sending(&mut self) {
        if !std::mem::replace(&mut self.send_ended, true) {
            self.observe(TapEvent::SendEnded);
        }
    }

    fn end_receiving(&mut self) {
        if !std::mem::replace(&mut self.receive_ended, true) {
            self.observe(TapEvent::ReceiveEnded);
        }
    }
}

impl Drop for Tapped {
    fn drop(&mut self) {
        self.end_sending();
        self.end_receiving();
    }
}

impl AsyncRead for Tapped {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let into = buffer.initialize_unfilled();
        let is_empty = into.is_empty();
        let len = ready!(self.io.poll_read(cx, into))?;
        if len > 0 {
            self.observe(TapEvent::Received(&into[..len]));
        } else if !is_empty {
            self.end_receiving();
        }
        buffer.advance(len);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Tapped {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(self.io.poll_write(cx, slices))?;
        let mut left = written;
        for slice in slices {
            let len = left.min(slice.len());
            if len > 0 {
                self.observe(TapEvent::Sent(&slice[..len]));
            }
            left -= len;
        }
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.io.poll_shutdown(cx))?;
        self.end_sending();
        Poll::Ready(Ok(()))
    }
}
