//! Encoding of fields (RFC 7541 §6).
//!
//! [`Encoder`] owns the dynamic table of the sending side. It chooses which fields to index, and finds the ones in the table.
//!
//! A hash table finds entries, by name and by name and value. Each entry links to the previous one in the same bucket, so
//! a bucket is a list from the newest entry to the oldest. Entries are evicted oldest first: a list ends at the first
//! evicted entry, and nothing is ever unlinked. A look-up visits at most `PROBES_MAX` entries, so that fields whose hashes
//! collide are compressed less but take no more time.

use alloc::vec::Vec;

use super::dynamic_table::{DynamicTable, SIZE_LIMIT};
use super::static_table::{self, LEN as STATIC_LEN};
use super::{TABLE_SIZE_DEFAULT, huffman, integer};
use crate::field::{Field, Token};

/// The maximum number of entries that a look-up visits.
const PROBES_MAX: u32 = 8;

/// Cookies shorter than this, in bytes, are never indexed: an attacker could guess them from the size of the compressed
/// block (RFC 7541 §7.1.3).
const COOKIE_LEN_MIN: usize = 20;

/// The fields that are added to the dynamic table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum IndexPolicy {
    /// Fields that are likely to be sent again.
    #[default]
    Repeating,
    /// All fields except sensitive ones.
    All,
    /// No fields: only the static table is used.
    Static,
}

/// The strings that are Huffman-coded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HuffmanPolicy {
    /// Strings that become shorter.
    #[default]
    Shorter,
    /// All strings.
    Always,
    /// No strings.
    Never,
}

#[derive(Clone, Copy, Default)]
struct Links {
    /// The hash of name and value.
    field_hash: u32,
    /// The hash of the name; its token, if it has one.
    name_hash: u32,
    /// The numbers of the previous entries in the same buckets.
    previous_field: u32,
    previous_name: u32,
}

/// Encodes fields; owns the dynamic table of a sender.
pub struct Encoder {
    table: DynamicTable<Links>,
    /// The number of the newest entry of each bucket, by field and by name. Empty, or the length is a power of two.
    buckets: Vec<[u32; 2]>,
    /// The limits of this side and of the peer on the size of the table.
    size_local: u32,
    size_peer: u32,
    /// The smallest size since the last block, if the next block has to begin with a size update.
    update_due: Option<u32>,
    index_policy: IndexPolicy,
    huffman_policy: HuffmanPolicy,
}

const BY_FIELD: usize = 0;
const BY_NAME: usize = 1;

impl Default for Encoder {
    fn default() -> Self {
        Self::new()
    }
}

impl Encoder {
    /// An encoder with a table of [`TABLE_SIZE_DEFAULT`] bytes, which every peer allows until its SETTINGS arrive.
    pub const fn new() -> Self {
        Self {
            table: DynamicTable::new(TABLE_SIZE_DEFAULT),
            buckets: Vec::new(),
            size_local: TABLE_SIZE_DEFAULT,
            size_peer: TABLE_SIZE_DEFAULT,
            update_due: None,
            index_policy: IndexPolicy::Repeating,
            huffman_policy: HuffmanPolicy::Shorter,
        }
    }

    /// Applies the peer's SETTINGS_HEADER_TABLE_SIZE. The table has this size, or the local limit if that is smaller. If the
    /// size changes, the next block begins with a size update (RFC 7541 §4.2).
    pub fn set_table_size_max(&mut self, table_size_max: u32) {
        self.size_peer = table_size_max;
        self.resize();
    }

    /// Sets the local limit on the size of the table: [`TABLE_SIZE_DEFAULT`] at first.
    pub fn set_table_size_local(&mut self, table_size_local: u32) {
        self.size_local = table_size_local.min(SIZE_LIMIT);
        self.resize();
    }

    /// Chooses which fields are added to the dynamic table.
    pub fn set_index_policy(&mut self, policy: IndexPolicy) {
        self.index_policy = policy;
    }

    /// Chooses which strings are Huffman-coded.
    pub fn set_huffman_policy(&mut self, policy: HuffmanPolicy) {
        self.huffman_policy = policy;
    }

    /// The maximum size of the table, in bytes as RFC 7541 §4.1 counts them.
    pub fn table_size_max(&self) -> usize {
        self.table.size_max()
    }

