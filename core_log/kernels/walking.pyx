# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False
"""Walking over records in memory, in C on pointers. `walking.py` says what each function does.

Rules: the same functions, results and errors as `walking.py`, for every input. The bytes may
come from a disk and be anything: every size is compared with what is there before it is used.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy, memset

from polymq.core_log.kernels.crc cimport crc_prepare, entry_check
from polymq.core_log.kernels.numbers cimport get32, get64, put16, put32, put64
from polymq.core_log.kernels.record cimport (
    BATCH_SIZE, BATCH_START, BATCH_START_SIZE, BODY_AT, BODY_SIZE_AT, CONSTANT_SIZE,
    CONSTANT_START, CONSTANT_START_SIZE, CRC_START, CRC_START_SIZE, DISPATCH_START,
    DISPATCH_START_SIZE, ENTRY_SIZE, TTL_SIZE, TTL_START, TTL_START_SIZE, MAGIC_BLANK, MAGIC_V1,
    OF_START, OF_START_SIZE, POSITION_AT, PRIVATE_ENTRY_SIZE, PROPERTY_CRC_SIZE, RECORD_SIZE_MIN,
    STOP_BATCH, STOP_BLANK, STOP_CRC, STOP_END, STOP_MAGIC, STOP_POSITION, STOP_SHORT, STOP_SIZE,
    STOP_ZERO, STORE_MS_AT, SYSTEM_FLAG_AT, SYSTEM_FLAG_AT_MOST_ONCE, SYSTEM_TOPIC,
    SYSTEM_TOPIC_SIZE, TAGS_START, TAGS_START_SIZE, TARGETS_MAX, TARGET_SIZE, batch_part, check,
    find_targets, has_topic, properties_at, read_hex, size_of,
)

from polymq.core_log.kernels import batch as _batch
from polymq.core_log.kernels import layout as _layout
from polymq.core_log.kernels.writing import java_hash

# record.pxd has copies of declarations in batch.py and layout.py.
if (
    (_batch.MAGIC_V1, _batch.MAGIC_BLANK) != (MAGIC_V1, MAGIC_BLANK)
    or (_batch.RECORD_POSITION_AT, _batch.RECORD_BODY_SIZE_AT, _batch.RECORD_BODY_AT)
    != (POSITION_AT, BODY_SIZE_AT, BODY_AT)
    or _batch.RECORD_SYSTEM_FLAG_AT != SYSTEM_FLAG_AT
    or (_batch.PROPERTY_CRC_SIZE, _batch.DISPATCH_TARGET_SIZE, _batch.DISPATCH_TARGETS_MAX)
    != (PROPERTY_CRC_SIZE, TARGET_SIZE, TARGETS_MAX)
    or (_batch.PROPERTY_DISPATCH + b"\x01", _batch.PROPERTY_CRC + b"\x01")
    != (DISPATCH_START[:DISPATCH_START_SIZE], CRC_START[:CRC_START_SIZE])
    or (_layout.PROPERTY_BATCH + b"\x01", _layout.PROPERTY_OF + b"\x01")
    != (BATCH_START[:BATCH_START_SIZE], OF_START[:OF_START_SIZE])
    or (_layout.PROPERTY_TAGS + b"\x01", _layout.SYSTEM_TOPIC)
    != (TAGS_START[:TAGS_START_SIZE], SYSTEM_TOPIC[:SYSTEM_TOPIC_SIZE])
    or (_layout.PROPERTY_CONSTANT + b"\x01", _layout.PROPERTY_TTL + b"\x01")
    != (CONSTANT_START[:CONSTANT_START_SIZE], TTL_START[:TTL_START_SIZE])
    or (_layout.PROPERTY_CONSTANT_SIZE, _layout.PROPERTY_TTL_SIZE) != (CONSTANT_SIZE, TTL_SIZE)
    or _batch.RECORD_STORE_MS_AT != STORE_MS_AT
    or (_layout.SYSTEM_FLAG_AT_MOST_ONCE, _layout.ENTRY_AT_MOST_ONCE)
    != (SYSTEM_FLAG_AT_MOST_ONCE, 0x8000 << 32)
    or (_layout.PROPERTY_BATCH_SIZE, _layout.NO_BATCH) != (BATCH_SIZE, (-1, 0, 0))
    or (_layout.ENTRY_SIZE, _layout.PRIVATE_ENTRY_SIZE, _layout.RECORD_SIZE_MIN)
    != (ENTRY_SIZE, PRIVATE_ENTRY_SIZE, RECORD_SIZE_MIN)
    or (_layout.STOP_END, _layout.STOP_SHORT, _layout.STOP_BLANK, _layout.STOP_ZERO)
    != (STOP_END, STOP_SHORT, STOP_BLANK, STOP_ZERO)
    or (_layout.STOP_MAGIC, _layout.STOP_SIZE, _layout.STOP_POSITION, _layout.STOP_CRC)
    != (STOP_MAGIC, STOP_SIZE, STOP_POSITION, STOP_CRC)
    or _layout.STOP_BATCH != STOP_BATCH
):
    raise ImportError(
        "polymq.core_log.kernels.walking was built for other declarations: build it again"
    )

crc_prepare(1)


# --- entries ----------------------------------------------------------------------------------


cdef object tag_hash(const uint8_t *at, const uint8_t *end):
    """The hash of the first TAGS in [at, end), else 0."""
    cdef const uint8_t *value
    cdef const uint8_t *byte
    cdef uint32_t hashed = 0
    while not (end - at >= TAGS_START_SIZE and memcmp(at, TAGS_START, TAGS_START_SIZE) == 0):
        at = <const uint8_t *>memchr(at, 2, end - at)
        if at == NULL:
            return 0
        at += 1
    value = at + TAGS_START_SIZE
    at = <const uint8_t *>memchr(value, 2, end - value)
    if at == NULL:
        at = end
    byte = value
    while byte < at:
        if byte[0] >= 128:
            text = PyBytes_FromStringAndSize(<const char *>value, at - value)
            return java_hash(text.decode("utf-8", "surrogateescape"))
        hashed = 31 * hashed + byte[0]
        byte += 1
    return <int64_t><int>hashed


cdef void fill_ttl(const uint8_t *at, int64_t size, const uint8_t *ttl,
                    uint8_t *entry) noexcept nogil:
    """The second part of a private entry, without its check: the record's store time, and the
    `PMQ_X` that may stand at `ttl`."""
    cdef uint64_t ttl_code = 0, priority = 0
    cdef uint64_t store_ms = <uint64_t>get64(at + STORE_MS_AT)
    cdef uint32_t high
    if not (
        at + size - ttl >= TTL_SIZE
        and memcmp(ttl, TTL_START, TTL_START_SIZE) == 0
        and ttl[TTL_SIZE - 1] == 2
        and read_hex(ttl + TTL_START_SIZE, 8, &ttl_code)
        and read_hex(ttl + TTL_START_SIZE + 8, 2, &priority)
    ):
        ttl_code = 0
        priority = 0
    high = <uint32_t>(store_ms >> 32 & 0x7FFF)
    if get32(at + SYSTEM_FLAG_AT) & SYSTEM_FLAG_AT_MOST_ONCE:
        high |= 0x8000
    put16(entry + 20, high)
    put32(entry + 22, <uint32_t>store_ms)
    entry[26] = <uint8_t>priority
    put32(entry + 27, <uint32_t>ttl_code)


cdef bint fill_entry(const uint8_t *at, int64_t size, uint8_t *entry) except -1:
    """The private entry of a sound record (an own one is its start); returns whether the record is
    a continuation (of another record)."""
    cdef const uint8_t *properties = at + properties_at(at)
    cdef const uint8_t *digits = properties + OF_START_SIZE
    cdef uint64_t position, entry_size, tag
    if (
        has_topic(properties, SYSTEM_TOPIC, SYSTEM_TOPIC_SIZE)
        and at + size - digits > 2 * ENTRY_SIZE
        and memcmp(properties, OF_START, OF_START_SIZE) == 0
        and digits[2 * ENTRY_SIZE] == 2
        and read_hex(digits, 16, &position)
        and read_hex(digits + 16, 8, &entry_size)
        and read_hex(digits + 24, 16, &tag)
    ):
        put64(entry, position)
        put32(entry + 8, <uint32_t>entry_size)
        put64(entry + 12, tag)
        fill_ttl(at, size, digits + 2 * ENTRY_SIZE + 1, entry)
        entry[31] = entry_check(entry)
        return True
    if at + size - properties >= CONSTANT_SIZE and (
        memcmp(properties, CONSTANT_START, CONSTANT_START_SIZE) == 0
    ):
        fill_ttl(at, size, properties + CONSTANT_SIZE, entry)
    else:
        fill_ttl(at, size, at + size, entry)
    put64(entry, <uint64_t>get64(at + POSITION_AT))
    put32(entry + 8, <uint32_t>size)
    put64(entry + 12, <uint64_t><int64_t>tag_hash(properties, at + size))
    entry[31] = entry_check(entry)
    return False


# --- checking ---------------------------------------------------------------------------------


def check_record(memory, Py_ssize_t start, Py_ssize_t end, int64_t position=-1):
    cdef Py_buffer view
    PyObject_GetBuffer(memory, &view, PyBUF_SIMPLE)
    try:
        if not 0 <= start <= end <= view.len:
            raise ValueError("the range lies outside the memory")
        return check(<const uint8_t *>view.buf + start, end - start, position)
    finally:
        PyBuffer_Release(&view)


cdef bint follow_batch(const uint8_t *at, int64_t size, int64_t position, bint *is_open,
                       uint64_t *batch) noexcept nogil:
    """Let the open batch go on with the record at `at`; false if the record breaks it."""
    cdef uint64_t part[3]
    if not batch_part(at, size, part):
        return not is_open[0]
    if not is_open[0]:
        batch[0] = <uint64_t>position
        batch[1] = 0
        batch[2] = part[2]
    if part[0] != batch[0] or part[1] != batch[1] or part[2] != batch[2] or part[1] >= part[2]:
        return False
    batch[1] += 1
    is_open[0] = batch[1] < batch[2]
    return True


def scan(memory, Py_ssize_t start, Py_ssize_t end, int64_t position, tuple batch):
    cdef Py_buffer view
    cdef const uint8_t *base
    cdef Py_ssize_t at = start
    cdef Py_ssize_t count = 0
    cdef int reason = STOP_END
    cdef bint is_open = batch != (-1, 0, 0)
    cdef uint64_t part[3]
    cdef uint64_t before[3]
    cdef bint was_open
    cdef object following
    memset(part, 0, sizeof(part))
    PyObject_GetBuffer(memory, &view, PyBUF_SIMPLE)
    try:
        if start < end and not (0 <= start and end <= view.len):
            raise ValueError("the range lies outside the memory")
        if is_open:
            part[0], part[1], part[2] = batch
        base = <const uint8_t *>view.buf
        with nogil:
            while at < end:
                reason = check(base + at, end - at, position + (at - start))
                if reason != STOP_END:
                    break
                was_open = is_open
                memcpy(before, part, sizeof(part))
                if not follow_batch(
                    base + at, get32(base + at), position + (at - start), &is_open, part
                ):
                    reason = STOP_BATCH
                    is_open = was_open
                    memcpy(part, before, sizeof(part))
                    break
                at += get32(base + at)
                count += 1
    finally:
        PyBuffer_Release(&view)
    following = (-1, 0, 0)
    if is_open:
        following = (part[0], part[1], part[2])
    return at, count, reason, following


# --- rebuilding -------------------------------------------------------------------------------


cdef bint take_target(dict tables, const uint8_t *digits, const uint8_t *entry,
                      int entry_size) except -1:
    """Append an entry to its queue's table; false if the queue cannot take it."""
    cdef uint64_t number, offset
    cdef list table
    cdef bytearray entries
    cdef Py_ssize_t size
    read_hex(digits, 8, &number)
    read_hex(digits + 8, 12, &offset)
    found = tables.get(number)
    if found is None:
        table = [entry_size, offset, offset, bytearray()]
        tables[number] = table
    else:
        table = found
        if table[0] != entry_size or table[2] != offset:
            return False
    entries = table[3]
    size = PyByteArray_GET_SIZE(entries)
    PyByteArray_Resize(entries, size + entry_size)
    memcpy(PyByteArray_AS_STRING(entries) + size, entry, entry_size)
    table[2] = offset + 1
    return True


