/* libwireloom: WebSocket (RFC 6455, RFC 7692) and HTTP/2 (RFC 9113, RFC 7541) without I/O.
 *
 * Written by cbindgen from crates/capi/src; `WIRELOOM_RENEW_HEADER=1 cargo test -p wireloom-capi --test header` renews it.
 *
 * Order of calls. A connection is a state machine without a socket. Pass it what was read (`*_handle_input`), the end of the stream
 * (`*_handle_eof`) and the time (`*_handle_timeout`); give it commands (`*_send`, `wl_ws_close`); write what `*_poll_transmit` returns
 * and report it with `*_transmitted`; call again at the time of `*_poll_timeout`. Nothing calls back.
 *
 * Results. Every function that can fail returns a wl_status: negative for an error, and then its outputs are not written, or are 0,
 * unless it says so. Misuse is an error, not undefined behaviour, as far as the library can see it: null pointers, lengths over PTRDIFF_MAX, misaligned
 * or overlapping arguments, values out of range, handles that are freed or of another type.
 *
 * The caller promises that its pointers have the lengths that it passes, and that no other thread changes the memory during the call.
 *
 * Handles are numbers in structures of their own type. Each `*_new` or `*_open` is matched by one `*_free`.
 *
 * Memory. Buffers belong to the caller. Where a function returns a pointer into the library, it says how long it is valid; usually until
 * the next call with the same handle.
 *
 * Threads. All functions can be called from all threads. A handle may move between threads; two calls with the same handle at the same
 * time are an error (WL_STATUS_BUSY) of one of them, which has done nothing, except for prepared messages.
 *
 * Units. Lengths are bytes. Times are nanoseconds since a moment of the caller's choice, such as CLOCK_MONOTONIC.
 *
 * Structures that begin with `size` may get more fields. An application that was built with fewer gets the defaults of the others:
 * `wl_*_default` writes as many bytes as it is told, and later calls read as many as `size` says. A `size` over that of the
 * library, from a newer header, is WL_STATUS_INVALID_ARGUMENT.
 */

#ifndef WIRELOOM_H
#define WIRELOOM_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

// No deadline.
#define WL_NEVER UINT64_MAX

// The longest frame header, in bytes.
#define WL_FRAME_HEADER_LEN_MAX 14

// `flags`: do not compress this message.
#define WL_SEND_UNCOMPRESSED 1

// The most slices that one call of `wl_ws_poll_transmit` or `wl_h2_poll_transmit` returns.
#define WL_SLICES_MAX 64

// The result of a call. Negative: an error.
enum wl_status
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // Done.
  WL_STATUS_OK = 0,
  // Done so far; call again with the remaining input. Not an error.
  WL_STATUS_MORE = 1,
  // A pointer that must not be null is null.
  WL_STATUS_NULL_POINTER = -1,
  // An argument is out of range, misaligned, longer than `PTRDIFF_MAX`, or overlaps another one.
  WL_STATUS_INVALID_ARGUMENT = -2,
  // The handle is zero, freed, or of another type.
  WL_STATUS_INVALID_HANDLE = -3,
  // Another thread is using the handle.
  WL_STATUS_BUSY = -4,
  // The library has a bug, which was caught. The handle can only be freed.
  WL_STATUS_PANICKED = -5,
  // The buffer is too small. Its required length was stored, and nothing else has changed unless the function says so.
  WL_STATUS_BUFFER_TOO_SMALL = -6,
  // The text is not valid UTF-8.
  WL_STATUS_INVALID_UTF8 = -7,
  // No more handles can be made.
  WL_STATUS_TOO_MANY_HANDLES = -8,
  // The peer broke the protocol.
  WL_STATUS_PEER_MISBEHAVED = -20,
  // The peer exceeded a limit.
  WL_STATUS_LIMIT_EXCEEDED = -21,
  // The connection is closing or has ended.
  WL_STATUS_NOT_OPEN = -40,
  // The handshake is in another state.
  WL_STATUS_WRONG_STATE = -41,
  // A message sent in chunks is not finished.
  WL_STATUS_MESSAGE_UNDER_WAY = -42,
  // The send queue is full. Write output first.
  WL_STATUS_QUEUE_FULL = -43,
  // The stream has ended.
  WL_STATUS_STREAM_GONE = -44,
  // The connection is going away: open a new one.
  WL_STATUS_GOING_AWAY = -45,
  // The protocol does not allow this now, or not with these values.
  WL_STATUS_NOT_ALLOWED = -46,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum wl_status wl_status;
#else
typedef int32_t wl_status;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// An end of a connection.
enum wl_role
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // The client.
  WL_ROLE_CLIENT = 0,
  // The server.
  WL_ROLE_SERVER = 1,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum wl_role wl_role;
#else
typedef uint32_t wl_role;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// The kind of a message.
enum wl_kind
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // UTF-8 text.
  WL_KIND_TEXT = 1,
  // Bytes.
  WL_KIND_BINARY = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum wl_kind wl_kind;
#else
typedef uint32_t wl_kind;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// How messages are delivered.
enum wl_delivery
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // Each message as one event.
  WL_DELIVERY_MESSAGES = 0,
  // A message that arrived in one frame and one read as one event; others in chunks as they arrive.
  WL_DELIVERY_CHUNKS = 1,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum wl_delivery wl_delivery;
#else
typedef uint32_t wl_delivery;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// The progress of a handshake.
enum wl_progress
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // More input is needed.
  WL_PROGRESS_INCOMPLETE = 0,
  // A server: the request is complete, and waits for an answer. A client: the server has accepted.
  WL_PROGRESS_COMPLETE = 1,
  // A client: the server has refused.
  WL_PROGRESS_REFUSED = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum wl_progress wl_progress;
#else
typedef uint32_t wl_progress;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// A part of a request.
enum wl_request_part
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // Path and query.
  WL_REQUEST_PART_RESOURCE = 0,
  // The host, perhaps with a port.
  WL_REQUEST_PART_HOST = 1,
  // The origin; absent if the client sent none.
  WL_REQUEST_PART_ORIGIN = 2,
  // The subprotocols that the client offers, as in its header; absent if it offers none.
  WL_REQUEST_PART_SUBPROTOCOLS = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum wl_request_part wl_request_part;
