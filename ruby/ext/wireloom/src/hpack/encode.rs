//! Ruby Strings into field blocks (RFC 7541 §6).

use magnus::r_hash::ForEach;
use magnus::rb_sys::AsRawValue;
use magnus::value::ReprValue;
use magnus::{Error, RArray, RHash, RString, Ruby, Value};
use rb_sys::{Qnil, VALUE};
use wireloom_http2::field::Token;
use wireloom_http2::hpack::{STATIC_LEN, static_find, static_name_index};

use super::error::HeaderError;
use super::output::{self, Output};
use super::role::Role;
use super::table::{Field, Found, Hashes, OVERHEAD, Table};
use crate::held::Owner;
use crate::strings;

/// The tables that fields are looked up in, and whether fields enter the dynamic one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Index {
    #[default]
    All,
    Static,
    Never,
}

/// Which strings are Huffman-coded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Huffman {
    #[default]
    Shorter,
    Always,
    Never,
}

/// How an encoder goes about it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Policy {
    pub(crate) index: Index,
    pub(crate) huffman: Huffman,
    /// How large this side lets its table become.
    pub(crate) table_size: usize,
    /// An empty `:path` goes out as "/".
    pub(crate) fill_path: bool,
    /// As protocol-hpack does it: fields go out in their order, with their names as they are, and no size update is required of blocks.
    pub(crate) verbatim: bool,
}

/// The longest name or value that is encoded, in bytes. No peer takes nearly as much, and every length fits into the 32 bits
/// of the integers here.
const FIELD_LEN_MAX: usize = 64 << 20;

/// Names up to this length, in bytes, are lower-cased in memory that is not reserved ahead.
const SHORT_NAME: usize = 256;

/// Appends the block of an Array of pairs; pseudo-fields go first. Allocates Strings for the table, which is `owner`'s, and runs no
/// Ruby code. Changes nothing when it fails; without memory for a String, for which Ruby raises, the table is to be
/// [restarted](Table::restart). Names are lower-cased in `lowered`.
pub(crate) fn encode(
    ruby: &Ruby,
    owner: Owner,
    table: &mut Table,
    policy: Policy,
    list: RArray,
    out: &mut Vec<u8>,
    lowered: &mut Vec<u8>,
) -> Result<(), HeaderError> {
    // All of them are checked before the first is encoded: the table must not run ahead of the peer's.
    let mut pairs = [None; PAIRS];
    let (mut pseudo_first, mut regular_seen) = (true, false);
    let (mut len_max, mut name_len_max) = (0, 0);
    // SAFETY: no Ruby code runs while the slice is in use.
    for (at, &entry) in unsafe { list.as_slice() }.iter().enumerate() {
        let Some((name, value)) = pair(entry) else { return Err(no_pair()) };
        if name.len().max(value.len()) > FIELD_LEN_MAX {
            return Err(HeaderError::Argument(format!("a header is longer than {FIELD_LEN_MAX} bytes")));
        }
        len_max += output::field_len_max(policy.huffman, name.len() + value.len());
        name_len_max = name_len_max.max(name.len());
        let is_pseudo = is_pseudo(name);
        pseudo_first &= !(is_pseudo && regular_seen);
        regular_seen |= !is_pseudo;
        if let Some(place) = pairs.get_mut(at) {
            *place = Some((name, value));
        }
    }
    if name_len_max > SHORT_NAME {
        lowered.try_reserve(name_len_max)?;
    }
    let mut out = Output::new(out, len_max)?;
    size_updates(table, policy, &mut out);
    let len = list.len();
    let pair_at = |at: usize| match pairs.get(at) {
        Some(known) => *known,
        // SAFETY: no Ruby code runs while the slice is in use.
        None => unsafe { list.as_slice() }.get(at).copied().and_then(pair),
    };
    // In one pass when the pseudo-fields are first already.
    let passes: &[Option<bool>] =
        if pseudo_first || policy.verbatim { &[None] } else { &[Some(true), Some(false)] };
    for &wanted in passes {
        for (name, value) in (0..len).filter_map(pair_at) {
            if wanted.is_none_or(|wanted| is_pseudo(name) == wanted) {
                field(ruby, owner, table, policy, (name, value), lowered, &mut out);
            }
        }
    }
    Ok(())
}

#[inline]
fn is_pseudo(name: RString) -> bool {
    // SAFETY: no Ruby code runs while the slice is in use.
    unsafe { name.as_slice() }.first() == Some(&b':')
}

#[cold]
fn no_pair() -> HeaderError {
    HeaderError::Type("a header must be a pair of Strings")
}

/// Pairs that are looked at once. A list rarely has more.
const PAIRS: usize = 32;

/// Headers as an Array of pairs: one already, a Hash, or what becomes one by `to_a`, which may run Ruby code.
pub(crate) fn pairs(ruby: &Ruby, headers: Value) -> Result<RArray, Error> {
    if let Some(list) = RArray::from_value(headers) {
        return Ok(list);
    }
    if let Some(hash) = RHash::from_value(headers) {
        let list = ruby.ary_new_capa(hash.len());
        hash.foreach(|name: Value, value: Value| {
            list.push(ruby.ary_new_from_values(&[name, value]))?;
            Ok(ForEach::Continue)
        })?;
        return Ok(list);
    }
    headers.funcall_public::<_, _, RArray>("to_a", ())
}

