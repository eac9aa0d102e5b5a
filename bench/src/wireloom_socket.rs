//! `wireloom::WebSocket` over the same in-memory transport as the rivals.

use crate::checksum::Sink;
use crate::contestant::{Reader, Writer};
use crate::corpus::End;
use crate::wire::{Outbox, Wire, run};
use bytes::Bytes;
use tokio::runtime::{Builder, Runtime};
use wireloom::wireloom_ws::Role;
use wireloom::wireloom_ws::handshake::Negotiated;
use wireloom::{WebSocket, WebSocketConfig};

/// A WebSocket, and the runtime whose clock it was opened with.
struct Socket {
    socket: WebSocket,
    runtime: Runtime,
}

impl Socket {
    fn open(wire: Wire, end: End) -> Self {
        let role = match end {
            End::Client => Role::Client,
            End::Server => Role::Server,
        };
        let runtime = Builder::new_current_thread().enable_time().build().expect("a runtime");
        let guard = runtime.enter();
        let config = WebSocketConfig::default();
        let socket = WebSocket::from_transport(wire, role, Negotiated::default(), None, config, &[]);
        drop(guard);
        Self { socket, runtime }
    }
}

/// Reads by `recv`: messages are borrowed from the read buffer.
pub(crate) struct Borrowing(Socket);

impl Reader for Borrowing {
    fn open(bytes: Bytes, end: End) -> Self {
        Self(Socket::open(Wire::reading(bytes), end))
    }

    fn read<S: Sink>(&mut self, messages: usize, sink: &mut S) {
        let Socket { socket, runtime } = &mut self.0;
        let _guard = runtime.enter();
        run(async {
            for _ in 0..messages {
                let message = socket.recv().await.expect("an honest peer").expect("an endless peer");
                sink.message(message.as_bytes());
            }
        });
    }
}

/// Reads by `recv_owned`: the application owns the messages.
pub(crate) struct Keeping(Socket);

impl Reader for Keeping {
    fn open(bytes: Bytes, end: End) -> Self {
        Self(Socket::open(Wire::reading(bytes), end))
    }

    fn read<S: Sink>(&mut self, messages: usize, sink: &mut S) {
        let Socket { socket, runtime } = &mut self.0;
        let _guard = runtime.enter();
        run(async {
            for _ in 0..messages {
                let message = socket.recv_owned().await.expect("an honest peer").expect("an endless peer");
                sink.message(message.as_bytes());
            }
        });
    }
}

/// Writes by `send` from a slice: a client masks a copy, so that it needs no payload of its own.
pub(crate) struct SocketWriter(Socket);

impl Writer for SocketWriter {
    fn open(outbox: Outbox, end: End) -> Self {
        Self(Socket::open(Wire::writing(outbox), end))
    }

    #[inline]
    fn write(&mut self, message: &Bytes) {
        run(async { self.0.socket.send(&message[..]).await.expect("an open connection") });
    }
}
