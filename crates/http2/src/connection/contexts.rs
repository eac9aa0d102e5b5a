//! The compression contexts of both directions (RFC 9113 §4.3), and the fields of the last block that was decoded.

use alloc::vec::Vec;

use crate::config::Config;
use crate::field::{ARENA_KEPT, Field, FieldLimits, FieldList};
use crate::frame::{BlockWriter, StreamId};
use crate::hpack::{DecodeError, Decoder, Encoder, TABLE_SIZE_DEFAULT};

pub(super) struct Contexts {
    encoder: Encoder,
    decoder: Decoder,
    fields: FieldList,
    /// The size of the fields that were decoded since [`Contexts::take_decoded_len`], in bytes.
    decoded_len: usize,
}

impl Contexts {
    pub(super) fn new(config: &Config) -> Self {
        let mut encoder = Encoder::new();
        encoder.set_table_size_local(config.encoder_table_size);
        encoder.set_index_policy(config.index_policy);
        Self { encoder, decoder: Decoder::new(TABLE_SIZE_DEFAULT), fields: FieldList::new(), decoded_len: 0 }
    }

    /// The peer has announced SETTINGS_HEADER_TABLE_SIZE.
    pub(super) fn set_encoder_table_size(&mut self, size: u32) {
        self.encoder.set_table_size_max(size);
    }

    /// The peer has acknowledged this side's SETTINGS_HEADER_TABLE_SIZE.
    pub(super) fn set_decoder_table_size(&mut self, size: u32) {
        self.decoder.set_table_size_max(size);
    }

    /// Decodes a complete block. Its fields replace those of the last one.
    #[inline]
    pub(super) fn decode(&mut self, block: &[u8], limits: &FieldLimits) -> Result<(), DecodeError> {
        self.decoder.decode(block, limits, &mut self.fields)?;
        self.decoded_len = self.decoded_len.saturating_add(self.fields.list_size());
        Ok(())
    }

    /// The size of the fields that were decoded since [`Contexts::take_decoded_len`], in bytes.
    #[inline]
    pub(super) const fn decoded_len(&self) -> usize {
        self.decoded_len
    }

    /// The size of the fields that were decoded since the last call, in bytes.
    #[inline]
    pub(super) const fn take_decoded_len(&mut self) -> usize {
        core::mem::replace(&mut self.decoded_len, 0)
    }

    #[inline]
    pub(super) const fn fields(&self) -> &FieldList {
        &self.fields
    }

    #[inline]
    pub(super) fn take_fields(&mut self) -> FieldList {
        core::mem::take(&mut self.fields)
    }

    /// Writes HEADERS, and CONTINUATION if the block is longer than a frame.
    #[inline]
    pub(super) fn write_headers<'f>(
        &mut self,
        out: &mut Vec<u8>,
        frame_len_max: u32,
        stream_id: StreamId,
        fields: impl Iterator<Item = Field<'f>>,
        end_stream: bool,
    ) {
        let block = BlockWriter::headers(stream_id, end_stream, out);
        self.encoder.encode(fields, out);
        block.finish(frame_len_max, out);
    }

    /// Writes PUSH_PROMISE, and CONTINUATION if the block is longer than a frame.
    pub(super) fn write_promise<'f>(
        &mut self,
        out: &mut Vec<u8>,
        frame_len_max: u32,
        stream_id: StreamId,
        promised: StreamId,
        fields: impl Iterator<Item = Field<'f>>,
    ) {
        let block = BlockWriter::push_promise(stream_id, promised, out);
        self.encoder.encode(fields, out);
        block.finish(frame_len_max, out);
    }

    /// Frees the fields of a message that no event reports, unless they take little memory.
    #[inline]
    pub(super) fn discard_fields(&mut self) {
        if self.fields.capacity() > ARENA_KEPT {
            self.fields = FieldList::new();
        }
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.fields.capacity()
    }

    /// Frees unused memory.
    pub(super) fn shrink(&mut self) {
        self.fields = FieldList::new();
    }
}
