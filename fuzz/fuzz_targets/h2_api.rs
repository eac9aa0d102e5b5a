//! Any sequence of calls on both ends of one connection, joined by a wire that delivers any number of bytes at a time. Neither
//! end ever reports a violation by the other, no request is refused unless a limit was lowered or the connection is going
//! away, and what one end sends on a stream is what the other receives, to the last byte.

#![no_main]

use libfuzzer_sys::fuzz_target;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use wireloom_http2::error::{Error, ErrorCode};
use wireloom_http2::field::{Field, Token};
use wireloom_http2::priority::Priority;
use wireloom_http2::{Config, Connection, Event, Role, Settings, StreamKey};

const REQUEST: [Field<'static>; 5] = [
    Field::known(Token::Method, b"POST"),
    Field::known(Token::Scheme, b"https"),
    Field::known(Token::Authority, b"example.org"),
    Field::known(Token::Path, b"/a/path"),
    Field::known(Token::UserAgent, b"fuzz"),
];
const PROMISE: [Field<'static>; 4] = [
    Field::known(Token::Method, b"GET"),
    Field::known(Token::Scheme, b"https"),
    Field::known(Token::Authority, b"example.org"),
    Field::known(Token::Path, b"/pushed"),
];

struct End {
    connection: Connection,
    keys: Vec<StreamKey>,
    /// On the way to the other end.
    wire: VecDeque<u8>,
    sent: BTreeMap<u32, Vec<u8>>,
    received: BTreeMap<u32, Vec<u8>>,
    /// Handed out and not released.
    held: BTreeMap<StreamKey, usize>,
    /// Streams that ended before their time, at either end.
    cut: BTreeSet<u32>,
    /// A stream limit was lowered while requests may have been in flight, or the connection is going away.
    may_refuse: bool,
    over: bool,
}

impl End {
    fn new(role: Role, auto_release: bool, window: u32) -> Self {
        let mut config = Config::new(role);
        config.settings.enable_push = true;
        config.settings.max_concurrent_streams = 6;
        config.settings.initial_window_size = window;
        config.stream_window_max = window.max(4_000);
        config.auto_release = auto_release;
        config.stream_queue = 3_000;
        Self {
            connection: Connection::new(role, config).expect("valid"),
            keys: Vec::new(),
            wire: VecDeque::new(),
            sent: BTreeMap::new(),
            received: BTreeMap::new(),
            held: BTreeMap::new(),
            cut: BTreeSet::new(),
            may_refuse: false,
            over: false,
        }
    }

    fn key(&self, pick: u8) -> Option<StreamKey> {
        (!self.keys.is_empty()).then(|| self.keys[usize::from(pick) % self.keys.len()])
    }

    fn note(&mut self, event: Noted) {
        match event {
            Noted::Opened(key) => self.keys.push(key),
            Noted::Data(key, data) => {
                *self.held.entry(key).or_default() += data.len();
                self.received.entry(key.id()).or_default().extend(data);
            }
            Noted::Cut(key, error) => {
                assert!(!matches!(error, Some(Error::Peer { .. })), "stream {key:?}: {error:?}");
                self.cut.insert(key.id());
            }
            Noted::Refused(key) => {
                // A promise is refused by a client that has not acknowledged push, or has too many.
                let is_request = key.id() % 2 == 1;
                assert!(self.may_refuse || !is_request, "stream {key:?} is refused without a cause");
                self.cut.insert(key.id());
            }
            Noted::GoingAway => self.may_refuse = true,
            Noted::Nothing => {}
        }
    }

    /// Puts up to `len` bytes of the output on the wire; returns whether there were any.
    fn transmit(&mut self, now: Duration, len: usize) -> bool {
        let mut slices = [&[][..]; 4];
        let filled = self.connection.poll_transmit(now, &mut slices);
        let before = self.wire.len();
        for slice in &slices[..filled] {
            let room = len - (self.wire.len() - before);
            self.wire.extend(&slice[..slice.len().min(room)]);
        }
        let written = self.wire.len() - before;
        self.connection.transmitted(now, written);
        written > 0
    }

    fn receive(&mut self, now: Duration, bytes: &[u8]) -> usize {
        let mut at = 0;
        while !self.over {
            match self.connection.handle_input(now, &bytes[at..]) {
                Ok((taken, Some(event))) => {
                    at += taken;
                    let event = Noted::of(event);
                    self.note(event);
                }
                Ok((taken, None)) => return at + taken,
                Err(error) => self.fail(error),
            }
        }
        bytes.len()
    }

