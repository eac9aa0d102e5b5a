//! `Fanout`: messages to many WebSockets at once. Each test runs with plain writes and with io_uring, most over TCP and over TLS; where the kernel
//! does not allow io_uring, both are plain.

use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_rustls::client::TlsStream;
use wireloom::wireloom_ws::Role;
use wireloom::wireloom_ws::deflate::DeflateParams;
use wireloom::wireloom_ws::handshake::Negotiated;
use wireloom::{
    CloseCode, DeflateConfig, Delivery, Fanout, IoUring, PreparedMessage, Request, Sender, Server,
    ServerConfig, ServerTls, WebSocket, WebSocketConfig, WebSocketError,
};
use wireloom_testing::frame::upgrade_request;

const RINGS: [IoUring; 2] = [IoUring::Off, IoUring::On];

/// Over TCP, or over TLS.
const WAYS: [(IoUring, bool); 4] =
    [(IoUring::Off, false), (IoUring::On, false), (IoUring::Off, true), (IoUring::On, true)];

/// More than fit into one submission.
const MEMBERS: usize = 100;

fn config(io_uring: IoUring) -> WebSocketConfig {
    WebSocketConfig { io_uring, ..WebSocketConfig::default() }
}

/// A server's WebSocket over TCP, and its peer.
async fn connect_with(config: WebSocketConfig, deflate: Option<&DeflateConfig>) -> (WebSocket, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (peer, accepted) =
        tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
    let mut negotiated = Negotiated::default();
    negotiated.deflate = deflate.map(|_| DeflateParams::default());
    let transport = accepted.unwrap().0;
    (WebSocket::from_transport(transport, Role::Server, negotiated, deflate, config, &[]), peer.unwrap())
}

trait Peer: AsyncRead + AsyncWrite + Send + Unpin {
    fn tcp(&self) -> &TcpStream;
}

impl Peer for TcpStream {
    fn tcp(&self) -> &TcpStream {
        self
    }
}

impl Peer for TlsStream<TcpStream> {
    fn tcp(&self) -> &TcpStream {
        self.get_ref().0
    }
}

/// As many WebSockets of a server, and their peers.
async fn connect_all(count: usize, (io_uring, is_tls): (IoUring, bool)) -> Vec<(WebSocket, Box<dyn Peer>)> {
    let mut members = Vec::new();
    if !is_tls {
        for _ in 0..count {
            let (socket, peer) = connect_with(config(io_uring), None).await;
            members.push((socket, Box::new(peer) as Box<dyn Peer>));
        }
        return members;
    }
    let (tls, certificate) = ServerTls::self_signed(&["localhost"]).unwrap();
    let server = Server::bind("127.0.0.1:0").await.unwrap().tls(tls);
    let address = server.local_addr().unwrap();
    let (opened, mut sockets) = mpsc::unbounded_channel();
    let server_config = ServerConfig { websocket: config(io_uring), ..ServerConfig::default() };
    tokio::spawn(server.config(server_config).serve(move |request: Request| {
        let opened = opened.clone();
        async move {
            request.websocket().unwrap().on_open(move |socket| async move {
                let _ = opened.send(socket);
            })
        }
    }));
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate.der().to_vec().into()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let tls = tls.unwrap().with_root_certificates(roots).with_no_client_auth();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(tls));
    for _ in 0..count {
        let tcp = TcpStream::connect(address).await.unwrap();
        let mut peer = connector.connect("localhost".try_into().unwrap(), tcp).await.unwrap();
        peer.write_all(upgrade_request("/").as_bytes()).await.unwrap();
        let socket = sockets.recv().await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(peer.read_u8().await.unwrap());
        }
        members.push((socket, Box::new(peer)));
    }
    members
}

async fn connect(io_uring: IoUring) -> (WebSocket, TcpStream) {
    connect_with(config(io_uring), None).await
}

async fn read(peer: &mut (impl AsyncRead + Unpin + ?Sized), len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    peer.read_exact(&mut bytes).await.unwrap();
    bytes
}

