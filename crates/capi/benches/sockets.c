/* What a server of each C library spends on receiving small masked text messages from a socket: libwireloom, libwebsockets and wslay, in
 * one process, in turns.
 *
 *     cc -O2 crates/capi/benches/sockets.c -o sockets $(pkg-config --cflags --libs wireloom libwebsockets) -lwslay
 *
 * (Debian: libwebsockets-dev, libwslay-dev.) libwebsockets decodes only from sockets of its own, so all of them read from one end of a
 * socket pair, after poll(2), into a buffer of 64 KiB if the library has that choice. Text is validated; nothing is answered. The
 * figures are processor time per message, writing excluded, the fastest and the median turn; each turn checks the number and the
 * content of the messages. */
#define _GNU_SOURCE
#include <libwebsockets.h>
#include <wireloom.h>
#include <wslay/wslay.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { BUFFER_LEN = 64 * 1024, WIRE_LEN = 64 * 1024, EVENTS = 256, TURNS = 300 };

#define REQUIRE(condition)                                                    \
    do {                                                                      \
        if (!(condition)) {                                                   \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);   \
            exit(1);                                                          \
        }                                                                     \
    } while (0)

/* What a turn has received. */
static size_t messages, bytes_sum;

static void receive(const uint8_t *data, size_t len) {
    messages++;
    bytes_sum += len + data[0];
}

static void wait_readable(int fd) {
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
    REQUIRE(poll(&poll_fd, 1, 5000) == 1);
}

/* A library at its end of a socket pair. */
struct contestant {
    const char *name;
    void (*open)(struct contestant *);
    /* Receives what can be read without waiting. */
    void (*serve)(struct contestant *);
    int local, peer;
    double times[TURNS];
};

static wl_ws ws;

static void wireloom_open(struct contestant *c) {
    (void)c;
    REQUIRE(wl_ws_new(WL_ROLE_SERVER, NULL, NULL, NULL, NULL, 0, &ws) == WL_STATUS_OK);
}

static void wireloom_serve(struct contestant *c) {
    static uint8_t buffer[BUFFER_LEN];
    wait_readable(c->local);
    ssize_t read_len = read(c->local, buffer, sizeof buffer);
    REQUIRE(read_len > 0);
    uint8_t *bytes = buffer;
    size_t len = (size_t)read_len;
    wl_status status;
    do {
        wl_ws_event events[EVENTS];
        size_t consumed, count;
        status = wl_ws_handle_input(ws, 0, bytes, len, &consumed, events, EVENTS, &count);
        for (size_t i = 0; i < count; i++)
            if (events[i].kind == WL_WS_EVENT_KIND_TEXT)
                receive(events[i].data, events[i].len);
        bytes += consumed;
        len -= consumed;
    } while (status == WL_STATUS_MORE);
    REQUIRE(status == WL_STATUS_OK);
}

static struct lws_context *lws;
static bool lws_established;

static int libwebsockets_callback(struct lws *wsi, enum lws_callback_reasons reason, void *user, void *in, size_t len) {
    (void)user;
    if (reason == LWS_CALLBACK_ESTABLISHED)
        lws_established = true;
    if (reason == LWS_CALLBACK_RECEIVE) {
        /* A message that does not fit the buffer comes in chunks. */
        if (lws_is_first_fragment(wsi))
            messages++, bytes_sum += *(const uint8_t *)in;
        bytes_sum += len;
    }
    return 0;
}

static void libwebsockets_serve(struct contestant *c) {
    (void)c;
    REQUIRE(lws_service(lws, 0) >= 0);
}

static void libwebsockets_open(struct contestant *c) {
    static const struct lws_protocols protocols[] = {{"race", libwebsockets_callback, 0, BUFFER_LEN, 0, NULL, 0}, {NULL, NULL, 0, 0, 0, NULL, 0}};
    lws_set_log_level(LLL_ERR, NULL);
    struct lws_context_creation_info info = {0};
    info.port = CONTEXT_PORT_NO_LISTEN_SERVER;
    info.protocols = protocols;
    info.pt_serv_buf_size = BUFFER_LEN;
    info.options = LWS_SERVER_OPTION_VALIDATE_UTF8;
    info.gid = info.uid = (unsigned)-1;
    REQUIRE((lws = lws_create_context(&info)) != NULL);
    REQUIRE(lws_adopt_socket(lws, c->local) != NULL);
    static const char request[] = "GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                                  "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";
    REQUIRE(write(c->peer, request, sizeof request - 1) == (ssize_t)sizeof request - 1);
    for (int i = 0; i < 100 && !lws_established; i++)
        libwebsockets_serve(c);
    REQUIRE(lws_established);
}

