//! The transport of a WebSocket: what was transferred, the tasks that wait for it, and how it ended.

use std::io::{self, IoSlice};
use std::task::{Context, Poll, Waker, ready};

use super::flush;
use super::session::Session;
use super::waiters::{Task, Waiter, Wakers};
#[cfg(feature = "http2")]
use crate::error::HttpError;
use crate::error::WebSocketError;
use crate::guard::{Deferred, WakerSlot};
use crate::sync::Arc;
use crate::transport::{BUFFERED_LEN_MAX, Io, Linger, is_lost};

/// Slices per write.
const SLICES_MAX: usize = 32;

/// Slices of most writes: the memory of few slices is initialized faster.
const SLICES_FEW: usize = 4;

/// Bytes that one WebSocket has transferred, with frame headers and control frames, before TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Traffic {
    /// Bytes read.
    pub bytes_received: u64,
    /// Bytes written.
    pub bytes_sent: u64,
}

/// A transport, whose writes wake all waiting tasks when it accepts bytes again.
pub(super) struct Link {
    pub(super) io: Io,
    /// `None` while the transport reads and writes.
    end: Option<Box<LinkEnd>>,
    /// Created when a task first has to wait for the transport.
    wakers: Option<Arc<Wakers>>,
    /// The task of the receiver. The transport and the timer keep its waker too; this one is kept as long, so that theirs is never
    /// the last reference to the task.
    pub(super) receiver: WakerSlot,
    pub(super) traffic: Traffic,
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
    /// Neither half reads or writes. The transport may linger before it is dropped.
    Closed(WebSocketError, Option<Linger>),
}

impl Link {
    pub(super) fn new(io: Io) -> Self {
        Self { io, end: None, wakers: None, receiver: WakerSlot::default(), traffic: Traffic::default() }
    }

    // How it has ended.

    /// The reason that nothing can be written any more.
    pub(super) fn write_error(&self) -> Option<&WebSocketError> {
        match self.end.as_deref() {
            None | Some(LinkEnd::ShutDown) => None,
            Some(LinkEnd::WriteFailed(error) | LinkEnd::Closed(error, _)) => Some(error),
        }
    }

    /// Whether the transport has not ended in either direction.
    #[inline]
    pub(super) fn is_writable(&self) -> bool {
        self.end.is_none()
    }

    /// Whether neither half reads or writes any more.
    pub(super) fn is_closed(&self) -> bool {
        matches!(self.end.as_deref(), Some(LinkEnd::Closed(..)))
    }

