//! Encodes messages and control frames into the send queue. `outbound` decides whether sending is allowed.

use crate::close::CloseFrame;
use crate::deflate::{Compressor, DeflatePool};
use crate::error::Misuse;
use crate::frame::{HEADER_LEN_MAX, Header, HeaderLog};
use crate::keys::MaskKeys;
use crate::limits::Limits;
use crate::mask;
use crate::opcode::{Kind, Opcode};
use crate::prepared::PreparedFrame;
use crate::send_queue::{APPENDED_LEN_MAX, SendQueue};
use alloc::boxed::Box;
use alloc::vec::Vec;
use bytes::Bytes;

/// A `Bytes` payload of at least this length is queued by reference. Copying a shorter one costs less than its reference count and
/// its own slice in the write.
const SHARED_LEN_MIN: usize = 4 << 10;

/// A longer payload is appended to the queue, so that its memory is not zeroed before.
const INITIALIZED_LEN_MAX: usize = 64 << 10;

/// RSV1 as [`Header::rsv`] has it.
pub(crate) const COMPRESSED: u8 = 4;

pub(crate) struct Sender {
    pub(crate) queue: SendQueue,
    queued_len_max: usize,
    /// The fast path appends only to a shorter queue, in bytes: one that is not congested, and in which the longest frame of the fast path
    /// does not exceed `queued_len_max`.
    pub(crate) append_len_max: u32,
    /// `None` if payloads are sent unchanged, neither masked nor compressed, and headers are not logged.
    pub(crate) processing: Option<Box<Processing>>,
    pub(crate) fragmented: Option<Fragmented>,
}

/// The message that is being sent in fragments.
#[derive(Clone, Copy)]
pub(crate) struct Fragmented {
    kind: Kind,
    is_compressed: bool,
    /// Its first frame was queued.
    is_begun: bool,
}

/// The steps between a payload and its frame.
#[derive(Default)]
pub(crate) struct Processing {
    /// Masking keys of a client; `None` for a server (RFC 6455 §5.3).
    keys: Option<MaskKeys>,
    deflate: Option<Deflate>,
    /// Headers of the queued frames, if they are logged.
    header_log: Option<Box<HeaderLog>>,
}

impl Processing {
    #[inline]
    fn log_header(&mut self, header: Header) {
        if let Some(header_log) = &mut self.header_log {
            header_log.headers.push(header);
        }
    }
}

/// The state of compressed messages.
struct Deflate {
    compressor: Compressor,
    /// Buffer for the compressed payload, whose length the header needs; empty between messages.
    compressed: Vec<u8>,
    /// See [`Outbound::take_compressed_len`](crate::Outbound::take_compressed_len).
    input_len: usize,
}

impl Sender {
    pub(crate) fn new(keys: Option<MaskKeys>, compressor: Option<Compressor>, limits: &Limits) -> Self {
        let Limits { queued_len_max, queued_len_high, .. } = *limits;
        let append_len_max = queued_len_max.saturating_sub(APPENDED_LEN_MAX).min(queued_len_high.max(1));
        let is_unchanged = keys.is_none() && compressor.is_none();
        let deflate =
            compressor.map(|compressor| Deflate { compressor, compressed: Vec::new(), input_len: 0 });
        Self {
            queue: SendQueue::default(),
            queued_len_max,
            append_len_max: append_len_max.try_into().unwrap_or(u32::MAX),
            processing: (!is_unchanged).then(|| Box::new(Processing { keys, deflate, header_log: None })),
            fragmented: None,
        }
    }

    /// Draws masking keys from `seed` from now on; does nothing for a server.
    pub(crate) fn reseed(&mut self, seed: [u8; 32]) {
        if let Some(Processing { keys: Some(keys), .. }) = self.processing.as_deref_mut() {
            *keys = MaskKeys::new(seed);
        }
    }

    /// Sends a message in one frame.
    #[inline]
    pub(crate) fn send_message(&mut self, kind: Kind, payload: &[u8], compress: bool) -> Result<(), Misuse> {
        self.check_message(payload.len())?;
        if compress && self.is_worthwhile(payload.len()) {
            self.queue_compressed(kind.opcode(), payload, true);
        } else {
            self.queue_frame(true, 0, kind.opcode(), payload);
        }
        Ok(())
    }

    /// Sends a message in one frame; a long payload is queued by reference.
    pub(crate) fn send_shared(&mut self, kind: Kind, payload: Bytes) -> Result<(), Misuse> {
        if payload.len() < SHARED_LEN_MIN {
            return self.send_message(kind, &payload, true);
        }
        if self.begin_borrowed(kind, &payload, |_| true)? {
            self.queue.push_shared(payload);
        }
        Ok(())
    }

