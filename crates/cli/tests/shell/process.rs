//! The command as a process: servers that end with the test, and clients with their output.

use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::timeout;

pub(crate) const WIRELOOM: &str = env!("CARGO_BIN_EXE_wireloom");

/// Limit for each step; the expected time is far below.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// Lines of a server's log that are printed when a test fails.
const SHOWN_LINES: usize = 100;

/// `wireloom serve`. It is killed when this is dropped. Its output is read while the test awaits.
pub(crate) struct Server {
    /// For example `127.0.0.1:1234`, one per listener: plain, TLS, metrics.
    pub(crate) addresses: Vec<String>,
    child: Child,
    log: UnboundedReceiver<String>,
    /// The lines that a test has read.
    read: Vec<String>,
}

impl Server {
    /// Starts a server on any port, unless the arguments name one.
    pub(crate) async fn start(args: &[&str]) -> Self {
        Self::spawn(Command::new(WIRELOOM), args).await
    }

    /// Starts a server with these variables in its environment.
    pub(crate) async fn start_with_env<'a>(
        args: &[&str],
        variables: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Self {
        let mut command = Command::new(WIRELOOM);
        command.envs(variables);
        Self::spawn(command, args).await
    }

    /// Starts a server that may open this number of files.
    #[cfg(unix)]
    pub(crate) async fn start_with_files_max(files_max: u32, args: &[&str]) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("ulimit -n {files_max} && exec \"$0\" \"$@\""), WIRELOOM]);
        Self::spawn(command, args).await
    }

    /// Starts a server that may open 100 files, 60 of which are open already: fewer are free than connections are allowed.
    #[cfg(unix)]
    pub(crate) async fn start_with_few_files(args: &[&str]) -> Self {
        let mut command = Command::new("bash");
        let open = "for file in {20..79}; do eval \"exec $file</dev/null\"; done";
        command.args(["-c", &format!("ulimit -n 100; {open}; exec \"$0\" \"$@\""), WIRELOOM]);
        Self::spawn(command, args).await
    }

    /// Starts a server that may write files of this many KiB: a write beyond that fails.
    #[cfg(unix)]
    pub(crate) async fn start_with_file_len_max(kib: u32, args: &[&str]) -> Self {
        let mut command = Command::new("bash");
        command.args(["-c", &format!("trap '' XFSZ; ulimit -f {kib} && exec \"$0\" \"$@\""), WIRELOOM]);
        Self::spawn(command, args).await
    }

    /// Starts a server whose standard error is this; `logged` sees nothing of it.
    pub(crate) async fn start_with_log(args: &[&str], log: Stdio) -> Self {
        Self::spawn_with_log(Command::new(WIRELOOM), args, log).await
    }

    async fn spawn(command: Command, args: &[&str]) -> Self {
        Self::spawn_with_log(command, args, Stdio::piped()).await
    }

    async fn spawn_with_log(mut command: Command, args: &[&str], log: Stdio) -> Self {
        let has = |option: &str| args.contains(&option);
        let listen = !has("--listen") && !has("--port");
        let listen_tls = has("--tls") && !has("--tls-listen");
        let mut child = command
            .arg("serve")
            .args(listen.then_some("--listen=127.0.0.1:0"))
            .args(listen_tls.then_some("--tls-listen=127.0.0.1:0"))
            .args(args)
            .stdout(Stdio::piped())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut log = child.stderr.take().map_or_else(|| unbounded_channel().1, lines_of);
        let mut printed = lines_of(child.stdout.take().unwrap());
        // With `--log json` the log alone has the addresses.
        let announced = if has("json") { &mut log } else { &mut printed };
        let plain = args.iter().filter(|&&arg| arg == "--listen").count().max(1);
        let listeners = plain + ["--tls", "--admin"].iter().filter(|option| has(option)).count();
        let mut addresses = Vec::new();
        while addresses.len() < listeners {
            let line = timeout(DEADLINE, announced.recv()).await.unwrap().expect("the server starts");
            addresses.extend(announced_address(&line));
        }
        Self { addresses, child, log, read: Vec::new() }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("ws://{}{path}", self.addresses[0])
    }

    /// The whole response to a GET request.
    pub(crate) async fn get(&self, path: &str) -> String {
        self.get_from(0, path).await
    }

    /// The whole response of this listener to a GET request.
    pub(crate) async fn get_from(&self, listener: usize, path: &str) -> String {
        let address = &self.addresses[listener];
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    /// The next log line that contains `text`.
    pub(crate) async fn logged(&mut self, text: &str) -> String {
        let line = async {
            loop {
                let line = self.log.recv().await.expect("the log has ended");
                self.read.push(line.clone());
                if line.contains(text) {
                    return line;
                }
            }
        };
        timeout(DEADLINE, line).await.unwrap_or_else(|_| panic!("{text} is not logged"))
    }

    /// The lines of the log that have not been read, until the server ends.
    pub(crate) async fn log_to_end(&mut self) -> Vec<String> {
        let lines = async {
            let mut lines = Vec::new();
            while let Some(line) = self.log.recv().await {
                lines.push(line);
            }
            lines
        };
        timeout(DEADLINE, lines).await.expect("the server ends")
    }

    pub(crate) fn signal(&self, name: &str) {
        signal(&self.child, name);
    }

    /// The number of files and sockets that it has open.
    #[cfg(target_os = "linux")]
    pub(crate) fn open_files(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id().unwrap())).unwrap().count()
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits until the server has ended by itself.
    pub(crate) async fn exit_code(&mut self) -> Option<i32> {
        timeout(DEADLINE, self.child.wait()).await.expect("the server ends").unwrap().code()
    }

    /// Ends the server without a chance to close anything.
    pub(crate) async fn kill(&mut self) {
        self.child.kill().await.unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.read.extend(std::iter::from_fn(|| self.log.try_recv().ok()));
            let hidden = self.read.len().saturating_sub(SHOWN_LINES);
            self.read[hidden..].iter().for_each(|line| eprintln!("{line}"));
        }
    }
}

