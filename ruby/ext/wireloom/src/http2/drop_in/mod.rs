//! What `wireloom/drop_in/http_2` is made of: the classes of the gem `http-2` with its states, events and errors, in the order
//! in which it has them.
//!
//! Frames travel as [`frame::Frame`] on the stack. They become Hashes only where a program sees them: when it listens to
//! `:frame_sent`, `:frame_received` or a stream's `:frame`, and when it has put methods of its own before those that frames go
//! through. HPACK tables hold Ruby Strings; rates are limited as by the core.

mod connection;
mod frame;
mod frame_buffer;
mod framer;
mod listeners;
mod names;
mod pseudo;
mod receive;
mod send;
mod settings;
mod stream;

use magnus::rb_sys::AsRawValue;
use magnus::typed_data::Obj;
use magnus::value::ReprValue;
use magnus::{
    Error, RHash, RModule, RString, Ruby, Symbol, TryConvert, Value, function, method, prelude::*, scan_args,
};
use rb_sys::VALUE;

use crate::panic::guard;
use connection::{Connection, Opening, Stage, Upgrade};
use frame::{Frame, NIL, value};
use frame_buffer::FrameBuffer;
use listeners::Emission;
use names::sym;
use stream::{State, Stream};

/// What a client begins with (RFC 9113 §3.4).
const MAGIC: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

type Nothing = Result<(), Error>;

/// Methods of `HTTP2::Connection`.
impl Connection {
    fn rb_set_up(
        ruby: &Ruby,
        this: Obj<Self>,
        is_client: bool,
        encoding: RHash,
        local: Value,
        remote: Value,
    ) -> Nothing {
        guard(ruby, || settings::set_up(ruby, this, is_client, encoding, local, remote))
    }

    fn rb_initialize_copy(ruby: &Ruby, this: Obj<Self>, other: Value) -> Result<Obj<Self>, Error> {
        let other = Obj::<Self>::try_convert(other)?;
        guard(ruby, || {
            this.copy_from(&other)?;
            Ok(this)
        })
    }

    fn rb_receive(ruby: &Ruby, this: Obj<Self>, data: Option<RString>) -> Nothing {
        guard(ruby, || receive::receive(ruby, this, data))
    }

    fn rb_append(ruby: &Ruby, this: Obj<Self>, data: Option<RString>) -> Nothing {
        if connection::is_plain(this) {
            return Self::rb_receive(ruby, this, data);
        }
        this.funcall_public::<_, _, Value>("receive", (data,)).map(|_| ())
    }

    fn rb_send(ruby: &Ruby, this: Obj<Self>, hash: RHash) -> Nothing {
        guard(ruby, || send::send(ruby, this, &mut Frame::from_hash(ruby, hash)?))
    }

    fn rb_encode(ruby: &Ruby, this: Obj<Self>, hash: RHash) -> Nothing {
        guard(ruby, || send::encode(ruby, this, &mut Frame::from_hash(ruby, hash)?))
    }

    fn rb_ping(ruby: &Ruby, this: Obj<Self>, payload: RString) -> Nothing {
        guard(ruby, || send::ping(ruby, this, payload.as_value(), 0))
    }

    fn rb_goaway(ruby: &Ruby, this: Obj<Self>, args: &[Value]) -> Nothing {
        let args = scan_args::scan_args::<(), (Option<Value>, Option<Value>), (), (), (), ()>(args)?;
        let error = args.optional.0.map_or(sym().no_error, |error| error.as_raw());
        let payload = args.optional.1.map_or(NIL, |payload| payload.as_raw());
        guard(ruby, || send::goaway(ruby, this, error, payload))
    }

    fn rb_window_update(ruby: &Ruby, this: Obj<Self>, increment: i64) -> Nothing {
        guard(ruby, || send::window_update(ruby, this, increment))
    }

    fn rb_settings(ruby: &Ruby, this: Obj<Self>, payload: Value) -> Nothing {
        guard(ruby, || settings::settings(ruby, this, payload))
    }

    fn rb_send_connection_preface(ruby: &Ruby, this: Obj<Self>) -> Nothing {
        guard(ruby, || settings::send_connection_preface(ruby, this))
    }

    fn rb_new_stream(
        ruby: &Ruby,
        this: Obj<Self>,
        weight: i64,
        dependency: u32,
        parent: Value,
        state: Symbol,
    ) -> Result<Obj<Stream>, Error> {
        guard(ruby, || {
            let opening = opening(ruby, 0, weight, dependency, parent, state)?;
            connection::new_stream(ruby, this, opening)
        })
    }

