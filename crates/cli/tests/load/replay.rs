//! Recordings, played again.

use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;
use tokio::time::{sleep, timeout};
use wireloom::{Request, Server};

use crate::{DEADLINE, Fault, Temporary, WIRELOOM, measure, measure_until, run, start};

/// A recording whose second message is later than any clock.
const LATE: &str = concat!(
    r#"{"wireloom_recording":1,"started":1800000000.25,"masked":true}"#,
    "\n",
    // The handshake of RFC 6455 §1.2, and the frame of §5.7 twice.
    r#"{"t":0,"c":1,"from":"client","data":"R0VUIC8gSFRUUC8xLjENCkhvc3Q6IGgNClVwZ3JhZGU6IHdlYnNvY2tldA0KQ29ubmVjdGlvbjogVXBncmFkZQ0KU2VjLVdlYlNvY2tldC1LZXk6IGRHaGxJSE5oYlhCc1pTQnViMjVqWlE9PQ0KU2VjLVdlYlNvY2tldC1WZXJzaW9uOiAxMw0KDQo="}"#,
    "\n",
    r#"{"t":0,"c":1,"from":"server","data":"SFRUUC8xLjEgMTAxIFMNClVwZ3JhZGU6IHdlYnNvY2tldA0KQ29ubmVjdGlvbjogVXBncmFkZQ0KU2VjLVdlYlNvY2tldC1BY2NlcHQ6IHMzcFBMTUJpVHhhUTlrWUd6emhaUmJLK3hPbz0NCg0K"}"#,
    "\n",
    r#"{"t":0.1,"c":1,"from":"client","data":"gYU3+iE9f59NUVg="}"#,
    "\n",
    r#"{"t":1e19,"c":1,"from":"client","data":"gYU3+iE9f59NUVg="}"#,
    "\n",
);

/// The pause of the recording.
const PAUSE: Duration = Duration::from_millis(600);

/// A recording of `serve`: a connection that sends text, a pause, text and bytes; and one that sends in the pause.
async fn record(file: &Temporary) {
    let mut serve = Command::new(WIRELOOM)
        .args(["serve", "--listen", "127.0.0.1:0", "--record", file.path()])
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(serve.stdout.take().unwrap()).lines();
    let line = timeout(DEADLINE, lines.next_line()).await.unwrap().unwrap().unwrap();
    let url = format!("ws://{}/echo", line.split_once("://").unwrap().1.trim_end_matches('/'));
    let mut first = wireloom::connect(&url).await.unwrap();
    let mut second = wireloom::connect(&url).await.unwrap();
    first.send("one").await.unwrap();
    first.recv().await.unwrap();
    sleep(PAUSE / 2).await;
    second.send("of the second").await.unwrap();
    second.recv().await.unwrap();
    sleep(PAUSE / 2).await;
    first.send("two \u{20ac}").await.unwrap();
    first.send(&[0_u8, 255, 127][..]).await.unwrap();
    for _ in 0..2 {
        first.recv().await.unwrap();
    }
    for socket in [&mut first, &mut second] {
        socket.close(wireloom::CloseCode::NORMAL, "").await.unwrap();
        while socket.recv().await.unwrap().is_some() {}
    }
    let id = serve.id().unwrap().to_string();
    assert!(Command::new("kill").args(["-TERM", &id]).status().await.unwrap().success());
    assert!(timeout(DEADLINE, serve.wait()).await.unwrap().unwrap().success());
}

/// A received message: whether it is text, its content, and when it arrived.
type Received = (bool, Vec<u8>, Instant);
/// The messages of each connection: whether they are text, and their content.
type Sent = Vec<Vec<(bool, Vec<u8>)>>;
/// The received messages, by connection.
type Log = Arc<Mutex<Vec<Vec<Received>>>>;

/// A server that records each message and answers none.
async fn collect() -> (String, Log) {
    let server = Server::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}/", server.local_addr().unwrap());
    let log = Log::default();
    let noted = log.clone();
    let handle = move |request: Request| {
        let log = noted.clone();
        async move {
            request.websocket().map(|upgrade| {
                upgrade.on_open(move |mut socket| async move {
                    let mut own = Vec::new();
                    while let Ok(Some(message)) = socket.recv().await {
                        own.push((message.is_text(), message.as_bytes().to_vec(), Instant::now()));
                    }
                    log.lock().unwrap().push(own);
                })
            })
        }
    };
    tokio::spawn(async move { server.serve(handle).await });
    (url, log)
}

