//! `Wireloom::HPACK`: header compression alone, and the tables that HTTP/2 connections use.
//!
//! It owns tables of Ruby Strings and their encoding; the Huffman code, integers and the static table are the core's.
//! `Wireloom::HPACK::Context` is one table with both directions; `lib/` builds `Encoder` and `Decoder` on it.

pub(crate) mod decode;
pub(crate) mod encode;
pub(crate) mod error;
mod output;
mod role;
mod statics;
pub(crate) mod table;

use std::cell::Cell;

use magnus::rb_sys::{AsRawValue, FromRawValue};
use magnus::typed_data::Obj;
use magnus::{
    Error, ExceptionClass, Module, RArray, RHash, RModule, RString, Ruby, Symbol, TryConvert, Value,
    prelude::*,
};
use rb_sys::VALUE;
use wireloom_http2::field::Token;
use wireloom_http2::hpack::huffman;

use crate::exclusive::Exclusive;
use crate::guard::{function, method};
use crate::held::{Immortal, Owner, managed, plain};
use crate::memory::{no_memory, try_grow};
use crate::strings;
use decode::{Head, Rules};
use encode::{Huffman, Index, Policy};
use error::HeaderError;
pub(crate) use statics::statics;
use table::Table;

static ERROR: Immortal<ExceptionClass> = Immortal::new();
static FIELD_ERROR: Immortal<ExceptionClass> = Immortal::new();

/// A dynamic table and a policy.
struct Context {
    table: Exclusive<Table>,
    policy: Cell<Policy>,
    /// See [`Rules::Message`].
    list_size_max: Cell<usize>,
    lenient: Cell<bool>,
}

plain!(Policy);

managed!(
    Context as "Wireloom::HPACK::Context" { table, policy, list_size_max, lenient },
    size = |context| context.table.try_with(|table| table.heap_size()).unwrap_or(0)
);

impl Default for Context {
    fn default() -> Self {
        Self {
            table: Exclusive::new(Table::new(4096)),
            policy: Cell::new(Policy { table_size: 4096, ..Policy::default() }),
            list_size_max: Cell::new(usize::MAX),
            lenient: Cell::new(false),
        }
    }
}

fn raise(ruby: &Ruby, error: HeaderError) -> Error {
    match error {
        HeaderError::Compression(message) => {
            Error::new(ERROR.get(ruby), message.unwrap_or("invalid header block fragment".into()))
        }
        HeaderError::Field(message) => Error::new(FIELD_ERROR.get(ruby), message),
        HeaderError::Argument(message) => Error::new(ruby.exception_arg_error(), message),
        HeaderError::Type(message) => Error::new(ruby.exception_type_error(), message),
        HeaderError::NoMemory => no_memory(ruby),
    }
}

/// Reads `:index`, `:huffman`, `:table_size`, `:fill_path` and `:verbatim`; what is missing keeps its default.
pub(crate) fn policy(ruby: &Ruby, options: RHash) -> Result<Policy, Error> {
    let unknown = |what: &str| Error::new(ruby.exception_arg_error(), format!("unknown {what} policy"));
    let index = match symbol(ruby, options, "index")?.as_deref() {
        None | Some("all") => Index::All,
        Some("static") => Index::Static,
        Some("never") => Index::Never,
        Some(_) => return Err(unknown("index")),
    };
    let huffman = match symbol(ruby, options, "huffman")?.as_deref() {
        None | Some("shorter") => Huffman::Shorter,
        Some("always") => Huffman::Always,
        Some("never") => Huffman::Never,
        Some(_) => return Err(unknown("huffman")),
    };
    let table_size: Option<u32> = options.lookup(ruby.to_symbol("table_size"))?;
    let fill_path: Option<bool> = options.lookup(ruby.to_symbol("fill_path"))?;
    let table_size = table_size.unwrap_or(4096) as usize;
    let verbatim: Option<bool> = options.lookup(ruby.to_symbol("verbatim"))?;
    Ok(Policy {
        index,
        huffman,
        table_size,
        fill_path: fill_path.unwrap_or(false),
        verbatim: verbatim.unwrap_or(false),
    })
}

