# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""PUBLISH packets from records of the log in C, on pointers. `publishes.py` says what they are.

Rules: the same functions, results and errors as `publishes.py`, for every input. Portable C only.
Nothing in a record is believed before it is checked against the bytes that are there.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memchr, memcmp, memcpy, memmove

from polymq.core_log.kernels import batch as _batch
from polymq.gateways.mqtt.kernels import codes as _codes


# Copies of the declarations in core_log/kernels/batch.py and codes.py, as C constants: the
# assertions below hold them together.
cdef enum:
    RECORD_BORN_MS_AT = 40
    RECORD_BODY_SIZE_AT = 84
    RECORD_BODY_AT = 88
    RECORD_SIZE_MIN = 91
    VALUE_END = 2
    IDENTIFIER_MAX = 65535
    REMAINING_LENGTH_MAX = 268435455
    MESSAGE_EXPIRY = 0x02
    TOPIC_ALIAS = 0x23
    USER_PROPERTY = 0x26
    PAYLOAD_FORMAT = 0x01
    BLOCK_HEAD_SIZE = 10
    GIL_BYTES = 16384  # for less the GIL is held: to let it go costs more than it gives others

for _module, _name, _value in (
    (_batch, "RECORD_BORN_MS_AT", RECORD_BORN_MS_AT),
    (_batch, "RECORD_BODY_SIZE_AT", RECORD_BODY_SIZE_AT),
    (_batch, "RECORD_BODY_AT", RECORD_BODY_AT),
    (_batch, "VALUE_END", VALUE_END),
    (_codes, "RECORD_SIZE_MIN", RECORD_SIZE_MIN),
    (_codes, "IDENTIFIER_MAX", IDENTIFIER_MAX),
    (_codes, "REMAINING_LENGTH_MAX", REMAINING_LENGTH_MAX),
    (_codes, "MESSAGE_EXPIRY", MESSAGE_EXPIRY),
    (_codes, "TOPIC_ALIAS", TOPIC_ALIAS),
    (_codes, "USER_PROPERTY", USER_PROPERTY),
    (_codes, "PAYLOAD_FORMAT", PAYLOAD_FORMAT),
):
    if getattr(_module, _name) != _value:
        raise ImportError(f"the compiled MQTT kernels are older than {_name}: build again")

cdef const uint8_t* BLOCK_HEAD = b"PMQ_MQTT5\x01"
if _codes.BLOCK_HEAD != b"PMQ_MQTT5\x01":
    raise ImportError("the compiled MQTT kernels are older than BLOCK_HEAD: build again")


cdef inline uint32_t big_endian(const uint8_t* at) noexcept nogil:
    return (
        <uint32_t>at[0] << 24 | <uint32_t>at[1] << 16 | <uint32_t>at[2] << 8 | <uint32_t>at[3]
    )


cdef inline uint8_t* put_length(uint8_t* to, Py_ssize_t length) noexcept nogil:
    """Write a Variable Byte Integer; returns what is behind it."""
    while length > 0x7F:
        to[0] = <uint8_t>(length & 0x7F | 0x80)
        to += 1
        length >>= 7
    to[0] = <uint8_t>length
    return to + 1


cdef inline Py_ssize_t length_size(Py_ssize_t length) noexcept nogil:
    return 1 + (length > 0x7F) + (length > 0x3FFF) + (length > 0x1FFFFF)


# --- 3.1.1 -----------------------------------------------------------------------------------

cdef Py_ssize_t measure_records(
    const uint8_t* at, const uint8_t* end, Py_ssize_t overhead
) noexcept nogil:
    """Bytes of the packets; -1 if the range does not hold whole records, -2 if one is too long."""
    cdef Py_ssize_t total = 0, size, body_size, length
    while at < end:
        if end - at < RECORD_SIZE_MIN:
            return -1
        size = big_endian(at)
        body_size = big_endian(at + RECORD_BODY_SIZE_AT)
        if size > end - at or size < RECORD_SIZE_MIN or body_size > size - RECORD_SIZE_MIN:
            return -1
        length = overhead + body_size
        if length > REMAINING_LENGTH_MAX:
            return -2
        total += 2 + length
        while length > 0x7F:
            total += 1
            length >>= 7
        at += size
    return total


