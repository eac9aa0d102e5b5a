//! Publications of a channel are collected until the publishing tasks yield, and forwarded together: each subscriber is visited once.
//!
//! ```text
//! append() -> Burst -> fan_out(): for each subscriber -+-> a Run, which those share that receive all of it
//!                                                      '-> one publication after the other
//! ```
//!
//! A burst is forwarded before the subscribers of its channel change, or are sent something else.

use std::sync::{Arc, Weak};

use wireloom::PreparedMessage;

use super::{Channel, Channels, Forwarded, Kept, Latest, Lost, OnSlow, Phase, Subscriber, Waiting};
use crate::batch::Unwritten;
use crate::budget::{COSTLY_PER_UNIT, VISITS_PER_UNIT};
use crate::client::Format;
use crate::encoded::{self, Encoded, Payload, Shared};
use crate::outbox::{Later, Pushed, Run};
use crate::protocol::Publication;
use crate::undelivered::{Load, Place, Undelivered};

/// The length of a burst, in publications, at which it is forwarded at once.
const BURST_MAX: usize = 64;

/// The length of its payloads, in bytes, at which it is forwarded at once.
const BURST_LEN_MAX: usize = 128 << 10;

/// The number of deliveries at which it is forwarded at once: as many as a publisher may ask for in one turn.
const DELIVERIES_MAX: usize = 256 << 10;

/// The same for subscribers for which each publication is filtered or compared: the lock of the channel is held meanwhile.
const COSTLY_MAX: usize = 4 << 10;

/// Publications that are to be forwarded together.
#[derive(Debug)]
pub(super) struct Burst {
    published: Vec<Published>,
    size: Size,
    load: Load,
}

/// The number and the length of the publications of a burst.
#[derive(Debug, Default)]
struct Size {
    count: usize,
    len: usize,
}

impl Size {
    fn add(&mut self, len: usize) {
        self.count += 1;
        self.len += len;
    }

    /// Whether the burst is forwarded at once.
    fn is_full(&self, subscribers: usize, costly: usize) -> bool {
        self.count >= BURST_MAX
            || self.len >= BURST_LEN_MAX
            || self.count * subscribers >= DELIVERIES_MAX
            || self.count * costly >= COSTLY_MAX
    }
}

/// Room for a publication, until this is dropped.
#[derive(Debug)]
pub(crate) struct Room {
    /// That of all publications of a burst which is expected, or its own.
    _place: Arc<Place>,
    _later: Option<Load>,
}

/// The publications of a channel that have room or wait for it, and of which the engine has delivered none yet: it is expected to deliver
/// them together, so that they are one burst.
#[derive(Debug)]
pub(super) struct Expected {
    place: Weak<Place>,
    size: Size,
}

impl Expected {
    /// Adds a publication, to another burst if this one is full or does not exist any more. Returns its place, and whether it is the first.
    fn join(
        expected: &mut Option<Box<Self>>,
        len: usize,
        subscribers: usize,
        costly: usize,
        undelivered: &Arc<Undelivered>,
    ) -> (Arc<Place>, bool) {
        if let Some(known) = expected.as_mut().filter(|known| !known.size.is_full(subscribers, costly))
            && let Some(place) = known.place.upgrade()
        {
            known.size.add(len);
            return (place, false);
        }
        let place = undelivered.reserve(subscribers);
        *expected = Some(Box::new(Self { place: Arc::downgrade(&place), size: Size { count: 1, len } }));
        (place, true)
    }
}

#[derive(Clone, Debug)]
struct Published {
    epoch: Arc<str>,
    previous: u64,
    publication: Arc<Publication>,
}

impl Burst {
    fn new(load: Load) -> Self {
        Self { published: Vec::new(), size: Size::default(), load }
    }
}

