//! [`Slab`] stores the records of open streams in pages. Streams are inserted, found and removed in O(1).
//!
//! A [`StreamKey`] finds a record by its slot, without hashing. A frame finds it by its identifier, in a hash table whose chains
//! link the records:
//!
//! ```text
//! buckets  [slot][NONE][slot]...          1 to 4 for each stream, 4 bytes each
//!            |            `-> record.next_in_bucket -> record.next_in_bucket -> NONE
//! pages    [32 records of 64 bytes][32 records]...   records never move
//! ```
//!
//! Identifiers are consecutive, and `n` consecutive streams use `n` buckets in their order: no two share a chain, and sixteen
//! neighbours share a cache line. Each lap over the buckets begins at a different bucket, which a keyed multiplicative hash
//! chooses: a peer that chooses colliding identifiers has to guess the key. (An identity hash with linear probing cost 150 µs
//! per stream with 100,000 open ones. A hash that scatters neighbours costs cache misses.) To open a stream, find it for four frames
//! and close it takes 160 instructions with 100 and with 100,000 open ones; with a `HashMap` it takes 800 to 900, with a `BTreeMap`
//! 1,100 to 2,300.
//!
//! ```text
//! number   0 ........ n-1   n ........ 2n-1   2n ...         n buckets
//! bucket   0 ........ n-1   t(1) ... t(1)-1   t(2) ...       modulo n; t: a multiple of sixteen
//! ```

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

use super::{Stream, StreamKey};
use crate::frame::StreamId;

/// No slot.
pub(crate) const NONE: u32 = u32::MAX;

/// `next_in_bucket` of a record that only its key finds.
const UNLISTED: u32 = NONE - 1;

const PAGE_BITS: u32 = 5;
const PAGE_LEN: usize = 1 << PAGE_BITS;
const BUCKETS_MIN: usize = 16;
/// Laps begin at multiples of this, so that neighbours share a cache line of buckets.
const TURN: usize = 16;

type Page = [Stream; PAGE_LEN];

pub(crate) struct Slab {
    #[expect(clippy::vec_box, reason = "records must not move when pages are added")]
    pages: Vec<Box<Page>>,
    /// Empty, or its length is a power of two of at least `BUCKETS_MIN`.
    buckets: Vec<u32>,
    hash_key: u64,
    /// The first vacant slot. `next_in_bucket` links the vacant slots.
    vacant: u32,
    /// Slots below this are occupied or in the vacant list: `used <= pages.len() * PAGE_LEN`.
    used: u32,
    len: u32,
    /// The maximum of `len` since the slab was last empty, and in the period before that.
    peak: u32,
    peak_before: u32,
}

impl Slab {
    pub(crate) const fn new(hash_key: u64) -> Self {
        Self {
            pages: Vec::new(),
            buckets: Vec::new(),
            hash_key,
            vacant: NONE,
            used: 0,
            len: 0,
            peak: 0,
            peak_before: 0,
        }
    }

    /// The number of streams.
    #[inline]
    pub(crate) const fn len(&self) -> u32 {
        self.len
    }

    #[inline]
    fn bucket_of(&self, id: StreamId) -> usize {
        let number = (id.get() >> 1) as usize;
        let lap = (number >> self.buckets.len().trailing_zeros()) as u64;
        let turn = (lap.wrapping_mul(self.hash_key) >> 32) as usize;
        number.wrapping_add(turn.wrapping_mul(TURN)) & (self.buckets.len() - 1)
    }

    /// The slot of an identifier.
    #[inline]
    pub(crate) fn find(&self, id: StreamId) -> Option<u32> {
        if self.len == 0 {
            return None;
        }
        let mut slot = self.buckets[self.bucket_of(id)];
        while slot != NONE {
            let stream = self.get(slot);
            if stream.id == id {
                return Some(slot);
            }
            slot = stream.next_in_bucket;
        }
        None
    }

    /// The slot of a key; `None` if its stream has been removed.
    #[inline]
    pub(crate) fn slot(&self, key: StreamKey) -> Option<u32> {
        let slot = key.slot_u32();
        let page = self.pages.get(slot as usize >> PAGE_BITS)?;
        (page[slot as usize & (PAGE_LEN - 1)].id == key.stream_id()).then_some(slot)
    }

    #[inline]
    pub(crate) fn key(&self, slot: u32) -> StreamKey {
        StreamKey::new(slot, self.get(slot).id)
    }

    #[inline]
    pub(crate) fn get(&self, slot: u32) -> &Stream {
        &self.pages[slot as usize >> PAGE_BITS][slot as usize & (PAGE_LEN - 1)]
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, slot: u32) -> &mut Stream {
        &mut self.pages[slot as usize >> PAGE_BITS][slot as usize & (PAGE_LEN - 1)]
    }

    /// Inserts a stream, whose identifier is new and not 0.
    #[inline]
    pub(crate) fn insert(&mut self, stream: Stream) -> u32 {
        let slot = self.insert_unlisted(stream);
        self.list(slot);
        slot
    }

