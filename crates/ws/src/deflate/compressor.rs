//! Compresses the messages of one direction into DEFLATE blocks (RFC 7692 §7.2.1).
//!
//! It owns the LZ77 window of the messages sent. `send` decides which messages are compressed, and frames them.

use alloc::vec::Vec;
use core::fmt;

use zlib_rs::{Deflate, DeflateFlush};

use super::pool::{DeflatePool, DeflaterParams, PooledCodec};
use super::window::Window;
use super::{DeflateConfig, DeflateParams, TAIL, WINDOW_BITS};
use crate::role::Role;

/// zlib's smallest window. Its matcher keeps 262 bytes of look-ahead inside the window, so that with 9 bits no distance exceeds
/// 512 − 262 = 250: a stream made with 9 bits stays within the 256 bytes of a window of 8 bits.
const ZLIB_MIN_WINDOW_BITS: u8 = 9;

/// The output buffer grows by at most this many bytes at a time.
const ROOM_MAX: usize = 64 * 1024;

/// Bytes that zlib-rs allocates for a deflating codec, whatever its window: mostly the hash table.
const CODEC_LEN_MIN: usize = 134_300;

/// Compresses the messages of one direction of one connection.
///
/// The codec is created for the first message, or taken from a [`DeflatePool`]. In steady state no message allocates.
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
    codec: Option<PooledCodec<Deflate>>,
    params: DeflaterParams,
    /// The bytes that the next message may refer to; always empty without context takeover.
    window: Window,
    /// A message has begun and not ended, which only `compress_chunk` leaves so.
    in_message: bool,
    /// The current message has at least one byte.
    has_input: bool,
    min_len: usize,
}

impl Compressor {
    /// The compressor for the messages that `role` sends.
    pub fn new(role: Role, params: &DeflateParams, config: &DeflateConfig) -> Self {
        let (no_context_takeover, window_bits) = match role {
            Role::Client => (params.client_no_context_takeover, params.client_max_window_bits),
            Role::Server => (params.server_no_context_takeover, params.server_max_window_bits),
        };
        let window_bits = window_bits.clamp(ZLIB_MIN_WINDOW_BITS, *WINDOW_BITS.end());
        let params = DeflaterParams {
            window_bits,
            level: config.level.min(9),
            mem_level: config.mem_level.clamp(1, 9),
        };
        let window = Window::new(if no_context_takeover { 0 } else { 1 << window_bits });
        Self { codec: None, params, window, in_message: false, has_input: false, min_len: config.min_len }
    }

    /// Whether a message of `len` bytes reaches the configured minimum.
    #[inline]
    pub fn is_worthwhile(&self, len: usize) -> bool {
        len >= self.min_len
    }

    /// The configured level, memory level and minimum length; other fields have their defaults.
    pub(crate) fn config(&self) -> DeflateConfig {
        let DeflaterParams { level, mem_level, .. } = self.params;
        DeflateConfig { level, mem_level, min_len: self.min_len, ..DeflateConfig::default() }
    }

    /// Compresses the whole message `payload` and appends it to `out`: the payload of one compressed frame, or of several, split
    /// anywhere.
    ///
    /// # Panics
    /// When a message begun by [`compress_chunk`](Self::compress_chunk) has not ended.
    pub fn compress(&mut self, payload: &[u8], out: &mut Vec<u8>) {
        assert!(!self.in_message, "a message begun by `compress_chunk` has not ended");
        self.compress_chunk(payload, true, out);
    }

    /// Compresses the next chunk of a message and appends it to `out`; `fin` ends the message.
    ///
    /// Chunks before the last may append nothing: DEFLATE buffers a block before it writes it.
    pub fn compress_chunk(&mut self, chunk: &[u8], fin: bool, out: &mut Vec<u8>) {
        if !self.in_message {
            self.in_message = true;
            self.has_input = false;
        }
        let is_first = !self.has_input && !chunk.is_empty();
        self.has_input |= !chunk.is_empty();
        // RFC 7692 §7.1.1: without context takeover the next message starts with an empty window. A full flush has the effect of a
        // reset of the codec, at less cost.
        let keeps_window = self.window.is_kept();
        if self.has_input {
            let flush = match (fin, keeps_window) {
                (false, _) => DeflateFlush::NoFlush,
                (true, true) => DeflateFlush::SyncFlush,
                (true, false) => DeflateFlush::FullFlush,
            };
            self.deflate(chunk, is_first, flush, out);
            self.window.push(chunk);
        }
        if !fin {
            return;
        }
        self.in_message = false;
        if !self.has_input {
            // RFC 7692 §7.2.3.6: the empty message is the header of an empty stored block.
            out.push(0x00);
            return;
        }
        if let Some(codec) = &mut self.codec {
            if keeps_window { codec.end_message(&mut self.window) } else { codec.end_flushed_message() }
        }
        // RFC 7692 §7.2.1: the flush ended with an empty stored block; its last four octets are not sent.
        debug_assert!(out.ends_with(&TAIL));
        out.truncate(out.len() - TAIL.len());
    }

