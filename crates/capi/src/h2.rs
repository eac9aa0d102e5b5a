//! The HTTP/2 connection.

use crate::call::call;
use crate::config::*;
use crate::handle::Table;
use crate::hpack;
use crate::memory::{self, Extent, disjoint};
use crate::slice::{wl_field, wl_slice};
use crate::status::wl_status;
use crate::ws::WL_SLICES_MAX;
use core::mem::MaybeUninit;
use wireloom_http2::error::{Error, ErrorCode};
use wireloom_http2::field::FieldList;
use wireloom_http2::frame::StreamId;
use wireloom_http2::message::RequestKind;
use wireloom_http2::priority::Priority;
use wireloom_http2::{Connection, Ended, Event, Role, StreamKey};

/// One end of an HTTP/2 connection (RFC 9113).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct wl_h2 {
    /// The number of the connection; 0 is none.
    pub id: u64,
}

/// The size of the fields, in bytes as RFC 9113 section 6.5.2 counts them, above which a call of `wl_h2_handle_input` handles no other
/// frame: the events have copies of them, and a few bytes of input can decode to kilobytes.
const DECODED_LEN_MAX: usize = 64 << 10;

/// The capacity that a vector of an arena keeps between calls, in bytes.
const KEPT_MAX: usize = 64 << 10;

struct Http2 {
    connection: Connection,
    arena: Arena,
    /// The output that the last `wl_h2_poll_transmit` returned and that was not written, in bytes.
    offered: usize,
    /// The last error of a call.
    last_error: Option<Error>,
}

static CONNECTIONS: Table<Http2> = Table::new(10);

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum wl_h2_event_kind {
    /// A request (`fields`, `request_kind`, `end_stream`).
    Request = 1,
    /// The final response (`fields`, `status`, `end_stream`).
    Response = 2,
    /// An interim response (`fields`, `status`).
    Informational = 3,
    /// Trailers, which end the message (`fields`).
    Trailers = 4,
    /// A promised response: `other` is its stream, `stream` that of the request, or 0 if that was reset (`fields`).
    Promise = 5,
    /// Content (`data`, `end_stream`).
    Data = 6,
    /// The stream was reset and no longer exists (`code`, `by_peer`).
    Reset = 7,
    /// The peer has not processed the request, which can be retried. The stream no longer exists.
    Refused = 8,
    /// There is room in the send queue of the stream.
    Writable = 9,
    /// The peer's SETTINGS.
    Settings = 10,
    /// The peer has acknowledged the SETTINGS of this end.
    SettingsAcknowledged = 11,
    /// A PING was acknowledged (`data`, `round_trip_ns`).
    Pong = 12,
    /// The peer ends the connection: `other` is the last stream that it processes (`code`, `data`).
    GoAway = 13,
    /// The client changed the priority of a response: `code` is the urgency, and `end_stream` 1 for an incremental one.
    Priority = 14,
    /// Alternative services: `fields` has one field with the origin and the value (RFC 7838).
    AltSvc = 15,
    /// The origins that the connection serves: the values of `fields` (RFC 8336).
    Origin = 16,
}

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum wl_h2_request_kind {
    /// Neither of the others.
    Plain = 0,
    /// HEAD.
    Head = 1,
    /// CONNECT.
    Connect = 2,
    /// Extended CONNECT (RFC 8441).
    ExtendedConnect = 3,
}

/// An event. `data` of content is in the caller's input, everything else in the connection: valid until the next call with this
/// connection, and as long as the caller does not change the input.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct wl_h2_event {
    /// The fields, pseudo-fields first.
    pub fields: *const wl_field,
    /// The number of fields.
    pub fields_len: usize,
    /// Content or other bytes.
    pub data: *const u8,
    /// The number of bytes.
    pub len: usize,
    /// The round trip of a PING.
    pub round_trip_ns: u64,
    /// A `wl_h2_event_kind`.
    pub kind: u32,
    /// The stream; 0: the connection.
    pub stream: u32,
    /// Another stream.
    pub other: u32,
    /// An error code (RFC 9113 section 7).
    pub code: u32,
    /// The status of a response.
    pub status: u16,
    /// 1: the message ends here.
    pub end_stream: u8,
    /// A `wl_h2_request_kind`.
    pub request_kind: u8,
    /// Of a reset: 1 if the peer did it.
    pub by_peer: u8,
}

impl wl_h2_event {
    fn new(kind: wl_h2_event_kind, stream: u32) -> Self {
        Self {
            fields: core::ptr::null(),
            fields_len: 0,
            data: core::ptr::null(),
            len: 0,
            round_trip_ns: 0,
            kind: kind as u32,
            stream,
            other: 0,
            code: 0,
            status: 0,
            end_stream: 0,
            request_kind: 0,
            by_peer: 0,
        }
    }
}

