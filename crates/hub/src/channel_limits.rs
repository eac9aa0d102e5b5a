//! Limits on the channels with history that clients open, so that some clients leave room for the others and for the server API.
//!
//! A channel counts while it has subscribers, and after a client published into it for as long as the engine keeps something of it. What
//! the server API and the library open is not limited here: one tenth of the engine's channels is left to them.
//!
//! Those that clients published into count for as long as a day, so each user has a quarter at most of what the others leave, from the first
//! publication on: however many have taken their shares, the next one finds some left. A few are within every share, because channels that
//! have subscribers keep their places anyway. A channel without subscribers counts to its publisher, any other to a subscriber, or to the publisher if none of those that it may count
//! to has room left. So a client that publishes where others have subscribed takes their shares and not its own. When the subscriber
//! leaves, the channel counts to it until the next publication, which chooses again while others have subscribed. So each has a share at
//! most, by staying as by leaving.

use std::time::Duration;

use crate::channels::{Channels, Charged, Left, Owner};
use crate::client::Client;
use crate::config::{ChannelOptions, HubConfig, namespace_of};

/// The fraction (one in this many) of `history.channels_max` that clients leave to the server API.
const RESERVE: usize = 10;

/// The fraction (one in this many) of what the others leave of each limit that the channels may take which count to one user.
const SHARE: usize = 4;

/// The fraction (one in this many) of each limit that they may always take.
const SHARE_MIN: usize = 1_000;

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
        let times = [now, now.saturating_add(kept_for)];
        channels.count_until(channel, client, times, |left, owner, has_subscribers| {
            // One that has subscribers counts already.
            (has_subscribers || limits.has_room(left)) && limits.has_share(left, owner)
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
        is_within_share(self.max(), left.charged_to(owner))
            && (max_of_namespace == 0
                || is_within_share(max_of_namespace, left.charged_to_in(owner, namespace)))
    }
}

