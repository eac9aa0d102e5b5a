//! The WebSocket connection.

use crate::call::call;
use crate::config::*;
use crate::handle::Table;
use crate::memory::{self, Extent, disjoint};
use crate::prepared::{self, wl_prepared};
use crate::slice::wl_slice;
use crate::status::wl_status;
use core::mem::MaybeUninit;
use core::time::Duration;
use wireloom_ws::deflate::{DeflateConfig, DeflateParams};
use wireloom_ws::{
    Cause, CloseCode, Config, Connection, Error, Event, Initiator, Kind, Pong, Role, Transport, utf8,
};

/// A WebSocket after its handshake (RFC 6455).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct wl_ws {
    /// The number of the connection; 0 is none.
    pub id: u64,
}

struct WebSocket {
    connection: Connection,
    /// The last round trip that a Pong has measured.
    round_trip_ns: u64,
    /// The last text that `wl_ws_end` returned.
    text: String,
}

static CONNECTIONS: Table<WebSocket> = Table::new(7);

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum wl_ws_event_kind {
    /// A text message. It is valid UTF-8.
    Text = 1,
    /// A binary message.
    Binary = 2,
    /// A chunk of a text message. A code point may be split between two chunks.
    TextChunk = 3,
    /// A chunk of a binary message.
    BinaryChunk = 4,
    /// A Ping. Its Pong is queued already.
    Ping = 5,
    /// A Pong.
    Pong = 6,
    /// The peer's Close frame. The answer is queued already.
    Close = 7,
}

/// An event. `data` is in the caller's input or in the connection: it is valid as long as the caller does not change the input, and until
/// the next call of `wl_ws_handle_input`, `wl_ws_recv_slot`, `wl_ws_recv_slot_filled`, `wl_ws_release_buffers` or `wl_ws_free` with
/// this connection. Messages can be sent meanwhile.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct wl_ws_event {
    /// The payload; of a Close frame the reason, which is UTF-8.
    pub data: *const u8,
    /// The length of the payload, in bytes.
    pub len: usize,
    /// A `wl_ws_event_kind`.
    pub kind: u32,
    /// Of a Close frame: its code; 1005 if it has none (RFC 6455 section 7.1.5).
    pub code: u16,
    /// Of a chunk: 1 if it is the first one of its message. 1 for a message.
    pub first: u8,
    /// Of a chunk: 1 if it is the last one of its message. 1 for a message.
    pub fin: u8,
}

impl wl_ws_event {
    #[inline(always)]
    fn new(kind: wl_ws_event_kind, data: &[u8]) -> Self {
        let (data, len) = (data.as_ptr(), data.len());
        Self { data, len, kind: kind as u32, code: 0, first: 1, fin: 1 }
    }

    #[inline(never)]
    fn from_event(event: &Event<'_>) -> Self {
        match event {
            Event::Chunk(chunk) => {
                let kind = match chunk.kind {
                    Kind::Text => wl_ws_event_kind::TextChunk,
                    Kind::Binary => wl_ws_event_kind::BinaryChunk,
                };
                Self { first: chunk.first.into(), fin: chunk.fin.into(), ..Self::new(kind, chunk.data) }
            }
            Event::Pong(pong) => Self::new(wl_ws_event_kind::Pong, pong.payload),
            Event::Close(close) => {
                let code = close.code.unwrap_or(CloseCode::NO_STATUS).value();
                Self { code, ..Self::new(wl_ws_event_kind::Close, close.reason.as_bytes()) }
            }
            Event::Ping(payload) => Self::new(wl_ws_event_kind::Ping, payload),
            Event::Text(text) => Self::new(wl_ws_event_kind::Text, text.as_bytes()),
            Event::Binary(data) => Self::new(wl_ws_event_kind::Binary, data),
            _ => unreachable!("an event without a record"),
        }
    }
}

