//! Memory in use, in numbers.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{Category, Memory};

/// Memory in use, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryStats {
    /// The limit, in bytes ([`ServerConfig::memory_max`](crate::ServerConfig::memory_max)).
    pub max: usize,
    /// Bytes in use, of all categories.
    pub total: usize,
    /// Bytes that all connections would hold if they were idle.
    pub connections: usize,
    /// Bytes of the read buffers of WebSockets whose handlers wait for something else than a message.
    pub read_buffers: usize,
    /// Bytes of messages that are still arriving.
    pub assemblies: usize,
    /// Bytes of inflated messages and deflate windows.
    pub inflated: usize,
    /// Bytes accepted for sending that transports have not taken.
    pub send_queues: usize,
    /// Bytes of heads of HTTP messages.
    pub heads: usize,
    /// Bytes of bodies of HTTP messages.
    pub bodies: usize,
    /// Bytes of HTTP/2 streams that the application has not read.
    pub http2_windows: usize,
    /// Times that memory was refused because the limit was reached.
    pub refused: u64,
    /// Connections that were closed to free memory.
    pub evicted: u64,
}

/// Counters of the actions against peers that read too slowly.
#[derive(Debug, Default)]
pub(crate) struct SlowPeers {
    /// Messages.
    pub(crate) dropped: AtomicU64,
    pub(crate) disconnected: AtomicU64,
}

impl Memory {
    pub(crate) fn stats(&self) -> MemoryStats {
        let of = |category: Category| self.categories[category as usize].load(Ordering::Relaxed);
        MemoryStats {
            max: self.max(),
            total: self.total.load(Ordering::Relaxed),
            connections: of(Category::Connection),
            read_buffers: of(Category::ReadBuffer),
            assemblies: of(Category::Assembly),
            inflated: of(Category::Inflated),
            send_queues: of(Category::SendQueue),
            heads: of(Category::Head),
            bodies: of(Category::Body),
            http2_windows: of(Category::Http2Window),
            refused: self.refused.load(Ordering::Relaxed),
            evicted: self.evicted.load(Ordering::Relaxed),
        }
    }
}