/// Whether one more of at most `max` channels is within the share of an owner.
fn is_within_share(max: usize, Charged { own, others }: Charged) -> bool {
    own < max.saturating_sub(others).div_ceil(SHARE).max(max.div_ceil(SHARE_MIN))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::client::Transport;
    use crate::config::SlowPolicy;
    use crate::outbox::Outbox;
    use crate::protocol::Encoding;

    const KEPT_FOR: Duration = Duration::from_secs(10);

    /// Eighteen channels for clients, of which five may count to each.
    struct Rig {
        config: HubConfig,
        options: ChannelOptions,
        channels: Channels,
    }

    impl Rig {
        fn new() -> Self {
            let mut config = HubConfig::default();
            config.history.channels_max = 20;
            let options =
                ChannelOptions { history_size: 1, history_ttl: KEPT_FOR, ..ChannelOptions::default() };
            Self { config, options, channels: Channels::new() }
        }

        fn subscribe(&self, client: &Arc<Client>, channel: &str) -> usize {
            self.channels.add(channel, client.clone(), false).1
        }

        fn publish(&self, client: &Client, channel: &str) -> bool {
            self.publish_at(Duration::ZERO, client, channel)
        }

        fn publish_at(&self, now: Duration, client: &Client, channel: &str) -> bool {
            admits_publication(&self.config, &self.options, &self.channels, channel, client, [now, KEPT_FOR])
        }

        fn lens_of<const N: usize>(&self, clients: [&Client; N]) -> [usize; N] {
            clients.map(|client| self.channels.left().charged_to(&Owner::of(client)).own)
        }
    }

    /// An anonymous client of an address of its own.
    fn client(number: u8) -> Arc<Client> {
        let outbox = Outbox::new(1 << 20, SlowPolicy::Disconnect);
        let peer = Some(([10, 0, 0, number], 1).into());
        Arc::new(Client::new(Transport::WebSocket(Encoding::Json), peer, None, outbox))
    }

    #[test]
    fn nobody_takes_more_than_a_share_by_staying_longer() {
        let (rig, one, two) = (Rig::new(), client(1), client(2));
        for number in 0..18 {
            let channel = number.to_string();
            let keys = [&one, &two].map(|client| rig.subscribe(client, &channel));
            assert_eq!(rig.publish(&one, &channel), number < 9, "{number}");
            keys.into_iter().for_each(|key| rig.channels.remove(&channel, key));
        }
        assert_eq!(rig.lens_of([&one, &two]), [5, 4]);
    }

    #[test]
    fn many_that_take_their_shares_leave_room_for_others() {
        let (mut rig, takers) = (Rig::new(), 20);
        rig.config.history.channels_max = 10_000;
        let taken = (0..takers).map(|number| {
            let taker = client(number);
            (0..).take_while(|channel| rig.publish(&taker, &format!("{number} {channel}"))).count()
        });
        let taken: Vec<_> = taken.collect();
        assert_eq!(taken[..4], [2_250, 1_688, 1_266, 949]);
        let newcomer = client(takers);
        assert!((0..9).all(|number| rig.publish(&newcomer, &number.to_string())), "{taken:?}");
    }

    #[test]
    fn a_thousandth_is_within_every_share() {
        for (max, own, others, expected) in [
            (10_000, 9, 10_000, true),
            (10_000, 10, 10_000, false),
            (10_000, 2_499, 0, true),
            (10_000, 2_500, 0, false),
            (4, 0, 4, true),
            (4, 1, 1, false),
        ] {
            assert_eq!(is_within_share(max, Charged { own, others }), expected, "{max} {own} {others}");
        }
    }

    #[test]
    fn a_publication_looks_at_few_places_of_subscribers_that_left() {
        let (rig, publisher, last) = (Rig::new(), client(1), client(2));
        let keys: Vec<_> = (0..63).map(|_| rig.subscribe(&client(3), "x")).collect();
        rig.subscribe(&last, "x");
        keys.into_iter().for_each(|key| rig.channels.remove("x", key));
        let publications = (1..).find(|_| {
            assert!(rig.publish(&publisher, "x"));
            rig.lens_of([&publisher, &last]) == [0, 1]
        });
        assert_eq!(publications, Some(4), "each looks at 16 of 64 places");
        assert!(rig.publish(&publisher, "x"));
        assert_eq!(rig.lens_of([&publisher, &last]), [0, 1], "it stays");
    }

    #[test]
    fn a_channel_with_subscribers_is_not_opened_again() {
        let (rig, publisher) = (Rig::new(), client(1));
        let keys: Vec<_> = (0..63).map(|_| rig.subscribe(&client(2), "x")).collect();
        rig.subscribe(&client(3), "x");
        keys.into_iter().for_each(|key| rig.channels.remove("x", key));
        for number in 0..17 {
            rig.subscribe(&client(4), &number.to_string());
        }
        assert!(!rig.publish(&publisher, "new") && rig.publish(&publisher, "x"));
    }

    #[test]
    fn a_subscriber_that_left_is_charged_until_another_can_be() {
        let (rig, one, two) = (Rig::new(), client(1), client(2));
        let key = rig.subscribe(&one, "x");
        rig.subscribe(&two, "x");
        assert!(rig.publish(&two, "x"));
        rig.channels.remove("x", key);
        assert_eq!(rig.lens_of([&one, &two]), [1, 0]);
        assert!((0..5).all(|number| rig.publish(&two, &number.to_string())));
        assert!(rig.publish(&two, "x"), "neither has room");
        assert_eq!(rig.lens_of([&one, &two]), [1, 5]);
        // Its place belongs to another one then.
        let three = client(3);
        assert_eq!(rig.subscribe(&three, "x"), key);
        assert!(rig.publish(&two, "x"));
        assert_eq!(rig.lens_of([&one, &two, &three]), [0, 5, 1]);
        rig.channels.remove("x", key);
        rig.channels.sweep(KEPT_FOR);
        assert_eq!(rig.lens_of([&one, &two, &three]), [0, 0, 0]);
    }
}