/// How to treat the transport once everything is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum wl_transport {
    /// Keep it open.
    Open = 0,
    /// Shut down its writing side, and read on, until the end or the deadline.
    ShutdownWrite = 1,
    /// Close it. A server whose socket may hold unread bytes first reads once, without waiting, and passes them to
    /// `wl_ws_handle_input`: if the peer has sent any behind its Close frame, this becomes `WL_TRANSPORT_SHUTDOWN_WRITE`, because a
    /// socket that is closed with unread bytes is reset, and the peer loses what it has not received. The same happens if it sends
    /// some later: while the socket has bytes that were not sent (`SIOCOUTQNSD` on Linux), pass one byte.
    Close = 2,
}

/// The state of a WebSocket.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct wl_ws_state {
    /// The bytes that are queued for transmission.
    pub queued_len: u64,
    /// The time between the last Ping that was answered and its Pong; 0 before the first.
    pub round_trip_ns: u64,
    /// The number of Pings sent, keepalive included.
    pub pings_sent: u32,
    /// The newest Ping that was answered, counted from 1.
    pub pings_answered: u32,
    /// 1: messages can be sent.
    pub is_open: u8,
    /// 1: there is output.
    pub wants_write: u8,
    /// 1: the send queue is long; a sender should pause.
    pub is_congested: u8,
    /// 1: permessage-deflate was negotiated.
    pub is_compressed: u8,
    /// 1: both Close frames were exchanged.
    pub was_clean: u8,
    /// 1: the connection is ending or has ended; `wl_ws_end` has the cause.
    pub has_end: u8,
    /// A `wl_transport`.
    pub transport: u8,
    /// A `wl_role`.
    pub role: u8,
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum wl_ws_cause {
    /// It has not ended.
    None = 0,
    /// A Close frame.
    Close = 1,
    /// The peer broke a rule.
    PeerMisbehaved = 2,
    /// The peer exceeded a limit.
    LimitExceeded = 3,
    /// The peer was silent.
    Silence = 4,
    /// The peer did not finish the closing handshake in time.
    CloseTimeout = 5,
    /// The transport ended without a closing handshake.
    TransportClosed = 6,
}

/// The side that ended a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum wl_initiator {
    /// This end.
    Local = 0,
    /// The peer.
    Peer = 1,
    /// The transport.
    Transport = 2,
}

/// How a connection ended. The texts are valid until the next call with the connection.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct wl_ws_end {
    /// The reason of the Close frame.
    pub reason: wl_slice,
    /// The cause in English.
    pub text: wl_slice,
    /// A `wl_ws_cause`.
    pub cause: u32,
    /// A `wl_initiator`.
    pub by: u32,
    /// The code (RFC 6455 section 7.1.5): 1005 without one, 1006 without a Close frame.
    pub code: u16,
}

/// Makes a handle of a connection.
pub(crate) fn open(
    role: Role,
    config: Config,
    deflate: Option<(DeflateParams, &DeflateConfig)>,
    seed: Option<[u8; 32]>,
    now_ns: u64,
) -> Result<wl_ws, wl_status> {
    let connection = match (role, seed) {
        (Role::Server, _) => Connection::server(config, deflate, time(now_ns)),
        (Role::Client, Some(seed)) => Connection::client(config, deflate, seed, time(now_ns)),
        (Role::Client, None) => return Err(wl_status::NullPointer),
    };
    Ok(wl_ws { id: CONNECTIONS.insert(WebSocket { connection, round_trip_ns: 0, text: String::new() })? })
}

fn with<R>(ws: wl_ws, f: impl FnOnce(&mut Connection) -> Result<R, wl_status>) -> Result<R, wl_status> {
    CONNECTIONS.with(ws.id, |ws| f(&mut ws.connection))
}

/// The body of a function that cannot fail but for its handle.
fn run(ws: wl_ws, f: impl FnOnce(&mut Connection)) -> wl_status {
    call(|| {
        with(ws, |connection| {
            f(connection);
            Ok(())
        })
    })
}

