//! `wireloom connect` with requests instead of WebSockets: heads, redirects, and data that the server does not wait for.

use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::connect::raw_server;
use crate::process::{DEADLINE, Server, connect, connect_command, finish};

/// Heads as on the wire: with the reason phrase, and the names as the server spells them.
#[tokio::test]
async fn heads_are_shown_as_they_arrived() {
    const HEAD: &str = "HTTP/1.1 200 Quite Right\r\nX-ODD-Name:  a  b\r\nContent-Length: 0\r\n\r\n";
    let (address, _heads) = raw_server(HEAD, "").await;
    let (code, out, errors) = connect(&[&format!("http://{address}/"), "-i", "-v"], "").await;
    assert_eq!((code, &*out), (0, HEAD), "{errors}");
    for line in ["< HTTP/1.1 200 Quite Right\n", "< X-ODD-Name: a  b\n"] {
        assert!(errors.contains(line), "{errors}");
    }
    // Of a WebSocket -i and -v show the same.
    let server = Server::start(&[]).await;
    let args = [&server.url("/echo"), "-i", "-v", "--send", "a", "--count", "1"];
    let (_, out, errors) = connect(&args, "").await;
    let (head, message) = out.split_once("\r\n\r\n").expect(&out);
    assert!(head.starts_with("HTTP/1.1 101 Switching Protocols\r\n") && message == "a\n", "{out}");
    let shown: Vec<&str> = errors.lines().filter_map(|line| line.strip_prefix("< ")).collect();
    assert_eq!(head.lines().collect::<Vec<_>>(), shown);
}

#[tokio::test]
async fn options_of_curl_ask_for_heads_and_send_cookies_and_agents() {
    let (address, mut heads) = raw_server("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", "").await;
    let url = format!("http://{address}/");
    let args = [&url, "-I", "-A", "probe/1", "-b", "a=1", "-b", "b=2"];
    let (code, out, errors) = connect(&args, "").await;
    assert_eq!((code, &*out), (0, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"), "{errors}");
    let head = heads.recv().await.unwrap();
    assert!(head.starts_with("HEAD / HTTP/1.1\r\n"), "{head}");
    let lower = head.to_ascii_lowercase();
    for field in ["user-agent: probe/1\r\n", "cookie: a=1; b=2\r\n"] {
        assert!(lower.contains(field) && lower.matches(&field[..6]).count() == 1, "{head}");
    }
    let (code, _, errors) = connect(&[&url, "-b", "jar.txt"], "").await;
    assert!(code == 2 && errors.contains("cookies are NAME=VALUE"), "{errors}");
}

#[tokio::test]
async fn requests_time_out() {
    for (head, rest) in [("", ""), ("", "HTTP/1.1 100 Continue\r\n\r\n"), ("HTTP/1.1 200 OK\r\n", "x")] {
        let (address, _) = raw_server(head, rest).await;
        let url = format!("http://{address}/");
        for option in ["--response-timeout", "--timeout"] {
            let (code, _, errors) = connect(&[&url, option, "1"], "").await;
            assert!(code == 6 && errors.contains(option), "{head:?} {rest:?} {option}: {code} {errors}");
        }
    }
    // A body that arrives a byte at a time.
    let (address, _) = raw_server("HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n", "x").await;
    let (code, out, errors) = connect(&[&format!("http://{address}/"), "--stall-timeout", "1"], "").await;
    assert!(code == 6 && out.starts_with('x') && errors.contains("--stall-timeout"), "{code} {errors}");
    // The handshake of a WebSocket.
    let (address, _) = raw_server("", "").await;
    let (code, _, errors) = connect(&[&format!("ws://{address}/"), "--timeout", "500ms"], "").await;
    assert!(code == 6 && errors.contains("too long"), "{code} {errors}");
}

#[tokio::test]
async fn plain_requests_use_http1_by_default() {
    let (address, mut heads) = raw_server("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", "").await;
    let args = [&*format!("http://{address}/"), "-H", "Host: other.example", "-u", "anna:pass"];
    let (code, out, errors) = connect(&args, "").await;
    assert_eq!((code, &*out), (0, "ok"), "{errors}");
    let head = heads.recv().await.unwrap();
    assert!(head.starts_with("GET / HTTP/1.1\r\nHost: other.example\r\n"), "{head}");
    assert!(head.contains("\r\nAuthorization: Basic YW5uYTpwYXNz\r\n"), "{head}");
    let server = Server::start(&["--tls"]).await;
    let (plain, tls) = (
        format!("http://{}/healthz", server.addresses[0]),
        format!("https://{}/healthz", server.addresses[1]),
    );
    for (args, version) in [
        (&[&*plain][..], "HTTP/1.1 200"),
        (&[&plain, "--http2"], "HTTP/2 200"),
        (&[&tls, "-k"], "HTTP/2 200"),
        (&[&tls, "-k", "--http1.1"], "HTTP/1.1 200"),
    ] {
        let (code, out, errors) = connect(&[args, &["-i"]].concat(), "").await;
        assert!(
            code == 0 && out.starts_with(version) && out.ends_with("\r\n\r\nok\n"),
            "{args:?}: {out} {errors}"
        );
    }
}

#[tokio::test]
async fn redirects_are_followed_without_secrets() {
    let (target, mut heads) = raw_server("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", "").await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 2048];
            let _ = stream.read(&mut request).await;
            let response =
                format!("HTTP/1.1 302 Found\r\nLocation: http://{target}/there\r\nContent-Length: 0\r\n\r\n");
            let _ = stream.write_all(response.as_bytes()).await;
        }
    });
    let url = format!("http://{address}/");
    let (code, out, errors) = connect(&[&url, "-L", "-u", "a:b", "-H", "X-Key: 1", "--data", "x"], "").await;
    assert_eq!((code, &*out), (0, "ok"), "{errors}");
    let head = heads.recv().await.unwrap();
    assert!(head.starts_with("GET /there HTTP/1.1\r\n"), "{head}");
    assert!(!head.contains("Authorization") && !head.contains("X-Key"), "{head}");
    let (code, _, errors) = connect(&[&url], "").await;
    assert_eq!(code, 0, "{errors}");
    let (code, _, errors) = connect(&[&url.replace("http", "ws")], "").await;
    assert!(code == 3 && errors.contains("-L follows"), "{errors}");
}

