//! The state of a receiver whose connection is not idle: what is read and decoded, without the lock of the connection.

use std::cell::RefCell;

use wireloom_ws::{Delivery, IdleInbound, Inbound, Reader};

use super::session::with_codecs;
use crate::deadline::Timer;
use crate::error::WebSocketError;
use crate::memory::{Account, Category, FREE_LEN, Reservation};
use crate::transport::budget::Budget;
use crate::transport::buffer;

/// Short messages that are returned without a look at the task's budget.
pub(super) const MESSAGES_PER_PAYMENT: u32 = 64;

/// Control frames that are handled before the task pays for them.
pub(super) const CONTROLS_PER_PAYMENT: usize = 512;

/// The cost of a message or a control frame in addition to its length, for a handler that answers it, in bytes of the task's budget.
pub(super) const MESSAGE_COST: usize = 128;

/// While at least this many bytes of a frame are missing, a read goes directly to the end of a message that is being assembled. Fewer bytes
/// are copied there from the read buffer, which takes the bytes of following frames too, so that one system call reads them all.
pub(super) const DIRECT_LEN_MIN: u64 = 16 << 10;

/// While at most this many bytes of a message are missing, it is completed in the read buffer, where it needs no copy.
const IN_PLACE_MISSING_MAX: usize = 64 << 10;

/// As [`IN_PLACE_MISSING_MAX`], for an owned message, which is copied out of the buffer.
const OWNED_IN_PLACE_MISSING_MAX: usize = 16 << 10;

thread_local! {
    /// Unused receivers, for connections that become active. They stay in their boxes: a wake-up of an idle connection takes a fifth
    /// less instructions than with an allocation.
    #[allow(clippy::vec_box)]
    static POOL: RefCell<Vec<Box<ActiveReceiver>>> = const { RefCell::new(Vec::new()) };
}

/// The maximum number of receivers that a thread keeps.
const POOLED_MAX: usize = 8;

/// The state of a receiver whose connection is not idle.
pub(super) struct ActiveReceiver {
    pub(super) reader: Reader,
    /// The length of the last message in bytes, at most `u32::MAX`. The next message is expected to be as long: this decides how
    /// it is read, and how long an allocation it may take from the thread.
    pub(super) last_len: u32,
    /// The error that ended the connection, until it is returned.
    pub(super) failed: Option<Box<WebSocketError>>,
    pub(super) timer: Timer,
    /// The account of the connection, which is set when a task takes the state.
    pub(super) account: Account,
    /// The memory of `reader`; `None` while that is too little to count.
    pub(super) memory: Option<Reservation>,
    /// Bytes of the current message that no observer has been notified of.
    pub(super) unreported_len: u64,
    /// The number of bytes that had been received when the close timeout was found to have expired.
    pub(super) read_before_timeout: Option<u64>,
    /// The cost of the messages that were returned. The task pays it before it receives more.
    pub(super) budget: Budget,
    /// Short messages that are returned before the next payment.
    pub(super) messages_left: u32,
    pub(super) pace: buffer::Pace,
}

/// Where the state of a receiver is. It is polled by the application's [`Receiver`](super::Receiver), and once that is dropped by a task
/// that takes its place.
///
/// ```text
///                    a poll                    it waits, and the connection is not idle
///  Idle (its length) ------> Taken (by a poll) ----------------------------------------> Waiting (here)
///    ^  ^                     | |     ^                                                    |  ^
///    |  +---- it waits -------+ |     +------------------------ a poll --------------------+  |
///    |                          +--> Ended -- it waits, when memory has run out --------------+
///    |                                                                                        |
///    +--------------- a task takes the place -- Dropped, from each state ---------------------+
/// ```
///
/// A poll that takes the state holds it until the receiver waits again, also between two messages. All that a receiver holds while
/// it waits is here, where the server can free it, whether or not its task is polled.
pub(super) enum ReceiverSlot {
    /// Nothing but the length of the last message, because the connection is idle: the state is created again.
    Idle(u32),
    /// A poll has it.
    Taken,
    /// The rest of a message, a deadline or a turn is awaited.
    Waiting(Box<ActiveReceiver>),
    /// The receiver was dropped, and no task has taken its place. `None` if the connection is idle.
    Dropped(Option<Box<ActiveReceiver>>),
    /// Nothing is received any more. If the server ran out of memory while a poll has the state, that is freed when the receiver waits.
    Ended,
}

impl ReceiverSlot {
    /// A poll takes the state; `create` makes it from the length of the last message where the connection was idle. `None` after the end.
    #[inline]
    pub(super) fn take(
        &mut self,
        create: impl FnOnce(u32) -> Box<ActiveReceiver>,
    ) -> Option<Box<ActiveReceiver>> {
        match self {
            Self::Idle(last_len) => {
                let active = create(*last_len);
                *self = Self::Taken;
                Some(active)
            }
            Self::Waiting(_) => self.replace(Self::Taken),
            Self::Taken | Self::Dropped(_) | Self::Ended => None,
        }
    }

