//! What the engine delivers to a node.

use std::sync::Arc;

use super::Node;
use super::publications::retention;
use crate::batch::Unwritten;
use crate::changes::Change;
use crate::clock::seconds;
use crate::engine::{Action, Control, Delivery, Membership};
use crate::history::Retention;
use crate::protocol::{Publication, Push, RefreshPush, UnsubscribeCode};
use crate::shards::lock;

impl Node {
    /// Writes queued messages. A node without a runtime has no connections.
    pub(crate) fn write_later(&self, unwritten: Unwritten) {
        if let Some(runtime) = self.runtime.get() {
            unwritten.write_later(runtime);
        }
    }
}

impl Delivery for Node {
    fn retention(&self, channel: &str) -> Option<Retention> {
        self.options(channel).as_ref().and_then(retention)
    }

    fn deliver_publication(&self, channel: &str, epoch: &str, previous: u64, publication: &Arc<Publication>) {
        let on_slow = |pushed| self.note_pushed(pushed);
        let (lost, unwritten) = self.channels.publish(channel, epoch, previous, publication, &on_slow);
        self.write_later(unwritten);
        for (client, _) in lost {
            self.lose_position(channel, &client);
        }
    }

    fn deliver_membership(&self, channel: &str, membership: &Membership) {
        let on_slow = |pushed| self.note_pushed(pushed);
        self.write_later(self.channels.announce(channel, membership, &on_slow));
    }

    fn deliver_history_lost(&self, channel: &str) {
        for (client, _) in self.channels.lose_history(channel) {
            self.lose_position(channel, &client);
        }
    }

    fn deliver_from_node(&self, message: &[u8]) {
        self.handle_from_node(message);
    }

    fn deliver_control(&self, control: &Control) {
        // Each command is read once, in the order of their log, and concerns the connections that exist then. Those whose user is not known
        // yet compare the order later.
        if let Action::Disconnect { .. } = &control.action {
            lock(&self.clients).note_disconnect(control);
        }
        for client in self.clients_of(&control.user, &control.client) {
            match &control.action {
                Action::Subscribe { .. } if !client.takes_channels() => {}
                Action::Disconnect { .. } => {
                    if let Some(reason) = control.ends(&client) {
                        client.outbox.end(reason);
                    }
                }
                Action::Unsubscribe { channel } => {
                    self.unsubscribe(channel, &client, UnsubscribeCode::Server);
                }
                Action::Subscribe { channel } => {
                    self.change(&mut lock(&self.changes), channel, &client, Change::Subscribe);
                }
                Action::Refresh { expire_at } => {
                    let expires_at = self.clock.expiry(expire_at.and_then(crate::proxy::expiry));
                    client.set_expires_at(expires_at);
                    let ttl = expires_at.map_or(0, |at| seconds(at.saturating_sub(self.clock.now())));
                    let refresh = RefreshPush { expires: expires_at.is_some(), ttl };
                    client.push(Push { refresh: Some(refresh), ..Push::default() });
                    // A room receives no push, and may expire earlier now.
                    client.outbox.wake();
                }
            }
        }
    }
}
