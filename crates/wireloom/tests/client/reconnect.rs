//! Connections that are lost and opened again, and the messages that may be lost with them.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use wireloom::client::{Loss, LossReason, ReconnectEvent, ReconnectPolicy, Reconnecting, Retry};
use wireloom::{CloseCode, Connector, Error, OwnedMessage, Request, Response, Server, WebSocketError};

use super::serve;

/// How a relay treats bytes.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
enum Mode {
    Pass,
    /// Drops the bytes of the client.
    Swallow,
    Cut,
}

/// A relay to the server; returns its address.
async fn relay(server: SocketAddr, mode: watch::Receiver<Mode>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let mut mode = mode.clone();
            tokio::spawn(async move {
                let server = TcpStream::connect(server).await.unwrap();
                let (mut from_client, mut to_client) = client.into_split();
                let (mut from_server, mut to_server) = server.into_split();
                let seen = mode.clone();
                let up = tokio::spawn(async move {
                    let mut bytes = [0; 4096];
                    while let Ok(len @ 1..) = from_client.read(&mut bytes).await {
                        if *seen.borrow() == Mode::Pass {
                            let _ = to_server.write_all(&bytes[..len]).await;
                        }
                    }
                });
                let down = tokio::spawn(async move {
                    let _ = tokio::io::copy(&mut from_server, &mut to_client).await;
                });
                let _ = mode.wait_for(|mode| *mode == Mode::Cut).await;
                up.abort();
                down.abort();
            });
        }
    });
    address
}

fn quick() -> ReconnectPolicy {
    let mut policy = ReconnectPolicy::default();
    policy.delay_first = Duration::from_millis(20);
    policy.confirm_after = Duration::from_millis(10);
    policy.keep_len_max = 1000;
    policy
}

async fn step(socket: &mut Reconnecting) -> ReconnectEvent {
    let next = tokio::time::timeout(Duration::from_secs(10), socket.next());
    next.await.unwrap().unwrap().unwrap()
}

async fn connected(socket: &mut Reconnecting) -> Option<Duration> {
    match step(socket).await {
        ReconnectEvent::Connected(connected) => connected.gap,
        other => panic!("{other:?}"),
    }
}

async fn text(socket: &mut Reconnecting) -> String {
    match step(socket).await {
        ReconnectEvent::Message(message) => message.as_text().unwrap().to_owned(),
        other => panic!("{other:?}"),
    }
}

async fn lost(socket: &mut Reconnecting) -> Loss {
    match step(socket).await {
        ReconnectEvent::Lost(loss) => loss,
        other => panic!("{other:?}"),
    }
}

// A deadline beyond what the clock can represent never comes.
#[tokio::test]
async fn deadlines_may_be_unlimited() {
    for (confirm_after, confirm_timeout) in
        [(Duration::MAX, Duration::MAX), (Duration::from_millis(10), Duration::MAX)]
    {
        let policy =
            ReconnectPolicy { confirm_after, confirm_timeout, stable_after: Duration::MAX, ..quick() };
        let mut socket = Connector::new().reconnecting(format!("ws://{}/", serve().await), policy);
        assert_eq!(connected(&mut socket).await, None);
        assert_eq!(text(&mut socket).await, "/ ");
        socket.send("a").await.unwrap();
        assert_eq!(text(&mut socket).await, "a");
        let waited = tokio::time::timeout(Duration::from_millis(50), socket.next()).await;
        assert!(waited.is_err(), "{waited:?}");
    }
}

