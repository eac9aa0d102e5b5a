//! permessage-deflate (RFC 7692) for the drop-ins: whole messages into DEFLATE blocks and back, by the core. Negotiation, the
//! RSV1 bit and frames are the drop-ins'.

use magnus::prelude::*;
use magnus::rb_sys::AsRawValue;
use magnus::typed_data::Obj;
use magnus::{Error, ExceptionClass, RModule, RString, Ruby};
use wireloom_ws::deflate::{
    Compressor, Decompressor, DeflateConfig, DeflateParams, InflateError, InflateLimit,
};
use wireloom_ws::role::Role;

use crate::exclusive::{DETACHED_DEFLATE_LEN, Detachable, Ready, check_interrupts};
use crate::guard::{function, method};
use crate::held::{Immortal, managed, plain};
use crate::memory::{Accounted, no_memory};
use crate::{scratch, strings};

static ERROR: Immortal<ExceptionClass> = Immortal::new();

plain!(Deflate, Decompressor);

/// The negotiated parameters of one direction.
#[derive(Clone, Copy)]
pub(crate) struct Direction {
    pub(crate) window_bits: u8,
    pub(crate) context_takeover: bool,
}

impl Direction {
    /// Both cores below take the parameters of what a server sends.
    fn params(self) -> DeflateParams {
        DeflateParams {
            server_max_window_bits: self.window_bits,
            server_no_context_takeover: !self.context_takeover,
            ..DeflateParams::default()
        }
    }

    /// With the level and the memory that zlib and the originals have for a default.
    fn compressor(self) -> Compressor {
        let config = DeflateConfig { level: 6, mem_level: 8, ..DeflateConfig::default() };
        Compressor::new(Role::Server, &self.params(), &config)
    }

    pub(crate) fn decompressor(self) -> Decompressor {
        Decompressor::new(Role::Client, &self.params())
    }
}

/// Compresses the messages of one direction.
pub(crate) struct Deflate {
    compressor: Compressor,
    direction: Direction,
}

impl Deflate {
    pub(crate) fn new(direction: Direction) -> Box<Self> {
        Box::new(Self { compressor: direction.compressor(), direction })
    }

    /// The next message refers to none before it, so that the peer can miss some.
    pub(crate) fn forget(&mut self) {
        self.compressor = self.direction.compressor();
    }
}

/// Calls `make` with the compressed `message`, or the message as it is if there is no compressor, and whether it was compressed. Returns
/// its result.
///
/// # Errors
/// There is no memory. The next message refers to none before it, so that the peer can miss this one. Or the exception that another
/// thread raised in this one before anything was done.
pub(crate) fn deflate(
    ruby: &Ruby,
    place: &Detachable<Option<Box<Deflate>>>,
    message: RString,
    make: impl FnOnce(&Ruby, bool, &[u8]) -> RString,
) -> Result<RString, Error> {
    let state = place.ready(ruby)?;
    let mut out = scratch::take();
    let made = compress(ruby, state, message, &mut out)
        .and_then(|compressed| strings::protected(ruby, |ruby| make(ruby, compressed, &out)));
    scratch::give(out);
    if made.is_err() {
        place.ready_again().with(|state| {
            if let Some(deflate) = state {
                deflate.forget();
            }
        });
    }
    made
}

/// Appends the compressed `message` to `out`; the message as it is when there is no compressor. The result is whether it was
/// compressed.
fn compress(
    ruby: &Ruby,
    state: Ready<'_, Option<Box<Deflate>>>,
    message: RString,
    out: &mut Vec<u8>,
) -> Result<bool, Error> {
    let detached = message.len() >= DETACHED_DEFLATE_LEN;
    let message = stable(ruby, message, detached)?;
    // SAFETY: no Ruby code runs while the slice is in use; without the GVL the String is frozen.
    let bytes = unsafe { strings::bytes(message.as_raw()) };
    // For what cannot be compressed.
    out.try_reserve(bytes.len() + bytes.len() / 256 + 64).map_err(|_| no_memory(ruby))?;
    let mut work = |state: &mut Option<Box<Deflate>>| match state {
        Some(deflate) => {
            deflate.compressor.compress(bytes, out);
            true
        }
        None => {
            out.extend_from_slice(bytes);
            false
        }
    };
    let compressed = if detached { state.detached(work) } else { state.with(&mut work) };
    strings::keep(message);
    Ok(compressed)
}

/// Appends what the `message` inflates to, up to `len_max` bytes, to `out`; `decompressor` finds it in the state.
///
/// # Errors
/// There is no memory.
pub(crate) fn inflate<S: Send>(
    ruby: &Ruby,
    state: Ready<'_, S>,
    decompressor: impl Fn(&mut S) -> &mut Option<Box<Decompressor>> + Send + Sync,
    message: RString,
    len_max: usize,
    out: &mut Vec<u8>,
) -> Result<Result<(), InflateError>, Error> {
    let detached = message.len() >= DETACHED_DEFLATE_LEN;
    let message = stable(ruby, message, detached)?;
    // SAFETY: no Ruby code runs while the slice is in use; without the GVL the String is frozen.
    let bytes = unsafe { strings::bytes(message.as_raw()) };
    let limit = InflateLimit::new(len_max);
    let work = |state: &mut S| match decompressor(state) {
        Some(decompressor) => decompressor.decompress(bytes, true, out, &limit),
        None => Err(InflateError::Corrupt),
    };
    let inflated = if detached { state.detached(work) } else { state.with(work) };
    strings::keep(message);
    Ok(inflated)
}

