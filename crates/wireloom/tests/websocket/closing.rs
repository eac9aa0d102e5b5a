//! Closing handshakes in every order, over transports as short as a byte: all messages that were accepted arrive, and nothing waits
//! for a timeout.

use std::time::Duration;

use futures_util::SinkExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufStream};
use tokio::net::TcpSocket;
use wireloom::wireloom_ws::handshake::Negotiated;
use wireloom::wireloom_ws::{Cause, Role};
use wireloom::{CloseCode, Receiver, Sender, Transport, WebSocket, WebSocketConfig, WebSocketError};
use wireloom_testing::Rng;

/// How an end behaves when it has sent its messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// Closes with both halves in one task.
    CloseSocket,
    /// Closes with the sender, while another future receives.
    CloseSender,
    /// Waits for the peer's Close frame.
    Wait,
}

#[derive(Debug)]
struct Plan {
    lens: Vec<usize>,
    ending: Ending,
    is_driven: bool,
}

impl Plan {
    fn random(rng: &mut Rng) -> Self {
        let endings = [Ending::CloseSocket, Ending::CloseSender, Ending::Wait];
        Self {
            lens: (0..rng.usize(0..8)).map(|_| rng.usize(0..1_500)).collect(),
            ending: endings[rng.usize(0..endings.len())],
            is_driven: rng.bool(),
        }
    }
}

/// The outcome of one end.
#[derive(Debug, Default)]
struct Outcome {
    /// Messages that were accepted.
    sent: usize,
    received: usize,
}

fn open(transport: impl Transport, role: Role) -> WebSocket {
    WebSocket::from_transport(transport, role, Negotiated::default(), None, WebSocketConfig::default(), &[])
}

/// Sends all messages; the peer's Close frame may arrive before the last one.
async fn send_all(sender: &mut Sender, lens: &[usize]) -> usize {
    let mut sent = 0;
    for &len in lens {
        match sender.send(&vec![7; len]).await {
            Ok(()) => sent += 1,
            Err(WebSocketError::Closed) => break,
            Err(error) => panic!("{error}"),
        }
    }
    sent
}

async fn receive_all(receiver: &mut Receiver) -> usize {
    let mut received = 0;
    while receiver.recv().await.unwrap().is_some() {
        received += 1;
    }
    received
}

async fn run(mut socket: WebSocket, plan: Plan) -> Outcome {
    let mut outcome = Outcome::default();
    if plan.ending == Ending::CloseSocket {
        for &len in &plan.lens {
            if socket.feed(&vec![7; len]).await != Err(WebSocketError::Closed) {
                outcome.sent += 1;
            }
        }
        socket.close(CloseCode::NORMAL, "").await.unwrap();
    } else {
        let (sender, receiver) = socket.halves();
        let sending = async {
            let sent = send_all(sender, &plan.lens).await;
            if plan.ending == Ending::CloseSender {
                sender.close(CloseCode::NORMAL, "").await.unwrap();
            }
            sent
        };
        (outcome.sent, outcome.received) = tokio::join!(sending, receive_all(receiver));
    }
    let end = socket.end().unwrap();
    assert!(matches!(end.cause, Cause::Close { .. }), "{end:?} {plan:?}");
    outcome
}

async fn run_driven(socket: WebSocket, plan: Plan) -> Outcome {
    if plan.is_driven { socket.drive(|socket| run(socket, plan)).await } else { run(socket, plan).await }
}

#[tokio::test(start_paused = true)]
async fn a_closing_handshake_needs_no_timeout_and_loses_no_message() {
    for mut rng in wireloom_testing::generators(100) {
        let (client, server) = tokio::io::duplex([1, 7, 64, 1_000, 100_000][rng.usize(0..5)]);
        let (client, server) = if rng.bool() {
            (open(client, Role::Client), open(server, Role::Server))
        } else {
            (open(BufStream::new(client), Role::Client), open(BufStream::new(server), Role::Server))
        };
        let (client_plan, mut server_plan) = (Plan::random(&mut rng), Plan::random(&mut rng));
        if client_plan.ending == Ending::Wait && server_plan.ending == Ending::Wait {
            server_plan.ending = Ending::CloseSender;
        }
        let context = format!("client {client_plan:?}, server {server_plan:?}, seed {}", rng.seed());
        let begin = tokio::time::Instant::now();
        let drops = [client_plan.ending, server_plan.ending].map(|ending| ending == Ending::CloseSocket);
        let client = tokio::spawn(run_driven(client, client_plan));
        let server = tokio::spawn(run_driven(server, server_plan));
        let outcome = tokio::time::timeout(Duration::from_secs(100), async { tokio::join!(client, server) });
        let (client, server) = outcome.await.unwrap_or_else(|_| panic!("{context}"));
        let (client, server) = (client.expect(&context), server.expect(&context));
        assert_eq!(begin.elapsed(), Duration::ZERO, "{context}");
        // An end that closes with both halves drops messages.
        assert!(drops[1] || client.sent == server.received, "{client:?} {server:?} {context}");
        assert!(drops[0] || server.sent == client.received, "{client:?} {server:?} {context}");
    }
}

// The peer neither reads nor answers: after the close timeout the queue is lost.
#[tokio::test(start_paused = true)]
async fn closing_fails_if_the_queue_was_not_written() {
    for (is_sink, is_buffered) in [(false, false), (true, false), (false, true), (true, true)] {
        let (_peer, transport) = tokio::io::duplex(1_000);
        // As TLS does, the buffer takes all bytes, and writes none of them.
        let (mut sender, mut receiver) = match is_buffered {
            true => open(BufStream::with_capacity(1, 1 << 20, transport), Role::Client).split(),
            false => open(transport, Role::Client).split(),
        };
        sender.feed(vec![7; 60_000]).await.unwrap();
        let closing = async {
            if is_sink {
                SinkExt::close(&mut sender).await
            } else {
                sender.close(CloseCode::NORMAL, "").await
            }
        };
        let (closed, received) = tokio::join!(closing, receiver.recv_owned());
        assert_eq!(
            (closed, received),
            (Err(WebSocketError::ConnectionLost), Ok(None)),
            "{is_sink} {is_buffered}"
        );
    }
}

// Closing a socket with unread bytes resets the connection: the peer loses what the kernel has not delivered yet.
#[tokio::test]
async fn a_client_that_is_dropped_with_unread_messages_loses_nothing_that_was_sent() {
    const LEN: usize = 128 << 10;
    let listening = TcpSocket::new_v4().unwrap();
    listening.set_recv_buffer_size(4 << 10).unwrap();
    listening.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = listening.listen(1).unwrap();
    let connecting = TcpSocket::new_v4().unwrap();
    connecting.set_send_buffer_size(2 * LEN as u32).unwrap();
    let stream = connecting.connect(listener.local_addr().unwrap()).await.unwrap();
    let (mut peer, _) = listener.accept().await.unwrap();
    peer.write_all(b"\x82\x04news").await.unwrap();
    let mut client = open(stream, Role::Client);
    client.send(vec![7; LEN]).await.unwrap();
    drop(client);
    tokio::time::sleep(Duration::from_millis(50)).await;
    // It pushes on.
    let _ = peer.write_all(b"\x82\x04more").await;
    let mut read = Vec::new();
    peer.read_to_end(&mut read).await.unwrap();
    assert_eq!(read.len(), 14 + LEN + 8);
    assert_eq!(read[14 + LEN..][..2], [0x88, 0x82]);
}
