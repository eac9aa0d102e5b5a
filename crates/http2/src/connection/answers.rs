//! [`Answers`]: the answers to frames of the peer that are in the output and not sent.
//!
//! ```text
//! output |...sent...|HEADERS|PING ACK|RST_STREAM|HEADERS|HEADERS|WINDOW_UPDATE|DATA
//!                           '------ a run ------'               '-- another --'
//! ```

use alloc::collections::VecDeque;

use super::output::Position;

/// Adjacent answers.
struct Run {
    start: Position,
    end: Position,
}

pub(super) struct Answers {
    /// In order. At most one for each 9 bytes of `len`, which [`crate::Limits::answers_len_max`] bounds.
    runs: VecDeque<Run>,
    len: usize,
}

impl Answers {
    pub(super) const fn new() -> Self {
        Self { runs: VecDeque::new(), len: 0 }
    }

    /// The length of the answers that are not sent, in bytes.
    #[inline]
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// The output has an answer at `start..end`, behind all others.
    #[inline]
    pub(super) fn push(&mut self, start: Position, end: Position) {
        self.len += (end - start) as usize;
        match self.runs.back_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => self.runs.push_back(Run { start, end }),
        }
    }

    /// The output before `sent` was sent.
    #[inline]
    pub(super) fn advance(&mut self, sent: Position) {
        while let Some(first) = self.runs.front_mut() {
            let len = first.end.min(sent).saturating_sub(first.start);
            self.len -= len as usize;
            first.start += len;
            if first.start < first.end {
                return;
            }
            self.runs.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use wireloom_testing::{Rng, rounds};

    #[test]
    fn the_length_is_that_of_the_answers_which_are_not_sent() {
        rounds(20, random_output);
    }

    fn random_output(random: &mut Rng) {
        // Whether each byte of the output belongs to an answer.
        let (mut bytes, mut head) = (Vec::new(), 0);
        let mut answers = Answers::new();
        for _ in 0..2_000 {
            match random.u32(..7) {
                0..4 => {
                    let start = bytes.len();
                    bytes.resize(start + random.usize(9..40), true);
                    answers.push(start as Position, bytes.len() as Position);
                }
                4 => bytes.resize(bytes.len() + random.usize(..1_000), false),
                _ => {
                    head += random.usize(..=(bytes.len() - head).min(600));
                    answers.advance(head as Position);
                }
            }
            let unsent = bytes[head..].iter().filter(|&&is_answer| is_answer).count();
            assert_eq!(answers.len(), unsent);
            assert!(answers.runs.len() <= unsent / 9 + 1);
        }
        answers.advance(bytes.len() as Position);
        assert_eq!((answers.len(), answers.runs.len()), (0, 0));
    }

    #[test]
    fn adjacent_answers_are_one_run() {
        let mut answers = Answers::new();
        for start in (1_000..2_700).step_by(17) {
            answers.push(start, start + 17);
        }
        assert_eq!(answers.runs.len(), 1);
        for head in 1_000..=2_700 {
            answers.advance(head);
            assert_eq!(answers.len() as Position, 2_700 - head);
        }
        assert!(answers.runs.is_empty());
    }
}
