//! A server that shuts down while its WebSockets are busy: they get a Close frame and no reset, and every answer before it.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{Notify, Semaphore};
use wireloom::{Request, Response, Server, ServerConfig};
use wireloom_testing::frame::{masked, upgrade_request};

/// Sends without a pause until the server has closed; returns the bytes that it has read.
async fn busy_client(address: std::net::SocketAddr) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(upgrade_request("/").as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    let (mut from, mut to) = stream.into_split();
    let (closed, mut is_closed) = tokio::sync::oneshot::channel::<()>();
    let send = tokio::spawn(async move {
        let mut sent = 0_u32;
        while is_closed.try_recv() == Err(tokio::sync::oneshot::error::TryRecvError::Empty) {
            for _ in 0..20 {
                to.write_all(&masked(0x82, sent.to_be_bytes())).await.expect("no reset");
                sent += 1;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        to.write_all(b"\x88\x82\0\0\0\0\x03\xe9").await.expect("no reset");
        to
    });
    let (mut read, mut closed) = (Vec::<u8>::new(), Some(closed));
    loop {
        let mut bytes = [0; 4096];
        let len = from.read(&mut bytes).await.expect("no reset");
        if len == 0 {
            drop(send.await.unwrap());
            return read;
        }
        read.extend_from_slice(&bytes[..len]);
        if read.iter().step_by(6).any(|&first| first == 0x88)
            && let Some(closed) = closed.take()
        {
            // Messages cross the Close frame on the way.
            tokio::time::sleep(Duration::from_millis(50)).await;
            let _ = closed.send(());
        }
    }
}

// The request has reached the socket, and the task of its connection has not run since. RFC 9112 §9.6: a close would be a reset.
#[tokio::test]
async fn a_request_that_arrived_before_the_shutdown_is_answered() {
    const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    const HEADER: &[u8] = b"PROXY TCP4 192.0.2.7 192.0.2.9 1 80\r\n";
    for (answered_before, proxy) in [(0, ""), (1, ""), (0, "127.0.0.0/8")] {
        let mut config = ServerConfig::default();
        config.proxy_protocol_from = proxy.parse().into_iter().collect();
        let server = Server::bind("127.0.0.1:0").await.unwrap().config(config);
        let (address, handle) = (server.local_addr().unwrap(), server.handle());
        let serving = tokio::spawn(server.serve(async |_: Request| Response::text(200, "answer")));
        let mut stream = TcpStream::connect(address).await.unwrap();
        for _ in 0..answered_before {
            stream.write_all(GET).await.unwrap();
            let mut read = Vec::new();
            while !read.ends_with(b"answer") {
                read.push(stream.read_u8().await.unwrap());
            }
        }
        while handle.stats().connections_open == 0 {
            tokio::task::yield_now().await;
        }
        stream.writable().await.unwrap();
        let sent = if proxy.is_empty() { GET.to_vec() } else { [HEADER, GET].concat() };
        assert_eq!(stream.try_write(&sent).unwrap(), sent.len());
        handle.shut_down();
        let mut read = String::new();
        stream.read_to_string(&mut read).await.unwrap();
        assert!(read.starts_with("HTTP/1.1 200 OK\r\n") && read.ends_with("answer"), "{read}");
        assert!(read.contains("\r\nConnection: close\r\n"), "{read}");
        serving.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn busy_clients_get_every_answer_then_a_close_frame_and_no_reset() {
    let server = Server::bind("127.0.0.1:0").await.unwrap();
    let (address, handle) = (server.local_addr().unwrap(), server.handle());
    let busy = Arc::new(Semaphore::new(0));
    let is_busy = busy.clone();
    let serving = tokio::spawn(server.serve(move |request: wireloom::Request| {
        let busy = is_busy.clone();
        async move {
            match request.websocket() {
                Ok(upgrade) => upgrade.on_open(|socket| async move {
                    let (mut sender, mut receiver) = socket.split();
                    let mut count = 0;
                    while let Ok(Some(message)) = receiver.recv().await {
                        if sender.send(message).await.is_err() {
                            return;
                        }
                        count += 1;
                        if count == 100 {
                            busy.add_permits(1);
                        }
                    }
                }),
                Err(refusal) => refusal,
            }
        }
    }));
    let clients: Vec<_> = (0..8).map(|_| tokio::spawn(busy_client(address))).collect();
    let _all = busy.acquire_many(8).await.unwrap();
    handle.shut_down();
    for client in clients {
        let read = client.await.unwrap();
        let (answers, close) =
            read.split_at(read.iter().step_by(6).take_while(|&&first| first == 0x82).count() * 6);
        for (number, answer) in answers.chunks(6).enumerate() {
            assert_eq!(answer, [&[0x82, 4][..], &(number as u32).to_be_bytes()].concat());
        }
        assert!(answers.len() >= 100 * 6, "{}", answers.len());
        assert_eq!(close[0], 0x88);
        assert_eq!(close[2..4], 1001_u16.to_be_bytes());
        assert_eq!(close.len(), 2 + usize::from(close[1]));
    }
    serving.await.unwrap().unwrap();
}

// The handler has received the first of the messages when the shutdown begins; the others are in its read buffer.
#[tokio::test]
async fn messages_that_were_read_are_answered_before_the_close_frame() {
    const COUNT: u32 = 64;
    let server = Server::bind("127.0.0.1:0").await.unwrap();
    let (address, handle) = (server.local_addr().unwrap(), server.handle());
    let (received, released) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (is_received, release) = (received.clone(), released.clone());
    let serving = tokio::spawn(server.serve(move |request: wireloom::Request| {
        let (received, released) = (received.clone(), released.clone());
        async move {
            match request.websocket() {
                Ok(upgrade) => upgrade.on_open(|socket| async move {
                    let (mut sender, mut receiver) = socket.split();
                    let mut count = 0;
                    while let Ok(Some(message)) = receiver.recv().await {
                        count += 1;
                        if count == 1 {
                            received.notify_one();
                            released.notified().await;
                        }
                        sender.send(message).await.expect("the Close frame was not sent before");
                    }
                }),
                Err(refusal) => refusal,
            }
        }
    }));
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(upgrade_request("/").as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    let messages: Vec<u8> = (0..COUNT).flat_map(|number| masked(0x82, number.to_be_bytes())).collect();
    stream.write_all(&messages).await.unwrap();
    is_received.notified().await;
    handle.shut_down();
    tokio::time::sleep(Duration::from_millis(20)).await;
    release.notify_one();
    let mut answers = vec![0; 6 * COUNT as usize];
    stream.read_exact(&mut answers).await.unwrap();
    for (number, answer) in answers.chunks(6).enumerate() {
        assert_eq!(answer, [&[0x82, 4][..], &(number as u32).to_be_bytes()].concat());
    }
    let mut close = [0; 4];
    stream.read_exact(&mut close).await.unwrap();
    assert_eq!((close[0], &close[2..]), (0x88, &1001_u16.to_be_bytes()[..]));
    stream.write_all(&masked(0x88, 1001_u16.to_be_bytes())).await.unwrap();
    stream.read_to_end(&mut Vec::new()).await.expect("no reset");
    serving.await.unwrap().unwrap();
}

/// A handler that returns without reading what has arrived.
#[tokio::test]
async fn a_handler_that_drops_its_socket_with_unread_bytes_resets_nobody() {
    let server = Server::bind("127.0.0.1:0").await.unwrap();
    let (address, handle) = (server.local_addr().unwrap(), server.handle());
    let serving = tokio::spawn(server.serve(|request: wireloom::Request| async move {
        match request.websocket() {
            Ok(upgrade) => upgrade.on_open(|mut socket| async move {
                socket.recv().await.unwrap();
                socket.send("bye").await.unwrap();
                tokio::time::sleep(Duration::from_millis(100)).await;
            }),
            Err(refusal) => refusal,
        }
    }));
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(upgrade_request("/").as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    for _ in 0..20 {
        stream.write_all(&masked(0x82, [0; 1 << 14])).await.unwrap();
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mut read = Vec::new();
    stream.read_to_end(&mut read).await.expect("no reset");
    assert_eq!(read, b"\x81\x03bye\x88\x02\x03\xe9");
    // The connection is the server's until the peer has closed it.
    stream.write_all(b"still dropped").await.expect("no reset");
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(handle.stats().connections_open, 1);
    drop(stream);
    handle.shut_down();
    // Sooner than the connection would be given up.
    tokio::time::timeout(Duration::from_secs(9), serving).await.expect("it ends").unwrap().unwrap();
}

/// A handler that passes its WebSockets on, and returns or not.
fn pass_on(
    passed: tokio::sync::mpsc::UnboundedSender<wireloom::WebSocket>,
    returns: bool,
) -> impl wireloom::Handler {
    move |request: wireloom::Request| {
        let passed = passed.clone();
        async move {
            match request.websocket() {
                Ok(upgrade) => upgrade.on_open(async move |socket| {
                    let _ = passed.send(socket);
                    if !returns {
                        std::future::pending::<()>().await;
                    }
                }),
                Err(refusal) => refusal,
            }
        }
    }
}

// A task writes the bytes that the socket does not accept at once, or the WebSocket was passed on.
#[tokio::test]
async fn a_dropped_websocket_counts_until_its_peer_has_closed() {
    const LEN: usize = 16 << 20;
    for is_passed_on in [false, true] {
        let (passed, mut sockets) = tokio::sync::mpsc::unbounded_channel();
        let server = Server::bind("127.0.0.1:0").await.unwrap();
        let (address, handle) = (server.local_addr().unwrap(), server.handle());
        let serving = tokio::spawn(server.serve(move |request: wireloom::Request| {
            let passed = passed.clone();
            async move {
                match request.websocket() {
                    Ok(upgrade) => upgrade.on_open(async move |mut socket| {
                        if is_passed_on {
                            let _ = passed.send(socket);
                        } else {
                            socket.feed(vec![7; LEN]).await.unwrap();
                        }
                    }),
                    Err(refusal) => refusal,
                }
            }
        }));
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(upgrade_request("/").as_bytes()).await.unwrap();
        if is_passed_on {
            drop(sockets.recv().await.unwrap());
        }
        let mut read = Vec::new();
        stream.read_to_end(&mut read).await.unwrap();
        assert!(read.ends_with(b"\x88\x02\x03\xe9") && (is_passed_on || read.len() > LEN), "{is_passed_on}");
        // Much less than the close timeout.
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(handle.stats().connections_open, 1, "{is_passed_on}");
        handle.shut_down();
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(!serving.is_finished(), "{is_passed_on}");
        drop(stream);
        tokio::time::timeout(Duration::from_secs(5), serving).await.expect("it ends").unwrap().unwrap();
    }
}

// Another task has it.
#[tokio::test]
async fn a_websocket_that_was_dropped_while_its_handler_runs_counts_until_its_peer_has_closed() {
    for len in [0, 16 << 20] {
        let (passed, mut sockets) = tokio::sync::mpsc::unbounded_channel::<wireloom::WebSocket>();
        let finish = std::sync::Arc::new(tokio::sync::Notify::new());
        let server = Server::bind("127.0.0.1:0").await.unwrap();
        let (address, handle) = (server.local_addr().unwrap(), server.handle());
        let finished = finish.clone();
        let serving = tokio::spawn(server.serve(move |request: wireloom::Request| {
            let (passed, finished) = (passed.clone(), finished.clone());
            async move {
                match request.websocket() {
                    Ok(upgrade) => upgrade.on_open(async move |socket| {
                        let _ = passed.send(socket);
                        finished.notified().await;
                    }),
                    Err(refusal) => refusal,
                }
            }
        }));
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(upgrade_request("/").as_bytes()).await.unwrap();
        let mut socket = sockets.recv().await.unwrap();
        socket.feed(vec![7; len]).await.unwrap();
        drop(socket);
        let mut read = Vec::new();
        stream.read_to_end(&mut read).await.unwrap();
        assert!(read.ends_with(b"\x88\x02\x03\xe9") && read.len() > len, "{len}");
        finish.notify_one();
        // Much less than the close timeout.
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(handle.stats().websockets_open, 1, "{len}");
        handle.shut_down();
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(!serving.is_finished(), "{len}");
        drop(stream);
        tokio::time::timeout(Duration::from_secs(5), serving).await.expect("it ends").unwrap().unwrap();
    }
}

// Its owner is a thread without a runtime, and sends more than the socket accepts: the task of the server writes the rest.
#[tokio::test]
async fn a_websocket_that_is_dropped_outside_of_the_runtime_is_written_until_the_close_timeout() {
    const LEN: usize = 32 << 20;
    for reads in [true, false] {
        let (passed, mut sockets) = tokio::sync::mpsc::unbounded_channel::<wireloom::WebSocket>();
        let mut config = wireloom::ServerConfig::default();
        config.websocket.core.close_timeout = Duration::from_secs(1);
        let server = Server::bind("127.0.0.1:0").await.unwrap().config(config);
        let (address, handle) = (server.local_addr().unwrap(), server.handle());
        tokio::spawn(server.serve(pass_on(passed, true)));
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(upgrade_request("/").as_bytes()).await.unwrap();
        let (mut sender, receiver) = sockets.recv().await.unwrap().split();
        let owner = std::thread::spawn(move || {
            assert!(sender.try_send(vec![7; LEN]).unwrap());
            drop((sender, receiver));
        });
        owner.join().unwrap();
        if reads {
            let mut read = Vec::new();
            stream.read_to_end(&mut read).await.unwrap();
            assert!(read.ends_with(b"\x88\x02\x03\xe9") && read.len() > LEN);
            drop(stream);
        }
        // Much less than the time for which a slow peer may stall.
        let ending = async {
            while handle.stats().connections_open > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), ending).await.expect("it has ended");
    }
}

// Its transport lingers in a task of its own.
#[tokio::test]
async fn a_websocket_that_was_dropped_ends_with_its_server() {
    let (passed, mut sockets) = tokio::sync::mpsc::unbounded_channel();
    let server = Server::bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().unwrap();
    let serving = tokio::spawn(server.serve(pass_on(passed, false)));
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(upgrade_request("/").as_bytes()).await.unwrap();
    drop(sockets.recv().await.unwrap());
    let mut read = Vec::new();
    stream.read_to_end(&mut read).await.unwrap();
    assert!(read.ends_with(b"\x88\x02\x03\xe9"));
    stream.write_all(b"dropped").await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    stream.write_all(b"dropped").await.expect("it lingers");
    serving.abort();
    // Much less than the close timeout.
    let refused = async {
        while stream.write_all(b"refused").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(5), refused).await.expect("the transport is closed");
}

// The connection's own task waits for the peer.
#[tokio::test]
async fn a_handler_that_drops_its_websocket_needs_no_other_task() {
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    for returns in [false, true] {
        let (release, is_released) = tokio::sync::oneshot::channel::<()>();
        let is_released = std::sync::Mutex::new(Some(is_released));
        let server = Server::bind("127.0.0.1:0").await.unwrap();
        let address = server.local_addr().unwrap();
        let serving = tokio::spawn(server.serve(move |request: wireloom::Request| {
            let is_released = is_released.lock().unwrap().take().unwrap();
            async move {
                match request.websocket() {
                    Ok(upgrade) => upgrade.on_open(async move |socket| {
                        let _ = is_released.await;
                        drop(socket);
                        if !returns {
                            std::future::pending::<()>().await;
                        }
                    }),
                    Err(refusal) => refusal,
                }
            }
        }));
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(upgrade_request("/").as_bytes()).await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        let before = tasks();
        release.send(()).unwrap();
        let mut read = Vec::new();
        stream.read_to_end(&mut read).await.unwrap();
        assert_eq!(read, b"\x88\x02\x03\xe9");
        assert_eq!(tasks(), before, "{returns}");
        serving.abort();
        let _ = serving.await;
    }
}

// It is driven twice: by the server, and within that by its handler.
#[tokio::test]
async fn a_websocket_that_its_handler_drives_counts_until_its_peer_has_closed() {
    for len in [0, 16 << 20] {
        let server = Server::bind("127.0.0.1:0").await.unwrap();
        let (address, handle) = (server.local_addr().unwrap(), server.handle());
        tokio::spawn(server.serve(move |request: wireloom::Request| async move {
            match request.websocket() {
                Ok(upgrade) => upgrade.on_open(async move |socket| {
                    let driven = socket.drive(async move |mut socket| {
                        socket.feed(vec![7; len]).await.unwrap();
                    });
                    driven.await;
                }),
                Err(refusal) => refusal,
            }
        }));
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(upgrade_request("/").as_bytes()).await.unwrap();
        let mut read = Vec::new();
        stream.read_to_end(&mut read).await.unwrap();
        assert!(read.ends_with(b"\x88\x02\x03\xe9") && read.len() > len, "{len}");
        // Much less than the close timeout.
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(handle.stats().connections_open, 1, "{len}");
        drop(stream);
        let ending = async {
            while handle.stats().connections_open > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(5), ending).await.expect("it has ended");
    }
}

// A handler may pass its WebSocket to another task and return, as applications with one task for all of them do.
#[tokio::test]
async fn a_websocket_that_its_handler_has_passed_on_is_closed_by_a_shutdown() {
    let (passed, mut sockets) = tokio::sync::mpsc::unbounded_channel::<wireloom::WebSocket>();
    let mut config = wireloom::ServerConfig::default();
    config.connections_per_address_max = Some(2);
    let server = Server::bind("127.0.0.1:0").await.unwrap().config(config);
    let (address, handle) = (server.local_addr().unwrap(), server.handle());
    let serving = tokio::spawn(server.serve(pass_on(passed, true)));
    let url = format!("ws://{address}/");
    let (mut first, mut second) =
        (wireloom::connect(&url).await.unwrap(), wireloom::connect(&url).await.unwrap());
    let echo = |mut socket: wireloom::WebSocket| {
        tokio::spawn(async move {
            while let Ok(Some(message)) = socket.recv_owned().await {
                let _ = socket.send(message).await;
            }
        })
    };
    let echoing = [echo(sockets.recv().await.unwrap()), echo(sockets.recv().await.unwrap())];
    for client in [&mut first, &mut second] {
        client.send("hi").await.unwrap();
        assert_eq!(client.recv().await.unwrap().unwrap().as_text(), Some("hi"));
    }
    // It is counted as long as it is open.
    assert_eq!(handle.stats().websockets_open, 2);
    assert!(wireloom::connect(&url).await.is_err());
    second.close(wireloom::CloseCode::NORMAL, "").await.unwrap();
    while handle.stats().websockets_open > 1 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    handle.shut_down();
    assert!(first.recv().await.unwrap().is_none());
    assert_eq!(first.end().unwrap().code(), wireloom::CloseCode::GOING_AWAY);
    let served = tokio::time::timeout(Duration::from_secs(5), serving).await;
    served.expect("nothing is open").unwrap().unwrap();
    for echo in echoing {
        echo.await.unwrap();
    }
}

// The task that has it waits for the transport as the server does.
#[tokio::test]
async fn a_websocket_that_its_handler_has_passed_on_to_be_driven_counts_until_its_end() {
    const LEN: usize = 16 << 20;
    let (passed, mut sockets) = tokio::sync::mpsc::unbounded_channel::<wireloom::WebSocket>();
    let server = Server::bind("127.0.0.1:0").await.unwrap();
    let (address, handle) = (server.local_addr().unwrap(), server.handle());
    tokio::spawn(server.serve(pass_on(passed, true)));
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(upgrade_request("/").as_bytes()).await.unwrap();
    let socket = sockets.recv().await.unwrap();
    let driving = tokio::spawn(socket.drive(async |mut socket| socket.send(vec![7; LEN]).await));
    // It does not read for a while.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let mut read = Vec::new();
    stream.read_to_end(&mut read).await.unwrap();
    assert!(read.ends_with(b"\x88\x02\x03\xe9") && read.len() > LEN);
    driving.await.unwrap().unwrap();
    assert_eq!(handle.stats().connections_open, 1);
    drop(stream);
    let ending = async {
        while handle.stats().connections_open > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(5), ending).await.expect("it is counted no longer");
}

// The peer has sent its last messages and has left. The application finds that out by writing, and has not read them yet.
#[tokio::test]
async fn what_has_arrived_on_a_websocket_that_was_passed_on_is_read_after_a_failed_write() {
    for is_read in [true, false] {
        let (passed, mut sockets) = tokio::sync::mpsc::unbounded_channel::<wireloom::WebSocket>();
        let server = Server::bind("127.0.0.1:0").await.unwrap();
        let (address, handle) = (server.local_addr().unwrap(), server.handle());
        tokio::spawn(server.serve(pass_on(passed, true)));
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(upgrade_request("/").as_bytes()).await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        let mut socket = sockets.recv().await.unwrap();
        let last = [masked(0x82, b"one"), masked(0x82, b"two"), masked(0x88, 4_000_u16.to_be_bytes())];
        stream.write_all(&last.concat()).await.unwrap();
        drop(stream);
        let sending = async {
            while socket.send("news").await.is_ok() && socket.flush().await.is_ok() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), sending).await.expect("the peer has left");
        // Lets the server notice it.
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(handle.stats().connections_open, 1, "{is_read}");
        if is_read {
            for expected in [b"one", b"two"] {
                assert_eq!(socket.recv().await.unwrap().unwrap().as_bytes(), expected);
            }
            assert!(socket.recv().await.unwrap().is_none());
            assert_eq!(socket.end().unwrap().code().value(), 4_000);
        } else {
            drop(socket);
        }
        let ending = async {
            while handle.stats().connections_open > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(5), ending).await.expect("it has ended");
    }
}

// The task that has the WebSocket does not use it.
#[tokio::test]
async fn a_websocket_that_its_handler_has_passed_on_ends_with_its_server() {
    let (passed, mut sockets) = tokio::sync::mpsc::unbounded_channel::<wireloom::WebSocket>();
    let server = Server::bind("127.0.0.1:0").await.unwrap();
    let (address, handle) = (server.local_addr().unwrap(), server.handle());
    let serving = tokio::spawn(server.serve(pass_on(passed, true)));
    let mut client = wireloom::connect(&format!("ws://{address}/")).await.unwrap();
    let mut kept = sockets.recv().await.unwrap();
    handle.abort();
    tokio::time::timeout(Duration::from_secs(5), serving).await.expect("it ends").unwrap().unwrap();
    let received =
        tokio::time::timeout(Duration::from_secs(5), client.recv()).await.expect("the server is gone");
    assert!(received.unwrap().is_none());
    assert_eq!(client.end().unwrap().code(), wireloom::CloseCode::GOING_AWAY);
    assert!(!kept.is_open());
    assert!(kept.send("hi").await.is_err());
}

// An application that keeps a half of a WebSocket that has ended does not keep its connection.
#[tokio::test]
async fn a_half_of_an_ended_websocket_delays_no_shutdown() {
    let (passed, mut sockets) = tokio::sync::mpsc::unbounded_channel();
    let server = Server::bind("127.0.0.1:0").await.unwrap();
    let (address, handle) = (server.local_addr().unwrap(), server.handle());
    let serving = tokio::spawn(server.serve(move |request: wireloom::Request| {
        let passed = passed.clone();
        async move {
            match request.websocket() {
                Ok(upgrade) => upgrade.on_open(async move |socket| {
                    let (sender, mut receiver) = socket.split();
                    let _ = passed.send(sender);
                    while let Ok(Some(_)) = receiver.recv().await {}
                }),
                Err(refusal) => refusal,
            }
        }
    }));
    let mut client = wireloom::connect(&format!("ws://{address}/")).await.unwrap();
    let _sender = sockets.recv().await.unwrap();
    client.close(wireloom::CloseCode::NORMAL, "").await.unwrap();
    handle.shut_down();
    let served = tokio::time::timeout(Duration::from_secs(5), serving).await;
    served.expect("nothing is open").unwrap().unwrap();
}

#[tokio::test]
async fn a_server_that_no_longer_accepts_keeps_serving_its_connections() {
    let server = Server::bind("127.0.0.1:0").await.unwrap();
    let (address, handle) = (server.local_addr().unwrap(), server.handle());
    let serving = tokio::spawn(server.serve(|request: wireloom::Request| async move {
        match request.websocket() {
            Ok(upgrade) => upgrade.on_open(|mut socket| async move {
                while let Ok(Some(message)) = socket.recv().await {
                    let message = message.as_bytes().to_vec();
                    socket.send(message).await.unwrap();
                }
            }),
            Err(_) => wireloom::Response::text(200, "hello\n"),
        }
    }));
    let mut idle = TcpStream::connect(address).await.unwrap();
    let mut open = wireloom::connect(&format!("ws://{address}/")).await.unwrap();
    handle.stop_accepting();
    while TcpStream::connect(address).await.is_ok() {
        tokio::task::yield_now().await;
    }
    open.send(&b"a"[..]).await.unwrap();
    assert_eq!(open.recv().await.unwrap().unwrap().as_bytes(), b"a");
    idle.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    let mut response = String::new();
    idle.read_to_string(&mut response).await.unwrap();
    assert!(response.starts_with("HTTP/1.1 200 ") && response.ends_with("hello\n"), "{response}");
    assert!(!serving.is_finished());
    handle.shut_down();
    assert!(open.recv().await.unwrap().is_none());
    serving.await.unwrap().unwrap();
}

/// A pipe. Writes to it wait for a mutex, and report that before: meanwhile the WebSocket is in use, as one that compresses.
struct Slow {
    pipe: DuplexStream,
    written: mpsc::Sender<()>,
    gate: Arc<Mutex<()>>,
}

impl AsyncRead for Slow {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipe).poll_read(cx, into)
    }
}

impl AsyncWrite for Slow {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.written.send(()).unwrap();
        drop(self.gate.lock().unwrap());
        Pin::new(&mut self.pipe).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipe).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipe).poll_shutdown(cx)
    }
}

