//! `Stream`: states (RFC 9113 §5.1), HEADERS and DATA in both directions.
//!
//! The functions `*_received` return `None`, with nothing done, where the gem's method has to do it.

use magnus::rb_sys::AsRawValue;
use magnus::value::ReprValue;
use magnus::{Error, RArray, RHash, RString, Ruby, Value};
use rb_sys::VALUE;

use super::connection::{decode, setting};
use super::flow::{self, Window};
use super::frames::{self, END_HEADERS, END_STREAM, Frame, HEADER_LEN, PADDED, PRIORITY};
use super::io::{self, Io};
use super::names::names;
use super::objects::{
    NIL, call, call_super, get, integer, keywords_given, make_unprotected, number, set, string, value,
};
use super::steps::{self, ConnectionStep, PartStep, Steps, StreamStep};
use crate::guard::protect;
use crate::{hpack, strings};

/// `initialize(connection, id, state = :idle)`
pub(super) fn initialize(ruby: &Ruby, this: Value, arguments: &[Value]) -> Result<Value, Error> {
    let (names, idle) = (names(), names().symbols.idle);
    let (connection, id, state) = match *arguments {
        [connection, id] => (connection.as_raw(), id.as_raw(), idle),
        [connection, id, state] => (connection.as_raw(), id.as_raw(), state.as_raw()),
        _ => return call_super(arguments),
    };
    if !steps::is_plain() || !steps::of(ruby, connection)?.has(ConnectionStep::Settings) {
        return call_super(arguments);
    }
    let ids = &names.ids;
    let capacity = |settings| setting(get(connection, settings), ids.initial_window_size);
    let (Some(local), Some(remote)) = (capacity(ids.local_settings), capacity(ids.remote_settings)) else {
        return call_super(arguments);
    };
    let (stream, class) = (this.as_raw(), names.classes.window.get().as_raw());
    let (local, remote) = (Window::variables(local), Window::variables(remote));
    // SAFETY: live objects, and a closure that has nothing to drop.
    protect(|| unsafe {
        let variables = [
            (ids.connection, connection),
            (ids.id, id),
            (ids.state, state),
            (ids.local_window, make_unprotected(class, &local)),
            (ids.remote_window, make_unprotected(class, &remote)),
            (ids.priority, NIL),
        ];
        for (name, value) in variables {
            rb_sys::rb_ivar_set(stream, name, value);
        }
        NIL
    })
    .map(value)
}

/// The state of a stream and its connection, and which of their steps are the gem's own.
pub(super) struct Sides {
    stream: VALUE,
    connection: VALUE,
    state: VALUE,
    of_stream: Steps<StreamStep>,
    of_connection: Steps<ConnectionStep>,
}

impl Sides {
    /// `None` when a class of the gem was changed.
    #[inline]
    fn of(ruby: &Ruby, stream: VALUE) -> Result<Option<Self>, Error> {
        Self::of_known(ruby, stream, steps::of(ruby, stream)?, None)
    }

    /// The same with the steps of the stream, and maybe those of a connection.
    #[inline]
    pub(super) fn of_known(
        ruby: &Ruby,
        stream: VALUE,
        of_stream: Steps<StreamStep>,
        known: Option<(VALUE, Steps<ConnectionStep>)>,
    ) -> Result<Option<Self>, Error> {
        let connection = get(stream, names().ids.connection);
        let of_connection = match known {
            Some((known, steps)) if known == connection => steps,
            _ => steps::of(ruby, connection)?,
        };
        if !steps::is_plain() {
            return Ok(None);
        }
        let state = get(stream, names().ids.state);
        Ok(Some(Self { stream, connection, state, of_stream, of_connection }))
    }

    fn set_state(&self, state: VALUE) -> Result<VALUE, Error> {
        set(self.stream, &[(names().ids.state, state)])?;
        Ok(state)
    }

    /// `open!`
    fn open(&self) -> Result<VALUE, Error> {
        self.set_state(names().symbols.open)?;
        Ok(self.stream)
    }

