//! `wireloom inspect`: a capture, one line per frame. The crate `wireloom-inspect` decodes; this module filters and
//! prints.
//!
//! Layers: `filter`, `follow`, `json`, `line`, `stats`.

mod filter;
mod follow;
mod json;
mod line;
mod stats;

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal as _, Read, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use wireloom_inspect::{Assume, Config, Direction, Entry, Format, Inspector, ReadError};

use crate::args::{InputFormat, Inspect, Proto, Side};
use crate::exit::Exit;
use crate::terminal;
use filter::Filter;
use follow::Follow;
use line::Lines;
use stats::Stats;

/// The longest file of secrets, in bytes.
const KEY_LOG_LEN_MAX: u64 = 64 << 20;

pub(crate) fn run(args: &Inspect) -> Exit {
    if args.input.follow && args.file == Path::new("-") {
        terminal::print_error("--follow needs a file");
        return Exit::Usage;
    }
    let name = args.file.display();
    let input: Box<dyn Read + Send> = match open(args) {
        Ok(input) => input,
        Err(error) => {
            terminal::print_error(format_args!("{name}: {error}"));
            return Exit::NoConnection;
        }
    };
    let mut inspector = Inspector::new(config(args));
    if let Some(path) = &args.input.key_log {
        if let Err(error) = add_secrets(&mut inspector, path) {
            terminal::print_error(format_args!("--key-log {}: {error}", path.display()));
            return Exit::Usage;
        }
    } else if let Some(path) = std::env::var_os("SSLKEYLOGFILE").map(PathBuf::from)
        && let Err(error) = add_secrets(&mut inspector, &path)
        // A program that has not begun a connection has not made it.
        && error.kind() != io::ErrorKind::NotFound
    {
        terminal::print_error(format_args!("SSLKEYLOGFILE {} is not used: {error}", path.display()));
    }
    let mut output = Output::new(args);
    let result = {
        let mut sink = |entry: Entry| output.take(entry);
        wireloom_inspect::read(input, format(args), &mut inspector, &mut sink)
    };
    let finished = output.finish();
    note_skipped(&inspector);
    if output.shown == 0 && result.is_ok() {
        let why = if output.read == 0 { "there is nothing to show" } else { "no entry matches the filters" };
        terminal::print_error(format_args!("{name}: {why}"));
    }
    if let Some(error) = output.failed.or(finished.err()) {
        // `wireloom inspect … | head` is no failure.
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Exit::Success;
        }
        terminal::print_error(format_args!("the output cannot be written: {error}"));
        return Exit::Broken;
    }
    match result {
        Ok(()) => Exit::Success,
        Err(ReadError::Io(error)) => {
            terminal::print_error(format_args!("{name}: {error}"));
            Exit::NoConnection
        }
        Err(error) => {
            terminal::print_error(format_args!("{name}: {error}"));
            Exit::Broken
        }
    }
}

fn open(args: &Inspect) -> io::Result<Box<dyn Read + Send>> {
    if args.file == Path::new("-") {
        return Ok(Box::new(io::stdin()));
    }
    let file = File::open(&args.file)?;
    if file.metadata()?.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    Ok(if args.input.follow { Box::new(Follow::new(file)?) } else { Box::new(file) })
}

fn config(args: &Inspect) -> Config {
    let assume = match args.input.protocol {
        Proto::Auto => Assume::Detect,
        Proto::Ws => Assume::WebSocket,
        Proto::H2 => Assume::Http2,
        Proto::Http1 => Assume::Http1,
    };
    Config { assume, sender: direction(args.input.sender) }
}

fn format(args: &Inspect) -> Option<Format> {
    match args.input.format {
        InputFormat::Auto => None,
        InputFormat::Pcap => Some(Format::Pcap),
        InputFormat::Har => Some(Format::Har),
        InputFormat::Hexdump => Some(Format::Hexdump),
        InputFormat::Raw => Some(Format::Raw),
        InputFormat::Recording => Some(Format::Recording),
    }
}

