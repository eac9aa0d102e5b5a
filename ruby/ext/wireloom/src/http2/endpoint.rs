//! `Wireloom::HTTP2::Client` and `Server`: the core's connection, with bytes going in and events coming out in one call a read.

use std::cell::Cell;
use std::collections::TryReserveError;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::{Duration, Instant};

use magnus::rb_sys::AsRawValue;
use magnus::typed_data::Obj;
use magnus::{
    Error, ExceptionClass, RArray, RHash, RModule, RString, Ruby, Symbol, TryConvert, Value, prelude::*,
};
use wireloom_http2::error::{Error as CoreError, ErrorCode, Misuse};
use wireloom_http2::field::{Field, Malformed};
use wireloom_http2::frame::StreamId;
use wireloom_http2::priority::Priority;
use wireloom_http2::{Config, Connection, Ended, Role, StreamKey};

use super::events;
use crate::exclusive::Exclusive;
use crate::guard::method;
use crate::held::{Held, Immortal, Owner, managed, plain};
use crate::hpack::encode::pairs;
use crate::memory::{Accounted, no_memory, try_extend, try_extend_all};
use crate::{scratch, strings};

static ERROR: Immortal<ExceptionClass> = Immortal::new();

const NO_MEMORY: &str = "there is no memory for an event";

/// A call ends after the message whose header fields exceed the call's input by this many bytes: a byte may refer to 4 KiB of the dynamic
/// table.
const DECODED_LEN_MAX: usize = 1 << 20;

struct Endpoint {
    state: Exclusive<EndpointState>,
    /// Events of a call that found no memory for the next one, or nil: those of the next call, before a Failure.
    undelivered: Cell<Held>,
    began: Cell<Instant>,
    memory: Accounted,
}

#[derive(Default)]
struct EndpointState {
    connection: Option<Connection>,
    /// Input that waits until output was taken, or for the next call.
    waiting: Vec<u8>,
    /// The peer has ended its stream behind `waiting`.
    ends_behind: bool,
    /// Output for which there was no memory for a String.
    out: Vec<u8>,
}

plain!(EndpointState);

managed!(
    Endpoint as "Wireloom::HTTP2::Connection" { state, undelivered, began, memory },
    size = |endpoint| endpoint.state.try_with(|state| state.heap_size()).unwrap_or(0)
);

impl Default for Endpoint {
    fn default() -> Self {
        Self {
            state: Exclusive::default(),
            undelivered: Cell::new(Held::NIL),
            began: Cell::new(Instant::now()),
            memory: Accounted::default(),
        }
    }
}

/// Why a call failed, before an exception is made of it.
enum Failure {
    NotInitialized,
    Field(Malformed),
    Core(CoreError),
}

impl Failure {
    #[cold]
    fn raised(self, ruby: &Ruby) -> Error {
        let message = match self {
            Self::NotInitialized => "not initialized".to_owned(),
            Self::Field(error) => error.to_string(),
            Self::Core(error) => error.reason().to_owned(),
        };
        Error::new(ERROR.get(ruby), message)
    }
}

impl EndpointState {
    fn heap_size(&self) -> usize {
        let connection = self.connection.as_ref().map_or(0, |connection| connection.memory().total());
        self.waiting.capacity() + self.out.capacity() + connection as usize
    }

    fn connection(&mut self) -> Result<&mut Connection, Failure> {
        self.connection.as_mut().ok_or(Failure::NotInitialized)
    }
}

impl Endpoint {
    fn now(&self) -> Duration {
        self.began.get().elapsed()
    }

    /// Runs `work` on the connection; a mistake of the caller's is raised.
    fn with<T>(
        &self,
        ruby: &Ruby,
        work: impl FnOnce(&mut Connection) -> Result<T, CoreError> + Send,
    ) -> Result<T, Error> {
        let done = self.state.with(|state| work(state.connection()?).map_err(Failure::Core));
        done.map_err(|failure| failure.raised(ruby))
    }

    /// The same for one stream.
    fn with_stream<T>(
        &self,
        ruby: &Ruby,
        id: u32,
        work: impl FnOnce(&mut Connection, StreamKey) -> Result<T, CoreError> + Send,
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
        this.state.with(|state| state.connection = Some(connection));
        Ok(())
    }

    /// Takes bytes; returns the events of all of them.
    fn receive(ruby: &Ruby, this: Obj<Self>, input: RString) -> Result<RArray, Error> {
        let list = match RArray::from_value(this.undelivered.get().value()) {
            Some(list) => {
                list.push(events::failure(ruby, ErrorCode::INTERNAL_ERROR, NO_MEMORY)?)?;
                this.undelivered.set(Held::NIL);
                list
            }
            None => ruby.ary_new(),
        };
        Self::receive_into(ruby, this, input, list)?;
        Ok(list)
    }

