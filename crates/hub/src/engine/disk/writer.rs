//! The writer of the histories on disk: the only one that changes the file, and the histories in memory.
//!
//! ```text
//!            a commit fails                    it was opened, and the channels of
//!   Open --------------------> Closed(delay)   the failed commit were written again
//!    ^                            |
//!    '----------------------------'
//! ```

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tracing::{error, info, warn};

use super::committer::BATCH_MAX;
use super::file::{self, Change, Content, Key, Remembered, Replacement, Store};
use crate::engine::logs::Decision;
use crate::engine::status::Status;
use crate::engine::{EngineError, IDEMPOTENCY_TTL, MemoryEngine};
use crate::history::{Log, Position, Retention};
use crate::idempotency::{KEYS_MAX, Origin};
use crate::protocol::Publication;
use crate::random::token;

/// The first delay before a file is opened again after a failure. It doubles with each further one.
const RETRY_AFTER: Duration = Duration::from_millis(100);
const RETRY_AFTER_MAX: Duration = Duration::from_secs(5);

/// Opens the file again.
pub(super) type Open = Box<dyn FnMut() -> Result<Store, String> + Send>;

/// A command for the writer.
pub(super) enum Job {
    Publish {
        channel: Arc<str>,
        publication: Box<Publication>,
        retention: Retention,
        /// The idempotency key, or an empty one.
        key: Arc<str>,
        done: Done,
    },
    /// Drops what was decided, unless the history has changed since.
    Drop { channel: Arc<str>, decision: Decision, done: Option<Done> },
    /// Forgets expired keys.
    ExpireKeys,
    /// Forgets expired keys, and drops what is overdue, in parts.
    Maintain(Overdue),
}

/// Publications and histories to drop. The permit is held until they are dropped; then the next ones are decided.
pub(super) struct Overdue {
    pub(super) drops: VecDeque<(Arc<str>, Decision)>,
    pub(super) _permit: OwnedSemaphorePermit,
}

pub(super) type Done = oneshot::Sender<Result<Position, EngineError>>;

/// See the module.
pub(super) struct Writer {
    memory: Arc<MemoryEngine>,
    open: Open,
    file: File,
    keys: Keys,
    /// The channels whose content in the file may differ from that in memory, because a commit failed.
    uncertain: HashSet<Arc<str>>,
    /// The part of it that is still to be dropped.
    overdue: Option<Overdue>,
    status: Arc<Status>,
}

enum File {
    Open(Store),
    Closed { reason: String, retry_at: Duration, delay: Duration },
}

/// The remembered keys. All of them are stored.
#[derive(Default)]
struct Keys {
    positions: HashMap<Key, Remembered>,
    /// By [`Origin`], in the order in which they expire.
    expiries: [VecDeque<(Duration, Key)>; 2],
}

impl Keys {
    fn new(positions: HashMap<Key, Remembered>) -> Self {
        let mut sorted: Vec<_> =
            positions.iter().map(|(key, known)| (known.expires_at, key.clone())).collect();
        sorted.sort_unstable();
        let mut keys = Self { positions, ..Self::default() };
        sorted
            .into_iter()
            .for_each(|(expires_at, key)| keys.expiries_like(&key).push_back((expires_at, key)));
        keys
    }

    fn expiries_like(&mut self, (_, key): &Key) -> &mut VecDeque<(Duration, Key)> {
        &mut self.expiries[Origin::of_stored(key) as usize]
    }

    fn remember(&mut self, key: Key, known: Remembered) {
        self.expiries_like(&key).push_back((known.expires_at, key.clone()));
        self.positions.insert(key, known);
    }

    fn forget(&mut self, key: &Key) {
        let expiries = self.expiries_like(key);
        // A second job of the batch may have planned the same.
        if expiries.front().is_some_and(|(_, oldest)| oldest == key) {
            expiries.pop_front();
        }
        self.positions.remove(key);
    }

    /// Those that have expired, and the oldest of each origin that are more than it may have.
    fn expired(&self, now: Duration, keys_max: usize) -> impl Iterator<Item = &Key> {
        self.expiries.iter().flat_map(move |expiries| {
            let excess = expiries.len().saturating_sub(keys_max);
            let is_expired =
                move |(index, (at, _)): &(usize, &(Duration, Key))| *at <= now || *index < excess;
            expiries.iter().enumerate().take_while(is_expired).map(|(_, (_, key))| key)
        })
    }
}

