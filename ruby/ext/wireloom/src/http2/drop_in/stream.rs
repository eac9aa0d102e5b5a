//! `HTTP2::Stream`: states, windows and events of one stream (RFC 9113 §5.1), in the original's order.
//!
//! ```text
//!                          idle ── PUSH_PROMISE ──▶ reserved_local / reserved_remote
//!                           │ HEADERS                            │ HEADERS
//!                           ▼                                    ▼
//!                         open ── END_STREAM ──▶ half_closed_local / half_closed_remote
//!                           └────── RST_STREAM, or END_STREAM the other way ──▶ closed
//! ```
//!
//! `half_closing` and `closing` last as long as the frame that causes the change is at work, so that `:half_close` and
//! `:close` come after its own events.

use std::cell::Cell;

use magnus::rb_sys::AsRawValue;
use magnus::typed_data::Obj;
use magnus::value::ReprValue;
use magnus::{Error, RArray, RHash, RString, Ruby, TryConvert, Value};
use rb_sys::VALUE;

use super::connection::{self, Connection};
use super::frame::{END_HEADERS, END_STREAM, Frame, Kind, value};
use super::frame_buffer::FrameBuffer;
use super::listeners::{Emitter, Listeners, call_emit, calls_emit, emit, listens};
use super::names::{classes, error, is_class, sym};
use crate::exclusive::Exclusive;
use crate::held::{Held, Owner, managed, plain};

pub(crate) const WINDOW_MAX: i64 = 0x7fff_ffff;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Idle,
    Open,
    HalfClosedLocal,
    HalfClosedRemote,
    ReservedLocal,
    ReservedRemote,
    HalfClosing,
    Closing,
    Closed,
}

impl State {
    const ALL: [Self; 9] = [
        Self::Idle,
        Self::Open,
        Self::HalfClosedLocal,
        Self::HalfClosedRemote,
        Self::ReservedLocal,
        Self::ReservedRemote,
        Self::HalfClosing,
        Self::Closing,
        Self::Closed,
    ];

    pub(crate) fn symbol(self) -> VALUE {
        let sym = sym();
        match self {
            Self::Idle => sym.idle,
            Self::Open => sym.open,
            Self::HalfClosedLocal => sym.half_closed_local,
            Self::HalfClosedRemote => sym.half_closed_remote,
            Self::ReservedLocal => sym.reserved_local,
            Self::ReservedRemote => sym.reserved_remote,
            Self::HalfClosing => sym.half_closing,
            Self::Closing => sym.closing,
            Self::Closed => sym.closed,
        }
    }

    pub(crate) fn from_symbol(symbol: VALUE) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.symbol() == symbol)
    }
}

pub(crate) struct Stream {
    pub(crate) connection: Cell<Held>,
    /// The Method that frames are passed to, where a program overrides `send` of the connection; else nil.
    pub(crate) sender: Cell<Held>,
    pub(crate) parent: Cell<Held>,
    /// Why it was closed or half closed, a Symbol; else false.
    pub(crate) closed: Cell<Held>,
    /// A [`FrameBuffer`], or nil.
    pub(crate) buffer: Cell<Held>,
    /// The names of trailers announced, or nil.
    trailers: Cell<Held>,
    pub(crate) id: Cell<u32>,
    pub(crate) dependency: Cell<u32>,
    pub(crate) weight: Cell<i64>,
    pub(crate) local_window: Cell<i64>,
    pub(crate) local_window_max: Cell<i64>,
    pub(crate) remote_window: Cell<i64>,
    /// How much more the peer may send while it does not know of `local_window`.
    pub(crate) slack: Cell<i64>,
    content_left: Cell<Option<i64>>,
    status: Cell<Option<i64>>,
    pub(crate) state: Cell<State>,
    has_method: Cell<bool>,
    is_head: Cell<bool>,
    waiting_on_trailers: Cell<bool>,
    received_data: Cell<bool>,
    activated: Cell<bool>,
    pub(crate) listeners: Exclusive<Listeners>,
}

