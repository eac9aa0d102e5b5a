//! The progress of a run: one line that is updated on a terminal, a line per second elsewhere.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::recorder::Second;
use super::report::time;
use crate::args::Load;
use crate::terminal::count;

/// Where progress is printed: the standard error.
pub(super) enum Progress {
    Bar(ProgressBar),
    Lines,
    Quiet,
}

impl Progress {
    pub(super) fn new(args: &Load) -> Self {
        if args.output.quiet {
            return Self::Quiet;
        }
        if !io::stderr().is_terminal() {
            return Self::Lines;
        }
        let bar = ProgressBar::new_spinner();
        if let Ok(style) = ProgressStyle::with_template("{spinner} {wide_msg}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(100));
        bar.set_message("connecting");
        Self::Bar(bar)
    }

    pub(super) fn show(&mut self, second: &Second) {
        match self {
            // A terminal may have no more than 80 columns.
            Self::Bar(bar) => bar.set_message(line(second, false)),
            // The standard error may be closed.
            Self::Lines => drop(writeln!(io::stderr(), "{}", line(second, true))),
            Self::Quiet => {}
        }
    }

    /// Removes the line from a terminal.
    pub(super) fn finish(&mut self) {
        if let Self::Bar(bar) = self {
            bar.finish_and_clear();
        }
    }
}

fn line(second: &Second, has_max: bool) -> String {
    let Second { at, errors, connections, .. } = second;
    let max = if has_max { format!("  max {}", time(second.max as f64)) } else { String::new() };
    format!(
        "{:>4.0}s {:>8.0}/s  p50 {}  p99 {}{max}  {}, {}",
        at.as_secs_f64(),
        second.rate(second.received),
        time(second.p50 as f64),
        time(second.p99 as f64),
        count(*errors, "error"),
        count(*connections as u64, "connection"),
    )
}
