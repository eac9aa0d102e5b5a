//! One direction's incoming messages, turned back from DEFLATE blocks within a limit (RFC 7692 §7.2.2).
//!
//! Owns the LZ77 window of the messages received, the length of the current message, and the check that it is complete.
//! Takes payloads of frames, cut anywhere.
//!
//! Between messages the negotiated window is kept and nothing else. A codec holds 32 KiB, so that a distance within a message
//! is not held to a smaller window; a distance before the kept window, before the first byte of the connection, or before the
//! message where the peer promised not to take over its context, is corrupt.

use alloc::vec::Vec;
use core::fmt;

use zlib_rs::{Inflate, InflateFlush, Status};

use super::pool::{DeflatePool, Pooled};
use super::window::Window;
use super::{DeflateParams, TAIL, WINDOW_BITS};
use crate::role::Role;

/// The tail that the sender left out, and one octet more: see [`Decompressor::finish`].
const TAIL_AND_SENTINEL: [u8; 5] = [TAIL[0], TAIL[1], TAIL[2], TAIL[3], 0x00];

/// Room for the output that zlib-rs wants to leave its careful path (260 bytes), with a margin.
const ROOM_MIN: usize = 512;

/// The most output that is made room for at a time.
const ROOM_MAX: usize = 64 * 1024;

/// What zlib-rs allocates for an inflating codec, in bytes.
const CODEC_LEN: usize = 47_600;

/// Why a compressed message could not be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InflateError {
    /// The peer's data is no DEFLATE stream, or ends within a block: close with 1007.
    Corrupt,
    /// The message is longer than [`InflateLimit::max_len`]: close with 1009.
    TooLarge,
    /// The message grows by more than [`InflateLimit::max_ratio`]: close with 1009.
    Ratio,
}

impl fmt::Display for InflateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Corrupt => "the compressed message is corrupt",
            Self::TooLarge => "the message inflates beyond its length limit",
            Self::Ratio => "the message inflates beyond its ratio limit",
        })
    }
}

impl core::error::Error for InflateError {}

/// How far a message may grow. Counted over all its fragments, after inflation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InflateLimit {
    /// The longest message, in bytes.
    pub max_len: usize,
    /// How many bytes each compressed byte may become.
    ///
    /// DEFLATE cannot exceed 1,032; [`InflateLimit::new`] sets that, which is no bound: text repeats itself honestly,
    /// and `max_len` alone bounds the memory.
    pub max_ratio: u32,
    /// Messages up to this length are not held to `max_ratio`, in bytes.
    pub ratio_free_len: usize,
}

impl InflateLimit {
    /// Messages of at most `max_len` bytes, at any ratio.
    pub const fn new(max_len: usize) -> Self {
        Self { max_len, max_ratio: 1032, ratio_free_len: 64 * 1024 }
    }
}

/// What one [`Decompressor::step`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Bytes taken from the input.
    pub consumed: usize,
    /// Bytes written to the start of the output.
    pub produced: usize,
    /// The output is full and there may be more: call again with the rest of the input.
    pub more: bool,
}

/// Decompresses the messages of one direction of one connection.
///
/// After an error it stays failed: the connection cannot go on (RFC 7692 §7.2.2 leaves no way to find the next block).
pub struct Decompressor {
    codec: Option<Pooled<Inflate>>,
    /// What the next message may refer to; always empty without context takeover.
    window: Window,
    /// Within a message.
    in_message: bool,
    /// The last byte of the message so far ended a block with BFINAL set.
    ended: bool,
    /// Compressed bytes of the message so far.
    taken: u64,
    /// Bytes of the message so far.
    len: usize,
    /// Length of the message before, as a guess at the next.
    last_len: usize,
    failed: Option<InflateError>,
}

