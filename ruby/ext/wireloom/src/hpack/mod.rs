//! `Wireloom::HPACK`: header compression alone, and the tables that HTTP/2 connections use.
//!
//! It owns tables of Ruby Strings and what goes on the wire for them; the Huffman code, integers and the static table are the
//! core's. `Wireloom::HPACK::Context` is one table with both directions; `lib/` gives it its faces.

pub(crate) mod decode;
pub(crate) mod encode;
pub(crate) mod error;
mod statics;
pub(crate) mod table;

use std::cell::{Cell, RefCell};

use magnus::rb_sys::AsRawValue;
use magnus::typed_data::Obj;
use magnus::value::Lazy;
use magnus::{
    DataTypeFunctions, Error, ExceptionClass, Module, RArray, RHash, RModule, RString, Ruby, Symbol,
    TryConvert, TypedData, Value, gc, method, prelude::*,
};
use wireloom_http2::hpack::huffman;

use crate::panic::guard;
use crate::strings;
use decode::{Head, Rules};
use encode::{Huffman, Index, Policy};
use error::HeaderError;
pub(crate) use statics::statics;
use table::Table;

static ERROR: Lazy<ExceptionClass> = Lazy::new(|ruby| hpack_class(ruby, "Error"));
static FIELD_ERROR: Lazy<ExceptionClass> = Lazy::new(|ruby| hpack_class(ruby, "FieldError"));

fn hpack_class(ruby: &Ruby, name: &str) -> ExceptionClass {
    ruby.class_object()
        .const_get::<_, RModule>("Wireloom")
        .and_then(|wireloom| wireloom.const_get::<_, RModule>("HPACK"))
        .and_then(|hpack| hpack.const_get(name))
        .unwrap_or_else(|_| ruby.exception_runtime_error())
}

/// A dynamic table and a policy.
#[derive(TypedData)]
#[magnus(class = "Wireloom::HPACK::Context", free_immediately, mark, size)]
struct Context {
    table: RefCell<Table>,
    policy: RefCell<Policy>,
    /// See [`Rules::Message`].
    list_size_max: Cell<usize>,
    lenient: Cell<bool>,
}

impl Default for Context {
    fn default() -> Self {
        let policy = Policy { table_size: 4096, ..Policy::default() };
        Self {
            table: RefCell::new(Table::new(4096)),
            policy: RefCell::new(policy),
            list_size_max: Cell::new(usize::MAX),
            lenient: Cell::new(false),
        }
    }
}

impl DataTypeFunctions for Context {
    fn mark(&self, marker: &gc::Marker) {
        // SAFETY: unconditionally, even while the table is borrowed: nothing in it is half changed when Ruby allocates.
        unsafe { &*self.table.as_ptr() }.mark(marker);
    }

    fn size(&self) -> usize {
        // SAFETY: likewise.
        size_of::<Self>() + unsafe { &*self.table.as_ptr() }.heap_size()
    }
}

fn raise(ruby: &Ruby, error: HeaderError) -> Error {
    match error {
        HeaderError::Compression(message) => {
            Error::new(ruby.get_inner(&ERROR), message.unwrap_or("invalid header block fragment".into()))
        }
        HeaderError::Field(message) => Error::new(ruby.get_inner(&FIELD_ERROR), message),
        HeaderError::Argument(message) => Error::new(ruby.exception_arg_error(), message),
        HeaderError::Type(message) => Error::new(ruby.exception_type_error(), message),
    }
}

/// Reads `:index`, `:huffman`, `:table_size` and `:fill_path`; what is missing keeps its default.
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
    Ok(Policy { index, huffman, table_size, fill_path: fill_path.unwrap_or(false) })
}

fn symbol(ruby: &Ruby, options: RHash, key: &str) -> Result<Option<String>, Error> {
    let value: Option<Symbol> = options.lookup(ruby.to_symbol(key))?;
    value.map(|value| value.name().map(|name| name.into_owned())).transpose()
}

impl Context {
    fn initialize(ruby: &Ruby, this: Obj<Self>, options: RHash) -> Result<(), Error> {
        let policy = policy(ruby, options)?;
        *this.table.borrow_mut() = Table::new(policy.table_size);
        *this.policy.borrow_mut() = policy;
        Ok(())
    }

    fn initialize_copy(ruby: &Ruby, this: Obj<Self>, other: Value) -> Result<Obj<Self>, Error> {
        let other = Obj::<Self>::try_convert(other)?;
        guard(ruby, || {
            *this.table.borrow_mut() = other.table.borrow().clone();
            *this.policy.borrow_mut() = *other.policy.borrow();
            this.list_size_max.set(other.list_size_max.get());
            this.lenient.set(other.lenient.get());
            Ok(this)
        })
    }

    fn compress(ruby: &Ruby, this: Obj<Self>, headers: Value) -> Result<RString, Error> {
        guard(ruby, || {
            let list = encode::pairs(ruby, headers)?;
            let mut out = Vec::with_capacity(256);
            encode::encode(&mut this.table.borrow_mut(), *this.policy.borrow(), list, &mut out)
                .map_err(|error| raise(ruby, error))?;
            Ok(strings::binary(&out))
        })
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
        guard(ruby, || {
            let mut head = Head::default();
            // SAFETY: no Ruby code runs while the slice is in use, and the String is kept below.
            let bytes = unsafe { strings::bytes(block.as_raw()) };
            let list = decode::decode(ruby, &mut this.table.borrow_mut(), bytes, rules, &mut head);
            strings::keep(block);
            Ok((list.map_err(|error| raise(ruby, error))?, head))
        })
    }

