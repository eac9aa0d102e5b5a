//! Configurations. Each begins with its size, so that fields can be added.

use core::ops::RangeInclusive;
use core::time::Duration;
use wireloom_http2 as http2;
use wireloom_ws::deflate::{DeflateConfig, DeflateParams};
use wireloom_ws::handshake::HandshakeLimits;
use wireloom_ws::{Config, Delivery, Keepalive, Limits};

use crate::memory::{self, Versioned};
use crate::status::wl_status;

/// An end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum wl_role {
    /// The client.
    Client = 0,
    /// The server.
    Server = 1,
}

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum wl_kind {
    /// UTF-8 text.
    Text = 1,
    /// Bytes.
    Binary = 2,
}

/// How messages are delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum wl_delivery {
    /// Each message as one event.
    Messages = 0,
    /// A message that arrived in one frame and one read as one event; others in chunks as they arrive.
    Chunks = 1,
}

pub(crate) fn ws_role(role: u32) -> Result<wireloom_ws::Role, wl_status> {
    match role {
        0 => Ok(wireloom_ws::Role::Client),
        1 => Ok(wireloom_ws::Role::Server),
        _ => Err(wl_status::InvalidArgument),
    }
}

pub(crate) fn http2_role(role: u32) -> Result<http2::Role, wl_status> {
    match role {
        0 => Ok(http2::Role::Client),
        1 => Ok(http2::Role::Server),
        _ => Err(wl_status::InvalidArgument),
    }
}

pub(crate) fn message_kind(kind: u32) -> Result<wireloom_ws::Kind, wl_status> {
    match kind {
        1 => Ok(wireloom_ws::Kind::Text),
        2 => Ok(wireloom_ws::Kind::Binary),
        _ => Err(wl_status::InvalidArgument),
    }
}

#[inline]
pub(crate) fn time(ns: u64) -> Duration {
    Duration::from_nanos(ns)
}

#[inline]
pub(crate) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// No deadline.
pub const WL_NEVER: u64 = u64::MAX;

pub(crate) fn deadline(time: Option<Duration>) -> u64 {
    time.map_or(WL_NEVER, nanoseconds)
}

/// The configuration of a WebSocket. Set it with `wl_ws_config_default`, then change fields.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct wl_ws_config {
    /// `sizeof(wl_ws_config)`.
    pub size: usize,
    /// The longest payload of a frame, in bytes. Default: 64 MiB.
    pub frame_len_max: u64,
    /// The longest message, before and after inflation, in bytes. Default: 64 MiB.
    pub message_len_max: u64,
    /// The most fragments of a message beyond one per 16 bytes. Default: 16,384.
    pub fragments_spare: u64,
    /// The longest send queue, in bytes. Default: 64 MiB.
    pub queued_len_max: u64,
    /// From this length of the send queue on, the connection is congested, in bytes. Default: 1 MiB.
    pub queued_len_high: u64,
    /// A ping is sent after this time without a byte from the peer; 0: never, the default.
    pub ping_after_ns: u64,
    /// The connection ends after this time without a byte from the peer; 0: never, the default. Longer than `ping_after_ns`, which
    /// must be set too.
    pub dead_after_ns: u64,
    /// The longest closing handshake. Default: 10 s.
    pub close_timeout_ns: u64,
    /// The highest ratio of inflated to compressed length, for messages over 1 MiB. Default: 1,100.
    pub inflate_ratio_max: u32,
    /// A `wl_delivery`. Default: messages.
    pub delivery: u32,
}

// SAFETY: only integers; the first is the size.
unsafe impl Versioned for wl_ws_config {
    fn defaults() -> Self {
        let Config { limits, close_timeout, .. } = Config::default();
        Self {
            size: size_of::<Self>(),
            frame_len_max: limits.frame_len_max,
            message_len_max: limits.message_len_max,
            fragments_spare: limits.fragments_spare,
            queued_len_max: limits.queued_len_max as u64,
            queued_len_high: limits.queued_len_high as u64,
            ping_after_ns: 0,
            dead_after_ns: 0,
            close_timeout_ns: nanoseconds(close_timeout),
            inflate_ratio_max: limits.inflate_ratio_max,
            delivery: wl_delivery::Messages as u32,
        }
    }
}

