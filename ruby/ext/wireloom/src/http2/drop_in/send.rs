//! Sending: what streams and the connection itself put on the wire, and the errors that end a connection.

use std::fmt;

use magnus::rb_sys::AsRawValue;
use magnus::typed_data::Obj;
use magnus::value::ReprValue;
use magnus::{Error, RHash, Ruby, Value};
use rb_sys::VALUE;
use wireloom_http2::Limits;
use wireloom_http2::rate_limit::Charge;

use super::connection::{Connection, Phase, call_own, close, close_when_done, is_plain, put_room, take_room};
use super::frame::{ACK, END_HEADERS, Frame, HEADER_LEN, Header, Kind, NIL, bytes, value};
use super::frame_buffer::FrameBuffer;
use super::framer::generate;
use super::listeners::{emit, listens};
use super::names::{self, classes, sym};
use super::settings::preface_own;
use crate::clock::now;
use crate::guard::exception;
use crate::held::Owner;
use crate::hpack::encode as hpack;
use crate::hpack::error::HeaderError;
use crate::hpack::restart_unless_sent;
use crate::memory::{no_memory, try_extend};
use crate::strings;

/// A call of `send`, dispatched by Ruby when a program may have overridden it.
pub(crate) fn send_own(ruby: &Ruby, this: Obj<Connection>, frame: &mut Frame) -> Result<(), Error> {
    if is_plain(this) {
        return send(ruby, this, frame);
    }
    call_own(this, "send", &[frame.to_hash(ruby)?.as_value()])
}

/// Sends a frame; DATA up to the window.
pub(crate) fn send(ruby: &Ruby, this: Obj<Connection>, frame: &mut Frame) -> Result<(), Error> {
    preface_own(ruby, this)?;
    if listens(this, sym().frame_sent) {
        let hash = frame.to_hash(ruby)?;
        emit(this, sym().frame_sent, &[hash.as_raw()])?;
    }
    match frame.kind {
        Kind::Data => send_data(ruby, this, frame),
        Kind::RstStream => {
            // A stream that broke the protocol is held against the connection.
            if frame.error == sym().protocol_error {
                goaway_own(ruby, this, sym().protocol_error)?;
            }
            encode_own(ruby, this, frame)?;
            stream_reset(ruby, this, frame.stream.unwrap_or(0))
        }
        // Behind the DATA of its stream that waits for the window.
        Kind::Headers | Kind::Continuation if FrameBuffer::holds(&this.buffer, frame.stream) => {
            FrameBuffer::push(ruby, FrameBuffer::of(ruby, Owner::of(this), &this.buffer)?, *frame)
        }
        Kind::Headers | Kind::PushPromise => send_headers(ruby, this, frame),
        _ => encode_own(ruby, this, frame),
    }
}

/// RST_STREAM was sent or received: what the connection has buffered of the stream is dropped (RFC 9113 §5.4.2), and others no longer wait
/// behind it.
pub(crate) fn stream_reset(ruby: &Ruby, this: Obj<Connection>, stream: u32) -> Result<(), Error> {
    if FrameBuffer::is_empty(&this.buffer) {
        return Ok(());
    }
    FrameBuffer::discard(&this.buffer, stream);
    flush(ruby, this)?;
    close_when_done(ruby, this)
}

/// A call of `encode`, dispatched by Ruby when a program may have overridden it.
fn encode_own(ruby: &Ruby, this: Obj<Connection>, frame: &mut Frame) -> Result<(), Error> {
    if is_plain(this) {
        return encode(ruby, this, frame);
    }
    call_own(this, "encode", &[frame.to_hash(ruby)?.as_value()])
}

/// Encodes a frame; the bytes go to the listeners of `:frame`.
pub(crate) fn encode(ruby: &Ruby, this: Obj<Connection>, frame: &mut Frame) -> Result<(), Error> {
    let encoded = generate(ruby, frame, this.remote_max_frame_size.get())?;
    emit(this, sym().frame, &[encoded.as_raw()])
}

fn send_data(ruby: &Ruby, this: Obj<Connection>, frame: &mut Frame) -> Result<(), Error> {
    if FrameBuffer::is_empty(&this.buffer) {
        let len = frame.payload_len() as i64;
        let window = this.remote_window.get();
        if len <= window && window > 0 || len == 0 && frame.ends_stream() {
            return send_data_now(ruby, this, frame);
        }
    }
    FrameBuffer::push(ruby, FrameBuffer::of(ruby, Owner::of(this), &this.buffer)?, *frame)?;
    flush(ruby, this)
}

