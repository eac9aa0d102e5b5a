//! State shared by the driver and the stream handles: the protocol core and a slot per stream, behind one mutex.
//!
//! The mutex is held for work in memory and never across an `.await`. Wakers, slots and notifications are collected in [`Deferred`]
//! until it is unlocked.

use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Notify;
use tokio::time::Instant;
use wireloom_http2::error::ErrorCode;
use wireloom_http2::field::Field;
use wireloom_http2::message::RequestKind;
use wireloom_http2::priority::Priority;
use wireloom_http2::{Config, Connection, Event, Role, StreamKey};

use super::incoming::IncomingRequests;
use super::send_stream::SendStream;
use super::slots::{FollowUp, Receiving, Slots, StreamRef};
use super::unread::UnreadRequests;
use crate::error::HttpError;
use crate::guard::{Deferred, Guard, Guardable, Guarded, WakerSlot};
use crate::headers::Headers;
use crate::memory::{Evict, FREE_LEN};
use crate::sync::Arc;

pub(crate) struct Shared {
    state: Guarded<State>,
    ready: Arc<Notify>,
}

pub(super) struct State {
    pub(super) core: Connection,
    pub(super) slots: Slots,
    pub(super) unread: UnreadRequests,
    pub(super) peer_preface: PeerPreface,
    /// The code of the peer's last GOAWAY.
    goaway: Option<ErrorCode>,
    /// Why the connection ended.
    pub(super) failure: Option<HttpError>,
    pub(super) driver: DriverHandle,
    pub(super) reported: Reported,
    /// Tasks that run handlers.
    pub(super) handlers: usize,
    /// The driver must drop the transport without writing queued output.
    pub(super) is_aborted: bool,
    /// Notified when the peer's SETTINGS arrive and when the connection ends.
    ready: Arc<Notify>,
    pub(super) deferred: Deferred,
    /// The time at which the core's clock is 0.
    epoch: Instant,
}

/// How much of a server's connection preface has arrived (RFC 9113 §3.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerPreface {
    /// Too few bytes to decide.
    Partial(u8),
    /// The header of something other than SETTINGS: the server does not speak HTTP/2.
    NotHttp2,
    /// The header of SETTINGS.
    Begun,
    /// SETTINGS, complete and valid.
    Complete,
}

impl PeerPreface {
    /// The position of the type in a frame header (RFC 9113 §4.1), and the type of SETTINGS.
    const TYPE_AT: usize = 3;
    const SETTINGS: u8 = 4;

    /// Looks at the first bytes of the server.
    pub(super) fn handle_input(&mut self, input: &[u8]) {
        let Self::Partial(received) = *self else { return };
        *self = match input.get(Self::TYPE_AT - usize::from(received)) {
            Some(&Self::SETTINGS) => Self::Begun,
            Some(_) => Self::NotHttp2,
            None => Self::Partial(received + input.len() as u8),
        };
    }
}

/// The memory that the driver last reported to the server's accountant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reported {
    /// A client's connection, which has no accountant.
    Nothing,
    /// Bytes.
    Total(u64),
}

impl Reported {
    /// The driver reports again when the memory has changed by this many bytes.
    const STEP: u64 = 64 << 10;

    fn is_outdated(self, total: u64) -> bool {
        matches!(self, Self::Total(reported) if reported.abs_diff(total) >= Self::STEP)
    }
}

/// The state of the driver that commands use to wake it.
#[derive(Default)]
pub(super) struct DriverHandle {
    pub(super) state: DriverState,
    waker: WakerSlot,
    /// The deadline of its timer, on the core's clock.
    armed: Option<Duration>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum DriverState {
    /// It runs, and handles the effects of a command before it waits again.
    #[default]
    Running,
    /// It waits for the transport, a deadline or a command.
    Waiting,
    WokenByCommand,
}

impl Shared {
    pub(super) fn new(role: Role, config: Config) -> Result<Arc<Self>, HttpError> {
        let core = Connection::new(role, with_manual_release(config))?;
        Ok(Self::with_core(core))
    }

    /// The server's end after an upgrade from HTTP/1.1, and the stream of the upgraded request (RFC 7540 §3.2).
    ///
    /// # Errors
    /// `HTTP2-Settings` is invalid: the server must not upgrade.
    pub(crate) fn upgraded(
        config: Config,
        http2_settings: &[u8],
        kind: RequestKind,
    ) -> Result<(Arc<Self>, StreamKey), HttpError> {
        let config = with_manual_release(config);
        let (core, key) = Connection::from_upgrade_server(config, http2_settings, kind)?;
        Ok((Self::with_core(core), key))
    }

