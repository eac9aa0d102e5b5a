//! Events of the core as Ruby objects: the Structs that `lib/wireloom/http2.rb` defines. Making them calls no method, so that it
//! may happen while the connection is borrowed.

use magnus::rb_sys::{AsRawValue, FromRawValue};
use magnus::{Error, RArray, RClass, RModule, RString, Ruby, Value, prelude::*};
use wireloom_http2::error::ErrorCode;
use wireloom_http2::field::FieldList;
use wireloom_http2::{Connection, Event};

use crate::guard::making;
use crate::held::Immortal;
use crate::hpack::statics;
use crate::strings;

macro_rules! classes {
    ($($name:ident = $text:literal,)*) => {
        $(static $name: Immortal<RClass> = Immortal::new();)*

        /// Looks the Structs up.
        pub(super) fn complete(ruby: &Ruby, module: RModule) -> Result<(), Error> {
            $($name.set(ruby, module.const_get($text)?);)*
            Ok(())
        }
    };
}

classes! {
    REQUEST = "Request",
    RESPONSE = "Response",
    INFORMATIONAL = "Informational",
    TRAILERS = "Trailers",
    PROMISE = "Promise",
    DATA = "Data",
    RESET = "Reset",
    REFUSED = "Refused",
    WRITABLE = "Writable",
    SETTINGS = "Settings",
    SETTINGS_ACKNOWLEDGED = "SettingsAcknowledged",
    PONG = "Pong",
    GO_AWAY = "GoAway",
    ALT_SVC = "AltSvc",
    ORIGIN = "Origin",
    PRIORITY = "Priority",
    FAILURE = "Failure",
}

/// An event that `connection` has just reported as an object; none for one that this gem does not know.
pub(super) fn object(ruby: &Ruby, event: Event<'_>, connection: &Connection) -> Result<Option<Value>, Error> {
    let fields = connection.fields();
    let made = match event {
        Event::Request { stream, end_stream, .. } => {
            new(ruby, &REQUEST, &[id(ruby, stream.id()), headers(ruby, fields)?, flag(ruby, end_stream)])
        }
        Event::Response { stream, status, end_stream } => new(
            ruby,
            &RESPONSE,
            &[id(ruby, stream.id()), id(ruby, status.into()), headers(ruby, fields)?, flag(ruby, end_stream)],
        ),
        Event::Informational { stream, status } => new(
            ruby,
            &INFORMATIONAL,
            &[id(ruby, stream.id()), id(ruby, status.into()), headers(ruby, fields)?],
        ),
        Event::Trailers { stream } => new(ruby, &TRAILERS, &[id(ruby, stream.id()), headers(ruby, fields)?]),
        Event::Promise { stream, promised } => {
            let parent = stream.map_or(ruby.qnil().as_value(), |stream| id(ruby, stream.id()));
            new(ruby, &PROMISE, &[parent, id(ruby, promised.id()), headers(ruby, fields)?])
        }
        Event::Data { stream, data, end_stream } => {
            let data = strings::binary(ruby, data).as_value();
            new(ruby, &DATA, &[id(ruby, stream.id()), data, flag(ruby, end_stream)])
        }
        Event::Reset { stream, code, error } => {
            let message = error.map_or(ruby.qnil().as_value(), |error| text(ruby, error.reason()));
            new(ruby, &RESET, &[id(ruby, stream.id()), name(ruby, code), message])
        }
        Event::Refused { stream } => new(ruby, &REFUSED, &[id(ruby, stream.id())]),
        Event::Writable { stream } => new(ruby, &WRITABLE, &[id(ruby, stream.id())]),
        Event::Settings => new(ruby, &SETTINGS, &[]),
        Event::SettingsAcknowledged => new(ruby, &SETTINGS_ACKNOWLEDGED, &[]),
        Event::Pong { payload, round_trip } => {
            let seconds = ruby.float_from_f64(round_trip.as_secs_f64()).as_value();
            new(ruby, &PONG, &[strings::binary(ruby, &payload).as_value(), seconds])
        }
        Event::GoAway { last_stream_id, code } => {
            let debug = strings::binary(ruby, connection.debug_data()).as_value();
            new(ruby, &GO_AWAY, &[id(ruby, last_stream_id.get()), name(ruby, code), debug])
        }
        Event::Priority { stream, priority } => {
            let urgency = id(ruby, priority.urgency.into());
            new(ruby, &PRIORITY, &[id(ruby, stream.id()), urgency, flag(ruby, priority.incremental)])
        }
        Event::AltSvc { stream_id } => {
            let (origin, value) = connection.alt_svc();
            let (origin, value) =
                (strings::binary(ruby, origin).as_value(), strings::binary(ruby, value).as_value());
            new(ruby, &ALT_SVC, &[id(ruby, stream_id.get()), origin, value])
        }
        Event::Origin => {
            let list = ruby.ary_new();
            for origin in connection.origins() {
                list.push(strings::utf8_or_ascii(ruby, origin))?;
            }
            new(ruby, &ORIGIN, &[list.as_value()])
        }
        _ => return Ok(None),
    };
    made.map(Some)
}

