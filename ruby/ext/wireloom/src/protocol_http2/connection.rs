//! `Connection`: reads a frame and passes it to its stream.

use std::ffi::c_int;

use magnus::error::ErrorType;
use magnus::rb_sys::AsRawValue;
use magnus::value::ReprValue;
use magnus::{Error, RArray, RHash, RString, Ruby, TryConvert, Value};
use rb_sys::{ID, VALUE};

use super::flow::{self, Window};
use super::frames::{self, Frame, Read};
use super::names::names;
use super::objects::{NIL, call, call_super, class_of, get, integer, number, set, set_new, string, value};
use super::steps::{self, ConnectionStep, Steps, StreamStep};
use super::stream::{self as streams, Sides};
use crate::guard::made;
use crate::hpack;

const FALSE: VALUE = rb_sys::Qfalse as VALUE;
const TRUE: VALUE = rb_sys::Qtrue as VALUE;
/// RFC 9113 §7.
const PROTOCOL_ERROR: i64 = 1;
const COMPRESSION_ERROR: i64 = 9;

/// `read_frame`
pub(super) fn read_frame(ruby: &Ruby, this: Value, arguments: &[Value]) -> Result<Value, Error> {
    let (connection, names) = (this.as_raw(), names());
    let framer = get(connection, names.ids.framer);
    let is_usual = arguments.is_empty()
        && steps::is_plain()
        && steps::of(ruby, connection)?.has(ConnectionStep::Read)
        && names.classes.framer.is_of(framer)
        && !ruby.block_given();
    let len_max = setting(get(connection, names.ids.local_settings), names.ids.maximum_frame_size);
    let (true, Some(len_max)) = (is_usual, len_max) else { return windows_changed(ruby, this, arguments) };
    receive(ruby, connection, framer, len_max).map_err(|error| report(connection, error))
}

fn receive(ruby: &Ruby, connection: VALUE, framer: VALUE, len_max: i64) -> Result<Value, Error> {
    let ids = &names().ids;
    let (frame, known) = match object_array(get(framer, ids.frames)) {
        Some(frames) => next_frame(ruby, framer, frames, len_max)?,
        None => (call(framer, ids.read_frame, &[integer(len_max)])?, None),
    };
    let is_open = get(connection, ids.state) != names().symbols.closed && get(connection, ids.framer) != NIL;
    if !is_open && !matches!(call(connection, ids.ignore_frame, &[frame])?, NIL | FALSE) {
        return Ok(ruby.qnil().as_value());
    }
    let known = known.filter(|_| is_open).or_else(|| Frame::of(frame));
    let is_applied = match known {
        Some(frame) if steps::is_plain() => apply(ruby, connection, &frame)?,
        _ => false,
    };
    if !is_applied {
        set_told(connection, false)?;
        call(frame, ids.apply, &[connection])?;
        set_told(connection, false)?;
    }
    Ok(value(frame))
}

/// `consume_window(size = available_size)`: calls `window_updated` on the streams. async-http calls it before each frame that it reads.
/// Without an argument the calls are skipped if no window has grown since, and streams only wake the fibers that wait for one.
pub(super) fn consume_window(ruby: &Ruby, this: Value, arguments: &[Value]) -> Result<Value, Error> {
    let connection = this.as_raw();
    if !arguments.is_empty() {
        return call_super(arguments);
    }
    let is_told = get(connection, names().ids.windows_told) == TRUE;
    if is_told && steps::is_plain() && every_stream(connection, only_wakes) {
        return Ok(ruby.qnil().as_value());
    }
    set_told(connection, true)?;
    call_super(arguments)
}

/// `read_frame` as the gem does it, `receive_window_update` and `receive_settings`, which may let windows grow.
pub(super) fn windows_changed(_: &Ruby, this: Value, arguments: &[Value]) -> Result<Value, Error> {
    set_told(this.as_raw(), false)?;
    let result = call_super(arguments);
    set_told(this.as_raw(), false)?;
    result
}

/// Notes whether `window_updated` was called since a window has grown.
fn set_told(connection: VALUE, told: bool) -> Result<(), Error> {
    set_new(connection, names().ids.windows_told, if told { TRUE } else { FALSE })
}

