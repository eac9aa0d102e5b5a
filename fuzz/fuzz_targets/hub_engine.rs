//! Any sequence of commands to the engines of the hub that need no server: histories are exactly what was published and is to be kept,
//! offsets rise by one, a position that was given out stays what it was, also when the file is opened again, and each delivery comes
//! once. The queue of events has what has ended and was not acknowledged, in its order, also what the process before left open. Memory and
//! disk give the same answers, apart from the names of epochs. With low limits, each gives up only what is over a limit: the oldest
//! publications of a channel, and the least recently used channels without subscribers.

#![no_main]

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, LazyLock, Mutex, Weak};
use std::time::Duration;

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use tokio::runtime::{Builder, Runtime};
use wireloom_hub::engine::{
    Control, Delivery, DiskEngine, Engine, EngineError, EventQueue, Lease, Membership, MemoryEngine,
};
use wireloom_hub::protocol::{ClientInfo, Publication};
use wireloom_hub::{HistoryQuery, Position, RecoveryMode, Retention};

const DAY: Duration = Duration::from_secs(24 * 3600);
/// Publications in the last one expire at once, and so does its position.
const CHANNELS: [&str; 10] = ["a", "a0", "b", "brief", "c", "d", "e", "f", "g", "h"];
/// Published into when the writer of the disk engine is waited for.
const BARRIER: &str = "barrier";
const COMMANDS_MAX: usize = 64;

/// The limits of some runs, which are reached.
const CHANNELS_MAX: usize = 8;
const LEN_MAX: usize = 4 << 10;
/// Near the limit, channels without subscribers are dropped: an eighth is kept free.
const CHANNELS_KEPT: usize = 7;

const NODES: [&str; 2] = ["n", "n0"];
const OPENED: [&str; 4] = ["", "a", "a\0", "ä\n"];

#[derive(Arbitrary, Clone, Debug)]
enum Command {
    Publish {
        channel: u8,
        content: Content,
        size: u8,
        is_short: bool,
        key: u8,
    },
    PublishWithoutHistory {
        channel: u8,
        content: Content,
        key: u8,
    },
    Subscribe {
        channel: u8,
    },
    Unsubscribe {
        channel: u8,
    },
    History {
        channel: u8,
        since: Option<Since>,
        limit: Option<u8>,
        reverse: bool,
    },
    Recover {
        channel: u8,
        since: Option<Since>,
        is_cache: bool,
    },
    RemoveHistory {
        channel: u8,
    },
    AddPresence {
        channel: u8,
        client: u8,
        user: u8,
    },
    RemovePresence {
        channel: u8,
        client: u8,
    },
    Join {
        channel: u8,
    },
    /// Something is open on a node, whose end is reported with this event if the node is lost.
    Open {
        node: u8,
        opened: u8,
        event: Vec<u8>,
    },
    /// It has ended, or something that was never stored as open.
    End {
        node: u8,
        opened: u8,
        event: Vec<u8>,
    },
    OpenOn {
        node: u8,
        max: u8,
    },
    Renew {
        node: u8,
    },
    /// Takes events, and acknowledges those whose bit is set.
    Deliver {
        max: u8,
        acknowledged: u8,
    },
    Maintain,
    /// All clients leave, and the disk engine is dropped and opened again.
    Reopen,
}

#[derive(Arbitrary, Clone, Debug)]
struct Content {
    data: Vec<u8>,
    tag: Option<(String, String)>,
    user: Option<String>,
    time: i64,
    delta: bool,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Since {
    /// So many publications before the last one.
    Current(u8),
    /// An offset without an epoch.
    Offset(u64),
    /// This offset in a history that was removed.
    Removed(u8),
}

impl Content {
    fn publication(self) -> Publication {
        Publication {
            data: self.data.into(),
            info: self.user.map(|user| ClientInfo { user, ..ClientInfo::default() }),
            tags: self.tag.into_iter().collect(),
            time: self.time,
            delta: self.delta,
            ..Publication::default()
        }
    }
}

fn channel(number: u8) -> &'static str {
    CHANNELS[usize::from(number) % CHANNELS.len()]
}

fn node(number: u8) -> &'static str {
    NODES[usize::from(number) % NODES.len()]
}

