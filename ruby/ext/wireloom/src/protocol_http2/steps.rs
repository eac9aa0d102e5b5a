//! Which steps a class has overridden. The native methods leave steps of the gem out, each only for objects whose class has the
//! gem's own method for it.
//!
//! ```text
//! of ─▶ known: what the class keeps ─▶ find: asks Wireloom::ProtocolHTTP2, which runs Ruby code, once for each class
//!                    ▲
//!                    └─ changed, forget: a class was changed (Watch and WatchObject in frames.rb)
//! ```
//!
//! A class keeps the answers in an instance variable that Ruby code cannot see, with the generation for which they hold: any method,
//! module or subclass that is added begins a new one. When a class of the gem itself is changed, no step is left out any more.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use magnus::rb_sys::AsRawValue;
use magnus::value::ReprValue;
use magnus::{Error, Ruby, Value};
use rb_sys::VALUE;

use super::names::names;
use super::objects::{NIL, class_of, get, integer, number, value};
use crate::guard::protect;

/// Objects whose classes are asked the same questions. The steps are an enum.
pub(super) trait Kind: Copy + 'static {
    const ALL: &'static [Self];
    /// Another one for each kind.
    const NUMBER: i64;

    fn bit(self) -> i64;
    fn test(self) -> Test;
}

/// How a step is found out.
pub(super) enum Test {
    /// These methods are the gem's own, or those of its replacement.
    Own(&'static [&'static str]),
    /// That method of `Wireloom::ProtocolHTTP2` says so.
    Asked(&'static str),
}

/// The steps of a class that may be left out.
#[derive(Clone, Copy)]
pub(super) struct Steps<K>(i64, PhantomData<K>);

impl<K: Kind> Steps<K> {
    const NONE: Self = Self(0, PhantomData);

    #[inline]
    pub(super) fn has(self, step: K) -> bool {
        self.0 & step.bit() != 0
    }
}

macro_rules! kind {
    ($(#[$doc:meta])* $kind:ident = $number:literal { $($(#[$of_step:meta])* $step:ident: $test:ident($of:expr),)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub(super) enum $kind { $($(#[$of_step])* $step),* }

        impl Kind for $kind {
            const ALL: &'static [Self] = &[$(Self::$step),*];
            const NUMBER: i64 = $number;

            #[inline]
            fn bit(self) -> i64 {
                1 << self as u32
            }

            fn test(self) -> Test {
                match self { $(Self::$step => Test::$test($of)),* }
            }
        }

        const _: () = assert!($kind::ALL.len() <= STEP_BITS as usize);
    };
}

kind! {
    /// Of streams.
    StreamStep = 0 {
        WriteHeaders: Own(&["write_headers", "open!"]),
        WriteData: Own(&["write_data", "consume_remote_window"]),
        WriteFrame: Own(&["write_frame"]),
        Close: Own(&["close!"]),
        Closed: Own(&["closed"]),
        ProcessHeaders: Own(&["process_headers"]),
        ProcessData: Own(&["process_data"]),
        ReceiveHeaders: Own(&["receive_headers", "open!"]),
        ReceiveData: Own(&["receive_data"]),
        UpdateWindow: Own(&["update_local_window", "consume_local_window", "request_window_update"]),
        SendWindowUpdate: Own(&["send_window_update", "write_frame", "id"]),
        ReceiveWindowUpdate: Own(&["receive_window_update"]),
        AvailableSize: Own(&["available_size", "maximum_frame_size"]),
        WindowUpdated: Own(&["window_updated", "active?"]),
        /// `window_updated` only wakes what waits for a window.
        OnlyWakes: Asked("only_wakes?"),
    }
}

kind! {
    /// Of connections.
    ConnectionStep = 1 {
        Write: Own(&["write_frames", "write_frame", "synchronize"]),
        Encode: Own(&["encode_headers", "maximum_frame_size"]),
        Decode: Own(&["decode_headers"]),
        ConsumeRemoteWindow: Own(&["consume_remote_window"]),
        UpdateWindow: Own(&["update_local_window", "consume_local_window", "request_window_update"]),
        SendWindowUpdate: Own(&["send_window_update", "id"]),
        ReceiveHeaders: Own(&["receive_headers", "local_stream_id?", "closed_stream_id?", "idle_stream_id?"]),
        ReceiveData: Own(&["receive_data"]),
        Delete: Own(&["delete", "close_if_drained!", "goaway_received?"]),
        ReceiveWindowUpdate: Own(&["receive_window_update"]),
        Read: Own(&["ignore_frame?", "closed?"]),
        Settings: Own(&["local_settings", "remote_settings", "streams"]),
        AvailableSize: Own(&["available_frame_size", "available_size", "maximum_frame_size"]),
        ConsumeWindow: Own(&["consume_window", "available_size"]),
        /// `write_frames` and `write_frame` do what those of async-http do.
        WritesAsync: Asked("writes_async?"),
    }
}

kind! {
    /// Of other objects that connections and streams of async-http use, each of a class whose methods are known.
    PartStep = 2 {
        /// A semaphore of async.
        Guard: Asked("guard?"),
        /// `IO::Stream::Buffered`, to write.
        Buffered: Asked("buffered?"),
        /// The same, to read.
        ReadAhead: Asked("read_ahead?"),
        /// A `StringIO`, to read.
        Memory: Asked("memory?"),
        /// A body that is in memory.
        Body: Asked("in_memory?"),
        /// `Protocol::HTTP::Headers::Merged`
        Merged: Asked("merged?"),
    }
}

/// Bits of the steps in what a class keeps; above them are two of the kind, and the generation.
const STEP_BITS: u32 = 16;
const KIND_BITS: u32 = 2;

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
    keep(class.as_raw(), NIL)
}

