//! What the driver and the handles of streams share: the core, and a slot for each stream that someone holds.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};
use std::time::Duration;

use bytes::Bytes;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use wireloom_http2::error::ErrorCode;
use wireloom_http2::field::Field;
use wireloom_http2::message::RequestKind;
use wireloom_http2::{Config, Connection, Role, StreamKey};

use super::content::Content;
use super::events::{Seen, Then};
use super::handles::{RecvStream, SendStream};
use super::head::{Head, Incoming};
use crate::error::Error;
use crate::headers::Headers;

/// How much more of a request is taken once it has been answered in full, in bytes, and how long.
const UNREAD_LEN_MAX: usize = 64 << 10;
const UNREAD_TIME_MAX: Duration = Duration::from_secs(5);

pub(crate) struct Shared {
    state: Mutex<State>,
}

pub(super) struct State {
    pub(super) core: Connection,
    pub(super) epoch: Instant,
    slots: Vec<Option<Box<Slot>>>,
    /// Empty places in `slots`.
    free: Vec<u32>,
    /// By the core's slot: the last place that was taken for it.
    places: Vec<u32>,
    /// Why nothing moves any more.
    pub(super) failure: Option<Error>,
    /// Who drives, while it waits.
    pub(super) driver: Option<Waker>,
    /// The deadline that it waits for.
    pub(super) armed: Option<Duration>,
    /// A handle woke the driver.
    pub(super) nudged: bool,
    /// Streams that were answered in full before their requests have ended, and nobody reads those.
    unread: Vec<Unread>,
    /// The server's SETTINGS have come.
    pub(super) settings_seen: bool,
    /// Those who wait for them.
    pub(super) waiting: Vec<Waker>,
}

/// A stream whose client still sends what nobody reads.
struct Unread {
    key: StreamKey,
    until: Duration,
    /// What came meanwhile, in bytes.
    len: usize,
}

/// What is known of a stream, for as long as someone holds it. The stream in the core may be gone already.
#[derive(Default)]
pub(super) struct Slot {
    id: u32,
    /// Handles and tasks that hold it.
    holders: u8,
    /// Content that has arrived and was not taken.
    pub(super) data: Content,
    /// Nothing more arrives.
    pub(super) ended: bool,
    /// Nobody wants what arrives.
    pub(super) discards: bool,
    /// This side has sent, or queued, its last.
    pub(super) finished: bool,
    pub(super) head: Option<Head>,
    pub(super) interim: VecDeque<Head>,
    pub(super) trailers: Option<Headers>,
    pub(super) failed: Option<Error>,
    pub(super) receiver: Option<Waker>,
    pub(super) sender: Option<Waker>,
    /// Who answers it.
    pub(super) task: Option<AbortHandle>,
}

/// Where a handle finds its slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At {
    pub(super) key: StreamKey,
    place: u32,
}

impl Shared {
    pub(super) fn new(role: Role, mut config: Config) -> Result<Arc<Self>, Error> {
        // Content is given back to the windows as it is taken.
        config.auto_release = false;
        config.hash_key = random();
        let core = Connection::new(role, config)?;
        Ok(Self::with_core(core))
    }

    /// The server's end after an upgrade from HTTP/1.1, and the stream that the request has become (RFC 7540 §3.2).
    ///
    /// # Errors
    /// `HTTP2-Settings` is invalid: the upgrade is not to take place.
    pub(crate) fn upgraded(
        mut config: Config,
        http2_settings: &[u8],
        kind: RequestKind,
    ) -> Result<(Arc<Self>, StreamKey), Error> {
        config.auto_release = false;
        config.hash_key = random();
        let (core, key) = Connection::from_upgrade_server(config, http2_settings, kind)?;
        Ok((Self::with_core(core), key))
    }

