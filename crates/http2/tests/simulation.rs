//! Client and server joined by bounded pipes under a fake clock: random exchanges with cancels, resets, priorities,
//! trailers, tunnels, changed settings and GOAWAY.
//!
//! Invariants: all exchanges complete (no deadlock with pipes of any size), no request is refused without a reason, content arrives
//! completely and in order, memory stays within its limit, and in the end both ends agree.
//!
//! `WIRELOOM_SEED=<number> cargo test -p wireloom-http2 --test simulation` reruns one round, and
//! `WIRELOOM_SEED=random WIRELOOM_ROUNDS=100 cargo test --release -p wireloom-http2 --test simulation` explores for hours.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use wireloom_http2::error::{Error, ErrorCode, Misuse};
use wireloom_http2::field::{Field, Token};
use wireloom_http2::priority::Priority;
use wireloom_http2::{Config, Connection, Event, Role, StreamKey};
use wireloom_testing::{Rng, rounds};

/// Bytes in flight in one direction.
struct Pipe {
    bytes: VecDeque<u8>,
    capacity: usize,
}

/// The state of a stream in the application of one end.
#[derive(Debug)]
struct Exchange {
    key: StreamKey,
    is_tunnel: bool,
    /// Content that has not been sent yet.
    left: usize,
    sent: usize,
    trailers: bool,
    has_sent_headers: bool,
    has_sent_end: bool,
    /// `send_capacity` was 0: the application waits for `Event::Writable`.
    is_full: bool,
    received: usize,
    unreleased: usize,
    has_received_end: bool,
}

/// One end: the core and its application.
struct End {
    role: Role,
    core: Connection,
    auto_release: bool,
    memory_max: u64,
    /// The limit on streams that was announced last.
    streams_max: u32,
    exchanges: BTreeMap<u32, Exchange>,
    /// Streams that were reset, and whether this end reset them.
    cut: BTreeMap<u32, bool>,
    /// Bytes of content that were sent and received on each stream.
    sent: BTreeMap<u32, usize>,
    received: BTreeMap<u32, usize>,
    completed: u32,
    requests_left: u32,
    content_max: usize,
    settings_seen: bool,
    /// Whether GOAWAY was sent or received, so that requests may be refused.
    is_going_away: bool,
}

fn content(stream: u32, at: usize) -> u8 {
    ((stream as usize * 31 + at) % 251) as u8
}

impl End {
    fn new(role: Role, rng: &mut Rng) -> Self {
        let mut config = Config::new(role);
        config.settings.initial_window_size = *rng.pick(&[1, 100, 5_000, 65_535, 1 << 20, i32::MAX as u32]);
        config.settings.max_concurrent_streams = rng.u32(1..40);
        config.settings.enable_connect_protocol = role == Role::Server;
        config.connection_window = rng.u32(65_535..400_000);
        config.stream_window_max = rng.u32(1..1_000_000);
        config.auto_release = rng.bool();
        config.memory_max = *rng.pick(&[0, 400_000, 2 << 20, 16 << 20]);
        config.output_ahead = rng.usize(1..100_000);
        config.output_max = rng.usize(1..1_000_000);
        config.stream_queue = rng.u32(1..100_000);
        config.hash_key = rng.u64(..);
        Self {
            role,
            auto_release: config.auto_release,
            memory_max: config.memory_max,
            streams_max: config.settings.max_concurrent_streams,
            core: Connection::new(role, config).unwrap(),
            exchanges: BTreeMap::new(),
            cut: BTreeMap::new(),
            sent: BTreeMap::new(),
            received: BTreeMap::new(),
            completed: 0,
            requests_left: if role == Role::Client { rng.u32(1..60) } else { 0 },
            content_max: 100_000,
            settings_seen: false,
            is_going_away: false,
        }
    }

