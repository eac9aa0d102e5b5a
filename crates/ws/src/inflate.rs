//! [`Inflate`]: the state of compressed messages (RFC 7692) on their way to the assembly.

use crate::assembly::Assembly;
use crate::deflate::{Decompressor, DeflatePool, InflateError, InflateLimit, ROOM_MAX};
use crate::error::{Error, LimitExceeded, PeerMisbehaved};
use crate::event::Whole;
use crate::limits::{INFLATE_RATIO_FREE, Limits};
use crate::opcode::Kind;
use crate::utf8;
use alloc::vec::Vec;

/// The longest chunk of a compressed message.
const CHUNK_LEN: usize = 32 << 10;

/// Bytes that one call of a [`Reader`](crate::Reader) inflates of a message that is collected: about a quarter of a millisecond.
pub(crate) const STEP_LEN: usize = 256 << 10;

/// A call may exceed [`STEP_LEN`] by up to this many bytes.
pub(crate) const STEP_EXTRA_LEN_MAX: usize = ROOM_MAX;

pub(crate) struct Inflate {
    decompressor: Decompressor,
    limit: InflateLimit,
    utf8: utf8::Validator,
    /// Compressed bytes that are inflated step by step.
    pending: Option<Pending>,
    /// The buffer for the next [`Pending`].
    spare: Vec<u8>,
    /// Bytes of all messages so far.
    total_len: u64,
}

struct Pending {
    kind: Kind,
    /// The message ends with these bytes.
    fin: bool,
    bytes: Vec<u8>,
    /// Bytes that have been inflated.
    at: usize,
}

/// A part of a message that was inflated to the end of the assembly.
#[derive(Default)]
pub(crate) struct Inflated {
    /// The length of the part in bytes.
    pub(crate) len: usize,
    /// The kind of the message if this is its end.
    pub(crate) end: Option<Whole>,
}

impl Inflate {
    pub(crate) fn new(decompressor: Decompressor, limits: &Limits) -> Self {
        let mut limit = InflateLimit::new(usize::try_from(limits.message_len_max).unwrap_or(usize::MAX));
        limit.max_ratio = limits.inflate_ratio_max;
        limit.ratio_free_len = INFLATE_RATIO_FREE as usize;
        let utf8 = utf8::Validator::new();
        Self { decompressor, limit, utf8, pending: None, spare: Vec::new(), total_len: 0 }
    }

    /// The kind of the message whose bytes are pending.
    pub(crate) fn pending(&self) -> Option<Kind> {
        self.pending.as_ref().map(|pending| pending.kind)
    }

    /// Stores compressed bytes for [`Inflate::next_chunk`] and [`Inflate::append_pending`].
    pub(crate) fn push(&mut self, kind: Kind, data: &[u8], fin: bool) {
        let mut bytes = core::mem::take(&mut self.spare);
        bytes.clear();
        bytes.extend_from_slice(data);
        self.pending = Some(Pending { kind, fin, bytes, at: 0 });
    }

    /// Inflates a part of a message and appends it to the assembly, until `len_min` bytes were appended. The rest becomes pending.
    pub(crate) fn append(
        &mut self,
        kind: Kind,
        data: &[u8],
        fin: bool,
        assembly: &mut Assembly,
        len_min: usize,
    ) -> Result<Inflated, Error> {
        let (inflated, consumed) = self.append_step(kind, data, fin, assembly, len_min)?;
        if let Some(consumed) = consumed {
            self.push(kind, &data[consumed..], fin);
        }
        Ok(inflated)
    }

    /// Inflates pending bytes and appends them to the assembly, until `len_min` bytes were appended.
    pub(crate) fn append_pending(
        &mut self,
        assembly: &mut Assembly,
        len_min: usize,
    ) -> Result<Inflated, Error> {
        let Some(mut pending) = self.pending.take() else { return Ok(Inflated::default()) };
        let Pending { kind, fin, ref bytes, at } = pending;
        let (inflated, consumed) = self.append_step(kind, &bytes[at..], fin, assembly, len_min)?;
        match consumed {
            Some(consumed) => {
                pending.at += consumed;
                self.pending = Some(pending);
            }
            None => self.spare = pending.bytes,
        }
        Ok(inflated)
    }

    /// Also returns the number of bytes that were consumed, unless it was all of them.
    fn append_step(
        &mut self,
        kind: Kind,
        data: &[u8],
        fin: bool,
        assembly: &mut Assembly,
        len_min: usize,
    ) -> Result<(Inflated, Option<usize>), Error> {
        let Self { decompressor, limit, utf8, total_len, .. } = self;
        let (step, text) = assembly.append_with(|out| decompressor.append(data, fin, out, limit, len_min));
        *total_len += text.len() as u64;
        let consumed = step.ok().filter(|step| step.more).map(|step| step.consumed);
        // Text before the byte at which inflation fails is validated first, so that the error does not depend on how the input is
        // split.
        let end = validate(kind, utf8, text, fin && step.is_ok() && consumed.is_none())?;
        step.map_err(|error| inflate_error(error, limit))?;
        Ok((Inflated { len: text.len(), end }, consumed))
    }