/// `Framer#read_frame`
pub(super) fn framer_read_frame(ruby: &Ruby, this: Value, arguments: &[Value]) -> Result<Value, Error> {
    let (framer, names) = (this.as_raw(), names());
    let frames = object_array(get(framer, names.ids.frames));
    let len_max = match arguments {
        [] => Some(0xff_ffff),
        [len_max] => number(len_max.as_raw()),
        _ => None,
    };
    let is_usual = steps::is_plain() && names.classes.framer.is_of(framer);
    let (true, Some(frames), Some(len_max)) = (is_usual, frames, len_max) else {
        return call_super(arguments);
    };
    next_frame(ruby, framer, frames, len_max).map(|(frame, _)| value(frame))
}

/// The next frame off the stream of a framer of the gem, and what it holds where that is known.
fn next_frame(
    ruby: &Ruby,
    framer: VALUE,
    frames: RArray,
    len_max: i64,
) -> Result<(VALUE, Option<Frame>), Error> {
    let names = names();
    let stream = get(framer, names.ids.stream);
    let missing = |read, message| match Option::<RString>::try_convert(value(read)) {
        Ok(_) => Error::new(ruby.exception_eof_error(), message),
        Err(error) => error,
    };
    match frames::read(ruby, stream, frames, len_max.max(0) as usize)? {
        Read::Frame(frame) => Ok((frame.object, Some(frame))),
        Read::Header(fields) => {
            let header = ruby.ary_from_iter(fields);
            let rest = [stream, frames.as_raw(), header.as_raw(), integer(len_max)];
            Ok((call(names.module.get().as_raw(), names.ids.read_rest, &rest)?, None))
        }
        Read::NoHeader(read) => Err(missing(read, "Could not read frame header!")),
        Read::NoPayload(read) => Err(missing(read, "Could not read frame payload!")),
    }
}

fn object_array(object: VALUE) -> Option<RArray> {
    RArray::from_value(value(object))
}

/// Sends GOAWAY for an error of the protocol, as `rescue` of the gem's method does, and returns the error to raise.
#[cold]
fn report(connection: VALUE, error: Error) -> Error {
    let names = names();
    let Some(raised) = error.value() else { return error };
    let code = if raised.is_kind_of(names.goaway_error.get()) {
        return error;
    } else if raised.is_kind_of(names.protocol_error.get()) {
        match call(raised.as_raw(), names.ids.code, &[]) {
            Ok(NIL) => integer(PROTOCOL_ERROR),
            Ok(code) => code,
            Err(error) => return error,
        }
    } else if raised.is_kind_of(names.hpack_error.get()) {
        integer(COMPRESSION_ERROR)
    } else {
        return error;
    };
    let sent = call(raised.as_raw(), names.ids.message, &[])
        .and_then(|message| call(connection, names.ids.send_goaway, &[code, message]));
    sent.err().unwrap_or(error)
}

/// Does what `frame.apply(connection)` does. Returns false, with nothing done, where that has to.
fn apply(ruby: &Ruby, connection: VALUE, frame: &Frame) -> Result<bool, Error> {
    let (classes, object) = (&names().classes, frame.object);
    // Methods may have been overridden while the frame was awaited.
    let steps = steps::of(ruby, connection)?;
    if classes.data_frame.is_of(object) && steps.has(ConnectionStep::ReceiveData) {
        receive_data(ruby, connection, steps, frame)
    } else if classes.headers_frame.is_of(object) && steps.has(ConnectionStep::ReceiveHeaders) {
        receive_headers(ruby, connection, frame)
    } else if classes.window_update_frame.is_of(object) && steps.has(ConnectionStep::ReceiveWindowUpdate) {
        receive_window_update(ruby, connection, steps, frame)
    } else {
        Ok(false)
    }
}

