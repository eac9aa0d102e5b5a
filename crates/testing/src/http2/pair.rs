//! A client and a server of HTTP/2 joined in memory: two state machines, one clock, and a wire in each direction that delivers
//! bytes in order, in chunks of any size.

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

/// An event that an end received. Content is collected per stream instead, because its chunks depend on the input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// A request.
    Request(StreamKey, Fields),
    /// A final response.
    Response(StreamKey, u16),
    /// An interim response.
    Informational(StreamKey, u16),
    /// Trailers.
    Trailers(StreamKey, Fields),
    /// A message has ended.
    End(StreamKey),
    /// A promised stream.
    Promise(StreamKey),
    /// A stream was reset, and why if this end reset it.
    Reset(StreamKey, ErrorCode, Option<Error>),
    /// A request that the peer did not process.
    Refused(StreamKey),
    /// A send queue has room again.
    Writable(StreamKey),
    /// GOAWAY: its last stream, code and debug data.
    GoAway(u32, ErrorCode, Vec<u8>),
    /// The connection failed; reported once.
    Failed(Error),
    /// Another event, as its `Debug` text.
    Other(String),
}

/// An end, its clock, and the events that it received.
#[derive(Debug)]
pub struct End {
    /// The state machine, for commands and getters.
    pub connection: Connection,
    /// The time that is passed to it.
    pub clock: Clock,
    /// Events, in order.
    pub received: Vec<Received>,
    /// Whether the transport accepts its output.
    pub writes: bool,
    content: Vec<(StreamKey, Vec<u8>)>,
    /// Bytes on the wire to this end.
    wire: VecDeque<u8>,
}

impl End {
    fn new(role: Role, config: Config) -> Self {
        let connection = Connection::new(role, config).expect("settings in range");
        let mut end = Self {
            connection,
            clock: Clock::new(),
            received: Vec::new(),
            writes: true,
            content: Vec::new(),
            wire: VecDeque::new(),
        };
        end.check_time();
        end
    }

    /// The content that arrived on a stream.
    pub fn content(&self, stream: StreamKey) -> &[u8] {
        self.content.iter().find(|(key, _)| *key == stream).map_or(&[], |(_, content)| content)
    }

    /// The streams of the requests that arrived, in order.
    pub fn requests(&self) -> Vec<StreamKey> {
        let requests = self.received.iter().filter_map(|received| match received {
            Received::Request(stream, _) => Some(*stream),
            _ => None,
        });
        requests.collect()
    }

    /// The violation or limit that ended the connection for this end.
    pub fn failure(&self) -> Option<Error> {
        self.received.iter().find_map(|received| match received {
            Received::Failed(error) => Some(*error),
            _ => None,
        })
    }

    /// Handles an expired deadline.
    fn check_time(&mut self) {
        if self.connection.poll_timeout().is_some_and(|deadline| deadline <= self.clock.now())
            && let Err(error) = self.connection.handle_timeout(self.clock.now())
        {
            self.received.push(Received::Failed(error));
        }
        self.take_events();
    }

    fn take_events(&mut self) {
        while let Some(event) = self.connection.poll_event() {
            note(event, &self.connection, &mut self.received, &mut self.content);
        }
    }

    /// Writes a random part of its output, as a socket might accept it, and returns that part.
    fn write(&mut self, split: Split, rng: &mut Rng) -> Vec<u8> {
        let mut slices: [&[u8]; 4] = [&[]; 4];
        let room = rng.usize(1..=4);
        let filled = self.connection.poll_transmit(self.clock.now(), &mut slices[..room]);
        let mut shown = slices[..filled].concat();
        shown.truncate(split.next(rng, shown.len()));
        self.connection.transmitted(self.clock.now(), shown.len());
        self.take_events();
        shown
    }

    /// Reads from the wire and returns the number of consumed bytes. The others stay there.
    fn read(&mut self, split: Split, rng: &mut Rng) -> usize {
        let len = split.next(rng, self.wire.len());
        let chunk: Vec<u8> = self.wire.iter().copied().take(len).collect();
        let mut at = 0;
        loop {
            match self.connection.handle_input(self.clock.now(), &chunk[at..]) {
                Ok((taken, Some(event))) => {
                    at += taken;
                    note(event, &self.connection, &mut self.received, &mut self.content);
                }
                Ok((taken, None)) => {
                    at += taken;
                    break;
                }
                Err(error) => {
                    assert_eq!(self.failure(), None, "{error} is reported after the end");
                    self.received.push(Received::Failed(error));
                    at = chunk.len();
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

fn note(
    event: Event<'_>,
    connection: &Connection,
    received: &mut Vec<Received>,
    content: &mut Vec<(StreamKey, Vec<u8>)>,
) {
    let (event, end) = match event {
        Event::Request { stream, end_stream, .. } => {
            (Received::Request(stream, owned(connection.fields())), end_stream.then_some(stream))
        }
        Event::Response { stream, status, end_stream, .. } => {
            (Received::Response(stream, status), end_stream.then_some(stream))
        }
        Event::Trailers { stream } => (Received::Trailers(stream, owned(connection.fields())), Some(stream)),
        Event::Data { stream, data, end_stream } => {
            match content.iter_mut().find(|(key, _)| *key == stream) {
                Some((_, content)) => content.extend_from_slice(data),
                None => content.push((stream, data.to_vec())),
            }
            received.extend(end_stream.then_some(Received::End(stream)));
            return;
        }
        Event::Informational { stream, status, .. } => (Received::Informational(stream, status), None),
        Event::Promise { promised, .. } => (Received::Promise(promised), None),
        Event::Reset { stream, code, error } => (Received::Reset(stream, code, error), None),
        Event::Refused { stream } => (Received::Refused(stream), None),
        Event::Writable { stream } => (Received::Writable(stream), None),
        Event::GoAway { last_stream_id, code } => {
            (Received::GoAway(last_stream_id.get(), code, connection.debug_data().to_vec()), None)
        }
        other => (Received::Other(format!("{other:?}")), None),
    };
    received.push(event);
    received.extend(end.map(Received::End));
}

/// Both ends and the wire between them.
#[derive(Debug)]
pub struct Pair {
    /// The client's end.
    pub client: End,
    /// The server's end.
    pub server: End,
}

impl Pair {
    /// Two ends with the default configuration.
    pub fn new() -> Self {
        Self::with(Config::new(Role::Client), Config::new(Role::Server))
    }

    /// Two ends with these configurations.
    pub fn with(client: Config, server: Config) -> Self {
        Self { client: End::new(Role::Client, client), server: End::new(Role::Server, server) }
    }

    /// Advances the clocks of both ends, and stops at each deadline. Their output is not written.
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

    /// One step: an end writes part of its output, or reads part of its input. Returns whether an end could do something.
    pub fn step(&mut self, rng: &mut Rng) -> bool {
        let split = Split::random(rng);
        let first = rng.usize(0..4);
        (0..4).any(|turn| match (first + turn) % 4 {
            0 => transmit(&mut self.client, &mut self.server, split, rng),
            1 => transmit(&mut self.server, &mut self.client, split, rng),
            2 => self.client.read(split, rng) > 0,
            _ => self.server.read(split, rng) > 0,
        })
    }

    /// Steps until neither end has anything to do.
    ///
    /// # Panics
    /// After more steps than any test needs.
    pub fn run(&mut self, rng: &mut Rng) {
        for _ in 0..5_000_000 {
            if !self.step(rng) {
                return;
            }
        }
        panic!("does not come to rest: {:?}", self.client.connection);
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
