//! The cost of the C interface: decoding small frames and HPACK through libwireloom.so, beside the Rust cores in the same process, and
//! beside wslay and nghttp2 where they are installed.
//!
//! ```text
//! crates/capi/install --prefix DIR && WIRELOOM_LIB=DIR/lib/libwireloom.so cargo bench -p wireloom-capi
//! ```
//!
//! Every row does the same work: it copies the bytes into its buffer as a read would, decodes, and touches each message or field. Rows
//! take turns; the figures are the fastest and the median turn, in processor time.

#![allow(unsafe_code)] // Calls of C.
#![allow(clippy::unwrap_used)]

use libloading::{Library, Symbol};
use std::ffi::{c_int, c_void};
use std::hint::black_box;
use std::mem::MaybeUninit;
use std::time::Duration;
use wireloom_capi::*;
use wireloom_http2::field::{Field, FieldLimits, FieldList};
use wireloom_http2::hpack::{Decoder, Encoder};
use wireloom_ws::{Config, Connection, Event};

fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// A row: its name, and one turn, which returns a checksum.
type Row<'a> = (&'static str, Box<dyn FnMut() -> u64 + 'a>);

/// Runs the rows in turns, and prints ns per item.
fn race(title: &str, items: usize, mut rows: Vec<Row<'_>>) {
    let turns = if std::env::args().any(|argument| argument == "--bench") { 300 } else { 3 };
    let expected = rows[0].1();
    let mut times = vec![Vec::with_capacity(turns); rows.len()];
    for _ in 0..turns {
        for ((name, turn), times) in rows.iter_mut().zip(&mut times) {
            let start = cpu_time();
            let sum = black_box(turn());
            times.push((cpu_time() - start).as_nanos() as f64 / items as f64);
            assert_eq!(sum, expected, "{name} did other work");
        }
    }
    println!("{title}");
    let mut base = None;
    for ((name, _), times) in rows.iter().zip(&mut times) {
        times.sort_by(f64::total_cmp);
        let (fastest, median) = (times[0], times[times.len() / 2]);
        let (base_fastest, base_median) = *base.get_or_insert((fastest, median));
        println!(
            "  {name:<24} {fastest:8.2} ns {median:8.2} ns   {:5.2} x {:5.2} x",
            fastest / base_fastest,
            median / base_median
        );
    }
}

/// Back to back frames of a client, in at most 64 KiB: the bytes, and their number.
fn frames(len: usize) -> (Vec<u8>, usize) {
    let mut client = Connection::client(Config::default(), None, [7; 32], Duration::ZERO);
    let text = "x".repeat(len);
    let count = 64 * 1024 / (len + 8);
    for _ in 0..count {
        client.send_text(&text).unwrap();
    }
    (client.take_transmit(), count)
}

const KIND_TEXT: u32 = wl_ws_event_kind::Text as u32;

