//! The log of `wireloom serve`: `tracing` events, as text or as JSON, on the standard error; the newest lines are kept for the page.
//! Queries, headers and messages may contain secrets and are never logged.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use tracing_appender::non_blocking::{ErrorCounter, WorkerGuard};

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt;
use tracing_subscriber::prelude::*;

use crate::args::{LogFormat, LogLevel};
use crate::terminal;

/// The number of lines that are kept.
const RECENT_MAX: usize = 100;
/// The number of bytes of a line that are kept.
const LINE_LEN_MAX: usize = 512;

static DROPPED: OnceLock<ErrorCounter> = OnceLock::new();

static RECENT: Mutex<Recent> = Mutex::new(Recent { lines: VecDeque::new(), end: 0 });

/// The number of lines that were dropped because the standard error accepted no more.
pub(crate) fn dropped() -> usize {
    DROPPED.get().map_or(0, ErrorCounter::dropped_lines)
}

/// Installs the subscriber. Call it once per process. A thread writes the lines, those that are left when the guard is dropped.
pub(crate) fn init(format: LogFormat, level: LogLevel) -> WorkerGuard {
    let level = match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    let (writer, guard) = terminal::queued_stderr();
    let _ = DROPPED.set(writer.error_counter());
    // The standard error may be closed.
    let log = fmt::layer().with_writer(writer).log_internal_errors(false);
    let log = match format {
        LogFormat::Text => log.with_ansi(terminal::has_colours(&io::stderr())).with_target(false).boxed(),
        LogFormat::Json => log.json().flatten_event(true).boxed(),
    };
    let recent = fmt::layer().with_writer(|| RecentWriter).with_ansi(false).with_target(false);
    tracing_subscriber::registry()
        .with(log)
        // Requests and frames would displace everything else.
        .with(recent.with_filter(LevelFilter::INFO))
        .with(Targets::new().with_default(level).with_target("async_nats", of_library(level)))
        .init();
    guard
}

/// The level of a library whose events the hub logs in its own words.
fn of_library(level: LevelFilter) -> LevelFilter {
    if level == LevelFilter::INFO { LevelFilter::WARN } else { level }
}

/// The kept lines from a position on, and the position after them. Position 0 is the first line of the process.
pub(crate) fn recent_since(position: u64) -> (Vec<String>, u64) {
    recent().since(position)
}

/// The newest lines.
struct Recent {
    lines: VecDeque<String>,
    /// The number of lines so far.
    end: u64,
}

impl Recent {
    fn push(&mut self, line: &str) {
        if self.lines.len() == RECENT_MAX {
            self.lines.pop_front();
        }
        let len = (0..=LINE_LEN_MAX.min(line.len())).rev().find(|&len| line.is_char_boundary(len));
        self.lines.push_back(line[..len.unwrap_or(0)].to_owned());
        self.end += 1;
    }

    fn since(&self, position: u64) -> (Vec<String>, u64) {
        let new = usize::try_from(self.end.saturating_sub(position)).unwrap_or(usize::MAX);
        let old = self.lines.len().saturating_sub(new);
        (self.lines.iter().skip(old).cloned().collect(), self.end)
    }
}

fn recent() -> MutexGuard<'static, Recent> {
    RECENT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The subscriber writes each event by one call.
struct RecentWriter;

impl Write for RecentWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        recent().push(String::from_utf8_lossy(line).trim_end());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_newest_lines() {
        let mut recent = Recent { lines: VecDeque::new(), end: 0 };
        for number in 0..RECENT_MAX + 50 {
            recent.push(&number.to_string());
        }
        let (lines, end) = recent.since(0);
        assert_eq!((lines.len(), lines[0].as_str(), end), (RECENT_MAX, "50", RECENT_MAX as u64 + 50));
        recent.push(&"é".repeat(LINE_LEN_MAX));
        let (lines, end) = recent.since(end);
        assert_eq!((lines.len(), lines[0].len()), (1, LINE_LEN_MAX));
        assert_eq!(recent.since(end).0.len(), 0);
    }
}
