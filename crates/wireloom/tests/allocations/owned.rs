//! Messages that the application keeps: always whole, always valid, and no larger in memory than twice their length.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use crate::counting::{HELD, held_by};
use futures_util::StreamExt as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use wireloom::wireloom_ws::handshake::Negotiated;
use wireloom::wireloom_ws::{Delivery, Role};
use wireloom::{DeflateConfig, OwnedMessage, Receiver, WebSocket, WebSocketConfig};
use wireloom_testing::frame::masked;

/// A server's end, and the transport that its client writes to.
fn open(delivery: Delivery, deflate: bool) -> (WebSocket, DuplexStream) {
    let (peer, transport) = tokio::io::duplex(4 << 20);
    let mut config = WebSocketConfig::default();
    config.core.delivery = delivery;
    let deflate = deflate.then(DeflateConfig::default);
    let negotiated =
        Negotiated { deflate: deflate.as_ref().map(|_| Default::default()), ..Negotiated::default() };
    (WebSocket::from_transport(transport, Role::Server, negotiated, deflate.as_ref(), config, &[]), peer)
}

/// Polls once, and drops the future.
fn poll_once<F: Future>(future: F) -> Poll<F::Output> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// The next message, which has arrived.
fn owned(receiver: &mut Receiver) -> OwnedMessage {
    match poll_once(receiver.recv_owned()) {
        Poll::Ready(message) => message.unwrap().unwrap(),
        Poll::Pending => panic!("nothing has arrived"),
    }
}

fn check_text(message: &OwnedMessage) {
    if let Some(text) = message.as_text() {
        assert!(std::str::from_utf8(text.as_bytes()).is_ok(), "{:x?}", message.as_bytes());
    }
}

// `recv` takes the first half of "ä", and the rest begins with a continuation byte.
#[tokio::test]
async fn the_rest_of_a_text_is_no_invalid_text() {
    for stream in [false, true] {
        let (socket, mut peer) = open(Delivery::Chunks, false);
        let (_sender, mut receiver) = socket.split();
        peer.write_all(&masked(0x01, b"h\xc3")).await.unwrap();
        let first = receiver.recv().await.unwrap().unwrap();
        assert_eq!((first.as_bytes(), first.is_last()), (&b"h\xc3"[..], false));
        peer.write_all(&masked(0x80, b"\xa4!")).await.unwrap();
        let rest = if stream {
            receiver.next().await.unwrap().unwrap()
        } else {
            receiver.recv_owned().await.unwrap().unwrap()
        };
        check_text(&rest);
        assert_eq!(rest.as_bytes(), b"\xa4!");
        peer.write_all(&masked(0x81, "häh".as_bytes())).await.unwrap();
        assert_eq!(owned(&mut receiver).as_text(), Some("häh"));
    }
}

#[tokio::test]
async fn a_cancelled_wait_for_a_whole_message_loses_nothing() {
    for deflate in [false, true] {
        let (socket, mut peer) = open(Delivery::Chunks, deflate);
        let (_sender, mut receiver) = socket.split();
        peer.write_all(&masked(0x02, b"one ")).await.unwrap();
        assert!(poll_once(receiver.recv_owned()).is_pending());
        peer.write_all(&masked(0x00, b"two ")).await.unwrap();
        let mut received = Vec::new();
        while received.len() < 8 {
            let chunk = receiver.recv().await.unwrap().unwrap();
            assert!(!chunk.is_last());
            received.extend_from_slice(chunk.as_bytes());
        }
        assert_eq!(received, b"one two ");
        peer.write_all(&[masked(0x00, b"three "), masked(0x80, b"four")].concat()).await.unwrap();
        assert_eq!(owned(&mut receiver).as_bytes(), b"three four");
        peer.write_all(&masked(0x82, b"next")).await.unwrap();
        assert_eq!(owned(&mut receiver).as_bytes(), b"next");
    }
}

