//! Read buffers: large, aligned, shared by all connections of a thread. A connection holds one only while bytes are in
//! flight, so that idle ones hold none.
//!
//! ```text
//! take() -> [ .. | start .. end | .. ]  read -> decode in place -> borrow -> empty -> dropped: back to this thread's pool
//! ```

use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Vector kernels and the kernel's copy are fastest on cache-line boundaries.
const ALIGN: usize = 64;

/// The maximum length of a read in bytes: small enough for the second-level cache, large enough for few system calls.
const LEN: usize = 256 << 10;

/// The maximum length of a read in bytes while the process has [`LARGE_MAX`] large buffers.
pub(crate) const LEN_SMALL: usize = 16 << 10;

/// The maximum number of large buffers in a process; further buffers are small.
const LARGE_MAX: usize = 64;

/// Large buffers that a thread keeps.
const POOLED_MAX: usize = 4;

/// The number of large buffers in use and in pools. [`allocate`] and [`free`] count every buffer of that length, for any use.
static LARGE: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static POOL: RefCell<Pool> = const { RefCell::new(Pool { kept: Vec::new() }) };
}

/// The large buffers that a thread keeps.
struct Pool {
    kept: Vec<Box<[u8]>>,
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.kept.drain(..).for_each(free);
    }
}

/// The number of large buffers that exist in the process.
#[cfg(test)]
pub(crate) fn large_count() -> usize {
    LARGE.load(Ordering::Relaxed)
}

fn is_large(bytes: &[u8]) -> bool {
    bytes.len() == LEN + ALIGN
}

/// A zeroed buffer with room for `len` aligned bytes.
fn allocate(len: usize) -> Box<[u8]> {
    let bytes: Box<[u8]> = vec![0; len + ALIGN].into();
    if is_large(&bytes) {
        LARGE.fetch_add(1, Ordering::Relaxed);
    }
    bytes
}

/// Drops a buffer that [`allocate`] made.
fn free(bytes: Box<[u8]>) {
    if is_large(&bytes) {
        LARGE.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A buffer from the pool of this thread, or a new one, with space for at least 16 KiB.
pub(crate) fn take_bytes() -> Box<[u8]> {
    let pooled = POOL.try_with(|pool| pool.borrow_mut().kept.pop()).ok().flatten();
    // Threads that allocate at the same time may each exceed the maximum by one.
    let is_scarce = || LARGE.load(Ordering::Relaxed) >= LARGE_MAX;
    pooled.unwrap_or_else(|| allocate(if is_scarce() { LEN_SMALL } else { LEN }))
}

/// A buffer with space for `len` bytes.
pub(crate) fn take_bytes_for(len: usize) -> Box<[u8]> {
    if len <= LEN_SMALL { take_bytes() } else { allocate(len) }
}

/// Returns a buffer that came from [`take_bytes`] or [`take_bytes_for`].
pub(crate) fn give_bytes(bytes: Box<[u8]>) {
    let mut bytes = Some(bytes).filter(|bytes| !bytes.is_empty());
    if bytes.as_deref().is_some_and(is_large) {
        // The pool of a thread that ends is gone.
        let _ = POOL.try_with(|pool| {
            let mut pool = pool.borrow_mut();
            if pool.kept.len() < POOLED_MAX {
                pool.kept.extend(bytes.take());
            }
        });
    }
    bytes.into_iter().for_each(free);
}

/// Bytes that were read and not consumed.
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
    /// An empty buffer from the pool of this thread, or a new one.
    pub(crate) fn take() -> Self {
        Self::new(take_bytes())
    }

    /// A buffer that contains a copy of `bytes`.
    pub(crate) fn from_slice(bytes: &[u8]) -> Self {
        let mut buffer = Self::new(take_bytes_for(bytes.len()));
        buffer.bytes[buffer.base..buffer.base + bytes.len()].copy_from_slice(bytes);
        buffer.end = buffer.base + bytes.len();
        buffer
    }

    fn new(bytes: Box<[u8]>) -> Self {
        let base = bytes.as_ptr().addr().wrapping_neg() % ALIGN;
        Self { bytes, base, start: base, end: base }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// The space for a read. The buffer must be empty.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        debug_assert!(self.is_empty());
        self.start = self.base;
        self.end = self.base;
        &mut self.bytes[self.base..]
    }

    /// Records that a read filled `len` bytes of [`space`](Self::space).
    pub(crate) fn filled(&mut self, len: usize) {
        debug_assert!(self.end + len <= self.bytes.len());
        self.end += len;
    }

    /// The bytes that were not consumed.
    #[inline]
    pub(crate) fn unread(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.end]
    }

    /// Removes `len` bytes from the front.
    #[inline]
    pub(crate) fn consume(&mut self, len: usize) {
        debug_assert!(self.start + len <= self.end);
        self.start += len;
    }
}

