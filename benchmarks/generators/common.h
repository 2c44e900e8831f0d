/* What all generators share: failing, clocks, numbers on the wire, blocking sockets. */
#ifndef COMMON_H
#define COMMON_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define SECOND_NS 1000000000ull
#define EVENTS_MAX 512

enum exit_code { EXIT_EXACT = 0, EXIT_USAGE = 1, EXIT_FAILED = 2, EXIT_INEXACT = 4 };

static inline void fail(const char *format, ...) {
    int error = errno;
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fprintf(stderr, "%s%s\n", error ? ": " : "", error ? strerror(error) : "");
    exit(EXIT_FAILED);
}

static inline void *take_memory(size_t count, size_t size) {
    void *memory = calloc(count ? count : 1, size);
    if (!memory) fail("no memory");
    return memory;
}

static inline uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * SECOND_NS + (uint64_t)now.tv_nsec;
}

static inline uint64_t clock_used_ns(clockid_t clock) {
    struct timespec used;
    if (clock_gettime(clock, &used)) return 0;
    return (uint64_t)used.tv_sec * SECOND_NS + (uint64_t)used.tv_nsec;
}

/* Processor time of processes, given as "12,34": user and system, all threads. */
static inline uint64_t processes_used_ns(const char *ids) {
    uint64_t sum = 0;
    while (ids && *ids) {
        clockid_t clock;
        if (clock_getcpuclockid((pid_t)strtol(ids, NULL, 10), &clock) == 0)
            sum += clock_used_ns(clock);
        ids = strchr(ids, ',');
        if (ids) ids++;
    }
    return sum;
}

static inline void put16(uint8_t *p, uint32_t v) { p[0] = (uint8_t)(v >> 8); p[1] = (uint8_t)v; }
static inline void put32(uint8_t *p, uint32_t v) { put16(p, v >> 16); put16(p + 2, v); }
static inline void put64(uint8_t *p, uint64_t v) {
    put32(p, (uint32_t)(v >> 32));
    put32(p + 4, (uint32_t)v);
}
static inline uint32_t get16(const uint8_t *p) { return (uint32_t)p[0] << 8 | p[1]; }
static inline uint32_t get32(const uint8_t *p) { return get16(p) << 16 | get16(p + 2); }
static inline uint64_t get64(const uint8_t *p) { return (uint64_t)get32(p) << 32 | get32(p + 4); }

static inline int connect_blocking(const char *host, int port, int patience_seconds) {
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port),
    };
    errno = 0;
    if (inet_pton(AF_INET, host, &address.sin_addr) != 1) fail("not an IPv4 address");
    int made = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (made < 0) fail("socket");
    if (connect(made, (struct sockaddr *)&address, sizeof address)) fail("connect");
    int on = 1;
    setsockopt(made, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    struct timeval patience = {.tv_sec = patience_seconds};
    setsockopt(made, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    return made;
}

static inline void send_whole(int to, const void *bytes, size_t size) {
    while (size) {
        ssize_t sent = send(to, bytes, size, MSG_NOSIGNAL);
        if (sent <= 0) fail("send");
        bytes = (const uint8_t *)bytes + sent;
        size -= (size_t)sent;
    }
}

static inline void receive_whole(int from, void *bytes, size_t size) {
    while (size) {
        errno = 0;
        ssize_t received = recv(from, bytes, size, 0);
        if (received <= 0) fail("the server did not answer");
        bytes = (uint8_t *)bytes + received;
        size -= (size_t)received;
    }
}

#endif
