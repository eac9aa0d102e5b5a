//! Bytes of any origin as frames of a client or of a server: mostly valid ones, and all the ways to get them wrong.

use wireloom_http2::Role;
use wireloom_testing::http2::{Frame, flag, kind, literal};

/// Choices, from bytes; 0 when there are no more.
struct Choices<'a>(&'a [u8]);

impl<'a> Choices<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((&first, rest)) => {
                self.0 = rest;
                first
            }
            None => 0,
        }
    }

    /// Below `count`, which is 1 to 256.
    fn below(&mut self, count: usize) -> usize {
        usize::from(self.byte()) % count
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == count - 1
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    fn bytes(&mut self, max: usize) -> Vec<u8> {
        let len = self.below(max + 1).min(self.0.len());
        let (bytes, rest) = self.0.split_at(len);
        self.0 = rest;
        bytes.to_vec()
    }
}

/// At most this many frames, while choices last.
const FRAMES_MAX: usize = 24;

/// Streams that clients may open, some that they may not, and the connection.
const STREAMS: [u32; 12] = [1, 3, 5, 7, 1, 3, 5, 0, 2, 9, 0x7fff_ffff, 8];

/// Streams that a client of the comparison has opened, some that it has not, and the connection.
const RESPONSE_STREAMS: [u32; 14] = [1, 3, 5, 7, 9, 1, 3, 7, 9, 0, 2, 11, 0x7fff_ffff, 4];

/// Status codes: final, interim, those that have a meaning for HTTP/2, and malformed ones.
const STATUSES: [&str; 14] =
    ["200", "404", "204", "304", "205", "100", "103", "101", "999", "99", "1000", "2 0", "+20", ""];

/// The fields of a valid request.
const REQUEST: [(&str, &str); 4] =
    [(":method", "POST"), (":scheme", "https"), (":path", "/"), (":authority", "a.example")];

/// Fields that make a request special, or malformed.
const FIELDS: [(&str, &str); 48] = [
    ("accept", "*/*"),
    ("cookie", "a=b"),
    ("content-length", "0"),
    ("content-length", "5"),
    ("content-length", "5x"),
    ("content-length", ""),
    ("content-length", "18446744073709551616"),
    ("host", "a.example"),
    ("host", "b.example"),
    ("te", "trailers"),
    ("te", "gzip"),
    ("connection", "close"),
    ("keep-alive", "5"),
    ("proxy-connection", "close"),
    ("transfer-encoding", "chunked"),
    ("upgrade", "h2c"),
    ("Accept", "*/*"),
    ("a b", "c"),
    ("", "empty"),
    ("a:b", "c"),
    ("x-\x7f", "c"),
    ("x-value", " leading"),
    ("x-value", "trailing\t"),
    ("x-value", "a\0b"),
    ("x-value", "a\nb"),
    ("x-value", "a\rb"),
    ("x-value", "a\x01b"),
    ("x-value", "a\x7fb"),
    ("x-value", "é"),
    ("x-value", ""),
    (":method", "GET"),
    (":method", "CONNECT"),
    (":method", "HEAD"),
    (":method", ""),
    (":method", "G T"),
    (":path", "/other"),
    (":path", ""),
    (":path", "*"),
    (":path", "no-slash"),
    (":path", "/a b"),
    (":scheme", "http"),
    (":scheme", "h#ttp"),
    (":authority", "b.example:8080"),
    (":authority", "user@b.example"),
    (":authority", ""),
    (":protocol", "websocket"),
    (":status", "200"),
    (":unknown", "x"),
];

/// Header sections of a client: of requests, of trailers, and malformed.
fn request(choices: &mut Choices<'_>) -> Vec<u8> {
    let mut fields: Vec<(&str, &str)> = Vec::new();
    match choices.below(8) {
        // Trailers.
        0 => fields.push(("x-trailer", "1")),
        // A field of the request is missing.
        1 => {
            let without = choices.below(4);
            fields
                .extend(REQUEST.iter().enumerate().filter(|(at, _)| *at != without).map(|(_, field)| field));
        }
        // One has another value.
        2 => {
            fields.extend(REQUEST);
            let at = choices.below(4);
            let others: Vec<_> = FIELDS.iter().filter(|(name, _)| *name == fields[at].0).copied().collect();
            fields[at] = choices.pick(&others);
        }
        // CONNECT, perhaps extended.
        3 => {
            fields.push((":method", "CONNECT"));
            fields.push((":authority", "a.example:443"));
            if choices.one_in(2) {
                fields.extend([(":protocol", "websocket"), (":scheme", "https"), (":path", "/")]);
            }
        }
        _ => fields.extend(REQUEST),
    }
    block(fields, choices)
}

/// Header sections of a server: of responses, of trailers, and malformed.
fn response(choices: &mut Choices<'_>) -> Vec<u8> {
    let fields = match choices.below(8) {
        0 => vec![("x-trailer", "1")],
        1 => vec![],
        2..=4 => vec![(":status", choices.pick(&STATUSES))],
        _ => vec![(":status", "200")],
    };
    block(fields, choices)
}

