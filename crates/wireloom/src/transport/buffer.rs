//! Read buffers: large, aligned, shared by all connections of a thread. A connection holds one only while bytes are in
//! flight, so that idle ones hold none.
//!
//! ```text
//! take() -> [ .. | start .. end | .. ]  read -> decode in place -> lend -> empty -> dropped: back to this thread's pool
//! ```

use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Vector kernels and the kernel's copy are fastest on cache-line boundaries.
const ALIGN: usize = 64;

/// What a read may bring at once: small enough for the second-level cache, large enough for few system calls.
const LEN: usize = 256 << 10;

/// What a read may bring while many connections have bytes in flight.
const LEN_SMALL: usize = 16 << 10;

/// So many large buffers exist at once in a process; further ones are small.
const LARGE_MAX: usize = 64;

/// Large buffers that a thread keeps.
const POOLED_MAX: usize = 4;

static LARGE: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static POOL: RefCell<Pool> = const { RefCell::new(Pool { kept: Vec::new() }) };
}

/// The large buffers that a thread keeps.
struct Pool {
    kept: Vec<Box<[u8]>>,
}

impl Drop for Pool {
    /// With its thread.
    fn drop(&mut self) {
        LARGE.fetch_sub(self.kept.len(), Ordering::Relaxed);
    }
}

/// Bytes that have arrived and were not taken yet.
///
/// `base <= start <= end <= bytes.len()`, and `base` is aligned.
#[derive(Debug)]
pub(crate) struct Buffer {
    bytes: Box<[u8]>,
    base: usize,
    start: usize,
    end: usize,
}

impl Buffer {
    /// An empty buffer of this thread's pool, or a new one.
    pub(crate) fn take() -> Self {
        let pooled = POOL.try_with(|pool| pool.borrow_mut().kept.pop()).ok().flatten();
        let bytes = pooled.unwrap_or_else(|| {
            if LARGE.fetch_add(1, Ordering::Relaxed) < LARGE_MAX {
                vec![0; LEN + ALIGN].into()
            } else {
                LARGE.fetch_sub(1, Ordering::Relaxed);
                vec![0; LEN_SMALL + ALIGN].into()
            }
        });
        let base = (bytes.as_ptr() as usize).wrapping_neg() % ALIGN;
        Self { bytes, base, start: base, end: base }
    }

    /// A buffer that holds these bytes already.
    pub(crate) fn holding(bytes: &[u8]) -> Self {
        let mut buffer = if bytes.len() <= LEN_SMALL {
            Self::take()
        } else {
            let bytes: Box<[u8]> = vec![0; bytes.len() + ALIGN].into();
            let base = (bytes.as_ptr() as usize).wrapping_neg() % ALIGN;
            Self { bytes, base, start: base, end: base }
        };
        buffer.bytes[buffer.base..buffer.base + bytes.len()].copy_from_slice(bytes);
        buffer.end = buffer.base + bytes.len();
        buffer
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Where a read goes. The buffer must be empty.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        debug_assert!(self.is_empty());
        self.start = self.base;
        self.end = self.base;
        &mut self.bytes[self.base..]
    }

    /// A read brought `len` bytes.
    pub(crate) fn filled(&mut self, len: usize) {
        debug_assert!(self.end + len <= self.bytes.len());
        self.end += len;
    }

    /// What waits.
    #[inline]
    pub(crate) fn waiting(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.end]
    }

    /// `len` bytes of what waited have been taken.
    #[inline]
    pub(crate) fn taken(&mut self, len: usize) {
        debug_assert!(self.start + len <= self.end);
        self.start += len;
    }

    /// Where [`Buffer::waiting`] begins.
    #[inline]
    pub(crate) fn start(&self) -> usize {
        self.start
    }

    /// Bytes that lay in the buffer, taken already.
    #[inline]
    pub(crate) fn at(&self, at: usize, len: usize) -> &[u8] {
        &self.bytes[at..at + len]
    }
}

/// What waits.
impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.bytes.len() != LEN + ALIGN {
            return;
        }
        let bytes = std::mem::take(&mut self.bytes);
        let kept = POOL.try_with(|pool| {
            let mut pool = pool.borrow_mut();
            let keep = pool.kept.len() < POOLED_MAX;
            if keep {
                pool.kept.push(bytes);
            }
            keep
        });
        if !kept.unwrap_or(false) {
            LARGE.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Memory in which messages are assembled that a thread keeps, in bytes, for whichever connection needs it next.
const MEMORY_LEN_MAX: usize = 16 << 20;

/// In so many pieces at most.
const MEMORIES_MAX: usize = 64;

thread_local! {
    static MEMORIES: RefCell<Memories> = const { RefCell::new(Memories { kept: Vec::new(), len: 0 }) };
}

struct Memories {
    kept: Vec<Vec<u8>>,
    /// Capacities in `kept`, in bytes.
    len: usize,
}

/// Keeps memory that a connection does not need now.
pub(crate) fn keep_memory(memory: Vec<u8>) {
    let len = memory.capacity();
    if len == 0 {
        return;
    }
    let _ = MEMORIES.try_with(|memories| {
        let mut memories = memories.borrow_mut();
        if memories.kept.len() < MEMORIES_MAX && memories.len + len <= MEMORY_LEN_MAX {
            memories.len += len;
            memories.kept.push(memory);
        }
    });
}

/// Lends memory that has been kept, if there is some, to `take`.
pub(crate) fn lend_memory(take: impl FnOnce(Vec<u8>)) {
    let kept = MEMORIES.try_with(|memories| {
        let mut memories = memories.borrow_mut();
        let memory = memories.kept.pop()?;
        memories.len -= memory.capacity();
        Some(memory)
    });
    if let Some(memory) = kept.ok().flatten() {
        take(memory);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lends_aligned_memory_and_gets_it_back() {
        let mut buffer = Buffer::take();
        assert_eq!(buffer.space().as_ptr() as usize % ALIGN, 0);
        let address = buffer.space().as_ptr();
        drop(buffer);
        assert_eq!(Buffer::take().space().as_ptr(), address);
    }

    #[test]
    fn finds_again_what_was_taken() {
        let mut buffer = Buffer::holding(b"hello world");
        assert_eq!(buffer.waiting(), b"hello world");
        let at = buffer.start() + 6;
        buffer.taken(11);
        assert!(buffer.is_empty());
        assert_eq!(buffer.at(at, 5), b"world");
    }

    #[test]
    fn holds_more_than_a_pooled_buffer() {
        let much = vec![7; 40_000];
        assert_eq!(Buffer::holding(&much).waiting(), much);
    }

    #[test]
    fn keeps_memory_within_a_bound() {
        for _ in 0..40 {
            keep_memory(Vec::with_capacity(1 << 20));
        }
        keep_memory(Vec::new());
        let mut lent = 0;
        loop {
            let before = lent;
            lend_memory(|memory| lent += memory.capacity());
            if lent == before {
                break;
            }
        }
        assert!((1 << 20..=MEMORY_LEN_MAX).contains(&lent), "{lent}");
    }
}
