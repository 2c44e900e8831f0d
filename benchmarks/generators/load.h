/* What the load generators share: options, sockets, the sending loop, the checks and the report.
 *
 * A generator is one thread with one epoll loop. It defines the four functions that are declared
 * under "the protocol" and calls `load_run` when all its connections are ready.
 *
 * Rules:
 *   - Publishers send for a time, not a number, so that a fast server and one that is fifty times
 *     slower take equally long. Then everything sent must arrive and be acknowledged.
 *   - A window bounds what is not acknowledged, per publisher; another bounds what was sent and has
 *     not reached every subscriber, over all, so that no server builds up an endless queue.
 *   - At a fixed rate, latency counts from the moment at which a message was due, not from when it
 *     could be sent: a server that stalls does not look better for stopping its clients.
 *   - Every message carries its time, publisher and sequence. What arrives must be in order for
 *     each publisher and subscriber, intact, and all in all exactly what was sent.
 *   - The server's processor time is read from its process clock, all threads included, with the
 *     first message and after the last.
 */
#ifndef LOAD_H
#define LOAD_H

#include "common.h"

#define MESSAGE_HEAD_BYTES 16     /* time, publisher, sequence: the start of every payload */
#define SEND_BYTES_MAX 65536      /* one send, as a client library's buffer would be */
#define LINGER_NS (SECOND_NS / 5) /* how long to look for messages that come twice */

/* --- latencies -------------------------------------------------------------------------------- */

/* Buckets grow with their value: 64 to each power of two, so none is wrong by more than 1.6 %. */
#define STEPS 64
static uint64_t latency_counts[64 * STEPS];
static uint64_t latency_count, latency_max_ns;

static void latency_add(uint64_t value) {
    size_t bucket = (size_t)value;
    if (value >= STEPS) {
        int power = 63 - __builtin_clzll(value);
        bucket = (size_t)(power - 5) * STEPS + ((value >> (power - 6)) & (STEPS - 1));
    }
    latency_counts[bucket]++;
    latency_count++;
    if (value > latency_max_ns) latency_max_ns = value;
}

static double latency_us(double share) {
    uint64_t wanted = (uint64_t)(share * (double)latency_count), seen = 0;
    for (size_t bucket = 0; bucket < 64 * STEPS; bucket++) {
        seen += latency_counts[bucket];
        if (!latency_counts[bucket] || seen <= wanted) continue;
        if (bucket < STEPS) return (double)bucket / 1e3;
        int power = (int)(bucket / STEPS) + 5;
        return (double)((1ull << power) + ((uint64_t)(bucket % STEPS) << (power - 6))) / 1e3;
    }
    return (double)latency_max_ns / 1e3;
}

/* --- options ---------------------------------------------------------------------------------- */

static struct {
    const char *host;
    int port;
    int publishers, subscribers;
    int payload_bytes;
    double seconds;             /* how long publishers send */
    uint32_t window;            /* unacknowledged messages of one publisher */
    uint64_t delivery_window;   /* sent and not yet delivered, over all; 0: no bound */
    double rate;                /* messages per second over all publishers; 0: as fast as may be */
    const char *prefix;         /* of the names of topics and queues */
    const char *server_ids;     /* processes whose processor time is reported */
    int stall_seconds;          /* without any progress: give up */
} options = {
    .host = "127.0.0.1", .publishers = 1, .subscribers = 1, .payload_bytes = 100, .seconds = 1,
    .window = 256, .prefix = "bench", .stall_seconds = 20,
};

#define COMMON_OPTIONS "h:p:P:S:z:s:w:W:r:t:c:x:"
#define COMMON_USAGE "[-h HOST] -p PORT [-P PUBLISHERS] [-S SUBSCRIBERS] [-z PAYLOAD_BYTES] " \
    "[-s SECONDS] [-w WINDOW] [-W DELIVERY_WINDOW] [-r MESSAGES_PER_SECOND] [-t PREFIX] " \
    "[-c SERVER_PROCESS_IDS] [-x STALL_SECONDS]"

