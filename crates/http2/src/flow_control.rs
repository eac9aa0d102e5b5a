//! Arithmetic of flow-control windows, and automatic tuning of the receive windows (RFC 9113 §5.2, §6.9).
//!
//! A window is stored as its difference from the current SETTINGS_INITIAL_WINDOW_SIZE:
//!
//! ```text
//! window = SETTINGS_INITIAL_WINDOW_SIZE + granted by WINDOW_UPDATE - sent
//!          `---- per connection -----'    `---- delta, per stream ----'
//! ```
//!
//! A change of the setting thereby changes all windows (RFC 9113 §6.9.2), which can become negative.

use core::time::Duration;

/// The maximum window (RFC 9113 §6.9.1).
pub(crate) const WINDOW_MAX: i64 = (1 << 31) - 1;

/// The initial window of a connection, and of its streams until SETTINGS arrive (RFC 9113 §6.9.2).
pub(crate) const WINDOW_DEFAULT: u32 = 65_535;

/// A window: the initial window and the delta. It may be negative.
#[inline]
pub(crate) const fn window(initial: u32, delta: i32) -> i64 {
    initial as i64 + delta as i64
}

/// The delta after a WINDOW_UPDATE; `None` if the window would exceed 2^31-1 (RFC 9113 §6.9.1).
#[inline]
pub(crate) const fn grant(initial: u32, delta: i32, increment: u32) -> Option<i32> {
    let granted = delta as i64 + increment as i64;
    // The delta fits in i32 if the window is at most 2^31-1, because the initial window is not negative.
    if initial as i64 + granted > WINDOW_MAX { None } else { Some(granted as i32) }
}

/// The delta after sending or receiving `len` bytes of DATA.
///
/// It fits in i32: a delta decreases at most by the window, which is at most 2^31-1 above it.
#[inline]
pub(crate) const fn spend(delta: i32, len: u32) -> i32 {
    delta.saturating_sub_unsigned(len)
}

/// Tunes the receive windows of streams to three times the bandwidth-delay product, which it measures.
///
/// A probe is a PING that is sent together with a WINDOW_UPDATE, so only a peer that sends much is probed. The bytes that arrive
/// until its acknowledgement are about one bandwidth-delay product. An update is sent when half of the window is used, so at most
/// half a window can arrive meanwhile. If a third arrives, the window limits the peer.
///
/// ```text
/// WINDOW_UPDATE + PING ->                    <- PING ACK
///                       <- DATA <- DATA <- DATA
///                       `--- bytes since the probe ---'
/// ```
#[derive(Clone, Debug)]
pub(crate) struct WindowTuner {
    target: u32,
    max: u32,
    /// The bytes that have arrived since the probe was requested.
    bytes: u64,
    /// A WINDOW_UPDATE was written, with which a probe may leave.
    is_probe_requested: bool,
    probe_sent_at: Option<Duration>,
    /// The number of successive probes that found the window large enough. Each doubles the pause.
    settled: u8,
    next_probe_at: Duration,
}

impl WindowTuner {
    /// The minimum time between probes that find the window large enough. With the round trips within a machine, probes without a
    /// pause would look like a flood of PING (CVE-2019-9512): `Limits::pings` allows 100 a second.
    const PROBE_PAUSE_MIN: Duration = Duration::from_millis(50);

    pub(crate) const fn new(start: u32, max: u32) -> Self {
        Self {
            target: start,
            max: if max > start { max } else { start },
            bytes: 0,
            is_probe_requested: false,
            probe_sent_at: None,
            settled: 0,
            next_probe_at: Duration::ZERO,
        }
    }

    /// Changes the initial window. A larger one applies at once. A smaller one is also the maximum, because tuning must not undo the
    /// caller's choice.
    pub(crate) fn set_initial(&mut self, before: u32, after: u32, max: u32) {
        if after < before {
            self.target = after;
            self.max = after;
        } else {
            self.target = self.target.max(after);
            self.max = self.max.max(max).max(after);
        }
    }

    /// The target of the receive window of each stream, in bytes.
    #[inline]
    pub(crate) const fn target(&self) -> u32 {
        self.target
    }