/// Called before a message is deflated or inflated, and before anything is changed.
///
/// # Errors
/// The exception that another thread raised in this one.
pub(crate) fn prepare(ruby: &Ruby, message: RString) -> Result<(), Error> {
    if message.len() >= DETACHED_DEFLATE_LEN { check_interrupts(ruby) } else { Ok(()) }
}

/// A String that no other thread can change while the GVL is released.
fn stable(ruby: &Ruby, string: RString, detached: bool) -> Result<RString, Error> {
    if detached { strings::protected(ruby, |ruby| strings::frozen(ruby, string)) } else { Ok(string) }
}

/// `Wireloom::Deflater`: compresses the messages of one direction.
struct Deflater {
    compressor: Detachable<Option<Box<Deflate>>>,
    memory: Accounted,
}

managed!(
    Deflater as "Wireloom::Deflater" { compressor, memory },
    size = |deflater| deflater.compressor.try_with(|state| compressor_len(state)).unwrap_or(0)
);

impl Deflater {
    /// `Deflater.new(window_bits, context_takeover)`
    fn new(ruby: &Ruby, window_bits: u8, context_takeover: bool) -> Obj<Self> {
        let deflate = Deflate::new(Direction { window_bits, context_takeover });
        ruby.obj_wrap(Self { compressor: Detachable::new(Some(deflate)), memory: Accounted::default() })
    }

    /// `deflate(message)`: the payload of a compressed frame.
    fn deflate(ruby: &Ruby, this: Obj<Self>, message: RString) -> Result<RString, Error> {
        prepare(ruby, message)?;
        let made =
            deflate(ruby, &this.compressor, message, |ruby, _, payload| strings::binary(ruby, payload));
        if let Some(len) = this.compressor.try_with(|state| compressor_len(state)) {
            this.memory.set(len);
        }
        made
    }
}

/// `Wireloom::Inflater`: inflates the messages of one direction.
struct Inflater {
    decompressor: Detachable<Option<Box<Decompressor>>>,
    memory: Accounted,
}

managed!(
    Inflater as "Wireloom::Inflater" { decompressor, memory },
    size = |inflater| inflater.decompressor.try_with(|state| decompressor_len(state)).unwrap_or(0)
);

impl Inflater {
    /// `Inflater.new(window_bits, context_takeover)`
    fn new(ruby: &Ruby, window_bits: u8, context_takeover: bool) -> Obj<Self> {
        let decompressor = Direction { window_bits, context_takeover }.decompressor();
        ruby.obj_wrap(Self {
            decompressor: Detachable::new(Some(Box::new(decompressor))),
            memory: Accounted::default(),
        })
    }

    /// `inflate(payload, length_max)`: the message, or `nil` when it is longer; `length_max` is `nil` for no limit.
    fn inflate(
        ruby: &Ruby,
        this: Obj<Self>,
        payload: RString,
        len_max: Option<usize>,
    ) -> Result<Option<RString>, Error> {
        prepare(ruby, payload)?;
        let state = this.decompressor.ready(ruby)?;
        let mut out = scratch::take();
        let inflated = inflate(
            ruby,
            state,
            |decompressor| decompressor,
            payload,
            len_max.unwrap_or(usize::MAX),
            &mut out,
        );
        let made = inflated.and_then(|inflated| match inflated {
            Ok(()) => strings::protected(ruby, |ruby| strings::binary(ruby, &out)).map(Some),
            Err(InflateError::Corrupt) => Err(Error::new(ERROR.get(ruby), InflateError::Corrupt.to_string())),
            Err(InflateError::OutOfMemory) => Err(no_memory(ruby)),
            Err(_) => Ok(None),
        });
        scratch::give(out);
        if let Some(len) = this.decompressor.try_with(|state| decompressor_len(state)) {
            this.memory.set(len);
        }
        made
    }
}

/// Bytes of memory that a compressor holds.
pub(crate) fn compressor_len(state: &Option<Box<Deflate>>) -> usize {
    state.as_ref().map_or(0, |deflate| size_of::<Deflate>() + deflate.compressor.memory_len())
}

/// Bytes of memory that a decompressor holds.
pub(crate) fn decompressor_len(state: &Option<Box<Decompressor>>) -> usize {
    state.as_ref().map_or(0, |decompressor| size_of::<Decompressor>() + decompressor.memory_len())
}

pub(crate) fn init(ruby: &Ruby, wireloom: RModule) -> Result<(), Error> {
    let error = wireloom.define_error("DeflateError", wireloom.const_get::<_, ExceptionClass>("Error")?)?;
    ERROR.set(ruby, error);
    let deflater = wireloom.define_class("Deflater", ruby.class_object())?;
    deflater.undef_default_alloc_func();
    Deflater::load(ruby, deflater);
    deflater.define_singleton_method("new", function!(Deflater::new, 2))?;
    deflater.define_method("deflate", method!(Deflater::deflate, 1))?;
    let inflater = wireloom.define_class("Inflater", ruby.class_object())?;
    inflater.undef_default_alloc_func();
    Inflater::load(ruby, inflater);
    inflater.define_singleton_method("new", function!(Inflater::new, 2))?;
    inflater.define_method("inflate", method!(Inflater::inflate, 2))
}
