//! SIGINT and SIGTERM, which both ask the command to end.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::exit::Exit;

/// How long a command may take to end by itself after the second signal.
const EXIT_TIMEOUT: Duration = Duration::from_secs(3);

/// SIGINT or SIGTERM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    Interrupt,
    #[cfg_attr(not(unix), expect(dead_code, reason = "only Unix has it"))]
    Terminate,
}

impl Signal {
    /// How a command ends that this signal has kept from finishing.
    pub(crate) fn exit(self) -> Exit {
        match self {
            Self::Interrupt => Exit::Interrupted,
            Self::Terminate => Exit::Terminated,
        }
    }
}

/// Receives signals from its creation on, so that none is lost.
pub(crate) struct Signals {
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
    #[cfg(unix)]
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    #[cfg(unix)]
    pub(crate) fn new() -> io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    #[cfg(not(unix))]
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {})
    }

    /// As [`new`](Self::new). The second signal ends the process soon, for a command whose only thread may block forever, such as in a
    /// write to a full pipe.
    pub(crate) fn ending_at_second() -> io::Result<Self> {
        watch(|| {})?;
        Self::new()
    }

    /// Waits for the next signal. It is received although the task has used up its budget (`tokio::task::coop`), as a flood of messages
    /// makes it do.
    pub(crate) async fn recv(&mut self) -> Signal {
        #[cfg(unix)]
        return tokio::task::unconstrained(async {
            tokio::select! {
                _ = self.terminate.recv() => Signal::Terminate,
                _ = self.interrupt.recv() => Signal::Interrupt,
            }
        })
        .await;
        #[cfg(not(unix))]
        match tokio::signal::ctrl_c().await {
            Ok(()) => Signal::Interrupt,
            // Signals are not available.
            Err(_) => std::future::pending().await,
        }
    }
}

/// Becomes true at the first signal: for code outside of a runtime. The second ends the process, as with
/// [`Signals::ending_at_second`].
///
/// # Errors
/// Signals cannot be received.
pub(crate) fn flag() -> io::Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    let received = flag.clone();
    watch(move || received.store(true, Ordering::Relaxed))?;
    Ok(flag)
}

/// Watches the signals in a thread, which calls `first` at the first of them, and ends the process soon after the second.
fn watch(first: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let mut signals = {
        let _entered = runtime.enter();
        Signals::new()?
    };
    thread::spawn(move || {
        runtime.block_on(signals.recv());
        first();
        let second = runtime.block_on(signals.recv());
        thread::sleep(EXIT_TIMEOUT);
        std::process::exit(second.exit() as i32);
    });
    Ok(())
}
