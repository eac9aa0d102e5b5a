//! Errors of an open connection, by their cause: the peer, a limit, or the caller; and the close code for each.

use crate::close::CloseCode;
use core::fmt;

/// Why a connection failed or a command was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The peer broke the protocol. The connection has failed.
    Peer(PeerMisbehaved),
    /// The peer exceeded a limit of this end. The connection has failed.
    Limit(LimitExceeded),
    /// The command is not allowed by the state of the connection or by the protocol. Nothing was sent, and nothing has changed.
    Misuse(Misuse),
}

/// The rule that the peer broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PeerMisbehaved {
    /// A reserved opcode (RFC 6455 §5.2).
    ReservedOpcode(u8),
    /// Reserved bits that no negotiated extension uses here; RSV1 is 4, RSV2 is 2, RSV3 is 1 (RFC 6455 §5.2, RFC 7692 §6).
    ReservedBits(u8),
    /// A control frame without FIN (RFC 6455 §5.5).
    FragmentedControl,
    /// A control frame whose payload is longer than 125 bytes (RFC 6455 §5.5).
    ControlTooLong,
    /// A length that does not use the fewest bytes (RFC 6455 §5.2).
    NonMinimalLength,
    /// A 64-bit length with its highest bit set (RFC 6455 §5.2).
    LengthOutOfRange,
    /// A client's frame without a mask (RFC 6455 §5.1).
    UnmaskedFrame,
    /// A server's frame with a mask (RFC 6455 §5.1).
    MaskedFrame,
    /// A continuation frame outside a fragmented message (RFC 6455 §5.4).
    UnexpectedContinuation,
    /// A text or binary frame within a fragmented message (RFC 6455 §5.4).
    UnfinishedMessage,
    /// Text that is not UTF-8 (RFC 6455 §8.1).
    InvalidUtf8,
    /// A Close body of one byte (RFC 6455 §5.5.1).
    TruncatedCloseCode,
    /// A close code that may not be sent (RFC 6455 §7.4).
    InvalidCloseCode(u16),
    /// A close reason that is not UTF-8 (RFC 6455 §5.5.1).
    InvalidCloseReason,
    /// Compressed data that does not inflate (RFC 7692 §7.2.2).
    InvalidDeflate,
}

/// The limit that was reached; see [`crate::limits::Limits`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LimitExceeded {
    /// A frame announced a payload over `frame_len_max`.
    FrameTooLarge {
        /// The announced length, in bytes.
        len: u64,
        /// The limit, in bytes.
        max: u64,
    },
    /// A message grew over `message_len_max`.
    MessageTooLarge {
        /// The limit, in bytes.
        max: u64,
    },
    /// A message has more fragments than its length allows.
    TooManyFragments,
    /// A compressed message inflates to more than `message_len_max`.
    InflatedTooLarge {
        /// The limit, in bytes.
        max: u64,
    },
    /// A compressed message inflates by more than `inflate_ratio_max`.
    InflateRatio {
        /// The limit.
        max: u32,
    },
    /// The allocator has no memory for an inflated message.
    OutOfMemory,
}

/// The mistake of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Misuse {
    /// The connection is closing or closed (RFC 6455 §5.5.1).
    NotOpen,
    /// A whole message, or a fragment of the other kind, while a message is being sent in fragments (RFC 6455 §5.4).
    MessageUnderWay,
    /// A ping or pong over 125 bytes (RFC 6455 §5.5).
    ControlTooLong(usize),
    /// A close code that may not be sent (RFC 6455 §7.4).
    UnsendableCloseCode(CloseCode),
    /// A close reason over 123 bytes (RFC 6455 §5.5).
    CloseReasonTooLong(usize),
    /// A close reason without a close code (RFC 6455 §5.5.1).
    CloseReasonWithoutCode,
    /// A compressed [`PreparedFrame`](crate::PreparedFrame) for a larger window than was negotiated, or on a connection
    /// without compression.
    PreparedForOthers,
    /// The send queue has no room for this message; transmit first.
    QueueFull {
        /// Bytes queued now.
        queued: usize,
        /// The limit, `queued_len_max`.
        max: usize,
    },
}

