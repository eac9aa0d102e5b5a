//! The traits that a library implements to take part in a race, and the checks before it is timed.

use crate::allocation;
use crate::checksum::{Checksum, Count, Sink};
use crate::corpus::{Corpus, End};
use crate::decode_check::{self, Expected};
use crate::wire::Outbox;
use bytes::Bytes;

/// Reads messages from a connection after its handshake. It must validate text as UTF-8.
pub(crate) trait Reader {
    /// A connection that reads `bytes` repeatedly, as `end`.
    fn open(bytes: Bytes, end: End) -> Self;
    /// Reads `messages` messages and passes each to `sink`.
    fn read<S: Sink>(&mut self, messages: usize, sink: &mut S);
}

/// Writes messages to a connection after its handshake.
pub(crate) trait Writer {
    /// A connection that writes to `outbox` as `end`.
    fn open(outbox: Outbox, end: End) -> Self;
    /// Sends this binary message and flushes it.
    fn write(&mut self, message: &Bytes);
}

/// The work of a contestant. The same `pass` is checked, counted and timed.
pub(crate) trait Work {
    /// Does the work once.
    fn pass(&mut self);
    /// Does the work once more and compares the result with the expected one.
    fn check(&mut self) -> Result<(), String>;
    /// The allocations of a pass.
    fn allocations(&mut self) -> u64 {
        allocation::count(|| self.pass())
    }
}

/// Reads a corpus.
pub(crate) struct Reading<R> {
    reader: R,
    corpus: Corpus,
}

impl<R: Reader> Reading<R> {
    pub(crate) fn new(corpus: &Corpus, end: End) -> Self {
        Self { reader: R::open(corpus.frames.clone(), end), corpus: corpus.clone() }
    }
}

impl<R: Reader> Work for Reading<R> {
    fn pass(&mut self) {
        let mut count = Count::default();
        self.reader.read(self.corpus.messages.len(), &mut count);
        std::hint::black_box(count);
    }

    fn check(&mut self) -> Result<(), String> {
        let expected = Checksum::of(self.corpus.messages.iter().map(|message| &**message));
        let mut checksum = Checksum::default();
        self.reader.read(self.corpus.messages.len(), &mut checksum);
        compare(&checksum, &expected)?;
        // The sink of timed passes must receive as much.
        let mut count = Count::default();
        self.reader.read(self.corpus.messages.len(), &mut count);
        if count == expected.count() {
            Ok(())
        } else {
            Err(format!("{count:?} instead of {:?}", expected.count()))
        }
    }
}

/// Writes a corpus, message by message.
pub(crate) struct Writing<W> {
    writer: W,
    outbox: Outbox,
    messages: Vec<Bytes>,
    expected: Expected,
}

impl<W: Writer> Writing<W> {
    pub(crate) fn new(corpus: &Corpus, end: End) -> Self {
        let outbox = Outbox::default();
        let messages = corpus.messages.iter().map(|message| Bytes::copy_from_slice(message)).collect();
        let expected = Expected { masked: end == End::Client, compressed: None };
        Self { writer: W::open(outbox.clone(), end), outbox, messages, expected }
    }

    /// A writer that compresses.
    pub(crate) fn compressing(writer: W, outbox: Outbox, corpus: &Corpus, expected: Expected) -> Self {
        let messages = corpus.messages.iter().map(|message| Bytes::copy_from_slice(message)).collect();
        Self { writer, outbox, messages, expected }
    }
}

impl<W: Writer> Work for Writing<W> {
    fn pass(&mut self) {
        for message in &self.messages {
            self.writer.write(message);
        }
    }

    fn check(&mut self) -> Result<(), String> {
        let outbox = self.outbox.clone();
        let bytes = outbox.capture(|| self.pass());
        let expected = Checksum::of(self.messages.iter().map(|message| &**message));
        // Compressed once more, so that the window of the pass before is checked too.
        compare(&decode_check::checksum(&bytes, self.expected)?, &expected)
    }
}

fn compare(found: &Checksum, expected: &Checksum) -> Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("delivered {found:?} instead of {expected:?}")) }
}
