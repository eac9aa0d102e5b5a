//! The queue of events in NATS: a bucket of what is open on each node, a bucket of leases, and a stream as a work queue.
//!
//! An end is queued before it is removed from the bucket. If the node is lost in between, another one queues it again; the id of the
//! message lets the stream drop the second one.

use std::fmt::Display;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use async_nats::Message;
use async_nats::jetstream::consumer::{AckPolicy, PullConsumer, pull};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::{kv, stream};
use bytes::Bytes;
use tokio_stream::{Stream, StreamExt as _};
use tracing::warn;

use super::history::{self, From};
use super::names::encoded;
use super::{NOT_CONNECTED, NatsEngine, unavailable};
use crate::engine::event_queue::{EventQueue, Lease, QUEUE_MAX, QueuedEvent, TAKEN_TIMEOUT};
use crate::engine::{EngineError, EngineFuture, IDEMPOTENCY_TTL};
use crate::shards::lock;

/// The buckets and the stream, after the prefix of the hub.
const OPEN: &str = "events_open";
const LEASES: &str = "events_nodes";
const QUEUE: &str = "events";

/// The end of the value of a lease that was taken from its node.
const LOST: &[u8] = b"lost";

/// The value once everything that was open on the node has been queued. It stays for a while, so that a node that was suspended for
/// long knows what has become of it.
const GONE: &[u8] = b"gone, lost";

/// How long a lease that is not renewed stays.
const LEASE_TTL: Duration = Duration::from_secs(7 * 24 * 3600);

/// How long reading the leases may take. Together with the interval of renewals it is shorter than the time for which others wait for one.
const READ_MAX: Duration = Duration::from_secs(3);

/// The JetStream objects of the queue.
#[derive(Debug)]
pub(super) struct Parts {
    open: kv::Store,
    leases: kv::Store,
    consumer: PullConsumer,
}

/// The lease of a node as this process has written it last.
#[derive(Debug)]
pub(super) struct OwnLease {
    node: String,
    /// Its revision; `None` before the first.
    revision: Option<u64>,
    /// The lowest revision that was replaced and not reported yet, 0 if there was none: the reply to a write may be lost.
    replaced_min: u64,
}

impl OwnLease {
    fn of(node: &str) -> Self {
        Self { node: node.into(), revision: None, replaced_min: u64::MAX }
    }

    /// Returns whether it is renewed: it is not if another node has taken it.
    async fn renew(&mut self, leases: &kv::Store) -> Result<bool, EngineError> {
        // A read is needed only if another node has written, or the bucket was lost.
        if let Some(revision) = self.revision {
            match self.replace(leases, revision, revision).await {
                Err(error) if error.kind() == kv::UpdateErrorKind::WrongLastRevision => {}
                result => return result.map_err(unavailable).map(|()| true),
            }
        }
        let (revision, replaced) = match leases.entry(&*self.node).await.map_err(unavailable)? {
            Some(entry) if entry.value.ends_with(LOST) => return Ok(false),
            Some(entry) if entry.operation == kv::Operation::Put => (entry.revision, entry.revision),
            Some(deleted) => (deleted.revision, 0),
            None => (0, 0),
        };
        self.replace(leases, revision, replaced).await.map_err(unavailable).map(|()| true)
    }

    /// Writes the lease, unless it has another revision.
    async fn replace(
        &mut self,
        leases: &kv::Store,
        revision: u64,
        replaced: u64,
    ) -> Result<(), kv::UpdateError> {
        self.replaced_min = self.replaced_min.min(replaced);
        let value = row(&self.node, replaced.to_string().as_bytes());
        self.revision = Some(leases.update(&*self.node, value, revision).await?);
        Ok(())
    }
}

impl NatsEngine {
    async fn parts(&self) -> Result<Arc<Parts>, EngineError> {
        if !self.nats.is_connected() {
            return Err(unavailable(NOT_CONNECTED));
        }
        self.events.get_or_make(async { self.make_parts().await.map(Arc::new) }).await
    }

