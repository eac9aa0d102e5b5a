//! The timers of a connection beyond those of the core: each knows its deadline and nothing of the others.

use std::time::Duration;

use tokio::time::Instant;
use wireloom_http2::error::ErrorCode;
use wireloom_http2::{Connection, Ended, Limits, Role};
use wireloom_ws::Keepalive;

use crate::deadline::after;

/// Sends a PING to a silent peer, and ends the connection if there is no answer (RFC 9113 §6.7).
pub(super) struct KeepaliveTimer {
    config: Keepalive,
    /// When the peer has last sent something, or read output that was blocked.
    active_at: Instant,
    /// When the PING was sent, if the peer was not active since.
    pinged_at: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeepaliveAction {
    Wait,
    SendPing,
    PeerDead,
}

impl KeepaliveTimer {
    pub(super) fn new(config: Keepalive, now: Instant) -> Self {
        Self { config, active_at: now, pinged_at: None }
    }

    pub(super) fn handle_activity(&mut self, now: Instant) {
        self.active_at = now;
        self.pinged_at = None;
    }

    pub(super) fn deadline(&self) -> Instant {
        self.dead_at().unwrap_or_else(|| after(self.active_at, self.config.ping_after))
    }

    /// The time at which the peer counts as dead; `None` before the PING, unless `dead_after` leaves no time for one. After the PING the
    /// peer always has `dead_after - ping_after` to answer, even if the machine was suspended before.
    fn dead_at(&self) -> Option<Instant> {
        let Keepalive { ping_after, dead_after } = self.config;
        let dead_at = after(self.active_at, dead_after);
        match self.pinged_at {
            Some(pinged_at) => Some(dead_at.max(after(pinged_at, dead_after.saturating_sub(ping_after)))),
            None => (ping_after >= dead_after).then_some(dead_at),
        }
    }

    pub(super) fn handle_deadline(&mut self, now: Instant) -> KeepaliveAction {
        if self.dead_at().is_some_and(|dead_at| now >= dead_at) {
            KeepaliveAction::PeerDead
        } else if self.pinged_at.is_none() && now >= after(self.active_at, self.config.ping_after) {
            self.pinged_at = Some(now);
            KeepaliveAction::SendPing
        } else {
            KeepaliveAction::Wait
        }
    }
}

/// Measures how long a connection has been without streams.
#[derive(Default)]
pub(super) struct IdleTimer {
    pub(super) timeout: Option<Duration>,
    since: Option<Instant>,
}

impl IdleTimer {
    pub(super) fn update(&mut self, streams: usize, now: Instant) {
        if streams > 0 {
            self.since = None;
        } else {
            self.since.get_or_insert(now);
        }
    }

    /// A request has arrived. It may be answered before [`update`](Self::update) sees its stream.
    pub(super) fn handle_request(&mut self) {
        self.since = None;
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        // A deadline that the clock cannot represent never expires.
        self.since?.checked_add(self.timeout?)
    }
}

/// The end of a connection: how long the peer may take to acknowledge GOAWAY once no stream is left, and to read the last
/// output once the core has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Drain {
    /// Streams are open, or may be opened.
    NotStarted,
    /// GOAWAY was sent or received, no stream is left, and the peer may have read all output.
    AwaitingPeer { since: Instant },
    /// All streams have finished, and their last output has not left yet. What the peer accepts of it postpones `since`.
    Flushing { since: Instant },
    /// The connection has failed, and GOAWAY is not written yet.
    Failing { since: Instant },
}

impl Drain {
    /// Of a server: its clients may be far away.
    const SERVER_TIMEOUT: Duration = Duration::from_secs(5);
    /// Of a client, which has received all of its responses.
    const CLIENT_TIMEOUT: Duration = Duration::from_secs(1);

