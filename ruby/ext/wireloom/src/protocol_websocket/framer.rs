//! `Framer#read_frame`: a frame off a stream (RFC 6455 §5.2), and the header of one to write.

use std::ffi::c_int;

use magnus::prelude::*;
use magnus::rb_sys::{AsRawValue, FromRawValue};
use magnus::{Error, Fixnum, Integer, KwArgs, RClass, RHash, RModule, RString, Ruby, TryConvert, Value};
use rb_sys::{Qfalse, Qundef, VALUE, rb_ivar_get};

use super::names::{self, Names};
use super::reopened;
use super::stream::Stream;
use crate::guard::{enter, protect};
use crate::strings;

/// `MAXIMUM_ALLOWED_FRAME_SIZE`.
const PAYLOAD_LEN_MAX: u64 = 1 << 63;

/// RFC 6455 §7.4.1.
const PROTOCOL_ERROR: u16 = 1002;
const MESSAGE_TOO_LARGE: u16 = 1009;

/// The longest payload that is read, in bytes.
#[derive(Clone, Copy)]
pub(super) struct Limit {
    /// Of any frame.
    frame: u64,
    /// The limit of a message, and the rest of it for the current message. Control frames do not count.
    message: u64,
    left: u64,
}

/// A frame as it was read: the payload is still masked.
pub(super) struct Frame {
    pub(super) finished: bool,
    pub(super) flags: u8,
    pub(super) opcode: u8,
    pub(super) mask: Option<[u8; 4]>,
    pub(super) payload: RString,
    /// The payload was made here, so that no code of Ruby has seen it.
    pub(super) fresh: bool,
}

/// The first two bytes of a frame.
struct Start {
    finished: bool,
    flags: u8,
    opcode: u8,
    masked: bool,
    len7: u8,
}

pub(super) fn attach(protocol: RModule) -> Result<(), Error> {
    protocol.const_get::<_, RClass>("Framer")?.define_method("read_frame", read_frame as RawMethod)
}

/// A method as Ruby calls it: the number of arguments, these, and the receiver.
pub(super) type RawMethod = unsafe extern "C" fn(c_int, *const Value, Value) -> Value;

/// `read_frame(maximum_frame_size = 2**63)`, with a fast path for a frame that is complete in a `StringIO`.
unsafe extern "C" fn read_frame(argc: c_int, argv: *const Value, framer: Value) -> Value {
    // SAFETY: Ruby calls this, with a framer; nothing here has a destructor.
    unsafe {
        enter(|ruby| {
            if argc == 0 {
                return match protected(|| read_frame_in_memory(ruby, framer))? {
                    Some(frame) => Ok(frame),
                    None => read_any_frame(ruby, framer, &[]),
                };
            }
            read_any_frame(ruby, framer, std::slice::from_raw_parts(argv, argc as usize))
        })
    }
}

/// Runs `read`, through which Ruby may raise.
#[inline]
pub(super) fn protected(read: impl FnOnce() -> Option<Value>) -> Result<Option<Value>, Error> {
    let read = protect(|| read().map_or(Qundef as VALUE, |value| value.as_raw()))?;
    // SAFETY: it came out of `read` just now.
    Ok((read != Qundef as VALUE).then(|| unsafe { Value::from_raw(read) }))
}

/// # Safety
/// As for `Stream::window`.
#[inline]
unsafe fn read_frame_in_memory(ruby: &Ruby, framer: Value) -> Option<Value> {
    let names = names::get()?;
    let stream = Stream::of(names, framer);
    // SAFETY: an object and an interned name.
    let frames = unsafe { rb_ivar_get(framer.as_raw(), names.frames_by_opcode) };
    if !stream.is_memory() || !names.is_default(frames) || reopened() {
        return None;
    }
    // SAFETY: the caller vouches for it.
    unsafe {
        take_in_memory(ruby, stream, Limit::of(names, framer, PAYLOAD_LEN_MAX), |frame| {
            let class = names.frame_class(frame.opcode);
            Some(frame.allocate(ruby, names, class))
        })
    }
}

