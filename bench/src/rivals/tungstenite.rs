//! tungstenite: a blocking stream, messages as owned `Bytes`.

use super::MESSAGE_LEN_MAX;
use crate::checksum::Sink;
use crate::contestant::{Reader, Writer};
use crate::corpus::End;
use crate::wire::{Outbox, Wire};
use bytes::Bytes;
use tungstenite::protocol::{Role, WebSocketConfig};
use tungstenite::{Message, WebSocket};

/// Its read buffer by default.
pub(crate) const DEFAULT_BUFFER_LEN: usize = 128 << 10;

/// A connection with a read buffer of `BUFFER_LEN` bytes.
pub(crate) struct Tungstenite<const BUFFER_LEN: usize>(WebSocket<Wire>);

fn connection<const BUFFER_LEN: usize>(wire: Wire, end: End) -> Tungstenite<BUFFER_LEN> {
    let role = match end {
        End::Client => Role::Client,
        End::Server => Role::Server,
    };
    let config = WebSocketConfig::default()
        .read_buffer_size(BUFFER_LEN)
        .max_message_size(Some(MESSAGE_LEN_MAX))
        .max_frame_size(Some(MESSAGE_LEN_MAX));
    Tungstenite(WebSocket::from_raw_socket(wire, role, Some(config)))
}

impl<const BUFFER_LEN: usize> Reader for Tungstenite<BUFFER_LEN> {
    fn open(bytes: Bytes, end: End) -> Self {
        connection(Wire::reading(bytes), end)
    }

    fn read<S: Sink>(&mut self, messages: usize, sink: &mut S) {
        for _ in 0..messages {
            match self.0.read().expect("an honest peer") {
                Message::Text(text) => sink.message(text.as_bytes()),
                Message::Binary(data) => sink.message(&data),
                other => unreachable!("{other:?} was not sent"),
            }
        }
    }
}

impl<const BUFFER_LEN: usize> Writer for Tungstenite<BUFFER_LEN> {
    fn open(outbox: Outbox, end: End) -> Self {
        connection(Wire::writing(outbox), end)
    }

    #[inline]
    fn write(&mut self, message: &Bytes) {
        self.0.send(Message::Binary(message.clone())).expect("an open connection");
    }
}
