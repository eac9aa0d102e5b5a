//! `HTTP2::FrameBuffer`: DATA that waits for a window, first in, first out.

use std::cell::RefCell;
use std::collections::VecDeque;

use magnus::rb_sys::AsRawValue;
use magnus::typed_data::Obj;
use magnus::{DataTypeFunctions, Error, RHash, RModule, Ruby, TypedData, gc, method, prelude::*};
use rb_sys::VALUE;

use super::frame::{END_STREAM, Frame, NIL, value};
use crate::panic::guard;
use crate::strings;

#[derive(Default, TypedData)]
#[magnus(class = "HTTP2::FrameBuffer", free_immediately, mark, size)]
pub(crate) struct FrameBuffer {
    frames: RefCell<VecDeque<Waiting>>,
}

/// What of a frame outlives its turn on the stack.
struct Waiting(Frame);

// SAFETY: Ruby's lock guards the objects that a frame names, as it guards every object.
unsafe impl Send for Waiting {}

impl DataTypeFunctions for FrameBuffer {
    fn mark(&self, marker: &gc::Marker) {
        // SAFETY: unconditionally; a queue is never half changed when Ruby allocates.
        for Waiting(frame) in unsafe { &*self.frames.as_ptr() } {
            marker.mark(value(frame.payload));
            marker.mark(value(frame.hash));
        }
    }

    fn size(&self) -> usize {
        // SAFETY: likewise.
        size_of::<Self>() + unsafe { &*self.frames.as_ptr() }.capacity() * size_of::<Waiting>()
    }
}

impl FrameBuffer {
    /// The buffer that `place` holds; made when there is none yet.
    pub(crate) fn of(ruby: &Ruby, place: &std::cell::Cell<VALUE>) -> Result<Obj<Self>, Error> {
        if place.get() == NIL {
            place.set(ruby.obj_wrap(Self::default()).as_raw());
        }
        Obj::try_convert(value(place.get()))
    }

    pub(crate) fn is_empty(place: &std::cell::Cell<VALUE>) -> bool {
        place.get() == NIL
            || Obj::<Self>::try_convert(value(place.get()))
                .is_ok_and(|buffer| buffer.frames.borrow().is_empty())
    }

    pub(crate) fn bytesize_of(place: &std::cell::Cell<VALUE>) -> usize {
        if place.get() == NIL {
            return 0;
        }
        Obj::<Self>::try_convert(value(place.get())).map_or(0, |buffer| buffer.bytesize())
    }

    pub(crate) fn push(&self, mut frame: Frame) {
        // The caller may change his String while it waits.
        if let Some(payload) = frame.payload_string() {
            frame.payload = strings::frozen(payload).as_raw();
        }
        self.frames.borrow_mut().push_back(Waiting(frame));
    }

    /// The next frame, or as much of it as the window takes. An empty one that ends the stream needs no window.
    pub(crate) fn take(&self, window: i64) -> Option<Frame> {
        let mut frames = self.frames.borrow_mut();
        let front = &mut frames.front_mut()?.0;
        let len = front.payload_len();
        if window <= 0 && !(len == 0 && front.flags & END_STREAM != 0) {
            return None;
        }
        if len as i64 > window && window > 0 {
            let (first, rest) = front.split(window as usize);
            *front = rest;
            return Some(first);
        }
        frames.pop_front().map(|Waiting(frame)| frame)
    }

    fn bytesize(&self) -> usize {
        self.frames.borrow().iter().map(|Waiting(frame)| frame.payload_len()).sum()
    }

    fn append(ruby: &Ruby, this: Obj<Self>, hash: RHash) -> Result<Obj<Self>, Error> {
        guard(ruby, || {
            this.push(Frame::from_hash(ruby, hash)?);
            Ok(this)
        })
    }

    fn retrieve(ruby: &Ruby, this: &Self, window: i64) -> Result<Option<RHash>, Error> {
        guard(ruby, || this.take(window).map(|frame| frame.to_hash(ruby)).transpose())
    }
}

pub(crate) fn init(ruby: &Ruby, http2: RModule) -> Result<(), Error> {
    let buffer = http2.define_class("FrameBuffer", ruby.class_object())?;
    buffer.define_alloc_func::<FrameBuffer>();
    buffer.define_method("<<", method!(FrameBuffer::append, 1))?;
    buffer.define_method("retrieve", method!(FrameBuffer::retrieve, 1))?;
    buffer.define_method("bytesize", method!(FrameBuffer::bytesize, 0))?;
    buffer.define_method("empty?", method!(|this: &FrameBuffer| this.frames.borrow().is_empty(), 0))?;
    buffer.define_method("clear", method!(|this: &FrameBuffer| this.frames.borrow_mut().clear(), 0))
}