    /// Returns the state of a receiver that waits; it is dropped after the unlock.
    pub(super) fn replace(&mut self, slot: Self) -> Option<Box<ActiveReceiver>> {
        match std::mem::replace(self, slot) {
            Self::Waiting(active) => Some(active),
            Self::Dropped(active) => active,
            Self::Idle(_) | Self::Taken | Self::Ended => None,
        }
    }

    /// The receiver waits. Returns the state if it is not needed meanwhile; it is dropped after the unlock.
    pub(super) fn put(&mut self, mut active: Box<ActiveReceiver>) -> Option<Box<ActiveReceiver>> {
        // Mostly `Taken`, which the compiler then knows not to have to drop.
        if !matches!(self, Self::Taken) {
            active.fail_overloaded();
            *self = Self::Taken;
        }
        if active.is_idle() {
            *self = Self::Idle(active.last_len);
            return Some(active);
        }
        *self = Self::Waiting(active);
        None
    }

    /// Whether a poll has the state, or has to continue with what has arrived.
    pub(super) fn is_busy(&self) -> bool {
        match self {
            Self::Taken => true,
            Self::Waiting(active) => active.has_more(DeliveryMode::Configured),
            Self::Idle(_) | Self::Dropped(_) | Self::Ended => false,
        }
    }

    /// Frees what a receiver that waits does not need before more arrives. Returns the state if nothing is left of it; it is dropped after the
    /// unlock.
    pub(super) fn release(&mut self) -> Option<Box<ActiveReceiver>> {
        let Self::Waiting(active) = self else { return None };
        if active.reader.inbound().is_compressed() {
            active.reader.release_buffers();
            // It holds less.
            active.count_memory();
        }
        let waiting = self.replace(Self::Taken)?;
        self.put(waiting)
    }

    /// The receiver is dropped, with the state if it has `taken` that. Returns the state if no task needs it.
    pub(super) fn put_dropped(&mut self, taken: Option<Box<ActiveReceiver>>) -> Option<Box<ActiveReceiver>> {
        let unused = taken.and_then(|active| self.put(active));
        let waiting = self.replace(Self::Ended);
        *self = Self::Dropped(waiting);
        unused
    }

    /// Whether the receiver was dropped, and no task has its place: one that came second would take the place of the first, which nothing
    /// would wake again.
    pub(super) fn is_dropped(&self) -> bool {
        matches!(self, Self::Dropped(_))
    }

    /// A task takes the place of a receiver that was dropped.
    pub(super) fn hand_over(&mut self) {
        if let Self::Dropped(active) = self {
            *self = active.take().map_or(Self::Idle(0), Self::Waiting);
        }
    }

    /// The server is out of memory, and has closed the connection: frees memory.
    pub(super) fn overload(&mut self) {
        match self {
            Self::Waiting(active) | Self::Dropped(Some(active)) => active.fail_overloaded(),
            Self::Taken => *self = Self::Ended,
            Self::Idle(_) | Self::Dropped(None) | Self::Ended => {}
        }
    }

    /// The length of the read buffer of the receiver. A task that has the state, and does something else between two messages, mostly has a
    /// short one.
    pub(super) fn read_buffer_len(&self) -> usize {
        match self {
            Self::Taken => buffer::LEN_SMALL,
            Self::Waiting(active) | Self::Dropped(Some(active)) => active.reader.buffer_len(),
            Self::Idle(_) | Self::Dropped(None) | Self::Ended => 0,
        }
    }
}

/// How a caller wants messages.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum DeliveryMode {
    Configured,
    Whole,
    /// In chunks, which are dropped.
    Discarded,
}

impl ActiveReceiver {
    pub(super) fn new(inbound: Inbound, last_len: u32) -> Box<Self> {
        Box::new(Self {
            reader: Reader::new(inbound),
            last_len,
            failed: None,
            timer: Timer::Unset,
            account: Account::default(),
            memory: None,
            unreported_len: 0,
            read_before_timeout: None,
            budget: Budget::default(),
            messages_left: MESSAGES_PER_PAYMENT,
            pace: buffer::Pace::default(),
        })
    }

    /// The state of an idle connection that becomes active.
    pub(super) fn from_idle(idle: IdleInbound, last_len: u32) -> Box<Self> {
        let spare = POOL.try_with(|spare| spare.borrow_mut().pop()).ok().flatten();
        let Some(mut active) = spare else { return Self::new(idle.into(), last_len) };
        // It was idle when it was recycled, so only limits and role can differ.
        if active.reader.idle() != Some(idle) {
            active.reader = Reader::new(idle.into());
        }
        active.last_len = last_len;
        active
    }

    /// Keeps the state of a connection that has become idle for another one of the thread.
    pub(super) fn recycle(mut self: Box<Self>) {
        self.budget = Budget::default();
        self.pace = buffer::Pace::default();
        self.account = Account::default();
        self.timer = Timer::Unset;
        // There is no pool while the thread ends.
        let _ = POOL.try_with(|pool| {
            let mut pool = pool.borrow_mut();
            if pool.len() < POOLED_MAX {
                pool.push(self);
            }
        });
    }