#else
typedef uint32_t wl_request_part;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// The kind of an event.
enum wl_ws_event_kind
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // A text message. It is valid UTF-8.
  WL_WS_EVENT_KIND_TEXT = 1,
  // A binary message.
  WL_WS_EVENT_KIND_BINARY = 2,
  // A chunk of a text message. A code point may be split between two chunks.
  WL_WS_EVENT_KIND_TEXT_CHUNK = 3,
  // A chunk of a binary message.
  WL_WS_EVENT_KIND_BINARY_CHUNK = 4,
  // A Ping. Its Pong is queued already.
  WL_WS_EVENT_KIND_PING = 5,
  // A Pong.
  WL_WS_EVENT_KIND_PONG = 6,
  // The peer's Close frame. The answer is queued already.
  WL_WS_EVENT_KIND_CLOSE = 7,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum wl_ws_event_kind wl_ws_event_kind;
#else
typedef uint32_t wl_ws_event_kind;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// How to treat the transport once everything is written.
enum wl_transport
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint8_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // Keep it open.
  WL_TRANSPORT_OPEN = 0,
  // Shut down its writing side, and read on, until the end or the deadline.
  WL_TRANSPORT_SHUTDOWN_WRITE = 1,
  // Close it. A server whose socket may hold unread bytes first reads once, without waiting, and passes them to
  // `wl_ws_handle_input`: if the peer has sent any behind its Close frame, this becomes `WL_TRANSPORT_SHUTDOWN_WRITE`, because a
  // socket that is closed with unread bytes is reset, and the peer loses what it has not received. The same happens if it sends
  // some later: while the socket has bytes that were not sent (`SIOCOUTQNSD` on Linux), pass one byte.
  WL_TRANSPORT_CLOSE = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum wl_transport wl_transport;
#else
typedef uint8_t wl_transport;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Why a connection ended.
enum wl_ws_cause
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // It has not ended.
  WL_WS_CAUSE_NONE = 0,
  // A Close frame.
  WL_WS_CAUSE_CLOSE = 1,
  // The peer broke a rule.
  WL_WS_CAUSE_PEER_MISBEHAVED = 2,
  // The peer exceeded a limit.
  WL_WS_CAUSE_LIMIT_EXCEEDED = 3,
  // The peer was silent.
  WL_WS_CAUSE_SILENCE = 4,
  // The peer did not finish the closing handshake in time.
  WL_WS_CAUSE_CLOSE_TIMEOUT = 5,
  // The transport ended without a closing handshake.
  WL_WS_CAUSE_TRANSPORT_CLOSED = 6,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum wl_ws_cause wl_ws_cause;
#else
typedef uint32_t wl_ws_cause;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// The side that ended a connection.
enum wl_initiator
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // This end.
  WL_INITIATOR_LOCAL = 0,
  // The peer.
  WL_INITIATOR_PEER = 1,
  // The transport.
  WL_INITIATOR_TRANSPORT = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum wl_initiator wl_initiator;
#else
typedef uint32_t wl_initiator;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// The kind of an event.
enum wl_h2_event_kind
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // A request (`fields`, `request_kind`, `end_stream`).
  WL_H2_EVENT_KIND_REQUEST = 1,
  // The final response (`fields`, `status`, `end_stream`).
  WL_H2_EVENT_KIND_RESPONSE = 2,
  // An interim response (`fields`, `status`).
  WL_H2_EVENT_KIND_INFORMATIONAL = 3,
  // Trailers, which end the message (`fields`).
  WL_H2_EVENT_KIND_TRAILERS = 4,
  // A promised response: `other` is its stream, `stream` that of the request, or 0 if that was reset (`fields`).
  WL_H2_EVENT_KIND_PROMISE = 5,
  // Content (`data`, `end_stream`).
  WL_H2_EVENT_KIND_DATA = 6,
  // The stream was reset and no longer exists (`code`, `by_peer`).
  WL_H2_EVENT_KIND_RESET = 7,
  // The peer has not processed the request, which can be retried. The stream no longer exists.
  WL_H2_EVENT_KIND_REFUSED = 8,
  // There is room in the send queue of the stream.
  WL_H2_EVENT_KIND_WRITABLE = 9,
  // The peer's SETTINGS.
  WL_H2_EVENT_KIND_SETTINGS = 10,
  // The peer has acknowledged the SETTINGS of this end.
  WL_H2_EVENT_KIND_SETTINGS_ACKNOWLEDGED = 11,
  // A PING was acknowledged (`data`, `round_trip_ns`).
  WL_H2_EVENT_KIND_PONG = 12,
  // The peer ends the connection: `other` is the last stream that it processes (`code`, `data`).
  WL_H2_EVENT_KIND_GO_AWAY = 13,
  // The client changed the priority of a response: `code` is the urgency, and `end_stream` 1 for an incremental one.
  WL_H2_EVENT_KIND_PRIORITY = 14,
  // Alternative services: `fields` has one field with the origin and the value (RFC 7838).
  WL_H2_EVENT_KIND_ALT_SVC = 15,
  // The origins that the connection serves: the values of `fields` (RFC 8336).
  WL_H2_EVENT_KIND_ORIGIN = 16,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum wl_h2_event_kind wl_h2_event_kind;
#else
typedef uint32_t wl_h2_event_kind;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// The kind of a request.
enum wl_h2_request_kind
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint8_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // Neither of the others.
  WL_H2_REQUEST_KIND_PLAIN = 0,
  // HEAD.
  WL_H2_REQUEST_KIND_HEAD = 1,
  // CONNECT.
  WL_H2_REQUEST_KIND_CONNECT = 2,
  // Extended CONNECT (RFC 8441).
  WL_H2_REQUEST_KIND_EXTENDED_CONNECT = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum wl_h2_request_kind wl_h2_request_kind;
#else
typedef uint8_t wl_h2_request_kind;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// The end of a connection.
enum wl_h2_ended
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint8_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // It has not ended.
  WL_H2_ENDED_NO = 0,
  // All streams finished after a graceful shutdown.
  WL_H2_ENDED_DRAINED = 1,
  // The peer broke a rule or exceeded a limit.
  WL_H2_ENDED_FAILED = 2,
  // By `wl_h2_abort`.
  WL_H2_ENDED_ABORTED = 3,
  // The transport ended.
  WL_H2_ENDED_EOF = 4,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum wl_h2_ended wl_h2_ended;
