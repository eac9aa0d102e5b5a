//! Counts and latencies of a run.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use wireloom::Error;

use super::hdr::Log;

/// The longest latency that is kept, in nanoseconds: an hour.
const LATENCY_MAX: u64 = 3_600_000_000_000;

/// Messages and errors so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) sent: u64,
    pub(super) received: u64,
    /// Payload, in bytes.
    pub(super) sent_bytes: u64,
    pub(super) received_bytes: u64,
    pub(super) errors: Errors,
}

/// Errors by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Errors {
    /// No answer within the timeout, or a later message was answered first, or the connection ended before.
    pub(super) lost: u64,
    /// Answers that equal no message.
    pub(super) wrong: u64,
    /// Answers to a message that was answered before, or has been counted as lost.
    pub(super) unexpected: u64,
    /// Messages of a room that arrived after a later one of the same publisher.
    pub(super) reordered: u64,
    /// Connections that could not be opened.
    pub(super) connect_failed: u64,
    /// Connections that the server closed.
    pub(super) closed: u64,
    /// Connections that broke.
    pub(super) broken: u64,
}

impl Errors {
    /// The kinds as the JSON names them, in the order in which they are printed.
    pub(super) fn kinds(&self) -> [(&'static str, u64); 7] {
        [
            ("lost", self.lost),
            ("wrong", self.wrong),
            ("unexpected", self.unexpected),
            ("reordered", self.reordered),
            ("not_connected", self.connect_failed),
            ("closed", self.closed),
            ("broken", self.broken),
        ]
    }

    pub(super) fn total(&self) -> u64 {
        self.kinds().iter().map(|(_, count)| count).sum()
    }
}

/// One second of the run, or more while this process could not run; less before an error at the end.
#[derive(Clone, Debug)]
pub(super) struct Second {
    /// Its end, since the run began.
    pub(super) at: Duration,
    /// From its beginning to its end.
    pub(super) time: Duration,
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

impl Second {
    /// A count of this second, per second.
    pub(super) fn rate(&self, count: u64) -> f64 {
        count as f64 / self.time.as_secs_f64().max(1e-3)
    }
}

/// Records a run, second by second.
pub(super) struct Recorder {
    /// Of the measured time.
    pub(super) counts: Counts,
    /// Messages of the warm-up.
    warmup: Counts,
    /// The sum of both at the last [`end_second`](Self::end_second).
    before: Counts,
    second: Histogram<u64>,
    latency: Histogram<u64>,
    send_delay: Histogram<u64>,
    /// How long it took to open each connection.
    pub(super) connect: Histogram<u64>,
    pub(super) series: Vec<Second>,
    /// The number of open connections: those that the server has ended do not count.
    pub(super) connections: usize,
    pub(super) last_answer: Option<Instant>,
    pub(super) last_sent: Option<Instant>,
    /// The text of the first error.
    pub(super) first_error: Option<String>,
    /// With `--hdr`.
    pub(super) log: Option<Log>,
}

impl Recorder {
    pub(super) fn new() -> Self {
        Self {
            counts: Counts::default(),
            warmup: Counts::default(),
            before: Counts::default(),
            second: histogram(),
            latency: histogram(),
            send_delay: histogram(),
            connect: histogram(),
            series: Vec::new(),
            connections: 0,
            last_answer: None,
            last_sent: None,
            first_error: None,
            log: None,
        }
    }

    /// Records a message of `len` bytes that was sent `delay` later than scheduled.
    pub(super) fn sent(&mut self, now: Instant, delay: Duration, len: usize, is_measured: bool) {
        let counts = if is_measured { &mut self.counts } else { &mut self.warmup };
        counts.sent += 1;
        counts.sent_bytes += len as u64;
        if is_measured {
            self.last_sent = Some(now);
            // The closed loop has no delays.
            if !delay.is_zero() {
                self.send_delay.saturating_record(nanos(delay));
            }
        }
    }

    /// Records an answer.
    pub(super) fn answered(&mut self, now: Instant, latency: Duration, len: usize, is_measured: bool) {
        self.received(now, 1, len as u64, is_measured);
        self.latency_of(latency, is_measured);
    }

    /// Records received messages whose latency is not known.
    pub(super) fn received(&mut self, now: Instant, messages: u64, bytes: u64, is_measured: bool) {
        let counts = if is_measured { &mut self.counts } else { &mut self.warmup };
        counts.received += messages;
        counts.received_bytes += bytes;
        if is_measured {
            self.last_answer = Some(now);
        }
    }

    pub(super) fn latency_of(&mut self, latency: Duration, is_measured: bool) {
        if is_measured {
            self.second.saturating_record(nanos(latency));
        }
    }

    /// Records that the server has ended a connection.
    pub(super) fn disconnected(&mut self) {
        self.connections = self.connections.saturating_sub(1);
    }

