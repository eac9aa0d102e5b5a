//! `wireloom load` at the shell: what it measures against servers whose faults are known, its output and its exit codes.

#![allow(clippy::unwrap_used)]
#![cfg(unix)]

mod comparison;
mod echo;
mod failures;
mod merge;
mod output;
mod progress;
mod replay;
mod requests;
mod rooms;
mod scenarios;
mod warnings;

use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use wireloom::{CloseCode, Request, Response, Server, ServerConfig, WebSocket};

const WIRELOOM: &str = env!("CARGO_BIN_EXE_wireloom");

/// Much longer than any step of these tests.
const DEADLINE: Duration = Duration::from_secs(60);

/// The path of a file that is removed at the end of the test.
struct Temporary(String);

impl Temporary {
    fn new(name: &str) -> Self {
        let file = std::env::temp_dir().join(format!("wireloom-load-{}-{name}", std::process::id()));
        Self(file.to_str().unwrap().to_owned())
    }

    fn with(name: &str, content: &str) -> Self {
        let file = Self::new(name);
        std::fs::write(file.path(), content).unwrap();
        file
    }

    fn path(&self) -> &str {
        &self.0
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The fault of the server.
#[derive(Clone, Copy)]
enum Fault {
    None,
    /// Each answer comes this much later.
    Delay(Duration),
    /// The tenth message of each ten is not answered.
    DropTenth,
    /// The last byte of each tenth answer is changed.
    ChangeTenth,
    /// Each tenth answer is sent twice.
    RepeatTenth,
    /// A second after the first message, nothing is answered for a second.
    Pause,
    /// Closed after ten answers.
    Close,
    /// No message is answered.
    NoAnswer,
    /// The handshake takes this much longer.
    SlowHandshake(Duration),
}

async fn serve(fault: Fault, mut socket: WebSocket) -> Result<(), wireloom::WebSocketError> {
    let (mut pause_at, mut has_paused) = (None, false);
    let mut number = 0;
    while let Some(message) = socket.recv_owned().await? {
        number += 1;
        let is_tenth = number % 10 == 0;
        match fault {
            Fault::Delay(delay) => sleep(delay).await,
            Fault::DropTenth if is_tenth => continue,
            Fault::ChangeTenth if is_tenth => {
                let mut bytes = message.as_bytes().to_vec();
                *bytes.last_mut().unwrap() ^= 1;
                socket.send(std::str::from_utf8(&bytes).unwrap()).await?;
                continue;
            }
            Fault::RepeatTenth if is_tenth => socket.send(&message).await?,
            Fault::NoAnswer => continue,
            Fault::Pause => {
                let at = *pause_at.get_or_insert(Instant::now() + Duration::from_secs(1));
                if !has_paused && Instant::now() > at {
                    has_paused = true;
                    sleep(Duration::from_secs(1)).await;
                }
            }
            Fault::Close if number > 10 => return socket.close(CloseCode::TRY_AGAIN_LATER, "enough").await,
            _ => {}
        }
        socket.send(&message).await?;
    }
    Ok(())
}

/// The URL of a server with this fault.
async fn start(fault: Fault) -> String {
    start_with(fault, ServerConfig::default()).await
}

async fn start_with(fault: Fault, config: ServerConfig) -> String {
    let server = Server::bind("127.0.0.1:0").await.unwrap().config(config);
    let url = format!("ws://{}/", server.local_addr().unwrap());
    let handle = move |request: Request| async move {
        if let Fault::SlowHandshake(delay) = fault {
            sleep(delay).await;
        }
        if request.path() == "/none" {
            return Response::not_found();
        }
        match request.websocket() {
            Ok(upgrade) => upgrade.on_open(move |socket| async move {
                let _ = serve(fault, socket).await;
            }),
            Err(refusal) => refusal,
        }
    };
    tokio::spawn(async move { server.serve(handle).await });
    url
}

/// Runs `wireloom load`; returns the exit code, output and errors.
async fn run(args: &[&str]) -> (i32, String, String) {
    let output =
        Command::new(WIRELOOM).arg("load").args(args).stdin(Stdio::null()).kill_on_drop(true).output();
    let output = timeout(DEADLINE, output).await.expect("it ends").unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().expect("no signal"), text(output.stdout), text(output.stderr))
}

const SCHEMA: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src/guides/load.schema.json"));

/// Whether a report follows the schema, with the reason if it does not.
fn validate(report: &Value) -> Result<(), String> {
    let (mut compiler, mut schemas) = (boon::Compiler::new(), boon::Schemas::new());
    compiler.add_resource("load.schema.json", serde_json::from_str(SCHEMA).unwrap()).unwrap();
    let schema = compiler.compile("load.schema.json", &mut schemas).unwrap();
    schemas.validate(report, schema).map_err(|error| error.to_string())
}

/// Runs `wireloom load --json`; returns the exit code and the JSON, which must follow its schema.
async fn measure(url: &str, args: &[&str]) -> (i32, Value) {
    let (code, out, errors) = run(&[&[url, "--json", "--quiet"], args].concat()).await;
    let report: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}{errors}"));
    validate(&report).unwrap_or_else(|error| panic!("{error}: {report}"));
    (code, report)
}

/// Measures until the result is the expected one, at most five times, because other load on the machine may disturb a
/// measurement.
async fn measure_until(url: &str, args: &[&str], is_expected: impl Fn(i32, &Value) -> bool) -> (i32, Value) {
    for _ in 1..5 {
        let (code, report) = measure(url, args).await;
        if is_expected(code, &report) {
            return (code, report);
        }
    }
    measure(url, args).await
}

/// The URL of a server that echoes, and the number of messages that it has received.
async fn start_counting() -> (String, watch::Receiver<u64>) {
    let server = Server::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}/", server.local_addr().unwrap());
    let (counter, count) = watch::channel(0);
    let counter = Arc::new(counter);
    let handle = move |request: Request| {
        let counter = counter.clone();
        async move {
            request.websocket().map(|upgrade| {
                upgrade.on_open(async move |mut socket| {
                    while let Ok(Some(message)) = socket.recv_owned().await {
                        counter.send_modify(|count| *count += 1);
                        let _ = socket.send(&message).await;
                    }
                })
            })
        }
    };
    tokio::spawn(async move { server.serve(handle).await });
    (url, count)
}

/// `wireloom load` with these arguments; its output is piped.
fn spawn(args: &[&str]) -> Child {
    let mut command = Command::new(WIRELOOM);
    command.arg("load").args(args).stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
    command.spawn().unwrap()
}

/// Sends a signal to a process: `-INT`, for example.
async fn signal(child: &Child, name: &str) {
    let id = child.id().unwrap().to_string();
    assert!(Command::new("kill").args([name, &id]).status().await.unwrap().success());
}

/// `wireloom serve`, killed at the end of the test.
struct Serve {
    child: Child,
    /// Such as `127.0.0.1:8080`.
    address: String,
}

impl Serve {
    async fn start() -> Self {
        let mut child = Command::new(WIRELOOM)
            .args(["serve", "--listen", "127.0.0.1:0"])
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = timeout(DEADLINE, lines.next_line()).await.unwrap().unwrap().unwrap();
        let address = line.split_once("://").unwrap().1.trim_end_matches('/').to_owned();
        Self { child, address }
    }

    fn url(&self, scheme: &str, path: &str) -> String {
        format!("{scheme}://{}{path}", self.address)
    }
}
