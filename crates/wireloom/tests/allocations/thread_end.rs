//! A WebSocket that is dropped when the thread-local variables of its thread are destroyed.
//!
//! No test of this process pauses the clock: tokio then reads the time from a thread-local variable, which may be destroyed before.

use std::cell::RefCell;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use wireloom::wireloom_ws::Role;
use wireloom::wireloom_ws::handshake::Negotiated;
use wireloom::{CloseCode, DeflateConfig, WebSocket, WebSocketConfig};

thread_local! {
    static KEPT: RefCell<Vec<WebSocket>> = const { RefCell::new(Vec::new()) };
}

// Thread-locals are destroyed in the reverse order of their first use: the buffers and codecs of the thread before these.
#[test]
fn a_websocket_may_be_dropped_while_its_thread_ends() {
    let thread = std::thread::spawn(|| {
        KEPT.with(|kept| assert!(kept.borrow().is_empty()));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let peer = runtime.block_on(async {
            let (mut peer, transport) = tokio::io::duplex(1 << 20);
            let deflate = DeflateConfig::default();
            let mut negotiated = Negotiated::default();
            negotiated.deflate = Some(Default::default());
            let config = WebSocketConfig::default();
            let mut socket =
                WebSocket::from_transport(transport, Role::Server, negotiated, Some(&deflate), config, &[]);
            socket.send("compressed ".repeat(100)).await.unwrap();
            // A message that does not end, in a buffer of the thread.
            peer.write_all(b"\x01\x82\0\0\0\0hi").await.unwrap();
            let receiving = tokio::time::timeout(Duration::from_millis(20), socket.recv()).await;
            assert!(receiving.is_err());
            socket.feed("queued").await.unwrap();
            socket.close_on_drop(CloseCode::new(4000));
            KEPT.with(|kept| kept.borrow_mut().push(socket));
            peer
        });
        drop(runtime);
        peer
    });
    let mut peer = thread.join().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut bytes = Vec::new();
    runtime.block_on(peer.read_to_end(&mut bytes)).unwrap();
    assert!(bytes.ends_with(&[0x88, 2, 0x0f, 0xa0]), "{bytes:?}");
}
