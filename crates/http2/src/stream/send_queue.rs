//! The send queues of all streams: chunks of DATA, and the trailers that follow them.
//!
//! All streams share two pools, so that a stream with an empty queue uses no memory. The scheduler chooses between the streams.

use alloc::vec::Vec;
use bytes::Bytes;

use super::{NONE, Stream};
use crate::field::{ARENA_KEPT, FieldList};

struct Chunk {
    data: Bytes,
    /// The next chunk of the same stream; the first chunk after the last one. In a vacant entry, the next vacant one.
    next: u32,
}

/// The memory that a chunk takes beside its content, in bytes: its entry, and the reference count that [`Bytes`] allocates.
const ENTRY_LEN: u64 = size_of::<Chunk>() as u64 + 24;

/// Chunks of DATA. The chunks of each stream are linked into a ring, whose last one is `stream.last_chunk`.
///
/// Invariant: `stream.queued` is the sum of the lengths of a stream's chunks, `content` is the sum over all streams, and no chunk
/// is empty.
pub(crate) struct ChunkPool {
    chunks: Vec<Chunk>,
    vacant: u32,
    len: usize,
    /// The length of the content of all chunks, in bytes.
    content: u64,
    /// Chunks of streams that have ended, until [`ChunkPool::take_spent`].
    spent: Vec<Bytes>,
}

impl ChunkPool {
    pub(crate) const fn new() -> Self {
        Self { chunks: Vec::new(), vacant: NONE, len: 0, content: 0, spent: Vec::new() }
    }

    /// The memory of the queued DATA of all streams, in bytes. Short chunks take more than their content.
    #[inline]
    pub(crate) const fn queued(&self) -> u64 {
        self.content + self.len as u64 * ENTRY_LEN
    }

    /// The length of the queued DATA of all streams, in bytes.
    #[cfg(test)]
    pub(super) const fn content(&self) -> u64 {
        self.content
    }

    /// Appends a chunk, which is not empty. Returns `false` if the stream's queue would reach 4 GiB: then the chunk is discarded.
    pub(crate) fn push(&mut self, stream: &mut Stream, data: Bytes) -> bool {
        debug_assert!(!data.is_empty());
        let Some(queued) = u32::try_from(data.len()).ok().and_then(|len| stream.queued.checked_add(len))
        else {
            self.spent.push(data);
            return false;
        };
        self.content += data.len() as u64;
        stream.queued = queued;
        let chunk = Chunk { data, next: NONE };
        let last = stream.last_chunk;
        let at = if self.vacant == NONE {
            self.chunks.push(chunk);
            (self.chunks.len() - 1) as u32
        } else {
            let at = self.vacant;
            let place = &mut self.chunks[at as usize];
            self.vacant = place.next;
            *place = chunk;
            at
        };
        let first =
            if last == NONE { at } else { core::mem::replace(&mut self.chunks[last as usize].next, at) };
        self.chunks[at as usize].next = first;
        stream.last_chunk = at;
        self.len += 1;
        true
    }

    /// The length of the next frame, at most `max`, which is not 0. The frame has the first chunk, up to `max` bytes, and the following
    /// ones as long as they fit completely: a stream with small chunks sends about as much per turn as one with large ones. Returns 0 if
    /// nothing is queued.
    pub(crate) fn frame_len(&self, stream: &Stream, max: usize) -> usize {
        let last = stream.last_chunk;
        let Some(chunk) = self.chunks.get(last as usize) else { return 0 };
        let (mut at, mut len) = (chunk.next, 0);
        loop {
            let chunk = &self.chunks[at as usize];
            let next_len = chunk.data.len();
            if len > 0 && len + next_len > max {
                return len;
            }
            len += next_len;
            if at == last || len >= max {
                return len.min(max);
            }
            at = chunk.next;
        }
    }

    /// Removes at most `max` bytes, which is not 0, from the first chunk; `None` if nothing is queued.
    pub(crate) fn pop(&mut self, stream: &mut Stream, max: usize) -> Option<Bytes> {
        let last = stream.last_chunk;
        let at = self.chunks.get(last as usize)?.next;
        let chunk = &mut self.chunks[at as usize];
        let piece = if chunk.data.len() > max {
            chunk.data.split_to(max)
        } else {
            let data = core::mem::take(&mut chunk.data);
            let next = chunk.next;
            if at == last {
                stream.last_chunk = NONE;
            } else {
                self.chunks[last as usize].next = next;
            }
            self.free(at);
            data
        };
        self.content -= piece.len() as u64;
        stream.queued -= piece.len() as u32;
        Some(piece)
    }