// RFC 9110 §15.4.
#[tokio::test]
async fn redirects_change_the_method_of_post_alone() {
    let server = wireloom::Server::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", server.local_addr().unwrap());
    let handle = async |mut request: wireloom::Request| {
        let method = request.method().to_owned();
        match request.path().strip_prefix("/from/").and_then(|status| status.parse().ok()) {
            Some(status) => wireloom::Response::new(status).with_header("location", "/to").unwrap(),
            None => {
                let content = request.bytes().await.unwrap();
                wireloom::Response::text(200, format!("{method} {}", content.len()))
            }
        }
    };
    tokio::spawn(async move { server.serve(handle).await });
    for (method, status, expected) in [
        ("DELETE", 301, "DELETE 1"),
        ("PUT", 302, "PUT 1"),
        ("PATCH", 301, "PATCH 1"),
        ("GET", 302, "GET 1"),
        ("POST", 301, "GET 0"),
        ("POST", 302, "GET 0"),
        ("POST", 307, "POST 1"),
        ("DELETE", 303, "GET 0"),
        ("POST", 303, "GET 0"),
        ("PUT", 308, "PUT 1"),
    ] {
        let from = format!("{url}/from/{status}");
        let (code, out, errors) = connect(&[&from, "-L", "-X", method, "--data", "x"], "").await;
        assert_eq!((code, &*out), (0, expected), "{method} {status}: {errors}");
    }
}

// Without -u, so that the credentials are those of the URL alone.
#[tokio::test]
async fn redirects_within_an_origin_keep_the_credentials_and_the_socket_of_the_url() {
    let handle = async |request: wireloom::Request| match request.path() {
        "/dir" => wireloom::Response::new(301).with_header("location", "/dir/").unwrap(),
        _ => match request.header("authorization") {
            Some(_) => wireloom::Response::text(200, "ok"),
            None => wireloom::Response::text(401, "who?"),
        },
    };
    let server = wireloom::Server::bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().unwrap();
    tokio::spawn(async move { server.serve(handle).await });
    let url = format!("http://user:p%40w@{address}/dir");
    let (code, out, errors) = connect(&[&url, "-L", "-v"], "").await;
    assert_eq!((code, &*out), (0, "ok"), "{errors}");
    assert!(errors.contains("redirected") && !errors.contains("p%40w"), "{errors}");

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let server = wireloom::Server::new(wireloom::server::bind_unix(&path).unwrap());
    tokio::spawn(async move { server.serve(handle).await });
    let url = format!("http+unix:{}:/dir", path.display());
    let (code, out, errors) = connect(&[&url, "-L", "-u", "a:b"], "").await;
    assert_eq!((code, &*out), (0, "ok"), "{errors}");
}

