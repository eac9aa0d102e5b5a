//! A server that is not this implementation, and that is late: it reads and writes when it likes, uses each of several SETTINGS as soon as
//! it has read them, changes its own at any time, pads, sends interim responses, and goes on sending on streams that the client has
//! cancelled, until it reads so.
//!
//! Both ends pause for up to ten seconds at any point. Nothing that this server does is an error: the client must not end the connection,
//! nor a stream of its own accord, and each request that is not cancelled must complete.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use wireloom_http2::error::{ErrorCode, Misuse};
use wireloom_http2::field::{Field, Token};
use wireloom_http2::limits::Rate;
use wireloom_http2::{Config, Connection, Event, Role, StreamKey};
use wireloom_testing::http2::{Frame, PREFACE, flag, kind};
use wireloom_testing::{Rng, rounds};

const GET: [Field<'static>; 4] = [
    Field::known(Token::Method, b"GET"),
    Field::known(Token::Scheme, b"https"),
    Field::known(Token::Authority, b"example.org"),
    Field::known(Token::Path, b"/"),
];

/// Byte `at` of the content of a stream.
fn content(stream: u32, at: usize) -> u8 {
    ((stream as usize * 37 + at) % 251) as u8
}

/// A response in progress.
struct Response {
    window: i64,
    len: usize,
    sent: usize,
    has_head: bool,
}

/// The server: its view of the connection, which may be old.
struct Server {
    window: i64,
    initial_window: i64,
    frame_len_max: usize,
    /// The largest SETTINGS_MAX_CONCURRENT_STREAMS that the client may still use, and those that it has not acknowledged.
    streams_max: usize,
    announced: VecDeque<usize>,
    responses: BTreeMap<u32, Response>,
    /// Requests whose content has not ended.
    receiving: BTreeMap<u32, usize>,
    output: Vec<u8>,
}

