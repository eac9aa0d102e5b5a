//! Closing without a reset: after the end of the writing side, the peer's bytes are read and dropped until it has closed too. A socket
//! that is closed with unread bytes is reset, and so is one that receives bytes after that: it drops what it has not sent, and the peer may
//! lose what it has not read (RFC 9112 §9.6, RFC 6455 §7.1.1).
//!
//! A transport that lingers keeps what its connection has of the limits of a server: its place, also among those of its address, and
//! its account.

use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Instant;

use super::Io;
use super::buffer::Buffer;
use crate::deadline::Timer;

/// Reads per poll, so that a fast peer does not keep the thread.
const READS_MAX: usize = 16;

/// How long a peer of HTTP may continue to send before it is disconnected.
const HTTP_TIMEOUT: Duration = Duration::from_secs(1);

/// One that sends this many bytes within [`HTTP_TIMEOUT`] may continue for another one: many clients send all of their content before they
/// read the response.
const HTTP_STEP_LEN: usize = 1 << 20;

/// How often it may.
const HTTP_STEPS_MAX: usize = 64;

/// The end of a transport that is not used any more.
#[derive(Debug)]
pub(crate) struct Linger {
    is_shut_down: bool,
    /// Bytes that are read before the transport is closed all the same.
    left: usize,
    /// `None` if the clock cannot represent it: it never passes.
    deadline: Option<Instant>,
    /// Whether the deadline moves with what the peer sends.
    is_http: bool,
    timer: Timer,
}

impl Linger {
    /// Until this deadline, and for at most `len_max` bytes.
    pub(crate) fn until(deadline: Option<Instant>, len_max: usize) -> Self {
        Self { is_shut_down: false, left: len_max, deadline, is_http: false, timer: Timer::Unset }
    }

    /// For a peer of HTTP/1.1, which should read the last response.
    pub(crate) fn http() -> Self {
        let deadline = Some(Instant::now() + HTTP_TIMEOUT);
        Self { is_http: true, ..Self::until(deadline, HTTP_STEPS_MAX * HTTP_STEP_LEN) }
    }

    /// For a peer of HTTP/2, which should read GOAWAY: windows bound what it sends.
    pub(crate) fn http2() -> Self {
        Self::until(Some(Instant::now() + HTTP_TIMEOUT), HTTP_STEP_LEN)
    }

    /// Ends the writing side. Ready when the peer has closed the connection too, or has reset it or sent too much, or at the deadline; at
    /// once where there is no timer for that.
    pub(crate) fn poll(&mut self, io: &mut Io, cx: &mut Context<'_>) -> Poll<()> {
        // A transport that encrypts may have to wait for room.
        self.is_shut_down = self.is_shut_down || io.poll_shutdown(cx).is_ready();
        let mut buffer = Buffer::take();
        let mut reads_left = READS_MAX;
        while reads_left > 0 {
            match io.poll_read(cx, buffer.space()) {
                Poll::Ready(Ok(len @ 1..)) => {
                    let Some(left) = self.left.checked_sub(len) else { return Poll::Ready(()) };
                    if self.is_http && left.div_ceil(HTTP_STEP_LEN) < self.left.div_ceil(HTTP_STEP_LEN) {
                        self.deadline = Some(Instant::now() + HTTP_TIMEOUT);
                    }
                    (self.left, reads_left) = (left, reads_left - 1);
                }
                Poll::Ready(_) if self.is_shut_down => return Poll::Ready(()),
                Poll::Ready(_) | Poll::Pending => break,
            }
        }
        // After the reads: bytes that arrived in time are read although this is polled late.
        if let Some(deadline) = self.deadline
            && (self.timer.poll(deadline, cx).is_ready() || !self.timer.is_set())
        {
            return Poll::Ready(());
        }
        if reads_left == 0 {
            // There may be more.
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use std::future::poll_fn;

    use tokio::io::AsyncWriteExt as _;

    use super::*;

    const READ_LEN: usize = 64 << 10;

    const LEN_MAX: usize = 4 << 20;

    // Closing the transport with them would reset the connection.
    #[tokio::test(start_paused = true)]
    async fn bytes_that_have_arrived_are_read_at_the_deadline() {
        let (mut peer, transport) = tokio::io::duplex(2 * READ_LEN);
        peer.write_all(&[7; 2 * READ_LEN]).await.unwrap();
        let deadline = Instant::now() + Duration::from_secs(1);
        let (mut linger, mut io) = (Linger::until(Some(deadline), LEN_MAX), Io::Other(Box::new(transport)));
        tokio::time::advance(Duration::from_secs(60)).await;
        poll_fn(|cx| linger.poll(&mut io, cx)).await;
        // There is room again.
        let written = tokio::time::timeout(Duration::from_secs(1), peer.write_all(&[7; 2 * READ_LEN])).await;
        written.expect("the bytes were read").unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_are_read_up_to_a_length() {
        for (len, is_kept) in [(LEN_MAX - 1, true), (LEN_MAX, true), (LEN_MAX + 1, false)] {
            let (mut peer, transport) = tokio::io::duplex(64 << 10);
            let mut io = Io::Other(Box::new(transport));
            let mut linger = Linger::until(Some(Instant::now() + Duration::from_secs(10)), LEN_MAX);
            let lingering = poll_fn(|cx| linger.poll(&mut io, cx));
            let sending = async {
                peer.write_all(&vec![7; len]).await.unwrap();
                tokio::time::sleep(Duration::from_secs(1)).await;
            };
            // The end of lingering comes first if there is one.
            tokio::select! {
                biased;
                () = lingering => assert!(!is_kept, "{len}"),
                () = sending => assert!(is_kept, "{len}"),
            }
        }
    }

    // RFC 9112 §9.6: it reads the response after that.
    #[tokio::test(start_paused = true)]
    async fn a_peer_of_http_that_sends_on_has_more_time() {
        let (mut peer, transport) = tokio::io::duplex(HTTP_STEP_LEN);
        let (mut linger, mut io) = (Linger::http(), Io::Other(Box::new(transport)));
        let begin = Instant::now();
        let sending = async {
            for _ in 0..3 {
                peer.write_all(&vec![7; HTTP_STEP_LEN]).await.unwrap();
                tokio::time::sleep(HTTP_TIMEOUT - Duration::from_millis(1)).await;
            }
            peer.write_all(&[7; 1]).await.unwrap();
            std::future::pending().await
        };
        tokio::select! {
            () = poll_fn(|cx| linger.poll(&mut io, cx)) => {}
            () = sending => {}
        }
        assert_eq!(begin.elapsed().as_secs(), 2);
    }
}
