//! `wireloom connect`: lines out, messages in, both at once; or a script of what to send and to expect.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{self, BufRead as _, BufWriter, IsTerminal as _, Write as _};
use std::task::{Context, Poll};

use tokio::sync::mpsc;
use tokio::time::Instant;
use wireloom::wireloom_ws::{Cause, Initiator};
use wireloom::{
    ClientTls, CloseCode, Connector, DeflateConfig, Error, OwnedMessage, Receiver, Sender, WebSocket,
    WebSocketConfig,
};

use crate::args;
use crate::exit::Exit;

pub(crate) fn run(args: args::Connect) -> Exit {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("wireloom: {error}");
            return Exit::NotBegun;
        }
    };
    runtime.block_on(connect(args))
}

async fn connect(args: args::Connect) -> Exit {
    if args.url.starts_with("http://") || args.url.starts_with("https://") {
        eprintln!("wireloom: the URL of a WebSocket begins with ws:// or wss://");
        return Exit::Usage;
    }
    let connector = match connector(&args) {
        Ok(connector) => connector,
        Err(error) => {
            eprintln!("wireloom: {error}");
            return Exit::Usage;
        }
    };
    match connector.connect(&args.url).await {
        Ok(socket) => {
            if args.verbose > 0 {
                let compressed = if socket.is_compressed() { ", compressed" } else { "" };
                eprintln!("connected{compressed}, subprotocol: {}", socket.subprotocol().unwrap_or("none"));
            }
            Session::new(&args, socket).run().await
        }
        Err(error) => {
            eprintln!("wireloom: {}: {error}", args.url);
            if let Error::Refused(response) = &error
                && args.verbose > 0
            {
                for (name, value) in response.headers() {
                    eprintln!("< {name}: {}", value.escape_ascii());
                }
            }
            if error == Error::Url { Exit::Usage } else { Exit::NotBegun }
        }
    }
}

fn connector(args: &args::Connect) -> Result<Connector, String> {
    let mut config = WebSocketConfig::default();
    config.core.limits.message_len_max = args.messages.max_message;
    config.core.limits.frame_len_max = args.messages.max_message;
    let mut connector = Connector::new().config(config).redirects_max(args.redirects);
    for name in &args.subprotocol {
        connector = connector.subprotocol(name);
    }
    for (name, value) in &args.header {
        connector = connector.header(name, value);
    }
    if let Some(origin) = &args.origin {
        connector = connector.origin(origin);
    }
    if args.messages.compress {
        connector = connector.deflate(DeflateConfig::default());
    }
    if let Some(timeout) = args.timeout {
        connector = connector.connect_timeout(timeout).handshake_timeout(timeout);
    }
    let mut tls = ClientTls::default();
    if args.tls.insecure {
        tls = tls.insecure();
    }
    if let Some(file) = &args.tls.cacert {
        tls = tls.with_root_file(file).map_err(|error| format!("{}: {error}", file.display()))?;
    }
    if let (Some(cert), Some(key)) = (&args.tls.cert, &args.tls.key) {
        tls = tls.with_identity(cert, key).map_err(|error| format!("{}: {error}", cert.display()))?;
    }
    Ok(connector.tls(tls))
}

/// An open connection, and what is still to be done on it.
struct Session<'a> {
    args: &'a args::Connect,
    sender: Sender,
    receiver: Receiver,
    /// What is expected next.
    expected: VecDeque<&'a str>,
    /// Messages to come until the connection is closed.
    remaining: Option<u64>,
    received: u64,
    bytes: u64,
    out: Output,
}

/// What happened.
enum Step {
    Received(OwnedMessage),
    /// Closed, or failed.
    Over(Result<(), Error>),
    Line(String),
    InputEnded,
    Ping,
    TimedOut,
    Interrupted,
}

impl<'a> Session<'a> {
    fn new(args: &'a args::Connect, socket: WebSocket) -> Self {
        let (sender, receiver) = socket.split();
        Self {
            args,
            sender,
            receiver,
            expected: args.script.expect.iter().map(String::as_str).collect(),
            remaining: args.script.count,
            received: 0,
            bytes: 0,
            out: Output::new(),
        }
    }