impl Server {
    fn receive(&mut self, frame: &Frame, rng: &mut Rng) {
        match frame.kind {
            kind::SETTINGS if frame.has(flag::ACK) => {
                self.streams_max = self.announced.pop_front().unwrap();
            }
            kind::SETTINGS => {
                for entry in frame.payload.chunks(6) {
                    let value = u32::from_be_bytes([entry[2], entry[3], entry[4], entry[5]]);
                    match entry[1] {
                        4 => {
                            // RFC 9113 §6.9.2: the windows of all streams change by the difference.
                            let change = i64::from(value) - self.initial_window;
                            self.initial_window += change;
                            self.responses.values_mut().for_each(|response| response.window += change);
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
                if let Some(response) = self.responses.get_mut(&frame.stream) {
                    response.window += i64::from(frame.word(0));
                    assert!(response.window <= i64::from(i32::MAX));
                }
            }
            kind::HEADERS => {
                let most = self.announced.iter().copied().fold(self.streams_max, usize::max);
                self.responses.insert(
                    frame.stream,
                    Response {
                        window: self.initial_window,
                        len: rng.usize(..150_000),
                        sent: 0,
                        has_head: false,
                    },
                );
                if !frame.has(flag::END_STREAM) {
                    self.receiving.insert(frame.stream, 0);
                }
                let open: std::collections::BTreeSet<_> =
                    self.responses.keys().chain(self.receiving.keys()).collect();
                assert!(open.len() <= most, "{} of {most} streams", open.len());
            }
            kind::DATA => {
                if let Some(received) = self.receiving.get_mut(&frame.stream) {
                    *received += frame.payload.len();
                    if frame.has(flag::END_STREAM) {
                        self.receiving.remove(&frame.stream);
                    }
                }
                let len = frame.payload.len() as u32;
                if len > 0 {
                    Frame::window_update(0, len).write(&mut self.output);
                    if self.receiving.contains_key(&frame.stream) {
                        Frame::window_update(frame.stream, len).write(&mut self.output);
                    }
                }
            }
            kind::RST_STREAM => {
                assert_eq!(frame.word(0), u32::from(ErrorCode::CANCEL), "{frame:?}");
                self.responses.remove(&frame.stream);
                self.receiving.remove(&frame.stream);
            }
            kind::GOAWAY => panic!("{}", frame.payload[8..].escape_ascii()),
            _ => {}
        }
    }

    /// Sends a frame that the windows allow. Returns whether there is one.
    fn send(&mut self, rng: &mut Rng) -> bool {
        let able = self.responses.iter().filter(|(_, response)| {
            !response.has_head || response.sent == response.len || response.window.min(self.window) > 0
        });
        let able: Vec<u32> = able.map(|(&id, _)| id).collect();
        let Some(&id) = able.get(rng.usize(..able.len().max(1))) else { return false };
        let Some(response) = self.responses.get_mut(&id) else { return false };
        if !response.has_head {
            response.has_head = rng.bool();
            let status = if response.has_head { "200" } else { "103" };
            Frame::headers(id, &[(":status", status)]).write(&mut self.output);
            return true;
        }
        let room = response.window.min(self.window).max(0) as usize;
        let mut len = (response.len - response.sent).min(room).min(self.frame_len_max);
        if len > 0 && rng.bool() {
            len = rng.usize(1..=len);
        }
        let bytes: Vec<u8> = (response.sent..response.sent + len).map(|at| content(id, at)).collect();
        let mut frame = Frame::data(id, bytes);
        let padding = rng.usize(..20);
        if rng.bool() && len + padding < room.min(self.frame_len_max) {
            frame = frame.padded(padding as u8, padding);
        }
        response.sent += len;
        response.window -= frame.payload.len() as i64;
        self.window -= frame.payload.len() as i64;
        if response.sent == response.len {
            self.responses.remove(&id);
            if rng.bool() {
                frame = frame.end_stream();
            } else {
                frame.write(&mut self.output);
                frame = Frame::headers(id, &[("trailer", "1")]).end_stream();
            }
        }
        frame.write(&mut self.output);
        true
    }

    /// Announces other settings.
    fn change_settings(&mut self, rng: &mut Rng) {
        if self.announced.len() < 5 {
            self.announce(rng.u32(1..20), *rng.pick(&[1, 1_000, 65_535]), rng.u32(16_384..60_000));
        }
    }

    fn announce(&mut self, streams_max: u32, window: u32, frame_len_max: u32) {
        self.announced.push_back(streams_max as usize);
        let settings = [(3, streams_max), (4, window), (5, frame_len_max)];
        Frame::settings(&settings).write(&mut self.output);
    }
}

/// A request in the client's application.
struct Request {
    key: StreamKey,
    left: usize,
    received: usize,
    held: usize,
}

struct Client {
    connection: Connection,
    requests: BTreeMap<u32, Request>,
    left: usize,
    completed: usize,
    cancelled: usize,
}

impl Client {
    fn read(&mut self, input: &[u8], now: Duration) -> usize {
        let mut at = 0;
        loop {
            let (taken, event) = self.connection.handle_input(now, &input[at..]).unwrap();
            at += taken;
            let (stream, has_ended) = match event {
                Some(Event::Data { stream, data, end_stream }) => {
                    let request = self.requests.get_mut(&stream.id()).unwrap();
                    let mut expected = (request.received..).map(|at| content(stream.id(), at));
                    assert!(data.iter().all(|&byte| Some(byte) == expected.next()));
                    request.received += data.len();
                    request.held += data.len();
                    (stream, end_stream)
                }
                Some(Event::Trailers { stream, .. }) => (stream, true),
                Some(Event::Response { stream, end_stream, .. }) => (stream, end_stream),
                Some(event @ (Event::Reset { .. } | Event::Refused { .. })) => panic!("{event:?}"),
                Some(_) => continue,
                None => return at,
            };
            if has_ended {
                self.completed += 1;
                let request = &self.requests[&stream.id()];
                // The response may be complete before the request is.
                if request.left == 0 {
                    let request = self.requests.remove(&stream.id()).unwrap();
                    let _ = self.connection.release_capacity(request.key, request.held);
                }
            }
        }
    }

    /// The application takes a step: opens a request, sends content, releases, cancels, or changes the settings.
    fn act(&mut self, rng: &mut Rng, may_cancel: bool) {
        if self.left > 0 && rng.u8(..3) == 0 {
            self.left -= 1;
            let left = if rng.bool() { 0 } else { rng.usize(1..50_000) };
            let key = self.connection.send_request(GET, left == 0).unwrap();
            self.requests.insert(key.id(), Request { key, left, received: 0, held: 0 });
        }
        if may_cancel && rng.u8(..10) == 0 {
            let mut settings = Config::new(Role::Client).settings;
            settings.initial_window_size = *rng.pick(&[1, 1_000, 65_535, 200_000]);
            settings.max_frame_size = rng.u32(16_384..60_000);
            match self.connection.update_settings(settings) {
                Ok(()) => {}
                Err(error) => assert_eq!(error, Misuse::SettingsUnacknowledged.into()),
            }
        }
        let ids: Vec<u32> = self.requests.keys().copied().collect();
        let Some(&id) = ids.get(rng.usize(..ids.len().max(1))) else { return };
        if may_cancel && rng.u8(..15) == 0 {
            let request = self.requests.remove(&id).unwrap();
            if self.connection.reset(request.key, ErrorCode::CANCEL).is_ok() {
                self.cancelled += 1;
            }
            return;
        }
        self.advance(id, rng);
    }

    fn advance(&mut self, id: u32, rng: &mut Rng) {
        let request = self.requests.get_mut(&id).unwrap();
        let held = std::mem::take(&mut request.held);
        self.connection.release_capacity(request.key, held).unwrap();
        if request.left > 0 {
            let len = rng.usize(1..=request.left);
            request.left -= len;
            self.connection.send_data(request.key, vec![7; len], request.left == 0).unwrap();
        }
        if request.left == 0 && !self.connection.contains(request.key) {
            self.requests.remove(&id);
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
fn a_legal_server_that_is_late_is_never_refused() {
    rounds(12, exchange);
}

fn exchange(rng: &mut Rng) {
    let mut config = Config::new(Role::Client);
    config.settings.initial_window_size = *rng.pick(&[1, 1_000, 65_535, 1 << 20]);
    config.auto_release = rng.bool();
    config.release_at_end = rng.bool();
    // Timeouts of the server are not the point here.
    config.limits.settings_timeout = Duration::from_secs(100_000);
    config.limits.field_block_timeout = Duration::from_secs(100_000);
    config.limits.stall_timeout = Duration::from_secs(100_000);
    config.limits.unknown_frames = Rate::new(0, 1);
    // Not one of its frames is needless, but a window of one byte makes them small, and they come after pauses.
    config.limits.tiny_data = Rate::new(u32::MAX, u32::MAX);
    let auto_release = config.auto_release;
    let requests = 60;
    let mut client = Client {
        connection: Connection::new(Role::Client, config).unwrap(),
        requests: BTreeMap::new(),
        left: requests,
        completed: 0,
        cancelled: 0,
    };
    let mut server = Server {
        window: 65_535,
        initial_window: 65_535,
        frame_len_max: 16_384,
        streams_max: usize::MAX,
        announced: VecDeque::new(),
        responses: BTreeMap::new(),
        receiving: BTreeMap::new(),
        output: Vec::new(),
    };
    server.announce(rng.u32(1..20), 65_535, 16_384);
    // In flight to the server and to the client.
    let (mut up, mut down) = (VecDeque::new(), VecDeque::new());
    let mut preface_left = PREFACE.len();
    let mut now = Duration::from_secs(1);
    let (mut steps, mut idle) = (0, 0);
    while idle < 50 {
        steps += 1;
        let is_last = steps > 4_000;
        assert!(steps < 200_000, "{} requests are stuck", client.requests.len());
        let mut moved = false;
        match if is_last { steps % 5 } else { rng.usize(..8) } {
            0 => {
                moved = server.send(rng);
                down.extend(server.output.drain(..));
            }
            1 => {
                let len = if is_last { up.len() } else { rng.usize(..=up.len()) };
                let passed = len.min(preface_left);
                preface_left -= passed;
                up.drain(..passed);
                let bytes: Vec<u8> = up.iter().copied().take(len - passed).collect();
                let mut rest = &bytes[..];
                while preface_left == 0
                    && let Some(frame) = Frame::read(&mut rest)
                {
                    server.receive(&frame, rng);
                    moved = true;
                }
                up.drain(..bytes.len() - rest.len());
                down.extend(server.output.drain(..));
            }
            2 => {
                let len = if is_last { down.len() } else { rng.usize(..=down.len()) };
                let bytes: Vec<u8> = down.iter().copied().take(len).collect();
                let taken = client.read(&bytes, now);
                down.drain(..taken);
                moved = taken > 0;
                client.connection.handle_timeout(now).unwrap();
                if auto_release {
                    client.requests.values_mut().for_each(|request| request.held = 0);
                }
            }
            3 => moved = client.write(now, &mut up),
            4 if is_last => {
                if client.left > 0 {
                    client.act(rng, false);
                }
                let ids: Vec<u32> = client.requests.keys().copied().collect();
                ids.into_iter().for_each(|id| client.advance(id, rng));
                moved = client.left > 0;
            }
            4 | 5 => client.act(rng, true),
            6 => {
                server.change_settings(rng);
                down.extend(server.output.drain(..));
            }
            _ => now += Duration::from_millis(rng.u64(..10_000)),
        }
        if is_last {
            idle = if moved { 0 } else { idle + 1 };
        }
    }
    assert_eq!((client.requests.len(), client.left, client.connection.streams()), (0, 0, 0));
    assert_eq!(server.responses.len(), 0);
    // One that was cancelled after its response, but before its own end, counts twice.
    assert!(client.completed + client.cancelled >= requests);
}
