//! Flow control: the arithmetic of windows, and how large this side's windows are to be (RFC 9113 §5.2, §6.9).
//!
//! [`Growth`] measures the bandwidth-delay product with PING, and derives the window from it.
//!
//! A window is kept as a difference from the initial window in force:
//!
//! ```text
//! window = SETTINGS_INITIAL_WINDOW_SIZE + granted by WINDOW_UPDATE - sent
//!          `------ one number -------'    `--- delta, one a stream ---'
//! ```
//!
//! so a change of the setting moves every window at once (RFC 9113 §6.9.2), below zero where it must.

use core::time::Duration;

/// The largest window: RFC 9113 §6.9.1.
pub(crate) const WINDOW_MAX: i64 = (1 << 31) - 1;

/// The window of a new connection, and of its streams before any SETTINGS: RFC 9113 §6.9.2.
pub(crate) const WINDOW_DEFAULT: u32 = 65_535;

/// What may still be sent: the initial window in force and a stream's delta. May be negative.
#[inline]
pub(crate) const fn window(initial: u32, delta: i32) -> i64 {
    initial as i64 + delta as i64
}

/// The delta after a WINDOW_UPDATE, or `None` when the window would pass 2^31-1 (RFC 9113 §6.9.1).
#[inline]
pub(crate) const fn grant(initial: u32, delta: i32, increment: u32) -> Option<i32> {
    let granted = delta as i64 + increment as i64;
    // With a small initial window the delta itself might pass i32: it cannot while the window is at most 2^31-1,
    // because the initial window is not negative.
    if initial as i64 + granted > WINDOW_MAX { None } else { Some(granted as i32) }
}

/// The delta after sending or receiving `len` bytes of DATA.
///
/// Never passes i32: a delta falls by what a window allowed, and a window is at most 2^31-1 above it.
#[inline]
pub(crate) const fn spend(delta: i32, len: u32) -> i32 {
    delta.saturating_sub_unsigned(len)
}

/// How large a receive window is to be: three times the bandwidth-delay product, measured.
///
/// A probe is a PING that leaves together with a WINDOW_UPDATE, so only a peer that sends much is probed. Bytes that
/// arrive until its acknowledgement are about one bandwidth-delay product. An update leaves when half of the window is
/// used, so half a window is the most that can arrive meanwhile; when a third does, the window is what holds
/// the peer back.
///
/// ```text
/// WINDOW_UPDATE + PING ->                    <- PING ACK
///                       <- DATA <- DATA <- DATA
///                       `--- bytes since the probe ---'
/// ```
#[derive(Clone, Debug)]
pub(crate) struct Growth {
    target: u32,
    max: u32,
    /// Bytes since the probe left; meaningful while one is out.
    bytes: u64,
    probe_sent_at: Option<Duration>,
    /// Probes in a row that found the window wide enough; each doubles the pause.
    settled: u8,
    next_probe_at: Duration,
}

impl Growth {
    /// Between probes that found the window wide enough. Round trips within a machine are so short that probes would be taken
    /// for a flood of PING (CVE-2019-9512): `Limits::pings` allows 100 a second for long.
    const PROBE_PAUSE_MIN: Duration = Duration::from_millis(50);

    pub(crate) const fn new(start: u32, max: u32) -> Self {
        Self {
            target: start,
            max: if max > start { max } else { start },
            bytes: 0,
            probe_sent_at: None,
            settled: 0,
            next_probe_at: Duration::ZERO,
        }
    }

    /// The caller announced another initial window. A larger one is kept open at once. A smaller one than before is the
    /// caller's choice, which growth must not undo.
    pub(crate) fn set_start(&mut self, before: u32, after: u32, max: u32) {
        if after < before {
            self.target = after;
            self.max = after;
        } else {
            self.target = self.target.max(after);
            self.max = self.max.max(max).max(after);
        }
    }

    /// The window to keep open for each stream, in bytes.
    #[inline]
    pub(crate) const fn target(&self) -> u32 {
        self.target
    }

    /// Counts DATA that came in.
    #[inline]
    pub(crate) fn received(&mut self, len: u32) {
        self.bytes = self.bytes.wrapping_add(u64::from(len));
    }

