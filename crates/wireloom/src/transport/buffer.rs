//! Read buffers: large, aligned, shared by all connections of a thread. A connection holds one only while bytes are in
//! flight, so that idle ones hold none.
//!
//! ```text
//! take() -> [ .. | start .. end | .. ]  read -> decode in place -> borrow -> empty -> dropped: back to this thread's pool
//! ```

use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Vector kernels and the kernel's copy are fastest on cache-line boundaries.
const ALIGN: usize = 64;

/// The maximum length of a read in bytes: small enough for the second-level cache, large enough for few system calls.
const LEN: usize = 256 << 10;

/// The maximum length of a read in bytes of a client that is [behind](Pace).
const LEN_LONG: usize = 1 << 20;

/// The maximum length of a read in bytes while the process has [`LARGE_MAX`] large buffers.
pub(crate) const LEN_SMALL: usize = 16 << 10;

/// The maximum number of large buffers in a process; further buffers are small. Fewer beside a small [`MemoryLimit`]. A long one
/// counts by its length.
static LARGE_MAX: AtomicUsize = AtomicUsize::new(LARGE_MAX_DEFAULT);
const LARGE_MAX_DEFAULT: usize = 64;

/// Large buffers that a thread keeps.
const POOLED_MAX: usize = 4;

/// The number of large buffers in use and in pools. [`allocate`] and [`free`] count every buffer of that length, for any use.
static LARGE: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static POOL: RefCell<Pool> = const { RefCell::new(Pool { kept: Vec::new(), long: None }) };
}

/// The buffers that a thread keeps.
struct Pool {
    kept: Vec<Box<[u8]>>,
    long: Option<Box<[u8]>>,
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.kept.drain(..).chain(self.long.take()).for_each(free);
    }
}

/// The limits of memory of the servers in this process together, in bytes.
static LIMITS: Mutex<u128> = Mutex::new(0);

/// The limit of memory of a server, in bytes, until this is dropped. Read buffers, and memory that threads keep, may take a sixteenth of
/// all limits each.
#[derive(Debug)]
pub(crate) struct MemoryLimit(usize);

impl MemoryLimit {
    pub(crate) fn new(max: usize) -> Self {
        change_limits(|limits| limits + max as u128);
        Self(max)
    }
}

impl Drop for MemoryLimit {
    fn drop(&mut self) {
        change_limits(|limits| limits - self.0 as u128);
    }
}

/// The part of these limits that read buffers, or the memory that threads keep, may take, in bytes.
fn share_of(limits: u128) -> usize {
    let share = if limits == 0 { usize::MAX as u128 } else { limits / 16 };
    usize::try_from(share).unwrap_or(usize::MAX)
}

fn change_limits(change: impl FnOnce(u128) -> u128) {
    let mut limits = LIMITS.lock().unwrap_or_else(PoisonError::into_inner);
    *limits = change(*limits);
    let max = share_of(*limits);
    LARGE_MAX.store(LARGE_MAX_DEFAULT.min(max / LEN), Ordering::Relaxed);
    LONG_MEMORY.max.store(LONG_MEMORY_MAX.min(max), Ordering::Relaxed);
}

/// The number of large buffers that exist in the process.
#[cfg(test)]
pub(crate) fn large_count() -> usize {
    LARGE.load(Ordering::Relaxed)
}

/// Gives this thread a large buffer and a long one, however many the process may have.
#[cfg(test)]
pub(crate) fn keep_large() {
    [LEN, LEN_LONG].into_iter().map(allocate).for_each(give_bytes);
}

/// The large buffers that one counts as.
fn large_units(bytes: &[u8]) -> usize {
    match bytes.len().wrapping_sub(ALIGN) {
        len @ (LEN | LEN_LONG) => len / LEN,
        _ => 0,
    }
}

/// A zeroed buffer with room for `len` aligned bytes.
fn allocate(len: usize) -> Box<[u8]> {
    let bytes: Box<[u8]> = vec![0; len + ALIGN].into();
    LARGE.fetch_add(large_units(&bytes), Ordering::Relaxed);
    bytes
}

