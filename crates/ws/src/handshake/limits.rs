//! Limits of the opening handshake.

/// Limits of one opening handshake. On a server each applies to the head of the request; on a client, to all response heads together
/// (informational ones included).
///
/// Fields may be added: use struct update. The caller limits the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandshakeLimits {
    /// Bytes of a head, with its empty line: 16 KiB. That is more than the largest heads that browsers send (two cookies of 4 KiB
    /// among their headers), and common servers and proxies allow as much.
    pub head_len_max: usize,
    /// Header lines of a head: 100, about five times those of a browser behind two proxies.
    pub headers_max: usize,
}

impl Default for HandshakeLimits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl HandshakeLimits {
    /// The default limits.
    pub const DEFAULT: Self = Self { head_len_max: 16 * 1024, headers_max: 100 };
}
