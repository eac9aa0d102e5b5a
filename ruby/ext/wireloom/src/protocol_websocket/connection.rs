//! `Connection#read`: the short way for a message in one frame, which makes no frame object and calls no method but the
//! stream's; everything else goes on in Ruby, at `wireloom_read_on`.

use magnus::error::ErrorType;
use magnus::prelude::*;
use magnus::rb_sys::{AsRawValue, FromRawValue};
use magnus::value::Opaque;
use magnus::{Error, RArray, RClass, RModule, Ruby, TryConvert, Value, method};
use rb_sys::{ID, VALUE, rb_ivar_get, rb_ivar_set, rb_obj_alloc};

use super::framer::{self, Limit};
use super::names::{self, Names};
use super::{epoch, payload, reopened};
use crate::panic::guard;

/// RFC 6455 §7.4.1.
const INVALID_PAYLOAD: u16 = 1007;

pub(super) fn attach(protocol: RModule) -> Result<(), Error> {
    protocol.const_get::<_, RClass>("Connection")?.define_method("read", method!(read, -1))
}

/// `read(**options)`.
fn read(ruby: &Ruby, rb_self: Value, args: &[Value]) -> Result<Value, Error> {
    guard(ruby, || {
        let names = names::get().ok_or_else(|| Error::new(ruby.exception_runtime_error(), "not attached"))?;
        let nil = ruby.qnil().as_value();
        let framer = ivar(rb_self, names.framer);
        if !is_plain(names, rb_self, framer)? {
            framer.funcall::<_, _, Value>("flush", ())?;
            return read_on(rb_self, nil, args);
        }
        let stream = framer::stream(names, framer);
        stream.flush()?;
        if ivar(rb_self, names.state).as_raw() == names.closed {
            return Ok(nil);
        }
        let is_first =
            RArray::from_value(ivar(rb_self, names.pending)).is_some_and(|frames| frames.is_empty());
        if !is_first || ivar(rb_self, names.reader).as_raw() != rb_self.as_raw() {
            return read_on(rb_self, nil, args);
        }
        let limit = ivar(rb_self, names.maximum_message_size);
        let limit = Limit::Message(if limit.is_nil() { u64::MAX } else { u64::try_convert(limit)? });
        let frame = match framer::read(ruby, names, stream, limit) {
            Ok(frame) => frame,
            Err(error) => return read_failed(rb_self, error, false),
        };
        let frames = ivar(framer, names.frames_by_opcode).as_raw();
        let is_whole = frame.flags == 0 && frame.finished && matches!(frame.opcode, 1 | 2);
        if !is_whole || !names.is_default(ruby, frames) {
            let frame = frame.into_object(ruby, names, frames)?;
            return read_on(rb_self, frame, args);
        }
        let is_text = frame.opcode == 1;
        match payload::message(frame.payload, frame.fresh, frame.mask, is_text) {
            Some(buffer) => {
                let class = if is_text { names.text_message } else { names.binary_message };
                Ok(new_message(ruby, names, class, buffer.as_raw()))
            }
            None => {
                let message = "invalid UTF-8 in text frame!".to_owned();
                read_failed(rb_self, names.protocol_error(ruby, message, INVALID_PAYLOAD), true)
            }
        }
    })
}

/// Whether nothing that the short way jumps over has been overridden: neither in the classes nor for these two objects.
#[inline]
fn is_plain(names: &Names, connection: Value, framer: Value) -> Result<bool, Error> {
    // SAFETY: live objects. What overrides for one of them makes a singleton class, which `class` is then.
    let own = |value: Value| value.class().as_raw() == unsafe { rb_sys::rb_obj_class(value.as_raw()) };
    if reopened() || !own(connection) || !own(framer) {
        return Ok(false);
    }
    let plain = ivar(connection, names.plain);
    if !plain.is_nil() && u32::try_convert(plain)? == epoch() {
        return Ok(true);
    }
    connection.funcall("wireloom_plain?", ())
}

/// Goes on in Ruby, with a frame that was read, if any. `args` are the options of `read`, as a Hash when there are any.
fn read_on(connection: Value, frame: Value, args: &[Value]) -> Result<Value, Error> {
    match args {
        [] => connection.funcall("wireloom_read_on", (frame,)),
        [options, ..] => connection.funcall("wireloom_read_on", (frame, *options)),
    }
}

/// Lets the connection end for what was raised while a frame was read or, `whole`, its text, and raises it again.
fn read_failed(connection: Value, error: Error, whole: bool) -> Result<Value, Error> {
    let ruby = Ruby::get_with(connection);
    let exception = match error.error_type() {
        ErrorType::Error(class, message) => class.new_instance((message.to_string(),))?,
        ErrorType::Exception(exception) => *exception,
        ErrorType::Jump(_) => return Err(error),
    };
    if !exception.is_kind_of(ruby.exception_standard_error()) {
        return Err(error);
    }
    connection.funcall("wireloom_read_failed", (exception, whole))
}

/// A message of `class` without `initialize`, which would do nothing else.
#[inline]
fn new_message(ruby: &Ruby, names: &Names, class: Opaque<RClass>, buffer: VALUE) -> Value {
    // SAFETY: a class of ordinary objects, whose instance variable may be set while nobody has seen them.
    unsafe {
        let message = rb_obj_alloc(ruby.get_inner(class).as_raw());
        rb_ivar_set(message, names.buffer, buffer);
        Value::from_raw(message)
    }
}

#[inline]
fn ivar(of: Value, name: ID) -> Value {
    // SAFETY: an object and an interned name.
    unsafe { Value::from_raw(rb_ivar_get(of.as_raw(), name)) }
}