/// The address in `wireloom 1.0.0 on http://127.0.0.1:1234/`, `admin on http://127.0.0.1:1235/#server` or a line of a JSON log.
fn announced_address(line: &str) -> Option<String> {
    let from_log = line.split_once(r#""address":""#);
    let (_, rest) = from_log.or_else(|| line.split_once(" on http")?.1.split_once("://"))?;
    rest.split(['/', '"']).next().map(str::to_owned)
}

/// The lines of an output of a process. It is read at all times, so that the process never waits for its reader.
fn lines_of(output: impl AsyncRead + Send + Unpin + 'static) -> UnboundedReceiver<String> {
    let (sender, lines) = unbounded_channel();
    tokio::spawn(async move {
        let mut from = BufReader::new(output).lines();
        while let Ok(Some(line)) = from.next_line().await {
            // The test may have ended.
            let _ = sender.send(line);
        }
    });
    lines
}

/// `wireloom connect`, with its output in pipes.
pub(crate) fn connect_command(args: &[&str]) -> Command {
    let mut command = Command::new(WIRELOOM);
    command.arg("connect").args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.kill_on_drop(true);
    command
}

/// Exit code, output, errors.
pub(crate) async fn finish(child: Child) -> (i32, Vec<u8>, String) {
    let output = timeout(DEADLINE, child.wait_with_output()).await.expect("it ends").unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code().expect("no signal"), output.stdout, errors)
}

/// Runs `wireloom connect` with this input: exit code, output, errors.
pub(crate) async fn connect(args: &[&str], input: &str) -> (i32, String, String) {
    let mut child = connect_command(args).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_owned();
    // A command that does not read its input may have ended.
    tokio::spawn(async move { drop(stdin.write_all(input.as_bytes()).await) });
    let (code, out, errors) = finish(child).await;
    (code, String::from_utf8_lossy(&out).into_owned(), errors)
}

/// Sends a signal to a process: `-TERM`, for example.
pub(crate) fn signal(child: &Child, name: &str) {
    let pid = child.id().unwrap().to_string();
    assert!(std::process::Command::new("kill").args([name, &pid]).status().unwrap().success());
}

/// Sends a signal again and again until the process has ended.
pub(crate) async fn end_by(child: &mut Child, name: &str) -> Option<i32> {
    let ended = async {
        loop {
            signal(child, name);
            if let Ok(status) = timeout(Duration::from_millis(100), child.wait()).await {
                return status.unwrap().code();
            }
        }
    };
    timeout(DEADLINE, ended).await.expect("signals end it")
}

/// A new folder for the files of a test, which is removed when this is dropped.
pub(crate) struct Folder(tempfile::TempDir);

impl std::ops::Deref for Folder {
    type Target = std::path::Path;

    fn deref(&self) -> &std::path::Path {
        self.0.path()
    }
}

pub(crate) fn folder(name: &str) -> Folder {
    Folder(tempfile::Builder::new().prefix(&format!("wireloom-{name}-")).tempdir().unwrap())
}
