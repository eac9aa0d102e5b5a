//! Limits on the channels with history that clients open, so that some clients leave room for the others and for the server API.
//!
//! A channel counts while it has subscribers, and after a client published into it for as long as the engine keeps something of it. What the server API and the
//! library open is not limited here: one tenth of the engine's channels is left to them.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use crate::channels::Channels;
use crate::config::{ChannelOptions, HubConfig, namespace_of};
use crate::shards::lock;

/// The fraction (one in this many) of `history.channels_max` that clients leave to the server API.
const RESERVE: usize = 10;

/// The shortest time between two searches for channels that no longer count.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// The channels that clients published into, and that have had no subscribers then.
#[derive(Debug, Default)]
pub(crate) struct ChannelLimits {
    published: Mutex<Published>,
}

#[derive(Debug, Default)]
struct Published {
    /// When each channel stops counting, by namespace.
    namespaces: HashMap<String, HashMap<Box<str>, Duration>>,
    len: usize,
    swept_at: Duration,
}

impl ChannelLimits {
    /// Whether a client may subscribe to a channel.
    pub(crate) fn admits_subscription(
        &self,
        config: &HubConfig,
        options: &ChannelOptions,
        channels: &Channels,
        channel: &str,
    ) -> bool {
        if !options.has_history() || channels.contains(channel) {
            return true;
        }
        let published = lock(&self.published);
        let namespace = namespace_of(channel);
        let own = published.namespaces.get(namespace).map_or(0, HashMap::len);
        has_room(config, options, channels, namespace, own, published.len)
    }

    /// Whether a client may publish into a channel, of which something is kept for a time after that. `now` is the time since 1970.
    pub(crate) fn admits_publication(
        &self,
        config: &HubConfig,
        options: &ChannelOptions,
        channels: &Channels,
        channel: &str,
        now: Duration,
        kept_for: Duration,
    ) -> bool {
        if !options.has_history() || channels.contains(channel) {
            return true;
        }
        let namespace = namespace_of(channel);
        let counts_until = now.saturating_add(kept_for);
        let mut published = lock(&self.published);
        if let Some(until) =
            published.namespaces.get_mut(namespace).and_then(|channels| channels.get_mut(channel))
        {
            *until = counts_until;
            return true;
        }
        let fits = |published: &Published| {
            let own = published.namespaces.get(namespace).map_or(0, HashMap::len);
            has_room(config, options, channels, namespace, own, published.len)
        };
        if !fits(&published) {
            published.sweep(now);
            if !fits(&published) {
                return false;
            }
        }
        published.len += 1;
        published.namespaces.entry(namespace.to_owned()).or_default().insert(channel.into(), counts_until);
        true
    }
}

impl Published {
    /// Drops the channels that no longer count.
    fn sweep(&mut self, now: Duration) {
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

/// Whether one more channel fits into the limit of its namespace and into the one of all clients.
fn has_room(
    config: &HubConfig,
    options: &ChannelOptions,
    channels: &Channels,
    namespace: &str,
    own: usize,
    all: usize,
) -> bool {
    let (own, all) = (own + channels.len_of(namespace), all + channels.len());
    let max = config.history.channels_max;
    all < max - max.div_ceil(RESERVE) && (options.channels_max == 0 || own < options.channels_max)
}