fn opened(number: u8) -> &'static str {
    OPENED[usize::from(number) % OPENED.len()]
}

fn key(number: u8) -> String {
    match number % 8 {
        0..4 => String::new(),
        number => number.to_string(),
    }
}

fn retention(channel: &str, size: u8, is_short: bool) -> Retention {
    let position_ttl = if channel == "brief" { Duration::ZERO } else { DAY };
    let ttl = if is_short || channel == "brief" { Duration::ZERO } else { DAY };
    Retention { size: usize::from(size % 6) + 1, ttl, position_ttl }
}

/// A delivery of an engine.
#[derive(Clone, Debug, PartialEq)]
enum Delivered {
    Published { channel: String, epoch: String, previous: u64, publication: Publication },
    Member(String),
    Lost(String),
}

#[derive(Default)]
struct Recorder(Mutex<Vec<Delivered>>);

impl Recorder {
    fn push(&self, delivered: Delivered) {
        self.0.lock().expect("unpoisoned").push(delivered);
    }

    fn take(&self) -> Vec<Delivered> {
        std::mem::take(&mut *self.0.lock().expect("unpoisoned"))
    }
}

impl Delivery for Recorder {
    fn deliver_publication(&self, channel: &str, epoch: &str, previous: u64, publication: &Arc<Publication>) {
        // See `Side::finish_maintaining`.
        if channel != BARRIER {
            let publication = Publication::clone(publication);
            self.push(Delivered::Published {
                channel: channel.into(),
                epoch: epoch.into(),
                previous,
                publication,
            });
        }
    }

    fn deliver_membership(&self, channel: &str, _: &Membership) {
        self.push(Delivered::Member(channel.into()));
    }

    fn deliver_history_lost(&self, channel: &str) {
        self.push(Delivered::Lost(channel.into()));
    }

    fn deliver_control(&self, _: &Control) {}

    fn retention(&self, channel: &str) -> Option<Retention> {
        Some(retention(channel, 5, false))
    }
}

/// The expected state of a channel.
#[derive(Default)]
struct Channel {
    history: Option<History>,
    /// The epoch of the one that was removed last.
    removed: Option<String>,
    subscribers: usize,
    presence: BTreeMap<String, ClientInfo>,
}

/// A history that was published into, or that a recovery has begun.
struct History {
    epoch: String,
    top: u64,
    kept: Vec<Publication>,
    /// Those of `kept`, and before them what was only dropped because of the limit on the memory of all.
    unexpired: Vec<Publication>,
    /// When it was used last, by the number of commands.
    used: u64,
}

/// The expected state of the queue of events.
#[derive(Default)]
struct Queue {
    /// By node and name.
    open: BTreeMap<(&'static str, &'static str), Vec<u8>>,
    ended: VecDeque<Vec<u8>>,
    /// The numbers of the leases.
    renewed: HashMap<&'static str, u64>,
}

impl History {
    fn position(&self) -> Position {
        Position { offset: self.top, epoch: self.epoch.clone() }
    }

    fn after(&self, offset: u64) -> Vec<Publication> {
        self.kept.iter().filter(|one| one.offset > offset).cloned().collect()
    }

    fn recover(&self, since: &Position, is_cache: bool) -> Option<Vec<Publication>> {
        let is_here = (since.epoch.is_empty() || since.epoch == self.epoch) && since.offset <= self.top;
        if is_cache {
            let is_current = is_here && since.offset == self.top;
            return if is_current {
                Some(Vec::new())
            } else {
                self.kept.last().map(|newest| vec![newest.clone()])
            };
        }
        let missed = is_here.then(|| self.after(since.offset))?;
        (missed.len() as u64 == self.top - since.offset).then_some(missed)
    }
}

/// An answer, without epochs.
#[derive(Debug, PartialEq)]
enum Answer {
    Done,
    /// There are too many channels.
    Refused,
    Offset(u64),
    Publications(Vec<Publication>, u64),
    Recovered(Option<Vec<Publication>>, u64),
    Presence(Vec<ClientInfo>, u32),
    Events(Vec<Vec<u8>>),
}