impl Default for Stream {
    fn default() -> Self {
        Self {
            connection: Cell::new(Held::NIL),
            sender: Cell::new(Held::NIL),
            parent: Cell::new(Held::NIL),
            closed: Cell::new(Held::FALSE),
            buffer: Cell::new(Held::NIL),
            trailers: Cell::new(Held::NIL),
            id: Cell::new(0),
            dependency: Cell::new(0),
            weight: Cell::new(16),
            local_window: Cell::new(0),
            local_window_max: Cell::new(0),
            remote_window: Cell::new(0),
            slack: Cell::new(0),
            content_left: Cell::new(None),
            status: Cell::new(None),
            state: Cell::new(State::Idle),
            has_method: Cell::new(false),
            is_head: Cell::new(false),
            waiting_on_trailers: Cell::new(false),
            received_data: Cell::new(false),
            activated: Cell::new(false),
            listeners: Exclusive::default(),
        }
    }
}

plain!(State);

// Streams are many and live long: with write barriers old ones are not scanned while they stay as they are.
managed!(
    Stream as "HTTP2::Stream" {
        connection, sender, parent, closed, buffer, trailers, id, dependency, weight, local_window, local_window_max, remote_window, slack, content_left, status, state, has_method, is_head, waiting_on_trailers, received_data, activated, listeners
    },
    write_barrier,
    size = |stream| stream.listeners.try_with(|listeners| listeners.heap_size()).unwrap_or(0)
);

impl Emitter for Stream {
    fn listeners(&self) -> &Exclusive<Listeners> {
        &self.listeners
    }

    #[inline]
    fn is_own(class: VALUE) -> bool {
        is_class(class, classes().stream)
    }
}

impl Stream {
    /// Sets the window of this side: what it grows to changes by as much.
    pub(crate) fn set_local_window(&self, window: i64) {
        let change = window - self.local_window.replace(window);
        self.local_window_max.set(self.local_window_max.get() + change);
    }

    /// Copies the state of another stream, its listeners included. The caller takes write barriers off the copy.
    pub(crate) fn copy_from(&self, other: &Self) {
        for (place, from) in [
            (&self.connection, &other.connection),
            (&self.sender, &other.sender),
            (&self.parent, &other.parent),
            (&self.closed, &other.closed),
            (&self.buffer, &other.buffer),
            (&self.trailers, &other.trailers),
        ] {
            place.set(from.get());
        }
        self.id.set(other.id.get());
        self.dependency.set(other.dependency.get());
        for (place, from) in [
            (&self.weight, &other.weight),
            (&self.local_window, &other.local_window),
            (&self.local_window_max, &other.local_window_max),
            (&self.remote_window, &other.remote_window),
            (&self.slack, &other.slack),
        ] {
            place.set(from.get());
        }
        self.content_left.set(other.content_left.get());
        self.status.set(other.status.get());
        self.state.set(other.state.get());
        for (place, from) in [
            (&self.has_method, &other.has_method),
            (&self.is_head, &other.is_head),
            (&self.waiting_on_trailers, &other.waiting_on_trailers),
            (&self.received_data, &other.received_data),
            (&self.activated, &other.activated),
        ] {
            place.set(from.get());
        }
        connection::copy(&self.listeners, &other.listeners);
    }
}

/// Frames that wait for the window.
pub(crate) fn buffer(ruby: &Ruby, this: Obj<Stream>) -> Result<Obj<FrameBuffer>, Error> {
    FrameBuffer::of(ruby, Owner::of(this), &this.buffer)
}

/// Whether no method of the stream is overridden.
#[inline]
pub(crate) fn is_plain(stream: Obj<Stream>) -> bool {
    Stream::is_own(connection::class_of(stream.as_raw())) && !connection::is_patched()
}

/// A call of `receive`, dispatched by Ruby when a program may have overridden it.
pub(crate) fn deliver(ruby: &Ruby, stream: Obj<Stream>, frame: &mut Frame) -> Result<(), Error> {
    if is_plain(stream) {
        return receive(ruby, stream, frame);
    }
    stream.funcall_public::<_, _, Value>("<<", (frame.to_hash(ruby)?,)).map(|_| ())
}

