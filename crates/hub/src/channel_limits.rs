//! Limits on the channels with history that clients open, so that some clients leave room for the others and for the server API.
//!
//! A channel counts while it has subscribers, and after a client published into it for as long as the engine keeps something of it. What
//! the server API and the library open is not limited here: one tenth of the engine's channels is left to them.

use std::time::Duration;

use crate::channels::{Channels, Left};
use crate::config::{ChannelOptions, HubConfig, namespace_of};

/// The fraction (one in this many) of `history.channels_max` that clients leave to the server API.
const RESERVE: usize = 10;

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
    let mut left = channels.left();
    left.until(channel).is_some() || has_room(config, options, channels, &mut left, channel, now)
}

/// Whether a client may publish into a channel, of which something is kept for a time after that; counts it then. `now` is the time
/// since 1970.
pub(crate) fn admits_publication(
    config: &HubConfig,
    options: &ChannelOptions,
    channels: &Channels,
    channel: &str,
    now: Duration,
    kept_for: Duration,
) -> bool {
    let counts_until = now.saturating_add(kept_for);
    if !options.has_history() || channels.count_until(channel, counts_until) {
        return true;
    }
    let mut left = channels.left();
    if let Some(until) = left.until(channel) {
        *until = counts_until;
        return true;
    }
    let is_admitted = has_room(config, options, channels, &mut left, channel, now);
    if is_admitted {
        left.insert(channel, counts_until);
    }
    is_admitted
}

/// Whether one more channel fits into the limit of its namespace and into the one of all clients.
fn has_room(
    config: &HubConfig,
    options: &ChannelOptions,
    channels: &Channels,
    left: &mut Left,
    channel: &str,
    now: Duration,
) -> bool {
    let namespace = namespace_of(channel);
    let fits = |left: &Left| {
        let own = left.len_of(namespace) + channels.len_of(namespace);
        let (all, max) = (left.len() + channels.len(), config.history.channels_max);
        all < max - max.div_ceil(RESERVE) && (options.channels_max == 0 || own < options.channels_max)
    };
    if !fits(left) {
        left.sweep(now);
    }
    fits(left)
}