/// An engine, and what it has to answer.
struct Side<E> {
    engine: E,
    recorder: Arc<Recorder>,
    channels: BTreeMap<&'static str, Channel>,
    /// The position of each publication with a key.
    keys: HashMap<(&'static str, String), Position>,
    /// The epoch of histories that begin now, if it was seen.
    next_epoch: Option<String>,
    /// The epochs of histories that were removed.
    removed: Vec<String>,
    queue: Queue,
    is_limited: bool,
    commands: u64,
    /// More than all publications take.
    len_max: usize,
}

impl<E: Engine> Side<E> {
    fn new(engine: E, is_limited: bool) -> Self {
        Self {
            recorder: start(&engine),
            engine,
            channels: CHANNELS.map(|name| (name, Channel::default())).into(),
            keys: HashMap::new(),
            next_epoch: None,
            removed: Vec::new(),
            queue: Queue::default(),
            is_limited,
            commands: 0,
            len_max: 0,
        }
    }

    /// The number of histories.
    fn count(&self) -> usize {
        self.channels.values().filter(|channel| channel.history.is_some()).count()
    }

    /// Whether a history of this channel cannot begin.
    fn is_full(&self, name: &'static str) -> bool {
        self.is_limited && self.channels[name].history.is_none() && self.count() >= CHANNELS_MAX
    }

    fn channel(&mut self, name: &'static str) -> &mut Channel {
        self.channels.get_mut(name).expect("one of CHANNELS")
    }

    /// A history that has none of the publications before, with the epoch that an engine has returned.
    fn begin(&mut self, epoch: &str) -> History {
        assert!(!epoch.is_empty() && !self.removed.iter().any(|removed| removed == epoch), "{epoch}");
        let next = self.next_epoch.get_or_insert_with(|| epoch.to_owned());
        assert_eq!(next, epoch, "the position before a history is its beginning");
        let (kept, unexpired) = Default::default();
        History { epoch: epoch.to_owned(), top: 0, kept, unexpired, used: self.commands }
    }

    fn end(&mut self, name: &'static str) {
        let channel = self.channel(name);
        if let Some(History { epoch, .. }) = channel.history.take() {
            channel.removed = Some(epoch.clone());
            self.removed.push(epoch);
            self.next_epoch = None;
        }
    }

    fn since(&self, name: &'static str, since: Since) -> Position {
        let channel = &self.channels[name];
        let current = channel.history.as_ref().map(History::position).unwrap_or_default();
        match since {
            Since::Current(before) => {
                Position { offset: current.offset.saturating_sub(before.into()), ..current }
            }
            Since::Offset(offset) => Position { offset, epoch: String::new() },
            Since::Removed(offset) => {
                let epoch = channel.removed.clone().unwrap_or_else(|| "other".into());
                Position { offset: offset.into(), epoch }
            }
        }
    }

    /// Publishes into the history, unless it was published with this key before and `remembers_keys` is not set.
    async fn publish(
        &mut self,
        name: &'static str,
        mut publication: Publication,
        retention: Retention,
        key: String,
        remembers_keys: bool,
    ) -> Answer {
        let known = self.keys.get(&(name, key.clone())).cloned();
        if let Some(known) = known {
            if remembers_keys {
                let again = self.engine.publish(name, publication, Some(retention), &key).await;
                assert_eq!(again.as_ref(), Ok(&known));
            }
            return Answer::Offset(known.offset);
        }
        let published = self.engine.publish(name, publication.clone(), Some(retention), &key).await;
        if self.is_full(name) {
            assert_eq!(published, Err(EngineError::ChannelLimit));
            return Answer::Refused;
        }
        let position = published.expect("published");
        let mut history = match self.channel(name).history.take() {
            Some(history) => history,
            None => self.begin(&position.epoch),
        };
        history.top += 1;
        assert_eq!(position, history.position());
        publication.offset = history.top;
        history.used = self.commands;
        history.kept.push(publication.clone());
        history.unexpired.push(publication.clone());
        let tags: usize = publication.tags.iter().map(|(name, value)| name.len() + value.len()).sum();
        let user = publication.info.as_ref().map_or(0, |info| info.user.len());
        self.len_max += 1_000 + publication.data.len() + tags + user;
        for kept in [&mut history.kept, &mut history.unexpired] {
            let excess = kept.len().saturating_sub(retention.size);
            kept.drain(..excess);
        }
        // None is kept for longer than a later one.
        if retention.ttl.is_zero() {
            history.kept.clear();
            history.unexpired.clear();
        }
        let epoch = history.epoch.clone();
        self.channel(name).history = Some(history);
        let previous = publication.offset - 1;
        let delivered = Delivered::Published { channel: name.into(), epoch, previous, publication };
        assert_eq!(self.recorder.take(), [delivered]);
        if !key.is_empty() {
            self.keys.insert((name, key), position.clone());
        }
        if self.is_limited {
            let expected = self.kept(name).to_vec();
            self.shorten(name, &expected).await;
        }
        Answer::Offset(position.offset)
    }

