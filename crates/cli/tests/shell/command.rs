//! `wireloom serve` and `wireloom connect` as processes, as a user runs them.

use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio::time::timeout;

use crate::process::{DEADLINE, Server, WIRELOOM, connect, connect_command, finish, folder, signal};

#[tokio::test]
async fn lines_go_out_and_messages_come_in() {
    let serving = Server::start(&[]).await;
    let (code, out, _) = connect(&[&serving.url("/echo")], "one\ntwo\n\nhäßlich\n").await;
    assert_eq!((code, &*out), (0, "one\ntwo\n\nhäßlich\n"));
    let long = "x".repeat(300_000) + "\n";
    let (code, out, _) = connect(&[&serving.url("/echo"), "--compress", "--binary"], &long).await;
    assert_eq!((code, out), (0, long));
}

// The input exceeds all buffers between the two: a client that sends everything before it reads would deadlock.
#[tokio::test]
async fn sends_and_receives_at_once() {
    let serving = Server::start(&["--slow-timeout", "5s"]).await;
    let line = "x".repeat(1000) + "\n";
    let input = line.repeat(60_000);
    let (code, out, errors) = connect(&[&serving.url("/echo"), "--max-message", "1M"], &input).await;
    assert_eq!((code, out.len()), (0, input.len()), "{errors}");
}

#[tokio::test]
async fn input_that_is_not_utf8_is_refused_or_sent_as_binary() {
    let serving = Server::start(&[]).await;
    let url = serving.url("/echo");
    let run = async |args: &[&str]| {
        let mut child = connect_command(args).stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(b"good\n\xff\r\nnever\n").await.unwrap();
        finish(child).await
    };
    let (code, out, errors) = run(&[&url]).await;
    assert!(code == 2 && errors.contains("message 2 of the input is not UTF-8"), "{code} {errors}");
    assert_eq!(out, b"good\n");
    let (code, out, errors) = run(&[&url, "--binary"]).await;
    assert_eq!((code, &*out), (0, &b"good\n\xff\r\nnever\n"[..]), "{errors}");
}

#[tokio::test]
async fn scripts_learn_the_outcome_from_the_exit_code() {
    let serving = Server::start(&["--max-message", "1000"]).await;
    let echo = serving.url("/echo");
    let run = async |args: &[&str]| {
        let (code, _, errors) = connect(args, "").await;
        (code, errors)
    };
    assert_eq!(run(&[&echo, "--send", "a", "--expect", "a"]).await.0, 0);
    assert_eq!(run(&[&echo, "--send", "a", "--send", "b", "--count", "2"]).await.0, 0);
    assert_eq!(run(&[&echo, "--send", "a", "--expect", "b"]).await.0, 4);
    assert_eq!(run(&[&echo, "--count", "1", "--timeout", "5"]).await.0, 4);
    assert_eq!(run(&[&serving.url("/source?size=10&count=3"), "--count", "4"]).await.0, 4);
    let (code, errors) = run(&[&echo, "--send", &"x".repeat(1001)]).await;
    assert!(code == 3 && errors.contains("1009"), "{code} {errors}");
    let (code, errors) = run(&[&serving.url("/nothing")]).await;
    assert!(code == 3 && errors.contains("404"), "{code} {errors}");
    assert_eq!(run(&["ws://127.0.0.1:1/"]).await.0, 1);
    let tls = Server::start(&["--tls", "--tls-listen", "127.0.0.1:0"]).await;
    for scheme in ["wss", "https"] {
        let (code, errors) = run(&[&format!("{scheme}://{}/echo", tls.addresses[1])]).await;
        assert_eq!(code, 7, "{errors}");
    }
    assert_eq!(run(&["ftp://127.0.0.1/"]).await.0, 2);
    for wrong in [["-H", "Upgrade: x"], ["--subprotocol", "a b"], ["--origin", "no origin"]] {
        assert_eq!(run(&[&echo, wrong[0], wrong[1]]).await.0, 2, "{wrong:?}");
        assert_eq!(run(&[&echo, "--reconnect", wrong[0], wrong[1]]).await.0, 2, "{wrong:?}");
    }
    assert_eq!(run(&["--no-such-thing"]).await.0, 2);
}

