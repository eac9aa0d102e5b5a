//! The memory of a connection, reported to the accountant of its server.

use std::task::{Context, Poll};

use wireloom_http2::Memory;

use crate::memory::{Account, Category, Reservation};

/// The memory that the driver last reported to the server's accountant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reported {
    /// A client's connection, which has no accountant.
    Nothing,
    /// `total` bytes. `is_queued`: there was content to send.
    Memory { total: u64, is_queued: bool },
}

impl Reported {
    /// The driver reports again when the memory has changed by this many bytes.
    const STEP: u64 = 64 << 10;

    /// A driver that waits for memory reads on when content is queued.
    pub(super) fn is_outdated(self, memory: &Memory) -> bool {
        let Self::Memory { total, is_queued } = self else { return false };
        total.abs_diff(memory.total()) >= Self::STEP || (!is_queued && memory.queued > 0)
    }

    pub(super) fn set(&mut self, memory: &Memory) {
        if let Self::Memory { .. } = self {
            *self = Self::Memory { total: memory.total(), is_queued: memory.queued > 0 };
        }
    }
}

/// Owned by the driver: reports follow each other, and none is made under the connection's mutex.
pub(super) struct MemoryReport {
    account: Account,
    held: Reservation,
    send_queue: Reservation,
    heads: Reservation,
}

impl MemoryReport {
    pub(super) fn new(account: Account) -> Self {
        Self {
            held: account.reservation(Category::Http2Window),
            send_queue: account.reservation(Category::SendQueue),
            heads: account.reservation(Category::Head),
            account,
        }
    }

    /// `buffered_len`: output that the transport holds.
    pub(super) fn report(&mut self, memory: &Memory, buffered_len: usize) {
        let len = |len: u64| usize::try_from(len).unwrap_or(usize::MAX);
        self.held.set(len(memory.held));
        self.send_queue.set(len(memory.queued.saturating_add(memory.output)).saturating_add(buffered_len));
        self.heads.set(len(memory.input.saturating_add(memory.caller)));
    }

    pub(super) fn account(&self) -> &Account {
        &self.account
    }

    /// Ready when the connection may read.
    pub(super) fn poll_read_allowed(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.account.poll_read_allowed(cx)
    }
}

impl Default for MemoryReport {
    fn default() -> Self {
        Self::new(Account::default())
    }
}
