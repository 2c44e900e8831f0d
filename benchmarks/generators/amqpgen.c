/* amqpgen: load over AMQP 0-9-1. See load.h for the rules, and for the options of both generators.
 *
 * Build: cc -O2 -Wall -Wextra -o amqpgen amqpgen.c
 * Options of its own:
 *   -Q QUEUES   publisher i publishes through the default exchange to queue PREFIX-(i mod Q),
 *               consumer j reads PREFIX-(j mod Q)
 *   -f          publisher confirms, at most -w unconfirmed; without it -w has no meaning
 *   -D          durable queues, persistent messages
 *   -a          consume without acks; otherwise by hand, one ack for every -m messages
 *   -k PREFETCH, -m ACK_EVERY (default 100 and 1)
 *
 * Prints one line of JSON and deletes its queues. Exits 0 only if everything sent arrived once, in
 * order for each consumer, intact, and was confirmed.
 */
#include "load.h"

#define FRAME_BYTES_MAX 131072
#define FRAME_END 0xCE
#define FRAME_OVERHEAD 8
#define TAGS 131072 /* of confirms: a ring, larger than any window */
enum frame { METHOD = 1, HEADER = 2, BODY = 3, HEARTBEAT = 8 };

/* Class and method of what is used here (AMQP 0-9-1, 1.3). */
#define CONNECTION_START 10, 10
#define CONNECTION_START_OK 10, 11
#define CONNECTION_TUNE 10, 30
#define CONNECTION_TUNE_OK 10, 31
#define CONNECTION_OPEN 10, 40
#define CONNECTION_OPEN_OK 10, 41
#define CHANNEL_OPEN 20, 10
#define CHANNEL_OPEN_OK 20, 11
#define QUEUE_DECLARE 50, 10
#define QUEUE_DECLARE_OK 50, 11
#define QUEUE_DELETE 50, 40
#define QUEUE_DELETE_OK 50, 41
#define BASIC_QOS 60, 10
#define BASIC_QOS_OK 60, 11
#define BASIC_CONSUME 60, 20
#define BASIC_CONSUME_OK 60, 21
#define CONFIRM_SELECT 85, 10
#define CONFIRM_SELECT_OK 85, 11
enum basic { PUBLISH = 40, DELIVER = 60, ACK = 80, NACK = 120 };

static int queues = 1, confirms, durable, no_ack;
static uint32_t prefetch = 100, ack_every = 1;

static struct {
    uint8_t *frames;              /* Basic.Publish, content header and body, to be filled in */
    size_t size, payload_at;
    uint64_t lowest;              /* the lowest tag that is not confirmed */
    uint8_t confirmed[TAGS];
} *publishing;

static struct {
    uint64_t tag;                 /* of the last message */
    uint32_t unacked;
} *consuming;

static int wants_acks(void) { return confirms; }

/* --- frames ----------------------------------------------------------------------------------- */

static size_t put_string(uint8_t *to, const char *text) {
    size_t size = strlen(text);
    to[0] = (uint8_t)size;
    memcpy(to + 1, text, size);
    return size + 1;
}

/* Completes the frame around a payload that stands at frame + 7. Returns the frame's size. */
static size_t put_frame(uint8_t *frame, enum frame type, int channel, size_t size) {
    frame[0] = (uint8_t)type;
    put16(frame + 1, (uint32_t)channel);
    put32(frame + 3, (uint32_t)size);
    frame[7 + size] = FRAME_END;
    return size + FRAME_OVERHEAD;
}

static void send_method(int to, int channel, uint32_t class, uint32_t method,
                        const uint8_t *arguments, size_t size) {
    uint8_t frame[1024];
    put16(frame + 7, class);
    put16(frame + 9, method);
    memcpy(frame + 11, arguments, size);
    send_whole(to, frame, put_frame(frame, METHOD, channel, size + 4));
}

static void expect_method(int from, uint32_t class, uint32_t method) {
    static uint8_t frame[FRAME_BYTES_MAX + FRAME_OVERHEAD];
    for (;;) {
        receive_whole(from, frame, 7);
        size_t size = get32(frame + 3);
        errno = 0;
        if (size > FRAME_BYTES_MAX) fail("a frame of %zu bytes", size);
        receive_whole(from, frame + 7, size + 1);
        if (frame[0] == HEARTBEAT) continue;
        if (get16(frame + 7) == class && get16(frame + 9) == method) return;
        fail("expected method %u.%u, got %u.%u: %.*s", class, method, get16(frame + 7),
             get16(frame + 9), size > 7 ? (int)size - 7 : 0, (char *)frame + 14);
    }
}

/* --- opening ---------------------------------------------------------------------------------- */

static void queue_name(char *name, size_t size, int index) {
    snprintf(name, size, "%s-%d", options.prefix, index % queues);
}