    /// Takes a codec from `pool` if this has none. Optional: the next message creates one if necessary.
    pub fn take_codec(&mut self, pool: &mut DeflatePool) {
        if self.codec.is_none() {
            self.codec = pool.deflaters.take(&self.window, self.params);
        }
    }

    /// Returns the codec to `pool`, except within a message. The window is kept.
    pub fn return_codec(&mut self, pool: &mut DeflatePool) {
        if !self.in_message
            && let Some(codec) = self.codec.take()
        {
            pool.deflaters.put(codec);
        }
    }

    /// Frees the codec, except within a message; the next message gets another one. The window is kept.
    pub fn shrink(&mut self) {
        if !self.in_message {
            self.codec = None;
            self.window.shrink();
        }
    }

    /// Frees all memory: no other message follows. A codec that is not within a message is still to be returned.
    pub(crate) fn end(&mut self) {
        self.codec.take_if(|_| self.in_message);
        self.window.clear();
        self.window.shrink();
    }

    /// Memory in use, in bytes: that of the window, and that of the codec if there is one.
    pub fn memory_len(&self) -> usize {
        let DeflaterParams { window_bits, mem_level, .. } = self.params;
        let codec = CODEC_LEN_MIN + (4 << window_bits) + (7 << (mem_level + 6));
        self.window.memory_len() + if self.codec.is_some() { codec } else { 0 }
    }

    /// The window size, as an exponent of two: 9 to 15.
    pub(crate) fn window_bits(&self) -> u8 {
        self.params.window_bits
    }

    /// Clears the window: later messages refer to none before this call. For messages that another compressor has compressed.
    pub(crate) fn forget(&mut self) {
        self.window.clear();
    }

    /// Compresses a chunk; `is_first` begins the message.
    fn deflate(&mut self, mut input: &[u8], is_first: bool, flush: DeflateFlush, out: &mut Vec<u8>) {
        let params = self.params;
        let codec = self.codec.get_or_insert_with(|| PooledCodec::new(params));
        let stream = if is_first { codec.begin_message(&mut self.window) } else { codec.codec() };
        loop {
            // Data that does not compress grows by an eighth at most (level 1 writes literals in 8 or 9 bits).
            let room = (input.len() + input.len() / 8 + 64).min(ROOM_MAX);
            let start = out.len();
            out.resize(start + room, 0);
            let (total_in, total_out) = (stream.total_in(), stream.total_out());
            let status = stream.compress(input, &mut out[start..], flush);
            debug_assert!(status.is_ok(), "deflate refuses input only after Finish, which is never passed");
            let consumed = (stream.total_in() - total_in) as usize;
            let produced = (stream.total_out() - total_out) as usize;
            out.truncate(start + produced);
            input = &input[consumed..];
            // With room left, the codec has written everything that it had to flush. It consumes at most 4 GiB per call.
            if produced < room && (input.is_empty() || consumed == 0) {
                return;
            }
        }
    }
}

