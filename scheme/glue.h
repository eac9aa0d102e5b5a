/* The state of a connection outside of the Scheme heap, and the calls of libwireloom on it. One call does one step: it neither blocks nor
 * calls back, so that the steps are atomic for the threads of Scheme. */
#include <wireloom.h>

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <linux/sockios.h>
#include <sys/ioctl.h>
#endif

/* One event a step: the application answers a message before what follows it is handled, a Close frame for example. */
enum { WLS_BUFFER_LEN = 64 * 1024, WLS_EVENTS = 1 };

/* Results of a step that are not a wl_status. */
enum { WLS_EOF = 0, WLS_DONE = 1, WLS_AGAIN = -100, WLS_FAILED = -101 };

typedef struct wls {
    wl_ws ws;
    wl_server_handshake server;
    wl_client_handshake client;
    /* Bytes that were read and not handled: at <= end. Freed while there are none. */
    uint8_t *buffer;
    size_t at, end;
    /* Events that were not taken: event <= events_len. */
    wl_ws_event events[WLS_EVENTS];
    size_t event, events_len;
    /* The result of the last wl_ws_handle_input that was not reported. */
    wl_status status;
    /* When the peer's host acknowledged last, as wls_has_acknowledged found it. */
    uint64_t acknowledged_at;
    /* Whether a silent peer gets a Ping long enough before dead_after to acknowledge it. */
    bool sends_pings;
} wls;

static long wls_alive;

static uint64_t wls_now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static bool wls_random(void *bytes, size_t len) {
    return getrandom(bytes, len, 0) == (ssize_t)len;
}

static wls *wls_new(void) {
    wls *self = calloc(1, sizeof *self);
    wls_alive += self != NULL;
    return self;
}

static void wls_free(wls *self) {
    wl_ws_free(self->ws);
    wl_server_handshake_free(self->server);
    wl_client_handshake_free(self->client);
    free(self->buffer);
    free(self);
    wls_alive--;
}

/* The parameters of Scheme take only numbers that can be converted here. */
static wl_ws_config wls_config(double frame_max, double message_max, double ping_s, double dead_s, double close_s) {
    wl_ws_config config;
    wl_ws_config_default(&config, sizeof config);
    config.frame_len_max = (uint64_t)frame_max;
    config.message_len_max = (uint64_t)message_max;
    /* A limit of years is none. */
    const uint64_t never = 1000000000000000000u;
    if (ping_s > 0 || dead_s > 0) {
        config.dead_after_ns = dead_s > 0 ? (uint64_t)(dead_s * 1e9) : never;
        config.ping_after_ns = ping_s > 0 ? (uint64_t)(ping_s * 1e9) : config.dead_after_ns - 1;
        if (config.ping_after_ns >= config.dead_after_ns)
            config.ping_after_ns = config.dead_after_ns - 1;
    }
    config.close_timeout_ns = close_s > 0 ? (uint64_t)(close_s * 1e9) : never;
    return config;
}

static bool wls_sends_pings(const wl_ws_config *config) {
    return config->ping_after_ns < config->dead_after_ns - 1;
}

/* Handshakes. Their input is in the buffer. */

static int wls_server_new(wls *self) {
    return wl_server_handshake_new(NULL, &self->server);
}

/* WLS_DONE: the request is complete. WLS_AGAIN: more input is needed. */
static int wls_server_step(wls *self) {
    size_t consumed;
    uint32_t progress;
    wl_status status = wl_server_handshake_input(self->server, self->buffer + self->at, self->end - self->at, &consumed, &progress);
    if (status < 0)
        return status;
    self->at += consumed;
    return progress == WL_PROGRESS_COMPLETE ? WLS_DONE : WLS_AGAIN;
}

static wl_slice wls_request(wls *self, int part, const char *header) {
    wl_slice value = {NULL, 0};
    if (header != NULL)
        wl_server_handshake_header(self->server, wl_str(header), &value);
    else
        wl_server_handshake_request(self->server, (uint32_t)part, &value);
    return value;
}