/// Takes a frame that came in.
pub(crate) fn receive(ruby: &Ruby, this: Obj<Stream>, frame: &mut Frame) -> Result<(), Error> {
    transition(ruby, this, frame, false)?;
    let state = this.state.get();
    let reset_here = this.closed.get().raw() == sym().local_rst;
    match frame.kind {
        Kind::Data => {
            // RFC 9113 §6.1: otherwise a stream error of type STREAM_CLOSED.
            if !(matches!(state, State::Open | State::HalfClosedLocal | State::HalfClosing | State::Closing)
                || state == State::Closed && reset_here)
            {
                return stream_error(ruby, this, sym().stream_closed, None);
            }
            this.received_data.set(true);
            content_received(ruby, this, frame)?;
            let len = frame.payload_len() as i64 + i64::from(frame.padding.unwrap_or(0));
            this.local_window.set(this.local_window.get() - len);
            if !frame.ignore {
                emit(this, sym().data, &[frame.payload])?;
            }
            if this.local_window.get() + this.slack.get() < 0 {
                return stream_error(ruby, this, sym().flow_control_error, None);
            }
            replenish(ruby, this)?;
        }
        Kind::Headers => {
            if state == State::Closed && !reset_here {
                return stream_error(ruby, this, sym().stream_closed, None);
            }
            note_head(this, frame);
            if this.waiting_on_trailers.get()
                || this.received_data.get() && this.status.get().is_none_or(|status| status >= 200)
            {
                verify_trailers(ruby, this, frame)?;
            }
            if !frame.ignore {
                emit(this, sym().headers, &[frame.payload])?;
            }
            this.waiting_on_trailers.set(!this.trailers.get().is_nil());
        }
        Kind::PushPromise if !frame.ignore => {
            emit(this, sym().promise_headers, &[frame.payload])?;
        }
        Kind::Continuation => {
            if state == State::Closed && !reset_here {
                return stream_error(ruby, this, sym().stream_closed, None);
            }
            if this.received_data.get() {
                return stream_error(ruby, this, sym().protocol_error, None);
            }
        }
        Kind::Priority => process_priority(ruby, this, frame)?,
        Kind::WindowUpdate if !frame.ignore => window_grown(ruby, this, frame)?,
        Kind::Altsvc => {
            // RFC 7838 §4: on a stream, one that names an origin MUST be ignored.
            let hash = frame.to_hash(ruby)?;
            let origin: Option<RString> = hash.lookup(value(sym().origin))?;
            if origin.is_none_or(RString::is_empty) {
                emit(this, sym().altsvc, &[hash.as_raw()])?;
            }
        }
        _ => {}
    }
    complete_transition(ruby, this, frame)
}

fn note_head(this: Obj<Stream>, frame: &Frame) {
    let head = &frame.head;
    if !this.has_method.get()
        && let Some(method) = head.method
    {
        this.has_method.set(true);
        // SAFETY: no Ruby code runs while the slice is compared.
        this.is_head.set(unsafe { method.as_slice() } == b"HEAD");
    }
    this.status.set(this.status.get().or(head.status));
    this.content_left.set(this.content_left.get().or(head.content_length));
    if this.trailers.get().is_nil()
        && let Some(trailer) = head.trailer
    {
        this.trailers.set(Held::new(Owner::of(this), trailer.as_raw()));
    }
}

/// RFC 9113 §8.1.1: more content than was announced.
fn content_received(ruby: &Ruby, this: Obj<Stream>, frame: &Frame) -> Result<(), Error> {
    let (Some(left), Some(length)) = (this.content_left.get(), frame.length) else { return Ok(()) };
    this.content_left.set(Some(left - length as i64));
    if left >= length as i64 {
        return Ok(());
    }
    stream_error(
        ruby,
        this,
        sym().protocol_error,
        Some("received more data than what was defined in content-length"),
    )
}

