//! How much the core frames ahead of the transport.

/// Framed DATA leaves in order, whatever becomes urgent meanwhile. A transport that accepts every write gets large ones, which
/// cost less; one that does not keep up gets small ones, so that an urgent response waits for little.
#[derive(Debug)]
pub(super) struct OutputAhead {
    len: usize,
    max: usize,
}

impl OutputAhead {
    const MIN: usize = 32 << 10;

    /// Bytes that the kernel should accept before it can send them: with [`MIN`](Self::MIN) they take less than 100 ms at 2 MB/s.
    pub(super) const UNSENT_MAX: u32 = 64 << 10;

    /// `max` is the largest amount, in bytes.
    pub(super) fn new(max: usize) -> Self {
        Self { len: max.min(Self::MIN), max }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The transport accepted `written` of the bytes that it was offered, and not all of them if it `blocked`.
    pub(super) fn handle_written(&mut self, written: usize, blocked: bool) {
        if blocked {
            self.len = self.max.min(Self::MIN);
        } else if written >= self.len {
            self.len = (self.len * 2).min(self.max);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_while_the_transport_accepts_everything() {
        let mut ahead = OutputAhead::new(256 << 10);
        assert_eq!(ahead.len(), 32 << 10);
        // Small responses say nothing.
        ahead.handle_written(1000, false);
        assert_eq!(ahead.len(), 32 << 10);
        for len in [64 << 10, 128 << 10, 256 << 10, 256 << 10] {
            ahead.handle_written(ahead.len(), false);
            assert_eq!(ahead.len(), len);
        }
        ahead.handle_written(200 << 10, true);
        assert_eq!(ahead.len(), 32 << 10);
        assert_eq!(OutputAhead::new(1000).len(), 1000);
    }
}
