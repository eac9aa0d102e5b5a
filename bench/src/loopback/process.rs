//! A process that is measured: started on its core, read from `/proc`, and ended when dropped.

use super::cores::Cores;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Raises the soft limit on open files to the hard limit, for this process and those that it starts; returns the limit.
pub(crate) fn files_max() -> usize {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
        // If that is not permitted, the old limit stays.
        if setrlimit(Resource::Nofile, raised).is_ok() {
            limit = raised;
        }
    }
    limit.current.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
}

/// How a server is started.
pub(crate) struct Launch {
    pub(crate) command: Command,
    /// The server's address; `None` if the server prints it.
    pub(crate) address: Option<SocketAddr>,
}

impl From<Command> for Launch {
    fn from(command: Command) -> Self {
        Self { command, address: None }
    }
}

/// A separate process. It ends when its standard input is closed, so that it does not outlive this one.
pub(crate) struct Process {
    child: Child,
}

impl Process {
    /// Starts it on the core for measured processes.
    ///
    /// # Errors
    /// It cannot be started.
    pub(crate) fn start(mut command: Command, cores: &Cores) -> Result<Self, String> {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let child =
            cores.on_measured(|| command.spawn()).map_err(|error| format!("cannot be started: {error}"))?;
        Ok(Self { child })
    }

    /// Starts a server, which prints `listening on ADDRESS…` as its first line, or listens at the address of `launch`.
    ///
    /// # Errors
    /// It cannot be started, or does not listen.
    pub(crate) fn serve(launch: Launch, cores: &Cores) -> Result<(Self, Vec<SocketAddr>), String> {
        let mut process = Self::start(launch.command, cores)?;
        if let Some(address) = launch.address {
            let start = Instant::now();
            while let Err(error) = TcpStream::connect(address) {
                if start.elapsed() > Duration::from_secs(60) || !process.is_running() {
                    return Err(format!("does not listen on {address}: {error}"));
                }
                std::thread::yield_now();
            }
            return Ok((process, vec![address]));
        }
        let mut line = String::new();
        if let Some(output) = &mut process.child.stdout {
            _ = BufReader::new(output).read_line(&mut line);
        }
        let words = line.trim().strip_prefix("listening on ").into_iter().flat_map(str::split_whitespace);
        let addresses: Vec<SocketAddr> = words.map_while(|word| word.parse().ok()).collect();
        if addresses.is_empty() {
            return Err(format!("printed {line:?} instead of its address"));
        }
        Ok((process, addresses))
    }

    /// Waits until it ends; returns its output.
    ///
    /// # Errors
    /// It ended with an error.
    pub(crate) fn output(mut self) -> Result<String, String> {
        let mut printed = String::new();
        if let Some(mut output) = self.child.stdout.take() {
            _ = output.read_to_string(&mut printed);
        }
        match self.child.wait() {
            Ok(status) if status.success() => Ok(printed),
            Ok(status) => Err(format!("ended with {status}")),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Whether it is still running.
    pub(crate) fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// The CPU time that it and its child processes have used so far, user and kernel, in nanosecond resolution.
    pub(crate) fn cpu_time(&self) -> Duration {
        Duration::from_nanos(cpu_time(self.child.id()))
    }

    /// Its private resident memory, in bytes.
    pub(crate) fn memory(&self) -> Option<u64> {
        let rollup = fs::read_to_string(format!("/proc/{}/smaps_rollup", self.child.id())).ok()?;
        let line = rollup.lines().find_map(|line| line.strip_prefix("Anonymous:"))?;
        Some(line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()? << 10)
    }
}

/// The CPU time of a process and its children, in nanoseconds.
fn cpu_time(process: u32) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let each = tasks.map(|task| {
        let read = |name| fs::read_to_string(task.path().join(name)).unwrap_or_default();
        let own = read("schedstat").split_whitespace().next().and_then(|time| time.parse::<u64>().ok());
        // The kernel lists children by the thread that started them.
        let children = read("children");
        let children = children.split_whitespace().filter_map(|id| id.parse().ok()).map(cpu_time);
        own.unwrap_or(0) + children.sum::<u64>()
    });
    each.sum()
}

impl Drop for Process {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}
