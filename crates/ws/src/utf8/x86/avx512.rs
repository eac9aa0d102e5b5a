//! The lookup algorithm in registers of 64 bytes, with the instructions of Ice Lake and Zen 4.
//!
//! Instructions on wide registers run on two ports, so the number of instructions matters. Three things reduce it:
//!
//! - `vpermb` looks up 64 entries and ignores the index bits above the lowest six. By its low six bits a lead byte is
//!   known exactly (its high two are ones), so the second table needs no further cases; and tables by a high half, repeated
//!   four times over, need no masking of the neighbour's bits that a 16-bit shift leaves behind.
//! - The *class* of a byte as the first of a pair is looked up in its own position and moved afterwards, so that both lookups by a
//!   high half share one index. "Lead of three or more" and "lead of four" are bits of the class as well.
//! - `vpshldd` moves bytes up by one, two or three places and, with a few bits more, brings those two bits to the
//!   highest, off the port that lookups need. It takes the dword before as its second operand: one `valignd` for all three.

use crate::mask::rotated;
use crate::utf8::InvalidUtf8;
use core::arch::x86_64::{_mm512_movepi8_mask as high, *};

const WIDTH: usize = 64;
/// Registers that are tested for ASCII together.
const ROW: usize = 4;

/// The errors that the first byte of a pair permits, one bit each. A second byte with the same bit is an error.
mod class {
    /// ASCII: no continuation may follow.
    pub(super) const TOO_LONG: u8 = 0x01;
    /// A lead byte: a continuation must follow.
    pub(super) const LEAD: u8 = 0x02;
    /// A lead byte that 80-8F may not follow: C0, C1, E0, F0, F5-FF.
    pub(super) const NOT_8: u8 = 0x04;
    /// A lead byte that 90-9F may not follow: C0, C1, E0, F4-FF.
    pub(super) const NOT_9: u8 = 0x08;
    /// A lead byte that A0-BF may not follow: C0, C1, ED, F4-FF.
    pub(super) const NOT_AB: u8 = 0x10;
    /// A lead byte of four. The second byte has no such bit.
    pub(super) const FOUR: u8 = 0x20;
    /// A lead byte of three or four. The second byte has no such bit.
    pub(super) const THREE: u8 = 0x40;
    /// A continuation: another one may follow only if a lead byte further back requires it.
    pub(super) const CONTINUED: u8 = 0x80;
}

#[repr(align(64))]
struct Table([u8; WIDTH]);

/// The classes of a first byte by its high half, repeated four times.
static FIRST_HIGH: Table = {
    use class::*;
    let mut table = [TOO_LONG; WIDTH];
    let mut i = 0;
    while i < WIDTH {
        table[i] = match i % 16 {
            0x0..=0x7 => TOO_LONG,
            0x8..=0xb => CONTINUED,
            0xc | 0xd => LEAD | NOT_8 | NOT_9 | NOT_AB,
            0xe => LEAD | NOT_8 | NOT_9 | NOT_AB | THREE,
            _ => LEAD | NOT_8 | NOT_9 | NOT_AB | THREE | FOUR,
        };
        i += 1;
    }
    Table(table)
};

/// The classes of a first byte by its low six bits; all of them if it is not a lead byte.
static FIRST_LOW: Table = {
    use class::*;
    let mut table = [TOO_LONG | LEAD | FOUR | THREE | CONTINUED; WIDTH];
    let mut i = 0;
    while i < WIDTH {
        table[i] |= match 0xc0 + i {
            0xc0 | 0xc1 | 0xf5.. => NOT_8 | NOT_9 | NOT_AB,
            0xe0 => NOT_8 | NOT_9,
            0xed => NOT_AB,
            0xf0 => NOT_8,
            0xf4 => NOT_9 | NOT_AB,
            _ => 0,
        };
        i += 1;
    }
    Table(table)
};

/// The classes that a second byte turns into an error, by its high half, repeated four times.
static SECOND_HIGH: Table = {
    use class::*;
    let mut table = [LEAD; WIDTH];
    let mut i = 0;
    while i < WIDTH {
        table[i] = match i % 16 {
            0x8 => TOO_LONG | CONTINUED | NOT_8,
            0x9 => TOO_LONG | CONTINUED | NOT_9,
            0xa | 0xb => TOO_LONG | CONTINUED | NOT_AB,
            _ => LEAD,
        };
        i += 1;
    }
    Table(table)
};

