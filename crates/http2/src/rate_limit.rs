//! Token buckets against floods of frames that are cheaper to send than to receive.
//!
//! Each kind of flood has a bucket. The connection chooses the bucket of a frame.
//!
//! A bucket is one number, the time at which it is full again (the virtual scheduling form of the leaky bucket). It needs no
//! refill, and rounding errors do not accumulate:
//!
//! ```text
//!            now          full_at                                now + capacity
//! ------------|--------------|----------------------------------------|-------> time
//!             |<-- in use -->|<----------- can be charged ----------->|
//! ```

use core::time::Duration;

use crate::error::Exceeded;
use crate::limits::{Limits, NANOS_PER_SECOND, Rate};

/// A token bucket.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    full_at_ns: u64,
}

impl Bucket {
    #[inline]
    fn charge(&mut self, rate: Rate, count: u64, now_ns: u64) -> bool {
        let cost_ns = count.saturating_mul(u64::from(rate.interval_ns));
        let full_at_ns = self.full_at_ns.max(now_ns).saturating_add(cost_ns);
        let within = full_at_ns - now_ns <= rate.capacity_ns();
        if within {
            self.full_at_ns = full_at_ns;
        }
        within
    }

    #[inline]
    fn refund(&mut self, rate: Rate, count: u64) {
        self.full_at_ns = self.full_at_ns.saturating_sub(count.saturating_mul(u64::from(rate.interval_ns)));
    }
}

/// The reason for which a frame is charged, which has its own bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Charge {
    /// The peer reset a stream that it had opened, before the response was complete. A reset after the complete response discards
    /// no work (some clients send one after every response), and a server cannot reset more streams than the client opened:
    /// neither is charged.
    PeerReset,
    /// RST_STREAM on a closed stream. One per stream is free: [`RateLimit::stream_finished`].
    LateReset,
    /// The peer caused this side to reset a stream: a stream error, or a refused stream. Or it opened one that is ignored because of GOAWAY.
    StreamError,
    /// PING without ACK.
    Ping,
    /// SETTINGS without ACK.
    Settings,
    /// An empty HEADERS, CONTINUATION or DATA frame that does not end a block or message.
    EmptyFrame,
    /// A DATA frame with little content that does not end a message. As many of them as a frame that is ignored has content or fields for.
    TinyData,
    /// PRIORITY or PRIORITY_UPDATE.
    Priority,
    /// WINDOW_UPDATE.
    WindowUpdate,
    /// A frame that is ignored: of an unknown type, of an extension, or on a closed stream.
    UnknownFrame,
    /// An interim response.
    InterimResponse,
}

impl Charge {
    const COUNT: usize = Self::InterimResponse as usize + 1;

    const fn rate(self, limits: &Limits) -> Rate {
        match self {
            Self::PeerReset => limits.peer_resets,
            Self::LateReset => limits.late_resets,
            Self::StreamError => limits.stream_errors,
            Self::Ping => limits.pings,
            Self::Settings => limits.settings,
            Self::EmptyFrame => limits.empty_frames,
            Self::TinyData => limits.tiny_data,
            Self::Priority => limits.priorities,
            Self::WindowUpdate => limits.window_updates,
            Self::UnknownFrame => limits.unknown_frames,
            Self::InterimResponse => limits.interim_responses,
        }
    }

    const fn exceeded(self) -> Exceeded {
        match self {
            Self::PeerReset | Self::LateReset => Exceeded::PeerResets,
            Self::StreamError => Exceeded::StreamErrors,
            Self::Ping => Exceeded::Pings,
            Self::Settings => Exceeded::Settings,
            Self::EmptyFrame => Exceeded::EmptyFrames,
            Self::TinyData => Exceeded::DataOverhead,
            Self::Priority => Exceeded::Priorities,
            Self::WindowUpdate => Exceeded::WindowUpdates,
            Self::UnknownFrame => Exceeded::UnknownFrames,
            Self::InterimResponse => Exceeded::InterimResponses,
        }
    }
}

