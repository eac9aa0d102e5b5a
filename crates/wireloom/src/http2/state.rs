//! State of a connection that the driver and the stream handles share: the protocol core, and what it does not know of its streams.

use std::task::Context;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Notify;
use tokio::time::Instant;
use wireloom_http2::error::ErrorCode;
use wireloom_http2::field::{Field, Token};
use wireloom_http2::message::RequestKind;
use wireloom_http2::{Config, Connection, Role, StreamKey};

use super::driver_handle::{DriverHandle, DriverState};
use super::memory_report::Reported;
use super::peer_preface::PeerPreface;
use super::slots::{Receiving, Slots, StreamRef};
use super::unread::UnreadRequests;
use crate::deadline::after;
use crate::error::HttpError;
use crate::guard::{Deferred, Guardable};
use crate::sync::Arc;

pub(super) struct State {
    pub(super) core: Connection,
    pub(super) slots: Slots,
    pub(super) unread: UnreadRequests,
    pub(super) peer_preface: PeerPreface,
    /// The code of the peer's last GOAWAY.
    pub(super) goaway: Option<ErrorCode>,
    /// Why the connection ended.
    pub(super) failure: Option<HttpError>,
    pub(super) driver: DriverHandle,
    pub(super) reported: Reported,
    /// Tasks that run handlers.
    pub(super) handlers: usize,
    /// The driver must drop the transport without writing queued output.
    pub(super) is_aborted: bool,
    /// Notified when the peer's SETTINGS arrive and when the connection ends.
    pub(super) ready: Arc<Notify>,
    pub(super) deferred: Deferred,
    /// Empty, except while chunks move from the core to `deferred`.
    spent: Vec<Bytes>,
    /// The time at which the core's clock is 0.
    epoch: Instant,
    /// Set while the transport is not read, for lack of memory or of processor time.
    stopped_at: Option<Duration>,
}

impl Guardable for State {
    fn deferred(&mut self) -> &mut Deferred {
        &mut self.deferred
    }

    fn before_unlock(&mut self) {
        self.defer_spent();
    }
}

impl State {
    /// The end of a new connection.
    ///
    /// # Errors
    /// A setting is out of range.
    pub(super) fn new(role: Role, config: Config) -> Result<Self, HttpError> {
        Ok(Self::with_core(Connection::new(role, with_manual_release(config))?))
    }

    /// The server's end after an upgrade from HTTP/1.1, and the stream of the upgraded request (RFC 7540 §3.2).
    ///
    /// # Errors
    /// `HTTP2-Settings` is invalid: the server must not upgrade.
    pub(super) fn upgraded(
        config: Config,
        http2_settings: &[u8],
        kind: RequestKind,
    ) -> Result<(Self, StreamKey), HttpError> {
        let config = with_manual_release(config);
        let (core, key) = Connection::from_upgrade_server(config, http2_settings, kind)?;
        Ok((Self::with_core(core), key))
    }

    fn with_core(core: Connection) -> Self {
        Self {
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
            ready: Arc::new(Notify::new()),
            deferred: Deferred::default(),
            spent: Vec::new(),
            epoch: Instant::now(),
            stopped_at: None,
        }
    }

    /// Leaves the chunks that the core no longer needs to be dropped after the unlock: the destructor of content may be one of the
    /// application, which uses the connection. Called before the core would drop them.
    pub(super) fn defer_spent(&mut self) {
        self.core.take_spent(&mut self.spent);
        for chunk in self.spent.drain(..) {
            self.deferred.drop_later(chunk);
        }
    }

    /// Frees unused memory, because the connection is quiet.
    pub(super) fn shrink(&mut self) {
        self.core.shrink();
        self.spent = Vec::new();
    }

    pub(super) fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    /// When the core's clock shows `time`.
    pub(super) fn instant(&self, time: Duration) -> Instant {
        after(self.epoch, time)
    }

    /// The earliest deadline of the core and of unread requests, on the core's clock.
    pub(super) fn deadline(&self) -> Option<Duration> {
        let of_unread = self.unread.deadline(self.now(), self.is_reading());
        self.core.poll_timeout().into_iter().chain(of_unread).min()
    }

    pub(super) fn is_reading(&self) -> bool {
        self.stopped_at.is_none()
    }

    /// The driver reads the transport from now on, or does not: a peer that is not read cannot be late.
    pub(super) fn set_reading(&mut self, is_reading: bool) {
        if is_reading == self.is_reading() {
            return;
        }
        let now = self.now();
        match self.stopped_at.take() {
            Some(stopped_at) => self.unread.postpone(now.saturating_sub(stopped_at)),
            None => self.stopped_at = Some(now),
        }
        self.core.set_reading(now, is_reading);
    }

