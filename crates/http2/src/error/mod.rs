//! Errors: the peer violated a rule, the peer exceeded a limit, or the caller misused the API.
//!
//! One table for violations and one for limits map each error to its error code (RFC 9113 §7) and its level: a stream error or a
//! connection error (§5.4). The connection sends RST_STREAM and GOAWAY.

mod code;
mod limit;
mod violation;

pub use code::ErrorCode;
pub use limit::Exceeded;
pub use violation::{ErrorLevel, Violation};

use crate::hpack::DecodeError;
use crate::stream_id::StreamId;

/// The scope of an error: what it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// This stream, by RST_STREAM (RFC 9113 §5.4.2).
    Stream(StreamId),
    /// The connection, by GOAWAY (RFC 9113 §5.4.1).
    Connection,
}

impl Scope {
    const fn of(level: ErrorLevel, stream_id: StreamId) -> Self {
        match level {
            ErrorLevel::Stream if !stream_id.is_connection() => Self::Stream(stream_id),
            _ => Self::Connection,
        }
    }
}

/// An error of this crate, by who caused it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Error {
    /// The peer violated a rule of the protocol.
    Peer {
        /// The rule.
        violation: Violation,
        /// Whether the stream or the connection ends.
        scope: Scope,
    },
    /// The peer exceeded a limit of this side.
    Limit {
        /// The limit.
        exceeded: Exceeded,
        /// Whether the stream or the connection ends.
        scope: Scope,
    },
    /// The caller misused the API. Nothing has changed, and nothing was sent.
    Misuse(Misuse),
}

impl Error {
    /// A violation in a frame of this stream (or of stream 0).
    #[cold]
    pub const fn peer(violation: Violation, stream_id: StreamId) -> Self {
        Self::Peer { violation, scope: Scope::of(violation.answer().1, stream_id) }
    }

    /// A limit that a frame of this stream (or of stream 0) exceeded.
    #[cold]
    pub const fn limit(exceeded: Exceeded, stream_id: StreamId) -> Self {
        Self::Limit { exceeded, scope: Scope::of(exceeded.answer().1, stream_id) }
    }

    /// The same error as a connection error. RFC 9113 §5.4.1 allows that for every stream error, and it is the only choice
    /// if there is no stream to reset.
    #[must_use]
    pub const fn for_connection(self) -> Self {
        match self {
            Self::Peer { violation, .. } => Self::Peer { violation, scope: Scope::Connection },
            Self::Limit { exceeded, .. } => Self::Limit { exceeded, scope: Scope::Connection },
            Self::Misuse(misuse) => Self::Misuse(misuse),
        }
    }

    /// The error code that is sent to the peer; `None` for [`Error::Misuse`].
    pub const fn code(self) -> Option<ErrorCode> {
        match self {
            Self::Peer { violation, .. } => Some(violation.answer().0),
            Self::Limit { exceeded, .. } => Some(exceeded.answer().0),
            Self::Misuse(_) => None,
        }
    }

    /// Whether the stream or the connection ends; `None` for [`Error::Misuse`].
    pub const fn scope(self) -> Option<Scope> {
        match self {
            Self::Peer { scope, .. } | Self::Limit { scope, .. } => Some(scope),
            Self::Misuse(_) => None,
        }
    }

    /// A description: the debug data of GOAWAY (RFC 9113 §6.8).
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Peer { violation, .. } => violation.reason(),
            Self::Limit { exceeded, .. } => exceeded.reason(),
            Self::Misuse(misuse) => misuse.reason(),
        }
    }
}

impl From<DecodeError> for Error {
    /// RFC 9113 §4.3: a field block that cannot be decoded is a connection error.
    #[cold]
    fn from(error: DecodeError) -> Self {
        let violation = match error {
            DecodeError::Truncated => Violation::HpackTruncated,
            DecodeError::IntegerOverflow => Violation::HpackInteger,
            DecodeError::IndexZero | DecodeError::IndexTooLarge => Violation::HpackIndex,
            DecodeError::HuffmanEos | DecodeError::HuffmanPadding => Violation::HpackHuffman,
            DecodeError::SizeUpdateTooLarge | DecodeError::SizeUpdateMisplaced => Violation::HpackSizeUpdate,
            DecodeError::SizeUpdateMissing => Violation::HpackSizeUpdateMissing,
            DecodeError::ListTooLarge => {
                return Self::limit(Exceeded::FieldList, StreamId::CONNECTION);
            }
        };
        Self::peer(violation, StreamId::CONNECTION)
    }
}

impl From<Misuse> for Error {
    fn from(misuse: Misuse) -> Self {
        Self::Misuse(misuse)
    }
}

impl core::fmt::Display for Error {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match (self.scope(), self.code()) {
            (Some(Scope::Stream(id)), Some(code)) => write!(f, "{} (stream {id}, {code})", self.reason()),
            (Some(Scope::Connection), Some(code)) => write!(f, "{} (connection, {code})", self.reason()),
            _ => f.write_str(self.reason()),
        }
    }
}

impl core::error::Error for Error {}

