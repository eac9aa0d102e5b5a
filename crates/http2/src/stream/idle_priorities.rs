//! Priorities of requests that have not arrived: PRIORITY_UPDATE may arrive before HEADERS (RFC 9218 §7.1).

use alloc::vec::Vec;

use crate::frame::StreamId;
use crate::priority::Priority;

/// The priorities of idle streams.
pub(crate) struct IdlePriorities {
    entries: Vec<(StreamId, Priority)>,
}

impl IdlePriorities {
    pub(crate) const fn new() -> Self {
        Self { entries: Vec::new() }
    }

    pub(crate) const fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn contains(&self, id: StreamId) -> bool {
        self.entries.iter().any(|&(of, _)| of == id)
    }

    /// Sets the priority of a stream. It is ignored if `max` other streams have one, which RFC 9218 §7.1 permits.
    pub(crate) fn set(&mut self, id: StreamId, priority: Priority, max: usize) {
        if let Some(entry) = self.entries.iter_mut().find(|(of, _)| *of == id) {
            entry.1 = priority;
        } else if self.entries.len() < max {
            self.entries.push((id, priority));
        }
    }

    /// Returns the priority of a stream that opens. Removes the ones of lower streams, which can never open (RFC 9113 §5.1.1).
    pub(crate) fn take(&mut self, id: StreamId) -> Option<Priority> {
        if self.entries.is_empty() {
            return None;
        }
        let found = self.entries.iter().find(|&&(of, _)| of == id).map(|&(_, priority)| priority);
        self.entries.retain(|&(of, _)| of > id);
        found
    }

    /// Frees unused memory.
    pub(crate) fn shrink(&mut self) {
        self.entries.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_last_priority_of_each_stream_up_to_the_bound() {
        let mut priorities = IdlePriorities::new();
        let priority = |urgency| Priority { urgency, incremental: false };
        let id = |id| StreamId::new(id).unwrap();
        priorities.set(id(5), priority(1), 2);
        priorities.set(id(3), priority(2), 2);
        priorities.set(id(7), priority(4), 2);
        priorities.set(id(5), priority(6), 2);
        assert!(priorities.contains(id(3)) && priorities.contains(id(5)) && !priorities.contains(id(7)));
        assert_eq!(priorities.take(id(5)), Some(priority(6)));
        // Stream 3 was skipped.
        assert_eq!((priorities.len(), priorities.take(id(7))), (0, None));
        priorities.shrink();
        assert_eq!(priorities.entries.capacity(), 0);
    }
}
