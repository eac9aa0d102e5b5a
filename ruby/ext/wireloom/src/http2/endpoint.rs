//! `Wireloom::HTTP2::Client` and `Server`: the core's connection, with bytes going in and events coming out in one call a read.

use std::cell::{Cell, RefCell};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::{Duration, Instant};

use magnus::rb_sys::AsRawValue;
use magnus::typed_data::Obj;
use magnus::value::Lazy;
use magnus::{
    DataTypeFunctions, Error, ExceptionClass, RArray, RHash, RModule, RString, Ruby, Symbol, TryConvert,
    TypedData, Value, method, prelude::*,
};
use wireloom_http2::error::{Error as CoreError, ErrorCode, Misuse};
use wireloom_http2::field::Field;
use wireloom_http2::frame::StreamId;
use wireloom_http2::priority::Priority;
use wireloom_http2::{Config, Connection, Ended, Role, StreamKey};

use super::events;
use crate::hpack::encode::pairs;
use crate::panic::guard;
use crate::strings;

static ERROR: Lazy<ExceptionClass> = Lazy::new(|ruby| {
    ruby.class_object()
        .const_get::<_, RModule>("Wireloom")
        .and_then(|wireloom| wireloom.const_get::<_, RModule>("HTTP2"))
        .and_then(|http2| http2.const_get("Error"))
        .unwrap_or_else(|_| ruby.exception_runtime_error())
});

#[derive(TypedData)]
#[magnus(class = "Wireloom::HTTP2::Connection", free_immediately, size)]
struct Endpoint {
    connection: RefCell<Option<Connection>>,
    /// Input that waits until output was taken.
    waiting: RefCell<Vec<u8>>,
    began: Cell<Instant>,
}

impl Default for Endpoint {
    fn default() -> Self {
        Self { connection: RefCell::new(None), waiting: RefCell::default(), began: Cell::new(Instant::now()) }
    }
}

impl DataTypeFunctions for Endpoint {
    fn size(&self) -> usize {
        size_of::<Self>() + self.waiting.try_borrow().map_or(0, |waiting| waiting.capacity())
    }
}

impl Endpoint {
    fn now(&self) -> Duration {
        self.began.get().elapsed()
    }

    /// Runs `work` on the connection; what the caller did wrong is raised.
    fn with<T>(
        &self,
        ruby: &Ruby,
        work: impl FnOnce(&mut Connection) -> Result<T, CoreError>,
    ) -> Result<T, Error> {
        guard(ruby, || {
            let mut connection = self.connection.borrow_mut();
            let connection = connection.as_mut().ok_or_else(|| raise(ruby, "not initialized"))?;
            work(connection).map_err(|error| raise(ruby, error.reason()))
        })
    }

    /// The same for one stream.
    fn with_stream<T>(
        &self,
        ruby: &Ruby,
        id: u32,
        work: impl FnOnce(&mut Connection, StreamKey) -> Result<T, CoreError>,
    ) -> Result<T, Error> {
        self.with(ruby, |connection| {
            let key = StreamId::new(id).and_then(|id| connection.find(id)).ok_or(Misuse::StreamGone)?;
            work(connection, key)
        })
    }

    fn set_up(ruby: &Ruby, this: Obj<Self>, is_client: bool, options: RHash) -> Result<(), Error> {
        let role = if is_client { Role::Client } else { Role::Server };
        let config = config(ruby, role, options)?;
        let connection = Connection::new(role, config)
            .map_err(|misuse| Error::new(ruby.exception_arg_error(), misuse.reason()))?;
        *this.connection.borrow_mut() = Some(connection);
        Ok(())
    }

