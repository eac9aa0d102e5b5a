//! The messages that are sent, and the check of the answers.

use wireloom::{Message, Payload};

/// Hexadecimal digits of the number at the beginning of each message.
const NUMBER_LEN: usize = 16;

/// JSON-like text, which compresses as such messages do.
const TEXT: &[u8] = br#"{"user":"anna","channel":"lobby","text":"good morning","at":1700000000},"#;

/// One message, whose first bytes are its number.
#[derive(Clone)]
pub(super) struct Template {
    bytes: Vec<u8>,
    is_text: bool,
}

/// How an answer compares to the messages that wait for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// It equals the message with this number.
    Equal(u64),
    /// It equals none of them.
    Other,
}

impl Template {
    pub(super) fn new(len: usize, is_text: bool) -> Self {
        let bytes = if is_text {
            TEXT.iter().copied().cycle().take(len).collect()
        } else {
            // xorshift: it need not be random, only without a pattern that compresses.
            let mut state = 0x9E37_79B9_7F4A_7C15_u64;
            let next = std::iter::repeat_with(|| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state as u8
            });
            next.take(len).collect()
        };
        Self { bytes, is_text }
    }

    /// The message with this number.
    pub(super) fn message(&mut self, number: u64) -> Payload<'_> {
        let digits = digits(number);
        let len = self.number_len();
        self.bytes[..len].copy_from_slice(&digits[NUMBER_LEN - len..]);
        match std::str::from_utf8(&self.bytes) {
            Ok(text) if self.is_text => Payload::from(text),
            _ => Payload::from(&self.bytes[..]),
        }
    }

    /// Finds the message that an answer equals. `waiting` are the numbers that wait for answers, from the oldest on.
    pub(super) fn check(&self, answer: &Message<'_>, mut waiting: impl Iterator<Item = u64>) -> Answer {
        self.find(answer.as_bytes(), answer.is_text(), &mut waiting)
    }

    fn find(&self, bytes: &[u8], is_text: bool, waiting: &mut impl Iterator<Item = u64>) -> Answer {
        let len = self.number_len();
        if bytes.len() != self.bytes.len() || is_text != self.is_text || bytes[len..] != self.bytes[len..] {
            return Answer::Other;
        }
        match waiting.find(|&number| bytes[..len] == digits(number)[NUMBER_LEN - len..]) {
            Some(number) => Answer::Equal(number),
            None => Answer::Other,
        }
    }

    /// Whether bytes have the form of a message, with whichever number: an answer that equals none that waits is a repetition then.
    pub(super) fn is_message(&self, answer: &Message<'_>) -> bool {
        let (bytes, len) = (answer.as_bytes(), self.number_len());
        bytes.len() == self.bytes.len()
            && bytes[len..] == self.bytes[len..]
            && bytes[..len].iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    }

    fn number_len(&self) -> usize {
        self.bytes.len().min(NUMBER_LEN)
    }
}

fn digits(number: u64) -> [u8; NUMBER_LEN] {
    let mut digits = [0; NUMBER_LEN];
    for (at, digit) in digits.iter_mut().enumerate() {
        *digit = b"0123456789abcdef"[(number >> (60 - 4 * at)) as usize & 15];
    }
    digits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_message_that_an_answer_equals() {
        for (len, is_text) in [(1, true), (5, false), (16, true), (100, true), (100, false)] {
            let mut template = Template::new(len, is_text);
            let _ = template.message(3);
            let mut answer = template.bytes.clone();
            assert_eq!(template.find(&answer, is_text, &mut (1..5)), Answer::Equal(3), "{len}");
            assert_eq!(template.find(&answer, !is_text, &mut (1..5)), Answer::Other);
            assert_eq!(template.find(&answer, is_text, &mut (4..9)), Answer::Other);
            assert_eq!(template.find(&answer[1..], is_text, &mut (1..5)), Answer::Other);
            *answer.last_mut().unwrap() ^= 0x40;
            assert_eq!(template.find(&answer, is_text, &mut (1..5)), Answer::Other);
        }
    }

    #[test]
    fn numbers_are_hexadecimal() {
        assert_eq!(&digits(0x0123_4567_89ab_cdef), b"0123456789abcdef");
    }
}
