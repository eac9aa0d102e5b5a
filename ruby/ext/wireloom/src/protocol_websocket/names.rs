//! The classes and the names that the native side reaches for, looked up once.

use std::sync::OnceLock;

use magnus::prelude::*;
use magnus::rb_sys::{AsRawValue, FromRawValue};
use magnus::value::Opaque;
use magnus::{Error, ExceptionClass, RClass, RHash, RModule, Ruby, Value};
use rb_sys::{ID, VALUE, rb_intern3, rb_ivar_set, rb_usascii_encoding};

/// See the module.
pub(super) struct Names {
    /// By opcode; where there is none, `Frame`.
    frames: [Opaque<RClass>; 16],
    default_frames: Opaque<RHash>,
    others: [Opaque<RClass>; 4],
    pub(super) text_message: Opaque<RClass>,
    pub(super) binary_message: Opaque<RClass>,
    protocol_error: Opaque<ExceptionClass>,
    string_io: VALUE,
    /// What makes an ordinary object of a class.
    allocate: unsafe extern "C" fn(VALUE) -> VALUE,

    pub(super) stream: ID,
    pub(super) frames_by_opcode: ID,
    pub(super) header: ID,
    pub(super) payload: ID,
    pub(super) buffer: ID,
    pub(super) framer: ID,
    pub(super) state: ID,
    pub(super) pending: ID,
    pub(super) reader: ID,
    pub(super) plain: ID,
    pub(super) maximum_message_size: ID,
    pub(super) closed: VALUE,
    pub(super) flush: ID,
    pub(super) read: ID,
    pub(super) string: ID,
    pub(super) pos: ID,
    pub(super) set_pos: ID,
    pub(super) closed_read: ID,
}

static NAMES: OnceLock<Names> = OnceLock::new();

/// What `attach` found; `None` before it.
#[inline]
pub(super) fn get() -> Option<&'static Names> {
    NAMES.get()
}

pub(super) fn attach(protocol: RModule) -> Result<(), Error> {
    let ruby = Ruby::get_with(protocol);
    let class = |name: &str| -> Result<RClass, Error> {
        let class: RClass = protocol.const_get(name)?;
        ruby.gc_register_mark_object(class);
        Ok(class)
    };
    let frame = class("Frame")?;
    let mut frames = [frame.into(); 16];
    for (opcode, name) in [
        (0x0, "ContinuationFrame"),
        (0x1, "TextFrame"),
        (0x2, "BinaryFrame"),
        (0x8, "CloseFrame"),
        (0x9, "PingFrame"),
        (0xA, "PongFrame"),
    ] {
        frames[opcode] = class(name)?.into();
    }
    let default_frames: RHash = protocol.const_get("FRAMES")?;
    ruby.gc_register_mark_object(default_frames);
    let error: ExceptionClass = protocol.const_get("ProtocolError")?;
    ruby.gc_register_mark_object(error);
    let string_io: RClass = ruby.class_object().const_get("StringIO")?;
    ruby.gc_register_mark_object(string_io);
    // SAFETY: a class; what it answers stays.
    let allocate = unsafe { rb_sys::rb_get_alloc_func(ruby.class_object().as_raw()) };
    let allocate =
        allocate.ok_or_else(|| Error::new(ruby.exception_runtime_error(), "objects have no allocator"))?;
    let names = Names {
        frames,
        default_frames: default_frames.into(),
        others: [
            class("Framer")?.into(),
            class("Connection")?.into(),
            class("Message")?.into(),
            frame.into(),
        ],
        text_message: class("TextMessage")?.into(),
        binary_message: class("BinaryMessage")?.into(),
        protocol_error: error.into(),
        string_io: string_io.as_raw(),
        allocate,
        stream: id("@stream"),
        frames_by_opcode: id("@frames"),
        header: id("@header"),
        payload: id("@payload"),
        buffer: id("@buffer"),
        framer: id("@framer"),
        state: id("@state"),
        pending: id("@frames"),
        reader: id("@reader"),
        plain: id("@wireloom_plain"),
        maximum_message_size: id("@maximum_message_size"),
        // SAFETY: the symbol of an interned name, which stays.
        closed: unsafe { rb_sys::rb_id2sym(id("closed")) },
        flush: id("flush"),
        read: id("read"),
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
    pub(super) fn frame_class(&self, ruby: &Ruby, opcode: u8) -> RClass {
        ruby.get_inner(self.frames[usize::from(opcode & 0xF)])
    }

    /// An object of `class`, with its first instance variables, without `initialize`.
    #[inline]
    pub(super) fn object<const N: usize>(&self, class: RClass, variables: [(ID, VALUE); N]) -> Value {
        // SAFETY: a class of ordinary objects, whose instance variables may be set while nobody has seen them; only
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
    pub(super) fn is_default(&self, ruby: &Ruby, frames: VALUE) -> bool {
        ruby.get_inner(self.default_frames).as_raw() == frames
    }

    /// Whether `class` makes the frames of a protocol's own kinds.
    pub(super) fn is_frame_class(&self, ruby: &Ruby, class: Value) -> bool {
        self.frames.iter().any(|own| ruby.get_inner(*own).as_raw() == class.as_raw())
    }

    /// Whether `stream` is a `StringIO` and nothing made of one.
    #[inline]
    pub(super) fn is_string_io(&self, stream: Value) -> bool {
        // A singleton class, where there is one.
        stream.class().as_raw() == self.string_io
    }

    pub(super) fn is_own_class(&self, class: Value) -> bool {
        let ruby = Ruby::get_with(class);
        let mut own =
            self.frames.iter().chain(&self.others).chain([&self.text_message, &self.binary_message]);
        own.any(|own| ruby.get_inner(*own).as_raw() == class.as_raw())
    }

    /// The exception that says how the peer broke the protocol.
    #[cold]
    pub(super) fn protocol_error(&self, ruby: &Ruby, message: String, code: u16) -> Error {
        match ruby.get_inner(self.protocol_error).new_instance((message, code)) {
            Ok(exception) => exception.into(),
            Err(error) => error,
        }
    }
}

fn id(name: &str) -> ID {
    // SAFETY: pointer and length are a str's, in ASCII; an interned name stays.
    unsafe { rb_intern3(name.as_ptr().cast(), name.len() as _, rb_usascii_encoding()) }
}
