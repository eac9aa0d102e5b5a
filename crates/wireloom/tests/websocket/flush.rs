//! Accepted messages are written whatever the task awaits next. A model checks it over a transport with scripted readiness: after
//! each poll that returns `Pending`, either all accepted bytes were written, or the transport is full and holds a waker, or a flush
//! is scheduled, which one more turn of the runtime shows.

use std::collections::VecDeque;
use std::future::{Future, pending, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::sync::Notify;
use wireloom::wireloom_ws::Role;
use wireloom::wireloom_ws::handshake::Negotiated;
use wireloom::{Receiver, Sender, SlowPeer, WebSocket, WebSocketConfig};
use wireloom_testing::frame::masked;

fn open(transport: impl wireloom::Transport) -> WebSocket {
    WebSocket::from_transport(
        transport,
        Role::Server,
        Negotiated::default(),
        None,
        WebSocketConfig::default(),
        &[],
    )
}

#[tokio::test]
async fn an_answer_leaves_although_control_frames_and_fragments_follow_in_the_same_read() {
    let between: [&[Vec<u8>]; 3] = [
        &[masked(0x89, b"ping")],
        &[masked(0x01, b"fragments ")],
        &[masked(0x8A, b""), masked(0x01, b"a"), masked(0x89, b"b")],
    ];
    for driven in [true, false] {
        for between in between {
            let (transport, mut peer) = tokio::io::duplex(1 << 16);
            let fragment = between.iter().any(|frame| frame[0] == 0x01);
            let last = masked(if fragment { 0x80 } else { 0x82 }, b"second");
            let input = [&masked(0x82, b"first")[..], &between.concat(), &last, &masked(0x82, b"third")];
            peer.write_all(&input.concat()).await.unwrap();
            let serve = |socket: WebSocket| async move {
                let (mut sender, mut receiver) = socket.split();
                let first = receiver.recv().await.unwrap().unwrap();
                sender.send(first).await.unwrap();
                let second = receiver.recv().await.unwrap().unwrap();
                assert!(second.as_bytes().ends_with(b"second"));
                // The handler answers nothing more and awaits something else.
                pending::<()>().await;
                drop((sender, receiver));
            };
            let socket = open(transport);
            if driven {
                tokio::spawn(socket.drive(serve));
            } else {
                tokio::spawn(serve(socket));
            }
            let mut answer = [0; 7];
            let read = tokio::time::timeout(Duration::from_secs(10), peer.read_exact(&mut answer)).await;
            read.expect("the answer leaves").unwrap();
            assert_eq!(&answer, b"\x82\x05first", "driven: {driven}");
        }
    }
}

/// A transport whose readiness is scripted.
#[derive(Clone, Default)]
struct Scripted(Arc<Mutex<Script>>);

#[derive(Default)]
struct Script {
    input: VecDeque<u8>,
    /// The peer has ended its side.
    has_ended: bool,
    reader: Option<Waker>,
    /// Bytes that leave until it is full.
    room: usize,
    /// Bytes that it accepts beyond that, as TLS does.
    buffer_len: usize,
    buffered: VecDeque<u8>,
    writer: Option<Waker>,
    /// Bytes that have left.
    written: Vec<u8>,
    is_shut_down: bool,
}

impl Scripted {
    fn arrive(&self, frames: &[u8]) {
        let mut script = self.0.lock().unwrap();
        script.input.extend(frames);
        let reader = script.reader.take();
        drop(script);
        reader.into_iter().for_each(Waker::wake);
    }

    fn end(&self) {
        self.0.lock().unwrap().has_ended = true;
        self.arrive(&[]);
    }

    fn make_room(&self, room: usize) {
        let mut script = self.0.lock().unwrap();
        script.room += room;
        let writer = script.writer.take();
        drop(script);
        writer.into_iter().for_each(Waker::wake);
    }

    fn written(&self) -> Vec<u8> {
        self.0.lock().unwrap().written.clone()
    }

    /// Whether it is full, and holds the waker of a write.
    fn is_full_and_waited_for(&self) -> bool {
        let script = self.0.lock().unwrap();
        script.room == 0 && script.writer.as_ref().is_some_and(|waker| !waker.will_wake(Waker::noop()))
    }
}

impl Script {
    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let len = self.room.min(self.buffered.len());
        self.room -= len;
        self.written.extend(self.buffered.drain(..len));
        if self.buffered.is_empty() {
            return Poll::Ready(());
        }
        self.writer = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl AsyncRead for Scripted {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut script = self.0.lock().unwrap();
        if script.input.is_empty() && !script.has_ended {
            script.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let len = into.remaining().min(script.input.len());
        let input: Vec<u8> = script.input.drain(..len).collect();
        into.put_slice(&input);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Scripted {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let mut script = self.0.lock().unwrap();
        let _ = script.poll_flush(cx);
        let len = data.len().min(script.room + script.buffer_len - script.buffered.len());
        if len == 0 {
            script.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        script.buffered.extend(&data[..len]);
        let _ = script.poll_flush(cx);
        Poll::Ready(Ok(len))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.lock().unwrap().poll_flush(cx).map(Ok)
    }

    /// As TLS does, which writes an alert.
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut script = self.0.lock().unwrap();
        if script.room == 0 {
            script.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        script.is_shut_down = true;
        Poll::Ready(Ok(()))
    }
}

/// Polls `future` once, and drops it.
async fn poll_once<T>(future: impl Future<Output = T>) -> Poll<T> {
    let mut future = pin!(future);
    poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await
}

#[test]
fn an_answer_leaves_in_a_runtime_without_timers() {
    let runtimes = [
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap(),
        tokio::runtime::Builder::new_current_thread().build().unwrap(),
    ];
    for runtime in runtimes {
        let (report, reported) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            runtime.block_on(async {
                let (transport, mut peer) = tokio::io::duplex(1 << 16);
                peer.write_all(&masked(0x82, b"first").repeat(3)).await.unwrap();
                let (mut sender, mut receiver) = open(transport).split();
                let first = receiver.recv().await.unwrap().unwrap();
                sender.send(first).await.unwrap();
                // Neither half is used again.
                let mut answer = [0; 7];
                peer.read_exact(&mut answer).await.unwrap();
                report.send(answer).unwrap();
            });
        });
        let answer = reported.recv_timeout(Duration::from_secs(10)).expect("the answer leaves");
        assert_eq!(&answer, b"\x82\x05first");
    }
}

#[tokio::test]
async fn the_tasks_of_a_full_transport_end_when_the_rest_is_written() {
    let transport = Scripted::default();
    let metrics = tokio::runtime::Handle::current().metrics();
    let mut socket = open(transport.clone());
    assert!(poll_once(socket.send("first")).await.is_pending());
    settle().await;
    assert!(transport.is_full_and_waited_for());
    assert_eq!(metrics.num_alive_tasks(), 1);
    drop(socket);
    settle().await;
    assert!(metrics.num_alive_tasks() > 0);
    transport.make_room(100);
    settle().await;
    assert_eq!(transport.written(), b"\x81\x05first\x88\x02\x03\xe9");
    transport.end();
    settle().await;
    assert_eq!(metrics.num_alive_tasks(), 0);
}

// The task of an earlier flush runs after a sender has flushed, and has filled the transport again.
#[tokio::test]
async fn a_task_that_flushes_ends_when_another_has_taken_its_place() {
    let transport = Scripted::default();
    let metrics = tokio::runtime::Handle::current().metrics();
    let mut socket = open(transport.clone());
    assert!(poll_once(socket.send("first")).await.is_pending());
    settle().await;
    for _ in 0..3 {
        transport.make_room(b"\x81\x05first".len());
        assert!(poll_once(socket.flush()).await.is_ready());
        assert!(poll_once(socket.send("first")).await.is_pending());
        settle().await;
        assert!(transport.is_full_and_waited_for());
        assert_eq!(metrics.num_alive_tasks(), 1);
    }
    drop(socket);
    transport.make_room(100);
    transport.end();
    settle().await;
    assert_eq!(metrics.num_alive_tasks(), 0);
}

// Two of them: the second one is behind the rest of the first.
#[tokio::test]
async fn messages_leave_as_a_whole_however_little_is_accepted_at_first() {
    let frames = b"\x81\x05first\x81\x06second";
    for room in 0..=frames.len() {
        for buffer_len in [0, 1, 7, 100] {
            let transport = Scripted::default();
            transport.0.lock().unwrap().buffer_len = buffer_len;
            transport.make_room(room);
            let mut socket = open(transport.clone());
            for message in ["first", "second"] {
                let _ = poll_once(socket.send(message)).await;
            }
            assert_eq!(transport.written(), frames[..room]);
            settle().await;
            assert!(room == frames.len() || transport.is_full_and_waited_for(), "{room} {buffer_len}");
            transport.make_room(frames.len() - room);
            settle().await;
            assert_eq!(transport.written(), frames, "{room} {buffer_len}");
            assert_eq!(socket.traffic().bytes_sent, frames.len() as u64);
        }
    }
}

// As TLS accepts, of which a part has left.
#[tokio::test]
async fn bytes_that_the_transport_has_buffered_leave_whatever_the_task_awaits_next() {
    const LEN: usize = 32 << 10;
    for reserves in [false, true] {
        let transport = Scripted::default();
        transport.0.lock().unwrap().buffer_len = 64 << 10;
        transport.make_room(LEN / 2);
        let (mut sender, _receiver) = open(transport.clone()).split();
        if reserves {
            sender.reserve().await.unwrap().send(&[7; LEN]).unwrap();
        } else {
            sender.feed(&[7; LEN]).await.unwrap();
        }
        assert_eq!(transport.written().len(), LEN / 2);
        settle().await;
        assert!(transport.is_full_and_waited_for(), "{reserves}");
        transport.make_room(LEN);
        settle().await;
        assert_eq!(transport.written().len(), 4 + LEN, "{reserves}");
    }
}

// The peer may close its side first.
#[tokio::test]
async fn a_transport_that_lingers_is_shut_down_once_it_has_room() {
    for (peer_ends_first, driven) in [(false, false), (false, true), (true, false), (true, true)] {
        let transport = Scripted::default();
        transport.make_room(b"\x88\x02\x03\xe9".len());
        let socket = open(transport.clone());
        if driven {
            socket.drive(async |socket| drop(socket)).await;
        } else {
            drop(socket);
        }
        if peer_ends_first {
            transport.end();
        }
        settle().await;
        assert_eq!(transport.written(), b"\x88\x02\x03\xe9");
        assert!(!transport.0.lock().unwrap().is_shut_down);
        transport.make_room(1);
        settle().await;
        assert!(transport.0.lock().unwrap().is_shut_down, "{peer_ends_first} {driven}");
        transport.end();
        settle().await;
        // Nothing has it any more.
        assert_eq!(Arc::strong_count(&transport.0), 1, "{peer_ends_first} {driven}");
    }
}

// The queue was written just before the closing handshake had to end.
#[tokio::test(start_paused = true)]
async fn a_transport_lingers_for_a_whole_close_timeout() {
    let close_timeout = WebSocketConfig::default().core.close_timeout;
    let moment = Duration::from_millis(10);
    let transport = Scripted::default();
    drop(open(transport.clone()));
    tokio::time::sleep(close_timeout - moment).await;
    transport.make_room(100);
    tokio::time::sleep(close_timeout - moment).await;
    assert_eq!(transport.written(), b"\x88\x02\x03\xe9");
    assert_eq!(Arc::strong_count(&transport.0), 2);
    tokio::time::sleep(2 * moment).await;
    assert_eq!(Arc::strong_count(&transport.0), 1);
}

// It may have unread input, now or later.
#[tokio::test]
async fn a_client_that_is_dropped_lingers_until_its_peer_has_closed() {
    let transport = Scripted::default();
    transport.make_room(100);
    let client = WebSocket::from_transport(
        transport.clone(),
        Role::Client,
        Default::default(),
        None,
        Default::default(),
        &[],
    );
    drop(client);
    assert_eq!(transport.written().len(), 8);
    settle().await;
    assert!(transport.0.lock().unwrap().is_shut_down);
    assert_eq!(Arc::strong_count(&transport.0), 2);
    transport.end();
    settle().await;
    assert_eq!(Arc::strong_count(&transport.0), 1);
    assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), 0);
}

