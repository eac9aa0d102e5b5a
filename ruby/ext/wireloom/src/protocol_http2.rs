//! The native part of `wireloom/drop_in/protocol_http2`: frame headers (RFC 9113 §4.1), and frames whose classes read no more than
//! their payload. HPACK is `Wireloom::HPACK::Context`; the classes are the gem's own.

use std::sync::OnceLock;

use magnus::rb_sys::{AsRawValue, FromRawValue, protect};
use magnus::value::ReprValue;
use magnus::{Error, RArray, RClass, RModule, RString, Ruby, TryConvert, Value, prelude::*};
use rb_sys::{ID, Qnil, VALUE, rb_funcallv, rb_ivar_set};

use crate::guard::function;
use crate::held::Registered;
use crate::strings;

/// RFC 9113 §4.1.
const HEADER_LEN: usize = 9;
const END_HEADERS: u8 = 0x4;

/// The frame types that are read here, and their numbers in `FRAMES`.
const DATA: u8 = 0;
const HEADERS: u8 = 1;

struct Names {
    /// `DataFrame` and `HeadersFrame`.
    classes: [Registered<RClass>; 2],
    /// The allocator of ordinary objects.
    allocate: unsafe extern "C" fn(VALUE) -> VALUE,
    read: ID,
    length: ID,
    r#type: ID,
    flags: ID,
    stream_id: ID,
    payload: ID,
    continuation: ID,
}

static NAMES: OnceLock<Names> = OnceLock::new();

/// `attach(DataFrame, HeadersFrame)`
fn attach(ruby: &Ruby, data: RClass, headers: RClass) -> Result<(), Error> {
    // SAFETY: a class; what it answers stays.
    let allocate = unsafe { rb_sys::rb_get_alloc_func(ruby.class_object().as_raw()) };
    let allocate =
        allocate.ok_or_else(|| Error::new(ruby.exception_runtime_error(), "objects have no allocator"))?;
    let _ = NAMES.set(Names {
        classes: [Registered::new(ruby, data), Registered::new(ruby, headers)],
        allocate,
        read: id("read"),
        length: id("@length"),
        r#type: id("@type"),
        flags: id("@flags"),
        stream_id: id("@stream_id"),
        payload: id("@payload"),
        continuation: id("@continuation"),
    });
    Ok(())
}

fn id(name: &str) -> ID {
    // SAFETY: pointer and length are a str's; an interned name stays.
    unsafe { rb_sys::rb_intern2(name.as_ptr().cast(), name.len() as _) }
}