/// The messages that each of `count` connections of a server received, sorted, and the time between the first message and the last.
/// The server may notice the end of a connection after `load` has ended.
async fn received(log: &Log, count: usize) -> (Sent, Duration) {
    let ended = async {
        while log.lock().unwrap().len() < count {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(DEADLINE, ended).await.expect("the connections end");
    let log = std::mem::take(&mut *log.lock().unwrap());
    let times = || log.iter().flatten().map(|(_, _, at)| *at);
    let time = times().max().unwrap() - times().min().unwrap();
    let mut connections: Vec<Vec<_>> =
        log.iter().map(|own| own.iter().map(|(text, bytes, _)| (*text, bytes.clone())).collect()).collect();
    connections.sort();
    (connections, time)
}

fn expected() -> Sent {
    let first =
        vec![(true, b"one".to_vec()), (true, "two \u{20ac}".as_bytes().to_vec()), (false, vec![0, 255, 127])];
    let mut connections = vec![first, vec![(true, b"of the second".to_vec())]];
    connections.sort();
    connections
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_receives_what_was_recorded_at_its_pace_or_faster() {
    let file = Temporary::new("pace.wlr");
    record(&file).await;
    let (url, log) = collect().await;
    for (speed, least, most) in [
        // The first message may be late, in the recording too, so that the pause is shorter.
        (&[][..], PAUSE * 9 / 10, PAUSE * 10),
        (&["--speed", "0.5"], PAUSE * 18 / 10, PAUSE * 20),
        (&["--speed", "max"], Duration::ZERO, PAUSE * 9 / 10),
        (&["--speed", "100"], Duration::ZERO, PAUSE * 9 / 10),
    ] {
        // Other load may disturb a replay.
        let mut attempts = 0;
        loop {
            let (code, report) = measure(&url, &[&["--replay", file.path()], speed].concat()).await;
            assert_eq!(code, 0, "{report}");
            assert_eq!((&report["sent"], &report["sent_bytes"]), (&4.into(), &26.into()), "{report}");
            assert_eq!(report["config"]["connections"], 2, "{report}");
            assert_eq!(report["config"]["scenario"], "replay", "{report}");
            let (connections, time) = received(&log, 2).await;
            assert_eq!(connections, expected(), "{speed:?}");
            attempts += 1;
            let is_in_time = (least..=most).contains(&time);
            assert!(is_in_time || attempts < 20, "{speed:?}: {time:?}");
            if is_in_time {
                break;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn more_connections_play_the_recording_again_and_again() {
    let file = Temporary::new("more.wlr");
    record(&file).await;
    let (url, log) = collect().await;
    let (code, report) =
        measure(&url, &["--replay", file.path(), "--speed", "max", "--connections", "5"]).await;
    assert_eq!((code, &report["sent"]), (0, &11.into()), "{report}");
    let [short, long] = <[_; 2]>::try_from(expected()).unwrap();
    let (connections, _) = received(&log, 5).await;
    assert_eq!(connections, [short.clone(), short, long.clone(), long.clone(), long]);

    // Rounds of 60 ms.
    let args = ["--replay", file.path(), "--speed", "10", "--duration", "1"];
    let is_in_time = |report: &Value| {
        (Some(16)..=Some(72)).contains(&report["sent"].as_u64()) && report["time"].as_f64() < Some(2.0)
    };
    let (code, report) = measure_until(&url, &args, |_, report| is_in_time(report)).await;
    assert_eq!(code, 0, "{report}");
    assert!(is_in_time(&report), "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_of_an_echo_are_checked() {
    let file = Temporary::new("check.wlr");
    record(&file).await;
    let url = start(Fault::None).await;
    let options = ["--replay", file.path(), "--speed", "max", "--check"];
    let (code, report) = measure(&url, &options).await;
    assert_eq!(code, 0, "{report}");
    assert_eq!((&report["answered"], &report["latency"]["samples"]), (&4.into(), &4.into()), "{report}");
    // Without it, what arrives is counted.
    let (code, report) = measure(&url, &options[..4]).await;
    assert_eq!(code, 0, "{report}");
    assert_eq!((&report["answered"], &report["latency"]["samples"]), (&4.into(), &0.into()), "{report}");
    let more = [&options[..], &["--duration", "1", "--connections", "1", "--timeout", "5s"]].concat();
    for (fault, kind) in [(Fault::RepeatTenth, "wrong"), (Fault::NoAnswer, "lost"), (Fault::Close, "closed")]
    {
        let (code, report) = measure(&start(fault).await, &more).await;
        assert_eq!(code, 5, "{report}");
        assert!(report["errors"][kind].as_u64() > Some(0), "{kind}: {report}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_connect_recorded_is_played() {
    let file = Temporary::new("connect.wlr");
    let echo = start(Fault::None).await;
    let output = Command::new(WIRELOOM)
        .args([
            "connect",
            &echo,
            "--record",
            file.path(),
            "--send",
            "hello",
            "--send",
            "again",
            "--count",
            "2",
        ])
        .stdin(Stdio::null())
        .output();
    let output = timeout(DEADLINE, output).await.unwrap().unwrap();
    assert!(output.status.success(), "{output:?}");
    let (url, log) = collect().await;
    let (code, report) = measure(&url, &["--replay", file.path()]).await;
    assert_eq!(code, 0, "{report}");
    assert_eq!(received(&log, 1).await.0, [[(true, b"hello".to_vec()), (true, b"again".to_vec())]]);
}

#[tokio::test(flavor = "multi_thread")]
async fn recordings_that_cannot_be_played_are_refused() {
    let url = start(Fault::None).await;
    let (empty, broken) = (Temporary::new("empty.wlr"), Temporary::new("broken.wlr"));
    std::fs::write(&empty.0, "").unwrap();
    record(&broken).await;
    let bytes = std::fs::read(&broken.0).unwrap();
    std::fs::write(&broken.0, &bytes[..bytes.len() - 5]).unwrap();
    let late = Temporary::new("late.wlr");
    std::fs::write(&late.0, LATE).unwrap();
    for (args, expected) in [
        (&["--replay", "/nowhere"][..], "--replay /nowhere: No such file"),
        (&["--replay", empty.path()], "no client sends a message in it"),
        (&["--replay", broken.path()], "the input is cut off"),
        (&["--replay", late.path()], "more than a year after the first"),
        (&["--replay", late.path(), "--speed", "0.5"], "more than a year after the first"),
        (&["--replay", broken.path(), "--speed", "0"], "it must be a number between"),
        (&["--speed", "2"], "--replay <FILE>"),
        (&["--replay", broken.path(), "--scenario", "sink"], "cannot be used with"),
        (&["--replay", broken.path(), "--size", "3"], "--size does not apply to the scenario replay"),
    ] {
        let (code, _, errors) = run(&[&[&*url], args].concat()).await;
        assert!(code == 2 && errors.contains(expected), "{args:?}: {code} {errors}");
    }
}
