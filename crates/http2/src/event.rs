//! The events of a connection.

use crate::error::{Error, ErrorCode};
use crate::frame::StreamId;
use crate::message::RequestKind;
use crate::priority::Priority;
use crate::stream::StreamKey;
use core::time::Duration;

/// An event. Content is borrowed from the input. The fields of a message are [`Connection::fields`] until more input is handled.
///
/// [`Connection::fields`]: crate::Connection::fields
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event<'i> {
    /// A request was received by a server. Its fields are valid. [`crate::message::cookie`] joins several cookie fields.
    Request {
        /// The stream.
        stream: StreamKey,
        /// The kind of the request, by its method.
        kind: RequestKind,
        /// Whether the message ends here, so that it has no content.
        end_stream: bool,
    },
    /// The final response was received by a client.
    Response {
        /// The stream.
        stream: StreamKey,
        /// The status code: 200 to 999.
        status: u16,
        /// Whether the message ends here, so that it has no content.
        end_stream: bool,
    },
    /// An interim response (RFC 9110 §15.2). The final one follows.
    Informational {
        /// The stream.
        stream: StreamKey,
        /// The status code: 100 to 199.
        status: u16,
    },
    /// Trailers, which end the message.
    Trailers {
        /// The stream.
        stream: StreamKey,
    },
    /// The server promises a response (RFC 9113 §8.4). To refuse it, reset `promised`.
    Promise {
        /// The stream of the associated request; `None` if it has been reset.
        stream: Option<StreamKey>,
        /// The stream of the promised response.
        promised: StreamKey,
    },
    /// Content, in chunks as it arrives. It is borrowed from the input.
    Data {
        /// The stream.
        stream: StreamKey,
        /// The bytes; may be empty at the end of the message.
        data: &'i [u8],
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
    /// END_STREAM of a request is in the output. There is no event for a request that [`crate::Connection::send_request`] has opened and
    /// ended at once.
    SendEnded {
        /// The stream, which no longer exists if the peer has ended it too.
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
    /// [`Connection::debug_data`](crate::Connection::debug_data) has what it adds.
    GoAway {
        /// The last stream of this end that the peer has processed or may process.
        last_stream_id: StreamId,
        /// The reason.
        code: ErrorCode,
    },
    /// The client changed the priority of a response (RFC 9218 §7.1). The scheduler already uses it.
    Priority {
        /// The stream.
        stream: StreamKey,
        /// The new priority.
        priority: Priority,
    },
    /// Alternative services of an origin (RFC 7838 §4): [`Connection::alt_svc`](crate::Connection::alt_svc).
    AltSvc {
        /// The stream whose origin has the services; 0 if they name their origin.
        stream_id: StreamId,
    },
    /// The origins that the connection serves (RFC 8336): [`Connection::origins`](crate::Connection::origins).
    Origin,
}
