//! An open WebSocket over any transport: the core, the transport and their clock. The opening handshake comes before, in the server
//! and the client.
//!
//! ```text
//!            read -> buffer of the thread -> core: unmask, validate in place -> Message, borrowed
//! Receiver --|                                 | pongs, close
//!            |                                 v
//!            +------ one write <------- write batch <---- Sender: frames
//! ```
//!
//! Each half has its half of the core. What both use is behind a mutex, which the receiver locks for each read and the sender for each
//! message, neither while it waits. Messages that arrived together are received without a lock, and nothing is decoded while it is held:
//!
//! ```text
//! state   link     the transport, what waits for it, how it ended; writes the queue of the session
//!         flush    whether all is written, and what will write the rest
//!         slow     the deadlines of a peer that does not read
//!         session  the outbound half of the core, closing, deadlines, events for an observer; no input or output
//!         slot     (`active_receiver`) the state of the receiver while it waits; taken by the poll that reads and decodes
//! ```
//!
//! Layers: `clock`, `interned`, `observer`, `prepared`, `waiters` → `config`, `message` → `flush` → `session`, `slow` →
//! `active_receiver`, `link` → `state` → `receiver` → `sender` → `driven`, `fanout` → `accept`, `pump`, `stream`.

mod accept;
mod active_receiver;
mod clock;
mod config;
mod driven;
mod fanout;
mod flush;
mod interned;
mod link;
mod message;
#[cfg(test)]
mod model;
mod observer;
mod prepared;
mod pump;
mod receiver;
mod sender;
mod session;
mod slow;
mod state;
mod stream;
mod waiters;

use std::sync::Arc;
use std::time::Duration;

use wireloom_ws::deflate::DeflateConfig;
use wireloom_ws::handshake::Negotiated;
use wireloom_ws::{CloseCode, Connection, End, Role};

pub use accept::accept;
pub(crate) use config::SharedConfig;
pub use config::{IoUring, SlowPeer, WebSocketConfig};
pub use fanout::{Delivery, Fanout};
pub use link::Traffic;
pub use message::{Message, OwnedMessage, Payload, Utf8Bytes};
pub use observer::{Observer, ObserverEvent};
pub use prepared::PreparedMessage;
pub use pump::Session;
pub use receiver::{Receiver, Receiving};
pub use sender::{Permit, Sender, Sending};

use crate::error::WebSocketError;
use crate::memory::Account;
use crate::transport::{Io, Transport};
pub(crate) use driven::Driven;
pub(crate) use state::Shared;

/// An open WebSocket.
///
/// ```no_run
/// # async fn example() -> Result<(), wireloom::Error> {
/// let mut socket = wireloom::connect("ws://127.0.0.1:8080/echo").await?;
/// socket.send("hello").await?;
/// while let Some(message) = socket.recv().await? {
///     println!("{}", message.as_text().unwrap_or("(binary)"));
///     break;
/// }
/// socket.close(wireloom::CloseCode::NORMAL, "bye").await?;
/// # Ok(())
/// # }
/// ```
///
/// A message is borrowed until the socket is used again, which saves a copy. To answer with a borrowed message, use the
/// halves; this is the fastest loop:
///
/// ```
/// # async fn example(socket: wireloom::WebSocket) -> Result<(), wireloom::Error> {
/// let (mut sender, mut receiver) = socket.split();
/// while let Some(message) = receiver.recv().await? {
///     sender.send(message).await?;
/// }
/// # Ok(())
/// # }
/// ```
///
/// Without halves, receive owned messages; that takes an allocation and a copy for each:
///
/// ```
/// # async fn example(mut socket: wireloom::WebSocket) -> Result<(), wireloom::Error> {
/// while let Some(message) = socket.recv_owned().await? {
///     socket.send(message).await?;
/// }
/// # Ok(())
/// # }
/// ```
///
/// Either way the answers to messages that arrived together leave together.
///
/// Dropping it while it is open sends a Close frame behind what was sent before: see [`close_on_drop`](Sender::close_on_drop). A task of
/// the runtime writes what the transport does not accept at once, as long as the peer reads at least 64 KiB, or all of it, in each
/// [`close_timeout`](wireloom_ws::Config::close_timeout), and keeps the transport until the peer has closed it, or for that time. Outside of
/// a runtime, or in one without timers, a client loses the rest.
pub struct WebSocket {
    sender: Sender,
    receiver: Receiver,
}

