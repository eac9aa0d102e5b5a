//! nago-wss: messages from a stream of its own trait, which reads directly into the parse buffer.

use super::MESSAGE_LEN_MAX;
use crate::checksum::Sink;
use crate::contestant::{Reader, Writer};
use crate::corpus::End;
use crate::wire::{Outbox, Wire, run};
use bytes::Bytes;
use nago_wss::conn::{Connection, Role};
use nago_wss::proto::message::{Limits, Message};

/// A connection.
pub(crate) struct Nago(Connection<Wire>);

fn connection(wire: Wire, end: End) -> Nago {
    let role = match end {
        End::Client => Role::Client,
        End::Server => Role::Server,
    };
    let limits = Limits { max_frame: MESSAGE_LEN_MAX as u64, max_message: MESSAGE_LEN_MAX };
    Nago(Connection::new(wire, role, limits))
}

impl Reader for Nago {
    fn open(bytes: Bytes, end: End) -> Self {
        connection(Wire::reading(bytes), end)
    }

    fn read<S: Sink>(&mut self, messages: usize, sink: &mut S) {
        // One future for all messages, so that nothing is set up for each.
        run(async {
            for _ in 0..messages {
                match self.0.read().await.expect("an honest peer").expect("an endless peer") {
                    Message::Text(data) | Message::Binary(data) => sink.message(&data),
                    other => unreachable!("{other:?} was not sent"),
                }
            }
        });
    }
}

impl Writer for Nago {
    fn open(outbox: Outbox, end: End) -> Self {
        connection(Wire::writing(outbox), end)
    }

    #[inline]
    fn write(&mut self, message: &Bytes) {
        run(self.0.write(Message::Binary(message.clone()))).expect("an open connection");
    }
}