    /// The entries, newest first, as frozen pairs.
    fn table(ruby: &Ruby, this: &Self) -> Result<RArray, Error> {
        let list = ruby.ary_new();
        let len = this.table.borrow().len() as u32;
        for age in 0..len {
            let entry = this.table.borrow().get(62 + age);
            if let Some((name, value)) = entry {
                list.push(ruby.ary_new_from_values(&[name, value]))?;
            }
        }
        Ok(list)
    }

    fn current_table_size(&self) -> usize {
        self.table.borrow().size()
    }

    fn limit(&self) -> usize {
        self.table.borrow().limit()
    }

    fn max_limit(&self) -> usize {
        self.table.borrow().max_limit()
    }

    fn update_due(&self) -> Option<usize> {
        self.table.borrow().update_due()
    }

    fn settle(&self) {
        self.table.borrow_mut().settle();
    }

    fn set_limit(&self, size: u32) {
        self.table.borrow_mut().set_limit(size as usize);
    }

    fn set_max_limit(&self, size: u32) {
        self.table.borrow_mut().set_max_limit(size as usize);
    }

    fn insert(&self, name: RString, value: RString) {
        let (name, value) = (strings::frozen(name), strings::frozen(value));
        self.table.borrow_mut().insert(name, value);
    }

    /// The field at an index from 0, or nil.
    fn at(ruby: &Ruby, this: &Self, index: u32) -> Option<RArray> {
        let entry = this.table.borrow().get(index.checked_add(1)?);
        entry.map(|(name, value)| ruby.ary_new_from_values(&[name, value]))
    }

    /// Where a field is, and where its name is: indices from 0, or nil.
    fn find(&self, name: RString, value: RString) -> (Option<u32>, Option<u32>) {
        // SAFETY: no Ruby code runs while the slices are in use.
        let (name, value) = unsafe { (strings::bytes(name.as_raw()), strings::bytes(value.as_raw())) };
        let found = encode::find(&mut self.table.borrow_mut(), self.policy.borrow().index, name, value);
        (found.exact.map(|index| index - 1), found.name.map(|index| index - 1))
    }
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

fn huffman_encode(source: RString) -> RString {
    // SAFETY: no Ruby code runs while the slice is in use.
    let bytes = unsafe { strings::bytes(source.as_raw()) };
    let len = huffman::encoded_len(bytes);
    let mut out = vec![0; len + huffman::ENCODE_SLACK];
    huffman::encode(bytes, &mut out);
    strings::binary(&out[..len])
}

fn huffman_decode(ruby: &Ruby, source: RString) -> Result<RString, Error> {
    // SAFETY: no Ruby code runs while the slice is in use.
    let bytes = unsafe { strings::bytes(source.as_raw()) };
    let mut out = vec![0; huffman::decoded_len_max(bytes.len())];
    let decoded = huffman::decode(bytes, &mut out).map_err(|error| raise(ruby, error.into()))?;
    Ok(strings::binary(&out[..decoded.len]))
}

pub(crate) fn init(ruby: &Ruby, wireloom: RModule) -> Result<(), Error> {
    statics();
    let hpack = wireloom.define_module("HPACK")?;
    let error = hpack.define_error("Error", wireloom.const_get::<_, ExceptionClass>("Error")?)?;
    hpack.define_error("FieldError", error)?;
    Lazy::force(&ERROR, ruby);
    Lazy::force(&FIELD_ERROR, ruby);
    hpack.define_singleton_method("huffman_encode", magnus::function!(huffman_encode, 1))?;
    hpack.define_singleton_method("huffman_decode", magnus::function!(huffman_decode, 1))?;
    let context = hpack.define_class("Context", ruby.class_object())?;
    context.define_alloc_func::<Context>();
    context.define_private_method("initialize", method!(Context::initialize, 1))?;
    context.define_private_method("initialize_copy", method!(Context::initialize_copy, 1))?;
    context.define_method("compress", method!(Context::compress, 1))?;
    context.define_method("decompress", method!(Context::decompress, 1))?;
    context.define_method("decompress_message", method!(Context::decompress_message, 2))?;
    context.define_method(
        "list_size_max=",
        method!(|this: &Context, size: usize| this.list_size_max.set(size), 1),
    )?;
    context
        .define_method("lenient=", method!(|this: &Context, lenient: bool| this.lenient.set(lenient), 1))?;
    context.define_method("table", method!(Context::table, 0))?;
    context.define_method("current_table_size", method!(Context::current_table_size, 0))?;
    context.define_method("limit", method!(Context::limit, 0))?;
    context.define_method("limit=", method!(Context::set_limit, 1))?;
    context.define_method("max_limit", method!(Context::max_limit, 0))?;
    context.define_method("max_limit=", method!(Context::set_max_limit, 1))?;
    context.define_method("update_due", method!(Context::update_due, 0))?;
    context.define_method("settle", method!(Context::settle, 0))?;
    context.define_method("insert", method!(Context::insert, 2))?;
    context.define_method("at", method!(Context::at, 1))?;
    context.define_method("find", method!(Context::find, 2))
}
