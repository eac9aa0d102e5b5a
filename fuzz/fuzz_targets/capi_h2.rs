//! Any sequence of calls of libwireloom with both ends of an HTTP/2 connection, joined by a wire into which bytes of an attacker may fall.
//! No call finds a bug in the library, each pointer that it returns can be read, and a freed handle is an error.

#![no_main]

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};
use wireloom_capi::*;
use wireloom_fuzz::capi::{is_ok, read};

#[derive(Arbitrary, Debug)]
struct Setup {
    auto_release: bool,
    enable_push: bool,
    window: Option<u16>,
    stream_queue: Option<u16>,
    memory_max: Option<u16>,
    table: Option<u16>,
}

#[derive(Arbitrary, Debug)]
enum Call {
    Request {
        fields: Vec<(Vec<u8>, Vec<u8>)>,
        end_stream: u8,
    },
    Response {
        stream: u8,
        fields: Vec<(Vec<u8>, Vec<u8>)>,
        informational: bool,
        end_stream: u8,
    },
    Promise {
        stream: u8,
        fields: Vec<(Vec<u8>, Vec<u8>)>,
    },
    Data {
        stream: u8,
        data: Vec<u8>,
        repeat: u8,
        end_stream: u8,
    },
    Trailers {
        stream: u8,
        fields: Vec<(Vec<u8>, Vec<u8>)>,
    },
    Reset {
        stream: u8,
        code: u32,
    },
    ReleaseCapacity {
        stream: u8,
        len: u16,
    },
    Priority {
        stream: u8,
        urgency: u8,
        incremental: u8,
    },
    /// Moves bytes to the other end, which takes this number of events at once.
    Deliver {
        len: u16,
        capacity: u8,
    },
    Inject(Vec<u8>),
    /// Polls, makes another call, and then says that this much was transmitted.
    PollAndTransmit {
        capacity: u8,
        len: u16,
        reset_between: Option<u8>,
    },
    Ping([u8; 8]),
    Timeout(u32),
    Shutdown,
    Abort {
        code: u32,
        debug_data: Vec<u8>,
    },
    Eof,
    ReleaseBuffers,
    Free,
    Null,
}

struct End {
    h2: wl_h2,
    /// On the way to this end.
    wire: Vec<u8>,
}

fn read_slice(slice: &wl_slice) {
    std::hint::black_box(read(slice.data, slice.len));
}

fn open(role: u32, setup: &Setup) -> wl_h2 {
    unsafe {
        let mut config = MaybeUninit::uninit();
        assert!(is_ok(wl_h2_config_default(config.as_mut_ptr(), size_of::<wl_h2_config>())));
        let mut config: wl_h2_config = config.assume_init();
        config.auto_release = setup.auto_release.into();
        config.enable_push = setup.enable_push.into();
        config.hash_key = 7;
        if let Some(window) = setup.window {
            config.initial_window_size = window.into();
            config.stream_window_max = config.stream_window_max.max(window.into());
        }
        if let Some(len) = setup.stream_queue {
            config.stream_queue = len.into();
        }
        if let Some(kib) = setup.memory_max {
            config.memory_max = u64::from(kib) << 10;
        }
        if let Some(size) = setup.table {
            config.header_table_size = size.into();
        }
        let mut h2 = wl_h2 { id: 0 };
        is_ok(wl_h2_new(role, &config, &mut h2));
        h2
    }
}

/// `with` gets the fields of the caller behind those that every request or response needs.
fn fields<'a>(first: &'a [(&'a [u8], &'a [u8])], rest: &'a [(Vec<u8>, Vec<u8>)]) -> Vec<wl_field> {
    let slice = |bytes: &[u8]| wl_slice { data: bytes.as_ptr(), len: bytes.len() };
    let rest = rest.iter().map(|(name, value)| (&name[..], &value[..]));
    let all = first.iter().copied().chain(rest);
    all.map(|(name, value)| wl_field { name: slice(name), value: slice(value), sensitive: 0 }).collect()
}

const REQUEST: [(&[u8], &[u8]); 4] =
    [(b":method", b"POST"), (b":scheme", b"https"), (b":authority", b"example.org"), (b":path", b"/")];