    fn resize(&mut self) {
        let size = self.size_peer.min(self.size_local);
        if size as usize != self.table.size_max() {
            self.update_due = Some(self.update_due.map_or(size, |due| due.min(size)));
            self.table.set_size_max(size);
        }
    }

    /// Appends the block of these fields to `out`.
    pub fn encode<'a>(&mut self, fields: impl IntoIterator<Item = Field<'a>>, out: &mut Vec<u8>) {
        let mut out = BlockBuffer::new(out);
        if let Some(smallest) = self.update_due.take() {
            // RFC 7541 §4.2: the smallest size since the last block and then the final one, at most two updates.
            let size = self.table.size_max() as u32;
            out.reserve(2 * integer::LEN_MAX);
            if smallest < size {
                out.integer(0x20, 0x1f, smallest);
            }
            out.integer(0x20, 0x1f, size);
        }
        for field in fields {
            self.field(&field, &mut out);
        }
    }

    fn field(&mut self, field: &Field<'_>, out: &mut BlockBuffer<'_>) {
        let (token, value) = (field.token(), field.value());
        out.reserve(integer::LEN_MAX);
        if is_sensitive(field) {
            // RFC 7541 §6.2.3 and §7.1.3: never indexed, neither here nor by an intermediary.
            let name_hash = self.name_hash(field);
            return self.literal(0x10, 0x0f, field, self.name_index(field, name_hash), out);
        }
        if let Some(index) = static_table::find(token, value) {
            return out.integer(0x80, 0x7f, index);
        }
        let name_hash = self.name_hash(field);
        if !self.may_repeat(field) {
            return self.literal(0, 0x0f, field, self.name_index(field, name_hash), out);
        }
        let field_hash = hash(u64::from(name_hash), value);
        if let Some(age) = self.find(BY_FIELD, field_hash, |links| links.field_hash, field) {
            return out.integer(0x80, 0x7f, STATIC_LEN as u32 + 1 + age);
        }
        self.literal(0x40, 0x3f, field, self.name_index(field, name_hash), out);
        self.insert(field, field_hash, name_hash);
    }

    /// Whether a field is added to the table.
    fn may_repeat(&self, field: &Field<'_>) -> bool {
        match self.index_policy {
            IndexPolicy::Static => return false,
            IndexPolicy::All => return true,
            IndexPolicy::Repeating => {}
        }
        // A large field would evict most of the others.
        if field.list_size() > self.table.size_max() / 4 * 3 {
            return false;
        }
        !matches!(
            field.token(),
            Token::Path
                | Token::Age
                | Token::ContentLength
                | Token::ContentRange
                | Token::Etag
                | Token::IfModifiedSince
                | Token::IfNoneMatch
                | Token::Location
                | Token::SetCookie
        )
    }

    /// The index of an entry with the field's name; 0 if there is none.
    fn name_index(&self, field: &Field<'_>, name_hash: u32) -> u32 {
        match static_table::name_index(field.token()) {
            0 => match self.find(BY_NAME, name_hash, |links| links.name_hash, field) {
                Some(age) => STATIC_LEN as u32 + 1 + age,
                None => 0,
            },
            index => index,
        }
    }

    fn name_hash(&self, field: &Field<'_>) -> u32 {
        if field.token() == Token::Unknown { hash(0, field.name()) } else { field.token() as u32 }
    }

    /// The age of the newest entry with this hash and the field's name, and with its value if `kind` is `BY_FIELD`.
    fn find(
        &self,
        kind: usize,
        wanted: u32,
        hash_of: impl Fn(&Links) -> u32,
        field: &Field<'_>,
    ) -> Option<u32> {
        let bucket = self.buckets.get(wanted as usize & self.buckets.len().wrapping_sub(1))?;
        let mut number = bucket[kind];
        for _ in 0..PROBES_MAX {
            let age = self.table.inserted().wrapping_sub(1).wrapping_sub(number);
            let links = self.table.extra(age)?;
            if hash_of(&links) == wanted {
                let entry = self.table.get(age)?;
                let same_name = entry.token == field.token()
                    && (entry.token != Token::Unknown || entry.name == field.name());
                if same_name && (kind == BY_NAME || entry.value == field.value()) {
                    return Some(age);
                }
            }
            number = if kind == BY_NAME { links.previous_name } else { links.previous_field };
        }
        None
    }

    fn insert(&mut self, field: &Field<'_>, field_hash: u32, name_hash: u32) {
        let number = self.table.inserted();
        let mut links = Links { field_hash, name_hash, previous_field: number, previous_name: number };
        let name = if field.token() == Token::Unknown { field.name() } else { &[] };
        if !self.table.insert(field.token(), name, field.value(), 0, links) {
            return;
        }
        if self.buckets.len() < 2 * self.table.capacity() {
            self.grow_buckets();
            return;
        }
        self.link(&mut links, number);
        self.table.set_extra(0, links);
    }

    fn link(&mut self, links: &mut Links, number: u32) {
        let mask = self.buckets.len() - 1;
        links.previous_field =
            core::mem::replace(&mut self.buckets[links.field_hash as usize & mask][BY_FIELD], number);
        links.previous_name =
            core::mem::replace(&mut self.buckets[links.name_hash as usize & mask][BY_NAME], number);
    }

    #[cold]
    fn grow_buckets(&mut self) {
        // The number of the next entry: no entry in the table has it.
        let none = self.table.inserted();
        self.buckets.clear();
        self.buckets.resize(2 * self.table.capacity(), [none; 2]);
        for age in (0..self.table.len()).rev() {
            if let Some(mut links) = self.table.extra(age) {
                self.link(&mut links, self.table.inserted().wrapping_sub(1).wrapping_sub(age));
                self.table.set_extra(age, links);
            }
        }
    }

    fn literal(&self, flags: u8, prefix: u8, field: &Field<'_>, name_index: u32, out: &mut BlockBuffer<'_>) {
        out.integer(flags, prefix, name_index);
        if name_index == 0 {
            out.string(field.name(), self.huffman_policy);
        }
        out.string(field.value(), self.huffman_policy);
    }
}