/// Accepts one pipe.
struct Once(Option<Slow>);

impl wireloom::server::Listener for Once {
    type Transport = Slow;

    async fn accept(&mut self) -> io::Result<(Slow, std::net::SocketAddr)> {
        match self.0.take() {
            Some(pipe) => Ok((pipe, (std::net::Ipv4Addr::LOCALHOST, 7).into())),
            None => std::future::pending().await,
        }
    }
}

// Lingering is for the response, and its client may send for a minute.
#[tokio::test(start_paused = true)]
async fn a_shutdown_does_not_wait_for_the_rest_of_refused_requests() {
    let (mut client, pipe) = tokio::io::duplex(1 << 20);
    let server = Server::new(crate::listeners::Pipes::one(pipe));
    let handle = server.handle();
    let serving = tokio::spawn(server.serve(|_: Request| async { wireloom::Response::new(413) }));
    client.write_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000\r\n\r\n").await.unwrap();
    client.read_exact(&mut [0; 12]).await.unwrap();
    let sending = tokio::spawn(async move {
        while client.write_all(&[7; 1 << 20]).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    });
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(!sending.is_finished());
    let begin = tokio::time::Instant::now();
    handle.shut_down();
    serving.await.unwrap().unwrap();
    assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
}

#[test]
fn a_shutdown_outside_of_the_runtime_does_not_wait_for_a_websocket_in_use() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (client, pipe) = tokio::io::duplex(1 << 10);
    let (written, writes) = mpsc::channel();
    let gate = Arc::new(Mutex::new(()));
    let server = Server::new(Once(Some(Slow { pipe, written, gate: gate.clone() })));
    let handle = server.handle();
    let echo = |mut socket: wireloom::WebSocket| async move {
        while let Ok(Some(message)) = socket.recv_owned().await {
            let _ = socket.send(message).await;
        }
    };
    let serving = runtime.spawn(server.serve(move |request: Request| async move {
        request.websocket().map_or_else(|refusal| refusal, |upgrade| upgrade.on_open(echo))
    }));
    let mut client = runtime.block_on(wireloom::connect_over(client, "ws://localhost/")).unwrap();
    writes.try_iter().for_each(drop);
    let is_shut = gate.lock().unwrap();
    runtime.block_on(client.send("hi")).unwrap();
    // The server writes its echo.
    writes.recv().unwrap();
    let (done, is_done) = mpsc::channel();
    std::thread::spawn(move || {
        handle.shut_down();
        done.send(()).unwrap();
    });
    is_done.recv_timeout(Duration::from_secs(20)).expect("it returns");
    drop(is_shut);
    runtime.block_on(async {
        assert_eq!(client.recv().await.unwrap().unwrap().as_text(), Some("hi"));
        assert!(client.recv().await.unwrap().is_none());
        assert_eq!(client.end().unwrap().code(), wireloom::CloseCode::GOING_AWAY);
        drop(client);
        serving.await.unwrap().unwrap();
    });
}
