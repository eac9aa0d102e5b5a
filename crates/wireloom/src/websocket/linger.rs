//! Closing without a reset: after the end of the writing side, the peer's bytes are read and dropped until it has closed too. A
//! socket that is closed with unread bytes is reset, and the peer may lose the bytes that it has not read yet (RFC 9112 §9.6 for HTTP).

use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Instant;
use wireloom_ws::limits::TRAILING_LEN_MAX;

use super::clock::{self, Timer};
use crate::memory::Account;
use crate::sync;
use crate::transport::Io;

/// Bytes that are read at once.
const READ_LEN: usize = 4 << 10;

/// Reads per poll, so that a fast peer does not keep the thread.
const READS_MAX: usize = 16;

/// How long bytes that nobody wants are discarded at most, also where the close timeout is longer.
const TRAILING_TIMEOUT: Duration = Duration::from_secs(10);

/// The end of a transport that is not used any more.
#[derive(Debug)]
pub(super) struct Linger {
    is_shut_down: bool,
    /// Bytes that are read before the transport is closed all the same.
    left: usize,
    /// `None` if the clock cannot represent it: it never passes.
    deadline: Option<Instant>,
    timer: Timer,
}

impl Linger {
    pub(super) fn new(is_shut_down: bool, deadline: Option<Instant>) -> Self {
        Self { is_shut_down, left: usize::MAX, deadline, timer: Timer::Unset }
    }

    /// As [`new`](Self::new), for a peer that sends behind its Close frame (RFC 6455 §5.5.1) or its request.
    pub(super) fn trailing(is_shut_down: bool, deadline: Option<Instant>) -> Self {
        let latest = Instant::now() + TRAILING_TIMEOUT;
        let deadline = deadline.map_or(latest, |deadline| deadline.min(latest));
        Self { left: TRAILING_LEN_MAX, ..Self::new(is_shut_down, Some(deadline)) }
    }

    /// Ends the writing side. Ready when the peer has closed the connection too, or has reset it or sent too much, or at the deadline.
    pub(super) fn poll(&mut self, io: &mut Io, cx: &mut Context<'_>) -> Poll<()> {
        // A transport that encrypts may have to wait for room.
        self.is_shut_down = self.is_shut_down || io.poll_shutdown(cx).is_ready();
        let mut bytes = [0; READ_LEN];
        let mut reads_left = READS_MAX;
        while reads_left > 0 {
            match io.poll_read(cx, &mut bytes) {
                Poll::Ready(Ok(len @ 1..)) => {
                    let Some(left) = self.left.checked_sub(len) else { return Poll::Ready(()) };
                    (self.left, reads_left) = (left, reads_left - 1);
                }
                Poll::Ready(_) if self.is_shut_down => return Poll::Ready(()),
                Poll::Ready(_) | Poll::Pending => break,
            }
        }
        // After the reads: bytes that arrived in time are read although this is polled late.
        if let Some(deadline) = self.deadline
            && self.timer.poll(deadline, cx).is_ready()
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

/// Keeps a transport, of which nothing else is left, until the end. Closes it if there is no place for it, or no runtime.
pub(super) fn spawn(account: &Account, mut linger: Linger, mut io: Io) {
    let Ok(place) = account.lingering().try_acquire_owned() else { return };
    let Some(runtime) = account.runtime().filter(clock::has_timers) else { return };
    sync::spawn(&runtime, async move {
        poll_fn(|cx| linger.poll(&mut io, cx)).await;
        drop(io);
        drop(place);
    });
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use tokio::io::AsyncWriteExt as _;

    use super::*;
    #[cfg(feature = "server")]
    use crate::memory::{LINGERING_MAX, Memory};

    // Closing the transport with them would reset the connection.
    #[tokio::test(start_paused = true)]
    async fn bytes_that_have_arrived_are_read_at_the_deadline() {
        let (mut peer, transport) = tokio::io::duplex(2 * READ_LEN);
        peer.write_all(&[7; 2 * READ_LEN]).await.unwrap();
        let deadline = Instant::now() + Duration::from_secs(1);
        let (mut linger, mut io) = (Linger::new(true, Some(deadline)), Io::Other(Box::new(transport)));
        tokio::time::advance(Duration::from_secs(60)).await;
        poll_fn(|cx| linger.poll(&mut io, cx)).await;
        // There is room again.
        let written = tokio::time::timeout(Duration::from_secs(1), peer.write_all(&[7; 2 * READ_LEN])).await;
        written.expect("the bytes were read").unwrap();
    }

    #[cfg(feature = "server")]
    #[tokio::test(start_paused = true)]
    async fn transports_linger_in_tasks_up_to_a_number_and_a_time() {
        let memory = Memory::new(usize::MAX);
        let account = memory.account();
        let begin = Instant::now();
        let (mut is_kept, mut peers) = (Vec::new(), Vec::new());
        for _ in 0..=LINGERING_MAX {
            let (mut peer, transport) = tokio::io::duplex(1);
            spawn(&account, Linger::trailing(false, None), Io::Other(Box::new(transport)));
            is_kept.push(peer.write_all(b"some").await.is_ok());
            peers.push(peer);
        }
        let (last, others) = is_kept.split_last().unwrap();
        assert!(!last && others.iter().all(|is_kept| *is_kept));
        memory.wait_lingered().await;
        assert_eq!(begin.elapsed().as_secs(), TRAILING_TIMEOUT.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_behind_a_close_frame_are_read_up_to_a_length() {
        for (len, is_kept) in
            [(TRAILING_LEN_MAX - 1, true), (TRAILING_LEN_MAX, true), (TRAILING_LEN_MAX + 1, false)]
        {
            let (mut peer, transport) = tokio::io::duplex(64 << 10);
            let mut io = Io::Other(Box::new(transport));
            let mut linger = Linger::trailing(true, None);
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
}
