//! Inflates the messages of one direction within a limit (RFC 7692 §7.2.2).
//!
//! It owns the LZ77 window of the messages received, the length of the current message, and the check that the message is complete. Its
//! input is the payloads of frames, split anywhere.
//!
//! Between messages only the negotiated window is kept. A codec has a window of 32 KiB, so a smaller negotiated window is enforced only
//! where another codec continues: there a distance beyond the kept window is corrupt. A distance beyond the first byte of the connection
//! or, without context takeover, of the message is always corrupt.

use alloc::vec::Vec;
use core::fmt;

use zlib_rs::{Inflate, InflateFlush, Status};

use super::pool::{DeflatePool, PooledCodec};
use super::window::Window;
use super::{DeflateParams, TAIL, WINDOW_BITS};
use crate::role::Role;

/// The tail that the sender removed, and one octet more: see [`Decompressor::finish`].
const TAIL_AND_SENTINEL: [u8; 5] = [TAIL[0], TAIL[1], TAIL[2], TAIL[3], 0x00];

/// With less output space than 260 bytes zlib-rs takes a slow path; this has a margin.
const ROOM_MIN: usize = 512;

/// The output buffer grows by at most this many bytes at a time.
pub(crate) const ROOM_MAX: usize = 64 * 1024;

/// Bytes that zlib-rs allocates for an inflating codec.
const CODEC_LEN: usize = 47_600;

/// Why a message was not inflated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InflateError {
    /// The data is not DEFLATE, or ends within a block: close with 1007.
    Corrupt,
    /// The message is longer than [`InflateLimit::max_len`]: close with 1009.
    TooLarge,
    /// The message grows by more than [`InflateLimit::max_ratio`]: close with 1009.
    Ratio,
    /// The allocator has no memory for the message: close with 1009.
    OutOfMemory,
}

impl fmt::Display for InflateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Corrupt => "the compressed message is corrupt",
            Self::TooLarge => "the message inflates beyond its length limit",
            Self::Ratio => "the message inflates beyond its ratio limit",
            Self::OutOfMemory => "there is no memory for the inflated message",
        })
    }
}

impl core::error::Error for InflateError {}

/// The bounds of an inflated message, over all its fragments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InflateLimit {
    /// The longest message, in bytes.
    pub max_len: usize,
    /// The most inflated bytes per compressed byte.
    ///
    /// DEFLATE cannot exceed 1,032, which [`InflateLimit::new`] sets, so that only `max_len` bounds the memory: honest text may
    /// compress very well.
    pub max_ratio: u32,
    /// `max_ratio` does not apply to messages of up to this length, in bytes.
    pub ratio_free_len: usize,
}

impl InflateLimit {
    /// Messages of at most `max_len` bytes, at any ratio.
    pub const fn new(max_len: usize) -> Self {
        Self { max_len, max_ratio: 1032, ratio_free_len: 64 * 1024 }
    }
}

/// The result of one [`Decompressor::step`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InflateStep {
    /// Bytes consumed from the input.
    pub consumed: usize,
    /// Bytes written to the start of the output.
    pub produced: usize,
    /// The output is full and there may be more: call again with the remaining input.
    pub more: bool,
}

/// Decompresses the messages of one direction of one connection.
///
/// After an error every call fails, because the next block cannot be found (RFC 7692 §7.2.2).
pub struct Decompressor {
    codec: Option<PooledCodec<Inflate>>,
    /// The bytes that the next message may refer to; always empty without context takeover.
    window: Window,
    /// Within a message.
    in_message: bool,
    /// The last byte of the message so far ended a block with BFINAL set.
    is_stream_end: bool,
    /// Compressed bytes of the message so far.
    compressed_len: u64,
    /// Bytes of the message so far.
    len: usize,
    /// Length of the previous message, as an estimate of the next.
    last_len: usize,
    failed: Option<InflateError>,
}

