//! Frames: as bytes, as the Hashes that programs see, and as [`Frame`], which is what the drop-in works with in between.

use magnus::rb_sys::{AsRawValue, FromRawValue};
use magnus::value::ReprValue;
use magnus::{Error, RArray, RHash, RString, Ruby, Symbol, TryConvert, Value};
use rb_sys::VALUE;

use super::names::{Name, error, sym};
use crate::guard::protect;
use crate::held::{Held, Owner, plain, traced};
use crate::hpack::decode::Head;
use crate::strings;

pub(crate) const NIL: VALUE = rb_sys::Qnil as VALUE;

pub(crate) const END_STREAM: u8 = 0x1;
pub(crate) const ACK: u8 = 0x1;
pub(crate) const END_HEADERS: u8 = 0x4;
pub(crate) const PADDED: u8 = 0x8;
pub(crate) const PRIORITY: u8 = 0x20;

pub(crate) const HEADER_LEN: usize = 9;
const STREAM_MASK: u32 = 0x7fff_ffff;

/// The types that have a name in the original (RFC 9113 §6, RFC 7838, RFC 8336), with their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Data = 0,
    Headers = 1,
    Priority = 2,
    RstStream = 3,
    Settings = 4,
    PushPromise = 5,
    Ping = 6,
    Goaway = 7,
    WindowUpdate = 8,
    Continuation = 9,
    Altsvc = 10,
    Origin = 12,
}

impl Kind {
    pub(crate) const ALL: [Self; 12] = [
        Self::Data,
        Self::Headers,
        Self::Priority,
        Self::RstStream,
        Self::Settings,
        Self::PushPromise,
        Self::Ping,
        Self::Goaway,
        Self::WindowUpdate,
        Self::Continuation,
        Self::Altsvc,
        Self::Origin,
    ];

    fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == byte)
    }

    pub(crate) fn symbol(self) -> VALUE {
        let sym = sym();
        match self {
            Self::Data => sym.data,
            Self::Headers => sym.headers,
            Self::Priority => sym.priority,
            Self::RstStream => sym.rst_stream,
            Self::Settings => sym.settings,
            Self::PushPromise => sym.push_promise,
            Self::Ping => sym.ping,
            Self::Goaway => sym.goaway,
            Self::WindowUpdate => sym.window_update,
            Self::Continuation => sym.continuation,
            Self::Altsvc => sym.altsvc,
            Self::Origin => sym.origin,
        }
    }

    /// For a message.
    pub(crate) fn name(self) -> Name {
        Name(symbol(self.symbol()))
    }

    pub(crate) const fn may_be_padded(self) -> bool {
        matches!(self, Self::Data | Self::Headers | Self::PushPromise)
    }
}

/// The nine bytes (RFC 9113 §4.1); no kind when the type is unknown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Header {
    pub(crate) kind: Option<Kind>,
    pub(crate) flags: u8,
    pub(crate) len: usize,
    pub(crate) stream: u32,
}

impl Header {
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let &[a, b, c, kind, flags, s, t, u, v] = bytes.first_chunk::<HEADER_LEN>()?;
        Some(Self {
            kind: Kind::from_byte(kind),
            flags,
            len: u32::from_be_bytes([0, a, b, c]) as usize,
            stream: u32::from_be_bytes([s, t, u, v]) & STREAM_MASK,
        })
    }

    pub(crate) fn encode(kind: Kind, flags: u8, len: usize, stream: u32) -> [u8; HEADER_LEN] {
        let [_, a, b, c] = (len as u32).to_be_bytes();
        let [s, t, u, v] = stream.to_be_bytes();
        [a, b, c, kind as u8, flags, s, t, u, v]
    }
}

