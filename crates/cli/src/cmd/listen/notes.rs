//! The lines that `listen` prints to the standard error.

use crate::args::Listen;
use crate::cmd::join::Ended;
use crate::terminal::{print_error, visible_line};

/// Which lines are printed.
#[derive(Clone, Copy)]
pub(super) struct Notes {
    is_quiet: bool,
    is_verbose: bool,
}

impl Notes {
    pub(super) fn new(args: &Listen) -> Self {
        Self { is_quiet: args.quiet, is_verbose: args.verbose }
    }

    pub(super) fn listening(self, on: &str) {
        if !self.is_quiet {
            print_note(&format!("listening on {on}"));
        }
    }

    pub(super) fn joined(self, peer: &str) {
        if self.is_verbose {
            print_note(&format!("{peer}: joined"));
        }
    }

    /// Failures are always printed.
    pub(super) fn failed(self, peer: &str, why: &str) {
        print_error(visible_line(&format!("{peer}: {why}")));
    }

    pub(super) fn ended(self, peer: &str, ended: &Ended) {
        let how = match ended {
            Ended::Failed(why) | Ended::Broken(why) => return self.failed(peer, why),
            Ended::Stream => "the stream has ended".to_owned(),
            Ended::Closed(code) => format!("closed by the peer with {}", code.value()),
            Ended::Interrupted => "closed, because listen ends".to_owned(),
        };
        if self.is_verbose {
            print_note(&format!("{peer}: {how}"));
        }
    }
}

fn print_note(text: &str) {
    use std::io::Write as _;
    // The standard error may be closed.
    let _ = writeln!(std::io::stderr(), "* {}", visible_line(text));
}