    /// Records that a connection was opened.
    pub(super) fn connected(&mut self, time: Duration) {
        self.connect.saturating_record(nanos(time));
    }

    /// Counts a connection that could not be opened.
    pub(super) fn connect_failed(&mut self, error: &Error) {
        self.error(
            |errors| &mut errors.connect_failed,
            1,
            || format!("a connection could not be opened: {error}"),
        );
    }

    /// Counts an error; the text of the first one is kept.
    pub(super) fn error(
        &mut self,
        kind: fn(&mut Errors) -> &mut u64,
        count: u64,
        text: impl FnOnce() -> String,
    ) {
        if count > 0 {
            *kind(&mut self.counts.errors) += count;
            self.note_error(text);
        }
    }

    fn note_error(&mut self, text: impl FnOnce() -> String) {
        if self.first_error.is_none() {
            self.first_error = Some(text());
        }
    }

    /// Ends the last second early: in the log, and in the series if there were errors, which it would not show otherwise.
    pub(super) fn end(&mut self, at: Duration) {
        if self.counts.errors.total() > self.before.errors.total() {
            self.end_second(at);
        } else {
            self.log(at);
            self.merge();
        }
    }

    /// When the current second began.
    fn second_begin(&self) -> Duration {
        self.series.last().map_or(Duration::ZERO, |second| second.at)
    }

    /// Adds the current second, which ends now, to the log.
    fn log(&mut self, at: Duration) {
        let begin = self.second_begin();
        if let Some(log) = &mut self.log {
            log.add(&self.second, begin, at);
        }
    }

    /// Ends a second of the series.
    pub(super) fn end_second(&mut self, at: Duration) -> Second {
        let mut counts = self.counts;
        counts.sent += self.warmup.sent;
        counts.received += self.warmup.received;
        let percentile =
            |quantile| if self.second.is_empty() { 0 } else { self.second.value_at_quantile(quantile) };
        let begin = self.second_begin();
        let second = Second {
            at,
            time: at.saturating_sub(begin),
            sent: counts.sent - self.before.sent,
            received: counts.received - self.before.received,
            errors: counts.errors.total() - self.before.errors.total(),
            connections: self.connections,
            p50: percentile(0.5),
            p99: percentile(0.99),
            max: if self.second.is_empty() { 0 } else { self.second.max() },
        };
        self.log(at);
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

    /// Adds a run that followed this one.
    pub(super) fn append(&mut self, mut later: Self) {
        self.merge();
        later.merge();
        // All histograms have the same bounds, for which this cannot fail.
        let _ = self.latency.add(&later.latency);
        let _ = self.send_delay.add(&later.send_delay);
        let _ = self.connect.add(&later.connect);
        self.counts.sent += later.counts.sent;
        self.counts.received += later.counts.received;
        self.counts.sent_bytes += later.counts.sent_bytes;
        self.counts.received_bytes += later.counts.received_bytes;
        let (errors, more) = (&mut self.counts.errors, later.counts.errors);
        errors.lost += more.lost;
        errors.wrong += more.wrong;
        errors.unexpected += more.unexpected;
        errors.reordered += more.reordered;
        errors.connect_failed += more.connect_failed;
        errors.closed += more.closed;
        errors.broken += more.broken;
        let begin = self.second_begin();
        self.series.extend(later.series.into_iter().map(|second| Second { at: begin + second.at, ..second }));
        self.first_error = self.first_error.take().or(later.first_error);
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

/// A histogram with three significant digits.
pub(super) fn histogram() -> Histogram<u64> {
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
            recorder.answered(now, Duration::from_millis(ms), 1, true);
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
    fn a_second_that_ends_late_has_its_rate() {
        let mut recorder = Recorder::new();
        for (at_ms, count, rate) in [(1_000, 10, 10.0), (3_500, 10, 4.0), (4_000, 10, 20.0)] {
            for _ in 0..count {
                recorder.answered(Instant::now(), Duration::from_millis(1), 1, true);
            }
            let second = recorder.end_second(Duration::from_millis(at_ms));
            assert_eq!(second.rate(second.received), rate, "{second:?}");
        }
    }

    #[test]
    fn the_warm_up_is_not_measured() {
        let mut recorder = Recorder::new();
        let now = Instant::now();
        recorder.sent(now, Duration::ZERO, 1, false);
        recorder.answered(now, Duration::from_secs(1), 1, false);
        recorder.sent(now, Duration::ZERO, 1, true);
        recorder.answered(now, Duration::from_millis(1), 1, true);
        assert_eq!(recorder.end_second(Duration::from_secs(1)).received, 2);
        assert_eq!(recorder.counts.received, 1);
        assert_eq!(recorder.latency().len(), 1);
    }
}