    /// Takes bytes, and pushes their events to `list`.
    fn receive_into(ruby: &Ruby, this: Obj<Self>, input: RString, list: RArray) -> Result<(), Error> {
        let input = strings::frozen(ruby, input);
        // SAFETY: the String is frozen, and kept below.
        let bytes = unsafe { strings::bytes(input.as_raw()) };
        let now = this.now();
        let received = this.state.allocating(ruby, |ruby, state| receive(ruby, state, now, bytes, list));
        strings::keep(input);
        this.memory.set(this.state.with(|state| state.heap_size()));
        let received = received.flatten().inspect_err(|_| {
            // An event is lost, and the input behind it.
            this.undelivered.set(Held::new(Owner::of(this), list.as_raw()));
            this.state.with(|state| {
                state.waiting = Vec::new();
                if let Some(connection) = &mut state.connection {
                    connection.abort(ErrorCode::INTERNAL_ERROR, NO_MEMORY.as_bytes());
                }
            });
        })?;
        received.map_err(|failure| failure.raised(ruby))
    }

    fn eof(ruby: &Ruby, this: Obj<Self>) -> Result<RArray, Error> {
        this.state.with(|state| state.ends_behind = true);
        Self::receive(ruby, this, strings::binary(ruby, b""))
    }

    /// Acts on deadlines that have passed; returns events.
    fn tick(ruby: &Ruby, this: Obj<Self>) -> Result<RArray, Error> {
        // Handle the received bytes before the deadlines: they are in time.
        let list = Self::receive(ruby, this, strings::binary(ruby, b""))?;
        let (now, has_input) = (this.now(), this.has_input());
        let ended = this.with(ruby, |connection| {
            // While output is too long for more input, only that has a deadline.
            Ok(if has_input && connection.wants_read() { Ok(()) } else { connection.handle_timeout(now) })
        })?;
        Self::receive_into(ruby, this, strings::binary(ruby, b""), list)?;
        if let Err(error) = ended {
            list.push(failure(ruby, error)?)?;
        }
        Ok(list)
    }

    /// Whether the program reads from the transport.
    fn set_reading(ruby: &Ruby, this: Obj<Self>, is_reading: bool) -> Result<(), Error> {
        let now = this.now();
        this.with(ruby, |connection| {
            connection.set_reading(now, is_reading);
            Ok(())
        })
    }

    /// Seconds until [`Endpoint::tick`], or nil.
    fn timeout(ruby: &Ruby, this: Obj<Self>) -> Result<Option<f64>, Error> {
        let now = this.now();
        this.with(ruby, |connection| {
            Ok(connection.poll_timeout().map(|at| at.saturating_sub(now).as_secs_f64()))
        })
    }

    /// Bytes that are to be written.
    fn take_output(ruby: &Ruby, this: Obj<Self>) -> Result<RString, Error> {
        let now = this.now();
        let mut out = this.state.with(|state| std::mem::take(&mut state.out));
        if out.is_empty() {
            out = scratch::take();
        }
        let taken = this.with(ruby, |connection| Ok(take_output(connection, now, &mut out)))?;
        let output = strings::of_output(ruby, taken, &out);
        match output {
            Ok(_) => scratch::give(out),
            Err(_) => this.state.with(|state| state.out = out),
        }
        output
    }

    fn request(ruby: &Ruby, this: Obj<Self>, headers: Value, end_stream: bool) -> Result<u32, Error> {
        let fields = Fields::of(ruby, headers)?;
        fields.with(ruby, |fields| {
            this.with(ruby, |connection| {
                Ok(connection.send_request(fields.iter().copied(), end_stream)?.id())
            })
        })
    }

    fn respond(ruby: &Ruby, this: Obj<Self>, id: u32, headers: Value, end_stream: bool) -> Result<(), Error> {
        let fields = Fields::of(ruby, headers)?;
        fields.with(ruby, |fields| {
            this.with_stream(ruby, id, |connection, key| {
                connection.send_response(key, fields.iter().copied(), end_stream)
            })
        })
    }

    fn inform(ruby: &Ruby, this: Obj<Self>, id: u32, headers: Value) -> Result<(), Error> {
        let fields = Fields::of(ruby, headers)?;
        fields.with(ruby, |fields| {
            this.with_stream(ruby, id, |connection, key| {
                connection.send_informational(key, fields.iter().copied())
            })
        })
    }