    /// `is_blocked`: not all output has left the transport.
    pub(super) fn update(&mut self, core: &Connection, streams: usize, is_blocked: bool, now: Instant) {
        // A client has received all of its responses.
        let awaits_output = is_blocked && core.role() == Role::Server;
        let is_complete =
            matches!(core.ended(), Some(Ended::Drained | Ended::Eof | Ended::Aborted(ErrorCode::NO_ERROR)));
        *self = match (*self, core.ended()) {
            (last @ Self::Flushing { .. }, Some(_)) if is_complete => last,
            (_, Some(_)) if is_complete => Self::Flushing { since: now },
            (last @ Self::Failing { .. }, Some(_)) => last,
            (_, Some(_)) => Self::Failing { since: now },
            (_, None) if !core.is_going_away() || streams > 0 => Self::NotStarted,
            (last @ Self::Flushing { .. }, None) if awaits_output => last,
            (_, None) if awaits_output => Self::Flushing { since: now },
            (last @ Self::AwaitingPeer { .. }, None) => last,
            (_, None) => Self::AwaitingPeer { since: now },
        };
    }

    /// `len` bytes have left the transport.
    pub(super) fn handle_written(&mut self, len: usize, limits: &Limits) {
        if let Self::Flushing { since } = self {
            let now = Instant::now();
            let progress = Limits::progress(limits.stall_timeout, len);
            *since = since.checked_add(progress).map_or(now, |since| since.min(now));
        }
    }

    pub(super) fn deadline(self, core: &Connection) -> Option<Instant> {
        let timeout = match core.role() {
            Role::Server => Self::SERVER_TIMEOUT,
            Role::Client => Self::CLIENT_TIMEOUT,
        };
        match self {
            Self::NotStarted => None,
            // A deadline that the clock cannot represent never expires.
            Self::Flushing { since } if core.role() == Role::Server => {
                since.checked_add(core.limits().stall_timeout)
            }
            Self::AwaitingPeer { since } | Self::Flushing { since } | Self::Failing { since } => {
                Some(since + timeout)
            }
        }
    }
}

/// Notices a connection that has written nothing for a while and may free memory.
pub(super) struct ShrinkTimer {
    pub(super) interval: Duration,
    /// Something was written since the deadline was set.
    has_written: bool,
    deadline: Option<Instant>,
}

impl Default for ShrinkTimer {
    fn default() -> Self {
        Self { interval: Self::INTERVAL, has_written: false, deadline: None }
    }
}

impl ShrinkTimer {
    const INTERVAL: Duration = Duration::from_secs(5);

    pub(super) fn handle_written(&mut self) {
        self.has_written = true;
    }

    pub(super) fn deadline(&mut self, now: Instant) -> Option<Instant> {
        if std::mem::take(&mut self.has_written) {
            self.deadline = Some(now + self.interval);
        }
        self.deadline
    }