    fn with_core(core: Connection) -> Arc<Self> {
        let ready = Arc::new(Notify::new());
        let state = State {
            core,
            slots: Slots::default(),
            unread: UnreadRequests::default(),
            peer_preface: PeerPreface::Partial(0),
            goaway: None,
            failure: None,
            driver: DriverHandle::default(),
            reported: Reported::Nothing,
            handlers: 0,
            is_aborted: false,
            ready: ready.clone(),
            deferred: Deferred::default(),
            epoch: Instant::now(),
        };
        Arc::new(Self { state: Guarded::new(state), ready })
    }

    #[inline]
    pub(super) fn lock(&self) -> Guard<'_, State> {
        self.state.lock()
    }

    /// Runs a command of a handle, and wakes the driver if that gave it something to do.
    pub(super) fn command<T>(&self, run: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.lock();
        if state.driver.state == DriverState::Waiting {
            // The core's clock has not advanced since the driver began to wait.
            state.advance_clock();
        }
        let result = run(&mut state);
        state.wake_driver();
        result
    }

    /// Waits until `check` is ready. It is called again when the peer's SETTINGS arrive and when the connection ends.
    pub(super) async fn wait_until<T>(&self, check: impl Fn(&State) -> Poll<T>) -> T {
        loop {
            // Created before the check: it receives every notification from here on.
            let notified = self.ready.notified();
            if let Poll::Ready(result) = check(&self.lock()) {
                return result;
            }
            notified.await;
        }
    }

    /// The sending half of a stream that a peer opened.
    pub(crate) fn send_stream(self: &Arc<Self>, key: StreamKey) -> SendStream {
        let mut state = self.lock();
        let stream = match state.core.contains(key) {
            true => state.slots.refer(key, Receiving::Discarding),
            false => state.slots.refer_to_closed(key),
        };
        drop(state);
        SendStream::new(self.clone(), stream)
    }

    /// Sends a complete response. `fields` begin with `:status`.
    ///
    /// # Errors
    /// The stream or the connection has ended, or the peer does not accept a field list of this size.
    pub(crate) fn send_response<'f, I>(&self, key: StreamKey, fields: I, body: Bytes) -> Result<(), HttpError>
    where
        I: IntoIterator<Item = Field<'f>>,
        I::IntoIter: Clone,
    {
        let fields = fields.into_iter();
        let is_accepted = is_accepted(fields.clone());
        self.command(|state| {
            state.check_alive()?;
            state.send_continue(key);
            state.core.send_response(key, fields, body.is_empty())?;
            if !body.is_empty() {
                state.core.send_data(key, body, true)?;
            }
            state.finish(key, is_accepted);
            Ok(())
        })
    }

    /// Sends an interim response; `fields` begin with `:status`, from 100 to 199.
    ///
    /// # Errors
    /// As for [`send_response`](Self::send_response).
    pub(crate) fn send_informational<'f, I>(&self, key: StreamKey, fields: I) -> Result<(), HttpError>
    where
        I: IntoIterator<Item = Field<'f>>,
        I::IntoIter: Clone,
    {
        self.command(|state| {
            state.check_alive()?;
            Ok(state.core.send_informational(key, fields)?)
        })
    }

    /// The priority of a stream (RFC 9218); `None` when it has ended.
    pub(crate) fn priority(&self, key: StreamKey) -> Option<Priority> {
        self.lock().core.priority(key)
    }

    /// Sets the priority of a response.
    ///
    /// # Errors
    /// The stream has ended.
    pub(crate) fn set_priority(&self, key: StreamKey, priority: Priority) -> Result<(), HttpError> {
        self.command(|state| Ok(state.core.set_priority(key, priority)?))
    }

    /// Asks the server for this priority of a response (RFC 9218 §7.1).
    ///
    /// # Errors
    /// The stream or the connection has ended.
    pub(super) fn send_priority_update(&self, key: StreamKey, priority: Priority) -> Result<(), HttpError> {
        self.command(|state| Ok(state.core.send_priority_update(key, priority)?))
    }

    /// Resets a stream; does nothing when it has ended.
    pub(crate) fn reset(&self, key: StreamKey, code: ErrorCode) {
        self.command(|state| {
            let _ = state.core.reset(key, code);
            state.fail_stream(key, &HttpError::StreamReset(code));
        });
    }

    /// Refers to a stream for the task that runs its handler; `None` when the stream has ended.
    pub(crate) fn handler_of(self: &Arc<Self>, key: StreamKey) -> Option<HandlerRef> {
        let mut state = self.lock();
        let stream = state.core.contains(key).then(|| state.slots.refer(key, Receiving::Discarding))?;
        state.handlers += 1;
        drop(state);
        Some(HandlerRef { shared: self.clone(), stream })
    }

    /// Ends the connection gracefully: sends GOAWAY, and open streams continue.
    pub(crate) fn shut_down(&self) {
        self.command(|state| state.core.shutdown());
    }
}