/// The fields and bytes of the events of one call. Its vectors may move while events are added, so the records of the events are given
/// their pointers at the end of the call.
#[derive(Default)]
struct Arena {
    bytes: Vec<u8>,
    spans: Vec<Span>,
    fields: Records,
    /// The spans and fields of each event.
    holdings: Vec<Holding>,
}

/// The records of the fields.
#[derive(Default)]
struct Records(Vec<wl_field>);

// SAFETY: its pointers are only into the bytes of the same arena, which move with it.
unsafe impl Send for Records {}

// SAFETY: as above; through a shared reference nothing changes.
unsafe impl Sync for Records {}

#[derive(Clone, Copy)]
struct Span {
    start: usize,
    name_len: usize,
    value_len: usize,
    sensitive: bool,
}

#[derive(Clone, Copy)]
enum Holding {
    Nothing,
    /// Fields from this one on.
    Fields(usize),
    /// Bytes from this one on.
    Bytes(usize),
}

fn memory_len<T>(vector: &Vec<T>) -> usize {
    vector.capacity() * size_of::<T>()
}

fn clear<T>(vector: &mut Vec<T>) {
    vector.clear();
    if memory_len(vector) > KEPT_MAX {
        *vector = Vec::new();
    }
}

impl Arena {
    /// Frees what an unusually large call needed.
    fn clear(&mut self) {
        clear(&mut self.bytes);
        clear(&mut self.spans);
        clear(&mut self.fields.0);
        clear(&mut self.holdings);
    }

    /// The memory that it uses, in bytes.
    fn memory_len(&self) -> usize {
        memory_len(&self.bytes)
            + memory_len(&self.spans)
            + memory_len(&self.fields.0)
            + memory_len(&self.holdings)
    }

