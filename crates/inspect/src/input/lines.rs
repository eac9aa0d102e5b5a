//! Lines of bounded length.

use std::io::{BufRead, Read as _};

use super::ReadError;
use crate::limits::LINE_LEN_MAX;

/// The lines of an input, with their offsets.
pub(super) struct Lines<R> {
    input: R,
    line: Vec<u8>,
    offset: u64,
}

/// A line.
pub(super) struct Line<'a> {
    /// The bytes of the line, without the line break.
    pub(super) bytes: &'a [u8],
    /// The offset of its first byte.
    pub(super) offset: u64,
    /// The input ends within it.
    pub(super) is_cut: bool,
}

impl<R: BufRead> Lines<R> {
    pub(super) fn new(input: R) -> Self {
        Self { input, line: Vec::new(), offset: 0 }
    }

    /// The next line; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<Line<'_>>, ReadError> {
        let offset = self.offset;
        self.line.clear();
        self.input.by_ref().take(LINE_LEN_MAX as u64 + 1).read_until(b'\n', &mut self.line)?;
        if self.line.is_empty() {
            return Ok(None);
        }
        if self.line.len() > LINE_LEN_MAX {
            let reason = format!("a line is longer than {LINE_LEN_MAX} bytes");
            return Err(ReadError::Malformed { offset, reason });
        }
        self.offset += self.line.len() as u64;
        let (bytes, is_cut) = match self.line.strip_suffix(b"\n") {
            Some(bytes) => (bytes.strip_suffix(b"\r").unwrap_or(bytes), false),
            None => (&self.line[..], true),
        };
        Ok(Some(Line { bytes, offset, is_cut }))
    }
}
