//! The events and spans of the feature `tracing`. They contain no secret.

#![allow(clippy::unwrap_used)]

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tracing::subscriber::Interest;
use tracing::{Metadata, span};
use wireloom::wireloom_ws::Role;
use wireloom::wireloom_ws::handshake::Negotiated;
use wireloom::{CloseCode, Request, Response, Sender, Server, WebSocket, WebSocketConfig};

/// `tracing` keeps for the whole process what the subscribers of its threads are interested in.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

async fn echo(request: Request) -> Response {
    match request.websocket() {
        Ok(upgrade) => upgrade.on_open(|mut socket| async move {
            while let Ok(Some(message)) = socket.recv_owned().await {
                if socket.send(message).await.is_err() {
                    break;
                }
            }
        }),
        Err(refusal) => refusal,
    }
}

#[tokio::test]
async fn both_ends_log_in_their_spans_and_keep_secrets() {
    let _alone = ALONE.lock().await;
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);

    let server = Server::bind("127.0.0.1:0").await.unwrap();
    let (address, handle) = (server.local_addr().unwrap(), server.handle());
    let serving = tokio::spawn(server.serve(echo));
    let mut socket = wireloom::connect(&format!("ws://user:hush@{address}/?token=hush")).await.unwrap();
    socket.send("hush").await.unwrap();
    assert_eq!(socket.recv().await.unwrap().unwrap().as_text(), Some("hush"));
    let traffic = socket.traffic();
    assert_eq!((traffic.bytes_sent, traffic.bytes_received), (2 + 4 + 4, 2 + 4));
    socket.close(CloseCode::NORMAL, "hush").await.unwrap();
    handle.shut_down();
    serving.await.unwrap().unwrap();

    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    let line = |what: &str| {
        log.lines().find(|line| line.contains(what)).unwrap_or_else(|| panic!("no {what}: {log}"))
    };
    assert!(line("opening a WebSocket").contains("connect{target="), "{log}");
    assert!(line("connection{peer=127.0.0.1:").contains("the WebSocket is clos"), "{log}");
    assert!(!log.contains("hush"), "{log}");
}

/// A subscriber of `tracing` that decides for each event, and asks the WebSocket.
struct AskingSubscriber(Sender, Arc<AtomicUsize>);

impl tracing::Subscriber for AskingSubscriber {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::sometimes()
    }

    fn enabled(&self, _: &Metadata<'_>) -> bool {
        self.0.queued_len();
        true
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        self.0.queued_len();
        self.1.fetch_add(1, Ordering::Relaxed);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// A WebSocket that its peer closes.
async fn close() {
    let (mut peer, transport) = tokio::io::duplex(16);
    let config = WebSocketConfig::default();
    let (sender, mut receiver) =
        WebSocket::from_transport(transport, Role::Server, Negotiated::default(), None, config, &[]).split();
    let events = Arc::default();
    let _guard = tracing::subscriber::set_default(AskingSubscriber(sender.clone(), Arc::clone(&events)));
    peer.write_all(b"\x88\x80\0\0\0\0").await.unwrap();
    assert!(receiver.recv().await.unwrap().is_none());
    // "closing" and "closed".
    assert_eq!(events.load(Ordering::Relaxed), 2);
}

// A lock that is held meanwhile is a deadlock.
#[test]
fn a_subscriber_may_use_the_websocket() {
    let _alone = ALONE.blocking_lock();
    let (done, is_done) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(close());
        done.send(()).unwrap();
    });
    match is_done.recv_timeout(Duration::from_secs(60)) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("a deadlock"),
        _ => thread.join().unwrap(),
    }
}