    fn kept(&self, name: &'static str) -> &[Publication] {
        self.channels[name].history.as_ref().map_or(&[], |history| &history.kept)
    }

    /// Reads what is left of a history within the limits: the newest of these, and all of them if there is certainly room.
    async fn shorten(&mut self, name: &'static str, of: &[Publication]) {
        let read = self.engine.history(name, &HistoryQuery::default(), retention(name, 5, false)).await;
        let left: Vec<_> = read.expect("read").publications.into_iter().map(Arc::unwrap_or_clone).collect();
        assert!(of.ends_with(&left), "{name}: {left:?} of {of:?}");
        assert!(left.len() == of.len() || self.len_max > LEN_MAX, "{name}: {left:?} of {of:?}");
        self.channel(name).history.as_mut().expect("a history").kept = left;
        let len: usize = CHANNELS.iter().flat_map(|name| self.kept(name)).map(|one| one.data.len()).sum();
        assert!(len <= LEN_MAX, "{len}");
    }

    /// Applies the limits to all histories, whose number was `before`.
    async fn drop_what_is_over_the_limits(&mut self, before: usize) {
        let (mut dropped, mut left) = (Vec::new(), Vec::new());
        for name in CHANNELS {
            let Channel { history: Some(History { used, .. }), subscribers, .. } = self.channels[name] else {
                continue;
            };
            let read = self.engine.history(name, &HistoryQuery::default(), retention(name, 5, false)).await;
            let position = self.channels[name].history.as_ref().expect("a history").position();
            if read.expect("read").position != position {
                assert_eq!(subscribers, 0, "{name}");
                dropped.push(used);
                self.end(name);
                continue;
            }
            let kept = self.kept(name).to_vec();
            self.shorten(name, &kept).await;
            if subscribers == 0 {
                left.push(used);
            }
        }
        assert!(dropped.is_empty() || before > CHANNELS_KEPT);
        let (newest, oldest) = (dropped.iter().max().copied(), left.iter().min().copied());
        assert!(newest.zip(oldest).is_none_or(|(newest, oldest)| newest <= oldest), "{dropped:?} {left:?}");
        assert!(self.count() <= CHANNELS_KEPT || left.is_empty());
    }

    async fn publish_without_history(
        &mut self,
        name: &'static str,
        publication: Publication,
        key: &str,
    ) -> Answer {
        let position = self.engine.publish(name, publication.clone(), None, key).await;
        assert_eq!(position, Ok(Position::default()));
        let (channel, epoch) = (name.into(), String::new());
        assert_eq!(self.recorder.take(), [Delivered::Published { channel, epoch, previous: 0, publication }]);
        Answer::Done
    }

    async fn history(&mut self, name: &'static str, query: HistoryQuery) -> Answer {
        let read = self.engine.history(name, &query, retention(name, 5, false)).await.expect("read");
        let begun;
        let history = match &self.channels[name].history {
            Some(history) => history,
            None => {
                begun = self.begin(&read.position.epoch);
                &begun
            }
        };
        assert_eq!(read.position, history.position());
        let since = query.since.map(|since| since.offset);
        let mut expected: Vec<_> = if query.reverse {
            let before = since.unwrap_or(u64::MAX);
            history.kept.iter().rev().filter(|one| one.offset < before).cloned().collect()
        } else {
            history.after(since.unwrap_or(0))
        };
        expected.truncate(query.limit.unwrap_or(usize::MAX));
        let publications: Vec<_> = read.publications.into_iter().map(Arc::unwrap_or_clone).collect();
        assert_eq!(publications, expected);
        Answer::Publications(publications, read.position.offset)
    }