/// The outcome of adding a publication to the burst of a channel.
#[derive(Debug)]
pub(crate) enum Appended {
    /// The caller has nothing to do: there are no subscribers, or the burst is due already.
    Done,
    /// It is the first one: the burst of this channel is due when the publishing task yields.
    First(Arc<str>),
    /// The burst is to be forwarded now.
    Full,
}

/// A publication of a burst, and its encodings.
struct Forwarding<'a> {
    epoch: &'a Arc<str>,
    previous: u64,
    encoded: Encoded<'a>,
}

/// A burst that is being forwarded.
struct Forwarder<'a> {
    all: Vec<Forwarding<'a>>,
    /// All of it, for each format, and whether it may be dropped.
    runs: Vec<(Format, bool, Arc<Run>)>,
    /// Whether each publication has an offset and follows the one before.
    is_chain: bool,
    lost: Lost,
    unwritten: Unwritten,
}

/// The deltas of a publication, and what they are between.
struct Delta {
    base: Arc<Publication>,
    publication: Arc<Publication>,
    encoded: Shared,
}

impl Published {
    /// The base of its deltas: the publication before, if that precedes it in its history.
    fn base<'a>(&self, before: Option<(&str, &'a Arc<Publication>)>) -> Option<&'a Arc<Publication>> {
        let precedes = |(epoch, base): &(&str, &Arc<Publication>)| {
            base.offset == self.previous && *epoch == &*self.epoch
        };
        before.filter(precedes).map(|(_, base)| base)
    }
}

impl Channels {
    /// Waits until a publication of this length may be given to the engine: while too much of what was published is to be written, those
    /// wait that would begin a burst. The caller keeps the room until the engine has answered. A burst counts again when it is delivered, so
    /// that those which the engine delivers in several parts are more than was expected. `is_immediate`: the engine delivers the publication
    /// before it answers, so that it joins a burst that has begun.
    pub(crate) async fn room(&self, channel: &str, len: usize, is_immediate: bool) -> Option<Room> {
        let (place, is_first, subscribers) = {
            let mut shard = self.channels.lock(channel);
            let Channel { subscribers, expected, burst, costly, .. } = shard.get_mut(channel)?;
            let subscribers = subscribers.len();
            if is_immediate && burst.is_some() {
                return None;
            }
            let (place, is_first) = if is_immediate {
                // Its publisher may forward the burst at once, and so may the next one.
                (self.undelivered.reserve(subscribers), true)
            } else {
                Expected::join(expected, len, subscribers, *costly, &self.undelivered)
            };
            (place, is_first, subscribers)
        };
        self.undelivered.wait(&place, subscribers).await;
        let later = (!is_first).then(|| {
            let mut later = Load::new(&self.undelivered, 0);
            later.add_later(subscribers);
            later
        });
        Some(Room { _place: place, _later: later })
    }

    /// Adds a publication to the burst of its channel.
    pub(crate) fn append(
        &self,
        channel: &str,
        epoch: &str,
        previous: u64,
        publication: &Arc<Publication>,
    ) -> Appended {
        // Dropped after the unlock: publishers wait for it.
        let place;
        let mut shard = self.channels.lock(channel);
        let Some(Channel { burst, subscribers, costly, expected, .. }) = shard.get_mut(channel) else {
            return Appended::Done;
        };
        // Later publications are delivered after those that have room now.
        place = expected.as_ref().and_then(|expected| expected.place.upgrade());
        if place.as_ref().is_none_or(|place| place.initialized()) {
            *expected = None;
        }
        let is_first = burst.is_none();
        if let Some(burst) = burst {
            burst.load.add_later(subscribers.len());
        }
        let load = || Load::new(&self.undelivered, subscribers.len());
        let burst = burst.get_or_insert_with(|| Box::new(Burst::new(load())));
        burst.size.add(publication.data.len());
        burst.published.push(Published { epoch: epoch.into(), previous, publication: publication.clone() });
        if burst.size.is_full(subscribers.len(), *costly) {
            return Appended::Full;
        }
        match shard.get_key_value(channel) {
            Some((name, _)) if is_first => Appended::First(name.clone()),
            _ => Appended::Done,
        }
    }

