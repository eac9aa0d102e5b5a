//! Where a connection writes its frames: the stream of its framer, directly or as connections of async-http do.
//!
//! async-http appends a frame to the buffer of an `IO::Stream::Buffered` while it holds a semaphore and a mutex, and flushes the buffer
//! while the task cannot be cancelled. As long as neither is taken, nothing can happen between: the frame is appended here.
//!
//! A response whose body is in memory is *held*: its frames stay in that buffer until the last of them, or until the stream waits
//! for a window.

use magnus::rb_sys::AsRawValue;
use magnus::value::ReprValue;
use magnus::{Error, RString, Ruby, Value};
use rb_sys::VALUE;

use super::names::names;
use super::objects::{NIL, call, get, number, set_new, string};
use super::steps::{self, ConnectionStep, PartStep, Steps, StreamStep};
use crate::guard::protect;
use crate::strings;

const FALSE: VALUE = rb_sys::Qfalse as VALUE;

/// Up to this length a payload is written together with what comes before it, in bytes.
const TOGETHER_LEN: usize = 4096;

/// The most bytes that are held.
const HELD_LEN_MAX: usize = 16 << 10;

#[derive(Clone, Copy)]
pub(super) enum Io {
    /// The framer's stream: `write` and `flush`.
    Direct(VALUE),
    /// Of a connection of async-http.
    Buffered(Buffered),
}

#[derive(Clone, Copy)]
pub(super) struct Buffered {
    connection: VALUE,
    framer: VALUE,
    buffer: RString,
    /// The frame is one of those that are held.
    is_held: bool,
}

impl Io {
    /// `None` where the gem's methods have to write. `holder` is a stream whose frame may wait for its next one.
    ///
    /// # Errors
    /// The exception that another thread raises in this one.
    #[inline]
    pub(super) fn of(
        ruby: &Ruby,
        connection: VALUE,
        steps: Steps<ConnectionStep>,
        holder: Option<VALUE>,
    ) -> Result<Option<Self>, Error> {
        let (ids, framer) = (&names().ids, get(connection, names().ids.framer));
        if !names().classes.framer.is_of(framer) {
            return Ok(None);
        }
        let stream = get(framer, ids.stream);
        if steps.has(ConnectionStep::Write) {
            return Ok(Some(Self::Direct(stream)));
        }
        let is_async =
            steps.has(ConnectionStep::WritesAsync) && is_free(ruby, get(connection, ids.write_frame_guard))?;
        let buffer = if is_async { buffer(ruby, stream)? } else { None };
        let Some(buffer) = buffer else { return Ok(None) };
        let is_held = holder.is_some_and(|holder| get(connection, ids.held) == holder);
        let is_own = is_held || is_in_task()?;
        Ok(is_own.then_some(Self::Buffered(Buffered { connection, framer, buffer, is_held })))
    }

    /// Writes a frame, its payload, if any, behind the rest of it, and flushes the stream unless the frame is held.
    ///
    /// # Errors
    /// The exception that a method of the stream raises, or there is no memory.
    #[inline]
    pub(super) fn write(self, ruby: &Ruby, head: &[u8], payload: Option<RString>) -> Result<(), Error> {
        match self {
            // SAFETY: the closure has nothing to drop.
            Self::Direct(stream) => protect(|| unsafe { write(ruby, stream, head, payload) }).map(drop),
            Self::Buffered(io) => io.write(head, payload),
        }
    }

    /// The same for a frame that is a String.
    ///
    /// # Errors
    /// As for [`write`](Self::write).
    #[inline]
    pub(super) fn write_whole(self, ruby: &Ruby, frame: RString) -> Result<(), Error> {
        self.write(ruby, &[], Some(frame))
    }
}

/// # Safety
/// The caller has nothing to drop, because this raises.
#[inline]
unsafe fn write(ruby: &Ruby, stream: VALUE, head: &[u8], payload: Option<RString>) -> VALUE {
    let ids = &names().ids;
    // SAFETY: live objects; the caller vouches for the rest.
    let put = |part: RString| unsafe { rb_sys::rb_funcallv(stream, ids.write, 1, &part.as_raw()) };
    let is_together = payload.is_none_or(|payload| payload.len() <= TOGETHER_LEN);
    if is_together && !head.is_empty() {
        let frame = strings::uninitialized(ruby, head.len() + payload.map_or(0, RString::len));
        // SAFETY: `frame` was made just now; no Ruby code runs while the slices are in use.
        unsafe {
            let (first, rest) = strings::contents(frame).split_at_mut(head.len());
            first.copy_from_slice(head);
            if let Some(payload) = payload {
                rest.copy_from_slice(strings::bytes(payload.as_raw()));
            }
        }
        strings::keep(payload);
        put(frame);
    } else {
        if !head.is_empty() {
            put(strings::binary(ruby, head));
        }
        payload.map(put);
    }
    // SAFETY: as above.
    unsafe { rb_sys::rb_funcallv(stream, ids.flush, 0, std::ptr::null()) }
}

