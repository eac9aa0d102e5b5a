//! The channels without subscribers that clients published into.

use std::collections::HashMap;
use std::time::Duration;

use crate::config::namespace_of;

/// The shortest time between two searches for channels that no longer count.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Channels without subscribers, of which the engine keeps something that a client published.
#[derive(Debug, Default)]
pub(crate) struct Left {
    /// When each channel stops counting, by namespace.
    namespaces: HashMap<String, HashMap<Box<str>, Duration>>,
    len: usize,
    swept_at: Duration,
}

impl Left {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn len_of(&self, namespace: &str) -> usize {
        self.namespaces.get(namespace).map_or(0, HashMap::len)
    }

    /// When a channel stops counting.
    pub(crate) fn until(&mut self, channel: &str) -> Option<&mut Duration> {
        self.namespaces.get_mut(namespace_of(channel))?.get_mut(channel)
    }

    pub(crate) fn insert(&mut self, channel: &str, until: Duration) {
        let channels = self.namespaces.entry(namespace_of(channel).to_owned()).or_default();
        if channels.insert(channel.into(), until).is_none() {
            self.len += 1;
        }
    }

    pub(super) fn remove(&mut self, channel: &str) -> Option<Duration> {
        let until = self.namespaces.get_mut(namespace_of(channel))?.remove(channel)?;
        self.len -= 1;
        Some(until)
    }

    /// Drops the channels that no longer count.
    pub(crate) fn sweep(&mut self, now: Duration) {
        if now < self.swept_at + SWEEP_INTERVAL {
            return;
        }
        self.swept_at = now;
        self.namespaces.retain(|_, channels| {
            channels.retain(|_, until| *until > now);
            !channels.is_empty()
        });
        self.len = self.namespaces.values().map(HashMap::len).sum();
    }
}