fn read_any_frame(ruby: &Ruby, rb_self: Value, args: &[Value]) -> Result<Value, Error> {
    let names = names::get().ok_or_else(|| Error::new(ruby.exception_runtime_error(), "not attached"))?;
    let max = match args {
        [] => PAYLOAD_LEN_MAX,
        [max] => frame_limit(ruby, *max)?,
        _ => {
            let message = format!("wrong number of arguments (given {}, expected 0..1)", args.len());
            return Err(Error::new(ruby.exception_arg_error(), message));
        }
    };
    let frame = read(ruby, names, Stream::of(names, rb_self), Limit::of(names, rb_self, max))?;
    // SAFETY: an object and an interned name.
    let frames = unsafe { rb_ivar_get(rb_self.as_raw(), names.frames_by_opcode) };
    frame.into_object(ruby, names, frames)
}

/// The longest payload that a program takes: a number below 0 is as 0, and one beyond 64 bits limits nothing.
fn frame_limit(ruby: &Ruby, max: Value) -> Result<u64, Error> {
    let max = Integer::try_convert(max)?;
    let beyond = if max < ruby.integer_from_i64(0) { 0 } else { PAYLOAD_LEN_MAX };
    Ok(max.to_u64().unwrap_or(beyond))
}

/// The result of `make` for a frame that is complete in a `StringIO`. `None`, and nothing is consumed, without such a frame or
/// result.
///
/// # Safety
/// As for `Stream::window`.
#[inline]
pub(super) unsafe fn take_in_memory<T>(
    ruby: &Ruby,
    stream: Stream<'_>,
    limit: Limit,
    make: impl FnOnce(Frame) -> Option<T>,
) -> Option<T> {
    // SAFETY: the caller vouches for it.
    let window = unsafe { stream.window() }?;
    let look = |bytes: &[u8]| {
        let (frame, used) = Frame::whole(ruby, bytes, limit)?;
        Some((make(frame)?, used))
    };
    let (made, used) = window.look(look)?;
    // SAFETY: the caller vouches for it.
    unsafe { stream.skip(ruby, window, used) };
    Some(made)
}

/// Reads one frame. A stream that reads ahead keeps what is behind it.
pub(super) fn read(ruby: &Ruby, names: &Names, stream: Stream<'_>, limit: Limit) -> Result<Frame, Error> {
    let eof = |message: &'static str| Error::new(ruby.exception_eof_error(), message);
    let reads_ahead = stream.reads_ahead();
    let head = if reads_ahead {
        stream.read_two()?
    } else {
        let head = stream.read(ruby, 2)?;
        // SAFETY: copied at once.
        head.and_then(|head| unsafe { head.as_slice() }.try_into().ok())
    };
    let [first, second] = head.ok_or_else(|| eof("Could not read frame header!"))?;
    let start =
        Start::decode(first, second).map_err(|message| names.protocol_error(message, PROTOCOL_ERROR))?;
    let extended = start.extended_len();
    let wanted = extended + if start.masked { 4 } else { 0 };
    let mut head = [0; 12];
    if wanted > 0 {
        let missing = match (extended, start.masked) {
            (0, _) => "Could not read mask!",
            (_, true) => "Could not read length and mask!",
            (_, false) => "Could not read length!",
        };
        let read = stream.read(ruby, wanted as u64)?.ok_or_else(|| eof(missing))?;
        // SAFETY: copied at once.
        let read = unsafe { read.as_slice() };
        if read.len() != wanted {
            return Err(eof(missing));
        }
        head[..wanted].copy_from_slice(read);
    }
    let len = start.len(&head[..extended]);
    let mask =
        start.masked.then(|| [head[extended], head[extended + 1], head[extended + 2], head[extended + 3]]);
    if let Some((message, code)) = limit.exceeded(start.opcode, len) {
        return Err(names.protocol_error(message, code));
    }
    let payload = stream.read(ruby, len)?.ok_or_else(|| eof("Could not read payload!"))?;
    if payload.len() as u64 != len {
        let message = format!("Incorrect payload length: {len} != {}!", payload.len());
        return Err(Error::new(ruby.exception_eof_error(), message));
    }
    let Start { finished, flags, opcode, .. } = start;
    // Ruby's own `IO#read` returns a new String.
    Ok(Frame { finished, flags, opcode, mask, payload, fresh: reads_ahead })
}

