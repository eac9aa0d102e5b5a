//! The messages that are sent, and the check of the answers.

use std::path::Path;

use wireloom::wireloom_ws::utf8;
use wireloom::{Message, Payload};

use crate::args::Sizes;

/// The number of hexadecimal digits at the beginning of each generated message, which number it.
pub(super) const NUMBER_LEN: usize = 16;

/// JSON-like text, with a typical compression ratio.
const TEXT: &[u8] = br#"{"user":"anna","channel":"lobby","text":"good morning","at":1700000000},"#;

/// The messages of a run. Each has a number; equal numbers give equal messages.
pub(super) struct Payloads {
    source: Source,
    is_text: bool,
}

enum Source {
    /// The number, and after it the beginning of `bytes`.
    Generated {
        /// As long as the longest message.
        bytes: Vec<u8>,
        sizes: Sizes,
    },
    /// The lines of a file, in turn.
    Lines(Vec<Vec<u8>>),
}

/// How an answer compares to the messages that wait for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// It equals the message with this number.
    Equal(u64),
    /// It equals a message that does not wait for an answer.
    Repeated,
    /// It equals no message.
    Wrong,
}

impl Payloads {
    pub(super) fn generated(sizes: Sizes, is_text: bool) -> Self {
        let len = sizes.max();
        let bytes = if is_text {
            TEXT.iter().copied().cycle().take(len).collect()
        } else {
            // It must not compress; it need not be unpredictable.
            let mut rng = fastrand::Rng::with_seed(1);
            std::iter::repeat_with(|| rng.u8(..)).take(len).collect()
        };
        Self { source: Source::Generated { bytes, sizes }, is_text }
    }

    /// # Errors
    /// The file cannot be read, is empty, or is not UTF-8 although it is to be sent as text.
    pub(super) fn from_file(path: &Path, is_text: bool) -> Result<Self, String> {
        let fail = |error: &dyn std::fmt::Display| format!("--messages {}: {error}", path.display());
        let bytes = std::fs::read(path).map_err(|error| fail(&error))?;
        let lines = bytes.split(|&byte| byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
        let lines: Vec<Vec<u8>> = lines.filter(|line| !line.is_empty()).map(<[u8]>::to_vec).collect();
        if lines.is_empty() {
            return Err(fail(&"it has no lines"));
        }
        if is_text && lines.iter().any(|line| std::str::from_utf8(line).is_err()) {
            return Err(fail(&"it is not UTF-8; --binary sends it all the same"));
        }
        Ok(Self { source: Source::Lines(lines), is_text })
    }

    /// The message with this number.
    pub(super) fn message(&mut self, number: u64) -> Payload<'_> {
        let is_text = self.is_text;
        payload(self.bytes(number), is_text)
    }

    /// The content of the message with this number.
    pub(super) fn bytes(&mut self, number: u64) -> &[u8] {
        match &mut self.source {
            Source::Lines(lines) => &lines[(number % lines.len() as u64) as usize],
            Source::Generated { bytes, sizes } => {
                let message = &mut bytes[..len(sizes, number)];
                let digits = digits(number);
                let digits_len = message.len().min(NUMBER_LEN);
                message[..digits_len].copy_from_slice(&digits[NUMBER_LEN - digits_len..]);
                message
            }
        }
    }

