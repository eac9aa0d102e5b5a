//! Any sequence of calls of libwireloom with both ends of a WebSocket, joined by a wire into which bytes of an attacker may fall. No call
//! finds a bug in the library, each pointer that it returns can be read, and a freed handle is an error.

#![no_main]

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};
use wireloom_capi::*;
use wireloom_fuzz::capi::{is_ok, read};

#[derive(Arbitrary, Debug)]
struct Setup {
    deflate: Option<(bool, bool, u8, u8)>,
    chunks: bool,
    queued_len_max: Option<u16>,
    message_len_max: Option<u16>,
    keepalive: Option<(u8, u8)>,
}

#[derive(Arbitrary, Debug)]
enum Call {
    Send {
        kind: u8,
        data: Vec<u8>,
        repeat: u8,
        flags: u8,
    },
    Chunk {
        kind: u8,
        data: Vec<u8>,
        fin: u8,
    },
    Prepared {
        kind: u8,
        data: Vec<u8>,
        compress: Option<u8>,
    },
    Ping(Vec<u8>),
    Pong(Vec<u8>),
    Close {
        code: u16,
        reason: Vec<u8>,
    },
    /// Moves bytes to the other end, which takes this number of events at once.
    Deliver {
        len: u16,
        capacity: u8,
    },
    DeliverIntoSlot {
        len: u16,
    },
    Inject(Vec<u8>),
    PollAndTransmit {
        capacity: u8,
        len: u16,
    },
    Timeout(u32),
    Eof,
    WriteFailed,
    Release,
    Free,
    Null,
}

struct End {
    ws: wl_ws,
    /// On the way to this end.
    wire: Vec<u8>,
}

fn read_event(event: &wl_ws_event) {
    std::hint::black_box(read(event.data, event.len));
    if event.kind == wl_ws_event_kind::Text as u32 || event.kind == wl_ws_event_kind::Close as u32 {
        let bytes =
            if event.len == 0 { &[] } else { unsafe { std::slice::from_raw_parts(event.data, event.len) } };
        std::str::from_utf8(bytes).expect("texts are valid");
    }
}

fn open(role: u32, setup: &Setup) -> wl_ws {
    unsafe {
        let mut config = MaybeUninit::uninit();
        assert!(is_ok(wl_ws_config_default(config.as_mut_ptr(), size_of::<wl_ws_config>())));
        let mut config: wl_ws_config = config.assume_init();
        config.delivery = setup.chunks.into();
        if let Some(max) = setup.queued_len_max {
            config.queued_len_max = max.into();
            config.queued_len_high = config.queued_len_high.min(max.into());
        }
        if let Some(max) = setup.message_len_max {
            config.message_len_max = max.into();
        }
        if let Some((ping, dead)) = setup.keepalive {
            config.ping_after_ns = u64::from(ping) * 1_000_000;
            config.dead_after_ns = u64::from(dead) * 1_000_000;
        }
        let params = setup.deflate.map(|(server, client, server_bits, client_bits)| wl_deflate_params {
            server_no_context_takeover: server.into(),
            client_no_context_takeover: client.into(),
            server_max_window_bits: 8 + server_bits % 8,
            client_max_window_bits: 8 + client_bits % 8,
        });
        let params = params.as_ref().map_or(null(), |params| params as *const _);
        let mut ws = wl_ws { id: 0 };
        is_ok(wl_ws_new(role, &config, params, null(), &[7; 32], 0, &mut ws));
        ws
    }
}

/// Takes the output of one end to the wire of the other.
fn transmit(from: &End, to: &mut Vec<u8>) {
    let mut buffer = [0; 4_096];
    loop {
        let mut len = 0;
        let status = unsafe { wl_ws_take_output(from.ws, buffer.as_mut_ptr(), buffer.len(), &mut len) };
        if !is_ok(status) || len == 0 {
            return;
        }
        to.extend(&buffer[..len]);
    }
}