    fn rb_activate_stream(ruby: &Ruby, this: Obj<Self>, id: u32) -> Result<Obj<Stream>, Error> {
        guard(ruby, || connection::activate_stream(ruby, this, Opening::new(id)))
    }

    fn rb_upgrade(this: Obj<Self>, stage: i32) {
        this.upgrade.set(if stage == 0 { Upgrade::Started } else { Upgrade::Finished });
        if stage == 2 {
            this.stage.set(Stage::WaitingMagic);
        }
    }

    fn rb_set_origins(this: Obj<Self>, origins: Value, due: bool) {
        this.origin_set.set(origins.as_raw());
        this.origins_due.set(due);
    }

    fn rb_on(ruby: &Ruby, this: Obj<Self>, event: Value) -> Nothing {
        listeners::listen(ruby, &this.listeners, event, false).map(|_| ())
    }

    fn rb_once(ruby: &Ruby, this: Obj<Self>, event: Value) -> Nothing {
        listeners::listen(ruby, &this.listeners, event, true).map(|_| ())
    }

    fn rb_emit(ruby: &Ruby, this: Obj<Self>, args: &[Value]) -> Nothing {
        let emission = Emission::of(ruby, args)?;
        guard(ruby, || emission.deliver(&this.listeners))
    }

    fn rb_flush(ruby: &Ruby, this: Obj<Self>) -> Nothing {
        guard(ruby, || send::flush(ruby, this))
    }

    fn rb_send_buffer(ruby: &Ruby, this: Obj<Self>) -> Result<Obj<FrameBuffer>, Error> {
        FrameBuffer::of(ruby, &this.buffer)
    }
}

fn opening(
    ruby: &Ruby,
    id: u32,
    weight: i64,
    dependency: u32,
    parent: Value,
    state: Symbol,
) -> Result<Opening, Error> {
    let state = State::from_symbol(state.as_raw())
        .ok_or_else(|| Error::new(ruby.exception_arg_error(), format!("no such state: {state}")))?;
    Ok(Opening { id, weight, dependency, parent: parent.as_raw(), state })
}

fn listen(ruby: &Ruby, this: Obj<Stream>, event: Value, once: bool) -> Nothing {
    for held in listeners::listen(ruby, &this.listeners, event, once)? {
        stream::holds(this, held);
    }
    Ok(())
}

/// Methods of `HTTP2::Stream`.
impl Stream {
    #[allow(clippy::too_many_arguments)]
    fn rb_set_up(
        ruby: &Ruby,
        this: Obj<Self>,
        connection: Obj<Connection>,
        id: u32,
        weight: i64,
        dependency: u32,
        parent: Value,
        state: Symbol,
    ) -> Nothing {
        let opening = opening(ruby, id, weight, dependency, parent, state)?;
        guard(ruby, || connection::set_up_stream(ruby, connection, &this, opening))?;
        for held in [&this.connection, &this.sender, &this.parent] {
            stream::holds(this, held.get());
        }
        Ok(())
    }

    fn rb_initialize_copy(this: Obj<Self>, other: Value) -> Result<Obj<Self>, Error> {
        let other = Obj::<Self>::try_convert(other)?;
        this.copy_from(&other);
        // SAFETY: a live object of this extension, of a type that write barriers protect.
        unsafe { rb_sys::rb_gc_writebarrier_unprotect(this.as_raw()) };
        Ok(this)
    }

    fn rb_receive(ruby: &Ruby, this: Obj<Self>, hash: RHash) -> Nothing {
        guard(ruby, || stream::receive(ruby, this, &mut Frame::from_hash(ruby, hash)?))
    }

    fn rb_append(ruby: &Ruby, this: Obj<Self>, hash: RHash) -> Nothing {
        if stream::is_plain(this) {
            return Self::rb_receive(ruby, this, hash);
        }
        this.funcall_public::<_, _, Value>("receive", (hash,)).map(|_| ())
    }

    fn rb_send(ruby: &Ruby, this: Obj<Self>, hash: RHash) -> Nothing {
        guard(ruby, || stream::send(ruby, this, &mut Frame::from_hash(ruby, hash)?))
    }

    fn rb_headers(
        ruby: &Ruby,
        this: Obj<Self>,
        headers: Value,
        end_headers: bool,
        end_stream: bool,
    ) -> Nothing {
        guard(ruby, || stream::headers(ruby, this, headers, end_headers, end_stream))
    }

    fn rb_data(ruby: &Ruby, this: Obj<Self>, payload: RString, end_stream: bool) -> Nothing {
        guard(ruby, || stream::data(ruby, this, payload, end_stream))
    }