fn symbol(ruby: &Ruby, options: RHash, key: &str) -> Result<Option<String>, Error> {
    let value: Option<Symbol> = options.lookup(ruby.to_symbol(key))?;
    value.map(|value| value.name().map(|name| name.into_owned())).transpose()
}

impl Context {
    fn initialize(ruby: &Ruby, this: Obj<Self>, options: RHash) -> Result<(), Error> {
        let policy = policy(ruby, options)?;
        this.table.with(|table| *table = Table::new(policy.table_size));
        this.policy.set(policy);
        Ok(())
    }

    fn initialize_copy(this: Obj<Self>, other: Obj<Self>) -> Obj<Self> {
        // Context takes no write barriers, so that the copies need none.
        let copy = other.table.with(|table| table.clone());
        this.table.with(|table| *table = copy);
        this.policy.set(other.policy.get());
        this.list_size_max.set(other.list_size_max.get());
        this.lenient.set(other.lenient.get());
        this
    }

    fn compress(ruby: &Ruby, this: Obj<Self>, headers: Value) -> Result<RString, Error> {
        let list = encode::pairs(ruby, headers)?;
        Self::encode(ruby, this, list, 0)
    }

    /// A block behind `room` zeros.
    fn encode(ruby: &Ruby, this: Obj<Self>, list: RArray, room: usize) -> Result<RString, Error> {
        let (owner, policy) = (Owner::of(this), this.policy.get());
        let (mut out, mut lowered) =
            (this.table.with(|table| std::mem::take(&mut table.scratch)), Vec::new());
        out.clear();
        out.resize(room, 0);
        let encoded = this.table.allocating(ruby, |ruby, table| {
            let encoded = encode::encode(ruby, owner, table, policy, list, &mut out, &mut lowered);
            encoded.map(|()| strings::binary(ruby, &out))
        });
        let is_lost = encoded.is_err();
        this.table.with(|table| {
            table.keep_scratch(out);
            if is_lost {
                table.restart();
            }
        });
        encoded?.map_err(|error| raise(ruby, error))
    }

    fn decompress(ruby: &Ruby, this: Obj<Self>, block: RString) -> Result<RArray, Error> {
        Self::decode(ruby, this, block, Rules::None).map(|(list, _)| list)
    }

    /// With the rules of messages; notes `:method`, `:status`, `:content_length` and `:trailer` in `frame`, a Hash or nil.
    fn decompress_message(
        ruby: &Ruby,
        this: Obj<Self>,
        block: RString,
        frame: Option<RHash>,
    ) -> Result<RArray, Error> {
        let (list_size_max, lenient) = (this.list_size_max.get(), this.lenient.get());
        let (list, head) = Self::decode(ruby, this, block, Rules::Message { list_size_max, lenient })?;
        if let Some(frame) = frame {
            head.note_in(ruby, frame)?;
        }
        Ok(list)
    }

    fn decode(ruby: &Ruby, this: Obj<Self>, block: RString, rules: Rules) -> Result<(RArray, Head), Error> {
        // SAFETY: no Ruby code runs while the slice is in use, and the String is kept below.
        let bytes = unsafe { strings::bytes(block.as_raw()) };
        let owner = Owner::of(this);
        // protocol-http2 does not decode blocks of streams that are closed, and the update may have been in one.
        let waives_update = this.policy.get().verbatim;
        let decoded = this.table.allocating(ruby, |ruby, table| {
            if waives_update {
                table.waive_update();
            }
            decode::decode(ruby, owner, table, bytes, rules)
        });
        strings::keep(block);
        decoded?.map_err(|error| raise(ruby, error))
    }

    /// The entries, newest first, as pairs.
    fn table(ruby: &Ruby, this: &Self) -> Result<RArray, Error> {
        let list = ruby.ary_new();
        let len = this.table.with(|table| table.len()) as u32;
        for age in 0..len {
            if let Some((name, value)) = this.table.with(|table| table.get(62 + age)) {
                list.push(ruby.ary_new_from_values(&[name, value]))?;
            }
        }
        Ok(list)
    }

    fn current_table_size(&self) -> usize {
        self.table.with(|table| table.size())
    }

    fn limit(&self) -> usize {
        self.table.with(|table| table.limit())
    }

    fn max_limit(&self) -> usize {
        self.table.with(|table| table.max_limit())
    }

