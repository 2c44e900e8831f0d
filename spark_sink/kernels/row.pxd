# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
#
# What properties say of one message, in C. Where these functions return False, the message takes
# the slower way through Python, which knows every case: repeated names, tables within tables, what
# is no UTF-8. Nothing is copied but numbers of AMQP, which become text.

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp

from polymq.core_log.kernels.base64 cimport decode_base64
from polymq.core_log.kernels.numbers cimport get32, get64
from polymq.spark_sink.kernels.texts cimport (
    NUMBER_SIZE, Text, either, is_utf8, signed_text, text_of, unsigned_text,
)

cdef enum:
    HEADERS_MAX = 64  # of one message; more take the slower way
    DECODED_MAX = 24576  # three quarters of the most that properties can have
    AMQP_COUNT = 14
    AMQP_UNUSED_BITS = 3

cdef struct Row:
    Text tag
    Text unique_key
    Text keys
    Text content_type
    Text protocol
    Text event_id
    Text packed  # AMQP's properties in base64
    int header_count
    Text names[HEADERS_MAX]
    Text values[HEADERS_MAX]
    uint8_t numbers[HEADERS_MAX * NUMBER_SIZE]
    uint8_t decoded[DECODED_MAX]

cdef struct Reader:
    const uint8_t *at
    const uint8_t *end

cdef extern from *:
    r"""
    /* AMQP 0-9-1, class basic, from bit 15 down; s: a short string, t: a table, b: a byte,
       q: eight. What has no name here has a column of its own. */
    static const char polymq_amqp_kinds[] = "sstbbssssqssss";
    static const char *const polymq_amqp_names[] = {
        "", "amqp.content_encoding", "", "amqp.delivery_mode", "amqp.priority",
        "amqp.correlation_id", "amqp.reply_to", "amqp.expiration", "", "amqp.timestamp",
        "amqp.type", "amqp.user_id", "amqp.app_id", "amqp.cluster_id",
    };
    static const unsigned char polymq_amqp_name_sizes[] = {
        0, 21, 0, 18, 13, 19, 13, 15, 0, 14, 9, 12, 11, 15,
    };
    """
    const char polymq_amqp_kinds[AMQP_COUNT]
    const char *polymq_amqp_names[AMQP_COUNT]
    const uint8_t polymq_amqp_name_sizes[AMQP_COUNT]


cdef inline bint is_name(const uint8_t *at, Py_ssize_t size, const char *name,
                         Py_ssize_t name_size) noexcept nogil:
    return size == name_size and memcmp(at, name, name_size) == 0


cdef inline bint add_header(Row *row, Text name, Text value) noexcept nogil:
    cdef int count = row.header_count
    if count == HEADERS_MAX:
        return False
    row.names[count] = name
    row.values[count] = value
    row.header_count = count + 1
    return True


cdef inline bint read_row(Row *row, const uint8_t *at, const uint8_t *end) noexcept nogil:
    """Read the properties in [at, end), up to what the broker appended."""
    cdef const uint8_t *start = at
    cdef Text none = text_of(NULL, 0)
    row.tag = row.unique_key = row.keys = row.content_type = none
    row.protocol = row.event_id = row.packed = none
    row.header_count = 0
    at = read_pairs(row, at, end)
    if at == NULL or not is_utf8(start, at):
        return False
    row.keys = either(row.keys, row.event_id)
    if row.packed.at != NULL:
        if row.protocol.at == NULL:
            row.protocol = text_of(<const uint8_t *>b"amqp", 4)
        if not read_amqp(row):
            return False
    if row.protocol.at == NULL:
        row.protocol = text_of(<const uint8_t *>b"rocketmq", 8)
    elif is_name(row.protocol.at, row.protocol.size, b"mqtt5", 5):
        row.protocol.size = 4
    return are_distinct(row)


