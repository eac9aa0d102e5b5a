//! The sending half of a connection: messages and control frames into the queue of outgoing bytes. Whether sending is
//! still allowed is `connection`'s to say.

use crate::close::CloseFrame;
use crate::deflate::{Compressor, DeflateConfig, DeflatePool};
use crate::error::Misuse;
use crate::frame::{FIN, HEADER_LEN_MAX, Header, HeaderLog};
use crate::keys::MaskKeys;
use crate::mask;
use crate::opcode::{Kind, Opcode};
use crate::outgoing::Outgoing;
use crate::prepared::PreparedFrame;
use alloc::boxed::Box;
use alloc::vec::Vec;
use bytes::Bytes;

/// A payload from this length on is passed by reference when the caller gives a `Bytes`. A shorter one is copied: it needs no
/// count of references and no slice of its own.
const SHARED_LEN_MIN: usize = 4 << 10;

/// A longer payload is appended to the queue instead of being copied into memory that was initialized for it.
const INITIALIZED_LEN_MAX: usize = 64 << 10;

/// RSV1 as [`Header::rsv`] has it.
pub(crate) const COMPRESSED: u8 = 4;

pub(crate) struct Sender {
    /// Set for a client, which masks (RFC 6455 §5.3).
    keys: Option<Box<MaskKeys>>,
    pub(crate) outgoing: Outgoing,
    queued_len_max: usize,
    deflate: Option<Box<Deflate>>,
    /// The message that is being sent in pieces, and whether it is compressed.
    under_way: Option<(Kind, bool)>,
    /// Headers of frames that were queued, when they are observed.
    seen: Option<Box<HeaderLog>>,
    /// Whole messages go as they are: neither masked nor compressed, and no one observes their headers.
    plain: bool,
}

/// The state of compressed messages.
struct Deflate {
    compressor: Compressor,
    /// Where a message is compressed before its length is known; empty between messages.
    compressed: Vec<u8>,
}

impl Sender {
    pub(crate) fn new(
        keys: Option<Box<MaskKeys>>,
        compressor: Option<Compressor>,
        queued_len_max: usize,
    ) -> Self {
        let outgoing = Outgoing::default();
        Self {
            plain: keys.is_none() && compressor.is_none(),
            keys,
            outgoing,
            queued_len_max,
            deflate: compressor.map(|compressor| Box::new(Deflate { compressor, compressed: Vec::new() })),
            under_way: None,
            seen: None,
        }
    }

    /// Masks with keys from `seed` from now on, if it masks.
    pub(crate) fn reseed(&mut self, seed: [u8; 32]) {
        if let Some(keys) = &mut self.keys {
            **keys = MaskKeys::new(seed);
        }
    }

    /// Sends a message in one frame.
    #[inline]
    pub(crate) fn message(&mut self, kind: Kind, payload: &[u8], compress: bool) -> Result<(), Misuse> {
        self.admit(payload.len())?;
        if self.under_way.is_some() {
            return Err(Misuse::MessageUnderWay);
        }
        if compress && self.is_worthwhile(payload.len()) {
            self.compressed(kind.opcode(), payload, true, true);
        } else {
            self.frame(true, 0, kind.opcode(), payload);
        }
        Ok(())
    }

    /// See [`Outbound::append_message`](crate::Outbound::append_message).
    #[inline(always)]
    pub(crate) fn append(&mut self, kind: Kind, payload: &[u8], batch_len_max: usize) -> bool {
        self.plain
            && self.under_way.is_none()
            && self.outgoing.append(FIN | kind.opcode() as u8, payload, batch_len_max)
    }

    /// Sends a message in one frame, a long payload by reference.
    pub(crate) fn message_shared(&mut self, kind: Kind, payload: Bytes) -> Result<(), Misuse> {
        let compress = self.is_worthwhile(payload.len());
        if self.keys.is_some() || compress || payload.len() < SHARED_LEN_MIN {
            return self.message(kind, &payload, true);
        }
        self.admit(payload.len())?;
        if self.under_way.is_some() {
            return Err(Misuse::MessageUnderWay);
        }
        let (head, len) = self.unmasked_head(kind, payload.len());
        self.outgoing.push(&head[..len]);
        self.outgoing.push_shared(payload);
        Ok(())
    }