impl Buffered {
    fn write(self, head: &[u8], payload: Option<RString>) -> Result<(), Error> {
        // SAFETY: Strings, of which the payload stays alive, and a closure that has nothing to drop. `rb_str_cat` copies.
        protect(|| unsafe {
            let append =
                |part: &[u8]| rb_sys::rb_str_cat(self.buffer.as_raw(), strings::start(part), part.len() as _);
            append(head);
            payload.map_or(NIL, |payload| append(strings::bytes(payload.as_raw())))
        })?;
        strings::keep(payload);
        if self.is_held && self.buffer.len() < HELD_LEN_MAX {
            return Ok(());
        }
        flush(self.connection, self.framer)
    }
}

/// Flushes what is held, and what any other stream has written since.
fn flush(connection: VALUE, framer: VALUE) -> Result<(), Error> {
    set_new(connection, names().ids.held, NIL)?;
    call(names().module.get().as_raw(), names().ids.flush, &[framer]).map(drop)
}

/// Whether a semaphore of async can be acquired without waiting.
#[inline]
fn is_free(ruby: &Ruby, guard: VALUE) -> Result<bool, Error> {
    let ids = &names().ids;
    let is_known = steps::of(ruby, guard)?.has(PartStep::Guard);
    Ok(match (number(get(guard, ids.count)), number(get(guard, ids.limit))) {
        (Some(count), Some(limit)) => is_known && count < limit,
        _ => false,
    })
}

/// The buffer of an `IO::Stream::Buffered` that no fiber is flushing.
#[inline]
fn buffer(ruby: &Ruby, stream: VALUE) -> Result<Option<RString>, Error> {
    let ids = &names().ids;
    if !steps::of(ruby, stream)?.has(PartStep::Buffered) {
        return Ok(None);
    }
    let (writing, buffer) = (get(stream, ids.writing), string(get(stream, ids.write_buffer)));
    // SAFETY: a mutex.
    let is_unlocked = || unsafe { rb_sys::rb_mutex_locked_p(writing) } == FALSE;
    let is_free = names().mutex.is_of(writing) && is_unlocked();
    Ok(buffer.filter(|buffer| is_free && !buffer.is_frozen()))
}

fn is_in_task() -> Result<bool, Error> {
    let answer = call(names().module.get().as_raw(), names().ids.in_task, &[])?;
    Ok(!matches!(answer, NIL | FALSE))
}

/// `hold(stream, body)`: whether the frames of a response with this body are held from now on.
pub(super) fn hold(ruby: &Ruby, this: Value, body: Value) -> Result<bool, Error> {
    let (ids, this) = (&names().ids, this.as_raw());
    let connection = get(this, ids.connection);
    let (of_stream, of_connection) = (steps::of(ruby, this)?, steps::of(ruby, connection)?);
    let is_usual = steps::is_plain()
        && [StreamStep::WriteHeaders, StreamStep::WriteData, StreamStep::WriteFrame]
            .iter()
            .all(|&step| of_stream.has(step))
        && [ConnectionStep::Encode, ConnectionStep::ConsumeRemoteWindow]
            .iter()
            .all(|&step| of_connection.has(step))
        && steps::of(ruby, body.as_raw())?.has(PartStep::Body)
        && get(connection, ids.held) == NIL;
    match Io::of(ruby, connection, of_connection, None)? {
        Some(Io::Buffered(_)) if is_usual => set_new(connection, ids.held, this).map(|()| true),
        _ => Ok(false),
    }
}

/// `release(stream)`: nothing of the stream is held any more.
pub(super) fn release(_: &Ruby, this: Value) -> Result<(), Error> {
    release_held(get(this.as_raw(), names().ids.connection), this.as_raw())
}

pub(super) fn release_held(connection: VALUE, stream: VALUE) -> Result<(), Error> {
    let ids = &names().ids;
    if connection == NIL || get(connection, ids.held) != stream {
        return Ok(());
    }
    match get(connection, ids.framer) {
        NIL => set_new(connection, ids.held, NIL),
        framer => flush(connection, framer),
    }
}
