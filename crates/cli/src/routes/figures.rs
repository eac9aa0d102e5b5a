//! Figures of the routes: messages, responses, evictions and latencies. Connections and requests are counted by the library.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tracing::warn;
use wireloom::{Version, WebSocketError};

use crate::throttle::Throttle;

/// Everything that is counted here.
pub(crate) struct Figures {
    /// Indexed by [`Protocol`].
    traffic: [Traffic; 2],
    /// Indexed by status code, from 100.
    responses: Box<[AtomicU64; STATUSES]>,
    /// Indexed by [`Eviction`].
    evictions: [AtomicU64; Eviction::ALL.len()],
    /// For the log, indexed by [`Eviction`].
    logged: [Throttle; Eviction::ALL.len()],
    pub(super) handshakes: Histogram,
    pub(super) answers: Histogram,
}

const STATUSES: usize = 500;

/// Messages over one version of HTTP.
#[derive(Default)]
pub(super) struct Traffic {
    pub(super) received: MessageCounters,
    pub(super) sent: MessageCounters,
}

/// Messages in one direction, and their bytes.
#[derive(Default)]
pub(super) struct MessageCounters {
    pub(super) messages: AtomicU64,
    pub(super) bytes: AtomicU64,
}

impl MessageCounters {
    fn add(&self, messages: u64, bytes: u64) {
        if messages > 0 {
            self.messages.fetch_add(messages, Ordering::Relaxed);
            self.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }
}

/// Why the server ended a WebSocket on its own account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Eviction {
    /// The client did not read what was sent to it.
    Slow,
    /// The client did not answer pings.
    Silent,
    /// The client exceeded a limit.
    Limit,
}

impl Eviction {
    pub(super) const ALL: [Self; 3] = [Self::Slow, Self::Silent, Self::Limit];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Slow => "slow",
            Self::Silent => "silent",
            Self::Limit => "limit",
        }
    }

    /// The eviction that caused this error, if any.
    fn of(error: &WebSocketError) -> Option<Self> {
        match error {
            WebSocketError::SlowPeer => Some(Self::Slow),
            WebSocketError::KeepaliveTimeout => Some(Self::Silent),
            WebSocketError::Protocol(wireloom::wireloom_ws::Error::Limit(_)) => Some(Self::Limit),
            _ => None,
        }
    }
}

impl Figures {
    pub(super) fn new() -> Self {
        Self {
            traffic: Default::default(),
            responses: Box::new(std::array::from_fn(|_| AtomicU64::new(0))),
            evictions: Default::default(),
            logged: Default::default(),
            handshakes: Histogram::default(),
            answers: Histogram::default(),
        }
    }

