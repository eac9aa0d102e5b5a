//! The tested end: a connection, driven as a driver would, with a record of its events.

use std::collections::BTreeMap;
use std::time::Duration;

use wireloom_http2::error::{Error, ErrorCode};
use wireloom_http2::field::{Field, Token};
use wireloom_http2::{Config, Connection, Event, Role, StreamKey};
use wireloom_testing::Clock;
use wireloom_testing::http2::{Frame, PREFACE, split};

/// A connection, its output and its events.
pub(crate) struct End {
    pub(crate) connection: Connection,
    clock: Clock,
    role: Role,
    /// All that it has written.
    output: Vec<u8>,
    keys: BTreeMap<u32, StreamKey>,
    requests: Vec<u32>,
    ended: Vec<u32>,
    errors: Vec<Error>,
}

impl End {
    /// An end with the default configuration, except for the number of streams that it allows.
    pub(crate) fn new(role: Role) -> Self {
        let mut config = Config::new(role);
        config.settings.max_concurrent_streams = super::MAX_CONCURRENT_STREAMS;
        Self::with(role, config)
    }

    /// An end with this configuration.
    pub(crate) fn with(role: Role, config: Config) -> Self {
        let connection = Connection::new(role, config).unwrap();
        let mut end = Self {
            connection,
            clock: Clock::new(),
            role,
            output: Vec::new(),
            keys: BTreeMap::new(),
            requests: Vec::new(),
            ended: Vec::new(),
            errors: Vec::new(),
        };
        end.drain();
        end
    }

    /// Receives bytes, and writes the output at once.
    pub(crate) fn receive(&mut self, bytes: &[u8]) {
        let mut at = 0;
        loop {
            match self.connection.handle_input(self.clock.now(), &bytes[at..]) {
                Ok((taken, Some(event))) => {
                    at += taken;
                    match event {
                        Event::Request { stream, end_stream, .. } => {
                            self.keys.insert(stream.id(), stream);
                            self.requests.push(stream.id());
                            self.ended.extend(end_stream.then_some(stream.id()));
                        }
                        Event::Response { stream, end_stream, .. }
                        | Event::Data { stream, end_stream, .. } => {
                            self.ended.extend(end_stream.then_some(stream.id()));
                        }
                        Event::Trailers { stream, .. } => self.ended.push(stream.id()),
                        _ => {}
                    }
                }
                Ok((taken, None)) => {
                    at += taken;
                    let before = self.output.len();
                    self.drain();
                    if at == bytes.len() {
                        break;
                    }
                    assert!(taken > 0 || self.output.len() > before, "input waits for nothing");
                }
                Err(error) => {
                    self.errors.push(error);
                    // RFC 9113 §5.4.1: what follows an error is passed over.
                    at = bytes.len();
                }
            }
        }
        self.drain();
    }

    /// Responds without content.
    pub(crate) fn respond(&mut self, stream: u32) {
        let key = self.keys[&stream];
        self.connection.send_response(key, [Field::known(Token::Status, b"204")], true).unwrap();
        self.drain();
    }

    /// Resets a stream with CANCEL.
    pub(crate) fn reset(&mut self, stream: u32) {
        let key = self.keys[&stream];
        self.connection.reset(key, ErrorCode::CANCEL).unwrap();
        self.drain();
    }

    /// Opens a stream with a GET request, and returns its identifier.
    pub(crate) fn request(&mut self) -> u32 {
        let fields = [
            Field::known(Token::Method, b"GET"),
            Field::known(Token::Scheme, b"https"),
            Field::known(Token::Authority, b"example.org"),
            Field::known(Token::Path, b"/"),
        ];
        let key = self.connection.send_request(fields, true).unwrap();
        self.drain();
        self.keys.insert(key.id(), key);
        key.id()
    }

    /// Advances the clock.
    pub(crate) fn wait(&mut self, time: Duration) {
        self.clock.advance(time);
        self.errors.extend(self.connection.handle_timeout(self.clock.now()).err());
        self.drain();
    }

    /// Whether the transport is read.
    pub(crate) fn set_reading(&mut self, is_reading: bool) {
        self.connection.set_reading(self.clock.now(), is_reading);
    }

    /// Writes the output.
    pub(crate) fn drain(&mut self) {
        loop {
            let mut slices = [&[][..]; 4];
            let filled = self.connection.poll_transmit(self.clock.now(), &mut slices);
            let len = slices[..filled].iter().map(|slice| slice.len()).sum();
            if len == 0 {
                return;
            }
            slices[..filled].iter().for_each(|slice| self.output.extend_from_slice(slice));
            self.connection.transmitted(self.clock.now(), len);
        }
    }

    /// All frames that it has written.
    pub(crate) fn sent(&self) -> Vec<Frame> {
        let preface = if self.role == Role::Client { PREFACE } else { b"" };
        split(self.output.strip_prefix(preface).unwrap())
    }

    /// The key of a stream.
    pub(crate) fn key(&self, stream: u32) -> StreamKey {
        self.keys[&stream]
    }

    /// The streams whose requests were passed to the caller.
    pub(crate) fn requests(&self) -> &[u32] {
        &self.requests
    }

    /// The streams whose messages have ended.
    pub(crate) fn ended(&self) -> &[u32] {
        &self.ended
    }

    /// The error that ended the connection.
    pub(crate) fn error(&self) -> Option<Error> {
        self.errors.first().copied()
    }

    /// Whether the failure of the connection was reported to the caller, once.
    pub(crate) fn has_failed(&self) -> bool {
        assert!(self.errors.len() <= 1, "{:?}", self.errors);
        !self.errors.is_empty()
    }
}
