//! `HTTP2::Framer`: frames to bytes and back, with the original's errors.

use std::cell::Cell;
use std::ops::Range;

use magnus::rb_sys::AsRawValue;
use magnus::typed_data::Obj;
use magnus::value::ReprValue;
use magnus::{Error, Integer, RArray, RHash, RString, Ruby, TryConvert, Value, prelude::*, scan_args};
use rb_sys::VALUE;

use super::frame::{
    ACK, Frame, HEADER_LEN, Header, Kind, PADDED, PRIORITY, bytes, converted, inspected, interpolated,
    joined, value,
};
use super::names::{error, sym};
use crate::guard::method;
use crate::held::managed;
use crate::strings;

const STREAM_ID_MAX: u32 = 0x7fff_ffff;
const WINDOW_INCREMENT_MAX: i64 = 0x7fff_ffff;
const EXCLUSIVE: u32 = 0x8000_0000;

pub(crate) struct Framer {
    local_max_frame_size: Cell<usize>,
    remote_max_frame_size: Cell<usize>,
}

managed!(
    Framer as "HTTP2::Framer" { local_max_frame_size, remote_max_frame_size },
    size = |_| 0
);

impl Default for Framer {
    fn default() -> Self {
        Self { local_max_frame_size: Cell::new(16_384), remote_max_frame_size: Cell::new(16_384) }
    }
}

impl Framer {
    fn initialize(&self, args: &[Value]) -> Result<(), Error> {
        let args = scan_args::scan_args::<(), (Option<usize>, Option<usize>), (), (), (), ()>(args)?;
        self.local_max_frame_size.set(args.optional.0.unwrap_or(16_384));
        self.remote_max_frame_size.set(args.optional.1.unwrap_or(16_384));
        Ok(())
    }

    fn initialize_copy(this: Obj<Self>, other: Obj<Self>) -> Obj<Self> {
        this.local_max_frame_size.set(other.local_max_frame_size.get());
        this.remote_max_frame_size.set(other.remote_max_frame_size.get());
        this
    }

    fn generate(ruby: &Ruby, this: &Self, hash: RHash) -> Result<RString, Error> {
        let mut frame = Frame::from_hash(ruby, hash)?;
        generate(ruby, &mut frame, this.remote_max_frame_size.get())
    }

    /// Takes one frame from the front of `buffer`; nil when it is not whole.
    fn parse(ruby: &Ruby, this: &Self, buffer: RString) -> Result<Option<RHash>, Error> {
        // SAFETY: the slice is not used beyond this statement.
        let Some(header) = Header::decode(unsafe { bytes(buffer) }) else { return Ok(None) };
        if buffer.len() < HEADER_LEN + header.len {
            return Ok(None);
        }
        check_len(ruby, &header, this.local_max_frame_size.get())?;
        let whole = strings::frozen(ruby, buffer);
        buffer.drop_bytes(HEADER_LEN + header.len)?;
        // SAFETY: the String is frozen, and kept below.
        let payload = &unsafe { bytes(whole) }[HEADER_LEN..HEADER_LEN + header.len];
        let parsed = parse(ruby, &header, payload, true);
        strings::keep(whole);
        match parsed.map_err(|invalid| invalid.raised(ruby))? {
            Some((frame, _)) => frame.to_hash(ruby).map(Some),
            None => {
                let hash = ruby.hash_new();
                hash.aset(value(sym().length), header.len)?;
                Ok(Some(hash))
            }
        }
    }
}

/// # Errors
/// The frame is larger than this side allows.
pub(crate) fn check_len(ruby: &Ruby, header: &Header, len_max: usize) -> Result<(), Error> {
    match header.len > len_max {
        true => Err(error(ruby, sym().protocol_error, Some("payload too large".into()))),
        false => Ok(()),
    }
}

/// Why a frame cannot be read, before an exception is made of it.
pub(crate) enum Invalid {
    /// The Symbol of the error, and a message.
    Frame(VALUE, String),
    Raised(Error),
}

impl Invalid {
    #[cold]
    pub(crate) fn raised(self, ruby: &Ruby) -> Error {
        match self {
            Self::Frame(kind, message) => error(ruby, kind, Some(message.into())),
            Self::Raised(error) => error,
        }
    }
}

