//! The requests and responses that the two ends of an HTTP/2 connection exchange, and the expected totals.

use crate::allocation;
use crate::checksum::consume;
use crate::contestant::Work;
use std::ops::Add;
use std::sync::Arc;
use wireloom_testing::http2::Frame;

pub(crate) type Fields = Vec<(String, String)>;

/// Requests without a body, which are sent in turn, and the response to each.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub(crate) requests: Vec<Fields>,
    pub(crate) response: Fields,
    /// One DATA frame each.
    pub(crate) data: Vec<bytes::Bytes>,
}

fn owned(fields: &[(&str, &str)]) -> Fields {
    fields.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect()
}

impl Exchange {
    /// The exchange of the published benchmark: five fields, four fields and two DATA frames.
    pub(crate) fn published() -> Self {
        Self {
            requests: vec![owned(&[
                (":method", "GET"),
                (":scheme", "https"),
                (":authority", "localhost:8080"),
                (":path", "/"),
                ("accept", "*/*"),
            ])],
            response: owned(&[
                (":status", "200"),
                ("content-length", "26"),
                ("content-type", "text/plain"),
                ("server", "wireloom-bench"),
            ]),
            data: vec![b"This is HTTP 2".as_slice().into(), b".0 response!".as_slice().into()],
        }
    }

    /// The exchange of a browser with a site: twelve fields both ways, a path that changes, and 1 KiB.
    pub(crate) fn web_like() -> Self {
        let request = |at: usize| {
            let path =
                format!("/assets/components/panel-{at:03}.js?v={:08x}", at.wrapping_mul(0x9E37_79B9) as u32);
            owned(&[
                (":method", "GET"),
                (":scheme", "https"),
                (":authority", "www.example.com"),
                (":path", &path),
                (
                    "user-agent",
                    "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/126.0 Safari/537.36",
                ),
                ("accept", "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8"),
                ("accept-language", "en-GB,en;q=0.7,de;q=0.3"),
                ("accept-encoding", "gzip, deflate, br, zstd"),
                ("referer", "https://www.example.com/dashboard"),
                ("cookie", "session=6f1e2d3c4b5a69788796a5b4c3d2e1f0"),
                ("sec-fetch-mode", "no-cors"),
                ("sec-fetch-site", "same-origin"),
            ])
        };
        Self {
            requests: (0..64).map(request).collect(),
            response: owned(&[
                (":status", "200"),
                ("date", "Fri, 20 Nov 2026 21:00:00 GMT"),
                ("server", "wireloom-bench"),
                ("content-type", "application/javascript; charset=utf-8"),
                ("content-length", "1024"),
                ("cache-control", "public, max-age=31536000, immutable"),
                ("etag", "\"5f3c1-400-6a1b2c3d\""),
                ("last-modified", "Mon, 02 Nov 2026 08:30:12 GMT"),
                ("vary", "accept-encoding"),
                ("x-content-type-options", "nosniff"),
                ("strict-transport-security", "max-age=63072000; includeSubDomains"),
                ("accept-ranges", "bytes"),
            ]),
            data: vec![vec![b'x'; 1024].into()],
        }
    }

    /// A large download: `frames` DATA frames of 16 KiB, the longest that every peer must accept.
    pub(crate) fn bulk(frames: usize) -> Self {
        let frame = bytes::Bytes::from(vec![b'x'; 16 * 1024]);
        let response = owned(&[(":status", "200"), ("content-type", "application/octet-stream")]);
        Self { data: vec![frame; frames], response, ..Self::published() }
    }

    /// The totals after `streams` streams, both ends together.
    fn totals(&self, streams: usize) -> Totals {
        let mut totals = Totals::default();
        for request in self.requests.iter().cycle().take(streams) {
            for (name, value) in request.iter().chain(&self.response) {
                totals.field(name.as_bytes(), value.as_bytes());
            }
            totals.messages += 2;
            self.data.iter().for_each(|frame| totals.data(frame));
        }
        totals
    }
}

/// Totals of the input, regardless of its order, so that counting costs next to nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    /// Requests and responses.
    pub(crate) messages: u64,
    pub(crate) fields: u64,
    /// Bytes of names and values.
    pub(crate) field_bytes: u64,
    pub(crate) data_bytes: u64,
}

