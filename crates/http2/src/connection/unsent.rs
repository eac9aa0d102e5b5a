//! [`UnsentRequests`]: requests whose HEADERS are in the output, and of which the transport has accepted no byte.
//!
//! When the connection ends they leave the output: the server never sees them, so they are safe to send again (RFC 9113 §8.7).

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::output::Position;
use crate::frame::StreamId;

struct UnsentRequest {
    /// The position of its HEADERS in the output.
    at: Position,
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
    pub(super) fn push(&mut self, at: Position, id: StreamId) {
        self.requests.push_back(UnsentRequest { at, id });
    }

    /// The output before `sent` was sent.
    #[inline]
    pub(super) fn advance(&mut self, sent: Position) {
        while self.requests.front().is_some_and(|request| request.at < sent) {
            self.requests.pop_front();
        }
    }

    /// Where the HEADERS of the first request begin.
    pub(super) fn start(&self) -> Option<Position> {
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
        let unsent_at = |sent| {
            let mut unsent = UnsentRequests::new();
            for (at, stream) in [(33, 1), (60, 3), (90, 5)] {
                unsent.push(at, id(stream));
            }
            unsent.advance(sent);
            (unsent.start(), unsent.take())
        };
        assert_eq!(unsent_at(0), (Some(33), vec![id(1), id(3), id(5)]));
        assert_eq!(unsent_at(33), (Some(33), vec![id(1), id(3), id(5)]));
        assert_eq!(unsent_at(34), (Some(60), vec![id(3), id(5)]));
        assert_eq!(unsent_at(91), (None, vec![]));
    }
}
