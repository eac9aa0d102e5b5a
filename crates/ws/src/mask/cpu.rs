//! The SIMD level of the processor, detected once.
//!
//! It owns the order of the levels, and the proof that one may be used: a [`Level`] is created only here, and only for detected
//! instructions, so that kernels need no further check.

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

    /// The best level here. One relaxed load after the first call.
    #[inline]
    pub(crate) fn best() -> Self {
        match BEST.load(Ordering::Relaxed) {
            0 => {
                let rank = detect();
                BEST.store(rank, Ordering::Relaxed);
                Self(rank)
            }
            rank => Self(rank),
        }
    }

    /// Lowers [`best`](Self::best) to `isa`, or leaves it where the processor offers less.
    pub(crate) fn cap(isa: Isa) {
        let rank = match isa {
            Isa::Sse2 => Self::SSE2.0,
            Isa::Ssse3 => Self::SSSE3_RANK,
            Isa::Avx2 => Self::AVX2_RANK,
            Isa::Avx512 => Self::AVX512_RANK,
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
        Level::AVX512_RANK
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
        Level::AVX512_RANK
    } else {
        Level::AVX2_RANK
    }
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
    fn a_level_has_the_instructions_of_lower_levels() {
        let has =
            [1, 2, 3, 4].map(Level).map(|level| [level.has_ssse3(), level.has_avx2(), level.has_avx512()]);
        let expected = [[false; 3], [true, false, false], [true, true, false], [true; 3]];
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
