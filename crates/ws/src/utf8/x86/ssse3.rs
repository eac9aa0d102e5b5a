//! The lookup algorithm in registers of 16 bytes, for the few processors with SSSE3 or SSE4 but not AVX2. It only reads: the caller
//! unmasks text block by block before.

use super::pair;
use crate::utf8::InvalidUtf8;
use core::arch::x86_64::*;

const WIDTH: usize = 16;
/// Registers that are tested for ASCII together.
const ROW: usize = 4;

/// The largest last bytes of a register without an incomplete code point.
const COMPLETE: [u8; WIDTH] = {
    let mut table = [0xff; WIDTH];
    table[WIDTH - 3] = 0xf0 - 1;
    table[WIDTH - 2] = 0xe0 - 1;
    table[WIDTH - 1] = 0xc0 - 1;
    table
};

/// Validates `text`, which starts at a boundary; if it is valid, returns whether its last byte is ASCII.
#[target_feature(enable = "ssse3")]
pub(super) fn run(text: &[u8]) -> Result<bool, InvalidUtf8> {
    let mut state = State { error: _mm_setzero_si128(), before: _mm_setzero_si128() };
    let all = _mm_set1_epi8(-1);
    let (registers, tail) = text.as_chunks::<WIDTH>();
    let (rows, registers) = registers.as_chunks::<ROW>();
    for row in rows {
        let [a, b, c, d] = [load(&row[0]), load(&row[1]), load(&row[2]), load(&row[3])];
        if _mm_movemask_epi8(_mm_or_si128(_mm_or_si128(a, b), _mm_or_si128(c, d))) == 0 {
            state.ascii(d);
        } else {
            state.lookup(a, all);
            state.lookup(b, all);
            state.lookup(c, all);
            state.lookup(d, all);
        }
    }
    for register in registers {
        state.register(load(register), all);
    }
    if !tail.is_empty() {
        let (mut padded, mut real) = ([0; WIDTH], [0; WIDTH]);
        padded[..tail.len()].copy_from_slice(tail);
        real[..tail.len()].fill(0xff);
        state.register(load(&padded), load(&real));
    }
    if _mm_movemask_epi8(_mm_cmpeq_epi8(state.error, _mm_setzero_si128())) == 0xffff {
        Ok(text.last().is_none_or(u8::is_ascii))
    } else {
        Err(InvalidUtf8)
    }
}

struct State {
    /// Not zero at errors.
    error: __m128i,
    /// The previous register; zero before the first.
    before: __m128i,
}

impl State {
    /// Takes the next register; errors count where `real` is all ones.
    #[target_feature(enable = "ssse3")]
    #[inline]
    fn register(&mut self, bytes: __m128i, real: __m128i) {
        if _mm_movemask_epi8(bytes) == 0 {
            self.ascii(bytes);
        } else {
            self.lookup(bytes, real);
        }
    }

    #[target_feature(enable = "ssse3")]
    #[inline]
    fn ascii(&mut self, bytes: __m128i) {
        self.error = _mm_or_si128(self.error, _mm_subs_epu8(self.before, load(&COMPLETE)));
        self.before = bytes;
    }

    #[target_feature(enable = "ssse3")]
    #[inline]
    fn lookup(&mut self, bytes: __m128i, real: __m128i) {
        let before1 = _mm_alignr_epi8::<15>(bytes, self.before);
        let before2 = _mm_alignr_epi8::<14>(bytes, self.before);
        let before3 = _mm_alignr_epi8::<13>(bytes, self.before);
        let half = _mm_set1_epi8(0x0f);
        let first_high = _mm_and_si128(_mm_srli_epi16::<4>(before1), half);
        let second_high = _mm_and_si128(_mm_srli_epi16::<4>(bytes), half);
        let pairs = _mm_and_si128(
            _mm_and_si128(
                _mm_shuffle_epi8(load(&pair::FIRST_HIGH), first_high),
                _mm_shuffle_epi8(load(&pair::FIRST_LOW), _mm_and_si128(before1, half)),
            ),
            _mm_shuffle_epi8(load(&pair::SECOND_HIGH), second_high),
        );
        // The highest bit is left where the byte two before is E0 or more, or the byte three before F0 or more.
        let third = _mm_subs_epu8(before2, _mm_set1_epi8(0x60));
        let fourth = _mm_subs_epu8(before3, _mm_set1_epi8(0x70));
        let must = _mm_and_si128(_mm_or_si128(third, fourth), _mm_set1_epi8(-0x80));
        let wrong = _mm_and_si128(_mm_xor_si128(must, pairs), real);
        self.error = _mm_or_si128(self.error, wrong);
        self.before = bytes;
    }
}

#[inline]
fn load(bytes: &[u8; WIDTH]) -> __m128i {
    // SAFETY: the array is as long as the register; SSE2 is part of x86-64.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}
