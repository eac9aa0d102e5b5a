//! The connections of a node, by user.

use std::collections::HashMap;
use std::sync::Arc;

use crate::client::Client;
use crate::connecting::Connecting;
use crate::engine::Control;
use crate::opened::Opened;
use crate::protocol::Disconnect;
use crate::random::Uuid;
use crate::timers::Timers;

/// The connections of a node.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    pub(crate) timers: Timers,
    /// The connections of each user. Users without connections and anonymous clients are not listed.
    by_user: HashMap<String, Vec<Arc<Client>>>,
    /// The connections whose end is reported to the backend.
    opened: HashMap<Uuid, Opened>,
    connecting: Connecting,
    is_closed: bool,
}

impl Clients {
    /// Adds a connection whose user is not known yet. An error if there are `max`, or the node is shutting down.
    pub(crate) fn add(&mut self, client: Client, max: usize) -> Result<Arc<Client>, Disconnect> {
        if self.is_closed {
            return Err(Disconnect::Shutdown);
        }
        if self.timers.len() >= max {
            return Err(Disconnect::ConnectionLimit);
        }
        self.connecting.begin(client.id);
        let client = Arc::new(client);
        self.timers.add(client.clone());
        Ok(client)
    }

    /// Lists a connection whose user has become known, unless the user has `max` that do not end; 0 is no limit. Returns why it is to
    /// end at once, if it is.
    pub(crate) fn identify(
        &mut self,
        client: &Arc<Client>,
        max: usize,
    ) -> Result<Option<Disconnect>, Disconnect> {
        let missed = self.connecting.missed(client);
        self.connecting.end(client.id);
        if !client.user().is_empty() {
            let own = self.by_user.entry(client.user().to_owned()).or_default();
            // One that ends is listed until the engine knows, which may take long.
            let has_room = || own.iter().filter(|other| !other.outbox.has_ended()).count() < max;
            if max > 0 && own.len() >= max && !has_room() {
                return Err(Disconnect::ConnectionLimit);
            }
            own.push(client.clone());
        }
        Ok(missed)
    }

    /// Removes a connection. Returns what its end is reported for.
    pub(crate) fn remove(&mut self, client: &Arc<Client>) -> Option<Opened> {
        self.timers.remove(client);
        self.connecting.end(client.id);
        if let Some(own) = self.by_user.get_mut(client.user()) {
            own.retain(|other| !Arc::ptr_eq(other, client));
            if own.is_empty() {
                self.by_user.remove(client.user());
            }
        }
        let opened = self.opened.remove(&client.id);
        // A storm of connections leaves no memory behind.
        if self.opened.is_empty() {
            self.opened = HashMap::new();
        }
        opened
    }

    /// Notes that the end of a connection is to be reported.
    pub(crate) fn note_opened(&mut self, client: &Client, opened: Opened) {
        self.opened.insert(client.id, opened);
    }

    /// What the ends of connections are reported for, by connection.
    pub(crate) fn opened(&self) -> &HashMap<Uuid, Opened> {
        &self.opened
    }

    /// Notes a command that disconnects a user.
    pub(crate) fn note_disconnect(&mut self, control: &Control) {
        self.connecting.keep(control);
    }

    /// No connection is added any more.
    pub(crate) fn close(&mut self) {
        self.is_closed = true;
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Client>> {
        self.timers.iter()
    }

    /// The connections of a user, or the one with this id.
    pub(crate) fn of(&self, user: &str, client: &str) -> Vec<Arc<Client>> {
        let id = Uuid::parse(client);
        if user.is_empty() {
            return self.iter().filter(|one| Some(one.id) == id).cloned().collect();
        }
        let own = self.by_user.get(user).map_or(&[][..], Vec::as_slice);
        own.iter().filter(|one| client.is_empty() || Some(one.id) == id).cloned().collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.timers.len()
    }

    pub(crate) fn users_len(&self) -> usize {
        self.by_user.len()
    }
}
