//! One HTTP/2 connection, client or server, without I/O (RFC 9113).
//!
//! Owns the order of things: what a frame means after the frames before it. Refuses to own the layout of frames
//! ([`crate::frame`]), the rules of messages ([`crate::message`]) and anything that waits: the caller moves bytes and time.
//!
//! Each file beside this one holds one side of it: `receive` cuts the input into frames, `headers` and `data` judge what
//! streams receive, `send` is what streams send, `exchange` the SETTINGS and PING of both ends, `goaway` the end,
//! `lifetime` how streams open and close, `output` the bytes that leave.

mod data;
mod exchange;
mod goaway;
mod headers;
mod lifetime;
#[cfg(test)]
mod model;
mod output;
mod receive;
mod send;
mod since;
#[cfg(test)]
mod tests;

pub use goaway::Ended;

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::time::Duration;

use crate::config::Config;
use crate::error::{Error, Misuse};
use crate::event::{Event, Step};
use crate::field::FieldList;
use crate::flow_control::{Growth, WINDOW_DEFAULT};
use crate::frame::{self, FrameHeader, Kind, StreamId};
use crate::hpack::{Decoder, Encoder, TABLE_SIZE_DEFAULT};
use crate::message::RequestKind;
use crate::rate_limit::RateLimit;
use crate::scheduler::Scheduler;
use crate::settings::Settings;
use crate::stream::{ChunkPool, IdlePriorities, Parked, Recent, Slab, Stream, StreamKey, flag};
use crate::upgrade::{self, PREFACE};
use crate::{Limits, Role};

use exchange::Exchange;
use goaway::Closing;
use output::Output;
use receive::Reader;
use since::Since;

/// One end of a connection.
///
/// The methods are of four families:
/// - getters, such as [`Connection::peer_settings`];
/// - `handle_*`: what arrives, [`Connection::handle_input`], [`Connection::handle_timeout`], [`Connection::handle_eof`];
/// - commands, such as [`Connection::send_request`]: they take effect at once and write to the output;
/// - `poll_*`: what is ready to leave, [`Connection::poll_transmit`], [`Connection::poll_event`],
///   [`Connection::poll_timeout`].
///
/// After input, time or commands, drain the output: [`Connection::poll_transmit`] and [`Connection::transmitted`] until
/// nothing is left or the transport is full. Times are durations since a moment of the caller's choice; what commands
/// begin lasts from the time that is told next.
///
/// ```
/// use core::time::Duration;
/// use wireloom_http2::field::{Field, Token};
/// use wireloom_http2::{Config, Connection, Event, Role};
///
/// fn move_bytes(from: &mut Connection, to: &mut Connection, mut hear: impl FnMut(Event<'_>)) {
///     loop {
///         let mut slices = [&[][..]; 8];
///         let filled = from.poll_transmit(&mut slices);
///         let bytes = slices[..filled].concat(); // a socket would write them as they are
///         if bytes.is_empty() {
///             return;
///         }
///         from.transmitted(bytes.len());
///         let mut at = 0;
///         loop {
///             let (taken, event) = to.handle_input(Duration::ZERO, &bytes[at..]).unwrap();
///             at += taken;
///             match event {
///                 Some(event) => hear(event),
///                 None => break, // what is left is kept until `to` has written its output
///             }
///         }
///     }
/// }
///
/// let mut client = Connection::new(Role::Client, Config::new(Role::Client)).unwrap();
/// let mut server = Connection::new(Role::Server, Config::new(Role::Server)).unwrap();
/// let request = [
///     Field::known(Token::Method, b"GET"),
///     Field::known(Token::Scheme, b"https"),
///     Field::known(Token::Authority, b"example.org"),
///     Field::known(Token::Path, b"/"),
/// ];
/// let asked = client.send_request(request, true).unwrap();
///
/// let mut requests = Vec::new();
/// move_bytes(&mut client, &mut server, |event| {
///     if let Event::Request { stream, fields, .. } = event {
///         assert_eq!(fields.find(Token::Path).unwrap().value(), b"/");
///         requests.push(stream);
///     }
/// });
/// server.send_response(requests[0], [Field::known(Token::Status, b"200")], false).unwrap();
/// server.send_data(requests[0], "hello", true).unwrap();
///
/// let mut content = Vec::new();
/// move_bytes(&mut server, &mut client, |event| {
///     if let Event::Data { stream, data, .. } = event {
///         assert_eq!(stream, asked);
///         content.extend_from_slice(data);
///     }
/// });
/// assert_eq!(content, b"hello");
/// ```
pub struct Connection {
    role: Role,
    config: Config,
    /// The latest time that the caller told.
    now: Duration,
    /// Something may last since the next one: `Since::Next`, or `flag::UNTIMED`.
    untimed: bool,