impl Limit {
    /// Of a message that begins.
    #[inline]
    pub(super) fn message(max: u64) -> Self {
        Self { frame: PAYLOAD_LEN_MAX, message: max, left: max }
    }

    /// Of the frames of a framer, each of `frame` bytes at most. Its connection sets what is left of the message.
    #[inline]
    fn of(names: &Names, framer: Value, frame: u64) -> Self {
        let variable = |name| {
            // SAFETY: an object and an interned name.
            let len = Fixnum::from_value(unsafe { Value::from_raw(rb_ivar_get(framer.as_raw(), name)) });
            len.map(|len| len.to_i64() as u64)
        };
        // A framer without a connection has neither.
        let (left, message) = match variable(names.message_left) {
            Some(left) => (left, variable(names.message_max).unwrap_or(u64::MAX)),
            None => (u64::MAX, u64::MAX),
        };
        Self { frame, message, left }
    }

    /// The error for a payload of `len` bytes, and its close code.
    #[inline]
    fn exceeded(self, opcode: u8, len: u64) -> Option<(String, u16)> {
        let Self { frame, message, left } = self;
        if len > frame {
            return Some((format!("Invalid payload length: {len} > {frame}!"), PROTOCOL_ERROR));
        }
        let is_control = opcode & 8 != 0;
        (len > left && !is_control)
            .then(|| (format!("Message is longer than {message} bytes!"), MESSAGE_TOO_LARGE))
    }
}

impl Start {
    #[inline]
    fn decode(first: u8, second: u8) -> Result<Self, String> {
        let (finished, flags, opcode) = (first & 0x80 != 0, first >> 4 & 7, first & 0xF);
        let (masked, len7) = (second & 0x80 != 0, second & 0x7F);
        match opcode {
            0x3..=0x7 => return Err(format!("Non-control opcode = {opcode} is reserved!")),
            0xB.. => return Err(format!("Control opcode = {opcode} is reserved!")),
            0x8.. if len7 > 125 => {
                return Err(format!("Invalid control frame payload length: {len7} > 125!"));
            }
            0x8.. if !finished => return Err("Fragmented control frame!".into()),
            _ => {}
        }
        Ok(Self { finished, flags, opcode, masked, len7 })
    }

    /// How many bytes of length follow.
    #[inline]
    fn extended_len(&self) -> usize {
        match self.len7 {
            126 => 2,
            127 => 8,
            _ => 0,
        }
    }

    /// The payload's length, of which `extended` are the bytes that follow.
    #[inline]
    fn len(&self, extended: &[u8]) -> u64 {
        match extended {
            [] => u64::from(self.len7),
            extended => extended.iter().fold(0, |len, byte| len << 8 | u64::from(*byte)),
        }
    }
}

impl Frame {
    /// The frame that `bytes` begin with, and its length, when it is complete, valid and within the `limit`.
    #[inline]
    fn whole(ruby: &Ruby, bytes: &[u8], limit: Limit) -> Option<(Self, usize)> {
        let &[first, second, ..] = bytes else { return None };
        let start = Start::decode(first, second).ok()?;
        let extended = start.extended_len();
        let at = 2 + extended + if start.masked { 4 } else { 0 };
        let head = bytes.get(2..at)?;
        let len = start.len(head.get(..extended)?);
        if limit.exceeded(start.opcode, len).is_some() {
            return None;
        }
        let payload = bytes.get(at..)?.get(..usize::try_from(len).ok()?)?;
        let mask = head.get(extended..).and_then(|key| key.try_into().ok());
        let Start { finished, flags, opcode, .. } = start;
        let frame =
            Self { finished, flags, opcode, mask, payload: strings::binary(ruby, payload), fresh: true };
        Some((frame, at + payload.len()))
    }