static wslay_event_context_ptr wslay;

static ssize_t wslay_read(wslay_event_context_ptr context, uint8_t *buffer, size_t len, int flags, void *user) {
    (void)flags;
    ssize_t read_len = read(((struct contestant *)user)->local, buffer, len);
    if (read_len < 0)
        wslay_event_set_error(context, errno == EAGAIN ? WSLAY_ERR_WOULDBLOCK : WSLAY_ERR_CALLBACK_FAILURE);
    return read_len;
}

static void wslay_message(wslay_event_context_ptr context, const struct wslay_event_on_msg_recv_arg *message, void *user) {
    (void)context, (void)user;
    receive(message->msg, message->msg_length);
}

static void wslay_open(struct contestant *c) {
    struct wslay_event_callbacks callbacks = {.recv_callback = wslay_read, .on_msg_recv_callback = wslay_message};
    REQUIRE(wslay_event_context_server_init(&wslay, &callbacks, c) == 0);
}

static void wslay_serve(struct contestant *c) {
    wait_readable(c->local);
    REQUIRE(wslay_event_recv(wslay) == 0);
}

static struct contestant contestants[] = {
    {.name = "libwireloom", .open = wireloom_open, .serve = wireloom_serve},
    {.name = "libwebsockets", .open = libwebsockets_open, .serve = libwebsockets_serve},
    {.name = "wslay", .open = wslay_open, .serve = wslay_serve},
};
enum { CONTESTANTS = sizeof contestants / sizeof *contestants };

/* As many masked text frames as fit; returns their number. */
static size_t frames(size_t len, uint8_t *wire, size_t *wire_len) {
    size_t count = 0;
    for (*wire_len = 0; *wire_len + WL_FRAME_HEADER_LEN_MAX + len <= WIRE_LEN; count++) {
        wl_frame_header header = {.payload_len = len, .opcode = 1, .fin = 1, .masked = 1};
        uint32_t key = (uint32_t)count * 2654435761u | 1;
        memcpy(header.mask, &key, sizeof key);
        size_t header_len;
        REQUIRE(wl_frame_header_encode(&header, wire + *wire_len, WL_FRAME_HEADER_LEN_MAX, &header_len) == WL_STATUS_OK);
        uint8_t *payload = wire + *wire_len + header_len;
        memset(payload, 'x', len);
        REQUIRE(wl_mask(payload, len, &header.mask) == WL_STATUS_OK);
        *wire_len += header_len + len;
    }
    return count;
}

static double cpu_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void race(size_t len, int turns) {
    static uint8_t wire[WIRE_LEN];
    size_t wire_len, count = frames(len, wire, &wire_len);
    for (int turn = 0; turn < turns; turn++) {
        for (struct contestant *c = contestants; c < contestants + CONTESTANTS; c++) {
            REQUIRE(write(c->peer, wire, wire_len) == (ssize_t)wire_len);
            messages = bytes_sum = 0;
            double start = cpu_ns();
            while (bytes_sum < count * (len + 'x'))
                c->serve(c);
            c->times[turn] = (cpu_ns() - start) / (double)count;
            REQUIRE(messages == count && bytes_sum == count * (len + 'x'));
        }
    }
    printf("receive masked text of %zu B: ns a message, fastest and median, x libwireloom\n", len);
    double base[2] = {1, 1};
    for (struct contestant *c = contestants; c < contestants + CONTESTANTS; c++) {
        qsort(c->times, (size_t)turns, sizeof *c->times, by_value);
        double fastest = c->times[0], median = c->times[turns / 2];
        if (c == contestants)
            base[0] = fastest, base[1] = median;
        printf("  %-14s %9.1f %9.1f   %6.2f x %6.2f x\n", c->name, fastest, median, fastest / base[0], median / base[1]);
    }
}

int main(int argc, char **argv) {
    int turns = argc > 1 ? atoi(argv[1]) : TURNS;
    REQUIRE(turns > 0 && turns <= TURNS);
    for (struct contestant *c = contestants; c < contestants + CONTESTANTS; c++) {
        int pair[2], room = 4 * WIRE_LEN;
        REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
        c->local = pair[0], c->peer = pair[1];
        REQUIRE(fcntl(c->local, F_SETFL, O_NONBLOCK) == 0);
        REQUIRE(setsockopt(c->peer, SOL_SOCKET, SO_SNDBUF, &room, sizeof room) == 0);
        c->open(c);
    }
    static const size_t lengths[] = {13, 200, 4096};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        race(lengths[i], turns);
    lws_context_destroy(lws);
    wslay_event_context_free(wslay);
    REQUIRE(wl_ws_free(ws) == WL_STATUS_OK);
    return 0;
}
