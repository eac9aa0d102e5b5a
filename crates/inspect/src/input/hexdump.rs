//! Hexdumps of xxd, `hexdump -C` and `od -t x1`, and plain digits. Parsed here, because no library reads more than one
//! of these formats.
//!
//! ```text
//! > 00000000: 8185 37fa 213d 7f9f 4d51 58              ..7.!=..MQX      > client, < server (I and O of text2pcap as well)
//! 00000000  81 85 37 fa 21 3d 7f 9f  4d 51 58          |..7.!=..MQX|
//! 8185 37fa 213d 7f9f 4d51 58
//! ```

use std::io::BufRead;

use super::lines::Lines;
use super::{ReadError, Sink, handle_bytes};
use crate::entry::Direction;
use crate::inspector::Inspector;

/// The content of a line.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    direction: Option<Direction>,
    bytes: Vec<u8>,
}

pub(super) fn read(
    input: &mut impl BufRead,
    inspector: &mut Inspector,
    sink: &mut Sink<'_>,
) -> Result<(), ReadError> {
    let mut lines = Lines::new(input);
    let mut direction = inspector.sender();
    // Consecutive rows of one direction are joined.
    let mut run: Vec<u8> = Vec::new();
    while let Some(line) = lines.next()? {
        let row = match parse(line.bytes) {
            Ok(row) => row,
            Err(reason) => {
                let _ = handle_bytes(inspector, 0, None, direction, &run, sink);
                return Err(ReadError::Malformed { offset: line.offset, reason: reason.into() });
            }
        };
        let next = row.direction.unwrap_or(direction);
        if next != direction || run.len() > 64 << 10 {
            if handle_bytes(inspector, 0, None, direction, &run, sink).is_break() {
                return Ok(());
            }
            run.clear();
            direction = next;
        }
        run.extend_from_slice(&row.bytes);
    }
    let _ = handle_bytes(inspector, 0, None, direction, &run, sink);
    Ok(())
}

/// Whether the first lines are those of a hexdump.
pub(super) fn is_hexdump(start: &[u8]) -> bool {
    /// The number of lines that are examined.
    const LINES: usize = 4;
    let mut rows = 0;
    let is_whole = start.len() < 64 << 10;
    let mut lines = start.split(|&byte| byte == b'\n').peekable();
    while let Some(line) = lines.next() {
        // The last one may be cut off.
        if rows == LINES || (lines.peek().is_none() && !is_whole) {
            break;
        }
        match parse(line.strip_suffix(b"\r").unwrap_or(line)) {
            Ok(row) => rows += usize::from(!row.bytes.is_empty()),
            Err(_) => return false,
        }
    }
    rows > 0
}

/// The bytes of a line.
fn parse(line: &[u8]) -> Result<Row, &'static str> {
    let text = std::str::from_utf8(line).map_err(|_| "a line of the hexdump is not text")?;
    let mut text = text.trim();
    let mut direction = None;
    for (mark, side) in [
        ('>', Direction::ToServer),
        ('<', Direction::ToClient),
        ('O', Direction::ToServer),
        ('I', Direction::ToClient),
    ] {
        if let Some(rest) = text.strip_prefix(mark) {
            direction = Some(side);
            text = rest.trim_start();
            break;
        }
    }
    if text.is_empty() || text.starts_with('#') {
        return Ok(Row { direction, bytes: Vec::new() });
    }
    if text == "*" {
        return Err("repeated lines are left out: dump with hexdump -v");
    }
    let (has_offset, digits) = after_offset(text);
    // The characters follow |, or two spaces.
    let digits = digits.split('|').next().unwrap_or_default().trim_start();
    let mut bytes = Vec::new();
    let mut rest = digits;
    while !rest.is_empty() {
        let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
        let (word, behind) = rest.split_at(end);
        match hex(word) {
            Some(word) => bytes.extend(word),
            None if has_offset && !bytes.is_empty() => break,
            None => return Err("a line of the hexdump has other characters than hexadecimal digits"),
        }
        let next = behind.trim_start();
        // hexdump -C sets one gap of two spaces, after the eighth byte.
        if has_offset && behind.len() - next.len() >= 2 && bytes.len() != 8 {
            break;
        }
        rest = next;
    }
    Ok(Row { direction, bytes })
}

/// Whether the line begins with an offset, and the text after it.
fn after_offset(text: &str) -> (bool, &str) {
    let is_hex = |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    if let Some((offset, rest)) = text.split_once(':')
        && is_hex(offset.strip_prefix("0x").unwrap_or(offset))
    {
        return (true, rest);
    }
    let (first, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    // Six digits or more, then bytes of two digits each, or nothing: the last line of hexdump and od.
    let next = rest.split_whitespace().next();
    if is_hex(first) && (6..=16).contains(&first.len()) && next.is_none_or(|word| word.len() == 2) {
        if next.is_none() && !(first.len() == 8 || first.len() == 7) {
            return (false, text);
        }
        return (true, rest);
    }
    (false, text)
}

fn hex(word: &str) -> Option<Vec<u8>> {
    if !word.len().is_multiple_of(2) {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    word.as_bytes().chunks(2).map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(line: &str) -> Vec<u8> {
        parse(line.as_bytes()).unwrap().bytes
    }

    #[test]
    fn reads_the_common_formats() {
        let hello = [0x81, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58];
        assert_eq!(bytes("00000000: 8185 37fa 213d 7f9f 4d51 58              ..7.!=..MQX"), hello);
        assert_eq!(bytes("00000000  81 85 37 fa 21 3d 7f 9f  4d 51 58           |..7.!=..MQX|"), hello);
        assert_eq!(bytes("0000000 81 85 37 fa 21 3d 7f 9f 4d 51 58"), hello);
        assert_eq!(bytes("8185 37fa 213d 7f9f 4d51 58"), hello);
        assert_eq!(bytes("818537fa213d7f9f4d5158"), hello);
        assert_eq!(bytes("\t0x0000:  8185 37fa 213d 7f9f 4d51 58       ..7.!=..MQX"), hello);
        assert!(bytes("0000000b").is_empty());
        assert!(bytes("# a comment").is_empty());
        // The character column may contain hexadecimal digits.
        assert_eq!(bytes("00000000: 6162 6364                                abcd"), *b"abcd");
        assert_eq!(
            bytes("00000000  61 62 63 64 65 66 61 62                           |abcdefab|"),
            *b"abcdefab"
        );
    }

    #[test]
    fn reads_directions() {
        let row = parse(b"< 81 00").unwrap();
        assert_eq!((row.direction, row.bytes), (Some(Direction::ToClient), vec![0x81, 0]));
        assert_eq!(parse(b"O 000000 81 00").unwrap().direction, Some(Direction::ToServer));
        assert_eq!(parse(b"81 00").unwrap().direction, None);
    }

    #[test]
    fn refuses_other_text() {
        assert!(!is_hexdump(b"GET / HTTP/1.1\r\n"));
        assert!(!is_hexdump(b"\x81\x05Hello"));
        assert!(!is_hexdump(b""));
        assert!(is_hexdump(b"81 05 48 65 6c 6c 6f\n"));
        assert!(parse(b"*").is_err() && parse(b"81 0").is_err());
    }
}