static int wls_server_accept(wls *self, const char *subprotocol, bool with_deflate, uint8_t *response, size_t capacity, size_t *len) {
    wl_deflate_config deflate;
    wl_deflate_config_default(&deflate, sizeof deflate);
    return wl_server_handshake_accept(self->server, wl_str(subprotocol), with_deflate ? &deflate : NULL, NULL, 0, response, capacity, len);
}

static int wls_server_open(wls *self, const wl_ws_config *config) {
    self->sends_pings = wls_sends_pings(config);
    int status = wl_server_handshake_open(self->server, config, wls_now(), &self->ws);
    wl_server_handshake_free(self->server);
    self->server.id = 0;
    return status;
}

static int wls_client_new(wls *self, const char *host, const char *resource, const char *origin, const char *subprotocol, bool with_deflate) {
    wl_deflate_config deflate;
    wl_deflate_config_default(&deflate, sizeof deflate);
    wl_slice subprotocols[1] = {wl_str(subprotocol)};
    wl_client_options options;
    wl_client_options_default(&options, sizeof options);
    options.host = wl_str(host);
    options.resource = wl_str(resource);
    options.origin = wl_str(origin);
    options.subprotocols = subprotocols;
    options.subprotocols_len = subprotocol != NULL;
    options.deflate = with_deflate ? &deflate : NULL;
    uint8_t nonce[16];
    if (!wls_random(nonce, sizeof nonce))
        return WLS_FAILED;
    return wl_client_handshake_new(&options, (const uint8_t(*)[16])nonce, NULL, &self->client);
}

/* WLS_DONE: the server has accepted. WLS_EOF: it has refused. WLS_AGAIN: more input is needed. */
static int wls_client_step(wls *self) {
    size_t consumed;
    uint32_t progress;
    wl_status status = wl_client_handshake_input(self->client, self->buffer + self->at, self->end - self->at, &consumed, &progress);
    if (status < 0)
        return status;
    self->at += consumed;
    return progress == WL_PROGRESS_COMPLETE ? WLS_DONE : progress == WL_PROGRESS_REFUSED ? WLS_EOF : WLS_AGAIN;
}

static int wls_client_open(wls *self, const wl_ws_config *config) {
    uint8_t seed[32];
    if (!wls_random(seed, sizeof seed))
        return WLS_FAILED;
    self->sends_pings = wls_sends_pings(config);
    return wl_client_handshake_open(self->client, config, (const uint8_t(*)[32])seed, wls_now(), &self->ws);
}

/* Input. */

/* Frees the buffer while it is empty: an idle connection has none. */
static void wls_release_input(wls *self) {
    free(self->buffer);
    self->buffer = NULL;
    self->at = self->end = 0;
}

/* Makes room behind the bytes that were not handled. */
static void wls_compact(wls *self) {
    if (self->at == 0)
        return;
    memmove(self->buffer, self->buffer + self->at, self->end - self->at);
    self->end -= self->at;
    self->at = 0;
}

/* The kind of the next event; 0 if more input is needed; the status of an error, once. */
static int wls_peek(wls *self) {
    for (;;) {
        if (self->event < self->events_len)
            return (int)self->events[self->event].kind;
        wl_status status = self->status;
        self->status = WL_STATUS_OK;
        if (status < 0)
            return status;
        if (status == WL_STATUS_OK && self->at == self->end) {
            if (self->end > WLS_BUFFER_LEN)
                wls_release_input(self);
            return 0;
        }
        size_t consumed = 0;
        self->event = self->events_len = 0;
        self->status = wl_ws_handle_input(self->ws, wls_now(), self->buffer + self->at, self->end - self->at, &consumed,
                                          self->events, WLS_EVENTS, &self->events_len);
        self->at += consumed;
        if (self->status == WL_STATUS_OK)
            self->at = self->end;
    }
}

/* The next event, which is taken. */
static wl_ws_event *wls_take_event(wls *self) {
    return &self->events[self->event++];
}

