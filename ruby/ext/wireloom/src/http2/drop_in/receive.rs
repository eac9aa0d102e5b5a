//! Receiving: bytes become frames, frames go to their streams (RFC 9113 §3.4, §4, §5.1, §6). Input behind a frame whose listener
//! raised stays in the buffer for the next call.

use std::collections::TryReserveError;

use magnus::rb_sys::AsRawValue;
use magnus::typed_data::Obj;
use magnus::value::ReprValue;
use magnus::{Error, RArray, RString, Ruby, TryConvert, Value};
use rb_sys::VALUE;
use wireloom_http2::Limits;
use wireloom_http2::rate_limit::Charge;

use super::MAGIC;
use super::connection::{
    self, Connection, Opening, Pending, Phase, Upgrade, activate_stream, each_stream, find_stream, put_room,
    remember_reset, take_room,
};
use super::frame::{ACK, END_HEADERS, Frame, HEADER_LEN, Header, Kind, NIL, Stored, bytes, converted, value};
use super::framer::{check_len, parse, settings_pairs};
use super::listeners::{emit, listens};
use super::names::{is_ours, sym};
use super::send::{acknowledge_settings, charge, connection_error, send_own};
use super::stream::{self, State, Stream, WINDOW_MAX};
use super::{names, pseudo, send, settings};
use crate::held::Owner;
use crate::hpack::decode::{Rules, decode};
use crate::hpack::table::Table;
use crate::memory::{no_memory, try_extend};
use crate::{scratch, strings};

/// Frames on a connection that was closed are ignored for this long, in seconds.
const CLOSED_GRACE_S: f64 = 15.0;

/// Streams that PRIORITY alone made, at most; more are not worth the memory.
const IDLE_STREAMS_MAX: u32 = 100;

/// An idle connection keeps a buffer of this length, in bytes, or of four times the input that it has not used.
const KEPT_LEN: usize = 4 << 10;

/// Input that was not used yet.
#[derive(Clone, Default)]
pub(crate) struct Input {
    bytes: Vec<u8>,
    /// `0 <= at <= bytes.len()`
    at: usize,
    /// There was no memory for bytes of the peer's: those behind them are no frames.
    is_lost: bool,
}

impl Input {
    /// Returns how much memory is in use.
    fn append(&mut self, more: &[u8]) -> Result<usize, TryReserveError> {
        if self.at == self.bytes.len() {
            self.bytes.clear();
            self.at = 0;
        } else if self.at > 1 << 16 {
            self.bytes.drain(..self.at);
            self.at = 0;
        }
        if self.bytes.capacity() == 0 && more.len() > KEPT_LEN {
            self.bytes = scratch::take();
        }
        try_extend(&mut self.bytes, more).inspect_err(|_| self.is_lost = true)?;
        Ok(self.heap_size())
    }

    /// Gives back memory that is not needed until more arrives; returns how much is in use.
    fn settle(&mut self) -> usize {
        let rest = self.rest().len();
        let mut kept = Vec::new();
        if self.bytes.capacity() > KEPT_LEN.max(4 * rest) && try_extend(&mut kept, self.rest()).is_ok() {
            scratch::give(std::mem::replace(&mut self.bytes, kept));
            self.at = 0;
        }
        self.heap_size()
    }

    fn rest(&self) -> &[u8] {
        &self.bytes[self.at..]
    }

    fn consume(&mut self, len: usize) {
        self.at += len;
    }

    /// The last `len` bytes that were consumed since input was appended.
    fn used(&self, len: usize) -> &[u8] {
        &self.bytes[self.at - len..self.at]
    }

    pub(crate) fn heap_size(&self) -> usize {
        self.bytes.capacity()
    }
}

