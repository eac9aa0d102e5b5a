//! Every bound on what a peer can make this side hold or do, with its default and the reason for it.
//!
//! Rates are counted by [`crate::rate_limit`], the rest by the connection and by HPACK. What is announced to the peer
//! (streams, windows, frame and list sizes) is in [`crate::Settings`].
//!
//! A rate must let the honest traffic of every client through, and stay near the limits that other servers have shipped for
//! years. What is known about both, and from where:
//!
//! | frames | what clients send | limits of other servers |
//! |---|---|---|
//! | RST_STREAM | Go cancels a stream whenever a response body is closed, read to its end or not: `abortStream` in `transportResponseBody.Close` (golang.org/x/net, `http2/transport.go`) | nghttp2: bucket of 1,000, 33 a second (`nghttp2_option_set_stream_reset_rate_limit`). Envoy: the connection ends when half of 500 requests were reset within a second of their start (release notes of 1.24.11) |
//! | PING | gRPC-Go measures the path with one PING at a time, sent for the first DATA after the last answer (`internal/transport/bdp_estimator.go`): one a round trip at most | Go: 10,000 answers that wait (`maxQueuedControlFrames`, `http2/server.go`) |
//! | WINDOW_UPDATE | Go: behind 4 KiB that were read (`inflowMinRefresh`, `http2/flow.go`), on the stream and on the connection. curl, nghttpx and others on nghttp2: behind half of a window (`nghttp2_should_send_window_update`). Chromium: behind half of a window, or after a time without (`SpdySession::IncreaseRecvWindowSize`, `net/spdy/spdy_session.cc`) | Envoy: 1 + 2 × (streams + 10 × DATA frames sent) (`protocol_constraints.h`) |
//! | PRIORITY | Chromium 69 sends PRIORITY in any state of a stream (github.com/OpenLiberty/open-liberty, issue 5126) | Envoy: 100 × (1 + streams) (`protocol_constraints.h`) |
//! | empty frames | – | Envoy and Netty end a connection for a few in a row (`max_consecutive_inbound_frames_with_empty_payload`; two, `AbstractHttp2ConnectionHandlerBuilder`) |
//! | SETTINGS | a client needs one, at the start (RFC 9113 §3.4) | Go: as for PING |

use core::time::Duration;

use crate::rate_limit::Rate;

