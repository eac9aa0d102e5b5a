//! `HTTP2::Connection`: what one connection holds, and its streams.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use magnus::rb_sys::AsRawValue;
use magnus::typed_data::Obj;
use magnus::value::ReprValue;
use magnus::{DataTypeFunctions, Error, Module, RModule, Ruby, TryConvert, TypedData, Value, gc};
use rb_sys::VALUE;
use wireloom_http2::rate_limit::RateLimit;

use super::frame::{Frame, NIL, value};
use super::listeners::{Listeners, emit};
use super::names::{self, classes, sym};
use super::receive::Input;
use super::send::connection_error;
use super::stream::{State, Stream};
use crate::hpack::encode::Policy;
use crate::hpack::table::Table;

/// What every peer assumes before SETTINGS (RFC 9113 §6.5.2, §6.9.2).
pub(super) const WINDOW_DEFAULT: i64 = 65_535;
const FRAME_LEN_DEFAULT: usize = 16_384;
pub(super) const TABLE_SIZE_DEFAULT: usize = 4096;

/// How many streams that this side reset are remembered, so that what is still under way for them is ignored.
const RESETS_MAX: usize = 1_024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    WaitingMagic,
    WaitingPreface,
    Connected,
    /// The peer goes away, and streams are left.
    Closing,
    Closed,
}

impl Stage {
    pub(crate) fn symbol(self) -> VALUE {
        let sym = sym();
        match self {
            Self::WaitingMagic => sym.waiting_magic,
            Self::WaitingPreface => sym.waiting_connection_preface,
            Self::Connected => sym.connected,
            Self::Closing => sym.closing,
            Self::Closed => sym.closed,
        }
    }
}

/// Whether the HTTP/1.1 upgrade is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Upgrade {
    None,
    Started,
    Finished,
}

/// Stream identifiers are small and odd or even: one multiplication spreads them.
#[derive(Clone, Default)]
pub(crate) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u32(u32::from(byte));
        }
    }

    fn write_u32(&mut self, id: u32) {
        let product = u128::from(self.0 ^ u64::from(id)) * 0x9e37_79b9_7f4a_7c15_u128;
        self.0 = product as u64 ^ (product >> 64) as u64;
    }
}

pub(crate) type Streams = HashMap<u32, VALUE, BuildHasherDefault<IdHasher>>;

/// A block of fields that goes on in CONTINUATION.
#[derive(Clone)]
pub(crate) struct Pending {
    pub(crate) frame: Frame,
    pub(crate) block: Vec<u8>,
    pub(crate) frames: usize,
}

// SAFETY: the frame names no objects: its payload is in `block`.
unsafe impl Send for Pending {}