#[tokio::test]
async fn reports_messages_that_may_be_lost() {
    let (mode, watched) = watch::channel(Mode::Pass);
    let at = relay(serve().await, watched).await;
    let mut socket = Connector::new().reconnecting(format!("ws://{at}/"), quick());
    assert_eq!(socket.send("early").await, Err(WebSocketError::Closed));
    assert_eq!(connected(&mut socket).await, None);
    assert_eq!(text(&mut socket).await, "/ ");
    socket.send("a").await.unwrap();
    assert_eq!(text(&mut socket).await, "a");
    // Until a pong confirms it. Dropping the future is cancel-safe.
    while socket.unconfirmed() > 0 {
        let waited = tokio::time::timeout(Duration::from_millis(5), socket.next()).await;
        assert!(waited.is_err(), "{waited:?}");
    }
    mode.send(Mode::Swallow).unwrap();
    socket.send("b").await.unwrap();
    socket.send("c").await.unwrap();
    assert_eq!(socket.unconfirmed(), 2);
    mode.send(Mode::Cut).unwrap();
    let loss = lost(&mut socket).await;
    assert_eq!(
        (loss.reason, loss.sent, loss.unconfirmed, loss.received),
        (LossReason::Failed(WebSocketError::ConnectionLost), 3, 2, 2)
    );
    assert_eq!(loss.kept, ["b".into(), "c".into()]);
    assert!(loss.retry_in.unwrap() <= Duration::from_millis(20));
    mode.send(Mode::Pass).unwrap();
    assert!(connected(&mut socket).await.is_some());
    assert_eq!(text(&mut socket).await, "/ ");
    for message in loss.kept {
        socket.send(message).await.unwrap();
    }
    assert_eq!((text(&mut socket).await, text(&mut socket).await), ("b".into(), "c".into()));
    socket.close(CloseCode::NORMAL, "").await.unwrap();
    assert!(socket.next().await.unwrap().is_none());
}

#[tokio::test]
async fn a_connection_without_confirmation_is_lost() {
    let (mode, watched) = watch::channel(Mode::Pass);
    let at = relay(serve().await, watched).await;
    let mut policy = quick();
    policy.confirm_timeout = Duration::from_millis(100);
    let mut socket = Connector::new().reconnecting(format!("ws://{at}/"), policy);
    connected(&mut socket).await;
    assert_eq!(text(&mut socket).await, "/ ");
    mode.send(Mode::Swallow).unwrap();
    socket.send("a").await.unwrap();
    let loss = lost(&mut socket).await;
    assert_eq!((loss.reason, loss.unconfirmed), (LossReason::Failed(WebSocketError::KeepaliveTimeout), 1));
}

#[tokio::test]
async fn clients_notice_a_silent_server_by_default() {
    let (mode, watched) = watch::channel(Mode::Pass);
    let at = relay(serve().await, watched).await;
    let mut socket = wireloom::connect(&format!("ws://{at}/")).await.unwrap();
    assert_eq!(socket.recv().await.unwrap().unwrap().as_text(), Some("/ "));
    mode.send(Mode::Swallow).unwrap();
    tokio::time::pause();
    let start = tokio::time::Instant::now();
    assert_eq!(socket.recv().await.unwrap_err(), WebSocketError::KeepaliveTimeout);
    // The 60 seconds began with the message, a moment before the clock was paused.
    let elapsed = start.elapsed();
    assert!((Duration::from_secs(50)..=Duration::from_secs(61)).contains(&elapsed), "{elapsed:?}");
}

// No message waits for a confirmation.
#[tokio::test]
async fn a_reconnecting_client_notices_a_silent_server_by_default() {
    let (mode, watched) = watch::channel(Mode::Pass);
    let at = relay(serve().await, watched).await;
    let mut socket = Connector::new().reconnecting(format!("ws://{at}/"), ReconnectPolicy::default());
    connected(&mut socket).await;
    assert_eq!(text(&mut socket).await, "/ ");
    mode.send(Mode::Swallow).unwrap();
    tokio::time::pause();
    let start = tokio::time::Instant::now();
    let Some(ReconnectEvent::Lost(loss)) = socket.next().await.unwrap() else { panic!("not lost") };
    assert_eq!(loss.reason, LossReason::Failed(WebSocketError::KeepaliveTimeout));
    let elapsed = start.elapsed();
    assert!((Duration::from_secs(50)..=Duration::from_secs(61)).contains(&elapsed), "{elapsed:?}");
}

/// Closes with the code that the path names.
async fn closing(request: Request) -> Response {
    let code: u16 = request.path()[1..].parse().unwrap();
    match request.websocket() {
        Ok(upgrade) => upgrade.on_open(move |mut socket| async move {
            let _ = socket.close(CloseCode::new(code), "so it is").await;
        }),
        Err(refusal) => refusal,
    }
}