impl From<Error> for Invalid {
    fn from(error: Error) -> Self {
        Self::Raised(error)
    }
}

/// Reads a frame; none of an unknown type. Blocks of fields become a String only when `whole`; their place in the payload is
/// returned in any case. Allocates, but runs no Ruby code.
pub(crate) fn parse(
    ruby: &Ruby,
    header: &Header,
    payload: &[u8],
    whole: bool,
) -> Result<Option<(Frame, Range<usize>)>, Invalid> {
    let Some(kind) = header.kind else { return Ok(None) };
    let sym = sym();
    let size_error = |name: &str, wanted: usize| {
        let message = format!("Invalid length for {name} ({} != {wanted})", header.len);
        Invalid::Frame(sym.frame_size_error, message)
    };
    let mut frame = Frame::new(kind, header.stream);
    frame.flags = header.flags;
    frame.length = Some(header.len);
    let mut range = 0..payload.len();
    if kind.may_be_padded() && frame.has(PADDED) {
        // RFC 9113 §6.1: padding as long as the payload or longer is a PROTOCOL_ERROR.
        let too_long = || Invalid::Frame(sym.protocol_error, "padding too long".into());
        let padding = usize::from(*payload.first().ok_or_else(too_long)?);
        if padding >= payload.len() {
            return Err(too_long());
        }
        range = 1..payload.len() - padding;
        frame.padding = Some(padding as u32 + 1);
        frame.length = Some(header.len - padding - 1);
        frame.flags &= !PADDED;
    }
    let body = &payload[range.clone()];
    match kind {
        Kind::Data => frame.payload = binary(ruby, body),
        Kind::Ping => {
            // RFC 9113 §6.7.
            if body.len() != 8 {
                return Err(size_error("PING", 8));
            }
            frame.payload = binary(ruby, body);
        }
        Kind::Continuation => {}
        Kind::Headers => {
            if frame.has(PRIORITY) {
                priority(&mut frame, body).ok_or_else(|| size_error("HEADERS", 5))?;
                range.start += 5;
            }
        }
        Kind::Priority => {
            if body.len() != 5 {
                return Err(size_error("PRIORITY_STREAM", 5));
            }
            priority(&mut frame, body);
        }
        Kind::RstStream => {
            let code =
                body.first_chunk().filter(|_| body.len() == 4).ok_or_else(|| size_error("RST_STREAM", 4))?;
            frame.error = error_name(ruby, u32::from_be_bytes(*code));
        }
        Kind::Settings => frame.payload = settings(ruby, header, body)?,
        Kind::PushPromise => {
            let promised = body.first_chunk().ok_or_else(|| size_error("PUSH_PROMISE", 4))?;
            frame.promise_stream = Some(u32::from_be_bytes(*promised) & STREAM_ID_MAX);
            range.start += 4;
        }
        Kind::Goaway => {
            let (Some(last), Some(code)) = (body.first_chunk(), body.get(4..).and_then(<[u8]>::first_chunk))
            else {
                return Err(size_error("GOAWAY", 8));
            };
            frame.last_stream = Some(u32::from_be_bytes(*last) & STREAM_ID_MAX);
            frame.error = error_name(ruby, u32::from_be_bytes(*code));
            if body.len() > 8 {
                frame.payload = binary(ruby, &body[8..]);
            }
        }
        Kind::WindowUpdate => {
            let Some(increment) = body.first_chunk().filter(|_| body.len() == 4) else {
                let message = format!("Invalid length for WINDOW_UPDATE ({} not multiple of 4)", header.len);
                return Err(Invalid::Frame(sym.frame_size_error, message));
            };
            frame.increment = Some(i64::from(u32::from_be_bytes(*increment) & STREAM_ID_MAX));
        }
        // Extensions are as good as unknown when they cannot be read.
        Kind::Altsvc => match altsvc(ruby, &frame, body)? {
            Some(hash) => frame.hash = hash.as_raw(),
            None => return Ok(None),
        },
        Kind::Origin => match origins(ruby, body)? {
            Some(list) => frame.payload = list.as_raw(),
            None => return Ok(None),
        },
    }
    if whole && matches!(kind, Kind::Headers | Kind::PushPromise | Kind::Continuation) {
        frame.payload = binary(ruby, &payload[range.clone()]);
    }
    Ok(Some((frame, range)))
}

