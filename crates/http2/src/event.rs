//! The events of a connection.
//!
//! [`Event`] is for the caller; [`PendingEvent`] is the same without borrows, for the parts of a connection.

use crate::error::{Error, ErrorCode};
use crate::field::FieldList;
use crate::frame::{Origin, StreamId};
use crate::message::RequestKind;
use crate::priority::Priority;
use crate::stream::StreamKey;
use core::ops::Range;
use core::time::Duration;

/// Something that happened. Fields and bytes are borrowed: keep what is needed, or copy it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A client's request (to a server). Its fields are valid; several cookie fields are joined by [`crate::message::cookie`].
    Request {
        /// Its stream.
        stream: StreamKey,
        /// The kind of exchange, by its method.
        kind: RequestKind,
        /// Its fields, pseudo-fields first.
        fields: &'a FieldList,
        /// Whether it has no content.
        end_stream: bool,
    },
    /// The final response (to a client).
    Response {
        /// Its stream.
        stream: StreamKey,
        /// The status code: 200 to 999.
        status: u16,
        /// Its fields, `:status` first.
        fields: &'a FieldList,
        /// Whether it has no content.
        end_stream: bool,
    },
    /// An interim response (RFC 9110 §15.2): the final one follows.
    Informational {
        /// Its stream.
        stream: StreamKey,
        /// The status code: 100 to 199.
        status: u16,
        /// Its fields, `:status` first.
        fields: &'a FieldList,
    },
    /// Trailers, which end the message.
    Trailers {
        /// Their stream.
        stream: StreamKey,
        /// The fields.
        fields: &'a FieldList,
    },
    /// The server promises a response to a request it made up (RFC 9113 §8.4); to refuse it, reset `promised`.
    Promise {
        /// The stream that led to it; gone when it was reset meanwhile.
        stream: Option<StreamKey>,
        /// The stream that the response will come on.
        promised: StreamKey,
        /// The fields of the request.
        fields: &'a FieldList,
    },
    /// Content, in the pieces in which it arrived; borrowed from the input.
    Data {
        /// Its stream.
        stream: StreamKey,
        /// The bytes; may be empty where the message ends.
        data: &'a [u8],
        /// Whether the message ends here.
        end_stream: bool,
    },
    /// A stream ended before its time.
    Reset {
        /// The stream, gone by now.
        stream: StreamKey,
        /// The code that was received or sent.
        code: ErrorCode,
        /// Why this end reset it; `None` when the peer did.
        error: Option<Error>,
    },
    /// The peer will not have processed this stream: the request may be sent again, elsewhere (RFC 9113 §8.7).
    Refused {
        /// The stream, gone by now.
        stream: StreamKey,
    },
    /// A stream whose queue was full has room again.
    Writable {
        /// The stream.
        stream: StreamKey,
    },
    /// The peer's settings came or changed: see [`crate::Connection::peer_settings`].
    Settings,
    /// The peer has acknowledged this end's settings.
    SettingsAcknowledged,
    /// A PING was answered.
    Pong {
        /// Opaque data that was sent with it.
        payload: [u8; 8],
        /// From sending to the answer.
        round_trip: Duration,
    },
    /// The peer ends the connection, gracefully or not (RFC 9113 §6.8). Streams it will not process were
    /// [`Event::Refused`].
    GoAway {
        /// The last stream of this end that it did or may process.
        last_stream_id: StreamId,
        /// Why.
        code: ErrorCode,
        /// The same in words, perhaps.
        debug_data: &'a [u8],
    },
    /// The client changed the priority of a response (RFC 9218 §7.1); the scheduler has taken it already.
    Priority {
        /// The stream.
        stream: StreamKey,
        /// How it is to be served.
        priority: Priority,
    },
    /// Where else an origin is served (RFC 7838 §4).
    AltSvc {
        /// The stream whose origin is meant, 0 where `origin` names it.
        stream_id: StreamId,
        /// The origin, or empty.
        origin: &'a [u8],
        /// The value, as in the `Alt-Svc` field.
        value: &'a [u8],
    },
    /// The origins that the connection serves (RFC 8336).
    Origin(Origin<'a>),
}

/// [`Event`] by position: ranges refer to bytes of the input or of the scratch buffer.
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
