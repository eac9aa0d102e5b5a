//! The history of one channel: the newest publications and the position of the last one. No clock: times are arguments.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use prost::Message as _;

use crate::config::{POSITION_TTL, RecoveryMode};
use crate::protocol::Publication;

/// A place in the history of a channel: the offset of its last publication, and which history the offset belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Position {
    /// The offset, from 1; 0 before the first publication.
    pub offset: u64,
    /// The epoch, which changes when the history is lost or removed. Empty if the channel keeps none.
    pub epoch: String,
}

impl Position {
    /// No history gets as far: Redis counts up to this. A greater offset in a store is damage.
    pub(crate) const OFFSET_MAX: u64 = i64::MAX as u64;

    /// Whether it is in the history with this epoch. An empty epoch matches any: applications that hand out positions may know only the
    /// offset.
    pub(crate) fn is_in(&self, epoch: &str) -> bool {
        self.epoch.is_empty() || self.epoch == epoch
    }
}

/// How much of a channel's history is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Publications.
    pub size: usize,
    /// How long each publication is kept.
    pub ttl: Duration,
    /// How long the position is kept after the last publication, at least as long as `ttl`. A client that has missed nothing recovers
    /// until then, although every publication has expired.
    pub position_ttl: Duration,
}

/// A query for part of a history.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistoryQuery {
    /// Only publications after this position.
    pub since: Option<Position>,
    /// At most this many publications; `None` for all.
    pub limit: Option<usize>,
    /// The newest first; `since` then means publications before it.
    pub reverse: bool,
    /// At most this many bytes of publications, but one in any case; `None` for all.
    pub len_max: Option<usize>,
}

/// How many of the first publications have at most this many bytes, but one in any case.
pub(crate) fn count_within(publications: &[Arc<Publication>], len_max: usize) -> usize {
    let lens = publications.iter().map(|publication| publication.encoded_len());
    let sums = lens.scan(0_usize, |sum, len| {
        *sum = sum.saturating_add(len);
        Some(*sum)
    });
    sums.take_while(|sum| *sum <= len_max).count().max(1).min(publications.len())
}

/// Part of a history.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    /// The publications.
    pub publications: Vec<Arc<Publication>>,
    /// The position of the newest publication of the channel, whether it is in `publications` or not.
    pub position: Position,
}

/// The answer to a client that wants to continue from a position.
#[derive(Clone, Debug, PartialEq)]
pub struct Recovery {
    /// The publications that the client missed, in order; empty when they are not all known, or have too many bytes.
    pub publications: Vec<Arc<Publication>>,
    /// `publications` is everything that the client missed.
    pub recovered: bool,
    /// The position after `publications`.
    pub position: Position,
}

/// The publications of a channel in memory.
///
/// Invariant: the offsets in `kept` are consecutive, and the last one is `top`; `len` is the sum of their costs. None outlives a newer
/// one, because offsets stay consecutive.
#[derive(Debug)]
pub(crate) struct Log {
    epoch: String,
    top: u64,
    kept: VecDeque<Kept>,
    len: usize,
    /// When the last publication arrived.
    used_at: Duration,
    /// How long the position is kept after that.
    position_ttl: Duration,
}

#[derive(Debug)]
struct Kept {
    publication: Arc<Publication>,
    expires_at: Duration,
}

impl Kept {
    /// The approximate memory of a publication, in bytes.
    fn cost(&self) -> usize {
        self.publication.encoded_len() + size_of::<Self>() + size_of::<Publication>()
    }
}

impl Log {
    pub(crate) fn new(epoch: String, now: Duration) -> Self {
        Self { epoch, top: 0, kept: VecDeque::new(), len: 0, used_at: now, position_ttl: POSITION_TTL }
    }

    /// A log that continues at a position, with what is still kept of it.
    pub(crate) fn restore(
        position: Position,
        kept: impl IntoIterator<Item = (Arc<Publication>, Duration)>,
        now: Duration,
    ) -> Self {
        let mut log = Self::new(position.epoch, now);
        log.top = position.offset;
        for (publication, expires_at) in kept {
            log.push(Kept { publication, expires_at });
        }
        log
    }

    /// Adds the newest publication. Older ones that would expire later have another TTL.
    fn push(&mut self, newest: Kept) {
        for older in self.kept.iter_mut().rev().take_while(|older| older.expires_at > newest.expires_at) {
            older.expires_at = newest.expires_at;
        }
        self.len += newest.cost();
        self.kept.push_back(newest);
    }

    pub(crate) fn epoch(&self) -> &str {
        &self.epoch
    }

    pub(crate) fn position(&self) -> Position {
        Position { offset: self.top, epoch: self.epoch.clone() }
    }

    /// The offset of the oldest kept publication; if none is kept, that of the next one.
    pub(crate) fn first(&self) -> u64 {
        self.top + 1 - self.kept.len() as u64
    }

