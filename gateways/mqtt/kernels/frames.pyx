# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The frame kernels in C, on pointers, without the interpreter lock. `frames.py` says what they do.

Rules: the same functions, results and errors as `frames.py`, for every input. Portable C only.
Every length from the network is checked against the bytes that are there before it is used.
"""

from cpython cimport array
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memchr, memcmp

from polymq.core_log.kernels import batch as _batch
from polymq.gateways.mqtt.kernels import codes as _codes


# Copies of the declarations in core_log/kernels/batch.py and codes.py, as C constants: a test
# (`test_mqtt_kernels.py`) and the assertions below hold them together.
cdef enum:
    COLUMNS = 8
    PACKET_READ = -1
    STOP_PARTIAL = 0
    STOP_OTHER = 1
    STOP_FULL = 2
    STOP_ORDER = 3
    MALFORMED_LENGTH = 8
    MALFORMED_LARGE = 9
    MALFORMED_FLAGS = 10
    MALFORMED_QOS = 11
    MALFORMED_DUPLICATE = 12
    MALFORMED_SIZE = 13
    MALFORMED_IDENTIFIER = 14
    MALFORMED_PROPERTY = 15
    MALFORMED_TWICE = 16
    MALFORMED_ALIAS = 17
    MALFORMED_TEXT = 18
    MALFORMED_REASON = 19
    MALFORMED_RESPONSE = 20
    MALFORMED_SUBSCRIPTION = 21
    MALFORMED_FORMAT = 22
    MALFORMED_LONG_FORM = 23
    FLAG_QOS = 6
    FLAG_QOS_SHIFT = 1
    FLAGS_STORED = 7
    FLAG_PROPERTIES = 8
    FLAG_EXPIRES = 16
    ALIAS_SHIFT = 8
    EXPIRY_SHIFT = 24
    REFUSED_SHIFT = 56
    REFUSED_BASE = 0x7F
    PAYLOAD_FORMAT = 0x01
    MESSAGE_EXPIRY = 0x02
    CONTENT_TYPE = 0x03
    RESPONSE_TOPIC = 0x08
    CORRELATION_DATA = 0x09
    SUBSCRIPTION_IDENTIFIER = 0x0B
    REASON_STRING = 0x1F
    TOPIC_ALIAS = 0x23
    USER_PROPERTY = 0x26
    TYPE_PUBLISH = 3
    TYPE_PUBREC = 5
    TYPE_PUBREL = 6
    TYPE_PUBCOMP = 7
    TYPE_PUBREC_ERROR = 0x85
    ACK_COLUMNS = 3
    ACK_REASON_SHIFT = 8
    PAYLOAD_FORMAT_INVALID = 0x99
    IDENTIFIER_MAX = 65535

for _name, _value in (
    ("PACKET_READ", PACKET_READ), ("STOP_PARTIAL", STOP_PARTIAL), ("STOP_OTHER", STOP_OTHER),
    ("STOP_FULL", STOP_FULL), ("STOP_ORDER", STOP_ORDER), ("MALFORMED_LENGTH", MALFORMED_LENGTH),
    ("MALFORMED_LARGE", MALFORMED_LARGE), ("MALFORMED_FLAGS", MALFORMED_FLAGS),
    ("MALFORMED_QOS", MALFORMED_QOS), ("MALFORMED_DUPLICATE", MALFORMED_DUPLICATE),
    ("MALFORMED_SIZE", MALFORMED_SIZE), ("MALFORMED_IDENTIFIER", MALFORMED_IDENTIFIER),
    ("MALFORMED_PROPERTY", MALFORMED_PROPERTY), ("MALFORMED_TWICE", MALFORMED_TWICE),
    ("MALFORMED_ALIAS", MALFORMED_ALIAS), ("MALFORMED_TEXT", MALFORMED_TEXT),
    ("MALFORMED_REASON", MALFORMED_REASON), ("MALFORMED_RESPONSE", MALFORMED_RESPONSE),
    ("MALFORMED_SUBSCRIPTION", MALFORMED_SUBSCRIPTION), ("MALFORMED_FORMAT", MALFORMED_FORMAT),
    ("MALFORMED_LONG_FORM", MALFORMED_LONG_FORM),
    ("FLAG_QOS", FLAG_QOS), ("FLAG_QOS_SHIFT", FLAG_QOS_SHIFT), ("FLAGS_STORED", FLAGS_STORED),
    ("FLAG_PROPERTIES", FLAG_PROPERTIES), ("FLAG_EXPIRES", FLAG_EXPIRES),
    ("ALIAS_SHIFT", ALIAS_SHIFT), ("EXPIRY_SHIFT", EXPIRY_SHIFT),
    ("REFUSED_SHIFT", REFUSED_SHIFT), ("REFUSED_BASE", REFUSED_BASE),
    ("PAYLOAD_FORMAT", PAYLOAD_FORMAT), ("MESSAGE_EXPIRY", MESSAGE_EXPIRY),
    ("CONTENT_TYPE", CONTENT_TYPE), ("RESPONSE_TOPIC", RESPONSE_TOPIC),
    ("CORRELATION_DATA", CORRELATION_DATA), ("SUBSCRIPTION_IDENTIFIER", SUBSCRIPTION_IDENTIFIER),
    ("REASON_STRING", REASON_STRING), ("TOPIC_ALIAS", TOPIC_ALIAS),
    ("USER_PROPERTY", USER_PROPERTY), ("TYPE_PUBLISH", TYPE_PUBLISH),
    ("TYPE_PUBREC", TYPE_PUBREC), ("TYPE_PUBREL", TYPE_PUBREL), ("TYPE_PUBCOMP", TYPE_PUBCOMP),
    ("TYPE_PUBREC_ERROR", TYPE_PUBREC_ERROR), ("ACK_COLUMNS", ACK_COLUMNS),
    ("ACK_REASON_SHIFT", ACK_REASON_SHIFT), ("PAYLOAD_FORMAT_INVALID", PAYLOAD_FORMAT_INVALID),
    ("IDENTIFIER_MAX", IDENTIFIER_MAX),
):
    if getattr(_codes, _name) != _value:
        raise ImportError(f"the compiled MQTT kernels are older than {_name}: build again")
if _batch.COLUMNS != COLUMNS:
    raise ImportError("the compiled MQTT kernels are older than their declarations: build again")


cdef struct Walk:
    Py_ssize_t at
    Py_ssize_t rows
    Py_ssize_t runs
    Py_ssize_t acks


cdef struct Packet:
    int first
    int identifier
    int64_t flags
    Py_ssize_t topic_start
    Py_ssize_t topic_end
    Py_ssize_t properties
    Py_ssize_t content
    Py_ssize_t after


cdef bint is_text(const uint8_t* text, Py_ssize_t size, bint with_null=False) noexcept nogil:
    """Whether this is well-formed UTF-8, without U+0000 by default."""
    cdef Py_ssize_t at = 0, more
    cdef int byte, low, high
    while at < size:
        byte = text[at]
        at += 1
        if byte < 0x80:
            if byte == 0 and not with_null:
                return False
            continue
        low = 0x80
        high = 0xBF
        if 0xC2 <= byte < 0xE0:
            more = 1
        elif 0xE0 <= byte < 0xF0:
            more = 2
            if byte == 0xE0:
                low = 0xA0  # or it would be longer than it has to be
            elif byte == 0xED:
                high = 0x9F  # or it would be half a surrogate pair
        elif 0xF0 <= byte < 0xF5:
            more = 3
            if byte == 0xF0:
                low = 0x90
            elif byte == 0xF4:
                high = 0x8F
        else:
            return False
        if at + more > size or not low <= text[at] <= high:
            return False
        at += 1
        more -= 1
        while more > 0:
            if not 0x80 <= text[at] <= 0xBF:
                return False
            at += 1
            more -= 1
    return True


cdef inline Py_ssize_t read_length(
    const uint8_t* buffer, Py_ssize_t* at, Py_ssize_t end
) noexcept nogil:
    """The Variable Byte Integer at `at`, which moves behind it; -1: four bytes do not end it, or
    the range does; -2: it takes more bytes than it needs."""
    cdef Py_ssize_t value = 0
    cdef int byte, shift = 0
    while shift < 28 and at[0] < end:
        byte = buffer[at[0]]
        at[0] += 1
        value |= <Py_ssize_t>(byte & 0x7F) << shift
        if byte < 0x80:
            return -2 if byte == 0 and shift else value
        shift += 7
    return -1


cdef int read_publish_properties(
    const uint8_t* buffer, Py_ssize_t at, Py_ssize_t end, int64_t* flags
) noexcept nogil:
    """Look at the properties [at, end) of a PUBLISH: PACKET_READ and its FLAGS, or what is wrong
    with them."""
    cdef int64_t seen = 0, value
    cdef Py_ssize_t size, fields
    cdef int kind
    while at < end:
        kind = buffer[at]
        at += 1
        if kind == SUBSCRIPTION_IDENTIFIER:
            return MALFORMED_SUBSCRIPTION
        if kind == PAYLOAD_FORMAT:
            size = 1
        elif kind == MESSAGE_EXPIRY:
            size = 4
        elif kind == TOPIC_ALIAS:
            size = 2
        elif (
            kind == CONTENT_TYPE or kind == RESPONSE_TOPIC or kind == CORRELATION_DATA
            or kind == USER_PROPERTY
        ):
            size = 0
        else:
            return MALFORMED_PROPERTY
        if kind != USER_PROPERTY:
            if seen >> kind & 1:
                return MALFORMED_TWICE
            seen |= (<int64_t>1) << kind
        if kind != TOPIC_ALIAS:
            flags[0] |= FLAG_PROPERTIES
        if size:
            if end - at < size:
                return MALFORMED_SIZE
            value = 0
            while size > 0:
                value = value << 8 | buffer[at]
                at += 1
                size -= 1
            if kind == MESSAGE_EXPIRY:
                flags[0] |= FLAG_EXPIRES | value << EXPIRY_SHIFT
            elif kind == TOPIC_ALIAS:
                if value == 0:
                    return MALFORMED_ALIAS
                flags[0] |= value << ALIAS_SHIFT
            elif value > 1:
                return MALFORMED_FORMAT
            continue
        fields = 2 if kind == USER_PROPERTY else 1
        while fields > 0:
            fields -= 1
            if end - at < 2:
                return MALFORMED_SIZE
            size = buffer[at] << 8 | buffer[at + 1]
            at += 2
            if end - at < size:
                return MALFORMED_SIZE
            if kind != CORRELATION_DATA and not is_text(buffer + at, size):
                return MALFORMED_TEXT
            if kind == RESPONSE_TOPIC and (
                size == 0
                or memchr(buffer + at, c"+", size) != NULL
                or memchr(buffer + at, c"#", size) != NULL
            ):
                return MALFORMED_RESPONSE
            at += size
    return PACKET_READ


cdef int read_ack_reason(
    const uint8_t* buffer, Py_ssize_t at, Py_ssize_t end, int kind
) noexcept nogil:
    """Look at the reason code and the properties [at, end) of an acknowledgement: PACKET_READ, or
    what is wrong with them."""
    cdef int reason = buffer[at], fields
    cdef Py_ssize_t size
    cdef bint explained = False
    if kind >= TYPE_PUBREL:
        if reason != 0 and reason != 0x92:
            return MALFORMED_REASON
    elif not (
        reason == 0 or reason == 0x10 or reason == 0x80 or reason == 0x83 or reason == 0x87
        or reason == 0x90 or reason == 0x91 or reason == 0x97 or reason == 0x99
    ):
        return MALFORMED_REASON
    at += 1
    if at == end:
        return PACKET_READ
    size = read_length(buffer, &at, end)
    if size == -2:
        return MALFORMED_LONG_FORM
    if size < 0 or at + size != end:
        return MALFORMED_SIZE
    while at < end:
        if buffer[at] == REASON_STRING:
            if explained:
                return MALFORMED_TWICE
            explained = True
            fields = 1
        elif buffer[at] == USER_PROPERTY:
            fields = 2
        else:
            return MALFORMED_PROPERTY
        at += 1
        while fields > 0:
            fields -= 1
            if end - at < 2:
                return MALFORMED_SIZE
            size = buffer[at] << 8 | buffer[at + 1]
            at += 2
            if end - at < size:
                return MALFORMED_SIZE
            if not is_text(buffer + at, size):
                return MALFORMED_TEXT
            at += size
    return PACKET_READ


cdef inline int read_packet(
    const uint8_t* buffer, Py_ssize_t at, Py_ssize_t end, Py_ssize_t packet_bytes_max, bint five,
    Packet* packet,
) noexcept nogil:
    """Read the PUBLISH or acknowledgement at `at`: PACKET_READ, or why it cannot be read."""
    cdef Py_ssize_t body, after, content, size, length = 0
    cdef int first, kind, byte, shift = 0, identifier = 0
    if at >= end:
        return STOP_PARTIAL
    first = buffer[at]
    kind = first >> 4
    if kind < TYPE_PUBLISH or kind > TYPE_PUBCOMP:
        return STOP_OTHER
    if kind == TYPE_PUBLISH:
        if (first & FLAG_QOS) == FLAG_QOS:
            return MALFORMED_QOS
        if (first & FLAG_QOS) == 0 and first & 0x08:
            return MALFORMED_DUPLICATE
    elif (first & 0x0F) != (2 if kind == TYPE_PUBREL else 0):
        return MALFORMED_FLAGS
    body = at + 1
    while True:
        if shift == 28:
            return MALFORMED_LENGTH
        if body >= end:
            return STOP_PARTIAL
        byte = buffer[body]
        body += 1
        length |= <Py_ssize_t>(byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if five and byte == 0 and shift > 7:
        return MALFORMED_LONG_FORM
    if body - at + length > packet_bytes_max:
        return MALFORMED_LARGE
    if length < 2 or (length > 2 and kind != TYPE_PUBLISH and not five):
        return MALFORMED_SIZE
    after = body + length
    if after > end:
        return STOP_PARTIAL
    packet.first = first
    packet.after = after
    if kind != TYPE_PUBLISH:
        packet.identifier = buffer[body] << 8 | buffer[body + 1]
        packet.topic_start = packet.topic_end = 0
        packet.properties = packet.content = after
        packet.flags = 0
        if packet.identifier == 0:
            return MALFORMED_IDENTIFIER
        if length == 2:
            return PACKET_READ
        packet.flags = buffer[body + 2]
        return read_ack_reason(buffer, body + 2, after, kind)
    packet.topic_start = body + 2
    content = packet.topic_end = packet.topic_start + (buffer[body] << 8 | buffer[body + 1])
    if first & FLAG_QOS:
        content += 2
        if content > after:
            return MALFORMED_SIZE
        identifier = buffer[content - 2] << 8 | buffer[content - 1]
        if identifier == 0:
            return MALFORMED_IDENTIFIER
    elif content > after:
        return MALFORMED_SIZE
    packet.identifier = identifier
    packet.flags = first & FLAGS_STORED
    packet.properties = content
    if five:
        size = read_length(buffer, &content, after)
        if size == -2:
            return MALFORMED_LONG_FORM
        if size < 0 or size > after - content:
            return MALFORMED_SIZE
        packet.properties = content
        content += size
        packet.content = content
        if size:
            return read_publish_properties(buffer, packet.properties, content, &packet.flags)
    packet.content = content
    return PACKET_READ


cdef class PacketReader:
    """One PUBLISH or acknowledgement, taken apart by the rules of `parse`."""

    cpdef int read(
        self, bytearray buffer, Py_ssize_t start, Py_ssize_t end, Py_ssize_t packet_bytes_max,
        bint five=False,
    ) except? -2:
        """Read the packet at `start`: PACKET_READ, or why it cannot be read."""
        cdef Packet packet
        cdef int stop
        if not 0 <= start <= end <= PyByteArray_GET_SIZE(buffer):
            raise ValueError("the range is not inside the buffer")
        stop = read_packet(
            <const uint8_t*>PyByteArray_AS_STRING(buffer), start, end, packet_bytes_max, five,
            &packet,
        )
        if stop == PACKET_READ:
            self.first = packet.first
            self.flags = packet.flags
            self.packet_id = packet.identifier
            self.topic_start = packet.topic_start
            self.topic_end = packet.topic_end
            self.properties = packet.properties
            self.body = packet.content
            self.end = packet.after
        return stop


cdef int walk_packets(
    const uint8_t* buffer, Py_ssize_t start, Py_ssize_t end,
    int64_t* rows, Py_ssize_t row_max,
    int64_t* runs, Py_ssize_t run_max,
    int64_t* acks, Py_ssize_t ack_max,
    Py_ssize_t packet_bytes_max, bint five, Walk* walk,
) noexcept nogil:
    cdef Packet packet
    cdef Py_ssize_t at = start, topic_size
    cdef Py_ssize_t last_start = -1, last_size = -1
    cdef Py_ssize_t row = 0, run_count = 0, ack_count = 0
    cdef int64_t* to
    cdef int64_t flags, last_flags = -1
    cdef int kind, quality, stop
    cdef int identifier, ack_type = 0, ack_next = 0
    cdef bint exactly_once = False, released = False, new_run
    while True:
        stop = read_packet(buffer, at, end, packet_bytes_max, five, &packet)
        if stop != PACKET_READ:
            break
        kind = packet.first >> 4
        identifier = packet.identifier
        if kind != TYPE_PUBLISH:
            if kind == TYPE_PUBREL:
                if exactly_once:
                    stop = STOP_ORDER
                    break
                released = True
            elif kind == TYPE_PUBREC and packet.flags >= 0x80:
                kind = TYPE_PUBREC_ERROR
            kind |= <int>packet.flags << ACK_REASON_SHIFT
            if (
                kind == ack_type
                and identifier == ack_next
                and acks[ack_count * ACK_COLUMNS - 1] < IDENTIFIER_MAX
            ):
                acks[ack_count * ACK_COLUMNS - 1] += 1
            else:
                if ack_count == ack_max:
                    stop = STOP_FULL
                    break
                to = acks + ack_count * ACK_COLUMNS
                to[0] = kind
                to[1] = identifier
                to[2] = 1
                ack_count += 1
                ack_type = kind
            ack_next = identifier + 1 if identifier < IDENTIFIER_MAX else 1
            at = packet.after
            continue
        flags = packet.flags
        quality = (flags & FLAG_QOS) >> FLAG_QOS_SHIFT
        if quality == 2 and released:
            stop = STOP_ORDER
            break
        topic_size = packet.topic_end - packet.topic_start
        new_run = (
            flags != last_flags
            or topic_size != last_size
            or memcmp(buffer + packet.topic_start, buffer + last_start, topic_size) != 0
        )
        if row == row_max or (new_run and run_count == run_max):
            stop = STOP_FULL
            break
        if new_run:
            runs[run_count] = row
            run_count += 1
            last_start = packet.topic_start
            last_size = topic_size
            last_flags = flags
        if quality == 2:
            exactly_once = True
        to = rows + row * COLUMNS
        to[0] = packet.topic_start
        to[1] = topic_size
        to[2] = packet.content
        to[3] = packet.after - packet.content
        to[4] = packet.properties if flags & FLAG_PROPERTIES else 0
        to[5] = packet.content - packet.properties if flags & FLAG_PROPERTIES else 0
        to[6] = identifier
        to[7] = flags
        row += 1
        at = packet.after
    walk.at = at
    walk.rows = row
    walk.runs = run_count
    walk.acks = ack_count
    return stop


def parse(
    buffer, Py_ssize_t start, Py_ssize_t end, batch, array.array runs not None,
    array.array acks not None, Py_ssize_t packet_bytes_max, bint five=False,
):
    """Walk the packets of `buffer[start:end]` into rows and acknowledgement runs."""
    cdef Py_buffer view
    cdef Walk walk
    cdef int stop
    cdef array.array rows = batch.rows
    cdef Py_ssize_t row_max = len(rows) // COLUMNS
    cdef Py_ssize_t run_max = len(runs)
    cdef Py_ssize_t ack_max = len(acks) // ACK_COLUMNS
    if rows.itemsize != 8 or runs.itemsize != 8 or acks.itemsize != 8:
        raise TypeError("rows, runs and acks are arrays of 64-bit integers")
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        if not 0 <= start <= end <= view.len:
            raise ValueError("the range is not inside the buffer")
        with nogil:
            stop = walk_packets(
                <const uint8_t*>view.buf, start, end,
                <int64_t*>rows.data.as_voidptr, row_max,
                <int64_t*>runs.data.as_voidptr, run_max,
                <int64_t*>acks.data.as_voidptr, ack_max,
                packet_bytes_max, five, &walk,
            )
    finally:
        PyBuffer_Release(&view)
    batch.count = walk.rows
    return stop, walk.at, walk.runs, walk.acks


def encode_acks(batch, Py_ssize_t first, Py_ssize_t last):
    """The answers to rows [first, last): PUBACK for QoS 1, PUBREC for QoS 2, none for QoS 0."""
    cdef array.array rows = batch.rows
    cdef Py_ssize_t count = batch.count
    cdef Py_ssize_t index, size = 0
    cdef const int64_t* row
    cdef uint8_t* to
    cdef bytes out
    if rows.itemsize != 8:
        raise TypeError("rows are an array of 64-bit integers")
    if not 0 <= first <= last <= count or count > len(rows) // COLUMNS:
        raise ValueError("the rows are not in the batch")
    row = <const int64_t*>rows.data.as_voidptr + first * COLUMNS
    for index in range(last - first):
        if row[index * COLUMNS + 7] & FLAG_QOS:
            size += 4 + (row[index * COLUMNS + 7] >> REFUSED_SHIFT != 0)
    out = PyBytes_FromStringAndSize(NULL, size)
    to = <uint8_t*>PyBytes_AS_STRING(out)
    with nogil:
        for index in range(last - first):
            if row[7] & FLAG_QOS:
                to[0] = 0x40 if (row[7] & FLAG_QOS) >> FLAG_QOS_SHIFT == 1 else 0x50
                to[1] = 2
                to[2] = <uint8_t>(row[6] >> 8 & 0xFF)
                to[3] = <uint8_t>(row[6] & 0xFF)
                to += 4
                if row[7] >> REFUSED_SHIFT != 0:
                    to[-3] = 3
                    to[0] = <uint8_t>(REFUSED_BASE + (row[7] >> REFUSED_SHIFT))
                    to += 1
            row += COLUMNS
    return out


cdef bint says_text(const uint8_t* block, Py_ssize_t size) noexcept nogil:
    """Whether the properties of a PUBLISH, which `parse` has read, say that its body is text."""
    cdef Py_ssize_t at = 0
    cdef int kind, field
    while at < size:
        kind = block[at]
        at += 1
        if kind == PAYLOAD_FORMAT:
            return at < size and block[at] == 1
        if kind == MESSAGE_EXPIRY:
            at += 4
        elif kind == TOPIC_ALIAS:
            at += 2
        else:
            for field in range(2 if kind == USER_PROPERTY else 1):
                if size - at < 2:
                    return False
                at += 2 + (block[at] << 8 | block[at + 1])
    return False


def refuse_payloads(batch, Py_ssize_t first, Py_ssize_t last):
    """Refuse those of rows [first, last) that say that they are UTF-8 text, and are not. Returns
    how many these are."""
    cdef Py_buffer view
    cdef array.array rows = batch.rows
    cdef Py_ssize_t count = batch.count
    cdef Py_ssize_t index, found = 0
    cdef int64_t* row
    cdef const uint8_t* buffer
    cdef bint inside = True
    if rows.itemsize != 8:
        raise TypeError("rows are an array of 64-bit integers")
    if not 0 <= first <= last <= count or count > len(rows) // COLUMNS:
        raise ValueError("the rows are not in the batch")
    row = <int64_t*>rows.data.as_voidptr + first * COLUMNS
    PyObject_GetBuffer(batch.buffer, &view, PyBUF_SIMPLE)
    try:
        buffer = <const uint8_t*>view.buf
        with nogil:
            for index in range(last - first):
                if (
                    row[2] < 0 or row[3] < 0 or row[4] < 0 or row[5] < 0
                    or row[2] > view.len or row[3] > view.len - row[2]
                    or row[4] > view.len or row[5] > view.len - row[4]
                ):
                    inside = False
                    break
                if says_text(buffer + row[4], row[5]) and not is_text(
                    buffer + row[2], row[3], True
                ):
                    row[7] |= <int64_t>(PAYLOAD_FORMAT_INVALID - REFUSED_BASE) << REFUSED_SHIFT
                    found += 1
                row += COLUMNS
    finally:
        PyBuffer_Release(&view)
    if not inside:
        raise ValueError("a row is not inside the buffer")
    return found


def encode_ids(int first_byte, Py_ssize_t first_packet_id, Py_ssize_t count):
    """`count` packets of two bytes of packet id each (PUBREL, PUBCOMP), ids counting up."""
    cdef Py_ssize_t index, identifier = first_packet_id
    cdef uint8_t* to
    cdef bytes out
    if not 0 <= first_byte <= 0xFF or not 1 <= first_packet_id <= IDENTIFIER_MAX or count < 0:
        raise ValueError("not a packet type, packet id and count")
    out = PyBytes_FromStringAndSize(NULL, 4 * count)
    to = <uint8_t*>PyBytes_AS_STRING(out)
    with nogil:
        for index in range(count):
            to[0] = <uint8_t>first_byte
            to[1] = 2
            to[2] = <uint8_t>(identifier >> 8)
            to[3] = <uint8_t>(identifier & 0xFF)
            to += 4
            identifier = identifier + 1 if identifier < IDENTIFIER_MAX else 1
    return out