#else
typedef uint8_t wl_h2_ended;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// The configuration of a WebSocket. Set it with `wl_ws_config_default`, then change fields.
typedef struct wl_ws_config {
  // `sizeof(wl_ws_config)`.
  size_t size;
  // The longest payload of a frame, in bytes. Default: 64 MiB.
  uint64_t frame_len_max;
  // The longest message, before and after inflation, in bytes. Default: 64 MiB.
  uint64_t message_len_max;
  // The most fragments of a message beyond one per 16 bytes. Default: 16,384.
  uint64_t fragments_spare;
  // The longest send queue, in bytes. Default: 64 MiB.
  uint64_t queued_len_max;
  // From this length of the send queue on, the connection is congested, in bytes. Default: 1 MiB.
  uint64_t queued_len_high;
  // A ping is sent after this time without a byte from the peer; 0: never, the default.
  uint64_t ping_after_ns;
  // The connection ends after this time without a byte from the peer; 0: never, the default. Longer than `ping_after_ns`, which
  // must be set too.
  uint64_t dead_after_ns;
  // The longest closing handshake. Default: 10 s.
  uint64_t close_timeout_ns;
  // The highest ratio of inflated to compressed length, for messages over 1 MiB. Default: 1,100.
  uint32_t inflate_ratio_max;
  // A `wl_delivery`. Default: messages.
  uint32_t delivery;
} wl_ws_config;

// How an end compresses, and what it offers or accepts (RFC 7692). Set it with `wl_deflate_config_default`, then change fields.
typedef struct wl_deflate_config {
  // `sizeof(wl_deflate_config)`.
  size_t size;
  // Shorter messages are sent uncompressed, in bytes. Default: 64.
  uint64_t min_len;
  // 0 stores, 1 is fastest, 9 is smallest. Default: 4.
  uint8_t level;
  // The memory level, 1 to 9. Default: 5.
  uint8_t mem_level;
  // 1: the server compresses each message without reference to earlier ones. Default: 0.
  uint8_t server_no_context_takeover;
  // 1: the client compresses each message without reference to earlier ones. Default: 0.
  uint8_t client_no_context_takeover;
  // The largest window of the server, as an exponent of two, 8 to 15. Default: 15.
  uint8_t server_max_window_bits;
  // The largest window of the client, as an exponent of two, 8 to 15. Default: 15.
  uint8_t client_max_window_bits;
  // 0.
  uint8_t reserved[2];
} wl_deflate_config;

// Limits of an opening handshake. Set them with `wl_handshake_limits_default`, then change fields.
typedef struct wl_handshake_limits {
  // `sizeof(wl_handshake_limits)`.
  size_t size;
  // The longest head, in bytes. Default: 16 KiB.
  size_t head_len_max;
  // The most header fields. Default: 100.
  size_t headers_max;
} wl_handshake_limits;

// The configuration of an HTTP/2 connection. Set it with `wl_h2_config_default`, then change fields.
typedef struct wl_h2_config {
  // `sizeof(wl_h2_config)`.
  size_t size;
  // The maximum memory of the connection, in bytes. Default: 16 MiB.
  uint64_t memory_max;
  // A server handles no input while its output is longer than this, in bytes. Default: 1 MiB.
  uint64_t output_max;
  // DATA that is framed ahead of the transport, in bytes. Default: 65,160, one packet of the kernel.
  uint64_t output_ahead;
  // The key of the hash table of streams: choose it at random.
  uint64_t hash_key;
  // How long the peer may keep windows closed or not read. Default: 300 s.
  uint64_t stall_timeout_ns;
  // How long the peer may take to acknowledge SETTINGS. Default: 30 s.
  uint64_t settings_timeout_ns;
  // How long a field block may take to arrive. Default: 30 s.
  uint64_t field_block_timeout_ns;
  // SETTINGS_HEADER_TABLE_SIZE, in bytes. Default: 4,096.
  uint32_t header_table_size;
  // SETTINGS_MAX_CONCURRENT_STREAMS. Default: 256.
  uint32_t max_concurrent_streams;
  // SETTINGS_INITIAL_WINDOW_SIZE, in bytes. Default: 256 KiB.
  uint32_t initial_window_size;
  // SETTINGS_MAX_FRAME_SIZE, in bytes. Default: 16 KiB.
  uint32_t max_frame_size;
  // SETTINGS_MAX_HEADER_LIST_SIZE, in bytes. Default: 64 KiB.
  uint32_t max_header_list_size;
  // The receive window of the connection, in bytes. Default: 1 MiB.
  uint32_t connection_window;
  // The size to which receive windows of streams grow, in bytes. Default: 8 MiB.
  uint32_t stream_window_max;
  // The send queue of a stream after which a sender should wait for `WL_H2_EVENT_KIND_WRITABLE`, in bytes. Default: 64 KiB.
  uint32_t stream_queue;
  // 1: window is released as soon as DATA was returned; 0: by `wl_h2_release_capacity`. Default: 1.
  uint8_t auto_release;
  // 1: a server announces SETTINGS_ENABLE_CONNECT_PROTOCOL (RFC 8441). Default: 0.
  uint8_t enable_connect_protocol;
  // 1: a client allows server push. Default: 0. Ignored by servers.
  uint8_t enable_push;
  // 0.
  uint8_t reserved[5];
} wl_h2_config;

// The negotiated parameters of permessage-deflate (RFC 7692 section 7.1).
typedef struct wl_deflate_params {
  // 1: the server compresses each message without reference to earlier ones.
  uint8_t server_no_context_takeover;
  // 1: the client compresses each message without reference to earlier ones.
  uint8_t client_no_context_takeover;
  // The window of the server, 8 to 15.
  uint8_t server_max_window_bits;
  // The window of the client, 8 to 15.
  uint8_t client_max_window_bits;
} wl_deflate_params;

// Compresses the messages of one direction.
typedef struct wl_compressor {
  // The number of the compressor; 0 is none.
  uint64_t id;
} wl_compressor;

// Bytes: an address and a length. It has the layout of `struct iovec`. `data` may be null when `len` is 0.
typedef struct wl_slice {
  // The first byte.
  const uint8_t *data;
  // The number of bytes.
  size_t len;
} wl_slice;

// Decompresses the messages of one direction.
typedef struct wl_decompressor {
  // The number of the decompressor; 0 is none.
  uint64_t id;
} wl_decompressor;

// The header of a frame.
typedef struct wl_frame_header {
  // The length of the payload, in bytes.
  uint64_t payload_len;
  // 0 continuation, 1 text, 2 binary, 8 Close, 9 Ping, 10 Pong.
  uint8_t opcode;
  // 1: the last frame of a message.
  uint8_t fin;
  // The reserved bits: 4 is RSV1, 2 is RSV2, 1 is RSV3.
  uint8_t rsv;
  // 1: the payload is masked with `mask`.
  uint8_t masked;
  // The masking key.
  uint8_t mask[4];
} wl_frame_header;

// One end of an HTTP/2 connection (RFC 9113).
typedef struct wl_h2 {
  // The number of the connection; 0 is none.
  uint64_t id;
} wl_h2;

