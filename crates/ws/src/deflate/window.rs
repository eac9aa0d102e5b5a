//! The LZ77 window of one direction (RFC 7692 §7.1.1): the last bytes of its messages, to which the next message may refer.
//!
//! A codec has these bytes too, next to tables that are many times larger. The window is stored separately, so that an idle connection
//! keeps only the window, and any codec can continue from it.
//!
//! ```text
//! not full   bytes: [ oldest ........ newest ]             start = 0, len < len_max
//! full       bytes: [ ... newest | oldest ... ]            start = oldest, len = len_max
//! ```

use alloc::sync::Arc;
use alloc::vec::Vec;

/// Identifies the content of a window: its owner, and a position in the stream.
#[derive(Clone, Debug)]
pub(super) struct WindowId {
    owner: Arc<()>,
    position: u64,
}

#[derive(Debug)]
pub(super) struct Window {
    /// At most `len_max` bytes; a ring from `start` once it is full.
    bytes: Vec<u8>,
    start: usize,
    len_max: usize,
    /// Increases with each byte and each [`Window::clear`], so that each content has its own position.
    position: u64,
    /// Allocated for the first [`Window::id`].
    owner: Option<Arc<()>>,
}

impl Window {
    /// An empty window of up to `len_max` bytes; 0 without context takeover.
    pub(super) const fn new(len_max: usize) -> Self {
        Self { bytes: Vec::new(), start: 0, len_max, position: 0, owner: None }
    }

    /// Appends bytes of a message, and drops those beyond `len_max`.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.position += bytes.len() as u64;
        if bytes.len() >= self.len_max {
            self.start = 0;
            self.bytes.clear();
            // `len_max` is 0 without context takeover.
            self.append(&bytes[bytes.len() - self.len_max..]);
            return;
        }
        let (head, rest) = bytes.split_at(bytes.len().min(self.len_max - self.bytes.len()));
        self.append(head);
        if rest.is_empty() {
            return;
        }
        // The ring is full: the newest bytes replace the oldest.
        let (first, second) = rest.split_at(rest.len().min(self.len_max - self.start));
        self.bytes[self.start..self.start + first.len()].copy_from_slice(first);
        self.bytes[..second.len()].copy_from_slice(second);
        self.start = (self.start + rest.len()) % self.len_max;
    }

    /// Appends to a ring that is not full. Its capacity is at most one and a half times its content.
    fn append(&mut self, bytes: &[u8]) {
        let spare = self.bytes.capacity() - self.bytes.len();
        if spare < bytes.len() {
            let half = self.bytes.len() / 2;
            self.bytes.reserve_exact(bytes.len().max(half).min(self.len_max - self.bytes.len()));
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// Empties the window.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.start = 0;
        self.position += 1;
    }

    /// The content, oldest byte first.
    pub(super) fn as_slice(&mut self) -> &[u8] {
        self.bytes.rotate_left(self.start);
        self.start = 0;
        &self.bytes
    }

    /// The identifier of the content.
    pub(super) fn id(&mut self) -> WindowId {
        let owner = self.owner.get_or_insert_with(|| Arc::new(())).clone();
        WindowId { owner, position: self.position }
    }

    /// Whether `id` identifies the content.
    pub(super) fn is(&self, id: &WindowId) -> bool {
        id.position == self.position && self.owner.as_ref().is_some_and(|owner| Arc::ptr_eq(owner, &id.owner))
    }

    /// Whether a message may refer to earlier ones.
    pub(super) fn is_kept(&self) -> bool {
        self.len_max > 0
    }

    /// Whether it has no content.
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Memory in use, in bytes.
    pub(super) fn memory_len(&self) -> usize {
        self.bytes.capacity()
    }

    /// Frees the spare capacity.
    pub(super) fn shrink(&mut self) {
        self.bytes.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_the_last_bytes_in_order() {
        let all: Vec<u8> = (0..200).collect();
        for len_max in [0, 1, 7, 32, 64] {
            for step in [1, 3, 31, 32, 33, 64, 100] {
                let (mut window, mut sent) = (Window::new(len_max), 0);
                for piece in all.chunks(step) {
                    window.push(piece);
                    sent += piece.len();
                    // At every other step only, so that the ring wraps at many offsets.
                    if sent % 2 == 0 {
                        let expected = &all[sent.saturating_sub(len_max)..sent];
                        assert_eq!(window.as_slice(), expected, "{len_max} by {step}");
                    }
                }
            }
        }
    }

    #[test]
    fn returns_a_wrapped_ring_in_order() {
        let all: Vec<u8> = (0..200).collect();
        let mut window = Window::new(32);
        all.chunks(5).for_each(|piece| window.push(piece));
        assert_ne!(window.start, 0);
        assert_eq!(window.as_slice(), &all[168..]);
    }

    #[test]
    fn capacity_is_at_most_one_and_a_half_times_the_content() {
        let mut window = Window::new(1 << 15);
        for len in 1..3000 {
            window.push(&[7; 10]);
            let content = (10 * len).min(1 << 15);
            assert!(window.memory_len() <= content + content / 2 + 10, "{content}");
        }
        assert_eq!(window.memory_len(), 1 << 15);
    }

    #[test]
    fn identifies_each_content_once() {
        let mut window = Window::new(8);
        let empty = window.id();
        assert!(window.is(&empty));
        window.push(b"a");
        let a = window.id();
        assert!(window.is(&a) && !window.is(&empty));
        window.clear();
        assert!(!window.is(&empty) && !window.is(&a) && window.as_slice().is_empty());
        let mut other = Window::new(8);
        assert!(!window.is(&other.id()));
    }

    #[test]
    fn shrinks_to_its_content() {
        let mut window = Window::new(1 << 15);
        (0..100).for_each(|_| window.push(&[7; 10]));
        assert!(window.memory_len() > 1000);
        window.shrink();
        assert_eq!((window.memory_len(), window.as_slice()), (1000, &[7; 1000][..]));
    }
}