    /// The application takes one step. Returns whether there was one to take.
    fn act(&mut self, rng: &mut Rng, is_last: bool) -> bool {
        if self.core.ended().is_some() {
            return false;
        }
        // A client that knows the limits is never refused without a reason.
        if self.requests_left > 0 && self.settings_seen && (is_last || rng.u8(0..4) == 0) {
            self.requests_left -= 1;
            self.request(rng);
            return true;
        }
        if !is_last && rng.u16(0..400) == 0 {
            return self.act_on_connection(rng);
        }
        let able: Vec<u32> =
            self.exchanges.values().filter(|e| self.is_able(e)).map(|e| e.key.id()).collect();
        if able.is_empty() {
            return false;
        }
        let stream = *rng.pick(&able);
        if !is_last && rng.u8(0..30) == 0 {
            let key = self.exchanges[&stream].key;
            self.core.reset(key, *rng.pick(&[ErrorCode::CANCEL, ErrorCode::INTERNAL_ERROR])).unwrap();
            self.exchanges.remove(&stream);
            self.cut.insert(stream, true);
            return true;
        }
        self.act_on_stream(stream, rng, is_last);
        true
    }

    /// Whether the application can do something on a stream without waiting for an event.
    fn is_able(&self, exchange: &Exchange) -> bool {
        exchange.unreleased > 0
            || !exchange.has_sent_headers
            || (!exchange.has_sent_end && (!exchange.is_full || exchange.left == 0))
    }

    fn request(&mut self, rng: &mut Rng) {
        let is_tunnel = rng.u8(0..8) == 0 && self.core.peer_settings().enable_connect_protocol;
        let long =
            vec![b'x'; if rng.u8(0..6) == 0 { rng.usize(0..self.content_max.min(16_000)) } else { 10 }];
        let mut fields = vec![Field::known(Token::Method, if is_tunnel { b"CONNECT" } else { b"POST" })];
        if is_tunnel {
            fields.push(Field::known(Token::Protocol, b"websocket"));
        }
        fields.push(Field::known(Token::Scheme, b"https"));
        fields.push(Field::known(Token::Authority, b"example.org"));
        fields.push(Field::known(Token::Path, b"/"));
        if rng.u8(0..5) == 0 {
            let value: &[u8] = rng.pick::<&[u8]>(&[b"u=1", b"i", b"u=5, i"]);
            fields.push(Field::new(b"priority", value));
        }
        fields.push(Field::new(b"x-long", &long));
        let end_stream = !is_tunnel && rng.bool();
        match self.core.send_request(fields, end_stream) {
            Ok(key) => {
                let mut exchange = Exchange::new(key, is_tunnel, self.content_max, rng);
                (exchange.has_sent_headers, exchange.has_sent_end) = (true, end_stream);
                self.exchanges.insert(key.id(), exchange);
            }
            Err(error) => assert!(self.is_going_away, "{error}"),
        }
    }

    fn act_on_connection(&mut self, rng: &mut Rng) -> bool {
        match rng.u8(0..8) {
            0 if rng.u8(0..4) == 0 => {
                self.core.shutdown();
                self.is_going_away = true;
                self.requests_left = 0;
            }
            1 => {
                let sent = self.core.send_ping(Duration::ZERO, [7; 8]);
                assert!(matches!(sent, Ok(()) | Err(Error::Misuse(Misuse::PingsUnacknowledged))), "{sent:?}");
            }
            _ => {
                let mut settings = *self.core.acknowledged_settings();
                if settings == wireloom_http2::Settings::INITIAL {
                    return false;
                }
                settings.initial_window_size = *rng.pick(&[1, 5_000, 65_535, 1 << 20]);
                settings.header_table_size = rng.u32(0..9_000);
                if rng.u8(0..4) == 0 {
                    self.streams_max += rng.u32(1..40);
                }
                // A limit below one that was announced before would be a reason to refuse requests in flight.
                settings.max_concurrent_streams = self.streams_max;
                let _ = self.core.update_settings(settings);
            }
        }
        true
    }

