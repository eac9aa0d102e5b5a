//! Histories in JetStream. A stream holds the channels of a namespace, a subject for each.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use async_nats::StatusCode;
use async_nats::jetstream::stream::{DirectGetErrorKind, Stream};
use bytes::Bytes;
use prost::Message as _;
use serde_json::json;
use tokio_stream::StreamExt as _;

use super::newest::Search;
use super::streams::{Nats, epoch, size_min, subject};
use super::unavailable;
use crate::budget::{self, charge};
use crate::config::RecoveryMode;
use crate::engine::EngineError;
use crate::history::{History, HistoryQuery, Position, Recovery, Retention, count_within};
use crate::protocol::Publication;

/// Stored instead of a publication when a history is removed: earlier messages do not count. No publication is encoded
/// like this: field 0 does not exist in Protobuf.
pub(super) const TOMBSTONE: &[u8] = &[0];

pub(super) fn is_tombstone(payload: &[u8]) -> bool {
    payload == TOMBSTONE
}

/// The number of messages that one request asks for.
const BATCH: usize = 1_000;

/// How often a history is read whose stream is created again meanwhile: with the subjects of another epoch, nothing is found.
const TRIES: usize = 2;
const REPLACED: &str = "the stream has just been created again";

/// How long the server may take to send the next message of a batch.
const BATCH_TIMEOUT: Duration = Duration::from_secs(5);

/// A message of a stream.
struct Message {
    sequence: u64,
    /// When it was stored, since 1970, by the server's clock.
    at: Duration,
    payload: Bytes,
}

/// Consecutive messages of a subject.
#[derive(Default)]
pub(super) struct Batch {
    messages: Vec<Message>,
    /// The sequence of the last message that was read: also one that only marks what was deleted, of which a batch may be full.
    last: Option<u64>,
    /// The number of messages that the subject has after them; `None` if the server does not count them.
    pending: Option<u64>,
    has_more: bool,
}

impl Batch {
    pub(super) fn into_payloads(self) -> impl Iterator<Item = Bytes> {
        self.messages.into_iter().map(|message| message.payload)
    }

    pub(super) fn last(&self) -> Option<u64> {
        self.last
    }

    /// The number of messages of the subject from the first of these on, if the server counts them.
    fn count(&self) -> Option<u64> {
        self.pending.map(|pending| pending.saturating_add(self.messages.len() as u64))
    }

    pub(super) fn has_more(&self) -> bool {
        self.has_more
    }
}

/// The first message of a batch.
#[derive(Clone, Copy, Debug)]
pub(super) enum From {
    Sequence(u64),
    /// The first one at or after a time since 1970.
    Time(Duration),
}

