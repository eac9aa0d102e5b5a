//! Histories in JetStream. A stream holds the channels of one retention, a subject for each.

use std::sync::Arc;

use async_nats::jetstream::message::StreamMessage;
use async_nats::jetstream::stream::{DirectGetErrorKind, Stream};
use prost::Message as _;

use super::{Nats, unavailable};
use crate::config::RecoveryMode;
use crate::engine::EngineError;
use crate::history::{History, HistoryQuery, Position, Recovery, Retention};
use crate::protocol::Publication;

/// Instead of a publication, when a history was removed: nothing before it counts. No publication is encoded like this: field 0
/// does not exist in Protobuf.
pub(super) const TOMBSTONE: &[u8] = &[0];

pub(super) fn is_tombstone(payload: &[u8]) -> bool {
    payload == TOMBSTONE
}

/// Changes when the stream is made anew.
pub(super) fn epoch(stream: &Stream) -> String {
    format!("{:x}", stream.cached_info().created.unix_timestamp_nanos())
}

/// The first message of a subject from a sequence on.
pub(super) async fn next(
    stream: &Stream,
    subject: &str,
    from: u64,
) -> Result<Option<StreamMessage>, EngineError> {
    match stream.direct_get_next_for_subject(subject, Some(from)).await {
        Ok(message) => Ok(Some(message)),
        Err(error) if error.kind() == DirectGetErrorKind::NotFound => Ok(None),
        Err(error) => Err(unavailable(error)),
    }
}

fn publication(message: &StreamMessage) -> Option<Arc<Publication>> {
    let mut publication = Publication::decode(&*message.payload).ok()?;
    publication.offset = message.sequence;
    Some(Arc::new(publication))
}

/// What a subject holds after a sequence.
struct After {
    publications: Vec<Arc<Publication>>,
    /// The history was removed since.
    removed: bool,
}

/// What a subject holds after a sequence. One more than the retention promises may be kept; `max` bounds what is read.
async fn after(stream: &Stream, subject: &str, since: u64, max: usize) -> Result<After, EngineError> {
    let mut found = After { publications: Vec::new(), removed: false };
    let mut at = since;
    while found.publications.len() < max {
        let Some(message) = next(stream, subject, at + 1).await? else { break };
        at = message.sequence;
        if is_tombstone(&message.payload) {
            found = After { publications: Vec::new(), removed: true };
        } else {
            found.publications.extend(publication(&message));
        }
    }
    Ok(found)
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
    // One more than is promised is kept; it is not part of the history.
    let all = after(&stream, &subject, 0, usize::MAX).await?.publications;
    let kept = &all[all.len().saturating_sub(retention.size)..];
    let position = match kept.last() {
        Some(last) => Position { offset: last.offset, epoch: epoch(&stream) },
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

/// The position of the stream, and the lowest sequence that it still holds.
async fn position(stream: &Stream) -> Result<(Position, u64), EngineError> {
    let info = stream.get_info().await.map_err(unavailable)?;
    let epoch = format!("{:x}", info.created.unix_timestamp_nanos());
    Ok((Position { offset: info.state.last_sequence, epoch }, info.state.first_sequence))
}

/// What a client at `since` missed.
///
/// Everything after `since` is known to be there when the stream has not dropped anything after it for its age (it drops in the
/// order of sequences) and the subject has not dropped anything for its number (it keeps one more than is promised, so that
/// at most the promised number of publications after `since` means that none was dropped).
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
    let missed = after(&stream, &subject, since.offset, retention.size + 1).await?;
    // Asked for afterwards: what was dropped while reading is noticed.
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
    let publications = if is_current { Vec::new() } else { publication(&newest).into_iter().collect() };
    let position =
        Position { offset: newest.sequence.max(if is_current { since.offset } else { 0 }), ..position };
    Ok(Recovery { publications, recovered: true, position })
}
