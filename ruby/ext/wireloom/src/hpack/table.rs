//! The dynamic table (RFC 7541 §2.3.2 and §4) whose entries are Ruby Strings: a field that refers to an entry hands out the
//! Strings of that entry again, and nothing is made for it.
//!
//! ```text
//! entries  |newest|...|oldest|   index 62 is the front; entry number n is at inserted - 1 - n
//! buckets  hash -> number of the newest entry with it, each entry links to the one before   (from the first look-up on)
//! ```
//!
//! There is one chain by name and value, and one by name for names that are not in the static table. Entries leave in the order
//! in which they came, so a chain ends at the first number that is gone, and nothing is ever unlinked. Walks are bounded: names
//! chosen to collide cost compression and not time.

use std::collections::VecDeque;

use magnus::RString;
use magnus::rb_sys::AsRawValue;
use rb_sys::VALUE;
use wireloom_http2::field::Token;
use wireloom_http2::hpack::{STATIC_LEN, static_name_index};

use super::role::Role;
use super::statics;
use crate::held::{Held, Owner, plain, traced};
use crate::strings;

/// A larger buffer is freed after the block that needed it, in bytes.
const SCRATCH_KEPT: usize = 16 << 10;

/// The size of an entry beyond its bytes (RFC 7541 §4.1), and of a field (RFC 9113 §6.5.2).
pub(super) const OVERHEAD: usize = 32;

#[derive(Clone, Copy)]
struct Entry {
    name: Held,
    value: Held,
    /// Both as an Array, frozen: what a decoder hands out. Nil in an encoder's table.
    pair: Held,
    /// RFC 7541 §4.1, in bytes: at most the table's limit, which has 32 bits.
    size: u32,
    role: Role,
    links: Links,
}

traced!(Entry { name, value, pair, size, role, links });

/// A field of a table.
#[derive(Clone, Copy)]
pub(super) struct Field {
    pub(super) name: RString,
    pub(super) value: RString,
    /// Both as a frozen Array, or nil where there is none.
    pub(super) pair: VALUE,
    /// RFC 7541 §4.1, in bytes.
    pub(super) size: usize,
    pub(super) role: Role,
}

/// Where a field is looked up. The hash of a name that is in the static table is 0, and no chain has it.
#[derive(Clone, Copy, Default)]
pub(crate) struct Hashes {
    name: u32,
    field: u32,
}

impl Hashes {
    #[inline]
    fn of(token: Token, name: &[u8], value: &[u8]) -> Self {
        if static_name_index(token) != 0 {
            return Self { name: 0, field: hash(token as u64 + 1, value) };
        }
        let name = hash(0, name);
        Self { name, field: hash(u64::from(name) + 256, value) }
    }
}

/// The chains that an entry is in.
#[derive(Clone, Copy, Default)]
struct Links {
    hashes: Hashes,
    /// The numbers of the entries before it.
    name_before: u32,
    field_before: u32,
}

/// The newest number of each chain.
#[derive(Clone, Copy)]
struct Bucket {
    name: u32,
    field: u32,
}

/// Entries of one chain that are looked at.
const PROBES_MAX: usize = 8;

/// The table and the sizes that SETTINGS and the two ends agree on.
#[derive(Clone)]
pub(crate) struct Table {
    entries: VecDeque<Entry>,
    /// The number of entries that were ever added, wrapping.
    inserted: u32,
    size: usize,
    /// The size in use by both ends: `size <= limit`.
    limit: usize,
    /// The size that SETTINGS allow, and the smallest that they allowed since the last block.
    max_limit: usize,
    lowest_max_limit: usize,
    /// A power of two of them, at least twice as many as entries; none until the first look-up: decoders make none.
    buckets: Vec<Bucket>,
    /// Room to decode strings in, and to encode blocks in.
    pub(super) scratch: Vec<u8>,
    /// The peer's table has fields of a block that was not decoded to its end.
    is_out_of_step: bool,
}

