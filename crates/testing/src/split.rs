//! Ways to cut an input: a connection must answer the same whatever pieces the bytes come in.

use crate::rng::Rng;

/// How an input is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// All at once.
    Whole,
    /// Pieces of this many bytes; one is the hardest.
    Every(usize),
    /// Pieces from one byte to this many, small ones as likely as large ones.
    Random(usize),
}

impl Split {
    /// A way to cut, chosen at random; each of them comes up.
    pub fn draw(rng: &mut Rng) -> Self {
        match rng.u8(0..8) {
            0 => Self::Whole,
            1 => Self::Every(1),
            2 => Self::Every(1 + rng.len(300)),
            3 => Self::Random(1 << 16),
            4 => Self::Random(4),
            _ => Self::Random(1 + rng.len(2_000)),
        }
    }

    /// How many of the `left` bytes come next: at least one, unless none is left.
    pub fn next(self, rng: &mut Rng, left: usize) -> usize {
        match self {
            Self::Whole => left,
            Self::Every(len) => len.max(1).min(left),
            Self::Random(max) => (1 + rng.len(max)).min(left),
        }
    }

    /// The lengths of all the pieces of `len` bytes.
    pub fn pieces(self, rng: &mut Rng, len: usize) -> Vec<usize> {
        let mut pieces = Vec::new();
        let mut left = len;
        while left > 0 {
            let piece = self.next(rng, left);
            pieces.push(piece);
            left -= piece;
        }
        pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::rounds;

    #[test]
    fn pieces_make_up_the_whole() {
        rounds(200, |rng| {
            let len = rng.len(5_000);
            let split = Split::draw(rng);
            let pieces = split.pieces(rng, len);
            assert_eq!(pieces.iter().sum::<usize>(), len, "{split:?}");
            assert!(pieces.iter().all(|&piece| piece > 0), "{split:?}");
        });
    }

    #[test]
    fn cuts_as_it_says() {
        let mut rng = Rng::with_seed(3);
        assert_eq!(Split::Whole.pieces(&mut rng, 10), [10]);
        assert_eq!(Split::Every(4).pieces(&mut rng, 10), [4, 4, 2]);
        assert!(Split::Random(3).pieces(&mut rng, 1_000).iter().all(|&piece| piece <= 3));
    }
}