    async fn recover(&mut self, name: &'static str, since: Option<Position>, is_cache: bool) -> Answer {
        let mode = if is_cache { RecoveryMode::Cache } else { RecoveryMode::Stream };
        let read =
            self.engine.recover(name, since.as_ref(), mode, retention(name, 5, false), usize::MAX).await;
        if self.is_full(name) {
            assert_eq!(read, Err(EngineError::ChannelLimit));
            return Answer::Refused;
        }
        let read = read.expect("read");
        if self.channels[name].history.is_none() {
            let begun = self.begin(&read.position.epoch);
            self.channel(name).history = Some(begun);
        }
        let history = self.channels[name].history.as_ref().expect("begun");
        assert_eq!(read.position, history.position());
        let expected = since.and_then(|since| history.recover(&since, is_cache));
        let publications: Vec<_> = read.publications.into_iter().map(Arc::unwrap_or_clone).collect();
        assert!(read.recovered || publications.is_empty());
        let recovered = read.recovered.then_some(publications);
        assert_eq!(recovered, expected);
        Answer::Recovered(recovered, read.position.offset)
    }

    async fn remove_history(&mut self, name: &'static str) -> Answer {
        self.engine.remove_history(name).await.expect("removed");
        let channel = self.channel(name);
        let is_lost = channel.history.is_some() && channel.subscribers > 0;
        let lost = is_lost.then(|| Delivered::Lost(name.into()));
        assert_eq!(self.recorder.take(), Vec::from_iter(lost));
        self.end(name);
        Answer::Done
    }

    async fn presence(&mut self, name: &'static str) -> Answer {
        let present = self.engine.presence(name).await.expect("read");
        let stats = self.engine.presence_stats(name).await.expect("read");
        let expected: Vec<_> = self.channel(name).presence.values().cloned().collect();
        assert_eq!(present, expected);
        let users = expected.iter().map(|one| &one.user).collect::<HashSet<_>>().len();
        assert_eq!((stats.num_clients as usize, stats.num_users as usize), (expected.len(), users));
        Answer::Presence(present, stats.num_users)
    }