/// RFC 7541 §7.1.3: fields that an attacker must not be able to guess by adding fields to the same connection.
fn is_sensitive(field: &Field<'_>) -> bool {
    field.is_sensitive()
        || match field.token() {
            Token::Authorization | Token::ProxyAuthorization => true,
            Token::Cookie => field.value().len() < COOKIE_LEN_MIN,
            _ => false,
        }
}

/// Hashes sixteen bytes at a time, with one multiplication each. The last sixteen may overlap the ones before.
fn hash(seed: u64, bytes: &[u8]) -> u32 {
    const K: [u64; 3] = [0x9e37_79b9_7f4a_7c15, 0xd6e8_feb8_6659_fd93, 0xa076_1d64_78bd_642f];
    fn fold(a: u64, b: u64) -> u64 {
        let product = u128::from(a) * u128::from(b);
        product as u64 ^ (product >> 64) as u64
    }
    fn halves(both: &[u8; 16]) -> (u64, u64) {
        let both = u128::from_le_bytes(*both);
        (both as u64, (both >> 64) as u64)
    }
    let mut state = seed ^ (bytes.len() as u64).wrapping_mul(K[0]);
    let (low, high) = if let Some(last) = bytes.last_chunk::<16>() {
        for both in bytes[..bytes.len() - 1].as_chunks::<16>().0 {
            let (low, high) = halves(both);
            state = fold(low ^ state, high ^ K[1]);
        }
        halves(last)
    } else if let (Some(first), Some(last)) = (bytes.first_chunk::<8>(), bytes.last_chunk::<8>()) {
        (u64::from_le_bytes(*first), u64::from_le_bytes(*last))
    } else if let (Some(first), Some(last)) = (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        (u64::from(u32::from_le_bytes(*first)), u64::from(u32::from_le_bytes(*last)))
    } else {
        (bytes.iter().fold(0, |word, &byte| word << 8 | u64::from(byte)), 0)
    };
    fold(low ^ state ^ K[2], high ^ K[1]) as u32
}

/// The buffer that a block is appended to. It is initialised ahead of `pos`.
struct BlockBuffer<'a> {
    buf: &'a mut Vec<u8>,
    /// The end of the block: `pos <= buf.len()`. The buffer is truncated to it on drop.
    pos: usize,
}