/* Memory for the next bytes. Everything that was read before has been handled. */
static uint8_t *wls_space(wls *self, size_t *len, bool *is_slot) {
    uint8_t *space = NULL;
    *len = 0;
    *is_slot = false;
    if (self->ws.id != 0) {
        wl_ws_recv_slot(self->ws, &space, len);
        *is_slot = *len > 0;
        if (*is_slot)
            return space;
    }
    if (self->buffer == NULL)
        self->buffer = malloc(WLS_BUFFER_LEN);
    if (self->at == self->end)
        self->at = self->end = 0;
    *len = self->buffer == NULL ? 0 : WLS_BUFFER_LEN - self->end;
    return self->buffer + self->end;
}

static int wls_filled(wls *self, bool is_slot, size_t len) {
    if (!is_slot) {
        self->end += len;
        return WLS_DONE;
    }
    self->event = self->events_len = 0;
    self->status = wl_ws_recv_slot_filled(self->ws, wls_now(), len, self->events, &self->events_len);
    return WLS_DONE;
}

/* Reads from a socket, again after a signal. */
static ssize_t wls_receive(int fd, uint8_t *space, size_t len) {
    ssize_t got;
    do {
        got = read(fd, space, len);
    } while (got < 0 && errno == EINTR);
    return got;
}

/* Reads from a socket that does not block. Memory is freed while it has nothing. */
static int wls_read(wls *self, int fd) {
    size_t len;
    bool is_slot;
    uint8_t *space = wls_space(self, &len, &is_slot);
    if (len == 0)
        return WLS_FAILED;
    ssize_t got = wls_receive(fd, space, len);
    if (got > 0)
        return wls_filled(self, is_slot, (size_t)got);
    if (self->at == self->end)
        wls_release_input(self);
    if (got == 0)
        return WLS_EOF;
    return errno == EAGAIN || errno == EWOULDBLOCK ? WLS_AGAIN : WLS_FAILED;
}

/* Whether the kernel has bytes for which the peer has no room. */
static bool wls_has_unsent(int fd) {
    int len = 0;
#ifdef __linux__
    ioctl(fd, SIOCOUTQNSD, &len);
#endif
    (void)fd;
    return len > 0;
}

/* Discards what has arrived behind the peer's Close frame, before the connection is closed: a socket that is closed with unread bytes is
 * reset, and the peer loses what it has not received. So does a peer that sends some later: until it has received all, it counts as one that
 * has sent a byte. No event follows a Close frame. */
static void wls_read_trailing(wls *self, int fd) {
    uint8_t bytes[256] = {0};
    wl_ws_event event;
    size_t consumed, count, len = self->end - self->at;
    self->event = self->events_len = 0;
    if (len > 0)
        wl_ws_handle_input(self->ws, wls_now(), self->buffer + self->at, len, &consumed, &event, 1, &count);
    wls_release_input(self);
    ssize_t got = wls_receive(fd, bytes, sizeof bytes);
    if (got < 0 && wls_has_unsent(fd))
        got = 1;
    if (got > 0)
        wl_ws_handle_input(self->ws, wls_now(), bytes, (size_t)got, &consumed, &event, 1, &count);
}

static bool wls_is_readable(int fd) {
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
    return poll(&poll_fd, 1, 0) > 0;
}

/* While the application has a message to take, what follows it is kept unhandled, up to this much. */
static bool wls_is_full(wls *self) {
    return self->end - self->at >= WLS_BUFFER_LEN;
}

static void wls_handle_activity(wls *self) {
    wl_ws_handle_activity(self->ws, wls_now());
}

/* Whether the peer's host has acknowledged anything since the last call: what it sends is not read here, but it answers TCP, and before it is
 * judged silent a Ping is sent. Where that is unknown, as over a socket of this machine, or without pings, the peer is taken for alive. */