/// A frame being sent or received. It lives on the stack, where Ruby finds the objects that it names; elsewhere it is [`Stored`].
#[derive(Clone, Copy)]
pub(crate) struct Frame {
    pub(crate) kind: Kind,
    pub(crate) flags: u8,
    pub(crate) stream: Option<u32>,
    pub(crate) length: Option<usize>,
    /// A String, a list of headers or settings, or nil.
    pub(crate) payload: VALUE,
    /// The part of the payload, a String, that is meant: offset and length. All of it when unset.
    pub(crate) slice: Option<(usize, usize)>,
    /// Counts the byte that holds the length of the padding.
    pub(crate) padding: Option<u32>,
    pub(crate) weight: Option<i64>,
    pub(crate) dependency: Option<u32>,
    pub(crate) exclusive: Option<bool>,
    /// A Symbol, an Integer or nil.
    pub(crate) error: VALUE,
    pub(crate) increment: Option<i64>,
    pub(crate) promise_stream: Option<u32>,
    pub(crate) last_stream: Option<u32>,
    /// The stream was closed by this side: listeners are not called for the frame.
    pub(crate) ignore: bool,
    pub(crate) head: Head,
    /// The Hash that it was made of, or nil.
    pub(crate) hash: VALUE,
}

impl Frame {
    pub(crate) fn new(kind: Kind, stream: u32) -> Self {
        Self {
            kind,
            flags: 0,
            stream: Some(stream),
            length: None,
            payload: NIL,
            slice: None,
            padding: None,
            weight: None,
            dependency: None,
            exclusive: None,
            error: NIL,
            increment: None,
            promise_stream: None,
            last_stream: None,
            ignore: false,
            head: Head::default(),
            hash: NIL,
        }
    }

    /// Puts the frame on a stream unless it is on one, and notes that in its Hash, if it has one.
    pub(crate) fn put_on(&mut self, stream: u32) -> Result<(), Error> {
        if self.stream.is_some() {
            return Ok(());
        }
        self.stream = Some(stream);
        match RHash::from_value(value(self.hash)) {
            Some(hash) if hash.is_frozen() => self.hash = NIL,
            Some(hash) => hash.aset(value(sym().stream), stream)?,
            None => {}
        }
        Ok(())
    }

    pub(crate) const fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// RFC 9113 §6.1, §6.2: of the types that can.
    pub(crate) const fn ends_stream(&self) -> bool {
        matches!(self.kind, Kind::Data | Kind::Headers | Kind::Continuation) && self.has(END_STREAM)
    }

    pub(crate) fn payload(&self) -> Value {
        value(self.payload)
    }

    pub(crate) fn payload_string(&self) -> Option<RString> {
        RString::from_value(self.payload())
    }

    pub(crate) fn payload_len(&self) -> usize {
        self.slice.map_or_else(|| self.payload_string().map_or(0, RString::len), |(_, len)| len)
    }

    /// The length of the frame as flow control counts it.
    pub(crate) fn window_len(&self) -> usize {
        if self.kind == Kind::Data { self.payload_len() } else { 0 }
    }

    /// The payload of DATA in two: the first part has `len` bytes and ends nothing.
    pub(crate) fn split(self, len: usize) -> (Self, Self) {
        let (offset, whole) = self.slice.unwrap_or((0, self.payload_len()));
        let part = |offset, len, flags| Self {
            slice: Some((offset, len)),
            flags,
            length: Some(len),
            hash: NIL,
            ..self
        };
        (part(offset, len, self.flags & !END_STREAM), part(offset + len, whole - len, self.flags))
    }