    fn with_core(core: Connection) -> Arc<Self> {
        let state = State {
            core,
            epoch: Instant::now(),
            slots: Vec::new(),
            free: Vec::new(),
            places: Vec::new(),
            failure: None,
            driver: None,
            armed: None,
            nudged: false,
            unread: Vec::new(),
            settings_seen: false,
            waiting: Vec::new(),
        };
        Arc::new(Self { state: Mutex::new(state) })
    }

    /// A panic while it was held is one in this crate or in an allocation; the state is still one of the core's.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Carries out a command, and wakes the driver if it waits.
    pub(super) fn command<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.lock();
        if state.driver.is_some() {
            // Nobody has told the core the time for a while.
            state.tick();
        }
        let result = work(&mut state);
        let driver = state.call_driver();
        drop(state);
        if let Some(driver) = driver {
            driver.wake();
        }
        result
    }

    /// The content of an [`Incoming`]. To be taken once, and dropped if it is not wanted.
    pub(crate) fn receiver(self: &Arc<Self>, content: At) -> RecvStream {
        RecvStream::new(self.clone(), content)
    }

    /// What is sent on a stream.
    pub(crate) fn sender(self: &Arc<Self>, key: StreamKey) -> SendStream {
        let at = self.lock().hold(key, 1);
        SendStream::new(self.clone(), at)
    }

    /// Answers a request in full. `fields` begin with `:status`.
    ///
    /// # Errors
    /// The stream or the connection is gone, or the peer takes no such list of fields.
    pub(crate) fn respond<'f, I>(&self, key: StreamKey, fields: I, body: Bytes) -> Result<(), Error>
    where
        I: IntoIterator<Item = Field<'f>>,
        I::IntoIter: Clone,
    {
        self.command(|state| {
            state.alive()?;
            state.core.send_response(key, fields, body.is_empty())?;
            if !body.is_empty() {
                state.core.send_data(key, body, true)?;
            }
            state.finish(key);
            Ok(())
        })
    }

    /// Ends a stream at once; nothing happens when it is gone.
    pub(crate) fn reset(&self, key: StreamKey, code: ErrorCode) {
        self.command(|state| {
            let _ = state.core.reset(key, code);
            state.fail_stream(key, &Error::StreamReset(code));
        });
    }

    /// Begins the task that answers a stream, which is stopped when the peer resets that. Gives the task back when the
    /// stream is gone already.
    pub(crate) fn attach<T>(
        &self,
        key: StreamKey,
        task: T,
        spawn: impl FnOnce(T, At) -> AbortHandle,
    ) -> Option<T> {
        let mut state = self.lock();
        if !state.core.contains(key) {
            return Some(task);
        }
        let at = state.hold(key, 1);
        // Under the lock, so that it is not done before it is known.
        let handle = spawn(task, at);
        if let Some(slot) = state.slot(at) {
            slot.task = Some(handle);
        }
        None
    }

    /// Whoever answered a stream is done.
    pub(crate) fn detach(&self, at: At) {
        let mut state = self.lock();
        if state.slot(at).is_some_and(|slot| slot.task.take().is_some()) {
            state.release(at);
        }
    }

    /// Ends the connection gracefully: GOAWAY, and streams that are open go on.
    pub(crate) fn shut_down(&self) {
        self.command(|state| state.core.shutdown());
    }
}

impl State {
    pub(super) fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    /// The driver, if it waits and there is something for it: output, a deadline that is earlier than it knows, the end.
    fn call_driver(&mut self) -> Option<Waker> {
        self.driver.as_ref()?;
        let deadline = self.core.poll_timeout().into_iter().chain(self.unread_deadline()).min();
        let earlier = || match (deadline, self.armed) {
            (Some(deadline), Some(armed)) => deadline < armed,
            (deadline, _) => deadline.is_some(),
        };
        if !self.core.wants_write() && self.core.ended().is_none() && !earlier() {
            return None;
        }
        self.nudged = true;
        self.driver.take()
    }

    /// Tells the core the time.
    pub(super) fn tick(&mut self) {
        let now = self.now();
        if let Err(error) = self.core.handle_timeout(now) {
            self.fail(error.into());
        }
    }

