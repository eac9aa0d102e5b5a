//! [`OutputTimers`]: for how long the peer has neither taken output nor granted window for it.

use core::time::Duration;

use super::timer::Timer;
use crate::Limits;

pub(super) struct OutputTimers {
    /// Runs while output is buffered. Bytes that the transport accepts postpone it.
    write: Timer,
    /// Runs while DATA is ready and the window of the connection is closed, on the [`InputClock`](super::timer::InputClock). Window that the peer
    /// grants postpones it.
    window: Timer,
}

impl OutputTimers {
    pub(super) const fn new() -> Self {
        Self { write: Timer::Stopped, window: Timer::Stopped }
    }

    /// Output is buffered.
    #[inline]
    pub(super) fn output_buffered(&mut self, now: Duration) {
        self.write.begin(now);
    }

    /// The transport has accepted `len` bytes; `is_empty` if that was all output.
    pub(super) fn transmitted(&mut self, len: usize, is_empty: bool, timeout: Duration, now: Duration) {
        if is_empty {
            self.write = Timer::Stopped;
        } else if len >= Limits::PROGRESS_MIN as usize {
            self.write.restart(now);
        } else {
            self.write.postpone(len, timeout, now);
        }
    }

    /// DATA is ready, and the window of the connection is closed.
    pub(super) fn window_closed(&mut self, now: Duration) {
        self.window.begin(now);
    }

    /// Whether the peer has a time for granting window.
    pub(super) fn awaits_window(&self) -> bool {
        self.window != Timer::Stopped
    }

    /// No DATA waits for the window of the connection.
    #[inline]
    pub(super) const fn window_not_needed(&mut self) {
        self.window = Timer::Stopped;
    }

    /// The peer has granted window of the connection.
    #[inline]
    pub(super) fn window_granted(&mut self, increment: u32, timeout: Duration, now: Duration) {
        if increment >= Limits::PROGRESS_MIN {
            self.window = Timer::Stopped;
        } else {
            self.window.postpone(increment as usize, timeout, now);
        }
    }

    /// When the peer must have taken output.
    pub(super) fn write_deadline(&self, timeout: Duration) -> Option<Duration> {
        self.write.deadline(timeout)
    }

    /// When the peer must have granted window, on the clock of input.
    pub(super) fn window_deadline(&self, timeout: Duration) -> Option<Duration> {
        self.window.deadline(timeout)
    }
}