    /// Forwards the burst of a channel to all subscribers. Returns those that missed a publication, and those whose messages are to be
    /// written.
    pub(crate) fn fan_out(&self, channel: &str, on_slow: OnSlow<'_>) -> (Lost, Unwritten) {
        let mut later = Later::default();
        let mut shard = self.channels.lock(channel);
        let mut deltas = Vec::new();
        if let Some((latest, published)) = needs_deltas(shard.get(channel)) {
            // Another task may forward the burst meanwhile, or add to it.
            drop(shard);
            deltas = make_deltas(channel, &latest, &published);
            shard = self.channels.lock(channel);
        }
        let Some(Channel { subscribers, latest, burst, costly, .. }) = shard.get_mut(channel) else {
            return Default::default();
        };
        let Some(burst) = burst.take() else { return Default::default() };
        let mut fan_out = Forwarder::new(channel, latest.as_deref(), &burst, deltas);
        let mut has_deltas = false;
        *costly = 0;
        for subscriber in subscribers.iter_mut() {
            *costly += usize::from(subscriber.filter.is_some() || subscriber.has_deltas());
            has_deltas |= fan_out.forward(subscriber, on_slow, &mut later);
        }
        let encoded: usize = fan_out.all.iter().map(|one| one.encoded.cost()).sum();
        let visits = subscribers.len() / VISITS_PER_UNIT + *costly * burst.published.len() / COSTLY_PER_UNIT;
        fan_out.unwritten.charge(encoded + visits);
        let Forwarder { all, lost, mut unwritten, .. } = fan_out;
        let last = all.into_iter().rfind(|one| one.encoded.publication.offset > 0);
        let encodings = last.map(|last| last.encoded.delta_encodings).unwrap_or_default();
        let Burst { published, load, .. } = *burst;
        unwritten.hold(load);
        if !has_deltas {
            *latest = None;
        } else if let Some(last) = published.into_iter().rfind(|one| one.publication.offset > 0) {
            *latest = Some(Box::new(Latest { epoch: last.epoch, publication: last.publication, encodings }));
        }
        (lost, unwritten)
    }
}

/// The burst of a channel, and what was published before, if the last ones were sent as deltas.
fn needs_deltas(channel: Option<&Channel>) -> Option<(Box<Latest>, Vec<Published>)> {
    let Channel { latest, burst, .. } = channel?;
    let (latest, burst) = (latest.as_ref()?, burst.as_ref()?);
    (!latest.encodings.is_empty()).then(|| (latest.clone(), burst.published.clone()))
}

/// Makes the deltas of a burst while its channel is not locked: that takes as long as the publications are.
fn make_deltas(channel: &str, latest: &Latest, published: &[Published]) -> Vec<Delta> {
    let mut before = Some((&*latest.epoch, &latest.publication));
    let mut deltas = Vec::new();
    for one in published {
        let publication = &one.publication;
        if let Some(base) = one.base(before) {
            let encoded = encoded::deltas(channel, base, publication, &latest.encodings);
            deltas.push(Delta { base: base.clone(), publication: publication.clone(), encoded });
        }
        if publication.offset > 0 {
            before = Some((&*one.epoch, publication));
        }
    }
    deltas
}

