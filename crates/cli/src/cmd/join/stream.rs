//! The streams that WebSockets are joined to: the standard input and output, sockets, programs.

use std::io::{self, IsTerminal as _};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader, Stdout};
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::process::{Child, ChildStdin, Command};
use tokio::time::{Instant, timeout, timeout_at};
use wireloom::Message;

use super::framing::{self, READ_LEN_MAX};
use crate::args::Framing;
use crate::terminal::VisibleParts;

/// How long a program may take to end after SIGTERM.
pub(super) const TERMINATION_TIMEOUT: Duration = Duration::from_secs(1);

/// How often to look whether a process group has ended, which nothing reports.
#[cfg(unix)]
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The half that is read.
pub(super) type Reader = BufReader<Box<dyn AsyncRead + Send + Unpin>>;

/// A stream of bytes.
pub(in crate::cmd) struct Stream {
    pub(super) reader: Reader,
    pub(super) writer: Writer,
    pub(super) program: Option<Program>,
}

/// The half that is written.
pub(super) enum Writer {
    Standard(Stdout),
    /// The standard output, where it is a terminal.
    Terminal(Stdout, VisibleParts),
    Tcp(OwnedWriteHalf),
    #[cfg(unix)]
    Unix(tokio::net::unix::OwnedWriteHalf),
    Program(ChildStdin),
    /// It was ended.
    Ended,
}

impl Writer {
    fn get(&mut self) -> Option<&mut (dyn AsyncWrite + Send + Unpin)> {
        match self {
            Self::Standard(writer) | Self::Terminal(writer, _) => Some(writer),
            Self::Tcp(writer) => Some(writer),
            #[cfg(unix)]
            Self::Unix(writer) => Some(writer),
            Self::Program(writer) => Some(writer),
            Self::Ended => None,
        }
    }

    /// Writes a message, or a chunk of one. On a terminal its control characters are escaped.
    ///
    /// # Errors
    /// The stream fails.
    pub(super) async fn write(&mut self, framing: Framing, message: &Message<'_>) -> io::Result<()> {
        if let Self::Terminal(writer, visible) = self {
            let mut bytes = Vec::new();
            framing::write(&mut bytes, framing, message).await?;
            writer.write_all(visible.next(&bytes).as_bytes()).await?;
            return writer.flush().await;
        }
        match self.get() {
            Some(writer) => framing::write(writer, framing, message).await,
            None => Ok(()),
        }
    }

    /// Ends it: the other end reads the end of the stream.
    pub(super) async fn end(&mut self) {
        if let Some(writer) = self.get() {
            // A stream that has failed is closed already.
            let _ = writer.shutdown().await;
        }
        // The standard input of a program ends when it is dropped; a socket is still read.
        if matches!(self, Self::Program(_)) {
            *self = Self::Ended;
        }
    }

    pub(super) fn is_socket(&self) -> bool {
        !matches!(self, Self::Standard(_) | Self::Terminal(..) | Self::Program(_) | Self::Ended)
    }

    /// Closes a TCP connection with RST, once the other half is dropped too, so that its peer does not take the end for a regular one.
    pub(super) fn reset(&mut self) {
        if let Self::Tcp(_) = self
            && let Self::Tcp(writer) = std::mem::replace(self, Self::Ended)
        {
            let _ = writer.as_ref().set_zero_linger();
            // Dropping it would send FIN.
            writer.forget();
        }
    }
}

impl Stream {
    fn new(
        reader: impl AsyncRead + Send + Unpin + 'static,
        writer: Writer,
        program: Option<Program>,
    ) -> Self {
        Self { reader: BufReader::with_capacity(READ_LEN_MAX, Box::new(reader)), writer, program }
    }

    /// The standard input and output.
    pub(in crate::cmd) fn standard() -> Self {
        let out = tokio::io::stdout();
        let writer = match io::stdout().is_terminal() {
            true => Writer::Terminal(out, VisibleParts::default()),
            false => Writer::Standard(out),
        };
        Self::new(tokio::io::stdin(), writer, None)
    }

    pub(in crate::cmd) fn tcp(stream: TcpStream) -> Self {
        let _ = stream.set_nodelay(true);
        let (reader, writer) = stream.into_split();
        Self::new(reader, Writer::Tcp(writer), None)
    }

