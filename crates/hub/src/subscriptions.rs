//! The subscriptions of one connection, by channel. Most connections have one, which needs no map.

use std::collections::HashMap;
use std::sync::Arc;

/// The subscriptions of one connection. The map is boxed, because most connections have none.
#[derive(Clone, Debug, Default)]
#[allow(clippy::box_collection)]
pub(crate) enum Subscriptions<T> {
    #[default]
    None,
    One(Arc<str>, T),
    /// There have been several at the same time.
    Many(Box<HashMap<Arc<str>, T>>),
}

impl<T> Subscriptions<T> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::One(..) => 1,
            Self::Many(all) => all.len(),
        }
    }

    pub(crate) fn get(&self, channel: &str) -> Option<&T> {
        match self {
            Self::One(one, subscription) => (**one == *channel).then_some(subscription),
            Self::Many(all) => all.get(channel),
            Self::None => None,
        }
    }

    pub(crate) fn get_mut(&mut self, channel: &str) -> Option<&mut T> {
        match self {
            Self::One(one, subscription) => (**one == *channel).then_some(subscription),
            Self::Many(all) => all.get_mut(channel),
            Self::None => None,
        }
    }

    /// Inserts or replaces a subscription, and the name that it has.
    pub(crate) fn insert(&mut self, channel: Arc<str>, subscription: T) {
        *self = match std::mem::take(self) {
            Self::One(one, other) if one != channel => {
                Self::Many(Box::new([(one, other), (channel, subscription)].into()))
            }
            Self::None | Self::One(..) => Self::One(channel, subscription),
            Self::Many(mut all) => {
                all.remove(&channel);
                all.insert(channel, subscription);
                Self::Many(all)
            }
        };
    }

    pub(crate) fn remove(&mut self, channel: &str) -> Option<T> {
        match self {
            Self::Many(all) => all.remove(channel),
            Self::One(one, _) if **one == *channel => self.take().pop().map(|(_, subscription)| subscription),
            Self::None | Self::One(..) => None,
        }
    }

    /// Takes all of them.
    pub(crate) fn take(&mut self) -> Vec<(Arc<str>, T)> {
        match std::mem::take(self) {
            Self::None => Vec::new(),
            Self::One(channel, subscription) => vec![(channel, subscription)],
            Self::Many(all) => all.into_iter().collect(),
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &T)> {
        let (one, many) = match self {
            Self::None => (None, None),
            Self::One(channel, subscription) => (Some((channel, subscription)), None),
            Self::Many(all) => (None, Some(all.iter())),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn agrees_with_a_map() {
        let mut steps = 0_u32;
        // Every sequence of five of these.
        for sequence in 0..6_u32.pow(5) {
            let (mut subscriptions, mut map) = (Subscriptions::default(), BTreeMap::<&str, u32>::new());
            for place in 0..5 {
                let step = sequence / 6_u32.pow(place) % 6;
                let channel = ["a", "b", "c"][(step % 3) as usize];
                steps += 1;
                if step < 3 {
                    subscriptions.insert(channel.into(), steps);
                    map.insert(channel, steps);
                } else {
                    assert_eq!(subscriptions.remove(channel), map.remove(channel));
                }
                for channel in ["a", "b", "c"] {
                    assert_eq!(subscriptions.get(channel), map.get(channel));
                    assert_eq!(subscriptions.get_mut(channel), map.get_mut(channel));
                }
                assert_eq!(subscriptions.len(), map.len());
                let listed: BTreeMap<_, _> =
                    subscriptions.iter().map(|(name, one)| (&**name, *one)).collect();
                assert_eq!(listed, map);
            }
            let mut all = subscriptions.take();
            all.sort();
            assert!(
                all.iter().map(|(name, one)| (&**name, *one)).eq(map.iter().map(|(name, one)| (*name, *one)))
            );
            assert_eq!(subscriptions.len(), 0);
        }
    }

    /// The name that all subscribers of a channel share replaces that of the request.
    #[test]
    fn keeps_the_last_name() {
        let mut subscriptions = Subscriptions::default();
        for _ in 0..2 {
            let name: Arc<str> = "a".into();
            subscriptions.insert("a".into(), 1);
            subscriptions.insert(name.clone(), 2);
            assert!(subscriptions.iter().any(|(own, _)| Arc::ptr_eq(own, &name)));
            subscriptions.insert("b".into(), 3);
        }
    }
}
