//! Objects that C refers to by number.
//!
//! ```text
//! id   | type: 8 bits | generation: 28 bits | index: 28 bits |        0 is no handle
//! ```
//!
//! Freeing an object changes the generation of its slot, so that old numbers are noticed. A slot whose generations are used up is not
//! used again. Slots themselves are never freed: they take 32 bytes each, for as many objects as ever existed at once.

use std::ops::Deref;
use std::sync::{Mutex, OnceLock, PoisonError, RwLock, TryLockError, TryLockResult};

use crate::status::wl_status;

const INDEX_BITS: u32 = 28;
const GENERATION_MAX: u32 = (1 << 28) - 1;
/// Chunk `n` has `FIRST << n` slots.
const FIRST: usize = 64;
const CHUNKS: usize = 22;

/// The objects of one type.
pub(crate) struct Table<T> {
    kind: u8,
    chunks: [OnceLock<Box<[Slot<T>]>>; CHUNKS],
    free: Mutex<Free>,
}

struct Free {
    /// Slots whose objects were freed.
    indexes: Vec<u32>,
    /// Slots that were used at least once.
    used: u32,
}

type Slot<T> = RwLock<Entry<T>>;

struct Entry<T> {
    generation: u32,
    object: Option<Box<T>>,
}

impl<T> Table<T> {
    /// `kind` is not 0 and differs between tables.
    pub(crate) const fn new(kind: u8) -> Self {
        assert!(kind != 0);
        let free = Mutex::new(Free { indexes: Vec::new(), used: 0 });
        Self { kind, chunks: [const { OnceLock::new() }; CHUNKS], free }
    }

    /// Stores an object; returns its handle.
    pub(crate) fn insert(&self, object: T) -> Result<u64, wl_status> {
        let object = Box::new(object);
        let index = {
            let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
            match free.indexes.pop() {
                Some(index) => index,
                None => {
                    let index = free.used;
                    let (chunk, _) = position(index).ok_or(wl_status::TooManyHandles)?;
                    self.chunks[chunk].get_or_init(|| {
                        let slots = || RwLock::new(Entry { generation: 1, object: None });
                        std::iter::repeat_with(slots).take(FIRST << chunk).collect()
                    });
                    free.used += 1;
                    index
                }
            }
        };
        let slot = self.slot(index).ok_or(wl_status::TooManyHandles)?;
        let mut entry = slot.write().unwrap_or_else(PoisonError::into_inner);
        entry.object = Some(object);
        Ok(u64::from(self.kind) << 56 | u64::from(entry.generation) << INDEX_BITS | u64::from(index))
    }

    /// Calls `f` with the object.
    #[inline]
    pub(crate) fn with<R>(
        &self,
        id: u64,
        f: impl FnOnce(&mut T) -> Result<R, wl_status>,
    ) -> Result<R, wl_status> {
        let (slot, generation) = self.find(id)?;
        let mut entry = current(slot.try_write(), generation)?;
        f(entry.object.as_mut().ok_or(wl_status::InvalidHandle)?)
    }

    /// Calls `f` with an object that does not change. Any number of threads may do so at once.
    #[inline]
    pub(crate) fn with_shared<R>(
        &self,
        id: u64,
        f: impl FnOnce(&T) -> Result<R, wl_status>,
    ) -> Result<R, wl_status> {
        let (slot, generation) = self.find(id)?;
        let entry = current(slot.try_read(), generation)?;
        f(entry.object.as_ref().ok_or(wl_status::InvalidHandle)?)
    }

    /// Drops the object. 0 is allowed.
    pub(crate) fn remove(&self, id: u64) -> Result<(), wl_status> {
        if id == 0 {
            return Ok(());
        }
        let (slot, generation) = self.find(id)?;
        let object = {
            let mut entry = match slot.try_write() {
                Ok(entry) => entry,
                Err(TryLockError::WouldBlock) => return Err(wl_status::Busy),
                Err(TryLockError::Poisoned(entry)) => entry.into_inner(),
            };
            if entry.generation != generation || entry.object.is_none() {
                return Err(wl_status::InvalidHandle);
            }
            entry.generation += 1;
            entry.object.take()
        };
        slot.clear_poison();
        if generation < GENERATION_MAX {
            let index = (id & ((1 << INDEX_BITS) - 1)) as u32;
            self.free.lock().unwrap_or_else(PoisonError::into_inner).indexes.push(index);
        }
        drop(object);
        Ok(())
    }

    #[inline]
    fn find(&self, id: u64) -> Result<(&Slot<T>, u32), wl_status> {
        let index = (id & ((1 << INDEX_BITS) - 1)) as u32;
        let generation = (id >> INDEX_BITS) as u32 & GENERATION_MAX;
        let slot = if (id >> 56) as u8 == self.kind { self.slot(index) } else { None };
        Ok((slot.ok_or(wl_status::InvalidHandle)?, generation))
    }

    #[inline]
    fn slot(&self, index: u32) -> Option<&Slot<T>> {
        let (chunk, at) = position(index)?;
        self.chunks[chunk].get()?.get(at)
    }
}

