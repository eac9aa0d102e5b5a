//! [`Opening`]: requests of this side that wait for the peer's SETTINGS_MAX_CONCURRENT_STREAMS (RFC 9113 §5.1.2).
//!
//! Requests open in the order of their identifiers, so all streams of this side from the first one in the queue on are idle for the
//! peer. Their records are in the slab for the caller, who finds them by key. A frame does not find them by identifier.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::StreamKey;
use crate::field::{ARENA_KEPT, Field, FieldList};
use crate::frame::StreamId;
use crate::priority::Priority;

/// A request that waits to open. It is encoded when it is sent, because the order of blocks matters to HPACK (RFC 9113 §4.3).
pub(crate) struct Request {
    pub(crate) key: StreamKey,
    pub(crate) fields: FieldList,
    /// The PRIORITY_UPDATE to send after the request.
    pub(crate) priority: Option<Priority>,
    is_cancelled: bool,
}

/// The queue, in the order of the identifiers. Its first request is not cancelled.
pub(crate) struct Opening {
    requests: VecDeque<Request>,
    cancelled: usize,
    /// Lists of fields to use again.
    spare: Vec<FieldList>,
}

impl Opening {
    pub(crate) const fn new() -> Self {
        Self { requests: VecDeque::new(), cancelled: 0, spare: Vec::new() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// The number of requests that wait.
    pub(crate) fn len(&self) -> usize {
        self.requests.len() - self.cancelled
    }

    /// The request that opens next.
    pub(crate) fn first(&self) -> Option<StreamKey> {
        self.requests.front().map(|request| request.key)
    }

    /// Whether a stream of this side waits to open, or would if it were used.
    pub(crate) fn is_before_opening(&self, id: StreamId) -> bool {
        self.first().is_some_and(|first| id >= first.stream_id())
    }

    /// Appends a request, whose identifier is above all others.
    pub(crate) fn push<'f>(&mut self, key: StreamKey, fields: impl Iterator<Item = Field<'f>>) {
        let mut list = self.spare.pop().unwrap_or_default();
        list.extend(fields);
        self.requests.push_back(Request { key, fields: list, priority: None, is_cancelled: false });
    }

    /// Removes the first request.
    pub(crate) fn pop(&mut self) -> Option<Request> {
        let request = self.requests.pop_front()?;
        self.drop_cancelled();
        Some(request)
    }

    /// Takes back the fields of a request that was sent.
    pub(crate) fn reuse(&mut self, mut fields: FieldList) {
        if fields.list_size() <= ARENA_KEPT {
            fields.clear();
            self.spare.push(fields);
        }
    }

    /// Removes a request that waits.
    pub(crate) fn cancel(&mut self, id: StreamId) {
        let Some(request) = self.find(id) else { return };
        request.is_cancelled = true;
        let fields = core::mem::take(&mut request.fields);
        self.reuse(fields);
        self.cancelled += 1;
        self.drop_cancelled();
        if self.cancelled > self.requests.len() / 2 {
            self.requests.retain(|request| !request.is_cancelled);
            self.cancelled = 0;
        }
    }

    /// Sets the PRIORITY_UPDATE to send after a request (RFC 9218 §7.1 limits it to streams that may be open).
    pub(crate) fn set_priority(&mut self, id: StreamId, priority: Priority) {
        if let Some(request) = self.find(id) {
            request.priority = Some(priority);
        }
    }

    fn find(&mut self, id: StreamId) -> Option<&mut Request> {
        let at = self.requests.binary_search_by_key(&id, |request| request.key.stream_id()).ok()?;
        self.requests.get_mut(at).filter(|request| !request.is_cancelled)
    }

    fn drop_cancelled(&mut self) {
        while self.requests.front().is_some_and(|request| request.is_cancelled) {
            self.requests.pop_front();
            self.cancelled -= 1;
        }
    }

    /// Frees unused memory.
    pub(crate) fn shrink(&mut self) {
        self.requests.shrink_to_fit();
        self.spare = Vec::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field::Token;
    use wireloom_testing::{Rng, rounds};

    fn key(id: u32) -> StreamKey {
        StreamKey::new(0, StreamId::new(id).unwrap())
    }

    #[test]
    fn requests_leave_in_order_without_those_that_were_cancelled() {
        rounds(20, random_operations);
    }

    fn random_operations(random: &mut Rng) {
        let (mut opening, mut model, mut next) = (Opening::new(), Vec::<(u32, Option<u8>)>::new(), 1);
        for _ in 0..3_000 {
            match random.u8(..8) {
                0..3 => {
                    opening.push(key(next), [Field::known(Token::Method, b"GET")].into_iter());
                    model.push((next, None));
                    next += 2;
                }
                3 => {
                    let id = random.u32(..next + 1) | 1;
                    opening.cancel(key(id).stream_id());
                    model.retain(|&(waiting, _)| waiting != id);
                }
                4 => {
                    let (id, urgency) = (random.u32(..next + 1) | 1, random.u8(..8));
                    opening.set_priority(key(id).stream_id(), Priority { urgency, incremental: true });
                    model
                        .iter_mut()
                        .filter(|(waiting, _)| *waiting == id)
                        .for_each(|entry| entry.1 = Some(urgency));
                }
                5 => opening.shrink(),
                _ => {
                    let request = opening.pop();
                    let expected = (!model.is_empty()).then(|| model.remove(0));
                    let found = request
                        .as_ref()
                        .map(|request| (request.key.id(), request.priority.map(|priority| priority.urgency)));
                    assert_eq!(found, expected);
                    if let Some(request) = request {
                        assert_eq!(request.fields.len(), 1);
                        opening.reuse(request.fields);
                    }
                }
            }
            assert_eq!((opening.len(), opening.is_empty()), (model.len(), model.is_empty()));
            assert_eq!(opening.first().map(StreamKey::id), model.first().map(|&(id, _)| id));
            assert!(opening.requests.len() <= 2 * model.len(), "cancelled requests take memory");
        }
    }

    #[test]
    fn cancelled_requests_take_no_more_memory_than_waiting_ones() {
        let mut opening = Opening::new();
        for id in (1..200).step_by(2) {
            opening.push(key(id), core::iter::empty());
        }
        for id in (3..200).step_by(2).rev() {
            opening.cancel(key(id).stream_id());
            assert!(opening.requests.len() <= 2 * opening.len(), "{id}");
        }
        assert_eq!((opening.len(), opening.first()), (1, Some(key(1))));
    }

    #[test]
    fn shrinking_keeps_what_waits() {
        let mut opening = Opening::new();
        (0..100).for_each(|n| opening.push(key(2 * n + 1), [Field::new(b"x", b"y")].into_iter()));
        for _ in 0..99 {
            let request = opening.pop().unwrap();
            opening.reuse(request.fields);
        }
        opening.shrink();
        assert!(opening.requests.capacity() < 10 && opening.spare.capacity() == 0);
        assert_eq!((opening.len(), opening.first()), (1, Some(key(199))));
    }

    #[test]
    fn streams_from_the_first_request_on_are_idle() {
        let mut opening = Opening::new();
        assert!(!opening.is_before_opening(key(5).stream_id()));
        opening.push(key(5), core::iter::empty());
        let before = [3, 5, 7].map(|id| opening.is_before_opening(key(id).stream_id()));
        assert_eq!(before, [false, true, true]);
    }

    #[test]
    fn an_unused_list_keeps_little_memory() {
        for (list_size, kept) in [(ARENA_KEPT, 1), (ARENA_KEPT + 1, 0)] {
            let mut opening = Opening::new();
            let value = alloc::vec![7; list_size - 33];
            opening.push(key(1), [Field::new(b"x", &value)].into_iter());
            let request = opening.pop().unwrap();
            opening.reuse(request.fields);
            assert_eq!(opening.spare.len(), kept);
        }
    }
}