/// Drops a buffer that [`allocate`] made.
fn free(bytes: Box<[u8]>) {
    LARGE.fetch_sub(large_units(&bytes), Ordering::Relaxed);
}

/// A buffer from the pool of this thread, or a new one, with space for at least 16 KiB.
pub(crate) fn take_bytes() -> Box<[u8]> {
    let pooled = POOL.try_with(|pool| pool.borrow_mut().kept.pop()).ok().flatten();
    // Threads that allocate at the same time may each exceed the maximum by one.
    let is_scarce = || LARGE.load(Ordering::Relaxed) >= LARGE_MAX.load(Ordering::Relaxed);
    pooled.unwrap_or_else(|| allocate(if is_scarce() { LEN_SMALL } else { LEN }))
}

/// A buffer with space for `len` bytes.
pub(crate) fn take_bytes_for(len: usize) -> Box<[u8]> {
    if len <= LEN_SMALL { take_bytes() } else { allocate(len) }
}

/// Whether a process that has `large` of at most `max` large buffers may have a long one, too: half of them are left to reads of usual
/// length.
fn has_room(large: usize, max: usize) -> bool {
    2 * (large + LEN_LONG / LEN) <= max
}

/// A long buffer instead of one of `len` bytes, where that is shorter. `None` where it would not leave [room](has_room).
pub(crate) fn take_longer(len: usize) -> Option<Box<[u8]>> {
    if len >= LEN_LONG {
        return None;
    }
    let pooled = POOL.try_with(|pool| pool.borrow_mut().long.take()).ok().flatten();
    // As in `take_bytes`, threads may exceed this together.
    let is_allowed = || has_room(LARGE.load(Ordering::Relaxed), LARGE_MAX.load(Ordering::Relaxed));
    pooled.or_else(|| is_allowed().then(|| allocate(LEN_LONG)))
}

/// Returns a buffer that came from [`take_bytes`], [`take_bytes_for`] or [`take_longer`].
pub(crate) fn give_bytes(bytes: Box<[u8]>) {
    let units = large_units(&bytes);
    let mut bytes = Some(bytes).filter(|bytes| !bytes.is_empty());
    if units > 0 {
        // The pool of a thread that ends is gone.
        let _ = POOL.try_with(|pool| {
            let Pool { kept, long } = &mut *pool.borrow_mut();
            if units == 1 && kept.len() < POOLED_MAX {
                kept.extend(bytes.take());
            } else if units > 1 && long.is_none() {
                *long = bytes.take();
            }
        });
    }
    bytes.into_iter().for_each(free);
}

/// Reads in a row that fill a large buffer, after which a client is behind.
const FULL_READS: u8 = 4;

/// Whether a client takes bytes more slowly than the peer sends them. Then the receive window is closed, and each read opens it: the kernel
/// acknowledges within the read, over loopback it also wakes the peer there and delivers what that has queued. Longer reads are fewer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pace {
    full_reads: u8,
}

impl Pace {
    /// A read of `len` bytes is done.
    #[inline]
    pub(crate) fn record(&mut self, len: usize) {
        self.full_reads = if len >= LEN { self.full_reads.saturating_add(1) } else { 0 };
    }

    #[inline]
    pub(crate) fn is_behind(self) -> bool {
        self.full_reads >= FULL_READS
    }
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

    /// An empty buffer that is longer than this one, which must be empty, for a client that is [behind](Pace).
    pub(crate) fn lengthen(&mut self) {
        debug_assert!(self.is_empty());
        if let Some(bytes) = take_longer(self.bytes.len()) {
            *self = Self::new(bytes);
        }
    }

