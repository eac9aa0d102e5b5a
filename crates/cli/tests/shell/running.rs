//! Operating `wireloom serve`: certificates that are renewed while it runs, and signals that end it.

use std::path::Path;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use wireloom::{ClientTls, Connector, Error};

use crate::process::{DEADLINE, Server, WIRELOOM, connect, folder, signal};

/// Writes a new certificate and its key to the files, and returns the certificate.
fn renew(certificate: &Path, key: &Path) -> Vec<u8> {
    let generated = rcgen::generate_simple_self_signed(vec!["127.0.0.1".into()]).unwrap();
    std::fs::write(certificate, generated.cert.pem()).unwrap();
    std::fs::write(key, generated.signing_key.serialize_pem()).unwrap();
    generated.cert.der().to_vec()
}

#[tokio::test]
async fn certificates_are_renewed_while_it_serves() {
    let folder = folder("renewed");
    let (certificate, key) = (folder.join("cert.pem"), folder.join("key.pem"));
    let old = renew(&certificate, &key);
    let files = ["--tls", "--cert", certificate.to_str().unwrap(), "--key", key.to_str().unwrap()];
    let mut server = Server::start(&files).await;
    let url = format!("wss://{}/echo", server.addresses[1]);
    let trusting = |root: &[u8]| Connector::new().tls(ClientTls::default().with_root(root.to_vec()));
    let mut open = trusting(&old).connect(&url).await.unwrap();

    let new = renew(&certificate, &key);
    server.logged("the certificate was reloaded").await;
    trusting(&new).connect(&url).await.unwrap();
    let refused = trusting(&old).connect(&url).await.unwrap_err();
    assert!(refused.to_string().starts_with("TLS: "), "{refused}");
    // Open connections stay open.
    open.send("still here").await.unwrap();
    assert_eq!(open.recv().await.unwrap().unwrap().as_text(), Some("still here"));

    std::fs::write(&certificate, "half a certificate").unwrap();
    let warning = server.logged("the old one stays").await;
    assert!(warning.contains("WARN") && warning.contains("cert.pem"), "{warning}");
    trusting(&new).connect(&url).await.unwrap();

    let newest = renew(&certificate, &key);
    server.logged("the certificate was reloaded").await;
    trusting(&newest).connect(&url).await.unwrap();
    server.signal("-TERM");
    assert_eq!(server.exit_code().await, Some(0));
}

/// A client that never answers a Close frame, because it does not read.
async fn connect_without_reading(server: &Server) -> wireloom::WebSocket {
    wireloom::connect(&server.url("/echo")).await.unwrap()
}

