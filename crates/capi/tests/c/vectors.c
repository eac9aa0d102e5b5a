/* Replays the vectors that bind other languages to the Rust cores: `vectors FOLDER`, the folder testing/vectors. Each record whole, byte
 * by byte and split in two at each place (at most 300 places; 20 of a long one). */
#include <wireloom.h>

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                                          \
    do {                                                                                                          \
        if (!(condition)) {                                                                                       \
            fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #condition, name);                            \
            exit(1);                                                                                              \
        }                                                                                                         \
    } while (0)

static char name[256] = "";
static unsigned records;

struct bytes {
    uint8_t *data;
    size_t len, capacity;
};

static void push(struct bytes *bytes, const uint8_t *data, size_t len) {
    if (bytes->len + len + 1 > bytes->capacity) {
        bytes->capacity = 2 * (bytes->len + len + 1);
        bytes->data = realloc(bytes->data, bytes->capacity);
        CHECK(bytes->data != NULL);
    }
    memcpy(bytes->data + bytes->len, data, len);
    bytes->len += len;
}

static int digit(char c) {
    return isdigit((unsigned char)c) ? c - '0' : c - 'a' + 10;
}

/* "61 0001*3": 61 00 01 00 01 00 01. "-": nothing. */
static struct bytes parse(const char *text) {
    struct bytes bytes = {malloc(1), 0, 1};
    while (*text != 0) {
        while (*text == ' ')
            text++;
        if (*text == '-') {
            text++;
            continue;
        }
        uint8_t word[4096];
        size_t len = 0;
        while (isxdigit((unsigned char)text[0]) && isxdigit((unsigned char)text[1])) {
            CHECK(len < sizeof word);
            word[len++] = (uint8_t)(digit(text[0]) * 16 + digit(text[1]));
            text += 2;
        }
        if (len == 0)
            break;
        unsigned long count = 1;
        if (*text == '*')
            count = strtoul(text + 1, (char **)&text, 10);
        while (count-- > 0)
            push(&bytes, word, len);
    }
    return bytes;
}

/* The events of a record, as text: one line each. */
static void describe(struct bytes *out, const char *key, const uint8_t *data, size_t len) {
    push(out, (const uint8_t *)key, strlen(key));
    for (size_t i = 0; i < len; i++) {
        char hex[3];
        snprintf(hex, sizeof hex, "%02x", data[i]);
        push(out, (const uint8_t *)hex, 2);
    }
    push(out, (const uint8_t *)"\n", 1);
}

struct record {
    uint32_t role;
    bool with_deflate;
    wl_deflate_params params;
    uint64_t frame_max, message_max;
    struct bytes input, events;
};

static void describe_event(struct bytes *out, const wl_ws_event *event) {
    static const char *const keys[] = {"", "text ", "binary ", "", "", "ping ", "pong ", "close "};
    char key[32];
    snprintf(key, sizeof key, "%s", keys[event->kind]);
    if (event->kind == WL_WS_EVENT_KIND_CLOSE)
        snprintf(key, sizeof key, "close %u ", event->code);
    describe(out, key, event->data, event->len);
}

/* Passes input in parts: up to `first` bytes, then `step` bytes at a time. */
static void replay(const struct record *record, size_t first, size_t step) {
    static const uint8_t seed[32];
    wl_ws_config config;
    wl_ws ws;
    struct bytes found = {malloc(1), 0, 1};
    CHECK(wl_ws_config_default(&config, sizeof config) == WL_STATUS_OK);
    config.frame_len_max = record->frame_max;
    config.message_len_max = record->message_max;
    CHECK(wl_ws_new(record->role, &config, record->with_deflate ? &record->params : NULL, NULL, &seed, 0, &ws) == WL_STATUS_OK);
    uint8_t *input = malloc(record->input.len + 1);
    memcpy(input, record->input.data, record->input.len);
    bool ended = false;
    for (size_t at = 0; at < record->input.len && !ended;) {
        size_t len = at == 0 ? first : step;
        if (len > record->input.len - at)
            len = record->input.len - at;
        size_t done = 0;
        wl_status status;
        do {
            wl_ws_event events[3];
            size_t consumed, count;
            status = wl_ws_handle_input(ws, 0, input + at + done, len - done, &consumed, events, 3, &count);
            for (size_t i = 0; i < count; i++) {
                describe_event(&found, &events[i]);
                ended = ended || events[i].kind == WL_WS_EVENT_KIND_CLOSE;
            }
            done += consumed;
        } while (status == WL_STATUS_MORE);
        if (status < 0) {
            wl_ws_end end;
            char line[32];
            CHECK(wl_ws_get_end(ws, &end) == WL_STATUS_OK);
            snprintf(line, sizeof line, "error %u ", end.code);
            describe(&found, line, NULL, 0);
            ended = true;
        }
        at += len;
    }
    if (found.len != record->events.len || memcmp(found.data, record->events.data, found.len) != 0) {
        fprintf(stderr, "%s, split at %zu and every %zu: expected\n%.*sgot\n%.*s", name, first, step, (int)record->events.len,
                (const char *)record->events.data, (int)found.len, (const char *)found.data);
        exit(1);
    }
    CHECK(wl_ws_free(ws) == WL_STATUS_OK);
    free(input);
    free(found.data);
}

static void finish(struct record *record) {
    if (record->input.data == NULL)
        return;
    records++;
    size_t len = record->input.len;
    replay(record, len, 1);
    replay(record, 1, len < 5000 ? 1 : 97);
    for (size_t at = 1, stride = len / (len < 10000 ? 300 : 20) + 1; at < len; at += stride)
        replay(record, at, len);
    free(record->input.data);
    free(record->events.data);
    *record = (struct record){0};
}

