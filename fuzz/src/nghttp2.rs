//! nghttp2, through its C interface.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::{ptr, slice};

use libnghttp2_sys as sys;
use wireloom_http2::Role;
use wireloom_testing::http2::{code, kind};

use crate::differential::{Fault, Fields, Outcome, Peer, REQUESTS};

/// A server or a client.
struct Session {
    session: *mut sys::nghttp2_session,
    /// Boxed: the session has its address.
    state: Box<State>,
}

#[derive(Default)]
struct State {
    outcome: Outcome,
    /// The section of which fields arrive.
    section: BTreeMap<i32, Fields>,
    /// The last RST_STREAM that arrived.
    reset: Option<(u32, u32)>,
}

/// # Safety
/// `user_data` is the `State` that the session was made with, and nothing else uses it during the call.
unsafe fn state<'a>(user_data: *mut c_void) -> &'a mut State {
    // SAFETY: the caller's promise.
    unsafe { &mut *user_data.cast() }
}

unsafe extern "C" fn on_header(
    _: *mut sys::nghttp2_session,
    frame: *const sys::nghttp2_frame,
    name: *const u8,
    name_len: usize,
    value: *const u8,
    value_len: usize,
    _: u8,
    user_data: *mut c_void,
) -> c_int {
    // SAFETY: called back from a call made by `Session`, which does not touch the `State` during it; the name and the value
    // live as long as the callback, and every frame begins with its header.
    unsafe {
        let field = (
            slice::from_raw_parts(name, name_len).to_vec(),
            slice::from_raw_parts(value, value_len).to_vec(),
        );
        state(user_data).section.entry((*frame).hd.stream_id).or_default().push(field);
    }
    0
}

unsafe extern "C" fn on_begin(
    _: *mut sys::nghttp2_session,
    frame: *const sys::nghttp2_frame,
    user_data: *mut c_void,
) -> c_int {
    // SAFETY: as above.
    unsafe { state(user_data).section.insert((*frame).hd.stream_id, Fields::new()) };
    0
}

/// A frame is valid and complete.
unsafe extern "C" fn on_frame(
    _: *mut sys::nghttp2_session,
    frame: *const sys::nghttp2_frame,
    user_data: *mut c_void,
) -> c_int {
    // SAFETY: as above.
    let (state, header) = unsafe { (state(user_data), (*frame).hd) };
    let stream = header.stream_id as u32;
    if header.type_ == kind::HEADERS {
        let fields = state.section.remove(&header.stream_id).unwrap_or_default();
        state.outcome.messages.push((stream, fields));
    }
    if header.type_ == kind::RST_STREAM {
        // SAFETY: its type says which frame it is.
        state.reset = Some((stream, unsafe { (*frame).rst_stream.error_code }));
    }
    let is_message = header.type_ == kind::HEADERS || header.type_ == kind::DATA;
    if is_message && u32::from(header.flags) & sys::NGHTTP2_FLAG_END_STREAM != 0 {
        state.outcome.ended.insert(stream);
    }
    0
}

unsafe extern "C" fn on_data(
    _: *mut sys::nghttp2_session,
    _: u8,
    stream_id: i32,
    data: *const u8,
    len: usize,
    user_data: *mut c_void,
) -> c_int {
    // SAFETY: as above.
    unsafe {
        let content = state(user_data).outcome.content.entry(stream_id as u32).or_default();
        content.extend_from_slice(slice::from_raw_parts(data, len));
    }
    0
}

unsafe extern "C" fn on_close(
    session: *mut sys::nghttp2_session,
    stream_id: i32,
    error_code: u32,
    user_data: *mut c_void,
) -> c_int {
    // SAFETY: as above, and the session calls.
    let (state, is_server) =
        unsafe { (state(user_data), sys::nghttp2_session_check_server_session(session) != 0) };
    let stream = stream_id as u32;
    match state.reset {
        _ if is_server => {}
        Some((reset, code)) if reset == stream => {
            state.outcome.resets.insert(stream, code);
        }
        _ if error_code == code::REFUSED_STREAM => {
            state.outcome.refused.insert(stream);
        }
        _ => {}
    }
    0
}

