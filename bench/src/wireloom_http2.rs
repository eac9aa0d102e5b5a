//! Wireloom's HTTP/2, driven as its driver would: what one end transmits is lent to the other, event by event, all limits
//! and validation on. Only the number of streams at a time is raised.

use crate::exchange::{Exchange, Fields, Pair, Totals, WINDOW};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use wireloom_http2::field::{Field, FieldList};
use wireloom_http2::{Config, Connection, Event, Role, StreamKey};

/// Time is an argument: it goes on as it would on a link of 8 Gbit/s.
const BYTE_TIME: Duration = Duration::from_nanos(1);

/// What one end has heard.
#[derive(Default)]
struct Heard {
    totals: Totals,
    /// Requests that wait for their answer: the server's.
    waiting: Vec<StreamKey>,
    /// Responses that are complete: the client's.
    complete: usize,
}

impl Heard {
    fn hear(&mut self, event: &Event<'_>) {
        match event {
            Event::Request { stream, fields, .. } => {
                self.fields(fields);
                self.waiting.push(*stream);
            }
            Event::Response { fields, end_stream, .. } => {
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
    heard: Heard,
}

impl End {
    fn new(role: Role) -> Self {
        let mut config = Config::new(role);
        config.settings.max_concurrent_streams = 2_000_000;
        config.settings.initial_window_size = WINDOW;
        config.stream_window_max = WINDOW;
        config.connection_window = WINDOW;
        let connection = Connection::new(role, config).expect("settings in range");
        Self { connection, now: Duration::ZERO, heard: Heard::default() }
    }

    /// Takes input and says how much; less than all only while output waits.
    fn take(&mut self, input: &[u8]) -> usize {
        self.now += BYTE_TIME * input.len() as u32;
        let mut at = 0;
        loop {
            let (taken, event) =
                self.connection.handle_input(self.now, &input[at..]).expect("an honest peer");
            at += taken;
            match event {
                Some(event) => self.heard.hear(&event),
                None => return at,
            }
        }
    }

    /// Gives the other end what this one has to send; `false` if that was nothing, or nothing was taken.
    fn pump(&mut self, to: &mut Self) -> bool {
        let mut any = false;
        loop {
            let mut slices = [&[][..]; 16];
            let filled = self.connection.poll_transmit(&mut slices);
            let mut written = 0;
            for slice in &slices[..filled] {
                let taken = to.take(slice);
                written += taken;
                if taken < slice.len() {
                    break;
                }
            }
            if written == 0 {
                return any;
            }
            self.connection.transmitted(written);
            any = true;
        }
    }
}

/// A client and a server.
pub(crate) struct Connections {
    requests: Vec<FieldList>,
    response: FieldList,
    pieces: Vec<Bytes>,
    client: End,
    server: End,
    sent: usize,
}

fn list(fields: &Fields) -> FieldList {
    fields.iter().map(|(name, value)| Field::new(name.as_bytes(), value.as_bytes())).collect()
}

impl Connections {
    fn request(&mut self) {
        let fields = &self.requests[self.sent % self.requests.len()];
        self.client.connection.send_request(fields, true).expect("a request may be sent");
        self.sent += 1;
    }

    fn respond(&mut self) {
        let connection = &mut self.server.connection;
        for stream in self.server.heard.waiting.drain(..) {
            connection.send_response(stream, &self.response, false).expect("a response may be sent");
            let last = self.pieces.len() - 1;
            for (at, piece) in self.pieces.iter().enumerate() {
                connection.send_data(stream, piece.clone(), at == last).expect("data may be sent");
            }
        }
    }
}

impl Pair for Connections {
    fn open(exchange: &Arc<Exchange>) -> Self {
        let (mut client, mut server) = (End::new(Role::Client), End::new(Role::Server));
        while client.pump(&mut server) | server.pump(&mut client) {}
        Self {
            requests: exchange.requests.iter().map(list).collect(),
            response: list(&exchange.response),
            pieces: exchange.pieces.clone(),
            client,
            server,
            sent: 0,
        }
    }

    fn run(&mut self, streams: usize, concurrent: usize) {
        let last = self.client.heard.complete + streams;
        let mut left = streams;
        while self.client.heard.complete < last {
            while left > 0 && last - self.client.heard.complete - left < concurrent {
                self.request();
                left -= 1;
            }
            self.client.pump(&mut self.server);
            self.respond();
            self.server.pump(&mut self.client);
        }
    }

    fn open_streams(&mut self, streams: usize) {
        for _ in 0..streams {
            self.request();
        }
        while self.client.pump(&mut self.server) | self.server.pump(&mut self.client) {}
        assert_eq!(self.server.heard.waiting.len(), streams);
        self.server.heard.waiting = Vec::new();
    }

    fn receive(&mut self, bytes: &[u8]) {
        assert_eq!(self.client.take(bytes), bytes.len());
    }

    fn totals(&self) -> Totals {
        self.client.heard.totals + self.server.heard.totals
    }
}
