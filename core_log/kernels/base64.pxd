# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
#
# Base64 in its strict form, as records have bytes that clients chose. Shared by kernels.

from libc.stdint cimport uint8_t, uint32_t


cdef inline int digit_of(uint8_t letter) noexcept nogil:
    """The six bits of a letter of base64, or -1."""
    if 65 <= letter <= 90:
        return letter - 65
    if 97 <= letter <= 122:
        return letter - 71
    if 48 <= letter <= 57:
        return letter + 4
    if letter == 43:
        return 62
    return 63 if letter == 47 else -1


cdef inline Py_ssize_t decode_base64(
    const uint8_t *at, Py_ssize_t size, uint8_t *out
) noexcept nogil:
    """Decode; returns the bytes, or -1 if it is not base64 in its strict form."""
    cdef Py_ssize_t index, written = 0
    cdef int digit, missing = 0, digit_at
    cdef uint32_t value
    if size % 4 or size > 32768:
        return -1
    if size and at[size - 1] == 61:
        missing = 2 if at[size - 2] == 61 else 1
    for index in range(0, size, 4):
        value = 0
        for digit_at in range(4):
            if index + digit_at >= size - missing:
                digit = 0
            else:
                digit = digit_of(at[index + digit_at])
                if digit < 0:
                    return -1
            value = value << 6 | <uint32_t>digit
        out[written] = <uint8_t>(value >> 16)
        out[written + 1] = <uint8_t>(value >> 8)
        out[written + 2] = <uint8_t>value
        written += 3
    return written - missing
