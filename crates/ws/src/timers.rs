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
    /// When the first and the last keepalive ping were queued, if the peer has not been active since.
    pinged_at: Option<(Duration, Duration)>,
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
        watchdog.dead_at().into_iter().chain([watchdog.ping_at()]).min()
    }

    /// The deadline that has passed at `now`.
    pub(crate) fn due(&mut self, now: Duration) -> Due {
        if let Some(close_by) = self.close_by {
            return if now >= close_by { Due::Close } else { Due::Nothing };
        }
        let Some(watchdog) = &mut self.watchdog else { return Due::Nothing };
        if watchdog.dead_at().is_some_and(|dead_at| now >= dead_at) {
            return Due::Silence;
        }
        if now >= watchdog.ping_at() {
            let first = watchdog.pinged_at.map_or(now, |(first, _)| first);
            watchdog.pinged_at = Some((first, now));
            return Due::Ping;
        }
        Due::Nothing
    }
}

impl Watchdog {
    fn ping_at(&self) -> Duration {
        let last = self.pinged_at.map_or(self.active_at, |(_, last)| last);
        last.saturating_add(self.keepalive.ping_after)
    }

    /// `None` until the peer was pinged, unless `dead_after` leaves no time for a ping. A deadline that is handled late, because
    /// the application was busy, leaves the peer as much time to answer as one that is handled in time.
    fn dead_at(&self) -> Option<Duration> {
        let Keepalive { ping_after, dead_after } = self.keepalive;
        let dead_at = self.active_at.saturating_add(dead_after);
        match self.pinged_at {
            Some((first, _)) => {
                Some(dead_at.max(first.saturating_add(dead_after.saturating_sub(ping_after))))
            }
            None => (ping_after >= dead_after).then_some(dead_at),
        }
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

    #[test]
    fn pings_before_it_gives_up_also_when_it_is_called_late() {
        let mut timers = Timers::new(Some(Keepalive { ping_after: s(10), dead_after: s(25) }), s(100));
        assert_eq!(timers.due(s(200)), Due::Ping);
        assert_eq!(timers.due(s(200)), Due::Nothing);
        assert_eq!(timers.due(s(214)), Due::Ping);
        assert_eq!((timers.next(), timers.due(s(215))), (Some(s(215)), Due::Silence));
        timers.handle_activity(s(215));
        assert_eq!((timers.next(), timers.due(s(300))), (Some(s(225)), Due::Ping));
    }

    #[test]
    fn gives_up_without_a_ping_that_would_come_later() {
        let mut timers =
            Timers::new(Some(Keepalive { ping_after: Duration::MAX, dead_after: s(25) }), s(100));
        assert_eq!((timers.next(), timers.due(s(124))), (Some(s(125)), Due::Nothing));
        assert_eq!(timers.due(s(125)), Due::Silence);
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