    /// Takes bytes; returns the events of all of them.
    fn receive(ruby: &Ruby, this: Obj<Self>, input: RString) -> Result<RArray, Error> {
        guard(ruby, || {
            let list = ruby.ary_new();
            let mut connection = this.connection.borrow_mut();
            let connection = connection.as_mut().ok_or_else(|| raise(ruby, "not initialized"))?;
            let mut waiting = this.waiting.borrow_mut();
            let input = strings::frozen(input);
            // SAFETY: the String is frozen, and kept below.
            let bytes = unsafe { strings::bytes(input.as_raw()) };
            let now = this.now();
            let taken = if waiting.is_empty() {
                let taken = drain(ruby, connection, now, bytes, list);
                if let Ok(taken) = &taken {
                    waiting.extend_from_slice(&bytes[*taken..]);
                }
                taken
            } else {
                waiting.extend_from_slice(bytes);
                let taken = drain(ruby, connection, now, &waiting, list);
                if let Ok(taken) = &taken {
                    waiting.drain(..*taken);
                }
                taken
            };
            strings::keep(input);
            taken.map(|_| list)
        })
    }

    fn eof(ruby: &Ruby, this: Obj<Self>) -> Result<RArray, Error> {
        this.with(ruby, |connection| {
            connection.handle_eof();
            Ok(())
        })?;
        Self::receive(ruby, this, strings::binary(b""))
    }

    /// Acts on deadlines that have passed; returns events.
    fn tick(ruby: &Ruby, this: Obj<Self>) -> Result<RArray, Error> {
        let now = this.now();
        let ended = this.with(ruby, |connection| Ok(connection.handle_timeout(now)))?;
        let list = Self::receive(ruby, this, strings::binary(b""))?;
        if let Err(error) = ended {
            list.push(events::failure(ruby, error)?)?;
        }
        Ok(list)
    }

    /// Seconds until [`Endpoint::tick`], or nil.
    fn timeout(ruby: &Ruby, this: &Self) -> Result<Option<f64>, Error> {
        let now = this.now();
        this.with(ruby, |connection| {
            Ok(connection.poll_timeout().map(|at| at.saturating_sub(now).as_secs_f64()))
        })
    }

    /// What is to be written.
    fn take_output(ruby: &Ruby, this: &Self) -> Result<RString, Error> {
        this.with(ruby, |connection| {
            let mut out = None;
            loop {
                let mut slices = [&[][..]; 64];
                let filled = connection.poll_transmit(&mut slices);
                let len: usize = slices[..filled].iter().map(|slice| slice.len()).sum();
                if len == 0 {
                    return Ok(out.unwrap_or_else(|| strings::binary(b"")));
                }
                let string = *out.get_or_insert_with(|| strings::with_capacity(len));
                for slice in &slices[..filled] {
                    strings::append(string, slice, |needed| needed * 2);
                }
                connection.transmitted(len);
            }
        })
    }

    fn request(ruby: &Ruby, this: &Self, headers: Value, end_stream: bool) -> Result<u32, Error> {
        let fields = Fields::of(ruby, headers)?;
        this.with(ruby, |connection| Ok(connection.send_request(fields.iter(), end_stream)?.id()))
    }

    fn respond(ruby: &Ruby, this: &Self, id: u32, headers: Value, end_stream: bool) -> Result<(), Error> {
        let fields = Fields::of(ruby, headers)?;
        this.with_stream(ruby, id, |connection, key| connection.send_response(key, fields.iter(), end_stream))
    }

    fn inform(ruby: &Ruby, this: &Self, id: u32, headers: Value) -> Result<(), Error> {
        let fields = Fields::of(ruby, headers)?;
        this.with_stream(ruby, id, |connection, key| connection.send_informational(key, fields.iter()))
    }

    fn trailers(ruby: &Ruby, this: &Self, id: u32, headers: Value) -> Result<(), Error> {
        let fields = Fields::of(ruby, headers)?;
        this.with_stream(ruby, id, |connection, key| connection.send_trailers(key, fields.iter()))
    }

    fn promise(ruby: &Ruby, this: &Self, id: u32, headers: Value) -> Result<u32, Error> {
        let fields = Fields::of(ruby, headers)?;
        this.with_stream(ruby, id, |connection, key| Ok(connection.push_promise(key, fields.iter())?.id()))
    }