    fn push_field(&mut self, name: &[u8], value: &[u8], sensitive: bool) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(name);
        self.bytes.extend_from_slice(value);
        self.spans.push(Span { start, name_len: name.len(), value_len: value.len(), sensitive });
    }

    fn push_fields(&mut self, list: &FieldList) -> Holding {
        let first = self.spans.len();
        list.iter().for_each(|field| self.push_field(field.name(), field.value(), field.is_sensitive()));
        Holding::Fields(first)
    }

    fn push_bytes(&mut self, bytes: &[u8]) -> Holding {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        Holding::Bytes(start)
    }

    /// Gives the records their pointers.
    fn finish(&mut self, events: &mut [MaybeUninit<wl_h2_event>]) {
        let bytes = &self.bytes;
        self.fields.0.extend(self.spans.iter().map(|span| {
            let value_start = span.start + span.name_len;
            wl_field {
                name: wl_slice::new(&bytes[span.start..value_start]),
                value: wl_slice::new(&bytes[value_start..value_start + span.value_len]),
                sensitive: span.sensitive.into(),
            }
        }));
        for (event, holding) in events.iter_mut().zip(&self.holdings) {
            // SAFETY: there is a holding for each event that was written, and for no other.
            let event = unsafe { event.assume_init_mut() };
            match *holding {
                Holding::Nothing => {}
                Holding::Fields(first) => event.fields = self.fields.0[first..].as_ptr(),
                Holding::Bytes(start) => event.data = self.bytes[start..].as_ptr(),
            }
        }
    }

    /// The record of an event that `connection` has just reported. Its pointers into the arena are missing.
    fn record(&mut self, event: &Event<'_>, connection: &Connection) -> wl_h2_event {
        use wl_h2_event_kind as Kind;
        let id = |stream: &StreamKey| stream.id();
        let fields = connection.fields();
        let message = |kind, stream: &StreamKey| {
            let fields_len = fields.len();
            wl_h2_event { fields_len, ..wl_h2_event::new(kind, stream.id()) }
        };
        let (record, holding) = match event {
            Event::Data { stream, data, end_stream } => {
                let (data, len) = (data.as_ptr(), data.len());
                let end_stream = (*end_stream).into();
                (
                    wl_h2_event { data, len, end_stream, ..wl_h2_event::new(Kind::Data, id(stream)) },
                    Holding::Nothing,
                )
            }
            Event::Request { stream, kind, end_stream } => {
                let request_kind = match kind {
                    RequestKind::Plain => wl_h2_request_kind::Plain,
                    RequestKind::Head => wl_h2_request_kind::Head,
                    RequestKind::Connect => wl_h2_request_kind::Connect,
                    RequestKind::ExtendedConnect => wl_h2_request_kind::ExtendedConnect,
                } as u8;
                let end_stream = (*end_stream).into();
                let record = message(Kind::Request, stream);
                (wl_h2_event { request_kind, end_stream, ..record }, self.push_fields(fields))
            }
            Event::Response { stream, status, end_stream } => {
                let record = message(Kind::Response, stream);
                let end_stream = (*end_stream).into();
                (wl_h2_event { status: *status, end_stream, ..record }, self.push_fields(fields))
            }
            Event::Informational { stream, status } => {
                let record = message(Kind::Informational, stream);
                (wl_h2_event { status: *status, ..record }, self.push_fields(fields))
            }
            Event::Trailers { stream } => {
                let record = message(Kind::Trailers, stream);
                (wl_h2_event { end_stream: 1, ..record }, self.push_fields(fields))
            }
            Event::Promise { stream, promised } => {
                let record = message(Kind::Promise, promised);
                let stream = stream.as_ref().map_or(0, id);
                (wl_h2_event { stream, other: promised.id(), ..record }, self.push_fields(fields))
            }
            Event::Reset { stream, code, error } => {
                let by_peer = error.is_none().into();
                let record = wl_h2_event::new(Kind::Reset, id(stream));
                (wl_h2_event { code: code.get(), by_peer, ..record }, Holding::Nothing)
            }
            Event::Refused { stream } => (wl_h2_event::new(Kind::Refused, id(stream)), Holding::Nothing),
            Event::Writable { stream } => (wl_h2_event::new(Kind::Writable, id(stream)), Holding::Nothing),
            Event::Settings => (wl_h2_event::new(Kind::Settings, 0), Holding::Nothing),
            Event::SettingsAcknowledged => {
                (wl_h2_event::new(Kind::SettingsAcknowledged, 0), Holding::Nothing)
            }
            Event::Pong { payload, round_trip } => {
                let round_trip_ns = nanoseconds(*round_trip).max(1);
                let record = wl_h2_event { len: 8, round_trip_ns, ..wl_h2_event::new(Kind::Pong, 0) };
                (record, self.push_bytes(payload))
            }
            Event::GoAway { last_stream_id, code } => {
                let debug_data = connection.debug_data();
                let (other, len) = (last_stream_id.get(), debug_data.len());
                let record =
                    wl_h2_event { other, len, code: code.get(), ..wl_h2_event::new(Kind::GoAway, 0) };
                (record, self.push_bytes(debug_data))
            }
            Event::Priority { stream, priority } => {
                let record = wl_h2_event::new(Kind::Priority, id(stream));
                let Priority { urgency, incremental } = *priority;
                (
                    wl_h2_event { code: urgency.into(), end_stream: incremental.into(), ..record },
                    Holding::Nothing,
                )
            }
            Event::AltSvc { stream_id } => {
                let (origin, value) = connection.alt_svc();
                let first = self.spans.len();
                self.push_field(origin, value, false);
                let record = wl_h2_event::new(Kind::AltSvc, stream_id.get());
                (wl_h2_event { fields_len: 1, ..record }, Holding::Fields(first))
            }
            Event::Origin => {
                let first = self.spans.len();
                let mut fields_len = 0;
                for origin in connection.origins() {
                    self.push_field(b"", origin, false);
                    fields_len += 1;
                }
                (wl_h2_event { fields_len, ..wl_h2_event::new(Kind::Origin, 0) }, Holding::Fields(first))
            }
            _ => unreachable!("an event without a record"),
        };
        self.holdings.push(holding);
        record
    }
}

fn with<R>(h2: wl_h2, f: impl FnOnce(&mut Connection) -> Result<R, Error>) -> Result<R, wl_status> {
    CONNECTIONS.with(h2.id, |Http2 { connection, last_error, .. }| {
        f(connection).map_err(|error| {
            *last_error = Some(error);
            error.into()
        })
    })
}

/// The stream with this identifier.
fn find(connection: &Connection, stream: u32) -> Result<StreamKey, Error> {
    let id = StreamId::new(stream).filter(|id| !id.is_connection());
    let key = id.and_then(|id| connection.find(id));
    key.ok_or(Error::Misuse(wireloom_http2::error::Misuse::StreamGone))
}

