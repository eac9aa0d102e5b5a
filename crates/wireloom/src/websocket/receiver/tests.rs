use std::pin::pin;
use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::task::Waker;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use wireloom_testing::frame::masked;
use wireloom_ws::deflate::{DeflateConfig, DeflateParams};
use wireloom_ws::handshake::Negotiated;
use wireloom_ws::{CloseCode, Role};

use super::*;
use crate::event_queue::Observed as _;
use crate::memory::{Account, Evict as _, Memory};
use crate::registry::{Phase, Registration, Registry};
use crate::sync::Model;
use crate::transport::Transport;
use crate::websocket::{Observer, Sender, WebSocket, WebSocketConfig};

fn connect(transport: impl Transport, role: Role, negotiated: Negotiated) -> WebSocket {
    connect_in(&Account::default(), transport, role, negotiated)
}

/// As [`connect`], with an account.
fn connect_in(account: &Account, transport: impl Transport, role: Role, negotiated: Negotiated) -> WebSocket {
    let (deflate, config) = (DeflateConfig::default(), WebSocketConfig::default().into());
    WebSocket::open(Io::of(transport), role, negotiated, Some(&deflate), config, &[], account)
}

/// Both halves of a server's WebSocket whose memory is counted.
fn open(memory: &Arc<Memory>, transport: impl Transport) -> (Sender, Receiver) {
    connect_in(&memory.account(), transport, Role::Server, Negotiated::default()).split()
}

/// The same over a pipe of this length, and its other end.
fn serve(memory: &Arc<Memory>, len: usize) -> (DuplexStream, Sender, Receiver) {
    serve_in(&memory.account(), len)
}

fn serve_in(account: &Account, len: usize) -> (DuplexStream, Sender, Receiver) {
    let (peer, transport) = duplex(len);
    let (sender, receiver) = connect_in(account, transport, Role::Server, Negotiated::default()).split();
    (peer, sender, receiver)
}

fn is_pending<F: Future>(future: F) -> bool {
    pin!(future).poll(&mut Context::from_waker(Waker::noop())).is_pending()
}

/// A message of half a million bytes, of which all but the last 100,000 have arrived. Returns the rest of its frame.
async fn receive_most(peer: &mut DuplexStream, receiver: &mut Receiver) -> Vec<u8> {
    let mut frame = masked(0x82, vec![7; 500_000]);
    let rest = frame.split_off(frame.len() - 100_000);
    peer.write_all(&frame).await.unwrap();
    assert!(is_pending(receiver.recv()));
    rest
}

#[tokio::test]
async fn an_eviction_frees_a_message_of_which_a_part_has_arrived() {
    let memory = Memory::new(1 << 30);
    let (mut peer, _sender, mut receiver) = serve(&memory, 1 << 20);
    receive_most(&mut peer, &mut receiver).await;
    assert!(memory.stats().assemblies >= 400_000);
    receiver.shared.evict();
    assert_eq!(memory.stats().assemblies, 0);
    let parked = receiver.shared.lock().slot.replace(ReceiverSlot::Taken).unwrap();
    assert_eq!(parked.reader.inbound().memory_len(), 0);
}

#[tokio::test]
async fn the_end_of_a_connection_frees_a_message_of_which_a_part_has_arrived() {
    let memory = Memory::new(1 << 30);
    let (mut peer, _sender, mut receiver) = serve(&memory, 1 << 20);
    receive_most(&mut peer, &mut receiver).await;
    drop(peer);
    assert_eq!(receiver.recv().await.unwrap_err(), WebSocketError::ConnectionLost);
    assert_eq!(memory.stats().assemblies, 0);
    assert!(receiver.active.is_none());
}

// Compression of a long message locks the state for a while.
#[tokio::test]
async fn neither_an_eviction_nor_a_look_waits_for_a_websocket_in_use() {
    let (_peer, sender, receiver) = serve(&Memory::new(1 << 30), 1 << 20);
    let state = receiver.shared.lock();
    assert!(!receiver.shared.evict());
    assert!(sender.try_queued_len().is_none() && sender.try_traffic().is_none());
    drop(state);
    assert_eq!((sender.try_queued_len(), sender.try_traffic()), (Some(0), Some(sender.traffic())));
    assert!(receiver.shared.evict() && receiver.shared.lock().link.is_closed());
}

// There is no memory for a copy of it.
#[tokio::test]
async fn a_message_that_cannot_be_compressed_is_sent_as_it_is() {
    const LEN: usize = 200_000;
    let (mut peer, transport) = duplex(1 << 20);
    let mut negotiated = Negotiated::default();
    negotiated.deflate = Some(DeflateParams::default());
    let mut socket = connect_in(&Memory::new(LEN).account(), transport, Role::Server, negotiated);
    socket.send(&[7; LEN]).await.unwrap();
    let mut frame = [0; 10 + LEN];
    peer.read_exact(&mut frame).await.unwrap();
    assert_eq!((frame[0], frame[9 + LEN], socket.is_open()), (0x82, 7, true));
}

