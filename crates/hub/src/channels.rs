//! The subscribers of this node, by channel, and the fan-out to them.
//!
//! Layers: `burst`, `left`, `slots`.

mod burst;
mod left;
mod slots;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use wireloom::PreparedMessage;

pub(crate) use self::burst::Appended;
use self::burst::{Burst, Expected};
use self::left::Counted;
pub(crate) use self::left::{Charged, Left, Owner};
use self::slots::Slots;
use crate::batch::Unwritten;
use crate::client::{Client, Format};
use crate::config::namespace_of;
use crate::encoded::{Payload, Shared};
use crate::engine::Membership;
use crate::filter::Filter;
use crate::history::Position;
use crate::outbox::{Later, Pushed, cost};
use crate::protocol::{Encoding, Join, Leave, Publication, Push, Reply};
use crate::random::Uuid;
use crate::shards::{Shards, lock};
use crate::undelivered::Undelivered;

/// The number of keys of subscribers, vacant ones included, at which a publication looks for one that its channel may count to.
const KEYS_PER_SEARCH: usize = 16;

/// The subscribers of this node, by channel.
#[derive(Debug)]
pub(crate) struct Channels {
    channels: Shards<Channel>,
    undelivered: Arc<Undelivered>,
    /// The number of channels of each namespace.
    by_namespace: Mutex<HashMap<String, usize>>,
    /// Locked after a shard, and before `by_namespace`.
    left: Mutex<Left>,
}

#[derive(Debug, Default)]
struct Channel {
    subscribers: Slots<Subscriber>,
    /// That of the subscriber which started last, as those that follow the same history have it.
    epoch: Option<Epoch>,
    /// The last publication with an offset, kept while a subscriber has deltas; boxed, because few channels have it.
    latest: Option<Box<Latest>>,
    /// Publications to forward; boxed, because few channels have them.
    burst: Option<Box<Burst>>,
    /// Publications that the engine is expected to deliver; boxed, because few channels have them.
    expected: Option<Box<Expected>>,
    /// The number of subscribers, at the last burst, for which each publication is filtered or compared.
    costly: usize,
    /// To whom it counts because a client published into it, and how long without subscribers; boxed, because few channels have it.
    counted: Option<Box<Counted>>,
    /// The key of the subscriber that it counts to. If that has left, or there was none, the next search begins here.
    owner_key: usize,
}

/// Shared by the subscribers of a channel.
type Epoch = Arc<String>;

#[derive(Clone, Debug)]
struct Latest {
    epoch: Arc<str>,
    publication: Arc<Publication>,
    /// Those of its own deltas.
    encodings: Vec<Encoding>,
}

#[derive(Debug)]
struct Subscriber {
    client: Arc<Client>,
    phase: Phase,
    join_leave: bool,
    deltas: Deltas,
    /// Publications that do not fit are not sent.
    filter: Option<Box<Filter>>,
}

/// Whether a subscriber receives deltas.
///
/// ```text
///          a publication with an offset
///  NoBase ------------------------------> Following      No
///         <------------------------------
///               one without an offset
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Deltas {
    /// It does not receive deltas.
    #[default]
    No,
    /// It has no base for a delta: the next publication is sent whole.
    NoBase,
    /// It has the last publication, which is the base of the next delta.
    Following,
}

/// Called for each client whose queue had no room for a publication, while the channel is locked.
pub(crate) type OnSlow<'a> = &'a dyn Fn(Pushed);

/// The phase of a subscription.
#[derive(Debug)]
enum Phase {
    /// The history is being read; publications are kept meanwhile. Boxed, because there are few.
    Recovering(Option<Box<Waiting>>),
    /// While the history was read, it was removed, or more was published than can be kept.
    Lost,
    /// Publications are forwarded as they arrive. Without a position, gaps are not detected.
    Live,
    /// Publications are forwarded as they arrive, and each must follow the previous one.
    Positioned { offset: u64, epoch: Epoch },
    /// It has missed one. The task that sets this ends the subscription; nothing is forwarded until then.
    Gap,
}

/// Publications that are kept while the history is read. They have room in the outbox of the client, which this gives back.
#[derive(Debug)]
struct Waiting {
    kept: Vec<Kept>,
    cost: usize,
    client: Arc<Client>,
}

