//! `Wireloom::DriverCodec`: one connection's frames, both ways.

use super::delivery::{self, Delivery};
use super::frames::{FIN, Found, Frames, MASK, Rules, nil};
use crate::panic::guard;
use crate::strings;
use magnus::prelude::*;
use magnus::rb_sys::AsRawValue;
use magnus::typed_data::Obj;
use magnus::{
    DataTypeFunctions, Error, RArray, RClass, RModule, RString, Ruby, TypedData, Value, function, gc, method,
};
use std::cell::{Cell, RefCell};
use wireloom_ws::frame::HEADER_LEN_MAX;
use wireloom_ws::mask::{self, MaskKey};

/// What [`Codec::parse`] returns for what it does not deliver itself. The opcodes mean their control frames.
const MESSAGE: u8 = 1;
const RAW: u8 = 2;
const BROKEN: u8 = 3;

/// Masking keys that are fetched at a time: fetching costs more than masking a small frame, and what a forked process
/// inherits should be little.
const KEYS: usize = 16;

#[derive(TypedData)]
#[magnus(class = "Wireloom::DriverCodec", free_immediately, mark, size)]
pub(crate) struct Codec {
    frames: RefCell<Frames>,
    /// Binary messages are handed over as Arrays of bytes.
    arrays: bool,
    delivery: Delivery,
    /// The String of the message under way, or nil.
    assembly: Cell<Value>,
    /// What goes with what `parse` returned.
    payload: Cell<Value>,
    /// The chunk that is being parsed while listeners are called, or nil, and how much of it was used.
    chunk: Cell<(Value, usize)>,
    keys: RefCell<Keys>,
}

// SAFETY: magnus asks for `Send`. Ruby hands the object to one thread at a time, as the values it holds.
unsafe impl Send for Codec {}

impl DataTypeFunctions for Codec {
    // Without asking whether anyone borrows: marking happens while they do.
    fn mark(&self, marker: &gc::Marker) {
        marker.mark(self.assembly.get());
        marker.mark(self.payload.get());
        marker.mark(self.chunk.get().0);
        self.delivery.mark(marker);
    }

    fn size(&self) -> usize {
        size_of::<Self>() + self.frames.try_borrow().map_or(0, |frames| frames.held_len())
    }
}

impl Codec {
    /// `DriverCodec.new(event_class, max_length, require_masking, refuse_masking, arrays)`
    fn new(
        ruby: &Ruby,
        event: RClass,
        message_len_max: u64,
        require_masking: bool,
        refuse_masking: bool,
        arrays: bool,
    ) -> Result<Self, Error> {
        guard(ruby, || {
            Ok(Self {
                frames: RefCell::new(Frames::new(Rules {
                    message_len_max,
                    require_masking,
                    refuse_masking,
                    rsv_allowed: 0,
                    raw: false,
                })),
                arrays,
                delivery: Delivery::new(event),
                assembly: Cell::new(nil()),
                payload: Cell::new(nil()),
                chunk: Cell::new((nil(), 0)),
                keys: RefCell::new(Keys { bytes: [0; 4 * KEYS], left: 0 }),
            })
        })
    }

    /// `codec.extend(rsv_allowed)`: messages go through extensions from now on.
    fn extend(&self, rsv_allowed: u8) {
        let mut frames = self.frames.borrow_mut();
        frames.rules.rsv_allowed = rsv_allowed;
        frames.rules.raw = true;
    }

    /// `codec.stop`: forgets everything and takes no further input.
    fn stop(&self) {
        self.frames.borrow_mut().stop();
        self.assembly.set(nil());
        self.chunk.set((nil(), 0));
    }

    /// `codec.parse(chunk, driver)`: takes the chunk, or nil for none, and hands messages to the driver's listeners, unless
    /// its `emit` is not the one it was born with. Returns nil when the input is used up, else what was found; its payload
    /// is `codec.payload`.
    fn parse(ruby: &Ruby, rb_self: Obj<Self>, chunk: Value, driver: Value) -> Result<Option<u8>, Error> {
        guard(ruby, || {
            let this = &*rb_self;
            // Of a call that this one is made from within: its rest comes first.
            this.keep_chunk();
            if !chunk.is_nil() {
                let chunk = RString::from_value(chunk).ok_or_else(|| {
                    Error::new(ruby.exception_type_error(), "a chunk of input has to be a String")
                })?;
                this.chunk.set((chunk.as_value(), 0));
                if this.frames.borrow().has_kept() {
                    this.keep_chunk();
                }
            }
            let found = this.deliver_messages(ruby, driver);
            // Before the application gets to change it.
            this.keep_chunk();
            let Some((kind, payload)) = found? else { return Ok(None) };
            this.payload.set(payload);
            Ok(Some(kind))
        })
    }