    /// As [`message`](Self::message), with a second number after the first.
    pub(super) fn message_with(&mut self, number: u64, second: u64) -> Payload<'_> {
        let is_text = self.is_text;
        if let Source::Generated { bytes, .. } = &mut self.source
            && bytes.len() >= 2 * NUMBER_LEN
        {
            bytes[NUMBER_LEN..2 * NUMBER_LEN].copy_from_slice(&digits(second));
        }
        payload(self.bytes(number), is_text)
    }

    /// The two numbers of a message of [`message_with`](Self::message_with); `None` if it is none.
    pub(super) fn numbers(&self, message: &Message<'_>) -> Option<(u64, u64)> {
        const HEAD_LEN: usize = 2 * NUMBER_LEN;
        let Source::Generated { bytes: own, sizes } = &self.source else { return None };
        let bytes = message.as_bytes();
        let (first, second) = (number(bytes.get(..NUMBER_LEN)?)?, number(bytes.get(NUMBER_LEN..HEAD_LEN)?)?);
        let is_whole = bytes.len() == len(sizes, first) && message.is_text() == self.is_text;
        (is_whole && bytes[HEAD_LEN..] == own[HEAD_LEN..bytes.len()]).then_some((first, second))
    }

    /// Compares an answer. `waiting` are the numbers that wait for answers, from the oldest on.
    pub(super) fn check(&self, answer: &Message<'_>, waiting: impl Iterator<Item = u64>) -> Answer {
        self.compare(answer.as_bytes(), answer.is_text(), waiting)
    }

    fn compare(&self, bytes: &[u8], is_text: bool, mut waiting: impl Iterator<Item = u64>) -> Answer {
        if is_text != self.is_text {
            return Answer::Wrong;
        }
        match &self.source {
            Source::Lines(lines) => {
                let line = |number: u64| &lines[(number % lines.len() as u64) as usize];
                match waiting.find(|&number| line(number) == bytes) {
                    Some(number) => Answer::Equal(number),
                    None if lines.iter().any(|line| line == bytes) => Answer::Repeated,
                    None => Answer::Wrong,
                }
            }
            Source::Generated { bytes: own, sizes } => {
                let digits_len = bytes.len().min(NUMBER_LEN);
                let (head, rest) = bytes.split_at(digits_len);
                let is_hexadecimal = head.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
                if own.get(digits_len..bytes.len()) != Some(rest)
                    || !is_hexadecimal
                    || bytes.len() < sizes.min()
                {
                    return Answer::Wrong;
                }
                let equals = |number: u64| {
                    *head == digits(number)[NUMBER_LEN - digits_len..] && bytes.len() == len(sizes, number)
                };
                match waiting.find(|&number| equals(number)) {
                    Some(number) => Answer::Equal(number),
                    // A short message consists of some digits of its number.
                    None if digits_len < NUMBER_LEN || number(head).is_some_and(equals) => Answer::Repeated,
                    None => Answer::Wrong,
                }
            }
        }
    }
}

/// As text, or as binary.
fn payload(bytes: &[u8], is_text: bool) -> Payload<'_> {
    match is_text.then(|| utf8::text(bytes)) {
        // The lines of a file were checked; generated text is ASCII.
        Some(Ok(text)) => Payload::from(text),
        _ => Payload::from(bytes),
    }
}

/// The length of the message with this number.
fn len(sizes: &Sizes, number: u64) -> usize {
    match sizes {
        Sizes::Fixed(len) => *len,
        Sizes::Uniform(min, max) => fastrand::Rng::with_seed(number).usize(min..=max),
        Sizes::Weighted(lens) => {
            let mut at = fastrand::Rng::with_seed(number).f64();
            let found = lens.iter().find(|(_, share)| {
                at -= share;
                at < 0.0
            });
            found.or(lens.last()).map_or(1, |(len, _)| *len)
        }
    }
}

fn digits(number: u64) -> [u8; NUMBER_LEN] {
    let mut digits = [0; NUMBER_LEN];
    for (at, digit) in digits.iter_mut().enumerate() {
        *digit = b"0123456789abcdef"[(number >> (60 - 4 * at)) as usize & 15];
    }
    digits
}

fn number(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0, |number, &digit| {
        let value = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(number << 4 | u64::from(value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_message_that_an_answer_equals() {
        for (len, is_text) in [(1, true), (5, false), (16, true), (100, true), (100, false)] {
            let mut payloads = Payloads::generated(Sizes::Fixed(len), is_text);
            let mut answer = payloads.bytes(3).to_vec();
            assert_eq!(payloads.compare(&answer, is_text, 1..5), Answer::Equal(3), "{len}");
            assert_eq!(payloads.compare(&answer, !is_text, 1..5), Answer::Wrong);
            assert_eq!(payloads.compare(&answer, is_text, 4..9), Answer::Repeated);
            assert_eq!(payloads.compare(&answer[1..], is_text, 1..5), Answer::Wrong);
            *answer.last_mut().unwrap() ^= 0x40;
            assert_eq!(payloads.compare(&answer, is_text, 1..5), Answer::Wrong);
        }
    }

    #[test]
    fn lengths_have_their_distribution() {
        let mut uniform = Payloads::generated(Sizes::Uniform(20, 29), true);
        let mut counts = [0; 10];
        for number in 0..10_000 {
            counts[uniform.bytes(number).len() - 20] += 1;
        }
        assert!(counts.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
        let mut weighted = Payloads::generated(Sizes::Weighted(vec![(32, 0.9), (1000, 0.1)]), false);
        let long = (0..10_000).filter(|&number| weighted.bytes(number).len() == 1000).count();
        assert!((900..1100).contains(&long), "{long}");
        let answer = weighted.bytes(77).to_vec();
        assert_eq!(weighted.compare(&answer, false, 70..80), Answer::Equal(77));
    }

    #[test]
    fn numbers_are_hexadecimal() {
        assert_eq!(&digits(0x0123_4567_89ab_cdef), b"0123456789abcdef");
        assert_eq!(number(b"0123456789abcdef"), Some(0x0123_4567_89ab_cdef));
        assert_eq!(number(b"012345678 abcdef"), None);
    }
}
