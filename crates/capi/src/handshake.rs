//! The opening handshake over HTTP/1.1 (RFC 6455 §4), of both ends.

use crate::call::call;
use crate::config::*;
use crate::handle::Table;
use crate::memory::{self, Extent, Versioned, apart, disjoint};
use crate::slice::{self, wl_field, wl_slice};
use crate::status::wl_status;
use crate::ws::{open, wl_ws};
use wireloom_ws::Role;
use wireloom_ws::deflate::DeflateConfig;
use wireloom_ws::handshake::error::{HandshakeError, Misuse};
use wireloom_ws::handshake::{
    Acceptance, ClientHandshake, ClientOptions, Negotiated, Response, ServerHandshake, client, server,
};

/// The server's handshake: reads a request, and answers it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct wl_server_handshake {
    /// The number of the handshake; 0 is none.
    pub id: u64,
}

/// The client's handshake: has a request, and reads the answer.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct wl_client_handshake {
    /// The number of the handshake; 0 is none.
    pub id: u64,
}

/// The progress of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum wl_progress {
    /// More input is needed.
    Incomplete = 0,
    /// A server: the request is complete, and waits for an answer. A client: the server has accepted.
    Complete = 1,
    /// A client: the server has refused.
    Refused = 2,
}

/// A part of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum wl_request_part {
    /// Path and query.
    Resource = 0,
    /// The host, perhaps with a port.
    Host = 1,
    /// The origin; absent if the client sent none.
    Origin = 2,
    /// The subprotocols that the client offers, as in its header; absent if it offers none.
    Subprotocols = 3,
}

/// The options of a client. Set them with `wl_client_options_default`, then change fields: `host` and `resource` have no default.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct wl_client_options {
    /// `sizeof(wl_client_options)`.
    pub size: usize,
    /// The host, perhaps with a port: the value of `Host`.
    pub host: wl_slice,
    /// Path and query, such as "/chat".
    pub resource: wl_slice,
    /// The origin; absent: none, the default.
    pub origin: wl_slice,
    /// The subprotocols, the preferred one first.
    pub subprotocols: *const wl_slice,
    /// The number of subprotocols. Default: 0.
    pub subprotocols_len: usize,
    /// More headers.
    pub headers: *const wl_field,
    /// The number of headers. Default: 0.
    pub headers_len: usize,
    /// Offers permessage-deflate; null: does not, the default.
    pub deflate: *const wl_deflate_config,
}

// SAFETY: only integers and pointers; the first is the size.
unsafe impl Versioned for wl_client_options {
    fn defaults() -> Self {
        let absent = wl_slice::ABSENT;
        Self {
            size: size_of::<Self>(),
            host: absent,
            resource: absent,
            origin: absent,
            subprotocols: core::ptr::null(),
            subprotocols_len: 0,
            headers: core::ptr::null(),
            headers_len: 0,
            deflate: core::ptr::null(),
        }
    }
}

/// Stores the defaults. `size` is `sizeof(wl_client_options)`; no more is written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_client_options_default(
    options: *mut wl_client_options,
    size: usize,
) -> wl_status {
    // SAFETY: the caller's promise is passed on.
    call(|| unsafe { memory::write_defaults(options, size) })
}

struct Server {
    handshake: ServerHandshake,
    accepted: Option<(Negotiated, Option<DeflateConfig>)>,
    error: Option<HandshakeError>,
    /// The last text that was returned.
    text: String,
}

struct Client {
    handshake: ClientHandshake,
    deflate: Option<DeflateConfig>,
    accepted: Option<Negotiated>,
    response: Option<Response>,
    error: Option<HandshakeError>,
}

static SERVERS: Table<Server> = Table::new(8);
static CLIENTS: Table<Client> = Table::new(9);

fn misuse(misuse: Misuse) -> wl_status {
    match misuse {
        Misuse::NoRequest | Misuse::Finished => wl_status::WrongState,
        _ => wl_status::InvalidArgument,
    }
}

fn failure(error: HandshakeError) -> wl_status {
    match error {
        HandshakeError::Request(_) | HandshakeError::Response(_) => wl_status::PeerMisbehaved,
        HandshakeError::Limit(_) => wl_status::LimitExceeded,
        HandshakeError::Misuse(error) => misuse(error),
        _ => wl_status::NotAllowed,
    }
}

