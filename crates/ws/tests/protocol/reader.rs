//! A [`Reader`] under random operations: it returns each message and control frame once, in order and unchanged, whatever the driver
//! calls between reads.

use std::time::Duration;
use wireloom_testing::{Received, Rng, rounds};
use wireloom_ws::deflate::{DeflateConfig, DeflateParams, DeflatePool};
use wireloom_ws::{Config, Connection, Delivery, Event, Kind, Reader, Role, Step};

const NOW: Duration = Duration::ZERO;

/// A reader, the bytes that it has not read yet, and what it has returned.
struct Driver {
    reader: Reader,
    wire: Vec<u8>,
    pool: DeflatePool,
    /// Memory that was taken out of the reader.
    memory: Option<Vec<u8>>,
    received: Vec<Received>,
    /// The message that arrives in chunks.
    partial: Option<(Kind, Vec<u8>)>,
}

impl Driver {
    /// Calls one method of the reader, chosen at random.
    fn call(&mut self, rng: &mut Rng) {
        match rng.u8(0..16) {
            0..=4 => self.read(rng),
            5 => {
                if self.reader.next_message() {
                    self.receive(rng);
                }
            }
            6 | 7 => {
                if let Some(message) = self.reader.next_owned() {
                    assert_eq!(self.reader.message().payload(), b"", "no longer borrowed");
                    assert!(self.partial.is_none());
                    let data = message.as_bytes().to_vec();
                    self.received.push(message.as_text().map_or(Received::Binary(data), Received::text));
                }
            }
            8 => {
                let step = self.reader.decode();
                let is_message = control(step, &mut self.received);
                self.receive_if(is_message, rng);
            }
            9 => {
                let step = self.reader.decode_as(Delivery::Messages);
                let is_message = control(step, &mut self.received);
                self.receive_if(is_message, rng);
            }
            10 => {
                // It has not been decoded, so it must not have been unmasked either.
                let input = self.reader.take_input();
                self.wire.splice(..0, input);
                assert!(!self.reader.has_input());
            }
            11 => {
                let has_input = self.reader.has_input();
                assert!(self.reader.take_buffer().is_none() || !has_input);
            }
            12 => {
                let len = 1 + rng.len(100_000);
                self.reader.set_buffer(vec![rng.u8(..); len].into());
            }
            13 => match self.memory.take() {
                Some(memory) => self.reader.set_memory(memory),
                None => self.memory = self.reader.take_memory(),
            },
            14 => {
                if rng.bool() {
                    self.reader.take_codec(&mut self.pool);
                } else {
                    self.reader.return_codec(&mut self.pool);
                }
            }
            _ => self.reader.release_buffers(),
        }
    }

    /// Reads into the space that the reader offers.
    fn read(&mut self, rng: &mut Rng) {
        let mut space = if rng.bool() { self.reader.space() } else { self.reader.buffer_space() };
        let bytes = match rng.bool() {
            true => space.bytes(),
            false => space.bytes_for(rng.len(100_000), rng.len(100_000)),
        };
        let len = (1 + rng.len(100_000)).min(bytes.len()).min(self.wire.len());
        bytes[..len].copy_from_slice(&self.wire[..len]);
        self.wire.drain(..len);
        let is_complete = space.filled(len).unwrap();
        self.receive_if(is_complete, rng);
    }

    fn receive_if(&mut self, is_message: bool, rng: &mut Rng) {
        if is_message {
            self.receive(rng);
        }
    }

    /// The reader has found a message or a chunk.
    fn receive(&mut self, rng: &mut Rng) {
        let message = self.reader.message();
        let (kind, payload) = (message.kind(), message.payload().to_vec());
        let (is_whole, is_last) = (message.is_whole(), message.is_last());
        assert_eq!(is_whole, is_last && self.partial.is_none());
        assert!(!is_whole || message.text().is_some() == (kind == Kind::Text));
        // It can be borrowed again until a call finds or reads something else.
        assert_eq!(self.reader.message().payload(), payload);
        if rng.bool() {
            assert_eq!(self.reader.take_message().as_bytes(), payload);
        }
        let (begun, data) = self.partial.get_or_insert((kind, Vec::new()));
        assert_eq!(*begun, kind);
        data.extend_from_slice(&payload);
        if is_last && let Some((kind, data)) = self.partial.take() {
            self.received.push(match kind {
                Kind::Text => Received::Text(String::from_utf8(data).unwrap()),
                Kind::Binary => Received::Binary(data),
            });
        }
    }
}

