//! The methods of [`Outbound`](crate::Outbound) on a whole [`Connection`].

use super::{Connection, Transport};
use crate::close::CloseCode;
use crate::end::End;
use crate::error::Error;
use crate::opcode::Kind;
use crate::outbound::BorrowedSend;
use crate::prepared::PreparedFrame;
use crate::role::Role;
use alloc::vec::Vec;
use bytes::Bytes;
use core::time::Duration;

/// Getters.
impl Connection {
    /// Which end this is.
    pub fn role(&self) -> Role {
        self.outbound.role()
    }

    /// Whether messages can be sent: no Close frame has been sent or received, and nothing has failed.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.outbound.is_open()
    }

    /// Why the connection ended or is ending, and which end began; `None` while it is open.
    pub fn end(&self) -> Option<&End> {
        self.outbound.end()
    }

    /// Whether both Close frames were exchanged (RFC 6455 §7.1.4).
    pub fn was_clean(&self) -> bool {
        self.outbound.was_clean()
    }

    /// Whether permessage-deflate was negotiated.
    pub fn is_compressed(&self) -> bool {
        self.outbound.is_compressed()
    }

    /// Whether [`queued_len_high`](crate::Limits::queued_len_high) bytes or more are queued: a sender should pause.
    #[inline]
    pub fn is_congested(&self) -> bool {
        self.outbound.is_congested()
    }

    /// Bytes that are queued for transmission.
    #[inline]
    pub fn queued_len(&self) -> usize {
        self.outbound.queued_len()
    }

    /// Whether anything is queued for transmission.
    #[inline]
    pub fn wants_write(&self) -> bool {
        self.outbound.wants_write()
    }

    /// Number of pings sent, keepalive pings included.
    pub fn pings_sent(&self) -> u32 {
        self.outbound.pings_sent()
    }

    /// The newest ping that was answered, counted from 1; 0 before the first.
    pub fn pings_answered(&self) -> u32 {
        self.outbound.pings_answered()
    }

    /// How to treat the transport once everything is transmitted.
    pub fn transport(&self) -> Transport {
        self.outbound.transport()
    }
}

/// Input other than bytes.
impl Connection {
    /// The transport's reading side has ended; see [`Outbound::handle_eof`](crate::Outbound::handle_eof).
    pub fn handle_eof(&mut self) {
        self.outbound.handle_eof();
    }

    /// The time is `now`: acts on the deadline of [`poll_timeout`](Self::poll_timeout) if that has passed.
    pub fn handle_timeout(&mut self, now: Duration) {
        self.outbound.handle_timeout(now);
    }

    /// The transport, which was full, has accepted bytes: the peer is alive.
    #[inline]
    pub fn handle_activity(&mut self, now: Duration) {
        self.outbound.handle_activity(now);
    }

    /// The transport's writing side has failed; see [`Outbound::handle_write_failed`](crate::Outbound::handle_write_failed).
    pub fn handle_write_failed(&mut self, now: Duration) {
        self.outbound.handle_write_failed(now);
    }
}

/// Commands.
impl Connection {
    /// Sends a text message; compressed if that was negotiated and the message is long enough.
    ///
    /// # Errors
    /// As for [`Outbound::send_text`](crate::Outbound::send_text).
    #[inline]
    pub fn send_text(&mut self, text: &str) -> Result<(), Error> {
        self.outbound.send_text(text)
    }

    /// Sends a binary message; compressed if that was negotiated and the message is long enough.
    ///
    /// # Errors
    /// As for [`Outbound::send_binary`](crate::Outbound::send_binary).
    #[inline]
    pub fn send_binary(&mut self, data: &[u8]) -> Result<(), Error> {
        self.outbound.send_binary(data)
    }

    /// Sends a binary message, without a copy where possible; see [`Outbound::send_bytes`](crate::Outbound::send_bytes).
    ///
    /// # Errors
    /// As for [`Outbound::send_bytes`](crate::Outbound::send_bytes).
    pub fn send_bytes(&mut self, data: Bytes) -> Result<(), Error> {
        self.outbound.send_bytes(data)
    }

    /// Sends a text message uncompressed: for data that is compressed already, or secret.
    ///
    /// # Errors
    /// As for [`Outbound::send_text_uncompressed`](crate::Outbound::send_text_uncompressed).
    pub fn send_text_uncompressed(&mut self, text: &str) -> Result<(), Error> {
        self.outbound.send_text_uncompressed(text)
    }

