//! Which steps a class has overridden. The native methods leave steps of the gem out, each only for objects whose class has the
//! gem's own method for it.
//!
//! A class keeps the answer in an instance variable that Ruby code cannot see, together with the generation for which it holds:
//! any method, module or subclass that is added begins a new one. When a class of the gem itself is changed, no step is left out any
//! more.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use magnus::rb_sys::{AsRawValue, FromRawValue, protect};
use magnus::value::ReprValue;
use magnus::{Error, Ruby, Value};
use rb_sys::VALUE;

use super::names::names;
use super::objects::{class_of, get, integer, number};

/// Steps, a bit each, of a class.
#[derive(Clone, Copy)]
pub(super) struct Steps(i64);

/// A step: its bit, and the methods that it consists of.
pub(super) struct Step(i64, &'static [&'static str]);

/// What is known of classes of one kind: steps, and what a method of `Wireloom::ProtocolHTTP2` answers.
struct Kind {
    steps: &'static [Step],
    asked: &'static [(Step, &'static str)],
}

impl Steps {
    #[inline]
    pub(super) fn has(self, step: &Step) -> bool {
        self.0 & step.0 != 0
    }
}

macro_rules! steps {
    ($all:ident: $($step:ident = $bit:literal [$($method:literal),*];)*) => {
        $(pub(in crate::protocol_http2) const $step: Step = Step(1 << $bit, &[$($method),*]);)*
        const $all: &[Step] = &[$($step),*];
    };
}

/// Steps of streams.
pub(super) mod stream {
    use super::Step;

    steps! { ALL:
        WRITE_HEADERS = 0 ["write_headers", "open!"];
        WRITE_DATA = 1 ["write_data", "consume_remote_window"];
        WRITE_FRAME = 2 ["write_frame"];
        CLOSE = 3 ["close!"];
        CLOSED = 4 ["closed"];
        PROCESS_HEADERS = 5 ["process_headers"];
        PROCESS_DATA = 6 ["process_data"];
        RECEIVE_HEADERS = 7 ["receive_headers", "open!"];
        RECEIVE_DATA = 8 ["receive_data"];
        UPDATE_WINDOW = 9 ["update_local_window", "consume_local_window", "request_window_update"];
        SEND_WINDOW_UPDATE = 10 ["send_window_update", "write_frame", "id"];
        RECEIVE_WINDOW_UPDATE = 11 ["receive_window_update"];
        AVAILABLE_SIZE = 12 ["available_size", "maximum_frame_size"];
        WINDOW_UPDATED = 13 ["window_updated", "active?"];
    }

    /// `window_updated` only wakes what waits for a window.
    pub(in crate::protocol_http2) const ONLY_WAKES: Step = Step(1 << 14, &[]);

    pub(super) const KIND: super::Kind = super::Kind { steps: ALL, asked: &[(ONLY_WAKES, "only_wakes?")] };
}

/// Steps of connections.
pub(super) mod connection {
    use super::Step;

    steps! { ALL:
        WRITE = 0 ["write_frames", "write_frame", "synchronize"];
        ENCODE = 1 ["encode_headers", "maximum_frame_size"];
        DECODE = 2 ["decode_headers"];
        CONSUME_REMOTE_WINDOW = 3 ["consume_remote_window"];
        UPDATE_WINDOW = 4 ["update_local_window", "consume_local_window", "request_window_update"];
        SEND_WINDOW_UPDATE = 5 ["send_window_update", "id"];
        RECEIVE_HEADERS = 6 ["receive_headers", "local_stream_id?", "closed_stream_id?", "idle_stream_id?"];
        RECEIVE_DATA = 7 ["receive_data"];
        DELETE = 8 ["delete", "close_if_drained!", "goaway_received?"];
        RECEIVE_WINDOW_UPDATE = 9 ["receive_window_update"];
        READ = 10 ["ignore_frame?", "closed?"];
        SETTINGS = 11 ["local_settings", "remote_settings", "streams"];
        AVAILABLE_SIZE = 12 ["available_frame_size", "available_size", "maximum_frame_size"];
        CONSUME_WINDOW = 13 ["consume_window", "available_size"];
    }

    /// `write_frames` and `write_frame` do what those of async-http do.
    pub(in crate::protocol_http2) const WRITES_ASYNC: Step = Step(1 << 14, &[]);

    pub(super) const KIND: super::Kind =
        super::Kind { steps: ALL, asked: &[(WRITES_ASYNC, "writes_async?")] };
}

