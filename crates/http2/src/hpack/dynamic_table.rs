//! The dynamic table (RFC 7541 §2.3.2 and §4).
//!
//! [`DynamicTable`] stores entries and evicts the oldest. It does not find entries by name: the encoder links them through
//! the `E` that each entry carries.
//!
//! ```text
//! bytes    |.evicted.|oldest entry|...|newest entry|....free....|
//!                    ^ start                       ^ tail
//! entries  a ring whose length is a power of two: entry number n is at n & mask; numbers increase and wrap
//! ```
//!
//! Eviction moves no bytes. When the free end is used up, the live entries move to the front. Each byte is moved about once, so
//! inserting a field costs O(its length). The name of an entry is not stored if it has a token. An empty table owns no memory.

use alloc::vec::Vec;

use crate::field::Token;

/// The size of an entry without its name and value (RFC 7541 §4.1).
const OVERHEAD: usize = 32;

/// The maximum size of any table, so that 32-bit offsets suffice.
pub(crate) const SIZE_LIMIT: u32 = 1 << 30;

#[derive(Clone, Copy, Default)]
struct Slot<E> {
    /// The offset of the entry from the first byte that was ever stored (wrapping).
    start: u32,
    name_len: u32,
    value_len: u32,
    token: Token,
    flags: u8,
    extra: E,
}

/// A borrowed entry.
#[derive(Clone, Copy)]
pub(crate) struct Entry<'a> {
    pub(crate) token: Token,
    /// Empty when there is a token.
    pub(crate) name: &'a [u8],
    pub(crate) value: &'a [u8],
    /// The flags that were passed to [`DynamicTable::insert`].
    pub(crate) flags: u8,
}

impl Entry<'_> {
    /// The length of the name, whether it is stored or given by the token.
    pub(crate) fn name_len(&self) -> usize {
        self.name.len() + self.token.name().len()
    }
}

/// The dynamic table. Each entry carries an `E` beside its field.
pub(crate) struct DynamicTable<E> {
    bytes: Vec<u8>,
    /// The offset of `bytes[0]`, counted as `Slot::start`.
    base: u32,
    /// `bytes[..tail]` is in use.
    tail: usize,
    /// Empty, or its length is a power of two.
    slots: Vec<Slot<E>>,
    /// The number of entries that were ever inserted (wrapping), and the number that are in the table.
    inserted: u32,
    len: u32,
    /// `0 <= size <= size_max`, in bytes as RFC 7541 §4.1 counts them.
    size: usize,
    size_max: usize,
}

impl<E: Copy + Default> DynamicTable<E> {
    pub(crate) const fn new(size_max: u32) -> Self {
        let size_max = if size_max < SIZE_LIMIT { size_max } else { SIZE_LIMIT };
        Self {
            bytes: Vec::new(),
            base: 0,
            tail: 0,
            slots: Vec::new(),
            inserted: 0,
            len: 0,
            size: 0,
            size_max: size_max as usize,
        }
    }

    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    pub(crate) fn size_max(&self) -> usize {
        self.size_max
    }

    /// The number of the next entry: the number of entries that were ever inserted (wrapping).
    pub(crate) fn inserted(&self) -> u32 {
        self.inserted
    }

    /// The number of entries that fit before the ring grows.
    pub(crate) fn capacity(&self) -> usize {
        self.slots.len()
    }

