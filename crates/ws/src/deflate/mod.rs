//! permessage-deflate (RFC 7692): offers, answers, negotiated parameters, and the compression state of each direction.
//!
//! This module owns the negotiation of §7.1 and the payload transformation of §7.2. The connection owns the RSV1 bit, the frames, and
//! the decision which messages are compressed (§6). DEFLATE itself (RFC 1951) is zlib-rs.
//!
//! ```text
//! negotiation   offer -> DeflateParams                                   once, in the opening handshake
//! compressor    message -> DEFLATE blocks without 00 00 FF FF            one for the sending direction
//! decompressor  fragments -> message, within an InflateLimit             one for the receiving direction
//! window        the bytes that the next message may refer to             one per direction
//! pool          codecs that connections share                            one per thread of a driver
//! ```
//!
//! Layers: `negotiation`, `window` → `pool` → `compressor`, `decompressor`.
//!
//! # Memory
//! Nothing is allocated before the first compressed message of a direction. Between messages a direction keeps its window: the bytes that
//! the next message may refer to, at most 32 KiB, and none without context takeover. During a message it also has a codec. Its size in
//! bytes on a 64-bit machine:
//!
//! | | |
//! |---|---|
//! | sending | 134,300 + 4 × 2^window + 7 × 2^(memory level + 6) |
//! | receiving | 47,600, whatever was negotiated |
//!
//! | sending window, bits | memory level 8 | 6 | 5 (default) | 1 |
//! |---|---|---|---|---|
//! | 15 (default) | 380 KB | 294 KB | 280 KB | 266 KB |
//! | 12 | 265 KB | 179 KB | 165 KB | 152 KB |
//! | 9 (8 takes as much) | 251 KB | 165 KB | 151 KB | 137 KB |
//!
//! No setting changes the 128 KiB of the hash table of zlib-rs. [`Compressor::shrink`] and [`Decompressor::shrink`] free the codec, and a
//! [`DeflatePool`] lets connections share codecs.

mod compressor;
mod decompressor;
mod negotiation;
mod pool;
mod window;

pub use compressor::Compressor;
pub(crate) use decompressor::ROOM_MAX;
pub use decompressor::{Decompressor, InflateError, InflateLimit, InflateStep};
pub use negotiation::NegotiationError;
pub use pool::DeflatePool;

/// The name under which the extension is registered (RFC 7692 §7).
pub const NAME: &str = "permessage-deflate";

/// The four octets that end every flushed DEFLATE stream, and are not sent (RFC 7692 §7.2.1, §7.2.2).
const TAIL: [u8; 4] = [0x00, 0x00, 0xff, 0xff];

/// The smallest and the largest window that can be negotiated, as exponents of two (RFC 7692 §7.1.2).
const WINDOW_BITS: core::ops::RangeInclusive<u8> = 8..=15;

/// The parameters that this end offers or accepts, and how it compresses.
///
/// The same settings serve either role; each field documents its meaning for a client and for a server. Numbers outside of their range
/// are clamped. Fields may be added: use struct update.
///
/// ```
/// use wireloom_ws::deflate::DeflateConfig;
///
/// let mut offer = String::new();
/// DeflateConfig { server_no_context_takeover: true, ..DeflateConfig::default() }.offer(&mut offer);
/// assert_eq!(offer, "permessage-deflate; server_no_context_takeover; client_max_window_bits");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeflateConfig {
    /// The compression level: 0 stores, 1 is fastest, 9 is smallest.
    ///
    /// The default is 4. The compressed size of a message of 1,024 bytes of JSON, and the time, on one machine:
    ///
    /// | level | with context takeover | without |
    /// |---|---|---|
    /// | 1 | 293 B, 2.4 µs | 428 B, 4.6 µs |
    /// | 2 | 251 B, 9.4 µs | 355 B, 13.6 µs |
    /// | 4 | 229 B, 12.5 µs | 344 B, 14.9 µs |
    /// | 6, zlib's default | 224 B, 15.2 µs | 341 B, 15.1 µs |
    /// | 9 | 222 B, 24 µs | 341 B, 18 µs |
    ///
    /// Longer messages gain more from 4: 4 KiB of source code take 44 µs and are compressed to 24.3%, at level 6 63 µs and 23.5%. Level 1
    /// suits servers that are limited by processor time rather than bandwidth.
    pub level: u8,
    /// The memory level, 1 to 9: a block of compressed data buffers up to 7 × 2^(n + 6) bytes before it is written.
    ///
    /// The default is 5: a block of 2,048 symbols, enough for a message of usual size. It uses 100 KB less memory than zlib's default of 8,
    /// and 3 to 8% less time. A message of 256 KiB is 1% smaller at 8.
    pub mem_level: u8,
    /// Shorter messages are sent uncompressed, in bytes.
    ///
    /// The default is 64: without context takeover a shorter message does not shrink, and with it little is saved.
    pub min_len: usize,
    /// The server compresses each message without reference to earlier ones. A client demands it, to keep no window between messages; a
    /// server announces it in its answer.
    ///
    /// Off by default: messages of one connection resemble each other, and the window saves more than half of their size.
    pub server_no_context_takeover: bool,
    /// The client compresses each message without reference to earlier ones. A client announces it, a server demands it.
    ///
    /// Off by default, for the same reason.
    pub client_no_context_takeover: bool,
    /// The largest window that the server compresses with, 8 to 15. A client demands it when it is below 15, a server
    /// stays within it and within what the client demands.
    pub server_max_window_bits: u8,
    /// The largest window that the client compresses with, 8 to 15. A client announces it, a server demands it from
    /// those clients that allow it (RFC 7692 §7.1.2.2).
    pub client_max_window_bits: u8,
}

impl Default for DeflateConfig {
    fn default() -> Self {
        Self {
            level: 4,
            mem_level: 5,
            min_len: 64,
            server_no_context_takeover: false,
            client_no_context_takeover: false,
            server_max_window_bits: 15,
            client_max_window_bits: 15,
        }
    }
}

/// The negotiated parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeflateParams {
    /// The server compresses each message without reference to earlier ones.
    pub server_no_context_takeover: bool,
    /// The client compresses each message without reference to earlier ones.
    pub client_no_context_takeover: bool,
    /// No distance in what the server sends exceeds 2^this; 8 to 15.
    pub server_max_window_bits: u8,
    /// No distance in what the client sends exceeds 2^this; 8 to 15.
    pub client_max_window_bits: u8,
}

impl Default for DeflateParams {
    /// The parameters of an offer and an answer that name none.
    fn default() -> Self {
        Self {
            server_no_context_takeover: false,
            client_no_context_takeover: false,
            server_max_window_bits: 15,
            client_max_window_bits: 15,
        }
    }
}