    /// The approximate memory of the kept publications, in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Drops the oldest publications until `excess` bytes are freed or none is left.
    pub(crate) fn shorten(&mut self, excess: usize) {
        self.drop_before(self.first_within(self.len.saturating_sub(excess)));
    }

    /// The offset from which on the publications take at most `len_max` bytes.
    pub(crate) fn first_within(&self, len_max: usize) -> u64 {
        let mut len = self.len;
        let excess = self.kept.iter().take_while(|kept| {
            let is_excess = len > len_max;
            len = len.saturating_sub(kept.cost());
            is_excess
        });
        self.first() + excess.count() as u64
    }

    /// The offset of the oldest publication that has not expired.
    pub(crate) fn first_unexpired(&self, now: Duration) -> u64 {
        self.first() + self.kept.partition_point(|kept| kept.expires_at <= now) as u64
    }

    /// Whether a publication has not expired.
    pub(crate) fn has_unexpired(&self, now: Duration) -> bool {
        self.kept.back().is_some_and(|newest| newest.expires_at > now)
    }

    /// Drops the publications before an offset.
    pub(crate) fn drop_before(&mut self, first: u64) {
        while self.first() < first && self.drop_oldest() {}
    }

    fn drop_oldest(&mut self) -> bool {
        let oldest = self.kept.pop_front();
        self.len -= oldest.as_ref().map_or(0, Kept::cost);
        oldest.is_some()
    }

    /// The publications from an offset on, and when each expires.
    pub(crate) fn kept_from(
        &self,
        first: u64,
    ) -> impl DoubleEndedIterator<Item = (&Arc<Publication>, Duration)> {
        let begin = first.saturating_sub(self.first()).min(self.kept.len() as u64);
        self.kept.range(begin as usize..).map(|kept| (&kept.publication, kept.expires_at))
    }

    pub(crate) fn used_at(&self) -> Duration {
        self.used_at
    }

    pub(crate) fn set_position_ttl(&mut self, ttl: Duration) {
        self.position_ttl = ttl;
    }

    /// Until when the position is kept if no other publication arrives. One before the first publication can be made again when it
    /// is needed.
    pub(crate) fn position_expires_at(&self) -> Duration {
        if self.top == 0 { self.used_at } else { self.used_at.saturating_add(self.position_ttl) }
    }

    /// Adds a publication with the next offset.
    pub(crate) fn append(
        &mut self,
        mut publication: Publication,
        retention: Retention,
        now: Duration,
    ) -> Arc<Publication> {
        self.top += 1;
        self.used_at = now;
        self.position_ttl = retention.position_ttl;
        publication.offset = self.top;
        let publication = Arc::new(publication);
        let expires_at = now.saturating_add(retention.ttl);
        self.push(Kept { publication: publication.clone(), expires_at });
        while self.kept.len() > retention.size {
            self.drop_oldest();
        }
        publication
    }

    pub(crate) fn read(&self, query: &HistoryQuery, now: Duration) -> History {
        let limit = query.limit.unwrap_or(usize::MAX);
        let since = query.since.as_ref().map(|since| since.offset);
        let first = self.first_unexpired(now);
        let publications = if query.reverse {
            let before = since.unwrap_or(u64::MAX);
            let kept = self.kept_from(first).map(|(publication, _)| publication).rev();
            kept.skip_while(|one| one.offset >= before).take(limit).cloned().collect()
        } else {
            let first = first.max(since.map_or(0, |since| since.saturating_add(1)));
            self.kept_from(first).map(|(publication, _)| publication.clone()).take(limit).collect()
        };
        History { publications, position: self.position() }
    }