// The task that flushed has ended with its runtime. (So would a timer; nothing here has a deadline.)
#[test]
fn messages_leave_after_the_runtime_of_earlier_ones_has_ended() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let transport = Scripted::default();
    let config = WebSocketConfig {
        slow_peer: SlowPeer::Wait { stall_timeout: Duration::MAX },
        ..WebSocketConfig::default()
    };
    let mut socket = runtime().block_on(async {
        let negotiated = Negotiated::default();
        let mut socket =
            WebSocket::from_transport(transport.clone(), Role::Server, negotiated, None, config, &[]);
        assert!(poll_once(socket.send("first")).await.is_pending());
        settle().await;
        socket
    });
    runtime().block_on(async {
        assert!(poll_once(socket.send("second")).await.is_pending());
        transport.make_room(100);
        settle().await;
        assert_eq!(transport.written(), b"\x81\x05first\x81\x06second");
    });
}

// A future that has ended is not polled again, although its owner may keep it.
#[tokio::test]
async fn messages_leave_although_the_driven_future_has_ended_and_is_kept() {
    let transport = Scripted::default();
    let (give, given) = tokio::sync::oneshot::channel();
    let mut driven = Box::pin(open(transport.clone()).drive(|socket| async move {
        let (mut sender, receiver) = socket.split();
        sender.feed("first").await.unwrap();
        assert!(give.send((sender, receiver)).is_ok());
    }));
    (&mut driven).await;
    let halves = given.await.unwrap();
    transport.make_room(100);
    settle().await;
    assert_eq!(transport.written(), b"\x81\x05first");
    drop((driven, halves));
}

