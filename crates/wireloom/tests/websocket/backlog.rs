//! Only bytes that the transport has refused are a backlog: nothing else makes a peer slow.

use std::cell::Cell;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, DuplexStream, duplex};
use wireloom::wireloom_ws::Role;
use wireloom::wireloom_ws::handshake::Negotiated;
use wireloom::{CloseCode, Sender, SlowPeer, WebSocket, WebSocketConfig, WebSocketError};

const QUEUED_LEN_HIGH: usize = 50_000;
const QUEUED_LEN_MAX: usize = 100_000;

/// Longer than the send queue.
const LARGE_LEN: usize = 2 * QUEUED_LEN_MAX;

/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(60);

const POLICIES: [SlowPeer; 3] = [
    SlowPeer::Wait { stall_timeout: LONG },
    SlowPeer::DropNewest { queue_timeout: LONG, stall_timeout: LONG },
    SlowPeer::Disconnect { queue_timeout: LONG },
];

/// A WebSocket over a transport that holds `len` bytes.
fn open(slow_peer: SlowPeer, len: usize) -> (DuplexStream, WebSocket) {
    let (peer, transport) = duplex(len);
    let mut config = WebSocketConfig { slow_peer, ..WebSocketConfig::default() };
    config.core.limits.queued_len_high = QUEUED_LEN_HIGH;
    config.core.limits.queued_len_max = QUEUED_LEN_MAX;
    (peer, WebSocket::from_transport(transport, Role::Server, Negotiated::default(), None, config, &[]))
}

async fn read(peer: &mut DuplexStream, len: usize) {
    peer.read_exact(&mut vec![0; len]).await.unwrap();
}

#[tokio::test]
async fn a_message_longer_than_the_queue_is_written_to_a_transport_that_accepts_it() {
    for policy in POLICIES {
        for queued in [1, QUEUED_LEN_HIGH, QUEUED_LEN_MAX] {
            let (mut peer, mut socket) = open(policy, 1 << 20);
            socket.feed(vec![1; queued]).await.unwrap();
            let mut other = socket.halves().0.clone();
            assert_eq!(other.try_send(vec![2; LARGE_LEN]), Ok(true), "{policy:?} {queued}");
            socket.feed(vec![3; queued]).await.unwrap();
            socket.send(vec![4; LARGE_LEN]).await.unwrap();
            assert_eq!((other.queued_len(), other.dropped()), (0, 0));
            read(&mut peer, 2 * (queued + LARGE_LEN)).await;
        }
    }
}

// It is not slow before it has had the time of the policy, or the queue is congested. `DropNewest` does not wait.
#[tokio::test]
async fn a_message_longer_than_the_queue_waits_for_a_peer_that_reads() {
    for policy in [POLICIES[0], POLICIES[2]] {
        let (mut peer, mut socket) = open(policy, 1_000);
        socket.feed(vec![1; 49_900]).await.unwrap();
        let mut other = socket.halves().0.clone();
        assert_eq!(other.try_send(vec![2; LARGE_LEN]), Ok(false), "{policy:?}");
        let sending = socket.send(vec![2; LARGE_LEN]);
        let (sent, ()) = tokio::join!(sending, read(&mut peer, 49_904 + LARGE_LEN + 10));
        assert_eq!((sent, other.dropped()), (Ok(()), 0), "{policy:?}");
    }
}

#[tokio::test]
async fn a_congested_queue_of_refused_bytes_is_slow() {
    for policy in POLICIES {
        let (_peer, mut socket) = open(policy, 1_000);
        socket.feed(vec![1; QUEUED_LEN_HIGH + 1_000]).await.unwrap();
        let (sender, _) = socket.halves();
        let sent = sender.try_send("more");
        let (expected, dropped) = match policy {
            SlowPeer::Wait { .. } => (Ok(false), 0),
            SlowPeer::DropNewest { .. } => (Ok(true), 1),
            _ => (Err(WebSocketError::SlowPeer), 0),
        };
        assert_eq!((sent, sender.dropped()), (expected, dropped), "{policy:?}");
    }
}

fn poll<T>(future: impl Future<Output = T>) -> Poll<T> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// Sends until the peer stalls, and closes.
fn use_without_timers() {
    let (mut peer, mut socket) = open(SlowPeer::default(), 1_000);
    assert!(poll(socket.send(vec![1; 10_000])).is_pending());
    assert!(poll(socket.recv()).is_pending());
    for _ in 0..12 {
        let mut bytes = [0; 1_000];
        let _ = poll(peer.read(&mut bytes));
        let flush: &mut Sender = socket.halves().0;
        let _ = poll(flush.flush());
    }
    assert_eq!(socket.halves().0.queued_len(), 0);
    assert!(poll(socket.close(CloseCode::NORMAL, "")).is_pending());
    let mut close = [0; 4];
    assert!(poll(peer.read_exact(&mut close)).is_ready());
    drop(peer);
    assert!(poll(socket.recv()).is_ready());
}

#[test]
fn a_peer_that_stalls_is_no_panic_without_a_runtime_or_its_timers() {
    use_without_timers();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async { use_without_timers() });
}

thread_local! {
    /// Panics of this thread because of timers that are disabled.
    static PANICS: Cell<usize> = const { Cell::new(0) };
}

// tokio cannot be asked whether there are timers. Its panic is caught, but printed.
#[test]
fn timers_that_are_missing_are_asked_for_once() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if panic.payload_as_str().is_some_and(|message| message.contains("timers are disabled")) {
            PANICS.set(PANICS.get() + 1);
        }
        print(panic);
    }));
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for _ in 0..3 {
        runtime.block_on(async {
            use_without_timers();
            let (_peer, socket) = open(SlowPeer::default(), 1_000);
            drop(socket);
        });
    }
    assert_eq!(PANICS.get(), 1);
}