impl Evict for Shared {
    /// Ends the connection with ENHANCE_YOUR_CALM, and frees unread content.
    fn evict(&self) {
        let unread = self.command(|state| {
            state.core.abort(ErrorCode::ENHANCE_YOUR_CALM, b"out of memory");
            state.fail(HttpError::StreamReset(ErrorCode::ENHANCE_YOUR_CALM));
            state.slots.take_unread()
        });
        drop(unread);
    }

    fn abort(&self) {
        self.command(|state| state.is_aborted = true);
    }
}

/// The memory of a request in addition to its head: the task of its handler, its slots, and the rounding of allocations. Measured with
/// `conformance/memory/run`.
const REQUEST_COST: usize = 8 << 10;

/// Memory of a request with a head that is larger than the accountant ignores, until it is dropped.
pub(crate) struct HeadMemory {
    shared: Arc<Shared>,
    len: usize,
}

impl HeadMemory {
    pub(crate) fn new(shared: &Arc<Shared>, head: &Headers) -> Option<Self> {
        let len = head.memory_len();
        (len > FREE_LEN).then(|| {
            let len = len + REQUEST_COST;
            shared.command(|state| state.add_caller_memory(len as i64));
            Self { shared: shared.clone(), len }
        })
    }
}

impl Drop for HeadMemory {
    fn drop(&mut self) {
        self.shared.command(|state| state.add_caller_memory(-(self.len as i64)));
    }
}

/// The interest of a handler's task in its stream.
pub(crate) struct HandlerRef {
    shared: Arc<Shared>,
    stream: StreamRef,
}

impl HandlerRef {
    /// Ready when the stream or the connection has failed: the response has no receiver.
    pub(crate) fn poll_failed(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.shared.lock();
        let State { slots, deferred, .. } = &mut *state;
        match slots.get(self.stream) {
            Some(slot) if slot.error.is_none() => {
                deferred.register(&mut slot.handler, cx);
                Poll::Pending
            }
            _ => Poll::Ready(()),
        }
    }
}

impl Drop for HandlerRef {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.handlers -= 1;
        state.release(self.stream);
    }
}

impl Guardable for State {
    fn deferred(&mut self) -> &mut Deferred {
        &mut self.deferred
    }
}

impl State {
    pub(super) fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    /// When the core's clock shows `time`.
    pub(super) fn instant(&self, time: Duration) -> Instant {
        self.epoch + time
    }

    /// The earliest deadline of the core and of unread requests, on the core's clock.
    pub(super) fn deadline(&self) -> Option<Duration> {
        self.core.poll_timeout().into_iter().chain(self.unread.deadline(self.now())).min()
    }

    /// The driver waits from now on, with its timer armed for `deadline`.
    pub(super) fn park_driver(&mut self, cx: &Context<'_>, deadline: Option<Instant>) {
        self.deferred.register(&mut self.driver.waker, cx);
        self.driver.armed = deadline.map(|deadline| deadline.saturating_duration_since(self.epoch));
        self.driver.state = DriverState::Waiting;
    }

    /// Wakes the driver if it waits and has something to do: output, an earlier deadline, or the end.
    fn wake_driver(&mut self) {
        if self.driver.state != DriverState::Waiting {
            return;
        }
        let is_earlier = || match (self.deadline(), self.driver.armed) {
            (Some(deadline), Some(armed)) => deadline < armed,
            (deadline, _) => deadline.is_some(),
        };
        let is_outdated = || self.reported.is_outdated(self.core.memory().total());
        if self.core.wants_write()
            || self.core.ended().is_some()
            || self.is_aborted
            || is_outdated()
            || is_earlier()
        {
            self.driver.state = DriverState::WokenByCommand;
            self.deferred.wake(&mut self.driver.waker);
        }
    }

    pub(super) fn advance_clock(&mut self) {
        let now = self.now();
        if let Err(error) = self.core.handle_timeout(now) {
            self.fail(error.into());
        }
    }

    /// This side has sent or queued END_STREAM. `is_accepted`: the status of the response was below 300.
    pub(super) fn finish(&mut self, key: StreamKey, is_accepted: bool) {
        let is_read = self.slots.get_by_key(key).is_some_and(|slot| {
            slot.finished = true;
            slot.is_accepted = is_accepted;
            slot.receiving != Receiving::Discarding
        });
        if !is_read && self.core.role() == Role::Server && self.core.contains(key) {
            self.unread.add(key, is_accepted, self.now());
        }
    }

    fn add_caller_memory(&mut self, change: i64) {
        let memory = self.core.memory().caller.saturating_add_signed(change);
        self.core.set_caller_memory(memory);
    }

