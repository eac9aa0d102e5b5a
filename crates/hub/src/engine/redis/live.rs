//! Announcements: what is published in the channels that this node's clients follow, and what was missed meanwhile.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use prost::Message as _;
use redis::aio::PubSubSink;
use redis::cluster_async::ClusterConnection;
use redis::{PushInfo, PushKind, RedisError, RedisResult};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};
use tracing::{info, warn};

use super::connection::{Announcements, Confirmed, Connection, Pushes, Sharded, is_answer};
use super::names::Names;
use super::script::{self, Part, Read, Reading};
use super::{READ_MAX, unavailable};
use crate::clock::{Clock, WarningLimit};
use crate::concurrently::concurrently;
use crate::engine::commands::COMMANDS;
use crate::engine::peers::{HEARTBEAT, Peers};
use crate::engine::status::Status;
use crate::engine::{
    CATCH_UP_PAUSE, CatchUp, CaughtUp, DELIVERIES_PER_TURN, Delivery, EngineError, EngineHealth, Membership,
};
use crate::history::{Position, Retention, count_within};
use crate::protocol::{Publication, Push};
use crate::shards::lock;

/// The first byte of an announcement. `p` is one of a history: its epoch, a space, its offset, a space, the publication.
pub(super) const EPHEMERAL: u8 = b'e';
pub(super) const MEMBERSHIP: u8 = b'm';
const STORED: u8 = b'p';
const REMOVED: u8 = b'x';

/// A connection is lost if nothing arrives after this number of own announcements, each of which Redis sends back.
const UNANSWERED_MAX: u32 = 3;

/// The delay before positions that could not be read are read again.
const COMPARE_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// How long a change of a subscription may take.
const UPDATE_TIMEOUT: Duration = Duration::from_secs(6);

/// The maximum number of subscriptions that one command changes.
const CHANGES_MAX: usize = 1_000;

/// The delay before subscriptions that could not be made are tried again.
const UPDATE_AGAIN_AFTER: Duration = Duration::from_millis(200);

/// The maximum number of channels of a cluster that are subscribed to at the same time. Those of a silent server take the time-out.
const SUBSCRIBING_MAX: usize = 1_024;

/// The maximum number of histories whose positions are read at the same time.
const COMPARING_MAX: usize = 32;

/// The same in a cluster, where those of a silent server take the time-out.
const COMPARING_SHARDED_MAX: usize = 256;

/// How long announcements may be on their way that were sent before the first subscriber recovered.
const AWAITED_MAX: Duration = Duration::from_secs(10);

/// The maximum number of announcements that are handled between two parts of what was missed.
const HANDLED_MAX: usize = 256;

/// The delay before a lost connection is made again.
const RETRY_AFTER: Duration = Duration::from_millis(200);

/// The announcements for this node.
pub(super) struct Live {
    connection: Arc<Connection>,
    name: String,
    followed: Mutex<HashMap<String, Followed>>,
    /// Tokio's mutex: the subscriptions at one server are changed by one command after the other.
    listening: tokio::sync::Mutex<Listening>,
    /// The channels whose subscriptions at one server are to be changed: by the next command, all of them.
    changing: Mutex<HashSet<String>>,
    peers: Peers,
    /// Requests a comparison of the followed histories with their streams.
    pub(super) sync: Notify,
    clock: Clock,
    warnings: WarningLimit,
    /// Of what is listened to.
    status: Status,
}

/// A channel with subscribers on this node.
#[derive(Debug, Default)]
struct Followed {
    subscribers: usize,
    reached: Option<Reached>,
}

/// How far the deliveries of a channel are. `delivered <= complete.offset`, and what is between them may still be announced: subscribers that
/// recover have it, and others do not.
#[derive(Clone, Debug)]
struct Reached {
    /// Everything up to here was delivered, or was there when the first subscriber recovered.
    complete: Position,
    /// The offset of the last announcement that was delivered.
    delivered: u64,
    /// Until when announcements up to `complete` may arrive that were sent before the first subscriber recovered. What is read before that
    /// would be taken for everything that is delivered.
    awaited_until: Option<Instant>,
    /// Whether the rest is delivered in parts: subscribers with a position recover it themselves.
    is_in_parts: bool,
}