    fn fail(&mut self, error: Error) {
        // Limits may be reached: the calls of a fuzzer can be a flood. No rule may be broken.
        let calm = [Some(ErrorCode::ENHANCE_YOUR_CALM), Some(ErrorCode::SETTINGS_TIMEOUT)];
        assert!(calm.contains(&error.code()), "{error}");
        self.over = true;
    }

    fn events(&mut self) {
        while let Some(event) = self.connection.poll_event() {
            let event = Noted::of(event);
            self.note(event);
        }
    }
}

/// An event, kept.
enum Noted {
    Opened(StreamKey),
    Data(StreamKey, Vec<u8>),
    Cut(StreamKey, Option<Error>),
    Refused(StreamKey),
    GoingAway,
    Nothing,
}

impl Noted {
    fn of(event: Event<'_>) -> Self {
        match event {
            Event::Request { stream, .. } => Self::Opened(stream),
            Event::Promise { promised, .. } => Self::Opened(promised),
            Event::Data { stream, data, .. } => Self::Data(stream, data.to_vec()),
            Event::Reset { stream, error, .. } => Self::Cut(stream, error),
            Event::Refused { stream } => Self::Refused(stream),
            Event::GoAway { .. } => Self::GoingAway,
            _ => Self::Nothing,
        }
    }
}

/// Moves bytes from one end to the other; returns whether anything moved.
fn deliver(from: &mut End, to: &mut End, now: Duration, transmit: usize, receive: usize) -> bool {
    let moved = from.transmit(now, transmit);
    let bytes: Vec<u8> = from.wire.iter().copied().take(receive).collect();
    let taken = to.receive(now, &bytes);
    from.wire.drain(..taken);
    to.events();
    moved || taken > 0
}

fn settle(client: &mut End, server: &mut End, now: Duration) {
    for _ in 0..100_000 {
        let there = deliver(client, server, now, 70_000, 70_000);
        let back = deliver(server, client, now, 70_000, 70_000);
        if !there && !back {
            return;
        }
    }
    panic!("never quiet");
}

fn act(end: &mut End, other: &mut End, op: u8, pick: u8, number: u16, now: Duration) {
    let (other_cut, other_may_refuse) = (&mut other.cut, &mut other.may_refuse);
    let connection = &mut end.connection;
    if op == 0 {
        match connection.role() {
            Role::Client => {
                let len = number.to_string();
                let announced = [Field::known(Token::ContentLength, len.as_bytes())];
                let announced = if pick & 2 == 2 { &announced[..] } else { &[] };
                let fields = REQUEST.iter().chain(announced).copied();
                if let Ok(key) = connection.send_request(fields, pick & 1 == 1) {
                    end.keys.push(key);
                }
            }
            Role::Server => {
                if let Some(key) = end.key(pick)
                    && let Ok(key) = end.connection.push_promise(key, PROMISE)
                {
                    end.keys.push(key);
                }
            }
        }
        return;
    }
    match op {
        9 => {
            let sizes = [0, 1, 100, 5_000, 70_000, 300_000];
            let size = sizes[usize::from(number) % sizes.len()];
            let push = connection.role() == Role::Server || number & 64 == 0;
            let settings = Settings {
                initial_window_size: size,
                header_table_size: u32::from(number) * 7 % 9_000,
                enable_push: push,
                max_concurrent_streams: u32::from(pick % 9),
                max_frame_size: 16_384 + u32::from(number),
                ..Config::new(connection.role()).settings
            };
            *other_may_refuse = true;
            let _ = connection.update_settings(settings);
        }
        10 => {
            let _ = connection.send_ping(now, [pick; 8]);
        }
        11 if pick == 77 => {
            end.may_refuse = true;
            end.connection.shutdown();
        }
        _ => {}
    }
    let Some(key) = end.key(pick) else { return };
    let connection = &mut end.connection;
    let len = number.to_string();
    let status = [
        Field::known(Token::Status, if number & 1 == 0 { b"200" } else { b"404" }),
        Field::known(Token::ContentLength, len.as_bytes()),
    ];
    let status = if pick & 128 == 128 { &status[..] } else { &status[..1] };
    match op {
        // Through a window of one byte, each byte takes a round trip: a driver does not queue without end either.
        1 | 2 if connection.queued(key) < 3_000 => {
            let data = vec![pick ^ number as u8; usize::from(number) % 40_000];
            if connection.send_data(key, data.clone(), number & 7 == 0).is_ok() {
                end.sent.entry(key.id()).or_default().extend(data);
            }
        }
        3 => {
            let _ = connection.send_trailers(key, [Field::new(b"x-trailer", &[b'a' + (pick & 7)])]);
        }
        4 => {
            if connection.reset(key, ErrorCode::CANCEL).is_ok() {
                end.cut.insert(key.id());
                other_cut.insert(key.id());
            }
        }
        5 | 6 => {
            let _ = connection.send_response(key, status.iter().copied(), number & 6 == 0);
        }
        7 => {
            let _ = connection.send_informational(key, [Field::known(Token::Status, b"103")]);
        }
        8 => {
            let held = end.held.get_mut(&key).map_or(0, |held| std::mem::take(held));
            let part = held.min(usize::from(number));
            end.held.insert(key, held - part);
            // Streams that release by themselves hold nothing.
            let _ = connection.release_capacity(key, part);
        }
        12 => {
            let priority = Priority { urgency: pick & 7, incremental: number & 1 == 1 };
            let _ = connection.set_priority(key, priority);
            let _ = connection.send_priority_update(key, priority);
        }
        13 => {
            let _ = connection.set_auto_release(key, true);
        }
        _ => {}
    }
    end.events();
}