fn binary(ruby: &Ruby, bytes: &[u8]) -> VALUE {
    strings::binary(ruby, bytes).as_raw()
}

fn priority(frame: &mut Frame, body: &[u8]) -> Option<()> {
    let &[a, b, c, d, weight] = body.first_chunk::<5>()?;
    let dependency = u32::from_be_bytes([a, b, c, d]);
    frame.dependency = Some(dependency & STREAM_ID_MAX);
    frame.exclusive = Some(dependency & EXCLUSIVE != 0);
    frame.weight = Some(i64::from(weight) + 1);
    Some(())
}

fn error_name(ruby: &Ruby, code: u32) -> VALUE {
    sym()
        .errors()
        .get(code as usize)
        .copied()
        .unwrap_or_else(|| ruby.integer_from_u64(u64::from(code)).as_raw())
}

fn settings(ruby: &Ruby, header: &Header, body: &[u8]) -> Result<VALUE, Invalid> {
    let protocol_error = |message: &str| Invalid::Frame(sym().protocol_error, message.to_owned());
    if !body.len().is_multiple_of(6) {
        return Err(protocol_error("Invalid settings payload length"));
    }
    if header.stream != 0 {
        return Err(protocol_error(&format!("Invalid stream ID ({})", header.stream)));
    }
    // RFC 9113 §6.5: an acknowledgement with content is a FRAME_SIZE_ERROR.
    if header.flags & ACK != 0 && !body.is_empty() {
        return Err(Invalid::Frame(sym().frame_size_error, "Invalid settings payload length".into()));
    }
    let known = sym().settings();
    let list = ruby.ary_new();
    for &[i, j, a, b, c, d] in body.as_chunks::<6>().0 {
        let id = u16::from_be_bytes([i, j]);
        if let Some((_, name)) = known.iter().find(|(known, _)| *known == id) {
            let number = ruby.integer_from_u64(u64::from(u32::from_be_bytes([a, b, c, d])));
            list.push(ruby.ary_new_from_values(&[value(*name), number.as_value()]))?;
        }
    }
    Ok(list.as_raw())
}

/// ```text
/// max-age (4) | port (2) | length (1) protocol | length (1) host | origin      as drafted; RFC 7838 has another layout
/// ```
fn altsvc(ruby: &Ruby, frame: &Frame, body: &[u8]) -> Result<Option<RHash>, Error> {
    fn part<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
        let (&len, after) = rest.split_first()?;
        let (part, after) = after.split_at_checked(usize::from(len))?;
        *rest = after;
        Some(part)
    }
    let Some((&[a, b, c, d, p, q], mut rest)) = body.split_first_chunk::<6>() else { return Ok(None) };
    let (Some(proto), Some(host)) = (part(&mut rest), part(&mut rest)) else { return Ok(None) };
    let sym = sym();
    let hash = frame.to_hash(ruby)?;
    hash.aset(value(sym.max_age), u32::from_be_bytes([a, b, c, d]))?;
    hash.aset(value(sym.port), u16::from_be_bytes([p, q]))?;
    for (key, part) in [(sym.proto, proto), (sym.host, host), (sym.origin, rest)] {
        if !part.is_empty() {
            hash.aset(value(key), strings::binary(ruby, part))?;
        }
    }
    Ok(Some(hash))
}

/// RFC 8336 §2.
fn origins(ruby: &Ruby, body: &[u8]) -> Result<Option<RArray>, Error> {
    let list = ruby.ary_new();
    let mut rest = body;
    while let Some((len, after)) = rest.split_first_chunk() {
        let Some((origin, after)) = after.split_at_checked(usize::from(u16::from_be_bytes(*len))) else {
            return Ok(None);
        };
        list.push(strings::binary(ruby, origin))?;
        rest = after;
    }
    Ok(rest.is_empty().then_some(list))
}

