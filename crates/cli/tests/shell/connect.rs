//! `wireloom connect` at the shell: messages, output and exit codes, in scripts and after failures.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::process::{DEADLINE, Server, WIRELOOM, connect, connect_command, end_by, finish, folder, signal};

/// A server that answers each connection with these bytes once a request head has arrived, then with `rest`, byte by byte. The heads
/// that it received can be read from the channel.
pub(crate) async fn raw_server(
    head: &'static str,
    rest: &'static str,
) -> (String, tokio::sync::mpsc::UnboundedReceiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (heads, received) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let heads = heads.clone();
            tokio::spawn(async move {
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    request.push(stream.read_u8().await?);
                }
                let _ = heads.send(String::from_utf8_lossy(&request).into_owned());
                stream.write_all(head.as_bytes()).await?;
                for byte in rest.bytes().cycle() {
                    stream.write_all(&[byte]).await?;
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                // The connection stays open and silent.
                tokio::time::sleep(DEADLINE).await;
                Ok::<_, std::io::Error>(())
            });
        }
    });
    (address, received)
}

#[tokio::test]
async fn a_room_delivers_everything_that_was_published_before_close() {
    let server = Server::start(&[]).await;
    for _ in 0..20 {
        let (code, out, errors) = connect(&[&server.url("/rooms/x"), "--linger", "0"], "a\nb\nc\n").await;
        assert_eq!((code, &*out), (0, "a\nb\nc\n"), "{errors}");
    }
}

/// Cron and `</dev/null` do not wait forever, and receive while messages arrive.
#[tokio::test]
async fn an_empty_input_ends_after_the_last_message_and_says_so() {
    let server = Server::start(&[]).await;
    let (code, out, errors) = connect(&[&server.url("/echo"), "--linger", "200ms"], "").await;
    assert_eq!((code, &*out), (0, ""));
    assert_eq!(
        errors,
        "* no input: closing after 0.2 s without a message (--no-close waits for the server)\n"
    );
}

#[tokio::test]
async fn an_empty_input_does_not_end_receiving() {
    let server = Server::start(&[]).await;
    let child =
        connect_command(&[&server.url("/source?size=1&rate=20&count=10"), "--out", "hex"]).spawn().unwrap();
    let (code, out, errors) = finish(child).await;
    assert_eq!((code, &*out), (0, "00\n".repeat(10).as_bytes()), "{errors}");
    assert!(errors.contains("* closed by the peer with 1000"), "{errors}");
}

