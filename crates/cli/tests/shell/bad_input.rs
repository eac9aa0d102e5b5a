//! Requests, responses and frames that break the rules. `serve` answers each with a status and a reason and keeps running;
//! `connect` ends with an exit code and one line.

use std::process::Stdio;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tokio::time::timeout;

use crate::process::{DEADLINE, Server, WIRELOOM, connect_command, finish, folder, signal};

/// Sends bytes and the end of the stream; returns everything that the server sends until it closes.
async fn exchange(address: &str, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    // The server may close before it has read all bytes.
    let _ = stream.write_all(bytes).await;
    let _ = stream.shutdown().await;
    let mut answer = Vec::new();
    let _ = timeout(DEADLINE, stream.read_to_end(&mut answer)).await.expect("the server answers or closes");
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn malformed_requests_are_answered_with_a_status_and_a_reason() {
    let server = Server::start(&["--max-head", "2K", "--max-body", "1K"]).await;
    let address = &server.addresses[0];
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
        ("GET /source?size=0 HTTP/1.1\r\nHost: a\r\n\r\n".into(), "400"),
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
        let answer = exchange(address, request.as_bytes()).await;
        let shown = &request[..request.len().min(200)];
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{shown:?}: {answer}");
        let (_, reason) = answer.split_once("\r\n\r\n").unwrap();
        assert!(!reason.trim().is_empty() && reason.len() < 200, "{shown:?}: {reason}");
    }
    assert!(exchange(address, b"GET /healthz HTTP/1.0\r\nHost: a\r\n\r\n").await.ends_with("ok\n"));
}

/// The URL of a server that answers every request head with these bytes and closes.
async fn raw_server(answer: Vec<u8>) -> String {
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

/// Runs `connect`; returns the exit code and errors. The input stays open, so that the peer closes first.
async fn connect(url: &str, args: &[&str]) -> (i32, String) {
    let mut child = connect_command(&[&[url], args].concat()).stdin(Stdio::piped()).spawn().unwrap();
    let _input = child.stdin.take();
    let (code, _, errors) = finish(child).await;
    (code, errors)
}

#[tokio::test]
async fn invalid_responses_end_with_a_code_and_a_reason() {
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
        let url = raw_server(answer.clone().into_bytes()).await;
        let (code, errors) = connect(&url, &["--timeout", "10", "--count", "1"]).await;
        let shown = &answer[..answer.len().min(100)];
        // A refusal is printed with its body.
        let lines = if answer.ends_with("<html>") { 2 } else { 1 };
        assert!([3, 5].contains(&code) && errors.lines().count() == lines, "{shown:?}: {code} {errors}");
        assert!(!errors.contains('\x1b'), "{errors:?}");
        let args = ["--timeout", "10", "--count", "1", "--http2"];
        let (code, errors) = connect(&url, &args).await;
        assert!(code == 3 && errors.lines().count() == 1, "{shown:?} over HTTP/2: {code} {errors}");
        let (code, errors) = connect(&url.replace("ws:", "http:"), &["--timeout", "10"]).await;
        if answer.ends_with("<html>") {
            // As a response to a request it is valid: the body ends with the connection (RFC 9112 §6.3).
            assert_eq!((code, &*errors), (0, ""), "{shown:?} to a request");
        } else {
            assert!(code == 5 && errors.lines().count() == 1, "{shown:?} to a request: {code} {errors}");
        }
    }
}

#[tokio::test]
async fn a_signal_before_the_answer_is_reported() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap();
    for (scheme, options, name, code, reason) in [
        ("ws", &[][..], "-TERM", 143, "the connection was open"),
        ("ws", &["--reconnect"], "-INT", 130, "the connection was open"),
        ("http", &[], "-TERM", 143, "the end of the response"),
    ] {
        let url = format!("{scheme}://{address}/");
        let child = connect_command(&[&[&*url], options].concat()).spawn().unwrap();
        let held = timeout(DEADLINE, silent.accept()).await.unwrap().unwrap();
        signal(&child, name);
        let (found, _, errors) = finish(child).await;
        assert_eq!((found, &*errors), (code, &*format!("wireloom: interrupted before {reason}\n")));
        drop(held);
    }
}

#[tokio::test]
async fn a_plain_port_is_reported_as_not_tls() {
    let server = Server::start(&[]).await;
    let url = format!("wss://{}/echo", server.addresses[0]);
    let (code, errors) = connect(&url, &["--timeout", "10", "--count", "1"]).await;
    assert!(code == 7 && errors.lines().count() == 1, "{code} {errors}");
}

/// The URL of a server that accepts every WebSocket, sends these bytes and closes.
async fn frame_server(frames: &'static [u8]) -> String {
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
        // Masked; a reserved opcode; a reserved bit; invalid UTF-8; a ping over 125 bytes; a continuation without a message; a
        // length with the highest bit set; a Close of one byte; an incomplete frame, then the end; no frame, then the end.
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
        let url = frame_server(frames).await;
        let (code, errors) = connect(&url, &["--timeout", "10"]).await;
        assert!(code == 5 && errors.lines().count() == 1, "{frames:?}: {code} {errors}");
    }
    // Close codes that the peer chose.
    for (frames, expected) in [(&b"\x88\x02\x03\xE8"[..], 0), (b"\x88\x02\x0F\xA0", 3), (b"\x88\0", 0)] {
        let url = frame_server(frames).await;
        let (code, errors) = connect(&url, &["--timeout", "10"]).await;
        assert_eq!(code, expected, "{frames:?}: {errors}");
    }
}

#[tokio::test]
async fn an_endless_line_is_refused() {
    let server = Server::start(&[]).await;
    let zeros = std::fs::File::open("/dev/zero").unwrap();
    let child = connect_command(&[&server.url("/sink")]).stdin(zeros).spawn().unwrap();
    let (code, _, errors) = finish(child).await;
    assert!(code == 2 && errors.contains("longer than"), "{code} {errors}");
}

// The reader of a pipe may close it at any time.
#[tokio::test]
async fn closed_output_pipes_do_not_cause_panics() {
    let mut server = Server::start(&["--log", "text", "--log-level", "trace"]).await;
    let source = server.url("/source?size=10&count=100000");
    for redirection in ["| head -n 1", "2>&1 | head -n 1", ">&- 2>&-"] {
        let script = format!(
            "'{WIRELOOM}' connect -vv '{source}' </dev/null {redirection}; \
             '{WIRELOOM}' connect ws://127.0.0.1:1/ {redirection}"
        );
        let ran = Command::new("bash").args(["-c", &script]).kill_on_drop(true).output();
        let ran = timeout(DEADLINE, ran).await.expect("it ends").unwrap();
        let errors = String::from_utf8_lossy(&ran.stderr);
        assert!(!errors.contains("panicked"), "{redirection}: {errors}");
    }
    assert!(server.is_running());
    server.signal("-TERM");
    let log = server.log_to_end().await;
    assert!(log.iter().any(|line| line.contains("frame written")), "the log has every frame");
    assert!(!log.iter().any(|line| line.contains("panicked")), "the server has panicked");
}

#[tokio::test]
async fn a_file_in_place_of_a_folder_is_named() {
    let folder = folder("no-folder");
    let file = folder.join("file");
    std::fs::write(&file, "").unwrap();
    for args in [&["serve", "--listen", "127.0.0.1:0", "--data"][..], &["man", "--dir"]] {
        let output = Command::new(WIRELOOM).args(args).arg(&file).output().await.unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && errors.contains("file: a file has this name"), "{errors}");
    }
}