    async fn execute(&mut self, command: Command, remembers_keys: bool) -> Answer {
        self.commands += 1;
        let answer = match command {
            Command::Publish { channel: number, content, size, is_short, key: k } => {
                let name = channel(number);
                let retention = retention(name, size, is_short);
                self.publish(name, content.publication(), retention, key(k), remembers_keys).await
            }
            Command::PublishWithoutHistory { channel: number, content, key: k } => {
                self.publish_without_history(channel(number), content.publication(), &key(k)).await
            }
            Command::Subscribe { channel: number } => {
                self.engine.subscribe(channel(number)).await.expect("subscribed");
                self.channel(channel(number)).subscribers += 1;
                Answer::Done
            }
            Command::Unsubscribe { channel: number } => {
                let name = channel(number);
                let is_near_limit = self.is_limited && self.count() > CHANNELS_KEPT;
                let channel = self.channel(name);
                if channel.subscribers > 0 {
                    channel.subscribers -= 1;
                    if channel.subscribers == 0 && is_near_limit {
                        channel.history.take_if(|history| history.top == 0);
                    }
                    self.engine.unsubscribe(name);
                }
                Answer::Done
            }
            Command::History { channel: number, since, limit, reverse } => {
                let name = channel(number);
                let since = since.map(|since| self.since(name, since));
                self.history(
                    name,
                    HistoryQuery { since, limit: limit.map(usize::from), reverse, len_max: None },
                )
                .await
            }
            Command::Recover { channel: number, since, is_cache } => {
                let name = channel(number);
                let since = since.map(|since| self.since(name, since));
                self.recover(name, since, is_cache).await
            }
            Command::RemoveHistory { channel: number } => self.remove_history(channel(number)).await,
            Command::AddPresence { channel: number, client, user } => {
                let (client, user) = ((client % 4).to_string(), (user % 3).to_string());
                let info = ClientInfo { client, user, ..ClientInfo::default() };
                self.engine.add_presence(channel(number), &info).await.expect("added");
                self.channel(channel(number)).presence.insert(info.client.clone(), info);
                self.presence(channel(number)).await
            }
            Command::RemovePresence { channel: number, client } => {
                let client = (client % 4).to_string();
                self.engine.remove_presence(channel(number), &client).await.expect("removed");
                self.channel(channel(number)).presence.remove(&client);
                self.presence(channel(number)).await
            }
            Command::Join { channel: number } => {
                let join = Membership::Join(ClientInfo::default());
                self.engine.publish_membership(channel(number), join).await.expect("announced");
                assert_eq!(self.recorder.take(), [Delivered::Member(channel(number).into())]);
                Answer::Done
            }
            Command::Open { node: n, opened: o, event } => {
                let (node, name) = (node(n), opened(o));
                self.queue().open(node, name, &event).await.expect("stored");
                self.queue.open.insert((node, name), event);
                Answer::Done
            }
            Command::End { node: n, opened: o, event } => {
                self.end_opened(node(n), opened(o), event).await;
                Answer::Done
            }
            Command::OpenOn { node: n, max } => {
                let node = node(n);
                let open = self.queue().open_on(node, max.into()).await.expect("read");
                let expected = self.queue.open.iter().filter(|((of, _), _)| *of == node);
                let expected = expected.map(|((_, name), event)| (*name, &event[..])).take(max.into());
                assert!(open.iter().map(|(name, event)| (&**name, &event[..])).eq(expected), "{open:?}");
                Answer::Events(open.into_iter().map(|(_, event)| event.into()).collect())
            }
            Command::Renew { node: n } => {
                let renewed = self.queue().renew(node(n)).await;
                let Ok(Lease::Renewed { number, others: Some(others) }) = renewed else {
                    panic!("{renewed:?}")
                };
                let before = self.queue.renewed.insert(node(n), number);
                assert!(others.is_empty() && before.is_none_or(|before| before < number), "{number}");
                Answer::Done
            }
            Command::Deliver { max, acknowledged } => {
                let taken = self.queue().take(max.into()).await.expect("taken");
                let events: Vec<_> = taken.iter().map(|one| one.event.to_vec()).collect();
                assert!(events.iter().eq(self.queue.ended.iter().take(max.into())), "{events:?}");
                let is_acknowledged = |at: usize| acknowledged >> (at % 8) & 1 == 1;
                let ids = taken.into_iter().enumerate().filter(|(at, _)| is_acknowledged(*at));
                let ids: Vec<_> = ids.map(|(_, one)| one.id).collect();
                self.queue().acknowledge(&ids).await.expect("acknowledged");
                let mut at = 0..;
                self.queue.ended.retain(|_| {
                    let at = at.next().expect("endless");
                    at >= events.len() || !is_acknowledged(at)
                });
                Answer::Events(events)
            }
            Command::Maintain => {
                let before = self.count();
                self.engine.maintain();
                self.finish_maintaining(remembers_keys).await;
                for name in CHANNELS {
                    let Channel { history: Some(history), subscribers: 0, .. } = self.channel(name) else {
                        continue;
                    };
                    if history.top == 0 {
                        // It can begin again as it was.
                        self.channel(name).history = None;
                    } else if name == "brief" {
                        self.end(name);
                    }
                }
                if self.is_limited {
                    self.drop_what_is_over_the_limits(before).await;
                }
                Answer::Done
            }
            Command::Reopen => {
                for name in CHANNELS {
                    let channel = self.channel(name);
                    let (subscribers, presence) =
                        (channel.subscribers, std::mem::take(&mut channel.presence));
                    channel.subscribers = 0;
                    (0..subscribers).for_each(|_| self.engine.unsubscribe(name));
                    for client in presence.keys() {
                        self.engine.remove_presence(name, client).await.expect("removed");
                    }
                }
                Answer::Done
            }
        };
        assert_eq!(self.recorder.take(), [], "delivered twice, or unasked");
        answer
    }

