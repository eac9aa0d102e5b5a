//! Its two ends of a connection, joined in memory: what one sends is lent to the other, without a copy between.

use super::Nv;
use crate::allocation;
use crate::exchange::{Exchange, Pair, Totals, WINDOW};
use std::alloc::Layout;
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::{ptr, slice};

type Session = *mut c_void;

#[repr(C)]
struct FrameHeader {
    len: usize,
    stream_id: i32,
    kind: u8,
    flags: u8,
    reserved: u8,
}

#[repr(C)]
struct Setting {
    id: i32,
    value: u32,
}

#[repr(C)]
struct DataProvider {
    /// A union of a pointer and a descriptor; ours is a place in the pieces.
    source: *mut c_void,
    read: DataRead,
}

#[repr(C)]
struct Memory {
    user_data: *mut c_void,
    malloc: extern "C" fn(usize, *mut c_void) -> *mut c_void,
    free: extern "C" fn(*mut c_void, *mut c_void),
    calloc: extern "C" fn(usize, usize, *mut c_void) -> *mut c_void,
    realloc: extern "C" fn(*mut c_void, usize, *mut c_void) -> *mut c_void,
}

type DataRead = extern "C" fn(Session, i32, *mut u8, usize, *mut u32, *mut *mut c_void, *mut c_void) -> isize;
type OnHeader =
    extern "C" fn(Session, *const FrameHeader, *const u8, usize, *const u8, usize, u8, *mut c_void) -> c_int;
type OnFrame = extern "C" fn(Session, *const FrameHeader, *mut c_void) -> c_int;
type OnData = extern "C" fn(Session, u8, i32, *const u8, usize, *mut c_void) -> c_int;
type OnClose = extern "C" fn(Session, i32, u32, *mut c_void) -> c_int;

unsafe extern "C" {
    fn nghttp2_session_callbacks_new(callbacks: *mut *mut c_void) -> c_int;
    fn nghttp2_session_callbacks_del(callbacks: *mut c_void);
    fn nghttp2_session_callbacks_set_on_header_callback(callbacks: *mut c_void, call: OnHeader);
    fn nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks: *mut c_void, call: OnFrame);
    fn nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks: *mut c_void, call: OnData);
    fn nghttp2_session_callbacks_set_on_stream_close_callback(callbacks: *mut c_void, call: OnClose);
    fn nghttp2_session_client_new3(
        session: *mut Session,
        callbacks: *const c_void,
        user_data: *mut c_void,
        option: *const c_void,
        memory: *mut Memory,
    ) -> c_int;
    fn nghttp2_session_server_new3(
        session: *mut Session,
        callbacks: *const c_void,
        user_data: *mut c_void,
        option: *const c_void,
        memory: *mut Memory,
    ) -> c_int;
    fn nghttp2_session_del(session: Session);
    fn nghttp2_submit_settings(session: Session, flags: u8, settings: *const Setting, len: usize) -> c_int;
    fn nghttp2_session_set_local_window_size(session: Session, flags: u8, stream_id: i32, size: i32)
    -> c_int;
    fn nghttp2_submit_request(
        session: Session,
        priority: *const c_void,
        fields: *const Nv,
        fields_len: usize,
        data: *const DataProvider,
        user_data: *mut c_void,
    ) -> i32;
    fn nghttp2_submit_response(
        session: Session,
        stream_id: i32,
        fields: *const Nv,
        fields_len: usize,
        data: *const DataProvider,
    ) -> c_int;
    fn nghttp2_session_mem_send(session: Session, data: *mut *const u8) -> isize;
    fn nghttp2_session_mem_recv(session: Session, data: *const u8, len: usize) -> isize;
}

const HEADERS: u8 = 1;
const END_STREAM: u8 = 1;
const DATA_EOF: u32 = 1;

/// What the callbacks of one end write to. It stays where it is while its session lives.
struct End {
    exchange: Arc<Exchange>,
    totals: Totals,
    /// Requests that wait for their answer: the server's.
    waiting: Vec<i32>,
    /// Streams that were closed: the client's.
    closed: usize,
}

impl End {
    /// # Safety
    /// `user_data` is the `End` that the session was made with, and nobody else uses it during the call.
    unsafe fn from_user_data<'a>(user_data: *mut c_void) -> &'a mut Self {
        // SAFETY: the caller's promise.
        unsafe { &mut *user_data.cast() }
    }
}