cdef void write_publishes(
    const uint8_t* at, const uint8_t* end, const uint8_t* topic, Py_ssize_t topic_size,
    int first_byte, bint numbered, Py_ssize_t identifier, uint8_t* to,
) noexcept nogil:
    cdef Py_ssize_t overhead = topic_size + (2 if numbered else 0)
    cdef Py_ssize_t body_size, length
    while at < end:
        body_size = big_endian(at + RECORD_BODY_SIZE_AT)
        length = overhead + body_size
        to[0] = <uint8_t>first_byte
        to = put_length(to + 1, length)
        memcpy(to, topic, topic_size)
        to += topic_size
        if numbered:
            to[0] = <uint8_t>(identifier >> 8)
            to[1] = <uint8_t>(identifier & 0xFF)
            to += 2
            identifier = identifier + 1 if identifier < IDENTIFIER_MAX else 1
        memcpy(to, at + RECORD_BODY_AT, body_size)
        to += body_size
        at += <Py_ssize_t>big_endian(at)


def encode_publishes(
    memory, Py_ssize_t start, Py_ssize_t end, bytes topic not None, int first_byte,
    Py_ssize_t first_packet_id,
):
    """The commit-log records of `memory[start:end]` as PUBLISH packets."""
    cdef Py_buffer view
    cdef Py_ssize_t total, topic_size = len(topic)
    cdef bint numbered = first_byte & 0x06 != 0
    cdef const uint8_t* name = <const uint8_t*>PyBytes_AS_STRING(topic)
    cdef const uint8_t* records
    cdef uint8_t* to
    cdef bytes out
    PyObject_GetBuffer(memory, &view, PyBUF_SIMPLE)
    try:
        if not 0 <= start <= end <= view.len:
            raise ValueError("the range is not inside the memory")
        if not 0 <= first_byte <= 0xFF:
            raise ValueError("not a first byte")
        if numbered and not 1 <= first_packet_id <= IDENTIFIER_MAX:
            raise ValueError("not a packet id")
        records = <const uint8_t*>view.buf
        if end - start < GIL_BYTES:
            total = measure_records(
                records + start, records + end, topic_size + (2 if numbered else 0)
            )
        else:
            with nogil:
                total = measure_records(
                    records + start, records + end, topic_size + (2 if numbered else 0)
                )
        if total == -1:
            raise ValueError("the range does not hold whole records")
        if total == -2:
            raise ValueError("the packet would be too long for MQTT")
        out = PyBytes_FromStringAndSize(NULL, total)
        to = <uint8_t*>PyBytes_AS_STRING(out)
        if end - start < GIL_BYTES:
            write_publishes(
                records + start, records + end, name, topic_size, first_byte, numbered,
                first_packet_id, to,
            )
        else:
            with nogil:
                write_publishes(
                    records + start, records + end, name, topic_size, first_byte, numbered,
                    first_packet_id, to,
                )
    finally:
        PyBuffer_Release(&view)
    return out


# --- 5.0 -------------------------------------------------------------------------------------

cdef struct Shape:
    # What all packets of one call have in common.
    const uint8_t* topic
    Py_ssize_t topic_size
    const uint8_t* again  # the topic behind the first packet that is written
    Py_ssize_t again_size
    const uint8_t* plain  # properties of records that have none of their own
    Py_ssize_t plain_size
    const uint8_t* more  # behind the properties of each
    Py_ssize_t more_size
    Py_ssize_t prefix_size
    int64_t now_ms
    Py_ssize_t size_max
    int first_byte
    bint numbered


cdef struct Found:
    # Of one record: its end, its body, and the base64 text of its property block.
    Py_ssize_t end
    Py_ssize_t body_size
    Py_ssize_t text
    Py_ssize_t text_size  # -1: it has none


cdef bint find_parts(
    const uint8_t* p, Py_ssize_t at, Py_ssize_t end, Py_ssize_t prefix_size, Found* found
) noexcept nogil:
    """Where the parts of the record at `at` are; False if it is damaged."""
    cdef int64_t size, body_size
    cdef Py_ssize_t properties, properties_end
    cdef const uint8_t* value_end
    if end - at < RECORD_SIZE_MIN:
        return False
    size = big_endian(p + at)
    body_size = big_endian(p + at + RECORD_BODY_SIZE_AT)
    if size > end - at or size < RECORD_SIZE_MIN or body_size > size - RECORD_SIZE_MIN:
        return False
    found.end = at + size
    found.body_size = body_size
    found.text_size = -1
    properties = at + RECORD_BODY_AT + body_size
    properties += 1 + p[properties]
    if properties + 2 > found.end:
        return False
    properties_end = properties + 2 + (p[properties] << 8 | p[properties + 1])
    properties += 2 + prefix_size
    if properties_end > found.end:
        return False
    while properties < properties_end:
        value_end = <const uint8_t*>memchr(
            p + properties, VALUE_END, <size_t>(properties_end - properties)
        )
        if value_end == NULL:
            return False
        if (
            value_end - (p + properties) >= BLOCK_HEAD_SIZE
            and memcmp(p + properties, BLOCK_HEAD, BLOCK_HEAD_SIZE) == 0
        ):
            found.text = properties + BLOCK_HEAD_SIZE
            found.text_size = value_end - (p + found.text)
            return found.text_size % 4 == 0
        properties = value_end - p + 1
    return True


