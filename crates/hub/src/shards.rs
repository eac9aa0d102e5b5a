//! A map from channel names, sharded so that different channels rarely contend for a lock.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const SHARDS: usize = 64;

type Shard<T> = HashMap<Arc<str>, T>;

/// A map from channel names, in shards with a lock each.
#[derive(Debug)]
pub(crate) struct Shards<T> {
    shards: Box<[Mutex<Shard<T>>]>,
    hasher: RandomState,
}

impl<T> Shards<T> {
    pub(crate) fn new() -> Self {
        Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect(), hasher: RandomState::new() }
    }

    /// Locks the shard that contains `name`.
    pub(crate) fn lock(&self, name: &str) -> MutexGuard<'_, Shard<T>> {
        let shard = self.hasher.hash_one(name) as usize % SHARDS;
        lock(&self.shards[shard])
    }

    /// Locks every shard, one after the other.
    pub(crate) fn each(&self) -> impl Iterator<Item = MutexGuard<'_, Shard<T>>> {
        self.shards.iter().map(lock)
    }
}

/// Locks a mutex whose data is valid even if a thread panicked while holding the lock.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