    /// See [`Outbound::send_prepared`](crate::Outbound::send_prepared) and
    /// [`send_rest_of_prepared`](crate::Outbound::send_rest_of_prepared). A client masks a copy.
    pub(crate) fn send_prepared(&mut self, prepared: &PreparedFrame, written: usize) -> Result<(), Misuse> {
        let frame = prepared.as_bytes();
        self.check_message(frame.len())?;
        if let Some(bits) = prepared.window_bits() {
            match self.deflate_mut() {
                Some(deflate) if deflate.compressor.window_bits() >= bits => {
                    // This message is in the window of the peer, but not in that of the compressor.
                    deflate.compressor.forget();
                }
                _ => return Err(Misuse::PreparedForOthers),
            }
        }
        let Header { rsv, opcode, .. } = prepared.header();
        if self.masks() {
            self.queue_frame(true, rsv, opcode, prepared.payload());
            return Ok(());
        }
        self.log_header(prepared.header());
        let rest = frame.get(written..).unwrap_or_default();
        if rest.len() < SHARED_LEN_MIN {
            self.queue.push(rest);
        } else {
            self.queue.push_shared(frame.slice(written..));
        }
        Ok(())
    }

    /// Queues the header of a message whose payload the caller writes itself; see
    /// [`Outbound::send_borrowed`](crate::Outbound::send_borrowed). False when the payload was masked or compressed: then the whole
    /// message was queued. `keep` is called before that.
    pub(crate) fn begin_borrowed(
        &mut self,
        kind: Kind,
        payload: &[u8],
        keep: impl FnOnce(usize) -> bool,
    ) -> Result<bool, Misuse> {
        self.check_message(payload.len())?;
        let compresses = self.is_worthwhile(payload.len());
        if self.masks() || compresses {
            let queued = self.queue.len();
            // A compressed message is copied into the queue, because its length comes first.
            let copies = 1 + usize::from(compresses);
            if keep(queued.saturating_add(payload.len().saturating_mul(copies))) {
                self.send_message(kind, payload, true)?;
                return Ok(false);
            }
            if self.masks() {
                return Err(Misuse::QueueFull { queued, max: self.queued_len_max });
            }
        }
        let header = Header {
            fin: true,
            rsv: 0,
            opcode: kind.opcode(),
            mask: None,
            payload_len: payload.len() as u64,
        };
        self.log_header(header);
        let mut header_bytes = [0; HEADER_LEN_MAX];
        let len = header.encode(&mut header_bytes);
        self.queue.push(&header_bytes[..len]);
        Ok(true)
    }

    /// Logs the headers of queued frames from now on.
    pub(crate) fn log_headers(&mut self) {
        self.processing.get_or_insert_default().header_log.get_or_insert_default();
    }

    /// The headers that were logged since the last call.
    pub(crate) fn take_headers(&mut self) -> Vec<Header> {
        let header_log = self.processing.as_mut().and_then(|processing| processing.header_log.as_mut());
        header_log.map(|header_log| core::mem::take(&mut header_log.headers)).unwrap_or_default()
    }

    #[inline]
    fn log_header(&mut self, header: Header) {
        if let Some(processing) = &mut self.processing {
            processing.log_header(header);
        }
    }

    #[inline]
    pub(crate) fn is_compressed(&self) -> bool {
        self.compressor().is_some()
    }

    #[inline]
    pub(crate) fn compressor(&self) -> Option<&Compressor> {
        Some(&self.processing.as_ref()?.deflate.as_ref()?.compressor)
    }

    #[inline]
    fn deflate_mut(&mut self) -> Option<&mut Deflate> {
        self.processing.as_mut()?.deflate.as_mut()
    }

    /// Whether payloads are masked, as those of a client.
    #[inline]
    pub(crate) fn masks(&self) -> bool {
        self.processing.as_ref().is_some_and(|processing| processing.keys.is_some())
    }

    pub(crate) fn is_under_way(&self) -> bool {
        self.fragmented.is_some()
    }

    /// Drops all queued frames. Shared payloads are passed to `release`.
    pub(crate) fn drop_output(&mut self, release: impl FnMut(Bytes)) {
        self.queue.clear(release);
        self.fragmented = None;
        if let Some(deflate) = self.deflate_mut() {
            deflate.compressor.end();
        }
    }