fn send(senders: &mut [Sender], messages: &[PreparedMessage]) -> Vec<Result<Delivery, WebSocketError>> {
    let mut fanout = Fanout::default();
    senders.iter_mut().for_each(|sender| fanout.push(sender, messages));
    fanout.try_send()
}

fn frame(text: &str) -> Vec<u8> {
    let len = match u16::try_from(text.len()).unwrap() {
        len @ 0..126 => vec![len as u8],
        len => [&[126][..], &len.to_be_bytes()].concat(),
    };
    [&[0x81][..], &len, text.as_bytes()].concat()
}

fn is_whole(delivery: &Result<Delivery, WebSocketError>, count: usize) -> bool {
    delivery.as_ref().is_ok_and(|delivery| (delivery.sent, delivery.queued_len) == (count, 0))
}

#[tokio::test]
async fn every_member_receives_its_messages_in_order() {
    for way in WAYS {
        let (mut senders, mut peers, mut receivers) = (Vec::new(), Vec::new(), Vec::new());
        for (socket, peer) in connect_all(MEMBERS, way).await {
            let (sender, receiver) = socket.split();
            senders.push(sender);
            receivers.push(receiver);
            peers.push(peer);
        }
        let texts = ["one".to_owned(), "x".repeat(5_000), String::new(), "two".to_owned()];
        let messages = texts.each_ref().map(|text| PreparedMessage::text(text));
        assert!(send(&mut senders, &messages[..1]).iter().all(|delivery| is_whole(delivery, 1)));
        assert!(send(&mut senders, &messages).iter().all(|delivery| is_whole(delivery, 4)));
        assert!(send(&mut senders, &[]).iter().all(|delivery| is_whole(delivery, 0)));
        // Each receives other messages than the one before.
        let mut fanout = Fanout::default();
        for (index, sender) in senders.iter_mut().enumerate() {
            fanout.push(sender, &messages[index % 4..]);
        }
        let deliveries = fanout.try_send();
        // Each receives messages of its own.
        let own_texts = |index: usize| [format!("own {index}"), "again".into()];
        let own: Vec<_> =
            (0..MEMBERS).map(|index| own_texts(index).map(|text| PreparedMessage::text(&text))).collect();
        let mut fanout = Fanout::default();
        senders.iter_mut().zip(&own).for_each(|(sender, messages)| fanout.push(sender, messages));
        assert!(fanout.try_send().iter().all(|delivery| is_whole(delivery, 2)));
        for (index, peer) in peers.iter_mut().enumerate() {
            let rest = &texts[index % 4..];
            assert!(is_whole(&deliveries[index], rest.len()));
            let own = own_texts(index);
            let all = texts[..1].iter().chain(&texts).chain(rest).chain(&own);
            let expected: Vec<u8> = all.flat_map(|text| frame(text)).collect();
            assert_eq!(read(peer, expected.len()).await, expected, "{way:?} {index}");
            assert_eq!(senders[index].traffic().bytes_sent, expected.len() as u64);
        }
    }
}

