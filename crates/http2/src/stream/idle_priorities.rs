//! Priorities of requests that have not arrived: PRIORITY_UPDATE may come before HEADERS (RFC 9218 §7.1).

use alloc::vec::Vec;

use crate::frame::StreamId;
use crate::priority::Priority;

/// A few entries, each for another idle stream.
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

    /// Keeps the last priority of a stream. Beyond `max` streams a further one is ignored, which RFC 9218 §7.1 leaves to
    /// the server.
    pub(crate) fn keep(&mut self, id: StreamId, priority: Priority, max: usize) {
        if let Some(entry) = self.entries.iter_mut().find(|(of, _)| *of == id) {
            entry.1 = priority;
        } else if self.entries.len() < max {
            self.entries.push((id, priority));
        }
    }

    /// A stream opens: its priority, if one came. Streams below it will never open (RFC 9113 §5.1.1).
    #[inline]
    pub(crate) fn take(&mut self, id: StreamId) -> Option<Priority> {
        if self.entries.is_empty() {
            return None;
        }
        let found = self.entries.iter().find(|&&(of, _)| of == id).map(|&(_, priority)| priority);
        self.entries.retain(|&(of, _)| of > id);
        found
    }

    /// Gives memory back that is not in use.
    pub(crate) fn shrink(&mut self) {
        self.entries.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_last_word_for_each_stream_within_the_bound() {
        let mut kept = IdlePriorities::new();
        let priority = |urgency| Priority { urgency, incremental: false };
        let id = |id| StreamId::new(id).unwrap();
        kept.keep(id(5), priority(1), 2);
        kept.keep(id(3), priority(2), 2);
        kept.keep(id(7), priority(4), 2);
        kept.keep(id(5), priority(6), 2);
        assert!(kept.contains(id(3)) && kept.contains(id(5)) && !kept.contains(id(7)));
        assert_eq!(kept.take(id(5)), Some(priority(6)));
        // 3 was skipped.
        assert_eq!((kept.len(), kept.take(id(7))), (0, None));
        kept.shrink();
        assert_eq!(kept.entries.capacity(), 0);
    }
}