// Every mixture of `recv`, `recv_owned` and cancelled `recv_owned` hands out each byte once, in order.
#[tokio::test]
async fn mixed_ways_to_receive_return_each_byte_once() {
    let text: String =
        (0..400).map(|i| if i % 3 == 0 { 'ß' } else { char::from(b'a' + (i % 26) as u8) }).collect();
    for mut random in wireloom_testing::generators(300) {
        let (socket, mut peer) = open(Delivery::Chunks, false);
        let (_sender, mut receiver) = socket.split();
        let (mut sent, mut received) = (Vec::new(), Vec::new());
        for _ in 0..4 {
            let mut rest = text.as_bytes();
            let mut opcode = 1;
            while !rest.is_empty() {
                let len = random.usize(1..=200).min(rest.len());
                let fin = if len == rest.len() { 0x80 } else { 0 };
                let wire = masked(fin | opcode, &rest[..len]);
                let cut = random.usize(0..=wire.len());
                opcode = 0;
                for part in [&wire[..cut], &wire[cut..]] {
                    peer.write_all(part).await.unwrap();
                    while random.u8(..3) > 0 {
                        let taken = if random.bool() {
                            match poll_once(receiver.recv()) {
                                Poll::Ready(message) => Some(message.unwrap().unwrap().as_bytes().to_vec()),
                                Poll::Pending => None,
                            }
                        } else {
                            match poll_once(receiver.recv_owned()) {
                                Poll::Ready(message) => {
                                    let message = message.unwrap().unwrap();
                                    check_text(&message);
                                    Some(message.into_bytes().to_vec())
                                }
                                Poll::Pending => None,
                            }
                        };
                        let Some(taken) = taken else { break };
                        received.extend(taken);
                    }
                }
                sent.extend_from_slice(&rest[..len]);
                rest = &rest[len..];
                assert!(sent.starts_with(&received));
            }
        }
        while received.len() < sent.len() {
            received.extend_from_slice(receiver.recv_owned().await.unwrap().unwrap().as_bytes());
        }
        assert_eq!(received, sent);
    }
}

// A connection that has just received 1 MiB, or any other of its thread, must not send its memory along with two bytes.
#[tokio::test]
async fn a_message_holds_no_more_than_twice_its_length() {
    let lens = [0, 1, 2, 13, 64, 125, 126, 1_000, 4_096, 5_000, 70_000, 300_000, 1 << 20, (1 << 20) + 1];
    for deflate in [false, true] {
        for delivery in [Delivery::Messages, Delivery::Chunks] {
            for (whole, stream) in [(true, false), (false, false), (true, true), (false, true)] {
                let (socket, mut peer) = open(delivery, deflate);
                let (_sender, mut receiver) = socket.split();
                for &len in lens.iter().chain(lens.iter().rev()) {
                    let data = vec![b'x'; len];
                    let wire = if whole {
                        masked(0x81, &data)
                    } else {
                        let (one, two) = data.split_at(len / 2);
                        [masked(0x01, one), masked(0x80, two)].concat()
                    };
                    peer.write_all(&wire).await.unwrap();
                    let message = if stream {
                        receiver.next().await.unwrap().unwrap()
                    } else {
                        receiver.recv_owned().await.unwrap().unwrap()
                    };
                    assert_eq!(message.as_bytes().len(), len);
                    let held = match len % 3 {
                        0 => held_by(message),
                        1 => held_by(message.into_bytes()),
                        _ => match message {
                            OwnedMessage::Text(text) => held_by(text),
                            OwnedMessage::Binary(_) => panic!("text was sent"),
                        },
                    };
                    assert!(
                        (len..=2 * len + 64).contains(&held),
                        "{held} bytes held by {len}, whole {whole}, {delivery:?}"
                    );
                    // A message that is borrowed and then kept.
                    peer.write_all(&wire).await.unwrap();
                    let message = loop {
                        let message = receiver.recv().await.unwrap().unwrap();
                        if message.is_last() {
                            break message.into_owned();
                        }
                    };
                    let len = message.as_bytes().len();
                    let held = held_by(message);
                    assert!((len..=2 * len + 64).contains(&held), "{held} bytes held by {len} into_owned");
                }
            }
        }
    }
}