    /// The writer of the disk engine drops what is overdue after what it received with it.
    async fn finish_maintaining(&mut self, has_writer: bool) {
        if !has_writer {
            return;
        }
        for _ in 0..2 {
            let retention = retention(BARRIER, 1, false);
            let written = self.engine.publish(BARRIER, Publication::default(), Some(retention), "").await;
            let is_refused = written == Err(EngineError::ChannelLimit) && self.is_limited;
            assert!(written.is_ok() || is_refused, "{written:?}");
        }
        if self.is_limited {
            // It takes no room.
            self.engine.remove_history(BARRIER).await.expect("removed");
            self.next_epoch = None;
        }
    }

    fn queue(&self) -> &dyn EventQueue {
        self.engine.events().expect("a queue")
    }

    async fn end_opened(&mut self, node: &'static str, name: &'static str, event: Vec<u8>) {
        self.queue().end(node, name, &event).await.expect("queued");
        self.queue.open.remove(&(node, name));
        self.queue.ended.push_back(event);
    }
}

fn start(engine: &impl Engine) -> Arc<Recorder> {
    let recorder = Arc::<Recorder>::default();
    let delivery: Arc<dyn Delivery> = recorder.clone();
    engine.start(Arc::downgrade(&delivery) as Weak<dyn Delivery>);
    recorder
}

/// A folder in memory, where there is one: what a disk loses is the part of the crash simulation.
static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    let shared = PathBuf::from("/dev/shm");
    let parent = if shared.is_dir() { shared } else { std::env::temp_dir() };
    parent.join(format!("wireloom-fuzz-{}", std::process::id()))
});

static RUNTIME: LazyLock<Runtime> =
    LazyLock::new(|| Builder::new_current_thread().enable_all().build().expect("a runtime"));

fn memory(is_limited: bool) -> MemoryEngine {
    if is_limited {
        MemoryEngine::new(CHANNELS_MAX).history_len_max(LEN_MAX)
    } else {
        MemoryEngine::new(1_000)
    }
}

fn open(is_limited: bool) -> DiskEngine {
    DiskEngine::open(&FOLDER, memory(is_limited)).expect("a file that is in order")
}

impl Side<DiskEngine> {
    async fn reopen(self) -> Self {
        let Self { engine, recorder, mut channels, keys, removed, mut queue, is_limited, .. } = self;
        drop((engine, recorder));
        // Those that nothing was published into are not stored.
        for channel in channels.values_mut() {
            channel.history.take_if(|history| history.top == 0);
        }
        queue.ended.extend(std::mem::take(&mut queue.open).into_values());
        queue.renewed.clear();
        let engine = open(is_limited);
        let (commands, len_max) = (self.commands, self.len_max);
        let mut side =
            Self { channels, keys, removed, queue, commands, len_max, ..Self::new(engine, is_limited) };
        for name in CHANNELS {
            let Some(History { unexpired, used, .. }) = &mut side.channel(name).history else { continue };
            *used = commands;
            let unexpired = unexpired.clone();
            if is_limited {
                // Publications that the limit has dropped only from memory may be read again from the file.
                side.shorten(name, &unexpired).await;
            }
        }
        side
    }
}

async fn run(commands: Vec<Command>, is_limited: bool) {
    let mut memory = Side::new(memory(is_limited), is_limited);
    let mut disk = Side::new(open(is_limited), is_limited);
    for command in commands.into_iter().take(COMMANDS_MAX) {
        let in_memory = memory.execute(command.clone(), false).await;
        let on_disk = disk.execute(command.clone(), true).await;
        assert!(on_disk == in_memory || is_limited, "{command:?}: {on_disk:?} and {in_memory:?}");
        if let Command::Reopen = command {
            disk = disk.reopen().await;
            // As the file reports what was open.
            for ((node, name), event) in memory.queue.open.clone() {
                memory.end_opened(node, name, event).await;
            }
        }
    }
    drop(disk);
    let report = DiskEngine::check(&FOLDER).expect("a file that is in order");
    assert_eq!((report.unreadable, report.is_repaired), (0, false));
}

fuzz_target!(|input: (Vec<Command>, bool)| {
    let _ = std::fs::remove_dir_all(&*FOLDER);
    RUNTIME.block_on(run(input.0, input.1));
    std::fs::remove_dir_all(&*FOLDER).expect("removed");
});