/// An operation of a task, which then awaits something unrelated to the WebSocket.
#[derive(Clone, Copy, Debug)]
enum Operation {
    /// Sends, and waits until the message is written.
    Send(usize),
    /// Polls `send` once, and drops the future.
    SendOnce(usize),
    Feed(usize),
    TrySend(usize),
    Reserve(usize),
    Ping,
    /// Receives what has arrived, without answering.
    Receive,
    /// Receives what has arrived, and answers each message.
    Echo,
}

/// The bytes that were accepted, in order.
#[derive(Clone, Default)]
struct Accepted(Arc<Mutex<Vec<u8>>>);

impl Accepted {
    fn push(&self, first: u8, payload: &[u8]) {
        let mut accepted = self.0.lock().unwrap();
        accepted.push(first);
        match payload.len() {
            len @ 0..126 => accepted.push(len as u8),
            len @ 126..0x1_0000 => {
                accepted.push(126);
                accepted.extend((len as u16).to_be_bytes());
            }
            len => {
                accepted.push(127);
                accepted.extend((len as u64).to_be_bytes());
            }
        }
        accepted.extend_from_slice(payload);
    }

    fn all(&self) -> Vec<u8> {
        self.0.lock().unwrap().clone()
    }
}

/// Performs one queued operation for each notification.
async fn perform(
    mut sender: Sender,
    mut receiver: Receiver,
    operations: Arc<Mutex<VecDeque<Operation>>>,
    next: Arc<Notify>,
    accepted: Accepted,
) {
    loop {
        next.notified().await;
        let Some(operation) = operations.lock().unwrap().pop_front() else { continue };
        let payload = |len: usize| vec![len as u8; len];
        match operation {
            Operation::Send(len) => {
                let data = payload(len);
                let mut sending = pin!(sender.send(&data));
                let mut noted = false;
                poll_fn(|cx| {
                    let sent = sending.as_mut().poll(cx);
                    // The transport may be full; the queue is not.
                    if !std::mem::replace(&mut noted, true) {
                        accepted.push(0x82, &payload(len));
                    }
                    sent
                })
                .await
                .unwrap();
            }
            Operation::SendOnce(len) => {
                let data = payload(len);
                let mut sending = pin!(sender.send(&data));
                let polled = poll_fn(|cx| Poll::Ready(sending.as_mut().poll(cx))).await;
                assert!(!matches!(polled, Poll::Ready(Err(_))));
                accepted.push(0x82, &payload(len));
            }
            Operation::Feed(len) => {
                // A long one is written from where it is.
                sender.feed(&payload(len)).await.unwrap();
                accepted.push(0x82, &payload(len));
            }
            Operation::TrySend(len) => {
                if sender.try_send(payload(len)).unwrap() {
                    accepted.push(0x82, &payload(len));
                }
            }
            Operation::Reserve(len) => {
                sender.reserve().await.unwrap().send(payload(len).as_slice()).unwrap();
                accepted.push(0x82, &payload(len));
            }
            Operation::Ping => {
                let mut pinging = pin!(sender.ping(b"ping"));
                let _ = poll_fn(|cx| Poll::Ready(pinging.as_mut().poll(cx))).await;
                accepted.push(0x89, b"ping");
            }
            Operation::Receive | Operation::Echo => loop {
                let received = {
                    let mut receiving = pin!(receiver.recv_owned());
                    poll_fn(|cx| Poll::Ready(receiving.as_mut().poll(cx))).await
                };
                let Poll::Ready(message) = received else { break };
                let message = message.unwrap().unwrap();
                if let Operation::Echo = operation {
                    let data = message.as_bytes().to_vec();
                    let mut sending = pin!(sender.send(&data));
                    let _ = poll_fn(|cx| Poll::Ready(sending.as_mut().poll(cx))).await;
                    accepted.push(0x82, &data);
                }
            },
        }
    }
}

