//! One TCP connection of a capture: its addresses, its two half-streams, and the protocol above them.

use std::net::SocketAddr;
use std::time::Duration;

use crate::entry::{Context, Direction, Entry, Payload, Protocol};
use crate::limits::Budget;
use crate::packet::Segment;
use crate::session::Assume;
use crate::tcp::{HalfStream, Run};
use crate::tls::{KeyLog, Transport};

/// A connection.
#[derive(Debug)]
pub(crate) struct Connection {
    id: u32,
    /// Client and server; `None` where the input has no addresses.
    ends: Option<(SocketAddr, SocketAddr)>,
    halves: [HalfStream; 2],
    transport: Transport,
    /// When the connection was last used, as a count of packets.
    pub(crate) used: u64,
    time: Option<Duration>,
    opened: bool,
    ended: [bool; 2],
    was_reset: bool,
}

impl Connection {
    /// A connection that begins with this segment.
    pub(crate) fn of_segment(id: u32, segment: &Segment<'_>, assume: Assume) -> Self {
        let (source, destination) = (segment.source, segment.destination);
        let from_client = match (segment.syn, segment.acknowledgment) {
            (true, None) => true,
            (true, Some(_)) => false,
            _ => Transport::sent_by_client(segment.payload).unwrap_or(source.port() >= destination.port()),
        };
        let ends = if from_client { (source, destination) } else { (destination, source) };
        Self { ends: Some(ends), ..Self::of_bytes(id, assume) }
    }

    /// A connection without addresses.
    pub(crate) fn of_bytes(id: u32, assume: Assume) -> Self {
        Self {
            id,
            ends: None,
            halves: Default::default(),
            transport: Transport::new(assume),
            used: 0,
            time: None,
            opened: false,
            ended: [false; 2],
            was_reset: false,
        }
    }

    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    fn direction(&self, segment: &Segment<'_>) -> Direction {
        match self.ends {
            Some((client, _)) if client == segment.source => Direction::ToServer,
            _ => Direction::ToClient,
        }
    }

    /// Whether this SYN opens another connection between the same ends.
    pub(crate) fn is_reused_by(&self, segment: &Segment<'_>) -> bool {
        let half = &self.halves[self.direction(segment).index()];
        half.is_reused_by(segment.sequence)
    }

    pub(crate) fn handle_segment(
        &mut self,
        time: Duration,
        segment: &Segment<'_>,
        budget: &Budget,
        keys: &KeyLog,
        out: &mut Vec<Entry>,
    ) {
        self.time = Some(time);
        let direction = self.direction(segment);
        let mut context =
            Context { out, budget, time: Some(time), connection: self.id, direction, stream: None };
        if !std::mem::replace(&mut self.opened, true) {
            self.report_open(&mut context, segment.syn);
        }
        let Self { halves, transport, ended, .. } = self;
        let [to_server, to_client] = halves;
        let (half, other) = match direction {
            Direction::ToServer => (to_server, to_client),
            Direction::ToClient => (to_client, to_server),
        };
        if segment.syn {
            half.handle_syn(segment.sequence);
        }
        if let Some(acknowledgment) = segment.acknowledgment {
            let mut context = context.reverse();
            other.handle_acknowledgment(acknowledgment, &mut |run| {
                deliver(transport, ended, &mut context, keys, run);
            });
        }
        let sequence = if segment.syn { segment.sequence.wrapping_add(1) } else { segment.sequence };
        if !segment.rst && (!segment.payload.is_empty() || segment.fin) {
            half.handle_segment(sequence, segment.payload, segment.fin, budget, &mut |run| {
                deliver(transport, ended, &mut context, keys, run);
            });
        }
        if segment.rst && !std::mem::replace(&mut self.was_reset, true) {
            if self.ended != [true; 2] {
                let mut entry = context.entry(Protocol::Tcp, "reset");
                entry.detail("RST", "1: the connection is reset", "RFC 9293 §3.5.2");
                context.report(entry);
            }
            self.finish(budget, keys, context.out);
        }
    }

    /// Handles the next bytes of a direction, a gap, or the end.
    pub(crate) fn handle_run(
        &mut self,
        time: Option<Duration>,
        direction: Direction,
        run: Run<'_>,
        budget: &Budget,
        keys: &KeyLog,
        out: &mut Vec<Entry>,
    ) {
        if !matches!(run, Run::End) {
            self.time = time;
        }
        let mut context = Context { out, budget, time, connection: self.id, direction, stream: None };
        deliver(&mut self.transport, &mut self.ended, &mut context, keys, run);
    }

    /// Handles the end of the connection or of the capture.
    pub(crate) fn finish(&mut self, budget: &Budget, keys: &KeyLog, out: &mut Vec<Entry>) {
        let Self { halves, transport, ended, .. } = self;
        for direction in [Direction::ToServer, Direction::ToClient] {
            let mut context =
                Context { out, budget, time: self.time, connection: self.id, direction, stream: None };
            halves[direction.index()].finish(&mut |run| {
                deliver(transport, ended, &mut context, keys, run);
            });
            if !std::mem::replace(&mut ended[direction.index()], true) {
                transport.finish(&mut context);
            }
        }
    }

    fn report_open(&self, context: &mut Context<'_>, from_start: bool) {
        let mut entry = context.entry(Protocol::Tcp, "open");
        if let Some((client, server)) = self.ends {
            entry.direction = Direction::ToServer;
            entry.payload = Payload::Text(format!("{client} to {server}"));
            entry.detail("client", client.to_string(), "");
            entry.detail("server", server.to_string(), "");
        }
        if !from_start {
            entry.missing("the beginning of the connection was not captured");
        }
        context.report(entry);
    }
}

fn deliver(
    transport: &mut Transport,
    ended: &mut [bool; 2],
    context: &mut Context<'_>,
    keys: &KeyLog,
    run: Run<'_>,
) {
    if ended[context.direction.index()] {
        return;
    }
    match run {
        Run::Bytes(bytes) => transport.handle(context, keys, bytes),
        Run::Gap(len) => {
            let mut entry = context.entry(Protocol::Tcp, "gap");
            entry.len = len;
            entry.missing(format!("{len} bytes were not captured"));
            context.report(entry);
            transport.gap(context, len);
        }
        Run::End => {
            ended[context.direction.index()] = true;
            transport.finish(context);
            let mut entry = context.entry(Protocol::Tcp, "close");
            entry.detail(
                "FIN",
                format!("1: the {} sends no more", context.direction.sender()),
                "RFC 9293 §3.6",
            );
            context.report(entry);
        }
    }
}
