//! [`Answers`]: the answers to frames of the peer that are in the output and not sent.
//!
//! ```text
//! bytes  |...sent...|HEADERS|PING ACK|RST_STREAM|HEADERS|HEADERS|WINDOW_UPDATE|DATA
//!                   ^ head  '-------------------'               '-------------'
//!                            an extent                           another one
//! ```

use alloc::collections::VecDeque;

/// Answers that begin within this many bytes belong to one extent. It bounds the number of extents, and the error of `len`.
const EXTENT_LEN: usize = 256;

/// Adjacent bytes of the output.
struct Extent {
    start: usize,
    end: usize,
    /// The bytes of answers in it.
    answers: usize,
}

pub(super) struct Answers {
    /// In order.
    extents: VecDeque<Extent>,
    len: usize,
}

impl Answers {
    pub(super) const fn new() -> Self {
        Self { extents: VecDeque::new(), len: 0 }
    }

    /// The length of the answers that are not sent, in bytes; at most [`EXTENT_LEN`] too much.
    #[inline]
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// The output has an answer at `start..end`, behind all others.
    #[inline]
    pub(super) fn push(&mut self, start: usize, end: usize) {
        let len = end - start;
        self.len += len;
        match self.extents.back_mut() {
            Some(last) if start - last.start < EXTENT_LEN => {
                last.end = end;
                last.answers += len;
            }
            _ => self.extents.push_back(Extent { start, end, answers: len }),
        }
    }

    /// The output before `head` was sent.
    #[inline]
    pub(super) fn advance(&mut self, head: usize) {
        while let Some(first) = self.extents.front_mut() {
            // The answers in an extent are assumed to be its end.
            let left = first.answers.min(first.end.saturating_sub(head));
            self.len -= first.answers - left;
            first.answers = left;
            if left > 0 {
                return;
            }
            self.extents.pop_front();
        }
    }

    /// The first `len` bytes of the output, which were sent, were removed.
    pub(super) fn shift(&mut self, len: usize) {
        for extent in &mut self.extents {
            extent.start = extent.start.saturating_sub(len);
            extent.end -= len;
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
            match random.u32(..8) {
                0..4 => {
                    let start = bytes.len();
                    bytes.resize(start + random.usize(9..40), true);
                    answers.push(start, bytes.len());
                }
                4 => bytes.resize(bytes.len() + random.usize(..1_000), false),
                5 | 6 => {
                    head += random.usize(..=(bytes.len() - head).min(600));
                    answers.advance(head);
                }
                _ => {
                    bytes.drain(..head);
                    answers.shift(head);
                    head = 0;
                }
            }
            let unsent = bytes[head..].iter().filter(|&&is_answer| is_answer).count();
            assert!((unsent..=unsent + EXTENT_LEN).contains(&answers.len()), "{unsent} {}", answers.len());
            assert!(answers.extents.len() <= (bytes.len() - head) / EXTENT_LEN + 2);
        }
        answers.advance(bytes.len());
        assert_eq!((answers.len(), answers.extents.len()), (0, 0));
    }

    #[test]
    fn adjacent_answers_count_exactly() {
        let mut answers = Answers::new();
        for start in (1_000..2_700).step_by(17) {
            answers.push(start, start + 17);
        }
        for head in 1_000..=2_700 {
            answers.advance(head);
            assert_eq!(answers.len(), 2_700 - head);
        }
        assert!(answers.extents.is_empty());
    }
}