impl WebSocket {
    /// The WebSocket over a transport on which the opening handshake is done. `arrived` are bytes that were read behind it. Its memory is
    /// counted in `account`.
    pub(crate) fn open(
        io: Io,
        role: Role,
        negotiated: Negotiated,
        deflate: Option<&DeflateConfig>,
        config: SharedConfig,
        arrived: &[u8],
        account: &Account,
    ) -> Self {
        let defaults = DeflateConfig::default();
        let deflate = negotiated.deflate.map(|params| (params, deflate.unwrap_or(&defaults)));
        let core = match role {
            Role::Server => Connection::server(config.config.core.clone(), deflate, clock::now()),
            Role::Client => Connection::client(config.config.core.clone(), deflate, seed(), clock::now()),
        };
        let shared = Shared::new(core, io, config, negotiated, arrived, account);
        let receiver = Receiver::new(shared.clone());
        Self { sender: Sender::new(shared), receiver }
    }

    /// The WebSocket over any transport, for opening handshakes of your own (with
    /// [`wireloom_ws::handshake`], or by an HTTP library that upgrades). `deflate` is how messages are compressed, if that was negotiated:
    /// `None` for the defaults. `arrived` are bytes that were read behind the handshake.
    pub fn from_transport(
        transport: impl Transport,
        role: Role,
        negotiated: Negotiated,
        deflate: Option<&DeflateConfig>,
        config: WebSocketConfig,
        arrived: &[u8],
    ) -> Self {
        let account = Account::default();
        Self::open(Io::of(transport), role, negotiated, deflate, config.into(), arrived, &account)
    }

    /// The subprotocol that was agreed upon.
    pub fn subprotocol(&self) -> Option<&str> {
        self.shared().subprotocol()
    }

    /// Whether permessage-deflate was agreed upon.
    pub fn is_compressed(&self) -> bool {
        self.shared().is_compressed()
    }

