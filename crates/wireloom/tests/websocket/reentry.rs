//! Code of the application that uses a WebSocket while the WebSocket calls it: iterators, payloads, wakers, observers. A lock that is
//! held meanwhile is a deadlock.

use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{
    AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream, ReadBuf, duplex,
};
use wireloom::wireloom_ws::handshake::Negotiated;
use wireloom::wireloom_ws::{Config, Connection, Role};
use wireloom::{DeflateConfig, Observer, ObserverEvent, Sender, WebSocket, WebSocketConfig, WebSocketError};

/// Longer than any test takes unless it is blocked.
const DEADLOCK: Duration = Duration::from_secs(60);

/// Runs `test` in a thread with a runtime of its own. Fails when it is blocked.
fn without_deadlock<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send + 'static) {
    let (done, is_done) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(test());
        done.send(()).unwrap();
    });
    match is_done.recv_timeout(DEADLOCK) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("a deadlock"),
        _ => thread.join().unwrap(),
    }
}

fn open_with(transport: impl wireloom::Transport, config: WebSocketConfig) -> WebSocket {
    WebSocket::from_transport(transport, Role::Server, Negotiated::default(), None, config, &[])
}

/// A WebSocket over a transport that holds `len` bytes.
fn open(len: usize) -> (DuplexStream, WebSocket) {
    let (peer, transport) = duplex(len);
    (peer, open_with(transport, WebSocketConfig::default()))
}

/// A payload that asks the WebSocket when it is dropped.
struct Asking(Sender, Arc<AtomicUsize>);

impl AsRef<[u8]> for Asking {
    fn as_ref(&self) -> &[u8] {
        &[7; 50_000]
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.queued_len();
        self.1.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn an_iterator_of_messages_may_use_the_websocket() {
    without_deadlock(|| async {
        let (mut peer, socket) = open(1 << 10);
        let (mut sender, _receiver) = socket.split();
        let other = sender.clone();
        let messages = (0..3).map(|number| {
            assert!(other.queued_len() <= 2 * number);
            [number as u8; 0]
        });
        assert_eq!(sender.try_send_all(messages.map(|message| message.to_vec())), Ok(3));
        let mut received = [0; 6];
        peer.read_exact(&mut received).await.unwrap();
        assert_eq!(received, [0x82, 0, 0x82, 0, 0x82, 0]);
    });
}

#[test]
fn a_payload_may_use_the_websocket_when_it_is_dropped() {
    without_deadlock(|| async {
        let dropped = Arc::new(AtomicUsize::new(0));
        // It is written at once, in parts, or never.
        for (transport_len, reads) in [(1 << 20, false), (1_000, true), (1_000, false)] {
            let (mut peer, socket) = open(transport_len);
            let (mut sender, mut receiver) = socket.split();
            for _ in 0..2 {
                let payload = Bytes::from_owner(Asking(sender.clone(), dropped.clone()));
                sender.feed(payload).await.unwrap();
            }
            let reading = tokio::spawn(async move {
                let mut bytes = vec![0; 1 << 20];
                while reads && peer.read(&mut bytes).await.unwrap() > 0 {}
            });
            let flushed = sender.flush().await;
            assert_eq!(flushed.is_ok(), reads || transport_len > 100_000, "{flushed:?}");
            drop(sender);
            // Ends the connection, over which nothing more is sent.
            reading.abort();
            while let Ok(Some(_)) = receiver.recv().await {}
        }
        assert_eq!(dropped.load(Ordering::Relaxed), 6);
    });
}

/// A task whose last reference may be a waker.
struct Task {
    sender: Sender,
    is_dropped: Arc<AtomicBool>,
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        // An executor that polls at once.
        self.sender.queued_len();
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.sender.queued_len();
        self.is_dropped.store(true, Ordering::Relaxed);
    }
}

fn waker(sender: &Sender) -> (Waker, Arc<AtomicBool>) {
    let is_dropped = Arc::new(AtomicBool::new(false));
    let task = Task { sender: sender.clone(), is_dropped: is_dropped.clone() };
    (Waker::from(Arc::new(task)), is_dropped)
}

#[test]
fn a_waker_may_be_the_last_reference_to_a_task_that_uses_the_websocket() {
    without_deadlock(|| async {
        let (_peer, socket) = open(100);
        let (mut sender, mut receiver) = socket.split();
        let other = sender.clone();
        let (old, is_old_dropped) = waker(&other);
        assert!(pin!(receiver.recv()).poll(&mut Context::from_waker(&old)).is_pending());
        drop(old);
        let (new, is_new_dropped) = waker(&other);
        assert!(pin!(receiver.recv()).poll(&mut Context::from_waker(&new)).is_pending());
        assert!(is_old_dropped.load(Ordering::Relaxed) && !is_new_dropped.load(Ordering::Relaxed));
        // A sender that waits.
        let mut sending = pin!(sender.send(vec![7; 10_000]));
        let (old, is_old_dropped) = waker(&other);
        assert!(sending.as_mut().poll(&mut Context::from_waker(&old)).is_pending());
        drop(old);
        assert!(sending.as_mut().poll(&mut Context::from_waker(&new)).is_pending());
        assert!(is_old_dropped.load(Ordering::Relaxed));
    });
}

#[test]
fn a_waker_may_poll_its_task_in_place() {
    without_deadlock(|| async {
        let (peer, socket) = open(100);
        let (mut sender, mut receiver) = socket.split();
        let mut other = sender.clone();
        let (waker, _) = waker(&sender);
        let cx = &mut Context::from_waker(&waker);
        let mut sending = pin!(sender.send(vec![7; 10_000]));
        assert!(sending.as_mut().poll(cx).is_pending());
        assert!(pin!(receiver.recv()).poll(cx).is_pending());
        // Each wakes others.
        other.close_after((Duration::from_secs(60), wireloom::CloseCode::NORMAL)).unwrap();
        let _ = pin!(other.close(wireloom::CloseCode::NORMAL, "")).poll(cx);
        drop(peer);
        assert_eq!(sending.await, Err(WebSocketError::ConnectionLost));
    });
}

/// Reports whether the WebSocket has read from it.
struct Reported(DuplexStream, Arc<AtomicBool>);

impl AsyncRead for Reported {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let read = Pin::new(&mut self.0).poll_read(cx, into);
        self.1.store(!into.filled().is_empty(), Ordering::Relaxed);
        read
    }
}