pub(crate) unsafe fn ws_config(config: *const wl_ws_config) -> Result<Config, wl_status> {
    // SAFETY: the caller's promise is passed on.
    let config = unsafe { memory::read_versioned(config)? };
    let keepalive = match (config.ping_after_ns, config.dead_after_ns) {
        (0, 0) => None,
        (ping, dead) if 0 < ping && ping < dead => {
            Some(Keepalive { ping_after: time(ping), dead_after: time(dead) })
        }
        _ => return Err(wl_status::InvalidArgument),
    };
    let delivery = match config.delivery {
        0 => Delivery::Messages,
        1 => Delivery::Chunks,
        _ => return Err(wl_status::InvalidArgument),
    };
    let limits = Limits {
        frame_len_max: config.frame_len_max,
        message_len_max: config.message_len_max,
        fragments_spare: config.fragments_spare,
        inflate_ratio_max: config.inflate_ratio_max,
        queued_len_max: usize::try_from(config.queued_len_max).unwrap_or(usize::MAX),
        queued_len_high: usize::try_from(config.queued_len_high).unwrap_or(usize::MAX),
    };
    Ok(Config { limits, delivery, keepalive, close_timeout: time(config.close_timeout_ns) })
}

/// Stores the defaults. `size` is `sizeof(wl_ws_config)`; no more is written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_ws_config_default(config: *mut wl_ws_config, size: usize) -> wl_status {
    // SAFETY: the caller's promise is passed on.
    crate::call::call(|| unsafe { memory::write_defaults(config, size) })
}

/// How an end compresses, and what it offers or accepts (RFC 7692). Set it with `wl_deflate_config_default`, then change fields.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct wl_deflate_config {
    /// `sizeof(wl_deflate_config)`.
    pub size: usize,
    /// Shorter messages are sent uncompressed, in bytes. Default: 64.
    pub min_len: u64,
    /// 0 stores, 1 is fastest, 9 is smallest. Default: 4.
    pub level: u8,
    /// The memory level, 1 to 9. Default: 5.
    pub mem_level: u8,
    /// 1: the server compresses each message without reference to earlier ones. Default: 0.
    pub server_no_context_takeover: u8,
    /// 1: the client compresses each message without reference to earlier ones. Default: 0.
    pub client_no_context_takeover: u8,
    /// The largest window of the server, as an exponent of two, 8 to 15. Default: 15.
    pub server_max_window_bits: u8,
    /// The largest window of the client, as an exponent of two, 8 to 15. Default: 15.
    pub client_max_window_bits: u8,
    /// 0.
    pub reserved: [u8; 2],
}

// SAFETY: only integers; the first is the size.
unsafe impl Versioned for wl_deflate_config {
    fn defaults() -> Self {
        let config = DeflateConfig::default();
        Self {
            size: size_of::<Self>(),
            min_len: config.min_len as u64,
            level: config.level,
            mem_level: config.mem_level,
            server_no_context_takeover: config.server_no_context_takeover.into(),
            client_no_context_takeover: config.client_no_context_takeover.into(),
            server_max_window_bits: config.server_max_window_bits,
            client_max_window_bits: config.client_max_window_bits,
            reserved: [0; 2],
        }
    }
}

/// Null is the default.
pub(crate) unsafe fn deflate_config(config: *const wl_deflate_config) -> Result<DeflateConfig, wl_status> {
    // SAFETY: the caller's promise is passed on.
    let config = unsafe { memory::read_versioned(config)? };
    Ok(DeflateConfig {
        level: within(config.level, 0..=9)?,
        mem_level: within(config.mem_level, 1..=9)?,
        min_len: usize::try_from(config.min_len).unwrap_or(usize::MAX),
        server_no_context_takeover: flag(config.server_no_context_takeover)?,
        client_no_context_takeover: flag(config.client_no_context_takeover)?,
        server_max_window_bits: window_bits(config.server_max_window_bits)?,
        client_max_window_bits: window_bits(config.client_max_window_bits)?,
    })
}

pub(crate) fn flag(value: u8) -> Result<bool, wl_status> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(wl_status::InvalidArgument),
    }
}

pub(crate) fn window_bits(bits: u8) -> Result<u8, wl_status> {
    within(bits, 8..=15)
}