    async fn run(mut self) -> Exit {
        let begin = Instant::now();
        let exit = match self.talk().await {
            Ok(exit) => exit,
            Err(error) => {
                eprintln!("wireloom: {error}");
                Exit::Cut
            }
        };
        // Whoever reads the output may have gone.
        let _ = self.out.flush();
        if self.args.verbose > 0 {
            if let Some(end) = self.receiver.end() {
                let by = if end.by == Initiator::Local { "by this end" } else { "by the peer" };
                let reason = match &end.cause {
                    Cause::Close { reason, .. } if !reason.is_empty() => {
                        format!(": {}", reason.escape_debug())
                    }
                    _ => String::new(),
                };
                eprintln!("closed {by} with {}{reason}", end.code());
            }
            eprintln!(
                "{} messages, {} bytes received in {:.3} s",
                self.received,
                self.bytes,
                begin.elapsed().as_secs_f64()
            );
        }
        exit
    }

    async fn talk(&mut self) -> Result<Exit, Error> {
        for message in &self.args.script.send {
            send(&mut self.sender, message, self.args).await?;
        }
        let scripted = !self.args.script.send.is_empty()
            || !self.args.script.expect.is_empty()
            || self.args.script.count.is_some();
        let mut lines = (!scripted).then(read_lines);
        if scripted && self.is_satisfied() {
            self.sender.close(CloseCode::NORMAL, "").await?;
        }
        let deadline = self.args.timeout.filter(|_| scripted);
        let deadline = deadline.map(|timeout| Instant::now() + timeout);
        let mut pings =
            self.args.messages.ping.map(|every| tokio::time::interval_at(Instant::now() + every, every));
        loop {
            let step = {
                let Self { receiver, out, .. } = &mut *self;
                tokio::select! {
                    biased;
                    message = poll_fn(|cx| receive(receiver, out, cx)) => match message {
                        Ok(Some(message)) => Step::Received(message),
                        Ok(None) => Step::Over(Ok(())),
                        Err(error) => Step::Over(Err(error)),
                    },
                    line = next_line(&mut lines) => line.map_or(Step::InputEnded, Step::Line),
                    () = next_ping(&mut pings) => Step::Ping,
                    () = passed(deadline) => Step::TimedOut,
                    _ = tokio::signal::ctrl_c() => Step::Interrupted,
                }
            };
            match step {
                Step::Received(message) => {
                    if let Some(exit) = self.take(&message).await? {
                        return Ok(exit);
                    }
                }
                Step::Over(result) => return result.map(|()| self.exit()),
                Step::Line(line) => match send(&mut self.sender, &line, self.args).await {
                    // The peer closed; why is heard by the receiver.
                    Err(Error::Closed) => lines = None,
                    sent => sent?,
                },
                Step::InputEnded => {
                    lines = None;
                    self.sender.close(CloseCode::NORMAL, "").await?;
                }
                Step::Ping => match self.sender.ping(b"wireloom").await {
                    Err(Error::Closed) => pings = None,
                    sent => sent?,
                },
                Step::TimedOut => {
                    eprintln!("wireloom: what was expected did not come in time");
                    self.sender.close(CloseCode::NORMAL, "").await?;
                    return Ok(Exit::Unexpected);
                }
                Step::Interrupted => {
                    self.sender.close(CloseCode::GOING_AWAY, "").await?;
                    return Ok(self.exit());
                }
            }
        }
    }

    /// All that was expected has come.
    fn is_satisfied(&self) -> bool {
        self.expected.is_empty() && self.remaining.is_none_or(|remaining| remaining == 0)
    }