/// One end of a new connection: over TLS with ALPN "h2", or with prior knowledge. `role` is a `wl_role`; `config` may be null: the
/// defaults.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_h2_new(role: u32, config: *const wl_h2_config, h2: *mut wl_h2) -> wl_status {
    call(|| {
        let role = http2_role(role)?;
        // SAFETY: the caller's promise is passed on.
        let (mut config, slot) = unsafe { (http2_config(role, config)?, memory::out(h2)?) };
        config.decoded_len_max = DECODED_LEN_MAX;
        let connection = Connection::new(role, config)?;
        let http2 = Http2 { connection, arena: Arena::default(), offered: 0, last_error: None };
        slot.write(wl_h2 { id: CONNECTIONS.insert(http2)? });
        Ok(())
    })
}

/// Frees a connection. 0 is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn wl_h2_free(h2: wl_h2) -> wl_status {
    call(|| CONNECTIONS.remove(h2.id))
}

/// Handles bytes from the peer; also without any, to get events that a command, a timeout or a GOAWAY caused. `events` gets the events,
/// `events_len` their number, and `consumed` the number of bytes that were used up.
///
/// `WL_STATUS_MORE`: handle the events, then call again with the remaining bytes, which may be none. `WL_STATUS_OK`: everything was
/// handled; if bytes remain, the peer does not read: write output first. `WL_STATUS_PEER_MISBEHAVED` and `WL_STATUS_LIMIT_EXCEEDED`,
/// which are returned once: the connection failed after these events; write its output, which has GOAWAY, then close the transport.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_h2_handle_input(
    h2: wl_h2,
    now_ns: u64,
    input: *const u8,
    len: usize,
    consumed: *mut usize,
    events: *mut wl_h2_event,
    capacity: usize,
    events_len: *mut usize,
) -> wl_status {
    call(|| {
        let [bytes, records] = [Extent::of(input, len), Extent::of(events, capacity)];
        disjoint([bytes, records, Extent::of(consumed, 1), Extent::of(events_len, 1)])?;
        // SAFETY: the caller's promise is passed on; the arguments are disjoint.
        let (input, consumed, events, events_len) = unsafe {
            (
                memory::array(input, len)?,
                memory::out(consumed)?,
                memory::out_array(events, capacity)?,
                memory::out(events_len)?,
            )
        };
        consumed.write(0);
        events_len.write(0);
        if events.is_empty() {
            return Err(wl_status::BufferTooSmall);
        }
        CONNECTIONS.with(h2.id, |Http2 { connection, arena, last_error, .. }| {
            arena.clear();
            connection.take_decoded_len();
            let (mut used, mut found) = (0, 0);
            let result = loop {
                if found == events.len() {
                    break Ok(wl_status::More);
                }
                match connection.handle_input(time(now_ns), &input[used..]) {
                    // No record: what was sent leaves with the output.
                    Ok((taken, Some(Event::SendEnded { .. }))) => used += taken,
                    Ok((taken, Some(event))) => {
                        events[found].write(arena.record(&event, connection));
                        used += taken;
                        found += 1;
                    }
                    Ok((taken, None)) => {
                        used += taken;
                        // The peer reads, so the rest is left for the fields that were decoded.
                        let is_full = used < input.len() && connection.wants_read();
                        break Ok(if is_full { wl_status::More } else { wl_status::Ok });
                    }
                    Err(error) => {
                        *last_error = Some(error);
                        used = input.len();
                        break Err(error.into());
                    }
                }
            };
            arena.finish(events);
            consumed.write(used);
            events_len.write(found);
            result
        })
    })
}

/// The peer has closed its side of the transport.
#[unsafe(no_mangle)]
pub extern "C" fn wl_h2_handle_eof(h2: wl_h2) -> wl_status {
    call(|| {
        with(h2, |connection| {
            connection.handle_eof();
            Ok(())
        })
    })
}

/// The time is `now_ns`: acts on the deadline of `wl_h2_poll_timeout` if it has passed. Pass the input that has arrived to
/// `wl_h2_handle_input` first: the peer is not late if this process is. Errors: the connection has ended.
#[unsafe(no_mangle)]
pub extern "C" fn wl_h2_handle_timeout(h2: wl_h2, now_ns: u64) -> wl_status {
    call(|| with(h2, |connection| connection.handle_timeout(time(now_ns))))
}

/// Whether the caller reads from the transport: `is_reading` 1, as at first, or 0. While it does not, for example for lack of memory, the
/// peer cannot be late: no timeout of the peer runs but that for the output it accepts.
#[unsafe(no_mangle)]
pub extern "C" fn wl_h2_set_reading(h2: wl_h2, now_ns: u64, is_reading: u8) -> wl_status {
    call(|| {
        let is_reading = flag(is_reading)?;
        with(h2, |connection| {
            connection.set_reading(time(now_ns), is_reading);
            Ok(())
        })
    })
}