const RESPONSE: [(&[u8], &[u8]); 1] = [(b":status", b"200")];
const INFORMATIONAL: [(&[u8], &[u8]); 1] = [(b":status", b"103")];

fn transmit(from: &End, now_ns: u64, to: &mut Vec<u8>) {
    let mut buffer = [0; 4_096];
    // A call of the fuzzer moves a bounded number of bytes.
    for _ in 0..64 {
        let mut len = 0;
        let status =
            unsafe { wl_h2_take_output(from.h2, now_ns, buffer.as_mut_ptr(), buffer.len(), &mut len) };
        if !is_ok(status) || len == 0 {
            return;
        }
        to.extend(&buffer[..len]);
    }
}

fn deliver(end: &mut End, now_ns: u64, len: usize, capacity: usize) {
    let input: Vec<u8> = end.wire.drain(..len.min(end.wire.len())).collect();
    let (mut at, mut rounds) = (0, 0);
    loop {
        let mut events = vec![MaybeUninit::<wl_h2_event>::uninit(); capacity];
        let (mut consumed, mut found) = (0, 0);
        let status = unsafe {
            let events = events.as_mut_ptr().cast();
            let rest = input[at..].as_ptr();
            wl_h2_handle_input(
                end.h2,
                now_ns,
                rest,
                input.len() - at,
                &mut consumed,
                events,
                capacity,
                &mut found,
            )
        };
        is_ok(status);
        assert!(found <= capacity && consumed <= input.len() - at);
        for event in &events[..found] {
            let event = unsafe { event.assume_init_ref() };
            std::hint::black_box(read(event.data, event.len));
            for at in 0..event.fields_len {
                let field = unsafe { &*event.fields.add(at) };
                read_slice(&field.name);
                read_slice(&field.value);
            }
        }
        at += consumed;
        rounds += 1;
        assert!(rounds <= input.len() * 4 + 4_096, "no progress");
        if status != wl_status::More {
            return;
        }
    }
}

fn poll_and_transmit(
    end: &End,
    now_ns: u64,
    to: &mut Vec<u8>,
    capacity: usize,
    len: usize,
    reset: Option<u8>,
) {
    let mut slices = vec![MaybeUninit::<wl_slice>::uninit(); capacity];
    let mut count = 0;
    if !is_ok(unsafe {
        wl_h2_poll_transmit(end.h2, now_ns, slices.as_mut_ptr().cast(), capacity, &mut count)
    }) {
        return;
    }
    assert!(count <= capacity);
    let mut left = len;
    for slice in &slices[..count] {
        let slice = unsafe { slice.assume_init_ref() };
        read_slice(slice);
        let taken = left.min(slice.len);
        if taken > 0 {
            to.extend(unsafe { std::slice::from_raw_parts(slice.data, taken) });
        }
        left -= taken;
    }
    if let Some(stream) = reset {
        is_ok(wl_h2_reset(end.h2, stream.into(), 8));
    }
    is_ok(wl_h2_transmitted(end.h2, now_ns, len - left));
    assert!(!is_ok(wl_h2_transmitted(end.h2, now_ns, usize::MAX)));
}

fn null_arguments(end: &End) {
    unsafe {
        assert!(!is_ok(wl_h2_handle_input(end.h2, 0, null(), 1, null_mut(), null_mut(), 1, null_mut())));
        assert!(!is_ok(wl_h2_send_request(end.h2, null(), 1, 0, null_mut())));
        assert!(!is_ok(wl_h2_get_state(end.h2, null_mut())));
        assert!(!is_ok(wl_h2_send_ping(end.h2, 0, null())));
    }
}

