//! One end of a WebSocket, from its handshake on.
//!
//! ```text
//! New -> Requesting (client) -------------------+--> Open
//!     \-> AwaitingRequest (server) -> Deciding -+
//!                              any of them -> Closed: refused, failed or given up
//! ```

use std::collections::TryReserveError;

use super::event::Event;
use super::options;
use crate::clock::now;
use crate::exclusive::{DETACHED_DEFLATE_LEN, DETACHED_UNMASK_LEN, Detachable, check_interrupts};
use crate::guard::method;
use crate::held::{Immortal, managed, plain};
use crate::memory::{Accounted, no_memory, try_extend, try_extend_all};
use crate::{keys, scratch, strings};
use magnus::prelude::*;
use magnus::typed_data::Obj;
use magnus::{Error, ExceptionClass, RArray, RHash, RModule, RString, Ruby, Value};
use wireloom_ws::deflate::{DeflateConfig, DeflateParams};
use wireloom_ws::handshake::client::{ClientHandshake, ClientOptions};
use wireloom_ws::handshake::uri::Uri;
use wireloom_ws::handshake::{
    Acceptance, HandshakeError, HandshakeLimits, Negotiated, Request, Response, ServerHandshake, Version,
    client, server,
};
use wireloom_ws::{CloseCode, Config, Transport};

/// Bytes that a client may send behind its request before it is answered. It has no reason to.
const EARLY_LEN_MAX: usize = 64 << 10;

/// A call ends behind the event by which its payloads exceed its input by this many bytes, as only compressed ones do: a byte may become a
/// thousand.
const INFLATED_LEN_MAX: usize = 1 << 20;

static ERROR: Immortal<ExceptionClass> = Immortal::new();

#[derive(Default)]
pub(crate) struct Connection {
    inner: Detachable<Inner>,
    memory: Accounted,
}

plain!(Inner, Accounted);

managed!(
    Connection as "Wireloom::WebSocket::Connection" { inner, memory },
    size = |connection| connection.inner.try_with(|inner| inner.heap_size()).unwrap_or(0)
);

#[derive(Default)]
struct Inner {
    state: State,
    config: Config,
    deflate: Option<DeflateConfig>,
    subprotocol: Option<String>,
    compressed: bool,
    /// Output of the handshake, and output for which there was no memory for a String.
    out: Vec<u8>,
    /// Events for which there was no memory for objects: those of the next call.
    undelivered: Vec<Event>,
    /// Input behind the events of a call that had inflated enough.
    waiting: Vec<u8>,
    /// The peer has ended its stream behind `waiting`.
    ends_behind: bool,
    /// [`keys::forks`] when the masking keys of the connection were seeded.
    forks: usize,
}

#[derive(Default)]
enum State {
    #[default]
    New,
    Requesting(Box<ClientHandshake>),
    AwaitingRequest(Box<ServerHandshake>),
    /// A request waits for `accept` or `reject`; the bytes came behind it.
    Deciding(Box<Request>, Vec<u8>),
    Open(Box<wireloom_ws::Connection>),
    Closed,
}

/// Why a call failed, before an exception is made of it.
pub(super) enum Failure {
    /// This end asked for something impossible.
    Misuse(String),
    NoRandomness(keys::NoRandomness),
}

impl Failure {
    fn misuse(message: impl std::fmt::Display) -> Self {
        Self::Misuse(message.to_string())
    }

    #[cold]
    fn raised(self, ruby: &Ruby) -> Error {
        match self {
            Self::Misuse(message) => Error::new(ERROR.get(ruby), message),
            Self::NoRandomness(error) => error.raised(ruby),
        }
    }
}

impl From<keys::NoRandomness> for Failure {
    fn from(error: keys::NoRandomness) -> Self {
        Self::NoRandomness(error)
    }
}

fn misuse(ruby: &Ruby, message: impl std::fmt::Display) -> Error {
    Failure::misuse(message).raised(ruby)
}

/// Text that goes out.
fn text(ruby: &Ruby, string: RString) -> Result<String, Error> {
    options::text(ruby, string, |ruby, error| misuse(ruby, error))
}

