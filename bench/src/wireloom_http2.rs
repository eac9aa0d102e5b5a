//! Wireloom's HTTP/2 core, driven as the tokio crate drives it: the output of one end is the input of the other, with
//! all validation and limits. Only the limit of concurrent streams is raised.

use crate::exchange::{Exchange, Fields, Pair, Totals, WINDOW};
use std::sync::Arc;
use std::time::Duration;
use wireloom_http2::field::{Field, FieldList};
use wireloom_http2::{Config, Connection, Event, Role, StreamKey};

/// Time is an argument of the core: it advances as on a link of 8 Gbit/s.
const BYTE_TIME: Duration = Duration::from_nanos(1);

/// The messages that one end has received.
#[derive(Default)]
struct Received {
    totals: Totals,
    /// The server's requests without a response.
    waiting: Vec<StreamKey>,
    /// The number of complete responses of the client.
    complete: usize,
}

impl Received {
    fn handle(&mut self, event: &Event<'_>, fields: &FieldList) {
        match event {
            Event::Request { stream, .. } => {
                self.fields(fields);
                self.waiting.push(*stream);
            }
            Event::Response { end_stream, .. } => {
                self.fields(fields);
                self.complete += usize::from(*end_stream);
            }
            Event::Data { data, end_stream, .. } => {
                self.totals.data(data);
                self.complete += usize::from(*end_stream);
            }
            Event::Reset { .. } | Event::Refused { .. } | Event::GoAway { .. } => panic!("{event:?}"),
            _ => {}
        }
    }

    fn fields(&mut self, fields: &FieldList) {
        self.totals.messages += 1;
        fields.iter().for_each(|field| self.totals.field(field.name(), field.value()));
    }
}

struct End {
    connection: Connection,
    now: Duration,
    received: Received,
}

impl End {
    fn new(role: Role) -> Self {
        let mut config = Config::new(role);
        config.settings.max_concurrent_streams = 2_000_000;
        // The fields of the rivals are checked when they are made, before the run.
        config.check_outgoing = false;
        config.settings.initial_window_size = WINDOW;
        config.stream_window_max = WINDOW;
        config.connection_window = WINDOW;
        let connection = Connection::new(role, config).expect("settings in range");
        Self { connection, now: Duration::ZERO, received: Received::default() }
    }

    /// Handles input; returns the number of consumed bytes, which is less than all only while output is pending.
    fn handle_input(&mut self, input: &[u8]) -> usize {
        let mut at = 0;
        loop {
            let (taken, event) =
                self.connection.handle_input(self.now, &input[at..]).expect("an honest peer");
            at += taken;
            match event {
                Some(event) => self.received.handle(&event, self.connection.fields()),
                None => return at,
            }
        }
    }

    /// Advances the time, once for each read, as a driver reads the clock.
    fn pass_time(&mut self, len: usize) {
        self.now += BYTE_TIME * len as u32;
    }

    /// Passes this end's output to the other; returns `false` if none was handled.
    fn pump(&mut self, to: &mut Self) -> bool {
        let mut any = false;
        loop {
            let mut slices = [&[][..]; 16];
            let filled = self.connection.poll_transmit(self.now, &mut slices);
            let mut written = 0;
            for slice in &slices[..filled] {
                let handled = to.handle_input(slice);
                written += handled;
                if handled < slice.len() {
                    break;
                }
            }
            if written == 0 {
                return any;
            }
            self.connection.transmitted(self.now, written);
            to.pass_time(written);
            any = true;
        }
    }
}

/// A pipe between the two ends, with the copies in and out that a byte stream between two tasks needs.
struct Pipe {
    bytes: Vec<u8>,
    /// The reader's buffer, initially as long as that of the `h2` crate.
    buffer: Box<[u8]>,
}

impl Pipe {
    fn new() -> Self {
        Self { bytes: Vec::new(), buffer: vec![0; 8 << 10].into() }
    }

