//! A client that is not this implementation, and that is late: it reads and writes when it likes, uses each of several SETTINGS as soon
//! as it has read them, pads, and goes on sending on streams that the server has reset, until it reads so.
//!
//! Both ends pause for up to ten seconds at any point. Nothing that this client does is an error: the server must not end the
//! connection, nor a stream of its own accord, and each stream that is not reset must complete.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use wireloom_http2::error::{Error, ErrorCode, Exceeded};
use wireloom_http2::field::{Field, Token};
use wireloom_http2::{Config, Connection, Event, Role, StreamKey};
use wireloom_testing::http2::{Frame, PREFACE, code, flag, kind};
use wireloom_testing::{Rng, rounds};

const OK: [Field<'static>; 1] = [Field::known(Token::Status, b"200")];

/// Byte `at` of the content of a stream.
fn content(stream: u32, at: usize) -> u8 {
    ((stream as usize * 31 + at) % 251) as u8
}

/// A stream at the client.
struct Upload {
    window: i64,
    len: usize,
    sent: usize,
    has_sent_end: bool,
    has_received_end: bool,
}

/// The client: its view of the connection, which may be old.
struct Client {
    window: i64,
    initial_window: i64,
    frame_len_max: usize,
    streams_max: usize,
    next: u32,
    uploads: BTreeMap<u32, Upload>,
    left: u32,
    completed: Vec<u32>,
    output: Vec<u8>,
}

/// A stream in the server's application.
struct Download {
    key: StreamKey,
    received: usize,
    held: usize,
    has_ended: bool,
}

struct Server {
    connection: Connection,
    downloads: BTreeMap<u32, Download>,
    lens: BTreeMap<u32, usize>,
}

impl Client {
    fn open(&mut self, rng: &mut Rng) {
        if self.left == 0 || self.uploads.len() >= self.streams_max {
            return;
        }
        self.left -= 1;
        let id = self.next;
        self.next += 2;
        Frame::post(id).write(&mut self.output);
        let (window, len) = (self.initial_window, rng.usize(..150_000));
        self.uploads
            .insert(id, Upload { window, len, sent: 0, has_sent_end: false, has_received_end: false });
    }

    /// Sends a DATA frame that the windows allow. Returns whether there is one.
    fn send(&mut self, rng: &mut Rng) -> bool {
        let able = self.uploads.iter().filter(|(_, upload)| {
            !upload.has_sent_end && (upload.sent == upload.len || upload.window.min(self.window) > 0)
        });
        let able: Vec<u32> = able.map(|(&id, _)| id).collect();
        let Some(&id) = able.get(rng.usize(..able.len().max(1))) else { return false };
        let Some(upload) = self.uploads.get_mut(&id) else { return false };
        let room = upload.window.min(self.window).max(0) as usize;
        let mut len = (upload.len - upload.sent).min(room).min(self.frame_len_max);
        if len > 0 && rng.bool() {
            len = rng.usize(1..=len);
        }
        let bytes: Vec<u8> = (upload.sent..upload.sent + len).map(|at| content(id, at)).collect();
        let mut frame = Frame::data(id, bytes);
        let padding = rng.usize(..20);
        if rng.bool() && len + padding < room.min(self.frame_len_max) {
            frame = frame.padded(padding as u8, padding);
        }
        upload.sent += len;
        upload.window -= frame.payload.len() as i64;
        self.window -= frame.payload.len() as i64;
        if upload.sent == upload.len && (len == 0 || rng.bool()) {
            upload.has_sent_end = true;
            frame = frame.end_stream();
        }
        frame.write(&mut self.output);
        self.close_finished(id);
        true
    }

    fn close_finished(&mut self, id: u32) {
        if self.uploads.get(&id).is_some_and(|upload| upload.has_sent_end && upload.has_received_end) {
            self.uploads.remove(&id);
            self.completed.push(id);
        }
    }

    fn receive(&mut self, frame: &Frame) {
        match frame.kind {
            kind::SETTINGS if !frame.has(flag::ACK) => {
                for entry in frame.payload.chunks(6) {
                    let value = u32::from_be_bytes([entry[2], entry[3], entry[4], entry[5]]);
                    match entry[1] {
                        3 => self.streams_max = value as usize,
                        4 => {
                            // RFC 9113 §6.9.2: the windows of all streams change by the difference.
                            let change = i64::from(value) - self.initial_window;
                            self.initial_window += change;
                            self.uploads.values_mut().for_each(|upload| upload.window += change);
                        }
                        5 => self.frame_len_max = value as usize,
                        _ => {}
                    }
                }
                Frame::settings_ack().write(&mut self.output);
            }
            kind::PING if !frame.has(flag::ACK) => frame.clone().flag(flag::ACK).write(&mut self.output),
            kind::WINDOW_UPDATE if frame.stream == 0 => self.window += i64::from(frame.word(0)),
            kind::WINDOW_UPDATE => {
                if let Some(upload) = self.uploads.get_mut(&frame.stream) {
                    upload.window += i64::from(frame.word(0));
                    assert!(upload.window <= i64::from(i32::MAX));
                }
            }
            kind::HEADERS | kind::DATA => {
                if let Some(upload) = self.uploads.get_mut(&frame.stream) {
                    upload.has_received_end |= frame.has(flag::END_STREAM);
                }
                self.close_finished(frame.stream);
            }
            kind::RST_STREAM => {
                let reasons = [code::CANCEL, code::REFUSED_STREAM];
                assert!(reasons.contains(&frame.word(0)), "{frame:?}");
                self.uploads.remove(&frame.stream);
            }
            kind::GOAWAY => panic!("{}", frame.payload[8..].escape_ascii()),
            _ => {}
        }
    }
}

impl Server {
    fn read(&mut self, input: &[u8], now: Duration) -> usize {
        let mut at = 0;
        loop {
            let (taken, event) = self.connection.handle_input(now, &input[at..]).unwrap();
            at += taken;
            match event {
                Some(Event::Request { stream, .. }) => {
                    let download = Download { key: stream, received: 0, held: 0, has_ended: false };
                    self.downloads.insert(stream.id(), download);
                }
                Some(Event::Data { stream, data, end_stream }) => {
                    let download = self.downloads.get_mut(&stream.id()).unwrap();
                    let is_ordered = data
                        .iter()
                        .zip(download.received..)
                        .all(|(&byte, at)| byte == content(stream.id(), at));
                    assert!(is_ordered && !download.has_ended);
                    download.received += data.len();
                    download.held += data.len();
                    download.has_ended = end_stream;
                    if end_stream {
                        self.lens.insert(stream.id(), download.received);
                    }
                }
                Some(Event::Reset { stream, error, .. }) => {
                    let refused = Exceeded::ConcurrentStreams;
                    let is_refused =
                        matches!(error, Some(Error::Limit { exceeded, .. }) if exceeded == refused);
                    assert!(is_refused, "{stream:?} was reset: {error:?}");
                }
                Some(_) => {}
                None => return at,
            }
        }
    }

    /// The application takes a step: releases, answers, resets, or changes the settings.
    fn act(&mut self, rng: &mut Rng) {
        let ids: Vec<u32> = self.downloads.keys().copied().collect();
        if rng.u8(..10) == 0 {
            let mut settings = Config::new(Role::Server).settings;
            settings.initial_window_size = *rng.pick(&[1, 1_000, 65_535, 200_000]);
            settings.max_frame_size = rng.u32(16_384..60_000);
            settings.max_concurrent_streams = rng.u32(1..20);
            // Fails while too many are not acknowledged.
            let _ = self.connection.update_settings(settings);
        }
        let Some(id) = ids.get(rng.usize(..ids.len().max(1))) else { return };
        let download = self.downloads.get_mut(id).unwrap();
        match rng.u8(..12) {
            0 => {
                self.connection.reset(download.key, ErrorCode::CANCEL).unwrap();
                self.downloads.remove(id);
            }
            1..4 if download.has_ended => self.finish(*id),
            _ => {
                let held = std::mem::take(&mut download.held);
                self.connection.release_capacity(download.key, held).unwrap();
            }
        }
    }

    fn finish(&mut self, id: u32) {
        let download = self.downloads.remove(&id).unwrap();
        self.connection.send_response(download.key, OK, true).unwrap();
    }

    /// Releases what is held, and answers what is complete.
    fn settle(&mut self) {
        let ids: Vec<u32> = self.downloads.keys().copied().collect();
        for id in ids {
            let download = self.downloads.get_mut(&id).unwrap();
            let held = std::mem::take(&mut download.held);
            self.connection.release_capacity(download.key, held).unwrap();
            if download.has_ended {
                self.finish(id);
            }
        }
    }

    fn write(&mut self, now: Duration, output: &mut VecDeque<u8>) -> bool {
        let mut slices = [&[][..]; 8];
        let filled = self.connection.poll_transmit(now, &mut slices);
        let bytes = slices[..filled].concat();
        self.connection.transmitted(now, bytes.len());
        output.extend(&bytes);
        !bytes.is_empty()
    }
}

#[test]
fn a_legal_client_that_is_late_is_never_refused() {
    rounds(12, exchange);
}

fn exchange(rng: &mut Rng) {
    let mut config = Config::new(Role::Server);
    config.settings.initial_window_size = *rng.pick(&[1, 1_000, 65_535, 1 << 20]);
    config.settings.max_concurrent_streams = rng.u32(1..20);
    config.auto_release = rng.bool();
    // Deadlines of the client are not tested here.
    config.limits.settings_timeout = Duration::from_secs(100_000);
    config.limits.field_block_timeout = Duration::from_secs(100_000);
    config.limits.stall_timeout = Duration::from_secs(100_000);
    config.limits.unknown_frames = wireloom_http2::limits::Rate::new(0, 1);
    let auto_release = config.auto_release;
    let connection = Connection::new(Role::Server, config).unwrap();
    let mut server = Server { connection, downloads: BTreeMap::new(), lens: BTreeMap::new() };
    let mut client = Client {
        window: 65_535,
        initial_window: 65_535,
        frame_len_max: 16_384,
        streams_max: usize::MAX,
        next: 1,
        uploads: BTreeMap::new(),
        left: 60,
        completed: Vec::new(),
        output: PREFACE.to_vec(),
    };
    Frame::settings(&[]).write(&mut client.output);
    // In flight to the server and to the client.
    let (mut up, mut down) = (VecDeque::new(), VecDeque::new());
    let mut now = Duration::from_secs(1);
    let (mut steps, mut idle) = (0, 0);
    while idle < 50 {
        steps += 1;
        let is_last = steps > 4_000;
        assert!(steps < 200_000, "{} uploads are stuck", client.uploads.len());
        let mut moved = false;
        match if is_last { steps % 4 } else { rng.usize(..7) } {
            0 => {
                client.open(rng);
                moved = client.send(rng);
                up.extend(client.output.drain(..));
            }
            1 => {
                let len = if is_last { down.len() } else { rng.usize(..=down.len()) };
                let bytes: Vec<u8> = down.iter().copied().take(len).collect();
                let mut rest = &bytes[..];
                while let Some(frame) = Frame::read(&mut rest) {
                    client.receive(&frame);
                    moved = true;
                }
                down.drain(..bytes.len() - rest.len());
                up.extend(client.output.drain(..));
            }
            2 => {
                let len = if is_last { up.len() } else { rng.usize(..=up.len()) };
                let bytes: Vec<u8> = up.iter().copied().take(len).collect();
                let taken = server.read(&bytes, now);
                up.drain(..taken);
                moved = taken > 0;
                server.connection.handle_timeout(now).unwrap();
                if auto_release {
                    server.downloads.values_mut().for_each(|download| download.held = 0);
                }
            }
            3 => {
                if is_last {
                    server.settle();
                }
                moved = server.write(now, &mut down);
            }
            4 => server.act(rng),
            _ => now += Duration::from_millis(rng.u64(..10_000)),
        }
        if is_last {
            if steps % 4_001 == 0 {
                let settings = Config::new(Role::Server).settings;
                let _ = server.connection.update_settings(settings);
            }
            idle = if moved { 0 } else { idle + 1 };
        }
    }
    assert_eq!((client.uploads.len(), client.left, server.connection.streams()), (0, 0, 0));
    for id in client.completed {
        assert!(server.lens.contains_key(&id), "{id}");
    }
}
