# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False
"""Finding records whose messages belong to a sampled trace, in C on pointers. `traced.py` says what
the function does.

Rules: the same results and errors as `traced.py`, for every input. Between two records that are
found, no Python object is made, and the lock of the interpreter is not held.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memchr, memcmp

from polymq.core_log.kernels.base64 cimport decode_base64
from polymq.core_log.kernels.record cimport (
    PROPERTY_CRC_SIZE, SYSTEM_TOPIC, SYSTEM_TOPIC_SIZE, has_topic, properties_at, size_of,
)

cdef enum:
    NAME_SIZE = 11
    VALUE_SIZE = 55
    FLAG_AT = 54
    DECODED_MAX = 24576  # three quarters of the most that properties can have


cdef bint is_sampled(const uint8_t *at, Py_ssize_t size) noexcept nogil:
    cdef uint8_t flag
    if size < VALUE_SIZE or at[2] != 45 or at[35] != 45 or at[52] != 45:
        return False
    flag = at[FLAG_AT]
    if 48 <= flag <= 57:
        return flag & 1
    return flag == 98 or flag == 100 or flag == 102


cdef bint contains_sampled(const uint8_t *at, Py_ssize_t size) noexcept nogil:
    """Whether a sampled value is behind the name, wherever it is."""
    cdef const uint8_t *end = at + size
    while end - at >= NAME_SIZE + VALUE_SIZE:
        at = <const uint8_t *>memchr(at, 116, end - at - NAME_SIZE - VALUE_SIZE + 1)
        if at == NULL:
            return False
        if memcmp(at, b"traceparent", NAME_SIZE) == 0:
            if is_sampled(at + NAME_SIZE + 2, end - at - NAME_SIZE - 2):
                return True
            if is_sampled(at + NAME_SIZE + 5, end - at - NAME_SIZE - 5):
                return True
        at += 1
    return False


cdef bint has_sampled(const uint8_t *at, const uint8_t *end, uint8_t *decoded) noexcept nogil:
    """Whether the properties in [at, end) have a sampled value."""
    cdef const uint8_t *stop
    cdef const uint8_t *value
    cdef Py_ssize_t size
    while at < end:
        stop = <const uint8_t *>memchr(at, 2, end - at)
        if stop == NULL:
            stop = end
        value = <const uint8_t *>memchr(at, 1, stop - at)
        if value != NULL:
            size = value - at
            value += 1
            if size == NAME_SIZE and memcmp(at, b"traceparent", NAME_SIZE) == 0:
                if is_sampled(value, stop - value):
                    return True
            elif (size == 8 and memcmp(at, b"PMQ_AMQP", 8) == 0) or (
                size == 9 and memcmp(at, b"PMQ_MQTT5", 9) == 0
            ):
                if contains_sampled(decoded, decode_base64(value, stop - value, decoded)):
                    return True
        at = stop + 1
    return False


def find_sampled(memory, Py_ssize_t start, Py_ssize_t end):
    cdef Py_buffer view
    cdef const uint8_t *base
    cdef const uint8_t *record
    cdef const uint8_t *properties
    cdef Py_ssize_t at = start
    cdef int64_t size = 0
    cdef uint8_t decoded[DECODED_MAX]
    cdef bint is_found
    cdef list found = []
    PyObject_GetBuffer(memory, &view, PyBUF_SIMPLE)
    try:
        base = <const uint8_t *>view.buf
        while at < end:
            with nogil:
                is_found = False
                while at < end and not is_found:
                    size = -1 if at < 0 or end > view.len else size_of(base + at, end - at)
                    if size < 0:
                        break
                    record = base + at
                    properties = record + properties_at(record)
                    if not has_topic(properties, SYSTEM_TOPIC, SYSTEM_TOPIC_SIZE):
                        is_found = has_sampled(
                            properties, record + size - PROPERTY_CRC_SIZE, decoded
                        )
                    at += size
            if size < 0:
                raise ValueError("not a record")
            if is_found:
                found.append(at - size)
        return found
    finally:
        PyBuffer_Release(&view)