/// The content of a request that goes on.
unsafe extern "C" fn on_read(
    _: *mut sys::nghttp2_session,
    _: i32,
    _: *mut u8,
    _: usize,
    _: *mut u32,
    _: *mut sys::nghttp2_data_source,
    _: *mut c_void,
) -> isize {
    sys::NGHTTP2_ERR_DEFERRED as isize
}

impl Session {
    fn new(role: Role, settings: &[(i32, u32)]) -> Self {
        let mut state = Box::<State>::default();
        let mut session = ptr::null_mut();
        let settings: Vec<_> = settings
            .iter()
            .map(|&(settings_id, value)| sys::nghttp2_settings_entry { settings_id, value })
            .collect();
        let create = match role {
            Role::Server => sys::nghttp2_session_server_new,
            Role::Client => sys::nghttp2_session_client_new,
        };
        // SAFETY: the callbacks and the settings are copied into the session; the state is boxed and outlives it.
        unsafe {
            let mut callbacks = ptr::null_mut();
            assert_eq!(sys::nghttp2_session_callbacks_new(&mut callbacks), 0);
            sys::nghttp2_session_callbacks_set_on_begin_headers_callback(callbacks, Some(on_begin));
            sys::nghttp2_session_callbacks_set_on_header_callback(callbacks, Some(on_header));
            sys::nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, Some(on_frame));
            sys::nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, Some(on_data));
            sys::nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, Some(on_close));
            let user_data = (&raw mut *state).cast();
            assert_eq!(create(&mut session, callbacks, user_data), 0);
            sys::nghttp2_session_callbacks_del(callbacks);
            assert_eq!(sys::nghttp2_submit_settings(session, 0, settings.as_ptr(), settings.len()), 0);
        }
        Self { session, state }
    }

    fn request(&mut self, method: &str, ends: bool) {
        let fields =
            [(":method", method), (":authority", "a.example:443"), (":scheme", "https"), (":path", "/")];
        let fields = if method == "CONNECT" { &fields[..2] } else { &fields };
        let fields: Vec<_> = fields
            .iter()
            .map(|(name, value)| sys::nghttp2_nv {
                name: name.as_ptr().cast_mut(),
                value: value.as_ptr().cast_mut(),
                namelen: name.len(),
                valuelen: value.len(),
                flags: 0,
            })
            .collect();
        let content = sys::nghttp2_data_provider {
            source: sys::nghttp2_data_source { ptr: ptr::null_mut() },
            read_callback: Some(on_read),
        };
        let content = if ends { ptr::null() } else { &raw const content };
        // SAFETY: the session lives and copies the fields, which it does not write to, and the provider.
        let stream = unsafe {
            let (fields, len) = (fields.as_ptr(), fields.len());
            sys::nghttp2_submit_request(self.session, ptr::null(), fields, len, content, ptr::null_mut())
        };
        assert!(stream > 0, "nghttp2_submit_request: {stream}");
    }

    fn receive(&mut self, bytes: &[u8]) {
        // SAFETY: the session lives, and its state is not borrowed here.
        let taken = unsafe { sys::nghttp2_session_mem_recv(self.session, bytes.as_ptr(), bytes.len()) };
        if taken < 0 && self.state.outcome.fault.is_none() {
            // An error that it does not report to the peer: of the preface, or a flood.
            self.state.outcome.fault = Some(Fault { stream: 0, code: code::PROTOCOL_ERROR });
        }
        self.drain();
    }

    fn drain(&mut self) {
        let mut written = Vec::new();
        loop {
            let mut data = ptr::null();
            // SAFETY: the session lives; the bytes are valid until the next call.
            unsafe {
                let len = sys::nghttp2_session_mem_send(self.session, &mut data);
                assert!(len >= 0, "nghttp2_session_mem_send: {len}");
                if len == 0 {
                    break;
                }
                written.extend_from_slice(slice::from_raw_parts(data, len as usize));
            }
        }
        self.state.outcome.note_written(&written);
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // SAFETY: made by `new`, freed once, before its state.
        unsafe { sys::nghttp2_session_del(self.session) }
    }
}