fn verify_trailers(ruby: &Ruby, this: Obj<Stream>, frame: &Frame) -> Result<(), Error> {
    if !frame.ends_stream() {
        let message = "trailer headers frame must close the stream";
        return stream_error(ruby, this, sym().protocol_error, Some(message));
    }
    let (Some(announced), Some(trailers)) =
        (RArray::from_value(this.trailers.get().value()), RArray::from_value(frame.payload()))
    else {
        return Ok(());
    };
    let received = ruby.ary_new_capa(trailers.len());
    for at in 0..trailers.len() {
        received.push(trailers.entry::<RArray>(at as isize)?.entry::<Value>(0)?)?;
    }
    // By hashes: the peer may send 128 KiB of names twice.
    announced.replace(announced.funcall("-", (received,))?)?;
    if announced.is_empty() {
        return Ok(());
    }
    stream_error(ruby, this, sym().protocol_error, Some("didn't receive all expected trailer headers"))
}

/// A WINDOW_UPDATE when half of the window or less is left.
fn replenish(ruby: &Ruby, this: Obj<Stream>) -> Result<(), Error> {
    let (window, max) = (this.local_window.get(), this.local_window_max.get());
    if window > max / 2 || window == max {
        return Ok(());
    }
    if is_plain(this) {
        return window_update(ruby, this, max - window);
    }
    this.funcall_public::<_, _, Value>("window_update", (max - window,)).map(|_| ())
}

/// The window has become smaller by SETTINGS, perhaps negative: a peer that has DATA to send waits for WINDOW_UPDATE (RFC 9113 §6.9.2).
pub(crate) fn window_lowered(ruby: &Ruby, this: Obj<Stream>) -> Result<(), Error> {
    match this.state.get() {
        State::Open | State::HalfClosedLocal => replenish(ruby, this),
        _ => Ok(()),
    }
}

/// Gives the peer more window.
pub(crate) fn window_update(ruby: &Ruby, this: Obj<Stream>, increment: i64) -> Result<(), Error> {
    if this.state.get() == State::Closed {
        return Ok(());
    }
    let mut frame = Frame::new(Kind::WindowUpdate, this.id.get());
    frame.stream = None;
    frame.increment = Some(increment);
    send_own(ruby, this, &mut frame)
}

fn window_grown(ruby: &Ruby, this: Obj<Stream>, frame: &Frame) -> Result<(), Error> {
    if let Some(increment) = frame.increment {
        if increment == 0 {
            return Err(error(ruby, sym().protocol_error, Some("increment MUST be higher than zero".into())));
        }
        this.remote_window.set(this.remote_window.get() + increment);
        if this.remote_window.get() > WINDOW_MAX {
            return stream_error(ruby, this, sym().flow_control_error, Some("window size too large"));
        }
    }
    flush(ruby, this)
}

/// A call of `send`, dispatched by Ruby when a program may have overridden it.
pub(crate) fn send_own(ruby: &Ruby, this: Obj<Stream>, frame: &mut Frame) -> Result<(), Error> {
    if is_plain(this) {
        return send(ruby, this, frame);
    }
    this.funcall::<_, _, Value>("send", (frame.to_hash(ruby)?,)).map(|_| ())
}

/// Sends a frame on the stream, DATA up to the windows.
pub(crate) fn send(ruby: &Ruby, this: Obj<Stream>, frame: &mut Frame) -> Result<(), Error> {
    match frame.kind {
        Kind::Data => return send_data(ruby, this, frame),
        // Trailers, behind DATA that waits for the window.
        Kind::Headers | Kind::Continuation if !FrameBuffer::is_empty(&this.buffer) => {
            return wait(ruby, this, frame);
        }
        Kind::Priority => process_priority(ruby, this, frame)?,
        _ => {}
    }
    transition(ruby, this, frame, true)?;
    frame.put_on(this.id.get())?;
    if frame.kind == Kind::WindowUpdate {
        this.local_window.set(this.local_window.get() + frame.increment.unwrap_or(0));
    }
    emit_frame(ruby, this, frame)?;
    complete_transition(ruby, this, frame)
}