#[derive(Default)]
struct Listening {
    /// `None` while there is no connection.
    sink: Option<PubSubSink>,
    stream: Option<Announcements>,
    /// In a cluster, for the announcements of channels.
    sharded: Option<Arc<ShardedChannels>>,
    sharded_pushes: Option<ShardedPushes>,
    /// The channels of a server that is not part of a cluster.
    subscribed: HashSet<String>,
    /// Ends listening: a subscription at this server has failed.
    failed: Arc<Notify>,
}

/// The subscriptions to the channels of a cluster. Those of different channels are changed at the same time, because a server may be
/// silent.
struct ShardedChannels {
    names: Names,
    connection: ClusterConnection,
    state: Mutex<ShardedState>,
}

#[derive(Default)]
struct ShardedState {
    subscribed: HashSet<String>,
    /// The channels of which it is not known whether they are subscribed to: a server was lost, or has not answered.
    unsure: HashSet<String>,
    /// The results of the changes that are being made.
    changing: HashMap<String, watch::Receiver<Changed>>,
}

/// The result of a change; `None` until it is there.
type Changed = Option<Result<(), EngineError>>;

/// The change of one subscription. When this is dropped, the next change may begin.
struct Change<'a> {
    sharded: &'a ShardedChannels,
    channel: &'a str,
    result: watch::Sender<Changed>,
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        lock(&self.sharded.state).changing.remove(self.channel);
    }
}

impl ShardedChannels {
    /// Makes the subscription to a channel agree with the subscribers of this node. Who waits for a change that fails, fails with it.
    async fn update(&self, channel: &str, is_followed: impl Fn() -> bool) -> Result<(), EngineError> {
        let change = loop {
            let begun = match lock(&self.state).changing.entry(channel.to_owned()) {
                Entry::Occupied(other) => Err(other.get().clone()),
                Entry::Vacant(free) => {
                    let (result, receiver) = watch::channel(None);
                    free.insert(receiver);
                    Ok(Change { sharded: self, channel, result })
                }
            };
            match begun {
                Ok(change) => break change,
                Err(mut other) => {
                    if let Ok(result) = other.wait_for(Option::is_some).await {
                        result.clone().unwrap_or(Ok(()))?;
                    }
                }
            }
        };
        let result = self.change(channel, is_followed()).await;
        change.result.send_replace(Some(result.clone()));
        result
    }

    async fn change(&self, channel: &str, is_followed: bool) -> Result<(), EngineError> {
        {
            let state = &mut *lock(&self.state);
            if is_followed == state.subscribed.contains(channel) && !state.unsure.contains(channel) {
                return Ok(());
            }
            state.unsure.insert(channel.to_owned());
        }
        let mut connection = self.connection.clone();
        let changing = async {
            if is_followed {
                connection.ssubscribe(self.names.subject(channel)).await
            } else {
                connection.sunsubscribe(self.names.subject(channel)).await
            }
        };
        let changed = tokio::time::timeout(UPDATE_TIMEOUT, changing).await.map_err(unavailable)?;
        changed.map_err(unavailable)?;
        let ShardedState { subscribed, unsure, .. } = &mut *lock(&self.state);
        unsure.remove(channel);
        if is_followed {
            subscribed.insert(channel.to_owned())
        } else {
            subscribed.remove(channel)
        };
        Ok(())
    }
}

/// The result of a comparison.
#[derive(Default)]
struct Compared {
    /// The channels of which not everything has been delivered.
    behind: Vec<String>,
    /// Those whose positions could not be read.
    failed: Vec<String>,
}

/// Pushes of a cluster to this node.
struct ShardedPushes {
    pushes: Pushes,
    confirmed: Arc<Confirmed>,
}

enum Received {
    Push(PushInfo),
    /// The subject of a subscription that was confirmed.
    Confirmed(Vec<u8>),
}

/// The next message; `None` if the connection is lost. Without one there is none.
async fn next(stream: &mut Option<Announcements>) -> Option<redis::Msg> {
    match stream {
        Some(stream) => stream.next().await,
        None => std::future::pending().await,
    }
}

/// The next push; `None` if some were lost. Without a cluster there are none.
async fn receive(pushes: &mut Option<&mut ShardedPushes>) -> Option<Received> {
    let Some(ShardedPushes { pushes, confirmed }) = pushes else { return std::future::pending().await };
    tokio::select! {
        push = pushes.next() => push.map(Received::Push),
        subject = confirmed.next() => Some(Received::Confirmed(subject)),
    }
}