#[tokio::test]
async fn scripts_send_the_lines_of_a_pipe() {
    let serving = Server::start(&[]).await;
    let echo = serving.url("/echo");
    let (code, out, errors) = connect(&[&echo, "--count", "2", "--timeout", "30"], "one\ntwo\n").await;
    assert_eq!((code, &*out), (0, "one\ntwo\n"), "{errors}");
    let (code, _, errors) = connect(&[&echo, "--expect", "a", "--timeout", "30"], "a\n").await;
    assert_eq!(code, 0, "{errors}");
    // The command does not close at the end of the input, because expected messages may still arrive.
    let (code, out, errors) = connect(&[&echo, "--count", "2", "--timeout", "5"], "one\n").await;
    assert_eq!((code, &*out), (4, "one\n"), "{errors}");
    // With `--send` the input is not read.
    let (code, out, errors) = connect(&[&echo, "--send", "sent", "--count", "1"], "not this\n").await;
    assert_eq!((code, &*out), (0, "sent\n"), "{errors}");
    let (code, _, errors) =
        connect(&[&serving.url("/sink"), "--send", "12345", "--linger", "0"], "not this\n").await;
    assert_eq!(code, 0, "{errors}");
    assert!(serving.get("/metrics").await.contains("wireloom_sink_bytes_total 5\n"));
}

#[tokio::test]
async fn scripts_end_although_their_input_does_not() {
    let serving = Server::start(&[]).await;
    let source = serving.url("/source?size=1&count=2");
    let args = [&*source, "--count", "2", "--timeout", "30"];
    let mut child = connect_command(&args).stdin(Stdio::piped()).spawn().unwrap();
    // Keep the input open: `wait` would close it.
    let _open = child.stdin.take();
    let (code, _, errors) = finish(child).await;
    assert_eq!(code, 0, "{errors}");
}

#[tokio::test]
async fn the_source_sends_what_was_asked_for() {
    let serving = Server::start(&[]).await;
    let url = serving.url("/source?size=5000&count=2000");
    let (code, out, errors) = connect(&[&url, "--count", "2000", "--quiet", "-v"], "").await;
    assert_eq!((code, &*out), (0, ""));
    assert!(errors.contains("2000 messages, 10000000 bytes received"), "{errors}");
    let url = serving.url("/source?size=1&count=20&rate=100");
    let begin = std::time::Instant::now();
    assert_eq!(connect(&[&url, "--quiet"], "").await.0, 0);
    // The command does not close at the end of an empty input: all messages arrive.
    let (code, _, _) = connect(&[&url, "--count", "20", "--quiet"], "").await;
    assert_eq!(code, 0);
    assert!(begin.elapsed() >= Duration::from_millis(180), "{:?}", begin.elapsed());
    assert!(serving.get("/source?size=x").await.starts_with("HTTP/1.1 400 "));
}

