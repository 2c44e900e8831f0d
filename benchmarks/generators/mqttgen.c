/* mqttgen: load over MQTT 3.1.1 or 5.0. See load.h for the rules, and for the options of both generators.
 *
 * Build: cc -O2 -Wall -Wextra -o mqttgen mqttgen.c
 * Options of its own:
 *   -q QOS      0, 1 or 2, of publishers and subscribers (default 0)
 *   -T TOPICS   publisher i publishes to PREFIX/(i mod T), subscriber j reads PREFIX/(j mod T)
 *   -5 COUNT    speak MQTT 5.0, and give each message so many user properties
 *   -k PATH     over WebSocket, asked for at this path
 *
 * Prints one line of JSON. Exits 0 only if everything sent arrived once, in order and intact.
 */
#include "load.h"

#define PACKET_IDS 65536
#define USER_PROPERTIES_MAX 32
enum packet { CONNACK = 2, PUBLISH = 3, PUBACK = 4, PUBREC = 5, PUBREL = 6, PUBCOMP = 7 };

static int qos, topics = 1;
static int five, user_properties;
static const char *websocket_path;

static struct {
    uint8_t *packet;                   /* a whole PUBLISH, to be copied and filled in */
    size_t size, packet_id_at, payload_at;
    uint32_t packet_id;                /* the last that was used */
    uint8_t *busy;                     /* by packet id: not acknowledged yet */
} *publishing;

static int wants_acks(void) { return qos > 0; }

static size_t put_length(uint8_t *to, size_t length) {
    size_t size = 0;
    do {
        uint8_t seven = length & 0x7F;
        length >>= 7;
        to[size++] = (uint8_t)(seven | (length ? 0x80 : 0));
    } while (length);
    return size;
}

static size_t topic_name(char *name, size_t size, int index) {
    return (size_t)snprintf(name, size, "%s/%d", options.prefix, index % topics);
}

/* The property length of a PUBLISH and its user properties; nothing before MQTT 5. */
static size_t put_properties(uint8_t *to) {
    uint8_t block[USER_PROPERTIES_MAX * 64];
    size_t size = 0, at;
    if (!five) return 0;
    for (int i = 0; i < user_properties; i++) {
        char name[24], value[24];
        size_t name_size = (size_t)snprintf(name, sizeof name, "name-%d", i);
        size_t value_size = (size_t)snprintf(value, sizeof value, "value-%d", i);
        block[size++] = 0x26;
        put16(block + size, (uint32_t)name_size);
        memcpy(block + size + 2, name, name_size);
        size += 2 + name_size;
        put16(block + size, (uint32_t)value_size);
        memcpy(block + size + 2, value, value_size);
        size += 2 + value_size;
    }
    at = put_length(to, size);
    memcpy(to + at, block, size);
    return at + size;
}

static void make_packet(int index) {
    char topic[128];
    uint8_t properties[USER_PROPERTIES_MAX * 64 + 4];
    size_t properties_size = put_properties(properties);
    size_t topic_size = topic_name(topic, sizeof topic, index), at = 0;
    size_t payload_size = (size_t)options.payload_bytes;
    size_t length = 2 + topic_size + (qos ? 2 : 0) + properties_size + payload_size;
    uint8_t *packet = take_memory(length + 8, 1);
    packet[at++] = (uint8_t)(PUBLISH << 4 | qos << 1);
    at += put_length(packet + at, length);
    put16(packet + at, (uint32_t)topic_size);
    memcpy(packet + at + 2, topic, topic_size);
    at += 2 + topic_size;
    publishing[index].packet_id_at = at;
    at += qos ? 2 : 0;
    memcpy(packet + at, properties, properties_size);
    at += properties_size;
    publishing[index].payload_at = at;
    memset(packet + at, 'x', payload_size);
    publishing[index].packet = packet;
    publishing[index].size = at + payload_size;
    publishing[index].busy = take_memory(PACKET_IDS, 1);
}

