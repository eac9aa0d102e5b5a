//! The memory that one connection takes, for the accountant of a server.

/// Bytes by their place; [`Memory::total`] stays within [`crate::Config::memory_max`] when the caller respects
/// [`crate::Connection::send_capacity`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Memory {
    /// DATA that was passed to the caller and not released.
    pub held: u64,
    /// DATA of the caller that waits for a window or for its turn.
    pub queued: u64,
    /// Output that the transport has not taken.
    pub output: u64,
    /// Input that waits for the rest of a frame or of a field block.
    pub input: u64,
    /// Reported with [`crate::Connection::set_caller_memory`].
    pub caller: u64,
}

impl Memory {
    /// All of it, in bytes.
    pub const fn total(&self) -> u64 {
        self.held
            .saturating_add(self.queued)
            .saturating_add(self.output)
            .saturating_add(self.input)
            .saturating_add(self.caller)
    }
}
