//! One direction's outgoing messages, turned into DEFLATE blocks (RFC 7692 §7.2.1).
//!
//! Owns the LZ77 window of what was sent. Does not decide whether a message is compressed, nor frame it.

use alloc::vec::Vec;
use core::fmt;

use zlib_rs::{Deflate, DeflateFlush};

use super::{DeflateConfig, DeflateParams, TAIL, WINDOW_BITS};
use crate::role::Role;

/// zlib's smallest window. Its matcher keeps 262 bytes of look-ahead inside the window, so that with 9 bits no distance
/// exceeds 512 − 262 = 250: a stream made with 9 bits keeps within the 256 bytes of a window of 8 bits.
const ZLIB_MIN_WINDOW_BITS: u8 = 9;

/// The most output that is made room for at a time.
const ROOM_MAX: usize = 64 * 1024;

/// Compresses the messages of one direction of one connection.
///
/// The stream is made at the first message that needs it and kept; in steady state no message allocates.
///
/// ```
/// use wireloom_ws::deflate::{Compressor, Decompressor, DeflateConfig, DeflateParams, InflateLimit};
/// use wireloom_ws::role::Role;
///
/// let params = DeflateParams::default();
/// let mut compressor = Compressor::new(Role::Server, &params, &DeflateConfig::default());
/// let mut payload = Vec::new();
/// compressor.compress(b"Hello", &mut payload);
/// assert_eq!(payload, [0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00]);
///
/// let mut message = Vec::new();
/// let mut decompressor = Decompressor::new(Role::Client, &params);
/// decompressor.decompress(&payload, true, &mut message, &InflateLimit::new(1024))?;
/// assert_eq!(message, b"Hello");
/// # Ok::<(), wireloom_ws::deflate::InflateError>(())
/// ```
pub struct Compressor {
    stream: Option<Deflate>,
    /// A message has begun and not ended; only the chunked form leaves it so.
    in_message: bool,
    /// The message that has begun holds at least one byte.
    any: bool,
    context_takeover: bool,
    /// The stream is to be reset before it is used again.
    forgets: bool,
    /// 9 <= window_bits <= 15
    window_bits: u8,
    /// 0 <= level <= 9
    level: u8,
    /// 1 <= mem_level <= 9
    mem_level: u8,
    min_len: usize,
}

impl Compressor {
    /// The compressor of what `role` sends.
    pub fn new(role: Role, params: &DeflateParams, config: &DeflateConfig) -> Self {
        let (no_context_takeover, window_bits) = match role {
            Role::Client => (params.client_no_context_takeover, params.client_max_window_bits),
            Role::Server => (params.server_no_context_takeover, params.server_max_window_bits),
        };
        Self {
            stream: None,
            in_message: false,
            any: false,
            forgets: false,
            context_takeover: !no_context_takeover,
            window_bits: window_bits.clamp(ZLIB_MIN_WINDOW_BITS, *WINDOW_BITS.end()),
            level: config.level.min(9),
            mem_level: config.mem_level.clamp(1, 9),
            min_len: config.min_len,
        }
    }

    /// Whether a message of `len` bytes reaches the configured minimum.
    #[inline]
    pub fn is_worthwhile(&self, len: usize) -> bool {
        len >= self.min_len
    }

    /// Appends the whole message `payload`, compressed, to `out`: the payload of one compressed frame, or of several,
    /// cut wherever the caller likes.
    ///
    /// # Panics
    /// When a message begun by [`compress_chunk`](Self::compress_chunk) has not ended.
    pub fn compress(&mut self, payload: &[u8], out: &mut Vec<u8>) {
        assert!(!self.in_message, "a message in chunks is under way");
        self.compress_chunk(payload, true, out);
    }

