//! Names and classes of the gem.

use std::sync::OnceLock;

use magnus::rb_sys::AsRawValue;
use magnus::{Error, ExceptionClass, RClass, RModule, Ruby, prelude::*};
use rb_sys::{ID, VALUE};

use crate::held::Registered;

/// A class whose own objects are known, not those of subclasses.
#[derive(Clone, Copy)]
pub(super) struct Class(Registered<RClass>);

impl Class {
    /// Whether this is the class of an object without methods of its own.
    #[inline]
    pub(super) fn is_of(self, object: VALUE) -> bool {
        super::objects::class_of(object) == self.0.get().as_raw()
    }

    #[inline]
    pub(super) fn get(self) -> RClass {
        self.0.get()
    }
}

macro_rules! names {
    (ids { $($id:ident: $name:literal),* $(,)? } symbols { $($symbol:ident),* $(,)? } classes { $($class:ident: $path:literal),* $(,)? }) => {
        pub(super) struct Ids {
            $(pub(super) $id: ID),*
        }
        pub(super) struct Symbols {
            $(pub(super) $symbol: VALUE),*
        }
        pub(super) struct Classes {
            $(pub(super) $class: Class),*
        }

        impl Ids {
            fn new() -> Self { Self { $($id: id($name)),* } }
        }
        impl Symbols {
            // SAFETY: a static Symbol, because its name is interned for good.
            fn new() -> Self { Self { $($symbol: unsafe { rb_sys::rb_id2sym(id(stringify!($symbol))) }),* } }
        }
        impl Classes {
            fn new(ruby: &Ruby, http2: RModule) -> Result<Self, Error> {
                Ok(Self { $($class: Class(Registered::new(ruby, http2.const_get::<_, RClass>($path)?))),* })
            }
        }
    };
}

names! {
    ids {
        all: "@all",
        apply: "apply",
        available: "@available",
        capacity: "@capacity",
        close: "close!",
        close_if_drained: "close_if_drained!",
        closed_read: "closed_read?",
        closed: "closed",
        code: "code",
        connection: "@connection",
        consume_window: "consume_window",
        continuation: "@continuation",
        count: "@count",
        current: "@current",
        decoder: "@decoder",
        delete: "delete",
        desired: "@desired",
        encoder: "@encoder",
        flags: "@flags",
        flush: "flush",
        framer: "@framer",
        frames: "@frames",
        goaway_stream_id: "@goaway_stream_id",
        header_table_size: "@header_table_size",
        held: "__wireloom_held",
        id: "@id",
        ignore_frame: "ignore_frame?",
        in_task: "in_task?",
        initial_window_size: "@initial_window_size",
        accept_stream: "accept_stream",
        length: "@length",
        limit: "@limit",
        local_settings: "@local_settings",
        local_stream_id: "@local_stream_id",
        local_window: "@local_window",
        maximum_concurrent_streams: "@maximum_concurrent_streams",
        maximum_frame_size: "@maximum_frame_size",
        message: "message",
        output: "@output",
        payload: "@payload",
        pos: "pos",
        priority: "@priority",
        process_data: "process_data",
        process_headers: "process_headers",
        read: "read",
        read_buffer: "@read_buffer",
        read_frame: "read_frame",
        read_rest: "read_rest",
        receive_data: "receive_data",
        receive_headers: "receive_headers",
        remote_settings: "@remote_settings",
        remote_stream_id: "@remote_stream_id",
        remote_window: "@remote_window",
        send_goaway: "send_goaway",
        send_window_update: "send_window_update",
        set_pos: "pos=",
        state: "@state",
        steps: "__wireloom_steps",
        stream: "@stream",
        stream_id: "@stream_id",
        string: "string",
        streams: "@streams",
        r#type: "@type",
        update_local_window: "update_local_window",
        used: "@used",
        windows_told: "@wireloom_windows_told",
        write: "write",
        write_block: "write_block",
        write_buffer: "@write_buffer",
        write_frame: "write_frame",
        write_frame_guard: "@write_frame_guard",
        writing: "@writing",
    }
    symbols { idle, open, half_closed_local, half_closed_remote, closed, maximum_size }
    classes {
        data_frame: "DataFrame",
        headers_frame: "HeadersFrame",
        window_update_frame: "WindowUpdateFrame",
        framer: "Framer",
        window: "Window",
        local_window: "LocalWindow",
        settings: "Settings",
        pending_settings: "PendingSettings",
    }
}

pub(super) struct Names {
    pub(super) ids: Ids,
    pub(super) symbols: Symbols,
    pub(super) classes: Classes,
    /// `Protocol::HPACK::Context`, the replacement.
    pub(super) context: Class,
    /// `Thread::Mutex`
    pub(super) mutex: Class,
    pub(super) compression_error: Registered<ExceptionClass>,
    /// `Protocol::HPACK::Error`.
    pub(super) hpack_error: Registered<ExceptionClass>,
    pub(super) protocol_error: Registered<ExceptionClass>,
    pub(super) goaway_error: Registered<ExceptionClass>,
    /// `Wireloom::ProtocolHTTP2`
    pub(super) module: Registered<RModule>,
    /// The allocator of ordinary objects.
    pub(super) allocate: unsafe extern "C" fn(VALUE) -> VALUE,
}

static NAMES: OnceLock<Names> = OnceLock::new();

/// Set by `attach`, before the methods here are methods of the gem's classes.
#[inline]
pub(super) fn names() -> &'static Names {
    NAMES.get().expect("attached before its methods are called")
}

fn id(name: &str) -> ID {
    // SAFETY: pointer and length are a str's; an interned name stays.
    unsafe { rb_sys::rb_intern2(name.as_ptr().cast(), name.len() as _) }
}

/// `attach`: called once `Protocol::HTTP2` and `Protocol::HPACK` are in place.
pub(super) fn attach(ruby: &Ruby) -> Result<(), Error> {
    let protocol: RModule = ruby.class_object().const_get("Protocol")?;
    let (http2, hpack): (RModule, RModule) = (protocol.const_get("HTTP2")?, protocol.const_get("HPACK")?);
    let wireloom: RModule = ruby.class_object().const_get("Wireloom")?;
    let exception = |module: RModule, name: &str| -> Result<_, Error> {
        Ok(Registered::new(ruby, module.const_get::<_, ExceptionClass>(name)?))
    };
    // SAFETY: a class; what it answers stays.
    let allocate = unsafe { rb_sys::rb_get_alloc_func(ruby.class_object().as_raw()) };
    let allocate =
        allocate.ok_or_else(|| Error::new(ruby.exception_runtime_error(), "objects have no allocator"))?;
    let _ = NAMES.set(Names {
        ids: Ids::new(),
        symbols: Symbols::new(),
        classes: Classes::new(ruby, http2)?,
        context: Class(Registered::new(ruby, hpack.const_get::<_, RClass>("Context")?)),
        mutex: Class(Registered::new(ruby, ruby.class_object().const_get::<_, RClass>("Mutex")?)),
        compression_error: exception(hpack, "CompressionError")?,
        hpack_error: exception(hpack, "Error")?,
        protocol_error: exception(http2, "ProtocolError")?,
        goaway_error: exception(http2, "GoawayError")?,
        module: Registered::new(ruby, wireloom.const_get::<_, RModule>("ProtocolHTTP2")?),
        allocate,
    });
    Ok(())
}