/// A WebSocket that is registered with a server, and its peer.
fn register(registry: &Arc<Registry>) -> (DuplexStream, WebSocket, Registration) {
    let (peer, transport) = duplex(1 << 10);
    let registration = registry.admit([192, 0, 2, 1].into(), None).unwrap();
    let socket = connect_in(registration.account(), transport, Role::Server, Negotiated::default());
    registration.open(socket.shared());
    (peer, socket, registration)
}

// The server looks for idle connections at any time.
#[test]
fn a_sweep_counts_a_websocket_that_opens_in_its_account() {
    Model::explore(1_000, || {
        let registry = Registry::new();
        let registration = registry.admit([192, 0, 2, 1].into(), None).unwrap();
        let io = Io::Other(Box::new(tokio::io::empty()));
        // It holds a read buffer.
        let arrived = &masked(0x82, b"message")[..2];
        let (config, account) = (WebSocketConfig::default().into(), registration.account());
        let negotiated = Negotiated::default();
        let socket = WebSocket::open(io, Role::Server, negotiated, None, config, arrived, account);
        let sweeping = shuttle::thread::spawn({
            let registry = registry.clone();
            move || registry.sweep()
        });
        registration.open(socket.shared());
        sweeping.join().unwrap();
        // Without a task that discards.
        drop(socket.into_inner());
        assert_eq!(registry.memory.stats().read_buffers, 0);
    });
}

/// Locks the state on another thread, until the function that is returned is called. That returns false if it was called too late.
fn lock_elsewhere(socket: &WebSocket) -> impl FnOnce() -> bool + use<> {
    let shared = socket.shared().clone();
    let (locked, is_locked) = std::sync::mpsc::channel();
    let (release, is_released) = std::sync::mpsc::channel();
    let using = std::thread::spawn(move || {
        let _state = shared.lock();
        locked.send(()).unwrap();
        is_released.recv_timeout(Duration::from_secs(20)).is_ok()
    });
    is_locked.recv().unwrap();
    move || {
        let _ = release.send(());
        using.join().unwrap()
    }
}

// One of them compresses a long message. After an abort it ends with its registration.
#[tokio::test(start_paused = true)]
async fn neither_a_shutdown_nor_an_abort_waits_for_a_websocket_in_use() {
    for phase in [Phase::Draining, Phase::Aborted] {
        let registry = Registry::new();
        let [(mut peer_of_busy, busy, first), (mut peer, _socket, _second)] =
            [register(&registry), register(&registry)];
        let release = lock_elsewhere(&busy);
        registry.enter(phase);
        let mut opcode = [0];
        peer.read_exact(&mut opcode).await.unwrap();
        assert_eq!(opcode, [0x88]);
        let _first = Some(first).filter(|_| phase == Phase::Draining);
        assert!(release(), "{phase:?} has waited");
        peer_of_busy.read_exact(&mut opcode).await.unwrap();
        assert_eq!(opcode, [0x88]);
    }
}

// The WebSocket was passed on, and compresses a long message.
#[tokio::test(start_paused = true)]
async fn the_end_of_a_server_does_not_wait_for_a_websocket_in_use() {
    let (mut peer, socket, registration) = register(&Registry::new());
    let release = lock_elsewhere(&socket);
    drop(registration);
    assert!(release(), "the end has waited");
    let mut sent = Vec::new();
    peer.read_to_end(&mut sent).await.unwrap();
    assert_eq!(sent, b"\x88\x02\x03\xe9");
}

// The closing handshake has begun: when it would have begun by itself does not matter any more.
#[tokio::test(start_paused = true)]
async fn a_dropped_websocket_lingers_until_its_close_timeout() {
    let (mut peer, mut sender, receiver) = serve(&Memory::new(1 << 30), 1 << 10);
    sender.close_after((Duration::from_secs(1), CloseCode::NORMAL)).unwrap();
    drop((sender, receiver));
    tokio::time::sleep(Duration::from_secs(2)).await;
    peer.write_all(b"not read").await.expect("the transport lingers");
    tokio::time::sleep(wireloom_ws::Config::default().close_timeout).await;
    assert!(peer.write_all(b"not read").await.is_err());
}