    #[cfg(unix)]
    pub(in crate::cmd) fn unix(stream: tokio::net::UnixStream) -> Self {
        let (reader, writer) = stream.into_split();
        Self::new(reader, Writer::Unix(writer), None)
    }

    /// Closes a TCP connection with RST.
    pub(in crate::cmd) fn reset(mut self) {
        self.writer.reset();
    }

    /// The standard input and output of a command that the shell runs, with these variables in its environment.
    ///
    /// # Errors
    /// The shell cannot be started.
    pub(in crate::cmd) fn program(command: &str, variables: &[(&str, &str)]) -> io::Result<Self> {
        let (shell, option) = if cfg!(windows) { ("cmd", "/C") } else { ("sh", "-c") };
        let mut shell = Command::new(shell);
        shell.arg(option).arg(command).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        for (name, value) in variables {
            // No variable can hold a zero byte.
            shell.env(name, value.replace('\0', ""));
        }
        // Signals reach the commands of a pipeline too.
        #[cfg(unix)]
        shell.process_group(0);
        let mut child = shell.spawn()?;
        let (Some(writer), Some(reader)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::Error::other("the program has no standard input and output"));
        };
        Ok(Self::new(reader, Writer::Program(writer), Some(Program::new(child))))
    }
}

/// A program that runs. Its process group is killed when this is dropped.
pub(super) struct Program {
    /// The shell.
    child: Child,
    /// The process group, which may outlive the shell; `None` once all of it has ended.
    #[cfg(unix)]
    group: Option<rustix::process::Pid>,
}

/// How a program ended, unless it was with 0.
pub(super) struct Failure(pub(super) String);

impl Program {
    fn new(child: Child) -> Self {
        Self {
            #[cfg(unix)]
            group: child.id().and_then(|id| rustix::process::Pid::from_raw(id.cast_signed())),
            child,
        }
    }

    /// Waits until the shell has ended; terminates the process group at the deadline.
    ///
    /// Cancel safe: another call continues.
    pub(super) async fn wait(&mut self, deadline: Instant) -> Result<(), Failure> {
        let status = match timeout_at(deadline, self.child.wait()).await {
            Ok(status) => status,
            Err(_) => {
                self.signal(Signal::Terminate);
                match timeout(TERMINATION_TIMEOUT, self.child.wait()).await {
                    Ok(status) => status,
                    Err(_) => {
                        self.signal(Signal::Kill);
                        self.child.wait().await
                    }
                }
            }
        };
        // The number of a group without processes may become that of another one.
        #[cfg(unix)]
        self.is_group_running();
        match status {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(Failure(describe(status))),
            Err(error) => Err(Failure(error.to_string())),
        }
    }

    /// As [`wait`](Self::wait), and for what the shell has left in the background.
    pub(super) async fn end(&mut self, deadline: Instant) -> Result<(), Failure> {
        let waited = self.wait(deadline).await;
        #[cfg(unix)]
        if timeout_at(deadline, self.group_end()).await.is_err() {
            self.signal(Signal::Terminate);
            if timeout(TERMINATION_TIMEOUT, self.group_end()).await.is_err() {
                self.signal(Signal::Kill);
            }
        }
        waited
    }

    /// Waits until the process group has ended. A process that was not waited for counts as running, so that this may take forever.
    #[cfg(unix)]
    async fn group_end(&mut self) {
        while self.is_group_running() {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    #[cfg(unix)]
    fn is_group_running(&mut self) -> bool {
        self.group = self.group.filter(|&group| rustix::process::test_kill_process_group(group).is_ok());
        self.group.is_some()
    }

    #[cfg(unix)]
    fn signal(&mut self, signal: Signal) {
        if let Some(group) = self.group {
            let signal = match signal {
                Signal::Terminate => rustix::process::Signal::TERM,
                Signal::Kill => rustix::process::Signal::KILL,
            };
            // It may have ended.
            let _ = rustix::process::kill_process_group(group, signal);
        }
    }

    #[cfg(not(unix))]
    fn signal(&mut self, _: Signal) {
        let _ = self.child.start_kill();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.signal(Signal::Kill);
    }
}

#[derive(Clone, Copy)]
enum Signal {
    Terminate,
    Kill,
}

fn describe(status: std::process::ExitStatus) -> String {
    #[cfg(unix)]
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
        return format!("signal {signal}");
    }
    status.code().map_or_else(|| "an unknown exit code".to_owned(), |code| format!("exit code {code}"))
}
