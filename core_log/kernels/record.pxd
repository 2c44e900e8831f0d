# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
#
# The parts of a record in memory: what stands where, whether it is sound. Shared by kernels that
# walk over records; whoever cimports this calls `crc_prepare` at import and compares the constants
# with batch.py and layout.py (`walk.pyx` does both).
#
# Only `check` and `size_of` may be given any bytes; all else is given a record that one of them
# accepted.

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp

from polymq.core_log.kernels.crc cimport crc_update
from polymq.core_log.kernels.numbers cimport get32, get64

cdef enum:
    POSITION_AT = 28
    SYSTEM_FLAG_AT = 36
    SYSTEM_FLAG_AT_MOST_ONCE = 0x20000
    STORE_MS_AT = 56
    BODY_SIZE_AT = 84
    BODY_AT = 88
    PROPERTY_CRC_SIZE = 20
    TARGET_SIZE = 20
    TARGETS_MAX = 256
    ENTRY_SIZE = 20
    PRIVATE_ENTRY_SIZE = 32
    RECORD_SIZE_MIN = 112
    BATCH_SIZE = 31
    BATCH_START_SIZE = 6
    DISPATCH_START_SIZE = 6
    CRC_START_SIZE = 9
    OF_START_SIZE = 7
    TAGS_START_SIZE = 5
    CONSTANT_START_SIZE = 6
    CONSTANT_SIZE = 11
    TTL_START_SIZE = 6
    TTL_SIZE = 17
    SYSTEM_TOPIC_SIZE = 20
    STOP_END = 0
    STOP_SHORT = 1
    STOP_BLANK = 2
    STOP_ZERO = 3
    STOP_MAGIC = 4
    STOP_SIZE = 5
    STOP_POSITION = 6
    STOP_CRC = 7
    STOP_BATCH = 8

cdef extern from *:
    r"""
    #define POLYMQ_BATCH_START "PMQ_B\001"
    #define POLYMQ_DISPATCH_START "PMQ_Q\001"
    #define POLYMQ_CRC_START "__CRC32#\001"
    #define POLYMQ_OF_START "PMQ_OF\001"
    #define POLYMQ_TAGS_START "TAGS\001"
    #define POLYMQ_CONSTANT_START "PMQ_P\001"
    #define POLYMQ_LIFE_START "PMQ_X\001"
    #define POLYMQ_SYSTEM_TOPIC "RMQ_SYS_POLYMQ_STATE"
    """
    const char *BATCH_START "POLYMQ_BATCH_START"
    const char *DISPATCH_START "POLYMQ_DISPATCH_START"
    const char *CRC_START "POLYMQ_CRC_START"
    const char *OF_START "POLYMQ_OF_START"
    const char *TAGS_START "POLYMQ_TAGS_START"
    const char *CONSTANT_START "POLYMQ_CONSTANT_START"
    const char *TTL_START "POLYMQ_LIFE_START"
    const char *SYSTEM_TOPIC "POLYMQ_SYSTEM_TOPIC"
    uint32_t MAGIC_V1 "0xDAA320A7u"
    uint32_t MAGIC_BLANK "0xCBD43194u"


cdef inline bint crc_matches(const uint8_t *at, uint32_t value) noexcept nogil:
    """Whether the checksum property at `at` says this CRC."""
    cdef int index
    value &= 0x7FFFFFFF
    if memcmp(at, CRC_START, CRC_START_SIZE) != 0 or at[PROPERTY_CRC_SIZE - 1] != 2:
        return False
    for index in range(CRC_START_SIZE, PROPERTY_CRC_SIZE - 1):
        if at[index] != 48 + value % 10:
            return False
        value = value / 10
    return True


