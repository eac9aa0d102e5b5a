//! A pool of DEFLATE codecs that connections share.
//!
//! A codec uses 48 KB (inflating) to 380 KB (deflating); the window that a connection must keep between messages is at most 32 KiB. An
//! idle connection therefore returns its codec and later continues with any other. If the codec that it returned last is still in the
//! pool, the connection gets that one, which continues without a reset.
//!
//! ```text
//! bytes arrive -> take: its own codec, in the state of its window   -> message -> return
//!                       another codec, reset, the window copied into it
//!                       none in the pool: the first message creates one
//! ```

use super::WINDOW_BITS;
use super::window::{Window, WindowId};
use alloc::vec::Vec;
use core::fmt;
use zlib_rs::{Deflate, Inflate};

/// Idle codecs. A driver has one pool per thread.
///
/// ```
/// use wireloom_ws::deflate::{Decompressor, DeflateParams, DeflatePool, InflateLimit};
/// use wireloom_ws::role::Role;
///
/// let mut pool = DeflatePool::new(16, 16);
/// let limit = InflateLimit::new(1024);
/// let mut connections = [(); 100].map(|()| Decompressor::new(Role::Client, &DeflateParams::default()));
/// // RFC 7692 §7.2.3.2: the second message refers to the first.
/// for payload in [&[0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00][..], &[0xf2, 0x00, 0x11, 0x00, 0x00]] {
///     for decompressor in &mut connections {
///         let mut message = Vec::new();
///         decompressor.take_codec(&mut pool);
///         decompressor.decompress(payload, true, &mut message, &limit)?;
///         decompressor.return_codec(&mut pool);
///         assert_eq!(message, b"Hello");
///     }
/// }
/// assert_eq!(pool.inflaters(), 1);
/// # Ok::<(), wireloom_ws::deflate::InflateError>(())
/// ```
pub struct DeflatePool {
    pub(super) inflaters: IdleCodecs<Inflate>,
    pub(super) deflaters: IdleCodecs<Deflate>,
    /// An empty buffer for a compressed message.
    scratch: Vec<u8>,
}

/// The pool keeps a scratch buffer of at most this capacity, in bytes.
const SCRATCH_LEN_MAX: usize = 64 << 10;

impl DeflatePool {
    /// A pool of at most `inflaters_max` and `deflaters_max` codecs.
    pub const fn new(inflaters_max: usize, deflaters_max: usize) -> Self {
        Self {
            inflaters: IdleCodecs::new(inflaters_max),
            deflaters: IdleCodecs::new(deflaters_max),
            scratch: Vec::new(),
        }
    }

    /// Takes the buffer for a compressed message.
    pub(crate) fn take_scratch(&mut self) -> Vec<u8> {
        core::mem::take(&mut self.scratch)
    }

    /// Keeps the buffer for the next compressed message if it is the largest so far, within its bound.
    pub(crate) fn put_scratch(&mut self, mut scratch: Vec<u8>) {
        scratch.clear();
        if (self.scratch.capacity()..=SCRATCH_LEN_MAX).contains(&scratch.capacity()) {
            self.scratch = scratch;
        }
    }

    /// Inflating codecs in the pool.
    pub fn inflaters(&self) -> usize {
        self.inflaters.codecs.len()
    }

    /// Deflating codecs in the pool.
    pub fn deflaters(&self) -> usize {
        self.deflaters.codecs.len()
    }
}

impl fmt::Debug for DeflatePool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeflatePool")
            .field("inflaters", &self.inflaters())
            .field("deflaters", &self.deflaters())
            .finish()
    }
}

/// A codec of zlib-rs for one direction.
pub(super) trait Codec: Sized {
    type Params: Copy + PartialEq;

    fn create(params: Self::Params) -> Self;

    /// Resets the codec to the state in which `window` was processed last.
    fn reset_to(&mut self, window: &[u8]);
}

/// A codec, its parameters, and the state of its history.
pub(super) struct PooledCodec<C: Codec> {
    codec: C,
    params: C::Params,
    history: History,
}

enum History {
    /// Empty: the codec is new, or was flushed completely.
    Empty,
    /// Equal to this window.
    Window(WindowId),
    /// Something else: within a message, or after one whose window is not kept.
    Unknown,
}

impl<C: Codec> PooledCodec<C> {
    pub(super) fn new(params: C::Params) -> Self {
        Self { codec: C::create(params), params, history: History::Empty }
    }

    /// Prepares the codec for a message that may refer to `window`.
    pub(super) fn begin_message(&mut self, window: &mut Window) -> &mut C {
        let is_ready = match core::mem::replace(&mut self.history, History::Unknown) {
            History::Empty => window.is_empty(),
            History::Window(id) => window.is(&id),
            History::Unknown => false,
        };
        if !is_ready {
            self.codec.reset_to(window.as_slice());
        }
        &mut self.codec
    }

