//! Bounds on everything that a capture can make the reader hold. A capture is untrusted input.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The longest block of a capture file, in bytes. 16 MiB: a packet has at most 64 KiB; the rest is for secrets and
/// comments.
pub const BLOCK_LEN_MAX: usize = 16 << 20;

/// The longest line of a hexdump, a key log or a recording, in bytes. 64 MiB: one read of a connection, in base64.
pub const LINE_LEN_MAX: usize = 64 << 20;

/// Connections that are followed at the same time. Beyond that the least recently used ones are closed. 4,096: enough
/// for the capture of a load test.
pub const CONNECTIONS_MAX: usize = 4096;

/// Bytes of a connection's direction that wait for a missing segment. 1 MiB: a few windows of TCP.
pub const PENDING_LEN_MAX: usize = 1 << 20;

/// Segments that wait for a missing one.
pub const PENDING_SEGMENTS_MAX: usize = 4096;

/// Packets of a connection after an acknowledgement of missing bytes, before they count as lost. 16: captures reorder little.
pub const REORDER_PACKETS_MAX: u32 = 16;

/// Bytes of a message or a body that an entry shows. 1 MiB.
pub const CONTENT_LEN_MAX: usize = 1 << 20;

/// Bytes of contents, segments and windows held at the same time, over all connections. 256 MiB.
pub const HELD_LEN_MAX: usize = 256 << 20;

/// The longest head of HTTP/1.1, in bytes.
pub const HEAD_LEN_MAX: usize = 64 << 10;

/// Header fields of a head of HTTP/1.1.
pub const HEADERS_MAX: usize = 256;

/// Requests of a connection that wait for their response.
pub const PIPELINED_MAX: usize = 1024;

/// Bytes that a client sent before its upgrade was answered.
pub const EARLY_LEN_MAX: usize = 64 << 10;

/// The longest frame of HTTP/2 that is decoded, in bytes; longer ones are skipped. DATA has no such bound.
pub const HTTP2_FRAME_LEN_MAX: usize = 1 << 20;

/// The longest field block, in bytes, over its CONTINUATION frames.
pub const FIELD_BLOCK_LEN_MAX: usize = 1 << 20;

/// The largest dynamic table of HPACK, in bytes. 64 KiB: what browsers use.
pub const HPACK_TABLE_MAX: u32 = 64 << 10;

/// Open streams of a connection of HTTP/2 that are followed.
pub const STREAMS_MAX: usize = 4096;

/// Messages of an entry of a HAR, which is read as a whole. 1,048,576: half an hour of a firehose of 500 a second.
pub const HAR_MESSAGES_MAX: usize = 1 << 20;

/// Header fields of a request or a response of a HAR.
pub const HAR_HEADERS_MAX: usize = 4096;

/// TLS sessions whose secrets are kept.
pub const SECRETS_MAX: usize = 64 << 10;

/// Bytes of TLS handshake messages that are assembled in one direction. Hellos have a few KiB; certificates are
/// skipped.
pub const HANDSHAKE_LEN_MAX: usize = 64 << 10;

/// Counts the bytes that are held over all connections.
#[derive(Clone, Debug, Default)]
pub(crate) struct Budget(Arc<AtomicUsize>);

impl Budget {
    /// Reserves `len` bytes, if they fit below [`HELD_LEN_MAX`].
    pub(crate) fn reserve(&self, len: usize) -> Option<Reservation> {
        let add = |held: usize| held.checked_add(len).filter(|&held| held <= HELD_LEN_MAX);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).ok()?;
        Some(Reservation { budget: self.clone(), len })
    }
}

/// Reserved bytes of a [`Budget`], released on drop.
#[derive(Debug)]
pub(crate) struct Reservation {
    budget: Budget,
    len: usize,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.0.fetch_sub(self.len, Ordering::Relaxed);
    }
}

/// The first bytes of a content: at most [`CONTENT_LEN_MAX`], and as many as the budget allows.
#[derive(Debug)]
pub(crate) struct Content {
    bytes: Vec<u8>,
    /// Bytes seen, kept or not.
    len: u64,
    /// Bytes that are not in `len` were not captured.
    has_gap: bool,
    reservations: Vec<Reservation>,
    reserved: usize,
    budget: Budget,
}

impl Content {
    pub(crate) fn new(budget: &Budget) -> Self {
        Self {
            bytes: Vec::new(),
            len: 0,
            has_gap: false,
            reservations: Vec::new(),
            reserved: 0,
            budget: budget.clone(),
        }
    }

    /// Counts `bytes`, and keeps as many of them as fit.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let is_complete = self.is_complete();
        self.len = self.len.saturating_add(bytes.len() as u64);
        if !is_complete {
            return;
        }
        let len = bytes.len().min(CONTENT_LEN_MAX - self.bytes.len());
        let missing = (self.bytes.len() + len).saturating_sub(self.reserved);
        if missing > 0 {
            // Each reservation doubles the previous one, so that there are few.
            let more = missing.max(self.reserved).max(64);
            match self.budget.reserve(more) {
                Some(reservation) => {
                    self.reserved += more;
                    self.reservations.push(reservation);
                }
                None => {
                    let room = self.reserved - self.bytes.len();
                    self.bytes.extend_from_slice(&bytes[..room.min(len)]);
                    return;
                }
            }
        }
        self.bytes.extend_from_slice(&bytes[..len]);
    }

    /// Counts bytes that were not captured, if their number is known.
    pub(crate) fn skip(&mut self, len: Option<u64>) {
        match len {
            Some(len) => self.len = self.len.saturating_add(len),
            None => self.has_gap = true,
        }
    }

    /// Whether everything that was seen has been kept.
    pub(crate) fn is_complete(&self) -> bool {
        self.bytes.len() as u64 == self.len && !self.has_gap
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_cut_at_its_bound() {
        let mut content = Content::new(&Budget::default());
        content.push(&[1; CONTENT_LEN_MAX - 1]);
        content.push(&[2]);
        assert!(content.is_complete());
        content.push(&[3, 4]);
        assert!(!content.is_complete());
        assert_eq!((content.len(), content.bytes().len()), (CONTENT_LEN_MAX as u64 + 2, CONTENT_LEN_MAX));
    }

    #[test]
    fn the_budget_is_shared_and_returned() {
        let budget = Budget::default();
        let all = budget.reserve(HELD_LEN_MAX).unwrap();
        let mut content = Content::new(&budget);
        content.push(b"hello");
        assert_eq!((content.bytes(), content.len(), content.is_complete()), (&b""[..], 5, false));
        drop(all);
        let mut content = Content::new(&budget);
        content.push(b"hello");
        assert!(content.is_complete());
        drop(content);
        assert!(budget.reserve(HELD_LEN_MAX).is_some());
        assert!(budget.reserve(HELD_LEN_MAX + 1).is_none());
    }
}
