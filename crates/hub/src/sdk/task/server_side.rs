//! The subscriptions that the server made, and where to recover those that it recovers.

use std::collections::HashMap;

use crate::history::Position;
use crate::sdk::connection::Lost;

/// The most memory, in bytes. A server may make 128 subscriptions by default; this is room for some 20,000.
const LEN_MAX: usize = 4 << 20;

/// The memory of a subscription besides its name and its epoch, in bytes. Also the maximum that it adds to a connect command.
const ENTRY_LEN: usize = 128;

#[derive(Default)]
pub(super) struct ServerSide {
    positions: HashMap<String, Option<Position>>,
    /// The memory of all. `len <= LEN_MAX`
    len: usize,
}

impl ServerSide {
    /// Adds a subscription, or replaces it.
    ///
    /// # Errors
    /// They would take too much memory.
    pub(super) fn insert(&mut self, channel: String, position: Option<Position>) -> Result<(), Lost> {
        self.remove(&channel);
        let len = self.len + entry_len(&channel, position.as_ref());
        if len > LEN_MAX {
            return Err(Lost::retry("the server has made too many subscriptions"));
        }
        self.len = len;
        self.positions.insert(channel, position);
        Ok(())
    }

    /// Returns whether there was one.
    pub(super) fn remove(&mut self, channel: &str) -> bool {
        let Some(position) = self.positions.remove(channel) else { return false };
        self.len -= entry_len(channel, position.as_ref());
        true
    }

    /// Removes those that it does not keep, and returns their channels.
    pub(super) fn retain(&mut self, keeps: impl Fn(&str) -> bool) -> Vec<String> {
        let removed = self.positions.extract_if(|channel, _| !keeps(channel));
        let removed = removed.map(|(channel, position)| {
            self.len -= entry_len(&channel, position.as_ref());
            channel
        });
        removed.collect()
    }

    /// Notes a publication. Returns whether there is such a subscription.
    pub(super) fn received(&mut self, channel: &str, offset: u64) -> bool {
        let Some(position) = self.positions.get_mut(channel) else { return false };
        if let Some(position) = position {
            position.offset = position.offset.max(offset);
        }
        true
    }

    pub(super) fn contains(&self, channel: &str) -> bool {
        self.positions.contains_key(channel)
    }

    /// Whether the server recovers this subscription.
    pub(super) fn has_position(&self, channel: &str) -> bool {
        matches!(self.positions.get(channel), Some(Some(_)))
    }

    /// Where to recover from: as many positions as a command has room for, in bytes.
    pub(super) fn positions(&self, mut room: usize) -> HashMap<String, Position> {
        let mut positions = HashMap::new();
        for (channel, position) in &self.positions {
            let Some(position) = position else { continue };
            let Some(rest) = room.checked_sub(entry_len(channel, Some(position))) else { break };
            room = rest;
            positions.insert(channel.clone(), position.clone());
        }
        positions
    }
}

fn entry_len(channel: &str, position: Option<&Position>) -> usize {
    ENTRY_LEN + channel.len() + position.map_or(0, |position| position.epoch.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn position(epoch_len: usize) -> Option<Position> {
        Some(Position { epoch: "e".repeat(epoch_len), offset: 0 })
    }

    #[test]
    fn takes_what_it_may_and_no_more() {
        let mut subscriptions = ServerSide::default();
        let room = LEN_MAX - 2 * ENTRY_LEN - 2;
        assert!(subscriptions.insert("a".into(), position(room / 2)).is_ok());
        assert!(subscriptions.insert("b".into(), position(room / 2)).is_ok());
        assert_eq!(subscriptions.len, LEN_MAX);
        assert!(subscriptions.insert("c".into(), None).is_err());
        // It takes the place of the one before.
        assert!(subscriptions.insert("b".into(), position(room / 2)).is_ok());
        assert!(subscriptions.insert("b".into(), position(room / 2 + 1)).is_err());
        assert!(subscriptions.insert("c".into(), None).is_ok());
        let removed = subscriptions.retain(|channel| channel == "c");
        assert_eq!(removed, ["a"]);
        assert_eq!(subscriptions.len, ENTRY_LEN + 1);
        assert!(subscriptions.remove("c") && !subscriptions.remove("c"));
        assert_eq!(subscriptions.len, 0);
    }

    #[test]
    fn a_connect_command_has_as_many_positions_as_fit() {
        let mut subscriptions = ServerSide::default();
        for channel in ["a", "b", "c"] {
            assert!(subscriptions.insert(channel.into(), position(1)).is_ok());
        }
        assert!(subscriptions.insert("d".into(), None).is_ok() && !subscriptions.has_position("d"));
        let two = 2 * (ENTRY_LEN + 2);
        for (room, count) in [(0, 0), (two - 1, 1), (two, 2), (two + 1, 2), (LEN_MAX, 3)] {
            assert_eq!(subscriptions.positions(room).len(), count, "{room}");
        }
    }
}
