//! How fast this machine's memory can be read: the upper limit for any pass over a message.
#![allow(unsafe_code)] // Vector loads by hand: the compiler does not turn a plain loop into the fastest read.

/// The OR of all `bytes`, with the widest loads that the processor has. Several accumulators hide the latency of the
/// loads.
pub(crate) fn read(bytes: &[u8]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        if std::arch::is_x86_feature_detected!("avx512f") {
            // SAFETY: AVX-512F was detected on the line above.
            return unsafe { x86_64::read_avx512(bytes) };
        }
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: AVX2 was detected on the line above.
            return unsafe { x86_64::read_avx2(bytes) };
        }
    }
    read_words(bytes)
}

/// The safe implementation: eight accumulators of 64 bits.
fn read_words(bytes: &[u8]) -> u64 {
    let (blocks, tail) = bytes.as_chunks::<64>();
    let mut sums = [0; 8];
    for block in blocks {
        for (sum, word) in sums.iter_mut().zip(block.as_chunks::<8>().0) {
            *sum |= u64::from_le_bytes(*word);
        }
    }
    fold(&sums) | read_bytes(tail)
}

fn read_bytes(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    for (i, byte) in bytes.iter().enumerate() {
        word[i % 8] |= byte;
    }
    u64::from_le_bytes(word)
}

fn fold(words: &[u64]) -> u64 {
    words.iter().fold(0, |sum, word| sum | word)
}

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use super::{fold, read_bytes};
    use std::arch::x86_64::*;

    #[target_feature(enable = "avx512f")]
    pub(super) fn read_avx512(bytes: &[u8]) -> u64 {
        let (blocks, tail) = bytes.as_chunks::<512>();
        let mut sums = [_mm512_setzero_si512(); 8];
        for block in blocks {
            for (sum, vector) in sums.iter_mut().zip(block.as_chunks::<64>().0) {
                // SAFETY: `vector` is 64 bytes, and the load asks for no alignment.
                *sum = _mm512_or_si512(*sum, unsafe { _mm512_loadu_si512(vector.as_ptr().cast()) });
            }
        }
        let sum = sums.into_iter().fold(_mm512_setzero_si512(), |a, b| _mm512_or_si512(a, b));
        let mut words = [0u64; 8];
        // SAFETY: `words` is 64 bytes, and the store asks for no alignment.
        unsafe { _mm512_storeu_si512(words.as_mut_ptr().cast(), sum) };
        fold(&words) | read_bytes(tail)
    }

    #[target_feature(enable = "avx2")]
    pub(super) fn read_avx2(bytes: &[u8]) -> u64 {
        let (blocks, tail) = bytes.as_chunks::<256>();
        let mut sums = [_mm256_setzero_si256(); 8];
        for block in blocks {
            for (sum, vector) in sums.iter_mut().zip(block.as_chunks::<32>().0) {
                // SAFETY: `vector` is 32 bytes, and the load asks for no alignment.
                *sum = _mm256_or_si256(*sum, unsafe { _mm256_loadu_si256(vector.as_ptr().cast()) });
            }
        }
        let sum = sums.into_iter().fold(_mm256_setzero_si256(), |a, b| _mm256_or_si256(a, b));
        let mut words = [0u64; 4];
        // SAFETY: `words` is 32 bytes, and the store asks for no alignment.
        unsafe { _mm256_storeu_si256(words.as_mut_ptr().cast(), sum) };
        fold(&words) | read_bytes(tail)
    }
}

/// Bytes at an address that is a multiple of 64, as a receive buffer's should be.
pub(crate) struct Aligned {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    /// `len` zeros.
    pub(crate) fn new(len: usize) -> Self {
        let bytes = vec![0; len + 63];
        let start = bytes.as_ptr().align_offset(64);
        Self { bytes, start, len }
    }

    #[inline]
    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_reads_every_byte() {
        let mut rng = fastrand::Rng::with_seed(4);
        for len in [0, 1, 63, 64, 511, 512, 513, 1025, 5000] {
            let mut bytes = vec![0u8; len];
            for _ in 0..20 {
                if len > 0 {
                    bytes[rng.usize(..len)] |= 1 << rng.u8(..8);
                }
                let any = bytes.iter().fold(0, |a, b| a | b);
                let folded = |word: u64| word.to_le_bytes().into_iter().fold(0, |a, b| a | b);
                assert_eq!((folded(read(&bytes)), folded(read_words(&bytes))), (any, any), "{len}");
            }
        }
    }

    #[test]
    fn an_aligned_buffer_begins_at_a_multiple_of_64() {
        let mut aligned = Aligned::new(100);
        let slice = aligned.as_mut_slice();
        assert!(slice.len() == 100 && slice.as_ptr().addr().is_multiple_of(64));
    }
}