    fn data(ruby: &Ruby, this: &Self, id: u32, data: RString, end_stream: bool) -> Result<(), Error> {
        // SAFETY: copied before any Ruby code runs.
        let data = unsafe { strings::bytes(data.as_raw()) }.to_vec();
        this.with_stream(ruby, id, |connection, key| connection.send_data(key, data, end_stream))
    }

    fn reset(ruby: &Ruby, this: &Self, id: u32, code: Value) -> Result<(), Error> {
        let code = error_code(ruby, code)?;
        this.with_stream(ruby, id, |connection, key| connection.reset(key, code))
    }

    fn release(ruby: &Ruby, this: &Self, id: u32, len: usize) -> Result<(), Error> {
        this.with_stream(ruby, id, |connection, key| connection.release_capacity(key, len))
    }

    fn prioritize(ruby: &Ruby, this: &Self, id: u32, urgency: u8, incremental: bool) -> Result<(), Error> {
        if urgency > Priority::URGENCY_MAX {
            return Err(Error::new(ruby.exception_arg_error(), "urgency goes from 0 to 7"));
        }
        let priority = Priority { urgency, incremental };
        this.with_stream(ruby, id, |connection, key| match connection.role() {
            Role::Client => connection.send_priority_update(key, priority),
            Role::Server => connection.set_priority(key, priority),
        })
    }

    fn capacity(ruby: &Ruby, this: &Self, id: u32) -> Result<usize, Error> {
        this.with_stream(ruby, id, |connection, key| Ok(connection.send_capacity(key)))
    }

    fn ping(ruby: &Ruby, this: &Self, payload: RString) -> Result<(), Error> {
        // SAFETY: copied before any Ruby code runs.
        let payload = unsafe { strings::bytes(payload.as_raw()) }.try_into();
        let payload =
            payload.map_err(|_| Error::new(ruby.exception_arg_error(), "a ping has eight bytes"))?;
        let now = this.now();
        this.with(ruby, |connection| connection.send_ping(now, payload))
    }

    fn shutdown(ruby: &Ruby, this: &Self) -> Result<(), Error> {
        this.with(ruby, |connection| {
            connection.shutdown();
            Ok(())
        })
    }

    fn abort(ruby: &Ruby, this: &Self, code: Value, message: RString) -> Result<(), Error> {
        let code = error_code(ruby, code)?;
        // SAFETY: copied before any Ruby code runs.
        let message = unsafe { strings::bytes(message.as_raw()) }.to_vec();
        this.with(ruby, |connection| {
            connection.abort(code, &message);
            Ok(())
        })
    }

    fn has_output(ruby: &Ruby, this: &Self) -> Result<bool, Error> {
        this.with(ruby, |connection| Ok(connection.wants_write()))
    }

    fn has_ended(ruby: &Ruby, this: &Self) -> Result<bool, Error> {
        this.with(ruby, |connection| Ok(connection.ended().is_some()))
    }

    fn is_going_away(ruby: &Ruby, this: &Self) -> Result<bool, Error> {
        this.with(ruby, |connection| Ok(connection.is_going_away()))
    }

    /// Whether bytes wait for output to be taken.
    fn has_input(&self) -> bool {
        !self.waiting.borrow().is_empty()
    }

    fn streams(ruby: &Ruby, this: &Self) -> Result<usize, Error> {
        this.with(ruby, |connection| Ok(connection.streams()))
    }

    fn open_capacity(ruby: &Ruby, this: &Self) -> Result<usize, Error> {
        this.with(ruby, |connection| Ok(connection.open_capacity()))
    }