def dispatch(memory, Py_ssize_t start, Py_ssize_t end, dict tables):
    cdef Py_buffer view
    cdef const uint8_t *base
    cdef const uint8_t *digits = NULL
    cdef uint8_t entry[32]
    cdef Py_ssize_t at = start
    cdef int64_t size
    cdef int count, index, entry_size
    cdef bint continued
    memset(entry, 0, sizeof(entry))
    PyObject_GetBuffer(memory, &view, PyBUF_SIMPLE)
    try:
        base = <const uint8_t *>view.buf
        while at < end:
            size = -1 if at < 0 or end > view.len else size_of(base + at, end - at)
            if size < 0:
                raise ValueError("not a record")
            count = find_targets(base + at, size, &digits)
            if count:
                continued = fill_entry(base + at, size, entry)
                for index in range(count):
                    entry_size = PRIVATE_ENTRY_SIZE if index or continued else ENTRY_SIZE
                    if not take_target(tables, digits + index * TARGET_SIZE, entry, entry_size):
                        return at
            at += size
        return -1
    finally:
        PyBuffer_Release(&view)


def find_system(memory, Py_ssize_t start, Py_ssize_t end, bytes topic, bytes name):
    cdef Py_buffer view
    cdef const uint8_t *base
    cdef const uint8_t *properties
    cdef Py_ssize_t at = start
    cdef int64_t size
    cdef bytes first_property = name + b"\x01"
    cdef const char *wanted = PyBytes_AS_STRING(first_property)
    cdef Py_ssize_t wanted_size = len(first_property)
    cdef const char *topic_at = PyBytes_AS_STRING(topic)
    cdef Py_ssize_t topic_size = len(topic)
    cdef list found = []
    PyObject_GetBuffer(memory, &view, PyBUF_SIMPLE)
    try:
        base = <const uint8_t *>view.buf
        while at < end:
            size = -1 if at < 0 or end > view.len else size_of(base + at, end - at)
            if size < 0:
                raise ValueError("not a record")
            properties = base + at + properties_at(base + at)
            if (
                topic_size < BODY_AT
                and has_topic(properties, topic_at, topic_size)
                and base + at + size - properties >= wanted_size
                and memcmp(properties, wanted, wanted_size) == 0
            ):
                found.append(at)
            at += size
        return found
    finally:
        PyBuffer_Release(&view)


