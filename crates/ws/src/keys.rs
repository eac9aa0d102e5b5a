//! Masking keys of a client (RFC 6455 §5.3): each is new and cannot be predicted from earlier ones (§10.3).

use crate::mask::MaskKey;
use alloc::boxed::Box;
use chacha20::ChaCha8Rng;
use chacha20::rand_core::{Rng, SeedableRng};

/// Generates masking keys from a seed with ChaCha8: keys do not reveal later ones, and need no system call. It has no `Debug`, which would
/// show the seed.
pub(crate) enum MaskKeys {
    /// Before the first key.
    Seed([u8; 32]),
    Generator(Box<ChaCha8Rng>),
}

impl MaskKeys {
    pub(crate) fn new(seed: [u8; 32]) -> Self {
        Self::Seed(seed)
    }

    #[inline]
    pub(crate) fn next_key(&mut self) -> MaskKey {
        match self {
            Self::Generator(generator) => MaskKey::new(generator.next_u32().to_ne_bytes()),
            Self::Seed(seed) => {
                let seed = *seed;
                self.first_key(seed)
            }
        }
    }

    #[cold]
    fn first_key(&mut self, seed: [u8; 32]) -> MaskKey {
        let mut generator = Box::new(ChaCha8Rng::from_seed(seed));
        let key = MaskKey::new(generator.next_u32().to_ne_bytes());
        *self = Self::Generator(generator);
        key
    }
}
