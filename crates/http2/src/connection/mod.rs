//! One HTTP/2 connection, client or server, without I/O (RFC 9113).
//!
//! [`Connection`] parses input, writes frames and reports events. [`Streams`] has the state of the streams; its methods return
//! the frames to write. The other files: `receive` splits the input into frames, `headers` and `data` handle received messages,
//! `send` sends messages, `lifetime` closes streams and checks deadlines, `control` handles SETTINGS and PING, `goaway` ends the
//! connection, `output` buffers frames, `answers` counts those that answer the peer, `unsent` knows the requests among them, and `output_timers` the
//! time that the peer has for taking them; `contexts` encodes and decodes fields.

mod answers;
mod contexts;
mod control;
mod data;
mod goaway;
mod headers;
mod lifetime;
#[cfg(test)]
mod model;
mod output;
mod output_timers;
mod receive;
mod send;
#[cfg(test)]
mod tests;
mod timer;
mod unsent;

pub use goaway::Ended;

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use bytes::Bytes;
use core::time::Duration;

use crate::config::Config;
use crate::error::{Error, Misuse};
use crate::event::Event;
use crate::field::FieldList;
use crate::frame::{self, StreamId};
use crate::message::RequestKind;
use crate::rate_limit::RateLimit;
use crate::settings::Settings;
use crate::stream::{RecvPhase, SendPhase, StreamKey, Streams};
use crate::upgrade::{self, PREFACE};
use crate::{Limits, Memory, Role};

use contexts::Contexts;
use control::Control;
use goaway::Closing;
use output::Output;
use output_timers::OutputTimers;
use receive::Reader;

/// One end of a connection.
///
/// There are four families of methods:
/// - getters, such as [`Connection::peer_settings`];
/// - `handle_*` for input: [`Connection::handle_input`], [`Connection::handle_timeout`], [`Connection::handle_eof`];
/// - commands, such as [`Connection::send_request`]: they take effect at once and write to the output;
/// - `poll_*` for output: [`Connection::poll_transmit`], [`Connection::poll_event`],
///   [`Connection::poll_timeout`].
///
/// After input, time or commands, drain the output: [`Connection::poll_transmit`] and [`Connection::transmitted`] until
/// no output is left or the transport is full. Times are durations since an epoch of the caller's choice. Commands take no time: what
/// they start begins when [`Connection::poll_transmit`] returns its output.
///
/// ```
/// use core::time::Duration;
/// use wireloom_http2::field::{Field, Token};
/// use wireloom_http2::{Config, Connection, Event, Role};
///
/// fn move_bytes(from: &mut Connection, to: &mut Connection, mut handle: impl FnMut(&mut Connection, Event<'_>)) {
///     loop {
///         let mut slices = [&[][..]; 8];
///         let filled = from.poll_transmit(Duration::ZERO, &mut slices);
///         let bytes = slices[..filled].concat(); // a socket would write them as they are
///         if bytes.is_empty() {
///             return;
///         }
///         from.transmitted(Duration::ZERO, bytes.len());
///         let mut at = 0;
///         loop {
///             let (taken, event) = to.handle_input(Duration::ZERO, &bytes[at..]).unwrap();
///             at += taken;
///             match event {
///                 Some(event) => handle(to, event),
///                 None => break, // `to` must write its output before it handles the remaining bytes
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
/// move_bytes(&mut client, &mut server, |server, event| {
///     if let Event::Request { stream, .. } = event {
///         assert_eq!(server.fields().find(Token::Path).unwrap().value(), b"/");
///         server.send_response(stream, [Field::known(Token::Status, b"200")], false).unwrap();
///         server.send_data(stream, "hello", true).unwrap();
///     }
/// });
///
/// let mut content = Vec::new();
/// move_bytes(&mut server, &mut client, |_, event| {
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
    /// The latest time that the caller passed.
    now: Duration,

    streams: Streams,

    contexts: Contexts,
    payload: Payload,

    reader: Reader,
    out: Output,
    pending: VecDeque<Event<'static>>,
    rates: RateLimit,

    timers: OutputTimers,

    control: Control,
    closing: Closing,
}

