//! Limits on the channels with history that clients open, so that some clients leave room for the others and for the server API.
//!
//! A channel counts while it has subscribers, and after a client published into it for as long as the engine keeps something of it. What
//! the server API and the library open is not limited here: one tenth of the engine's channels is left to them. Of the channels that count
//! without subscribers, each user has a quarter at most: they count for as long as a day.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use crate::channels::{Channels, Counted, Left, Owner};
use crate::client::Client;
use crate::config::{ChannelOptions, HubConfig, namespace_of};

/// The fraction (one in this many) of `history.channels_max` that clients leave to the server API.
const RESERVE: usize = 10;

/// The fraction (one in this many) of each limit that the channels of one user may take without subscribers.
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
    client: &Client,
    now: Duration,
) -> bool {
    if !options.has_history() || channels.contains(channel) {
        return true;
    }
    let mut left = channels.left();
    left.until(channel).is_some()
        || has_room(config, options, channels, &mut left, channel, &owner(client), now)
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
    let counts_until = now.saturating_add(kept_for);
    if !options.has_history() || channels.count_until(channel, counts_until, || owner(client)) {
        return true;
    }
    let mut left = channels.left();
    if let Some(until) = left.until(channel) {
        *until = counts_until;
        return true;
    }
    let owner = owner(client);
    let is_admitted = has_room(config, options, channels, &mut left, channel, &owner, now);
    if is_admitted {
        left.insert(channel, Counted { until: counts_until, owner });
    }
    is_admitted
}

/// Whether one more channel fits into the limit of its namespace and into the one of all clients, and into the owner's share of each.
fn has_room(
    config: &HubConfig,
    options: &ChannelOptions,
    channels: &Channels,
    left: &mut Left,
    channel: &str,
    owner: &Owner,
    now: Duration,
) -> bool {
    let namespace = namespace_of(channel);
    let fits = |left: &Left| {
        let fits = |len: usize, own: usize, max: usize| len < max && own < max.div_ceil(SHARE);
        let max = config.history.channels_max;
        let in_namespace = left.len_in(namespace) + channels.len_of(namespace);
        fits(left.len() + channels.len(), left.len_of(owner), max - max.div_ceil(RESERVE))
            && (options.channels_max == 0
                || fits(in_namespace, left.len_of_in(owner, namespace), options.channels_max))
    };
    if !fits(left) {
        left.sweep(now);
    }
    fits(left)
}