fn deliver(end: &mut End, now_ns: u64, len: usize, capacity: usize) {
    // Memory of exactly this length, which the call unmasks.
    let mut input: Vec<u8> = end.wire.drain(..len.min(end.wire.len())).collect();
    let (mut at, mut rounds) = (0, 0);
    loop {
        let mut events = vec![MaybeUninit::<wl_ws_event>::uninit(); capacity];
        let (mut consumed, mut found) = (0, 0);
        let status = unsafe {
            let rest = input[at..].as_mut_ptr();
            let events = events.as_mut_ptr().cast();
            wl_ws_handle_input(
                end.ws,
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
            read_event(unsafe { event.assume_init_ref() });
        }
        at += consumed;
        rounds += 1;
        assert!(rounds <= input.len() * 2 + 64, "no progress");
        if status != wl_status::More {
            return;
        }
    }
}

fn deliver_into_slot(end: &mut End, now_ns: u64, len: usize) {
    let (mut space, mut space_len) = (null_mut(), 0);
    unsafe {
        if !is_ok(wl_ws_recv_slot(end.ws, &mut space, &mut space_len)) {
            return;
        }
        let len = len.min(space_len).min(end.wire.len());
        for (at, byte) in end.wire.drain(..len).enumerate() {
            space.add(at).write(byte);
        }
        let (mut event, mut found) = (MaybeUninit::<wl_ws_event>::uninit(), 0);
        let status = wl_ws_recv_slot_filled(end.ws, now_ns, len, event.as_mut_ptr(), &mut found);
        if is_ok(status) && found == 1 {
            read_event(event.assume_init_ref());
        }
        assert!(!is_ok(wl_ws_recv_slot_filled(end.ws, now_ns, usize::MAX, event.as_mut_ptr(), &mut found)));
    }
}

fn poll_and_transmit(end: &End, to: &mut Vec<u8>, capacity: usize, len: usize) {
    let mut slices = vec![MaybeUninit::<wl_slice>::uninit(); capacity];
    let mut count = 0;
    if !is_ok(unsafe { wl_ws_poll_transmit(end.ws, slices.as_mut_ptr().cast(), capacity, &mut count) }) {
        return;
    }
    assert!(count <= capacity);
    let mut left = len;
    for slice in &slices[..count] {
        let slice = unsafe { slice.assume_init_ref() };
        read(slice.data, slice.len);
        let taken = left.min(slice.len);
        if taken > 0 {
            to.extend(unsafe { std::slice::from_raw_parts(slice.data, taken) });
        }
        left -= taken;
    }
    is_ok(wl_ws_transmitted(end.ws, len - left));
}

fn send_prepared(end: &End, kind: u8, data: &[u8], compress: Option<u8>) {
    unsafe {
        let (mut plain, mut compressed, mut bytes) =
            (wl_prepared { id: 0 }, wl_prepared { id: 0 }, wl_slice { data: null(), len: 0 });
        if !is_ok(wl_prepared_new(kind.into(), data.as_ptr(), data.len(), &mut plain)) {
            return;
        }
        assert!(is_ok(wl_prepared_bytes(plain, &mut bytes)));
        read(bytes.data, bytes.len);
        if let Some(bits) = compress
            && is_ok(wl_prepared_compress(plain, bits, null(), &mut compressed))
        {
            is_ok(wl_ws_send_prepared(end.ws, compressed));
            assert!(is_ok(wl_prepared_free(compressed)));
        }
        is_ok(wl_ws_send_prepared(end.ws, plain));
        assert!(is_ok(wl_prepared_free(plain)));
        assert_eq!(wl_ws_send_prepared(end.ws, plain), wl_status::InvalidHandle);
    }
}

fn null_arguments(end: &End) {
    unsafe {
        assert!(!is_ok(wl_ws_handle_input(end.ws, 0, null_mut(), 1, null_mut(), null_mut(), 1, null_mut())));
        assert!(!is_ok(wl_ws_send(end.ws, 1, null(), 1, 0)));
        assert!(!is_ok(wl_ws_get_state(end.ws, null_mut())));
        assert!(!is_ok(wl_ws_poll_transmit(end.ws, null_mut(), 3, null_mut())));
    }
}

fuzz_target!(|input: (Setup, Vec<(bool, Call)>)| {
    let (setup, calls) = input;
    let mut ends = [0, 1].map(|role| End { ws: open(role, &setup), wire: Vec::new() });
    let mut now_ns = 0;
    for (second, call) in calls {
        let [first, other] = &mut ends;
        let (end, other) = if second { (other, first) } else { (first, other) };
        unsafe {
            match call {
                Call::Send { kind, data, repeat, flags } => {
                    let data = data.repeat(1 + usize::from(repeat));
                    is_ok(wl_ws_send(end.ws, kind.into(), data.as_ptr(), data.len(), flags.into()));
                }
                Call::Chunk { kind, data, fin } => {
                    is_ok(wl_ws_send_chunk(end.ws, kind.into(), data.as_ptr(), data.len(), fin));
                }
                Call::Prepared { kind, data, compress } => send_prepared(end, kind, &data, compress),
                Call::Ping(payload) => {
                    _ = is_ok(wl_ws_send_ping(end.ws, now_ns, payload.as_ptr(), payload.len()))
                }
                Call::Pong(payload) => _ = is_ok(wl_ws_send_pong(end.ws, payload.as_ptr(), payload.len())),
                Call::Close { code, reason } => {
                    is_ok(wl_ws_close(end.ws, now_ns, code, reason.as_ptr(), reason.len()));
                }
                Call::Deliver { len, capacity } => {
                    transmit(other, &mut end.wire);
                    deliver(end, now_ns, len.into(), 1 + usize::from(capacity % 8));
                }
                Call::DeliverIntoSlot { len } => {
                    transmit(other, &mut end.wire);
                    deliver_into_slot(end, now_ns, len.into());
                }
                Call::Inject(bytes) => end.wire.extend(bytes),
                Call::PollAndTransmit { capacity, len } => {
                    poll_and_transmit(end, &mut other.wire, capacity.into(), len.into());
                }
                Call::Timeout(after) => {
                    now_ns += u64::from(after);
                    is_ok(wl_ws_handle_timeout(end.ws, now_ns));
                }
                Call::Eof => _ = is_ok(wl_ws_handle_eof(end.ws)),
                Call::WriteFailed => _ = is_ok(wl_ws_handle_write_failed(end.ws, now_ns)),
                Call::Release => _ = is_ok(wl_ws_release_buffers(end.ws)),
                Call::Free => _ = is_ok(wl_ws_free(end.ws)),
                Call::Null => null_arguments(end),
            }
            let (mut state, mut ended, mut deadline) = (MaybeUninit::uninit(), MaybeUninit::uninit(), 0);
            if is_ok(wl_ws_get_state(end.ws, state.as_mut_ptr())) {
                assert!(is_ok(wl_ws_get_end(end.ws, ended.as_mut_ptr())));
                assert!(is_ok(wl_ws_poll_timeout(end.ws, &mut deadline)));
                let (state, ended): (wl_ws_state, wl_ws_end) = (state.assume_init(), ended.assume_init());
                assert_eq!(state.has_end == 0, ended.cause == wl_ws_cause::None as u32);
                read(ended.reason.data, ended.reason.len);
                read(ended.text.data, ended.text.len);
            }
        }
    }
    for end in ends {
        if is_ok(wl_ws_free(end.ws)) && end.ws.id != 0 {
            assert_eq!(wl_ws_free(end.ws), wl_status::InvalidHandle);
        }
    }
});