/// A publication that is kept while the history is read. It is encoded where it is published, once for all that keep it.
#[derive(Debug)]
struct Kept {
    epoch: Arc<str>,
    previous: u64,
    publication: Arc<Publication>,
    message: PreparedMessage,
}

impl Waiting {
    fn new(client: Arc<Client>) -> Self {
        Self { kept: Vec::new(), cost: 0, client }
    }

    /// Keeps another one, if there is room.
    fn keep(&mut self, kept: Kept) -> bool {
        let cost = cost(&kept.message);
        let has_room = self.client.outbox.reserve(cost);
        if has_room {
            self.cost += cost;
            self.kept.push(kept);
        }
        has_room
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.client.outbox.release(self.cost);
    }
}

/// Clients whose subscription has a [gap](Phase::Gap): it is to be ended.
pub(crate) type Lost = Vec<Arc<Client>>;

/// The outcome of forwarding a publication to a subscriber.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Forwarded {
    /// Nothing is left to do: it is queued, the subscriber has it already, or it was dropped.
    Done,
    /// It is queued, and a batch must write it.
    Unwritten,
    /// The subscriber has missed the previous one: the caller must have its subscription ended.
    Gap,
}

/// The options of a subscriber.
#[derive(Clone, Debug, Default)]
pub(crate) struct Start {
    /// The position after which publications must arrive without gaps.
    pub(crate) position: Option<Position>,
    /// Whether joins and leaves are forwarded.
    pub(crate) join_leave: bool,
    pub(crate) deltas: Deltas,
    /// Publications that do not fit are not sent.
    pub(crate) filter: Option<Box<Filter>>,
}

/// The outcome of starting a subscriber.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Started {
    /// It receives what is published.
    Following,
    /// It has missed publications, and must subscribe again.
    Gap,
}

impl Channels {
    pub(crate) fn new() -> Self {
        Self {
            channels: Shards::new(),
            undelivered: Arc::default(),
            by_namespace: Mutex::default(),
            left: Mutex::default(),
        }
    }

    /// The number of channels with subscribers.
    pub(crate) fn len(&self) -> usize {
        lock(&self.by_namespace).values().sum()
    }

    /// The number of a namespace's channels with subscribers.
    pub(crate) fn len_of(&self, namespace: &str) -> usize {
        lock(&self.by_namespace).get(namespace).copied().unwrap_or(0)
    }

    /// The number of a channel's subscribers.
    pub(crate) fn subscribers(&self, channel: &str) -> usize {
        self.channels.lock(channel).get(channel).map_or(0, |channel| channel.subscribers.len())
    }

    pub(crate) fn contains(&self, channel: &str) -> bool {
        self.channels.lock(channel).contains_key(channel)
    }

