//! The state of a node: its connections, its channels, and its side of the engine.
//!
//! Layers: `runtimes`, `publications` → `figures` → `presence` → `subscriptions` → `connections` → `delivery`, `cluster`.

mod cluster;
mod connections;
mod delivery;
mod figures;
mod presence;
mod publications;
mod runtimes;
mod subscriptions;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tracing::warn;

use crate::calls::Calls;
use crate::changes::Changes;
use crate::channels::Channels;
use crate::clients::Clients;
use crate::clock::{Clock, WarningLimit};
use crate::config::ChannelOptions;
use crate::engine::{Delivery, Engine};
use crate::events::{Events, Host};
use crate::hooks::Hooks;
use crate::idempotency::Idempotency;
use crate::logins::Logins;
use crate::metrics::Metrics;
use crate::random::token;
use crate::sessions::Sessions;
use crate::settings::Settings;

pub use self::publications::PublishError;
pub(crate) use self::publications::retention;
use self::runtimes::Runtimes;

/// Everything that the connections of a node share.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) clock: Clock,
    pub(crate) channels: Channels,
    pub(crate) hooks: Hooks,
    pub(crate) metrics: Metrics,
    pub(crate) idempotency: Idempotency,
    /// For warnings about what clients ask for.
    pub(crate) warnings: WarningLimit,
    /// For wrong API keys, which clients' warnings must not hide.
    key_warnings: WarningLimit,
    /// For what the engine fails to do for clients.
    engine_warnings: WarningLimit,
    /// For clients that are too slow.
    slow_warnings: WarningLimit,
    /// Of the admin page.
    pub(crate) logins: Logins,
    pub(crate) events: Arc<Events>,
    /// Of this node.
    pub(crate) sessions: Arc<Sessions>,
    calls: Calls,
    engine: Arc<dyn Engine>,
    settings: RwLock<Arc<Settings>>,
    clients: Mutex<Clients>,
    /// Another connection is to be woken next.
    next_has_changed: Arc<Notify>,
    changes: Mutex<Changes>,
    engine_has_started: OnceLock<()>,
    runtimes: Runtimes,
    this: Weak<Node>,
}

impl std::fmt::Debug for dyn Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl Node {
    pub(crate) fn new(hooks: Hooks, engine: Arc<dyn Engine>, settings: Settings) -> Arc<Self> {
        let clock = Clock::new();
        Arc::new_cyclic(|this| Self {
            name: engine.node_name().map_or_else(token, str::to_owned),
            clock: clock.clone(),
            channels: Channels::new(),
            hooks,
            metrics: Metrics::default(),
            idempotency: Idempotency::default(),
            warnings: WarningLimit::default(),
            key_warnings: WarningLimit::default(),
            engine_warnings: WarningLimit::default(),
            slow_warnings: WarningLimit::default(),
            logins: Logins::default(),
            events: Arc::new(Events::new(engine.clone(), clock)),
            sessions: Arc::default(),
            calls: Calls::default(),
            engine,
            settings: RwLock::new(Arc::new(settings)),
            clients: Mutex::default(),
            next_has_changed: Arc::default(),
            changes: Mutex::default(),
            engine_has_started: OnceLock::new(),
            runtimes: Runtimes::default(),
            this: this.clone(),
        })
    }

    pub(crate) fn engine(&self) -> &dyn Engine {
        &*self.engine
    }

    pub(crate) fn settings(&self) -> Arc<Settings> {
        self.settings.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_settings(&self, settings: Settings) {
        let settings = Arc::new(settings);
        let before =
            std::mem::replace(&mut *self.settings.write().unwrap_or_else(PoisonError::into_inner), settings);
        // With its connections to the backend: not under the lock.
        drop(before);
    }

    /// The options of a channel.
    pub(crate) fn options(&self, channel: &str) -> Option<ChannelOptions> {
        self.settings().config.channel_options(channel).cloned()
    }

    /// Starts the engine, and the background tasks.
    pub(crate) fn start(&self) {
        self.engine_has_started.get_or_init(|| {
            if let Some(node) = self.this.upgrade() {
                let delivery: Arc<dyn Delivery> = node;
                self.engine.start(Arc::downgrade(&delivery));
            }
        });
        self.start_tasks();
    }

    /// Starts the background tasks, unless they run: the runtime that they were in may have ended.
    fn start_tasks(&self) {
        if self.runtimes.begin() {
            let host: Weak<dyn Host> = self.this.clone();
            self.events.start(&host);
            tokio::spawn(maintain(self.this.clone()));
            tokio::spawn(presence::refresh_presence(self.this.clone()));
            tokio::spawn(connections::wake_clients(self.this.clone()));
        }
    }

    /// Spawns a task, which is dropped where its runtime ends, or there is none.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.start_tasks();
        if let Some(runtime) = self.runtimes.get() {
            runtime.spawn(task);
        }
    }
}

/// Drops expired publications, and makes the changes that have no task any more, every second.
async fn maintain(node: Weak<Node>) {
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(node) = node.upgrade() else { return };
        if let Some(step) = node.clock.correct() {
            warn!(?step, "the machine was suspended: the clock is set forward");
        }
        node.engine.maintain().await;
        node.idempotency.expire(node.clock.now());
        node.resume_changes();
    }
}
