//! The streams that WebSockets are joined to: the standard input and output, sockets, programs.

use std::io;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader, Stdout};
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::process::{Child, ChildStdin, Command};
use tokio::time::timeout;

use super::framing::READ_LEN_MAX;

/// How long a program may take to end after SIGTERM.
const TERMINATION_TIMEOUT: Duration = Duration::from_secs(1);

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
    Tcp(OwnedWriteHalf),
    #[cfg(unix)]
    Unix(tokio::net::unix::OwnedWriteHalf),
    Program(ChildStdin),
    /// It was ended.
    Ended,
}

impl Writer {
    pub(super) fn get(&mut self) -> Option<&mut (dyn AsyncWrite + Send + Unpin)> {
        match self {
            Self::Standard(writer) => Some(writer),
            Self::Tcp(writer) => Some(writer),
            #[cfg(unix)]
            Self::Unix(writer) => Some(writer),
            Self::Program(writer) => Some(writer),
            Self::Ended => None,
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
        !matches!(self, Self::Standard(_) | Self::Program(_) | Self::Ended)
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
        Self::new(tokio::io::stdin(), Writer::Standard(tokio::io::stdout()), None)
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
        Ok(Self::new(reader, Writer::Program(writer), Some(Program { child })))
    }
}

/// A program that runs. Its process group is killed when this is dropped.
pub(super) struct Program {
    child: Child,
}

/// How a program ended, unless it was with 0.
pub(super) struct Failure(pub(super) String);

impl Program {
    /// Waits until it has ended; terminates it after `grace`.
    ///
    /// Cancel safe: another call continues.
    pub(super) async fn wait(&mut self, grace: Duration) -> Result<(), Failure> {
        let status = match timeout(grace, self.child.wait()).await {
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
        match status {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(Failure(describe(status))),
            Err(error) => Err(Failure(error.to_string())),
        }
    }

    #[cfg(unix)]
    fn signal(&mut self, signal: Signal) {
        use rustix::process::{Pid, kill_process_group};
        let pid = self.child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        if let Some(group) = pid {
            let signal = match signal {
                Signal::Terminate => rustix::process::Signal::TERM,
                Signal::Kill => rustix::process::Signal::KILL,
            };
            // It may have ended.
            let _ = kill_process_group(group, signal);
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