    /// The channels without subscribers that count.
    pub(crate) fn left(&self) -> MutexGuard<'_, Left> {
        lock(&self.left)
    }

    /// Counts a channel that `publisher` publishes into until this time. If it does not count, or its owner has not subscribed, it will
    /// count to the first of these that `admits`: some of the subscribers, and the publisher. If there is none, it counts as before. The
    /// argument of `admits` is whether the channel has subscribers. Returns whether it counts.
    pub(crate) fn count_until(
        &self,
        channel: &str,
        publisher: &Client,
        [now, until]: [Duration; 2],
        admits: impl Fn(&Left, &Owner, bool) -> bool,
    ) -> bool {
        let mut shard = self.channels.lock(channel);
        if let Some(Channel { subscribers, counted, owner_key, .. }) = shard.get_mut(channel) {
            let subscriber = |key: usize| Some((key, Owner::of(&subscribers.get(key)?.client)));
            if let Some(counted) = counted
                && counted.until > now
                && subscriber(*owner_key).is_some_and(|(_, owner)| owner == counted.owner)
            {
                counted.until = until;
                return true;
            }
            let mut left = self.left();
            let known = counted.take();
            if let Some(known) = &known {
                left.release(channel, &known.owner);
            }
            // Vacant keys are looked at as well: many subscribers may have left.
            let (first, len) = (*owner_key, subscribers.keys_end());
            let keys = (first..len).chain(0..first).take(KEYS_PER_SEARCH);
            let next = (first + KEYS_PER_SEARCH) % len;
            let mut owners = keys.filter_map(subscriber).chain([(next, Owner::of(publisher))]);
            let chosen = owners.find(|(_, owner)| admits(&left, owner, true));
            let known = known.filter(|known| known.until > now).map(|known| (next, known.owner));
            *owner_key = next;
            let Some((key, owner)) = chosen.or(known) else { return false };
            *owner_key = key;
            left.charge(channel, &owner);
            *counted = Some(Box::new(Counted { until, owner }));
        } else {
            let mut left = self.left();
            if let Some(known) = left.until(channel).filter(|known| **known > now) {
                *known = until;
                return true;
            }
            if let Some(ended) = left.take(channel) {
                left.release(channel, &ended.owner);
            }
            let owner = Owner::of(publisher);
            if !admits(&left, &owner, false) {
                return false;
            }
            left.charge(channel, &owner);
            left.insert(channel, Counted { until, owner });
        }
        true
    }

    /// Ends what no longer counts, once a second at most.
    pub(crate) fn sweep(&self, now: Duration) {
        if !self.left().sweep(now) {
            return;
        }
        for mut shard in self.channels.each() {
            for (name, channel) in shard.iter_mut() {
                if let Some(counted) = channel.counted.take_if(|counted| counted.until <= now) {
                    self.left().release(name, &counted.owner);
                }
            }
        }
    }

    /// The channels and their numbers of subscribers. One shard is collected at a time, and is unlocked before its
    /// channels are returned.
    pub(crate) fn list(&self) -> impl Iterator<Item = (Arc<str>, usize)> {
        self.channels.each().flat_map(|shard| {
            let each = shard.iter().map(|(name, channel)| (name.clone(), channel.subscribers.len()));
            each.collect::<Vec<_>>()
        })
    }

    /// Adds a subscriber that does not receive anything yet. `has_deltas`: it will receive deltas. Returns the channel's name and the
    /// subscriber's key.
    pub(crate) fn add(&self, channel: &str, client: Arc<Client>, has_deltas: bool) -> (Arc<str>, usize) {
        let mut shard = self.channels.lock(channel);
        let known = shard.get_key_value(channel).map(|(name, _)| name.clone());
        let name = known.unwrap_or_else(|| {
            *lock(&self.by_namespace).entry(namespace_of(channel).to_owned()).or_default() += 1;
            channel.into()
        });
        let new = || Channel { counted: lock(&self.left).take(channel).map(Box::new), ..Channel::default() };
        let Channel { subscribers, .. } = shard.entry(name.clone()).or_insert_with(new);
        let key = subscribers.insert(Subscriber {
            client,
            phase: Phase::Recovering(None),
            join_leave: false,
            deltas: if has_deltas { Deltas::NoBase } else { Deltas::No },
            filter: None,
        });
        (name, key)
    }

    /// Sends `first`, the reply to the subscribe command with the recovered publications, and then all further publications. All are
    /// encoded before: this locks the channel, and all others of its shard. Those that waited are to be written. The subscriber must not
    /// have been removed: its key may belong to another one then.
    pub(crate) fn start(
        &self,
        channel: &str,
        key: usize,
        start: Start,
        first: Vec<PreparedMessage>,
        on_slow: OnSlow<'_>,
        later: &mut Later,
    ) -> (Started, Unwritten) {
        let mut unwritten = Unwritten::default();
        let mut shard = self.channels.lock(channel);
        let Some((epoch, subscriber)) = shard
            .get_mut(channel)
            .and_then(|channel| Some((&mut channel.epoch, channel.subscribers.get_mut(key)?)))
        else {
            return (Started::Following, unwritten);
        };
        subscriber.join_leave = start.join_leave;
        subscriber.deltas = start.deltas;
        subscriber.filter = start.filter;
        first.into_iter().for_each(|reply| subscriber.client.outbox.reply(reply, later));
        let needs_history = start.position.is_some();
        let phase = start.position.map_or(Phase::Live, |position| {
            let known = epoch.take().filter(|known| **known == position.epoch);
            let epoch = epoch.insert(known.unwrap_or_else(|| Arc::new(position.epoch))).clone();
            Phase::Positioned { offset: position.offset, epoch }
        });
        let waiting = match std::mem::replace(&mut subscriber.phase, phase) {
            Phase::Recovering(waiting) => waiting,
            Phase::Lost if needs_history => {
                subscriber.phase = Phase::Gap;
                return (Started::Gap, unwritten);
            }
            Phase::Lost | Phase::Live | Phase::Positioned { .. } | Phase::Gap => {
                return (Started::Following, unwritten);
            }
        };
        // A publication that arrived while the history was read may already be part of it.
        let mut has_gap = false;
        let kept = waiting.map(|mut waiting| std::mem::take(&mut waiting.kept)).unwrap_or_default();
        for Kept { epoch, previous, publication, message } in kept {
            match subscriber.follow(&publication, &epoch, previous, |_, _| message, on_slow, later) {
                Forwarded::Gap => {
                    has_gap = true;
                    break;
                }
                Forwarded::Unwritten => unwritten.push(subscriber.client.clone()),
                Forwarded::Done => {}
            }
        }
        (if has_gap { Started::Gap } else { Started::Following }, unwritten)
    }

    /// Removes a subscriber.
    pub(crate) fn remove(&self, channel: &str, key: usize) {
        // Dropped after the unlock: the channel may have a burst, for which publishers wait.
        let (_left, mut removed);
        let mut shard = self.channels.lock(channel);
        let Some(Channel { subscribers, .. }) = shard.get_mut(channel) else { return };
        _left = subscribers.remove(key);
        if subscribers.len() == 0 {
            removed = shard.remove(channel);
            let Some(removed) = &mut removed else { return };
            if let Some(counted) = removed.counted.take() {
                lock(&self.left).insert(channel, *counted);
            }
            let mut by_namespace = lock(&self.by_namespace);
            if let Some(len) = by_namespace.get_mut(namespace_of(channel)) {
                *len -= 1;
                if *len == 0 {
                    by_namespace.remove(namespace_of(channel));
                }
            }
        }
    }

    /// Handles the removal of a history: returns every subscriber that follows it. Subscribers that are reading it will
    /// not start.
    pub(crate) fn lose_history(&self, channel: &str) -> Lost {
        let mut shard = self.channels.lock(channel);
        let Some(Channel { subscribers, latest, .. }) = shard.get_mut(channel) else { return Lost::new() };
        *latest = None;
        let mut lost = Lost::new();
        for subscriber in subscribers.iter_mut() {
            match subscriber.phase {
                Phase::Recovering(_) => subscriber.phase = Phase::Lost,
                Phase::Positioned { .. } => {
                    subscriber.phase = Phase::Gap;
                    lost.push(subscriber.client.clone());
                }
                Phase::Lost | Phase::Live | Phase::Gap => {}
            }
        }
        lost
    }

    /// Whether a channel has subscribers without a position. Those whose history is being read may be some.
    pub(crate) fn has_unpositioned(&self, channel: &str) -> bool {
        let shard = self.channels.lock(channel);
        let mut subscribers = shard.get(channel).into_iter().flat_map(|channel| channel.subscribers.iter());
        subscribers.any(|subscriber| match subscriber.phase {
            Phase::Recovering(_) | Phase::Lost | Phase::Live => true,
            Phase::Positioned { .. } | Phase::Gap => false,
        })
    }

    /// Whether the subscriber with this key has missed a publication.
    pub(crate) fn has_gap(&self, channel: &str, key: usize) -> bool {
        let shard = self.channels.lock(channel);
        let subscriber = shard.get(channel).and_then(|channel| channel.subscribers.get(key));
        subscriber.is_some_and(|subscriber| matches!(subscriber.phase, Phase::Gap))
    }

    /// Announces a client that joined or left to the subscribers that asked for it. Returns those whose messages are to be written.
    pub(crate) fn announce(&self, channel: &str, membership: &Membership, on_slow: OnSlow<'_>) -> Unwritten {
        let (mut unwritten, mut later) = (Unwritten::default(), Later::default());
        let shard = self.channels.lock(channel);
        let Some(Channel { subscribers, .. }) = shard.get(channel) else { return unwritten };
        let mut push = Push { channel: channel.into(), ..Push::default() };
        let whose = match membership {
            Membership::Join(info) => {
                push.join = Some(Join { info: Some(info.clone()) });
                &info.client
            }
            Membership::Leave(info) => {
                push.leave = Some(Leave { info: Some(info.clone()) });
                &info.client
            }
        };
        let whose = Uuid::parse(whose);
        let reply = Reply { push: Some(push), ..Reply::default() };
        let mut shared = Shared::default();
        for subscriber in subscribers.iter() {
            if subscriber.join_leave
                && Some(subscriber.client.id) != whose
                && let Some(message) = shared.get(subscriber.client.format(), || reply.clone())
            {
                match subscriber.client.outbox.publish(message, true, &mut later) {
                    Pushed::Unwritten => unwritten.push(subscriber.client.clone()),
                    Pushed::Overflowed => on_slow(Pushed::Overflowed),
                    Pushed::Queued | Pushed::Dropped | Pushed::Ended => {}
                }
            }
        }
        unwritten
    }
}

