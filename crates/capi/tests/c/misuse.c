/* Everything that a program can do wrong, as far as the library can see it, is an error code. Runs under sanitizers and valgrind. */
#include <wireloom.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                                          \
    do {                                                                                                          \
        if (!(condition)) {                                                                                       \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                                       \
            abort();                                                                                              \
        }                                                                                                         \
    } while (0)
#define NULL_POINTER(call) CHECK((call) == WL_STATUS_NULL_POINTER)
#define INVALID(call) CHECK((call) == WL_STATUS_INVALID_ARGUMENT)
#define NO_HANDLE(call) CHECK((call) == WL_STATUS_INVALID_HANDLE)

static const uint8_t seed[32] = {1};
static wl_ws_event events[8];
static size_t consumed, count;

static wl_ws server(void) {
    wl_ws ws;
    CHECK(wl_ws_new(WL_ROLE_SERVER, NULL, NULL, NULL, NULL, 0, &ws) == WL_STATUS_OK);
    return ws;
}

static void null_pointers(void) {
    wl_ws ws = server();
    uint8_t bytes[16] = {0};
    uint8_t key[4] = {0};
    NULL_POINTER(wl_ws_new(WL_ROLE_SERVER, NULL, NULL, NULL, NULL, 0, NULL));
    NULL_POINTER(wl_ws_new(WL_ROLE_CLIENT, NULL, NULL, NULL, NULL, 0, &ws)); /* a client needs a seed */
    NULL_POINTER(wl_ws_handle_input(ws, 0, NULL, 1, &consumed, events, 8, &count));
    NULL_POINTER(wl_ws_handle_input(ws, 0, bytes, 1, NULL, events, 8, &count));
    NULL_POINTER(wl_ws_handle_input(ws, 0, bytes, 1, &consumed, NULL, 8, &count));
    NULL_POINTER(wl_ws_handle_input(ws, 0, bytes, 1, &consumed, events, 8, NULL));
    NULL_POINTER(wl_ws_recv_slot(ws, NULL, &count));
    NULL_POINTER(wl_ws_recv_slot_filled(ws, 0, 0, NULL, &count));
    NULL_POINTER(wl_ws_send(ws, WL_KIND_BINARY, NULL, 1, 0));
    NULL_POINTER(wl_ws_send_chunk(ws, WL_KIND_BINARY, NULL, 1, 1));
    NULL_POINTER(wl_ws_send_ping(ws, 0, NULL, 1));
    NULL_POINTER(wl_ws_send_pong(ws, NULL, 1));
    NULL_POINTER(wl_ws_close(ws, 0, 1000, NULL, 1));
    NULL_POINTER(wl_ws_poll_transmit(ws, NULL, 1, &count));
    NULL_POINTER(wl_ws_take_output(ws, NULL, 1, &count));
    NULL_POINTER(wl_ws_poll_timeout(ws, NULL));
    NULL_POINTER(wl_ws_get_state(ws, NULL));
    NULL_POINTER(wl_ws_get_end(ws, NULL));
    NULL_POINTER(wl_ws_prepared_window_bits(ws, 1, NULL));
    NULL_POINTER(wl_ws_config_default(NULL, sizeof(wl_ws_config)));
    NULL_POINTER(wl_deflate_config_default(NULL, sizeof(wl_deflate_config)));
    NULL_POINTER(wl_h2_config_default(NULL, sizeof(wl_h2_config)));
    NULL_POINTER(wl_handshake_limits_default(NULL, sizeof(wl_handshake_limits)));
    NULL_POINTER(wl_client_options_default(NULL, sizeof(wl_client_options)));
    NULL_POINTER(wl_mask(NULL, 1, &key));
    NULL_POINTER(wl_mask(bytes, 1, NULL));
    NULL_POINTER(wl_mask_copy(NULL, bytes, 1, &key));
    NULL_POINTER(wl_utf8_validate(NULL, 1));
    NULL_POINTER(wl_utf8_new(NULL));
    NULL_POINTER(wl_accept_key(NULL, NULL));
    NULL_POINTER(wl_frame_header_encode(NULL, bytes, 16, &count));
    NULL_POINTER(wl_frame_header_decode(bytes, 2, 0, 0, NULL, &count));
    NULL_POINTER(wl_prepared_new(WL_KIND_TEXT, NULL, 1, NULL));
    NULL_POINTER(wl_hpack_decoder_new(4096, 65536, 100, NULL));
    NULL_POINTER(wl_hpack_encoder_new(NULL));
    NULL_POINTER(wl_h2_new(WL_ROLE_CLIENT, NULL, NULL));
    NULL_POINTER(wl_server_handshake_new(NULL, NULL));
    NULL_POINTER(wl_client_handshake_new(NULL, (const uint8_t(*)[16])seed, NULL, NULL));
    wl_client_options nothing;
    CHECK(wl_client_options_default(&nothing, sizeof nothing) == WL_STATUS_OK);
    wl_client_handshake handshake;
    NULL_POINTER(wl_client_handshake_new(&nothing, (const uint8_t(*)[16])seed, NULL, &handshake));
    /* Null is an empty buffer where the length is 0. */
    CHECK(wl_ws_handle_input(ws, 0, NULL, 0, &consumed, events, 8, &count) == WL_STATUS_OK && count == 0);
    CHECK(wl_ws_send(ws, WL_KIND_TEXT, NULL, 0, 0) == WL_STATUS_OK);
    CHECK(wl_utf8_validate(NULL, 0) == WL_STATUS_OK);
    CHECK(wl_ws_poll_transmit(ws, NULL, 0, &count) == WL_STATUS_OK && count == 0);
    CHECK(wl_ws_free(ws) == WL_STATUS_OK);
}

static void handles(void) {
    wl_ws ws = server(), zero = {0}, guess = {42}, full = {UINT64_MAX};
    uint64_t deadline;
    CHECK(wl_ws_free(zero) == WL_STATUS_OK);
    NO_HANDLE(wl_ws_free(guess));
    NO_HANDLE(wl_ws_free(full));
    NO_HANDLE(wl_ws_poll_timeout(zero, &deadline));
    /* Another type, through a cast that the structures prevent otherwise. */
    NO_HANDLE(wl_h2_handle_eof((wl_h2){ws.id}));
    NO_HANDLE(wl_prepared_free((wl_prepared){ws.id}));
    NO_HANDLE(wl_ws_send_prepared(ws, (wl_prepared){ws.id}));
    CHECK(wl_ws_free(ws) == WL_STATUS_OK);
    NO_HANDLE(wl_ws_free(ws));
    NO_HANDLE(wl_ws_handle_eof(ws));
    NO_HANDLE(wl_ws_send(ws, WL_KIND_TEXT, NULL, 0, 0));
    NO_HANDLE(wl_ws_handle_input(ws, 0, NULL, 0, &consumed, events, 8, &count));
    /* The slot is used again, the old number stays invalid. */
    wl_ws next = server();
    CHECK(next.id != ws.id);
    NO_HANDLE(wl_ws_handle_eof(ws));
    CHECK(wl_ws_free(next) == WL_STATUS_OK);
    /* A prepared message outlives its handle in the queues of connections. */
    ws = server();
    wl_prepared prepared;
    wl_slice bytes;
    CHECK(wl_prepared_new(WL_KIND_TEXT, (const uint8_t *)"hello", 5, &prepared) == WL_STATUS_OK);
    CHECK(wl_prepared_bytes(prepared, &bytes) == WL_STATUS_OK && bytes.len == 7);
    CHECK(wl_ws_send_prepared(ws, prepared) == WL_STATUS_OK);
    CHECK(wl_prepared_free(prepared) == WL_STATUS_OK);
    NO_HANDLE(wl_prepared_free(prepared));
    uint8_t output[16];
    CHECK(wl_ws_take_output(ws, output, sizeof output, &count) == WL_STATUS_OK);
    CHECK(count == 7 && memcmp(output, "\x81\x05hello", 7) == 0);
    CHECK(wl_ws_free(ws) == WL_STATUS_OK);
}

