//! sockudo-ws: its sans-I/O core as its own benchmarks drive it, and the stream on top, which knows how much of a large
//! frame is missing.

use super::MESSAGE_LEN_MAX;
use crate::checksum::Sink;
use crate::contestant::{Reader, Writer};
use crate::corpus::End;
use crate::decode_check::Takeover;
use crate::wire::{Feed, Outbox, READ_BUFFER_LEN, Wire, poll};
use bytes::{Bytes, BytesMut};
use futures_core::Stream;
use sockudo_ws::deflate::DeflateConfig;
use sockudo_ws::error::Result;
use sockudo_ws::protocol::{CompressedProtocol, Message, Protocol, Role};
use sockudo_ws::{Config, stream::WebSocketStream};
use std::pin::Pin;

fn role(end: End) -> Role {
    match end {
        End::Client => Role::Client,
        End::Server => Role::Server,
    }
}

fn protocol(end: End) -> Protocol {
    Protocol::new(role(end), MESSAGE_LEN_MAX, MESSAGE_LEN_MAX)
}

/// A core with permessage-deflate at `level`.
fn compressed(end: End, takeover: Takeover, level: u32) -> CompressedProtocol {
    let config = DeflateConfig {
        server_no_context_takeover: takeover == Takeover::No,
        client_no_context_takeover: takeover == Takeover::No,
        compression_level: level,
        ..DeflateConfig::default()
    };
    match end {
        End::Client => CompressedProtocol::client(MESSAGE_LEN_MAX, MESSAGE_LEN_MAX, config),
        End::Server => CompressedProtocol::server(MESSAGE_LEN_MAX, MESSAGE_LEN_MAX, config),
    }
}

/// The plain and the compressing core.
pub(crate) trait Process {
    /// Parses the messages in `buffer`.
    fn process(&mut self, buffer: &mut BytesMut, messages: &mut Vec<Message>) -> Result<()>;
    /// Appends a frame.
    fn encode(&mut self, message: &Message, buffer: &mut BytesMut) -> Result<()>;
}

impl Process for Protocol {
    #[inline]
    fn process(&mut self, buffer: &mut BytesMut, messages: &mut Vec<Message>) -> Result<()> {
        self.process_into(buffer, messages)
    }

    #[inline]
    fn encode(&mut self, message: &Message, buffer: &mut BytesMut) -> Result<()> {
        self.encode_message(message, buffer)
    }
}

impl Process for CompressedProtocol {
    #[inline]
    fn process(&mut self, buffer: &mut BytesMut, messages: &mut Vec<Message>) -> Result<()> {
        self.process_into(buffer, messages)
    }

    #[inline]
    fn encode(&mut self, message: &Message, buffer: &mut BytesMut) -> Result<()> {
        self.encode_message(message, buffer)
    }
}

/// The core, reading.
pub(crate) struct CoreReader<P> {
    protocol: P,
    feed: Feed,
    buffer: BytesMut,
    messages: Vec<Message>,
    /// How many of `messages` were passed to the sink.
    taken: usize,
}

impl<P: Process> CoreReader<P> {
    fn new(protocol: P, bytes: Bytes) -> Self {
        let buffer = BytesMut::with_capacity(READ_BUFFER_LEN);
        Self { protocol, feed: Feed::new(bytes), buffer, messages: Vec::new(), taken: 0 }
    }

    fn hand_out<S: Sink>(&mut self, count: usize, sink: &mut S) {
        let mut missing = count;
        loop {
            let ready = &self.messages[self.taken..];
            let ready = &ready[..ready.len().min(missing)];
            for message in ready {
                assert!(message.is_text() || message.is_binary());
                sink.message(message.as_bytes());
            }
            self.taken += ready.len();
            missing -= ready.len();
            if missing == 0 {
                return;
            }
            // The buffer can be reused only after the messages, which refer to it, are dropped.
            self.messages.clear();
            self.taken = 0;
            self.buffer.reserve(READ_BUFFER_LEN);
            self.buffer.extend_from_slice(self.feed.next(READ_BUFFER_LEN));
            self.protocol.process(&mut self.buffer, &mut self.messages).expect("an honest peer");
        }
    }
}

impl Reader for CoreReader<Protocol> {
    fn open(bytes: Bytes, end: End) -> Self {
        Self::new(protocol(end), bytes)
    }

    fn read<S: Sink>(&mut self, messages: usize, sink: &mut S) {
        self.hand_out(messages, sink);
    }
}

/// A core with permessage-deflate, reading.
pub(crate) struct Inflating<const TAKEOVER: bool>(CoreReader<CompressedProtocol>);

impl<const TAKEOVER: bool> Reader for Inflating<TAKEOVER> {
    fn open(bytes: Bytes, end: End) -> Self {
        let takeover = if TAKEOVER { Takeover::Yes } else { Takeover::No };
        Self(CoreReader::new(compressed(end, takeover, 6), bytes))
    }

    fn read<S: Sink>(&mut self, messages: usize, sink: &mut S) {
        self.0.hand_out(messages, sink);
    }
}

/// The core, writing into one buffer.
pub(crate) struct CoreWriter<P> {
    protocol: P,
    outbox: Outbox,
    buffer: BytesMut,
    text: bool,
}

impl CoreWriter<CompressedProtocol> {
    /// A writer of compressed text.
    pub(crate) fn deflating(outbox: Outbox, end: End, takeover: Takeover, level: u32) -> Self {
        Self { protocol: compressed(end, takeover, level), outbox, buffer: BytesMut::new(), text: true }
    }
}

impl<P: Process> CoreWriter<P> {
    #[inline]
    fn send(&mut self, message: &Bytes) {
        self.buffer.clear();
        let message =
            if self.text { Message::Text(message.clone()) } else { Message::Binary(message.clone()) };
        self.protocol.encode(&message, &mut self.buffer).expect("an open connection");
        self.outbox.send(&self.buffer);
    }
}

impl Writer for CoreWriter<Protocol> {
    fn open(outbox: Outbox, end: End) -> Self {
        Self { protocol: protocol(end), outbox, buffer: BytesMut::new(), text: false }
    }

    #[inline]
    fn write(&mut self, message: &Bytes) {
        self.send(message);
    }
}

impl Writer for CoreWriter<CompressedProtocol> {
    fn open(outbox: Outbox, end: End) -> Self {
        Self::deflating(outbox, end, Takeover::Yes, 6)
    }

    #[inline]
    fn write(&mut self, message: &Bytes) {
        self.send(message);
    }
}

/// The stream, reading.
pub(crate) struct StreamReader(WebSocketStream<Wire>);

impl Reader for StreamReader {
    fn open(bytes: Bytes, end: End) -> Self {
        // No timers: they need a runtime and cost time.
        let config = Config::builder()
            .max_frame_size(MESSAGE_LEN_MAX)
            .max_message_size(MESSAGE_LEN_MAX)
            .auto_ping(false)
            .idle_timeout(0)
            .build();
        Self(WebSocketStream::from_raw(Wire::reading(bytes), role(end), config))
    }

    fn read<S: Sink>(&mut self, messages: usize, sink: &mut S) {
        for _ in 0..messages {
            let message = poll(&mut self.0, |stream, cx| Pin::new(stream).poll_next(cx));
            let message = message.expect("an endless peer").expect("an honest peer");
            assert!(message.is_text() || message.is_binary());
            sink.message(message.as_bytes());
        }
    }
}
