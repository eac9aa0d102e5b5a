//! Counts and latencies of a run.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

/// The longest latency that is kept, in nanoseconds: an hour.
const LATENCY_MAX: u64 = 3_600_000_000_000;

/// What has happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) sent: u64,
    pub(super) received: u64,
    /// No answer within the timeout, or a later message was answered first, or the connection ended before.
    pub(super) lost: u64,
    /// Answers that equal no message.
    pub(super) wrong: u64,
    /// Answers to a message that was answered before, or has been counted as lost.
    pub(super) unexpected: u64,
    /// Connections that could not be opened.
    pub(super) connect_failed: u64,
    /// Connections that the server closed.
    pub(super) closed: u64,
    /// Connections that broke.
    pub(super) broken: u64,
}

impl Counts {
    pub(super) fn errors(&self) -> u64 {
        self.lost + self.wrong + self.unexpected + self.connect_failed + self.closed + self.broken
    }
}

/// One second of the run.
#[derive(Clone, Debug)]
pub(super) struct Second {
    /// Since the run began.
    pub(super) at: Duration,
    /// Messages and errors of this second alone.
    pub(super) sent: u64,
    pub(super) received: u64,
    pub(super) errors: u64,
    pub(super) connections: usize,
    /// In nanoseconds; 0 when there was no answer.
    pub(super) p50: u64,
    pub(super) p99: u64,
    pub(super) max: u64,
}

/// Records a run, second by second.
pub(super) struct Recorder {
    pub(super) counts: Counts,
    /// All counts at the last [`end_second`](Self::end_second), of the warm-up too.
    before: Counts,
    /// Messages of the warm-up.
    warmup: Counts,
    second: Histogram<u64>,
    latency: Histogram<u64>,
    send_delay: Histogram<u64>,
    pub(super) series: Vec<Second>,
    pub(super) connections: usize,
    pub(super) last_answer: Option<Instant>,
    pub(super) last_sent: Option<Instant>,
    /// The text of the first error.
    pub(super) first_error: Option<String>,
}

impl Recorder {
    pub(super) fn new() -> Self {
        Self {
            counts: Counts::default(),
            before: Counts::default(),
            warmup: Counts::default(),
            second: histogram(),
            latency: histogram(),
            send_delay: histogram(),
            series: Vec::new(),
            connections: 0,
            last_answer: None,
            last_sent: None,
            first_error: None,
        }
    }

    /// A message left `delay` later than it was to.
    pub(super) fn sent(&mut self, now: Instant, delay: Duration, is_measured: bool) {
        if is_measured {
            self.counts.sent += 1;
            self.last_sent = Some(now);
            self.send_delay.saturating_record(nanos(delay));
        } else {
            self.warmup.sent += 1;
        }
    }

    /// An answer arrived.
    pub(super) fn answered(&mut self, now: Instant, latency: Duration, is_measured: bool) {
        if is_measured {
            self.counts.received += 1;
            self.last_answer = Some(now);
            self.second.saturating_record(nanos(latency));
        } else {
            self.warmup.received += 1;
        }
    }

    pub(super) fn note_error(&mut self, text: impl FnOnce() -> String) {
        if self.first_error.is_none() {
            self.first_error = Some(text());
        }
    }

    /// Ends a second of the series.
    pub(super) fn end_second(&mut self, at: Duration) -> Second {
        let mut counts = self.counts;
        counts.sent += self.warmup.sent;
        counts.received += self.warmup.received;
        let percentile =
            |quantile| if self.second.is_empty() { 0 } else { self.second.value_at_quantile(quantile) };
        let second = Second {
            at,
            sent: counts.sent - self.before.sent,
            received: counts.received - self.before.received,
            errors: counts.errors() - self.before.errors(),
            connections: self.connections,
            p50: percentile(0.5),
            p99: percentile(0.99),
            max: if self.second.is_empty() { 0 } else { self.second.max() },
        };
        self.before = counts;
        self.merge();
        self.series.push(second.clone());
        second
    }

    /// The latencies of the answers that were measured.
    pub(super) fn latency(&mut self) -> &Histogram<u64> {
        self.merge();
        &self.latency
    }

    /// How much later than due messages were sent.
    pub(super) fn send_delay(&self) -> &Histogram<u64> {
        &self.send_delay
    }

    fn merge(&mut self) {
        // Both have the same bounds, for which this cannot fail.
        let _ = self.latency.add(&self.second);
        self.second.reset();
    }
}

/// Three significant digits.
fn histogram() -> Histogram<u64> {
    let Ok(histogram) = Histogram::new_with_bounds(1, LATENCY_MAX, 3) else {
        unreachable!("the bounds are constants");
    };
    histogram
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(LATENCY_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    // 1 to 10,000 ms, each once: the percentiles are known.
    #[test]
    fn percentiles_of_a_known_distribution() {
        let mut recorder = Recorder::new();
        let now = Instant::now();
        for ms in 1..=10_000 {
            recorder.answered(now, Duration::from_millis(ms), true);
            if ms % 1000 == 0 {
                recorder.end_second(Duration::from_secs(ms / 1000));
            }
        }
        let latency = recorder.latency();
        assert_eq!(latency.len(), 10_000);
        for (quantile, expected_ms) in [(0.5, 5_000.0), (0.9, 9_000.0), (0.99, 9_900.0), (0.999, 9_990.0)] {
            let found = latency.value_at_quantile(quantile) as f64 / 1e6;
            assert!((found / expected_ms - 1.0).abs() < 0.001, "{quantile}: {found}");
        }
        assert!((latency.mean() / 1e6 / 5000.5 - 1.0).abs() < 0.001);
        assert_eq!(recorder.series.len(), 10);
        assert_eq!(recorder.series[9].received, 1000);
        assert!((recorder.series[9].p50 as f64 / 9500e6 - 1.0).abs() < 0.001);
    }

    #[test]
    fn the_warm_up_is_not_measured() {
        let mut recorder = Recorder::new();
        let now = Instant::now();
        recorder.sent(now, Duration::ZERO, false);
        recorder.answered(now, Duration::from_secs(1), false);
        recorder.sent(now, Duration::ZERO, true);
        recorder.answered(now, Duration::from_millis(1), true);
        assert_eq!(recorder.end_second(Duration::from_secs(1)).received, 2);
        assert_eq!(recorder.counts.received, 1);
        assert_eq!(recorder.latency().len(), 1);
    }
}
