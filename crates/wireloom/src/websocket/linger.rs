//! Closing without a reset: after the end of the writing side, the peer's bytes are read and dropped until it has closed too. A
//! socket that is closed with unread bytes is reset, and the peer may lose the bytes that it has not read yet (RFC 9112 §9.6 for HTTP).

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::time::{Instant, Sleep};

use crate::transport::Io;

/// Bytes that are read at once.
const READ_LEN: usize = 4 << 10;

/// Reads per poll, so that a fast peer does not keep the thread.
const READS_MAX: usize = 16;

/// Ready when the peer has closed or reset the connection, or at the deadline, if there is one.
pub(crate) struct Linger {
    io: Io,
    deadline: Option<Instant>,
    /// Made by the first poll: a future that is dropped before needs no timer.
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Linger {
    pub(super) fn new(io: Io, deadline: Option<Instant>) -> Self {
        Self { io, deadline, sleep: None }
    }
}

impl Future for Linger {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        if let Some(deadline) = this.deadline {
            let sleep = this.sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
            if sleep.as_mut().poll(cx).is_ready() {
                return Poll::Ready(());
            }
        }
        let mut bytes = [0; READ_LEN];
        for _ in 0..READS_MAX {
            match ready!(this.io.poll_read(cx, &mut bytes)) {
                Ok(len) if len > 0 => {}
                _ => return Poll::Ready(()),
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}
