//! The transport of a WebSocket: its end, and the tasks that wait for it.

use std::io::{self, IoSlice};
use std::task::{Context, Poll, Waker};

use super::wakers::{Waiter, Wakers};
#[cfg(feature = "http2")]
use crate::error::HttpError;
use crate::error::WebSocketError;
use crate::sync::Arc;
use crate::transport::Io;
use crate::transport::ring::Socket;

/// Slices per write.
pub(super) const SLICES_MAX: usize = 32;

/// A transport, whose writes wake all waiting tasks when it accepts bytes again.
pub(super) struct Link {
    io: Io,
    /// `None` while the transport reads and writes.
    end: Option<Box<LinkEnd>>,
    /// Created when a task first has to wait for the transport.
    wakers: Option<Arc<Wakers>>,
}

/// How the transport has ended (RFC 6455 §7.1.1). The state of the WebSocket is the core's.
///
/// ```text
///  Open -- shut down --> ShutDown --+
///   |                               +--> Closed(why)
///   +-- a write fails --> WriteFailed(why)
/// ```
#[derive(Debug)]
enum LinkEnd {
    /// The writing side has ended; the peer is still read.
    ShutDown,
    /// Nothing can be written; the peer is still read.
    WriteFailed(WebSocketError),
    /// Nothing is read or written.
    Closed(WebSocketError),
}

impl Link {
    pub(super) fn new(io: Io) -> Self {
        Self { io, end: None, wakers: None }
    }

    /// The reason that nothing can be written any more.
    pub(super) fn write_error(&self) -> Option<&WebSocketError> {
        match self.end.as_deref() {
            None | Some(LinkEnd::ShutDown) => None,
            Some(LinkEnd::WriteFailed(error) | LinkEnd::Closed(error)) => Some(error),
        }
    }

    /// Whether nothing is read or written any more.
    pub(super) fn is_closed(&self) -> bool {
        matches!(self.end.as_deref(), Some(LinkEnd::Closed(_)))
    }

    /// A write has failed. Returns the first reason that nothing can be written.
    pub(super) fn fail_write(&mut self, error: &io::Error) -> WebSocketError {
        if let Some(first) = self.write_error() {
            return first.clone();
        }
        let error = failure(error);
        self.end = Some(Box::new(LinkEnd::WriteFailed(error.clone())));
        error
    }

    /// The transport is no longer used: for this reason, unless writing has failed before.
    pub(super) fn close(&mut self, error: WebSocketError) {
        let first = self.write_error().cloned();
        self.end = Some(Box::new(LinkEnd::Closed(first.unwrap_or(error))));
    }

    /// Ends the writing side.
    pub(super) fn shut_down(&mut self, cx: &mut Context<'_>) {
        if self.end.is_none() && self.io.poll_shutdown(cx).is_ready() {
            self.end = Some(Box::new(LinkEnd::ShutDown));
        }
    }

    /// Removes the transport.
    pub(super) fn take_io(&mut self) -> Io {
        std::mem::replace(&mut self.io, Io::Other(Box::new(tokio::io::empty())))
    }

    /// Whether nothing that is sent can arrive any more.
    pub(super) fn is_disconnected(&self) -> bool {
        self.is_closed() || self.io.is_disconnected()
    }

    /// Whether the transport is a stream of HTTP/2.
    pub(super) fn is_tunnel(&self) -> bool {
        matches!(self.io, Io::Tunnel(_))
    }

    pub(super) fn may_mix_directions(&self) -> bool {
        self.io.may_mix_directions()
    }

    pub(super) fn has_buffered_writes(&self) -> bool {
        self.io.has_buffered_writes()
    }

    #[inline]
    pub(super) fn poll_read(&mut self, cx: &mut Context<'_>, bytes: &mut [u8]) -> Poll<io::Result<usize>> {
        self.io.poll_read(cx, bytes)
    }

    /// The socket, if the transport is nothing but that.
    pub(super) fn socket(&self) -> Option<Socket<'_>> {
        self.io.socket()
    }

    /// Writes slices. While the transport is full, it wakes all waiting tasks later, and `task` if there is one.
    pub(super) fn write(
        &mut self,
        task: Option<(Waiter, &Context<'_>)>,
        slices: &[&[u8]],
    ) -> Poll<io::Result<usize>> {
        match self.try_write(slices) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            written => return Poll::Ready(written),
        }
        let waker = self.register(task);
        let mut cx = Context::from_waker(&waker);
        let written = with_io_slices(slices, |slices| self.io.poll_write(&mut cx, slices));
        written.map(|written| written.and_then(not_zero))
    }

    /// Writes the bytes that the transport accepts at once.
    pub(super) fn try_write(&mut self, slices: &[&[u8]]) -> io::Result<usize> {
        with_io_slices(slices, |slices| self.io.try_write(slices)).and_then(not_zero)
    }

    /// Writes the bytes that the transport itself has buffered.
    pub(super) fn poll_flush(&mut self, task: Option<(Waiter, &Context<'_>)>) -> Poll<io::Result<()>> {
        if !self.io.has_buffered_writes() {
            return Poll::Ready(Ok(()));
        }
        match self.io.poll_flush(&mut Context::from_waker(Waker::noop())) {
            Poll::Pending => {}
            ready => return ready,
        }
        let waker = self.register(task);
        self.io.poll_flush(&mut Context::from_waker(&waker))
    }

    /// A waker for the transport that wakes all waiting tasks, and this one too.
    pub(super) fn register(&mut self, task: Option<(Waiter, &Context<'_>)>) -> Waker {
        let wakers = self.wakers.get_or_insert_with(Wakers::new);
        if let Some((waiter, cx)) = task {
            wakers.register(waiter, cx);
        }
        wakers.waker()
    }

    /// A sender was dropped: its task no longer waits.
    pub(super) fn remove_sender(&self, number: u32) {
        if let Some(wakers) = &self.wakers {
            wakers.remove_sender(number);
        }
    }

    /// Wakes all tasks that wait for the transport.
    pub(super) fn wake_all(&self) {
        if let Some(wakers) = &self.wakers {
            wakers.wake_all();
        }
    }
}

pub(super) fn not_zero(written: usize) -> io::Result<usize> {
    if written > 0 { Ok(written) } else { Err(io::ErrorKind::WriteZero.into()) }
}

fn with_io_slices<T>(slices: &[&[u8]], write: impl FnOnce(&[IoSlice<'_>]) -> T) -> T {
    match slices {
        [one] => return write(&[IoSlice::new(one)]),
        [one, two] => return write(&[IoSlice::new(one), IoSlice::new(two)]),
        _ => {}
    }
    let mut io_slices = [IoSlice::new(&[]); SLICES_MAX];
    for (io_slice, slice) in io_slices.iter_mut().zip(slices) {
        *io_slice = IoSlice::new(slice);
    }
    write(&io_slices[..slices.len().min(SLICES_MAX)])
}

/// The error for a transport's failure.
pub(super) fn failure(error: &io::Error) -> WebSocketError {
    #[cfg(feature = "http2")]
    // A tunnel of HTTP/2 reports the code of GOAWAY.
    if let Some(HttpError::GoAway(code)) = error.get_ref().and_then(|inner| inner.downcast_ref()) {
        return WebSocketError::GoAway(*code);
    }
    match error.kind() {
        // TLS calls an end without close_notify unexpected; so do resets.
        io::ErrorKind::UnexpectedEof
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::ConnectionAborted
        | io::ErrorKind::BrokenPipe => WebSocketError::ConnectionLost,
        kind => WebSocketError::Io(kind.into()),
    }
}
