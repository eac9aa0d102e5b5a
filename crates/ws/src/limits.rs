//! The bounds on the memory and work that a peer can cause after the handshake. [`crate::handshake`] has those of the handshake.

/// Limits of one open connection. Each field documents the reason for its default. Fields may be added: use struct update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The longest payload of a frame, in bytes. 64 MiB, like the longest message, so that no message needs fragmentation. Memory is
    /// allocated for the bytes that arrive, not for the announced length.
    pub frame_len_max: u64,
    /// The longest message over all its fragments, before and after inflation, in bytes. 64 MiB: the default of common libraries. It
    /// applies to messages that are delivered in chunks too; raise it to stream longer ones.
    pub message_len_max: u64,
    /// The most fragments of a message beyond one per [`FRAGMENT_LEN_EXCUSED`] bytes of payload. 16,384: a message of up to 16 KiB may
    /// arrive in fragments of a byte, and 4 MiB in fragments of 64 bytes. An endless stream of empty fragments, each of which costs its
    /// sender 2 to 6 bytes and this end the handling of a header, is an error.
    pub fragments_spare: u64,
    /// The highest ratio of inflated to compressed length, for messages of more than [`INFLATE_RATIO_FREE`] bytes. DEFLATE reaches at
    /// most 1,032, so the default of 1,100 refuses nothing; set 100 where the traffic is known.
    pub inflate_ratio_max: u32,
    /// The longest send queue, in bytes; beyond it `send_*` fails. 64 MiB: one message of the default limit. Only messages of the
    /// application fill this queue, never frames of the peer alone.
    pub queued_len_max: usize,
    /// From this length of the send queue on, [`crate::Outbound::is_congested`] is true, in bytes. 1 MiB: several times the send buffer of
    /// a socket, so that the socket stays busy while the sender pauses. At most 4 GiB - 1 takes effect.
    pub queued_len_high: usize,
}

/// One fragment per this many bytes of payload does not count towards [`Limits::fragments_spare`].
pub const FRAGMENT_LEN_EXCUSED: u64 = 16;

/// [`Limits::inflate_ratio_max`] does not apply to messages of up to this length, in bytes.
pub const INFLATE_RATIO_FREE: u64 = 1 << 20;

/// Every ping is answered while the send queue is shorter than this; beyond it, only the newest (RFC 6455 §5.5.3). 64 KiB: more than an
/// honest peer pings at once, and little memory for a peer that pings and does not read.
pub const PONGS_QUEUED_LEN_MAX: usize = 64 << 10;

/// Bytes behind the peer's Close frame that a server discards before it closes the transport all the same. 4 MiB: as much as the buffers of
/// a socket hold, so that a peer that has written without reading receives what was sent to it; a peer that sends forever is cut.
pub const TRAILING_LEN_MAX: usize = 4 << 20;

impl Default for Limits {
    fn default() -> Self {
        Self {
            frame_len_max: 64 << 20,
            message_len_max: 64 << 20,
            fragments_spare: 16 << 10,
            inflate_ratio_max: 1_100,
            queued_len_max: 64 << 20,
            queued_len_high: 1 << 20,
        }
    }
}