// The server answers at the head of the request.
#[tokio::test]
async fn data_is_sent_to_its_end_after_an_early_response() {
    const LEN: usize = 16 << 20;
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    std::fs::write(&data, vec![b'x'; LEN]).unwrap();
    let (lens, mut received) = mpsc::unbounded_channel();
    let server = wireloom::Server::bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().unwrap();
    tokio::spawn(async move {
        let handle = move |mut request: wireloom::Request| {
            let lens = lens.clone();
            async move {
                if request.method() == "POST" {
                    tokio::spawn(async move {
                        // Long after the response has arrived.
                        tokio::time::sleep(Duration::from_millis(200)).await;
                        lens.send(request.bytes().await.map(|bytes| bytes.len()))
                    });
                }
                wireloom::Response::new(204)
            }
        };
        let mut config = wireloom::ServerConfig::default();
        config.body_len_max = LEN;
        server.config(config).serve(handle).await
    });
    let (url, data) = (format!("http://{address}/"), format!("@{}", data.display()));
    for more in [&[][..], &["--http2"], &["-H", &format!("Content-Length: {LEN}")]] {
        let (code, _, errors) = connect(&[&[&*url, "--data", &*data], more].concat(), "").await;
        assert_eq!(code, 0, "{more:?}: {errors}");
        assert_eq!(received.recv().await, Some(Ok(LEN)), "{more:?}");
    }
}

// The server answers at the head of the request, and reads on.
#[tokio::test]
async fn data_that_is_not_sent_to_its_end_after_an_early_response_is_a_failure() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let early = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(stream.read_u8().await.unwrap());
                }
                stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.unwrap();
                while let Ok(1..) = stream.read(&mut [0; 1024]).await {}
            });
        }
    });
    let server = wireloom::Server::bind("127.0.0.1:0").await.unwrap();
    let http2 = format!("http://{}/", server.local_addr().unwrap());
    tokio::spawn(server.serve(async |mut request: wireloom::Request| {
        tokio::spawn(async move { request.bytes().await });
        wireloom::Response::new(204)
    }));
    for (url, more) in [(&early, &[][..]), (&http2, &["--http2"])] {
        // A folder: it can be opened.
        let (code, _, errors) = connect(&[&[&**url, "--data", "@/"], more].concat(), "").await;
        assert_eq!(code, 5, "{more:?}: {errors}");
        assert!(errors.contains("--data cannot be read: "), "{more:?}: {errors}");

        // The input ends too early, or does not end.
        let args = ["-i", "--data", "@-", "-H", "Content-Length: 100", "--timeout"];
        for (ends, time, expected, reason) in [
            (true, "60s", 5, "the server answered 204, but not all of --data was sent: "),
            (false, "5s", 6, "not all of --data was sent in time (--timeout)"),
        ] {
            let mut child = connect_command(&[&[&**url], &args[..], &[time], more].concat());
            let mut child = child.stdin(Stdio::piped()).spawn().unwrap();
            let mut head = BufReader::new(child.stdout.take().unwrap()).lines();
            let status = timeout(DEADLINE, head.next_line()).await.unwrap().unwrap().unwrap();
            assert!(status.contains("204"), "{status}");
            let mut stdin = child.stdin.take().unwrap();
            stdin.write_all(&[b'x'; 50]).await.unwrap();
            let stdin = Some(stdin).filter(|_| !ends);
            let (code, _, errors) = finish(child).await;
            drop(stdin);
            assert_eq!(code, expected, "{more:?}: {errors}");
            assert!(errors.contains(reason), "{more:?}: {errors}");
        }
    }
}
