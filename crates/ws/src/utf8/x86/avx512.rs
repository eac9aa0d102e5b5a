//! The lookup algorithm in registers of 64 bytes, with the instructions of Ice Lake and Zen 4.
//!
//! Wide registers have two ports to run on, so what counts is the number of instructions. Three things save some:
//!
//! - `vpermb` looks up 64 entries and ignores what stands above six bits of the index. By its low six bits a lead byte is
//!   known exactly (its high two are ones), so the second table needs no further cases; and tables by a high half, repeated
//!   four times over, need no masking of the neighbour's bits that a 16-bit shift leaves behind.
//! - The *class* of a byte as the first of a pair is found where it stands and moved afterwards, so that both lookups by a
//!   high half share one index. "Lead of three or more" and "lead of four" are bits of the class as well.
//! - `vpshldd` moves bytes up by one, two or three places and, with a few bits more, brings those two bits to the
//!   highest, off the port that lookups need. It takes the dword before as its second operand: one `valignd` for all three.

use crate::mask::turned;
use core::arch::x86_64::*;

const WIDTH: usize = 64;
/// Registers that are asked together whether they are ASCII.
const ROW: usize = 4;

/// What the first byte of a pair may be wrong about, one bit each. Where a second byte has the same bit, it is an error.
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
    /// A continuation: that another follows must be asked for by a lead byte further back.
    pub(super) const CONTINUED: u8 = 0x80;
}

#[repr(align(64))]
struct Table([u8; WIDTH]);

/// What a first byte may be wrong about by its high half, repeated four times.
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

/// What a first byte may be wrong about by its low six bits; about a byte that is no lead byte it says nothing.
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

/// What a second byte makes an error of by its high half, repeated four times.
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

/// Whether nothing is wrong yet in the `len` bytes at `place`, which start at a boundary, where what follows the last of
/// them is unknown. With `MASKED` it unmasks them first.
///
/// # Safety
/// The processor offers the features. `place` is valid for reads of `len` bytes; with `MASKED` for writes too, and then
/// `len >= 64`.
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vbmi2")]
pub(super) unsafe fn run<const MASKED: bool>(place: *mut u8, len: usize, key: u32) -> bool {
    debug_assert!(!MASKED || len >= WIDTH);
    // The aligned register that holds the first byte, where in it that byte stands, and where the text ends from there.
    let skipped = place.addr() % WIDTH;
    let base = place.wrapping_sub(skipped);
    let end = skipped + len;
    let keys = _mm512_set1_epi32(key.rotate_left(8 * (skipped % 4) as u32) as i32);
    let mut state = State::new();
    // SAFETY: whole registers are accessed at `base + i` only where `skipped <= i` and `i + WIDTH <= end`; they are aligned
    // because `base` is. Of the first and the last register only the bytes of the text are loaded.
    unsafe {
        let (mut first, mut last) = (_mm512_setzero_si512(), _mm512_setzero_si512());
        if MASKED {
            let last_key = _mm512_set1_epi32(turned(key, len) as i32);
            first = _mm512_xor_si512(_mm512_loadu_si512(place.cast()), _mm512_set1_epi32(key as i32));
            last = _mm512_xor_si512(_mm512_loadu_si512(place.add(len - WIDTH).cast()), last_key);
        }
        let mut i = 0;
        if skipped != 0 {
            let from_start = !0 << skipped;
            let real = if end < WIDTH { from_start & !(!0 << end) } else { from_start };
            let bytes = unmask::<MASKED>(_mm512_maskz_loadu_epi8(real, base.cast()), keys);
            state.register(_mm512_maskz_mov_epi8(real, bytes), real);
            i = WIDTH;
        }
        while i + ROW * WIDTH <= end {
            let at = base.wrapping_add(i);
            let a = unmask::<MASKED>(_mm512_load_si512(at.cast()), keys);
            let b = unmask::<MASKED>(_mm512_load_si512(at.add(WIDTH).cast()), keys);
            let c = unmask::<MASKED>(_mm512_load_si512(at.add(2 * WIDTH).cast()), keys);
            let d = unmask::<MASKED>(_mm512_load_si512(at.add(3 * WIDTH).cast()), keys);
            if MASKED {
                _mm512_store_si512(at.cast(), a);
                _mm512_store_si512(at.add(WIDTH).cast(), b);
                _mm512_store_si512(at.add(2 * WIDTH).cast(), c);
                _mm512_store_si512(at.add(3 * WIDTH).cast(), d);
            }
            state.row(a, b, c, d);
            i += ROW * WIDTH;
        }
        while i + WIDTH <= end {
            let at = base.wrapping_add(i);
            let bytes = unmask::<MASKED>(_mm512_load_si512(at.cast()), keys);
            if MASKED {
                _mm512_store_si512(at.cast(), bytes);
            }
            state.register(bytes, !0);
            i += WIDTH;
        }
        if i < end {
            let real = !(!0 << (end - i));
            let bytes = unmask::<MASKED>(_mm512_maskz_loadu_epi8(real, base.wrapping_add(i).cast()), keys);
            state.register(_mm512_maskz_mov_epi8(real, bytes), real);
        }
        if MASKED {
            _mm512_storeu_si512(place.cast(), first);
            _mm512_storeu_si512(place.add(len - WIDTH).cast(), last);
        }
    }
    _mm512_test_epi32_mask(state.error, state.error) == 0
}

struct State {
    /// Not zero where something was wrong.
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
    fn row(&mut self, a: __m512i, b: __m512i, c: __m512i, d: __m512i) {
        let any = _mm512_or_si512(_mm512_ternarylogic_epi32::<0xfe>(a, b, c), d);
        if _mm512_movepi8_mask(any) == 0 {
            self.after_ascii();
        } else {
            let (a, b, c, d) = (self.lookup(a), self.lookup(b), self.lookup(c), self.lookup(d));
            let wrong = _mm512_or_si512(_mm512_ternarylogic_epi32::<0xfe>(a, b, c), d);
            self.error = _mm512_or_si512(self.error, wrong);
        }
    }

    /// Takes the next register; errors count where `real` has a bit.
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vbmi2")]
    #[inline]
    fn register(&mut self, bytes: __m512i, real: __mmask64) {
        if _mm512_movepi8_mask(bytes) == 0 {
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

    /// What is wrong in the next register.
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
