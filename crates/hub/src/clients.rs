//! The connections of a node, by user and by id.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::client::{Client, Identity};
use crate::connecting::Connecting;
use crate::engine::{Action, Control};
use crate::opened::Opened;
use crate::protocol::Disconnect;
use crate::random::Uuid;
use crate::timers::Timers;

/// The connections of a node.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    pub(crate) timers: Timers,
    /// The connections of each user. Users without connections and anonymous clients are not listed.
    by_user: HashMap<Box<str>, Own>,
    /// The connections whose end is reported to the backend.
    opened: HashMap<Uuid, Opened>,
    connecting: Connecting,
    /// The commands of the server API for connections whose answer to `connect` is not queued yet, although their user is known.
    unanswered: HashMap<Uuid, Vec<Control>>,
    is_closed: bool,
}

/// The connections of one user, each at its [place](Client::user_place). The first `ended` are known to end: each is listed until the
/// engine knows, which may take long.
#[derive(Debug, Default)]
struct Own {
    all: Vec<Arc<Client>>,
    ended: usize,
}

impl Own {
    /// Whether fewer than `max` do not end. Each that ends is looked at once, so that a call looks at no more than `max` others.
    fn has_room(&mut self, max: usize, has_ended: impl Fn(&Client) -> bool) -> bool {
        let mut at = self.ended;
        while at < self.all.len() && self.all.len() - self.ended >= max {
            if has_ended(&self.all[at]) {
                self.swap(at, self.ended);
                self.ended += 1;
            }
            at += 1;
        }
        self.all.len() - self.ended < max
    }

    fn push(&mut self, client: Arc<Client>) {
        self.all.push(client);
        self.note_place(self.all.len() - 1);
    }

    /// Removes a connection, unless it was refused.
    fn remove(&mut self, client: &Arc<Client>) {
        let place = client.user_place().map_or(0, |place| place.load(Ordering::Relaxed) as usize);
        if !self.all.get(place).is_some_and(|other| Arc::ptr_eq(other, client)) {
            return;
        }
        let mut hole = place;
        if place < self.ended {
            self.ended -= 1;
            hole = self.ended;
            self.swap(place, hole);
        }
        self.all.swap_remove(hole);
        if hole < self.all.len() {
            self.note_place(hole);
        }
    }

    fn swap(&mut self, one: usize, other: usize) {
        self.all.swap(one, other);
        self.note_place(one);
        self.note_place(other);
    }

