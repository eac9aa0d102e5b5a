//! What a peer may make the opening handshake hold.

/// Bounds on one opening handshake, with their reasons. Each holds for the head of the request when this side is the
/// server, and for all the response heads together (informational ones included) when it is the client.
///
/// How long a handshake may take is the owner's to say:
/// [`ServerHandshake::with_deadline`](super::server::ServerHandshake::with_deadline).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandshakeLimits {
    /// Bytes from the first one to the empty line, both included: 16 KiB, which holds the largest heads that browsers
    /// send (two cookies of 4 KiB with room to spare) and is what common servers and proxies allow.
    pub head_len_max: usize,
    /// Header lines in a head: 100, about five times what a browser sends behind two proxies.
    pub headers_max: usize,
}

impl Default for HandshakeLimits {
    fn default() -> Self {
        Self { head_len_max: 16 * 1024, headers_max: 100 }
    }
}

impl HandshakeLimits {
    /// The same limits with this many bytes for a head.
    #[must_use]
    pub fn with_head_len_max(self, head_len_max: usize) -> Self {
        Self { head_len_max, ..self }
    }

    /// The same limits with this many header lines.
    #[must_use]
    pub fn with_headers_max(self, headers_max: usize) -> Self {
        Self { headers_max, ..self }
    }
}