/// At most `count` messages of a subject, which may have wildcards, in one round trip (NATS ADR-31, "Batched Requests"); no further one
/// after `len_max` bytes.
pub(super) async fn batch(
    nats: &Nats,
    stream: &str,
    subject: &str,
    from: From,
    count: usize,
    len_max: Option<usize>,
) -> Result<Batch, EngineError> {
    let inbox = nats.client.new_inbox();
    let mut answers = nats.client.subscribe(inbox.clone()).await.map_err(unavailable)?;
    let mut request = json!({ "batch": count.clamp(1, BATCH), "next_by_subj": subject });
    if let Some(len_max) = len_max {
        // The server takes 0 for its default.
        request["max_bytes"] = len_max.clamp(1, LEN_MAX).into();
    }
    match from {
        From::Sequence(sequence) => request["seq"] = sequence.max(1).into(),
        From::Time(time) => {
            request["start_time"] = humantime::format_rfc3339_nanos(UNIX_EPOCH + time).to_string().into();
        }
    }
    let api = format!("$JS.API.DIRECT.GET.{stream}");
    let request = request.to_string().into();
    nats.client.publish_with_reply(api, inbox, request).await.map_err(unavailable)?;
    let mut batch = Batch::default();
    loop {
        let next = tokio::time::timeout(BATCH_TIMEOUT, answers.next()).await.map_err(unavailable)?;
        let message = next.ok_or_else(|| unavailable("the subscription has ended"))?;
        let number = |name: &str| message.headers.as_ref()?.get(name)?.as_str().parse::<u64>().ok();
        let pending = number(NUM_PENDING);
        match message.status {
            Some(StatusCode::NOT_FOUND) => return Ok(batch),
            Some(status) if status.as_u16() == END_OF_BATCH => {
                batch.has_more = pending.is_some_and(|pending| pending > 0);
                batch.pending = pending;
                return Ok(batch);
            }
            Some(status) => return Err(unavailable(format_args!("status {status}"))),
            None => {}
        }
        let sequence = number(async_nats::header::NATS_SEQUENCE.as_ref());
        let sequence = sequence.filter(|sequence| (1..=Position::OFFSET_MAX).contains(sequence));
        let sequence = sequence.ok_or_else(|| unavailable("a stored message has no sequence"))?;
        batch.last = Some(sequence);
        let headers = message.headers.as_ref();
        // A marker of something that was deleted.
        let is_marker = headers.is_some_and(|headers| headers.get(KV_OPERATION).is_some());
        if !is_marker {
            let at = headers.and_then(|headers| headers.get(async_nats::header::NATS_TIME_STAMP));
            let at = at.and_then(|at| humantime::parse_rfc3339(at.as_str()).ok());
            let at = at.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
            let at = at.ok_or_else(|| unavailable("a stored message has no time"))?;
            batch.messages.push(Message { sequence, at, payload: message.payload });
        }
        // A server before version 2.11 sends one message and no end.
        if pending.is_none() {
            batch.has_more = true;
            return Ok(batch);
        }
    }
}

/// The largest limit of a batch in bytes. The server has one of its own, which is no larger by default.
const LEN_MAX: usize = 64 << 20;

/// The header of a message that deletes an entry of a key-value store.
const KV_OPERATION: &str = "KV-Operation";

/// The header with the number of messages after this one.
const NUM_PENDING: &str = "Nats-Num-Pending";

/// The status of the message that ends a batch.
const END_OF_BATCH: u16 = 204;

fn publication(sequence: u64, payload: Bytes) -> Option<Arc<Publication>> {
    let mut publication = Publication::decode(payload).ok()?;
    publication.offset = sequence;
    Some(Arc::new(publication))
}

/// How many publications are read, and how many bytes of them, but for one publication beyond these.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) count: usize,
    pub(super) len: usize,
}

impl Limits {
    /// How many of these publications are not among the last ones within the limits.
    fn excess(self, publications: &[Arc<Publication>]) -> usize {
        let mut len = 0_usize;
        let is_last = |publication: &&Arc<Publication>| {
            let has_room = len <= self.len;
            len = len.saturating_add(publication.encoded_len());
            has_room
        };
        publications.len() - publications.iter().rev().take(self.count).take_while(is_last).count()
    }
}

/// Publications that have been read, the oldest first.
#[derive(Default)]
struct Found {
    publications: Vec<Arc<Publication>>,
    /// Their length as they are stored.
    len: usize,
    /// Whether the history before them was removed.
    is_removed_before: bool,
}

impl Found {
    fn add(&mut self, message: Message) {
        self.len = self.len.saturating_add(message.payload.len());
        self.publications.extend(publication(message.sequence, message.payload));
    }

    /// The history was removed here.
    fn remove(&mut self) {
        *self = Self { is_removed_before: true, ..Self::default() };
    }

    /// Whether there are several of more bytes than these.
    fn is_longer_than(&self, len_max: usize) -> bool {
        self.publications.len() > 1 && self.len > len_max
    }
}

/// The publications after a sequence.
#[derive(Default)]
struct After {
    found: Found,
    /// Whether the oldest of them has expired. Those after it may have, too.
    has_expired: bool,
    /// Whether the stream still has the message with that sequence.
    has_since: bool,
    /// How many more of them were not read; `u64::MAX` if the server does not count them.
    left: u64,
}