impl fmt::Debug for Compressor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compressor")
            .field("params", &self.params)
            .field("in_message", &self.in_message)
            .field("memory_len", &self.memory_len())
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
    fn makes_the_same_bytes_again_without_context_takeover() {
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
        assert_eq!((client.window.is_kept(), client.window_bits()), (false, 10));
        assert_eq!((server.window.is_kept(), server.window_bits()), (true, 15));
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
    fn appends_to_the_output() {
        let mut compressor = server(DeflateParams::default(), DeflateConfig::default());
        let mut out = b"header".to_vec();
        compressor.compress(b"Hello", &mut out);
        assert_eq!(out, b"header\xf2\x48\xcd\xc9\xc9\x07\x00");
    }

    /// The second of two equal messages is a reference to the first.
    const HELLO_AGAIN: [u8; 5] = [0xf2, 0x00, 0x11, 0x00, 0x00];

    #[test]
    fn refers_to_the_message_before_with_another_codec() {
        let mut pool = DeflatePool::new(1, 1);
        let release: [fn(&mut Compressor, &mut DeflatePool); 3] = [
            |compressor, _| compressor.shrink(),
            |compressor, pool| compressor.return_codec(pool),
            // Another connection has used the codec since.
            |compressor, pool| {
                compressor.return_codec(pool);
                let mut other = server(DeflateParams::default(), DeflateConfig::default());
                other.take_codec(pool);
                assert_eq!(
                    compress(&mut other, b"Hello").len(),
                    7,
                    "nothing of another connection is referred to"
                );
                other.return_codec(pool);
            },
        ];
        for release in release {
            let mut compressor = server(DeflateParams::default(), DeflateConfig::default());
            compress(&mut compressor, b"Hello");
            release(&mut compressor, &mut pool);
            assert_eq!(compressor.memory_len(), 5);
            compressor.take_codec(&mut pool);
            assert_eq!(compress(&mut compressor, b"Hello"), HELLO_AGAIN);
        }
    }

    #[test]
    fn refers_to_nothing_before_forget() {
        let mut compressor = server(DeflateParams::default(), DeflateConfig::default());
        let first = compress(&mut compressor, b"Hello");
        assert_eq!(compress(&mut compressor, b"Hello"), HELLO_AGAIN);
        compressor.forget();
        assert_eq!(compress(&mut compressor, b"Hello"), first);
        assert_eq!(compress(&mut compressor, b"Hello"), HELLO_AGAIN);
    }

    #[test]
    fn keeps_its_codec_within_a_message() {
        let mut compressor = server(DeflateParams::default(), DeflateConfig::default());
        let (mut out, mut pool) = (Vec::new(), DeflatePool::new(1, 1));
        compressor.compress_chunk(b"Hel", false, &mut out);
        compressor.shrink();
        compressor.return_codec(&mut pool);
        assert!(compressor.codec.is_some() && pool.deflaters() == 0);
        compressor.compress_chunk(b"lo", true, &mut out);
        assert_eq!(out, [0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00]);
    }

    // The peer may not be able to inflate the output of a codec with other parameters.
    #[test]
    fn takes_a_codec_of_its_own_parameters() {
        let mut pool = DeflatePool::new(4, 4);
        let params = |bits| DeflateParams { server_max_window_bits: bits, ..DeflateParams::default() };
        let mut wide = server(params(15), DeflateConfig::default());
        compress(&mut wide, b"Hello");
        wide.return_codec(&mut pool);
        let mut narrow = server(params(9), DeflateConfig::default());
        narrow.take_codec(&mut pool);
        assert!(narrow.codec.is_none() && pool.deflaters() == 1);
    }

    #[test]
    fn allocates_nothing_before_the_first_message() {
        let mut compressor = server(DeflateParams::default(), DeflateConfig::default());
        assert!(compressor.codec.is_none());
        compress(&mut compressor, b"");
        assert!(compressor.codec.is_none());
    }

    #[test]
    fn clamps_numbers_out_of_range() {
        for (level, mem_level, bits) in [(255, 0, 0), (10, 10, 255), (0, 255, 8)] {
            let params = DeflateParams { server_max_window_bits: bits, ..DeflateParams::default() };
            let config = DeflateConfig { level, mem_level, ..DeflateConfig::default() };
            assert!(!compress(&mut server(params, config), b"Hello").is_empty());
        }
    }

    #[test]
    fn compresses_messages_from_the_configured_length_on() {
        let compressor =
            server(DeflateParams::default(), DeflateConfig { min_len: 10, ..DeflateConfig::default() });
        assert!(!compressor.is_worthwhile(9));
        assert!(compressor.is_worthwhile(10));
    }

    #[test]
    fn getters_return_memory_and_configuration() {
        let config = DeflateConfig { level: 2, mem_level: 6, min_len: 9, ..DeflateConfig::default() };
        let params = DeflateParams { server_max_window_bits: 12, ..DeflateParams::default() };
        let mut compressor = server(params, config.clone());
        assert_eq!((compressor.config(), compressor.memory_len()), (config, 0));
        compress(&mut compressor, b"Hello");
        assert_eq!(compressor.memory_len(), 134_300 + (4 << 12) + (7 << 12) + 5);
    }

    #[test]
    fn takes_the_codec_of_the_pool() {
        let (mut pool, mut first) =
            (DeflatePool::new(2, 2), server(DeflateParams::default(), DeflateConfig::default()));
        compress(&mut first, b"Hello");
        first.return_codec(&mut pool);
        assert_eq!((pool.deflaters(), first.codec.is_none()), (1, true));
        let mut second = server(DeflateParams::default(), DeflateConfig::default());
        second.take_codec(&mut pool);
        assert_eq!((pool.deflaters(), second.codec.is_some()), (0, true));
    }

    // Level 1 writes each of these literals in nine bits.
    #[test]
    fn reserves_for_incompressible_messages() {
        let config = DeflateConfig { level: 1, ..DeflateConfig::default() };
        let mut rng = fastrand::Rng::with_seed(1);
        let noise: Vec<u8> = (0..10_000).map(|_| rng.u8(144..)).collect();
        let compressed = compress(&mut server(DeflateParams::default(), config), &noise);
        assert!(compressed.len() > 11_000, "{}", compressed.len());
        assert_eq!(compressed.capacity(), 10_000 + 10_000 / 8 + 64);
        let small = compress(&mut server(DeflateParams::default(), DeflateConfig::default()), &[7; 1_000]);
        assert_eq!(small.capacity(), 1_000 + 1_000 / 8 + 64);
    }

    // An empty message does not use the codec, which another connection has used before.
    #[test]
    fn refers_to_nothing_of_another_connection_after_an_empty_message() {
        let mut pool = DeflatePool::new(1, 1);
        let mut other = server(DeflateParams::default(), DeflateConfig::default());
        let first = compress(&mut other, b"Hello");
        other.return_codec(&mut pool);
        let mut compressor = server(DeflateParams::default(), DeflateConfig::default());
        compressor.take_codec(&mut pool);
        assert_eq!(compress(&mut compressor, b""), [0x00]);
        assert_eq!(compress(&mut compressor, b"Hello"), first);
    }
}