/// The output to write, in order: `slices` gets at most `capacity` of its slices, `slices_len` their number. They are valid until the
/// next call with this connection, and can be written with `writev`. Then call `wl_h2_transmitted`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_h2_poll_transmit(
    h2: wl_h2,
    now_ns: u64,
    slices: *mut wl_slice,
    capacity: usize,
    slices_len: *mut usize,
) -> wl_status {
    call(|| {
        disjoint([Extent::of(slices, capacity), Extent::of(slices_len, 1)])?;
        // SAFETY: the caller's promise is passed on; the arguments are disjoint.
        let (out, slices_len) = unsafe { (memory::out_array(slices, capacity)?, memory::out(slices_len)?) };
        CONNECTIONS.with(h2.id, |Http2 { connection, offered, .. }| {
            let mut found = [&[][..]; WL_SLICES_MAX];
            let count = connection.poll_transmit(time(now_ns), &mut found[..capacity.min(WL_SLICES_MAX)]);
            out.iter_mut()
                .zip(&found[..count])
                .for_each(|(slot, bytes)| _ = slot.write(wl_slice::new(bytes)));
            slices_len.write(count);
            *offered = found[..count].iter().map(|bytes| bytes.len()).sum();
            Ok(())
        })
    })
}

/// `len` bytes of the output of the last `wl_h2_poll_transmit` were written.
#[unsafe(no_mangle)]
pub extern "C" fn wl_h2_transmitted(h2: wl_h2, now_ns: u64, len: usize) -> wl_status {
    call(|| {
        CONNECTIONS.with(h2.id, |Http2 { connection, offered, .. }| {
            *offered = offered.checked_sub(len).ok_or(wl_status::InvalidArgument)?;
            connection.transmitted(time(now_ns), len);
            Ok(())
        })
    })
}

/// Moves output into a buffer: `len` gets the number of bytes, 0 when there is none. For transports without `writev`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_h2_take_output(
    h2: wl_h2,
    now_ns: u64,
    buffer: *mut u8,
    capacity: usize,
    len: *mut usize,
) -> wl_status {
    call(|| {
        disjoint([Extent::of(buffer, capacity), Extent::of(len, 1)])?;
        // SAFETY: the caller's promise is passed on; the arguments are disjoint.
        let (buffer, len) = unsafe { (memory::out_array(buffer, capacity)?, memory::out(len)?) };
        CONNECTIONS.with(h2.id, |Http2 { connection, offered, .. }| {
            *offered = 0;
            let mut moved = 0;
            while moved < capacity {
                let mut found = [&[][..]; WL_SLICES_MAX];
                let count = connection.poll_transmit(time(now_ns), &mut found);
                let taken = memory::gather(&found[..count], &mut buffer[moved..]);
                if taken == 0 {
                    break;
                }
                connection.transmitted(time(now_ns), taken);
                moved += taken;
            }
            len.write(moved);
            Ok(())
        })
    })
}

/// The time at which to call `wl_h2_handle_timeout`; `WL_NEVER` if there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_h2_poll_timeout(h2: wl_h2, deadline_ns: *mut u64) -> wl_status {
    call(|| {
        // SAFETY: the caller's promise is passed on.
        let slot = unsafe { memory::out(deadline_ns)? };
        with(h2, |connection| {
            slot.write(deadline(connection.poll_timeout()));
            Ok(())
        })
    })
}

/// Sends a request, or queues it until the peer allows another stream. `stream` gets its stream. `end_stream` 1: it has no content.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_h2_send_request(
    h2: wl_h2,
    fields: *const wl_field,
    count: usize,
    end_stream: u8,
    stream: *mut u32,
) -> wl_status {
    call(|| {
        // SAFETY: the caller's promise is passed on; the arguments are disjoint.
        let (fields, slot) =
            unsafe { (hpack::fields(fields, count, &[Extent::of(stream, 1)])?, memory::out(stream)?) };
        let end_stream = flag(end_stream)?;
        with(h2, |connection| {
            slot.write(connection.send_request(fields, end_stream)?.id());
            Ok(())
        })
    })
}

/// Sends the final response. `end_stream` 1: it has no content.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_h2_send_response(
    h2: wl_h2,
    stream: u32,
    fields: *const wl_field,
    count: usize,
    end_stream: u8,
) -> wl_status {
    call(|| {
        // SAFETY: the caller's promise is passed on.
        let fields = unsafe { hpack::fields(fields, count, &[])? };
        let end_stream = flag(end_stream)?;
        with(h2, |connection| connection.send_response(find(connection, stream)?, fields, end_stream))
    })
}