/// A job and its effects, which take place when they are stored.
struct Planned {
    effects: Vec<Effect>,
    result: Result<Position, EngineError>,
    done: Option<Done>,
}

struct Effect {
    change: Change,
    /// For a publication.
    retention: Option<Retention>,
}

/// The plan of a batch's jobs so far.
#[derive(Default)]
struct Plan {
    jobs: Vec<Planned>,
    /// The positions of channels after the planned jobs; `None` if the history was dropped.
    positions: HashMap<Arc<str>, Option<Position>>,
    keys: HashMap<Key, Position>,
}

impl Writer {
    /// Loads all histories into memory. `open` opens the file again after a failure.
    pub(super) fn load(memory: Arc<MemoryEngine>, store: Store, open: Open) -> Result<Self, String> {
        let now = memory.now();
        let Content { logs, keys, unreadable } = store.call(|database| file::load(database, now))?;
        if unreadable > 0 {
            warn!(
                publications = unreadable,
                "the file of histories has damaged publications, which are left out"
            );
        }
        for (channel, log) in logs {
            memory.logs().restore(&channel, log);
        }
        let keys = Keys::new(keys);
        let (uncertain, overdue, status) = Default::default();
        Ok(Self { memory, open, file: File::Open(store), keys, uncertain, overdue, status })
    }

    pub(super) fn status(&self) -> Arc<Status> {
        self.status.clone()
    }