/// The buckets of one connection. They are full at first.
///
/// ```
/// use core::time::Duration;
/// use wireloom_http2::Limits;
/// use wireloom_http2::error::Exceeded;
/// use wireloom_http2::rate_limit::{Charge, RateLimit};
///
/// let (limits, mut rates) = (Limits::default(), RateLimit::default());
/// let mut now = Duration::from_secs(7);
/// for _ in 0..limits.pings.burst() {
///     rates.charge(Charge::Ping, &limits, now)?;
/// }
/// assert_eq!(rates.charge(Charge::Ping, &limits, now), Err(Exceeded::Pings));
/// now += Duration::from_secs(1);
/// rates.charge(Charge::Ping, &limits, now)?;
/// # Ok::<(), Exceeded>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct RateLimit {
    buckets: [Bucket; Charge::COUNT],
}

impl RateLimit {
    /// Charges a frame. `now` must not decrease.
    ///
    /// # Errors
    /// The bucket is empty: the connection ends with ENHANCE_YOUR_CALM.
    #[inline]
    pub fn charge(&mut self, charge: Charge, limits: &Limits, now: Duration) -> Result<(), Exceeded> {
        self.charge_count(charge, 1, limits, now)
    }

    /// Charges a frame that is ignored, with `len` bytes of content or fields: as many times as DATA frames of
    /// [`Limits::TINY_DATA_LEN`] have them, and at least once.
    pub(crate) fn charge_len(&mut self, len: usize, limits: &Limits, now: Duration) -> Result<(), Exceeded> {
        let count = len.div_ceil(Limits::TINY_DATA_LEN).max(1);
        self.charge_count(Charge::TinyData, count as u64, limits, now)
    }

    #[inline]
    fn charge_count(
        &mut self,
        charge: Charge,
        count: u64,
        limits: &Limits,
        now: Duration,
    ) -> Result<(), Exceeded> {
        let within = self.buckets[charge as usize].charge(charge.rate(limits), count, nanos(now));
        if within { Ok(()) } else { Err(charge.exceeded()) }
    }

    /// Refunds one late RST_STREAM, because a stream has ended.
    #[inline]
    pub fn stream_finished(&mut self, limits: &Limits) {
        self.buckets[Charge::LateReset as usize].refund(limits.late_resets, 1);
    }

    /// Refunds WINDOW_UPDATE for a DATA frame that this side sent: two for each frame, and one more for every 256 bytes, because some
    /// peers release window in small steps.
    #[inline]
    pub fn data_sent(&mut self, len: usize, limits: &Limits) {
        self.buckets[Charge::WindowUpdate as usize].refund(limits.window_updates, 2 + len as u64 / 256);
    }
}