/// The fields of a frame before its payload: those of GOAWAY are the longest.
#[derive(Default)]
struct Fields {
    bytes: [u8; 8],
    len: usize,
}

impl Fields {
    fn push<const N: usize>(&mut self, bytes: [u8; N]) {
        self.bytes[self.len..self.len + N].copy_from_slice(&bytes);
        self.len += N;
    }
}

/// The bytes of a frame. Its Hash, if it has one, gets `:flags` and `:length`.
///
/// Neither here nor below is memory held while objects are converted, which runs methods of the program: one may never return, in a Fiber
/// that is abandoned, or twice, by a continuation.
pub(crate) fn generate(ruby: &Ruby, frame: &mut Frame, len_max: usize) -> Result<RString, Error> {
    let mut fields = Fields::default();
    // A payload that is a String goes out as it is: `frame` holds it.
    let string = body(ruby, frame, &mut fields)?;
    let fields = &fields.bytes[..fields.len];
    // SAFETY: Ruby code that might change the String runs only to raise.
    let content = string.map_or(&[][..], |string| unsafe { bytes(string) });
    let content = frame.slice.map_or(content, |(offset, len)| &content[offset..offset + len]);
    let mut padding = 0;
    let mut padding_len = &[][..];
    let padding_len_field;
    if let Some(given) = frame.padding {
        let length = fields.len() + content.len();
        if !frame.kind.may_be_padded() {
            return Err(refused(ruby, format!("Invalid padding flag for {}", frame.kind.name())));
        }
        padding = given as usize;
        if padding == 0 || padding > 256 || padding + length > len_max {
            return Err(refused(ruby, format!("Invalid padding {padding}")));
        }
        padding -= 1;
        padding_len_field = [padding as u8];
        padding_len = &padding_len_field;
        frame.flags |= PADDED;
    }
    let length = padding_len.len() + fields.len() + content.len() + padding;
    frame.length = Some(length);
    let stream = frame.stream.unwrap_or(0);
    if length > len_max {
        return Err(refused(ruby, format!("Frame size is too large: {length}")));
    }
    if stream > STREAM_ID_MAX {
        return Err(refused(ruby, format!("Stream ID ({stream}) is outside the valid range")));
    }
    if let Some(hash) = RHash::from_value(value(frame.hash))
        && !hash.is_frozen()
    {
        hash.aset(value(sym().flags), frame.flags)?;
        hash.aset(value(sym().length), length)?;
    }
    let header = Header::encode(frame.kind, frame.flags, length, stream);
    let parts = [&header[..], padding_len, fields, content, &[0; 256][..padding]];
    let whole = strings::protected(ruby, |ruby| joined(ruby, parts));
    strings::keep(string);
    whole
}

fn refused(ruby: &Ruby, message: String) -> Error {
    error(ruby, sym().compression_error, Some(message.into()))
}

/// Writes the fields of a frame before its payload, and returns that.
fn body(ruby: &Ruby, frame: &mut Frame, fields: &mut Fields) -> Result<Option<RString>, Error> {
    let string = |frame: &Frame| RString::try_convert(frame.payload());
    match frame.kind {
        Kind::Data | Kind::Continuation => return string(frame).map(Some),
        Kind::Headers => {
            if frame.weight.is_some() || frame.dependency.is_some() || frame.exclusive.is_some() {
                write_priority(ruby, frame, fields)?;
                frame.flags |= PRIORITY;
            } else if frame.has(PRIORITY) {
                return Err(refused(ruby, "Must specify all of priority parameters for headers".into()));
            }
            return string(frame).map(Some);
        }
        Kind::Priority => write_priority(ruby, frame, fields)?,
        Kind::RstStream => fields.push(error_code(ruby, frame.error)?.to_be_bytes()),
        Kind::Settings => {
            if let Some(stream) = frame.stream.filter(|stream| *stream != 0) {
                return Err(refused(ruby, format!("Invalid stream ID ({stream})")));
            }
            return settings_payload(ruby, frame.payload()).map(Some);
        }
        Kind::PushPromise => {
            fields.push((frame.promise_stream.unwrap_or(0) & STREAM_ID_MAX).to_be_bytes());
            return string(frame).map(Some);
        }
        Kind::Ping => {
            let payload = string(frame)?;
            if payload.len() != 8 {
                return Err(refused(ruby, format!("Invalid payload size ({} != 8 bytes)", payload.len())));
            }
            return Ok(Some(payload));
        }
        Kind::Goaway => {
            fields.push((frame.last_stream.unwrap_or(0) & STREAM_ID_MAX).to_be_bytes());
            fields.push(error_code(ruby, frame.error)?.to_be_bytes());
            return Option::<RString>::try_convert(frame.payload());
        }
        Kind::WindowUpdate => {
            let increment = frame.increment.unwrap_or(0);
            if !(1..=WINDOW_INCREMENT_MAX).contains(&increment) {
                return Err(refused(
                    ruby,
                    format!("Window increment ({increment}) is outside the valid range"),
                ));
            }
            fields.push((increment as u32 & STREAM_ID_MAX).to_be_bytes());
        }
        Kind::Altsvc => return altsvc_payload(ruby, frame).map(Some),
        Kind::Origin => return origin_payload(ruby, frame).map(Some),
    }
    Ok(None)
}