/// The bytes that were not consumed.
impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        give_bytes(std::mem::take(&mut self.bytes));
    }
}

/// The maximum of memory for assembling messages that a thread keeps for its connections, in bytes.
const MEMORY_LEN_MAX: usize = 16 << 20;

/// The maximum number of allocations of this memory.
const MEMORIES_MAX: usize = 64;

/// Every connection may take an allocation of up to this many bytes, which suffices to inflate a short message. The whole
/// allocation counts against the connection, so that only connections with long messages may take a longer one.
const SMALL_LEN_MAX: usize = 128 << 10;

thread_local! {
    static FREE_BUFFERS: RefCell<FreeBuffers> =
        const { RefCell::new(FreeBuffers { small: Vec::new(), large: Vec::new(), len: 0 }) };
}

#[derive(Default)]
struct FreeBuffers {
    small: Vec<Vec<u8>>,
    /// Those above [`SMALL_LEN_MAX`].
    large: Vec<Vec<u8>>,
    /// The sum of all capacities, in bytes.
    len: usize,
}

impl FreeBuffers {
    fn give(&mut self, memory: Vec<u8>, len_max: usize) {
        let len = memory.capacity();
        let is_full = self.small.len() + self.large.len() == MEMORIES_MAX || self.len + len > MEMORY_LEN_MAX;
        // The connection could not take it again, and it would use up the limit.
        if len == 0 || len > len_max.max(SMALL_LEN_MAX) || is_full {
            return;
        }
        self.len += len;
        if len <= SMALL_LEN_MAX { self.small.push(memory) } else { self.large.push(memory) }
    }

    fn recycle(&mut self, memory: Vec<u8>) {
        let len = memory.capacity();
        if self.len + len <= RECYCLED_LEN_MAX {
            self.give(memory, len);
        }
    }

    fn take(&mut self, len_max: usize) -> Option<Vec<u8>> {
        let memory = self.take_large(len_max).or_else(|| self.small.pop())?;
        self.len -= memory.capacity();
        Some(memory)
    }

    /// Removes the longest allocation of at most `len_max` bytes.
    fn take_large(&mut self, len_max: usize) -> Option<Vec<u8>> {
        if len_max <= SMALL_LEN_MAX {
            return None;
        }
        let fits = self.large.iter().map(Vec::capacity).enumerate().filter(|&(_, len)| len <= len_max);
        let (index, _) = fits.max_by_key(|&(_, len)| len)?;
        Some(self.large.swap_remove(index))
    }
}

/// Keeps memory that a connection does not need now, if it could take that again with this `len_max`.
pub(crate) fn give_memory(memory: Vec<u8>, len_max: usize) {
    let _ = FREE_BUFFERS.try_with(|buffers| buffers.borrow_mut().give(memory, len_max));
}

/// A thread keeps the memory of dropped messages up to this many bytes together with other memory.
const RECYCLED_LEN_MAX: usize = 4 << 20;

/// Shorter memory is left to the allocator.
const RECYCLED_LEN_MIN: usize = 16 << 10;

/// Keeps the memory of a message that was dropped for the next long message.
pub(crate) fn recycle_memory(memory: Vec<u8>) {
    if memory.capacity() >= RECYCLED_LEN_MIN {
        let _ = FREE_BUFFERS.try_with(|buffers| buffers.borrow_mut().recycle(memory));
    }
}