/// Ready when no announcement is, or when enough of them were handled, and not before `at`.
async fn after_messages(handled: usize, at: Instant) {
    if at > Instant::now() {
        tokio::time::sleep_until(at).await;
    }
    if handled < HANDLED_MAX {
        tokio::task::yield_now().await;
    }
}

impl Live {
    pub(super) fn new(connection: Arc<Connection>, name: String) -> Self {
        let (followed, listening, changing, peers, sync, warnings, status) = Default::default();
        let clock = Clock::new();
        Self { connection, name, followed, listening, changing, peers, sync, clock, warnings, status }
    }

    fn names(&self) -> &Names {
        &self.connection.names
    }

    /// Connects, and subscribes to everything that this node follows; in a cluster, [`Self::update_missing`] does.
    pub(super) async fn connect(&self) -> Result<(), EngineError> {
        *self.listening.lock().await = Listening::default();
        let sharded = self.connection.listen_sharded().await?;
        let subscribed: Vec<_> = match sharded {
            Some(_) => Vec::new(),
            None => lock(&self.followed).keys().cloned().collect(),
        };
        let (sink, stream) = self.open(&subscribed).await?;
        let (sink, stream, subscribed_to) = (Some(sink), Some(stream), subscribed.iter().cloned().collect());
        let mut opened = Listening { sink, stream, subscribed: subscribed_to, ..Listening::default() };
        if let Some(Sharded { connection, pushes, confirmed }) = sharded {
            let (names, state) = (self.names().clone(), Mutex::default());
            opened.sharded = Some(Arc::new(ShardedChannels { names, connection, state }));
            opened.sharded_pushes = Some(ShardedPushes { pushes, confirmed });
        }
        *self.listening.lock().await = opened;
        // Channels that lost their last subscriber meanwhile. Those that have a first one since then were refused.
        for channel in subscribed {
            if !lock(&self.followed).contains_key(&channel) {
                self.update(&channel).await?;
            }
        }
        Ok(())
    }

    /// Opens a connection that receives what concerns this node, and these channels. The server may be silent: nothing is locked, and each
    /// answer has a deadline.
    async fn open(&self, channels: &[String]) -> Result<(PubSubSink, Announcements), EngineError> {
        let (mut sink, stream) = self.connection.listen().await?;
        let names = self.names();
        let mut subjects = vec![names.nodes(), names.inbox(&self.name)];
        subjects.extend(channels.iter().map(|channel| names.subject(channel)));
        for subjects in subjects.chunks(CHANGES_MAX) {
            let subscribed = tokio::time::timeout(UPDATE_TIMEOUT, sink.subscribe(subjects)).await;
            subscribed.map_err(unavailable)?.map_err(unavailable)?;
        }
        Ok((sink, stream))
    }

    /// Listens to another server of a cluster, after the one that passed on the announcements of nodes is lost. The announcements of
    /// channels go on meanwhile.
    async fn connect_again(self: Arc<Self>) {
        loop {
            let connecting = async {
                let (sink, stream) = self.open(&[]).await?;
                let listening = &mut *self.listening.lock().await;
                (listening.sink, listening.stream) = (Some(sink), Some(stream));
                Ok::<_, EngineError>(())
            };
            let Err(error) = connecting.await else {
                self.status.succeeded();
                return;
            };
            self.report(&error);
            tokio::time::sleep(RETRY_AFTER).await;
        }
    }

    /// Reports that nothing is listened to.
    fn report(&self, error: &EngineError) {
        self.status.failed(&format!("announcements are not received: {error}"));
        if self.warnings.may_warn(self.clock.now()) {
            warn!(%error, "announcements are not received");
        }
    }

    pub(super) fn health(&self) -> EngineHealth {
        self.status.health()
    }

    /// Counts a subscriber.
    pub(super) fn count(&self, channel: &str) {
        lock(&self.followed).entry(channel.into()).or_default().subscribers += 1;
    }

    /// Returns when the server sends what is published from now on.
    pub(super) async fn subscribe(self: &Arc<Self>, channel: &str) -> Result<(), EngineError> {
        let (live, channel) = (self.clone(), channel.to_owned());
        // In a task of its own: given up halfway, it would not know what the server has done.
        tokio::spawn(async move { live.update(&channel).await }).await.map_err(unavailable)?
    }

    pub(super) fn unsubscribe(self: &Arc<Self>, channel: &str) {
        if self.forget(channel) {
            let (live, channel) = (self.clone(), channel.to_owned());
            if let Ok(runtime) = tokio::runtime::Handle::try_current() {
                // After a failure the connection is made again without it.
                runtime.spawn(async move { drop(live.update(&channel).await) });
            }
        }
    }

