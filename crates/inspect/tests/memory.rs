//! The memory that reading a large capture takes, counted by the allocator. The captures are generated while they are
//! read.

#![allow(clippy::unwrap_used)]
// A global allocator is unsafe to implement.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::Read;
use std::ops::ControlFlow;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use wireloom_inspect::recording::Encoder;
use wireloom_inspect::{Assume, Config, Direction, Format, Inspector, read};

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
/// Held by each test, because the allocator counts for the whole process.
static ALONE: Mutex<()> = Mutex::new(());

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: every call is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        PEAK.fetch_max(HELD.fetch_add(layout.size(), Relaxed) + layout.size(), Relaxed);
        // SAFETY: as the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as the caller's.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// The lengths in bytes of a capture with few frames, and of one with many.
const LARGE: usize = 200_000_000;
const SMALL_FRAMES: usize = 40_000_000;
const MIB: usize = 1 << 20;

/// A pcap file whose packets are generated when they are read.
struct Capture<P> {
    packets: P,
    buffer: Vec<u8>,
    at: usize,
    /// The number of bytes that are still to be generated.
    left: usize,
}

impl<P: Iterator<Item = Vec<u8>>> Capture<P> {
    fn new(len: usize, packets: P) -> Self {
        // Little-endian, microseconds, LINKTYPE_RAW.
        let mut header = vec![0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        header.extend(65_535u32.to_le_bytes());
        header.extend(101u32.to_le_bytes());
        Self { packets, buffer: header, at: 0, left: len }
    }
}

impl<P: Iterator<Item = Vec<u8>>> Read for Capture<P> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        if self.at == self.buffer.len() {
            self.at = 0;
            self.buffer.clear();
            if self.left > 0
                && let Some(packet) = self.packets.next()
            {
                let len = u32::try_from(packet.len()).unwrap().to_le_bytes();
                self.buffer.extend([0; 8]);
                self.buffer.extend(len);
                self.buffer.extend(len);
                self.buffer.extend(packet);
                self.left = self.left.saturating_sub(self.buffer.len());
            }
        }
        let len = into.len().min(self.buffer.len() - self.at);
        into[..len].copy_from_slice(&self.buffer[self.at..self.at + len]);
        self.at += len;
        Ok(len)
    }
}

/// A segment of a client in an IPv4 packet.
fn segment(client: u32, sequence: u32, syn: bool, payload: &[u8]) -> Vec<u8> {
    let len = u16::try_from(40 + payload.len()).unwrap();
    let mut packet = vec![0x45, 0];
    packet.extend(len.to_be_bytes());
    packet.extend([0, 0, 0, 0, 64, 6, 0, 0]);
    packet.extend((0x0a00_0000 + client).to_be_bytes());
    packet.extend([127, 0, 0, 1]);
    packet.extend(40_000u16.to_be_bytes());
    packet.extend(80u16.to_be_bytes());
    packet.extend(sequence.to_be_bytes());
    packet.extend(0u32.to_be_bytes());
    packet.extend([0x50, if syn { 0x02 } else { 0x10 }, 0xff, 0xff, 0, 0, 0, 0]);
    packet.extend(payload);
    packet
}

