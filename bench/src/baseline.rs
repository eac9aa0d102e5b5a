//! The baselines of the races in memory: the work that no contestant can do without, and nothing else. They show how much of a cost is
//! the machine's.

use crate::checksum::consume;
use crate::contestant::Work;
use crate::corpus::Corpus;
use crate::decode_check::Takeover;
use crate::exchange::{Exchange, Totals};
use crate::wire::{Feed, READ_LEN_MAX};
use bytes::Bytes;
use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress};
use std::hint::black_box;
use wireloom_testing::http2::Frame;
use wireloom_ws::mask::{self, MaskKey};

/// Copies a corpus, read by read. Every reader has to do at least this.
pub(crate) struct Copying {
    feed: Feed,
    buffer: Vec<u8>,
    len: usize,
    unmasks: bool,
}

impl Copying {
    pub(crate) fn new(corpus: &Corpus) -> Self {
        let feed = Feed::new(corpus.frames.clone());
        Self { feed, buffer: vec![0; READ_LEN_MAX], len: corpus.frames.len(), unmasks: false }
    }

    /// Also unmasks each read where it is: every reader of masked frames has to pass over the bytes that were copied.
    pub(crate) fn unmasking(corpus: &Corpus) -> Self {
        Self { unmasks: true, ..Self::new(corpus) }
    }
}

impl Work for Copying {
    fn pass(&mut self) {
        let mut left = self.len;
        while left > 0 {
            let len = self.feed.recv(&mut self.buffer);
            if self.unmasks {
                mask::apply(&mut self.buffer[..len], MaskKey::new([1, 2, 3, 4]));
            }
            black_box(&mut self.buffer);
            left -= len;
        }
    }

    fn check(&mut self) -> Result<(), String> {
        self.pass();
        Ok(())
    }
}

/// Copies chunks into one buffer, of which each group begins at the front. Every writer that masks has to copy its messages, every encoder
/// its blocks, and every decoder its strings.
pub(crate) struct CopyingOut {
    groups: Vec<Vec<Bytes>>,
    buffer: Vec<u8>,
}

impl CopyingOut {
    pub(crate) fn new<'a>(groups: impl IntoIterator<Item = impl IntoIterator<Item = &'a [u8]>>) -> Self {
        let groups: Vec<Vec<Bytes>> =
            groups.into_iter().map(|group| group.into_iter().map(Bytes::copy_from_slice).collect()).collect();
        let len_max = groups.iter().map(|group| group.iter().map(Bytes::len).sum()).max();
        Self { groups, buffer: vec![0; len_max.unwrap_or(0)] }
    }
}

impl Work for CopyingOut {
    fn pass(&mut self) {
        for group in &self.groups {
            let mut rest = &mut self.buffer[..];
            for chunk in group {
                let (copy, behind) = rest.split_at_mut(chunk.len());
                copy.copy_from_slice(chunk);
                rest = behind;
            }
            black_box(&mut self.buffer);
        }
    }

    fn check(&mut self) -> Result<(), String> {
        self.pass();
        Ok(())
    }
}

/// Compresses a corpus with the library that all contestants use, without frames.
pub(crate) struct Deflating {
    corpus: Corpus,
    takeover: Takeover,
    codec: Compress,
    out: Vec<u8>,
}

impl Deflating {
    pub(crate) fn new(corpus: &Corpus, takeover: Takeover, level: u32) -> Self {
        let codec = Compress::new(Compression::new(level), false);
        Self { corpus: corpus.clone(), takeover, codec, out: Vec::with_capacity(4 << 10) }
    }

    /// Passes the compressed bytes of each message to `each`.
    fn run(&mut self, mut each: impl FnMut(&[u8])) {
        for message in self.corpus.messages.iter() {
            if self.takeover == Takeover::No {
                self.codec.reset();
            }
            self.out.clear();
            let done = self.codec.compress_vec(message, &mut self.out, FlushCompress::Sync);
            done.expect("room enough");
            each(&self.out);
        }
    }
}

impl Work for Deflating {
    fn pass(&mut self) {
        self.run(|compressed| {
            consume(compressed);
        });
    }

    fn check(&mut self) -> Result<(), String> {
        let messages = self.corpus.messages.clone();
        let (mut messages, mut is_right) = (messages.iter(), true);
        let (mut codec, takeover) = (Decompress::new(false), self.takeover);
        // The window of an earlier pass would be missing.
        self.codec.reset();
        self.run(|compressed| {
            is_right &= messages
                .next()
                .is_some_and(|message| **message == *inflate(&mut codec, takeover, compressed));
        });
        if is_right { Ok(()) } else { Err("other messages".into()) }
    }
}