    /// Counts DATA that has arrived.
    #[inline]
    pub(crate) fn received(&mut self, len: u32) {
        self.bytes = self.bytes.wrapping_add(u64::from(len));
    }

    /// A WINDOW_UPDATE is written: a probe may leave with it.
    pub(crate) fn request_probe(&mut self) {
        if self.target < self.max && self.probe_sent_at.is_none() && !self.is_probe_requested {
            self.is_probe_requested = true;
            self.bytes = 0;
        }
    }

    /// Whether to send the probe that was requested. If `true`, it counts as sent.
    #[inline]
    pub(crate) fn start_probe(&mut self, now: Duration) -> bool {
        let starts = core::mem::take(&mut self.is_probe_requested) && now >= self.next_probe_at;
        if starts {
            self.probe_sent_at = Some(now);
        }
        starts
    }

    /// Handles the acknowledgement of a probe. Returns the round trip, or `None` if no probe was sent.
    pub(crate) fn finish_probe(&mut self, now: Duration) -> Option<Duration> {
        let sent_at = self.probe_sent_at.take()?;
        let round_trip = now.saturating_sub(sent_at);
        if self.bytes.saturating_mul(3) >= u64::from(self.target) {
            let wanted = self.bytes.saturating_mul(2).max(u64::from(self.target) * 2);
            self.target = wanted.min(u64::from(self.max)) as u32;
            self.settled = 0;
            self.next_probe_at = now;
            return Some(round_trip);
        }
        // The pause is 2, 4, ... 256 round trips: the bandwidth may increase.
        self.settled = (self.settled + 1).min(8);
        let pause = round_trip.saturating_mul(1 << self.settled).max(Self::PROBE_PAUSE_MIN);
        self.next_probe_at = now.saturating_add(pause);
        Some(round_trip)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wireloom_testing::{Rng, rounds};

    /// Writes a WINDOW_UPDATE at this time. Returns whether a probe leaves with it.
    fn start(tuner: &mut WindowTuner, now: Duration) -> bool {
        tuner.request_probe();
        tuner.start_probe(now)
    }

    #[test]
    fn a_window_does_not_exceed_its_maximum() {
        // RFC 9113 §6.9.1: MUST NOT allow a window to exceed 2^31-1.
        assert_eq!(grant(0, 0, WINDOW_MAX as u32), Some(i32::MAX));
        assert_eq!(grant(1, 0, WINDOW_MAX as u32), None);
        assert_eq!(grant(1, 0, WINDOW_MAX as u32 - 1), Some(i32::MAX - 1));
        assert_eq!(grant(WINDOW_MAX as u32, 0, 1), None);
        assert_eq!(grant(WINDOW_MAX as u32, -1, 1), Some(0));
        assert_eq!(grant(WINDOW_MAX as u32, i32::MIN + 1, WINDOW_MAX as u32), Some(0));
    }

    #[test]
    fn a_smaller_initial_window_makes_windows_negative() {
        // RFC 9113 §6.9.2: MUST track the negative window and not send until it is positive again.
        let delta = spend(0, 65_535);
        assert_eq!(window(65_535, delta), 0);
        assert_eq!(window(16_384, delta), -49_151);
        let delta = grant(16_384, delta, 49_151).unwrap();
        assert_eq!(window(16_384, delta), 0);
        assert_eq!(window(65_535, delta), 49_151);
    }

    #[test]
    fn a_window_doubles_if_a_third_of_it_arrives_in_a_round_trip() {
        let ms = Duration::from_millis;
        for (received, expected) in [(332, 1_000), (333, 1_000), (334, 2_000), (900, 2_000), (1_100, 2_200)] {
            let mut tuner = WindowTuner::new(1_000, 10_000);
            assert!(start(&mut tuner, ms(0)) && !start(&mut tuner, ms(0)));
            tuner.received(received);
            assert_eq!(tuner.finish_probe(ms(7)), Some(ms(7)));
            assert_eq!(tuner.target(), expected, "{received}");
            assert_eq!(tuner.finish_probe(ms(8)), None);
        }
        // Exactly a third.
        let mut tuner = WindowTuner::new(900, 10_000);
        assert!(start(&mut tuner, ms(0)));
        tuner.received(300);
        tuner.finish_probe(ms(1));
        assert_eq!(tuner.target(), 1_800);
        let mut tuner = WindowTuner::new(1_000, 1_500);
        assert!(start(&mut tuner, ms(0)));
        tuner.received(1_000);
        tuner.finish_probe(ms(1));
        assert_eq!(tuner.target(), 1_500);
        // The maximum is reached: no further probes.
        assert!(!start(&mut tuner, ms(1_000)));
    }

    #[test]
    fn the_pause_between_probes_doubles() {
        let ms = Duration::from_millis;
        let (mut tuner, mut now) = (WindowTuner::new(1_000, 10_000), ms(0));
        for pause in [200, 400, 800, 1_600, 3_200, 6_400, 12_800, 25_600, 25_600] {
            assert!(start(&mut tuner, now));
            now += ms(100);
            tuner.finish_probe(now);
            assert!(!start(&mut tuner, now + ms(pause - 1)), "{pause}");
            now += ms(pause);
        }
        // At least 50 ms, even if the round trip is shorter.
        let mut tuner = WindowTuner::new(1_000, 10_000);
        assert!(start(&mut tuner, ms(0)));
        tuner.finish_probe(ms(1));
        assert!(!start(&mut tuner, ms(50)) && start(&mut tuner, ms(51)));
    }

    #[test]
    fn windows_equal_wide_arithmetic_over_random_operations() {
        rounds(4, random_grants);
    }

    fn random_grants(random: &mut Rng) {
        let (mut initial, mut delta, mut model) = (65_535_u32, 0_i32, 65_535_i64);
        for _ in 0..20_000 {
            match random.u32(..3) {
                0 if model > 0 => {
                    let len = random.i64(1..=model) as u32;
                    delta = spend(delta, len);
                    model -= i64::from(len);
                }
                1 => {
                    let increment = random.u32(1..=WINDOW_MAX as u32);
                    let granted = grant(initial, delta, increment);
                    assert_eq!(granted.is_some(), model + i64::from(increment) <= WINDOW_MAX);
                    if let Some(granted) = granted {
                        delta = granted;
                        model += i64::from(increment);
                    }
                }
                _ => {
                    let next = random.u32(..=WINDOW_MAX as u32);
                    let moved = model + i64::from(next) - i64::from(initial);
                    if moved <= WINDOW_MAX {
                        (initial, model) = (next, moved);
                    }
                }
            }
            assert_eq!(window(initial, delta), model);
        }
    }

    #[test]
    fn the_window_grows_while_it_limits_the_peer() {
        let ms = Duration::from_millis;
        let mut tuner = WindowTuner::new(65_535, 1 << 20);
        let mut now = ms(0);
        let mut targets = alloc::vec![tuner.target()];
        for _ in 0..6 {
            if start(&mut tuner, now) {
                assert!(!start(&mut tuner, now));
                tuner.received(tuner.target());
                now += ms(50);
                assert_eq!(tuner.finish_probe(now), Some(ms(50)));
                targets.push(tuner.target());
            }
        }
        assert_eq!(targets, [65_535, 131_070, 262_140, 524_280, 1_048_560, 1 << 20]);
        assert!(!start(&mut tuner, now));
    }

    #[test]
    fn probes_with_short_round_trips_are_infrequent() {
        let mut tuner = WindowTuner::new(65_535, 1 << 20);
        let mut probes = 0;
        for tick in 0..1_000_000 {
            let now = Duration::from_micros(tick * 10);
            if start(&mut tuner, now) {
                probes += 1;
                tuner.finish_probe(now);
            }
        }
        assert!((100..=200).contains(&probes), "{probes} in 10 s");
    }

    #[test]
    fn a_window_that_is_large_enough_is_probed_less_often() {
        let ms = Duration::from_millis;
        let mut tuner = WindowTuner::new(65_535, 1 << 20);
        let mut probes = 0;
        for tick in 0..1000 {
            if start(&mut tuner, ms(tick * 10)) {
                probes += 1;
                tuner.received(1000);
                assert_eq!(tuner.finish_probe(ms(tick * 10 + 10)), Some(ms(10)));
            }
        }
        assert!((8..20).contains(&probes), "{probes}");
        assert_eq!(tuner.target(), 65_535);
    }
}