    /// A message has come.
    async fn take(&mut self, message: &OwnedMessage) -> Result<Option<Exit>, Error> {
        if self.remaining == Some(0) {
            // It was on its way when the last one was counted.
            return Ok(None);
        }
        self.received += 1;
        self.bytes += message.as_bytes().len() as u64;
        if self.args.verbose > 1 {
            let kind = if message.as_text().is_some() { "text" } else { "binary" };
            eprintln!("< {kind}, {} bytes", message.as_bytes().len());
        }
        if !self.args.quiet && self.out.line(message.as_bytes()).is_err() {
            // Nobody reads any more.
            self.sender.close(CloseCode::GOING_AWAY, "").await?;
            return Ok(Some(Exit::Done));
        }
        if let Some(expected) = self.expected.pop_front()
            && expected.as_bytes() != message.as_bytes()
        {
            let came = String::from_utf8_lossy(message.as_bytes());
            eprintln!("wireloom: expected {expected:?}, and {came:?} came");
            self.sender.close(CloseCode::NORMAL, "").await?;
            return Ok(Some(Exit::Unexpected));
        }
        let waited = self.remaining.is_some() || !self.args.script.expect.is_empty();
        if let Some(remaining) = &mut self.remaining {
            *remaining -= 1;
        }
        if waited && self.is_satisfied() {
            self.sender.close(CloseCode::NORMAL, "").await?;
        }
        Ok(None)
    }

    /// What the end of the connection means.
    fn exit(&self) -> Exit {
        if !self.is_satisfied() {
            eprintln!("wireloom: the connection was closed before all that was expected had come");
            return Exit::Unexpected;
        }
        match self.receiver.end().map(|end| end.code()) {
            None | Some(CloseCode::NORMAL | CloseCode::GOING_AWAY | CloseCode::NO_STATUS) => Exit::Done,
            // The peer did not answer this end's Close frame: that is no fault to report.
            Some(CloseCode::ABNORMAL) => Exit::Done,
            Some(code) => {
                eprintln!("wireloom: closed with {code}");
                Exit::Closed
            }
        }
    }
}

async fn send(sender: &mut Sender, text: &str, args: &args::Connect) -> Result<(), Error> {
    if args.verbose > 1 {
        eprintln!("> {}, {} bytes", if args.messages.binary { "binary" } else { "text" }, text.len());
    }
    if args.messages.binary { sender.send(text.as_bytes()).await } else { sender.send(text).await }
}

/// The next message; what was printed is shown before this waits.
fn receive(
    receiver: &mut Receiver,
    out: &mut Output,
    cx: &mut Context<'_>,
) -> Poll<Result<Option<OwnedMessage>, Error>> {
    let message = receiver.poll_recv_owned(cx);
    if message.is_pending() {
        // Whoever reads the output may have gone; the next line notices.
        let _ = out.flush();
    }
    message
}

async fn next_line(lines: &mut Option<mpsc::Receiver<String>>) -> Option<String> {
    match lines {
        Some(lines) => lines.recv().await,
        None => std::future::pending().await,
    }
}

async fn next_ping(pings: &mut Option<tokio::time::Interval>) {
    match pings {
        Some(pings) => drop(pings.tick().await),
        None => std::future::pending().await,
    }
}

async fn passed(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// The lines of the standard input. A thread waits for them: a terminal cannot be read without waiting.
fn read_lines() -> mpsc::Receiver<String> {
    let (lines, received) = mpsc::channel(64);
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines() {
            let Ok(line) = line else { return };
            if lines.blocking_send(line).is_err() {
                return;
            }
        }
    });
    received
}

/// The standard output: shown at once on a terminal, and gathered while messages come.
struct Output {
    inner: BufWriter<io::Stdout>,
    is_terminal: bool,
    is_dirty: bool,
}

impl Output {
    fn new() -> Self {
        let is_terminal = io::stdout().is_terminal();
        Self { inner: BufWriter::with_capacity(64 << 10, io::stdout()), is_terminal, is_dirty: false }
    }

    fn line(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.is_dirty = true;
        if self.is_terminal {
            // What a peer sends must not steer the terminal.
            for char in String::from_utf8_lossy(bytes).chars() {
                if char.is_control() && char != '\t' && char != '\n' {
                    write!(self.inner, "{}", char.escape_default())?;
                } else {
                    write!(self.inner, "{char}")?;
                }
            }
        } else {
            self.inner.write_all(bytes)?;
        }
        self.inner.write_all(b"\n")
    }

    fn flush(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.is_dirty) { self.inner.flush() } else { Ok(()) }
    }
}