/* receive.txt and deflate.txt */
static void connections(const char *path) {
    static char line[1 << 20];
    FILE *file = fopen(path, "r");
    CHECK(file != NULL);
    struct record record = {0};
    while (fgets(line, sizeof line, file) != NULL) {
        line[strcspn(line, "\n")] = 0;
        char *value = strchr(line, ' ');
        if (line[0] == '#')
            continue;
        if (value == NULL) {
            finish(&record);
            continue;
        }
        *value++ = 0;
        if (strcmp(line, "name") == 0) {
            snprintf(name, sizeof name, "%s", value);
        } else if (strcmp(line, "receiver") == 0) {
            record.role = strcmp(value, "server") == 0 ? WL_ROLE_SERVER : WL_ROLE_CLIENT;
        } else if (strcmp(line, "deflate") == 0) {
            record.with_deflate = true;
            record.params = (wl_deflate_params){0, 0, 15, 15};
            for (char *word = strtok(value, " "); word != NULL; word = strtok(NULL, " ")) {
                char *number = strpbrk(word, "=0123456789");
                if (strncmp(word, "server_no", 9) == 0)
                    record.params.server_no_context_takeover = 1;
                else if (strncmp(word, "client_no", 9) == 0)
                    record.params.client_no_context_takeover = 1;
                else if (strncmp(word, "server_max", 10) == 0 && number != NULL)
                    record.params.server_max_window_bits = (uint8_t)atoi(number + (*number == '='));
                else if (strncmp(word, "client_max", 10) == 0 && number != NULL)
                    record.params.client_max_window_bits = (uint8_t)atoi(number + (*number == '='));
            }
        } else if (strcmp(line, "limits") == 0) {
            CHECK(sscanf(value, "%lu %lu", &record.frame_max, &record.message_max) == 2);
        } else if (strcmp(line, "input") == 0) {
            record.input = parse(value);
        } else if (strcmp(line, "error") == 0) {
            char expected[32];
            snprintf(expected, sizeof expected, "error %s ", strrchr(value, ' ') + 1);
            describe(&record.events, expected, NULL, 0);
        } else if (strcmp(line, "close") == 0) {
            char code[32] = "close 1005 ";
            char *reason = strchr(value, ' ');
            if (value[0] != '-')
                snprintf(code, sizeof code, "close %d ", atoi(value));
            struct bytes payload = parse(reason == NULL ? "-" : reason);
            describe(&record.events, code, payload.data, payload.len);
            free(payload.data);
        } else {
            char key[32];
            snprintf(key, sizeof key, "%.20s ", line);
            struct bytes payload = parse(value);
            describe(&record.events, key, payload.data, payload.len);
            free(payload.data);
        }
    }
    finish(&record);
    fclose(file);
}

/* mask.txt, utf8.txt and accept.txt: one line a record. */
static void lines(const char *path) {
    static char line[1 << 20];
    FILE *file = fopen(path, "r");
    CHECK(file != NULL);
    while (fgets(line, sizeof line, file) != NULL) {
        line[strcspn(line, "\n")] = 0;
        snprintf(name, sizeof name, "%.200s", line);
        if (line[0] == '#' || line[0] == 0)
            continue;
        records++;
        if (strncmp(line, "mask ", 5) == 0) {
            char *field[4] = {strtok(line + 5, " "), strtok(NULL, " "), strtok(NULL, " "), strtok(NULL, " ")};
            CHECK(field[3] != NULL);
            struct bytes key = parse(field[0]), input = parse(field[2]), output = parse(field[3]);
            size_t offset = (size_t)atoi(field[1]);
            uint8_t rotated[4];
            for (size_t i = 0; i < 4; i++)
                rotated[i] = key.data[(offset + i) % 4];
            CHECK(input.len == output.len && wl_mask(input.data, input.len, &rotated) == WL_STATUS_OK);
            CHECK(memcmp(input.data, output.data, input.len) == 0);
            free(key.data), free(input.data), free(output.data);
        } else if (strncmp(line, "accept ", 7) == 0) {
            uint8_t accept[28];
            CHECK(strlen(line) == 7 + 24 + 1 + 28);
            CHECK(wl_accept_key((const uint8_t(*)[24])(line + 7), &accept) == WL_STATUS_OK && memcmp(accept, line + 32, 28) == 0);
        } else {
            struct bytes text = parse(strchr(line, ' '));
            wl_status whole = wl_utf8_validate(text.data, text.len), pushed = WL_STATUS_OK;
            wl_utf8 validator;
            CHECK(wl_utf8_new(&validator) == WL_STATUS_OK);
            for (size_t i = 0; i < text.len && pushed == WL_STATUS_OK; i++)
                pushed = wl_utf8_push(validator, text.data + i, 1);
            wl_status finished = pushed == WL_STATUS_OK ? wl_utf8_finish(validator) : pushed;
            CHECK(finished == whole && (whole == WL_STATUS_OK) == (line[0] == 'v'));
            CHECK(strncmp(line, "incomplete", 10) != 0 || pushed == WL_STATUS_OK);
            CHECK(wl_utf8_free(validator) == WL_STATUS_OK);
            free(text.data);
        }
    }
    fclose(file);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    static const char *const files[] = {"receive", "deflate", "mask", "utf8", "accept"};
    for (size_t i = 0; i < 5; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s.txt", argv[1], files[i]);
        (i < 2 ? connections : lines)(path);
    }
    CHECK(records > 100);
    printf("vectors: %u records\n", records);
    return 0;
}