    fn act_on_stream(&mut self, stream: u32, rng: &mut Rng, is_last: bool) {
        let core = &mut self.core;
        let exchange = self.exchanges.get_mut(&stream).unwrap();
        let key = exchange.key;
        if exchange.unreleased > 0 && (is_last || rng.bool()) {
            let len = if is_last { exchange.unreleased } else { rng.usize(1..=exchange.unreleased) };
            core.release_capacity(key, len).unwrap();
            exchange.unreleased -= len;
        } else if !exchange.has_sent_headers {
            let long =
                vec![b'y'; if rng.u8(0..6) == 0 { rng.usize(0..self.content_max.min(16_000)) } else { 10 }];
            let status = Field::known(Token::Status, b"200");
            let end_stream = !exchange.is_tunnel && rng.u8(0..4) == 0;
            core.send_response(key, [status, Field::new(b"x-long", &long)], end_stream).unwrap();
            (exchange.has_sent_headers, exchange.has_sent_end) = (true, end_stream);
        } else if rng.u8(0..20) == 0 {
            let priority = Priority { urgency: rng.u8(0..8), incremental: rng.bool() };
            core.set_priority(key, priority).unwrap();
            if self.role == Role::Client {
                core.send_priority_update(key, priority).unwrap();
            }
        } else if !exchange.has_sent_end && exchange.left == 0 && exchange.trailers {
            core.send_trailers(key, [Field::new(b"x-end", b"1")]).unwrap();
            exchange.has_sent_end = true;
        } else if !exchange.has_sent_end && exchange.left == 0 {
            core.send_data(key, "", true).unwrap();
            exchange.has_sent_end = true;
        } else if !exchange.has_sent_end && !exchange.is_full {
            let capacity = core.send_capacity(key);
            exchange.is_full = capacity == 0;
            let len = exchange.left.min(capacity).min(1 + rng.len(40_000));
            let bytes: Vec<u8> = (exchange.sent..exchange.sent + len).map(|at| content(stream, at)).collect();
            core.send_data(key, bytes, false).unwrap();
            exchange.left -= len;
            exchange.sent += len;
            *self.sent.entry(stream).or_default() += len;
        }
        self.settle_finished();
    }

    /// Exchanges whose streams are closed: they completed.
    fn settle_finished(&mut self) {
        let (core, completed) = (&self.core, &mut self.completed);
        self.exchanges.retain(|_, exchange| {
            if core.contains(exchange.key) {
                return true;
            }
            assert!(exchange.has_sent_end && exchange.has_received_end, "{:?} is gone", exchange.key);
            *completed += 1;
            false
        });
    }

    /// Writes into the pipe. Returns whether bytes moved.
    fn write(&mut self, pipe: &mut Pipe, now: Duration, rng: &mut Rng, is_last: bool) -> bool {
        let wants_write = self.core.wants_write();
        let mut slices: [&[u8]; 4] = [&[]; 4];
        let filled = self.core.poll_transmit(now, &mut slices);
        let len: usize = slices[..filled].iter().map(|slice| slice.len()).sum();
        assert!(wants_write || len == 0, "{:?}: {len} bytes unannounced", self.role);
        if len == 0 {
            assert!(!self.core.wants_write(), "{:?}: nothing to write", self.role);
            return false;
        }
        let mut room = len.min(pipe.capacity - pipe.bytes.len());
        room = if is_last { room } else { rng.usize(0..=room) };
        let mut left = room;
        for slice in &slices[..filled] {
            let part = slice.len().min(left);
            pipe.bytes.extend(&slice[..part]);
            left -= part;
        }
        self.core.transmitted(now, room);
        room > 0
    }

    /// Reads from the pipe. Returns whether bytes moved.
    fn read(&mut self, pipe: &mut Pipe, now: Duration, rng: &mut Rng, is_last: bool) -> bool {
        let mut len = pipe.bytes.len();
        len = if is_last { len } else { rng.usize(0..=len) };
        let bytes: Vec<u8> = pipe.bytes.iter().take(len).copied().collect();
        let (mut at, mut events) = (0, Vec::new());
        loop {
            let (taken, event) = self.core.handle_input(now, &bytes[at..]).unwrap_or_else(|error| {
                panic!("{:?}: {error}", self.role);
            });
            at += taken;
            match event {
                Some(event) => events.push(Happened::of(event)),
                None => break,
            }
        }
        pipe.bytes.drain(..at);
        events.into_iter().for_each(|event| self.handle(event, rng));
        self.poll_events(rng);
        at > 0
    }

    fn poll_events(&mut self, rng: &mut Rng) {
        while let Some(event) = self.core.poll_event() {
            let event = Happened::of(event);
            self.handle(event, rng);
        }
        self.settle_finished();
    }

