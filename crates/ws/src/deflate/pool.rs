//! DEFLATE codecs that connections take turns with.
//!
//! A codec takes 48 KB (inflating) to 380 KB (deflating); the window that a connection must remember between messages takes
//! 32 KiB at most. So a connection returns its codec when it has nothing to do, and continues with any other later. The pool
//! hands a connection the codec that it returned last while that is still there, which then continues without any work.
//!
//! ```text
//! bytes arrive -> take: own codec, as it was returned          -> message -> return
//!                       another's, reset, window copied into it
//!                       none: one is made at the first message
//! ```

use super::WINDOW_BITS;
use super::window::{Window, WindowId};
use alloc::vec::Vec;
use core::fmt;
use zlib_rs::{Deflate, Inflate};

/// Codecs that no connection is using. A driver keeps one pool for each thread.
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
    pub(super) inflaters: Shelf<Inflate>,
    pub(super) deflaters: Shelf<Deflate>,
    /// Memory in which a message is compressed before its length is known; empty.
    scratch: Vec<u8>,
}

/// The pool keeps memory of up to this length for the next message.
const SCRATCH_LEN_MAX: usize = 64 << 10;

impl DeflatePool {
    /// A pool that keeps up to `inflaters_max` and `deflaters_max` codecs.
    pub const fn new(inflaters_max: usize, deflaters_max: usize) -> Self {
        Self {
            inflaters: Shelf::new(inflaters_max),
            deflaters: Shelf::new(deflaters_max),
            scratch: Vec::new(),
        }
    }

    /// Memory for a compressed message.
    pub(crate) fn take_scratch(&mut self) -> Vec<u8> {
        core::mem::take(&mut self.scratch)
    }

    /// Keeps memory for the next compressed message, unless it is very large.
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

/// One direction's half of DEFLATE, with what cannot be changed once it is made.
pub(super) trait Codec: Sized {
    type Params: Copy + PartialEq;

    fn make(params: Self::Params) -> Self;

    /// Forgets everything, and continues as if `window` had just been processed.
    fn restart(&mut self, window: &[u8]);
}

/// A codec, and the window that it holds.
pub(super) struct Pooled<C: Codec> {
    codec: C,
    params: C::Params,
    holds: Holds,
}

enum Holds {
    /// Nothing that a message may refer to: the codec is new, or was flushed completely.
    Nothing,
    /// This window.
    Window(WindowId),
    /// Something else: a message is under way, or ended without a window to keep.
    Unknown,
}

impl<C: Codec> Pooled<C> {
    pub(super) fn make(params: C::Params) -> Self {
        Self { codec: C::make(params), params, holds: Holds::Nothing }
    }

    /// The codec, ready for the first byte of a message that may refer to `window`.
    pub(super) fn resume(&mut self, window: &mut Window) -> &mut C {
        let is_ready = match core::mem::replace(&mut self.holds, Holds::Unknown) {
            Holds::Nothing => window.is_empty(),
            Holds::Window(id) => window.is(&id),
            Holds::Unknown => false,
        };
        if !is_ready {
            self.codec.restart(window.as_slice());
        }
        &mut self.codec
    }

    /// The codec within a message.
    pub(super) fn codec(&mut self) -> &mut C {
        &mut self.codec
    }

    /// A message has ended, and the codec holds `window`. Without context takeover it holds more than that.
    pub(super) fn pause(&mut self, window: &mut Window) {
        self.holds = if window.is_kept() { Holds::Window(window.id()) } else { Holds::Unknown };
    }

    /// A message has ended with a full flush, after which nothing refers to it.
    pub(super) fn pause_flushed(&mut self) {
        self.holds = Holds::Nothing;
    }
}

impl Codec for Inflate {
    type Params = ();

    fn make((): ()) -> Self {
        Self::new(false, *WINDOW_BITS.end())
    }

    fn restart(&mut self, window: &[u8]) {
        self.reset(false);
        if !window.is_empty() {
            let set = self.set_dictionary(window);
            debug_assert!(set.is_ok(), "a stream without a header takes a dictionary at any time");
        }
    }
}

impl Codec for Deflate {
    type Params = DeflaterParams;

    fn make(params: DeflaterParams) -> Self {
        Self::new_with_config(zlib_rs::DeflateConfig {
            level: i32::from(params.level),
            window_bits: -i32::from(params.window_bits),
            mem_level: i32::from(params.mem_level),
            ..zlib_rs::DeflateConfig::default()
        })
    }

    fn restart(&mut self, window: &[u8]) {
        self.reset();
        if !window.is_empty() {
            let set = self.set_dictionary(window);
            debug_assert!(set.is_ok(), "a stream without a header takes a dictionary between two flushes");
        }
    }
}

/// What cannot be changed of a deflating codec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DeflaterParams {
    /// 9 to 15.
    pub(super) window_bits: u8,
    /// 0 to 9.
    pub(super) level: u8,
    /// 1 to 9.
    pub(super) mem_level: u8,
}

/// The codecs of one direction, the one returned longest ago first.
pub(super) struct Shelf<C: Codec> {
    codecs: Vec<Pooled<C>>,
    len_max: usize,
}

impl<C: Codec> Shelf<C> {
    const fn new(len_max: usize) -> Self {
        Self { codecs: Vec::new(), len_max }
    }

    /// The codec that holds `window`, or the one of these parameters that has been here longest.
    pub(super) fn take(&mut self, window: &Window, params: C::Params) -> Option<Pooled<C>> {
        let holds = |pooled: &Pooled<C>| matches!(&pooled.holds, Holds::Window(id) if window.is(id));
        let fits = |pooled: &Pooled<C>| pooled.params == params;
        let at = self.codecs.iter().rposition(holds).or_else(|| self.codecs.iter().position(fits))?;
        Some(self.codecs.remove(at))
    }

    /// Takes back a codec that is not within a message; drops the one that has been here longest when there are too many.
    pub(super) fn put(&mut self, pooled: Pooled<C>) {
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

    // Only the codec's time shows whether it is made ready again.
    #[test]
    fn a_codec_that_holds_nothing_begins_at_once() {
        let params = DeflaterParams { window_bits: 9, level: 1, mem_level: 1 };
        let (mut codec, mut empty) = (Pooled::<Deflate>::make(params), Window::new(0));
        codec.resume(&mut empty);
        assert!(matches!(codec.holds, Holds::Unknown));
        codec.pause_flushed();
        assert!(matches!(codec.holds, Holds::Nothing));
        assert!(empty.is_empty());
    }
}