    pub(super) fn check_alive(&self) -> Result<(), HttpError> {
        self.failure.clone().map_or(Ok(()), Err)
    }

    /// Streams that are open, or that a handle refers to.
    pub(super) fn streams(&self) -> usize {
        self.core.streams().max(self.slots.len())
    }

    /// Removes a reference to a stream.
    pub(super) fn release(&mut self, stream: StreamRef) {
        self.slots.release(stream, &mut self.deferred);
    }

    pub(super) fn fail_stream(&mut self, key: StreamKey, error: &HttpError) {
        self.slots.fail(key, error, &mut self.deferred);
    }

    /// Ends the connection for every handle. When the transport has ended after GOAWAY with an error code, they report that code.
    pub(super) fn fail(&mut self, error: HttpError) {
        let error = match self.goaway {
            Some(code)
                if code != ErrorCode::NO_ERROR
                    && matches!(error, HttpError::ConnectionLost | HttpError::Io(_)) =>
            {
                HttpError::GoAway(code)
            }
            _ => error,
        };
        let Self { core, slots, deferred, .. } = self;
        // Requests that were never sent, and streams that ended before, have errors of their own.
        while let Some(event) = core.poll_event() {
            match event {
                Event::Refused { stream } => slots.fail(stream, &HttpError::NotProcessed, deferred),
                Event::Reset { stream, code, .. } => {
                    slots.fail(stream, &HttpError::StreamReset(code), deferred)
                }
                _ => {}
            }
        }
        self.slots.fail_all(&error, &mut self.deferred);
        self.failure.get_or_insert(error);
        self.deferred.notify(&self.ready);
    }

    /// Handles input until all is consumed or the core stops reading, and returns how much was consumed. `buffer` is the
    /// buffer of `input` if content may borrow from it.
    ///
    /// # Errors
    /// The connection has failed; its GOAWAY is in the output.
    pub(super) fn handle_input(
        &mut self,
        mut input: &[u8],
        buffer: Option<&Bytes>,
        incoming: &mut IncomingRequests<'_>,
    ) -> Result<usize, HttpError> {
        let (now, len) = (self.now(), input.len());
        loop {
            let (consumed, event) = self.core.handle_input(now, input)?;
            input = &input[consumed..];
            let Some(event) = event else { return Ok(len - input.len()) };
            let follow_up = self.slots.handle_event(event, buffer, incoming, &mut self.deferred);
            self.follow_up(follow_up);
        }
    }

    /// Handles events that did not come from input.
    pub(super) fn handle_events(&mut self, incoming: &mut IncomingRequests<'_>) {
        while let Some(event) = self.core.poll_event() {
            let follow_up = self.slots.handle_event(event, None, incoming, &mut self.deferred);
            self.follow_up(follow_up);
        }
    }

    #[inline]
    fn follow_up(&mut self, follow_up: FollowUp) {
        match follow_up {
            FollowUp::None => {}
            FollowUp::Release(key, len) => {
                if self.unread.discard(key, len) {
                    // Never misuse: as much has just arrived.
                    let _ = self.core.release_capacity(key, len);
                }
            }
            FollowUp::SettingsReceived => {
                self.peer_preface = PeerPreface::Complete;
                self.deferred.notify(&self.ready);
            }
            FollowUp::GoAway(code) => self.goaway = Some(code),
        }
    }
}

/// Whether a response, whose fields begin with `:status`, has a status below 300.
pub(super) fn is_accepted<'f>(fields: impl IntoIterator<Item = Field<'f>>) -> bool {
    fields.into_iter().next().is_some_and(|status| status.value().first() < Some(&b'3'))
}

/// Window is given back as content is read, and the map of streams is keyed with a secret.
fn with_manual_release(mut config: Config) -> Config {
    use std::hash::{BuildHasher as _, Hasher as _, RandomState};
    config.auto_release = false;
    // Content that the application has not read takes memory, whatever has become of its stream.
    config.release_at_end = false;
    config.hash_key = RandomState::new().build_hasher().finish();
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_frame_tells_whether_a_server_speaks_http2() {
        let settings = [0, 0, 6, 4, 0, 0, 0, 0, 0];
        for (input, expected) in [
            (&settings[..], PeerPreface::Begun),
            (&settings[..3], PeerPreface::Partial(3)),
            (b"", PeerPreface::Partial(0)),
            (b"HTTP/1.1 400 Bad Request\r\n", PeerPreface::NotHttp2),
            (b"SSH-2.0", PeerPreface::NotHttp2),
        ] {
            for at in 0..=input.len() {
                let mut preface = PeerPreface::Partial(0);
                preface.handle_input(&input[..at]);
                preface.handle_input(&input[at..]);
                assert_eq!(preface, expected, "{input:?} split at {at}");
            }
        }
    }
}
