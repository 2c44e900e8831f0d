"""The walk over a large JSON text, in plain Python.

The fallback where no compiler is at hand, and the oracle that the compiled twin (`texts.pyx`) is
tested against: same results and same faults for every input.

Theory. A JSON parser of a library takes a text of 32 MiB in one call, holds the interpreter's lock
meanwhile, and makes an object for each value. `children` makes none: it checks the whole text
against the grammar (RFC 8259) and UTF-8, and notes only where the values of the outermost array or
object begin and end. The compiled form works without the lock.
"""

from __future__ import annotations

import re
from array import array
from typing import Final

from polymq.gateways.http_cloudevents.kernels.codes import (
    DEPTH_MAX,
    MALFORMED,
    NAME_END,
    NAME_START,
    NOT_UTF8,
    SPAN_COLUMNS,
    TOO_DEEP,
    TOO_MANY,
    VALUE_END,
    VALUE_START,
    WRONG_KIND,
)

_SPACE: Final = re.compile(rb"[ \t\n\r]*+")
_CHARACTERS: Final = re.compile(
    rb'(?:[ !#-\[\]-\x7f]++|\\(?:["\\/bfnrt]|u(?:[0-9A-CE-Fa-ce-f][0-9A-Fa-f]{3}'
    rb"|[dD][0-7][0-9A-Fa-f]{2}|[dD][89ABab][0-9A-Fa-f]{2}\\u[dD][C-Fc-f][0-9A-Fa-f]{2}))"
    rb"|[\xc2-\xdf][\x80-\xbf]|\xe0[\xa0-\xbf][\x80-\xbf]|\xed[\x80-\x9f][\x80-\xbf]"
    rb"|[\xe1-\xec\xee\xef][\x80-\xbf]{2}|\xf0[\x90-\xbf][\x80-\xbf]{2}"
    rb"|[\xf1-\xf3][\x80-\xbf]{3}|\xf4[\x80-\x8f][\x80-\xbf]{2})*+"
)
"""Of a string: no control characters, whole escapes, whole surrogate pairs of escapes, well-formed
UTF-8 (Unicode, table 3-7)."""
_SCALAR: Final = re.compile(
    rb"true|false|null|-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?"
)
_QUOTE, _COMMA, _COLON, _ARRAY, _ARRAY_END, _OBJECT, _OBJECT_END = b'",:[]{}'
_END_OF: Final = {_ARRAY: _ARRAY_END, _OBJECT: _OBJECT_END}


class _Fault(Exception):
    """The text ends here. Args: the code and the index."""


def children(
    data: bytes, start: int, end: int, kind: int, count_max: int, spans: array[int]
) -> int:
    """Check the JSON text in data[start:end], and find the children of its outermost value.

    Args:
        kind: the byte that the value begins with, `[` or `{`.
        count_max: so many children fit into `spans`.
        spans: gets the columns of `codes.SPAN_COLUMNS` for each child.

    Returns:
        How many children there are; or a fault, and spans[0] is the index where it was found.
    """
    assert 0 <= start <= end <= len(data)
    assert count_max > 0
    assert len(spans) >= count_max * SPAN_COLUMNS
    try:
        return _walk(data, start, end, kind, count_max, spans)
    except _Fault as fault:
        code: int
        code, spans[0] = fault.args
        return code


def _walk(data: bytes, start: int, end: int, kind: int, count_max: int, spans: array[int]) -> int:
    at = _after_space(data, start, end)
    if at == end or data[at] != kind:
        outside = at < end and data[at] >= 0x80
        raise _Fault(MALFORMED if at == end else NOT_UTF8 if outside else WRONG_KIND, at)
    stack = bytearray()  # the containers that are open
    count = 0
    row = 0
    begins = True  # a value begins here; otherwise one has ended
    while True:
        if begins:
            if len(stack) == 1:
                spans[row + VALUE_START] = at
            first = data[at] if at < end else 0
            if first in _END_OF:
                if len(stack) == DEPTH_MAX:
                    raise _Fault(TOO_DEEP, at)
                stack.append(first)
                at = _after_space(data, at + 1, end)
                if at < end and data[at] == _END_OF[first]:
                    stack.pop()
                    at += 1
                    begins = False
                else:
                    if len(stack) == 1:
                        spans[NAME_START] = spans[NAME_END] = 0
                    if first == _OBJECT:
                        at = _name(data, at, end, spans if len(stack) == 1 else None, row)
                    continue
            elif first == _QUOTE:
                at = _string(data, at, end)
            else:
                found = _SCALAR.match(data, at, end)
                if found is None:
                    raise _fault(data, at, end)
                at = found.end()
            begins = False
        if not stack:
            break
        outermost = len(stack) == 1
        if outermost:
            spans[row + VALUE_END] = at
            count += 1
            row += SPAN_COLUMNS
        at = _after_space(data, at, end)
        following = data[at] if at < end else 0
        if following == _COMMA:
            if outermost and count == count_max:
                raise _Fault(TOO_MANY, at)
            at = _after_space(data, at + 1, end)
            if outermost:
                spans[row + NAME_START] = spans[row + NAME_END] = 0
            if stack[-1] == _OBJECT:
                at = _name(data, at, end, spans if outermost else None, row)
            begins = True
        elif following == _END_OF[stack[-1]]:
            stack.pop()
            at += 1
        else:
            raise _fault(data, at, end)
    at = _after_space(data, at, end)
    if at < end:
        raise _fault(data, at, end)
    return count


def _after_space(data: bytes, at: int, end: int) -> int:
    found = _SPACE.match(data, at, end)
    assert found is not None
    return found.end()


def _name(data: bytes, at: int, end: int, spans: array[int] | None, row: int) -> int:
    """Where the value behind the name at `at` begins."""
    after = _string(data, at, end)
    if spans is not None:
        spans[row + NAME_START], spans[row + NAME_END] = at + 1, after - 1
    at = _after_space(data, after, end)
    if at == end or data[at] != _COLON:
        raise _fault(data, at, end)
    return _after_space(data, at + 1, end)


def _string(data: bytes, at: int, end: int) -> int:
    """The index behind the string at `at`."""
    if at == end or data[at] != _QUOTE:
        raise _fault(data, at, end)
    found = _CHARACTERS.match(data, at + 1, end)
    assert found is not None
    after = found.end()
    if after == end or data[after] != _QUOTE:
        raise _fault(data, after, end)
    return after + 1


def _fault(data: bytes, at: int, end: int) -> _Fault:
    return _Fault(NOT_UTF8 if at < end and data[at] >= 0x80 else MALFORMED, at)
