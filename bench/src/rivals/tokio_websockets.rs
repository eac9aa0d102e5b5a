//! tokio-websockets: `Stream` and `Sink` of messages with owned payloads; fastrand for its keys.

use super::MESSAGE_LEN_MAX;
use crate::checksum::Sink;
use crate::contestant::{Reader, Writer};
use crate::corpus::End;
use crate::wire::{Outbox, Wire, poll};
use bytes::Bytes;
use futures_core::Stream;
use futures_sink::Sink as _;
use std::pin::Pin;
use tokio_websockets::{ClientBuilder, Config, Limits, Message, ServerBuilder, WebSocketStream};

/// A connection.
pub(crate) struct TokioWebsockets(WebSocketStream<Wire>);

fn connection(wire: Wire, end: End) -> TokioWebsockets {
    let limits = Limits::default().max_payload_len(Some(MESSAGE_LEN_MAX));
    let config = Config::default().frame_size(MESSAGE_LEN_MAX);
    TokioWebsockets(match end {
        End::Client => ClientBuilder::new().limits(limits).config(config).take_over(wire),
        End::Server => ServerBuilder::new().limits(limits).config(config).serve(wire),
    })
}

impl Reader for TokioWebsockets {
    fn open(bytes: Bytes, end: End) -> Self {
        connection(Wire::reading(bytes), end)
    }

    fn read<S: Sink>(&mut self, messages: usize, sink: &mut S) {
        for _ in 0..messages {
            let message = poll(&mut self.0, |stream, cx| Pin::new(stream).poll_next(cx));
            let message = message.expect("an endless peer").expect("an honest peer");
            assert!(message.is_text() || message.is_binary());
            sink.message(message.as_payload());
        }
    }
}

impl Writer for TokioWebsockets {
    fn open(outbox: Outbox, end: End) -> Self {
        connection(Wire::writing(outbox), end)
    }

    #[inline]
    fn write(&mut self, message: &Bytes) {
        poll(&mut self.0, |stream, cx| Pin::new(stream).poll_ready(cx)).expect("an open connection");
        Pin::new(&mut self.0).start_send(Message::binary(message.clone())).expect("an open connection");
        poll(&mut self.0, |stream, cx| Pin::new(stream).poll_flush(cx)).expect("an open connection");
    }
}
