//! [`Memory`]: the memory that a connection uses.

/// The memory of a connection, in bytes. [`Memory::total`] is at most [`crate::Config::memory_max`] if the caller respects
/// [`crate::Connection::send_capacity`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Memory {
    /// DATA that was passed to the caller and not released.
    pub held: u64,
    /// DATA in the send queues, and the entries of its chunks.
    pub queued: u64,
    /// Output that the transport has not written.
    pub output: u64,
    /// Input of incomplete frames and field blocks.
    pub input: u64,
    /// Memory that the caller reported with [`crate::Connection::set_caller_memory`].
    pub caller: u64,
}

impl Memory {
    /// The sum, in bytes.
    pub const fn total(&self) -> u64 {
        self.held
            .saturating_add(self.queued)
            .saturating_add(self.output)
            .saturating_add(self.input)
            .saturating_add(self.caller)
    }
}
