//! Histories in JetStream. A stream holds the channels of one retention, a subject for each.

use std::sync::Arc;
use std::time::Duration;

use async_nats::StatusCode;
use async_nats::jetstream::stream::{DirectGetErrorKind, Stream};
use bytes::Bytes;
use prost::Message as _;
use serde_json::json;
use tokio_stream::StreamExt as _;

use super::streams::{Nats, epoch};
use super::unavailable;
use crate::config::RecoveryMode;
use crate::engine::EngineError;
use crate::history::{History, HistoryQuery, Position, Recovery, Retention};
use crate::protocol::Publication;

/// Stored instead of a publication when a history is removed: earlier messages do not count. No publication is encoded
/// like this: field 0 does not exist in Protobuf.
pub(super) const TOMBSTONE: &[u8] = &[0];

pub(super) fn is_tombstone(payload: &[u8]) -> bool {
    payload == TOMBSTONE
}

/// The number of messages that one request asks for.
const BATCH: usize = 1_000;

/// How long the server may take to send the next message of a batch.
const BATCH_TIMEOUT: Duration = Duration::from_secs(5);

/// A message of a stream.
struct Stored {
    sequence: u64,
    payload: Bytes,
}

/// Consecutive messages of a subject, at most [`BATCH`].
#[derive(Default)]
struct Batch {
    messages: Vec<Stored>,
    /// Whether the subject has more messages after them.
    has_more: bool,
}

/// The messages of a subject from a sequence on, in one round trip (NATS ADR-31, "Batched Requests").
async fn batch(nats: &Nats, stream: &Stream, subject: &str, from: u64) -> Result<Batch, EngineError> {
    let inbox = nats.client.new_inbox();
    let mut answers = nats.client.subscribe(inbox.clone()).await.map_err(unavailable)?;
    let request = json!({ "batch": BATCH, "seq": from.max(1), "next_by_subj": subject });
    let api = format!("$JS.API.DIRECT.GET.{}", stream.cached_info().config.name);
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
                return Ok(batch);
            }
            Some(status) => return Err(unavailable(format_args!("status {status}"))),
            None => {}
        }
        let sequence = number(async_nats::header::NATS_SEQUENCE.as_ref());
        let sequence = sequence.ok_or_else(|| unavailable("a stored message has no sequence"))?;
        batch.messages.push(Stored { sequence, payload: message.payload });
        // A server before version 2.11 sends one message and no end.
        if pending.is_none() {
            batch.has_more = true;
            return Ok(batch);
        }
    }
}

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
struct After {
    publications: Vec<Arc<Publication>>,
    /// Whether the history was removed after the sequence.
    removed: bool,
}

/// Reads the messages of a subject after a sequence, at most `max`. The stream may keep one more than the retention
/// promises.
async fn after(
    nats: &Nats,
    stream: &Stream,
    subject: &str,
    since: u64,
    max: usize,
) -> Result<After, EngineError> {
    let mut found = After { publications: Vec::new(), removed: false };
    let mut at = since;
    loop {
        let batch = batch(nats, stream, subject, at + 1).await?;
        for message in batch.messages {
            at = message.sequence;
            if is_tombstone(&message.payload) {
                found = After { publications: Vec::new(), removed: true };
            } else {
                found.publications.extend(publication(message.sequence, message.payload));
            }
        }
        if !batch.has_more || found.publications.len() >= max {
            return Ok(found);
        }
    }
}

pub(super) async fn read(
    nats: &Nats,
    channel: &str,
    query: &HistoryQuery,
    retention: Retention,
) -> Result<History, EngineError> {
    let stream = nats.stream(retention).await?;
    let subject = Nats::subject(channel, retention);
    let since = query.since.as_ref().map_or(0, |since| since.offset);
    let limit = query.limit.unwrap_or(usize::MAX);
    // The stream keeps one more than is promised; that one is not part of the history.
    let all = after(nats, &stream, &subject, 0, usize::MAX).await?.publications;
    let kept = &all[all.len().saturating_sub(retention.size)..];
    let position = match kept.last() {
        Some(last) => Position { offset: last.offset, epoch: epoch(stream.cached_info()) },
        None => position(&stream).await?.0,
    };
    let publications = if query.reverse {
        let before = if since == 0 { u64::MAX } else { since };
        kept.iter().rev().filter(|one| one.offset < before).take(limit).cloned().collect()
    } else {
        kept.iter().filter(|one| one.offset > since).take(limit).cloned().collect()
    };
    Ok(History { publications, position })
}

/// The position of the stream, and the lowest sequence that it still contains.
async fn position(stream: &Stream) -> Result<(Position, u64), EngineError> {
    let info = stream.get_info().await.map_err(unavailable)?;
    let position = Position { offset: info.state.last_sequence, epoch: epoch(&info) };
    Ok((position, info.state.first_sequence))
}

/// The publications that a client at `since` missed.
///
/// Everything after `since` is present if the stream has not dropped a later message because of its age (it drops in
/// the order of sequences), and the subject has not dropped one because of the number of messages. The subject keeps
/// one more message than is promised, so if at most the promised number of publications follow `since`, none was
/// dropped.
pub(super) async fn recover(
    nats: &Nats,
    channel: &str,
    since: Option<&Position>,
    mode: RecoveryMode,
    retention: Retention,
) -> Result<Recovery, EngineError> {
    let stream = nats.stream(retention).await?;
    let subject = Nats::subject(channel, retention);
    let Some(since) = since else {
        let position = position(&stream).await?.0;
        return Ok(Recovery { publications: Vec::new(), recovered: false, position });
    };
    if mode == RecoveryMode::Cache {
        return recover_newest(&stream, &subject, since).await;
    }
    let missed = after(nats, &stream, &subject, since.offset, retention.size + 1).await?;
    // Read the position afterwards, so that messages which were dropped meanwhile are noticed.
    let (position, first) = position(&stream).await?;
    let recovered = since.epoch == position.epoch
        && since.offset <= position.offset
        && first <= since.offset + 1
        && missed.publications.len() <= retention.size
        && !missed.removed;
    if !recovered {
        return Ok(Recovery { publications: Vec::new(), recovered, position });
    }
    let offset = missed.publications.last().map_or(since.offset, |last| last.offset);
    let position = Position { offset, epoch: position.epoch };
    Ok(Recovery { publications: missed.publications, recovered, position })
}

async fn recover_newest(stream: &Stream, subject: &str, since: &Position) -> Result<Recovery, EngineError> {
    let newest = match stream.direct_get_last_for_subject(subject).await {
        Ok(message) => Some(message).filter(|message| !is_tombstone(&message.payload)),
        Err(error) if error.kind() == DirectGetErrorKind::NotFound => None,
        Err(error) => return Err(unavailable(error)),
    };
    let (position, _) = position(stream).await?;
    let Some(newest) = newest else {
        return Ok(Recovery { publications: Vec::new(), recovered: false, position });
    };
    let is_current = since.epoch == position.epoch && since.offset >= newest.sequence;
    let publications = if is_current {
        Vec::new()
    } else {
        publication(newest.sequence, newest.payload.clone()).into_iter().collect()
    };
    let position =
        Position { offset: newest.sequence.max(if is_current { since.offset } else { 0 }), ..position };
    Ok(Recovery { publications, recovered: true, position })
}
