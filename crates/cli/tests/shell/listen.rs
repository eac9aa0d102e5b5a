//! `wireloom listen` and `connect --exec`: both directions, and what the end of each side leads to.

use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::process::{Child, Command};
use tokio::time::timeout;
use wireloom::{CloseCode, Error, Message, WebSocket, connect};

use crate::connect::accept_silently;
use crate::process::{self, DEADLINE, Server, WIRELOOM, connect_command, finish, folder, signal};

/// `wireloom listen`, killed when this is dropped.
struct Listening {
    child: Child,
    /// The address as it is printed, such as `ws://127.0.0.1:1234/path`.
    url: String,
    notes: tokio::io::Lines<BufReader<tokio::process::ChildStderr>>,
}

impl Listening {
    async fn start(args: &[&str]) -> Self {
        let mut child = Command::new(WIRELOOM)
            .arg("listen")
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut notes = BufReader::new(child.stderr.take().unwrap()).lines();
        let line = timeout(DEADLINE, notes.next_line()).await.unwrap().unwrap().expect("it listens");
        let url = line.strip_prefix("* listening on ").unwrap_or_else(|| panic!("{line}")).to_owned();
        Self { child, url, notes }
    }

    async fn connect(&self) -> WebSocket {
        timeout(DEADLINE, connect(&self.url)).await.unwrap().unwrap()
    }

    /// A connection to a listener for streams.
    async fn stream(&self) -> TcpStream {
        TcpStream::connect(self.url.strip_prefix("tcp:").unwrap()).await.unwrap()
    }

    async fn noted(&mut self, text: &str) {
        let found = async {
            while let Some(line) = self.notes.next_line().await.unwrap() {
                if line.contains(text) {
                    return;
                }
            }
            panic!("{text} is not printed");
        };
        timeout(DEADLINE, found).await.unwrap_or_else(|_| panic!("{text} is not printed"));
    }

    async fn exit_code(&mut self) -> Option<i32> {
        timeout(DEADLINE, self.child.wait()).await.expect("it ends").unwrap().code()
    }
}

/// A listener for what WebSockets are joined to.
async fn target() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let name = format!("tcp:{}", listener.local_addr().unwrap());
    (listener, name)
}

async fn accept(listener: &TcpListener) -> TcpStream {
    timeout(DEADLINE, listener.accept()).await.unwrap().unwrap().0
}

/// Everything that arrives, and the close code.
async fn receive(socket: &mut WebSocket) -> (Vec<u8>, CloseCode) {
    let mut all = Vec::new();
    while let Ok(Some(message)) = timeout(DEADLINE, socket.recv()).await.unwrap() {
        all.extend_from_slice(message.as_bytes());
    }
    (all, socket.end().unwrap().code())
}

#[tokio::test]
async fn bytes_pass_in_both_directions() {
    let (listener, to) = target().await;
    let listening = Listening::start(&["127.0.0.1:0", &to]).await;
    let socket = listening.connect().await;
    let stream = accept(&listener).await;
    let sent: Vec<u8> = (0..3_000_000_u32).map(|number| (number % 251) as u8).collect();
    let (mut sender, mut receiver) = socket.split();
    let (mut reader, mut writer) = stream.into_split();
    let echo = tokio::spawn(async move { tokio::io::copy(&mut reader, &mut writer).await });
    let outgoing = sent.clone();
    let sending = tokio::spawn(async move {
        for chunk in outgoing.chunks(100_000) {
            sender.send(chunk).await.unwrap();
        }
        sender
    });
    let mut received = Vec::new();
    while received.len() < sent.len() {
        let message = timeout(DEADLINE, receiver.recv()).await.unwrap().unwrap().unwrap();
        assert!(message.is_binary());
        received.extend_from_slice(message.as_bytes());
    }
    assert!(received == sent);
    sending.await.unwrap().close(CloseCode::NORMAL, "").await.unwrap();
    assert_eq!(echo.await.unwrap().unwrap(), sent.len() as u64);
}

