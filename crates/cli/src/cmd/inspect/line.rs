//! Entries as text: a line for each, and below it its problems, fields and whole content.

use std::fmt::Write as _;
use std::time::Duration;

use wireloom_inspect::{Direction, Entry, Payload, ProblemKind, Protocol};

use super::date;
use crate::args::Inspect;
use crate::terminal::{visible, visible_line};

/// The number of characters of text content on a line.
const PREVIEW_CHARS: usize = 100;

/// The number of bytes of binary content on a line.
const PREVIEW_BYTES: usize = 24;

/// The indentation of details below a line.
const INDENT: &str = "            ";

/// The options for lines.
pub(super) struct Lines {
    has_colours: bool,
    verbose: bool,
    full: bool,
    absolute: bool,
}

impl Lines {
    pub(super) fn new(args: &Inspect, has_colours: bool) -> Self {
        let output = &args.output;
        Self { has_colours, verbose: output.verbose, full: output.full, absolute: output.absolute }
    }

    /// The line of an entry and those below it. `offset` is the time since the first entry.
    pub(super) fn entry(&self, entry: &Entry, offset: Option<Duration>) -> String {
        let mut out = String::new();
        let date = entry.time.filter(|_| self.absolute).and_then(date);
        let time = match (date, offset) {
            (Some(date), _) => date,
            (None, Some(offset)) => format!("{:4}.{:06}", offset.as_secs(), offset.subsec_micros()),
            _ => "          -".into(),
        };
        let arrow = match entry.direction {
            Direction::ToServer => '>',
            Direction::ToClient => '<',
        };
        let stream = match entry.stream {
            Some(stream) => format!("{}:{stream}", entry.connection),
            None => entry.connection.to_string(),
        };
        let flags = entry.flags.join(",");
        let name = format!("{} {}", entry.protocol, entry.kind);
        let len = if entry.protocol == Protocol::Tcp && entry.len == 0 {
            String::new()
        } else {
            entry.len.to_string()
        };
        let line = format!("{time} {arrow} {stream:<5} {name:<17} {flags:<16} {len:>7}  {}", preview(entry));
        self.push(&mut out, entry, visible_line(line.trim_end()));
        for problem in &entry.problems {
            let rule = if problem.rule.is_empty() { String::new() } else { format!(" ({})", problem.rule) };
            let text = format!("! {}: {}{rule}", problem.kind.name(), visible_line(&problem.text));
            let text = match problem.kind {
                ProblemKind::Violation => self.paint("31", &text),
                _ => self.paint("33", &text),
            };
            let _ = writeln!(out, "{INDENT}{text}");
        }
        if self.verbose {
            for detail in &entry.details {
                let reference = if detail.reference.is_empty() {
                    String::new()
                } else {
                    format!("  [{}]", detail.reference)
                };
                let text = format!("{}: {}", detail.name, detail.value);
                let _ = writeln!(out, "{INDENT}{}{}", visible_line(&text), self.paint("2", &reference));
            }
        }
        if self.full {
            push_full(&mut out, entry);
        }
        out
    }

    fn push(&self, out: &mut String, entry: &Entry, line: String) {
        let code = match (entry.protocol, entry.direction) {
            (Protocol::Tcp | Protocol::Tls, _) => "2",
            (_, Direction::ToServer) => "36",
            (_, Direction::ToClient) => "32",
        };
        let _ = writeln!(out, "{}", self.paint(code, &line));
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.has_colours && !text.is_empty() {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}

/// The beginning of the content.
fn preview(entry: &Entry) -> String {
    let mut out = match &entry.payload {
        Payload::Text(text) => cut(text, PREVIEW_CHARS),
        Payload::Binary(bytes) => {
            let mut out = String::new();
            for byte in bytes.iter().take(PREVIEW_BYTES) {
                let _ = write!(out, "{byte:02x} ");
            }
            if bytes.len() > PREVIEW_BYTES {
                out.push('…');
            }
            out.trim_end().to_owned()
        }
        Payload::Fields { start, fields } if start.is_empty() => {
            let fields = fields.iter().map(|(name, value)| {
                format!("{}: {}", String::from_utf8_lossy(name), String::from_utf8_lossy(value))
            });
            cut(&fields.collect::<Vec<_>>().join(", "), PREVIEW_CHARS)
        }
        Payload::Fields { start, .. } => cut(start, PREVIEW_CHARS),
        _ => String::new(),
    };
    if let Some(fragments) = entry.fragments {
        out = format!("[{fragments} frames] {out}");
    }
    out
}

fn cut(text: &str, chars: usize) -> String {
    let mut shown: String = text.chars().take(chars).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    shown
}

fn push_full(out: &mut String, entry: &Entry) {
    match &entry.payload {
        Payload::Text(text) => {
            for line in visible(text).lines() {
                let _ = writeln!(out, "{INDENT}| {line}");
            }
        }
        Payload::Binary(bytes) => {
            for (row, bytes) in bytes.chunks(16).enumerate() {
                let hex: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
                let text: String = bytes
                    .iter()
                    .map(|&byte| if byte.is_ascii_graphic() || byte == b' ' { char::from(byte) } else { '.' })
                    .collect();
                let _ = writeln!(out, "{INDENT}| {:08x}  {:<47}  {text}", row * 16, hex.join(" "));
            }
        }
        Payload::Fields { fields, .. } => {
            for (name, value) in fields {
                let line = format!("{}: {}", String::from_utf8_lossy(name), String::from_utf8_lossy(value));
                let _ = writeln!(out, "{INDENT}| {}", visible_line(&line));
            }
        }
        _ => {}
    }
    if let Some(len) = entry.payload_len {
        let _ = writeln!(out, "{INDENT}| … of {len} bytes");
    }
}
