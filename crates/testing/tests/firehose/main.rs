//! The publisher of the guide to firehoses, with a subscriber that pauses.

use wireloom::{Connector, Server};

include!("publisher.rs");

/// The guide, whose example is tested here.
const GUIDE: &str = include_str!("../../../../docs/src/guides/firehose.md");

#[test]
fn the_guide_shows_what_is_tested() {
    assert!(GUIDE.contains(&format!("```rust\n{}```\n", include_str!("publisher.rs"))));
}

// A subscriber that is not disconnected would wait for events that never come.
#[tokio::test]
async fn a_subscriber_that_pauses_is_disconnected_and_may_come_back() {
    let mut rng = wireloom_testing::Rng::with_seed(1);
    let samples: Vec<_> =
        (0..2000).map(|_| format!("{{\"event\":{:?}}}", rng.text(100)).into_bytes()).collect();
    let publisher = Arc::new(Mutex::new(Publisher::new(&samples).unwrap()));
    let server = Server::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}/", server.local_addr().unwrap());
    let handling = publisher.clone();
    tokio::spawn(server.serve(move |request| handle(request, handling.clone())));
    let id = publisher.lock().unwrap().id();
    for url in [url.clone(), format!("{url}?zstdDictionary={id}")] {
        for _ in 0..2 {
            let mut socket = Connector::new().connect(&url).await.unwrap();
            let subscribers = |publisher: &Publisher| publisher.compressed.len() + publisher.plain.len();
            while subscribers(&publisher.lock().unwrap()) == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            while subscribers(&publisher.lock().unwrap()) > 0 {
                // Not to be compressed.
                publisher.lock().unwrap().publish(&rng.text(30_000)).unwrap();
                tokio::task::yield_now().await;
            }
            let mut events = 0;
            while let Some(event) =
                tokio::time::timeout(Duration::from_secs(20), socket.recv()).await.unwrap().unwrap()
            {
                assert!(!event.as_bytes().is_empty());
                events += 1;
            }
            assert!(events > 0);
            assert_eq!(socket.end().unwrap().code(), CloseCode::TRY_AGAIN_LATER);
        }
    }
}
