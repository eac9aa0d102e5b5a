//! Batches: answers to messages that arrived together leave in one write, in order, and none is left behind whatever the handler
//! awaits next.

use std::future::pending;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf};
use tokio::net::TcpStream;
use wireloom::wireloom_ws::handshake::Negotiated;
use wireloom::wireloom_ws::{Delivery, Role};
use wireloom::{
    Connector, DeflateConfig, Message, Receiver, Sender, Server, ServerConfig, WebSocket, WebSocketConfig,
};
use wireloom_testing::Frame;
use wireloom_testing::frame::{masked, upgrade_request};

/// A server that calls `run` with each WebSocket, and its address.
async fn serve<F, Fut>(config: ServerConfig, run: F) -> std::net::SocketAddr
where
    F: Fn(WebSocket) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    let server = Server::bind("127.0.0.1:0").await.unwrap().config(config);
    let address = server.local_addr().unwrap();
    tokio::spawn(server.serve(move |request: wireloom::Request| {
        let run = run.clone();
        async move {
            match request.websocket() {
                Ok(upgrade) => upgrade.on_open(run),
                Err(refusal) => refusal,
            }
        }
    }));
    address
}

/// A client that sends and receives raw frames.
struct Client(TcpStream);

impl Client {
    async fn open(address: std::net::SocketAddr) -> Self {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(upgrade_request("/").as_bytes()).await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        assert!(head.starts_with(b"HTTP/1.1 101"), "{head:?}");
        Self(stream)
    }

    async fn send(&mut self, frames: &[u8]) {
        self.0.write_all(frames).await.unwrap();
    }

    async fn receive(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let read = tokio::time::timeout(Duration::from_secs(20), self.0.read_exact(&mut bytes)).await;
        read.expect("all bytes are sent").unwrap();
        bytes
    }
}