impl Error {
    /// The close code that this error is answered with; `None` when the caller is to blame.
    pub const fn close_code(&self) -> Option<CloseCode> {
        Some(match self {
            Self::Peer(peer) => match peer {
                // RFC 6455 §8.1, §7.4.1: data that does not fit the type of the message.
                PeerMisbehaved::InvalidUtf8
                | PeerMisbehaved::InvalidCloseReason
                // RFC 7692 §7.2.2 names no code; the data is not what RSV1 announces.
                | PeerMisbehaved::InvalidDeflate => CloseCode::INVALID_PAYLOAD,
                _ => CloseCode::PROTOCOL_ERROR,
            },
            Self::Limit(limit) => match limit {
                LimitExceeded::TooManyFragments => CloseCode::POLICY_VIOLATION,
                _ => CloseCode::TOO_BIG,
            },
            Self::Misuse(_) => return None,
        })
    }
}

impl PeerMisbehaved {
    /// The section that states the rule, such as `RFC 6455 §5.2`.
    pub const fn rule(&self) -> &'static str {
        match self {
            Self::ReservedOpcode(_)
            | Self::ReservedBits(_)
            | Self::NonMinimalLength
            | Self::LengthOutOfRange => "RFC 6455 §5.2",
            Self::FragmentedControl | Self::ControlTooLong => "RFC 6455 §5.5",
            Self::UnmaskedFrame | Self::MaskedFrame => "RFC 6455 §5.1",
            Self::UnexpectedContinuation | Self::UnfinishedMessage => "RFC 6455 §5.4",
            Self::InvalidUtf8 => "RFC 6455 §8.1",
            Self::TruncatedCloseCode | Self::InvalidCloseReason => "RFC 6455 §5.5.1",
            Self::InvalidCloseCode(_) => "RFC 6455 §7.4",
            Self::InvalidDeflate => "RFC 7692 §7.2.2",
        }
    }
}

impl From<PeerMisbehaved> for Error {
    #[inline]
    fn from(peer: PeerMisbehaved) -> Self {
        Self::Peer(peer)
    }
}

impl From<LimitExceeded> for Error {
    #[inline]
    fn from(limit: LimitExceeded) -> Self {
        Self::Limit(limit)
    }
}

impl From<Misuse> for Error {
    #[inline]
    fn from(misuse: Misuse) -> Self {
        Self::Misuse(misuse)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Peer(peer) => peer.fmt(f),
            Self::Limit(limit) => limit.fmt(f),
            Self::Misuse(misuse) => misuse.fmt(f),
        }
    }
}

impl fmt::Display for PeerMisbehaved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ReservedOpcode(opcode) => write!(f, "reserved opcode {opcode}"),
            Self::ReservedBits(bits) => write!(f, "reserved bits {bits:03b} are set"),
            Self::FragmentedControl => f.write_str("fragmented control frame"),
            Self::ControlTooLong => f.write_str("control frame of more than 125 bytes"),
            Self::NonMinimalLength => f.write_str("payload length not in its shortest form"),
            Self::LengthOutOfRange => f.write_str("payload length exceeds 63 bits"),
            Self::UnmaskedFrame => f.write_str("unmasked frame from a client"),
            Self::MaskedFrame => f.write_str("masked frame from a server"),
            Self::UnexpectedContinuation => f.write_str("continuation frame outside a message"),
            Self::UnfinishedMessage => f.write_str("new message within a fragmented message"),
            Self::InvalidUtf8 => f.write_str("text is not UTF-8"),
            Self::TruncatedCloseCode => f.write_str("close code of one byte"),
            Self::InvalidCloseCode(code) => write!(f, "close code {code} may not be sent"),
            Self::InvalidCloseReason => f.write_str("close reason is not UTF-8"),
            Self::InvalidDeflate => f.write_str("compressed data does not inflate"),
        }
    }
}

