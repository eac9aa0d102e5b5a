//! The events of a connection.
//!
//! [`Event`] is for the caller. [`PendingEvent`] is the same without borrows, for use inside the connection.

use crate::error::{Error, ErrorCode};
use crate::field::FieldList;
use crate::frame::{Origin, StreamId};
use crate::message::RequestKind;
use crate::priority::Priority;
use crate::stream::StreamKey;
use core::ops::Range;
use core::time::Duration;

/// An event. Fields and bytes are borrowed from the connection and from the input.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A request was received by a server. Its fields are valid. [`crate::message::cookie`] joins several cookie fields.
    Request {
        /// The stream.
        stream: StreamKey,
        /// The kind of the request, by its method.
        kind: RequestKind,
        /// The fields, pseudo-fields first.
        fields: &'a FieldList,
        /// Whether the message ends here, so that it has no content.
        end_stream: bool,
    },
    /// The final response was received by a client.
    Response {
        /// The stream.
        stream: StreamKey,
        /// The status code: 200 to 999.
        status: u16,
        /// The fields, `:status` first.
        fields: &'a FieldList,
        /// Whether the message ends here, so that it has no content.
        end_stream: bool,
    },
    /// An interim response (RFC 9110 §15.2). The final one follows.
    Informational {
        /// The stream.
        stream: StreamKey,
        /// The status code: 100 to 199.
        status: u16,
        /// The fields, `:status` first.
        fields: &'a FieldList,
    },
    /// Trailers, which end the message.
    Trailers {
        /// The stream.
        stream: StreamKey,
        /// The fields.
        fields: &'a FieldList,
    },
    /// The server promises a response (RFC 9113 §8.4). To refuse it, reset `promised`.
    Promise {
        /// The stream of the associated request; `None` if it has been reset.
        stream: Option<StreamKey>,
        /// The stream of the promised response.
        promised: StreamKey,
        /// The fields of the promised request.
        fields: &'a FieldList,
    },
    /// Content, in chunks as it arrives. It is borrowed from the input.
    Data {
        /// The stream.
        stream: StreamKey,
        /// The bytes; may be empty at the end of the message.
        data: &'a [u8],
        /// Whether the message ends here.
        end_stream: bool,
    },
    /// A stream was reset.
    Reset {
        /// The stream, which no longer exists.
        stream: StreamKey,
        /// The error code that was received or sent.
        code: ErrorCode,
        /// The reason why this end reset the stream; `None` if the peer did.
        error: Option<Error>,
    },
    /// The peer has not processed this request, so it can be retried (RFC 9113 §8.7).
    Refused {
        /// The stream, which no longer exists.
        stream: StreamKey,
    },
    /// There is room again in the send queue of a stream: see [`crate::Connection::send_capacity`].
    Writable {
        /// The stream.
        stream: StreamKey,
    },
    /// The peer's settings were received: see [`crate::Connection::peer_settings`].
    Settings,
    /// The peer has acknowledged this end's settings.
    SettingsAcknowledged,
    /// A PING was acknowledged.
    Pong {
        /// The opaque data of the PING.
        payload: [u8; 8],
        /// The time from sending the PING to its acknowledgement.
        round_trip: Duration,
    },
    /// The peer ends the connection (RFC 9113 §6.8). [`Event::Refused`] reports the streams that it will not process.
    GoAway {
        /// The last stream of this end that the peer has processed or may process.
        last_stream_id: StreamId,
        /// The reason.
        code: ErrorCode,
        /// Diagnostic data; may be empty.
        debug_data: &'a [u8],
    },
    /// The client changed the priority of a response (RFC 9218 §7.1). The scheduler already uses it.
    Priority {
        /// The stream.
        stream: StreamKey,
        /// The new priority.
        priority: Priority,
    },
    /// Alternative services of an origin (RFC 7838 §4).
    AltSvc {
        /// The stream whose origin has the services; 0 if `origin` is not empty.
        stream_id: StreamId,
        /// The origin, or empty.
        origin: &'a [u8],
        /// The value, as in the `Alt-Svc` field.
        value: &'a [u8],
    },
    /// The origins that the connection serves (RFC 8336).
    Origin(Origin<'a>),
}

/// An [`Event`] without borrows: ranges refer to the input, and lengths to the scratch buffer.
#[derive(Clone, Debug)]
pub(crate) enum PendingEvent {
    Request { stream: StreamKey, kind: RequestKind, end_stream: bool },
    Response { stream: StreamKey, status: u16, end_stream: bool },
    Informational { stream: StreamKey, status: u16 },
    Trailers { stream: StreamKey },
    Promise { stream: Option<StreamKey>, promised: StreamKey },
    Data { stream: StreamKey, input: Range<usize>, end_stream: bool },
    Reset { stream: StreamKey, code: ErrorCode, error: Option<Error> },
    Refused { stream: StreamKey },
    Writable { stream: StreamKey },
    Settings,
    SettingsAcknowledged,
    Pong { payload: [u8; 8], round_trip: Duration },
    GoAway { last_stream_id: StreamId, code: ErrorCode },
    Priority { stream: StreamKey, priority: Priority },
    AltSvc { stream_id: StreamId, origin_len: usize },
    Origin,
}
