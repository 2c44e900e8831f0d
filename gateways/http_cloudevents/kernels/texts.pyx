# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False
"""The walk over a large JSON text, compiled.

Twin of `texts.py`, which tells what it does. Here stands only how: on pointers, without the
interpreter's lock, every index checked against the end before it is used.
"""

from cpython.bytes cimport PyBytes_AS_STRING
from cpython.array cimport array
from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memcmp


cdef enum:  # codes.py
    C_MALFORMED = -1
    C_NOT_UTF8 = -2
    C_TOO_DEEP = -3
    C_TOO_MANY = -4
    C_WRONG_KIND = -5
    C_DEPTH_MAX = 1000
    C_SPAN_COLUMNS = 4
    C_NAME_START = 0
    C_NAME_END = 1
    C_VALUE_START = 2
    C_VALUE_END = 3


cdef struct Walk:
    const uint8_t *data
    int64_t at
    int64_t end
    int fault


def children(bytes data, int64_t start, int64_t end, int kind, int64_t count_max, array spans):
    assert 0 <= start <= end <= len(data)
    assert count_max > 0
    assert spans.itemsize == 8 and len(spans) >= count_max * C_SPAN_COLUMNS
    cdef Walk walk
    cdef int64_t count
    cdef int64_t *found = <int64_t *>spans.data.as_voidptr
    walk.data = <const uint8_t *>PyBytes_AS_STRING(data)
    walk.at = start
    walk.end = end
    walk.fault = 0
    with nogil:
        count = walk_all(&walk, kind, count_max, found)
        if walk.fault:
            found[0] = walk.at
    return walk.fault if walk.fault else count


cdef int64_t walk_all(Walk *w, int kind, int64_t count_max, int64_t *spans) noexcept nogil:
    cdef uint8_t stack[C_DEPTH_MAX]  # the containers that are open
    cdef int depth = 0
    cdef int64_t count = 0
    cdef int64_t *row = spans
    cdef bint begins = True  # a value begins here; otherwise one has ended
    cdef bint outermost
    cdef uint8_t first, following
    skip_space(w)
    if w.at == w.end or w.data[w.at] != kind:
        if w.at == w.end:
            w.fault = C_MALFORMED
        else:
            w.fault = C_NOT_UTF8 if w.data[w.at] >= 0x80 else C_WRONG_KIND
        return 0
    while True:
        if begins:
            if depth == 1:
                row[C_VALUE_START] = w.at
            first = w.data[w.at] if w.at < w.end else 0
            if first == c'[' or first == c'{':
                if depth == C_DEPTH_MAX:
                    w.fault = C_TOO_DEEP
                    return 0
                stack[depth] = first
                depth += 1
                w.at += 1
                skip_space(w)
                if w.at < w.end and w.data[w.at] == first + 2:  # `]` or `}`
                    depth -= 1
                    w.at += 1
                else:
                    if depth == 1:
                        row[C_NAME_START] = row[C_NAME_END] = 0
                    if first == c'{' and not take_name(w, row if depth == 1 else NULL):
                        return 0
                    continue
            elif first == c'"':
                if not take_string(w):
                    return 0
            elif not take_scalar(w, first):
                return 0
            begins = False
        if depth == 0:
            break
        outermost = depth == 1
        if outermost:
            row[C_VALUE_END] = w.at
            count += 1
            row += C_SPAN_COLUMNS
        skip_space(w)
        following = w.data[w.at] if w.at < w.end else 0
        if following == c',':
            if outermost and count == count_max:
                w.fault = C_TOO_MANY
                return 0
            w.at += 1
            skip_space(w)
            if outermost:
                row[C_NAME_START] = row[C_NAME_END] = 0
            if stack[depth - 1] == c'{' and not take_name(w, row if outermost else NULL):
                return 0
            begins = True
        elif following == stack[depth - 1] + 2:
            depth -= 1
            w.at += 1
        else:
            wrong(w)
            return 0
    skip_space(w)
    if w.at < w.end:
        wrong(w)
    return count


cdef inline bint wrong(Walk *w) noexcept nogil:
    w.fault = C_NOT_UTF8 if w.at < w.end and w.data[w.at] >= 0x80 else C_MALFORMED
    return False


cdef inline void skip_space(Walk *w) noexcept nogil:
    cdef const uint8_t *p = w.data
    cdef int64_t at = w.at
    while at < w.end and (p[at] == c' ' or p[at] == c'\n' or p[at] == c'\r' or p[at] == c'\t'):
        at += 1
    w.at = at


cdef bint take_name(Walk *w, int64_t *row) noexcept nogil:
    cdef int64_t start = w.at + 1
    if not take_string(w):
        return False
    if row != NULL:
        row[C_NAME_START] = start
        row[C_NAME_END] = w.at - 1
    skip_space(w)
    if w.at == w.end or w.data[w.at] != c':':
        return wrong(w)
    w.at += 1
    skip_space(w)
    return True


