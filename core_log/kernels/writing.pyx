# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False
"""Sums, writing runs of rows, and what index entries tell, in C on pointers. `writing.py` says what
each function does.

Rules: the same functions, results and errors as `writing.py`, for every input. Portable C; the one
special instruction is chosen at run time (`crc.pxd`). Every number of a row is checked against
the bytes that are there before it is used.
"""

from cpython cimport array
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from polymq.core_log.kernels.crc cimport crc_folds, crc_prepare, crc_update, entry_check
from polymq.core_log.kernels.numbers cimport get32, get64, put16, put32, put64

from polymq.core_log.kernels import batch as _batch
from polymq.core_log.kernels import layout as _layout

# Copies of declarations in batch.py and layout.py, as C constants; checked below at import.
cdef enum:
    TOPIC_START = 0
    BODY_START = 2
    EXTRA_START = 4
    FLAGS = 7
    COLUMNS = 8
    EXTRA_NONE = 0
    EXTRA_BASE64 = 1
    EXTRA_VERBATIM = 2
    BODY_CRC_AT = 8
    QUEUE_OFFSET_AT = 20
    POSITION_AT = 28
    BORN_MS_AT = 40
    BORN_HOST_AT = 48
    STORE_MS_AT = 56
    STORE_HOST_AT = 64
    BODY_SIZE_AT = 84
    BODY_AT = 88
    PROPERTY_CRC_SIZE = 20
    TARGET_SIZE = 20
    TARGETS_MAX = 256
    PROPERTIES_SIZE_MAX = 32767
    ENTRY_SIZE = 20
    PRIVATE_ENTRY_SIZE = 32
    HOST_SIZE = 8
    DISPATCH_START_SIZE = 6
    CRC_START_SIZE = 9

cdef const char *DISPATCH_START = b"PMQ_Q\x01"
cdef const char *CRC_START = b"__CRC32#\x01"
cdef uint8_t HEX_PAIRS[256][2]  # the two hex digits of each byte
cdef uint8_t TEN_PAIRS[100][2]  # the two decimal digits of 0 to 99, the least significant first
cdef const char *BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
cdef int64_t NUMBER_MAX = 0xFFFFFFFF
cdef int64_t TTL_CODE_MAX = 0xFFFFFFFF
cdef int64_t OFFSET_MAX = 0xFFFFFFFFFFFF

if (
    (_batch.TOPIC_START, _batch.BODY_START, _batch.EXTRA_START, _batch.FLAGS, _batch.COLUMNS)
    != (TOPIC_START, BODY_START, EXTRA_START, FLAGS, COLUMNS)
    or (_batch.EXTRA_NONE, _batch.EXTRA_BASE64, _batch.EXTRA_VERBATIM)
    != (EXTRA_NONE, EXTRA_BASE64, EXTRA_VERBATIM)
    or (_batch.RECORD_BODY_CRC_AT, _batch.RECORD_QUEUE_OFFSET_AT, _batch.RECORD_POSITION_AT)
    != (BODY_CRC_AT, QUEUE_OFFSET_AT, POSITION_AT)
    or (_batch.RECORD_BORN_MS_AT, _batch.RECORD_BORN_HOST_AT, _batch.RECORD_STORE_MS_AT)
    != (BORN_MS_AT, BORN_HOST_AT, STORE_MS_AT)
    or (_batch.RECORD_STORE_HOST_AT, _batch.RECORD_BODY_SIZE_AT, _batch.RECORD_BODY_AT)
    != (STORE_HOST_AT, BODY_SIZE_AT, BODY_AT)
    or (_batch.PROPERTY_CRC_SIZE, _batch.DISPATCH_TARGET_SIZE, _batch.DISPATCH_TARGETS_MAX)
    != (PROPERTY_CRC_SIZE, TARGET_SIZE, TARGETS_MAX)
    or (_batch.PROPERTY_DISPATCH + b"\x01", _batch.PROPERTY_CRC + b"\x01")
    != (b"PMQ_Q\x01", b"__CRC32#\x01")
    or (_batch.PROPERTIES_SIZE_MAX, _layout.HOST_SIZE, _layout.NUMBER_MAX, _layout.OFFSET_MAX)
    != (PROPERTIES_SIZE_MAX, HOST_SIZE, NUMBER_MAX, OFFSET_MAX)
    or (_layout.ENTRY_SIZE, _layout.PRIVATE_ENTRY_SIZE) != (ENTRY_SIZE, PRIVATE_ENTRY_SIZE)
):
    raise ImportError(
        "polymq.core_log.kernels.writing was built for other declarations: build it again"
    )

