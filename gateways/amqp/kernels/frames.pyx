# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False
"""The inner loops over frames and records, compiled.

Twin of `frames.py`, `plain_properties.py` and `plain_deliveries.py`, which tell what the functions
do. Here stands only how: on pointers, without the interpreter's lock, every length checked against
the end of the bytes before it is used.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.array cimport array
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy


cdef enum:
    C_NEED_DATA = 0
    C_FRAME = 1
    C_FULL = 2
    C_OVERSIZE = 3
    C_BAD_END = 4
    C_BAD_TYPE = 5
    C_WHOLE = -1

    C_MANDATORY = 1
    C_PERSISTENT = 2
    C_CHECKED = 4
    C_KEYED = 8
    C_CHANNEL_SHIFT = 8
    C_LONG_BYTES = 16384

    C_SETTLEMENT_COLUMNS = 5
    C_MULTIPLE = 1
    C_REQUEUE = 2
    C_NEGATIVE = 4

    C_COLUMNS = 8  # core_log.kernels.batch
    C_RECORD_BODY_SIZE_AT = 84
    C_RECORD_BODY_AT = 88
    C_VALUE_END = 2

    C_TABLE_DEPTH_MAX = 64
    C_EXTRA_HEAD_SIZE = 9
    C_MESSAGE_ID = 0x80
    C_CHECKED_BITS = 0x910  # priority, expiration, user-id

cdef const char *EXTRA_HEAD = b"PMQ_AMQP\x01"
# Kinds of the properties of bits 15 to 2: s short string, t table, b octet, q u64.
cdef const char *PROPERTY_KINDS = b"sstbbssssqssss"
cdef const char *DIRECT_REPLY_TO = b"amq.rabbitmq.reply-to"
cdef enum:
    DIRECT_REPLY_TO_SIZE = 21


cdef inline uint32_t get16(const uint8_t *p) noexcept nogil:
    return <uint32_t>p[0] << 8 | p[1]


cdef inline uint32_t get32(const uint8_t *p) noexcept nogil:
    return <uint32_t>p[0] << 24 | <uint32_t>p[1] << 16 | <uint32_t>p[2] << 8 | p[3]


cdef inline uint64_t get64(const uint8_t *p) noexcept nogil:
    return <uint64_t>get32(p) << 32 | get32(p + 4)


cdef inline void put16(uint8_t *p, uint32_t value) noexcept nogil:
    p[0] = <uint8_t>(value >> 8)
    p[1] = <uint8_t>value


cdef inline void put32(uint8_t *p, uint32_t value) noexcept nogil:
    put16(p, value >> 16)
    put16(p + 2, value & 0xFFFF)


cdef inline void put64(uint8_t *p, uint64_t value) noexcept nogil:
    put32(p, <uint32_t>(value >> 32))
    put32(p + 4, <uint32_t>value)


# --- properties ------------------------------------------------------------------------------

cdef inline int value_size(uint8_t kind) noexcept nogil:
    """Size of a table's value; -1 for those that carry their own, -2 for unknown types."""
    if kind == c't' or kind == c'b' or kind == c'B':
        return 1
    if kind == c's' or kind == c'u':
        return 2
    if kind == c'I' or kind == c'i' or kind == c'f':
        return 4
    if kind == c'l' or kind == c'L' or kind == c'd' or kind == c'T':
        return 8
    if kind == c'D':
        return 5
    if kind == c'V':
        return 0
    if kind == c'S' or kind == c'x' or kind == c'F' or kind == c'A':
        return -1
    return -2


cdef inline bint is_copy_name(const uint8_t *p, uint8_t size) noexcept nogil:
    if size == 3:
        return p[0] == c'B' and p[1] == c'C' and p[2] == c'C'
    return size == 2 and p[0] == c'C' and p[1] == c'C'


