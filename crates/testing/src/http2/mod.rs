//! HTTP/2 for tests: frames, valid or not, and both ends of a connection joined in memory.

mod frame;
mod pair;

pub use frame::{Frame, GET, POST, PREFACE, block, code, flag, join, kind, literal, split};
pub use pair::{End, Fields, Pair, Received};