for _value in range(256):
    HEX_PAIRS[_value][0], HEX_PAIRS[_value][1] = b"%02x" % _value
for _value in range(100):
    TEN_PAIRS[_value][1], TEN_PAIRS[_value][0] = b"%02d" % _value
crc_prepare(1)

CRC_FOLDS = bool(crc_folds)
"""Whether sums use carry-less multiplication on this processor."""


def prepare_crc(bint may_fold):
    """Choose how sums are made: tests compare the ways. Returns whether folding is on."""
    crc_prepare(may_fold)
    return bool(crc_folds)


# --- text in memory ------------------------------------------------------------------------


cdef inline void put_hex(uint8_t *at, uint64_t value, int bytes_count) noexcept nogil:
    """Two digits for each of the lowest bytes."""
    cdef int index
    for index in range(bytes_count - 1, -1, -1):
        memcpy(at + 2 * index, HEX_PAIRS[value & 255], 2)
        value >>= 8


cdef inline void put_crc(uint8_t *at, uint32_t value) noexcept nogil:
    """The checksum property: ten digits, the least significant first."""
    cdef uint32_t low = value % 10000
    cdef uint32_t middle = value / 10000 % 10000
    memcpy(at, CRC_START, CRC_START_SIZE)
    at += CRC_START_SIZE
    memcpy(at, TEN_PAIRS[low % 100], 2)
    memcpy(at + 2, TEN_PAIRS[low / 100], 2)
    memcpy(at + 4, TEN_PAIRS[middle % 100], 2)
    memcpy(at + 6, TEN_PAIRS[middle / 100], 2)
    memcpy(at + 8, TEN_PAIRS[value / 100000000], 2)
    at[10] = 2


cdef uint8_t *put_base64(uint8_t *at, const uint8_t *source, Py_ssize_t size) noexcept nogil:
    cdef uint32_t group
    while size >= 3:
        group = <uint32_t>source[0] << 16 | <uint32_t>source[1] << 8 | source[2]
        at[0] = BASE64[group >> 18]
        at[1] = BASE64[group >> 12 & 63]
        at[2] = BASE64[group >> 6 & 63]
        at[3] = BASE64[group & 63]
        at += 4
        source += 3
        size -= 3
    if size:
        group = <uint32_t>source[0] << 16
        if size == 2:
            group |= <uint32_t>source[1] << 8
        at[0] = BASE64[group >> 18]
        at[1] = BASE64[group >> 12 & 63]
        at[2] = BASE64[group >> 6 & 63] if size == 2 else 61
        at[3] = 61
        at += 4
    return at


# --- sums -------------------------------------------------------------------------------------


def crc32(memory, Py_ssize_t start, Py_ssize_t end, uint32_t value=0):
    cdef Py_buffer view
    PyObject_GetBuffer(memory, &view, PyBUF_SIMPLE)
    try:
        if not 0 <= start <= end <= view.len:
            raise ValueError("the range lies outside the memory")
        return crc_update(value, <const uint8_t *>view.buf + start, end - start)
    finally:
        PyBuffer_Release(&view)


def java_hash(str text):
    cdef uint32_t value = 0
    cdef uint32_t unit
    for character in text:
        unit = <uint32_t><Py_UCS4>character
        if unit >= 0x10000:
            unit -= 0x10000
            value = 31 * value + (0xD800 | unit >> 10)
            unit = 0xDC00 | (unit & 0x3FF)
        value = 31 * value + unit
    return <int64_t>value - (<int64_t>1 << 32) if value & 0x80000000u else <int64_t>value


# --- writing ----------------------------------------------------------------------------------