impl Subscriber {
    fn has_deltas(&self) -> bool {
        self.deltas != Deltas::No
    }

    /// Forwards a publication of the history with this epoch, unless the subscriber already has it.
    fn follow(
        &mut self,
        publication: &Publication,
        epoch: &str,
        previous: u64,
        message: impl FnOnce(Format, Payload) -> PreparedMessage,
        on_slow: OnSlow<'_>,
        later: &mut Later,
    ) -> Forwarded {
        let offset = publication.offset;
        let mut follows = false;
        let may_drop = match &mut self.phase {
            // The reply to its command, or the end of the subscription, will inform the client.
            Phase::Recovering(_) | Phase::Lost | Phase::Gap => return Forwarded::Done,
            Phase::Positioned { offset: reached, epoch: own } if offset > 0 => {
                let is_same = **own == epoch;
                if is_same && offset <= *reached {
                    return Forwarded::Done;
                }
                if !is_same || previous > *reached {
                    self.phase = Phase::Gap;
                    return Forwarded::Gap;
                }
                follows = *reached == previous;
                *reached = offset;
                false
            }
            Phase::Live | Phase::Positioned { .. } => true,
        };
        if self.filter.as_ref().is_some_and(|filter| !filter.fits(&publication.tags)) {
            return Forwarded::Done;
        }
        let payload = self.deltas.next(offset > 0, follows);
        match self.client.outbox.publish(message(self.client.format(), payload), may_drop, later) {
            Pushed::Unwritten => Forwarded::Unwritten,
            Pushed::Queued | Pushed::Ended => Forwarded::Done,
            pushed @ (Pushed::Dropped | Pushed::Overflowed) => {
                on_slow(pushed);
                Forwarded::Done
            }
        }
    }
}