/// `receive`: takes bytes in and acts on every frame that is whole.
pub(crate) fn receive(ruby: &Ruby, this: Obj<Connection>, data: Option<RString>) -> Result<(), Error> {
    settings::preface_own(ruby, this)?;
    let Some(data) = data else {
        // httpx passes on what the empty body of an upgrade reads as.
        if this.upgrade.get() != Upgrade::None {
            return Ok(());
        }
        return Err(Error::new(ruby.exception_type_error(), "no implicit conversion of nil into String"));
    };
    // The preface is no frame, and the connection is over.
    if this.preface_missing.get() {
        return Ok(());
    }
    if this.input.with(|input| input.is_lost) {
        let message = "there was no memory for the input before";
        return connection_error(ruby, this, sym().internal_error, Some(&message), None);
    }
    // SAFETY: copied before any Ruby code runs.
    let bytes = unsafe { bytes(data) };
    let buffered = this.input.with(|input| input.append(bytes));
    strings::keep(data);
    this.memory.set(buffered.map_err(|_| no_memory(ruby))?);
    let done = frames(ruby, this);
    this.memory.set(this.input.with(Input::settle));
    match done {
        // Any exception of a listener ends the connection.
        Err(error) if !is_ours(&error) && error.is_kind_of(ruby.exception_standard_error()) => {
            connection_error(ruby, this, sym().protocol_error, None, Some(error))
        }
        done => done,
    }
}

fn frames(ruby: &Ruby, this: Obj<Connection>) -> Result<(), Error> {
    if this.phase.get() == Phase::WaitingMagic && !magic(ruby, this)? {
        return Ok(());
    }
    while let Some(header) = next(ruby, this)? {
        one(ruby, this, header)?;
    }
    Ok(())
}

/// Whether the 24 bytes have arrived that a client begins with (RFC 9113 §3.4).
fn magic(ruby: &Ruby, this: Obj<Connection>) -> Result<bool, Error> {
    let (whole, right) = this.input.with(|input| {
        let len = input.rest().len().min(MAGIC.len());
        let right = input.rest()[..len] == MAGIC[..len];
        if len == MAGIC.len() {
            input.consume(len);
        }
        (len == MAGIC.len(), right)
    });
    if !right {
        return Err(names::error(ruby, sym().handshake_error, None));
    }
    if whole {
        settings::magic_received(ruby, this)?;
    }
    Ok(whole)
}

/// The header of the next frame, once the frame is whole.
fn next(ruby: &Ruby, this: Obj<Connection>) -> Result<Option<Header>, Error> {
    let (header, buffered) = this.input.with(|input| (Header::decode(input.rest()), input.rest().len()));
    let Some(header) = header else { return Ok(None) };
    check_len(ruby, &header, this.local_max_frame_size.get())?;
    Ok((buffered >= HEADER_LEN + header.len).then_some(header))
}