    /// Returns whether this was the last subscriber.
    fn forget(&self, channel: &str) -> bool {
        let mut followed = lock(&self.followed);
        let Some(one) = followed.get_mut(channel) else { return false };
        one.subscribers = one.subscribers.saturating_sub(1);
        one.subscribers == 0 && followed.remove(channel).is_some()
    }

    /// Makes the subscription of the connection agree with the subscribers of this node.
    async fn update(&self, channel: &str) -> Result<(), EngineError> {
        let mut used = None;
        lock(&self.changing).insert(channel.to_owned());
        loop {
            let mut listening = self.listening.lock().await;
            lock(&self.changing).remove(channel);
            let Some(sharded) = listening.sharded.clone() else {
                return self.update_at(&mut listening, channel).await;
            };
            drop(listening);
            // The connection may have been replaced meanwhile, and the new one knows nothing of the change.
            if used.as_ref().is_some_and(|used| Arc::ptr_eq(used, &sharded)) {
                return Ok(());
            }
            sharded.update(channel, || self.is_followed(channel)).await?;
            used = Some(sharded);
        }
    }

    /// The same, where one server has all channels. Those that wait for their turn are changed by the same command: otherwise each would take
    /// a round trip.
    async fn update_at(&self, listening: &mut Listening, channel: &str) -> Result<(), EngineError> {
        if self.is_followed(channel) == listening.subscribed.contains(channel) {
            return Ok(());
        }
        let mut channels = vec![channel.to_owned()];
        channels.extend(lock(&self.changing).extract_if(|_| true).take(CHANGES_MAX - 1));
        match self.change(listening, &channels).await {
            // One of the other channels may be the cause. Its own update reports the error.
            Err(error) if channels.len() > 1 && is_answer(&error) => {
                self.change(listening, &channels[..1]).await.map_err(unavailable)
            }
            changed => changed.map_err(unavailable),
        }
    }

    async fn change(&self, listening: &mut Listening, channels: &[String]) -> RedisResult<()> {
        let Listening { sink, subscribed, failed, .. } = listening;
        for is_followed in [true, false] {
            let differs = |channel: &&String| {
                is_followed == self.is_followed(channel) && is_followed != subscribed.contains(*channel)
            };
            let channels: Vec<_> = channels.iter().filter(differs).collect();
            if channels.is_empty() {
                continue;
            }
            let lost = || RedisError::from(std::io::Error::from(std::io::ErrorKind::NotConnected));
            let open = sink.as_mut().ok_or_else(lost)?;
            let subjects: Vec<_> = channels.iter().map(|channel| self.names().subject(channel)).collect();
            let changing = async {
                if is_followed { open.subscribe(subjects).await } else { open.unsubscribe(subjects).await }
            };
            let changed = tokio::time::timeout(UPDATE_TIMEOUT, changing).await;
            let changed = changed.unwrap_or_else(|elapsed| Err(std::io::Error::from(elapsed).into()));
            if let Err(error) = changed {
                if !is_answer(&error) {
                    // It is unknown whether the server made the change: resubscribe to all channels.
                    *sink = None;
                    failed.notify_one();
                }
                return Err(error);
            }
            for channel in channels {
                if is_followed {
                    subscribed.insert(channel.clone())
                } else {
                    subscribed.remove(channel)
                };
            }
        }
        Ok(())
    }

    fn is_followed(&self, channel: &str) -> bool {
        lock(&self.followed).contains_key(channel)
    }

    /// Follows from this position on: a subscriber starts there, and must not miss any later publication.
    pub(super) fn follow_from(&self, channel: &str, position: &Position) {
        if let Some(followed) = lock(&self.followed).get_mut(channel) {
            followed.reached.get_or_insert_with(|| Reached {
                complete: position.clone(),
                delivered: 0,
                awaited_until: Some(Instant::now() + AWAITED_MAX),
                is_in_parts: false,
            });
        }
    }

    /// Announcements that were on their way are lost.
    fn await_nothing(&self) {
        for followed in lock(&self.followed).values_mut() {
            followed.reached.iter_mut().for_each(|reached| reached.awaited_until = None);
        }
    }

    pub(super) async fn announce(&self, channel: &str, kind: u8, payload: &[u8]) -> Result<(), EngineError> {
        let message = [&[kind], payload].concat();
        self.connection.announce(&self.names().subject(channel), &message).await
    }

