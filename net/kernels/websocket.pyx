# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The WebSocket kernel in C, on pointers. `websocket.py` says what it does.

Rules: the same results for every input. Portable C only. Every length from the network is checked
against the bytes that are there before it is used.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memcpy

from polymq.net.kernels import websocket_codes as _codes

# Copies of the declarations in websocket_codes.py, as C constants.
cdef enum:
    GOING_ON = 0
    CLOSED = 1
    BROKEN_RESERVED = 2
    BROKEN_OPCODE = 3
    BROKEN_TEXT = 4
    BROKEN_CONTROL_CUT = 5
    BROKEN_CONTROL_LONG = 6
    BROKEN_CONTINUATION = 7
    BROKEN_BEGINNING = 8
    BROKEN_UNMASKED = 9
    BROKEN_LENGTH = 10
    BROKEN_LARGE = 11
    CONTROL_BYTES_MAX = 125
    HEAD_BYTES_MAX = 14
    CONTINUATION = 0
    TEXT = 1
    BINARY = 2
    CLOSE = 8
    PING = 9
    PONG = 10

if (
    (_codes.GOING_ON, _codes.CLOSED) != (GOING_ON, CLOSED)
    or (_codes.BROKEN_RESERVED, _codes.BROKEN_OPCODE) != (BROKEN_RESERVED, BROKEN_OPCODE)
    or (_codes.BROKEN_TEXT, _codes.BROKEN_CONTROL_CUT) != (BROKEN_TEXT, BROKEN_CONTROL_CUT)
    or _codes.BROKEN_CONTROL_LONG != BROKEN_CONTROL_LONG
    or _codes.BROKEN_CONTINUATION != BROKEN_CONTINUATION
    or (_codes.BROKEN_BEGINNING, _codes.BROKEN_UNMASKED) != (BROKEN_BEGINNING, BROKEN_UNMASKED)
    or (_codes.BROKEN_LENGTH, _codes.BROKEN_LARGE) != (BROKEN_LENGTH, BROKEN_LARGE)
    or _codes.CONTROL_BYTES_MAX != CONTROL_BYTES_MAX
):
    raise ImportError("net/kernels/websocket.pyx does not have the codes of websocket_codes.py")

READ_BYTES_MAX = 256 * 1024