// Its peer has used up its share of the processor.
#[tokio::test]
async fn what_arrives_while_the_transport_lingers_is_paid_for() {
    const LEN: usize = 1 << 10;
    let memory = scheduled().await;
    let account = memory.account();
    let (mut peer, sender, receiver) = serve_in(&account, LEN);
    let shared = receiver.shared.clone();
    drop((sender, receiver));
    peer.write_all(&[0; LEN]).await.unwrap();
    account.charge(4 << 20);
    let cx = &mut Context::from_waker(Waker::noop());
    assert!(shared.poll_ended(shared.next_waiter(), cx).is_pending());
    assert!(is_pending(peer.write_all(&[0])), "it was read");
}

// RFC 6455 §5.5.1: it should not have sent it.
#[tokio::test(start_paused = true)]
async fn bytes_behind_a_close_frame_are_discarded_for_a_time() {
    let (mut peer, sender, mut receiver) = serve(&Memory::new(1 << 30), 1 << 10);
    peer.write_all(b"\x88\x80\0\0\0\0behind").await.unwrap();
    assert!(receiver.recv().await.unwrap().is_none());
    drop((sender, receiver));
    for _ in 0..9 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        peer.write_all(&[0; 1 << 10]).await.expect("the transport lingers");
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(peer.write_all(&[0; 1 << 10]).await.is_err());
}

// The peer no longer reads, and still sends.
#[tokio::test]
async fn a_message_that_arrives_after_a_failed_write_is_counted() {
    let memory = Memory::new(1 << 30);
    let (mut peer, reader) = duplex(1 << 20);
    let (_, writer) = duplex(1);
    let (mut sender, mut receiver) = open(&memory, tokio::io::join(reader, writer));
    assert_eq!(sender.send("hello").await, Err(WebSocketError::ConnectionLost));
    let rest = receive_most(&mut peer, &mut receiver).await;
    assert!(memory.stats().assemblies >= 400_000);
    peer.write_all(&rest).await.unwrap();
    assert_eq!(receiver.recv().await.unwrap().unwrap().as_bytes(), [7; 500_000]);
}

// The last read completes it: the receiver does not wait.
#[tokio::test]
async fn a_message_that_arrives_at_once_is_counted() {
    const LEN: usize = 2 << 20;
    for max in [1 << 30, LEN / 4] {
        let memory = Memory::new(max);
        let (mut peer, _sender, mut receiver) = serve(&memory, 2 * LEN);
        peer.write_all(&masked(0x82, vec![7; LEN])).await.unwrap();
        if max > LEN {
            assert_eq!(receiver.recv().await.unwrap().unwrap().as_bytes().len(), LEN);
            assert!(memory.stats().assemblies >= LEN);
        } else {
            assert_eq!(receiver.recv().await.unwrap_err(), WebSocketError::Overloaded);
            assert_eq!(memory.stats().assemblies, 0);
        }
    }
}

// A copy to a larger place would hold both. The message is refused before.
#[tokio::test]
async fn a_long_message_is_counted_before_it_grows() {
    // Its place doubles from about 2 to about 4 MiB, whichever read buffer it begins in: that takes 6 MiB.
    const MAX: usize = 5 << 20;
    for (len, received_max) in [(2 << 20, None), (8 << 20, Some((2 << 20) + (512 << 10)))] {
        let memory = Memory::new(MAX);
        let (mut peer, _sender, mut receiver) = serve(&memory, 16 << 20);
        peer.write_all(&masked(0x82, vec![7; len])).await.unwrap();
        let received = receiver.recv().await.map(|message| message.unwrap().as_bytes().len());
        match received_max {
            None => assert_eq!(received, Ok(len)),
            Some(max) => {
                assert_eq!(received, Err(WebSocketError::Overloaded));
                let received = receiver.traffic().bytes_received as usize;
                assert!((1 << 20..max).contains(&received), "{received}");
                assert_eq!(memory.stats().assemblies, 0);
            }
        }
    }
}

// The second overwrites the first.
#[tokio::test]
async fn a_message_that_was_delivered_does_not_grow() {
    const LEN: usize = 4 << 20;
    let memory = Memory::new(LEN * 3 / 2);
    let (mut peer, _sender, mut receiver) = serve(&memory, 16 << 20);
    for _ in 0..3 {
        peer.write_all(&masked(0x82, vec![7; LEN])).await.unwrap();
    }
    for _ in 0..3 {
        assert_eq!(receiver.recv().await.unwrap().unwrap().as_bytes().len(), LEN);
    }
}