fn decode(len: usize, wireloom: &Library, wslay: Option<&Library>) {
    let (wire, count) = frames(len);
    let mut rows: Vec<Row<'_>> = Vec::new();
    {
        let mut server = Connection::server(Config::default(), None, Duration::ZERO);
        let (wire, mut buffer) = (&wire, wire.clone());
        rows.push((
            "Rust",
            Box::new(move || {
                buffer.copy_from_slice(wire);
                let (mut rest, mut sum) = (&mut buffer[..], 0);
                while let (used, Some(event)) = server.handle_input(Duration::ZERO, rest).unwrap() {
                    if let Event::Text(text) = event {
                        sum += text.len() as u64 + u64::from(text.as_bytes()[0]);
                    }
                    rest = &mut rest[used..];
                }
                sum
            }),
        ));
    }
    {
        type New = unsafe extern "C" fn(
            u32,
            *const wl_ws_config,
            *const wl_deflate_params,
            *const wl_deflate_config,
            *const [u8; 32],
            u64,
            *mut wl_ws,
        ) -> c_int;
        type Input = unsafe extern "C" fn(
            wl_ws,
            u64,
            *mut u8,
            usize,
            *mut usize,
            *mut wl_ws_event,
            usize,
            *mut usize,
        ) -> c_int;
        // SAFETY: the types are those of wireloom.h, which this crate declares.
        let (new, input): (Symbol<'_, New>, Symbol<'_, Input>) =
            unsafe { (wireloom.get(b"wl_ws_new").unwrap(), wireloom.get(b"wl_ws_handle_input").unwrap()) };
        let (mut ws, null) = (wl_ws { id: 0 }, std::ptr::null());
        // SAFETY: null is allowed for what a server has not; `ws` is writable.
        let status =
            unsafe { new(1, null, std::ptr::null(), std::ptr::null(), std::ptr::null(), 0, &mut ws) };
        assert_eq!(status, 0);
        let (wire, mut buffer) = (&wire, wire.clone());
        let mut events = [const { MaybeUninit::<wl_ws_event>::uninit() }; 256];
        rows.push((
            "C, libwireloom",
            Box::new(move || {
                buffer.copy_from_slice(wire);
                let (mut at, mut sum) = (0, 0);
                loop {
                    let (mut consumed, mut found) = (0, 0);
                    // SAFETY: the buffer, the events and the numbers have the lengths that are passed, and do not overlap.
                    let status = unsafe {
                        let rest = &mut buffer[at..];
                        let events = events.as_mut_ptr().cast::<wl_ws_event>();
                        input(ws, 0, rest.as_mut_ptr(), rest.len(), &mut consumed, events, 256, &mut found)
                    };
                    for event in &events[..found] {
                        // SAFETY: the library has written `found` events, whose data is in the buffer.
                        let (event, first) = unsafe {
                            let event = event.assume_init_ref();
                            (event, *event.data)
                        };
                        if event.kind == KIND_TEXT {
                            sum += event.len as u64 + u64::from(first);
                        }
                    }
                    at += consumed;
                    if status != wl_status::More as c_int {
                        assert_eq!(status, 0);
                        return sum;
                    }
                }
            }),
        ));
    }
    if let Some(wslay) = wslay {
        rows.push(("C, wslay", wslay_row(wslay, wire.clone())));
    }
    race(&format!("decode masked text of {len} B: ns a message, fastest and median, x Rust"), count, rows);
}

/// State shared by wslay's callbacks.
struct WslayState {
    wire: Vec<u8>,
    at: usize,
    sum: u64,
    set_error: unsafe extern "C" fn(*mut c_void, c_int),
}

#[repr(C)]
struct WslayMessage {
    rsv: u8,
    opcode: u8,
    msg: *const u8,
    msg_length: usize,
    status_code: u16,
}

/// `struct wslay_event_callbacks` of wslay 1.1.
#[repr(C)]
struct WslayCallbacks {
    recv: unsafe extern "C" fn(*mut c_void, *mut u8, usize, c_int, *mut c_void) -> isize,
    others: [*const c_void; 5],
    on_msg_recv: unsafe extern "C" fn(*mut c_void, *const WslayMessage, *mut c_void),
}

unsafe extern "C" fn wslay_recv(
    context: *mut c_void,
    buffer: *mut u8,
    len: usize,
    _flags: c_int,
    state: *mut c_void,
) -> isize {
    const WOULD_BLOCK: c_int = -401;
    // SAFETY: wslay passes the state that it was given, and a buffer of `len` bytes.
    unsafe {
        let state = &mut *state.cast::<WslayState>();
        let rest = &state.wire[state.at..];
        if rest.is_empty() {
            (state.set_error)(context, WOULD_BLOCK);
            return -1;
        }
        let len = len.min(rest.len());
        std::ptr::copy_nonoverlapping(rest.as_ptr(), buffer, len);
        state.at += len;
        len as isize
    }
}

unsafe extern "C" fn wslay_message(_context: *mut c_void, message: *const WslayMessage, state: *mut c_void) {
    // SAFETY: wslay passes the state that it was given, and a message that is valid during the call.
    unsafe {
        let (state, message) = (&mut *state.cast::<WslayState>(), &*message);
        state.sum += message.msg_length as u64 + u64::from(*message.msg);
    }
}