cdef inline int digit(uint8_t c) noexcept nogil:
    if c"A" <= c <= c"Z":
        return c - c"A"
    if c"a" <= c <= c"z":
        return c - c"a" + 26
    if c"0" <= c <= c"9":
        return c - c"0" + 52
    if c == c"+":
        return 62
    return 63 if c == c"/" else -1


cdef Py_ssize_t decode(const uint8_t* text, Py_ssize_t size, uint8_t* to) noexcept nogil:
    """Padded base64 text as bytes, of which there is room for 3 to 4 characters. Returns how many
    there are; -1 if the text is not base64."""
    cdef Py_ssize_t at, padding = 0
    cdef int a, b, c, d
    if size and text[size - 1] == c"=":
        padding = 2 if text[size - 2] == c"=" else 1
    for at in range(0, size, 4):
        a = digit(text[at])
        b = digit(text[at + 1])
        c = digit(text[at + 2])
        d = digit(text[at + 3])
        if at + 4 == size and padding:
            d = 0
            if padding == 2:
                c = 0
        if a < 0 or b < 0 or c < 0 or d < 0:
            return -1
        to[0] = <uint8_t>(a << 2 | b >> 4)
        to[1] = <uint8_t>((b & 15) << 4 | c >> 2)
        to[2] = <uint8_t>((c & 3) << 6 | d)
        to += 3
    return size // 4 * 3 - padding


cdef Py_ssize_t to_forward(uint8_t* block, Py_ssize_t size, int64_t waited_s) noexcept nogil:
    """Turn a client's property block into what is sent to others: without its Topic Alias, and with
    what is left of its expiry interval. Returns the new size; -1 if it is no property block."""
    cdef Py_ssize_t at = 0, begin, field, fields
    cdef int64_t left
    cdef int kind
    while at < size:
        begin = at
        kind = block[at]
        at += 1
        if kind == TOPIC_ALIAS:
            if size - at < 2:
                return -1
            memmove(block + begin, block + at + 2, <size_t>(size - at - 2))
            size -= 3
            at = begin
            continue
        if kind == PAYLOAD_FORMAT:
            at += 1
        elif kind == MESSAGE_EXPIRY:
            if size - at < 4:
                return -1
            left = <int64_t>big_endian(block + at) - waited_s
            if left < 0:
                left = 0
            block[at] = <uint8_t>(left >> 24)
            block[at + 1] = <uint8_t>(left >> 16 & 0xFF)
            block[at + 2] = <uint8_t>(left >> 8 & 0xFF)
            block[at + 3] = <uint8_t>(left & 0xFF)
            at += 4
        else:
            fields = 2 if kind == USER_PROPERTY else 1
            for field in range(fields):
                if size - at < 2:
                    return -1
                at += 2 + (block[at] << 8 | block[at + 1])
        if at > size:
            return -1
    return size


cdef Py_ssize_t room_for(
    const Shape* shape, const uint8_t* p, Py_ssize_t at, Py_ssize_t end, Py_ssize_t* block_max
) noexcept nogil:
    """Bytes that the packets have at most; -1: the range does not hold whole records, -2: one is
    too long. Sets how large a decoded block is at most."""
    # A packet that is left out and has the long topic leaves the next one the room for it.
    cdef Found found
    cdef Py_ssize_t total = 0, properties, length, topic_size = shape.topic_size
    while at < end:
        if not find_parts(p, at, end, shape.prefix_size, &found):
            return -1
        properties = shape.plain_size
        if found.text_size >= 0:
            properties = found.text_size // 4 * 3
            if properties > block_max[0]:
                block_max[0] = properties
        properties += shape.more_size
        length = shape.topic_size + 2 + length_size(properties) + properties + found.body_size
        if length > REMAINING_LENGTH_MAX:
            return -2
        length -= shape.topic_size - topic_size
        total += 1 + length_size(length) + length
        topic_size = shape.again_size
        at = found.end
    return total