/// The entry of a slot that was locked, if its object is of this generation and can be used.
#[inline]
fn current<T, G: Deref<Target = Entry<T>>>(
    locked: TryLockResult<G>,
    generation: u32,
) -> Result<G, wl_status> {
    match locked {
        Ok(entry) if entry.generation == generation => Ok(entry),
        Err(TryLockError::Poisoned(entry)) if entry.get_ref().generation == generation => {
            Err(wl_status::Panicked)
        }
        Err(TryLockError::WouldBlock) => Err(wl_status::Busy),
        _ => Err(wl_status::InvalidHandle),
    }
}

/// The chunk of a slot, and its place there.
#[inline]
fn position(index: u32) -> Option<(usize, usize)> {
    let number = index as usize / FIRST + 1;
    let chunk = number.ilog2() as usize;
    (chunk < CHUNKS).then(|| (chunk, index as usize - FIRST * ((1 << chunk) - 1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_numbered_without_gaps() {
        let mut next = (0, 0);
        for index in 0..100_000 {
            assert_eq!(position(index), Some(next));
            next.1 += 1;
            if next.1 == FIRST << next.0 {
                next = (next.0 + 1, 0);
            }
        }
        let last = FIRST as u32 * ((1 << CHUNKS) - 1) - 1;
        assert_eq!(position(last), Some((CHUNKS - 1, (FIRST << (CHUNKS - 1)) - 1)));
        assert_eq!(position(last + 1), None);
    }

    #[test]
    fn old_numbers_are_noticed() {
        static TABLE: Table<u32> = Table::new(7);
        let first = TABLE.insert(1).unwrap();
        assert_eq!(TABLE.with(first, |value| Ok(*value)), Ok(1));
        assert_eq!(TABLE.remove(first), Ok(()));
        assert_eq!(TABLE.remove(first), Err(wl_status::InvalidHandle));
        let second = TABLE.insert(2).unwrap();
        assert_ne!(first, second);
        assert_eq!(TABLE.with(first, |value| Ok(*value)), Err(wl_status::InvalidHandle));
        assert_eq!(TABLE.with(second, |value| Ok(*value)), Ok(2));
        for other in [second ^ 1 << 56, second + 1, second + (1 << INDEX_BITS), u64::MAX, 0] {
            assert_eq!(TABLE.with(other, |value| Ok(*value)), Err(wl_status::InvalidHandle), "{other:x}");
        }
        assert_eq!(TABLE.remove(0), Ok(()));
    }

    #[test]
    fn a_handle_in_use_is_busy() {
        static TABLE: Table<u32> = Table::new(7);
        let id = TABLE.insert(1).unwrap();
        TABLE
            .with(id, |_| {
                assert_eq!(TABLE.with(id, |_| Ok(())), Err(wl_status::Busy));
                assert_eq!(TABLE.remove(id), Err(wl_status::Busy));
                Ok(())
            })
            .unwrap();
        TABLE.remove(id).unwrap();
    }

    #[test]
    fn a_shared_object_is_used_by_many_and_freed_by_none_of_them() {
        static TABLE: Table<u32> = Table::new(7);
        let id = TABLE.insert(1).unwrap();
        TABLE
            .with_shared(id, |_| {
                assert_eq!(TABLE.with_shared(id, |value| Ok(*value)), Ok(1));
                assert_eq!(TABLE.with(id, |_| Ok(())), Err(wl_status::Busy));
                assert_eq!(TABLE.remove(id), Err(wl_status::Busy));
                Ok(())
            })
            .unwrap();
        assert_eq!(TABLE.remove(id), Ok(()));
        assert_eq!(TABLE.with_shared(id, |_| Ok(())), Err(wl_status::InvalidHandle));
    }

    #[test]
    fn after_a_panic_a_handle_can_only_be_freed() {
        static TABLE: Table<u32> = Table::new(7);
        let id = TABLE.insert(1).unwrap();
        let result = std::panic::catch_unwind(|| {
            TABLE.with(id, |_| -> Result<(), wl_status> { panic!("on purpose") })
        });
        assert!(result.is_err());
        assert_eq!(TABLE.with(id, |_| Ok(())), Err(wl_status::Panicked));
        assert_eq!(TABLE.remove(id), Ok(()));
        // The slot serves the next object.
        let next = TABLE.insert(2).unwrap();
        assert_eq!(TABLE.with(next, |value| Ok(*value)), Ok(2));
        assert_eq!(TABLE.with(id, |_| Ok(())), Err(wl_status::InvalidHandle));
    }

    #[test]
    fn many_objects_keep_their_numbers() {
        static TABLE: Table<u32> = Table::new(7);
        let ids: Vec<u64> = (0..1_000).map(|value| TABLE.insert(value).unwrap()).collect();
        for (value, id) in (0..).zip(&ids) {
            assert_eq!(TABLE.with(*id, |found| Ok(*found)), Ok(value));
        }
        ids.into_iter().for_each(|id| TABLE.remove(id).unwrap());
    }
}
