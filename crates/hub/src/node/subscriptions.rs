//! The subscriptions of a node's connections: how they end, and what follows from that in its order.

use std::sync::{Arc, MutexGuard};

use super::Node;
use crate::budget::{self, ANNOUNCED_PER_UNIT, charge};
use crate::changes::{Change, Changes, Key};
use crate::client::{Active, Client, Format, Subscription};
use crate::engine::Membership;
use crate::opened::Opened;
use crate::outbox::Later;
use crate::protocol::{Disconnect, ErrorCode, Push, UnsubscribeCode, UnsubscribePush};
use crate::shards::lock;

impl Node {
    /// The record of a connection or subscription that is about to open; `None` if its end is not reported.
    pub(crate) fn prepare(&self, client: &Client, channel: Option<&str>) -> Option<Opened> {
        self.settings().proxies.events.as_ref()?;
        Some(self.events.prepare(&client.id.text(), client.user(), channel))
    }

    /// Ends a subscription, which is not listed any more.
    pub(super) fn left(
        &self,
        changes: MutexGuard<'_, Changes>,
        channel: &str,
        client: &Arc<Client>,
        active: Active,
        code: u32,
        reason: &str,
    ) {
        self.channels.remove(channel, active.key());
        // While the changes are locked: a node without connections and changes has reported all ends.
        if let Some(opened) = active.opened() {
            self.events.end(opened.clone(), code, reason);
        }
        self.change(changes, channel, client, Change::Leave(active));
        self.engine.unsubscribe(channel);
    }

    /// Removes from presence what a subscription has added that was given up before it started.
    pub(crate) fn unlist(&self, channel: &str, client: &Arc<Client>) {
        self.change(lock(&self.changes), channel, client, Change::Unlist);
    }

    /// Informs the other subscribers of the end of a subscription. It may be done twice. Returns what it has cost.
    async fn leave(&self, channel: &str, client: &Client, active: &Active) -> usize {
        if active.presence {
            self.remove_presence(channel, client).await;
        }
        match active.announced {
            true => self.announce(channel, Membership::Leave(client.info(active.info()))).await,
            false => 0,
        }
    }

    async fn remove_presence(&self, channel: &str, client: &Client) {
        if let Err(error) = self.update_presence(channel, client).await {
            self.note_engine_failure(channel, &error, "presence was not removed");
        }
    }

    /// Returns what it has cost.
    async fn announce(&self, channel: &str, membership: Membership) -> usize {
        if let Err(error) = self.engine.publish_membership(channel, membership).await {
            self.note_engine_failure(channel, &error, "a join or a leave was not announced");
        }
        self.channels.subscribers(channel) / ANNOUNCED_PER_UNIT
    }

    /// Ends a subscription from the server's side, and with it a connection that has no other. What is published after this returns is
    /// not forwarded.
    pub(crate) fn unsubscribe(&self, channel: &str, client: &Arc<Client>, code: UnsubscribeCode) {
        self.settle(channel);
        if client.format() == Format::Bare && lock(&client.subscriptions).get(channel).is_some() {
            // RFC 6455 §7.4.1: the code for a violation of the server's policy. The end of the connection ends the subscription.
            let reason = code.reason().into();
            return client.outbox.end(Disconnect::Custom { code: 1008, reason });
        }
        let mut changes = lock(&self.changes);
        if code == UnsubscribeCode::Server {
            changes.cancel_subscribes(&Key::new(channel, client));
        }
        self.end_subscription(changes, channel, client, code);
    }

    fn end_subscription(
        &self,
        changes: MutexGuard<'_, Changes>,
        channel: &str,
        client: &Arc<Client>,
        code: UnsubscribeCode,
    ) {
        let Some(ended) = lock(&client.subscriptions).remove(channel) else { return };
        let mut later = Later::default();
        let unsubscribe = UnsubscribePush { code: code.code(), reason: code.reason().into() };
        let push = Push { channel: channel.into(), unsubscribe: Some(unsubscribe), ..Push::default() };
        client.push(push, &mut later);
        // The task that establishes a pending one undoes it.
        let Subscription::Active(active) = ended else { return drop(changes) };
        self.left(changes, channel, client, active, code.code(), code.reason());
    }

    /// Ends a subscription that the client gives up. What follows is done also if the caller does not wait for it.
    ///
    /// # Errors
    /// The server made it.
    pub(crate) async fn unsubscribe_by_client(
        &self,
        channel: &str,
        client: &Arc<Client>,
    ) -> Result<(), ErrorCode> {
        self.settle(channel);
        {
            let changes = lock(&self.changes);
            let active = {
                let mut subscriptions = lock(&client.subscriptions);
                match subscriptions.get(channel) {
                    Some(Subscription::Active(active)) if active.server_side => {
                        return Err(ErrorCode::PermissionDenied);
                    }
                    Some(Subscription::Active(active)) => {
                        let active = active.clone();
                        subscriptions.remove(channel);
                        active
                    }
                    // Commands are executed one after the other, so that it is not the client's.
                    Some(Subscription::Pending(_)) => return Err(ErrorCode::PermissionDenied),
                    None => return Ok(()),
                }
            };
            self.left(changes, channel, client, active, 0, "client unsubscribed");
        }
        charge(budget::LEAVE).await;
        self.changes_made(channel, client).await;
        Ok(())
    }