// A header field.
typedef struct wl_field {
  // The name; in HTTP/2 in lower case, and pseudo-fields begin with ":".
  struct wl_slice name;
  // The value.
  struct wl_slice value;
  // 1: the field is never indexed (RFC 7541 section 7.1.3); otherwise 0.
  uint8_t sensitive;
} wl_field;

// An event. `data` of content is in the caller's input, everything else in the connection: valid until the next call with this
// connection, and as long as the caller does not change the input.
typedef struct wl_h2_event {
  // The fields, pseudo-fields first.
  const struct wl_field *fields;
  // The number of fields.
  size_t fields_len;
  // Content or other bytes.
  const uint8_t *data;
  // The number of bytes.
  size_t len;
  // The round trip of a PING.
  uint64_t round_trip_ns;
  // A `wl_h2_event_kind`.
  uint32_t kind;
  // The stream; 0: the connection.
  uint32_t stream;
  // Another stream.
  uint32_t other;
  // An error code (RFC 9113 section 7).
  uint32_t code;
  // The status of a response.
  uint16_t status;
  // 1: the message ends here.
  uint8_t end_stream;
  // A `wl_h2_request_kind`.
  uint8_t request_kind;
  // Of a reset: 1 if the peer did it.
  uint8_t by_peer;
} wl_h2_event;

// The state of an HTTP/2 connection.
typedef struct wl_h2_state {
  // The memory that the connection uses for the peer, in bytes: also that of the events of the last `wl_h2_handle_input`.
  uint64_t memory_len;
  // The number of streams.
  size_t streams;
  // The number of requests that can be sent now without waiting.
  size_t open_capacity;
  // The error code with which the connection failed or was aborted.
  uint32_t code;
  // A `wl_h2_ended`.
  uint8_t ended;
  // 1: no new streams.
  uint8_t is_going_away;
  // 1: there is output.
  uint8_t wants_write;
  // 0: write output before passing more input.
  uint8_t wants_read;
  // 1: the server allows extended CONNECT (RFC 8441).
  uint8_t has_connect_protocol;
} wl_h2_state;

// The options of a client. Set them with `wl_client_options_default`, then change fields: `host` and `resource` have no default.
typedef struct wl_client_options {
  // `sizeof(wl_client_options)`.
  size_t size;
  // The host, perhaps with a port: the value of `Host`.
  struct wl_slice host;
  // Path and query, such as "/chat".
  struct wl_slice resource;
  // The origin; absent: none, the default.
  struct wl_slice origin;
  // The subprotocols, the preferred one first.
  const struct wl_slice *subprotocols;
  // The number of subprotocols. Default: 0.
  size_t subprotocols_len;
  // More headers.
  const struct wl_field *headers;
  // The number of headers. Default: 0.
  size_t headers_len;
  // Offers permessage-deflate; null: does not, the default.
  const struct wl_deflate_config *deflate;
} wl_client_options;

// The server's handshake: reads a request, and answers it.
typedef struct wl_server_handshake {
  // The number of the handshake; 0 is none.
  uint64_t id;
} wl_server_handshake;

// A WebSocket after its handshake (RFC 6455).
typedef struct wl_ws {
  // The number of the connection; 0 is none.
  uint64_t id;
} wl_ws;

// The client's handshake: has a request, and reads the answer.
typedef struct wl_client_handshake {
  // The number of the handshake; 0 is none.
  uint64_t id;
} wl_client_handshake;

// Decodes the field blocks of one direction of a connection.
typedef struct wl_hpack_decoder {
  // The number of the decoder; 0 is none.
  uint64_t id;
} wl_hpack_decoder;

// Encodes the field blocks of one direction of a connection.
typedef struct wl_hpack_encoder {
  // The number of the encoder; 0 is none.
  uint64_t id;
} wl_hpack_encoder;

// A message of a server, framed once and sent to many connections. It does not change: any number of threads may use it at once, and
// only freeing it meanwhile is `WL_STATUS_BUSY`.
typedef struct wl_prepared {
  // The number of the message; 0 is none.
  uint64_t id;
} wl_prepared;

// Validates a text that arrives in chunks.
typedef struct wl_utf8 {
  // The number of the validator; 0 is none.
  uint64_t id;
} wl_utf8;

// An event. `data` is in the caller's input or in the connection: it is valid as long as the caller does not change the input, and until
// the next call of `wl_ws_handle_input`, `wl_ws_recv_slot`, `wl_ws_recv_slot_filled`, `wl_ws_release_buffers` or `wl_ws_free` with
// this connection. Messages can be sent meanwhile.
typedef struct wl_ws_event {
  // The payload; of a Close frame the reason, which is UTF-8.
  const uint8_t *data;
  // The length of the payload, in bytes.
  size_t len;
  // A `wl_ws_event_kind`.
  uint32_t kind;
  // Of a Close frame: its code; 1005 if it has none (RFC 6455 section 7.1.5).
  uint16_t code;
  // Of a chunk: 1 if it is the first one of its message. 1 for a message.
  uint8_t first;
  // Of a chunk: 1 if it is the last one of its message. 1 for a message.
  uint8_t fin;
} wl_ws_event;

// The state of a WebSocket.
typedef struct wl_ws_state {
  // The bytes that are queued for transmission.
  uint64_t queued_len;
  // The time between the last Ping that was answered and its Pong; 0 before the first.
  uint64_t round_trip_ns;
  // The number of Pings sent, keepalive included.
  uint32_t pings_sent;
  // The newest Ping that was answered, counted from 1.
  uint32_t pings_answered;
  // 1: messages can be sent.
  uint8_t is_open;
  // 1: there is output.
  uint8_t wants_write;
  // 1: the send queue is long; a sender should pause.
  uint8_t is_congested;
  // 1: permessage-deflate was negotiated.
  uint8_t is_compressed;
  // 1: both Close frames were exchanged.
  uint8_t was_clean;
  // 1: the connection is ending or has ended; `wl_ws_end` has the cause.
  uint8_t has_end;
  // A `wl_transport`.
  uint8_t transport;
  // A `wl_role`.
  uint8_t role;
} wl_ws_state;

// How a connection ended. The texts are valid until the next call with the connection.
typedef struct wl_ws_end {
  // The reason of the Close frame.
  struct wl_slice reason;
  // The cause in English.
  struct wl_slice text;
  // A `wl_ws_cause`.
  uint32_t cause;
  // A `wl_initiator`.
  uint32_t by;
  // The code (RFC 6455 section 7.1.5): 1005 without one, 1006 without a Close frame.
  uint16_t code;
} wl_ws_end;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Stores the defaults. `size` is `sizeof(wl_ws_config)`; no more is written.
wl_status wl_ws_config_default(struct wl_ws_config *config, size_t size);

