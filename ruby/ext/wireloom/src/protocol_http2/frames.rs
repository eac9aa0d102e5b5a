//! Frame headers (RFC 9113 §4.1), and frames whose classes read no more than their payload.

use magnus::rb_sys::AsRawValue;
use magnus::{Error, RArray, RString, Ruby, Value};
use rb_sys::{ID, VALUE};

use super::ahead::Ahead;
use super::names::{Class, names};
use super::objects::{self, NIL, get, integer, number, string, value};
use super::steps::{self, PartStep, Steps};
use crate::guard::protect;
use crate::strings;

/// RFC 9113 §4.1.
pub(super) const HEADER_LEN: usize = 9;
pub(super) const STREAM_IDS: std::ops::Range<i64> = 0..1 << 31;
pub(super) const END_STREAM: i64 = 0x1;
pub(super) const END_HEADERS: i64 = 0x4;
pub(super) const PADDED: i64 = 0x8;
pub(super) const PRIORITY: i64 = 0x20;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const WINDOW_UPDATE: u8 = 8;

/// A frame, and what its instance variables hold.
#[derive(Clone, Copy)]
pub(super) struct Frame {
    pub(super) object: VALUE,
    pub(super) len: i64,
    pub(super) flags: i64,
    pub(super) stream_id: i64,
    pub(super) payload: VALUE,
}

impl Frame {
    /// `None` when it has no numbers.
    pub(super) fn of(object: VALUE) -> Option<Self> {
        let ids = &names().ids;
        Some(Self {
            object,
            len: number(get(object, ids.length))?,
            flags: number(get(object, ids.flags))?,
            stream_id: number(get(object, ids.stream_id))?,
            payload: get(object, ids.payload),
        })
    }
}

/// How far [`read`] came.
#[derive(Clone, Copy)]
pub(super) enum Read {
    /// A frame whose class reads no more than its payload.
    Frame(Frame),
    /// `[length, type, flags, stream_id]` of any other, whose payload is still to be read.
    Header([u32; 4]),
    /// The stream had something else than the header.
    NoHeader(VALUE),
    /// The stream had something else than the payload.
    NoPayload(VALUE),
}

/// The fields of a header.
#[derive(Clone, Copy)]
struct Header {
    len: usize,
    r#type: u8,
    flags: u8,
    stream_id: u32,
}