impl Totals {
    #[inline(always)]
    pub(crate) fn field(&mut self, name: &[u8], value: &[u8]) {
        self.fields += 1;
        self.field_bytes += (consume(name) + consume(value)) as u64;
    }

    #[inline(always)]
    pub(crate) fn data(&mut self, data: &[u8]) {
        self.data_bytes += consume(data) as u64;
    }
}

impl Add for Totals {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            messages: self.messages + other.messages,
            fields: self.fields + other.fields,
            field_bytes: self.field_bytes + other.field_bytes,
            data_bytes: self.data_bytes + other.data_bytes,
        }
    }
}

/// A client and a server of one library, joined in memory.
pub(crate) trait Pair {
    /// Opens a connection and exchanges SETTINGS.
    fn open(exchange: &Arc<Exchange>) -> Self;
    /// Makes `streams` exchanges, at most `concurrent` at a time.
    fn run(&mut self, streams: usize, concurrent: usize);
    /// Sends `streams` requests that are not answered.
    fn open_streams(&mut self, streams: usize);
    /// Passes these bytes to the client, as if the server had sent them.
    fn receive(&mut self, bytes: &[u8]);
    /// The totals of both ends so far.
    fn totals(&self) -> Totals;
}

/// The flow-control windows of each client, for a stream and for the connection.
pub(crate) const WINDOW: u32 = 1 << 20;

/// A client sends one request and receives a response of many DATA frames, which were built before.
pub(crate) struct Receiving<P> {
    exchange: Arc<Exchange>,
    bytes: Vec<u8>,
    expected: Totals,
    pair: std::marker::PhantomData<P>,
}

impl<P: Pair> Receiving<P> {
    pub(crate) fn new(exchange: &Arc<Exchange>, frames: usize, len: usize) -> Self {
        let mut bytes = Frame::headers(1, &[(":status", "200")]).to_bytes();
        (0..frames).for_each(|_| Frame::data(1, vec![b'x'; len]).write(&mut bytes));
        let mut expected = Totals { messages: 2, data_bytes: (frames * len) as u64, ..Totals::default() };
        exchange.requests[0]
            .iter()
            .for_each(|(name, value)| expected.field(name.as_bytes(), value.as_bytes()));
        expected.field(b":status", b"200");
        Self { exchange: Arc::clone(exchange), bytes, expected, pair: std::marker::PhantomData }
    }

    fn receive(&self) -> Totals {
        let mut pair = P::open(&self.exchange);
        pair.open_streams(1);
        pair.receive(&self.bytes);
        pair.totals()
    }
}

impl<P: Pair> Work for Receiving<P> {
    fn pass(&mut self) {
        std::hint::black_box(self.receive());
    }

    fn check(&mut self) -> Result<(), String> {
        let found = self.receive();
        if found == self.expected {
            Ok(())
        } else {
            Err(format!("{found:?} arrived instead of {:?}", self.expected))
        }
    }
}

/// A new connection in each pass.
pub(crate) struct Exchanging<P> {
    exchange: Arc<Exchange>,
    streams: usize,
    concurrent: usize,
    pair: std::marker::PhantomData<P>,
}

impl<P: Pair> Exchanging<P> {
    pub(crate) fn new(exchange: &Arc<Exchange>, streams: usize, concurrent: usize) -> Self {
        Self { exchange: Arc::clone(exchange), streams, concurrent, pair: std::marker::PhantomData }
    }

    fn exchange(&self) -> Totals {
        let mut pair = P::open(&self.exchange);
        pair.run(self.streams, self.concurrent);
        pair.totals()
    }
}

impl<P: Pair> Work for Exchanging<P> {
    fn pass(&mut self) {
        std::hint::black_box(self.exchange());
    }

    /// The allocations of the streams alone: the connection is open and has carried as many streams before. Opening it
    /// is part of the time, but not of this figure.
    fn allocations(&mut self) -> u64 {
        let mut pair = allocation::counted(|| P::open(&self.exchange));
        pair.run(self.streams, self.concurrent);
        allocation::count(|| pair.run(self.streams, self.concurrent))
    }

    fn check(&mut self) -> Result<(), String> {
        let (found, expected) = (self.exchange(), self.exchange.totals(self.streams));
        if found == expected { Ok(()) } else { Err(format!("{found:?} arrived instead of {expected:?}")) }
    }
}
