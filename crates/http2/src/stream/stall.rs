//! The stall timeout of streams whose window the peer keeps closed although DATA is queued (CVE-2019-9517).
//!
//! The clock of a stream starts when the stream is blocked. A window of [`Limits::PROGRESS_MIN`] bytes stops it. A smaller one sets it
//! back in proportion ([`Limits::progress`]), so that many small windows count as much as a large one. The list of blocked streams is not
//! ordered by time, because a stream that is blocked again keeps its clock. The list is scanned when the oldest known clock
//! expires, at most `SCANS_MAX` times per timeout.

use alloc::vec::Vec;
use core::time::Duration;

use super::{NONE, Scheduler, Slab, Stream, StreamKey};
use crate::Limits;

/// The maximum number of scans of the blocked streams per timeout. It bounds the work that a peer can cause.
const SCANS_MAX: u32 = 64;

/// The clocks of all blocked streams.
pub(crate) struct Stall {
    /// No clock of a blocked stream expires before this time; `None` if no stream is blocked.
    next_scan: Option<Duration>,
    /// The earliest time of the next scan.
    scan_min: Duration,
    timeout: Duration,
}

impl Stall {
    pub(super) const fn new(timeout: Duration) -> Self {
        Self { next_scan: None, scan_min: Duration::ZERO, timeout }
    }

    /// Sets back the clock of a stream whose peer has accepted `len` bytes.
    pub(super) fn postpone(&self, stream: &mut Stream, len: u32, now: Duration) {
        let Some(since_ms) = stream.stalled_since() else { return };
        // Rounded up, so that many small windows are not worth less than a large one.
        let by_ms = Limits::progress(self.timeout, len as usize).as_millis() + 1;
        let age_ms = millis(now).wrapping_sub(since_ms);
        let by_ms = u32::try_from(by_ms).unwrap_or(u32::MAX).min(age_ms);
        stream.set_stalled_since(Some(since_ms.wrapping_add(by_ms)));
    }
}

/// Milliseconds, which wrap after 49 days: only differences are meaningful.
const fn millis(now: Duration) -> u32 {
    now.as_millis() as u32
}

impl Stall {
    /// Adds a stream with DATA but without window to the blocked ones.
    pub(super) fn block(&mut self, slab: &mut Slab, scheduler: &mut Scheduler, slot: u32, now: Duration) {
        if scheduler.first_blocked().is_none() {
            self.next_scan = None;
        }
        let stream = slab.get_mut(slot);
        let since_ms = stream.stalled_since().unwrap_or_else(|| millis(now));
        stream.set_stalled_since(Some(since_ms));
        let age = Duration::from_millis(u64::from(millis(now).wrapping_sub(since_ms)));
        let deadline = now.saturating_sub(age).saturating_add(self.timeout).max(self.scan_min);
        self.next_scan = Some(self.next_scan.map_or(deadline, |next| next.min(deadline)));
        scheduler.add_blocked(slab, slot);
    }

    /// The time at which to call [`Stall::expired`].
    pub(super) fn deadline(&self, scheduler: &Scheduler) -> Option<Duration> {
        scheduler.first_blocked().and(self.next_scan)
    }

    /// The streams that have had DATA but no window for the timeout.
    pub(super) fn expired(&mut self, slab: &Slab, scheduler: &Scheduler, now: Duration) -> Vec<StreamKey> {
        let mut expired = Vec::new();
        if self.deadline(scheduler).is_none_or(|deadline| deadline > now) {
            return expired;
        }
        let timeout = self.timeout;
        let mut oldest_ms = 0;
        let mut at = scheduler.first_blocked();
        while let Some(slot) = at {
            let stream = slab.get(slot);
            if let Some(since_ms) = stream.stalled_since() {
                let age_ms = millis(now).wrapping_sub(since_ms);
                if u128::from(age_ms) >= timeout.as_millis() {
                    expired.push(StreamKey::new(slot, stream.id));
                } else {
                    oldest_ms = oldest_ms.max(age_ms);
                }
            }
            at = (stream.next != NONE).then_some(stream.next);
        }
        let oldest = now.saturating_sub(Duration::from_millis(u64::from(oldest_ms))).saturating_add(timeout);
        self.scan_min = now.saturating_add(timeout / SCANS_MAX);
        self.next_scan = Some(oldest.max(self.scan_min));
        expired
    }
}

#[cfg(test)]
mod tests {
    use super::super::{RecvPhase, SendPhase};
    use super::*;
    use crate::frame::StreamId;

    #[test]
    fn many_small_windows_are_worth_as_much_as_a_large_one() {
        let timeout = Duration::from_secs(300);
        let stall = Stall::new(timeout);
        for (windows, len) in [(1, Limits::PROGRESS_MIN), (Limits::PROGRESS_MIN, 1), (256, 4)] {
            let mut stream = Stream::new(StreamId::FIRST_CLIENT, RecvPhase::End, SendPhase::Content);
            stream.set_stalled_since(Some(1));
            let now = 2 * timeout;
            for _ in 0..windows {
                stall.postpone(&mut stream, len, now);
            }
            assert!(stream.stalled_since() > Some(millis(timeout)), "{len}: {:?}", stream.stalled_since());
            // Never later than now.
            for _ in 0..2 * windows {
                stall.postpone(&mut stream, len, now);
            }
            assert_eq!(stream.stalled_since(), Some(millis(now)));
        }
    }
}