#[inline]
fn nanos(now: Duration) -> u64 {
    // Enough for 584 years.
    now.as_secs().saturating_mul(u64::from(NANOS_PER_SECOND)).saturating_add(u64::from(now.subsec_nanos()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use wireloom_testing::{Clock, rounds};

    const CHARGES: [Charge; Charge::COUNT] = [
        Charge::PeerReset,
        Charge::LateReset,
        Charge::StreamError,
        Charge::Ping,
        Charge::Settings,
        Charge::EmptyFrame,
        Charge::TinyData,
        Charge::Priority,
        Charge::WindowUpdate,
        Charge::UnknownFrame,
        Charge::InterimResponse,
    ];

    #[test]
    fn a_burst_is_accepted_and_one_more_is_not() {
        let limits = Limits::default();
        let now = Clock::new().now();
        for charge in CHARGES {
            let mut rates = RateLimit::default();
            let burst = charge.rate(&limits).burst();
            for n in 0..burst {
                assert_eq!(rates.charge(charge, &limits, now), Ok(()), "{charge:?} {n}");
            }
            assert_eq!(rates.charge(charge, &limits, now), Err(charge.exceeded()));
            // The other buckets are not touched.
            for other in CHARGES.into_iter().filter(|&other| other != charge) {
                assert_eq!(rates.charge(other, &limits, now), Ok(()), "{charge:?} {other:?}");
            }
        }
    }

    #[test]
    fn a_steady_rate_is_accepted_forever() {
        // A burst, and then exactly the rate, for an hour: lifetime counters would end it.
        let limits = Limits { pings: Rate::new(10, 50), ..Limits::default() };
        let (mut rates, mut clock) = (RateLimit::default(), Clock::new());
        for _ in 0..10 {
            rates.charge(Charge::Ping, &limits, clock.now()).unwrap();
        }
        for n in 0..50 * 3_600 {
            clock.advance(Duration::from_millis(20));
            assert_eq!(rates.charge(Charge::Ping, &limits, clock.now()), Ok(()), "{n}");
        }
        assert_eq!(rates.charge(Charge::Ping, &limits, clock.now()), Err(Exceeded::Pings));
        clock.advance(Duration::from_millis(19));
        assert_eq!(rates.charge(Charge::Ping, &limits, clock.now()), Err(Exceeded::Pings));
        clock.advance(Duration::from_millis(1));
        assert_eq!(rates.charge(Charge::Ping, &limits, clock.now()), Ok(()));
    }

    #[test]
    fn data_refunds_window_updates() {
        let limits = Limits { window_updates: Rate::new(10, 1), ..Limits::default() };
        let (mut rates, now) = (RateLimit::default(), Clock::new().now());
        for _ in 0..100_000 {
            // A peer that answers each frame with an update of the stream and one of the connection.
            rates.data_sent(16_384, &limits);
            rates.charge(Charge::WindowUpdate, &limits, now).unwrap();
            rates.charge(Charge::WindowUpdate, &limits, now).unwrap();
        }
        // Refunds do not exceed the burst, of which the last two are still in use.
        let taken = (0..100).take_while(|_| rates.charge(Charge::WindowUpdate, &limits, now).is_ok()).count();
        assert_eq!(taken, 8);
    }

    #[test]
    fn never_accepts_more_than_burst_and_rate_allow() {
        rounds(200, |rng| {
            let (burst, per_second) = (rng.u32(1..50), rng.u32(1..2_000));
            let limits = Limits { settings: Rate::new(burst, per_second), ..Limits::default() };
            let (mut rates, mut clock) = (RateLimit::default(), Clock::new());
            let start = clock.now();
            let mut taken = 0_u64;
            for _ in 0..1_000 {
                clock.advance(Duration::from_micros(rng.u64(0..3_000)));
                taken += u64::from(rates.charge(Charge::Settings, &limits, clock.now()).is_ok());
            }
            let interval_ns = u128::from(1_000_000_000 / per_second);
            let allowed = u128::from(burst) + (clock.now() - start).as_nanos() / interval_ns;
            assert!(u128::from(taken) <= allowed, "{taken} of {allowed}");
        });
    }

    #[test]
    fn the_maximum_time_and_unlimited_rates_do_not_overflow() {
        let mut rates = RateLimit::default();
        let limits = Limits { pings: Rate::UNLIMITED, settings: Rate::new(2, 0), ..Limits::default() };
        for _ in 0..10_000 {
            rates.charge(Charge::Ping, &limits, Duration::MAX).unwrap();
        }
        rates.charge(Charge::Settings, &limits, Duration::ZERO).unwrap();
        rates.charge(Charge::Settings, &limits, Duration::ZERO).unwrap();
        assert_eq!(rates.charge(Charge::Settings, &limits, Duration::ZERO), Err(Exceeded::Settings));
        let (limits, mut rates) = (Limits::default(), RateLimit::default());
        assert_eq!(rates.charge(Charge::Priority, &limits, Duration::MAX), Ok(()));
    }

    #[test]
    fn an_ignored_frame_costs_as_much_as_tiny_frames_of_its_length() {
        let limits = Limits { tiny_data: Rate::new(100, 1), ..Limits::default() };
        for (len, accepted) in
            [(0, 100), (1, 100), (64, 100), (65, 50), (6_400, 1), (6_401, 0), (usize::MAX, 0)]
        {
            let (mut rates, now) = (RateLimit::default(), Clock::new().now());
            let taken = (0..200).take_while(|_| rates.charge_len(len, &limits, now).is_ok()).count();
            assert_eq!(taken, accepted, "{len}");
        }
    }

    #[test]
    fn each_256_bytes_of_data_refund_a_window_update_and_each_frame_two() {
        let limits = Limits { window_updates: Rate::new(100, 1), ..Limits::default() };
        for (len, earned) in [(0, 2), (255, 2), (256, 3), (16_384, 66)] {
            let (mut rates, now) = (RateLimit::default(), Clock::new().now());
            let taken = |rates: &mut RateLimit| {
                (0..200).take_while(|_| rates.charge(Charge::WindowUpdate, &limits, now).is_ok()).count()
            };
            assert_eq!(taken(&mut rates), 100);
            rates.data_sent(len, &limits);
            assert_eq!(taken(&mut rates), earned, "{len}");
        }
    }
}