    /// The memory is freed.
    pub(super) fn handle_deadline(&mut self) {
        self.deadline = None;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use wireloom_http2::Config;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn keepalive_pings_once_and_then_gives_up() {
        let start = Instant::now();
        let config = Keepalive { ping_after: Duration::from_secs(10), dead_after: Duration::from_secs(25) };
        let mut timer = KeepaliveTimer::new(config, start);
        let at = |secs| start + Duration::from_secs(secs);
        assert_eq!(timer.deadline(), at(10));
        assert_eq!(timer.handle_deadline(at(9)), KeepaliveAction::Wait);
        assert_eq!(timer.handle_deadline(at(10)), KeepaliveAction::SendPing);
        assert_eq!(timer.handle_deadline(at(11)), KeepaliveAction::Wait);
        assert_eq!(timer.deadline(), at(25));
        timer.handle_activity(at(20));
        assert_eq!(timer.handle_deadline(at(25)), KeepaliveAction::Wait);
        assert_eq!(timer.handle_deadline(at(30)), KeepaliveAction::SendPing);
        assert_eq!(timer.handle_deadline(at(45)), KeepaliveAction::PeerDead);
    }

    // A machine that was suspended for longer than a peer may be silent.
    #[tokio::test(start_paused = true)]
    async fn keepalive_gives_up_no_peer_that_was_not_pinged() {
        let start = Instant::now();
        let at = |secs| start + Duration::from_secs(secs);
        let config = Keepalive { ping_after: Duration::from_secs(10), dead_after: Duration::from_secs(25) };
        let mut timer = KeepaliveTimer::new(config, start);
        assert_eq!(timer.handle_deadline(at(3_600)), KeepaliveAction::SendPing);
        assert_eq!(timer.deadline(), at(3_615));
        assert_eq!(timer.handle_deadline(at(3_614)), KeepaliveAction::Wait);
        assert_eq!(timer.handle_deadline(at(3_615)), KeepaliveAction::PeerDead);
        // There is no time for a PING.
        let config = Keepalive { ping_after: Duration::from_secs(25), dead_after: Duration::from_secs(25) };
        let mut timer = KeepaliveTimer::new(config, start);
        assert_eq!(timer.handle_deadline(at(25)), KeepaliveAction::PeerDead);
    }

    #[tokio::test(start_paused = true)]
    async fn idle_time_begins_again_after_each_stream() {
        let start = Instant::now();
        let mut timer = IdleTimer { timeout: Some(Duration::from_secs(60)), ..IdleTimer::default() };
        let at = |secs| start + Duration::from_secs(secs);
        timer.update(0, at(0));
        timer.update(0, at(5));
        assert_eq!(timer.deadline(), Some(at(60)));
        timer.update(1, at(10));
        assert_eq!(timer.deadline(), None);
        timer.update(0, at(20));
        assert_eq!(timer.deadline(), Some(at(80)));
        // One that is answered between two updates.
        timer.handle_request();
        timer.update(0, at(30));
        assert_eq!(timer.deadline(), Some(at(90)));
    }

    fn going_away(role: Role) -> Connection {
        let mut core = Connection::new(role, Config::new(role)).unwrap();
        core.shutdown();
        core
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_has_a_deadline_in_each_state() {
        let start = Instant::now();
        let at = |secs| start + Duration::from_secs(secs);
        for (role, timeout) in [(Role::Server, 5), (Role::Client, 1)] {
            let mut core = going_away(role);
            let mut drain = Drain::NotStarted;
            drain.update(&core, 1, false, at(0));
            assert_eq!(drain.deadline(&core), None);
            drain.update(&core, 0, false, at(1));
            drain.update(&core, 0, false, at(2));
            assert_eq!(drain.deadline(&core), Some(at(1 + timeout)));
            // A request that was under way.
            drain.update(&core, 1, false, at(3));
            assert_eq!(drain.deadline(&core), None);
            core.abort(ErrorCode::ENHANCE_YOUR_CALM, b"");
            drain.update(&core, 1, true, at(4));
            drain.update(&core, 0, true, at(8));
            assert_eq!(
                (drain, drain.deadline(&core)),
                (Drain::Failing { since: at(4) }, Some(at(4 + timeout)))
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_server_waits_until_its_last_output_is_read() {
        for (role, timeout) in
            [(Role::Server, Limits::DEFAULT.stall_timeout), (Role::Client, Duration::from_secs(1))]
        {
            let start = Instant::now();
            let mut core = going_away(role);
            let mut drain = Drain::NotStarted;
            drain.update(&core, 0, true, start);
            assert_eq!(drain.deadline(&core), Some(start + timeout));
            // It has read all of it, and then the rest that the end has added.
            drain.update(&core, 0, false, start);
            assert_eq!(drain, Drain::AwaitingPeer { since: start });
            core.abort(ErrorCode::NO_ERROR, b"");
            drain.update(&core, 0, true, start);
            assert_eq!(drain.deadline(&core), Some(start + timeout));
            // Half of what the peer must read in a timeout, after half of it.
            tokio::time::advance(timeout / 2).await;
            drain.handle_written(512, core.limits());
            let postponed = drain.deadline(&core).unwrap() - start - timeout;
            assert!(postponed >= timeout / 2 - Duration::from_millis(1), "{postponed:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn memory_is_freed_after_a_quiet_interval() {
        let start = Instant::now();
        let mut timer = ShrinkTimer::default();
        assert_eq!(timer.deadline(start), None);
        timer.handle_written();
        let deadline = Some(start + ShrinkTimer::INTERVAL);
        assert_eq!([timer.deadline(start), timer.deadline(start + Duration::from_secs(1))], [deadline; 2]);
        timer.handle_written();
        let later = start + Duration::from_secs(2);
        assert_eq!(timer.deadline(later), Some(later + ShrinkTimer::INTERVAL));
        timer.handle_deadline();
        assert_eq!(timer.deadline(later), None);
    }
}