/// The headers of the caller as text. They do not overlap `outputs`.
unsafe fn headers<'a>(
    fields: *const wl_field,
    count: usize,
    outputs: &[Extent],
) -> Result<Vec<(&'a str, &'a str)>, wl_status> {
    // SAFETY: the caller's promise is passed on.
    let fields = unsafe { slice::fields(fields, count, outputs)? };
    let text = |field: &wl_field| {
        // SAFETY: as above.
        let (name, value) = unsafe { (field.name.text()?, field.value.text()?) };
        Ok((name.unwrap_or_default(), value.unwrap_or_default()))
    };
    fields.iter().map(text).collect()
}

/// A handshake that waits for its first byte. `limits` may be null: the defaults.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_server_handshake_new(
    limits: *const wl_handshake_limits,
    handshake: *mut wl_server_handshake,
) -> wl_status {
    call(|| {
        // SAFETY: the caller's promise is passed on.
        let (limits, slot) = unsafe { (handshake_limits(limits)?, memory::out(handshake)?) };
        let handshake = ServerHandshake::new(limits);
        let id = SERVERS.insert(Server { handshake, accepted: None, error: None, text: String::new() })?;
        slot.write(wl_server_handshake { id });
        Ok(())
    })
}

/// Handles bytes from the client. `progress` gets a `wl_progress`, and `consumed` the number of bytes that belong to the handshake;
/// those behind them belong to the connection. Errors: the request is not a valid handshake; send `wl_server_handshake_refusal`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_server_handshake_input(
    handshake: wl_server_handshake,
    input: *const u8,
    len: usize,
    consumed: *mut usize,
    progress: *mut u32,
) -> wl_status {
    call(|| {
        disjoint([Extent::of(input, len), Extent::of(consumed, 1), Extent::of(progress, 1)])?;
        // SAFETY: the caller's promise is passed on; the arguments are disjoint.
        let (input, consumed, progress) =
            unsafe { (memory::array(input, len)?, memory::out(consumed)?, memory::out(progress)?) };
        consumed.write(0);
        progress.write(wl_progress::Incomplete as u32);
        SERVERS.with(handshake.id, |server| {
            match server.handshake.handle_input(input) {
                Ok(server::Progress::Incomplete) => consumed.write(input.len()),
                Ok(server::Progress::Complete { consumed: used }) => {
                    consumed.write(used);
                    progress.write(wl_progress::Complete as u32);
                }
                Err(error) => {
                    if !matches!(error, HandshakeError::Misuse(_)) {
                        server.error = Some(error);
                    }
                    return Err(failure(error));
                }
            }
            Ok(())
        })
    })
}

/// A part of the complete request (a `wl_request_part`): valid until the next call with this handshake. An absent part has a null
/// pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_server_handshake_request(
    handshake: wl_server_handshake,
    part: u32,
    value: *mut wl_slice,
) -> wl_status {
    call(|| {
        // SAFETY: the caller's promise is passed on.
        let slot = unsafe { memory::out(value)? };
        SERVERS.with(handshake.id, |Server { handshake, text, .. }| {
            let request = handshake.request().ok_or(wl_status::WrongState)?;
            let found = match part {
                0 => Some(request.resource()),
                1 => Some(request.host()),
                2 => request.origin(),
                3 => {
                    *text = request.subprotocols().collect::<Vec<_>>().join(", ");
                    (!text.is_empty()).then_some(text.as_str())
                }
                _ => return Err(wl_status::InvalidArgument),
            };
            slot.write(found.map_or(wl_slice::ABSENT, |text| wl_slice::new(text.as_bytes())));
            Ok(())
        })
    })
}

/// The value of the first header with this name, in any case: valid until the next call with this handshake. An absent header has a null
/// pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_server_handshake_header(
    handshake: wl_server_handshake,
    name: wl_slice,
    value: *mut wl_slice,
) -> wl_status {
    call(|| {
        disjoint([name.extent(), Extent::of(value, 1)])?;
        // SAFETY: the caller's promise is passed on; the arguments are disjoint.
        let (name, slot) = unsafe { (name.text()?.ok_or(wl_status::NullPointer)?, memory::out(value)?) };
        SERVERS.with(handshake.id, |server| {
            let request = server.handshake.request().ok_or(wl_status::WrongState)?;
            slot.write(request.header(name).map_or(wl_slice::ABSENT, wl_slice::new));
            Ok(())
        })
    })
}