    /// With `arrived`, bytes that were read before.
    pub(super) fn with_input(inbound: Inbound, arrived: &[u8]) -> Box<Self> {
        let mut active = Self::new(inbound, 0);
        if arrived.is_empty() {
            return active;
        }
        active.reader.set_buffer(buffer::take_bytes_for(arrived.len()));
        let mut space = active.reader.space();
        space.bytes()[..arrived.len()].copy_from_slice(arrived);
        // Bytes in the buffer are decoded later.
        let _ = space.filled(arrived.len());
        active
    }

    /// Adds the cost of the messages since the last call: of the one that was `found`, and of short ones on the fast path. Bytes that
    /// were read and inflated have been added.
    pub(super) fn spend(&mut self, found: bool) {
        let messages = MESSAGES_PER_PAYMENT - self.messages_left + u32::from(found);
        self.budget.spend(messages as usize * MESSAGE_COST);
        self.messages_left = MESSAGES_PER_PAYMENT;
        self.budget.charge(&self.account);
    }

    /// Whether this can be created again from the role and the limits of the connection.
    pub(super) fn is_idle(&self) -> bool {
        self.reader.idle().is_some()
            && self.failed.is_none()
            && !self.timer.is_set()
            && self.memory.is_none()
            && !self.budget.is_waiting()
    }

    /// Takes memory for a long message from the thread, if this has none.
    pub(super) fn take_memory(&mut self) {
        if !self.reader.has_memory() {
            let memory = buffer::take_memory(self.memory_len_max());
            memory.into_iter().for_each(|memory| self.reader.set_memory(memory));
        }
    }

    pub(super) fn release_memory(&mut self) {
        self.reader.take_buffer().into_iter().for_each(buffer::give_bytes);
        if let Some(memory) = self.reader.take_memory() {
            buffer::give_memory(memory, self.memory_len_max());
        }
        if self.reader.inbound().is_compressed() {
            with_codecs(|pool| self.reader.return_codec(pool));
        }
    }

    /// The longest allocation that this connection may take from the thread, in bytes.
    pub(super) fn memory_len_max(&self) -> usize {
        (self.last_len as usize).saturating_mul(2)
    }

    pub(super) fn delivery(&self, mode: DeliveryMode) -> Delivery {
        match mode {
            DeliveryMode::Configured => self.reader.inbound().delivery(),
            DeliveryMode::Whole => Delivery::Messages,
            DeliveryMode::Discarded => Delivery::Chunks,
        }
    }

    /// Whether a read may complete a message in the buffer, where it needs no copy.
    pub(super) fn should_read_on(&self, mode: DeliveryMode) -> bool {
        let missing_max = match mode {
            DeliveryMode::Whole => OWNED_IN_PLACE_MISSING_MAX,
            _ => IN_PLACE_MISSING_MAX,
        };
        self.delivery(mode) == Delivery::Messages && self.reader.should_read_on(missing_max)
    }

    /// Whether there is something to decode. A compressed message may continue without further bytes, and so does one that
    /// was collected for a `recv_owned` that was cancelled.
    pub(super) fn has_more(&self, mode: DeliveryMode) -> bool {
        self.reader.has_more_as(self.delivery(mode))
    }

    /// Counts the memory that is held; false when the limit of the server is reached.
    pub(super) fn count_memory(&mut self) -> bool {
        self.count(self.reader.inbound().memory_len())
    }

    /// Counts the memory to which a long message may grow before it grows, also while it is copied to a larger place; false when the limit
    /// of the server is reached.
    pub(super) fn count_growth(&mut self) -> bool {
        let len = self.reader.grown_memory_len();
        len == self.reader.inbound().memory_len() || self.count(len)
    }

    fn count(&mut self, len: usize) -> bool {
        let inbound = self.reader.inbound();
        if len <= FREE_LEN {
            self.memory = None;
            return true;
        }
        let category = if inbound.is_compressed() { Category::Inflated } else { Category::Assembly };
        self.memory.get_or_insert_with(|| self.account.reservation(category)).try_set(len).is_ok()
    }

    /// The server is out of memory, and has closed the connection.
    #[cold]
    pub(super) fn fail_overloaded(&mut self) {
        self.failed.get_or_insert_with(|| Box::new(WebSocketError::Overloaded));
        self.free();
    }

    /// Nothing is received any more: drops all input, also a message of which a part has arrived, and its memory.
    pub(super) fn free(&mut self) {
        self.reader.discard_input();
        self.release_memory();
        self.reader.free();
        self.memory = None;
    }
}

impl Drop for ActiveReceiver {
    /// Returns memory to the pools of the thread.
    fn drop(&mut self) {
        self.budget.reset(&self.account);
        self.reader.discard_input();
        self.release_memory();
    }
}
