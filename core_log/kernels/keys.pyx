# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False
"""The key index's inner loops, in C on pointers. `keys.py` says what each function does.

Rules: the same functions, results and errors as `keys.py`, for every input.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.string cimport memchr, memcmp

from polymq.core_log.kernels.base64 cimport decode_base64
from polymq.core_log.kernels.numbers cimport get32, get64, put32, put64
from polymq.core_log.kernels.record cimport (
    BODY_AT, BODY_SIZE_AT, POSITION_AT, PROPERTY_CRC_SIZE, SYSTEM_TOPIC, SYSTEM_TOPIC_SIZE,
    has_topic, properties_at, size_of,
)

from polymq.core_log.kernels import batch as _batch
from polymq.core_log.kernels.writing import java_hash

cdef enum:
    ROW_SIZE = 20
    KEY_ENTRY_SIZE = 20
    STORE_MS_OFFSET = 56
    DECODED_MAX = 24576  # three quarters of the most that properties can have
    MESSAGE_ID_BIT = 7

if _batch.RECORD_STORE_MS_AT != STORE_MS_OFFSET or _batch.PROPERTIES_SIZE_MAX > 32767:
    raise ImportError(
        "polymq.core_log.kernels.keys was built for other declarations: build it again"
    )

cdef const char *KINDS = "sstbbssss"


cdef uint32_t hash_key(const uint8_t *topic, Py_ssize_t topic_size, const uint8_t *key,
                       Py_ssize_t size) except? 0xFFFFFFFF:
    """`key_hash` of keys.py."""
    cdef uint32_t hashed = 0
    cdef int64_t value
    cdef Py_ssize_t index
    cdef bint ascii = True
    for index in range(topic_size):
        ascii = ascii and topic[index] < 128
        hashed = 31 * hashed + topic[index]
    hashed = 31 * hashed + 35
    for index in range(size):
        ascii = ascii and key[index] < 128
        hashed = 31 * hashed + key[index]
    if ascii:
        value = <int64_t><int>hashed
    else:
        text = (
            PyBytes_FromStringAndSize(<const char *>topic, topic_size) + b"#"
            + PyBytes_FromStringAndSize(<const char *>key, size)
        )
        value = java_hash(text.decode("utf-8", "surrogateescape"))
    if value == -2147483648:
        return 0
    return <uint32_t>(-value if value < 0 else value)


def key_hash(bytes topic, bytes key):
    return hash_key(
        <const uint8_t *>PyBytes_AS_STRING(topic), len(topic),
        <const uint8_t *>PyBytes_AS_STRING(key), len(key),
    )


cdef Py_ssize_t message_id(const uint8_t *raw, Py_ssize_t size,
                           const uint8_t **found) noexcept nogil:
    """Where AMQP's properties have their message id, and its size; 0 if there is none."""
    cdef uint32_t flags
    cdef Py_ssize_t at = 2
    cdef int bit
    if size < 2:
        return 0
    flags = <uint32_t>raw[0] << 8 | raw[1]
    if not flags >> MESSAGE_ID_BIT & 1 or flags & 1:
        return 0
    for bit in range(15, MESSAGE_ID_BIT - 1, -1):
        if not flags >> bit & 1:
            continue
        if KINDS[15 - bit] == b"b":
            at += 1
        elif KINDS[15 - bit] == b"t":
            if at + 4 > size:
                return 0
            at += 4 + <Py_ssize_t>get32(raw + at)
        else:
            if at >= size or at + 1 + raw[at] > size:
                return 0
            if bit == MESSAGE_ID_BIT:
                found[0] = raw + at + 1
                return raw[at]
            at += 1 + raw[at]
    return 0


cdef int add_row(bytearray rows, Py_ssize_t *used, const uint8_t *record, const uint8_t *topic,
                 Py_ssize_t topic_size, const uint8_t *key, Py_ssize_t size) except -1:
    """Add the row of one key."""
    cdef uint8_t *out
    cdef uint32_t hashed = hash_key(topic, topic_size, key, size)
    if used[0] + ROW_SIZE > PyByteArray_GET_SIZE(rows):
        PyByteArray_Resize(rows, 2 * PyByteArray_GET_SIZE(rows) + 4 * ROW_SIZE)
    out = <uint8_t *>PyByteArray_AS_STRING(rows) + used[0]
    put32(out, hashed)
    put64(out + 4, get64(record + POSITION_AT))
    put64(out + 12, get64(record + STORE_MS_OFFSET))
    used[0] += ROW_SIZE
    return 0


