//! The connections of a capture: takes packets or bytes, and returns entries.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use crate::connection::Connection;
use crate::entry::{Direction, Entry};
use crate::limits::{Budget, CONNECTIONS_MAX};
use crate::packet::{self, LinkType, NotTcp};
use crate::session::Assume;
use crate::tcp::Run;
use crate::tls::KeyLog;

/// Options for decoding.
#[derive(Clone, Debug)]
pub struct Config {
    /// The protocol of the first bytes.
    pub assume: Assume,
    /// The direction of bytes for which the input names none.
    pub sender: Direction,
}

impl Default for Config {
    fn default() -> Self {
        Self { assume: Assume::Detect, sender: Direction::ToServer }
    }
}

/// Packets that hold no TCP segment, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Skipped {
    /// Other protocols than TCP.
    pub other: u64,
    /// Fragments of IP packets, which are not reassembled.
    pub fragments: u64,
    /// Packets that are malformed, or cut off within their headers.
    pub malformed: u64,
    /// Packets of an unknown link layer.
    pub link: u64,
}

/// Decodes the connections of a capture.
#[derive(Debug, Default)]
pub struct Inspector {
    config: Config,
    budget: Budget,
    keys: KeyLog,
    /// Connections by their two ends, the smaller address first.
    by_address: HashMap<(SocketAddr, SocketAddr), Connection>,
    /// Connections of recordings, by their number in the file.
    by_number: HashMap<u64, Connection>,
    connections: u32,
    uses: u64,
    skipped: Skipped,
}

impl Inspector {
    /// Makes an inspector without connections.
    pub fn new(config: Config) -> Self {
        Self { config, ..Self::default() }
    }

    /// Adds secrets in the format of SSLKEYLOGFILE. Other lines are ignored.
    pub fn add_secrets(&mut self, text: &[u8]) {
        self.keys.add(text);
    }

    /// The packets that were skipped, by reason.
    pub fn skipped(&self) -> Skipped {
        self.skipped
    }

    /// Handles a captured packet, with its time since the Unix epoch, and appends its entries to `out`.
    pub fn handle_packet(&mut self, time: Duration, link: LinkType, data: &[u8], out: &mut Vec<Entry>) {
        let segment = match packet::segment(link, data) {
            Ok(segment) => segment,
            Err(reason) => {
                let skipped = &mut self.skipped;
                match reason {
                    NotTcp::Other => skipped.other += 1,
                    NotTcp::Fragment => skipped.fragments += 1,
                    NotTcp::Malformed => skipped.malformed += 1,
                    NotTcp::Link => skipped.link += 1,
                }
                return;
            }
        };
        let (source, destination) = (segment.source, segment.destination);
        let key = (source.min(destination), source.max(destination));
        if segment.syn
            && let Some(connection) = self.by_address.get_mut(&key)
            && connection.is_reused_by(&segment)
        {
            connection.finish(&self.budget, &self.keys, out);
            self.by_address.remove(&key);
        }
        if !self.by_address.contains_key(&key) {
            if !segment.syn && segment.payload.is_empty() {
                // An acknowledgement of a connection whose data was not captured.
                return;
            }
            self.make_room(out);
            self.connections += 1;
            let connection = Connection::of_segment(self.connections, &segment, self.config.assume);
            self.by_address.insert(key, connection);
        }
        self.uses += 1;
        if let Some(connection) = self.by_address.get_mut(&key) {
            connection.used = self.uses;
            connection.handle_segment(time, &segment, &self.budget, &self.keys, out);
        }
    }

    /// Handles bytes of a connection that are already in order: from a recording, a hexdump or a file of raw bytes.
    pub fn handle_bytes(
        &mut self,
        number: u64,
        time: Option<Duration>,
        direction: Direction,
        bytes: &[u8],
        out: &mut Vec<Entry>,
    ) {
        self.handle_run(number, time, direction, Run::Bytes(bytes), out);
    }

    /// Handles bytes that are missing in what [`Inspector::handle_bytes`] gets.
    pub fn handle_gap(
        &mut self,
        number: u64,
        time: Option<Duration>,
        direction: Direction,
        len: u64,
        out: &mut Vec<Entry>,
    ) {
        self.handle_run(number, time, direction, Run::Gap(len), out);
    }

    fn handle_run(
        &mut self,
        number: u64,
        time: Option<Duration>,
        direction: Direction,
        run: Run<'_>,
        out: &mut Vec<Entry>,
    ) {
        if !self.by_number.contains_key(&number) {
            self.make_room(out);
            self.connections += 1;
            self.by_number.insert(number, Connection::of_bytes(self.connections, self.config.assume));
        }
        self.uses += 1;
        if let Some(connection) = self.by_number.get_mut(&number) {
            connection.used = self.uses;
            connection.handle_run(time, direction, run, &self.budget, &self.keys, out);
        }
    }

    /// Handles the end of one direction of a connection of [`Inspector::handle_bytes`].
    pub fn handle_end(
        &mut self,
        number: u64,
        time: Option<Duration>,
        direction: Direction,
        out: &mut Vec<Entry>,
    ) {
        if let Some(connection) = self.by_number.get_mut(&number) {
            connection.handle_run(time, direction, Run::End, &self.budget, &self.keys, out);
        }
    }

    /// Takes the number of the next connection, for entries that are made elsewhere.
    pub(crate) fn next_connection(&mut self) -> u32 {
        self.connections += 1;
        self.connections
    }

    pub(crate) fn sender(&self) -> Direction {
        self.config.sender
    }

    pub(crate) fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Handles the end of the capture: reports everything that is incomplete.
    pub fn finish(&mut self, out: &mut Vec<Entry>) {
        let by_address = std::mem::take(&mut self.by_address).into_values();
        let mut open: Vec<Connection> =
            by_address.chain(std::mem::take(&mut self.by_number).into_values()).collect();
        open.sort_by_key(Connection::id);
        for mut connection in open {
            connection.finish(&self.budget, &self.keys, out);
        }
    }

    /// Closes the least recently used quarter of the connections when there are too many.
    fn make_room(&mut self, out: &mut Vec<Entry>) {
        if self.by_address.len() + self.by_number.len() < CONNECTIONS_MAX {
            return;
        }
        let connections = self.by_address.values().chain(self.by_number.values());
        let mut uses: Vec<u64> = connections.map(|connection| connection.used).collect();
        let (_, &mut oldest, _) = uses.select_nth_unstable(CONNECTIONS_MAX / 4);
        let (budget, keys) = (&self.budget, &self.keys);
        let mut keep = |connection: &mut Connection| {
            let keeps = connection.used > oldest;
            if !keeps {
                connection.finish(budget, keys, out);
            }
            keeps
        };
        self.by_address.retain(|_, connection| keep(connection));
        self.by_number.retain(|_, connection| keep(connection));
    }
}
