//! Wireloom's core, driven as the tokio crate drives it: reads go into one reused aligned buffer, at whose end no message is
//! expected to be split, or directly to the end of a large message; pending output is transmitted after every read.

use crate::bandwidth::Aligned;
use crate::checksum::Sink;
use crate::contestant::{Reader, Writer};
use crate::corpus::End;
use crate::decode_check::Takeover;
use crate::wire::{Feed, Outbox, READ_BUFFER_LEN, READ_LEN_MAX};
use bytes::Bytes;
use std::time::Duration;
use wireloom_ws::deflate::{DeflateConfig, DeflateParams};
use wireloom_ws::{Config, Connection, Delivery, Event, Inbound, Outbound, Step};

/// The length of the read buffer for frames that arrive back to back. It receives little of a large message before the
/// rest is read directly into the message.
pub(crate) const SMALL: usize = READ_BUFFER_LEN;

/// The length of the read buffer if the workload sets the length of a read.
pub(crate) const LARGE: usize = READ_LEN_MAX;

/// The length of the tokio crate's read buffer, in which messages of 64 KiB are completed.
pub(crate) const SHARED: usize = 256 << 10;

/// Longer messages are assembled, because they do not fit into the longest read buffer. As in the tokio crate.
const IN_PLACE_LEN_MAX: usize = SHARED - 1;

/// Fewer missing bytes of a message that is being assembled are read into the buffer. As in the tokio crate.
const DIRECT_LEN_MIN: u64 = 16 << 10;

/// With fewer missing bytes a message is completed in the buffer. As in the tokio crate.
const IN_PLACE_MISSING_MAX: usize = 64 << 10;

/// Time is an argument of the core. No deadline matters here, so it does not advance.
const NOW: Duration = Duration::from_secs(1);

fn connection(end: End, delivery: Delivery, deflate: Option<(Takeover, u8)>) -> Connection {
    let mut config = Config::default();
    config.delivery = delivery;
    let negotiated = deflate.map(|(takeover, level)| {
        let alone = takeover == Takeover::No;
        let params = DeflateParams {
            server_no_context_takeover: alone,
            client_no_context_takeover: alone,
            ..DeflateParams::default()
        };
        (params, DeflateConfig { level, ..DeflateConfig::default() })
    });
    let negotiated = negotiated.as_ref().map(|(params, config)| (*params, config));
    match end {
        // A driver draws the seed once for each connection; its value does not affect the cost.
        End::Client => Connection::client(config, negotiated, [7; 32], NOW),
        End::Server => Connection::server(config, negotiated, NOW),
    }
}

/// A connection that delivers chunks, or compressed messages.
struct Driver {
    connection: Connection,
    feed: Feed,
    buffer: Aligned,
    /// The range of the buffer that has not been handled: `at <= filled`.
    at: usize,
    filled: usize,
}

impl Driver {
    fn new(bytes: Bytes, connection: Connection, buffer_len: usize) -> Self {
        Self { connection, feed: Feed::new(bytes), buffer: Aligned::new(buffer_len), at: 0, filled: 0 }
    }

    fn read<S: Sink>(&mut self, messages: usize, sink: &mut S) {
        let mut missing = messages;
        while missing > 0 {
            let buffer = self.buffer.as_mut_slice();
            while self.at < self.filled {
                let rest = &mut buffer[self.at..self.filled];
                let (used, event) = self.connection.handle_input(NOW, rest).expect("an honest peer");
                let ended = event.is_some_and(|event| hand_out(event, sink));
                self.at += used;
                if ended {
                    missing -= 1;
                    if missing == 0 {
                        return;
                    }
                }
            }
            if self.connection.wants_write() {
                drop(self.connection.take_transmit());
            }
            if let Some(mut slot) = self.connection.recv_slot() {
                // No more at a time than the buffer holds, so that the bytes are unmasked while they are in the cache.
                let len = slot.len().min(buffer.len());
                let len = self.feed.recv(&mut slot[..len]);
                let event = slot.filled(NOW, len).expect("an honest peer");
                missing -= usize::from(event.is_some_and(|event| hand_out(event, sink)));
            } else {
                self.at = 0;
                self.filled = self.feed.recv(buffer);
            }
        }
    }
}

