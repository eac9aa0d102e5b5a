//! The input formats: detection, and a reader for each.

mod har;
mod hexdump;
mod lines;
mod pcap;
mod recording;

use std::fmt;
use std::io::{self, BufRead, BufReader, Read};
use std::ops::ControlFlow;
use std::time::Duration;

use crate::entry::{Direction, Entry, Protocol};
use crate::inspector::Inspector;

/// A format of input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Format {
    /// pcap or pcapng.
    Pcap,
    /// HTTP Archive 1.2, with the messages that Chromium adds to it.
    Har,
    /// Lines of hexadecimal digits.
    Hexdump,
    /// The bytes of one direction of one connection.
    Raw,
    /// A recording: see [`crate::recording`].
    Recording,
}

/// Why reading ended before the end of the input.
#[derive(Debug)]
#[non_exhaustive]
pub enum ReadError {
    /// The input cannot be read.
    Io(io::Error),
    /// The input ends within a block, a line or a value.
    Truncated {
        /// The offset where that begins, in bytes.
        offset: u64,
    },
    /// Without a format that the caller chose: the input is in none of them.
    Unrecognized,
    /// The input breaks its format.
    Malformed {
        /// The offset, in bytes.
        offset: u64,
        /// The error, as a text.
        reason: String,
    },
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::Truncated { offset } => {
                write!(f, "the input is cut off: what begins at byte {offset} is incomplete")
            }
            Self::Unrecognized => f.write_str(
                "the format is not recognized: it is no pcap, pcapng, HAR, hexdump or recording, and not the bytes of \
                 HTTP or WebSocket",
            ),
            Self::Malformed { offset, reason } => {
                write!(f, "the input is malformed at byte {offset}: {reason}")
            }
        }
    }
}

impl std::error::Error for ReadError {}

impl From<io::Error> for ReadError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Receives the entries in order; [`ControlFlow::Break`] stops reading.
pub type Sink<'a> = dyn FnMut(Entry) -> ControlFlow<()> + 'a;

/// Passes bytes to the inspector in chunks, and the entries of each to the sink, so that few are held.
fn handle_bytes(
    inspector: &mut Inspector,
    number: u64,
    time: Option<Duration>,
    direction: Direction,
    bytes: &[u8],
    sink: &mut Sink<'_>,
) -> ControlFlow<()> {
    let mut entries = Vec::new();
    for chunk in bytes.chunks(64 << 10) {
        inspector.handle_bytes(number, time, direction, chunk, &mut entries);
        flush(&mut entries, sink)?;
    }
    ControlFlow::Continue(())
}

/// Passes the entries to the sink.
fn flush(entries: &mut Vec<Entry>, sink: &mut Sink<'_>) -> ControlFlow<()> {
    entries.drain(..).try_for_each(sink)
}