cdef bint take_string(Walk *w) noexcept nogil:
    cdef const uint8_t *p = w.data
    cdef int64_t end = w.end
    cdef int64_t at = w.at
    cdef int size
    if at == end or p[at] != c'"':
        return wrong(w)
    at += 1
    while True:
        while at < end and p[at] >= 0x20 and p[at] < 0x80 and p[at] != c'"' and p[at] != c'\\':
            at += 1
        if at == end:
            break
        if p[at] == c'"':
            w.at = at + 1
            return True
        if p[at] == c'\\':
            size = escape_size(p + at, end - at)
        elif p[at] >= 0x80:
            size = character_size(p + at, end - at)
        else:
            size = 0
        if size == 0:
            break
        at += size
    w.at = at
    return wrong(w)


cdef inline int escape_size(const uint8_t *p, int64_t left) noexcept nogil:
    """Of the escape at p, or of the two that are a surrogate pair; 0 if it is none."""
    cdef int high, low
    if left < 2:
        return 0
    if p[1] != c'u':
        return 2 if (
            p[1] == c'"' or p[1] == c'\\' or p[1] == c'/' or p[1] == c'b' or p[1] == c'f'
            or p[1] == c'n' or p[1] == c'r' or p[1] == c't'
        ) else 0
    high = code_unit(p, left)
    if high < 0xD800 or high > 0xDFFF:
        return 6 if high >= 0 else 0
    if high > 0xDBFF:
        return 0
    low = code_unit(p + 6, left - 6)
    return 12 if 0xDC00 <= low <= 0xDFFF else 0


cdef inline int code_unit(const uint8_t *p, int64_t left) noexcept nogil:
    """What the escape at p spells, of the form backslash, u and four hex digits; -1 if it is none.
    """
    cdef int index
    cdef int value = 0
    cdef uint8_t digit
    if left < 6 or p[0] != c'\\' or p[1] != c'u':
        return -1
    for index in range(2, 6):
        digit = p[index]
        if c'0' <= digit <= c'9':
            value = value * 16 + digit - c'0'
        elif c'a' <= (digit | 0x20) <= c'f':
            value = value * 16 + (digit | 0x20) - c'a' + 10
        else:
            return -1
    return value


cdef inline int character_size(const uint8_t *p, int64_t left) noexcept nogil:
    """Of the character of several bytes at p; 0 if it is not well-formed (Unicode, table 3-7)."""
    cdef uint8_t first = p[0]
    cdef uint8_t least = 0x80
    cdef uint8_t most = 0xBF
    cdef int size, index
    if 0xC2 <= first <= 0xDF:
        size = 2
    elif 0xE0 <= first <= 0xEF:
        size = 3
        if first == 0xE0:
            least = 0xA0
        elif first == 0xED:
            most = 0x9F
    elif 0xF0 <= first <= 0xF4:
        size = 4
        if first == 0xF0:
            least = 0x90
        elif first == 0xF4:
            most = 0x8F
    else:
        return 0
    if left < size or p[1] < least or p[1] > most:
        return 0
    for index in range(2, size):
        if p[index] < 0x80 or p[index] > 0xBF:
            return 0
    return size


cdef bint take_scalar(Walk *w, uint8_t first) noexcept nogil:
    cdef const uint8_t *p = w.data + w.at
    cdef int64_t left = w.end - w.at
    cdef int64_t at = 0
    cdef int64_t mark
    if first == c't' and left >= 4 and memcmp(p, b"true", 4) == 0:
        w.at += 4
        return True
    if first == c'f' and left >= 5 and memcmp(p, b"false", 5) == 0:
        w.at += 5
        return True
    if first == c'n' and left >= 4 and memcmp(p, b"null", 4) == 0:
        w.at += 4
        return True
    if first == c'-':
        at = 1
    if at == left or p[at] < c'0' or p[at] > c'9':
        return wrong(w)
    if p[at] == c'0':
        at += 1
    else:
        at = after_digits(p, at, left)
    if at < left and p[at] == c'.':
        mark = after_digits(p, at + 1, left)
        if mark > at + 1:
            at = mark
    if at < left and (p[at] == c'e' or p[at] == c'E'):
        mark = at + 1
        if mark < left and (p[mark] == c'+' or p[mark] == c'-'):
            mark += 1
        if after_digits(p, mark, left) > mark:
            at = after_digits(p, mark, left)
    w.at += at
    return True


cdef inline int64_t after_digits(const uint8_t *p, int64_t at, int64_t left) noexcept nogil:
    while at < left and c'0' <= p[at] <= c'9':
        at += 1
    return at
