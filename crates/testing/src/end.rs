//! One end of a WebSocket connection as a test sees it: bytes in, at any cut and by either door; what it heard, owned; and
//! the frames that it says, read by another reader than its own.

use crate::clock::Clock;
use crate::frame::Frame;
use crate::rng::Rng;
use crate::split::Split;
use std::time::Duration;
use wireloom_ws::deflate::{DeflateConfig, DeflateParams};
use wireloom_ws::{Config, Connection, Error, Event, Kind, Role};

/// What an end heard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// A text message, whole or put together from its pieces.
    Text(String),
    /// A binary message, whole or put together from its pieces.
    Binary(Vec<u8>),
    /// A ping.
    Ping(Vec<u8>),
    /// A pong, and the time from the ping that it answers.
    Pong(Vec<u8>, Option<Duration>),
    /// The peer's Close frame: its code and reason.
    Close(Option<u16>, String),
    /// The peer broke a rule or reached a limit; told once.
    Failed(Error),
}

impl Heard {
    /// A text message.
    pub fn text(text: &str) -> Self {
        Self::Text(text.into())
    }

    /// A binary message.
    pub fn binary(data: &[u8]) -> Self {
        Self::Binary(data.into())
    }
}

/// An end and its clock.
#[derive(Debug)]
pub struct End {
    /// The state machine itself, for commands and getters.
    pub connection: Connection,
    /// The time that it is told.
    pub clock: Clock,
    /// The message that is being lent in pieces.
    lent: Option<(Kind, Vec<u8>)>,
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
        Self { connection, clock, lent: None }
    }

    /// Takes `bytes` all at once.
    pub fn hear(&mut self, bytes: impl AsRef<[u8]>) -> Vec<Heard> {
        let mut heard = Vec::new();
        self.take(&mut bytes.as_ref().to_vec(), &mut heard);
        heard
    }

    /// Takes `bytes` cut in this way. Where the connection offers its slot, a piece goes there or not at random.
    pub fn hear_split(&mut self, bytes: impl AsRef<[u8]>, split: Split, rng: &mut Rng) -> Vec<Heard> {
        let mut rest = bytes.as_ref();
        let mut heard = Vec::new();
        while !rest.is_empty() {
            let len = split.next(rng, rest.len());
            if rng.bool()
                && let Some(mut slot) = self.connection.recv_slot()
            {
                let len = len.min(slot.len());
                slot[..len].copy_from_slice(&rest[..len]);
                rest = &rest[len..];
                match slot.filled(self.clock.now(), len) {
                    Ok(Some(event)) => note(event, &mut self.lent, &mut heard),
                    Ok(None) => {}
                    Err(error) => heard.push(Heard::Failed(error)),
                }
            } else {
                let (piece, after) = rest.split_at(len);
                rest = after;
                self.take(&mut piece.to_vec(), &mut heard);
            }
        }
        heard
    }

    /// Drains `handle_input`, as a driver does.
    fn take(&mut self, piece: &mut [u8], heard: &mut Vec<Heard>) {
        let mut used = 0;
        // A call takes a byte or hands out a piece of what it took before; a connection that did neither would hang.
        let mut idle = 0;
        loop {
            match self.connection.handle_input(self.clock.now(), &mut piece[used..]) {
                Ok((taken, Some(event))) => {
                    used += taken;
                    idle = if taken == 0 { idle + 1 } else { 0 };
                    assert!(idle < 1 << 20, "no progress");
                    note(event, &mut self.lent, heard);
                }
                Ok((taken, None)) => {
                    assert_eq!(used + taken, piece.len(), "without an event all input is taken");
                    return;
                }
                Err(error) => {
                    heard.push(Heard::Failed(error));
                    // What is behind the mistake is dropped, and told of no more.
                    let again = self.connection.handle_input(self.clock.now(), &mut piece[used..]);
                    assert!(matches!(again, Ok((_, None))), "{again:?} after {error:?}");
                    return;
                }
            }
        }
    }

    /// The bytes that the end wants to write, in pieces that a socket might take.
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
            assert!(!shown.is_empty(), "slices with nothing in them");
            shown.truncate(split.next(rng, shown.len()));
            self.connection.transmitted(shown.len());
            all.extend(shown);
        }
    }

    /// The frames that the end wants to write.
    pub fn say(&mut self) -> Vec<Frame> {
        Frame::read_all(&self.connection.take_transmit())
    }
}

fn note(event: Event<'_>, lent: &mut Option<(Kind, Vec<u8>)>, heard: &mut Vec<Heard>) {
    heard.push(match event {
        Event::Text(text) => Heard::Text(text.as_str().to_owned()),
        Event::Binary(data) => Heard::Binary(data.to_vec()),
        Event::Ping(payload) => Heard::Ping(payload.to_vec()),
        Event::Pong(pong) => Heard::Pong(pong.payload.to_vec(), pong.round_trip),
        Event::Close(close) => Heard::Close(close.code.map(u16::from), close.reason.to_owned()),
        Event::Chunk(chunk) => {
            assert_eq!(chunk.first, lent.is_none(), "the first piece says so, and no other");
            let (kind, message) = lent.get_or_insert((chunk.kind, Vec::new()));
            assert_eq!(*kind, chunk.kind);
            message.extend(chunk.data);
            if !chunk.fin {
                return;
            }
            match lent.take() {
                Some((Kind::Text, text)) => {
                    Heard::Text(String::from_utf8(text).expect("the pieces of text are UTF-8 together"))
                }
                Some((Kind::Binary, data)) => Heard::Binary(data),
                None => return,
            }
        }
        other => panic!("an event that this reader does not know: {other:?}"),
    });
}
