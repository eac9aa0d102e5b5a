//! What was sent leaves, whatever the task does next. A model checks it over a transport with scripted readiness: after every
//! poll that returns `Pending`, either all accepted bytes were written, or the transport is full and holds a waker, or a flush
//! is scheduled, which one more turn of the runtime shows.

#![allow(clippy::unwrap_used)]

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
use wireloom::{Receiver, Sender, WebSocket, WebSocketConfig};

/// A frame as a client may mask it.
fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
    [&[first, 0x80 | payload.len() as u8, 0, 0, 0, 0], payload].concat()
}

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

// The answer to the first message used to leave with the next read, since what arrived between had emptied its place.
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
    reader: Option<Waker>,
    /// Bytes that it accepts until it is full.
    room: usize,
    writer: Option<Waker>,
    written: Vec<u8>,
}

impl Scripted {
    fn arrive(&self, frames: &[u8]) {
        let mut script = self.0.lock().unwrap();
        script.input.extend(frames);
        let reader = script.reader.take();
        drop(script);
        reader.into_iter().for_each(Waker::wake);
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

    /// It has returned `Pending` to a write, and holds a waker for it.
    fn is_full_and_waited_for(&self) -> bool {
        let script = self.0.lock().unwrap();
        script.room == 0 && script.writer.as_ref().is_some_and(|waker| !waker.will_wake(Waker::noop()))
    }
}

impl AsyncRead for Scripted {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut script = self.0.lock().unwrap();
        if script.input.is_empty() {
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
        if script.room == 0 {
            script.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let len = script.room.min(data.len());
        script.room -= len;
        script.written.extend_from_slice(&data[..len]);
        Poll::Ready(Ok(len))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// One thing that a task does; then it awaits something that has nothing to do with the WebSocket.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// Sends, to the end.
    Send(usize),
    /// Polls `send` once, and drops it.
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

/// Does one thing after the other, each when it is told to.
async fn act(
    mut sender: Sender,
    mut receiver: Receiver,
    acts: Arc<Mutex<VecDeque<Act>>>,
    go: Arc<Notify>,
    accepted: Accepted,
) {
    loop {
        go.notified().await;
        let Some(act) = acts.lock().unwrap().pop_front() else { continue };
        let payload = |len: usize| vec![len as u8; len];
        match act {
            Act::Send(len) => {
                let mut sending = pin!(sender.send(Vec::leak(payload(len)) as &[u8]));
                let mut noted = false;
                poll_fn(|cx| {
                    let sent = sending.as_mut().poll(cx);
                    // The transport may not be able to take it, the queue always is.
                    if !std::mem::replace(&mut noted, true) {
                        accepted.push(0x82, &payload(len));
                    }
                    sent
                })
                .await
                .unwrap();
            }
            Act::SendOnce(len) => {
                let data = payload(len);
                let mut sending = pin!(sender.send(&data));
                let polled = poll_fn(|cx| Poll::Ready(sending.as_mut().poll(cx))).await;
                assert!(!matches!(polled, Poll::Ready(Err(_))));
                accepted.push(0x82, &payload(len));
            }
            Act::Feed(len) => {
                sender.feed(payload(len)).await.unwrap();
                accepted.push(0x82, &payload(len));
            }
            Act::TrySend(len) => {
                if sender.try_send(payload(len)).unwrap() {
                    accepted.push(0x82, &payload(len));
                }
            }
            Act::Reserve(len) => {
                sender.reserve().await.unwrap().send(payload(len)).unwrap();
                accepted.push(0x82, &payload(len));
            }
            Act::Ping => {
                let mut pinging = pin!(sender.ping(b"ping"));
                let _ = poll_fn(|cx| Poll::Ready(pinging.as_mut().poll(cx))).await;
                accepted.push(0x89, b"ping");
            }
            Act::Receive | Act::Echo => loop {
                let received = {
                    let mut receiving = pin!(receiver.recv_owned());
                    poll_fn(|cx| Poll::Ready(receiving.as_mut().poll(cx))).await
                };
                let Poll::Ready(message) = received else { break };
                let message = message.unwrap().unwrap();
                if let Act::Echo = act {
                    let data = message.as_bytes().to_vec();
                    let mut sending = pin!(sender.send(&data));
                    let _ = poll_fn(|cx| Poll::Ready(sending.as_mut().poll(cx))).await;
                    accepted.push(0x82, &data);
                }
            },
        }
    }
}

/// Runs all that can run.
async fn settle() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

fn random_act(random: &mut fastrand::Rng) -> Act {
    let len = match random.u32(0..10) {
        0 => random.usize(16_000..90_000),
        1 => random.usize(4_000..9_000),
        _ => random.usize(0..200),
    };
    match random.u32(0..12) {
        0 | 1 => Act::Send(len),
        2 | 3 => Act::SendOnce(len),
        4 => Act::Feed(len),
        5 => Act::TrySend(len),
        6 => Act::Reserve(len),
        7 => Act::Ping,
        8 => Act::Receive,
        _ => Act::Echo,
    }
}

#[derive(Clone, Copy, Debug)]
enum Runs {
    Driven,
    Task,
}

fn model(seed: u64, context: Runs) {
    let mut random = fastrand::Rng::with_seed(seed);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async move {
        let transport = Scripted::default();
        let accepted = Accepted::default();
        let (acts, go) = (Arc::default(), Arc::new(Notify::new()));
        let socket = open(transport.clone());
        let (queue, started, model) = (Arc::clone(&acts), Arc::clone(&go), accepted.clone());
        let run = move |socket: WebSocket| {
            let (sender, receiver) = socket.split();
            act(sender, receiver, queue, started, model)
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
                        [ping, masked(0x82, &vec![i as u8; random.usize(0..100)])].concat()
                    });
                    transport.arrive(&frames.collect::<Vec<u8>>());
                }
                _ => {
                    acts.lock().unwrap().push_back(random_act(&mut random));
                    go.notify_one();
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
        // Whatever waits leaves when there is room, without any further call.
        transport.make_room(usize::MAX >> 1);
        settle().await;
        assert_eq!(accepted.all().len(), transport.written().len(), "seed {seed} {context:?}");
        task.abort();
    });
}

#[test]
fn every_accepted_byte_is_written_or_waits_for_the_transport_or_has_a_flush_scheduled() {
    let first = fastrand::u64(..);
    println!("seeds from {first}");
    for seed in (0..100).map(|i| first.wrapping_add(i)) {
        for context in [Runs::Driven, Runs::Task] {
            model(seed, context);
        }
    }
}