/// Reads the whole input and reports its entries. Without a `format`, [`detect`] chooses it.
///
/// ```
/// use std::ops::ControlFlow;
/// use wireloom_inspect::{Config, Inspector, Payload, read};
///
/// // RFC 6455 §5.7: a single-frame masked text message.
/// let bytes = [0x81, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58];
/// let mut inspector = Inspector::new(Config::default());
/// let mut payloads = Vec::new();
/// read(&bytes[..], None, &mut inspector, &mut |entry| {
///     payloads.push(entry.payload);
///     ControlFlow::Continue(())
/// })?;
/// assert_eq!(payloads, [Payload::Text("Hello".into())]);
/// # Ok::<(), wireloom_inspect::ReadError>(())
/// ```
///
/// # Errors
/// [`ReadError`] if the input cannot be read, is truncated or is malformed. Everything before that point has
/// been reported.
pub fn read(
    input: impl Read + Send,
    format: Option<Format>,
    inspector: &mut Inspector,
    sink: &mut Sink<'_>,
) -> Result<(), ReadError> {
    let mut input = BufReader::with_capacity(64 << 10, input);
    let mut mark = Vec::new();
    // The mark may arrive before the text, in parts.
    while mark.len() < BYTE_ORDER_MARK.len() && input.fill_buf()?.first() == BYTE_ORDER_MARK.get(mark.len()) {
        mark.push(BYTE_ORDER_MARK[mark.len()]);
        input.consume(1);
    }
    let mut is_text = mark == BYTE_ORDER_MARK;
    if is_text {
        let format = match format {
            Some(format) => format,
            None => detect(input.fill_buf()?),
        };
        is_text = !matches!(format, Format::Pcap | Format::Raw);
    }
    if is_text {
        mark.clear();
    }
    let mut input = io::Cursor::new(mark).chain(input);
    let start = input.fill_buf()?;
    if format.is_none() && start.starts_with(&[0x1f, 0x8b]) {
        let reason = "it is compressed by gzip: decompress it first".into();
        return Err(ReadError::Malformed { offset: 0, reason });
    }
    let is_empty = start.is_empty();
    let mut is_recognized = false;
    let sink = &mut |entry: Entry| {
        is_recognized |= entry.protocol != Protocol::Unknown;
        sink(entry)
    };
    let detected = format.unwrap_or_else(|| detect(start));
    let result = match detected {
        Format::Pcap => pcap::read(&mut input, inspector, sink),
        Format::Har => har::read(&mut input, inspector, sink),
        Format::Hexdump => hexdump::read(&mut input, inspector, sink),
        Format::Raw => raw(&mut input, inspector, sink),
        Format::Recording => recording::read(&mut input, inspector, sink),
    };
    let mut entries = Vec::new();
    inspector.finish(&mut entries);
    let _ = flush(&mut entries, sink);
    // A capture of another program's packets, or an archive without entries, is in a known format.
    let is_unknown = matches!(detected, Format::Raw | Format::Hexdump);
    if format.is_none() && is_unknown && !is_empty && !is_recognized && result.is_ok() {
        return Err(ReadError::Unrecognized);
    }
    result
}

/// The byte order mark that some editors write at the beginning of UTF-8 text.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Detects the format of an input by its first bytes.
pub fn detect(start: &[u8]) -> Format {
    const PCAP: [[u8; 4]; 7] = [
        [0xa1, 0xb2, 0xc3, 0xd4],
        [0xd4, 0xc3, 0xb2, 0xa1],
        [0xa1, 0xb2, 0x3c, 0x4d],
        [0x4d, 0x3c, 0xb2, 0xa1],
        [0xa1, 0xb2, 0xcd, 0x34],
        [0x34, 0xcd, 0xb2, 0xa1],
        [0x0a, 0x0d, 0x0d, 0x0a],
    ];
    if start.first_chunk().is_some_and(|magic| PCAP.contains(magic)) {
        return Format::Pcap;
    }
    let text = start.strip_prefix(BYTE_ORDER_MARK).unwrap_or(start);
    let is_hexdump = hexdump::is_hexdump(text);
    let text = text.trim_ascii_start();
    if text.starts_with(crate::recording::MAGIC.as_bytes()) {
        return Format::Recording;
    }
    if text.starts_with(b"{") {
        return Format::Har;
    }
    if is_hexdump { Format::Hexdump } else { Format::Raw }
}

/// Reads raw bytes.
fn raw(input: &mut impl BufRead, inspector: &mut Inspector, sink: &mut Sink<'_>) -> Result<(), ReadError> {
    let sender = inspector.sender();
    loop {
        let bytes = input.fill_buf()?;
        let len = bytes.len();
        if len == 0 || handle_bytes(inspector, 0, None, sender, bytes, sink).is_break() {
            return Ok(());
        }
        input.consume(len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspector::Config;

    /// A program that writes a text in UTF-8 may write the byte order mark by itself.
    #[test]
    fn a_byte_order_mark_may_arrive_alone() {
        for cut in 1..=BYTE_ORDER_MARK.len() {
            let input = (&BYTE_ORDER_MARK[..cut])
                .chain(&BYTE_ORDER_MARK[cut..])
                .chain(&b"81 85 37 fa 21 3d 7f 9f 4d 51 58\n"[..]);
            let mut kinds = Vec::new();
            let mut inspector = Inspector::new(Config::default());
            read(input, None, &mut inspector, &mut |entry| {
                kinds.push(entry.protocol);
                ControlFlow::Continue(())
            })
            .unwrap();
            assert_eq!(kinds, [Protocol::WebSocket], "{cut}");
        }
    }
}