/* Takes one option of getopt. Returns 0 if it is none of the common ones. */
static int take_option(int letter, const char *value) {
    switch (letter) {
    case 'h': options.host = value; return 1;
    case 'p': options.port = atoi(value); return 1;
    case 'P': options.publishers = atoi(value); return 1;
    case 'S': options.subscribers = atoi(value); return 1;
    case 'z': options.payload_bytes = atoi(value); return 1;
    case 's': options.seconds = atof(value); return 1;
    case 'w': options.window = (uint32_t)atoi(value); return 1;
    case 'W': options.delivery_window = strtoull(value, NULL, 10); return 1;
    case 'r': options.rate = atof(value); return 1;
    case 't': options.prefix = value; return 1;
    case 'c': options.server_ids = value; return 1;
    case 'x': options.stall_seconds = atoi(value); return 1;
    default: return 0;
    }
}

static void check_options(void) {
    errno = 0;
    if (options.port <= 0) fail("option -p: the server's port is missing");
    if (options.publishers < 1 || options.subscribers < 0) fail("options -P, -S: too few");
    if (options.payload_bytes < MESSAGE_HEAD_BYTES) fail("option -z: at least 16 bytes");
    if (options.window < 1 || options.window > 60000) fail("option -w: 1 to 60000");
    if (options.seconds <= 0 || options.rate < 0) fail("options -s, -r: not below 0");
}

/* --- connections ------------------------------------------------------------------------------ */

#define FRAME_HEAD_BYTES_MAX 14
enum websocket_frame { BINARY_FRAME = 0x82, MASKED = 0x80, LENGTH_16 = 126, LENGTH_64 = 127 };
enum role { PUBLISHER, SUBSCRIBER };
static int websocket; /* whether packets are in frames of WebSocket (RFC 6455 part 5.2) */

typedef struct {
    int socket, index;
    enum role role;
    uint8_t *in, *out;                         /* received and not yet parsed; not yet sent */
    size_t in_used, in_size, out_sent, out_used, out_size;
    size_t framed;                             /* of the output, up to where it is in frames */
    uint64_t frame_left;                       /* bytes that the frame being read still has */
    uint8_t head[FRAME_HEAD_BYTES_MAX];        /* of the next frame, as far as it is here */
    size_t head_used;
    int waits_for_room;                        /* epoll is asked for EPOLLOUT */
    uint32_t sequence, acknowledged;           /* of a publisher's messages: how many */
} connection;

static int poll_socket;
static connection *publishers, *subscribers;