    fn update_due(&self) -> Option<usize> {
        self.table.with(|table| table.update_due())
    }

    fn settle(&self) {
        self.table.with(Table::settle);
    }

    fn set_limit(&self, size: u32) {
        self.table.with(|table| table.set_limit(size as usize));
    }

    fn set_max_limit(&self, size: u32) {
        self.table.with(|table| table.set_max_limit(size as usize));
    }

    /// The table has this size from now on, and nothing is announced.
    fn resize(&self, size: u32) {
        let size = size as usize;
        self.policy.set(Policy { table_size: size, ..self.policy.get() });
        self.table.with(|table| {
            table.set_max_limit(size);
            table.settle();
            table.set_limit(size);
        });
    }

    fn insert(ruby: &Ruby, this: Obj<Self>, name: RString, value: RString) -> Result<(), Error> {
        let (name, value) = (strings::frozen(ruby, name), strings::frozen(ruby, value));
        let owner = Owner::of(this);
        this.table
            .allocating(ruby, |_, table| table.insert(owner, name, value, rb_sys::Qnil as rb_sys::VALUE))
    }

    /// The field at an index from 0, or nil.
    fn at(ruby: &Ruby, this: &Self, index: u32) -> Option<RArray> {
        let index = index.checked_add(1)?;
        let entry = this.table.with(|table| table.get(index));
        entry.map(|(name, value)| ruby.ary_new_from_values(&[name, value]))
    }

    /// Where a field is, and where its name is: indices from 0, or nil.
    fn find(&self, name: RString, value: RString) -> (Option<u32>, Option<u32>) {
        let index = self.policy.get().index;
        let found = {
            // SAFETY: no Ruby code runs while the slices are in use.
            let (name, value) = unsafe { (strings::bytes(name.as_raw()), strings::bytes(value.as_raw())) };
            self.table.with(|table| encode::find(table, index, Token::of(name), name, value)).0
        };
        strings::keep(name);
        strings::keep(value);
        (found.exact.map(|index| index - 1), found.name.map(|index| index - 1))
    }
}

/// The size that the table of a `Context` may have, in bytes.
pub(crate) fn limit(_: &Ruby, context: VALUE) -> Result<usize, Error> {
    Ok(of(context)?.limit())
}

/// The size up to which a block may change it, in bytes.
pub(crate) fn max_limit(_: &Ruby, context: VALUE) -> Result<usize, Error> {
    Ok(of(context)?.max_limit())
}

/// A block of fields behind `room` zeros.
///
/// # Errors
/// A name or a value is not a String.
pub(crate) fn block(ruby: &Ruby, context: VALUE, fields: RArray, room: usize) -> Result<RString, Error> {
    let context = of(context)?;
    context.check_frozen()?;
    Context::encode(ruby, context, fields, room)
}

/// The fields of a block.
///
/// # Errors
/// The block breaks RFC 7541.
pub(crate) fn fields(ruby: &Ruby, context: VALUE, block: RString) -> Result<RArray, Error> {
    let context = of(context)?;
    context.check_frozen()?;
    Context::decompress(ruby, context, block)
}

/// Reports whether the last [`block`] was sent. If there was no memory to send it, the peer does not have it, and the table is restarted.
pub(crate) fn block_sent(ruby: &Ruby, context: VALUE, sent: Result<(), Error>) -> Result<(), Error> {
    let context = of(context)?;
    restart_unless_sent(ruby, &context.table, sent)
}

/// The same for a table.
pub(crate) fn restart_unless_sent(
    ruby: &Ruby,
    table: &Exclusive<Table>,
    sent: Result<(), Error>,
) -> Result<(), Error> {
    sent.inspect_err(|error| {
        if error.is_kind_of(ruby.exception_no_mem_error()) {
            table.with(Table::restart);
        }
    })
}

/// Whether a class is that of errors of blocks.
pub(crate) fn is_error(ruby: &Ruby, class: ExceptionClass) -> bool {
    class.as_raw() == ERROR.get(ruby).as_raw()
}

fn of(context: VALUE) -> Result<Obj<Context>, Error> {
    // SAFETY: a live object.
    Obj::try_convert(unsafe { Value::from_raw(context) })
}

