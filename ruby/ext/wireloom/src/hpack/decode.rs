//! Field blocks into Ruby Strings (RFC 7541 §3.2 and §6).

use magnus::rb_sys::{AsRawValue, FromRawValue};
use magnus::{RArray, RString, Ruby, Value};
use rb_sys::{Qnil, VALUE, rb_ary_cat, rb_ary_new_from_values, rb_assoc_new};
use wireloom_http2::field::Token;
use wireloom_http2::hpack::{DecodeError, huffman, integer};

use super::error::HeaderError;
use super::role::Role;
use super::statics::{pair, statics};
use super::table::{Field, OVERHEAD, Table};
use crate::held::Owner;
use crate::memory::try_grow;
use crate::strings;

/// Fields of a block that its frame is treated by.
#[derive(Clone, Copy, Default)]
pub(crate) struct Head {
    pub(crate) method: Option<RString>,
    pub(crate) status: Option<i64>,
    pub(crate) content_length: Option<i64>,
    pub(crate) trailer: Option<RArray>,
}

/// Which rules beyond HPACK hold for the fields (RFC 9113 §8).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rules {
    /// HPACK alone.
    None,
    /// Names are in lower case, and the list of fields is no larger than `list_size_max` (RFC 9113 §6.5.2, bytes). Unless
    /// `lenient`, pseudo-fields come first, and fields of a connection are refused.
    Message { list_size_max: usize, lenient: bool },
}

#[cold]
fn pseudo_late() -> HeaderError {
    HeaderError::Field("one or more pseudo headers encountered after regular headers".into())
}

#[cold]
fn list_too_large() -> HeaderError {
    HeaderError::Field("header list exceeds configured maximum".into())
}

/// The default of SETTINGS_MAX_HEADER_LIST_SIZE in `http-2`, which means no bound.
const LIST_SIZE_UNBOUNDED: usize = 0x7fff_ffff;

/// Decodes a whole block into an Array of pairs, and allocates no more than that. The table, which is `owner`'s, stays in step
/// with the peer's up to the field that is wrong. Without memory for a field, also where Ruby raises for it, every later block is refused.
pub(crate) fn decode(
    ruby: &Ruby,
    owner: Owner,
    table: &mut Table,
    block: &[u8],
    rules: Rules,
) -> Result<(RArray, Head), HeaderError> {
    let was_out_of_step = table.begin_block();
    let decoded = match was_out_of_step {
        true => Err(HeaderError::compression("a block before this one was not decoded")),
        false => fields(ruby, owner, table, block, rules),
    };
    table.end_block(was_out_of_step || matches!(decoded, Err(HeaderError::NoMemory)));
    table.trim_scratch();
    decoded
}

fn fields(
    ruby: &Ruby,
    owner: Owner,
    table: &mut Table,
    block: &[u8],
    rules: Rules,
) -> Result<(RArray, Head), HeaderError> {
    let mut head = Head::default();
    let mut list = List::new();
    let mut rest = block;
    let mut first_field = true;
    let mut pseudo = true;
    let mut size = 0;
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        if first & 0xe0 == 0x20 {
            size_update(table, integer(first, 0x1f, &mut rest)? as usize, first_field)?;
            continue;
        }
        if first_field && table.update_due().is_some() {
            return Err(HeaderError::compression("dynamic table size update required"));
        }
        first_field = false;
        let Field { value, pair, size: field_size, role, .. } =
            field(ruby, owner, table, first, &mut rest, rules)?;
        if let Rules::Message { list_size_max, lenient } = rules {
            if role.is_pseudo() && !pseudo && !lenient {
                return Err(pseudo_late());
            }
            pseudo = role.is_pseudo();
            // The default means no bound: the bound on the block is far below it.
            size += field_size;
            if size > list_size_max && list_size_max < LIST_SIZE_UNBOUNDED {
                return Err(list_too_large());
            }
            note(ruby, role, value, &mut head, lenient)?;
        }
        list.push(pair);
    }
    Ok((list.finish(), head))
}

/// Pairs on their way into an Array, on the stack, where Ruby finds them.
struct List {
    pairs: [VALUE; 32],
    len: usize,
    /// The pairs before these, once they did not fit.
    full: Option<VALUE>,
}

impl List {
    fn new() -> Self {
        Self { pairs: [0; 32], len: 0, full: None }
    }

    #[inline]
    fn push(&mut self, pair: VALUE) {
        if self.len == self.pairs.len() {
            // `pair` is an argument, and on the stack here.
            self.full = Some(self.flush());
            std::hint::black_box(pair);
        }
        self.pairs[self.len] = pair;
        self.len += 1;
    }

    fn flush(&mut self) -> VALUE {
        let len = std::mem::take(&mut self.len);
        // SAFETY: `pairs[..len]` are live Arrays, and `full` is an Array that no other code has a reference to; only NoMemoryError is
        // raised.
        unsafe {
            match self.full {
                None => rb_ary_new_from_values(len as _, self.pairs.as_ptr()),
                Some(full) => rb_ary_cat(full, self.pairs.as_ptr(), len as _),
            }
        }
    }

    fn finish(mut self) -> RArray {
        let list = self.flush();
        // SAFETY: an Array, made by `flush`.
        unsafe { RArray::from_value(Value::from_raw(list)).unwrap_unchecked() }
    }
}