/// Sends an interim response.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_h2_send_informational(
    h2: wl_h2,
    stream: u32,
    fields: *const wl_field,
    count: usize,
) -> wl_status {
    call(|| {
        // SAFETY: the caller's promise is passed on.
        let fields = unsafe { hpack::fields(fields, count, &[])? };
        with(h2, |connection| connection.send_informational(find(connection, stream)?, fields))
    })
}

/// Promises the response to a request of the server's choice on the stream of a request. `promised` gets its stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_h2_push_promise(
    h2: wl_h2,
    stream: u32,
    fields: *const wl_field,
    count: usize,
    promised: *mut u32,
) -> wl_status {
    call(|| {
        // SAFETY: the caller's promise is passed on; the arguments are disjoint.
        let (fields, slot) =
            unsafe { (hpack::fields(fields, count, &[Extent::of(promised, 1)])?, memory::out(promised)?) };
        with(h2, |connection| {
            slot.write(connection.push_promise(find(connection, stream)?, fields)?.id());
            Ok(())
        })
    })
}

/// Queues content, which is copied. `end_stream` 1: it is the last.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_h2_send_data(
    h2: wl_h2,
    stream: u32,
    data: *const u8,
    len: usize,
    end_stream: u8,
) -> wl_status {
    call(|| {
        // SAFETY: the caller's promise is passed on.
        let data = unsafe { memory::array(data, len)? };
        let end_stream = flag(end_stream)?;
        with(h2, |connection| {
            let stream = find(connection, stream)?;
            connection.send_data(stream, bytes::Bytes::copy_from_slice(data), end_stream)
        })
    })
}

/// Sends trailers, which end the message.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_h2_send_trailers(
    h2: wl_h2,
    stream: u32,
    fields: *const wl_field,
    count: usize,
) -> wl_status {
    call(|| {
        // SAFETY: the caller's promise is passed on.
        let fields = unsafe { hpack::fields(fields, count, &[])? };
        with(h2, |connection| connection.send_trailers(find(connection, stream)?, fields))
    })
}

/// Resets a stream with an error code (RFC 9113 section 7).
#[unsafe(no_mangle)]
pub extern "C" fn wl_h2_reset(h2: wl_h2, stream: u32, code: u32) -> wl_status {
    call(|| with(h2, |connection| connection.reset(find(connection, stream)?, ErrorCode::from(code))))
}

/// The room in the send queue of a stream, in bytes. At 0, `WL_H2_EVENT_KIND_WRITABLE` reports when there is room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_h2_send_capacity(h2: wl_h2, stream: u32, capacity: *mut usize) -> wl_status {
    call(|| {
        // SAFETY: the caller's promise is passed on.
        let slot = unsafe { memory::out(capacity)? };
        with(h2, |connection| {
            let stream = find(connection, stream)?;
            slot.write(connection.send_capacity(stream));
            Ok(())
        })
    })
}

/// The application has used `len` bytes of content: grants the peer as much window. Only without `auto_release`.
#[unsafe(no_mangle)]
pub extern "C" fn wl_h2_release_capacity(h2: wl_h2, stream: u32, len: usize) -> wl_status {
    call(|| with(h2, |connection| connection.release_capacity(find(connection, stream)?, len)))
}

/// Changes the priority of a response (RFC 9218): `urgency` 0 to 7; `incremental` 0 or 1. A client sends it to the server.
#[unsafe(no_mangle)]
pub extern "C" fn wl_h2_set_priority(h2: wl_h2, stream: u32, urgency: u8, incremental: u8) -> wl_status {
    call(|| {
        let incremental = flag(incremental)?;
        if urgency > Priority::URGENCY_MAX {
            return Err(wl_status::InvalidArgument);
        }
        let priority = Priority { urgency, incremental };
        with(h2, |connection| {
            let stream = find(connection, stream)?;
            match connection.role() {
                Role::Server => connection.set_priority(stream, priority),
                Role::Client => connection.send_priority_update(stream, priority),
            }
        })
    })
}

/// Sends a PING with 8 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_h2_send_ping(h2: wl_h2, now_ns: u64, payload: *const [u8; 8]) -> wl_status {
    call(|| {
        // SAFETY: the caller's promise is passed on.
        let payload = unsafe { memory::read(payload)? };
        with(h2, |connection| connection.send_ping(time(now_ns), payload))
    })
}

/// Ends the connection gracefully: no new streams, those that are open finish.
#[unsafe(no_mangle)]
pub extern "C" fn wl_h2_shutdown(h2: wl_h2) -> wl_status {
    call(|| {
        with(h2, |connection| {
            connection.shutdown();
            Ok(())
        })
    })
}