    /// `close!`
    fn close(&self) -> Result<VALUE, Error> {
        let ids = &names().ids;
        if !self.of_stream.has(StreamStep::Close) {
            return call(self.stream, ids.close, &[]);
        }
        self.set_state(names().symbols.closed)?;
        let id = get(self.stream, ids.id);
        match RHash::from_value(value(get(self.connection, ids.streams))) {
            Some(streams) if self.of_connection.has(ConnectionStep::Delete) && !streams.is_frozen() => {
                streams.delete::<_, Value>(value(id))?;
                if get(self.connection, ids.goaway_stream_id) != NIL {
                    call(self.connection, ids.close_if_drained, &[])?;
                }
            }
            _ => drop(call(self.connection, ids.delete, &[id])?),
        }
        if !self.of_stream.has(StreamStep::Closed) {
            call(self.stream, ids.closed, &[NIL])?;
        }
        Ok(self.stream)
    }
}

/// The flags of an argument.
fn flags(argument: Option<&Value>) -> Option<i64> {
    argument.map_or(Some(0), |flags| number(flags.as_raw())).filter(|flags| (0..256).contains(flags))
}

/// `send_headers(headers, flags = 0)`
pub(super) fn send_headers(ruby: &Ruby, this: Value, arguments: &[Value]) -> Result<Value, Error> {
    let symbols = &names().symbols;
    let (Some(sides), false) = (Sides::of(ruby, this.as_raw())?, keywords_given()) else {
        return call_super(arguments);
    };
    let (Some(headers), Some(flags), true) =
        (arguments.first(), flags(arguments.get(1)), arguments.len() <= 2)
    else {
        return call_super(arguments);
    };
    let (state, is_end) = (sides.state, flags & END_STREAM != 0);
    let is_sendable = state == symbols.idle || state == symbols.open || state == symbols.half_closed_remote;
    let is_usual = is_sendable
        && sides.of_stream.has(StreamStep::WriteHeaders)
        && sides.of_connection.has(ConnectionStep::Encode);
    let list = if is_usual { headers_array(ruby, *headers)? } else { None };
    let Some(list) = list else { return call_super(arguments) };
    let is_same = get(sides.stream, names().ids.state) == state && steps::is_plain();
    if !is_same || !write_headers(ruby, &sides, list, flags)? {
        return match arguments {
            [_, flags] => call_super(&[list.as_value(), *flags]),
            _ => call_super(&[list.as_value()]),
        };
    }
    let result = if state == symbols.half_closed_remote {
        if is_end { sides.close()? } else { NIL }
    } else if is_end {
        sides.set_state(symbols.half_closed_local)?
    } else if state == symbols.idle {
        sides.open()?
    } else {
        NIL
    };
    Ok(value(result))
}

/// Headers as an Array of pairs: one already, or what the `Merged` of protocol-http yields. That may run code of the application.
fn headers_array(ruby: &Ruby, headers: Value) -> Result<Option<RArray>, Error> {
    if let Some(list) = RArray::from_value(headers) {
        return Ok(Some(list));
    }
    let all = get(headers.as_raw(), names().ids.all);
    let (true, Some(all)) =
        (steps::of(ruby, headers.as_raw())?.has(PartStep::Merged), RArray::from_value(value(all)))
    else {
        return Ok(None);
    };
    let made = ruby.ary_new();
    for at in 0..all.len() {
        let list: Value = all.entry(at as isize)?;
        let list = match RArray::from_value(list) {
            Some(list) => list,
            None => list.funcall("to_a", ())?,
        };
        for at in 0..list.len() {
            let pair: Value = list.entry(at as isize)?;
            match RArray::from_value(pair) {
                Some(pair) => made.push(merged(ruby, pair)?)?,
                None => return Ok(None),
            }
        }
    }
    Ok(Some(made))
}

/// `[name.to_s.downcase, value.to_s]`; the pair itself where that is the same.
fn merged(ruby: &Ruby, pair: RArray) -> Result<RArray, Error> {
    let (name, content): (Value, Value) = (pair.entry(0)?, pair.entry(1)?);
    let is_lower = RString::from_value(name).is_some_and(|name| {
        // SAFETY: no Ruby code runs while the slice is in use.
        unsafe { name.as_slice() }.iter().all(|byte| byte.is_ascii() && !byte.is_ascii_uppercase())
    });
    let is_string = RString::from_value(content).is_some();
    if is_lower && is_string && pair.len() == 2 {
        return Ok(pair);
    }
    let name: Value =
        if is_lower { name } else { name.funcall::<_, _, Value>("to_s", ())?.funcall("downcase", ())? };
    let content: Value = if is_string { content } else { content.funcall("to_s", ())? };
    Ok(ruby.ary_new_from_values(&[name, content]))
}