fn wslay_row(wslay: &Library, wire: Vec<u8>) -> Box<dyn FnMut() -> u64 + '_> {
    type Init = unsafe extern "C" fn(*mut *mut c_void, *const WslayCallbacks, *mut c_void) -> c_int;
    // SAFETY: the types are those of wslay.h.
    let (init, receive, set_error) = unsafe {
        let init: Symbol<'_, Init> = wslay.get(b"wslay_event_context_server_init").unwrap();
        let receive: Symbol<'_, unsafe extern "C" fn(*mut c_void) -> c_int> =
            wslay.get(b"wslay_event_recv").unwrap();
        let set_error: Symbol<'_, unsafe extern "C" fn(*mut c_void, c_int)> =
            wslay.get(b"wslay_event_set_error").unwrap();
        (init, receive, *set_error)
    };
    // Both live until the process ends, as the context does.
    let state = Box::leak(Box::new(WslayState { wire, at: 0, sum: 0, set_error }));
    let callbacks =
        WslayCallbacks { recv: wslay_recv, others: [std::ptr::null(); 5], on_msg_recv: wslay_message };
    let callbacks = Box::leak(Box::new(callbacks));
    let state: *mut WslayState = state;
    let mut context = std::ptr::null_mut();
    // SAFETY: the pointers are valid; wslay copies the callbacks.
    assert_eq!(unsafe { init(&mut context, callbacks, state.cast()) }, 0);
    Box::new(move || {
        // SAFETY: nothing else uses the state while wslay does not.
        unsafe {
            (*state).at = 0;
            (*state).sum = 0;
            assert_eq!(receive(context), 0);
            (*state).sum
        }
    })
}