impl AsyncWrite for Reported {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

// A peer decides how long a message takes to inflate.
#[test]
fn senders_do_not_wait_while_a_message_is_inflated() {
    const LEN: usize = 48 << 20;
    without_deadlock(|| async {
        let deflate = DeflateConfig::default();
        let mut config = WebSocketConfig::default();
        config.core.limits.inflate_ratio_max = u64::MAX as _;
        let params = Some((Default::default(), &deflate));
        let mut client = Connection::client(Config::default(), params, [7; 32], Duration::ZERO);
        client.send_binary(&vec![0; LEN]).unwrap();
        let bytes = client.take_transmit();
        assert!(bytes.len() < 128 << 10);
        let (mut peer, transport) = duplex(1 << 20);
        peer.write_all(&bytes).await.unwrap();
        let has_read = Arc::new(AtomicBool::new(false));
        let negotiated = Negotiated { deflate: Some(Default::default()), ..Negotiated::default() };
        let transport = Reported(transport, has_read.clone());
        let socket =
            WebSocket::from_transport(transport, Role::Server, negotiated, Some(&deflate), config, &[]);
        let (sender, mut receiver) = socket.split();
        let is_received = Arc::new(AtomicBool::new(false));
        let asking = std::thread::spawn({
            let is_received = is_received.clone();
            move || {
                while !has_read.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
                let mut count = 0;
                while !is_received.load(Ordering::Relaxed) {
                    sender.queued_len();
                    count += 1;
                }
                count
            }
        });
        assert_eq!(receiver.recv().await.unwrap().unwrap().as_bytes().len(), LEN);
        is_received.store(true, Ordering::Relaxed);
        let count = asking.join().unwrap();
        assert!(count > 100, "{count} calls while the message was inflated");
    });
}

#[tokio::test]
async fn an_observer_that_has_panicked_receives_the_next_events() {
    let events = Arc::new(Mutex::new(Vec::new()));
    let mut config = WebSocketConfig::default();
    let recorded = events.clone();
    config.observer = Some(Observer::new(move |event| {
        recorded.lock().unwrap_or_else(|error| error.into_inner()).push(format!("{event:?}"));
        assert!(
            !matches!(event, ObserverEvent::PingRead(payload) if payload == b"panic"),
            "a defect of the observer"
        );
    }));
    let (mut peer, transport) = duplex(1 << 10);
    let (mut sender, mut receiver) = open_with(transport, config).split();
    peer.write_all(b"\x89\x85\0\0\0\0panic").await.unwrap();
    let receiving = tokio::spawn(async move {
        let _ = receiver.recv().await;
    });
    assert!(receiving.await.unwrap_err().is_panic());
    sender.send("later").await.unwrap();
    sender.send("again").await.unwrap();
    let events = events.lock().unwrap_or_else(|error| error.into_inner());
    let written = events.iter().filter(|event| event.starts_with("MessageWritten")).count();
    assert_eq!(written, 2, "{events:?}");
}

// Its receiver is dropped by the panic, within the poll.
#[tokio::test]
async fn the_end_is_noticed_after_a_handler_has_panicked_while_another_task_holds_a_sender() {
    let (mut peer, socket) = open(100);
    let (give, given) = tokio::sync::oneshot::channel();
    let handler = |socket: WebSocket| async move {
        let (sender, mut receiver) = socket.split();
        let _ = give.send(sender);
        let message = receiver.recv().await.unwrap();
        assert!(message.is_none(), "a defect of the handler");
    };
    let driving = tokio::spawn(socket.drive(handler));
    let sender = given.await.unwrap();
    peer.write_all(b"\x81\x82\0\0\0\0hi").await.unwrap();
    assert!(driving.await.unwrap_err().is_panic());
    drop(peer);
    tokio::time::timeout(Duration::from_secs(10), sender.closed()).await.expect("the peer has left");
}

/// Counts the wakers that refer to it.
struct Counted;

impl Wake for Counted {
    fn wake(self: Arc<Self>) {}
}

#[tokio::test]
async fn a_sender_that_is_dropped_leaves_no_waker() {
    let (_peer, socket) = open(100);
    let (sender, _receiver) = socket.split();
    let counted = Arc::new(Counted);
    let waker = Waker::from(counted.clone());
    let mut first = sender.clone();
    assert!(pin!(first.send(vec![7; 10_000])).poll(&mut Context::from_waker(&waker)).is_pending());
    let waiting = Arc::strong_count(&counted);
    for _ in 0..1_000 {
        let mut clone = sender.clone();
        assert!(pin!(clone.flush()).poll(&mut Context::from_waker(&waker)).is_pending());
    }
    assert_eq!(Arc::strong_count(&counted), waiting);
    drop(first);
    assert_eq!(Arc::strong_count(&counted), waiting - 1);
}
