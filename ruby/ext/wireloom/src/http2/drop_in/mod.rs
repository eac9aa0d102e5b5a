//! The native part of `wireloom/drop_in/http_2`: the classes of the gem `http-2` with its states, events and errors, in the order
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
use magnus::{Error, RHash, RModule, RString, Ruby, Symbol, TryConvert, Value, prelude::*, scan_args};
use rb_sys::VALUE;

use crate::guard::{function, method};
use crate::held::{Held, Owner};
pub(crate) use connection::class_of;
use connection::{Connection, Opening, Phase, Upgrade};
use frame::{Frame, NIL, value};
use frame_buffer::FrameBuffer;
use listeners::Emission;
use names::{Name, sym};
use stream::{State, Stream};

/// The client's connection preface (RFC 9113 §3.4).
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
        settings::set_up(ruby, this, is_client, encoding, local, remote)
    }

    fn rb_initialize_copy(this: Obj<Self>, other: Obj<Self>) -> Result<Obj<Self>, Error> {
        this.copy_from(&other, Owner::of(this))?;
        Ok(this)
    }

    fn rb_receive(ruby: &Ruby, this: Obj<Self>, data: Option<RString>) -> Nothing {
        receive::receive(ruby, this, data)
    }

    fn rb_append(ruby: &Ruby, this: Obj<Self>, data: Option<RString>) -> Nothing {
        if connection::is_plain(this) {
            return Self::rb_receive(ruby, this, data);
        }
        this.funcall_public::<_, _, Value>("receive", (data,)).map(|_| ())
    }

    fn rb_send(ruby: &Ruby, this: Obj<Self>, hash: RHash) -> Nothing {
        send::send(ruby, this, &mut Frame::from_hash(ruby, hash)?)
    }

    fn rb_encode(ruby: &Ruby, this: Obj<Self>, hash: RHash) -> Nothing {
        send::encode(ruby, this, &mut Frame::from_hash(ruby, hash)?)
    }

    fn rb_ping(ruby: &Ruby, this: Obj<Self>, payload: RString) -> Nothing {
        send::ping(ruby, this, payload.as_value(), 0)
    }

    fn rb_goaway(ruby: &Ruby, this: Obj<Self>, args: &[Value]) -> Nothing {
        let args = scan_args::scan_args::<(), (Option<Value>, Option<Value>), (), (), (), ()>(args)?;
        let error = args.optional.0.map_or(sym().no_error, |error| error.as_raw());
        let payload = args.optional.1.map_or(NIL, |payload| payload.as_raw());
        send::goaway(ruby, this, error, payload)
    }

    fn rb_window_update(ruby: &Ruby, this: Obj<Self>, increment: i64) -> Nothing {
        send::window_update(ruby, this, increment)
    }

    fn rb_settings(ruby: &Ruby, this: Obj<Self>, payload: Value) -> Nothing {
        settings::settings(ruby, this, payload)
    }

    fn rb_send_connection_preface(ruby: &Ruby, this: Obj<Self>) -> Nothing {
        settings::send_connection_preface(ruby, this)
    }

    fn rb_new_stream(
        ruby: &Ruby,
        this: Obj<Self>,
        weight: i64,
        dependency: u32,
        parent: Value,
        state: Symbol,
    ) -> Result<Obj<Stream>, Error> {
        {
            let opening = opening(ruby, 0, weight, dependency, parent, state)?;
            connection::new_stream(ruby, this, opening)
        }
    }

    /// The stream of an upgrade, which the client opened.
    fn rb_activate_stream(ruby: &Ruby, this: Obj<Self>, id: u32) -> Result<Obj<Stream>, Error> {
        let stream = connection::activate_stream(ruby, this, Opening::new(id))?;
        receive::verify_order(ruby, this, id)?;
        Ok(stream)
    }

    fn rb_upgrade(this: Obj<Self>, phase: i32) {
        this.upgrade.set(if phase == 0 { Upgrade::Started } else { Upgrade::Finished });
        if phase == 2 {
            this.phase.set(Phase::WaitingMagic);
        }
    }

    fn rb_set_origins(this: Obj<Self>, origins: Value, due: bool) {
        this.origin_set.set(Held::new(Owner::of(this), origins.as_raw()));
        this.origins_due.set(due);
    }

    fn rb_on(ruby: &Ruby, this: Obj<Self>, event: Value) -> Nothing {
        listeners::listen(ruby, this, event, false)
    }

    fn rb_once(ruby: &Ruby, this: Obj<Self>, event: Value) -> Nothing {
        listeners::listen(ruby, this, event, true)
    }

    fn rb_emit(ruby: &Ruby, this: Obj<Self>, args: &[Value]) -> Nothing {
        let emission = Emission::of(ruby, args)?;
        emission.deliver(this)
    }

    fn rb_flush(ruby: &Ruby, this: Obj<Self>) -> Nothing {
        send::flush(ruby, this)
    }

    fn rb_send_buffer(ruby: &Ruby, this: Obj<Self>) -> Result<Obj<FrameBuffer>, Error> {
        FrameBuffer::of(ruby, Owner::of(this), &this.buffer)
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
        .ok_or_else(|| Error::new(ruby.exception_arg_error(), format!("no such state: {}", Name(state))))?;
    Ok(Opening { id, weight, dependency, parent: parent.as_raw(), state })
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
        connection::set_up_stream(ruby, connection, this, opening)
    }

    fn rb_initialize_copy(this: Obj<Self>, other: Obj<Self>) -> Obj<Self> {
        this.copy_from(&other);
        // SAFETY: a live object of this extension, of a type that write barriers protect.
        unsafe { rb_sys::rb_gc_writebarrier_unprotect(this.as_raw()) };
        this
    }

    fn rb_receive(ruby: &Ruby, this: Obj<Self>, hash: RHash) -> Nothing {
        stream::receive(ruby, this, &mut Frame::from_hash(ruby, hash)?)
    }

    fn rb_append(ruby: &Ruby, this: Obj<Self>, hash: RHash) -> Nothing {
        if stream::is_plain(this) {
            return Self::rb_receive(ruby, this, hash);
        }
        this.funcall_public::<_, _, Value>("receive", (hash,)).map(|_| ())
    }

    fn rb_send(ruby: &Ruby, this: Obj<Self>, hash: RHash) -> Nothing {
        stream::send(ruby, this, &mut Frame::from_hash(ruby, hash)?)
    }

    fn rb_headers(
        ruby: &Ruby,
        this: Obj<Self>,
        headers: Value,
        end_headers: bool,
        end_stream: bool,
    ) -> Nothing {
        stream::headers(ruby, this, headers, end_headers, end_stream)
    }

    fn rb_data(ruby: &Ruby, this: Obj<Self>, payload: RString, end_stream: bool) -> Nothing {
        stream::data(ruby, this, payload, end_stream)
    }

    fn rb_close(ruby: &Ruby, this: Obj<Self>, args: &[Value]) -> Nothing {
        let args = scan_args::scan_args::<(), (Option<Value>,), (), (), (), ()>(args)?;
        let error = args.optional.0.map_or(sym().stream_closed, |error| error.as_raw());
        stream::close(ruby, this, error)
    }

    /// RST_STREAM with an error of that name.
    fn rb_reset(ruby: &Ruby, this: Obj<Self>, error: VALUE) -> Nothing {
        stream::close(ruby, this, error)
    }

    fn rb_refuse_frame(ruby: &Ruby, this: Obj<Self>) -> Nothing {
        stream::refuse(ruby, this)
    }

    fn rb_window_update(ruby: &Ruby, this: Obj<Self>, increment: i64) -> Nothing {
        stream::window_update(ruby, this, increment)
    }

    fn rb_on(ruby: &Ruby, this: Obj<Self>, event: Value) -> Nothing {
        listeners::listen(ruby, this, event, false)
    }

    fn rb_once(ruby: &Ruby, this: Obj<Self>, event: Value) -> Nothing {
        listeners::listen(ruby, this, event, true)
    }

    /// The stream acts on some events itself; then its listeners are called.
    fn rb_emit(ruby: &Ruby, this: Obj<Self>, args: &[Value]) -> Nothing {
        let emission = Emission::of(ruby, args)?;
        {
            if let Some(&first) = emission.args.first() {
                if emission.event == sym().window {
                    this.remote_window.set(i64::try_convert(first)?);
                } else if emission.event == sym().local_window {
                    this.set_local_window(i64::try_convert(first)?);
                } else if emission.event == sym().frame
                    && let Some(hash) = RHash::from_value(first)
                {
                    stream::pass_on(ruby, this, &mut Frame::from_hash(ruby, hash)?)?;
                }
            }
            emission.deliver(this)
        }
    }

    fn rb_flush(ruby: &Ruby, this: Obj<Self>) -> Nothing {
        stream::flush(ruby, this)
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
    Connection::load(ruby, class);
    class.define_alloc_func::<Connection>();
    class.define_private_method("set_up", method!(Connection::rb_set_up, 4))?;
    class.define_private_method("initialize_copy", method!(Connection::rb_initialize_copy, 1))?;
    class.define_private_method("send", method!(mut Connection::rb_send, 1))?;
    class.define_private_method("encode", method!(mut Connection::rb_encode, 1))?;
    class.define_private_method("send_ping", method!(mut Connection::rb_ping, 1))?;
    class.define_private_method("open_stream", method!(mut Connection::rb_new_stream, 4))?;
    class.define_private_method("activate_stream", method!(mut Connection::rb_activate_stream, 1))?;
    class
        .define_private_method("streams_opened", method!(|this: &Connection| this.stream_id.get() / 2, 0))?;
    class.define_private_method("upgrade_phase", method!(mut Connection::rb_upgrade, 1))?;
    class.define_private_method("set_origins", method!(mut Connection::rb_set_origins, 2))?;
    class
        .define_private_method("begin_connection", method!(mut Connection::rb_send_connection_preface, 0))?;
    class.define_method("receive", method!(mut Connection::rb_receive, 1))?;
    class.define_method("<<", method!(mut Connection::rb_append, 1))?;
    class.define_method("goaway", method!(mut Connection::rb_goaway, -1))?;
    class.define_method("window_update", method!(mut Connection::rb_window_update, 1))?;
    class.define_method("settings", method!(mut Connection::rb_settings, 1))?;
    class.define_method("on", method!(mut Connection::rb_on, 1))?;
    class.define_method("once", method!(mut Connection::rb_once, 1))?;
    class.define_private_method("wireloom_emit", method!(mut Connection::rb_emit, -1))?;
    class.define_method("flush", method!(mut Connection::rb_flush, 0))?;
    class.define_method("send_buffer", method!(Connection::rb_send_buffer, 0))?;
    class.define_method(
        "buffered_amount",
        method!(|this: &Connection| FrameBuffer::bytesize_of(&this.buffer), 0),
    )?;
    class.define_method("state", method!(|this: &Connection| value(this.phase.get().symbol()), 0))?;
    class.define_method("closed?", method!(|this: &Connection| this.phase.get().is_ending(), 0))?;
    class.define_method("closing?", method!(|this: &Connection| this.phase.get() == Phase::Closing, 0))?;
    for name in ["local_window", "window"] {
        class.define_method(name, method!(|this: &Connection| this.local_window.get(), 0))?;
    }
    class.define_method("remote_window", method!(|this: &Connection| this.remote_window.get(), 0))?;
    class
        .define_method("local_settings", method!(|this: &Connection| this.local_settings.get().value(), 0))?;
    class.define_method(
        "remote_settings",
        method!(|this: &Connection| this.remote_settings.get().value(), 0),
    )?;
    class.define_method(
        "pending_settings",
        method!(|this: &Connection| this.pending_settings.get().value(), 0),
    )?;
    class.define_method(
        "active_stream_count",
        method!(|this: &Connection| this.active_stream_count.get(), 0),
    )?;
    class.define_method(
        "active_stream_count=",
        method!(mut |this: &Connection, count: i64| this.active_stream_count.set(count), 1),
    )
}