    /// Whether the history of the codec is this window: no other connection has used the codec since.
    pub(super) fn continues(&self, window: &Window) -> bool {
        matches!(&self.history, History::Window(id) if window.is(id))
    }

    /// The codec, within a message.
    pub(super) fn codec(&mut self) -> &mut C {
        &mut self.codec
    }

    /// A message has ended. With context takeover the history of the codec is `window`.
    pub(super) fn end_message(&mut self, window: &mut Window) {
        self.history = if window.is_kept() { History::Window(window.id()) } else { History::Unknown };
    }

    /// A message has ended with a full flush: the history is empty.
    pub(super) fn end_flushed_message(&mut self) {
        self.history = History::Empty;
    }
}

impl Codec for Inflate {
    type Params = ();

    fn create((): ()) -> Self {
        Self::new(false, *WINDOW_BITS.end())
    }

    fn reset_to(&mut self, window: &[u8]) {
        self.reset(false);
        if !window.is_empty() {
            let set = self.set_dictionary(window);
            debug_assert!(set.is_ok(), "a stream without a header takes a dictionary at any time");
        }
    }
}

impl Codec for Deflate {
    type Params = DeflaterParams;

    fn create(params: DeflaterParams) -> Self {
        Self::new_with_config(zlib_rs::DeflateConfig {
            level: i32::from(params.level),
            window_bits: -i32::from(params.window_bits),
            mem_level: i32::from(params.mem_level),
            ..zlib_rs::DeflateConfig::default()
        })
    }

    fn reset_to(&mut self, window: &[u8]) {
        self.reset();
        if !window.is_empty() {
            let set = self.set_dictionary(window);
            debug_assert!(set.is_ok(), "a stream without a header takes a dictionary between two flushes");
        }
    }
}

/// The parameters of a deflating codec, which cannot change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DeflaterParams {
    /// 9 to 15.
    pub(super) window_bits: u8,
    /// 0 to 9.
    pub(super) level: u8,
    /// 1 to 9.
    pub(super) mem_level: u8,
}

/// The idle codecs of one direction, the one that was returned first in front.
pub(super) struct IdleCodecs<C: Codec> {
    codecs: Vec<PooledCodec<C>>,
    len_max: usize,
}

impl<C: Codec> IdleCodecs<C> {
    const fn new(len_max: usize) -> Self {
        Self { codecs: Vec::new(), len_max }
    }

    /// Takes the codec whose history is `window`, or the oldest one with these parameters.
    pub(super) fn take(&mut self, window: &Window, params: C::Params) -> Option<PooledCodec<C>> {
        let continues = self.codecs.iter().rposition(|pooled| pooled.continues(window));
        let at = continues.or_else(|| self.codecs.iter().position(|pooled| pooled.params == params))?;
        Some(self.codecs.remove(at))
    }

    /// Adds a codec that is not within a message, and drops the oldest one if there are too many.
    pub(super) fn put(&mut self, pooled: PooledCodec<C>) {
        if self.len_max == 0 {
            return;
        }
        if self.codecs.len() == self.len_max {
            self.codecs.remove(0);
        }
        self.codecs.push(pooled);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_largest_scratch_memory_up_to_its_bound() {
        let mut pool = DeflatePool::new(1, 1);
        assert_eq!(pool.take_scratch().capacity(), 0);
        for (capacity, kept) in
            [(100, 100), (99, 100), (SCRATCH_LEN_MAX + 1, 100), (SCRATCH_LEN_MAX, SCRATCH_LEN_MAX)]
        {
            let mut scratch = Vec::with_capacity(capacity);
            scratch.push(7);
            pool.put_scratch(scratch);
            assert_eq!(pool.scratch.capacity(), kept, "{capacity}");
        }
        let scratch = pool.take_scratch();
        assert_eq!((scratch.len(), scratch.capacity()), (0, SCRATCH_LEN_MAX));
        assert_eq!(pool.take_scratch().capacity(), 0);
    }

    // A reset would have no effect but its cost.
    #[test]
    fn a_flushed_codec_is_not_reset() {
        let params = DeflaterParams { window_bits: 9, level: 1, mem_level: 1 };
        let (mut codec, mut empty) = (PooledCodec::<Deflate>::new(params), Window::new(0));
        codec.begin_message(&mut empty);
        assert!(matches!(codec.history, History::Unknown));
        codec.end_flushed_message();
        assert!(matches!(codec.history, History::Empty));
        assert!(empty.is_empty());
    }
}
