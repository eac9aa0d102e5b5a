//! Operating `wireloom serve`: certificates that are renewed while it runs, and signals that end it.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStderr, Command};
use tokio::time::timeout;
use wireloom::{ClientTls, Connector};

use crate::WIRELOOM;

/// Limit for each step; the expected time is far below.
const DEADLINE: Duration = Duration::from_secs(60);

struct Running {
    child: Child,
    log: Lines<BufReader<ChildStderr>>,
    /// For example `127.0.0.1:1234`: the TLS listener if there is one.
    address: String,
}

impl Running {
    async fn start(args: &[&str]) -> Self {
        let is_tls = args.contains(&"--tls");
        let mut child = Command::new(WIRELOOM)
            .args(["serve", "--listen", "127.0.0.1:0", "--log", "json"])
            .args(is_tls.then_some("--tls-listen=127.0.0.1:0"))
            .args(args)
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let log = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut running = Self { child, log, address: String::new() };
        for _ in 0..1 + usize::from(is_tls) {
            let line = running.logged("listening").await;
            let (_, rest) = line.split_once(r#""address":""#).unwrap();
            running.address = rest.split('"').next().unwrap().to_owned();
        }
        running
    }

    /// The next log line that contains `text`.
    async fn logged(&mut self, text: &str) -> String {
        let line = async {
            loop {
                let line = self.log.next_line().await.unwrap().expect("the log has ended");
                if line.contains(text) {
                    return line;
                }
            }
        };
        timeout(DEADLINE, line).await.unwrap_or_else(|_| panic!("{text} is not logged"))
    }

    fn signal(&self, signal: &str) {
        let pid = self.child.id().unwrap().to_string();
        assert!(std::process::Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }

    async fn exit_code(&mut self) -> Option<i32> {
        timeout(DEADLINE, self.child.wait()).await.unwrap().unwrap().code()
    }
}

/// Writes a new certificate and its key to the files, and returns the certificate.
fn renew(certificate: &Path, key: &Path) -> Vec<u8> {
    let generated = rcgen::generate_simple_self_signed(vec!["127.0.0.1".into()]).unwrap();
    std::fs::write(certificate, generated.cert.pem()).unwrap();
    std::fs::write(key, generated.signing_key.serialize_pem()).unwrap();
    generated.cert.der().to_vec()
}

#[tokio::test]
async fn certificates_are_renewed_while_it_serves() {
    let folder = std::env::temp_dir().join(format!("wireloom-renewed-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (certificate, key) = (folder.join("cert.pem"), folder.join("key.pem"));
    let old = renew(&certificate, &key);
    let files = ["--tls", "--cert", certificate.to_str().unwrap(), "--key", key.to_str().unwrap()];
    let mut running = Running::start(&files).await;
    let url = format!("wss://{}/echo", running.address);
    let trusting = |root: &[u8]| Connector::new().tls(ClientTls::default().with_root(root.to_vec()));
    let mut open = trusting(&old).connect(&url).await.unwrap();

    let new = renew(&certificate, &key);
    running.logged("the certificate was read again").await;
    trusting(&new).connect(&url).await.unwrap();
    let refused = trusting(&old).connect(&url).await.unwrap_err();
    assert!(refused.to_string().starts_with("TLS: "), "{refused}");
    // Open connections stay open.
    open.send("still here").await.unwrap();
    assert_eq!(open.recv().await.unwrap().unwrap().as_text(), Some("still here"));

    std::fs::write(&certificate, "half a certificate").unwrap();
    let warning = running.logged("the old one stays").await;
    assert!(warning.contains("WARN") && warning.contains("cert.pem"), "{warning}");
    trusting(&new).connect(&url).await.unwrap();

    let newest = renew(&certificate, &key);
    running.logged("the certificate was read again").await;
    trusting(&newest).connect(&url).await.unwrap();
    std::fs::remove_dir_all(folder).unwrap();
    running.signal("-TERM");
    assert_eq!(running.exit_code().await, Some(0));
}

/// A client that never answers a Close frame, because it does not read.
async fn connect_without_reading(running: &Running) -> wireloom::WebSocket {
    wireloom::connect(&format!("ws://{}/echo", running.address)).await.unwrap()
}

#[tokio::test]
async fn the_first_signal_waits_for_clients_and_the_second_does_not() {
    for signals in [["-TERM", "-TERM"], ["-INT", "-INT"], ["-TERM", "-INT"]] {
        let mut running = Running::start(&["--grace", "1h", "--close-timeout", "1h"]).await;
        let _client = connect_without_reading(&running).await;
        running.signal(signals[0]);
        running.logged("shutting down").await;
        let refused = async { while tokio::net::TcpStream::connect(&running.address).await.is_ok() {} };
        timeout(DEADLINE, refused).await.expect("the server stops listening");
        assert!(running.child.try_wait().unwrap().is_none());
        running.signal(signals[1]);
        running.logged("disconnecting the remaining clients").await;
        assert_eq!(running.exit_code().await, Some(0), "{signals:?}");
    }
}

#[tokio::test]
async fn clients_are_disconnected_after_the_grace_period() {
    let mut running = Running::start(&["--grace", "500ms", "--close-timeout", "1h"]).await;
    let _client = connect_without_reading(&running).await;
    let started = Instant::now();
    running.signal("-TERM");
    assert_eq!(running.exit_code().await, Some(0));
    assert!(started.elapsed() >= Duration::from_millis(500), "{:?}", started.elapsed());
}
