//! Content of requests, on its way from the read buffer to the handler.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use wireloom::client::Request;
use wireloom::{Connector, Response, Server};

const LEN: usize = 8 << 20;
/// RFC 9113 §4.1.
const FRAME_HEADER_LEN: usize = 9;

// Chunks of one read lie behind each other, with the headers of their frames between them; copies do not.
#[tokio::test]
async fn content_that_is_read_at_once_is_not_copied() {
    let server = Server::bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().unwrap();
    let places = Arc::new(Mutex::new(Vec::new()));
    let seen = places.clone();
    tokio::spawn(server.serve(move |mut request: wireloom::Request| {
        let seen = seen.clone();
        async move {
            // Much more arrives in the meantime than one read takes. This thread is the server's only one.
            std::thread::sleep(Duration::from_millis(200));
            while let Some(chunk) = request.body_mut().chunk().await? {
                seen.lock().unwrap().push((chunk.as_ptr().addr(), chunk.len()));
            }
            Ok::<_, wireloom::Error>(Response::new(200))
        }
    }));
    let sending = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let http2 = Connector::new().connect_http2(&format!("http://{address}")).await.unwrap();
            http2.request(Request::post("/", vec![7; LEN])).await.unwrap().status
        })
    });
    while !sending.is_finished() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(sending.join().unwrap(), 200);
    let places = places.lock().unwrap();
    let is_behind = |pair: &&[(usize, usize)]| pair[0].0 + pair[0].1 + FRAME_HEADER_LEN == pair[1].0;
    let borrowed = places.windows(2).filter(is_behind).count();
    assert!(borrowed * 3 > places.len() * 2, "{borrowed} of {} chunks", places.len());
}