    slab: Slab,
    recent: Recent,
    idle_priorities: IdlePriorities,
    scheduler: Scheduler,
    chunks: ChunkPool,
    parked: Parked,
    /// The next stream that this side opens; above `StreamId::MAX` when they are used up.
    next_local: u32,
    /// The highest stream that the peer opened or promised; 0 for none.
    highest_peer: u32,
    /// Streams that count against the peer's SETTINGS_MAX_CONCURRENT_STREAMS, and against this side's.
    open_local: u32,
    open_peer: u32,
    /// Streams promised by either side and not begun.
    reserved: u32,

    encoder: Encoder,
    decoder: Decoder,
    /// The fields of the last message, which an event lends out.
    fields: FieldList,
    /// The bytes of the last rare frame (GOAWAY, ALTSVC, ORIGIN), which an event lends out.
    scratch: Vec<u8>,

    reader: Reader,
    out: Output,
    pending: VecDeque<Step>,
    rates: RateLimit,

    /// What this side may still send on all streams.
    send_window: i64,
    /// What the peer may still send on all streams.
    recv_window: i64,
    /// Handed to the caller on all streams and not given back.
    held: u64,
    growth: Growth,
    /// No delta of a stream's send window is above this.
    send_delta_max: i32,
    /// Since when nothing moves although something waits.
    stalled: Since,

    exchange: Exchange,
    closing: Closing,
}

impl Connection {
    /// One end of a new connection: over TLS with ALPN "h2", or with prior knowledge (RFC 9113 §3.2, §3.3). Its
    /// preface is in the output.
    ///
    /// # Errors
    /// [`Misuse::SettingInvalid`] when the configuration has a setting out of range.
    pub fn new(role: Role, config: Config) -> Result<Self, Misuse> {
        let mut connection = Self::bare(role, config)?;
        connection.send_preface();
        Ok(connection)
    }

    /// The server's end after an HTTP/1.1 request was upgraded (RFC 7540 §3.2): call it when the 101 response is written.
    /// The request becomes stream 1, half-closed on the client's side, whose response is to be sent.
    ///
    /// # Errors
    /// [`Error::Misuse`] for settings out of range, [`Error::Peer`] when `http2_settings` (the field of that name) is
    /// invalid: the upgrade is not to take place then.
    pub fn from_upgrade_server(
        config: Config,
        http2_settings: &[u8],
        request: RequestKind,
    ) -> Result<(Self, StreamKey), Error> {
        let mut connection = Self::bare(Role::Server, config)?;
        let limits = connection.config.limits;
        upgrade::apply_http2_settings(http2_settings, &limits, &mut connection.exchange.peer)
            .map_err(|violation| Error::peer(violation, StreamId::CONNECTION))?;
        connection.encoder.set_table_size_max(connection.exchange.peer.header_table_size);
        connection.send_preface();
        // RFC 7540 §3.2: stream 1 is half-closed from the client toward the server.
        let mut stream = Stream::new(1, crate::stream::State::HalfClosedRemote, flag::RECV_FINAL);
        stream.set(Self::request_flags(request));
        connection.highest_peer = 1;
        connection.open_peer = 1;
        let slot = connection.slab.insert(stream);
        let key = connection.slab.key(slot);
        Ok((connection, key))
    }

    /// The client's end after the server answered 101 to an upgrade (RFC 7540 §3.2), whose `HTTP2-Settings` came from
    /// [`crate::upgrade::encode_http2_settings`] of the same settings. The response comes on stream 1.
    ///
    /// # Errors
    /// [`Misuse::SettingInvalid`] for settings out of range.
    pub fn from_upgrade_client(config: Config, request: RequestKind) -> Result<(Self, StreamKey), Misuse> {
        let mut connection = Self::bare(Role::Client, config)?;
        connection.send_preface();
        let flags = flag::SENT_FINAL | flag::LOCAL | Self::request_flags(request);
        let stream = Stream::new(1, crate::stream::State::HalfClosedLocal, flags);
        connection.next_local = 3;
        connection.open_local = 1;
        let slot = connection.slab.insert(stream);
        let key = connection.slab.key(slot);
        Ok((connection, key))
    }

