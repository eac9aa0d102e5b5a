//! `wireloom load` at the shell: what it measures against servers whose faults are known, its output and its exit codes.

#![allow(clippy::unwrap_used)]
#![cfg(unix)]

use std::collections::BTreeSet;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::time::{sleep, sleep_until, timeout};
use wireloom::{CloseCode, Request, Server, WebSocket};

const WIRELOOM: &str = env!("CARGO_BIN_EXE_wireloom");

/// Longer than any of this takes.
const DEADLINE: Duration = Duration::from_secs(60);

/// What the server does with an open WebSocket.
#[derive(Clone, Copy)]
enum Fault {
    None,
    /// Each answer comes this much later.
    Delay(Duration),
    /// The tenth message of each ten is not answered.
    DropTenth,
    /// The last byte of each tenth answer is changed.
    ChangeTenth,
    /// Each tenth answer is sent twice.
    RepeatTenth,
    /// A second after the first message, nothing is answered for a second.
    Pause,
    /// Closed after ten answers.
    Close,
}

async fn serve(fault: Fault, mut socket: WebSocket) -> Result<(), wireloom::Error> {
    let mut paused_until = None;
    let mut number = 0;
    while let Some(message) = socket.recv_owned().await? {
        number += 1;
        let is_tenth = number % 10 == 0;
        match fault {
            Fault::Delay(delay) => sleep(delay).await,
            Fault::DropTenth if is_tenth => continue,
            Fault::ChangeTenth if is_tenth => {
                let mut bytes = message.as_bytes().to_vec();
                *bytes.last_mut().unwrap() ^= 1;
                socket.send(std::str::from_utf8(&bytes).unwrap()).await?;
                continue;
            }
            Fault::RepeatTenth if is_tenth => socket.send(&message).await?,
            Fault::Pause => {
                let pause = *paused_until.get_or_insert(Instant::now() + Duration::from_secs(1));
                if Instant::now() > pause {
                    sleep_until((pause + Duration::from_secs(1)).into()).await;
                }
            }
            Fault::Close if number > 10 => return socket.close(CloseCode::TRY_AGAIN_LATER, "enough").await,
            _ => {}
        }
        socket.send(&message).await?;
    }
    Ok(())
}

/// The URL of a server with this fault.
async fn start(fault: Fault) -> String {
    let server = Server::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}/", server.local_addr().unwrap());
    let handle = move |request: Request| async move {
        match request.websocket() {
            Ok(upgrade) => upgrade.on_open(move |socket| async move {
                let _ = serve(fault, socket).await;
            }),
            Err(refusal) => refusal,
        }
    };
    tokio::spawn(async move { server.serve(handle).await });
    url
}

/// Exit code, output, errors.
async fn run(args: &[&str]) -> (i32, String, String) {
    let output =
        Command::new(WIRELOOM).arg("load").args(args).stdin(Stdio::null()).kill_on_drop(true).output();
    let output = timeout(DEADLINE, output).await.expect("it ends").unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().expect("no signal"), text(output.stdout), text(output.stderr))
}

