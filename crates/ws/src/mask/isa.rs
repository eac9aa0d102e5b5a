//! A cap on the instruction sets of the kernels, so that benchmarks measure the same code on every machine.

use core::fmt;
use core::str::FromStr;

/// Instruction sets of x86-64 that kernels exist for, in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// Part of every x86-64.
    Sse2,
    /// `pshufb`.
    Ssse3,
    /// 256-bit registers.
    Avx2,
    /// 512-bit registers: AVX-512 F, BW, VBMI and VBMI2.
    Avx512,
}

/// Runs kernels of at most this instruction set from now on, in the whole process. On other architectures it has no effect.
pub fn cap(isa: Isa) {
    #[cfg(target_arch = "x86_64")]
    super::cpu::Level::cap(isa);
    #[cfg(not(target_arch = "x86_64"))]
    let _ = isa;
}

/// The name is none of `sse2`, `ssse3`, `avx2` and `avx512`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownIsa;

impl fmt::Display for UnknownIsa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an instruction set is sse2, ssse3, avx2 or avx512")
    }
}

impl core::error::Error for UnknownIsa {}

impl FromStr for Isa {
    type Err = UnknownIsa;

    fn from_str(name: &str) -> Result<Self, UnknownIsa> {
        match name {
            "sse2" => Ok(Self::Sse2),
            "ssse3" => Ok(Self::Ssse3),
            "avx2" => Ok(Self::Avx2),
            "avx512" => Ok(Self::Avx512),
            _ => Err(UnknownIsa),
        }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use crate::mask::cpu::Level;

    // Other tests of this process see the cap while it is set; they pass at every level.
    #[test]
    fn a_cap_lowers_the_best_level_and_never_raises_it() {
        let best = Level::best();
        cap("sse2".parse().expect("a known name"));
        assert_eq!(Level::best(), Level::SSE2);
        cap(Isa::Avx512);
        assert_eq!(Level::best(), best);
        assert_eq!("avx".parse::<Isa>(), Err(UnknownIsa));
    }

    #[test]
    fn knows_the_name_of_each_instruction_set() {
        let isas = ["sse2", "ssse3", "avx2", "avx512"].map(str::parse);
        assert_eq!(isas, [Ok(Isa::Sse2), Ok(Isa::Ssse3), Ok(Isa::Avx2), Ok(Isa::Avx512)]);
    }
}