/// `read_frame(stream, frames, length_max)`: a frame whose class reads no more than its payload, nil at the end of the stream, or
/// `[length, type, flags, stream_id]` of any other, whose payload is still to be read.
fn read_frame(ruby: &Ruby, stream: Value, frames: RArray, len_max: usize) -> Result<Value, Error> {
    let names = NAMES.get().ok_or_else(|| Error::new(ruby.exception_runtime_error(), "not attached"))?;
    let Some(header) = read(ruby, names, stream, HEADER_LEN)? else { return Ok(ruby.qnil().as_value()) };
    // SAFETY: copied at once.
    let header: Option<[u8; HEADER_LEN]> = unsafe { header.as_slice() }.try_into().ok();
    let Some([a, b, c, r#type, flags, s0, s1, s2, s3]) = header else { return Ok(ruby.qnil().as_value()) };
    let len = u32::from_be_bytes([0, a, b, c]) as usize;
    let stream_id = u32::from_be_bytes([s0 & 0x7f, s1, s2, s3]);
    let is_whole = r#type == DATA || r#type == HEADERS && flags & END_HEADERS != 0;
    let class = if is_whole { names.classes[usize::from(r#type)].get() } else { names.classes[0].get() };
    let is_own =
        is_whole && len <= len_max && frames.entry::<Value>(isize::from(r#type))?.as_raw() == class.as_raw();
    if is_own {
        let payload = if len == 0 {
            Some(strings::protected(ruby, |ruby| strings::binary(ruby, b""))?)
        } else {
            read(ruby, names, stream, len)?
        };
        if let Some(payload) = payload.filter(|payload| payload.len() == len) {
            return names.frame(
                ruby,
                class,
                [len as u32, u32::from(r#type), u32::from(flags), stream_id],
                payload,
            );
        }
        return Err(Error::new(ruby.exception_eof_error(), "Could not read frame payload!"));
    }
    let parts = ruby.ary_new_capa(4);
    for part in [len as u32, u32::from(r#type), u32::from(flags), stream_id] {
        parts.push(part)?;
    }
    Ok(parts.as_value())
}

/// `stream.read(len)`
fn read(ruby: &Ruby, names: &Names, stream: Value, len: usize) -> Result<Option<RString>, Error> {
    let len = ruby.integer_from_u64(len as u64).as_raw();
    // SAFETY: a live object, an interned name and an Integer.
    let read = protect(|| unsafe { rb_funcallv(stream.as_raw(), names.read, 1, &len) })?;
    // SAFETY: it came from Ruby just now.
    Option::<RString>::try_convert(unsafe { Value::from_raw(read) })
}

impl Names {
    /// An object of `class`, without `initialize`, which would do nothing else.
    fn frame(&self, ruby: &Ruby, class: RClass, fields: [u32; 4], payload: RString) -> Result<Value, Error> {
        let nil = Qnil as VALUE;
        let [len, r#type, flags, stream_id] =
            fields.map(|field| ruby.integer_from_u64(field.into()).as_raw());
        // In the order in which `initialize` sets them, so that all frames of a class have one shape.
        let variables = [
            (self.stream_id, stream_id),
            (self.flags, flags),
            (self.r#type, r#type),
            (self.length, len),
            (self.payload, payload.as_raw()),
            (self.continuation, nil),
        ];
        let count = if class.as_raw() == self.classes[0].get().as_raw() { 5 } else { 6 };
        let made = protect(|| {
            // SAFETY: a class of ordinary objects, whose instance variables may be set.
            unsafe {
                let object = (self.allocate)(class.as_raw());
                for &(name, value) in &variables[..count] {
                    rb_ivar_set(object, name, value);
                }
                object
            }
        })?;
        // SAFETY: made just now.
        Ok(unsafe { Value::from_raw(made) })
    }
}

/// `header(length, type, flags, stream_id)`
fn header(ruby: &Ruby, len: u32, r#type: u8, flags: u8, stream_id: u32) -> Result<RString, Error> {
    strings::protected(ruby, |ruby| strings::binary(ruby, &head(len, r#type, flags, stream_id)))
}

/// `frame(type, flags, stream_id, payload)`: all of a frame.
fn frame(ruby: &Ruby, r#type: u8, flags: u8, stream_id: u32, payload: RString) -> Result<RString, Error> {
    let len = payload.len();
    let out = strings::protected(ruby, |ruby| strings::uninitialized(ruby, HEADER_LEN + len))?;
    // SAFETY: `out` was made just now; no Ruby code runs while the slices are in use.
    let (place, bytes) = unsafe { (strings::contents(out), strings::bytes(payload.as_raw())) };
    place[..HEADER_LEN].copy_from_slice(&head(len as u32, r#type, flags, stream_id));
    place[HEADER_LEN..].copy_from_slice(bytes);
    strings::keep(payload);
    Ok(out)
}

fn head(len: u32, r#type: u8, flags: u8, stream_id: u32) -> [u8; HEADER_LEN] {
    let ([_, a, b, c], [s0, s1, s2, s3]) = (len.to_be_bytes(), stream_id.to_be_bytes());
    [a, b, c, r#type, flags, s0, s1, s2, s3]
}

pub(crate) fn init(_: &Ruby, wireloom: RModule) -> Result<(), Error> {
    let module = wireloom.define_module("ProtocolHTTP2")?;
    module.define_singleton_method("attach", function!(attach, 2))?;
    module.define_singleton_method("read_frame", function!(read_frame, 3))?;
    module.define_singleton_method("header", function!(header, 4))?;
    module.define_singleton_method("frame", function!(frame, 4))
}