impl Deltas {
    /// The form of a publication for a subscriber whose base is not known yet.
    fn without_base(self) -> Payload {
        if self == Self::No { Payload::Plain } else { Payload::Whole }
    }

    /// The form of the next publication. `follows`: the subscriber has the previous one.
    fn next(&mut self, has_offset: bool, follows: bool) -> Payload {
        let payload = match self {
            Self::No => return Payload::Plain,
            Self::Following if has_offset && follows => Payload::Delta,
            Self::NoBase | Self::Following => Payload::Whole,
        };
        // Clients apply a delta to the publication that they received last, even if that is in no history.
        *self = if has_offset { Self::Following } else { Self::NoBase };
        payload
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Wake, Waker};

    use super::*;
    use crate::client::Transport;
    use crate::config::SlowPolicy;
    use crate::outbox::Outbox;
    use crate::protocol::ClientInfo;

    fn client() -> Arc<Client> {
        let outbox = Outbox::new(1 << 20, SlowPolicy::Disconnect);
        Arc::new(Client::new(Transport::WebSocket(Encoding::Json), None, None, outbox))
    }

    fn publish(
        channels: &Channels,
        channel: &str,
        epoch: &str,
        previous: u64,
        publication: &Arc<Publication>,
    ) {
        channels.append(channel, epoch, previous, publication);
        let _ = channels.fan_out(channel, &|_| {});
    }

    /// A waker that uses the channel: an executor may poll what it wakes at once.
    struct Using(Arc<Channels>);

    impl Wake for Using {
        fn wake(self: Arc<Self>) {
            assert_eq!(self.0.subscribers("x"), 1);
        }
    }