    /// Sends a binary message uncompressed: for data that is compressed already, or secret.
    ///
    /// # Errors
    /// As for [`Outbound::send_binary_uncompressed`](crate::Outbound::send_binary_uncompressed).
    pub fn send_binary_uncompressed(&mut self, data: &[u8]) -> Result<(), Error> {
        self.outbound.send_binary_uncompressed(data)
    }

    /// Sends a message whose payload is written from where it is; see
    /// [`Outbound::send_borrowed`](crate::Outbound::send_borrowed).
    ///
    /// # Errors
    /// As there.
    pub fn send_borrowed<'a>(&'a mut self, kind: Kind, payload: &'a [u8]) -> Result<BorrowedSend<'a>, Error> {
        self.outbound.send_borrowed(kind, payload)
    }

    /// Sends a fragment of a text message (RFC 6455 §5.4); `fin` ends the message.
    ///
    /// # Errors
    /// As for [`Outbound::send_text_chunk`](crate::Outbound::send_text_chunk).
    pub fn send_text_chunk(&mut self, chunk: &str, fin: bool) -> Result<(), Error> {
        self.outbound.send_text_chunk(chunk, fin)
    }

    /// Sends a fragment of a binary message (RFC 6455 §5.4); `fin` ends the message.
    ///
    /// # Errors
    /// As for [`Outbound::send_binary_chunk`](crate::Outbound::send_binary_chunk).
    pub fn send_binary_chunk(&mut self, chunk: &[u8], fin: bool) -> Result<(), Error> {
        self.outbound.send_binary_chunk(chunk, fin)
    }

    /// Sends a message that was encoded once for many connections.
    ///
    /// # Errors
    /// As for [`Outbound::send_prepared`](crate::Outbound::send_prepared).
    pub fn send_prepared(&mut self, frame: &PreparedFrame) -> Result<(), Error> {
        self.outbound.send_prepared(frame)
    }

    /// The window that a [`PreparedFrame`] for this connection may have; see
    /// [`Outbound::prepared_window_bits`](crate::Outbound::prepared_window_bits).
    pub fn prepared_window_bits(&self, len: usize) -> Option<u8> {
        self.outbound.prepared_window_bits(len)
    }

    /// Sends a ping; its pong arrives as [`Event::Pong`](crate::Event::Pong) with the round-trip time.
    ///
    /// # Errors
    /// As for [`Outbound::send_ping`](crate::Outbound::send_ping).
    pub fn send_ping(&mut self, now: Duration, payload: &[u8]) -> Result<(), Error> {
        self.outbound.send_ping(now, payload)
    }

    /// Sends an unsolicited pong (RFC 6455 §5.5.3). Pings are answered without this.
    ///
    /// # Errors
    /// As for [`Outbound::send_pong`](crate::Outbound::send_pong).
    pub fn send_pong(&mut self, payload: &[u8]) -> Result<(), Error> {
        self.outbound.send_pong(payload)
    }

    /// Begins the closing handshake (RFC 6455 §7.1.2), behind what is queued.
    ///
    /// # Errors
    /// As for [`Outbound::close`](crate::Outbound::close).
    pub fn close(
        &mut self,
        now: Duration,
        code: impl Into<Option<CloseCode>>,
        reason: &str,
    ) -> Result<(), Error> {
        self.outbound.close(now, code, reason)
    }

    /// Draws masking keys from a new `seed`: for a process that was forked.
    pub fn reseed(&mut self, seed: [u8; 32]) {
        self.outbound.reseed(seed);
    }
}

/// Output.
impl Connection {
    /// Fills `out` with the slices to write next and returns how many; 0 when nothing is queued.
    #[inline]
    pub fn poll_transmit<'a>(&'a mut self, out: &mut [&'a [u8]]) -> usize {
        self.outbound.poll_transmit(out)
    }

    /// `len` bytes of these slices have been written.
    ///
    /// # Panics
    /// When more than was queued.
    #[inline]
    pub fn transmitted(&mut self, len: usize) {
        self.outbound.transmitted(len);
    }

    /// Copies out everything that is queued, as if it had been transmitted: for tests and examples.
    pub fn take_transmit(&mut self) -> Vec<u8> {
        self.outbound.take_transmit()
    }

    /// When to call [`handle_timeout`](Self::handle_timeout) next, if at all. Every other call may change it.
    #[inline]
    pub fn poll_timeout(&self) -> Option<Duration> {
        self.outbound.poll_timeout()
    }
}