/// Sends what is buffered, DATA up to the window.
pub(crate) fn flush(ruby: &Ruby, this: Obj<Connection>) -> Result<(), Error> {
    if FrameBuffer::is_empty(&this.buffer) {
        return Ok(());
    }
    let buffer = FrameBuffer::of(ruby, Owner::of(this), &this.buffer)?;
    while let Some(mut frame) = FrameBuffer::take(buffer, this.remote_window.get()) {
        match frame.kind {
            Kind::Data => send_data_now(ruby, this, &mut frame)?,
            Kind::Headers => send_headers(ruby, this, &mut frame)?,
            _ => encode_own(ruby, this, &mut frame)?,
        }
    }
    close_when_done(ruby, this)
}

fn send_data_now(ruby: &Ruby, this: Obj<Connection>, frame: &mut Frame) -> Result<(), Error> {
    let len = frame.payload_len();
    this.rates.with(|rates| rates.data_sent(len, &Limits::DEFAULT));
    // Before the frame leaves: a peer in the same process gives window back at once.
    this.remote_window.set(this.remote_window.get() - len as i64);
    encode_own(ruby, this, frame)
}

/// HEADERS and PUSH_PROMISE, with CONTINUATION when the block is long.
fn send_headers(ruby: &Ruby, this: Obj<Connection>, frame: &mut Frame) -> Result<(), Error> {
    let sent = send_block(ruby, this, frame);
    restart_unless_sent(ruby, &this.compressor, sent)
}

fn send_block(ruby: &Ruby, this: Obj<Connection>, frame: &mut Frame) -> Result<(), Error> {
    let list = match frame.payload_string() {
        Some(_) => Ok(None),
        None => hpack::pairs(ruby, frame.payload()).and_then(|list| hpack::strings(ruby, list)).map(Some),
    };
    // No listener runs until the buffer is given back: one may never return, in a Fiber that is abandoned.
    let (mut room, mut lowered) = (take_room(&this.room_out), Vec::new());
    room.resize(HEADER_LEN, 0);
    let encoded = list.and_then(|list| match (list, frame.payload_string()) {
        (Some(list), _) => {
            let (owner, policy) = (Owner::of(this), this.policy.get());
            this.compressor
                .allocating(ruby, |ruby, table| {
                    hpack::encode(ruby, owner, table, policy, list, &mut room, &mut lowered)
                })?
                .map_err(|error| header_error(ruby, error))
        }
        (None, block) => {
            // SAFETY: no Ruby code runs while the slice is copied.
            let block = block.map_or(&[][..], |block| unsafe { bytes(block) });
            try_extend(&mut room, block).map_err(|_| no_memory(ruby))
        }
    });
    if let Err(error) = encoded {
        put_room(&this.room_out, room);
        // The end of a thread and `throw` end no connection.
        if !error.is_kind_of(ruby.exception_standard_error()) {
            return Err(error);
        }
        return connection_error(ruby, this, sym().compression_error, None, Some(error));
    }
    let len_max = this.remote_max_frame_size.get();
    let block_len = room.len() - HEADER_LEN;
    let plain = is_plain(this)
        && frame.kind == Kind::Headers
        && frame.hash == NIL
        && frame.padding.is_none()
        && frame.weight.is_none()
        && frame.dependency.is_none()
        && frame.exclusive.is_none();
    if plain && block_len <= len_max {
        let stream = frame.stream.unwrap_or(0);
        room[..HEADER_LEN].copy_from_slice(&Header::encode(Kind::Headers, frame.flags, block_len, stream));
        let encoded = strings::protected(ruby, |ruby| strings::binary(ruby, &room));
        put_room(&this.room_out, room);
        return emit(this, sym().frame, &[encoded?.as_raw()]);
    }
    let block = strings::protected(ruby, |ruby| strings::binary(ruby, &room[HEADER_LEN..]));
    put_room(&this.room_out, room);
    let block = block?;
    let part = |from: usize, len: usize| match len == block_len {
        true => Ok(block),
        false => {
            // SAFETY: a String that no program has, because it goes out in parts.
            let bytes = unsafe { bytes(block) };
            strings::protected(ruby, |ruby| strings::binary(ruby, &bytes[from..from + len]))
        }
    };
    // The fields of a PUSH_PROMISE or a priority before the block count too.
    let overhead = match frame.kind {
        Kind::PushPromise => 4,
        _ if frame.weight.is_some() => 5,
        _ => 0,
    };
    let first_len = block_len.min(len_max.saturating_sub(overhead));
    let whole = first_len == block_len;
    let ends = frame.has(END_HEADERS);
    if !whole {
        frame.flags &= !END_HEADERS;
    }
    frame.payload = part(0, first_len)?.as_raw();
    match RHash::from_value(value(frame.hash)) {
        Some(hash) if hash.is_frozen() => frame.hash = NIL,
        Some(hash) => {
            hash.aset(value(sym().payload), value(frame.payload))?;
            hash.aset(value(sym().flags), frame.flags)?;
        }
        None => {}
    }
    encode_own(ruby, this, frame)?;
    let mut at = first_len;
    while at < block_len {
        let len = len_max.min(block_len - at);
        let mut more = Frame::new(Kind::Continuation, frame.stream.unwrap_or(0));
        more.payload = part(at, len)?.as_raw();
        at += len;
        more.flags = if at == block_len && (ends || !whole) { END_HEADERS } else { 0 };
        encode_own(ruby, this, &mut more)?;
    }
    strings::keep(block);
    Ok(())
}