cdef int add_keys(bytearray rows, Py_ssize_t *used, const uint8_t *record, const uint8_t *topic,
                  Py_ssize_t topic_size, const uint8_t *at, const uint8_t *end) except -1:
    """Add the rows of the properties in [at, end)."""
    cdef uint8_t decoded[DECODED_MAX]
    cdef const uint8_t *stop
    cdef const uint8_t *value
    cdef const uint8_t *word
    cdef Py_ssize_t name_size, size
    while at < end:
        stop = <const uint8_t *>memchr(at, 2, end - at)
        if stop == NULL:
            stop = end
        value = <const uint8_t *>memchr(at, 1, stop - at)
        if value != NULL:
            name_size = value - at
            value += 1
            if name_size == 4 and memcmp(at, b"KEYS", 4) == 0:
                while value < stop:
                    word = <const uint8_t *>memchr(value, 32, stop - value)
                    if word == NULL:
                        word = stop
                    if word > value:
                        add_row(rows, used, record, topic, topic_size, value, word - value)
                    value = word + 1
            elif name_size == 8 and memcmp(at, b"UNIQ_KEY", 8) == 0:
                if stop > value:
                    add_row(rows, used, record, topic, topic_size, value, stop - value)
            elif name_size == 8 and memcmp(at, b"PMQ_AMQP", 8) == 0:
                size = decode_base64(value, stop - value, decoded)
                size = message_id(decoded, size, &word)
                if size > 0:
                    add_row(rows, used, record, topic, topic_size, word, size)
        at = stop + 1
    return 0


def find_keys(memory, Py_ssize_t start, Py_ssize_t end):
    cdef Py_buffer view
    cdef const uint8_t *base
    cdef const uint8_t *record
    cdef const uint8_t *properties
    cdef const uint8_t *topic
    cdef Py_ssize_t at = start
    cdef Py_ssize_t used = 0
    cdef int64_t size
    cdef bytearray rows = bytearray()
    PyObject_GetBuffer(memory, &view, PyBUF_SIMPLE)
    try:
        base = <const uint8_t *>view.buf
        while at < end:
            size = -1 if at < 0 or end > view.len else size_of(base + at, end - at)
            if size < 0:
                raise ValueError("not a record")
            record = base + at
            properties = record + properties_at(record)
            topic = record + BODY_AT + <int64_t>get32(record + BODY_SIZE_AT) + 1
            if not has_topic(properties, SYSTEM_TOPIC, SYSTEM_TOPIC_SIZE):
                add_keys(rows, &used, record, topic, properties - 2 - topic, properties,
                         record + size - PROPERTY_CRC_SIZE)
            at += size
        return PyBytes_FromStringAndSize(PyByteArray_AS_STRING(rows), used)
    finally:
        PyBuffer_Release(&view)


cdef uint32_t slots_of(bytearray slots) except 0:
    """How many slots there are."""
    if PyByteArray_GET_SIZE(slots) % 4 or not PyByteArray_GET_SIZE(slots):
        raise ValueError("not a table of slots")
    return <uint32_t>(PyByteArray_GET_SIZE(slots) // 4)


def link_keys(rows, bytearray slots not None, uint32_t number, int64_t begin_ms):
    cdef Py_buffer view
    cdef uint32_t count = slots_of(slots)
    cdef uint8_t *table = <uint8_t *>PyByteArray_AS_STRING(slots)
    cdef const uint8_t *row
    cdef uint8_t *slot
    cdef uint8_t *out
    cdef int64_t elapsed
    cdef bytes entries
    cdef Py_ssize_t index
    PyObject_GetBuffer(rows, &view, PyBUF_SIMPLE)
    try:
        if view.len % ROW_SIZE:
            raise ValueError("not whole rows")
        entries = PyBytes_FromStringAndSize(NULL, view.len)
        out = <uint8_t *>PyBytes_AS_STRING(entries)
        row = <const uint8_t *>view.buf
        for index in range(view.len // ROW_SIZE):
            slot = table + <Py_ssize_t>(get32(row) % count) * 4
            elapsed = get64(row + 12) - begin_ms
            elapsed = 0 if elapsed < 0 else elapsed // 1000
            put32(out, get32(row))
            put64(out + 4, get64(row + 4))
            put32(out + 12, 0x7FFFFFFF if elapsed > 0x7FFFFFFF else <uint32_t>elapsed)
            put32(out + 16, get32(slot))
            put32(slot, number)
            number += 1
            row += ROW_SIZE
            out += KEY_ENTRY_SIZE
        return entries
    finally:
        PyBuffer_Release(&view)


def fill_slots(entries, bytearray slots not None, uint32_t number):
    cdef Py_buffer view
    cdef uint32_t count = slots_of(slots)
    cdef uint8_t *table = <uint8_t *>PyByteArray_AS_STRING(slots)
    cdef const uint8_t *entry
    cdef Py_ssize_t index
    PyObject_GetBuffer(entries, &view, PyBUF_SIMPLE)
    try:
        if view.len % KEY_ENTRY_SIZE:
            raise ValueError("not whole entries")
        entry = <const uint8_t *>view.buf
        for index in range(view.len // KEY_ENTRY_SIZE):
            put32(table + <Py_ssize_t>(get32(entry) % count) * 4, number)
            number += 1
            entry += KEY_ENTRY_SIZE
    finally:
        PyBuffer_Release(&view)