fn one(ruby: &Ruby, this: Obj<Connection>, header: Header) -> Result<(), Error> {
    let watched = listens(this, sym().frame_received);
    let has_block = matches!(header.kind, Some(Kind::Headers | Kind::PushPromise | Kind::Continuation));
    if has_block {
        // Without memory for the block the frame stays in the input.
        let reserved = this.room_in.with(|room| room.try_reserve(header.len)).and_then(|()| {
            this.pending
                .with(|pending| pending.as_mut().map_or(Ok(()), |begun| begun.block.try_reserve(header.len)))
        });
        reserved.map_err(|_| no_memory(ruby))?;
    }
    let parsed = this.input.allocating(ruby, |ruby, input| {
        let parsed = parse(ruby, &header, &input.rest()[HEADER_LEN..HEADER_LEN + header.len], watched);
        input.consume(HEADER_LEN + header.len);
        parsed
    })?;
    let parsed = parsed.map_err(|invalid| invalid.raised(ruby))?;
    let (mut frame, range) = match parsed {
        Some(parsed) => parsed,
        None => return unknown(ruby, this),
    };
    // RFC 9113 §3.4: a server begins with SETTINGS.
    if this.is_client.get() && !this.received_frame.get() {
        if frame.kind != Kind::Settings {
            return protocol_error(ruby, this, "didn't receive settings");
        }
        this.received_frame.set(true);
    }
    let mut block = Vec::new();
    if watched {
        let seen = frame.payload_string().filter(|_| has_block);
        // A listener may raise, or never return, in a Fiber that is abandoned: then the block is lost.
        let was_out_of_step = has_block.then(|| this.decompressor.with(Table::begin_block));
        // Listeners may change the String. The copy is made behind them.
        let seen =
            seen.map(|seen| strings::protected(ruby, |ruby| strings::frozen(ruby, seen))).transpose()?;
        let hash = frame.to_hash(ruby)?;
        emit(this, sym().frame_received, &[hash.as_raw()])?;
        if let Some(was_out_of_step) = was_out_of_step {
            this.decompressor.with(|table| table.end_block(was_out_of_step));
        }
        if let Some(seen) = seen {
            block = take_room(&this.room_in);
            // SAFETY: a frozen String, which is kept.
            block.extend_from_slice(unsafe { bytes(seen) });
            strings::keep(seen);
        }
    } else if has_block {
        block = take_room(&this.room_in);
        this.input.with(|input| block.extend_from_slice(&input.used(header.len)[range]));
    }
    if this.pending.with(|pending| pending.is_some()) {
        let Some((first, whole)) = continued(ruby, this, &frame, block)? else { return Ok(()) };
        return headers(ruby, this, first, whole);
    }
    if matches!(frame.kind, Kind::Settings | Kind::Ping | Kind::Goaway) || header.stream == 0 {
        if header.stream != 0 {
            return protocol_error(ruby, this, "protocol error");
        }
        return management(ruby, this, &mut frame);
    }
    match frame.kind {
        Kind::Headers | Kind::PushPromise => {
            // RFC 9113 §5.1.1: clients open odd streams.
            if !this.is_client.get() && frame.kind == Kind::Headers && header.stream.is_multiple_of(2) {
                return protocol_error(ruby, this, "protocol error");
            }
            if !frame.has(END_HEADERS) {
                frame.payload = NIL;
                let frame = Stored::new(Owner::of(this), frame);
                this.pending.with(|pending| *pending = Some(Pending { frame, block, frames: 0 }));
                return Ok(());
            }
            headers(ruby, this, frame, block)
        }
        _ => on_stream(ruby, this, header.stream, &mut frame),
    }
}

#[cold]
fn protocol_error<T>(ruby: &Ruby, this: Obj<Connection>, message: &str) -> Result<T, Error> {
    connection_error(ruby, this, sym().protocol_error, Some(&message), None)
}

/// RFC 9113 §5.5: discarded, but not within a block of fields.
fn unknown(ruby: &Ruby, this: Obj<Connection>) -> Result<(), Error> {
    if this.pending.with(|pending| pending.is_some()) || this.is_client.get() && !this.received_frame.get() {
        return protocol_error(ruby, this, "protocol error");
    }
    charge(ruby, this, Charge::UnknownFrame)
}

/// RFC 9113 §6.10: nothing comes between the frames of a block. The first frame and all of the block, once it is whole.
fn continued(
    ruby: &Ruby,
    this: Obj<Connection>,
    frame: &Frame,
    more: Vec<u8>,
) -> Result<Option<(Frame, Vec<u8>)>, Error> {
    let limits = Limits::DEFAULT;
    let (stream, is_continuation, ends) =
        (frame.stream, frame.kind == Kind::Continuation, frame.has(END_HEADERS));
    let continued = this.pending.with(|pending| {
        let begun = pending.as_mut()?;
        if !is_continuation || stream != begun.frame.frame().stream {
            return Some(Err("protocol error"));
        }
        begun.block.extend_from_slice(&more);
        begun.frames += 1;
        let (len, frames) = (begun.block.len(), begun.frames);
        if len > limits.field_block_len_max || frames > limits.continuations_max && len / frames < 1024 {
            *pending = None;
            return Some(Err("too many continuations received"));
        }
        Some(Ok(if ends { pending.take() } else { None }))
    });
    put_room(&this.room_in, more);
    match continued {
        Some(Ok(Some(whole))) => {
            let mut first = whole.frame.frame();
            first.flags |= END_HEADERS;
            first.length = None;
            Ok(Some((first, whole.block)))
        }
        Some(Err(message)) => protocol_error(ruby, this, message),
        Some(Ok(None)) | None => Ok(None),
    }
}