    /// What is left of the chunk that is being parsed is copied: it stays the application's.
    fn keep_chunk(&self) {
        let (chunk, at) = self.chunk.replace((nil(), 0));
        if let Some(chunk) = RString::from_value(chunk) {
            // SAFETY: no code of Ruby runs while the slice is borrowed.
            let rest = unsafe { chunk.as_slice() }.get(at..).unwrap_or_default();
            self.frames.borrow_mut().keep(rest);
        }
    }

    fn next(&self) -> Found {
        let mut frames = self.frames.borrow_mut();
        let (chunk, at) = self.chunk.get();
        let Some(chunk) = RString::from_value(chunk) else {
            return if frames.has_kept() { frames.next_kept(&self.assembly, nil()) } else { Found::Nothing };
        };
        // SAFETY: no code of Ruby runs while the slice is borrowed; what is allocated meanwhile cannot free it.
        let input = unsafe { chunk.as_slice() }.get(at..).unwrap_or_default();
        let (used, found) = frames.next(input, &self.assembly, nil());
        if matches!(found, Found::Nothing) {
            frames.keep(&input[used..]);
            self.chunk.set((nil(), 0));
        } else {
            // What listeners do to the chunk is not to be seen here: the rest is of a frozen one that shares its bytes.
            let rest = (used < input.len()).then(|| RString::new_frozen(chunk).as_value());
            self.chunk.set(rest.map_or((nil(), 0), |rest| (rest, at + used)));
        }
        found
    }

    /// Until something else than a message turns up.
    fn deliver_messages(&self, ruby: &Ruby, driver: Value) -> Result<Option<(u8, Value)>, Error> {
        let mut listeners = None;
        loop {
            return Ok(Some(match self.next() {
                Found::Nothing => return Ok(None),
                Found::Message(data, text) => {
                    let data = if self.arrays && !text {
                        bytes_to_array(ruby, data).as_value()
                    } else {
                        data.as_value()
                    };
                    let listeners = match listeners {
                        Some(listeners) => listeners,
                        None => *listeners.insert(self.delivery.listeners(driver)?),
                    };
                    match listeners {
                        Some(listeners) => {
                            self.delivery.deliver(ruby, listeners, data)?;
                            continue;
                        }
                        None => (MESSAGE, data),
                    }
                }
                Found::Raw(data, opcode, rsv) => {
                    let parts = ruby.ary_new_from_values(&[
                        data.as_value(),
                        ruby.integer_from_i64(i64::from(opcode)).as_value(),
                        ruby.integer_from_i64(i64::from(rsv)).as_value(),
                    ]);
                    (RAW, parts.as_value())
                }
                Found::Control(opcode, data) => (opcode, data.as_value()),
                Found::Broken(error, said) => {
                    let parts = ruby.ary_new_capa(2);
                    parts.push(ruby.to_symbol(error))?;
                    parts.push(said)?;
                    (BROKEN, parts.as_value())
                }
            }));
        }
    }

    /// `codec.payload`: a String; of a raw message `[data, opcode, reserved bits]`; of a broken rule `[error, message]`.
    fn payload(&self) -> Value {
        self.payload.replace(nil())
    }

    /// `codec.frame(first_byte, data, code, key)`: a frame, its payload being the code, if any, and the data. The key is a
    /// String of four bytes, true for a new one, or false.
    fn frame(
        ruby: &Ruby,
        rb_self: Obj<Self>,
        first: u8,
        data: RString,
        code: Option<u16>,
        key: Value,
    ) -> Result<RString, Error> {
        guard(ruby, || {
            // SAFETY: nothing of Ruby runs while the slice is borrowed.
            let given = RString::from_value(key).and_then(|key| unsafe { key.as_slice() }.try_into().ok());
            let key = match given {
                Some(given) => Some(MaskKey::new(given)),
                None => key.to_bool().then(|| rb_self.keys.borrow_mut().next(ruby)).transpose()?,
            };
            let code = code.map(u16::to_be_bytes);
            let code = code.as_ref().map_or(&[][..], |code| &code[..]);
            let len = code.len() + data.len();
            let (head, head_len) = header(first, len, key);
            let out = strings::with_capacity(head_len + len);
            strings::append(out, &head[..head_len], |_| 0);
            // SAFETY: nothing of Ruby runs while the slice is borrowed but the growing of another String.
            let data = unsafe { data.as_slice() };
            match key {
                Some(key) => {
                    strings::append_with(out, code.len(), |room| {
                        mask::copy(room, code, key);
                    });
                    strings::append_with(out, data.len(), |room| {
                        mask::copy(room, data, key.advanced(code.len()));
                    });
                }
                None => {
                    strings::append(out, code, |_| 0);
                    strings::append(out, data, |_| 0);
                }
            }
            Ok(out)
        })
    }

