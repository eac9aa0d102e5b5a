//! A client and a server of nghttp2, joined in memory: each passes its output to the other without a copy. Fields and
//! DATA are sent by reference (`NGHTTP2_NV_FLAG_NO_COPY_*`, `NGHTTP2_DATA_FLAG_NO_COPY`), as its documentation offers.

use super::{borrowed, memory};
use crate::exchange::{Exchange, Pair, Totals, WINDOW};
use libnghttp2_sys::*;
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::{ptr, slice};

type Session = *mut nghttp2_session;

/// The state of one end, which the callbacks write to. Its address must not change while its session lives.
struct End {
    exchange: Arc<Exchange>,
    totals: Totals,
    /// The server's requests that are not answered yet.
    waiting: Vec<i32>,
    /// The number of closed streams of the client.
    closed: usize,
    /// The session of the other end, which receives DATA.
    peer: Session,
}

impl End {
    /// # Safety
    /// `user_data` is the `End` that the session was made with, and nothing else uses it during the call.
    unsafe fn from_user_data<'a>(user_data: *mut c_void) -> &'a mut Self {
        // SAFETY: the caller's promise.
        unsafe { &mut *user_data.cast() }
    }
}

unsafe extern "C" fn on_header(
    _: Session,
    _: *const nghttp2_frame,
    name: *const u8,
    name_len: usize,
    value: *const u8,
    value_len: usize,
    _: u8,
    user_data: *mut c_void,
) -> c_int {
    // SAFETY: called back from a call made by `Sessions`, which does not touch the `End` during it; name and value
    // live as long as the callback.
    unsafe {
        let (name, value) = (slice::from_raw_parts(name, name_len), slice::from_raw_parts(value, value_len));
        End::from_user_data(user_data).totals.field(name, value);
    }
    0
}

unsafe extern "C" fn on_frame(_: Session, frame: *const nghttp2_frame, user_data: *mut c_void) -> c_int {
    // SAFETY: as above; every frame begins with its header.
    let (end, frame) = unsafe { (End::from_user_data(user_data), (*frame).hd) };
    if u32::from(frame.type_) == NGHTTP2_HEADERS {
        end.totals.messages += 1;
        if u32::from(frame.flags) & NGHTTP2_FLAG_END_STREAM != 0 {
            end.waiting.push(frame.stream_id);
        }
    }
    0
}

unsafe extern "C" fn on_data(
    _: Session,
    _: u8,
    _: i32,
    data: *const u8,
    len: usize,
    user_data: *mut c_void,
) -> c_int {
    // SAFETY: as above.
    unsafe { End::from_user_data(user_data).totals.data(slice::from_raw_parts(data, len)) };
    0
}

unsafe extern "C" fn on_close(_: Session, _: i32, error: u32, user_data: *mut c_void) -> c_int {
    assert_eq!(error, 0);
    // SAFETY: as above.
    unsafe { End::from_user_data(user_data).closed += 1 };
    0
}

/// Announces the length of the next DATA frame, whose bytes `send_data` passes by reference.
unsafe extern "C" fn read_data(
    _: Session,
    _: i32,
    _: *mut u8,
    len_max: usize,
    flags: *mut u32,
    source: *mut nghttp2_data_source,
    user_data: *mut c_void,
) -> nghttp2_ssize {
    // SAFETY: as above; `source` is this stream's position and `flags` may be written.
    unsafe {
        let data = &End::from_user_data(user_data).exchange.data;
        let (at, offset) = position(source);
        // The window may allow only a part of it.
        let left = data[at].len() - offset;
        let len = left.min(len_max);
        *flags |= NGHTTP2_DATA_FLAG_NO_COPY;
        if len == left && at + 1 == data.len() {
            *flags |= NGHTTP2_DATA_FLAG_EOF;
        }
        len as nghttp2_ssize
    }
}

/// Passes a DATA frame to the other end: the header that nghttp2 wrote, and the payload by reference.
unsafe extern "C" fn send_data(
    _: Session,
    _: *mut nghttp2_frame,
    header: *const u8,
    len: usize,
    source: *mut nghttp2_data_source,
    user_data: *mut c_void,
) -> c_int {
    // SAFETY: as above; the header has 9 bytes, nothing is padded, and the other session is not in a call: `pump` calls one
    // session at a time.
    unsafe {
        let end = End::from_user_data(user_data);
        let (at, offset) = position(source);
        let payload = &end.exchange.data[at][offset..offset + len];
        assert_eq!(nghttp2_session_mem_recv2(end.peer, header, 9), 9);
        assert_eq!(nghttp2_session_mem_recv2(end.peer, payload.as_ptr(), len), len as nghttp2_ssize);
        let next = if offset + len == end.exchange.data[at].len() {
            (at + 1) << 32
        } else {
            at << 32 | (offset + len)
        };
        (*source).ptr = ptr::without_provenance_mut(next);
    }
    0
}

/// The index of the DATA frame, in the upper 32 bits, and the offset in its payload.
///
/// # Safety
/// `source` points to a source whose `ptr` holds a position.
unsafe fn position(source: *const nghttp2_data_source) -> (usize, usize) {
    // SAFETY: the caller's promise.
    let position = unsafe { (*source).ptr }.addr();
    (position >> 32, position & 0xffff_ffff)
}

/// A client and a server.
pub(crate) struct Sessions {
    /// Fields that point into the exchange, which both `End`s keep alive.
    requests: Vec<Vec<nghttp2_nv>>,
    response: Vec<nghttp2_nv>,
    client: (Session, Box<End>),
    server: (Session, Box<End>),
    sent: usize,
}