impl<'a> Forwarder<'a> {
    fn new(channel: &'a str, latest: Option<&'a Latest>, burst: &'a Burst, deltas: Vec<Delta>) -> Self {
        let mut deltas = deltas.into_iter().peekable();
        let mut all: Vec<Forwarding<'a>> = Vec::with_capacity(burst.published.len());
        let mut base = latest.map(|latest| (&*latest.epoch, &latest.publication));
        let mut is_chain = true;
        for one @ Published { epoch, previous, publication } in &burst.published {
            let known = one.base(base);
            let is_made = |delta: &Delta| {
                Arc::ptr_eq(&delta.publication, publication)
                    && known.is_some_and(|known| Arc::ptr_eq(&delta.base, known))
            };
            let made = deltas.next_if(is_made).map(|delta| delta.encoded);
            let follows = all
                .last()
                .is_none_or(|before| before.encoded.publication.offset == *previous && before.epoch == epoch);
            is_chain &= publication.offset > 0 && follows;
            if publication.offset > 0 {
                base = Some((&**epoch, publication));
            }
            let encoded = Encoded::new(channel, known.map(|known| &**known), publication, made);
            all.push(Forwarding { epoch, previous: *previous, encoded });
        }
        Self { all, runs: Vec::new(), is_chain, lost: Lost::new(), unwritten: Unwritten::default() }
    }

    /// Forwards the burst to a subscriber. Returns whether that has deltas.
    fn forward(&mut self, subscriber: &mut Subscriber, on_slow: OnSlow<'_>, later: &mut Later) -> bool {
        if let Some(pushed) = self.forward_run(subscriber) {
            if pushed == Pushed::Unwritten {
                self.unwritten.push(subscriber.client.clone());
            }
            return false;
        }
        let mut has_deltas = false;
        for Forwarding { epoch, previous, encoded } in &mut self.all {
            if let Phase::Recovering(waiting) = &mut subscriber.phase {
                let message = encoded.get(subscriber.client.format(), subscriber.deltas.without_base());
                let client = &subscriber.client;
                let waiting = waiting.get_or_insert_with(|| Box::new(Waiting::new(client.clone())));
                let publication = encoded.publication.clone();
                let epoch = Arc::clone(epoch);
                if waiting.keep(Kept { epoch, previous: *previous, publication, message }) {
                    continue;
                }
                subscriber.phase = Phase::Lost;
            }
            has_deltas |= subscriber.has_deltas();
            let publication = encoded.publication;
            let message = |format, payload| encoded.get(format, payload);
            match subscriber.follow(publication, epoch, *previous, message, on_slow, later) {
                Forwarded::Gap => {
                    self.lost.push(subscriber.client.clone());
                    break;
                }
                Forwarded::Unwritten => self.unwritten.push(subscriber.client.clone()),
                Forwarded::Done => {}
            }
        }
        has_deltas
    }

    /// Forwards the whole burst at once to a subscriber that receives all of it as it was published. Otherwise, or if not all of it
    /// fits, returns `None`, and nothing was forwarded.
    fn forward_run(&mut self, subscriber: &mut Subscriber) -> Option<Pushed> {
        let [first, .., last] = &self.all[..] else { return None };
        if subscriber.has_deltas() || subscriber.filter.is_some() {
            return None;
        }
        let may_drop = match &subscriber.phase {
            Phase::Live => true,
            Phase::Positioned { offset, epoch } => {
                let follows = self.is_chain && *offset == first.previous && epoch.as_str() == &**first.epoch;
                if !follows {
                    return None;
                }
                false
            }
            Phase::Recovering(_) | Phase::Lost | Phase::Gap => return None,
        };
        let reached = last.encoded.publication.offset;
        let pushed = subscriber.client.outbox.publish_run(self.run(subscriber.client.format(), may_drop))?;
        if let Phase::Positioned { offset, .. } = &mut subscriber.phase {
            *offset = reached;
        }
        Some(pushed)
    }