    fn peer_settings(ruby: &Ruby, this: &Self) -> Result<RHash, Error> {
        let settings = this.with(ruby, |connection| Ok(*connection.peer_settings()))?;
        let hash = ruby.hash_new();
        hash.aset(ruby.to_symbol("header_table_size"), settings.header_table_size)?;
        hash.aset(ruby.to_symbol("enable_push"), settings.enable_push)?;
        hash.aset(ruby.to_symbol("max_concurrent_streams"), settings.max_concurrent_streams)?;
        hash.aset(ruby.to_symbol("initial_window_size"), settings.initial_window_size)?;
        hash.aset(ruby.to_symbol("max_frame_size"), settings.max_frame_size)?;
        hash.aset(ruby.to_symbol("max_header_list_size"), settings.max_header_list_size)?;
        hash.aset(ruby.to_symbol("enable_connect_protocol"), settings.enable_connect_protocol)?;
        hash.aset(ruby.to_symbol("no_rfc7540_priorities"), settings.no_rfc7540_priorities)?;
        Ok(hash)
    }
}

/// Feeds the connection until it wants no more, and tells what happened; says how many bytes it took.
fn drain(
    ruby: &Ruby,
    connection: &mut Connection,
    now: Duration,
    bytes: &[u8],
    list: RArray,
) -> Result<usize, Error> {
    let was_over = matches!(connection.ended(), Some(Ended::Failed(_)));
    let mut at = 0;
    loop {
        match connection.handle_input(now, &bytes[at..]) {
            Ok((taken, event)) => {
                at += taken;
                let Some(event) = event else { return Ok(at) };
                if let Some(object) = events::object(ruby, event)? {
                    list.push(object)?;
                }
            }
            Err(error) => {
                if !was_over {
                    list.push(events::failure(ruby, error)?)?;
                }
                return Ok(bytes.len());
            }
        }
    }
}

/// Fields of Ruby Strings: names in lower case.
struct Fields {
    list: RArray,
    /// Names that had to be lower-cased, by position.
    lowered: Vec<(usize, Vec<u8>)>,
    len: usize,
}

impl Fields {
    fn of(ruby: &Ruby, headers: Value) -> Result<Self, Error> {
        let given = pairs(ruby, headers)?;
        // A list of its own, with frozen Strings: what the program does meanwhile changes nothing.
        let list = ruby.ary_new_capa(given.len() * 2);
        let mut lowered = Vec::new();
        for at in 0..given.len() {
            let pair: RArray = given.entry(at as isize)?;
            let (name, value): (RString, RString) = (pair.entry(0)?, pair.entry(1)?);
            // SAFETY: no Ruby code runs while the slice is in use.
            let bytes = unsafe { strings::bytes(name.as_raw()) };
            if bytes.iter().any(u8::is_ascii_uppercase) {
                lowered.push((at, bytes.to_ascii_lowercase()));
            }
            list.push(strings::frozen(name))?;
            list.push(strings::frozen(value))?;
        }
        Ok(Self { list, lowered, len: given.len() })
    }

    fn iter(&self) -> impl Iterator<Item = Field<'_>> + Clone {
        // SAFETY: the Array is this object's own, on the stack of whoever holds it, and nothing adds to it any more.
        let strings = unsafe { self.list.as_slice() };
        (0..self.len).map(move |at| {
            let bytes = |at: usize| {
                // SAFETY: the Strings are frozen and in the list.
                unsafe { strings::bytes(strings[at].as_raw()) }
            };
            let name = self.lowered.iter().find(|(lowered, _)| *lowered == at);
            Field::new(name.map_or_else(|| bytes(2 * at), |(_, name)| name), bytes(2 * at + 1))
        })
    }
}

impl Drop for Fields {
    fn drop(&mut self) {
        std::hint::black_box(self.list);
    }
}

#[cold]
fn raise(ruby: &Ruby, message: &str) -> Error {
    Error::new(ruby.get_inner(&ERROR), message.to_owned())
}

/// `:cancel`, or a number.
fn error_code(ruby: &Ruby, given: Value) -> Result<ErrorCode, Error> {
    let Some(symbol) = Symbol::from_value(given) else { return u32::try_convert(given).map(ErrorCode::from) };
    let name = symbol.name()?.to_ascii_uppercase();
    (0..=13)
        .map(ErrorCode::from)
        .find(|code| code.name() == Some(&name))
        .ok_or_else(|| Error::new(ruby.exception_arg_error(), format!("no such error code: {symbol}")))
}

