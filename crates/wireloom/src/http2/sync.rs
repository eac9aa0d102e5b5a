//! The synchronization primitives of this module, in one place so that a model checker can replace them.

pub(super) use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
