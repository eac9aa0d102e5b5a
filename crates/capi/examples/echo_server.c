/* A WebSocket echo server on poll(2): `echo_server [PORT]`, by default a port that the system chooses. It prints "port N" and ends when
 * its standard input ends. */
#define _GNU_SOURCE
#include <wireloom.h>

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <linux/sockios.h>
#include <sys/ioctl.h>
#endif

enum { CLIENTS_MAX = 256, BUFFER_LEN = 64 * 1024, EVENTS = 64, HANDSHAKE_MS = 10000 };

struct client {
    int fd;
    wl_server_handshake handshake; /* while it lasts */
    wl_ws ws;                      /* after it */
    bool is_refused;               /* its input is discarded until it has closed, so that it reads the answer */
    uint64_t handshake_until;
};

static struct client clients[CLIENTS_MAX];
static size_t clients_len;
static uint8_t buffer[BUFFER_LEN];

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* A bug of this program. */
static void check(wl_status status, const char *what) {
    if (status < 0) {
        fprintf(stderr, "%s: %s\n", what, wl_status_text(status));
        abort();
    }
}

static bool write_all(int fd, const uint8_t *bytes, size_t len) {
    /* A response to a handshake fits the send buffer of a new socket. */
    return send(fd, bytes, len, MSG_NOSIGNAL) == (ssize_t)len;
}

/* Whether the kernel has bytes for which the peer has no room. */
static bool has_unsent(int fd) {
    int len = 0;
#ifdef __linux__
    ioctl(fd, SIOCOUTQNSD, &len);
#endif
    (void)fd;
    return len > 0;
}

/* Bytes that have arrived behind the peer's Close frame are discarded: a socket that is closed with unread bytes is reset, and the peer
 * loses what it has not received. So does a peer that sends some later: until it has received all, it counts as one that has sent a byte. No
 * event follows a Close frame. */
static void read_trailing(struct client *client) {
    uint8_t bytes[256] = {0};
    wl_ws_event event;
    size_t consumed, count;
    ssize_t len = read(client->fd, bytes, sizeof bytes);
    if (len < 0 && has_unsent(client->fd))
        len = 1;
    if (len > 0)
        check(wl_ws_handle_input(client->ws, now(), bytes, (size_t)len, &consumed, &event, 1, &count), "handle_input");
}

/* Writes output; returns whether the connection goes on. */
static bool flush(struct client *client) {
    for (;;) {
        wl_slice slices[WL_SLICES_MAX];
        size_t count;
        check(wl_ws_poll_transmit(client->ws, slices, WL_SLICES_MAX, &count), "poll_transmit");
        if (count == 0)
            break;
        struct msghdr message = {.msg_iov = (struct iovec *)slices, .msg_iovlen = count};
        ssize_t written = sendmsg(client->fd, &message, MSG_NOSIGNAL);
        if (written < 0) {
            if (errno == EAGAIN)
                return true;
            check(wl_ws_handle_write_failed(client->ws, now()), "handle_write_failed");
            return false;
        }
        check(wl_ws_transmitted(client->ws, (size_t)written), "transmitted");
    }
    wl_ws_state state;
    check(wl_ws_get_state(client->ws, &state), "get_state");
    if (state.transport == WL_TRANSPORT_CLOSE) {
        read_trailing(client);
        check(wl_ws_get_state(client->ws, &state), "get_state");
    }
    if (state.transport == WL_TRANSPORT_SHUTDOWN_WRITE)
        shutdown(client->fd, SHUT_WR);
    return state.transport != WL_TRANSPORT_CLOSE;
}

static void echo(struct client *client, const wl_ws_event *event) {
    if (event->kind != WL_WS_EVENT_KIND_TEXT && event->kind != WL_WS_EVENT_KIND_BINARY)
        return; /* Pings and Close frames were answered already. */
    wl_kind kind = event->kind == WL_WS_EVENT_KIND_TEXT ? WL_KIND_TEXT : WL_KIND_BINARY;
    /* WL_STATUS_NOT_OPEN: the peer has sent Close behind this message. */
    wl_status status = wl_ws_send(client->ws, kind, event->data, event->len, 0);
    if (status != WL_STATUS_NOT_OPEN && status != WL_STATUS_QUEUE_FULL)
        check(status, "send");
}

static bool handle_bytes(struct client *client, uint8_t *bytes, size_t len) {
    wl_status status;
    do {
        wl_ws_event events[EVENTS];
        size_t consumed, count;
        status = wl_ws_handle_input(client->ws, now(), bytes, len, &consumed, events, EVENTS, &count);
        for (size_t i = 0; i < count; i++)
            echo(client, &events[i]);
        bytes += consumed;
        len -= consumed;
    } while (status == WL_STATUS_MORE);
    /* An error of the peer has queued a Close frame. */
    return flush(client);
}

static bool handle_handshake(struct client *client, uint8_t *bytes, size_t len) {
    uint8_t response[2048];
    size_t consumed, response_len;
    uint32_t progress;
    wl_status status = wl_server_handshake_input(client->handshake, bytes, len, &consumed, &progress);
    if (status < 0) {
        if (wl_server_handshake_refusal(client->handshake, response, sizeof response, &response_len) == WL_STATUS_OK)
            client->is_refused = write_all(client->fd, response, response_len) && shutdown(client->fd, SHUT_WR) == 0;
        return client->is_refused;
    }
    if (progress != WL_PROGRESS_COMPLETE)
        return true;
    wl_deflate_config deflate;
    check(wl_deflate_config_default(&deflate, sizeof deflate), "deflate_config_default");
    check(wl_server_handshake_accept(client->handshake, wl_str(NULL), &deflate, NULL, 0, response, sizeof response, &response_len),
          "accept");
    check(wl_server_handshake_open(client->handshake, NULL, now(), &client->ws), "open");
    check(wl_server_handshake_free(client->handshake), "free");
    client->handshake.id = 0;
    return write_all(client->fd, response, response_len) && handle_bytes(client, bytes + consumed, len - consumed);
}

