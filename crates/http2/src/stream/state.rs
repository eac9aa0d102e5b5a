//! The states of a stream (RFC 9113 §5.1), one phase for each direction.
//!
//! Each direction advances independently. The state of the RFC follows from both phases.
//!
//! ```text
//!                                +--------+
//!                        send PP |        | recv PP
//!                       ,--------+  idle  +--------.
//!                      /         |        |         \
//!                     v          +--------+          v
//!              +----------+          |           +----------+
//!              |          |          | send H /  |          |
//!       ,------+ reserved |          | recv H    | reserved +------.
//!       |      | (local)  |          |           | (remote) |      |
//!       |      +---+------+          v           +------+---+      |
//!       |          |             +--------+             |          |
//!       |          |     recv ES |        | send ES     |          |
//!       |   send H |     ,-------+  open  +-------.     | recv H   |
//!       |          |    /        |        |        \    |          |
//!       |          v   v         +---+----+         v   v          |
//!       |      +----------+          |           +----------+      |
//!       |      |   half-  |          |           |   half-  |      |
//!       |      |  closed  |          | send R /  |  closed  |      |
//!       |      | (remote) |          | recv R    | (local)  |      |
//!       |      +----+-----+          |           +-----+----+      |
//!       |           |                |                 |           |
//!       |           | send ES /      |       recv ES / |           |
//!       |           | send R /       v        send R / |           |
//!       |           | recv R     +--------+   recv R   |           |
//!       | send R /  `----------->|        |<-----------'  send R / |
//!       | recv R                 | closed |               recv R   |
//!       `----------------------->|        |<-----------------------'
//!                                +--------+
//!       H: HEADERS (with CONTINUATION)   PP: PUSH_PROMISE   ES: END_STREAM   R: RST_STREAM
//!
//!       RFC 9113 §5.1          receive phase   send phase
//!       idle (waits to open)   Headers         any; in `Opening`
//!       reserved (local)       Reserved        Headers
//!       reserved (remote)      Headers         Reserved
//!       open                   not End         not End
//!       half-closed (local)    not End         End
//!       half-closed (remote)   End             not End
//!       closed                 End             End: the record is removed
//! ```

use crate::message::RequestKind;

/// The phase of the receiving direction: what the peer may send next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecvPhase {
    /// The final response to a request of this kind, after any interim responses.
    Headers(RequestKind),
    /// Content, then optional trailers.
    Content,
    /// Only DATA (RFC 9113 §8.5).
    Tunnel,
    /// Nothing: this side promised the stream (RFC 9113 §8.4) and has not sent the response yet.
    Reserved,
    /// Nothing: the peer sent END_STREAM.
    End,
}

/// The phase of the sending direction: what this side may send next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendPhase {
    /// The final response to a request of this kind, after any interim responses.
    Headers(RequestKind),
    /// Content, then optional trailers.
    Content,
    /// Only DATA (RFC 9113 §8.5).
    Tunnel,
    /// Nothing: END_STREAM follows the queued content.
    EndQueued,
    /// Nothing: trailers follow the queued content.
    TrailersQueued,
    /// Nothing: the peer promised the stream and has not sent the response yet.
    Reserved,
    /// Nothing: END_STREAM was sent.
    End,
}

impl RecvPhase {
    /// Whether the peer may send DATA now or later (RFC 9113 §5.1: "open" and "half-closed (local)").
    #[inline]
    pub(crate) const fn is_open(self) -> bool {
        !matches!(self, Self::Reserved | Self::End)
    }
}

impl SendPhase {
    /// The phase after the final header section of a message.
    #[inline]
    pub(crate) const fn after_headers(is_tunnel: bool) -> Self {
        if is_tunnel { Self::Tunnel } else { Self::Content }
    }

    /// Whether the caller may send DATA now.
    #[inline]
    pub(crate) const fn takes_data(self) -> bool {
        matches!(self, Self::Content | Self::Tunnel)
    }

    /// Whether END_STREAM has not been sent (RFC 9113 §5.1: "open" and "half-closed (remote)").
    #[inline]
    pub(crate) const fn is_open(self) -> bool {
        !matches!(self, Self::Reserved | Self::End)
    }
}

/// Whether a stream with these phases is reserved (RFC 9113 §5.1): it was promised and does not count as open (§5.1.2).
#[inline]
pub(crate) const fn is_reserved(recv: RecvPhase, send: SendPhase) -> bool {
    matches!(recv, RecvPhase::Reserved) || matches!(send, SendPhase::Reserved)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_takes_one_byte() {
        assert_eq!((size_of::<RecvPhase>(), size_of::<SendPhase>()), (1, 1));
    }

    #[test]
    fn data_is_allowed_between_headers_and_the_end() {
        // RFC 9113 §8.1: HEADERS, DATA, trailers.
        let kind = RequestKind::Plain;
        for (phase, takes) in [
            (SendPhase::Headers(kind), false),
            (SendPhase::Content, true),
            (SendPhase::Tunnel, true),
            (SendPhase::EndQueued, false),
            (SendPhase::TrailersQueued, false),
            (SendPhase::Reserved, false),
            (SendPhase::End, false),
        ] {
            assert_eq!(phase.takes_data(), takes, "{phase:?}");
        }
        assert_eq!(SendPhase::after_headers(true), SendPhase::Tunnel);
        assert_eq!(SendPhase::after_headers(false), SendPhase::Content);
    }

    #[test]
    fn reserved_streams_are_open_in_one_direction() {
        let kind = RequestKind::Plain;
        assert!(is_reserved(RecvPhase::Reserved, SendPhase::Headers(kind)));
        assert!(is_reserved(RecvPhase::Headers(kind), SendPhase::Reserved));
        assert!(!is_reserved(RecvPhase::End, SendPhase::Content));
        assert!(!RecvPhase::Reserved.is_open() && !RecvPhase::End.is_open());
        assert!(!SendPhase::Reserved.is_open() && !SendPhase::End.is_open());
        assert!(RecvPhase::Headers(kind).is_open() && SendPhase::EndQueued.is_open());
    }
}
