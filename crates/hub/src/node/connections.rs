//! The connections of a node: their beginning, their deadlines and their end.

use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::Node;
use crate::budget::{self, charge};
use crate::client::{Client, Identity, Page, Subscription, Transport};
use crate::events::Host;
use crate::hooks::DisconnectEvent;
use crate::metrics::SlowClient;
use crate::opened::Opened;
use crate::outbox::Outbox;
use crate::protocol::Disconnect;
use crate::settings::Settings;
use crate::shards::lock;

/// The maximum number of connections that are woken while no other connection can be added.
const WOKEN_MAX: usize = 256;

impl Node {
    /// Adds a connection. An error if there are too many, or the hub is shutting down.
    pub(crate) fn accept(
        &self,
        transport: Transport,
        peer: Option<SocketAddr>,
        page: Option<Page>,
    ) -> Result<Arc<Client>, Disconnect> {
        self.start();
        let settings = self.settings();
        let config = &settings.config.client;
        let outbox = Outbox::new(config.queue_len_max, config.slow);
        let client = Client::new(transport, peer, page, outbox);
        let added = lock(&self.clients).add(client, config.connections_max);
        added.inspect_err(|reason| self.metrics.ended.increment(reason.code().into()))
    }

    /// Whether this time has come. Otherwise the outbox of the connection wakes its task then, or before.
    pub(crate) fn is_due(&self, client: &Arc<Client>, at: Duration) -> bool {
        if client.wakes_at.get().is_some_and(|wakes_at| wakes_at <= at) || at == Duration::MAX {
            return false;
        }
        if at <= self.clock.now() {
            return true;
        }
        if lock(&self.clients).timers.wake_at(client, at) {
            self.next_has_changed.notify_one();
        }
        false
    }

    /// When a connection ends if nothing is renewed, which is `expired_grace` after a token expires, and the reason.
    pub(crate) fn ends_at(&self, client: &Client) -> Option<(Duration, Disconnect)> {
        let (at, reason) = client.first_expiry()?;
        Some((at.saturating_add(self.settings().config.client.expired_grace), reason))
    }

    /// Ends a connection whose grace period is over, whatever its session does.
    pub(crate) fn end_expired(&self, client: &Client) {
        if let Some((at, reason)) = self.ends_at(client)
            && at <= self.clock.now()
        {
            client.outbox.end(reason);
        }
    }

    /// Registers the user of a connection; returns false if the user has too many connections.
    pub(crate) fn identify(&self, client: &Arc<Client>, identity: Identity) -> bool {
        let user_max = self.settings().config.client.connections_per_user_max;
        let Ok(missed) = lock(&self.clients).identify(client, identity, user_max) else { return false };
        if let Some(reason) = missed {
            client.outbox.end(reason);
        }
        self.metrics.connected.increment();
        true
    }

    /// Ends a connection, which receives what was published before. Returns the number of its channels.
    pub(super) fn end(&self, client: &Client, reason: Disconnect) -> usize {
        let channels: Vec<_> =
            lock(&client.subscriptions).iter().map(|(channel, _)| channel.clone()).collect();
        channels.iter().for_each(|channel| self.settle(channel));
        client.outbox.end(reason);
        channels.len()
    }

    /// Ends all subscriptions of a connection, which cannot subscribe any more. Returns when what follows from that is done, which is so
    /// also if the caller does not wait for it.
    pub(crate) async fn leave_all(&self, client: &Arc<Client>, reason: &Disconnect) {
        let mut ended = Vec::new();
        for channel in self.end_all(client, reason) {
            ended.push(channel);
            charge(budget::LEAVE).await;
        }
        for channel in ended {
            self.changes_made(&channel, client).await;
        }
    }