/// A connection whose handshake was done elsewhere. `role` is a `wl_role`; `params` are the negotiated ones, null without
/// permessage-deflate; `config` and `deflate` may be null: the defaults. `seed`, which only a client needs: 32 bytes from the source of
/// randomness of the operating system, new for each connection (RFC 6455 section 10.3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_ws_new(
    role: u32,
    config: *const wl_ws_config,
    params: *const wl_deflate_params,
    deflate: *const wl_deflate_config,
    seed: *const [u8; 32],
    now_ns: u64,
    ws: *mut wl_ws,
) -> wl_status {
    call(|| {
        // SAFETY: the caller's promise is passed on.
        let (slot, config, deflate) =
            unsafe { (memory::out(ws)?, ws_config(config)?, deflate_config(deflate)?) };
        let params = match params.is_null() {
            true => None,
            // SAFETY: as above.
            false => Some((unsafe { memory::read(params)? }.negotiated()?, &deflate)),
        };
        let seed = match seed.is_null() {
            true => None,
            // SAFETY: as above.
            false => Some(unsafe { memory::read(seed)? }),
        };
        slot.write(open(ws_role(role)?, config, params, seed, now_ns)?);
        Ok(())
    })
}

/// Frees a connection. 0 is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn wl_ws_free(ws: wl_ws) -> wl_status {
    call(|| CONNECTIONS.remove(ws.id))
}