/// The size of the fields of a message (RFC 9113 §6.5.2), in bytes.
pub(super) fn fields_len(event: &Event<'_>, connection: &Connection) -> usize {
    match event {
        Event::Request { .. }
        | Event::Response { .. }
        | Event::Informational { .. }
        | Event::Trailers { .. }
        | Event::Promise { .. } => connection.fields().list_size(),
        _ => 0,
    }
}

/// The connection's end.
pub(super) fn failure(ruby: &Ruby, code: ErrorCode, reason: &str) -> Result<Value, Error> {
    making(|| new(ruby, &FAILURE, &[name(ruby, code), text(ruby, reason)]))?
}

/// An object of a Struct, without `initialize`.
fn new(ruby: &Ruby, class: &Immortal<RClass>, members: &[Value]) -> Result<Value, Error> {
    let class = class.get(ruby).as_raw();
    // SAFETY: the class is a Struct with as many members, or an ordinary one without any; the object is on this stack.
    unsafe {
        if members.is_empty() {
            return Ok(Value::from_raw(rb_sys::rb_obj_alloc(class)));
        }
        let object = rb_sys::rb_struct_alloc_noinit(class);
        for (at, member) in members.iter().enumerate() {
            rb_sys::rb_struct_aset(object, rb_sys::LONG2FIX(at as _), member.as_raw());
        }
        Ok(Value::from_raw(object))
    }
}

fn id(ruby: &Ruby, number: u32) -> Value {
    ruby.integer_from_u64(number.into()).as_value()
}

fn flag(ruby: &Ruby, flag: bool) -> Value {
    if flag { ruby.qtrue().as_value() } else { ruby.qfalse().as_value() }
}

fn text(ruby: &Ruby, text: &str) -> Value {
    strings::text(ruby, text).as_value()
}

/// An error code as a Symbol, `:cancel`; unknown ones as Integers.
fn name(ruby: &Ruby, code: ErrorCode) -> Value {
    match code.name() {
        Some(name) => ruby.to_symbol(name.to_ascii_lowercase()).as_value(),
        None => id(ruby, code.get()),
    }
}

/// Fields as pairs; known names are the same Strings each time.
fn headers(ruby: &Ruby, fields: &FieldList) -> Result<Value, Error> {
    let list: RArray = ruby.ary_new_capa(fields.len());
    for field in fields.iter() {
        let name: RString = statics()
            .name(field.token())
            .unwrap_or_else(|| strings::utf8_or_ascii_frozen(ruby, field.name()));
        list.push(ruby.ary_new_from_values(&[name, strings::utf8_or_ascii(ruby, field.value())]))?;
    }
    Ok(list.as_value())
}
