# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
#
# Texts in memory: where they are, whether they are UTF-8, numbers as text. Shared by kernels.

from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy


cdef struct Text:
    const uint8_t *at  # NULL: there is none
    Py_ssize_t size


cdef inline Text text_of(const uint8_t *at, Py_ssize_t size) noexcept nogil:
    cdef Text text
    text.at = at
    text.size = size
    return text


cdef inline Text either(Text first, Text second) noexcept nogil:
    """The first, unless it is empty or there is none."""
    return first if first.at != NULL and first.size else second


cdef inline bint is_following(const uint8_t *at, const uint8_t *end) noexcept nogil:
    """Whether a byte that goes on with a character stands there."""
    return at < end and at[0] & 0xC0 == 0x80


cdef inline bint is_utf8(const uint8_t *at, const uint8_t *end) noexcept nogil:
    """Whether Python decodes these bytes (RFC 3629: no surrogates, nothing longer than needed)."""
    cdef uint64_t word
    cdef uint8_t lead
    while at < end:
        if end - at >= 8:
            memcpy(&word, at, 8)
            if not word & 0x8080808080808080ULL:
                at += 8
                continue
        lead = at[0]
        if lead < 0x80:
            at += 1
        elif lead < 0xC2:
            return False
        elif lead < 0xE0:
            if not is_following(at + 1, end):
                return False
            at += 2
        elif lead < 0xF0:
            if not is_following(at + 1, end) or not is_following(at + 2, end):
                return False
            if (lead == 0xE0 and at[1] < 0xA0) or (lead == 0xED and at[1] >= 0xA0):
                return False
            at += 3
        else:
            if lead > 0xF4 or not is_following(at + 1, end) or not is_following(at + 2, end):
                return False
            if not is_following(at + 3, end):
                return False
            if (lead == 0xF0 and at[1] < 0x90) or (lead == 0xF4 and at[1] >= 0x90):
                return False
            at += 4
    return True


cdef enum:
    NUMBER_SIZE = 20  # characters of the longest number of 64 bits, its sign included


cdef inline Text unsigned_text(uint64_t value, uint8_t *room) noexcept nogil:
    """The digits of a number, at the end of NUMBER_SIZE bytes of room."""
    cdef int at = NUMBER_SIZE
    while True:
        at -= 1
        room[at] = <uint8_t>(48 + value % 10)
        value //= 10
        if not value:
            return text_of(room + at, NUMBER_SIZE - at)


cdef inline Text signed_text(int64_t value, uint8_t *room) noexcept nogil:
    cdef Text text
    if value >= 0:
        return unsigned_text(<uint64_t>value, room)
    text = unsigned_text(-<uint64_t>value, room)
    room[NUMBER_SIZE - text.size - 1] = 45
    return text_of(text.at - 1, text.size + 1)
