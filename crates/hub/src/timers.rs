//! The connections of a node, by the time at which the task of each is to be woken. One timer of the runtime serves all of them: one for
//! each connection would take 136 bytes. They are found by their ids, too: a map would take 18 bytes for each.

use std::hash::RandomState;
use std::sync::Arc;
use std::time::Duration;

use crate::client::Client;
use crate::random::Uuid;

/// The connections of a node: a binary heap, whose first one is to be woken next.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    heap: Vec<Arc<Client>>,
    /// The place of each connection in the heap, by the number in its id.
    places: Vec<u32>,
    /// The numbers that no connection has.
    free: Vec<u32>,
    /// Hides the numbers in the ids.
    key: RandomState,
}

impl Timers {
    pub(crate) fn len(&self) -> usize {
        self.heap.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Client>> {
        self.heap.iter()
    }

    /// Adds a connection that is not to be woken yet. Its id gets the number by which it is found.
    pub(crate) fn add(&mut self, mut client: Client) -> Arc<Client> {
        let number = self.free.pop().unwrap_or_else(|| {
            self.places.push(0);
            self.places.len() as u32 - 1
        });
        client.id = client.id.with_number(number, &self.key);
        let client = Arc::new(client);
        self.heap.push(client.clone());
        self.note_place(self.heap.len() - 1);
        client
    }

    /// The connection with this id.
    pub(crate) fn find(&self, id: Uuid) -> Option<&Arc<Client>> {
        self.at(id.number(&self.key)).filter(|client| client.id == id)
    }

    /// Removes a connection, unless it was removed before.
    pub(crate) fn remove(&mut self, client: &Arc<Client>) {
        let Some(place) = self.place_of(client) else { return };
        self.heap.swap_remove(place);
        if place < self.heap.len() {
            self.note_place(place);
            self.restore(place);
        }
        self.free.push(self.number_of(client));
        // A storm of connections leaves no memory behind.
        if self.heap.is_empty() {
            *self = Self::default();
        }
    }

    /// Wakes a connection at this time. Returns whether no other is to be woken before.
    pub(crate) fn wake_at(&mut self, client: &Arc<Client>, at: Duration) -> bool {
        let Some(place) = self.place_of(client) else { return false };
        client.wakes_at.set(Some(at));
        self.restore(place) == 0
    }

    /// The time at which the next connection is to be woken.
    pub(crate) fn next(&self) -> Duration {
        self.heap.first().map_or(Duration::MAX, time)
    }

    /// At most `max` connections that are to be woken now. They are not to be woken again.
    pub(crate) fn take_due(&mut self, now: Duration, max: usize) -> Vec<Arc<Client>> {
        let mut due = Vec::new();
        while due.len() < max && self.next() <= now {
            self.heap[0].wakes_at.set(None);
            due.push(self.heap[0].clone());
            self.restore(0);
        }
        due
    }

    /// The connection with this number; any other, or none, if the number is free.
    fn at(&self, number: u32) -> Option<&Arc<Client>> {
        self.heap.get(*self.places.get(number as usize)? as usize)
    }

    fn place_of(&self, client: &Arc<Client>) -> Option<usize> {
        let number = self.number_of(client);
        let is_here = self.at(number).is_some_and(|other| Arc::ptr_eq(client, other));
        is_here.then(|| self.places[number as usize] as usize)
    }

    /// The number of a connection in the heap; any number for others.
    fn number_of(&self, client: &Client) -> u32 {
        client.id.number(&self.key)
    }

    fn note_place(&mut self, place: usize) {
        let number = self.number_of(&self.heap[place]);
        self.places[number as usize] = place as u32;
    }

    /// Moves a connection whose time has changed. Returns its new place.
    fn restore(&mut self, mut place: usize) -> usize {
        while let Some(parent) = place.checked_sub(1).map(|before| before / 2)
            && time(&self.heap[place]) < time(&self.heap[parent])
        {
            place = self.swap(place, parent);
        }
        loop {
            let children = 2 * place + 1..self.heap.len().min(2 * place + 3);
            match children.min_by_key(|&child| time(&self.heap[child])) {
                Some(child) if time(&self.heap[child]) < time(&self.heap[place]) => {
                    place = self.swap(place, child);
                }
                _ => return place,
            }
        }
    }

    fn swap(&mut self, from: usize, to: usize) -> usize {
        self.heap.swap(from, to);
        self.note_place(from);
        self.note_place(to);
        to
    }
}

fn time(client: &Arc<Client>) -> Duration {
    client.wakes_at.get().unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Transport;
    use crate::config::SlowPolicy;
    use crate::outbox::Outbox;

    #[test]
    fn agrees_with_a_list() {
        let second = Duration::from_secs(1);
        let new = || Client::new(Transport::Room, None, None, Outbox::new(1 << 20, SlowPolicy::Disconnect));
        for seed in 0..200 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut timers = Timers::default();
            let mut clients = [(); 9].map(|()| Arc::new(new()));
            // The time of each one that is in the heap.
            let mut times: [Option<Duration>; 9] = [None; 9];
            for _ in 0..100 {
                let one = rng.usize(..clients.len());
                let client = clients[one].clone();
                let at = second * rng.u32(1..20);
                let next = times.iter().flatten().min().copied().unwrap_or(Duration::MAX);
                match (rng.u8(..4), times[one]) {
                    (0, None) => {
                        clients[one] = timers.add(new());
                        times[one] = Some(Duration::MAX);
                    }
                    (1, _) => {
                        timers.remove(&client);
                        times[one] = None;
                    }
                    (2, of) => {
                        let is_first = timers.wake_at(&client, at);
                        if of.is_some() {
                            times[one] = Some(at);
                        }
                        let others = times.iter().enumerate().filter(|(other, _)| *other != one);
                        let before = others.filter_map(|(_, time)| *time).min().unwrap_or(Duration::MAX);
                        assert!(is_first == (of.is_some() && at < before) || at == before, "{seed}");
                    }
                    (3, _) => {
                        let due = timers.take_due(at, 2);
                        assert_eq!(
                            due.len(),
                            times.iter().flatten().filter(|time| **time <= at).count().min(2)
                        );
                        assert!(due.is_empty() || due[0].wakes_at.get().is_none());
                        for client in due {
                            let one = clients.iter().position(|other| Arc::ptr_eq(&client, other)).unwrap();
                            let next = times.iter().flatten().min().copied();
                            assert_eq!(times[one].replace(Duration::MAX), next, "{seed}");
                        }
                    }
                    _ => assert_eq!(timers.next(), next),
                }
                assert_eq!(timers.len(), times.iter().flatten().count());
                for (client, time) in clients.iter().zip(times) {
                    let found = timers.find(client.id);
                    assert_eq!(found.map(Arc::as_ptr), time.map(|_| Arc::as_ptr(client)), "{seed}");
                }
            }
        }
    }
}