    fn bare(role: Role, config: Config) -> Result<Self, Misuse> {
        config.settings.check(role)?;
        let next_local = match role {
            Role::Client => StreamId::FIRST_CLIENT,
            Role::Server => StreamId::FIRST_SERVER,
        };
        Ok(Self {
            role,
            now: Duration::ZERO,
            untimed: false,
            slab: Slab::new(config.hash_key),
            recent: Recent::new(config.limits.resets_remembered_max),
            idle_priorities: IdlePriorities::new(),
            scheduler: Scheduler::new(),
            chunks: ChunkPool::new(),
            parked: Parked::new(),
            next_local: next_local.get(),
            highest_peer: 0,
            open_local: 0,
            open_peer: 0,
            reserved: 0,
            encoder: Encoder::new(),
            decoder: Decoder::new(TABLE_SIZE_DEFAULT),
            fields: FieldList::new(),
            scratch: Vec::new(),
            reader: Reader::new(role),
            out: Output::new(),
            pending: VecDeque::new(),
            rates: RateLimit::default(),
            send_window: i64::from(WINDOW_DEFAULT),
            recv_window: i64::from(WINDOW_DEFAULT),
            held: 0,
            growth: Growth::new(config.settings.initial_window_size, config.stream_window_max),
            send_delta_max: 0,
            stalled: Since::Never,
            exchange: Exchange::new(),
            closing: Closing::new(),
            config,
        })
    }

    /// RFC 9113 §3.4: the client's preface is 24 bytes and SETTINGS, the server's is SETTINGS.
    fn send_preface(&mut self) {
        if self.role == Role::Client {
            self.out.bytes.extend_from_slice(PREFACE);
        }
        let settings = self.config.settings;
        frame::Settings::encode(settings.entries_since(&Settings::INITIAL), &mut self.out.bytes);
        self.exchange.sent_settings(settings);
        self.untimed = true;
        self.release_connection();
    }

    const fn request_flags(kind: RequestKind) -> u16 {
        match kind {
            RequestKind::Plain => 0,
            RequestKind::Head => flag::HEAD,
            RequestKind::Connect | RequestKind::ExtendedConnect => flag::CONNECT,
        }
    }

    const fn limits(&self) -> &Limits {
        &self.config.limits
    }

    // ---- getters

    /// Which end this is.
    pub const fn role(&self) -> Role {
        self.role
    }

    /// The peer's settings, as far as they are known.
    pub const fn peer_settings(&self) -> &Settings {
        &self.exchange.peer
    }

    /// This end's settings, as far as the peer has acknowledged them.
    pub const fn acknowledged_settings(&self) -> &Settings {
        &self.exchange.acknowledged
    }

    /// How many streams there are: open, half-closed, reserved, and requests that wait to open.
    pub const fn streams(&self) -> usize {
        self.slab.len() as usize
    }

    /// Whether the stream is there.
    pub fn contains(&self, stream: StreamKey) -> bool {
        self.slab.slot(stream).is_some()
    }

    /// The stream of an identifier, if it is there.
    pub fn find(&self, id: StreamId) -> Option<StreamKey> {
        self.slab.find(id.get()).map(|slot| self.slab.key(slot))
    }

    /// How many requests may be opened now without waiting.
    pub fn open_capacity(&self) -> usize {
        self.exchange.peer.max_concurrent_streams.saturating_sub(self.open_local) as usize
    }

    /// Whether input is taken: `false` while too much output waits for a peer that does not read. The driver stops
    /// reading then, until it has written.
    pub fn wants_read(&self) -> bool {
        self.out.answers_len <= self.limits().answers_len_max && self.out.len() <= self.config.output_max
    }

    /// Whether [`Connection::poll_transmit`] has something.
    pub fn wants_write(&self) -> bool {
        !self.out.is_empty() || (!self.scheduler.is_idle() && self.send_window > 0 && !self.has_ended())
    }

    /// The last measured round trip, if there was a PING.
    pub const fn round_trip(&self) -> Option<Duration> {
        self.exchange.round_trip
    }

    // ---- handle

