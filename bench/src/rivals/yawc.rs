//! yawc: frames from an async stream, with simdutf8 and zlib-rs; and its codec alone, for writing.

use super::MESSAGE_LEN_MAX;
use crate::checksum::Sink;
use crate::contestant::{Reader, Writer};
use crate::corpus::End;
use crate::decode_check::Takeover;
use crate::wire::{Outbox, READ_LEN_MAX, Wire, poll};
use bytes::{Bytes, BytesMut};
use futures_sink::Sink as _;
use std::pin::Pin;
use tokio_util::codec::Encoder as _;
use yawc::codec::Encoder;
use yawc::frame::{Frame, OpCode};
use yawc::{CompressionLevel, DeflateOptions, Options, Role, WebSocket};

fn role(end: End) -> Role {
    match end {
        End::Client => Role::Client,
        End::Server => Role::Server,
    }
}

fn options() -> Options {
    Options::default()
        .with_limits(MESSAGE_LEN_MAX, 2 * MESSAGE_LEN_MAX)
        // A buffer of 16 KiB would be a sixth faster for messages of 1 KiB, and nearly twice as slow for 1 MiB.
        .with_read_buffer_capacity(READ_LEN_MAX)
        .with_utf8()
        .without_compression()
}

/// Options and the agreed extension for permessage-deflate at `level`.
fn deflate(takeover: Takeover, level: u32) -> (Options, &'static str) {
    let alone = takeover == Takeover::No;
    let mut options = options();
    options.compression = Some(DeflateOptions {
        level: CompressionLevel::new(level),
        server_no_context_takeover: alone,
        client_no_context_takeover: alone,
        ..DeflateOptions::default()
    });
    let agreed = if alone {
        "permessage-deflate; server_no_context_takeover; client_no_context_takeover"
    } else {
        "permessage-deflate"
    };
    (options, agreed)
}

fn hand_out<S: Sink>(socket: &mut WebSocket<Wire>, messages: usize, sink: &mut S) {
    for _ in 0..messages {
        let frame = poll(socket, |socket, cx| socket.poll_next_frame(cx)).expect("an honest peer");
        assert!(matches!(frame.opcode(), OpCode::Text | OpCode::Binary));
        sink.message(frame.payload());
    }
}

/// A connection that reads.
pub(crate) struct Yawc(WebSocket<Wire>);

impl Reader for Yawc {
    fn open(bytes: Bytes, end: End) -> Self {
        Self(WebSocket::from_stream(Wire::reading(bytes), role(end), options()).expect("lawful options"))
    }

    fn read<S: Sink>(&mut self, messages: usize, sink: &mut S) {
        hand_out(&mut self.0, messages, sink);
    }
}

/// A connection that reads compressed messages.
pub(crate) struct Inflating<const TAKEOVER: bool>(WebSocket<Wire>);

impl<const TAKEOVER: bool> Reader for Inflating<TAKEOVER> {
    fn open(bytes: Bytes, end: End) -> Self {
        let (options, agreed) = deflate(if TAKEOVER { Takeover::Yes } else { Takeover::No }, 6);
        let wire = Wire::reading(bytes);
        let socket = WebSocket::from_stream_with_extensions(wire, role(end), Some(agreed), options);
        Self(socket.expect("lawful options"))
    }

    fn read<S: Sink>(&mut self, messages: usize, sink: &mut S) {
        hand_out(&mut self.0, messages, sink);
    }
}

/// A connection that writes, flushed after each message.
pub(crate) struct SocketWriter {
    socket: WebSocket<Wire>,
    text: bool,
}

impl SocketWriter {
    /// A writer of compressed text.
    pub(crate) fn deflating(outbox: Outbox, end: End, takeover: Takeover, level: u32) -> Self {
        let (options, agreed) = deflate(takeover, level);
        let wire = Wire::writing(outbox);
        let socket = WebSocket::from_stream_with_extensions(wire, role(end), Some(agreed), options);
        Self { socket: socket.expect("lawful options"), text: true }
    }
}

impl Writer for SocketWriter {
    fn open(outbox: Outbox, end: End) -> Self {
        let socket = WebSocket::from_stream(Wire::writing(outbox), role(end), options());
        Self { socket: socket.expect("lawful options"), text: false }
    }

    #[inline]
    fn write(&mut self, message: &Bytes) {
        let message = message.clone();
        let frame = if self.text { Frame::text(message) } else { Frame::binary(message) };
        poll(&mut self.socket, |socket, cx| Pin::new(socket).poll_ready(cx)).expect("an open connection");
        Pin::new(&mut self.socket).start_send(frame).expect("an open connection");
        poll(&mut self.socket, |socket, cx| Pin::new(socket).poll_flush(cx)).expect("an open connection");
    }
}

/// Its encoder, writing into a reused buffer.
pub(crate) struct CodecWriter {
    encoder: Encoder,
    outbox: Outbox,
    buffer: BytesMut,
}

impl Writer for CodecWriter {
    fn open(outbox: Outbox, end: End) -> Self {
        Self { encoder: Encoder::new(role(end)), outbox, buffer: BytesMut::new() }
    }

    #[inline]
    fn write(&mut self, message: &Bytes) {
        self.buffer.clear();
        self.encoder.encode(Frame::binary(message.clone()), &mut self.buffer).expect("an open connection");
        self.outbox.send(&self.buffer);
    }
}