    /// Messages over HTTP/1.1 and over HTTP/2, by the names of the versions.
    pub(super) fn traffic(&self) -> [(&'static str, &Traffic); 2] {
        let [http1, http2] = &self.traffic;
        [("http1", http1), ("http2", http2)]
    }

    pub(super) fn count_response(&self, status: u16) {
        if let Some(counter) =
            usize::from(status).checked_sub(100).and_then(|index| self.responses.get(index))
        {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The status codes that were sent, and how often.
    pub(super) fn responses(&self) -> impl Iterator<Item = (usize, u64)> {
        let counts = self.responses.iter().map(|counter| counter.load(Ordering::Relaxed));
        counts.enumerate().filter(|(_, count)| *count > 0).map(|(index, count)| (index + 100, count))
    }

    /// Counts an eviction, and logs it or counts it with the next one that is logged.
    pub(super) fn evict(&self, reason: Eviction, peer: SocketAddr) {
        self.evictions[reason as usize].fetch_add(1, Ordering::Relaxed);
        if let Some(others) = self.logged[reason as usize].next(Instant::now()) {
            let others = (others > 0).then_some(others);
            warn!(%peer, reason = reason.name(), others, "client evicted");
        }
    }

    /// Counts and logs the eviction that caused `error`, if any.
    pub(super) fn evict_for(&self, error: &WebSocketError, peer: SocketAddr) {
        if let Some(reason) = Eviction::of(error) {
            self.evict(reason, peer);
        }
    }

    pub(super) fn evictions(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Eviction::ALL
            .iter()
            .map(|&reason| (reason.name(), self.evictions[reason as usize].load(Ordering::Relaxed)))
    }
}

/// The messages of one WebSocket that have not been added to the figures yet. They are added before the WebSocket waits, so that
/// counting costs no shared memory per message.
pub(super) struct FigureBatch<'a> {
    figures: &'a Figures,
    traffic: &'a Traffic,
    received: (u64, u64),
    sent: (u64, u64),
    /// When the first message of this batch arrived.
    begin: Option<Instant>,
}

impl<'a> FigureBatch<'a> {
    pub(super) fn new(figures: &'a Figures, version: Version) -> Self {
        let traffic = &figures.traffic[usize::from(version == Version::Http2)];
        Self { figures, traffic, received: (0, 0), sent: (0, 0), begin: None }
    }

    #[inline]
    pub(super) fn received(&mut self, len: usize) {
        if self.begin.is_none() {
            self.begin = Some(Instant::now());
        }
        self.received = (self.received.0 + 1, self.received.1 + len as u64);
    }

    #[inline]
    pub(super) fn sent(&mut self, messages: u64, len: usize) {
        self.sent = (self.sent.0 + messages, self.sent.1 + len as u64);
    }

    /// Adds what was counted to the figures.
    pub(super) fn flush(&mut self) {
        let begin = self.begin.take();
        if let Some(begin) = begin.filter(|_| self.sent.0 > 0) {
            self.figures.answers.record(begin.elapsed());
        }
        let (received, sent) = (std::mem::take(&mut self.received), std::mem::take(&mut self.sent));
        self.traffic.received.add(received.0, received.1);
        self.traffic.sent.add(sent.0, sent.1);
    }
}

impl Drop for FigureBatch<'_> {
    fn drop(&mut self) {
        self.flush();
    }
}

/// Upper bounds of the buckets of a [`Histogram`], in seconds.
pub(super) const BUCKETS: [f64; 12] = [1e-5, 5e-5, 1e-4, 5e-4, 1e-3, 5e-3, 1e-2, 5e-2, 0.1, 0.5, 1.0, 5.0];

/// Durations, as Prometheus counts them.
#[derive(Default)]
pub(super) struct Histogram {
    /// The number of durations in each bucket; the last bucket has no upper bound.
    counts: [AtomicU64; BUCKETS.len() + 1],
    sum_ns: AtomicU64,
}

impl Histogram {
    pub(super) fn record(&self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        let bucket = BUCKETS.iter().position(|&bound| seconds <= bound).unwrap_or(BUCKETS.len());
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.sum_ns.fetch_add(nanos, Ordering::Relaxed);
    }

    /// The number of durations up to each bound, the number of all, and their sum in seconds.
    pub(super) fn read(&self) -> ([u64; BUCKETS.len()], u64, f64) {
        let mut total = 0;
        let mut cumulative = [0; BUCKETS.len()];
        for (index, count) in self.counts.iter().enumerate() {
            total += count.load(Ordering::Relaxed);
            if let Some(cell) = cumulative.get_mut(index) {
                *cell = total;
            }
        }
        (cumulative, total, self.sum_ns.load(Ordering::Relaxed) as f64 / 1e9)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_is_cumulative() {
        let histogram = Histogram::default();
        for millis in [1, 1, 70, 9_000] {
            histogram.record(Duration::from_millis(millis));
        }
        let (cumulative, total, sum) = histogram.read();
        assert_eq!((cumulative[3], cumulative[4], cumulative[8], cumulative[11], total), (0, 2, 3, 3, 4));
        assert!((sum - 9.072).abs() < 1e-9);
    }
}