    /// When [`handle`](Self::handle) has to be called although there is no job; `None` while it need not.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        match &self.file {
            File::Open(_) => self.overdue.as_ref().map(|_| Duration::ZERO),
            File::Closed { retry_at, .. } => Some(retry_at.saturating_sub(self.memory.now())),
        }
    }

    /// Carries out jobs in their order: stores their effects, applies them to memory, answers.
    pub(super) fn handle(&mut self, mut batch: Vec<Job>) {
        let now = self.memory.now();
        self.reopen_if_due(now);
        if let File::Open(_) = self.file {
            self.add_drops(&mut batch);
        }
        let store = match &self.file {
            File::Open(store) => store,
            File::Closed { reason, .. } => {
                let refusal = EngineError::Unavailable(reason.clone());
                batch
                    .into_iter()
                    .filter_map(Job::done)
                    .for_each(|done| drop(done.send(Err(refusal.clone()))));
                return;
            }
        };
        let plan = self.plan(batch, now);
        let effects = plan.jobs.iter().flat_map(|job| &job.effects);
        let changes: Vec<_> = effects.map(|effect| effect.change.clone()).collect();
        let written = match changes.is_empty() {
            true => Ok(()),
            false => store.call(|database| file::write(database, &changes)),
        };
        match written {
            Ok(()) => plan.jobs.into_iter().for_each(|job| self.apply(job, now)),
            Err(reason) => {
                // It may have been stored nevertheless.
                self.uncertain.extend(changes.iter().map(|change| change.channel().clone()));
                self.close(&reason, now, RETRY_AFTER);
                for Planned { result, done, .. } in plan.jobs {
                    if let Some(done) = done {
                        let _ = done.send(result.and(Err(EngineError::Unavailable(reason.clone()))));
                    }
                }
            }
        }
    }

    /// Adds a part of what is overdue to a batch, so that no publication waits for all of it.
    fn add_drops(&mut self, batch: &mut Vec<Job>) {
        for job in &mut *batch {
            if let Job::Maintain(_) = job
                && let Job::Maintain(overdue) = std::mem::replace(job, Job::ExpireKeys)
            {
                self.overdue = Some(overdue);
            }
        }
        let Some(Overdue { drops, .. }) = &mut self.overdue else { return };
        let part = drops.drain(..drops.len().min(BATCH_MAX));
        batch.extend(part.map(|(channel, decision)| Job::Drop { channel, decision, done: None }));
        self.overdue.take_if(|overdue| overdue.drops.is_empty());
    }

    fn plan(&self, batch: Vec<Job>, now: Duration) -> Plan {
        let mut plan = Plan::default();
        for job in batch {
            let planned = match job {
                Job::Publish { channel, publication, retention, key, done } => {
                    let (effects, result) =
                        self.plan_publish(&mut plan, &channel, publication, retention, key, now);
                    Planned { effects, result, done: Some(done) }
                }
                Job::Drop { channel, decision, done } => {
                    let mut effects = Vec::new();
                    if plan.permits(&channel, &decision) && self.memory.logs().holds(&channel, &decision) {
                        if decision.ends_history() {
                            plan.positions.insert(channel.clone(), None);
                        }
                        effects.push(Change::Drop { channel, decision }.into());
                    }
                    Planned { effects, result: Ok(Position::default()), done }
                }
                Job::ExpireKeys => {
                    let expired = self.keys.expired(now, KEYS_MAX);
                    let effects = expired.map(|key| Change::Forget(key.clone()).into()).collect();
                    Planned { effects, result: Ok(Position::default()), done: None }
                }
                // Its parts are jobs of their own.
                Job::Maintain(_) => continue,
            };
            plan.jobs.push(planned);
        }
        plan
    }

    fn plan_publish(
        &self,
        plan: &mut Plan,
        channel: &Arc<str>,
        mut publication: Box<Publication>,
        retention: Retention,
        key: Arc<str>,
        now: Duration,
    ) -> (Vec<Effect>, Result<Position, EngineError>) {
        let key: Option<Key> = Some((channel.clone(), key)).filter(|(_, key)| !key.is_empty());
        if let Some(key) = &key {
            let remembered = self.keys.positions.get(key).map(|known| &known.position);
            if let Some(position) = remembered.or_else(|| plan.keys.get(key)) {
                return (Vec::new(), Ok(position.clone()));
            }
        }
        let mut position = match plan.positions.get(channel) {
            Some(Some(position)) => position.clone(),
            Some(None) => Position { offset: 0, epoch: token() },
            None => match self.memory.logs().read(channel, now, Log::position) {
                Ok(position) => position,
                Err(error) => return (Vec::new(), Err(error)),
            },
        };
        position.offset += 1;
        plan.positions.insert(channel.clone(), Some(position.clone()));
        publication.offset = position.offset;
        let append = Change::Append {
            channel: channel.clone(),
            position: position.clone(),
            publication,
            expires_at: now.saturating_add(retention.ttl),
            keep_from: (position.offset + 1).saturating_sub(retention.size as u64),
        };
        let mut effects = vec![Effect { change: append, retention: Some(retention) }];
        if let Some(key) = key {
            plan.keys.insert(key.clone(), position.clone());
            let expires_at = now.saturating_add(IDEMPOTENCY_TTL);
            effects.push(Change::Remember(key, Remembered { position: position.clone(), expires_at }).into());
        }
        (effects, Ok(position))
    }

    /// Applies what was stored to memory, and answers.
    fn apply(&mut self, Planned { effects, result, done }: Planned, now: Duration) {
        for Effect { change, retention } in effects {
            match change {
                Change::Append { channel, position, publication, .. } => {
                    let Some(retention) = retention else { continue };
                    let delivery = self.memory.delivery();
                    self.memory.logs().append_written(
                        &channel,
                        &position,
                        *publication,
                        retention,
                        now,
                        delivery.as_deref(),
                    );
                }
                Change::Drop { channel, decision } => {
                    if self.memory.logs().drop_written(&channel, &decision) {
                        self.memory.deliver_history_lost(&channel);
                    }
                }
                Change::Remember(key, known) => self.keys.remember(key, known),
                Change::Forget(key) => self.keys.forget(&key),
                Change::Replace { .. } => {}
            }
        }
        if let Some(done) = done {
            // The publisher may have been cancelled.
            let _ = done.send(result);
        }
    }

    /// Closes the file, which redb does not use any more after an error.
    fn close(&mut self, reason: &str, now: Duration, delay: Duration) {
        if self.status.failed(reason) {
            error!(reason, "histories cannot be written; publications are refused until they can");
        }
        self.file = File::Closed { reason: reason.to_owned(), retry_at: now + delay, delay };
    }

    /// Opens the file again, and makes it agree with memory.
    fn reopen_if_due(&mut self, now: Duration) {
        let File::Closed { retry_at, delay, .. } = &self.file else { return };
        if now < *retry_at {
            return;
        }
        let delay = (*delay * 2).min(RETRY_AFTER_MAX);
        match self.reopen() {
            Ok(store) => {
                info!("histories are written again");
                self.status.succeeded();
                self.uncertain.clear();
                self.file = File::Open(store);
            }
            Err(reason) => self.close(&reason, now, delay),
        }
    }

    fn reopen(&mut self) -> Result<Store, String> {
        let store = (self.open)()?;
        // The file was removed or set aside: everything is written into the new one.
        if store.call(file::is_empty)? {
            self.uncertain.extend(self.memory.logs().channels());
        }
        let changes = self.replacements();
        store.call(|database| file::write(database, &changes))?;
        Ok(store)
    }

    /// The content of the uncertain channels in memory: everything that was acknowledged.
    fn replacements(&self) -> Vec<Change> {
        let mut keys = keys_of(&self.uncertain, &self.keys.positions);
        let replacement = |channel: &Arc<str>| {
            let log = self.memory.logs().peek(channel, |log| Replacement {
                position: log.position(),
                publications: log.kept_from(0).map(|(one, expires_at)| (one.clone(), expires_at)).collect(),
            });
            // A history that only readers have begun is not stored.
            let log = log.filter(|log| log.position.offset > 0);
            Change::Replace { channel: channel.clone(), log, keys: keys.remove(channel).unwrap_or_default() }
        };
        self.uncertain.iter().map(replacement).collect()
    }
}