    /// Reads a Hash; what is missing stays unset.
    pub(crate) fn from_hash(ruby: &Ruby, hash: RHash) -> Result<Self, Error> {
        let get = |key: VALUE| hash.get(value(key)).filter(|found| !found.is_nil());
        fn read<T: TryConvert>(found: Option<Value>) -> Result<Option<T>, Error> {
            found.map(T::try_convert).transpose()
        }
        let sym = sym();
        let named = get(sym.r#type).unwrap_or_else(|| ruby.qnil().as_value());
        let Some(kind) = Kind::ALL.into_iter().find(|kind| kind.symbol() == named.as_raw()) else {
            let message = format!("Invalid frame type ({})", interpolated(named)?);
            return Err(error(ruby, sym.compression_error, Some(message.into())));
        };
        Ok(Self {
            kind,
            flags: flags(ruby, kind, get(sym.flags))?,
            stream: read(get(sym.stream))?,
            length: read(get(sym.length))?,
            payload: get(sym.payload).map_or(NIL, |payload| payload.as_raw()),
            slice: None,
            padding: read(get(sym.padding))?,
            weight: read(get(sym.weight))?,
            dependency: read(get(sym.dependency))?,
            exclusive: read(get(sym.exclusive))?,
            error: get(sym.error).map_or(NIL, |error| error.as_raw()),
            increment: read(get(sym.increment))?,
            promise_stream: read(get(sym.promise_stream))?,
            last_stream: read(get(sym.last_stream))?,
            ignore: get(sym.ignore).is_some_and(|ignore| ignore.to_bool()),
            head: Head {
                method: read(get(sym.method))?,
                status: read(get(sym.status))?,
                content_length: read(get(sym.content_length))?,
                trailer: read(get(sym.trailer))?,
            },
            hash: hash.as_raw(),
        })
    }

    /// The Hash that programs see: the one that the frame was made of, or a new one.
    pub(crate) fn to_hash(self, ruby: &Ruby) -> Result<RHash, Error> {
        if let Some(hash) = RHash::from_value(value(self.hash)) {
            return Ok(hash);
        }
        let sym = sym();
        let hash = ruby.hash_new();
        let set = |key: VALUE, item: VALUE| hash.aset(value(key), value(item));
        let number = |key: VALUE, number: Option<i64>| match number {
            Some(number) => hash.aset(value(key), number),
            None => Ok(()),
        };
        set(sym.r#type, self.kind.symbol())?;
        // As the original has it: a frame about to be sent has flags only if its type can have some.
        let sent = self.length.is_none();
        let may_have_flags =
            matches!(self.kind, Kind::Data | Kind::Headers | Kind::PushPromise | Kind::Continuation);
        if !sent || may_have_flags || self.flags != 0 {
            number(sym.flags, Some(i64::from(self.flags)))?;
        }
        number(sym.length, self.length.map(|length| length as i64))?;
        number(sym.stream, self.stream.map(i64::from))?;
        number(sym.padding, self.padding.map(i64::from))?;
        number(sym.dependency, self.dependency.map(i64::from))?;
        if let Some(exclusive) = self.exclusive {
            hash.aset(value(sym.exclusive), exclusive)?;
        }
        number(sym.weight, self.weight)?;
        number(sym.promise_stream, self.promise_stream.map(i64::from))?;
        number(sym.last_stream, self.last_stream.map(i64::from))?;
        if self.error != NIL {
            set(sym.error, self.error)?;
        }
        number(sym.increment, self.increment)?;
        match (self.slice, self.payload_string()) {
            (Some((offset, len)), Some(string)) => {
                // SAFETY: copied before anything can change the String.
                let part = strings::binary(ruby, unsafe { &bytes(string)[offset..offset + len] });
                strings::keep(string);
                hash.aset(value(sym.payload), part)?;
            }
            _ if self.payload != NIL || sent && self.kind == Kind::Goaway => set(sym.payload, self.payload)?,
            _ => {}
        }
        self.head.note_in(ruby, hash)?;
        Ok(hash)
    }
}

/// Flags as a number, or as the list of names that releases before 1.2 used.
fn flags(ruby: &Ruby, kind: Kind, given: Option<Value>) -> Result<u8, Error> {
    let Some(given) = given else { return Ok(0) };
    let invalid = |flag: Value| {
        let message = format!("Invalid frame flag ({}) for {}", interpolated(flag)?, kind.name());
        Err(error(ruby, sym().compression_error, Some(message.into())))
    };
    let Some(list) = RArray::from_value(given) else {
        return converted(given)?.map_or_else(|| invalid(given), Ok);
    };
    let sym = sym();
    let mut flags = 0;
    for at in 0..list.len() {
        let flag: Value = list.entry(at as isize)?;
        flags |= match flag.as_raw() {
            raw if raw == sym.end_stream || raw == sym.ack => END_STREAM,
            raw if raw == sym.end_headers => END_HEADERS,
            raw if raw == sym.padded => PADDED,
            raw if raw == sym.priority => PRIORITY,
            _ => return invalid(flag),
        };
    }
    Ok(flags)
}

#[inline]
pub(crate) fn value(raw: VALUE) -> Value {
    // SAFETY: every VALUE in the drop-in is of a live object: a Symbol, something on this stack, or something marked.
    unsafe { Value::from_raw(raw) }
}

/// # Panics
/// The object is no Symbol.
pub(super) fn symbol(raw: VALUE) -> Symbol {
    Symbol::from_value(value(raw)).expect("a Symbol")
}

/// The value of `"#{object}"`. `to_s` is the program's: it runs before a message is begun, and its exceptions are propagated.
pub(super) fn interpolated(object: Value) -> Result<String, Error> {
    described(object, rb_sys::rb_obj_as_string)
}

/// The same for `"#{object.inspect}"`.
pub(super) fn inspected(object: Value) -> Result<String, Error> {
    described(object, rb_sys::rb_inspect)
}

fn described(object: Value, describe: unsafe extern "C" fn(VALUE) -> VALUE) -> Result<String, Error> {
    // SAFETY: a live object, for which either function returns a String or raises.
    let text = protect(|| unsafe { describe(object.as_raw()) })?;
    // SAFETY: as above; the bytes are copied at once.
    let (text, copy) = unsafe {
        let text = strings::rstring(text);
        (text, String::from_utf8_lossy(bytes(text)).into_owned())
    };
    strings::keep(text);
    Ok(copy)
}

/// The converted object; `None` if the conversion raises a StandardError. Anything else, such as the end of a thread, is propagated.
pub(super) fn converted<T: TryConvert>(object: Value) -> Result<Option<T>, Error> {
    match T::try_convert(object) {
        Ok(converted) => Ok(Some(converted)),
        Err(error) if error.is_kind_of(Ruby::get_with(object).exception_standard_error()) => Ok(None),
        Err(error) => Err(error),
    }
}

/// A String in `ASCII-8BIT` of these parts.
pub(crate) fn joined<const N: usize>(ruby: &Ruby, parts: [&[u8]; N]) -> RString {
    let string = strings::uninitialized(ruby, parts.iter().map(|part| part.len()).sum());
    // SAFETY: the String was made just now.
    let mut room = unsafe { strings::contents(string) };
    for part in parts {
        let (at, rest) = room.split_at_mut(part.len());
        at.copy_from_slice(part);
        room = rest;
    }
    string
}

/// A frame in the memory of an object: the objects that it names are held.
#[derive(Clone, Copy)]
pub(crate) struct Stored {
    frame: Unnamed,
    payload: Held,
    error: Held,
    hash: Held,
    method: Held,
    trailer: Held,
}

plain!(Unnamed);
traced!(Stored { frame, payload, error, hash, method, trailer });

/// A frame that names no objects.
#[derive(Clone, Copy)]
struct Unnamed(Frame);

// SAFETY: it holds nothing of Ruby's.
unsafe impl Send for Unnamed {}
// SAFETY: likewise.
unsafe impl Sync for Unnamed {}

impl Stored {
    pub(crate) fn new(owner: Owner, mut frame: Frame) -> Self {
        // Every field is named: one with an object that is not held does not compile.
        let Frame {
            payload,
            error,
            hash,
            head: Head { method, trailer, status: _, content_length: _ },
            kind: _,
            flags: _,
            stream: _,
            length: _,
            slice: _,
            padding: _,
            weight: _,
            dependency: _,
            exclusive: _,
            increment: _,
            promise_stream: _,
            last_stream: _,
            ignore: _,
        } = frame;
        let held = |object: VALUE| Held::new(owner, object);
        (frame.payload, frame.error, frame.hash) = (NIL, NIL, NIL);
        (frame.head.method, frame.head.trailer) = (None, None);
        Self {
            frame: Unnamed(frame),
            payload: held(payload),
            error: held(error),
            hash: held(hash),
            method: held(method.map_or(NIL, |method| method.as_raw())),
            trailer: held(trailer.map_or(NIL, |trailer| trailer.as_raw())),
        }
    }

    /// The frame, for the stack.
    pub(crate) fn frame(self) -> Frame {
        let Unnamed(mut frame) = self.frame;
        (frame.payload, frame.error, frame.hash) = (self.payload.raw(), self.error.raw(), self.hash.raw());
        frame.head.method = RString::from_value(self.method.value());
        frame.head.trailer = RArray::from_value(self.trailer.value());
        frame
    }
}

/// The bytes of a String that is on this stack.
///
/// # Safety
/// Nothing changes the String while the slice is in use.
pub(crate) unsafe fn bytes<'a>(string: RString) -> &'a [u8] {
    // SAFETY: the caller's promise.
    unsafe { strings::bytes(string.as_raw()) }
}