/// The bytes of the last GOAWAY, ALTSVC or ORIGIN frame.
#[derive(Default)]
struct Payload {
    bytes: Vec<u8>,
    /// The length of the first of two parts: `first_len <= bytes.len()`.
    first_len: usize,
}

impl Payload {
    fn set(&mut self, first: &[u8], second: &[u8]) {
        self.bytes.clear();
        self.bytes.extend_from_slice(first);
        self.bytes.extend_from_slice(second);
        self.first_len = first.len();
    }
}

impl Connection {
    /// One end of a new connection: over TLS with ALPN "h2", or with prior knowledge (RFC 9113 §3.2, §3.3). The connection
    /// preface is in the output.
    ///
    /// # Errors
    /// [`Misuse::SettingInvalid`] if a setting or a window of the configuration is out of range.
    pub fn new(role: Role, config: Config) -> Result<Self, Misuse> {
        let mut connection = Self::bare(role, config)?;
        connection.send_preface();
        Ok(connection)
    }

    /// The server's end after the upgrade of an HTTP/1.1 request (RFC 7540 §3.2). Call it when the 101 response is written. The
    /// request becomes stream 1, which is half-closed (remote).
    ///
    /// # Errors
    /// [`Error::Misuse`] for settings out of range, [`Error::Peer`] when `http2_settings` (the field of that name) is
    /// invalid. Do not upgrade then.
    pub fn from_upgrade_server(
        config: Config,
        http2_settings: &[u8],
        request: RequestKind,
    ) -> Result<(Self, StreamKey), Error> {
        let mut connection = Self::bare(Role::Server, config)?;
        let limits = connection.config.limits;
        upgrade::apply_http2_settings(http2_settings, &limits, &mut connection.control.peer)
            .map_err(|violation| Error::peer(violation, StreamId::CONNECTION))?;
        let peer = connection.control.peer;
        connection.contexts.set_encoder_table_size(peer.header_table_size);
        connection.streams.apply_peer_settings(&peer);
        connection.send_preface();
        // RFC 7540 §3.2: stream 1 is half-closed from the client toward the server.
        let id = StreamId::FIRST_CLIENT;
        let send = SendPhase::Headers(request);
        connection.streams.use_peer_id(id);
        let stream = connection.streams.record(id, RecvPhase::End, send, &connection.config);
        let slot = connection.streams.accept_request(stream);
        let key = connection.streams.key(slot);
        Ok((connection, key))
    }

    fn bare(role: Role, config: Config) -> Result<Self, Misuse> {
        config.check(role)?;
        Ok(Self {
            role,
            now: Duration::ZERO,
            streams: Streams::new(role, &config),
            contexts: Contexts::new(&config),
            payload: Payload::default(),
            reader: Reader::new(role),
            out: Output::new(),
            pending: VecDeque::new(),
            rates: RateLimit::default(),
            timers: OutputTimers::new(),
            control: Control::new(),
            closing: Closing::new(),
            config,
        })
    }

    /// RFC 9113 §3.4: the client's preface is 24 bytes and SETTINGS, the server's is SETTINGS.
    fn send_preface(&mut self) {
        if self.role == Role::Client {
            self.out.frames().extend_from_slice(PREFACE);
        }
        let settings = self.config.settings;
        frame::SettingsFrame::encode(settings.entries_since(&Settings::INITIAL), self.out.frames());
        self.settings_written(settings.initial_window_size);
        self.release_connection();
    }

    // ---- getters

    /// The limits of the configuration.
    pub const fn limits(&self) -> &Limits {
        &self.config.limits
    }

    /// The role of this end.
    pub const fn role(&self) -> Role {
        self.role
    }

    /// The peer's settings: the initial values until its SETTINGS arrive.
    pub const fn peer_settings(&self) -> &Settings {
        &self.control.peer
    }

    /// The settings of this end that the peer has acknowledged.
    pub const fn acknowledged_settings(&self) -> &Settings {
        &self.control.acknowledged
    }

    /// The number of streams: open, half-closed, reserved, and requests that wait to open.
    pub const fn streams(&self) -> usize {
        self.streams.len() as usize
    }

    /// The fields of the last message that an event has reported, pseudo-fields first: those of a request, a response, trailers or a
    /// promise. Read them before more input is handled: then those of other messages replace them, also of one that is refused and that no
    /// event reports.
    pub const fn fields(&self) -> &FieldList {
        self.contexts.fields()
    }