/// Header fields that go out.
fn texts(ruby: &Ruby, headers: Option<Value>) -> Result<Vec<(String, String)>, Error> {
    options::pairs(headers, |string| text(ruby, string))
}

impl Connection {
    /// `ask(url, options)`: begins as a client.
    fn ask(ruby: &Ruby, this: Obj<Self>, url: RString, options: RHash) -> Result<(), Error> {
        // Methods of the program run before memory is allocated: one may never return, in a Fiber that is abandoned, or twice, by a
        // continuation.
        let names = ruby.ary_new();
        if let Some(given) = options::option::<RArray>(options, ruby, "subprotocols")? {
            for at in 0..given.len() {
                names.push(given.entry::<RString>(at as isize)?)?;
            }
        }
        let origin = options::option(options, ruby, "origin")?;
        let (config, deflate) = (options::config(ruby, options)?, options::deflate(ruby, options)?);
        let headers = texts(ruby, options::option(options, ruby, "headers")?)?;
        let url = text(ruby, url)?;
        let uri = Uri::parse(&url).map_err(|error| misuse(ruby, format_args!("{url}: {error}")))?;
        let mut request = ClientOptions::new(uri.authority(), uri.resource());
        for at in 0..names.len() {
            request = request.subprotocol(text(ruby, names.entry(at as isize)?)?);
        }
        if let Some(origin) = origin {
            request = request.origin(text(ruby, origin)?);
        }
        for (name, value) in headers {
            request = request.header(name, value);
        }
        if let Some(deflate) = &deflate {
            request = request.deflate(deflate.clone());
        }
        let key = keys::random().map_err(|error| error.raised(ruby))?;
        let handshake = ClientHandshake::new(request, key, HandshakeLimits::default())
            .map_err(|error| misuse(ruby, error))?;
        let inner = Inner {
            out: handshake.request().to_vec(),
            state: State::Requesting(Box::new(handshake)),
            config,
            deflate,
            ..Inner::default()
        };
        this.inner.ready_again().with(|place| *place = inner);
        Ok(())
    }

    /// `listen(options)`: begins as a server.
    fn listen(ruby: &Ruby, this: Obj<Self>, options: RHash) -> Result<(), Error> {
        let (config, deflate) = (options::config(ruby, options)?, options::deflate(ruby, options)?);
        let handshake = ServerHandshake::new(HandshakeLimits::default());
        let state = State::AwaitingRequest(Box::new(handshake));
        let inner = Inner { state, config, deflate, ..Inner::default() };
        this.inner.ready_again().with(|place| *place = inner);
        Ok(())
    }

    /// A request that another HTTP parser has read. Returns the event, which is a Failure when it is no handshake.
    fn listen_to(
        ruby: &Ruby,
        this: Obj<Self>,
        verb: RString,
        target: RString,
        headers: Value,
        options: RHash,
    ) -> Result<Value, Error> {
        Self::listen(ruby, this, options)?;
        let headers = options::pairs(Some(headers), |string| Ok(options::bytes(string)))?;
        let [verb, target] = [verb, target].map(options::bytes);
        // A target that is not UTF-8 is invalid either way.
        let [verb, target] = [&verb, &target].map(|part| String::from_utf8_lossy(part));
        let event = this.inner.ready_again().with(|inner| {
            let fields = headers.iter().map(|(name, value)| (name.as_slice(), value.as_slice()));
            match Request::from_parts(&verb, &target, Version::Http11, fields) {
                Ok(request) => inner.decide(request),
                Err(error) => inner.refuse(error),
            }
        });
        event.object(ruby)
    }

    /// `receive(chunk)`: the events that it brings.
    fn receive(ruby: &Ruby, this: Obj<Self>, chunk: RString) -> Result<RArray, Error> {
        let chunk_len = chunk.len();
        let detached = this.inner.ready(ruby)?.with(|inner| {
            let len = inner.waiting.len() + chunk_len;
            len >= DETACHED_UNMASK_LEN || len >= DETACHED_DEFLATE_LEN && inner.is_inflating()
        });
        if detached {
            check_interrupts(ruby)?;
        }
        // Before the bytes are borrowed: it may wait for another thread.
        let inner = this.inner.ready(ruby)?;
        // SAFETY: no code of Ruby runs while the slice is borrowed.
        let chunk = unsafe { chunk.as_slice() };
        let mut input = inner.with(|inner| inner.input(chunk)).map_err(|_| no_memory(ruby))?;
        let done = if detached {
            inner.detached(|inner| inner.receive(&mut input))
        } else {
            inner.with(|inner| inner.receive(&mut input))
        };
        scratch::give(input);
        this.account();
        this.deliver(ruby, done)
    }