/// Handles bytes from the peer. They are unmasked in place, and a message that arrived in one piece is not copied. `events` gets the
/// events, `events_len` their number, and `consumed` the number of bytes that were used up.
///
/// `WL_STATUS_MORE`: handle the events, then call again with the remaining bytes, which may be none. `WL_STATUS_OK`: everything was
/// handled. A Close frame is handled by a call of its own, so that the messages before it can be answered; with a capacity of 1 this
/// holds for whatever ends the connection. `WL_STATUS_PEER_MISBEHAVED` and `WL_STATUS_LIMIT_EXCEEDED`, which are returned once: the connection failed after these
/// events; write its output, which has the Close frame, and treat the transport as `wl_ws_state` says. Later input is dropped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_ws_handle_input(
    ws: wl_ws,
    now_ns: u64,
    input: *mut u8,
    len: usize,
    consumed: *mut usize,
    events: *mut wl_ws_event,
    capacity: usize,
    events_len: *mut usize,
) -> wl_status {
    call(|| {
        let [bytes, records] = [Extent::of(input, len), Extent::of(events, capacity)];
        disjoint([bytes, records, Extent::of(consumed, 1), Extent::of(events_len, 1)])?;
        // SAFETY: the caller's promise is passed on; the arguments are disjoint.
        let (input, consumed, events, events_len) = unsafe {
            (
                memory::array_mut(input, len)?,
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
        CONNECTIONS.with(ws.id, |ws| {
            let (used, found, result) = handle_input(ws, now_ns, input, events);
            consumed.write(used);
            events_len.write(found);
            result
        })
    })
}

/// Whether the next frame is a Close frame. Handling it ends the sending of messages, so the caller can first answer those before it.
#[inline]
fn is_close(rest: &[u8]) -> bool {
    rest.first().is_some_and(|byte| byte & 0x0f == wireloom_ws::Opcode::Close as u8)
}

/// Returns the bytes that were consumed and the events that were stored.
///
/// The loop over whole messages keeps few values, so that they stay in registers: the numbers follow from what is left at its end.
#[inline]
fn handle_input(
    ws: &mut WebSocket,
    now_ns: u64,
    input: &mut [u8],
    events: &mut [MaybeUninit<wl_ws_event>],
) -> (usize, usize, Result<wl_status, wl_status>) {
    let now = time(now_ns);
    let (input_len, capacity) = (input.len(), events.len());
    let (mut rest, mut slots) = (input, events.iter_mut());
    while let Some(slot) = slots.next() {
        match ws.connection.handle_whole(now, rest) {
            Some((taken, Event::Text(text))) => {
                slot.write(wl_ws_event::new(wl_ws_event_kind::Text, text.as_bytes()));
                rest = &mut rest[taken..];
            }
            Some((taken, Event::Binary(data))) => {
                slot.write(wl_ws_event::new(wl_ws_event_kind::Binary, &data));
                rest = &mut rest[taken..];
            }
            _ => {
                let found = capacity - slots.len() - 1;
                if found > 0 && is_close(rest) {
                    return (input_len - rest.len(), found, Ok(wl_status::More));
                }
                match handle_other(ws, now, rest, slot) {
                    Ok((taken, is_last)) => {
                        rest = &mut rest[taken..];
                        if is_last {
                            break;
                        }
                    }
                    Err(result) => return (input_len, found, result),
                }
            }
        }
    }
    (input_len - rest.len(), capacity - slots.len(), Ok(wl_status::More))
}

/// Handles what is not a whole message. Returns the bytes that were consumed for an event, and whether its data is in the connection, where
/// the next event may take its place; or the result of the call if there is no event.
#[inline(never)]
fn handle_other(
    ws: &mut WebSocket,
    now: Duration,
    input: &mut [u8],
    slot: &mut MaybeUninit<wl_ws_event>,
) -> Result<(usize, bool), Result<wl_status, wl_status>> {
    let start = input.as_ptr();
    let result = ws.connection.handle_input(now, input);
    let (taken, Some(event)) = result.map_err(|error| Err(error.into()))? else {
        return Err(Ok(wl_status::Ok));
    };
    if let Event::Pong(Pong { round_trip: Some(time), .. }) = event {
        ws.round_trip_ns = nanoseconds(time).max(1);
    }
    let event = slot.write(wl_ws_event::from_event(&event));
    let is_in_input = event.len == 0 || event.data.addr().wrapping_sub(start.addr()) < taken;
    Ok((taken, !is_in_input))
}

/// Space for the next bytes of a large message, in the memory in which it is assembled: read into it, then call
/// `wl_ws_recv_slot_filled`. `space` and `len` get its address and length, 0 outside of a large message; then read into a buffer of
/// your own and call `wl_ws_handle_input`. The space is valid until the next call with this connection.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_ws_recv_slot(ws: wl_ws, space: *mut *mut u8, len: *mut usize) -> wl_status {
    call(|| {
        disjoint([Extent::of(space, 1), Extent::of(len, 1)])?;
        // SAFETY: the caller's promise is passed on; the arguments are disjoint.
        let (space, len) = unsafe { (memory::out(space)?, memory::out(len)?) };
        space.write(core::ptr::null_mut());
        len.write(0);
        with(ws, |connection| {
            if let Some(mut slot) = connection.recv_slot() {
                space.write(slot.as_mut_ptr());
                len.write(slot.len());
            }
            Ok(())
        })
    })
}

/// `len` bytes were read into the front of the space of `wl_ws_recv_slot`. If they complete the message, `event` gets it and
/// `events_len` is 1. Errors: as for `wl_ws_handle_input`; `WL_STATUS_INVALID_ARGUMENT` if the space is shorter or there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_ws_recv_slot_filled(
    ws: wl_ws,
    now_ns: u64,
    len: usize,
    event: *mut wl_ws_event,
    events_len: *mut usize,
) -> wl_status {
    call(|| {
        disjoint([Extent::of(event, 1), Extent::of(events_len, 1)])?;
        // SAFETY: the caller's promise is passed on; the arguments are disjoint.
        let (slot, events_len) = unsafe { (memory::out(event)?, memory::out(events_len)?) };
        events_len.write(0);
        with(ws, |connection| {
            let space = connection.recv_slot().filter(|space| len <= space.len());
            if let Some(event) = space.ok_or(wl_status::InvalidArgument)?.filled(time(now_ns), len)? {
                slot.write(wl_ws_event::from_event(&event));
                events_len.write(1);
            }
            Ok(())
        })
    })
}

/// The reading side of the transport has ended.
#[unsafe(no_mangle)]
pub extern "C" fn wl_ws_handle_eof(ws: wl_ws) -> wl_status {
    run(ws, |connection| connection.handle_eof())
}

