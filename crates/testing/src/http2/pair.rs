//! A client and a server of HTTP/2 joined in memory: two state machines, one clock, and a wire each way that delivers
//! bytes in pieces of any size, in order.

use crate::clock::Clock;
use crate::rng::Rng;
use crate::split::Split;
use std::collections::VecDeque;
use std::time::Duration;
use wireloom_http2::error::{Error, ErrorCode};
use wireloom_http2::field::FieldList;
use wireloom_http2::{Config, Connection, Event, Role, StreamKey};

/// Fields, owned.
pub type Fields = Vec<(Vec<u8>, Vec<u8>)>;

/// What an end heard. Content is kept beside it, by stream: how it is cut says nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// A request.
    Request(StreamKey, Fields),
    /// A final response.
    Response(StreamKey, u16),
    /// An interim response.
    Informational(StreamKey, u16),
    /// Trailers.
    Trailers(StreamKey, Fields),
    /// A message came to its end.
    End(StreamKey),
    /// A promised stream.
    Promise(StreamKey),
    /// A stream ended before its time, and why if this end found it so.
    Reset(StreamKey, ErrorCode, Option<Error>),
    /// A request that the peer did not process.
    Refused(StreamKey),
    /// A queue has room again.
    Writable(StreamKey),
    /// GOAWAY: its last stream, code and debug data.
    GoAway(u32, ErrorCode, Vec<u8>),
    /// The connection failed; told once.
    Failed(Error),
    /// Something else, in the words of its event.
    Other(String),
}

/// An end, its clock, and what it was told.
#[derive(Debug)]
pub struct End {
    /// The state machine itself, for commands and getters.
    pub connection: Connection,
    /// The time that it is told.
    pub clock: Clock,
    /// What it heard, in order.
    pub heard: Vec<Heard>,
    /// Whether the transport takes what it writes.
    pub writes: bool,
    content: Vec<(StreamKey, Vec<u8>)>,
    /// On the way to this end.
    wire: VecDeque<u8>,
}

impl End {
    fn new(role: Role, config: Config) -> Self {
        let connection = Connection::new(role, config).expect("settings in range");
        let mut end = Self {
            connection,
            clock: Clock::new(),
            heard: Vec::new(),
            writes: true,
            content: Vec::new(),
            wire: VecDeque::new(),
        };
        end.check_time();
        end
    }

    /// The content that it heard on a stream.
    pub fn content(&self, stream: StreamKey) -> &[u8] {
        self.content.iter().find(|(key, _)| *key == stream).map_or(&[], |(_, content)| content)
    }

    /// The streams of the requests that it heard, in order.
    pub fn requests(&self) -> Vec<StreamKey> {
        let requests = self.heard.iter().filter_map(|heard| match heard {
            Heard::Request(stream, _) => Some(*stream),
            _ => None,
        });
        requests.collect()
    }

    /// What ended the connection for this end, if a fault or a limit did.
    pub fn failure(&self) -> Option<Error> {
        self.heard.iter().find_map(|heard| match heard {
            Heard::Failed(error) => Some(*error),
            _ => None,
        })
    }

    /// Acts on a deadline that has come.
    fn check_time(&mut self) {
        if self.connection.poll_timeout().is_some_and(|deadline| deadline <= self.clock.now())
            && let Err(error) = self.connection.handle_timeout(self.clock.now())
        {
            self.heard.push(Heard::Failed(error));
        }
        self.take_events();
    }

    fn take_events(&mut self) {
        while let Some(event) = self.connection.poll_event() {
            note(event, &mut self.heard, &mut self.content);
        }
    }

    /// Writes some of what it has, as a socket would take it; says what.
    fn write(&mut self, split: Split, rng: &mut Rng) -> Vec<u8> {
        let mut slices: [&[u8]; 4] = [&[]; 4];
        let room = rng.usize(1..=4);
        let filled = self.connection.poll_transmit(&mut slices[..room]);
        let mut shown = slices[..filled].concat();
        shown.truncate(split.next(rng, shown.len()));
        self.connection.transmitted(shown.len());
        self.take_events();
        shown
    }

