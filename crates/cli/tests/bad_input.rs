//! What neither verb may stumble over: requests, answers and frames that break the rules. Each is answered with a reason, or
//! ends with an exit code and one, and the server goes on.

#![allow(clippy::unwrap_used)]
#![cfg(unix)]

use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio::time::timeout;

const WIRELOOM: &str = env!("CARGO_BIN_EXE_wireloom");

/// Longer than any of this takes.
const DEADLINE: Duration = Duration::from_secs(30);

async fn serve(args: &[&str]) -> (Child, String) {
    let mut child = Command::new(WIRELOOM)
        .args(["serve", "--listen", "127.0.0.1:0"])
        .args(args)
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = lines.next_line().await.unwrap().unwrap();
    let address = line.split_once("://").unwrap().1.trim_end_matches('/').to_owned();
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    (child, address)
}

/// What the server says to these bytes until it hangs up, or has been heard to answer and this end has.
async fn ask(address: &str, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    // The server may hang up before it has read all.
    let _ = stream.write_all(bytes).await;
    let _ = stream.shutdown().await;
    let mut answer = Vec::new();
    let _ = timeout(DEADLINE, stream.read_to_end(&mut answer)).await.expect("an answer, or an end");
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn malformed_requests_are_answered_with_a_status_and_a_reason() {
    let (_serving, address) = serve(&["--max-head", "2K", "--max-body", "1K"]).await;
    let websocket = "Upgrade: websocket\r\nConnection: Upgrade\r\n";
    let key = "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n";
    let long = "x".repeat(3_000);
    for (request, status) in [
        ("GET / HTTP/1.1\r\n\r\n".to_owned(), "400"),
        ("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n".into(), "400"),
        ("GET / HTTP/1.1\r\nHost : a\r\n\r\n".into(), "400"),
        ("GET  / HTTP/1.1\r\nHost: a\r\n\r\n".into(), "400"),
        ("G\0T / HTTP/1.1\r\nHost: a\r\n\r\n".into(), "400"),
        ("GET / HTTP/3.0\r\nHost: a\r\n\r\n".into(), "505"),
        (format!("GET / HTTP/1.1\r\nHost: a\r\nX: {long}\r\n\r\n"), "431"),
        ("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1025\r\n\r\n".into(), "413"),
        ("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n".into(), "400"),
        ("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n1".into(), "400"),
        (
            "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"
                .into(),
            "400",
        ),
        ("POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nz\r\n".into(), "400"),
        ("POST / HTTP/1.1\r\nHost: a\r\n\r\n".into(), "405"),
        ("DELETE /echo HTTP/1.1\r\nHost: a\r\n\r\n".into(), "405"),
        ("GET /nothing HTTP/1.1\r\nHost: a\r\n\r\n".into(), "404"),
        ("GET /rooms/ HTTP/1.1\r\nHost: a\r\n\r\n".into(), "404"),
        ("GET /echo HTTP/1.1\r\nHost: a\r\n\r\n".into(), "426"),
        ("GET /source?size=-1 HTTP/1.1\r\nHost: a\r\n\r\n".into(), "400"),
        (format!("GET /echo HTTP/1.1\r\nHost: a\r\n{websocket}{key}\r\n"), "400"),
        (
            format!("GET /echo HTTP/1.1\r\nHost: a\r\n{websocket}Sec-WebSocket-Version: 12\r\n{key}\r\n"),
            "426",
        ),
        (format!("GET /echo HTTP/1.1\r\nHost: a\r\n{websocket}Sec-WebSocket-Version: 13\r\n\r\n"), "400"),
        (
            format!(
                "GET /echo HTTP/1.1\r\nHost: a\r\n{websocket}Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: x\r\n\r\n"
            ),
            "400",
        ),
        (
            format!(
                "GET /echo HTTP/1.1\r\nHost: a\r\nOrigin: http://foe\r\n{websocket}Sec-WebSocket-Version: 13\r\n{key}\r\n"
            ),
            "403",
        ),
    ] {
        let answer = ask(&address, request.as_bytes()).await;
        let shown = &request[..request.len().min(200)];
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{shown:?}: {answer}");
        let (_, reason) = answer.split_once("\r\n\r\n").unwrap();
        assert!(!reason.trim().is_empty() && reason.len() < 200, "{shown:?}: {reason}");
    }
    assert!(ask(&address, b"GET /healthz HTTP/1.0\r\nHost: a\r\n\r\n").await.ends_with("ok\n"));
}

/// A server that says this to whoever connects, once the head of a request is there, and then hangs up.
async fn says(answer: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                if stream.read_exact(&mut byte).await.is_err() {
                    break;
                }
                request.push(byte[0]);
            }
            let _ = stream.write_all(&answer).await;
            let _ = stream.shutdown().await;
            let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
        }
    });
    url
}

async fn connect(url: &str, args: &[&str]) -> (i32, String) {
    let mut running = Command::new(WIRELOOM)
        .args(["connect", url])
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    // There might be more to send: the peer is the first to do something.
    let _input = running.stdin.take();
    let output = timeout(DEADLINE, running.wait_with_output()).await.expect("it ends").unwrap();
    (output.status.code().expect("no signal"), String::from_utf8(output.stderr).unwrap())
}

