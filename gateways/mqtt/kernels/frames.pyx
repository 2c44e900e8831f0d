# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The frame kernels in C, on pointers, without the interpreter lock. `frames.py` says what they do.

Rules: the same functions, results and errors as `frames.py`, for every input. Portable C only.
Every length from the network is checked against the bytes that are there before it is used.
"""

from cpython cimport array
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.string cimport memcmp, memcpy

from polymq.core_log.kernels import batch as _batch
from polymq.gateways.mqtt.kernels import codes as _codes


# Copies of the declarations in core_log/kernels/batch.py and codes.py, as C constants: a test
# (`test_mqtt_kernels.py`) and the assertions below hold them together.
cdef enum:
    COLUMNS = 8
    RECORD_BODY_SIZE_AT = 84
    RECORD_BODY_AT = 88
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
    FLAG_QOS = 6
    FLAG_QOS_SHIFT = 1
    FLAGS_STORED = 7
    TYPE_PUBLISH = 3
    TYPE_PUBREL = 6
    TYPE_PUBCOMP = 7
    ACK_COLUMNS = 3
    IDENTIFIER_MAX = 65535
    REMAINING_LENGTH_MAX = 268435455
    RECORD_SIZE_MIN = 91
    GIL_BYTES = 16384  # for less the GIL is held: to let it go costs more than it gives others

if (
    (_batch.COLUMNS, _batch.RECORD_BODY_SIZE_AT, _batch.RECORD_BODY_AT)
    != (COLUMNS, RECORD_BODY_SIZE_AT, RECORD_BODY_AT)
    or _codes.PACKET_READ != PACKET_READ
    or (_codes.STOP_PARTIAL, _codes.STOP_OTHER, _codes.STOP_FULL, _codes.STOP_ORDER)
    != (STOP_PARTIAL, STOP_OTHER, STOP_FULL, STOP_ORDER)
    or (_codes.MALFORMED_LENGTH, _codes.MALFORMED_LARGE) != (MALFORMED_LENGTH, MALFORMED_LARGE)
    or (_codes.MALFORMED_FLAGS, _codes.MALFORMED_QOS) != (MALFORMED_FLAGS, MALFORMED_QOS)
    or (_codes.MALFORMED_DUPLICATE, _codes.MALFORMED_SIZE, _codes.MALFORMED_IDENTIFIER)
    != (MALFORMED_DUPLICATE, MALFORMED_SIZE, MALFORMED_IDENTIFIER)
    or _codes.FLAG_QOS != FLAG_QOS
    or (_codes.FLAG_QOS_SHIFT, _codes.FLAGS_STORED, _codes.ACK_COLUMNS, _codes.IDENTIFIER_MAX)
    != (FLAG_QOS_SHIFT, FLAGS_STORED, ACK_COLUMNS, IDENTIFIER_MAX)
    or (_codes.TYPE_PUBLISH, _codes.TYPE_PUBREL, _codes.TYPE_PUBCOMP)
    != (TYPE_PUBLISH, TYPE_PUBREL, TYPE_PUBCOMP)
    or (_codes.REMAINING_LENGTH_MAX, _codes.RECORD_SIZE_MIN)
    != (REMAINING_LENGTH_MAX, RECORD_SIZE_MIN)
):
    raise ImportError("the compiled MQTT kernels are older than their declarations: build again")


cdef struct Walk:
    Py_ssize_t at
    Py_ssize_t rows
    Py_ssize_t runs
    Py_ssize_t acks


cdef struct Packet:
    int first
    int identifier
    Py_ssize_t topic_start
    Py_ssize_t topic_end
    Py_ssize_t content
    Py_ssize_t after


cdef inline int read_packet(
    const uint8_t* buffer, Py_ssize_t at, Py_ssize_t end, Py_ssize_t packet_bytes_max,
    Packet* packet,
) noexcept nogil:
    """Read the PUBLISH or acknowledgement at `at`: PACKET_READ, or why it cannot be read."""
    cdef Py_ssize_t body, after, content, length = 0
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
    if body - at + length > packet_bytes_max:
        return MALFORMED_LARGE
    if length < 2 or (length > 2 and kind != TYPE_PUBLISH):
        return MALFORMED_SIZE
    after = body + length
    if after > end:
        return STOP_PARTIAL
    packet.first = first
    packet.after = after
    if kind != TYPE_PUBLISH:
        packet.identifier = buffer[body] << 8 | buffer[body + 1]
        packet.topic_start = packet.topic_end = 0
        packet.content = after
        return PACKET_READ if packet.identifier else MALFORMED_IDENTIFIER
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
    packet.content = content
    return PACKET_READ


cdef class PacketReader:
    """One PUBLISH or acknowledgement, taken apart by the rules of `parse`."""

    cpdef int read(
        self, bytearray buffer, Py_ssize_t start, Py_ssize_t end, Py_ssize_t packet_bytes_max
    ) except? -2:
        """Read the packet at `start`: PACKET_READ, or why it cannot be read."""
        cdef Packet packet
        cdef int stop
        if not 0 <= start <= end <= PyByteArray_GET_SIZE(buffer):
            raise ValueError("the range is not inside the buffer")
        stop = read_packet(
            <const uint8_t*>PyByteArray_AS_STRING(buffer), start, end, packet_bytes_max, &packet
        )
        if stop == PACKET_READ:
            self.first = packet.first
            self.packet_id = packet.identifier
            self.topic_start = packet.topic_start
            self.topic_end = packet.topic_end
            self.body = packet.content
            self.end = packet.after
        return stop


cdef int walk_packets(
    const uint8_t* buffer, Py_ssize_t start, Py_ssize_t end,
    int64_t* rows, Py_ssize_t row_max,
    int64_t* runs, Py_ssize_t run_max,
    int64_t* acks, Py_ssize_t ack_max,
    Py_ssize_t packet_bytes_max, Walk* walk,
) noexcept nogil:
    cdef Packet packet
    cdef Py_ssize_t at = start, topic_size
    cdef Py_ssize_t last_start = -1, last_size = -1
    cdef Py_ssize_t row = 0, run_count = 0, ack_count = 0
    cdef int64_t* to
    cdef int kind, quality, flags, last_flags = -1, stop
    cdef int identifier, ack_type = 0, ack_next = 0
    cdef bint exactly_once = False, released = False, new_run
    while True:
        stop = read_packet(buffer, at, end, packet_bytes_max, &packet)
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
        flags = packet.first & FLAGS_STORED
        quality = flags >> FLAG_QOS_SHIFT
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
        to[4] = 0
        to[5] = 0
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
    array.array acks not None, Py_ssize_t packet_bytes_max,
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
                packet_bytes_max, &walk,
            )
    finally:
        PyBuffer_Release(&view)
    batch.count = walk.rows
    return stop, walk.at, walk.runs, walk.acks


def encode_acks(batch, Py_ssize_t first, Py_ssize_t last):
    """The answers to rows [first, last): PUBACK for QoS 1, PUBREC for QoS 2, none for QoS 0."""
    cdef array.array rows = batch.rows
    cdef Py_ssize_t count = batch.count
    cdef Py_ssize_t index, answered = 0
    cdef const int64_t* row
    cdef uint8_t* to
    cdef bytes out
    if rows.itemsize != 8:
        raise TypeError("rows are an array of 64-bit integers")
    if not 0 <= first <= last <= count or count > len(rows) // COLUMNS:
        raise ValueError("the rows are not in the batch")
    row = <const int64_t*>rows.data.as_voidptr + first * COLUMNS
    for index in range(last - first):
        answered += (row[index * COLUMNS + 7] & FLAGS_STORED) >> FLAG_QOS_SHIFT != 0
    out = PyBytes_FromStringAndSize(NULL, 4 * answered)
    to = <uint8_t*>PyBytes_AS_STRING(out)
    with nogil:
        for index in range(last - first):
            if (row[7] & FLAGS_STORED) >> FLAG_QOS_SHIFT != 0:
                to[0] = 0x40 if (row[7] & FLAGS_STORED) >> FLAG_QOS_SHIFT == 1 else 0x50
                to[1] = 2
                to[2] = <uint8_t>(row[6] >> 8 & 0xFF)
                to[3] = <uint8_t>(row[6] & 0xFF)
                to += 4
            row += COLUMNS
    return out


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


cdef inline uint32_t big_endian(const uint8_t* at) noexcept nogil:
    return (
        <uint32_t>at[0] << 24 | <uint32_t>at[1] << 16 | <uint32_t>at[2] << 8 | <uint32_t>at[3]
    )


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
        to += 1
        while length > 0x7F:
            to[0] = <uint8_t>(length & 0x7F | 0x80)
            to += 1
            length >>= 7
        to[0] = <uint8_t>length
        to += 1
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