#[tokio::test]
async fn a_long_message_uses_the_memory_of_one_that_was_dropped() {
    let (socket, mut peer) = open(Delivery::Messages, false);
    let (_sender, mut receiver) = socket.split();
    let wire = masked(0x82, [7; 70_000]);
    let mut addresses = Vec::new();
    for _ in 0..4 {
        peer.write_all(&wire).await.unwrap();
        let message = receiver.recv_owned().await.unwrap().unwrap();
        assert_eq!(message.as_bytes(), [7; 70_000]);
        addresses.push(message.as_bytes().as_ptr().addr());
    }
    // The first one grew to its length. Payloads begin at different places of the same memory.
    let is_near = |address: &usize| address.abs_diff(addresses[1]) < 4_096;
    assert!(addresses[2..].iter().all(is_near), "{addresses:x?}");
}

// Each connection announces a megabyte and sends little of it.
#[tokio::test]
async fn an_announced_length_costs_nothing_until_bytes_arrive() {
    for sent in [24, 1_000, 4_000] {
        let mut connections: Vec<_> = (0..64).map(|_| open(Delivery::Messages, false)).collect();
        let wire = masked(0x82, vec![7; 1 << 20]);
        // The buffers of the thread's pool exist before.
        let (mut first, mut peer) = open(Delivery::Messages, false);
        peer.write_all(&wire[..1]).await.unwrap();
        assert!(poll_once(first.recv()).is_pending());
        for round in 0..2 {
            let before = HELD.get();
            for (socket, peer) in &mut connections {
                peer.write_all(&wire[round * sent..(round + 1) * sent]).await.unwrap();
                assert!(poll_once(socket.recv()).is_pending());
            }
            let held = (HELD.get() - before) as usize / connections.len();
            println!("{held} bytes for {sent}");
            // The transport in memory holds some of it too.
            assert!(held <= 3 * sent + 2_048, "{held} bytes for {sent}");
        }
    }
}

// The beginning stays in the read buffer while a read may bring the rest, and no longer: invalid text in it ends the connection
// although the rest never comes.
#[tokio::test]
async fn the_beginning_of_a_message_is_checked_before_its_rest_arrives() {
    let wire = masked(0x81, [b'x'; 60_000]);
    for at in [16_384, 20_000, 59_999] {
        let (mut socket, mut peer) = open(Delivery::Messages, false);
        let (_sender, receiver) = socket.halves();
        peer.write_all(&wire[..at]).await.unwrap();
        assert!(poll_once(receiver.recv_owned()).is_pending());
        peer.write_all(&wire[at..]).await.unwrap();
        assert_eq!(owned(receiver), "x".repeat(60_000).into());
        // Cut off, and complete: a cancelled wait loses nothing.
        peer.write_all(&[&wire[..], &wire[..at]].concat()).await.unwrap();
        assert_eq!(owned(receiver), "x".repeat(60_000).into());
        assert!(poll_once(receiver.recv()).is_pending());
        peer.write_all(&wire[at..]).await.unwrap();
        assert_eq!(owned(receiver), "x".repeat(60_000).into());

        let invalid = masked(0x81, [&b"\xff"[..], &[b'x'; 60_000]].concat());
        peer.write_all(&invalid[..at]).await.unwrap();
        assert!(poll_once(receiver.recv()).is_pending());
        let mut close = [0; 4];
        peer.read_exact(&mut close).await.unwrap();
        assert_eq!((close[0], u16::from_be_bytes([close[2], close[3]])), (0x88, 1007));
    }
}
