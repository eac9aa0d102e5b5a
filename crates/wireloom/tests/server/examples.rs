//! Runs each example against another example or a test server.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use wireloom::{CloseCode, Request, Server};
use wireloom_testing::frame::{masked, upgrade_request};

#[path = "../../examples/axum.rs"]
mod axum_example;
#[path = "../../examples/client.rs"]
mod client;
#[path = "../../examples/firehose.rs"]
mod firehose;
#[path = "../../examples/graceful_shutdown.rs"]
mod graceful_shutdown;
#[path = "../../examples/hyper.rs"]
mod hyper_example;
#[path = "../../examples/server.rs"]
mod server;
#[path = "../../examples/smol.rs"]
pub(crate) mod smol_example;
#[path = "../../examples/tonic.rs"]
mod tonic_example;

async fn listen() -> (TcpListener, std::net::SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

#[tokio::test]
async fn the_client_gets_its_answer_from_each_server() {
    let (listener, own) = listen().await;
    tokio::spawn(server::serve(Server::new(listener)));
    let (listener, hyper) = listen().await;
    tokio::spawn(hyper_example::serve(listener));
    let (listener, axum) = listen().await;
    tokio::spawn(axum_example::serve(listener, std::future::pending()));
    let (listener, axum_on_wireloom) = listen().await;
    tokio::spawn(axum_example::serve_by_wireloom(listener));
    for address in [own, hyper, axum, axum_on_wireloom] {
        let answer = client::ask(&format!("ws://{address}/echo"), "hello").await.unwrap();
        assert_eq!(answer.as_deref(), Some("hello"));
    }
}

#[tokio::test]
async fn servers_close_websockets_and_end_when_they_shut_down() {
    let (end, ending) = oneshot::channel::<()>();
    let (listener, address) = listen().await;
    let serving = tokio::spawn(graceful_shutdown::serve(Server::new(listener), async { drop(ending.await) }));
    let (axum_end, ending) = oneshot::channel::<()>();
    let (listener, axum_address) = listen().await;
    let axum_serving = tokio::spawn(axum_example::serve(listener, async { drop(ending.await) }));
    for (address, end, serving) in [(address, end, serving), (axum_address, axum_end, axum_serving)] {
        let mut socket = wireloom::connect(&format!("ws://{address}/echo")).await.unwrap();
        socket.send("hello").await.unwrap();
        assert!(socket.recv().await.unwrap().is_some());
        end.send(()).unwrap();
        let deadline = Duration::from_secs(20);
        assert!(tokio::time::timeout(deadline, socket.recv()).await.unwrap().unwrap().is_none());
        assert_eq!(socket.end().unwrap().code(), CloseCode::GOING_AWAY, "{address}");
        drop(socket);
        tokio::time::timeout(deadline, serving).await.unwrap().unwrap().unwrap();
    }
}

#[tokio::test]
async fn the_firehose_is_consumed_to_its_end() {
    let (listener, address) = listen().await;
    tokio::spawn(Server::new(listener).serve(|request: Request| async move {
        match request.websocket() {
            Ok(upgrade) => upgrade.on_open(|mut socket| async move {
                for len in 0..1000 {
                    socket.send(&vec![7; len]).await.unwrap();
                }
                let _ = socket.close(CloseCode::NORMAL, "").await;
            }),
            Err(refusal) => refusal,
        }
    }));
    let mut totals = firehose::Totals::default();
    firehose::consume(&format!("ws://{address}/"), &mut totals).await.unwrap();
    assert_eq!((totals.events, totals.bytes), (1000, 1000 * 999 / 2));
}

/// A driver without tokio, on a thread of its own. It accepts until the test program ends.
fn serve_with_smol() -> std::net::SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        smol::block_on(smol_example::serve(smol::net::TcpListener::try_from(listener)?))
    });
    address
}

// Its peer is this crate's client.
#[tokio::test]
async fn a_driver_on_another_runtime_echoes_and_closes() {
    let address = serve_with_smol();
    let url = format!("ws://{address}/echo");
    assert_eq!(client::ask(&url, "hello").await.unwrap().as_deref(), Some("hello"));
    let mut socket = wireloom::connect(&url).await.unwrap();
    // Longer than its buffer.
    for len in [0, 1, 125, 16 << 10, 300_000] {
        let message: Vec<u8> = (0..len).map(|byte| byte as u8).collect();
        socket.send(&message).await.unwrap();
        assert!(socket.recv().await.unwrap().unwrap().as_bytes() == message, "{len} bytes");
    }
    socket.ping(b"still there?").await.unwrap();
    socket.send("last").await.unwrap();
    assert_eq!(socket.recv().await.unwrap().unwrap().as_text(), Some("last"));
    assert!(socket.latency().is_some());
    socket.close(CloseCode::NORMAL, "").await.unwrap();
    assert_eq!(socket.end().unwrap().code(), CloseCode::NORMAL);

    let request = wireloom::client::Request::get(format!("http://{address}/"));
    assert_eq!(wireloom::Connector::new().request(request).await.unwrap().status, 426);
}

// Linux resets a socket that receives bytes after it was closed.
#[tokio::test]
async fn a_driver_on_another_runtime_loses_nothing_to_bytes_behind_a_close_frame() {
    const MESSAGES: usize = 60;
    const LEN: usize = 4_096;
    let address = serve_with_smol();
    for pause in [None, Some(Duration::from_millis(50))] {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        // The server has more to send than there is room for.
        socket.set_recv_buffer_size(16 << 10).unwrap();
        let mut stream = socket.connect(address).await.unwrap();
        stream.write_all(upgrade_request("/").as_bytes()).await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        let mut frames = masked(0x82, [7; LEN]).repeat(MESSAGES);
        frames.extend_from_slice(b"\x88\x82\0\0\0\0\x03\xe8");
        stream.write_all(&frames).await.unwrap();
        if let Some(pause) = pause {
            tokio::time::sleep(pause).await;
        }
        stream.write_all(&[0; 256 << 10]).await.unwrap();
        let mut received = Vec::new();
        stream.read_to_end(&mut received).await.unwrap();
        assert_eq!(received.len(), MESSAGES * (4 + LEN) + 4, "{pause:?}");
    }
}

#[tokio::test]
async fn grpc_calls_are_answered_with_messages_and_statuses() {
    let (listener, address) = listen().await;
    tokio::spawn(tonic_example::serve(Server::new(listener)));
    let mut client = tonic_example::GreeterClient::connect(&format!("http://{address}")).await.unwrap();
    assert_eq!(client.say_hello("Ada").await.unwrap(), "Hello, Ada!");
    // The status of a call that fails is in the trailers, or in the headers if there is nothing else.
    let refused = client.say_hello("").await.unwrap_err();
    assert_eq!((refused.code(), refused.message()), (tonic::Code::InvalidArgument, "the name is empty"));
    // Calls at the same time over one connection, one of them with an answer of many frames.
    let long = "x".repeat(5_000);
    let mut other = client.clone();
    let (counted, greeted) = tokio::join!(client.count_letters(&long), other.say_hello("Bob"));
    assert_eq!(greeted.unwrap(), "Hello, Bob!");
    let (mut replies, mut count) = (counted.unwrap(), 0);
    while let Some(reply) = replies.message().await.unwrap() {
        count += 1;
        assert_eq!(reply.text(), format!("{count}: x"));
    }
    assert_eq!(count, 5_000);
}
