//! Events of a connection: first as plain data, while the connection is borrowed, then as objects, when it is not.

use magnus::prelude::*;
use magnus::rb_sys::{AsRawValue, FromRawValue};
use magnus::{Error, IntoValue, RArray, RClass, RModule, RString, Ruby, Value};
use wireloom_ws::CloseCode;
use wireloom_ws::handshake::Request;

use crate::guard::making;
use crate::held::Immortal;
use crate::strings;

/// Names and values of header fields.
type Headers = Vec<(String, Vec<u8>)>;

pub(super) enum Event {
    Text(Vec<u8>),
    Binary(Vec<u8>),
    Ping(Vec<u8>),
    Pong { payload: Vec<u8>, round_trip_s: Option<f64> },
    Close { code: Option<u16>, reason: String },
    Failure { code: Option<u16>, message: String },
    Open { subprotocol: Option<String>, compressed: bool },
    Refused { status: u16, headers: Headers },
    Request(Box<RequestHead>),
}

/// The content of a `Request`.
pub(super) struct RequestHead {
    path: String,
    query: Option<String>,
    host: String,
    origin: Option<String>,
    subprotocols: Vec<String>,
    headers: Headers,
}

macro_rules! classes {
    ($($name:ident = $text:literal,)*) => {
        $(static $name: Immortal<RClass> = Immortal::new();)*

        /// Looks the Structs up that `lib/wireloom/web_socket.rb` defines.
        pub(super) fn complete(ruby: &Ruby, module: RModule) -> Result<(), Error> {
            $($name.set(ruby, module.const_get($text)?);)*
            Ok(())
        }
    };
}

classes! {
    OPEN = "Open",
    REQUEST = "Request",
    REFUSED = "Refused",
    FAILURE = "Failure",
    PING = "Ping",
    PONG = "Pong",
    CLOSE = "Close",
}

impl Event {
    /// None for an event that this gem does not know.
    pub(super) fn of(event: wireloom_ws::Event<'_>) -> Option<Self> {
        use wireloom_ws::Event as Core;
        Some(match event {
            Core::Text(text) => Self::Text(text.into_bytes().into()),
            Core::Binary(data) => Self::Binary(data.into_bytes().into()),
            Core::Ping(data) => Self::Ping(data.to_vec()),
            Core::Pong(pong) => Self::Pong {
                payload: pong.payload.to_vec(),
                round_trip_s: pong.round_trip.map(|trip| trip.as_secs_f64()),
            },
            Core::Close(close) => {
                Self::Close { code: close.code.map(CloseCode::value), reason: close.reason.to_owned() }
            }
            _ => return None,
        })
    }

    /// The length of a message.
    pub(super) fn payload_len(&self) -> usize {
        match self {
            Self::Text(data) | Self::Binary(data) => data.len(),
            _ => 0,
        }
    }

    pub(super) fn request(request: &Request) -> Self {
        Self::Request(Box::new(RequestHead {
            path: request.path().to_owned(),
            query: request.query().map(str::to_owned),
            host: request.host().to_owned(),
            origin: request.origin().map(str::to_owned),
            subprotocols: request.subprotocols().map(str::to_owned).collect(),
            headers: headers(request.headers()),
        }))
    }

    pub(super) fn refused<'a>(status: u16, fields: impl Iterator<Item = (&'a str, &'a [u8])>) -> Self {
        Self::Refused { status, headers: headers(fields) }
    }

    /// The objects of `events`.
    ///
    /// # Errors
    /// There is no memory for one.
    pub(super) fn list(ruby: &Ruby, events: &[Self]) -> Result<RArray, Error> {
        making(|| {
            let list = ruby.ary_new_capa(events.len());
            for event in events {
                list.push(event.made(ruby)?)?;
            }
            Ok(list)
        })?
    }

    /// # Errors
    /// As for [`list`](Self::list).
    pub(super) fn object(&self, ruby: &Ruby) -> Result<Value, Error> {
        making(|| self.made(ruby))?
    }

    /// Ruby may raise NoMemoryError: nothing here is to be dropped.
    fn made(&self, ruby: &Ruby) -> Result<Value, Error> {
        Ok(match self {
            Self::Text(text) => {
                let string = strings::binary(ruby, text);
                strings::declare_utf8(string, text.is_ascii());
                string.as_value()
            }
            Self::Binary(data) => binary(ruby, data),
            Self::Ping(data) => new(ruby, &PING, &[binary(ruby, data)]),
            Self::Pong { payload, round_trip_s } => {
                new(ruby, &PONG, &[binary(ruby, payload), round_trip_s.into_value_with(ruby)])
            }
            Self::Close { code, reason } => {
                new(ruby, &CLOSE, &[code.into_value_with(ruby), text(ruby, reason)])
            }
            Self::Failure { code, message } => {
                new(ruby, &FAILURE, &[code.into_value_with(ruby), text(ruby, message)])
            }
            Self::Open { subprotocol, compressed } => {
                new(ruby, &OPEN, &[optional(ruby, subprotocol.as_deref()), compressed.into_value_with(ruby)])
            }
            Self::Refused { status, headers } => {
                new(ruby, &REFUSED, &[status.into_value_with(ruby), hash(ruby, headers)?])
            }
            Self::Request(head) => {
                let offered = ruby.ary_new_capa(head.subprotocols.len());
                for name in &head.subprotocols {
                    offered.push(text(ruby, name))?;
                }
                let members = [
                    text(ruby, &head.path),
                    optional(ruby, head.query.as_deref()),
                    text(ruby, &head.host),
                    optional(ruby, head.origin.as_deref()),
                    offered.as_value(),
                    hash(ruby, &head.headers)?,
                ];
                new(ruby, &REQUEST, &members)
            }
        })
    }
}

fn headers<'a>(fields: impl Iterator<Item = (&'a str, &'a [u8])>) -> Headers {
    fields.map(|(name, value)| (name.to_ascii_lowercase(), value.to_vec())).collect()
}

fn binary(ruby: &Ruby, bytes: &[u8]) -> Value {
    strings::binary(ruby, bytes).as_value()
}

fn text(ruby: &Ruby, value: &str) -> Value {
    strings::text(ruby, value).as_value()
}

fn optional(ruby: &Ruby, value: Option<&str>) -> Value {
    value.map_or_else(|| ruby.qnil().as_value(), |value| text(ruby, value))
}

/// An object of a Struct, without `initialize`.
fn new(ruby: &Ruby, class: &Immortal<RClass>, members: &[Value]) -> Value {
    // SAFETY: the class is a Struct with as many members; the object is on this stack.
    unsafe {
        let object = rb_sys::rb_struct_alloc_noinit(class.get(ruby).as_raw());
        for (at, member) in members.iter().enumerate() {
            rb_sys::rb_struct_aset(object, rb_sys::LONG2FIX(at as _), member.as_raw());
        }
        Value::from_raw(object)
    }
}

/// Header fields by their names in lower case; those of one name are joined by commas (RFC 9110 §5.3).
fn hash(ruby: &Ruby, fields: &Headers) -> Result<Value, Error> {
    let hash = ruby.hash_new();
    for (name, value) in fields {
        let name = strings::text(ruby, name);
        let value = strings::utf8_unchecked(ruby, value);
        if let Some(before) = hash.lookup::<_, Option<RString>>(name)? {
            before.cat(", ");
            before.buf_append(value)?;
        } else {
            hash.aset(name, value)?;
        }
    }
    Ok(hash.as_value())
}
