//! Ten thousand idle connections: the memory that each needs, and that all of them work and are closed at shutdown.

#![allow(clippy::unwrap_used)]
#![cfg(target_os = "linux")]

use std::io::Write as _;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;
use wireloom::CloseCode;

const WANTED: u64 = 10_000;

/// Descriptors for everything else, in either process.
const SPARE: u64 = 100;

/// Memory per connection, in bytes: above that of an idle connection in an unoptimized build, far below one that holds a buffer.
const BYTES_MAX: u64 = 12 << 10;

/// Resident memory of a process, in bytes.
fn resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

#[tokio::test]
async fn ten_thousand_idle_connections_are_held_and_closed() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let count = limit.maximum.map_or(WANTED, |maximum| WANTED.min(maximum.saturating_sub(SPARE)));
    assert!(count > SPARE, "the limit on open files leaves no room");
    if count < WANTED {
        // Not by println!, which is shown for failures alone.
        let _ = writeln!(std::io::stderr(), "limited: {count} idle connections, by the limit on open files");
    }
    let mut child = Command::new(env!("CARGO_BIN_EXE_wireloom"))
        .args(["serve", "--listen", "127.0.0.1:0", "--grace", "60s"])
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let pid = child.id().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = lines.next_line().await.unwrap().unwrap();
    let url = format!("ws://{}echo", line.split_once("://").unwrap().1);

    // The first connections also pay for what all share.
    let mut sockets = Vec::new();
    for _ in 0..100 {
        sockets.push(wireloom::connect(&url).await.unwrap());
    }
    let before = resident(pid);
    while (sockets.len() as u64) < count {
        let batch = (count as usize - sockets.len()).min(100);
        let opening: Vec<_> = (0..batch)
            .map(|_| {
                let url = url.clone();
                tokio::spawn(async move { wireloom::connect(&url).await })
            })
            .collect();
        for opened in opening {
            sockets.push(opened.await.unwrap().unwrap());
        }
    }
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
