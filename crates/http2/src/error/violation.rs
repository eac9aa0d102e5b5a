//! [`Violation`]: the rules that a peer can violate, with the errors that the RFCs demand.
//!
//! One table has the rule, the error code, the level of the error, and the debug data of GOAWAY.

use super::ErrorCode;

/// The level of an error (RFC 9113 §5.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorLevel {
    /// A stream error: the stream of the frame is reset. On stream 0 it is a connection error.
    Stream,
    /// A connection error.
    Connection,
}

macro_rules! violations {
    ($(#[doc = $rule:literal] $(#[doc = $more:literal])* $name:ident => $code:ident, $level:ident, $reason:literal;)*) => {
        /// A rule that the peer violated.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Violation {
            $(#[doc = $rule] $(#[doc = $more])* $name,)*
        }

        impl Violation {
            /// Every violation, in the order of the table.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The error that the RFC demands: its code, and whether the stream or the connection ends.
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

            /// The section that states the rule, such as `RFC 9113 §6.9`: the beginning of the variant's documentation.
            pub fn rule(self) -> &'static str {
                let doc = match self {
                    $(Self::$name => $rule,)*
                };
                doc.split_once(':').map_or(doc, |(rule, _)| rule).trim_start()
            }
        }
    };
}

violations! {
    // The beginning of a connection.

    /// RFC 9113 §3.4: the client's bytes do not begin with the connection preface.
    PrefaceInvalid => PROTOCOL_ERROR, Connection, "connection preface is invalid";
    /// RFC 9113 §3.4: the first frame of a peer is not a SETTINGS frame.
    PrefaceWithoutSettings => PROTOCOL_ERROR, Connection, "first frame is not SETTINGS";

    /// RFC 7540 §3.2.1: the value of `HTTP2-Settings` is not base64url of a SETTINGS payload.
    UpgradeSettingsInvalid => PROTOCOL_ERROR, Connection, "HTTP2-Settings are invalid";

    // The shape of frames.

    /// RFC 9113 §4.2: a frame is longer than SETTINGS_MAX_FRAME_SIZE. This is a connection error for all types: DATA changes the
    /// window of the connection, and the other long frames change the state of HPACK.
    FrameTooLarge => FRAME_SIZE_ERROR, Connection, "frame is larger than SETTINGS_MAX_FRAME_SIZE";
    /// RFC 9113 §6.1 to §6.4, §6.6, §6.10: a frame that belongs to a stream names stream 0.
    StreamIdZero => PROTOCOL_ERROR, Connection, "frame of a stream on stream 0";
    /// RFC 9113 §6.5, §6.7, §6.8, RFC 9218 §7.1: a frame that belongs to the connection names a stream.
    StreamIdNotZero => PROTOCOL_ERROR, Connection, "frame of the connection on a stream";
    /// RFC 9113 §6.1, §6.2, §6.6: the padding is longer than the frame.
    PaddingTooLong => PROTOCOL_ERROR, Connection, "padding exceeds the frame";
    /// RFC 9113 §6.1 with §4.2: a padded DATA frame is too short for the length of its padding.
    DataSize => FRAME_SIZE_ERROR, Connection, "DATA is too short";
    /// RFC 9113 §6.2 with §4.2: HEADERS are too short for their flags.
    HeadersSize => FRAME_SIZE_ERROR, Connection, "HEADERS are too short";
    /// RFC 9113 §6.3: PRIORITY is not 5 bytes long.
    PrioritySize => FRAME_SIZE_ERROR, Stream, "PRIORITY is not 5 bytes long";
    /// RFC 9113 §6.4: RST_STREAM is not 4 bytes long.
    RstStreamSize => FRAME_SIZE_ERROR, Connection, "RST_STREAM is not 4 bytes long";
    /// RFC 9113 §6.5: the length of SETTINGS is not a multiple of 6.
    SettingsSize => FRAME_SIZE_ERROR, Connection, "length of SETTINGS is not a multiple of 6";
    /// RFC 9113 §6.5: an acknowledgement of SETTINGS has a payload.
    SettingsAckSize => FRAME_SIZE_ERROR, Connection, "acknowledgement of SETTINGS is not empty";
    /// RFC 9113 §6.6 with §4.2: PUSH_PROMISE is too short for its flags.
    PushPromiseSize => FRAME_SIZE_ERROR, Connection, "PUSH_PROMISE is too short";
    /// RFC 9113 §6.7: PING is not 8 bytes long.
    PingSize => FRAME_SIZE_ERROR, Connection, "PING is not 8 bytes long";
    /// RFC 9113 §6.8 with §4.2: GOAWAY is shorter than 8 bytes.
    GoawaySize => FRAME_SIZE_ERROR, Connection, "GOAWAY is too short";
    /// RFC 9113 §6.9: WINDOW_UPDATE is not 4 bytes long.
    WindowUpdateSize => FRAME_SIZE_ERROR, Connection, "WINDOW_UPDATE is not 4 bytes long";
    /// RFC 7838 §4 with RFC 9113 §4.2: ALTSVC is shorter than its origin.
    AltSvcSize => FRAME_SIZE_ERROR, Stream, "ALTSVC is too short";
    /// RFC 8336 §2 with RFC 9113 §4.2: an entry of ORIGIN is incomplete.
    OriginSize => FRAME_SIZE_ERROR, Connection, "ORIGIN ends inside an entry";
    /// RFC 9218 §7.1 with RFC 9113 §4.2: PRIORITY_UPDATE is shorter than 4 bytes.
    PriorityUpdateSize => FRAME_SIZE_ERROR, Connection, "PRIORITY_UPDATE is too short";

    // The order of frames.

    /// RFC 9113 §4.3, §6.2, §6.10: a frame other than CONTINUATION of the same stream inside a field block.
    FieldBlockInterrupted => PROTOCOL_ERROR, Connection, "field block is interrupted";
    /// RFC 9113 §6.10: CONTINUATION without a field block to continue.
    ContinuationUnexpected => PROTOCOL_ERROR, Connection, "CONTINUATION without HEADERS";
    /// RFC 7541 §5 with RFC 9113 §4.3: a field block ends inside a field.
    HpackTruncated => COMPRESSION_ERROR, Connection, "field block ends inside a field";
    /// RFC 7541 §5.1: an integer is too large or too long.
    HpackInteger => COMPRESSION_ERROR, Connection, "integer in a field block is too large";
    /// RFC 7541 §2.3.3, §6.1: an index that is 0 or beyond both tables.
    HpackIndex => COMPRESSION_ERROR, Connection, "index in a field block is invalid";
    /// RFC 7541 §5.2: a Huffman string contains EOS or has invalid padding.
    HpackHuffman => COMPRESSION_ERROR, Connection, "Huffman string in a field block is invalid";
    /// RFC 7541 §4.2, §6.3: a table size update that is too large, or not at the beginning of a block.
    HpackSizeUpdate => COMPRESSION_ERROR, Connection, "table size update is invalid";
    /// RFC 7541 §4.2: no table size update follows a smaller SETTINGS_HEADER_TABLE_SIZE.
    HpackSizeUpdateMissing => COMPRESSION_ERROR, Connection, "table size update is missing";
    /// RFC 9113 §5.1: a frame on an idle stream that needs an open one.
    FrameOnIdleStream => PROTOCOL_ERROR, Connection, "frame on an idle stream";
    /// RFC 9113 §5.1 (half-closed (remote)): a frame other than WINDOW_UPDATE, PRIORITY or RST_STREAM after
    /// END_STREAM, while this side is still sending.
    FrameAfterEndStream => STREAM_CLOSED, Stream, "frame after END_STREAM";
    /// RFC 9113 §5.1 (closed): DATA or HEADERS on a stream that the peer reset.
    FrameAfterReset => STREAM_CLOSED, Stream, "frame after RST_STREAM";
    /// RFC 9113 §5.1 (closed): DATA or HEADERS on a stream that both sides ended.
    FrameOnClosedStream => STREAM_CLOSED, Connection, "frame on a closed stream";
    /// RFC 9113 §5.1 (reserved): a frame that the reserved state does not allow.
    FrameOnReservedStream => PROTOCOL_ERROR, Connection, "frame on a reserved stream";
    /// RFC 9113 §5.1.1: a stream with an identifier of this side.
    StreamIdParity => PROTOCOL_ERROR, Connection, "peer opened a stream identifier of this side";
    /// RFC 9113 §5.1.1: a new stream whose identifier is not above all previous ones.
    StreamIdNotIncreasing => PROTOCOL_ERROR, Connection, "stream identifier does not increase";
    /// RFC 9113 §5.1.2: more streams than the acknowledged SETTINGS_MAX_CONCURRENT_STREAMS.
    StreamsExceeded => PROTOCOL_ERROR, Stream, "more streams than SETTINGS_MAX_CONCURRENT_STREAMS";
    /// RFC 7540 §5.3.1 (deprecated by RFC 9113 §5.3): a stream depends on itself.
    PrioritySelfDependency => PROTOCOL_ERROR, Stream, "stream depends on itself";
    /// RFC 9113 §6.8: GOAWAY with a higher last stream than the GOAWAY before.
    GoawayIdIncreased => PROTOCOL_ERROR, Connection, "last stream of GOAWAY increases";
    /// RFC 9218 §7.1: PRIORITY_UPDATE names stream 0.
    PriorityUpdateStreamZero => PROTOCOL_ERROR, Connection, "PRIORITY_UPDATE names stream 0";
    /// RFC 9218 §7.1: a server sent PRIORITY_UPDATE.
    PriorityUpdateByServer => PROTOCOL_ERROR, Connection, "PRIORITY_UPDATE sent by a server";
    /// RFC 9218 §7.1: more streams than SETTINGS_MAX_CONCURRENT_STREAMS are open, or idle and prioritized.
    PriorityUpdatesExceeded => PROTOCOL_ERROR, Connection, "PRIORITY_UPDATE for too many idle streams";
    /// RFC 9218 §7.1: PRIORITY_UPDATE names a push stream that is idle.
    PriorityUpdateIdlePush => PROTOCOL_ERROR, Connection, "PRIORITY_UPDATE names an idle push stream";

    // Push.

    /// RFC 9113 §6.6, §8.4: PUSH_PROMISE although this side has disabled push.
    PushDisabled => PROTOCOL_ERROR, Connection, "PUSH_PROMISE although push is disabled";
    /// RFC 9113 §8.4: a client sent PUSH_PROMISE.
    PushByClient => PROTOCOL_ERROR, Connection, "PUSH_PROMISE sent by a client";
    /// RFC 9113 §6.6: PUSH_PROMISE on a stream that is neither open nor half-closed (local).
    PushOnClosedStream => PROTOCOL_ERROR, Connection, "PUSH_PROMISE on a stream that is not open";
    /// RFC 9113 §6.6: the peer may not open the promised stream next.
    PromisedIdInvalid => PROTOCOL_ERROR, Connection, "promised stream identifier is invalid";
    /// RFC 9113 §8.4: the promised request is not known to be safe and cacheable, or has content.
    PushUnsafe => PROTOCOL_ERROR, Stream, "promised request is not safe and cacheable";

    // Settings.

    /// RFC 9113 §6.5.2: SETTINGS_ENABLE_PUSH is neither 0 nor 1.
    EnablePushValue => PROTOCOL_ERROR, Connection, "SETTINGS_ENABLE_PUSH is neither 0 nor 1";
    /// RFC 9113 §6.5.2: a server sent SETTINGS_ENABLE_PUSH with 1.
    EnablePushByServer => PROTOCOL_ERROR, Connection, "SETTINGS_ENABLE_PUSH is 1 from a server";
    /// RFC 9113 §6.5.2: SETTINGS_INITIAL_WINDOW_SIZE above 2^31-1.
    InitialWindowSizeValue => FLOW_CONTROL_ERROR, Connection, "SETTINGS_INITIAL_WINDOW_SIZE is too large";
    /// RFC 9113 §6.5.2: SETTINGS_MAX_FRAME_SIZE outside 2^14 to 2^24-1.
    MaxFrameSizeValue => PROTOCOL_ERROR, Connection, "SETTINGS_MAX_FRAME_SIZE is out of range";
    /// RFC 8441 §3: SETTINGS_ENABLE_CONNECT_PROTOCOL is neither 0 nor 1.
    EnableConnectProtocolValue => PROTOCOL_ERROR, Connection, "SETTINGS_ENABLE_CONNECT_PROTOCOL is neither 0 nor 1";
    /// RFC 8441 §3: SETTINGS_ENABLE_CONNECT_PROTOCOL changed from 1 to 0.
    EnableConnectProtocolRevoked => PROTOCOL_ERROR, Connection, "SETTINGS_ENABLE_CONNECT_PROTOCOL changes to 0";
    /// RFC 9218 §2.1: SETTINGS_NO_RFC7540_PRIORITIES is neither 0 nor 1.
    NoRfc7540PrioritiesValue => PROTOCOL_ERROR, Connection, "SETTINGS_NO_RFC7540_PRIORITIES is neither 0 nor 1";
    /// RFC 9218 §2.1: SETTINGS_NO_RFC7540_PRIORITIES changed after the first SETTINGS.
    NoRfc7540PrioritiesChanged => PROTOCOL_ERROR, Connection, "SETTINGS_NO_RFC7540_PRIORITIES changes";
    /// RFC 9113 §6.5.3: SETTINGS were not acknowledged in time.
    SettingsTimeout => SETTINGS_TIMEOUT, Connection, "SETTINGS were not acknowledged in time";

    // Flow control.

    /// RFC 9113 §6.9: WINDOW_UPDATE with an increment of 0.
    WindowIncrementZero => PROTOCOL_ERROR, Stream, "window increment is 0";
    /// RFC 9113 §6.9.1: WINDOW_UPDATE takes a window above 2^31-1.
    WindowOverflow => FLOW_CONTROL_ERROR, Stream, "window exceeds 2^31-1";
    /// RFC 9113 §6.9.2: SETTINGS_INITIAL_WINDOW_SIZE takes a stream's window above 2^31-1.
    WindowOverflowBySettings => FLOW_CONTROL_ERROR, Connection, "SETTINGS take a window above 2^31-1";
    /// RFC 9113 §6.9.1: more DATA than the stream's window.
    StreamWindowExceeded => FLOW_CONTROL_ERROR, Stream, "DATA exceeds the stream's window";
    /// RFC 9113 §6.9.1: more DATA than the connection's window.
    ConnectionWindowExceeded => FLOW_CONTROL_ERROR, Connection, "DATA exceeds the connection's window";

    // Messages: RFC 9113 §8.1.1 makes all of them stream errors.

    /// RFC 9113 §8.2.1: a field name is empty.
    FieldNameEmpty => PROTOCOL_ERROR, Stream, "field name is empty";
    /// RFC 9113 §8.2.1: a field name has an upper-case letter, or another character that is not allowed.
    FieldNameCharacter => PROTOCOL_ERROR, Stream, "field name has a character that is not allowed";
    /// RFC 9113 §8.2.1: a field value has NUL, CR, LF or another control character.
    FieldValueCharacter => PROTOCOL_ERROR, Stream, "field value has a control character";
    /// RFC 9113 §8.2.1: a field value begins or ends with whitespace.
    FieldValueWhitespace => PROTOCOL_ERROR, Stream, "field value begins or ends with whitespace";
    /// RFC 9113 §8.2.2: a field that belongs to a connection of HTTP/1.1.
    ConnectionField => PROTOCOL_ERROR, Stream, "connection-specific field";
    /// RFC 9113 §8.2.2: `te` with another value than `trailers`.
    TeValue => PROTOCOL_ERROR, Stream, "te is not trailers";
    /// RFC 9113 §8.3: a pseudo-field that is not defined.
    PseudoUnknown => PROTOCOL_ERROR, Stream, "pseudo-field is unknown";
    /// RFC 9113 §8.3: a pseudo-field of requests in a response, or the reverse.
    PseudoMisplaced => PROTOCOL_ERROR, Stream, "pseudo-field does not belong to this message";
    /// RFC 9113 §8.3: a pseudo-field after a regular field.
    PseudoAfterField => PROTOCOL_ERROR, Stream, "pseudo-field after a regular field";
    /// RFC 9113 §8.3: a repeated pseudo-field.
    PseudoRepeated => PROTOCOL_ERROR, Stream, "pseudo-field is repeated";
    /// RFC 9113 §8.1, §8.3: a pseudo-field among trailers.
    PseudoInTrailers => PROTOCOL_ERROR, Stream, "pseudo-field in trailers";
    /// RFC 9113 §8.3.1: a request without `:method`.
    MethodMissing => PROTOCOL_ERROR, Stream, ":method is missing";
    /// RFC 9113 §8.3.1 with RFC 9110 §9.1: `:method` is not a token.
    MethodInvalid => PROTOCOL_ERROR, Stream, ":method is not a token";
    /// RFC 9113 §8.3.1: a request without `:scheme`.
    SchemeMissing => PROTOCOL_ERROR, Stream, ":scheme is missing";
    /// RFC 9113 §8.3.1 with RFC 3986 §3.1: `:scheme` is not a scheme.
    SchemeInvalid => PROTOCOL_ERROR, Stream, ":scheme is invalid";
    /// RFC 9113 §8.3.1: a request without `:path`.
    PathMissing => PROTOCOL_ERROR, Stream, ":path is missing";
    /// RFC 9113 §8.3.1: `:path` is empty, does not begin with a slash (except `*` of OPTIONS), or has a character that is not
    /// allowed.
    PathInvalid => PROTOCOL_ERROR, Stream, ":path is invalid";
    /// RFC 9113 §8.3.1: neither `:authority` nor `host` for a scheme that needs one; RFC 9113 §8.5 for CONNECT.
    AuthorityMissing => PROTOCOL_ERROR, Stream, ":authority is missing";
    /// RFC 9113 §8.3.1: `:authority` is empty, has user information, or a character that is not allowed.
    AuthorityInvalid => PROTOCOL_ERROR, Stream, ":authority is invalid";
    /// RFC 9113 §8.3.1: `host` differs from `:authority`, or is repeated.
    HostMismatch => PROTOCOL_ERROR, Stream, "host differs from :authority";
    /// RFC 9113 §8.5: CONNECT with `:scheme` or `:path`.
    ConnectPseudo => PROTOCOL_ERROR, Stream, "CONNECT with :scheme or :path";
    /// RFC 8441 §4: `:protocol` without CONNECT, or although this side has not enabled it.
    ProtocolUnexpected => PROTOCOL_ERROR, Stream, ":protocol is not expected";
    /// RFC 8441 §4: `:protocol` is not a token.
    ProtocolInvalid => PROTOCOL_ERROR, Stream, ":protocol is invalid";
    /// RFC 9113 §8.3.2: a response without `:status`.
    StatusMissing => PROTOCOL_ERROR, Stream, ":status is missing";
    /// RFC 9113 §8.3.2: `:status` is not a number from 100 to 999.
    StatusInvalid => PROTOCOL_ERROR, Stream, ":status is invalid";
    /// RFC 9113 §8.6: 101 (Switching Protocols).
    StatusSwitching => PROTOCOL_ERROR, Stream, "status 101 does not exist in HTTP/2";
    /// RFC 9113 §8.1: an interim response with END_STREAM.
    InterimEndStream => PROTOCOL_ERROR, Stream, "interim response ends the stream";
    /// RFC 9113 §8.1: HEADERS after the final ones, without END_STREAM.
    TrailersWithoutEndStream => PROTOCOL_ERROR, Stream, "trailers do not end the stream";
    /// RFC 9113 §8.1: DATA before the final HEADERS of a message.
    DataBeforeHeaders => PROTOCOL_ERROR, Stream, "DATA before HEADERS";
    /// RFC 9113 §8.1.1 with RFC 9110 §8.6: `content-length` is not a number, or two of them differ.
    ContentLengthInvalid => PROTOCOL_ERROR, Stream, "content-length is invalid";
    /// RFC 9113 §8.1.1: the length of the DATA differs from `content-length`.
    ContentLengthMismatch => PROTOCOL_ERROR, Stream, "DATA differ from content-length";
    /// RFC 9113 §8.5: frames other than DATA and those of stream management on a tunnel.
    HeadersInTunnel => PROTOCOL_ERROR, Stream, "HEADERS inside a tunnel";
}

impl core::fmt::Display for Violation {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.reason())
    }
}

impl core::error::Error for Violation {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_violation_cites_its_rule() {
        for violation in Violation::ALL {
            let rule = violation.rule();
            assert!(rule.starts_with("RFC ") && rule.contains('§'), "{violation:?}: {rule}");
        }
        assert_eq!(Violation::WindowIncrementZero.rule(), "RFC 9113 §6.9");
    }
}