#[derive(TypedData)]
#[magnus(class = "HTTP2::Connection", free_immediately, mark, size)]
pub(crate) struct Connection {
    pub(crate) is_client: Cell<bool>,
    pub(crate) stage: Cell<Stage>,
    pub(crate) upgrade: Cell<Upgrade>,
    /// The next stream of this side; the last one that either side opened; the last one that the server promised.
    pub(crate) stream_id: Cell<u32>,
    pub(crate) last_stream_id: Cell<u32>,
    pub(crate) last_promise_id: Cell<u32>,
    pub(crate) active_stream_count: Cell<i64>,
    pub(crate) local_window: Cell<i64>,
    pub(crate) local_window_limit: Cell<i64>,
    pub(crate) remote_window: Cell<i64>,
    pub(crate) remote_window_limit: Cell<i64>,
    pub(crate) local_max_frame_size: Cell<usize>,
    pub(crate) remote_max_frame_size: Cell<usize>,
    pub(crate) local_max_streams: Cell<i64>,
    pub(crate) remote_max_streams: Cell<i64>,
    /// Bytes of a list of fields that comes in (RFC 9113 §6.5.2).
    pub(crate) list_size_max: Cell<usize>,
    /// Streams that the peer promised and that are not closed.
    pub(crate) promised_streams: Cell<i64>,
    /// Hashes and an Array that programs see.
    pub(crate) local_settings: Cell<VALUE>,
    pub(crate) remote_settings: Cell<VALUE>,
    pub(crate) pending_settings: Cell<VALUE>,
    /// SETTINGS of this side that the peer has not acknowledged yet.
    pub(crate) settings_unacknowledged: Cell<u32>,
    pub(crate) origin_set: Cell<VALUE>,
    pub(crate) origins_due: Cell<bool>,
    /// Streams that PRIORITY alone made.
    pub(crate) idle_streams: Cell<u32>,
    /// A [`FrameBuffer`], or nil.
    pub(crate) buffer: Cell<VALUE>,
    pub(crate) received_frame: Cell<bool>,
    /// On Ruby's clock, in seconds.
    pub(crate) closed_since: Cell<Option<f64>>,
    pub(crate) listeners: RefCell<Listeners>,
    pub(crate) streams: RefCell<Streams>,
    pub(crate) resets: RefCell<VecDeque<u32>>,
    pub(crate) input: RefCell<Input>,
    pub(crate) pending: RefCell<Option<Pending>>,
    pub(crate) compressor: RefCell<Table>,
    pub(crate) policy: Cell<Policy>,
    pub(crate) decompressor: RefCell<Table>,
    pub(crate) rates: RefCell<RateLimit>,
    /// Room for a block on its way out, and for one on its way in.
    pub(crate) room_out: RefCell<Vec<u8>>,
    pub(crate) room_in: RefCell<Vec<u8>>,
}

impl Default for Connection {
    fn default() -> Self {
        Self {
            is_client: Cell::new(true),
            stage: Cell::new(Stage::WaitingPreface),
            upgrade: Cell::new(Upgrade::None),
            stream_id: Cell::new(1),
            last_stream_id: Cell::new(0),
            last_promise_id: Cell::new(0),
            active_stream_count: Cell::new(0),
            local_window: Cell::new(WINDOW_DEFAULT),
            local_window_limit: Cell::new(WINDOW_DEFAULT),
            remote_window: Cell::new(WINDOW_DEFAULT),
            remote_window_limit: Cell::new(WINDOW_DEFAULT),
            local_max_frame_size: Cell::new(FRAME_LEN_DEFAULT),
            remote_max_frame_size: Cell::new(FRAME_LEN_DEFAULT),
            local_max_streams: Cell::new(100),
            remote_max_streams: Cell::new(0x7fff_ffff),
            list_size_max: Cell::new(0x7fff_ffff),
            promised_streams: Cell::new(0),
            local_settings: Cell::new(NIL),
            remote_settings: Cell::new(NIL),
            pending_settings: Cell::new(NIL),
            settings_unacknowledged: Cell::new(0),
            origin_set: Cell::new(NIL),
            origins_due: Cell::new(false),
            idle_streams: Cell::new(0),
            buffer: Cell::new(NIL),
            received_frame: Cell::new(false),
            closed_since: Cell::new(None),
            listeners: RefCell::default(),
            streams: RefCell::default(),
            resets: RefCell::default(),
            input: RefCell::default(),
            pending: RefCell::default(),
            compressor: RefCell::new(Table::new(TABLE_SIZE_DEFAULT)),
            policy: Cell::new(Policy { table_size: 4096, ..Policy::default() }),
            decompressor: RefCell::new(Table::new(TABLE_SIZE_DEFAULT)),
            rates: RefCell::default(),
            room_out: RefCell::default(),
            room_in: RefCell::default(),
        }
    }
}

