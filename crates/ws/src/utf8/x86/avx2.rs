//! The lookup algorithm in registers of 32 bytes, eight of them at a time while they are ASCII.

use super::pair;
use crate::mask::rotated;
use crate::utf8::InvalidUtf8;
use core::arch::x86_64::*;

const WIDTH: usize = 32;
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

/// Ones, then zeroes: the register that starts at `WIDTH - n` is ones in its first `n` bytes.
const FIRST_BYTES: [u8; 2 * WIDTH] = {
    let mut table = [0; 2 * WIDTH];
    let mut i = 0;
    while i < WIDTH {
        table[i] = 0xff;
        i += 1;
    }
    table
};

/// Validates the `len` bytes at `place`, which start at a boundary; if they are valid, returns whether the last of
/// them is ASCII. With `MASKED` it unmasks them first.
///
/// # Safety
/// The processor offers AVX2. `place` is valid for reads of `len` bytes; with `MASKED` for writes too, and then
/// `len >= 32`.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn run<const MASKED: bool>(
    place: *mut u8,
    len: usize,
    key: u32,
) -> Result<bool, InvalidUtf8> {
    let all = _mm256_set1_epi8(-1);
    if len < WIDTH {
        debug_assert!(!MASKED);
        let mut padded = [0; 2 * WIDTH];
        // SAFETY: `place` is valid for reads of `len < WIDTH` bytes.
        padded[..len].copy_from_slice(unsafe { core::slice::from_raw_parts(place, len) });
        let bytes = window(&padded, 0);
        let mut state = State::new();
        state.register(bytes, window(&FIRST_BYTES, WIDTH - len));
        return state.result(((high(bytes) << 1) >> len) & 1 == 0);
    }
    let gap = place.addr().wrapping_neg() % WIDTH;
    let keys = _mm256_set1_epi32(rotated(key, gap) as i32);
    // SAFETY: the ends are whole registers because `len >= WIDTH`; between them `i + WIDTH <= len` before each access, and
    // `place + i` is aligned, since `i - gap` grows by multiples of `WIDTH`.
    unsafe {
        let end = place.add(len - WIDTH);
        let first = unmask::<MASKED>(_mm256_loadu_si256(place.cast()), _mm256_set1_epi32(key as i32));
        let last =
            unmask::<MASKED>(_mm256_loadu_si256(end.cast()), _mm256_set1_epi32(rotated(key, len) as i32));
        let (first_high, last_high) = (high(first), high(last));
        let mut i = gap;
        if first_high == 0 {
            i += ascii::<MASKED>(place.add(gap), len - gap, keys);
            if len - i < WIDTH && last_high == 0 {
                if MASKED {
                    _mm256_storeu_si256(place.cast(), first);
                    _mm256_storeu_si256(end.cast(), last);
                }
                return Ok(true);
            }
        }
        let mut state = State::new();
        if gap != 0 && first_high != 0 {
            // Zeroes, then the bytes before the first aligned register.
            let mut padded = [0; 2 * WIDTH];
            _mm256_storeu_si256(padded.as_mut_ptr().add(WIDTH).cast(), first);
            state.register(window(&padded, gap), all);
        }
        while len - i >= ROW * WIDTH {
            let row = load_row::<MASKED>(place.add(i), keys);
            if MASKED {
                store_row(place.add(i), row);
            }
            state.row(row);
            i += ROW * WIDTH;
        }
        while len - i >= WIDTH {
            let bytes = unmask::<MASKED>(_mm256_load_si256(place.add(i).cast()), keys);
            if MASKED {
                _mm256_store_si256(place.add(i).cast(), bytes);
            }
            state.register(bytes, all);
            i += WIDTH;
        }
        if i < len {
            // The bytes after the last aligned register, then zeroes.
            let mut padded = [0; 2 * WIDTH];
            _mm256_storeu_si256(padded.as_mut_ptr().cast(), last);
            state.register(window(&padded, WIDTH - (len - i)), window(&FIRST_BYTES, WIDTH - (len - i)));
        }
        if MASKED {
            _mm256_storeu_si256(place.cast(), first);
            _mm256_storeu_si256(end.cast(), last);
        }
        state.result(last_high >> (WIDTH - 1) == 0)
    }
}

rows!("avx2", __m256i, _mm256_load_si256, _mm256_store_si256);

