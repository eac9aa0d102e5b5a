//! [`Role`]: client or server.

/// One of the two ends of a connection (RFC 9113 §2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The end that opened the connection; its streams have odd identifiers (RFC 9113 §5.1.1).
    Client,
    /// The end that accepted the connection; its streams have even identifiers (RFC 9113 §5.1.1).
    Server,
}

impl Role {
    /// The other end.
    #[inline]
    #[must_use]
    pub const fn peer(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}