    fn handle(&mut self, event: Happened, rng: &mut Rng) {
        match event {
            Happened::Request(key, is_tunnel, end_stream) => {
                let mut exchange = Exchange::new(key, is_tunnel, self.content_max, rng);
                exchange.has_received_end = end_stream;
                self.exchanges.insert(key.id(), exchange);
            }
            Happened::Data(key, data, end_stream) => {
                // The application may have reset the stream while these bytes were read.
                let Some(exchange) = self.exchanges.get_mut(&key.id()) else { return };
                assert!(!exchange.has_received_end);
                for (at, &byte) in data.iter().enumerate() {
                    assert_eq!(byte, content(key.id(), exchange.received + at), "{key:?} out of order");
                }
                exchange.received += data.len();
                exchange.unreleased += if self.auto_release { 0 } else { data.len() };
                exchange.has_received_end = end_stream;
                *self.received.entry(key.id()).or_default() += data.len();
            }
            Happened::End(key) => {
                if let Some(exchange) = self.exchanges.get_mut(&key.id()) {
                    exchange.has_received_end = true;
                }
            }
            Happened::Reset(key, error) => {
                assert_eq!(error, None, "{:?}: {key:?}", self.role);
                self.exchanges.remove(&key.id());
                self.cut.insert(key.id(), false);
            }
            Happened::Refused(key) => {
                assert!(self.is_going_away, "{key:?} is refused without a cause");
                self.exchanges.remove(&key.id());
                self.cut.insert(key.id(), true);
            }
            Happened::Writable(key) => {
                if let Some(exchange) = self.exchanges.get_mut(&key.id()) {
                    exchange.is_full = false;
                }
            }
            Happened::GoAway => {
                self.is_going_away = true;
                self.requests_left = 0;
            }
            Happened::Settings => self.settings_seen = true,
            Happened::Nothing => {}
        }
    }

    fn check_memory(&self) {
        let memory = self.core.memory();
        let receive_max = self.memory_max.max(65_535) + 1;
        assert!(memory.held <= receive_max, "{memory:?} of {}", self.memory_max);
        assert!(memory.queued <= self.memory_max / 4 + 60 * 1024, "{memory:?} of {}", self.memory_max);
    }
}

impl Exchange {
    fn new(key: StreamKey, is_tunnel: bool, content_max: usize, rng: &mut Rng) -> Self {
        Self {
            key,
            is_tunnel,
            left: rng.len(content_max),
            sent: 0,
            trailers: !is_tunnel && rng.u8(0..4) == 0,
            has_sent_headers: false,
            has_sent_end: false,
            is_full: false,
            received: 0,
            unreleased: 0,
            has_received_end: false,
        }
    }
}

/// An event, without borrows.
enum Happened {
    Request(StreamKey, bool, bool),
    Data(StreamKey, Vec<u8>, bool),
    End(StreamKey),
    Reset(StreamKey, Option<Error>),
    Refused(StreamKey),
    Writable(StreamKey),
    GoAway,
    Settings,
    Nothing,
}

impl Happened {
    fn of(event: Event<'_>) -> Self {
        match event {
            Event::Request { stream, kind, end_stream, .. } => {
                Self::Request(stream, kind.is_connect(), end_stream)
            }
            Event::Response { stream, end_stream: true, .. } | Event::Trailers { stream, .. } => {
                Self::End(stream)
            }
            Event::Data { stream, data, end_stream } => Self::Data(stream, data.to_vec(), end_stream),
            Event::Reset { stream, error, .. } => Self::Reset(stream, error),
            Event::Refused { stream } => Self::Refused(stream),
            Event::Writable { stream } => Self::Writable(stream),
            Event::GoAway { .. } => Self::GoAway,
            Event::Settings => Self::Settings,
            _ => Self::Nothing,
        }
    }
}

/// More rounds than a frame takes through the narrowest pipe.
const ROUNDS_WITHOUT_PROGRESS: usize = 100_000;

struct Simulation {
    /// Client, server.
    ends: [End; 2],
    /// To the server, to the client.
    pipes: [Pipe; 2],
    now: Duration,
}

