//! The dynamic table (RFC 7541 §2.3.2 and §4) whose entries are Ruby Strings: a field that refers to an entry hands out the
//! Strings of that entry again, and nothing is made for it.
//!
//! ```text
//! entries  |newest|...|oldest|   index 62 is the front; entry number n is at inserted - 1 - n
//! by_field   hash of name and value -> number of the newest such entry        (from the first look-up on)
//! by_name    hash of name           -> number of the newest such entry
//! ```
//!
//! Entries leave in the order in which they came, so a number that points to one that is gone is simply stale.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use magnus::RString;
use magnus::rb_sys::AsRawValue;
use wireloom_http2::hpack::STATIC_LEN;

use super::statics;
use crate::held::{Held, Owner, plain, traced};
use crate::strings;

/// What an entry counts for beyond its bytes (RFC 7541 §4.1).
const OVERHEAD: usize = 32;

#[derive(Clone, Copy)]
struct Entry {
    name: Held,
    value: Held,
    size: usize,
    name_hash: u64,
    field_hash: u64,
}

traced!(Entry { name, value, size, name_hash, field_hash });

/// The table and the sizes that SETTINGS and the two ends agree on.
#[derive(Clone)]
pub(crate) struct Table {
    entries: VecDeque<Entry>,
    /// The number of entries that were ever added.
    inserted: u64,
    size: usize,
    /// The size in use by both ends: `size <= limit`.
    limit: usize,
    /// The size that SETTINGS allow, and the smallest that they allowed since the last block.
    max_limit: usize,
    lowest_max_limit: usize,
    /// None until the first look-up: decoders have none.
    lookup: Option<Lookup>,
    /// Room to decode strings in.
    pub(super) scratch: Vec<u8>,
}

plain!(Lookup);
traced!(Table { entries, inserted, size, limit, max_limit, lowest_max_limit, lookup, scratch });

#[derive(Clone, Default)]
struct Lookup {
    by_field: Numbers,
    by_name: Numbers,
}

impl Lookup {
    fn add(&mut self, entry: &mut Entry, number: u64) {
        entry.name_hash = hash(0, bytes(&entry.name));
        entry.field_hash = hash(entry.name_hash, bytes(&entry.value));
        self.by_name.insert(entry.name_hash, number);
        self.by_field.insert(entry.field_hash, number);
    }
}

type Numbers = HashMap<u64, u64, BuildHasherDefault<Hashed>>;

/// Keys are hashes already.
#[derive(Clone, Default)]
struct Hashed(u64);

impl Hasher for Hashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = hash(self.0, bytes);
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

/// Where a field was found: indices from 1, as on the wire.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) exact: Option<u32>,
    pub(crate) name: Option<u32>,
}

