//! The bounds on everything a peer can make this end hold or do once the handshake is over. The handshake's own bounds
//! are [`crate::handshake`]'s.

/// Limits of one open connection. Each field documents the reason for its default. Fields may be added: use struct update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The longest payload that one frame may announce, in bytes. 64 MiB: as much as the longest message, so that a message
    /// needs no fragmentation. Memory is not reserved on the announcement alone.
    pub frame_len_max: u64,
    /// The longest message, in bytes, over all its fragments, and once more after inflation. 64 MiB: what the common
    /// libraries allow by default. It holds for messages that are delivered in chunks too; raise it to stream more.
    pub message_len_max: u64,
    /// Fragments that a message may have beyond one per [`FRAGMENT_LEN_EXCUSED`] bytes of payload. 16,384: a message of
    /// up to 16 KiB may come byte by byte and 4 MiB in 64-byte fragments are fine, but an endless stream of empty
    /// fragments, which costs its sender 2 to 6 bytes and this end a header each, is not.
    pub fragments_spare: u64,
    /// How many times its compressed size a message may inflate to, once it holds over [`INFLATE_RATIO_FREE`] bytes.
    /// 1,032 is the most that DEFLATE can do, so the default of 1,100 refuses nothing; set 100 where the traffic is known.
    pub inflate_ratio_max: u32,
    /// Bytes that may wait to be transmitted before `send_*` is refused. 64 MiB: one message of the default limit. The
    /// application's own messages fill this queue, never the peer's frames alone.
    pub queued_len_max: usize,
    /// Bytes waiting from which [`crate::Outbound::is_congested`] holds. 1 MiB: several times a socket's send
    /// buffer, so that a sender that pauses then still keeps the socket busy.
    pub queued_len_high: usize,
}

/// One fragment per this many payload bytes is never counted against [`Limits::fragments_spare`].
pub const FRAGMENT_LEN_EXCUSED: u64 = 16;

/// Messages up to this many inflated bytes are never measured against [`Limits::inflate_ratio_max`].
pub const INFLATE_RATIO_FREE: u64 = 1 << 20;

/// Pings are answered one by one while fewer bytes than these wait to be transmitted; beyond, the newest alone (RFC 6455
/// §5.5.3). 64 KiB: more than an honest peer pings at once, and little to hold for one that pings and does not read.
pub const PONGS_QUEUED_LEN_MAX: usize = 64 << 10;

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
