//! What the core tells, as Ruby objects: the Structs that `lib/wireloom/http2.rb` defines.

use magnus::value::{Lazy, ReprValue};
use magnus::{Class, Error, RArray, RClass, RModule, RString, Ruby, Value, prelude::*};
use wireloom_http2::Event;
use wireloom_http2::error::{Error as CoreError, ErrorCode};
use wireloom_http2::field::FieldList;

use crate::hpack::statics;
use crate::strings;

macro_rules! classes {
    ($($name:ident = $text:literal,)*) => {
        $(static $name: Lazy<RClass> = Lazy::new(|ruby| class(ruby, $text));)*
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

fn class(ruby: &Ruby, name: &str) -> RClass {
    ruby.class_object()
        .const_get::<_, RModule>("Wireloom")
        .and_then(|wireloom| wireloom.const_get::<_, RModule>("HTTP2"))
        .and_then(|http2| http2.const_get(name))
        .unwrap_or_else(|_| ruby.class_object())
}

/// An event as an object; none for one that this gem does not know yet.
pub(super) fn object(ruby: &Ruby, event: Event<'_>) -> Result<Option<Value>, Error> {
    let made = match event {
        Event::Request { stream, fields, end_stream, .. } => {
            new(ruby, &REQUEST, &[id(ruby, stream.id()), headers(ruby, fields)?, flag(ruby, end_stream)])
        }
        Event::Response { stream, status, fields, end_stream } => new(
            ruby,
            &RESPONSE,
            &[id(ruby, stream.id()), id(ruby, status.into()), headers(ruby, fields)?, flag(ruby, end_stream)],
        ),
        Event::Informational { stream, status, fields } => new(
            ruby,
            &INFORMATIONAL,
            &[id(ruby, stream.id()), id(ruby, status.into()), headers(ruby, fields)?],
        ),
        Event::Trailers { stream, fields } => {
            new(ruby, &TRAILERS, &[id(ruby, stream.id()), headers(ruby, fields)?])
        }
        Event::Promise { stream, promised, fields } => {
            let parent = stream.map_or(ruby.qnil().as_value(), |stream| id(ruby, stream.id()));
            new(ruby, &PROMISE, &[parent, id(ruby, promised.id()), headers(ruby, fields)?])
        }
        Event::Data { stream, data, end_stream } => {
            let data = strings::binary(data).as_value();
            new(ruby, &DATA, &[id(ruby, stream.id()), data, flag(ruby, end_stream)])
        }
        Event::Reset { stream, code, error } => {
            let message = error.map_or(ruby.qnil().as_value(), |error| text(error.reason()));
            new(ruby, &RESET, &[id(ruby, stream.id()), name(ruby, code), message])
        }
        Event::Refused { stream } => new(ruby, &REFUSED, &[id(ruby, stream.id())]),
        Event::Writable { stream } => new(ruby, &WRITABLE, &[id(ruby, stream.id())]),
        Event::Settings => new(ruby, &SETTINGS, &[]),
        Event::SettingsAcknowledged => new(ruby, &SETTINGS_ACKNOWLEDGED, &[]),
        Event::Pong { payload, round_trip } => {
            let seconds = ruby.float_from_f64(round_trip.as_secs_f64()).as_value();
            new(ruby, &PONG, &[strings::binary(&payload).as_value(), seconds])
        }
        Event::GoAway { last_stream_id, code, debug_data } => {
            let debug = strings::binary(debug_data).as_value();
            new(ruby, &GO_AWAY, &[id(ruby, last_stream_id.get()), name(ruby, code), debug])
        }
        Event::Priority { stream, priority } => {
            let urgency = id(ruby, priority.urgency.into());
            new(ruby, &PRIORITY, &[id(ruby, stream.id()), urgency, flag(ruby, priority.incremental)])
        }
        Event::AltSvc { stream_id, origin, value } => {
            let (origin, value) = (strings::binary(origin).as_value(), strings::binary(value).as_value());
            new(ruby, &ALT_SVC, &[id(ruby, stream_id.get()), origin, value])
        }
        Event::Origin(origins) => {
            let list = ruby.ary_new();
            for origin in origins.iter() {
                list.push(strings::utf8_or_ascii(origin))?;
            }
            new(ruby, &ORIGIN, &[list.as_value()])
        }
        _ => return Ok(None),
    };
    made.map(Some)
}

/// The connection's end, by the peer's fault.
pub(super) fn failure(ruby: &Ruby, error: CoreError) -> Result<Value, Error> {
    let code = error.code().unwrap_or(ErrorCode::INTERNAL_ERROR);
    new(ruby, &FAILURE, &[name(ruby, code), text(error.reason())])
}

fn new(ruby: &Ruby, class: &Lazy<RClass>, members: &[Value]) -> Result<Value, Error> {
    ruby.get_inner(class).new_instance(members)
}

fn id(ruby: &Ruby, number: u32) -> Value {
    ruby.integer_from_u64(number.into()).as_value()
}

fn flag(ruby: &Ruby, flag: bool) -> Value {
    if flag { ruby.qtrue().as_value() } else { ruby.qfalse().as_value() }
}

fn text(text: &str) -> Value {
    strings::utf8(text, text.is_ascii()).as_value()
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
            .unwrap_or_else(|| strings::frozen(strings::utf8_or_ascii(field.name())));
        list.push(ruby.ary_new_from_values(&[name, strings::utf8_or_ascii(field.value())]))?;
    }
    Ok(list.as_value())
}