/// What Ruby says in keywords, as the core's configuration.
fn config(ruby: &Ruby, role: Role, options: RHash) -> Result<Config, Error> {
    fn set<T: TryConvert>(ruby: &Ruby, options: RHash, name: &str, place: &mut T) -> Result<(), Error> {
        if let Some(given) = options.lookup::<_, Option<T>>(ruby.to_symbol(name))? {
            *place = given;
        }
        Ok(())
    }
    let mut config = Config::new(role);
    let settings = &mut config.settings;
    set(ruby, options, "header_table_size", &mut settings.header_table_size)?;
    set(ruby, options, "enable_push", &mut settings.enable_push)?;
    set(ruby, options, "max_concurrent_streams", &mut settings.max_concurrent_streams)?;
    set(ruby, options, "initial_window_size", &mut settings.initial_window_size)?;
    set(ruby, options, "max_frame_size", &mut settings.max_frame_size)?;
    set(ruby, options, "max_header_list_size", &mut settings.max_header_list_size)?;
    set(ruby, options, "enable_connect_protocol", &mut settings.enable_connect_protocol)?;
    set(ruby, options, "connection_window", &mut config.connection_window)?;
    set(ruby, options, "stream_window_max", &mut config.stream_window_max)?;
    set(ruby, options, "auto_release", &mut config.auto_release)?;
    set(ruby, options, "stream_queue", &mut config.stream_queue)?;
    config.hash_key = RandomState::new().build_hasher().finish();
    Ok(config)
}

pub(super) fn init(ruby: &Ruby, wireloom: RModule) -> Result<(), Error> {
    let http2 = wireloom.define_module("HTTP2")?;
    http2.define_error("Error", wireloom.const_get::<_, ExceptionClass>("Error")?)?;
    let class = http2.define_class("Connection", ruby.class_object())?;
    class.define_alloc_func::<Endpoint>();
    class.define_private_method("set_up", method!(Endpoint::set_up, 2))?;
    class.define_private_method("send_request", method!(Endpoint::request, 2))?;
    class.define_private_method("send_response", method!(Endpoint::respond, 3))?;
    class.define_private_method("send_informational", method!(Endpoint::inform, 2))?;
    class.define_private_method("send_promise", method!(Endpoint::promise, 2))?;
    class.define_private_method("send_data", method!(Endpoint::data, 3))?;
    class.define_private_method("send_reset", method!(Endpoint::reset, 2))?;
    class.define_private_method("set_priority", method!(Endpoint::prioritize, 3))?;
    class.define_private_method("end_now", method!(Endpoint::abort, 2))?;
    class.define_method("receive", method!(Endpoint::receive, 1))?;
    class.define_method("eof", method!(Endpoint::eof, 0))?;
    class.define_method("tick", method!(Endpoint::tick, 0))?;
    class.define_method("timeout", method!(Endpoint::timeout, 0))?;
    class.define_method("take_output", method!(Endpoint::take_output, 0))?;
    class.define_method("trailers", method!(Endpoint::trailers, 2))?;
    class.define_method("release", method!(Endpoint::release, 2))?;
    class.define_method("capacity", method!(Endpoint::capacity, 1))?;
    class.define_method("ping", method!(Endpoint::ping, 1))?;
    class.define_method("shutdown", method!(Endpoint::shutdown, 0))?;
    class.define_method("output?", method!(Endpoint::has_output, 0))?;
    class.define_method("input?", method!(Endpoint::has_input, 0))?;
    class.define_method("closed?", method!(Endpoint::has_ended, 0))?;
    class.define_method("going_away?", method!(Endpoint::is_going_away, 0))?;
    class.define_method("streams", method!(Endpoint::streams, 0))?;
    class.define_method("open_capacity", method!(Endpoint::open_capacity, 0))?;
    class.define_method("peer_settings", method!(Endpoint::peer_settings, 0))
}
