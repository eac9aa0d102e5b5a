//! A WebSocket client and server joined in memory: two state machines, one clock, and a wire in each direction that delivers bytes
//! in order, in parts of any size.

use crate::end::{End, Received};
use crate::rng::Rng;
use crate::split::Split;
use std::collections::VecDeque;
use std::time::Duration;
use wireloom_ws::deflate::{DeflateConfig, DeflateParams};
use wireloom_ws::{Config, Role, Transport};

/// Both ends, the wire between them, and everything that each received.
#[derive(Debug)]
pub struct Pair {
    /// The client's end.
    pub client: End,
    /// The server's end.
    pub server: End,
    /// Events and data received by the client.
    pub client_received: Vec<Received>,
    /// Events and data received by the server.
    pub server_received: Vec<Received>,
    to_server: VecDeque<u8>,
    to_client: VecDeque<u8>,
}

impl Pair {
    /// Two ends with default settings.
    pub fn new() -> Self {
        Self::with(Config::default(), None)
    }

    /// Two ends with the same settings, with permessage-deflate if it is given.
    pub fn with(config: Config, deflate: Option<(DeflateParams, &DeflateConfig)>) -> Self {
        Self {
            client: End::with(Role::Client, config.clone(), deflate),
            server: End::with(Role::Server, config, deflate),
            client_received: Vec::new(),
            server_received: Vec::new(),
            to_server: VecDeque::new(),
            to_client: VecDeque::new(),
        }
    }

    /// The end with this role.
    pub fn end(&mut self, role: Role) -> &mut End {
        match role {
            Role::Client => &mut self.client,
            Role::Server => &mut self.server,
        }
    }

    /// Advances the clocks of both ends and handles their deadlines. Their output is not transferred yet.
    pub fn advance(&mut self, by: Duration) {
        for end in [&mut self.client, &mut self.server] {
            end.clock.advance(by);
            end.connection.handle_timeout(end.clock.now());
        }
    }

    /// One step: an end writes part of its output, or reads part of the wire. Returns whether an end could do something.
    pub fn step(&mut self, rng: &mut Rng) -> bool {
        let split = Split::random(rng);
        let moves = [
            self.client.connection.wants_write(),
            self.server.connection.wants_write(),
            !self.to_server.is_empty(),
            !self.to_client.is_empty(),
        ];
        let possible: Vec<usize> = (0..4).filter(|&i| moves[i]).collect();
        if possible.is_empty() {
            return false;
        }
        match rng.pick(&possible) {
            0 => self.to_server.extend(self.client.drain(split, rng)),
            1 => self.to_client.extend(self.server.drain(split, rng)),
            2 => deliver(&mut self.to_server, &mut self.server, &mut self.server_received, split, rng),
            _ => deliver(&mut self.to_client, &mut self.client, &mut self.client_received, split, rng),
        }
        true
    }

    /// Steps until neither end can do anything.
    pub fn run(&mut self, rng: &mut Rng) {
        while self.step(rng) {}
    }

    /// Closes the transport for each end that wants it closed, once both are idle; the other end then reads the end of the stream.
    /// Returns whether both have closed it.
    pub fn close_transport(&mut self) -> bool {
        for _ in 0..2 {
            let (client, server) = (self.client.connection.transport(), self.server.connection.transport());
            if server != Transport::Open {
                self.client.connection.handle_eof();
            }
            if client != Transport::Open {
                self.server.connection.handle_eof();
            }
        }
        self.client.connection.transport() == Transport::Close
            && self.server.connection.transport() == Transport::Close
    }
}

impl Default for Pair {
    fn default() -> Self {
        Self::new()
    }
}

fn deliver(wire: &mut VecDeque<u8>, to: &mut End, received: &mut Vec<Received>, split: Split, rng: &mut Rng) {
    let len = 1 + rng.len(wire.len());
    let bytes: Vec<u8> = wire.drain(..len.min(wire.len())).collect();
    received.extend(to.receive_split(bytes, split, rng));
}
