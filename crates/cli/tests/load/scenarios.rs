//! Scenarios other than an echo of one length.

use std::time::Duration;

use serde_json::Value;
use wireloom::{Request, Server};

use crate::{Fault, Serve, Temporary, measure, measure_until, run, start};

#[tokio::test(flavor = "multi_thread")]
async fn sinks_confirm_what_has_arrived() {
    let serve = Serve::start().await;
    let url = serve.url("ws", "/sink");
    for more in [
        &["--count", "5000"][..],
        &["--count", "500", "--size", "100K"],
        &["--count", "500", "--rate", "2k"],
        &["--count", "5000", "--http2"],
    ] {
        let (code, report) =
            measure(&url, &[&["--scenario", "sink", "--connections", "3"], more].concat()).await;
        let count: u64 = more[1].parse().unwrap();
        assert_eq!(code, 0, "{report}");
        assert_eq!(
            (&report["sent"], &report["answered"]),
            (&count.into(), &count.into()),
            "{more:?} {report}"
        );
        assert_eq!(report["sent_bytes"], report["answered_bytes"], "{report}");
        assert!(report["latency"]["samples"].as_u64().unwrap() >= 3, "{report}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sources_are_counted() {
    let serve = Serve::start().await;
    // Each connection is sent 1,000 messages and a normal Close.
    let url = serve.url("ws", "/source?size=100&count=1000");
    let (code, report) = measure(&url, &["--scenario", "source", "--connections", "3"]).await;
    assert_eq!(code, 0, "{report}");
    assert_eq!((&report["answered"], &report["answered_bytes"]), (&3000.into(), &300_000.into()), "{report}");
    assert_eq!(report["latency"]["samples"], 0);
    let (code, report) =
        measure(&serve.url("ws", "/source?size=100"), &["--scenario", "source", "--count", "2000"]).await;
    assert_eq!((code, &report["answered"]), (0, &2000.into()), "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_readers_read_slowly() {
    let serve = Serve::start().await;
    let url = serve.url("ws", "/source?size=100");
    let args = ["--scenario", "slow", "--rate", "100", "--duration", "2", "--connections", "4"];
    let answered = |report: &Value| report["answered"].as_u64();
    let (code, report) =
        measure_until(&url, &args, |code, report| code == 0 && answered(report) >= Some(150)).await;
    assert_eq!(code, 0, "{report}");
    assert!((Some(150)..=Some(200)).contains(&answered(&report)), "{report}");
}

/// Messages that were due in the warm-up arrive after it: the server is slower than the reader.
#[tokio::test(flavor = "multi_thread")]
async fn slow_readers_read_as_many_messages_as_they_should() {
    let server = Server::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}/", server.local_addr().unwrap());
    let handle = |request: Request| async move {
        request.websocket().map(|upgrade| {
            upgrade.on_open(async |mut socket| {
                while socket.send("message").await.is_ok() {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            })
        })
    };
    tokio::spawn(async move { server.serve(handle).await });
    let args =
        ["--scenario", "slow", "--connections", "1", "--rate", "100", "--count", "20", "--warmup", "500ms"];
    let (code, report) = measure(&url, &args).await;
    assert_eq!((code, &report["answered"]), (0, &20.into()), "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn churn_measures_the_time_to_open() {
    let url = start(Fault::SlowHandshake(Duration::from_millis(30))).await;
    for more in [&[][..], &["--rate", "200"]] {
        let args = ["--scenario", "churn", "--connections", "10", "--count", "60"];
        let (code, report) = measure(&url, &[&args[..], more].concat()).await;
        assert_eq!(code, 0, "{report}");
        assert_eq!((&report["sent"], &report["answered"]), (&60.into(), &60.into()), "{report}");
        assert!(report["latency"]["p50"].as_f64().unwrap() >= 0.03, "{report}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_are_checked_at_the_end() {
    let url = start(Fault::NoAnswer).await;
    let (code, report) = measure(
        &url,
        &["--scenario", "idle", "--connections", "50", "--duration", "500ms", "--timeout", "30"],
    )
    .await;
    assert_eq!(code, 0, "{report}");
    assert_eq!((&report["answered"], &report["latency"]["samples"]), (&50.into(), &50.into()), "{report}");
    // No second has ended, unless other load has delayed the run.
    assert!(report["series"] == serde_json::json!([]) || report["time"].as_f64() > Some(1.0), "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_checked() {
    let serve = Serve::start().await;
    let echo = serve.url("http", "/echo");
    for more in [
        &["--size", "1..100K", "--check", "--pipeline", "8"][..],
        &["--size", "1K", "--check", "--rate", "1k"],
        &["--size", "1K", "--binary", "--check", "--method", "PUT"],
    ] {
        let (code, report) =
            measure(&echo, &[&["--count", "300", "--connections", "3"], more].concat()).await;
        assert_eq!(code, 0, "{report}");
        assert_eq!((&report["sent"], &report["answered"]), (&300.into(), &300.into()), "{more:?} {report}");
        assert_eq!(report["sent_bytes"], report["answered_bytes"], "{report}");
    }
    let (code, report) = measure(&serve.url("http", "/healthz"), &["--count", "100"]).await;
    assert_eq!((code, &report["answered"]), (0, &100.into()), "{report}");
    // A sink answers with the length.
    let (code, report) =
        measure(&serve.url("http", "/sink"), &["--count", "20", "--size", "9", "--check"]).await;
    assert_eq!((code, &report["errors"]["wrong"]), (5, &20.into()), "{report}");
    let (code, report) = measure(&serve.url("http", "/none"), &["--count", "20"]).await;
    assert_eq!((code, &report["errors"]["first"]), (5, &"the server answered 404".into()), "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_come_from_a_file() {
    let messages = Temporary::with("messages", "one\ntwo\r\n\nthree \u{20ac}\n");
    let (code, report) = measure(
        &start(Fault::None).await,
        &["--messages", messages.path(), "--count", "30", "--pipeline", "3"],
    )
    .await;
    assert_eq!(code, 0, "{report}");
    assert_eq!((&report["answered"], &report["sent_bytes"]), (&30.into(), &150.into()), "{report}");
    for (fault, kind) in [(Fault::ChangeTenth, "wrong"), (Fault::RepeatTenth, "unexpected")] {
        let args = ["--messages", messages.path(), "--count", "30", "--connections", "1", "--binary"];
        let (code, report) = measure(&start(fault).await, &args[..if kind == "wrong" { 6 } else { 7 }]).await;
        assert_eq!((code, &report["errors"]["total"]), (5, &3.into()), "{report}");
        assert_eq!(report["errors"][kind], 3, "{report}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn scripts_send_expect_and_wait() {
    let url = start(Fault::None).await;
    let right = Temporary::with(
        "right",
        "# a greeting\nsend hello {connection} {round}\nexpect hello {connection} {round}\nwait 10ms\nsend-binary 00ff\nexpect-any\n",
    );
    let (code, report) =
        measure(&url, &["--script", right.path(), "--count", "20", "--connections", "4"]).await;
    assert_eq!(code, 0, "{report}");
    assert_eq!((&report["sent"], &report["answered"]), (&40.into(), &40.into()), "{report}");
    let wrong = Temporary::with("wrong", "send a\nexpect b\nsend c\nexpect-prefix c\n");
    let (code, report) =
        measure(&url, &["--script", wrong.path(), "--count", "3", "--connections", "1"]).await;
    assert_eq!(
        (code, &report["errors"]["wrong"], &report["answered"]),
        (5, &3.into(), &3.into()),
        "{report}"
    );
    let never = Temporary::with("never", "expect-any\n");
    let (code, report) = measure(&url, &["--script", never.path(), "--count", "1", "--timeout", "5s"]).await;
    assert_eq!((code, &report["errors"]["lost"]), (5, &1.into()), "{report}");
    // A server that stops answering delays the end by one timeout, not by one for each step.
    let silent = start(Fault::NoAnswer).await;
    let steps = Temporary::with("silent", &format!("send a\n{}", "expect a\n".repeat(20)));
    let args = ["--script", steps.path(), "--duration", "500ms", "--timeout", "5s", "--connections", "1"];
    let (code, report) = measure(&silent, &args).await;
    assert_eq!((code, &report["sent"], &report["errors"]["lost"]), (5, &1.into(), &1.into()), "{report}");
    let (code, _, errors) = run(&[&url, "--script", Temporary::with("none", "sing\n").path()]).await;
    assert!(code == 2 && errors.contains("line 1: \"sing\" is not a step"), "{errors}");
}

#[tokio::test(flavor = "multi_thread")]
async fn stages_have_their_rates() {
    let url = start(Fault::None).await;
    let args = ["--stage", "1s@100/s", "--stage", "1s@400", "--stage", "1s@50", "--connections", "7"];
    let rises = |report: &Value| report["series"][1]["sent"].as_u64() > report["series"][0]["sent"].as_u64();
    // The end of a second may be noticed late.
    let (code, report) = measure_until(&url, &args, |_, report| rises(report)).await;
    assert_eq!(code, 0, "{report}");
    assert_eq!((&report["sent"], &report["answered"]), (&550.into(), &550.into()), "{report}");
    assert!(rises(&report), "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_connection_has_its_token() {
    use std::sync::{Arc, Mutex};
    let seen = Arc::new(Mutex::new(Vec::new()));
    let server = wireloom::Server::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}/", server.local_addr().unwrap());
    let noted = seen.clone();
    let handle = move |request: wireloom::Request| {
        let header = request.header("authorization").unwrap_or_default();
        let text = format!("{} {}", request.target(), String::from_utf8_lossy(header));
        noted.lock().unwrap().push(text);
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
    tokio::spawn(async move { server.serve(handle).await });
    let tokens = Temporary::with("tokens", "a\nb\nc\n");
    let count = ["--count", "9", "--connections", "3", "--tokens", tokens.path()];
    let (code, report) = measure(&url, &count).await;
    assert_eq!(code, 0, "{report}");
    let (code, report) = measure(&format!("{url}?t={{token}}"), &count).await;
    assert_eq!(code, 0, "{report}");
    let mut seen = seen.lock().unwrap().clone();
    seen.sort();
    assert_eq!(seen, ["/ Bearer a", "/ Bearer b", "/ Bearer c", "/?t=a ", "/?t=b ", "/?t=c "]);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_have_the_token_of_their_connection() {
    use std::sync::{Arc, Mutex};
    let seen = Arc::new(Mutex::new(Vec::new()));
    let server = wireloom::Server::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", server.local_addr().unwrap());
    let noted = seen.clone();
    let handle = move |request: wireloom::Request| {
        let header = request.header("authorization").unwrap_or_default();
        let text = format!("{} {}", request.target(), String::from_utf8_lossy(header));
        noted.lock().unwrap().push(text);
        async { wireloom::Response::new(200) }
    };
    tokio::spawn(async move { server.serve(handle).await });
    let tokens = Temporary::with("request-tokens", "a\nb\n");
    let count = ["--count", "20", "--connections", "2", "--tokens", tokens.path()];
    for url in [url.clone(), format!("{url}{{token}}?t={{token}}")] {
        let (code, report) = measure(&url, &count).await;
        assert_eq!(code, 0, "{report}");
    }
    let mut seen = seen.lock().unwrap().clone();
    seen.sort();
    seen.dedup();
    assert_eq!(seen, ["/ Bearer a", "/ Bearer b", "/a?t=a ", "/b?t=b "]);
}

// The target and the fields of a request have the same token, in whichever order the connections were opened.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_has_one_token() {
    use std::sync::{Arc, Mutex};
    let server = wireloom::Server::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/{{token}}", server.local_addr().unwrap());
    let others = Arc::new(Mutex::new(Vec::new()));
    let noted = others.clone();
    let handle = move |request: wireloom::Request| {
        let header = String::from_utf8_lossy(request.header("x-token").unwrap_or_default()).into_owned();
        if request.target() != format!("/{header}") {
            noted.lock().unwrap().push(format!("{} {header}", request.target()));
        }
        async { wireloom::Response::new(200) }
    };
    tokio::spawn(async move { server.serve(handle).await });
    let tokens =
        Temporary::with("one-token", &(0..100).map(|number| format!("t{number}\n")).collect::<String>());
    for version in [&[][..], &["--http1.1"]] {
        let args =
            ["--tokens", tokens.path(), "-H", "X-Token: {token}", "--connections", "60", "--count", "600"];
        let (code, report) = measure(&url, &[&args[..], version].concat()).await;
        assert_eq!(code, 0, "{report}");
        assert_eq!(*others.lock().unwrap(), [""; 0], "{version:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_and_subprotocols_reach_the_server() {
    use std::sync::{Arc, Mutex};
    use wireloom::{Request, Server};
    let seen = Arc::new(Mutex::new(Vec::new()));
    let server = Server::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}/", server.local_addr().unwrap());
    let noted = seen.clone();
    let handle = move |request: Request| {
        let header = |name| request.header(name).map(|value| String::from_utf8_lossy(value).into_owned());
        let fields =
            ["x-tenant", "origin", "sec-websocket-protocol"].map(|name| header(name).unwrap_or_default());
        noted.lock().unwrap().push(fields);
        async move {
            request.websocket().map(|upgrade| {
                upgrade.subprotocols(&["b"]).on_open(async |mut socket| {
                    while let Ok(Some(message)) = socket.recv_owned().await {
                        let _ = socket.send(&message).await;
                    }
                })
            })
        }
    };
    tokio::spawn(async move { server.serve(handle).await });
    let origin = url.replace("ws://", "http://").trim_end_matches('/').to_owned();
    let origin_field = format!("Origin: {origin}");
    let args = ["-H", "X-Tenant: acme", "-H", &origin_field, "--subprotocol", "a", "--subprotocol", "b"];
    let (code, report) = measure(&url, &[&args[..], &["--count", "4", "--connections", "2"]].concat()).await;
    assert_eq!(code, 0, "{report}");
    let seen = seen.lock().unwrap().clone();
    assert_eq!(seen, vec![["acme", &origin, "a, b"].map(String::from); 2]);
}
