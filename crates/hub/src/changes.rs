//! The order of the server's changes of subscriptions, by connection and channel.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};

use crate::client::{Active, Client};
use crate::protocol::UnsubscribeCode;

/// What is still to be done for the server's changes of subscriptions. One task does it for each connection and channel.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    waiting: HashMap<Key, Waiting>,
}

/// A connection and a channel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    client: String,
    channel: String,
}

#[derive(Debug, Default)]
struct Waiting {
    changes: VecDeque<Change>,
    /// The subscription that is being made has been ended before it was listed.
    is_cancelled: bool,
}

/// A part of the server's change of a subscription that takes time.
#[derive(Debug)]
pub(crate) enum Change {
    Subscribe,
    /// What follows the end of a subscription.
    Leave {
        active: Active,
        code: UnsubscribeCode,
    },
}

impl Key {
    pub(crate) fn new(channel: &str, client: &Client) -> Self {
        Self { client: client.id.to_string(), channel: channel.to_owned() }
    }

    pub(crate) fn channel(&self) -> &str {
        &self.channel
    }
}

impl Changes {
    /// Adds a change behind those that were asked for before. Returns whether they have no task yet: the caller must start it.
    #[must_use]
    pub(crate) fn push(&mut self, key: &Key, change: Change) -> bool {
        match self.waiting.entry(key.clone()) {
            Entry::Occupied(mut waiting) => {
                waiting.get_mut().changes.push_back(change);
                false
            }
            Entry::Vacant(begun) => {
                begun.insert(Waiting::default()).changes.push_back(change);
                true
            }
        }
    }

    /// The next change. After the last one they have no task any more.
    pub(crate) fn pop(&mut self, key: &Key) -> Option<Change> {
        let waiting = self.waiting.get_mut(key)?;
        waiting.is_cancelled = false;
        let next = waiting.changes.pop_front();
        if next.is_none() {
            self.waiting.remove(key);
        }
        next
    }

    /// Drops the subscriptions that are still to be made, and marks the one that is being made.
    pub(crate) fn cancel_subscribes(&mut self, key: &Key) {
        if let Some(waiting) = self.waiting.get_mut(key) {
            waiting.changes.retain(|change| !matches!(change, Change::Subscribe));
            waiting.is_cancelled = true;
        }
    }

    /// Whether the subscription that is being made has been ended.
    pub(crate) fn is_cancelled(&self, key: &Key) -> bool {
        self.waiting.get(key).is_some_and(|waiting| waiting.is_cancelled)
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}