    /// Sends the next fragment of a message (RFC 6455 §5.4).
    pub(crate) fn send_fragment(&mut self, kind: Kind, piece: &[u8], fin: bool) -> Result<(), Misuse> {
        self.check_room(piece.len())?;
        let mut message = match self.fragmented {
            None => Fragmented { kind, is_compressed: self.is_compressed(), is_begun: false },
            Some(message) if message.kind == kind => message,
            Some(_) => return Err(Misuse::MessageUnderWay),
        };
        let opcode = if message.is_begun { Opcode::Continuation } else { kind.opcode() };
        if message.is_compressed {
            message.is_begun |= self.queue_compressed(opcode, piece, fin);
        } else {
            self.queue_frame(fin, 0, opcode, piece);
            message.is_begun = true;
        }
        self.fragmented = (!fin).then_some(message);
        Ok(())
    }

    /// Sends a control frame, also into a full queue: the callers bound their number.
    pub(crate) fn send_control(&mut self, opcode: Opcode, payload: &[u8]) {
        self.queue_frame(true, 0, opcode, payload);
    }

    pub(crate) fn send_close(&mut self, close: CloseFrame<'_>) {
        let mut body = [0; 125];
        let len = match close.code {
            None => 0,
            Some(code) => {
                body[..2].copy_from_slice(&code.value().to_be_bytes());
                body[2..2 + close.reason.len()].copy_from_slice(close.reason.as_bytes());
                2 + close.reason.len()
            }
        };
        self.send_control(Opcode::Close, &body[..len]);
    }

    /// See [`Outbound::take_compressed_len`](crate::Outbound::take_compressed_len).
    pub(crate) fn take_compressed_len(&mut self) -> usize {
        self.deflate_mut().map_or(0, |deflate| core::mem::take(&mut deflate.input_len))
    }

    /// See [`Outbound::take_codec`](crate::Outbound::take_codec).
    pub(crate) fn take_codec(&mut self, pool: &mut DeflatePool) {
        if let Some(deflate) = self.deflate_mut() {
            deflate.compressor.take_codec(pool);
            if deflate.compressed.capacity() == 0 {
                deflate.compressed = pool.take_scratch();
            }
        }
    }

    /// See [`Outbound::return_codec`](crate::Outbound::return_codec).
    pub(crate) fn return_codec(&mut self, pool: &mut DeflatePool) {
        if let Some(deflate) = self.deflate_mut() {
            deflate.compressor.return_codec(pool);
            pool.put_scratch(core::mem::take(&mut deflate.compressed));
        }
    }

    /// Frees the memory that an idle connection does not need.
    pub(crate) fn release(&mut self) {
        self.queue.release();
        if let Some(deflate) = self.deflate_mut() {
            deflate.compressed = Vec::new();
            deflate.compressor.shrink();
        }
    }

    /// Checks that the queue has room for `len` bytes. An empty queue has room for a message of any length.
    #[inline]
    pub(crate) fn check_room(&self, len: usize) -> Result<(), Misuse> {
        if self.queue.is_empty() {
            return Ok(());
        }
        let queued = self.queue.len();
        if queued.saturating_add(len) > self.queued_len_max {
            return Err(Misuse::QueueFull { queued, max: self.queued_len_max });
        }
        Ok(())
    }

    /// As [`check_room`](Self::check_room), for a message in one frame: no other may be under way in fragments.
    #[inline]
    fn check_message(&self, len: usize) -> Result<(), Misuse> {
        self.check_room(len)?;
        if self.fragmented.is_some() { Err(Misuse::MessageUnderWay) } else { Ok(()) }
    }

    /// Compresses `piece` and queues it as a frame. Returns false if the compressor has no output yet: a frame without payload would only
    /// count towards the limit that the peer has on fragments.
    fn queue_compressed(&mut self, opcode: Opcode, piece: &[u8], fin: bool) -> bool {
        let Some(Deflate { compressor, compressed, input_len }) = self.deflate_mut() else { return false };
        *input_len = input_len.saturating_add(piece.len());
        let mut compressed = core::mem::take(compressed);
        compressor.compress_chunk(piece, fin, &mut compressed);
        let has_output = !compressed.is_empty();
        if has_output {
            // RFC 7692 §6.1: RSV1 is set only on the first frame of a compressed message.
            let rsv = if opcode == Opcode::Continuation { 0 } else { COMPRESSED };
            self.queue_frame(fin, rsv, opcode, &compressed);
        }
        compressed.clear();
        if let Some(deflate) = self.deflate_mut() {
            deflate.compressed = compressed;
        }
        has_output
    }

    /// Whether a message of this length should be compressed.
    #[inline]
    fn is_worthwhile(&self, len: usize) -> bool {
        self.compressor().is_some_and(|compressor| compressor.is_worthwhile(len))
    }