fn receive_data(
    ruby: &Ruby,
    connection: VALUE,
    steps: Steps<ConnectionStep>,
    frame: &Frame,
) -> Result<bool, Error> {
    let ids = &names().ids;
    let Some(stream) = lookup(connection, frame.stream_id) else { return Ok(false) };
    let has_called = match Window::of(connection, ids.local_window) {
        Some(window) if steps.has(ConnectionStep::UpdateWindow) => {
            let is_own = steps.has(ConnectionStep::SendWindowUpdate);
            flow::received(ruby, (connection, is_own), (connection, steps), window, frame.len)?
        }
        _ => call(connection, ids.update_local_window, &[frame.object]).map(|_| true)?,
    };
    // It may have been closed meanwhile; then it is no longer idle, and the frame is ignored. And what was known of the connection is old.
    let (stream, known) = match has_called {
        true => (lookup(connection, frame.stream_id), None),
        false => (Some(stream), Some((connection, steps))),
    };
    if let Some(stream) = stream {
        let of_stream = steps::of(ruby, stream)?;
        let is_own = of_stream.has(StreamStep::ReceiveData);
        let sides = if is_own { Sides::of_known(ruby, stream, of_stream, known)? } else { None };
        let received = sides.map(|sides| streams::data_received(ruby, sides, frame)).transpose()?.flatten();
        if received.is_none() {
            call(stream, ids.receive_data, &[frame.object])?;
        }
    }
    Ok(true)
}

fn receive_headers(ruby: &Ruby, connection: VALUE, frame: &Frame) -> Result<bool, Error> {
    let ids = &names().ids;
    let id = frame.stream_id;
    if id == 0 {
        return Ok(false);
    }
    let stream = match lookup(connection, id) {
        Some(stream) => stream,
        None => {
            let streams_max = setting(get(connection, ids.local_settings), ids.maximum_concurrent_streams);
            let is_new = number(get(connection, ids.local_stream_id))
                .is_some_and(|local| (local ^ id) & 1 == 1)
                && number(get(connection, ids.remote_stream_id)).is_some_and(|last| last < id)
                && streams_max.is_some_and(|max| stream_count(connection).is_some_and(|count| count < max));
            if !is_new {
                return Ok(false);
            }
            let stream = call(connection, ids.accept_stream, &[integer(id)])?;
            set(connection, &[(ids.remote_stream_id, integer(id))])?;
            stream
        }
    };
    let is_own = is_stream(stream) && steps::of(ruby, stream)?.has(StreamStep::ReceiveHeaders);
    if !is_own || streams::headers_received(ruby, stream, frame)?.is_none() {
        call(stream, ids.receive_headers, &[frame.object])?;
    }
    Ok(true)
}

fn receive_window_update(
    ruby: &Ruby,
    connection: VALUE,
    steps: Steps<ConnectionStep>,
    frame: &Frame,
) -> Result<bool, Error> {
    let ids = &names().ids;
    let increment: Option<[u8; 4]> = string(frame.payload).and_then(|payload| {
        // SAFETY: copied at once.
        unsafe { payload.as_slice() }.try_into().ok()
    });
    let Some(increment) = increment.map(|bytes| i64::from(u32::from_be_bytes(bytes))).filter(|&by| by != 0)
    else {
        return Ok(false);
    };
    let owner = match frame.stream_id {
        0 => connection,
        id => match lookup(connection, id) {
            Some(stream) if steps::of(ruby, stream)?.has(StreamStep::ReceiveWindowUpdate) => stream,
            _ => return Ok(false),
        },
    };
    match Window::of(owner, ids.remote_window) {
        Some(window) if window.can_expand(increment) => window.expand(increment)?,
        _ => return Ok(false),
    }
    set_told(connection, false)?;
    if owner == connection
        && !(steps.has(ConnectionStep::ConsumeWindow) && every_stream(connection, ignores_window))
    {
        call(connection, ids.consume_window, &[])?;
    }
    Ok(true)
}

