//! The channels that count although nobody has subscribed.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::config::namespace_of;

/// The shortest time between two searches for channels that no longer count.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// To whom a channel counts: the client that published into it first.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Owner {
    User(Arc<str>),
    /// Anonymous clients of an address.
    Address(Option<IpAddr>),
}

/// A channel of which the engine keeps something that a client published.
#[derive(Clone, Debug)]
pub(crate) struct Counted {
    pub(crate) until: Duration,
    pub(crate) owner: Owner,
}

/// Channels without subscribers, of which the engine keeps something that a client published.
#[derive(Debug, Default)]
pub(crate) struct Left {
    namespaces: HashMap<String, Namespace>,
    total: Total,
    swept_at: Duration,
}

#[derive(Debug, Default)]
struct Namespace {
    channels: HashMap<Box<str>, Counted>,
    total: Total,
}

/// Numbers of channels.
#[derive(Debug, Default)]
struct Total {
    len: usize,
    /// There are no zeros.
    by_owner: HashMap<Owner, usize>,
}

impl Total {
    fn add(&mut self, owner: &Owner) {
        self.len += 1;
        *self.by_owner.entry(owner.clone()).or_default() += 1;
    }

    fn remove(&mut self, owner: &Owner) {
        self.len -= 1;
        if let Some(len) = self.by_owner.get_mut(owner) {
            *len -= 1;
            if *len == 0 {
                self.by_owner.remove(owner);
            }
        }
    }

    fn len_of(&self, owner: &Owner) -> usize {
        self.by_owner.get(owner).copied().unwrap_or(0)
    }
}

impl Left {
    pub(crate) fn len(&self) -> usize {
        self.total.len
    }

    pub(crate) fn len_in(&self, namespace: &str) -> usize {
        self.namespaces.get(namespace).map_or(0, |namespace| namespace.total.len)
    }

    pub(crate) fn len_of(&self, owner: &Owner) -> usize {
        self.total.len_of(owner)
    }

    pub(crate) fn len_of_in(&self, owner: &Owner, namespace: &str) -> usize {
        self.namespaces.get(namespace).map_or(0, |namespace| namespace.total.len_of(owner))
    }

    /// When a channel stops counting.
    pub(crate) fn until(&mut self, channel: &str) -> Option<&mut Duration> {
        let counted = self.namespaces.get_mut(namespace_of(channel))?.channels.get_mut(channel)?;
        Some(&mut counted.until)
    }

    pub(crate) fn insert(&mut self, channel: &str, counted: Counted) {
        self.remove(channel);
        let namespace = self.namespaces.entry(namespace_of(channel).to_owned()).or_default();
        namespace.total.add(&counted.owner);
        self.total.add(&counted.owner);
        namespace.channels.insert(channel.into(), counted);
    }

    pub(super) fn remove(&mut self, channel: &str) -> Option<Counted> {
        let namespace = self.namespaces.get_mut(namespace_of(channel))?;
        let counted = namespace.channels.remove(channel)?;
        namespace.total.remove(&counted.owner);
        self.total.remove(&counted.owner);
        Some(counted)
    }

    /// Drops the channels that no longer count.
    pub(crate) fn sweep(&mut self, now: Duration) {
        if now < self.swept_at + SWEEP_INTERVAL {
            return;
        }
        self.swept_at = now;
        let Self { namespaces, total: all, .. } = self;
        namespaces.retain(|_, Namespace { channels, total }| {
            channels.retain(|_, Counted { until, owner }| {
                let counts = *until > now;
                if !counts {
                    total.remove(owner);
                    all.remove(owner);
                }
                counts
            });
            !channels.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_channel_counts_to_its_owner_until_its_time() {
        let at = Duration::from_secs;
        let [one, two] = ["1", "2"].map(|user| Owner::User(user.into()));
        let mut left = Left::default();
        for (channel, until, owner) in
            [("a:x", 10, &one), ("a:y", 20, &one), ("b:x", 20, &one), ("a:z", 20, &two), ("a:z", 30, &two)]
        {
            left.insert(channel, Counted { until: at(until), owner: owner.clone() });
        }
        assert_eq!((left.len(), left.len_in("a"), left.len_in("b")), (4, 3, 1));
        assert_eq!((left.len_of(&one), left.len_of(&two), left.len_of_in(&one, "a")), (3, 1, 2));
        left.sweep(at(10));
        assert_eq!((left.len(), left.len_of(&one), left.len_of_in(&one, "a")), (3, 2, 1));
        assert_eq!(left.remove("a:y").unwrap().owner, one);
        assert!(left.remove("a:y").is_none());
        left.sweep(at(30));
        assert!(left.len() == 0 && left.namespaces.is_empty() && left.total.by_owner.is_empty());
    }
}