cdef uint8_t* write_publishes_5(
    const Shape* shape, const uint8_t* p, Py_ssize_t at, Py_ssize_t end, Py_ssize_t identifier,
    uint8_t* scratch, uint8_t* to, Py_ssize_t* dropped,
) noexcept nogil:
    """Write the packets, but for those that are too large, which are counted. Returns what is
    behind them, or NULL if a block is damaged."""
    cdef Found found
    cdef const uint8_t* block
    cdef const uint8_t* topic = shape.topic
    cdef Py_ssize_t size, length, number, topic_size = shape.topic_size
    cdef int64_t born_ms
    while at < end:
        number = identifier
        if shape.numbered:
            identifier = identifier + 1 if identifier < IDENTIFIER_MAX else 1
        find_parts(p, at, end, shape.prefix_size, &found)
        block = shape.plain
        size = shape.plain_size
        if found.text_size >= 0:
            born_ms = <int64_t>(
                <uint64_t>big_endian(p + at + RECORD_BORN_MS_AT) << 32
                | big_endian(p + at + RECORD_BORN_MS_AT + 4)
            )
            size = decode(p + found.text, found.text_size, scratch)
            if size >= 0:
                size = to_forward(
                    scratch, size,
                    (shape.now_ms - born_ms) // 1000 if shape.now_ms > born_ms else 0,
                )
            if size < 0:
                return NULL
            block = scratch
        length = (
            topic_size + (2 if shape.numbered else 0)
            + length_size(size + shape.more_size) + size + shape.more_size + found.body_size
        )
        if 1 + length_size(length) + length > shape.size_max:
            dropped[0] += 1
            at = found.end
            continue
        to[0] = <uint8_t>shape.first_byte
        to = put_length(to + 1, length)
        memcpy(to, topic, <size_t>topic_size)
        to += topic_size
        topic = shape.again
        topic_size = shape.again_size
        if shape.numbered:
            to[0] = <uint8_t>(number >> 8)
            to[1] = <uint8_t>(number & 0xFF)
            to += 2
        to = put_length(to, size + shape.more_size)
        memcpy(to, block, <size_t>size)
        to += size
        memcpy(to, shape.more, <size_t>shape.more_size)
        to += shape.more_size
        memcpy(to, p + at + RECORD_BODY_AT, <size_t>found.body_size)
        to += found.body_size
        at = found.end
    return to


def encode_publishes_5(
    memory, Py_ssize_t start, Py_ssize_t end, bytes topic not None, int first_byte,
    Py_ssize_t first_packet_id, Py_ssize_t prefix_size, bytes plain not None, bytes more not None,
    int64_t now_ms, Py_ssize_t size_max=REMAINING_LENGTH_MAX + 5, bytes again=None,
):
    """The same as packets of MQTT 5, and how many are left out."""
    cdef Py_buffer view
    cdef Shape shape
    cdef Py_ssize_t total, block_max = 0, dropped = 0
    cdef const uint8_t* records
    cdef uint8_t* scratch = NULL
    cdef uint8_t* to
    cdef uint8_t* written
    cdef bytes out
    if not 0 <= first_byte <= 0xFF:
        raise ValueError("not a first byte")
    if prefix_size < 0:
        raise ValueError("not a size")
    shape.topic = <const uint8_t*>PyBytes_AS_STRING(topic)
    shape.topic_size = len(topic)
    if again is None:
        again = topic
    shape.again = <const uint8_t*>PyBytes_AS_STRING(again)
    shape.again_size = len(again)
    shape.plain = <const uint8_t*>PyBytes_AS_STRING(plain)
    shape.plain_size = len(plain)
    shape.more = <const uint8_t*>PyBytes_AS_STRING(more)
    shape.more_size = len(more)
    shape.prefix_size = prefix_size
    shape.now_ms = now_ms
    shape.size_max = size_max
    shape.first_byte = first_byte
    shape.numbered = first_byte & 0x06 != 0
    if shape.numbered and not 1 <= first_packet_id <= IDENTIFIER_MAX:
        raise ValueError("not a packet id")
    if shape.again_size > shape.topic_size:
        raise ValueError("the topic field is longer where it is repeated")
    PyObject_GetBuffer(memory, &view, PyBUF_SIMPLE)
    try:
        if not 0 <= start <= end <= view.len:
            raise ValueError("the range is not inside the memory")
        records = <const uint8_t*>view.buf
        with nogil:
            total = room_for(&shape, records, start, end, &block_max)
        if total == -1:
            raise ValueError("the range does not hold whole records")
        if total == -2:
            raise ValueError("the packet would be too long for MQTT")
        out = PyBytes_FromStringAndSize(NULL, total)
        if block_max:
            scratch = <uint8_t*>malloc(<size_t>block_max)
            if scratch == NULL:
                raise MemoryError
        to = <uint8_t*>PyBytes_AS_STRING(out)
        with nogil:
            written = write_publishes_5(
                &shape, records, start, end, first_packet_id, scratch, to, &dropped
            )
        if written == NULL:
            raise ValueError("a property block is damaged")
        total = written - to
    finally:
        free(scratch)
        PyBuffer_Release(&view)
    return out if total == len(out) else out[:total], dropped
