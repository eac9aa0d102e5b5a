//! Closing without a reset: after the end of the writing side, the peer's bytes are read and dropped until it has closed too. A socket
//! that is closed with unread bytes is reset, and so is one that receives bytes after that: it drops what it has not sent, and the peer may
//! lose what it has not read (RFC 9112 §9.6, RFC 6455 §7.1.1).
//!
//! A transport that lingers keeps what its connection has of the limits of a server: its place, also among those of its address, and
//! its account.

use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::Instant;

use super::Io;
use super::budget::Budget;
use super::buffer::Buffer;
use crate::deadline::{PeerDeadline, Timer};
use crate::memory::Account;

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
    deadline: Option<PeerDeadline>,
    /// Whether the deadline moves with what the peer sends.
    is_extended: bool,
    timer: Timer,
    /// A fast peer does not keep the thread.
    budget: Budget,
    account: Account,
}

impl Linger {
    /// Until this deadline, and for at most `len_max` bytes.
    pub(crate) fn until(deadline: Option<Instant>, len_max: usize) -> Self {
        let timeout = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        Self {
            is_shut_down: false,
            left: len_max,
            deadline: timeout.map(PeerDeadline::after),
            is_extended: false,
            timer: Timer::Unset,
            budget: Budget::default(),
            account: Account::default(),
        }
    }

    /// For a peer of HTTP/1.1, which should read the last response.
    pub(crate) fn http() -> Self {
        let deadline = Some(Instant::now() + HTTP_TIMEOUT);
        let mut linger = Self::until(deadline, HTTP_STEPS_MAX * HTTP_STEP_LEN);
        linger.is_extended = true;
        linger
    }

    /// For a peer of HTTP/2, which should read GOAWAY: windows bound what it sends.
    pub(crate) fn http2() -> Self {
        Self::until(Some(Instant::now() + HTTP_TIMEOUT), HTTP_STEP_LEN)
    }

    /// Charges the bytes that are read to this account of a server's connection.
    pub(crate) fn with_account(mut self, account: &Account) -> Self {
        self.account = account.clone();
        self
    }

    /// The peer gets no more time, however much it sends.
    pub(crate) fn hurry(&mut self) {
        self.is_extended = false;
    }

    /// Ends the writing side. Ready when the peer has closed the connection too, or has reset it or sent too much, or at the deadline; at
    /// once where there is no timer for that.
    pub(crate) fn poll(&mut self, io: &mut Io, cx: &mut Context<'_>) -> Poll<()> {
        // A transport that encrypts may have to wait for room.
        self.is_shut_down = self.is_shut_down || io.poll_shutdown(cx).is_ready();
        let mut buffer = Buffer::take();
        loop {
            // A peer that is not read is not late.
            ready!(self.budget.poll_paid(&self.account, cx));
            match io.poll_read(cx, buffer.space()) {
                Poll::Ready(Ok(len @ 1..)) => {
                    let Some(left) = self.left.checked_sub(len) else { return Poll::Ready(()) };
                    if self.is_extended && left.div_ceil(HTTP_STEP_LEN) < self.left.div_ceil(HTTP_STEP_LEN) {
                        self.deadline.iter_mut().for_each(PeerDeadline::restart);
                    }
                    self.left = left;
                    self.budget.spend(len);
                }
                Poll::Ready(_) if self.is_shut_down => return Poll::Ready(()),
                Poll::Ready(_) | Poll::Pending => break,
            }
        }
        // After the reads: bytes that arrived in time are read although this is polled late.
        let Some(deadline) = &mut self.deadline else { return Poll::Pending };
        let passed = deadline.poll(&mut self.timer, cx);
        if self.timer.is_set() { passed } else { Poll::Ready(()) }
    }
}

impl Drop for Linger {
    fn drop(&mut self) {
        self.budget.reset(&self.account);
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

    // The peer could not be late meanwhile.
    #[tokio::test(start_paused = true)]
    async fn a_pause_of_the_process_does_not_count() {
        for create in [Linger::http, Linger::http2] {
            let mut linger = create();
            let (_peer, transport) = tokio::io::duplex(100);
            let mut io = Io::Other(Box::new(transport));
            for _ in 0..3 {
                let ended = poll_fn(|cx| Poll::Ready(linger.poll(&mut io, cx))).await;
                assert!(ended.is_pending());
                tokio::time::advance(Duration::from_secs(10)).await;
            }
            // Each pause took a look.
            let begin = Instant::now();
            poll_fn(|cx| linger.poll(&mut io, cx)).await;
            assert_eq!(begin.elapsed().as_millis() / 100, 2);
        }
    }

    // Bytes are always there.
    #[tokio::test]
    async fn a_fast_peer_does_not_keep_the_thread() {
        const LEN: usize = 64 << 20;
        let mut io = Io::Other(Box::new(tokio::io::join(tokio::io::repeat(7), tokio::io::sink())));
        let (mut linger, mut polls) = (Linger::until(None, LEN), 0);
        poll_fn(|cx| {
            polls += 1;
            linger.poll(&mut io, cx)
        })
        .await;
        assert!(polls >= LEN >> 20, "{polls}");
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