    /// Takes [`Connection::fields`] away, so that they can be kept without a copy. The list that replaces them is empty.
    pub fn take_fields(&mut self) -> FieldList {
        self.contexts.take_fields()
    }

    /// The size of the fields that were decoded since the last call, in bytes as RFC 9113 §6.5.2 counts them, including those of blocks
    /// that no event reports. It measures the cost of decoding: a few bytes of input can decode to kilobytes of fields.
    pub const fn take_decoded_len(&mut self) -> usize {
        self.contexts.take_decoded_len()
    }

    /// The debug data of the last [`Event::GoAway`], until more input is handled; may be empty.
    pub fn debug_data(&self) -> &[u8] {
        &self.payload.bytes
    }

    /// The origin, which may be empty, and the value, as in the `Alt-Svc` field, of the last [`Event::AltSvc`], until more input is
    /// handled.
    pub fn alt_svc(&self) -> (&[u8], &[u8]) {
        self.payload.bytes.split_at(self.payload.first_len)
    }

    /// The origins of the last [`Event::Origin`] in ASCII (RFC 6454 §6.2), until more input is handled. They are not checked.
    pub fn origins(&self) -> impl Iterator<Item = &[u8]> {
        frame::Origin::split(&self.payload.bytes)
    }

    /// Whether the stream exists.
    pub fn contains(&self, stream: StreamKey) -> bool {
        self.streams.slot(stream).is_some()
    }

    /// The stream with an identifier, if it exists.
    pub fn find(&self, id: StreamId) -> Option<StreamKey> {
        self.streams.find(id).map(|slot| self.streams.key(slot))
    }

    /// The number of requests that can be opened now without waiting.
    pub fn open_capacity(&self) -> usize {
        self.streams.open_capacity() as usize
    }

    /// Whether this side can open or promise a stream: `false` once the highest identifier is used (RFC 9113 §5.1.1). A client needs
    /// another connection then.
    pub const fn has_stream_ids(&self) -> bool {
        self.streams.next_local().is_some()
    }

    /// Whether input is handled: `false` while too much output is buffered, because the peer does not read. The caller stops
    /// reading until it has written output.
    ///
    /// On a client only answers to frames of the server count. If its requests counted, a server that waits for the client to read
    /// and the client could wait for each other.
    #[inline]
    pub fn wants_read(&self) -> bool {
        !self.closing.input_ended()
            && self.out.answers_len() <= self.limits().answers_len_max
            && (self.role == Role::Client || self.out.len() <= self.config.output_max)
    }

    /// Whether to call [`Connection::poll_transmit`]: it has output, or it has to start or stop the timeout of DATA that has no window.
    pub fn wants_write(&self) -> bool {
        !self.out.is_empty()
            || (!self.has_ended()
                && (self.streams.wants_write()
                    || self.streams.is_window_closed() != self.timers.awaits_window()))
    }

    /// The memory that the connection uses.
    pub fn memory(&self) -> Memory {
        Memory {
            held: self.streams.held(),
            queued: self.streams.queued(),
            output: self.out.len() as u64,
            input: self.reader.len() as u64,
            caller: self.streams.caller_memory(),
        }
    }

    /// Reports memory that the caller uses for this connection in addition to the DATA it holds, such as heads of requests and
    /// buffers of tunnels, in bytes. It counts towards [`Config::memory_max`]: the peer is granted less window, and requests are
    /// refused (REFUSED_STREAM) while this memory is above the maximum.
    pub fn set_caller_memory(&mut self, bytes: u64) {
        self.streams.set_caller_memory(bytes);
        self.release_connection();
    }

    /// The last measured round trip, if there was a PING.
    pub const fn round_trip(&self) -> Option<Duration> {
        self.control.round_trip
    }

    // ---- handle

    /// Handles the deadlines that have passed. Call it at the time of [`Connection::poll_timeout`], or later.
    ///
    /// Pass the input that has arrived to [`Connection::handle_input`] first: the peer is not late if this process is. While the caller
    /// does not read from the transport, [`Connection::set_reading`] stops the deadlines of the peer.
    ///
    /// # Errors
    /// The connection has ended, as with [`Connection::handle_input`].
    pub fn handle_timeout(&mut self, now: Duration) -> Result<(), Error> {
        self.advance_clock(now);
        if self.has_ended() {
            return Ok(());
        }
        self.check_deadlines().map_err(|error| self.fail(error))
    }

