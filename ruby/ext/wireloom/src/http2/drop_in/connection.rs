//! `HTTP2::Connection`: what one connection holds, and its streams.

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicBool, Ordering};

use magnus::rb_sys::AsRawValue;
use magnus::typed_data::Obj;
use magnus::value::ReprValue;
use magnus::{Error, Module, RModule, Ruby, TryConvert, Value};
use rb_sys::VALUE;
use wireloom_http2::rate_limit::RateLimit;

use super::frame::{NIL, Stored, value};
use super::frame_buffer::FrameBuffer;
use super::listeners::{Emitter, Listeners, emit, listens};
use super::names::{self, classes, is_class, sym};
use super::receive::Input;
use super::send::connection_error;
use super::stream::{State, Stream};
use crate::exclusive::Exclusive;
use crate::guard::making;
use crate::held::{Held, Owner, managed, plain, traced};
use crate::hpack::encode::Policy;
use crate::hpack::table::Table;
use crate::memory::Accounted;

/// The defaults before SETTINGS (RFC 9113 §6.5.2, §6.9.2).
pub(super) const WINDOW_DEFAULT: i64 = 65_535;
const FRAME_LEN_DEFAULT: usize = 16_384;
pub(super) const TABLE_SIZE_DEFAULT: usize = 4096;

/// Streams that this side reset and whose identifiers are kept, so that frames that the peer sent before it knew are ignored.
const RESETS_MAX: usize = 1_024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    WaitingMagic,
    WaitingPreface,
    Connected,
    /// The peer goes away, and streams are left.
    Closing,
    /// Closed for the program: this side goes away without an error, or the peer does and no streams are left. What is under way comes to
    /// its end, which sets `closed_since`; what the peer begins before it knows is discarded.
    Leaving,
    Closed,
}

impl Phase {
    pub(crate) fn symbol(self) -> VALUE {
        let sym = sym();
        match self {
            Self::WaitingMagic => sym.waiting_magic,
            Self::WaitingPreface => sym.waiting_connection_preface,
            Self::Connected => sym.connected,
            Self::Closing => sym.closing,
            Self::Leaving | Self::Closed => sym.closed,
        }
    }