    /// Whether a probe is to leave with this WINDOW_UPDATE; it counts as sent.
    pub(crate) fn start_probe(&mut self, now: Duration) -> bool {
        if self.target >= self.max || self.probe_sent_at.is_some() || now < self.next_probe_at {
            return false;
        }
        self.probe_sent_at = Some(now);
        self.bytes = 0;
        true
    }

    /// The probe came back: the round trip, or `None` when none was out.
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
        // Twice a round trip, four times, ... 256 times: the path may have become wider.
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

    #[test]
    fn a_window_passes_no_more_than_its_maximum() {
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
    fn a_window_that_a_third_of_fills_a_round_trip_doubles() {
        let ms = Duration::from_millis;
        for (received, expected) in [(332, 1_000), (333, 1_000), (334, 2_000), (900, 2_000), (1_100, 2_200)] {
            let mut growth = Growth::new(1_000, 10_000);
            assert!(growth.start_probe(ms(0)) && !growth.start_probe(ms(0)));
            growth.received(received);
            assert_eq!(growth.finish_probe(ms(7)), Some(ms(7)));
            assert_eq!(growth.target(), expected, "{received}");
            assert_eq!(growth.finish_probe(ms(8)), None);
        }
        // Exactly a third.
        let mut growth = Growth::new(900, 10_000);
        assert!(growth.start_probe(ms(0)));
        growth.received(300);
        growth.finish_probe(ms(1));
        assert_eq!(growth.target(), 1_800);
        let mut growth = Growth::new(1_000, 1_500);
        assert!(growth.start_probe(ms(0)));
        growth.received(1_000);
        growth.finish_probe(ms(1));
        assert_eq!(growth.target(), 1_500);
        // Nothing is left to find out.
        assert!(!growth.start_probe(ms(1_000)));
    }

    #[test]
    fn probes_that_find_nothing_pause_twice_as_long_each() {
        let ms = Duration::from_millis;
        let (mut growth, mut now) = (Growth::new(1_000, 10_000), ms(0));
        for pause in [200, 400, 800, 1_600, 3_200, 6_400, 12_800, 25_600, 25_600] {
            assert!(growth.start_probe(now));
            now += ms(100);
            growth.finish_probe(now);
            assert!(!growth.start_probe(now + ms(pause - 1)), "{pause}");
            now += ms(pause);
        }
        // Not shorter than 50 ms, however short the path.
        let mut growth = Growth::new(1_000, 10_000);
        assert!(growth.start_probe(ms(0)));
        growth.finish_probe(ms(1));
        assert!(!growth.start_probe(ms(50)) && growth.start_probe(ms(51)));
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
    fn the_window_grows_while_it_is_what_holds_the_peer_back() {
        let ms = Duration::from_millis;
        let mut growth = Growth::new(65_535, 1 << 20);
        let mut now = ms(0);
        let mut targets = alloc::vec![growth.target()];
        for _ in 0..6 {
            if growth.start_probe(now) {
                assert!(!growth.start_probe(now));
                growth.received(growth.target());
                now += ms(50);
                assert_eq!(growth.finish_probe(now), Some(ms(50)));
                targets.push(growth.target());
            }
        }
        assert_eq!(targets, [65_535, 131_070, 262_140, 524_280, 1_048_560, 1 << 20]);
        assert!(!growth.start_probe(now));
    }

    #[test]
    fn probes_over_a_short_path_are_no_flood() {
        let mut growth = Growth::new(65_535, 1 << 20);
        let mut probes = 0;
        for tick in 0..1_000_000 {
            let now = Duration::from_micros(tick * 10);
            if growth.start_probe(now) {
                probes += 1;
                growth.finish_probe(now);
            }
        }
        assert!((100..=200).contains(&probes), "{probes} in 10 s");
    }

    #[test]
    fn a_window_that_is_wide_enough_is_probed_less_and_less() {
        let ms = Duration::from_millis;
        let mut growth = Growth::new(65_535, 1 << 20);
        let mut probes = 0;
        for tick in 0..1000 {
            if growth.start_probe(ms(tick * 10)) {
                probes += 1;
                growth.received(1000);
                assert_eq!(growth.finish_probe(ms(tick * 10 + 10)), Some(ms(10)));
            }
        }
        assert!((8..20).contains(&probes), "{probes}");
        assert_eq!(growth.target(), 65_535);
    }
}