fuzz_target!(|input: (u8, Vec<(u8, u8, u16)>)| {
    let (choices, calls) = input;
    let windows = [0, 1, 1_000, 65_535];
    let window = |at: u8| windows[usize::from(at) & 3];
    let mut client = End::new(Role::Client, choices & 1 == 1, window(choices >> 2));
    let mut server = End::new(Role::Server, choices & 2 == 2, window(choices >> 4));
    let mut now = Duration::from_secs(5);
    // A client that does not know the limits yet may be refused.
    settle(&mut client, &mut server, now);
    for (op, pick, number) in calls.into_iter().take(300) {
        match op % 32 {
            op @ 0..=13 => act(&mut client, &mut server, op, pick, number, now),
            op @ 14..=27 => act(&mut server, &mut client, op - 14, pick, number, now),
            28 => {
                now += Duration::from_millis(u64::from(number) / 16);
                for end in [&mut client, &mut server] {
                    if let Err(error) = end.connection.handle_timeout(now) {
                        end.fail(error);
                    }
                    end.events();
                }
            }
            29 => {
                let _ = deliver(
                    &mut client,
                    &mut server,
                    now,
                    usize::from(pick) * 16,
                    usize::from(number) % 2_000,
                );
            }
            30 => {
                let _ = deliver(
                    &mut server,
                    &mut client,
                    now,
                    usize::from(pick) * 16,
                    usize::from(number) % 2_000,
                );
            }
            _ => settle(&mut client, &mut server, now),
        }
        if client.over || server.over {
            return;
        }
    }

    // Everything is let through: windows open, what is held is released, and both ends come to rest.
    for end in [&mut client, &mut server] {
        let settings =
            Settings { initial_window_size: 1 << 24, ..Config::new(end.connection.role()).settings };
        let _ = end.connection.update_settings(settings);
    }
    for _ in 0..200 {
        settle(&mut client, &mut server, now);
        let mut released = false;
        for end in [&mut client, &mut server] {
            for (key, held) in std::mem::take(&mut end.held) {
                released |= held > 0 && end.connection.release_capacity(key, held).is_ok();
            }
        }
        if client.over || server.over {
            return;
        }
        if !released {
            break;
        }
    }
    let cut: BTreeSet<u32> = client.cut.union(&server.cut).copied().collect();
    for (from, to) in [(&client, &server), (&server, &client)] {
        for (stream, sent) in &from.sent {
            // A promise that was refused is not reported.
            if !to.keys.iter().any(|key| key.id() == *stream) {
                assert!(stream % 2 == 0 || cut.contains(stream) || !to.received.contains_key(stream));
                continue;
            }
            let received = to.received.get(stream).map_or(&[][..], Vec::as_slice);
            assert!(sent.starts_with(received), "stream {stream}: other bytes were received");
            assert!(
                received.len() == sent.len() || cut.contains(stream),
                "stream {stream}: {} of {}",
                received.len(),
                sent.len()
            );
        }
    }
});