impl fmt::Display for LimitExceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FrameTooLarge { len, max } => write!(f, "frame of {len} bytes exceeds the limit of {max}"),
            Self::MessageTooLarge { max } => write!(f, "message exceeds the limit of {max} bytes"),
            Self::TooManyFragments => f.write_str("message has too many fragments"),
            Self::InflatedTooLarge { max } => write!(f, "message inflates to more than {max} bytes"),
            Self::InflateRatio { max } => {
                write!(f, "message inflates to more than {max} times its compressed length")
            }
            Self::OutOfMemory => f.write_str("there is no memory for the inflated message"),
        }
    }
}

impl fmt::Display for Misuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotOpen => f.write_str("the connection is not open"),
            Self::MessageUnderWay => f.write_str("another message is being sent in fragments"),
            Self::ControlTooLong(len) => write!(f, "control payload of {len} bytes is over 125"),
            Self::UnsendableCloseCode(code) => write!(f, "close code {code} may not be sent"),
            Self::CloseReasonTooLong(len) => write!(f, "close reason of {len} bytes is over 123"),
            Self::CloseReasonWithoutCode => f.write_str("close reason without a code"),
            Self::PreparedForOthers => {
                f.write_str("the prepared frame is compressed for parameters that were not negotiated")
            }
            Self::QueueFull { queued, max } => {
                write!(
                    f,
                    "the message does not fit into the send queue: {queued} of at most {max} bytes are queued"
                )
            }
        }
    }
}

impl core::error::Error for Error {}
impl core::error::Error for PeerMisbehaved {}
impl core::error::Error for LimitExceeded {}
impl core::error::Error for Misuse {}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    // The text of the error is sent as the close reason.
    #[test]
    fn every_message_fits_a_close_reason() {
        let errors: [Error; 8] = [
            PeerMisbehaved::ReservedOpcode(15).into(),
            PeerMisbehaved::InvalidCloseCode(u16::MAX).into(),
            LimitExceeded::FrameTooLarge { len: u64::MAX, max: u64::MAX }.into(),
            LimitExceeded::InflatedTooLarge { max: u64::MAX }.into(),
            LimitExceeded::InflateRatio { max: u32::MAX }.into(),
            LimitExceeded::OutOfMemory.into(),
            PeerMisbehaved::NonMinimalLength.into(),
            PeerMisbehaved::InvalidDeflate.into(),
        ];
        for error in errors {
            assert!(error.to_string().len() <= crate::close::REASON_LEN_MAX, "{error}");
            assert!(error.close_code().is_some_and(CloseCode::is_sendable), "{error}");
        }
    }

    #[test]
    fn misuse_has_no_close_code() {
        assert_eq!(Error::from(Misuse::NotOpen).close_code(), None);
    }

    // RFC 6455 §7.4.1.
    #[test]
    fn limits_have_their_close_codes() {
        let code = |limit: LimitExceeded| Error::from(limit).close_code();
        assert_eq!(code(LimitExceeded::TooManyFragments), Some(CloseCode::POLICY_VIOLATION));
        assert_eq!(code(LimitExceeded::MessageTooLarge { max: 1 }), Some(CloseCode::TOO_BIG));
        assert_eq!(code(LimitExceeded::InflateRatio { max: 1 }), Some(CloseCode::TOO_BIG));
        assert_eq!(code(LimitExceeded::OutOfMemory), Some(CloseCode::TOO_BIG));
    }

    #[test]
    fn rules_name_their_section() {
        assert_eq!(PeerMisbehaved::ReservedBits(4).rule(), "RFC 6455 §5.2");
        assert_eq!(PeerMisbehaved::InvalidDeflate.rule(), "RFC 7692 §7.2.2");
    }
}