    /// The publications that a client at `since` missed.
    pub(crate) fn recover(
        &self,
        since: &Position,
        mode: RecoveryMode,
        limit: usize,
        now: Duration,
    ) -> Recovery {
        let first = self.first_unexpired(now);
        let position = self.position();
        let same = since.is_in(&self.epoch) && since.offset <= self.top;
        let lost = || Recovery { publications: Vec::new(), recovered: false, position: position.clone() };
        match mode {
            RecoveryMode::Cache => {
                let newest = self.kept_from(first.max(self.top)).next().map(|(newest, _)| newest.clone());
                let is_current = same && since.offset == self.top;
                let publications: Vec<_> = newest.filter(|_| !is_current).into_iter().collect();
                let recovered = is_current || !publications.is_empty();
                Recovery { publications, recovered, position }
            }
            RecoveryMode::Stream if !same => lost(),
            RecoveryMode::Stream => {
                if since.offset + 1 < first || self.top - since.offset > limit as u64 {
                    return lost();
                }
                let missed = self.kept_from(since.offset + 1).map(|(publication, _)| publication.clone());
                let publications = missed.collect();
                Recovery { publications, recovered: true, position }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    const S: Duration = Duration::from_secs(1);
    const KEEP_3: Retention = Retention { size: 3, ttl: Duration::from_secs(10), position_ttl: POSITION_TTL };

    fn log(count: u64) -> Log {
        let mut log = Log::new("e".into(), S);
        for n in 1..=count {
            let data = Bytes::from(n.to_string());
            log.append(Publication { data, ..Publication::default() }, KEEP_3, S * n as u32);
        }
        log
    }

    fn offsets(publications: &[Arc<Publication>]) -> Vec<u64> {
        publications.iter().map(|publication| publication.offset).collect()
    }

    fn at(offset: u64) -> Position {
        Position { offset, epoch: "e".into() }
    }

    #[test]
    fn recovers_exactly_what_was_missed_or_nothing() {
        let log = log(5);
        for (offset, missed) in
            [(5, Some(&[][..])), (4, Some(&[5])), (2, Some(&[3, 4, 5])), (1, None), (6, None)]
        {
            let recovery = log.recover(&at(offset), RecoveryMode::Stream, 100, S * 5);
            assert_eq!(recovery.recovered, missed.is_some(), "{offset}");
            assert_eq!(offsets(&recovery.publications), missed.unwrap_or(&[]), "{offset}");
            assert_eq!(recovery.position, at(5));
        }
        assert!(!log.recover(&at(2), RecoveryMode::Stream, 2, S * 5).recovered, "beyond the limit");
        let other = Position { offset: 5, epoch: "f".into() };
        assert!(!log.recover(&other, RecoveryMode::Stream, 100, S * 5).recovered, "another epoch");
    }

    #[test]
    fn reports_expired_publications_as_lost() {
        let log = log(3);
        // The first expires 10 s after second 1.
        assert!(log.recover(&at(0), RecoveryMode::Stream, 100, S * 11 - Duration::from_nanos(1)).recovered);
        assert!(!log.recover(&at(0), RecoveryMode::Stream, 100, S * 11).recovered);
        assert!(log.recover(&at(1), RecoveryMode::Stream, 100, S * 11).recovered);
        assert!(log.recover(&at(3), RecoveryMode::Stream, 100, S * 1000).recovered, "nothing was missed");
    }

    /// The option may have been changed.
    #[test]
    fn a_publication_never_outlives_a_newer_one() {
        let mut log = Log::new("e".into(), S);
        let ttls = [10, 10, 3, 5, 1];
        for ttl in ttls {
            let retention = Retention { size: 10, ttl: S * ttl, position_ttl: POSITION_TTL };
            log.append(Publication::default(), retention, S);
        }
        let expiries = |log: &Log| log.kept_from(0).map(|(_, expires_at)| expires_at).collect::<Vec<_>>();
        assert_eq!(expiries(&log), [S * 2; 5]);
        assert_eq!([1, 2].map(|now| log.first_unexpired(S * now)), [1, 6]);
        let kept = ttls.map(|ttl| (Arc::new(Publication::default()), S * (ttl + 1)));
        let restored = Log::restore(at(5), kept, S);
        assert_eq!(expiries(&restored), [S * 2; 5]);
    }

    #[test]
    fn cache_mode_delivers_the_newest_unless_the_client_has_it() {
        let log = log(5);
        for (offset, delivered) in [(0, &[5][..]), (4, &[5]), (5, &[])] {
            let recovery = log.recover(&at(offset), RecoveryMode::Cache, 100, S * 5);
            assert!(recovery.recovered);
            assert_eq!(offsets(&recovery.publications), delivered);
        }
        assert!(!log.recover(&at(4), RecoveryMode::Cache, 100, S * 100).recovered, "it has expired");
    }

    #[test]
    fn bytes_are_counted_from_the_first_on() {
        let publications: Vec<_> = log(5).kept_from(0).map(|(one, _)| one.clone()).collect();
        let len = publications[0].encoded_len();
        for (len_max, count) in
            [(0, 1), (len, 1), (2 * len - 1, 1), (2 * len, 2), (3 * len, 3), (usize::MAX, 3)]
        {
            assert_eq!(count_within(&publications, len_max), count, "{len_max}");
        }
        assert_eq!(count_within(&[], 0), 0);
    }

    #[test]
    fn reads_in_both_directions() {
        let log = log(5);
        let read = |since: Option<u64>, limit, reverse| {
            let query = HistoryQuery { since: since.map(at), limit, reverse, len_max: None };
            offsets(&log.read(&query, S * 5).publications)
        };
        assert_eq!(read(None, None, false), [3, 4, 5]);
        assert_eq!(read(None, Some(2), false), [3, 4]);
        assert_eq!(read(None, Some(2), true), [5, 4]);
        assert_eq!(read(Some(4), None, false), [5]);
        assert_eq!(read(Some(4), None, true), [3]);
        assert_eq!(read(None, Some(0), false), [0; 0]);
    }
}
