//! The order of commands that disconnect users, for connections whose user is not known yet.
//!
//! A command concerns the connections that exist when it is read. Those whose user becomes known later compare the order then.

use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::client::Client;
use crate::engine::{Action, Control};
use crate::protocol::Disconnect;
use crate::random::Uuid;

/// The maximum number of commands that are kept for connections whose user is not known yet.
pub(crate) const RECENT_MAX: usize = 10_000;

/// The connections whose user is not known yet, and the commands that may concern them.
#[derive(Debug, Default)]
pub(crate) struct Connecting {
    /// How many commands that disconnect users have been read.
    read: u64,
    /// How many had been read before each of these connections was accepted.
    clients: HashMap<Uuid, u64>,
    /// The number of these connections, by that.
    accepted_after: BTreeMap<u64, usize>,
    /// The commands that may concern some of them, and their numbers.
    recent: VecDeque<(u64, Control)>,
    /// The number of the last one that was dropped although it may concern some.
    lost: u64,
}

impl Connecting {
    /// A connection was accepted whose user is not known yet.
    pub(crate) fn begin(&mut self, client: Uuid) {
        self.clients.insert(client, self.read);
        *self.accepted_after.entry(self.read).or_default() += 1;
    }

    /// Whether the user of a connection is not known yet.
    pub(crate) fn contains(&self, client: Uuid) -> bool {
        self.clients.contains_key(&client)
    }

    /// The user of a connection is known, or it has ended before.
    pub(crate) fn end(&mut self, client: Uuid) {
        let Some(accepted_after) = self.clients.remove(&client) else { return };
        if let Some(count) = self.accepted_after.get_mut(&accepted_after) {
            *count -= 1;
            if *count == 0 {
                self.accepted_after.remove(&accepted_after);
            }
        }
        // A storm of connections leaves no memory behind.
        if self.clients.is_empty() {
            self.clients = HashMap::new();
        }
        let oldest = self.accepted_after.keys().next().copied().unwrap_or(u64::MAX);
        while self.recent.front().is_some_and(|(number, _)| *number <= oldest) {
            self.recent.pop_front();
        }
    }

    /// Keeps a command for the connections whose user is not known yet.
    pub(crate) fn keep(&mut self, control: &Control) {
        self.read += 1;
        if !self.clients.is_empty() && !control.user.is_empty() {
            if self.recent.len() >= RECENT_MAX
                && let Some((number, _)) = self.recent.pop_front()
            {
                self.lost = number;
            }
            self.recent.push_back((self.read, control.clone()));
        }
    }

    /// Why a connection whose user has become known is to end. If what it missed is no longer known, better once more than not at all.
    pub(crate) fn missed(&self, client: &Client) -> Option<Disconnect> {
        let accepted_after = *self.clients.get(&client.id)?;
        let first = self.recent.partition_point(|(number, _)| *number <= accepted_after);
        let mut own = self.recent.range(first..).filter(|(_, control)| control.user == client.user());
        let is_lost = !client.user().is_empty() && accepted_after < self.lost;
        own.find_map(|(_, control)| control.ends(client))
            .or_else(|| is_lost.then_some(Disconnect::ForceReconnect))
    }
}

impl Control {
    /// The reason for which this ends a connection of its user.
    pub(crate) fn ends(&self, client: &Client) -> Option<Disconnect> {
        let Action::Disconnect { code, reason, except } = &self.action else { return None };
        let id = client.id.text();
        let concerns = self.client.is_empty() || self.client == *id;
        let is_kept = except.iter().any(|one| *one == *id);
        (concerns && !is_kept).then(|| Disconnect::Custom { code: *code, reason: reason.clone() })
    }
}