/// RFC 7541 §4.2 and §6.3.
fn size_update(table: &mut Table, size: usize, first_field: bool) -> Result<(), HeaderError> {
    if !first_field {
        return Err(HeaderError::compression("tried to change table size after adding elements to table"));
    }
    if size > table.max_limit() {
        return Err(HeaderError::compression("dynamic table size update exceed limit"));
    }
    if table.update_due().is_none_or(|due| size <= due) {
        table.settle();
    }
    table.set_limit(size);
    Ok(())
}

/// A field, whose pair is always there.
fn field(
    ruby: &Ruby,
    owner: Owner,
    table: &mut Table,
    first: u8,
    rest: &mut &[u8],
    rules: Rules,
) -> Result<Field, HeaderError> {
    if first & 0x80 != 0 {
        // RFC 7541 §6.1: indexed.
        let index = integer(first, 0x7f, rest)?;
        let mut field = entry(table, index)?;
        if field.pair == Qnil as VALUE {
            field.pair = new_pair(field.name, field.value);
        }
        return Ok(field);
    }
    let index_it = first & 0x40 != 0;
    let index = integer(first, if index_it { 0x3f } else { 0x0f }, rest)?;
    let (name, role) = if index == 0 {
        let bytes = string(rest, &mut table.scratch)?;
        let role = Role::of(bytes);
        match statics().name(Token::of(bytes)) {
            Some(name) => (name, role),
            None => {
                if rules != Rules::None && bytes.iter().any(u8::is_ascii_uppercase) {
                    return Err(HeaderError::Field(
                        format!("Invalid uppercase key: {}", bytes.escape_ascii()).into(),
                    ));
                }
                (strings::utf8_or_ascii_frozen(ruby, bytes), role)
            }
        }
    } else {
        let Field { name, role, .. } = entry(table, index)?;
        (name, role)
    };
    let bytes = string(rest, &mut table.scratch)?;
    let size = name.len() + bytes.len() + OVERHEAD;
    if !index_it {
        let value = strings::utf8_or_ascii(ruby, bytes);
        return Ok(Field { name, value, pair: new_pair(name, value), size, role });
    }
    let value = strings::utf8_or_ascii_frozen(ruby, bytes);
    let field = Field { name, value, pair: pair(name, value).as_raw(), size, role };
    table.insert_field(owner, field);
    Ok(field)
}

/// An Array of two Strings that is not frozen.
fn new_pair(name: RString, value: RString) -> VALUE {
    // SAFETY: two live Strings; only NoMemoryError is raised.
    unsafe { rb_assoc_new(name.as_raw(), value.as_raw()) }
}

#[inline]
fn entry(table: &Table, index: u32) -> Result<Field, HeaderError> {
    if index == 0 {
        return Err(HeaderError::Compression(None));
    }
    table.field(index).ok_or(HeaderError::compression("Index too large"))
}

/// RFC 7541 §5.2: a string literal, borrowed from the block or decoded into `scratch`.
#[inline]
fn string<'s, 'b: 's>(rest: &mut &'b [u8], scratch: &'s mut Vec<u8>) -> Result<&'s [u8], HeaderError> {
    let (&first, after) =
        rest.split_first().ok_or(HeaderError::compression("invalid header block fragment"))?;
    *rest = after;
    let len = integer(first, 0x7f, rest)? as usize;
    let (bytes, after) = rest.split_at_checked(len).ok_or(HeaderError::compression("string too short"))?;
    *rest = after;
    if first & 0x80 == 0 {
        return Ok(bytes);
    }
    try_grow(scratch, huffman::decoded_len_max(len))?;
    let decoded = huffman::decode(bytes, scratch)?;
    Ok(&scratch[..decoded.len])
}

fn integer(first: u8, prefix: u8, rest: &mut &[u8]) -> Result<u32, HeaderError> {
    integer::decode(first, prefix, rest).map_err(|error| match error {
        DecodeError::Truncated => HeaderError::compression("invalid header block fragment"),
        _ => HeaderError::compression("integer too large"),
    })
}

/// RFC 9113 §8.2.2, and the fields of [`Head`].
#[inline]
fn note(ruby: &Ruby, role: Role, value: RString, head: &mut Head, lenient: bool) -> Result<(), HeaderError> {
    match role {
        Role::Regular | Role::Pseudo => {}
        Role::Status => head.status = Some(number(value)?),
        Role::Method => head.method = Some(value),
        Role::ContentLength => head.content_length = Some(number(value)?),
        Role::Trailer => {
            let trailers = *head.trailer.get_or_insert_with(|| ruby.ary_new());
            trailers.push(value).map_err(|_| HeaderError::NoMemory)?;
        }
        Role::Connection if !lenient => {
            return Err(HeaderError::Field("invalid header received: connection".into()));
        }
        // SAFETY: no Ruby code runs while the slice is compared.
        Role::Te if !lenient && unsafe { value.as_slice() } != b"trailers" => {
            return Err(HeaderError::Field("invalid header received: te".into()));
        }
        Role::Connection | Role::Te => {}
    }
    Ok(())
}

fn number(value: RString) -> Result<i64, HeaderError> {
    // SAFETY: no Ruby code runs while the slice is read.
    let digits = unsafe { value.as_slice() };
    if !(1..=18).contains(&digits.len()) {
        return Err(not_a_number(digits));
    }
    let mut number = 0;
    for digit in digits {
        if !digit.is_ascii_digit() {
            return Err(not_a_number(digits));
        }
        number = number * 10 + i64::from(digit - b'0');
    }
    Ok(number)
}

#[cold]
fn not_a_number(digits: &[u8]) -> HeaderError {
    HeaderError::Argument(format!("invalid value for Integer(): \"{}\"", digits.escape_ascii()))
}
