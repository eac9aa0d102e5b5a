//! [`Limits`]: the limits on the memory and work that a peer can cause, with their defaults and reasons.
//!
//! [`crate::rate_limit`] counts rates; the connection and HPACK enforce the other limits. Limits that are announced to the peer
//! (streams, windows, frame and list sizes) are in [`crate::Settings`].
//!
//! A rate must allow the legitimate traffic of every client, and should be close to the limits of other servers. Known traffic and
//! limits, with their sources:
//!
//! | frames | traffic of clients | limits of other servers |
//! |---|---|---|
//! | RST_STREAM | Go cancels a stream whenever a response body is closed, even if it was read to its end: `abortStream` in `transportResponseBody.Close` (golang.org/x/net, `http2/transport.go`) | nghttp2: bucket of 1,000, 33 a second (`nghttp2_option_set_stream_reset_rate_limit`). Envoy: the connection ends when half of 500 requests were reset within a second of their start (release notes of 1.24.11) |
//! | PING | gRPC-Go measures the path with one PING at a time, sent for the first DATA after the last answer (`internal/transport/bdp_estimator.go`): at most one per round trip | Go: 10,000 queued answers (`maxQueuedControlFrames`, `http2/server.go`) |
//! | WINDOW_UPDATE | Go: after 4 KiB were read (`inflowMinRefresh`, `http2/flow.go`), on the stream and on the connection. curl, nghttpx and others on nghttp2: after half of a window (`nghttp2_should_send_window_update`). Chromium: after half of a window, or after a timeout (`SpdySession::IncreaseRecvWindowSize`, `net/spdy/spdy_session.cc`) | Envoy: 1 + 2 × (streams + 10 × DATA frames sent) (`protocol_constraints.h`) |
//! | PRIORITY | Chromium 69 sends PRIORITY in any state of a stream (github.com/OpenLiberty/open-liberty, issue 5126) | Envoy: 100 × (1 + streams) (`protocol_constraints.h`) |
//! | empty frames | – | Envoy and Netty end a connection for a few in a row (`max_consecutive_inbound_frames_with_empty_payload`; two, `AbstractHttp2ConnectionHandlerBuilder`) |
//! | SETTINGS | a client needs one, at the start (RFC 9113 §3.4) | Go: as for PING |

use core::time::Duration;

pub(crate) const NANOS_PER_SECOND: u32 = 1_000_000_000;

/// A burst, and a long-term rate per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    burst: u32,
    /// The time per frame in the long term, in nanoseconds.
    pub(crate) interval_ns: u32,
}

impl Rate {
    /// A burst of `burst`, and `per_second` in the long term; 0 counts as 1.
    pub const fn new(burst: u32, per_second: u32) -> Self {
        let per_second = if per_second == 0 { 1 } else { per_second };
        Self { burst, interval_ns: NANOS_PER_SECOND / per_second }
    }

    /// No limit.
    pub const UNLIMITED: Self = Self { burst: u32::MAX, interval_ns: 0 };

    /// The size of the burst.
    pub const fn burst(self) -> u32 {
        self.burst
    }

    /// The time in which the whole burst is earned, in nanoseconds.
    pub(crate) const fn capacity_ns(self) -> u64 {
        self.burst as u64 * self.interval_ns as u64
    }
}