impl Header {
    fn decode([a, b, c, r#type, flags, s0, s1, s2, s3]: [u8; HEADER_LEN]) -> Self {
        let len = u32::from_be_bytes([0, a, b, c]) as usize;
        Self { len, r#type, flags, stream_id: u32::from_be_bytes([s0 & 0x7f, s1, s2, s3]) }
    }

    fn fields(self) -> [u32; 4] {
        [self.len as u32, self.r#type.into(), self.flags.into(), self.stream_id]
    }

    /// The class of a frame that reads no more than its payload, where it is that of `frames`.
    fn class(self, frames: RArray, len_max: usize) -> Option<Class> {
        let classes = &names().classes;
        let class = match self.r#type {
            DATA => classes.data_frame,
            HEADERS if i64::from(self.flags) & END_HEADERS != 0 => classes.headers_frame,
            WINDOW_UPDATE if self.len == 4 => classes.window_update_frame,
            _ => return None,
        };
        // SAFETY: a live Array.
        let own = unsafe { rb_sys::rb_ary_entry(frames.as_raw(), self.r#type.into()) };
        (self.len <= len_max && own == class.get().as_raw()).then_some(class)
    }

    /// # Safety
    /// The caller has nothing to drop, because this raises.
    #[inline]
    unsafe fn frame(self, class: Class, payload: VALUE) -> Frame {
        let (variables, count) = variables(class, self.fields(), payload);
        // SAFETY: the caller vouches for it.
        let object = unsafe { objects::make_unprotected(class.get().as_raw(), &variables[..count]) };
        let (len, flags, stream_id) = (self.len as i64, self.flags.into(), self.stream_id.into());
        Frame { object, len, flags, stream_id, payload }
    }
}

/// Reads a frame off a stream.
///
/// # Errors
/// The exception that `stream.read` raises, or of a question about the class of the stream.
pub(super) fn read(ruby: &Ruby, stream: VALUE, frames: RArray, len_max: usize) -> Result<Read, Error> {
    let steps = steps::of(ruby, stream)?;
    let mut result = Read::NoHeader(NIL);
    // SAFETY: the closure has nothing to drop.
    protect(|| unsafe {
        result = match read_ahead(stream, steps, frames, len_max) {
            Some(frame) => Read::Frame(frame),
            None => read_unprotected(stream, frames, len_max),
        };
        NIL
    })?;
    Ok(result)
}

/// A frame that is complete in the memory of the stream; else nothing is read.
///
/// # Safety
/// The caller has nothing to drop, because this raises.
#[inline]
unsafe fn read_ahead(stream: VALUE, steps: Steps<PartStep>, frames: RArray, len_max: usize) -> Option<Frame> {
    // SAFETY: the caller vouches for it; the bytes are copied before anything else runs.
    unsafe {
        let ahead = Ahead::of(stream, steps)?;
        let header = Header::decode(*ahead.bytes().first_chunk()?);
        let class = header.class(frames, len_max)?;
        let end = HEADER_LEN + header.len;
        let payload = ahead.copy(HEADER_LEN..end)?;
        let frame = header.frame(class, payload);
        ahead.skip(end);
        Some(frame)
    }
}

/// # Safety
/// The caller has nothing to drop, because this raises.
#[inline]
unsafe fn read_unprotected(stream: VALUE, frames: RArray, len_max: usize) -> Read {
    // SAFETY: the caller vouches for it.
    let header = unsafe { read_bytes(stream, HEADER_LEN) };
    let Some(bytes) = bytes(header) else { return Read::NoHeader(header) };
    let header = Header::decode(bytes);
    let Some(class) = header.class(frames, len_max) else { return Read::Header(header.fields()) };
    // SAFETY: as above; an empty String is copied from nowhere.
    let payload = unsafe {
        match header.len {
            0 => rb_sys::rb_str_new(c"".as_ptr(), 0),
            len => read_payload(stream, len),
        }
    };
    if string(payload).is_none_or(|payload| payload.len() != header.len) {
        return Read::NoPayload(payload);
    }
    // SAFETY: as above.
    Read::Frame(unsafe { header.frame(class, payload) })
}

/// `stream.read(len)`, left out where the header brought the payload along.
///
/// # Safety
/// As for [`read_bytes`].
#[inline]
unsafe fn read_payload(stream: VALUE, len: usize) -> VALUE {
    let steps = steps::known(stream).filter(|steps: &Steps<PartStep>| steps.has(PartStep::ReadAhead));
    // SAFETY: the caller vouches for it.
    unsafe {
        let ahead = steps.and_then(|steps| Ahead::of(stream, steps));
        match ahead.and_then(|ahead| Some((ahead, ahead.copy(0..len)?))) {
            Some((ahead, payload)) => {
                ahead.skip(len);
                payload
            }
            None => read_bytes(stream, len),
        }
    }
}

/// `stream.read(len)`
///
/// # Safety
/// The caller has nothing to drop, because this raises.
#[inline]
unsafe fn read_bytes(stream: VALUE, len: usize) -> VALUE {
    let len = integer(len as i64);
    // SAFETY: live objects.
    unsafe { rb_sys::rb_funcallv(stream, names().ids.read, 1, &len) }
}

/// The bytes of a String of that length.
#[inline]
fn bytes<const N: usize>(value: VALUE) -> Option<[u8; N]> {
    // SAFETY: copied at once.
    string(value).and_then(|string| unsafe { string.as_slice() }.try_into().ok())
}

/// A frame of `[length, type, flags, stream_id]`, without `initialize`, which would do nothing else.
fn make(class: Class, fields: [u32; 4], payload: VALUE) -> Result<Value, Error> {
    let (variables, count) = variables(class, fields, payload);
    objects::make(class.get(), &variables[..count]).map(value)
}

/// The instance variables of a frame, and how many its class has, in the order in which `initialize` sets them, so that all frames
/// of a class have one shape.
fn variables(class: Class, fields: [u32; 4], payload: VALUE) -> ([(ID, VALUE); 6], usize) {
    let ids = &names().ids;
    let [len, r#type, flags, stream_id] = fields.map(|field| integer(field.into()));
    let variables = [
        (ids.stream_id, stream_id),
        (ids.flags, flags),
        (ids.r#type, r#type),
        (ids.length, len),
        (ids.payload, payload),
        (ids.continuation, NIL),
    ];
    let is_continued = class.get().as_raw() == names().classes.headers_frame.get().as_raw();
    (variables, if is_continued { 6 } else { 5 })
}

/// A DATA frame.
pub(super) fn data(flags: i64, stream_id: u32, len: u32, payload: VALUE) -> Result<Value, Error> {
    make(names().classes.data_frame, [len, DATA.into(), flags as u32, stream_id], payload)
}

/// `header(length, type, flags, stream_id)`
pub(super) fn header(ruby: &Ruby, len: u32, r#type: u8, flags: u8, stream_id: u32) -> Result<RString, Error> {
    strings::protected(ruby, |ruby| strings::binary(ruby, &head(len, r#type, flags, stream_id)))
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

/// The header of a DATA frame.
pub(super) fn data_head(len: usize, flags: i64, stream_id: u32) -> [u8; HEADER_LEN] {
    head(len as u32, DATA, flags as u8, stream_id)
}

/// All of a WINDOW_UPDATE frame.
pub(super) fn window_update(stream_id: u32, increment: u32) -> [u8; HEADER_LEN + 4] {
    let mut frame = [0; HEADER_LEN + 4];
    frame[..HEADER_LEN].copy_from_slice(&head(4, WINDOW_UPDATE, 0, stream_id));
    frame[HEADER_LEN..].copy_from_slice(&increment.to_be_bytes());
    frame
}

/// The header of a HEADERS frame.
pub(super) fn headers_head(len: usize, flags: i64, stream_id: u32) -> [u8; HEADER_LEN] {
    head(len as u32, HEADERS, flags as u8, stream_id)
}

fn head(len: u32, r#type: u8, flags: u8, stream_id: u32) -> [u8; HEADER_LEN] {
    let ([_, a, b, c], [s0, s1, s2, s3]) = (len.to_be_bytes(), stream_id.to_be_bytes());
    [a, b, c, r#type, flags, s0, s1, s2, s3]
}