    /// Inserts a stream that [`Slab::find`] does not find until [`Slab::list`].
    #[inline]
    pub(crate) fn insert_unlisted(&mut self, mut stream: Stream) -> u32 {
        debug_assert!(!stream.id.is_connection());
        if self.len as usize == self.buckets.len() {
            self.grow_buckets();
        }
        let slot = if self.vacant != NONE {
            let slot = self.vacant;
            self.vacant = self.get(slot).next_in_bucket;
            slot
        } else {
            let slot = self.used;
            if slot as usize == self.pages.len() * PAGE_LEN {
                self.grow_pages();
            }
            self.used += 1;
            slot
        };
        stream.next_in_bucket = UNLISTED;
        *self.get_mut(slot) = stream;
        self.len += 1;
        self.peak = self.peak.max(self.len);
        slot
    }

    /// Makes an unlisted stream known by its identifier.
    #[inline]
    pub(crate) fn list(&mut self, slot: u32) {
        let bucket = self.bucket_of(self.get(slot).id);
        let next = core::mem::replace(&mut self.buckets[bucket], slot);
        self.get_mut(slot).next_in_bucket = next;
    }

    /// Removes a stream.
    #[inline]
    pub(crate) fn remove(&mut self, slot: u32) {
        let Stream { id, next_in_bucket, .. } = *self.get(slot);
        debug_assert!(!id.is_connection());
        let bucket = self.bucket_of(id);
        let mut at = self.buckets[bucket];
        if next_in_bucket == UNLISTED {
            // It is in no chain.
        } else if at == slot {
            self.buckets[bucket] = next_in_bucket;
        } else {
            while self.get(at).next_in_bucket != slot {
                at = self.get(at).next_in_bucket;
            }
            self.get_mut(at).next_in_bucket = next_in_bucket;
        }
        let vacant = self.vacant;
        let stream = self.get_mut(slot);
        stream.id = StreamId::CONNECTION;
        stream.next_in_bucket = vacant;
        self.vacant = slot;
        self.len -= 1;
        if self.len == 0 {
            self.reset_empty();
        }
    }

    /// Visits all streams in the order of their slots, unlisted ones too. O(slots): for rare events such as GOAWAY.
    pub(crate) fn for_each(&self, mut visit: impl FnMut(u32, &Stream)) {
        for slot in 0..self.used {
            let stream = self.get(slot);
            if !stream.id.is_connection() {
                visit(slot, stream);
            }
        }
    }

    /// Frees all memory if no stream is open. Records never move, so a slab in use frees nothing.
    pub(crate) fn shrink(&mut self) {
        if self.len == 0 {
            *self = Self::new(self.hash_key);
        }
    }

    /// The number of pages and buckets for which memory is allocated.
    #[cfg(test)]
    pub(crate) fn capacity(&self) -> usize {
        self.pages.capacity() + self.buckets.capacity()
    }

    /// Restarts at slot 0 when no stream is open. Frees memory if the last two periods needed less than half of it.
    fn reset_empty(&mut self) {
        self.vacant = NONE;
        self.used = 0;
        let wanted = self.peak.max(self.peak_before) as usize * 2;
        self.peak_before = core::mem::take(&mut self.peak);
        let pages = wanted.div_ceil(PAGE_LEN);
        if pages < self.pages.len() {
            self.pages.truncate(pages);
            self.pages.shrink_to_fit();
            let buckets = wanted.next_power_of_two().max(BUCKETS_MIN);
            if buckets < self.buckets.len() {
                self.buckets.truncate(buckets);
                self.buckets.shrink_to_fit();
            }
        }
    }

    #[cold]
    fn grow_pages(&mut self) {
        // Grows by an eighth instead of doubling.
        if self.pages.len() == self.pages.capacity() {
            self.pages.reserve_exact((self.pages.len() / 8).max(2));
        }
        self.pages.push(Box::new([Stream::VACANT; PAGE_LEN]));
    }