    /// The objects of the events. Those for which there is no memory are the next call's.
    fn deliver(&self, ruby: &Ruby, events: Result<Vec<Event>, Failure>) -> Result<RArray, Error> {
        let events = events.map_err(|failure| failure.raised(ruby))?;
        let list = Event::list(ruby, &events);
        if list.is_err() {
            self.inner.ready_again().with(|inner| inner.undelivered = events);
        }
        list
    }

    /// `grant(subprotocol, headers)`: accepts the request. Returns the events of the input that came behind it.
    fn accept(
        ruby: &Ruby,
        this: Obj<Self>,
        subprotocol: Option<RString>,
        headers: Option<Value>,
    ) -> Result<RArray, Error> {
        let headers = texts(ruby, headers)?;
        let subprotocol = subprotocol.map(|name| text(ruby, name)).transpose()?;
        let done = this.inner.ready_again().with(|inner| inner.accept(subprotocol.as_deref(), &headers));
        this.deliver(ruby, done)
    }

    /// `refuse(status, headers, body)`: rejects the request. The transport is to be closed behind the answer.
    fn reject(
        ruby: &Ruby,
        this: Obj<Self>,
        status: u16,
        headers: Option<Value>,
        body: Option<RString>,
    ) -> Result<(), Error> {
        let headers = texts(ruby, headers)?;
        // Labelled as UTF-8.
        let body = body.map(|body| match options::is_utf8_or_bytes(ruby, body) {
            true => Ok(options::bytes(body)),
            false => text(ruby, body).map(String::into_bytes),
        });
        let body = body.transpose()?;
        let done = this.inner.ready_again().with(|inner| inner.reject(status, &headers, body));
        done.map_err(|failure| failure.raised(ruby))
    }

    fn take_output(ruby: &Ruby, this: Obj<Self>) -> Result<RString, Error> {
        let mut out = this.inner.ready(ruby)?.with(|inner| std::mem::take(&mut inner.out));
        if out.is_empty() {
            out = scratch::take();
        }
        let taken = this.inner.ready_again().with(|inner| inner.take_output(&mut out));
        let output = strings::of_output(ruby, taken, &out);
        match output {
            Ok(_) => scratch::give(out),
            Err(_) => this.inner.ready_again().with(|inner| inner.out = out),
        }
        this.account();
        output
    }

    /// Whether bytes wait for the next call of `receive`.
    fn has_input(ruby: &Ruby, this: &Self) -> Result<bool, Error> {
        Ok(this.inner.ready(ruby)?.with(|inner| !inner.waiting.is_empty()))
    }

    fn has_output(ruby: &Ruby, this: &Self) -> Result<bool, Error> {
        Ok(this.inner.ready(ruby)?.with(|inner| {
            !inner.out.is_empty()
                || matches!(&inner.state, State::Open(connection) if connection.wants_write())
        }))
    }

    /// Runs a command of an open connection, without the GVL when it has to compress `len` bytes that are many.
    fn command(
        &self,
        ruby: &Ruby,
        len: usize,
        run: impl FnOnce(&mut wireloom_ws::Connection) -> Result<(), wireloom_ws::Error> + Send,
    ) -> Result<(), Error> {
        let command = |inner: &mut Inner| {
            inner.reseed()?;
            match &mut inner.state {
                State::Open(connection) => run(connection).map_err(Failure::misuse),
                _ => Err(Failure::misuse("the connection is not open")),
            }
        };
        let detached = len >= DETACHED_DEFLATE_LEN && self.inner.ready(ruby)?.with(|inner| inner.compressed);
        if detached {
            check_interrupts(ruby)?;
        }
        let inner = self.inner.ready(ruby)?;
        let done = if detached { inner.detached(command) } else { inner.with(command) };
        self.account();
        done.map_err(|failure| failure.raised(ruby))
    }