impl Decompressor {
    /// The decompressor of what `role` receives.
    pub fn new(role: Role, params: &DeflateParams) -> Self {
        let (no_context_takeover, window_bits) = match role {
            Role::Client => (params.server_no_context_takeover, params.server_max_window_bits),
            Role::Server => (params.client_no_context_takeover, params.client_max_window_bits),
        };
        let window_bits = window_bits.clamp(*WINDOW_BITS.start(), *WINDOW_BITS.end());
        // RFC 7692 §7.1.1: what a peer without context takeover sends refers to nothing before the message.
        let window_len_max = if no_context_takeover { 0 } else { 1 << window_bits };
        Self {
            codec: None,
            window: Window::new(window_len_max),
            in_message: false,
            ended: false,
            taken: 0,
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
        mut input: &[u8],
        fin: bool,
        out: &mut Vec<u8>,
        limit: &InflateLimit,
    ) -> Result<(), InflateError> {
        // A guess that is right for messages like the last one; a wrong one costs another turn of the loop.
        let guess = input.len().saturating_mul(4).max(self.last_len);
        let mut room = guess.saturating_add(ROOM_MIN).min(ROOM_MAX);
        loop {
            let start = out.len();
            room = room.min(limit.max_len.saturating_sub(self.message_len()).saturating_add(1));
            if start < ROOM_MAX && out.capacity() < start + room {
                // A vector that grows doubles: short messages would hold twice as much.
                out.reserve_exact(room);
            }
            out.resize(start + room, 0);
            let before = self.message_len();
            let step = self.step(input, fin, &mut out[start..], limit);
            out.truncate(start + self.len.min(limit.max_len).saturating_sub(before));
            let step = step?;
            if !step.more {
                return Ok(());
            }
            input = &input[step.consumed..];
            room = ROOM_MAX;
        }
    }

    /// Inflates from the next piece of a message into `out` until one of them is used up; with `fin` the message ends
    /// there. That delivers a message in chunks, in constant memory.
    ///
    /// While [`Step::more`] is set, call again with what remains of the input (which may be nothing). An `out` of less
    /// than 512 bytes works, slowly.
    ///
    /// # Errors
    /// [`InflateError`].
    pub fn step(
        &mut self,
        input: &[u8],
        fin: bool,
        out: &mut [u8],
        limit: &InflateLimit,
    ) -> Result<Step, InflateError> {
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
    ) -> Result<Step, InflateError> {
        if !self.in_message {
            self.begin();
        }
        // One byte beyond the limit shows that there is more, and is all that is ever held of it.
        let room = out.len().min(limit.max_len.saturating_sub(self.len).saturating_add(1));
        let out = &mut out[..room];
        let mut step = Step { consumed: 0, produced: 0, more: false };
        loop {
            let inflated =
                self.inflate(&input[step.consumed..], &mut out[step.produced..], InflateFlush::NoFlush);
            step.consumed += inflated.consumed;
            step.produced += inflated.produced;
            // Output before corrupt data is checked against the limits first: the decoder may look far ahead of the
            // limit or not at all, depending on how the input is cut.
            self.account(&inflated, limit)?;
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
        self.codec.get_or_insert_with(|| Pooled::make(())).resume(&mut self.window);
        self.in_message = true;
        self.ended = false;
        self.taken = 0;
        self.len = 0;
    }

    fn inflate(&mut self, input: &[u8], out: &mut [u8], flush: InflateFlush) -> Inflated {
        let codec = self.codec.get_or_insert_with(|| Pooled::make(())).codec();
        let (total_in, total_out) = (codec.total_in(), codec.total_out());
        let status = codec.decompress(input, out, flush);
        let consumed = (codec.total_in() - total_in) as usize;
        let produced = (codec.total_out() - total_out) as usize;
        self.window.push(&out[..produced]);
        self.ended &= consumed == 0;
        let ended = status == Ok(Status::StreamEnd);
        if ended {
            // RFC 7692 §7.2.3.4: a block with BFINAL set ends a DEFLATE stream but not the message. What follows is a
            // stream of its own (RFC 1951 §3.2.3), for which both ends start with an empty window.
            codec.reset(false);
            self.window.clear();
            self.ended = true;
        }
        Inflated { consumed, produced, ended, corrupt: status.is_err() }
    }

    fn account(&mut self, inflated: &Inflated, limit: &InflateLimit) -> Result<(), InflateError> {
        self.taken += inflated.consumed as u64;
        self.len += inflated.produced;
        if self.len > limit.max_len {
            return Err(InflateError::TooLarge);
        }
        if self.len > limit.ratio_free_len
            && self.len as u64 > self.taken.saturating_mul(u64::from(limit.max_ratio))
        {
            return Err(InflateError::Ratio);
        }
        Ok(())
    }

    /// The message ends here: `spare` has room for a byte at least, and the decoder has no output waiting.
    ///
    /// The last octet of a whole message is the header of an empty stored block, whose lengths are the tail that was
    /// left out (RFC 7692 §7.2.1). So a decoder that stops at the end of a block consumes the four octets and no
    /// more, and produces nothing. A decoder at any other position reads them as symbols or lengths: it fails,
    /// produces bytes, stops before the last octet, or continues to the sentinel after it.
    fn finish(&mut self, spare: &mut [u8]) -> Result<(), InflateError> {
        // A message that ended with a final block is whole by RFC 1951. One without any octet is the same as
        // §7.2.3.6's single octet does; neither leaves the decoder inside a block.
        if !self.ended && self.taken > 0 {
            let tail = self.inflate(&TAIL_AND_SENTINEL, spare, InflateFlush::Block);
            if tail.corrupt || tail.consumed != TAIL.len() || tail.produced != 0 || tail.ended {
                return Err(InflateError::Corrupt);
            }
        }
        self.in_message = false;
        self.last_len = self.len;
        if let Some(codec) = &mut self.codec {
            codec.pause(&mut self.window);
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

    /// Takes a codec from `pool`, if there is one and none is held. Optional: without one the next message makes its own.
    pub fn take_codec(&mut self, pool: &mut DeflatePool) {
        if self.codec.is_none() {
            self.codec = pool.inflaters.take(&self.window, ());
        }
    }

    /// Returns the codec to `pool`, except within a message. The window stays here.
    pub fn return_codec(&mut self, pool: &mut DeflatePool) {
        if !self.in_message
            && self.failed.is_none()
            && let Some(codec) = self.codec.take()
        {
            pool.inflaters.put(codec);
        }
    }

    /// Gives back the memory of the codec, except within a message; the next message gets another one. The window is
    /// kept.
    pub fn shrink(&mut self) {
        if !self.in_message {
            self.codec = None;
            self.window.shrink();
        }
    }

    /// Bytes of memory held: those of the window, and those of the codec, if there is one.
    pub fn memory_len(&self) -> usize {
        self.window.memory_len() + if self.codec.is_some() { CODEC_LEN } else { 0 }
    }
}

/// What one call of the decoder did.
struct Inflated {
    consumed: usize,
    produced: usize,
    /// A block with BFINAL set has ended.
    ended: bool,
    /// The decoder met what is no DEFLATE, behind what it produced.
    corrupt: bool,
}

impl fmt::Debug for Decompressor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decompressor")
            .field("in_message", &self.in_message)
            .field("taken", &self.taken)
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

    fn hello() -> Result<Vec<u8>, InflateError> {
        Ok(b"Hello".to_vec())
    }

    // RFC 7692 §7.2.3.1: the compressed message, in one frame or cut after three octets.
    #[test]
    fn reads_the_published_compressed_message() {
        assert_eq!(inflate(client, &[&[0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00]]), [hello()]);
        let (mut out, mut d) = (Vec::new(), client());
        d.decompress(&[0xf2, 0x48, 0xcd], false, &mut out, &LIMIT).unwrap();
        assert!(d.is_in_message());
        d.decompress(&[0xc9, 0xc9, 0x07, 0x00], true, &mut out, &LIMIT).unwrap();
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
        let first: &[u8] = &[0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00];
        let second: &[u8] = &[0xf2, 0x00, 0x11, 0x00, 0x00];
        assert_eq!(inflate(client, &[first, second, second]), [hello(), hello(), hello()]);
        assert_eq!(inflate(forgetful, &[first, first]), [hello(), hello()]);
    }

    // RFC 7692 §7.1.1: a reference before the message, though its sender promised to make none.
    #[test]
    fn refuses_a_reference_across_messages_without_context_takeover() {
        let first: &[u8] = &[0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00];
        let second: &[u8] = &[0xf2, 0x00, 0x11, 0x00, 0x00];
        assert_eq!(inflate(forgetful, &[first, second]), [hello(), Err(InflateError::Corrupt)]);
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
        let hello_again: &[u8] = &[0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00];
        let empty = || Ok(Vec::new());
        assert_eq!(inflate(client, &[&[0x00], &[0x00], hello_again]), [empty(), empty(), hello()]);
        assert_eq!(inflate(client, &[b"", b"", hello_again]), [empty(), empty(), hello()]);
    }

    #[test]
    fn reads_blocks_after_a_final_block() {
        let last: &[u8] = &[0xf3, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00];
        let first: &[u8] = &[0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00];
        let twice = || Ok(b"HelloHello".to_vec());
        assert_eq!(
            inflate(client, &[&[last, first].concat(), &[last, last, &[0]].concat()]),
            [twice(), twice()]
        );
        // A final block that ends the message with nothing after it.
        assert_eq!(inflate(client, &[last, first, last, last]), [hello(), hello(), hello(), hello()]);
        // An empty final stored block, whose lengths are the tail that does not travel.
        assert_eq!(inflate(client, &[&[0x01], first, &[0x01], b"", first]).last(), Some(&hello()));
    }

    // RFC 1951 §3.2.3: the block that has BFINAL set is the last of its stream, and so of its window.
    #[test]
    fn refuses_a_reference_across_a_final_block() {
        let last: &[u8] = &[0xf3, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00, 0x00];
        let second: &[u8] = &[0xf2, 0x00, 0x11, 0x00, 0x00];
        assert_eq!(inflate(client, &[last, second]), [hello(), Err(InflateError::Corrupt)]);
    }

    // RFC 7692 §7.2.2, RFC 1951 §3.2: what no decoder can read.
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
            ("tail that travelled and half of another", &[0x00, 0x00, 0x00, 0xff, 0xff, 0x00, 0x00]),
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
        let good = [0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00];
        assert_eq!(d.decompress(&good, true, &mut out, &LIMIT), Err(InflateError::Corrupt));
        assert_eq!(out, b"");
    }

    // RFC 7692 §7.2.3.2, with the codec given up between the messages in each possible way.
    #[test]
    fn continues_from_the_window_with_another_codec() {
        let first: &[u8] = &[0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00];
        let second: &[u8] = &[0xf2, 0x00, 0x11, 0x00, 0x00];
        let mut pool = DeflatePool::new(1, 1);
        let give_up: [fn(&mut Decompressor, &mut DeflatePool); 3] = [
            |d, _| d.shrink(),
            |d, pool| d.return_codec(pool),
            // Another connection has used the codec since.
            |d, pool| {
                d.return_codec(pool);
                let (mut other, mut out) = (client(), Vec::new());
                other.take_codec(pool);
                other
                    .decompress(&[0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00], true, &mut out, &LIMIT)
                    .unwrap();
                other.return_codec(pool);
            },
        ];
        for give_up in give_up {
            let mut d = client();
            assert_eq!(d.memory_len(), 0, "nothing is allocated before the first message");
            for payload in [first, second, second] {
                let mut out = Vec::new();
                d.take_codec(&mut pool);
                d.decompress(payload, true, &mut out, &LIMIT).unwrap();
                give_up(&mut d, &mut pool);
                assert_eq!(out, b"Hello");
            }
        }
    }

    #[test]
    fn holds_the_window_in_use_between_messages() {
        let mut pool = DeflatePool::new(1, 1);
        let (mut d, mut out) = (client(), Vec::new());
        d.decompress(&[0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00], true, &mut out, &LIMIT).unwrap();
        d.return_codec(&mut pool);
        assert_eq!((d.memory_len(), pool.inflaters()), (5, 1));
    }

    // What another connection received must not be reachable.
    #[test]
    fn refuses_a_reference_into_the_window_of_another_connection() {
        let mut pool = DeflatePool::new(1, 1);
        let (mut one, mut two, mut out) = (client(), client(), Vec::new());
        one.decompress(&[0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00], true, &mut out, &LIMIT).unwrap();
        one.return_codec(&mut pool);
        two.take_codec(&mut pool);
        let inflated = two.decompress(&[0xf2, 0x00, 0x11, 0x00, 0x00], true, &mut out, &LIMIT);
        assert_eq!(inflated, Err(InflateError::Corrupt));
        two.return_codec(&mut pool);
        assert_eq!(pool.inflaters(), 0, "a codec that failed is not used again");
    }

    // A connection that changes threads leaves a codec behind that holds an older window of its own.
    #[test]
    fn does_not_continue_from_an_older_window() {
        let mut threads = [DeflatePool::new(4, 4), DeflatePool::new(4, 4)];
        let mut d = client();
        let mut compressor =
            Compressor::new(Role::Server, &DeflateParams::default(), &DeflateConfig::default());
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
        let good = [0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00];
        let (mut out, mut d, mut pool) = (Vec::new(), forgetful(), DeflatePool::new(4, 4));
        d.decompress(&good[..3], false, &mut out, &LIMIT).unwrap();
        d.shrink();
        d.return_codec(&mut pool);
        assert!(d.codec.is_some());
        d.decompress(&good[3..], true, &mut out, &LIMIT).unwrap();
        d.shrink();
        assert_eq!(d.memory_len(), 0);
        d.decompress(&good, true, &mut out, &LIMIT).unwrap();
        assert_eq!(out, b"HelloHello");
    }

    // 1,000 bytes in a stored block: the room is four times the input, and 512 bytes.
    #[test]
    fn makes_room_for_short_messages_without_doubling() {
        let stored = [&[0x00, 0xE8, 0x03, 0x17, 0xFC][..], &[7; 1000], &[0x00]].concat();
        let mut out = Vec::with_capacity(3000);
        client().decompress(&stored, true, &mut out, &LIMIT).unwrap();
        assert_eq!((out.len(), out.capacity()), (1000, 4 * stored.len() + ROOM_MIN));
        // The memory of long ones doubles, so that they are copied a few times only.
        let mut compressed = Vec::new();
        Compressor::new(Role::Server, &DeflateParams::default(), &DeflateConfig::default())
            .compress(&vec![7; 1 << 20], &mut compressed);
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
            [(1000, 1, Ok(())), (1001, 1, Err(InflateError::Ratio)), (1001, 1000, Ok(()))]
        {
            let limit = InflateLimit { max_len: 1 << 20, max_ratio: ratio, ratio_free_len: 1000 };
            let mut compressed = Vec::new();
            Compressor::new(Role::Server, &DeflateParams::default(), &DeflateConfig::default())
                .compress(&vec![7; len], &mut compressed);
            assert_eq!(client().decompress(&compressed, true, &mut Vec::new(), &limit), inflated, "{len}");
        }
    }

    #[test]
    fn states_its_memory() {
        let mut d = client();
        assert_eq!(d.memory_len(), 0);
        let hello = [0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00];
        d.decompress(&hello, true, &mut Vec::new(), &LIMIT).unwrap();
        assert_eq!(d.memory_len(), CODEC_LEN + 5);
    }

    #[test]
    fn bounds_the_ratio_at_its_bound() {
        let mut compressed = Vec::new();
        let mut compressor =
            Compressor::new(Role::Server, &DeflateParams::default(), &DeflateConfig::default());
        // A length that is a multiple of the compressed one.
        let len = (2000..).find(|&len| {
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