    /// Whether the transport is only needed until the peer has closed it.
    pub(super) fn is_lingering(&self) -> bool {
        matches!(self.end.as_deref(), Some(LinkEnd::Closed(_, Some(_))))
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

    /// Neither half uses the transport any more: for this reason, unless writing has failed before.
    pub(super) fn close(&mut self, error: WebSocketError) {
        if !self.is_closed() {
            let first = self.write_error().cloned();
            self.end = Some(Box::new(LinkEnd::Closed(first.unwrap_or(error), None)));
        }
    }

    /// As [`close`](Self::close), but the transport lingers.
    pub(super) fn linger(&mut self, error: WebSocketError, linger: Linger) {
        self.end = Some(Box::new(LinkEnd::Closed(error, Some(linger))));
    }

    /// Ready when the transport is not needed any more. Every end wakes the task.
    pub(super) fn poll_ended(&mut self, waiter: Waiter, cx: &Context<'_>) -> Poll<()> {
        if let Some(LinkEnd::Closed(_, None)) = self.end.as_deref() {
            return Poll::Ready(());
        }
        let waker = self.register(Some((waiter, cx)));
        let Some(LinkEnd::Closed(_, linger)) = self.end.as_deref_mut() else { return Poll::Pending };
        if let Some(lingering) = linger {
            ready!(lingering.poll(&mut self.io, &mut Context::from_waker(&waker)));
            *linger = None;
            self.wake_waiting();
        }
        Poll::Ready(())
    }

    /// Ends the writing side.
    pub(super) fn shut_down(&mut self, cx: &mut Context<'_>) {
        if self.end.is_none() && self.io.poll_shutdown(cx).is_ready() {
            self.end = Some(Box::new(LinkEnd::ShutDown));
        }
    }

    /// Removes the transport, also one that lingers.
    pub(super) fn take_io(&mut self) -> Io {
        if let Some(LinkEnd::Closed(_, linger)) = self.end.as_deref_mut() {
            *linger = None;
        }
        std::mem::replace(&mut self.io, Io::Other(Box::new(tokio::io::empty())))
    }

    // Reading.

    /// Reads. If reads of this transport may wait for a write, a write wakes the task of the receiver too.
    #[inline]
    pub(super) fn poll_read(&mut self, cx: &mut Context<'_>, bytes: &mut [u8]) -> Poll<io::Result<usize>> {
        let len = if self.io.may_mix_directions() {
            let combined = self.register(Some((Waiter::RECEIVER, &*cx)));
            ready!(self.io.poll_read(&mut Context::from_waker(&combined), bytes))?
        } else {
            ready!(self.io.poll_read(cx, bytes))?
        };
        self.traffic.bytes_received += len as u64;
        Poll::Ready(Ok(len))
    }

    // Writing.

    /// Writes the queue, and the bytes that the transport itself has buffered. While the transport is full, it wakes all waiting tasks
    /// later, and `task` if there is one. Also returns the number of bytes that it has accepted.
    pub(super) fn poll_write_all(
        &mut self,
        task: Task<'_, '_>,
        session: &mut Session,
        deferred: &mut Deferred,
    ) -> (usize, Poll<io::Result<()>>) {
        let mut total = 0;
        let written = loop {
            match self.poll_write_slices(task, session) {
                Poll::Ready(Ok(0)) => break self.poll_flush_io(task),
                Poll::Ready(Ok(len)) => {
                    total += len;
                    session.core.transmitted_with(len, |payload| deferred.drop_later(payload));
                    if !session.core.wants_write() {
                        break self.poll_flush_io(task);
                    }
                }
                Poll::Ready(Err(error)) => break Poll::Ready(Err(error)),
                Poll::Pending => break Poll::Pending,
            }
        };
        // The transport is full, or the queue is empty: the connection holds no more than the queue.
        flush::put_buffer(session.core.take_buffer());
        (total, written)
    }

    /// Writes the first slice of the queue, without waiting. Returns the number of bytes that the transport has accepted, and whether
    /// nothing is queued or buffered any more.
    #[inline]
    pub(super) fn try_write_queue(&mut self, session: &mut Session) -> io::Result<(usize, bool)> {
        let mut slices: [&[u8]; 1] = [&[]];
        session.core.poll_transmit(&mut slices);
        let len = self.io.try_write(&slices.map(IoSlice::new)).and_then(not_zero)?;
        session.core.transmitted(len);
        if session.core.wants_write() {
            return Ok((len, false));
        }
        flush::put_buffer(session.core.take_buffer());
        if !self.io.buffers_writes() {
            return Ok((len, true));
        }
        match self.io.poll_flush(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(flushed) => flushed.map(|()| (len, true)),
            Poll::Pending => Ok((len, false)),
        }
    }

    /// Writes the first slices of the queue; ready with 0 only if it is empty.
    fn poll_write_slices(&mut self, task: Task<'_, '_>, session: &mut Session) -> Poll<io::Result<usize>> {
        let mut slices: [&[u8]; SLICES_FEW] = [&[]; SLICES_FEW];
        let count = session.core.poll_transmit(&mut slices);
        if count == 0 {
            return Poll::Ready(Ok(0));
        }
        if count < SLICES_FEW {
            return self.poll_write(task, &slices[..count]);
        }
        let mut slices: [&[u8]; SLICES_MAX] = [&[]; SLICES_MAX];
        let count = session.core.poll_transmit(&mut slices);
        self.poll_write(task, &slices[..count])
    }

    fn poll_write(&mut self, task: Task<'_, '_>, slices: &[&[u8]]) -> Poll<io::Result<usize>> {
        match self.try_write(slices) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            written => return Poll::Ready(written),
        }
        let waker = self.register(task);
        let mut cx = Context::from_waker(&waker);
        let written = with_io_slices(slices, |slices| self.io.poll_write(&mut cx, slices));
        written.map(|written| written.and_then(not_zero))
    }

    /// Writes the bytes that the transport accepts at once. The caller counts them.
    pub(super) fn try_write(&mut self, slices: &[&[u8]]) -> io::Result<usize> {
        with_io_slices(slices, |slices| self.io.try_write(slices)).and_then(not_zero)
    }

    /// Writes the bytes that the transport itself has buffered.
    fn poll_flush_io(&mut self, task: Task<'_, '_>) -> Poll<io::Result<()>> {
        if !self.io.buffers_writes() {
            return Poll::Ready(Ok(()));
        }
        match self.io.poll_flush(&mut Context::from_waker(Waker::noop())) {
            Poll::Pending => {}
            ready => return ready,
        }
        let waker = self.register(task);
        self.io.poll_flush(&mut Context::from_waker(&waker))
    }

    /// Whether the bytes before `end`, as [`Traffic::bytes_sent`] counts them, have left a transport that is full.
    pub(super) fn has_written(&self, end: u64) -> bool {
        // A transport that buffers has written bytes when as many others have followed as it can buffer.
        let buffered_len = if self.io.buffers_writes() { BUFFERED_LEN_MAX } else { 0 };
        self.traffic.bytes_sent >= end.saturating_add(buffered_len as u64)
    }

    // Tasks that wait.

    /// A waker for the transport that wakes all waiting tasks, and this one too.
    pub(super) fn register(&mut self, task: Task<'_, '_>) -> Waker {
        let wakers = self.wakers.get_or_insert_with(Wakers::new);
        if let Some((waiter, cx)) = task {
            wakers.register(waiter, cx);
        }
        wakers.waker()
    }

    /// All tasks that wait, to wake them after the unlock.
    pub(super) fn wakers(&self) -> Option<Arc<Wakers>> {
        self.wakers.clone()
    }

    /// Removes the waker of a future that has ended.
    pub(super) fn remove(&self, waiter: Waiter) {
        if let Some(wakers) = &self.wakers {
            wakers.remove(waiter);
        }
    }

    /// Wakes all tasks that wait for the transport.
    pub(super) fn wake_waiting(&self) {
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
    if is_lost(error) { WebSocketError::ConnectionLost } else { WebSocketError::Io(error.kind().into()) }
}