    fn send_text(ruby: &Ruby, this: Obj<Self>, data: RString) -> Result<(), Error> {
        let data = strings::frozen(ruby, data);
        // SAFETY: the String is frozen, and kept below.
        let bytes = unsafe { data.as_slice() };
        let done = match wireloom_ws::utf8::text(bytes) {
            Ok(text) => this.command(ruby, text.len(), |connection| connection.send_text(text)),
            Err(_) => Err(misuse(ruby, "text is not UTF-8")),
        };
        strings::keep(data);
        done
    }

    fn send_binary(ruby: &Ruby, this: Obj<Self>, data: RString) -> Result<(), Error> {
        let data = strings::frozen(ruby, data);
        // SAFETY: the String is frozen, and kept below.
        let bytes = unsafe { data.as_slice() };
        let done = this.command(ruby, bytes.len(), |connection| connection.send_binary(bytes));
        strings::keep(data);
        done
    }

    fn ping(ruby: &Ruby, this: Obj<Self>, data: RString) -> Result<(), Error> {
        let data = strings::frozen(ruby, data);
        // SAFETY: the String is frozen, and kept below.
        let bytes = unsafe { data.as_slice() };
        let done = this.command(ruby, 0, |connection| connection.send_ping(now(), bytes));
        strings::keep(data);
        done
    }

    /// `send_close(code, reason)`; before the handshake is complete the connection is given up.
    fn close(ruby: &Ruby, this: Obj<Self>, code: Option<u16>, reason: RString) -> Result<(), Error> {
        let reason = text(ruby, reason)?;
        let is_open = this.inner.ready(ruby)?.with(|inner| {
            let is_open = matches!(inner.state, State::Open(_));
            if !is_open {
                inner.state = State::Closed;
            }
            is_open
        });
        if !is_open {
            return Ok(());
        }
        this.command(ruby, 0, |connection| connection.close(now(), code.map(CloseCode::new), &reason))
    }

    fn eof(ruby: &Ruby, this: &Self) -> Result<(), Error> {
        this.inner.ready(ruby)?.with(Inner::eof);
        Ok(())
    }

    /// Seconds until `tick` has something to do, or nil.
    fn timeout(ruby: &Ruby, this: &Self) -> Result<Option<f64>, Error> {
        Ok(this.inner.ready(ruby)?.with(|inner| match &inner.state {
            State::Open(connection) => {
                connection.poll_timeout().map(|at| at.saturating_sub(now()).as_secs_f64())
            }
            _ => None,
        }))
    }

    fn tick(ruby: &Ruby, this: &Self) -> Result<(), Error> {
        this.inner.ready(ruby)?.with(|inner| {
            if let State::Open(connection) = &mut inner.state {
                // Pending input is in time: it may contain a Pong or Close frame.
                match inner.waiting.is_empty() {
                    true => connection.handle_timeout(now()),
                    false => connection.handle_activity(now()),
                }
            }
        });
        Ok(())
    }

