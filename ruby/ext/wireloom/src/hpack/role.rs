//! Names of fields that a message is treated by.

use crate::held::plain;

/// The part that a field plays in a message (RFC 9113 §8.2.2 and §8.3). A table keeps it beside the name, so that an indexed field
/// is handed out without a look at its Strings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Regular,
    Method,
    Status,
    /// Another pseudo-field.
    Pseudo,
    ContentLength,
    Trailer,
    Connection,
    Te,
}

plain!(Role);

impl Role {
    #[inline]
    pub(super) fn of(name: &[u8]) -> Self {
        match name {
            b":method" => Self::Method,
            b":status" => Self::Status,
            [b':', ..] => Self::Pseudo,
            b"content-length" => Self::ContentLength,
            b"trailer" => Self::Trailer,
            b"connection" => Self::Connection,
            b"te" => Self::Te,
            _ => Self::Regular,
        }
    }

    #[inline]
    pub(super) const fn is_pseudo(self) -> bool {
        matches!(self, Self::Method | Self::Status | Self::Pseudo)
    }
}