    fn trailers(ruby: &Ruby, this: Obj<Self>, id: u32, headers: Value) -> Result<(), Error> {
        let fields = Fields::of(ruby, headers)?;
        fields.with(ruby, |fields| {
            this.with_stream(ruby, id, |connection, key| {
                connection.send_trailers(key, fields.iter().copied())
            })
        })
    }

    fn promise(ruby: &Ruby, this: Obj<Self>, id: u32, headers: Value) -> Result<u32, Error> {
        let fields = Fields::of(ruby, headers)?;
        fields.with(ruby, |fields| {
            this.with_stream(ruby, id, |connection, key| {
                Ok(connection.push_promise(key, fields.iter().copied())?.id())
            })
        })
    }

    fn data(ruby: &Ruby, this: Obj<Self>, id: u32, data: RString, end_stream: bool) -> Result<(), Error> {
        let mut copy = Vec::new();
        // SAFETY: copied before any Ruby code runs.
        let copied = try_extend(&mut copy, unsafe { strings::bytes(data.as_raw()) });
        copied.map_err(|_| no_memory(ruby))?;
        this.with_stream(ruby, id, |connection, key| connection.send_data(key, copy, end_stream))
    }

    fn reset(ruby: &Ruby, this: Obj<Self>, id: u32, code: Value) -> Result<(), Error> {
        let code = error_code(ruby, code)?;
        this.with_stream(ruby, id, |connection, key| connection.reset(key, code))
    }

    fn release(ruby: &Ruby, this: Obj<Self>, id: u32, len: usize) -> Result<(), Error> {
        this.with_stream(ruby, id, |connection, key| connection.release_capacity(key, len))
    }

    fn prioritize(
        ruby: &Ruby,
        this: Obj<Self>,
        id: u32,
        urgency: u8,
        incremental: bool,
    ) -> Result<(), Error> {
        if urgency > Priority::URGENCY_MAX {
            return Err(Error::new(ruby.exception_arg_error(), "urgency goes from 0 to 7"));
        }
        let priority = Priority { urgency, incremental };
        this.with_stream(ruby, id, |connection, key| match connection.role() {
            Role::Client => connection.send_priority_update(key, priority),
            Role::Server => connection.set_priority(key, priority),
        })
    }

    fn capacity(ruby: &Ruby, this: Obj<Self>, id: u32) -> Result<usize, Error> {
        this.with_stream(ruby, id, |connection, key| Ok(connection.send_capacity(key)))
    }

    fn ping(ruby: &Ruby, this: Obj<Self>, payload: RString) -> Result<(), Error> {
        // SAFETY: copied before any Ruby code runs.
        let payload = unsafe { strings::bytes(payload.as_raw()) }.try_into();
        let payload =
            payload.map_err(|_| Error::new(ruby.exception_arg_error(), "a ping has eight bytes"))?;
        let now = this.now();
        this.with(ruby, |connection| connection.send_ping(now, payload))
    }

    fn shutdown(ruby: &Ruby, this: Obj<Self>) -> Result<(), Error> {
        this.with(ruby, |connection| {
            connection.shutdown();
            Ok(())
        })
    }

    fn abort(ruby: &Ruby, this: Obj<Self>, code: Value, message: RString) -> Result<(), Error> {
        let code = error_code(ruby, code)?;
        let mut copy = Vec::new();
        // SAFETY: copied before any Ruby code runs.
        let copied = try_extend(&mut copy, unsafe { strings::bytes(message.as_raw()) });
        strings::keep(message);
        copied.map_err(|_| no_memory(ruby))?;
        this.with(ruby, |connection| {
            connection.abort(code, &copy);
            Ok(())
        })
    }

    fn has_output(ruby: &Ruby, this: Obj<Self>) -> Result<bool, Error> {
        let kept = this.state.with(|state| !state.out.is_empty());
        this.with(ruby, |connection| Ok(kept || connection.wants_write()))
    }

    fn has_ended(ruby: &Ruby, this: Obj<Self>) -> Result<bool, Error> {
        this.with(ruby, |connection| Ok(connection.ended().is_some()))
    }

    fn is_going_away(ruby: &Ruby, this: Obj<Self>) -> Result<bool, Error> {
        this.with(ruby, |connection| Ok(connection.is_going_away()))
    }

    /// Whether bytes wait for output to be taken.
    fn has_input(&self) -> bool {
        self.state.with(|state| !state.waiting.is_empty())
    }