/// A client that sends these bytes, in segments of 60,000.
fn stream(client: u32, first: Vec<u8>, more: impl FnMut() -> Vec<u8>) -> impl Iterator<Item = Vec<u8>> {
    let mut sequence = 1u32;
    let chunks = std::iter::once(first).chain(std::iter::repeat_with(more));
    let segments = chunks.map(move |chunk| {
        assert!(chunk.len() <= 60_000);
        let packet = segment(client, sequence, false, &chunk);
        sequence = sequence.wrapping_add(u32::try_from(chunk.len()).unwrap());
        packet
    });
    std::iter::once(segment(client, 0, true, b"")).chain(segments)
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// Reads a capture of `len` bytes; returns the peak memory in bytes and the number of entries.
fn peak(assume: Assume, len: usize, packets: impl Iterator<Item = Vec<u8>> + Send) -> (usize, usize) {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let before = HELD.load(Relaxed);
    PEAK.store(before, Relaxed);
    let mut entries = 0;
    let config = Config { assume, ..Config::default() };
    read(Capture::new(len, packets), None, &mut Inspector::new(config), &mut |_| {
        entries += 1;
        ControlFlow::Continue(())
    })
    .unwrap();
    (PEAK.load(Relaxed) - before, entries)
}

fn http2_frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = u32::try_from(payload.len()).unwrap().to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

#[test]
fn many_messages_take_bounded_memory() {
    // Masked by a key of zeros: text of 1,000 bytes.
    let mut frame = vec![0x81, 0xfe, 0x03, 0xe8, 0, 0, 0, 0];
    frame.extend([b'x'; 1000]);
    let frames = frame.repeat(50);
    let (peak, entries) =
        peak(Assume::WebSocket, SMALL_FRAMES, stream(1, frames.clone(), move || frames.clone()));
    assert!(entries > 30_000, "{entries}");
    assert!(peak < 4 * MIB, "{peak}");
}

#[test]
fn one_message_without_an_end_takes_bounded_memory() {
    let mut head = vec![0x82, 0xff];
    head.extend((1u64 << 40).to_be_bytes());
    head.extend([0; 4]);
    let (peak, _) = peak(Assume::WebSocket, LARGE, stream(1, head, || vec![0; 60_000]));
    assert!(peak < 8 * MIB, "{peak}");
}

#[test]
fn a_head_and_a_body_without_an_end_take_bounded_memory() {
    let head = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nfffffffff\r\n".to_vec();
    let (peak_of_body, _) = peak(Assume::Detect, LARGE, stream(1, head, || vec![b'x'; 60_000]));
    assert!(peak_of_body < 8 * MIB, "{peak_of_body}");
    let (peak_of_head, _) =
        peak(Assume::Detect, LARGE, stream(1, b"GET / HTTP/1.1\r\nX: ".to_vec(), || vec![b'x'; 60_000]));
    assert!(peak_of_head < 8 * MIB, "{peak_of_head}");
}

/// The most memory that `run` takes, in bytes, while what it returns is kept.
fn peak_of<T>(run: impl FnOnce() -> T) -> usize {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let before = HELD.load(Relaxed);
    PEAK.store(before, Relaxed);
    let _kept = run();
    PEAK.load(Relaxed) - before
}

// A server that records must not hold what its clients upload.
#[test]
fn a_masked_recording_holds_no_bodies() {
    let body = vec![b'x'; 2 * MIB];
    let peak = peak_of(|| {
        let mut encoders: Vec<Encoder> = (0..50).map(|number| Encoder::new(number, true)).collect();
        for encoder in &mut encoders {
            let mut send = |bytes: &[u8]| {
                encoder.bytes(std::time::Duration::ZERO, Direction::ToServer, bytes);
            };
            send(b"POST / HTTP/1.1\r\nContent-Length: 3000000\r\n\r\n");
            body.chunks(64 << 10).for_each(send);
        }
        encoders
    });
    assert!(peak < 2 * MIB, "{peak}");
}

#[test]
fn requests_without_responses_take_bounded_memory() {
    let field = format!("X: {}\r\n", "x".repeat(30_000));
    let websocket = "Connection: Upgrade\r\nUpgrade: websocket\r\n";
    for request in
        [format!("GET / HTTP/1.1\r\n{field}\r\n"), format!("GET / HTTP/1.1\r\n{websocket}{field}\r\n")]
    {
        let peak = peak_of(|| {
            let mut inspector = Inspector::new(Config::default());
            for _ in 0..1000 {
                let mut entries = Vec::new();
                inspector.handle_bytes(1, None, Direction::ToServer, request.as_bytes(), &mut entries);
            }
            inspector
        });
        assert!(peak < MIB, "{peak}");
    }
}

#[test]
fn connections_that_never_end_take_bounded_memory() {
    let packets = (0..).flat_map(|client| {
        // The first frame of an incomplete message.
        let mut begun = vec![0x01, 0xfe, 0x03, 0xe8, 0, 0, 0, 0];
        begun.extend([b'x'; 1000]);
        [segment(client, 0, true, b""), segment(client, 1, false, &begun)]
    });
    let (peak, entries) = peak(Assume::WebSocket, SMALL_FRAMES, packets);
    assert!(entries > 30_000, "{entries}");
    // 4,096 connections are followed.
    assert!(peak < 64 * MIB, "{peak}");
}

#[test]
fn segments_after_gaps_take_bounded_memory() {
    let packets = (0..).flat_map(|client| {
        let syn = segment(client, 0, true, b"");
        let behind = (1..100u32).map(move |number| segment(client, number * 20_000, false, &[b'x'; 10_000]));
        std::iter::once(syn).chain(behind)
    });
    let (peak, _) = peak(Assume::Detect, LARGE, packets);
    // 256 MiB may be held over all connections; each holds 1 MiB at most.
    assert!(peak < 300 * MIB, "{peak}");
}

#[test]
fn http2_streams_that_never_end_take_bounded_memory() {
    let mut id = 1u32;
    let more = move || {
        let mut frames = Vec::new();
        while frames.len() < 50_000 {
            // GET without END_STREAM, and a little DATA.
            frames.extend(http2_frame(1, 4, id, b"\x82\x86\x84"));
            frames.extend(http2_frame(0, 0, id, &[b'x'; 100]));
            id += 2;
        }
        frames
    };
    let (peak, entries) = peak(Assume::Detect, SMALL_FRAMES, stream(1, PREFACE.to_vec(), more));
    assert!(entries > 300_000, "{entries}");
    assert!(peak < 16 * MIB, "{peak}");
}

#[test]
fn field_blocks_without_an_end_take_bounded_memory() {
    let mut is_first = true;
    let more = move || {
        // HEADERS without END_HEADERS, then CONTINUATION without end.
        let kind = if std::mem::take(&mut is_first) { 1 } else { 9 };
        http2_frame(kind, 0, 1, &[b'x'; 16_384])
    };
    let (peak, _) = peak(Assume::Detect, LARGE, stream(1, PREFACE.to_vec(), more));
    assert!(peak < 8 * MIB, "{peak}");
}

#[test]
fn a_long_line_of_small_requests_takes_bounded_memory() {
    use base64::Engine as _;
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let requests = b"GET / HTTP/1.1\r\n\r\n".repeat(100_000);
    let data = base64::engine::general_purpose::STANDARD.encode(&requests);
    let recording = format!(
        "{{\"wireloom_recording\":1}}\n{{\"t\":0,\"c\":1,\"from\":\"client\",\"data\":\"{data}\"}}\n"
    );
    let hexdump: String = requests.iter().map(|byte| format!("{byte:02x}")).collect();
    for (format, input) in [(Format::Recording, recording), (Format::Hexdump, hexdump)] {
        let before = HELD.load(Relaxed);
        PEAK.store(before, Relaxed);
        let mut entries = 0;
        read(input.as_bytes(), Some(format), &mut Inspector::new(Config::default()), &mut |_| {
            entries += 1;
            ControlFlow::Continue(())
        })
        .unwrap();
        assert_eq!(entries, 100_000);
        let peak = PEAK.load(Relaxed) - before;
        assert!(peak < 32 * MIB, "{format:?}: {peak}");
    }
}

/// A HAR with one entry, whose list has `count` items of this text.
fn har(before: &str, item: &'static str, count: usize, behind: &str) -> impl Read + Send {
    let items = (0..count).map(move |at| if at == 0 { item.to_owned() } else { format!(",{item}") });
    Text { parts: [before.to_owned()].into_iter().chain(items).chain([behind.to_owned()]), rest: Vec::new() }
}

/// A text that is generated while it is read.
struct Text<P> {
    parts: P,
    rest: Vec<u8>,
}

impl<P: Iterator<Item = String>> Read for Text<P> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        while self.rest.is_empty() {
            let Some(part) = self.parts.next() else { return Ok(0) };
            self.rest = part.into_bytes();
        }
        let len = self.rest.len().min(into.len());
        into[..len].copy_from_slice(&self.rest[..len]);
        self.rest.drain(..len);
        Ok(len)
    }
}