cdef inline int check(const uint8_t *at, int64_t available, int64_t position) noexcept nogil:
    """`check_record` of walking.py."""
    cdef uint32_t magic
    cdef int64_t size, body_size, topic_size, frame
    if available < 8:
        return STOP_SHORT
    size = get32(at)
    magic = get32(at + 4)
    if magic != MAGIC_V1:
        if magic == MAGIC_BLANK:
            return STOP_BLANK
        return STOP_ZERO if size == 0 and magic == 0 else STOP_MAGIC
    if size < RECORD_SIZE_MIN:
        return STOP_SIZE
    if available < BODY_AT:
        return STOP_SHORT
    if position >= 0 and get64(at + POSITION_AT) != position:
        return STOP_POSITION
    body_size = get32(at + BODY_SIZE_AT)
    if body_size > size - RECORD_SIZE_MIN:
        return STOP_SIZE
    if size > available:
        return STOP_SHORT
    topic_size = at[BODY_AT + body_size]
    frame = BODY_AT + body_size + 3 + topic_size
    if topic_size == 0 or frame > size - PROPERTY_CRC_SIZE:
        return STOP_SIZE
    if frame + (<int64_t>at[frame - 2] << 8 | at[frame - 1]) != size:
        return STOP_SIZE
    if crc_matches(at + size - PROPERTY_CRC_SIZE, crc_update(0, at, size - PROPERTY_CRC_SIZE)):
        return STOP_END
    return STOP_CRC


cdef inline int64_t properties_at(const uint8_t *at) noexcept nogil:
    """Where the properties of a sound record start, from its start."""
    cdef int64_t topic_at = BODY_AT + <int64_t>get32(at + BODY_SIZE_AT)
    return topic_at + 3 + at[topic_at]


cdef inline int64_t size_of(const uint8_t *at, int64_t available) noexcept nogil:
    """The size of a record that was checked before; -1 if that cannot be."""
    cdef int64_t size, body_size
    if available < RECORD_SIZE_MIN:
        return -1
    size = get32(at)
    body_size = get32(at + BODY_SIZE_AT)
    if size < RECORD_SIZE_MIN or size > available or body_size > size - RECORD_SIZE_MIN:
        return -1
    return size if properties_at(at) + PROPERTY_CRC_SIZE <= size else -1


cdef inline bint read_hex(const uint8_t *at, int digits, uint64_t *value) noexcept nogil:
    """The number that lower-case hex digits say; false if one is none."""
    cdef int index
    cdef uint8_t digit
    value[0] = 0
    for index in range(digits):
        digit = at[index]
        if 48 <= digit <= 57:
            digit -= 48
        elif 97 <= digit <= 102:
            digit -= 87
        else:
            return False
        value[0] = value[0] << 4 | digit
    return True


cdef inline bint batch_part(const uint8_t *at, int64_t size, uint64_t *part) noexcept nogil:
    """part[0..2] = id, index, count of a sound record's `PMQ_B`; false if it has none."""
    cdef int64_t start = size - PROPERTY_CRC_SIZE - BATCH_SIZE
    if start < properties_at(at) or memcmp(at + start, BATCH_START, BATCH_START_SIZE) != 0:
        return False
    if at[start + BATCH_SIZE - 1] != 2:
        return False
    start += BATCH_START_SIZE
    return (
        read_hex(at + start, 16, part) and read_hex(at + start + 16, 4, part + 1)
        and read_hex(at + start + 20, 4, part + 2)
    )


cdef inline int find_targets(const uint8_t *at, int64_t size,
                             const uint8_t **digits) noexcept nogil:
    """How many targets a sound record's `PMQ_Q` has, and where their digits are."""
    cdef uint64_t part[3]
    cdef uint64_t ignored
    cdef int64_t start = properties_at(at)
    cdef int64_t end = size - PROPERTY_CRC_SIZE
    cdef int64_t first
    cdef int count, index
    if batch_part(at, size, part):
        end -= BATCH_SIZE
    if end <= start or at[end - 1] != 2:
        return 0
    for count in range(1, TARGETS_MAX + 1):
        first = end - 1 - count * TARGET_SIZE
        if first - DISPATCH_START_SIZE < start:
            return 0
        if at[first - 1] == 1:
            if memcmp(at + first - DISPATCH_START_SIZE, DISPATCH_START, DISPATCH_START_SIZE) != 0:
                return 0
            for index in range(2 * count):
                if not read_hex(at + first + 10 * index, 10, &ignored):
                    return 0
            digits[0] = at + first
            return count
    return 0


cdef inline bint has_topic(const uint8_t *properties, const char *topic,
                           Py_ssize_t size) noexcept nogil:
    """Whether the record whose properties start there has this topic."""
    return properties[-3 - size] == size and memcmp(properties - 2 - size, topic, size) == 0
