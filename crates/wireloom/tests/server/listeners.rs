//! Servers over listeners other than the library's own.

use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use wireloom::server::Listener;
use wireloom::{ClientTls, Connector, Request, Response, Server, ServerConfig, ServerTls};

/// Accepts pipes, after these failures.
pub(crate) struct Pipes {
    failures: VecDeque<io::Error>,
    pipes: mpsc::Receiver<DuplexStream>,
}

impl Pipes {
    /// Accepts this one.
    pub(crate) fn one(pipe: DuplexStream) -> Self {
        let (pipes, accepted) = mpsc::channel(1);
        pipes.try_send(pipe).unwrap();
        Self { failures: VecDeque::new(), pipes: accepted }
    }
}

impl Listener for Pipes {
    type Transport = DuplexStream;

    async fn accept(&mut self) -> io::Result<(DuplexStream, SocketAddr)> {
        if let Some(failure) = self.failures.pop_front() {
            return Err(failure);
        }
        match self.pipes.recv().await {
            Some(pipe) => Ok((pipe, (Ipv4Addr::LOCALHOST, 7).into())),
            None => std::future::pending().await,
        }
    }
}

async fn tell_peer(request: Request) -> Response {
    Response::text(200, request.peer().to_string())
}

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";

async fn get(mut stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin) -> String {
    stream.write_all(GET).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

// A client's deadline does not run while it waits for others, and one that has waited for too long is counted.
#[tokio::test(start_paused = true)]
async fn the_wait_for_other_handshakes_is_bounded_by_itself() {
    let second = Duration::from_secs(1);
    let (pipes, accepted) = mpsc::channel(9);
    let mut config = ServerConfig::default();
    config.handshakes_max = 1;
    let server = Server::new(Pipes { failures: VecDeque::new(), pipes: accepted }).config(config);
    let handle = server.handle();
    tokio::spawn(server.serve(tell_peer));
    let mut clients = Vec::new();
    for _ in 0..2 {
        let (client, pipe) = tokio::io::duplex(1 << 10);
        pipes.send(pipe).await.unwrap();
        clients.push(client);
    }
    let [slow, patient] = &mut clients[..] else { unreachable!() };
    tokio::time::sleep(2 * second).await;
    slow.write_all(b"GET").await.unwrap();
    tokio::time::sleep(4 * second).await;
    patient.write_all(GET).await.unwrap();
    let mut answer = String::new();
    patient.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");

    // The first byte of the last one finds another handshake that has just begun, and a third one behind it.
    assert_eq!(handle.stats().connections_refused, 0);
    for len in [3, 3, GET.len()] {
        let (mut client, pipe) = tokio::io::duplex(1 << 10);
        client.write_all(&GET[..len]).await.unwrap();
        pipes.send(pipe).await.unwrap();
        tokio::time::sleep(second).await;
        clients.push(client);
    }
    answer.clear();
    clients.pop().unwrap().read_to_string(&mut answer).await.unwrap();
    assert_eq!((answer.as_str(), handle.stats().connections_refused), ("", 1));
}

#[tokio::test]
async fn a_listener_that_fails_is_asked_again_and_counts_as_one_failure() {
    let (pipes, accepted) = mpsc::channel(1);
    // Too many open files: the process, and the system.
    let failures = [24, 23, 24].map(io::Error::from_raw_os_error).into();
    let server = Server::new(Pipes { failures, pipes: accepted }).config(ServerConfig::default());
    let handle = server.handle();
    let serving = tokio::spawn(server.serve(tell_peer));
    let (client, pipe) = tokio::io::duplex(1_000);
    pipes.send(pipe).await.unwrap();
    let answer = get(client).await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\n127.0.0.1:7"), "{answer}");
    assert_eq!((handle.stats().accept_failed, handle.stats().connections_accepted), (1, 1));
    handle.shut_down();
    serving.await.unwrap().unwrap();
}

// Each would hold up all clients behind it.
#[tokio::test(start_paused = true)]
async fn clients_that_have_left_do_not_delay_others() {
    let (pipes, accepted) = mpsc::channel(1);
    let failures = [io::ErrorKind::ConnectionAborted, io::ErrorKind::ConnectionReset].map(io::Error::from);
    let server = Server::new(Pipes { failures: failures.into(), pipes: accepted });
    let (handle, begin) = (server.handle(), tokio::time::Instant::now());
    tokio::spawn(server.serve(tell_peer));
    let (client, pipe) = tokio::io::duplex(1_000);
    pipes.send(pipe).await.unwrap();
    assert!(get(client).await.ends_with("\r\n\r\n127.0.0.1:7"));
    assert_eq!((handle.stats().accept_failed, begin.elapsed()), (0, Duration::ZERO));
}

/// Fails each time as if a client had left, and for good after a million.
struct Deserted(u32);

impl Listener for Deserted {
    type Transport = DuplexStream;

    async fn accept(&mut self) -> io::Result<(DuplexStream, SocketAddr)> {
        self.0 += 1;
        let for_good = self.0 > 1_000_000;
        Err(if for_good { io::ErrorKind::InvalidInput } else { io::ErrorKind::ConnectionReset }.into())
    }
}

// Time is paused: it passes only while the server waits.
#[tokio::test(start_paused = true)]
async fn a_listener_that_all_clients_have_left_is_left_alone_after_some() {
    let server = Server::new(Deserted(0));
    let handle = server.handle();
    let serving = tokio::spawn(server.serve(tell_peer));
    tokio::time::sleep(Duration::from_secs(1)).await;
    handle.shut_down();
    serving.await.unwrap().expect("it pauses");
    assert_eq!(handle.stats().accept_failed, 1);
}

#[cfg(unix)]
#[tokio::test]
async fn serves_unix_sockets() {
    let dir = std::env::temp_dir().join(format!("wireloom-{}-{}", std::process::id(), fastrand::u64(..)));
    std::fs::create_dir(&dir).unwrap();
    let path = dir.join("socket");
    let config = ServerConfig { connections_per_address_max: Some(1), ..ServerConfig::default() };
    let server = Server::new(tokio::net::UnixListener::bind(&path).unwrap()).config(config);
    tokio::spawn(server.serve(tell_peer));
    // The peers have no address of which this is another connection.
    let _other = tokio::net::UnixStream::connect(&path).await.unwrap();
    let answer = get(tokio::net::UnixStream::connect(&path).await.unwrap()).await;
    assert!(answer.ends_with("\r\n\r\n0.0.0.0:0"), "{answer}");
    std::fs::remove_dir_all(&dir).unwrap();
}

#[cfg(feature = "self-signed")]
#[tokio::test]
async fn serves_tls_over_any_transport() {
    use std::sync::Arc;

    use tokio_rustls::rustls::crypto::ring;
    use tokio_rustls::rustls::{ClientConfig, RootCertStore};
    use wireloom::ServerTls;

    let (tls, signed) = ServerTls::self_signed(&["localhost"]).unwrap();
    let (pipes, accepted) = mpsc::channel(1);
    let server = Server::new(Pipes { failures: VecDeque::new(), pipes: accepted }).tls(tls);
    tokio::spawn(server.serve(tell_peer));
    let (client, pipe) = tokio::io::duplex(1_000);
    pipes.send(pipe).await.unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(signed.der().to_vec().into()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let client = connector.connect("localhost".try_into().unwrap(), client).await.unwrap();
    let answer = get(client).await;
    assert!(answer.ends_with("\r\n\r\n127.0.0.1:7"), "{answer}");
}

// A burst of clients waits in the kernel's queue, even if nothing is accepted.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn the_queue_of_connections_is_long() {
    let limit = std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap();
    let expected = limit.trim().parse::<usize>().unwrap().min(1_024);
    let server = Server::bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().unwrap();
    let mut clients = Vec::new();
    for _ in 0..expected {
        // Beyond the queue a SYN is dropped, and sent again after a second.
        let connecting = tokio::net::TcpStream::connect(address);
        let connected = tokio::time::timeout(std::time::Duration::from_secs(20), connecting).await;
        clients.push(connected.expect("the queue is not full").unwrap());
    }
    drop(server);
}

// A pipe has no readiness: waiting for its first byte must not block the thread for the others.
#[test]
fn silent_clients_of_any_transport_hold_up_no_other() {
    let (report, reported) = std::sync::mpsc::channel();
    // A thread of its own: if the runtime hangs, no timeout of it expires.
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (pipes, accepted) = mpsc::channel(10);
            let server = Server::new(Pipes { failures: VecDeque::new(), pipes: accepted });
            let serving = tokio::spawn(server.serve(tell_peer));
            let mut silent = Vec::new();
            for _ in 0..5 {
                let (client, pipe) = tokio::io::duplex(1_000);
                pipes.send(pipe).await.unwrap();
                silent.push(client);
            }
            let (client, pipe) = tokio::io::duplex(1_000);
            pipes.send(pipe).await.unwrap();
            report.send(get(client).await).unwrap();
            // They are served when they begin to speak.
            for client in silent {
                report.send(get(client).await).unwrap();
            }
            serving.abort();
        });
    });
    for _ in 0..6 {
        let answer =
            reported.recv_timeout(std::time::Duration::from_secs(60)).expect("no answer in a minute");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    }
}