    /// Subscribes to what is followed in a cluster and not subscribed to: after a reconnection, and where a server could not be reached.
    async fn update_missing(self: Arc<Self>, sharded: Arc<ShardedChannels>) {
        loop {
            let mut missing: Vec<String> = lock(&self.followed).keys().cloned().collect();
            {
                let state = lock(&sharded.state);
                missing.retain(|channel| !state.subscribed.contains(channel));
                missing.extend(state.unsure.iter().cloned());
            }
            if missing.is_empty() {
                return;
            }
            self.update_all(missing).await;
            tokio::time::sleep(UPDATE_AGAIN_AFTER).await;
        }
    }

    async fn update_all(self: &Arc<Self>, missing: Vec<String>) {
        let updates = missing.into_iter().map(|channel| {
            let live = self.clone();
            async move {
                if let Err(error) = live.update(&channel).await {
                    tracing::debug!(channel, %error, "Redis");
                }
            }
        });
        concurrently(SUBSCRIBING_MAX, updates).await;
    }

    /// The names of the other nodes that are alive.
    pub(super) fn peers(&self) -> Vec<String> {
        let mut peers = self.peers.names();
        peers.retain(|name| *name != self.name);
        peers
    }

    /// Delivers announcements, until the hub is dropped.
    pub(super) async fn run(self: Arc<Self>, delivery: Weak<dyn Delivery>) {
        loop {
            let (stream, mut pushes, sharded, failed) = {
                let listening = &mut *self.listening.lock().await;
                let failed = listening.failed.clone();
                (listening.stream.take(), listening.sharded_pushes.take(), listening.sharded.clone(), failed)
            };
            if let Some(stream) = stream {
                tokio::select! {
                    () = self.listen(stream, pushes.as_mut(), sharded, &delivery) => {}
                    () = failed.notified() => {}
                }
            }
            if delivery.strong_count() == 0 {
                return;
            }
            warn!("the connection to Redis is lost; connecting again");
            while let Err(error) = self.connect().await {
                if delivery.strong_count() == 0 {
                    return;
                }
                self.report(&error);
                tokio::time::sleep(RETRY_AFTER).await;
            }
            self.status.succeeded();
            info!("connected to Redis again");
            self.await_nothing();
            // This node has received no announcements while it was disconnected.
            self.sync.notify_one();
        }
    }