#[tokio::test]
async fn answers_that_are_none_end_with_1_and_a_reason() {
    let upgraded = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n";
    for answer in [
        String::new(),
        "\x1b[2Jnonsense\r\n\r\n".into(),
        "HTTP/1.1 200 OK\r\n\r\n<html>".into(),
        "HTTP/1.1 101 Switching".into(),
        format!("{upgraded}\r\n"),
        format!("{upgraded}Sec-WebSocket-Accept: AAAA\r\n\r\n"),
        format!("HTTP/1.1 200 OK\r\nX: {}", "x".repeat(1 << 20)),
        "SSH-2.0-OpenSSH_9.2\r\n".into(),
    ] {
        let url = says(answer.clone().into_bytes()).await;
        let (code, errors) = connect(&url, &["--timeout", "10", "--count", "1"]).await;
        let shown = &answer[..answer.len().min(100)];
        // A refusal is printed with its body.
        let lines = if answer.ends_with("<html>") { 2 } else { 1 };
        assert!(code == 1 && errors.lines().count() == lines, "{shown:?}: {code} {errors}");
        assert!(!errors.contains('\x1b'), "{errors:?}");
        let args = ["--timeout", "10", "--count", "1", "--http2"];
        let (code, errors) = connect(&url, &args).await;
        assert!(code == 1 && errors.lines().count() == 1, "{shown:?} over HTTP/2: {code} {errors}");
        let (code, errors) = connect(&url.replace("ws:", "http:"), &["--timeout", "10"]).await;
        if answer.ends_with("<html>") {
            // To a request it is one: its content ends with the connection (RFC 9112 §6.3).
            assert_eq!((code, &*errors), (0, ""), "{shown:?} to a request");
        } else {
            assert!(code == 1 && errors.lines().count() == 1, "{shown:?} to a request: {code} {errors}");
        }
    }
}

#[tokio::test]
async fn what_is_no_tls_is_told_so() {
    let (_serving, address) = serve(&["--handshake-timeout", "500ms"]).await;
    let (code, errors) =
        connect(&format!("wss://{address}/echo"), &["--timeout", "10", "--count", "1"]).await;
    assert!(code == 1 && errors.lines().count() == 1, "{code} {errors}");
}

/// A server that accepts every WebSocket, sends these bytes, and ends.
async fn answers_with_frames(frames: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(upgrade(stream, frames));
        }
    });
    url
}

async fn upgrade(mut stream: TcpStream, frames: &[u8]) -> Option<()> {
    use wireloom::wireloom_ws::handshake::server::ServerHandshake;
    use wireloom::wireloom_ws::handshake::{Acceptance, HandshakeLimits};
    let mut handshake = ServerHandshake::new(HandshakeLimits::default());
    while handshake.request().is_none() {
        handshake.handle_input(&[stream.read_u8().await.ok()?]).ok()?;
    }
    let mut response = Vec::new();
    handshake.accept(&Acceptance::default(), &mut response).ok()?;
    stream.write_all(&response).await.ok()?;
    stream.write_all(frames).await.ok()?;
    stream.shutdown().await.ok()?;
    tokio::io::copy(&mut stream, &mut tokio::io::sink()).await.ok()?;
    Some(())
}

#[tokio::test]
async fn frames_that_break_the_rules_end_with_5_and_a_reason() {
    for frames in [
        // Masked; a reserved opcode; a reserved bit; no UTF-8; a long ping; a continuation of nothing; a length with its
        // highest bit; a close of one byte; a part of a frame and the end; nothing and the end.
        &b"\x81\x81\0\0\0\0a"[..],
        b"\x83\0",
        b"\xC1\0",
        b"\x81\x02\xFF\xFF",
        b"\x89\x7E\0\x80",
        b"\x80\0",
        b"\x82\x7F\x80\0\0\0\0\0\0\0",
        b"\x88\x01\x03",
        b"\x81\x05ab",
        b"",
    ] {
        let url = answers_with_frames(frames).await;
        let (code, errors) = connect(&url, &["--timeout", "10"]).await;
        assert!(code == 5 && errors.lines().count() == 1, "{frames:?}: {code} {errors}");
    }
    // Close codes of the peer's own choice.
    for (frames, expected) in [(&b"\x88\x02\x03\xE8"[..], 0), (b"\x88\x02\x0F\xA0", 3), (b"\x88\0", 0)] {
        let url = answers_with_frames(frames).await;
        let (code, errors) = connect(&url, &["--timeout", "10"]).await;
        assert_eq!(code, expected, "{frames:?}: {errors}");
    }
}

#[tokio::test]
async fn a_line_without_end_is_refused() {
    let (_serving, address) = serve(&[]).await;
    let running = Command::new(WIRELOOM)
        .args(["connect", &format!("ws://{address}/sink")])
        .stdin(std::fs::File::open("/dev/zero").unwrap())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let output = timeout(DEADLINE, running.wait_with_output()).await.expect("it ends").unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && errors.contains("longer than"), "{errors}");
}

// Whoever reads the output or the errors may go at any time.
#[tokio::test]
async fn does_not_mind_that_nobody_listens() {
    let (mut serving, address) = serve(&["--log", "text", "--log-level", "trace"]).await;
    for redirection in ["| head -n 1", "2>&1 | head -n 1", ">&- 2>&-"] {
        let script = format!(
            "'{WIRELOOM}' connect -vv 'ws://{address}/source?size=10&count=100000' </dev/null {redirection}; \
             '{WIRELOOM}' connect ws://127.0.0.1:1/ {redirection}"
        );
        let ran = Command::new("bash").args(["-c", &script]).kill_on_drop(true).output();
        let ran = timeout(DEADLINE, ran).await.expect("it ends").unwrap();
        let errors = String::from_utf8_lossy(&ran.stderr);
        assert!(!errors.contains("panicked"), "{redirection}: {errors}");
    }
    assert!(serving.try_wait().unwrap().is_none());
}