    /// Resets the streams whose rest is not read and whose time for discarding it has passed.
    pub(super) fn reset_unread(&mut self) {
        let (now, is_reading) = (self.now(), self.is_reading());
        self.unread.reset_due(&mut self.core, now, is_reading);
    }

    /// The driver waits from now on, with its timer armed for `deadline`. `is_timed_when_idle`: the end of the last stream begins
    /// another one.
    pub(super) fn park_driver(
        &mut self,
        cx: &Context<'_>,
        deadline: Option<Instant>,
        is_timed_when_idle: bool,
    ) {
        let armed = deadline.map(|deadline| deadline.saturating_duration_since(self.epoch));
        let awaits_last_stream = is_timed_when_idle && self.streams() > 0;
        self.driver.park(&mut self.deferred, cx, armed, awaits_last_stream);
    }

    /// Wakes the driver if it waits and has something to do: output, an earlier deadline, or the end.
    pub(super) fn wake_driver(&mut self) {
        if self.driver.state == DriverState::Waiting
            && (self.core.wants_write()
                || self.core.ended().is_some()
                || self.is_aborted
                || self.reported.is_outdated(&self.core.memory())
                || self.driver.is_late_for(self.deadline()))
        {
            self.driver.wake(&mut self.deferred);
        }
    }

    /// Sets the core's clock to now: deadlines that begin after this call count from here.
    pub(super) fn advance_clock(&mut self) {
        self.core.advance_clock(self.epoch.elapsed());
    }

    /// Acts on the deadlines that have passed, once what has arrived was read: the peer is not late if this process is.
    pub(super) fn handle_timeout(&mut self) {
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
        if !is_read && self.core.contains(key) {
            let now = self.now();
            self.unread.add(&mut self.core, key, is_accepted, now);
        }
    }

    /// The transport has accepted `len` bytes of the output.
    pub(super) fn transmitted(&mut self, now: Duration, len: usize) {
        self.core.transmitted(now, len);
        self.slots.transmitted(len);
    }

    /// Of what was transmitted, the transport buffers at most `buffered_len` bytes; the rest has left.
    pub(super) fn note_left(&mut self, buffered_len: usize) {
        if self.core.role() == Role::Client {
            self.handle_events();
            self.slots.note_left(buffered_len, &mut self.deferred);
        }
    }

    pub(super) fn add_caller_memory(&mut self, change: i64) {
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

    /// Removes a reference to a stream. The core may have forgotten the stream before: then this ends it.
    pub(super) fn release(&mut self, stream: StreamRef) {
        self.slots.release(stream, &mut self.deferred);
        if self.driver.awaits_last_stream() && self.streams() == 0 {
            self.driver.wake(&mut self.deferred);
        }
    }

    pub(super) fn fail_stream(&mut self, key: StreamKey, error: &HttpError) {
        self.slots.fail(key, error, &mut self.deferred);
    }

    /// Resets the streams that wait for a handler: their client has disconnected.
    pub(super) fn fail_unanswered(&mut self) {
        for key in self.slots.unanswered() {
            let _ = self.core.reset(key, ErrorCode::CANCEL);
            self.fail_stream(key, &HttpError::ConnectionLost);
        }
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
        // Requests that were never sent, and streams that ended before, have errors of their own.
        self.handle_events();
        self.slots.fail_all(&error, &mut self.core, &mut self.deferred);
        self.failure.get_or_insert(error);
        self.deferred.notify(&self.ready);
    }

    /// Sends `100 Continue` if the client waits for it and the content has a reader.
    pub(super) fn send_continue(&mut self, key: StreamKey) {
        let Some(slot) = self.slots.get_by_key(key) else { return };
        if std::mem::take(&mut slot.continue_due) && slot.receiving == Receiving::Open && slot.data.is_empty()
        {
            // Fails once the final response has begun.
            let _ = self.core.send_informational(key, [Field::known(Token::Status, b"100")]);
        }
    }

    /// Handles events that did not come from input.
    pub(super) fn handle_events(&mut self) {
        while let Some(event) = self.core.poll_event() {
            self.slots.handle_event(&event, &mut self.core, &mut self.deferred);
        }
    }
}

/// The size of the fields that are decoded while the connection is locked, in bytes: the largest list, or a few hundred common requests.
const DECODED_LEN_MAX: usize = 64 << 10;

/// Window is given back as content is read, and the map of streams is keyed with a secret.
fn with_manual_release(mut config: Config) -> Config {
    use std::hash::{BuildHasher as _, Hasher as _, RandomState};
    config.auto_release = false;
    // Content that the application has not read takes memory, whatever has become of its stream.
    config.release_at_end = false;
    config.decoded_len_max = config.decoded_len_max.min(DECODED_LEN_MAX);
    config.hash_key = RandomState::new().build_hasher().finish();
    config
}
