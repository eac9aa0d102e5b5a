//! Limits on the channels with history that clients open, so that some clients leave room for the others and for the server API.
//!
//! A channel counts while it has subscribers, and after a client published into it for as long as the engine keeps something of it. What
//! the server API and the library open is not limited here: one tenth of the engine's channels is left to them.
//!
//! Those that clients published into count for as long as a day, so each user has a quarter of them at most, from the first publication on:
//! a channel without subscribers counts to its publisher, any other to a subscriber, or to the publisher if that has no room left. So a
//! client that publishes where others have subscribed takes their shares and not its own, and nobody takes more by leaving.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use crate::channels::{Channels, Left, Owner};
use crate::client::Client;
use crate::config::{ChannelOptions, HubConfig, namespace_of};

/// The fraction (one in this many) of `history.channels_max` that clients leave to the server API.
const RESERVE: usize = 10;

/// The fraction (one in this many) of each limit that the channels may take which count to one user.
const SHARE: usize = 4;

/// To whom the channels of a client count.
fn owner(client: &Client) -> Owner {
    match client.user() {
        "" => Owner::Address(client.peer().map(|peer| network(peer.ip()))),
        user => Owner::User(user.into()),
    }
}

/// The addresses that one subscriber of a provider has: RFC 6177 §2.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
    }
}

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
    let admits = |left: &Left| left.contains(channel) || limits.has_room(left);
    let mut left = channels.left();
    admits(&left) || {
        left.sweep(now);
        admits(&left)
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
        channels.count_until(channel, now.saturating_add(kept_for), |left, subscriber| {
            // One that has subscribers counts already.
            let has_room = subscriber.is_some() || limits.has_room(left);
            let owners = subscriber.into_iter().chain([client]).map(owner);
            owners.filter(|_| has_room).find(|owner| limits.has_share(left, owner))
        })
    };
    admits() || {
        channels.left().sweep(now);
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