impl Simulation {
    fn new(rng: &mut Rng) -> Self {
        let mut pipe =
            || Pipe { bytes: VecDeque::new(), capacity: *rng.pick(&[1, 2, 9, 100, 4_096, 65_536, 262_144]) };
        let pipes = [pipe(), pipe()];
        let mut ends = [End::new(Role::Client, rng), End::new(Role::Server, rng)];
        // Few and short exchanges through narrow pipes, so that no round takes long.
        let narrowest = pipes[0].capacity.min(pipes[1].capacity);
        if narrowest < 4_096 {
            ends.iter_mut().for_each(|end| end.content_max = 20 * narrowest);
            ends[0].requests_left %= 12;
        }
        Self { ends, pipes, now: Duration::from_secs(1) }
    }

    /// One of the two ends takes a step. Returns whether there was one to take.
    fn step(&mut self, choice: usize, rng: &mut Rng, is_last: bool) -> bool {
        let side = choice % 2;
        let end = &mut self.ends[side];
        let moved = match choice / 2 {
            0 => end.act(rng, is_last),
            1 => end.write(&mut self.pipes[side], self.now, rng, is_last),
            _ => end.read(&mut self.pipes[1 - side], self.now, rng, is_last),
        };
        end.poll_events(rng);
        end.check_memory();
        moved
    }

    fn run(&mut self, rng: &mut Rng) {
        for _ in 0..rng.usize(100..3_000) {
            let choice = rng.usize(0..6);
            self.step(choice, rng, false);
            self.now += Duration::from_micros(rng.u64(0..300));
        }
        self.limit_content();
        // No new exchange begins, and all of them complete although the clock does not advance.
        let mut last_progress = (0, 0);
        for round in 0.. {
            let mut moved = false;
            for choice in 0..6 {
                moved |= self.step(choice, rng, true);
            }
            if !moved {
                break;
            }
            let progress = self.progress();
            if progress != last_progress.1 {
                last_progress = (round, progress);
            }
            let [client, server] = &self.ends;
            assert!(round - last_progress.0 < ROUNDS_WITHOUT_PROGRESS, "{:?} {:?}", client.core, server.core);
        }
        self.check_end();
    }

    /// Through a window of a few bytes long content would take minutes.
    fn limit_content(&mut self) {
        for end in &mut self.ends {
            if end.core.peer_settings().initial_window_size < 5_000 {
                end.content_max = end.content_max.min(2_000);
                end.exchanges.values_mut().for_each(|exchange| exchange.left = exchange.left.min(2_000));
            }
        }
    }

    /// Grows with each byte of content that arrives, and with each request and response that begins or ends.
    fn progress(&self) -> usize {
        let of_end = |end: &End| {
            let received: usize = end.received.values().sum();
            let begun = end.exchanges.values().filter(|exchange| exchange.has_sent_headers).count();
            received + end.completed as usize + begun + end.cut.len()
        };
        self.ends.iter().map(of_end).sum()
    }

    fn check_end(&self) {
        let [client, server] = &self.ends;
        for end in &self.ends {
            let open: Vec<_> = end.exchanges.values().collect();
            let context =
                || (client.exchanges.values(), server.exchanges.values(), &client.core, &server.core);
            assert!(open.is_empty(), "{:?}: never complete: {:#?}", end.role, context());
            assert_eq!((end.requests_left, end.core.streams()), (0, 0), "{:?}", end.role);
            let memory = end.core.memory();
            assert_eq!((memory.held, memory.queued, memory.output, memory.input), (0, 0, 0, 0));
        }
        assert!(self.pipes.iter().all(|pipe| pipe.bytes.is_empty()));
        for (from, to) in [(client, server), (server, client)] {
            for (stream, sent) in &from.sent {
                let received = to.received.get(stream).copied().unwrap_or(0);
                let is_cut = from.cut.contains_key(stream) || to.cut.contains_key(stream);
                assert!(received == *sent || (is_cut && received < *sent), "{stream}: {received} of {sent}");
            }
        }
        if client.core.ended().is_none() && server.core.ended().is_none() {
            assert_eq!(
                client.core.peer_settings().initial_window_size,
                server.core.acknowledged_settings().initial_window_size
            );
            assert_eq!(
                server.core.peer_settings().initial_window_size,
                client.core.acknowledged_settings().initial_window_size
            );
        }
    }
}

#[test]
fn everything_completes_over_bounded_pipes() {
    rounds(1_000, |rng| Simulation::new(rng).run(rng));
}
