//! Which end of the connection this is: it decides who masks (RFC 6455 §5.3) and who closes TCP (§7.1.1).

/// The end of the connection that this state machine plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Opened the connection; masks every frame it sends and refuses masked ones.
    Client,
    /// Accepted the connection; refuses unmasked frames and closes TCP first.
    Server,
}

impl Role {
    /// The other end.
    pub(crate) fn peer(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}