/// Accepts the request. `buffer` gets the response, `len` its length. `subprotocol` is one that the client offers, or absent;
/// `deflate` accepts permessage-deflate if the client offers it, null: does not; `headers` are added. After
/// `WL_STATUS_BUFFER_TOO_SMALL` the request still waits: call again with a buffer of `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_server_handshake_accept(
    handshake: wl_server_handshake,
    subprotocol: wl_slice,
    deflate: *const wl_deflate_config,
    headers: *const wl_field,
    headers_len: usize,
    buffer: *mut u8,
    capacity: usize,
    len: *mut usize,
) -> wl_status {
    call(|| {
        let outputs = [Extent::of(buffer, capacity), Extent::of(len, 1)];
        apart(&outputs, subprotocol.extent())?;
        // SAFETY: the caller's promise is passed on; the arguments are disjoint.
        let (subprotocol, headers) =
            unsafe { (subprotocol.text()?, self::headers(headers, headers_len, &outputs)?) };
        let deflate = match deflate.is_null() {
            true => None,
            // SAFETY: as above.
            false => Some(unsafe { deflate_config(deflate)? }),
        };
        let acceptance = Acceptance { subprotocol, deflate: deflate.as_ref(), headers: &headers };
        SERVERS.with(handshake.id, |server| {
            let mut response = Vec::new();
            let mut answered = server.handshake.clone();
            let negotiated = answered.accept(&acceptance, &mut response).map_err(misuse)?;
            // SAFETY: as above.
            unsafe { memory::copy_out(&response, buffer, capacity, len)? };
            server.handshake = answered;
            server.accepted = Some((negotiated, deflate.clone()));
            Ok(())
        })
    })
}

/// Refuses the request with a status from 200 to 599 and a text as the body. `buffer` gets the response, `len` its length; close the
/// connection after it. After `WL_STATUS_BUFFER_TOO_SMALL` the request still waits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_server_handshake_reject(
    handshake: wl_server_handshake,
    status: u16,
    body: wl_slice,
    headers: *const wl_field,
    headers_len: usize,
    buffer: *mut u8,
    capacity: usize,
    len: *mut usize,
) -> wl_status {
    call(|| {
        let outputs = [Extent::of(buffer, capacity), Extent::of(len, 1)];
        apart(&outputs, body.extent())?;
        // SAFETY: the caller's promise is passed on; the arguments are disjoint.
        let (body, headers) = unsafe { (body.bytes()?, self::headers(headers, headers_len, &outputs)?) };
        let mut refusal = Response::refusal(status).map_err(misuse)?;
        for (name, value) in headers {
            refusal = refusal.with_header(name, value).map_err(misuse)?;
        }
        if let Some(body) = body {
            refusal = refusal.with_body("text/plain; charset=utf-8", body).map_err(misuse)?;
        }
        SERVERS.with(handshake.id, |server| {
            let mut response = Vec::new();
            let mut answered = server.handshake.clone();
            answered.reject(&refusal, &mut response).map_err(misuse)?;
            // SAFETY: as above.
            unsafe { memory::copy_out(&response, buffer, capacity, len)? };
            server.handshake = answered;
            Ok(())
        })
    })
}

/// The response to a request that was not valid. Close the connection after it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_server_handshake_refusal(
    handshake: wl_server_handshake,
    buffer: *mut u8,
    capacity: usize,
    len: *mut usize,
) -> wl_status {
    call(|| {
        SERVERS.with(handshake.id, |server| {
            let mut response = Vec::new();
            server.error.ok_or(wl_status::WrongState)?.refusal().write_to(&mut response);
            // SAFETY: the caller's promise is passed on.
            unsafe { memory::copy_out(&response, buffer, capacity, len) }
        })
    })
}