#[tokio::test]
async fn a_room_delivers_to_all_its_members() {
    let serving = Server::start(&[]).await;
    let url = serving.url("/rooms/lobby");
    let member = {
        let url = url.clone();
        tokio::spawn(async move { connect(&[&url, "--expect", "hello", "--timeout", "30"], "").await.0 })
    };
    while !serving.get("/metrics").await.contains("wireloom_channels_open 1\n") {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let elsewhere = connect(&[&serving.url("/rooms/other"), "--send", "not you", "--count", "1"], "").await;
    assert_eq!(elsewhere.0, 0);
    let (code, ..) = connect(&[&url, "--send", "hello", "--expect", "hello", "--timeout", "30"], "").await;
    assert_eq!((code, member.await.unwrap()), (0, 0));
    while !serving.get("/metrics").await.contains("wireloom_channels_open 0\n") {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn serves_the_page_and_the_metrics() {
    let serving = Server::start(&[]).await;
    let page = serving.get("/").await;
    assert!(page.contains("/rooms/NAME"), "an explanation without JavaScript");
    assert!(
        page.to_ascii_lowercase().contains("content-security-policy: default-src 'none'; script-src 'self';")
    );
    for file in ["/page.js", "/page.css"] {
        assert!(page.contains(file) && serving.get(file).await.starts_with("HTTP/1.1 200 "), "{file}");
    }
    // The script is the largest file by far.
    let url = format!("http://{}/page.js", serving.addresses[0]);
    let (_, plain, _) = connect(&[&url], "").await;
    let args = [&url, "-i", "-H", "Accept-Encoding: gzip"];
    let (code, packed, errors) = finish(connect_command(&args).spawn().unwrap()).await;
    let head = String::from_utf8_lossy(&packed).to_ascii_lowercase();
    assert!(code == 0 && head.contains("\r\ncontent-encoding: gzip\r\n"), "{errors}");
    assert!(packed.len() * 5 < plain.len() * 2, "{} of {}", packed.len(), plain.len());
    assert!(serving.get("/healthz").await.ends_with("\r\n\r\nok\n"));
    let sink = serving.url("/sink");
    assert_eq!(connect(&[&sink, "--send", "four", "--send", "5", "--linger", "0"], "").await.0, 0);
    let metrics = serving.get("/metrics").await;
    assert!(metrics.contains("wireloom_sink_bytes_total 5\n"), "{metrics}");
    assert!(metrics.contains("wireloom_websockets_opened_total 1\n"), "{metrics}");
}

// RFC 7692 §7.1.2.
#[tokio::test]
async fn negotiates_compression_by_its_options() {
    for (options, agreed) in [
        (&[][..], "permessage-deflate\n"),
        (&["--compress-window", "10"], "permessage-deflate; client_max_window_bits=10\n"),
        (
            &["--no-context-takeover"],
            "permessage-deflate; server_no_context_takeover; client_no_context_takeover\n",
        ),
    ] {
        let serving = Server::start(options).await;
        let args = [&*serving.url("/echo"), "--compress", "-v", "--send", "a", "--send", "a", "--count", "2"];
        let (code, out, errors) = connect(&args, "").await;
        assert_eq!((code, &*out), (0, "a\na\n"), "{errors}");
        assert!(errors.contains(&format!("< Sec-WebSocket-Extensions: {agreed}")), "{errors}");
    }
    let serving = Server::start(&["--no-compress"]).await;
    let args = [&*serving.url("/echo"), "--compress", "-v", "--send", "a", "--count", "1"];
    let (code, _, errors) = connect(&args, "").await;
    assert!(code == 0 && !errors.contains("< Sec-WebSocket-Extensions"), "{errors}");
}

// RFC 6455 §10.2.
#[tokio::test]
async fn foreign_origins_are_refused() {
    let serving = Server::start(&["--allow-origin", "https://friend.example"]).await;
    let url = serving.url("/echo");
    let own = format!("http://{}", serving.addresses[0]);
    for (origin, expected) in
        [("https://friend.example", 0), (&*own, 0), ("https://foe.example", 3), ("null", 3)]
    {
        assert_eq!(connect(&[&url, "--origin", origin], "line\n").await.0, expected, "{origin}");
    }
}

// A closed pipe is not a failure; a full disk is one.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn an_output_that_cannot_be_written_is_a_failure() {
    let serving = Server::start(&[]).await;
    let web = format!("http://{}/source?size=10&count=5", serving.addresses[0]);
    for args in [&[&*serving.url("/source?size=10&count=5"), "--count", "5"][..], &[&web]] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let child = connect_command(args).stdout(full).spawn().unwrap();
        let (code, _, errors) = finish(child).await;
        assert!(code == 5 && errors.contains("cannot be written"), "{code} {errors}");
        let (read, write) = std::io::pipe().unwrap();
        drop(read);
        let child = connect_command(args).stdout(write).spawn().unwrap();
        let (code, _, errors) = finish(child).await;
        assert_eq!(code, 0, "{errors}");
    }
}

#[tokio::test]
async fn speaks_tls_with_a_self_signed_certificate() {
    let serving = Server::start(&["--tls"]).await;
    let url = format!("wss://{}/echo", serving.addresses[1]);
    assert_eq!(connect(&[&url, "--insecure", "--send", "a", "--expect", "a"], "").await.0, 0);
    let (code, _, errors) = connect(&[&url, "--send", "a"], "").await;
    assert!(code == 7 && errors.contains("TLS"), "{code} {errors}");
}

#[tokio::test]
async fn sigterm_closes_with_1001_and_ends() {
    let mut serving = Server::start(&[]).await;
    let url = serving.url("/echo");
    let open = tokio::spawn(async move { connect(&[&url, "--count", "1", "-v"], "").await });
    while !serving.get("/metrics").await.contains("wireloom_websockets_open 1\n") {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    serving.signal("-TERM");
    assert_eq!(serving.exit_code().await, Some(0));
    let (code, _, errors) = open.await.unwrap();
    assert!(code == 4 && errors.contains("closed by the peer with 1001"), "{code} {errors}");
}

#[tokio::test]
async fn the_log_is_json_without_secrets() {
    let mut serving = Server::start(&["--log", "json", "--log-level", "trace"]).await;
    let url = serving.url("/echo?token=secret1");
    let secret = "Authorization: Bearer secret2";
    let (code, ..) = connect(&[&url, "-H", secret, "--send", "secret3", "--count", "1"], "").await;
    assert_eq!(code, 0);
    serving.signal("-TERM");
    let lines = serving.log_to_end().await;
    for line in &lines {
        assert!(line.starts_with(r#"{"timestamp":""#) && line.ends_with('}'), "{line}");
    }
    assert_eq!(serving.exit_code().await, Some(0));
    let log = lines.concat();
    for expected in [r#""path":"/echo""#, r#""status":101"#, r#""code":1000"#, "frame read", "shutting down"]
    {
        assert!(log.contains(expected), "{expected}: {log}");
    }
    assert!(!log.contains("secret"), "{log}");
}

pub(crate) fn run(args: &[&str]) -> (i32, String, String) {
    let output = std::process::Command::new(WIRELOOM).args(args).stdin(Stdio::null()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

#[test]
fn completions_and_manual_pages_are_generated() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let (code, script, _) = run(&["completions", shell]);
        assert!(code == 0 && script.contains("tls-listen"), "{shell}");
    }
    let (code, page, _) = run(&["man", "serve"]);
    assert!(code == 0 && page.contains(".TH") && page.contains(".SH \"EXIT STATUS\""), "{page}");
    // Options are with their values, or not at all.
    assert!(page.contains(".SH SYNOPSIS\nwireloom serve [OPTIONS]\n"), "{page}");
    assert!(page.contains("\\-\\-slow\\-policy\\fR \\fI<POLICY>"), "{page}");
    let folder = folder("man");
    let dir = folder.join("pages");
    assert_eq!(run(&["man", "--dir", dir.to_str().unwrap()]).0, 0);
    for page in ["wireloom.1", "wireloom-serve.1", "wireloom-connect.1"] {
        assert!(dir.join(page).is_file(), "{page}");
    }
    assert_eq!(run(&["man", "nothing"]).0, 2);
}

#[test]
fn wrong_arguments_are_explained() {
    for (args, expected) in [
        (&["serve", "--listen", "8080"][..], "HOST:PORT"),
        (&["serve", "--max-message", "much"], "a size is"),
        (&["serve", "--ping", "0"], "from 1ms"),
        (&["serve", "--workers", "0"], "at least 1"),
        (&["serve", "--ping", "10", "--dead-after", "10"], "--dead-after must be longer than --ping"),
        (&["serve", "--allow-origin", "example.com"], "an origin is"),
        (&["serve", "--allow-origin", "https://*.example.com"], "an origin is"),
        (&["serve", "--cert", "a.pem"], "--key"),
        (&["serve", "--tls-listen", "127.0.0.1:0"], "--tls"),
        (&["serve", "--nats", "http://127.0.0.1"], "invalid scheme"),
        (&["serve", "--redis", "http://127.0.0.1"], "not a scheme of Redis"),
        (&["serve", "--redis", "redis+sentinel://127.0.0.1"], "names no master"),
        (&["serve", "--redis", "redis://127.0.0.1/x"], "database"),
        (&["serve", "--slow-policy", "hope"], "wait, drop, disconnect"),
        (&["connect"], "<URL>"),
        (&["connect", "ws://127.0.0.1/", "-H", "nonsense"], "NAME: VALUE"),
        (&["connect", "ws://127.0.0.1/", "--cacert", "/nowhere/ca.pem"], "/nowhere/ca.pem"),
        (&["connect", "not a url"], "begins with neither"),
        (&["connect", "http://127.0.0.1/", "-X", "G T"], "a method is"),
        (&["flurb"], "unrecognized subcommand"),
        (&["conect"], "'connect'"),
        (&["hub", "token", "--hub", "h", "--info", "{bad"], "it is not JSON"),
        (&["connect", "ws://127.0.0.1/", "--exspect", "a"], "a similar argument exists: '--expect'"),
    ] {
        let (code, out, errors) = run(args);
        assert_eq!((code, &*out), (2, ""), "{args:?}: {errors}");
        assert!(errors.contains(expected), "{args:?}: {errors}");
        // No colours without a terminal.
        assert!(!errors.contains('\x1b'), "{errors:?}");
    }
}

#[tokio::test]
async fn the_routes_that_are_printed_are_those_that_exist() {
    let folder = folder("routes");
    // Without a file there are rooms and the routes for trials.
    for namespace in [None, Some("rooms"), Some("chat")] {
        let has_rooms = namespace != Some("chat");
        let mut serving = tokio::process::Command::new(WIRELOOM);
        serving.args(["serve", "--port", "0"]);
        if let Some(namespace) = namespace {
            let config = folder.join("hub.toml");
            std::fs::write(&config, format!("[[namespace]]\nname = \"{namespace}\"\n")).unwrap();
            serving.arg("--hub").arg(config);
        }
        let mut serving =
            serving.stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true).spawn().unwrap();
        let mut lines = BufReader::new(serving.stdout.take().unwrap()).lines();
        let mut printed = String::new();
        while !printed.contains(if namespace.is_some() { "--demo" } else { "/source" }) {
            printed += &timeout(DEADLINE, lines.next_line()).await.unwrap().unwrap().expect("all routes");
        }
        assert_eq!(printed.contains("/rooms/NAME    sends"), has_rooms, "{printed}");
        assert_eq!(printed.contains("not /rooms/NAME"), !has_rooms, "{printed}");
        let paths = ["websocket", "http_stream", "sse", "uni_websocket", "uni_http_stream", "uni_sse"];
        let paths = paths.map(|name| format!("/connection/{name}"));
        let paths = paths.iter().map(String::as_str).chain(["/emulation", "/livez", "/healthz"]);
        paths.for_each(|path| assert!(printed.contains(path), "{path}: {printed}"));
        assert_eq!(printed.contains("/echo  "), namespace.is_none(), "{printed}");
        let address = printed.split("http://").nth(1).and_then(|rest| rest.split('/').next()).unwrap();
        wireloom::connect(&format!("ws://{address}/connection/websocket")).await.expect(&printed);
    }
}

/// The status of a response to a request with a key of the server API.
async fn status(address: &str, path: &str, host: Option<&str>) -> u16 {
    let connector = match host {
        Some(host) => wireloom::Connector::new().host(host),
        None => wireloom::Connector::new(),
    };
    let request = wireloom::client::Request::post(format!("http://{address}{path}"), "{}");
    let request = match path.starts_with("/api") {
        true => request.header("x-api-key", "key"),
        false => wireloom::client::Request::get(format!("http://{address}{path}")),
    };
    connector.request(request).await.unwrap().status
}

#[tokio::test]
async fn a_hub_is_served_alone_and_its_administration_elsewhere() {
    let folder = folder("alone");
    let config = folder.join("hub.toml");
    std::fs::write(&config, "client.anonymous = true\napi.key = \"key\"\n[[namespace]]\nname = \"rooms\"\n")
        .unwrap();
    let config = config.to_str().unwrap();
    for (args, has_demo) in [(&[][..], false), (&["--demo"], true)] {
        let args =
            [&["--hub", config, "--admin", "127.0.0.1:0", "--allow-host", "admin.example"], args].concat();
        let serving = Server::start(&args).await;
        let [public, admin] = [&serving.addresses[0], serving.addresses.last().unwrap()];
        let demo = if has_demo { 200 } else { 404 };
        for (path, on_public, on_admin) in [
            ("/healthz", 200, 200),
            ("/livez", 200, 200),
            ("/metrics", 404, 200),
            ("/live", demo, 200),
            ("/", demo, 200),
            ("/source?count=1", demo, 404),
            ("/api/info", 404, 200),
        ] {
            assert_eq!(status(public, path, None).await, on_public, "{path} {args:?}");
            assert_eq!(status(admin, path, None).await, on_admin, "{path} {args:?}");
        }
        // DNS rebinding: a page lets its name resolve to the admin address.
        for path in ["/metrics", "/live", "/api/info"] {
            assert_eq!(status(admin, path, Some("evil.example")).await, 403, "{path}");
            assert_eq!(status(admin, path, Some("admin.example")).await, 200, "{path}");
            assert_eq!(status(admin, path, Some("wireloom:9090")).await, 200, "{path}");
        }
    }
    // Without --admin, figures are not for pages of other sites.
    let serving = Server::start(&[]).await;
    assert_eq!(status(&serving.addresses[0], "/metrics", Some("evil.example")).await, 403);
    assert_eq!(status(&serving.addresses[0], "/metrics", None).await, 200);
}

#[tokio::test]
async fn a_server_that_cannot_start_reports_why() {
    let serving = Server::start(&[]).await;
    let (code, _, errors) = run(&["serve", "--listen", &serving.addresses[0]]);
    assert!(code == 1 && errors.contains(&serving.addresses[0]), "{code} {errors}");
    let files = ["--cert", "/nowhere/cert.pem", "--key", "/nowhere/key.pem"];
    let args = ["serve", "--listen", "127.0.0.1:0", "--tls-listen", "127.0.0.1:0", "--tls"];
    let (code, _, errors) = run(&[&args[..], &files].concat());
    assert!(code == 2 && errors.contains("--cert /nowhere/cert.pem: No such file"), "{code} {errors}");
    let files = ["--cert", "Cargo.toml", "--key", "Cargo.toml"];
    let (code, _, errors) = run(&[&args[..], &files].concat());
    assert!(code == 2 && errors.contains("with --key Cargo.toml: TLS: the file holds no"), "{code} {errors}");
}

#[tokio::test]
async fn shows_the_handshake_without_secrets() {
    let serving = Server::start(&[]).await;
    let url = serving.url("/echo?token=secret").replace("ws://", "ws://user:secret@");
    let (code, _, errors) = connect(&[&url, "-v", "--compress", "--send", "a", "--expect", "a"], "").await;
    assert_eq!(code, 0, "{errors}");
    for expected in [
        &*format!("* connected to {}\n", serving.addresses[0]),
        "> GET /echo?… HTTP/1.1\n",
        "> Authorization: …\n",
        "> Sec-WebSocket-Key: ",
        "< HTTP/1.1 101 Switching Protocols\n",
        "< Sec-WebSocket-Accept: ",
        "* open over HTTP/1.1, compressed",
    ] {
        assert!(errors.contains(expected), "{errors}");
    }
    let (_, _, errors) = connect(&[&url, "-v", "--http2", "--send", "a", "--expect", "a"], "").await;
    for expected in ["> :protocol: websocket\n", "> :path: /echo?…\n", "< HTTP/2 200\n"] {
        assert!(errors.contains(expected), "{errors}");
    }
    assert!(!errors.contains("secret"), "{errors}");
    let url = serving.url("/nothing?token=secret").replace("ws://", "ws://user:secret@");
    let (code, _, errors) = connect(&[&url, "-v"], "").await;
    assert!(code == 3 && errors.contains("< HTTP/1.1 404 Not Found"), "{errors}");
    assert!(!errors.contains("secret"), "{errors}");
}

#[tokio::test]
async fn reconnects_and_reports_the_loss() {
    let mut first = Server::start(&[]).await;
    let url = first.url("/echo");
    let mut child = connect_command(&["--reconnect", &url]).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut messages = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut notes = BufReader::new(child.stderr.take().unwrap()).lines();
    stdin.write_all(b"one\n").await.unwrap();
    assert_eq!(messages.next_line().await.unwrap().as_deref(), Some("one"));
    first.kill().await;
    let note = notes.next_line().await.unwrap().unwrap();
    assert!(note.contains("trying again in"), "{note}");
    let second = Server::start(&["--listen", &first.addresses[0]]).await;
    stdin.write_all(b"two\n").await.unwrap();
    assert_eq!(messages.next_line().await.unwrap().as_deref(), Some("two"));
    // The end of the input does not close.
    drop(stdin);
    second.signal("-TERM");
    let mut note = String::new();
    while !note.contains("closed by the peer with 1001") {
        note = notes.next_line().await.unwrap().unwrap();
    }
    signal(&child, "-INT");
    assert_eq!(child.wait().await.unwrap().code(), Some(0));
}

#[tokio::test]
async fn a_proxy_that_refuses_is_an_error() {
    let serving = Server::start(&[]).await;
    let url = serving.url("/echo");
    // Use the server itself as a proxy, which it is not.
    let proxy = format!("http://user:secret@{}", serving.addresses[0]);
    let (code, _, errors) = connect(&[&url, "--proxy", &proxy, "--send", "a"], "").await;
    assert!(code == 1 && errors.contains("proxy") && !errors.contains("secret"), "{code} {errors}");
    assert_eq!(connect(&[&url, "--proxy", "gopher://x"], "").await.0, 2);
}

#[tokio::test]
async fn bodies_flow_both_ways_and_are_counted() {
    let serving = Server::start(&[]).await;
    let post = |path: &str, body: &str| {
        format!(
            "POST {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    let ask = async |request: String| {
        let mut stream = tokio::net::TcpStream::connect(&serving.addresses[0]).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    };
    assert!(ask(post("/echo", "hello")).await.ends_with("\r\n\r\nhello"));
    assert!(ask(post("/sink", "hello")).await.ends_with("\r\n\r\n5 bytes\n"));
    let metrics = serving.get("/metrics").await;
    assert!(metrics.contains("wireloom_sink_bytes_total 5\n"), "{metrics}");
    let source = serving.get("/source?size=5&count=3").await;
    assert!(source.contains("\0\x01\x02\x03\x04\0\x01\x02\x03\x04\0\x01\x02\x03\x04"), "{source:?}");
    let begin = std::time::Instant::now();
    let source = serving.get("/source?size=1&count=20&rate=100").await;
    assert!(begin.elapsed() >= Duration::from_millis(180), "{:?}", begin.elapsed());
    assert_eq!(source.matches('\0').count(), 20);
}

#[tokio::test]
async fn opens_websockets_over_http2() {
    let serving = Server::start(&["--tls"]).await;
    let (plain, secure) = (serving.url("/echo"), format!("wss://{}/echo", serving.addresses[1]));
    for args in [&[&*plain, "--http2"][..], &[&secure, "--http2", "--insecure"]] {
        let script = ["-v", "--compress", "--send", "a", "--expect", "a"];
        let (code, _, errors) = connect(&[args, &script].concat(), "").await;
        assert!(code == 0 && errors.contains("open over HTTP/2, compressed"), "{code} {errors}");
        let long = "x".repeat(300_000) + "\n";
        let (code, out, _) = connect(args, &long).await;
        assert_eq!((code, out), (0, long));
    }
    let (code, _, errors) = connect(&[&serving.url("/nothing"), "--http2"], "").await;
    assert!(code == 3 && errors.contains("404"), "{code} {errors}");
    let metrics = serving.get("/metrics").await;
    assert!(metrics.contains("wireloom_http2_connections_total 5\n"), "{metrics}");
}

#[tokio::test]
async fn makes_requests_over_http2() {
    let serving = Server::start(&["--tls"]).await;
    let plain = format!("http://{}", serving.addresses[0]);
    let secure = format!("https://{}", serving.addresses[1]);
    let (code, out, _) = connect(&[&format!("{plain}/healthz")], "").await;
    assert_eq!((code, &*out), (0, "ok\n"));
    let args = [&*format!("{secure}/healthz?secret"), "--insecure", "-v", "-H", "Cookie: secret"];
    let (code, out, errors) = connect(&args, "").await;
    assert_eq!((code, &*out), (0, "ok\n"));
    assert!(errors.contains("> :path: /healthz?…\n") && errors.contains("> cookie: …\n"), "{errors}");
    assert!(!errors.contains("secret"), "{errors}");
    assert!(errors.contains(", ALPN h2\n") && errors.contains("< HTTP/2 200\n"), "{errors}");
    let (code, out, _) = connect(&[&format!("{plain}/echo"), "--data", "hello"], "").await;
    assert_eq!((code, &*out), (0, "hello"));
    // More than the flow-control windows, in both directions at once.
    let long = "wireloom ".repeat(1_000_000);
    let (code, out, errors) = connect(&[&format!("{plain}/echo"), "--data", "@-"], &long).await;
    assert_eq!((code, out.len()), (0, long.len()), "{errors}");
    let folder = folder("data");
    let file = folder.join("file");
    std::fs::write(&file, "from a file").unwrap();
    let data = format!("@{}", file.display());
    let (code, out, _) = connect(&[&format!("{plain}/sink"), "-X", "PUT", "--data", &data], "").await;
    assert_eq!((code, &*out), (0, "11 bytes\n"));
    let (code, out, errors) = connect(&[&format!("{plain}/nothing")], "").await;
    assert!(code == 3 && out.contains("not found") && errors.contains("404"), "{code} {out} {errors}");
    assert_eq!(connect(&["http://127.0.0.1:1/"], "").await.0, 1);
    for wrong in [
        &[&*plain, "--send", "a"][..],
        &[&plain, "--data", "@/nowhere/at/all"],
        &[&plain, "-H", "Connection: close"],
        &[&serving.url("/echo"), "--data", "a"],
    ] {
        let (code, _, errors) = connect(wrong, "").await;
        assert!(code == 2 && errors.starts_with("wireloom: "), "{code} {errors}");
    }
}

#[tokio::test]
async fn makes_requests_to_servers_without_http2() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut bytes = [0; 1024];
            let len = stream.read(&mut bytes).await.unwrap();
            let answer: &[u8] = match bytes[..len].starts_with(b"GET / HTTP/1.1\r\n") {
                true => b"HTTP/1.1 200 OK\r\nX-Old: 1\r\n\r\nwell met\n",
                false => b"HTTP/1.1 505 \r\n\r\n",
            };
            stream.write_all(answer).await.unwrap();
        }
    });
    let (code, out, errors) = connect(&[&url, "-v"], "").await;
    assert_eq!((code, &*out), (0, "well met\n"), "{errors}");
    assert!(errors.contains("\n< HTTP/1.1 200 OK\n< X-Old: 1\n"), "{errors}");
    let (code, _, errors) = connect(&[&url, "--http2"], "").await;
    assert!(code == 3 && errors.contains("does not speak HTTP/2"), "{code} {errors}");
}

#[tokio::test]
async fn shows_interim_responses_in_their_version() {
    let hinting = wireloom::Server::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", hinting.local_addr().unwrap());
    tokio::spawn(hinting.serve(|request: wireloom::Request| async move {
        request.send_informational(103, &wireloom::Headers::default()).unwrap();
        wireloom::Response::new(204)
    }));
    let (code, _, errors) = connect(&[&url, "-v", "--http2"], "").await;
    assert!(code == 0 && errors.contains("\n< HTTP/2 103\n"), "{code} {errors}");
}

#[tokio::test]
async fn shows_each_frame() {
    let serving = Server::start(&["--log-level", "trace"]).await;
    let long = "x".repeat(1_000);
    let args = [&*serving.url("/echo"), "-vvv", "--compress", "--send", &long, "--send", "a", "--count", "2"];
    let (code, _, errors) = connect(&args, "").await;
    assert_eq!(code, 0, "{errors}");
    for expected in [
        "\n> text frame, 1 byte\n",
        "\n< text frame, 1 byte\n",
        "\n> close frame, 2 bytes\n",
        "\n< close frame, 2 bytes\n",
    ] {
        assert!(errors.contains(expected), "{errors}");
    }
    assert_eq!(errors.matches(" bytes, compressed\n").count(), 2, "{errors}");
}

// The send queue is limited in time as well as in bytes: here it stays far below its limit in bytes.
#[tokio::test]
async fn a_client_that_does_not_read_is_slow_after_a_while() {
    let limits = ["--slow-policy", "disconnect", "--slow-after", "300ms", "--slow-queue", "64M"];
    let serving = Server::start(&limits).await;
    let _slow = wireloom::connect(&serving.url("/source?size=60000")).await.unwrap();
    let cut = async {
        while !serving.get("/metrics").await.contains("\nwireloom_slow_clients_disconnected_total 1\n") {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(DEADLINE, cut).await.unwrap();
}

// One member publishes more than a send queue holds and receives it as well; another member does not read.
#[tokio::test]
async fn a_room_disconnects_a_member_that_does_not_read() {
    let serving = Server::start(&[]).await;
    let url = serving.url("/rooms/loud");
    let slow = wireloom::connect(&url).await.unwrap();
    let (mut sender, mut receiver) = wireloom::connect(&url).await.unwrap().split();
    let publish = async {
        for number in 0..300u32 {
            // Some messages are larger than a send queue.
            let len = if number % 50 == 0 { 300_000 } else { 60_000 };
            let mut message = vec![0; len];
            message[..4].copy_from_slice(&number.to_be_bytes());
            sender.send(message).await.unwrap();
        }
    };
    let receive = async {
        for number in 0..300u32 {
            let message = receiver.recv().await.unwrap().unwrap();
            assert_eq!(message.as_bytes()[..4], number.to_be_bytes());
        }
    };
    // The slow member is disconnected; publishing continues.
    let both = async { tokio::join!(publish, receive) };
    timeout(DEADLINE, both).await.unwrap();
    drop(slow);
}

#[cfg(target_os = "linux")]
#[test]
fn output_that_cannot_be_written_is_a_failure_and_a_closed_pipe_is_none() {
    for args in [
        &["--help"][..],
        &["--version"],
        &["help", "load"],
        &["man"],
        &["man", "serve"],
        &["completions", "bash"],
        &["hub", "config"],
    ] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = std::process::Command::new(WIRELOOM).args(args).stdout(full).output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(5), "{args:?} {errors}");
        assert!(errors.contains("the output cannot be written"), "{args:?} {errors}");
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = std::process::Command::new(WIRELOOM).args(args).stdout(writer).output().unwrap();
        assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0), "{args:?} {output:?}");
    }
}