    /// This side has sent, or queued, its last on a stream.
    pub(super) fn finish(&mut self, key: StreamKey) {
        let unread = match self.slot_of(key) {
            Some(slot) => {
                slot.finished = true;
                slot.discards
            }
            None => true,
        };
        if unread && self.core.role() == Role::Server && self.core.contains(key) {
            self.unread.push(Unread { key, until: self.now() + UNREAD_TIME_MAX, len: 0 });
        }
    }

    /// When [`State::reset_unread`] is to be called next.
    pub(super) fn unread_deadline(&self) -> Option<Duration> {
        if self.unread.is_empty() {
            return None;
        }
        // One that is overdue waits for its response to leave.
        let now = self.now();
        self.unread.iter().map(|unread| unread.until).filter(|&until| until > now).min()
    }

    /// RFC 9113 §8.1: once a response is complete, the rest of a request that nobody reads is not needed. What is short may
    /// come to its end all the same: then nothing is reset, and no client takes that for a failure.
    pub(super) fn reset_unread(&mut self) {
        if self.unread.is_empty() {
            return;
        }
        let now = self.now();
        let Self { unread, core, .. } = self;
        unread.retain(|unread| {
            let patient = unread.len <= UNREAD_LEN_MAX && now < unread.until;
            if !core.contains(unread.key) || patient || core.queued(unread.key) > 0 {
                return core.contains(unread.key);
            }
            let _ = core.reset(unread.key, ErrorCode::NO_ERROR);
            false
        });
    }

    pub(super) fn alive(&self) -> Result<(), Error> {
        self.failure.clone().map_or(Ok(()), Err)
    }

    /// Streams that are open, or that someone holds.
    pub(super) fn streams(&self) -> usize {
        self.core.streams().max(self.slots.len() - self.free.len())
    }

    /// The slot of a stream with `holders` more, made if there is none.
    pub(super) fn hold(&mut self, key: StreamKey, holders: u8) -> At {
        if let Some(at) = self.find(key) {
            if let Some(slot) = self.slot(at) {
                slot.holders += holders;
            }
            return at;
        }
        let mut slot = Box::new(Slot { id: key.id(), holders, ..Slot::default() });
        // The slot of a stream that is gone may be another's in the core by now: nothing leads to it but its handles.
        let is_there = self.core.contains(key);
        slot.failed = (!is_there).then_some(Error::Closed);
        let place = match self.free.pop() {
            Some(place) => place,
            None => {
                self.slots.push(None);
                self.slots.len() as u32 - 1
            }
        };
        self.slots[place as usize] = Some(slot);
        if is_there {
            if self.places.len() <= key.slot() {
                self.places.resize(key.slot() + 1, u32::MAX);
            }
            self.places[key.slot()] = place;
        }
        At { key, place }
    }

    fn find(&self, key: StreamKey) -> Option<At> {
        let place = *self.places.get(key.slot())?;
        let slot = self.slots.get(place as usize)?.as_ref()?;
        (slot.id == key.id()).then_some(At { key, place })
    }

    #[inline]
    pub(super) fn slot(&mut self, at: At) -> Option<&mut Slot> {
        self.slots.get_mut(at.place as usize)?.as_deref_mut().filter(|slot| slot.id == at.key.id())
    }

    pub(super) fn slot_of(&mut self, key: StreamKey) -> Option<&mut Slot> {
        let at = self.find(key)?;
        self.slot(at)
    }

    /// One holder less.
    pub(super) fn release(&mut self, at: At) {
        let Some(slot) = self.slot(at) else { return };
        slot.holders = slot.holders.saturating_sub(1);
        if slot.holders == 0 {
            self.slots[at.place as usize] = None;
            self.free.push(at.place);
            if self.free.len() == self.slots.len() {
                // Nothing is held for streams that are gone.
                self.slots = Vec::new();
                self.free = Vec::new();
                self.places = Vec::new();
            }
        }
    }

