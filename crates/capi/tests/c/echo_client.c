/* Talks to an echo server on loopback through the library: `echo_client PORT`. Messages of many sizes, one at a time and many at once,
 * text and binary, whole and in chunks, with and without permessage-deflate, and the closing handshake. */
#define _GNU_SOURCE
#include <wireloom.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define CHECK(condition)                                                                                          \
    do {                                                                                                          \
        if (!(condition)) {                                                                                       \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                                       \
            abort();                                                                                              \
        }                                                                                                         \
    } while (0)

static uint8_t buffer[64 * 1024];
static int fd;
static wl_ws ws;

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static void flush(void) {
    for (;;) {
        wl_slice slices[3];
        size_t count;
        CHECK(wl_ws_poll_transmit(ws, slices, 3, &count) == WL_STATUS_OK);
        if (count == 0)
            return;
        ssize_t written = writev(fd, (struct iovec *)slices, (int)count);
        CHECK(written > 0);
        CHECK(wl_ws_transmitted(ws, (size_t)written) == WL_STATUS_OK);
    }
}

/* What is expected next. */
struct expectation {
    const uint8_t *data;
    size_t len;
    uint32_t kind;
    unsigned left;
};

static void compare(struct expectation *expected, const wl_ws_event *event) {
    CHECK(expected->left > 0);
    if (event->kind != expected->kind || event->len != expected->len)
        fprintf(stderr, "kind %u, %zu bytes instead of kind %u, %zu bytes\n", event->kind, event->len, expected->kind, expected->len);
    CHECK(event->kind == expected->kind && event->len == expected->len);
    CHECK(event->len == 0 || memcmp(event->data, expected->data, event->len) == 0);
    expected->left--;
}

static void receive(struct expectation *expected) {
    while (expected->left > 0) {
        uint8_t *space;
        size_t space_len;
        CHECK(wl_ws_recv_slot(ws, &space, &space_len) == WL_STATUS_OK);
        if (space_len > 0) {
            ssize_t len = read(fd, space, space_len);
            CHECK(len > 0);
            wl_ws_event event;
            size_t count;
            CHECK(wl_ws_recv_slot_filled(ws, now(), (size_t)len, &event, &count) == WL_STATUS_OK);
            if (count == 1)
                compare(expected, &event);
            continue;
        }
        ssize_t len = read(fd, buffer, sizeof buffer);
        CHECK(len > 0);
        size_t at = 0;
        wl_status status;
        do {
            wl_ws_event events[7];
            size_t consumed, count;
            status = wl_ws_handle_input(ws, now(), buffer + at, (size_t)len - at, &consumed, events, 7, &count);
            CHECK(status >= 0);
            for (size_t i = 0; i < count; i++)
                compare(expected, &events[i]);
            at += consumed;
        } while (status == WL_STATUS_MORE);
        CHECK(at == (size_t)len);
    }
}

/* With `room` for so many bytes that are not read; 0 is the system's choice. */
static void handshake(int port, bool with_deflate, int room) {
    fd = socket(AF_INET, SOCK_STREAM, 0);
    if (room > 0)
        CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof room) == 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    address.sin_port = htons((uint16_t)port);
    CHECK(connect(fd, (struct sockaddr *)&address, sizeof address) == 0);
    wl_deflate_config deflate;
    CHECK(wl_deflate_config_default(&deflate, sizeof deflate) == WL_STATUS_OK);
    wl_field header = {wl_str("X-Test"), wl_str("1"), 0};
    wl_client_options options;
    CHECK(wl_client_options_default(&options, sizeof options) == WL_STATUS_OK);
    options.host = wl_str("127.0.0.1");
    options.resource = wl_str("/echo");
    options.headers = &header;
    options.headers_len = 1;
    options.deflate = with_deflate ? &deflate : NULL;
    uint8_t random[48];
    CHECK(getrandom(random, sizeof random, 0) == sizeof random);
    wl_client_handshake handshake;
    CHECK(wl_client_handshake_new(&options, (const uint8_t(*)[16])random, NULL, &handshake) == WL_STATUS_OK);
    wl_slice request;
    CHECK(wl_client_handshake_request(handshake, &request) == WL_STATUS_OK);
    CHECK(write(fd, request.data, request.len) == (ssize_t)request.len);
    uint32_t progress = WL_PROGRESS_INCOMPLETE;
    while (progress == WL_PROGRESS_INCOMPLETE) {
        /* A byte at a time, so that nothing of the connection is read. */
        size_t consumed;
        CHECK(read(fd, buffer, 1) == 1);
        CHECK(wl_client_handshake_input(handshake, buffer, 1, &consumed, &progress) == WL_STATUS_OK);
    }
    CHECK(progress == WL_PROGRESS_COMPLETE);
    CHECK(wl_client_handshake_open(handshake, NULL, (const uint8_t(*)[32])(random + 16), now(), &ws) == WL_STATUS_OK);
    wl_ws again;
    CHECK(wl_client_handshake_open(handshake, NULL, (const uint8_t(*)[32])(random + 16), now(), &again) == WL_STATUS_WRONG_STATE);
    CHECK(wl_client_handshake_free(handshake) == WL_STATUS_OK);
    wl_ws_state state;
    CHECK(wl_ws_get_state(ws, &state) == WL_STATUS_OK);
    CHECK(state.is_open && state.is_compressed == with_deflate && state.role == WL_ROLE_CLIENT);
}

