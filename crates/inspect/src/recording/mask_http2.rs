//! Masks HTTP/2 fields. A field cannot be replaced within a compressed block, so blocks are decoded and encoded again.
//! They are encoded without a dynamic table, so that each block can be decoded by itself.

use wireloom_http2::field::{Field, FieldLimits, FieldList};
use wireloom_http2::frame::{BlockWriter, Flags, Frame, FrameHeader, Kind, StreamId};
use wireloom_http2::hpack::{Decoder, Encoder, TABLE_SIZE_DEFAULT};

use crate::entry::Direction;
use crate::http2::PREFACE;
use crate::limits::{FIELD_BLOCK_LEN_MAX, HPACK_TABLE_MAX};
use crate::secret::FieldMask;

/// Both directions of a connection.
#[derive(Debug, Default)]
pub(super) struct MaskHttp2 {
    sides: [Side; 2],
}

#[derive(Default)]
struct Side {
    buffer: Vec<u8>,
    preface_passed: bool,
    codec: Option<Box<(Decoder, Encoder)>>,
    block: Option<Block>,
    /// The missing bytes of a frame that is not buffered, and whether they are recorded.
    left: usize,
    is_recorded: bool,
    /// A block could not be decoded. No more blocks are recorded, because they could not be masked.
    failed: bool,
}

struct Block {
    stream: StreamId,
    promised: Option<StreamId>,
    end_stream: bool,
    bytes: Vec<u8>,
}

impl std::fmt::Debug for Side {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Side").field("failed", &self.failed).finish_non_exhaustive()
    }
}

impl MaskHttp2 {
    /// For a connection whose client and server have already sent these bytes, which are not recorded yet.
    pub(super) fn holding(buffers: [Vec<u8>; 2]) -> Self {
        Self { sides: buffers.map(|buffer| Side { buffer, ..Side::default() }) }
    }

    pub(super) fn handle(&mut self, direction: Direction, bytes: &[u8]) -> Vec<u8> {
        let side = &mut self.sides[direction.index()];
        side.buffer.extend_from_slice(bytes);
        let mut buffer = std::mem::take(&mut side.buffer);
        let (mut out, mut at) = (Vec::new(), 0);
        if direction == Direction::ToServer && !side.preface_passed {
            if buffer.len() < PREFACE.len() {
                side.buffer = buffer;
                return out;
            }
            side.preface_passed = true;
            at = PREFACE.len();
            out.extend_from_slice(&buffer[..at]);
        }
        loop {
            let rest = &buffer[at..];
            let len = side.left.min(rest.len());
            if side.is_recorded {
                out.extend_from_slice(&rest[..len]);
            }
            at += len;
            side.left -= len;
            let Some((bytes, payload)) = rest[len..].split_first_chunk() else { break };
            let header = FrameHeader::decode(bytes);
            let payload_len = header.len as usize;
            if has_fields(&header) && payload_len <= FIELD_BLOCK_LEN_MAX {
                let Some(payload) = payload.get(..payload_len) else { break };
                side.fields(&header, payload, &mut out);
                at += payload_len;
            } else {
                (side.left, side.is_recorded) = (payload_len, !has_fields(&header));
                if side.is_recorded {
                    out.extend_from_slice(bytes);
                } else {
                    side.failed = true;
                }
            }
            at += FrameHeader::LEN;
        }
        buffer.drain(..at);
        side.buffer = buffer;
        out
    }

    /// Handles the end of a direction; returns the buffered bytes, unless they are of an incomplete frame with fields.
    pub(super) fn finish(&mut self, direction: Direction) -> Vec<u8> {
        let mut out = self.handle(direction, &[]);
        let buffer = std::mem::take(&mut self.sides[direction.index()].buffer);
        // Of another frame only the header waits, if this is not the preface.
        if buffer.first_chunk().is_none_or(|header| !has_fields(&FrameHeader::decode(header))) {
            out.extend(buffer);
        }
        out
    }
}

fn has_fields(header: &FrameHeader) -> bool {
    matches!(header.kind, Kind::HEADERS | Kind::PUSH_PROMISE | Kind::CONTINUATION)
}

impl Side {
    fn fields(&mut self, header: &FrameHeader, payload: &[u8], out: &mut Vec<u8>) {
        if self.failed {
            return;
        }
        match Frame::parse(header, payload) {
            Ok(Frame::Headers(headers)) => {
                let bytes = headers.fragment.to_vec();
                let end_stream = headers.end_stream;
                self.block = Some(Block { stream: headers.stream_id, promised: None, end_stream, bytes });
            }
            Ok(Frame::PushPromise(promise)) => {
                let (stream, promised) = (promise.stream_id, Some(promise.promised_id));
                self.block =
                    Some(Block { stream, promised, end_stream: false, bytes: promise.fragment.to_vec() });
            }
            Ok(Frame::Continuation(continuation)) => match &mut self.block {
                Some(block) if block.bytes.len() + continuation.fragment.len() <= FIELD_BLOCK_LEN_MAX => {
                    block.bytes.extend_from_slice(continuation.fragment);
                }
                _ => self.failed = true,
            },
            _ => self.failed = true,
        }
        if header.flags.contains(Flags::END_HEADERS)
            && !self.failed
            && let Some(block) = self.block.take()
        {
            self.failed = self.encode(&block, out).is_none();
        }
    }

    fn encode(&mut self, block: &Block, out: &mut Vec<u8>) -> Option<()> {
        let (decoder, encoder) = &mut **self.codec.get_or_insert_with(|| {
            let mut decoder = Decoder::new(TABLE_SIZE_DEFAULT);
            // The other end sets the limit, which is not tracked here: accept the largest.
            decoder.set_table_size_max(HPACK_TABLE_MAX);
            let mut encoder = Encoder::new();
            encoder.set_table_size_local(0);
            Box::new((decoder, encoder))
        });
        let mut fields = FieldList::new();
        let limits = FieldLimits::new(FIELD_BLOCK_LEN_MAX as u32, 4096);
        decoder.decode(&block.bytes, &limits, &mut fields).ok()?;
        let mut mask = FieldMask::default();
        let masked: Vec<(Vec<u8>, Vec<u8>)> = fields
            .iter()
            .map(|field| {
                let mut value = field.value().to_vec();
                mask.mask(field.name(), &mut value);
                (field.name().to_vec(), value)
            })
            .collect();
        let writer = match block.promised {
            Some(promised) => BlockWriter::push_promise(block.stream, promised, out),
            None => BlockWriter::headers(block.stream, block.end_stream, out),
        };
        encoder.encode(masked.iter().map(|(name, value)| Field::new(name, value)), out);
        writer.finish(16_384, out);
        Some(())
    }
}
