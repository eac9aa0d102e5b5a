//! The channels that clients published into: to whom they count, and which of them count without subscribers.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use crate::client::Client;
use crate::config::namespace_of;

/// The shortest time between two searches for channels that no longer count.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// To whom a channel counts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Owner {
    User(Arc<str>),
    /// Anonymous clients of an address.
    Address(Option<IpAddr>),
}

impl Owner {
    /// To whom the channels of a client count.
    pub(crate) fn of(client: &Client) -> Self {
        match client.user() {
            "" => Self::Address(client.peer().map(|peer| network(peer.ip()))),
            user => Self::User(user.into()),
        }
    }
}

/// The addresses that one subscriber of a provider has: RFC 6177 §2.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
    }
}

/// A channel of which the engine keeps something that a client published. It is [charged](Left::charge) to its owner.
#[derive(Debug)]
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
    /// Those without subscribers.
    len: usize,
    /// Those that are charged to an owner, with subscribers or without. There are no zeros.
    by_owner: HashMap<Owner, usize>,
    /// The sum of `by_owner`.
    charged: usize,
}

impl Total {
    fn charge(&mut self, owner: &Owner) {
        *self.by_owner.entry(owner.clone()).or_default() += 1;
        self.charged += 1;
    }

    fn release(&mut self, owner: &Owner) {
        if let Some(len) = self.by_owner.get_mut(owner) {
            *len -= 1;
            self.charged -= 1;
            if *len == 0 {
                self.by_owner.remove(owner);
            }
        }
    }

    fn charged_to(&self, owner: &Owner) -> Charged {
        let own = self.by_owner.get(owner).copied().unwrap_or(0);
        Charged { own, others: self.charged - own }
    }
}

/// The numbers of channels that are charged to an owner and to the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Charged {
    pub(crate) own: usize,
    pub(crate) others: usize,
}

impl Left {
    pub(crate) fn len(&self) -> usize {
        self.total.len
    }

    pub(crate) fn len_in(&self, namespace: &str) -> usize {
        self.namespaces.get(namespace).map_or(0, |namespace| namespace.total.len)
    }

    pub(crate) fn charged_to(&self, owner: &Owner) -> Charged {
        self.total.charged_to(owner)
    }

    pub(crate) fn charged_to_in(&self, owner: &Owner, namespace: &str) -> Charged {
        let namespace = self.namespaces.get(namespace);
        namespace.map_or_else(Charged::default, |namespace| namespace.total.charged_to(owner))
    }

    pub(crate) fn contains(&self, channel: &str) -> bool {
        self.namespaces.get(namespace_of(channel)).is_some_and(|known| known.channels.contains_key(channel))
    }

    /// When a channel stops counting.
    pub(super) fn until(&mut self, channel: &str) -> Option<&mut Duration> {
        let counted = self.namespaces.get_mut(namespace_of(channel))?.channels.get_mut(channel)?;
        Some(&mut counted.until)
    }

    /// Counts a channel to its owner, until it is released.
    pub(super) fn charge(&mut self, channel: &str, owner: &Owner) {
        let namespace = self.namespaces.entry(namespace_of(channel).to_owned()).or_default();
        namespace.total.charge(owner);
        self.total.charge(owner);
    }

    /// Ends the charge of a channel that is not among those without subscribers.
    pub(super) fn release(&mut self, channel: &str, owner: &Owner) {
        if let Some(namespace) = self.namespaces.get_mut(namespace_of(channel)) {
            namespace.total.release(owner);
        }
        self.total.release(owner);
    }

    /// Adds a charged channel, which has no subscribers.
    pub(super) fn insert(&mut self, channel: &str, counted: Counted) {
        let namespace = self.namespaces.entry(namespace_of(channel).to_owned()).or_default();
        namespace.channels.insert(channel.into(), counted);
        namespace.total.len += 1;
        self.total.len += 1;
    }

    /// Takes a channel that has subscribers again. It stays charged.
    pub(super) fn take(&mut self, channel: &str) -> Option<Counted> {
        let namespace = self.namespaces.get_mut(namespace_of(channel))?;
        let counted = namespace.channels.remove(channel)?;
        namespace.total.len -= 1;
        self.total.len -= 1;
        Some(counted)
    }

    /// Drops the channels that no longer count. Returns false if it did so less than a second ago.
    pub(super) fn sweep(&mut self, now: Duration) -> bool {
        if now < self.swept_at + SWEEP_INTERVAL {
            return false;
        }
        self.swept_at = now;
        let Self { namespaces, total: all, .. } = self;
        namespaces.retain(|_, Namespace { channels, total }| {
            channels.retain(|_, Counted { until, owner }| {
                let counts = *until > now;
                if !counts {
                    for total in [&mut *total, all] {
                        total.len -= 1;
                        total.release(owner);
                    }
                }
                counts
            });
            !total.by_owner.is_empty()
        });
        true
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
            [("a:x", 10, &one), ("a:y", 20, &one), ("b:x", 20, &one), ("a:z", 30, &two)]
        {
            left.charge(channel, owner);
            left.insert(channel, Counted { until: at(until), owner: owner.clone() });
        }
        assert_eq!((left.len(), left.len_in("a"), left.len_in("b")), (4, 3, 1));
        let all = |left: &Left| [&one, &two].map(|owner| left.charged_to(owner).own);
        let in_a = |left: &Left| [&one, &two].map(|owner| left.charged_to_in(owner, "a").own);
        assert_eq!((all(&left), in_a(&left)), ([3, 1], [2, 1]));
        assert_eq!(left.charged_to(&one), Charged { own: 3, others: 1 });
        left.sweep(at(10));
        assert_eq!((left.len(), all(&left), in_a(&left)), (3, [2, 1], [1, 1]));
        // With subscribers it counts to its owner alone.
        let taken = left.take("a:y").unwrap();
        assert!(taken.owner == one && left.take("a:y").is_none());
        assert_eq!((left.len(), left.len_in("a")), (2, 1));
        left.sweep(at(30));
        assert_eq!((left.len(), all(&left), in_a(&left)), (0, [1, 0], [1, 0]));
        assert_eq!(left.charged_to_in(&one, "b"), Charged::default());
        left.release("a:y", &one);
        left.charge("a:y", &two);
        assert_eq!((all(&left), in_a(&left)), ([0, 1], [0, 1]));
        left.insert("a:y", Counted { owner: two.clone(), ..taken });
        left.sweep(at(40));
        assert!(left.namespaces.is_empty() && left.total.by_owner.is_empty() && left.total.charged == 0);
    }
}