/// The remembered keys of each of these channels.
fn keys_of<'a>(
    channels: &HashSet<Arc<str>>,
    positions: impl IntoIterator<Item = (&'a Key, &'a Remembered)>,
) -> HashMap<&'a Arc<str>, Vec<(Key, Remembered)>> {
    let mut keys = HashMap::<_, Vec<_>>::new();
    for (key, known) in positions {
        if channels.contains(&key.0) {
            keys.entry(&key.0).or_default().push((key.clone(), known.clone()));
        }
    }
    keys
}

impl Plan {
    /// Whether the jobs that were planned before leave a decision about the history in memory valid.
    fn permits(&self, channel: &str, decision: &Decision) -> bool {
        match self.positions.get(channel) {
            None => true,
            Some(None) => false,
            Some(Some(position)) => {
                position.epoch == decision.epoch() && !matches!(decision, Decision::Forget { .. })
            }
        }
    }
}

impl Job {
    fn done(self) -> Option<Done> {
        match self {
            Self::Publish { done, .. } => Some(done),
            Self::Drop { done, .. } => done,
            Self::ExpireKeys | Self::Maintain(_) => None,
        }
    }
}

impl From<Change> for Effect {
    fn from(change: Change) -> Self {
        Self { change, retention: None }
    }
}

impl Change {
    fn channel(&self) -> &Arc<str> {
        match self {
            Self::Append { channel, .. } | Self::Drop { channel, .. } | Self::Replace { channel, .. } => {
                channel
            }
            Self::Remember((channel, _), _) | Self::Forget((channel, _)) => channel,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_clients_push_out_no_others() {
        let at = Duration::from_secs;
        let key =
            |origin: Origin, number: u64| (Arc::from("a"), Arc::from(origin.stored(&number.to_string())));
        let known = |second| Remembered { position: Position::default(), expires_at: at(second) };
        let mut keys = Keys::new(HashMap::from([(key(Origin::Server, 1), known(10))]));
        (2..7).for_each(|number| keys.remember(key(Origin::Client, number), known(10 + number)));
        let clients = |numbers: std::ops::Range<u64>| numbers.map(|number| key(Origin::Client, number));
        assert_eq!(keys.expired(at(9), 3).cloned().collect::<Vec<_>>(), clients(2..4).collect::<Vec<_>>());
        clients(2..4).chain(clients(2..4)).for_each(|key| keys.forget(&key));
        assert_eq!(keys.expired(at(9), 3).count(), 0);
        let expired: Vec<_> = [key(Origin::Server, 1)].into_iter().chain(clients(4..6)).collect();
        assert_eq!(keys.expired(at(15), 3).cloned().collect::<Vec<_>>(), expired);
    }

    #[test]
    fn each_remembered_key_is_looked_at_once_for_all_channels() {
        let channel = |number: usize| Arc::from(number.to_string());
        let key = |number| (channel(number / 2), channel(number));
        let position = Position { offset: 1, epoch: "epoch".into() };
        let known = Remembered { position, expires_at: Duration::ZERO };
        let positions: HashMap<Key, _> = (0..400).map(|number| (key(number), known.clone())).collect();
        let channels: HashSet<_> = (0..100).map(channel).collect();
        let mut looked_at = 0;
        let keys = keys_of(&channels, positions.iter().inspect(|_| looked_at += 1));
        assert_eq!(looked_at, 400);
        assert_eq!(keys.len(), 100);
        assert!(keys.iter().all(|(channel, keys)| channels.contains(*channel) && keys.len() == 2));
    }
}
