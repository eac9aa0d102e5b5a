//! `HTTP2::FrameBuffer`: DATA that waits for a window, and HEADERS behind it, first in, first out.

use std::cell::Cell;
use std::collections::VecDeque;

use magnus::rb_sys::AsRawValue;
use magnus::typed_data::Obj;
use magnus::{Error, RArray, RHash, RModule, RString, Ruby, TryConvert, prelude::*};

use super::frame::{END_STREAM, Frame, Kind, NIL, Stored};
use crate::exclusive::Exclusive;
use crate::guard::method;
use crate::held::{Held, Owner, managed};
use crate::hpack::encode;
use crate::strings;

#[derive(Default)]
pub(crate) struct FrameBuffer {
    frames: Exclusive<VecDeque<Stored>>,
}

managed!(
    FrameBuffer as "HTTP2::FrameBuffer" { frames },
    size = |buffer| {
        buffer.frames.try_with(|frames| frames.capacity()).unwrap_or(0) * size_of::<Stored>()
    }
);

impl FrameBuffer {
    /// The buffer that `place` of `owner` holds; made when there is none yet.
    pub(crate) fn of(ruby: &Ruby, owner: Owner, place: &Cell<Held>) -> Result<Obj<Self>, Error> {
        if place.get().is_nil() {
            place.set(Held::new(owner, ruby.obj_wrap(Self::default()).as_raw()));
        }
        Obj::try_convert(place.get().value())
    }

    /// The buffer that `place` holds, if there is one. To convert nil would call methods of Ruby for the message of an error.
    fn existing(place: &Cell<Held>) -> Option<Obj<Self>> {
        let held = place.get();
        if held.is_nil() { None } else { Obj::try_convert(held.value()).ok() }
    }

    pub(crate) fn is_empty(place: &Cell<Held>) -> bool {
        Self::existing(place).is_none_or(|buffer| buffer.frames.with(|frames| frames.is_empty()))
    }

    /// Drops the frames of a stream that was reset: none may follow RST_STREAM (RFC 9113 §5.4.2).
    pub(crate) fn discard(place: &Cell<Held>, stream: u32) {
        if let Some(buffer) = Self::existing(place) {
            buffer.frames.with(|frames| frames.retain(|stored| stored.frame().stream != Some(stream)));
        }
    }

    pub(crate) fn bytesize_of(place: &Cell<Held>) -> usize {
        Self::existing(place).map_or(0, |buffer| buffer.bytesize())
    }

    /// Whether frames of that stream wait.
    pub(crate) fn holds(place: &Cell<Held>, stream: Option<u32>) -> bool {
        Self::existing(place).is_some_and(|buffer| {
            buffer.frames.with(|frames| frames.iter().any(|stored| stored.frame().stream == stream))
        })
    }

    /// Whether the last frame that waits ends its stream.
    pub(crate) fn ends_stream(place: &Cell<Held>) -> bool {
        Self::existing(place).is_some_and(|buffer| {
            buffer.frames.with(|frames| frames.back().is_some_and(|stored| stored.frame().ends_stream()))
        })
    }

    /// # Errors
    /// The headers are not pairs of Strings, or cannot be made such.
    pub(crate) fn push(ruby: &Ruby, this: Obj<Self>, mut frame: Frame) -> Result<(), Error> {
        // The caller may change its String, or its headers, while the frame waits.
        if let Some(payload) = frame.payload_string() {
            frame.payload = strings::frozen(ruby, payload).as_raw();
        } else if frame.kind == Kind::Headers {
            let list = encode::strings(ruby, encode::pairs(ruby, frame.payload())?)?;
            frame.payload = copied(ruby, list)?.as_raw();
            frame.hash = NIL;
        }
        let stored = Stored::new(Owner::of(this), frame);
        this.frames.with(|frames| frames.push_back(stored));
        Ok(())
    }

    /// The next frame, or as much of it as the window takes. HEADERS, and empty DATA that ends the stream, need no window.
    pub(crate) fn take(this: Obj<Self>, window: i64) -> Option<Frame> {
        let front = this.frames.with(|frames| frames.front().copied())?.frame();
        let len = front.window_len();
        let is_free = front.kind != Kind::Data || len == 0 && front.flags & END_STREAM != 0;
        if window <= 0 && !is_free {
            return None;
        }
        if len as i64 > window && window > 0 {
            let (first, rest) = front.split(window as usize);
            let rest = Stored::new(Owner::of(this), rest);
            this.frames.with(|frames| frames[0] = rest);
            return Some(first);
        }
        this.frames.with(VecDeque::pop_front);
        Some(front)
    }

    fn bytesize(&self) -> usize {
        self.frames.with(|frames| frames.iter().map(|stored| stored.frame().window_len()).sum())
    }

    fn initialize_copy(this: Obj<Self>, other: Obj<Self>) -> Obj<Self> {
        let owner = Owner::of(this);
        let frames = other.frames.with(|frames| frames.clone());
        let frames = frames.into_iter().map(|stored| Stored::new(owner, stored.frame())).collect();
        this.frames.with(|place| *place = frames);
        this
    }

    fn append(ruby: &Ruby, this: Obj<Self>, hash: RHash) -> Result<Obj<Self>, Error> {
        Self::push(ruby, this, Frame::from_hash(ruby, hash)?)?;
        Ok(this)
    }

    fn retrieve(ruby: &Ruby, this: Obj<Self>, window: i64) -> Result<Option<RHash>, Error> {
        Self::take(this, window).map(|frame| frame.to_hash(ruby)).transpose()
    }
}

/// Pairs that the caller cannot change.
fn copied(ruby: &Ruby, list: RArray) -> Result<RArray, Error> {
    let copy = ruby.ary_new_capa(list.len());
    for at in 0..list.len() {
        let pair: RArray = list.entry(at as isize)?;
        let (name, content): (RString, RString) = (pair.entry(0)?, pair.entry(1)?);
        copy.push(ruby.ary_new_from_values(&[strings::frozen(ruby, name), strings::frozen(ruby, content)]))?;
    }
    Ok(copy)
}

pub(crate) fn init(ruby: &Ruby, http2: RModule) -> Result<(), Error> {
    let buffer = http2.define_class("FrameBuffer", ruby.class_object())?;
    FrameBuffer::load(ruby, buffer);
    buffer.define_alloc_func::<FrameBuffer>();
    buffer.define_private_method("initialize_copy", method!(FrameBuffer::initialize_copy, 1))?;
    buffer.define_method("<<", method!(mut FrameBuffer::append, 1))?;
    buffer.define_method("retrieve", method!(mut FrameBuffer::retrieve, 1))?;
    buffer.define_method("bytesize", method!(FrameBuffer::bytesize, 0))?;
    buffer.define_method(
        "empty?",
        method!(|this: &FrameBuffer| this.frames.with(|frames| frames.is_empty()), 0),
    )?;
    buffer.define_method("clear", method!(mut |this: &FrameBuffer| this.frames.with(VecDeque::clear), 0))
}