    fn streams(ruby: &Ruby, this: Obj<Self>) -> Result<usize, Error> {
        this.with(ruby, |connection| Ok(connection.streams()))
    }

    fn open_capacity(ruby: &Ruby, this: Obj<Self>) -> Result<usize, Error> {
        this.with(ruby, |connection| Ok(connection.open_capacity()))
    }

    fn peer_settings(ruby: &Ruby, this: Obj<Self>) -> Result<RHash, Error> {
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

/// Appends all output to `out`, or as much as there is memory for.
fn take_output(connection: &mut Connection, now: Duration, out: &mut Vec<u8>) -> Result<(), TryReserveError> {
    loop {
        let mut slices = [&[][..]; 64];
        let filled = connection.poll_transmit(now, &mut slices);
        let (len, copied) = try_extend_all(out, &slices[..filled]);
        if len == 0 {
            return copied;
        }
        connection.transmitted(now, len);
        copied?;
    }
}

/// Feeds the connection with what waited and with `bytes`; pushes events to `list`. Runs no Ruby code.
fn receive(
    ruby: &Ruby,
    state: &mut EndpointState,
    now: Duration,
    bytes: &[u8],
    list: RArray,
) -> Result<Result<(), Failure>, Error> {
    let EndpointState { connection, waiting, ends_behind, .. } = state;
    let Some(connection) = connection else { return Ok(Err(Failure::NotInitialized)) };
    if waiting.is_empty() {
        let taken = drain(ruby, connection, now, bytes, list)?;
        try_extend(waiting, &bytes[taken..]).map_err(|_| no_memory(ruby))?;
    } else {
        try_extend(waiting, bytes).map_err(|_| no_memory(ruby))?;
        let taken = drain(ruby, connection, now, waiting, list)?;
        waiting.drain(..taken);
    }
    if *ends_behind && waiting.is_empty() {
        *ends_behind = false;
        connection.handle_eof();
        drain(ruby, connection, now, b"", list)?;
    }
    Ok(Ok(()))
}

/// Feeds the connection until it takes no more or has decoded enough, and pushes the events to `list`; returns how many bytes it took.
fn drain(
    ruby: &Ruby,
    connection: &mut Connection,
    now: Duration,
    bytes: &[u8],
    list: RArray,
) -> Result<usize, Error> {
    let had_failed = matches!(connection.ended(), Some(Ended::Failed(_)));
    let (mut at, mut decoded) = (0, 0);
    loop {
        // Events that wait for no input come in any case.
        if at < bytes.len() && decoded > at + DECODED_LEN_MAX {
            return Ok(at);
        }
        match connection.handle_input(now, &bytes[at..]) {
            Ok((taken, event)) => {
                at += taken;
                let Some(event) = event else { return Ok(at) };
                decoded += events::fields_len(&event, connection);
                if let Some(object) = events::object(ruby, event, connection)? {
                    list.push(object)?;
                }
            }
            Err(error) => {
                if !had_failed {
                    list.push(failure(ruby, error)?)?;
                }
                return Ok(bytes.len());
            }
        }
    }
}

/// The connection's end, by the peer's fault.
fn failure(ruby: &Ruby, error: CoreError) -> Result<Value, Error> {
    events::failure(ruby, error.code().unwrap_or(ErrorCode::INTERNAL_ERROR), error.reason())
}

/// Fields of Ruby Strings: names in lower case.
struct Fields {
    /// Frozen Strings, names and values by turns, in an Array of its own: what the program does meanwhile changes nothing.
    list: RArray,
    /// Names that had to be lower-cased, by position.
    lowered: Vec<(usize, Vec<u8>)>,
}

impl Fields {
    fn of(ruby: &Ruby, headers: Value) -> Result<Self, Error> {
        let given = pairs(ruby, headers)?;
        let list = ruby.ary_new_capa(given.len() * 2);
        for at in 0..given.len() {
            let pair: RArray = given.entry(at as isize)?;
            let (name, value): (RString, RString) = (pair.entry(0)?, pair.entry(1)?);
            list.push(strings::frozen(ruby, name))?;
            list.push(strings::frozen(ruby, value))?;
        }
        // All methods of the program have run: no memory is held meanwhile.
        let mut lowered = Vec::new();
        for at in 0..list.len() / 2 {
            let name: RString = list.entry(2 * at as isize)?;
            // SAFETY: a frozen String, which the Array holds.
            let bytes = unsafe { strings::bytes(name.as_raw()) };
            if bytes.iter().any(u8::is_ascii_uppercase) {
                let mut name = Vec::new();
                try_extend(&mut name, bytes).map_err(|_| no_memory(ruby))?;
                name.make_ascii_lowercase();
                lowered.push((at, name));
            }
        }
        Ok(Self { list, lowered })
    }

    /// Runs `work` with the fields, which are `Send` because they are plain bytes.
    ///
    /// # Errors
    /// A field has characters that a peer would refuse, or take for a second field (RFC 9113 §8.2.1); or those of `work`.
    fn with<T>(&self, ruby: &Ruby, work: impl FnOnce(&[Field<'_>]) -> Result<T, Error>) -> Result<T, Error> {
        let mut lowered = self.lowered.iter().peekable();
        // SAFETY: the Array is this object's own, on the stack, and nothing adds to it; its Strings are frozen.
        let strings = unsafe { self.list.as_slice() };
        let fields: Vec<Field<'_>> = strings
            .chunks_exact(2)
            .enumerate()
            .map(|(at, pair)| {
                // SAFETY: likewise.
                let (name, value) =
                    unsafe { (strings::bytes(pair[0].as_raw()), strings::bytes(pair[1].as_raw())) };
                match lowered.next_if(|(of, _)| *of == at) {
                    Some((_, name)) => Field::new(name, value),
                    None => Field::new(name, value),
                }
            })
            .collect();
        let done = match fields.iter().try_for_each(Field::check) {
            Ok(()) => work(&fields),
            Err(error) => Err(Failure::Field(error).raised(ruby)),
        };
        std::hint::black_box(self.list);
        done
    }
}

/// `:cancel`, or a number.
fn error_code(ruby: &Ruby, given: Value) -> Result<ErrorCode, Error> {
    let Some(symbol) = Symbol::from_value(given) else { return u32::try_convert(given).map(ErrorCode::from) };
    let given = symbol.name()?;
    let name = given.to_ascii_uppercase();
    (0..=13)
        .map(ErrorCode::from)
        .find(|code| code.name() == Some(&name))
        .ok_or_else(|| Error::new(ruby.exception_arg_error(), format!("no such error code: {given}")))
}

/// The core's configuration from keyword arguments.
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
    ERROR.set(ruby, http2.define_error("Error", wireloom.const_get::<_, ExceptionClass>("Error")?)?);
    let class = http2.define_class("Connection", ruby.class_object())?;
    Endpoint::load(ruby, class);
    class.define_alloc_func::<Endpoint>();
    class.define_private_method("set_up", method!(Endpoint::set_up, 2))?;
    class.define_private_method("send_request", method!(mut Endpoint::request, 2))?;
    class.define_private_method("send_response", method!(mut Endpoint::respond, 3))?;
    class.define_private_method("send_informational", method!(mut Endpoint::inform, 2))?;
    class.define_private_method("send_promise", method!(mut Endpoint::promise, 2))?;
    class.define_private_method("send_data", method!(mut Endpoint::data, 3))?;
    class.define_private_method("send_reset", method!(mut Endpoint::reset, 2))?;
    class.define_private_method("set_priority", method!(mut Endpoint::prioritize, 3))?;
    class.define_private_method("end_now", method!(mut Endpoint::abort, 2))?;
    class.define_method("receive", method!(mut Endpoint::receive, 1))?;
    class.define_method("eof", method!(mut Endpoint::eof, 0))?;
    class.define_method("tick", method!(mut Endpoint::tick, 0))?;
    class.define_method("reading=", method!(mut Endpoint::set_reading, 1))?;
    class.define_method("timeout", method!(Endpoint::timeout, 0))?;
    class.define_method("take_output", method!(mut Endpoint::take_output, 0))?;
    class.define_method("trailers", method!(mut Endpoint::trailers, 2))?;
    class.define_method("release", method!(mut Endpoint::release, 2))?;
    class.define_method("capacity", method!(Endpoint::capacity, 1))?;
    class.define_method("ping", method!(mut Endpoint::ping, 1))?;
    class.define_method("shutdown", method!(mut Endpoint::shutdown, 0))?;
    class.define_method("output?", method!(Endpoint::has_output, 0))?;
    class.define_method("input?", method!(Endpoint::has_input, 0))?;
    class.define_method("closed?", method!(Endpoint::has_ended, 0))?;
    class.define_method("going_away?", method!(Endpoint::is_going_away, 0))?;
    class.define_method("streams", method!(Endpoint::streams, 0))?;
    class.define_method("open_capacity", method!(Endpoint::open_capacity, 0))?;
    class.define_method("peer_settings", method!(Endpoint::peer_settings, 0))
}