    /// The next message, borrowed until the socket is used again; see [`Receiver::recv`], also for cancel safety. To send it back,
    /// [`split`](Self::split) the socket, or use [`recv_owned`](Self::recv_owned).
    ///
    /// # Errors
    /// As for [`Receiver::recv`].
    #[inline]
    pub fn recv(&mut self) -> Receiving<'_> {
        self.receiver.recv()
    }

    /// The next message, owned; see [`Receiver::recv_owned`].
    ///
    /// # Errors
    /// As for [`Receiver::recv_owned`].
    pub async fn recv_owned(&mut self) -> Result<Option<OwnedMessage>, WebSocketError> {
        self.receiver.recv_owned().await
    }

    /// Sends a message; see [`Sender::send`].
    ///
    /// # Errors
    /// As for [`Sender::send`].
    #[inline]
    pub fn send<'a, M: Into<Payload<'a>>>(&'a mut self, message: M) -> Sending<'a, M> {
        self.sender.send(message)
    }

    /// Queues a message; see [`Sender::feed`].
    ///
    /// # Errors
    /// As for [`Sender::feed`].
    pub async fn feed(&mut self, message: impl Into<Payload<'_>>) -> Result<(), WebSocketError> {
        self.sender.feed(message).await
    }

    /// Writes all queued bytes; see [`Sender::flush`].
    ///
    /// # Errors
    /// As for [`Sender::flush`].
    pub async fn flush(&mut self) -> Result<(), WebSocketError> {
        self.sender.flush().await
    }

    /// Sends a ping; see [`Sender::ping`].
    ///
    /// # Errors
    /// As for [`Sender::ping`].
    pub async fn ping(&mut self, payload: &[u8]) -> Result<(), WebSocketError> {
        self.sender.ping(payload).await
    }

    /// Closes: sends the Close frame, drops messages that still arrive, and waits for the peer's answer for at most
    /// [`close_timeout`](wireloom_ws::Config::close_timeout).
    ///
    /// # Cancel safety
    /// Once it has been polled the Close frame is queued; dropping the future gives up the wait for the answer.
    ///
    /// # Errors
    /// A code that may not be sent, a reason over 123 bytes; the transport failed.
    pub async fn close(&mut self, code: CloseCode, reason: &str) -> Result<(), WebSocketError> {
        self.sender.begin_close(code, reason)?;
        // The receiver writes the queue meanwhile: a peer that waits to be read may read nothing before.
        while self.receiver.recv().await?.is_some() {}
        // An earlier failure to write.
        self.sender.close(code, reason).await
    }

    /// The close code for when this is dropped while open; see [`Sender::close_on_drop`].
    pub fn close_on_drop(&mut self, code: CloseCode) {
        self.sender.close_on_drop(code);
    }

    /// Begins the closing handshake with this code after this time; see [`Sender::close_after`].
    ///
    /// # Errors
    /// As for [`Sender::close_after`].
    pub fn close_after(
        &mut self,
        deadline: impl Into<Option<(Duration, CloseCode)>>,
    ) -> Result<(), WebSocketError> {
        self.sender.close_after(deadline)
    }

    /// Sends a fragment of a message that is too large to hold; see [`Sender::send_chunk`].
    ///
    /// # Errors
    /// As for [`Sender::send_chunk`].
    pub async fn send_chunk(
        &mut self,
        chunk: impl Into<Payload<'_>>,
        last: bool,
    ) -> Result<(), WebSocketError> {
        self.sender.send_chunk(chunk, last).await
    }

    /// Passes every message, and the end of the connection, to `session`, instead of a loop over [`recv`](Self::recv).
    ///
    /// # Cancel safety
    /// Dropping the future drops the WebSocket; see [`close_on_drop`](Self::close_on_drop).
    ///
    /// # Errors
    /// As for `recv`, and the error of the session: then the connection is closed with 1011.
    pub async fn pump(self, session: impl Session) -> Result<Option<End>, WebSocketError> {
        let shared = self.sender.shared.clone();
        Driven::new(&shared, Box::pin(pump::run(self, session))).await
    }

    /// Runs a future that uses this WebSocket as the server runs its handlers: all messages that one poll of it sends leave in one
    /// write at the end of the poll. It is for clients, and for transports of other servers, that send many messages; without it
    /// everything works the same, at some more cost for each message.
    ///
    /// ```
    /// # async fn example(socket: wireloom::WebSocket) -> Result<(), wireloom::Error> {
    /// socket
    ///     .drive(|socket| async move {
    ///         let (mut sender, mut receiver) = socket.split();
    ///         while let Some(message) = receiver.recv().await? {
    ///             sender.send(message).await?;
    ///         }
    ///         Ok(())
    ///     })
    ///     .await
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// As for the future that `run` returns.
    pub fn drive<F, Fut>(self, run: F) -> impl Future<Output = Fut::Output> + use<F, Fut>
    where
        F: FnOnce(Self) -> Fut,
        Fut: Future,
    {
        // Not an async function, whose future would keep room for the WebSocket beside the future of `run`.
        let shared = self.shared().clone();
        Driven::new(&shared, Box::pin(run(self)))
    }

    /// The round-trip time that the last answered ping has measured; see [`Sender::latency`].
    pub fn latency(&self) -> Option<Duration> {
        self.sender.latency()
    }

    /// Whether messages can be sent; see [`Sender::is_open`].
    pub fn is_open(&self) -> bool {
        self.sender.is_open()
    }

    /// Why the connection ended, and who began it; `None` while it is open.
    pub fn end(&self) -> Option<End> {
        self.receiver.end()
    }

    /// Bytes transferred so far in each direction, without the handshake.
    pub fn traffic(&self) -> Traffic {
        self.receiver.traffic()
    }

    /// Both halves, for use in one task or in two.
    pub fn split(self) -> (Sender, Receiver) {
        (self.sender, self.receiver)
    }

    /// The transport, and the bytes that were read from it and not decoded, for protocols that continue on it. Nothing is sent for
    /// this: [`flush`](Self::flush) before, or messages that are queued are lost; so is a message of which a part has arrived. For
    /// clones of the [`Sender`] the WebSocket is closed.
    ///
    /// ```
    /// # async fn example(socket: wireloom::WebSocket) {
    /// use std::any::Any;
    ///
    /// let (transport, read_ahead) = socket.into_inner();
    /// let tcp = (transport as Box<dyn Any>).downcast::<tokio::net::TcpStream>();
    /// # let _ = (tcp, read_ahead);
    /// # }
    /// ```
    pub fn into_inner(self) -> (Box<dyn Transport>, Vec<u8>) {
        let Self { sender, mut receiver } = self;
        let io = sender.shared.lock().take_io(WebSocketError::Closed);
        (io.into_transport(), receiver.take_input())
    }

    /// Both halves, borrowed.
    pub fn halves(&mut self) -> (&mut Sender, &mut Receiver) {
        (&mut self.sender, &mut self.receiver)
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.sender.shared
    }
}

