//! The queue of events for the application's backend, and the list of what is open on each node, so that its end is reported even if
//! the node is lost.
//!
//! ```text
//! open(node, key) --> open --end(node, key)--> queue --take--> taken --acknowledge--> gone
//!                      '-- another node: lose(node), open_on(node), end, forget --'      '-- release, TAKEN_TIMEOUT --> queue
//! ```

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;
use std::time::Duration;

use bytes::Bytes;

use super::{EngineError, EngineFuture};
use crate::shards::lock;

/// How long an event that was taken, and neither acknowledged nor released, stays away from other callers.
pub const TAKEN_TIMEOUT: Duration = Duration::from_secs(60);

/// The maximum number of events in the queue. Beyond it, the oldest are dropped.
pub const QUEUE_MAX: usize = 1_000_000;

/// An event in the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuedEvent {
    /// Its id in the queue.
    pub id: String,
    /// The event, as JSON.
    pub event: Bytes,
}

/// Whether a node that renews its lease still has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lease {
    /// It has.
    Renewed {
        /// The number of the lease, which grows when the node renews it. It does not if the queue may have lost what is open on the node.
        number: u64,
        /// The other nodes with a lease, and the number of each; `None` if they could not be read.
        others: Option<Vec<(String, u64)>>,
    },
    /// Another node has considered this one lost, and reports the end of what was open here.
    Lost,
}

/// The event of a loss, which is stored without a time, as it is reported.
pub(crate) fn reported_at(event: &[u8], now: Duration) -> Bytes {
    let Some(fields) = event.strip_suffix(b"}") else { return Bytes::copy_from_slice(event) };
    [fields, format!(",\"time_ms\":{}}}", now.as_millis()).as_bytes()].concat().into()
}

/// A queue of events, and what is open on each node. What a call has returned is stored as safely as the engine stores publications.
pub trait EventQueue: Send + Sync {
    /// Notes what is open on a node, with the event that reports that it was lost with its node. The event has no `time_ms`: who reports
    /// the loss adds that of the report.
    fn open<'a>(&'a self, node: &'a str, key: &'a str, event: &'a [u8]) -> EngineFuture<'a, ()>;

    /// Queues the event of something that has ended. If the node was lost, and the event of its loss has been queued, this does
    /// nothing.
    fn end<'a>(&'a self, node: &'a str, key: &'a str, event: &'a [u8]) -> EngineFuture<'a, ()>;

    /// Renews the lease of a node.
    fn renew<'a>(&'a self, node: &'a str) -> EngineFuture<'a, Lease>;

    /// Takes the lease of a node that is lost.
    fn lose<'a>(&'a self, node: &'a str) -> EngineFuture<'a, ()>;

    /// At most `max` keys that are open on a node, with their events.
    fn open_on<'a>(&'a self, node: &'a str, max: usize) -> EngineFuture<'a, Vec<(String, Bytes)>>;

    /// Forgets a lost node on which nothing is open any more.
    fn forget<'a>(&'a self, node: &'a str) -> EngineFuture<'a, ()>;

    /// Whether another process delivers what this one has queued and not delivered. Otherwise the end of the node waits for that.
    fn outlives_process(&self) -> bool;

    /// Takes at most `max` of the oldest events.
    fn take(&self, max: usize) -> EngineFuture<'_, Vec<QueuedEvent>>;

    /// Removes events that were delivered.
    fn acknowledge<'a>(&'a self, ids: &'a [String]) -> EngineFuture<'a, ()>;

    /// Gives back events that were taken and not delivered: they can be taken again at once.
    fn release<'a>(&'a self, ids: &'a [String]) -> EngineFuture<'a, ()>;
}

/// A queue in the memory of one process, which takes from it alone.
#[derive(Debug, Default)]
pub(super) struct MemoryQueue(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    open: HashMap<String, BTreeMap<String, Bytes>>,
    renewals: u64,
    /// By id, in the order in which they were queued.
    queue: BTreeMap<u64, Bytes>,
    last: u64,
}

fn ready<'a, T: Send + 'a>(value: T) -> EngineFuture<'a, T> {
    Box::pin(std::future::ready(Ok::<T, EngineError>(value)))
}

impl EventQueue for MemoryQueue {
    fn open<'a>(&'a self, node: &'a str, key: &'a str, event: &'a [u8]) -> EngineFuture<'a, ()> {
        let event = Bytes::copy_from_slice(event);
        lock(&self.0).open.entry(node.to_owned()).or_default().insert(key.to_owned(), event);
        ready(())
    }

    fn end<'a>(&'a self, node: &'a str, key: &'a str, event: &'a [u8]) -> EngineFuture<'a, ()> {
        let mut state = lock(&self.0);
        if let Some(open) = state.open.get_mut(node) {
            open.remove(key);
        }
        state.last += 1;
        let id = state.last;
        state.queue.insert(id, Bytes::copy_from_slice(event));
        if state.queue.len() > QUEUE_MAX {
            state.queue.pop_first();
        }
        ready(())
    }

    fn renew<'a>(&'a self, _: &'a str) -> EngineFuture<'a, Lease> {
        let mut state = lock(&self.0);
        state.renewals += 1;
        ready(Lease::Renewed { number: state.renewals, others: Some(Vec::new()) })
    }

    fn lose<'a>(&'a self, _: &'a str) -> EngineFuture<'a, ()> {
        ready(())
    }

    fn open_on<'a>(&'a self, node: &'a str, max: usize) -> EngineFuture<'a, Vec<(String, Bytes)>> {
        let state = lock(&self.0);
        let open = state.open.get(node).into_iter().flatten().take(max);
        ready(open.map(|(key, event)| (key.clone(), event.clone())).collect())
    }

    fn forget<'a>(&'a self, node: &'a str) -> EngineFuture<'a, ()> {
        lock(&self.0).open.remove(node);
        ready(())
    }

    fn outlives_process(&self) -> bool {
        false
    }

    fn take(&self, max: usize) -> EngineFuture<'_, Vec<QueuedEvent>> {
        let state = lock(&self.0);
        let oldest = state.queue.iter().take(max);
        ready(oldest.map(|(id, event)| QueuedEvent { id: id.to_string(), event: event.clone() }).collect())
    }

    fn acknowledge<'a>(&'a self, ids: &'a [String]) -> EngineFuture<'a, ()> {
        let queue = &mut lock(&self.0).queue;
        for id in ids.iter().filter_map(|id| id.parse().ok()) {
            queue.remove(&id);
        }
        ready(())
    }

    /// Those that were taken have stayed in the queue.
    fn release<'a>(&'a self, _: &'a [String]) -> EngineFuture<'a, ()> {
        ready(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Were each of these batches searched in the whole queue, this would not end.
    #[tokio::test]
    async fn a_full_queue_is_delivered_in_batches() {
        let queue = MemoryQueue::default();
        for number in 0..=QUEUE_MAX {
            queue.end("n", "k", number.to_string().as_bytes()).await.unwrap();
        }
        // The oldest has been dropped.
        let mut next = 1;
        loop {
            let batch = queue.take(256).await.unwrap();
            let Some(first) = batch.first() else { break };
            assert_eq!(first.event, next.to_string());
            next += batch.len();
            // In any order, and not all of them: the others are taken again.
            let mut ids: Vec<_> = batch.into_iter().map(|event| event.id).rev().collect();
            if ids.len() > 1 {
                ids.remove(0);
                next -= 1;
            }
            queue.acknowledge(&ids).await.unwrap();
        }
        assert_eq!(next, QUEUE_MAX + 1);
    }
}