/// Whether `test`, which runs no Ruby code, holds for every stream: other threads shall not add one meanwhile.
fn every_stream(connection: VALUE, test: fn(VALUE) -> bool) -> bool {
    struct Look {
        test: fn(VALUE) -> bool,
        holds: bool,
    }
    unsafe extern "C" fn look(_: VALUE, stream: VALUE, look: VALUE) -> c_int {
        // SAFETY: Ruby called, with the variable below.
        let look = unsafe { &mut *(look as *mut Look) };
        look.holds = (look.test)(stream);
        let next = if look.holds { rb_sys::st_retval::ST_CONTINUE } else { rb_sys::st_retval::ST_STOP };
        next as c_int
    }
    let Some(streams) = hash(connection) else { return false };
    let mut found = Look { test, holds: true };
    // SAFETY: a Hash, and a function that raises nothing.
    unsafe { rb_sys::rb_hash_foreach(streams.as_raw(), Some(look), (&raw mut found) as VALUE) };
    found.holds
}

/// Whether a stream is known to do nothing when a window grows.
fn ignores_window(stream: VALUE) -> bool {
    steps::known(stream).is_some_and(|steps| steps.has(StreamStep::WindowUpdated))
}

/// Whether a stream is known to do nothing with more window but to wake its `Output` of async-http, if that waits.
fn only_wakes(stream: VALUE) -> bool {
    let output = get(stream, names().ids.output);
    // SAFETY: a live object.
    let is_usual = |object| class_of(object) == unsafe { rb_sys::rb_obj_class(object) };
    steps::known(stream).is_some_and(|steps| steps.has(StreamStep::OnlyWakes))
        && (output == NIL || is_usual(output))
}

/// Whether an object has the state of a stream: `accept_stream` may return anything.
fn is_stream(object: VALUE) -> bool {
    class_of(object) != NIL && get(object, names().ids.local_window) != NIL
}

fn hash(connection: VALUE) -> Option<RHash> {
    RHash::from_value(value(get(connection, names().ids.streams)))
}

fn stream_count(connection: VALUE) -> Option<i64> {
    hash(connection).map(|hash| hash.len() as i64)
}

/// The stream of an id.
fn lookup(connection: VALUE, id: i64) -> Option<VALUE> {
    let streams = hash(connection)?;
    // SAFETY: a Hash, and a key that needs no method to be compared with others.
    let stream = unsafe { rb_sys::rb_hash_lookup(streams.as_raw(), integer(id)) };
    is_stream(stream).then_some(stream)
}

/// A number of `Settings`, or of the current ones of `PendingSettings`.
#[inline]
pub(super) fn setting(settings: VALUE, name: ID) -> Option<i64> {
    let names = names();
    let settings = if names.classes.pending_settings.is_of(settings) {
        get(settings, names.ids.current)
    } else {
        settings
    };
    if names.classes.settings.is_of(settings) { number(get(settings, name)) } else { None }
}

/// `decode_headers`
pub(super) fn decode_headers(ruby: &Ruby, this: Value, arguments: &[Value]) -> Result<Value, Error> {
    if let [data] = arguments
        && let Some(data) = RString::from_value(*data)
        && let Some(list) = decode(ruby, this.as_raw(), data)?
    {
        return Ok(list.as_value());
    }
    call_super(arguments)
}

/// The fields of a block, unless the gem's method has to decode it.
pub(super) fn decode(ruby: &Ruby, connection: VALUE, data: RString) -> Result<Option<RArray>, Error> {
    let names = names();
    let context = get(connection, names.ids.decoder);
    let limit = setting(get(connection, names.ids.local_settings), names.ids.header_table_size);
    if !steps::is_plain() || !names.context.is_of(context) {
        return Ok(None);
    }
    let (max_limit, is_empty) = (hpack::max_limit(ruby, context)?, data.is_empty());
    if limit != Some(max_limit as i64) {
        return Ok(None);
    }
    match hpack::fields(ruby, context, data) {
        Ok(list) if !list.is_empty() || is_empty => Ok(Some(list)),
        Ok(_) => Ok(None),
        Err(error) => Err(compression_error(ruby, error)),
    }
}

/// The error of the gem for one of `Wireloom::HPACK`.
#[cold]
fn compression_error(ruby: &Ruby, error: Error) -> Error {
    let message = match error.error_type() {
        ErrorType::Error(class, message) if hpack::is_error(ruby, *class) => message.clone(),
        _ => return error,
    };
    made(ruby, Error::new(names().compression_error.get(), message))
}