#[tokio::test]
async fn the_end_of_the_stream_closes_with_1000_behind_its_bytes() {
    let (listener, to) = target().await;
    let listening = Listening::start(&["127.0.0.1:0", &to]).await;
    let mut socket = listening.connect().await;
    let mut stream = accept(&listener).await;
    stream.write_all(&[7; 200_000]).await.unwrap();
    stream.shutdown().await.unwrap();
    let (bytes, code) = receive(&mut socket).await;
    assert_eq!((bytes.len(), code), (200_000, CloseCode::NORMAL));
}

#[tokio::test]
async fn what_arrived_before_close_is_written_and_the_stream_ends_regularly() {
    let (listener, to) = target().await;
    let listening = Listening::start(&["127.0.0.1:0", &to]).await;
    let mut socket = listening.connect().await;
    let mut stream = accept(&listener).await;
    socket.send(vec![7; 200_000]).await.unwrap();
    socket.close(CloseCode::NORMAL, "").await.unwrap();
    // Bytes that the stream still sends do not reset the connection.
    stream.write_all(b"too late").await.unwrap();
    let mut read = Vec::new();
    timeout(DEADLINE, stream.read_to_end(&mut read)).await.unwrap().unwrap();
    assert_eq!(read.len(), 200_000);
}

#[tokio::test]
async fn a_websocket_that_breaks_resets_the_stream() {
    let (listener, to) = target().await;
    let mut listening = Listening::start(&["127.0.0.1:0", &to]).await;
    // Without a Close frame.
    let address = listening.url.strip_prefix("ws://").unwrap().trim_end_matches('/').to_owned();
    let mut raw = TcpStream::connect(&address).await.unwrap();
    let request = format!(
        "GET / HTTP/1.1\r\nHost: {address}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    raw.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(timeout(DEADLINE, raw.read_u8()).await.unwrap().unwrap());
    }
    let mut stream = accept(&listener).await;
    drop(raw);
    let read = timeout(DEADLINE, stream.read_u8()).await.unwrap();
    assert_eq!(read.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
    listening.noted("127.0.0.1:").await;
}

#[tokio::test]
async fn a_stream_that_fails_closes_with_1011() {
    let (listener, to) = target().await;
    let listening = Listening::start(&["127.0.0.1:0", &to]).await;
    let mut socket = listening.connect().await;
    let stream = accept(&listener).await;
    stream.set_zero_linger().unwrap();
    drop(stream);
    assert_eq!(receive(&mut socket).await.1, CloseCode::INTERNAL_ERROR);
    // A line that is not UTF-8.
    let listening = Listening::start(&["127.0.0.1:0", &to, "--framing", "lines"]).await;
    let mut socket = listening.connect().await;
    accept(&listener).await.write_all(b"a\n\xFF\n").await.unwrap();
    assert_eq!(receive(&mut socket).await, (b"a".to_vec(), CloseCode::INTERNAL_ERROR));
    assert!(matches!(socket.end().unwrap().cause, wireloom::wireloom_ws::Cause::Close { reason, .. }
        if reason.to_string().contains("not UTF-8")));
}

#[tokio::test]
async fn refuses_what_cannot_be_joined() {
    let status = |opened: Result<WebSocket, Error>| match opened.map(drop).unwrap_err() {
        Error::Refused(refusal) => refusal.status(),
        error => panic!("{error}"),
    };
    // Nothing listens at the other end.
    let (_taken, refusing) = wireloom_testing::refusing();
    let mut listening = Listening::start(&["ws://127.0.0.1:0/only", &format!("tcp:{refusing}")]).await;
    assert_eq!(status(connect(&listening.url).await), 502);
    listening.noted("cannot be reached: Connection refused").await;
    assert_eq!(status(connect(&listening.url.replace("/only", "/other")).await), 404);
    let foreign = wireloom::Connector::new().origin("https://example.com");
    assert_eq!(status(foreign.connect(&listening.url).await), 403);
    // One more than may be.
    let listening = Listening::start(&["127.0.0.1:0", "--exec", "cat", "--max-connections", "1"]).await;
    let _one = listening.connect().await;
    assert_eq!(status(connect(&listening.url).await), 503);
}

// The producer is held up as soon as the buffers of the kernel and one read are full.
#[tokio::test]
async fn memory_does_not_grow_with_a_reader_that_waits() {
    const BOUND: usize = 48 << 20;
    let (listener, to) = target().await;
    let listening = Listening::start(&["127.0.0.1:0", &to]).await;
    let mut socket = listening.connect().await;
    let mut stream = accept(&listener).await;
    let mut written = 0;
    let chunk = vec![7; 64 << 10];
    while let Ok(wrote) = timeout(Duration::from_millis(500), stream.write(&chunk)).await {
        written += wrote.unwrap();
        assert!(written < BOUND, "{written} bytes wait");
    }
    stream.shutdown().await.unwrap();
    assert_eq!(receive(&mut socket).await.0.len(), written);
}

#[tokio::test]
async fn the_exit_code_of_a_program_is_the_close_code() {
    for (command, bytes, code, reason) in [
        ("printf 'a\\nb\\n'", &b"ab"[..], CloseCode::NORMAL, ""),
        ("echo a; exit 3", b"a", CloseCode::INTERNAL_ERROR, "exit code 3"),
        ("kill -9 $$", b"", CloseCode::INTERNAL_ERROR, "signal 9"),
        // It reads what arrives, and has the peer's address.
        (
            "read line; echo \"$line ${WIRELOOM_PEER%:*} $WIRELOOM_TARGET\"",
            b"hello 127.0.0.1 /x?y",
            CloseCode::NORMAL,
            "",
        ),
    ] {
        let listening = Listening::start(&["127.0.0.1:0", "--exec", command]).await;
        let mut socket = connect(&format!("{}/x?y", listening.url.trim_end_matches('/'))).await.unwrap();
        let _ = socket.send("hello").await;
        assert_eq!(receive(&mut socket).await, (bytes.to_vec(), code), "{command}");
        let wireloom::wireloom_ws::Cause::Close { reason: closed, .. } = socket.end().unwrap().cause else {
            panic!("{command}: closed")
        };
        assert_eq!(closed.to_string(), reason, "{command}");
    }
}

#[tokio::test]
async fn a_program_that_outlives_its_websocket_is_terminated() {
    // The second ignores SIGTERM, the third is a pipeline, the others are left in the background by a shell that ends at once.
    for command in [
        "echo $$; exec sleep 1000",
        "trap '' TERM; echo $$; while :; do sleep 1000; done",
        "sh -c 'echo $$; exec sleep 1000' | cat",
        "sleep 1000 & echo $!",
        "(trap '' TERM; exec sleep 1000) & echo $!",
    ] {
        let listening = Listening::start(&["127.0.0.1:0", "--exec", command, "--grace", "100ms"]).await;
        let mut socket = listening.connect().await;
        let message = timeout(DEADLINE, socket.recv_owned()).await.unwrap().unwrap().unwrap();
        let process: i32 = message.as_text().unwrap().parse().unwrap();
        let process = rustix::process::Pid::from_raw(process).unwrap();
        assert!(rustix::process::test_kill_process(process).is_ok());
        socket.close(CloseCode::NORMAL, "").await.unwrap();
        let ended = async {
            while rustix::process::test_kill_process(process).is_ok() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(DEADLINE, ended).await.unwrap_or_else(|_| panic!("{command} goes on"));
    }
}

#[tokio::test]
async fn a_program_is_terminated_before_listen_ends() {
    let folder = folder("listen-terminated");
    let file = folder.join("terminated");
    let command = format!(
        "trap 'sleep 0.3; echo yes >{}; exit' TERM; echo ready; while :; do sleep 0.05; done",
        file.display()
    );
    let mut listening =
        Listening::start(&["127.0.0.1:0", "--exec", &command, "--grace", "100ms", "-v"]).await;
    let mut socket = listening.connect().await;
    assert_eq!(
        timeout(DEADLINE, socket.recv_owned()).await.unwrap().unwrap().unwrap().as_text(),
        Some("ready")
    );
    signal(&listening.child, "-TERM");
    assert_eq!(receive(&mut socket).await.1, CloseCode::GOING_AWAY);
    listening.noted("closed, because listen ends").await;
    assert_eq!(listening.exit_code().await, Some(0));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "yes\n");
}

#[tokio::test]
async fn a_program_may_ignore_its_input() {
    let command = "exec <&-; echo ready; for n in 1 2 3; do sleep 0.05; echo $n; done";
    let listening = Listening::start(&["127.0.0.1:0", "--exec", command]).await;
    let mut socket = listening.connect().await;
    let first = timeout(DEADLINE, socket.recv_owned()).await.unwrap().unwrap().unwrap();
    assert_eq!(first.as_text(), Some("ready"));
    let _ = socket.send(vec![7; 1 << 20]).await;
    assert_eq!(receive(&mut socket).await, (b"123".to_vec(), CloseCode::NORMAL));
}

// More than the pipe holds was sent, and waits before the end of the connection.
#[tokio::test]
async fn a_peer_that_leaves_is_noticed_while_the_program_reads_nothing() {
    let args = ["127.0.0.1:0", "--exec", "sleep 1000", "--max-connections", "1", "--grace", "100ms"];
    let mut listening = Listening::start(&args).await;
    let mut socket = listening.connect().await;
    socket.send(vec![7; 200_000]).await.unwrap();
    assert!(connect(&listening.url).await.is_err(), "one may be open");
    // Without a Close frame.
    drop(socket.into_inner());
    let next = async {
        loop {
            match connect(&listening.url).await {
                Ok(next) => return next,
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    };
    let mut next = timeout(DEADLINE, next).await.expect("the place is free again");
    // A signal is obeyed, too.
    next.send(vec![7; 200_000]).await.unwrap();
    signal(&listening.child, "-TERM");
    assert_eq!(receive(&mut next).await.1, CloseCode::GOING_AWAY);
    assert_eq!(listening.exit_code().await, Some(0));
}

#[tokio::test]
async fn prefixed_messages_keep_their_bounds() {
    let listening = Listening::start(&["127.0.0.1:0", "--exec", "cat", "--framing", "prefixed"]).await;
    let mut socket = listening.connect().await;
    for message in [&b"a\nb"[..], b"", &[7; 100_000]] {
        socket.send(message).await.unwrap();
        let answer = timeout(DEADLINE, socket.recv_owned()).await.unwrap().unwrap().unwrap();
        assert_eq!(answer, Message::binary(message.to_vec()));
    }
    socket.close(CloseCode::NORMAL, "").await.unwrap();
}

#[tokio::test]
async fn the_standard_input_and_output_serve_one_websocket() {
    for (code, exit) in [(CloseCode::NORMAL, 0), (CloseCode::new(4000), 3)] {
        let mut listening = Listening::start(&["127.0.0.1:0"]).await;
        let mut socket = listening.connect().await;
        assert!(connect(&listening.url).await.is_err(), "the second is refused");
        listening.child.stdin.as_mut().unwrap().write_all(b"from the shell\n").await.unwrap();
        let message = timeout(DEADLINE, socket.recv_owned()).await.unwrap().unwrap().unwrap();
        assert_eq!(message, Message::text("from the shell"));
        socket.send("from the peer").await.unwrap();
        socket.close(code, "").await.unwrap();
        let mut printed = String::new();
        let mut out = listening.child.stdout.take().unwrap();
        timeout(DEADLINE, out.read_to_string(&mut printed)).await.unwrap().unwrap();
        assert_eq!((listening.exit_code().await, &*printed), (Some(exit), "from the peer\n"));
    }
    // The end of the input ends it.
    let mut listening = Listening::start(&["127.0.0.1:0"]).await;
    let mut socket = listening.connect().await;
    drop(listening.child.stdin.take());
    assert_eq!(receive(&mut socket).await.1, CloseCode::NORMAL);
    assert_eq!(listening.exit_code().await, Some(0));
}

#[tokio::test]
async fn streams_are_joined_to_websockets_of_their_own() {
    let server = Server::start(&[]).await;
    for framing in ["bytes", "lines"] {
        let url = server.url("/echo");
        let listening = Listening::start(&["tcp:127.0.0.1:0", &url, "--framing", framing]).await;
        let mut first = listening.stream().await;
        let mut second = listening.stream().await;
        for (stream, text) in [(&mut first, "first\n"), (&mut second, "second\n")] {
            stream.write_all(text.as_bytes()).await.unwrap();
            let mut answer = vec![0; text.len()];
            timeout(DEADLINE, stream.read_exact(&mut answer)).await.unwrap().unwrap();
            assert_eq!(answer, text.as_bytes(), "{framing}");
        }
        first.shutdown().await.unwrap();
        let mut rest = Vec::new();
        timeout(DEADLINE, first.read_to_end(&mut rest)).await.unwrap().unwrap();
        assert_eq!(rest, b"", "{framing}");
    }
    // The server cannot be reached.
    let (_taken, refusing) = wireloom_testing::refusing();
    let mut listening = Listening::start(&["tcp:127.0.0.1:0", &format!("ws://{refusing}")]).await;
    // The reset may come before the connection is reported.
    let address = listening.url.strip_prefix("tcp:").unwrap().to_owned();
    let read = async { TcpStream::connect(address).await?.read_u8().await };
    let read = timeout(DEADLINE, read).await.unwrap();
    assert_eq!(read.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
    listening.noted("TO cannot be reached: Connection refused").await;
}

#[tokio::test]
async fn each_failure_is_counted_in_a_line() {
    const FAILURES: u64 = 9;
    let (_taken, refusing) = wireloom_testing::refusing();
    let mut listening = Listening::start(&["tcp:127.0.0.1:0", &format!("ws://{refusing}")]).await;
    for _ in 0..FAILURES {
        // The reset may arrive before `connect` has looked at the socket.
        let Ok(mut stream) = TcpStream::connect(listening.url.strip_prefix("tcp:").unwrap()).await else {
            continue;
        };
        let _ = timeout(DEADLINE, stream.read_u8()).await.expect("it is disconnected");
    }
    signal(&listening.child, "-TERM");
    let mut counted = 0;
    while let Some(line) = timeout(DEADLINE, listening.notes.next_line()).await.unwrap().unwrap() {
        counted += u64::from(line.contains("TO cannot be reached"));
        // `(2 other failures before)`, or a line of its own.
        let others =
            line.split_once(" other failure").and_then(|(before, _)| before.rsplit([' ', '(']).next());
        counted += others.map_or(0, |others| others.parse::<u64>().unwrap());
    }
    assert_eq!(counted, FAILURES);
    assert_eq!(listening.exit_code().await, Some(0));
}

#[tokio::test]
async fn unix_sockets_are_joined_both_ways() {
    let folder = folder("listen-unix");
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let target = UnixListener::bind(path("target")).unwrap();
    let (bridge, websockets) = (format!("unix:{}", path("bridge")), format!("ws+unix:{}", path("ws")));
    let inner = Listening::start(&[&websockets, &format!("unix:{}", path("target"))]).await;
    let outer = Listening::start(&[&bridge, &websockets]).await;
    let mut client = UnixStream::connect(path("bridge")).await.unwrap();
    let (mut server, _) = timeout(DEADLINE, target.accept()).await.unwrap().unwrap();
    client.write_all(b"question").await.unwrap();
    let mut read = [0; 8];
    timeout(DEADLINE, server.read_exact(&mut read)).await.unwrap().unwrap();
    assert_eq!(&read, b"question");
    server.write_all(b"answer").await.unwrap();
    server.shutdown().await.unwrap();
    let mut answer = Vec::new();
    timeout(DEADLINE, client.read_to_end(&mut answer)).await.unwrap().unwrap();
    assert_eq!(answer, b"answer");
    for mut listening in [inner, outer] {
        signal(&listening.child, "-TERM");
        assert_eq!(listening.exit_code().await, Some(0));
    }
    assert!(!folder.join("bridge").exists() && !folder.join("ws").exists());
    // The second signal ends at once.
    let mut listening = Listening::start(&[&websockets, "--exec", "exec sleep 1000", "--grace", "1h"]).await;
    let mut open = connect(&format!("{websockets}:/")).await.unwrap();
    signal(&listening.child, "-TERM");
    assert_eq!(receive(&mut open).await.1, CloseCode::GOING_AWAY);
    signal(&listening.child, "-TERM");
    assert_eq!(listening.exit_code().await, Some(0));
    assert!(!folder.join("ws").exists());
}

#[tokio::test]
async fn a_signal_closes_with_1001() {
    let (listener, to) = target().await;
    let mut listening = Listening::start(&["127.0.0.1:0", &to]).await;
    let mut socket = listening.connect().await;
    let _stream = accept(&listener).await;
    signal(&listening.child, "-TERM");
    assert_eq!(receive(&mut socket).await.1, CloseCode::GOING_AWAY);
    assert_eq!(listening.exit_code().await, Some(0));
    // And in the other direction.
    let server = Server::start(&[]).await;
    let mut listening = Listening::start(&["tcp:127.0.0.1:0", &server.url("/echo"), "-v"]).await;
    let mut stream = listening.stream().await;
    listening.noted("joined").await;
    signal(&listening.child, "-INT");
    let mut rest = Vec::new();
    timeout(DEADLINE, stream.read_to_end(&mut rest)).await.unwrap().unwrap();
    listening.noted("closed, because listen ends").await;
    assert_eq!(listening.exit_code().await, Some(0));
}

#[tokio::test]
async fn connect_joins_a_program() {
    let server = Server::start(&[]).await;
    let url = server.url("/echo");
    for (command, exit, printed) in [
        ("echo hello; read line; echo \"got $line\" >&2", 0, "got hello"),
        ("exit 3", 5, "exit code 3"),
        ("printf '\\377\\n'", 5, "not UTF-8"),
    ] {
        let (code, out, errors) = process::connect(&[&url, "--exec", command], "").await;
        assert_eq!((code, &*out), (exit, ""), "{command}: {errors}");
        assert!(errors.contains(printed), "{command}: {errors}");
    }
    for args in [&[&*url, "--exec", "cat", "--send", "a"][..], &[&*url, "--framing", "lines"]] {
        let (code, _, errors) = process::connect(args, "").await;
        assert_eq!(code, 2, "{errors}");
    }
    // The server's code is the exit code.
    let child = connect_command(&[&server.url("/nowhere"), "--exec", "cat"]).spawn().unwrap();
    assert_eq!(finish(child).await.0, 3);
    let mut child =
        connect_command(&[&url, "--exec", "echo ready >&2; cat"]).stderr(Stdio::piped()).spawn().unwrap();
    let mut notes = BufReader::new(child.stderr.take().unwrap()).lines();
    while timeout(DEADLINE, notes.next_line()).await.unwrap().unwrap().unwrap() != "ready" {}
    signal(&child, "-TERM");
    assert_eq!(timeout(DEADLINE, child.wait()).await.unwrap().unwrap().code(), Some(0));
}

// The first signal gives the program its grace period.
#[tokio::test]
async fn the_second_signal_ends_connect_and_kills_its_program() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}/", server.local_addr().unwrap());
    let command = "trap '' TERM; echo $$ >&2; sleep 1000";
    let args = [&*url, "--exec", command, "--grace", "1h"];
    let mut child = connect_command(&args).spawn().unwrap();
    let mut accepted = timeout(DEADLINE, accept_silently(&server)).await.unwrap();
    let mut errors = BufReader::new(child.stderr.take().unwrap()).lines();
    let program = timeout(DEADLINE, errors.next_line()).await.unwrap().unwrap().unwrap();
    signal(&child, "-INT");
    // Signals that arrive together count once: this one has arrived with its Close frame.
    assert_eq!(timeout(DEADLINE, accepted.read_u8()).await.unwrap().unwrap(), 0x88);
    assert!(child.try_wait().unwrap().is_none(), "it waits for its program");
    signal(&child, "-INT");
    let status = timeout(DEADLINE, child.wait()).await.expect("the second signal ends it").unwrap();
    assert_eq!(status.code(), Some(0));
    let has_ended = async {
        while std::path::Path::new(&format!("/proc/{program}/exe")).exists() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(DEADLINE, has_ended).await.expect("the program is killed");
}
