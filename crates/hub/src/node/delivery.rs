//! Deliveries of the engine to a node.

use std::sync::Arc;

use super::Node;
use super::publications::retention;
use crate::batch::{FanOut, Unwritten, fan_out_later};
use crate::changes::Change;
use crate::channels::Appended;
use crate::client::Client;
use crate::clock::seconds;
use crate::engine::{Action, Control, Delivery, Membership, PendingDelivery};
use crate::history::Retention;
use crate::outbox::Later;
use crate::protocol::{Publication, Push, RefreshPush, UnsubscribeCode};
use crate::shards::lock;

impl Node {
    /// Has queued messages written, by the connections' own tasks where there is no runtime.
    pub(crate) fn write_later(&self, unwritten: Unwritten) {
        if let Some(runtime) = self.runtimes.get() {
            unwritten.write_later(&runtime);
        }
    }

    /// Forwards the burst of a channel, before its subscribers change or are sent something else.
    pub(crate) fn settle(&self, channel: &str) {
        self.write_later(self.fan_out(channel));
    }

    /// Forwards the burst of a channel when the publishing task yields, or now if it is full.
    fn forward(&self, channel: Arc<str>, is_full: bool) {
        match self.runtimes.get().filter(|_| !is_full) {
            Some(runtime) => fan_out_later(self.this.clone(), channel, &runtime),
            None => self.settle(&channel),
        }
    }

    /// Carries out the commands of the server API that have waited until the answer of a connection to `connect` is queued.
    pub(crate) fn answered(&self, client: &Arc<Client>) {
        loop {
            let waiting = lock(&self.clients).take_unanswered(client);
            if waiting.is_empty() {
                return;
            }
            waiting.iter().for_each(|control| self.carry_out(control, client));
        }
    }

    fn carry_out(&self, control: &Control, client: &Arc<Client>) {
        match &control.action {
            Action::Subscribe { .. } if !client.takes_channels() => {}
            Action::Disconnect { .. } => {
                if let Some(reason) = control.ends(client) {
                    self.end(client, reason);
                }
            }
            Action::Unsubscribe { channel } => {
                self.unsubscribe(channel, client, UnsubscribeCode::Server);
            }
            Action::Subscribe { channel } => {
                self.change(lock(&self.changes), channel, client, Change::Subscribe);
            }
            Action::Refresh { expire_at } => {
                let expires_at = self.clock.expiry(expire_at.and_then(crate::proxy::expiry));
                client.set_expires_at(expires_at);
                let ttl = expires_at.map_or(0, |at| seconds(at.saturating_sub(self.clock.now())));
                let refresh = RefreshPush { expires: expires_at.is_some(), ttl };
                client.push(Push { refresh: Some(refresh), ..Push::default() }, &mut Later::default());
                // A room receives no push, and may expire earlier now.
                client.outbox.wake();
            }
        }
    }
}

impl FanOut for Node {
    fn fan_out(&self, channel: &str) -> Unwritten {
        let on_slow = |pushed| self.note_pushed(pushed);
        let (lost, unwritten) = self.channels.fan_out(channel, &on_slow);
        lost.iter().for_each(|client| self.lose_position(channel, client));
        unwritten
    }
}

impl Delivery for Node {
    fn retention(&self, channel: &str) -> Option<Retention> {
        self.settings().config.channel_options(channel).and_then(retention)
    }

    fn catch_up_len_max(&self, _channel: &str) -> usize {
        self.settings().config.client.queue_len_max
    }

    fn has_unpositioned(&self, channel: &str) -> bool {
        self.channels.has_unpositioned(channel)
    }

    fn deliver_publication(
        &self,
        channel: &str,
        epoch: &str,
        previous: u64,
        publication: &Arc<Publication>,
    ) -> PendingDelivery {
        let (channel, is_full) = match self.channels.append(channel, epoch, previous, publication) {
            Appended::Done => return PendingDelivery::default(),
            Appended::First(name) => (name, false),
            Appended::Full => (channel.into(), true),
        };
        let this = self.this.clone();
        PendingDelivery::new(move || {
            if let Some(node) = this.upgrade() {
                node.forward(channel, is_full);
            }
        })
    }

    fn deliver_membership(&self, channel: &str, membership: &Membership) {
        self.settle(channel);
        let on_slow = |pushed| self.note_pushed(pushed);
        self.write_later(self.channels.announce(channel, membership, &on_slow));
    }

    fn deliver_history_lost(&self, channel: &str) {
        self.settle(channel);
        self.channels.lose_history(channel).iter().for_each(|client| self.lose_position(channel, client));
    }

    fn deliver_from_node(&self, message: &[u8]) {
        self.handle_from_node(message);
    }

    fn deliver_control(&self, control: &Control) {
        // Each command is read once, in the order of their log, and concerns the connections that exist then. Those whose user is not known
        // yet compare the order later.
        let clients = lock(&self.clients).commanded(control);
        // Before the command is acknowledged: nothing that is published afterwards may reach a connection that it ends.
        clients.iter().for_each(|client| self.carry_out(control, client));
    }
}