/// Writes HEADERS. Returns false, with nothing done, where the gem's method has to.
fn write_headers(ruby: &Ruby, sides: &Sides, headers: RArray, flags: i64) -> Result<bool, Error> {
    let (names, connection) = (names(), sides.connection);
    let ids = &names.ids;
    let context = get(connection, ids.encoder);
    let remote = get(connection, ids.remote_settings);
    let is_usual = names.context.is_of(context);
    let id = number(get(sides.stream, ids.id)).filter(|id| frames::STREAM_IDS.contains(id));
    let holder = (flags & END_STREAM == 0).then_some(sides.stream);
    let (Some(io), Some(id), true) = (Io::of(ruby, connection, sides.of_connection, holder)?, id, is_usual)
    else {
        return Ok(false);
    };
    let (Some(table_size), Some(len_max)) =
        (setting(remote, ids.header_table_size), setting(remote, ids.maximum_frame_size))
    else {
        return Ok(false);
    };
    if hpack::limit(ruby, context)? as i64 != table_size {
        return Ok(false);
    }
    let frame = hpack::block(ruby, context, headers, HEADER_LEN)?;
    let written = write_block(ruby, connection, io, frame, (id, flags, len_max));
    hpack::block_sent(ruby, context, written)?;
    Ok(true)
}

/// Writes HEADERS whose block is in `frame`, behind the room of a header.
fn write_block(
    ruby: &Ruby,
    connection: VALUE,
    io: Io,
    frame: RString,
    (id, flags, len_max): (i64, i64, i64),
) -> Result<(), Error> {
    let names = names();
    let len = frame.len() - HEADER_LEN;
    if len as i64 > len_max {
        let block = strings::protected(ruby, |ruby| {
            // SAFETY: the frame is kept below, and nothing changes it meanwhile.
            let bytes = unsafe { strings::bytes(frame.as_raw()) };
            strings::binary(ruby, &bytes[HEADER_LEN..])
        })?;
        strings::keep(frame);
        let arguments = [connection, integer(id), integer(flags), block.as_raw()];
        return call(names.module.get().as_raw(), names.ids.write_block, &arguments).map(drop);
    }
    let head = frames::headers_head(len, flags & !PADDED | END_HEADERS, id as u32);
    // SAFETY: a String that was made just now, to which no other code has a reference.
    let place = unsafe { strings::contents(frame) };
    place[..HEADER_LEN].copy_from_slice(&head);
    io.write_whole(ruby, frame)
}

/// `send_data(data, flags = 0, maximum_size: nil)`
pub(super) fn send_data(ruby: &Ruby, this: Value, arguments: &[Value]) -> Result<Value, Error> {
    let symbols = &names().symbols;
    let Some(sides) = Sides::of(ruby, this.as_raw())? else { return call_super(arguments) };
    let (positional, len_max) = match split_keywords(ruby, arguments) {
        Some(split) => split,
        None => return call_super(arguments),
    };
    let (Some(data), Some(flags), true) =
        (positional.first(), flags(positional.get(1)), positional.len() <= 2)
    else {
        return call_super(arguments);
    };
    let state = sides.state;
    let is_sendable = state == symbols.open || state == symbols.half_closed_remote;
    let payload = if data.is_nil() { None } else { RString::from_value(*data) };
    if !is_sendable || !data.is_nil() && payload.is_none() {
        return call_super(arguments);
    }
    let is_end = data.is_nil() || flags & END_STREAM != 0;
    let flags = if data.is_nil() { flags | END_STREAM } else { flags & !PADDED };
    if flags & PADDED != 0
        || payload.is_some_and(|payload| payload.len() as i64 > len_max)
        || !write_data(ruby, &sides, payload, flags)?
    {
        return call_super(arguments);
    }
    let result = if state == symbols.half_closed_remote {
        if is_end { sides.close()? } else { NIL }
    } else if is_end {
        sides.set_state(symbols.half_closed_local)?
    } else {
        NIL
    };
    Ok(value(result))
}

