//! The dynamic table (RFC 7541 §2.3.2 and §4) whose entries are Ruby Strings: a field that refers to an entry hands out the
//! Strings of that entry again, and nothing is made for it.
//!
//! ```text
//! entries  |newest|...|oldest|   index 62 is the front; entry number n is at inserted - 1 - n
//! by_field   hash of name and value -> number of the newest such entry        (from the first look-up on)
//! by_name    hash of name           -> number of the newest such entry whose name is not in the static table
//! ```
//!
//! Entries leave in the order in which they came, so a number that points to one that is gone is simply stale.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use magnus::RString;
use magnus::rb_sys::AsRawValue;
use rb_sys::VALUE;
use wireloom_http2::field::Token;
use wireloom_http2::hpack::{STATIC_LEN, static_name_index};

use super::statics;
use crate::held::{Held, Owner, plain, traced};
use crate::strings;

/// The size of an entry beyond its bytes (RFC 7541 §4.1).
const OVERHEAD: usize = 32;

#[derive(Clone, Copy)]
struct Entry {
    name: Held,
    value: Held,
    /// Both as an Array, frozen: what a decoder hands out. Nil in an encoder's table.
    pair: Held,
    size: usize,
    hashes: Hashes,
}

traced!(Entry { name, value, pair, size, hashes });

/// Where an entry is looked up; the hash of its name is 0 when that is in the static table.
#[derive(Clone, Copy, Default)]
pub(crate) struct Hashes {
    name: u64,
    field: u64,
}

impl Hashes {
    #[inline]
    fn of(name: &[u8], value: &[u8]) -> Self {
        let hash_of_name = hash(0, name);
        let is_static = static_name_index(Token::of(name)) != 0;
        Self { name: if is_static { 0 } else { hash_of_name }, field: hash(hash_of_name, value) }
    }
}

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

plain!(Lookup, Hashes);
traced!(Table { entries, inserted, size, limit, max_limit, lowest_max_limit, lookup, scratch });

#[derive(Clone, Default)]
struct Lookup {
    by_field: Numbers,
    by_name: Numbers,
}

impl Lookup {
    fn add(&mut self, hashes: Hashes, number: u64) {
        if hashes.name != 0 {
            self.by_name.insert(hashes.name, number);
        }
        self.by_field.insert(hashes.field, number);
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

    /// Every change was announced to the peer.
    pub(crate) const fn settle(&mut self) {
        self.lowest_max_limit = self.max_limit;
    }

    /// Takes a new SETTINGS_HEADER_TABLE_SIZE; the table itself changes with the next block.
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

    /// The entry at an index from 1 as a pair, if there is one.
    #[inline]
    pub(super) fn pair(&self, index: u32) -> Option<VALUE> {
        let index = index as usize;
        if index <= STATIC_LEN {
            return statics().pair(index);
        }
        let pair = self.entries.get(index - STATIC_LEN - 1)?.pair;
        (!pair.is_nil()).then(|| pair.raw())
    }

    /// RFC 7541 §4.4: adds an entry, evicting until it fits; one that cannot fit empties the table. The Strings are frozen, the
    /// pair is `nil` or a frozen Array of both, and the table is `owner`'s.
    pub(crate) fn insert(&mut self, owner: Owner, name: RString, value: RString, pair: VALUE) {
        let hashes = match &self.lookup {
            // SAFETY: no Ruby code runs while the slices are in use.
            Some(_) => unsafe { Hashes::of(strings::bytes(name.as_raw()), strings::bytes(value.as_raw())) },
            None => Hashes::default(),
        };
        self.insert_hashed(owner, name, value, pair, hashes);
    }

    /// The same for a field whose hashes are those of the [look-up](Self::find).
    #[inline]
    pub(super) fn insert_hashed(
        &mut self,
        owner: Owner,
        name: RString,
        value: RString,
        pair: VALUE,
        hashes: Hashes,
    ) {
        let size = name.len() + value.len() + OVERHEAD;
        if size > self.limit {
            self.evict_to(0);
            return;
        }
        self.evict_to(self.limit - size);
        let held = |value| Held::new(owner, value);
        let (name, value, pair) = (held(name.as_raw()), held(value.as_raw()), held(pair));
        if let Some(lookup) = &mut self.lookup {
            lookup.add(hashes, self.inserted);
        }
        self.entries.push_front(Entry { name, value, pair, size, hashes });
        self.inserted += 1;
        self.size += size;
    }

    /// Looks a field up among the entries, newest first, and returns its hashes. `is_static` means that the static table has the
    /// name: then only the whole field is looked up.
    pub(super) fn find(&mut self, name: &[u8], value: &[u8], is_static: bool) -> (Found, Hashes) {
        if self.lookup.is_none() {
            self.index_entries();
        }
        let hash_of_name = hash(0, name);
        let field = hash(hash_of_name, value);
        let hashes = Hashes { name: if is_static { 0 } else { hash_of_name }, field };
        let Some(lookup) = &self.lookup else { return (Found::default(), hashes) };
        if self.entries.is_empty() {
            return (Found::default(), hashes);
        }
        let exact = self.index_of(&lookup.by_field, field, |entry| {
            bytes(&entry.value) == value && bytes(&entry.name) == name
        });
        let of_name = match exact {
            None if !is_static => {
                self.index_of(&lookup.by_name, hash_of_name, |entry| bytes(&entry.name) == name)
            }
            _ => None,
        };
        (Found { exact, name: of_name }, hashes)
    }

    #[cold]
    fn index_entries(&mut self) {
        let mut lookup = Lookup::default();
        let oldest = self.inserted - self.entries.len() as u64;
        for (number, entry) in (oldest..).zip(self.entries.iter_mut().rev()) {
            entry.hashes = Hashes::of(bytes(&entry.name), bytes(&entry.value));
            lookup.add(entry.hashes, number);
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
                    [(&mut lookup.by_name, entry.hashes.name), (&mut lookup.by_field, entry.hashes.field)]
                {
                    if hash != 0 && numbers.get(&hash) == Some(&number) {
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
    let (eights, _) = bytes.as_chunks::<8>();
    for eight in eights {
        state = fold(state ^ u64::from_le_bytes(*eight));
    }
    // The end, which may overlap with what was folded: the length is in the seed.
    let rest = match (bytes.last_chunk::<8>(), bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        (Some(last), ..) => u64::from_le_bytes(*last),
        (None, Some(first), Some(last)) => {
            u64::from(u32::from_le_bytes(*first)) | u64::from(u32::from_le_bytes(*last)) << 32
        }
        _ => bytes.iter().fold(0, |word, &byte| word << 8 | u64::from(byte)),
    };
    fold(state ^ rest)
}