fn direction(side: Side) -> Direction {
    match side {
        Side::Client => Direction::ToServer,
        Side::Server => Direction::ToClient,
    }
}

fn add_secrets(inspector: &mut Inspector, path: &Path) -> io::Result<()> {
    let mut text = Vec::new();
    File::open(path)?.take(KEY_LOG_LEN_MAX + 1).read_to_end(&mut text)?;
    if text.len() as u64 > KEY_LOG_LEN_MAX {
        return Err(io::Error::other(format!("it is longer than {KEY_LOG_LEN_MAX} bytes")));
    }
    inspector.add_secrets(&text);
    Ok(())
}

/// The date of a time since the Unix epoch; `None` after the year 9999, which a capture may claim and RFC 3339 cannot write.
fn date(time: Duration) -> Option<String> {
    /// The first second of the year 10000.
    const END_S: u64 = 253_402_300_800;
    let date = || humantime::format_rfc3339_micros(SystemTime::UNIX_EPOCH + time).to_string();
    (time.as_secs() < END_S).then(date)
}

/// Prints how many packets were skipped, which may explain why nothing is shown.
fn note_skipped(inspector: &Inspector) {
    let skipped = inspector.skipped();
    let reasons = [
        (skipped.link, "of a link layer that is not known"),
        (skipped.malformed, "malformed, or cut off within the headers"),
        (skipped.fragments, "fragmented by IP"),
    ];
    for (count, reason) in reasons.into_iter().filter(|(count, _)| *count > 0) {
        terminal::print_error(format_args!("{} passed over: {reason}", terminal::count(count, "packet")));
    }
}

/// Filters the entries and prints them.
struct Output<'a> {
    args: &'a Inspect,
    filter: Filter<'a>,
    writer: BufWriter<io::StdoutLock<'static>>,
    /// Whether each line is flushed, for live input.
    flushes: bool,
    first: Option<Duration>,
    /// The entries that were read, and those of them that were shown.
    read: u64,
    shown: u64,
    lines: Lines,
    stats: Stats,
    failed: Option<io::Error>,
}

impl<'a> Output<'a> {
    fn new(args: &'a Inspect) -> Self {
        let stdout = io::stdout();
        Self {
            args,
            filter: Filter::new(&args.filter),
            flushes: args.input.follow || args.file == Path::new("-") || stdout.is_terminal(),
            lines: Lines::new(args, terminal::has_colours(&stdout)),
            writer: BufWriter::new(stdout.lock()),
            first: None,
            read: 0,
            shown: 0,
            stats: Stats::default(),
            failed: None,
        }
    }

    fn take(&mut self, mut entry: Entry) -> ControlFlow<()> {
        self.first = self.first.or(entry.time);
        self.read += 1;
        if !self.filter.matches(&entry) {
            return ControlFlow::Continue(());
        }
        self.shown += 1;
        if !self.args.output.show_secrets {
            entry.mask_secrets();
        }
        let offset = entry.time.zip(self.first).map(|(time, first)| time.saturating_sub(first));
        if self.args.output.stats {
            self.stats.add(&entry);
            return ControlFlow::Continue(());
        }
        let text = if self.args.output.json {
            json::line(&entry, offset, self.args.output.verbose)
        } else {
            self.lines.entry(&entry, offset)
        };
        match self.write(&text) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                self.failed = Some(error);
                ControlFlow::Break(())
            }
        }
    }

    fn write(&mut self, text: &str) -> io::Result<()> {
        self.writer.write_all(text.as_bytes())?;
        if self.flushes { self.writer.flush() } else { Ok(()) }
    }

    fn finish(&mut self) -> io::Result<()> {
        if self.args.output.stats && self.failed.is_none() {
            let text = if self.args.output.json { self.stats.json_lines() } else { self.stats.table() };
            self.writer.write_all(text.as_bytes())?;
        }
        self.writer.flush()
    }
}
