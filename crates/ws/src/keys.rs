//! Masking keys of a client (RFC 6455 §5.3): each is new and cannot be predicted from earlier ones (§10.3).

use crate::mask::MaskKey;
use alloc::boxed::Box;
use chacha20::ChaCha8Rng;
use chacha20::rand_core::{Rng, SeedableRng};

/// Generates masking keys from a seed with ChaCha8: keys do not reveal later ones, and need no system call.
#[derive(Debug)]
pub(crate) struct MaskKeys {
    seed: [u8; 32],
    /// Allocated for the first key.
    generator: Option<Box<ChaCha8Rng>>,
}

impl MaskKeys {
    pub(crate) fn new(seed: [u8; 32]) -> Self {
        Self { seed, generator: None }
    }

    #[inline]
    pub(crate) fn next_key(&mut self) -> MaskKey {
        let generator = self.generator.get_or_insert_with(|| Box::new(ChaCha8Rng::from_seed(self.seed)));
        MaskKey::new(generator.next_u32().to_ne_bytes())
    }
}