fuzz_target!(|input: (Setup, Vec<(bool, Call)>)| {
    let (setup, calls) = input;
    let mut ends = [0, 1].map(|role| End { h2: open(role, &setup), wire: Vec::new() });
    let mut now_ns = 0;
    for (second, call) in calls {
        let [first, other] = &mut ends;
        let (end, other) = if second { (other, first) } else { (first, other) };
        let h2 = end.h2;
        unsafe {
            match call {
                Call::Request { fields: rest, end_stream } => {
                    let (list, mut stream) = (fields(&REQUEST, &rest), 0);
                    is_ok(wl_h2_send_request(h2, list.as_ptr(), list.len(), end_stream, &mut stream));
                }
                Call::Response { stream, fields: rest, informational: true, .. } => {
                    let list = fields(&INFORMATIONAL, &rest);
                    is_ok(wl_h2_send_informational(h2, stream.into(), list.as_ptr(), list.len()));
                }
                Call::Response { stream, fields: rest, end_stream, .. } => {
                    let list = fields(&RESPONSE, &rest);
                    is_ok(wl_h2_send_response(h2, stream.into(), list.as_ptr(), list.len(), end_stream));
                }
                Call::Promise { stream, fields: rest } => {
                    let (list, mut promised) = (fields(&REQUEST, &rest), 0);
                    is_ok(wl_h2_push_promise(h2, stream.into(), list.as_ptr(), list.len(), &mut promised));
                }
                Call::Data { stream, data, repeat, end_stream } => {
                    let data = data.repeat(1 + usize::from(repeat));
                    is_ok(wl_h2_send_data(h2, stream.into(), data.as_ptr(), data.len(), end_stream));
                }
                Call::Trailers { stream, fields: rest } => {
                    let list = fields(&[], &rest);
                    is_ok(wl_h2_send_trailers(h2, stream.into(), list.as_ptr(), list.len()));
                }
                Call::Reset { stream, code } => _ = is_ok(wl_h2_reset(h2, stream.into(), code)),
                Call::ReleaseCapacity { stream, len } => {
                    is_ok(wl_h2_release_capacity(h2, stream.into(), len.into()));
                }
                Call::Priority { stream, urgency, incremental } => {
                    is_ok(wl_h2_set_priority(h2, stream.into(), urgency, incremental));
                }
                Call::Deliver { len, capacity } => {
                    transmit(other, now_ns, &mut end.wire);
                    deliver(end, now_ns, len.into(), 1 + usize::from(capacity % 8));
                }
                Call::Inject(bytes) => end.wire.extend(bytes),
                Call::PollAndTransmit { capacity, len, reset_between } => {
                    poll_and_transmit(
                        end,
                        now_ns,
                        &mut other.wire,
                        capacity.into(),
                        len.into(),
                        reset_between,
                    );
                }
                Call::Ping(payload) => _ = is_ok(wl_h2_send_ping(h2, now_ns, &payload)),
                Call::Timeout(after) => {
                    is_ok(wl_h2_set_reading(h2, now_ns, (after % 2) as u8));
                    now_ns += u64::from(after) * 16;
                    is_ok(wl_h2_handle_timeout(h2, now_ns));
                }
                Call::Shutdown => _ = is_ok(wl_h2_shutdown(h2)),
                Call::Abort { code, debug_data } => {
                    is_ok(wl_h2_abort(h2, code, debug_data.as_ptr(), debug_data.len()));
                }
                Call::Eof => _ = is_ok(wl_h2_handle_eof(h2)),
                Call::ReleaseBuffers => _ = is_ok(wl_h2_release_buffers(h2)),
                Call::Free => _ = is_ok(wl_h2_free(h2)),
                Call::Null => null_arguments(end),
            }
            let (mut state, mut text, mut deadline, mut capacity) =
                (MaybeUninit::uninit(), wl_slice { data: null(), len: 0 }, 0, 0);
            if is_ok(wl_h2_get_state(h2, state.as_mut_ptr())) {
                let _: wl_h2_state = state.assume_init();
                assert!(is_ok(wl_h2_error(h2, &mut text)));
                read_slice(&text);
                assert!(is_ok(wl_h2_poll_timeout(h2, &mut deadline)));
                is_ok(wl_h2_send_capacity(h2, 1, &mut capacity));
            }
        }
    }
    for end in ends {
        if is_ok(wl_h2_free(end.h2)) && end.h2.id != 0 {
            assert_eq!(wl_h2_free(end.h2), wl_status::InvalidHandle);
        }
    }
});
