//! `ServerConfig::memory_max`: what peers make a server hold stays under the limit, and other clients are served meanwhile.

#![allow(clippy::unwrap_used)]

#[cfg(target_os = "linux")]
use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::net::{TcpSocket, TcpStream};
#[cfg(target_os = "linux")]
use tokio::sync::oneshot;
use tokio::sync::{Notify, Semaphore};
use wireloom::server::Listener;
use wireloom::{
    ClientTls, CloseCode, Connector, DeflateConfig, Error, PreparedMessage, Request, Response, Server,
    ServerConfig, ServerHandle, ServerTls, Tap, TapEvent, WebSocketConfig,
};
use wireloom_testing::frame::upgrade_request;

const MEMORY_MAX: usize = 8 << 20;

/// Lets requests for `/wait` return.
static RELEASED: Semaphore = Semaphore::const_new(0);

/// Closed to let requests for `/hold` return.
static HELD: Semaphore = Semaphore::const_new(0);

const LARGE_LEN: usize = 4 << 20;

async fn handle(mut request: Request) -> Result<Response, Error> {
    Ok(match request.path() {
        "/socket" => match request.websocket() {
            Ok(upgrade) => upgrade.on_open(async |mut socket| {
                while let Ok(Some(message)) = socket.recv().await {
                    let len = message.as_bytes().len().to_string();
                    if socket.send(len).await.is_err() {
                        break;
                    }
                }
            }),
            Err(refusal) => refusal,
        },
        "/burst" => match request.websocket() {
            Ok(upgrade) => upgrade.on_open(async |mut socket| {
                let _ = socket.send(vec![7; 60_000]).await;
            }),
            Err(refusal) => refusal,
        },
        "/whole" => Response::text(200, request.bytes().await?.len().to_string()),
        "/wait" => {
            RELEASED.acquire().await.map(tokio::sync::SemaphorePermit::forget).unwrap();
            Response::text(200, "done\n")
        }
        "/hold" => {
            let _ = HELD.acquire().await;
            Response::text(200, "done\n")
        }
        "/large" => Response::new(200).with_body("application/octet-stream", vec![b'x'; LARGE_LEN]),
        _ => Response::text(200, "hello\n"),
    })
}

async fn serve(memory_max: usize) -> (SocketAddr, ServerHandle) {
    let mut config = ServerConfig::default();
    config.memory_max = memory_max;
    config.deflate = Some(DeflateConfig::default());
    config.body_len_max = 64 << 20;
    config.body_timeout = Duration::from_secs(5);
    let server = Server::bind("127.0.0.1:0").await.unwrap().config(config);
    let (address, handle_) = (server.local_addr().unwrap(), server.handle());
    tokio::spawn(server.serve(handle));
    (address, handle_)
}

/// The status of a response.
async fn status(stream: &mut TcpStream) -> u16 {
    let mut line = [0; 12];
    stream.read_exact(&mut line).await.unwrap();
    std::str::from_utf8(&line[9..]).unwrap().parse().unwrap()
}

/// Bytes of this process that are in memory.
#[cfg(target_os = "linux")]
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

