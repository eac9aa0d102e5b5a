//! [`Exceeded`]: the limits that a peer can exceed, with their error codes.

use super::{ErrorCode, ErrorLevel};

macro_rules! exceeded {
    ($($(#[$doc:meta])* $name:ident => $code:ident, $level:ident, $reason:literal;)*) => {
        /// A limit that the peer exceeded.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Exceeded {
            $($(#[$doc])* $name,)*
        }

        impl Exceeded {
            /// Every limit, in the order of the table.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The error code, and whether the stream or the connection ends.
            pub const fn answer(self) -> (ErrorCode, ErrorLevel) {
                match self {
                    $(Self::$name => (ErrorCode::$code, ErrorLevel::$level),)*
                }
            }

            /// A description, for the debug data of GOAWAY and for logs.
            pub const fn reason(self) -> &'static str {
                match self {
                    $(Self::$name => $reason,)*
                }
            }
        }
    };
}

exceeded! {
    /// Streams opened and reset by the peer (CVE-2023-44487, rapid reset; CVE-2019-9514).
    PeerResets => ENHANCE_YOUR_CALM, Connection, "too many streams reset";
    /// Streams that the peer made this side reset (CVE-2025-8671, MadeYouReset).
    StreamErrors => ENHANCE_YOUR_CALM, Connection, "too many stream errors";
    /// PING frames (CVE-2019-9512).
    Pings => ENHANCE_YOUR_CALM, Connection, "too many PING frames";
    /// SETTINGS frames (CVE-2019-9515).
    Settings => ENHANCE_YOUR_CALM, Connection, "too many SETTINGS frames";
    /// Entries of one SETTINGS frame (CVE-2020-11080).
    SettingsEntries => ENHANCE_YOUR_CALM, Connection, "too many entries in SETTINGS";
    /// Empty frames (CVE-2019-9518).
    EmptyFrames => ENHANCE_YOUR_CALM, Connection, "too many empty frames";
    /// DATA frames whose headers outweigh their content (CVE-2019-9511, data dribble).
    DataOverhead => ENHANCE_YOUR_CALM, Connection, "too many tiny DATA frames";
    /// PRIORITY and PRIORITY_UPDATE frames (CVE-2019-9513).
    Priorities => ENHANCE_YOUR_CALM, Connection, "too many PRIORITY frames";
    /// WINDOW_UPDATE frames.
    WindowUpdates => ENHANCE_YOUR_CALM, Connection, "too many WINDOW_UPDATE frames";
    /// Frames of unknown type, and of extensions that are ignored.
    UnknownFrames => ENHANCE_YOUR_CALM, Connection, "too many unknown frames";
    /// CONTINUATION frames of one field block (VU#421644).
    Continuations => ENHANCE_YOUR_CALM, Connection, "too many CONTINUATION frames";
    /// Compressed bytes of one field block.
    FieldBlock => ENHANCE_YOUR_CALM, Connection, "field block is too large";
    /// A frame other than DATA, or a field block, that did not arrive in time.
    FieldBlockTime => ENHANCE_YOUR_CALM, Connection, "field block takes too long";
    /// A field list several times larger than announced (CVE-2016-6581, header bomb; CVE-2019-9516).
    FieldList => ENHANCE_YOUR_CALM, Connection, "field list is far too large";
    /// A field list larger than announced, or with too many fields. (A request is answered with 431 instead if the peer accepts
    /// that: RFC 9113 §10.5.1.)
    Fields => ENHANCE_YOUR_CALM, Stream, "field list is too large";
    /// Interim responses before the final one.
    InterimResponses => ENHANCE_YOUR_CALM, Connection, "too many interim responses";
    /// Streams above SETTINGS_MAX_CONCURRENT_STREAMS, which the peer may not have received yet (RFC 9113 §5.1.2).
    ConcurrentStreams => REFUSED_STREAM, Stream, "too many concurrent streams";
    /// A request while the connection uses more memory than [`crate::Config::memory_max`].
    Memory => REFUSED_STREAM, Stream, "connection uses too much memory";
    /// Promised streams above the limit.
    Promises => REFUSED_STREAM, Stream, "too many promised streams";
    /// The peer keeps a window closed although DATA is queued (CVE-2019-9517, slow read).
    Stalled => ENHANCE_YOUR_CALM, Connection, "windows stay closed for too long";
}

impl core::fmt::Display for Exceeded {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.reason())
    }
}

impl core::error::Error for Exceeded {}
