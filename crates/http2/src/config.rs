//! [`Config`]: the settings, the limits, and the sizes of windows and buffers of a connection. Each default has its reason beside
//! it.

use crate::error::Misuse;
use crate::flow_control::WINDOW_MAX;
use crate::hpack::{IndexPolicy, TABLE_SIZE_DEFAULT};
use crate::{Limits, Role, Settings};

/// The configuration of one end of a connection.
///
/// ```
/// use wireloom_http2::{Config, Role};
///
/// let mut config = Config::new(Role::Server);
/// config.settings.enable_connect_protocol = true;
/// config.connection_window = 4 << 20;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// The first SETTINGS of this end.
    pub settings: Settings,
    /// The limits on the memory and work that the peer can cause.
    pub limits: Limits,
    /// The receive window of the connection, in bytes: DATA that may be in flight on all streams together. At most 2^31-1 (RFC 9113
    /// §6.9.1).
    pub connection_window: u32,
    /// The maximum size to which the receive windows of streams grow automatically, in bytes: at most 2^31-1. They do not grow if this is
    /// at most `settings.initial_window_size`.
    pub stream_window_max: u32,
    /// Whether window is released as soon as DATA was passed to the caller. Otherwise the caller calls
    /// [`crate::Connection::release_capacity`]. [`crate::Connection::set_auto_release`] changes it for a stream.
    pub auto_release: bool,
    /// Whether the end of a stream releases the DATA that the caller holds of it. Otherwise it counts as [`crate::Memory::held`]
    /// until the caller releases it, also after the stream has ended.
    pub release_at_end: bool,
    /// The maximum memory of the connection, in bytes: DATA that the caller holds or that the peer may send, send queues, output, and
    /// the memory that the caller reports with [`crate::Connection::set_caller_memory`]. A quarter is for the send queues. Slow
    /// readers do not affect other streams until the other three quarters are used.
    pub memory_max: u64,
    /// The amount of DATA that is framed ahead of the transport, in bytes: enough for large writes, but too little to delay urgent streams.
    /// DATA frames are shortened to fit. The default is what the kernel sends as one packet: 45 segments of Ethernet, which also fit into
    /// the one segment that loopback allows.
    pub output_ahead: usize,
    /// The maximum length of the send queue of a stream before the caller should wait for [`crate::Event::Writable`], in bytes. It is
    /// less while much is queued on other streams, so that all queues stay within their share of `memory_max`.
    pub stream_queue: u32,
    /// A server handles no input while its output is longer than this, in bytes: a client that does not read cannot send requests. A
    /// client always handles input, because otherwise both ends could wait for each other.
    pub output_max: usize,
    /// The size of the fields, in bytes as RFC 9113 §6.5.2 counts them, above which [`crate::Connection::handle_input`] returns before the
    /// end of the input until [`crate::Connection::take_decoded_len`] is called, so that a caller can unlock the connection. A few bytes of
    /// input can decode to kilobytes of fields. Without a limit by default.
    pub decoded_len_max: usize,
    /// Whether fields are checked before they are sent, by the rules for those that are received ([`crate::message`]): a message that the
    /// peer would refuse is [`crate::error::Misuse::MessageInvalid`]. A caller whose types admit only valid fields can do without.
    pub check_outgoing: bool,
    /// The maximum size of the dynamic table with which this end compresses fields, in bytes as RFC 7541 §4.1 counts them. The peer's
    /// SETTINGS_HEADER_TABLE_SIZE may be less. 0 saves the memory of the table.
    pub encoder_table_size: u32,
    /// The fields that are added to the dynamic table.
    pub index_policy: IndexPolicy,
    /// The key of the hash table of stream identifiers. Choose it at random if a hostile peer may open thousands of streams.
    pub hash_key: u64,
}