static void send_packet(int opened, const uint8_t *packet, size_t size) {
    uint8_t framed[256];
    size_t head = websocket ? put_frame_head(framed, size) : 0;
    memcpy(framed + head, packet, size);
    send_whole(opened, framed, head + size);
}

/* The start of a packet that has a frame of its own. */
static void receive_packet(int opened, uint8_t *packet, size_t size) {
    uint8_t head[2];
    errno = 0;
    if (websocket) {
        receive_whole(opened, head, 2);
        if (head[0] != BINARY_FRAME || head[1] >= LENGTH_16) fail("an unexpected frame");
    }
    receive_whole(opened, packet, size);
}

/* The handshake of WebSocket (RFC 6455 part 4.1); which key is answered makes no difference here. */
static void open_websocket(int opened) {
    char text[512];
    int size = snprintf(text, sizeof text,
                        "GET %s HTTP/1.1\r\nHost: %s:%d\r\nUpgrade: websocket\r\n"
                        "Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
                        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n",
                        websocket_path, options.host, options.port);
    send_whole(opened, (uint8_t *)text, (size_t)size);
    size_t used = 0;
    do {
        errno = 0;
        if (used + 1 == sizeof text) fail("the answer to the handshake is long");
        receive_whole(opened, (uint8_t *)text + used, 1);
        text[++used] = 0;
    } while (used < 4 || memcmp(text + used - 4, "\r\n\r\n", 4));
    errno = 0;
    if (strncmp(text, "HTTP/1.1 101", 12)) fail("no WebSocket at %s: %.40s", websocket_path, text);
}

/* Connects with a clean session and no keep-alive. */
static int open_client(int index, enum role role) {
    char id[64];
    size_t size = (size_t)snprintf(id, sizeof id, "gen%d-%c%d", (int)getpid(),
                                   role == PUBLISHER ? 'p' : 's', index);
    uint8_t packet[128] = {0x10, (uint8_t)(12 + five + size)}, answer[256];
    memcpy(packet + 2, five ? "\0\4MQTT\5\2\0\0\0" : "\0\4MQTT\4\2\0\0", (size_t)(10 + five));
    put16(packet + 12 + five, (uint32_t)size);
    memcpy(packet + 14 + five, id, size);
    int opened = connect_blocking(options.host, options.port, options.stall_seconds);
    if (websocket) open_websocket(opened);
    send_packet(opened, packet, (size_t)(14 + five) + size);
    receive_packet(opened, answer, 4);
    receive_whole(opened, answer + 4, (size_t)answer[1] - 2);
    errno = 0;
    if (answer[0] >> 4 != CONNACK || answer[3]) fail("CONNECT was refused with %d", answer[3]);
    return opened;
}

static void subscribe(int opened, int index) {
    char topic[128];
    uint8_t packet[160] = {0x82}, answer[6];
    size_t size = topic_name(topic, sizeof topic, index), at = (size_t)(4 + five);
    packet[1] = (uint8_t)(5 + (size_t)five + size);
    put16(packet + 2, 1); /* the property length behind it is 0 */
    put16(packet + at, (uint32_t)size);
    memcpy(packet + at + 2, topic, size);
    packet[at + 2 + size] = (uint8_t)qos;
    send_packet(opened, packet, at + 3 + size);
    receive_packet(opened, answer, (size_t)(5 + five));
    errno = 0;
    if (answer[0] != 0x90 || answer[4 + five] & 0x80) fail("SUBSCRIBE was refused");
}

static size_t message_bytes(const connection *c) { return publishing[c->index].size; }

static void put_message(connection *c, uint64_t due_ns) {
    size_t size = publishing[c->index].size;
    uint8_t *to = connection_put(c, size);
    memcpy(to, publishing[c->index].packet, size);
    if (qos) {
        uint32_t id = publishing[c->index].packet_id;
        do id = id % (PACKET_IDS - 1) + 1; while (publishing[c->index].busy[id]);
        publishing[c->index].busy[id] = 1;
        publishing[c->index].packet_id = id;
        put16(to + publishing[c->index].packet_id_at, id);
    }
    fill_message(c, to + publishing[c->index].payload_at, due_ns);
}