    /// The same, in steps, and without waiting.
    fn end_all<'a>(&'a self, client: &'a Arc<Client>, reason: &'a Disconnect) -> Ending<'a> {
        client.outbox.end(reason.clone());
        let subscriptions = lock(&client.subscriptions).take().into_iter();
        Ending { node: self, client, reason, subscriptions }
    }

    /// Removes a connection that has ended.
    pub(crate) async fn forget(&self, client: &Arc<Client>, reason: Disconnect) {
        self.leave_all(client, &reason).await;
        self.remove(client, &reason);
        if let (true, Some(hook)) = (client.has_connected(), &self.hooks.disconnect) {
            hook(DisconnectEvent { client: client.id.to_string(), user: client.user().into(), reason }).await;
        }
    }

    /// The same without waiting, and without informing the application.
    pub(crate) fn remove(&self, client: &Arc<Client>, reason: &Disconnect) {
        drop(self.end_all(client, reason));
        loop {
            let Some(opened) = lock(&self.clients).remove(client) else { break };
            self.events.end(opened, reason.code().into(), reason.reason());
        }
    }

    /// The connections of a user, or the one with this id.
    pub(crate) fn clients_of(&self, user: &str, client: &str) -> Vec<Arc<Client>> {
        lock(&self.clients).of(user, client)
    }

    pub(crate) fn all_clients(&self) -> Vec<Arc<Client>> {
        lock(&self.clients).iter().cloned().collect()
    }

    pub(crate) fn clients_len(&self) -> usize {
        lock(&self.clients).len()
    }

    pub(crate) fn users_len(&self) -> usize {
        lock(&self.clients).users_len()
    }

    /// Ends every connection, also if the caller does not wait for it. Returns when all have disconnected and what follows from that is
    /// done, or soon after `grace`.
    pub(crate) async fn shut_down(self: &Arc<Self>, grace: Duration) {
        let until = self.clock.instant(self.clock.now().saturating_add(grace));
        let clients: Vec<_> = {
            let mut clients = lock(&self.clients);
            clients.close();
            clients.iter().cloned().collect()
        };
        let node = self.clone();
        let ending = tokio::spawn(async move {
            for client in &clients {
                charge(1 + node.end(client, Disconnect::Shutdown)).await;
            }
        });
        // It fails only where its runtime ends.
        let _ = ending.await;
        let gone = async {
            while self.clients_len() > 0 || !lock(&self.changes).is_empty() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let _ = tokio::time::timeout_at(until, gone).await;
        // A reload may have removed the backend.
        let until =
            if self.settings().proxies.events.is_some() { until } else { tokio::time::Instant::now() };
        self.events.finish(until, self.clients_len() == 0).await;
    }

    /// At most `max` clients whose send queues are not empty, the longest queue first.
    pub(crate) fn slowest(&self, max: usize) -> Vec<SlowClient> {
        let clients = lock(&self.clients);
        let queued = clients.iter().map(|client| (client.outbox.backlog(), client));
        let mut slow: Vec<_> = queued.filter(|(backlog, _)| backlog.queued > 0).collect();
        slow.sort_unstable_by_key(|(backlog, _)| std::cmp::Reverse(backlog.queued));
        slow.truncate(max);
        slow.into_iter().map(|(backlog, client)| SlowClient::new(client, backlog)).collect()
    }

    /// Notes that the end of a connection is to be reported.
    pub(crate) fn note_opened(&self, client: &Client, opened: Opened) {
        lock(&self.clients).note_opened(client, opened);
    }
}

/// Ends the subscriptions of a connection one by one, also if it is dropped. Returns the channels.
struct Ending<'a> {
    node: &'a Node,
    client: &'a Arc<Client>,
    reason: &'a Disconnect,
    subscriptions: std::vec::IntoIter<(Arc<str>, Subscription)>,
}

impl Iterator for Ending<'_> {
    type Item = Arc<str>;

    fn next(&mut self) -> Option<Self::Item> {
        let Self { node, client, reason, subscriptions } = self;
        let (channel, active) = subscriptions.find_map(|(channel, subscription)| match subscription {
            Subscription::Active(active) => Some((channel, active)),
            Subscription::Pending(_) => None,
        })?;
        node.left(lock(&node.changes), &channel, client, active, reason.code().into(), reason.reason());
        Some(channel)
    }
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.for_each(drop);
    }
}

/// Wakes the tasks of connections whose time has come. It looks once a second at least: the machine may have been suspended.
pub(super) async fn wake_clients(node: Weak<Node>) {
    loop {
        let Some(node) = node.upgrade() else { return };
        let now = node.clock.now();
        let (due, next) = {
            let timers = &mut lock(&node.clients).timers;
            (timers.take_due(now, WOKEN_MAX), timers.next())
        };
        due.iter().for_each(|client| client.outbox.wake());
        let next = node.clock.instant(next.min(now + Duration::from_secs(1)));
        let has_changed = node.next_has_changed.clone();
        drop((node, due));
        tokio::select! {
            () = tokio::time::sleep_until(next) => {}
            () = has_changed.notified() => {}
        }
        charge(1).await;
    }
}

impl Host for Node {
    fn settings(&self) -> Arc<Settings> {
        Self::settings(self)
    }

    fn opened(&self) -> Vec<Opened> {
        let (mut all, clients): (Vec<_>, Vec<_>) = {
            let clients = lock(&self.clients);
            (clients.opened().values().cloned().collect(), clients.iter().cloned().collect())
        };
        for client in clients {
            let subscriptions = lock(&client.subscriptions);
            all.extend(subscriptions.iter().filter_map(|(_, subscription)| match subscription {
                Subscription::Active(active) => active.opened().cloned(),
                Subscription::Pending(pending) => pending.opened.get().cloned(),
            }));
        }
        all
    }

    fn end_opened(&self) {
        let clients: Vec<_> = {
            let clients = lock(&self.clients);
            clients.iter().map(|client| (client.clone(), clients.opened().contains_key(&client.id))).collect()
        };
        for (client, is_opened) in clients {
            // Those of a connection that is older than the setting `events` may be reported.
            let has_opened = || {
                lock(&client.subscriptions).iter().any(|(_, subscription)| match subscription {
                    Subscription::Active(active) => active.opened().is_some(),
                    Subscription::Pending(_) => true,
                })
            };
            if is_opened || has_opened() {
                client.outbox.end(Disconnect::ForceReconnect);
            }
        }
    }
}