pub(crate) fn header_error(ruby: &Ruby, error: HeaderError) -> Error {
    match error {
        HeaderError::Compression(message) => names::error(ruby, sym().compression_error, message),
        HeaderError::Field(message) => names::error(ruby, sym().protocol_error, Some(message)),
        HeaderError::Argument(message) => Error::new(ruby.exception_arg_error(), message),
        HeaderError::Type(message) => Error::new(ruby.exception_type_error(), message),
        HeaderError::NoMemory => no_memory(ruby),
    }
}

/// PING; its answer is the event `:ack`.
pub(crate) fn ping(ruby: &Ruby, this: Obj<Connection>, payload: Value, flags: u8) -> Result<(), Error> {
    let mut frame = Frame::new(Kind::Ping, 0);
    frame.flags = flags;
    frame.payload = payload.as_raw();
    send_own(ruby, this, &mut frame)
}

/// SETTINGS that acknowledge the peer's.
pub(crate) fn acknowledge_settings(ruby: &Ruby, this: Obj<Connection>) -> Result<(), Error> {
    let mut frame = Frame::new(Kind::Settings, 0);
    frame.flags = ACK;
    frame.payload = ruby.ary_new().as_raw();
    send_own(ruby, this, &mut frame)
}

/// Gives the peer more window.
pub(crate) fn window_update(ruby: &Ruby, this: Obj<Connection>, increment: i64) -> Result<(), Error> {
    this.local_window.set(this.local_window.get() + increment);
    let mut frame = Frame::new(Kind::WindowUpdate, 0);
    frame.increment = Some(increment);
    send_own(ruby, this, &mut frame)
}

/// GOAWAY, after which the connection is closed.
pub(crate) fn goaway(ruby: &Ruby, this: Obj<Connection>, error: VALUE, payload: VALUE) -> Result<(), Error> {
    let mut frame = Frame::new(Kind::Goaway, 0);
    frame.last_stream = Some(this.last_stream_id.get());
    frame.error = error;
    frame.payload = payload;
    send_own(ruby, this, &mut frame)?;
    // A connection that an error has closed stays closed.
    if error != sym().no_error || matches!(this.phase.get(), Phase::WaitingMagic | Phase::Closed) {
        return close(ruby, this);
    }
    this.phase.set(Phase::Leaving);
    close_when_done(ruby, this)
}

fn goaway_own(ruby: &Ruby, this: Obj<Connection>, error: VALUE) -> Result<(), Error> {
    if is_plain(this) { goaway(ruby, this, error, NIL) } else { call_own(this, "goaway", &[value(error)]) }
}

/// Ends the connection and gives the error that says why. The message is made once GOAWAY was sent: a listener may never return, in a
/// Fiber that is abandoned.
#[cold]
pub(crate) fn connection_error<T>(
    ruby: &Ruby,
    this: Obj<Connection>,
    kind: VALUE,
    message: Option<&dyn fmt::Display>,
    cause: Option<Error>,
) -> Result<T, Error> {
    let cause = cause.map(|cause| exception(ruby, cause)).transpose()?;
    if !this.is_over() {
        goaway_own(ruby, this, kind)?;
    }
    this.phase.set(Phase::Closed);
    let message = message.map(|message| message.to_string());
    let Some(cause) = cause else {
        return Err(names::error(ruby, kind, Some(message.map_or("protocol error".into(), Into::into))));
    };
    // In Ruby, which knows how an exception gets its cause.
    let message: Value = match message {
        Some(message) => ruby.str_new(&message).as_value(),
        None => cause.funcall_public("message", ())?,
    };
    let types = classes().error_module.get();
    let error: Value = types.funcall("caused", (value(kind), message, cause))?;
    Err(magnus::Exception::from_value(error).map_or_else(|| names::error(ruby, kind, None), Error::from))
}

/// Counts against the core's rate limits.
pub(crate) fn charge(ruby: &Ruby, this: Obj<Connection>, charge: Charge) -> Result<(), Error> {
    let counted = this.rates.with(|rates| rates.charge(charge, &Limits::DEFAULT, now()));
    match counted {
        Ok(()) => Ok(()),
        Err(exceeded) => connection_error(ruby, this, sym().enhance_your_calm, Some(&exceeded), None),
    }
}