    /// Whether no more streams are opened.
    pub(crate) fn is_ending(self) -> bool {
        matches!(self, Self::Closing | Self::Leaving | Self::Closed)
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

pub(crate) type Streams = HashMap<u32, Held, BuildHasherDefault<IdHasher>>;

/// A block of fields that goes on in CONTINUATION.
#[derive(Clone)]
pub(crate) struct Pending {
    pub(crate) frame: Stored,
    pub(crate) block: Vec<u8>,
    pub(crate) frames: usize,
}

plain!(Phase, Upgrade, RateLimit, Input);
traced!(Pending { frame, block, frames });

pub(crate) struct Connection {
    pub(crate) is_client: Cell<bool>,
    pub(crate) phase: Cell<Phase>,
    pub(crate) upgrade: Cell<Upgrade>,
    /// A server closed the connection before the client's preface had arrived.
    pub(crate) preface_missing: Cell<bool>,
    /// The next stream of this side; the last one that either side opened; the last one that the peer opened or promised.
    pub(crate) stream_id: Cell<u32>,
    pub(crate) last_stream_id: Cell<u32>,
    pub(crate) last_peer_id: Cell<u32>,
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
    pub(crate) local_settings: Cell<Held>,
    pub(crate) remote_settings: Cell<Held>,
    pub(crate) pending_settings: Cell<Held>,
    /// SETTINGS of this side that the peer has not acknowledged yet.
    pub(crate) settings_unacknowledged: Cell<u32>,
    pub(crate) origin_set: Cell<Held>,
    pub(crate) origins_due: Cell<bool>,
    /// Streams that PRIORITY alone made.
    pub(crate) idle_streams: Cell<u32>,
    /// A [`FrameBuffer`], or nil.
    pub(crate) buffer: Cell<Held>,
    pub(crate) received_frame: Cell<bool>,
    /// On Ruby's clock, in seconds.
    pub(crate) closed_since: Cell<Option<f64>>,
    pub(crate) listeners: Exclusive<Listeners>,
    pub(crate) streams: Exclusive<Streams>,
    pub(crate) resets: Exclusive<VecDeque<u32>>,
    pub(crate) input: Exclusive<Input>,
    pub(crate) pending: Exclusive<Option<Pending>>,
    pub(crate) compressor: Exclusive<Table>,
    pub(crate) policy: Cell<Policy>,
    pub(crate) decompressor: Exclusive<Table>,
    pub(crate) rates: Exclusive<RateLimit>,
    /// Buffers for a block that is sent, and for one that is received.
    pub(crate) room_out: Exclusive<Vec<u8>>,
    pub(crate) room_in: Exclusive<Vec<u8>>,
    pub(crate) memory: Accounted,
}

impl Default for Connection {
    fn default() -> Self {
        Self {
            is_client: Cell::new(true),
            phase: Cell::new(Phase::WaitingPreface),
            upgrade: Cell::new(Upgrade::None),
            preface_missing: Cell::new(false),
            stream_id: Cell::new(1),
            last_stream_id: Cell::new(0),
            last_peer_id: Cell::new(0),
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
            local_settings: Cell::new(Held::NIL),
            remote_settings: Cell::new(Held::NIL),
            pending_settings: Cell::new(Held::NIL),
            settings_unacknowledged: Cell::new(0),
            origin_set: Cell::new(Held::NIL),
            origins_due: Cell::new(false),
            idle_streams: Cell::new(0),
            buffer: Cell::new(Held::NIL),
            received_frame: Cell::new(false),
            closed_since: Cell::new(None),
            listeners: Exclusive::default(),
            streams: Exclusive::default(),
            resets: Exclusive::default(),
            input: Exclusive::default(),
            pending: Exclusive::default(),
            compressor: Exclusive::new(Table::new(TABLE_SIZE_DEFAULT)),
            policy: Cell::new(Policy { table_size: 4096, ..Policy::default() }),
            decompressor: Exclusive::new(Table::new(TABLE_SIZE_DEFAULT)),
            rates: Exclusive::default(),
            room_out: Exclusive::default(),
            room_in: Exclusive::default(),
            memory: Accounted::default(),
        }
    }
}

managed!(
    Connection as "HTTP2::Connection" {
        is_client, phase, upgrade, preface_missing, stream_id, last_stream_id, last_peer_id, active_stream_count, local_window, local_window_limit, remote_window, remote_window_limit, local_max_frame_size, remote_max_frame_size, local_max_streams, remote_max_streams, list_size_max, promised_streams, local_settings, remote_settings, pending_settings, settings_unacknowledged, origin_set, origins_due, idle_streams, buffer, received_frame, closed_since, listeners, streams, resets, input, pending, compressor, policy, decompressor, rates, room_out, room_in, memory
    },
    size = Connection::heap_size
);

impl Emitter for Connection {
    fn listeners(&self) -> &Exclusive<Listeners> {
        &self.listeners
    }

    #[inline]
    fn is_own(class: VALUE) -> bool {
        is_class(class, classes().client) || is_class(class, classes().server)
    }
}

impl Connection {
    fn heap_size(&self) -> usize {
        let tables = [&self.compressor, &self.decompressor];
        self.listeners.try_with(|listeners| listeners.heap_size()).unwrap_or(0)
            + self.streams.try_with(|streams| streams.capacity()).unwrap_or(0) * size_of::<(u32, Held)>()
            + tables.iter().filter_map(|table| table.try_with(|table| table.heap_size())).sum::<usize>()
            + self.input.try_with(|input| input.heap_size()).unwrap_or(0)
    }

    /// Whether nothing is under way any more: only GOAWAY, PING and what crossed are taken.
    pub(crate) fn is_over(&self) -> bool {
        self.phase.get() == Phase::Closed
            || self.phase.get() == Phase::Leaving && self.closed_since.get().is_some()
    }

    /// Copies the state of another connection; streams and listeners are the same objects. The class takes no write barriers, so
    /// that copies of what is held need none.
    pub(crate) fn copy_from(&self, other: &Self, owner: Owner) -> Result<(), Error> {
        self.is_client.set(other.is_client.get());
        self.phase.set(other.phase.get());
        self.upgrade.set(other.upgrade.get());
        self.preface_missing.set(other.preface_missing.get());
        for (place, from) in [
            (&self.stream_id, &other.stream_id),
            (&self.last_stream_id, &other.last_stream_id),
            (&self.last_peer_id, &other.last_peer_id),
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
            if !from.get().is_nil() {
                let copy: Value = from.get().value().funcall_public("dup", ())?;
                place.set(Held::new(owner, copy.as_raw()));
            }
        }
        self.origin_set.set(other.origin_set.get());
        self.origins_due.set(other.origins_due.get());
        self.buffer.set(other.buffer.get());
        self.received_frame.set(other.received_frame.get());
        self.closed_since.set(other.closed_since.get());
        self.policy.set(other.policy.get());
        copy(&self.listeners, &other.listeners);
        copy(&self.streams, &other.streams);
        copy(&self.resets, &other.resets);
        copy(&self.input, &other.input);
        copy(&self.pending, &other.pending);
        copy(&self.compressor, &other.compressor);
        copy(&self.decompressor, &other.decompressor);
        copy(&self.rates, &other.rates);
        Ok(())
    }
}

pub(super) fn copy<T: Clone + Send>(to: &Exclusive<T>, from: &Exclusive<T>) {
    let mut copy = from.with(|from| from.clone());
    to.with(|to| std::mem::swap(to, &mut copy));
}

/// A larger buffer is freed after use, in bytes.
const ROOM_KEPT: usize = 16 << 10;

/// Takes the buffer out of its place; a listener that calls back meanwhile finds none and makes its own.
pub(super) fn take_room(place: &Exclusive<Vec<u8>>) -> Vec<u8> {
    place.with(std::mem::take)
}

pub(super) fn put_room(place: &Exclusive<Vec<u8>>, mut room: Vec<u8>) {
    if room.capacity() <= ROOM_KEPT {
        room.clear();
        place.with(|place| *place = room);
    }
}

static PATCHED: AtomicBool = AtomicBool::new(false);

/// One of the classes was reopened: from now on every call is dispatched by Ruby.
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

/// Whether no method of the connection is overridden.
#[inline]
pub(crate) fn is_plain(this: Obj<Connection>) -> bool {
    Connection::is_own(class_of(this.as_raw())) && !is_patched()
}

/// Ruby's monotonic clock in seconds, which tests may set forward: the age of a connection that was closed.
pub(crate) fn clock(ruby: &Ruby) -> Result<f64, Error> {
    let process: RModule = ruby.class_object().const_get("Process")?;
    let id: Value = process.const_get("CLOCK_MONOTONIC")?;
    process.funcall("clock_gettime", (id,))
}

/// The connection is closed.
pub(crate) fn close(ruby: &Ruby, this: Obj<Connection>) -> Result<(), Error> {
    if this.phase.replace(Phase::Closed) == Phase::WaitingMagic {
        this.preface_missing.set(true);
    }
    this.closed_since.set(Some(clock(ruby)?));
    Ok(())
}

/// Calls a method that a program may have replaced.
pub(super) fn call_own(this: Obj<Connection>, method: &str, args: &[Value]) -> Result<(), Error> {
    this.funcall::<_, _, Value>(method, args).map(|_| ())
}

/// The state of a new stream.
#[derive(Clone, Copy)]
pub(crate) struct Opening {
    pub(crate) id: u32,
    pub(crate) weight: i64,
    pub(crate) dependency: u32,
    /// A stream, or nil.
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
    if this.phase.get().is_ending() {
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
    if this.streams.with(|streams| streams.contains_key(&opening.id)) {
        return connection_error(ruby, this, sym().protocol_error, Some(&"Stream ID already exists"), None);
    }
    // RFC 9113 §5.1.2: each side limits what the other opens.
    let own = opening.id.is_multiple_of(2) != this.is_client.get();
    if !own && this.active_stream_count.get() >= this.local_max_streams.get() {
        return Err(names::error(ruby, sym().stream_limit_exceeded, None));
    }
    let stream = ruby.obj_wrap_as(Stream::default(), classes().stream.get());
    set_up_stream(ruby, this, stream, opening)?;
    let held = Held::new(Owner::of(this), stream.as_raw());
    this.streams.with(|streams| streams.insert(opening.id, held));
    if opening.parent != NIL {
        this.promised_streams.set(this.promised_streams.get() + 1);
    }
    Ok(stream)
}

/// Fills a stream in.
pub(crate) fn set_up_stream(
    ruby: &Ruby,
    this: Obj<Connection>,
    stream: Obj<Stream>,
    opening: Opening,
) -> Result<(), Error> {
    if opening.id == opening.dependency {
        // RFC 9113 §5.3.1, of RFC 7540.
        return Err(names::error(ruby, sym().protocol_error, Some("stream can't depend on itself".into())));
    }
    let owner = Owner::of(stream);
    stream.connection.set(Held::new(owner, this.as_raw()));
    if !is_plain(this) {
        let sender: Value = this.funcall("method", (value(sym().send),))?;
        stream.sender.set(Held::new(owner, sender.as_raw()));
    }
    stream.id.set(opening.id);
    stream.weight.set(opening.weight);
    stream.dependency.set(opening.dependency);
    stream.parent.set(Held::new(owner, opening.parent));
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

/// Remembers that this side reset a stream, of which frames may be under way.
pub(crate) fn remember_reset(this: Obj<Connection>, id: u32) {
    this.resets.with(|resets| {
        if resets.len() == RESETS_MAX {
            resets.pop_front();
        }
        resets.push_back(id);
    });
}

/// A stream came to its end.
pub(crate) fn stream_closed(ruby: &Ruby, this: Obj<Connection>, stream: Obj<Stream>) -> Result<(), Error> {
    let id = stream.id.get();
    let gone = this.streams.with(|streams| streams.remove(&id)).is_some();
    let why = stream.closed.get().raw();
    if gone && why == sym().local_rst {
        remember_reset(this, id);
    }
    if gone && !stream.parent.get().is_nil() {
        this.promised_streams.set(this.promised_streams.get() - 1);
    }
    close_when_done(ruby, this)
}

/// Moves on a connection that an end has left, once all streams are closed, and once their DATA has left.
pub(crate) fn close_when_done(ruby: &Ruby, this: Obj<Connection>) -> Result<(), Error> {
    if !matches!(this.phase.get(), Phase::Closing | Phase::Leaving) {
        return Ok(());
    }
    let is_client = this.is_client.get();
    if this.streams.with(|streams| streams.iter().any(|(id, stream)| is_under_way(is_client, *id, *stream))) {
        return Ok(());
    }
    if !FrameBuffer::is_empty(&this.buffer) {
        this.phase.set(Phase::Leaving);
    } else if this.phase.get() == Phase::Leaving {
        this.closed_since.set(Some(clock(ruby)?));
    } else {
        close(ruby, this)?;
    }
    Ok(())
}

/// Whether a stream has to come to its end: not one of the peer's that PRIORITY alone has made.
fn is_under_way(is_client: bool, id: u32, stream: Held) -> bool {
    let own = id.is_multiple_of(2) != is_client;
    own || Obj::<Stream>::try_convert(stream.value()).is_ok_and(|stream| stream.state.get() != State::Idle)
}

/// A stream whose request is discarded.
pub(super) fn forget(this: Obj<Connection>, stream: Obj<Stream>) {
    let id = stream.id.get();
    this.streams.with(|streams| streams.remove(&id));
}

/// The stream with that identifier.
pub(super) fn find_stream(this: Obj<Connection>, id: u32) -> Option<Obj<Stream>> {
    let stream = this.streams.with(|streams| streams.get(&id).copied())?;
    Obj::try_convert(stream.value()).ok()
}

/// The streams in the order of their identifiers: listeners may open and close some meanwhile.
pub(crate) fn each_stream(
    ruby: &Ruby,
    this: Obj<Connection>,
    mut work: impl FnMut(Obj<Stream>) -> Result<(), Error>,
) -> Result<(), Error> {
    let list = {
        let mut ids: Vec<u32> = this.streams.with(|streams| streams.keys().copied().collect());
        ids.sort_unstable();
        making(|| ruby.ary_from_iter(ids.iter().copied()))?
    };
    for at in 0..list.len() {
        if let Some(stream) = find_stream(this, list.entry(at as isize)?) {
            work(stream)?;
        }
    }
    Ok(())
}

/// The window of a stream changes with SETTINGS: an event of the stream.
pub(crate) fn change_stream_window(
    stream: Obj<Stream>,
    event: VALUE,
    window: i64,
    ruby: &Ruby,
) -> Result<(), Error> {
    if event == sym().window {
        stream.remote_window.set(window);
    } else {
        stream.set_local_window(window);
    }
    if !listens(stream, event) {
        return Ok(());
    }
    let window = ruby.integer_from_i64(window).as_raw();
    emit(stream, event, &[window])
}