#[tokio::test]
async fn does_not_reconnect_after_a_final_close_code() {
    let server = Server::bind("127.0.0.1:0").await.unwrap();
    let at = server.local_addr().unwrap();
    tokio::spawn(server.serve(closing));
    for (code, again) in [(1000, false), (1008, false), (4001, false), (1001, true), (1012, true)] {
        let mut socket = Connector::new().reconnecting(format!("ws://{at}/{code}"), quick());
        connected(&mut socket).await;
        let loss = lost(&mut socket).await;
        let LossReason::Closed(end) = loss.reason else { panic!("{:?}", loss.reason) };
        assert_eq!((end.code().value(), loss.retry_in.is_some()), (code, again));
        if again {
            assert!(connected(&mut socket).await.is_some());
        } else {
            assert!(socket.next().await.unwrap().is_none());
            assert!(!socket.is_connected());
        }
    }
    // A policy overrides that.
    let mut policy = quick();
    let code = 4001;
    policy.retry =
        Retry::when(move |reason| matches!(reason, LossReason::Closed(end) if end.code().value() == code));
    let mut socket = Connector::new().reconnecting(format!("ws://{at}/4001"), policy);
    connected(&mut socket).await;
    assert!(lost(&mut socket).await.retry_in.is_some());
}

// A rolling deployment: for a moment no server has the path. Its clients were connected before, so they come back. Those that were never connected
// have the wrong URL.
#[tokio::test]
async fn reconnects_after_a_refusal_that_was_final_for_the_first_connection() {
    let server = Server::bind("127.0.0.1:0").await.unwrap();
    let at = server.local_addr().unwrap();
    let requests = AtomicU32::new(0);
    tokio::spawn(server.serve(move |request: Request| {
        let response = match requests.fetch_add(1, Ordering::Relaxed) {
            1 | 4 => Response::new(404),
            2 => Response::text(200, "we will be back soon\n"),
            _ => match request.websocket() {
                Ok(upgrade) => upgrade.on_open(async |mut socket| {
                    let _ = socket.close(CloseCode::new(1012), "").await;
                }),
                Err(refusal) => refusal,
            },
        };
        std::future::ready(response)
    }));
    let policy = ReconnectPolicy { delay_max: Duration::from_millis(20), ..quick() };
    let mut socket = Connector::new().reconnecting(format!("ws://{at}/"), policy.clone());
    assert!(connected(&mut socket).await.is_none());
    assert!(lost(&mut socket).await.retry_in.is_some());
    for expected in [404, 200] {
        let ReconnectEvent::NotOpened { error: Error::Refused(response), .. } = step(&mut socket).await
        else {
            panic!("it is open")
        };
        assert_eq!(response.status(), expected);
    }
    assert!(connected(&mut socket).await.is_some());
    let mut first = Connector::new().reconnecting(format!("ws://{at}/"), policy);
    assert!(matches!(first.next().await, Err(Error::Refused(_))));
}