fn send_data(ruby: &Ruby, this: Obj<Stream>, frame: &mut Frame) -> Result<(), Error> {
    if FrameBuffer::is_empty(&this.buffer) {
        let len = frame.payload_len() as i64;
        let window = this.remote_window.get();
        if len <= window && window > 0 || len == 0 && frame.ends_stream() {
            return send_now(ruby, this, frame);
        }
    }
    wait(ruby, this, frame)?;
    flush(ruby, this)
}

/// Buffers a frame; none behind one that ends the stream. What the program has sent before is not reset for that.
fn wait(ruby: &Ruby, this: Obj<Stream>, frame: &Frame) -> Result<(), Error> {
    if FrameBuffer::ends_stream(&this.buffer) {
        return Err(error(ruby, sym().stream_closed, None));
    }
    FrameBuffer::push(ruby, buffer(ruby, this)?, *frame)
}

/// Sends what is buffered, DATA up to the window.
pub(crate) fn flush(ruby: &Ruby, this: Obj<Stream>) -> Result<(), Error> {
    if FrameBuffer::is_empty(&this.buffer) {
        return Ok(());
    }
    let buffer = buffer(ruby, this)?;
    while let Some(mut frame) = FrameBuffer::take(buffer, this.remote_window.get()) {
        send_now(ruby, this, &mut frame)?;
    }
    Ok(())
}

fn send_now(ruby: &Ruby, this: Obj<Stream>, frame: &mut Frame) -> Result<(), Error> {
    let len = frame.window_len() as i64;
    transition(ruby, this, frame, true)?;
    frame.put_on(this.id.get())?;
    // Before the frame leaves: a peer in the same process gives window back at once.
    this.remote_window.set(this.remote_window.get() - len);
    emit_frame(ruby, this, frame)?;
    complete_transition(ruby, this, frame)
}

/// A frame goes to the connection first, then to the listeners.
fn emit_frame(ruby: &Ruby, this: Obj<Stream>, frame: &mut Frame) -> Result<(), Error> {
    if calls_emit(this) {
        return call_emit(this, sym().frame, &[frame.to_hash(ruby)?.as_raw()]);
    }
    let hash = if listens(this, sym().frame) { Some(frame.to_hash(ruby)?) } else { None };
    pass_on(ruby, this, frame)?;
    match hash {
        Some(hash) => emit(this, sym().frame, &[hash.as_raw()]),
        None => Ok(()),
    }
}

/// The stream's own handler of `:frame`: passes the frame to the sender or the connection.
pub(super) fn pass_on(ruby: &Ruby, this: Obj<Stream>, frame: &mut Frame) -> Result<(), Error> {
    if !this.sender.get().is_nil() {
        let hash = frame.to_hash(ruby)?;
        this.sender.get().value().funcall_public::<_, _, Value>("call", (hash,))?;
    } else if !this.connection.get().is_nil() {
        super::send::send(ruby, connection_of(this)?, frame)?;
    }
    Ok(())
}

pub(crate) fn connection_of(this: Obj<Stream>) -> Result<Obj<Connection>, Error> {
    Obj::try_convert(this.connection.get().value())
}

/// HEADERS, which end the stream too when they answer a HEAD request.
pub(crate) fn headers(
    ruby: &Ruby,
    this: Obj<Stream>,
    headers: Value,
    end_headers: bool,
    end_stream: bool,
) -> Result<(), Error> {
    let mut frame = Frame::new(Kind::Headers, this.id.get());
    frame.stream = None;
    if end_headers {
        frame.flags |= END_HEADERS;
    }
    if end_stream || this.is_head.get() {
        frame.flags |= END_STREAM;
    }
    frame.payload = headers.as_raw();
    send_own(ruby, this, &mut frame)
}

/// DATA, in frames as large as the peer takes them.
pub(crate) fn data(ruby: &Ruby, this: Obj<Stream>, payload: RString, end_stream: bool) -> Result<(), Error> {
    let len_max = connection_of(this)?.remote_max_frame_size.get();
    let mut frame = Frame::new(Kind::Data, this.id.get());
    frame.stream = None;
    frame.flags = if end_stream { END_STREAM } else { 0 };
    if payload.len() <= len_max {
        frame.payload = payload.as_raw();
        return send_own(ruby, this, &mut frame);
    }
    // Listeners run between the frames: they shall not change what is left.
    frame.payload = crate::strings::frozen(ruby, payload).as_raw();
    while frame.payload_len() > len_max {
        let (mut first, rest) = frame.split(len_max);
        first.length = None;
        send_own(ruby, this, &mut first)?;
        frame = Frame { length: None, ..rest };
    }
    send_own(ruby, this, &mut frame)
}

