//! Helpers for the tests of several crates: seeded random numbers, a clock that the test sets, randomly split input, builders
//! of frames, valid or not, and the list of a crate's public declarations.
//!
//! It implements no protocol rules: those are in the cores.

pub mod clock;
pub mod end;
pub mod frame;
pub mod http2;
pub mod pair;
pub mod public_api;
#[cfg(feature = "tokio")]
pub mod refusing;
pub mod rng;
pub mod split;

pub use clock::Clock;
pub use end::{End, Received};
pub use frame::Frame;
pub use pair::Pair;
#[cfg(feature = "tokio")]
pub use refusing::refusing;
pub use rng::{Rng, generator, generators, rounds, runs_all};

/// The examples of these pages compile. They need crates that no test of another crate should have to build.
#[cfg(doctest)]
mod book {
    #[doc = include_str!("../../../docs/src/guides/firehose.md")]
    mod firehose {}
    #[doc = include_str!("../../../docs/src/migrating/back.md")]
    mod back {}
}