cdef inline bint part_fits(const int64_t *row, Py_ssize_t available) noexcept nogil:
    """Whether the part whose start and size are row[0] and row[1] lies in the buffer."""
    return 0 <= row[0] <= available and 0 <= row[1] <= available - row[0]


cdef const int64_t *rows_of(array.array rows, int64_t first, int64_t last,
                            int64_t count) except? NULL:
    """The rows of a batch, if [first, last) are among them."""
    if not 0 <= first <= last <= count or count * COLUMNS > len(rows):
        raise IndexError("no such rows")
    return <const int64_t *>rows.data.as_longlongs


def next_run(batch, Py_ssize_t first):
    cdef int64_t count = batch.count
    cdef array.array array_of_rows = batch.rows
    cdef const int64_t *rows
    cdef const int64_t *topic
    cdef const int64_t *row
    cdef const char *source
    cdef Py_ssize_t index = first + 1
    cdef Py_buffer view
    if not 0 <= first < count or count * COLUMNS > len(array_of_rows):
        raise IndexError("no such row")
    rows = <const int64_t *>array_of_rows.data.as_longlongs
    PyObject_GetBuffer(batch.buffer, &view, PyBUF_SIMPLE)
    try:
        source = <const char *>view.buf
        topic = rows + first * COLUMNS
        if not part_fits(topic, view.len):
            raise ValueError("a row's part lies outside the buffer")
        while index < count:
            row = rows + index * COLUMNS
            if row[FLAGS] != topic[FLAGS]:
                break
            if not part_fits(row, view.len):
                raise ValueError("a row's part lies outside the buffer")
            if row[1] != topic[1] or memcmp(source + row[0], source + topic[0], topic[1]) != 0:
                break
            index += 1
        return index
    finally:
        PyBuffer_Release(&view)


cdef inline int64_t extra_size(int64_t kind, Py_ssize_t name_size, int64_t size) noexcept nogil:
    if kind == EXTRA_NONE:
        return 0
    if kind == EXTRA_VERBATIM:
        return size
    return name_size + 1 + (size + 2) / 3 * 4 + 1


def run_size(batch, Py_ssize_t first, Py_ssize_t last, tuple form, Py_ssize_t target_count,
             Py_ssize_t suffix_size):
    cdef bytes topic = form[1]
    cdef bytes properties = form[2]
    cdef int64_t kind = form[3]
    cdef bytes name = form[4]
    cdef const int64_t *rows = rows_of(batch.rows, first, last, batch.count)
    cdef const int64_t *row
    cdef Py_ssize_t name_size = len(name)
    cdef int64_t constant = len(properties) + suffix_size + PROPERTY_CRC_SIZE
    cdef int64_t frame = BODY_AT + len(topic) + 2
    cdef int64_t total = 0, record_max = 0, body_max = 0, properties_max = 0
    cdef int64_t properties_size, size
    cdef Py_ssize_t index
    cdef bint fits = True
    cdef Py_buffer view
    if kind not in (EXTRA_NONE, EXTRA_BASE64, EXTRA_VERBATIM):
        raise ValueError("unknown kind of extra property")
    if target_count:
        constant += DISPATCH_START_SIZE + TARGET_SIZE * target_count + 1
    PyObject_GetBuffer(batch.buffer, &view, PyBUF_SIMPLE)
    for index in range(first, last):
        row = rows + index * COLUMNS
        if not (part_fits(row + BODY_START, view.len) and part_fits(row + EXTRA_START, view.len)):
            fits = False
            break
        properties_size = constant + extra_size(kind, name_size, row[EXTRA_START + 1])
        size = frame + row[BODY_START + 1] + properties_size
        total += size
        record_max = max(record_max, size)
        body_max = max(body_max, row[BODY_START + 1])
        properties_max = max(properties_max, properties_size)
    PyBuffer_Release(&view)
    if not fits:
        raise ValueError("a row's part lies outside the buffer")
    return total, record_max, body_max, properties_max