cdef int look_at_table(const uint8_t *p, Py_ssize_t at, Py_ssize_t end) noexcept nogil:
    cdef int result = 0
    cdef Py_ssize_t name
    cdef Py_ssize_t ends[C_TABLE_DEPTH_MAX]
    cdef bint arrays[C_TABLE_DEPTH_MAX]
    cdef int depth = 1
    cdef Py_ssize_t stop, size
    cdef uint8_t kind
    ends[0] = end
    arrays[0] = False
    while depth:
        stop = ends[depth - 1]
        if at == stop:
            depth -= 1
            continue
        if not arrays[depth - 1]:
            name = at
            at += 1 + p[at]
            if at >= stop:
                return -1
            if depth == 1 and is_copy_name(p + name + 1, p[name]):
                result = C_CHECKED
        kind = p[at]
        at += 1
        size = value_size(kind)
        if size == -2:
            return -1
        if size == -1:
            if stop - at < 4:
                return -1
            size = get32(p + at)
            at += 4
            if size > stop - at:
                return -1
            if kind == c'F' or kind == c'A':
                if depth >= C_TABLE_DEPTH_MAX:
                    return -1
                ends[depth] = at + size
                arrays[depth] = kind == c'A'
                depth += 1
                continue
        if size > stop - at:
            return -1
        at += size
    return result


cdef int scan(const uint8_t *p, Py_ssize_t start, Py_ssize_t end) noexcept nogil:
    cdef uint32_t flags
    cdef int result = 0
    cdef int index, found
    cdef char kind
    cdef Py_ssize_t at, size
    if end - start < 2:
        return -1
    flags = get16(p + start)
    if flags & 3:
        return -1
    if flags & C_CHECKED_BITS or end - start > C_LONG_BYTES:
        result = C_CHECKED
    if flags & C_MESSAGE_ID:
        result |= C_KEYED
    at = start + 2
    for index in range(14):
        if not flags & (<uint32_t>0x8000 >> index):
            continue
        kind = PROPERTY_KINDS[index]
        if kind == c'b':
            if at >= end:
                return -1
            if index == 3 and p[at] == 2:  # delivery-mode
                result |= C_PERSISTENT
            at += 1
        elif kind == c'q':
            at += 8
        elif kind == c's':
            if at >= end:
                return -1
            if (  # reply-to
                index == 6
                and p[at] == DIRECT_REPLY_TO_SIZE
                and end - at > DIRECT_REPLY_TO_SIZE
                and memcmp(p + at + 1, DIRECT_REPLY_TO, DIRECT_REPLY_TO_SIZE) == 0
            ):
                result |= C_CHECKED
            at += 1 + p[at]
        else:
            if end - at < 4:
                return -1
            size = get32(p + at)
            found = look_at_table(p, at + 4, at + 4 + size) if size <= end - at - 4 else -1
            if found < 0:
                return -1
            result |= found
            at += 4 + size
        if at > end:
            return -1
    return result if at == end else -1


def scan_properties(buffer, Py_ssize_t start, Py_ssize_t end):
    cdef Py_buffer view
    cdef int result
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        if start < 0 or end > view.len:
            raise IndexError("outside of the buffer")
        result = scan(<const uint8_t *>view.buf, start, end)
    finally:
        PyBuffer_Release(&view)
    return result


# --- frames to rows --------------------------------------------------------------------------

cdef inline int check_frame(
    const uint8_t *p, Py_ssize_t at, Py_ssize_t end, int64_t payload_max
) noexcept nogil:
    cdef int64_t size
    if end - at < 7:
        return C_NEED_DATA
    if not (1 <= p[at] <= 3 or p[at] == 8):
        return C_BAD_TYPE
    size = get32(p + at + 3)
    if size > payload_max:
        return C_OVERSIZE
    if end - at < size + 8:
        return C_NEED_DATA
    return C_WHOLE if p[at + 7 + size] == 0xCE else C_BAD_END