    /// Inflates the next chunk of the pending bytes. The assembly is overwritten with it.
    pub(crate) fn next_chunk(&mut self, assembly: &mut Assembly) -> Result<Inflated, Error> {
        let Self { decompressor, limit, utf8, pending: pending_slot, spare, total_len } = self;
        let Some(pending) = pending_slot else { return Ok(Inflated::default()) };
        let (kind, fin) = (pending.kind, pending.fin);
        let slot = assembly.reset_to(CHUNK_LEN);
        let before = decompressor.message_len();
        let step = decompressor.step(&pending.bytes[pending.at..], fin, slot, limit).map_err(|error| {
            let produced = decompressor.message_len().min(limit.max_len).saturating_sub(before);
            let valid = validate(kind, utf8, &slot[..produced], false);
            valid.err().map_or_else(|| inflate_error(error, limit), Error::from)
        })?;
        let end = validate(kind, utf8, &slot[..step.produced], fin && !step.more)?;
        assembly.filled(step.produced);
        *total_len += step.produced as u64;
        pending.at += step.consumed;
        if !step.more {
            *spare = pending_slot.take().map(|pending| pending.bytes).unwrap_or_default();
        }
        Ok(Inflated { len: step.produced, end })
    }

    /// Takes a codec from the pool.
    pub(crate) fn take_codec(&mut self, pool: &mut DeflatePool) {
        self.decompressor.take_codec(pool);
    }

    /// Returns the codec to the pool, except within a message.
    pub(crate) fn return_codec(&mut self, pool: &mut DeflatePool) {
        self.spare = Vec::new();
        self.decompressor.return_codec(pool);
    }

    /// Frees the memory that an idle connection does not need.
    pub(crate) fn shrink(&mut self) {
        self.spare = Vec::new();
        self.decompressor.shrink();
    }

    /// Bytes of all messages so far.
    pub(crate) fn total_len(&self) -> u64 {
        self.total_len
    }

    /// Memory in use, in bytes.
    pub(crate) fn memory_len(&self) -> usize {
        let pending = self.pending.as_ref().map_or(0, |pending| pending.bytes.capacity());
        self.decompressor.memory_len() + self.spare.capacity() + pending
    }
}

/// Validates inflated text (RFC 6455 §8.1). At the end of the message it returns its kind.
fn validate(
    kind: Kind,
    utf8: &mut utf8::Validator,
    bytes: &[u8],
    fin: bool,
) -> Result<Option<Whole>, PeerMisbehaved> {
    let whole = match kind {
        Kind::Binary => Whole::Binary,
        Kind::Text => {
            utf8.push(bytes).map_err(|_| PeerMisbehaved::InvalidUtf8)?;
            if !fin {
                return Ok(None);
            }
            Whole::Text(utf8.finish_text().map_err(|_| PeerMisbehaved::InvalidUtf8)?)
        }
    };
    Ok(fin.then_some(whole))
}

fn inflate_error(error: InflateError, limit: &InflateLimit) -> Error {
    match error {
        InflateError::TooLarge => LimitExceeded::InflatedTooLarge { max: limit.max_len as u64 }.into(),
        InflateError::Ratio => LimitExceeded::InflateRatio { max: limit.max_ratio }.into(),
        InflateError::OutOfMemory => LimitExceeded::OutOfMemory.into(),
        InflateError::Corrupt => PeerMisbehaved::InvalidDeflate.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deflate::{Compressor, DeflateConfig, DeflateParams};
    use crate::role::Role;

    #[test]
    fn counts_the_memory_of_compressed_messages() {
        let (limits, params) = (Limits::default(), DeflateParams::default());
        let mut inflate = Inflate::new(Decompressor::new(Role::Client, &params), &limits);
        let mut assembly = Assembly::default();
        assert_eq!(inflate.memory_len(), 0);
        let mut compressed = Vec::new();
        Compressor::new(Role::Server, &params, &DeflateConfig::default())
            .compress(&[7; 100_000], &mut compressed);
        let len = compressed.len();
        inflate.push(Kind::Binary, &compressed, true);
        for is_last in [false, false, false, true] {
            let inflated = inflate.next_chunk(&mut assembly).unwrap();
            assert_eq!(inflated.end.is_some(), is_last);
            let pending = inflate.pending.as_ref().map_or(0, |pending| pending.bytes.capacity());
            let (codec, spare) = (inflate.decompressor.memory_len(), inflate.spare.capacity());
            assert!(assembly.capacity() >= CHUNK_LEN && codec > 32 << 10);
            assert_eq!((spare >= len, pending >= len), (is_last, !is_last));
            assert_eq!(inflate.memory_len(), codec + spare + pending);
        }
        // The next message uses the memory of the last one.
        inflate.shrink();
        assert_eq!((inflate.spare.capacity(), inflate.pending()), (0, None));
    }
}