/// The same list with Strings for names and values that are Symbols or Integers, as the original takes them; `list` itself when
/// all are Strings. Runs `to_s`.
///
/// # Errors
/// An entry is no pair, or nil is among them.
pub(crate) fn strings(ruby: &Ruby, list: RArray) -> Result<RArray, Error> {
    // SAFETY: no Ruby code runs while the slice is in use.
    if unsafe { list.as_slice() }.iter().all(|&entry| pair(entry).is_some()) {
        return Ok(list);
    }
    let string = |value: Value| -> Result<Value, Error> {
        if value.is_kind_of(ruby.class_integer()) || value.is_kind_of(ruby.class_symbol()) {
            return value.funcall_public("to_s", ());
        }
        Ok(value)
    };
    let made = ruby.ary_new_capa(list.len());
    for at in 0..list.len() {
        let pair: RArray = list.entry(at as isize)?;
        made.push(ruby.ary_new_from_values(&[string(pair.entry(0)?)?, string(pair.entry(1)?)?]))?;
    }
    Ok(made)
}

/// The name and the value, when `entry` is an Array of at least two Strings.
#[inline]
fn pair(entry: Value) -> Option<(RString, RString)> {
    let entry = RArray::from_value(entry)?;
    // SAFETY: no Ruby code runs while the slice is in use.
    let [name, value, ..] = *(unsafe { entry.as_slice() }) else { return None };
    Some((RString::from_value(name)?, RString::from_value(value)?))
}

/// RFC 7541 §4.2: the smallest size since the last block and then the final one.
fn size_updates(table: &mut Table, policy: Policy, out: &mut Output<'_>) {
    if let Some(smallest) = table.update_due() {
        table.set_limit(smallest);
        out.number(0x20, 0x1f, smallest as u32);
    }
    table.settle();
    let limit = policy.table_size.min(table.max_limit());
    if limit != table.limit() {
        table.set_limit(limit);
        out.number(0x20, 0x1f, limit as u32);
    }
}

/// Where a field is found, static entries before dynamic ones, and its hashes when it was looked up among those. The `token` is
/// that of its name.
#[inline]
pub(crate) fn find(
    table: &mut Table,
    index: Index,
    token: Token,
    name: &[u8],
    value: &[u8],
) -> (Found, Hashes) {
    let mut found = Found::default();
    if token != Token::Unknown && index != Index::Never {
        found.exact = static_find(token, value);
        let of_name = static_name_index(token);
        found.name = (of_name != 0).then_some(of_name);
    }
    if index != Index::All || found.exact.is_some() {
        return (found, Hashes::default());
    }
    let (dynamic, hashes) = table.find(token, name, value);
    (Found { exact: dynamic.exact, name: found.name.or(dynamic.name) }, hashes)
}

fn field(
    ruby: &Ruby,
    owner: Owner,
    table: &mut Table,
    policy: Policy,
    (name, value): (RString, RString),
    lowered: &mut Vec<u8>,
    out: &mut Output<'_>,
) {
    // SAFETY: no Ruby code runs while the slices are in use.
    let (name_bytes, value_bytes) =
        unsafe { (strings::bytes(name.as_raw()), strings::bytes(value.as_raw())) };
    let (mut name, mut name_bytes) = (Some(name), name_bytes);
    let mut token = Token::of(name_bytes);
    // Known names are in lower case.
    if token == Token::Unknown && !policy.verbatim && has_uppercase(name_bytes) {
        lowered.clear();
        lowered.extend_from_slice(name_bytes);
        lowered.make_ascii_lowercase();
        (name, name_bytes) = (None, &lowered[..]);
        token = Token::of(name_bytes);
    }
    let empty_path = policy.fill_path && token == Token::Path && value_bytes.is_empty();
    let (value, value_bytes) = if empty_path { (None, &b"/"[..]) } else { (Some(value), value_bytes) };
    let (found, hashes) = find(table, policy.index, token, name_bytes, value_bytes);
    if let Some(index) = found.exact {
        return out.number(0x80, 0x7f, index);
    }
    let index_it = policy.index == Index::All;
    let (flags, prefix) = if index_it { (0x40, 0x3f) } else { (0, 0x0f) };
    out.number(flags, prefix, found.name.unwrap_or(0));
    if found.name.is_none() {
        out.string(policy.huffman, name_bytes);
    }
    out.string(policy.huffman, value_bytes);
    if index_it {
        let known =
            found.name.filter(|&index| index as usize <= STATIC_LEN).and_then(|index| table.get(index));
        let name = match (known, name) {
            (Some((name, _)), _) => name,
            (None, Some(name)) => strings::frozen(ruby, name),
            (None, None) => strings::utf8_or_ascii_frozen(ruby, name_bytes),
        };
        let value = match value {
            Some(value) => strings::frozen(ruby, value),
            None => strings::utf8_or_ascii_frozen(ruby, value_bytes),
        };
        let size = name_bytes.len() + value_bytes.len() + OVERHEAD;
        let field = Field { name, value, pair: Qnil as VALUE, size, role: Role::of(name_bytes) };
        table.insert_hashed(owner, field, hashes);
    }
}

/// Whether a byte is one of "A" to "Z". All are looked at, which takes no branches.
#[inline]
fn has_uppercase(bytes: &[u8]) -> bool {
    bytes.iter().fold(false, |found, byte| found | byte.is_ascii_uppercase())
}