// The message takes several steps, and the application does not touch the socket afterwards.
#[tokio::test]
async fn a_ping_before_a_message_that_is_inflated_in_steps_is_answered() {
    let (mut client, _sender, mut receiver) = open_compressed(&Memory::new(64 << 20));
    client.ping(b"x").await.unwrap();
    client.send(vec![7; 2 << 20]).await.unwrap();
    assert!(receiver.recv().await.unwrap().is_some());
    let pong = async {
        while client.latency().is_none() {
            let _ = tokio::time::timeout(Duration::from_millis(1), client.recv()).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), pong).await.unwrap();
}

#[tokio::test]
async fn an_inflated_message_is_counted_before_it_grows() {
    for (len, fits) in [(3 << 20, true), (11 << 19, false)] {
        let memory = Memory::new(6 << 20);
        let (mut client, _sender, mut receiver) = open_compressed(&memory);
        client.send(vec![7; len]).await.unwrap();
        let received = receiver.recv().await.map(|message| message.unwrap().as_bytes().len());
        assert_eq!(received, if fits { Ok(len) } else { Err(WebSocketError::Overloaded) });
        // Nothing was allocated that the limit does not allow.
        assert_eq!(memory.stats().inflated > 0, fits);
    }
}

/// A client, and both halves of its server, whose memory is counted.
fn open_compressed(memory: &Arc<Memory>) -> (WebSocket, Sender, Receiver) {
    let (client, transport) = duplex(4 << 20);
    let negotiated = Negotiated { deflate: Some(DeflateParams::default()), ..Negotiated::default() };
    let client = connect(client, Role::Client, negotiated.clone());
    let (sender, receiver) = connect_in(&memory.account(), transport, Role::Server, negotiated).split();
    (client, sender, receiver)
}

// The connection has used up its turn, and waits before it reads on.
#[tokio::test]
async fn a_part_of_a_message_that_was_inflated_is_counted_at_once() {
    let memory = scheduled().await;
    let (mut client, _sender, mut receiver) = open_compressed(&memory);
    // A sixteenth of it does not compress.
    let random = |at: u32| if at.is_multiple_of(16) { (at.wrapping_mul(0x9E37_79B1) >> 24) as u8 } else { 0 };
    let fragment: Vec<u8> = (0..4 << 20).map(random).collect();
    client.halves().0.send_chunk(fragment, false).await.unwrap();
    inflate_a_part(&memory, &mut receiver).await;
    let parked = receiver.shared.lock().slot.replace(ReceiverSlot::Taken).unwrap();
    assert!(parked.budget.is_waiting());
    assert!(memory.stats().inflated >= parked.reader.inbound().memory_len());
}

// No poll of a handler ends.
#[tokio::test]
async fn the_read_buffer_of_a_receiver_in_another_task_is_counted() {
    let memory = Memory::new(1 << 30);
    let (mut peer, _sender, mut receiver) = serve(&memory, 1 << 20);
    peer.write_all(&masked(0x81, b"hello")).await.unwrap();
    assert_eq!(receiver.recv().await.unwrap().unwrap().as_text(), Some("hello"));
    receiver.shared.release_if_idle();
    assert_eq!(memory.stats().read_buffers, buffer::LEN_SMALL);
    assert!(is_pending(receiver.recv()));
    assert_eq!(memory.stats().read_buffers, 0);
    receiver.shared.release_if_idle();
    assert_eq!(memory.stats().read_buffers, 0);
}

// The application keeps a sender, and does not receive any more.
#[tokio::test]
async fn the_read_buffer_of_a_connection_that_was_closed_is_not_counted() {
    let memory = Memory::new(1 << 30);
    let (mut peer, _sender, mut receiver) = serve(&memory, 1 << 20);
    peer.write_all(&masked(0x81, b"hello")).await.unwrap();
    assert!(receiver.recv().await.unwrap().is_some());
    receiver.shared.release_if_idle();
    assert_eq!(memory.stats().read_buffers, buffer::LEN_SMALL);
    receiver.shared.lock().disconnect_slow();
    drop(receiver);
    assert_eq!(memory.stats().read_buffers, 0);
}

// Its connection has used up its turn.
#[tokio::test]
async fn the_read_buffer_of_a_receiver_that_waits_with_input_is_counted_as_it_is() {
    let memory = scheduled().await;
    let (mut peer, _sender, mut receiver) = serve(&memory, 1 << 20);
    peer.write_all(&masked(0x81, b"hello").repeat(3)).await.unwrap();
    assert!(receiver.recv().await.unwrap().is_some());
    receiver.active.as_mut().unwrap().budget.spend(2 << 20);
    receiver.active.as_mut().unwrap().messages_left = 0;
    assert!(is_pending(receiver.recv()));
    let parked = receiver.shared.lock().slot.read_buffer_len();
    assert_eq!(memory.stats().read_buffers, parked >> 10 << 10);
    assert!(parked > buffer::LEN_SMALL);
    for _ in 0..2 {
        assert!(receiver.recv().await.unwrap().is_some());
    }
    assert!(is_pending(receiver.recv()));
    assert_eq!(memory.stats().read_buffers, 0);
}