#[tokio::test]
async fn the_end_of_the_input_waits_for_answers() {
    let server = Server::start(&[]).await;
    // There is one answer per line: the command does not wait longer.
    let (code, out, errors) = connect(&[&server.url("/echo"), "--linger", "1h"], "one\ntwo\n").await;
    assert_eq!((code, &*out, &*errors), (0, "one\ntwo\n", ""));
    // There is no answer: the command waits, and reports that.
    let (code, _, errors) = connect(&[&server.url("/sink"), "--linger", "300ms"], "one\n").await;
    assert!(code == 0 && errors.contains("1 message sent, 0 messages received"), "{errors}");
    // Without a time limit.
    for (option, answers) in [("--no-close", &b"one\n"[..]), ("--recv-only", b"")] {
        let server = Server::start(&[]).await;
        let mut child =
            connect_command(&[&server.url("/echo"), option]).stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(b"one\n").await.unwrap();
        while !server.get("/metrics").await.contains("wireloom_websockets_open 1\n") {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let mut answered = vec![0; answers.len()];
        let answer = child.stdout.as_mut().unwrap().read_exact(&mut answered);
        timeout(DEADLINE, answer).await.expect("it is answered").unwrap();
        tokio::time::sleep(Duration::from_millis(600)).await;
        assert!(child.try_wait().unwrap().is_none(), "{option}");
        signal(&child, "-TERM");
        let (code, more, _) = finish(child).await;
        assert_eq!((code, &*answered, &*more), (0, answers, &b""[..]), "{option}");
    }
}

#[tokio::test]
async fn evictions_are_counted_logged_and_printed() {
    let mut server = Server::start(&[]).await;
    let address = server.addresses[0].clone();
    // A member that does not read until others have published more than its socket and its queue hold.
    let url = format!("ws://{address}/rooms/x");
    let mut slow = wireloom::connect(&url).await.unwrap();
    let (mut sender, mut receiver) = wireloom::connect(&url).await.unwrap().split();
    for _ in 0..400 {
        sender.send(vec![0; 60_000]).await.unwrap();
        timeout(DEADLINE, receiver.recv()).await.unwrap().unwrap().unwrap();
    }
    while let Ok(Some(_)) = timeout(DEADLINE, slow.recv()).await.unwrap() {}
    assert_eq!(slow.end().unwrap().code(), wireloom::CloseCode::TRY_AGAIN_LATER);
    let metrics = server.get("/metrics").await;
    assert!(metrics.contains("wireloom_hub_evictions_total{reason=\"slow\"} 1\n"), "{metrics}");
    let line = server.logged("client evicted").await;
    assert!(line.contains("reason=\"slow\"") && line.contains("WARN"), "{line}");
}

#[tokio::test]
async fn arguments_are_in_the_formats_of_input_and_output() {
    let server = Server::start(&[]).await;
    let url = server.url("/echo");
    for (format, message, shown) in
        [("hex", "00 ff", "00ff\n"), ("base64", "AP8=", "AP8=\n"), ("raw", "a", "a")]
    {
        let args = [&url, "--in", format, "--out", format, "--send", message, "--expect", message];
        let (code, out, errors) = connect(&args, "").await;
        assert_eq!((code, &*out), (0, shown), "{format}: {errors}");
    }
    // Binary: the server's frame says so.
    let (_, out, _) = connect(&[&url, "--in", "hex", "--send", "00ff", "--json", "--count", "1"], "").await;
    assert!(out.contains(r#""type":"binary","length":2,"base64":"AP8=""#), "{out}");
    let (code, _, errors) = connect(&[&url, "--in", "hex", "--send", "0g"], "").await;
    assert!(code == 2 && errors.contains("--send 0g: it is not hexadecimal (--in hex)"), "{errors}");
    let args = [&url, "--out", "hex", "--send", "a", "--expect", "62"];
    let (code, _, errors) = connect(&args, "").await;
    assert!(code == 4 && errors.contains("expected 62, received 61"), "{errors}");
}

#[tokio::test]
async fn lines_may_end_as_on_windows() {
    let server = Server::start(&[]).await;
    let (code, out, errors) = connect(&[&server.url("/echo"), "--out", "hex"], "a\r\nb\r\n").await;
    assert_eq!((code, &*out), (0, "61\n62\n"), "{errors}");
}

#[tokio::test]
async fn a_url_may_have_no_scheme() {
    let server = Server::start(&[]).await;
    let url = format!("{}/echo", server.addresses[0]);
    let (code, out, errors) = connect(&[&url, "--send", "a", "--expect", "a"], "").await;
    assert_eq!((code, &*out), (0, "a\n"), "{errors}");
}

/// A page is for a browser.
#[tokio::test]
async fn a_page_is_not_printed_as_the_reason_of_a_refusal() {
    let server = Server::start(&[]).await;
    let (code, _, errors) = connect(&[&server.url("/")], "").await;
    assert!(code == 3 && errors.contains("there is no WebSocket at this URL"), "{code} {errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
}

#[tokio::test]
async fn the_close_code_and_reason_are_always_printed() {
    let server = Server::start(&["--max-message", "10"]).await;
    let (code, _, errors) = connect(&[&server.url("/echo"), "-q", "--send", "12345678901"], "").await;
    assert!(code == 3 && errors.contains("* closed by the peer with 1009"), "{code} {errors}");
}

#[tokio::test]
async fn a_refusal_can_be_debugged() {
    let response = "HTTP/1.1 403 Forbidden\r\nContent-Length: 20\r\n\r\nno \x1b[2Jentry, sorry\n";
    let (address, _) = raw_server(response, "").await;
    let url = format!("ws://u:secret@{address}/x?secret");
    let (code, _, errors) = connect(&[&url], "").await;
    assert!(code == 3 && errors.contains("403 Forbidden"), "{errors}");
    let (code, _, errors) = connect(&[&url, "-v"], "").await;
    assert_eq!(code, 3, "{errors}");
    for expected in [&*format!("* connected to {address}\n"), "> GET /x?… HTTP/1.1\n", "> Authorization: …\n"]
    {
        assert!(errors.contains(expected), "{errors}");
    }
    assert!(!errors.contains("secret"), "{errors}");
    let (_, _, errors) = connect(&[&url, "-v", "--show-secrets"], "").await;
    assert!(errors.contains("> GET /x?secret HTTP/1.1\n> Host: "), "{errors}");
    assert!(errors.contains("> Authorization: Basic dTpzZWNyZXQ=\n"), "{errors}");
    let (address, _) =
        raw_server("HTTP/1.1 403 No\r\nX-Why: you\r\nContent-Length: 18\r\n\r\nno \x1b[2Jentry\nsorry", "")
            .await;
    let (code, _, errors) = connect(&[&format!("ws://{address}/"), "-v"], "").await;
    assert!(code == 3 && errors.contains("< HTTP/1.1 403 No\n< X-Why: you\n"), "{errors}");
    // The body, with escape sequences escaped.
    assert!(errors.contains("\n  no \\u{1b}[2Jentry\n  sorry\n"), "{errors:?}");
}

#[tokio::test]
async fn a_url_without_a_websocket_and_a_tls_port_are_named() {
    let server = Server::start(&["--tls"]).await;
    let (code, _, errors) = connect(&[&server.url("/healthz")], "").await;
    assert!(code == 3 && errors.contains("200 OK: there is no WebSocket at this URL"), "{errors}");
    let (code, _, errors) = connect(&[&format!("ws://{}/echo", server.addresses[1])], "").await;
    assert!(code == 3 && errors.contains("this port requires TLS"), "{errors}");
    let (address, _) = raw_server("\x15\x03\x01\0\x02\x02\x0A", "").await;
    for scheme in ["ws", "http"] {
        let (code, _, errors) = connect(&[&format!("{scheme}://{address}/")], "").await;
        assert!(code == 7 && errors.contains("speaks TLS on this port: use wss:// or https://"), "{errors}");
    }
}

#[tokio::test]
async fn a_certificate_in_cacert_is_trusted_as_the_servers_own() {
    let folder = folder("cacert");
    let files =
        [folder.join("cert.pem"), folder.join("key.pem")].map(|path| path.to_str().unwrap().to_owned());
    // As `openssl req -x509` makes it.
    let mut params = rcgen::CertificateParams::new(vec!["localhost".into()]).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let key = rcgen::KeyPair::generate().unwrap();
    std::fs::write(&files[0], params.self_signed(&key).unwrap().pem()).unwrap();
    std::fs::write(&files[1], key.serialize_pem()).unwrap();
    let tls = ["--tls", "--cert", &files[0], "--key", &files[1]];
    let server = Server::start(&tls).await;
    let port = server.addresses[1].rsplit_once(':').unwrap().1;
    let resolve = format!("localhost:{port}:127.0.0.1");
    let args = ["--cacert", &files[0], "--send", "a", "--expect", "a", "--timeout", "30"];
    let url = format!("wss://localhost:{port}/echo");
    let (code, _, errors) = connect(&[&[&*url, "--resolve", &resolve][..], &args].concat(), "").await;
    assert_eq!(code, 0, "{errors}");
    // By address, with the name that the certificate is for.
    let url = format!("wss://127.0.0.1:{port}/echo");
    assert_eq!(connect(&[&[&*url][..], &args].concat(), "").await.0, 7);
    let (code, _, errors) = connect(&[&[&*url, "--sni", "localhost"][..], &args].concat(), "").await;
    assert_eq!(code, 0, "{errors}");
    assert_eq!(connect(&[&*url, "-k", "--send", "a", "--expect", "a"], "").await.0, 0);
}

#[tokio::test]
async fn roots_that_cannot_be_read_are_named() {
    let server = Server::start(&["--tls"]).await;
    let url = format!("wss://{}/echo", server.addresses[1]);
    let mut command = connect_command(&[&url]);
    command.env("SSL_CERT_FILE", "/nowhere/roots.pem").env_remove("SSL_CERT_DIR");
    let (code, _, errors) = finish(command.spawn().unwrap()).await;
    assert!(code == 7 && errors.contains("/nowhere/roots.pem"), "{code} {errors}");
}

#[tokio::test]
async fn binary_messages_survive_in_every_format() {
    let (server, folder) = (Server::start(&[]).await, folder("formats"));
    let echo = server.url("/echo");
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let bytes: Vec<u8> = (0..3000u32).map(|index| (index * 7 % 256) as u8).collect();
    std::fs::write(path("in"), &bytes).unwrap();
    let (code, _, errors) =
        connect(&[&echo, "--send-file", &path("in"), "--count", "1", "--out", "raw", "-o", &path("out")], "")
            .await;
    assert_eq!(code, 0, "{errors}");
    assert_eq!(std::fs::read(path("out")).unwrap(), bytes);
    for format in ["raw", "base64", "hex", "prefixed"] {
        let at = format!("@{}", path("in"));
        let encoded = connect_command(&[&echo, "--send", &at, "--binary", "--count", "1", "--out", format])
            .spawn()
            .unwrap();
        let (code, encoded, errors) = finish(encoded).await;
        assert_eq!(code, 0, "{format}: {errors}");
        let args = [&*echo, "--in", format, "--out", "raw", "--count", "1", "--timeout", "30"];
        let mut child = connect_command(&args).stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(&encoded).await.unwrap();
        let (code, decoded, errors) = finish(child).await;
        assert_eq!((code, decoded == bytes), (0, true), "{format}: {errors}");
    }
    std::fs::write(path("text"), "from a file").unwrap();
    let at = format!("@{}", path("text"));
    let args =
        [&*echo, "--send", &at, "--send", "@@literal", "--send", "-1", "--send", "--foo", "--count", "4"];
    let (code, out, errors) = connect(&args, "").await;
    assert_eq!((code, &*out), (0, "from a file\n@literal\n-1\n--foo\n"), "{errors}");
    let (code, _, errors) = connect(&[&echo, "--send", &format!("@{}", path("in"))], "").await;
    assert!(code == 2 && errors.contains("not UTF-8; --binary or --send-file"), "{errors}");
}

#[tokio::test]
async fn messages_name_the_option_and_the_file() {
    let server = Server::start(&[]).await;
    let echo = server.url("/echo");
    for (args, expected) in [
        (&["--cacert", "/nowhere/ca.pem"][..], "--cacert /nowhere/ca.pem: No such file"),
        (&["--cert", "/nowhere/c.pem", "--key", "/nowhere/k.pem"], "--cert /nowhere/c.pem: No such file"),
        (&["--send", "@/nowhere/x"], "--send @/nowhere/x: No such file"),
        (&["--send-file", "/nowhere/x"], "--send-file /nowhere/x: No such file"),
        (&["--data", "x"], "--data does not apply to a WebSocket URL"),
        (&["--proxy", "gopher://x"], "--proxy: "),
    ] {
        let (code, _, errors) = connect(&[&[&*echo][..], args].concat(), "").await;
        assert!(code == 2 && errors.contains(expected), "{args:?}: {code} {errors}");
    }
    let (code, _, errors) = connect(&[&echo, "--proxy", "http://user:secret@127.0.0.1:1"], "").await;
    assert!(code == 1 && errors.contains("through the proxy http://127.0.0.1:1: "), "{errors}");
    assert!(!errors.contains("secret"), "{errors}");
    let (_, _, errors) = connect(&[&echo, "-v", "--send", "a", "--count", "1"], "").await;
    assert!(errors.contains("* 1 message, 1 byte received in "), "{errors}");
}

#[tokio::test]
async fn sigterm_and_sigint_close_with_1001() {
    let mut server = Server::start(&["--log-level", "debug"]).await;
    for name in ["-TERM", "-INT"] {
        let mut child = connect_command(&[&server.url("/echo"), "-v"]).stdin(Stdio::piped()).spawn().unwrap();
        let _open = child.stdin.take();
        let mut errors = BufReader::new(child.stderr.take().unwrap()).lines();
        while !errors.next_line().await.unwrap().unwrap().contains("* open") {}
        signal(&child, name);
        let line = server.logged("websocket closed").await;
        assert!(line.contains("code=1001"), "{name}: {line}");
        let status = timeout(DEADLINE, child.wait()).await.unwrap().unwrap();
        assert_eq!(status.code(), Some(0), "{name}");
    }
}

#[tokio::test]
async fn a_message_over_the_limit_has_one_exit_code() {
    let server = Server::start(&[]).await;
    let (url, long) = (server.url("/echo"), "x".repeat(1001));
    for script in [&[][..], &["--expect", &long], &["--count", "1"]] {
        let args = [&[&*url, "--max-message", "1000", "--send", &long], script].concat();
        let (code, _, errors) = connect(&args, "").await;
        assert_eq!(code, 5, "{script:?}: {errors}");
    }
}

/// Runs the command with an input that does not end, and ends it when all of this has been printed.
async fn connect_until(args: &[&str], input: &str, expected: &[&str]) -> (String, String) {
    let mut child = connect_command(args).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).await.unwrap();
    let mut out_lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut error_lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let (mut out, mut errors, mut is_signalled) = (String::new(), String::new(), false);
    let printed = async {
        loop {
            tokio::select! {
                Ok(Some(line)) = out_lines.next_line() => out += &(line + "\n"),
                Ok(Some(line)) = error_lines.next_line() => errors += &(line + "\n"),
                else => break,
            }
            if !is_signalled && expected.iter().all(|text| out.contains(text) || errors.contains(text)) {
                is_signalled = true;
                signal(&child, "-TERM");
            }
        }
    };
    let is_complete = timeout(DEADLINE, printed).await.is_ok();
    assert!(is_complete && is_signalled, "{out}{errors}");
    assert_eq!(child.wait().await.unwrap().code(), Some(0), "{errors}");
    (out, errors)
}

#[tokio::test]
async fn json_has_an_object_per_event() {
    let server = Server::start(&[]).await;
    let args = [&*server.url("/echo"), "--json", "--send", "{\"a\":\"\u{9b}\"}", "--count", "1"];
    let (code, out, errors) = connect(&args, "").await;
    assert_eq!(code, 0, "{errors}");
    assert!(out.contains("\\u009b") && !out.contains('\u{9b}'), "{out}");
    let events: Vec<serde_json::Value> =
        out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let shape =
        |event: &serde_json::Value| format!("{} {}", event["direction"], event["type"]).replace('"', "");
    assert_eq!(events.iter().map(shape).collect::<Vec<_>>(), ["in open", "out text", "in text", "out close"]);
    assert_eq!(
        (&events[0]["status"], &events[2]["length"], &events[3]["code"]),
        (&101.into(), &10.into(), &1000.into())
    );
    assert_eq!(events[2]["payload"], "{\"a\":\"\u{9b}\"}");
    assert!(events.iter().all(|event| event["time"].as_str().unwrap().ends_with('Z')), "{out}");
    let args = [&*server.url("/echo"), "--json", "--in", "hex", "--ping", "50ms"];
    let expected = [r#""type":"binary","length":2,"base64":"AP8=""#, r#""type":"pong""#, "round_trip_ms"];
    connect_until(&args, "00ff\n", &expected).await;
}

#[tokio::test]
async fn sent_messages_are_in_the_output_before_anything_else_happens() {
    let server = Server::start(&[]).await;
    let url = server.url("/sink");
    // Which of the two directions has the first turn is chance.
    for _ in 0..12 {
        let mut child = connect_command(&[&url, "--json"]).stdin(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(b"hi\n").await.unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let sent =
            async { while !lines.next_line().await.unwrap().unwrap().contains(r#""payload":"hi""#) {} };
        timeout(DEADLINE, sent).await.expect("it is shown");
        child.kill().await.unwrap();
    }
}

#[tokio::test]
async fn shows_messages_pings_and_times() {
    let server = Server::start(&[]).await;
    let args = [&*server.url("/echo"), "-vv", "-t", "--ping", "50ms"];
    let expected = [
        "Z hello\n",
        "Z > text, 5 bytes: hello\n",
        "Z < text, 5 bytes: hello\n",
        "Z > ping, 8 bytes\n",
        "Z < pong, 8 bytes, round trip ",
    ];
    let (out, errors) = connect_until(&args, "hello\n", &expected).await;
    let time = |line: &str| line.as_bytes().get(23) == Some(&b'Z') && line.as_bytes()[10] == b'T';
    assert!(out.ends_with("Z hello\n") && out.lines().chain(errors.lines()).all(time), "{out}{errors}");
}

#[tokio::test]
async fn nothing_from_the_peer_controls_the_terminal() {
    let server = Server::start(&[]).await;
    // Messages go to the pipe unchanged. Notes are escaped wherever they go.
    let (code, out, errors) =
        connect(&[&server.url("/echo"), "-vv", "--send", "\x1b[2J", "--count", "1"], "").await;
    assert_eq!((code, &*out), (0, "\x1b[2J\n"), "{errors}");
    assert!(errors.contains("< text, 4 bytes: \\u{1b}[2J\n") && !errors.contains('\x1b'), "{errors:?}");
    let (address, _) = raw_server("HTTP/1.1 500 \x1b[2J\r\nX\x1b: y\r\n\r\n", "").await;
    let (_, _, errors) = connect(&[&format!("ws://{address}/"), "-v"], "").await;
    assert!(!errors.contains('\x1b'), "{errors:?}");
}

#[tokio::test]
async fn listens_on_a_port_and_on_all_interfaces() {
    let server = Server::start(&["--port", "0"]).await;
    assert!(server.addresses[0].starts_with("127.0.0.1:"), "{:?}", server.addresses);
    let server = Server::start(&["--listen", ":0"]).await;
    let port = server.addresses[0].rsplit_once(':').unwrap().1.to_owned();
    assert_eq!(connect(&[&format!("http://127.0.0.1:{port}/healthz")], "").await.1, "ok\n");
}

#[tokio::test]
async fn metrics_have_an_address_of_their_own() {
    let server = Server::start(&["--admin", "127.0.0.1:0"]).await;
    assert_eq!(connect(&[&format!("http://{}/metrics", server.addresses[0])], "").await.0, 3);
    for args in [&[][..], &["--http2"]] {
        let url = server.url("/echo");
        let script = [&*url, "--send", "12345", "--send", "1", "--count", "2"];
        assert_eq!(connect(&[&script, args].concat(), "").await.0, 0);
    }
    let url = format!("http://{}/metrics", server.addresses[1]);
    let (_, metrics, _) = connect(&[&url], "").await;
    for expected in [
        "wireloom_messages_total{direction=\"in\",protocol=\"http1\"} 2\n",
        "wireloom_messages_total{direction=\"out\",protocol=\"http2\"} 2\n",
        "wireloom_message_bytes_total{direction=\"out\",protocol=\"http1\"} 6\n",
        "wireloom_responses_total{code=\"101\"} 1\n",
        "wireloom_responses_total{code=\"404\"} 1\n",
        "wireloom_handshake_duration_seconds_count 2\n",
        "wireloom_message_duration_seconds_bucket{le=\"+Inf\"} ",
        "wireloom_evictions_total{reason=\"slow\"} 0\n",
        "process_cpu_seconds_total ",
        "process_open_fds ",
    ] {
        assert!(metrics.contains(expected), "{expected}: {metrics}");
    }
}

#[test]
fn prints_versions_and_help() {
    let run = |args: &[&str]| {
        let output = std::process::Command::new(WIRELOOM).args(args).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let (code, version) = run(&["--version"]);
    let package = env!("CARGO_PKG_VERSION");
    assert!(code == Some(0) && version.starts_with(&format!("wireloom {package}")), "{version}");
    assert!(!Path::new("../../Cargo.lock").exists() || version.contains("rustls 0."), "{version}");
    assert_eq!(version.contains("rustls"), version.contains("zlib-rs"), "{version}");
    for page in [run(&["help", "connect"]), run(&["man", "connect"])] {
        assert!(page.0 == Some(0) && page.1.contains("send"), "{page:?}");
    }
    let (_, page) = run(&["man", "connect"]);
    let (_, status) = page.split_once("EXIT STATUS").unwrap();
    for code in 0..=6 {
        assert!(status.contains(&format!("\n{code}  ")), "{code}: {status}");
    }
}

/// Accepts the next WebSocket, and nothing that follows.
pub(crate) async fn accept_silently(listener: &TcpListener) -> TcpStream {
    use wireloom::wireloom_ws::handshake::{Acceptance, HandshakeLimits, ServerHandshake};
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut handshake = ServerHandshake::new(HandshakeLimits::default());
    while handshake.request().is_none() {
        handshake.handle_input(&[stream.read_u8().await.unwrap()]).unwrap();
    }
    let mut response = Vec::new();
    handshake.accept(&Acceptance::default(), &mut response).unwrap();
    stream.write_all(&response).await.unwrap();
    stream
}

/// The URL of a server that accepts WebSockets and reads nothing that follows.
async fn silent_server() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let mut held = Vec::new();
        loop {
            held.push(accept_silently(&listener).await);
        }
    });
    url
}

// Between the peer's Close and the end of TCP a message cannot be sent, and is not lost.
#[tokio::test]
async fn no_input_is_lost_while_the_peer_closes() {
    const LINES: u32 = 20_000;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}/", listener.local_addr().unwrap());
    let mut child = connect_command(&[&url, "--reconnect"]).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let lines = (1..=LINES).map(|line| format!("{line}\n")).collect::<String>();
    let writer = tokio::spawn(async move {
        stdin.write_all(lines.as_bytes()).await.unwrap();
        stdin
    });
    let mut first = accept_silently(&listener).await;
    // A message has arrived; then Close 1012.
    first.read_u8().await.unwrap();
    first.write_all(&[0x88, 2, 0x03, 0xF4]).await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    drop(first);
    let mut notes = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut note = String::new();
    while !note.contains("may not have arrived") {
        note = notes.next_line().await.unwrap().unwrap();
    }
    let unconfirmed: u32 =
        note.split_once(" of ").unwrap().1.split(' ').next().unwrap().replace(',', "").parse().unwrap();
    let mut second = wireloom::accept(listener.accept().await.unwrap().0).await.unwrap();
    for line in unconfirmed + 1..=LINES {
        let message = timeout(DEADLINE, second.recv()).await.unwrap().unwrap().unwrap();
        assert_eq!(message.as_text(), Some(line.to_string().as_str()));
    }
    writer.await.unwrap();
    child.kill().await.unwrap();
}

// The peer closes its socket with our messages unread: writing fails while its last message and its Close frame wait to be read.
#[tokio::test]
async fn what_has_arrived_is_printed_when_writing_fails() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}/", listener.local_addr().unwrap());
    // Which of the two ends sees it first is a race.
    for _ in 0..6 {
        let mut child = connect_command(&[&url]).stdin(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let writer =
            tokio::spawn(async move { while stdin.write_all(&b"text\n".repeat(10_000)).await.is_ok() {} });
        let mut stream = accept_silently(&listener).await;
        stream.read_u8().await.unwrap();
        stream.write_all(b"\x81\x08too much\x88\x07\x03\xF0quota").await.unwrap();
        drop(stream);
        let output = timeout(DEADLINE, child.wait_with_output()).await.unwrap().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(
            output.stdout == b"too much\n" && errors.contains("1008: quota"),
            "{:?} {errors}",
            output.stdout
        );
        assert_eq!(output.status.code(), Some(3));
        writer.abort();
    }
}

// It may end TCP instead, or do nothing until --timeout.
#[tokio::test]
async fn a_peer_that_does_not_answer_close_changes_no_outcome() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}/", listener.local_addr().unwrap());
    let none = Duration::ZERO;
    for (args, signalled, held, expected) in [
        (&["--count", "1"][..], false, none, 0),
        (&["--expect", "hello"], false, none, 0),
        (&["--count", "1", "--timeout", "5s"], false, Duration::from_millis(5_500), 0),
        (&["--count", "2", "--timeout", "5s"], false, none, 4),
        (&["--count", "2"], true, none, 4),
        (&["--recv-only"], true, none, 0),
    ] {
        let child = &mut connect_command(&[&[&*url], args].concat()).spawn().unwrap();
        let mut stream = accept_silently(&listener).await;
        stream.write_all(b"\x81\x05hello").await.unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).await.unwrap();
        if signalled {
            signal(child, "-TERM");
        }
        // Masked, with a code.
        let mut close = [0; 8];
        timeout(DEADLINE, stream.read_exact(&mut close)).await.unwrap().unwrap();
        assert_eq!(close[0], 0x88, "{args:?}");
        tokio::time::sleep(held).await;
        drop(stream);
        let mut errors = String::new();
        child.stderr.as_mut().unwrap().read_to_string(&mut errors).await.unwrap();
        let status = timeout(DEADLINE, child.wait()).await.unwrap().unwrap();
        assert_eq!(status.code(), Some(expected), "{args:?}: {errors}");
    }
}