/// Fails when the limit is exceeded; waits until `done`.
async fn watch(server: &ServerHandle, mut done: impl FnMut(&wireloom::MemoryStats) -> bool) {
    let begin = Instant::now();
    loop {
        let memory = server.stats().memory;
        assert!(memory.total <= memory.max, "{memory:?}");
        if done(&memory) {
            return;
        }
        assert!(begin.elapsed() < Duration::from_secs(30), "{memory:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

// 16 bodies of 4 MiB, of which the last byte does not come.
#[tokio::test]
async fn bodies_stay_under_the_limit() {
    const LEN: usize = 4 << 20;
    let (address, server) = serve(MEMORY_MAX).await;
    let clients: Vec<_> = (0..16)
        .map(|_| {
            tokio::spawn(async move {
                let stream = TcpStream::connect(address).await.unwrap();
                let (mut read, mut write) = stream.into_split();
                let sending = tokio::spawn(async move {
                    let head = format!("POST /whole HTTP/1.1\r\nHost: a\r\nContent-Length: {LEN}\r\n\r\n");
                    // A server that refuses does not read all of it.
                    let _ = write.write_all(head.as_bytes()).await;
                    let _ = write.write_all(&vec![b'x'; LEN - 1]).await;
                    write
                });
                let mut line = [0; 12];
                read.read_exact(&mut line).await.unwrap();
                drop(sending);
                String::from_utf8(line.to_vec()).unwrap()
            })
        })
        .collect();
    // Some are closed, so that others are served at all.
    watch(&server, |memory| memory.evicted > 0).await;
    let mut other = TcpStream::connect(address).await.unwrap();
    for _ in 0..10 {
        other.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
        assert_eq!(tokio::time::timeout(Duration::from_secs(10), status(&mut other)).await.unwrap(), 200);
        let mut rest = [0; 4096];
        let _ = other.read(&mut rest).await.unwrap();
    }
    // No body is ever complete: those that fit in memory wait until they time out or are evicted.
    let mut refused = 0;
    for client in clients {
        let refusal = tokio::time::timeout(Duration::from_secs(60), client);
        if let Ok(answer) = refusal.await {
            let answer = answer.unwrap();
            assert!(answer == "HTTP/1.1 503" || answer == "HTTP/1.1 408", "{answer}");
            refused += usize::from(answer == "HTTP/1.1 503");
        }
    }
    assert!(refused > 0);
    watch(&server, |memory| memory.total == memory.connections).await;
}

/// Accepts pipes in memory, which have no readiness.
struct Pipes(tokio::sync::mpsc::Receiver<DuplexStream>);

impl Listener for Pipes {
    type Transport = DuplexStream;

    async fn accept(&mut self) -> std::io::Result<(DuplexStream, SocketAddr)> {
        match self.0.recv().await {
            Some(pipe) => Ok((pipe, (std::net::Ipv4Addr::LOCALHOST, 0).into())),
            None => std::future::pending().await,
        }
    }
}

// A part of it arrives with the head, and the handler waits for something else.
#[tokio::test]
async fn content_that_is_not_read_is_counted() {
    const LEN: usize = 10_000;
    const CLIENTS: usize = 8;
    let (open, pipes) = tokio::sync::mpsc::channel(1);
    let server = Server::new(Pipes(pipes));
    let server_handle = server.handle();
    tokio::spawn(server.serve(handle));
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let (mut client, pipe) = tokio::io::duplex(2 * LEN);
        open.send(pipe).await.unwrap();
        let head = format!("POST /hold HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", 2 * LEN);
        client.write_all(&[head.as_bytes(), &[b'x'; LEN]].concat()).await.unwrap();
        clients.push(client);
    }
    watch(&server_handle, |memory| memory.bodies >= CLIENTS * LEN).await;
    HELD.close();
    drop(clients);
    watch(&server_handle, |memory| memory.total == 0).await;
}

// It must be read to learn whether the client has sent anything.
#[tokio::test]
async fn bytes_of_a_connection_that_waits_for_a_permit_are_counted() {
    const LEN: usize = 16 << 10;
    let (open, pipes) = tokio::sync::mpsc::channel(1);
    let config = ServerConfig { handshakes_max: 1, ..ServerConfig::default() };
    let server = Server::new(Pipes(pipes)).config(config);
    let server_handle = server.handle();
    tokio::spawn(server.serve(handle));
    let mut clients = Vec::new();
    for _ in 0..3 {
        let (mut client, pipe) = tokio::io::duplex(2 * LEN);
        open.send(pipe).await.unwrap();
        client.write_all(&[b'x'; LEN - 1]).await.unwrap();
        clients.push(client);
    }
    // The first has the permit, for as long as its head may take.
    let is_counted = watch(&server_handle, |memory| memory.heads >= 4 * LEN);
    tokio::time::timeout(ServerConfig::default().handshake_timeout / 2, is_counted).await.unwrap();
    drop(clients);
    watch(&server_handle, |memory| memory.total == 0).await;
}

// rustls holds all of a message, and the send queue is empty.
#[tokio::test]
async fn bytes_that_tls_holds_for_a_client_that_does_not_read_are_counted() {
    let (open, pipes) = tokio::sync::mpsc::channel(1);
    let (tls, certificate) = ServerTls::self_signed(&["localhost"]).unwrap();
    let server = Server::new(Pipes(pipes)).tls(tls);
    let server_handle = server.handle();
    tokio::spawn(server.serve(handle));
    let connector =
        Connector::new().tls(ClientTls::default().with_root(certificate.der())).dial_with(move |_, _| {
            let (client, pipe) = tokio::io::duplex(1_000);
            open.try_send(pipe).unwrap();
            std::future::ready(Ok(client))
        });
    let client = connector.connect("wss://localhost/burst").await.unwrap();
    watch(&server_handle, |memory| memory.send_queues >= 60_000).await;
    drop(client);
    watch(&server_handle, |memory| memory.total == 0).await;
}

// They cannot be evicted: a flood of them must not bring others near the limit.
#[tokio::test]
async fn silent_connections_use_half_of_the_memory() {
    const MAX: usize = 1 << 20;
    let (address, server) = serve(MAX).await;
    let mut clients = Vec::new();
    while server.stats().memory.refused == 0 {
        clients.push(TcpStream::connect(address).await.unwrap());
        tokio::task::yield_now().await;
    }
    let memory = server.stats().memory;
    assert_eq!((memory.connections, memory.total), (MAX / 2, MAX / 2), "{memory:?}");
    // The others are served.
    clients[0].write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    assert_eq!(status(&mut clients[0]).await, 200);
    clients.truncate(1);
    watch(&server, |memory| memory.connections == 4 << 10).await;
}

// As over HTTP/2: a handler may keep the head, and so does what a client has sent ahead.
#[tokio::test]
async fn heads_count_until_their_handlers_return() {
    const LONG: usize = 11 << 10;
    const GRANULE: usize = 16 << 10;
    let (address, server) = serve(MEMORY_MAX).await;
    let head = |len| format!("GET /wait HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "x".repeat(len));
    let mut clients = Vec::new();
    for _ in 0..8 {
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(head(LONG).as_bytes()).await.unwrap();
        clients.push(client);
    }
    watch(&server, |memory| memory.heads == 8 * GRANULE).await;
    // The next request, which does not end.
    for client in &mut clients[4..] {
        client.write_all(&head(LONG).as_bytes()[..LONG]).await.unwrap();
    }
    watch(&server, |memory| memory.heads == 12 * GRANULE).await;
    // Heads may use half of the memory.
    let mut others = Vec::new();
    for _ in 0..MEMORY_MAX / 2 / GRANULE {
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(head(LONG).as_bytes()).await.unwrap();
        others.push(client);
    }
    watch(&server, |memory| memory.heads == MEMORY_MAX / 2 && memory.refused >= 12).await;
    RELEASED.add_permits(8 + MEMORY_MAX / 2 / GRANULE - 12);
    let (mut done, mut refused) = (0, 0);
    for client in &mut others {
        match status(client).await {
            200 => done += 1,
            503 => refused += 1,
            other => panic!("{other}"),
        }
    }
    assert_eq!((done, refused), (MEMORY_MAX / 2 / GRANULE - 12, 12));
    for client in &mut clients[..4] {
        assert_eq!(status(client).await, 200);
    }
    drop(clients);
    watch(&server, |memory| memory.total == memory.connections).await;
}

#[tokio::test]
async fn responses_that_are_not_read_are_counted_and_evicted() {
    let (address, server) = serve(MEMORY_MAX).await;
    let mut clients = Vec::new();
    for _ in 0..4 {
        // More than the buffers of the kernel take.
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(1 << 12).unwrap();
        let mut client = socket.connect(address).await.unwrap();
        client.write_all("GET /large HTTP/1.1\r\nHost: a\r\n\r\n".repeat(4).as_bytes()).await.unwrap();
        clients.push(client);
    }
    // Others are served, once enough is freed.
    let begin = Instant::now();
    let mut is_served = false;
    while server.stats().memory.evicted == 0 || !is_served {
        assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", server.stats().memory);
        let mut other = TcpStream::connect(address).await.unwrap();
        other.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
        is_served = status(&mut other).await == 200;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop(clients);
    watch(&server, |memory| memory.total == memory.connections).await;
}

// 16 messages of 61 KiB that inflate to 64 MiB each, 1 GiB together, where 256 MiB are allowed.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn inflated_messages_stay_under_the_limit() {
    // In a process of its own: what other tests hold would be counted as memory of the server, up to 280 MiB.
    const ALONE: &str = "WIRELOOM_TEST_ALONE";
    if std::env::var_os(ALONE).is_none() {
        let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
        alone.args(["--exact", "inflated_messages_stay_under_the_limit", "--nocapture"]).env(ALONE, "1");
        let output = alone.output().unwrap();
        println!("{}", String::from_utf8_lossy(&output.stdout));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        return;
    }
    const LEN: usize = 64 << 20;
    const MAX: usize = 256 << 20;
    let (address, server) = serve(MAX).await;
    let url = format!("ws://{address}/socket");
    let message = PreparedMessage::binary(&vec![0; LEN]).with_deflate(&DeflateConfig::default());
    let mut other = wireloom::connect(&url).await.unwrap();
    // Without keepalive: clients wait for each other, under a sanitizer for longer than its timeout.
    let connector = Connector::new().config(WebSocketConfig::default()).deflate(DeflateConfig::default());
    #[cfg(target_os = "linux")]
    let (resident_before, (finish, mut finished)) = (resident(), oneshot::channel::<()>());
    let mut sockets = Vec::new();
    for _ in 0..16 {
        sockets.push(connector.connect(&url).await.unwrap());
    }
    let clients: Vec<_> = sockets
        .into_iter()
        .map(|mut socket| {
            let message = message.clone();
            tokio::spawn(async move {
                // A server that closes meanwhile takes no more.
                let _ = socket.send(&message).await;
                assert!(socket.traffic().bytes_sent < 80 << 10);
                let answer = socket.recv_owned().await;
                match answer {
                    Ok(Some(answer)) => {
                        assert_eq!(answer.as_text(), Some(&*LEN.to_string()));
                        None
                    }
                    _ => Some(socket.end().unwrap().code()),
                }
            })
        })
        .collect();
    let watching = tokio::spawn({
        let server = server.clone();
        async move { watch(&server, |memory| memory.inflated > 0).await }
    });
    // The accounts are right: the process holds no more than they say, but for what the allocator keeps.
    #[cfg(target_os = "linux")]
    let sampling = tokio::spawn(async move {
        let mut most = resident_before;
        while let Err(oneshot::error::TryRecvError::Empty) = finished.try_recv() {
            most = most.max(resident());
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        most - resident_before
    });
    let mut answered = 0;
    let mut refused = 0;
    for client in clients {
        other.send("hello").await.unwrap();
        let answer = tokio::time::timeout(Duration::from_secs(60), other.recv()).await.unwrap();
        assert_eq!(answer.unwrap().unwrap().as_text(), Some("5"));
        assert!(server.stats().memory.total <= MAX);
        match tokio::time::timeout(Duration::from_secs(600), client).await.unwrap().unwrap() {
            None => answered += 1,
            Some(code) => {
                assert_eq!(code, CloseCode::TRY_AGAIN_LATER);
                refused += 1;
            }
        }
    }
    println!("{answered} answered, {refused} refused with 1013");
    assert!(answered > 0);
    watching.await.unwrap();
    #[cfg(target_os = "linux")]
    {
        let _ = finish.send(());
        let grown = sampling.await.unwrap();
        println!("the process grew by {} MiB", grown >> 20);
        // The thread sanitizer keeps several bytes for each byte of the process.
        let is_sanitized = std::env::var_os("TSAN_OPTIONS").is_some();
        assert!(is_sanitized || grown <= MAX + MAX / 4, "{grown}");
    }
    drop(other);
    watch(&server, |memory| memory.total == memory.connections).await;
}

/// Raises the limit on open files as far as this process may; returns it.
fn raise_open_files() -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let wanted = 45_000;
    let limit = getrlimit(Resource::Nofile);
    // A privileged process may raise the hard limit too.
    let maximum = limit.maximum.map(|maximum| maximum.max(wanted));
    let all = Rlimit { current: Some(wanted), maximum };
    let some = Rlimit { current: limit.maximum.map(|maximum| maximum.min(wanted)), maximum: limit.maximum };
    let _ = setrlimit(Resource::Nofile, all).or_else(|_| setrlimit(Resource::Nofile, some));
    getrlimit(Resource::Nofile).current.map_or(usize::MAX, |current| current as usize)
}

async fn connect_from(host: u8, to: SocketAddr) -> TcpStream {
    // Several source addresses, so that there are enough ports.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(([127, 0, 0, host], 0).into()).unwrap();
    socket.connect(to).await.unwrap()
}

// 20,000 frame headers that announce 1 MiB, with a few bytes behind them.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn announced_lengths_cost_nothing() {
    let open_files = raise_open_files();
    // Two for each connection; a quarter is left to the other tests of this program.
    let count = 20_000.min(open_files * 3 / 8);
    if count < 20_000 {
        let text =
            format!("limited: {count} of 20,000 announced lengths, because {open_files} files may be open");
        // Not captured, as what is printed would be.
        let _ = writeln!(std::io::stderr(), "{text}");
    }
    // A WebSocket that is idle holds 1 KiB.
    let (address, server) = serve(64 << 20).await;
    let mut clients = Vec::new();
    for number in 0..count {
        let mut stream = connect_from(2 + (number % 8) as u8, address).await;
        stream.write_all(upgrade_request("/socket").as_bytes()).await.unwrap();
        assert_eq!(status(&mut stream).await, 101);
        let header = [0x82, 0xff, 0, 0, 0, 0, 0, 0x10, 0, 0, 1, 2, 3, 4];
        stream.write_all(&[&header[..], &[7; 10]].concat()).await.unwrap();
        clients.push(stream);
    }
    let mut other = wireloom::connect(&format!("ws://{address}/socket")).await.unwrap();
    other.send("hello").await.unwrap();
    assert_eq!(other.recv().await.unwrap().unwrap().as_text(), Some("5"));
    let memory = server.stats().memory;
    let expected = ((count + 1) << 10, (count + 1) << 10, count + 1);
    assert_eq!((memory.total, memory.connections, server.stats().websockets_open), expected, "{memory:?}");
}

// 256 WebSockets over one connection of HTTP/2, with 1 MiB of an unfinished message each, where 8 MiB are allowed.
#[tokio::test]
async fn tunnels_stay_under_the_limit() {
    let mut config = ServerConfig::default();
    config.memory_max = MEMORY_MAX;
    config.http2.settings.max_concurrent_streams = 300;
    let server = Server::bind("127.0.0.1:0").await.unwrap().config(config);
    let (address, server_handle) = (server.local_addr().unwrap(), server.handle());
    tokio::spawn(server.serve(handle));
    let http2 = Connector::new().connect_http2(&format!("http://{address}/")).await.unwrap();
    let mut sockets = Vec::new();
    for _ in 0..256 {
        sockets.push(http2.websocket("/socket").await.unwrap());
    }
    let mut sending = Vec::new();
    for mut socket in sockets {
        sending.push(tokio::spawn(async move {
            let piece = vec![7; 64 << 10];
            for _ in 0..16 {
                if socket.send_chunk(&*piece, false).await.is_err() {
                    break;
                }
            }
            // Until the server closes.
            while let Ok(Some(_)) = socket.recv().await {}
            socket.end().map(|end| end.code())
        }));
    }
    let mut other = wireloom::connect(&format!("ws://{address}/socket")).await.unwrap();
    watch(&server_handle, |memory| memory.evicted > 0 || memory.refused > 0).await;
    for _ in 0..20 {
        other.send("hello").await.unwrap();
        let answer = tokio::time::timeout(Duration::from_secs(30), other.recv()).await.unwrap();
        assert_eq!(answer.unwrap().unwrap().as_text(), Some("5"));
        let memory = server_handle.stats().memory;
        assert!(memory.total <= memory.max, "{memory:?}");
    }
    sending.iter().for_each(|sending| sending.abort());
    drop(http2);
    watch(&server_handle, |memory| memory.total == memory.connections).await;
}

/// How far the server came with an echo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// Its WebSocket was closed while the message arrived.
    Received,
    /// Its WebSocket was closed while the echo was written.
    Sent,
    /// It wrote all of the echo.
    Echoed,
}

impl Progress {
    /// The outcome for the client: the echo, or a close code.
    fn expected(self) -> Result<(), u16> {
        match self {
            Self::Echoed => Ok(()),
            // Nothing is queued, and a stream has room for a Close frame whatever is queued on others.
            Self::Received => Err(1013),
            // RFC 6455 §5.4: nothing can follow a part of a frame but its rest, which was freed. The stream is reset.
            Self::Sent => Err(1006),
        }
    }
}

async fn echo(socket: &mut wireloom::WebSocket) -> Progress {
    let Ok(Some(message)) = socket.recv_owned().await else { return Progress::Received };
    let sent = async {
        socket.send(message).await?;
        socket.flush().await
    };
    if sent.await.is_ok() { Progress::Echoed } else { Progress::Sent }
}

/// Echoes a message of 300,000 bytes on each of `count` WebSockets over one connection at once; returns how many came back. If
/// `first_len` is less, the rest of a message is sent after the server has closed WebSockets.
/// Each client receives what the progress of the server allows, and nothing is closed unless the server ran out of memory.
async fn echo_over_tunnels(count: usize, first_len: usize) -> usize {
    let mut config = ServerConfig::default();
    // Tunnels share 16 MiB, or one message of the maximum length if that is more.
    config.websocket.core.limits.message_len_max = 1 << 20;
    let server = Server::bind("127.0.0.1:0").await.unwrap().config(config);
    let (address, server_handle) = (server.local_addr().unwrap(), server.handle());
    let (report, mut reports) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(server.serve(move |request: Request| {
        let report = report.clone();
        async move {
            let number: usize = request.path()[1..].parse().unwrap();
            match request.websocket() {
                Ok(upgrade) => upgrade.on_open(async move |mut socket| {
                    report.send((number, echo(&mut socket).await)).unwrap();
                    // Until the client closes.
                    let _ = socket.recv().await;
                }),
                Err(refusal) => refusal,
            }
        }
    }));
    let http2 = Connector::new().connect_http2(&format!("http://{address}/")).await.unwrap();
    let mut sockets = Vec::new();
    for number in 0..count {
        sockets.push(http2.websocket(&format!("/{number}")).await.unwrap());
    }
    let (closed, has_closed) = tokio::sync::watch::channel(false);
    let clients: Vec<_> = sockets
        .into_iter()
        .map(|mut socket| {
            let mut has_closed = has_closed.clone();
            tokio::spawn(async move {
                let message = vec![7; 300_000];
                // A server that is out of memory closes meanwhile.
                if first_len < message.len() {
                    let _ = socket.send_chunk(&message[..first_len], false).await;
                    let _ = has_closed.wait_for(|has_closed| *has_closed).await;
                    let _ = socket.send_chunk(&message[first_len..], true).await;
                } else {
                    let _ = socket.send(&*message).await;
                }
                match socket.recv_owned().await {
                    Ok(Some(echo)) => {
                        assert_eq!(echo.as_bytes(), message);
                        Ok(())
                    }
                    _ => Err(socket.end().map_or(0, |end| end.code().into())),
                }
            })
        })
        .collect();
    if first_len < 300_000 {
        watch(&server_handle, |memory| memory.evicted > 0).await;
        closed.send(true).unwrap();
    }
    let mut received = Vec::new();
    for client in clients {
        received.push(client.await.unwrap());
    }
    drop(http2);
    let mut echoed = 0;
    for _ in 0..count {
        let (number, progress) = reports.recv().await.unwrap();
        assert_eq!(received[number], progress.expected(), "{number}: {progress:?}");
        echoed += usize::from(progress == Progress::Echoed);
    }
    watch(&server_handle, |memory| memory.total == memory.connections).await;
    let memory = server_handle.stats().memory;
    assert!((count - echoed) as u64 <= memory.evicted + memory.refused, "{echoed} of {count}: {memory:?}");
    echoed
}

#[tokio::test]
async fn messages_over_the_tunnels_of_a_connection_are_completed() {
    assert_eq!(echo_over_tunnels(20, 300_000).await, 20);
}

// 100 messages of 300,000 bytes begin at the same time, where 16 MiB are allowed: they cannot all be held.
#[tokio::test]
async fn messages_that_fill_the_memory_of_a_connection_do_not_block_it() {
    let echoing = echo_over_tunnels(100, 300_000);
    let echoed = tokio::time::timeout(Duration::from_secs(60), echoing).await.unwrap();
    assert!(echoed >= 30, "{echoed}");
}

// No message is completed while the connection's memory is full.
#[tokio::test]
async fn messages_that_do_not_end_are_closed_until_others_fit() {
    let echoing = echo_over_tunnels(60, 299_999);
    let echoed = tokio::time::timeout(Duration::from_secs(60), echoing).await.unwrap();
    assert!((1..60).contains(&echoed), "{echoed}");
}

// A handler that has stopped receiving holds an unfinished message, and nothing wakes it.
#[tokio::test]
async fn a_handler_that_is_never_polled_frees_its_memory() {
    let mut config = ServerConfig::default();
    config.memory_max = MEMORY_MAX;
    let server = Server::bind("127.0.0.1:0").await.unwrap().config(config);
    let (address, server_handle) = (server.local_addr().unwrap(), server.handle());
    let watched = server_handle.clone();
    tokio::spawn(server.serve(move |request: Request| {
        let watched = watched.clone();
        async move {
            match request.websocket() {
                Ok(upgrade) => upgrade.on_open(async move |mut socket| {
                    // Until the server is near its limit.
                    while watched.stats().memory.total < MEMORY_MAX / 4 * 3 {
                        let receiving = tokio::time::timeout(Duration::from_millis(20), socket.recv()).await;
                        assert!(receiving.is_err());
                    }
                    std::future::pending::<()>().await;
                }),
                Err(refusal) => refusal,
            }
        }
    }));
    let (mut read, mut write) = TcpStream::connect(address).await.unwrap().into_split();
    write.write_all(upgrade_request("/socket").as_bytes()).await.unwrap();
    let sending = tokio::spawn(async move {
        // A byte more is announced.
        let header = [0x82, 0xff, 0, 0, 0, 0, 0, 0x70, 0, 1, 1, 2, 3, 4];
        let _ = write.write_all(&header).await;
        let _ = write.write_all(&vec![7; 7 << 20]).await;
        write
    });
    watch(&server_handle, |memory| memory.evicted > 0).await;
    watch(&server_handle, |memory| memory.total == memory.connections).await;
    // 1013 reaches the peer, and no reset before it.
    let mut received = Vec::new();
    let mut bytes = [0; 1024];
    while let Ok(Ok(len @ 1..)) = tokio::time::timeout(Duration::from_secs(10), read.read(&mut bytes)).await {
        received.extend_from_slice(&bytes[..len]);
    }
    let code = 1013_u16.to_be_bytes();
    let close = received.windows(4).any(|frame| frame[0] == 0x88 && frame[2..] == code);
    assert!(close, "{:?}", String::from_utf8_lossy(&received));
    drop(sending);
}

// The thread keeps the allocation of a long message for later messages. All of it counts against the connection that takes it, so
// that a connection with a short message must not get it.
#[tokio::test]
async fn a_short_message_does_not_hold_the_memory_of_a_long_one() {
    const LONG: usize = 8 << 20;
    let (address, server) = serve(64 << 20).await;
    let url = format!("ws://{address}/socket");
    let mut long = wireloom::connect(&url).await.unwrap();
    for _ in 0..2 {
        long.send(vec![b'x'; LONG]).await.unwrap();
        assert_eq!(long.recv().await.unwrap().unwrap().as_text(), Some(LONG.to_string().as_str()));
    }
    // The handler has answered, and may not have asked for the next message yet.
    watch(&server, |memory| memory.assemblies == 0).await;
    let mut short = wireloom::connect(&url).await.unwrap();
    short.send_chunk(vec![b'x'; 20_000], false).await.unwrap();
    short.flush().await.unwrap();
    watch(&server, |memory| memory.assemblies > 0).await;
    let memory = server.stats().memory;
    assert!(memory.total <= 128 << 10, "{memory:?}");
    short.send_chunk(vec![], true).await.unwrap();
    assert_eq!(short.recv().await.unwrap().unwrap().as_text(), Some("20000"));
}

// Bytes after the head stay in the socket until the body is read, so a connection whose handler waits holds little memory.
#[tokio::test]
async fn a_waiting_handler_holds_no_long_input() {
    let received = Arc::new(AtomicUsize::new(0));
    let counter = received.clone();
    let mut config = ServerConfig::default();
    config.tap = Some(Tap::new(move |_, event| {
        if let TapEvent::Received(bytes) = event {
            counter.fetch_add(bytes.len(), Ordering::Relaxed);
        }
    }));
    let handler = |request: Request| async move {
        std::future::pending::<()>().await;
        Response::text(200, request.path())
    };
    let server = Server::bind("127.0.0.1:0").await.unwrap().config(config);
    let (address, server_handle) = (server.local_addr().unwrap(), server.handle());
    tokio::spawn(server.serve(handler));
    let head = &b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 250000\r\n\r\n"[..];
    let body = [head, &[b'x'; 250_000]].concat();
    let pipelined = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".repeat(8_000);
    for bytes in [body, pipelined] {
        let (before, requests) = (received.load(Ordering::Relaxed), server_handle.stats().requests);
        let mut client = TcpStream::connect(address).await.unwrap();
        let _ = tokio::time::timeout(Duration::from_millis(100), client.write_all(&bytes)).await;
        watch(&server_handle, |_| server_handle.stats().requests > requests).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        let held = received.load(Ordering::Relaxed) - before;
        assert!(held <= 40 << 10, "{held} bytes");
    }
}

// Nothing receives the message any more.
#[tokio::test]
async fn a_receiver_that_is_dropped_frees_the_message_that_was_arriving() {
    let arrived = Arc::new(Notify::new());
    let has_arrived = arrived.clone();
    let handler = move |request: Request| {
        let has_arrived = has_arrived.clone();
        async move {
            match request.websocket() {
                Ok(upgrade) => upgrade.on_open(async move |socket| {
                    let (_sender, mut receiver) = socket.split();
                    tokio::select! {
                        received = receiver.recv() => panic!("{received:?}"),
                        () = has_arrived.notified() => {}
                    }
                    drop(receiver);
                    std::future::pending::<()>().await;
                }),
                Err(refusal) => refusal,
            }
        }
    };
    let server = Server::bind("127.0.0.1:0").await.unwrap();
    let (address, server_handle) = (server.local_addr().unwrap(), server.handle());
    tokio::spawn(server.serve(handler));
    let mut client = wireloom::connect(&format!("ws://{address}/")).await.unwrap();
    client.send_chunk(vec![b'x'; 500_000], false).await.unwrap();
    client.flush().await.unwrap();
    watch(&server_handle, |memory| memory.assemblies >= 500_000).await;
    arrived.notify_one();
    watch(&server_handle, |memory| memory.total == memory.connections).await;
}

// A message that is received in chunks takes no more memory than one chunk, however long it is.
#[tokio::test]
async fn a_long_compressed_message_is_received_in_chunks() {
    receive_long_compressed_message(false).await;
}

// The end of a long message may be collected: what was received in chunks takes no memory any more.
#[tokio::test]
async fn the_end_of_a_long_compressed_message_is_received_as_one() {
    receive_long_compressed_message(true).await;
}

/// Receives a compressed message in chunks, and its end in one piece if `collects_end`. It is longer than the memory of the server.
async fn receive_long_compressed_message(collects_end: bool) {
    const LEN: usize = 16 << 20;
    let mut config = ServerConfig::default();
    config.memory_max = MEMORY_MAX;
    config.deflate = Some(DeflateConfig::default());
    config.websocket.core.delivery = wireloom::wireloom_ws::Delivery::Chunks;
    let handler = move |request: Request| async move {
        match request.websocket() {
            Ok(upgrade) => upgrade.on_open(async move |mut socket| {
                let mut len = 0;
                while len < LEN {
                    len += if collects_end && len >= LEN - 100_000 {
                        socket.recv_owned().await.unwrap().unwrap().as_bytes().len()
                    } else {
                        socket.recv().await.unwrap().unwrap().as_bytes().len()
                    };
                }
                socket.send(len.to_string()).await.unwrap();
            }),
            Err(refusal) => refusal,
        }
    };
    let server = Server::bind("127.0.0.1:0").await.unwrap().config(config);
    let address = server.local_addr().unwrap();
    tokio::spawn(server.serve(handler));
    let connector = Connector::new().deflate(DeflateConfig::default());
    let mut client = connector.connect(&format!("ws://{address}/")).await.unwrap();
    assert!(client.is_compressed());
    client.send(vec![b'x'; LEN]).await.unwrap();
    let answer = client.recv().await.unwrap();
    assert_eq!(answer.and_then(|answer| answer.as_text().map(str::to_owned)), Some(LEN.to_string()));
}

// A handler that waits for something else than a message keeps the read buffer: 16 KiB each.
#[tokio::test]
async fn read_buffers_of_waiting_handlers_are_counted() {
    const LEN: usize = 16 << 10;
    // 64 buffers; from 48 on memory is near the limit.
    let mut config = ServerConfig::default();
    config.memory_max = 64 * LEN;
    let is_free = Arc::new(tokio::sync::watch::Sender::new(false));
    let freed = is_free.clone();
    let handler = move |request: Request| {
        let mut freed = freed.subscribe();
        async move {
            match request.websocket() {
                Ok(upgrade) => upgrade.on_open(async move |mut socket| {
                    let _ = socket.recv().await;
                    let _ = freed.wait_for(|is_free| *is_free).await;
                    while let Ok(Some(_)) = socket.recv().await {}
                }),
                Err(refusal) => refusal,
            }
        }
    };
    let server = Server::bind("127.0.0.1:0").await.unwrap().config(config);
    let (address, server_handle) = (server.local_addr().unwrap(), server.handle());
    tokio::spawn(server.serve(handler));
    let (end, mut ends) = tokio::sync::mpsc::unbounded_channel();
    for count in 1..=60 {
        let mut client = wireloom::connect(&format!("ws://{address}/")).await.unwrap();
        client.send("hello").await.unwrap();
        let end = end.clone();
        tokio::spawn(async move {
            while let Ok(Some(_)) = client.recv().await {}
            end.send(client.end().unwrap().code()).unwrap();
        });
        if count <= 40 {
            watch(&server_handle, |memory| memory.read_buffers == count * LEN).await;
        }
    }
    // Handlers that wait for too long lose their connections.
    watch(&server_handle, |memory| memory.evicted >= 13 && memory.total < 48 * LEN).await;
    assert!(server_handle.stats().websockets_open >= 40, "{:?}", server_handle.stats());
    // Handlers that wait for a message have no buffer.
    is_free.send_replace(true);
    watch(&server_handle, |memory| memory.total == memory.connections).await;
    for _ in 0..server_handle.stats().memory.evicted {
        assert_eq!(ends.recv().await, Some(CloseCode::TRY_AGAIN_LATER));
    }
}
