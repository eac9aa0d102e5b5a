//! Connections with different parameters share pools of codecs: each message inflates to what was sent, whichever codecs and windows are
//! taken, returned and freed between messages, and whether frames of another compressor are sent too.

use std::time::Duration;
use wireloom_testing::{Rng, rounds};
use wireloom_ws::deflate::{DeflateConfig, DeflatePool};
use wireloom_ws::{Config, Connection, Event, FrameCompressor, Inbound, Outbound, PreparedFrame};

const NOW: Duration = Duration::ZERO;

/// One direction of a connection.
struct Direction {
    sender: Outbound,
    receiver: Inbound,
    /// Messages that were sent and not received.
    sent: Vec<Vec<u8>>,
    /// The message that is being sent in chunks.
    begun: Option<Vec<u8>>,
}

impl Direction {
    /// Both directions of a connection with random parameters.
    fn pair(rng: &mut Rng) -> [Self; 2] {
        let (params, config) = (super::params(rng), super::config(rng));
        let config = DeflateConfig { min_len: rng.len(100), ..config };
        let deflate = Some((params, &config));
        let (client_in, client_out) = Connection::client(Config::default(), deflate, [1; 32], NOW).split();
        let (server_in, server_out) = Connection::server(Config::default(), deflate, NOW).split();
        [(client_out, server_in), (server_out, client_in)].map(|(sender, receiver)| Self {
            sender,
            receiver,
            sent: Vec::new(),
            begun: None,
        })
    }

    /// Sends, receives, or moves a codec, chosen at random.
    fn step(&mut self, rng: &mut Rng, pool: &mut DeflatePool, data: Vec<u8>) {
        match rng.u8(0..12) {
            0 => self.sender.take_codec(pool),
            1 => self.sender.return_codec(pool),
            2 => self.sender.release_buffers(),
            3 => self.receiver.take_codec(pool),
            4 => self.receiver.return_codec(pool),
            5 => self.receiver.release_buffers(),
            6 | 7 => {
                let fin = rng.u8(0..3) == 0;
                self.sender.send_binary_chunk(&data, fin).unwrap();
                self.begun.get_or_insert_default().extend_from_slice(&data);
                if fin {
                    self.sent.extend(self.begun.take());
                }
            }
            8 | 9 => self.receive(),
            _ if self.begun.is_some() => {}
            10 => match self.sender.prepared_window_bits(data.len()) {
                Some(bits) => {
                    let mut compressor = FrameCompressor::new(bits, &self.sender.prepared_config());
                    let frame = PreparedFrame::binary(&data).compressed(&mut compressor);
                    self.sender.send_prepared(&frame).unwrap();
                    self.sent.push(data);
                }
                None => {
                    self.sender.send_binary_uncompressed(&data).unwrap();
                    self.sent.push(data);
                }
            },
            _ => {
                self.sender.send_binary(&data).unwrap();
                self.sent.push(data);
            }
        }
    }

    fn receive(&mut self) {
        let mut wire = self.sender.take_transmit();
        let mut at = 0;
        let mut sent = self.sent.drain(..);
        while let (used, Some(event)) = self.receiver.handle_input(&mut wire[at..]).unwrap() {
            at += used;
            let Event::Binary(message) = event else { panic!("{event:?}") };
            assert!(sent.next().is_some_and(|sent| *sent == *message));
        }
        assert!(sent.next().is_none());
    }
}

#[test]
fn connections_that_share_pools_receive_what_was_sent() {
    rounds(100, |rng| {
        let mut pools = [DeflatePool::new(2, 2), DeflatePool::new(1, 1)];
        let mut directions: Vec<_> = (0..4).flat_map(|_| Direction::pair(rng)).collect();
        // Parts that messages of all connections have in common: a reference into another window would find them.
        let parts: Vec<Vec<u8>> = (0..6)
            .map(|_| {
                let len = rng.len(3_000);
                rng.bytes(len)
            })
            .collect();
        for _ in 0..rng.usize(1..400) {
            let count = rng.usize(1..5);
            let data = (0..count).flat_map(|_| rng.pick(&parts).clone()).collect();
            let (direction, pool) = (rng.usize(..directions.len()), rng.usize(..pools.len()));
            directions[direction].step(rng, &mut pools[pool], data);
        }
    });
}