// Its peers do not read, so that a part of the messages remains; the results are those of `try_send_all`.
#[tokio::test]
async fn what_a_transport_does_not_accept_is_queued() {
    for way in WAYS {
        let (mut members, mut peers) = (Vec::new(), Vec::new());
        for (socket, peer) in connect_all(2 * 8, way).await {
            members.push(socket.split());
            peers.push(peer);
        }
        let text = "x".repeat(60_000);
        let message = PreparedMessage::text(&text);
        let mut sent = vec![0; members.len()];
        let mut rounds = 0;
        // Until no one accepts anything.
        while rounds == 0 || sent.contains(&rounds) {
            rounds += 1;
            let (fanned, plain) = members.split_at_mut(8);
            let mut fanout = Fanout::default();
            fanned.iter_mut().for_each(|(sender, _)| fanout.push(sender, [&message]));
            for (index, delivery) in fanout.try_send().into_iter().enumerate() {
                sent[index] += delivery.unwrap().sent;
            }
            for (index, (sender, _)) in plain.iter_mut().enumerate() {
                sent[8 + index] += sender.try_send_all([&message]).unwrap();
            }
            assert!(rounds < 10_000, "{sent:?}");
        }
        for (index, ((sender, _), mut peer)) in members.iter_mut().zip(peers).enumerate() {
            // TLS holds up to 64 KiB itself.
            assert!(sent[index] > 0 && (way.1 || sender.queued_len() > 0), "{way:?} {index}");
            let expected = frame(&text).repeat(sent[index]);
            let (received, flushed) = tokio::join!(read(&mut peer, expected.len()), sender.flush());
            assert_eq!(flushed, Ok(()));
            assert!(received == expected, "{way:?} {index}");
            // The next message is written directly again.
            let mut fanout = Fanout::default();
            let last = PreparedMessage::text("last");
            fanout.push(sender, [&last]);
            assert!(is_whole(&fanout.try_send()[0], 1));
            assert_eq!(read(&mut peer, 6).await, frame("last"));
        }
    }
}

#[tokio::test]
async fn a_member_that_has_gone_affects_no_other() {
    for way in WAYS {
        let (mut senders, mut peers, mut receivers) = (Vec::new(), Vec::new(), Vec::new());
        for (socket, peer) in connect_all(8, way).await {
            let (sender, receiver) = socket.split();
            senders.push(sender);
            receivers.push(receiver);
            peers.push(Some(peer));
        }
        // One peer has reset its connection, one WebSocket is closing.
        peers[2].take().unwrap().tcp().set_zero_linger().unwrap();
        senders[5].close(CloseCode::NORMAL, "").await.unwrap();
        let message = PreparedMessage::text("hello");
        let mut sent = 0;
        // The reset is noticed by the first write behind it.
        let error = loop {
            let deliveries = send(&mut senders, std::slice::from_ref(&message));
            sent += 1;
            for (index, delivery) in deliveries.iter().enumerate().filter(|(index, _)| *index != 2) {
                match index {
                    5 => assert!(delivery.is_err(), "{delivery:?}"),
                    _ => assert!(is_whole(delivery, 1), "{way:?} {index} {delivery:?}"),
                }
            }
            if let Err(error) = &deliveries[2] {
                break error.clone();
            }
            tokio::task::yield_now().await;
        };
        assert_eq!(error, WebSocketError::ConnectionLost, "{way:?}");
        assert_eq!(send(&mut senders, std::slice::from_ref(&message))[2], Err(error));
        sent += 1;
        for (index, peer) in peers.iter_mut().enumerate().filter(|(index, _)| ![2, 5].contains(index)) {
            let received = read(peer.as_mut().unwrap(), 7 * sent).await;
            assert_eq!(received, frame("hello").repeat(sent), "{way:?} {index}");
        }
    }
}