/// Consecutive publications of a history.
#[derive(Default)]
struct Kept {
    found: Found,
    /// The sequence of the last message that was read, if more bytes follow than were asked for.
    cut_at: Option<u64>,
}

/// The number of publications that are read backwards first.
const PART_MIN: usize = 100;

/// A history in its stream: of the messages of a subject, the newest `retention.size` that have not expired.
struct Stored<'a> {
    nats: &'a Nats,
    stream: &'a Stream,
    subject: &'a str,
    retention: Retention,
}

impl Stored<'_> {
    async fn batch(&self, from: From, count: usize, len_max: Option<usize>) -> Result<Batch, EngineError> {
        let stream = &self.stream.cached_info().config.name;
        batch(self.nats, stream, self.subject, from, count, len_max).await
    }

    fn has_expired(&self, message: &Message) -> bool {
        message.at.saturating_add(self.retention.ttl) <= self.nats.server_time()
    }

    /// When the oldest publication that has not expired was stored, at the earliest.
    fn oldest(&self) -> Duration {
        self.nats.server_time().saturating_sub(self.retention.ttl)
    }

    /// The position of the newest message; if there is none, that of the stream.
    async fn newest_position(&self) -> Result<Position, EngineError> {
        match self.stream.direct_get_last_for_subject(self.subject).await {
            Ok(newest) => Ok(Position { offset: newest.sequence, epoch: epoch(self.stream.cached_info()) }),
            Err(error) if error.kind() == DirectGetErrorKind::NotFound => {
                Ok(state(self.stream).await?.position())
            }
            Err(error) => Err(unavailable(error)),
        }
    }

    async fn read(&self, query: &HistoryQuery) -> Result<History, EngineError> {
        let count = query.limit.unwrap_or(usize::MAX);
        let limits = Limits { count, len: query.len_max.unwrap_or(usize::MAX) };
        let since = query.since.as_ref().map(|since| since.offset);
        let position = self.newest_position().await?;
        let mut publications = if count == 0 {
            Vec::new()
        } else if query.reverse {
            self.newest(since.unwrap_or(u64::MAX), limits).await?
        } else {
            self.kept(since.unwrap_or(0)..u64::MAX, limits).await?.found.publications
        };
        publications.truncate(count_within(&publications, limits.len));
        // Others may have been published meanwhile.
        let offset = publications.iter().map(|one| one.offset).max().unwrap_or(0).max(position.offset);
        Ok(History { publications, position: Position { offset, ..position } })
    }

    /// The publications before a sequence, the newest first: those within the limits, or more. A stream is read forwards, so that a limit in
    /// bytes takes several parts, each from a sequence on that has to be found.
    async fn newest(&self, mut before: u64, limits: Limits) -> Result<Vec<Arc<Publication>>, EngineError> {
        let limit = limits.count.min(self.retention.size);
        let mut newest = Vec::new();
        let mut part = if limits.len < usize::MAX { PART_MIN } else { limit };
        loop {
            let left = limit - newest.len();
            let after = self.before_newest(before, part.min(left) as u64).await?;
            let last = self.last(after..before, Limits { count: left, ..limits }).await?;
            let is_empty = last.publications.is_empty();
            newest.extend(last.publications.into_iter().rev());
            let has_enough = count_within(&newest, limits.len) < newest.len();
            if has_enough || newest.len() >= limit || after == 0 || is_empty || last.is_removed_before {
                return Ok(newest);
            }
            before = newest.last().map_or(0, |oldest| oldest.offset);
            part = part.saturating_mul(4);
        }
    }

    /// The last publications between two sequences, without either, within the limits. Those before them are read too, paid for, and
    /// forgotten as the next ones are read.
    async fn last(&self, between: Range<u64>, limits: Limits) -> Result<Found, EngineError> {
        let Range { start: mut after, end: before } = between;
        let mut last = Found::default();
        loop {
            let Kept { found, cut_at } =
                self.kept(after..before, Limits { count: usize::MAX, ..limits }).await?;
            if found.is_removed_before {
                last.remove();
            }
            last.publications.extend(found.publications);
            let excess = limits.excess(&last.publications);
            let forgotten: Vec<_> = last.publications.drain(..excess).collect();
            charge(budget::of_publications(&forgotten)).await;
            match cut_at {
                Some(cut_at) => after = cut_at,
                None => return Ok(last),
            }
        }
    }

    /// A sequence after which the subject has at least `limit` messages before the sequence `before`, or all of them; 0 for all.
    async fn before_newest(&self, before: u64, limit: u64) -> Result<u64, EngineError> {
        let first = self.batch(From::Time(self.oldest()), 1, None).await?;
        let (Some(all), Some(sequence)) = (first.count(), first.last()) else { return Ok(0) };
        if sequence >= before || Search::is_close(limit, all) {
            return Ok(0);
        }
        let later = if before == u64::MAX { 0 } else { self.count_from(before).await? };
        let end = before.min(state(self.stream).await?.last.saturating_add(1));
        let mut search = Search::new(sequence, all.saturating_sub(later), end, limit);
        while let Some(at) = search.poll_question() {
            search.handle_count(at, self.count_from(at).await?.saturating_sub(later));
        }
        Ok(search.begin() - 1)
    }

    /// The number of messages that the subject has from a sequence on.
    async fn count_from(&self, sequence: u64) -> Result<u64, EngineError> {
        Ok(self.batch(From::Sequence(sequence), 1, None).await?.count().unwrap_or(0))
    }

    /// The publications between two sequences, without either, within the limits.
    async fn kept(&self, between: Range<u64>, limits: Limits) -> Result<Kept, EngineError> {
        let Range { start: after, end: before } = between;
        // Messages that the stream keeps beyond the history are read and skipped.
        let kept_max = self.stream.cached_info().config.max_messages_per_subject;
        let excess = usize::try_from(kept_max).unwrap_or(0).saturating_sub(self.retention.size);
        let mut kept = Kept::default();
        if after.saturating_add(1) >= before {
            return Ok(kept);
        }
        let mut from = if after == 0 { From::Time(self.oldest()) } else { From::Sequence(after + 1) };
        loop {
            let found = &mut kept.found;
            let count = limits.count.saturating_sub(found.publications.len()).saturating_add(excess);
            let batch = self.batch(from, count, Some(limits.len.saturating_sub(found.len))).await?;
            let Some(last) = batch.last() else { return Ok(kept) };
            let mut newer = batch.count().unwrap_or(batch.messages.len() as u64);
            let mut skipped = 0;
            for message in batch.messages {
                let is_kept = newer <= self.retention.size as u64 && !self.has_expired(&message);
                newer -= 1;
                if message.sequence >= before {
                    return Ok(kept);
                } else if is_tombstone(&message.payload) {
                    found.remove();
                } else if is_kept && found.publications.len() < limits.count {
                    found.add(message);
                } else {
                    skipped += message.payload.len();
                }
            }
            charge(skipped / budget::BYTES_PER_UNIT).await;
            let is_full = found.is_longer_than(limits.len);
            if !batch.has_more || found.publications.len() >= limits.count || is_full {
                kept.cut_at = (batch.has_more && is_full).then_some(last);
                return Ok(kept);
            }
            from = From::Sequence(last + 1);
        }
    }

    /// The publications after a sequence: `limits.count` or more if they exist, or several that are longer than the limit.
    async fn after(&self, since: u64, limits: Limits) -> Result<After, EngineError> {
        let mut after = After::default();
        let mut from = since;
        loop {
            let found = &mut after.found;
            let count = (limits.count - found.publications.len()).saturating_add(1);
            let len_left = Some(limits.len.saturating_sub(found.len));
            let batch = self.batch(From::Sequence(from), count, len_left).await?;
            let Some(last) = batch.last() else { return Ok(after) };
            for message in batch.messages {
                if message.sequence == since {
                    after.has_since = true;
                } else if is_tombstone(&message.payload) {
                    found.remove();
                    after.has_expired = false;
                } else {
                    after.has_expired |= found.publications.is_empty() && self.has_expired(&message);
                    found.add(message);
                }
            }
            let is_full = found.publications.len() >= limits.count || found.is_longer_than(limits.len);
            if !batch.has_more || is_full {
                after.left = if batch.has_more { batch.pending.unwrap_or(u64::MAX) } else { 0 };
                return Ok(after);
            }
            from = last + 1;
        }
    }

    /// A subject drops its oldest message first, because of its age or of the number of messages. So everything after
    /// `since` is present if the message at `since` is. If that was never a message of this subject, as where a client has
    /// subscribed to an empty channel, it is present if the stream has dropped no message after `since` because of its age (it
    /// drops in the order of sequences), and the subject has never had too many.
    async fn missed(
        &self,
        since: Option<&Position>,
        mode: RecoveryMode,
        limits: Limits,
    ) -> Result<Missed, EngineError> {
        let whole = |recovery| Missed { recovery, has_more: false };
        let Some(since) = since else {
            let position = state(self.stream).await?.position();
            return Ok(whole(Recovery { publications: Vec::new(), recovered: false, position }));
        };
        if mode == RecoveryMode::Cache {
            return self.recover_newest(since).await.map(whole);
        }
        let After { found, has_expired, has_since, left } = self.after(since.offset, limits).await?;
        // Read the state afterwards, so that messages which were dropped meanwhile are noticed.
        let state = state(self.stream).await?;
        let publications = found.publications;
        let count = left.saturating_add(publications.len() as u64);
        let is_complete =
            has_since || (state.first <= since.offset.saturating_add(1) && count <= state.size_min);
        let is_kept = since.is_in(&state.epoch)
            && since.offset <= state.last
            && is_complete
            && count <= self.retention.size as u64
            && !has_expired
            && !found.is_removed_before;
        let is_whole = left == 0 && count_within(&publications, limits.len) == publications.len();
        let recovered = is_kept && is_whole;
        let position = match publications.last() {
            _ if !recovered => state.position(),
            last => Position { offset: last.map_or(since.offset, |last| last.offset), epoch: state.epoch },
        };
        let recovery = Recovery { publications, recovered, position };
        Ok(Missed { recovery, has_more: is_kept && !is_whole })
    }

    async fn recover_newest(&self, since: &Position) -> Result<Recovery, EngineError> {
        let newest = match self.stream.direct_get_last_for_subject(self.subject).await {
            Ok(message) => Some(message),
            Err(error) if error.kind() == DirectGetErrorKind::NotFound => None,
            Err(error) => return Err(unavailable(error)),
        };
        let position = state(self.stream).await?.position();
        let is_same = since.is_in(&position.epoch);
        if let Some(newest) = &newest
            && is_same
            && since.offset >= newest.sequence
            && !is_tombstone(&newest.payload)
        {
            let position = Position { offset: since.offset, ..position };
            return Ok(Recovery { publications: Vec::new(), recovered: true, position });
        }
        let expired = self.oldest().as_nanos() as i128;
        let is_kept = |at: i128| at > expired;
        let newest =
            newest.filter(|one| !is_tombstone(&one.payload) && is_kept(one.time.unix_timestamp_nanos()));
        let Some(newest) = newest else {
            return Ok(Recovery { publications: Vec::new(), recovered: false, position });
        };
        let position = Position { offset: newest.sequence, ..position };
        let publications = publication(newest.sequence, newest.payload.clone()).into_iter().collect();
        Ok(Recovery { publications, recovered: true, position })
    }
}