// They fit into one read, and take milliseconds.
#[tokio::test]
async fn pings_are_paid_for() {
    let memory = scheduled().await;
    let (mut peer, _sender, mut receiver) = serve(&memory, 1 << 20);
    peer.write_all(&masked(0x89, b"").repeat(20_000)).await.unwrap();
    assert!(is_pending(receiver.recv()));
    let parked = receiver.shared.lock().slot.replace(ReceiverSlot::Taken).unwrap();
    assert!(parked.budget.is_waiting());
}

// A connection may produce more than this at once, if it is not compressed.
#[tokio::test]
async fn the_compression_of_answers_is_paid_for() {
    let memory = scheduled().await;
    let (_client, mut sender, mut receiver) = open_compressed(&memory);
    assert!(is_pending(receiver.recv()));
    sender.send(vec![7; 64 << 10]).await.unwrap();
    assert!(is_pending(receiver.recv()));
    let parked = receiver.shared.lock().slot.replace(ReceiverSlot::Taken).unwrap();
    assert!(parked.budget.is_waiting());
}

// The next message may refer to it.
#[tokio::test]
async fn the_window_of_compressed_messages_is_counted_until_the_end() {
    let memory = Memory::new(1 << 30);
    let (mut client, mut sender, receiver) = open_compressed(&memory);
    sender.send(wireloom_testing::Rng::with_seed(7).bytes(64 << 10)).await.unwrap();
    assert!(client.recv().await.unwrap().is_some());
    assert!(memory.stats().inflated >= 32 << 10, "{:?}", memory.stats());
    receiver.shared.evict();
    assert_eq!(memory.stats().inflated, 0);
}

#[tokio::test]
async fn a_queue_that_is_not_written_any_more_is_not_counted() {
    let memory = Memory::new(1 << 30);
    let (peer, mut sender, _receiver) = serve(&memory, 1 << 10);
    assert!(is_pending(sender.send(&[7; 100_000])));
    assert!(memory.stats().send_queues >= 98_000);
    drop(peer);
    assert_eq!(sender.flush().await, Err(WebSocketError::ConnectionLost));
    assert_eq!((sender.queued_len(), memory.stats().send_queues), (0, 0));
}

// The buffer, and a payload that is sent by reference, are freed when their last byte is written.
#[tokio::test]
async fn a_queue_of_which_a_part_is_written_is_counted_as_it_is() {
    const LEN: usize = 1 << 20;
    for is_shared in [false, true] {
        let memory = Memory::new(1 << 30);
        let (mut peer, mut sender, _receiver) = serve(&memory, 1 << 10);
        let payload = vec![7; LEN];
        if is_shared {
            assert!(is_pending(sender.send(payload)));
        } else {
            assert!(is_pending(sender.send(&payload)));
        }
        while sender.queued_len() > LEN / 5 * 3 {
            peer.read_exact(&mut [0; 1 << 10]).await.unwrap();
            assert!(is_pending(sender.flush()));
        }
        assert!(memory.stats().send_queues >= LEN - (4 << 10), "{is_shared}: {:?}", memory.stats());
    }
}

// The handler keeps the WebSocket.
#[tokio::test(start_paused = true)]
async fn the_queue_of_a_slow_peer_is_freed_when_it_is_disconnected() {
    let memory = Memory::new(1 << 30);
    let (mut peer, mut sender, _receiver) = serve(&memory, 1 << 10);
    assert_eq!(sender.send(&[7; 100_000]).await, Err(WebSocketError::SlowPeer));
    assert_eq!((sender.queued_len(), memory.stats().send_queues), (0, 0));
    let mut received = Vec::new();
    peer.read_to_end(&mut received).await.unwrap();
    assert_eq!(received.len(), 1 << 10);
}

// Streams of one connection wait together: a large buffer for each would be allocated, cleared and freed for each.
#[tokio::test]
async fn a_receiver_that_waits_for_its_turn_holds_no_empty_read_buffer() {
    let memory = scheduled().await;
    let account = memory.account();
    let (mut peer, _sender, mut receiver) = serve_in(&account, 1 << 20);
    peer.write_all(&masked(0x81, b"hello")).await.unwrap();
    assert!(receiver.recv().await.unwrap().is_some());
    // The peer has used up its share.
    account.charge(4 << 20);
    assert!(is_pending(receiver.recv()));
    assert_eq!(memory.stats().read_buffers, 0);
    // One that has more to decode keeps it.
    let (more, last) = (masked(0x81, b"more"), masked(0x81, b"last"));
    peer.write_all(&[&more[..], &last[..3]].concat()).await.unwrap();
    assert!(receiver.recv().await.unwrap().is_some());
    account.charge(4 << 20);
    assert!(is_pending(receiver.recv()));
    assert!(memory.stats().read_buffers > 0);
    peer.write_all(&last[3..]).await.unwrap();
    assert_eq!(receiver.recv().await.unwrap().unwrap().as_text(), Some("last"));
}