    /// Quadruples the buckets, and inserts all streams again.
    #[cold]
    fn grow_buckets(&mut self) {
        self.buckets = vec![NONE; (self.buckets.len() * 4).max(BUCKETS_MIN)];
        for slot in 0..self.used {
            // No slot is vacant: there are as many streams as there were buckets, and never were more.
            debug_assert!(!self.get(slot).id.is_connection());
            if self.get(slot).next_in_bucket != UNLISTED {
                self.list(slot);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{RecvPhase, SendPhase};
    use super::*;
    use alloc::collections::BTreeMap;
    use wireloom_testing::rounds;

    fn id_of(id: u32) -> StreamId {
        StreamId::new(id).unwrap()
    }

    fn stream(id: u32) -> Stream {
        Stream::new(id_of(id), RecvPhase::Content, SendPhase::Content)
    }

    #[test]
    fn equals_a_map_over_random_operations() {
        rounds(4, random_operations);
    }

    fn random_operations(random: &mut wireloom_testing::Rng) {
        let mut slab = Slab::new(random.u64(..));
        let mut model: BTreeMap<u32, u32> = BTreeMap::new();
        let mut id = 1;
        for round in 0..10_000 {
            // Phases of growth and of decline, so that it empties and fills again.
            let grow = if (round / 1500) % 2 == 0 { 70 } else { 25 };
            if random.u32(..100) < grow || model.is_empty() {
                id += 1 + random.u32(..4);
                let slot = slab.insert(stream(id));
                assert!(model.insert(id, slot).is_none());
            } else {
                let nth = random.usize(..model.len());
                let (&gone, &slot) = model.iter().nth(nth).unwrap();
                let key = slab.key(slot);
                slab.remove(slot);
                model.remove(&gone);
                assert_eq!((slab.find(id_of(gone)), slab.slot(key)), (None, None));
            }
            assert_eq!(slab.len() as usize, model.len());
        }
        for (&id, &slot) in &model {
            assert_eq!(slab.find(id_of(id)), Some(slot));
            assert_eq!(slab.slot(StreamKey::new(slot, id_of(id))), Some(slot));
        }
        let mut seen = 0;
        slab.for_each(|slot, stream| {
            assert_eq!(model.get(&stream.id.get()), Some(&slot));
            seen += 1;
        });
        assert_eq!(seen, model.len());
    }

    #[test]
    fn a_key_never_refers_to_a_later_stream() {
        let mut slab = Slab::new(7);
        let slot = slab.insert(stream(1));
        let old = slab.key(slot);
        slab.remove(slot);
        assert_eq!(slab.slot(old), None);
        let again = slab.insert(stream(3));
        assert_eq!(again, slot);
        assert_eq!(slab.slot(old), None);
        assert_eq!(slab.slot(slab.key(again)), Some(slot));
    }

    #[test]
    fn chains_stay_short_for_common_and_for_sparse_identifiers() {
        for step in [2, 4, 32, 64, 1024, 32 * 1024] {
            let mut slab = Slab::new(0x9e37_79b9_7f4a_7c15);
            let streams = 16 * 1024.min((1 << 30) / step);
            for n in 0..streams {
                slab.insert(stream(1 + n * step));
            }
            let mut walked = 0_u64;
            for n in 0..streams {
                let mut slot = slab.buckets[slab.bucket_of(id_of(1 + n * step))];
                while slab.get(slot).id != id_of(1 + n * step) {
                    slot = slab.get(slot).next_in_bucket;
                    walked += 1;
                }
            }
            // Spacing by 32 uses a sixteenth of the buckets: at most 16 to a chain, and no more however sparse.
            assert!(walked <= u64::from(streams) * 16, "step {step}: {walked} for {streams}");
            // As they are opened one after another, each has a bucket of its own.
            assert!(step > 2 || walked == 0, "{walked}");
        }
    }

    #[test]
    fn an_unlisted_stream_is_found_by_its_key_alone_until_it_is_listed() {
        let mut slab = Slab::new(1);
        let slots: Vec<u32> = (0..100).map(|n| slab.insert_unlisted(stream(2 * n + 1))).collect();
        let find = |slab: &Slab, n: usize| slab.find(id_of(2 * n as u32 + 1));
        assert!((0..100).all(|n| find(&slab, n).is_none() && slab.slot(slab.key(slots[n])).is_some()));
        slots.iter().step_by(2).for_each(|&slot| slab.list(slot));
        // The buckets grow again.
        for n in 100..1_000 {
            slab.insert(stream(2 * n + 1));
        }
        for (n, &slot) in slots.iter().enumerate() {
            assert_eq!(find(&slab, n), (n % 2 == 0).then_some(slot), "{n}");
        }
    }

    #[test]
    fn memory_is_freed_after_two_periods_that_did_not_need_it() {
        let mut slab = Slab::new(1);
        let mut id = 1;
        let mut round = |slab: &mut Slab, streams: u32| {
            let slots: Vec<u32> = (0..streams)
                .map(|_| {
                    id += 2;
                    slab.insert(stream(id))
                })
                .collect();
            slots.into_iter().for_each(|slot| slab.remove(slot));
        };
        round(&mut slab, 10_000);
        let pages = slab.pages.len();
        assert_eq!(pages, 10_000_usize.div_ceil(PAGE_LEN));
        assert!(slab.pages.capacity() <= pages + pages / 8 + 2, "{}", slab.pages.capacity());
        round(&mut slab, 10);
        assert_eq!(slab.pages.len(), pages);
        round(&mut slab, 10);
        assert_eq!(slab.pages.len(), 1);
        assert_eq!(slab.buckets.len(), 32);
        round(&mut slab, 10);
        assert_eq!(slab.pages.len(), 1);
        slab.shrink();
        assert_eq!((slab.pages.capacity(), slab.buckets.capacity()), (0, 0));
        round(&mut slab, 10);
    }
}
