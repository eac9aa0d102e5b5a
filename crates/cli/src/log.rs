//! The log of `wireloom serve`: events of `tracing`, as lines or as JSON, on the standard error. Nothing that may be a
//! secret is put into one: no query, no header, no message.

use std::io;

use tracing::level_filters::LevelFilter;

use crate::args::{LogFormat, LogLevel};
use crate::terminal;

/// Begins to log. Once a process.
pub(crate) fn begin(format: LogFormat, level: LogLevel) {
    let level = match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    let log = tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_max_level(level)
        // Nobody may listen to it any more.
        .log_internal_errors(false);
    match format {
        LogFormat::Text => log.with_ansi(terminal::has_colours(&io::stderr())).with_target(false).init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
}