impl Sessions {
    fn end(exchange: &Arc<Exchange>) -> Box<End> {
        let totals = Totals::default();
        Box::new(End {
            exchange: Arc::clone(exchange),
            totals,
            waiting: Vec::new(),
            closed: 0,
            peer: ptr::null_mut(),
        })
    }

    /// Passes the output of one end to the other; returns `false` if there was none.
    fn pump(from: Session, to: Session) -> bool {
        let mut any = false;
        loop {
            let mut data = ptr::null();
            // SAFETY: both sessions live, and their `End`s are not borrowed here; the output stays valid until the
            // next call to `from`.
            unsafe {
                let len = nghttp2_session_mem_send2(from, &mut data);
                assert!(len >= 0);
                if len == 0 {
                    return any;
                }
                assert_eq!(nghttp2_session_mem_recv2(to, data, len as usize), len);
            }
            any = true;
        }
    }

    fn request(&mut self) {
        let fields = &self.requests[self.sent % self.requests.len()];
        // SAFETY: the fields point into the exchange.
        let id = unsafe {
            nghttp2_submit_request2(
                self.client.0,
                ptr::null(),
                fields.as_ptr(),
                fields.len(),
                ptr::null(),
                ptr::null_mut(),
            )
        };
        assert!(id > 0);
        self.sent += 1;
    }

    fn respond(&mut self) {
        let source = nghttp2_data_source { ptr: ptr::null_mut() };
        let data = nghttp2_data_provider2 { source, read_callback: Some(read_data) };
        for id in self.server.1.waiting.drain(..) {
            // SAFETY: as above; the provider is copied.
            let result = unsafe {
                nghttp2_submit_response2(
                    self.server.0,
                    id,
                    self.response.as_ptr(),
                    self.response.len(),
                    &data,
                )
            };
            assert_eq!(result, 0);
        }
    }
}

fn fields(of: &[(String, String)]) -> Vec<nghttp2_nv> {
    of.iter().map(|(name, value)| borrowed(name.as_bytes(), value.as_bytes())).collect()
}

impl Pair for Sessions {
    fn open(exchange: &Arc<Exchange>) -> Self {
        let (mut client, mut server) = (Self::end(exchange), Self::end(exchange));
        let memory = memory::functions();
        let (mut client_session, mut server_session) = (ptr::null_mut(), ptr::null_mut());
        // The priorities of RFC 7540 are off, which is its fastest setting.
        let settings = [
            (NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, 2_000_000),
            (NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, WINDOW),
            (NGHTTP2_SETTINGS_NO_RFC7540_PRIORITIES, 1),
        ]
        .map(|(id, value)| nghttp2_settings_entry { settings_id: id as i32, value });
        // SAFETY: the callbacks are copied into the sessions, and so are `memory` and `settings`; each `End` is boxed
        // and outlives its session (see `drop`).
        unsafe {
            let mut callbacks = ptr::null_mut();
            assert_eq!(nghttp2_session_callbacks_new(&mut callbacks), 0);
            nghttp2_session_callbacks_set_on_header_callback(callbacks, Some(on_header));
            nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, Some(on_frame));
            nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, Some(on_data));
            nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, Some(on_close));
            nghttp2_session_callbacks_set_send_data_callback(callbacks, Some(send_data));
            let user_data = (&raw mut *client).cast();
            let made =
                nghttp2_session_client_new3(&mut client_session, callbacks, user_data, ptr::null(), memory);
            assert_eq!(made, 0);
            let user_data = (&raw mut *server).cast();
            let made =
                nghttp2_session_server_new3(&mut server_session, callbacks, user_data, ptr::null(), memory);
            assert_eq!(made, 0);
            nghttp2_session_callbacks_del(callbacks);
            for session in [client_session, server_session] {
                assert_eq!(nghttp2_submit_settings(session, 0, settings.as_ptr(), settings.len()), 0);
            }
            assert_eq!(nghttp2_session_set_local_window_size(client_session, 0, 0, WINDOW as i32), 0);
        }
        client.peer = server_session;
        server.peer = client_session;
        while Self::pump(client_session, server_session) | Self::pump(server_session, client_session) {}
        Self {
            requests: exchange.requests.iter().map(|request| fields(request)).collect(),
            response: fields(&exchange.response),
            client: (client_session, client),
            server: (server_session, server),
            sent: 0,
        }
    }

    fn run(&mut self, streams: usize, concurrent: usize) {
        let (first, last) = (self.client.1.closed, self.client.1.closed + streams);
        let mut sent = first;
        while self.client.1.closed < last {
            while sent < last && sent - self.client.1.closed < concurrent {
                self.request();
                sent += 1;
            }
            Self::pump(self.client.0, self.server.0);
            self.respond();
            Self::pump(self.server.0, self.client.0);
        }
    }

    fn open_streams(&mut self, streams: usize) {
        for _ in 0..streams {
            self.request();
        }
        Self::pump(self.client.0, self.server.0);
        Self::pump(self.server.0, self.client.0);
        assert_eq!(self.server.1.waiting.len(), streams);
        self.server.1.waiting = Vec::new();
    }

    fn receive(&mut self, bytes: &[u8]) {
        // SAFETY: the client lives, and its `End` is not borrowed here.
        let taken = unsafe { nghttp2_session_mem_recv2(self.client.0, bytes.as_ptr(), bytes.len()) };
        assert_eq!(taken, bytes.len() as isize);
    }

    fn totals(&self) -> Totals {
        self.client.1.totals + self.server.1.totals
    }
}

impl Drop for Sessions {
    fn drop(&mut self) {
        // SAFETY: made by `open`, freed once, before their `End`s.
        unsafe {
            nghttp2_session_del(self.client.0);
            nghttp2_session_del(self.server.0);
        }
    }
}