/* Reads once; returns whether the connection goes on. */
static bool handle_readable(struct client *client) {
    if (client->ws.id != 0) {
        /* The bytes of a large message go where it is assembled. */
        uint8_t *space;
        size_t space_len;
        check(wl_ws_recv_slot(client->ws, &space, &space_len), "recv_slot");
        if (space_len > 0) {
            ssize_t len = read(client->fd, space, space_len);
            if (len > 0) {
                wl_ws_event event;
                size_t count;
                wl_status status = wl_ws_recv_slot_filled(client->ws, now(), (size_t)len, &event, &count);
                if (status == WL_STATUS_OK && count == 1)
                    echo(client, &event);
                return flush(client);
            }
            if (len < 0)
                return errno == EAGAIN;
            check(wl_ws_handle_eof(client->ws), "handle_eof");
            return flush(client);
        }
    }
    ssize_t len = read(client->fd, buffer, sizeof buffer);
    if (len < 0)
        return errno == EAGAIN;
    if (client->ws.id == 0)
        return len > 0 && (client->is_refused || handle_handshake(client, buffer, (size_t)len));
    if (len == 0) {
        check(wl_ws_handle_eof(client->ws), "handle_eof");
        return flush(client);
    }
    return handle_bytes(client, buffer, (size_t)len);
}

static void drop_client(size_t at) {
    check(wl_server_handshake_free(clients[at].handshake), "free");
    check(wl_ws_free(clients[at].ws), "free");
    close(clients[at].fd);
    clients[at] = clients[--clients_len];
}

static void accept_clients(int listener) {
    while (clients_len < CLIENTS_MAX) {
        int fd = accept(listener, NULL, NULL);
        if (fd < 0)
            return;
        fcntl(fd, F_SETFL, O_NONBLOCK);
        struct client *client = &clients[clients_len++];
        *client = (struct client){.fd = fd, .handshake_until = now() + HANDSHAKE_MS * 1000000ull};
        check(wl_server_handshake_new(NULL, &client->handshake), "handshake_new");
    }
}

int main(int argc, char **argv) {
    signal(SIGPIPE, SIG_IGN);
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    address.sin_port = htons((uint16_t)(argc > 1 ? atoi(argv[1]) : 0));
    socklen_t address_len = sizeof address;
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof address) != 0 || listen(listener, 64) != 0
        || getsockname(listener, (struct sockaddr *)&address, &address_len) != 0) {
        perror("echo_server");
        return 1;
    }
    fcntl(listener, F_SETFL, O_NONBLOCK);
    printf("port %d\n", ntohs(address.sin_port));
    fflush(stdout);

    for (;;) {
        struct pollfd fds[CLIENTS_MAX + 2] = {{.fd = STDIN_FILENO, .events = POLLIN}, {.fd = listener}};
        /* Further clients wait in the queue of the kernel. */
        fds[1].events = clients_len < CLIENTS_MAX ? POLLIN : 0;
        uint64_t deadline = WL_NEVER, time = now();
        for (size_t i = 0; i < clients_len; i++) {
            wl_ws_state state = {0};
            uint64_t due = clients[i].handshake_until;
            if (clients[i].ws.id != 0) {
                check(wl_ws_get_state(clients[i].ws, &state), "get_state");
                check(wl_ws_poll_timeout(clients[i].ws, &due), "poll_timeout");
            }
            deadline = due < deadline ? due : deadline;
            /* A client that does not read is not read either. */
            short events = state.is_congested ? 0 : POLLIN;
            fds[i + 2] = (struct pollfd){.fd = clients[i].fd, .events = events | (state.wants_write ? POLLOUT : 0)};
        }
        uint64_t wait_ms = deadline <= time ? 0 : (deadline - time) / 1000000 + 1;
        int timeout = deadline == WL_NEVER ? -1 : wait_ms > 60000 ? 60000 : (int)wait_ms;
        if (poll(fds, (nfds_t)clients_len + 2, timeout) < 0 && errno != EINTR)
            return 1;
        if (fds[0].revents != 0)
            break;
        time = now();
        /* From the last one on, because a client that ends is replaced by the last. */
        for (size_t i = clients_len; i-- > 0;) {
            struct client *client = &clients[i];
            short happened = fds[i + 2].revents;
            bool goes_on = true;
            if (happened & POLLOUT)
                goes_on = flush(client);
            if (goes_on && happened & (POLLIN | POLLHUP | POLLERR))
                goes_on = handle_readable(client);
            if (goes_on && client->ws.id == 0 && time >= client->handshake_until)
                goes_on = false;
            if (goes_on && client->ws.id != 0) {
                check(wl_ws_handle_timeout(client->ws, time), "handle_timeout");
                goes_on = flush(client);
            }
            if (!goes_on)
                drop_client(i);
        }
        if (fds[1].revents != 0)
            accept_clients(listener);
    }
    while (clients_len > 0)
        drop_client(clients_len - 1);
    close(listener);
    return 0;
}