cdef struct Run:
    # What all records of a run have in common.
    uint8_t head[88]
    const uint8_t *topic
    Py_ssize_t topic_size
    const uint8_t *properties
    Py_ssize_t properties_size
    int64_t kind
    const uint8_t *name
    Py_ssize_t name_size
    const uint8_t *suffix
    Py_ssize_t suffix_size
    int64_t tag
    Py_ssize_t target_count
    Py_ssize_t dispatch_size
    uint8_t dispatch[6 + 256 * 20 + 1]  # with zeros for the offsets' digits
    uint64_t offsets[256]


cdef enum:
    ROW_FITS = 0
    ROW_FULL = 1
    ROW_OUTSIDE = 2
    PROPERTIES_TOO_LARGE = 3


cdef int write_record(Run *run, const int64_t *row, uint64_t index, const uint8_t *source,
                      Py_ssize_t available, uint8_t *out, int64_t room, int64_t position,
                      uint8_t *entry, int64_t *written) noexcept nogil:
    """One record at `out` but for its checksum, `index` rows behind the run's first, and its
    entry."""
    cdef const uint8_t *body
    cdef int64_t body_size, properties_size, size
    cdef Py_ssize_t target
    cdef uint8_t *at = out
    cdef uint8_t *digits
    if not (part_fits(row + BODY_START, available) and part_fits(row + EXTRA_START, available)):
        return ROW_OUTSIDE
    body = source + row[BODY_START]
    body_size = row[BODY_START + 1]
    properties_size = (
        run.properties_size + extra_size(run.kind, run.name_size, row[EXTRA_START + 1])
        + run.dispatch_size + run.suffix_size + PROPERTY_CRC_SIZE
    )
    if properties_size > PROPERTIES_SIZE_MAX:
        return PROPERTIES_TOO_LARGE
    size = BODY_AT + body_size + run.topic_size + 2 + properties_size
    if size > room:
        return ROW_FULL
    memcpy(at, run.head, BODY_AT)
    put32(at, <uint32_t>size)
    put32(at + BODY_CRC_AT, crc_update(0, body, body_size) & 0x7FFFFFFF)
    if run.target_count:
        put64(at + QUEUE_OFFSET_AT, run.offsets[0] + index)
    put64(at + POSITION_AT, <uint64_t>position)
    put32(at + BODY_SIZE_AT, <uint32_t>body_size)
    at += BODY_AT
    memcpy(at, body, body_size)
    at += body_size
    memcpy(at, run.topic, run.topic_size)
    at += run.topic_size
    put16(at, <uint32_t>properties_size)
    at += 2
    memcpy(at, run.properties, run.properties_size)
    at += run.properties_size
    if run.kind == EXTRA_VERBATIM:
        memcpy(at, source + row[EXTRA_START], row[EXTRA_START + 1])
        at += row[EXTRA_START + 1]
    elif run.kind == EXTRA_BASE64:
        memcpy(at, run.name, run.name_size)
        at += run.name_size
        at[0] = 1
        at = put_base64(at + 1, source + row[EXTRA_START], row[EXTRA_START + 1])
        at[0] = 2
        at += 1
    if run.target_count:
        memcpy(at, run.dispatch, run.dispatch_size)
        digits = at + DISPATCH_START_SIZE + 8
        for target in range(run.target_count):
            put_hex(digits, run.offsets[target] + index, 6)
            digits += TARGET_SIZE
        at += run.dispatch_size
    memcpy(at, run.suffix, run.suffix_size)
    put64(entry, <uint64_t>position)
    put32(entry + 8, <uint32_t>size)
    put64(entry + 12, <uint64_t>run.tag)
    written[0] = size
    return ROW_FITS


cdef inline void seal_record(uint8_t *out, int64_t size) noexcept nogil:
    """Write the checksum of a record. Done one record late: reading bytes in the moment after they
    were written in smaller pieces makes the processor wait."""
    cdef int64_t covered = size - PROPERTY_CRC_SIZE
    put_crc(out + covered, crc_update(0, out, covered) & 0x7FFFFFFF)