// Stores the defaults. `size` is `sizeof(wl_deflate_config)`; no more is written.
wl_status wl_deflate_config_default(struct wl_deflate_config *config, size_t size);

// Stores the defaults. `size` is `sizeof(wl_handshake_limits)`; no more is written.
wl_status wl_handshake_limits_default(struct wl_handshake_limits *limits, size_t size);

// Stores the defaults. `size` is `sizeof(wl_h2_config)`; no more is written.
wl_status wl_h2_config_default(struct wl_h2_config *config, size_t size);

// A compressor for the end `role` (a `wl_role`). `config` may be null: the defaults.
wl_status wl_compressor_new(uint32_t role,
                            const struct wl_deflate_params *params,
                            const struct wl_deflate_config *config,
                            struct wl_compressor *compressor);

// Compresses a chunk of a message, the last one with `fin` 1. `out` gets the compressed bytes, which are the payload of the next frame
// and are valid until the next call with this compressor.
wl_status wl_compressor_compress(struct wl_compressor compressor,
                                 const uint8_t *chunk,
                                 size_t len,
                                 uint8_t fin,
                                 struct wl_slice *out);

// Frees a compressor. 0 is allowed.
wl_status wl_compressor_free(struct wl_compressor compressor);

// A decompressor for the end `role` (a `wl_role`), which decompresses what the other end sends.
wl_status wl_decompressor_new(uint32_t role, const struct wl_deflate_params *params, struct wl_decompressor *decompressor);

// Decompresses the next bytes of a message into `buffer`. `fin` 1: the message ends with these bytes. `message_len_max`: the longest
// message, in bytes. `consumed` and `produced` get the number of bytes that were read and written.
//
// `WL_STATUS_MORE`: the buffer is full and there is more output; call again with the remaining bytes, which may be none, and the same
// `fin`. `WL_STATUS_PEER_MISBEHAVED`: the bytes are not valid. `WL_STATUS_LIMIT_EXCEEDED`: the message is too long.
wl_status wl_decompressor_decompress(struct wl_decompressor decompressor,
                                     const uint8_t *bytes,
                                     size_t len,
                                     uint8_t fin,
                                     size_t message_len_max,
                                     uint8_t *buffer,
                                     size_t capacity,
                                     size_t *consumed,
                                     size_t *produced);

// Frees a decompressor. 0 is allowed.
wl_status wl_decompressor_free(struct wl_decompressor decompressor);

// Encodes a header. `buffer` has at least `WL_FRAME_HEADER_LEN_MAX` bytes; `len` gets the number that was written.
wl_status wl_frame_header_encode(const struct wl_frame_header *header, uint8_t *buffer, size_t capacity, size_t *len);

// Decodes the header at the front of `bytes`, which were sent by an end with the role `sender` (a `wl_role`). `rsv_allowed`: the
// reserved bits of negotiated extensions, 4 for permessage-deflate. `consumed` gets the length of the header, or 0 if more bytes are
// needed; then `header` is not written. `WL_STATUS_PEER_MISBEHAVED`: the header breaks a rule of RFC 6455 section 5.
wl_status wl_frame_header_decode(const uint8_t *bytes,
                                 size_t len,
                                 uint32_t sender,
                                 uint8_t rsv_allowed,
                                 struct wl_frame_header *header,
                                 size_t *consumed);

// The value of `Sec-WebSocket-Accept` for a `Sec-WebSocket-Key` of 24 bytes (RFC 6455 section 4.2.2): 28 bytes, without a null byte.
wl_status wl_accept_key(const uint8_t (*key)[24],
                        uint8_t (*accept)[28]);

// One end of a new connection: over TLS with ALPN "h2", or with prior knowledge. `role` is a `wl_role`; `config` may be null: the
// defaults.
wl_status wl_h2_new(uint32_t role, const struct wl_h2_config *config, struct wl_h2 *h2);

// Frees a connection. 0 is allowed.
wl_status wl_h2_free(struct wl_h2 h2);

// Handles bytes from the peer; also without any, to get events that a command, a timeout or a GOAWAY caused. `events` gets the events,
// `events_len` their number, and `consumed` the number of bytes that were used up.
//
// `WL_STATUS_MORE`: handle the events, then call again with the remaining bytes, which may be none. `WL_STATUS_OK`: everything was
// handled; if bytes remain, the peer does not read: write output first. `WL_STATUS_PEER_MISBEHAVED` and `WL_STATUS_LIMIT_EXCEEDED`,
// which are returned once: the connection failed after these events; write its output, which has GOAWAY, then close the transport.
wl_status wl_h2_handle_input(struct wl_h2 h2,
                             uint64_t now_ns,
                             const uint8_t *input,
                             size_t len,
                             size_t *consumed,
                             struct wl_h2_event *events,
                             size_t capacity,
                             size_t *events_len);

// The peer has closed its side of the transport.
wl_status wl_h2_handle_eof(struct wl_h2 h2);

// The time is `now_ns`: acts on the deadline of `wl_h2_poll_timeout` if it has passed. Pass the input that has arrived to
// `wl_h2_handle_input` first: the peer is not late if this process is. Errors: the connection has ended.
wl_status wl_h2_handle_timeout(struct wl_h2 h2, uint64_t now_ns);

// Whether the caller reads from the transport: `is_reading` 1, as at first, or 0. While it does not, for example for lack of memory, the
// peer cannot be late: no timeout of the peer runs but that for the output it accepts.
wl_status wl_h2_set_reading(struct wl_h2 h2,
                            uint64_t now_ns,
                            uint8_t is_reading);

// The output to write, in order: `slices` gets at most `capacity` of its slices, `slices_len` their number. They are valid until the
// next call with this connection, and can be written with `writev`. Then call `wl_h2_transmitted`.
wl_status wl_h2_poll_transmit(struct wl_h2 h2,
                              uint64_t now_ns,
                              struct wl_slice *slices,
                              size_t capacity,
                              size_t *slices_len);

// `len` bytes of the output of the last `wl_h2_poll_transmit` were written.
wl_status wl_h2_transmitted(struct wl_h2 h2, uint64_t now_ns, size_t len);

// Moves output into a buffer: `len` gets the number of bytes, 0 when there is none. For transports without `writev`.
wl_status wl_h2_take_output(struct wl_h2 h2, uint64_t now_ns, uint8_t *buffer, size_t capacity, size_t *len);

// The time at which to call `wl_h2_handle_timeout`; `WL_NEVER` if there is none.
wl_status wl_h2_poll_timeout(struct wl_h2 h2, uint64_t *deadline_ns);

