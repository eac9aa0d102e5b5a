//! One end of a WebSocket, from its handshake on.
//!
//! ```text
//! Unset -> Asking (client) ----------+--> Open
//!      \-> Asked (server) -> Judging +
//!                 any of them -> Over: refused, failed or given up
//! ```

use super::options;
use crate::panic::guard;
use crate::{scratch, strings};
use magnus::prelude::*;
use magnus::rb_sys::{AsRawValue, FromRawValue, protect};
use magnus::typed_data::Obj;
use magnus::{
    DataTypeFunctions, Error, IntoValue, RArray, RClass, RHash, RModule, RString, Ruby, TypedData, Value,
    method,
};
use std::cell::RefCell;
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use wireloom_ws::deflate::{DeflateConfig, DeflateParams};
use wireloom_ws::handshake::client::{ClientHandshake, ClientOptions};
use wireloom_ws::handshake::uri::Uri;
use wireloom_ws::handshake::{
    Acceptance, HandshakeError, HandshakeLimits, Negotiated, Request, Response, ServerHandshake, Version,
    client, server,
};
use wireloom_ws::{CloseCode, Config, Event, Transport};

/// Bytes that a client may send behind its request before it is answered: it has no business to.
const EARLY_LEN_MAX: usize = 64 << 10;

#[derive(TypedData, Default)]
#[magnus(class = "Wireloom::WebSocket::Connection", free_immediately, size)]
pub(crate) struct Connection(RefCell<Inner>);

#[derive(Default)]
struct Inner {
    state: State,
    config: Config,
    deflate: Option<DeflateConfig>,
    subprotocol: Option<String>,
    compressed: bool,
    /// What the handshake has to write.
    out: Vec<u8>,
}

#[derive(Default)]
enum State {
    #[default]
    Unset,
    Asking(Box<ClientHandshake>),
    Asked(Box<ServerHandshake>),
    /// A request waits to be judged; the bytes came behind it.
    Judging(Box<Request>, Vec<u8>),
    Open(Box<wireloom_ws::Connection>),
    Over,
}

impl DataTypeFunctions for Connection {
    fn size(&self) -> usize {
        let held = self.0.try_borrow().map_or(0, |inner| {
            inner.out.capacity()
                + match &inner.state {
                    State::Open(connection) => size_of_val(&**connection) + connection.queued_len(),
                    State::Judging(_, early) => early.capacity(),
                    _ => 0,
                }
        });
        size_of::<Self>() + held
    }
}

/// The time that deadlines are measured in.
fn now() -> Duration {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed()
}

fn random<const N: usize>(ruby: &Ruby) -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    getrandom::getrandom(&mut bytes)
        .map_err(|error| Error::new(ruby.exception_runtime_error(), format!("no randomness: {error}")))?;
    Ok(bytes)
}

fn class(ruby: &Ruby, name: &str) -> Result<RClass, Error> {
    ruby.class_object()
        .const_get::<_, RModule>("Wireloom")?
        .const_get::<_, RModule>("WebSocket")?
        .const_get(name)
}

/// `Wireloom::WebSocket::Error`: this end asked for what cannot be done.
fn misuse(ruby: &Ruby, said: impl std::fmt::Display) -> Error {
    match class(ruby, "Error") {
        Ok(class) => match magnus::ExceptionClass::from_value(class.as_value()) {
            Some(class) => Error::new(class, said.to_string()),
            None => Error::new(ruby.exception_runtime_error(), said.to_string()),
        },
        Err(error) => error,
    }
}

/// An event: an object of the Struct `Wireloom::WebSocket::name`. No code of Ruby runs for it, so that nothing can come between
/// an event and the input behind it.
fn event(ruby: &Ruby, name: &str, members: &[Value]) -> Result<Value, Error> {
    let class = class(ruby, name)?.as_raw();
    protect(|| {
        // SAFETY: the class is a Struct with so many members; the closure owns nothing that a raise would leak.
        unsafe {
            let event = rb_sys::rb_struct_alloc_noinit(class);
            for (at, member) in members.iter().enumerate() {
                rb_sys::rb_struct_aset(event, rb_sys::LONG2FIX(at as _), member.as_raw());
            }
            event
        }
    })
    // SAFETY: it is an object of Ruby's.
    .map(|event| unsafe { Value::from_raw(event) })
}

fn text(value: &str) -> RString {
    strings::utf8(value, value.is_ascii())
}

