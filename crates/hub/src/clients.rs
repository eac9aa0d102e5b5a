//! The connections of a node, by user.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

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
    /// The connections of each user, each at its [place](Client::user_place). Users without connections and anonymous clients are not
    /// listed.
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
            note_place(client, own.len());
            own.push(client.clone());
        }
        Ok(missed)
    }

    /// Removes a connection. Returns what its end is reported for.
    pub(crate) fn remove(&mut self, client: &Arc<Client>) -> Option<Opened> {
        self.timers.remove(client);
        self.connecting.end(client.id);
        if let Some(own) = self.by_user.get_mut(client.user()) {
            let place = client.user_place().map_or(0, |place| place.load(Ordering::Relaxed) as usize);
            // One that was refused is not listed.
            if own.get(place).is_some_and(|other| Arc::ptr_eq(other, client)) {
                own.swap_remove(place);
            }
            if let Some(moved) = own.get(place) {
                note_place(moved, place);
            }
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

fn note_place(client: &Client, place: usize) {
    if let Some(own) = client.user_place() {
        own.store(place as u32, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{Identity, Transport};
    use crate::config::SlowPolicy;
    use crate::outbox::Outbox;

    /// A connection of the user, and whether there was room for it.
    fn connect(clients: &mut Clients, user_max: usize) -> (Arc<Client>, bool) {
        let outbox = Outbox::new(1 << 20, SlowPolicy::Disconnect);
        let client = clients.add(Client::new(Transport::Room, None, None, outbox), 10_000).unwrap();
        client.connect(Identity { user: "7".into(), ..Identity::default() });
        let has_room = clients.identify(&client, user_max).is_ok();
        (client, has_room)
    }

    #[test]
    fn the_end_of_one_of_many_connections_of_a_user_moves_one_other() {
        let mut clients = Clients::default();
        let all: Vec<_> = (0..1_000).map(|_| connect(&mut clients, 0).0).collect();
        for client in &all[..999] {
            let before = clients.of("7", "");
            clients.remove(client);
            let after = clients.of("7", "");
            assert_eq!(after.len(), before.len() - 1);
            let moved = after.iter().zip(&before).filter(|(after, before)| !Arc::ptr_eq(after, before));
            assert!(moved.count() <= 1);
        }
    }

    #[test]
    fn the_connections_of_a_user_agree_with_a_list() {
        for seed in 0..200 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut clients = Clients::default();
            let (mut listed, mut refused) = (Vec::new(), Vec::new());
            for _ in 0..50 {
                if rng.bool() {
                    let (client, has_room) = connect(&mut clients, 5);
                    assert_eq!(has_room, listed.len() < 5, "{seed}");
                    if has_room { &mut listed } else { &mut refused }.push(client);
                } else if rng.bool() && !refused.is_empty() {
                    clients.remove(&refused.swap_remove(rng.usize(..refused.len())));
                } else if !listed.is_empty() {
                    clients.remove(&listed.swap_remove(rng.usize(..listed.len())));
                }
                let mut own: Vec<_> = clients.of("7", "").iter().map(Arc::as_ptr).collect();
                let mut expected: Vec<_> = listed.iter().map(Arc::as_ptr).collect();
                own.sort_unstable();
                expected.sort_unstable();
                assert_eq!(own, expected, "{seed}");
                assert_eq!(clients.users_len(), usize::from(!listed.is_empty()), "{seed}");
            }
        }
    }
}