    fn state(ruby: &Ruby, this: &Self) -> Result<&'static str, Error> {
        Ok(this.inner.ready(ruby)?.with(|inner| match &inner.state {
            State::New | State::Requesting(_) | State::AwaitingRequest(_) | State::Deciding(..) => {
                "connecting"
            }
            State::Open(connection) if connection.is_open() => "open",
            State::Open(connection) if connection.transport() == Transport::Close => "closed",
            State::Open(_) => "closing",
            State::Closed => "closed",
        }))
    }

    /// The action for the transport once all output is written: `open`, `shut_down_write` or `close`.
    fn transport(ruby: &Ruby, this: &Self) -> Result<&'static str, Error> {
        Ok(this.inner.ready(ruby)?.with(|inner| match &inner.state {
            State::Open(connection) => match connection.transport() {
                Transport::Open => "open",
                Transport::ShutdownWrite => "shut_down_write",
                Transport::Close => "close",
            },
            State::Closed => "close",
            _ => "open",
        }))
    }

    fn is_congested(ruby: &Ruby, this: &Self) -> Result<bool, Error> {
        Ok(this
            .inner
            .ready(ruby)?
            .with(|inner| matches!(&inner.state, State::Open(connection) if connection.is_congested())))
    }

    fn is_clean(ruby: &Ruby, this: &Self) -> Result<bool, Error> {
        Ok(this
            .inner
            .ready(ruby)?
            .with(|inner| matches!(&inner.state, State::Open(connection) if connection.was_clean())))
    }

    fn is_compressed(ruby: &Ruby, this: &Self) -> Result<bool, Error> {
        Ok(this.inner.ready(ruby)?.with(|inner| inner.compressed))
    }

    fn subprotocol(ruby: &Ruby, this: Obj<Self>) -> Result<Option<RString>, Error> {
        let name = this.inner.ready(ruby)?.with(|inner| inner.subprotocol.clone());
        name.map(|name| strings::protected(ruby, |ruby| strings::text(ruby, &name))).transpose()
    }

    /// The code that the connection ended with (RFC 6455 §7.1.5), or nil while it has not.
    fn close_code(ruby: &Ruby, this: &Self) -> Result<Option<u16>, Error> {
        Ok(this.inner.ready(ruby)?.with(|inner| match &inner.state {
            State::Open(connection) => connection.end().map(|end| end.code().value()),
            _ => None,
        }))
    }

    /// Reports the connection's memory to the garbage collector, unless a thread works on it.
    fn account(&self) {
        if let Some(len) = self.inner.try_with(|inner| inner.heap_size()) {
            self.memory.set(len);
        }
    }
}

impl Inner {
    fn heap_size(&self) -> usize {
        self.out.capacity()
            + self.waiting.capacity()
            + match &self.state {
                State::Open(connection) => {
                    size_of_val(&**connection) + connection.queued_len() + connection.memory_len()
                }
                State::Deciding(_, early) => early.capacity(),
                _ => 0,
            }
    }

    /// Whether input may have to be inflated.
    fn is_inflating(&self) -> bool {
        self.compressed && matches!(self.state, State::Open(_))
    }

    /// After a fork the parent has the same masking keys (RFC 6455 §10.3): takes new ones.
    fn reseed(&mut self) -> Result<(), Failure> {
        if self.forks != keys::forks()
            && let State::Open(connection) = &mut self.state
        {
            connection.reseed(keys::random()?);
            self.forks = keys::forks();
        }
        Ok(())
    }

    /// The pending input, followed by `chunk`.
    ///
    /// # Errors
    /// There is no memory for a copy, and the connection is over.
    fn input(&mut self, chunk: &[u8]) -> Result<Vec<u8>, TryReserveError> {
        let mut input =
            if self.waiting.is_empty() { scratch::take() } else { std::mem::take(&mut self.waiting) };
        try_extend(&mut input, chunk).inspect_err(|_| self.lose_input())?;
        Ok(input)
    }

    /// There was no memory for a copy of the input.
    #[cold]
    fn lose_input(&mut self) {
        self.state = State::Closed;
        self.undelivered.push(Event::Failure {
            code: Some(CloseCode::INTERNAL_ERROR.value()),
            message: "there is no memory for the input".into(),
        });
    }

    /// Takes `input`, of which the part that is not handled waits for the next call. Returns what it brought, behind the events that are
    /// not delivered yet.
    fn receive(&mut self, input: &mut Vec<u8>) -> Result<Vec<Event>, Failure> {
        // Answers to pings and to a Close are masked too.
        self.reseed().inspect_err(|_| self.waiting = std::mem::take(input))?;
        let mut events = std::mem::take(&mut self.undelivered);
        let used = self.handle(input, &mut events)?;
        if used < input.len() {
            input.drain(..used);
            self.waiting = std::mem::take(input);
        } else if self.ends_behind {
            self.eof();
        }
        Ok(events)
    }

    fn eof(&mut self) {
        self.ends_behind = !self.waiting.is_empty();
        match &mut self.state {
            _ if self.ends_behind => {}
            State::Open(connection) => connection.handle_eof(),
            state => *state = State::Closed,
        }
    }

