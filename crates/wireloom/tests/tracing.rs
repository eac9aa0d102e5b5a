//! The events and spans of the feature `tracing`. They contain no secret.

#![allow(clippy::unwrap_used)]

use std::io;
use std::sync::{Arc, Mutex};

use wireloom::{CloseCode, Request, Response, Server};

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
