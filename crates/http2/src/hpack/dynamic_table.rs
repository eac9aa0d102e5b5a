//! The dynamic table (RFC 7541 §2.3.2 and §4).
//!
//! Owns the bytes of its entries, in one buffer in the order in which they came, and what evicts them. Refuses to own
//! how entries are found by name: the encoder chains them through the `E` that each entry carries.
//!
//! ```text
//! bytes    |..gone..|oldest entry|...|newest entry|....free....|   what is gone is reclaimed by moving the rest
//!                   ^ start                       ^ tail           to the front, when the free end is used up
//! entries  a ring, a power of two long: entry number n is at n & mask; numbers count up and wrap
//! ```
//!
//! Evicting moves nothing, and each byte is moved about once in its life, so a field costs O(its length). An entry
//! whose name has a token does not store it. Memory grows with what is stored and starts at nothing.

use alloc::vec::Vec;

use crate::field::Token;

/// What an entry counts for beyond its bytes (RFC 7541 §4.1).
const OVERHEAD: usize = 32;

/// The largest table there is, so that offsets of 32 bits do.
pub(crate) const SIZE_LIMIT: u32 = 1 << 30;

#[derive(Clone, Copy, Default)]
struct Slot<E> {
    /// Where the entry begins, counted from the first byte that the table ever held (wrapping).
    start: u32,
    name_len: u32,
    value_len: u32,
    token: Token,
    flags: u8,
    extra: E,
}

/// An entry, borrowed.
#[derive(Clone, Copy)]
pub(crate) struct Entry<'a> {
    pub(crate) token: Token,
    /// Empty when there is a token.
    pub(crate) name: &'a [u8],
    pub(crate) value: &'a [u8],
    /// Whatever the one who inserted it wanted to remember.
    pub(crate) flags: u8,
}

impl Entry<'_> {
    /// The name's length, whether stored or known.
    #[inline]
    pub(crate) fn name_len(&self) -> usize {
        self.name.len() + self.token.name().len()
    }
}

/// The table; `E` is what each entry carries beside its field.
pub(crate) struct DynamicTable<E> {
    bytes: Vec<u8>,
    /// The number, in `Slot::start`'s count, of `bytes[0]`.
    base: u32,
    /// `bytes[..tail]` is used.
    tail: usize,
    /// Empty or a power of two long.
    slots: Vec<Slot<E>>,
    /// How many entries were ever inserted (wrapping), and how many of them are left.
    inserted: u32,
    len: u32,
    /// `0 <= size <= size_max`, as RFC 7541 §4.1 counts.
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

    #[inline]
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    #[inline]
    pub(crate) fn size_max(&self) -> usize {
        self.size_max
    }

    /// How many entries were ever inserted: the number of the next one. It wraps.
    #[inline]
    pub(crate) fn inserted(&self) -> u32 {
        self.inserted
    }

    /// How many entries fit before the ring must grow.
    #[inline]
    pub(crate) fn capacity(&self) -> usize {
        self.slots.len()
    }

    #[cfg(test)]
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// The entry inserted `age` entries before the newest, which has age 0.
    #[inline]
    pub(crate) fn get(&self, age: u32) -> Option<Entry<'_>> {
        if age >= self.len {
            return None;
        }
        let slot = &self.slots[self.at(self.inserted.wrapping_sub(1).wrapping_sub(age))];
        let start = slot.start.wrapping_sub(self.base) as usize;
        let both = &self.bytes[start..start + (slot.name_len + slot.value_len) as usize];
        let (name, value) = both.split_at(slot.name_len as usize);
        Some(Entry { token: slot.token, name, value, flags: slot.flags })
    }

    /// The field of the entry of that age.
    #[inline]
    pub(crate) fn extra(&self, age: u32) -> Option<E> {
        if age >= self.len {
            return None;
        }
        Some(self.slots[self.at(self.inserted.wrapping_sub(1).wrapping_sub(age))].extra)
    }

    /// Changes what the entry of that age carries: `age < len`.
    pub(crate) fn set_extra(&mut self, age: u32, extra: E) {
        debug_assert!(age < self.len);
        let at = self.at(self.inserted.wrapping_sub(1).wrapping_sub(age));
        self.slots[at].extra = extra;
    }

    #[inline]
    fn at(&self, number: u32) -> usize {
        number as usize & self.slots.len().wrapping_sub(1)
    }

    /// Inserts an entry, evicting from the oldest on until it fits; `name` is empty when there is a token. `false`
    /// when it does not fit at all, which leaves the table empty (RFC 7541 §4.4).
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
        let at = self.at(self.inserted);
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

    /// Changes the maximum size; evicts what no longer fits (RFC 7541 §4.3).
    pub(crate) fn set_size_max(&mut self, size_max: u32) {
        self.size_max = size_max.min(SIZE_LIMIT) as usize;
        self.evict_to(self.size_max);
        if self.size_max == 0 {
            self.bytes = Vec::new();
            self.tail = 0;
        }
    }

    #[inline]
    fn evict_to(&mut self, size: usize) {
        while self.size > size {
            let slot = &self.slots[self.at(self.inserted.wrapping_sub(self.len))];
            let stored = (slot.name_len + slot.value_len) as usize;
            self.size -= stored + slot.token.name().len() + OVERHEAD;
            self.len -= 1;
        }
    }

    fn evict_all(&mut self) {
        self.len = 0;
        self.size = 0;
    }

    /// Moves what is left to the front, into a larger buffer when that frees less than half.
    #[cold]
    fn make_room(&mut self, needed: usize) {
        let start = if self.len == 0 {
            self.tail
        } else {
            let oldest = &self.slots[self.at(self.inserted.wrapping_sub(self.len))];
            oldest.start.wrapping_sub(self.base) as usize
        };
        let live = self.tail - start;
        self.bytes.copy_within(start..self.tail, 0);
        self.base = self.base.wrapping_add(start as u32);
        self.tail = live;
        if self.bytes.len() < 2 * (live + needed) {
            // At most four times what the table may store.
            self.bytes.resize((2 * (live + needed)).next_power_of_two().max(128), 0);
        }
    }

    #[cold]
    fn grow_ring(&mut self) {
        let old = core::mem::take(&mut self.slots);
        self.slots.resize((old.len() * 2).max(8), Slot::default());
        for age in 1..=self.len {
            let number = self.inserted.wrapping_sub(age);
            let at = self.at(number);
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
        // Numbers that wrap, both of them.
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
    fn holds_no_memory_until_used() {
        let mut table = DynamicTable::<()>::new(4096);
        assert_eq!(table.bytes.capacity() + table.slots.capacity(), 0);
        table.insert(Token::Date, b"", b"today", 0, ());
        assert!(table.bytes.capacity() + table.slots.capacity() * size_of::<Slot<()>>() <= 300);
    }
}