    /// Sends a message that was encoded before. A client masks it anew.
    pub(crate) fn prepared(&mut self, prepared: &PreparedFrame) -> Result<(), Misuse> {
        let frame = prepared.as_bytes();
        self.admit(frame.len())?;
        if self.under_way.is_some() {
            return Err(Misuse::MessageUnderWay);
        }
        if let Some(bits) = prepared.window_bits() {
            match &mut self.deflate {
                Some(deflate) if deflate.compressor.window_bits() >= bits => {
                    // The peer's window holds this message, the compressor's does not.
                    deflate.compressor.forget();
                }
                _ => return Err(Misuse::PreparedForOthers),
            }
        }
        let Header { rsv, opcode, .. } = prepared.header();
        if self.keys.is_some() {
            self.frame(true, rsv, opcode, prepared.payload());
            return Ok(());
        }
        self.note(prepared.header());
        if frame.len() < SHARED_LEN_MIN {
            self.outgoing.push(frame);
        } else {
            self.outgoing.push_shared(frame.clone());
        }
        Ok(())
    }

    /// See [`Outbound::prepared_window_bits`](crate::Outbound::prepared_window_bits).
    pub(crate) fn prepared_window_bits(&self, len: usize) -> Option<u8> {
        let compressor = &self.deflate.as_ref()?.compressor;
        compressor.is_worthwhile(len).then(|| compressor.window_bits())
    }

    /// See [`Outbound::prepared_config`](crate::Outbound::prepared_config).
    pub(crate) fn prepared_config(&self) -> DeflateConfig {
        self.deflate.as_ref().map(|deflate| deflate.compressor.config()).unwrap_or_default()
    }

    /// Queues the header of a message whose payload the caller writes from where it is; see
    /// [`Outbound::send_borrowed`](crate::Outbound::send_borrowed). False when the whole message was queued instead, since it
    /// is to be masked or compressed.
    pub(crate) fn begin_borrowed(&mut self, kind: Kind, payload: &[u8]) -> Result<bool, Misuse> {
        if self.keys.is_some() || self.is_worthwhile(payload.len()) {
            self.message(kind, payload, true)?;
            return Ok(false);
        }
        self.admit(payload.len())?;
        if self.under_way.is_some() {
            return Err(Misuse::MessageUnderWay);
        }
        let (head, len) = self.unmasked_head(kind, payload.len());
        self.outgoing.push(&head[..len]);
        Ok(true)
    }

    /// Notes the headers of frames from now on.
    pub(crate) fn watch(&mut self) {
        self.seen.get_or_insert_default();
        self.plain = false;
    }

    /// The headers that were noted since this was called last.
    pub(crate) fn take_seen(&mut self) -> Vec<Header> {
        self.seen.as_mut().map(|seen| core::mem::take(&mut seen.headers)).unwrap_or_default()
    }

    #[inline]
    fn note(&mut self, header: Header) {
        if let Some(seen) = &mut self.seen {
            seen.headers.push(header);
        }
    }

    #[inline]
    pub(crate) fn is_compressed(&self) -> bool {
        self.deflate.is_some()
    }

    pub(crate) fn is_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    /// What waits will not be sent.
    pub(crate) fn drop_output(&mut self) {
        self.outgoing.clear();
        self.under_way = None;
    }

    /// Sends the next piece of a message in a frame of its own (RFC 6455 §5.4).
    pub(crate) fn chunk(&mut self, kind: Kind, piece: &[u8], fin: bool) -> Result<(), Misuse> {
        self.admit(piece.len())?;
        let (opcode, compress) = match self.under_way {
            None => (kind.opcode(), self.deflate.is_some()),
            Some((under_way, compress)) if under_way == kind => (Opcode::Continuation, compress),
            Some(_) => return Err(Misuse::MessageUnderWay),
        };
        self.under_way = (!fin).then_some((kind, compress));
        if compress {
            self.compressed(opcode, piece, opcode != Opcode::Continuation, fin);
        } else {
            self.frame(fin, 0, opcode, piece);
        }
        Ok(())
    }

