//! The write batch under shuttle, which chooses among the tasks of a connection at each lock and each atomic access.
//!
//! Each task that has sent something awaits something else afterwards: that the peer has received it. A flush that is missing is
//! a deadlock, which shuttle reports with the schedule that leads to it.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;

use shuttle::future::{JoinHandle, block_on, spawn};
use shuttle::rand::{Rng as _, thread_rng};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::watch;
use wireloom_testing::frame::masked;
use wireloom_ws::Role;
use wireloom_ws::handshake::Negotiated;

#[cfg(feature = "server")]
use super::Driven;
use super::{Observer, ObserverEvent, Receiver, Sender, WebSocket, WebSocketConfig};
use crate::memory::Account;
use crate::sync::Model;
use crate::transport::Io;
use crate::transport::model::{End, pipe};

/// Schedules of each test.
const SCHEDULES: usize = 1_000;

/// Shorter than two of the frames: the transport is full most of the time.
const PIPE_LEN: usize = 24;

const PAYLOAD: &[u8] = b"fifteen letters";

/// The frame of `PAYLOAD`.
const FRAME_LEN: usize = 2 + PAYLOAD.len();

/// A server's WebSocket: over a transport whose directions share a waker, or over one where they do not.
fn open(end: End) -> WebSocket {
    let io = if thread_rng().gen_bool(0.5) { Io::Tunnel(Box::new(end)) } else { Io::Other(Box::new(end)) };
    let (negotiated, account) = (Negotiated::default(), Account::default());
    WebSocket::open(io, Role::Server, negotiated, None, Default::default(), &[], &account)
}

/// Runs `handler` driven, or as any other task.
async fn run<F: Future<Output = ()>>(socket: WebSocket, handler: impl FnOnce(WebSocket) -> F) {
    if thread_rng().gen_bool(0.5) {
        socket.drive(handler).await;
    } else {
        handler(socket).await;
    }
}

/// Whether the peer has received all that was sent.
type Received = watch::Receiver<bool>;

async fn wait_for(mut received: Received) {
    received.wait_for(|received| *received).await.unwrap();
}

fn wait_for_both(client: JoinHandle<()>, serving: JoinHandle<()>) {
    block_on(async {
        client.await.unwrap();
        serving.await.unwrap();
    });
}

/// Reads `count` messages, and reports them.
async fn expect_messages(peer: &mut End, count: usize, report: watch::Sender<bool>) {
    let mut bytes = vec![0; count * FRAME_LEN];
    peer.read_exact(&mut bytes).await.unwrap();
    for frame in bytes.chunks(FRAME_LEN) {
        assert_eq!((frame[0], &frame[2..]), (0x82, PAYLOAD));
    }
    report.send_replace(true);
}

/// Polls `future` once, and drops it.
async fn poll_once<T>(future: impl Future<Output = T>) -> Poll<T> {
    let mut future = pin!(future);
    poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await
}

/// Sends one message through one of the send methods. The queue has room for it.
async fn send_somehow(sender: &mut Sender) {
    match thread_rng().gen_range(0..5) {
        0 => sender.send(PAYLOAD).await.unwrap(),
        1 => assert!(!matches!(poll_once(sender.send(PAYLOAD)).await, Poll::Ready(Err(_)))),
        2 => sender.feed(PAYLOAD).await.unwrap(),
        3 => assert!(sender.try_send(PAYLOAD).unwrap()),
        _ => sender.reserve().await.unwrap().send(PAYLOAD).unwrap(),
    }
}

#[test]
fn answers_leave_whatever_the_handler_awaits_next() {
    Model::explore(SCHEDULES, || {
        let (mut peer, end) = pipe(1_000);
        let (report, received) = watch::channel(false);
        let answers = thread_rng().gen_range(1..4);
        let handler = move |socket: WebSocket| async move {
            let (mut sender, mut receiver) = socket.split();
            for _ in 0..answers {
                let message = receiver.recv().await.unwrap().unwrap();
                sender.send(message).await.unwrap();
            }
            wait_for(received).await;
            drop((sender, receiver));
        };
        let serving = spawn(run(open(end), handler));
        let client = spawn(async move {
            // More has arrived than is answered.
            peer.write_all(&masked(0x82, PAYLOAD).repeat(4)).await.unwrap();
            expect_messages(&mut peer, answers, report).await;
        });
        wait_for_both(client, serving);
    });
}

#[test]
fn messages_of_all_tasks_leave_whatever_they_await_next() {
    const SENDERS: usize = 3;
    const MESSAGES: usize = 2;
    Model::explore(SCHEDULES, || {
        let (mut peer, end) = pipe(PIPE_LEN);
        let (report, received) = watch::channel(false);
        let receives = thread_rng().gen_bool(0.5);
        let handler = move |socket: WebSocket| async move {
            let (mut sender, mut receiver) = socket.split();
            let others: Vec<_> = (1..SENDERS)
                .map(|_| {
                    let (mut sender, received) = (sender.clone(), received.clone());
                    spawn(async move {
                        for _ in 0..MESSAGES {
                            send_somehow(&mut sender).await;
                        }
                        wait_for(received).await;
                    })
                })
                .collect();
            for _ in 0..MESSAGES {
                send_somehow(&mut sender).await;
                if receives {
                    assert!(poll_once(receiver.recv()).await.is_pending());
                }
            }
            wait_for(received).await;
            for other in others {
                other.await.unwrap();
            }
        };
        let serving = spawn(run(open(end), handler));
        let client = spawn(async move {
            expect_messages(&mut peer, SENDERS * MESSAGES, report).await;
            // The Close frame of the WebSocket that is dropped.
            let mut rest = Vec::new();
            peer.read_to_end(&mut rest).await.unwrap();
            assert_eq!(rest, b"\x88\x02\x03\xe9");
        });
        wait_for_both(client, serving);
    });
}