impl Head {
    /// Writes what was noted into a frame's Hash.
    pub(crate) fn note_in(&self, ruby: &Ruby, frame: RHash) -> Result<(), Error> {
        if let Some(method) = self.method {
            frame.aset(ruby.to_symbol("method"), method)?;
        }
        if let Some(status) = self.status {
            frame.aset(ruby.to_symbol("status"), status)?;
        }
        if let Some(content_length) = self.content_length {
            frame.aset(ruby.to_symbol("content_length"), content_length)?;
        }
        if let Some(trailer) = self.trailer {
            frame.aset(ruby.to_symbol("trailer"), trailer)?;
        }
        Ok(())
    }
}

fn huffman_encode(ruby: &Ruby, source: RString) -> Result<RString, Error> {
    let mut out = Vec::new();
    let reserved = {
        // SAFETY: no Ruby code runs while the slice is in use.
        let bytes = unsafe { strings::bytes(source.as_raw()) };
        let len = huffman::encoded_len(bytes);
        try_grow(&mut out, len + huffman::ENCODE_SLACK).map(|()| {
            huffman::encode(bytes, &mut out);
            out.truncate(len);
        })
    };
    strings::keep(source);
    reserved.map_err(|_| no_memory(ruby))?;
    strings::protected(ruby, |ruby| strings::binary(ruby, &out))
}

fn huffman_decode(ruby: &Ruby, source: RString) -> Result<RString, Error> {
    let mut out = Vec::new();
    let decoded = {
        // SAFETY: no Ruby code runs while the slice is in use.
        let bytes = unsafe { strings::bytes(source.as_raw()) };
        try_grow(&mut out, huffman::decoded_len_max(bytes.len()))
            .map_err(HeaderError::from)
            .and_then(|()| Ok(huffman::decode(bytes, &mut out)?))
    };
    strings::keep(source);
    out.truncate(decoded.map_err(|error| raise(ruby, error))?.len);
    strings::protected(ruby, |ruby| strings::binary(ruby, &out))
}

pub(crate) fn init(ruby: &Ruby, wireloom: RModule) -> Result<(), Error> {
    statics::load(ruby);
    let hpack = wireloom.define_module("HPACK")?;
    let error = hpack.define_error("Error", wireloom.const_get::<_, ExceptionClass>("Error")?)?;
    ERROR.set(ruby, error);
    FIELD_ERROR.set(ruby, hpack.define_error("FieldError", error)?);
    hpack.define_singleton_method("huffman_encode", function!(huffman_encode, 1))?;
    hpack.define_singleton_method("huffman_decode", function!(huffman_decode, 1))?;
    let context = hpack.define_class("Context", ruby.class_object())?;
    Context::load(ruby, context);
    context.define_alloc_func::<Context>();
    context.define_private_method("initialize", method!(mut Context::initialize, 1))?;
    context.define_private_method("initialize_copy", method!(Context::initialize_copy, 1))?;
    context.define_method("compress", method!(mut Context::compress, 1))?;
    context.define_method("decompress", method!(mut Context::decompress, 1))?;
    context.define_method("decompress_message", method!(mut Context::decompress_message, 2))?;
    context.define_method(
        "list_size_max=",
        method!(mut |this: &Context, size: usize| this.list_size_max.set(size), 1),
    )?;
    context.define_method(
        "lenient=",
        method!(mut |this: &Context, lenient: bool| this.lenient.set(lenient), 1),
    )?;
    context.define_method("table", method!(Context::table, 0))?;
    context.define_method("current_table_size", method!(Context::current_table_size, 0))?;
    context.define_method("limit", method!(Context::limit, 0))?;
    context.define_method("limit=", method!(mut Context::set_limit, 1))?;
    context.define_method("max_limit", method!(Context::max_limit, 0))?;
    context.define_method("max_limit=", method!(mut Context::set_max_limit, 1))?;
    context.define_method("update_due", method!(Context::update_due, 0))?;
    context.define_method("settle", method!(mut Context::settle, 0))?;
    context.define_method("resize", method!(mut Context::resize, 1))?;
    context.define_method("insert", method!(mut Context::insert, 2))?;
    context.define_method("at", method!(Context::at, 1))?;
    context.define_method("find", method!(Context::find, 2))
}
