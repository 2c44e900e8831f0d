"""The walk over JSON texts: both forms find the same, and take what a JSON parser takes."""

from __future__ import annotations

import json
from array import array
from types import ModuleType
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from polymq.gateways.http_cloudevents.kernels import texts
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
from tests.harness.forms import form_id, forms_of

FORMS = forms_of(texts.__name__)

ARRAY, OBJECT = b"[{"
COUNT_MAX = 20


def walk(
    form: ModuleType, data: bytes, kind: int = ARRAY, count_max: int = COUNT_MAX
) -> tuple[int, list[int]]:
    """The answer, and of the spans those that it is about."""
    spans = array("q", bytes(8 * SPAN_COLUMNS * count_max))
    found = form.children(b"<" + data + b">", 1, 1 + len(data), kind, count_max, spans)
    return found, [each - 1 if each else 0 for each in spans[: max(found * SPAN_COLUMNS, 1)]]


@pytest.fixture(params=FORMS, ids=form_id)
def form(request: pytest.FixtureRequest) -> ModuleType:
    found: ModuleType = request.param
    return found


def is_json(data: bytes, kind: type) -> bool:
    """What Python's parser says, without the few things that it takes beside JSON."""

    def refuse(name: str) -> None:
        raise ValueError(name)

    try:
        value = json.loads(data.decode("utf-8"), parse_constant=refuse)
        json.dumps(value, ensure_ascii=False).encode("utf-8")  # fails for half a surrogate pair
        return isinstance(value, kind)
    except ValueError:
        return False


TOKENS = (
    *(b"[", b"]", b"{", b"}", b",", b":", b" ", b"\n", b"\t\r", b"\x0b", b'"', b'"a"', b'"\\n"'),
    *(
        b'"\\u00e9"',
        b'"\\u12"',
        b'"\\uD83D',
        b'\\udE00"',
        b"\\u00D8",
        b'"\\x"',
        b'"\xc3\xa9"',
        b'"\xed\xa0\x80"',
        b"\xff",
        b'"\x01"',
    ),
    *(b'"\xe2\x82\xac\xf0\x9f\x98\x80"', b'"\xf4\x90\x80\x80"', b'"\xc0\x80"', b'"\xe2\x82"'),
    *(b"0", b"-", b"1", b"-0", b"1.5", b".", b"1e5", b"E", b"+", b"true", b"false", b"null"),
    *(b"nul", b"NaN", b'"a":', b'"b":1', b"[1,2]", b"{}", b"[]"),
)
NEARLY_JSON = st.lists(st.sampled_from(TOKENS), max_size=14).map(b"".join)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


@given(NEARLY_JSON | NEARLY_JSON.map(lambda data: b"[" + data + b"]"), st.sampled_from("[{"))
@example(b"[1,2,]", "[")
@example(b'{"a":1,}', "{")
@example(b"[" * 1001 + b"]" * 1001, "[")
@example(b"[01]", "[")
@example(b"[[1}]", "[")
@example(b"[1}", "[")
@example(b'["\xc3"]', "[")
@example(b"[" + b"1," * 30 + b"1]", "[")
def test_both_forms_are_equal_and_take_what_is_json(data: bytes, kind: str) -> None:
    answers = [walk(form, data, ord(kind)) for form in FORMS]
    assert all(answer == answers[0] for answer in answers), answers
    found = answers[0][0]
    if found not in (TOO_MANY, TOO_DEEP):
        assert (found >= 0) == is_json(data, list if kind == "[" else dict)


@given(st.lists(VALUES, max_size=COUNT_MAX), st.booleans())
def test_elements_are_found(values: list[Any], ascii_only: bool) -> None:
    data = json.dumps(values, ensure_ascii=ascii_only, indent=1).encode()
    for form in FORMS:
        count, spans = walk(form, data)
        assert count == len(values)
        for index, value in enumerate(values):
            row = spans[index * SPAN_COLUMNS : (index + 1) * SPAN_COLUMNS]
            assert json.loads(data[row[VALUE_START] : row[VALUE_END]]) == value
            assert row[NAME_START] == row[NAME_END] == 0


@given(st.dictionaries(st.text(), VALUES, max_size=COUNT_MAX), st.booleans())
def test_members_are_found(members: dict[str, Any], ascii_only: bool) -> None:
    data = json.dumps(members, ensure_ascii=ascii_only, indent=1).encode()
    for form in FORMS:
        count, spans = walk(form, data, OBJECT)
        assert count == len(members)
        for index, (name, value) in enumerate(members.items()):
            row = spans[index * SPAN_COLUMNS : (index + 1) * SPAN_COLUMNS]
            assert json.loads(data[row[VALUE_START] : row[VALUE_END]]) == value
            assert json.loads(b'"' + data[row[NAME_START] : row[NAME_END]] + b'"') == name


@pytest.mark.parametrize(
    ("data", "code", "at"),
    [
        (b"", MALFORMED, 0),
        (b"  {}", WRONG_KIND, 2),
        (b"\xff", NOT_UTF8, 0),
        (b'["a\xff"]', NOT_UTF8, 3),
        (b'["a\\x"]', MALFORMED, 3),
        (b"[1.]", MALFORMED, 2),
        (b"[1,]", MALFORMED, 3),
        (b"[1] x", MALFORMED, 4),
        (b'["a', MALFORMED, 3),
        (b"[1,1,1", TOO_MANY, 4),
        (b"[" * (DEPTH_MAX + 1), TOO_DEEP, DEPTH_MAX),
    ],
)
def test_a_fault_is_where_the_text_stops_to_be_json(
    form: ModuleType, data: bytes, code: int, at: int
) -> None:
    assert walk(form, data, count_max=2) == (code, [at])


def test_nothing_is_read_behind_the_end(form: ModuleType) -> None:
    """Every text that is cut is a fault, though the bytes behind it would go on."""
    data = b'[true,"\\u00e9\xe2\x82\xac",-1.5e+7,{"a":[null]}]'
    for end in range(len(data)):
        spans = array("q", bytes(8 * SPAN_COLUMNS * COUNT_MAX))
        found = form.children(data, 0, end, ARRAY, COUNT_MAX, spans)
        assert found in (MALFORMED, NOT_UTF8)
        assert spans[0] <= end


def test_as_deep_as_allowed(form: ModuleType) -> None:
    assert walk(form, b"[" * DEPTH_MAX + b"]" * DEPTH_MAX)[0] == 1
