//! Frame headers (RFC 9113 §4.1), and frames whose classes read no more than their payload.

use magnus::rb_sys::AsRawValue;
use magnus::value::ReprValue;
use magnus::{Error, RArray, RString, Ruby, TryConvert, Value};
use rb_sys::VALUE;

use super::names::{Class, names};
use super::objects::{self, NIL, call, integer, value};
use crate::strings;

/// RFC 9113 §4.1.
pub(super) const HEADER_LEN: usize = 9;
pub(super) const END_STREAM: i64 = 0x1;
pub(super) const END_HEADERS: i64 = 0x4;
pub(super) const PADDED: i64 = 0x8;
pub(super) const PRIORITY: i64 = 0x20;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const WINDOW_UPDATE: u8 = 8;

/// `read_frame(stream, frames, length_max)`: a frame whose class reads no more than its payload, nil at the end of the stream, or
/// `[length, type, flags, stream_id]` of any other, whose payload is still to be read.
pub(super) fn read(ruby: &Ruby, stream: Value, frames: RArray, len_max: usize) -> Result<Value, Error> {
    let Some(header) = read_bytes(stream, HEADER_LEN)? else { return Ok(ruby.qnil().as_value()) };
    // SAFETY: copied at once.
    let header: Option<[u8; HEADER_LEN]> = unsafe { header.as_slice() }.try_into().ok();
    let Some([a, b, c, r#type, flags, s0, s1, s2, s3]) = header else { return Ok(ruby.qnil().as_value()) };
    let len = u32::from_be_bytes([0, a, b, c]) as usize;
    let stream_id = u32::from_be_bytes([s0 & 0x7f, s1, s2, s3]);
    let fields = [len as u32, u32::from(r#type), u32::from(flags), stream_id];
    if let Some(class) = whole(r#type, i64::from(flags), len)
        && len <= len_max
        && frames.entry::<Value>(isize::from(r#type))?.as_raw() == class.get().as_raw()
    {
        let payload = if len == 0 {
            Some(strings::protected(ruby, |ruby| strings::binary(ruby, b""))?)
        } else {
            read_bytes(stream, len)?
        };
        if let Some(payload) = payload.filter(|payload| payload.len() == len) {
            return make(class, fields, payload.as_raw());
        }
        return Err(Error::new(ruby.exception_eof_error(), "Could not read frame payload!"));
    }
    let parts = ruby.ary_new_capa(4);
    for part in fields {
        parts.push(part)?;
    }
    Ok(parts.as_value())
}

/// The class of a frame that reads no more than its payload.
fn whole(r#type: u8, flags: i64, len: usize) -> Option<Class> {
    let classes = &names().classes;
    match r#type {
        DATA => Some(classes.data_frame),
        HEADERS if flags & END_HEADERS != 0 => Some(classes.headers_frame),
        WINDOW_UPDATE if len == 4 => Some(classes.window_update_frame),
        _ => None,
    }
}

/// `stream.read(len)`
fn read_bytes(stream: Value, len: usize) -> Result<Option<RString>, Error> {
    let read = call(stream.as_raw(), names().ids.read, &[integer(len as i64)])?;
    Option::<RString>::try_convert(value(read))
}

/// A frame of `[length, type, flags, stream_id]`, without `initialize`, which would do nothing else.
pub(super) fn make(class: Class, fields: [u32; 4], payload: VALUE) -> Result<Value, Error> {
    let ids = &names().ids;
    let [len, r#type, flags, stream_id] = fields.map(|field| integer(field.into()));
    // In the order in which `initialize` sets them, so that all frames of a class have one shape.
    let variables = [
        (ids.stream_id, stream_id),
        (ids.flags, flags),
        (ids.r#type, r#type),
        (ids.length, len),
        (ids.payload, payload),
        (ids.continuation, NIL),
    ];
    let is_continued = class.get().as_raw() == names().classes.headers_frame.get().as_raw();
    objects::make(class.get(), &variables[..if is_continued { 6 } else { 5 }]).map(value)
}

/// A DATA frame.
pub(super) fn data(flags: i64, stream_id: u32, len: u32, payload: VALUE) -> Result<Value, Error> {
    make(names().classes.data_frame, [len, DATA.into(), flags as u32, stream_id], payload)
}

/// `header(length, type, flags, stream_id)`
pub(super) fn header(ruby: &Ruby, len: u32, r#type: u8, flags: u8, stream_id: u32) -> Result<RString, Error> {
    strings::protected(ruby, |ruby| strings::binary(ruby, &head(len, r#type, flags, stream_id)))
}

/// The header of a DATA frame.
pub(super) fn data_header(ruby: &Ruby, len: u32, flags: i64, stream_id: u32) -> Result<VALUE, Error> {
    header(ruby, len, DATA, flags as u8, stream_id).map(|header| header.as_raw())
}

/// `frame(type, flags, stream_id, payload)`: all of a frame.
pub(super) fn frame(
    ruby: &Ruby,
    r#type: u8,
    flags: u8,
    stream_id: u32,
    payload: RString,
) -> Result<RString, Error> {
    let len = payload.len();
    let out = strings::protected(ruby, |ruby| strings::uninitialized(ruby, HEADER_LEN + len))?;
    // SAFETY: `out` was made just now; no Ruby code runs while the slices are in use.
    let (place, bytes) = unsafe { (strings::contents(out), strings::bytes(payload.as_raw())) };
    place[..HEADER_LEN].copy_from_slice(&head(len as u32, r#type, flags, stream_id));
    place[HEADER_LEN..].copy_from_slice(bytes);
    strings::keep(payload);
    Ok(out)
}

/// All of a DATA frame.
pub(super) fn data_bytes(ruby: &Ruby, flags: i64, stream_id: u32, payload: RString) -> Result<VALUE, Error> {
    frame(ruby, DATA, flags as u8, stream_id, payload).map(|frame| frame.as_raw())
}

/// All of a WINDOW_UPDATE frame.
pub(super) fn window_update(ruby: &Ruby, stream_id: u32, increment: u32) -> Result<VALUE, Error> {
    let mut frame = [0; HEADER_LEN + 4];
    frame[..HEADER_LEN].copy_from_slice(&head(4, WINDOW_UPDATE, 0, stream_id));
    frame[HEADER_LEN..].copy_from_slice(&increment.to_be_bytes());
    strings::protected(ruby, |ruby| strings::binary(ruby, &frame)).map(|frame| frame.as_raw())
}

/// The header of a HEADERS frame.
pub(super) fn headers_head(len: usize, flags: i64, stream_id: u32) -> [u8; HEADER_LEN] {
    head(len as u32, HEADERS, flags as u8, stream_id)
}

fn head(len: u32, r#type: u8, flags: u8, stream_id: u32) -> [u8; HEADER_LEN] {
    let ([_, a, b, c], [s0, s1, s2, s3]) = (len.to_be_bytes(), stream_id.to_be_bytes());
    [a, b, c, r#type, flags, s0, s1, s2, s3]
}
