//! Progress on a terminal, and the end by a signal.

#![cfg(target_os = "linux")]

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::process::Stdio;
use std::time::Duration;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::time::{sleep, timeout};

use crate::{DEADLINE, Fault, Temporary, WIRELOOM, signal, spawn, start, start_counting};

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_shows_one_line_that_is_updated() {
    let url = start(Fault::None).await;
    let screen = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&screen).unwrap();
    unlockpt(&screen).unwrap();
    let name = ptsname(&screen, Vec::new()).unwrap();
    // NOCTTY: if the tests lead a session without a terminal, this one must not become theirs, because they would be
    // killed when it closes.
    let flags = OpenptFlags::NOCTTY.bits().cast_signed();
    let terminal = File::options().read(true).write(true).custom_flags(flags).open(name.to_str().unwrap());
    let mut child = Command::new(WIRELOOM)
        .args(["load", &url, "--duration", "2500ms", "--connections", "3"])
        .env("TERM", "xterm")
        .env_remove("NO_COLOR")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(terminal.unwrap())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let shown = tokio::task::spawn_blocking(move || {
        let (mut screen, mut shown, mut bytes) = (File::from(screen), Vec::new(), [0; 4096]);
        // The terminal reports an error once the other end is closed.
        while let Ok(len @ 1..) = screen.read(&mut bytes) {
            shown.extend_from_slice(&bytes[..len]);
        }
        String::from_utf8_lossy(&shown).into_owned()
    });
    assert!(timeout(DEADLINE, child.wait()).await.unwrap().unwrap().success());
    let shown = timeout(DEADLINE, shown).await.unwrap().unwrap();
    for part in ["/s  p50 ", "p99 ", "0 errors, 3 connections"] {
        assert!(shown.contains(part), "{part}: {shown:?}");
    }
    // The line is overwritten, and removed at the end.
    assert!(shown.contains('\r') && shown.trim_end().ends_with("\u{1b}[2K"), "{shown:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_ends_the_run_with_its_result_and_not_with_success() {
    // Whether what was expected is met up to then says nothing about the rest.
    for (name, code, expected) in [("-INT", 130, "errors<1"), ("-TERM", 143, "errors>=1")] {
        let (url, mut count) = start_counting().await;
        let log = Temporary::new("interrupted.hdr");
        let log = log.path();
        let args = ["--duration", "60", "--rate", "500", "--json", "--quiet", "--expect", expected];
        let child = spawn(&[&[&*url, "--hdr", log], &args[..]].concat());
        timeout(DEADLINE, count.wait_for(|count| *count > 100)).await.unwrap().unwrap();
        signal(&child, name).await;
        let output = timeout(DEADLINE, child.wait_with_output()).await.unwrap().unwrap();
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["interrupted"], true, "{report}");
        assert!(report["answered"].as_u64() > Some(0), "{report}");
        assert!(report["warnings"].to_string().contains("interrupted before the end"), "{report}");
        // Nor does a sum with it.
        let merged = spawn(&["merge", log, "--expect", "errors<1"]).wait_with_output().await.unwrap();
        let text = String::from_utf8_lossy(&merged.stdout);
        assert!(merged.status.code() == Some(4) && text.contains("was interrupted"), "{merged:?}");
        let merged = spawn(&["merge", log, "--json"]).wait_with_output().await.unwrap();
        let merged: Value = serde_json::from_slice(&merged.stdout).unwrap();
        assert_eq!(merged["interrupted"], true, "{merged}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_before_the_connections_are_open_is_a_failure() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}/", silent.local_addr().unwrap());
    for args in [&[&*url][..], &[&*url, "--against", &*url]] {
        let child = spawn(args);
        let held = timeout(DEADLINE, silent.accept()).await.unwrap().unwrap();
        signal(&child, "-INT").await;
        let output = timeout(DEADLINE, child.wait_with_output()).await.unwrap().unwrap();
        assert_eq!(output.status.code(), Some(130), "{args:?}: {output:?}");
        assert!(output.stdout.is_empty(), "{args:?}: {output:?}");
        drop(held);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_while_subscribers_join_is_a_failure() {
    // It is no room: subscribers receive nothing.
    let (url, mut count) = start_counting().await;
    let child = spawn(&[&url, "--scenario", "rooms", "--rate", "1", "--connections", "3", "--timeout", "1h"]);
    timeout(DEADLINE, count.wait_for(|count| *count > 0)).await.unwrap().unwrap();
    signal(&child, "-INT").await;
    let output = timeout(DEADLINE, child.wait_with_output()).await.unwrap().unwrap();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_between_two_servers_is_reported() {
    let url = start(Fault::None).await;
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let other = format!("ws://{}/", silent.local_addr().unwrap());
    // Which server is first is by chance; if it is the silent one there is no report.
    let report = loop {
        let child = spawn(&[&url, "--against", &other, "--duration", "1", "--json", "--quiet"]);
        let held = timeout(DEADLINE, silent.accept()).await.unwrap().unwrap();
        signal(&child, "-INT").await;
        let output = timeout(DEADLINE, child.wait_with_output()).await.unwrap().unwrap();
        drop(held);
        assert_eq!(output.status.code(), Some(130), "{output:?}");
        if !output.stdout.is_empty() {
            break serde_json::from_slice::<Value>(&output.stdout).unwrap();
        }
    };
    assert_eq!(report["interrupted"], true, "{report}");
}

// Nothing was sent or answered in that time: it belongs to one second, and the seconds after it have their own answers.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_was_stopped_reports_one_long_second() {
    let (url, mut count) = start_counting().await;
    let child = spawn(&[&url, "--duration", "4", "--connections", "1", "--json", "--quiet"]);
    // Some messages are answered in this second before the stop.
    timeout(DEADLINE, count.wait_for(|count| *count > 100)).await.unwrap().unwrap();
    signal(&child, "-STOP").await;
    sleep(Duration::from_millis(2_500)).await;
    signal(&child, "-CONT").await;
    let output = timeout(DEADLINE, child.wait_with_output()).await.unwrap().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let (mut begin, mut longest) = (0.0, 0.0);
    for second in report["series"].as_array().unwrap() {
        let end = second["at"].as_f64().unwrap();
        let time: f64 = end - begin;
        assert!(time < 0.9 || second["answered"].as_u64() > Some(0), "{report}");
        (begin, longest) = (end, time.max(longest));
    }
    assert!(longest >= 2.4, "{report}");
}
