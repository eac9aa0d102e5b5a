//! `wireloom serve` as a process whose memory and descriptors are measured.

use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

/// A running server.
pub(crate) struct Serving {
    child: Child,
    /// The addresses of the listeners without and with TLS.
    pub(crate) addresses: [String; 2],
}

impl Serving {
    pub(crate) async fn start() -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_wireloom"))
            .args(["serve", "--listen", "127.0.0.1:0", "--tls", "--tls-listen", "127.0.0.1:0"])
            // Short, so that stalled clients are disconnected soon; long enough for slow clients on a busy machine.
            .args(["--handshake-timeout", "3s", "--body-timeout", "3s", "--close-timeout", "3s"])
            .args(["--keep-alive", "5s", "--slow-timeout", "5s", "--ping", "5s"])
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut addresses = Vec::new();
        while addresses.len() < 2 {
            let line = lines.next_line().await.unwrap().unwrap();
            if let Some((_, url)) = line.strip_prefix("wireloom ").and_then(|rest| rest.split_once("://")) {
                addresses.push(url.trim_end_matches('/').to_owned());
            }
        }
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Self { child, addresses: addresses.try_into().unwrap() }
    }

    fn proc(&self, name: &str) -> String {
        format!("/proc/{}/{name}", self.child.id().unwrap())
    }

    /// Resident memory, in bytes.
    pub(crate) fn resident(&self) -> u64 {
        let status = std::fs::read_to_string(self.proc("status")).expect("the server runs");
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
    }

    /// Open descriptors without the rings of the workers: each opens one when it is needed, and keeps it.
    pub(crate) fn descriptors(&self) -> usize {
        let is_counted = |entry: &std::io::Result<std::fs::DirEntry>| {
            let target = std::fs::read_link(entry.as_ref().unwrap().path());
            target.is_ok_and(|target| target.to_str() != Some("anon_inode:[io_uring]"))
        };
        std::fs::read_dir(self.proc("fd")).expect("the server runs").filter(is_counted).count()
    }

    /// A metric of `/metrics`.
    pub(crate) async fn metric(&self, name: &str) -> u64 {
        let mut stream = TcpStream::connect(&self.addresses[0]).await.unwrap();
        stream
            .write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            .await
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let name = format!("wireloom_{name} ");
        let line = answer.lines().find_map(|line| line.strip_prefix(&name));
        line.unwrap_or_else(|| panic!("{name} in {answer}")).parse().unwrap()
    }

    /// Sends SIGTERM and checks the exit status.
    pub(crate) async fn end(mut self) {
        let pid = rustix::process::Pid::from_raw(self.child.id().unwrap().cast_signed()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let ended = tokio::time::timeout(Duration::from_secs(30), self.child.wait()).await;
        assert!(ended.expect("it ends").unwrap().success());
    }
}