/// Reads part of a history: the newest `retention.size` messages of the subject that have not expired.
pub(super) async fn read(
    nats: &Nats,
    channel: &str,
    query: &HistoryQuery,
    retention: Retention,
) -> Result<History, EngineError> {
    for _ in 0..TRIES {
        let stream = nats.stream(channel, retention).await?;
        let subject = &subject(stream.cached_info(), channel);
        let history = Stored { nats, stream: &stream, subject, retention }.read(query).await?;
        if history.position.epoch == epoch(stream.cached_info()) {
            return Ok(history);
        }
        nats.forget_streams();
    }
    Err(unavailable(REPLACED))
}

/// Removes a history up to the tombstone with this sequence.
pub(super) async fn purge(stream: &Stream, subject: &str, tombstone: u64) -> Result<(), EngineError> {
    stream.purge().filter(subject).sequence(tombstone).await.map_err(unavailable).map(drop)
}

/// The state of a stream.
struct State {
    epoch: String,
    first: u64,
    last: u64,
    size_min: u64,
}

impl State {
    fn position(&self) -> Position {
        Position { offset: self.last, epoch: self.epoch.clone() }
    }
}

async fn state(stream: &Stream) -> Result<State, EngineError> {
    let info = stream.get_info().await.map_err(unavailable)?;
    Ok(State {
        epoch: epoch(&info),
        first: info.state.first_sequence,
        last: info.state.last_sequence,
        size_min: size_min(&info.config),
    })
}

