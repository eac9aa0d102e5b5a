//! Warnings about misleading results.

use std::time::Duration;

use serde_json::Value;

use crate::{Fault, Serve, measure, start};

fn warns(report: &Value, text: &str) -> bool {
    report["warnings"].as_array().unwrap().iter().any(|warning| warning.as_str().unwrap().contains(text))
}

#[tokio::test(flavor = "multi_thread")]
async fn warns_of_too_few_samples() {
    let url = start(Fault::None).await;
    let few = "20 latencies are too few for p99.9";
    let (_, report) = measure(&url, &["--count", "20", "--expect", "p99.9<60s"]).await;
    assert!(warns(&report, few) && warns(&report, "20 latencies are too few for p99"), "{report}");
    let (_, report) = measure(&url, &["--count", "10000", "--pipeline", "8", "--expect", "p99.9<60s"]).await;
    assert!(!warns(&report, "too few"), "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn warns_of_connections_that_the_server_closes() {
    let (_, report) = measure(&start(Fault::Close).await, &["--count", "100", "--connections", "4"]).await;
    assert!(warns(&report, "the server closed 4 of 4 connections"), "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn warns_of_messages_that_leave_too_late() {
    // For a second the server does not read, so messages are queued in this process.
    let args = ["--rate", "400", "--size", "64K", "--duration", "4", "--connections", "1"];
    let (_, report) = measure(&start(Fault::Pause).await, &args).await;
    assert!(report["send_delay_p99"].as_f64().unwrap() > 0.001, "{report}");
    assert!(warns(&report, "later than intended, which is part of their latency"), "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn warns_of_a_rate_that_is_not_reached() {
    let url = start(Fault::Delay(Duration::from_millis(100))).await;
    let args = ["--rate", "1k", "--duration", "2", "--connections", "4", "--timeout", "5s"];
    let (_, report) = measure(&url, &args).await;
    assert!(warns(&report, "is below --rate, 1000/s"), "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn warns_of_a_generator_that_is_the_bottleneck() {
    let serve = Serve::start().await;
    for args in [&["--pipeline", "64"][..], &["--rate", "20"]] {
        let (_, report) = measure(&serve.url("ws", "/echo"), &[args, &["--duration", "2"]].concat()).await;
        // Other programs may take the processor from it.
        let is_busy = report["cpu"].as_f64().unwrap() >= 0.9;
        assert_eq!(warns(&report, "it may be the bottleneck, not the server"), is_busy, "{report}");
        assert!(!is_busy || args[0] == "--pipeline", "{report}");
    }
}