    async fn make_parts(&self) -> Result<Parts, EngineError> {
        let (jetstream, names) = (&self.nats.jetstream, &self.nats.names);
        let bucket = |kind| kv::Config { bucket: names.store(kind), history: 1, ..kv::Config::default() };
        let open = jetstream.create_or_update_key_value(bucket(OPEN)).await.map_err(unavailable)?;
        let config = kv::Config { max_age: LEASE_TTL, ..bucket(LEASES) };
        let leases = jetstream.create_or_update_key_value(config).await.map_err(unavailable)?;
        let config = stream::Config {
            name: names.store(QUEUE),
            subjects: vec![names.events()],
            retention: stream::RetentionPolicy::WorkQueue,
            max_messages: QUEUE_MAX as i64,
            duplicate_window: IDEMPOTENCY_TTL,
            ..stream::Config::default()
        };
        let queue = jetstream.get_or_create_stream(config).await.map_err(unavailable)?;
        let config = pull::Config {
            durable_name: Some("hub".into()),
            ack_policy: AckPolicy::Explicit,
            ack_wait: TAKEN_TIMEOUT,
            max_ack_pending: -1,
            ..pull::Config::default()
        };
        let consumer = queue.get_or_create_consumer("hub", config).await.map_err(unavailable)?;
        Ok(Parts { open, leases, consumer })
    }

    /// Answers messages of the queue, which have these addresses for replies.
    async fn answer(&self, ids: &[String], answer: &'static [u8]) -> Result<(), EngineError> {
        for id in ids {
            // With a reply, so that it is known that the server has received it.
            let answered = self.nats.client.request(id.clone(), Bytes::from_static(answer)).await;
            answered.map_err(unavailable)?;
        }
        Ok(())
    }

    /// Makes the lease of a node that has not renewed it yet: others look for what is open on nodes that have one.
    async fn begin_lease(&self, leases: &kv::Store, node: &str) -> Result<(), EngineError> {
        if lock(&self.lease).as_ref().is_some_and(|own| own.node == node) {
            return Ok(());
        }
        match leases.update(node, row(node, b"0"), 0).await {
            Err(error) if error.kind() != kv::UpdateErrorKind::WrongLastRevision => Err(unavailable(error)),
            // It may be known to others from before.
            Ok(_) | Err(_) => {
                let own = &mut *lock(&self.lease);
                // Unless it was renewed meanwhile: then more is known of it.
                if own.as_ref().is_none_or(|own| own.node != node) {
                    *own = Some(OwnLease::of(node));
                }
                Ok(())
            }
        }
    }

    /// Renews the lease of a node. If the others cannot be read, they are missing, and the reason is returned beside them: a node that can
    /// write is not lost.
    async fn renew_lease(&self, node: &str) -> Result<(Lease, Result<(), EngineError>), EngineError> {
        let parts = self.parts().await?;
        let own = lock(&self.lease).take().filter(|own| own.node == node);
        let mut own = own.unwrap_or_else(|| OwnLease::of(node));
        let renewed = self.renew_own(&parts.leases, &mut own).await;
        *lock(&self.lease) = Some(own);
        renewed
    }

    async fn renew_own(
        &self,
        leases: &kv::Store,
        own: &mut OwnLease,
    ) -> Result<(Lease, Result<(), EngineError>), EngineError> {
        if !own.renew(leases).await? {
            return Ok((Lease::Lost, Ok(())));
        }
        let reading = tokio::time::timeout(READ_MAX, self.rows(leases, ">", usize::MAX));
        let (others, read) = match reading.await.map_err(unavailable).flatten() {
            Ok(rows) => (Some(others(rows, &own.node)), Ok(())),
            Err(error) => (None, Err(error)),
        };
        // That which was written, not the one that was read: a replica may have the one before, or none yet.
        let number = std::mem::replace(&mut own.replaced_min, u64::MAX);
        Ok((Lease::Renewed { number, others }, read))
    }