cdef int fill_targets(Run *run, targets, int64_t base, int64_t count) except -1:
    """The constant part of the dispatch property, and the offsets of the run's first row."""
    cdef Py_ssize_t index = 0
    cdef int64_t number, offset
    cdef uint8_t *at = run.dispatch
    run.target_count = len(targets)
    run.dispatch_size = 0
    if run.target_count > TARGETS_MAX:
        raise ValueError("too many targets for one record")
    if run.target_count == 0:
        return 0
    memcpy(at, DISPATCH_START, DISPATCH_START_SIZE)
    at += DISPATCH_START_SIZE
    for target in targets:
        try:
            number, offset = target
        except OverflowError:
            raise ValueError("a target does not fit the dispatch property") from None
        if not (0 <= number <= NUMBER_MAX and 0 <= offset <= OFFSET_MAX - base - count):
            raise ValueError("a target does not fit the dispatch property")
        put_hex(at, number, 4)
        run.offsets[index] = offset + base
        at += TARGET_SIZE
        index += 1
    at[0] = 2
    run.dispatch_size = at + 1 - run.dispatch
    return 0


cdef int one_target(Run *run, int64_t number, int64_t offset, int64_t count) except -1:
    """`fill_targets` for one target, from the run's first row on."""
    cdef uint8_t *at = run.dispatch
    if not (0 <= number <= NUMBER_MAX and 0 <= offset <= OFFSET_MAX - count):
        raise ValueError("a target does not fit the dispatch property")
    run.target_count = 1
    memcpy(at, DISPATCH_START, DISPATCH_START_SIZE)
    put_hex(at + DISPATCH_START_SIZE, number, 4)
    run.offsets[0] = offset
    at[DISPATCH_START_SIZE + TARGET_SIZE] = 2
    run.dispatch_size = DISPATCH_START_SIZE + TARGET_SIZE + 1
    return 0


cdef class Appender:

    def __init__(self):
        self.entries = b""

    cpdef Py_ssize_t append(
        self, bytearray memory, Py_ssize_t start, Py_ssize_t limit, int64_t position, tuple form,
        bytes hosts, targets, int64_t number, int64_t offset, batch, Py_ssize_t first,
        Py_ssize_t last, int64_t born_ms, int64_t store_ms,
    ) except -1:
        return self.write(
            memory, start, limit, position, form, hosts, b"", targets, number, offset, 0, batch,
            first, last, born_ms, store_ms,
        )

    cdef Py_ssize_t write(
        self, bytearray memory, Py_ssize_t start, Py_ssize_t limit, int64_t position, tuple form,
        bytes hosts, bytes suffix, targets, int64_t number, int64_t offset, int64_t base, batch,
        Py_ssize_t first, Py_ssize_t last, int64_t born_ms, int64_t store_ms,
    ) except -1:
        """`append_run`, or `append` where `targets` is None."""
        cdef bytes head = form[0]
        cdef bytes topic = form[1]
        cdef bytes properties = form[2]
        cdef bytes name = form[4]
        cdef Run run
        cdef const int64_t *rows = rows_of(batch.rows, first, last, batch.count)
        cdef uint8_t *base_at = <uint8_t *>PyByteArray_AS_STRING(memory)
        cdef Py_ssize_t at = start
        cdef Py_ssize_t row = first
        cdef int64_t written = 0
        cdef int64_t unsealed = 0  # the size of the last record, while it has no checksum
        cdef int outcome = ROW_FITS
        cdef bytes entries
        cdef uint8_t *entry
        cdef Py_buffer view
        if not 0 <= start <= limit <= PyByteArray_GET_SIZE(memory):
            raise ValueError("the range lies outside the memory")
        if len(head) != BODY_AT or len(hosts) != HOST_SIZE:
            raise ValueError("the head or the hosts have another size")
        run.kind = form[3]
        run.tag = form[5]
        if run.kind not in (EXTRA_NONE, EXTRA_BASE64, EXTRA_VERBATIM):
            raise ValueError("unknown kind of extra property")
        if targets is None:
            one_target(&run, number, offset, last - first)
        else:
            fill_targets(&run, targets, base, last - first)
        memcpy(run.head, PyBytes_AS_STRING(head), BODY_AT)
        memcpy(run.head + BORN_HOST_AT, PyBytes_AS_STRING(hosts), HOST_SIZE)
        memcpy(run.head + STORE_HOST_AT, PyBytes_AS_STRING(hosts), HOST_SIZE)
        put64(run.head + BORN_MS_AT, <uint64_t>born_ms)
        put64(run.head + STORE_MS_AT, <uint64_t>store_ms)
        put64(run.head + QUEUE_OFFSET_AT, 0)
        run.topic = <const uint8_t *>PyBytes_AS_STRING(topic)
        run.topic_size = len(topic)
        run.properties = <const uint8_t *>PyBytes_AS_STRING(properties)
        run.properties_size = len(properties)
        run.name = <const uint8_t *>PyBytes_AS_STRING(name)
        run.name_size = len(name)
        run.suffix = <const uint8_t *>PyBytes_AS_STRING(suffix)
        run.suffix_size = len(suffix)
        entries = PyBytes_FromStringAndSize(NULL, (last - first) * ENTRY_SIZE)
        entry = <uint8_t *>PyBytes_AS_STRING(entries)
        PyObject_GetBuffer(batch.buffer, &view, PyBUF_SIMPLE)
        while row < last:
            outcome = write_record(
                &run, rows + row * COLUMNS, row - first, <const uint8_t *>view.buf, view.len,
                base_at + at, limit - at, position + (at - start), entry, &written,
            )
            if outcome != ROW_FITS:
                break
            if unsealed:
                seal_record(base_at + at - unsealed, unsealed)
            unsealed = written
            at += written
            entry += ENTRY_SIZE
            row += 1
        if unsealed:
            seal_record(base_at + at - unsealed, unsealed)
        PyBuffer_Release(&view)
        if outcome == ROW_OUTSIDE:
            raise ValueError("a row's part lies outside the buffer")
        if outcome == PROPERTIES_TOO_LARGE:
            raise ValueError("the properties do not fit")
        if row < last:
            entries = entries[: (row - first) * ENTRY_SIZE]
        self.end = at
        self.entries = entries
        return row - first