// An observer may be slow for long.
#[tokio::test]
async fn a_receiver_that_waits_for_its_observer_holds_one_waker_and_no_codec() {
    for has_input in [false, true] {
        let (client, transport) = duplex(1 << 10);
        let negotiated = Negotiated { deflate: Some(DeflateParams::default()), ..Negotiated::default() };
        let mut client = connect(client, Role::Client, negotiated.clone());
        let mut config = WebSocketConfig::default();
        config.observer = Some(Observer::new(|_| {}));
        let io = Io::of(transport);
        let account = Account::default();
        let server = WebSocket::open(io, Role::Server, negotiated, None, config.into(), &[], &account);
        let (_sender, mut receiver) = server.split();
        client.feed(&[1; 1000]).await.unwrap();
        if has_input {
            client.feed(&[2; 1000]).await.unwrap();
        }
        client.flush().await.unwrap();
        assert_eq!(receiver.recv().await.unwrap().unwrap().as_bytes(), [1; 1000]);
        let shared = receiver.shared.clone();
        {
            let mut state = shared.lock_plain();
            let payload = vec![0; crate::event_queue::QUEUED_LEN_MAX];
            state.session.queue_notification(|| ObserverEvent::PingRead(payload));
            assert!(state.session.notifications().unwrap().events.begin_delivery());
        }
        let tasks: [Arc<Task>; 2] = Default::default();
        for task in &tasks {
            let waker = Waker::from(task.clone());
            assert!(pin!(receiver.recv()).poll(&mut Context::from_waker(&waker)).is_pending());
        }
        assert_eq!(tasks.each_ref().map(Arc::strong_count), [1, 2]);
        assert_eq!(shared.lock_plain().slot.read_buffer_len() > 0, has_input);
        with_codecs(|pool| assert_eq!(pool.inflaters(), 1));
        assert!(shared.next_delivery().is_some() && shared.next_delivery().is_none());
        client.feed(&[3; 1000]).await.unwrap();
        client.flush().await.unwrap();
        let next = if has_input { 2 } else { 3 };
        assert_eq!(receiver.recv().await.unwrap().unwrap().as_bytes(), [next; 1000]);
    }
}

#[derive(Default)]
struct Task;

impl std::task::Wake for Task {
    fn wake(self: Arc<Self>) {}
}

// It waits for its turn when the last sender is dropped. Nothing else would wake it.
#[tokio::test]
async fn a_task_that_discards_ends_while_it_waits_for_its_turn() {
    let memory = scheduled().await;
    let account = memory.account();
    let (mut peer, sender, mut receiver) = serve_in(&account, 1 << 20);
    let weak = Arc::downgrade(&receiver.shared);
    for _ in 0..3 {
        peer.write_all(&masked(0x81, b"hello")).await.unwrap();
    }
    assert!(receiver.recv().await.unwrap().is_some());
    let alive = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = alive();
    // The peer has used up its share.
    account.charge(4 << 20);
    drop(receiver);
    tokio::spawn(async move { drop(sender) });
    tokio::task::yield_now().await;
    drop(account);
    drop(peer);
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!((weak.strong_count(), weak.weak_count(), alive()), (0, 0, before));
}

// An eviction while the state is taken: its memory is freed when it is put back, which wakes others that wait for memory.
#[tokio::test]
async fn wakes_those_that_wait_for_memory_after_the_unlock() {
    struct Probe(Weak<Shared>, std::sync::Mutex<Vec<bool>>);
    impl std::task::Wake for Probe {
        fn wake(self: Arc<Self>) {
            let is_locked = self.0.upgrade().unwrap().try_lock().is_none();
            self.1.lock().unwrap().push(is_locked);
        }
    }
    let memory = Memory::new(600_000);
    let (mut peer, _sender, mut receiver) = serve(&memory, 1 << 20);
    receive_most(&mut peer, &mut receiver).await;
    let shared = receiver.shared.clone();
    let other = memory.account();
    let mut held = other.reservation(crate::memory::Category::Body);
    held.set(81 << 10);
    let probe = Arc::new(Probe(Arc::downgrade(&shared), std::sync::Mutex::default()));
    let waker = Waker::from(probe.clone());
    assert!(other.poll_read_allowed(&mut Context::from_waker(&waker)).is_pending());
    let active = shared.take_receiver().unwrap();
    shared.evict();
    assert!(probe.1.lock().unwrap().is_empty());
    wait(shared.lock(), Some(active));
    assert_eq!(*probe.1.lock().unwrap(), [false]);
    assert_eq!(receiver.recv().await.unwrap_err(), WebSocketError::Overloaded);
}

