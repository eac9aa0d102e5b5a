//! [`UnsentRequests`]: requests whose HEADERS are in the output, and of which the transport has accepted no byte.
//!
//! When the connection ends they leave the output: the server never sees them, so they are safe to send again (RFC 9113 §8.7).

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::frame::StreamId;

struct UnsentRequest {
    /// The position of its HEADERS in the output.
    at: usize,
    id: StreamId,
}

pub(super) struct UnsentRequests {
    /// In the order of the output.
    requests: VecDeque<UnsentRequest>,
}

impl UnsentRequests {
    pub(super) const fn new() -> Self {
        Self { requests: VecDeque::new() }
    }

    /// HEADERS of a request are written at this position, behind all others.
    #[inline]
    pub(super) fn push(&mut self, at: usize, id: StreamId) {
        self.requests.push_back(UnsentRequest { at, id });
    }

    /// The output before `head` was sent.
    #[inline]
    pub(super) fn advance(&mut self, head: usize) {
        while self.requests.front().is_some_and(|request| request.at < head) {
            self.requests.pop_front();
        }
    }

    /// The first `len` bytes of the output, which were sent, were removed.
    pub(super) fn shift(&mut self, len: usize) {
        self.requests.iter_mut().for_each(|request| request.at -= len);
    }

    /// Where the HEADERS of the first request begin.
    pub(super) fn start(&self) -> Option<usize> {
        self.requests.front().map(|request| request.at)
    }

    /// Removes all requests. Returns their streams, in order.
    pub(super) fn take(&mut self) -> Vec<StreamId> {
        core::mem::take(&mut self.requests).into_iter().map(|request| request.id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn a_request_is_unsent_until_its_first_byte_was_accepted() {
        let id = |id| StreamId::new(id).unwrap();
        let unsent_at = |head| {
            let mut unsent = UnsentRequests::new();
            for (at, stream) in [(33, 1), (60, 3), (90, 5)] {
                unsent.push(at, id(stream));
            }
            unsent.advance(head);
            (unsent.start(), unsent.take())
        };
        assert_eq!(unsent_at(0), (Some(33), vec![id(1), id(3), id(5)]));
        assert_eq!(unsent_at(33), (Some(33), vec![id(1), id(3), id(5)]));
        assert_eq!(unsent_at(34), (Some(60), vec![id(3), id(5)]));
        assert_eq!(unsent_at(91), (None, vec![]));
    }

    #[test]
    fn positions_follow_the_bytes() {
        let mut unsent = UnsentRequests::new();
        unsent.push(100, StreamId::FIRST_CLIENT);
        unsent.shift(70);
        assert_eq!(unsent.start(), Some(30));
        unsent.advance(30);
        assert_eq!(unsent.start(), Some(30));
        unsent.advance(31);
        assert_eq!(unsent.start(), None);
    }
}
