//! The progress of a run: one line that is updated on a terminal, a line per second elsewhere.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use tracing_appender::non_blocking::{NonBlocking, WorkerGuard};

use super::recorder::Second;
use super::units::time;
use crate::args::Load;
use crate::terminal::{self, count};

/// Where progress is printed: the standard error.
pub(super) enum Progress {
    Bar(ProgressBar),
    /// Behind a queue, because waiting for the reader would be measured.
    Lines(NonBlocking, WorkerGuard),
    Quiet,
}

impl Progress {
    pub(super) fn new(args: &Load) -> Self {
        if args.output.quiet {
            return Self::Quiet;
        }
        if !io::stderr().is_terminal() {
            let (errors, queued) = terminal::queued_stderr();
            return Self::Lines(errors, queued);
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
            Self::Lines(errors, _) => drop(errors.write_all(format!("{}\n", line(second, true)).as_bytes())),
            Self::Quiet => {}
        }
    }

    /// Removes the line from a terminal, or writes the lines that are left.
    pub(super) fn finish(self) {
        match self {
            Self::Bar(bar) => bar.finish_and_clear(),
            Self::Lines(_, queued) => drop(queued),
            Self::Quiet => {}
        }
    }
}

fn line(second: &Second, has_max: bool) -> String {
    let Second { at, errors, connections, .. } = second;
    let max = if has_max { format!("  max {}", time(second.max as f64)) } else { String::new() };
    // Without a latency there is nothing to show: 0 would be the best.
    let latencies = match second.max {
        0 => "  no latencies".to_owned(),
        _ => format!("  p50 {}  p99 {}{max}", time(second.p50 as f64), time(second.p99 as f64)),
    };
    format!(
        "{:>4.0}s {:>8.0}/s{latencies}  {}, {}",
        at.as_secs_f64(),
        second.rate(second.received),
        count(*errors, "error"),
        count(*connections as u64, "connection"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_without_latencies_shows_none() {
        let second = Second {
            at: Duration::from_secs(3),
            time: Duration::from_secs(1),
            sent: 0,
            received: 5,
            errors: 0,
            connections: 2,
            p50: 0,
            p99: 0,
            max: 0,
        };
        assert_eq!(line(&second, true), "   3s        5/s  no latencies  0 errors, 2 connections");
        let second = Second { p50: 1_000, p99: 2_000, max: 3_000, ..second };
        let shown = "   3s        5/s  p50 1.0µs  p99 2.0µs  max 3.0µs  0 errors, 2 connections";
        assert_eq!(line(&second, true), shown);
    }
}