/// HEADERS and PUSH_PROMISE with their block, whole.
fn headers(ruby: &Ruby, this: Obj<Connection>, mut frame: Frame, block: Vec<u8>) -> Result<(), Error> {
    let rules = Rules::Message { list_size_max: this.list_size_max.get(), lenient: false };
    let owner = Owner::of(this);
    let decoded = this.decompressor.allocating(ruby, |ruby, table| decode(ruby, owner, table, &block, rules));
    put_room(&this.room_in, block);
    let list = match decoded? {
        Ok((list, head)) => {
            frame.head = head;
            list
        }
        Err(error) => {
            use crate::hpack::error::HeaderError;
            let kind = match &error {
                HeaderError::Compression(_) => sym().compression_error,
                HeaderError::Field(_) => sym().protocol_error,
                _ => sym().internal_error,
            };
            let error = send::header_error(ruby, error);
            return connection_error(ruby, this, kind, None, Some(error));
        }
    };
    frame.payload = list.as_raw();
    let id = frame.stream.unwrap_or(0);
    let known = find_stream(this, id);
    // PRIORITY makes streams that no request has opened yet.
    let opens = known.is_none_or(|stream| !this.is_client.get() && stream.state.get() == State::Idle);
    // RFC 9113 §6.8: after GOAWAY, streams that are there come to their end; what would open others only keeps the tables in
    // step.
    let leaving = this.phase.get().is_ending();
    if leaving && (frame.kind == Kind::PushPromise || id > this.last_stream_id.get() || opens) {
        if let (true, Some(stream)) = (opens, known) {
            connection::forget(this, stream);
        }
        if is_overdue(ruby, this)? {
            return protocol_error(ruby, this, "stream does not exist");
        }
        return Ok(());
    }
    if frame.kind == Kind::PushPromise {
        return promised(ruby, this, &mut frame, list);
    }
    if frame.payload_len() == 0 && list.is_empty() {
        charge(ruby, this, Charge::EmptyFrame)?;
    }
    // RFC 9113 §5.1: what the peer sent before it knew of a reset is ignored.
    if known.is_none() && was_reset(this, id) {
        return Ok(());
    }
    if opens {
        pseudo::verify(ruby, this, list, this.is_client.get())?;
        verify_order(ruby, this, id)?;
        verify_dependency(ruby, this, &frame)?;
    }
    let stream = match known {
        Some(stream) => stream,
        None => {
            let opening = Opening {
                weight: frame.weight.unwrap_or(16),
                dependency: frame.dependency.unwrap_or(0),
                ..Opening::new(id)
            };
            let stream = activate_stream(ruby, this, opening)?;
            emit(this, sym().stream, &[stream.as_raw()])?;
            stream
        }
    };
    stream::deliver(ruby, stream, &mut frame)
}

fn was_reset(this: Obj<Connection>, id: u32) -> bool {
    this.resets.with(|resets| resets.contains(&id))
}

/// RFC 9113 §5.1.1: identifiers grow. From here on the peer has opened the stream.
pub(super) fn verify_order(ruby: &Ruby, this: Obj<Connection>, id: u32) -> Result<(), Error> {
    if id.is_multiple_of(2) {
        return Ok(());
    }
    // A server's own pushes may be further.
    let last = if this.is_client.get() { this.last_stream_id.get() } else { this.last_peer_id.get() };
    if last >= id {
        return protocol_error(ruby, this, "Stream ID smaller than previous");
    }
    if !this.is_client.get() {
        this.last_peer_id.set(id);
    }
    this.last_stream_id.set(this.last_stream_id.get().max(id));
    Ok(())
}

/// RFC 7540 §5.3.1: a stream cannot depend on itself.
fn verify_dependency(ruby: &Ruby, this: Obj<Connection>, frame: &Frame) -> Result<(), Error> {
    if frame.dependency.is_some() && frame.dependency == frame.stream {
        return protocol_error(ruby, this, "stream can't depend on itself");
    }
    Ok(())
}

