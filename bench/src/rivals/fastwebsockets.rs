//! fastwebsockets: an async stream, with frames assembled by its `FragmentCollector`.

use super::MESSAGE_LEN_MAX;
use crate::checksum::Sink;
use crate::contestant::{Reader, Writer};
use crate::corpus::End;
use crate::wire::{Outbox, Wire, run};
use bytes::Bytes;
use fastwebsockets::{FragmentCollector, Frame, OpCode, Payload, Role, WebSocket};

fn connection(wire: Wire, end: End) -> WebSocket<Wire> {
    let role = match end {
        End::Client => Role::Client,
        End::Server => Role::Server,
    };
    let mut connection = WebSocket::after_handshake(wire, role);
    connection.set_max_message_size(MESSAGE_LEN_MAX);
    connection
}

/// A connection that reads.
pub(crate) struct Collector(FragmentCollector<Wire>);

impl Reader for Collector {
    fn open(bytes: Bytes, end: End) -> Self {
        Self(FragmentCollector::new(connection(Wire::reading(bytes), end)))
    }

    fn read<S: Sink>(&mut self, messages: usize, sink: &mut S) {
        // One future for all messages, so that nothing is set up for each.
        run(async {
            for _ in 0..messages {
                let frame = self.0.read_frame().await.expect("an honest peer");
                assert!(matches!(frame.opcode, OpCode::Text | OpCode::Binary));
                sink.message(&frame.payload);
            }
        });
    }
}

/// A connection that writes. fastwebsockets masks the payload in place, so the message, which the application keeps, is
/// copied into a reused buffer. That is cheaper than the allocation of `Payload::Borrowed`.
pub(crate) struct FrameWriter {
    connection: WebSocket<Wire>,
    scratch: Vec<u8>,
}

impl Writer for FrameWriter {
    fn open(outbox: Outbox, end: End) -> Self {
        Self { connection: connection(Wire::writing(outbox), end), scratch: Vec::new() }
    }

    #[inline]
    fn write(&mut self, message: &Bytes) {
        self.scratch.clear();
        self.scratch.extend_from_slice(message);
        let frame = Frame::binary(Payload::BorrowedMut(&mut self.scratch));
        run(self.connection.write_frame(frame)).expect("an open connection");
    }
}
