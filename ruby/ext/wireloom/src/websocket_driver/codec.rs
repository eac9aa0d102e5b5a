//! `Wireloom::DriverCodec`: one connection's frames, both ways.

use super::delivery::{self, Block, Delivered, Delivery, Listeners};
use super::frames::{self, Found, Frames, PING, PONG, Part, Rules, TEXT};
use super::outgoing;
use super::payload::{self, Text};
use crate::deflate::{self, Deflate, Direction};
use crate::exclusive::{
    DETACHED_DEFLATE_LEN, DETACHED_UNMASK_LEN, Detachable, Exclusive, Ready, check_interrupts,
};
use crate::guard::{function, method};
use crate::held::{Held, Owner, managed, plain, traced};
use crate::keys::Keys;
use crate::memory::{Accounted, no_memory};
use crate::{scratch, strings};
use magnus::prelude::*;
use magnus::rb_sys::AsRawValue;
use magnus::typed_data::Obj;
use magnus::value::LazyId;
use magnus::{ArgList, Error, RArray, RClass, RModule, RString, Ruby, Value};
use std::cell::Cell;
use wireloom_ws::deflate::InflateError;
use wireloom_ws::mask::{self, MaskKey};
use wireloom_ws::utf8;

/// The first reserved bit: the message is compressed (RFC 7692 §6).
const RSV1: u8 = 0x40;

/// A message that is being put together never reserves more than this on a frame header's word alone, in bytes.
const TRUSTED_LEN: usize = 1 << 20;
/// Above it, it reserves at most this many times what has arrived.
const TRUSTED_RATIO: usize = 16;

pub(crate) struct Codec {
    frames: Detachable<Frames>,
    /// Binary messages are handed over as Arrays of bytes.
    arrays: Cell<bool>,
    delivery: Delivery,
    /// None between messages, and while a part is added.
    assembly: Exclusive<Option<Assembly>>,
    /// The chunk that is being parsed while listeners are called, or nil, and how much of it was used.
    chunk: Cell<(Held, usize)>,
    /// A server needs none.
    keys: Exclusive<Option<Box<Keys>>>,
    /// permessage-deflate, where the core does it; none where an extension object does, or nothing was negotiated. That for the other
    /// direction is with the frames.
    compressor: Detachable<Option<Box<Deflate>>>,
    memory: Accounted,
}

/// The message under way.
struct Assembly {
    /// Its number; [`Part::message`].
    message: u64,
    /// A String.
    data: Held,
    /// Its text as far as it was validated.
    text: Text,
}

plain!(Frames, Text, Keys);
traced!(Assembly { message, data, text });

managed!(
    Codec as "Wireloom::DriverCodec" {
        frames, arrays, delivery, assembly, chunk, keys, compressor, memory
    },
    size = |codec| codec.frames.try_with(|frames| frames.held_len()).unwrap_or(0)
);