#[tokio::test]
async fn the_first_signal_waits_for_clients_and_the_second_does_not() {
    for signals in [["-TERM", "-TERM"], ["-INT", "-INT"], ["-TERM", "-INT"]] {
        let mut server = Server::start(&["--grace", "1h", "--close-timeout", "1h"]).await;
        let _client = connect_without_reading(&server).await;
        server.signal(signals[0]);
        server.logged("shutting down").await;
        let refused = async {
            while tokio::net::TcpStream::connect(&server.addresses[0]).await.is_ok() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(DEADLINE, refused).await.expect("the server stops listening");
        assert!(server.is_running());
        server.signal(signals[1]);
        server.logged("disconnecting the remaining clients").await;
        assert_eq!(server.exit_code().await, Some(0), "{signals:?}");
    }
}

#[tokio::test]
async fn clients_are_disconnected_after_the_grace_period() {
    let mut server = Server::start(&["--grace", "500ms", "--close-timeout", "1h"]).await;
    let _client = connect_without_reading(&server).await;
    let started = Instant::now();
    server.signal("-TERM");
    assert_eq!(server.exit_code().await, Some(0));
    assert!(started.elapsed() >= Duration::from_millis(500), "{:?}", started.elapsed());
}

#[cfg(unix)]
#[tokio::test]
async fn without_file_descriptors_the_log_says_so_and_the_metrics_answer() {
    let listen = ["--listen", "127.0.0.1:0"].repeat(3);
    // The clients are silent.
    let args = [&listen[..], &["--admin", "127.0.0.1:0", "--handshake-timeout", "1h"]].concat();
    let mut server = Server::start_with_few_files(&args).await;
    let mut clients = Vec::new();
    for address in &server.addresses[..3] {
        for _ in 0..12 {
            clients.push(tokio::net::TcpStream::connect(address).await.unwrap());
        }
    }
    let warning = server.logged("a connection cannot be accepted").await;
    assert!(warning.contains("WARN"), "{warning}");
    for _ in 0..3 {
        // The other listeners take each descriptor that is free.
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(accept_failures(&server, 3).await > 0);
    }
    // A connection that would keep the last descriptor from probes is not opened.
    let kept = wireloom::connect(&format!("ws://{}/live", server.addresses[3])).await;
    assert!(matches!(&kept, Err(Error::Refused(response)) if response.status() == 503), "{kept:?}");
    let mut idle = TcpStream::connect(&server.addresses[3]).await.unwrap();
    idle.write_all(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    timeout(DEADLINE, idle.read_to_string(&mut answer)).await.expect("it ends").unwrap();
    assert!(timeout(DEADLINE, server.get_from(3, "/livez")).await.unwrap().ends_with("ok\n"));
    // None of them takes the one that is given up for a connection of this listener.
    for _ in 0..100 {
        accept_failures(&server, 3).await;
    }
    if cfg!(target_os = "linux") {
        // Figures of the process are read once a second.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let metrics = server.get_from(3, "/metrics").await;
        assert!(metrics.contains("\nprocess_open_fds 100\n"), "{metrics}");
    }
    // The others wait in the queue, and are accepted when descriptors are free.
    drop(clients);
    assert!(server.get("/healthz").await.ends_with("ok\n"));
}

/// As the metrics of this listener say.
#[cfg(unix)]
async fn accept_failures(server: &Server, listener: usize) -> u64 {
    let metrics = timeout(DEADLINE, server.get_from(listener, "/metrics")).await.unwrap();
    let failures = metrics.lines().find_map(|line| line.strip_prefix("wireloom_accept_failures_total "));
    failures.unwrap_or_else(|| panic!("{metrics}")).parse().unwrap()
}

// Linux looks for a free descriptor before it looks for a connection.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn only_connections_that_wait_for_a_file_descriptor_count_as_failures() {
    const MAX: usize = 100;
    let folder = folder("descriptors");
    let path = folder.join("socket");
    let listen = ["--listen", "127.0.0.1:0"].repeat(3);
    let unix = format!("--listen=unix:{}", path.to_str().unwrap());
    let args = [&listen[..], &[&*unix, "--admin", "127.0.0.1:0", "--handshake-timeout", "1h"]].concat();
    let mut server = Server::start_with_few_files(&args).await;
    let opened = async |before: usize| {
        while server.open_files() == before {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        server.open_files()
    };
    let mut clients = Vec::new();
    let mut open = server.open_files();
    while open < MAX - 1 {
        let address = &server.addresses[clients.len() % 3];
        clients.push(tokio::net::TcpStream::connect(address).await.unwrap());
        open = timeout(DEADLINE, opened(open)).await.expect("it is accepted");
    }
    // The listener that has accepted the last one tries again at once.
    let _last = tokio::net::UnixStream::connect(&path).await.unwrap();
    timeout(DEADLINE, opened(open)).await.expect("it is accepted");
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(accept_failures(&server, 3).await, 0);

    // A descriptor may have become free since.
    while accept_failures(&server, 3).await == 0 {
        clients.push(tokio::net::TcpStream::connect(&server.addresses[0]).await.unwrap());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    server.logged("a connection cannot be accepted").await;
    tokio::time::sleep(Duration::from_millis(400)).await;
    // The server has tried 20 times.
    let failures = accept_failures(&server, 3).await;
    assert!(failures < 5, "{failures}");
    drop(clients);
    assert!(server.get("/healthz").await.ends_with("ok\n"));
}

#[tokio::test]
async fn a_log_that_nobody_reads_does_not_stop_the_server() {
    let (_unread, log) = std::io::pipe().unwrap();
    let mut server = Server::start_with_log(&["--log-level", "trace"], log.into()).await;
    let mut socket = wireloom::connect(&server.url("/echo")).await.unwrap();
    let echoing = async {
        // Each message is two lines: more than the pipe and the queue take.
        for _ in 0..10_000 {
            socket.send("x").await.unwrap();
            assert_eq!(socket.recv().await.unwrap().unwrap().as_text(), Some("x"));
        }
    };
    timeout(DEADLINE, echoing).await.expect("the server answers");
    drop(socket);
    let metrics = timeout(DEADLINE, server.get("/metrics")).await.unwrap();
    let dropped = metrics.lines().find_map(|line| line.strip_prefix("wireloom_log_lines_dropped_total "));
    assert!(dropped.unwrap().parse::<u64>().unwrap() > 0, "{metrics}");
    server.signal("-TERM");
    assert_eq!(server.exit_code().await, Some(0));
}

#[cfg(unix)]
#[tokio::test]
async fn serves_and_connects_at_a_unix_socket() {
    let folder = folder("unix");
    let path = folder.join("socket");
    let path_text = path.to_str().unwrap();
    let listen = format!("--listen=unix:{path_text}");
    let server = Server::start(&["--listen", "127.0.0.1:0", &listen]).await;
    let echo = format!("ws+unix:{path_text}:/echo");
    let answered = connect(&[&echo, "--send", "hello", "--count", "1"], "").await;
    assert_eq!((answered.0, &*answered.1), (0, "hello\n"), "{answered:?}");
    let health = connect(&[&format!("http+unix:{path_text}:/healthz")], "").await;
    assert_eq!((health.0, &*health.1), (0, "ok\n"), "{health:?}");
    drop(server);
}

// A server that drains has closed its listener, so that another one may have taken the path.
#[cfg(unix)]
#[tokio::test]
async fn the_file_of_a_unix_socket_is_removed_with_its_listener_and_never_that_of_another_server() {
    let folder = folder("unix-files");
    let path = folder.join("socket");
    let listen = format!("--listen=unix:{}", path.to_str().unwrap());
    let args = ["--listen", "127.0.0.1:0", &*listen, "--grace", "60s"];
    let mut first = Server::start(&args).await;
    let mut kept = wireloom::connect(&first.url("/echo")).await.unwrap();
    first.signal("-TERM");
    let is_closed = async {
        while tokio::net::UnixStream::connect(&path).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(DEADLINE, is_closed).await.unwrap();
    let mut second = Server::start(&args).await;
    assert!(first.is_running());
    // It answers Close.
    while kept.recv().await.is_ok_and(|message| message.is_some()) {}
    assert_eq!(first.exit_code().await, Some(0));
    assert!(tokio::net::UnixStream::connect(&path).await.is_ok());
    second.kill().await;

    // A server that cannot start leaves no file.
    let taken = Server::start(&[]).await;
    let server = std::process::Command::new(WIRELOOM)
        .args(["serve", &listen, "--admin", &taken.addresses[0]])
        .output()
        .unwrap();
    assert!(!server.status.success() && !path.exists(), "{server:?}");
}

/// A restart would end every connection, and mend no disk.
#[cfg(unix)]
#[tokio::test]
async fn a_server_whose_disk_is_full_is_alive_and_not_healthy() {
    let folder = folder("full");
    let mut server = Server::start_with_file_len_max(4_096, &["--data", folder.to_str().unwrap()]).await;
    assert!(server.get("/healthz").await.starts_with("HTTP/1.1 200 "));
    let url = server.url("/rooms/a");
    let message = "x".repeat(200_000);
    let is_unhealthy = async {
        let mut room = wireloom::connect(&url).await.unwrap();
        while !server.get("/healthz").await.starts_with("HTTP/1.1 503 ") {
            // A refused publication ends the connection to the room.
            if room.send(wireloom::Message::text(message.clone())).await.is_err() {
                room = wireloom::connect(&url).await.unwrap();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(DEADLINE, is_unhealthy).await.expect("the file cannot grow");
    let alive = server.get("/livez").await;
    assert!(alive.starts_with("HTTP/1.1 200 ") && alive.ends_with("\r\n\r\nok\n"), "{alive}");
    // It opens its files again every few seconds.
    server.kill().await;
}

#[cfg(unix)]
#[tokio::test]
async fn a_second_signal_disconnects_the_clients_of_the_hub_at_once() {
    let mut server = Server::start(&["--demo", "--grace", "3600"]).await;
    // It never answers a Close.
    let _room = wireloom::connect(&server.url("/rooms/a")).await.unwrap();
    server.signal("-TERM");
    server.logged("shutting down").await;
    server.signal("-TERM");
    assert_eq!(server.exit_code().await, Some(0));
}

// Its clients would reconnect to the server that they are to leave.
#[cfg(unix)]
#[tokio::test]
async fn it_stops_listening_before_the_clients_of_the_hub_have_left() {
    /// The clients have twice as long.
    const OBSERVED: Duration = Duration::from_secs(1);
    for attempt in 1.. {
        let mut server = Server::start(&["--grace", "1h", "--close-timeout", "1h"]).await;
        // It never answers a Close.
        let _room = wireloom::connect(&server.url("/rooms/a")).await.unwrap();
        let idle = tokio::net::TcpStream::connect(&server.addresses[0]).await.unwrap();
        let signalled = Instant::now();
        server.signal("-TERM");
        server.logged("shutting down").await;
        while signalled.elapsed() < OBSERVED
            && tokio::net::TcpStream::connect(&server.addresses[0]).await.is_ok()
        {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let is_listening = tokio::net::TcpStream::connect(&server.addresses[0]).await.is_ok();
        let observed = signalled.elapsed();
        let is_closed = idle.try_read(&mut [0]).is_ok();
        server.signal("-TERM");
        assert_eq!(server.exit_code().await, Some(0));
        // Connections are served until the clients have left. Either process may have been stopped meanwhile.
        if observed < OBSERVED.mul_f64(1.5) && !is_listening && !is_closed {
            break;
        }
        assert!(attempt < 10, "after {observed:?}: listening {is_listening}, closed {is_closed}");
    }
}

// As from a network file system that has failed. The file of `--hub` is a pipe without a writer.
#[cfg(unix)]
#[tokio::test]
async fn it_ends_while_a_file_is_read_without_an_end() {
    let folder = folder("stalled");
    let file = folder.join("hub.toml");
    std::fs::write(&file, "").unwrap();
    let mut server = Server::start(&["--workers", "4", "--hub", file.to_str().unwrap()]).await;
    std::fs::remove_file(&file).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&file).status().unwrap().success());
    server.signal("-HUP");
    // Opened once the server reads.
    let writer = tokio::task::spawn_blocking(move || std::fs::OpenOptions::new().write(true).open(file));
    let _silent = timeout(DEADLINE, writer).await.expect("the server reads it").unwrap().unwrap();
    server.signal("-TERM");
    server.logged("stopped").await;
    assert_eq!(server.exit_code().await, Some(0));
}

// The same while the hub is built.
#[cfg(unix)]
#[tokio::test]
async fn a_signal_ends_it_while_it_reads_its_first_configuration() {
    let folder = folder("stalled-at-the-start");
    let file = folder.join("hub.toml");
    assert!(std::process::Command::new("mkfifo").arg(&file).status().unwrap().success());
    let mut child = tokio::process::Command::new(WIRELOOM)
        .args(["serve", "--listen", "127.0.0.1:0", "--hub", file.to_str().unwrap()])
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    // Opened once the server reads.
    let writer = tokio::task::spawn_blocking(move || std::fs::OpenOptions::new().write(true).open(file));
    let _silent = timeout(DEADLINE, writer).await.expect("the server reads it").unwrap().unwrap();
    signal(&child, "-TERM");
    let status = timeout(DEADLINE, child.wait()).await.expect("it ends").unwrap();
    assert_eq!(status.code(), Some(143), "{status}");
}

// The first process of a container is ended by signals only if it handles them.
#[cfg(unix)]
#[tokio::test]
async fn a_signal_ends_it_while_it_waits_for_its_broker() {
    let broker = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let nats = format!("nats://{}", broker.local_addr().unwrap());
    let child = tokio::process::Command::new(WIRELOOM)
        .args(["serve", "--listen", "127.0.0.1:0", "--nats", &nats])
        .stderr(std::process::Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let _silent = timeout(DEADLINE, broker.accept()).await.unwrap().unwrap();
    signal(&child, "-TERM");
    let ended = timeout(DEADLINE, child.wait_with_output()).await.expect("it ends").unwrap();
    assert_eq!(ended.status.code(), Some(143), "{ended:?}");
    assert_eq!(String::from_utf8_lossy(&ended.stderr), "wireloom: interrupted before it listened\n");
}

// A load balancer would take a node out that does not answer its probes.
#[tokio::test]
async fn probes_are_answered_while_other_requests_have_all_places() {
    let server = Server::start(&["--admin", "127.0.0.1:0"]).await;
    let live = format!("ws://{}/live", server.addresses[1]);
    let mut kept = Vec::new();
    let refused = loop {
        match timeout(DEADLINE, wireloom::connect(&live)).await.expect("it is answered") {
            Ok(socket) => kept.push(socket),
            Err(error) => break error,
        }
    };
    assert!(matches!(&refused, Error::Refused(response) if response.status() == 503), "{refused:?}");
    assert_eq!(kept.len(), 256);
    let get = async |path| timeout(DEADLINE, server.get_from(1, path)).await.expect("it is answered");
    for _ in 0..100 {
        assert!(get("/livez").await.ends_with("ok\n") && get("/healthz").await.ends_with("ok\n"));
    }
    assert!(get("/metrics").await.contains("\nwireloom_connections_open 0\n"));
    // Connections that are silent have less time than a probe waits.
    let mut silent = Vec::new();
    for _ in 0..70 {
        silent.push(TcpStream::connect(&server.addresses[1]).await.unwrap());
    }
    assert!(get("/livez").await.ends_with("ok\n"));
    kept.pop();
    while wireloom::connect(&live).await.is_err() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

// The process has one limit of each kind, however many addresses it listens on; `--admin` keeps its part of the memory.
#[tokio::test]
async fn limits_are_those_of_all_addresses_together() {
    let listen = ["--listen", "127.0.0.1:0", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
    let limits = ["--tls", "--max-per-address", "1", "--max-memory", "64M"];
    let server = Server::start(&[&listen[..], &limits].concat()).await;
    let _only = wireloom::connect(&server.url("/echo")).await.unwrap();
    let mut refused = TcpStream::connect(&server.addresses[1]).await.unwrap();
    assert_eq!(refused.read(&mut [0]).await.unwrap(), 0, "the address has its connection");
    let metrics = server.get_from(3, "/metrics").await;
    for line in ["memory_max_bytes 44040192", "connections_refused_total 1", "connections_open 1"] {
        assert!(metrics.contains(&format!("\nwireloom_{line}\n")), "{line}: {metrics}");
    }
}