impl Connection {
    fn ask(ruby: &Ruby, rb_self: Obj<Self>, url: String, options: RHash) -> Result<(), Error> {
        guard(ruby, || {
            let uri = Uri::parse(&url).map_err(|error| misuse(ruby, format_args!("{url}: {error}")))?;
            let mut request = ClientOptions::new(uri.authority(), uri.resource());
            for name in options::option::<Vec<String>>(options, ruby, "subprotocols")?.unwrap_or_default() {
                request = request.subprotocol(name);
            }
            if let Some(origin) = options::option::<String>(options, ruby, "origin")? {
                request = request.origin(origin);
            }
            for (name, value) in options::pairs(options::option(options, ruby, "headers")?)? {
                request = request.header(name, value);
            }
            let deflate = options::deflate(ruby, options)?;
            if let Some(deflate) = &deflate {
                request = request.deflate(deflate.clone());
            }
            let handshake = ClientHandshake::new(request, random(ruby)?, HandshakeLimits::default())
                .map_err(|error| misuse(ruby, error))?;
            let config = options::config(ruby, options)?;
            *rb_self.0.borrow_mut() = Inner {
                out: handshake.request().to_vec(),
                state: State::Asking(Box::new(handshake)),
                config,
                deflate,
                ..Inner::default()
            };
            Ok(())
        })
    }

    fn listen(ruby: &Ruby, rb_self: Obj<Self>, options: RHash) -> Result<(), Error> {
        guard(ruby, || {
            *rb_self.0.borrow_mut() = Inner {
                state: State::Asked(Box::new(ServerHandshake::new(HandshakeLimits::default()))),
                config: options::config(ruby, options)?,
                deflate: options::deflate(ruby, options)?,
                ..Inner::default()
            };
            Ok(())
        })
    }

    /// A request that another HTTP parser has read. Returns the event, which is a refusal when it is no handshake.
    fn listen_to(
        ruby: &Ruby,
        rb_self: Obj<Self>,
        verb: String,
        target: String,
        headers: Value,
        options: RHash,
    ) -> Result<Value, Error> {
        guard(ruby, || {
            Self::listen(ruby, rb_self, options)?;
            let headers = options::pairs(Some(headers))?;
            let fields = headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
            let inner = &mut *rb_self.0.borrow_mut();
            match Request::from_parts(&verb, &target, Version::Http11, fields) {
                Ok(request) => inner.judge(ruby, request, Vec::new()),
                Err(error) => inner.refuse(ruby, error),
            }
        })
    }

    fn receive(ruby: &Ruby, rb_self: Obj<Self>, chunk: RString) -> Result<RArray, Error> {
        guard(ruby, || {
            let mut input = scratch::take();
            // SAFETY: no code of Ruby runs while the slice is borrowed.
            input.extend_from_slice(unsafe { chunk.as_slice() });
            let events = ruby.ary_new();
            let done = rb_self.0.borrow_mut().receive(ruby, &mut input, events);
            scratch::give(input);
            done.map(|()| events)
        })
    }

    /// The request is granted: `accept(subprotocol, headers)`. Returns the events of what came behind it.
    fn accept(
        ruby: &Ruby,
        rb_self: Obj<Self>,
        subprotocol: Option<String>,
        headers: Option<Value>,
    ) -> Result<RArray, Error> {
        guard(ruby, || {
            let headers = options::pairs(headers)?;
            let headers: Vec<(&str, &str)> =
                headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            let inner = &mut *rb_self.0.borrow_mut();
            let State::Judging(request, early) = &mut inner.state else {
                return Err(misuse(ruby, "no request waits for an answer"));
            };
            let acceptance = Acceptance {
                subprotocol: subprotocol.as_deref(),
                deflate: inner.deflate.as_ref(),
                headers: &headers,
            };
            let (response, negotiated) =
                request.accept(&acceptance).map_err(|error| misuse(ruby, HandshakeError::from(error)))?;
            response.write_to(&mut inner.out);
            let mut early = std::mem::take(early);
            let events = ruby.ary_new();
            events.push(inner.open(ruby, negotiated, None)?)?;
            inner.receive(ruby, &mut early, events)?;
            Ok(events)
        })
    }

    /// The request is refused: `reject(status, headers, body)`. The transport is to be closed behind the answer.
    fn reject(
        ruby: &Ruby,
        rb_self: Obj<Self>,
        status: u16,
        headers: Option<Value>,
        body: Option<String>,
    ) -> Result<(), Error> {
        guard(ruby, || {
            // What Ruby converts runs its code, so before anything is borrowed.
            let headers = options::pairs(headers)?;
            let inner = &mut *rb_self.0.borrow_mut();
            if !matches!(inner.state, State::Judging(..)) {
                return Err(misuse(ruby, "no request waits for an answer"));
            }
            let says = |error| misuse(ruby, HandshakeError::from(error));
            let mut response = Response::refusal(status).map_err(says)?;
            for (name, value) in &headers {
                response = response.with_header(name, value).map_err(says)?;
            }
            if let Some(body) = body {
                response = response.with_body("text/plain; charset=utf-8", body).map_err(says)?;
            }
            response.write_to(&mut inner.out);
            inner.state = State::Over;
            Ok(())
        })
    }