/// Bytes of the peer have arrived, which are kept for later because the application has not taken an event yet: the peer is alive.
/// `wl_ws_handle_input` and `wl_ws_recv_slot_filled` do this themselves.
#[unsafe(no_mangle)]
pub extern "C" fn wl_ws_handle_activity(ws: wl_ws, now_ns: u64) -> wl_status {
    run(ws, |connection| connection.handle_activity(time(now_ns)))
}

/// Writing to the transport failed: nothing more can be sent.
#[unsafe(no_mangle)]
pub extern "C" fn wl_ws_handle_write_failed(ws: wl_ws, now_ns: u64) -> wl_status {
    run(ws, |connection| connection.handle_write_failed(time(now_ns), drop))
}

/// The time is `now_ns`: acts on the deadline of `wl_ws_poll_timeout` if it has passed. Pass the input that has arrived to
/// `wl_ws_handle_input` first: the peer is not late if this process is.
#[unsafe(no_mangle)]
pub extern "C" fn wl_ws_handle_timeout(ws: wl_ws, now_ns: u64) -> wl_status {
    run(ws, |connection| connection.handle_timeout(time(now_ns)))
}

/// `flags`: do not compress this message.
pub const WL_SEND_UNCOMPRESSED: u32 = 1;

/// Queues a message. `kind` is a `wl_kind`; text must be valid UTF-8. The bytes are copied or compressed during the call. `flags` is 0
/// or `WL_SEND_UNCOMPRESSED`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_ws_send(
    ws: wl_ws,
    kind: u32,
    data: *const u8,
    len: usize,
    flags: u32,
) -> wl_status {
    call(|| {
        // SAFETY: the caller's promise is passed on.
        let data = unsafe { memory::array(data, len)? };
        let kind = message_kind(kind)?;
        if flags > WL_SEND_UNCOMPRESSED {
            return Err(wl_status::InvalidArgument);
        }
        let is_plain = flags & WL_SEND_UNCOMPRESSED != 0;
        with(ws, |connection| {
            match kind {
                Kind::Text => {
                    let text = utf8::text(data).map_err(|_| wl_status::InvalidUtf8)?;
                    if is_plain {
                        connection.send_text_uncompressed(text)
                    } else {
                        connection.send_text(text)
                    }
                }
                Kind::Binary if is_plain => connection.send_binary_uncompressed(data),
                Kind::Binary => connection.send_binary(data),
            }
            .map_err(wl_status::from)
        })
    })
}

/// Queues a chunk of a message as a frame of its own; the last one has `fin` 1. Each chunk of a text is valid UTF-8. Between the chunks
/// only control frames can be sent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_ws_send_chunk(
    ws: wl_ws,
    kind: u32,
    data: *const u8,
    len: usize,
    fin: u8,
) -> wl_status {
    call(|| {
        // SAFETY: the caller's promise is passed on.
        let data = unsafe { memory::array(data, len)? };
        let (kind, fin) = (message_kind(kind)?, flag(fin)?);
        with(ws, |connection| {
            match kind {
                Kind::Text => {
                    connection.send_text_chunk(utf8::text(data).map_err(|_| wl_status::InvalidUtf8)?, fin)
                }
                Kind::Binary => connection.send_binary_chunk(data, fin),
            }
            .map_err(wl_status::from)
        })
    })
}

/// Queues a prepared message, without a copy. `WL_STATUS_NOT_ALLOWED`: this end is a client, or the message is compressed for others.
#[unsafe(no_mangle)]
pub extern "C" fn wl_ws_send_prepared(ws: wl_ws, prepared: wl_prepared) -> wl_status {
    call(|| {
        let frame = prepared::find(prepared)?;
        with(ws, |connection| connection.send_prepared(&frame).map_err(wl_status::from))
    })
}

/// The window for which a prepared message of `len` bytes should be compressed for this connection; 0: it should not be compressed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_ws_prepared_window_bits(ws: wl_ws, len: usize, bits: *mut u8) -> wl_status {
    call(|| {
        // SAFETY: the caller's promise is passed on.
        let slot = unsafe { memory::out(bits)? };
        with(ws, |connection| {
            slot.write(connection.prepared_window_bits(len).unwrap_or(0));
            Ok(())
        })
    })
}