    /// Queues one frame.
    #[inline]
    fn queue_frame(&mut self, fin: bool, rsv: u8, opcode: Opcode, payload: &[u8]) {
        let mut header = Header { fin, rsv, opcode, mask: None, payload_len: payload.len() as u64 };
        if let Some(processing) = &mut self.processing {
            header.mask = processing.keys.as_mut().map(MaskKeys::next_key);
            processing.log_header(header);
        }
        let mask = header.mask;
        let mut header_bytes = [0; HEADER_LEN_MAX];
        let len = header.encode(&mut header_bytes);
        if payload.len() <= INITIALIZED_LEN_MAX {
            return match mask {
                None => self.queue.push_frame(&header_bytes, len, payload),
                Some(key) => self.queue.push_masked_frame(&header_bytes, len, payload, key),
            };
        }
        self.queue.append_with(|out| {
            out.reserve(HEADER_LEN_MAX + payload.len());
            let begin = out.len();
            // Appends all 14 bytes, because a constant length needs no call, and truncates to the length of the header.
            out.extend_from_slice(&header_bytes);
            out.truncate(begin + len);
            match mask {
                Some(key) => {
                    mask::extend(out, payload, key);
                }
                None => out.extend_from_slice(payload),
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deflate::{DeflateConfig, DeflateParams};
    use crate::role::Role;
    use alloc::vec;

    fn sender() -> Sender {
        Sender::new(None, None, &Limits::default())
    }

    fn compressing() -> Sender {
        let config = DeflateConfig { min_len: 0, ..DeflateConfig::default() };
        let compressor = Compressor::new(Role::Server, &DeflateParams::default(), &config);
        Sender::new(None, Some(compressor), &Limits::default())
    }

    fn transmitted_slices(sender: &Sender) -> Vec<&[u8]> {
        let mut slices: [&[u8]; 4] = [&[]; 4];
        let count = sender.queue.transmit(&mut slices);
        slices[..count].to_vec()
    }

    #[test]
    fn sends_long_payloads_by_reference() {
        for (len, is_shared) in
            [(SHARED_LEN_MIN - 1, false), (SHARED_LEN_MIN, true), (SHARED_LEN_MIN + 1, true)]
        {
            let payload = Bytes::from(vec![7; len]);
            let mut sender = sender();
            sender.send_shared(Kind::Binary, payload.clone()).unwrap();
            let slices = transmitted_slices(&sender);
            assert_eq!(slices.len(), if is_shared { 2 } else { 1 });
            assert_eq!(slices.iter().any(|slice| slice.as_ptr() == payload.as_ptr()), is_shared, "{len}");
            assert_eq!(slices.concat()[4..], payload);
        }
        // The length of a prepared frame includes its header.
        for (len, is_shared) in
            [(SHARED_LEN_MIN - 5, false), (SHARED_LEN_MIN - 4, true), (SHARED_LEN_MIN - 3, true)]
        {
            let frame = PreparedFrame::binary(&vec![7; len]);
            let mut sender = sender();
            sender.send_prepared(&frame, 0).unwrap();
            assert_eq!(
                transmitted_slices(&sender)[0].as_ptr() == frame.as_bytes().as_ptr(),
                is_shared,
                "{len}"
            );
            assert_eq!(transmitted_slices(&sender).concat(), frame.as_bytes()[..]);
        }
    }

    #[test]
    fn a_queued_message_takes_little_more_memory_than_its_length() {
        for len in
            [INITIALIZED_LEN_MAX - 1, INITIALIZED_LEN_MAX, INITIALIZED_LEN_MAX + 1, 10 * INITIALIZED_LEN_MAX]
        {
            for keys in [None, Some(MaskKeys::new([1; 32]))] {
                let mut sender = Sender::new(keys, None, &Limits::default());
                sender.send_message(Kind::Binary, &vec![7; len], true).unwrap();
                assert!(sender.queue.len() > len);
                assert_eq!(sender.queue.take_buffer().capacity(), 0, "{len}");
            }
        }
    }

    #[test]
    fn shares_the_compression_buffer_through_the_pool() {
        let capacity = |sender: &Sender| {
            sender.processing.as_ref().unwrap().deflate.as_ref().unwrap().compressed.capacity()
        };
        let (mut pool, mut sender) = (DeflatePool::new(1, 1), compressing());
        sender.send_message(Kind::Text, b"Hello", true).unwrap();
        let len = capacity(&sender);
        assert!(len > 0);
        sender.return_codec(&mut pool);
        assert_eq!(capacity(&sender), 0);
        // A sender without a buffer does not replace that of the pool.
        compressing().return_codec(&mut pool);
        let mut other = compressing();
        other.take_codec(&mut pool);
        assert_eq!(capacity(&other), len);
        // A sender with a buffer does not take another one.
        other.take_codec(&mut pool);
        assert_eq!(capacity(&other), len);
        other.release();
        assert_eq!(capacity(&other), 0);
    }
}