static void lengths_and_ranges(void) {
    wl_ws ws = server();
    uint8_t bytes[64] = {0};
    uint8_t key[4] = {1, 2, 3, 4};
    wl_slice slices[2];
    INVALID(wl_ws_handle_input(ws, 0, bytes, SIZE_MAX, &consumed, events, 8, &count));
    INVALID(wl_ws_handle_input(ws, 0, bytes, 1, &consumed, events, SIZE_MAX / 2, &count));
    INVALID(wl_ws_send(ws, WL_KIND_BINARY, bytes, SIZE_MAX / 2 + 1, 0));
    INVALID(wl_ws_send(ws, WL_KIND_BINARY, bytes, SIZE_MAX, 0));
    INVALID(wl_mask(bytes, SIZE_MAX, &key));
    INVALID(wl_utf8_validate(bytes, SIZE_MAX));
    INVALID(wl_ws_take_output(ws, bytes, SIZE_MAX, &count));
    INVALID(wl_ws_poll_transmit(ws, slices, SIZE_MAX, &count));
    INVALID(wl_ws_send(ws, 0, bytes, 1, 0));
    INVALID(wl_ws_send(ws, 3, bytes, 1, 0));
    INVALID(wl_ws_send(ws, WL_KIND_TEXT, bytes, 1, 2));
    INVALID(wl_ws_send_chunk(ws, WL_KIND_TEXT, bytes, 1, 2));
    INVALID(wl_ws_send_ping(ws, 0, bytes, 126 <= sizeof bytes ? 126 : 64) == WL_STATUS_OK ? WL_STATUS_INVALID_ARGUMENT
                                                                                         : WL_STATUS_OK);
    INVALID(wl_ws_close(ws, 0, 999, bytes, 0));
    INVALID(wl_ws_close(ws, 0, 1006, bytes, 0));
    INVALID(wl_ws_close(ws, 0, 0, (const uint8_t *)"no code", 7));
    INVALID(wl_ws_transmitted(ws, 1000));
    INVALID(wl_ws_recv_slot_filled(ws, 0, 1, events, &count));
    INVALID(wl_ws_new(2, NULL, NULL, NULL, NULL, 0, &ws));
    CHECK(wl_ws_send(ws, WL_KIND_TEXT, (const uint8_t *)"\xff", 1, 0) == WL_STATUS_INVALID_UTF8);
    CHECK(wl_ws_close(ws, 0, 1000, (const uint8_t *)"\xff", 1) == WL_STATUS_INVALID_UTF8);
    CHECK(wl_ws_handle_input(ws, 0, bytes, 1, &consumed, events, 0, &count) == WL_STATUS_BUFFER_TOO_SMALL);
    /* Configurations: a size that is too small, too large, and of an older header. */
    wl_ws_config config;
    wl_ws other;
    CHECK(wl_ws_config_default(&config, sizeof config) == WL_STATUS_OK && config.size == sizeof config);
    config.size = 4;
    INVALID(wl_ws_new(WL_ROLE_SERVER, &config, NULL, NULL, NULL, 0, &other));
    config.size = sizeof config + 8;
    INVALID(wl_ws_new(WL_ROLE_SERVER, &config, NULL, NULL, NULL, 0, &other));
    size_t only_size = sizeof(size_t);
    CHECK(wl_ws_new(WL_ROLE_SERVER, (const wl_ws_config *)&only_size, NULL, NULL, NULL, 0, &other) == WL_STATUS_OK);
    CHECK(wl_ws_free(other) == WL_STATUS_OK);
    CHECK(wl_ws_config_default(&config, sizeof config) == WL_STATUS_OK);
    config.ping_after_ns = 2, config.dead_after_ns = 1;
    INVALID(wl_ws_new(WL_ROLE_SERVER, &config, NULL, NULL, NULL, 0, &other));
    wl_deflate_params params = {0, 0, 7, 15};
    INVALID(wl_ws_new(WL_ROLE_SERVER, NULL, &params, NULL, NULL, 0, &other));
    params = (wl_deflate_params){2, 0, 15, 15};
    INVALID(wl_ws_new(WL_ROLE_SERVER, NULL, &params, NULL, NULL, 0, &other));
    wl_deflate_config deflate;
    wl_compressor compressor;
    params = (wl_deflate_params){0, 0, 15, 15};
    for (int level = 0; level < 256; level++) {
        for (int is_memory = 0; is_memory < 2; is_memory++) {
            CHECK(wl_deflate_config_default(&deflate, sizeof deflate) == WL_STATUS_OK);
            *(is_memory ? &deflate.mem_level : &deflate.level) = (uint8_t)level;
            bool is_valid = is_memory <= level && level <= 9;
            CHECK(wl_compressor_new(WL_ROLE_SERVER, &params, &deflate, &compressor) == (is_valid ? WL_STATUS_OK : WL_STATUS_INVALID_ARGUMENT));
            if (is_valid)
                CHECK(wl_compressor_free(compressor) == WL_STATUS_OK);
        }
    }
    wl_h2_config settings;
    wl_h2 h2;
    CHECK(wl_h2_config_default(&settings, sizeof settings) == WL_STATUS_OK);
    settings.max_frame_size = 1;
    INVALID(wl_h2_new(WL_ROLE_CLIENT, &settings, &h2));
    INVALID(wl_h2_new(7, NULL, &h2));
    wl_frame_header header = {.opcode = 3};
    INVALID(wl_frame_header_encode(&header, bytes, 64, &count));
    header = (wl_frame_header){.opcode = 9, .fin = 0};
    INVALID(wl_frame_header_encode(&header, bytes, 64, &count));
    header = (wl_frame_header){.opcode = 1, .fin = 1, .payload_len = UINT64_MAX};
    INVALID(wl_frame_header_encode(&header, bytes, 64, &count));
    header = (wl_frame_header){.opcode = 1, .fin = 1, .payload_len = 70000};
    CHECK(wl_frame_header_encode(&header, bytes, 3, &count) == WL_STATUS_BUFFER_TOO_SMALL && count == 10);
    CHECK(wl_status_text(12345) != NULL && wl_status_text(-2) != NULL && wl_version() != NULL);
    CHECK(wl_ws_free(ws) == WL_STATUS_OK);
}