/// RST_STREAM with an error, a Symbol or a number.
pub(crate) fn close(ruby: &Ruby, this: Obj<Stream>, error: VALUE) -> Result<(), Error> {
    let mut frame = Frame::new(Kind::RstStream, this.id.get());
    frame.stream = None;
    frame.error = error;
    send_own(ruby, this, &mut frame)
}

/// Takes new priorities and emits `:priority`.
pub(crate) fn process_priority(ruby: &Ruby, this: Obj<Stream>, frame: &Frame) -> Result<(), Error> {
    this.weight.set(frame.weight.unwrap_or(16));
    this.dependency.set(frame.dependency.unwrap_or(0));
    let sym = sym();
    if !listens(this, sym.priority) {
        return Ok(());
    }
    let hash: RHash = ruby.hash_new();
    hash.aset(value(sym.weight), frame.weight)?;
    hash.aset(value(sym.dependency), frame.dependency)?;
    hash.aset(value(sym.exclusive), frame.exclusive)?;
    emit(this, sym.priority, &[hash.as_raw()])
}

/// Resets the stream and gives the error that says why; an error of type PROTOCOL_ERROR ends the connection.
#[cold]
fn stream_error<T>(
    ruby: &Ruby,
    this: Obj<Stream>,
    kind: VALUE,
    message: Option<&'static str>,
) -> Result<T, Error> {
    if this.state.get() != State::Closed {
        if is_plain(this) {
            close(ruby, this, kind)?;
        } else {
            this.funcall_public::<_, _, Value>("close", (value(kind),))?;
        }
    }
    Err(error(ruby, kind, message.map(Into::into)))
}

/// The error of a frame that the state does not allow.
pub(crate) fn refuse(ruby: &Ruby, this: Obj<Stream>) -> Result<(), Error> {
    stream_error(ruby, this, sym().internal_error, None)
}