cdef inline const uint8_t *read_pairs(
    Row *row, const uint8_t *at, const uint8_t *end
) noexcept nogil:
    """Where what the sender gave ends; NULL if it is not for this way."""
    cdef const uint8_t *stop
    cdef const uint8_t *separator
    cdef Py_ssize_t size
    cdef Text value
    cdef bint is_header
    while at < end:
        stop = <const uint8_t *>memchr(at, 2, end - at)
        if stop == NULL:
            stop = end
        separator = <const uint8_t *>memchr(at, 1, stop - at)
        if separator == NULL:
            at = stop + 1 if stop < end else end
            continue
        size = separator - at
        value = text_of(separator + 1, stop - separator - 1)
        is_header = False
        if is_name(at, size, b"TAGS", 4):
            row.tag = value
        elif is_name(at, size, b"KEYS", 4):
            row.keys = value
        elif is_name(at, size, b"UNIQ_KEY", 8):
            row.unique_key = value
        elif is_name(at, size, b"content-type", 12):
            row.content_type = value
        elif is_name(at, size, b"__CRC32#", 8):
            return at
        elif size >= 4 and memcmp(at, b"PMQ_", 4) == 0:
            if is_name(at, size, b"PMQ_Q", 5) or is_name(at, size, b"PMQ_B", 5):
                return at
            if is_name(at, size, b"PMQ_MQTT5", 9):
                return NULL
            if is_name(at, size, b"PMQ_LONG", 8) and is_name(value.at, value.size, b"1", 1):
                return NULL
            if is_name(at, size, b"PMQ_PROTO", 9):
                row.protocol = value
            elif is_name(at, size, b"PMQ_AMQP", 8):
                row.packed = value
            is_header = size >= 8 and memcmp(at, b"PMQ_DLQ_", 8) == 0
        else:
            is_header = True
            if is_name(at, size, b"CE_id", 5):
                row.event_id = value
        if is_header and not add_header(row, text_of(at, size), value):
            return NULL
        at = stop + 1 if stop < end else end
    return end


cdef inline bint are_distinct(const Row *row) noexcept nogil:
    """Whether no two headers have one name."""
    cdef int first, second
    cdef Text name
    for first in range(1, row.header_count):
        name = row.names[first]
        for second in range(first):
            if row.names[second].size == name.size:
                if memcmp(row.names[second].at, name.at, name.size) == 0:
                    return False
    return True


# --- AMQP 4.2.6.1: flags and list, in base64 ---------------------------------------------------


cdef inline bint read_amqp(Row *row) noexcept nogil:
    cdef Py_ssize_t size = decode_base64(row.packed.at, row.packed.size, row.decoded)
    cdef Reader reader
    cdef uint32_t flags
    cdef int index
    cdef Text value, content_type, encoding, message_id
    content_type = encoding = message_id = text_of(NULL, 0)
    if size < 2:
        return False
    flags = <uint32_t>row.decoded[0] << 8 | row.decoded[1]
    if flags & AMQP_UNUSED_BITS:
        return False
    reader.at = row.decoded + 2
    reader.end = row.decoded + size
    for index in range(AMQP_COUNT):
        if index == 3 and encoding.at != NULL:  # behind the table, where that stands in the list
            if not add_amqp(row, 1, encoding):
                return False
        if not flags >> (15 - index) & 1:
            continue
        if polymq_amqp_kinds[index] == c't':
            if not read_table(row, &reader):
                return False
            continue
        if not read_property(row, &reader, polymq_amqp_kinds[index], &value):
            return False
        if index == 0:
            content_type = value
        elif index == 1:
            encoding = value
        elif index == 8:
            message_id = value
        elif not add_amqp(row, index, value):
            return False
    row.content_type = either(row.content_type, content_type)
    row.keys = either(row.keys, message_id)
    return reader.at == reader.end


cdef inline bint add_amqp(Row *row, int index, Text value) noexcept nogil:
    cdef const uint8_t *name = <const uint8_t *>polymq_amqp_names[index]
    return add_header(row, text_of(name, polymq_amqp_name_sizes[index]), value)