/// The publications that a subscriber at `since` missed. If it has not recovered, `publications` are the ones that were read.
pub(super) async fn recover(
    nats: &Nats,
    channel: &str,
    since: Option<&Position>,
    mode: RecoveryMode,
    retention: Retention,
    len_max: usize,
) -> Result<Recovery, EngineError> {
    let limits = Limits { count: retention.size + 1, len: len_max };
    Ok(read_missed(nats, channel, since, mode, retention, limits).await?.recovery)
}

/// The publications after a position: all of them, or as many as the limits allow.
pub(super) async fn missed(
    nats: &Nats,
    channel: &str,
    since: &Position,
    retention: Retention,
    limits: Limits,
) -> Result<Missed, EngineError> {
    let limits = Limits { count: limits.count.min(retention.size + 1), ..limits };
    read_missed(nats, channel, Some(since), RecoveryMode::Stream, retention, limits).await
}

/// The publications that a subscriber missed, or the first part of them.
pub(super) struct Missed {
    pub(super) recovery: Recovery,
    /// Whether `publications` are complete but for later ones.
    pub(super) has_more: bool,
}

async fn read_missed(
    nats: &Nats,
    channel: &str,
    since: Option<&Position>,
    mode: RecoveryMode,
    retention: Retention,
    limits: Limits,
) -> Result<Missed, EngineError> {
    for _ in 0..TRIES {
        let stream = nats.stream(channel, retention).await?;
        let subject = &subject(stream.cached_info(), channel);
        let missed = Stored { nats, stream: &stream, subject, retention }.missed(since, mode, limits).await?;
        if missed.recovery.position.epoch == epoch(stream.cached_info()) {
            return Ok(missed);
        }
        nats.forget_streams();
    }
    Err(unavailable(REPLACED))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_publications_are_bounded_by_their_length() {
        let publications: Vec<_> = (0..4)
            .map(|_| Arc::new(Publication { data: vec![0; 98].into(), ..Default::default() }))
            .collect();
        let len = publications[0].encoded_len();
        for (limit, len_max, excess_len) in [
            (9, 9 * len, 0),
            (3, 9 * len, 1),
            (9, 3 * len, 0),
            (9, 2 * len, 1),
            (9, 2 * len - 1, 2),
            (9, 0, 3),
        ] {
            let limits = Limits { count: limit, len: len_max };
            assert_eq!(limits.excess(&publications), excess_len, "{limits:?}");
        }
        assert_eq!(Limits { count: 1, len: 0 }.excess(&[]), 0);
    }
}