    /// Delivers the announcements of one connection, until it is lost.
    async fn listen(
        self: &Arc<Self>,
        stream: Announcements,
        mut pushes: Option<&mut ShardedPushes>,
        sharded: Option<Arc<ShardedChannels>>,
        delivery: &Weak<dyn Delivery>,
    ) {
        let (nodes, inbox) = (self.names().nodes(), self.names().inbox(&self.name));
        // Announcements since the last message. Their number counts, not the time: a node that was paused has asked nothing meanwhile.
        let (mut heartbeat, mut unanswered) = (tokio::time::interval(HEARTBEAT), 0);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // `None` while a server of a cluster is looked for that passes on the announcements of nodes.
        let mut stream = Some(stream);
        let (mut comparing, mut updating, mut connecting) = (JoinSet::new(), JoinSet::new(), JoinSet::new());
        // The channels to compare next, and not before when.
        let (mut due, mut due_at) = (HashSet::new(), Instant::now());
        // Those whose publications are to be read. Announcements of later ones are left out: they are read, too.
        let mut behind = BTreeSet::new();
        // The number of announcements since the last part of them was read.
        let mut handled = 0;
        // When the next part of them is read, at the earliest.
        let mut part_at = Instant::now();
        let compare = |due: &mut HashSet<String>, due_at: Instant, comparing: &mut JoinSet<Compared>| {
            if !due.is_empty() && comparing.is_empty() && due_at <= Instant::now() {
                let (channels, is_sharded) = (std::mem::take(due), sharded.is_some());
                comparing.spawn(self.clone().compare(channels, is_sharded, delivery.clone()));
            }
        };
        loop {
            if behind.is_empty() {
                compare(&mut due, due_at, &mut comparing);
            }
            let message = tokio::select! {
                message = next(&mut stream) => match message {
                    Some(message) => message,
                    None if sharded.is_none() => return,
                    None => {
                        stream = None;
                        connecting.spawn(self.clone().connect_again());
                        continue;
                    }
                },
                Some(_) = connecting.join_next() => {
                    stream = self.listening.lock().await.stream.take();
                    unanswered = 0;
                    continue;
                }
                _ = heartbeat.tick() => {
                    if delivery.strong_count() == 0 || unanswered >= UNANSWERED_MAX && sharded.is_none() {
                        return;
                    }
                    if unanswered >= UNANSWERED_MAX && stream.take().is_some() {
                        connecting.spawn(self.clone().connect_again());
                    }
                    unanswered += 1;
                    self.peers.tick();
                    let (live, nodes) = (self.clone(), nodes.clone());
                    tokio::spawn(async move { live.connection.publish(&nodes, live.name.as_bytes()).await });
                    if let Some(mut connection) = sharded.as_ref().map(|sharded| sharded.connection.clone()) {
                        // The connection to each server has something to lose: otherwise a server that vanished would not be noticed.
                        tokio::spawn(async move { redis::cmd("PING").query_async::<()>(&mut connection).await });
                    }
                    continue;
                }
                push = receive(&mut pushes) => {
                    handled += 1;
                    let Some(delivery) = delivery.upgrade() else { return };
                    if let (Some(Received::Push(push)), Some(sharded)) = (&push, &sharded)
                        && push.kind == PushKind::Disconnection
                    {
                        self.await_nothing();
                        // It is not known which channels the lost server had, nor which server has its slots next. Where a subscription is
                        // left, another one changes nothing.
                        let ShardedState { subscribed, unsure, .. } = &mut *lock(&sharded.state);
                        unsure.extend(subscribed.iter().cloned());
                        if updating.is_empty() {
                            updating.spawn(self.clone().update_missing(sharded.clone()));
                        }
                        continue;
                    }
                    match push {
                        Some(Received::Push(push)) => behind.extend(self.handle_push(push, &*delivery)),
                        // After a loss: what was published meanwhile was not announced to this node.
                        Some(Received::Confirmed(subject)) => {
                            let subject = std::str::from_utf8(&subject).ok();
                            due.extend(subject.and_then(|one| self.names().channel_of(one)).map(str::to_owned));
                        }
                        None => return,
                    }
                    continue;
                }
                () = self.sync.notified() => {
                    if let Some(sharded) = sharded.clone().filter(|_| updating.is_empty()) {
                        updating.spawn(self.clone().update_missing(sharded));
                    }
                    due.extend(lock(&self.followed).keys().cloned());
                    continue;
                }
                Some(_) = updating.join_next() => continue,
                Some(compared) = comparing.join_next() => {
                    let compared = compared.unwrap_or_default();
                    let failed = compared.failed;
                    behind.extend(compared.behind);
                    if !failed.is_empty() {
                        due.extend(failed);
                        due_at = Instant::now() + COMPARE_AGAIN_AFTER;
                    }
                    continue;
                }
                // In parts: announcements and the heartbeat come in between.
                () = after_messages(handled, part_at), if !behind.is_empty() => {
                    handled = 0;
                    let Some(delivery) = delivery.upgrade() else { return };
                    let max = if sharded.is_some() { COMPARING_SHARDED_MAX } else { COMPARING_MAX };
                    let reads = std::iter::from_fn(|| behind.pop_first()).take(max).map(|channel: String| {
                        let (live, delivery) = (self.clone(), delivery.clone());
                        async move { live.catch_up(&channel, &*delivery).await.then_some(channel) }
                    });
                    let in_parts: Vec<_> = concurrently(max, reads).await.into_iter().flatten().collect();
                    if !in_parts.is_empty() {
                        part_at = Instant::now() + CATCH_UP_PAUSE;
                    }
                    behind.extend(in_parts);
                    continue;
                }
                () = tokio::time::sleep_until(due_at), if !due.is_empty() && comparing.is_empty() && behind.is_empty() => continue,
            };
            (unanswered, handled) = (0, handled + 1);
            let Some(delivery) = delivery.upgrade() else { return };
            let (name, payload) = (message.get_channel_name(), message.get_payload_bytes());
            match self.names().channel_of(name) {
                Some(channel) => {
                    behind.extend(self.handle(channel, payload, &*delivery).then(|| channel.to_owned()));
                }
                None if name == nodes => self.peers.insert(&String::from_utf8_lossy(payload)),
                None if name == inbox => delivery.deliver_from_node(payload),
                None => {}
            }
        }
    }