    fn rb_close(ruby: &Ruby, this: Obj<Self>, args: &[Value]) -> Nothing {
        let args = scan_args::scan_args::<(), (Option<Value>,), (), (), (), ()>(args)?;
        let error = args.optional.0.map_or(sym().stream_closed, |error| error.as_raw());
        guard(ruby, || stream::close(ruby, this, error))
    }

    /// RST_STREAM with an error of that name.
    fn rb_reset(ruby: &Ruby, this: Obj<Self>, error: VALUE) -> Nothing {
        guard(ruby, || stream::close(ruby, this, error))
    }

    fn rb_refuse_frame(ruby: &Ruby, this: Obj<Self>) -> Nothing {
        guard(ruby, || stream::refuse(ruby, this))
    }

    fn rb_window_update(ruby: &Ruby, this: Obj<Self>, increment: i64) -> Nothing {
        guard(ruby, || stream::window_update(ruby, this, increment))
    }

    fn rb_on(ruby: &Ruby, this: Obj<Self>, event: Value) -> Nothing {
        listen(ruby, this, event, false)
    }

    fn rb_once(ruby: &Ruby, this: Obj<Self>, event: Value) -> Nothing {
        listen(ruby, this, event, true)
    }

    /// An event that the stream itself acts on does what it says; then its listeners hear of it.
    fn rb_emit(ruby: &Ruby, this: Obj<Self>, args: &[Value]) -> Nothing {
        let emission = Emission::of(ruby, args)?;
        guard(ruby, || {
            if let Some(&first) = emission.args.first() {
                if emission.event == sym().window {
                    this.remote_window.set(i64::try_convert(first)?);
                } else if emission.event == sym().local_window {
                    this.local_window.set(i64::try_convert(first)?);
                    this.local_window_max.set(this.local_window.get());
                } else if emission.event == sym().frame
                    && let (Some(hash), Ok(connection)) =
                        (RHash::from_value(first), stream::connection_of(this))
                {
                    send::send(ruby, connection, &mut Frame::from_hash(ruby, hash)?)?;
                }
            }
            emission.deliver(&this.listeners)
        })
    }

    fn rb_flush(ruby: &Ruby, this: Obj<Self>) -> Nothing {
        guard(ruby, || stream::flush(ruby, this))
    }

    fn rb_send_buffer(ruby: &Ruby, this: Obj<Self>) -> Result<Obj<FrameBuffer>, Error> {
        stream::buffer(ruby, this)
    }
}

/// Defines the native classes of the drop-in under its module.
fn define(ruby: &Ruby, http2: RModule) -> Nothing {
    framer::init(ruby, http2)?;
    frame_buffer::init(ruby, http2)?;
    define_connection(ruby, http2)?;
    define_stream(ruby, http2)
}

fn define_connection(ruby: &Ruby, http2: RModule) -> Nothing {
    let class = http2.define_class("Connection", ruby.class_object())?;
    class.define_alloc_func::<Connection>();
    class.define_private_method("set_up", method!(Connection::rb_set_up, 4))?;
    class.define_private_method("initialize_copy", method!(Connection::rb_initialize_copy, 1))?;
    class.define_private_method("send", method!(Connection::rb_send, 1))?;
    class.define_private_method("encode", method!(Connection::rb_encode, 1))?;
    class.define_private_method("send_ping", method!(Connection::rb_ping, 1))?;
    class.define_private_method("open_stream", method!(Connection::rb_new_stream, 4))?;
    class.define_private_method("activate_stream", method!(Connection::rb_activate_stream, 1))?;
    class
        .define_private_method("streams_opened", method!(|this: &Connection| this.stream_id.get() / 2, 0))?;
    class.define_private_method("upgrade_stage", method!(Connection::rb_upgrade, 1))?;
    class.define_private_method("set_origins", method!(Connection::rb_set_origins, 2))?;
    class.define_private_method("begin_connection", method!(Connection::rb_send_connection_preface, 0))?;
    class.define_method("receive", method!(Connection::rb_receive, 1))?;
    class.define_method("<<", method!(Connection::rb_append, 1))?;
    class.define_method("goaway", method!(Connection::rb_goaway, -1))?;
    class.define_method("window_update", method!(Connection::rb_window_update, 1))?;
    class.define_method("settings", method!(Connection::rb_settings, 1))?;
    class.define_method("on", method!(Connection::rb_on, 1))?;
    class.define_method("once", method!(Connection::rb_once, 1))?;
    class.define_method("emit", method!(Connection::rb_emit, -1))?;
    class.define_method("flush", method!(Connection::rb_flush, 0))?;
    class.define_method("send_buffer", method!(Connection::rb_send_buffer, 0))?;
    class.define_method(
        "buffered_amount",
        method!(|this: &Connection| FrameBuffer::bytesize_of(&this.buffer), 0),
    )?;
    class.define_method("state", method!(|this: &Connection| value(this.stage.get().symbol()), 0))?;
    class.define_method(
        "closed?",
        method!(|this: &Connection| matches!(this.stage.get(), Stage::Closed | Stage::Closing), 0),
    )?;
    class.define_method("closing?", method!(|this: &Connection| this.stage.get() == Stage::Closing, 0))?;
    for name in ["local_window", "window"] {
        class.define_method(name, method!(|this: &Connection| this.local_window.get(), 0))?;
    }
    class.define_method("remote_window", method!(|this: &Connection| this.remote_window.get(), 0))?;
    class
        .define_method("local_settings", method!(|this: &Connection| value(this.local_settings.get()), 0))?;
    class.define_method(
        "remote_settings",
        method!(|this: &Connection| value(this.remote_settings.get()), 0),
    )?;
    class.define_method(
        "pending_settings",
        method!(|this: &Connection| value(this.pending_settings.get()), 0),
    )?;
    class.define_method(
        "active_stream_count",
        method!(|this: &Connection| this.active_stream_count.get(), 0),
    )?;
    class.define_method(
        "active_stream_count=",
        method!(|this: &Connection, count: i64| this.active_stream_count.set(count), 1),
    )
}