def find_marked(memory, Py_ssize_t start, Py_ssize_t end, bytes topic, uint32_t system_flags):
    cdef Py_buffer view
    cdef const uint8_t *base
    cdef Py_ssize_t at = start
    cdef int64_t size
    cdef const char *topic_at = PyBytes_AS_STRING(topic)
    cdef Py_ssize_t topic_size = len(topic)
    cdef list found = []
    PyObject_GetBuffer(memory, &view, PyBUF_SIMPLE)
    try:
        base = <const uint8_t *>view.buf
        while at < end:
            size = -1 if at < 0 or end > view.len else size_of(base + at, end - at)
            if size < 0:
                raise ValueError("not a record")
            if get32(base + at + SYSTEM_FLAG_AT) & system_flags or (
                topic_size < BODY_AT
                and has_topic(base + at + properties_at(base + at), topic_at, topic_size)
            ):
                found.append(at)
            at += size
        return found
    finally:
        PyBuffer_Release(&view)


# --- reading ----------------------------------------------------------------------------------


cdef Py_ssize_t measure(const uint8_t *entries, Py_ssize_t stride, Py_ssize_t count,
                        const uint8_t *memory, int64_t position, int64_t used, bint verify,
                        int *reason, int64_t *total) noexcept nogil:
    """How many of the entries' records lie in memory[:used] (and are sound), and their bytes."""
    cdef Py_ssize_t index
    cdef int64_t size
    cdef uint64_t start
    reason[0] = STOP_END
    total[0] = 0
    for index in range(count):
        start = <uint64_t>get64(entries) - <uint64_t>position
        size = <int64_t><int>get32(entries + 8)
        if size < RECORD_SIZE_MIN or size > used or start > <uint64_t>(used - size):
            return index
        if verify:
            reason[0] = check(memory + start, size, get64(entries))
            if reason[0] == STOP_END and get32(memory + start) != size:
                reason[0] = STOP_SIZE
            if reason[0] != STOP_END:
                return index
        total[0] += size
        entries += stride
    return count