/// The classes that, at the end of a register, leave a code point incomplete.
static INCOMPLETE: Table = {
    let mut table = [0; WIDTH];
    table[WIDTH - 3] = class::FOUR;
    table[WIDTH - 2] = class::THREE;
    table[WIDTH - 1] = class::LEAD;
    Table(table)
};

/// Each byte its own place.
static PLACES: Table = {
    let mut table = [0; WIDTH];
    let mut i = 0;
    while i < WIDTH {
        table[i] = i as u8;
        i += 1;
    }
    Table(table)
};

/// Validates the `len` bytes at `place`, which start at a boundary; if they are valid, returns whether the last of
/// them is ASCII. With `MASKED` it unmasks them first.
///
/// # Safety
/// The processor offers the features. `place` is valid for reads of `len` bytes; with `MASKED` for writes too, and then
/// `len >= 64`.
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vbmi2")]
pub(super) unsafe fn run<const MASKED: bool>(
    place: *mut u8,
    len: usize,
    key: u32,
) -> Result<bool, InvalidUtf8> {
    if len < WIDTH {
        debug_assert!(!MASKED);
        let real = !(!0 << len);
        // SAFETY: only the bytes of the text are loaded.
        let bytes = unsafe { _mm512_maskz_loadu_epi8(real, place.cast()) };
        let mut state = State::new();
        state.register(bytes, real);
        return state.result((high(bytes) << 1) >> len == 0);
    }
    let gap = place.addr().wrapping_neg() % WIDTH;
    let keys = _mm512_set1_epi32(rotated(key, gap) as i32);
    // SAFETY: the ends are whole registers because `len >= WIDTH`; between them `i + WIDTH <= len` before each access, and
    // `place + i` is aligned, since `i - gap` grows by multiples of `WIDTH`.
    unsafe {
        let end = place.add(len - WIDTH);
        let first = unmask::<MASKED>(_mm512_loadu_si512(place.cast()), _mm512_set1_epi32(key as i32));
        let last =
            unmask::<MASKED>(_mm512_loadu_si512(end.cast()), _mm512_set1_epi32(rotated(key, len) as i32));
        let (first_high, last_high) = (high(first), high(last));
        let mut i = gap;
        if first_high == 0 {
            i += ascii::<MASKED>(place.add(gap), len - gap, keys);
            if len - i < WIDTH && last_high == 0 {
                if MASKED {
                    _mm512_storeu_si512(place.cast(), first);
                    _mm512_storeu_si512(end.cast(), last);
                }
                return Ok(true);
            }
        }
        let mut state = State::new();
        if gap != 0 && first_high != 0 {
            state.register(shifted(first, gap, !0 << (WIDTH - gap)), !0);
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
            let bytes = unmask::<MASKED>(_mm512_load_si512(place.add(i).cast()), keys);
            if MASKED {
                _mm512_store_si512(place.add(i).cast(), bytes);
            }
            state.register(bytes, !0);
            i += WIDTH;
        }
        if i < len {
            let real = !(!0 << (len - i));
            state.register(shifted(last, WIDTH - (len - i), real), real);
        }
        if MASKED {
            _mm512_storeu_si512(place.cast(), first);
            _mm512_storeu_si512(end.cast(), last);
        }
        state.result(last_high >> (WIDTH - 1) == 0)
    }
}

rows!("avx512f,avx512bw,avx512vbmi,avx512vbmi2", __m512i, _mm512_load_si512, _mm512_store_si512);

#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vbmi2")]
#[inline]
fn is_ascii([a, b, c, d]: [__m512i; ROW]) -> bool {
    high(_mm512_or_si512(_mm512_ternarylogic_epi32::<0xfe>(a, b, c), d)) == 0
}

