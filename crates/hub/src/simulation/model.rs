//! The histories in their simplest form: a list of everything that was published.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::time::Duration;

use prost::Message as _;

use crate::config::RecoveryMode;
use crate::engine::Membership;
use crate::history::{Position, Recovery, Retention};
use crate::protocol::Publication;
use crate::shards::lock;

/// How long a position is kept after the last publication.
const POSITION_TTL: Duration = Duration::from_secs(24 * 3600);

/// Everything that was published, by channel.
#[derive(Debug, Default)]
pub(super) struct Model(Mutex<HashMap<String, Channel>>);

#[derive(Debug, Default)]
struct Channel {
    /// The epochs so far; the last one is current, unless the history was removed.
    epochs: Vec<String>,
    /// The publications of the current epoch: when and with which payload.
    published: Vec<(Duration, Vec<u8>)>,
    /// The publications of all epochs.
    payloads: HashMap<(String, u64), Vec<u8>>,
    may_begin: bool,
    used_at: Duration,
    /// The clients that have joined, and not left.
    joined: HashSet<String>,
    /// One has joined twice, or left without having joined.
    out_of_order: bool,
}

/// The arguments of a recovery.
#[derive(Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) since: &'a Position,
    pub(super) mode: RecoveryMode,
    pub(super) retention: Retention,
    pub(super) len_max: usize,
}

impl Channel {
    /// Records an epoch that the engine reported.
    fn enter(&mut self, epoch: &str, now: Duration) {
        if self.epochs.last().is_some_and(|last| last == epoch) && !self.may_begin {
            return;
        }
        let is_forgotten = now >= self.used_at + POSITION_TTL || self.published.is_empty();
        assert!(
            self.may_begin || self.epochs.is_empty() || is_forgotten,
            "a new epoch {epoch} for no reason"
        );
        let seen: HashSet<_> = self.epochs.iter().collect();
        assert!(!seen.contains(&epoch.to_owned()), "epoch {epoch} was used before");
        self.epochs.push(epoch.into());
        self.published.clear();
        self.may_begin = false;
        self.used_at = now;
    }
}

impl Model {
    pub(super) fn publish(&self, channel: &str, position: &Position, payload: &[u8], now: Duration) {
        let mut channels = lock(&self.0);
        let channel = channels.entry(channel.into()).or_default();
        channel.enter(&position.epoch, now);
        channel.published.push((now, payload.to_vec()));
        channel.used_at = now;
        assert_eq!(position.offset, channel.published.len() as u64);
        channel.payloads.insert((position.epoch.clone(), position.offset), payload.to_vec());
    }

    pub(super) fn remove(&self, channel: &str) {
        let mut channels = lock(&self.0);
        let channel = channels.entry(channel.into()).or_default();
        channel.may_begin = true;
    }

    /// Records a join or a leave.
    pub(super) fn announce(&self, channel: &str, membership: &Membership) {
        let mut channels = lock(&self.0);
        let Channel { joined, out_of_order, .. } = channels.entry(channel.into()).or_default();
        *out_of_order |= match membership {
            Membership::Join(info) => !joined.insert(info.client.clone()),
            Membership::Leave(info) => !joined.remove(&info.client),
        };
    }

    /// The clients that have joined a channel, and not left it. Panics unless each joined, left and joined again in turn.
    pub(super) fn joined(&self, channel: &str) -> Vec<String> {
        let channels = lock(&self.0);
        let Some(channel) = channels.get(channel) else { return Vec::new() };
        assert!(!channel.out_of_order, "a client joined twice, or left without having joined");
        channel.joined.iter().cloned().collect()
    }

    /// Panics unless this is the recovery that the history guarantees.
    pub(super) fn check(
        &self,
        channel: &str,
        Asked { since, mode, retention, len_max }: Asked<'_>,
        now: Duration,
        recovery: &Recovery,
    ) {
        let mut channels = lock(&self.0);
        let channel = channels.entry(channel.into()).or_default();
        channel.enter(&recovery.position.epoch, now);
        let top = channel.published.len() as u64;
        assert_eq!(recovery.position.offset, top, "the position is that of the last publication");
        let kept = |offset: u64| {
            offset + retention.size as u64 > top
                && channel.published[offset as usize - 1].0 + retention.ttl > now
        };
        let since = Some(since).filter(|since| since.epoch == recovery.position.epoch && since.offset <= top);
        let expected: Option<Vec<u64>> = match (mode, since) {
            (_, Some(since)) if since.offset == top => Some(Vec::new()),
            (RecoveryMode::Cache, _) => (top > 0 && kept(top)).then(|| vec![top]),
            (RecoveryMode::Stream, Some(since)) => {
                let missed = since.offset + 1..=top;
                missed.clone().all(kept).then(|| missed.collect())
            }
            (RecoveryMode::Stream, None) => None,
        };
        let len = |offset: u64| {
            let data = channel.published[offset as usize - 1].1.clone().into();
            Publication { offset, data, ..Publication::default() }.encoded_len()
        };
        // One is sent whatever its length.
        let is_sent =
            |missed: &Vec<u64>| missed.len() < 2 || missed.iter().copied().map(len).sum::<usize>() <= len_max;
        let expected = expected.filter(is_sent);
        let offsets: Vec<_> = recovery.publications.iter().map(|one| one.offset).collect();
        assert_eq!(recovery.recovered.then_some(offsets), expected, "since {since:?}, top {top}");
        for publication in &recovery.publications {
            let (_, payload) = &channel.published[publication.offset as usize - 1];
            assert_eq!(payload[..], publication.data[..]);
        }
    }

    /// The current position of a channel.
    pub(super) fn position(&self, channel: &str) -> Position {
        let channels = lock(&self.0);
        let channel = &channels[channel];
        Position {
            epoch: channel.epochs.last().cloned().unwrap_or_default(),
            offset: channel.published.len() as u64,
        }
    }

    pub(super) fn payload(&self, channel: &str, epoch: &str, offset: u64) -> Option<Vec<u8>> {
        lock(&self.0).get(channel)?.payloads.get(&(epoch.to_owned(), offset)).cloned()
    }
}