static int open_connection(void) {
    uint8_t arguments[128];
    int opened = connect_blocking(options.host, options.port, options.stall_seconds);
    send_whole(opened, "AMQP\0\0\11\1", 8);
    expect_method(opened, CONNECTION_START);
    put32(arguments, 0);
    size_t size = 4 + put_string(arguments + 4, "PLAIN");
    put32(arguments + size, 12);
    memcpy(arguments + size + 4, "\0guest\0guest", 12);
    size += 16;
    size += put_string(arguments + size, "en_US");
    send_method(opened, 0, CONNECTION_START_OK, arguments, size);
    expect_method(opened, CONNECTION_TUNE);
    put16(arguments, 2047);
    put32(arguments + 2, FRAME_BYTES_MAX);
    put16(arguments + 6, 0);
    send_method(opened, 0, CONNECTION_TUNE_OK, arguments, 8);
    size = put_string(arguments, "/");
    arguments[size] = arguments[size + 1] = 0;
    send_method(opened, 0, CONNECTION_OPEN, arguments, size + 2);
    expect_method(opened, CONNECTION_OPEN_OK);
    arguments[0] = 0;
    send_method(opened, 1, CHANNEL_OPEN, arguments, 1);
    expect_method(opened, CHANNEL_OPEN_OK);
    return opened;
}

static int open_client(int index, enum role role) {
    char queue[128];
    uint8_t arguments[256] = {0};
    int opened = open_connection();
    queue_name(queue, sizeof queue, index);
    size_t size = 2 + put_string(arguments + 2, queue);
    arguments[size] = durable ? 2 : 0;
    put32(arguments + size + 1, 0);
    send_method(opened, 1, QUEUE_DECLARE, arguments, size + 5);
    expect_method(opened, QUEUE_DECLARE_OK);
    if (role == PUBLISHER && confirms) {
        arguments[0] = 0;
        send_method(opened, 1, CONFIRM_SELECT, arguments, 1);
        expect_method(opened, CONFIRM_SELECT_OK);
    }
    if (role == PUBLISHER) return opened;
    if (!no_ack) {
        put32(arguments, 0);
        put16(arguments + 4, prefetch);
        arguments[6] = 0;
        send_method(opened, 1, BASIC_QOS, arguments, 7);
        expect_method(opened, BASIC_QOS_OK);
    }
    put16(arguments, 0);
    size = 2 + put_string(arguments + 2, queue);
    size += put_string(arguments + size, "generator");
    arguments[size] = no_ack ? 2 : 0;
    put32(arguments + size + 1, 0);
    send_method(opened, 1, BASIC_CONSUME, arguments, size + 5);
    expect_method(opened, BASIC_CONSUME_OK);
    return opened;
}

static void delete_queue(int index) {
    char queue[128];
    uint8_t arguments[256] = {0};
    int opened = open_connection();
    queue_name(queue, sizeof queue, index);
    size_t size = 2 + put_string(arguments + 2, queue);
    arguments[size] = 0;
    send_method(opened, 1, QUEUE_DELETE, arguments, size + 1);
    expect_method(opened, QUEUE_DELETE_OK);
    close(opened);
}

/* --- publishing ------------------------------------------------------------------------------- */

static void make_frames(int index) {
    char queue[128];
    size_t payload_size = (size_t)options.payload_bytes;
    uint8_t *frames = take_memory(payload_size + 512, 1), *frame = frames;
    queue_name(queue, sizeof queue, index);
    put16(frame + 7, 60);
    put16(frame + 9, PUBLISH);
    size_t size = 7; /* reserved, and the empty name of the default exchange */
    size += put_string(frame + 7 + size, queue);
    size += 1; /* neither mandatory nor immediate */
    frame += put_frame(frame, METHOD, 1, size);
    put16(frame + 7, 60);
    put64(frame + 11, (uint64_t)payload_size);
    put16(frame + 19, 0x1000); /* one property: delivery mode */
    frame[21] = durable ? 2 : 1;
    frame += put_frame(frame, HEADER, 1, 15);
    memset(frame + 7, 'x', payload_size);
    publishing[index].payload_at = (size_t)(frame + 7 - frames);
    frame += put_frame(frame, BODY, 1, payload_size);
    publishing[index].frames = frames;
    publishing[index].size = (size_t)(frame - frames);
    publishing[index].lowest = 1;
}

static size_t message_bytes(const connection *c) { return publishing[c->index].size; }

static void put_message(connection *c, uint64_t due_ns) {
    size_t size = publishing[c->index].size;
    uint8_t *to = connection_put(c, size);
    memcpy(to, publishing[c->index].frames, size);
    fill_message(c, to + publishing[c->index].payload_at, due_ns);
}