cdef struct State:
    const uint8_t *p
    Py_ssize_t at
    Py_ssize_t end
    int64_t payload_max
    uint64_t body_max
    int64_t *rows
    int64_t *runs
    int64_t *settlements
    int64_t capacity
    int64_t settlement_capacity
    int64_t count
    int64_t run_count
    int64_t settlement_count


cdef int take_publish(State *s) noexcept nogil:
    """Make a row of the publish whose method frame stands, whole, at `s.at`."""
    cdef const uint8_t *p = s.p
    cdef uint32_t channel = get16(p + s.at + 1)
    cdef Py_ssize_t method_end = s.at + 7 + get32(p + s.at + 3)
    cdef Py_ssize_t topic = s.at + 13
    cdef Py_ssize_t middle = method_end
    cdef Py_ssize_t bits_at = method_end
    cdef Py_ssize_t header, header_end, next_at, body = 0
    cdef uint64_t body_size
    cdef int stop, found
    cdef int64_t *row
    if topic < method_end:
        middle = topic + 1 + p[topic]
    if middle < method_end:
        bits_at = middle + 1 + p[middle]
    if bits_at != method_end - 1 or p[bits_at] & 2:
        return C_FRAME
    header = method_end + 1
    stop = check_frame(p, header, s.end, s.payload_max)
    if stop >= 0:
        return C_NEED_DATA if stop == C_NEED_DATA else C_FRAME
    header_end = header + 7 + get32(p + header + 3)
    if p[header] != 2 or get16(p + header + 1) != channel or header_end - header < 21:
        return C_FRAME
    body_size = get64(p + header + 11)
    if get32(p + header + 7) != 60 << 16 or body_size > s.body_max:
        return C_FRAME
    found = scan(p, header + 19, header_end)
    if found < 0:
        return C_FRAME
    next_at = header_end + 1
    if body_size:
        stop = check_frame(p, next_at, s.end, s.payload_max)
        if stop >= 0:
            return C_NEED_DATA if stop == C_NEED_DATA else C_FRAME
        if (
            p[next_at] != 3
            or get16(p + next_at + 1) != channel
            or get32(p + next_at + 3) != body_size
        ):
            return C_FRAME
        body = next_at + 7
        next_at = body + <Py_ssize_t>body_size + 1
    row = s.rows + s.count * C_COLUMNS
    row[0] = topic
    row[1] = bits_at - topic
    row[2] = body
    row[3] = <int64_t>body_size
    row[4] = header + 19
    row[5] = header_end - header - 19
    row[6] = s.count
    row[7] = (p[bits_at] & C_MANDATORY) | found | <int64_t>channel << C_CHANNEL_SHIFT
    if (
        s.count == 0
        or row[7] != row[7 - C_COLUMNS]
        or row[1] != row[1 - C_COLUMNS]
        or memcmp(p + row[0], p + row[-C_COLUMNS], <size_t>row[1]) != 0
    ):
        s.runs[s.run_count] = s.count
        s.run_count += 1
    s.count += 1
    s.at = next_at
    return C_WHOLE


cdef int take_settlement(State *s, uint32_t method_id, uint32_t size) noexcept nogil:
    """Note the ack, nack or reject whose frame stands, whole, at `s.at`."""
    cdef const uint8_t *p = s.p + s.at
    cdef uint32_t channel = get16(p + 1)
    cdef uint64_t tag
    cdef int64_t bits
    cdef int64_t *last
    if size != 13:
        return C_FRAME
    if method_id == 80:
        bits = p[19] & C_MULTIPLE
    elif method_id == 120:
        bits = C_NEGATIVE | (p[19] & (C_MULTIPLE | C_REQUEUE))
    elif method_id == 90:
        bits = C_NEGATIVE | (C_REQUEUE if p[19] & 1 else 0)
    else:
        return C_FRAME
    tag = get64(p + 11)
    if tag >> 63:
        return C_FRAME
    last = s.settlements
    if s.settlement_count:
        last += (s.settlement_count - 1) * C_SETTLEMENT_COLUMNS
    if (
        s.settlement_count
        and not bits & C_MULTIPLE
        and last[0] == channel
        and last[3] == bits
        and <uint64_t>(last[1] + last[2]) == tag
    ):
        last[2] += 1
    elif s.settlement_count >= s.settlement_capacity:
        return C_FULL
    else:
        last = s.settlements + s.settlement_count * C_SETTLEMENT_COLUMNS
        last[0] = channel
        last[1] = <int64_t>tag
        last[2] = 1
        last[3] = bits
        last[4] = s.count
        s.settlement_count += 1
    s.at += size + 8
    return C_WHOLE