/// PUSH_PROMISE (RFC 9113 §6.6, §8.4).
fn promised(ruby: &Ruby, this: Obj<Connection>, frame: &mut Frame, list: RArray) -> Result<(), Error> {
    let sym = sym();
    let (id, promised) = (frame.stream.unwrap_or(0), frame.promise_stream.unwrap_or(0));
    if !this.is_client.get() {
        return protocol_error(ruby, this, "clients cannot send PUSH_PROMISE");
    }
    let enabled = settings::get(this.local_settings.get(), sym.settings_enable_push)?;
    if converted(enabled)? == Some(0_i64) {
        return protocol_error(ruby, this, "push promises are disabled");
    }
    let Some(parent) = find_stream(this, id) else {
        // The parent is gone, but was there: the push is refused.
        if id < this.stream_id.get() && !id.is_multiple_of(2) || was_reset(this, id) {
            return refuse_push(ruby, this, promised);
        }
        return protocol_error(ruby, this, "missing parent ID");
    };
    let open = match parent.state.get() {
        State::Open | State::HalfClosedLocal => true,
        State::HalfClosing => parent.closed.get().raw() == sym.half_closed_local,
        _ => false,
    };
    if !open {
        if parent.closed.get().raw() != sym.local_rst {
            return protocol_error(ruby, this, "protocol error");
        }
        return refuse_push(ruby, this, promised);
    }
    pseudo::verify(ruby, this, list, false)?;
    if promised == 0 || !promised.is_multiple_of(2) || promised <= this.last_peer_id.get() {
        return protocol_error(ruby, this, "Stream ID smaller than previous");
    }
    if this.promised_streams.get() >= this.local_max_streams.get() {
        return refuse_push(ruby, this, promised);
    }
    let stream = activate_stream(ruby, this, Opening { parent: parent.as_raw(), ..Opening::new(promised) })?;
    this.last_peer_id.set(promised);
    emit(this, sym.promise, &[stream.as_raw()])?;
    stream::deliver(ruby, stream, frame)
}

fn refuse_push(ruby: &Ruby, this: Obj<Connection>, promised: u32) -> Result<(), Error> {
    this.last_peer_id.set(this.last_peer_id.get().max(promised));
    remember_reset(this, promised);
    let mut frame = Frame::new(Kind::RstStream, promised);
    frame.error = sym().refused_stream;
    send_own(ruby, this, &mut frame)
}

/// Everything else that has a stream.
fn on_stream(ruby: &Ruby, this: Obj<Connection>, id: u32, frame: &mut Frame) -> Result<(), Error> {
    // Also of a stream that is closed, but whose DATA waits for the window.
    if frame.kind == Kind::RstStream {
        send::stream_reset(ruby, this, id)?;
    }
    if let Some(stream) = find_stream(this, id) {
        charge_on_stream(ruby, this, stream, frame)?;
        stream::deliver(ruby, stream, frame)?;
        return if frame.kind == Kind::Data { data_received(ruby, this, frame) } else { Ok(()) };
    }
    // RFC 9113 §5.1: idle streams are those beyond the last one of their side.
    let own = id.is_multiple_of(2) != this.is_client.get();
    let idle = if own { id >= this.stream_id.get() } else { id > this.last_peer_id.get() };
    let idle = idle && !was_reset(this, id);
    // RFC 9113 §6.8: what belongs to a stream that GOAWAY does not name is discarded; its DATA counts while others are under way.
    let discarded = idle
        && !own
        && matches!(this.phase.get(), Phase::Closing | Phase::Leaving)
        && !is_overdue(ruby, this)?;
    match frame.kind {
        Kind::Data if discarded => {
            charge_data(ruby, this, frame)?;
            if this.is_over() { Ok(()) } else { data_received(ruby, this, frame) }
        }
        Kind::WindowUpdate | Kind::RstStream if discarded => charge(ruby, this, Charge::UnknownFrame),
        Kind::Priority => {
            charge(ruby, this, Charge::Priority)?;
            let leaving = match this.phase.get() {
                Phase::Leaving => true,
                Phase::Closed => id <= this.last_stream_id.get(),
                _ => false,
            };
            if !idle || leaving || this.idle_streams.get() >= IDLE_STREAMS_MAX {
                return Ok(());
            }
            verify_dependency(ruby, this, frame)?;
            this.idle_streams.set(this.idle_streams.get() + 1);
            let opening = Opening {
                weight: frame.weight.unwrap_or(16),
                dependency: frame.dependency.unwrap_or(0),
                ..Opening::new(id)
            };
            let stream = activate_stream(ruby, this, opening)?;
            emit(this, sym().stream, &[stream.as_raw()])?;
            stream::deliver(ruby, stream, frame)
        }
        // RFC 9113 §5.1: of closed streams these are ignored.
        Kind::WindowUpdate if !idle => {
            charge(ruby, this, Charge::UnknownFrame)?;
            match frame.increment {
                Some(0) => Err(names::error(
                    ruby,
                    sym().protocol_error,
                    Some("increment MUST be higher than zero".into()),
                )),
                _ => Ok(()),
            }
        }
        Kind::RstStream if !idle => charge(ruby, this, Charge::UnknownFrame),
        Kind::WindowUpdate | Kind::RstStream => {
            protocol_error(ruby, this, "sent window update on idle stream")
        }
        // RFC 9113 §6.9: DATA of a reset stream counts for flow control too.
        Kind::Data if was_reset(this, id) => data_received(ruby, this, frame),
        Kind::Altsvc | Kind::Origin => charge(ruby, this, Charge::UnknownFrame),
        _ => protocol_error(ruby, this, "stream does not exist"),
    }
}