static void run(int port, bool with_deflate) {
    handshake(port, with_deflate, 0);
    static uint8_t payload[3 << 20];
    /* Text with characters of one to four bytes, so that every prefix below ends at one of them. */
    static const char words[] = "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80";
    for (size_t i = 0; i < sizeof payload; i++)
        payload[i] = (uint8_t)words[i % 10];
    static const size_t lens[] = {0, 10, 120, 130, 65530, 65540, 200000, 3145720};
    for (size_t i = 0; i < sizeof lens / sizeof *lens; i++) {
        for (uint32_t kind = WL_KIND_TEXT; kind <= WL_KIND_BINARY; kind++) {
            unsigned count = lens[i] < 1000 ? 100 : 1;
            struct expectation expected = {payload, lens[i], kind, count};
            for (unsigned n = 0; n < count; n++)
                CHECK(wl_ws_send(ws, kind, payload, lens[i], n % 2) == WL_STATUS_OK);
            flush();
            receive(&expected);
        }
    }
    struct expectation in_chunks = {payload, 5000, WL_WS_EVENT_KIND_TEXT, 1};
    for (size_t at = 0; at < 5000; at += 1000)
        CHECK(wl_ws_send_chunk(ws, WL_KIND_TEXT, payload + at, 1000, at == 4000) == WL_STATUS_OK);
    flush();
    receive(&in_chunks);

    struct expectation pong = {(const uint8_t *)"ping", 4, WL_WS_EVENT_KIND_PONG, 1};
    CHECK(wl_ws_send_ping(ws, now(), (const uint8_t *)"ping", 4) == WL_STATUS_OK);
    flush();
    receive(&pong);

    struct expectation close_frame = {(const uint8_t *)"bye", 3, WL_WS_EVENT_KIND_CLOSE, 1}; /* the answer repeats code and reason */
    CHECK(wl_ws_close(ws, now(), 1000, (const uint8_t *)"bye", 3) == WL_STATUS_OK);
    CHECK(wl_ws_send(ws, WL_KIND_TEXT, NULL, 0, 0) == WL_STATUS_NOT_OPEN);
    flush();
    receive(&close_frame);
    wl_ws_end end;
    CHECK(wl_ws_get_end(ws, &end) == WL_STATUS_OK);
    CHECK(end.cause == WL_WS_CAUSE_CLOSE && end.by == WL_INITIATOR_LOCAL && end.code == 1000);
    CHECK(read(fd, buffer, sizeof buffer) == 0);
    CHECK(wl_ws_handle_eof(ws) == WL_STATUS_OK);
    wl_ws_state state;
    CHECK(wl_ws_get_state(ws, &state) == WL_STATUS_OK);
    CHECK(state.was_clean && state.transport == WL_TRANSPORT_CLOSE);
    close(fd);
    CHECK(wl_ws_free(ws) == WL_STATUS_OK);
    CHECK(wl_ws_free(ws) == WL_STATUS_INVALID_HANDLE);
}

/* More follows the Close frame, at once or later, and is sent before anything is read: nothing that the server has sent is lost. */
static void send_behind_close(int port, bool later) {
    enum { MESSAGES = 60, LEN = 4096, FRAME_LEN = 4 + LEN, CLOSE_LEN = 4, TRAILING_LEN = 256 * 1024 };
    static uint8_t payload[LEN], output[MESSAGES * (FRAME_LEN + 4) + 100 + TRAILING_LEN];
    handshake(port, false, 16 * 1024);
    for (unsigned i = 0; i < MESSAGES; i++)
        CHECK(wl_ws_send(ws, WL_KIND_BINARY, payload, LEN, 0) == WL_STATUS_OK);
    CHECK(wl_ws_close(ws, now(), 1000, NULL, 0) == WL_STATUS_OK);
    size_t output_len, total = 0;
    CHECK(wl_ws_take_output(ws, output, sizeof output, &output_len) == WL_STATUS_OK);
    CHECK(output_len + TRAILING_LEN <= sizeof output);
    size_t first_len = output_len + (later ? 0 : TRAILING_LEN);
    CHECK(write(fd, output, first_len) == (ssize_t)first_len);
    if (later) {
        usleep(50 * 1000);
        CHECK(write(fd, output + output_len, TRAILING_LEN) == TRAILING_LEN);
    }
    ssize_t len;
    while ((len = read(fd, buffer, sizeof buffer)) > 0)
        total += (size_t)len;
    CHECK(len == 0); /* no reset */
    CHECK(total == MESSAGES * FRAME_LEN + CLOSE_LEN);
    close(fd);
    CHECK(wl_ws_free(ws) == WL_STATUS_OK);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    send_behind_close(atoi(argv[1]), false);
#ifdef __linux__
    send_behind_close(atoi(argv[1]), true);
#endif
    run(atoi(argv[1]), false);
    run(atoi(argv[1]), true);
    puts("echo_client: ok");
    return 0;
}