/// Kept memory, if any: at most `len_max` bytes, or [`SMALL_LEN_MAX`] if that is more.
pub(crate) fn take_memory(len_max: usize) -> Option<Vec<u8>> {
    FREE_BUFFERS.try_with(|buffers| buffers.borrow_mut().take(len_max)).ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reuses_aligned_memory() {
        let mut buffer = Buffer::take();
        assert_eq!(buffer.space().as_ptr() as usize % ALIGN, 0);
        let address = buffer.space().as_ptr();
        drop(buffer);
        assert_eq!(Buffer::take().space().as_ptr(), address);
    }

    #[test]
    fn holds_more_than_a_pooled_buffer() {
        let much = vec![7; 40_000];
        assert_eq!(Buffer::from_slice(&much).unread(), much);
    }

    // A buffer for bytes that were read ahead may be as long as a pooled one. A count below zero would be huge.
    #[test]
    fn counts_each_large_buffer() {
        let thread = std::thread::spawn(|| {
            let lens = [LEN - 1, LEN, LEN, LEN, LEN, LEN, LEN, LEN + 1];
            let buffers = lens.map(|len| Buffer::from_slice(&vec![7; len]));
            assert!(LARGE.load(Ordering::Relaxed) >= 6);
            drop(buffers);
            assert_eq!(POOL.with_borrow(|pool| pool.kept.len()), POOLED_MAX);
        });
        thread.join().unwrap();
        assert!(LARGE.load(Ordering::Relaxed) < 1_000);
    }

    #[test]
    fn keeps_memory_within_a_bound() {
        let mut buffers = FreeBuffers::default();
        for _ in 0..40 {
            buffers.give(Vec::with_capacity(1 << 20), 1 << 20);
        }
        buffers.give(Vec::new(), 0);
        for _ in 0..100 {
            buffers.give(Vec::with_capacity(1 << 10), 0);
        }
        assert_eq!((buffers.large.len(), buffers.small.len(), buffers.len), (16, 0, MEMORY_LEN_MAX));
        assert!(buffers.take(1 << 20).is_some());
        for _ in 0..100 {
            buffers.give(Vec::with_capacity(1 << 10), 0);
        }
        assert_eq!((buffers.large.len(), buffers.small.len()), (15, MEMORIES_MAX - 15));
        let kept = std::iter::from_fn(|| buffers.take(usize::MAX)).count();
        assert_eq!((kept, buffers.len), (MEMORIES_MAX, 0));
    }

    #[test]
    fn reuses_the_memory_of_a_dropped_message() {
        let thread = std::thread::spawn(|| {
            let memory = vec![7; RECYCLED_LEN_MIN];
            let address = memory.as_ptr();
            recycle_memory(memory);
            assert_eq!(
                take_memory(0).map(|memory| (memory.as_ptr(), memory.len())),
                Some((address, RECYCLED_LEN_MIN))
            );
            recycle_memory(vec![7; RECYCLED_LEN_MIN - 1]);
            assert!(take_memory(0).is_none(), "too short");
        });
        thread.join().unwrap();
    }

    #[test]
    fn keeps_the_memory_of_dropped_messages_within_a_bound() {
        let mut buffers = FreeBuffers::default();
        buffers.give(Vec::with_capacity(RECYCLED_LEN_MAX - 100), usize::MAX);
        buffers.recycle(Vec::with_capacity(101));
        assert_eq!(buffers.len, RECYCLED_LEN_MAX - 100);
        buffers.recycle(Vec::with_capacity(100));
        assert_eq!(buffers.len, RECYCLED_LEN_MAX);
    }

    #[test]
    fn gives_large_memory_to_those_that_need_it() {
        let mut buffers = FreeBuffers::default();
        for len in [SMALL_LEN_MAX, 1 << 20, 4 << 20, 2 << 20, SMALL_LEN_MAX + 1] {
            buffers.give(Vec::with_capacity(len), len);
        }
        buffers.give(Vec::with_capacity(3 << 20), (3 << 20) - 1);
        let mut take = |len_max| buffers.take(len_max).map(|memory| memory.capacity());
        assert_eq!(take(3 << 20), Some(2 << 20));
        assert_eq!(take(100), Some(SMALL_LEN_MAX));
        assert_eq!(take(100), None);
        assert_eq!(take(usize::MAX), Some(4 << 20));
        assert_eq!(take(SMALL_LEN_MAX), None);
        assert_eq!(take(SMALL_LEN_MAX + 1), Some(SMALL_LEN_MAX + 1));
        assert_eq!(take((1 << 20) - 1), None);
    }
}