fn charge_on_stream(
    ruby: &Ruby,
    this: Obj<Connection>,
    stream: Obj<Stream>,
    frame: &Frame,
) -> Result<(), Error> {
    let what = match frame.kind {
        Kind::RstStream if !this.is_client.get() && stream.closed.get().raw() != sym().local_closed => {
            Charge::PeerReset
        }
        Kind::Priority => Charge::Priority,
        Kind::WindowUpdate => Charge::WindowUpdate,
        Kind::Data => return charge_data(ruby, this, frame),
        _ => return Ok(()),
    };
    charge(ruby, this, what)
}

fn charge_data(ruby: &Ruby, this: Obj<Connection>, frame: &Frame) -> Result<(), Error> {
    match frame.payload_len() {
        _ if frame.ends_stream() => Ok(()),
        0 => charge(ruby, this, Charge::EmptyFrame),
        1..Limits::TINY_DATA_LEN => charge(ruby, this, Charge::TinyData),
        _ => Ok(()),
    }
}

/// The window of the connection: a WINDOW_UPDATE when half of it or less is left.
fn data_received(ruby: &Ruby, this: Obj<Connection>, frame: &Frame) -> Result<(), Error> {
    let len = frame.payload_len() as i64 + i64::from(frame.padding.unwrap_or(0));
    this.local_window.set(this.local_window.get() - len);
    let (window, max) = (this.local_window.get(), this.local_window_limit.get());
    // The peer knows of 65,535 bytes, however few were asked for: SETTINGS do not change this window.
    if window + (65_535 - max).max(0) < 0 {
        return connection_error(ruby, this, sym().flow_control_error, None, None);
    }
    if window > max / 2 || window == max {
        return Ok(());
    }
    if connection::is_plain(this) {
        return send::window_update(ruby, this, max - window);
    }
    this.funcall::<_, _, Value>("window_update", (max - window,)).map(|_| ())
}

