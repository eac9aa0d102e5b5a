//! A NATS server for a test, and a link to it that can be cut, stalled and slowed down.

use std::io::Write as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// A NATS server of a test's own.
pub(crate) struct Nats {
    process: Child,
    pub(crate) port: u16,
    monitor: u16,
    store: tempfile::TempDir,
}

/// Limit for the start of a server; the expected time is far below.
const DEADLINE: Duration = Duration::from_secs(60);

/// Asks a server for any free port.
const ANY: &str = "-1";

impl Nats {
    /// `None` where no server is installed.
    pub(crate) fn start() -> Option<Self> {
        Self::start_with(&[])
    }

    /// With these arguments, too.
    pub(crate) fn start_with(args: &[&str]) -> Option<Self> {
        let store = tempfile::tempdir().unwrap();
        let Ok(mut process) = run(ANY, ANY, store.path(), args) else {
            let text = "skipped: tests of several nodes: go install github.com/nats-io/nats-server/v2";
            // Not captured, as what is printed would be.
            let _ = writeln!(std::io::stderr(), "{text}");
            return None;
        };
        let file = store.path().join(format!("nats-server_{}.ports", process.id()));
        let begin = Instant::now();
        loop {
            // The file is not written at once.
            if let Some((port, monitor)) = std::fs::read(&file).ok().and_then(|ports| ports_of(&ports)) {
                return Some(Self { process, port, monitor, store });
            }
            assert_eq!(process.try_wait().unwrap(), None, "nats-server has ended");
            assert!(begin.elapsed() < DEADLINE, "nats-server does not start");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Stops the process where it is, until [`resume`](Self::resume): connections stay, and nothing answers.
    pub(crate) fn stop(&self) {
        self.signal("-STOP");
    }

    pub(crate) fn resume(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        let status = Command::new("kill").args([signal, &self.process.id().to_string()]).status();
        assert!(status.unwrap().success());
    }

    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Starts it again with the same ports.
    pub(crate) fn restart(&mut self) {
        let begin = Instant::now();
        loop {
            self.process =
                run(&self.port.to_string(), &self.monitor.to_string(), self.store.path(), &[]).unwrap();
            while self.process.try_wait().unwrap().is_none() {
                if std::net::TcpStream::connect(("127.0.0.1", self.port)).is_ok() {
                    return;
                }
                assert!(begin.elapsed() < DEADLINE, "nats-server does not start again");
                std::thread::sleep(Duration::from_millis(10));
            }
            // Another program uses one of the ports for the moment.
            assert!(begin.elapsed() < DEADLINE, "nats-server ends at once");
        }
    }

    /// Deletes every stream, as a server without its disk would.
    pub(crate) fn wipe(&mut self) {
        self.store = tempfile::tempdir().unwrap();
    }

    /// How many subscriptions to subjects that begin with `prefix` the server knows.
    pub(crate) async fn subscriptions(&self, prefix: &str) -> usize {
        self.monitored("connz?subs=1").await.matches(&format!("\"{prefix}")).count()
    }

    /// How many bytes it has sent to clients.
    pub(crate) async fn sent_len(&self) -> u64 {
        let answer = self.monitored("varz").await;
        let sent = answer.split("\"out_bytes\":").nth(1).and_then(|rest| rest.split(',').next());
        sent.and_then(|sent| sent.trim().parse().ok()).unwrap_or_else(|| panic!("{answer}"))
    }

    async fn monitored(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.monitor)).await.unwrap();
        stream.write_all(format!("GET /{path} HTTP/1.0\r\n\r\n").as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.0 200"), "{answer}");
        answer
    }
}

impl Drop for Nats {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The ports for clients and for monitoring in the file that a server writes.
fn ports_of(file: &[u8]) -> Option<(u16, u16)> {
    let file: serde_json::Value = serde_json::from_slice(file).ok()?;
    let port = |name: &str| file[name][0].as_str()?.rsplit(':').next()?.parse().ok();
    Some((port("nats")?, port("monitoring")?))
}

fn run(port: &str, monitor: &str, store: &std::path::Path, args: &[&str]) -> std::io::Result<Child> {
    Command::new("nats-server")
        .args(["-a", "127.0.0.1", "-p", port, "-m", monitor, "-js", "-sd"])
        .arg(store)
        .arg("--ports_file_dir")
        .arg(store)
        .args(args)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
}

/// The state of a [`Link`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum LinkState {
    /// Bytes pass at once.
    Clear,
    /// Each chunk takes this long.
    Slow(Duration),
    /// Connections stay, and nothing passes.
    Stalled,
    /// Connections are reset and refused.
    Cut,
    /// Messages to subjects with this prefix are dropped.
    Deaf(&'static str),
}

/// A TCP link to a port of this machine.
pub(crate) struct Link {
    pub(crate) port: u16,
    state: watch::Sender<LinkState>,
}

impl Link {
    pub(crate) async fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (state, changes) = watch::channel(LinkState::Clear);
        let link = Self { port: listener.local_addr().unwrap().port(), state };
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                if *changes.borrow() == LinkState::Cut {
                    continue;
                }
                let Ok(far) = TcpStream::connect(("127.0.0.1", port)).await else { continue };
                let ((near_read, near_write), (far_read, far_write)) = (near.into_split(), far.into_split());
                let (up, down) = (changes.clone(), changes.clone());
                tokio::spawn(async move {
                    // Both directions end together.
                    tokio::select! {
                        () = pump(near_read, far_write, up) => {}
                        () = pump(far_read, near_write, down) => {}
                    }
                });
            }
        });
        link
    }

    pub(crate) fn set(&self, state: LinkState) {
        self.state.send_replace(state);
    }
}

async fn pump(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    mut state: watch::Receiver<LinkState>,
) {
    let mut buffer = vec![0; 16 << 10];
    loop {
        let now = *state.borrow_and_update();
        match now {
            LinkState::Cut => return,
            LinkState::Stalled => {
                if state.changed().await.is_err() {
                    return;
                }
                continue;
            }
            LinkState::Clear | LinkState::Slow(_) | LinkState::Deaf(_) => {}
        }
        let len = tokio::select! {
            read = from.read(&mut buffer) => match read {
                Ok(len) if len > 0 => len,
                _ => return,
            },
            changed = state.changed() => match changed {
                Ok(()) => continue,
                Err(_) => return,
            },
        };
        if let LinkState::Slow(delay) = now {
            tokio::time::sleep(delay).await;
        }
        if let LinkState::Deaf(subject) = now {
            let starts: Vec<_> = buffer[..len]
                .windows(subject.len())
                .enumerate()
                .filter(|(_, at)| *at == subject.as_bytes())
                .map(|(at, _)| at)
                .collect();
            starts.into_iter().for_each(|at| buffer[at] = b'?');
        }
        if to.write_all(&buffer[..len]).await.is_err() {
            return;
        }
    }
}
