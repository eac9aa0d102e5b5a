//! `Connection#read`: a fast path for a message in one frame, which makes no frame object and calls no method but the
//! stream's; everything else continues in Ruby, at `wireloom_read_on`.

use std::ffi::c_int;

use magnus::prelude::*;
use magnus::rb_sys::{AsRawValue, FromRawValue};
use magnus::{Error, Fixnum, KwArgs, RArray, RClass, RHash, RModule, Ruby, TryConvert, Value};
use rb_sys::{ID, rb_ivar_get};

use super::framer::{self, Frame, Limit, RawMethod};
use super::names::{self, Names};
use super::stream::Stream;
use super::{epoch, payload, reopened};
use crate::guard::{enter, exception};

/// The result of `wireloom_plain?` holds the length of the longest message in this many bits, and the epoch above them.
const PLAIN_LEN_BITS: u32 = 30;

/// RFC 6455 §7.4.1.
const INVALID_PAYLOAD: u16 = 1007;

pub(super) fn attach(protocol: RModule) -> Result<(), Error> {
    protocol.const_get::<_, RClass>("Connection")?.define_method("read", read as RawMethod)
}

/// `read(**options)`.
unsafe extern "C" fn read(argc: c_int, argv: *const Value, connection: Value) -> Value {
    // SAFETY: Ruby calls this, with a connection; nothing here has a destructor.
    unsafe {
        enter(|ruby| match framer::protected(|| read_in_memory(ruby, connection))? {
            Some(message) => Ok(message),
            None => {
                let args = if argc == 0 { &[] } else { std::slice::from_raw_parts(argv, argc as usize) };
                read_any(ruby, connection, options(ruby, args)?)
            }
        })
    }
}

/// A message that is complete, in one frame, in a `StringIO`; `None`, and nothing is taken, for everything else.
///
/// # Safety
/// As for `Stream::window`.
#[inline]
unsafe fn read_in_memory(ruby: &Ruby, connection: Value) -> Option<Value> {
    let names = names::get()?;
    let framer = ivar(connection, names.framer);
    let limit = known_plain(names, connection, framer)?;
    if !is_ready(names, connection) {
        return None;
    }
    let stream = Stream::of(names, framer);
    if !stream.is_memory() {
        return None;
    }
    // With the GVL, because another thread could change the `StringIO`.
    // SAFETY: the caller vouches for it.
    unsafe { framer::take_in_memory(ruby, stream, limit, |frame| message_of(ruby, names, frame, false)) }
}

/// The message in a frame that holds all of it; `None` for other frames, and text that is not UTF-8.
#[inline]
fn message_of(ruby: &Ruby, names: &Names, frame: Frame, may_detach: bool) -> Option<Value> {
    if !frame.is_message() {
        return None;
    }
    let is_text = frame.opcode == 1;
    let buffer = payload::message(ruby, frame.payload, frame.fresh, frame.mask, is_text, may_detach)?;
    let class = if is_text { names.text_message } else { names.binary_message };
    Some(names.object(class.get(), [(names.buffer, buffer.as_raw())]))
}

/// Whether no message has begun, and nothing decorates the reading.
#[inline]
fn is_ready(names: &Names, connection: Value) -> bool {
    ivar(connection, names.state).as_raw() != names.closed.get().as_raw()
        && RArray::from_value(ivar(connection, names.pending)).is_some_and(|frames| frames.is_empty())
        && ivar(connection, names.reader).as_raw() == connection.as_raw()
}

fn read_any(ruby: &Ruby, rb_self: Value, options: Option<RHash>) -> Result<Value, Error> {
    let names = names::get().ok_or_else(|| Error::new(ruby.exception_runtime_error(), "not attached"))?;
    let nil = ruby.qnil().as_value();
    let framer = ivar(rb_self, names.framer);
    if !is_plain(names, rb_self, framer)? {
        framer.funcall::<_, _, Value>("flush", ())?;
        return read_on(rb_self, nil, options);
    }
    let stream = Stream::of(names, framer);
    stream.flush()?;
    if ivar(rb_self, names.state).as_raw() == names.closed.get().as_raw() {
        return Ok(nil);
    }
    if !is_ready(names, rb_self) {
        return read_on(rb_self, nil, options);
    }
    let limit = ivar(rb_self, names.maximum_message_size);
    let limit = Limit::message(if limit.is_nil() { u64::MAX } else { u64::try_convert(limit)? });
    let frame = match framer::read(ruby, names, stream, limit) {
        Ok(frame) => frame,
        Err(error) => return read_failed(rb_self, error, false),
    };
    if !frame.is_message() {
        let frame = frame.into_object(ruby, names, ivar(framer, names.frames_by_opcode).as_raw())?;
        return read_on(rb_self, frame, options);
    }
    message_of(ruby, names, frame, true).map(Ok).unwrap_or_else(|| {
        let message = "invalid UTF-8 in text frame!".to_owned();
        read_failed(rb_self, names.protocol_error(message, INVALID_PAYLOAD), true)
    })
}

/// Whether no method that the fast path omits has been overridden, neither in the classes nor for these two objects.
fn is_plain(names: &Names, connection: Value, framer: Value) -> Result<bool, Error> {
    if known_plain(names, connection, framer).is_some() {
        return Ok(true);
    }
    if reopened() || !is_plain_object(connection) || !is_plain_object(framer) {
        return Ok(false);
    }
    connection.funcall("wireloom_plain?", ())
}

/// The same, when it was found out before: then the longest message that the fast path takes.
#[inline]
fn known_plain(names: &Names, connection: Value, framer: Value) -> Option<Limit> {
    let plain = Fixnum::from_value(ivar(connection, names.plain))?.to_i64();
    let known = plain >> PLAIN_LEN_BITS == i64::from(epoch()) && !reopened();
    (known && is_plain_object(connection) && is_plain_object(framer))
        .then_some(Limit::message((plain & ((1 << PLAIN_LEN_BITS) - 1)) as u64))
}

/// Whether the object has no singleton class, which `class` would be.
#[inline]
fn is_plain_object(value: Value) -> bool {
    // SAFETY: a live object.
    value.class().as_raw() == unsafe { rb_sys::rb_obj_class(value.as_raw()) }
}

/// Continues in Ruby, with a frame that was read, if any.
fn read_on(connection: Value, frame: Value, options: Option<RHash>) -> Result<Value, Error> {
    match options {
        None => connection.funcall("wireloom_read_on", (frame,)),
        Some(options) => connection.funcall("wireloom_read_on", (frame, KwArgs(options))),
    }
}

/// The options of `read`, which are keywords.
fn options(ruby: &Ruby, args: &[Value]) -> Result<Option<RHash>, Error> {
    match args {
        [] => Ok(None),
        [options] if RHash::from_value(*options).is_some() => Ok(RHash::from_value(*options)),
        _ => {
            let message = format!("wrong number of arguments (given {}, expected 0)", args.len());
            Err(Error::new(ruby.exception_arg_error(), message))
        }
    }
}

/// Lets the connection end for what was raised while a frame was read or, `whole`, its text, and raises it again.
fn read_failed(connection: Value, error: Error, whole: bool) -> Result<Value, Error> {
    let ruby = Ruby::get_with(connection);
    let exception = exception(&ruby, error)?;
    if !exception.is_kind_of(ruby.exception_standard_error()) {
        return Err(exception.into());
    }
    connection.funcall("wireloom_read_failed", (exception, whole))
}

#[inline]
fn ivar(of: Value, name: ID) -> Value {
    // SAFETY: an object and an interned name.
    unsafe { Value::from_raw(rb_ivar_get(of.as_raw(), name)) }
}