cdef Appender appender = Appender()


def append_run(bytearray memory, Py_ssize_t start, Py_ssize_t limit, int64_t position, tuple form,
               bytes hosts, bytes suffix, targets, int64_t base, batch, Py_ssize_t first,
               Py_ssize_t last, int64_t born_ms, int64_t store_ms):
    cdef Py_ssize_t count
    if targets is None:
        raise TypeError("no targets are an empty sequence")
    count = appender.write(
        memory, start, limit, position, form, hosts, suffix, targets, 0, 0, base, batch, first,
        last, born_ms, store_ms,
    )
    return count, appender.end, appender.entries


def widen(entries, store_ms=0, priority=0, ttl_code=0):
    cdef Py_buffer view
    cdef uint8_t ttl[11]
    cdef const uint8_t *source
    cdef uint8_t *out
    cdef bytes wide
    cdef Py_ssize_t index, count
    cdef int64_t stored
    if not (
        0 <= store_ms <= OFFSET_MAX and 0 <= priority <= 255 and 0 <= ttl_code <= TTL_CODE_MAX
    ):
        if len(entries) % ENTRY_SIZE == 0:
            raise ValueError("time, priority or time to live do not fit an entry")
        raise ValueError("not whole entries")
    stored = store_ms
    put16(ttl, <uint32_t>(stored >> 32))
    put32(ttl + 2, <uint32_t>stored)
    ttl[6] = priority
    put32(ttl + 7, ttl_code)
    PyObject_GetBuffer(entries, &view, PyBUF_SIMPLE)
    try:
        if view.len % ENTRY_SIZE:
            raise ValueError("not whole entries")
        count = view.len / ENTRY_SIZE
        wide = PyBytes_FromStringAndSize(NULL, count * PRIVATE_ENTRY_SIZE)
        out = <uint8_t *>PyBytes_AS_STRING(wide)
        source = <const uint8_t *>view.buf
        for index in range(count):
            memcpy(out, source, ENTRY_SIZE)
            memcpy(out + ENTRY_SIZE, ttl, PRIVATE_ENTRY_SIZE - 1 - ENTRY_SIZE)
            out[PRIVATE_ENTRY_SIZE - 1] = entry_check(out)
            source += ENTRY_SIZE
            out += PRIVATE_ENTRY_SIZE
        return wide
    finally:
        PyBuffer_Release(&view)


