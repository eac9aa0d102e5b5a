//! Deadlines of keepalive, and round-trip times of pings. The caller passes in the time.

use crate::config::Keepalive;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::time::Duration;

/// The most pings that wait for their pong. Beyond it the oldest is forgotten: a peer may answer only the newest ping
/// (RFC 6455 §5.5.3).
const PENDING_PINGS_MAX: usize = 16;

/// The shortest interval of keepalive pings: without one, a ping would be due whenever the caller looks.
const PING_AFTER_MIN: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(crate) struct Timers {
    /// One word, because idle connections have it too: `None` without keepalive until the first ping.
    state: Option<Box<State>>,
}

#[derive(Debug, Default)]
struct State {
    keepalive: Option<KeepaliveState>,
    pings: Pings,
}

/// The state of keepalive.
#[derive(Debug)]
struct KeepaliveState {
    config: Keepalive,
    /// When the peer was last active.
    active_at: Duration,
    /// When the first and the last keepalive ping were queued, if the peer has not been active since.
    pinged_at: Option<(Duration, Duration)>,
}

/// The pings of this end.
#[derive(Debug, Default)]
struct Pings {
    /// Payloads of pings that were not answered, and the times at which they were sent, oldest first.
    pending: VecDeque<(Vec<u8>, Duration)>,
    sent: u32,
    /// `answered <= sent`, unless `sent` has wrapped around.
    answered: u32,
}

/// A deadline that has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    Nothing,
    Ping,
    Silence,
}

impl Timers {
    pub(crate) fn new(keepalive: Option<Keepalive>, now: Duration) -> Self {
        let state = keepalive.map(|mut config| {
            config.ping_after = config.ping_after.max(PING_AFTER_MIN);
            let keepalive = KeepaliveState { config, active_at: now, pinged_at: None };
            Box::new(State { keepalive: Some(keepalive), pings: Pings::default() })
        });
        Self { state }
    }

    fn keepalive(&self) -> Option<&KeepaliveState> {
        self.state.as_ref()?.keepalive.as_ref()
    }

    /// The number of pings that were queued.
    pub(crate) fn pings_sent(&self) -> u32 {
        self.state.as_ref().map_or(0, |state| state.pings.sent)
    }

    /// The number of the newest ping that was answered, from 1.
    pub(crate) fn pings_answered(&self) -> u32 {
        self.state.as_ref().map_or(0, |state| state.pings.answered)
    }

    pub(crate) fn keeps_alive(&self) -> bool {
        self.keepalive().is_some()
    }

    /// The peer is alive.
    #[inline]
    pub(crate) fn handle_activity(&mut self, now: Duration) {
        if let Some(state) = &mut self.state
            && let Some(keepalive) = &mut state.keepalive
        {
            keepalive.active_at = now;
            keepalive.pinged_at = None;
        }
    }

    /// A ping was queued.
    pub(crate) fn log_ping(&mut self, payload: &[u8], now: Duration) {
        let Pings { pending, sent, .. } = &mut self.state.get_or_insert_default().pings;
        if pending.len() == PENDING_PINGS_MAX {
            pending.pop_front();
        }
        pending.push_back((payload.to_vec(), now));
        *sent = sent.wrapping_add(1);
    }

    /// Returns the round-trip time of the ping that this pong answers. Earlier pings are not answered any more (RFC 6455 §5.5.3).
    pub(crate) fn handle_pong(&mut self, payload: &[u8], now: Duration) -> Option<Duration> {
        let Pings { pending, sent, answered } = &mut self.state.as_mut()?.pings;
        let at = pending.iter().rposition(|(sent, _)| sent == payload)?;
        let (_, sent_at) = pending.drain(..=at).next_back()?;
        *answered = sent.wrapping_sub(pending.len() as u32);
        Some(now.saturating_sub(sent_at))
    }

    /// The next deadline.
    pub(crate) fn next(&self) -> Option<Duration> {
        let keepalive = self.keepalive()?;
        keepalive.dead_at().into_iter().chain([keepalive.ping_at()]).min()
    }

    /// The deadline that has passed at `now`.
    pub(crate) fn due(&mut self, now: Duration) -> Due {
        let keepalive = self.state.as_mut().and_then(|state| state.keepalive.as_mut());
        let Some(keepalive) = keepalive else { return Due::Nothing };
        if keepalive.dead_at().is_some_and(|dead_at| now >= dead_at) {
            return Due::Silence;
        }
        if now >= keepalive.ping_at() {
            let first = keepalive.pinged_at.map_or(now, |(first, _)| first);
            keepalive.pinged_at = Some((first, now));
            return Due::Ping;
        }
        Due::Nothing
    }
}

impl KeepaliveState {
    fn ping_at(&self) -> Duration {
        let last = self.pinged_at.map_or(self.active_at, |(_, last)| last);
        last.saturating_add(self.config.ping_after)
    }

    /// `None` until the peer was pinged, unless `dead_after` leaves no time for a ping. A deadline that is handled late, because
    /// the application was busy, leaves the peer as much time to answer as one that is handled in time.
    fn dead_at(&self) -> Option<Duration> {
        let Keepalive { ping_after, dead_after } = self.config;
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
    fn pings_a_silent_peer_until_it_is_dead() {
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

    // Otherwise a caller that handles what is due before it waits never waits.
    #[test]
    fn pings_have_an_interval() {
        let mut timers =
            Timers::new(Some(Keepalive { ping_after: Duration::ZERO, dead_after: s(25) }), s(100));
        let first = timers.next().unwrap();
        assert!(first > s(100));
        assert_eq!(timers.due(first), Due::Ping);
        assert_eq!(timers.due(first), Due::Nothing);
        assert!(timers.next().unwrap() > first);
    }

    // RFC 6455 §5.5.3: a pong may answer only the most recent ping.
    #[test]
    fn measures_the_ping_that_the_pong_answers() {
        let mut timers = Timers::new(None, s(0));
        for i in 0..20u8 {
            timers.log_ping(&[i], s(i.into()));
        }
        assert_eq!(timers.handle_pong(&[3], s(30)), None);
        assert_eq!((timers.pings_sent(), timers.pings_answered()), (20, 0));
        assert_eq!(timers.handle_pong(&[10], s(30)), Some(s(20)));
        assert_eq!(timers.pings_answered(), 11);
        assert_eq!(timers.handle_pong(&[9], s(30)), None);
        assert_eq!(timers.handle_pong(&[19], s(30)), Some(s(11)));
        assert!(timers.state.as_ref().unwrap().pings.pending.is_empty());
        assert_eq!(timers.pings_answered(), 20);
        assert_eq!(timers.next(), None);
    }

    #[test]
    fn ends_without_a_ping_that_would_be_as_late() {
        for (ping_after, due) in [(4, Due::Ping), (5, Due::Silence), (6, Due::Silence)] {
            let keepalive = Keepalive { ping_after: s(ping_after), dead_after: s(5) };
            assert_eq!(Timers::new(Some(keepalive), s(100)).due(s(105)), due, "{ping_after}");
        }
    }
}
