# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False
"""Records as columns, in C on pointers. `columns.py` says what the class does.

Rules:

* The same columns as `columns.py` makes, for every input. What is rare takes that way: `row.pxd`
  says which messages, and `interpret` is asked about them, one by one.
* Sizes in records are checked against the bytes that are there before anything behind them is read.
* A row is read as a whole before a byte of it is written.
* Columns grow by doubling, in memory that Arrow takes over as it is.
* Without `interpret`, the lock of the interpreter is not held.
"""

from cpython.buffer cimport (
    PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy

from polymq.core_log.kernels.crc cimport crc_prepare, crc_update
from polymq.core_log.kernels.numbers cimport get32, get64
from polymq.spark_sink.kernels.row cimport Row, read_row
from polymq.spark_sink.kernels.texts cimport Text, text_of

from polymq.spark_sink.kernels.codes import (
    BORN_HOST_IS_V6, COMPRESSED, CRC_MASK, FIRST_MS, LAST_MS, MAGIC_V1, MAGIC_V2, STORE_HOST_IS_V6,
)

cdef enum:  # codes.py
    C_MAGIC_V1 = 0xDAA320A7
    C_MAGIC_V2 = 0xDAA320AB
    C_BORN_HOST_IS_V6 = 0x10
    C_STORE_HOST_IS_V6 = 0x20
    C_COMPRESSED = 0x1
    C_CRC_MASK = 0x7FFFFFFF
    C_HOST_SIZE_V4 = 8
    C_HOST_SIZE_V6 = 20
    C_HEAD_SIZE = 48
    C_TAIL_SIZE = 16
    C_FIRST_BYTES = 4096
    C_COLUMN_BYTES_MAX = 0x7FFFFFFF

cdef int64_t C_FIRST_MS = FIRST_MS
cdef int64_t C_LAST_MS = LAST_MS

assert <uint32_t>C_MAGIC_V1 == MAGIC_V1 and <uint32_t>C_MAGIC_V2 == MAGIC_V2
assert (C_BORN_HOST_IS_V6, C_STORE_HOST_IS_V6) == (BORN_HOST_IS_V6, STORE_HOST_IS_V6)
assert C_CRC_MASK == CRC_MASK and C_COMPRESSED == COMPRESSED

crc_prepare(1)

cdef struct Message:
    const uint8_t *store_host
    Py_ssize_t store_host_size
    const uint8_t *position
    const uint8_t *body
    Py_ssize_t body_size
    const uint8_t *properties
    Py_ssize_t properties_size
    int64_t offset
    int64_t born_ms
    int64_t store_ms
    int32_t queue_id
    uint32_t system_flag

cdef struct Memory:
    uint8_t *data
    Py_ssize_t size
    Py_ssize_t room

cdef struct Column:  # of texts or bytes
    Memory present  # a bit for each value
    Memory ends
    Memory data
    int64_t count
    int64_t absent_count


cdef bint read_message(const uint8_t *at, Py_ssize_t left, Message *message) noexcept nogil:
    """Take a record apart; false if it is none, or its body is damaged."""
    cdef Py_ssize_t size, body_at, end, width, topic_size
    cdef uint32_t magic
    if left < C_HEAD_SIZE:
        return False
    size = get32(at)
    magic = get32(at + 4)
    if magic != <uint32_t>C_MAGIC_V1 and magic != <uint32_t>C_MAGIC_V2:
        return False
    if size > left:
        return False
    message.queue_id = <int32_t>get32(at + 12)
    message.offset = get64(at + 20)
    message.position = at + 28
    message.system_flag = get32(at + 36)
    message.born_ms = get64(at + 40)
    body_at = C_HEAD_SIZE
    body_at += C_HOST_SIZE_V6 if message.system_flag & C_BORN_HOST_IS_V6 else C_HOST_SIZE_V4
    message.store_host_size = (
        C_HOST_SIZE_V6 if message.system_flag & C_STORE_HOST_IS_V6 else C_HOST_SIZE_V4
    )
    if size < body_at + 8 + message.store_host_size + C_TAIL_SIZE:
        return False
    message.store_ms = get64(at + body_at)
    message.store_host = at + body_at + 8
    body_at += 8 + message.store_host_size + C_TAIL_SIZE
    message.body = at + body_at
    message.body_size = get32(at + body_at - 4)
    end = body_at + message.body_size
    width = 1 if magic == <uint32_t>C_MAGIC_V1 else 2
    if end + width + 2 > size:
        return False
    topic_size = at[end] if width == 1 else at[end] << 8 | at[end + 1]
    end += width + topic_size + 2
    if end > size:
        return False
    message.properties = at + end
    message.properties_size = at[end - 2] << 8 | at[end - 1]
    if end + message.properties_size != size:
        return False
    return crc_update(0, message.body, message.body_size) & C_CRC_MASK == get32(at + 8)


# --- columns that grow -------------------------------------------------------------------------


cdef uint8_t *extend(Memory *memory, Py_ssize_t size) noexcept nogil:
    """So many bytes more; NULL if there is no memory, or more than Arrow's offsets can count."""
    cdef Py_ssize_t room = memory.room or C_FIRST_BYTES
    cdef uint8_t *data
    if memory.size + size > memory.room or memory.data == NULL:
        if memory.size + size > C_COLUMN_BYTES_MAX:
            return NULL
        while room < memory.size + size:
            room *= 2
        data = <uint8_t *>realloc(memory.data, room)
        if data == NULL:
            return NULL
        memory.data = data
        memory.room = room
    data = memory.data + memory.size
    memory.size += size
    return data


cdef bint put(Memory *memory, const void *value, Py_ssize_t size) noexcept nogil:
    cdef uint8_t *at = extend(memory, size)
    if at == NULL:
        return False
    memcpy(at, value, size)
    return True


cdef bint put_bit(Memory *bits, int64_t index, bint value) noexcept nogil:
    cdef uint8_t *byte
    if index % 8 == 0:
        byte = extend(bits, 1)
        if byte == NULL:
            return False
        byte[0] = 0
    bits.data[index // 8] |= <uint8_t>(value << index % 8)
    return True


cdef bint put_end(Memory *ends, Py_ssize_t value) noexcept nogil:
    cdef int32_t end = <int32_t>value
    return put(ends, &end, 4)


cdef bint put_text(Column *column, Text text) noexcept nogil:
    if text.at == NULL:
        column.absent_count += 1
    elif not put(&column.data, text.at, text.size):
        return False
    if not put_bit(&column.present, column.count, text.at != NULL):
        return False
    column.count += 1
    return put_end(&column.ends, column.data.size)


cdef bint begin_column(Column *column) noexcept nogil:
    column.count = column.absent_count = 0
    return extend(&column.data, 0) != NULL and put_end(&column.ends, 0)


cdef void free_column(Column *column) noexcept nogil:
    free(column.present.data)
    free(column.ends.data)
    free(column.data.data)


cdef class Block:
    """Memory of a column that nobody writes to any more."""

    cdef Memory memory

    def __dealloc__(self):
        free(self.memory.data)

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.memory.data, self.memory.size, 1, flags)


cdef Block block_of(Memory *memory):
    """The memory as an object; the column begins anew."""
    cdef Block block = Block.__new__(Block)
    if extend(memory, 0) == NULL:
        raise MemoryError
    block.memory = memory[0]
    memory.data = NULL
    memory.size = memory.room = 0
    return block


cdef tuple blocks_of(Column *column):
    return (
        block_of(&column.present) if column.absent_count else None,
        block_of(&column.ends),
        block_of(&column.data),
    )


cdef Text text_in(object value) except *:
    if value is None:
        return text_of(NULL, 0)
    return text_of(
        <const uint8_t *>PyBytes_AS_STRING(<bytes?>value), PyBytes_GET_SIZE(value)
    )


cdef enum:
    TAG = 0
    MSG_ID = 1
    KEYS = 2
    CONTENT_TYPE = 3
    PROTOCOL = 4
    NAMES = 5
    VALUES = 6
    BODY = 7
    COLUMN_COUNT = 8


cdef class Columns:
    cdef readonly int64_t row_count
    cdef readonly int64_t byte_count
    cdef int64_t rows_max
    cdef int64_t bytes_max
    cdef int64_t row_bytes
    cdef object interpret
    cdef Column columns[COLUMN_COUNT]
    cdef Memory queue_ids
    cdef Memory offsets
    cdef Memory born
    cdef Memory born_present
    cdef int64_t unborn_count
    cdef Memory stored
    cdef Memory header_ends
    cdef Row *row

    def __cinit__(self, interpret, *, int64_t rows_max, int64_t bytes_max, int64_t row_bytes):
        self.interpret = interpret
        self.rows_max = rows_max
        self.bytes_max = bytes_max
        self.row_bytes = row_bytes
        self.row = <Row *>malloc(sizeof(Row))
        if self.row == NULL:
            raise MemoryError
        self.begin()

    def __dealloc__(self):
        cdef int index
        for index in range(COLUMN_COUNT):
            free_column(&self.columns[index])
        free(self.queue_ids.data)
        free(self.offsets.data)
        free(self.born.data)
        free(self.born_present.data)
        free(self.stored.data)
        free(self.header_ends.data)
        free(self.row)

    @property
    def is_full(self):
        return self.full()

    cdef bint full(self) noexcept nogil:
        return self.row_count >= self.rows_max or self.byte_count >= self.bytes_max

    cdef int begin(self) except -1:
        cdef int index
        cdef bint has_memory = put_end(&self.header_ends, 0)
        for index in range(COLUMN_COUNT):
            has_memory = begin_column(&self.columns[index]) and has_memory
        if not has_memory:
            raise MemoryError
        self.row_count = self.byte_count = self.unborn_count = 0
        return 0

    def take(self, records, Py_ssize_t at, int32_t queue_id, int64_t offset, int64_t end):
        cdef Py_buffer view
        cdef const uint8_t *base
        cdef Message message
        cdef bint is_row = True
        cdef bint is_next = True
        cdef bint has_memory = True
        PyObject_GetBuffer(records, &view, PyBUF_SIMPLE)
        base = <const uint8_t *>view.buf
        try:
            while is_next and at < view.len and offset < end and not self.full():
                with nogil:
                    while at < view.len and offset < end and not self.full():
                        is_next = read_message(base + at, view.len - at, &message)
                        is_next = (
                            is_next and message.queue_id == queue_id and message.offset == offset
                        )
                        if not is_next:
                            break
                        is_row = not message.system_flag & C_COMPRESSED and read_row(
                            self.row, message.properties,
                            message.properties + message.properties_size,
                        )
                        if not is_row:
                            break
                        has_memory = self.put_row(
                            &message, text_of(message.body, message.body_size)
                        )
                        if not has_memory:
                            break
                        at += get32(base + at)
                        offset += 1
                if not is_row:
                    has_memory = self.put_interpreted(&message)
                    at += get32(base + at)
                    offset += 1
                    is_row = True
                if not has_memory:
                    raise MemoryError("a batch of messages does not fit into memory")
            return at
        finally:
            PyBuffer_Release(&view)

    cdef bint put_interpreted(self, Message *message) except? False:
        """A row that `interpret` makes."""
        cdef Row *row = self.row
        cdef bint has_memory
        cdef Text name
        tag, unique_key, keys, content_type, protocol, headers, body = self.interpret(
            PyBytes_FromStringAndSize(<const char *>message.properties, message.properties_size),
            PyBytes_FromStringAndSize(<const char *>message.body, message.body_size),
            message.system_flag,
        )
        row.tag = text_in(tag)
        row.unique_key = text_in(unique_key)
        row.keys = text_in(keys)
        row.content_type = text_in(content_type)
        row.protocol = text_in(protocol)
        row.header_count = 0
        for header_name, value in headers:
            name = text_in(header_name)
            if not self.put_header(name, text_in(value)):
                return False
        return self.put_row(message, text_in(body))

    cdef bint put_header(self, Text name, Text value) noexcept nogil:
        return put_text(&self.columns[NAMES], name) and put_text(&self.columns[VALUES], value)

    cdef bint put_row(self, Message *message, Text body) noexcept nogil:
        """Write a row, but for headers that are written already. False: no memory."""
        cdef Row *row = self.row
        cdef int64_t number
        cdef int index
        cdef bint is_born = C_FIRST_MS <= message.born_ms <= C_LAST_MS
        for index in range(row.header_count):
            if not self.put_header(row.names[index], row.values[index]):
                return False
        if not put_end(&self.header_ends, self.columns[NAMES].count):
            return False
        if not put(&self.queue_ids, &message.queue_id, 4) or not put(
            &self.offsets, &message.offset, 8
        ):
            return False
        number = message.born_ms * 1000 if is_born else 0
        self.unborn_count += not is_born
        if not put(&self.born, &number, 8) or not put_bit(
            &self.born_present, self.row_count, is_born
        ):
            return False
        number = min(max(message.store_ms, 0), C_LAST_MS) * 1000
        if not put(&self.stored, &number, 8):
            return False
        if not (
            put_text(&self.columns[TAG], row.tag)
            and self.put_id(message)
            and put_text(&self.columns[KEYS], row.keys)
            and put_text(&self.columns[CONTENT_TYPE], row.content_type)
            and put_text(&self.columns[PROTOCOL], row.protocol)
            and put_text(&self.columns[BODY], body)
        ):
            return False
        self.row_count += 1
        self.byte_count += body.size + message.properties_size + self.row_bytes
        return True

    cdef bint put_id(self, Message *message) noexcept nogil:
        cdef Text unique_key = self.row.unique_key
        cdef uint8_t digits[56]
        if unique_key.at == NULL or not unique_key.size:
            hex_digits(message.store_host, message.store_host_size, digits)
            hex_digits(message.position, 8, digits + 2 * message.store_host_size)
            unique_key = text_of(digits, 2 * message.store_host_size + 16)
        return put_text(&self.columns[MSG_ID], unique_key)

    def give(self):
        given = [
            (None, block_of(&self.queue_ids)),
            (None, block_of(&self.offsets)),
            (block_of(&self.born_present) if self.unborn_count else None, block_of(&self.born)),
            (None, block_of(&self.stored)),
            (None, block_of(&self.header_ends)),
            *[blocks_of(&self.columns[index]) for index in range(COLUMN_COUNT)],
        ]
        self.clear_bits()
        self.begin()
        return given

    cdef void clear_bits(self) noexcept nogil:
        """Bitmaps that were not given out, because nothing was absent."""
        cdef int index
        self.born_present.size = 0
        for index in range(COLUMN_COUNT):
            self.columns[index].present.size = 0


cdef void hex_digits(const uint8_t *at, Py_ssize_t size, uint8_t *out) noexcept nogil:
    cdef const uint8_t *digits = <const uint8_t *>b"0123456789ABCDEF"
    cdef Py_ssize_t index
    for index in range(size):
        out[2 * index] = digits[at[index] >> 4]
        out[2 * index + 1] = digits[at[index] & 15]
