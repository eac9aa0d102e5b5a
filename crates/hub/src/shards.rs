//! A map from channel names, split so that different channels rarely wait for one lock.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const SHARDS: usize = 64;

type Shard<T> = HashMap<Arc<str>, T>;

/// A map from channel names, in parts with a lock each.
#[derive(Debug)]
pub(crate) struct Shards<T> {
    shards: Box<[Mutex<Shard<T>>]>,
    hasher: RandomState,
}

impl<T> Shards<T> {
    pub(crate) fn new() -> Self {
        Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect(), hasher: RandomState::new() }
    }

    /// The part of the map that holds `name`.
    pub(crate) fn lock(&self, name: &str) -> MutexGuard<'_, Shard<T>> {
        let shard = self.hasher.hash_one(name) as usize % SHARDS;
        lock(&self.shards[shard])
    }

    /// Every part, one after the other.
    pub(crate) fn each(&self) -> impl Iterator<Item = MutexGuard<'_, Shard<T>>> {
        self.shards.iter().map(lock)
    }

    pub(crate) fn len(&self) -> usize {
        self.each().map(|shard| shard.len()).sum()
    }
}

/// A mutex whose data stays valid when a thread panics while it is locked.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