static void answer(connection *c, enum packet type, const uint8_t *packet_id) {
    uint8_t *packet = connection_put(c, 4);
    packet[0] = (uint8_t)(type << 4 | (type == PUBREL ? 2 : 0));
    packet[1] = 2;
    memcpy(packet + 2, packet_id, 2);
}

static void take_publish(connection *c, const uint8_t *packet, size_t at, size_t end,
                         uint64_t now) {
    at += 2 + get16(packet + at);
    if (packet[0] & 0x06) {
        answer(c, packet[0] & 0x04 ? PUBREC : PUBACK, packet + at);
        at += 2;
    }
    if (five) {
        size_t length = 0;
        int shift = 0;
        do {
            length |= (size_t)(packet[at] & 0x7F) << shift;
            shift += 7;
        } while (packet[at++] & 0x80 && at < end);
        at += length;
    }
    if (at > end) corrupt++;
    else check_message(c, packet + at, end - at, now);
}

/* The end of a message's exchange: PUBACK, or PUBCOMP for QoS 2. */
static void take_last_ack(connection *c, uint32_t id) {
    if (!publishing[c->index].busy[id]) { refused++; return; }
    publishing[c->index].busy[id] = 0;
    c->acknowledged++;
    acknowledged++;
}

static size_t take_packets(connection *c, uint64_t now) {
    size_t used = 0;
    for (;;) {
        const uint8_t *packet = c->in + used;
        size_t left = c->in_used - used, length = 0, at = 1;
        int shift = 0;
        do {
            if (at >= left) return used;
            length |= (size_t)(packet[at] & 0x7F) << shift;
            shift += 7;
        } while (packet[at++] & 0x80);
        if (left < at + length) return used;
        errno = 0;
        switch (packet[0] >> 4) {
        case PUBLISH: take_publish(c, packet, at, at + length, now); break;
        case PUBACK:
        case PUBCOMP: take_last_ack(c, get16(packet + at)); break;
        case PUBREC: answer(c, PUBREL, packet + at); break;
        case PUBREL: answer(c, PUBCOMP, packet + at); break;
        default: fail("an unexpected packet of type %d", packet[0] >> 4);
        }
        used += at + length;
    }
}

int main(int count, char **values) {
    for (int letter; (letter = getopt(count, values, COMMON_OPTIONS "q:T:5:k:")) != -1;) {
        if (letter == 'q') qos = atoi(optarg);
        else if (letter == 'T') topics = atoi(optarg);
        else if (letter == '5') five = 1, user_properties = atoi(optarg);
        else if (letter == 'k') websocket = 1, websocket_path = optarg;
        else if (!take_option(letter, optarg)) {
            fprintf(stderr, "usage: %s " COMMON_USAGE " [-q QOS] [-T TOPICS] [-5 COUNT] [-k PATH]\n",
                    values[0]);
            return EXIT_USAGE;
        }
    }
    check_options();
    if (qos < 0 || qos > 2) fail("option -q: 0, 1 or 2");
    if (user_properties < 0 || user_properties > USER_PROPERTIES_MAX) fail("option -5: 0 to 32");
    if (topics < 1 || options.subscribers % topics) fail("option -T: must divide the subscribers");
    deliveries_each = (uint64_t)(options.subscribers / topics);
    poll_socket = epoll_create1(EPOLL_CLOEXEC);
    publishers = take_memory((size_t)options.publishers, sizeof *publishers);
    subscribers = take_memory((size_t)options.subscribers, sizeof *subscribers);
    publishing = take_memory((size_t)options.publishers, sizeof *publishing);
    for (int i = 0; i < options.subscribers; i++) {
        int opened = open_client(i, SUBSCRIBER);
        subscribe(opened, i);
        connection_start(&subscribers[i], opened, i, SUBSCRIBER);
    }
    for (int i = 0; i < options.publishers; i++) {
        make_packet(i);
        connection_start(&publishers[i], open_client(i, PUBLISHER), i, PUBLISHER);
    }
    return load_run();
}