    /// Returns the channel if something before this is missing.
    fn handle_push(self: &Arc<Self>, push: PushInfo, delivery: &dyn Delivery) -> Option<String> {
        let mut data = push.data.into_iter().map(redis::from_redis_value::<Vec<u8>>);
        let (Some(Ok(subject)), payload) = (data.next(), data.next()) else { return None };
        let channel =
            std::str::from_utf8(&subject).ok().and_then(|subject| self.names().channel_of(subject))?;
        match (push.kind, payload) {
            (PushKind::SMessage, Some(Ok(payload))) => {
                return self.handle(channel, &payload, delivery).then(|| channel.to_owned());
            }
            // The slot has moved to another server, or the last subscriber has left.
            (PushKind::SUnsubscribe, _) if lock(&self.followed).contains_key(channel) => {
                let (live, channel) = (self.clone(), channel.to_owned());
                tokio::spawn(async move {
                    if let Some(sharded) = &live.listening.lock().await.sharded {
                        lock(&sharded.state).subscribed.remove(&channel);
                    }
                    live.update(&channel).await
                });
            }
            _ => {}
        }
        None
    }

    /// Returns whether something before this is missing: then it is to be read, and this with it.
    fn handle(&self, channel: &str, message: &[u8], delivery: &dyn Delivery) -> bool {
        let Some((kind, payload)) = message.split_first() else { return false };
        match *kind {
            EPHEMERAL => {
                if let Ok(publication) = Publication::decode(payload) {
                    delivery.deliver_publication(channel, "", 0, &Arc::new(publication)).finish();
                }
            }
            MEMBERSHIP => {
                if let Ok(push) = Push::decode(payload) {
                    let join = push.join.and_then(|join| join.info).map(Membership::Join);
                    let leave = push.leave.and_then(|leave| leave.info).map(Membership::Leave);
                    join.or(leave).iter().for_each(|one| delivery.deliver_membership(channel, one));
                }
            }
            REMOVED => {
                self.set_reached(channel, None);
                delivery.deliver_history_lost(channel);
            }
            STORED => {
                let mut parts = payload.splitn(3, |byte| *byte == b' ');
                let (Some(epoch), Some(offset), Some(payload)) = (parts.next(), parts.next(), parts.next())
                else {
                    return false;
                };
                let (epoch, offset) = (std::str::from_utf8(epoch), std::str::from_utf8(offset));
                let (Ok(epoch), Ok(Ok(offset))) = (epoch, offset.map(str::parse::<u64>)) else {
                    return false;
                };
                if let Ok(publication) = Publication::decode(payload)
                    && (1..=Position::OFFSET_MAX).contains(&offset)
                {
                    return self.handle_stored(
                        channel,
                        epoch,
                        Publication { offset, ..publication },
                        delivery,
                    );
                }
            }
            _ => {}
        }
        false
    }

    fn handle_stored(
        &self,
        channel: &str,
        epoch: &str,
        publication: Publication,
        delivery: &dyn Delivery,
    ) -> bool {
        let offset = publication.offset;
        let mut complete = Position { offset, epoch: epoch.into() };
        match self.reached(channel) {
            Some(at) if at.complete.epoch == epoch => {
                if offset <= at.delivered {
                    return false;
                }
                // Without a history on this node, there is none to read.
                if offset > at.complete.offset + 1 && delivery.retention(channel).is_some() {
                    return true;
                }
                complete.offset = offset.max(at.complete.offset);
            }
            // Earlier commands of the new history are executed, too.
            Some(_) if channel == COMMANDS => return true,
            Some(_) => delivery.deliver_history_lost(channel),
            None => {}
        }
        let reached = Reached { complete, delivered: offset, awaited_until: None, is_in_parts: false };
        self.set_reached(channel, Some(reached));
        delivery.deliver_publication(channel, epoch, offset - 1, &Arc::new(publication)).finish();
        false
    }

    fn set_reached(&self, channel: &str, reached: Option<Reached>) {
        if let Some(followed) = lock(&self.followed).get_mut(channel) {
            followed.reached = reached;
        }
    }