impl DataTypeFunctions for Connection {
    fn mark(&self, marker: &gc::Marker) {
        for place in [
            &self.local_settings,
            &self.remote_settings,
            &self.pending_settings,
            &self.origin_set,
            &self.buffer,
        ] {
            marker.mark(value(place.get()));
        }
        // SAFETY: unconditionally, even while one is borrowed: none is half changed when Ruby allocates.
        unsafe {
            (*self.listeners.as_ptr()).mark(marker);
            (*self.streams.as_ptr()).values().for_each(|stream| marker.mark(value(*stream)));
            (*self.compressor.as_ptr()).mark(marker);
            (*self.decompressor.as_ptr()).mark(marker);
        }
    }

    fn size(&self) -> usize {
        // SAFETY: likewise.
        let held = unsafe {
            (*self.listeners.as_ptr()).heap_size()
                + (*self.streams.as_ptr()).capacity() * size_of::<(u32, VALUE)>()
                + (*self.compressor.as_ptr()).heap_size()
                + (*self.decompressor.as_ptr()).heap_size()
                + (*self.input.as_ptr()).heap_size()
        };
        size_of::<Self>() + held
    }
}

impl Connection {
    /// Takes over what another connection is; streams and listeners are the same objects.
    pub(crate) fn copy_from(&self, other: &Self) -> Result<(), Error> {
        self.is_client.set(other.is_client.get());
        self.stage.set(other.stage.get());
        self.upgrade.set(other.upgrade.get());
        for (place, from) in [
            (&self.stream_id, &other.stream_id),
            (&self.last_stream_id, &other.last_stream_id),
            (&self.last_promise_id, &other.last_promise_id),
            (&self.settings_unacknowledged, &other.settings_unacknowledged),
            (&self.idle_streams, &other.idle_streams),
        ] {
            place.set(from.get());
        }
        for (place, from) in [
            (&self.active_stream_count, &other.active_stream_count),
            (&self.local_window, &other.local_window),
            (&self.local_window_limit, &other.local_window_limit),
            (&self.remote_window, &other.remote_window),
            (&self.remote_window_limit, &other.remote_window_limit),
            (&self.local_max_streams, &other.local_max_streams),
            (&self.remote_max_streams, &other.remote_max_streams),
            (&self.promised_streams, &other.promised_streams),
        ] {
            place.set(from.get());
        }
        self.list_size_max.set(other.list_size_max.get());
        self.local_max_frame_size.set(other.local_max_frame_size.get());
        self.remote_max_frame_size.set(other.remote_max_frame_size.get());
        for (place, from) in [
            (&self.local_settings, &other.local_settings),
            (&self.remote_settings, &other.remote_settings),
            (&self.pending_settings, &other.pending_settings),
        ] {
            if from.get() != NIL {
                place.set(value(from.get()).funcall_public::<_, _, Value>("dup", ())?.as_raw());
            }
        }
        self.origin_set.set(other.origin_set.get());
        self.origins_due.set(other.origins_due.get());
        self.buffer.set(other.buffer.get());
        self.received_frame.set(other.received_frame.get());
        self.closed_since.set(other.closed_since.get());
        self.policy.set(other.policy.get());
        *self.listeners.borrow_mut() = other.listeners.borrow().clone();
        *self.streams.borrow_mut() = other.streams.borrow().clone();
        *self.resets.borrow_mut() = other.resets.borrow().clone();
        *self.input.borrow_mut() = other.input.borrow().clone();
        *self.pending.borrow_mut() = other.pending.borrow().clone();
        *self.compressor.borrow_mut() = other.compressor.borrow().clone();
        *self.decompressor.borrow_mut() = other.decompressor.borrow().clone();
        *self.rates.borrow_mut() = other.rates.borrow().clone();
        Ok(())
    }
}

/// More room than this is given back after use.
const ROOM_KEPT: usize = 16 << 10;

/// Takes the room out of its place; a listener that comes back here meanwhile finds none and makes its own.
pub(super) fn take_room(place: &RefCell<Vec<u8>>) -> Vec<u8> {
    std::mem::take(&mut *place.borrow_mut())
}