/// A transport that counts writes.
struct Counted {
    stream: DuplexStream,
    writes: Arc<AtomicUsize>,
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        Pin::new(&mut self.stream).poll_write(cx, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// A WebSocket that is not driven, the number of its writes, and its peer.
fn undriven() -> (WebSocket, Arc<AtomicUsize>, DuplexStream) {
    let (stream, peer) = tokio::io::duplex(64 << 10);
    let writes = Arc::new(AtomicUsize::new(0));
    let transport = Counted { stream, writes: writes.clone() };
    let config = WebSocketConfig::default();
    let socket = WebSocket::from_transport(transport, Role::Server, Negotiated::default(), None, config, &[]);
    (socket, writes, peer)
}

// The runtime has no timers.
#[test]
fn a_task_that_awaits_something_else_leaves_no_answer_behind() {
    for spawned in [true, false] {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (socket, writes, mut peer) = undriven();
        let answer = async move {
            let (mut sender, mut receiver) = socket.split();
            for _ in 0..3 {
                let message = receiver.recv().await.unwrap().unwrap();
                sender.send(message).await.unwrap();
            }
            pending::<()>().await;
            drop((sender, receiver));
        };
        let receive = async move {
            peer.write_all(&masked(0x82, b"at once").repeat(10)).await.unwrap();
            let mut received = [0; 27];
            peer.read_exact(&mut received).await.unwrap();
            (received, writes.load(Ordering::Relaxed))
        };
        let (received, writes) = runtime.block_on(async {
            if spawned {
                tokio::spawn(answer);
                receive.await
            } else {
                tokio::select! {
                    received = tokio::spawn(receive) => received.unwrap(),
                    () = answer => unreachable!("it never ends"),
                }
            }
        });
        assert_eq!(received[..], b"\x82\x07at once".repeat(3));
        assert_eq!(writes, 1);
    }
}

// `block_on` runs the future beside the worker of the runtime.
#[test]
fn a_driven_future_beside_the_workers_writes_at_the_end_of_its_poll() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
    let (socket, writes, mut peer) = undriven();
    let answer = socket.drive(|mut socket| async move {
        for _ in 0..3 {
            let message = socket.recv_owned().await.unwrap().unwrap();
            socket.send(message).await.unwrap();
        }
        pending::<()>().await;
        drop(socket);
    });
    let receive = async move {
        peer.write_all(&masked(0x82, b"at once").repeat(10)).await.unwrap();
        let mut received = [0; 27];
        peer.read_exact(&mut received).await.unwrap();
        (received, writes.load(Ordering::Relaxed))
    };
    let (received, writes) = runtime.block_on(async {
        tokio::select! {
            received = tokio::spawn(receive) => received.unwrap(),
            () = answer => unreachable!("it never ends"),
        }
    });
    assert_eq!(received[..], b"\x82\x07at once".repeat(3));
    assert_eq!(writes, 1);
}

#[tokio::test]
async fn messages_that_arrived_together_are_answered_in_one_write() {
    for owned in [true, false] {
        let (mut socket, writes, mut peer) = undriven();
        tokio::spawn(async move {
            if !owned {
                return echo(socket).await;
            }
            while let Some(message) = socket.recv_owned().await.unwrap() {
                socket.send(message).await.unwrap();
            }
        });
        for round in 1..=3 {
            peer.write_all(&masked(0x81, b"together").repeat(64)).await.unwrap();
            let mut received = [0; 640];
            peer.read_exact(&mut received).await.unwrap();
            assert_eq!(received[..], b"\x81\x08together".repeat(64));
            assert_eq!(writes.load(Ordering::Relaxed), round);
        }
        peer.write_all(&masked(0x88, b"")).await.unwrap();
        assert_eq!(peer.read_u16().await.unwrap(), 0x8800);
    }
}

async fn echo(socket: WebSocket) {
    let (mut sender, mut receiver) = socket.split();
    while let Ok(Some(message)) = receiver.recv().await {
        if sender.send(message).await.is_err() {
            return;
        }
    }
}

#[tokio::test]
async fn a_pong_precedes_the_answers_to_later_messages() {
    let mut client = Client::open(serve(ServerConfig::default(), echo).await).await;
    let frames =
        [(0x81, "before"), (0x89, "one"), (0x81, "after"), (0x01, "in "), (0x89, "two"), (0x80, "fragments")];
    client.send(&frames.map(|(first, payload)| masked(first, payload.as_bytes())).concat()).await;
    let expected = b"\x81\x06before\x8a\x03one\x81\x05after\x8a\x03two\x81\x0cin fragments";
    assert_eq!(client.receive(expected.len()).await, expected);
}

/// A client sends a message ten times at once, and receives one answer, whatever the handler does after it.
async fn assert_one_answer<Fut>(run: fn(WebSocket) -> Fut)
where
    Fut: Future<Output = ()> + Send + 'static,
{
    let mut client = Client::open(serve(ServerConfig::default(), run).await).await;
    client.send(&masked(0x82, b"at once").repeat(10)).await;
    assert_eq!(client.receive(9).await, b"\x82\x07at once");
}

async fn answer_first(socket: WebSocket) -> (Sender, Receiver) {
    let (mut sender, mut receiver) = socket.split();
    let message = receiver.recv().await.unwrap().unwrap();
    sender.send(message).await.unwrap();
    (sender, receiver)
}

#[tokio::test]
async fn a_handler_that_awaits_something_else_leaves_no_answer_behind() {
    assert_one_answer(|socket| async move {
        let _halves = answer_first(socket).await;
        pending::<()>().await;
    })
    .await;
}

#[tokio::test]
async fn an_answer_leaves_although_later_messages_get_none() {
    assert_one_answer(|socket| async move {
        let (_sender, mut receiver) = answer_first(socket).await;
        while let Ok(Some(_)) = receiver.recv().await {}
    })
    .await;
}

#[tokio::test]
async fn an_answer_leaves_although_the_sender_is_dropped() {
    assert_one_answer(|socket| async move {
        let (sender, mut receiver) = answer_first(socket).await;
        drop(sender);
        while let Ok(Some(_)) = receiver.recv().await {}
    })
    .await;
}

#[tokio::test]
async fn a_sender_that_moves_to_another_thread_keeps_its_order() {
    let address = serve(ServerConfig::default(), |socket| async move {
        let (mut sender, mut receiver) = answer_first(socket).await;
        // The answer stays in the batch while this task continues without an await.
        let (start, started) = std::sync::mpsc::channel();
        let runtime = tokio::runtime::Handle::current();
        std::thread::spawn(move || {
            start.send(()).unwrap();
            runtime.block_on(async {
                for i in 0..100u8 {
                    sender.send(&[i]).await.unwrap();
                }
            });
        });
        started.recv().unwrap();
        // Work that does not await.
        std::thread::sleep(Duration::from_millis(5));
        while let Ok(Some(_)) = receiver.recv().await {}
    })
    .await;
    for _ in 0..20 {
        let mut client = Client::open(address).await;
        client.send(&masked(0x82, b"first").repeat(3)).await;
        let expected: Vec<u8> =
            b"\x82\x05first".iter().copied().chain((0..100).flat_map(|i| [0x82, 1, i])).collect();
        assert_eq!(client.receive(expected.len()).await, expected);
    }
}

#[tokio::test]
async fn echoes_messages_of_all_sizes_in_order() {
    let mut random = wireloom_testing::generator();
    let address = serve(ServerConfig::default(), echo).await;
    let (mut sent, mut expected) = (Vec::new(), Vec::new());
    for i in 0..600u32 {
        let len = match random.u32(0..100) {
            0 => random.usize(60_000..400_000),
            1..10 => random.usize(4_000..40_000),
            _ => random.usize(0..200),
        };
        let payload = [&i.to_be_bytes()[..], &vec![i as u8; len]].concat();
        sent.extend(masked(0x82, &payload));
        expected.extend(Frame::binary(&payload).bytes());
    }
    let (mut from, mut to) = Client::open(address).await.0.into_split();
    let writer = tokio::spawn(async move {
        let mut rest = &sent[..];
        while !rest.is_empty() {
            let len = random.usize(1..=300_000).min(rest.len());
            to.write_all(&rest[..len]).await.unwrap();
            rest = &rest[len..];
            tokio::task::yield_now().await;
        }
        to
    });
    let mut received = vec![0; expected.len()];
    from.read_exact(&mut received).await.unwrap();
    assert!(received == expected);
    drop(writer.await.unwrap());
}

/// Messages of any size, delivered in chunks.
fn in_chunks() -> WebSocketConfig {
    let mut config = WebSocketConfig::default();
    config.core.delivery = Delivery::Chunks;
    config.core.limits.message_len_max = u64::MAX;
    config.core.limits.frame_len_max = u64::MAX;
    config
}

#[tokio::test]
async fn forwards_a_message_in_chunks() {
    let mut config = ServerConfig::default();
    config.websocket = in_chunks();
    config.deflate = Some(DeflateConfig::default());
    let address = serve(config, |socket| async move {
        let (mut sender, mut receiver) = socket.split();
        while let Ok(Some(chunk)) = receiver.recv().await {
            let last = chunk.is_last();
            sender.send_chunk(chunk, last).await.unwrap();
        }
    })
    .await;
    for deflate in [None, Some(DeflateConfig::default())] {
        let mut connector = Connector::new().config(in_chunks());
        if let Some(deflate) = deflate {
            connector = connector.deflate(deflate);
        }
        let (mut sender, mut receiver) =
            connector.connect(&format!("ws://{address}/")).await.unwrap().split();
        // 100 MiB, which is over the default limit, and then a short one.
        const CHUNK_LEN: usize = 1 << 20;
        const CHUNKS: usize = 100;
        let send = async {
            for i in 0..CHUNKS {
                sender.send_chunk(&vec![i as u8; CHUNK_LEN], i + 1 == CHUNKS).await.unwrap();
            }
            sender.send("häßlich").await.unwrap();
        };
        let receive = async {
            let mut len = 0;
            loop {
                let chunk: Message<'_> = receiver.recv().await.unwrap().unwrap();
                assert!(chunk.is_binary() && chunk.as_bytes().len() <= 1 << 20);
                assert!(
                    chunk
                        .as_bytes()
                        .iter()
                        .enumerate()
                        .all(|(at, &byte)| byte == ((len + at) / CHUNK_LEN) as u8)
                );
                len += chunk.as_bytes().len();
                if chunk.is_last() {
                    break;
                }
            }
            assert_eq!(len, CHUNKS * CHUNK_LEN);
            assert_eq!(receiver.recv_owned().await.unwrap().unwrap().as_text(), Some("häßlich"));
        };
        tokio::join!(send, receive);
    }
}

#[tokio::test]
async fn recv_owned_returns_whole_messages_whatever_the_delivery() {
    let mut config = ServerConfig::default();
    config.websocket = in_chunks();
    let address = serve(config, |mut socket| async move {
        while let Ok(Some(message)) = socket.recv_owned().await {
            socket.send(message).await.unwrap();
        }
    })
    .await;
    let mut client = Client::open(address).await;
    client.send(&masked(0x01, &"hä".as_bytes()[..2])).await;
    tokio::task::yield_now().await;
    client.send(&[masked(0x00, &"hä".as_bytes()[2..]), masked(0x80, b"!")].concat()).await;
    assert_eq!(client.receive(6).await, [b"\x81\x04", "hä!".as_bytes()].concat());
}