    /// Discards the queued chunks of a stream.
    pub(crate) fn clear(&mut self, stream: &mut Stream) {
        let last = core::mem::replace(&mut stream.last_chunk, NONE);
        let mut at = if last == NONE { NONE } else { self.chunks[last as usize].next };
        while at != NONE {
            let chunk = &mut self.chunks[at as usize];
            self.spent.push(core::mem::take(&mut chunk.data));
            let next = chunk.next;
            self.free(at);
            at = if at == last { NONE } else { next };
        }
        self.content -= u64::from(stream.queued);
        stream.queued = 0;
    }

    /// Discards a chunk that is not queued.
    pub(crate) fn discard(&mut self, data: Bytes) {
        self.spent.push(data);
    }

    #[inline]
    fn free(&mut self, at: u32) {
        self.chunks[at as usize].next = self.vacant;
        self.vacant = at;
        self.len -= 1;
    }

    /// Moves the discarded chunks to `to`.
    pub(crate) fn take_spent(&mut self, to: &mut Vec<Bytes>) {
        to.append(&mut self.spent);
    }

    /// Drops the discarded chunks.
    #[inline]
    pub(crate) fn drop_spent(&mut self) {
        if !self.spent.is_empty() {
            self.spent.clear();
        }
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.chunks.capacity()
    }

    /// Frees memory if nothing is queued.
    pub(crate) fn shrink(&mut self) {
        if self.len == 0 {
            *self = Self { spent: core::mem::take(&mut self.spent), ..Self::new() };
            self.spent.shrink_to_fit();
        }
    }
}

/// Trailers of one stream.
struct Trailers {
    fields: FieldList,
    /// In a vacant entry, the next vacant one.
    next_vacant: u32,
}

/// Trailers that follow queued DATA. They are encoded when they are sent, because the order of blocks matters to HPACK (RFC 9113 §4.3).
pub(crate) struct TrailerPool {
    entries: Vec<Trailers>,
    vacant: u32,
    len: usize,
}

impl TrailerPool {
    pub(crate) const fn new() -> Self {
        Self { entries: Vec::new(), vacant: NONE, len: 0 }
    }

    /// Adds an entry. Returns its index and its list of fields, which is empty.
    pub(crate) fn add(&mut self) -> (u32, &mut FieldList) {
        self.len += 1;
        let at = if self.vacant == NONE {
            self.entries.push(Trailers { fields: FieldList::new(), next_vacant: NONE });
            (self.entries.len() - 1) as u32
        } else {
            let at = self.vacant;
            self.vacant = self.entries[at as usize].next_vacant;
            at
        };
        let fields = &mut self.entries[at as usize].fields;
        fields.clear();
        (at, fields)
    }

    #[inline]
    pub(crate) fn fields(&self, at: u32) -> &FieldList {
        &self.entries[at as usize].fields
    }

    /// Removes an entry.
    pub(crate) fn remove(&mut self, at: u32) {
        let entry = &mut self.entries[at as usize];
        if entry.fields.list_size() > ARENA_KEPT {
            entry.fields = FieldList::new();
        }
        entry.next_vacant = self.vacant;
        self.vacant = at;
        self.len -= 1;
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.entries.capacity()
    }

