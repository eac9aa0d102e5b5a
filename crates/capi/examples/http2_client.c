/* An HTTP/2 client with prior knowledge: `http2_client PORT PATH…` requests the paths from 127.0.0.1 over one connection, and prints
 * for each "STATUS LENGTH PATH". */
#define _GNU_SOURCE
#include <wireloom.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { BUFFER_LEN = 64 * 1024, EVENTS = 64, REQUESTS_MAX = 1024 };

struct request {
    const char *path;
    uint32_t stream;
    unsigned status;
    size_t len;
    bool done;
};

static struct request requests[REQUESTS_MAX];
static size_t requests_len, requests_done;

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static void check(wl_h2 h2, wl_status status, const char *what) {
    if (status < 0) {
        wl_slice reason = {0};
        wl_h2_error(h2, &reason);
        fprintf(stderr, "%s: %s (%.*s)\n", what, wl_status_text(status), (int)reason.len, (const char *)reason.data);
        exit(1);
    }
}

static struct request *request_of(uint32_t stream) {
    for (size_t i = 0; i < requests_len; i++)
        if (requests[i].stream == stream)
            return &requests[i];
    return NULL;
}

static void handle_event(const wl_h2_event *event) {
    if (event->kind == WL_H2_EVENT_KIND_GO_AWAY && event->code != 0)
        fprintf(stderr, "the server ends the connection: %.*s\n", (int)event->len, (const char *)event->data);
    struct request *request = request_of(event->stream);
    if (event->stream == 0 || request == NULL)
        return;
    bool failed = event->kind == WL_H2_EVENT_KIND_RESET || event->kind == WL_H2_EVENT_KIND_REFUSED;
    if (event->kind == WL_H2_EVENT_KIND_RESPONSE)
        request->status = event->status;
    if (event->kind == WL_H2_EVENT_KIND_DATA)
        request->len += event->len;
    if ((event->end_stream || failed) && !request->done) {
        request->done = true;
        requests_done++;
        if (failed)
            request->status = 0;
        printf("%u %zu %s\n", request->status, request->len, request->path);
    }
}

static void flush(wl_h2 h2, int fd) {
    for (;;) {
        wl_slice slices[WL_SLICES_MAX];
        size_t count;
        check(h2, wl_h2_poll_transmit(h2, now(), slices, WL_SLICES_MAX, &count), "poll_transmit");
        if (count == 0)
            return;
        struct msghdr message = {.msg_iov = (struct iovec *)slices, .msg_iovlen = count};
        ssize_t written = sendmsg(fd, &message, MSG_NOSIGNAL);
        if (written < 0) {
            perror("http2_client");
            exit(1);
        }
        check(h2, wl_h2_transmitted(h2, now(), (size_t)written), "transmitted");
    }
}

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: http2_client PORT PATH...\n");
        return 2;
    }
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    address.sin_port = htons((uint16_t)atoi(argv[1]));
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        perror("http2_client");
        return 1;
    }
    wl_h2 h2 = {0};
    wl_h2_config config;
    check(h2, wl_h2_config_default(&config, sizeof config), "config_default");
    if (getrandom(&config.hash_key, sizeof config.hash_key, 0) != sizeof config.hash_key)
        return 1;
    check(h2, wl_h2_new(WL_ROLE_CLIENT, &config, &h2), "new");

    char authority[32];
    snprintf(authority, sizeof authority, "127.0.0.1:%s", argv[1]);
    for (int i = 2; i < argc && requests_len < REQUESTS_MAX; i++) {
        struct request *request = &requests[requests_len++];
        request->path = argv[i];
        wl_field fields[] = {
            {wl_str(":method"), wl_str("GET"), 0},
            {wl_str(":scheme"), wl_str("http"), 0},
            {wl_str(":authority"), wl_str(authority), 0},
            {wl_str(":path"), wl_str(argv[i]), 0},
        };
        check(h2, wl_h2_send_request(h2, fields, 4, 1, &request->stream), "send_request");
    }
    flush(h2, fd);

    static uint8_t buffer[BUFFER_LEN];
    while (requests_done < requests_len) {
        ssize_t len = read(fd, buffer, sizeof buffer);
        if (len <= 0) {
            fprintf(stderr, "the server has closed the connection\n");
            break;
        }
        const uint8_t *bytes = buffer;
        size_t left = (size_t)len;
        while (left > 0) {
            wl_status status;
            do {
                wl_h2_event events[EVENTS];
                size_t consumed, count;
                status = wl_h2_handle_input(h2, now(), bytes, left, &consumed, events, EVENTS, &count);
                for (size_t i = 0; i < count; i++)
                    handle_event(&events[i]);
                bytes += consumed;
                left -= consumed;
            } while (status == WL_STATUS_MORE);
            flush(h2, fd); /* GOAWAY, if that was an error; without output, more input is accepted. */
            check(h2, status, "handle_input");
        }
    }
    check(h2, wl_h2_shutdown(h2), "shutdown");
    flush(h2, fd);
    close(fd);
    check(h2, wl_h2_free(h2), "free");
    return requests_done == requests_len ? 0 : 1;
}