/// Exit code and the JSON.
async fn measure(url: &str, args: &[&str]) -> (i32, Value) {
    let (code, out, errors) = run(&[&[url, "--json", "--quiet"], args].concat()).await;
    (code, serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}{errors}")))
}

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
    let (code, report) = measure(&url, &["--count", "40", "--connections", "2"]).await;
    assert_eq!(code, 0, "{report}");
    let p50 = report["latency"]["p50"].as_f64().unwrap();
    assert!((0.050..0.1).contains(&p50), "{report}");
    // Each connection waits 50 ms for each of 20 answers.
    let rate = report["rate"].as_f64().unwrap();
    assert!((20.0..=40.0).contains(&rate), "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_lost_changed_and_repeated_messages() {
    let all = ["--count", "1000", "--connections", "1", "--pipeline", "4", "--timeout", "1"];
    for (fault, kind, answered) in [
        (Fault::DropTenth, "lost", 900),
        (Fault::ChangeTenth, "wrong", 900),
        (Fault::RepeatTenth, "unexpected", 1000),
    ] {
        let (code, report) = measure(&start(fault).await, &all).await;
        assert_eq!(code, 5, "{report}");
        assert_eq!(report["errors"][kind], 100, "{report}");
        assert_eq!(report["errors"]["total"], 100, "{report}");
        assert_eq!(report["answered"], answered, "{report}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_messages_that_are_never_answered() {
    let url = start(Fault::DropTenth).await;
    let (code, report) = measure(&url, &["--count", "10", "--connections", "1", "--timeout", "300ms"]).await;
    assert_eq!(code, 5, "{report}");
    assert_eq!(report["errors"]["lost"], 1, "{report}");
    assert_eq!(report["errors"]["first"], "a message was not answered within 300ms");
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_connections_that_the_server_closes() {
    let url = start(Fault::Close).await;
    let (code, report) = measure(&url, &["--duration", "5", "--connections", "3"]).await;
    assert_eq!(code, 5, "{report}");
    assert_eq!(report["errors"]["closed"], 3, "{report}");
    assert_eq!(report["answered"], 30, "{report}");
    let warnings = report["warnings"].as_array().unwrap();
    assert!(warnings.iter().any(|warning| warning == "the server closed 3 of 3 connections"), "{report}");
}

// The server pauses for one of three seconds. A closed loop sends one message in it, an open loop a third of all: their latency is
// spread evenly up to a second.
#[tokio::test(flavor = "multi_thread")]
async fn an_open_loop_shows_a_pause_that_a_closed_loop_hides() {
    let (_, closed) =
        measure(&start(Fault::Pause).await, &["--duration", "3", "--connections", "1", "--timeout", "5"])
            .await;
    let (code, open) = measure(
        &start(Fault::Pause).await,
        &["--duration", "3", "--connections", "1", "--rate", "500", "--timeout", "5"],
    )
    .await;
    assert_eq!(code, 0, "{open}");
    assert_eq!(open["sent"], 1500, "{open}");
    assert_eq!(open["answered"], 1500, "{open}");
    for report in [&closed, &open] {
        assert!(report["latency"]["max"].as_f64().unwrap() >= 0.9, "{report}");
    }
    // A third waits: of these a tenth of all messages waits longer than 0.7 s. A busy machine adds to that.
    let p90 = open["latency"]["p90"].as_f64().unwrap();
    assert!(p90 >= 0.6, "{open}");
    assert!(closed["latency"]["p99"].as_f64().unwrap() < p90 / 2.0, "{closed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn expectations_set_the_exit_code() {
    let url = start(Fault::Delay(Duration::from_millis(20))).await;
    let count = ["--count", "50", "--connections", "5"];
    for (expectation, code) in
        [("p50>=20ms", 0), ("p50<20ms", 4), ("rate<1k", 0), ("rate>1k", 4), ("errors<=0", 0)]
    {
        let (found, report) = measure(&url, &[&count[..], &["--expect", expectation]].concat()).await;
        assert_eq!(found, code, "{expectation} {report}");
        assert_eq!(report["expected"][0]["met"], code == 0, "{report}");
    }
    let (code, _) = measure(
        &start(Fault::DropTenth).await,
        &[
            "--count",
            "100",
            "--pipeline",
            "2",
            "--connections",
            "1",
            "--timeout",
            "1",
            "--expect",
            "errors<=10",
        ],
    )
    .await;
    assert_eq!(code, 0);
    let (code, _, errors) = run(&[&url, "--expect", "p99=5ms"]).await;
    assert_eq!(code, 2, "{errors}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_guide_documents_each_field_of_the_json() {
    let url = start(Fault::None).await;
    let (_, report) = measure(&url, &["--duration", "1100ms", "--rate", "100", "--expect", "p50<1s"]).await;
    let mut names = BTreeSet::new();
    collect(&report, "", &mut names);
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src/guides/load.md"))
        .unwrap();
    let (_, table) = page.split_once("## JSON").unwrap();
    let documented: BTreeSet<String> = table
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`'))
        .map(|(name, _)| name.to_owned())
        .collect();
    assert_eq!(names, documented);
}

/// The paths of all fields, such as `series[].p50`.
fn collect(value: &Value, path: &str, names: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let dot = if path.is_empty() { "" } else { "." };
                collect(value, &format!("{path}{dot}{name}"), names);
            }
        }
        Value::Array(values) if values.first().is_some_and(Value::is_object) => {
            collect(&values[0], &format!("{path}[]"), names);
        }
        _ => drop(names.insert(path.to_owned())),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn prints_a_line_per_second_and_a_table() {
    let url = start(Fault::None).await;
    let (code, out, errors) =
        run(&[&url, "--duration", "2300ms", "--warmup", "300ms", "--connections", "2"]).await;
    assert_eq!(code, 0, "{errors}");
    let lines: Vec<&str> = errors.lines().collect();
    assert_eq!(lines.len(), 2, "{errors}");
    assert!(
        lines.iter().all(|line| line.contains("/s  p50 ") && line.ends_with("0 errors, 2 connections")),
        "{errors}"
    );
    for row in ["target ", "rate ", "p50 ", "p99.9 ", "max ", "errors       0\n"] {
        assert!(out.contains(row), "{row}: {out}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_to_connect_have_one_line() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let refused = format!("ws://{}/", listener.local_addr().unwrap());
    drop(listener);
    let url = start(Fault::None).await;
    let silent = Arc::new(TcpListener::bind("127.0.0.1:0").await.unwrap());
    let silent_url = format!("ws://{}/", silent.local_addr().unwrap());
    let tls = url.replace("ws://", "wss://");
    for (args, code, text) in [
        (vec![&*refused], 1, "refused"),
        (vec![&*silent_url, "--timeout", "300ms"], 1, "the opening handshake took too long"),
        (vec![&*tls], 1, "wss://"),
        (vec!["http://127.0.0.1:1/"], 2, "ws://"),
        (vec!["ws://192.0.2.1:9/"], 2, "192.0.2.1 is outside loopback and private networks"),
        (vec![&*url, "-H", "a b: c"], 2, "header"),
    ] {
        let (found, out, errors) = run(&args).await;
        assert_eq!(found, code, "{args:?} {errors}");
        assert_eq!(out, "", "{args:?}");
        assert_eq!(errors.lines().count(), 1, "{args:?} {errors}");
        assert!(errors.starts_with("wireloom: ") && errors.contains(text), "{args:?} {errors}");
    }
}