/// These fields and others, in any representation.
fn block<'a>(mut fields: Vec<(&'a str, &'a str)>, choices: &mut Choices<'_>) -> Vec<u8> {
    for _ in 0..choices.below(4) {
        let field = choices.pick(&FIELDS);
        if choices.one_in(8) { fields.insert(0, field) } else { fields.push(field) }
    }
    let mut block = Vec::new();
    for (name, value) in fields {
        match choices.below(12) {
            // RFC 7541 §6.1: the static table has GET, https and the path "/".
            0 => block.extend([0x82, 0x87, 0x84]),
            // RFC 7541 §6.2.1: a literal that is indexed, and §6.1: the first entry of the dynamic table.
            1 => {
                block.push(0x40);
                block.extend_from_slice(&literal(name.as_bytes(), value.as_bytes())[1..]);
            }
            2 if choices.one_in(8) => block.push(0xbe),
            // RFC 7541 §6.3, and random bytes.
            3 if choices.one_in(8) => block.push(0x20 | choices.byte() & 0x1f),
            4 if choices.one_in(8) => block.extend(choices.bytes(6)),
            _ => block.extend(literal(name.as_bytes(), value.as_bytes())),
        }
    }
    block
}

fn frame(sender: Role, choices: &mut Choices<'_>, next_stream: &mut u32, out: &mut Vec<Frame>) {
    let streams: &[u32] = if sender == Role::Client { &STREAMS } else { &RESPONSE_STREAMS };
    let section = if sender == Role::Client { request } else { response };
    match choices.below(16) {
        // A new request or response, mostly.
        0..=4 => {
            let stream = if choices.one_in(6) {
                choices.pick(streams)
            } else {
                let stream = *next_stream;
                *next_stream = match sender {
                    Role::Server if stream == 9 => 1,
                    _ => stream + 2,
                };
                stream
            };
            let block = section(choices);
            let ends = choices.one_in(3);
            let mut headers = Frame::new(kind::HEADERS, stream, block).flag(flag::END_HEADERS);
            if ends {
                headers = headers.end_stream();
            }
            match choices.below(12) {
                0 => headers = headers.padded(choices.byte(), choices.below(40)),
                1 => headers = headers.depends_on(choices.pick(streams)),
                // The block continues in CONTINUATION.
                2 => {
                    let block = std::mem::take(&mut headers.payload);
                    let at = choices.below(block.len() + 1).min(block.len());
                    out.push(headers.payload(&block[..at]).no_flag(flag::END_HEADERS));
                    let stream = if choices.one_in(6) { choices.pick(streams) } else { stream };
                    headers = Frame::new(kind::CONTINUATION, stream, &block[at..]).flag(flag::END_HEADERS);
                }
                _ => {}
            }
            out.push(headers);
        }
        // Trailers, or a second request or response on a stream.
        5 if sender == Role::Server && choices.one_in(8) => {
            out.push(Frame::push_promise(choices.pick(streams), choices.pick(&[2, 4, 3, 0]), &REQUEST));
        }
        5 => {
            let headers = Frame::new(kind::HEADERS, choices.pick(streams), section(choices));
            let headers = headers.flag(flag::END_HEADERS);
            out.push(if choices.one_in(4) { headers } else { headers.end_stream() });
        }
        6..=8 => {
            let mut data = Frame::data(choices.pick(streams), choices.bytes(12));
            if choices.one_in(4) {
                data = data.padded(choices.byte() % 16, choices.below(16));
            }
            out.push(if choices.one_in(3) { data.end_stream() } else { data });
        }
        9 => {
            let increment = choices.pick(&[1, 0, 100, 0x7fff_ffff, 0x8000_0000, 0x7fff_0000, 0x8000_0001]);
            out.push(Frame::window_update(choices.pick(streams), increment));
        }
        10 => {
            let id = choices.pick(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 0x99]);
            let value = choices.pick(&[
                0,
                1,
                2,
                16_383,
                16_384,
                65_535,
                0xff_ffff,
                0x100_0000,
                0x7fff_ffff,
                0x8000_0000,
            ]);
            out.push(Frame::settings(&[(id, value)]));
        }
        11 => out.push(Frame::rst_stream(choices.pick(streams), choices.pick(&[8, 0, 1, 99]))),
        12 => out.push(match choices.below(5) {
            0 => Frame::priority(choices.pick(streams), choices.pick(streams), choices.byte()),
            1 => Frame::ping("8 bytes."),
            2 => Frame::ping("8 bytes.").flag(flag::ACK),
            3 => Frame::settings_ack(),
            _ => Frame::goaway(choices.pick(streams), choices.pick(&[0, 1, 2]), "bye"),
        }),
        // A frame of any type, with any flags.
        _ => {
            let kind = choices.pick(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0x20]);
            let stream = choices.pick(streams);
            let flags = if choices.one_in(2) { choices.byte() } else { 0 };
            let payload = choices.bytes(20);
            out.push(Frame::new(kind, stream, payload).no_flag(0xff).flag(flags));
        }
    }
}

/// Bytes as frames of a client.
pub fn client_frames(bytes: &[u8]) -> Vec<Frame> {
    frames(Role::Client, bytes)
}

/// Bytes as frames of a server.
pub fn server_frames(bytes: &[u8]) -> Vec<Frame> {
    frames(Role::Server, bytes)
}

fn frames(sender: Role, bytes: &[u8]) -> Vec<Frame> {
    let (mut choices, mut frames, mut next_stream) = (Choices::new(bytes), Vec::new(), 1);
    while !choices.0.is_empty() && frames.len() < FRAMES_MAX {
        frame(sender, &mut choices, &mut next_stream, &mut frames);
    }
    frames
}
