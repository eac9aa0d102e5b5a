//! The Symbols and classes that the drop-in uses, looked up while it loads.

use std::borrow::Cow;
use std::fmt;
use std::sync::OnceLock;

use magnus::rb_sys::AsRawValue;
use magnus::value::ReprValue;
use magnus::{Class, Error, ExceptionClass, RClass, RModule, Ruby, Symbol, prelude::*};
use rb_sys::VALUE;

use crate::guard::made;
use crate::held::Registered;

macro_rules! symbols {
    ($($name:ident)*) => {
        /// Symbols, static and therefore immortal.
        #[allow(non_snake_case)]
        pub(crate) struct Symbols { $(pub(crate) $name: VALUE,)* }

        impl Symbols {
            fn new() -> Self {
                Self { $($name: symbol(stringify!($name)),)* }
            }
        }
    };
}

symbols! {
    data headers priority rst_stream settings push_promise ping goaway window_update continuation altsvc origin
    frame frame_sent frame_received stream promise settings_ack ack active reserved promise_headers half_close close
    window local_window
    r#type flags length payload padding weight dependency exclusive error promise_stream last_stream increment ignore
    max_age port proto host method status content_length trailer
    end_stream end_headers padded
    idle open half_closed_local half_closed_remote reserved_local reserved_remote half_closing closing closed
    local_rst remote_rst local_closed remote_closed
    waiting_magic waiting_connection_preface connected delete
    settings_header_table_size settings_enable_push settings_max_concurrent_streams settings_initial_window_size
    settings_max_frame_size settings_max_header_list_size settings_enable_connect_protocol settings_no_rfc7540_priorities
    no_error protocol_error internal_error flow_control_error settings_timeout stream_closed frame_size_error
    refused_stream cancel compression_error connect_error enhance_your_calm inadequate_security http_1_1_required
    connection_closed stream_limit_exceeded handshake_error
    send emit
}

fn symbol(name: &str) -> VALUE {
    let name = name.trim_start_matches("r#");
    // SAFETY: pointer and length are a str's; an ID made so is static, and its Symbol is never collected.
    unsafe { rb_sys::rb_id2sym(rb_sys::rb_intern2(name.as_ptr().cast(), name.len() as _)) }
}

impl Symbols {
    /// The codes of RFC 9113 §7, in order.
    pub(crate) fn errors(&self) -> [VALUE; 14] {
        [
            self.no_error,
            self.protocol_error,
            self.internal_error,
            self.flow_control_error,
            self.settings_timeout,
            self.stream_closed,
            self.frame_size_error,
            self.refused_stream,
            self.cancel,
            self.compression_error,
            self.connect_error,
            self.enhance_your_calm,
            self.inadequate_security,
            self.http_1_1_required,
        ]
    }

    /// Settings and their identifiers (RFC 9113 §6.5.2, RFC 8441, RFC 9218).
    pub(crate) fn settings(&self) -> [(u16, VALUE); 8] {
        [
            (1, self.settings_header_table_size),
            (2, self.settings_enable_push),
            (3, self.settings_max_concurrent_streams),
            (4, self.settings_initial_window_size),
            (5, self.settings_max_frame_size),
            (6, self.settings_max_header_list_size),
            (8, self.settings_enable_connect_protocol),
            (9, self.settings_no_rfc7540_priorities),
        ]
    }
}

static SYMBOLS: OnceLock<Symbols> = OnceLock::new();

/// Called once, while the library loads.
pub(super) fn load() {
    let _ = SYMBOLS.set(Symbols::new());
}

/// # Panics
/// Before [`load`].
#[inline]
pub(crate) fn sym() -> &'static Symbols {
    SYMBOLS.get().expect("set while the library loads")
}

/// The name of a Symbol in a message. No method of the program runs for it, as `Display` of a `Value` calls `to_s`.
pub(crate) struct Name(pub(crate) Symbol);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.name().unwrap_or_default())
    }
}

/// Classes of the drop-in.
pub(crate) struct Classes {
    pub(crate) client: Registered<RClass>,
    pub(crate) server: Registered<RClass>,
    pub(crate) stream: Registered<RClass>,
    error: Registered<RClass>,
    /// `HTTP2::Error` itself.
    pub(crate) error_module: Registered<RModule>,
    protocol_error: Registered<ExceptionClass>,
    /// By the Symbol that `HTTP2::Error.types` has for each.
    errors: Vec<(SymbolId, Registered<ExceptionClass>)>,
}

/// A static Symbol.
type SymbolId = VALUE;

static CLASSES: OnceLock<Classes> = OnceLock::new();

/// Called once, when `HTTP2` is complete.
pub(crate) fn set_classes(ruby: &Ruby, http2: RModule) -> Result<(), Error> {
    let error: RModule = http2.const_get("Error")?;
    let class = |module: RModule, name: &str| -> Result<_, Error> {
        Ok(Registered::new(ruby, module.const_get::<_, RClass>(name)?))
    };
    let exception = |name: &str| -> Result<_, Error> {
        Ok(Registered::new(ruby, error.const_get::<_, ExceptionClass>(name)?))
    };
    let mut errors = Vec::new();
    for (symbol, name) in [
        (sym().handshake_error, "HandshakeError"),
        (sym().protocol_error, "ProtocolError"),
        (sym().compression_error, "CompressionError"),
        (sym().flow_control_error, "FlowControlError"),
        (sym().internal_error, "InternalError"),
        (sym().stream_closed, "StreamClosed"),
        (sym().connection_closed, "ConnectionClosed"),
        (sym().stream_limit_exceeded, "StreamLimitExceeded"),
        (sym().frame_size_error, "FrameSizeError"),
    ] {
        errors.push((symbol, exception(name)?));
    }
    let classes = Classes {
        client: class(http2, "Client")?,
        server: class(http2, "Server")?,
        stream: class(http2, "Stream")?,
        error: class(error, "Error")?,
        error_module: Registered::new(ruby, error),
        protocol_error: exception("ProtocolError")?,
        errors,
    };
    CLASSES.set(classes).map_err(|_| Error::new(ruby.exception_runtime_error(), "HTTP2 is in place already"))
}

pub(crate) fn classes() -> &'static Classes {
    CLASSES.get().expect("the drop-in is complete before its objects are made")
}

/// An exception of the drop-in by its Symbol; those without a class of their own are protocol errors. Without a message it has
/// that of its class.
#[cold]
pub(crate) fn error(ruby: &Ruby, kind: VALUE, message: Option<Cow<'static, str>>) -> Error {
    let classes = classes();
    let class = classes.errors.iter().find(|(symbol, _)| *symbol == kind);
    let class = class.map_or(classes.protocol_error, |(_, class)| *class).get();
    match message {
        Some(message) => made(ruby, Error::new(class, message)),
        None => class.new_instance(()).map_or_else(|error| error, Error::from),
    }
}

/// Whether an exception is one of `HTTP2::Error`.
pub(crate) fn is_ours(error: &Error) -> bool {
    error.value().is_some_and(|value| value.is_kind_of(classes().error.get()))
}

/// Whether the class of an object is `class` itself, not a singleton class nor a subclass.
#[inline]
pub(crate) fn is_class(class: VALUE, of: Registered<RClass>) -> bool {
    of.get().as_raw() == class
}