cdef inline bint has_bytes(const Reader *reader, Py_ssize_t size) noexcept nogil:
    return reader.end - reader.at >= size


cdef inline bint read_text(Reader *reader, int width, Text *text) noexcept nogil:
    """A string with its size in front, in one or four bytes."""
    cdef Py_ssize_t size
    if not has_bytes(reader, width):
        return False
    size = reader.at[0] if width == 1 else get32(reader.at)
    reader.at += width
    if not has_bytes(reader, size) or not is_utf8(reader.at, reader.at + size):
        return False
    text[0] = text_of(reader.at, size)
    reader.at += size
    return True


cdef inline uint8_t *number_room(Row *row) noexcept nogil:
    """For the number of the header that comes next."""
    return row.numbers + row.header_count * NUMBER_SIZE


cdef inline bint read_property(Row *row, Reader *reader, char kind, Text *value) noexcept nogil:
    if kind == c's':
        return read_text(reader, 1, value)
    if row.header_count == HEADERS_MAX or not has_bytes(reader, 8 if kind == c'q' else 1):
        return False
    if kind == c'q':
        value[0] = unsigned_text(<uint64_t>get64(reader.at), number_room(row))
        reader.at += 8
    else:
        value[0] = unsigned_text(reader.at[0], number_room(row))
        reader.at += 1
    return True


cdef inline bint read_table(Row *row, Reader *reader) noexcept nogil:
    cdef const uint8_t *end
    cdef Text name, value
    if not has_bytes(reader, 4) or not has_bytes(reader, 4 + <Py_ssize_t>get32(reader.at)):
        return False
    end = reader.at + 4 + get32(reader.at)
    reader.at += 4
    while reader.at < end:
        if not read_text(reader, 1, &name) or not read_value(row, reader, &value):
            return False
        if not add_header(row, name, value):
            return False
    return reader.at == end


cdef inline int width_of(uint8_t kind) noexcept nogil:
    """Bytes of a number of AMQP as RabbitMQ reads it, or of a truth value; 0: another kind."""
    if kind == c't' or kind == c'b' or kind == c'B':
        return 1
    if kind == c's' or kind == c'u':
        return 2
    if kind == c'I' or kind == c'i':
        return 4
    return 8 if kind == c'l' or kind == c'L' or kind == c'T' else 0


cdef inline bint read_value(Row *row, Reader *reader, Text *value) noexcept nogil:
    cdef uint8_t kind
    cdef int width
    if not has_bytes(reader, 1):
        return False
    kind = reader.at[0]
    reader.at += 1
    if kind == c'S':
        return read_text(reader, 4, value)
    if kind == c'V':
        value[0] = text_of(NULL, 0)
        return True
    width = width_of(kind)
    if not width or row.header_count == HEADERS_MAX or not has_bytes(reader, width):
        return False
    value[0] = number_text(kind, reader.at, number_room(row))
    reader.at += width
    return True


cdef inline Text number_text(uint8_t kind, const uint8_t *at, uint8_t *room) noexcept nogil:
    cdef uint16_t short_value
    if kind == c't':
        return text_of(<const uint8_t *>b"true", 4) if at[0] else text_of(
            <const uint8_t *>b"false", 5)
    if kind == c'b':
        return signed_text(<int8_t>at[0], room)
    if kind == c'B':
        return unsigned_text(at[0], room)
    if kind == c's' or kind == c'u':
        short_value = <uint16_t>(at[0] << 8 | at[1])
        return signed_text(<int16_t>short_value if kind == c's' else <int64_t>short_value, room)
    if kind == c'I':
        return signed_text(<int32_t>get32(at), room)
    if kind == c'i':
        return unsigned_text(get32(at), room)
    if kind == c'T':
        return unsigned_text(<uint64_t>get64(at), room)
    return signed_text(get64(at), room)