// Sends a request, or queues it until the peer allows another stream. `stream` gets its stream. `end_stream` 1: it has no content.
wl_status wl_h2_send_request(struct wl_h2 h2,
                             const struct wl_field *fields,
                             size_t count,
                             uint8_t end_stream,
                             uint32_t *stream);

// Sends the final response. `end_stream` 1: it has no content.
wl_status wl_h2_send_response(struct wl_h2 h2, uint32_t stream, const struct wl_field *fields, size_t count, uint8_t end_stream);

// Sends an interim response.
wl_status wl_h2_send_informational(struct wl_h2 h2, uint32_t stream, const struct wl_field *fields, size_t count);

// Promises the response to a request of the server's choice on the stream of a request. `promised` gets its stream.
wl_status wl_h2_push_promise(struct wl_h2 h2, uint32_t stream, const struct wl_field *fields, size_t count, uint32_t *promised);

// Queues content, which is copied. `end_stream` 1: it is the last.
wl_status wl_h2_send_data(struct wl_h2 h2, uint32_t stream, const uint8_t *data, size_t len, uint8_t end_stream);

// Sends trailers, which end the message.
wl_status wl_h2_send_trailers(struct wl_h2 h2, uint32_t stream, const struct wl_field *fields, size_t count);

// Resets a stream with an error code (RFC 9113 section 7).
wl_status wl_h2_reset(struct wl_h2 h2, uint32_t stream, uint32_t code);

// The room in the send queue of a stream, in bytes. At 0, `WL_H2_EVENT_KIND_WRITABLE` reports when there is room.
wl_status wl_h2_send_capacity(struct wl_h2 h2, uint32_t stream, size_t *capacity);

// The application has used `len` bytes of content: grants the peer as much window. Only without `auto_release`.
wl_status wl_h2_release_capacity(struct wl_h2 h2, uint32_t stream, size_t len);

// Changes the priority of a response (RFC 9218): `urgency` 0 to 7; `incremental` 0 or 1. A client sends it to the server.
wl_status wl_h2_set_priority(struct wl_h2 h2, uint32_t stream, uint8_t urgency, uint8_t incremental);

// Sends a PING with 8 bytes.
wl_status wl_h2_send_ping(struct wl_h2 h2, uint64_t now_ns, const uint8_t (*payload)[8]);

// Ends the connection gracefully: no new streams, those that are open finish.
wl_status wl_h2_shutdown(struct wl_h2 h2);

// Ends the connection at once with an error code, and debug data for the peer.
wl_status wl_h2_abort(struct wl_h2 h2, uint32_t code, const uint8_t *debug_data, size_t len);

// Stores the state.
wl_status wl_h2_get_state(struct wl_h2 h2, struct wl_h2_state *state);

// The reason of the last error that a call with this connection returned, in English: a static text. Absent before the first.
wl_status wl_h2_error(struct wl_h2 h2, struct wl_slice *text);

// Frees the memory that an idle connection does not need.
wl_status wl_h2_release_buffers(struct wl_h2 h2);

// Stores the defaults. `size` is `sizeof(wl_client_options)`; no more is written.
wl_status wl_client_options_default(struct wl_client_options *options, size_t size);

// A handshake that waits for its first byte. `limits` may be null: the defaults.
wl_status wl_server_handshake_new(const struct wl_handshake_limits *limits, struct wl_server_handshake *handshake);

// Handles bytes from the client. `progress` gets a `wl_progress`, and `consumed` the number of bytes that belong to the handshake;
// those behind them belong to the connection. Errors: the request is not a valid handshake; send `wl_server_handshake_refusal`.
wl_status wl_server_handshake_input(struct wl_server_handshake handshake,
                                    const uint8_t *input,
                                    size_t len,
                                    size_t *consumed,
                                    uint32_t *progress);

// A part of the complete request (a `wl_request_part`): valid until the next call with this handshake. An absent part has a null
// pointer.
wl_status wl_server_handshake_request(struct wl_server_handshake handshake, uint32_t part, struct wl_slice *value);

// The value of the first header with this name, in any case: valid until the next call with this handshake. An absent header has a null
// pointer.
wl_status wl_server_handshake_header(struct wl_server_handshake handshake,
                                     struct wl_slice name,
                                     struct wl_slice *value);

// Accepts the request. `buffer` gets the response, `len` its length. `subprotocol` is one that the client offers, or absent;
// `deflate` accepts permessage-deflate if the client offers it, null: does not; `headers` are added. After
// `WL_STATUS_BUFFER_TOO_SMALL` the request still waits: call again with a buffer of `len` bytes.
wl_status wl_server_handshake_accept(struct wl_server_handshake handshake,
                                     struct wl_slice subprotocol,
                                     const struct wl_deflate_config *deflate,
                                     const struct wl_field *headers,
                                     size_t headers_len,
                                     uint8_t *buffer,
                                     size_t capacity,
                                     size_t *len);

// Refuses the request with a status from 200 to 599 and a text as the body. `buffer` gets the response, `len` its length; close the
// connection after it. After `WL_STATUS_BUFFER_TOO_SMALL` the request still waits.
wl_status wl_server_handshake_reject(struct wl_server_handshake handshake,
                                     uint16_t status,
                                     struct wl_slice body,
                                     const struct wl_field *headers,
                                     size_t headers_len,
                                     uint8_t *buffer,
                                     size_t capacity,
                                     size_t *len);

// The response to a request that was not valid. Close the connection after it.
wl_status wl_server_handshake_refusal(struct wl_server_handshake handshake, uint8_t *buffer, size_t capacity, size_t *len);

// Why the request is not valid, in English: valid until the handshake is freed. Absent if it is valid.
wl_status wl_server_handshake_error(struct wl_server_handshake handshake, struct wl_slice *text);

// The connection of an accepted handshake. `config` may be null: the defaults. Once for each handshake; then free it.
wl_status wl_server_handshake_open(struct wl_server_handshake handshake,
                                   const struct wl_ws_config *config,
                                   uint64_t now_ns,
                                   struct wl_ws *ws);

// Frees a handshake. 0 is allowed.
wl_status wl_server_handshake_free(struct wl_server_handshake handshake);

// A handshake with a request. `nonce`: 16 random bytes, new for each handshake. `limits` may be null: the defaults.
wl_status wl_client_handshake_new(const struct wl_client_options *options,
                                  const uint8_t (*nonce)[16],
                                  const struct wl_handshake_limits *limits,
                                  struct wl_client_handshake *handshake);

// The request to write: valid until the handshake is freed.
wl_status wl_client_handshake_request(struct wl_client_handshake handshake, struct wl_slice *request);

