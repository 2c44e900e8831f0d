/* echogen: the floor. What the kernel's TCP costs on this machine, with nothing done in between, or
 * nothing but appending what was read to a file.
 *
 * Build: cc -O2 -Wall -Wextra -o echogen echogen.c
 * Usage: echogen listen [FILE]               an epoll loop that sends back what it reads, after
 *                                            writing it to FILE if there is one; prints its port,
 *                                            and runs until its input ends
 *        echogen PORT CONNECTIONS MESSAGE_BYTES SECONDS SERVER_PROCESS_ID
 *                                            one message in flight on each connection
 *
 * Prints one line of JSON: messages, seconds, and the server's processor time.
 */
#include "common.h"

#define CHUNK_BYTES 65536
#define PATIENCE_SECONDS 10

static int poll_socket;
static uint8_t chunk[CHUNK_BYTES];

static void watch(int descriptor) {
    struct epoll_event event = {.events = EPOLLIN, .data.fd = descriptor};
    if (epoll_ctl(poll_socket, EPOLL_CTL_ADD, descriptor, &event)) fail("epoll_ctl");
}

static int serve(const char *path) {
    int file = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
    if (path && file < 0) fail("%s", path);
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t size = sizeof address;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    if (bind(listener, (struct sockaddr *)&address, size) || listen(listener, 512)) fail("listen");
    getsockname(listener, (struct sockaddr *)&address, &size);
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    watch(listener);
    watch(STDIN_FILENO);
    for (;;) {
        struct epoll_event events[EVENTS_MAX];
        int count = epoll_wait(poll_socket, events, EVENTS_MAX, -1);
        for (int i = 0; i < count; i++) {
            int from = events[i].data.fd;
            if (from == STDIN_FILENO) return EXIT_EXACT;
            if (from == listener) {
                int accepted = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
                if (accepted < 0) fail("accept");
                setsockopt(accepted, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
                watch(accepted);
                continue;
            }
            ssize_t received = recv(from, chunk, sizeof chunk, 0);
            if (received <= 0) {
                close(from);
                continue;
            }
            if (path && write(file, chunk, (size_t)received) != received) fail("%s", path);
            send_whole(from, chunk, (size_t)received);
        }
    }
}

int main(int count, char **values) {
    poll_socket = epoll_create1(EPOLL_CLOEXEC);
    if (count >= 2 && count <= 3 && !strcmp(values[1], "listen")) return serve(values[2]);
    if (count != 6) {
        fprintf(stderr, "usage: %s listen [FILE] | PORT CONNECTIONS MESSAGE_BYTES SECONDS PROCESS_ID\n",
                values[0]);
        return EXIT_USAGE;
    }
    int port = atoi(values[1]), connections = atoi(values[2]);
    size_t size = (size_t)atol(values[3]);
    errno = 0;
    if (size < 1 || size > CHUNK_BYTES) fail("a message has 1 to %d bytes", CHUNK_BYTES);
    size_t *received_bytes = take_memory(65536, sizeof *received_bytes);
    for (int i = 0; i < connections; i++) {
        int opened = connect_blocking("127.0.0.1", port, PATIENCE_SECONDS);
        watch(opened);
        send_whole(opened, chunk, size);
    }
    uint64_t messages = 0, used = processes_used_ns(values[5]), start = now_ns(), now = start;
    for (uint64_t end = start + (uint64_t)(atof(values[4]) * 1e9); now < end; now = now_ns()) {
        struct epoll_event events[EVENTS_MAX];
        int ready = epoll_wait(poll_socket, events, EVENTS_MAX, 100);
        for (int i = 0; i < ready; i++) {
            int from = events[i].data.fd;
            ssize_t received = recv(from, chunk, sizeof chunk, 0);
            if (received <= 0) fail("recv");
            received_bytes[from] += (size_t)received;
            for (; received_bytes[from] >= size; received_bytes[from] -= size, messages++)
                send_whole(from, chunk, size);
        }
    }
    printf("{\"messages\": %llu, \"seconds\": %.6f, \"server_cpu_seconds\": %.6f}\n",
           (unsigned long long)messages, (double)(now - start) / 1e9,
           (double)(processes_used_ns(values[5]) - used) / 1e9);
    return EXIT_EXACT;
}