    /// The large buffers that it counts as.
    pub(crate) fn large_units(&self) -> usize {
        large_units(&self.bytes)
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

/// Memory for assembling long messages that threads keep for connections, in bytes. No connection is charged for it.
struct LongMemory {
    len: AtomicUsize,
    /// Less beside a small [`MemoryLimit`].
    max: AtomicUsize,
}

impl LongMemory {
    const fn new() -> Self {
        Self { len: AtomicUsize::new(0), max: AtomicUsize::new(LONG_MEMORY_MAX) }
    }
}

const LONG_MEMORY_MAX: usize = 16 << 20;

/// Of all threads of this process.
static LONG_MEMORY: LongMemory = LongMemory::new();

/// The maximum of memory for short messages that a thread keeps, in bytes.
const SMALL_TOTAL_MAX: usize = 2 << 20;

/// The maximum number of allocations of this memory.
const MEMORIES_MAX: usize = 64;

/// Every connection may take an allocation of up to this many bytes, which suffices to inflate a short message. The whole
/// allocation counts against the connection, so that only connections with long messages may take a longer one.
const SMALL_LEN_MAX: usize = 128 << 10;

thread_local! {
    static FREE_BUFFERS: RefCell<FreeBuffers> = RefCell::new(FreeBuffers::new(&LONG_MEMORY));
}

struct FreeBuffers {
    small: Vec<Vec<u8>>,
    /// Those above [`SMALL_LEN_MAX`].
    large: Vec<Vec<u8>>,
    /// The capacities of `small`, in bytes.
    small_len: usize,
    /// The capacities of `large`, in bytes.
    large_len: usize,
    large_of_all: &'static LongMemory,
}

impl FreeBuffers {
    fn new(large_of_all: &'static LongMemory) -> Self {
        Self { small: Vec::new(), large: Vec::new(), small_len: 0, large_len: 0, large_of_all }
    }

    fn give(&mut self, memory: Vec<u8>, len_max: usize) {
        let len = memory.capacity();
        // The connection could not take it again, and it would use up the limit.
        if len == 0 || len > len_max.max(SMALL_LEN_MAX) || self.small.len() + self.large.len() == MEMORIES_MAX
        {
            return;
        }
        if len <= SMALL_LEN_MAX {
            if self.small_len + len <= SMALL_TOTAL_MAX {
                self.small_len += len;
                self.small.push(memory);
            }
            return;
        }
        let max = self.large_of_all.max.load(Ordering::Relaxed);
        let within = |total: usize| Some(total + len).filter(|&total| total <= max);
        if self.large_of_all.len.fetch_update(Ordering::Relaxed, Ordering::Relaxed, within).is_ok() {
            self.large_len += len;
            self.large.push(memory);
        }
    }

    fn recycle(&mut self, memory: Vec<u8>) {
        let len = memory.capacity();
        if self.small_len + self.large_len + len <= RECYCLED_LEN_MAX {
            self.give(memory, len);
        }
    }

    fn take(&mut self, len_max: usize) -> Option<Vec<u8>> {
        if let Some(memory) = self.take_large(len_max) {
            self.large_len -= memory.capacity();
            self.large_of_all.len.fetch_sub(memory.capacity(), Ordering::Relaxed);
            return Some(memory);
        }
        let memory = self.small.pop()?;
        self.small_len -= memory.capacity();
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

impl Drop for FreeBuffers {
    fn drop(&mut self) {
        self.large_of_all.len.fetch_sub(self.large_len, Ordering::Relaxed);
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
        // Not by `take`: other tests may hold all large buffers, and the pool keeps no others.
        let mut buffer = Buffer::new(allocate(LEN));
        let address = buffer.space().as_ptr();
        assert_eq!(address.addr() % ALIGN, 0);
        drop(buffer);
        // It was not freed, so that no other can have its address.
        let kept = POOL.with_borrow_mut(|pool| pool.kept.last_mut().map(|bytes| bytes.as_mut_ptr_range()));
        assert!(kept.is_some_and(|kept| kept.contains(&address.cast_mut())));
        assert_eq!(Buffer::take().space().as_ptr(), address);
    }

    // A server without a limit ends beside one with a limit.
    #[test]
    fn the_sum_of_limits_is_exact() {
        let small = MemoryLimit::new(64 << 20);
        drop(MemoryLimit::new(usize::MAX));
        // Other tests may add theirs.
        assert!(*LIMITS.lock().unwrap() >= 64 << 20);
        drop(small);
        let shares = [0, 64 << 20, usize::MAX as u128 * 20].map(share_of);
        assert_eq!(shares, [usize::MAX, 4 << 20, usize::MAX]);
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
    fn is_behind_after_full_reads() {
        let mut pace = Pace::default();
        let full = |pace: &mut Pace, times| (0..times).for_each(|_| pace.record(LEN));
        full(&mut pace, FULL_READS - 1);
        pace.record(LEN - 1);
        full(&mut pace, FULL_READS - 1);
        assert!(!pace.is_behind());
        full(&mut pace, 1);
        assert!(pace.is_behind());
        // More than a large buffer takes, and not all of a long one.
        pace.record(LEN_LONG / 2);
        assert!(pace.is_behind());
        pace.record(LEN - 1);
        assert!(!pace.is_behind());
    }

    #[test]
    fn a_long_buffer_counts_by_its_length_and_one_is_kept() {
        let thread = std::thread::spawn(|| {
            // Not by `lengthen`: other tests may hold half of the large buffers.
            let buffers = [(); 2].map(|()| Buffer::new(allocate(LEN_LONG)));
            assert!(buffers.iter().all(|buffer| buffer.large_units() == 4));
            assert!(LARGE.load(Ordering::Relaxed) >= 2 * 4);
            let address = buffers[0].bytes.as_ptr();
            drop(buffers);
            assert_eq!(
                POOL.with_borrow(|pool| pool.long.as_ref().map(|bytes| bytes.as_ptr())),
                Some(address)
            );
            let mut buffer = Buffer::take();
            buffer.lengthen();
            buffer.lengthen();
            assert_eq!(buffer.bytes.as_ptr(), address);
        });
        thread.join().unwrap();
        assert!(LARGE.load(Ordering::Relaxed) < 1_000);
    }

    #[test]
    fn a_long_buffer_leaves_half_of_the_large_ones() {
        assert!(has_room(0, 64) && has_room(28, 64) && !has_room(29, 64));
        // Beside a small limit of memory it would be more than there may be.
        assert!(has_room(0, 8) && [0, 1, 4, 7].into_iter().all(|max| !has_room(0, max)));
    }

    #[test]
    fn keeps_memory_within_a_bound() {
        let total: &LongMemory = Box::leak(Box::new(LongMemory::new()));
        let (mut buffers, mut of_another_thread) = (FreeBuffers::new(total), FreeBuffers::new(total));
        of_another_thread.give(Vec::with_capacity(2 << 20), 2 << 20);
        for _ in 0..40 {
            buffers.give(Vec::with_capacity(1 << 20), 1 << 20);
        }
        buffers.give(Vec::new(), 0);
        assert_eq!((buffers.large.len(), total.len.load(Ordering::Relaxed)), (14, 16 << 20));
        drop(of_another_thread);
        assert_eq!(total.len.load(Ordering::Relaxed), 14 << 20);
        for _ in 0..100 {
            buffers.give(Vec::with_capacity(1 << 10), 0);
        }
        assert_eq!((buffers.large.len(), buffers.small.len()), (14, MEMORIES_MAX - 14));
        let kept = std::iter::from_fn(|| buffers.take(usize::MAX)).count();
        assert_eq!((kept, buffers.small_len, buffers.large_len), (MEMORIES_MAX, 0, 0));
        assert_eq!(total.len.load(Ordering::Relaxed), 0);
        for _ in 0..100 {
            buffers.give(Vec::with_capacity(SMALL_LEN_MAX), 0);
        }
        assert_eq!((buffers.small.len(), buffers.small_len), (16, SMALL_TOTAL_MAX));
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
        let mut buffers = FreeBuffers::new(Box::leak(Box::new(LongMemory::new())));
        let len = |buffers: &FreeBuffers| buffers.small_len + buffers.large_len;
        buffers.give(Vec::with_capacity(RECYCLED_LEN_MAX - 100), usize::MAX);
        buffers.recycle(Vec::with_capacity(101));
        assert_eq!(len(&buffers), RECYCLED_LEN_MAX - 100);
        buffers.recycle(Vec::with_capacity(100));
        assert_eq!(len(&buffers), RECYCLED_LEN_MAX);
    }

    #[test]
    fn gives_large_memory_to_those_that_need_it() {
        let mut buffers = FreeBuffers::new(Box::leak(Box::new(LongMemory::new())));
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