impl Decompressor {
    /// The decompressor for the messages that `role` receives.
    pub fn new(role: Role, params: &DeflateParams) -> Self {
        let (no_context_takeover, window_bits) = match role {
            Role::Client => (params.server_no_context_takeover, params.server_max_window_bits),
            Role::Server => (params.client_no_context_takeover, params.client_max_window_bits),
        };
        let window_bits = window_bits.clamp(*WINDOW_BITS.start(), *WINDOW_BITS.end());
        // RFC 7692 §7.1.1: without context takeover a message refers to no earlier one.
        let window_len_max = if no_context_takeover { 0 } else { 1 << window_bits };
        Self {
            codec: None,
            window: Window::new(window_len_max),
            in_message: false,
            is_stream_end: false,
            compressed_len: 0,
            len: 0,
            last_len: 0,
            failed: None,
        }
    }

    /// Inflates the next piece of a message and appends it to `out`; with `fin` the message ends there.
    ///
    /// # Errors
    /// [`InflateError`]; `out` then holds the part of the message before the error that is within the limit.
    pub fn decompress(
        &mut self,
        input: &[u8],
        fin: bool,
        out: &mut Vec<u8>,
        limit: &InflateLimit,
    ) -> Result<(), InflateError> {
        self.append(input, fin, out, limit, usize::MAX).map(drop)
    }

    /// As [`decompress`](Self::decompress), but stops once it has appended `len_min` bytes: at most [`ROOM_MAX`] more. While
    /// [`InflateStep::more`] is set, the piece has not ended.
    pub(crate) fn append(
        &mut self,
        input: &[u8],
        fin: bool,
        out: &mut Vec<u8>,
        limit: &InflateLimit,
        len_min: usize,
    ) -> Result<InflateStep, InflateError> {
        let mut total = InflateStep { consumed: 0, produced: 0, more: true };
        // An estimate; one that is too low costs another iteration.
        let guess = input.len().saturating_mul(4).max(self.last_len);
        let mut room = guess.saturating_add(ROOM_MIN).min(ROOM_MAX);
        loop {
            let start = out.len();
            room = room.min(limit.max_len.saturating_sub(self.message_len()).saturating_add(1));
            // Doubling would give short messages twice the memory that they need.
            let reserved = if start < ROOM_MAX { out.try_reserve_exact(room) } else { out.try_reserve(room) };
            if reserved.is_err() {
                return Err(*self.failed.get_or_insert(InflateError::OutOfMemory));
            }
            out.resize(start + room, 0);
            let before = self.message_len();
            let step = self.step(&input[total.consumed..], fin, &mut out[start..], limit);
            out.truncate(start + self.len.min(limit.max_len).saturating_sub(before));
            let step = step?;
            total.consumed += step.consumed;
            total.produced += step.produced;
            total.more = step.more;
            if !step.more || total.produced >= len_min {
                return Ok(total);
            }
            room = ROOM_MAX;
        }
    }