/* An application that was built with a header whose structures were shorter, or longer. */
#define OTHER_SIZES(type, create)                                                                                 \
    do {                                                                                                          \
        union {                                                                                                   \
            type config;                                                                                          \
            uint8_t bytes[sizeof(type) + 16];                                                                     \
        } memory;                                                                                                 \
        for (size_t size = 0; size <= sizeof memory; size++) {                                                    \
            memset(&memory, 0xa5, sizeof memory);                                                                 \
            wl_status status = type##_default(&memory.config, size);                                              \
            bool is_known = size >= sizeof(size_t) && size <= sizeof(type);                                       \
            CHECK(status == (is_known ? WL_STATUS_OK : WL_STATUS_INVALID_ARGUMENT));                              \
            for (size_t at = is_known ? size : 0; at < sizeof memory; at++)                                       \
                CHECK(memory.bytes[at] == 0xa5);                                                                  \
            CHECK(!is_known || memory.config.size == size);                                                       \
            if (is_known)                                                                                         \
                create;                                                                                           \
        }                                                                                                         \
        INVALID(type##_default((type *)(memory.bytes + 1), sizeof(type)));                                        \
    } while (0)

static void other_sizes(void) {
    static const uint8_t nonce[16];
    wl_server_handshake server_handshake;
    wl_client_handshake client_handshake;
    wl_ws ws;
    wl_h2 h2;
    wl_compressor compressor;
    wl_deflate_params params = {0, 0, 15, 15};
    OTHER_SIZES(wl_ws_config, {
        CHECK(wl_ws_new(WL_ROLE_SERVER, &memory.config, NULL, NULL, NULL, 0, &ws) == WL_STATUS_OK);
        CHECK(wl_ws_free(ws) == WL_STATUS_OK);
    });
    OTHER_SIZES(wl_handshake_limits, {
        CHECK(wl_server_handshake_new(&memory.config, &server_handshake) == WL_STATUS_OK);
        CHECK(wl_server_handshake_free(server_handshake) == WL_STATUS_OK);
    });
    OTHER_SIZES(wl_client_options, {
        bool has_target = size >= offsetof(wl_client_options, origin);
        if (has_target) {
            memory.config.host = wl_str("h");
            memory.config.resource = wl_str("/");
        }
        status = wl_client_handshake_new(&memory.config, &nonce, NULL, &client_handshake);
        CHECK(status == (has_target ? WL_STATUS_OK : WL_STATUS_NULL_POINTER));
        if (has_target)
            CHECK(wl_client_handshake_free(client_handshake) == WL_STATUS_OK);
    });
    OTHER_SIZES(wl_deflate_config, {
        CHECK(wl_compressor_new(WL_ROLE_CLIENT, &params, &memory.config, &compressor) == WL_STATUS_OK);
        CHECK(wl_compressor_free(compressor) == WL_STATUS_OK);
    });
    OTHER_SIZES(wl_h2_config, {
        CHECK(wl_h2_new(WL_ROLE_CLIENT, &memory.config, &h2) == WL_STATUS_OK);
        CHECK(wl_h2_free(h2) == WL_STATUS_OK);
    });
}

static void alignment_and_overlap(void) {
    wl_ws ws = server();
    union {
        wl_ws_event events[4];
        size_t lens[16];
        uint8_t bytes[256];
    } memory = {0};
    wl_ws_event *misaligned = (wl_ws_event *)(memory.bytes + 1);
    INVALID(wl_ws_handle_input(ws, 0, NULL, 0, &consumed, misaligned, 1, &count));
    INVALID(wl_ws_handle_input(ws, 0, NULL, 0, (size_t *)(memory.bytes + 1), events, 1, &count));
    INVALID(wl_ws_handle_input(ws, 0, memory.bytes, 64, &consumed, memory.events, 1, &count));
    INVALID(wl_ws_handle_input(ws, 0, memory.bytes, 64, &memory.lens[1], events, 1, &count));
    INVALID(wl_ws_handle_input(ws, 0, NULL, 0, &count, events, 1, &count));
    INVALID(wl_ws_handle_input(ws, 0, NULL, 0, &memory.lens[0], memory.events, 1, &count));
    uint8_t(*key)[4] = (uint8_t(*)[4])(memory.bytes + 8);
    INVALID(wl_mask(memory.bytes, 16, key));
    uint8_t separate[4] = {0};
    INVALID(wl_mask_copy(memory.bytes + 4, memory.bytes, 16, &separate));
    CHECK(wl_mask_copy(memory.bytes + 16, memory.bytes, 16, &separate) == WL_STATUS_OK);
    INVALID(wl_ws_take_output(ws, memory.bytes, 64, &memory.lens[2]));
    wl_hpack_decoder decoder;
    CHECK(wl_hpack_decoder_new(4096, 65536, 100, &decoder) == WL_STATUS_OK);
    wl_field fields[2];
    INVALID(wl_hpack_decoder_decode(decoder, (const uint8_t *)fields, 16, fields, 2, &count));
    CHECK(wl_hpack_decoder_free(decoder) == WL_STATUS_OK);
    CHECK(wl_ws_free(ws) == WL_STATUS_OK);

    wl_h2 h2;
    CHECK(wl_h2_new(WL_ROLE_CLIENT, NULL, &h2) == WL_STATUS_OK);
    wl_field request[2] = {{wl_str(":method"), wl_str("GET"), 0}, {wl_str(":path"), wl_str("/"), 0}};
    INVALID(wl_h2_send_request(h2, request, 2, 1, (uint32_t *)&request[1].sensitive));
    INVALID(wl_h2_push_promise(h2, 1, request, 2, (uint32_t *)&request[0].value.len));
    union {
        char text[8];
        uint32_t stream;
        wl_slice block;
    } path = {"/"};
    request[1].value = wl_str(path.text);
    INVALID(wl_h2_send_request(h2, request, 2, 1, &path.stream));
    INVALID(wl_h2_push_promise(h2, 1, request, 2, &path.stream));
    CHECK(wl_h2_free(h2) == WL_STATUS_OK);
    wl_hpack_encoder encoder;
    CHECK(wl_hpack_encoder_new(&encoder) == WL_STATUS_OK);
    INVALID(wl_hpack_encoder_encode(encoder, request, 2, (wl_slice *)request));
    INVALID(wl_hpack_encoder_encode(encoder, request, 2, &path.block));
    CHECK(wl_hpack_encoder_free(encoder) == WL_STATUS_OK);
    wl_slice name = {(const uint8_t *)&name, sizeof name};
    wl_server_handshake handshake;
    CHECK(wl_server_handshake_new(NULL, &handshake) == WL_STATUS_OK);
    INVALID(wl_server_handshake_header(handshake, name, &name));
    CHECK(wl_server_handshake_free(handshake) == WL_STATUS_OK);
}

/* What the peer does wrong arrives behind the events before it, once. */
static void peer(void) {
    wl_ws ws = server();
    uint8_t input[] = {0x81, 0x81, 0, 0, 0, 0, 'a', 0x83, 0x80};
    CHECK(wl_ws_handle_input(ws, 0, input, sizeof input, &consumed, events, 8, &count) == WL_STATUS_PEER_MISBEHAVED);
    CHECK(count == 1 && consumed == sizeof input && events[0].kind == WL_WS_EVENT_KIND_TEXT && events[0].data[0] == 'a');
    wl_ws_end end;
    CHECK(wl_ws_get_end(ws, &end) == WL_STATUS_OK);
    CHECK(end.code == 1002 && end.cause == WL_WS_CAUSE_PEER_MISBEHAVED && end.text.len > 0);
    CHECK(wl_ws_handle_input(ws, 0, input, sizeof input, &consumed, events, 8, &count) == WL_STATUS_OK);
    CHECK(count == 0 && consumed == sizeof input);
    CHECK(wl_ws_send(ws, WL_KIND_TEXT, NULL, 0, 0) == WL_STATUS_NOT_OPEN);
    CHECK(wl_ws_free(ws) == WL_STATUS_OK);

    /* Events that are ignored: one slot, more messages than slots. */
    ws = server();
    uint8_t many[7 * 50];
    for (size_t i = 0; i < sizeof many; i += 7)
        memcpy(many + i, "\x82\x81\0\0\0\0x", 7);
    size_t at = 0, rounds = 0;
    wl_status status;
    do {
        status = wl_ws_handle_input(ws, 0, many + at, sizeof many - at, &consumed, events, 1, &count);
        at += consumed;
        rounds++;
    } while (status == WL_STATUS_MORE);
    CHECK(status == WL_STATUS_OK && at == sizeof many && rounds == 51);

    /* A message in front of a Close frame can be answered. */
    uint8_t closing[] = {0x81, 0x81, 0, 0, 0, 0, 'a', 0x88, 0x82, 0, 0, 0, 0, 3, 232};
    wl_ws other = server();
    status = wl_ws_handle_input(other, 0, closing, sizeof closing, &consumed, events, 8, &count);
    CHECK(status == WL_STATUS_MORE && count == 1 && consumed == 7);
    CHECK(wl_ws_send(other, WL_KIND_TEXT, events[0].data, events[0].len, 0) == WL_STATUS_OK);
    status = wl_ws_handle_input(other, 0, closing + 7, sizeof closing - 7, &consumed, events, 8, &count);
    CHECK(count == 1 && events[0].kind == WL_WS_EVENT_KIND_CLOSE && events[0].code == 1000);
    CHECK(wl_ws_free(other) == WL_STATUS_OK);

    /* A message in fragments is in the connection, and the next event does not overwrite it. */
    uint8_t fragments[] = {0x01, 0x81, 0, 0, 0, 0, 'a', 0x80, 0x81, 0, 0, 0, 0, 'b', 0x01, 0x81, 0, 0, 0, 0, 'c', 0x80, 0x81, 0, 0, 0, 0, 'd'};
    status = wl_ws_handle_input(ws, 0, fragments, sizeof fragments, &consumed, events, 8, &count);
    CHECK(status == WL_STATUS_MORE && count == 1 && events[0].len == 2 && memcmp(events[0].data, "ab", 2) == 0);
    at = consumed;
    status = wl_ws_handle_input(ws, 0, fragments + at, sizeof fragments - at, &consumed, events, 8, &count);
    CHECK(status == WL_STATUS_MORE && count == 1 && memcmp(events[0].data, "cd", 2) == 0);
    status = wl_ws_handle_input(ws, 0, NULL, 0, &consumed, events, 8, &count);
    CHECK(status == WL_STATUS_OK && count == 0);
    CHECK(wl_ws_free(ws) == WL_STATUS_OK);
}

/* The response, or its length, over what it is made of. Parts of that may overlap: here each is the text "y". */
static void overlapping_responses(wl_server_handshake handshake) {
    union {
        uint8_t bytes[512];
        size_t len;
        wl_field fields[2];
    } memory = {"y"};
    uint8_t response[512];
    wl_slice text = wl_str((const char *)memory.bytes), other = wl_str("y");
    wl_field headers[3] = {{other, other, 0}, {text, other, 0}, {other, text, 0}};
    for (int at = 0; at < 4; at++) {
        wl_slice value = at == 0 ? text : other;
        const wl_field *fields = at == 0 ? NULL : headers;
        size_t len = (size_t)at;
        for (int is_length = 0; is_length < 2 && at != 1; is_length++) {
            uint8_t *buffer = is_length ? response : memory.bytes;
            size_t *to = is_length ? &memory.len : &count;
            INVALID(wl_server_handshake_accept(handshake, value, NULL, fields, len, buffer, 512, to));
            INVALID(wl_server_handshake_reject(handshake, 403, value, fields, len, buffer, 512, to));
            CHECK(strcmp((const char *)memory.bytes, "y") == 0);
        }
    }
    memory.fields[1] = headers[0];
    INVALID(wl_server_handshake_accept(handshake, other, NULL, memory.fields + 1, 1, memory.bytes, 512, &count));
    INVALID(wl_server_handshake_reject(handshake, 403, other, memory.fields + 1, 1, memory.bytes, 512, &count));
    CHECK(wl_server_handshake_accept(handshake, text, NULL, headers, 3, response, 0, &count) == WL_STATUS_BUFFER_TOO_SMALL);
}

static void server_handshake(void) {
    wl_server_handshake handshake;
    uint8_t response[512];
    wl_slice value;
    wl_ws ws;
    uint32_t progress;
    CHECK(wl_server_handshake_new(NULL, &handshake) == WL_STATUS_OK);
    CHECK(wl_server_handshake_accept(handshake, wl_str(NULL), NULL, NULL, 0, response, 512, &count) == WL_STATUS_WRONG_STATE);
    CHECK(wl_server_handshake_open(handshake, NULL, 0, &ws) == WL_STATUS_WRONG_STATE);
    CHECK(wl_server_handshake_refusal(handshake, response, 512, &count) == WL_STATUS_WRONG_STATE);
    CHECK(wl_server_handshake_request(handshake, WL_REQUEST_PART_HOST, &value) == WL_STATUS_WRONG_STATE);
    static const char request[] = "GET /a?b HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                                  "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
                                  "Sec-WebSocket-Protocol: x, y\r\n\r\nrest";
    CHECK(wl_server_handshake_input(handshake, (const uint8_t *)request, sizeof request - 1, &consumed, &progress) == WL_STATUS_OK);
    CHECK(progress == WL_PROGRESS_COMPLETE && consumed == sizeof request - 5);
    CHECK(wl_server_handshake_input(handshake, (const uint8_t *)request, 1, &consumed, &progress) == WL_STATUS_WRONG_STATE);
    CHECK(wl_server_handshake_request(handshake, WL_REQUEST_PART_RESOURCE, &value) == WL_STATUS_OK && value.len == 4);
    CHECK(wl_server_handshake_request(handshake, WL_REQUEST_PART_ORIGIN, &value) == WL_STATUS_OK && value.data == NULL);
    CHECK(wl_server_handshake_request(handshake, WL_REQUEST_PART_SUBPROTOCOLS, &value) == WL_STATUS_OK && value.len == 4);
    INVALID(wl_server_handshake_request(handshake, 99, &value));
    CHECK(wl_server_handshake_header(handshake, wl_str("UPGRADE"), &value) == WL_STATUS_OK && value.len == 9);
    CHECK(wl_server_handshake_header(handshake, wl_str("x"), &value) == WL_STATUS_OK && value.data == NULL);
    INVALID(wl_server_handshake_accept(handshake, wl_str("z"), NULL, NULL, 0, response, 512, &count));
    wl_field bad = {wl_str("A"), wl_str("b\r\nc: d"), 0};
    INVALID(wl_server_handshake_accept(handshake, wl_str("y"), NULL, &bad, 1, response, 512, &count));
    overlapping_responses(handshake);
    CHECK(wl_server_handshake_accept(handshake, wl_str("y"), NULL, NULL, 0, response, 10, &count) == WL_STATUS_BUFFER_TOO_SMALL);
    CHECK(count > 10 && count < 512);
    CHECK(wl_server_handshake_accept(handshake, wl_str("y"), NULL, NULL, 0, response, count, &count) == WL_STATUS_OK);
    /* A program with an older header may have its connection directly behind a shorter configuration. */
    union {
        wl_ws_config config;
        struct {
            uint8_t config[sizeof(wl_ws_config) - sizeof(wl_ws)];
            wl_ws ws;
        } older;
    } memory;
    CHECK(wl_ws_config_default(&memory.config, sizeof memory.older.config) == WL_STATUS_OK);
    CHECK(wl_server_handshake_open(handshake, &memory.config, 0, &memory.older.ws) == WL_STATUS_OK);
    CHECK(wl_server_handshake_open(handshake, NULL, 0, &ws) == WL_STATUS_WRONG_STATE);
    CHECK(wl_ws_free(memory.older.ws) == WL_STATUS_OK);
    CHECK(wl_server_handshake_free(handshake) == WL_STATUS_OK);

    CHECK(wl_server_handshake_new(NULL, &handshake) == WL_STATUS_OK);
    CHECK(wl_server_handshake_input(handshake, (const uint8_t *)"POST / HTTP/1.1\r\n\r\n", 19, &consumed, &progress) == WL_STATUS_PEER_MISBEHAVED);
    CHECK(wl_server_handshake_error(handshake, &value) == WL_STATUS_OK && value.len > 0);
    CHECK(wl_server_handshake_refusal(handshake, response, 512, &count) == WL_STATUS_OK && memcmp(response, "HTTP/1.1 405", 12) == 0);
    CHECK(wl_server_handshake_free(handshake) == WL_STATUS_OK);
}

static void http2(void) {
    wl_h2 client, server;
    CHECK(wl_h2_new(WL_ROLE_CLIENT, NULL, &client) == WL_STATUS_OK);
    CHECK(wl_h2_new(WL_ROLE_SERVER, NULL, &server) == WL_STATUS_OK);
    uint32_t stream;
    wl_field fields[] = {{wl_str(":method"), wl_str("POST"), 0}, {wl_str(":scheme"), wl_str("http"), 0},
                         {wl_str(":authority"), wl_str("a"), 0}, {wl_str(":path"), wl_str("/"), 0},
                         {wl_str("x"), wl_str("secret"), 1}};
    wl_field wrong = {{NULL, 5}, {NULL, 0}, 0};
    NULL_POINTER(wl_h2_send_request(client, &wrong, 1, 1, &stream));
    INVALID(wl_h2_send_request(client, fields, 5, 2, &stream));
    fields[4].sensitive = 2;
    INVALID(wl_h2_send_request(client, fields, 5, 0, &stream));
    fields[4].sensitive = 1;
    CHECK(wl_h2_send_request(client, fields + 1, 4, 0, &stream) == WL_STATUS_NOT_ALLOWED); /* no method */
    CHECK(wl_h2_send_request(server, fields, 5, 0, &stream) == WL_STATUS_NOT_ALLOWED);
    wl_slice reason;
    CHECK(wl_h2_error(server, &reason) == WL_STATUS_OK && reason.len > 0);
    CHECK(wl_h2_send_request(client, fields, 5, 0, &stream) == WL_STATUS_OK && stream == 1);
    CHECK(wl_h2_send_data(client, 0, NULL, 0, 0) == WL_STATUS_STREAM_GONE);
    CHECK(wl_h2_send_data(client, UINT32_MAX, NULL, 0, 0) == WL_STATUS_STREAM_GONE);
    CHECK(wl_h2_send_data(client, 3, NULL, 0, 0) == WL_STATUS_STREAM_GONE);
    CHECK(wl_h2_send_data(client, 1, (const uint8_t *)"body", 4, 1) == WL_STATUS_OK);
    CHECK(wl_h2_send_data(client, 1, (const uint8_t *)"body", 4, 1) < 0);
    INVALID(wl_h2_transmitted(client, 0, 1)); /* nothing was polled */
    INVALID(wl_h2_set_priority(client, 1, 8, 0));
    INVALID(wl_h2_release_capacity(client, 1, 1) == WL_STATUS_OK ? WL_STATUS_OK : WL_STATUS_INVALID_ARGUMENT);
    wl_slice slices[4];
    CHECK(wl_h2_poll_transmit(client, 0, slices, 4, &count) == WL_STATUS_OK && count > 0);
    INVALID(wl_h2_transmitted(client, 0, 100000));
    uint8_t wire[1024];
    size_t len;
    CHECK(wl_h2_take_output(client, 0, wire, sizeof wire, &len) == WL_STATUS_OK && len > 24);
    /* One event a call, and all at once, give the same. */
    wl_h2_event found[8];
    size_t at = 0, total = 0;
    wl_status status;
    do {
        status = wl_h2_handle_input(server, 0, wire + at, len - at, &consumed, found, 1, &count);
        if (count == 1 && found[0].kind == WL_H2_EVENT_KIND_REQUEST) {
            CHECK(found[0].stream == 1 && found[0].fields_len == 5 && found[0].fields[4].sensitive == 1);
            CHECK(found[0].fields[4].value.len == 6 && memcmp(found[0].fields[4].value.data, "secret", 6) == 0);
        }
        if (count == 1 && found[0].kind == WL_H2_EVENT_KIND_DATA)
            CHECK(found[0].len == 4 && memcmp(found[0].data, "body", 4) == 0 && found[0].end_stream == 1);
        at += consumed;
        total += count;
    } while (status == WL_STATUS_MORE);
    CHECK(status == WL_STATUS_OK && total == 3);
    CHECK(wl_h2_handle_input(server, 0, (const uint8_t *)"\0\0\1\0\0\0\0\0\0x", 10, &consumed, found, 8, &count) == WL_STATUS_PEER_MISBEHAVED);
    wl_h2_state state;
    CHECK(wl_h2_get_state(server, &state) == WL_STATUS_OK && state.ended == WL_H2_ENDED_FAILED && state.code == 1);
    CHECK(wl_h2_abort(client, 0, NULL, 0) == WL_STATUS_OK);
    CHECK(wl_h2_release_buffers(client) == WL_STATUS_OK);
    CHECK(wl_h2_free(client) == WL_STATUS_OK && wl_h2_free(server) == WL_STATUS_OK);
    NO_HANDLE(wl_h2_free(client));
}

/* A block over the limit is decoded to its end, and the next one still refers to its fields; one that is far over it ends the decoder. */
static void field_limits(void) {
    wl_hpack_encoder encoder;
    wl_hpack_decoder decoder;
    wl_slice block;
    uint8_t text[400];
    memset(text, 'x', sizeof text);
    wl_field fields[31], decoded[1];
    for (int i = 0; i < 31; i++)
        fields[i] = (wl_field){wl_str("x"), {text, sizeof text - (size_t)i}, 0};
    fields[3] = (wl_field){wl_str("role"), wl_str("user"), 0};
    fields[30] = (wl_field){wl_str("role"), wl_str("admin"), 0};
    CHECK(wl_hpack_encoder_new(&encoder) == WL_STATUS_OK && wl_hpack_decoder_new(4096, 1000, 100, &decoder) == WL_STATUS_OK);
    CHECK(wl_hpack_encoder_encode(encoder, fields, 4, &block) == WL_STATUS_OK);
    CHECK(wl_hpack_decoder_decode(decoder, block.data, block.len, decoded, 1, &count) == WL_STATUS_LIMIT_EXCEEDED);
    CHECK(wl_hpack_encoder_encode(encoder, fields + 3, 1, &block) == WL_STATUS_OK && block.len == 1);
    CHECK(wl_hpack_decoder_decode(decoder, block.data, block.len, decoded, 1, &count) == WL_STATUS_OK);
    CHECK(count == 1 && decoded[0].value.len == 4 && memcmp(decoded[0].value.data, "user", 4) == 0);
    CHECK(wl_hpack_encoder_encode(encoder, fields, 31, &block) == WL_STATUS_OK);
    CHECK(wl_hpack_decoder_decode(decoder, block.data, block.len, decoded, 1, &count) == WL_STATUS_PEER_MISBEHAVED);
    CHECK(wl_hpack_encoder_encode(encoder, fields + 30, 1, &block) == WL_STATUS_OK && block.len == 1);
    CHECK(wl_hpack_decoder_decode(decoder, block.data, block.len, decoded, 1, &count) == WL_STATUS_PEER_MISBEHAVED && count == 0);
    CHECK(wl_hpack_decoder_free(decoder) == WL_STATUS_OK && wl_hpack_encoder_free(encoder) == WL_STATUS_OK);
}

static void codecs(void) {
    wl_hpack_encoder encoder;
    wl_hpack_decoder decoder;
    wl_slice block;
    wl_field fields[3] = {{wl_str("a"), wl_str("1"), 0}, {wl_str("b"), wl_str("2"), 0}, {wl_str("c"), wl_str("3"), 1}};
    wl_field decoded[2];
    CHECK(wl_hpack_encoder_new(&encoder) == WL_STATUS_OK);
    CHECK(wl_hpack_decoder_new(4096, 65536, 100, &decoder) == WL_STATUS_OK);
    CHECK(wl_hpack_encoder_encode(encoder, fields, 3, &block) == WL_STATUS_OK);
    CHECK(wl_hpack_decoder_decode(decoder, block.data, block.len, decoded, 2, &count) == WL_STATUS_BUFFER_TOO_SMALL && count == 3);
    CHECK(wl_hpack_decoder_fields(decoder, 2, decoded, 2, &count) == WL_STATUS_OK && count == 1 && decoded[0].sensitive == 1);
    CHECK(wl_hpack_decoder_fields(decoder, SIZE_MAX, decoded, 2, &count) == WL_STATUS_OK && count == 0);
    CHECK(wl_hpack_decoder_decode(decoder, (const uint8_t *)"\x80", 1, decoded, 2, &count) == WL_STATUS_PEER_MISBEHAVED);
    CHECK(wl_hpack_decoder_free(decoder) == WL_STATUS_OK && wl_hpack_encoder_free(encoder) == WL_STATUS_OK);

    wl_deflate_params params = {0, 0, 15, 15};
    wl_compressor compressor;
    wl_decompressor decompressor;
    uint8_t text[1000], out[300];
    memset(text, 'x', sizeof text);
    CHECK(wl_compressor_new(WL_ROLE_CLIENT, &params, NULL, &compressor) == WL_STATUS_OK);
    CHECK(wl_decompressor_new(WL_ROLE_SERVER, &params, &decompressor) == WL_STATUS_OK);
    CHECK(wl_compressor_compress(compressor, text, sizeof text, 1, &block) == WL_STATUS_OK && block.len < 100);
    size_t at = 0, total = 0, produced;
    wl_status status;
    do {
        status = wl_decompressor_decompress(decompressor, block.data + at, block.len - at, 1, 10000, out, sizeof out, &consumed, &produced);
        CHECK(status >= 0);
        for (size_t i = 0; i < produced; i++)
            CHECK(out[i] == 'x');
        at += consumed;
        total += produced;
    } while (status == WL_STATUS_MORE);
    CHECK(total == sizeof text);
    CHECK(wl_compressor_compress(compressor, text, sizeof text, 1, &block) == WL_STATUS_OK);
    do {
        status = wl_decompressor_decompress(decompressor, block.data, block.len, 1, 10, out, sizeof out, &consumed, &produced);
    } while (status == WL_STATUS_MORE);
    CHECK(status == WL_STATUS_LIMIT_EXCEEDED);
    CHECK(wl_compressor_free(compressor) == WL_STATUS_OK && wl_decompressor_free(decompressor) == WL_STATUS_OK);

    wl_utf8 validator;
    CHECK(wl_utf8_new(&validator) == WL_STATUS_OK);
    CHECK(wl_utf8_push(validator, (const uint8_t *)"\xe2\x82", 2) == WL_STATUS_OK);
    CHECK(wl_utf8_finish(validator) == WL_STATUS_INVALID_UTF8);
    CHECK(wl_utf8_push(validator, (const uint8_t *)"\xe2\x82", 2) == WL_STATUS_OK);
    CHECK(wl_utf8_push(validator, (const uint8_t *)"\xac", 1) == WL_STATUS_OK);
    CHECK(wl_utf8_finish(validator) == WL_STATUS_OK);
    CHECK(wl_utf8_free(validator) == WL_STATUS_OK);
}

/* What the other parts do not call: no object, an object that was freed, no memory, numbers out of range, calls in the wrong state. */
static void the_rest(void) {
    uint8_t bytes[512] = {0}, key[4] = {1, 2, 3, 4};
    uint64_t deadline;
    uint32_t progress, promised;
    uint16_t code;
    wl_slice value;
    wl_field field = {wl_str("a"), wl_str("b"), 0};
    wl_field wrong = {{NULL, 5}, {NULL, 0}, 0};

    wl_h2 h2;
    CHECK(wl_h2_new(WL_ROLE_SERVER, NULL, &h2) == WL_STATUS_OK);
    NULL_POINTER(wl_h2_poll_timeout(h2, NULL));
    NULL_POINTER(wl_h2_send_capacity(h2, 1, NULL));
    NULL_POINTER(wl_h2_send_ping(h2, 0, NULL));
    NULL_POINTER(wl_h2_push_promise(h2, 1, &field, 1, NULL));
    NULL_POINTER(wl_h2_push_promise(h2, 1, NULL, 1, &promised));
    NULL_POINTER(wl_h2_send_response(h2, 1, &wrong, 1, 0));
    NULL_POINTER(wl_h2_send_informational(h2, 1, NULL, 1));
    NULL_POINTER(wl_h2_send_trailers(h2, 1, NULL, 1));
    INVALID(wl_h2_send_response(h2, 1, &field, SIZE_MAX, 0));
    INVALID(wl_h2_send_trailers(h2, 1, &field, SIZE_MAX / sizeof field));
    INVALID(wl_h2_send_response(h2, 1, &field, 1, 2));
    for (uint32_t stream = 0; stream < 4; stream++) {
        CHECK(wl_h2_send_response(h2, stream, &field, 1, 0) < 0);
        CHECK(wl_h2_send_informational(h2, stream, &field, 1) < 0);
        CHECK(wl_h2_send_trailers(h2, stream, &field, 1) < 0);
        CHECK(wl_h2_push_promise(h2, stream, &field, 1, &promised) < 0);
        CHECK(wl_h2_reset(h2, stream, 8) < 0);
        CHECK(wl_h2_send_capacity(h2, stream, &count) < 0 || count == 0);
    }
    CHECK(wl_h2_handle_timeout(h2, UINT64_MAX) == WL_STATUS_OK);
    CHECK(wl_h2_handle_timeout(h2, 0) == WL_STATUS_OK); /* the time goes back */
    CHECK(wl_h2_shutdown(h2) == WL_STATUS_OK && wl_h2_shutdown(h2) == WL_STATUS_OK);
    CHECK(wl_h2_free(h2) == WL_STATUS_OK);
    NO_HANDLE(wl_h2_poll_timeout(h2, &deadline));
    NO_HANDLE(wl_h2_handle_timeout(h2, 0));
    NO_HANDLE(wl_h2_send_capacity(h2, 1, &count));
    NO_HANDLE(wl_h2_send_ping(h2, 0, (const uint8_t(*)[8])bytes));
    NO_HANDLE(wl_h2_push_promise(h2, 1, &field, 1, &promised));
    NO_HANDLE(wl_h2_send_response(h2, 1, &field, 1, 0));
    NO_HANDLE(wl_h2_send_informational(h2, 1, &field, 1));
    NO_HANDLE(wl_h2_send_trailers(h2, 1, &field, 1));
    NO_HANDLE(wl_h2_reset(h2, 1, 8));
    NO_HANDLE(wl_h2_shutdown(h2));

    wl_ws ws = server();
    CHECK(wl_ws_handle_timeout(ws, UINT64_MAX) == WL_STATUS_OK && wl_ws_handle_timeout(ws, 0) == WL_STATUS_OK);
    CHECK(wl_ws_handle_activity(ws, UINT64_MAX) == WL_STATUS_OK && wl_ws_handle_activity(ws, 0) == WL_STATUS_OK);
    CHECK(wl_ws_handle_write_failed(ws, 0) == WL_STATUS_OK && wl_ws_handle_write_failed(ws, 0) == WL_STATUS_OK);
    CHECK(wl_ws_release_buffers(ws) == WL_STATUS_OK && wl_ws_release_buffers(ws) == WL_STATUS_OK);
    CHECK(wl_ws_free(ws) == WL_STATUS_OK);
    NO_HANDLE(wl_ws_handle_timeout(ws, 0));
    NO_HANDLE(wl_ws_handle_activity(ws, 0));
    NO_HANDLE(wl_ws_handle_write_failed(ws, 0));
    NO_HANDLE(wl_ws_release_buffers(ws));

    wl_client_options options;
    CHECK(wl_client_options_default(&options, sizeof options) == WL_STATUS_OK);
    options.host = wl_str("h");
    options.resource = wl_str("/");
    wl_client_handshake client;
    CHECK(wl_client_handshake_new(&options, (const uint8_t(*)[16])bytes, NULL, &client) == WL_STATUS_OK);
    NULL_POINTER(wl_client_handshake_status(client, NULL));
    NULL_POINTER(wl_client_handshake_header(client, wl_str("a"), NULL));
    NULL_POINTER(wl_client_handshake_header(client, wrong.name, &value));
    NULL_POINTER(wl_client_handshake_error(client, NULL));
    CHECK(wl_client_handshake_status(client, &code) == WL_STATUS_OK && code == 0);
    CHECK(wl_client_handshake_header(client, wl_str("a"), &value) == WL_STATUS_WRONG_STATE);
    CHECK(wl_client_handshake_free(client) == WL_STATUS_OK);
    NO_HANDLE(wl_client_handshake_status(client, &code));
    NO_HANDLE(wl_client_handshake_header(client, wl_str("a"), &value));
    NO_HANDLE(wl_client_handshake_error(client, &value));

    wl_server_handshake handshake;
    CHECK(wl_server_handshake_new(NULL, &handshake) == WL_STATUS_OK);
    CHECK(wl_server_handshake_reject(handshake, 403, wl_str("no"), NULL, 0, bytes, 512, &count) == WL_STATUS_WRONG_STATE);
    static const char request[] = "GET / HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                                  "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";
    CHECK(wl_server_handshake_input(handshake, (const uint8_t *)request, sizeof request - 1, &consumed, &progress) == WL_STATUS_OK);
    INVALID(wl_server_handshake_reject(handshake, 199, wl_str("no"), NULL, 0, bytes, 512, &count));
    INVALID(wl_server_handshake_reject(handshake, 600, wl_str("no"), NULL, 0, bytes, 512, &count));
    NULL_POINTER(wl_server_handshake_reject(handshake, 403, wl_str("no"), NULL, 1, bytes, 512, &count));
    NULL_POINTER(wl_server_handshake_reject(handshake, 403, wl_str("no"), NULL, 0, NULL, 512, &count));
    NULL_POINTER(wl_server_handshake_reject(handshake, 403, wl_str("no"), NULL, 0, bytes, 512, NULL));
    wl_field split = {wl_str("A"), wl_str("b\r\nc: d"), 0};
    INVALID(wl_server_handshake_reject(handshake, 403, wl_str("no"), &split, 1, bytes, 512, &count));
    CHECK(wl_server_handshake_reject(handshake, 403, wl_str("no"), NULL, 0, bytes, 10, &count) == WL_STATUS_BUFFER_TOO_SMALL);
    CHECK(wl_server_handshake_reject(handshake, 403, wl_str("no"), NULL, 0, bytes, count, &count) == WL_STATUS_OK);
    CHECK(memcmp(bytes, "HTTP/1.1 403", 12) == 0);
    CHECK(wl_server_handshake_reject(handshake, 403, wl_str("no"), NULL, 0, bytes, 512, &count) == WL_STATUS_WRONG_STATE);
    CHECK(wl_server_handshake_free(handshake) == WL_STATUS_OK);
    NO_HANDLE(wl_server_handshake_reject(handshake, 403, wl_str("no"), NULL, 0, bytes, 512, &count));

    wl_prepared prepared, compressed;
    CHECK(wl_prepared_new(WL_KIND_BINARY, bytes, sizeof bytes, &prepared) == WL_STATUS_OK);
    NULL_POINTER(wl_prepared_compress(prepared, 15, NULL, NULL));
    INVALID(wl_prepared_compress(prepared, 7, NULL, &compressed));
    INVALID(wl_prepared_compress(prepared, 16, NULL, &compressed));
    CHECK(wl_prepared_compress(prepared, 15, NULL, &compressed) == WL_STATUS_OK);
    CHECK(wl_prepared_free(prepared) == WL_STATUS_OK && wl_prepared_free(compressed) == WL_STATUS_OK);
    NO_HANDLE(wl_prepared_compress(prepared, 15, NULL, &compressed));

    NULL_POINTER(wl_utf8_unmask(NULL, 1, (const uint8_t(*)[4])key));
    NULL_POINTER(wl_utf8_unmask(bytes, 1, NULL));
    INVALID(wl_utf8_unmask(bytes, SIZE_MAX, (const uint8_t(*)[4])key));
    INVALID(wl_utf8_unmask(bytes, 8, (const uint8_t(*)[4])(bytes + 4)));
    CHECK(wl_utf8_unmask(NULL, 0, (const uint8_t(*)[4])key) == WL_STATUS_OK);

    wl_hpack_encoder encoder;
    wl_hpack_decoder decoder;
    CHECK(wl_hpack_encoder_new(&encoder) == WL_STATUS_OK && wl_hpack_decoder_new(4096, 65536, 100, &decoder) == WL_STATUS_OK);
    CHECK(wl_hpack_encoder_set_table_size_max(encoder, UINT32_MAX) == WL_STATUS_OK);
    CHECK(wl_hpack_encoder_set_table_size_max(encoder, 0) == WL_STATUS_OK);
    CHECK(wl_hpack_decoder_set_table_size_max(decoder, UINT32_MAX) == WL_STATUS_OK);
    CHECK(wl_hpack_decoder_set_table_size_max(decoder, 0) == WL_STATUS_OK);
    CHECK(wl_hpack_decoder_free(decoder) == WL_STATUS_OK && wl_hpack_encoder_free(encoder) == WL_STATUS_OK);
    NO_HANDLE(wl_hpack_encoder_set_table_size_max(encoder, 0));
    NO_HANDLE(wl_hpack_decoder_set_table_size_max(decoder, 0));
}

/* Threads that share handles: every call does its work, or is refused. */
enum { THREADS = 4, ROUNDS = 2000 };
static wl_ws shared;
static _Atomic size_t sent;

static void *use_shared(void *unused) {
    (void)unused;
    for (int i = 0; i < ROUNDS; i++) {
        wl_status status = wl_ws_send(shared, WL_KIND_BINARY, (const uint8_t *)"x", 1, 0);
        CHECK(status == WL_STATUS_OK || status == WL_STATUS_BUSY);
        sent += status == WL_STATUS_OK;
        wl_ws own = server();
        CHECK(wl_ws_send(own, WL_KIND_BINARY, (const uint8_t *)"x", 1, 0) == WL_STATUS_OK);
        CHECK(wl_ws_free(own) == WL_STATUS_OK);
    }
    return NULL;
}

/* Threads that free one handle: exactly one does. */
static _Atomic int freed;

static void *free_shared(void *unused) {
    (void)unused;
    wl_status status;
    do {
        status = wl_ws_free(shared);
    } while (status == WL_STATUS_BUSY);
    CHECK(status == WL_STATUS_OK || status == WL_STATUS_INVALID_HANDLE);
    freed += status == WL_STATUS_OK;
    return NULL;
}

/* Threads that send one prepared message on connections of their own: none is refused. */
static wl_prepared broadcast;

static void *send_broadcast(void *unused) {
    (void)unused;
    wl_ws own = server();
    wl_slice bytes;
    wl_ws_state state;
    for (int i = 0; i < 20 * ROUNDS; i++) {
        CHECK(wl_ws_send_prepared(own, broadcast) == WL_STATUS_OK);
        CHECK(wl_prepared_bytes(broadcast, &bytes) == WL_STATUS_OK && bytes.len == 7);
    }
    CHECK(wl_ws_get_state(own, &state) == WL_STATUS_OK && state.queued_len == 7 * 20 * ROUNDS);
    CHECK(wl_ws_free(own) == WL_STATUS_OK);
    return NULL;
}

static void in_threads(void *(*work)(void *)) {
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, work, NULL) == 0);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
}

int main(void) {
    null_pointers();
    handles();
    lengths_and_ranges();
    other_sizes();
    alignment_and_overlap();
    peer();
    server_handshake();
    http2();
    codecs();
    field_limits();
    the_rest();
    shared = server();
    in_threads(use_shared);
    wl_ws_state state;
    CHECK(wl_ws_get_state(shared, &state) == WL_STATUS_OK && state.queued_len == 3 * sent);
    for (int i = 0; i < 50; i++) {
        freed = 0;
        in_threads(free_shared);
        CHECK(freed == 1);
        shared = server();
    }
    CHECK(wl_ws_free(shared) == WL_STATUS_OK);
    CHECK(wl_prepared_new(WL_KIND_TEXT, (const uint8_t *)"hello", 5, &broadcast) == WL_STATUS_OK);
    in_threads(send_broadcast);
    CHECK(wl_prepared_free(broadcast) == WL_STATUS_OK);
    puts("misuse: ok");
    return 0;
}