/// RFC 9113 §5.1.
fn transition(ruby: &Ruby, this: Obj<Stream>, frame: &mut Frame, sending: bool) -> Result<(), Error> {
    let sym = sym();
    let ends = frame.ends_stream();
    let half = if sending { sym.half_closed_local } else { sym.half_closed_remote };
    let reset = if sending { sym.local_rst } else { sym.remote_rst };
    match (this.state.get(), frame.kind) {
        (State::Idle, Kind::PushPromise) => {
            this.state.set(if sending { State::ReservedLocal } else { State::ReservedRemote });
            emit(this, sym.reserved, &[])
        }
        (State::Idle, Kind::Headers) if ends => half_close(this, half),
        (State::Idle, Kind::Headers) => {
            this.state.set(State::Open);
            activate(this)
        }
        (State::Idle, Kind::RstStream) if sending => closing(this, reset),
        (State::Idle, Kind::Priority) if sending => process_priority(ruby, this, frame),
        (State::Idle, Kind::Priority) => Ok(()),
        (State::Idle, _) if sending => refuse(ruby, this),
        (State::Idle, _) => stream_error(ruby, this, sym.protocol_error, None),

        (State::ReservedLocal, Kind::RstStream) | (State::ReservedRemote, Kind::RstStream) => {
            closing(this, reset)
        }
        (State::ReservedLocal, Kind::Headers) if sending => half_close(this, sym.half_closed_remote),
        (State::ReservedLocal | State::ReservedRemote, Kind::Priority) => Ok(()),
        (State::ReservedLocal, Kind::WindowUpdate) if !sending => Ok(()),
        (State::ReservedRemote, Kind::Headers) if !sending => half_close(this, sym.half_closed_local),
        (State::ReservedRemote, Kind::WindowUpdate) if sending => Ok(()),
        (State::ReservedLocal | State::ReservedRemote, _) => refuse(ruby, this),

        (State::Open, Kind::Data | Kind::Headers | Kind::Continuation) if ends => half_close(this, half),
        (State::Open, Kind::RstStream) => closing(this, reset),

        (State::HalfClosedLocal, Kind::RstStream) => closing(this, reset),
        (State::HalfClosedLocal, Kind::Priority | Kind::WindowUpdate) => Ok(()),
        (State::HalfClosedLocal, _) if sending => refuse(ruby, this),
        (State::HalfClosedLocal, Kind::Data | Kind::Headers | Kind::Continuation) if ends => {
            closing(this, sym.remote_closed)
        }

        (State::HalfClosedRemote, Kind::RstStream) => closing(this, reset),
        (State::HalfClosedRemote, Kind::Data | Kind::Headers | Kind::Continuation) if sending && ends => {
            closing(this, sym.local_closed)
        }
        (State::HalfClosedRemote, _) if sending => Ok(()),
        (State::HalfClosedRemote, Kind::Priority | Kind::WindowUpdate) => Ok(()),
        (State::HalfClosedRemote, _) => stream_error(ruby, this, sym.stream_closed, None),

        // A peer in the same process answers while the frame that ended this side's part is still on its way.
        (State::HalfClosing, Kind::Data | Kind::Headers | Kind::Continuation)
            if ends && this.closed.get().raw() != half =>
        {
            half_closed(this)?;
            closing(this, if sending { sym.local_closed } else { sym.remote_closed })
        }

        (State::Closed, Kind::Priority) => Ok(()),
        (State::Closed, Kind::RstStream) if sending => Ok(()),
        (State::Closed, _) if sending => stream_error(ruby, this, sym.stream_closed, None),
        (State::Closed, kind) => {
            let why = this.closed.get().raw();
            if why == sym.remote_rst || why == sym.remote_closed {
                match kind {
                    Kind::RstStream | Kind::WindowUpdate => Ok(()),
                    _ => stream_error(ruby, this, sym.stream_closed, None),
                }
            } else {
                // RFC 9113 §5.1: what the peer sent before it knew of the end is ignored.
                frame.ignore |=
                    kind != Kind::WindowUpdate && (why == sym.local_rst || why == sym.local_closed);
                Ok(())
            }
        }
        _ => Ok(()),
    }
}

fn half_close(this: Obj<Stream>, why: VALUE) -> Result<(), Error> {
    this.closed.set(Held::new(Owner::of(this), why));
    if this.state.get() != State::Open {
        activate(this)?;
    }
    this.state.set(State::HalfClosing);
    Ok(())
}

fn closing(this: Obj<Stream>, why: VALUE) -> Result<(), Error> {
    this.closed.set(Held::new(Owner::of(this), why));
    this.state.set(State::Closing);
    Ok(())
}

/// RFC 9113 §5.1.2: from now on the stream counts.
fn activate(this: Obj<Stream>) -> Result<(), Error> {
    if let Ok(connection) = connection_of(this) {
        connection.active_stream_count.set(connection.active_stream_count.get() + 1);
    }
    this.activated.set(true);
    emit(this, sym().active, &[])
}

fn complete_transition(ruby: &Ruby, this: Obj<Stream>, frame: &Frame) -> Result<(), Error> {
    match this.state.get() {
        State::Closing => {
            this.state.set(State::Closed);
            if let Ok(connection) = connection_of(this) {
                if this.activated.get() {
                    connection.active_stream_count.set(connection.active_stream_count.get() - 1);
                }
                connection::stream_closed(ruby, connection, this)?;
            }
            emit(this, sym().close, &[frame.error])
        }
        State::HalfClosing => half_closed(this),
        _ => Ok(()),
    }
}

fn half_closed(this: Obj<Stream>) -> Result<(), Error> {
    let local = this.closed.get().raw() == sym().half_closed_local;
    this.state.set(if local { State::HalfClosedLocal } else { State::HalfClosedRemote });
    emit(this, sym().half_close, &[])
}