    /// Compares the positions of channels with what was delivered. Announcements go on meanwhile.
    async fn compare(
        self: Arc<Self>,
        channels: HashSet<String>,
        is_sharded: bool,
        delivery: Weak<dyn Delivery>,
    ) -> Compared {
        let has_failed = Arc::new(AtomicBool::new(false));
        let comparisons = channels.into_iter().map(|channel| {
            let (live, delivery, has_failed) = (self.clone(), delivery.clone(), has_failed.clone());
            async move {
                let retention = delivery.upgrade()?.retention(&channel)?;
                live.reached(&channel)?;
                // In a cluster, another server may answer.
                if !is_sharded && has_failed.load(Ordering::Relaxed) {
                    return Some(Err(channel));
                }
                let part = Part::After { since: 0, limit: 0 };
                let reading = Reading { channel: &channel, part, len_max: 0, retention, is_followed: true };
                match script::read(&live.connection, reading).await {
                    Ok(read) => {
                        let Reached { complete: at, awaited_until, .. } = live.reached(&channel)?;
                        let is_behind = at.epoch != read.position.epoch || at.offset < read.position.offset;
                        // If they do not arrive, the next comparison finds it.
                        let is_awaited = awaited_until.is_some_and(|until| Instant::now() < until);
                        (is_behind && !is_awaited).then_some(Ok(channel))
                    }
                    Err(error) => {
                        if !has_failed.swap(true, Ordering::Relaxed) {
                            warn!(channel, %error, "histories were not compared");
                        }
                        Some(Err(channel))
                    }
                }
            }
        });
        let max = if is_sharded { COMPARING_SHARDED_MAX } else { COMPARING_MAX };
        let mut compared = Compared::default();
        for channel in concurrently(max, comparisons).await.into_iter().flatten() {
            match channel {
                Ok(behind) => compared.behind.push(behind),
                Err(failed) => compared.failed.push(failed),
            }
        }
        compared
    }

    fn reached(&self, channel: &str) -> Option<Reached> {
        lock(&self.followed).get(channel)?.reached.clone()
    }

    /// Delivers what was not announced, or reports that the history no longer contains all of it. Returns whether there is more.
    async fn catch_up(&self, channel: &str, delivery: &dyn Delivery) -> bool {
        let Some(retention) = delivery.retention(channel) else { return false };
        let Some(reached) = self.reached(channel) else { return false };
        match self.read_missing(channel, reached, retention, delivery).await {
            Ok(has_more) => has_more,
            Err(error) => {
                // Tried again with the next comparison, or when the next publication has a gap before it.
                if self.warnings.may_warn(self.clock.now()) {
                    warn!(channel, %error, "a history was not read");
                }
                false
            }
        }
    }

    async fn read_missing(
        &self,
        channel: &str,
        reached: Reached,
        retention: Retention,
        delivery: &dyn Delivery,
    ) -> Result<bool, EngineError> {
        let Reached { complete: since, is_in_parts, .. } = reached;
        let CatchUp { count_max, len_max } = CatchUp::new(delivery, channel);
        let read_after = async |since| {
            let part = Part::After { since, limit: READ_MAX.min(count_max) };
            let reading = Reading { channel, part, len_max, retention, is_followed: true };
            script::read(&self.connection, reading).await
        };
        let Read { position, mut publications } = read_after(since.offset).await?;
        // Offsets are consecutive.
        let next = publications.first().map_or(position.offset, |first| first.offset.saturating_sub(1));
        let is_lost = !since.is_in(&position.epoch) || next != since.offset;
        publications.truncate(count_within(&publications, len_max));
        let end = publications.last().map_or(position.offset, |last| last.offset);
        let has_more = end < position.offset;
        let caught_up =
            CaughtUp::decide(delivery, channel, is_lost, has_more, is_in_parts, &mut publications).await;
        let is_in_parts = caught_up == CaughtUp::Part;
        if caught_up == CaughtUp::Lost && channel == COMMANDS {
            // The commands that are left have not been executed.
            publications = read_after(0).await?.rest(&since).publications;
        }
        let reach = |offset| {
            let complete = Position { offset, epoch: position.epoch.clone() };
            let reached = Reached { complete, delivered: offset, awaited_until: None, is_in_parts };
            self.set_reached(channel, Some(reached));
        };
        // In turns, so that the subscribers are written to in between. After each it may be dropped: the next comparison finds the rest.
        for turn in publications.chunks(DELIVERIES_PER_TURN) {
            turn.last().into_iter().for_each(|last| reach(last.offset));
            for publication in turn {
                let previous = publication.offset.saturating_sub(1);
                delivery.deliver_publication(channel, &position.epoch, previous, publication).finish();
            }
            tokio::task::yield_now().await;
        }
        reach(if is_in_parts { end } else { position.offset });
        Ok(is_in_parts)
    }
}