    /// The keys, which are the first line, and the values below a prefix of a bucket.
    async fn rows(
        &self,
        bucket: &kv::Store,
        keys: &str,
        max: usize,
    ) -> Result<Vec<(String, Bytes)>, EngineError> {
        let config = &bucket.stream.cached_info().config;
        let subject = format!("$KV.{}.{keys}", bucket.name);
        let (mut rows, mut from) = (Vec::new(), 1);
        while rows.len() < max {
            let batch = history::batch(
                &self.nats,
                &config.name,
                &subject,
                From::Sequence(from),
                max - rows.len(),
                None,
            )
            .await?;
            let (last, has_more) = (batch.last(), batch.has_more());
            rows.extend(batch.into_payloads().filter_map(|row| {
                let at = row.iter().position(|byte| *byte == b'\n')?;
                Some((String::from_utf8(row[..at].to_vec()).ok()?, row.slice(at + 1..)))
            }));
            match last {
                Some(last) if has_more => from = last + 1,
                _ => break,
            }
        }
        Ok(rows)
    }
}

/// The other nodes of these leases with their numbers.
fn others(rows: Vec<(String, Bytes)>, own: &str) -> Vec<(String, u64)> {
    let parsed = |value: &[u8]| std::str::from_utf8(value).ok()?.parse().ok();
    let others = rows.into_iter().filter(|(name, value)| name != own && value != GONE);
    others.map(|(name, value)| (name, parsed(&value).unwrap_or(u64::MAX))).collect()
}

/// The events in these messages. An error does not lose those that were received before: the server would send them again only after
/// [`TAKEN_TIMEOUT`]. If it stays, the next call returns it.
async fn taken(
    messages: impl Stream<Item = Result<Message, impl Display>>,
) -> Result<Vec<QueuedEvent>, EngineError> {
    let mut messages = pin!(messages);
    let mut taken = Vec::new();
    while let Some(message) = messages.next().await {
        match message {
            Ok(Message { reply: Some(id), payload, .. }) => {
                taken.push(QueuedEvent { id: id.into_string(), event: payload });
            }
            Ok(_) => {}
            Err(error) if taken.is_empty() => return Err(unavailable(error)),
            Err(_) => break,
        }
    }
    Ok(taken)
}

/// A row of a bucket.
fn row(key: &str, value: &[u8]) -> Bytes {
    [key.as_bytes(), b"\n", value].concat().into()
}

/// Whether another node has taken the lease of this one.
async fn is_taken(leases: &kv::Store, node: &str) -> Result<bool, EngineError> {
    let lease = leases.get(node).await.map_err(unavailable)?;
    Ok(lease.is_some_and(|lease| lease.ends_with(LOST)))
}

/// Removes a row of a bucket. The bucket's own purge would leave a marker for each key, forever.
async fn purge(bucket: &kv::Store, key: &str) -> Result<(), EngineError> {
    let subject = format!("$KV.{}.{key}", bucket.name);
    bucket.stream.purge().filter(subject).await.map_err(unavailable).map(drop)
}

fn open_key(node: &str, key: &str) -> String {
    format!("{node}.{}", encoded(key))
}

impl EventQueue for NatsEngine {
    fn open<'a>(&'a self, node: &'a str, key: &'a str, event: &'a [u8]) -> EngineFuture<'a, ()> {
        Box::pin(async move {
            let parts = self.parts().await?;
            let Parts { open, leases, .. } = &*parts;
            self.begin_lease(leases, node).await?;
            let own = open_key(node, key);
            open.put(&*own, row(key, event)).await.map_err(unavailable)?;
            // Others look no more for what is open on a node whose lease was taken.
            let failure = match is_taken(leases, node).await {
                Ok(false) => return Ok(()),
                Ok(true) => unavailable("the lease of the node was taken"),
                Err(failure) => failure,
            };
            // If this fails too, the end of a connection that was refused is reported.
            let _ = purge(open, &own).await;
            Err(failure)
        })
    }

    fn end<'a>(&'a self, node: &'a str, key: &'a str, event: &'a [u8]) -> EngineFuture<'a, ()> {
        Box::pin(async move {
            let parts = self.parts().await?;
            let Parts { open, leases, .. } = &*parts;
            let own = open_key(node, key);
            if is_taken(leases, node).await? && open.get(&*own).await.map_err(unavailable)?.is_none() {
                return Ok(());
            }
            let message = PublishMessage::build().payload(event.to_vec().into()).message_id(&own);
            let sent = self.nats.jetstream.send_publish(self.nats.names.events(), message).await;
            let sent = sent.map_err(unavailable)?;
            sent.await.map_err(unavailable)?;
            purge(open, &own).await
        })
    }