// The permit for a handshake is taken when it begins, whatever the transport can report.
#[cfg(feature = "tls")]
#[tokio::test(start_paused = true)]
async fn silent_clients_hold_up_no_tls_handshake() {
    let config = ServerConfig { handshakes_max: 1, ..ServerConfig::default() };
    let timeout = config.handshake_timeout;
    let (tls, certificate) = ServerTls::self_signed(&["localhost"]).unwrap();
    let (pipes, accepted) = mpsc::channel(10);
    let server = Server::new(Pipes { failures: VecDeque::new(), pipes: accepted }).tls(tls).config(config);
    let handle = server.handle();
    tokio::spawn(server.serve(tell_peer));
    let open = move || {
        let (client, pipe) = tokio::io::duplex(1_000);
        pipes.try_send(pipe).unwrap();
        client
    };
    let silent = [open(), open()];
    tokio::time::sleep(timeout / 10).await;
    let connector = Connector::new().tls(ClientTls::default().with_root(certificate.der()));
    let plain = open();
    let connector = connector.dial_with(move |_, _| std::future::ready(Ok(open())));
    let request = connector.request(wireloom::client::Request::get("https://localhost/"));
    let response = tokio::time::timeout(timeout / 2, request).await.expect("no other handshake has begun");
    assert_eq!(response.unwrap().status, 200);
    assert!(get(plain).await.starts_with("HTTP/1.1 400 "));
    drop(silent);
    wait_for(|| handle.stats().connections_open == 0).await;
    assert_eq!(handle.stats().memory.total, 0);
}