// Handles bytes from the server. `progress` gets a `wl_progress`, and `consumed` the number of bytes that belong to the handshake;
// those behind them belong to the connection, or to the body of the refusal. Errors: the response does not answer the handshake; close
// the connection.
wl_status wl_client_handshake_input(struct wl_client_handshake handshake,
                                    const uint8_t *input,
                                    size_t len,
                                    size_t *consumed,
                                    uint32_t *progress);

// The status of the response; 0 before it is complete.
wl_status wl_client_handshake_status(struct wl_client_handshake handshake, uint16_t *status);

// The value of the first header of the response with this name, in any case, `Sec-WebSocket-Protocol` among them: valid until the next
// call with this handshake. An absent header has a null pointer.
wl_status wl_client_handshake_header(struct wl_client_handshake handshake,
                                     struct wl_slice name,
                                     struct wl_slice *value);

// Why the response does not answer the handshake, in English: valid until the handshake is freed. Absent if it does.
wl_status wl_client_handshake_error(struct wl_client_handshake handshake, struct wl_slice *text);

// The connection of a handshake that the server accepted. `config` may be null: the defaults. `seed`: 32 bytes from the source of
// randomness of the operating system, new for each connection (RFC 6455 section 10.3). Once for each handshake; then free it.
wl_status wl_client_handshake_open(struct wl_client_handshake handshake,
                                   const struct wl_ws_config *config,
                                   const uint8_t (*seed)[32],
                                   uint64_t now_ns,
                                   struct wl_ws *ws);

// Frees a handshake. 0 is allowed.
wl_status wl_client_handshake_free(struct wl_client_handshake handshake);

// A decoder. `table_size_max`: SETTINGS_HEADER_TABLE_SIZE of this end, 4,096 by default. `list_size_max` and `fields_max` bound the
// fields of a block: in bytes as RFC 9113 section 6.5.2 counts them, and in number.
wl_status wl_hpack_decoder_new(uint32_t table_size_max,
                               uint32_t list_size_max,
                               size_t fields_max,
                               struct wl_hpack_decoder *decoder);

// Changes SETTINGS_HEADER_TABLE_SIZE, once the peer has acknowledged the setting.
wl_status wl_hpack_decoder_set_table_size_max(struct wl_hpack_decoder decoder, uint32_t table_size_max);

// Decodes a complete block. `fields` gets the fields, and `fields_len` their number. They are valid until the next call with this
// decoder.
//
// `WL_STATUS_BUFFER_TOO_SMALL`: `fields_len` is the number of fields, of which the first `capacity` were stored;
// `wl_hpack_decoder_fields` returns the others. The block was decoded. `WL_STATUS_LIMIT_EXCEEDED`: the block was decoded, but a limit
// was exceeded, and fields are missing; a server answers 431. `WL_STATUS_PEER_MISBEHAVED`: the block is invalid or several times over
// the limit, and was not decoded: a connection error of type COMPRESSION_ERROR. The tables of the two ends may differ from then on, and
// each later call returns the same.
wl_status wl_hpack_decoder_decode(struct wl_hpack_decoder decoder,
                                  const uint8_t *block,
                                  size_t len,
                                  struct wl_field *fields,
                                  size_t capacity,
                                  size_t *fields_len);

// The fields of the last block from `first` on. `fields_len` gets the number that was stored.
wl_status wl_hpack_decoder_fields(struct wl_hpack_decoder decoder,
                                  size_t first,
                                  struct wl_field *fields,
                                  size_t capacity,
                                  size_t *fields_len);

// Frees a decoder. 0 is allowed.
wl_status wl_hpack_decoder_free(struct wl_hpack_decoder decoder);

// An encoder with a table of 4,096 bytes.
wl_status wl_hpack_encoder_new(struct wl_hpack_encoder *encoder);

// The peer's SETTINGS_HEADER_TABLE_SIZE, in bytes.
wl_status wl_hpack_encoder_set_table_size_max(struct wl_hpack_encoder encoder, uint32_t table_size_max);

// Encodes fields. `block` gets the block, which is valid until the next call with this encoder.
wl_status wl_hpack_encoder_encode(struct wl_hpack_encoder encoder,
                                  const struct wl_field *fields,
                                  size_t count,
                                  struct wl_slice *block);

// Frees an encoder. 0 is allowed.
wl_status wl_hpack_encoder_free(struct wl_hpack_encoder encoder);

// Masks or unmasks bytes in place. The key is rotated, so that the next bytes of the same payload can follow.
wl_status wl_mask(uint8_t *data, size_t len, uint8_t (*key)[4]);

// Copies bytes and masks the copy, in one pass. The two must not overlap.
wl_status wl_mask_copy(uint8_t *to, const uint8_t *from, size_t len, uint8_t (*key)[4]);

// Prepares a message. `kind` is a `wl_kind`. The bytes are copied.
wl_status wl_prepared_new(uint32_t kind, const uint8_t *data, size_t len, struct wl_prepared *prepared);

// The same message compressed for connections with this window, which `wl_ws_prepared_window_bits` returns. `config` may be null: the
// defaults.
wl_status wl_prepared_compress(struct wl_prepared prepared,
                               uint8_t bits,
                               const struct wl_deflate_config *config,
                               struct wl_prepared *compressed);

// The frame as bytes, for those who write it themselves: valid until the message is freed.
wl_status wl_prepared_bytes(struct wl_prepared prepared, struct wl_slice *bytes);

// Frees a message; connections that have queued it keep its bytes. 0 is allowed.
wl_status wl_prepared_free(struct wl_prepared prepared);

// The meaning of a status in English: a static string. Any number is allowed.
const char *wl_status_text(int32_t status);

// The version of the library, such as "0.1.0": a static string.
const char *wl_version(void);

// Validates a complete text: `WL_STATUS_OK` or `WL_STATUS_INVALID_UTF8`.
wl_status wl_utf8_validate(const uint8_t *text, size_t len);

// Unmasks a complete text in place and validates it, in one pass.
wl_status wl_utf8_unmask(uint8_t *text, size_t len, const uint8_t (*key)[4]);

// A validator at the start of a text.
wl_status wl_utf8_new(struct wl_utf8 *validator);

// Validates the next chunk. After `WL_STATUS_INVALID_UTF8` the validator is at the start of a text again.
wl_status wl_utf8_push(struct wl_utf8 validator, const uint8_t *chunk, size_t len);

// Ends the text: `WL_STATUS_INVALID_UTF8` if it ends inside a code point. The validator is at the start of a text again.
wl_status wl_utf8_finish(struct wl_utf8 validator);

// Frees a validator. 0 is allowed.
wl_status wl_utf8_free(struct wl_utf8 validator);