#[tokio::test]
async fn a_signal_ends_it_while_a_message_is_being_sent() {
    tokio::join!(is_ended_while_sending(&["--reconnect"]), is_ended_while_sending(&[]));
}

async fn is_ended_while_sending(args: &[&str]) {
    let url = silent_server().await;
    let mut child = connect_command(&[&[&*url][..], args].concat()).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let written = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counter = written.clone();
    let writer = tokio::spawn(async move {
        let line = [&vec![b'x'; 1_000_000][..], b"\n"].concat();
        while stdin.write_all(&line).await.is_ok() {
            counter.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
    });
    // Until the send queue is full, and so is everything before it.
    let lines = || written.load(std::sync::atomic::Ordering::Relaxed);
    loop {
        let before = lines();
        tokio::time::sleep(Duration::from_millis(500)).await;
        if before > 64 && lines() == before {
            break;
        }
    }
    signal(&child, "-INT");
    let status = timeout(DEADLINE, child.wait()).await.expect("it ends by itself").unwrap();
    assert_eq!(status.code(), Some(0), "{args:?}");
    writer.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_messages_delays_neither_signals_nor_close() {
    /// In writes: more than the buffers of both ends hold.
    const BEGUN: usize = 96;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}/", listener.local_addr().unwrap());
    let signalled: [&[&str]; 3] =
        [&["--recv-only"], &["--recv-only", "--reconnect"], &["--exec", "cat >/dev/null"]];
    for args in [&["--count", "1"][..]].into_iter().chain(signalled) {
        let mut child = connect_command(&[&[&*url], args].concat()).stdout(Stdio::null()).spawn().unwrap();
        let (mut reader, mut writer) = accept_silently(&listener).await.into_split();
        let (begun, has_begun) = tokio::sync::oneshot::channel();
        let flood = tokio::spawn(async move {
            let messages = [0x81, 0].repeat(32_768);
            for _ in 0..BEGUN {
                writer.write_all(&messages).await.unwrap();
            }
            begun.send(()).unwrap();
            while writer.write_all(&messages).await.is_ok() {}
        });
        has_begun.await.unwrap();
        if signalled.contains(&args) {
            signal(&child, "-TERM");
        }
        let frame =
            timeout(DEADLINE, reader.read_u8()).await.unwrap_or_else(|_| panic!("{args:?}: no Close"));
        assert_eq!(frame.unwrap(), 0x88, "{args:?}");
        flood.abort();
        drop(reader);
        timeout(DEADLINE, child.wait()).await.unwrap().unwrap();
    }
}

// As with `connect … | less`: nothing else can be done while the output is written.
#[tokio::test]
async fn the_second_signal_ends_it_although_nobody_reads_the_output() {
    let server = Server::start(&[]).await;
    let source = "/source?size=1000";
    for args in [&[&*server.url(source), "--recv-only"][..], &[&server.url(source).replace("ws:", "http:")]] {
        let mut child = connect_command(args).spawn().unwrap();
        // Messages arrive, and more than the pipe holds follows.
        child.stdout.as_mut().unwrap().read_u8().await.unwrap();
        assert_eq!(end_by(&mut child, "-TERM").await, Some(143), "{args:?}");
    }
}

#[tokio::test]
async fn a_closed_pipe_and_a_full_disk_end_it_with_the_next_message() {
    let server = Server::start(&[]).await;
    let url = server.url("/source?size=10&rate=20");
    for (option, expected) in [
        (&["--recv-only"][..], 0),
        (&["--recv-only", "--reconnect"], 0),
        // The expectation was not met, whichever side is the cause.
        (&["--count", "1000"], 4),
    ] {
        let args = [&[&*url], option].concat();
        let mut child = connect_command(&args).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.next_line().await.unwrap().unwrap().len(), 10);
        drop(lines);
        let status = timeout(DEADLINE, child.wait()).await.expect("it ends").unwrap();
        assert_eq!(status.code(), Some(expected), "{option:?}");
        if cfg!(target_os = "linux") {
            let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
            let (code, _, errors) = finish(connect_command(&args).stdout(full).spawn().unwrap()).await;
            assert!(code == 5 && errors.contains("cannot be written"), "{option:?}: {code} {errors}");
        }
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_recording_that_cannot_be_written_is_an_error() {
    let server = Server::start(&[]).await;
    let args = ["--record", "/dev/full", "--send", "a"];
    for (more, expected) in [(&["--count", "1"][..], 5), (&["--expect", "b"], 4)] {
        let (code, _, errors) = connect(&[&[&*server.url("/echo")], &args[..], more].concat(), "").await;
        assert!(code == expected && errors.contains("recording has stopped"), "{more:?}: {code} {errors}");
    }
}

#[tokio::test]
async fn files_keep_what_they_hold_until_there_is_more() {
    let server = Server::start(&[]).await;
    let folder = folder("kept");
    let (kept, record) = (folder.join("kept"), folder.join("record"));
    let files = ["-o", kept.to_str().unwrap(), "--record", record.to_str().unwrap()];
    let old = "much longer than what is written later, or else some of it would remain\n".repeat(100);
    for (url, more) in [("http://127.0.0.1:1/", &[][..]), ("ws://127.0.0.1:1/", &["--proxy", "gopher://x"])] {
        std::fs::write(&kept, &old).unwrap();
        std::fs::write(&record, &old).unwrap();
        let (code, _, errors) = connect(&[&[url], &files[..], more].concat(), "").await;
        assert_ne!(code, 0, "{errors}");
        for file in [&kept, &record] {
            assert_eq!(std::fs::read_to_string(file).unwrap(), old, "{url}");
        }
    }
    let http = server.url("/echo").replace("ws:", "http:");
    for (url, more, expected) in [
        (&*http, &["--data", "new"][..], "new"),
        (&http, &["--data", ""], ""),
        (&server.url("/echo"), &["--send", "new", "--count", "1"], "new\n"),
        (&server.url("/echo"), &["--linger", "0"], ""),
    ] {
        std::fs::write(&kept, &old).unwrap();
        std::fs::write(&record, &old).unwrap();
        let (code, _, errors) = connect(&[&[url], &files[..], more].concat(), "").await;
        assert_eq!(code, 0, "{errors}");
        assert_eq!(std::fs::read_to_string(&kept).unwrap(), expected, "{url} {more:?}");
        let recorded = std::fs::read_to_string(&record).unwrap();
        assert!(
            recorded.starts_with("{\"wireloom_recording\":1,") && !recorded.contains("later"),
            "{recorded}"
        );
    }
}

#[tokio::test]
async fn input_that_cannot_be_sent_has_one_exit_code() {
    let server = Server::start(&[]).await;
    let url = server.url("/echo");
    for more in [&[][..], &["--reconnect"]] {
        for (args, input) in [(&[][..], &b"\xff\n"[..]), (&["--in", "hex"], b"0g\n")] {
            let mut child =
                connect_command(&[&[&*url], args, more].concat()).stdin(Stdio::piped()).spawn().unwrap();
            child.stdin.take().unwrap().write_all(input).await.unwrap();
            let (code, _, errors) = finish(child).await;
            assert_eq!(code, 2, "{args:?} {more:?}: {errors}");
        }
    }
}

// A script without --timeout that expects too much waits forever.
#[tokio::test]
async fn a_script_says_what_it_waits_for() {
    let server = Server::start(&[]).await;
    for args in [&["--send", "a"][..], &[]] {
        let url = server.url("/sink");
        let mut child = connect_command(&[&[&*url, "--count", "1"], args].concat()).spawn().unwrap();
        let mut notes = BufReader::new(child.stderr.take().unwrap()).lines();
        let note = timeout(DEADLINE, notes.next_line()).await.expect("a note").unwrap().unwrap();
        assert!(note.contains("--count") && note.contains("--timeout"), "{note}");
        signal(&child, "-TERM");
        assert_eq!(timeout(DEADLINE, child.wait()).await.unwrap().unwrap().code(), Some(4));
    }
    // One that says how long it waits says it when that is over.
    let url = server.url("/sink");
    let (code, _, errors) = connect(&[&url, "--count", "1", "--timeout", "4s"], "a\n").await;
    assert_eq!((code, errors.lines().count()), (4, 1), "{errors}");
}
