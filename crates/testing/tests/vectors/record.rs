//! The text format of the vectors: records of `key value…` lines, separated by empty lines; `#` begins a comment.

use std::fmt::Write as _;

/// A record: its lines in order, each split at the first space.
pub(crate) type Record = Vec<(String, String)>;

/// Appends a record and the empty line that ends it.
pub(crate) fn write(out: &mut String, record: &Record) {
    for (key, value) in record {
        let _ = writeln!(out, "{key} {value}");
    }
    out.push('\n');
}

/// The records of a file.
pub(crate) fn read(text: &str) -> Vec<Record> {
    let mut records = vec![Record::new()];
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        match line.split_once(' ') {
            Some((key, value)) => records.last_mut().expect("never empty").push((key.into(), value.into())),
            None => {
                assert_eq!(line, "", "a line without a value");
                records.push(Record::new());
            }
        }
    }
    records.retain(|record| !record.is_empty());
    records
}

/// The first value with this key.
pub(crate) fn value<'a>(record: &'a Record, key: &str) -> &'a str {
    let found = record.iter().find(|(name, _)| name == key);
    &found.unwrap_or_else(|| panic!("no {key} in {record:?}")).1
}

/// Bytes as words of hexadecimal digits, where `WORD*COUNT` repeats a word; `-` for no bytes.
pub(crate) fn bytes(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return "-".into();
    }
    let mut words: Vec<String> = Vec::new();
    let mut literal = String::new();
    let mut rest = bytes;
    while let Some(&byte) = rest.first() {
        // A run of one byte, or of four bytes as masking makes them, is shorter as a repetition.
        let run = |period: usize| {
            let same = rest.iter().zip(rest.iter().skip(period)).take_while(|(a, b)| a == b).count();
            (same + period) / period
        };
        let (period, count) = if run(1) >= 32 { (1, run(1)) } else { (4, run(4)) };
        if count * period >= 32 && rest.len() >= count * period {
            if !literal.is_empty() {
                words.push(std::mem::take(&mut literal));
            }
            words.push(format!("{}*{count}", hex(&rest[..period])));
            rest = &rest[count * period..];
        } else {
            literal.push_str(&hex(&[byte]));
            rest = &rest[1..];
        }
    }
    if !literal.is_empty() {
        words.push(literal);
    }
    words.join(" ")
}

/// The bytes that [`bytes`] wrote.
pub(crate) fn parse_bytes(text: &str) -> Vec<u8> {
    if text == "-" {
        return Vec::new();
    }
    let word = |word: &str| {
        let (digits, count) = word.split_once('*').unwrap_or((word, "1"));
        let bytes: Vec<u8> = (0..digits.len() / 2)
            .map(|i| u8::from_str_radix(&digits[2 * i..2 * i + 2], 16).expect("digits"))
            .collect();
        bytes.repeat(count.parse().expect("a count"))
    };
    text.split(' ').flat_map(word).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