/// Why the request is not valid, in English: valid until the handshake is freed. Absent if it is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_server_handshake_error(
    handshake: wl_server_handshake,
    text: *mut wl_slice,
) -> wl_status {
    call(|| {
        // SAFETY: the caller's promise is passed on.
        let slot = unsafe { memory::out(text)? };
        SERVERS.with(handshake.id, |server| {
            slot.write(reason(server.error));
            Ok(())
        })
    })
}

fn reason(error: Option<HandshakeError>) -> wl_slice {
    error.map_or(wl_slice::ABSENT, |error| wl_slice::new(error.reason().as_bytes()))
}

/// The connection of an accepted handshake. `config` may be null: the defaults. Once for each handshake; then free it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_server_handshake_open(
    handshake: wl_server_handshake,
    config: *const wl_ws_config,
    now_ns: u64,
    ws: *mut wl_ws,
) -> wl_status {
    call(|| {
        // SAFETY: the caller's promise is passed on.
        let (config, slot) = unsafe { (ws_config(config)?, memory::out(ws)?) };
        SERVERS.with(handshake.id, |server| {
            let (negotiated, deflate) = server.accepted.take().ok_or(wl_status::WrongState)?;
            let deflate = negotiated.deflate.zip(deflate.as_ref());
            slot.write(open(Role::Server, config, deflate, None, now_ns)?);
            Ok(())
        })
    })
}

/// Frees a handshake. 0 is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn wl_server_handshake_free(handshake: wl_server_handshake) -> wl_status {
    call(|| SERVERS.remove(handshake.id))
}

/// A handshake with a request. `nonce`: 16 random bytes, new for each handshake. `limits` may be null: the defaults.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_client_handshake_new(
    options: *const wl_client_options,
    nonce: *const [u8; 16],
    limits: *const wl_handshake_limits,
    handshake: *mut wl_client_handshake,
) -> wl_status {
    call(|| {
        // SAFETY: the caller's promise is passed on.
        let (from, nonce, limits, slot) = unsafe {
            let options = memory::read_versioned(options)?;
            (options, memory::read(nonce)?, handshake_limits(limits)?, memory::out(handshake)?)
        };
        // SAFETY: as above.
        let (host, resource) = unsafe { (from.host.text()?, from.resource.text()?) };
        let [Some(host), Some(resource)] = [host, resource] else { return Err(wl_status::NullPointer) };
        let mut options = ClientOptions::new(host, resource);
        // SAFETY: as above.
        if let Some(origin) = unsafe { from.origin.text()? } {
            options = options.origin(origin);
        }
        // SAFETY: as above.
        for name in unsafe { memory::array(from.subprotocols, from.subprotocols_len)? } {
            // SAFETY: as above.
            options = options.subprotocol(unsafe { name.text()? }.ok_or(wl_status::NullPointer)?);
        }
        // SAFETY: as above.
        for (name, value) in unsafe { headers(from.headers, from.headers_len, &[])? } {
            options = options.header(name, value);
        }
        let deflate = match from.deflate.is_null() {
            true => None,
            // SAFETY: as above.
            false => Some(unsafe { deflate_config(from.deflate)? }),
        };
        if let Some(deflate) = &deflate {
            options = options.deflate(deflate.clone());
        }
        let handshake = ClientHandshake::new(options, nonce, limits).map_err(misuse)?;
        let client = Client { handshake, deflate, accepted: None, response: None, error: None };
        slot.write(wl_client_handshake { id: CLIENTS.insert(client)? });
        Ok(())
    })
}

/// The request to write: valid until the handshake is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_client_handshake_request(
    handshake: wl_client_handshake,
    request: *mut wl_slice,
) -> wl_status {
    call(|| {
        // SAFETY: the caller's promise is passed on.
        let slot = unsafe { memory::out(request)? };
        CLIENTS.with(handshake.id, |client| {
            slot.write(wl_slice::new(client.handshake.request()));
            Ok(())
        })
    })
}