/// Whether the step is a message; a control frame is received at once.
fn control(step: Result<Step<'_>, wireloom_ws::Error>, received: &mut Vec<Received>) -> bool {
    match step.unwrap() {
        Step::Message => return true,
        Step::NeedsInput | Step::Inflating => {}
        Step::Control(Event::Ping(payload)) => received.push(Received::Ping(payload.to_vec())),
        Step::Control(Event::Close(close)) => {
            received.push(Received::Close(close.code.map(u16::from), close.reason.into()));
        }
        Step::Control(event) => panic!("{event:?}"),
    }
    false
}

/// Sends messages of all lengths, in one frame or in fragments with pings between them, and a Close frame.
fn send(rng: &mut Rng, sender: &mut Connection) -> Vec<Received> {
    let mut sent = Vec::new();
    let ping = |rng: &mut Rng, sender: &mut Connection, sent: &mut Vec<Received>| {
        if rng.u8(0..4) == 0 {
            let payload = rng.bytes(7);
            sender.send_ping(NOW, &payload).unwrap();
            sent.push(Received::Ping(payload));
        }
    };
    for _ in 0..1 + rng.len(20) {
        ping(rng, sender, &mut sent);
        // Also longer than two chunks of a compressed message.
        let chars = if rng.u8(0..4) == 0 { rng.usize(..80_000) } else { rng.len(3_000) };
        let text = if rng.bool() { rng.text(chars / 2) } else { "ascii ".repeat(chars / 6) };
        match rng.u8(0..5) {
            0 => sender.send_text(&text).unwrap(),
            1 => sender.send_text_uncompressed(&text).unwrap(),
            2 => {
                let mut rest = &*text;
                while !rest.is_empty() {
                    let mut cut = 1 + rng.len(rest.len());
                    while !rest.is_char_boundary(cut) {
                        cut += 1;
                    }
                    sender.send_text_chunk(&rest[..cut], false).unwrap();
                    rest = &rest[cut..];
                    ping(rng, sender, &mut sent);
                }
                sender.send_text_chunk("", true).unwrap();
            }
            binary => {
                let data = text.into_bytes();
                if binary == 3 {
                    sender.send_binary(&data).unwrap();
                } else {
                    sender.send_binary_uncompressed(&data).unwrap();
                }
                sent.push(Received::Binary(data));
                continue;
            }
        }
        sent.push(Received::Text(text));
    }
    sender.close(NOW, None, "").unwrap();
    sent.push(Received::Close(None, String::new()));
    sent
}

#[test]
fn returns_everything_once_and_in_order_under_any_calls() {
    rounds(300, |rng| {
        let deflate = DeflateConfig { min_len: 0, ..DeflateConfig::default() };
        let params = DeflateParams {
            client_no_context_takeover: rng.bool(),
            server_no_context_takeover: rng.bool(),
            ..DeflateParams::default()
        };
        let deflate = rng.bool().then_some((params, &deflate));
        let mut config = Config::default();
        config.delivery = if rng.bool() { Delivery::Messages } else { Delivery::Chunks };
        let mut client = Connection::client(config.clone(), deflate, [7; 32], NOW);
        let mut server = Connection::server(config, deflate, NOW);
        let role = *rng.pick(&[Role::Client, Role::Server]);
        let sent = send(rng, if role == Role::Client { &mut server } else { &mut client });
        let (wire, receiver) = match role {
            Role::Client => (server.take_transmit(), client),
            Role::Server => (client.take_transmit(), server),
        };
        let mut driver = Driver {
            reader: Reader::new(receiver.split().0),
            wire,
            pool: DeflatePool::new(1, 1),
            memory: None,
            received: Vec::new(),
            partial: None,
        };
        let mut calls = 0;
        while driver.received.len() < sent.len() {
            driver.call(rng);
            calls += 1;
            assert!(calls < 1_000_000, "no progress after {} of {}", driver.received.len(), sent.len());
        }
        assert!(driver.received == sent, "{deflate:?}");
    });
}