/// The blocks of a connection, and the number of their fields.
fn blocks() -> (Vec<Vec<u8>>, usize) {
    let mut encoder = Encoder::new();
    let mut fields_len = 0;
    let blocks = (0..500).map(|n: u32| {
        let path = format!("/assets/{}/file-{n}.js?v={}", n % 7, n * 7919);
        let (length, date) =
            (format!("{}", n * 31), format!("Tue, 24 Nov 2026 12:{:02}:{:02} GMT", n / 60 % 60, n % 60));
        let fields: [(&str, &str); 12] = [
            (":method", "GET"),
            (":scheme", "https"),
            (":authority", "www.example.org"),
            (":path", &path),
            ("user-agent", "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"),
            ("accept", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"),
            ("accept-language", "en-US,en;q=0.5"),
            ("accept-encoding", "gzip, deflate, br"),
            ("cookie", "session=0123456789abcdef0123456789abcdef"),
            ("if-modified-since", &date),
            ("x-request-length", &length),
            ("referer", "https://www.example.org/index.html"),
        ];
        fields_len += fields.len();
        let mut block = Vec::new();
        encoder.encode(
            fields.iter().map(|(name, value)| Field::new(name.as_bytes(), value.as_bytes())),
            &mut block,
        );
        block
    });
    (blocks.collect(), fields_len)
}

fn hpack(wireloom: &Library, nghttp2: Option<&Library>) {
    let (blocks, fields_len) = blocks();
    let mut rows: Vec<Row<'_>> = Vec::new();
    // Each turn decodes the whole connection with a new decoder.
    rows.push((
        "Rust",
        Box::new(|| {
            let (mut decoder, mut fields, mut sum) = (Decoder::new(4096), FieldList::new(), 0);
            for block in &blocks {
                decoder.decode(block, &FieldLimits::default(), &mut fields).unwrap();
                sum +=
                    fields.iter().map(|field| (field.name().len() + field.value().len()) as u64).sum::<u64>();
            }
            sum
        }),
    ));
    type New = unsafe extern "C" fn(u32, u32, usize, *mut wl_hpack_decoder) -> c_int;
    type Decode =
        unsafe extern "C" fn(wl_hpack_decoder, *const u8, usize, *mut wl_field, usize, *mut usize) -> c_int;
    type Free = unsafe extern "C" fn(wl_hpack_decoder) -> c_int;
    // SAFETY: the types are those of wireloom.h, which this crate declares.
    let (new, decode, free): (Symbol<'_, New>, Symbol<'_, Decode>, Symbol<'_, Free>) = unsafe {
        (
            wireloom.get(b"wl_hpack_decoder_new").unwrap(),
            wireloom.get(b"wl_hpack_decoder_decode").unwrap(),
            wireloom.get(b"wl_hpack_decoder_free").unwrap(),
        )
    };
    rows.push((
        "C, libwireloom",
        Box::new(|| {
            let (mut decoder, mut sum) = (wl_hpack_decoder { id: 0 }, 0);
            let mut fields = [const { MaybeUninit::<wl_field>::uninit() }; 64];
            // SAFETY: `decoder` is writable.
            assert_eq!(unsafe { new(4096, 65536, 512, &mut decoder) }, 0);
            for block in &blocks {
                let mut found = 0;
                // SAFETY: the block and the fields have the lengths that are passed.
                let status = unsafe {
                    decode(decoder, block.as_ptr(), block.len(), fields.as_mut_ptr().cast(), 64, &mut found)
                };
                assert_eq!(status, 0);
                for field in &fields[..found] {
                    // SAFETY: the library has written `found` fields.
                    let field = unsafe { field.assume_init_ref() };
                    sum += (field.name.len + field.value.len) as u64;
                }
            }
            // SAFETY: a call without pointers.
            assert_eq!(unsafe { free(decoder) }, 0);
            sum
        }),
    ));
    if let Some(nghttp2) = nghttp2 {
        rows.push(("C, nghttp2", nghttp2_row(nghttp2, &blocks)));
    }
    race("HPACK decode: ns a field, fastest and median, x Rust", fields_len, rows);
}

/// `nghttp2_nv`.
#[repr(C)]
struct Nv {
    name: *mut u8,
    value: *mut u8,
    name_len: usize,
    value_len: usize,
    flags: u8,
}

fn nghttp2_row<'a>(nghttp2: &'a Library, blocks: &'a [Vec<u8>]) -> Box<dyn FnMut() -> u64 + 'a> {
    type Inflate = unsafe extern "C" fn(*mut c_void, *mut Nv, *mut c_int, *const u8, usize, c_int) -> isize;
    type OfInflater = unsafe extern "C" fn(*mut c_void) -> c_int;
    // SAFETY: the types are those of nghttp2.h.
    let (new, inflate, end, delete) = unsafe {
        let new: Symbol<'_, unsafe extern "C" fn(*mut *mut c_void) -> c_int> =
            nghttp2.get(b"nghttp2_hd_inflate_new").unwrap();
        let inflate: Symbol<'_, Inflate> = nghttp2.get(b"nghttp2_hd_inflate_hd2").unwrap();
        let end: Symbol<'_, OfInflater> = nghttp2.get(b"nghttp2_hd_inflate_end_headers").unwrap();
        let delete: Symbol<'_, unsafe extern "C" fn(*mut c_void)> =
            nghttp2.get(b"nghttp2_hd_inflate_del").unwrap();
        (new, inflate, end, delete)
    };
    const FINAL: c_int = 1;
    const EMIT: c_int = 2;
    Box::new(move || {
        let (mut inflater, mut sum) = (std::ptr::null_mut(), 0);
        // SAFETY: the order of calls that nghttp2.h documents.
        unsafe {
            assert_eq!(new(&mut inflater), 0);
            for block in blocks {
                let mut at = 0;
                loop {
                    let (mut nv, mut flags) = (MaybeUninit::<Nv>::uninit(), 0);
                    let rest = &block[at..];
                    let used = inflate(inflater, nv.as_mut_ptr(), &mut flags, rest.as_ptr(), rest.len(), 1);
                    assert!(used >= 0);
                    at += used as usize;
                    if flags & EMIT != 0 {
                        let nv = nv.assume_init();
                        sum += (nv.name_len + nv.value_len) as u64;
                    }
                    if flags & FINAL != 0 {
                        end(inflater);
                        break;
                    }
                }
            }
            delete(inflater);
        }
        sum
    })
}

fn main() {
    let Some(path) = std::env::var_os("WIRELOOM_LIB") else {
        println!("skipped: WIRELOOM_LIB is not the path of libwireloom.so");
        return;
    };
    // SAFETY: libraries whose initialisers do nothing.
    let load = |name: &str| unsafe { Library::new(name) }.ok();
    // SAFETY: as above.
    let wireloom = unsafe { Library::new(path) }.unwrap();
    let [wslay, nghttp2] = ["libwslay.so.1", "libnghttp2.so.14"].map(load);
    for len in [13, 200] {
        decode(len, &wireloom, wslay.as_ref());
    }
    hpack(&wireloom, nghttp2.as_ref());
}