/// Ends the connection at once with an error code, and debug data for the peer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_h2_abort(h2: wl_h2, code: u32, debug_data: *const u8, len: usize) -> wl_status {
    call(|| {
        // SAFETY: the caller's promise is passed on.
        let debug_data = unsafe { memory::array(debug_data, len)? };
        with(h2, |connection| {
            connection.abort(ErrorCode::from(code), debug_data);
            Ok(())
        })
    })
}

/// The end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum wl_h2_ended {
    /// It has not ended.
    No = 0,
    /// All streams finished after a graceful shutdown.
    Drained = 1,
    /// The peer broke a rule or exceeded a limit.
    Failed = 2,
    /// By `wl_h2_abort`.
    Aborted = 3,
    /// The transport ended.
    Eof = 4,
}

/// The state of an HTTP/2 connection.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct wl_h2_state {
    /// The memory that the connection uses for the peer, in bytes: also that of the events of the last `wl_h2_handle_input`.
    pub memory_len: u64,
    /// The number of streams.
    pub streams: usize,
    /// The number of requests that can be sent now without waiting.
    pub open_capacity: usize,
    /// The error code with which the connection failed or was aborted.
    pub code: u32,
    /// A `wl_h2_ended`.
    pub ended: u8,
    /// 1: no new streams.
    pub is_going_away: u8,
    /// 1: there is output.
    pub wants_write: u8,
    /// 0: write output before passing more input.
    pub wants_read: u8,
    /// 1: the server allows extended CONNECT (RFC 8441).
    pub has_connect_protocol: u8,
}

/// Stores the state.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_h2_get_state(h2: wl_h2, state: *mut wl_h2_state) -> wl_status {
    call(|| {
        // SAFETY: the caller's promise is passed on.
        let slot = unsafe { memory::out(state)? };
        CONNECTIONS.with(h2.id, |Http2 { connection, arena, .. }| {
            let (ended, code) = match connection.ended() {
                None => (wl_h2_ended::No, ErrorCode::NO_ERROR),
                Some(Ended::Drained) => (wl_h2_ended::Drained, ErrorCode::NO_ERROR),
                Some(Ended::Failed(error)) => {
                    (wl_h2_ended::Failed, error.code().unwrap_or(ErrorCode::INTERNAL_ERROR))
                }
                Some(Ended::Aborted(code)) => (wl_h2_ended::Aborted, code),
                Some(_) => (wl_h2_ended::Eof, ErrorCode::NO_ERROR),
            };
            slot.write(wl_h2_state {
                memory_len: connection.memory().total() + arena.memory_len() as u64,
                streams: connection.streams(),
                open_capacity: connection.open_capacity(),
                code: code.get(),
                ended: ended as u8,
                is_going_away: connection.is_going_away().into(),
                wants_write: connection.wants_write().into(),
                wants_read: connection.wants_read().into(),
                has_connect_protocol: connection.peer_settings().enable_connect_protocol.into(),
            });
            Ok(())
        })
    })
}

/// The reason of the last error that a call with this connection returned, in English: a static text. Absent before the first.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_h2_error(h2: wl_h2, text: *mut wl_slice) -> wl_status {
    call(|| {
        // SAFETY: the caller's promise is passed on.
        let slot = unsafe { memory::out(text)? };
        CONNECTIONS.with(h2.id, |Http2 { last_error, .. }| {
            let reason = last_error.map(|error| wl_slice::new(error.reason().as_bytes()));
            slot.write(reason.unwrap_or(wl_slice::ABSENT));
            Ok(())
        })
    })
}