    /// Whether the caller reads from the transport, as it does at first. While it does not, for example for lack of memory, the peer
    /// cannot be late: no timeout of the peer runs but that for the output it accepts. Those of SETTINGS and of incomplete frames start again
    /// when the caller reads again, those for windows go on.
    pub fn set_reading(&mut self, now: Duration, is_reading: bool) {
        self.advance_clock(now);
        let took_input = self.takes_input();
        self.reader.set_reading(self.now, is_reading);
        self.input_resumed(took_input);
    }

    /// The peer has closed its side of the transport: nothing more arrives.
    ///
    /// A server sends GOAWAY, and [`Connection::ended`] returns `Some` when it has answered the requests that have arrived completely.
    /// Other streams are reset, also those whose responses need window that cannot arrive any more. On a client nothing can complete:
    /// the connection ends at once. Requests that a GOAWAY refused were reported already, and requests that were not sent are reported
    /// as refused.
    pub fn handle_eof(&mut self) {
        if !self.has_ended() {
            self.end_input();
        }
    }

    /// The transport has failed: nothing arrives, and nothing can be sent. Requests that were not sent are reported as refused, and output
    /// and queued DATA are discarded (see [`Connection::take_spent`]).
    pub fn handle_disconnect(&mut self) {
        self.end_by_disconnect();
    }

    // ---- poll

    /// The next event that a command, a timeout or a GOAWAY caused.
    pub fn poll_event(&mut self) -> Option<Event<'static>> {
        self.pending.pop_front()
    }

    /// Fills `slices` with the output to write, in order, and returns their number. Returns the same output until
    /// [`Connection::transmitted`] is called.
    pub fn poll_transmit<'a>(&'a mut self, now: Duration, slices: &mut [&'a [u8]]) -> usize {
        self.drop_spent();
        self.advance_clock(now);
        self.fill_output();
        self.out.slices(slices)
    }

    /// `written` bytes of [`Connection::poll_transmit`] were written. The peer may have received them; what was not written is taken back when
    /// the connection fails.
    pub fn transmitted(&mut self, now: Duration, written: usize) {
        self.advance_clock(now);
        let took_input = self.takes_input();
        self.out.advance(written);
        if self.control.awaits_settings() || self.closing.is_announced() {
            self.control.transmitted(self.out.sent(), self.now);
        }
        self.input_resumed(took_input);
        self.timers.transmitted(written, self.out.is_empty(), self.config.limits.stall_timeout, self.now);
    }

    /// Moves the chunks of DATA that the connection no longer needs to `spent`: they were sent, or their stream has ended.
    ///
    /// Dropping them may run code of the application, because [`Bytes::from_owner`] has a destructor of its choice. A caller with the
    /// connection behind a lock takes the chunks before it unlocks, and drops them afterwards. Chunks that are not taken are dropped by
    /// the next [`Connection::poll_transmit`].
    pub fn take_spent(&mut self, spent: &mut Vec<Bytes>) {
        self.streams.take_spent(spent);
        self.out.take_spent(spent);
    }

    #[inline]
    fn drop_spent(&mut self) {
        self.streams.drop_spent();
        self.out.drop_spent();
    }

    /// The time at which to call [`Connection::handle_timeout`], if any.
    pub fn poll_timeout(&self) -> Option<Duration> {
        if self.has_ended() { None } else { self.next_deadline() }
    }

    /// Frees unused memory: for a connection that is idle.
    pub fn shrink(&mut self) {
        self.streams.shrink();
        self.out.shrink();
        self.reader.shrink();
        self.control.shrink();
        self.contexts.shrink();
        self.payload = Payload::default();
        if self.pending.is_empty() {
            self.pending = VecDeque::new();
        }
    }
}

impl core::fmt::Debug for Connection {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Connection")
            .field("role", &self.role)
            .field("streams", &self.streams.len())
            .field("output", &self.out.len())
            .field("ended", &self.ended())
            .finish_non_exhaustive()
    }
}
