//! The classes and the names that the native part uses, looked up while the drop-in loads.

use std::sync::OnceLock;

use magnus::prelude::*;
use magnus::rb_sys::{AsRawValue, FromRawValue};
use magnus::{Error, ExceptionClass, RClass, RHash, RModule, Ruby, Value};
use rb_sys::{ID, VALUE, rb_intern3, rb_ivar_set, rb_usascii_encoding};

use crate::held::Registered;

/// See the module.
pub(super) struct Names {
    /// By opcode; where there is none, `Frame`.
    frames: [Registered<RClass>; 16],
    default_frames: Registered<RHash>,
    others: [Registered<RClass>; 4],
    pub(super) text_message: Registered<RClass>,
    pub(super) binary_message: Registered<RClass>,
    protocol_error: Registered<ExceptionClass>,
    string_io: Registered<RClass>,
    /// The allocator of ordinary objects.
    allocate: unsafe extern "C" fn(VALUE) -> VALUE,

    pub(super) stream: ID,
    pub(super) frames_by_opcode: ID,
    pub(super) read_ahead: ID,
    pub(super) message_left: ID,
    pub(super) message_max: ID,
    pub(super) header: ID,
    pub(super) payload: ID,
    pub(super) buffer: ID,
    pub(super) framer: ID,
    pub(super) state: ID,
    pub(super) pending: ID,
    pub(super) reader: ID,
    pub(super) plain: ID,
    pub(super) maximum_message_size: ID,
    pub(super) closed: Registered<magnus::Symbol>,
    pub(super) flush: ID,
    pub(super) read: ID,
    pub(super) getbyte: ID,
    pub(super) string: ID,
    pub(super) pos: ID,
    pub(super) set_pos: ID,
    pub(super) closed_read: ID,
}

static NAMES: OnceLock<Names> = OnceLock::new();

/// The result of `attach`; `None` before it.
#[inline]
pub(super) fn get() -> Option<&'static Names> {
    NAMES.get()
}

pub(super) fn attach(protocol: RModule) -> Result<(), Error> {
    let ruby = Ruby::get_with(protocol);
    let class = |name: &str| -> Result<_, Error> {
        Ok(Registered::new(&ruby, protocol.const_get::<_, RClass>(name)?))
    };
    let frame = class("Frame")?;
    let mut frames = [frame; 16];
    for (opcode, name) in [
        (0x0, "ContinuationFrame"),
        (0x1, "TextFrame"),
        (0x2, "BinaryFrame"),
        (0x8, "CloseFrame"),
        (0x9, "PingFrame"),
        (0xA, "PongFrame"),
    ] {
        frames[opcode] = class(name)?;
    }
    let default_frames: RHash = protocol.const_get("FRAMES")?;
    let error: ExceptionClass = protocol.const_get("ProtocolError")?;
    let string_io: RClass = ruby.class_object().const_get("StringIO")?;
    // SAFETY: a class; what it answers stays.
    let allocate = unsafe { rb_sys::rb_get_alloc_func(ruby.class_object().as_raw()) };
    let allocate =
        allocate.ok_or_else(|| Error::new(ruby.exception_runtime_error(), "objects have no allocator"))?;
    let names = Names {
        frames,
        default_frames: Registered::new(&ruby, default_frames),
        others: [class("Framer")?, class("Connection")?, class("Message")?, frame],
        text_message: class("TextMessage")?,
        binary_message: class("BinaryMessage")?,
        protocol_error: Registered::new(&ruby, error),
        string_io: Registered::new(&ruby, string_io),
        allocate,
        stream: id("@stream"),
        frames_by_opcode: id("@frames"),
        read_ahead: id("@read_ahead"),
        message_left: id("@wireloom_message_left"),
        message_max: id("@wireloom_message_max"),
        header: id("@header"),
        payload: id("@payload"),
        buffer: id("@buffer"),
        framer: id("@framer"),
        state: id("@state"),
        pending: id("@frames"),
        reader: id("@reader"),
        plain: id("@wireloom_plain"),
        maximum_message_size: id("@maximum_message_size"),
        closed: Registered::new(&ruby, ruby.to_symbol("closed")),
        flush: id("flush"),
        read: id("read"),
        getbyte: id("getbyte"),
        string: id("string"),
        pos: id("pos"),
        set_pos: id("pos="),
        closed_read: id("closed_read?"),
    };
    let _ = NAMES.set(names);
    Ok(())
}

impl Names {
    /// The class that frames of `opcode` become unless a framer has others.
    #[inline]
    pub(super) fn frame_class(&self, opcode: u8) -> RClass {
        self.frames[usize::from(opcode & 0xF)].get()
    }

    /// An object of `class`, with its first instance variables, without `initialize`.
    #[inline]
    pub(super) fn object<const N: usize>(&self, class: RClass, variables: [(ID, VALUE); N]) -> Value {
        // SAFETY: a class of ordinary objects, whose instance variables may be set; only
        // NoMemoryError is raised.
        unsafe {
            let object = (self.allocate)(class.as_raw());
            for (name, value) in variables {
                rb_ivar_set(object, name, value);
            }
            Value::from_raw(object)
        }
    }

    /// Whether `frames` is the constant `FRAMES`.
    #[inline]
    pub(super) fn is_default(&self, frames: VALUE) -> bool {
        self.default_frames.get().as_raw() == frames
    }

    /// Whether `class` makes the frames of a protocol's own kinds.
    pub(super) fn is_frame_class(&self, class: Value) -> bool {
        self.frames.iter().any(|own| own.get().as_raw() == class.as_raw())
    }

    /// Whether `stream` is a `StringIO` and nothing made of one.
    #[inline]
    pub(super) fn is_string_io(&self, stream: Value) -> bool {
        // A singleton class, where there is one.
        stream.class().as_raw() == self.string_io.get().as_raw()
    }

    pub(super) fn is_own_class(&self, class: Value) -> bool {
        let mut own =
            self.frames.iter().chain(&self.others).chain([&self.text_message, &self.binary_message]);
        own.any(|own| own.get().as_raw() == class.as_raw())
    }

    /// The exception that says how the peer broke the protocol.
    #[cold]
    pub(super) fn protocol_error(&self, message: String, code: u16) -> Error {
        match self.protocol_error.get().new_instance((message, code)) {
            Ok(exception) => exception.into(),
            Err(error) => error,
        }
    }
}

fn id(name: &str) -> ID {
    // SAFETY: pointer and length are a str's, in ASCII; an interned name stays.
    unsafe { rb_intern3(name.as_ptr().cast(), name.len() as _, rb_usascii_encoding()) }
}