pub(super) fn put_room(place: &RefCell<Vec<u8>>, mut room: Vec<u8>) {
    if room.capacity() <= ROOM_KEPT {
        room.clear();
        *place.borrow_mut() = room;
    }
}

static PATCHED: AtomicBool = AtomicBool::new(false);

/// Someone opened one of the classes: from now on every call goes the long way, through Ruby.
pub(crate) fn set_patched() {
    PATCHED.store(true, Ordering::Relaxed);
}

#[inline]
pub(crate) fn is_patched() -> bool {
    PATCHED.load(Ordering::Relaxed)
}

/// The class of an object, or its singleton class when it has one.
#[inline]
pub(crate) fn class_of(object: VALUE) -> VALUE {
    // SAFETY: objects of this extension begin with an RBasic.
    unsafe { (*(object as *const rb_sys::RBasic)).klass }
}

/// Whether nobody has put methods of his own before those of the connection.
#[inline]
pub(crate) fn is_plain(this: Obj<Connection>) -> bool {
    let class = class_of(this.as_raw());
    (class == classes().client || class == classes().server) && !is_patched()
}

/// Time since the first connection, for rates alone.
pub(crate) fn now() -> Duration {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed()
}

/// Ruby's monotonic clock in seconds: by it, which tests may set forward, a connection that was closed grows old.
pub(crate) fn clock(ruby: &Ruby) -> Result<f64, Error> {
    let process: RModule = ruby.class_object().const_get("Process")?;
    let id: Value = process.const_get("CLOCK_MONOTONIC")?;
    process.funcall("clock_gettime", (id,))
}

/// The connection takes part in nothing any more.
pub(crate) fn close(ruby: &Ruby, this: Obj<Connection>) -> Result<(), Error> {
    this.stage.set(Stage::Closed);
    this.closed_since.set(Some(clock(ruby)?));
    Ok(())
}

/// Calls a method that a program may have replaced.
pub(super) fn call_own(this: Obj<Connection>, method: &str, args: &[Value]) -> Result<(), Error> {
    this.funcall::<_, _, Value>(method, args).map(|_| ())
}

/// What a stream begins with.
#[derive(Clone, Copy)]
pub(crate) struct Opening {
    pub(crate) id: u32,
    pub(crate) weight: i64,
    pub(crate) dependency: u32,
    pub(crate) parent: VALUE,
    pub(crate) state: State,
}

impl Opening {
    pub(crate) const fn new(id: u32) -> Self {
        Self { id, weight: 16, dependency: 0, parent: NIL, state: State::Idle }
    }
}

/// Opens a stream of this side.
pub(crate) fn new_stream(ruby: &Ruby, this: Obj<Connection>, opening: Opening) -> Result<Obj<Stream>, Error> {
    if matches!(this.stage.get(), Stage::Closed | Stage::Closing) {
        return Err(names::error(ruby, sym().connection_closed, None));
    }
    if this.active_stream_count.get() >= this.remote_max_streams.get() {
        return Err(names::error(ruby, sym().stream_limit_exceeded, None));
    }
    let id = this.stream_id.get();
    if id > 0x7fff_ffff {
        // RFC 9113 §5.1.1: identifiers are used up.
        return Err(names::error(ruby, sym().connection_closed, None));
    }
    let stream = activate_stream(ruby, this, Opening { id, ..opening })?;
    this.last_stream_id.set(this.last_stream_id.get().max(id));
    this.stream_id.set(id + 2);
    Ok(stream)
}