/// Other objects that connections and streams of async-http use, each of a class whose methods are known.
pub(super) mod part {
    use super::Step;

    /// A semaphore of async.
    pub(in crate::protocol_http2) const GUARD: Step = Step(1, &[]);
    /// `IO::Stream::Buffered`
    pub(in crate::protocol_http2) const BUFFERED: Step = Step(1 << 1, &[]);
    /// A body that is in memory.
    pub(in crate::protocol_http2) const BODY: Step = Step(1 << 2, &[]);
    /// `Protocol::HTTP::Headers::Merged`
    pub(in crate::protocol_http2) const MERGED: Step = Step(1 << 3, &[]);

    pub(super) const KIND: super::Kind = super::Kind {
        steps: &[],
        asked: &[(GUARD, "guard?"), (BUFFERED, "buffered?"), (BODY, "in_memory?"), (MERGED, "merged?")],
    };
}

/// Bits of a generation, above those of the steps.
const STEP_BITS: u32 = 16;

/// How many generations there may be: an application that changes its classes all the time gets the gem's methods, rather than
/// that they are looked up again and again.
const GENERATIONS_MAX: i64 = 20_000;

static IS_PLAIN: AtomicBool = AtomicBool::new(true);
static GENERATION: AtomicI64 = AtomicI64::new(1);

/// Whether no class of the gem was changed.
#[inline]
pub(super) fn is_plain() -> bool {
    IS_PLAIN.load(Ordering::Relaxed)
}

/// `changed(own)`: a class was changed, the gem's `own` or another.
pub(super) fn changed(own: bool) {
    if own || GENERATION.fetch_add(1, Ordering::Relaxed) > GENERATIONS_MAX {
        IS_PLAIN.store(false, Ordering::Relaxed);
    }
}

/// `forget(class)`: a singleton class was changed, which no other class inherits from.
pub(super) fn forget(class: Value) -> Result<(), Error> {
    // SAFETY: a live class.
    protect(|| unsafe { rb_sys::rb_ivar_set(class.as_raw(), names().ids.steps, super::objects::NIL) })
        .map(drop)
}

/// The steps of a stream that are the gem's own.
#[inline]
pub(super) fn of_stream(ruby: &Ruby, stream: VALUE) -> Steps {
    of(ruby, class_of(stream), &stream::KIND)
}

/// The steps of a connection that are the gem's own.
#[inline]
pub(super) fn of_connection(ruby: &Ruby, connection: VALUE) -> Steps {
    of(ruby, class_of(connection), &connection::KIND)
}

/// What is known of the class of another object.
#[inline]
pub(super) fn of_part(ruby: &Ruby, object: VALUE) -> Steps {
    of(ruby, class_of(object), &part::KIND)
}

#[inline]
fn of(ruby: &Ruby, class: VALUE, kind: &Kind) -> Steps {
    if class == super::objects::NIL {
        return Steps(0);
    }
    let generation = GENERATION.load(Ordering::Relaxed);
    match number(get(class, names().ids.steps)) {
        Some(known) if known >> STEP_BITS == generation => Steps(known),
        _ => find(ruby, class, kind, generation),
    }
}

#[cold]
fn find(ruby: &Ruby, class: VALUE, kind: &Kind, generation: i64) -> Steps {
    // SAFETY: the class of a live object.
    let value = unsafe { Value::from_raw(class) };
    let own =
        kind.steps.iter().filter(|step| step.1.iter().all(|name| is_own(ruby, value, name).unwrap_or(false)));
    let known = kind.asked.iter().filter(|(_, question)| ask(value, question));
    let found = own.chain(known.map(|(step, _)| step)).fold(0, |found, step| found | step.0);
    // SAFETY: a live class. A frozen one, or one of another Ractor, raises, and is asked again each time.
    let _ = protect(|| unsafe {
        rb_sys::rb_ivar_set(class, names().ids.steps, integer(generation << STEP_BITS | found))
    });
    Steps(found)
}

fn ask(class: Value, question: &str) -> bool {
    names().module.get().funcall(question, (class,)).unwrap_or(false)
}

/// Whether a method of a class is that of the gem or of its replacement.
fn is_own(ruby: &Ruby, class: Value, name: &str) -> Result<bool, Error> {
    let method: Value = class.funcall("instance_method", (ruby.to_symbol(name),))?;
    let owner: Value = method.funcall("owner", ())?;
    Ok(names().owners.get().into_iter().any(|own| own.as_raw() == owner.as_raw()))
}
