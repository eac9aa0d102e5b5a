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
struct Stored {
    sequence: u64,
    /// When it was stored, since 1970, by the server's clock.
    at: Duration,
    payload: Bytes,
}

impl Stored {
    fn has_expired(&self, retention: Retention, now: Duration) -> bool {
        self.at.saturating_add(retention.ttl) <= now
    }
}

/// Consecutive messages of a subject.
#[derive(Default)]
pub(super) struct Batch {
    messages: Vec<Stored>,
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
        // 0 stands for a default.
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
            batch.messages.push(Stored { sequence, at, payload: message.payload });
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

/// The messages of a subject after a sequence.
#[derive(Default)]
struct After {
    publications: Vec<Arc<Publication>>,
    /// Whether the oldest of them has expired. Those after it may have, too.
    has_expired: bool,
    /// Whether the stream still has the message with that sequence.
    has_since: bool,
    /// Whether the history was removed after the sequence.
    removed: bool,
    /// How many more of them were not read; `u64::MAX` if the server does not count them.
    left: u64,
    /// The length of `publications` as they are stored.
    len: usize,
}

/// Reads the messages of a subject after a sequence, `max` or more if they exist, or several of more than `len_max` bytes.
async fn after(
    nats: &Nats,
    stream: &Stream,
    subject: &str,
    since: u64,
    max: usize,
    len_max: usize,
    retention: Retention,
) -> Result<After, EngineError> {
    let mut found = After::default();
    let mut from = since;
    loop {
        let name = &stream.cached_info().config.name;
        let count = (max - found.publications.len()).saturating_add(1);
        let len_left = Some(len_max.saturating_sub(found.len));
        let batch = batch(nats, name, subject, From::Sequence(from), count, len_left).await?;
        let Some(last) = batch.last() else { return Ok(found) };
        for message in batch.messages {
            if message.sequence == since {
                found.has_since = true;
            } else if is_tombstone(&message.payload) {
                found = After { has_since: found.has_since, removed: true, ..After::default() };
            } else {
                found.has_expired |=
                    found.publications.is_empty() && message.has_expired(retention, nats.server_time());
                found.len = found.len.saturating_add(message.payload.len());
                found.publications.extend(publication(message.sequence, message.payload));
            }
        }
        let is_too_long = found.publications.len() > 1 && found.len > len_max;
        if !batch.has_more || found.publications.len() >= max || is_too_long {
            found.left = if batch.has_more { batch.pending.unwrap_or(u64::MAX) } else { 0 };
            return Ok(found);
        }
        from = last + 1;
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
        let history =
            read_in(nats, &stream, &subject(stream.cached_info(), channel), query, retention).await?;
        if history.position.epoch == epoch(stream.cached_info()) {
            return Ok(history);
        }
        nats.forget_streams();
    }
    Err(unavailable(REPLACED))
}

async fn read_in(
    nats: &Nats,
    stream: &Stream,
    subject: &str,
    query: &HistoryQuery,
    retention: Retention,
) -> Result<History, EngineError> {
    let limit = query.limit.unwrap_or(usize::MAX);
    let len_max = query.len_max.unwrap_or(usize::MAX);
    let since = query.since.as_ref().map(|since| since.offset);
    let position = newest_position(stream, subject).await?;
    let mut publications = if limit == 0 {
        Vec::new()
    } else if query.reverse {
        newest(nats, stream, subject, query, retention).await?
    } else {
        let between = since.unwrap_or(0)..u64::MAX;
        kept(nats, stream, subject, between, limit, len_max, retention).await?.publications
    };
    publications.truncate(count_within(&publications, len_max));
    // Others may have been published meanwhile.
    let offset = publications.iter().map(|one| one.offset).max().unwrap_or(0).max(position.offset);
    Ok(History { publications, position: Position { offset, ..position } })
}

/// The publications before those of a position, the newest first: those that a query asks for, or more. A stream is read forwards, so that
/// a limit in bytes takes several parts, each from a sequence on that has to be found.
async fn newest(
    nats: &Nats,
    stream: &Stream,
    subject: &str,
    query: &HistoryQuery,
    retention: Retention,
) -> Result<Vec<Arc<Publication>>, EngineError> {
    let limit = query.limit.unwrap_or(usize::MAX).min(retention.size);
    let len_max = query.len_max.unwrap_or(usize::MAX);
    let mut before = query.since.as_ref().map_or(u64::MAX, |since| since.offset);
    let mut newest = Vec::new();
    let mut part = if query.len_max.is_some() { PART_MIN } else { limit };
    loop {
        let left = limit - newest.len();
        let after = before_newest(nats, stream, subject, before, part.min(left) as u64, retention).await?;
        let last = last(nats, stream, subject, after..before, left, len_max, retention).await?;
        let is_empty = last.publications.is_empty();
        newest.extend(last.publications.into_iter().rev());
        let has_enough = count_within(&newest, len_max) < newest.len();
        if has_enough || newest.len() >= limit || after == 0 || is_empty || last.is_removed_before {
            return Ok(newest);
        }
        before = newest.last().map_or(0, |oldest| oldest.offset);
        part = part.saturating_mul(4);
    }
}

/// The number of publications that are read backwards first.
const PART_MIN: usize = 100;

/// The last publications between two sequences, without either: at most `limit`, and no more than one beyond `len_max` bytes. Those before
/// them are read too, paid for, and forgotten as the next ones are read.
async fn last(
    nats: &Nats,
    stream: &Stream,
    subject: &str,
    between: Range<u64>,
    limit: usize,
    len_max: usize,
    retention: Retention,
) -> Result<Kept, EngineError> {
    let Range { start: mut after, end: before } = between;
    let mut last = Kept::default();
    loop {
        let part = kept(nats, stream, subject, after..before, usize::MAX, len_max, retention).await?;
        if part.is_removed_before {
            last = Kept { is_removed_before: true, ..Kept::default() };
        }
        last.publications.extend(part.publications);
        let excess = excess(&last.publications, limit, len_max);
        let forgotten: Vec<_> = last.publications.drain(..excess).collect();
        charge(budget::of_publications(&forgotten)).await;
        match part.cut_at {
            Some(cut_at) => after = cut_at,
            None => return Ok(last),
        }
    }
}

/// How many of the first publications are not among the last ones: at most `limit`, and no more than one beyond `len_max` bytes.
fn excess(publications: &[Arc<Publication>], limit: usize, len_max: usize) -> usize {
    let mut len = 0_usize;
    let is_last = |publication: &&Arc<Publication>| {
        let has_room = len <= len_max;
        len = len.saturating_add(publication.encoded_len());
        has_room
    };
    publications.len() - publications.iter().rev().take(limit).take_while(is_last).count()
}

/// A sequence after which a subject has at least `limit` messages before the sequence `before`, or all of them; 0 for all.
async fn before_newest(
    nats: &Nats,
    stream: &Stream,
    subject: &str,
    before: u64,
    limit: u64,
    retention: Retention,
) -> Result<u64, EngineError> {
    let name = &stream.cached_info().config.name;
    let first = batch(nats, name, subject, From::Time(oldest(nats, retention)), 1, None).await?;
    let (Some(all), Some(sequence)) = (first.count(), first.last()) else { return Ok(0) };
    if sequence >= before || Search::is_close(limit, all) {
        return Ok(0);
    }
    let later = match before {
        u64::MAX => 0,
        before => batch(nats, name, subject, From::Sequence(before), 1, None).await?.count().unwrap_or(0),
    };
    let end = before.min(state(stream).await?.last.saturating_add(1));
    let mut search = Search::new(sequence, all.saturating_sub(later), end, limit);
    while let Some(at) = search.poll_question() {
        let found = batch(nats, name, subject, From::Sequence(at), 1, None).await?.count().unwrap_or(0);
        search.handle_count(at, found.saturating_sub(later));
    }
    Ok(search.begin() - 1)
}

/// When the oldest publication that has not expired was stored, at the earliest.
fn oldest(nats: &Nats, retention: Retention) -> Duration {
    nats.server_time().saturating_sub(retention.ttl)
}

/// Consecutive publications of a history, the oldest first.
#[derive(Default)]
struct Kept {
    publications: Vec<Arc<Publication>>,
    /// Whether the history before them was removed.
    is_removed_before: bool,
    /// The sequence of the last message that was read, if more bytes follow than were asked for.
    cut_at: Option<u64>,
}

/// At most `limit` publications between two sequences, without either; no more than one beyond `len_max` bytes.
async fn kept(
    nats: &Nats,
    stream: &Stream,
    subject: &str,
    between: Range<u64>,
    limit: usize,
    len_max: usize,
    retention: Retention,
) -> Result<Kept, EngineError> {
    let Range { start: after, end: before } = between;
    let config = &stream.cached_info().config;
    // What the stream keeps, but is not part of the history, is read and skipped.
    let excess = usize::try_from(config.max_messages_per_subject).unwrap_or(0).saturating_sub(retention.size);
    let (mut kept, mut len) = (Kept::default(), 0_usize);
    if after.saturating_add(1) >= before {
        return Ok(kept);
    }
    let mut from = if after == 0 { From::Time(oldest(nats, retention)) } else { From::Sequence(after + 1) };
    loop {
        let count = limit.saturating_sub(kept.publications.len()).saturating_add(excess);
        let len_left = Some(len_max.saturating_sub(len));
        let batch = batch(nats, &config.name, subject, from, count, len_left).await?;
        let Some(last) = batch.last() else { return Ok(kept) };
        let mut newer = batch.count().unwrap_or(batch.messages.len() as u64);
        let mut skipped = 0;
        for message in batch.messages {
            let is_kept =
                newer <= retention.size as u64 && !message.has_expired(retention, nats.server_time());
            newer -= 1;
            if message.sequence >= before {
                return Ok(kept);
            } else if is_tombstone(&message.payload) {
                (kept, len) = (Kept { is_removed_before: true, ..Kept::default() }, 0);
            } else if is_kept && kept.publications.len() < limit {
                len = len.saturating_add(message.payload.len());
                kept.publications.extend(publication(message.sequence, message.payload));
            } else {
                skipped += message.payload.len();
            }
        }
        charge(skipped / budget::BYTES_PER_UNIT).await;
        let is_full = kept.publications.len() > 1 && len > len_max;
        if !batch.has_more || kept.publications.len() >= limit || is_full {
            kept.cut_at = (batch.has_more && is_full).then_some(last);
            return Ok(kept);
        }
        from = From::Sequence(last + 1);
    }
}

/// The position of the newest message of a subject; if there is none, that of the stream.
async fn newest_position(stream: &Stream, subject: &str) -> Result<Position, EngineError> {
    match stream.direct_get_last_for_subject(subject).await {
        Ok(newest) => Ok(Position { offset: newest.sequence, epoch: epoch(stream.cached_info()) }),
        Err(error) if error.kind() == DirectGetErrorKind::NotFound => Ok(state(stream).await?.position()),
        Err(error) => Err(unavailable(error)),
    }
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

/// What a subscriber at `since` missed. If it has not recovered, `publications` are what was read.
pub(super) async fn recover(
    nats: &Nats,
    channel: &str,
    since: Option<&Position>,
    mode: RecoveryMode,
    retention: Retention,
    len_max: usize,
) -> Result<Recovery, EngineError> {
    let limits = (retention.size + 1, len_max);
    Ok(read_missed(nats, channel, since, mode, retention, limits).await?.recovery)
}

/// The publications after a position: all of them, or at most `count_max` and one more, and several of more than `len_max` bytes.
pub(super) async fn missed(
    nats: &Nats,
    channel: &str,
    since: &Position,
    retention: Retention,
    (count_max, len_max): (usize, usize),
) -> Result<Missed, EngineError> {
    let limits = (count_max.min(retention.size + 1), len_max);
    read_missed(nats, channel, Some(since), RecoveryMode::Stream, retention, limits).await
}

/// What a subscriber missed, or the first part of it.
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
    limits: (usize, usize),
) -> Result<Missed, EngineError> {
    for _ in 0..TRIES {
        let stream = nats.stream(channel, retention).await?;
        let subject = subject(stream.cached_info(), channel);
        let missed = missed_in(nats, &stream, &subject, since, mode, retention, limits).await?;
        if missed.recovery.position.epoch == epoch(stream.cached_info()) {
            return Ok(missed);
        }
        nats.forget_streams();
    }
    Err(unavailable(REPLACED))
}

/// A subject drops its oldest message first, because of its age or of the number of messages. So everything after
/// `since` is present if the message at `since` is. If that was never a message of this subject, as where a client has
/// subscribed to an empty channel, it is present if the stream has dropped no message after `since` because of its age (it
/// drops in the order of sequences), and the subject has never had too many.
async fn missed_in(
    nats: &Nats,
    stream: &Stream,
    subject: &str,
    since: Option<&Position>,
    mode: RecoveryMode,
    retention: Retention,
    (count_max, len_max): (usize, usize),
) -> Result<Missed, EngineError> {
    let whole = |recovery| Missed { recovery, has_more: false };
    let Some(since) = since else {
        let position = state(stream).await?.position();
        return Ok(whole(Recovery { publications: Vec::new(), recovered: false, position }));
    };
    if mode == RecoveryMode::Cache {
        return recover_newest(nats, stream, subject, since, retention).await.map(whole);
    }
    let missed = after(nats, stream, subject, since.offset, count_max, len_max, retention).await?;
    // Read the state afterwards, so that messages which were dropped meanwhile are noticed.
    let state = state(stream).await?;
    let read = missed.publications.len();
    let count = missed.left.saturating_add(read as u64);
    let is_complete =
        missed.has_since || (state.first <= since.offset.saturating_add(1) && count <= state.size_min);
    let is_kept = since.is_in(&state.epoch)
        && since.offset <= state.last
        && is_complete
        && count <= retention.size as u64
        && !missed.has_expired
        && !missed.removed;
    let is_whole = missed.left == 0 && count_within(&missed.publications, len_max) == read;
    let (publications, recovered) = (missed.publications, is_kept && is_whole);
    let position = match publications.last() {
        _ if !recovered => state.position(),
        last => Position { offset: last.map_or(since.offset, |last| last.offset), epoch: state.epoch },
    };
    let recovery = Recovery { publications, recovered, position };
    Ok(Missed { recovery, has_more: is_kept && !is_whole })
}

async fn recover_newest(
    nats: &Nats,
    stream: &Stream,
    subject: &str,
    since: &Position,
    retention: Retention,
) -> Result<Recovery, EngineError> {
    let newest = match stream.direct_get_last_for_subject(subject).await {
        Ok(message) => Some(message),
        Err(error) if error.kind() == DirectGetErrorKind::NotFound => None,
        Err(error) => return Err(unavailable(error)),
    };
    let position = state(stream).await?.position();
    let is_same = since.is_in(&position.epoch);
    if let Some(newest) = &newest
        && is_same
        && since.offset >= newest.sequence
        && !is_tombstone(&newest.payload)
    {
        let position = Position { offset: since.offset, ..position };
        return Ok(Recovery { publications: Vec::new(), recovered: true, position });
    }
    let expired = oldest(nats, retention).as_nanos() as i128;
    let is_kept = |at: i128| at > expired;
    let newest = newest.filter(|one| !is_tombstone(&one.payload) && is_kept(one.time.unix_timestamp_nanos()));
    let Some(newest) = newest else {
        return Ok(Recovery { publications: Vec::new(), recovered: false, position });
    };
    let position = Position { offset: newest.sequence, ..position };
    let publications = publication(newest.sequence, newest.payload.clone()).into_iter().collect();
    Ok(Recovery { publications, recovered: true, position })
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
            assert_eq!(excess(&publications, limit, len_max), excess_len, "{limit} {len_max}");
        }
        assert_eq!(excess(&[], 1, 0), 0);
    }
}