/// The bytes from the `from`th on and then those before it, zero where `kept` has no bit.
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vbmi2")]
#[inline]
fn shifted(bytes: __m512i, from: usize, kept: __mmask64) -> __m512i {
    let places = _mm512_add_epi8(load(&PLACES), _mm512_set1_epi8(from as i8));
    _mm512_maskz_permutexvar_epi8(kept, places, bytes)
}

struct State {
    /// Not zero at errors.
    error: __m512i,
    /// The classes of the register before.
    before: __m512i,
    first_high: __m512i,
    first_low: __m512i,
    second_high: __m512i,
    incomplete: __m512i,
    ascii: __m512i,
}

impl State {
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vbmi2")]
    #[inline]
    fn new() -> Self {
        let ascii = _mm512_set1_epi8(class::TOO_LONG as i8);
        Self {
            error: _mm512_setzero_si512(),
            before: ascii,
            first_high: load(&FIRST_HIGH),
            first_low: load(&FIRST_LOW),
            second_high: load(&SECOND_HIGH),
            incomplete: load(&INCOMPLETE),
            ascii,
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vbmi2")]
    #[inline]
    fn row(&mut self, row: [__m512i; ROW]) {
        if is_ascii(row) {
            self.after_ascii();
        } else {
            let [a, b, c, d] = row;
            let (a, b, c, d) = (self.lookup(a), self.lookup(b), self.lookup(c), self.lookup(d));
            let wrong = _mm512_or_si512(_mm512_ternarylogic_epi32::<0xfe>(a, b, c), d);
            self.error = _mm512_or_si512(self.error, wrong);
        }
    }

    /// Takes the next register; errors count where `real` has a bit.
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vbmi2")]
    #[inline]
    fn register(&mut self, bytes: __m512i, real: __mmask64) {
        if high(bytes) == 0 {
            self.after_ascii();
        } else {
            let wrong = _mm512_maskz_mov_epi8(real, self.lookup(bytes));
            self.error = _mm512_or_si512(self.error, wrong);
        }
    }

    /// ASCII has followed: the register before it must not end within a code point.
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vbmi2")]
    #[inline]
    fn after_ascii(&mut self) {
        // error | before & incomplete
        self.error = _mm512_ternarylogic_epi32::<0xf8>(self.error, self.before, self.incomplete);
        self.before = self.ascii;
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vbmi2")]
    #[inline]
    fn result(&self, ends_in_ascii: bool) -> Result<bool, InvalidUtf8> {
        if _mm512_test_epi32_mask(self.error, self.error) == 0 { Ok(ends_in_ascii) } else { Err(InvalidUtf8) }
    }

    /// The errors in the next register.
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vbmi2")]
    #[inline]
    fn lookup(&mut self, bytes: __m512i) -> __m512i {
        let high = _mm512_srli_epi16::<4>(bytes);
        let second = _mm512_permutexvar_epi8(high, self.second_high);
        let first_high = _mm512_permutexvar_epi8(high, self.first_high);
        let class = _mm512_and_si512(first_high, _mm512_permutexvar_epi8(bytes, self.first_low));
        let dword_before = _mm512_alignr_epi32::<15>(class, self.before);
        self.before = class;
        let first = _mm512_shldi_epi32::<8>(class, dword_before);
        // THREE two places before and FOUR three places before, brought to the place of CONTINUED.
        let third = _mm512_shldi_epi32::<{ 16 + 1 }>(class, dword_before);
        let fourth = _mm512_shldi_epi32::<{ 24 + 2 }>(class, dword_before);
        // (third | fourth) & CONTINUED, then first & second ^ that.
        let must = _mm512_ternarylogic_epi32::<0xa8>(third, fourth, _mm512_set1_epi8(class::CONTINUED as i8));
        _mm512_ternarylogic_epi32::<0x6a>(first, second, must)
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vbmi2")]
#[inline]
fn unmask<const MASKED: bool>(bytes: __m512i, keys: __m512i) -> __m512i {
    if MASKED { _mm512_xor_si512(bytes, keys) } else { bytes }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vbmi2")]
#[inline]
fn load(table: &Table) -> __m512i {
    // SAFETY: the table is as long as the register, and aligned.
    unsafe { _mm512_load_si512(table.0.as_ptr().cast()) }
}
