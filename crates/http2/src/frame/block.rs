//! [`BlockWriter`]: frames an outgoing field block, which is encoded directly into the output and split in place.
//!
//! ```text
//! begin            out ... |  9 free  | promised? |
//! the encoder      out ... |  9 free  | promised? | field block ..................................|
//! finish           out ... | HEADERS  | promised? | field bl | CONTINUATION | ock .... | CONTINUATION | ... |
//! ```

use alloc::vec::Vec;

use super::{Flags, FrameHeader, Kind, StreamId};

/// Frames a field block that is written to the end of the output.
///
/// ```
/// use wireloom_http2::frame::{BlockWriter, Flags, FrameHeader, Kind, StreamId};
///
/// let mut out = Vec::new();
/// let block = BlockWriter::headers(StreamId::FIRST_CLIENT, true, &mut out);
/// out.extend_from_slice(&[0x82, 0x84, 0x87]); // what the HPACK encoder writes
/// block.finish(16_384, &mut out);
///
/// let header = FrameHeader::decode(out.first_chunk().unwrap());
/// assert_eq!((header.kind, header.len), (Kind::HEADERS, 3));
/// assert!(header.flags.contains(Flags::END_HEADERS) && header.flags.contains(Flags::END_STREAM));
/// ```
#[derive(Debug)]
#[must_use = "the header of the frame is written by `finish`"]
pub struct BlockWriter {
    start: usize,
    kind: Kind,
    flags: Flags,
    stream_id: StreamId,
}

impl BlockWriter {
    /// Begins a HEADERS frame.
    #[inline]
    pub fn headers(stream_id: StreamId, end_stream: bool, out: &mut Vec<u8>) -> Self {
        let start = out.len();
        out.extend_from_slice(&[0; FrameHeader::LEN]);
        let flags = Flags::NONE.with(Flags::END_STREAM, end_stream);
        Self { start, kind: Kind::HEADERS, flags, stream_id }
    }

    /// Begins a PUSH_PROMISE frame.
    pub fn push_promise(stream_id: StreamId, promised_id: StreamId, out: &mut Vec<u8>) -> Self {
        let start = out.len();
        out.extend_from_slice(&[0; FrameHeader::LEN]);
        out.extend_from_slice(&promised_id.get().to_be_bytes());
        Self { start, kind: Kind::PUSH_PROMISE, flags: Flags::NONE, stream_id }
    }

    /// Writes the frame header. A block of more than `frame_len_max` bytes continues in CONTINUATION frames, whose headers are
    /// inserted in one pass.
    #[inline]
    pub fn finish(self, frame_len_max: u32, out: &mut Vec<u8>) {
        let len = out.len() - self.start - FrameHeader::LEN;
        if len > frame_len_max as usize {
            return self.finish_split(frame_len_max as usize, out);
        }
        self.write_header(len, self.flags.with(Flags::END_HEADERS, true), out);
    }

    /// Removes the frame from the output.
    pub fn abandon(self, out: &mut Vec<u8>) {
        out.truncate(self.start);
    }

    #[inline]
    fn write_header(&self, len: usize, flags: Flags, out: &mut [u8]) {
        let header = FrameHeader { len: len as u32, kind: self.kind, flags, stream_id: self.stream_id };
        out[self.start..self.start + FrameHeader::LEN].copy_from_slice(&header.to_bytes());
    }

    #[cold]
    fn finish_split(self, frame_len_max: usize, out: &mut Vec<u8>) {
        let first = self.start + FrameHeader::LEN;
        let len = out.len() - first;
        let continuations = len.div_ceil(frame_len_max) - 1;
        out.resize(out.len() + continuations * FrameHeader::LEN, 0);
        // Begins with the last frame, so that no byte is overwritten before it has moved.
        for n in (1..=continuations).rev() {
            let from = first + n * frame_len_max;
            let chunk_len = frame_len_max.min(first + len - from);
            let to = from + n * FrameHeader::LEN;
            out.copy_within(from..from + chunk_len, to);
            let header = FrameHeader {
                len: chunk_len as u32,
                kind: Kind::CONTINUATION,
                flags: Flags::NONE.with(Flags::END_HEADERS, n == continuations),
                stream_id: self.stream_id,
            };
            out[to - FrameHeader::LEN..to].copy_from_slice(&header.to_bytes());
        }
        self.write_header(frame_len_max, self.flags, out);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Frame, FrameHeader};
    use super::*;
    use wireloom_testing::rounds;

    /// The block that the frames contain, and their number.
    fn join(mut bytes: &[u8]) -> (Vec<u8>, usize) {
        let (mut block, mut frames, mut ended) = (Vec::new(), 0, false);
        while let Some((header, rest)) = bytes.split_first_chunk() {
            assert!(!ended);
            let header = FrameHeader::decode(header);
            let (payload, rest) = rest.split_at(header.len as usize);
            match Frame::parse(&header, payload).unwrap() {
                Frame::Headers(headers) => {
                    assert_eq!(frames, 0);
                    assert!(headers.end_stream);
                    (block, ended) = (headers.fragment.to_vec(), headers.end_headers);
                }
                Frame::PushPromise(promise) => {
                    assert_eq!((frames, promise.promised_id.get()), (0, 4));
                    (block, ended) = (promise.fragment.to_vec(), promise.end_headers);
                }
                Frame::Continuation(more) => {
                    assert!(frames > 0 && !more.fragment.is_empty());
                    block.extend_from_slice(more.fragment);
                    ended = more.end_headers;
                }
                frame => panic!("{frame:?}"),
            }
            frames += 1;
            bytes = rest;
        }
        assert!(ended && bytes.is_empty());
        (block, frames)
    }

    #[test]
    fn split_blocks_are_joined_unchanged() {
        // RFC 9113 §4.3: a field block is one HEADERS or PUSH_PROMISE frame and CONTINUATION frames, the last of
        // which has END_HEADERS.
        rounds(300, |rng| {
            let frame_len_max = 4 + rng.len(200);
            let len = rng.len(2_000);
            let block = rng.bytes(len);
            let before_len = rng.len(20);
            let before = rng.bytes(before_len);
            let id = StreamId::FIRST_CLIENT;

            let mut out = before.clone();
            let writer = BlockWriter::headers(id, true, &mut out);
            out.extend_from_slice(&block);
            writer.finish(frame_len_max as u32, &mut out);
            assert_eq!(out[..before.len()], before);
            assert_eq!(
                join(&out[before.len()..]),
                (block.clone(), block.len().div_ceil(frame_len_max).max(1))
            );

            let mut out = before.clone();
            let writer = BlockWriter::push_promise(id, StreamId::from_wire(4), &mut out);
            out.extend_from_slice(&block);
            writer.finish(frame_len_max as u32, &mut out);
            assert_eq!(join(&out[before.len()..]).0, block);
        });
    }

    #[test]
    fn an_abandoned_block_leaves_the_output_unchanged() {
        let mut out = b"before".to_vec();
        let writer = BlockWriter::headers(StreamId::FIRST_CLIENT, true, &mut out);
        out.extend_from_slice(b"fields");
        writer.abandon(&mut out);
        assert_eq!(out, b"before");
    }

    #[test]
    fn a_block_that_fits_is_one_frame() {
        for (len, frames) in [(99, 1), (100, 1), (101, 2)] {
            let mut out = Vec::new();
            let writer = BlockWriter::headers(StreamId::FIRST_CLIENT, true, &mut out);
            out.resize(out.len() + len, b'x');
            writer.finish(100, &mut out);
            assert_eq!(join(&out).1, frames, "{len}");
        }
    }
}
