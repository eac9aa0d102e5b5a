//! The ends of requests that are in the output of a connection: when each has left.

use std::collections::VecDeque;

/// Positions in the output, in its order.
pub(super) struct Leaving<S> {
    /// Bytes of the output that the transport has accepted.
    transmitted: u64,
    /// Streams whose END_STREAM is in the output, each with a position behind it.
    ends: VecDeque<(S, u64)>,
}

impl<S> Default for Leaving<S> {
    fn default() -> Self {
        Self { transmitted: 0, ends: VecDeque::new() }
    }
}

impl<S> Leaving<S> {
    pub(super) fn transmitted(&mut self, len: usize) {
        self.transmitted += len as u64;
    }

    /// END_STREAM has left, or is among the `output_len` bytes that the transport has not accepted.
    pub(super) fn push(&mut self, stream: S, output_len: u64) {
        self.ends.push_back((stream, self.transmitted + output_len));
    }

    /// The next stream whose END_STREAM has left a transport that buffers at most `buffered_len` of the bytes that it has accepted.
    pub(super) fn pop(&mut self, buffered_len: usize) -> Option<S> {
        let left = self.transmitted.saturating_sub(buffered_len as u64);
        if self.ends.front()?.1 > left {
            return None;
        }
        self.ends.pop_front().map(|(stream, _)| stream)
    }

    pub(super) fn clear(&mut self) {
        self.ends.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_has_left_when_no_byte_before_it_can_be_buffered() {
        let mut leaving = Leaving::default();
        leaving.transmitted(100);
        leaving.push(1, 50);
        leaving.push(3, 50);
        leaving.push(5, 51);
        assert_eq!(leaving.pop(0), None);
        leaving.transmitted(59);
        assert_eq!(leaving.pop(10), None);
        leaving.transmitted(1);
        assert_eq!([(); 3].map(|()| leaving.pop(10)), [Some(1), Some(3), None]);
        assert_eq!([(); 2].map(|()| leaving.pop(0)), [Some(5), None]);
    }
}