#[test]
fn the_queue_leaves_although_its_driven_future_has_ended() {
    Model::explore(SCHEDULES, || {
        let (mut peer, end) = pipe(PIPE_LEN);
        let (report, received) = watch::channel(false);
        let (give, given) = tokio::sync::oneshot::channel::<(Sender, Receiver)>();
        let driven = spawn(open(end).drive(|socket| async move {
            let (mut sender, receiver) = socket.split();
            for _ in 0..3 {
                sender.feed(PAYLOAD).await.unwrap();
            }
            assert!(give.send((sender, receiver)).is_ok());
        }));
        let keeping = spawn(async move {
            let halves = given.await.unwrap();
            wait_for(received).await;
            drop(halves);
        });
        let client = spawn(async move { expect_messages(&mut peer, 3, report).await });
        block_on(async {
            driven.await.unwrap();
            client.await.unwrap();
            keeping.await.unwrap();
        });
    });
}

#[test]
fn a_sender_that_waits_is_woken_when_another_task_has_flushed() {
    Model::explore(SCHEDULES, || {
        let (mut peer, end) = pipe(PIPE_LEN);
        let (report, received) = watch::channel(false);
        let handler = move |socket: WebSocket| async move {
            let (mut sender, mut receiver) = socket.split();
            let mut other = sender.clone();
            // Both wait until the last byte is written; the receiver flushes meanwhile.
            let sending = spawn(async move {
                other.send(PAYLOAD).await.unwrap();
                other.flush().await.unwrap();
            });
            sender.send(PAYLOAD).await.unwrap();
            sending.await.unwrap();
            wait_for(received).await;
            assert!(receiver.recv().await.unwrap().is_none());
        };
        let serving = spawn(run(open(end), handler));
        let client = spawn(async move {
            expect_messages(&mut peer, 2, report).await;
            peer.write_all(&masked(0x88, b"")).await.unwrap();
            let mut rest = Vec::new();
            peer.read_to_end(&mut rest).await.unwrap();
            assert_eq!(rest, b"\x88\x00");
        });
        wait_for_both(client, serving);
    });
}

// By two tasks, one of which may drive it, while the server waits for its end.
#[cfg(feature = "server")]
#[test]
fn the_end_of_a_websocket_that_was_passed_on_is_seen() {
    Model::explore(SCHEDULES, || {
        let (mut peer, end) = pipe(PIPE_LEN);
        let socket = open(end);
        let shared = socket.shared().clone();
        let mut driven = Box::pin(Driven::new(&shared, std::future::ready(())));
        let serving = spawn(poll_fn(move |cx| driven.as_mut().poll_ended(cx)));
        let passed_on = spawn(run(socket, |socket| async move {
            let (mut sender, receiver) = socket.split();
            let receiving = spawn(async move { drop(receiver) });
            for _ in 0..2 {
                send_somehow(&mut sender).await;
            }
            receiving.await.unwrap();
        }));
        let client = spawn(async move {
            let mut sent = Vec::new();
            peer.read_to_end(&mut sent).await.unwrap();
            assert!(sent.ends_with(b"\x88\x02\x03\xe9"));
        });
        block_on(async {
            passed_on.await.unwrap();
            client.await.unwrap();
            serving.await.unwrap();
        });
    });
}

// A sender or a task delivers the events, while the peer sends more than the observer handles.
#[test]
fn all_events_are_delivered_whatever_delivers_them() {
    const PINGS: usize = 20;
    Model::explore(SCHEDULES, || {
        let (mut peer, end) = pipe(1_000);
        let (report, done) = watch::channel(false);
        let pings = AtomicUsize::new(0);
        let mut config = WebSocketConfig::default();
        config.observer = Some(Observer::new(move |event| {
            shuttle::thread::yield_now();
            match event {
                ObserverEvent::PingRead(_) => drop(pings.fetch_add(1, Ordering::Relaxed)),
                ObserverEvent::CloseDone(_) => {
                    assert_eq!(pings.load(Ordering::Relaxed), PINGS);
                    report.send_replace(true);
                }
                _ => {}
            }
        }));
        let (io, account) = (Io::Other(Box::new(end)), Account::default());
        let negotiated = Negotiated::default();
        let socket = WebSocket::open(io, Role::Server, negotiated, None, config.into(), &[], &account);
        let (mut sender, mut receiver) = socket.split();
        let sending = spawn(async move {
            // It may be closed.
            let _ = sender.send(PAYLOAD).await;
            let _ = sender.send(PAYLOAD).await;
        });
        let receiving = spawn(async move { assert!(receiver.recv().await.unwrap().is_none()) });
        let client = spawn(async move {
            peer.write_all(&masked(0x89, b"").repeat(PINGS)).await.unwrap();
            peer.write_all(&masked(0x88, b"")).await.unwrap();
            peer.read_to_end(&mut Vec::new()).await.unwrap();
        });
        wait_for_both(client, receiving);
        block_on(async {
            sending.await.unwrap();
            wait_for(done).await;
        });
    });
}