macro_rules! misuses {
    ($($(#[$doc:meta])* $name:ident => $reason:literal;)*) => {
        /// A call that the caller must not make in the present state. It had no effect.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Misuse {
            $($(#[$doc])* $name,)*
        }

        impl Misuse {
            /// A description.
            pub const fn reason(self) -> &'static str {
                match self {
                    $(Self::$name => $reason,)*
                }
            }
        }
    };
}

misuses! {
    /// The stream has ended, or never existed.
    StreamGone => "stream has ended";
    /// This side has already sent END_STREAM.
    SendAfterEnd => "END_STREAM has been sent";
    /// DATA or trailers before the header section.
    SendBeforeHeaders => "the header section has not been sent";
    /// The header section has already been sent.
    HeadersSent => "the header section has already been sent";
    /// A client cannot send responses or promises.
    NotServer => "only a server can do this";
    /// A server cannot send requests.
    NotClient => "only a client can do this";
    /// No stream can be opened, because GOAWAY was sent or received.
    GoingAway => "connection is going away";
    /// The connection has ended.
    ConnectionClosed => "connection has ended";
    /// More than [`crate::Limits::queued_opens_max`] requests would wait for the peer's SETTINGS_MAX_CONCURRENT_STREAMS.
    OpenQueueFull => "too many requests wait to open";
    /// The send queue of a stream would reach 4 GiB.
    StreamQueueFull => "queue of the stream is full";
    /// The peer has not acknowledged [`crate::Limits::pings_unacknowledged_max`] PING frames.
    PingsUnacknowledged => "too many PING frames are not acknowledged";
    /// The peer has not acknowledged [`crate::Limits::settings_unacknowledged_max`] SETTINGS frames.
    SettingsUnacknowledged => "too many SETTINGS frames are not acknowledged";
    /// All stream identifiers of this side have been used.
    StreamIdsExhausted => "stream identifiers are used up";
    /// The peer has disabled push.
    PushRefused => "peer has disabled push";
    /// The peer has not enabled extended CONNECT.
    ConnectProtocolNotEnabled => "peer has not enabled extended CONNECT";
    /// The fields are not a valid message: the peer would have to reset the stream.
    MessageInvalid => "fields are not a valid message";
    /// The field list is larger than the peer accepts.
    FieldListTooLarge => "field list is larger than the peer accepts";
    /// The value of a setting is invalid.
    SettingInvalid => "value of a setting is out of range";
    /// More DATA is released than was received.
    ReleaseTooMuch => "more DATA is released than was received";
    /// The length of the DATA would differ from `content-length`.
    ContentLengthMismatch => "DATA would differ from content-length";
}

impl core::fmt::Display for Misuse {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.reason())
    }
}

impl core::error::Error for Misuse {}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    const STREAM: StreamId = StreamId::from_wire(5);

    #[test]
    fn scope_follows_the_table_and_the_stream() {
        // RFC 9113 §6.9: an increment of 0 is a stream error on a stream, a connection error on stream 0.
        let error = Error::peer(Violation::WindowIncrementZero, STREAM);
        assert_eq!(error.scope(), Some(Scope::Stream(STREAM)));
        let error = Error::peer(Violation::WindowIncrementZero, StreamId::CONNECTION);
        assert_eq!(error.scope(), Some(Scope::Connection));
        // RFC 9113 §6.9: a wrong length of WINDOW_UPDATE is a connection error wherever it comes.
        assert_eq!(Error::peer(Violation::WindowUpdateSize, STREAM).scope(), Some(Scope::Connection));
        assert_eq!(Error::limit(Exceeded::ConcurrentStreams, STREAM).code(), Some(ErrorCode::REFUSED_STREAM));
    }

    #[test]
    fn stream_errors_may_be_raised_to_connection_errors() {
        // RFC 9113 §5.4.1: an endpoint MAY choose to treat a stream error as a connection error.
        let error = Error::peer(Violation::PathInvalid, STREAM).for_connection();
        assert_eq!(error.scope(), Some(Scope::Connection));
        assert_eq!(error.code(), Some(ErrorCode::PROTOCOL_ERROR));
    }

    #[test]
    fn every_malformed_message_is_a_stream_error() {
        // RFC 9113 §8.1.1: a malformed message MUST be treated as a stream error of type PROTOCOL_ERROR.
        let first = Violation::ALL.iter().position(|&v| v == Violation::FieldNameEmpty).unwrap();
        for violation in &Violation::ALL[first..] {
            assert_eq!(violation.answer(), (ErrorCode::PROTOCOL_ERROR, ErrorLevel::Stream), "{violation:?}");
        }
    }

    #[test]
    fn reasons_are_short_and_differ() {
        let mut reasons: alloc::vec::Vec<_> = Violation::ALL.iter().map(|v| v.reason()).collect();
        reasons.extend(Exceeded::ALL.iter().map(|e| e.reason()));
        assert!(reasons.iter().all(|reason| reason.len() <= 64 && reason.is_ascii()));
        let count = reasons.len();
        reasons.sort_unstable();
        reasons.dedup();
        assert_eq!(reasons.len(), count);
    }

    #[test]
    fn a_block_that_cannot_be_decoded_ends_the_connection() {
        // RFC 9113 §4.3: a decoding error MUST be treated as a connection error of type COMPRESSION_ERROR.
        let error = Error::from(DecodeError::HuffmanEos);
        assert_eq!(error.code(), Some(ErrorCode::COMPRESSION_ERROR));
        assert_eq!(error.scope(), Some(Scope::Connection));
        // RFC 9113 §10.5.1: a bomb is no error of compression.
        let error = Error::from(DecodeError::ListTooLarge);
        assert_eq!(error.code(), Some(ErrorCode::ENHANCE_YOUR_CALM));
    }

    #[test]
    fn misuse_is_not_sent_to_the_peer() {
        let error = Error::from(Misuse::SendAfterEnd);
        assert_eq!((error.code(), error.scope()), (None, None));
        assert_eq!(error.to_string(), "END_STREAM has been sent");
        assert_eq!(
            Error::peer(Violation::PathInvalid, STREAM).to_string(),
            ":path is invalid (stream 5, PROTOCOL_ERROR)"
        );
        let error = Error::from(DecodeError::HuffmanEos).to_string();
        assert!(error.ends_with(" (connection, COMPRESSION_ERROR)"), "{error}");
    }
}