static bool wls_has_acknowledged(wls *self, int fd) {
    struct tcp_info info;
    socklen_t len = sizeof info;
    if (!self->sends_pings || getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) != 0)
        return true;
    /* The kernel's clock has steps of up to 10 ms. */
    const uint64_t step_ns = 20000000u;
    uint64_t at = wls_now() - (uint64_t)info.tcpi_last_ack_recv * 1000000u;
    if (at < self->acknowledged_at + step_ns)
        return false;
    self->acknowledged_at = at;
    return true;
}

/* Reads from a socket what is to be kept. */
static void wls_read_behind(wls *self, int fd) {
    if (wls_is_full(self)) {
        if (wls_has_acknowledged(self, fd))
            wls_handle_activity(self);
        return;
    }
    if (self->buffer == NULL && (self->buffer = malloc(WLS_BUFFER_LEN)) == NULL)
        return;
    wls_compact(self);
    ssize_t got = wls_receive(fd, self->buffer + self->end, WLS_BUFFER_LEN - self->end);
    if (got > 0) {
        self->end += (size_t)got;
        wls_handle_activity(self);
    } else if (self->end == 0) {
        wls_release_input(self);
    }
}

/* Takes bytes from another kind of port; whether there was memory for them. */
static bool wls_feed(wls *self, const uint8_t *bytes, long len) {
    wls_compact(self);
    size_t needed = self->end + (size_t)len;
    uint8_t *buffer = realloc(self->buffer, needed > WLS_BUFFER_LEN ? needed : WLS_BUFFER_LEN);
    if (buffer == NULL)
        return false;
    self->buffer = buffer;
    memcpy(buffer + self->end, bytes, (size_t)len);
    self->end = needed;
    return true;
}

/* Output. */

/* Writes output to a socket that does not block. */
static int wls_write(wls *self, int fd) {
    for (;;) {
        wl_slice slices[WL_SLICES_MAX];
        size_t count;
        wl_status status = wl_ws_poll_transmit(self->ws, slices, WL_SLICES_MAX, &count);
        if (status < 0)
            return status;
        if (count == 0)
            return WLS_DONE;
        struct msghdr message = {.msg_iov = (struct iovec *)slices, .msg_iovlen = count};
        ssize_t written = sendmsg(fd, &message, MSG_NOSIGNAL);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return WLS_AGAIN;
        if (written < 0) {
            wl_ws_handle_write_failed(self->ws, wls_now());
            return WLS_FAILED;
        }
        wl_ws_transmitted(self->ws, (size_t)written);
    }
}

static long wls_take_output(wls *self, uint8_t *bytes, long capacity) {
    size_t len = 0;
    wl_ws_take_output(self->ws, bytes, (size_t)capacity, &len);
    return (long)len;
}

/* 0 text, 1 binary, 2 Ping, 3 Pong. */
static int wls_send(wls *self, int type, const uint8_t *bytes, long len) {
    switch (type) {
    case 0: return wl_ws_send(self->ws, WL_KIND_TEXT, bytes, (size_t)len, 0);
    case 1: return wl_ws_send(self->ws, WL_KIND_BINARY, bytes, (size_t)len, 0);
    case 2: return wl_ws_send_ping(self->ws, wls_now(), bytes, (size_t)len);
    default: return wl_ws_send_pong(self->ws, bytes, (size_t)len);
    }
}

/* Milliseconds until the next deadline; -1: none. */
static double wls_timeout_ms(wls *self) {
    uint64_t deadline, now = wls_now();
    if (wl_ws_poll_timeout(self->ws, &deadline) != WL_STATUS_OK || deadline == WL_NEVER)
        return -1;
    return deadline <= now ? 0 : (double)(deadline - now) / 1e6 + 1;
}

static wl_ws_state wls_state(wls *self) {
    wl_ws_state state = {0};
    state.transport = WL_TRANSPORT_CLOSE;
    wl_ws_get_state(self->ws, &state);
    return state;
}

static wl_ws_end wls_end(wls *self) {
    wl_ws_end end = {0};
    wl_ws_get_end(self->ws, &end);
    return end;
}