    /// Returns how many bytes of `input` were used.
    fn handle(&mut self, input: &mut [u8], events: &mut Vec<Event>) -> Result<usize, Failure> {
        let mut at = 0;
        while at < input.len() {
            match &mut self.state {
                State::New => return Err(Failure::misuse("the connection was not initialized: call super")),
                State::Requesting(handshake) => match handshake.handle_input(&input[at..]) {
                    Ok(client::Progress::Incomplete) => return Ok(input.len()),
                    Ok(client::Progress::Done { negotiated, consumed }) => {
                        at += consumed;
                        events.push(self.open(negotiated, Some(keys::random()?)));
                    }
                    Ok(client::Progress::Refused { response, .. }) => {
                        let event = Event::refused(response.status(), response.headers());
                        self.state = State::Closed;
                        events.push(event);
                        return Ok(input.len());
                    }
                    Err(error) => {
                        events.push(self.refuse(error));
                        return Ok(input.len());
                    }
                },
                State::AwaitingRequest(handshake) => match handshake.handle_input(&input[at..]) {
                    Ok(server::Progress::Incomplete) => return Ok(input.len()),
                    Ok(server::Progress::Complete { consumed }) => {
                        at += consumed;
                        let Some(request) = handshake.request().cloned() else { return Ok(input.len()) };
                        events.push(self.decide(request));
                    }
                    Err(error) => {
                        error.refusal().write_to(&mut self.out);
                        events.push(self.refuse(error));
                        return Ok(input.len());
                    }
                },
                State::Deciding(_, early) => {
                    if early.len() + (input.len() - at) > EARLY_LEN_MAX {
                        self.state = State::Closed;
                        events.push(Event::Failure {
                            code: Some(CloseCode::POLICY_VIOLATION.value()),
                            message: "the client sends before it is answered".into(),
                        });
                        return Ok(input.len());
                    }
                    early.extend_from_slice(&input[at..]);
                    return Ok(input.len());
                }
                State::Open(connection) => {
                    return Ok(at + receive_open(connection, &mut input[at..], events));
                }
                State::Closed => return Ok(input.len()),
            }
        }
        Ok(at)
    }

    fn accept(
        &mut self,
        subprotocol: Option<&str>,
        headers: &[(String, String)],
    ) -> Result<Vec<Event>, Failure> {
        let headers: Vec<(&str, &str)> =
            headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let State::Deciding(request, early) = &mut self.state else {
            return Err(Failure::misuse("no request waits for an answer"));
        };
        let acceptance = Acceptance { subprotocol, deflate: self.deflate.as_ref(), headers: &headers };
        let (response, negotiated) =
            request.accept(&acceptance).map_err(|error| Failure::misuse(HandshakeError::from(error)))?;
        response.write_to(&mut self.out);
        let mut early = std::mem::take(early);
        let open = self.open(negotiated, None);
        self.undelivered.push(open);
        self.receive(&mut early)
    }

    fn reject(
        &mut self,
        status: u16,
        headers: &[(String, String)],
        body: Option<Vec<u8>>,
    ) -> Result<(), Failure> {
        if !matches!(self.state, State::Deciding(..)) {
            return Err(Failure::misuse("no request waits for an answer"));
        }
        let misuse = |error| Failure::misuse(HandshakeError::from(error));
        let mut response = Response::refusal(status).map_err(misuse)?;
        for (name, value) in headers {
            response = response.with_header(name, value).map_err(misuse)?;
        }
        if let Some(body) = body {
            response = response.with_body("text/plain; charset=utf-8", body).map_err(misuse)?;
        }
        response.write_to(&mut self.out);
        self.state = State::Closed;
        Ok(())
    }

    /// Appends the output of an open connection to `out`, or as much as there is memory for.
    fn take_output(&mut self, out: &mut Vec<u8>) -> Result<(), TryReserveError> {
        let State::Open(connection) = &mut self.state else { return Ok(()) };
        loop {
            let mut slices: [&[u8]; 16] = [&[]; 16];
            let count = connection.poll_transmit(&mut slices);
            let (len, copied) = try_extend_all(out, &slices[..count]);
            if len == 0 {
                return copied;
            }
            connection.transmitted(len);
            copied?;
        }
    }

