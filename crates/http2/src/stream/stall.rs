//! The stall timeout of streams whose window the peer keeps closed although DATA is queued (CVE-2019-9517).
//!
//! The clock of a stream starts when the stream is blocked. A window of [`Limits::PROGRESS_MIN`] bytes stops it. A smaller one sets it
//! back in proportion ([`Limits::progress`]), so that many small windows count as much as a large one. The list of blocked streams is not
//! ordered by time, because a stream that is blocked again keeps its clock. The list is scanned when the oldest known clock
//! expires, at most `SCANS_MAX` times per timeout.

use alloc::vec::Vec;
use core::time::Duration;

use super::{NONE, StallClock, Stream, StreamKey, Streams};
use crate::Limits;

/// The maximum number of scans of the blocked streams per timeout. It bounds the work that a peer can cause.
const SCANS_MAX: u32 = 64;

/// The clocks of all blocked streams.
pub(crate) struct Stall {
    /// No clock of a blocked stream expires before this time; `None` if no clock runs.
    next_scan: Option<Duration>,
    /// The earliest time of the next scan.
    scan_min: Duration,
    /// No clock started after this time.
    started: Duration,
    /// The timeout of the clocks.
    timeout: Duration,
    /// Whether a clock starts at the next time that the caller passes.
    is_pending: bool,
}

impl Stall {
    pub(super) const fn new() -> Self {
        Self {
            next_scan: None,
            scan_min: Duration::ZERO,
            started: Duration::ZERO,
            timeout: Duration::MAX,
            is_pending: false,
        }
    }
}

impl Stall {
    /// The deadline of a clock that started no later than `started`.
    fn deadline(&self, since_ms: u32) -> Duration {
        let age = Duration::from_millis(u64::from(millis(self.started).wrapping_sub(since_ms)));
        self.started.saturating_sub(age).saturating_add(self.timeout)
    }

    /// Sets back the clock of a stream whose peer has accepted `len` bytes.
    pub(super) fn postpone(&mut self, stream: &mut Stream, len: u32, now: Duration) {
        let StallClock::Since(since_ms) = stream.stall_clock() else { return };
        // Rounded up, so that many small windows are not worth less than a large one.
        let by_ms = Limits::progress(self.timeout, len as usize).as_millis() + 1;
        let age_ms = millis(now).wrapping_sub(since_ms);
        let by_ms = u32::try_from(by_ms).unwrap_or(u32::MAX).min(age_ms);
        stream.set_stall_clock(StallClock::Since(since_ms.wrapping_add(by_ms)));
        self.started = self.started.max(now);
    }
}

/// Milliseconds, which wrap after 49 days: only differences are meaningful.
pub(crate) const fn millis(now: Duration) -> u32 {
    now.as_millis() as u32
}

impl Streams {
    /// Adds a stream with DATA but without window to the blocked ones.
    pub(super) fn block(&mut self, slot: u32) {
        if self.scheduler.first_blocked().is_none() {
            self.stall.next_scan = None;
        }
        let stream = self.slab.get_mut(slot);
        let mut is_running = false;
        if let StallClock::Since(since_ms) = stream.stall_clock() {
            // This clock may be the oldest one.
            is_running = true;
            let deadline = self.stall.deadline(since_ms).max(self.stall.scan_min);
            self.stall.next_scan = Some(self.stall.next_scan.map_or(deadline, |next| next.min(deadline)));
        } else {
            stream.set_stall_clock(StallClock::Pending);
            self.stall.is_pending = true;
        }
        self.scheduler.add_blocked(&mut self.slab, slot, is_running);
    }

    /// Whether [`Streams::start_clocks`] has a clock to start.
    #[inline]
    pub(crate) const fn has_pending_clock(&self) -> bool {
        self.stall.is_pending
    }

    /// Starts the pending clocks.
    pub(crate) fn start_clocks(&mut self, now: Duration, timeout: Duration) {
        (self.stall.is_pending, self.stall.started, self.stall.timeout) = (false, now, timeout);
        let mut at = self.scheduler.last_blocked();
        while let Some(slot) = at {
            let stream = self.slab.get_mut(slot);
            if stream.stall_clock() != StallClock::Pending {
                break;
            }
            stream.set_stall_clock(StallClock::Since(millis(now)));
            at = (stream.prev != NONE).then_some(stream.prev);
            self.stall.next_scan.get_or_insert(now.saturating_add(timeout));
        }
    }

    /// The time at which to call [`Streams::stalled`].
    pub(crate) fn stall_deadline(&self) -> Option<Duration> {
        self.scheduler.first_blocked().and(self.stall.next_scan)
    }

    /// The streams that have had DATA but no window for `timeout`.
    pub(crate) fn stalled(&mut self, now: Duration, timeout: Duration) -> Vec<StreamKey> {
        let mut stalled = Vec::new();
        if self.stall_deadline().is_none_or(|deadline| deadline > now) {
            return stalled;
        }
        let (timeout_ms, mut oldest_ms) = (timeout.as_millis(), 0);
        let mut at = self.scheduler.first_blocked();
        while let Some(slot) = at {
            let stream = self.slab.get(slot);
            if let StallClock::Since(since_ms) = stream.stall_clock() {
                let age_ms = millis(now).wrapping_sub(since_ms);
                if u128::from(age_ms) >= timeout_ms {
                    stalled.push(StreamKey::new(slot, stream.id));
                } else {
                    oldest_ms = oldest_ms.max(age_ms);
                }
            }
            at = (stream.next != NONE).then_some(stream.next);
        }
        let oldest = now.saturating_sub(Duration::from_millis(u64::from(oldest_ms))).saturating_add(timeout);
        self.stall.scan_min = now.saturating_add(timeout / SCANS_MAX);
        self.stall.next_scan = Some(oldest.max(self.stall.scan_min));
        stalled
    }
}