#[tokio::test]
async fn gives_up_after_the_last_attempt() {
    let (_taken, closed) = wireloom_testing::refusing();
    let mut policy = quick();
    policy.attempts_max = Some(2);
    let mut socket = Connector::new().reconnecting(format!("ws://{closed}/"), policy);
    let refused = Error::Io(std::io::ErrorKind::ConnectionRefused.into());
    for _ in 0..2 {
        match step(&mut socket).await {
            ReconnectEvent::NotOpened { error, .. } => assert_eq!(error, refused),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(socket.next().await.unwrap_err(), refused);
    assert!(socket.next().await.unwrap().is_none());
    let mut socket = Connector::new().reconnecting("nonsense", quick());
    assert!(matches!(socket.next().await, Err(Error::InvalidUrl(_))));
}

// A connection that is lost at once does not reset the count.
#[tokio::test]
async fn counts_attempts_until_a_connection_is_stable() {
    let server = Server::bind("127.0.0.1:0").await.unwrap();
    let at = server.local_addr().unwrap();
    tokio::spawn(server.serve(closing));
    for (stable_after, losses) in [(Duration::from_secs(60), 3), (Duration::ZERO, 10)] {
        let mut policy = quick();
        policy.attempts_max = Some(2);
        policy.delay_max = Duration::from_millis(1);
        policy.stable_after = stable_after;
        let mut socket = Connector::new().reconnecting(format!("ws://{at}/1012"), policy);
        for count in 1..=losses {
            connected(&mut socket).await;
            let more = lost(&mut socket).await.retry_in.is_some();
            assert_eq!(more, stable_after.is_zero() || count < losses, "{count}");
        }
    }
}

// RFC 6455 §7.2.3: clients of one server that failed do not return at the same time.
#[tokio::test]
async fn each_waits_for_a_random_time() {
    let (_taken, at) = wireloom_testing::refusing();
    let policy = ReconnectPolicy { delay_first: Duration::from_secs(3600), ..quick() };
    let mut delays = Vec::new();
    for _ in 0..3 {
        let mut socket = Connector::new().reconnecting(format!("ws://{at}/"), policy.clone());
        let ReconnectEvent::NotOpened { retry_in, .. } = step(&mut socket).await else { panic!("open") };
        delays.push(retry_in);
    }
    delays.sort();
    delays.dedup();
    assert!(delays.len() == 3 && delays[2] < policy.delay_max, "{delays:?}");
}

/// A server that reports every message.
async fn reporting(notes: mpsc::UnboundedSender<u32>) -> SocketAddr {
    let server = Server::bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().unwrap();
    tokio::spawn(server.serve(move |request: Request| {
        let notes = notes.clone();
        async move {
            match request.websocket() {
                Ok(upgrade) => upgrade.on_open(move |mut socket| async move {
                    while let Ok(Some(message)) = socket.recv().await {
                        let _ = notes.send(message.as_text().unwrap().parse().unwrap());
                    }
                }),
                Err(refusal) => refusal,
            }
        }
    }));
    address
}

// An application that resends the unconfirmed messages loses none, wherever the connections break.
#[tokio::test]
async fn only_unconfirmed_messages_can_be_lost() {
    let mut rng = wireloom_testing::generator();
    let (notes, mut noted) = mpsc::unbounded_channel();
    let server = reporting(notes).await;
    let mut policy = quick();
    policy.delay_max = Duration::from_millis(1);
    policy.confirm_after = Duration::ZERO;
    policy.keep_len_max = 1 << 20;
    let (mode, watched) = watch::channel(Mode::Pass);
    let at = relay(server, watched).await;
    let mut socket = Connector::new().reconnecting(format!("ws://{at}/"), policy);
    let (mut next, mut again) = (0u32, Vec::new());
    let mut losses = 0;
    while losses < 20 {
        if socket.is_connected() {
            for _ in 0..rng.u32(..20) {
                again.push(next.to_string().into());
                next += 1;
            }
            send_all(&mut socket, &mut again).await;
        }
        if socket.is_connected() && rng.u8(..10) == 0 {
            mode.send(if rng.bool() { Mode::Swallow } else { Mode::Cut }).unwrap();
        }
        match tokio::time::timeout(Duration::from_millis(rng.u64(1..4)), socket.next()).await {
            Err(_) if *mode.borrow() == Mode::Swallow => drop(mode.send(Mode::Cut)),
            Err(_) => {}
            Ok(step) => match step.unwrap().unwrap() {
                ReconnectEvent::Lost(loss) => {
                    assert_eq!(loss.unconfirmed, loss.kept.len() as u64);
                    again.extend(loss.kept);
                    losses += 1;
                    mode.send(Mode::Pass).unwrap();
                }
                ReconnectEvent::Connected(_) | ReconnectEvent::NotOpened { .. } => {}
                other => panic!("{other:?}"),
            },
        }
    }
    mode.send(Mode::Pass).unwrap();
    while !again.is_empty() || socket.unconfirmed() > 0 {
        send_all(&mut socket, &mut again).await;
        match tokio::time::timeout(Duration::from_millis(5), socket.next()).await {
            Ok(Ok(Some(ReconnectEvent::Lost(loss)))) => again.extend(loss.kept),
            Ok(Ok(Some(_))) | Err(_) => {}
            Ok(other) => panic!("{other:?}"),
        }
    }
    let mut missing: std::collections::BTreeSet<u32> = (0..next).collect();
    while !missing.is_empty() {
        let noted = tokio::time::timeout(Duration::from_secs(10), noted.recv()).await;
        let Ok(Some(number)) = noted else { panic!("of {next} are missing {missing:?}") };
        missing.remove(&number);
    }
}

/// Sends all messages, and keeps those that were not sent.
async fn send_all(socket: &mut Reconnecting, messages: &mut Vec<OwnedMessage>) {
    let mut left = Vec::new();
    for message in messages.drain(..) {
        // After another error it may have been sent, and the loss of the connection returns it.
        if socket.send(&message).await == Err(WebSocketError::Closed) {
            left.push(message);
        }
    }
    *messages = left;
}

/// A server that accepts each token once.
async fn fresh_tokens() -> SocketAddr {
    let server = Server::bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().unwrap();
    let used = std::sync::Arc::new(std::sync::Mutex::new(std::collections::HashSet::new()));
    tokio::spawn(server.serve(move |request: Request| {
        let used = used.clone();
        async move {
            let token = request.header("authorization").unwrap_or_default().to_vec();
            if !used.lock().unwrap().insert(token) {
                return Response::text(401, "the token is used");
            }
            match request.websocket() {
                Ok(upgrade) => upgrade.on_open(|mut socket| async move {
                    let _ = socket.close(CloseCode::new(1012), "restart").await;
                }),
                Err(refusal) => refusal,
            }
        }
    }));
    address
}

#[tokio::test]
async fn each_attempt_is_prepared() {
    let at = fresh_tokens().await;
    let mut number = 0;
    let mut policy = quick();
    policy.attempts_max = Some(10);
    let mut socket =
        Connector::new().reconnecting(format!("ws://{at}/"), policy).prepare(move |mut attempt| {
            number += 1;
            let prepared = if number == 2 {
                Err(Error::ConnectTimeout)
            } else {
                attempt.connector = attempt.connector.header("Authorization", format!("Bearer {number}"));
                Ok(attempt)
            };
            async move { prepared }
        });
    for round in 0..3 {
        if round == 1 {
            let failed = step(&mut socket).await;
            assert!(
                matches!(failed, ReconnectEvent::NotOpened { error: Error::ConnectTimeout, .. }),
                "{failed:?}"
            );
        }
        connected(&mut socket).await;
        assert!(lost(&mut socket).await.retry_in.is_some());
    }
    // Without it the second attempt sends the same token.
    let connector = Connector::new().header("Authorization", "Bearer fixed");
    let mut socket = connector.reconnecting(format!("ws://{at}/"), quick());
    connected(&mut socket).await;
    lost(&mut socket).await;
    assert!(matches!(socket.next().await, Err(Error::Refused(response)) if response.status() == 401));
}

// It knows better than a server: its credentials may be gone.
#[tokio::test]
async fn a_final_error_of_the_preparation_is_final_after_a_connection_too() {
    let at = fresh_tokens().await;
    let mut number = 0;
    let mut socket =
        Connector::new().reconnecting(format!("ws://{at}/"), quick()).prepare(move |mut attempt| {
            number += 1;
            attempt.connector = attempt.connector.header("Authorization", format!("Bearer {number}"));
            let prepared = if number == 1 { Ok(attempt) } else { Err(Error::TlsRequired) };
            async move { prepared }
        });
    connected(&mut socket).await;
    assert!(lost(&mut socket).await.retry_in.is_some());
    assert_eq!(socket.next().await.unwrap_err(), Error::TlsRequired);
    assert!(socket.next().await.unwrap().is_none());
}

#[tokio::test]
async fn other_tasks_send_over_every_connection() {
    let (mode, watched) = watch::channel(Mode::Pass);
    let at = relay(serve().await, watched).await;
    let socket = Connector::new().reconnecting(format!("ws://{at}/"), quick());
    let (mut sender, mut socket) = socket.split();
    assert_eq!(sender.send("early").await, Err(WebSocketError::Closed));
    for round in 0..2 {
        connected(&mut socket).await;
        assert!(sender.is_connected());
        assert_eq!(text(&mut socket).await, "/ ");
        let mut other = sender.clone();
        let sending = tokio::spawn(async move {
            for count in 0..10 {
                other.send(count.to_string()).await.unwrap();
            }
            other
        });
        for count in 0..10 {
            assert_eq!(text(&mut socket).await, count.to_string());
        }
        sender = sending.await.unwrap();
        // The receiver sends the confirmation pings.
        while socket.unconfirmed() > 0 {
            let waited = tokio::time::timeout(Duration::from_millis(5), socket.next()).await;
            assert!(waited.is_err(), "{waited:?}");
        }
        if round == 0 {
            mode.send(Mode::Swallow).unwrap();
            sender.send("lost").await.unwrap();
            mode.send(Mode::Cut).unwrap();
            assert_eq!(lost(&mut socket).await.kept, ["lost".into()]);
            assert!(!sender.is_connected());
            mode.send(Mode::Pass).unwrap();
        }
    }
    // The stream of the same events.
    sender.send("streamed").await.unwrap();
    let next = futures_util::StreamExt::next(&mut socket).await;
    let Some(Ok(ReconnectEvent::Message(message))) = next else { panic!("{next:?}") };
    assert_eq!(message.as_text(), Some("streamed"));
    // The receiver is dropped.
    drop(socket);
    assert!(!sender.is_connected());
    assert_eq!(sender.send("late").await, Err(WebSocketError::Closed));
}

/// A server that restarts may accept a connection and close it at once.
#[tokio::test]
async fn a_server_that_closes_before_its_first_byte_is_tried_again() {
    let server = serve().await;
    for is_http2 in [false, true] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("ws://{}/", listener.local_addr().unwrap());
        tokio::spawn(async move {
            drop(listener.accept().await.unwrap());
            let (mut client, _) = listener.accept().await.unwrap();
            let mut server = TcpStream::connect(server).await.unwrap();
            let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
        });
        let mut socket = Connector::new().http2(is_http2).reconnecting(url, quick());
        assert!(matches!(step(&mut socket).await, ReconnectEvent::NotOpened { .. }), "HTTP/2: {is_http2}");
        assert_eq!(connected(&mut socket).await, None);
    }
}

// A ping that cannot be queued is due again after `confirm_after`. This hung.
#[test]
fn pings_that_cannot_be_queued_do_not_keep_the_thread_busy() {
    let (done, is_done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let server = Server::bind("127.0.0.1:0").await.unwrap();
            let url = format!("ws://{}/", server.local_addr().unwrap());
            // It never reads.
            tokio::spawn(server.serve(|request: Request| async move {
                let upgrade = request.websocket().unwrap();
                upgrade.on_open(|socket| async move {
                    std::future::pending::<()>().await;
                    drop(socket);
                })
            }));
            let mut policy = quick();
            policy.confirm_after = Duration::ZERO;
            let mut socket = Connector::new().reconnecting(url, policy);
            socket.next().await.unwrap();
            let mut sender = socket.sender();
            tokio::spawn(async move { while sender.send(vec![0; 1 << 20]).await.is_ok() {} });
            let waiting = tokio::time::timeout(Duration::from_millis(300), socket.next()).await;
            assert!(waiting.is_err(), "{waiting:?}");
        });
        done.send(()).unwrap();
    });
    is_done.recv_timeout(Duration::from_secs(60)).expect("the thread is free");
}