    fn note_place(&self, place: usize) {
        if let Some(own) = self.all[place].user_place() {
            own.store(place as u32, Ordering::Relaxed);
        }
    }
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
        let client = self.timers.add(client);
        self.connecting.begin(client.id);
        Ok(client)
    }

    /// Lists a connection whose user has become known, and sets its identity, unless the user has `max` that do not end; 0 is no limit.
    /// Returns why it is to end at once, if it is.
    pub(crate) fn identify(
        &mut self,
        client: &Arc<Client>,
        identity: Identity,
        max: usize,
    ) -> Result<Option<Disconnect>, Disconnect> {
        let own = self.by_user.get_mut(&identity.user);
        if max > 0 && own.is_some_and(|own| !own.has_room(max, |other| other.outbox.has_ended())) {
            return Err(Disconnect::ConnectionLimit);
        }
        client.connect(identity);
        let missed = self.connecting.missed(client);
        self.connecting.end(client.id);
        if !client.user().is_empty() {
            self.by_user.entry(client.user().into()).or_default().push(client.clone());
        }
        self.unanswered.insert(client.id, Vec::new());
        Ok(missed)
    }

    /// The answer of a connection to `connect` is queued. Returns the commands that waited for it; once there are none, none wait any more.
    pub(crate) fn take_unanswered(&mut self, client: &Client) -> Vec<Control> {
        let waiting = self.unanswered.get_mut(&client.id).map(std::mem::take).unwrap_or_default();
        if waiting.is_empty() {
            self.end_unanswered(client.id);
        }
        waiting
    }

    fn end_unanswered(&mut self, client: Uuid) {
        self.unanswered.remove(&client);
        // A storm of connections leaves no memory behind.
        if self.unanswered.is_empty() {
            self.unanswered = HashMap::new();
        }
    }

    /// Removes a connection, unless its end is still to be reported, which this returns then. To be called again once that is done: a
    /// connection is listed until its end is reported.
    pub(crate) fn remove(&mut self, client: &Arc<Client>) -> Option<Opened> {
        if let Some(opened) = self.opened.remove(&client.id) {
            return Some(opened);
        }
        // A storm of connections leaves no memory behind.
        if self.opened.is_empty() {
            self.opened = HashMap::new();
        }
        self.timers.remove(client);
        self.connecting.end(client.id);
        self.end_unanswered(client.id);
        if let Some(own) = self.by_user.get_mut(client.user()) {
            own.remove(client);
            if own.all.is_empty() {
                self.by_user.remove(client.user());
            }
        }
        None
    }

    /// Notes that the end of a connection is to be reported.
    pub(crate) fn note_opened(&mut self, client: &Client, opened: Opened) {
        self.opened.insert(client.id, opened);
    }

    /// The records of connections whose ends are reported, by connection.
    pub(crate) fn opened(&self) -> &HashMap<Uuid, Opened> {
        &self.opened
    }

    /// The connections on which a command of the server API is to be carried out now. All may be disconnected. Other commands are for those
    /// that have connected, and wait where the answer to that is not queued yet.
    pub(crate) fn commanded(&mut self, control: &Control) -> Vec<Arc<Client>> {
        let mut clients = self.of(&control.user, &control.client);
        if let Action::Disconnect { .. } = &control.action {
            self.connecting.keep(control);
            return clients;
        }
        clients.retain(|client| match self.unanswered.get_mut(&client.id) {
            Some(waiting) => {
                waiting.push(control.clone());
                false
            }
            None => !self.connecting.contains(client.id),
        });
        clients
    }

    /// No connection is added any more.
    pub(crate) fn close(&mut self) {
        self.is_closed = true;
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Client>> {
        self.timers.iter()
    }

    /// The connections of a user, the one with this id, or that one if it is of the user.
    pub(crate) fn of(&self, user: &str, client: &str) -> Vec<Arc<Client>> {
        if client.is_empty() {
            return self.by_user.get(user).map_or(Vec::new(), |own| own.all.clone());
        }
        let one = Uuid::parse(client).and_then(|id| self.timers.find(id));
        one.filter(|one| user.is_empty() || one.user() == user).cloned().into_iter().collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.timers.len()
    }

    pub(crate) fn users_len(&self) -> usize {
        self.by_user.len()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::client::Transport;
    use crate::config::SlowPolicy;
    use crate::outbox::Outbox;

    /// A connection of the user, and whether there was room for it.
    fn connect(clients: &mut Clients, user_max: usize) -> (Arc<Client>, bool) {
        let outbox = Outbox::new(1 << 20, SlowPolicy::Disconnect);
        let client = clients.add(Client::new(Transport::Room, None, None, outbox), 10_000).unwrap();
        let identity = Identity { user: "7".into(), ..Identity::default() };
        let has_room = clients.identify(&client, identity, user_max).is_ok();
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
    fn a_connection_that_ends_is_looked_at_once() {
        const MAX: usize = 10;
        let mut own = Own::default();
        let add = |own: &mut Own| {
            let outbox = Outbox::new(1 << 20, SlowPolicy::Disconnect);
            let client = Arc::new(Client::new(Transport::Room, None, None, outbox));
            client.connect(Identity { user: "7".into(), ..Identity::default() });
            own.push(client);
        };
        let looks = Cell::new(0);
        let has_room = |own: &mut Own| {
            own.has_room(MAX, |client| {
                looks.set(looks.get() + 1);
                client.outbox.has_ended()
            })
        };
        // The engine is slow: none of those that end is removed.
        for _ in 0..1_000 {
            assert!(has_room(&mut own));
            add(&mut own);
            if own.all.len() >= MAX {
                own.all[own.all.len() / 2].outbox.end(Disconnect::Shutdown);
                own.all.last().unwrap().outbox.end(Disconnect::Shutdown);
            }
        }
        let looked = looks.take();
        assert!(looked < 1_000 * (MAX + 1), "{looked}");
        while has_room(&mut own) {
            add(&mut own);
        }
        looks.set(0);
        assert!(!has_room(&mut own));
        assert!(looks.get() <= MAX, "{}", looks.get());
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
                    let live = listed.iter().filter(|one: &&Arc<Client>| !one.outbox.has_ended()).count();
                    assert_eq!(has_room, live < 5, "{seed}");
                    assert_eq!(clients.of("", &client.id.text()).len(), 1);
                    assert!(clients.of("8", &client.id.text()).is_empty());
                    if has_room { &mut listed } else { &mut refused }.push(client);
                } else if rng.bool() && !refused.is_empty() {
                    clients.remove(&refused.swap_remove(rng.usize(..refused.len())));
                } else if !listed.is_empty() {
                    let place = rng.usize(..listed.len());
                    if rng.bool() {
                        listed[place].outbox.end(Disconnect::Shutdown);
                        continue;
                    }
                    let client = listed.swap_remove(place);
                    clients.remove(&client);
                    assert!(clients.of("", &client.id.text()).is_empty());
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