/// Handles bytes from the server. `progress` gets a `wl_progress`, and `consumed` the number of bytes that belong to the handshake;
/// those behind them belong to the connection, or to the body of the refusal. Errors: the response does not answer the handshake; close
/// the connection.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_client_handshake_input(
    handshake: wl_client_handshake,
    input: *const u8,
    len: usize,
    consumed: *mut usize,
    progress: *mut u32,
) -> wl_status {
    call(|| {
        disjoint([Extent::of(input, len), Extent::of(consumed, 1), Extent::of(progress, 1)])?;
        // SAFETY: the caller's promise is passed on; the arguments are disjoint.
        let (input, consumed, progress) =
            unsafe { (memory::array(input, len)?, memory::out(consumed)?, memory::out(progress)?) };
        consumed.write(0);
        progress.write(wl_progress::Incomplete as u32);
        CLIENTS.with(handshake.id, |client| {
            match client.handshake.handle_input(input) {
                Ok(client::Progress::Incomplete) => consumed.write(input.len()),
                Ok(client::Progress::Done { negotiated, consumed: used }) => {
                    client.accepted = Some(negotiated);
                    client.response = client.handshake.response();
                    consumed.write(used);
                    progress.write(wl_progress::Complete as u32);
                }
                Ok(client::Progress::Refused { response, consumed: used }) => {
                    client.response = Some(response);
                    consumed.write(used);
                    progress.write(wl_progress::Refused as u32);
                }
                Err(error) => {
                    if !matches!(error, HandshakeError::Misuse(_)) {
                        client.error = Some(error);
                    }
                    return Err(failure(error));
                }
            }
            Ok(())
        })
    })
}

/// The status of the response; 0 before it is complete.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_client_handshake_status(
    handshake: wl_client_handshake,
    status: *mut u16,
) -> wl_status {
    call(|| {
        // SAFETY: the caller's promise is passed on.
        let slot = unsafe { memory::out(status)? };
        CLIENTS.with(handshake.id, |client| {
            slot.write(client.response.as_ref().map_or(0, Response::status));
            Ok(())
        })
    })
}

/// The value of the first header of the response with this name, in any case, `Sec-WebSocket-Protocol` among them: valid until the next
/// call with this handshake. An absent header has a null pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_client_handshake_header(
    handshake: wl_client_handshake,
    name: wl_slice,
    value: *mut wl_slice,
) -> wl_status {
    call(|| {
        disjoint([name.extent(), Extent::of(value, 1)])?;
        // SAFETY: the caller's promise is passed on; the arguments are disjoint.
        let (name, slot) = unsafe { (name.text()?.ok_or(wl_status::NullPointer)?, memory::out(value)?) };
        CLIENTS.with(handshake.id, |client| {
            let response = client.response.as_ref().ok_or(wl_status::WrongState)?;
            slot.write(response.header(name).map_or(wl_slice::ABSENT, wl_slice::new));
            Ok(())
        })
    })
}

/// Why the response does not answer the handshake, in English: valid until the handshake is freed. Absent if it does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_client_handshake_error(
    handshake: wl_client_handshake,
    text: *mut wl_slice,
) -> wl_status {
    call(|| {
        // SAFETY: the caller's promise is passed on.
        let slot = unsafe { memory::out(text)? };
        CLIENTS.with(handshake.id, |client| {
            slot.write(reason(client.error));
            Ok(())
        })
    })
}

/// The connection of a handshake that the server accepted. `config` may be null: the defaults. `seed`: 32 bytes from the source of
/// randomness of the operating system, new for each connection (RFC 6455 section 10.3). Once for each handshake; then free it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_client_handshake_open(
    handshake: wl_client_handshake,
    config: *const wl_ws_config,
    seed: *const [u8; 32],
    now_ns: u64,
    ws: *mut wl_ws,
) -> wl_status {
    call(|| {
        // SAFETY: the caller's promise is passed on.
        let (config, seed, slot) = unsafe { (ws_config(config)?, memory::read(seed)?, memory::out(ws)?) };
        CLIENTS.with(handshake.id, |client| {
            let negotiated = client.accepted.take().ok_or(wl_status::WrongState)?;
            let deflate = negotiated.deflate.zip(client.deflate.as_ref());
            slot.write(open(Role::Client, config, deflate, Some(seed), now_ns)?);
            Ok(())
        })
    })
}

/// Frees a handshake. 0 is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn wl_client_handshake_free(handshake: wl_client_handshake) -> wl_status {
    call(|| CLIENTS.remove(handshake.id))
}
