//! The lines that `listen` prints to the standard error. Peers cause most of them, so that none may wait for the reader.

use std::io::Write as _;
use std::sync::Arc;
use std::time::Instant;

use tracing_appender::non_blocking::NonBlocking;

use crate::args::Listen;
use crate::cmd::join::Ended;
use crate::terminal::{count, visible_line};
use crate::throttle::Throttle;

/// Which lines are printed, and where.
#[derive(Clone)]
pub(super) struct Notes {
    errors: NonBlocking,
    is_quiet: bool,
    is_verbose: bool,
    failures: Arc<Throttle>,
}

impl Notes {
    pub(super) fn new(args: &Listen, errors: NonBlocking) -> Self {
        Self { errors, is_quiet: args.quiet, is_verbose: args.verbose, failures: Arc::default() }
    }

    pub(super) fn listening(&self, on: &str) {
        if !self.is_quiet {
            self.print("*", &format!("listening on {on}"));
        }
    }

    pub(super) fn joined(&self, peer: &str) {
        if self.is_verbose {
            self.print("*", &format!("{peer}: joined"));
        }
    }

    /// With `-v` each is printed, otherwise one a second.
    pub(super) fn failed(&self, peer: &str, why: &str) {
        let others = if self.is_verbose { Some(0) } else { self.failures.next(Instant::now()) };
        match others {
            Some(0) => self.error(&format!("{peer}: {why}")),
            Some(others) => self.error(&format!("{peer}: {why} ({} before)", count(others, "other failure"))),
            None => {}
        }
    }

    /// The command ends: failures that were left out have no other line.
    pub(super) fn end(&self) {
        match self.failures.rest() {
            0 => {}
            others => self.error(&format!("{} after the last one shown", count(others, "other failure"))),
        }
    }

    /// Errors are always printed.
    pub(super) fn error(&self, text: &str) {
        self.print("wireloom:", text);
    }

    pub(super) fn ended(&self, peer: &str, ended: &Ended) {
        let how = match ended {
            Ended::Failed(why) | Ended::Broken(why) => return self.failed(peer, why),
            Ended::Stream => "the stream has ended".to_owned(),
            Ended::Closed(code) => format!("closed by the peer with {}", code.value()),
            Ended::Interrupted => "closed, because listen ends".to_owned(),
        };
        if self.is_verbose {
            self.print("*", &format!("{peer}: {how}"));
        }
    }

    fn print(&self, mark: &str, text: &str) {
        let line = format!("{mark} {}\n", visible_line(text));
        let _ = self.errors.clone().write_all(line.as_bytes());
    }
}