impl<'a> BlockBuffer<'a> {
    fn new(buf: &'a mut Vec<u8>) -> Self {
        let pos = buf.len();
        Self { buf, pos }
    }

    fn reserve(&mut self, len: usize) {
        if self.buf.len() - self.pos < len {
            self.buf.resize(self.pos + len.max(256), 0);
        }
    }

    /// Appends an integer. The caller has reserved [`integer::LEN_MAX`] bytes.
    fn integer(&mut self, flags: u8, prefix: u8, value: u32) {
        if let Some(room) = self.buf[self.pos..].first_chunk_mut() {
            self.pos += integer::encode(flags, prefix, value, room);
        }
    }

    fn string(&mut self, bytes: &[u8], policy: HuffmanPolicy) {
        if policy != HuffmanPolicy::Never {
            let len = huffman::encoded_len(bytes);
            if len < bytes.len() || policy == HuffmanPolicy::Always {
                self.reserve(integer::LEN_MAX + len + huffman::ENCODE_SLACK);
                self.integer(0x80, 0x7f, len as u32);
                huffman::encode(bytes, &mut self.buf[self.pos..]);
                self.pos += len;
                return;
            }
        }
        self.reserve(integer::LEN_MAX + bytes.len());
        self.integer(0, 0x7f, bytes.len() as u32);
        self.buf[self.pos..self.pos + bytes.len()].copy_from_slice(bytes);
        self.pos += bytes.len();
    }
}

impl Drop for BlockBuffer<'_> {
    fn drop(&mut self) {
        self.buf.truncate(self.pos);
    }
}

#[cfg(test)]
mod tests {
    use super::super::Decoder;
    use super::*;
    use crate::field::{FieldLimits, FieldList};
    use alloc::string::String;

    /// Two strings with the same hash.
    fn collision(seed: u64) -> [String; 2] {
        // Two of 2^18 random hashes of 32 bits are equal with a probability of 1 - e^-8.
        let letters = |n: u32| [0, 4, 8, 12, 16].map(|shift| b'a' + (n >> shift & 0xf) as u8);
        let mut hashes: Vec<(u32, u32)> = (0..1 << 18).map(|n| (hash(seed, &letters(n)), n)).collect();
        hashes.sort_unstable();
        let equal = hashes.windows(2).find(|pair| pair[0].0 == pair[1].0).unwrap();
        [equal[0].1, equal[1].1].map(|n| String::from_utf8(letters(n).to_vec()).unwrap())
    }

    /// Encodes and decodes fields, compares them, and returns the first byte of each.
    fn exchange<'a>(fields: impl IntoIterator<Item = (&'a str, &'a str)>) -> Vec<u8> {
        let (mut encoder, mut decoder, mut list) = (Encoder::new(), Decoder::new(4096), FieldList::new());
        let exchanged = fields.into_iter().map(|(name, value)| {
            let (field, mut block) = (Field::new(name.as_bytes(), value.as_bytes()), Vec::new());
            encoder.encode([field], &mut block);
            decoder.decode(&block, &FieldLimits::default(), &mut list).unwrap();
            assert_eq!(list.get(0), Some(field));
            block[0]
        });
        exchanged.collect()
    }

    #[test]
    fn values_with_the_same_hash_are_compared() {
        for name in ["x-name", "accept"] {
            let seed = match Token::of(name.as_bytes()) {
                Token::Unknown => hash(0, name.as_bytes()),
                token => token as u32,
            };
            let [one, other] = collision(u64::from(seed));
            let sent = exchange([(name, &*one), (name, &*other), (name, &*one), (name, &*other)]);
            assert!(sent[1] & 0xc0 == 0x40 && sent[2..] == [0xbf, 0xbe], "{sent:02x?}");
        }
    }

    #[test]
    fn names_with_the_same_hash_are_compared() {
        let [one, other] = collision(0);
        // The value is the same as well, so that only the names differ; and another, so that only a name could be found.
        let sent = exchange([(&*one, "v"), (&*other, "v"), (&*one, "v"), (&*other, "v"), (&*one, "w")]);
        assert_eq!(sent, [0x40, 0x40, 0xbf, 0xbe, 0x40 | 63]);
    }
}
