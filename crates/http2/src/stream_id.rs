//! Stream identifiers: 31 bits (RFC 9113 §5.1.1).

use crate::role::Role;

/// The identifier of a stream; 0 is the connection as a whole.
///
/// Invariant: `get() <= MAX`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct StreamId(u32);

impl StreamId {
    /// Stream 0: the connection as a whole.
    pub const CONNECTION: Self = Self(0);
    /// The highest identifier.
    pub const MAX: Self = Self(u32::MAX >> 1);
    /// The first stream of a client, which is also the stream of an upgraded request (RFC 7540 §3.2).
    pub const FIRST_CLIENT: Self = Self(1);
    /// The first stream of a server.
    pub const FIRST_SERVER: Self = Self(2);

    /// The identifier; `None` above 2^31-1.
    #[inline]
    pub const fn new(id: u32) -> Option<Self> {
        if id <= Self::MAX.0 { Some(Self(id)) } else { None }
    }

    /// Decodes an identifier. The reserved bit is ignored (RFC 9113 §4.1).
    #[inline]
    pub const fn from_wire(word: u32) -> Self {
        Self(word & Self::MAX.0)
    }

    /// The number.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Whether this is stream 0.
    #[inline]
    pub const fn is_connection(self) -> bool {
        self.0 == 0
    }

    /// The end that opens this stream (RFC 9113 §5.1.1); `None` for stream 0.
    #[inline]
    pub const fn opener(self) -> Option<Role> {
        match self.0 {
            0 => None,
            id if id & 1 == 1 => Some(Role::Client),
            _ => Some(Role::Server),
        }
    }

    /// The next stream of the same end; `None` after the last one.
    #[inline]
    pub const fn next(self) -> Option<Self> {
        Self::new(self.0 + 2)
    }
}

impl From<StreamId> for u32 {
    fn from(id: StreamId) -> Self {
        id.0
    }
}

impl core::fmt::Debug for StreamId {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl core::fmt::Display for StreamId {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignores_the_reserved_bit() {
        // RFC 9113 §4.1: the reserved bit MUST be ignored when receiving.
        assert_eq!(StreamId::from_wire(0x8000_0005), StreamId::from_wire(5));
        assert_eq!(StreamId::new(0x8000_0000), None);
        assert_eq!(StreamId::new(0x7fff_ffff), Some(StreamId::MAX));
        assert_eq!(u32::from(StreamId::MAX), 0x7fff_ffff);
    }

    #[test]
    fn clients_open_odd_streams() {
        // RFC 9113 §5.1.1: a client uses odd-numbered stream identifiers, a server even-numbered ones.
        assert_eq!(StreamId::CONNECTION.opener(), None);
        assert_eq!(StreamId::FIRST_CLIENT.opener(), Some(Role::Client));
        assert_eq!(StreamId::FIRST_SERVER.opener(), Some(Role::Server));
        assert_eq!(StreamId::FIRST_CLIENT.next(), StreamId::new(3));
        assert_eq!(StreamId::MAX.next(), None);
    }
}