impl Table {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            entries: VecDeque::new(),
            inserted: 0,
            size: 0,
            limit,
            max_limit: limit,
            lowest_max_limit: limit,
            lookup: None,
            scratch: Vec::new(),
        }
    }

    /// Bytes held beside the Strings.
    pub(crate) fn heap_size(&self) -> usize {
        let numbers =
            self.lookup.as_ref().map_or(0, |lookup| lookup.by_field.capacity() + lookup.by_name.capacity());
        self.entries.capacity() * size_of::<Entry>() + numbers * 17 + self.scratch.capacity()
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) const fn size(&self) -> usize {
        self.size
    }

    pub(crate) const fn limit(&self) -> usize {
        self.limit
    }

    pub(crate) const fn max_limit(&self) -> usize {
        self.max_limit
    }

    /// The smallest size that SETTINGS asked for since the last block, when it is below the one in use.
    pub(crate) fn update_due(&self) -> Option<usize> {
        (self.lowest_max_limit < self.limit).then_some(self.lowest_max_limit)
    }

    /// The peer was told of every change.
    pub(crate) const fn settle(&mut self) {
        self.lowest_max_limit = self.max_limit;
    }

    /// What SETTINGS_HEADER_TABLE_SIZE allows from now on; the table itself changes with the next block.
    pub(crate) const fn set_max_limit(&mut self, size: usize) {
        self.max_limit = size;
        if size < self.lowest_max_limit {
            self.lowest_max_limit = size;
        }
    }

    /// RFC 7541 §4.3: changes the size in use and evicts what no longer fits.
    pub(crate) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
        self.evict_to(limit);
    }

    /// The entry at an index from 1, as on the wire.
    pub(crate) fn get(&self, index: u32) -> Option<(RString, RString)> {
        let index = index as usize;
        if index <= STATIC_LEN {
            return statics().get(index);
        }
        let entry = self.entries.get(index - STATIC_LEN - 1)?;
        Some((string(entry.name), string(entry.value)))
    }

    /// RFC 7541 §4.4: adds an entry, evicting until it fits; one that cannot fit empties the table. The Strings are frozen, and
    /// the table is `owner`'s.
    pub(crate) fn insert(&mut self, owner: Owner, name: RString, value: RString) {
        let size = name.len() + value.len() + OVERHEAD;
        if size > self.limit {
            self.evict_to(0);
            return;
        }
        self.evict_to(self.limit - size);
        let (name, value) = (Held::new(owner, name.as_raw()), Held::new(owner, value.as_raw()));
        let mut entry = Entry { name, value, size, name_hash: 0, field_hash: 0 };
        if let Some(lookup) = &mut self.lookup {
            lookup.add(&mut entry, self.inserted);
        }
        self.entries.push_front(entry);
        self.inserted += 1;
        self.size += size;
    }

    /// Looks a field up among the entries, newest first.
    pub(crate) fn find(&mut self, name: &[u8], value: &[u8]) -> Found {
        if self.lookup.is_none() {
            self.index_entries();
        }
        let Some(lookup) = &self.lookup else { return Found::default() };
        if self.entries.is_empty() {
            return Found::default();
        }
        let name_hash = hash(0, name);
        let field_hash = hash(name_hash, value);
        let of_name = self.index_of(&lookup.by_name, name_hash, |entry| bytes(&entry.name) == name);
        let exact = self.index_of(&lookup.by_field, field_hash, |entry| {
            bytes(&entry.value) == value && bytes(&entry.name) == name
        });
        Found { exact, name: of_name }
    }

    #[cold]
    fn index_entries(&mut self) {
        let mut lookup = Lookup::default();
        let oldest = self.inserted - self.entries.len() as u64;
        for (number, entry) in (oldest..).zip(self.entries.iter_mut().rev()) {
            lookup.add(entry, number);
        }
        self.lookup = Some(lookup);
    }

    fn index_of(&self, numbers: &Numbers, hash: u64, same: impl FnOnce(&Entry) -> bool) -> Option<u32> {
        let age = (self.inserted - 1 - numbers.get(&hash)?) as usize;
        let entry = self.entries.get(age)?;
        same(entry).then_some((STATIC_LEN + 1 + age) as u32)
    }

    fn evict_to(&mut self, size: usize) {
        while self.size > size {
            let Some(entry) = self.entries.pop_back() else { break };
            self.size -= entry.size;
            if let Some(lookup) = &mut self.lookup {
                let number = self.inserted - 1 - self.entries.len() as u64;
                for (numbers, hash) in
                    [(&mut lookup.by_name, entry.name_hash), (&mut lookup.by_field, entry.field_hash)]
                {
                    if numbers.get(&hash) == Some(&number) {
                        numbers.remove(&hash);
                    }
                }
            }
        }
    }
}

fn string(held: Held) -> RString {
    // SAFETY: only Strings enter the table.
    unsafe { strings::rstring(held.raw()) }
}

fn bytes(held: &Held) -> &[u8] {
    // SAFETY: entries are frozen and live as long as the table holds them.
    unsafe { strings::bytes(held.raw()) }
}

/// Eight bytes at a time, folded by a multiplication each.
fn hash(seed: u64, bytes: &[u8]) -> u64 {
    const K: u64 = 0x9e37_79b9_7f4a_7c15;
    fn fold(word: u64) -> u64 {
        let product = u128::from(word) * u128::from(K);
        product as u64 ^ (product >> 64) as u64
    }
    let mut state = fold(seed ^ bytes.len() as u64 ^ K);
    let (eights, rest) = bytes.as_chunks::<8>();
    for eight in eights {
        state = fold(state ^ u64::from_le_bytes(*eight));
    }
    let rest = rest.iter().fold(0, |word, &byte| word << 8 | u64::from(byte));
    fold(state ^ rest)
}