fn within(value: u8, range: RangeInclusive<u8>) -> Result<u8, wl_status> {
    if range.contains(&value) { Ok(value) } else { Err(wl_status::InvalidArgument) }
}

/// Stores the defaults. `size` is `sizeof(wl_deflate_config)`; no more is written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_deflate_config_default(config: *mut wl_deflate_config, size: usize) -> wl_status {
    // SAFETY: the caller's promise is passed on.
    crate::call::call(|| unsafe { memory::write_defaults(config, size) })
}

/// The negotiated parameters of permessage-deflate (RFC 7692 section 7.1).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct wl_deflate_params {
    /// 1: the server compresses each message without reference to earlier ones.
    pub server_no_context_takeover: u8,
    /// 1: the client compresses each message without reference to earlier ones.
    pub client_no_context_takeover: u8,
    /// The window of the server, 8 to 15.
    pub server_max_window_bits: u8,
    /// The window of the client, 8 to 15.
    pub client_max_window_bits: u8,
}

impl wl_deflate_params {
    pub(crate) fn negotiated(self) -> Result<DeflateParams, wl_status> {
        Ok(DeflateParams {
            server_no_context_takeover: flag(self.server_no_context_takeover)?,
            client_no_context_takeover: flag(self.client_no_context_takeover)?,
            server_max_window_bits: window_bits(self.server_max_window_bits)?,
            client_max_window_bits: window_bits(self.client_max_window_bits)?,
        })
    }
}

/// Limits of an opening handshake. Set them with `wl_handshake_limits_default`, then change fields.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct wl_handshake_limits {
    /// `sizeof(wl_handshake_limits)`.
    pub size: usize,
    /// The longest head, in bytes. Default: 16 KiB.
    pub head_len_max: usize,
    /// The most header fields. Default: 100.
    pub headers_max: usize,
}

// SAFETY: only integers; the first is the size.
unsafe impl Versioned for wl_handshake_limits {
    fn defaults() -> Self {
        let HandshakeLimits { head_len_max, headers_max } = HandshakeLimits::default();
        Self { size: size_of::<Self>(), head_len_max, headers_max }
    }
}

/// Null is the default.
pub(crate) unsafe fn handshake_limits(
    limits: *const wl_handshake_limits,
) -> Result<HandshakeLimits, wl_status> {
    // SAFETY: the caller's promise is passed on.
    let wl_handshake_limits { head_len_max, headers_max, .. } = unsafe { memory::read_versioned(limits)? };
    Ok(HandshakeLimits { head_len_max, headers_max })
}

/// Stores the defaults. `size` is `sizeof(wl_handshake_limits)`; no more is written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_handshake_limits_default(
    limits: *mut wl_handshake_limits,
    size: usize,
) -> wl_status {
    // SAFETY: the caller's promise is passed on.
    crate::call::call(|| unsafe { memory::write_defaults(limits, size) })
}

/// The configuration of an HTTP/2 connection. Set it with `wl_h2_config_default`, then change fields.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct wl_h2_config {
    /// `sizeof(wl_h2_config)`.
    pub size: usize,
    /// The maximum memory of the connection, in bytes. Default: 16 MiB.
    pub memory_max: u64,
    /// A server handles no input while its output is longer than this, in bytes. Default: 1 MiB.
    pub output_max: u64,
    /// DATA that is framed ahead of the transport, in bytes. Default: 65,160, one packet of the kernel.
    pub output_ahead: u64,
    /// The key of the hash table of streams: choose it at random.
    pub hash_key: u64,
    /// How long the peer may keep windows closed or not read. Default: 300 s.
    pub stall_timeout_ns: u64,
    /// How long the peer may take to acknowledge SETTINGS. Default: 30 s.
    pub settings_timeout_ns: u64,
    /// How long a field block may take to arrive. Default: 30 s.
    pub field_block_timeout_ns: u64,
    /// SETTINGS_HEADER_TABLE_SIZE, in bytes. Default: 4,096.
    pub header_table_size: u32,
    /// SETTINGS_MAX_CONCURRENT_STREAMS. Default: 256.
    pub max_concurrent_streams: u32,
    /// SETTINGS_INITIAL_WINDOW_SIZE, in bytes. Default: 256 KiB.
    pub initial_window_size: u32,
    /// SETTINGS_MAX_FRAME_SIZE, in bytes. Default: 16 KiB.
    pub max_frame_size: u32,
    /// SETTINGS_MAX_HEADER_LIST_SIZE, in bytes. Default: 64 KiB.
    pub max_header_list_size: u32,
    /// The receive window of the connection, in bytes. Default: 1 MiB.
    pub connection_window: u32,
    /// The size to which receive windows of streams grow, in bytes. Default: 8 MiB.
    pub stream_window_max: u32,
    /// The send queue of a stream after which a sender should wait for `WL_H2_EVENT_KIND_WRITABLE`, in bytes. Default: 64 KiB.
    pub stream_queue: u32,
    /// 1: window is released as soon as DATA was returned; 0: by `wl_h2_release_capacity`. Default: 1.
    pub auto_release: u8,
    /// 1: a server announces SETTINGS_ENABLE_CONNECT_PROTOCOL (RFC 8441). Default: 0.
    pub enable_connect_protocol: u8,
    /// 1: a client allows server push. Default: 0. Ignored by servers.
    pub enable_push: u8,
    /// 0.
    pub reserved: [u8; 5],
}