    /// Reads from the wire; says how much. Input that is not taken waits there.
    fn read(&mut self, split: Split, rng: &mut Rng) -> usize {
        let len = split.next(rng, self.wire.len());
        let piece: Vec<u8> = self.wire.iter().copied().take(len).collect();
        let mut at = 0;
        loop {
            match self.connection.handle_input(self.clock.now(), &piece[at..]) {
                Ok((taken, Some(event))) => {
                    at += taken;
                    note(event, &mut self.heard, &mut self.content);
                }
                Ok((taken, None)) => {
                    at += taken;
                    break;
                }
                Err(error) => {
                    assert_eq!(self.failure(), None, "{error} is said after the end");
                    self.heard.push(Heard::Failed(error));
                    at = piece.len();
                    break;
                }
            }
        }
        self.take_events();
        self.wire.drain(..at);
        at
    }
}

fn owned(fields: &FieldList) -> Fields {
    fields.iter().map(|field| (field.name().to_vec(), field.value().to_vec())).collect()
}

fn note(event: Event<'_>, heard: &mut Vec<Heard>, content: &mut Vec<(StreamKey, Vec<u8>)>) {
    let (said, end) = match event {
        Event::Request { stream, fields, end_stream, .. } => {
            (Heard::Request(stream, owned(fields)), end_stream.then_some(stream))
        }
        Event::Response { stream, status, end_stream, .. } => {
            (Heard::Response(stream, status), end_stream.then_some(stream))
        }
        Event::Trailers { stream, fields } => (Heard::Trailers(stream, owned(fields)), Some(stream)),
        Event::Data { stream, data, end_stream } => {
            match content.iter_mut().find(|(key, _)| *key == stream) {
                Some((_, content)) => content.extend_from_slice(data),
                None => content.push((stream, data.to_vec())),
            }
            heard.extend(end_stream.then_some(Heard::End(stream)));
            return;
        }
        Event::Informational { stream, status, .. } => (Heard::Informational(stream, status), None),
        Event::Promise { promised, .. } => (Heard::Promise(promised), None),
        Event::Reset { stream, code, error } => (Heard::Reset(stream, code, error), None),
        Event::Refused { stream } => (Heard::Refused(stream), None),
        Event::Writable { stream } => (Heard::Writable(stream), None),
        Event::GoAway { last_stream_id, code, debug_data } => {
            (Heard::GoAway(last_stream_id.get(), code, debug_data.to_vec()), None)
        }
        other => (Heard::Other(format!("{other:?}")), None),
    };
    heard.push(said);
    heard.extend(end.map(Heard::End));
}

/// Both ends and what is on the wire between them.
#[derive(Debug)]
pub struct Pair {
    /// The client's end.
    pub client: End,
    /// The server's end.
    pub server: End,
}

impl Pair {
    /// Two ends as they come.
    pub fn new() -> Self {
        Self::with(Config::new(Role::Client), Config::new(Role::Server))
    }

    /// Two ends with these choices.
    pub fn with(client: Config, server: Config) -> Self {
        Self { client: End::new(Role::Client, client), server: End::new(Role::Server, server) }
    }

    /// Lets time pass for both ends, to each deadline and past it; what they do about it is not yet on the wire.
    pub fn advance(&mut self, by: Duration) {
        for end in [&mut self.client, &mut self.server] {
            let until = end.clock.now() + by;
            while let Some(deadline) = end.connection.poll_timeout().filter(|&deadline| deadline <= until) {
                end.clock.advance_to(deadline);
                end.check_time();
            }
            end.clock.advance_to(until);
        }
    }

    /// One thing happens: an end writes some of what it has, or reads some of what is on the wire. Says whether anything
    /// did.
    pub fn step(&mut self, rng: &mut Rng) -> bool {
        let split = Split::draw(rng);
        let first = rng.usize(0..4);
        (0..4).any(|turn| match (first + turn) % 4 {
            0 => transmit(&mut self.client, &mut self.server, split, rng),
            1 => transmit(&mut self.server, &mut self.client, split, rng),
            2 => self.client.read(split, rng) > 0,
            _ => self.server.read(split, rng) > 0,
        })
    }

    /// Steps until nothing is left to happen.
    ///
    /// # Panics
    /// When that takes more steps than any exchange of a test needs.
    pub fn run(&mut self, rng: &mut Rng) {
        for _ in 0..5_000_000 {
            if !self.step(rng) {
                return;
            }
        }
        panic!("never quiet: {:?}", self.client.connection);
    }
}

impl Default for Pair {
    fn default() -> Self {
        Self::new()
    }
}

fn transmit(from: &mut End, to: &mut End, split: Split, rng: &mut Rng) -> bool {
    if !from.writes {
        return false;
    }
    let written = from.write(split, rng);
    to.wire.extend(&written);
    !written.is_empty()
}