#[target_feature(enable = "avx2")]
#[inline]
fn is_ascii([a, b, c, d]: [__m256i; ROW]) -> bool {
    high(_mm256_or_si256(_mm256_or_si256(a, b), _mm256_or_si256(c, d))) == 0
}

/// The highest bit of each byte.
#[target_feature(enable = "avx2")]
#[inline]
fn high(bytes: __m256i) -> u32 {
    _mm256_movemask_epi8(bytes) as u32
}

struct State {
    /// Not zero at errors.
    error: __m256i,
    /// The previous register; zero before the first.
    before: __m256i,
}

impl State {
    #[target_feature(enable = "avx2")]
    #[inline]
    fn new() -> Self {
        Self { error: _mm256_setzero_si256(), before: _mm256_setzero_si256() }
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    fn row(&mut self, row: [__m256i; ROW]) {
        if is_ascii(row) {
            self.ascii(row[3]);
        } else {
            for bytes in row {
                self.lookup(bytes, _mm256_set1_epi8(-1));
            }
        }
    }

    /// Takes the next register; errors count where `real` is all ones.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn register(&mut self, bytes: __m256i, real: __m256i) {
        if high(bytes) == 0 {
            self.ascii(bytes);
        } else {
            self.lookup(bytes, real);
        }
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    fn ascii(&mut self, bytes: __m256i) {
        // SAFETY: the table is as long as the register.
        let complete = unsafe { _mm256_loadu_si256(COMPLETE.as_ptr().cast()) };
        self.error = _mm256_or_si256(self.error, _mm256_subs_epu8(self.before, complete));
        self.before = bytes;
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    fn lookup(&mut self, bytes: __m256i, real: __m256i) {
        let straddling = _mm256_permute2x128_si256::<0x21>(self.before, bytes);
        let before1 = _mm256_alignr_epi8::<15>(bytes, straddling);
        let before2 = _mm256_alignr_epi8::<14>(bytes, straddling);
        let before3 = _mm256_alignr_epi8::<13>(bytes, straddling);
        let half = _mm256_set1_epi8(0x0f);
        let first_high = _mm256_and_si256(_mm256_srli_epi16::<4>(before1), half);
        let second_high = _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), half);
        let pairs = _mm256_and_si256(
            _mm256_and_si256(
                _mm256_shuffle_epi8(table(&pair::FIRST_HIGH), first_high),
                _mm256_shuffle_epi8(table(&pair::FIRST_LOW), _mm256_and_si256(before1, half)),
            ),
            _mm256_shuffle_epi8(table(&pair::SECOND_HIGH), second_high),
        );
        // The highest bit is left where the byte two before is E0 or more, or the byte three before F0 or more.
        let third = _mm256_subs_epu8(before2, _mm256_set1_epi8(0x60));
        let fourth = _mm256_subs_epu8(before3, _mm256_set1_epi8(0x70));
        let must = _mm256_and_si256(_mm256_or_si256(third, fourth), _mm256_set1_epi8(-0x80));
        let wrong = _mm256_and_si256(_mm256_xor_si256(must, pairs), real);
        self.error = _mm256_or_si256(self.error, wrong);
        self.before = bytes;
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    fn result(&self, ends_in_ascii: bool) -> Result<bool, InvalidUtf8> {
        if _mm256_testz_si256(self.error, self.error) == 1 { Ok(ends_in_ascii) } else { Err(InvalidUtf8) }
    }
}

#[target_feature(enable = "avx2")]
#[inline]
fn unmask<const MASKED: bool>(bytes: __m256i, keys: __m256i) -> __m256i {
    if MASKED { _mm256_xor_si256(bytes, keys) } else { bytes }
}

/// The same sixteen entries in both lanes.
#[target_feature(enable = "avx2")]
#[inline]
fn table(entries: &[u8; 16]) -> __m256i {
    // SAFETY: the table is as long as half a register.
    _mm256_broadcastsi128_si256(unsafe { _mm_loadu_si128(entries.as_ptr().cast()) })
}

/// The register that starts at `from`, at most `WIDTH`.
#[target_feature(enable = "avx2")]
#[inline]
fn window(bytes: &[u8; 2 * WIDTH], from: usize) -> __m256i {
    assert!(from <= WIDTH);
    // SAFETY: `from + WIDTH <= 2 * WIDTH`.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().add(from).cast()) }
}