    fn renew<'a>(&'a self, node: &'a str) -> EngineFuture<'a, Lease> {
        Box::pin(async move {
            let renewed = self.renew_lease(node).await;
            let read = renewed.as_ref().map_or_else(|error| Err(error.clone()), |(_, read)| read.clone());
            if let Err(error) = self.reported.checked(read)
                && renewed.is_ok()
                && self.nats.may_warn()
            {
                warn!(%error, "the leases of other nodes were not read; trying again");
            }
            if renewed.is_err() {
                // The server may have lost its data: what is missing is made again.
                self.events.forget();
            }
            renewed.map(|(lease, _)| lease)
        })
    }

    fn lose<'a>(&'a self, node: &'a str) -> EngineFuture<'a, ()> {
        Box::pin(async move {
            let parts = self.parts().await?;
            parts.leases.put(node, row(node, LOST)).await.map_err(unavailable).map(drop)
        })
    }

    fn open_on<'a>(&'a self, node: &'a str, max: usize) -> EngineFuture<'a, Vec<(String, Bytes)>> {
        Box::pin(async move {
            let parts = self.parts().await?;
            self.rows(&parts.open, &format!("{node}.*"), max).await
        })
    }

    fn forget<'a>(&'a self, node: &'a str) -> EngineFuture<'a, ()> {
        Box::pin(async move {
            let parts = self.parts().await?;
            parts.leases.put(node, row(node, GONE)).await.map_err(unavailable).map(drop)
        })
    }

    fn outlives_process(&self) -> bool {
        true
    }

    fn take(&self, max: usize) -> EngineFuture<'_, Vec<QueuedEvent>> {
        Box::pin(async move {
            let parts = self.parts().await?;
            let messages = parts.consumer.fetch().max_messages(max).messages().await.map_err(unavailable)?;
            taken(messages.map(|received| received.map(|received| received.message))).await
        })
    }

    fn acknowledge<'a>(&'a self, ids: &'a [String]) -> EngineFuture<'a, ()> {
        Box::pin(self.answer(ids, b"+ACK"))
    }

    fn release<'a>(&'a self, ids: &'a [String]) -> EngineFuture<'a, ()> {
        Box::pin(self.answer(ids, b"-NAK"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Such as when the consumer is deleted, or gets another leader.
    #[tokio::test]
    async fn an_error_does_not_lose_the_events_before_it() {
        let message = |id: usize| Message {
            subject: "wl.events".into(),
            reply: Some(id.to_string().into()),
            payload: Bytes::new(),
            headers: None,
            status: None,
            description: None,
            length: 0,
        };
        let take = async |count, error: Option<&'static str>| {
            let messages = (0..count).map(message).map(Ok).chain(error.map(Err));
            taken(tokio_stream::iter(messages)).await.map(|taken| taken.len())
        };
        assert_eq!(take(0, None).await, Ok(0));
        assert_eq!(take(0, Some("deleted")).await, Err(unavailable("deleted")));
        assert_eq!(take(2, Some("deleted")).await, Ok(2));
    }

    #[test]
    fn the_own_lease_and_those_that_are_gone_are_left_out() {
        let lease = |name: &str, value: &'static [u8]| (name.to_owned(), Bytes::from_static(value));
        let leases = [lease("a", b"7"), lease("gone", GONE), lease("lost", LOST)];
        let expected = [("a", 7), ("lost", u64::MAX)].map(|(name, number)| (name.to_owned(), number));
        // A replica may have nothing of it yet, the lease before the bucket was made again, or that of a node of the past.
        for own in [None, Some(lease("own", b"5")), Some(lease("own", GONE))] {
            let rows = leases.clone().into_iter().chain(own).collect();
            assert_eq!(others(rows, "own"), expected);
        }
    }
}