/// The steps of the class of an object that are the gem's own.
///
/// # Errors
/// The exception of a program's method that was asked, or that another thread raised in this one.
#[inline]
pub(super) fn of<K: Kind>(ruby: &Ruby, object: VALUE) -> Result<Steps<K>, Error> {
    match known(object) {
        Some(steps) => Ok(steps),
        None => find(ruby, class_of(object)),
    }
}

/// The same, when it was found out before. Runs no Ruby code.
#[inline]
pub(super) fn known<K: Kind>(object: VALUE) -> Option<Steps<K>> {
    let class = class_of(object);
    if class == NIL {
        return Some(Steps::NONE);
    }
    let kept = number(get(class, names().ids.steps))?;
    (kept >> STEP_BITS == key::<K>()).then_some(Steps(kept, PhantomData))
}

fn key<K: Kind>() -> i64 {
    GENERATION.load(Ordering::Relaxed) << KIND_BITS | K::NUMBER
}

#[cold]
fn find<K: Kind>(ruby: &Ruby, class: VALUE) -> Result<Steps<K>, Error> {
    // Before the questions: a class that is changed meanwhile is asked again.
    let key = key::<K>();
    let mut found = 0;
    for &step in K::ALL {
        if ask(ruby, value(class), step.test())? {
            found |= step.bit();
        }
    }
    // A frozen class, or one of another Ractor, keeps nothing, and is asked again each time.
    let _ = keep(class, integer(key << STEP_BITS | found));
    Ok(Steps(found, PhantomData))
}

fn ask(ruby: &Ruby, class: Value, test: Test) -> Result<bool, Error> {
    let module = names().module.get();
    match test {
        Test::Own(methods) => {
            let methods = ruby.ary_from_iter(methods.iter().map(|name| ruby.to_symbol(*name)));
            module.funcall("own?", (class, methods))
        }
        Test::Asked(question) => module.funcall(question, (class,)),
    }
}

/// # Errors
/// FrozenError, or that of a Ractor; no Ruby code runs.
fn keep(class: VALUE, what: VALUE) -> Result<(), Error> {
    // SAFETY: a live class, and a closure that has nothing to drop.
    protect(|| unsafe { rb_sys::rb_ivar_set(class, names().ids.steps, what) }).map(drop)
}