/// Makes a stream that the connection knows.
pub(crate) fn activate_stream(
    ruby: &Ruby,
    this: Obj<Connection>,
    opening: Opening,
) -> Result<Obj<Stream>, Error> {
    if this.streams.borrow().contains_key(&opening.id) {
        return connection_error(ruby, this, sym().protocol_error, Some("Stream ID already exists"), None);
    }
    // RFC 9113 §5.1.2: each side limits what the other opens.
    let own = opening.id.is_multiple_of(2) != this.is_client.get();
    if !own && this.active_stream_count.get() >= this.local_max_streams.get() {
        return Err(names::error(ruby, sym().stream_limit_exceeded, None));
    }
    let stream = Stream::default();
    set_up_stream(ruby, this, &stream, opening)?;
    // SAFETY: `HTTP2::Stream` is a class.
    let class = unsafe { magnus::RClass::from_value(value(classes().stream)).unwrap_unchecked() };
    let sender = stream.sender.get();
    let stream = ruby.obj_wrap_as(stream, class);
    // Until here nobody else held it.
    std::hint::black_box(sender);
    this.streams.borrow_mut().insert(opening.id, stream.as_raw());
    if opening.parent != NIL {
        this.promised_streams.set(this.promised_streams.get() + 1);
    }
    Ok(stream)
}

/// Fills a stream in.
pub(crate) fn set_up_stream(
    ruby: &Ruby,
    this: Obj<Connection>,
    stream: &Stream,
    opening: Opening,
) -> Result<(), Error> {
    if opening.id == opening.dependency {
        // RFC 9113 §5.3.1, of RFC 7540.
        return Err(names::error(ruby, sym().protocol_error, Some("stream can't depend on itself")));
    }
    stream.connection.set(this.as_raw());
    if !is_plain(this) {
        stream.sender.set(this.funcall::<_, _, Value>("method", (value(sym().send),))?.as_raw());
    }
    stream.id.set(opening.id);
    stream.weight.set(opening.weight);
    stream.dependency.set(opening.dependency);
    stream.parent.set(opening.parent);
    stream.state.set(opening.state);
    let window = this.local_window_limit.get();
    stream.local_window.set(window);
    stream.local_window_max.set(window);
    stream.remote_window.set(this.remote_window_limit.get());
    if this.settings_unacknowledged.get() > 0 {
        stream.slack.set((WINDOW_DEFAULT - window).max(0));
    }
    Ok(())
}

/// A stream came to its end.
pub(crate) fn stream_closed(ruby: &Ruby, this: Obj<Connection>, stream: Obj<Stream>) -> Result<(), Error> {
    let id = stream.id.get();
    let gone = this.streams.borrow_mut().remove(&id).is_some();
    if gone && stream.closed.get() == sym().local_rst {
        let mut resets = this.resets.borrow_mut();
        if resets.len() == RESETS_MAX {
            resets.pop_front();
        }
        resets.push_back(id);
    }
    if gone && stream.parent.get() != NIL {
        this.promised_streams.set(this.promised_streams.get() - 1);
    }
    if this.stage.get() == Stage::Closing && this.streams.borrow().is_empty() {
        close(ruby, this)?;
    }
    Ok(())
}

/// The streams in the order of their identifiers: listeners may open and close some meanwhile.
pub(crate) fn each_stream(
    this: Obj<Connection>,
    mut work: impl FnMut(Obj<Stream>) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut ids: Vec<u32> = this.streams.borrow().keys().copied().collect();
    ids.sort_unstable();
    for id in ids {
        let stream = this.streams.borrow().get(&id).copied();
        if let Some(stream) = stream {
            work(Obj::try_convert(value(stream))?)?;
        }
    }
    Ok(())
}

/// The window of a stream changes with SETTINGS: listeners hear of it as of any event.
pub(crate) fn change_stream_window(
    stream: Obj<Stream>,
    event: VALUE,
    window: i64,
    ruby: &Ruby,
) -> Result<(), Error> {
    if event == sym().window {
        stream.remote_window.set(window);
    } else {
        stream.local_window_max.set(window);
        stream.local_window.set(window);
    }
    if !stream.listeners.borrow().any(event) {
        return Ok(());
    }
    let window = ruby.integer_from_i64(window).as_raw();
    emit(&stream.listeners, event, &[window], NIL)
}