    fn open(&mut self, negotiated: Negotiated, seed: Option<[u8; 32]>) -> Event {
        let Negotiated { subprotocol, deflate } = negotiated;
        self.compressed = deflate.is_some();
        self.forks = keys::forks();
        let config = std::mem::take(&mut self.config);
        let deflate: Option<(DeflateParams, &DeflateConfig)> = deflate.zip(self.deflate.as_ref());
        self.state = State::Open(Box::new(match seed {
            Some(seed) => wireloom_ws::Connection::client(config, deflate, seed, now()),
            None => wireloom_ws::Connection::server(config, deflate, now()),
        }));
        self.subprotocol.clone_from(&subprotocol);
        Event::Open { subprotocol, compressed: self.compressed }
    }

    /// A request is complete: it waits for `accept` or `reject`.
    fn decide(&mut self, request: Request) -> Event {
        let event = Event::request(&request);
        self.state = State::Deciding(Box::new(request), Vec::new());
        event
    }

    /// The handshake has failed.
    fn refuse(&mut self, error: HandshakeError) -> Event {
        self.state = State::Closed;
        Event::Failure { code: Some(CloseCode::ABNORMAL.value()), message: error.reason().into() }
    }
}

/// The events of a chunk, up to [`INFLATED_LEN_MAX`]. Returns how many of its bytes were used.
fn receive_open(
    connection: &mut wireloom_ws::Connection,
    input: &mut [u8],
    events: &mut Vec<Event>,
) -> usize {
    let now = now();
    let (mut at, mut produced) = (0, 0);
    while at < input.len() && produced <= at + INFLATED_LEN_MAX {
        match connection.handle_input(now, &mut input[at..]) {
            Ok((used, Some(event))) => {
                at += used;
                if let Some(event) = Event::of(event) {
                    produced += event.payload_len();
                    events.push(event);
                }
            }
            Ok((_, None)) => return input.len(),
            Err(error) => {
                let code = error.close_code().map(CloseCode::value);
                events.push(Event::Failure { code, message: error.to_string() });
                return input.len();
            }
        }
    }
    at
}

pub(crate) fn init(ruby: &Ruby, wireloom: RModule) -> Result<(), Error> {
    let module = wireloom.define_module("WebSocket")?;
    let class = module.define_class("Connection", ruby.class_object())?;
    Connection::load(ruby, class);
    class.define_alloc_func::<Connection>();
    class.define_private_method("ask", method!(mut Connection::ask, 2))?;
    class.define_private_method("listen", method!(mut Connection::listen, 1))?;
    class.define_private_method("listen_to", method!(mut Connection::listen_to, 4))?;
    class.define_private_method("grant", method!(mut Connection::accept, 2))?;
    class.define_private_method("refuse", method!(mut Connection::reject, 3))?;
    class.define_private_method("send_close", method!(mut Connection::close, 2))?;
    class.define_private_method("send_text", method!(mut Connection::send_text, 1))?;
    class.define_private_method("send_ping", method!(mut Connection::ping, 1))?;
    class.define_private_method("state_name", method!(Connection::state, 0))?;
    class.define_private_method("transport_name", method!(Connection::transport, 0))?;
    class.define_method("receive", method!(mut Connection::receive, 1))?;
    class.define_method("take_output", method!(mut Connection::take_output, 0))?;
    class.define_method("input?", method!(Connection::has_input, 0))?;
    class.define_method("output?", method!(Connection::has_output, 0))?;
    class.define_method("binary", method!(mut Connection::send_binary, 1))?;
    class.define_method("eof", method!(mut Connection::eof, 0))?;
    class.define_method("timeout", method!(Connection::timeout, 0))?;
    class.define_method("tick", method!(mut Connection::tick, 0))?;
    class.define_method("congested?", method!(Connection::is_congested, 0))?;
    class.define_method("clean?", method!(Connection::is_clean, 0))?;
    class.define_method("compressed?", method!(Connection::is_compressed, 0))?;
    class.define_method("subprotocol", method!(Connection::subprotocol, 0))?;
    class.define_method("close_code", method!(Connection::close_code, 0))
}

/// Called when the Ruby part of `Wireloom::WebSocket` is loaded.
pub(super) fn complete(ruby: &Ruby, module: RModule) -> Result<(), Error> {
    ERROR.set(ruby, module.const_get("Error")?);
    Ok(())
}