plain!(Bucket, Links);
traced!(Table {
    entries,
    inserted,
    size,
    limit,
    max_limit,
    lowest_max_limit,
    buckets,
    scratch,
    is_out_of_step
});

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
            buckets: Vec::new(),
            scratch: Vec::new(),
            is_out_of_step: false,
        }
    }

    /// Keeps a buffer for the next block, unless it is large.
    #[inline]
    pub(super) fn keep_scratch(&mut self, scratch: Vec<u8>) {
        self.scratch = scratch;
        self.trim_scratch();
    }

    #[inline]
    pub(super) fn trim_scratch(&mut self) {
        if self.scratch.capacity() > SCRATCH_KEPT {
            self.scratch = Vec::new();
        }
    }

    /// A block of the peer has arrived; until it is decoded the table is out of step. Returns whether it was before.
    #[inline]
    pub(crate) const fn begin_block(&mut self) -> bool {
        std::mem::replace(&mut self.is_out_of_step, true)
    }

    /// The block was decoded, or is still to be: the table is in step, unless it was not before.
    #[inline]
    pub(crate) const fn end_block(&mut self, is_out_of_step: bool) {
        self.is_out_of_step = is_out_of_step;
    }

    /// Bytes held beside the Strings.
    pub(crate) fn heap_size(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>()
            + self.buckets.capacity() * size_of::<Bucket>()
            + self.scratch.capacity()
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

    /// Empties the table, as the peer does when it reads the next block (RFC 7541 §4.3): it has not got the last one.
    #[cold]
    pub(crate) fn restart(&mut self) {
        self.evict_to(0);
        self.lowest_max_limit = 0;
    }

    /// The next block need not begin with the size update that is due.
    pub(crate) fn waive_update(&mut self) {
        self.lowest_max_limit = self.lowest_max_limit.max(self.limit);
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

    /// The entry at an index from 1, as on the wire: its name and its value.
    pub(crate) fn get(&self, index: u32) -> Option<(RString, RString)> {
        self.field(index).map(|field| (field.name, field.value))
    }

    /// The same, with what is known of it.
    #[inline(always)]
    pub(super) fn field(&self, index: u32) -> Option<Field> {
        let index = index as usize;
        if index <= STATIC_LEN {
            return statics().get(index);
        }
        let Entry { name, value, pair, size, role, .. } = *self.entries.get(index - STATIC_LEN - 1)?;
        Some(Field { name: string(name), value: string(value), pair: pair.raw(), size: size as usize, role })
    }

    /// RFC 7541 §4.4: adds an entry, evicting until it fits; one that cannot fit empties the table. The Strings are frozen, the
    /// pair is `nil` or a frozen Array of both, and the table is `owner`'s.
    pub(crate) fn insert(&mut self, owner: Owner, name: RString, value: RString, pair: VALUE) {
        // SAFETY: both are frozen, and live until this returns.
        let (name_bytes, value_bytes) =
            unsafe { (strings::bytes(name.as_raw()), strings::bytes(value.as_raw())) };
        let size = name_bytes.len() + value_bytes.len() + OVERHEAD;
        let field = Field { name, value, pair, size, role: Role::of(name_bytes) };
        let hashes = match self.buckets.is_empty() {
            true => Hashes::default(),
            false => Hashes::of(Token::of(name_bytes), name_bytes, value_bytes),
        };
        self.insert_hashed(owner, field, hashes);
    }

    /// The same for a field that a decoder read.
    #[inline]
    pub(super) fn insert_field(&mut self, owner: Owner, field: Field) {
        if !self.buckets.is_empty() {
            return self.insert(owner, field.name, field.value, field.pair);
        }
        self.insert_hashed(owner, field, Hashes::default());
    }

    /// The same for a field whose hashes are those of the [look-up](Self::find).
    #[inline]
    pub(super) fn insert_hashed(&mut self, owner: Owner, field: Field, hashes: Hashes) {
        let Field { name, value, pair, size, role } = field;
        if size > self.limit {
            self.evict_to(0);
            return;
        }
        self.evict_to(self.limit - size);
        let held = |value| Held::new(owner, value);
        let (name, value, pair) = (held(name.as_raw()), held(value.as_raw()), held(pair));
        let mut links = Links { hashes, ..Links::default() };
        if !self.buckets.is_empty() {
            link(&mut self.buckets, &mut links, self.inserted);
        }
        self.entries.push_front(Entry { name, value, pair, size: size as u32, role, links });
        self.inserted = self.inserted.wrapping_add(1);
        self.size += size;
        if !self.buckets.is_empty() && self.buckets.len() < 2 * self.entries.len() {
            self.link_entries();
        }
    }

    /// Looks a field up among the entries, newest first, and returns its hashes. A name that is in the static table, by its
    /// `token`, is not looked up.
    #[inline]
    pub(super) fn find(&mut self, token: Token, name: &[u8], value: &[u8]) -> (Found, Hashes) {
        if self.buckets.is_empty() {
            self.hash_entries();
        }
        let hashes = Hashes::of(token, name, value);
        let mask = self.buckets.len() - 1;
        let mut found = Found::default();
        let mut number = self.buckets[hashes.field as usize & mask].field;
        for _ in 0..PROBES_MAX {
            let Some((entry, index)) = self.numbered(number) else { break };
            if entry.links.hashes.field == hashes.field
                && bytes(&entry.value) == value
                && bytes(&entry.name) == name
            {
                found.exact = Some(index);
                return (found, hashes);
            }
            number = entry.links.field_before;
        }
        if hashes.name == 0 {
            return (found, hashes);
        }
        let mut number = self.buckets[hashes.name as usize & mask].name;
        for _ in 0..PROBES_MAX {
            let Some((entry, index)) = self.numbered(number) else { break };
            if entry.links.hashes.name == hashes.name && bytes(&entry.name) == name {
                found.name = Some(index);
                break;
            }
            number = entry.links.name_before;
        }
        (found, hashes)
    }

    /// The entry of a number, and its index on the wire; `None` once it is gone.
    #[inline]
    fn numbered(&self, number: u32) -> Option<(&Entry, u32)> {
        let age = self.inserted.wrapping_sub(1).wrapping_sub(number);
        Some((self.entries.get(age as usize)?, STATIC_LEN as u32 + 1 + age))
    }

    #[cold]
    fn hash_entries(&mut self) {
        for entry in &mut self.entries {
            let name = bytes(&entry.name);
            entry.links.hashes = Hashes::of(Token::of(name), name, bytes(&entry.value));
        }
        self.link_entries();
    }

    /// Makes the chains, with room for as many entries again.
    #[cold]
    fn link_entries(&mut self) {
        // A number that was not given yet belongs to no entry.
        let none = Bucket { name: self.inserted, field: self.inserted };
        self.buckets.clear();
        self.buckets.resize((4 * self.entries.len()).next_power_of_two().max(32), none);
        let oldest = self.inserted.wrapping_sub(self.entries.len() as u32);
        for (at, entry) in self.entries.iter_mut().rev().enumerate() {
            link(&mut self.buckets, &mut entry.links, oldest.wrapping_add(at as u32));
        }
    }

    fn evict_to(&mut self, size: usize) {
        while self.size > size {
            let Some(entry) = self.entries.pop_back() else { break };
            self.size -= entry.size as usize;
        }
    }
}

/// Puts an entry at the head of its chains.
#[inline]
fn link(buckets: &mut [Bucket], links: &mut Links, number: u32) {
    let mask = buckets.len() - 1;
    let hashes = links.hashes;
    links.field_before = std::mem::replace(&mut buckets[hashes.field as usize & mask].field, number);
    if hashes.name != 0 {
        links.name_before = std::mem::replace(&mut buckets[hashes.name as usize & mask].name, number);
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
fn hash(seed: u64, bytes: &[u8]) -> u32 {
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
    fold(state ^ rest) as u32
}