    fn take_output(ruby: &Ruby, rb_self: Obj<Self>) -> Result<RString, Error> {
        guard(ruby, || {
            let inner = &mut *rb_self.0.borrow_mut();
            let State::Open(connection) = &mut inner.state else {
                return Ok(strings::binary(&std::mem::take(&mut inner.out)));
            };
            let output = strings::with_capacity(inner.out.len() + connection.queued_len());
            strings::append(output, &std::mem::take(&mut inner.out), |_| 0);
            loop {
                let mut slices: [&[u8]; 16] = [&[]; 16];
                let count = connection.poll_transmit(&mut slices);
                if count == 0 {
                    return Ok(output);
                }
                let mut written = 0;
                for slice in &slices[..count] {
                    strings::append(output, slice, |have| have);
                    written += slice.len();
                }
                connection.transmitted(written);
            }
        })
    }

    fn has_output(&self) -> bool {
        let inner = self.0.borrow();
        !inner.out.is_empty() || matches!(&inner.state, State::Open(connection) if connection.wants_write())
    }

    /// Runs a command of an open connection.
    fn command(
        &self,
        ruby: &Ruby,
        run: impl FnOnce(&mut wireloom_ws::Connection) -> Result<(), wireloom_ws::Error>,
    ) -> Result<(), Error> {
        guard(ruby, || match &mut self.0.borrow_mut().state {
            State::Open(connection) => run(connection).map_err(|error| misuse(ruby, error)),
            _ => Err(misuse(ruby, "the connection is not open")),
        })
    }

    fn send_text(ruby: &Ruby, rb_self: Obj<Self>, data: RString) -> Result<(), Error> {
        // SAFETY: no code of Ruby runs while the slice is borrowed.
        let bytes = unsafe { data.as_slice() };
        match wireloom_ws::utf8::text(bytes) {
            Ok(text) => rb_self.command(ruby, |connection| connection.send_text(text)),
            Err(_) => Err(misuse(ruby, "text is not UTF-8")),
        }
    }

    fn send_binary(ruby: &Ruby, rb_self: Obj<Self>, data: RString) -> Result<(), Error> {
        // SAFETY: no code of Ruby runs while the slice is borrowed.
        let bytes = unsafe { data.as_slice() };
        rb_self.command(ruby, |connection| connection.send_binary(bytes))
    }

    fn ping(ruby: &Ruby, rb_self: Obj<Self>, data: RString) -> Result<(), Error> {
        // SAFETY: no code of Ruby runs while the slice is borrowed.
        let bytes = unsafe { data.as_slice() };
        rb_self.command(ruby, |connection| connection.send_ping(now(), bytes))
    }

    fn close(ruby: &Ruby, rb_self: Obj<Self>, code: Option<u16>, reason: String) -> Result<(), Error> {
        if !matches!(rb_self.0.borrow().state, State::Open(_)) {
            // Whoever closes before the handshake is over gives it up.
            rb_self.0.borrow_mut().state = State::Over;
            return Ok(());
        }
        rb_self.command(ruby, |connection| connection.close(now(), code.map(CloseCode::new), &reason))
    }

    fn eof(&self) {
        let mut inner = self.0.borrow_mut();
        match &mut inner.state {
            State::Open(connection) => connection.handle_eof(),
            state => *state = State::Over,
        }
    }

    /// Seconds until `tick` has something to do, or nil.
    fn timeout(&self) -> Option<f64> {
        match &self.0.borrow().state {
            State::Open(connection) => {
                connection.poll_timeout().map(|at| at.saturating_sub(now()).as_secs_f64())
            }
            _ => None,
        }
    }

    fn tick(&self) {
        if let State::Open(connection) = &mut self.0.borrow_mut().state {
            connection.handle_timeout(now());
        }
    }