pub struct Server(Session);

impl Server {
    #[allow(clippy::new_without_default, reason = "a fixture")]
    pub fn new() -> Self {
        Self(Session::new(Role::Server, &[(3, 100), (8, 1)]))
    }
}

impl Peer for Server {
    const NAME: &'static str = "nghttp2 server";
    const ROLE: Role = Role::Server;

    fn receive(&mut self, bytes: &[u8]) {
        self.0.receive(bytes);
    }

    fn outcome(&mut self) -> Outcome {
        self.0.state.outcome.clone()
    }
}

pub struct Client(Session);

impl Client {
    #[allow(clippy::new_without_default, reason = "a fixture")]
    pub fn new() -> Self {
        let mut session = Session::new(Role::Client, &[(2, 0)]);
        REQUESTS.iter().for_each(|(method, ends)| session.request(method, *ends));
        session.drain();
        Self(session)
    }
}

impl Peer for Client {
    const NAME: &'static str = "nghttp2 client";
    const ROLE: Role = Role::Client;

    fn receive(&mut self, bytes: &[u8]) {
        self.0.receive(bytes);
    }

    fn outcome(&mut self) -> Outcome {
        self.0.state.outcome.clone()
    }
}

/// An HPACK decoder.
pub struct Inflater(*mut sys::nghttp2_hd_inflater);

impl Inflater {
    #[allow(clippy::new_without_default, reason = "a fixture")]
    pub fn new() -> Self {
        let mut inflater = ptr::null_mut();
        // SAFETY: the pointer is written when 0 is returned, which is checked.
        assert_eq!(unsafe { sys::nghttp2_hd_inflate_new(&mut inflater) }, 0);
        Self(inflater)
    }

    /// SETTINGS_HEADER_TABLE_SIZE of this side, acknowledged.
    pub fn set_table_size_max(&mut self, size: u32) {
        // SAFETY: the inflater lives.
        assert_eq!(unsafe { sys::nghttp2_hd_inflate_change_table_size(self.0, size as usize) }, 0);
    }

    /// Decodes a complete block; `None` when it is invalid.
    pub fn decode(&mut self, block: &[u8]) -> Option<Fields> {
        let (mut rest, mut fields) = (block, Fields::new());
        loop {
            let mut field = sys::nghttp2_nv {
                name: ptr::null_mut(),
                value: ptr::null_mut(),
                namelen: 0,
                valuelen: 0,
                flags: 0,
            };
            let mut flags = 0;
            // SAFETY: the inflater lives, `rest` is part of `block`, and an emitted field is valid until the next call.
            unsafe {
                let read =
                    sys::nghttp2_hd_inflate_hd2(self.0, &mut field, &mut flags, rest.as_ptr(), rest.len(), 1);
                if read < 0 {
                    return None;
                }
                rest = &rest[read as usize..];
                if flags as u32 & sys::NGHTTP2_HD_INFLATE_EMIT != 0 {
                    let name = slice::from_raw_parts(field.name, field.namelen).to_vec();
                    fields.push((name, slice::from_raw_parts(field.value, field.valuelen).to_vec()));
                }
                if flags as u32 & sys::NGHTTP2_HD_INFLATE_FINAL != 0 {
                    sys::nghttp2_hd_inflate_end_headers(self.0);
                    return Some(fields);
                }
            }
        }
    }
}

impl Drop for Inflater {
    fn drop(&mut self) {
        // SAFETY: made by `new`, freed once.
        unsafe { sys::nghttp2_hd_inflate_del(self.0) }
    }
}
