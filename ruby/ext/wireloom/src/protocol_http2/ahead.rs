//! Input of a stream that is in memory already: the rest of a `StringIO`, or what an `IO::Stream::Buffered` has read ahead. Frames are read
//! there in place, where the methods that do it otherwise are known ([`PartStep`]).

use std::ops::Range;

use magnus::rb_sys::AsRawValue;
use magnus::value::ReprValue;
use rb_sys::VALUE;

use super::names::names;
use super::objects::{get, integer, number, string};
use super::steps::{PartStep, Steps};
use crate::strings;

const FALSE: VALUE = rb_sys::Qfalse as VALUE;

#[derive(Clone, Copy)]
pub(super) struct Ahead {
    string: VALUE,
    /// The number of bytes that were read.
    at: usize,
    /// The `StringIO`, whose position moves; else the String is shortened.
    memory: Option<VALUE>,
}

impl Ahead {
    /// # Safety
    /// The caller has nothing to drop, because this raises.
    #[inline]
    pub(super) unsafe fn of(stream: VALUE, steps: Steps<PartStep>) -> Option<Self> {
        let ids = &names().ids;
        if steps.has(PartStep::ReadAhead) {
            let buffer = get(stream, ids.read_buffer);
            let is_own = string(buffer).is_some_and(|buffer| !buffer.is_frozen());
            return is_own.then_some(Self { string: buffer, at: 0, memory: None });
        }
        if !steps.has(PartStep::Memory) {
            return None;
        }
        // SAFETY: a live object and interned names; the caller vouches for the rest.
        let call = |name| unsafe { rb_sys::rb_funcallv(stream, name, 0, std::ptr::null()) };
        if call(ids.closed_read) != FALSE {
            return None;
        }
        let at = usize::try_from(number(call(ids.pos))?).ok()?;
        // The last call: the String is as it is now until the frame is made.
        let string = string(call(ids.string)).filter(|string| at <= string.len())?;
        Some(Self { string: string.as_raw(), at, memory: Some(stream) })
    }

    /// The unread bytes.
    ///
    /// # Safety
    /// No code of Ruby runs while the slice is in use.
    #[inline]
    pub(super) unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: `of` has looked at the String, and the caller vouches that it did not change.
        unsafe { &strings::bytes(self.string)[self.at..] }
    }

    /// A String of a part of these bytes, if there are as many.
    ///
    /// # Safety
    /// As for [`of`](Self::of).
    #[inline]
    pub(super) unsafe fn copy(&self, range: Range<usize>) -> Option<VALUE> {
        // SAFETY: the String is on the stack, as part of `self`, and making another one changes none.
        unsafe {
            let part = self.bytes().get(range)?;
            Some(rb_sys::rb_str_new(strings::start(part), part.len() as _))
        }
    }

    /// Moves on.
    ///
    /// # Safety
    /// As for [`of`](Self::of), and there are as many bytes.
    #[inline]
    pub(super) unsafe fn skip(self, len: usize) {
        // SAFETY: the caller vouches for it.
        unsafe {
            match self.memory {
                Some(stream) => {
                    let to = integer((self.at + len) as i64);
                    rb_sys::rb_funcallv(stream, names().ids.set_pos, 1, &to);
                }
                None => {
                    rb_sys::rb_str_drop_bytes(self.string, len as _);
                }
            }
        }
    }
}