    /// Sends a ping or pong, or the Close frame's body, whatever waits already: these are bounded by their senders.
    pub(crate) fn control(&mut self, opcode: Opcode, payload: &[u8]) {
        self.frame(true, 0, opcode, payload);
    }

    pub(crate) fn close(&mut self, close: CloseFrame<'_>) {
        let mut body = [0; 125];
        let len = match close.code {
            None => 0,
            Some(code) => {
                body[..2].copy_from_slice(&code.value().to_be_bytes());
                body[2..2 + close.reason.len()].copy_from_slice(close.reason.as_bytes());
                2 + close.reason.len()
            }
        };
        self.control(Opcode::Close, &body[..len]);
    }

    /// See [`Outbound::take_codec`](crate::Outbound::take_codec).
    pub(crate) fn take_codec(&mut self, pool: &mut DeflatePool) {
        if let Some(deflate) = &mut self.deflate {
            deflate.compressor.take_codec(pool);
            if deflate.compressed.capacity() == 0 {
                deflate.compressed = pool.take_scratch();
            }
        }
    }

    /// See [`Outbound::return_codec`](crate::Outbound::return_codec).
    pub(crate) fn return_codec(&mut self, pool: &mut DeflatePool) {
        if let Some(deflate) = &mut self.deflate {
            deflate.compressor.return_codec(pool);
            pool.put_scratch(core::mem::take(&mut deflate.compressed));
        }
    }

    /// Gives back the memory that an idle connection can do without.
    pub(crate) fn release(&mut self) {
        self.outgoing.release();
        if let Some(deflate) = &mut self.deflate {
            deflate.compressed = Vec::new();
            deflate.compressor.shrink();
        }
    }

    /// A message always fits into an empty queue, however large: the bound is on what piles up.
    #[inline]
    pub(crate) fn admit(&self, len: usize) -> Result<(), Misuse> {
        let queued = self.outgoing.len();
        if queued > 0 && queued.saturating_add(len) > self.queued_len_max {
            return Err(Misuse::QueueFull { queued, max: self.queued_len_max });
        }
        Ok(())
    }

    /// RFC 7692 §6.1: RSV1 is set on the first frame of a compressed message alone.
    fn compressed(&mut self, opcode: Opcode, piece: &[u8], first: bool, fin: bool) {
        let Some(Deflate { compressor, compressed }) = self.deflate.as_deref_mut() else { return };
        let mut compressed = core::mem::take(compressed);
        if first && fin {
            compressor.compress(piece, &mut compressed);
        } else {
            compressor.compress_chunk(piece, fin, &mut compressed);
        }
        self.frame(fin, if first { COMPRESSED } else { 0 }, opcode, &compressed);
        compressed.clear();
        if let Some(deflate) = &mut self.deflate {
            deflate.compressed = compressed;
        }
    }

    /// Whether a message of this length is to be compressed.
    #[inline]
    fn is_worthwhile(&self, len: usize) -> bool {
        self.deflate.as_ref().is_some_and(|deflate| deflate.compressor.is_worthwhile(len))
    }

    /// Appends one frame to the queue.
    #[inline]
    fn frame(&mut self, fin: bool, rsv: u8, opcode: Opcode, payload: &[u8]) {
        let mask = self.keys.as_mut().map(|keys| keys.next_key());
        let header = Header { fin, rsv, opcode, mask, payload_len: payload.len() as u64 };
        self.note(header);
        let mut head = [0; HEADER_LEN_MAX];
        let len = header.encode(&mut head);
        if payload.len() <= INITIALIZED_LEN_MAX {
            return match mask {
                None => self.outgoing.push_frame(&head, len, payload),
                Some(key) => self.outgoing.push_masked_frame(&head, len, payload, key),
            };
        }
        self.outgoing.append_with(|out| {
            out.reserve(HEADER_LEN_MAX + payload.len());
            let begin = out.len();
            // All 14 bytes, a constant number, and back to the length of the header.
            out.extend_from_slice(&head);
            out.truncate(begin + len);
            match mask {
                Some(key) => {
                    mask::extend(out, payload, key);
                }
                None => out.extend_from_slice(payload),
            }
        });
    }