/// The result of one step through the input.
enum Step {
    /// The input is used up.
    Done,
    /// Part of a message, or a message that was delivered.
    Part,
    /// The listener raised.
    Raised(Box<Error>),
    /// A message: its data, and whether it is text.
    Message(RString, bool),
    /// A message for an extension: its data, opcode and reserved bits.
    Raw(RString, u8, u8),
    /// A control frame with its payload.
    Control(u8, RString),
    /// The peer broke a rule: the name of the error in `Hybi::ERRORS`, and a message.
    Broken(Box<(&'static str, String)>),
}

impl Step {
    fn broken(kind: &'static str, message: impl Into<String>) -> Self {
        Self::Broken(Box::new((kind, message.into())))
    }

    fn not_utf8() -> Self {
        Self::broken(NOT_UTF8.0, NOT_UTF8.1)
    }
}

/// Fits into two registers. One that is returned in memory is read in other widths than it was written in, and then the processor waits
/// until all of the payload that was copied before is in the cache.
type Stepped = Result<Step, Box<Error>>;
const _: () = assert!(size_of::<Stepped>() <= 16);

const TOO_LARGE: (&str, &str) = ("too_large", "WebSocket frame length too large");
const PART_MISSING: (&str, &str) =
    ("unexpected_condition", "Another thread has not finished with the part of the message before this one");
const NOT_UTF8: (&str, &str) = ("encoding_error", "Could not decode a text frame as UTF-8");

impl Codec {
    /// `DriverCodec.new(event_class, max_length, require_masking, refuse_masking, arrays)`
    fn new(
        ruby: &Ruby,
        event: RClass,
        message_len_max: u64,
        require_masking: bool,
        refuse_masking: bool,
        arrays: bool,
    ) -> Result<Obj<Self>, Error> {
        delivery::check_event(ruby, event)?;
        let rules = Rules { message_len_max, require_masking, refuse_masking, rsv_allowed: 0, raw: false };
        let codec = ruby.obj_wrap(Self {
            frames: Detachable::new(Frames::new(rules)),
            arrays: Cell::new(arrays),
            delivery: Delivery::default(),
            assembly: Exclusive::default(),
            chunk: Cell::new((Held::NIL, 0)),
            keys: Exclusive::default(),
            compressor: Detachable::default(),
            memory: Accounted::default(),
        });
        codec.delivery.set_event(Owner::of(codec), event);
        Ok(codec)
    }

    /// `codec.extend(rsv_allowed)`: messages go through extensions from now on.
    fn extend(ruby: &Ruby, this: &Self, rsv_allowed: u8) -> Result<(), Error> {
        this.frames.ready(ruby)?.with(|frames| {
            frames.rules.rsv_allowed = rsv_allowed;
            frames.rules.raw = true;
        });
        Ok(())
    }

    /// `codec.deflate(own_window_bits, own_context_takeover, peer_window_bits, peer_context_takeover)`: the core compresses and
    /// inflates messages from now on.
    fn deflate(
        ruby: &Ruby,
        this: &Self,
        own_bits: u8,
        own_takeover: bool,
        peer_bits: u8,
        peer_takeover: bool,
    ) -> Result<(), Error> {
        let own = Direction { window_bits: own_bits, context_takeover: own_takeover };
        let peer = Direction { window_bits: peer_bits, context_takeover: peer_takeover };
        this.compressor.ready(ruby)?.with(|compressor| *compressor = Some(Deflate::new(own)));
        this.frames.ready_again().with(|frames| frames.decompressor = Some(Box::new(peer.decompressor())));
        Ok(())
    }

    /// Reports what permessage-deflate holds, unless a thread works on it.
    fn account(&self) {
        let sending = self.compressor.try_with(|compressor| deflate::compressor_len(compressor));
        let receiving = self.frames.try_with(|frames| deflate::decompressor_len(&frames.decompressor));
        if let (Some(sending), Some(receiving)) = (sending, receiving) {
            self.memory.set(sending + receiving);
        }
    }

    /// `codec.stop`: forgets everything and takes no further input.
    fn stop(ruby: &Ruby, this: &Self) -> Result<(), Error> {
        this.frames.ready(ruby)?;
        this.end();
        Ok(())
    }

    /// The same in the middle of a method.
    fn end(&self) {
        self.frames.ready_again().with(Frames::stop);
        self.compressor.ready_again().with(|compressor| *compressor = None);
        self.assembly.with(|assembly| *assembly = None);
        self.chunk.set((Held::NIL, 0));
    }

    /// `codec.parse(chunk, driver)`: hands messages to the driver's listeners, unless its `emit` was replaced, and calls the driver's
    /// methods for all else.
    fn parse(ruby: &Ruby, this: Obj<Self>, chunk: Option<RString>, driver: Value) -> Result<(), Error> {
        let len = chunk.map_or(0, RString::len);
        let is_inflating = this.frames.ready(ruby)?.with(|frames| frames.decompressor.is_some());
        if len >= DETACHED_UNMASK_LEN || is_inflating && len >= DETACHED_DEFLATE_LEN {
            check_interrupts(ruby)?;
        }
        // Waits for a thread that works on a message without the GVL.
        this.frames.ready(ruby)?;
        // The rest of a call that this one was made from within comes first.
        this.keep_chunk(ruby)?;
        if let Some(chunk) = chunk {
            this.chunk.set((Held::new(Owner::of(this), chunk.as_raw()), 0));
        }
        if this.frames.ready_again().with(|frames| frames.has_kept()) {
            this.keep_chunk(ruby)?;
        }
        let result = Self::handle(ruby, this, driver);
        // Bytes after an exception are kept for the next call.
        this.keep_chunk(ruby)?;
        result
    }

    /// `codec.keep(input)`: for the next call of `parse`.
    fn keep(ruby: &Ruby, this: &Self, input: RString) -> Result<(), Error> {
        // Before the bytes are borrowed: it may wait for another thread.
        this.frames.ready(ruby)?;
        // SAFETY: no code of Ruby runs while the slice is borrowed.
        let kept = this.keep_bytes(ruby, unsafe { input.as_slice() });
        strings::keep(input);
        kept
    }

    /// Without memory for them the input behind them would be wrong.
    fn keep_bytes(&self, ruby: &Ruby, bytes: &[u8]) -> Result<(), Error> {
        self.frames.ready_again().with(|frames| frames.keep(bytes)).map_err(|_| {
            self.end();
            no_memory(ruby)
        })
    }

    /// Copies what is left of the chunk that is being parsed: the chunk is the application's.
    fn keep_chunk(&self, ruby: &Ruby) -> Result<(), Error> {
        // Before the bytes are borrowed: it may wait for another thread.
        self.frames.ready_again();
        let (chunk, at) = self.chunk.replace((Held::NIL, 0));
        let Some(chunk) = RString::from_value(chunk.value()) else { return Ok(()) };
        // SAFETY: no code of Ruby runs while the slice is borrowed.
        let kept = self.keep_bytes(ruby, unsafe { chunk.as_slice() }.get(at..).unwrap_or_default());
        strings::keep(chunk);
        kept
    }

    fn next(ruby: &Ruby, this: Obj<Self>, block: Option<Block>) -> Stepped {
        let step = Self::step(ruby, this, block);
        if step.is_err() {
            // There was no memory for a message: the ones behind it would be wrong.
            this.end();
        }
        step
    }

    /// The next step, which may deliver a message that is whole to `block`, where there is one.
    fn step(ruby: &Ruby, this: Obj<Self>, block: Option<Block>) -> Stepped {
        let frames = this.frames.ready_again();
        let (chunk, at) = this.chunk.get();
        let Some(chunk) = RString::from_value(chunk.value()) else {
            let Some((kept, at, found)) = frames.with(Frames::next_kept) else { return Ok(Step::Done) };
            // The listener is called once the input was given back: it may never return, in a Fiber that is abandoned.
            let step = Self::store(ruby, this, frames, &kept[at..], found, None);
            frames::give(kept);
            return step;
        };
        // SAFETY: no code of Ruby runs while the slice is borrowed, and the GVL is released only for a frozen String.
        let input = unsafe { chunk.as_slice() }.get(at..).unwrap_or_default();
        let (used, found) = frames.with(|frames| frames.next(input));
        if matches!(found, Found::Nothing) {
            this.chunk.set((Held::NIL, 0));
            let kept = frames.with(|frames| frames.keep(&input[used..]));
            return kept.map(|()| Step::Done).map_err(|_| Box::new(no_memory(ruby)));
        }
        // Changes that listeners make to the chunk must not be seen here: the rest is a frozen String that shares its bytes.
        let shared = if !chunk.is_frozen() && (used < input.len() || used >= DETACHED_UNMASK_LEN) {
            strings::protected(ruby, |ruby| strings::frozen(ruby, chunk))?
        } else {
            chunk
        };
        let rest = if used < input.len() {
            (Held::new(Owner::of(this), shared.as_raw()), at + used)
        } else {
            (Held::NIL, 0)
        };
        this.chunk.set(rest);
        // SAFETY: as above.
        let input = unsafe { shared.as_slice() }.get(at..).unwrap_or_default();
        let step = Self::store(ruby, this, frames, input, found, block);
        strings::keep(shared);
        step
    }

    /// Makes objects of what was found in `input`.
    fn store(
        ruby: &Ruby,
        this: Obj<Self>,
        frames: Ready<'_, Frames>,
        input: &[u8],
        found: Found,
        block: Option<Block>,
    ) -> Stepped {
        match found {
            Found::Nothing => Ok(Step::Done),
            Found::Part(part) => {
                let bytes = &input[part.range.clone()];
                let is_small = part.first && part.last && bytes.len() < DETACHED_UNMASK_LEN;
                match block.filter(|_| is_small && !frames.with(|frames| frames.rules.raw)) {
                    Some(block) => Self::deliver_small(ruby, this, bytes, &part, block),
                    None => Self::store_part(ruby, this, frames, bytes, part),
                }
            }
            Found::Control(opcode, range, key) => {
                let data = strings::protected(ruby, |ruby| strings::uninitialized(ruby, range.len()))?;
                // SAFETY: the String was made just now.
                payload::copy(unsafe { strings::contents(data) }, &input[range], key);
                Ok(Step::Control(opcode, data))
            }
            Found::Broken(kind, message) => {
                this.assembly.with(|assembly| *assembly = None);
                Ok(Step::broken(kind, message))
            }
        }
    }

    /// Delivers a message that is all of `bytes`.
    fn deliver_small(ruby: &Ruby, this: Obj<Self>, bytes: &[u8], part: &Part, block: Block) -> Stepped {
        let delivered = this.delivery.make_and_deliver(block, || {
            let data = strings::uninitialized(ruby, bytes.len());
            // SAFETY: the String was made just now, and no code of Ruby runs meanwhile.
            let room = unsafe { strings::contents(data) };
            payload::copy(room, bytes, part.key);
            if part.opcode == TEXT {
                let mut text = Text::default();
                if !text.validate(room) {
                    return None;
                }
                strings::declare_utf8(data, text.is_ascii());
            }
            Some(data.as_value())
        });
        match delivered {
            Delivered::Done => Ok(Step::Part),
            Delivered::Raised(error) => Ok(Step::Raised(Box::new(error))),
            Delivered::NoMemory(error) => Err(Box::new(error)),
            Delivered::NoData => {
                this.frames.ready_again().with(Frames::refuse_message);
                Ok(Step::not_utf8())
            }
        }
    }

    fn store_part(
        ruby: &Ruby,
        this: Obj<Self>,
        frames: Ready<'_, Frames>,
        bytes: &[u8],
        part: Part,
    ) -> Stepped {
        let (raw, inflated) =
            frames.with(|frames| (frames.rules.raw, part.rsv != 0 && frames.decompressor.is_some()));
        let is_text = part.opcode == TEXT && !raw;
        let whole = part.first && part.last;
        let (data, mut text) = if whole {
            (strings::protected(ruby, |ruby| strings::uninitialized(ruby, bytes.len()))?, Text::default())
        } else if let Some(taken) = Self::take_assembly(ruby, this, bytes.len(), &part)? {
            taken
        } else {
            frames.with(Frames::refuse_message);
            return Ok(Step::broken(PART_MISSING.0, PART_MISSING.1));
        };
        // SAFETY: no code of Ruby has seen the String: it is new, or the codec's own.
        let room = unsafe { if whole { strings::contents(data) } else { strings::spare(data, bytes.len()) } };
        let mut fill = || {
            payload::copy(room, bytes, part.key);
            !is_text || if whole { text.validate(room) } else { text.push(room, part.last) }
        };
        // Not where another thread could inflate the next message first.
        let detached = bytes.len() >= DETACHED_UNMASK_LEN && !inflated;
        let valid = if detached { frames.detached(|_| fill()) } else { fill() };
        if !whole {
            // SAFETY: `fill` has written them.
            unsafe { strings::extend(data, bytes.len()) };
        }
        if !valid {
            this.frames.ready_again().with(Frames::refuse_message);
            return Ok(Step::not_utf8());
        }
        if !part.last {
            let data = Held::new(Owner::of(this), data.as_raw());
            this.assembly.with(|assembly| *assembly = Some(Assembly { message: part.message, data, text }));
            return Ok(Step::Part);
        }
        if raw {
            if this.frames.ready_again().with(|frames| frames.decompressor.is_some()) {
                return Self::inflate(ruby, this, data, part.opcode, part.rsv);
            }
            return Ok(Step::Raw(data, part.opcode, part.rsv));
        }
        if is_text {
            strings::declare_utf8(data, text.is_ascii());
        }
        Ok(Step::Message(data, is_text))
    }

    /// The message whose payload, as it arrived, is `data`; without RSV1 it is not compressed.
    fn inflate(ruby: &Ruby, this: Obj<Self>, data: RString, opcode: u8, rsv: u8) -> Stepped {
        let is_text = opcode == TEXT;
        if rsv == 0 {
            // SAFETY: no Ruby code has seen the String, nor runs while the slice is in use.
            let valid = !is_text || Self::declare_text(data, unsafe { strings::contents(data) });
            return Ok(if valid { Step::Message(data, is_text) } else { Step::not_utf8() });
        }
        let frames = this.frames.ready_again();
        let len_max = frames.with(|frames| frames.rules.message_len_max);
        let len_max = usize::try_from(len_max).unwrap_or(usize::MAX);
        let mut message = scratch::take();
        let step = match deflate::inflate(
            ruby,
            frames,
            |frames| &mut frames.decompressor,
            data,
            len_max,
            &mut message,
        ) {
            Ok(Ok(())) => strings::protected(ruby, |ruby| strings::binary(ruby, &message)).map(|data| {
                let valid = !is_text || Self::declare_text(data, &message);
                if valid { Step::Message(data, is_text) } else { Step::not_utf8() }
            }),
            Ok(Err(InflateError::Corrupt)) => {
                Ok(Step::broken("extension_error", format!("permessage-deflate: {}", InflateError::Corrupt)))
            }
            Ok(Err(InflateError::OutOfMemory)) => Err(no_memory(ruby)),
            Ok(Err(_)) => Ok(Step::broken(TOO_LARGE.0, TOO_LARGE.1)),
            Err(error) => Err(error),
        };
        scratch::give(message);
        this.account();
        Ok(step?)
    }

    /// Makes text of `data`, whose bytes are `bytes`; `false` when they are no UTF-8.
    fn declare_text(data: RString, bytes: &[u8]) -> bool {
        let Ok(text) = utf8::text(bytes) else { return false };
        strings::declare_utf8(data, text.is_ascii());
        true
    }

    /// Takes the String and the text of the part's message, with room for `len` bytes more; [`Part::missing`] are announced behind them. No
    /// other thread gets it while it is filled without the GVL. None when another thread has it, or has put back one of another message.
    fn take_assembly(
        ruby: &Ruby,
        this: Obj<Self>,
        len: usize,
        part: &Part,
    ) -> Result<Option<(RString, Text)>, Error> {
        let announced = usize::try_from(part.missing).unwrap_or(usize::MAX).saturating_add(len);
        let assembly = this.assembly.with(Option::take).filter(|assembly| assembly.message == part.message);
        if assembly.is_none() && !part.first {
            return Ok(None);
        }
        let (data, text) = assembly
            .map(|assembly| (RString::from_value(assembly.data.value()), assembly.text))
            .unwrap_or_default();
        let data = strings::protected(ruby, |ruby| {
            let data = data.unwrap_or_else(|| strings::with_capacity(ruby, announced.min(TRUSTED_LEN)));
            strings::make_room(ruby, data, len, |have| {
                announced.min((have + len).saturating_mul(TRUSTED_RATIO).max(TRUSTED_LEN))
            });
            data
        })?;
        Ok(Some((data, text)))
    }

    /// Handles what was found, until the input is used up.
    fn handle(ruby: &Ruby, this: Obj<Self>, driver: Value) -> Result<(), Error> {
        let mut listeners = None;
        loop {
            // Other threads run meanwhile, where there is something to wait for.
            this.frames.ready(ruby)?;
            // A listener of the message before may have overridden `emit`.
            let stale = |found: Option<Listeners>| {
                found.is_some_and(|listeners| !this.delivery.is_current(driver, listeners))
            };
            if listeners.is_none_or(stale) {
                listeners = this.delivery.known_listeners(ruby, driver).map(Some);
            }
            let block = match listeners {
                Some(Some(listeners)) if !this.arrays.get() => Block::only(listeners.list),
                _ => None,
            };
            match Self::next(ruby, this, block).map_err(|error| *error)? {
                Step::Done => return Ok(()),
                Step::Part => continue,
                Step::Raised(error) => return Err(*error),
                Step::Message(data, text) => {
                    let data = if this.arrays.get() && !text {
                        bytes_to_array(ruby, data).as_value()
                    } else {
                        data.as_value()
                    };
                    let listeners = match listeners {
                        Some(listeners) => listeners,
                        None => *listeners.insert(this.delivery.listeners(ruby, Owner::of(this), driver)?),
                    };
                    match listeners {
                        Some(listeners) => this.delivery.deliver(ruby, listeners.list, data)?,
                        None => call(driver, &delivery::RECEIVE_MESSAGE, (data,))?,
                    }
                    continue;
                }
                Step::Raw(data, opcode, rsv) => {
                    call(driver, &delivery::RECEIVE_EXTENDED, (data, opcode, rsv))?
                }
                Step::Control(PING, data) => call(driver, &delivery::RECEIVE_PING, (data,))?,
                Step::Control(PONG, data) => call(driver, &delivery::RECEIVE_PONG, (data,))?,
                Step::Control(_, data) => call(driver, &delivery::RECEIVE_CLOSE, (data,))?,
                Step::Broken(broken) => {
                    let (error, message) = *broken;
                    call(driver, &delivery::FAIL, (ruby.to_symbol(error), message))?;
                }
            }
            // It may have changed `emit`.
            listeners = None;
        }
    }

    /// `codec.frame(first_byte, data, code, key)`: a frame, its payload being the code, if any, and the data. The key is a
    /// String of four bytes, true for a new one, or false.
    fn frame(
        ruby: &Ruby,
        this: Obj<Self>,
        first: u8,
        data: RString,
        code: Option<u16>,
        key: Value,
    ) -> Result<RString, Error> {
        let key = Self::mask_key(ruby, this, key)?;
        let code = code.map(u16::to_be_bytes);
        let code = code.as_ref().map_or(&[][..], |code| &code[..]);
        // SAFETY: nothing of Ruby runs while the slice is borrowed.
        let out = outgoing::frame(ruby, first, code, unsafe { strings::bytes(data.as_raw()) }, key);
        strings::keep(data);
        Ok(out)
    }

    /// `codec.deflated_frame(opcode, data, key)`: a frame of the message `data`, compressed. The key is as for `frame`.
    fn deflated_frame(
        ruby: &Ruby,
        this: Obj<Self>,
        opcode: u8,
        data: RString,
        key: Value,
    ) -> Result<RString, Error> {
        deflate::prepare(ruby, data)?;
        let key = Self::mask_key(ruby, this, key)?;
        let made = deflate::deflate(ruby, &this.compressor, data, |ruby, compressed, payload| {
            let first = if compressed { opcode | RSV1 } else { opcode };
            outgoing::frame(ruby, first, &[], payload, key)
        });
        this.account();
        made
    }

    /// `codec.forget`: the peer does not get the last frame of `deflated_frame`; later messages do not refer to it.
    fn forget(this: &Self) {
        this.compressor.ready_again().with(|deflate| {
            if let Some(deflate) = deflate {
                deflate.forget();
            }
        });
        this.account();
    }

    /// The key that `frame` is given.
    fn mask_key(ruby: &Ruby, this: Obj<Self>, key: Value) -> Result<Option<MaskKey>, Error> {
        // SAFETY: nothing of Ruby runs while the slice is borrowed.
        let given = RString::from_value(key).and_then(|key| unsafe { key.as_slice() }.try_into().ok());
        match given {
            Some(given) => Ok(Some(MaskKey::new(given))),
            None if key.to_bool() => this
                .keys
                .with(|keys| keys.get_or_insert_default().next())
                .map(Some)
                .map_err(|error| error.raised(ruby)),
            None => Ok(None),
        }
    }

    /// `DriverCodec.mask(payload, key)`: a masked copy, or the payload itself without a key of four bytes.
    fn mask(ruby: &Ruby, payload: RString, key: Value) -> RString {
        // SAFETY: copied at once.
        let key = RString::from_value(key).and_then(|key| unsafe { key.as_slice() }.try_into().ok());
        let Some(key) = key else { return payload };
        let out = strings::uninitialized(ruby, payload.len());
        // SAFETY: `out` was made just now; nothing of Ruby runs while the slices are borrowed.
        unsafe { mask::copy(strings::contents(out), payload.as_slice(), MaskKey::new(key)) };
        strings::keep(payload);
        out
    }

    /// `DriverCodec.changed`: methods of some class have changed, so what was found out about `emit` no longer holds.
    fn changed() {
        delivery::forget();
    }
}

/// Calls a method of the driver.
fn call(driver: Value, method: &LazyId, arguments: impl ArgList) -> Result<(), Error> {
    driver.funcall::<_, _, Value>(**method, arguments).map(drop)
}

/// The bytes of a String as an Array of Integers.
fn bytes_to_array(ruby: &Ruby, data: RString) -> RArray {
    /// Integers that are made before they go into the Array; up to 255 they are no objects.
    const CHUNK: usize = 512;
    let list = ruby.ary_new_capa(data.len());
    let mut at = 0;
    while at < data.len() {
        let mut values = [0; CHUNK];
        // SAFETY: the slice is not used beyond the loop below, in which nothing is allocated.
        let bytes = unsafe { &data.as_slice()[at..] };
        let len = bytes.len().min(CHUNK);
        for (value, &byte) in values.iter_mut().zip(bytes) {
            *value = ruby.integer_from_i64(i64::from(byte)).as_raw();
        }
        // SAFETY: a new Array, and Integers.
        unsafe { rb_sys::rb_ary_cat(list.as_raw(), values.as_ptr(), len as _) };
        at += len;
    }
    list
}

pub(crate) fn init(ruby: &Ruby, wireloom: RModule) -> Result<(), Error> {
    let class = wireloom.define_class("DriverCodec", ruby.class_object())?;
    class.undef_default_alloc_func();
    Codec::load(ruby, class);
    class.define_singleton_method("new", function!(Codec::new, 5))?;
    class.define_singleton_method("mask", function!(Codec::mask, 2))?;
    class.define_singleton_method("changed", function!(Codec::changed, 0))?;
    class.define_method("extend", method!(Codec::extend, 1))?;
    class.define_method("stop", method!(Codec::stop, 0))?;
    class.define_method("keep", method!(Codec::keep, 1))?;
    class.define_method("parse", method!(Codec::parse, 2))?;
    class.define_method("frame", method!(Codec::frame, 4))?;
    class.define_method("deflate", method!(Codec::deflate, 4))?;
    class.define_method("deflated_frame", method!(Codec::deflated_frame, 3))?;
    class.define_method("forget", method!(Codec::forget, 0))
}