/// Has always another client, who has left: at most a thousand.
struct Backlog(std::sync::Arc<std::sync::atomic::AtomicUsize>);

impl Listener for Backlog {
    type Transport = DuplexStream;

    async fn accept(&mut self) -> io::Result<(DuplexStream, SocketAddr)> {
        if self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 1_000 {
            std::future::pending::<()>().await;
        }
        Ok((tokio::io::duplex(1).1, (Ipv4Addr::LOCALHOST, 7).into()))
    }
}

#[tokio::test]
async fn listeners_that_wait_for_a_place_take_turns() {
    let config = ServerConfig { connections_max: 1, ..ServerConfig::default() };
    let accepted = std::sync::Arc::default();
    let busy = Server::new(Backlog(std::sync::Arc::clone(&accepted))).config(config.clone());
    let handle = busy.handle();
    let (client, pipe) = tokio::io::duplex(1_000);
    let other = Server::new(Pipes::one(pipe)).sharing(&handle).config(config);
    let serving = [tokio::spawn(busy.serve(tell_peer)), tokio::spawn(other.serve(tell_peer))];
    assert!(get(client).await.starts_with("HTTP/1.1 200"));
    let before = accepted.load(std::sync::atomic::Ordering::Relaxed);
    assert!(before < 100, "{before} of the other listener were first");
    serving.iter().for_each(tokio::task::JoinHandle::abort);
}

// Limits are those of the process, however many listeners it has.
#[tokio::test]
async fn servers_that_share_a_handle_share_limits_statistics_and_shutdown() {
    let config = ServerConfig {
        connections_max: 2,
        connections_per_address_max: Some(1),
        memory_max: 1 << 20,
        ..ServerConfig::default()
    };
    let first = Server::bind("127.0.0.1:0").await.unwrap().config(config.clone());
    let handle = first.handle();
    let second = Server::bind("127.0.0.1:0").await.unwrap().sharing(&handle).config(config);
    let addresses = [first.local_addr().unwrap(), second.local_addr().unwrap()];
    let mut serving = [first, second].map(|server| tokio::spawn(server.serve(tell_peer)));

    // One address has one connection, by whichever listener.
    let held = TcpStream::connect(addresses[0]).await.unwrap();
    wait_for(|| handle.stats().connections_open == 1).await;
    let mut refused = TcpStream::connect(addresses[1]).await.unwrap();
    assert_eq!(refused.read(&mut [0]).await.unwrap(), 0);
    let stats = handle.stats();
    assert_eq!((stats.connections_accepted, stats.connections_refused, stats.memory.max), (2, 1, 1 << 20));

    // A server that is dropped leaves the others their connections.
    serving[1].abort();
    assert!((&mut serving[1]).await.unwrap_err().is_cancelled());
    assert!(get(held).await.starts_with("HTTP/1.1 200 "));
    handle.shut_down();
    (&mut serving[0]).await.unwrap().unwrap();
}

#[tokio::test]
async fn servers_that_share_a_handle_accept_one_connection_where_one_is_allowed() {
    let config = ServerConfig { connections_max: 1, ..ServerConfig::default() };
    let first = Server::bind("127.0.0.1:0").await.unwrap().config(config.clone());
    let handle = first.handle();
    let second = Server::bind("127.0.0.1:0").await.unwrap().config(config).sharing(&handle);
    let addresses = [first.local_addr().unwrap(), second.local_addr().unwrap()];
    let _serving = [first, second].map(|server| tokio::spawn(server.serve(tell_peer)));
    // Both listeners wait for a connection when one takes the place.
    tokio::time::sleep(Duration::from_millis(50)).await;
    for (taken, other) in [(0, 1), (1, 0)] {
        let held = TcpStream::connect(addresses[taken]).await.unwrap();
        wait_for(|| handle.stats().connections_open == 1).await;
        let mut waiting = TcpStream::connect(addresses[other]).await.unwrap();
        waiting.write_all(GET).await.unwrap();
        let accepted = handle.stats().connections_accepted;
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(handle.stats().connections_accepted, accepted, "it waits in the queue of the kernel");
        drop(held);
        let mut answer = String::new();
        waiting.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        wait_for(|| handle.stats().connections_open == 0).await;
    }
}

async fn wait_for(mut is_reached: impl FnMut() -> bool) {
    let reached = async {
        while !is_reached() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), reached).await.expect("it is reached");
}