/// Queues a Ping with a payload of at most 125 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_ws_send_ping(
    ws: wl_ws,
    now_ns: u64,
    payload: *const u8,
    len: usize,
) -> wl_status {
    call(|| {
        // SAFETY: the caller's promise is passed on.
        let payload = unsafe { memory::array(payload, len)? };
        with(ws, |connection| connection.send_ping(time(now_ns), payload).map_err(wl_status::from))
    })
}

/// Queues an unsolicited Pong with a payload of at most 125 bytes. Pings are answered without it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_ws_send_pong(ws: wl_ws, payload: *const u8, len: usize) -> wl_status {
    call(|| {
        // SAFETY: the caller's promise is passed on.
        let payload = unsafe { memory::array(payload, len)? };
        with(ws, |connection| connection.send_pong(payload).map_err(wl_status::from))
    })
}

/// Begins the closing handshake. `code` 0: a Close frame without a code and reason. The reason is UTF-8 of at most 123 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_ws_close(
    ws: wl_ws,
    now_ns: u64,
    code: u16,
    reason: *const u8,
    len: usize,
) -> wl_status {
    call(|| {
        // SAFETY: the caller's promise is passed on.
        let reason = unsafe { memory::array(reason, len)? };
        let reason = utf8::text(reason).map_err(|_| wl_status::InvalidUtf8)?;
        let code = (code != 0).then(|| CloseCode::new(code));
        with(ws, |connection| connection.close(time(now_ns), code, reason).map_err(wl_status::from))
    })
}

/// The most slices that one call of `wl_ws_poll_transmit` or `wl_h2_poll_transmit` returns.
pub const WL_SLICES_MAX: usize = 64;

/// The output to write, in order: `slices` gets at most `capacity` of its slices, `slices_len` their number. They are valid until the
/// next call with this connection, and can be written with `writev`. Then call `wl_ws_transmitted`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_ws_poll_transmit(
    ws: wl_ws,
    slices: *mut wl_slice,
    capacity: usize,
    slices_len: *mut usize,
) -> wl_status {
    call(|| {
        disjoint([Extent::of(slices, capacity), Extent::of(slices_len, 1)])?;
        // SAFETY: the caller's promise is passed on; the arguments are disjoint.
        let (out, slices_len) = unsafe { (memory::out_array(slices, capacity)?, memory::out(slices_len)?) };
        with(ws, |connection| {
            let mut found = [&[][..]; WL_SLICES_MAX];
            let count = connection.poll_transmit(&mut found[..capacity.min(WL_SLICES_MAX)]);
            out.iter_mut()
                .zip(&found[..count])
                .for_each(|(slot, bytes)| _ = slot.write(wl_slice::new(bytes)));
            slices_len.write(count);
            Ok(())
        })
    })
}

/// `len` bytes of the output were written.
#[unsafe(no_mangle)]
pub extern "C" fn wl_ws_transmitted(ws: wl_ws, len: usize) -> wl_status {
    call(|| {
        with(ws, |connection| {
            if len > connection.queued_len() {
                return Err(wl_status::InvalidArgument);
            }
            connection.transmitted(len);
            Ok(())
        })
    })
}

/// Moves output into a buffer: `len` gets the number of bytes, 0 when there is none. For transports without `writev`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_ws_take_output(
    ws: wl_ws,
    buffer: *mut u8,
    capacity: usize,
    len: *mut usize,
) -> wl_status {
    call(|| {
        disjoint([Extent::of(buffer, capacity), Extent::of(len, 1)])?;
        // SAFETY: the caller's promise is passed on; the arguments are disjoint.
        let (buffer, len) = unsafe { (memory::out_array(buffer, capacity)?, memory::out(len)?) };
        with(ws, |connection| {
            let mut moved = 0;
            while moved < capacity {
                let mut found = [&[][..]; WL_SLICES_MAX];
                let count = connection.poll_transmit(&mut found);
                let taken = memory::gather(&found[..count], &mut buffer[moved..]);
                if taken == 0 {
                    break;
                }
                connection.transmitted(taken);
                moved += taken;
            }
            len.write(moved);
            Ok(())
        })
    })
}

