//! Limits on the channels with history that clients open, so that some clients leave room for the others and for the server API.
//!
//! A channel counts while it has subscribers, and after a client published into it for as long as the engine keeps something of it. What
//! the server API and the library open is not limited here: one tenth of the engine's channels is left to them.
//!
//! Those that clients published into count for as long as a day, so each user has a quarter of them at most, from the first publication on:
//! a channel without subscribers counts to its publisher, any other to a subscriber, or to the publisher if none of those that it may count
//! to has room left. So a client that publishes where others have subscribed takes their shares and not its own. When the subscriber
//! leaves, the channel counts to one that stays; the last one takes it along, so that nobody has more by leaving.

use std::time::Duration;

use crate::channels::{Channels, Left, Owner};
use crate::client::Client;
use crate::config::{ChannelOptions, HubConfig, namespace_of};

/// The fraction (one in this many) of `history.channels_max` that clients leave to the server API.
const RESERVE: usize = 10;

/// The fraction (one in this many) of each limit that the channels may take which count to one user.
const SHARE: usize = 4;

/// Whether a client may subscribe to a channel. `now` is the time since 1970.
pub(crate) fn admits_subscription(
    config: &HubConfig,
    options: &ChannelOptions,
    channels: &Channels,
    channel: &str,
    now: Duration,
) -> bool {
    if !options.has_history() || channels.contains(channel) {
        return true;
    }
    let limits = Limits { config, options, channels, channel };
    let admits = || {
        let left = channels.left();
        left.contains(channel) || limits.has_room(&left)
    };
    admits() || {
        channels.sweep(now);
        admits()
    }
}

/// Whether a client may publish into a channel, of which something is kept for a time after that; counts it then. `now` is the time
/// since 1970.
pub(crate) fn admits_publication(
    config: &HubConfig,
    options: &ChannelOptions,
    channels: &Channels,
    channel: &str,
    client: &Client,
    [now, kept_for]: [Duration; 2],
) -> bool {
    if !options.has_history() {
        return true;
    }
    let limits = Limits { config, options, channels, channel };
    let admits = || {
        channels.count_until(channel, client, [now, now.saturating_add(kept_for)], |left, owners| {
            // One that has subscribers counts already.
            let has_room = owners.len() > 1 || limits.has_room(left);
            owners.into_iter().filter(|_| has_room).find(|owner| limits.has_share(left, owner))
        })
    };
    admits() || {
        channels.sweep(now);
        admits()
    }
}

/// The limits on a channel.
struct Limits<'a> {
    config: &'a HubConfig,
    options: &'a ChannelOptions,
    channels: &'a Channels,
    channel: &'a str,
}

impl Limits<'_> {
    /// The maximum number of channels with history that clients may open.
    fn max(&self) -> usize {
        let max = self.config.history.channels_max;
        max - max.div_ceil(RESERVE)
    }

    /// Whether one more channel fits into the limit of all clients and into the one of its namespace.
    fn has_room(&self, left: &Left) -> bool {
        let (namespace, max_of_namespace) = (namespace_of(self.channel), self.options.channels_max);
        left.len() + self.channels.len() < self.max()
            && (max_of_namespace == 0
                || left.len_in(namespace) + self.channels.len_of(namespace) < max_of_namespace)
    }

    /// Whether one more channel fits into the share that an owner has of each of them.
    fn has_share(&self, left: &Left, owner: &Owner) -> bool {
        let (namespace, max_of_namespace) = (namespace_of(self.channel), self.options.channels_max);
        left.len_of(owner) < self.max().div_ceil(SHARE)
            && (max_of_namespace == 0 || left.len_of_in(owner, namespace) < max_of_namespace.div_ceil(SHARE))
    }
}