// An entry of a HAR is read as a whole, and its items take more memory than their text.
#[test]
fn a_har_entry_with_many_items_takes_bounded_memory() {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let messages = r#"{"log":{"entries":[{"request":{},"_webSocketMessages":["#;
    let headers = r#"{"log":{"entries":[{"request":{"headers":["#;
    let (message, header) = (r#"{"type":""}"#, r#"{"name":"","value":""}"#);
    for (before, item, count, behind, refused) in [
        (messages, message, 1 << 20, "]}]}}", None),
        (messages, message, 3 << 20, "]}]}}", Some("an entry has more than 1048576 messages")),
        (headers, header, 4096, "]}}]}}", None),
        (headers, header, 3 << 20, "]}}]}}", Some("an entry has more than 4096 header fields")),
    ] {
        let mut inspector = Inspector::new(Config::default());
        let mut entries = 0;
        let before_all = HELD.load(Relaxed);
        PEAK.store(before_all, Relaxed);
        let result = read(har(before, item, count, behind), Some(Format::Har), &mut inspector, &mut |_| {
            entries += 1;
            ControlFlow::Continue(())
        });
        let peak = PEAK.load(Relaxed) - before_all;
        assert!(peak < 256 * MIB, "{count} items took {} MiB", peak / MIB);
        match (result, refused) {
            (Ok(()), None) => assert!(entries > 0),
            (Err(error), Some(reason)) => assert!(error.to_string().contains(reason), "{error}"),
            (result, _) => panic!("{result:?}"),
        }
    }
}
