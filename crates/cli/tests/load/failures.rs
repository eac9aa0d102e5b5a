//! Each failure to connect has one line and an exit code.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket};
use wireloom::{Response, Server, ServerTls};

use crate::{Fault, run, start};

/// The address of a server that answers each connection with these bytes and closes it.
async fn answers(bytes: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.read(&mut [0; 4096]).await;
            let _ = stream.write_all(bytes).await;
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_to_connect_have_one_line() {
    // A port that is taken, and at which nothing listens.
    let taken = TcpSocket::new_v4().unwrap();
    taken.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let refused = format!("ws://{}/", taken.local_addr().unwrap());
    let url = start(Fault::None).await;
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent_url = format!("ws://{}/", silent.local_addr().unwrap());
    let tls = url.replace("ws://", "wss://");
    let no_websocket = format!("{url}none");
    let not_http = format!("ws://{}/", answers(b"220 mail.example ESMTP\r\n").await);
    let hangs_up = format!("ws://{}/", answers(b"").await);
    let http1_only = format!("ws://{}/", answers(b"HTTP/1.1 400 Bad Request\r\n\r\n").await);
    let (identity, _) = ServerTls::self_signed(&["127.0.0.1"]).unwrap();
    let server = Server::bind("127.0.0.1:0").await.unwrap().tls(identity);
    let untrusted = format!("wss://{}/", server.local_addr().unwrap());
    tokio::spawn(async move { server.serve(async |_| Response::not_found()).await });
    for (args, code, text) in [
        (vec![&*refused], 1, "refused"),
        (vec!["ws://no.such.host.invalid/"], 1, "no address is known for the host"),
        (vec![&*silent_url, "--timeout", "300ms"], 6, "the opening handshake took too long"),
        (vec![&*tls], 7, "wss://"),
        (vec![&*no_websocket], 3, "the server answered 404"),
        (vec![&*not_http], 5, "invalid first line"),
        (vec![&*hangs_up], 5, "the connection was lost"),
        (vec![&*untrusted], 7, "certificate"),
        (vec![&*untrusted, "--insecure"], 3, "the server answered 404"),
        (vec![&*http1_only, "--http2"], 3, "HTTP/2"),
        (vec!["ftp://127.0.0.1:1/"], 2, "ws://"),
        (vec!["ws://192.0.2.1:9/"], 2, "192.0.2.1 is outside loopback and private networks"),
        (vec!["ws://[2001:db8::1]:9/"], 2, "2001:db8::1 is outside loopback and private networks"),
        (vec!["ws://3221225985:9/"], 2, "3221225985 (192.0.2.1) is outside"),
        (
            vec![&*url, "--scenario", "sink", "--pipeline", "2"],
            2,
            "--pipeline does not apply to the scenario sink",
        ),
        (vec![&*url, "--messages", "/no/such/file"], 2, "--messages /no/such/file: "),
        (vec![&*url, "--compare", "/no/such/file"], 2, "--compare /no/such/file: "),
        (vec![&*url, "-H", "a b: c"], 2, "header"),
    ] {
        let (found, out, errors) = run(&args).await;
        assert_eq!(found, code, "{args:?} {errors}");
        assert_eq!(out, "", "{args:?}");
        assert_eq!(errors.lines().count(), 1, "{args:?} {errors}");
        assert!(errors.starts_with("wireloom: ") && errors.contains(text), "{args:?} {errors}");
    }
}