    /// Appends what the next chunk of a message compresses to; `fin` ends the message.
    ///
    /// The chunks before the last may append nothing: DEFLATE gathers a block before it writes one.
    pub fn compress_chunk(&mut self, chunk: &[u8], fin: bool, out: &mut Vec<u8>) {
        if !self.in_message {
            self.in_message = true;
            self.any = false;
        }
        self.any |= !chunk.is_empty();
        // RFC 7692 §7.1.1: without context takeover the next message starts with an empty window. A full flush forgets as
        // much as a reset of the stream would, and costs 0.25 µs less.
        match (fin, self.context_takeover) {
            _ if !self.any => {}
            (false, _) => self.run(chunk, DeflateFlush::NoFlush, out),
            (true, true) => self.run(chunk, DeflateFlush::SyncFlush, out),
            (true, false) => self.run(chunk, DeflateFlush::FullFlush, out),
        }
        if fin {
            self.in_message = false;
            if self.any {
                // RFC 7692 §7.2.1: the flush ended with an empty stored block; its last four octets do not travel.
                debug_assert!(out.ends_with(&TAIL));
                out.truncate(out.len() - TAIL.len());
            } else {
                // RFC 7692 §7.2.3.6: the empty message is the header of an empty stored block.
                out.push(0x00);
            }
        }
    }

    /// Gives back all memory, if no message is under way; the next message is compressed as if it were the first.
    ///
    /// Context takeover permits it: a sender need not refer to earlier messages.
    pub fn shrink(&mut self) {
        if !self.in_message {
            self.stream = None;
        }
    }

    /// The largest window that this uses, as an exponent of two: 9 to 15.
    pub(crate) fn window_bits(&self) -> u8 {
        self.window_bits
    }

    /// Refers to no message before this call from now on; for a sender that sends messages which this has not compressed.
    pub(crate) fn forget(&mut self) {
        self.forgets = self.stream.is_some();
    }

    fn run(&mut self, mut input: &[u8], flush: DeflateFlush, out: &mut Vec<u8>) {
        let config = zlib_rs::DeflateConfig {
            level: i32::from(self.level),
            window_bits: -i32::from(self.window_bits),
            mem_level: i32::from(self.mem_level),
            ..zlib_rs::DeflateConfig::default()
        };
        let stream = self.stream.get_or_insert_with(|| Deflate::new_with_config(config));
        if core::mem::take(&mut self.forgets) {
            stream.reset();
        }
        loop {
            // Data that does not compress grows by an eighth at most (level 1 writes literals in 8 or 9 bits).
            let room = (input.len() + input.len() / 8 + 64).min(ROOM_MAX);
            let start = out.len();
            out.resize(start + room, 0);
            let (total_in, total_out) = (stream.total_in(), stream.total_out());
            let status = stream.compress(input, &mut out[start..], flush);
            debug_assert!(
                status.is_ok(),
                "deflate only refuses input after Finish, which is never asked for"
            );
            let consumed = (stream.total_in() - total_in) as usize;
            let produced = (stream.total_out() - total_out) as usize;
            out.truncate(start + produced);
            input = &input[consumed..];
            // Room left over means that what was taken in (4 GiB at most) is flushed, if that was asked for.
            if produced < room && (input.is_empty() || consumed == 0) {
                return;
            }
        }
    }
}