    /// Tells whoever holds a stream that it has failed.
    pub(super) fn fail_stream(&mut self, key: StreamKey, error: &Error) {
        if let Some(slot) = self.slot_of(key) {
            slot.fail(error);
            let task = slot.task.take();
            let wakers = [slot.receiver.take(), slot.sender.take()];
            wakers.into_iter().flatten().for_each(Waker::wake);
            if let Some(task) = task {
                task.abort();
                if let Some(at) = self.find(key) {
                    self.release(at);
                }
            }
        }
    }

    /// Nothing moves any more.
    pub(super) fn fail(&mut self, error: Error) {
        for slot in self.slots.iter_mut().flatten() {
            slot.fail(&error);
            let wakers = [slot.receiver.take(), slot.sender.take()];
            wakers.into_iter().flatten().for_each(Waker::wake);
            if let Some(task) = &slot.task {
                task.abort();
            }
        }
        self.failure.get_or_insert(error);
        self.waiting.drain(..).for_each(Waker::wake);
    }

    /// Takes what has arrived, as far as it can; says how much that was. `lender` is the input, if parts of it may be kept;
    /// `woken` are for the caller to wake.
    ///
    /// # Errors
    /// The connection has failed: what is in the output is still to be written.
    pub(super) fn receive(
        &mut self,
        mut input: &[u8],
        lender: Option<&Bytes>,
        incoming: &mut Vec<Incoming>,
        woken: &mut Vec<Waker>,
    ) -> Result<usize, Error> {
        let (now, len) = (self.now(), input.len());
        loop {
            let (taken, event) = self.core.handle_input(now, input)?;
            input = &input[taken..];
            let Some(event) = event else { return Ok(len - input.len()) };
            let seen = Seen { slots: &mut self.slots, places: &self.places, lender, woken };
            let then = seen.see(event, incoming);
            self.act(then, incoming);
        }
    }

    /// Takes what happened without input.
    pub(super) fn collect(&mut self, incoming: &mut Vec<Incoming>, woken: &mut Vec<Waker>) {
        while let Some(event) = self.core.poll_event() {
            let seen = Seen { slots: &mut self.slots, places: &self.places, lender: None, woken };
            let then = seen.see(event, incoming);
            self.act(then, incoming);
        }
    }

    #[inline]
    fn act(&mut self, then: Then, incoming: &mut [Incoming]) {
        match then {
            Then::Nothing => {}
            Then::Opened(key) => {
                let content = self.hold(key, 1);
                if let Some(incoming) = incoming.last_mut() {
                    incoming.content = Some(content);
                }
            }
            Then::Discarded(key, len) => {
                // Misuse is not possible: it is what arrived.
                let _ = self.core.release_capacity(key, len);
                if let Some(unread) = self.unread.iter_mut().find(|unread| unread.key == key) {
                    unread.len += len;
                }
            }
            Then::Released(key) => {
                if let Some(at) = self.find(key) {
                    self.release(at);
                }
            }
            Then::SettingsSeen => {
                self.settings_seen = true;
                self.waiting.drain(..).for_each(Waker::wake);
            }
        }
    }
}

impl Slot {
    pub(super) fn is_of(&self, key: StreamKey) -> bool {
        self.id == key.id()
    }

    /// What has arrived before, and an end that has, can still be read.
    pub(super) fn fail(&mut self, error: &Error) {
        self.failed.get_or_insert_with(|| error.clone());
    }
}

/// Registers who waits, in place of who did.
pub(super) fn register(place: &mut Option<Waker>, cx: &Context<'_>) {
    if !place.as_ref().is_some_and(|old| old.will_wake(cx.waker())) {
        *place = Some(cx.waker().clone());
    }
}

/// A key for hashing that no peer knows.
fn random() -> u64 {
    use std::hash::{BuildHasher as _, Hasher as _, RandomState};
    RandomState::new().build_hasher().finish()
}
