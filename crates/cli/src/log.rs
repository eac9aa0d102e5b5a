//! The log of `wireloom serve`: `tracing` events, as text or as JSON, on the standard error. Queries, headers and messages may contain
//! secrets and are never logged.

use std::io;

use tracing::level_filters::LevelFilter;

use crate::args::{LogFormat, LogLevel};
use crate::terminal;

/// Installs the subscriber. Call it once per process.
pub(crate) fn init(format: LogFormat, level: LogLevel) {
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
        // The standard error may be closed.
        .log_internal_errors(false);
    match format {
        LogFormat::Text => log.with_ansi(terminal::has_colours(&io::stderr())).with_target(false).init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
}
