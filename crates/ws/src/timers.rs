//! Deadlines, and the pings that measure round trips. Time is the caller's: durations since an epoch of its choosing.

use crate::config::Keepalive;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::time::Duration;

/// Pings whose pongs are awaited; more are forgotten from the oldest on, since a pong may answer only the newest
/// (RFC 6455 §5.5.3).
const AWAITED_MAX: usize = 16;

#[derive(Debug)]
pub(crate) struct Timers {
    watchdog: Option<Box<Watchdog>>,
    /// When the closing handshake must be over.
    pub(crate) close_by: Option<Duration>,
    /// Oldest first: the last of all that were sent.
    awaited: Option<Box<Awaited>>,
    pub(crate) pings_sent: u32,
    /// `pings_answered <= pings_sent`, but for their wrapping.
    pub(crate) pings_answered: u32,
}

/// The state of keepalive.
#[derive(Debug)]
struct Watchdog {
    keepalive: Keepalive,
    /// When the peer was last active.
    active_at: Duration,
    /// When the last keepalive ping was queued, if the peer has not been active since.
    pinged_at: Option<Duration>,
}

/// Payloads of pings, and when these were sent.
type Awaited = VecDeque<(Vec<u8>, Duration)>;

/// A deadline that has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    Nothing,
    Ping,
    Silence,
    Close,
}

impl Timers {
    pub(crate) fn new(keepalive: Option<Keepalive>, now: Duration) -> Self {
        Self {
            watchdog: keepalive
                .map(|keepalive| Box::new(Watchdog { keepalive, active_at: now, pinged_at: None })),
            close_by: None,
            awaited: None,
            pings_sent: 0,
            pings_answered: 0,
        }
    }

    pub(crate) fn keeps_alive(&self) -> bool {
        self.watchdog.is_some()
    }

    /// The peer is alive.
    #[inline]
    pub(crate) fn handle_activity(&mut self, now: Duration) {
        if let Some(watchdog) = &mut self.watchdog {
            watchdog.active_at = now;
            watchdog.pinged_at = None;
        }
    }

    /// A ping was queued.
    pub(crate) fn ping_sent(&mut self, payload: &[u8], now: Duration) {
        let awaited = self.awaited.get_or_insert_default();
        if awaited.len() == AWAITED_MAX {
            awaited.pop_front();
        }
        awaited.push_back((payload.to_vec(), now));
        self.pings_sent = self.pings_sent.wrapping_add(1);
    }

    /// The round trip that a pong ends. Pings before the one that it answers will get none (RFC 6455 §5.5.3).
    pub(crate) fn pong_arrived(&mut self, payload: &[u8], now: Duration) -> Option<Duration> {
        let awaited = self.awaited.as_mut()?;
        let at = awaited.iter().rposition(|(sent, _)| sent == payload)?;
        let (_, sent_at) = awaited.drain(..=at).next_back()?;
        self.pings_answered = self.pings_sent.wrapping_sub(awaited.len() as u32);
        Some(now.saturating_sub(sent_at))
    }

    /// The next deadline.
    pub(crate) fn next(&self) -> Option<Duration> {
        if self.close_by.is_some() {
            return self.close_by;
        }
        let watchdog = self.watchdog.as_deref()?;
        Some(watchdog.dead_at().min(watchdog.ping_at()))
    }

    /// The deadline that has passed at `now`.
    pub(crate) fn due(&mut self, now: Duration) -> Due {
        if let Some(close_by) = self.close_by {
            return if now >= close_by { Due::Close } else { Due::Nothing };
        }
        let Some(watchdog) = &mut self.watchdog else { return Due::Nothing };
        if now >= watchdog.dead_at() {
            return Due::Silence;
        }
        if now >= watchdog.ping_at() {
            watchdog.pinged_at = Some(now);
            return Due::Ping;
        }
        Due::Nothing
    }
}

impl Watchdog {
    fn ping_at(&self) -> Duration {
        self.pinged_at.unwrap_or(self.active_at).saturating_add(self.keepalive.ping_after)
    }

    fn dead_at(&self) -> Duration {
        self.active_at.saturating_add(self.keepalive.dead_after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn pings_into_silence_and_then_gives_up() {
        let mut timers = Timers::new(Some(Keepalive { ping_after: s(10), dead_after: s(25) }), s(100));
        assert_eq!(timers.next(), Some(s(110)));
        assert_eq!(timers.due(s(109)), Due::Nothing);
        assert_eq!(timers.due(s(110)), Due::Ping);
        assert_eq!(timers.due(s(110)), Due::Nothing);
        assert_eq!(timers.next(), Some(s(120)));
        timers.handle_activity(s(111));
        assert_eq!(timers.next(), Some(s(121)));
        assert_eq!(timers.due(s(121)), Due::Ping);
        assert_eq!(timers.due(s(131)), Due::Ping);
        assert_eq!(timers.next(), Some(s(136)));
        assert_eq!(timers.due(s(136)), Due::Silence);
    }

    // RFC 6455 §5.5.3: a pong may answer only the most recent ping.
    #[test]
    fn measures_the_ping_that_the_pong_answers() {
        let mut timers = Timers::new(None, s(0));
        for i in 0..20u8 {
            timers.ping_sent(&[i], s(i.into()));
        }
        assert_eq!(timers.pong_arrived(&[3], s(30)), None);
        assert_eq!((timers.pings_sent, timers.pings_answered), (20, 0));
        assert_eq!(timers.pong_arrived(&[10], s(30)), Some(s(20)));
        assert_eq!(timers.pings_answered, 11);
        assert_eq!(timers.pong_arrived(&[9], s(30)), None);
        assert_eq!(timers.pong_arrived(&[19], s(30)), Some(s(11)));
        assert!(timers.awaited.as_ref().is_none_or(|awaited| awaited.is_empty()));
        assert_eq!(timers.pings_answered, 20);
        assert_eq!(timers.next(), None);
    }
}