    /// Like [`End::pump`], with both copies.
    fn pump(&mut self, from: &mut End, to: &mut End) -> bool {
        let mut any = false;
        loop {
            let mut slices = [&[][..]; 16];
            let filled = from.connection.poll_transmit(from.now, &mut slices);
            let before = self.bytes.len();
            slices[..filled].iter().for_each(|slice| self.bytes.extend_from_slice(slice));
            from.connection.transmitted(from.now, self.bytes.len() - before);
            let mut at = 0;
            while at < self.bytes.len() {
                let len = self.buffer.len().min(self.bytes.len() - at);
                self.buffer[..len].copy_from_slice(&self.bytes[at..at + len]);
                let handled = to.handle_input(&self.buffer[..len]);
                at += handled;
                if handled < len {
                    break;
                }
            }
            self.bytes.drain(..at);
            to.pass_time(at);
            if at == 0 {
                return any;
            }
            any = true;
        }
    }
}

/// A client and a server, joined without a copy, or by a pipe.
pub(crate) struct Connections<const PIPED: bool = false> {
    pipe: Pipe,
    requests: Vec<FieldList>,
    response: FieldList,
    exchange: Arc<Exchange>,
    client: End,
    server: End,
    sent: usize,
}

fn list(fields: &Fields) -> FieldList {
    fields.iter().map(|(name, value)| Field::new(name.as_bytes(), value.as_bytes())).collect()
}

impl<const PIPED: bool> Connections<PIPED> {
    fn pump_to_server(&mut self) -> bool {
        match PIPED {
            true => self.pipe.pump(&mut self.client, &mut self.server),
            false => self.client.pump(&mut self.server),
        }
    }

    fn pump_to_client(&mut self) -> bool {
        match PIPED {
            true => self.pipe.pump(&mut self.server, &mut self.client),
            false => self.server.pump(&mut self.client),
        }
    }

    fn request(&mut self) {
        let fields = &self.requests[self.sent % self.requests.len()];
        self.client.connection.send_request(fields, true).expect("a request may be sent");
        self.sent += 1;
    }

    fn respond(&mut self) {
        let connection = &mut self.server.connection;
        for stream in self.server.received.waiting.drain(..) {
            connection.send_response(stream, &self.response, false).expect("a response may be sent");
            let last = self.exchange.data.len() - 1;
            for (at, chunk) in self.exchange.data.iter().enumerate() {
                connection.send_data(stream, chunk.clone(), at == last).expect("data may be sent");
            }
        }
    }
}

impl<const PIPED: bool> Pair for Connections<PIPED> {
    fn open(exchange: &Arc<Exchange>) -> Self {
        let mut connections = Self {
            pipe: Pipe::new(),
            requests: exchange.requests.iter().map(list).collect(),
            response: list(&exchange.response),
            exchange: Arc::clone(exchange),
            client: End::new(Role::Client),
            server: End::new(Role::Server),
            sent: 0,
        };
        while connections.pump_to_server() | connections.pump_to_client() {}
        connections
    }

    fn run(&mut self, streams: usize, concurrent: usize) {
        let last = self.client.received.complete + streams;
        let mut left = streams;
        while self.client.received.complete < last {
            while left > 0 && last - self.client.received.complete - left < concurrent {
                self.request();
                left -= 1;
            }
            self.pump_to_server();
            self.respond();
            self.pump_to_client();
        }
    }

    fn open_streams(&mut self, streams: usize) {
        for _ in 0..streams {
            self.request();
        }
        while self.pump_to_server() | self.pump_to_client() {}
        assert_eq!(self.server.received.waiting.len(), streams);
        self.server.received.waiting = Vec::new();
    }

    fn receive(&mut self, bytes: &[u8]) {
        assert_eq!(self.client.handle_input(bytes), bytes.len());
    }

    fn totals(&self) -> Totals {
        self.client.received.totals + self.server.received.totals
    }
}