/// `available_frame_size(maximum_frame_size = self.maximum_frame_size)`: what one frame of DATA may carry now, in bytes.
pub(super) fn available_frame_size(ruby: &Ruby, this: Value, arguments: &[Value]) -> Result<Value, Error> {
    let (ids, this) = (&names().ids, this.as_raw());
    let connection = get(this, ids.connection);
    let is_usual = arguments.is_empty()
        && steps::is_plain()
        && steps::of(ruby, this)?.has(StreamStep::AvailableSize)
        && steps::of(ruby, connection)?.has(ConnectionStep::AvailableSize);
    let len_max = setting(get(connection, ids.remote_settings), ids.maximum_frame_size);
    let available =
        (flow::available(this, ids.remote_window), flow::available(connection, ids.remote_window));
    let size = match (len_max, available) {
        (Some(len_max), (Some(own), Some(shared))) if is_usual => own.min(shared).min(len_max),
        _ => 0,
    };
    if size > 0 {
        return Ok(value(integer(size)));
    }
    // The caller may wait for a window.
    io::release_held(connection, this)?;
    call_super(arguments)
}

/// Writes DATA within both windows. Returns false, with nothing done, where the gem's method has to.
fn write_data(ruby: &Ruby, sides: &Sides, payload: Option<RString>, flags: i64) -> Result<bool, Error> {
    let (ids, connection) = (&names().ids, sides.connection);
    let len = payload.map_or(0, |payload| payload.len());
    let holder = (flags & END_STREAM == 0).then_some(sides.stream);
    let io = if sides.of_stream.has(StreamStep::WriteFrame) {
        Io::of(ruby, connection, sides.of_connection, holder)?
    } else {
        None
    };
    let is_usual = sides.of_stream.has(StreamStep::WriteData)
        && sides.of_connection.has(ConnectionStep::ConsumeRemoteWindow)
        && (io.is_some() || get(connection, ids.framer) != NIL)
        && len <= 0xff_ffff;
    let windows = (Window::of(sides.stream, ids.remote_window), Window::of(connection, ids.remote_window));
    let (true, (Some(own), Some(shared)), Some(id)) =
        (is_usual, windows, number(get(sides.stream, ids.id)).filter(|id| frames::STREAM_IDS.contains(id)))
    else {
        return Ok(false);
    };
    let amount = len as i64;
    if amount > 0 || flags & END_STREAM == 0 {
        if amount > own.available || amount > shared.available {
            return Ok(false);
        }
        own.consume(amount)?;
        shared.consume(amount)?;
    }
    let Some(io) = io else {
        let payload = payload.map_or(NIL, |payload| payload.as_raw());
        let frame = frames::data(flags, id as u32, len as u32, payload)?;
        call(sides.stream, ids.write_frame, &[frame.as_raw()])?;
        return Ok(true);
    };
    io.write(ruby, &frames::data_head(len, flags, id as u32), payload)?;
    Ok(true)
}

/// The positional arguments, and `maximum_size`; `None` when there are other keywords.
fn split_keywords<'a>(_: &Ruby, arguments: &'a [Value]) -> Option<(&'a [Value], i64)> {
    if !keywords_given() {
        return Some((arguments, i64::MAX));
    }
    let (last, positional) = arguments.split_last()?;
    let keywords = RHash::from_value(*last)?;
    let size: Option<Value> = keywords.get(value(names().symbols.maximum_size));
    match size {
        Some(size) if keywords.len() == 1 => Some((positional, number(size.as_raw())?)),
        None if keywords.is_empty() => Some((positional, i64::MAX)),
        _ => None,
    }
}

/// The frame of an argument, if it is an object of that class of the gem.
fn frame(arguments: &[Value], class: super::names::Class) -> Option<Frame> {
    match arguments {
        [frame] if class.is_of(frame.as_raw()) => Frame::of(frame.as_raw()),
        _ => None,
    }
}

/// `receive_headers(frame)`
pub(super) fn receive_headers(ruby: &Ruby, this: Value, arguments: &[Value]) -> Result<Value, Error> {
    match frame(arguments, names().classes.headers_frame) {
        Some(frame) => match headers_received(ruby, this.as_raw(), &frame)? {
            Some(result) => Ok(value(result)),
            None => call_super(arguments),
        },
        None => call_super(arguments),
    }
}