/// The bounds of one connection.
///
/// The defaults let every honest use pass that the trackers of other implementations report as cut off: bursts count
/// against a bucket that refills, never against a number for the life of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Entries in one SETTINGS frame. Eight settings are known and each need be named once; applying 2,700 in a frame,
    /// each with a walk over the streams, is what CVE-2020-11080 did.
    pub settings_entries_max: usize,
    /// CONTINUATION frames in one field block. The largest list by default is 64 KiB, so an honest peer with frames
    /// of 16 KiB sends three; a flood of empty ones (VU#421644, 2024) is cut off at this number.
    pub continuations_max: usize,
    /// Compressed bytes in one field block, which are kept until it is complete. Twice the largest list by default,
    /// because a peer may compress badly and still be honest.
    pub field_block_len_max: usize,
    /// Fields in one list. The size alone would allow 2,000 of the smallest ones, each with a cost of its own
    /// (CVE-2019-9516).
    pub fields_max: usize,
    /// Streams that this side reset and remembers, so that frames in flight are not taken for errors. Beyond
    /// it the oldest are forgotten. A client that cancels a thousand downloads at once is honest, and their DATA still
    /// come.
    pub resets_remembered_max: usize,
    /// Requests of the caller that wait for the peer's SETTINGS_MAX_CONCURRENT_STREAMS to have room.
    pub queued_opens_max: usize,
    /// Requests that have not come yet and whose priority is kept (RFC 9218 §7.1), 8 bytes each. As many as there may be
    /// streams by default; beyond it PRIORITY_UPDATE counts once its stream is open.
    pub idle_priorities_max: usize,
    /// Streams that a server has promised and not begun. Push is refused by default, so no one meets it by accident.
    pub promises_max: usize,
    /// Bytes of answers (acknowledgements, RST_STREAM, WINDOW_UPDATE) that wait because the peer does not read
    /// (CVE-2019-9512, 9514, 9515). 64 KiB are 3,800 answers to PING, several times an honest burst.
    pub answers_len_max: usize,
    /// For how long data may wait on windows that the peer keeps shut (CVE-2019-9517): long enough for a reader that
    /// has been paused by hand.
    pub stall_timeout: Duration,
    /// How long the peer may take to acknowledge SETTINGS (RFC 9113 §6.5.3): several round trips of the worst link.
    pub settings_timeout: Duration,
    /// How long a frame other than DATA, or a field block with its CONTINUATION frames, may take from its first byte to its
    /// last. 16 KiB take 13 seconds at 10 kbit/s.
    pub field_block_timeout: Duration,
    /// RST_STREAM from the peer that undoes work (CVE-2023-44487): see [`crate::rate_limit::Charge::PeerReset`]. A client may
    /// cancel all streams at once, and has 100 by default: ten times that, then the rate of nghttp2.
    pub peer_resets: Rate,
    /// RST_STREAM on a stream that has ended, beyond one for each stream that both sides ended. Go cancels a stream when the
    /// response body is closed, even behind its end. It undoes no work: the frame is read and dropped.
    pub late_resets: Rate,
    /// Streams that the peer made this side reset (CVE-2025-8671): the same work for this side, so the same bound.
    pub stream_errors: Rate,
    /// PING (CVE-2019-9512). gRPC sends one a round trip at most: 100 a second are enough for paths of 10 ms, and shorter
    /// paths have the burst.
    pub pings: Rate,
    /// SETTINGS (CVE-2019-9515). A client needs one.
    pub settings: Rate,
    /// HEADERS, CONTINUATION and DATA that carry nothing and end nothing (CVE-2019-9518).
    pub empty_frames: Rate,
    /// DATA of less than [`Limits::TINY_DATA_LEN`] bytes that end nothing. Honest streams of small messages have high rates,
    /// so the bound is high. Tunnels are not counted, because they carry such messages.
    pub tiny_data: Rate,
    /// PRIORITY and PRIORITY_UPDATE (CVE-2019-9513): 20 for each of 100 streams at once, and two for each of 100 requests a
    /// second.
    pub priorities: Rate,
    /// WINDOW_UPDATE beyond what DATA sent to the peer gives it reason for: two for every frame and one for every 256 bytes.
    /// Go, the most frequent sender that is known, sends two for every 4 KiB.
    pub window_updates: Rate,
    /// Frames that are ignored: unknown types and extensions.
    pub unknown_frames: Rate,
    /// Interim responses: 103 for a page, 102 for a slow one.
    pub interim_responses: Rate,
}

impl Limits {
    /// DATA with less content is tiny, in bytes: its number per second is bounded.
    pub const TINY_DATA_LEN: usize = 64;

    /// The default for every bound.
    pub const DEFAULT: Self = Self {
        settings_entries_max: 32,
        continuations_max: 8,
        field_block_len_max: 128 * 1024,
        fields_max: 512,
        resets_remembered_max: 1_024,
        queued_opens_max: 1 << 20,
        idle_priorities_max: 256,
        promises_max: 100,
        answers_len_max: 64 * 1024,
        stall_timeout: Duration::from_secs(300),
        settings_timeout: Duration::from_secs(30),
        field_block_timeout: Duration::from_secs(30),
        peer_resets: Rate::new(1_000, 33),
        late_resets: Rate::new(10_000, 1_000),
        stream_errors: Rate::new(1_000, 33),
        pings: Rate::new(1_000, 100),
        settings: Rate::new(100, 10),
        empty_frames: Rate::new(10_000, 330),
        tiny_data: Rate::new(1_000_000, 200_000),
        priorities: Rate::new(2_000, 200),
        window_updates: Rate::new(10_000, 1_000),
        unknown_frames: Rate::new(1_000, 100),
        interim_responses: Rate::new(1_000, 100),
    };

    /// For how long after this side reset a stream the peer's frames on it are not held against it: two round trips,
    /// or a second while none has been measured, because what the peer sent before it knew is no fault of its.
    pub fn reset_grace(rtt: Option<Duration>) -> Duration {
        const SHORTEST: Duration = Duration::from_millis(100);
        const LONGEST: Duration = Duration::from_secs(5);
        rtt.map_or(Duration::from_secs(1), |rtt| rtt.saturating_mul(2).clamp(SHORTEST, LONGEST))
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grace_follows_the_round_trip_within_bounds() {
        assert_eq!(Limits::reset_grace(None), Duration::from_secs(1));
        assert_eq!(Limits::reset_grace(Some(Duration::from_micros(50))), Duration::from_millis(100));
        assert_eq!(Limits::reset_grace(Some(Duration::from_millis(80))), Duration::from_millis(160));
        assert_eq!(Limits::reset_grace(Some(Duration::MAX)), Duration::from_secs(5));
    }
}