    /// `DriverCodec.mask(payload, key)`: a masked copy, or the payload itself without a key of four bytes.
    fn mask(ruby: &Ruby, payload: RString, key: Value) -> Result<RString, Error> {
        guard(ruby, || {
            let Some(key) = RString::from_value(key) else { return Ok(payload) };
            // SAFETY: nothing of Ruby runs while the slices are borrowed but the making of another String.
            unsafe {
                let Ok(key) = <[u8; 4]>::try_from(key.as_slice()) else { return Ok(payload) };
                let out = strings::with_capacity(payload.len());
                strings::append_with(out, payload.len(), |room| {
                    mask::copy(room, payload.as_slice(), MaskKey::new(key));
                });
                Ok(out)
            }
        })
    }

    /// `DriverCodec.changed`: some class's methods have changed; what was known of their `emit` is not any more.
    fn changed() {
        delivery::forget();
    }
}

/// A frame header (RFC 6455 §5.2) and its length.
fn header(first: u8, len: usize, key: Option<MaskKey>) -> ([u8; HEADER_LEN_MAX], usize) {
    let mut head = [0; HEADER_LEN_MAX];
    let masked = if key.is_some() { MASK } else { 0 };
    head[0] = first | FIN;
    let mut end = 2;
    if len < 126 {
        head[1] = masked | len as u8;
    } else if let Ok(len) = u16::try_from(len) {
        head[1] = masked | 126;
        head[2..4].copy_from_slice(&len.to_be_bytes());
        end = 4;
    } else {
        head[1] = masked | 127;
        head[2..10].copy_from_slice(&(len as u64).to_be_bytes());
        end = 10;
    }
    if let Some(key) = key {
        head[end..end + 4].copy_from_slice(&key.bytes());
        end += 4;
    }
    (head, end)
}

/// Masking keys from the operating system.
struct Keys {
    bytes: [u8; 4 * KEYS],
    left: usize,
}

impl Keys {
    fn next(&mut self, ruby: &Ruby) -> Result<MaskKey, Error> {
        if self.left == 0 {
            getrandom::getrandom(&mut self.bytes).map_err(|error| {
                Error::new(ruby.exception_runtime_error(), format!("no randomness for masking keys: {error}"))
            })?;
            self.left = KEYS;
        }
        self.left -= 1;
        let key = &self.bytes[4 * self.left..4 * self.left + 4];
        Ok(MaskKey::new([key[0], key[1], key[2], key[3]]))
    }
}

/// The bytes of a String as an Array of Integers.
fn bytes_to_array(ruby: &Ruby, data: RString) -> RArray {
    // Integers up to 255 are immediate: nothing is allocated and no barrier is needed but the Array itself.
    // SAFETY: nothing of Ruby runs while the slice is borrowed.
    let values: Vec<rb_sys::VALUE> = unsafe { data.as_slice() }
        .iter()
        .map(|&byte| ruby.integer_from_i64(i64::from(byte)).as_raw())
        .collect();
    strings::array(&values)
}

pub(crate) fn init(ruby: &Ruby, wireloom: RModule) -> Result<(), Error> {
    let class = wireloom.define_class("DriverCodec", ruby.class_object())?;
    class.define_singleton_method("new", function!(Codec::new, 5))?;
    class.define_singleton_method("mask", function!(Codec::mask, 2))?;
    class.define_singleton_method("changed", function!(Codec::changed, 0))?;
    class.define_method("extend", method!(Codec::extend, 1))?;
    class.define_method("stop", method!(Codec::stop, 0))?;
    class.define_method("parse", method!(Codec::parse, 2))?;
    class.define_method("payload", method!(Codec::payload, 0))?;
    class.define_method("frame", method!(Codec::frame, 4))?;
    for (name, value) in [("MESSAGE", MESSAGE), ("RAW", RAW), ("BROKEN", BROKEN)] {
        class.const_set(name, value)?;
    }
    Ok(())
}