cdef int walk(State *s) noexcept nogil:
    cdef int stop
    cdef uint32_t size, method_id
    cdef const uint8_t *p
    while True:
        stop = check_frame(s.p, s.at, s.end, s.payload_max)
        if stop >= 0:
            return stop
        p = s.p + s.at
        size = get32(p + 3)
        if p[0] != 1 or get16(p + 1) == 0 or size < 4 or get16(p + 7) != 60:
            return C_FRAME
        method_id = get16(p + 9)
        if method_id == 40:
            stop = C_FULL if s.count >= s.capacity else take_publish(s)
        else:
            stop = take_settlement(s, method_id, size)
        if stop >= 0:
            return stop


def parse(
    buffer,
    Py_ssize_t start,
    Py_ssize_t end,
    int64_t payload_max,
    uint64_t body_max,
    batch,
    array runs,
    array settlements,
):
    cdef Py_buffer view
    cdef array rows = batch.rows
    cdef State s
    cdef int stop
    if rows.itemsize != 8 or runs.itemsize != 8 or settlements.itemsize != 8:
        raise TypeError("arrays of 64-bit integers are needed")
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        if start < 0 or end > view.len:
            raise IndexError("outside of the buffer")
        s.p = <const uint8_t *>view.buf
        s.at = start
        s.end = end
        s.payload_max = payload_max
        s.body_max = body_max
        s.rows = <int64_t *>rows.data.as_longlongs
        s.runs = <int64_t *>runs.data.as_longlongs
        s.settlements = <int64_t *>settlements.data.as_longlongs
        s.capacity = min(len(rows) // C_COLUMNS, len(runs))
        s.settlement_capacity = len(settlements) // C_SETTLEMENT_COLUMNS
        s.count = 0
        s.run_count = 0
        s.settlement_count = 0
        with nogil:
            stop = walk(&s)
    finally:
        PyBuffer_Release(&view)
    batch.buffer = buffer
    batch.count = s.count
    return s.at, stop, s.run_count, s.settlement_count


# --- records to frames -----------------------------------------------------------------------

cdef struct MessageAddress:
    # Of one record: its body, its end, and the base64 text of its AMQP properties.
    Py_ssize_t body
    Py_ssize_t body_size
    Py_ssize_t end
    Py_ssize_t text
    Py_ssize_t text_size  # -1: it has none


cdef int read_record(
    const uint8_t *p, Py_ssize_t at, Py_ssize_t end, Py_ssize_t prefix_size, MessageAddress *address
) noexcept nogil:
    cdef int64_t record_size, body_size
    cdef Py_ssize_t sizes, properties_end, extra
    cdef const uint8_t *found
    if end - at < C_RECORD_BODY_AT + 3:
        return -1
    record_size = get32(p + at)
    body_size = get32(p + at + C_RECORD_BODY_SIZE_AT)
    if record_size > end - at or C_RECORD_BODY_AT + body_size + 3 > record_size:
        return -1
    address.end = at + record_size
    address.body = at + C_RECORD_BODY_AT
    address.body_size = body_size
    address.text_size = -1
    sizes = address.body + body_size + 1 + p[address.body + body_size]
    if sizes + 2 > address.end:
        return -1
    properties_end = sizes + 2 + get16(p + sizes)
    extra = sizes + 2 + prefix_size
    if properties_end > address.end or extra > properties_end:
        return -1
    address.text = extra + C_EXTRA_HEAD_SIZE
    if address.text > properties_end or memcmp(p + extra, EXTRA_HEAD, C_EXTRA_HEAD_SIZE) != 0:
        return 0
    found = <const uint8_t *>memchr(
        p + address.text, C_VALUE_END, <size_t>(properties_end - address.text)
    )
    if found == NULL:
        return -1
    address.text_size = found - (p + address.text)
    return 0


cdef inline Py_ssize_t decoded_size(const uint8_t *text, Py_ssize_t size) noexcept nogil:
    """Bytes that padded base64 text stands for; -1 if its size or padding is wrong."""
    cdef Py_ssize_t result = size // 4 * 3
    if size <= 0 or size % 4:
        return -1
    if text[size - 1] == c'=':
        result -= 1
        if text[size - 2] == c'=':
            result -= 1
    return result


cdef inline int digit(uint8_t c) noexcept nogil:
    if c'A' <= c <= c'Z':
        return c - c'A'
    if c'a' <= c <= c'z':
        return c - c'a' + 26
    if c'0' <= c <= c'9':
        return c - c'0' + 52
    if c == c'+':
        return 62
    if c == c'/':
        return 63
    return -1


cdef int decode(const uint8_t *text, Py_ssize_t size, uint8_t *out) noexcept nogil:
    """Decode padded base64 text, whose size is right; -1 if a character is wrong."""
    cdef Py_ssize_t at = 0
    cdef Py_ssize_t left = decoded_size(text, size)
    cdef int a, b, c, d
    while at < size:
        a = digit(text[at])
        b = digit(text[at + 1])
        c = digit(text[at + 2])
        d = digit(text[at + 3])
        if left < 2:
            c = 0
        if left < 3:
            d = 0
        if a < 0 or b < 0 or c < 0 or d < 0:
            return -1
        out[0] = <uint8_t>(a << 2 | b >> 4)
        if left > 1:
            out[1] = <uint8_t>((b & 15) << 4 | c >> 2)
        if left > 2:
            out[2] = <uint8_t>((c & 3) << 6 | d)
        out += 3
        left -= 3
        at += 4
    return 0


cdef inline uint8_t *open_frame(
    uint8_t *out, uint8_t kind, uint32_t channel, Py_ssize_t size
) noexcept nogil:
    out[0] = kind
    put16(out + 1, channel)
    put32(out + 3, <uint32_t>size)
    return out + 7


cdef struct Shape:
    # What all deliveries of one call have in common.
    uint32_t channel
    Py_ssize_t size_max
    const uint8_t *head
    Py_ssize_t head_size
    const uint8_t *tail
    Py_ssize_t tail_size
    const uint8_t *properties
    Py_ssize_t properties_size
    bint redelivered


cdef Py_ssize_t frames_size(
    const Shape *shape, const uint8_t *p, const MessageAddress *address
) noexcept nogil:
    cdef Py_ssize_t size = shape.properties_size
    cdef Py_ssize_t pieces
    if address.text_size >= 0:
        size = decoded_size(p + address.text, address.text_size)
        if size < 0:
            return -1
    pieces = (address.body_size + shape.size_max - 1) // shape.size_max
    return (
        8 + shape.head_size + 9 + shape.tail_size
        + 8 + 12 + size
        + 8 * pieces + address.body_size
    )


cdef uint8_t *write_frames(
    const Shape *shape, const uint8_t *p, const MessageAddress *address, uint64_t tag, uint8_t *out
) noexcept nogil:
    """Method, header and body frames of one record; NULL if its property text is wrong."""
    cdef Py_ssize_t size, at, left
    out = open_frame(out, 1, shape.channel, shape.head_size + 9 + shape.tail_size)
    memcpy(out, shape.head, <size_t>shape.head_size)
    out += shape.head_size
    put64(out, tag)
    out[8] = shape.redelivered
    out += 9
    memcpy(out, shape.tail, <size_t>shape.tail_size)
    out += shape.tail_size
    out[0] = 0xCE
    out += 1
    size = shape.properties_size
    if address.text_size >= 0:
        size = decoded_size(p + address.text, address.text_size)
    out = open_frame(out, 2, shape.channel, 12 + size)
    put32(out, 60 << 16)
    put64(out + 4, <uint64_t>address.body_size)
    out += 12
    if address.text_size >= 0:
        if decode(p + address.text, address.text_size, out) < 0:
            return NULL
    else:
        memcpy(out, shape.properties, <size_t>size)
    out += size
    out[0] = 0xCE
    out += 1
    at = address.body
    left = address.body_size
    while left:
        size = left if left < shape.size_max else shape.size_max
        out = open_frame(out, 3, shape.channel, size)
        memcpy(out, p + at, <size_t>size)
        out += size
        out[0] = 0xCE
        out += 1
        at += size
        left -= size
    return out


cdef Py_ssize_t total_size(
    const Shape *shape, const uint8_t *p, Py_ssize_t at, Py_ssize_t end, Py_ssize_t prefix_size
) noexcept nogil:
    cdef MessageAddress address
    cdef Py_ssize_t total = 0
    cdef Py_ssize_t size
    while at < end:
        if read_record(p, at, end, prefix_size, &address) < 0:
            return -1
        size = frames_size(shape, p, &address)
        if size < 0:
            return -1
        total += size
        at = address.end
    return total


cdef uint8_t *write_all(
    const Shape *shape,
    const uint8_t *p,
    Py_ssize_t at,
    Py_ssize_t end,
    Py_ssize_t prefix_size,
    uint64_t tag,
    uint8_t *out,
) noexcept nogil:
    cdef MessageAddress address
    while at < end and out != NULL:
        read_record(p, at, end, prefix_size, &address)
        out = write_frames(shape, p, &address, tag, out)
        tag += 1
        at = address.end
    return out


def encode_deliveries(
    memory,
    Py_ssize_t start,
    Py_ssize_t end,
    uint32_t channel,
    Py_ssize_t frame_max,
    bytes method_head,
    uint64_t first_tag,
    bint redelivered,
    bytes method_tail,
    Py_ssize_t prefix_size,
    bytes properties,
):
    cdef Py_buffer view
    cdef Shape shape
    cdef Py_ssize_t total
    cdef const uint8_t *p
    cdef uint8_t *out
    cdef uint8_t *written
    cdef bytes result
    if frame_max <= 8 or prefix_size < 0:
        raise ValueError("no frame is that small, no property stands there")
    shape.channel = channel
    shape.size_max = frame_max - 8
    shape.head = <const uint8_t *>PyBytes_AS_STRING(method_head)
    shape.head_size = len(method_head)
    shape.tail = <const uint8_t *>PyBytes_AS_STRING(method_tail)
    shape.tail_size = len(method_tail)
    shape.properties = <const uint8_t *>PyBytes_AS_STRING(properties)
    shape.properties_size = len(properties)
    shape.redelivered = redelivered
    PyObject_GetBuffer(memory, &view, PyBUF_SIMPLE)
    try:
        if start < 0 or end > view.len:
            raise IndexError("outside of the buffer")
        p = <const uint8_t *>view.buf
        with nogil:
            total = total_size(&shape, p, start, end, prefix_size)
        if total < 0:
            raise ValueError("damaged record")
        result = PyBytes_FromStringAndSize(NULL, total)
        out = <uint8_t *>PyBytes_AS_STRING(result)
        with nogil:
            written = write_all(&shape, p, start, end, prefix_size, first_tag, out)
        if written == NULL:
            raise ValueError("damaged record")
        assert written - out == total
    finally:
        PyBuffer_Release(&view)
    return result