    /// Takes bytes from the peer: says how many were taken, and what they brought, one event at a time.
    ///
    /// Call it again with the rest until there is no event. Bytes that are left then were not taken because too much
    /// output waits (see [`Connection::wants_read`]): write it and offer them again. Beginnings of frames are kept
    /// inside, so the caller's buffer is free when all is taken; DATA is lent out piece by piece and never copied.
    ///
    /// # Errors
    /// The connection ends: GOAWAY with the reason is in the output, to be written before closing the transport. Said
    /// once; input is passed over from then on.
    #[inline]
    pub fn handle_input<'a>(
        &'a mut self,
        now: Duration,
        input: &'a [u8],
    ) -> Result<(usize, Option<Event<'a>>), Error> {
        self.tell_time(now);
        if let Some((stream, end, end_stream)) = self.read_whole_data(input) {
            return Ok((end, Some(Event::Data { stream, data: &input[FrameHeader::LEN..end], end_stream })));
        }
        let mut at = 0;
        let step = loop {
            if let Some(step) = self.pending.pop_front() {
                break step;
            }
            if self.has_ended() {
                return Ok((input.len(), None));
            }
            if !self.wants_read() {
                return Ok((at, None));
            }
            match self.read(input, at) {
                Ok((next, Some(step))) => {
                    at = next;
                    break step;
                }
                Ok((next, None)) if next == at => return Ok((at, None)),
                Ok((next, None)) => at = next,
                Err(error) => return Err(self.fail(error)),
            }
        };
        Ok((at, Some(self.event(step, input))))
    }

    /// Takes the time: deadlines that have passed are acted on. Call it at [`Connection::poll_timeout`], or later.
    ///
    /// # Errors
    /// The connection ends, as with [`Connection::handle_input`].
    pub fn handle_timeout(&mut self, now: Duration) -> Result<(), Error> {
        self.tell_time(now);
        if self.has_ended() {
            return Ok(());
        }
        self.check_deadlines().map_err(|error| self.fail(error))
    }

    /// The peer has closed its side of the transport: nothing more arrives. Streams that are still there will not be
    /// answered; on a client, those that a GOAWAY refused were reported already.
    pub fn handle_eof(&mut self) {
        if !self.has_ended() {
            self.end(Ended::Eof);
        }
    }

    // ---- poll

    /// What happened without input: events that commands, timeouts or a GOAWAY caused.
    pub fn poll_event(&mut self) -> Option<Event<'_>> {
        let step = self.pending.pop_front()?;
        Some(self.event(step, &[]))
    }

    /// Fills in what is to be written, in order; says how many slices. The same again, until
    /// [`Connection::transmitted`] is told.
    pub fn poll_transmit<'a>(&'a mut self, slices: &mut [&'a [u8]]) -> usize {
        self.pump();
        self.out.slices(slices)
    }

    /// So many bytes of [`Connection::poll_transmit`] were written.
    pub fn transmitted(&mut self, written: usize) {
        self.out.advance(written);
        if written > 0 && (self.send_window > 0 || self.scheduler.is_idle()) {
            self.stalled = if self.out.is_empty() { Since::Never } else { Since::Next };
            self.untimed = true;
        }
    }

    /// When [`Connection::handle_timeout`] is to be called next, if ever. It is a time that has passed when the connection
    /// needs to know what time it is.
    pub fn poll_timeout(&self) -> Option<Duration> {
        if self.has_ended() {
            return None;
        }
        if self.awaits_time() {
            return Some(self.now);
        }
        let settings = self.settings_deadline();
        let stall = self.stall_deadline();
        match (settings, stall) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Gives memory back that is not in use: for a connection that has nothing to do for a while.
    pub fn shrink(&mut self) {
        self.slab.shrink();
        self.recent.shrink();
        self.idle_priorities.shrink();
        self.chunks.shrink();
        self.parked.shrink();
        self.out.shrink();
        self.reader.shrink();
        self.fields = FieldList::new();
        self.scratch = Vec::new();
        if self.pending.is_empty() {
            self.pending = VecDeque::new();
        }
    }

    fn event<'a>(&'a self, step: Step, input: &'a [u8]) -> Event<'a> {
        let fields = &self.fields;
        match step {
            Step::Data { stream, input: range, end_stream } => {
                Event::Data { stream, data: &input[range], end_stream }
            }
            Step::Request { stream, kind, end_stream } => Event::Request { stream, kind, fields, end_stream },
            Step::Response { stream, status, end_stream } => {
                Event::Response { stream, status, fields, end_stream }
            }
            Step::Informational { stream, status } => Event::Informational { stream, status, fields },
            Step::Trailers { stream } => Event::Trailers { stream, fields },
            Step::Promise { stream, promised } => Event::Promise { stream, promised, fields },
            Step::Reset { stream, code, error } => Event::Reset { stream, code, error },
            Step::Refused { stream } => Event::Refused { stream },
            Step::Writable { stream } => Event::Writable { stream },
            Step::Settings => Event::Settings,
            Step::SettingsAcknowledged => Event::SettingsAcknowledged,
            Step::Pong { payload, round_trip } => Event::Pong { payload, round_trip },
            Step::GoAway { last_stream_id, code } => {
                Event::GoAway { last_stream_id, code, debug_data: &self.scratch }
            }
            Step::Priority { stream, priority } => Event::Priority { stream, priority },
            Step::AltSvc { stream_id, origin_len } => {
                let (origin, value) = self.scratch.split_at(origin_len);
                Event::AltSvc { stream_id, origin, value }
            }
            Step::Origin => {
                let len = self.scratch.len() as u32;
                let stream_id = StreamId::CONNECTION;
                let header = FrameHeader { len, kind: Kind::ORIGIN, flags: frame::Flags::NONE, stream_id };
                let Ok(origin) = frame::Origin::parse(&header, &self.scratch) else {
                    unreachable!("checked when it arrived")
                };
                Event::Origin(origin)
            }
        }
    }
}

impl core::fmt::Debug for Connection {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Connection")
            .field("role", &self.role)
            .field("streams", &self.slab.len())
            .field("output", &self.out.len())
            .field("ended", &self.ended())
            .finish_non_exhaustive()
    }
}