    /// Inflates the next piece of a message into `out` until the piece is consumed or `out` is full; with `fin` the message ends with
    /// this piece. For delivery in chunks, in constant memory.
    ///
    /// While [`InflateStep::more`] is set, call again with the remaining input, which may be empty. An `out` of less than 512 bytes is slow.
    ///
    /// # Errors
    /// [`InflateError`].
    pub fn step(
        &mut self,
        input: &[u8],
        fin: bool,
        out: &mut [u8],
        limit: &InflateLimit,
    ) -> Result<InflateStep, InflateError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let step = self.step_inner(input, fin, out, limit);
        if let Err(error) = step {
            self.failed = Some(error);
        }
        step
    }

    fn step_inner(
        &mut self,
        input: &[u8],
        fin: bool,
        out: &mut [u8],
        limit: &InflateLimit,
    ) -> Result<InflateStep, InflateError> {
        if !self.in_message {
            self.begin();
        }
        // One byte beyond the limit shows that the message is too long; no more of it is ever buffered.
        let room = out.len().min(limit.max_len.saturating_sub(self.len).saturating_add(1));
        let out = &mut out[..room];
        let mut step = InflateStep { consumed: 0, produced: 0, more: false };
        loop {
            let inflated =
                self.inflate(&input[step.consumed..], &mut out[step.produced..], InflateFlush::NoFlush);
            step.consumed += inflated.consumed;
            step.produced += inflated.produced;
            // The limits are checked before corruption, because how far the codec reads beyond the limit depends on how the input is
            // split.
            self.check_limits(&inflated, limit)?;
            if inflated.corrupt {
                return Err(InflateError::Corrupt);
            }
            if step.produced == room {
                step.more = true;
                return Ok(step);
            }
            if step.consumed == input.len() {
                break;
            }
            if inflated.consumed == 0 && inflated.produced == 0 && !inflated.ended {
                return Err(InflateError::Corrupt);
            }
        }
        if fin {
            self.finish(&mut out[step.produced..])?;
        }
        Ok(step)
    }

    fn begin(&mut self) {
        self.codec.get_or_insert_with(|| PooledCodec::new(())).begin_message(&mut self.window);
        self.in_message = true;
        self.is_stream_end = false;
        self.compressed_len = 0;
        self.len = 0;
    }

    fn inflate(&mut self, input: &[u8], out: &mut [u8], flush: InflateFlush) -> Inflated {
        let codec = self.codec.get_or_insert_with(|| PooledCodec::new(())).codec();
        let (total_in, total_out) = (codec.total_in(), codec.total_out());
        let status = codec.decompress(input, out, flush);
        let consumed = (codec.total_in() - total_in) as usize;
        let produced = (codec.total_out() - total_out) as usize;
        self.window.push(&out[..produced]);
        self.is_stream_end &= consumed == 0;
        let ended = status == Ok(Status::StreamEnd);
        if ended {
            // RFC 7692 §7.2.3.4: a block with BFINAL set ends a DEFLATE stream but not the message. What follows is a
            // stream of its own (RFC 1951 §3.2.3), for which both ends start with an empty window.
            codec.reset(false);
            self.window.clear();
            self.is_stream_end = true;
        }
        Inflated { consumed, produced, ended, corrupt: status.is_err() }
    }

    fn check_limits(&mut self, inflated: &Inflated, limit: &InflateLimit) -> Result<(), InflateError> {
        self.compressed_len += inflated.consumed as u64;
        self.len += inflated.produced;
        if self.len > limit.max_len {
            return Err(InflateError::TooLarge);
        }
        if self.len > limit.ratio_free_len
            && self.len as u64 > self.compressed_len.saturating_mul(u64::from(limit.max_ratio))
        {
            return Err(InflateError::Ratio);
        }
        Ok(())
    }

    /// The message ends here. `spare` has at least one byte, and the codec has no pending output.
    ///
    /// The last octet of a complete message is the header of an empty stored block, whose lengths are the removed tail (RFC 7692
    /// §7.2.1). A codec that stops at the end of a block therefore consumes exactly these four octets and produces nothing. A codec at
    /// any other position reads them as symbols or lengths: it fails, produces bytes, stops before the last octet, or consumes the
    /// sentinel behind it.
    fn finish(&mut self, spare: &mut [u8]) -> Result<(), InflateError> {
        // A message that ended with a final block is complete by RFC 1951, and a message without any octet is empty like the single
        // octet of §7.2.3.6. Neither leaves the codec within a block.
        if !self.is_stream_end && self.compressed_len > 0 {
            let tail = self.inflate(&TAIL_AND_SENTINEL, spare, InflateFlush::Block);
            if tail.corrupt || tail.consumed != TAIL.len() || tail.produced != 0 || tail.ended {
                return Err(InflateError::Corrupt);
            }
        }
        self.in_message = false;
        self.last_len = self.len;
        if let Some(codec) = &mut self.codec {
            codec.end_message(&mut self.window);
        }
        Ok(())
    }

    /// The length of the current message so far, 0 between messages. After an error, the bytes before it count.
    #[inline]
    pub(crate) fn message_len(&self) -> usize {
        if self.in_message { self.len } else { 0 }
    }

    /// Whether a message has begun and not ended.
    #[inline]
    pub fn is_in_message(&self) -> bool {
        self.in_message
    }

    /// Takes a codec from `pool` if this has none. Optional: the next message creates one if necessary.
    pub fn take_codec(&mut self, pool: &mut DeflatePool) {
        if self.codec.is_none() {
            self.codec = pool.inflaters.take(&self.window, ());
        }
    }

    /// Returns the codec to `pool`, except within a message. The window is kept.
    pub fn return_codec(&mut self, pool: &mut DeflatePool) {
        self.end_final_block();
        if !self.in_message
            && self.failed.is_none()
            && let Some(codec) = self.codec.take()
        {
            pool.inflaters.put(codec);
        }
    }

    /// A final block that the tail of a message has completed ends the window. The codec reports it when it is called again, which may be
    /// too late if another codec continues the window. A codec from the pool reports the last block of another connection.
    fn end_final_block(&mut self) {
        let continues = self.codec.as_ref().is_some_and(|codec| codec.continues(&self.window));
        if !self.in_message && continues {
            self.inflate(&[], &mut [0], InflateFlush::Block);
        }
    }

    /// Frees the codec, except within a message; the next message gets another one. The window is kept.
    pub fn shrink(&mut self) {
        if !self.in_message {
            self.end_final_block();
            self.codec = None;
            self.window.shrink();
        }
    }

    /// Memory in use, in bytes: that of the window, and that of the codec if there is one.
    pub fn memory_len(&self) -> usize {
        self.window.memory_len() + if self.codec.is_some() { CODEC_LEN } else { 0 }
    }
}