extern "C" fn on_header(
    _: Session,
    _: *const FrameHeader,
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

extern "C" fn on_frame(_: Session, frame: *const FrameHeader, user_data: *mut c_void) -> c_int {
    // SAFETY: as above; every frame begins with its header.
    let (end, frame) = unsafe { (End::from_user_data(user_data), &*frame) };
    if frame.kind == HEADERS {
        end.totals.messages += 1;
        if frame.flags & END_STREAM != 0 {
            end.waiting.push(frame.stream_id);
        }
    }
    0
}

extern "C" fn on_data(
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

extern "C" fn on_close(_: Session, _: i32, error: u32, user_data: *mut c_void) -> c_int {
    assert_eq!(error, 0);
    // SAFETY: as above.
    unsafe { End::from_user_data(user_data).closed += 1 };
    0
}

extern "C" fn read_piece(
    _: Session,
    _: i32,
    buf: *mut u8,
    len: usize,
    flags: *mut u32,
    source: *mut *mut c_void,
    user_data: *mut c_void,
) -> isize {
    // SAFETY: as above; `source` is this stream's place, 32 bits of piece above 32 bits of offset; `flags` is there to be
    // written, and `buf` has room for `len` bytes.
    unsafe {
        let pieces = &End::from_user_data(user_data).exchange.pieces;
        let (mut at, offset) = ((*source).addr() >> 32, (*source).addr() & 0xffff_ffff);
        let left = &pieces[at][offset..];
        // A window may allow less than a piece.
        let len = left.len().min(len);
        ptr::copy_nonoverlapping(left.as_ptr(), buf, len);
        if len == left.len() {
            at += 1;
            *source = ptr::without_provenance_mut(at << 32);
        } else {
            *source = ptr::without_provenance_mut(at << 32 | (offset + len));
        }
        if at == pieces.len() {
            *flags |= DATA_EOF;
        }
        len as isize
    }
}

/// What Rust's allocator counts must hold what C allocates too: a header remembers the size.
const HEADER: usize = 16;

fn layout(len: usize) -> Layout {
    Layout::from_size_align(len + HEADER, HEADER).expect("a size that C asked for")
}

extern "C" fn malloc(len: usize, _: *mut c_void) -> *mut c_void {
    // SAFETY: the layout is not empty; the block begins with room for its length.
    unsafe {
        let block = std::alloc::alloc(layout(len));
        block.cast::<usize>().write(len);
        block.add(HEADER).cast()
    }
}

extern "C" fn free(block: *mut c_void, _: *mut c_void) {
    if !block.is_null() {
        // SAFETY: the block came from `malloc` or `realloc` above, which wrote its length in front.
        unsafe {
            let block = block.cast::<u8>().sub(HEADER);
            std::alloc::dealloc(block, layout(block.cast::<usize>().read()));
        }
    }
}

extern "C" fn calloc(count: usize, len: usize, user_data: *mut c_void) -> *mut c_void {
    let block = malloc(count * len, user_data);
    // SAFETY: `malloc` gave that many bytes.
    unsafe { ptr::write_bytes(block.cast::<u8>(), 0, count * len) };
    block
}

extern "C" fn realloc(block: *mut c_void, len: usize, user_data: *mut c_void) -> *mut c_void {
    if block.is_null() {
        return malloc(len, user_data);
    }
    // SAFETY: as in `free`; the new length is written in front of the new block.
    unsafe {
        let block = block.cast::<u8>().sub(HEADER);
        let old = layout(block.cast::<usize>().read());
        let block = std::alloc::realloc(block, old, layout(len).size());
        block.cast::<usize>().write(len);
        block.add(HEADER).cast()
    }
}

/// A client and a server.
pub(crate) struct Sessions {
    /// These point into the exchange, which both `End`s keep.
    requests: Vec<Vec<Nv>>,
    response: Vec<Nv>,
    client: (Session, Box<End>),
    server: (Session, Box<End>),
    sent: usize,
}

impl Sessions {
    fn end(exchange: &Arc<Exchange>) -> Box<End> {
        let totals = Totals::default();
        Box::new(End { exchange: Arc::clone(exchange), totals, waiting: Vec::new(), closed: 0 })
    }

    /// Gives the other end what one end has to send; `false` if that was nothing.
    fn pump(from: Session, to: Session) -> bool {
        let mut any = false;
        loop {
            let mut data = ptr::null();
            // SAFETY: both sessions live, and their `End`s are not borrowed here; what is lent stays valid until the
            // next call to `from`.
            unsafe {
                let len = nghttp2_session_mem_send(from, &mut data);
                assert!(len >= 0);
                if len == 0 {
                    return any;
                }
                assert_eq!(nghttp2_session_mem_recv(to, data, len as usize), len);
            }
            any = true;
        }
    }

    fn request(&mut self) {
        let fields = &self.requests[self.sent % self.requests.len()];
        // SAFETY: the fields point into the exchange.
        let id = unsafe {
            nghttp2_submit_request(
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
        let data = DataProvider { source: ptr::null_mut(), read: read_piece };
        for id in self.server.1.waiting.drain(..) {
            // SAFETY: as above; the provider is copied.
            let result = unsafe {
                nghttp2_submit_response(self.server.0, id, self.response.as_ptr(), self.response.len(), &data)
            };
            assert_eq!(result, 0);
        }
    }
}

fn fields(of: &[(String, String)]) -> Vec<Nv> {
    of.iter().map(|(name, value)| Nv::new(name.as_bytes(), value.as_bytes())).collect()
}

impl Pair for Sessions {
    fn open(exchange: &Arc<Exchange>) -> Self {
        let (mut client, mut server) = (Self::end(exchange), Self::end(exchange));
        let mut memory = Memory { user_data: ptr::null_mut(), malloc, free, calloc, realloc };
        // Its own allocator, unless allocations are being counted.
        let memory: *mut Memory = if allocation::is_counting() { &mut memory } else { ptr::null_mut() };
        let (mut client_session, mut server_session) = (ptr::null_mut(), ptr::null_mut());
        // The priorities of RFC 7540 are off, which is what makes it fastest.
        let settings = [
            Setting { id: 3, value: 2_000_000 },
            Setting { id: 4, value: WINDOW },
            Setting { id: 9, value: 1 },
        ];
        // SAFETY: the callbacks are copied into the sessions, and so are `memory` and `settings`; each `End` is boxed
        // and outlives its session (see `drop`).
        unsafe {
            let mut callbacks = ptr::null_mut();
            assert_eq!(nghttp2_session_callbacks_new(&mut callbacks), 0);
            nghttp2_session_callbacks_set_on_header_callback(callbacks, on_header);
            nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, on_frame);
            nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, on_data);
            nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, on_close);
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
        let taken = unsafe { nghttp2_session_mem_recv(self.client.0, bytes.as_ptr(), bytes.len()) };
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