cdef class Frames:
    """The frames that one client sends."""

    cdef readonly int stopped
    cdef uint64_t frame_bytes_max
    cdef uint8_t head[HEAD_BYTES_MAX]
    cdef int head_count         # bytes of the header that are here
    cdef int head_size          # of the header, as far as that is known
    cdef int opcode
    cdef bint in_header
    cdef uint64_t left          # bytes that the frame still carries
    cdef uint8_t mask[4]
    cdef bint is_message_open   # a binary message goes on in the next data frame
    cdef uint8_t control_bytes[CONTROL_BYTES_MAX]
    cdef int control_count
    cdef uint8_t ping_bytes[CONTROL_BYTES_MAX]
    cdef int ping_count         # -1: there was no Ping

    def __cinit__(self, uint64_t frame_bytes_max):
        self.frame_bytes_max = frame_bytes_max
        self.head_size = 2
        self.in_header = True
        self.ping_count = -1

    @property
    def control(self):
        """What the Close frame carries, if that is why it stopped."""
        return PyBytes_FromStringAndSize(<char *> self.control_bytes, self.control_count)

    @property
    def must_look(self):
        """Whether a Ping waits, or it has stopped."""
        return self.ping_count >= 0 or self.stopped != GOING_ON

    def take_ping(self):
        """What the last Ping carries, once; None if there was none."""
        cdef int count = self.ping_count
        if count < 0:
            return None
        self.ping_count = -1
        return PyBytes_FromStringAndSize(<char *> self.ping_bytes, count)

    def unwrap(self, bytearray buffer not None, Py_ssize_t to, Py_ssize_t start, Py_ssize_t end):
        """Move what the frames in `buffer[start:end]` carry to `to`, not behind `start`."""
        if not 0 <= to <= start <= end <= PyByteArray_GET_SIZE(buffer):
            raise ValueError(f"no part of a buffer: {to}, {start}, {end}")
        return self.unwrap_at(<uint8_t *> PyByteArray_AS_STRING(buffer), to, start, end)

    cdef Py_ssize_t unwrap_at(
        self, uint8_t *data, Py_ssize_t to, Py_ssize_t at, Py_ssize_t end
    ) noexcept:
        cdef Py_ssize_t count
        while at < end and self.stopped == GOING_ON:
            if self.in_header:
                while at < end and self.head_count < self.head_size:
                    self.head[self.head_count] = data[at]
                    self.head_count += 1
                    at += 1
                if self.head_count == self.head_size:
                    self.look_at_head()
                continue
            count = end - at
            if self.left < <uint64_t> count:
                count = <Py_ssize_t> self.left
            if self.opcode >= CLOSE:  # its header was checked: no more than there is room for
                unmask(self.control_bytes + self.control_count, data + at, count, self.mask)
                self.control_count += <int> count
            else:
                unmask(data + to, data + at, count, self.mask)
                to += count
            at += count
            self.turn_mask(count & 3)
            self.left -= count
            if self.left == 0:
                self.end_frame()
        return to

    cdef void look_at_head(self) noexcept:
        """The header is here as far as its size was known."""
        cdef uint64_t size = self.head[1] & 0x7F
        cdef uint64_t shortest = 0
        cdef int index, more
        if self.head_count == 2:
            self.stopped = self.check(self.head[0], self.head[1])
            self.head_size = 6 + (2 if size == 126 else 8 if size == 127 else 0)
            return
        more = self.head_size - 6
        if more:
            shortest = 126 if more == 2 else 1 << 16
            size = 0
            for index in range(more):
                size = size << 8 | self.head[2 + index]
        if size < shortest or size >> 63:
            self.stopped = BROKEN_LENGTH
            return
        if size > self.frame_bytes_max and self.opcode < CLOSE:
            self.stopped = BROKEN_LARGE
            return
        memcpy(self.mask, self.head + 2 + more, 4)
        self.left = size
        self.in_header = False
        self.head_count = 0
        self.head_size = 2
        if size == 0:
            self.end_frame()

    cdef int check(self, int first, int second) noexcept:
        """Whether a frame may begin with these two bytes."""
        cdef int opcode = first & 0x0F
        cdef bint is_last = first & 0x80 != 0
        self.opcode = opcode
        if first & 0x70:
            return BROKEN_RESERVED
        if not second & 0x80:
            return BROKEN_UNMASKED
        if opcode >= CLOSE:
            if opcode > PONG:
                return BROKEN_OPCODE
            if not is_last:
                return BROKEN_CONTROL_CUT
            if second & 0x7F > CONTROL_BYTES_MAX:
                return BROKEN_CONTROL_LONG
            self.control_count = 0
            return GOING_ON
        if opcode == TEXT:
            return BROKEN_TEXT
        if opcode > BINARY:
            return BROKEN_OPCODE
        if opcode == BINARY and self.is_message_open:
            return BROKEN_BEGINNING
        if opcode == CONTINUATION and not self.is_message_open:
            return BROKEN_CONTINUATION
        self.is_message_open = not is_last
        return GOING_ON

    cdef void turn_mask(self, int turn) noexcept:
        """The next byte is masked with what stands there."""
        cdef uint8_t turned[4]
        cdef int index
        if turn == 0:
            return
        for index in range(4):
            turned[index] = self.mask[(index + turn) & 3]
        memcpy(self.mask, turned, 4)

    cdef void end_frame(self) noexcept:
        self.in_header = True
        if self.opcode == PING:
            memcpy(self.ping_bytes, self.control_bytes, self.control_count)
            self.ping_count = self.control_count
        elif self.opcode == CLOSE:
            self.stopped = CLOSED


def binary_frame(bytes data not None):
    """A whole message as one frame, not masked."""
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
    cdef int more = 0 if size < 126 else 2 if size < 1 << 16 else 8
    cdef int index
    cdef bytes made = PyBytes_FromStringAndSize(NULL, 2 + more + size)
    cdef uint8_t *out = <uint8_t *> PyBytes_AS_STRING(made)
    out[0] = 0x80 | BINARY
    out[1] = <uint8_t> (size if more == 0 else 126 if more == 2 else 127)
    for index in range(more):
        out[2 + index] = <uint8_t> (<uint64_t> size >> 8 * (more - 1 - index))
    memcpy(out + 2 + more, PyBytes_AS_STRING(data), size)
    return made


cdef void unmask(uint8_t *to, uint8_t *data, Py_ssize_t count, uint8_t *mask) noexcept:
    """Forward, four words at a time and then one. `to` may be before `data`, and may be less than a
    word before it: words are read before they are written, and the next ones are behind what was
    written."""
    cdef uint64_t key, word
    cdef uint64_t words[4]
    cdef Py_ssize_t at = 0
    memcpy(&key, mask, 4)
    memcpy(<uint8_t *> &key + 4, mask, 4)
    while at + 32 <= count:
        memcpy(words, data + at, 32)
        words[0] ^= key
        words[1] ^= key
        words[2] ^= key
        words[3] ^= key
        memcpy(to + at, words, 32)
        at += 32
    while at + 8 <= count:
        memcpy(&word, data + at, 8)
        word ^= key
        memcpy(to + at, &word, 8)
        at += 8
    while at < count:
        to[at] = data[at] ^ mask[at & 3]
        at += 1
