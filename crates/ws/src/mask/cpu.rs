//! The SIMD level of the processor, detected once.
//!
//! It owns the order of the levels, and the proof that one may be used: a [`Level`] is created only here, and only for detected
//! instructions, so that kernels need no further check.

use core::arch::x86_64::__cpuid;
use core::sync::atomic::{AtomicU8, Ordering};

use super::isa::Isa;

/// The rank of [`Level::best`]; 0 before the first call.
static BEST: AtomicU8 = AtomicU8::new(0);

/// A set of instructions that this processor has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Level(u8);

impl Level {
    /// Part of every x86-64.
    pub(crate) const SSE2: Self = Self(1);
    /// Bytes looked up in tables of 16: `pshufb`.
    const SSSE3_RANK: u8 = 2;
    const AVX2_RANK: u8 = 3;
    /// AVX-512 F, BW, VBMI and VBMI2: Ice Lake, Zen 4 and later, which run it without slowing their clock.
    const AVX512_RANK: u8 = 4;
    /// AVX-512 on a processor that does not split stores of 512 bits.
    const WIDE_STORES_RANK: u8 = 5;

    /// The best level here. One relaxed load after the first call.
    #[inline]
    pub(crate) fn best() -> Self {
        match BEST.load(Ordering::Relaxed) {
            0 => Self::init(&BEST, detect),
            rank => Self(rank),
        }
    }

    /// Stores the rank that was detected, unless another thread has stored one meanwhile, such as a [cap](Self::cap).
    #[cold]
    fn init(best: &AtomicU8, detect: impl FnOnce() -> u8) -> Self {
        let rank = detect();
        let stored = best.compare_exchange(0, rank, Ordering::Relaxed, Ordering::Relaxed);
        Self(stored.err().unwrap_or(rank))
    }

    /// Lowers [`best`](Self::best) to `isa`, or leaves it where the processor offers less.
    pub(crate) fn cap(isa: Isa) {
        let rank = match isa {
            Isa::Sse2 => Self::SSE2.0,
            Isa::Ssse3 => Self::SSSE3_RANK,
            Isa::Avx2 => Self::AVX2_RANK,
            Isa::Avx512 => Self::WIDE_STORES_RANK,
        };
        BEST.store(rank.min(detect()), Ordering::Relaxed);
    }

    /// Every level of this processor, for tests.
    #[cfg(test)]
    pub(crate) fn offered() -> impl Iterator<Item = Self> {
        (1..=detect()).map(Self)
    }

    #[inline]
    pub(crate) const fn has_ssse3(self) -> bool {
        self.0 >= Self::SSSE3_RANK
    }

    #[inline]
    pub(crate) const fn has_avx2(self) -> bool {
        self.0 >= Self::AVX2_RANK
    }

    #[inline]
    pub(crate) const fn has_avx512(self) -> bool {
        self.0 >= Self::AVX512_RANK
    }

    /// AVX-512 whose stores of 512 bits are not split.
    #[inline]
    pub(crate) const fn has_wide_stores(self) -> bool {
        self.0 >= Self::WIDE_STORES_RANK
    }
}

/// Each rank requires the instructions of the ranks below it.
#[cfg(feature = "std")]
#[cold]
fn detect() -> u8 {
    use std::is_x86_feature_detected as has;
    if !has!("ssse3") {
        Level::SSE2.0
    } else if !has!("avx2") {
        Level::SSSE3_RANK
    } else if has!("avx512f") && has!("avx512bw") && has!("avx512vbmi") && has!("avx512vbmi2") {
        avx512_rank()
    } else {
        Level::AVX2_RANK
    }
}

/// Without `std` there is no detection: the level is what the target guarantees.
#[cfg(not(feature = "std"))]
#[inline]
fn detect() -> u8 {
    if !cfg!(target_feature = "ssse3") {
        Level::SSE2.0
    } else if !cfg!(target_feature = "avx2") {
        Level::SSSE3_RANK
    } else if cfg!(all(
        target_feature = "avx512f",
        target_feature = "avx512bw",
        target_feature = "avx512vbmi",
        target_feature = "avx512vbmi2"
    )) {
        avx512_rank()
    } else {
        Level::AVX2_RANK
    }
}

/// The rank of a processor with AVX-512. AMD's family 0x19 (Zen 4) splits each store of 512 bits: with stores of 256 bits
/// copies are a tenth faster.
#[cold]
#[allow(unsafe_code, unused_unsafe, reason = "`__cpuid` is unsafe until Rust 1.94")]
fn avx512_rank() -> u8 {
    // SAFETY: a processor with AVX-512 has the instruction, and these leaves.
    let [vendor, version] = unsafe { [__cpuid(0), __cpuid(1)] };
    let is_amd = [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes) == [*b"Auth", *b"enti", *b"cAMD"];
    // The base family is 15 from 0x0F on; the extended family is added to it.
    let family = 15 + (version.eax >> 20 & 0xFF);
    if is_amd && family == 0x19 { Level::AVX512_RANK } else { Level::WIDE_STORES_RANK }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_ordered_from_sse2_on() {
        let levels: alloc::vec::Vec<_> = Level::offered().collect();
        assert_eq!(levels.first(), Some(&Level::SSE2));
        assert!(levels.contains(&Level::best()));
        assert!(levels.is_sorted());
        assert!(!Level::SSE2.has_ssse3() && !Level::SSE2.has_avx2() && !Level::SSE2.has_avx512());
    }

    #[test]
    fn detection_does_not_undo_a_cap() {
        let best = AtomicU8::new(0);
        let level = Level::init(&best, || {
            // Another thread sets a cap meanwhile.
            best.store(1, Ordering::Relaxed);
            4
        });
        assert_eq!((level, best.load(Ordering::Relaxed)), (Level::SSE2, 1));
        assert_eq!(Level::init(&AtomicU8::new(0), || 4), Level(4));
    }

    #[test]
    fn a_level_has_the_instructions_of_lower_levels() {
        let has =
            |level: Level| [level.has_ssse3(), level.has_avx2(), level.has_avx512(), level.has_wide_stores()];
        let has = [1, 2, 3, 4, 5].map(Level).map(has);
        let expected = [0, 1, 2, 3, 4].map(|count| [count > 0, count > 1, count > 2, count > 3]);
        assert_eq!(has, expected);
    }

    #[cfg(feature = "std")]
    #[test]
    fn detects_the_instructions_of_the_processor() {
        use std::is_x86_feature_detected as has;
        let level = Level(detect());
        assert_eq!(level.has_ssse3(), has!("ssse3"));
        assert_eq!(level.has_avx2(), has!("avx2"));
        let avx512 = has!("avx512f") && has!("avx512bw") && has!("avx512vbmi") && has!("avx512vbmi2");
        assert_eq!(level.has_avx512(), avx512);
    }
}
