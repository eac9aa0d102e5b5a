//! The HTTP/2 core: a client and a server joined in memory, past the exchange of SETTINGS.

use crate::capped;
use bytes::Bytes;
use gungraun::{library_benchmark, library_benchmark_group};
use std::time::Duration;
use wireloom_http2::field::{Field, FieldList};
use wireloom_http2::{Config, Connection, Event, Role, StreamKey};

struct End {
    connection: Connection,
    requests: Vec<StreamKey>,
    responses: usize,
    data_len: usize,
}

impl End {
    fn new(role: Role) -> Self {
        let mut config = Config::new(role);
        // The baseline is older than this check of the caller.
        config.check_outgoing = false;
        let connection = Connection::new(role, config).expect("default settings");
        Self { connection, requests: Vec::new(), responses: 0, data_len: 0 }
    }

    /// Handles input until all is consumed, or output has to leave first.
    fn handle_input(&mut self, input: &[u8]) -> usize {
        let mut at = 0;
        loop {
            let (used, event) =
                self.connection.handle_input(Duration::ZERO, &input[at..]).expect("a valid peer");
            at += used;
            match event {
                Some(Event::Request { stream, .. }) => self.requests.push(stream),
                Some(Event::Response { end_stream, .. }) => self.responses += usize::from(end_stream),
                Some(Event::Data { data, end_stream, .. }) => {
                    self.data_len += data.len();
                    self.responses += usize::from(end_stream);
                }
                Some(_) => {}
                None => return at,
            }
        }
    }

    /// Delivers the output of this end to `peer`; whether there was any.
    fn transmit_to(&mut self, peer: &mut Self) -> bool {
        let mut any = false;
        loop {
            let mut slices = [&[][..]; 16];
            let count = self.connection.poll_transmit(Duration::ZERO, &mut slices);
            let mut written = 0;
            for slice in &slices[..count] {
                let used = peer.handle_input(slice);
                written += used;
                if used < slice.len() {
                    break;
                }
            }
            if written == 0 {
                return any;
            }
            self.connection.transmitted(Duration::ZERO, written);
            any = true;
        }
    }
}

pub(crate) struct Exchange {
    client: End,
    server: End,
    request: FieldList,
    response: FieldList,
    /// Sent as one DATA frame each.
    data: Vec<Bytes>,
}

fn list(fields: &[(&str, &str)]) -> FieldList {
    fields.iter().map(|(name, value)| Field::new(name.as_bytes(), value.as_bytes())).collect()
}

fn exchange(data: Vec<Bytes>) -> Exchange {
    capped(|| {
        let (mut client, mut server) = (End::new(Role::Client), End::new(Role::Server));
        while client.transmit_to(&mut server) | server.transmit_to(&mut client) {}
        let request = list(&[
            (":method", "GET"),
            (":scheme", "https"),
            (":authority", "localhost:8080"),
            (":path", "/"),
            ("accept", "*/*"),
        ]);
        let response = list(&[(":status", "200"), ("content-type", "text/plain"), ("server", "wireloom")]);
        let exchange = Exchange { client, server, request, response, data };
        // Buffers and tables of a connection that is in use.
        exchange_each(exchange, 2)
    })
}

fn exchange_each(mut exchange: Exchange, count: usize) -> Exchange {
    let Exchange { client, server, request, response, data } = &mut exchange;
    let (responses, data_len) = (client.responses, client.data_len);
    for _ in 0..count {
        client.connection.send_request(&*request, true).expect("an open connection");
        client.transmit_to(server);
        let stream = server.requests.pop().expect("a request");
        server.connection.send_response(stream, &*response, data.is_empty()).expect("an open stream");
        for (at, chunk) in data.iter().enumerate() {
            let is_last = at + 1 == data.len();
            server.connection.send_data(stream, chunk.clone(), is_last).expect("an open stream");
        }
        while server.transmit_to(client) | client.transmit_to(server) {}
    }
    assert_eq!(client.responses - responses, count);
    assert_eq!(client.data_len - data_len, count * data.iter().map(Bytes::len).sum::<usize>());
    exchange
}

fn data(len: usize, frames: usize) -> Exchange {
    exchange(vec![Bytes::from(vec![b'x'; len]); frames])
}

#[library_benchmark]
#[bench::without_data(exchange(Vec::new()))]
#[bench::data_26(data(13, 2))]
fn request_response(exchange: Exchange) -> Exchange {
    exchange_each(exchange, 16)
}

#[library_benchmark]
#[bench::frames_1024(data(1024, 32))]
#[bench::frames_16384(data(16_384, 32))]
fn download(exchange: Exchange) -> Exchange {
    exchange_each(exchange, 1)
}

library_benchmark_group!(name = http2_group, benchmarks = [request_response, download]);