/* Makes a connection, whose handshake is done, part of the loop. */
static void connection_start(connection *c, int opened, int index, enum role role) {
    *c = (connection){.socket = opened, .index = index, .role = role};
    c->in_size = c->out_size = 2 * SEND_BYTES_MAX;
    c->in = take_memory(c->in_size, 1);
    c->out = take_memory(c->out_size, 1);
    fcntl(opened, F_SETFL, fcntl(opened, F_GETFL) | O_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    if (epoll_ctl(poll_socket, EPOLL_CTL_ADD, opened, &event)) fail("epoll_ctl");
}

/* Room for `size` bytes of output, which count as written. */
static uint8_t *connection_put(connection *c, size_t size) {
    if (c->out_used + size > c->out_size && c->out_sent) {
        memmove(c->out, c->out + c->out_sent, c->out_used - c->out_sent);
        c->out_used -= c->out_sent;
        c->framed -= c->framed < c->out_sent ? c->framed : c->out_sent;
        c->out_sent = 0;
    }
    while (c->out_used + size > c->out_size) {
        c->out_size *= 2;
        c->out = realloc(c->out, c->out_size);
        if (!c->out) fail("no memory");
    }
    c->out_used += size;
    return c->out + c->out_used - size;
}

static void connection_wait_for_room(connection *c, int wait) {
    if (c->waits_for_room == wait) return;
    struct epoll_event event = {.events = EPOLLIN | (wait ? EPOLLOUT : 0), .data.ptr = c};
    if (epoll_ctl(poll_socket, EPOLL_CTL_MOD, c->socket, &event)) fail("epoll_ctl");
    c->waits_for_room = wait;
}

/* The head of a frame of a client. Its masking key is 0, so the bytes behind it stay as they are. */
static size_t put_frame_head(uint8_t *to, size_t size) {
    size_t at = 2;
    to[0] = BINARY_FRAME;
    to[1] = (uint8_t)(MASKED | (size < LENGTH_16 ? size : size < 65536 ? LENGTH_16 : LENGTH_64));
    if (size >= 65536) put64(to + at, size), at += 8;
    else if (size >= LENGTH_16) put16(to + at, (uint32_t)size), at += 2;
    memset(to + at, 0, 4);
    return at + 4;
}

/* What was written since the last time becomes one frame. */
static void connection_frame(connection *c) {
    uint8_t head[FRAME_HEAD_BYTES_MAX];
    size_t size = c->out_used - c->framed;
    if (!websocket || !size) return;
    size_t head_size = put_frame_head(head, size);
    connection_put(c, head_size);
    memmove(c->out + c->framed + head_size, c->out + c->framed, size);
    memcpy(c->out + c->framed, head, head_size);
    c->framed = c->out_used;
}

/* Bytes that were received, without the heads of their frames, behind what is not yet parsed. */
static void connection_unframe(connection *c, const uint8_t *from, size_t size) {
    while (size) {
        if (!c->frame_left) {
            c->head[c->head_used++] = *from++;
            size--;
            size_t length = c->head_used < 2 ? 0 : c->head[1];
            size_t more = length == LENGTH_64 ? 8 : length == LENGTH_16 ? 2 : 0;
            if (c->head_used < 2 + more) continue;
            errno = 0;
            if (c->head[0] != BINARY_FRAME) fail("an unexpected frame: 0x%02x", c->head[0]);
            c->frame_left = more == 8   ? get64(c->head + 2)
                            : more == 2 ? get16(c->head + 2)
                                        : length;
            c->head_used = 0;
            continue;
        }
        size_t part = size < c->frame_left ? size : (size_t)c->frame_left;
        while (c->in_used + part > c->in_size) {
            c->in_size *= 2;
            c->in = realloc(c->in, c->in_size);
            if (!c->in) fail("no memory");
        }
        memcpy(c->in + c->in_used, from, part);
        c->in_used += part;
        c->frame_left -= part;
        from += part;
        size -= part;
    }
}

static void connection_flush(connection *c) {
    connection_frame(c);
    while (c->out_sent < c->out_used) {
        ssize_t sent = send(c->socket, c->out + c->out_sent, c->out_used - c->out_sent,
                            MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0 && errno == EAGAIN) {
            connection_wait_for_room(c, 1);
            return;
        }
        if (sent < 0) fail("send");
        c->out_sent += (size_t)sent;
    }
    c->out_sent = c->out_used = c->framed = 0;
    connection_wait_for_room(c, 0);
}

/* --- the protocol: what each generator defines ------------------------------------------------ */

static size_t message_bytes(const connection *c);               /* the size of a publish */
static void put_message(connection *c, uint64_t due_ns);        /* one publish into the output */
static size_t take_packets(connection *c, uint64_t now);        /* bytes of whole packets taken */
static int wants_acks(void);                                    /* whether publishes are acked */

/* --- counting and checking -------------------------------------------------------------------- */

static uint64_t deliveries_each;      /* how many subscribers every message reaches */
static uint64_t sent, acknowledged, delivered, out_of_order, corrupt, refused;
static uint64_t sent_sum, delivered_sum; /* sums of fingerprints: equal sets have equal sums */
static uint32_t *next_sequence;       /* by subscriber and publisher */
static uint8_t *filler;               /* what every payload holds behind its head */

static uint64_t fingerprint(uint32_t publisher, uint32_t sequence) {
    uint64_t value = ((uint64_t)publisher << 32 | sequence) + 0x9E3779B97F4A7C15ull;
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9ull;
    value = (value ^ value >> 27) * 0x94D049BB133111EBull;
    return value ^ value >> 31;
}

static void fill_message(connection *c, uint8_t *payload, uint64_t due_ns) {
    put64(payload, due_ns);
    put32(payload + 8, (uint32_t)c->index);
    put32(payload + 12, c->sequence);
    sent_sum += fingerprint((uint32_t)c->index, c->sequence);
    c->sequence++;
    sent++;
}

/* A message arrived at a subscriber. */
static void check_message(connection *c, const uint8_t *payload, size_t size, uint64_t now) {
    if (size != (size_t)options.payload_bytes) { corrupt++; return; }
    uint64_t due = get64(payload);
    uint32_t publisher = get32(payload + 8), sequence = get32(payload + 12);
    if (publisher >= (uint32_t)options.publishers) { corrupt++; return; }
    if (memcmp(payload + MESSAGE_HEAD_BYTES, filler, size - MESSAGE_HEAD_BYTES)) {
        corrupt++;
        return;
    }
    uint32_t *next = &next_sequence[(size_t)c->index * (size_t)options.publishers + publisher];
    if (sequence < *next) out_of_order++;
    *next = sequence + 1;
    delivered++;
    delivered_sum += fingerprint(publisher, sequence);
    latency_add(now > due ? now - due : 0);
}

/* --- the loop --------------------------------------------------------------------------------- */

static int sending = 1;

static int may_send(const connection *c) {
    if (!sending) return 0;
    if (wants_acks() && c->sequence - c->acknowledged >= options.window) return 0;
    if (!options.delivery_window || !deliveries_each) return 1;
    return sent * deliveries_each < delivered + options.delivery_window * deliveries_each;
}

/* As much as the windows allow, in one send. */
static void offer(connection *c, uint64_t now) {
    if (c->out_used > c->out_sent) connection_flush(c);
    if (c->out_used > c->out_sent) return;
    size_t size = message_bytes(c);
    while ((!c->out_used || c->out_used + size < SEND_BYTES_MAX) && may_send(c))
        put_message(c, now);
    if (c->out_used) connection_flush(c);
}

/* What is due by now at the fixed rate, spread over the publishers. */
static void offer_paced(uint64_t start, uint64_t now) {
    for (;;) {
        uint64_t due = start + (uint64_t)((double)sent * 1e9 / options.rate);
        if (due > now) break;
        connection *c = &publishers[sent % (uint64_t)options.publishers];
        put_message(c, due);
    }
    for (int i = 0; i < options.publishers; i++)
        if (publishers[i].out_used) connection_flush(&publishers[i]);
}

static void receive(connection *c) {
    static uint8_t frames[2 * SEND_BYTES_MAX];
    if (c->in_used == c->in_size) {
        c->in_size *= 2;
        c->in = realloc(c->in, c->in_size);
        if (!c->in) fail("no memory");
    }
    uint8_t *to = websocket ? frames : c->in + c->in_used;
    size_t room = websocket ? sizeof frames : c->in_size - c->in_used;
    ssize_t received = recv(c->socket, to, room, 0);
    if (received < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (received < 0) fail("recv");
    errno = 0;
    if (received == 0)
        fail("the server closed the connection of %s %d",
             c->role == PUBLISHER ? "publisher" : "subscriber", c->index);
    if (websocket) connection_unframe(c, frames, (size_t)received);
    else c->in_used += (size_t)received;
    size_t taken = take_packets(c, now_ns());
    if (taken && taken < c->in_used) memmove(c->in, c->in + taken, c->in_used - taken);
    c->in_used -= taken;
    if (c->out_used > c->out_sent) connection_flush(c);
}

static void look(int timeout_ms) {
    struct epoll_event events[EVENTS_MAX];
    int count = epoll_wait(poll_socket, events, EVENTS_MAX, timeout_ms);
    for (int i = 0; i < count; i++) {
        connection *c = events[i].data.ptr;
        if (events[i].events & EPOLLOUT) connection_flush(c);
        if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) receive(c);
    }
}

/* Whether a publisher could send at once: then the loop does not sleep. */
static int has_work(void) {
    if (options.rate > 0) return sending;
    for (int i = 0; i < options.publishers; i++)
        if (!publishers[i].waits_for_room && may_send(&publishers[i])) return 1;
    return 0;
}

static int all_arrived(void) {
    if (sending || (wants_acks() && acknowledged < sent)) return 0;
    for (int i = 0; i < options.publishers; i++)
        if (publishers[i].out_used > publishers[i].out_sent) return 0;
    return delivered >= sent * deliveries_each;
}

static int report(double seconds, uint64_t server_ns, uint64_t own_ns) {
    uint64_t expected = sent * deliveries_each;
    int exact = delivered == expected && delivered_sum == sent_sum * deliveries_each &&
                !out_of_order && !corrupt && !refused && (!wants_acks() || acknowledged == sent);
    printf("{\"sent\": %llu, \"expected\": %llu, \"delivered\": %llu, \"acknowledged\": %llu, "
           "\"out_of_order\": %llu, \"corrupt\": %llu, \"refused\": %llu, \"exact\": %s, "
           "\"seconds\": %.6f, \"server_cpu_seconds\": %.6f, \"generator_cpu_seconds\": %.6f, "
           "\"p50_us\": %.1f, \"p99_us\": %.1f, \"max_us\": %.1f}\n",
           (unsigned long long)sent, (unsigned long long)expected, (unsigned long long)delivered,
           (unsigned long long)acknowledged, (unsigned long long)out_of_order,
           (unsigned long long)corrupt, (unsigned long long)refused, exact ? "true" : "false",
           seconds, (double)server_ns / 1e9, (double)own_ns / 1e9, latency_us(0.5),
           latency_us(0.99), (double)latency_max_ns / 1e3);
    return exact ? EXIT_EXACT : EXIT_INEXACT;
}

/* Sends, waits for everything to arrive, reports. Returns the exit code. */
static int load_run(void) {
    next_sequence = take_memory((size_t)options.publishers * (size_t)options.subscribers,
                                sizeof *next_sequence);
    filler = take_memory((size_t)options.payload_bytes, 1);
    memset(filler, 'x', (size_t)options.payload_bytes);
    uint64_t server_ns = processes_used_ns(options.server_ids);
    uint64_t own_ns = clock_used_ns(CLOCK_PROCESS_CPUTIME_ID);
    uint64_t start = now_ns(), end = start, moved = start, progress = 0;
    uint64_t stop = start + (uint64_t)(options.seconds * 1e9);
    int turn = 0;
    for (;;) {
        uint64_t now = now_ns();
        if (now >= stop) sending = 0;
        if (sending && options.rate > 0) {
            offer_paced(start, now);
        } else if (sending) {
            for (int i = 0; i < options.publishers; i++)
                offer(&publishers[(turn + i) % options.publishers], now);
            turn = (turn + 1) % options.publishers;
        }
        look(has_work() ? 0 : 20);
        if (progress != sent + acknowledged + delivered) {
            progress = sent + acknowledged + delivered;
            moved = end = now_ns();
        }
        if (all_arrived()) break;
        if (now > moved + (uint64_t)options.stall_seconds * SECOND_NS) break;
    }
    server_ns = processes_used_ns(options.server_ids) - server_ns;
    own_ns = clock_used_ns(CLOCK_PROCESS_CPUTIME_ID) - own_ns;
    for (uint64_t from = now_ns(); now_ns() < from + LINGER_NS;) look(20);
    return report((double)(end - start) / 1e9, server_ns, own_ns);
}

#endif