/// Decompresses a corpus with the library that all contestants use, without frames.
pub(crate) struct Inflating {
    bodies: Vec<Vec<u8>>,
    corpus: Corpus,
    takeover: Takeover,
    codec: Decompress,
    out: Vec<u8>,
}

impl Inflating {
    pub(crate) fn new(corpus: &Corpus, takeover: Takeover, level: u32) -> Self {
        let mut bodies = Vec::new();
        Deflating::new(corpus, takeover, level).run(|compressed| bodies.push(compressed.to_vec()));
        let codec = Decompress::new(false);
        Self { bodies, corpus: corpus.clone(), takeover, codec, out: Vec::with_capacity(4 << 10) }
    }
}

impl Work for Inflating {
    fn pass(&mut self) {
        for body in &self.bodies {
            if self.takeover == Takeover::No {
                self.codec.reset(false);
            }
            self.out.clear();
            self.codec.decompress_vec(body, &mut self.out, FlushDecompress::Sync).expect("honest bytes");
            consume(&self.out);
        }
    }

    fn check(&mut self) -> Result<(), String> {
        let mut codec = Decompress::new(false);
        let is_right = self
            .bodies
            .iter()
            .zip(self.corpus.messages.iter())
            .all(|(body, message)| **message == *inflate(&mut codec, self.takeover, body));
        self.pass();
        if is_right { Ok(()) } else { Err("other messages".into()) }
    }
}

fn inflate(codec: &mut Decompress, takeover: Takeover, body: &[u8]) -> Vec<u8> {
    if takeover == Takeover::No {
        codec.reset(false);
    }
    let mut out = Vec::with_capacity(4 << 10);
    codec.decompress_vec(body, &mut out, FlushDecompress::Sync).expect("honest bytes");
    out
}

/// Reads the frames of exchanges that were built before: looks at each header, and copies the fields into one buffer. DATA is not copied.
pub(crate) struct Walking {
    /// The frames of both ends, a stream each.
    exchanges: Vec<Vec<u8>>,
    streams: usize,
    /// Bytes of DATA in all streams.
    data_len: usize,
    buffer: Vec<u8>,
}

impl Walking {
    /// `streams` times one of these exchanges, in turn.
    pub(crate) fn new(exchange: &Exchange, streams: usize) -> Self {
        let frames = |request: &[(String, String)]| {
            let headers = |fields: &[(String, String)]| {
                let fields: Vec<_> = fields.iter().map(|(name, value)| (&**name, &**value)).collect();
                Frame::headers(1, &fields).to_bytes()
            };
            let data = exchange.data.iter().flat_map(|data| Frame::data(1, data.to_vec()).to_bytes());
            headers(request).into_iter().chain(headers(&exchange.response)).chain(data).collect()
        };
        let exchanges = exchange.requests.iter().map(|request| frames(request)).collect();
        let data_len = streams * exchange.data.iter().map(Bytes::len).sum::<usize>();
        Self { exchanges, streams, data_len, buffer: vec![0; 64 << 10] }
    }

    fn walk(&mut self) -> Totals {
        const HEADERS: u8 = 1;
        let mut totals = Totals::default();
        for exchange in self.exchanges.iter().cycle().take(self.streams) {
            let mut rest = &exchange[..];
            while let Some((&[a, b, c, kind, ..], behind)) = rest.split_first_chunk::<9>() {
                let (payload, next) = behind.split_at(u32::from_be_bytes([0, a, b, c]) as usize);
                if kind == HEADERS {
                    self.buffer[..payload.len()].copy_from_slice(payload);
                    black_box(&mut self.buffer);
                    totals.messages += 1;
                } else {
                    totals.data(payload);
                }
                rest = next;
            }
        }
        totals
    }
}

impl Work for Walking {
    fn pass(&mut self) {
        black_box(self.walk());
    }

    fn check(&mut self) -> Result<(), String> {
        let found = self.walk();
        let expected = Totals {
            messages: 2 * self.streams as u64,
            data_bytes: self.data_len as u64,
            ..Totals::default()
        };
        if found == expected { Ok(()) } else { Err(format!("{found:?} instead of {expected:?}")) }
    }
}
