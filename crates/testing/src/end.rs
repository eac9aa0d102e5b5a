//! One end of a WebSocket connection in tests. Its input may be split anywhere and arrives through `handle_input` or a receive slot.
//! It returns received messages as owned values, and the frames that it sends as [`Frame`] decodes them.

use crate::clock::Clock;
use crate::frame::Frame;
use crate::rng::Rng;
use crate::split::Split;
use std::time::Duration;
use wireloom_ws::deflate::{DeflateConfig, DeflateParams};
use wireloom_ws::{Config, Connection, Error, Event, Kind, Role};

/// A message, control frame or error that an end received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// A text message, whole or joined from its chunks.
    Text(String),
    /// A binary message, whole or joined from its chunks.
    Binary(Vec<u8>),
    /// A ping.
    Ping(Vec<u8>),
    /// A pong, and the time from the ping that it answers.
    Pong(Vec<u8>, Option<Duration>),
    /// The peer's Close frame: its code and reason.
    Close(Option<u16>, String),
    /// The peer broke a rule or reached a limit; reported once.
    Failed(Error),
}

impl Received {
    /// A text message.
    pub fn text(text: &str) -> Self {
        Self::Text(text.into())
    }

    /// A binary message.
    pub fn binary(data: &[u8]) -> Self {
        Self::Binary(data.into())
    }
}

/// An end of a connection and its clock.
#[derive(Debug)]
pub struct End {
    /// The state machine, for commands and getters.
    pub connection: Connection,
    /// The time that is passed to it.
    pub clock: Clock,
    /// The message that is being delivered in chunks.
    partial: Option<(Kind, Vec<u8>)>,
}

impl End {
    /// An end with default settings and no extension.
    pub fn new(role: Role) -> Self {
        Self::with(role, Config::default(), None)
    }

    /// A server's end with default settings.
    pub fn server() -> Self {
        Self::new(Role::Server)
    }

    /// A client's end with default settings.
    pub fn client() -> Self {
        Self::new(Role::Client)
    }

    /// An end that has negotiated permessage-deflate without parameters.
    pub fn deflated(role: Role, config: Config) -> Self {
        let deflate = DeflateConfig::default();
        Self::with(role, config, Some((DeflateParams::default(), &deflate)))
    }

    /// An end with these settings.
    pub fn with(role: Role, config: Config, deflate: Option<(DeflateParams, &DeflateConfig)>) -> Self {
        let clock = Clock::new();
        let connection = match role {
            Role::Server => Connection::server(config, deflate, clock.now()),
            Role::Client => Connection::client(config, deflate, [0x5E; 32], clock.now()),
        };
        Self { connection, clock, partial: None }
    }

    /// Receives `bytes` in one call.
    pub fn receive(&mut self, bytes: impl AsRef<[u8]>) -> Vec<Received> {
        let mut received = Vec::new();
        self.receive_part(&mut bytes.as_ref().to_vec(), &mut received);
        received
    }

    /// Receives `bytes` split in this way. Where the connection offers a receive slot, a part goes there at random.
    pub fn receive_split(&mut self, bytes: impl AsRef<[u8]>, split: Split, rng: &mut Rng) -> Vec<Received> {
        let mut rest = bytes.as_ref();
        let mut received = Vec::new();
        while !rest.is_empty() {
            let len = split.next(rng, rest.len());
            if rng.bool()
                && let Some(mut slot) = self.connection.recv_slot()
            {
                let len = len.min(slot.len());
                slot[..len].copy_from_slice(&rest[..len]);
                rest = &rest[len..];
                match slot.filled(self.clock.now(), len) {
                    Ok(Some(event)) => note(event, &mut self.partial, &mut received),
                    Ok(None) => {}
                    Err(error) => received.push(Received::Failed(error)),
                }
            } else {
                let (piece, after) = rest.split_at(len);
                rest = after;
                self.receive_part(&mut piece.to_vec(), &mut received);
            }
        }
        received
    }

    /// Calls `handle_input` until all of `piece` is consumed, as a driver does.
    fn receive_part(&mut self, piece: &mut [u8], received: &mut Vec<Received>) {
        let mut used = 0;
        // Each call consumes a byte or returns a chunk of an earlier one; otherwise a driver would hang.
        let mut idle = 0;
        loop {
            match self.connection.handle_input(self.clock.now(), &mut piece[used..]) {
                Ok((taken, Some(event))) => {
                    used += taken;
                    idle = if taken == 0 { idle + 1 } else { 0 };
                    assert!(idle < 1 << 20, "no progress");
                    note(event, &mut self.partial, received);
                }
                Ok((taken, None)) => {
                    assert_eq!(used + taken, piece.len(), "without an event all input is consumed");
                    return;
                }
                Err(error) => {
                    received.push(Received::Failed(error));
                    // Input after the error is dropped, and the error is not reported again.
                    let again = self.connection.handle_input(self.clock.now(), &mut piece[used..]);
                    assert!(matches!(again, Ok((_, None))), "{again:?} after {error:?}");
                    return;
                }
            }
        }
    }

    /// All bytes that the end wants to write, in writes of random lengths.
    pub fn drain(&mut self, split: Split, rng: &mut Rng) -> Vec<u8> {
        let mut all = Vec::new();
        loop {
            let mut slices: [&[u8]; 4] = [&[]; 4];
            let room = rng.usize(1..=4);
            let count = self.connection.poll_transmit(&mut slices[..room]);
            if count == 0 {
                return all;
            }
            let mut shown = slices[..count].concat();
            assert!(!shown.is_empty(), "empty slices");
            shown.truncate(split.next(rng, shown.len()));
            self.connection.transmitted(shown.len());
            all.extend(shown);
        }
    }

    /// The frames that the end wants to write.
    pub fn sent_frames(&mut self) -> Vec<Frame> {
        Frame::read_all(&self.connection.take_transmit())
    }
}

fn note(event: Event<'_>, partial: &mut Option<(Kind, Vec<u8>)>, received: &mut Vec<Received>) {
    received.push(match event {
        Event::Text(text) => Received::Text(text.as_str().to_owned()),
        Event::Binary(data) => Received::Binary(data.to_vec()),
        Event::Ping(payload) => Received::Ping(payload.to_vec()),
        Event::Pong(pong) => Received::Pong(pong.payload.to_vec(), pong.round_trip),
        Event::Close(close) => Received::Close(close.code.map(u16::from), close.reason.to_owned()),
        Event::Chunk(chunk) => {
            assert_eq!(chunk.first, partial.is_none(), "the first chunk alone is marked as the first");
            let (kind, message) = partial.get_or_insert((chunk.kind, Vec::new()));
            assert_eq!(*kind, chunk.kind);
            message.extend(chunk.data);
            if !chunk.fin {
                return;
            }
            match partial.take() {
                Some((Kind::Text, text)) => {
                    Received::Text(String::from_utf8(text).expect("the chunks of text are UTF-8 together"))
                }
                Some((Kind::Binary, data)) => Received::Binary(data),
                None => return,
            }
        }
        other => panic!("unknown event: {other:?}"),
    });
}