def find_damaged(entries):
    cdef Py_buffer view
    cdef const uint8_t *at
    cdef Py_ssize_t index
    PyObject_GetBuffer(entries, &view, PyBUF_SIMPLE)
    try:
        if view.len % PRIVATE_ENTRY_SIZE:
            raise ValueError("not whole entries")
        at = <const uint8_t *>view.buf
        for index in range(view.len / PRIVATE_ENTRY_SIZE):
            if at[PRIVATE_ENTRY_SIZE - 1] != entry_check(at):
                return index
            at += PRIVATE_ENTRY_SIZE
        return -1
    finally:
        PyBuffer_Release(&view)


# --- index entries ----------------------------------------------------------------------------


def plan_read(entries, Py_ssize_t stride, Py_ssize_t first, int64_t gap_max, int64_t size_max,
              int64_t limit):
    cdef Py_buffer view
    cdef const uint8_t *at
    cdef int64_t start, end, position, size
    cdef Py_ssize_t index, count = 1
    if stride < ENTRY_SIZE or first < 0:
        raise ValueError("no such entries")
    PyObject_GetBuffer(entries, &view, PyBUF_SIMPLE)
    try:
        if first >= view.len / stride:
            raise IndexError("no such entry")
        at = <const uint8_t *>view.buf + first * stride
        start = get64(at)
        size = <int64_t><int>get32(at + 8)
        if not (0 <= start <= OFFSET_MAX and size >= 0):
            raise ValueError("the entry names no place")
        end = start + size
        for index in range(first + 1, view.len / stride):
            at += stride
            position = get64(at)
            size = <int64_t><int>get32(at + 8)
            if size < 0 or position < end or position - end > gap_max:
                break
            if position > limit - size or position + size - start > size_max:
                break
            end = position + size
            count += 1
        return start, end - start, count
    finally:
        PyBuffer_Release(&view)


def fit(entries, Py_ssize_t stride, int64_t count_max, int64_t bytes_max):
    cdef Py_buffer view
    cdef const uint8_t *at
    cdef int64_t total = 0
    cdef Py_ssize_t index, count = 0
    if stride < ENTRY_SIZE:
        raise ValueError("no such entries")
    PyObject_GetBuffer(entries, &view, PyBUF_SIMPLE)
    at = <const uint8_t *>view.buf
    for index in range(view.len / stride):
        total += get32(at + 8)
        if count == count_max or (count and total > bytes_max):
            break
        count += 1
        at += stride
    PyBuffer_Release(&view)
    return count


def expired(entries, now_ms, ttl_code):
    cdef Py_buffer view
    cdef const uint8_t *at
    cdef int64_t now, ends, due = -1
    cdef int64_t code, limit
    cdef Py_ssize_t index, gone = 0, live = 0
    if not (0 <= now_ms <= OFFSET_MAX and 0 <= ttl_code <= TTL_CODE_MAX):
        if len(entries) % PRIVATE_ENTRY_SIZE == 0:
            raise ValueError("time or time to live do not fit an entry")
        raise ValueError("not whole entries")
    now = now_ms
    limit = ttl_code
    PyObject_GetBuffer(entries, &view, PyBUF_SIMPLE)
    try:
        if view.len % PRIVATE_ENTRY_SIZE:
            raise ValueError("not whole entries")
        at = <const uint8_t *>view.buf + ENTRY_SIZE
        for index in range(view.len / PRIVATE_ENTRY_SIZE):
            code = get32(at + 7)
            if limit and (code == 0 or limit < code):
                code = limit
            ends = -1
            if code:
                ends = <int64_t>(at[0] & 0x7F) << 40 | <int64_t>at[1] << 32 | get32(at + 2)
                ends += code - 1
                if ends <= now:
                    if live:
                        break
                    gone += 1
                    at += PRIVATE_ENTRY_SIZE
                    continue
            if not live:
                due = ends
            live += 1
            at += PRIVATE_ENTRY_SIZE
        return gone, live, due
    finally:
        PyBuffer_Release(&view)