/// The time at which to call `wl_ws_handle_timeout`; `WL_NEVER` if there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_ws_poll_timeout(ws: wl_ws, deadline_ns: *mut u64) -> wl_status {
    call(|| {
        // SAFETY: the caller's promise is passed on.
        let slot = unsafe { memory::out(deadline_ns)? };
        with(ws, |connection| {
            slot.write(deadline(connection.poll_timeout()));
            Ok(())
        })
    })
}

/// Stores the state.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_ws_get_state(ws: wl_ws, state: *mut wl_ws_state) -> wl_status {
    call(|| {
        // SAFETY: the caller's promise is passed on.
        let slot = unsafe { memory::out(state)? };
        CONNECTIONS.with(ws.id, |WebSocket { connection, round_trip_ns, .. }| {
            let transport = match connection.transport() {
                Transport::Open => wl_transport::Open,
                Transport::ShutdownWrite => wl_transport::ShutdownWrite,
                Transport::Close => wl_transport::Close,
            };
            let role = match connection.role() {
                Role::Client => wl_role::Client,
                Role::Server => wl_role::Server,
            };
            slot.write(wl_ws_state {
                queued_len: connection.queued_len() as u64,
                round_trip_ns: *round_trip_ns,
                pings_sent: connection.pings_sent(),
                pings_answered: connection.pings_answered(),
                is_open: connection.is_open().into(),
                wants_write: connection.wants_write().into(),
                is_congested: connection.is_congested().into(),
                is_compressed: connection.is_compressed().into(),
                was_clean: connection.was_clean().into(),
                has_end: connection.end().is_some().into(),
                transport: transport as u8,
                role: role as u8,
            });
            Ok(())
        })
    })
}

/// Stores how the connection ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_ws_get_end(ws: wl_ws, end: *mut wl_ws_end) -> wl_status {
    call(|| {
        // SAFETY: the caller's promise is passed on.
        let slot = unsafe { memory::out(end)? };
        CONNECTIONS.with(ws.id, |WebSocket { connection, text, .. }| {
            text.clear();
            let Some(end) = connection.end() else {
                let [reason, text] = [wl_slice::ABSENT; 2];
                slot.write(wl_ws_end { reason, text, cause: wl_ws_cause::None as u32, by: 0, code: 0 });
                return Ok(());
            };
            let cause = match &end.cause {
                Cause::Close { .. } => {
                    text.push_str("Close frame");
                    wl_ws_cause::Close
                }
                Cause::Error(error) => {
                    *text = error.to_string();
                    match error {
                        Error::Limit(_) => wl_ws_cause::LimitExceeded,
                        _ => wl_ws_cause::PeerMisbehaved,
                    }
                }
                Cause::Silence => {
                    text.push_str("the peer was silent");
                    wl_ws_cause::Silence
                }
                Cause::CloseTimeout => {
                    text.push_str("the closing handshake timed out");
                    wl_ws_cause::CloseTimeout
                }
                _ => {
                    text.push_str("the transport was closed");
                    wl_ws_cause::TransportClosed
                }
            };
            let by = match end.by {
                Initiator::Local => wl_initiator::Local,
                Initiator::Peer => wl_initiator::Peer,
                Initiator::Transport => wl_initiator::Transport,
            };
            slot.write(wl_ws_end {
                reason: wl_slice::new(end.reason().as_bytes()),
                text: wl_slice::new(text.as_bytes()),
                cause: cause as u32,
                by: by as u32,
                code: end.code().value(),
            });
            Ok(())
        })
    })
}

/// Frees the memory that an idle connection does not need.
#[unsafe(no_mangle)]
pub extern "C" fn wl_ws_release_buffers(ws: wl_ws) -> wl_status {
    run(ws, |connection| connection.release_buffers())
}