// A part of a message is inflated, and the peer is found to be too slow before the eviction.
#[tokio::test]
async fn an_eviction_after_another_failure_frees_the_state_that_is_taken() {
    let memory = scheduled().await;
    let (mut client, _sender, mut receiver) = open_compressed(&memory);
    client.send(vec![7; 4 << 20]).await.unwrap();
    inflate_a_part(&memory, &mut receiver).await;
    let shared = receiver.shared.clone();
    let active = shared.take_receiver().unwrap();
    shared.lock().disconnect_slow();
    shared.evict();
    wait(shared.lock(), Some(active));
    assert_eq!(memory.stats().inflated, 0);
    assert_eq!(receiver.recv().await.unwrap_err(), WebSocketError::Overloaded);
}

#[tokio::test]
async fn a_ping_outside_of_a_driven_future_spawns_no_task() {
    let (_peer, mut sender, _receiver) = serve(&Memory::new(1 << 30), 1 << 20);
    sender.ping(b"").await.unwrap();
    assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), 0);
}

/// Memory whose scheduler runs until the end of the test.
async fn scheduled() -> Arc<Memory> {
    let memory = Memory::new(1 << 30);
    let scheduling = memory.clone();
    tokio::spawn(async move { scheduling.scheduler().run().await });
    tokio::task::yield_now().await;
    memory
}

/// A part of the message is inflated, and the connection waits for its next turn.
async fn inflate_a_part(memory: &Memory, receiver: &mut Receiver) {
    while memory.stats().inflated == 0 {
        assert!(is_pending(receiver.recv()));
        tokio::task::yield_now().await;
    }
}

// The connection has used up its turn, and waits for the next one when its peer is too slow.
#[tokio::test]
async fn messages_that_arrived_before_a_disconnection_are_returned() {
    for is_server in [false, true] {
        let memory = scheduled().await;
        let (mut peer, transport) = duplex(1 << 20);
        let (role, frame) = if is_server {
            (Role::Server, masked(0x81, b"hi"))
        } else {
            (Role::Client, vec![0x81, 2, b'h', b'i'])
        };
        let account = if is_server { memory.account() } else { Account::default() };
        let socket = connect_in(&account, transport, role, Negotiated::default());
        let (_sender, mut receiver) = socket.split();
        for _ in 0..80 {
            peer.write_all(&frame).await.unwrap();
        }
        let mut count = 0;
        while receiver.active.as_ref().is_none_or(|active| active.messages_left > 0) {
            assert!(receiver.recv().await.unwrap().is_some());
            count += 1;
        }
        receiver.active.as_mut().unwrap().budget.spend(2 << 20);
        while !is_pending(receiver.recv()) {
            count += 1;
        }
        receiver.shared.lock().disconnect_slow();
        let error = loop {
            match receiver.recv().await {
                Ok(message) => count += usize::from(message.is_some()),
                Err(error) => break error,
            }
        };
        assert_eq!((count, error), (80, WebSocketError::SlowPeer), "{is_server}");
    }
}

// A part of it is inflated when the other half of the connection finds that the peer is too slow.
#[tokio::test]
async fn a_message_that_is_inflated_in_steps_is_returned_after_a_disconnection() {
    const LEN: usize = 4 << 20;
    let memory = scheduled().await;
    let (mut client, _sender, mut receiver) = open_compressed(&memory);
    client.send(vec![7; LEN]).await.unwrap();
    inflate_a_part(&memory, &mut receiver).await;
    let shared = receiver.shared.clone();
    let active = shared.take_receiver().unwrap();
    shared.lock().disconnect_slow();
    wait(shared.lock(), Some(active));
    assert_eq!(receiver.recv().await.unwrap().unwrap().as_bytes().len(), LEN);
    assert_eq!(receiver.recv().await.unwrap_err(), WebSocketError::SlowPeer);
}

/// The reads of an [`Endless`] peer.
#[derive(Default)]
struct Reads {
    count: std::sync::atomic::AtomicUsize,
    longest: std::sync::atomic::AtomicUsize,
}

/// A peer that sends the same bytes again and again, always more than is read.
struct Endless {
    wire: Vec<u8>,
    at: usize,
    /// The most bytes that a read returns.
    read_len_max: usize,
    reads: Arc<Reads>,
}

