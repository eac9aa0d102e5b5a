//! The memory of requests whose heads are large.

use super::shared::Shared;
use crate::headers::Headers;
use crate::memory::FREE_LEN;
use crate::sync::Arc;

/// The memory of a request in addition to its head: the task of its handler, its slots, and the rounding of allocations. Measured with
/// `conformance/memory/run`.
const REQUEST_COST: usize = 8 << 10;

/// Memory of a request with a head that is larger than the accountant ignores, until it is dropped.
pub(crate) struct HeadMemory {
    shared: Arc<Shared>,
    len: usize,
}

impl HeadMemory {
    /// The memory of a request with this head that counts, in bytes.
    pub(super) fn cost_of(head: &Headers) -> usize {
        let len = head.memory_len();
        if len > FREE_LEN { len + REQUEST_COST } else { 0 }
    }

    /// This memory is counted already.
    pub(super) fn new(shared: Arc<Shared>, len: usize) -> Self {
        Self { shared, len }
    }
}

impl Drop for HeadMemory {
    fn drop(&mut self) {
        self.shared.command(|state| state.add_caller_memory(-(self.len as i64)));
    }
}