    /// Announces the join of a subscription that has started, unless it has ended meanwhile. Its leave comes after this.
    pub(crate) fn join(&self, channel: &str, client: &Arc<Client>, key: usize) {
        let changes = lock(&self.changes);
        let info = match lock(&client.subscriptions).get_mut(channel) {
            Some(Subscription::Active(active)) if active.key() == key && !active.announced => {
                active.announced = true;
                active.info()
            }
            _ => return,
        };
        self.change(changes, channel, client, Change::Join(client.info(info)));
    }

    /// Returns when the changes of a client's subscription that were begun before have been made, and charges them.
    pub(crate) async fn changes_made(&self, channel: &str, client: &Client) {
        let made = lock(&self.changes).made(|| Key::new(channel, client));
        if let Some(made) = made {
            // Their runtime may have ended.
            self.start_tasks();
            charge(made.await.unwrap_or(0)).await;
        }
    }

    /// Makes a change after those of the same connection and channel that were asked for before.
    pub(super) fn change(
        &self,
        mut changes: MutexGuard<'_, Changes>,
        channel: &str,
        client: &Arc<Client>,
        change: Change,
    ) {
        let key = Key::new(channel, client);
        let needs_task = changes.push(&key, client, change);
        drop(changes);
        if needs_task {
            self.make_changes(key, client.clone());
        }
    }

    /// Makes the changes whose task was dropped.
    pub(super) fn resume_changes(&self) {
        let resumed = lock(&self.changes).resume();
        resumed.into_iter().for_each(|(key, client)| self.make_changes(key, client));
    }

    fn make_changes(&self, key: Key, client: Arc<Client>) {
        let Some(node) = self.this.upgrade() else { return };
        let making = Making { node, key, client, current: None, is_done: false };
        self.spawn(making.run());
    }

    /// Handles a subscription with a gap: if the client made it by a command, it ends so that the client subscribes again; otherwise the
    /// client must reconnect.
    pub(crate) fn lose_position(&self, channel: &str, client: &Arc<Client>) {
        // Subscriptions of open connections end while this is locked: the one that is found is that of the subscriber.
        let changes = lock(&self.changes);
        let (key, server_side) = match lock(&client.subscriptions).get(channel) {
            Some(Subscription::Active(active)) => (active.key(), active.server_side),
            Some(Subscription::Pending(_)) | None => return,
        };
        // The client may have subscribed again.
        if !self.channels.has_gap(channel, key) {
            return;
        }
        if matches!(client.format(), Format::Protocol(_)) && !server_side {
            self.end_subscription(changes, channel, client, UnsubscribeCode::InsufficientState);
        } else {
            drop(changes);
            client.outbox.end(Disconnect::InsufficientState);
        }
    }

    /// The number of subscriptions of all connections of a user, the anonymous one excepted.
    pub(crate) fn subscriptions_of(&self, user: &str) -> usize {
        self.clients_of(user, "").iter().map(|client| lock(&client.subscriptions).len()).sum()
    }
}

/// The task that makes the changes of a connection and a channel. If it is dropped, another one makes the current one again, and those that
/// are left.
struct Making {
    node: Arc<Node>,
    key: Key,
    client: Arc<Client>,
    current: Option<Change>,
    is_done: bool,
}

impl Making {
    async fn run(mut self) {
        let mut cost = 0;
        loop {
            let Some(change) = lock(&self.node.changes).pop(&self.key) else { break };
            let Self { node, key, client, current, .. } = &mut self;
            let channel = key.channel();
            match current.insert(change) {
                Change::Subscribe => {
                    let is_cancelled = || lock(&node.changes).is_cancelled(key);
                    subscribe_from_server(node, client, channel, is_cancelled).await;
                }
                Change::Join(info) => cost += node.announce(channel, Membership::Join(info.clone())).await,
                Change::Unlist => node.remove_presence(channel, client).await,
                Change::Leave(active) => cost += node.leave(channel, client, active).await,
                Change::Made(waiting) => {
                    if let Some(waiting) = waiting.take() {
                        // The caller may have given up.
                        let _ = waiting.send(std::mem::take(&mut cost));
                    }
                }
            }
            self.current = None;
        }
        self.is_done = true;
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        if !self.is_done {
            // One that panics would do so again.
            let current = self.current.take().filter(|_| !std::thread::panicking());
            lock(&self.node.changes).abandon(&self.key, current);
        }
    }
}

async fn subscribe_from_server(
    node: &Arc<Node>,
    client: &Arc<Client>,
    channel: &str,
    is_cancelled: impl Fn() -> bool,
) {
    let subscribed =
        crate::subscribe::subscribe(node, client, crate::subscribe::Request::from_server(channel)).await;
    let established = match subscribed {
        Ok(established) => established,
        Err(refusal) => return crate::subscribe::warn_refused(node, client, channel, &refusal),
    };
    if is_cancelled() {
        return;
    }
    let push = crate::session::subscribed(channel, &established.result);
    established.begin(vec![crate::protocol::Reply { push: Some(push), ..Default::default() }]).await;
}