/// Frees the memory that an idle connection does not need.
#[unsafe(no_mangle)]
pub extern "C" fn wl_h2_release_buffers(h2: wl_h2) -> wl_status {
    call(|| {
        CONNECTIONS.with(h2.id, |Http2 { connection, arena, .. }| {
            connection.shrink();
            *arena = Arena::default();
            Ok(())
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        out.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
        out.extend_from_slice(&[kind, flags]);
        out.extend_from_slice(&stream.to_be_bytes());
        out.extend_from_slice(payload);
    }

    /// GET, each but the first with 16 references to a field of 3,900 bytes in the dynamic table.
    fn requests(count: u32) -> Vec<u8> {
        let mut input = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        frame(&mut input, 4, 0, 0, &[]);
        let mut block = b"\x82\x86\x84\x41\x01a\x40\x01x\x7f\xbd\x1d".to_vec();
        block.resize(block.len() + 3_900, b'v');
        frame(&mut input, 1, 5, 1, &block);
        let block = [&b"\x82\x86\x84\xbf"[..], &[0xbe; 16]].concat();
        (1..count).for_each(|index| frame(&mut input, 1, 5, 2 * index + 1, &block));
        input
    }

    #[test]
    fn a_few_bytes_of_input_do_not_hold_megabytes() {
        const REQUESTS: u32 = 64;
        let mut h2 = wl_h2 { id: 0 };
        let memory_len = |h2| {
            let mut state = MaybeUninit::<wl_h2_state>::uninit();
            // SAFETY: a place for the state, which is written.
            unsafe {
                assert_eq!(wl_h2_get_state(h2, state.as_mut_ptr()), wl_status::Ok);
                state.assume_init().memory_len
            }
        };
        // SAFETY: the arguments are valid, and the events are written up to `found`.
        unsafe {
            assert_eq!(wl_h2_new(wl_role::Server as u32, core::ptr::null(), &mut h2), wl_status::Ok);
            let input = requests(REQUESTS);
            let mut events = [const { MaybeUninit::<wl_h2_event>::uninit() }; 256];
            let (mut at, mut seen) = (0, 0);
            loop {
                let (mut used, mut found) = (0, 0);
                let rest = &input[at..];
                let slots = events.as_mut_ptr().cast();
                let status =
                    wl_h2_handle_input(h2, 1, rest.as_ptr(), rest.len(), &mut used, slots, 256, &mut found);
                at += used;
                let events = events[..found].iter().map(|event| event.assume_init_ref());
                let fields: usize = events.clone().map(|event| event.fields_len).sum();
                // Below the bound one more block is begun.
                assert!(fields * 3_900 <= DECODED_LEN_MAX * 3, "{fields} fields at once");
                assert!(memory_len(h2) > fields as u64 * 100, "the events count");
                seen += events.filter(|event| event.kind == wl_h2_event_kind::Request as u32).count();
                if status != wl_status::More {
                    assert_eq!(status, wl_status::Ok);
                    break;
                }
            }
            assert_eq!((at, seen), (input.len(), REQUESTS as usize));
            let (mut used, mut found) = (0, 0);
            let slots = events.as_mut_ptr().cast();
            let status = wl_h2_handle_input(h2, 1, core::ptr::null(), 0, &mut used, slots, 256, &mut found);
            assert_eq!((status, found), (wl_status::Ok, 0));
            CONNECTIONS
                .with(h2.id, |http2| {
                    assert!(http2.arena.memory_len() <= 4 * KEPT_MAX);
                    Ok(())
                })
                .unwrap();
            wl_h2_free(h2);
        }
    }

    #[test]
    fn a_peer_is_not_late_while_nothing_is_read() {
        const SECOND: u64 = 1_000_000_000;
        let mut h2 = wl_h2 { id: 0 };
        let next_deadline = |h2| {
            let mut deadline_ns = 0;
            // SAFETY: a place for the deadline.
            assert_eq!(unsafe { wl_h2_poll_timeout(h2, &mut deadline_ns) }, wl_status::Ok);
            deadline_ns
        };
        let input = requests(1);
        // SAFETY: the arguments are valid.
        unsafe {
            assert_eq!(wl_h2_new(wl_role::Server as u32, core::ptr::null(), &mut h2), wl_status::Ok);
            let mut events = [const { MaybeUninit::<wl_h2_event>::uninit() }; 4];
            let (mut used, mut found) = (0, 0);
            let (slots, len) = (events.as_mut_ptr().cast(), input.len() - 1);
            let status = wl_h2_handle_input(h2, 1, input.as_ptr(), len, &mut used, slots, 4, &mut found);
            assert_eq!((status, used), (wl_status::Ok, len));
            let mut output = [0; 256];
            let status = wl_h2_take_output(h2, 1, output.as_mut_ptr(), output.len(), &mut used);
            assert_eq!(status, wl_status::Ok);
            assert!(used < output.len());
        }
        assert_ne!(next_deadline(h2), WL_NEVER);
        assert_eq!(wl_h2_set_reading(h2, SECOND, 2), wl_status::InvalidArgument);
        assert_eq!(wl_h2_set_reading(h2, SECOND, 0), wl_status::Ok);
        assert_eq!(next_deadline(h2), WL_NEVER);
        assert_eq!(wl_h2_handle_timeout(h2, 600 * SECOND), wl_status::Ok);
        assert_eq!(wl_h2_set_reading(h2, 600 * SECOND, 1), wl_status::Ok);
        assert_eq!(wl_h2_handle_timeout(h2, 601 * SECOND), wl_status::Ok);
        assert!(next_deadline(h2) > 601 * SECOND);
        assert_ne!(next_deadline(h2), WL_NEVER);
        assert_eq!(wl_h2_free(h2), wl_status::Ok);
    }
}