    /// The header of a message in one frame that goes as it is.
    fn unmasked_head(&mut self, kind: Kind, payload_len: usize) -> ([u8; HEADER_LEN_MAX], usize) {
        let header =
            Header { fin: true, rsv: 0, opcode: kind.opcode(), mask: None, payload_len: payload_len as u64 };
        self.note(header);
        let mut head = [0; HEADER_LEN_MAX];
        let len = header.encode(&mut head);
        (head, len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deflate::DeflateParams;
    use crate::role::Role;
    use alloc::vec;

    fn sender() -> Sender {
        Sender::new(None, None, 1 << 20)
    }

    fn compressing() -> Sender {
        let config = DeflateConfig { min_len: 0, ..DeflateConfig::default() };
        let compressor = Compressor::new(Role::Server, &DeflateParams::default(), &config);
        Sender::new(None, Some(compressor), 1 << 20)
    }

    fn shown(sender: &Sender) -> Vec<&[u8]> {
        let mut slices: [&[u8]; 4] = [&[]; 4];
        let count = sender.outgoing.transmit(&mut slices);
        slices[..count].to_vec()
    }

    #[test]
    fn sends_long_payloads_by_reference() {
        for (len, is_shared) in
            [(SHARED_LEN_MIN - 1, false), (SHARED_LEN_MIN, true), (SHARED_LEN_MIN + 1, true)]
        {
            let payload = Bytes::from(vec![7; len]);
            let mut sender = sender();
            sender.message_shared(Kind::Binary, payload.clone()).unwrap();
            let slices = shown(&sender);
            assert_eq!(slices.len(), if is_shared { 2 } else { 1 });
            assert_eq!(slices.iter().any(|slice| slice.as_ptr() == payload.as_ptr()), is_shared, "{len}");
            assert_eq!(slices.concat()[4..], payload);
        }
        // Header included.
        for (len, is_shared) in
            [(SHARED_LEN_MIN - 5, false), (SHARED_LEN_MIN - 4, true), (SHARED_LEN_MIN - 3, true)]
        {
            let frame = PreparedFrame::binary(&vec![7; len]);
            let mut sender = sender();
            sender.prepared(&frame).unwrap();
            assert_eq!(shown(&sender)[0].as_ptr() == frame.as_bytes().as_ptr(), is_shared, "{len}");
            assert_eq!(shown(&sender).concat(), frame.as_bytes()[..]);
        }
    }

    #[test]
    fn a_queued_message_takes_little_more_memory_than_its_length() {
        for len in
            [INITIALIZED_LEN_MAX - 1, INITIALIZED_LEN_MAX, INITIALIZED_LEN_MAX + 1, 10 * INITIALIZED_LEN_MAX]
        {
            for keys in [None, Some(Box::new(MaskKeys::new([1; 32])))] {
                let mut sender = Sender::new(keys, None, 1 << 20);
                sender.message(Kind::Binary, &vec![7; len], true).unwrap();
                assert!(sender.outgoing.len() > len);
                assert_eq!(sender.outgoing.take_buffer().capacity(), 0, "{len}");
            }
        }
    }

    // The memory in which messages are compressed is shared through the pool.
    #[test]
    fn returns_the_memory_of_compressed_messages() {
        let capacity = |sender: &Sender| sender.deflate.as_ref().unwrap().compressed.capacity();
        let (mut pool, mut sender) = (DeflatePool::new(1, 1), compressing());
        sender.message(Kind::Text, b"Hello", true).unwrap();
        let len = capacity(&sender);
        assert!(len > 0);
        sender.return_codec(&mut pool);
        assert_eq!(capacity(&sender), 0);
        // One that has none leaves the pool's alone.
        compressing().return_codec(&mut pool);
        let mut other = compressing();
        other.take_codec(&mut pool);
        assert_eq!(capacity(&other), len);
        // One that has memory takes no other.
        other.take_codec(&mut pool);
        assert_eq!(capacity(&other), len);
        other.release();
        assert_eq!(capacity(&other), 0);
    }
}
