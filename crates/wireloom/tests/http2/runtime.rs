//! The end of a runtime, at any moment: nothing is spawned, woken or dropped while a lock is held.

use std::sync::mpsc;
use std::time::Duration;

use wireloom::{Request, Response, Server};

use super::peer::Peer;

/// Drops the runtime of a server while one of its handlers is in its first poll.
fn drop_runtime_during_first_poll(threads: usize) {
    let (polled, entered) = mpsc::channel();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build().unwrap();
    let address = runtime.block_on(async move {
        let server = Server::bind("127.0.0.1:0").await.unwrap();
        let address = server.local_addr().unwrap();
        tokio::spawn(server.serve(move |mut request: Request| {
            let polled = polled.clone();
            async move {
                polled.send(()).unwrap();
                // The runtime shuts down meanwhile.
                std::thread::sleep(Duration::from_millis(300));
                let _ = request.body_mut().chunk().await;
                Response::new(200)
            }
        }));
        address
    });
    let (ended, end) = mpsc::channel();
    let client = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _peer = client.block_on(async {
        let mut peer = Peer::connect(address).await;
        peer.request("POST", "/", &[], false).await;
        peer
    });
    entered.recv_timeout(Duration::from_secs(10)).unwrap();
    std::thread::spawn(move || {
        drop(runtime);
        ended.send(()).unwrap();
    });
    end.recv_timeout(Duration::from_secs(10)).expect("dropping the runtime deadlocks");
}

#[test]
fn a_runtime_can_be_dropped_while_a_handler_is_first_polled() {
    for threads in [1, 2, 4] {
        drop_runtime_during_first_poll(threads);
    }
}