impl fmt::Debug for Compressor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compressor")
            .field("level", &self.level)
            .field("window_bits", &self.window_bits)
            .field("context_takeover", &self.context_takeover)
            .field("in_message", &self.in_message)
            .field("allocated", &self.stream.is_some())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(params: DeflateParams, config: DeflateConfig) -> Compressor {
        Compressor::new(Role::Server, &params, &config)
    }

    fn compress(compressor: &mut Compressor, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        compressor.compress(payload, &mut out);
        out
    }

    // RFC 7692 §7.2.3.1
    #[test]
    fn makes_the_published_bytes_of_one_compressed_message() {
        let mut compressor = server(DeflateParams::default(), DeflateConfig::default());
        assert_eq!(compress(&mut compressor, b"Hello"), [0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00]);
    }

    // RFC 7692 §7.2.3.2
    #[test]
    fn refers_to_the_message_before_with_context_takeover() {
        let mut compressor = server(DeflateParams::default(), DeflateConfig::default());
        compress(&mut compressor, b"Hello");
        assert_eq!(compress(&mut compressor, b"Hello"), [0xf2, 0x00, 0x11, 0x00, 0x00]);
    }

    // RFC 7692 §7.1.1.1, §7.2.3.2
    #[test]
    fn repeats_itself_without_context_takeover() {
        let params = DeflateParams { server_no_context_takeover: true, ..DeflateParams::default() };
        let mut compressor = server(params, DeflateConfig::default());
        for _ in 0..3 {
            assert_eq!(compress(&mut compressor, b"Hello"), [0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00]);
        }
    }

    // RFC 7692 §7.1.1.2: the parameter of the other direction does not concern this one.
    #[test]
    fn takes_the_parameters_of_its_own_role() {
        let params = DeflateParams {
            client_no_context_takeover: true,
            client_max_window_bits: 10,
            ..DeflateParams::default()
        };
        let config = DeflateConfig::default();
        let client = Compressor::new(Role::Client, &params, &config);
        let server = Compressor::new(Role::Server, &params, &config);
        assert_eq!((client.context_takeover, client.window_bits), (false, 10));
        assert_eq!((server.context_takeover, server.window_bits), (true, 15));
    }

    // RFC 7692 §7.2.3.3
    #[test]
    fn stores_at_level_0() {
        let mut compressor =
            server(DeflateParams::default(), DeflateConfig { level: 0, ..DeflateConfig::default() });
        let hello = [0x00, 0x05, 0x00, 0xfa, 0xff, 0x48, 0x65, 0x6c, 0x6c, 0x6f, 0x00];
        assert_eq!(compress(&mut compressor, b"Hello"), hello);
    }

    // RFC 7692 §7.2.3.6
    #[test]
    fn sends_the_empty_message_as_one_octet() {
        for takeover in [false, true] {
            let params = DeflateParams { server_no_context_takeover: !takeover, ..DeflateParams::default() };
            let mut compressor = server(params, DeflateConfig::default());
            let mut out = Vec::new();
            for _ in 0..3 {
                out.clear();
                compressor.compress_chunk(b"", false, &mut out);
                compressor.compress_chunk(b"", true, &mut out);
                assert_eq!(out, [0x00]);
                assert_eq!(compress(&mut compressor, b""), [0x00]);
            }
            assert_eq!(compress(&mut compressor, b"Hello"), [0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00]);
        }
    }

    #[test]
    fn ends_a_message_with_an_empty_chunk() {
        let mut compressor = server(DeflateParams::default(), DeflateConfig::default());
        let mut out = Vec::new();
        compressor.compress_chunk(b"Hel", false, &mut out);
        compressor.compress_chunk(b"lo", false, &mut out);
        compressor.compress_chunk(b"", true, &mut out);
        assert_eq!(out, [0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00]);
    }

    #[test]
    fn appends_to_what_is_there() {
        let mut compressor = server(DeflateParams::default(), DeflateConfig::default());
        let mut out = b"header".to_vec();
        compressor.compress(b"Hello", &mut out);
        assert_eq!(out, b"header\xf2\x48\xcd\xc9\xc9\x07\x00");
    }

    #[test]
    fn forgets_when_it_shrinks_between_messages() {
        let mut compressor = server(DeflateParams::default(), DeflateConfig::default());
        let first = compress(&mut compressor, b"Hello");
        compressor.shrink();
        assert!(compressor.stream.is_none());
        assert_eq!(compress(&mut compressor, b"Hello"), first);

        let mut out = Vec::new();
        compressor.compress_chunk(b"Hel", false, &mut out);
        compressor.shrink();
        assert!(compressor.stream.is_some(), "a message is under way");
    }

    #[test]
    fn allocates_nothing_before_the_first_message() {
        let mut compressor = server(DeflateParams::default(), DeflateConfig::default());
        assert!(compressor.stream.is_none());
        compress(&mut compressor, b"");
        assert!(compressor.stream.is_none());
    }

    #[test]
    fn takes_numbers_out_of_range_as_the_nearest() {
        for (level, mem_level, bits) in [(255, 0, 0), (10, 10, 255), (0, 255, 8)] {
            let params = DeflateParams { server_max_window_bits: bits, ..DeflateParams::default() };
            let config = DeflateConfig { level, mem_level, ..DeflateConfig::default() };
            assert!(!compress(&mut server(params, config), b"Hello").is_empty());
        }
    }

    #[test]
    fn says_which_messages_are_worthwhile() {
        let compressor =
            server(DeflateParams::default(), DeflateConfig { min_len: 10, ..DeflateConfig::default() });
        assert!(!compressor.is_worthwhile(9));
        assert!(compressor.is_worthwhile(10));
    }
}