    /// Frees memory if nothing is queued.
    pub(crate) fn shrink(&mut self) {
        if self.len == 0 {
            *self = Self::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{RecvPhase, SendPhase};
    use super::*;
    use crate::field::{Field, Token};
    use crate::frame::StreamId;
    use alloc::vec;
    use wireloom_testing::{Rng, rounds};

    fn stream(id: u32) -> Stream {
        Stream::new(StreamId::new(id).unwrap(), RecvPhase::Content, SendPhase::Content)
    }

    #[test]
    fn discarded_chunks_are_dropped_once() {
        let (mut pool, mut stream, mut spent) = (ChunkPool::new(), Stream::VACANT, Vec::new());
        for is_dropped in [false, true] {
            assert!(pool.push(&mut stream, Bytes::from_static(b"x")));
            pool.clear(&mut stream);
            if is_dropped {
                pool.drop_spent();
            }
            pool.take_spent(&mut spent);
            assert_eq!(spent.len(), 1, "the second chunk was dropped");
        }
    }

    #[test]
    fn chunks_of_any_size_leave_in_order() {
        rounds(4, random_chunks);
    }

    fn random_chunks(random: &mut Rng) {
        let mut pool = ChunkPool::new();
        let mut streams = [stream(1), stream(3), stream(5)];
        let mut model: [Vec<u8>; 3] = Default::default();
        for n in 0..3000_u32 {
            let which = random.usize(..3);
            let (stream, expected) = (&mut streams[which], &mut model[which]);
            match random.u32(..10) {
                0..5 => {
                    let piece: Vec<u8> = (0..random.usize(1..9)).map(|i| (n as usize + i) as u8).collect();
                    expected.extend_from_slice(&piece);
                    assert!(pool.push(stream, piece.into()));
                }
                5..9 => {
                    let max = random.usize(1..12);
                    let len = pool.frame_len(stream, max);
                    assert!(len <= max && (len == 0) == expected.is_empty());
                    match pool.pop(stream, max) {
                        Some(piece) => {
                            assert!(!piece.is_empty() && piece.len() <= max);
                            assert_eq!(expected.drain(..piece.len()).as_slice(), &piece[..]);
                        }
                        None => assert!(expected.is_empty()),
                    }
                }
                _ => {
                    pool.clear(stream);
                    expected.clear();
                }
            }
            assert_eq!(stream.queued as usize, expected.len());
            assert_eq!(pool.content(), model.iter().map(|expected| expected.len() as u64).sum());
        }
        streams.iter_mut().for_each(|stream| pool.clear(stream));
        assert_eq!(pool.queued(), 0);
        pool.shrink();
        assert_eq!(pool.capacity(), 0);
    }

    #[test]
    fn chunks_share_a_frame() {
        let mut pool = ChunkPool::new();
        let frames = |pool: &mut ChunkPool, lens: &[usize], max: usize| {
            let mut stream = stream(1);
            lens.iter().for_each(|&len| assert!(pool.push(&mut stream, vec![0; len].into())));
            let mut frames = vec![];
            while stream.queued > 0 {
                let len = pool.frame_len(&stream, max);
                let mut left = len;
                while left > 0 {
                    left -= pool.pop(&mut stream, left).unwrap().len();
                }
                frames.push(len);
            }
            assert_eq!(pool.frame_len(&stream, max), 0);
            frames
        };
        assert_eq!(frames(&mut pool, &[3, 4, 5], 100), [12]);
        assert_eq!(frames(&mut pool, &[3, 4, 5], 12), [12]);
        assert_eq!(frames(&mut pool, &[3, 4, 5], 11), [7, 5]);
        assert_eq!(frames(&mut pool, &[3, 4, 5], 2), [2, 1, 2, 2, 2, 2, 1]);
        assert_eq!(frames(&mut pool, &[3, 10, 4, 5], 100), [22]);
        assert_eq!(frames(&mut pool, &[250, 4, 40], 100), [100, 100, 94]);
        assert_eq!(frames(&mut pool, &[60, 40, 60, 41], 100), [100, 60, 41]);
        assert_eq!(frames(&mut pool, &[9; 25], 100), [99, 99, 27]);
    }

    #[test]
    fn a_vacant_entry_keeps_little_memory() {
        let mut trailers = TrailerPool::new();
        for (list_size, is_kept) in [(ARENA_KEPT - 1, true), (ARENA_KEPT, true), (ARENA_KEPT + 1, false)] {
            let (at, fields) = trailers.add();
            fields.push(Field::new(b"x", &vec![7; list_size - 33]));
            assert_eq!(fields.list_size(), list_size);
            trailers.shrink();
            assert_eq!(trailers.fields(at).len(), 1, "what is in use stays");
            trailers.remove(at);
            assert_eq!(trailers.entries[at as usize].fields.capacity() > 0, is_kept, "{list_size}");
            trailers.shrink();
            assert_eq!(trailers.capacity(), 0);
        }
    }

    #[test]
    fn vacant_entries_are_reused() {
        let mut trailers = TrailerPool::new();
        let (first, fields) = trailers.add();
        fields.push(Field::known(Token::Status, b"200"));
        assert_eq!(trailers.fields(first).len(), 1);
        let (other, _) = trailers.add();
        trailers.remove(first);
        let (again, fields) = trailers.add();
        assert!(again == first && fields.is_empty());
        trailers.remove(other);
        trailers.remove(again);
        assert_eq!(trailers.len, 0);
    }
}
