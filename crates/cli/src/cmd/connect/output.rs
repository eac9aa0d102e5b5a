//! Where messages and content are written: the standard output or a file, in the format that the arguments choose. Text for a terminal
//! is written at once and escaped; otherwise it is buffered while messages arrive.

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal as _, Write};
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::notes::{Notes, timestamp};
use crate::args::{Display, Format};
use crate::file;
use crate::terminal::{self, VisibleParts};

/// The output.
pub(super) struct Output {
    /// The file of `-o`, until it is emptied.
    old: Option<File>,
    inner: BufWriter<Box<dyn Write + Send>>,
    notes: Notes,
    format: Format,
    is_terminal: bool,
    has_timestamps: bool,
    is_dirty: bool,
    visible: VisibleParts,
}

impl Output {
    /// The file keeps what it holds until [`begin`](Self::begin).
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn open(display: &Display, format: Format, notes: Notes) -> io::Result<Self> {
        let path = display.output.as_deref().filter(|path| *path != Path::new("-"));
        let (inner, old, is_terminal): (Box<dyn Write + Send>, _, bool) = match path {
            Some(path) => {
                let named =
                    |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
                let file = file::open(path).map_err(named)?;
                (Box::new(file.try_clone().map_err(named)?), Some(file), false)
            }
            None => (Box::new(io::stdout()), None, io::stdout().is_terminal()),
        };
        Ok(Self {
            old,
            inner: BufWriter::with_capacity(64 << 10, inner),
            notes,
            format,
            is_terminal,
            has_timestamps: display.timestamps,
            is_dirty: false,
            visible: VisibleParts::default(),
        })
    }

    /// Empties the file: the connection is open, or a response has arrived.
    pub(super) fn begin(&mut self) {
        if let Some(old) = self.old.take() {
            file::empty(&old);
        }
    }

    /// Writes a message.
    pub(super) fn message(&mut self, bytes: &[u8], is_text: bool) -> io::Result<()> {
        match self.format {
            Format::Lines if self.is_terminal => {
                let text = std::str::from_utf8(bytes).ok().filter(|_| is_text);
                let text = text.map_or_else(|| terminal::binary(bytes), terminal::visible);
                return self.line(&text);
            }
            Format::Lines => {
                if self.has_timestamps {
                    self.inner.write_all(format!("{} ", timestamp()).as_bytes())?;
                }
                self.inner.write_all(bytes)?;
                self.inner.write_all(b"\n")?;
            }
            Format::Base64 => return self.line(&STANDARD.encode(bytes)),
            Format::Hex => return self.line(&encode_hex(bytes)),
            Format::Raw => return self.bytes(bytes),
            Format::Prefixed => {
                let len =
                    u32::try_from(bytes.len()).map_err(|_| io::Error::other("a message is over 4 GiB"))?;
                self.bytes(&len.to_be_bytes())?;
                return self.bytes(bytes);
            }
        }
        self.is_dirty = true;
        Ok(())
    }

    /// Writes the head of a response.
    pub(super) fn head(&mut self, head: &[u8]) -> io::Result<()> {
        if !self.is_terminal {
            return self.bytes(head);
        }
        let shown: Vec<u8> = head.iter().copied().filter(|&byte| byte != b'\r').collect();
        self.bytes(&shown)
    }

    /// Writes a line of text.
    pub(super) fn line(&mut self, text: &str) -> io::Result<()> {
        let line =
            if self.has_timestamps { format!("{} {text}\n", timestamp()) } else { format!("{text}\n") };
        if self.is_terminal && self.notes.print_above(&line) {
            return Ok(());
        }
        self.is_dirty = true;
        self.inner.write_all(line.as_bytes())
    }

    /// Writes bytes that may be part of a text: unchanged, or escaped on a terminal.
    pub(super) fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.is_dirty = true;
        if !self.is_terminal {
            return self.inner.write_all(bytes);
        }
        let text = self.visible.next(bytes);
        if self.notes.print_above(&text) {
            return Ok(());
        }
        self.inner.write_all(text.as_bytes())
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        if self.is_dirty {
            self.inner.flush()?;
            self.is_dirty = false;
        }
        Ok(())
    }
}

/// Two digits per byte.
pub(super) fn encode_hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.map(|digit| char::from(DIGITS[usize::from(digit)])).collect()
}

/// Reads two digits per byte; blanks are ignored. `None` for anything else.
pub(super) fn decode_hex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = text
        .chars()
        .filter(|char| !char.is_ascii_whitespace())
        .map(|char| char.to_digit(16).map(|digit| digit as u8))
        .collect();
    let digits = digits.filter(|digits| digits.len() % 2 == 0)?;
    Some(digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_is_reversible() {
        let bytes: Vec<u8> = (0..=255).collect();
        assert_eq!(decode_hex(&encode_hex(&bytes)), Some(bytes));
        assert_eq!(decode_hex("00 FF"), Some(vec![0, 255]));
        for wrong in ["0", "0g", "é"] {
            assert_eq!(decode_hex(wrong), None, "{wrong}");
        }
    }
}