/// Runs all tasks that can make progress.
async fn settle() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

fn random_operation(random: &mut fastrand::Rng) -> Operation {
    let len = match random.u32(0..10) {
        0 => random.usize(16_000..90_000),
        1 => random.usize(4_000..9_000),
        _ => random.usize(0..200),
    };
    match random.u32(0..12) {
        0 | 1 => Operation::Send(len),
        2 | 3 => Operation::SendOnce(len),
        4 => Operation::Feed(len),
        5 => Operation::TrySend(len),
        6 => Operation::Reserve(len),
        7 => Operation::Ping,
        8 => Operation::Receive,
        _ => Operation::Echo,
    }
}

/// The context of the task.
#[derive(Clone, Copy, Debug)]
enum Runs {
    Driven,
    Task,
}

fn model(seed: u64, context: Runs, buffer_len: usize) {
    let mut random = fastrand::Rng::with_seed(seed);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async move {
        let transport = Scripted::default();
        transport.0.lock().unwrap().buffer_len = buffer_len;
        let accepted = Accepted::default();
        let (operations, next) = (Arc::default(), Arc::new(Notify::new()));
        let socket = open(transport.clone());
        let (queue, notify, model) = (Arc::clone(&operations), Arc::clone(&next), accepted.clone());
        let run = move |socket: WebSocket| {
            let (sender, receiver) = socket.split();
            perform(sender, receiver, queue, notify, model)
        };
        let task = match context {
            Runs::Driven => tokio::spawn(socket.drive(run)),
            Runs::Task => tokio::spawn(run(socket)),
        };
        for step in 0..60 {
            match random.u32(0..5) {
                0 => transport.make_room(random.usize(1..100_000)),
                1 => {
                    let pinged = random.bool();
                    let frames = (0..random.usize(1..6)).flat_map(|i| {
                        let ping = if pinged && i == 2 { masked(0x8A, b"pong") } else { Vec::new() };
                        [ping, masked(0x82, vec![i as u8; random.usize(0..100)])].concat()
                    });
                    transport.arrive(&frames.collect::<Vec<u8>>());
                }
                _ => {
                    operations.lock().unwrap().push_back(random_operation(&mut random));
                    next.notify_one();
                }
            }
            settle().await;
            assert!(!task.is_finished(), "seed {seed} step {step}");
            let (accepted, written) = (accepted.all(), transport.written());
            assert!(accepted.starts_with(&written), "seed {seed} step {step} {context:?}: order");
            assert!(
                accepted.len() == written.len() || transport.is_full_and_waited_for(),
                "seed {seed} step {step} {context:?}: {} of {} bytes were written",
                written.len(),
                accepted.len()
            );
        }
        // The rest leaves when the transport has room, without any further call.
        transport.make_room(usize::MAX >> 1);
        settle().await;
        assert_eq!(accepted.all().len(), transport.written().len(), "seed {seed} {context:?}");
        task.abort();
    });
}

#[test]
fn every_accepted_byte_is_written_or_waits_for_the_transport_or_has_a_flush_scheduled() {
    wireloom_testing::rounds(100, |rng| {
        for context in [Runs::Driven, Runs::Task] {
            for buffer_len in [0, 64 << 10] {
                model(rng.seed(), context, buffer_len);
            }
        }
    });
}