/// The limits of one connection.
///
/// The defaults allow the legitimate uses that other implementations are reported to have blocked: bursts use up a token bucket that
/// refills, and there are no totals over the lifetime of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Entries in one SETTINGS frame. Eight settings are known, and a frame needs each at most once. CVE-2020-11080 was about frames
    /// of 2,700 settings, each of which visited all streams.
    pub settings_entries_max: usize,
    /// CONTINUATION frames in one field block. The default maximum of a list is 64 KiB, for which a peer needs three frames of 16 KiB.
    /// The limit stops floods of empty frames (VU#421644, 2024).
    pub continuations_max: usize,
    /// Compressed bytes in one field block; those of several frames are stored until it is complete. By default twice the maximum of a list, because
    /// a peer may compress badly.
    pub field_block_len_max: usize,
    /// Fields in one list. The limit on the size would allow 2,000 minimal fields, each with its own cost (CVE-2019-9516).
    pub fields_max: usize,
    /// Reset streams that this side remembers. The oldest are forgotten first: frames on all streams up to those are ignored then, because
    /// they may have been in flight.
    pub resets_remembered_max: usize,
    /// Requests of the caller that wait for the peer's SETTINGS_MAX_CONCURRENT_STREAMS.
    pub queued_opens_max: usize,
    /// PING frames of the caller that the peer has not acknowledged, 32 bytes each. gRPC-Go has one at a time; a peer that has not
    /// acknowledged 64 does not read.
    pub pings_unacknowledged_max: usize,
    /// SETTINGS frames that the peer has not acknowledged. A peer that has not acknowledged 16 does not read.
    pub settings_unacknowledged_max: usize,
    /// Idle streams whose priority is stored (RFC 9218 §7.1), 8 bytes each. By default as many as streams may be open. Further
    /// PRIORITY_UPDATE frames for idle streams are ignored.
    pub idle_priorities_max: usize,
    /// Reserved streams of a server. Push is disabled by default.
    pub promises_max: usize,
    /// Bytes of buffered answers (acknowledgements, RST_STREAM, WINDOW_UPDATE) to a peer that does not read (CVE-2019-9512, 9514,
    /// 9515). 64 KiB are 3,800 answers to PING, several times a legitimate burst.
    pub answers_len_max: usize,
    /// The time for which DATA may be queued because the peer keeps windows closed, and output because it does not read
    /// (CVE-2019-9517): long enough for a user who pauses a download. A peer that accepts at least 1,024 bytes in this time, also in
    /// small steps, is not stalled.
    pub stall_timeout: Duration,
    /// The time in which the peer must acknowledge SETTINGS (RFC 9113 §6.5.3), from the moment at which the transport has accepted
    /// the frame: several round trips of a slow link. After this time [`crate::Connection::shutdown`] no longer waits until the peer has
    /// read its first GOAWAY.
    pub settings_timeout: Duration,
    /// The time in which a frame other than DATA, or a field block with its CONTINUATION frames, must arrive completely. 16 KiB take
    /// 13 seconds at 10 kbit/s.
    pub field_block_timeout: Duration,
    /// RST_STREAM from the peer that discards work (CVE-2023-44487): see [`crate::rate_limit::Charge::PeerReset`]. A client may cancel
    /// all its streams at once, often 100: the burst is ten times that, and the rate is that of nghttp2.
    pub peer_resets: Rate,
    /// RST_STREAM on closed streams, except one for each stream that both sides ended. Go cancels a stream when the response body is
    /// closed, even after its end. This discards no work: the frame is ignored.
    pub late_resets: Rate,
    /// Streams that the peer caused this side to reset (CVE-2025-8671) or to ignore because of GOAWAY. The work is the same as for
    /// `peer_resets`, so the limit is too.
    pub stream_errors: Rate,
    /// PING (CVE-2019-9512). gRPC sends at most one per round trip: 100 a second are enough for a round trip of 10 ms, and the burst
    /// for shorter ones.
    pub pings: Rate,
    /// SETTINGS (CVE-2019-9515). A client needs one.
    pub settings: Rate,
    /// Empty HEADERS, CONTINUATION and DATA frames that do not end a block or message (CVE-2019-9518).
    pub empty_frames: Rate,
    /// DATA frames of less than [`Limits::TINY_DATA_LEN`] bytes that do not end a message, and on streams that this side has
    /// reset WINDOW_UPDATE too. Streams of small messages have high rates, so the limit is high. Tunnels are not counted. HEADERS on streams
    /// that this side has reset count once for every [`Limits::TINY_DATA_LEN`] bytes of their fields, and so does what arrives on streams that are
    /// ignored because of GOAWAY, or whose end is forgotten: all of them may have been in flight.
    pub tiny_data: Rate,
    /// PRIORITY and PRIORITY_UPDATE (CVE-2019-9513): a burst of 20 for each of 100 streams, and two for each of 100 requests a second.
    pub priorities: Rate,
    /// WINDOW_UPDATE frames in addition to two for each DATA frame that was sent and one for every 256 bytes. Go, the most frequent
    /// known sender, sends two for every 4 KiB.
    pub window_updates: Rate,
    /// Frames that are ignored: unknown types and extensions, and DATA on a stream that this side has reset beyond its window.
    pub unknown_frames: Rate,
    /// Interim responses, for example 102 and 103.
    pub interim_responses: Rate,
}

impl Limits {
    /// A DATA frame with less content than this is tiny, in bytes: `tiny_data` limits its rate.
    pub const TINY_DATA_LEN: usize = 64;

    /// The number of bytes that a peer must accept in each `stall_timeout`.
    pub const PROGRESS_MIN: u32 = 1024;

    /// The time by which `len` bytes that a peer accepts postpone a `stall_timeout`: [`Limits::PROGRESS_MIN`] bytes are worth all of
    /// it.
    pub fn progress(stall_timeout: Duration, len: usize) -> Duration {
        (stall_timeout / Self::PROGRESS_MIN).saturating_mul(len.min(Self::PROGRESS_MIN as usize) as u32)
    }

    /// The default limits.
    pub const DEFAULT: Self = Self {
        settings_entries_max: 32,
        continuations_max: 8,
        field_block_len_max: 128 * 1024,
        fields_max: 512,
        resets_remembered_max: 1_024,
        queued_opens_max: 1 << 20,
        pings_unacknowledged_max: 64,
        settings_unacknowledged_max: 16,
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
}

impl Default for Limits {
    fn default() -> Self {
        Self::DEFAULT
    }
}
