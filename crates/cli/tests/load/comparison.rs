//! Comparisons with an earlier result and with another server.

use std::time::Duration;

use serde_json::Value;
use tokio::time::timeout;

use crate::{
    DEADLINE, Fault, Temporary, measure, measure_until, run, signal, spawn, start, start_counting, start_with,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_slower_server_is_shown_to_be_slower() {
    let slow = start(Fault::Delay(Duration::from_millis(20))).await;
    let fast = start(Fault::Delay(Duration::from_millis(2))).await;
    let args = ["--duration", "2", "--rounds", "8", "--connections", "2"];
    let median = |report: &Value| report["comparison"]["changes"][0]["median"].as_f64().unwrap();
    let is_slower =
        |report: &Value| report["comparison"]["changes"][0]["result"] == "slower" && median(report) < -0.5;
    let slower = [&args[..], &["--against", &fast, "--fail-if-slower", "50%"]].concat();
    let (code, report) = measure_until(&slow, &slower, |code, report| code == 4 && is_slower(report)).await;
    assert_eq!(code, 4, "{report}");
    let comparison = &report["comparison"];
    assert_eq!(comparison["result"], "slower", "{report}");
    assert_eq!(comparison["samples"], serde_json::json!([8, 8]), "{report}");
    let rate = &comparison["changes"][0];
    assert_eq!((&rate["metric"], &rate["result"]), (&"rate".into(), &"slower".into()), "{report}");
    // 2 ms and 20 ms: the rate is a tenth. A busy machine adds to both.
    assert!((-0.95..-0.5).contains(&median(&report)), "{report}");
    assert_eq!(report["against"]["url"], fast, "{report}");
    let faster = [&args[..], &["--against", &slow, "--fail-if-slower", "5%"]].concat();
    let (code, report) =
        measure_until(&fast, &faster, |code, report| code == 0 && report["comparison"]["result"] == "faster")
            .await;
    assert_eq!((code, &report["comparison"]["result"]), (0, &"faster".into()), "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_report_of_one_server_has_its_url() {
    let (url, mut count) = start_counting().await;
    let (other, mut other_count) = start_counting().await;
    // Which server is first is by chance.
    for _ in 0..10 {
        let before = (*count.borrow(), *other_count.borrow());
        let child = spawn(&[&url, "--against", &other, "--duration", "600", "--json", "--quiet"]);
        let measured = tokio::select! {
            _ = count.wait_for(|count| *count > before.0 + 100) => &url,
            _ = other_count.wait_for(|count| *count > before.1 + 100) => &other,
        };
        signal(&child, "-INT").await;
        let output = timeout(DEADLINE, child.wait_with_output()).await.unwrap().unwrap();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["url"], **measured, "{report}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rounds_before_a_server_was_gone_are_reported() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    let server = wireloom::Server::bind("127.0.0.1:0").await.unwrap();
    let gone = format!("ws://{}/", server.local_addr().unwrap());
    let third = Arc::new(tokio::sync::Notify::new());
    let (opened, stop) = (AtomicUsize::new(0), third.clone());
    // One connection in each round.
    let handle = move |request: wireloom::Request| {
        if opened.fetch_add(1, Ordering::Relaxed) == 2 {
            stop.notify_one();
        }
        async move {
            request.websocket().map(|upgrade| {
                upgrade.on_open(async |mut socket| {
                    while let Ok(Some(message)) = socket.recv_owned().await {
                        let _ = socket.send(&message).await;
                    }
                })
            })
        }
    };
    tokio::spawn(async move {
        tokio::select! {
            _ = server.serve(handle) => {}
            () = third.notified() => {}
        }
    });
    let url = start(Fault::None).await;
    let (code, report) =
        measure(&url, &["--against", &gone, "--rounds", "8", "--duration", "2", "--connections", "1"]).await;
    assert_eq!(code, 5, "{report}");
    let other = &report["against"];
    // By no signal.
    assert_eq!((&report["interrupted"], &other["interrupted"]), (&false.into(), &false.into()), "{report}");
    assert_eq!(other["errors"]["not_connected"], 1, "{report}");
    assert!(report["answered"].as_u64() > Some(0) && other["answered"].as_u64() > Some(0), "{report}");
}

// Each server closes its idle connections while the other one is measured.
#[tokio::test(flavor = "multi_thread")]
async fn shared_connections_are_opened_again() {
    let config = || {
        let mut config = wireloom::ServerConfig::default();
        config.keep_alive_timeout = Duration::from_millis(300);
        config
    };
    let (url, other) = (start_with(Fault::None, config()).await, start_with(Fault::None, config()).await);
    let args = [
        "--against",
        &other,
        "--rounds",
        "8",
        "--duration",
        "10",
        "--connections",
        "2",
        "--http2",
        "--streams",
        "2",
    ];
    let (code, report) = measure(&url, &args).await;
    assert_eq!((code, &report["errors"]["total"]), (0, &0.into()), "{report}");
    assert_eq!(report["comparison"]["samples"], serde_json::json!([8, 8]), "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn compares_with_an_earlier_result() {
    let earlier = Temporary::new("earlier.json");
    let path = earlier.path();
    let fast = start(Fault::Delay(Duration::from_millis(2))).await;
    let slow = start(Fault::Delay(Duration::from_millis(20))).await;
    let args = ["--duration", "13", "--rate", "200", "--compare", path, "--fail-if-slower", "100%"];
    // Other load may have disturbed the earlier result.
    let mut attempts = 0;
    let (code, report) = loop {
        let (_, old) = measure(&fast, &["--duration", "13", "--rate", "200"]).await;
        std::fs::write(path, old.to_string()).unwrap();
        let (code, report) = measure(&slow, &args).await;
        attempts += 1;
        if code == 4 || attempts == 5 {
            break (code, report);
        }
    };
    assert_eq!((code, &report["comparison"]["result"]), (4, &"slower".into()), "{report}");
    let changes = report["comparison"]["changes"].as_array().unwrap();
    // The open loop fixes the rate.
    assert!(changes.iter().all(|change| change["metric"] != "rate"), "{report}");
    let short = ["--duration", "1", "--compare", path, "--fail-if-slower", "5%"];
    let (code, _, errors) = run(&[&[&*fast], &short[..]].concat()).await;
    assert!(code == 4 && errors.contains("too few samples"), "{code} {errors}");
    std::fs::write(path, "{}").unwrap();
    let (code, _, errors) = run(&[&fast, "--compare", path]).await;
    assert!(code == 2 && errors.contains("it is not a result of `wireloom load --json`"), "{errors}");
}