static void take_confirm(connection *c, const uint8_t *arguments) {
    uint64_t tag = get64(arguments), first = tag;
    uint64_t *lowest = &publishing[c->index].lowest;
    uint8_t *confirmed = publishing[c->index].confirmed;
    if (arguments[8] & 1) first = *lowest;
    if (tag < *lowest || tag > c->sequence) { refused++; return; }
    for (; first <= tag; first++) {
        if (confirmed[first % TAGS]) continue;
        confirmed[first % TAGS] = 1;
        c->acknowledged++;
        acknowledged++;
    }
    for (; *lowest <= c->sequence && confirmed[*lowest % TAGS]; ++*lowest)
        confirmed[*lowest % TAGS] = 0;
}

/* --- consuming -------------------------------------------------------------------------------- */

static void put_ack(connection *c) {
    if (!consuming[c->index].unacked) return;
    uint8_t *frame = connection_put(c, 21);
    put16(frame + 7, 60);
    put16(frame + 9, ACK);
    put64(frame + 11, consuming[c->index].tag);
    frame[19] = consuming[c->index].unacked > 1; /* multiple */
    put_frame(frame, METHOD, 1, 13);
    consuming[c->index].unacked = 0;
}

static void take_method(connection *c, const uint8_t *method, size_t size) {
    uint32_t class = get16(method), which = get16(method + 2);
    errno = 0;
    if (class != 60)
        fail("the server says %u.%u: %.*s", class, which, size > 7 ? (int)size - 7 : 0,
             (const char *)method + 7);
    if (which == DELIVER) consuming[c->index].tag = get64(method + 5 + method[4]);
    else if (which == ACK) take_confirm(c, method + 4);
    else if (which == NACK) refused++;
    else fail("an unexpected method %u.%u", class, which);
}

static void take_body(connection *c, const uint8_t *payload, size_t size, uint64_t now) {
    check_message(c, payload, size, now);
    if (!no_ack && ++consuming[c->index].unacked >= ack_every) put_ack(c);
}

static size_t take_packets(connection *c, uint64_t now) {
    size_t used = 0;
    while (c->in_used - used >= FRAME_OVERHEAD) {
        const uint8_t *frame = c->in + used;
        size_t size = get32(frame + 3);
        if (c->in_used - used < size + FRAME_OVERHEAD) break;
        errno = 0;
        if (frame[7 + size] != FRAME_END) fail("a frame without its end");
        if (frame[0] == METHOD) take_method(c, frame + 7, size);
        else if (frame[0] == BODY) take_body(c, frame + 7, size, now);
        used += size + FRAME_OVERHEAD;
    }
    return used;
}

int main(int count, char **values) {
    for (int letter; (letter = getopt(count, values, COMMON_OPTIONS "Q:fDak:m:")) != -1;) {
        switch (letter) {
        case 'Q': queues = atoi(optarg); break;
        case 'f': confirms = 1; break;
        case 'D': durable = 1; break;
        case 'a': no_ack = 1; break;
        case 'k': prefetch = (uint32_t)atoi(optarg); break;
        case 'm': ack_every = (uint32_t)atoi(optarg); break;
        default:
            if (take_option(letter, optarg)) break;
            fprintf(stderr, "usage: %s " COMMON_USAGE " [-Q QUEUES] [-f] [-D] [-a] "
                    "[-k PREFETCH] [-m ACK_EVERY]\n", values[0]);
            return EXIT_USAGE;
        }
    }
    check_options();
    if (queues < 1) fail("option -Q: at least 1");
    /* What is not yet due for an ack must not use up the prefetch, or both sides would wait. */
    if (prefetch && ack_every > prefetch) ack_every = prefetch;
    deliveries_each = options.subscribers ? 1 : 0;
    poll_socket = epoll_create1(EPOLL_CLOEXEC);
    publishers = take_memory((size_t)options.publishers, sizeof *publishers);
    subscribers = take_memory((size_t)options.subscribers, sizeof *subscribers);
    publishing = take_memory((size_t)options.publishers, sizeof *publishing);
    consuming = take_memory((size_t)options.subscribers, sizeof *consuming);
    for (int i = 0; i < options.subscribers; i++)
        connection_start(&subscribers[i], open_client(i, SUBSCRIBER), i, SUBSCRIBER);
    for (int i = 0; i < options.publishers; i++) {
        make_frames(i);
        connection_start(&publishers[i], open_client(i, PUBLISHER), i, PUBLISHER);
    }
    int code = load_run();
    for (int i = 0; i < options.subscribers; i++) {
        put_ack(&subscribers[i]);
        connection_flush(&subscribers[i]);
    }
    for (uint64_t from = now_ns(); now_ns() < from + LINGER_NS;) look(20);
    for (int i = 0; i < queues; i++) delete_queue(i);
    return code;
}
