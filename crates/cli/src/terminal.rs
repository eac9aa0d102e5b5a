//! Text for a terminal: colours only where they are wanted, and no control characters from a peer.

use std::fmt::{Display, Write as _};
use std::io::{self, IsTerminal, Write as _};

use tracing_appender::non_blocking::{NonBlocking, NonBlockingBuilder, WorkerGuard};

/// Lines that wait for the standard error. Its reader must not stop the process; further lines are dropped.
const QUEUED_MAX: usize = 10_000;

/// Whether to use colours on this stream: it is a terminal, and <https://no-color.org> does not forbid them.
pub(crate) fn has_colours(stream: &impl IsTerminal) -> bool {
    let forbidden = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    stream.is_terminal() && !forbidden
}

/// Prints an error message. Unlike `eprintln!` it does not panic when the standard error is closed.
pub(crate) fn print_error(text: impl Display) {
    let text = visible(&text.to_string());
    let _ = writeln!(io::stderr(), "wireloom: {text}");
}

/// The same, but text that is not written within a second is dropped: it must not keep a server from ending.
pub(crate) fn try_print_error(text: impl Display) {
    let (mut errors, _queued) = queued_stderr();
    let _ = writeln!(errors, "wireloom: {}", visible(&text.to_string()));
}

/// The standard error, behind a queue of lines. A thread writes them, those that are left when the guard is dropped.
pub(crate) fn queued_stderr() -> (NonBlocking, WorkerGuard) {
    NonBlockingBuilder::default().buffered_lines_limit(QUEUED_MAX).lossy(true).finish(io::stderr())
}

/// Text from a peer with its control characters escaped, except tabs and line breaks.
pub(crate) fn visible(text: &str) -> String {
    escape(text, |char| char == '\t' || char == '\n')
}

/// As [`visible`], for text that is part of one line: line breaks are escaped too.
pub(crate) fn visible_line(text: &str) -> String {
    escape(text, |char| char == '\t')
}

/// As [`visible`], for bytes that arrive in parts, which may split a character.
#[derive(Default)]
pub(crate) struct VisibleParts {
    /// The first bytes of an incomplete character.
    incomplete: Vec<u8>,
}

impl VisibleParts {
    /// The next part; what is not UTF-8 is replaced.
    pub(crate) fn next(&mut self, bytes: &[u8]) -> String {
        self.incomplete.extend_from_slice(bytes);
        let mut whole = self.incomplete.len();
        if let Some(last) = self.incomplete.utf8_chunks().last()
            && std::str::from_utf8(last.invalid()).is_err_and(|error| error.error_len().is_none())
        {
            whole -= last.invalid().len();
        }
        let rest = self.incomplete.split_off(whole);
        let text = visible(&String::from_utf8_lossy(&self.incomplete));
        self.incomplete = rest;
        text
    }
}

/// JSON with the control characters escaped that JSON itself allows in strings.
pub(crate) fn visible_json(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for char in json.chars() {
        if is_control(char) {
            let _ = write!(out, "\\u{:04x}", u32::from(char));
        } else {
            out.push(char);
        }
    }
    out
}

fn escape(text: &str, is_allowed: impl Fn(char) -> bool) -> String {
    let mut out = String::with_capacity(text.len());
    for char in text.chars() {
        if is_control(char) && !is_allowed(char) {
            out.extend(char.escape_default());
        } else {
            out.push(char);
        }
    }
    out
}

/// Control characters, directional formatting, which reorders text, and the separators that end a line.
fn is_control(char: char) -> bool {
    char.is_control()
        || matches!(char, '\u{061C}' | '\u{200E}'..='\u{200F}' | '\u{2028}'..='\u{202E}' | '\u{2066}'..='\u{2069}')
}

/// The length of a binary message and its first bytes in hexadecimal.
pub(crate) fn binary(bytes: &[u8]) -> String {
    const SHOWN: usize = 32;
    let mut out = format!("({})", count(bytes.len() as u64, "byte"));
    for byte in bytes.iter().take(SHOWN) {
        let _ = write!(out, " {byte:02x}");
    }
    if bytes.len() > SHOWN {
        out.push_str(" …");
    }
    out
}

/// `1 message`, `2 messages`.
pub(crate) fn count(number: u64, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_control_characters() {
        assert_eq!(visible("häßlich\t😀\n"), "häßlich\t😀\n");
        assert_eq!(visible("\x1b[2J\r\x07\u{9b}"), "\\u{1b}[2J\\r\\u{7}\\u{9b}");
        assert_eq!(visible("\u{202E}abc\u{061C}"), "\\u{202e}abc\\u{61c}");
        assert_eq!(visible_line("a\nb"), "a\\nb");
        assert_eq!(visible_json("\"\u{9b}\u{202E}\""), r#""\u009b\u202e""#);
    }

    #[test]
    fn characters_that_are_split_are_shown_whole() {
        let mut parts = VisibleParts::default();
        let shown: Vec<String> =
            [&b"a\xF0\x9F"[..], b"\x98\x80\x1B", b"\x9B\xC3", b"\n", b"\xFF\xC3", b"\xA4"]
                .map(|part| parts.next(part))
                .into();
        assert_eq!(shown, ["a", "\u{1F600}\\u{1b}", "\u{FFFD}", "\u{FFFD}\n", "\u{FFFD}", "ä"]);
    }

    #[test]
    fn shows_the_first_bytes_of_binary_messages() {
        assert_eq!(binary(&[0, 255]), "(2 bytes) 00 ff");
        assert_eq!(binary(&[7]), "(1 byte) 07");
        assert!(binary(&[1; 100]).ends_with(" 01 …"));
    }
}
