//! Many connections: the memory that each needs while idle, that it returns when they close, and that all work.

#![allow(clippy::unwrap_used)]
#![cfg(target_os = "linux")]

use std::io::Write as _;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use wireloom::{CloseCode, Connector, DeflateConfig, WebSocket, WebSocketConfig};

const WANTED: u64 = 10_000;

/// Descriptors that either process needs for everything else.
const SPARE: u64 = 100;

/// Memory per connection, in bytes: above that of an idle connection in an unoptimized build, far below one that holds a buffer.
const BYTES_MAX: u64 = 12 << 10;

/// Resident memory of a process, in bytes.
fn resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

/// Raises the limit on open files; returns how many of the wanted connections a process may have.
fn connections_max(wanted: u64) -> u64 {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let count = limit.maximum.map_or(wanted, |maximum| wanted.min(maximum.saturating_sub(SPARE)));
    assert!(count > SPARE, "the limit on open files leaves no room");
    if count < wanted {
        // Not println!, whose output is shown only if the test fails.
        let _ = writeln!(std::io::stderr(), "limited: {count} connections, by the limit on open files");
    }
    count
}

/// A server in a process of its own, and the URL of its echo.
async fn serve() -> (Child, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_wireloom"))
        .args(["serve", "--listen", "127.0.0.1:0", "--grace", "60s", "--close-timeout", "60s"])
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = lines.next_line().await.unwrap().unwrap();
    child.stdout = Some(lines.into_inner().into_inner());
    (child, format!("ws://{}echo", line.split_once("://").unwrap().1))
}

/// Opens connections, 100 at a time.
async fn open(connector: &Connector, url: &str, count: u64) -> Vec<WebSocket> {
    let mut sockets = Vec::new();
    while (sockets.len() as u64) < count {
        let batch = (count - sockets.len() as u64).min(100);
        let opening: Vec<_> = (0..batch)
            .map(|_| {
                let (connector, url) = (connector.clone(), url.to_owned());
                tokio::spawn(async move { connector.connect(&url).await })
            })
            .collect();
        for opened in opening {
            sockets.push(opened.await.unwrap().unwrap());
        }
    }
    sockets
}

#[tokio::test]
async fn ten_thousand_idle_connections_are_held_and_closed() {
    let count = connections_max(WANTED);
    let (mut child, url) = serve().await;
    let pid = child.id().unwrap();
    // Without keepalive, because these clients do not receive while others connect.
    let mut config = WebSocketConfig::client();
    config.core.keepalive = None;
    let connector = Connector::new().config(config);
    // The first connections allocate what all share.
    let mut sockets = open(&connector, &url, 100).await;
    let before = resident(pid);
    sockets.extend(open(&connector, &url, count - 100).await);
    let each = resident(pid).saturating_sub(before) / (count - 100);
    println!("{count} connections, {each} bytes of the server each");
    assert!(each <= BYTES_MAX, "{each}");

    // Every connection works.
    for (number, socket) in sockets.iter_mut().enumerate() {
        socket.send(number.to_string()).await.unwrap();
    }
    for (number, socket) in sockets.iter_mut().enumerate() {
        assert_eq!(socket.recv().await.unwrap().unwrap().as_text(), Some(&*number.to_string()));
    }
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::TERM).unwrap();
    for socket in &mut sockets {
        assert!(socket.recv().await.unwrap().is_none());
        assert_eq!(socket.end().unwrap().code(), CloseCode::GOING_AWAY);
    }
    drop(sockets);
    let ended = tokio::time::timeout(Duration::from_secs(60), child.wait()).await.unwrap();
    assert!(ended.unwrap().success());
}

/// Compressed connections of the next test, unless `WIRELOOM_CONNECTIONS` names another number.
const COMPRESSED: u64 = 4_000;

/// The memory that may remain allocated after 20,000 of them, in bytes.
const LEFT_BY_20_000: u64 = 64 << 20;

/// The part of it that does not depend on their number, in bytes. 500 connections left 2.4 MB, 4,000 up to 11 MB, 8,000
/// up to 16 MB.
const LEFT_BY_FEW: u64 = 4 << 20;

#[tokio::test]
async fn the_memory_of_compressed_connections_returns_when_they_close() {
    let wanted = std::env::var("WIRELOOM_CONNECTIONS").map_or(COMPRESSED, |count| count.parse().unwrap());
    let count = connections_max(wanted);
    let (child, url) = serve().await;
    let pid = child.id().unwrap();
    // Without keepalive, because these clients receive one after the other.
    let mut config = WebSocketConfig::client();
    config.core.keepalive = None;
    let connector = Connector::new().config(config).deflate(DeflateConfig::default());
    drop(open(&connector, &url, 100).await);
    let before = resident(pid);
    let mut sockets = open(&connector, &url, count).await;
    // Messages of one connection are similar, those of different connections are not.
    for (number, socket) in sockets.iter_mut().enumerate() {
        assert!(socket.is_compressed());
        for line in 0..3 {
            let message = format!("{{\"connection\":{number},\"line\":{line}}}").repeat(100);
            socket.send(&message).await.unwrap();
            assert_eq!(socket.recv().await.unwrap().unwrap().as_text(), Some(&*message));
        }
    }
    let open = resident(pid).saturating_sub(before);
    // Each connection must have compressed messages, and so hold its windows.
    assert!(open > count * 4_096, "{open}");
    drop(sockets);
    let left_max = LEFT_BY_FEW + (LEFT_BY_20_000 - LEFT_BY_FEW) * count / 20_000;
    let closed = Instant::now();
    let left = loop {
        let left = resident(pid).saturating_sub(before);
        if left <= left_max || closed.elapsed() > Duration::from_secs(60) {
            break left;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    println!("{count} connections held {} KiB, {} KiB are left", open >> 10, left >> 10);
    assert!(left <= left_max, "{left} bytes of {open} are left, at most {left_max} may be");
}