/// The result of one call of the codec.
struct Inflated {
    consumed: usize,
    produced: usize,
    /// A block with BFINAL set has ended.
    ended: bool,
    /// The data behind the produced bytes is not DEFLATE.
    corrupt: bool,
}

impl fmt::Debug for Decompressor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decompressor")
            .field("in_message", &self.in_message)
            .field("compressed_len", &self.compressed_len)
            .field("len", &self.len)
            .field("failed", &self.failed)
            .field("memory_len", &self.memory_len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deflate::{Compressor, DeflateConfig};
    use alloc::vec;

    const LIMIT: InflateLimit = InflateLimit::new(1 << 20);

    fn client() -> Decompressor {
        Decompressor::new(Role::Client, &DeflateParams::default())
    }

    /// A client whose server promised to refer to nothing before the message.
    fn forgetful() -> Decompressor {
        let params = DeflateParams { server_no_context_takeover: true, ..DeflateParams::default() };
        Decompressor::new(Role::Client, &params)
    }

    /// The result is the same for a message that is passed whole, byte by byte, and stepwise.
    fn inflate(
        decompressor: impl Fn() -> Decompressor,
        messages: &[&[u8]],
    ) -> Vec<Result<Vec<u8>, InflateError>> {
        let whole = inflate_cut(decompressor(), messages, usize::MAX);
        for cut in [1, 2, 3, 7] {
            assert_eq!(inflate_cut(decompressor(), messages, cut), whole, "cut {cut} of {messages:02x?}");
        }
        for room in [1, 2, 300] {
            assert_eq!(
                inflate_steps(decompressor(), messages, room),
                whole,
                "room {room} of {messages:02x?}"
            );
        }
        whole
    }

    fn inflate_cut(
        mut d: Decompressor,
        messages: &[&[u8]],
        cut: usize,
    ) -> Vec<Result<Vec<u8>, InflateError>> {
        let message = |m: &&[u8]| {
            let mut out = Vec::new();
            for piece in m.chunks(cut.min(m.len().max(1))) {
                d.decompress(piece, false, &mut out, &LIMIT)?;
            }
            d.decompress(b"", true, &mut out, &LIMIT).map(|()| out)
        };
        messages.iter().map(message).collect()
    }

    fn inflate_steps(
        mut d: Decompressor,
        messages: &[&[u8]],
        room: usize,
    ) -> Vec<Result<Vec<u8>, InflateError>> {
        let message = |m: &&[u8]| {
            let (mut input, mut out, mut buf) = (*m, Vec::new(), [0; 300]);
            loop {
                let step = d.step(input, true, &mut buf[..room], &LIMIT)?;
                out.extend_from_slice(&buf[..step.produced]);
                input = &input[step.consumed..];
                if !step.more {
                    return Ok(out);
                }
            }
        };
        messages.iter().map(message).collect()
    }

    /// RFC 7692 §7.2.3.1: "Hello"; §7.2.3.2: "Hello" again, by a reference into the window.
    const HELLO: &[u8] = &[0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00];
    const AGAIN: &[u8] = &[0xf2, 0x00, 0x11, 0x00, 0x00];

    fn compressor() -> Compressor {
        Compressor::new(Role::Server, &DeflateParams::default(), &DeflateConfig::default())
    }

    fn compress(data: &[u8]) -> Vec<u8> {
        let mut payload = Vec::new();
        compressor().compress(data, &mut payload);
        payload
    }

    fn hello() -> Result<Vec<u8>, InflateError> {
        Ok(b"Hello".to_vec())
    }

    // RFC 7692 §7.2.3.1: the compressed message, in one frame or cut after three octets.
    #[test]
    fn reads_the_published_compressed_message() {
        assert_eq!(inflate(client, &[HELLO]), [hello()]);
        let (mut out, mut d) = (Vec::new(), client());
        d.decompress(&HELLO[..3], false, &mut out, &LIMIT).unwrap();
        assert!(d.is_in_message());
        d.decompress(&HELLO[3..], true, &mut out, &LIMIT).unwrap();
        assert_eq!(out, b"Hello");
        assert!(!d.is_in_message());
    }

    #[test]
    fn reports_the_limit_before_corrupt_data_behind_it_at_every_cut() {
        let limit = InflateLimit::new(4);
        // Five stored bytes, then the reserved block type.
        let message = [0x00, 0x05, 0x00, 0xfa, 0xff, b'H', b'e', b'l', b'l', b'o', 0x06];
        for cut in 1..=message.len() {
            let (mut d, mut out) = (client(), Vec::new());
            let inflated =
                message.chunks(cut).try_for_each(|piece| d.decompress(piece, false, &mut out, &limit));
            assert_eq!(inflated, Err(InflateError::TooLarge), "cut {cut}");
        }
    }

    // RFC 7692 §7.2.3.2
    #[test]
    fn reads_the_published_messages_that_share_a_window() {
        assert_eq!(inflate(client, &[HELLO, AGAIN, AGAIN]), [hello(), hello(), hello()]);
        assert_eq!(inflate(forgetful, &[HELLO, HELLO]), [hello(), hello()]);
    }

    // RFC 7692 §7.1.1: a reference before the message, though its sender promised to make none.
    #[test]
    fn refuses_a_reference_across_messages_without_context_takeover() {
        assert_eq!(inflate(forgetful, &[HELLO, AGAIN]), [hello(), Err(InflateError::Corrupt)]);
    }

    // RFC 7692 §7.2.3.3
    #[test]
    fn reads_the_published_stored_block() {
        let stored = [0x00, 0x05, 0x00, 0xfa, 0xff, 0x48, 0x65, 0x6c, 0x6c, 0x6f, 0x00];
        assert_eq!(inflate(client, &[&stored]), [hello()]);
    }

    // RFC 7692 §7.2.3.4
    #[test]
    fn reads_the_published_final_block() {
        let last: &[u8] = &[0xf3, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00, 0x00];
        assert_eq!(inflate(client, &[last, last]), [hello(), hello()]);
        assert_eq!(inflate(forgetful, &[last, last]), [hello(), hello()]);
    }

    // RFC 7692 §7.2.3.5
    #[test]
    fn reads_the_published_two_blocks() {
        let two = [0xf2, 0x48, 0x05, 0x00, 0x00, 0x00, 0xff, 0xff, 0xca, 0xc9, 0xc9, 0x07, 0x00];
        assert_eq!(inflate(client, &[&two]), [hello()]);
    }

    // RFC 7692 §7.2.3.6
    #[test]
    fn reads_the_published_empty_message() {
        let empty = || Ok(Vec::new());
        assert_eq!(inflate(client, &[&[0x00], &[0x00], HELLO]), [empty(), empty(), hello()]);
        assert_eq!(inflate(client, &[b"", b"", HELLO]), [empty(), empty(), hello()]);
    }

    #[test]
    fn reads_blocks_after_a_final_block() {
        let last: &[u8] = &[0xf3, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00];
        let twice = || Ok(b"HelloHello".to_vec());
        assert_eq!(
            inflate(client, &[&[last, HELLO].concat(), &[last, last, &[0]].concat()]),
            [twice(), twice()]
        );
        // A final block that ends the message with nothing after it.
        assert_eq!(inflate(client, &[last, HELLO, last, last]), [hello(), hello(), hello(), hello()]);
        // An empty final stored block, whose lengths are the tail that is not sent.
        assert_eq!(inflate(client, &[&[0x01], HELLO, &[0x01], b"", HELLO]).last(), Some(&hello()));
    }

    // RFC 1951 §3.2.3: the block that has BFINAL set is the last of its stream, and so of its window.
    #[test]
    fn refuses_a_reference_across_a_final_block() {
        let last: &[u8] = &[0xf3, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00, 0x00];
        assert_eq!(inflate(client, &[last, AGAIN]), [hello(), Err(InflateError::Corrupt)]);
    }

    // The lengths of this final block are the tail that is not sent, so the window ends with its message: whether the codec is kept, or
    // made again from the window.
    #[test]
    fn refuses_a_reference_across_a_final_block_that_the_tail_completes() {
        for is_released in [false, true] {
            let (mut d, mut out) = (client(), Vec::new());
            for payload in [HELLO, AGAIN, &[0x01]] {
                d.decompress(payload, true, &mut out, &LIMIT).unwrap();
                if is_released {
                    d.shrink();
                }
            }
            assert_eq!(out, b"HelloHello");
            assert_eq!(
                d.decompress(AGAIN, true, &mut out, &LIMIT),
                Err(InflateError::Corrupt),
                "{is_released}"
            );
        }
    }

    // The codec that is taken says that its stream has ended: that of the connection before.
    #[test]
    fn keeps_the_window_beside_a_codec_that_ended_another_stream() {
        let mut pool = DeflatePool::new(1, 1);
        let (mut one, mut two, mut out) = (client(), client(), Vec::new());
        one.decompress(HELLO, true, &mut out, &LIMIT).unwrap();
        one.return_codec(&mut pool);
        two.take_codec(&mut pool);
        two.decompress(&[0x01], true, &mut out, &LIMIT).unwrap();
        two.return_codec(&mut pool);
        one.take_codec(&mut pool);
        one.return_codec(&mut pool);
        one.decompress(AGAIN, true, &mut out, &LIMIT).unwrap();
        assert_eq!(out, b"HelloHello");
    }

    // RFC 7692 §7.2.2, RFC 1951 §3.2.
    #[test]
    fn refuses_corrupt_data() {
        let table: &[(&str, &[u8])] = &[
            ("reserved block type", &[0x06]),
            ("reserved block type, final", &[0x07, 0x00]),
            ("stored lengths that disagree", &[0x00, 0x05, 0x00, 0x05, 0x00, 0x48]),
            ("stored block cut in its lengths", &[0x00, 0x05]),
            ("stored block cut in its lengths, odd", &[0x00, 0x05, 0x00, 0xfa]),
            ("stored block cut after its lengths", &[0x00, 0x05, 0x00, 0xfa, 0xff]),
            ("stored block cut in its data", &[0x00, 0x05, 0x00, 0xfa, 0xff, 0x48]),
            ("stored block that takes the tail for data", &[0x00, 0x04, 0x00, 0xfb, 0xff]),
            ("stored block that takes the tail and more", &[0x00, 0x05, 0x00, 0xfa, 0xff]),
            ("tail that was sent and half of another", &[0x00, 0x00, 0x00, 0xff, 0xff, 0x00, 0x00]),
            ("block without its flush", &[0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07]),
            ("fixed block cut in its middle", &[0xf2, 0x48, 0xcd]),
            ("fixed block cut after its header", &[0x02]),
            ("fixed block with a distance code of 30", &[0x02, 0x9e, 0x03, 0x00]),
            ("distance before the first byte", &[0x02, 0x01, 0x00]),
            ("dynamic block cut after its header", &[0x04]),
            ("dynamic block cut in its code lengths", &[0x04, 0xc0, 0x81]),
            ("dynamic block with too many lengths", &[0xfc, 0xff, 0xff, 0xff, 0xff]),
            ("dynamic block with no codes", &[0x04, 0x00, 0x00, 0x00, 0x00, 0x00]),
            ("garbage after the flush", &[0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00, 0xff]),
            ("zero after the flush", &[0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00, 0x00]),
            ("garbage after a final block", &[0xf3, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00, 0xfe]),
            ("the zlib format", &[0x78, 0x9c, 0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00]),
            ("text", b"Hello"),
        ];
        for (what, bytes) in table {
            assert_eq!(inflate(client, &[bytes]), [Err(InflateError::Corrupt)], "{what}");
        }
    }

    #[test]
    fn stays_failed() {
        let (mut out, mut d) = (Vec::new(), client());
        assert_eq!(d.decompress(&[0x06], true, &mut out, &LIMIT), Err(InflateError::Corrupt));
        assert_eq!(d.decompress(HELLO, true, &mut out, &LIMIT), Err(InflateError::Corrupt));
        assert_eq!(out, b"");
    }

    // RFC 7692 §7.2.3.2, with each way to release the codec between the messages.
    #[test]
    fn continues_from_the_window_with_another_codec() {
        let mut pool = DeflatePool::new(1, 1);
        let release: [fn(&mut Decompressor, &mut DeflatePool); 3] = [
            |d, _| d.shrink(),
            |d, pool| d.return_codec(pool),
            // Another connection has used the codec since.
            |d, pool| {
                d.return_codec(pool);
                let mut other = client();
                other.take_codec(pool);
                other.decompress(HELLO, true, &mut Vec::new(), &LIMIT).unwrap();
                other.return_codec(pool);
            },
        ];
        for release in release {
            let mut d = client();
            assert_eq!(d.memory_len(), 0, "nothing is allocated before the first message");
            for payload in [HELLO, AGAIN, AGAIN] {
                let mut out = Vec::new();
                d.take_codec(&mut pool);
                d.decompress(payload, true, &mut out, &LIMIT).unwrap();
                release(&mut d, &mut pool);
                assert_eq!(out, b"Hello");
            }
        }
    }

    #[test]
    fn keeps_only_its_window_between_messages() {
        let mut pool = DeflatePool::new(1, 1);
        let (mut d, mut out) = (client(), Vec::new());
        d.decompress(HELLO, true, &mut out, &LIMIT).unwrap();
        d.return_codec(&mut pool);
        assert_eq!((d.memory_len(), pool.inflaters()), (5, 1));
    }

    #[test]
    fn refuses_a_reference_into_the_window_of_another_connection() {
        let mut pool = DeflatePool::new(1, 1);
        let (mut one, mut two, mut out) = (client(), client(), Vec::new());
        one.decompress(HELLO, true, &mut out, &LIMIT).unwrap();
        one.return_codec(&mut pool);
        two.take_codec(&mut pool);
        let inflated = two.decompress(AGAIN, true, &mut out, &LIMIT);
        assert_eq!(inflated, Err(InflateError::Corrupt));
        two.return_codec(&mut pool);
        assert_eq!(pool.inflaters(), 0, "a codec that failed is not used again");
    }

    // A connection that moves to another thread leaves a codec in the first pool, with an older state of its window.
    #[test]
    fn does_not_continue_from_an_older_window() {
        let mut threads = [DeflatePool::new(4, 4), DeflatePool::new(4, 4)];
        let mut d = client();
        let mut compressor = compressor();
        for (thread, text) in [(0, "Hello"), (1, "World"), (0, "World"), (1, "Hello")] {
            let pool = &mut threads[thread];
            let (mut payload, mut out) = (Vec::new(), Vec::new());
            compressor.compress(text.as_bytes(), &mut payload);
            d.take_codec(pool);
            d.decompress(&payload, true, &mut out, &LIMIT).unwrap();
            d.return_codec(pool);
            assert_eq!(out, text.as_bytes());
        }
    }

    #[test]
    fn keeps_its_codec_within_a_message() {
        let (mut out, mut d, mut pool) = (Vec::new(), forgetful(), DeflatePool::new(4, 4));
        d.decompress(&HELLO[..3], false, &mut out, &LIMIT).unwrap();
        d.shrink();
        d.return_codec(&mut pool);
        assert!(d.codec.is_some());
        d.decompress(&HELLO[3..], true, &mut out, &LIMIT).unwrap();
        d.shrink();
        assert_eq!(d.memory_len(), 0);
        d.decompress(HELLO, true, &mut out, &LIMIT).unwrap();
        assert_eq!(out, b"HelloHello");
    }

    // 1,000 bytes in a stored block: the room is four times the input, and 512 bytes.
    #[test]
    fn reserves_for_short_messages_without_doubling() {
        let stored = [&[0x00, 0xE8, 0x03, 0x17, 0xFC][..], &[7; 1000], &[0x00]].concat();
        let mut out = Vec::with_capacity(3000);
        client().decompress(&stored, true, &mut out, &LIMIT).unwrap();
        assert_eq!((out.len(), out.capacity()), (1000, 4 * stored.len() + ROOM_MIN));
        if cfg!(miri) {
            return;
        }
        // The memory of long ones doubles, so that they are copied a few times only.
        let compressed = compress(&vec![7; 1 << 20]);
        let mut out = Vec::new();
        client().decompress(&compressed, true, &mut out, &LIMIT).unwrap();
        assert_eq!(out.len(), 1 << 20);
        assert!(out.capacity() > (1 << 20) + ROOM_MAX, "{}", out.capacity());
    }

    #[test]
    fn bounds_the_ratio_of_messages_beyond_the_free_length() {
        assert_eq!(
            InflateLimit::new(7),
            InflateLimit { max_len: 7, max_ratio: 1032, ratio_free_len: 65_536 }
        );
        for (len, ratio, inflated) in
            [(100, 1, Ok(())), (101, 1, Err(InflateError::Ratio)), (101, 100, Ok(()))]
        {
            let limit = InflateLimit { max_len: 1 << 20, max_ratio: ratio, ratio_free_len: 100 };
            let compressed = compress(&vec![7; len]);
            assert_eq!(client().decompress(&compressed, true, &mut Vec::new(), &limit), inflated, "{len}");
        }
    }

    #[test]
    fn memory_len_counts_codec_and_window() {
        let mut d = client();
        assert_eq!(d.memory_len(), 0);
        d.decompress(HELLO, true, &mut Vec::new(), &LIMIT).unwrap();
        assert_eq!(d.memory_len(), CODEC_LEN + 5);
    }

    #[test]
    fn bounds_the_ratio_at_its_bound() {
        let (mut compressed, mut compressor) = (Vec::new(), compressor());
        // A length that is a multiple of the compressed one.
        let len = (200..).find(|&len| {
            compressed.clear();
            compressor.forget();
            compressor.compress(&vec![7; len], &mut compressed);
            len % compressed.len() == 0
        });
        let ratio = (len.unwrap() / compressed.len()) as u32;
        for (max_ratio, inflated) in [(ratio, Ok(())), (ratio - 1, Err(InflateError::Ratio))] {
            let limit = InflateLimit { max_len: 1 << 20, max_ratio, ratio_free_len: 10 };
            assert_eq!(client().decompress(&compressed, true, &mut Vec::new(), &limit), inflated);
        }
    }
}