    fn state(&self) -> &'static str {
        match &self.0.borrow().state {
            State::Unset | State::Asking(_) | State::Asked(_) | State::Judging(..) => "connecting",
            State::Open(connection) if connection.is_open() => "open",
            State::Open(connection) if connection.transport() == Transport::Close => "closed",
            State::Open(_) => "closing",
            State::Over => "closed",
        }
    }

    /// What to do with the transport once all output is written: `open`, `shut_down_write` or `close`.
    fn transport(&self) -> &'static str {
        match &self.0.borrow().state {
            State::Open(connection) => match connection.transport() {
                Transport::Open => "open",
                Transport::ShutdownWrite => "shut_down_write",
                Transport::Close => "close",
            },
            State::Over => "close",
            _ => "open",
        }
    }

    fn is_congested(&self) -> bool {
        matches!(&self.0.borrow().state, State::Open(connection) if connection.is_congested())
    }

    fn is_clean(&self) -> bool {
        matches!(&self.0.borrow().state, State::Open(connection) if connection.was_clean())
    }

    fn is_compressed(&self) -> bool {
        self.0.borrow().compressed
    }

    fn subprotocol(&self) -> Option<RString> {
        self.0.borrow().subprotocol.as_deref().map(text)
    }

    /// The code that the connection ended with (RFC 6455 §7.1.5), or nil while it has not.
    fn close_code(&self) -> Option<u16> {
        match &self.0.borrow().state {
            State::Open(connection) => connection.end().map(|end| end.code().value()),
            _ => None,
        }
    }
}

impl Inner {
    /// Takes all of `input` and appends what it brought to `events`.
    fn receive(&mut self, ruby: &Ruby, input: &mut [u8], events: RArray) -> Result<(), Error> {
        let mut at = 0;
        while at < input.len() {
            match &mut self.state {
                State::Unset => return Err(misuse(ruby, "the connection was not initialized: call super")),
                State::Asking(handshake) => match handshake.handle_input(&input[at..]) {
                    Ok(client::Progress::Incomplete) => return Ok(()),
                    Ok(client::Progress::Done { negotiated, consumed }) => {
                        at += consumed;
                        let opened = self.open(ruby, negotiated, Some(random(ruby)?))?;
                        events.push(opened)?;
                    }
                    Ok(client::Progress::Refused { response, .. }) => {
                        self.state = State::Over;
                        let headers = headers(ruby, response.headers())?;
                        let status = response.status().into_value_with(ruby);
                        return events.push(event(ruby, "Refused", &[status, headers.as_value()])?);
                    }
                    Err(error) => return events.push(self.refuse(ruby, error)?),
                },
                State::Asked(handshake) => match handshake.handle_input(&input[at..]) {
                    Ok(server::Progress::Incomplete) => return Ok(()),
                    Ok(server::Progress::Complete { consumed }) => {
                        let Some(request) = handshake.request().cloned() else { return Ok(()) };
                        let request = self.judge(ruby, request, input[at + consumed..].to_vec())?;
                        return events.push(request);
                    }
                    Err(error) => {
                        error.refusal().write_to(&mut self.out);
                        return events.push(self.refuse(ruby, error)?);
                    }
                },
                State::Judging(_, early) => {
                    if early.len() + (input.len() - at) > EARLY_LEN_MAX {
                        self.state = State::Over;
                        let said = text("the client sends before it is answered");
                        let code = CloseCode::POLICY_VIOLATION.value().into_value_with(ruby);
                        return events.push(event(ruby, "Failure", &[code, said.as_value()])?);
                    }
                    early.extend_from_slice(&input[at..]);
                    return Ok(());
                }
                State::Open(connection) => return receive_open(ruby, connection, &mut input[at..], events),
                State::Over => return Ok(()),
            }
        }
        Ok(())
    }

    fn open(&mut self, ruby: &Ruby, negotiated: Negotiated, seed: Option<[u8; 32]>) -> Result<Value, Error> {
        let Negotiated { subprotocol, deflate } = negotiated;
        self.compressed = deflate.is_some();
        let config = std::mem::take(&mut self.config);
        let deflate: Option<(DeflateParams, &DeflateConfig)> = deflate.zip(self.deflate.as_ref());
        self.state = State::Open(Box::new(match seed {
            Some(seed) => wireloom_ws::Connection::client(config, deflate, seed, now()),
            None => wireloom_ws::Connection::server(config, deflate, now()),
        }));
        let name = subprotocol.as_deref().map(text).into_value_with(ruby);
        self.subprotocol = subprotocol;
        event(ruby, "Open", &[name, self.compressed.into_value_with(ruby)])
    }

    /// A request is complete: it waits for `accept` or `reject`.
    fn judge(&mut self, ruby: &Ruby, request: Request, early: Vec<u8>) -> Result<Value, Error> {
        let offered = ruby.ary_new();
        for name in request.subprotocols() {
            offered.push(text(name))?;
        }
        let members = [
            text(request.path()).as_value(),
            request.query().map(text).into_value_with(ruby),
            text(request.host()).as_value(),
            request.origin().map(text).into_value_with(ruby),
            offered.as_value(),
            headers(ruby, request.headers())?.as_value(),
        ];
        self.state = State::Judging(Box::new(request), early);
        event(ruby, "Request", &members)
    }

