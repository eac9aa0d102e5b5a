//! What is shown to a person: colours only where they are wanted, and nothing that steers the terminal.

use std::fmt::{Display, Write as _};
use std::io::{self, IsTerminal, Write as _};

/// Whether to use colours on this stream: it is a terminal, and <https://no-color.org> does not forbid them.
pub(crate) fn has_colours(stream: &impl IsTerminal) -> bool {
    let forbidden = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    stream.is_terminal() && !forbidden
}

/// Says what went wrong. Unlike `eprintln!` it does not mind that nobody listens any more.
pub(crate) fn say_error(text: impl Display) {
    let _ = writeln!(io::stderr(), "wireloom: {text}");
}

/// What a peer sent, with its control characters made visible.
pub(crate) fn visible(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for char in text.chars() {
        // The others that steer: the order of writing, and what ends a line.
        let steers = char.is_control()
            || matches!(char, '\u{200E}'..='\u{200F}' | '\u{2028}'..='\u{202E}' | '\u{2066}'..='\u{2069}');
        if steers && char != '\t' && char != '\n' {
            out.extend(char.escape_default());
        } else {
            out.push(char);
        }
    }
    out
}

/// Bytes that are no text: how many, and the first of them.
pub(crate) fn binary(bytes: &[u8]) -> String {
    const SHOWN: usize = 32;
    let mut out = format!("({} bytes)", bytes.len());
    for byte in bytes.iter().take(SHOWN) {
        let _ = write!(out, " {byte:02x}");
    }
    if bytes.len() > SHOWN {
        out.push_str(" …");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_what_would_steer_the_terminal() {
        assert_eq!(visible("häßlich\t😀\n"), "häßlich\t😀\n");
        assert_eq!(visible("\x1b[2J\r\x07\u{9b}"), "\\u{1b}[2J\\r\\u{7}\\u{9b}");
        assert_eq!(visible("\u{202E}abc"), "\\u{202e}abc");
    }

    #[test]
    fn shows_the_begin_of_binary_messages() {
        assert_eq!(binary(&[0, 255]), "(2 bytes) 00 ff");
        assert!(binary(&[1; 100]).ends_with(" 01 …"));
    }
}
