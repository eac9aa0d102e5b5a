//! Requests over HTTP/1.1: the same checks as over HTTP/2, kept connections, and the end of the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::AsyncReadExt as _;
use tokio::time::timeout;
use wireloom::{IntoResponse as _, Request, Response, Server};

use crate::{DEADLINE, Serve, measure, run, spawn};

#[tokio::test]
async fn requests_over_both_versions_are_checked_and_counted_alike() {
    let server = Serve::start().await;
    let url = server.url("http", "/echo");
    for version in [&["--http1.1"][..], &[]] {
        let args =
            [version, &["--connections", "3", "--count", "200", "--size", "1..2K", "--check"]].concat();
        let (code, report) = measure(&url, &args).await;
        assert_eq!((code, report["answered"].as_u64()), (0, Some(200)), "{version:?}: {report}");
        assert_eq!(report["latency"]["samples"], 200, "{version:?}");
        assert_eq!(report["config"]["http2"], version.is_empty());
        // An open loop.
        let args = [version, &["--connections", "3", "--rate", "100", "--duration", "1"]].concat();
        let (code, report) = measure(&server.url("http", "/healthz"), &args).await;
        assert_eq!((code, report["answered"].as_u64()), (0, Some(100)), "{version:?}: {report}");
        // A status that is an error.
        let args = [version, &["--count", "5"]].concat();
        let (code, report) = measure(&server.url("http", "/nowhere"), &args).await;
        assert_eq!((code, report["errors"]["wrong"].as_u64()), (5, Some(5)), "{version:?}: {report}");
    }
    let (code, _, errors) = run(&[&url, "--http1.1", "--pipeline", "2"]).await;
    assert!(code == 2 && errors.contains("one request at a time"), "{errors}");
}

#[tokio::test]
async fn connections_for_http11_are_kept_and_opened_again() {
    let server = Server::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", server.local_addr().unwrap());
    let (peers, answered) =
        (Arc::new(std::sync::Mutex::new(std::collections::HashSet::new())), Arc::new(AtomicUsize::new(0)));
    let (seen, count) = (peers.clone(), answered.clone());
    let handle = move |request: Request| {
        seen.lock().unwrap().insert(request.peer());
        // The server closes each connection after 50 answers.
        let is_last = count.fetch_add(1, Ordering::Relaxed) % 50 == 49;
        async move {
            let response = Response::text(200, "answer");
            if is_last { response.close_connection() } else { response }.into_response()
        }
    };
    tokio::spawn(async move { server.serve(handle).await });
    let (code, report) = measure(&url, &["--http1.1", "--connections", "1", "--count", "200"]).await;
    assert_eq!((code, report["answered"].as_u64()), (0, Some(200)), "{report}");
    // With the one that shows whether the server answers, 201 requests were made over four to six connections.
    let peers = peers.lock().unwrap().len();
    assert!((4..=6).contains(&peers), "{peers} connections");
}

// The run would take ten minutes.
#[tokio::test]
async fn a_server_that_is_gone_ends_the_load() {
    for args in [
        &["--scenario", "churn"][..],
        &["--http1.1"],
        &["--http1.1", "--rate", "50"],
        &["--scenario", "churn", "--rate", "50"],
    ] {
        let mut server = Serve::start().await;
        let url = match args.contains(&"churn") {
            true => server.url("ws", "/echo"),
            false => server.url("http", "/healthz"),
        };
        let mut command = tokio::process::Command::new(crate::WIRELOOM);
        command.args(["load", &url, "--duration", "10m", "--json"]).args(args).kill_on_drop(true);
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        let mut child = command.spawn().unwrap();
        // A line of progress: it has begun.
        let mut errors = child.stderr.take().unwrap();
        timeout(DEADLINE, errors.read_u8()).await.unwrap().unwrap();
        server.child.kill().await.unwrap();
        let rest = async { tokio::io::copy(&mut errors, &mut tokio::io::sink()).await };
        let (output, _) =
            timeout(DEADLINE, async { tokio::join!(child.wait_with_output(), rest) }).await.expect("it ends");
        let output = output.unwrap();
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(5), "{args:?}: {report}");
        assert!(report["answered"].as_u64().unwrap() > 0, "{args:?}: {report}");
        // Attempts are not repeated without a pause.
        let errors = report["errors"]["total"].as_u64().unwrap();
        assert!((1..10_000).contains(&errors), "{args:?}: {errors} errors");
    }
    // One that comes back in time is loaded again.
    let first = Server::bind("127.0.0.1:0").await.unwrap();
    let address = first.local_addr().unwrap();
    let requested = Arc::new(tokio::sync::Notify::new());
    let notify = requested.clone();
    let handle = move |_: Request| {
        notify.notify_one();
        async { Response::text(200, "answer") }
    };
    let handle_of_first = first.handle();
    let serving = tokio::spawn(first.serve(handle.clone()));
    let mut child =
        spawn(&[&format!("http://{address}/"), "--http1.1", "--duration", "3", "--json", "--quiet"]);
    timeout(DEADLINE, requested.notified()).await.unwrap();
    handle_of_first.abort();
    let _ = serving.await;
    let second = loop {
        match Server::bind(address).await {
            Ok(server) => break server,
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    };
    tokio::spawn(second.serve(handle));
    let mut out = String::new();
    timeout(DEADLINE, child.stdout.take().unwrap().read_to_string(&mut out)).await.unwrap().unwrap();
    let report: serde_json::Value = serde_json::from_str(&out).unwrap();
    let last = report["series"].as_array().unwrap().last().unwrap();
    assert!(report["time"].as_f64().unwrap() > 2.5 && last["answered"].as_u64().unwrap() > 0, "{report}");
}