/// Passes an event to `sink`; returns whether a message has ended. The event is matched here and never borrowed: a
/// borrowed event has to be in memory instead of registers, which doubles the cost of a small message.
#[inline(always)]
fn hand_out<S: Sink>(event: Event<'_>, sink: &mut S) -> bool {
    match event {
        Event::Text(text) => sink.message(text.as_bytes()),
        Event::Binary(data) => sink.message(&data),
        Event::Chunk(chunk) => {
            sink.chunk(chunk.data);
            if chunk.fin {
                sink.end();
            }
            return chunk.fin;
        }
        _ => unreachable!("nothing else was sent"),
    }
    true
}

/// A connection that delivers whole messages, from the read buffer or assembled.
struct MessageDriver {
    reader: wireloom_ws::Reader,
    outbound: Outbound,
    feed: Feed,
    /// The length of the last message.
    last_len: usize,
}

impl MessageDriver {
    fn new(bytes: Bytes, end: End, buffer_len: usize) -> Self {
        let (inbound, outbound) = connection(end, Delivery::Messages, None).split();
        let mut reader = wireloom_ws::Reader::new(inbound);
        reader.set_buffer(vec![0; buffer_len + 64].into());
        Self { reader, outbound, feed: Feed::new(bytes), last_len: 0 }
    }

    /// Reads until there is a message.
    #[inline(never)]
    fn find(&mut self) {
        let Self { reader, outbound, feed, last_len } = self;
        loop {
            if !reader.should_read_on(IN_PLACE_MISSING_MAX)
                && matches!(reader.decode().expect("an honest peer"), Step::Message)
            {
                break;
            }
            if outbound.wants_write() {
                drop(outbound.take_transmit());
            }
            let mut space;
            let room = if reader.has_slot() && reader.payload_remaining() >= DIRECT_LEN_MIN {
                space = reader.space();
                space.bytes()
            } else {
                space = reader.buffer_space();
                space.bytes_for(*last_len, IN_PLACE_LEN_MAX)
            };
            let len = feed.recv(room);
            if space.filled(len).expect("an honest peer") {
                break;
            }
        }
        *last_len = reader.message().payload().len();
    }
}

/// Messages are borrowed.
pub(crate) struct Assembling<const BUFFER_LEN: usize>(MessageDriver);

impl<const BUFFER_LEN: usize> Reader for Assembling<BUFFER_LEN> {
    fn open(bytes: Bytes, end: End) -> Self {
        Self(MessageDriver::new(bytes, end, BUFFER_LEN))
    }

    fn read<S: Sink>(&mut self, messages: usize, sink: &mut S) {
        for _ in 0..messages {
            if !self.0.reader.next_message() {
                self.0.find();
            }
            let message = self.0.reader.message();
            match message.text() {
                Some(text) => sink.message(text.as_bytes()),
                None => sink.message(message.payload()),
            }
        }
    }
}

/// A connection that delivers chunks of messages as they arrive, borrowed from the read buffer.
pub(crate) struct Chunking(Driver);

impl Reader for Chunking {
    fn open(bytes: Bytes, end: End) -> Self {
        Self(Driver::new(bytes, connection(end, Delivery::Chunks, None), LARGE))
    }

    fn read<S: Sink>(&mut self, messages: usize, sink: &mut S) {
        self.0.read(messages, sink);
    }
}

/// A connection that delivers whole messages, owned by the application.
pub(crate) struct Keeping<const BUFFER_LEN: usize> {
    reader: wireloom_ws::Reader,
    feed: Feed,
}

impl<const BUFFER_LEN: usize> Reader for Keeping<BUFFER_LEN> {
    fn open(bytes: Bytes, end: End) -> Self {
        let (inbound, _) = connection(end, Delivery::Messages, None).split();
        let mut reader = wireloom_ws::Reader::new(inbound);
        reader.set_buffer(vec![0; BUFFER_LEN].into());
        Self { reader, feed: Feed::new(bytes) }
    }