// A connection whose handshake was done elsewhere. `role` is a `wl_role`; `params` are the negotiated ones, null without
// permessage-deflate; `config` and `deflate` may be null: the defaults. `seed`, which only a client needs: 32 bytes from the source of
// randomness of the operating system, new for each connection (RFC 6455 section 10.3).
wl_status wl_ws_new(uint32_t role,
                    const struct wl_ws_config *config,
                    const struct wl_deflate_params *params,
                    const struct wl_deflate_config *deflate,
                    const uint8_t (*seed)[32],
                    uint64_t now_ns,
                    struct wl_ws *ws);

// Frees a connection. 0 is allowed.
wl_status wl_ws_free(struct wl_ws ws);

// Handles bytes from the peer. They are unmasked in place, and a message that arrived in one piece is not copied. `events` gets the
// events, `events_len` their number, and `consumed` the number of bytes that were used up.
//
// `WL_STATUS_MORE`: handle the events, then call again with the remaining bytes, which may be none. `WL_STATUS_OK`: everything was
// handled. A Close frame is handled by a call of its own, so that the messages before it can be answered; with a capacity of 1 this
// holds for whatever ends the connection. `WL_STATUS_PEER_MISBEHAVED` and `WL_STATUS_LIMIT_EXCEEDED`, which are returned once: the connection failed after these
// events; write its output, which has the Close frame, and treat the transport as `wl_ws_state` says. Later input is dropped.
wl_status wl_ws_handle_input(struct wl_ws ws,
                             uint64_t now_ns,
                             uint8_t *input,
                             size_t len,
                             size_t *consumed,
                             struct wl_ws_event *events,
                             size_t capacity,
                             size_t *events_len);

// Space for the next bytes of a large message, in the memory in which it is assembled: read into it, then call
// `wl_ws_recv_slot_filled`. `space` and `len` get its address and length, 0 outside of a large message; then read into a buffer of
// your own and call `wl_ws_handle_input`. The space is valid until the next call with this connection.
wl_status wl_ws_recv_slot(struct wl_ws ws,
                          uint8_t **space,
                          size_t *len);

// `len` bytes were read into the front of the space of `wl_ws_recv_slot`. If they complete the message, `event` gets it and
// `events_len` is 1. Errors: as for `wl_ws_handle_input`; `WL_STATUS_INVALID_ARGUMENT` if the space is shorter or there is none.
wl_status wl_ws_recv_slot_filled(struct wl_ws ws, uint64_t now_ns, size_t len, struct wl_ws_event *event, size_t *events_len);

// The reading side of the transport has ended.
wl_status wl_ws_handle_eof(struct wl_ws ws);

// Bytes of the peer have arrived, which are kept for later because the application has not taken an event yet: the peer is alive.
// `wl_ws_handle_input` and `wl_ws_recv_slot_filled` do this themselves.
wl_status wl_ws_handle_activity(struct wl_ws ws, uint64_t now_ns);

// Writing to the transport failed: nothing more can be sent.
wl_status wl_ws_handle_write_failed(struct wl_ws ws, uint64_t now_ns);

// The time is `now_ns`: acts on the deadline of `wl_ws_poll_timeout` if it has passed. Pass the input that has arrived to
// `wl_ws_handle_input` first: the peer is not late if this process is.
wl_status wl_ws_handle_timeout(struct wl_ws ws, uint64_t now_ns);

// Queues a message. `kind` is a `wl_kind`; text must be valid UTF-8. The bytes are copied or compressed during the call. `flags` is 0
// or `WL_SEND_UNCOMPRESSED`.
wl_status wl_ws_send(struct wl_ws ws,
                     uint32_t kind,
                     const uint8_t *data,
                     size_t len,
                     uint32_t flags);

// Queues a chunk of a message as a frame of its own; the last one has `fin` 1. Each chunk of a text is valid UTF-8. Between the chunks
// only control frames can be sent.
wl_status wl_ws_send_chunk(struct wl_ws ws,
                           uint32_t kind,
                           const uint8_t *data,
                           size_t len,
                           uint8_t fin);

// Queues a prepared message, without a copy. `WL_STATUS_NOT_ALLOWED`: this end is a client, or the message is compressed for others.
wl_status wl_ws_send_prepared(struct wl_ws ws,
                              struct wl_prepared prepared);

// The window for which a prepared message of `len` bytes should be compressed for this connection; 0: it should not be compressed.
wl_status wl_ws_prepared_window_bits(struct wl_ws ws,
                                     size_t len,
                                     uint8_t *bits);

// Queues a Ping with a payload of at most 125 bytes.
wl_status wl_ws_send_ping(struct wl_ws ws, uint64_t now_ns, const uint8_t *payload, size_t len);

// Queues an unsolicited Pong with a payload of at most 125 bytes. Pings are answered without it.
wl_status wl_ws_send_pong(struct wl_ws ws, const uint8_t *payload, size_t len);

// Begins the closing handshake. `code` 0: a Close frame without a code and reason. The reason is UTF-8 of at most 123 bytes.
wl_status wl_ws_close(struct wl_ws ws, uint64_t now_ns, uint16_t code, const uint8_t *reason, size_t len);

// The output to write, in order: `slices` gets at most `capacity` of its slices, `slices_len` their number. They are valid until the
// next call with this connection, and can be written with `writev`. Then call `wl_ws_transmitted`.
wl_status wl_ws_poll_transmit(struct wl_ws ws,
                              struct wl_slice *slices,
                              size_t capacity,
                              size_t *slices_len);

// `len` bytes of the output were written.
wl_status wl_ws_transmitted(struct wl_ws ws, size_t len);

// Moves output into a buffer: `len` gets the number of bytes, 0 when there is none. For transports without `writev`.
wl_status wl_ws_take_output(struct wl_ws ws, uint8_t *buffer, size_t capacity, size_t *len);

// The time at which to call `wl_ws_handle_timeout`; `WL_NEVER` if there is none.
wl_status wl_ws_poll_timeout(struct wl_ws ws, uint64_t *deadline_ns);

// Stores the state.
wl_status wl_ws_get_state(struct wl_ws ws, struct wl_ws_state *state);

// Stores how the connection ended.
wl_status wl_ws_get_end(struct wl_ws ws, struct wl_ws_end *end);

// Frees the memory that an idle connection does not need.
wl_status wl_ws_release_buffers(struct wl_ws ws);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* WIRELOOM_H */

/* A string of C as a slice; absent for a null pointer. */
static inline wl_slice wl_str(const char *text) {
    wl_slice slice = {(const uint8_t *)text, text ? strlen(text) : 0};
    return slice;
}
