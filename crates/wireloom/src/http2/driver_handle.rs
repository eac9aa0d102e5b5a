//! The handle by which commands wake the driver of a connection.

use std::task::Context;
use std::time::Duration;

use crate::guard::{Deferred, WakerSlot};

/// The state of the driver that commands use to wake it.
#[derive(Default)]
pub(super) struct DriverHandle {
    pub(super) state: DriverState,
    waker: WakerSlot,
    /// The deadline of its timer, on the core's clock.
    armed: Option<Duration>,
    /// A deadline begins when no stream is left.
    awaits_last_stream: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum DriverState {
    /// It runs, and handles the effects of a command before it waits again.
    #[default]
    Running,
    /// It waits for the transport, a deadline or a command.
    Waiting,
    WokenByCommand,
    /// It writes nothing more.
    Ended,
}

impl DriverHandle {
    /// The driver waits from now on, with its timer armed for this deadline. `awaits_last_stream`: another one begins when no stream is
    /// left.
    pub(super) fn park(
        &mut self,
        deferred: &mut Deferred,
        cx: &Context<'_>,
        armed: Option<Duration>,
        awaits_last_stream: bool,
    ) {
        deferred.register(&mut self.waker, cx);
        self.armed = armed;
        self.awaits_last_stream = awaits_last_stream;
        self.state = DriverState::Waiting;
    }

    /// Wakes the driver, which waits.
    pub(super) fn wake(&mut self, deferred: &mut Deferred) {
        self.state = DriverState::WokenByCommand;
        deferred.wake(&mut self.waker);
    }

    pub(super) fn awaits_last_stream(&self) -> bool {
        self.state == DriverState::Waiting && self.awaits_last_stream
    }

    /// Whether its timer would expire after this deadline.
    pub(super) fn is_late_for(&self, deadline: Option<Duration>) -> bool {
        deadline.is_some_and(|deadline| self.armed.is_none_or(|armed| deadline < armed))
    }
}
