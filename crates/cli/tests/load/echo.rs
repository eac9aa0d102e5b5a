//! The echo scenario: counts, and faults of the server.

use std::time::Duration;

use serde_json::Value;

use crate::{Fault, measure, measure_until, start};

#[tokio::test(flavor = "multi_thread")]
async fn counts_every_answer() {
    let url = start(Fault::None).await;
    for args in [
        &["--count", "1000"][..],
        &["--count", "1000", "--pipeline", "7", "--connections", "3"],
        &["--count", "1000", "--binary", "--size", "1"],
        &["--count", "1000", "--compress", "--size", "1000"],
        &["--count", "1000", "--http2", "--pipeline", "4"],
        &["--count", "200", "--size", "300K", "--pipeline", "8", "--connections", "2"],
        &["--count", "200", "--size", "300K", "--pipeline", "8", "--connections", "2", "--http2"],
        &["--count", "1000", "--rate", "2000"],
        &["--count", "1000", "--size", "1..3K", "--pipeline", "5"],
        &["--count", "1000", "--size", "20:9,70K:1", "--binary", "--pipeline", "5"],
        &["--count", "1000", "--http2", "--streams", "4"],
        &["--count", "1000", "--rate", "5k", "--ramp-up", "200ms"],
    ] {
        let (code, report) = measure(&url, args).await;
        let count: u64 = args[1].parse().unwrap();
        assert_eq!(code, 0, "{args:?} {report}");
        assert_eq!(report["sent"], count, "{args:?} {report}");
        assert_eq!(report["answered"], count, "{args:?} {report}");
        assert_eq!(report["latency"]["samples"], count, "{args:?} {report}");
        assert_eq!(report["errors"]["total"], 0, "{args:?} {report}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn measures_a_known_delay() {
    let url = start(Fault::Delay(Duration::from_millis(50))).await;
    let (p50, rate) =
        (|report: &Value| report["latency"]["p50"].as_f64(), |report: &Value| report["rate"].as_f64());
    // Each connection waits 50 ms for each of 20 answers.
    let is_fast = |report: &Value| p50(report) < Some(0.1) && rate(report) >= Some(20.0);
    let args = ["--count", "40", "--connections", "2"];
    let (code, report) = measure_until(&url, &args, |code, report| code == 0 && is_fast(report)).await;
    assert_eq!(code, 0, "{report}");
    assert!(is_fast(&report) && p50(&report) >= Some(0.05) && rate(&report) <= Some(40.0), "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_lost_changed_and_repeated_messages() {
    let all = ["--count", "1000", "--connections", "1", "--pipeline", "4", "--timeout"];
    // Only the first waits for what does not come.
    for (fault, kind, answered, limit) in [
        (Fault::DropTenth, "lost", 900, "3"),
        (Fault::ChangeTenth, "wrong", 900, "60"),
        (Fault::RepeatTenth, "unexpected", 1000, "60"),
    ] {
        let (code, report) = measure(&start(fault).await, &[&all[..], &[limit]].concat()).await;
        assert_eq!(code, 5, "{report}");
        assert_eq!(report["errors"][kind], 100, "{report}");
        assert_eq!(report["errors"]["total"], 100, "{report}");
        assert_eq!(report["answered"], answered, "{report}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_messages_that_are_never_answered() {
    let url = start(Fault::DropTenth).await;
    let (code, report) = measure(&url, &["--count", "10", "--connections", "1", "--timeout", "3s"]).await;
    assert_eq!(code, 5, "{report}");
    assert_eq!(report["errors"]["lost"], 1, "{report}");
    assert_eq!(report["errors"]["first"], "a message was not answered within 3s");
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_connections_that_the_server_closes() {
    let url = start(Fault::Close).await;
    let (code, report) = measure(&url, &["--duration", "5", "--connections", "3"]).await;
    assert_eq!(code, 5, "{report}");
    assert_eq!(report["errors"]["closed"], 3, "{report}");
    assert_eq!(report["answered"], 30, "{report}");
    // It ended when there was no connection left, and that is the time that counts.
    assert!(report["time"].as_f64().unwrap() < 5.0, "{report}");
    let warnings = report["warnings"].as_array().unwrap();
    assert!(warnings.iter().any(|warning| warning == "the server closed 3 of 3 connections"), "{report}");
}

// The server pauses for one of three seconds. A closed loop sends one message in it, an open loop a third of all: their latency is
// spread evenly up to a second.
#[tokio::test(flavor = "multi_thread")]
async fn an_open_loop_shows_a_pause_that_a_closed_loop_hides() {
    let (_, closed) =
        measure(&start(Fault::Pause).await, &["--duration", "3", "--connections", "1", "--timeout", "60"])
            .await;
    let (code, open) = measure(
        &start(Fault::Pause).await,
        &["--duration", "3", "--connections", "1", "--rate", "500", "--timeout", "60"],
    )
    .await;
    assert_eq!(code, 0, "{open}");
    assert_eq!(open["sent"], 1500, "{open}");
    assert_eq!(open["answered"], 1500, "{open}");
    for report in [&closed, &open] {
        assert!(report["latency"]["max"].as_f64().unwrap() >= 0.9, "{report}");
    }
    // A third of the messages waits, evenly between 0 and 1 s; so a tenth of all waits longer than 0.7 s. A busy
    // machine adds to that.
    let p90 = open["latency"]["p90"].as_f64().unwrap();
    assert!(p90 >= 0.6, "{open}");
    assert!(closed["latency"]["p90"].as_f64().unwrap() < p90 / 2.0, "{closed}");
}

#[tokio::test]
async fn a_url_may_have_no_scheme_or_be_that_of_a_unix_socket() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let server = wireloom::Server::new(wireloom::server::bind_unix(&path).unwrap());
    let handle = |request: wireloom::Request| async move {
        request.websocket().map(|upgrade| {
            upgrade.on_open(async move |mut socket| {
                while let Ok(Some(message)) = socket.recv_owned().await {
                    let _ = socket.send(&message).await;
                }
            })
        })
    };
    tokio::spawn(server.serve(handle));
    let unix = format!("ws+unix:{}:/echo?token=secret", path.display());
    let tcp = start(Fault::None).await;
    for (url, shown) in
        [(&*unix, &*format!("ws+unix:{}:/echo", path.display())), (tcp.strip_prefix("ws://").unwrap(), &*tcp)]
    {
        let (code, report) = measure(url, &["--count", "10"]).await;
        assert_eq!((code, &report["answered"]), (0, &10.into()), "{report}");
        assert_eq!(report["url"], shown, "{report}");
    }
}