// Members whose messages have to be masked, compressed, queued behind others, or written to another transport.
#[tokio::test]
async fn members_of_all_kinds_receive_the_same_messages() {
    let deflate = DeflateConfig { min_len: 0, ..DeflateConfig::default() };
    for way in RINGS {
        let message = PreparedMessage::text(&"again and again ".repeat(20));
        let (memory, other) = tokio::io::duplex(64);
        let (over_tcp, tcp) = connect(way).await;
        let (compressed, tcp_compressed) = connect_with(config(way), Some(&deflate)).await;
        let (queued, tcp_queued) = connect(way).await;
        let open = |transport: TcpStream, role, deflate: Option<&DeflateConfig>| {
            let mut negotiated = Negotiated::default();
            negotiated.deflate = deflate.map(|_| DeflateParams::default());
            WebSocket::from_transport(transport, role, negotiated, deflate, config(way), &[])
        };
        let in_memory = |transport, role| {
            WebSocket::from_transport(transport, role, Negotiated::default(), None, config(way), &[])
        };
        // A server over TCP, a client over TCP, compressed, behind a fragment, and over another transport.
        let pairs = [
            (over_tcp, open(tcp, Role::Client, None)),
            (compressed, open(tcp_compressed, Role::Client, Some(&deflate))),
            (queued, open(tcp_queued, Role::Client, None)),
            (in_memory(memory, Role::Server), in_memory(other, Role::Client)),
        ];
        let (mut senders, mut receivers, mut others) = (Vec::new(), Vec::new(), Vec::new());
        for (server, client) in pairs {
            let (sender, receiver) = server.split();
            // The client sends as well.
            let (other_sender, other_receiver) = client.split();
            senders.extend([sender, other_sender]);
            receivers.push(receiver);
            others.push(other_receiver);
        }
        senders[4].feed("before").await.unwrap();
        for delivery in send(&mut senders, &[message.clone(), message.clone()]) {
            assert_eq!(delivery.unwrap().sent, 2);
        }
        let before = others[2].recv_owned().await.unwrap().unwrap();
        assert_eq!(before.as_text(), Some("before"));
        for receiver in receivers.iter_mut().chain(&mut others) {
            for _ in 0..2 {
                let received = receiver.recv_owned().await.unwrap().unwrap();
                assert_eq!(received.as_text(), message.as_text(), "{way:?}");
            }
        }
    }
}

// Two threads send to the same members in different orders, while their peers read.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn threads_that_send_to_the_same_members_do_not_wait_for_each_other() {
    const ROUNDS: usize = 200;
    for way in WAYS {
        let (mut senders, mut peers, mut receivers) = (Vec::new(), Vec::new(), Vec::new());
        for (socket, mut peer) in connect_all(40, way).await {
            let (sender, receiver) = socket.split();
            senders.push(sender);
            receivers.push(receiver);
            peers.push(tokio::spawn(async move { read(&mut peer, 2 * ROUNDS * 3).await }));
        }
        let mut reversed: Vec<_> = senders.iter().rev().cloned().collect();
        let publish = |mut senders: Vec<Sender>, text: &'static str| {
            tokio::spawn(async move {
                let message = PreparedMessage::text(text);
                for _ in 0..ROUNDS {
                    for delivery in send(&mut senders, std::slice::from_ref(&message)) {
                        assert_eq!(delivery.unwrap().sent, 1);
                    }
                    tokio::task::yield_now().await;
                }
            })
        };
        let (one, other) = (publish(senders, "a"), publish(std::mem::take(&mut reversed), "b"));
        one.await.unwrap();
        other.await.unwrap();
        for peer in peers {
            let received = peer.await.unwrap();
            let count = |text: u8| received.chunks(3).filter(|frame| *frame == [0x81, 1, text]).count();
            assert_eq!((count(b'a'), count(b'b')), (ROUNDS, ROUNDS), "{way:?}");
        }
    }
}

// A peer that writes to a member meanwhile: nothing is lost in the other direction.
#[tokio::test]
async fn members_receive_while_messages_are_sent_to_them() {
    for way in WAYS {
        let (mut senders, mut peers, mut receivers) = (Vec::new(), Vec::new(), Vec::new());
        for (socket, peer) in connect_all(8, way).await {
            let (sender, receiver) = socket.split();
            senders.push(sender);
            receivers.push(receiver);
            peers.push(peer);
        }
        let message = PreparedMessage::binary(b"down");
        for _ in 0..20 {
            for peer in &mut peers {
                peer.write_all(b"\x82\x82\0\0\0\0up").await.unwrap();
            }
            assert!(send(&mut senders, std::slice::from_ref(&message)).iter().all(|one| is_whole(one, 1)));
            for (receiver, peer) in receivers.iter_mut().zip(&mut peers) {
                assert_eq!(receiver.recv().await.unwrap().unwrap().as_bytes(), b"up");
                assert_eq!(read(peer, 6).await, b"\x82\x04down");
            }
        }
    }
}