/// HEADERS for a stream that is idle or open in this direction.
pub(super) fn headers_received(ruby: &Ruby, stream: VALUE, frame: &Frame) -> Result<Option<VALUE>, Error> {
    let symbols = &names().symbols;
    let Some(sides) = Sides::of(ruby, stream)? else { return Ok(None) };
    let (state, is_end) = (sides.state, frame.flags & END_STREAM != 0);
    let process = |sides: &Sides| {
        if sides.of_stream.has(StreamStep::ProcessHeaders)
            && let Some(list) = fields(ruby, sides.connection, sides.of_connection, frame)?
        {
            return Ok(list.as_raw());
        }
        call(sides.stream, names().ids.process_headers, &[frame.object])
    };
    if state == symbols.idle {
        if !sides.of_stream.has(StreamStep::ReceiveHeaders) {
            return Ok(None);
        }
        sides.set_state(if is_end { symbols.half_closed_remote } else { symbols.open })?;
        return process(&sides).map(Some);
    }
    if state != symbols.open && state != symbols.half_closed_local {
        return Ok(None);
    }
    process(&sides)?;
    Ok(Some(match is_end {
        false => NIL,
        true if state == symbols.open => sides.set_state(symbols.half_closed_remote)?,
        true => sides.close()?,
    }))
}

/// `process_headers(frame)`
pub(super) fn process_headers(ruby: &Ruby, this: Value, arguments: &[Value]) -> Result<Value, Error> {
    let connection = get(this.as_raw(), names().ids.connection);
    match frame(arguments, names().classes.headers_frame) {
        Some(frame) if steps::is_plain() => {
            match fields(ruby, connection, steps::of(ruby, connection)?, &frame)? {
                Some(list) => Ok(list.as_value()),
                None => call_super(arguments),
            }
        }
        _ => call_super(arguments),
    }
}

/// The fields of HEADERS, unless the gem's methods have to decode them.
fn fields(
    ruby: &Ruby,
    connection: VALUE,
    steps: Steps<ConnectionStep>,
    frame: &Frame,
) -> Result<Option<RArray>, Error> {
    let is_bare =
        frame.flags & (PADDED | PRIORITY) == 0 && get(frame.object, names().ids.continuation) == NIL;
    match string(frame.payload) {
        Some(block) if is_bare && steps.has(ConnectionStep::Decode) => decode(ruby, connection, block),
        _ => Ok(None),
    }
}

/// `receive_data(frame)`
pub(super) fn receive_data(ruby: &Ruby, this: Value, arguments: &[Value]) -> Result<Value, Error> {
    match frame(arguments, names().classes.data_frame) {
        Some(frame) => {
            let sides = Sides::of(ruby, this.as_raw())?;
            match sides.map(|sides| data_received(ruby, sides, &frame)).transpose()?.flatten() {
                Some(result) => Ok(value(result)),
                None => call_super(arguments),
            }
        }
        None => call_super(arguments),
    }
}

/// DATA for a stream that is open in this direction.
pub(super) fn data_received(ruby: &Ruby, sides: Sides, frame: &Frame) -> Result<Option<VALUE>, Error> {
    let (ids, symbols, stream) = (&names().ids, &names().symbols, sides.stream);
    let (state, is_end) = (sides.state, frame.flags & END_STREAM != 0);
    if state != symbols.open && state != symbols.half_closed_local {
        return Ok(None);
    }
    match Window::of(stream, ids.local_window) {
        Some(window) if sides.of_stream.has(StreamStep::UpdateWindow) => {
            let is_own = sides.of_stream.has(StreamStep::SendWindowUpdate);
            flow::received(
                ruby,
                (stream, is_own),
                (sides.connection, sides.of_connection),
                window,
                frame.len,
            )?;
        }
        _ => drop(call(stream, ids.update_local_window, &[frame.object])?),
    }
    if state == symbols.open && is_end {
        sides.set_state(symbols.half_closed_remote)?;
    }
    let data = match string(frame.payload) {
        Some(data) if frame.flags & PADDED == 0 && sides.of_stream.has(StreamStep::ProcessData) => {
            data.as_raw()
        }
        _ => call(stream, ids.process_data, &[frame.object])?,
    };
    Ok(Some(match state == symbols.open {
        true => data,
        false if is_end => sides.close()?,
        false => NIL,
    }))
}

/// `process_data(frame)`
pub(super) fn process_data(_: &Ruby, _: Value, arguments: &[Value]) -> Result<Value, Error> {
    let ids = &names().ids;
    match arguments {
        [frame]
            if names().classes.data_frame.is_of(frame.as_raw())
                && steps::is_plain()
                && number(get(frame.as_raw(), ids.flags)).is_some_and(|flags| flags & PADDED == 0) =>
        {
            Ok(value(get(frame.as_raw(), ids.payload)))
        }
        _ => call_super(arguments),
    }
}