    #[test]
    fn tasks_are_woken_while_no_channel_is_locked() {
        let (woken, waking) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let channels = Arc::new(Channels::new());
            let waker = Waker::from(Arc::new(Using(channels.clone())));
            // One that has no room for a second publication, and is ended.
            let outbox = Outbox::new(1, SlowPolicy::Disconnect);
            let client = Arc::new(Client::new(Transport::WebSocket(Encoding::Json), None, None, outbox));
            let wait = |step| {
                let mut taken = Vec::new();
                while client.outbox.poll_take(&mut Context::from_waker(&waker), &mut taken).is_ready() {}
                assert_eq!(taken.len(), 1, "{step}");
            };
            let (_, key) = channels.add("x", client.clone(), false);
            assert!(client.outbox.poll_take(&mut Context::from_waker(&waker), &mut Vec::new()).is_pending());
            let start = Start { join_leave: true, ..Start::default() };
            let _ = channels.start(
                "x",
                key,
                start,
                vec![PreparedMessage::text("1")],
                &|_| {},
                &mut Later::default(),
            );
            wait("a reply");
            let publication = Arc::new(Publication { data: "1".into(), ..Publication::default() });
            publish(&channels, "x", "", 0, &publication);
            wait("a publication");
            let info = ClientInfo::default();
            let _ = channels.announce("x", &Membership::Join(info), &|_| {});
            wait("a join");
            channels.append("x", "", 0, &publication);
            channels.append("x", "", 0, &publication);
            let _ = channels.fan_out("x", &|_| {});
            assert!(client.outbox.has_ended());
            woken.send(()).unwrap();
        });
        waking.recv_timeout(Duration::from_secs(60)).expect("no lock is held");
    }

    /// As much is kept as the send queue takes then.
    #[test]
    fn publications_that_wait_are_bounded_by_their_length() {
        for (len, count) in [(1, 5_000), (500_000, 2), (2 << 20, 1)] {
            for more in [0, 1] {
                let (channels, client) = (Channels::new(), client());
                let (_, key) = channels.add("x", client.clone(), false);
                for number in 0..count + more {
                    let (data, offset) = (vec![b'1'; len].into(), number + 1);
                    let publication = Arc::new(Publication { data, offset, ..Publication::default() });
                    publish(&channels, "x", "", number, &publication);
                }
                let start = Start { position: Some(Position::default()), ..Start::default() };
                let (started, _) =
                    channels.start("x", key, start, Vec::new(), &|_| {}, &mut Later::default());
                let is_complete = more == 0 || len == 1;
                let expected = if is_complete { Started::Following } else { Started::Gap };
                assert_eq!((started, client.outbox.has_ended()), (expected, false), "{len} {more}");
            }
        }
    }

    /// The history may have been removed before or after it was read.
    #[test]
    fn a_publication_that_was_kept_belongs_to_the_history_that_was_read() {
        for (epoch, offset, expected) in [
            ("a", 0, Started::Following),
            ("a", 1, Started::Following),
            ("a", 2, Started::Following),
            ("b", 0, Started::Gap),
            ("b", 1, Started::Gap),
            ("b", 2, Started::Gap),
        ] {
            let (channels, client) = (Channels::new(), client());
            let (_, key) = channels.add("x", client.clone(), false);
            let publication = Publication { data: "1".into(), offset: 1, ..Publication::default() };
            publish(&channels, "x", "a", 0, &Arc::new(publication));
            let position = Some(Position { offset, epoch: epoch.into() });
            let start = Start { position, ..Start::default() };
            let (started, _) = channels.start("x", key, start, Vec::new(), &|_| {}, &mut Later::default());
            assert_eq!(started, expected, "{epoch} {offset}");
            assert_eq!(client.outbox.backlog().queued > 0, (epoch, offset) == ("a", 0));
        }
    }

    #[test]
    fn publications_that_wait_are_bounded_for_all_subscriptions_of_a_client_together() {
        let channels = Channels::new();
        let [waiting, other] = [client(), client()];
        let publish = |channel: &str| {
            let publication =
                Publication { data: vec![b'1'; 600_000].into(), offset: 1, ..Publication::default() };
            publish(&channels, channel, "", 0, &Arc::new(publication));
        };
        let add = |channel: &str, client: &Arc<Client>| {
            let (_, key) = channels.add(channel, client.clone(), false);
            publish(channel);
            key
        };
        let start = |channel: &str, client: &Arc<Client>, key| {
            let start = Start { position: Some(Position::default()), ..Start::default() };
            let (started, _) =
                channels.start(channel, key, start, Vec::new(), &|_| {}, &mut Later::default());
            let _ = client.outbox.poll_take(&mut Context::from_waker(Waker::noop()), &mut Vec::new());
            started
        };
        let keys = ["a", "b"].map(|channel| add(channel, &waiting));
        let others = add("c", &other);
        assert_eq!(start("b", &waiting, keys[1]), Started::Gap);
        assert_eq!(start("a", &waiting, keys[0]), Started::Following);
        assert_eq!(start("c", &other, others), Started::Following);
        // A publication frees its room when it is sent, removed or lost.
        channels.remove("d", add("d", &waiting));
        add("e", &waiting);
        channels.lose_history("e");
        let key = add("f", &waiting);
        assert_eq!(start("f", &waiting, key), Started::Following);
        assert!(!waiting.outbox.has_ended());
    }

    #[test]
    fn a_subscriber_without_a_position_is_known() {
        let channels = Channels::new();
        let add = |position: Option<Position>| {
            let client = client();
            let (_, key) = channels.add("x", client.clone(), false);
            assert!(channels.has_unpositioned("x"), "its history is being read");
            let start = Start { position, ..Start::default() };
            let _ = channels.start("x", key, start, Vec::new(), &|_| {}, &mut Later::default());
            key
        };
        assert!(!channels.has_unpositioned("x"));
        add(Some(Position::default()));
        assert!(!channels.has_unpositioned("x"));
        let without = add(None);
        assert!(channels.has_unpositioned("x"));
        channels.lose_history("x");
        assert!(channels.has_unpositioned("x"));
        channels.remove("x", without);
        assert!(!channels.has_unpositioned("x"));
    }

    #[test]
    fn subscribers_of_a_history_share_its_epoch() {
        // Memory of each subscriber of a channel.
        assert_eq!(size_of::<Option<Subscriber>>(), 48);
        let channels = Channels::new();
        let start = |epoch: &str| {
            let client = client();
            let (_, key) = channels.add("x", client.clone(), false);
            let start =
                Start { position: Some(Position { offset: 1, epoch: epoch.into() }), ..Start::default() };
            assert_eq!(
                channels.start("x", key, start, Vec::new(), &|_| {}, &mut Later::default()).0,
                Started::Following
            );
        };
        ["a", "a", "b", "a", "a"].into_iter().for_each(start);
        let shard = channels.channels.lock("x");
        let epochs = shard["x"].subscribers.iter().map(|subscriber| match &subscriber.phase {
            Phase::Positioned { epoch, .. } => epoch.clone(),
            other => panic!("{other:?}"),
        });
        let epochs: Vec<_> = epochs.collect();
        assert_eq!(epochs.iter().map(|epoch| epoch.as_str()).collect::<Vec<_>>(), ["a", "a", "b", "a", "a"]);
        let pairs = epochs.windows(2).map(|pair| Arc::ptr_eq(&pair[0], &pair[1]));
        assert_eq!(pairs.collect::<Vec<_>>(), [true, false, false, true]);
    }

    #[test]
    fn publications_that_wait_are_encoded_once() {
        let channels = Channels::new();
        let clients = [client(), client()];
        let keys = clients.each_ref().map(|client| channels.add("x", client.clone(), false).1);
        let publication = Arc::new(Publication { data: "1".into(), ..Publication::default() });
        publish(&channels, "x", "", 0, &publication);
        let sent = [0, 1].map(|number| {
            let (client, key) = (&clients[number], keys[number]);
            let _ = channels.start("x", key, Start::default(), Vec::new(), &|_| {}, &mut Later::default());
            let mut messages = Vec::new();
            let taken = client.outbox.poll_take(&mut Context::from_waker(Waker::noop()), &mut messages);
            assert!(taken.is_ready());
            messages.pop().unwrap()
        });
        assert_eq!(sent[0].as_bytes().as_ptr(), sent[1].as_bytes().as_ptr());
    }
}