impl Endless {
    fn open(account: &Account, wire: Vec<u8>, read_len_max: usize) -> (WebSocket, Arc<Reads>) {
        let reads = Arc::<Reads>::default();
        let peer = Self { wire, at: 0, read_len_max, reads: reads.clone() };
        let transport = tokio::io::join(peer, tokio::io::sink());
        (connect_in(account, transport, Role::Client, Negotiated::default()), reads)
    }
}

impl tokio::io::AsyncRead for Endless {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        into: &mut tokio::io::ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.reads.count.fetch_add(1, Ordering::Relaxed);
        self.reads.longest.fetch_max(into.remaining(), Ordering::Relaxed);
        let mut left = into.remaining().min(self.read_len_max);
        while left > 0 {
            let len = left.min(self.wire.len() - self.at);
            into.put_slice(&self.wire[self.at..][..len]);
            self.at = (self.at + len) % self.wire.len();
            left -= len;
        }
        Poll::Ready(Ok(()))
    }
}

/// The longest read of a client that receives this many messages of an endless peer.
async fn longest_read(memory: Option<&Arc<Memory>>, messages: usize) -> usize {
    // Other tests may have set a limit, and may hold all large buffers.
    buffer::keep_large();
    let empty = [0x82, 0];
    let account = memory.map(Memory::account).unwrap_or_default();
    let (mut socket, reads) = Endless::open(&account, empty.repeat(1 << 16), usize::MAX);
    for _ in 0..messages {
        assert!(socket.recv().await.unwrap().is_some());
    }
    reads.longest.load(Ordering::Relaxed)
}

#[tokio::test]
async fn a_client_that_is_behind_reads_more_at_once() {
    let messages_of_a_read = (256 << 10) / 2;
    assert!(longest_read(None, 3 * messages_of_a_read).await < 257 << 10);
    let long = longest_read(None, 6 * messages_of_a_read).await;
    assert!((1 << 20..1 << 21).contains(&long), "{long}");
}

#[tokio::test]
async fn a_connection_that_has_turns_reads_no_more_at_once() {
    let memory = scheduled().await;
    let long = longest_read(Some(&memory), 6 * (256 << 10) / 2).await;
    assert!(long < 257 << 10, "{long}");
}

// The end of each message and the beginning of the next one arrive in one read.
#[tokio::test]
async fn large_messages_need_few_reads_and_no_new_memory() {
    const MESSAGES: usize = 8;
    for (len, fragments, keeps, reads_max) in
        [(1 << 20, 1, false, 17), (1 << 20, 16, false, 18), (100_000, 1, true, 3), (70_000, 1, true, 2)]
    {
        // Other tests may hold all large buffers, and so may the end of the connection before this one.
        buffer::keep_large();
        let mut wire = Vec::new();
        for number in 1..=fragments {
            let opcode = if number == 1 { 2 } else { 0 };
            let fin = if number == fragments { 0x80 } else { 0 };
            wire.extend([fin | opcode, 127]);
            wire.extend((len as u64 / fragments).to_be_bytes());
            wire.resize(wire.len() + len / fragments as usize, 7);
        }
        let (mut socket, reads) = Endless::open(&Account::default(), wire, 64 << 10);
        let mut places = Vec::new();
        for round in 0..3 + MESSAGES {
            if round == 3 {
                reads.count.store(0, Ordering::Relaxed);
                places.clear();
            }
            let place = |message: &[u8]| {
                assert_eq!(message.len(), len);
                message.as_ptr().addr()
            };
            places.push(match keeps {
                true => place(socket.recv_owned().await.unwrap().unwrap().as_bytes()),
                false => place(socket.recv().await.unwrap().unwrap().as_bytes()),
            });
        }
        let count = reads.count.load(Ordering::Relaxed);
        assert!(count <= MESSAGES * reads_max + 1, "{count} reads for {MESSAGES} messages of {len} bytes");
        assert!(places.iter().all(|place| place.abs_diff(places[0]) < 128), "{len} bytes at {places:x?}");
    }
}

// The last sender may be dropped by another thread between the steps of the receiver's drop.
#[tokio::test]
async fn one_task_takes_the_place_of_a_receiver_once_that_is_dropped() {
    let (_peer, _sender, receiver) = serve(&Memory::new(1 << 30), 1 << 20);
    let shared = &receiver.shared;
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let active = shared.take_receiver().unwrap();
    let receive = || receive_in_task(shared, shared.lock());
    receive();
    assert_eq!(tasks(), 0);
    let _unused = shared.lock().slot.put_dropped(Some(active));
    receive();
    receive();
    assert_eq!(tasks(), 1);
}
