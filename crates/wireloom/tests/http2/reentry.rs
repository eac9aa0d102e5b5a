//! Content of responses whose destructor uses the connection, while clients cancel, are late or leave at any moment: nothing deadlocks,
//! and all content is dropped.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use wireloom::{Body, HttpError, Request, Response, ServerConfig};
use wireloom_http2::priority::Priority;

use super::Running;
use super::peer::Peer;

const PEERS: u64 = 4;
const ROUNDS: usize = 40;

/// Content that asks for its request's priority, which locks the connection, and sets it when it is dropped.
struct Asking {
    request: Arc<Mutex<Request>>,
    content: Vec<u8>,
    left: Arc<AtomicUsize>,
}

impl AsRef<[u8]> for Asking {
    fn as_ref(&self) -> &[u8] {
        &self.content
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        let request = self.request.lock().unwrap();
        let _ = request.set_priority(request.priority().unwrap_or(Priority::DEFAULT));
        self.left.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A server of `/whole/LEN` and `/streamed/LEN`, some of which answer later. `left` counts the content that was not dropped.
async fn serve(left: Arc<AtomicUsize>) -> Running {
    let handler = move |request: Request| {
        let left = left.clone();
        async move {
            let (is_whole, len) = (request.path().starts_with("/whole/"), request.path().rsplit('/').next());
            let len: usize = len.unwrap().parse().unwrap();
            let request = Arc::new(Mutex::new(request));
            let content = move || {
                left.fetch_add(1, Ordering::SeqCst);
                let (request, left) = (request.clone(), left.clone());
                Bytes::from_owner(Asking { request, content: vec![7; len], left })
            };
            if len % 2 == 1 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let body = match is_whole {
                true => Body::from(content()),
                false => {
                    let chunks: Vec<_> = (0..3).map(|_| Ok::<_, HttpError>(content())).collect();
                    Body::from_stream(futures_util::stream::iter(chunks))
                }
            };
            Response::new(200).with_body("application/octet-stream", body)
        }
    };
    Running::start(ServerConfig::default(), handler).await
}

async fn run(address: std::net::SocketAddr, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut peer = Peer::connect(address).await;
    for _ in 0..ROUNDS {
        let kind = if random.bool() { "whole" } else { "streamed" };
        let len = [0, 10, 101, 10_001, 200_000][random.usize(0..5)];
        let path = format!("/{kind}/{len}");
        let key = peer.request("GET", &path, &[], true).await;
        let is_late = random.bool();
        if is_late {
            tokio::time::sleep(Duration::from_millis(random.u64(0..4))).await;
        }
        match random.u8(0..4) {
            0 => peer.reset(key).await,
            1 => {
                // After the head; the rest of long content waits for window.
                peer.next(key.id()).await;
                if len > 100_000 {
                    peer.reset(key).await;
                }
            }
            2 => {
                let (status, _, content) = peer.response(key).await;
                let expected = if kind == "whole" { len } else { 3 * len };
                assert_eq!((status, content.len()), (200, expected), "{path}");
            }
            // It leaves, in the middle of the response or before it.
            _ => peer = Peer::connect(address).await,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn content_may_use_its_connection_whatever_becomes_of_it() {
    let seed = wireloom_testing::generator().seed();
    let left = Arc::new(AtomicUsize::new(0));
    let server = serve(left.clone()).await;
    let peers = (0..PEERS).map(|number| tokio::spawn(run(server.address, seed ^ number)));
    for peer in peers.collect::<Vec<_>>() {
        peer.await.unwrap();
    }
    let all_dropped = async {
        while left.load(Ordering::SeqCst) > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let left = tokio::time::timeout(Duration::from_secs(20), all_dropped).await;
    left.expect("content is dropped when its client has left");
}