    fn read<S: Sink>(&mut self, messages: usize, sink: &mut S) {
        for _ in 0..messages {
            while !matches!(self.reader.decode().expect("an honest peer"), Step::Message) {
                let mut space = self.reader.space();
                let room = space.bytes();
                let len = room.len().min(BUFFER_LEN);
                let len = self.feed.recv(&mut room[..len]);
                if space.filled(len).expect("an honest peer") {
                    break;
                }
            }
            sink.message(self.reader.take_message().as_bytes());
        }
    }
}

/// A connection that reads compressed messages.
pub(crate) struct Inflating<const TAKEOVER: bool>(Driver);

impl<const TAKEOVER: bool> Reader for Inflating<TAKEOVER> {
    fn open(bytes: Bytes, end: End) -> Self {
        let takeover = if TAKEOVER { Takeover::Yes } else { Takeover::No };
        Self(Driver::new(bytes, connection(end, Delivery::Messages, Some((takeover, 6))), SMALL))
    }

    fn read<S: Sink>(&mut self, messages: usize, sink: &mut S) {
        self.0.read(messages, sink);
    }
}

/// The receiving half in chunks, which are borrowed from the read buffer: nothing is assembled.
pub(crate) struct Decoding<const BUFFER_LEN: usize> {
    inbound: Inbound,
    feed: Feed,
    buffer: Aligned,
    at: usize,
    filled: usize,
}

impl<const BUFFER_LEN: usize> Reader for Decoding<BUFFER_LEN> {
    fn open(bytes: Bytes, end: End) -> Self {
        let (inbound, _) = connection(end, Delivery::Chunks, None).split();
        Self { inbound, feed: Feed::new(bytes), buffer: Aligned::new(BUFFER_LEN), at: 0, filled: 0 }
    }

    fn read<S: Sink>(&mut self, messages: usize, sink: &mut S) {
        let mut missing = messages;
        while missing > 0 {
            let buffer = self.buffer.as_mut_slice();
            if self.at == self.filled {
                self.at = 0;
                self.filled = self.feed.recv(buffer);
            }
            let rest = &mut buffer[self.at..self.filled];
            let (used, event) = self.inbound.handle_input(rest).expect("an honest peer");
            self.at += used;
            match event {
                None => {}
                Some(Event::Text(text)) => {
                    sink.message(text.as_bytes());
                    missing -= 1;
                }
                Some(Event::Binary(data)) => {
                    sink.message(&data);
                    missing -= 1;
                }
                Some(Event::Chunk(chunk)) => {
                    sink.chunk(chunk.data);
                    if chunk.fin {
                        sink.end();
                        missing -= 1;
                    }
                }
                Some(_) => unreachable!("nothing else was sent"),
            }
        }
    }
}

/// A connection that writes; each message is flushed.
pub(crate) struct Sending {
    connection: Connection,
    outbox: Outbox,
    text: bool,
}

impl Sending {
    /// A writer of compressed text.
    pub(crate) fn deflating(outbox: Outbox, end: End, takeover: Takeover, level: u32) -> Self {
        let level = level as u8;
        Self { connection: connection(end, Delivery::Messages, Some((takeover, level))), outbox, text: true }
    }
}

impl Writer for Sending {
    fn open(outbox: Outbox, end: End) -> Self {
        Self { connection: connection(end, Delivery::Messages, None), outbox, text: false }
    }

    #[inline]
    fn write(&mut self, message: &Bytes) {
        let sent = if self.text {
            // An application has a `str` already. Rivals accept bytes without a check, so only Wireloom pays for this
            // one.
            self.connection.send_text(std::str::from_utf8(message).expect("a corpus of text"))
        } else {
            self.connection.send_binary(message)
        };
        sent.expect("an open connection");
        loop {
            let mut slices: [&[u8]; 4] = [&[]; 4];
            let count = self.connection.poll_transmit(&mut slices);
            if count == 0 {
                return;
            }
            let len = slices[..count].iter().map(|slice| self.outbox.send(slice)).sum();
            self.connection.transmitted(len);
        }
    }
}