    fn run(&mut self, format: Format, may_drop: bool) -> &Arc<Run> {
        let known = self.runs.iter().position(|(of, droppable, _)| (*of, *droppable) == (format, may_drop));
        let index = known.unwrap_or_else(|| {
            let messages = self.all.iter_mut().map(|one| one.encoded.get(format, Payload::Plain));
            let messages: Vec<PreparedMessage> = messages.collect();
            self.runs.push((format, may_drop, Arc::new(Run::new(messages, may_drop))));
            self.runs.len() - 1
        });
        &self.runs[index].2
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use wireloom::wireloom_ws::{Role, handshake::Negotiated};
    use wireloom::{Receiver, WebSocket, WebSocketConfig};
    use wireloom_testing::rng::{Rng, generators};

    use super::super::{Deltas, Start};
    use super::*;
    use crate::client::{Client, Transport};
    use crate::config::SlowPolicy;
    use crate::filter::{Filter, Test};
    use crate::history::Position;
    use crate::outbox::{Backlog, Outbox, Taken};
    use crate::protocol::Encoding;

    /// A subscriber whose batches are never written.
    struct Member {
        client: Arc<Client>,
        key: usize,
        start: Start,
        _receiver: Receiver,
    }

    /// The queue of a member, its messages, and whether it has ended.
    type Received = (Backlog, Vec<Vec<u8>>, bool);

    struct Room {
        channels: Channels,
        members: Vec<Member>,
        slow: Cell<usize>,
        lost: Vec<usize>,
    }

    fn poll_take(client: &Client, into: &mut Vec<PreparedMessage>) -> Poll<Taken> {
        client.outbox.poll_take(&mut Context::from_waker(Waker::noop()), into)
    }

    impl Room {
        fn new(rng: &mut Rng) -> Self {
            let channels = Channels::new();
            let members = (0..8).map(|_| {
                let transport = *rng.pick(&[
                    Transport::WebSocket(Encoding::Json),
                    Transport::WebSocket(Encoding::Protobuf),
                    Transport::UniWebSocket,
                    Transport::Room,
                ]);
                let policy =
                    *rng.pick(&[SlowPolicy::Disconnect, SlowPolicy::DropNewest, SlowPolicy::DropOldest]);
                let client = Client::new(transport, None, None, Outbox::new(rng.usize(100..2_000), policy));
                let client = Arc::new(client);
                let socket = WebSocket::from_transport(
                    tokio::io::duplex(1).0,
                    Role::Server,
                    Negotiated::default(),
                    None,
                    WebSocketConfig::default(),
                    &[],
                );
                let (sender, _receiver) = socket.split();
                client.outbox.open_to_batches(sender);
                assert!(poll_take(&client, &mut Vec::new()).is_pending());
                let position = rng.bool().then(|| Position { offset: rng.u64(..3), epoch: "e".into() });
                let has_deltas = position.is_some() && rng.bool();
                let filter = Filter::Tag { key: "t".into(), test: Test::Exists };
                let filter = (!has_deltas && rng.u8(..4) == 0).then(|| Box::new(filter));
                let deltas = if has_deltas { Deltas::NoBase } else { Deltas::No };
                let start = Start { position, deltas, filter, join_leave: false };
                let (_, key) = channels.add("x", client.clone(), has_deltas);
                Member { client, key, start, _receiver }
            });
            let members: Vec<_> = members.collect();
            let mut room = Self { channels, members, slow: Cell::new(0), lost: Vec::new() };
            // The others are recovering.
            (0..6).for_each(|member| room.start(member));
            room
        }

        fn start(&mut self, member: usize) {
            let Member { key, start, .. } = &self.members[member];
            let on_slow = |_| self.slow.set(self.slow.get() + 1);
            let _ =
                self.channels.start("x", *key, start.clone(), Vec::new(), &on_slow, &mut Later::default());
        }

        fn fan_out(&mut self) {
            let on_slow = |_| self.slow.set(self.slow.get() + 1);
            let (lost, _) = self.channels.fan_out("x", &on_slow);
            for client in lost {
                let member = self.members.iter().position(|one| Arc::ptr_eq(&one.client, &client)).unwrap();
                self.channels.remove("x", self.members[member].key);
                self.lost.push(member);
            }
        }

        fn finish(mut self) -> (Vec<Received>, usize, Vec<usize>) {
            (6..8).for_each(|member| self.start(member));
            self.lost.sort_unstable();
            let received = self.members.iter().map(|Member { client, .. }| {
                let backlog = client.outbox.backlog();
                let mut messages = Vec::new();
                while let Poll::Ready(Taken::Messages) = poll_take(client, &mut messages) {}
                let messages = messages.iter().map(|message| message.as_bytes().to_vec()).collect();
                (backlog, messages, client.outbox.has_ended())
            });
            (received.collect(), self.slow.get(), self.lost)
        }
    }

    fn publications(rng: &mut Rng) -> Vec<(&'static str, u64, Arc<Publication>)> {
        let mut offset = rng.u64(..3);
        let is_odd = rng.u8(..3) == 0;
        let all = (0..rng.usize(1..12)).map(|number| {
            let mut publication = Publication::default();
            publication.data = format!("\"{number} {}\"", "x".repeat(rng.usize(..100))).into();
            if rng.bool() {
                publication.tags.insert("t".into(), "1".into());
            }
            let odd = if is_odd { rng.u8(..8) } else { 8 };
            if odd == 0 {
                // It is in no history.
                return ("", 0, Arc::new(publication));
            }
            // One is missing, or is repeated.
            offset = if odd == 1 { offset + 1 } else { offset.saturating_sub(u64::from(odd == 2)) };
            offset += 1;
            publication.offset = offset;
            (if odd == 3 { "f" } else { "e" }, offset - 1, Arc::new(publication))
        });
        all.collect()
    }

    #[tokio::test]
    async fn a_burst_is_as_its_publications() {
        let (mut runs, mut lost) = (0, 0);
        for mut rng in generators(2_000) {
            let publications = publications(&mut rng);
            let ends: Vec<bool> = publications.iter().map(|_| rng.u8(..6) == 0).collect();
            let seed = rng.u64(..);
            let mut rooms = [0; 2].map(|_| Room::new(&mut Rng::with_seed(seed)));
            for ((epoch, previous, publication), is_end) in publications.iter().zip(ends) {
                for room in &mut rooms {
                    room.channels.append("x", epoch, *previous, publication);
                }
                rooms[0].fan_out();
                if is_end {
                    rooms[1].fan_out();
                }
            }
            rooms[1].fan_out();
            let [one, other] = rooms.map(Room::finish);
            assert_eq!(one, other, "{}", rng.seed());
            runs += usize::from(one.0.iter().any(|(_, messages, _)| messages.len() > 2));
            lost += one.2.len();
        }
        assert!(runs > 0 && lost > 0, "{runs} {lost}");
    }

    #[test]
    fn deltas_are_made_before_in_the_encodings_that_are_received() {
        let channels = Channels::new();
        let [json, protobuf] = [Encoding::Json, Encoding::Protobuf].map(|encoding| {
            let outbox = Outbox::new(1 << 20, SlowPolicy::Disconnect);
            let client = Arc::new(Client::new(Transport::WebSocket(encoding), None, None, outbox));
            let (_, key) = channels.add("x", client.clone(), true);
            let position = Some(Position { offset: 0, epoch: "e".into() });
            let start = Start { position, deltas: Deltas::NoBase, ..Start::default() };
            let _ = channels.start("x", key, start, Vec::new(), &|_| {}, &mut Later::default());
            key
        });
        let publish = |offset: u64| {
            let data = format!("\"{}{offset}\"", "x".repeat(100)).into();
            let publication = Arc::new(Publication { data, offset, ..Publication::default() });
            channels.append("x", "e", offset - 1, &publication);
            let _ = channels.fan_out("x", &|_| {});
            let shard = channels.channels.lock("x");
            let latest = shard["x"].latest.as_ref();
            latest.map(|latest| latest.encodings.clone())
        };
        assert_eq!(publish(1), Some(vec![]));
        assert_eq!(publish(2).unwrap().len(), 2);
        assert_eq!(publish(3).unwrap().len(), 2);
        channels.remove("x", protobuf);
        assert_eq!(publish(4), Some(vec![Encoding::Json]));
        channels.remove("x", json);
        assert!(channels.channels.lock("x").is_empty());
    }

    #[tokio::test]
    async fn publications_that_are_expected_together_share_room() {
        const TOGETHER: usize = DELIVERIES_MAX.div_ceil(5_000);
        let channels = Channels::new();
        let client = Client::new(Transport::Room, None, None, Outbox::new(1 << 20, SlowPolicy::Disconnect));
        let client = Arc::new(client);
        for channel in ["x", "y"] {
            (0..5_000).for_each(|_| drop(channels.add(channel, client.clone(), false)));
        }
        let cx = &mut Context::from_waker(Waker::noop());
        let publish = |channel| Box::pin(channels.room(channel, 1, false));
        let mut waiting: Vec<_> = (0..2 * TOGETHER).map(|_| publish("x")).collect();
        let mut rooms: Vec<_> = waiting.iter_mut().map(|one| one.as_mut().poll(cx)).collect();
        let is_ready =
            |rooms: &[Poll<Option<super::Room>>]| rooms.iter().filter(|room| room.is_ready()).count();
        assert_eq!(is_ready(&rooms), TOGETHER, "the next ones are another burst");
        let mut other = publish("y");
        assert!(other.as_mut().poll(cx).is_pending());
        rooms.clear();
        // The first of those that wait are given up: the rest keep their turn.
        waiting.drain(TOGETHER..2 * TOGETHER - 1);
        let mut last = waiting.remove(TOGETHER);
        let rooms = last.as_mut().poll(cx);
        assert!(rooms.is_ready() && other.as_mut().poll(cx).is_pending());
        // One has arrived: what is published from now on does not arrive with the rest.
        let publication = Arc::new(Publication::default());
        channels.append("x", "", 0, &publication);
        assert!(publish("x").as_mut().poll(cx).is_pending());
        assert!(
            matches!(pin!(channels.room("x", 1, true)).poll(cx), Poll::Ready(None)),
            "it joins the burst"
        );
        assert!(
            matches!(pin!(channels.room("z", 1, false)).poll(cx), Poll::Ready(None)),
            "nobody has subscribed"
        );
        drop((rooms, other));
        let _ = channels.fan_out("x", &|_| {});
        assert!(publish("x").as_mut().poll(cx).is_ready());
        // Those that the engine delivers at once are forwarded one by one, if each is followed by a reply.
        let publish_at_once = || Box::pin(channels.room("x", 1, true));
        let first = publish_at_once().as_mut().poll(cx);
        assert!(matches!(first, Poll::Ready(Some(_))));
        assert!(publish_at_once().as_mut().poll(cx).is_pending());
    }

    #[test]
    fn bursts_are_bounded() {
        let channels = Channels::new();
        let client = Client::new(Transport::Room, None, None, Outbox::new(1 << 20, SlowPolicy::Disconnect));
        let client = Arc::new(client);
        for (subscribers, len, count) in [
            (1, 0, BURST_MAX),
            (1, BURST_LEN_MAX, 1),
            (1, BURST_LEN_MAX / 4, 4),
            (16 << 10, 0, 16),
            (256 << 10, 0, 1),
        ] {
            while channels.subscribers("x") < subscribers {
                channels.add("x", client.clone(), false);
            }
            let publication =
                Arc::new(Publication { data: vec![b'1'; len].into(), ..Publication::default() });
            for number in 1..=count {
                let appended = channels.append("x", "", 0, &publication);
                match number {
                    _ if number == count => assert!(matches!(appended, Appended::Full)),
                    1 => assert!(matches!(appended, Appended::First(name) if &*name == "x")),
                    _ => assert!(matches!(appended, Appended::Done)),
                }
            }
            let _ = channels.fan_out("x", &|_| {});
        }
        let publication = Arc::new(Publication::default());
        assert!(matches!(channels.append("y", "", 0, &publication), Appended::Done), "nobody has subscribed");
    }
}