// The path recovers after the connection was given up.
#[tokio::test]
async fn what_a_failed_connection_has_not_sent_does_not_arrive_later() {
    const MESSAGES: usize = 100;
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    // Most messages wait in the kernel of the client.
    socket.set_recv_buffer_size(4 << 10).unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let policy = ReconnectPolicy { confirm_timeout: Duration::from_millis(100), ..quick() };
    let url = format!("ws://{}/", listener.local_addr().unwrap());
    let mut socket = Connector::new().reconnecting(url, policy);
    let accepting = async { wireloom::accept(listener.accept().await.unwrap().0).await.unwrap() };
    let (mut server, _) = tokio::join!(accepting, connected(&mut socket));
    for _ in 0..MESSAGES {
        socket.send(&[7; 1_000]).await.unwrap();
    }
    let loss = lost(&mut socket).await;
    assert!(matches!(loss.reason, LossReason::Failed(WebSocketError::KeepaliveTimeout)), "{loss:?}");
    assert_eq!(loss.unconfirmed, MESSAGES as u64);
    let mut received = 0;
    let end = loop {
        match server.recv().await {
            Ok(Some(_)) => received += 1,
            end => break end.map(drop),
        }
    };
    assert_eq!(end, Err(WebSocketError::ConnectionLost));
    assert!(received < MESSAGES, "all have arrived");
}