    /// Whether it holds all of a message, as it is.
    #[inline]
    pub(super) fn is_message(&self) -> bool {
        self.flags == 0 && self.finished && matches!(self.opcode, 1 | 2)
    }

    /// The frame as an object of the class that `frames` has for its opcode.
    #[inline]
    pub(super) fn into_object(self, ruby: &Ruby, names: &Names, frames: VALUE) -> Result<Value, Error> {
        if names.is_default(frames) && !reopened() {
            let class = names.frame_class(self.opcode);
            return Ok(self.allocate(ruby, names, class));
        }
        // SAFETY: what the framer keeps.
        let class: Value = unsafe { Value::from_raw(frames) }.funcall("[]", (self.opcode,))?;
        let class = if class.to_bool() { class } else { names.frame_class(0xF).as_value() };
        if names.is_frame_class(class)
            && !reopened()
            && let Some(class) = RClass::from_value(class)
        {
            return Ok(self.allocate(ruby, names, class));
        }
        // SAFETY: `false` is a constant.
        let mask = self.mask.map_or(unsafe { Value::from_raw(Qfalse as VALUE) }, |key| {
            strings::binary(ruby, &key).as_value()
        });
        let options: RHash = kwargs_of(ruby, self.flags, self.opcode, mask)?;
        class.funcall("new", (self.finished, self.payload, KwArgs(options)))
    }

    /// Without `initialize`, which would do nothing else.
    #[inline]
    fn allocate(self, ruby: &Ruby, names: &Names, class: RClass) -> Value {
        let mut header = i64::from(self.finished) | i64::from(self.opcode) << 1 | i64::from(self.flags) << 9;
        if let Some(key) = self.mask {
            // Where `Frame#mask` looks for it.
            header |= i64::from(u32::from_be_bytes(key)) << 17 | 1 << 16;
        }
        let header = ruby.integer_from_i64(header).as_raw();
        names.object(class, [(names.header, header), (names.payload, self.payload.as_raw())])
    }
}

fn kwargs_of(ruby: &Ruby, flags: u8, opcode: u8, mask: Value) -> Result<RHash, Error> {
    let options = ruby.hash_new();
    options.aset(ruby.to_symbol("flags"), flags)?;
    options.aset(ruby.to_symbol("opcode"), opcode)?;
    options.aset(ruby.to_symbol("mask"), mask)?;
    Ok(options)
}

/// `header(finished, flags, opcode, length, mask)`: what precedes the payload on the wire.
pub(super) fn header(
    ruby: &Ruby,
    finished: bool,
    flags: u8,
    opcode: u8,
    length: u64,
    mask: Value,
) -> Result<RString, Error> {
    let mask = mask.to_bool().then(|| RString::try_convert(mask)).transpose()?;
    let mut bytes = Vec::with_capacity(14);
    bytes.push(u8::from(finished) << 7 | (flags & 7) << 4 | opcode & 0xF);
    let bit = u8::from(mask.is_some()) << 7;
    match length {
        0..=125 => bytes.push(bit | length as u8),
        126..=0xFFFF => {
            bytes.push(bit | 126);
            bytes.extend_from_slice(&(length as u16).to_be_bytes());
        }
        _ => {
            bytes.push(bit | 127);
            bytes.extend_from_slice(&length.to_be_bytes());
        }
    }
    if let Some(mask) = mask {
        // SAFETY: copied at once.
        bytes.extend_from_slice(unsafe { mask.as_slice() });
    }
    Ok(strings::binary(ruby, &bytes))
}
