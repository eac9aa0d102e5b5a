//! What the tests of several crates share: chance that can be rerun, a clock that never ticks by itself, inputs cut at
//! random, and builders of frames that no honest peer would send.
//!
//! It owns no protocol rule: whatever judges bytes is in the cores, and nothing here stands in for a part of them.

pub mod clock;
pub mod end;
pub mod frame;
pub mod http2;
pub mod pair;
pub mod rng;
pub mod split;

pub use clock::Clock;
pub use end::{End, Received};
pub use frame::Frame;
pub use pair::Pair;
pub use rng::{Rng, generator, generators, rounds};