fn define_stream(ruby: &Ruby, http2: RModule) -> Nothing {
    let class = http2.define_class("Stream", ruby.class_object())?;
    Stream::load(ruby, class);
    class.define_alloc_func::<Stream>();
    class.define_private_method("set_up", method!(Stream::rb_set_up, 6))?;
    class.define_private_method("initialize_copy", method!(Stream::rb_initialize_copy, 1))?;
    class.define_private_method("send_headers", method!(mut Stream::rb_headers, 3))?;
    class.define_private_method("send_data", method!(mut Stream::rb_data, 2))?;
    class.define_private_method("refuse_frame", method!(mut Stream::rb_refuse_frame, 0))?;
    class.define_private_method("connection", method!(|this: &Stream| this.connection.get().value(), 0))?;
    class.define_method("receive", method!(mut Stream::rb_receive, 1))?;
    class.define_method("<<", method!(mut Stream::rb_append, 1))?;
    class.define_method("send", method!(mut Stream::rb_send, 1))?;
    class.define_method("close", method!(mut Stream::rb_close, -1))?;
    class.define_method(
        "cancel",
        method!(mut |ruby: &Ruby, this: Obj<Stream>| Stream::rb_reset(ruby, this, sym().cancel), 0),
    )?;
    class.define_method(
        "refuse",
        method!(mut |ruby: &Ruby, this: Obj<Stream>| Stream::rb_reset(ruby, this, sym().refused_stream), 0),
    )?;
    class.define_method("window_update", method!(mut Stream::rb_window_update, 1))?;
    class.define_method("on", method!(mut Stream::rb_on, 1))?;
    class.define_method("once", method!(mut Stream::rb_once, 1))?;
    class.define_private_method("wireloom_emit", method!(mut Stream::rb_emit, -1))?;
    class.define_method("flush", method!(mut Stream::rb_flush, 0))?;
    class.define_method("send_buffer", method!(Stream::rb_send_buffer, 0))?;
    class.define_method(
        "buffered_amount",
        method!(|this: &Stream| FrameBuffer::bytesize_of(&this.buffer), 0),
    )?;
    class.define_method("id", method!(|this: &Stream| this.id.get(), 0))?;
    class.define_method("state", method!(|this: &Stream| value(this.state.get().symbol()), 0))?;
    class.define_method("closed", method!(|this: &Stream| this.closed.get().value(), 0))?;
    class.define_method("closed?", method!(|this: &Stream| this.state.get() == State::Closed, 0))?;
    class.define_method("parent", method!(|this: &Stream| this.parent.get().value(), 0))?;
    class.define_method("weight", method!(|this: &Stream| this.weight.get(), 0))?;
    class.define_method("dependency", method!(|this: &Stream| this.dependency.get(), 0))?;
    for name in ["local_window", "window"] {
        class.define_method(name, method!(|this: &Stream| this.local_window.get(), 0))?;
    }
    class.define_method("remote_window", method!(|this: &Stream| this.remote_window.get(), 0))
}

/// Called by `wireloom/drop_in/http_2` alone: first `define`, then, with its Ruby parts in place, `complete`.
pub(crate) fn init(_: &Ruby, wireloom: RModule) -> Nothing {
    names::load();
    let drop_in = wireloom.define_module("DropIn")?.define_module("HTTP2")?;
    drop_in.define_singleton_method("define", function!(define, 1))?;
    drop_in.define_singleton_method("complete", function!(names::set_classes, 1))?;
    drop_in.define_singleton_method("override_emit", function!(listeners::override_emit, 0))?;
    drop_in.define_singleton_method("patched", function!(connection::set_patched, 0))
}
