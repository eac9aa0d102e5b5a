//! Ways to split an input into parts: a connection must behave the same for all of them.

use crate::rng::Rng;

/// A way to split an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// One part.
    Whole,
    /// Parts of this length in bytes.
    Every(usize),
    /// Parts of one byte up to this length, uniform in its logarithm.
    Random(usize),
}

impl Split {
    /// A random way to split.
    pub fn random(rng: &mut Rng) -> Self {
        match rng.u8(0..8) {
            0 => Self::Whole,
            1 => Self::Every(1),
            2 => Self::Every(1 + rng.len(300)),
            3 => Self::Random(1 << 16),
            4 => Self::Random(4),
            _ => Self::Random(1 + rng.len(2_000)),
        }
    }

    /// The length of the next part of `left` bytes; 0 only if `left` is 0.
    pub fn next(self, rng: &mut Rng, left: usize) -> usize {
        match self {
            Self::Whole => left,
            Self::Every(len) => len.max(1).min(left),
            Self::Random(max) => (1 + rng.len(max)).min(left),
        }
    }

    /// The lengths of all parts of `len` bytes.
    pub fn parts(self, rng: &mut Rng, len: usize) -> Vec<usize> {
        let mut parts = Vec::new();
        let mut left = len;
        while left > 0 {
            let part = self.next(rng, left);
            parts.push(part);
            left -= part;
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::rounds;

    #[test]
    fn parts_add_up_to_the_input() {
        rounds(200, |rng| {
            let len = rng.len(5_000);
            let split = Split::random(rng);
            let pieces = split.parts(rng, len);
            assert_eq!(pieces.iter().sum::<usize>(), len, "{split:?}");
            assert!(pieces.iter().all(|&piece| piece > 0), "{split:?}");
        });
    }

    #[test]
    fn parts_have_the_given_length() {
        let mut rng = Rng::with_seed(3);
        assert_eq!(Split::Whole.parts(&mut rng, 10), [10]);
        assert_eq!(Split::Every(4).parts(&mut rng, 10), [4, 4, 2]);
        assert!(Split::Random(3).parts(&mut rng, 1_000).iter().all(|&piece| piece <= 3));
    }
}