// SAFETY: only integers; the first is the size.
unsafe impl Versioned for wl_h2_config {
    fn defaults() -> Self {
        let config = http2::Config::new(http2::Role::Client);
        let http2::Config { settings, limits, .. } = config;
        Self {
            size: size_of::<Self>(),
            memory_max: config.memory_max,
            output_max: config.output_max as u64,
            output_ahead: config.output_ahead as u64,
            hash_key: config.hash_key,
            stall_timeout_ns: nanoseconds(limits.stall_timeout),
            settings_timeout_ns: nanoseconds(limits.settings_timeout),
            field_block_timeout_ns: nanoseconds(limits.field_block_timeout),
            header_table_size: settings.header_table_size,
            max_concurrent_streams: settings.max_concurrent_streams,
            initial_window_size: settings.initial_window_size,
            max_frame_size: settings.max_frame_size,
            max_header_list_size: settings.max_header_list_size,
            connection_window: config.connection_window,
            stream_window_max: config.stream_window_max,
            stream_queue: config.stream_queue,
            auto_release: config.auto_release.into(),
            enable_connect_protocol: settings.enable_connect_protocol.into(),
            enable_push: settings.enable_push.into(),
            reserved: [0; 5],
        }
    }
}

pub(crate) unsafe fn http2_config(
    role: http2::Role,
    config: *const wl_h2_config,
) -> Result<http2::Config, wl_status> {
    // SAFETY: the caller's promise is passed on.
    let from = unsafe { memory::read_versioned(config)? };
    let mut config = http2::Config::new(role);
    config.memory_max = from.memory_max;
    config.output_max = usize::try_from(from.output_max).unwrap_or(usize::MAX);
    config.output_ahead = usize::try_from(from.output_ahead).unwrap_or(usize::MAX);
    config.hash_key = from.hash_key;
    config.limits.stall_timeout = time(from.stall_timeout_ns);
    config.limits.settings_timeout = time(from.settings_timeout_ns);
    config.limits.field_block_timeout = time(from.field_block_timeout_ns);
    config.settings.header_table_size = from.header_table_size;
    config.settings.max_concurrent_streams = from.max_concurrent_streams;
    config.settings.initial_window_size = from.initial_window_size;
    config.settings.max_frame_size = from.max_frame_size;
    config.settings.max_header_list_size = from.max_header_list_size;
    config.connection_window = from.connection_window;
    config.stream_window_max = from.stream_window_max;
    config.stream_queue = from.stream_queue;
    config.auto_release = flag(from.auto_release)?;
    config.settings.enable_connect_protocol = flag(from.enable_connect_protocol)?;
    let enable_push = flag(from.enable_push)?;
    if role == http2::Role::Client {
        config.settings.enable_push = enable_push;
    }
    Ok(config)
}

/// Stores the defaults. `size` is `sizeof(wl_h2_config)`; no more is written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_h2_config_default(config: *mut wl_h2_config, size: usize) -> wl_status {
    // SAFETY: the caller's promise is passed on.
    crate::call::call(|| unsafe { memory::write_defaults(config, size) })
}