fn write_priority(ruby: &Ruby, frame: &Frame, fields: &mut Fields) -> Result<(), Error> {
    let (Some(weight), Some(dependency), Some(exclusive)) = (frame.weight, frame.dependency, frame.exclusive)
    else {
        let kind = frame.kind.name();
        return Err(refused(ruby, format!("Must specify all of priority parameters for {kind}")));
    };
    let exclusive = if exclusive { EXCLUSIVE } else { 0 };
    fields.push((exclusive | dependency & STREAM_ID_MAX).to_be_bytes());
    fields.push([(weight - 1) as u8]);
    Ok(())
}

fn error_code(ruby: &Ruby, given: VALUE) -> Result<u32, Error> {
    if let Some(code) = sym().errors().iter().position(|name| *name == given) {
        return Ok(code as u32);
    }
    let given = value(given);
    if let Some(code) = converted(given)? {
        return Ok(code);
    }
    let message = format!("Unknown error ID for {}", inspected(given)?);
    Err(refused(ruby, message))
}

/// The String of what `write` writes. It runs no Ruby code.
fn written(ruby: &Ruby, write: impl FnOnce(&mut Vec<u8>)) -> Result<RString, Error> {
    let mut room = Vec::new();
    write(&mut room);
    strings::protected(ruby, |ruby| strings::binary(ruby, &room))
}

fn settings_payload(ruby: &Ruby, payload: Value) -> Result<RString, Error> {
    let known = sym().settings();
    // Each in the 48 bits that it has on the wire.
    let converted = ruby.ary_new();
    settings_pairs(ruby, payload)?.each(|name, number| {
        let named = known.iter().find(|(_, known)| *known == name);
        let numbered = || {
            let Some(id) = Integer::from_value(value(name)) else {
                let name = value(name);
                let message = format!("Unknown settings ID for {}", interpolated(name)?);
                return Err(refused(ruby, message));
            };
            Ok::<_, Error>(id.to_u16().ok().and_then(|id| known.iter().find(|(known, _)| *known == id)))
        };
        let Some((id, _)) = named.map_or_else(numbered, |named| Ok(Some(named)))? else { return Ok(()) };
        let number = u32::try_convert(value(number))?;
        converted.push(ruby.integer_from_u64(u64::from(*id) << 32 | u64::from(number)))
    })?;
    written(ruby, |room| {
        for at in 0..converted.len() {
            let setting = converted.entry::<u64>(at as isize).unwrap_or(0).to_be_bytes();
            room.extend_from_slice(&setting[2..]);
        }
    })
}

/// Settings as pairs, in an Array on the stack that holds keys and numbers by turns.
pub(crate) struct Pairs(RArray);

impl Pairs {
    pub(crate) fn each(&self, mut work: impl FnMut(VALUE, VALUE) -> Result<(), Error>) -> Result<(), Error> {
        for at in (0..self.0.len() as isize).step_by(2) {
            let (key, number): (Value, Value) = (self.0.entry(at)?, self.0.entry(at + 1)?);
            work(key.as_raw(), number.as_raw())?;
        }
        Ok(())
    }
}

