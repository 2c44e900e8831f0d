/* Preloaded into a process: lets single calls of the C library fail, come short, or be interrupted.
 *
 * `shim_arm(call, ordinal, action)` chooses the ordinal-th call (1 is the next one) of this kind
 * from now on. The action is an errno, with which the call fails without doing anything; or
 * SHIM_SHORT: a write takes only its first half. `shim_count(call)` says how many calls there were
 * since the last `shim_arm`. Only files are concerned whose descriptor is not a socket, pipe or
 * eventfd: a write with a position can only go to a file.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>

#define SHIM_SHORT 100000

enum { WRITE, SYNC, OPEN, ALLOCATE, TRUNCATE, READ, CALLS };
static const char *const names[CALLS] = {"write", "sync", "open", "allocate", "truncate", "read"};
static atomic_int counts[CALLS], ordinals[CALLS], actions[CALLS];

static int number_of(const char *call) {
    for (int at = 0; at < CALLS; at++)
        if (strcmp(names[at], call) == 0) return at;
    return -1;
}

int shim_arm(const char *call, int ordinal, int action) {
    int number = number_of(call);
    if (number < 0) return -1;
    for (int at = 0; at < CALLS; at++) {
        atomic_store(&ordinals[at], 0);
        atomic_store(&counts[at], 0);
    }
    atomic_store(&actions[number], action);
    atomic_store(&ordinals[number], ordinal);
    return 0;
}

int shim_count(const char *call) {
    int number = number_of(call);
    return number < 0 ? -1 : atomic_load(&counts[number]);
}

/* What is to happen to this call: 0 is nothing. */
static int action_of(int call) {
    int count = atomic_fetch_add(&counts[call], 1) + 1;
    return count == atomic_load(&ordinals[call]) ? atomic_load(&actions[call]) : 0;
}

#define REAL(name) \
    static __typeof__(&name) real; \
    if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

#define FAIL(action) do { errno = (action); return -1; } while (0)

#define WRITER(name, offset) \
    ssize_t name(int file, const void *data, size_t size, offset position) { \
        REAL(name); \
        int action = action_of(WRITE); \
        if (action == SHIM_SHORT) return real(file, data, size > 1 ? size / 2 : size, position); \
        if (action) FAIL(action); \
        return real(file, data, size, position); \
    }
WRITER(pwrite, off_t)
WRITER(pwrite64, off64_t)

#define VECTOR_WRITER(name, offset) \
    ssize_t name(int file, const struct iovec *parts, int count, offset position) { \
        REAL(name); \
        int action = action_of(WRITE); \
        if (action == SHIM_SHORT && count > 1) return real(file, parts, count / 2, position); \
        if (action == SHIM_SHORT && parts[0].iov_len > 1) { \
            struct iovec half = {parts[0].iov_base, parts[0].iov_len / 2}; \
            return real(file, &half, 1, position); \
        } \
        if (action && action != SHIM_SHORT) FAIL(action); \
        return real(file, parts, count, position); \
    }
VECTOR_WRITER(pwritev, off_t)
VECTOR_WRITER(pwritev64, off64_t)

#define FLAGGED_WRITER(name, offset) \
    ssize_t name(int file, const struct iovec *parts, int count, offset position, int flags) { \
        REAL(name); \
        int action = action_of(WRITE); \
        if (action == SHIM_SHORT && count > 1) return real(file, parts, count / 2, position, flags); \
        if (action == SHIM_SHORT && parts[0].iov_len > 1) { \
            struct iovec half = {parts[0].iov_base, parts[0].iov_len / 2}; \
            return real(file, &half, 1, position, flags); \
        } \
        if (action && action != SHIM_SHORT) FAIL(action); \
        return real(file, parts, count, position, flags); \
    }
FLAGGED_WRITER(pwritev2, off_t)
FLAGGED_WRITER(pwritev64v2, off64_t)

#define READER(name, offset) \
    ssize_t name(int file, void *data, size_t size, offset position) { \
        REAL(name); \
        int action = action_of(READ); \
        if (action == SHIM_SHORT) return real(file, data, size > 1 ? size / 2 : size, position); \
        if (action) FAIL(action); \
        return real(file, data, size, position); \
    }
READER(pread, off_t)
READER(pread64, off64_t)

#define ONE_FILE(name, call) \
    int name(int file) { \
        REAL(name); \
        int action = action_of(call); \
        if (action && action != SHIM_SHORT) FAIL(action); \
        return real(file); \
    }
ONE_FILE(fsync, SYNC)
ONE_FILE(fdatasync, SYNC)

#define TRUNCATER(name, offset) \
    int name(int file, offset size) { \
        REAL(name); \
        int action = action_of(TRUNCATE); \
        if (action && action != SHIM_SHORT) FAIL(action); \
        return real(file, size); \
    }
TRUNCATER(ftruncate, off_t)
TRUNCATER(ftruncate64, off64_t)

/* posix_fallocate returns its error. */
#define ALLOCATER(name, offset) \
    int name(int file, offset from, offset size) { \
        REAL(name); \
        int action = action_of(ALLOCATE); \
        if (action && action != SHIM_SHORT) return action; \
        return real(file, from, size); \
    }
ALLOCATER(posix_fallocate, off_t)
ALLOCATER(posix_fallocate64, off64_t)

#define OPENER(name) \
    int name(const char *path, int flags, ...) { \
        REAL(name); \
        va_list rest; \
        va_start(rest, flags); \
        int mode = va_arg(rest, int); \
        va_end(rest); \
        int action = action_of(OPEN); \
        if (action && action != SHIM_SHORT) FAIL(action); \
        return real(path, flags, mode); \
    }
#include <fcntl.h>
OPENER(open)
OPENER(open64)