impl Config {
    /// The default configuration of an end with this role.
    pub const fn new(role: Role) -> Self {
        let settings = Settings {
            // RFC 9113 §8.4: push is disabled by default; browsers no longer support it.
            enable_push: false,
            // RFC 9113 §6.5.2 recommends at least 100. 256 streams of 256 KiB are at most 64 MiB.
            max_concurrent_streams: 256,
            // A round trip of 20 ms at 100 Mbit/s. Windows grow if more is needed.
            initial_window_size: 256 * 1024,
            // Four times as much as common servers accept.
            max_header_list_size: 64 * 1024,
            // RFC 9218 §2.1: the priorities of RFC 7540 are not used.
            no_rfc7540_priorities: true,
            ..Settings::INITIAL
        };
        // RFC 9113 §6.5.2: a server does not send SETTINGS_ENABLE_PUSH.
        let settings = match role {
            Role::Client => settings,
            Role::Server => Settings { enable_push: true, ..settings },
        };
        Self {
            settings,
            limits: Limits::DEFAULT,
            connection_window: 1 << 20,
            stream_window_max: 8 << 20,
            auto_release: true,
            release_at_end: true,
            memory_max: 16 << 20,
            output_ahead: 45 * 1448,
            stream_queue: 64 * 1024,
            output_max: 1 << 20,
            decoded_len_max: usize::MAX,
            check_outgoing: true,
            // The size that a peer allows until its SETTINGS arrive (RFC 9113 §6.5.2).
            encoder_table_size: TABLE_SIZE_DEFAULT,
            index_policy: IndexPolicy::Repeating,
            hash_key: 0x9e37_79b9_7f4a_7c15,
        }
    }

    /// Checks what this end would announce.
    ///
    /// # Errors
    /// [`Misuse::SettingInvalid`] if the peer would have to refuse a setting or a window.
    pub(crate) fn check(&self, role: Role) -> Result<(), Misuse> {
        // RFC 9113 §6.9.1: a connection error of the peer, FLOW_CONTROL_ERROR.
        if i64::from(self.connection_window.max(self.stream_window_max)) > WINDOW_MAX {
            return Err(Misuse::SettingInvalid);
        }
        self.settings.check(role)
    }

    /// The share of [`Config::memory_max`] for DATA from the peer and memory of the caller, in bytes.
    pub(crate) fn receive_max(&self) -> i64 {
        let [memory_max, output_max] =
            [self.memory_max, self.output_max as u64].map(|bytes| i64::try_from(bytes).unwrap_or(i64::MAX));
        (memory_max - memory_max / 4).saturating_sub(output_max)
    }

    /// The maximum length of the send queue of a stream while `queued` bytes are queued on all streams.
    pub(crate) fn queue_max(&self, queued: u64) -> u32 {
        let room = (self.memory_max / 4).saturating_sub(queued) / 4;
        room.max(Self::QUEUE_MIN).min(u64::from(self.stream_queue)) as u32
    }

    /// A stream may always queue this much, in bytes.
    const QUEUE_MIN: u64 = 1024;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_agree_with_each_other() {
        let config = Config::new(Role::Server);
        let frame = u64::from(config.settings.max_frame_size);
        // Several streams share the window of the connection, and growth has room.
        assert!(config.connection_window >= 4 * config.settings.initial_window_size);
        assert!(i64::from(config.connection_window) <= config.receive_max());
        assert!(config.stream_window_max > config.connection_window);
        // One packet of the kernel: 64 KiB less the headers of IP and TCP.
        assert!((3 * frame..(64 << 10) - 52).contains(&(config.output_ahead as u64)));
        assert_eq!(u64::from(config.stream_queue), 4 * frame);
        assert!(config.output_max > config.output_ahead);
    }

    #[test]
    fn the_memory_of_a_connection_is_divided() {
        let mut config = Config::new(Role::Server);
        (config.memory_max, config.output_max) = (1_000, 100);
        assert_eq!(config.receive_max(), 650);
        config.memory_max = u64::MAX;
        assert_eq!(config.receive_max(), i64::MAX - i64::MAX / 4 - 100);
        config.output_max = usize::MAX;
        assert_eq!(config.receive_max(), -(i64::MAX / 4));
    }

    #[test]
    fn a_queue_may_use_a_quarter_of_the_free_memory() {
        let mut config = Config::new(Role::Server);
        (config.memory_max, config.stream_queue) = (4 * 100_000, 20_000);
        for (queued, expected) in [
            (0, 20_000),
            (20_000, 20_000),
            (20_004, 19_999),
            (95_904, 1_024),
            (99_999, 1_024),
            (u64::MAX, 1_024),
        ] {
            assert_eq!(config.queue_max(queued), expected, "{queued}");
        }
        config.stream_queue = 500;
        assert_eq!((config.queue_max(0), config.queue_max(100_000)), (500, 500));
    }
}
