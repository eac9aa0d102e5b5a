//! The example that compares compression with a dictionary, with a few events.

#[path = "../examples/dictionary/main.rs"]
mod dictionary;

use dictionary::{Effort, measure};

#[test]
fn every_scheme_delivers_the_events() {
    let costs = measure(Effort { subscribers: 3, events: 20, rounds: 1 }).expect("costs");
    let bytes: Vec<f64> = costs.iter().map(|(_, costs)| costs[0].bytes).collect();
    let [plain, each, once, zstd] = bytes[..] else { panic!("{bytes:?}") };
    assert!(each < plain && once < plain, "{bytes:?}");
    assert!(zstd < once, "a dictionary knows more than one event: {bytes:?}");
}