    #[cfg(test)]
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// The entry of this age. The newest has age 0.
    pub(crate) fn get(&self, age: u32) -> Option<Entry<'_>> {
        if age >= self.len {
            return None;
        }
        let slot = &self.slots[self.slot_of(self.inserted.wrapping_sub(1).wrapping_sub(age))];
        let start = slot.start.wrapping_sub(self.base) as usize;
        let both = &self.bytes[start..start + (slot.name_len + slot.value_len) as usize];
        let (name, value) = both.split_at(slot.name_len as usize);
        Some(Entry { token: slot.token, name, value, flags: slot.flags })
    }

    /// The `E` of the entry of this age.
    pub(crate) fn extra(&self, age: u32) -> Option<E> {
        if age >= self.len {
            return None;
        }
        Some(self.slots[self.slot_of(self.inserted.wrapping_sub(1).wrapping_sub(age))].extra)
    }

    /// Replaces the `E` of the entry of this age: `age < len`.
    pub(crate) fn set_extra(&mut self, age: u32, extra: E) {
        debug_assert!(age < self.len);
        let at = self.slot_of(self.inserted.wrapping_sub(1).wrapping_sub(age));
        self.slots[at].extra = extra;
    }

    fn slot_of(&self, number: u32) -> usize {
        number as usize & self.slots.len().wrapping_sub(1)
    }

    /// Inserts an entry and evicts the oldest ones until it fits; `name` is empty if there is a token. Returns `false` if the
    /// entry is larger than the table, which is empty then (RFC 7541 §4.4).
    pub(crate) fn insert(&mut self, token: Token, name: &[u8], value: &[u8], flags: u8, extra: E) -> bool {
        let entry_size = name.len() + token.name().len() + value.len() + OVERHEAD;
        if entry_size > self.size_max {
            self.evict_all();
            return false;
        }
        self.evict_to(self.size_max - entry_size);
        let stored = name.len() + value.len();
        if self.bytes.len() - self.tail < stored {
            self.make_room(stored);
        }
        if self.len as usize == self.slots.len() {
            self.grow_ring();
        }
        let room = &mut self.bytes[self.tail..self.tail + stored];
        let (name_room, value_room) = room.split_at_mut(name.len());
        name_room.copy_from_slice(name);
        value_room.copy_from_slice(value);
        let at = self.slot_of(self.inserted);
        self.slots[at] = Slot {
            start: self.base.wrapping_add(self.tail as u32),
            name_len: name.len() as u32,
            value_len: value.len() as u32,
            token,
            flags,
            extra,
        };
        self.tail += stored;
        self.inserted = self.inserted.wrapping_add(1);
        self.len += 1;
        self.size += entry_size;
        true
    }

    /// Changes the maximum size and evicts entries that no longer fit (RFC 7541 §4.3).
    pub(crate) fn set_size_max(&mut self, size_max: u32) {
        self.size_max = size_max.min(SIZE_LIMIT) as usize;
        self.evict_to(self.size_max);
        if self.size_max == 0 {
            self.bytes = Vec::new();
            self.tail = 0;
        }
    }

    fn evict_to(&mut self, size: usize) {
        while self.size > size {
            let slot = &self.slots[self.slot_of(self.inserted.wrapping_sub(self.len))];
            let stored = (slot.name_len + slot.value_len) as usize;
            self.size -= stored + slot.token.name().len() + OVERHEAD;
            self.len -= 1;
        }
    }

    fn evict_all(&mut self) {
        self.len = 0;
        self.size = 0;
    }

    /// Moves the live entries to the front, and enlarges the buffer if less than half of it is free then.
    #[cold]
    fn make_room(&mut self, needed: usize) {
        let start = if self.len == 0 {
            self.tail
        } else {
            let oldest = &self.slots[self.slot_of(self.inserted.wrapping_sub(self.len))];
            oldest.start.wrapping_sub(self.base) as usize
        };
        let live = self.tail - start;
        self.bytes.copy_within(start..self.tail, 0);
        self.base = self.base.wrapping_add(start as u32);
        self.tail = live;
        if self.bytes.len() < 2 * (live + needed) {
            // At most four times the maximum size of the table.
            self.bytes.resize((2 * (live + needed)).next_power_of_two().max(128), 0);
        }
    }

    #[cold]
    fn grow_ring(&mut self) {
        let old = core::mem::take(&mut self.slots);
        self.slots.resize((old.len() * 2).max(8), Slot::default());
        for age in 1..=self.len {
            let number = self.inserted.wrapping_sub(age);
            let at = self.slot_of(number);
            self.slots[at] = old[number as usize & (old.len() - 1)];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::{collections::VecDeque, vec, vec::Vec};

    #[test]
    fn an_entry_larger_than_the_table_empties_it() {
        // RFC 7541 §4.4: it is not an error to add an entry larger than the maximum size.
        let mut table = DynamicTable::<()>::new(100);
        assert!(table.insert(Token::Unknown, b"a", b"b", 0, ()));
        assert!(!table.insert(Token::Unknown, b"a", &[b'b'; 68], 0, ()));
        assert_eq!((table.len(), table.size()), (0, 0));
        assert!(table.insert(Token::Unknown, b"a", &[b'b'; 67], 0, ()));
        assert_eq!((table.len(), table.size()), (1, 100));
    }

    type Model = VecDeque<(Vec<u8>, Vec<u8>, u8)>;

    fn size(model: &Model) -> usize {
        model.iter().map(|(name, value, _)| name.len() + value.len() + 32).sum()
    }

    #[test]
    fn equals_a_naive_queue() {
        wireloom_testing::rounds(8, model_round);
    }

    fn model_round(random: &mut wireloom_testing::Rng) {
        let mut table = DynamicTable::<u32>::new(4096);
        let mut model = Model::new();
        let mut size_max = 4096;
        // Both numbers wrap during the test.
        table.inserted = u32::MAX - 2000;
        table.base = u32::MAX - 2000;
        for _ in 0..4_000 {
            if random.u8(..) < 2 {
                size_max = [0, 64, 500, 4096, 70_000][random.usize(..5)];
                table.set_size_max(size_max as u32);
            } else {
                let known = random.bool();
                let name = match known {
                    true => Token::ALL[random.usize(1..Token::ALL.len())].name().as_bytes().to_vec(),
                    false => vec![b'A'; random.usize(..40)],
                };
                let longest = if random.u8(..) == 0 { 6000 } else { 90 };
                let value = vec![random.u8(..); random.usize(..longest)];
                let stored = if known { &[] } else { &name[..] };
                let fits = name.len() + value.len() + 32 <= size_max;
                let flags = random.u8(..);
                let extra = table.inserted();
                assert_eq!(table.insert(Token::of(&name), stored, &value, flags, extra), fits);
                model.push_front((name, value, flags));
            }
            while size(&model) > size_max {
                model.pop_back();
            }
            assert_eq!((table.len() as usize, table.size()), (model.len(), size(&model)));
            for (age, (name, value, flags)) in model.iter().enumerate() {
                let entry = table.get(age as u32).unwrap();
                let stored =
                    if entry.token == Token::Unknown { entry.name } else { entry.token.name().as_bytes() };
                assert_eq!((stored, entry.value, entry.flags), (&name[..], &value[..], *flags));
                assert_eq!(entry.name_len(), name.len());
                let number = table.inserted().wrapping_sub(1).wrapping_sub(age as u32);
                assert_eq!(table.extra(age as u32), Some(number));
            }
            assert!(table.get(model.len() as u32).is_none() && table.extra(model.len() as u32).is_none());
            assert!(table.bytes.len() <= 4 * 70_000 + 128);
        }
    }

    #[test]
    fn memory_does_not_grow_while_entries_are_replaced() {
        let mut table = DynamicTable::<()>::new(4096);
        for n in 0..10_000 {
            assert!(table.insert(Token::Unknown, b"name", &vec![7; 50 + n % 50], 0, ()));
        }
        assert!(table.bytes.len() <= 4 * 4096 && table.slots.len() <= 64, "{}", table.bytes.len());
    }

    #[test]
    fn an_empty_table_owns_no_memory() {
        let mut table = DynamicTable::<()>::new(4096);
        assert_eq!(table.bytes.capacity() + table.slots.capacity(), 0);
        table.insert(Token::Date, b"", b"today", 0, ());
        assert!(table.bytes.capacity() + table.slots.capacity() * size_of::<Slot<()>>() <= 300);
    }
}