/// Frames of the connection itself.
fn management(ruby: &Ruby, this: Obj<Connection>, frame: &mut Frame) -> Result<(), Error> {
    match this.phase.get() {
        Phase::WaitingPreface => {
            // RFC 9113 §3.4: the first frame MUST be SETTINGS.
            if frame.kind != Kind::Settings {
                return protocol_error(ruby, this, "protocol error");
            }
            this.phase.set(Phase::Connected);
            settings_frame(ruby, this, frame)
        }
        Phase::Connected | Phase::Closing => match frame.kind {
            Kind::Settings => settings_frame(ruby, this, frame),
            Kind::WindowUpdate => window_grown(ruby, this, frame),
            Kind::Ping => ping(ruby, this, frame),
            Kind::Goaway => goaway(ruby, this, frame),
            Kind::Altsvc => {
                // RFC 7838 §4: on stream 0 an origin is required.
                let hash = frame.to_hash(ruby)?;
                let origin: Option<RString> = hash.lookup(value(sym().origin))?;
                match origin.is_some_and(|origin| !origin.is_empty()) {
                    true => emit(this, sym().altsvc, &[hash.as_raw()]),
                    false => Ok(()),
                }
            }
            Kind::Origin if this.upgrade.get() != Upgrade::None || frame.flags != 0 => Ok(()),
            Kind::Origin => {
                let origins = RArray::try_convert(frame.payload())?;
                for at in 0..origins.len() {
                    let origin: Value = origins.entry(at as isize)?;
                    emit(this, sym().origin, &[origin.as_raw()])?;
                }
                Ok(())
            }
            _ => protocol_error(ruby, this, "protocol error"),
        },
        // RFC 9113 §6.8: streams under way come to their end.
        Phase::Leaving if !this.is_over() => match frame.kind {
            Kind::Settings => settings_frame(ruby, this, frame),
            Kind::WindowUpdate => window_grown(ruby, this, frame),
            Kind::Ping => ping(ruby, this, frame),
            Kind::Goaway if frame.error != sym().no_error => connection::close(ruby, this),
            _ => Ok(()),
        },
        Phase::Leaving | Phase::Closed => match frame.kind {
            Kind::Goaway => Ok(()),
            Kind::Ping => ping(ruby, this, frame),
            _ if is_overdue(ruby, this)? => protocol_error(ruby, this, "protocol error"),
            _ => Ok(()),
        },
        Phase::WaitingMagic => protocol_error(ruby, this, "protocol error"),
    }
}

/// Whether the peer has had the time to notice that the connection is over.
fn is_overdue(ruby: &Ruby, this: Obj<Connection>) -> Result<bool, Error> {
    Ok(match this.closed_since.get() {
        Some(since) => connection::clock(ruby)? - since > CLOSED_GRACE_S,
        None => false,
    })
}

fn ping(ruby: &Ruby, this: Obj<Connection>, frame: &Frame) -> Result<(), Error> {
    if frame.has(ACK) {
        return emit(this, sym().ack, &[frame.payload]);
    }
    charge(ruby, this, Charge::Ping)?;
    send::ping(ruby, this, frame.payload(), ACK)
}

fn goaway(ruby: &Ruby, this: Obj<Connection>, frame: &Frame) -> Result<(), Error> {
    // RFC 9113 §6.8: a peer that leaves without an error lets the streams under way come to their end; no new ones.
    if frame.error == sym().no_error {
        this.phase.set(Phase::Closing);
        connection::close_when_done(ruby, this)?;
    } else {
        connection::close(ruby, this)?;
    }
    let last = ruby.integer_from_u64(u64::from(frame.last_stream.unwrap_or(0)));
    emit(this, sym().goaway, &[last.as_raw(), frame.error, frame.payload])
}

fn window_grown(ruby: &Ruby, this: Obj<Connection>, frame: &Frame) -> Result<(), Error> {
    charge(ruby, this, Charge::WindowUpdate)?;
    let increment = frame.increment.unwrap_or(0);
    if increment == 0 {
        return Err(names::error(
            ruby,
            sym().protocol_error,
            Some("increment MUST be higher than zero".into()),
        ));
    }
    this.remote_window.set(this.remote_window.get() + increment);
    if this.remote_window.get() > WINDOW_MAX {
        return connection_error(ruby, this, sym().flow_control_error, Some(&"window size too large"), None);
    }
    send::flush(ruby, this)
}

