//! Redis servers of a test's own.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Limit for the start of a server; the expected time is far below.
const DEADLINE: Duration = Duration::from_secs(60);

pub(crate) struct Redis {
    process: Child,
    pub(crate) port: u16,
    directory: tempfile::TempDir,
    args: Vec<String>,
}

impl Redis {
    /// A server whose log is written at every command, but not synced; `None` where it is not installed.
    pub(crate) fn start() -> Option<Self> {
        Self::start_with(&["--appendonly", "yes", "--appendfsync", "everysec", "--save", ""])
    }

    pub(crate) fn start_with(args: &[&str]) -> Option<Self> {
        Self::start_with_port("--port", args)
    }

    /// `option` takes the port.
    fn start_with_port(option: &str, args: &[&str]) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let args: Vec<_> = args.iter().map(|arg| (*arg).to_owned()).collect();
        loop {
            // Another program may take the port meanwhile; then the server ends.
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            let Ok(mut process) = run(option, port, directory.path(), &args) else {
                let text = "skipped: the tests of Redis: apt-get install redis-server";
                // Not captured, as what is printed would be.
                let _ = writeln!(std::io::stderr(), "{text}");
                return None;
            };
            if wait(&mut process, option, port) {
                return Some(Self { process, port, directory, args });
            }
        }
    }

    /// A sentinel that watches `master`, and replaces it half a second after it is lost. `more` is the rest of its file.
    pub(crate) fn start_sentinel(master: u16, more: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("sentinel.conf");
        let config = format!(
            "sentinel monitor m 127.0.0.1 {master} 1\nsentinel down-after-milliseconds m 500\nsentinel failover-timeout m 5000\n{more}"
        );
        std::fs::write(&file, config).unwrap();
        loop {
            let file = file.display().to_string();
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            // The file comes first.
            let mut process = Command::new("redis-server")
                .args([&file, "--sentinel", "--bind", "127.0.0.1", "--port", &port.to_string()])
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            if wait(&mut process, "--port", port) {
                return Self { process, port, directory, args: Vec::new() };
            }
        }
    }

    /// A cluster in which each server has a part of the slots.
    pub(crate) fn start_cluster(size: usize) -> Option<Vec<Self>> {
        Self::start_cluster_with(size, 0, Duration::from_secs(15))
    }

    /// A cluster of masters and of replicas, one for each of the first masters, which takes over some time after that is lost. The
    /// replicas come last.
    pub(crate) fn start_cluster_with(size: usize, replicas: usize, timeout: Duration) -> Option<Vec<Self>> {
        let (mut nodes, timeout) = (Vec::new(), timeout.as_millis().to_string());
        for _ in 0..size + replicas {
            let bus = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
            let args =
                ["--cluster-enabled", "yes", "--cluster-port", &bus, "--cluster-node-timeout", &timeout];
            let args = [&args[..], &["--appendonly", "yes", "--save", ""]].concat();
            nodes.push((Self::start_with(&args)?, bus));
        }
        let slots = 16_384 / size;
        for (number, (node, _)) in nodes[..size].iter().enumerate() {
            let last = if number + 1 == size { 16_383 } else { (number + 1) * slots - 1 };
            node.command(&format!("CLUSTER ADDSLOTSRANGE {} {last}", number * slots));
            node.command(&format!("CLUSTER SET-CONFIG-EPOCH {}", number + 1));
        }
        for (node, bus) in &nodes[1..] {
            nodes[0].0.command(&format!("CLUSTER MEET 127.0.0.1 {} {bus}", node.port));
        }
        let begin = Instant::now();
        let is_ready = |node: &Self| {
            let info = node.command("CLUSTER INFO");
            info.contains("cluster_state:ok")
                && info.contains(&format!("cluster_known_nodes:{}", size + replicas))
        };
        while !nodes.iter().all(|(node, _)| is_ready(node)) {
            assert!(
                begin.elapsed() < DEADLINE,
                "the cluster is not ready: {}",
                nodes[0].0.command("CLUSTER INFO")
            );
            std::thread::sleep(Duration::from_millis(50));
        }
        for ((master, _), (replica, _)) in nodes.iter().zip(&nodes[size..]) {
            let id = master.command("CLUSTER MYID").lines().nth(1).unwrap().to_owned();
            assert!(replica.command(&format!("CLUSTER REPLICATE {id}")).contains("OK"));
            while !replica.command("INFO replication").contains("master_link_status:up") {
                assert!(begin.elapsed() < DEADLINE, "the replica is not synchronised");
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        Some(nodes.into_iter().map(|(node, _)| node).collect())
    }

    /// A server that speaks TLS alone, and its certificate.
    pub(crate) fn start_tls() -> Option<(Self, std::path::PathBuf)> {
        let directory = tempfile::tempdir().unwrap();
        let certified = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
        let (certificate, key) = (directory.path().join("cert.pem"), directory.path().join("key.pem"));
        std::fs::write(&certificate, certified.cert.pem()).unwrap();
        std::fs::write(&key, certified.signing_key.serialize_pem()).unwrap();
        let path = |path: &std::path::Path| path.to_str().unwrap().to_owned();
        let (cert_arg, key_arg) = (path(&certificate), path(&key));
        let args = [
            "--tls-cert-file",
            &cert_arg,
            "--tls-key-file",
            &key_arg,
            "--tls-auth-clients",
            "no",
            "--save",
            "",
        ];
        let mut server = Self::start_with_port("--tls-port", &args)?;
        let kept = server.directory.path().join("cert.pem");
        std::fs::copy(&certificate, &kept).unwrap();
        server.args.clear();
        Some((server, kept))
    }

    /// The answer to an inline command.
    pub(crate) fn command(&self, command: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.write_all(format!("{command}\r\nQUIT\r\n").as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// How many connections it has accepted, with that of this question.
    pub(crate) fn connections(&self) -> u64 {
        self.stat("total_connections_received")
    }

    /// How many bytes it has sent.
    pub(crate) fn sent_len(&self) -> u64 {
        self.stat("total_net_output_bytes")
    }

    fn stat(&self, name: &str) -> u64 {
        let answer = self.command("INFO stats");
        let stat = answer.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        stat.and_then(|stat| stat.trim().parse().ok()).unwrap_or_else(|| panic!("{answer}"))
    }

    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Starts it again with the same port and data.
    pub(crate) fn restart(&mut self) {
        let begin = Instant::now();
        loop {
            self.process = run("--port", self.port, self.directory.path(), &self.args).unwrap();
            if wait(&mut self.process, "--port", self.port) {
                return;
            }
            assert!(begin.elapsed() < DEADLINE, "redis-server does not start again");
        }
    }

    /// Stops or resumes the process: `-STOP` or `-CONT`.
    pub(crate) fn signal(&self, signal: &str) {
        let status = Command::new("kill").args([signal, &self.process.id().to_string()]).status();
        assert!(status.unwrap().success());
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn run(option: &str, port: u16, directory: &std::path::Path, args: &[String]) -> std::io::Result<Child> {
    Command::new("redis-server")
        // Another option's port is the only one.
        .args(["--port", "0", option, &port.to_string(), "--bind", "127.0.0.1", "--dir"])
        .arg(directory)
        .args(args)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
}

/// Whether the server accepts commands; false if it has ended.
fn wait(process: &mut Child, option: &str, port: u16) -> bool {
    let begin = Instant::now();
    while process.try_wait().unwrap().is_none() {
        if let Ok(stream) = TcpStream::connect(("127.0.0.1", port))
            && (option == "--tls-port" || executes_commands(stream))
        {
            return true;
        }
        assert!(begin.elapsed() < DEADLINE, "the server does not start");
        std::thread::sleep(Duration::from_millis(10));
    }
    false
}

/// False while the server reads its file: it accepts connections then, and refuses commands.
fn executes_commands(mut stream: TcpStream) -> bool {
    let mut answer = [0; 64];
    stream.set_read_timeout(Some(Duration::from_secs(1))).is_ok()
        && stream.write_all(b"PING\r\n").is_ok()
        && stream.read(&mut answer).is_ok_and(|len| len > 0)
        && !answer.starts_with(b"-LOADING")
}