cdef void copy_records(char *out, const uint8_t *memory, int64_t position, const uint8_t *entry,
                       Py_ssize_t stride, Py_ssize_t count) noexcept nogil:
    """Copy the records of these entries, one after the other."""
    cdef Py_ssize_t index
    for index in range(count):
        memcpy(out, memory + (get64(entry) - position), get32(entry + 8))
        out += get32(entry + 8)
        entry += stride


def gather(entries, Py_ssize_t stride, Py_ssize_t first, memory, int64_t position, Py_ssize_t used,
           bint verify):
    cdef Py_buffer entries_view
    cdef Py_buffer view
    cdef const uint8_t *entry
    cdef const uint8_t *base
    cdef char *out
    cdef bytes records
    cdef Py_ssize_t count = 0
    cdef int64_t total = 0
    cdef int reason = STOP_END
    if stride < ENTRY_SIZE or first < 0:
        raise ValueError("no such entries")
    PyObject_GetBuffer(entries, &entries_view, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(memory, &view, PyBUF_SIMPLE)
        try:
            if not 0 <= used <= view.len:
                raise ValueError("the range lies outside the memory")
            base = <const uint8_t *>view.buf
            count = entries_view.len / stride - first
            entry = <const uint8_t *>entries_view.buf
            if count > 0:
                entry += first * stride
            else:
                count = 0
            if verify:
                with nogil:
                    count = measure(
                        entry, stride, count, base, position, used, True, &reason, &total
                    )
            else:
                count = measure(entry, stride, count, base, position, used, False, &reason, &total)
            records = PyBytes_FromStringAndSize(NULL, total)
            out = PyBytes_AS_STRING(records)
            if verify:  # a reader thread, and what it copies may be large
                with nogil:
                    copy_records(out, base, position, entry, stride, count)
            else:
                copy_records(out, base, position, entry, stride, count)
            return records, count, reason
        finally:
            PyBuffer_Release(&view)
    finally:
        PyBuffer_Release(&entries_view)


def check_targets(records, number, offset):
    cdef Py_buffer view
    cdef const uint8_t *base
    cdef const uint8_t *digits = NULL
    cdef Py_ssize_t at = 0
    cdef Py_ssize_t index = 0
    cdef int64_t size
    cdef uint64_t wanted_number = 0, wanted_offset = 0, found_number, found_offset
    cdef bint possible, named
    cdef int count, target
    PyObject_GetBuffer(records, &view, PyBUF_SIMPLE)
    try:
        base = <const uint8_t *>view.buf
        while at < view.len:
            size = size_of(base + at, view.len - at)
            if size < 0:
                raise ValueError("not a record")
            count = find_targets(base + at, size, &digits)
            possible = 0 <= number <= 0xFFFFFFFF and 0 <= offset + index <= 0xFFFFFFFFFFFF
            if possible:
                wanted_number = number
                wanted_offset = offset + index
            named = count == TARGETS_MAX
            for target in range(count if possible else 0):
                read_hex(digits + target * TARGET_SIZE, 8, &found_number)
                read_hex(digits + target * TARGET_SIZE + 8, 12, &found_offset)
                if found_number == wanted_number and found_offset == wanted_offset:
                    named = True
                    break
            if not named:
                return index
            at += size
            index += 1
        return -1
    finally:
        PyBuffer_Release(&view)


def record_run(memory, Py_ssize_t start, Py_ssize_t end, Py_ssize_t constant_size):
    cdef Py_buffer view
    cdef const uint8_t *base
    cdef const uint8_t *kind = NULL
    cdef const uint8_t *properties
    cdef Py_ssize_t at = start
    cdef Py_ssize_t count = 0
    cdef Py_ssize_t kind_size = 0, topic_size
    cdef int64_t size
    if constant_size < 0 or start >= end:
        raise ValueError("not a record")
    PyObject_GetBuffer(memory, &view, PyBUF_SIMPLE)
    try:
        base = <const uint8_t *>view.buf
        while at < end:
            size = -1 if at < 0 or end > view.len else size_of(base + at, end - at)
            if size < 0:
                raise ValueError("not a record")
            properties = base + at + properties_at(base + at)
            if properties + constant_size > base + at + size:
                if count == 0:
                    raise ValueError("not a record")
                break
            topic_size = base[at + BODY_AT + get32(base + at + BODY_SIZE_AT)]
            if count == 0:
                kind = properties
                kind_size = topic_size
            elif (
                topic_size != kind_size
                or memcmp(kind - 2 - kind_size, properties - 2 - kind_size, kind_size) != 0
                or memcmp(kind, properties, constant_size) != 0
            ):
                break
            at += size
            count += 1
        return at, count
    finally:
        PyBuffer_Release(&view)