impl std::fmt::Debug for WebSocket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WebSocket").field("subprotocol", &self.subprotocol()).finish_non_exhaustive()
    }
}

/// Fresh randomness for the masks (RFC 6455 §10.3).
fn seed() -> [u8; 32] {
    let mut seed = [0; 32];
    // It fails where there is no source of randomness at all: then no mask is safe.
    getrandom::getrandom(&mut seed).expect("the operating system's source of randomness");
    seed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::buffer;

    // tests/allocations/idle.rs counts the memory of idle connections.
    #[test]
    fn stays_small() {
        let halves = size_of::<WebSocket>();
        assert!(halves <= 32, "{halves}");
    }

    #[tokio::test]
    async fn compression_that_was_negotiated_needs_no_configuration() {
        let negotiated = Negotiated { deflate: Some(Default::default()), ..Negotiated::default() };
        let (client, server) = tokio::io::duplex(1 << 10);
        let open = |transport, role| {
            let config = WebSocketConfig::default();
            WebSocket::from_transport(transport, role, negotiated.clone(), None, config, &[])
        };
        let (mut client, mut server) = (open(client, Role::Client), open(server, Role::Server));
        assert!(client.is_compressed() && server.is_compressed());
        client.send(&[7; 10_000]).await.unwrap();
        assert_eq!(server.recv().await.unwrap().unwrap().as_bytes(), [7; 10_000]);
        assert!(server.traffic().bytes_received < 1_000);
    }

    // The buffer for bytes that were read ahead may be as long as one of the pool. A count below zero would be huge.
    #[tokio::test]
    async fn a_buffer_for_bytes_that_were_read_ahead_is_counted() {
        const POOLED_LEN: usize = 262_144;
        const HEADER_LEN: usize = 14;
        for len in [POOLED_LEN - 1, POOLED_LEN, POOLED_LEN + 1] {
            let arrived = wireloom_testing::frame::masked(0x82, vec![7; len - HEADER_LEN]);
            assert_eq!(arrived.len(), len);
            let open = |_| {
                let transport = tokio::io::empty();
                let config = WebSocketConfig::default();
                WebSocket::from_transport(
                    transport,
                    Role::Server,
                    Negotiated::default(),
                    None,
                    config,
                    &arrived,
                )
            };
            // More than a thread keeps.
            let mut sockets: Vec<_> = (0..8).map(open).collect();
            assert!(len != POOLED_LEN || buffer::large_count() >= sockets.len());
            for socket in &mut sockets {
                let message = socket.recv().await.unwrap().unwrap();
                assert_eq!(message.as_bytes().len(), len - HEADER_LEN);
                assert_eq!(socket.traffic().bytes_received, len as u64);
            }
            drop(sockets);
            assert!(buffer::large_count() < 1_000, "{}", buffer::large_count());
        }
    }
}