fn define_stream(ruby: &Ruby, http2: RModule) -> Nothing {
    let class = http2.define_class("Stream", ruby.class_object())?;
    class.define_alloc_func::<Stream>();
    class.define_private_method("set_up", method!(Stream::rb_set_up, 6))?;
    class.define_private_method("initialize_copy", method!(Stream::rb_initialize_copy, 1))?;
    class.define_private_method("send_headers", method!(Stream::rb_headers, 3))?;
    class.define_private_method("send_data", method!(Stream::rb_data, 2))?;
    class.define_private_method("refuse_frame", method!(Stream::rb_refuse_frame, 0))?;
    class.define_private_method("connection", method!(|this: &Stream| value(this.connection.get()), 0))?;
    class.define_method("receive", method!(Stream::rb_receive, 1))?;
    class.define_method("<<", method!(Stream::rb_append, 1))?;
    class.define_method("send", method!(Stream::rb_send, 1))?;
    class.define_method("close", method!(Stream::rb_close, -1))?;
    class.define_method(
        "cancel",
        method!(|ruby: &Ruby, this: Obj<Stream>| Stream::rb_reset(ruby, this, sym().cancel), 0),
    )?;
    class.define_method(
        "refuse",
        method!(|ruby: &Ruby, this: Obj<Stream>| Stream::rb_reset(ruby, this, sym().refused_stream), 0),
    )?;
    class.define_method("window_update", method!(Stream::rb_window_update, 1))?;
    class.define_method("on", method!(Stream::rb_on, 1))?;
    class.define_method("once", method!(Stream::rb_once, 1))?;
    class.define_method("emit", method!(Stream::rb_emit, -1))?;
    class.define_method("flush", method!(Stream::rb_flush, 0))?;
    class.define_method("send_buffer", method!(Stream::rb_send_buffer, 0))?;
    class.define_method(
        "buffered_amount",
        method!(|this: &Stream| FrameBuffer::bytesize_of(&this.buffer), 0),
    )?;
    class.define_method("id", method!(|this: &Stream| this.id.get(), 0))?;
    class.define_method("state", method!(|this: &Stream| value(this.state.get().symbol()), 0))?;
    class.define_method("closed", method!(|this: &Stream| value(this.closed.get()), 0))?;
    class.define_method("closed?", method!(|this: &Stream| this.state.get() == State::Closed, 0))?;
    class.define_method("parent", method!(|this: &Stream| value(this.parent.get()), 0))?;
    class.define_method("weight", method!(|this: &Stream| this.weight.get(), 0))?;
    class.define_method("dependency", method!(|this: &Stream| this.dependency.get(), 0))?;
    for name in ["local_window", "window"] {
        class.define_method(name, method!(|this: &Stream| this.local_window.get(), 0))?;
    }
    class.define_method("remote_window", method!(|this: &Stream| this.remote_window.get(), 0))
}

/// Called by `wireloom/drop_in/http_2` alone: first `define`, then, with its Ruby parts in place, `complete`.
pub(crate) fn init(_ruby: &Ruby, wireloom: RModule) -> Nothing {
    let drop_in = wireloom.define_module("DropIn")?.define_module("HTTP2")?;
    drop_in.define_singleton_method("define", function!(define, 1))?;
    drop_in.define_singleton_method("complete", function!(names::set_classes, 1))?;
    drop_in.define_singleton_method("patched", function!(connection::set_patched, 0))
}
