//! Deadlines, and the pings that measure round trips. Time is the caller's: durations since an epoch of its choosing.

use crate::config::Keepalive;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::time::Duration;

/// Pings whose pongs are awaited; more are forgotten from the oldest on, since a pong may answer only the newest
/// (RFC 6455 §5.5.3).
const AWAITED_MAX: usize = 16;

#[derive(Debug)]
pub(crate) struct Timers {
    keepalive: Option<Keepalive>,
    /// When the peer was last heard.
    heard: Duration,
    /// When the last keepalive ping was queued, if the peer has not been heard since.
    asked: Option<Duration>,
    /// When the closing handshake must be over.
    pub(crate) close_by: Option<Duration>,
    /// Oldest first: the last of all that were sent.
    awaited: VecDeque<(Vec<u8>, Duration)>,
    pub(crate) pings_sent: u32,
    /// `pings_answered <= pings_sent`, but for their wrapping.
    pub(crate) pings_answered: u32,
}

/// What is due.
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
            keepalive,
            heard: now,
            asked: None,
            close_by: None,
            awaited: VecDeque::new(),
            pings_sent: 0,
            pings_answered: 0,
        }
    }

    pub(crate) fn keeps_alive(&self) -> bool {
        self.keepalive.is_some()
    }

    /// Bytes have arrived.
    #[inline]
    pub(crate) fn hear(&mut self, now: Duration) {
        self.heard = now;
        self.asked = None;
    }

    /// A ping was queued.
    pub(crate) fn ping_sent(&mut self, payload: &[u8], now: Duration) {
        if self.awaited.len() == AWAITED_MAX {
            self.awaited.pop_front();
        }
        self.awaited.push_back((payload.to_vec(), now));
        self.pings_sent = self.pings_sent.wrapping_add(1);
    }

    /// The round trip that a pong ends. Pings before the one that it answers will get none (RFC 6455 §5.5.3).
    pub(crate) fn pong_arrived(&mut self, payload: &[u8], now: Duration) -> Option<Duration> {
        let at = self.awaited.iter().rposition(|(sent, _)| sent == payload)?;
        let (_, sent_at) = self.awaited.drain(..=at).next_back()?;
        self.pings_answered = self.pings_sent.wrapping_sub(self.awaited.len() as u32);
        Some(now.saturating_sub(sent_at))
    }

    /// The next deadline.
    pub(crate) fn next(&self) -> Option<Duration> {
        if self.close_by.is_some() {
            return self.close_by;
        }
        let keepalive = self.keepalive?;
        let dead = self.heard.saturating_add(keepalive.dead_after);
        Some(dead.min(self.ping_due(keepalive)))
    }

    fn ping_due(&self, keepalive: Keepalive) -> Duration {
        self.asked.unwrap_or(self.heard).saturating_add(keepalive.ping_after)
    }

    /// What the time is up for.
    pub(crate) fn due(&mut self, now: Duration) -> Due {
        if let Some(close_by) = self.close_by {
            return if now >= close_by { Due::Close } else { Due::Nothing };
        }
        let Some(keepalive) = self.keepalive else { return Due::Nothing };
        if now >= self.heard.saturating_add(keepalive.dead_after) {
            return Due::Silence;
        }
        if now >= self.ping_due(keepalive) {
            self.asked = Some(now);
            return Due::Ping;
        }
        Due::Nothing
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
        timers.hear(s(111));
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
        assert!(timers.awaited.is_empty());
        assert_eq!(timers.pings_answered, 20);
        assert_eq!(timers.next(), None);
    }
}