/// Settings as pairs, given as a Hash, a list of pairs, or nil.
pub(crate) fn settings_pairs(ruby: &Ruby, payload: Value) -> Result<Pairs, Error> {
    let pairs = ruby.ary_new();
    if payload.is_nil() {
        return Ok(Pairs(pairs));
    }
    let list = crate::hpack::encode::pairs(ruby, payload)?;
    for at in 0..list.len() {
        // A copy, which the conversion of a later pair cannot change.
        let pair: RArray = list.entry(at as isize)?;
        pairs.push(pair.entry::<Value>(0)?)?;
        pairs.push(pair.entry::<Value>(1)?)?;
    }
    Ok(Pairs(pairs))
}

fn altsvc_payload(ruby: &Ruby, frame: &Frame) -> Result<RString, Error> {
    let sym = sym();
    let hash = RHash::try_convert(value(frame.hash))?;
    let (max_age, port): (u32, u16) = (hash.lookup(value(sym.max_age))?, hash.lookup(value(sym.port))?);
    let part = |key: VALUE| hash.lookup::<_, Option<RString>>(value(key));
    let (proto, host, origin) = (part(sym.proto)?, part(sym.host)?, part(sym.origin)?);
    // SAFETY: no Ruby code runs while the slices are in use, but to raise.
    let content = |part: Option<RString>| part.map_or(&[][..], |part| unsafe { bytes(part) });
    for (part, name) in [(proto, "Proto"), (host, "Host")] {
        if content(part).len() > usize::from(u8::MAX) {
            return Err(refused(ruby, format!("{name} too long")));
        }
    }
    let payload = written(ruby, |room| {
        room.extend(max_age.to_be_bytes());
        room.extend(port.to_be_bytes());
        for part in [proto, host] {
            room.push(content(part).len() as u8);
            room.extend_from_slice(content(part));
        }
        room.extend_from_slice(content(origin));
    });
    for part in [proto, host, origin] {
        strings::keep(part);
    }
    payload
}

fn origin_payload(ruby: &Ruby, frame: &Frame) -> Result<RString, Error> {
    let given = RArray::try_convert(frame.payload())?;
    let origins = ruby.ary_new();
    for at in 0..given.len() {
        let origin: RString = given.entry(at as isize)?;
        if origin.len() > usize::from(u16::MAX) {
            return Err(refused(ruby, "Origin too long".into()));
        }
        origins.push(strings::frozen(ruby, origin))?;
    }
    written(ruby, |room| {
        for at in 0..origins.len() {
            let Ok(origin) = origins.entry::<RString>(at as isize) else { continue };
            room.extend((origin.len() as u16).to_be_bytes());
            // SAFETY: a frozen String, which the Array holds.
            room.extend_from_slice(unsafe { bytes(origin) });
        }
    })
}

pub(crate) fn init(ruby: &Ruby, http2: magnus::RModule) -> Result<(), Error> {
    let framer = http2.define_class("Framer", ruby.class_object())?;
    Framer::load(ruby, framer);
    framer.define_alloc_func::<Framer>();
    framer.define_private_method("initialize", method!(mut Framer::initialize, -1))?;
    framer.define_private_method("initialize_copy", method!(Framer::initialize_copy, 1))?;
    framer.define_method("generate", method!(Framer::generate, 1))?;
    framer.define_method("parse", method!(Framer::parse, 1))?;
    framer
        .define_method("local_max_frame_size", method!(|this: &Framer| this.local_max_frame_size.get(), 0))?;
    framer.define_method(
        "remote_max_frame_size",
        method!(|this: &Framer| this.remote_max_frame_size.get(), 0),
    )?;
    framer.define_method(
        "local_max_frame_size=",
        method!(mut |this: &Framer, size: usize| this.local_max_frame_size.set(size), 1),
    )?;
    framer.define_method(
        "remote_max_frame_size=",
        method!(mut |this: &Framer, size: usize| this.remote_max_frame_size.set(size), 1),
    )
}
