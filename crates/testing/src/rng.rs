//! Seeded random numbers: a failing random test prints the seed that reruns it.
//!
//! By default every run draws the same numbers, so that CI is deterministic. `WIRELOOM_SEED=random` draws others, and
//! `WIRELOOM_SEED=<number>` reruns exactly the round that failed. `WIRELOOM_ROUNDS=<factor>` runs that many times as many
//! rounds; `WIRELOOM_ROUNDS_MAX=<number>` runs at most that many, for emulators and sanitizers.

use std::ops::{Deref, DerefMut};

const VARIABLE: &str = "WIRELOOM_SEED";
const FACTOR: &str = "WIRELOOM_ROUNDS";
const MAX: &str = "WIRELOOM_ROUNDS_MAX";
const DEFAULT_SEED: u64 = 0x5749_5245_4C4F_4F4D;

/// A random generator that prints its seed when the test that owns it panics.
#[derive(Debug)]
pub struct Rng {
    seed: u64,
    chance: fastrand::Rng,
}

impl Rng {
    /// A generator with this seed: it always draws the same numbers.
    pub fn with_seed(seed: u64) -> Self {
        Self { seed, chance: fastrand::Rng::with_seed(seed) }
    }

    /// The seed.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Random bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.chance.fill(&mut bytes);
        bytes
    }

    /// A length below `max`, uniform in its logarithm: short lengths are as likely as long ones.
    pub fn len(&mut self, max: usize) -> usize {
        let bits = self.chance.u32(0..=usize::BITS - max.leading_zeros());
        self.chance.usize(0..=(1usize << bits.min(usize::BITS - 1)) - 1).min(max.saturating_sub(1))
    }

    /// A random element of `of`.
    ///
    /// # Panics
    /// If `of` is empty.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.chance.usize(..of.len())]
    }

    /// Text of `chars` characters, from one to four bytes each.
    pub fn text(&mut self, chars: usize) -> String {
        (0..chars)
            .map(|_| match self.chance.u8(0..8) {
                0 => self.chance.char('\u{80}'..='\u{7FF}'),
                1 => self.chance.char('\u{800}'..='\u{FFFF}'),
                2 => self.chance.char('\u{1_0000}'..='\u{10_FFFF}'),
                _ => self.chance.char('\0'..='\u{7F}'),
            })
            .collect()
    }
}

impl Deref for Rng {
    type Target = fastrand::Rng;

    fn deref(&self) -> &fastrand::Rng {
        &self.chance
    }
}

impl DerefMut for Rng {
    fn deref_mut(&mut self) -> &mut fastrand::Rng {
        &mut self.chance
    }
}

impl Drop for Rng {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{VARIABLE}={} reruns this round", self.seed);
        }
    }
}

/// Runs a random test `count` times, each with another seed; once if `WIRELOOM_SEED` is a seed.
///
/// # Panics
/// If the test panics, or `WIRELOOM_SEED` is neither a number nor `random`.
pub fn rounds(count: u64, mut test: impl FnMut(&mut Rng)) {
    for mut rng in generators(count) {
        test(&mut rng);
    }
}

/// The generators of [`rounds`], for async tests.
///
/// # Panics
/// If `WIRELOOM_SEED` is neither a number nor `random`.
pub fn generators(count: u64) -> impl Iterator<Item = Rng> {
    let (base, count) = match std::env::var(VARIABLE) {
        Ok(word) if word == "random" => (fastrand::u64(..), count_of(count)),
        Ok(number) => (number.parse().unwrap_or_else(|_| panic!("{VARIABLE}={number} is not a seed")), 1),
        Err(_) => (DEFAULT_SEED, count_of(count)),
    };
    (0..count).map(move |round| Rng::with_seed(base.wrapping_add(round.wrapping_mul(0x9E37_79B9_7F4A_7C15))))
}

/// Whether [`rounds`] runs at least `count` rounds for `count`. A test of a frequency is meaningless with fewer.
pub fn runs_all(count: u64) -> bool {
    generators(count).size_hint().0 as u64 >= count
}

/// The generator of an async test with one round.
///
/// # Panics
/// As for [`generators`].
pub fn generator() -> Rng {
    generators(1).next().unwrap_or_else(|| Rng::with_seed(DEFAULT_SEED))
}

/// The number of rounds for `count` with the factor and maximum of the environment.
fn count_of(count: u64) -> u64 {
    count.saturating_mul(number(FACTOR).unwrap_or(1)).min(number(MAX).unwrap_or(u64::MAX))
}

/// The number in an environment variable.
fn number(variable: &str) -> Option<u64> {
    let number = std::env::var(variable).ok()?;
    Some(number.parse().unwrap_or_else(|_| panic!("{variable}={number} is not a number")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_draws_the_same() {
        let (mut one, mut two) = (Rng::with_seed(7), Rng::with_seed(7));
        assert_eq!(one.bytes(100), two.bytes(100));
        assert_eq!(one.text(100), two.text(100));
        assert_ne!(one.bytes(100), Rng::with_seed(8).bytes(100));
    }

    #[test]
    fn lengths_reach_their_bound_exclusively() {
        let mut rng = Rng::with_seed(1);
        let lens: Vec<usize> = (0..10_000).map(|_| rng.len(300)).collect();
        assert!(lens.iter().all(|&len| len < 300));
        assert!(lens.contains(&0) && lens.contains(&1) && lens.contains(&299));
        assert_eq!(rng.len(1), 0);
        assert_eq!(rng.len(0), 0);
    }

    #[test]
    fn generators_draw_the_same_as_rounds() {
        let mut drawn = Vec::new();
        rounds(3, |rng| drawn.push(rng.bytes(16)));
        assert!(generators(3).map(|mut rng| rng.bytes(16)).eq(drawn.iter().cloned()));
        assert_eq!(generator().bytes(16), drawn[0]);
    }

    #[test]
    fn rounds_differ() {
        let mut seen = Vec::new();
        rounds(20, |rng| seen.push(rng.bytes(16)));
        let drawn = seen.len();
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), drawn);
    }
}