    /// The handshake has failed.
    fn refuse(&mut self, ruby: &Ruby, error: HandshakeError) -> Result<Value, Error> {
        self.state = State::Over;
        event(
            ruby,
            "Failure",
            &[CloseCode::ABNORMAL.value().into_value_with(ruby), text(error.reason()).as_value()],
        )
    }
}

/// Header fields by their names in lower case; those of one name are joined by commas (RFC 9110 §5.3).
fn headers<'a>(ruby: &Ruby, fields: impl Iterator<Item = (&'a str, &'a [u8])>) -> Result<RHash, Error> {
    let hash = ruby.hash_new();
    for (name, value) in fields {
        let name = text(&name.to_ascii_lowercase());
        let value = strings::utf8_unchecked(value);
        if let Some(before) = hash.lookup::<_, Option<RString>>(name)? {
            before.cat(", ");
            before.buf_append(value)?;
        } else {
            hash.aset(name, value)?;
        }
    }
    Ok(hash)
}

/// The hot loop: every event of a chunk.
fn receive_open(
    ruby: &Ruby,
    connection: &mut wireloom_ws::Connection,
    input: &mut [u8],
    events: RArray,
) -> Result<(), Error> {
    let now = now();
    let mut at = 0;
    while at < input.len() {
        let found = match connection.handle_input(now, &mut input[at..]) {
            Ok((used, found)) => {
                at += used;
                found
            }
            Err(error) => {
                let code = error.close_code().map(CloseCode::value).into_value_with(ruby);
                return events.push(event(ruby, "Failure", &[code, text(&error.to_string()).as_value()])?);
            }
        };
        let Some(found) = found else { return Ok(()) };
        match found {
            Event::Text(message) => events.push(text(&message))?,
            Event::Binary(message) => events.push(strings::binary(&message))?,
            Event::Ping(data) => {
                events.push(event(ruby, "Ping", &[strings::binary(data).as_value()])?)?;
            }
            Event::Pong(pong) => {
                let data = strings::binary(pong.payload).as_value();
                let trip = pong.round_trip.map(|trip| trip.as_secs_f64()).into_value_with(ruby);
                events.push(event(ruby, "Pong", &[data, trip])?)?;
            }
            Event::Close(close) => {
                let code = close.code.map(CloseCode::value).into_value_with(ruby);
                events.push(event(ruby, "Close", &[code, text(close.reason).as_value()])?)?;
            }
            _ => {}
        }
    }
    Ok(())
}

pub(crate) fn init(ruby: &Ruby, wireloom: RModule) -> Result<(), Error> {
    let module = wireloom.define_module("WebSocket")?;
    let class = module.define_class("Connection", ruby.class_object())?;
    class.define_alloc_func::<Connection>();
    class.define_private_method("ask", method!(Connection::ask, 2))?;
    class.define_private_method("listen", method!(Connection::listen, 1))?;
    class.define_private_method("listen_to", method!(Connection::listen_to, 4))?;
    class.define_private_method("grant", method!(Connection::accept, 2))?;
    class.define_private_method("refuse", method!(Connection::reject, 3))?;
    class.define_private_method("send_close", method!(Connection::close, 2))?;
    class.define_private_method("send_text", method!(Connection::send_text, 1))?;
    class.define_private_method("send_ping", method!(Connection::ping, 1))?;
    class.define_private_method("state_name", method!(Connection::state, 0))?;
    class.define_private_method("transport_name", method!(Connection::transport, 0))?;
    class.define_method("receive", method!(Connection::receive, 1))?;
    class.define_method("take_output", method!(Connection::take_output, 0))?;
    class.define_method("output?", method!(Connection::has_output, 0))?;
    class.define_method("binary", method!(Connection::send_binary, 1))?;
    class.define_method("eof", method!(Connection::eof, 0))?;
    class.define_method("timeout", method!(Connection::timeout, 0))?;
    class.define_method("tick", method!(Connection::tick, 0))?;
    class.define_method("congested?", method!(Connection::is_congested, 0))?;
    class.define_method("clean?", method!(Connection::is_clean, 0))?;
    class.define_method("compressed?", method!(Connection::is_compressed, 0))?;
    class.define_method("subprotocol", method!(Connection::subprotocol, 0))?;
    class.define_method("close_code", method!(Connection::close_code, 0))?;
    Ok(())
}