/// SETTINGS: the peer's hold at once, those of this side when they are acknowledged (RFC 9113 §6.5.3).
fn settings_frame(ruby: &Ruby, this: Obj<Connection>, frame: &mut Frame) -> Result<(), Error> {
    let sym = sym();
    if frame.has(ACK) {
        let pending = RArray::try_convert(this.pending_settings.get().value())?;
        let acknowledged: Value = pending.shift()?;
        if acknowledged.is_nil() {
            return protocol_error(ruby, this, "SETTINGS acknowledged that were not sent");
        }
        this.settings_unacknowledged.set(this.settings_unacknowledged.get().saturating_sub(1));
        settings_pairs(ruby, acknowledged)?.each(|key, number| local_setting(ruby, this, key, number))?;
        let left = ruby.integer_from_u64(pending.len() as u64);
        let hash = frame.to_hash(ruby)?;
        emit(this, sym.settings_ack, &[hash.as_raw(), left.as_raw()])?;
        if this.origins_due.get() {
            this.origins_due.set(false);
            let mut frame = Frame::new(Kind::Origin, 0);
            frame.payload = this.origin_set.get().raw();
            send_own(ruby, this, &mut frame)?;
        }
        return Ok(());
    }
    charge(ruby, this, Charge::Settings)?;
    let pairs = settings_pairs(ruby, frame.payload())?;
    settings::validate_settings(ruby, this, !this.is_client.get(), &pairs)?;
    pairs.each(|key, number| remote_setting(ruby, this, key, number))?;
    if this.phase.get() == Phase::Closed || this.upgrade.get() == Upgrade::Started {
        return Ok(());
    }
    acknowledge_settings(ruby, this)?;
    // A larger window may release queued frames.
    each_stream(ruby, this, |stream| stream::flush(ruby, stream))
}

fn local_setting(ruby: &Ruby, this: Obj<Connection>, key: VALUE, number: VALUE) -> Result<(), Error> {
    let sym = sym();
    settings::set(this.local_settings.get(), key, number)?;
    let Some(number) = converted::<i64>(value(number))? else { return Ok(()) };
    if key == sym.settings_initial_window_size {
        let change = number - this.local_window_limit.get();
        // RFC 9113 §6.9.2: the window of the connection follows by WINDOW_UPDATE alone.
        let more = number.max(65_535) - this.local_window_limit.get().max(65_535);
        this.local_window_limit.set(number);
        this.local_window.set(this.local_window.get() + change);
        each_stream(ruby, this, |stream| {
            connection::change_stream_window(
                stream,
                sym.local_window,
                stream.local_window.get() + change,
                ruby,
            )?;
            if change < 0 { stream::window_lowered(ruby, stream) } else { Ok(()) }
        })?;
        if more > 0 {
            let mut frame = Frame::new(Kind::WindowUpdate, 0);
            frame.increment = Some(more);
            send_own(ruby, this, &mut frame)?;
        }
    } else if key == sym.settings_header_table_size {
        this.decompressor.with(|table| table.set_max_limit(number.clamp(0, 1 << 30) as usize));
    } else if key == sym.settings_max_frame_size {
        this.local_max_frame_size.set(number.max(16_384) as usize);
    } else if key == sym.settings_max_header_list_size {
        this.list_size_max.set(number.max(0) as usize);
    } else if key == sym.settings_max_concurrent_streams {
        this.local_max_streams.set(number);
    }
    Ok(())
}

fn remote_setting(ruby: &Ruby, this: Obj<Connection>, key: VALUE, number: VALUE) -> Result<(), Error> {
    let sym = sym();
    settings::set(this.remote_settings.get(), key, number)?;
    let Some(number) = converted::<i64>(value(number))? else { return Ok(()) };
    if key == sym.settings_initial_window_size {
        // RFC 9113 §6.9.2: windows may become negative.
        let change = number - this.remote_window_limit.get();
        this.remote_window_limit.set(number);
        each_stream(ruby, this, |stream| {
            connection::change_stream_window(stream, sym.window, stream.remote_window.get() + change, ruby)
        })?;
    } else if key == sym.settings_header_table_size {
        this.compressor.with(|table| table.set_max_limit(number.clamp(0, 1 << 30) as usize));
    } else if key == sym.settings_max_frame_size {
        this.remote_max_frame_size.set(number.max(16_384) as usize);
    } else if key == sym.settings_max_concurrent_streams {
        this.remote_max_streams.set(number);
    }
    Ok(())
}
