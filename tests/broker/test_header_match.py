"""What a headers exchange compares, as a table: RabbitMQ's rules."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymq.broker.errors import Reason, Refused
from polymq.broker.routing.header_match import (
    is_pattern,
    pattern_of,
    pattern_text,
    tag_headers,
    tagged,
    untagged,
)
from polymq.gateways.amqp.tables import Timestamp


def hits(arguments: dict[str, Any], headers: dict[str, Any]) -> bool:
    return pattern_of(pattern_text(arguments)).matches(tag_headers(headers))


@pytest.mark.parametrize(
    ("arguments", "headers", "expected"),
    [
        ({}, {}, True),
        ({}, {"a": 1}, True),
        ({"x-match": "any"}, {"a": 1}, False),
        ({"a": 1}, {"a": 1, "b": 2}, True),
        ({"a": 1, "b": 2}, {"a": 1}, False),
        ({"a": 1, "b": 3}, {"a": 1, "b": 2}, False),
        ({"x-match": "any", "a": 1, "b": 3}, {"a": 1, "b": 2}, True),
        ({"x-match": "any", "a": 2, "b": 3}, {"a": 1, "b": 2}, False),
        # Names with x- are passed over, unless they are asked for.
        ({"x-tenant": "a"}, {}, True),
        ({"x-match": "any", "x-tenant": "a"}, {"x-tenant": "a"}, False),
        ({"x-match": "all-with-x", "x-tenant": "a"}, {}, False),
        ({"x-match": "all-with-x", "x-tenant": "a"}, {"x-tenant": "a"}, True),
        ({"x-match": "any-with-x", "x-tenant": "a"}, {"x-tenant": "a"}, True),
        ({"x-match": "all-with-x"}, {}, True),
        # Void asks for the name only; a header that is void is no other value.
        ({"a": None}, {"a": 7}, True),
        ({"a": None}, {"a": None}, True),
        ({"a": None}, {"b": 7}, False),
        ({"a": 7}, {"a": None}, False),
    ],
)
def test_the_rules(arguments: dict[str, Any], headers: dict[str, Any], expected: bool) -> None:
    assert hits(arguments, headers) is expected


CLASSES: list[list[Any]] = [
    [1, 2**40, -1],
    [True, False],
    ["1", "", "ä"],
    [b"1", b"\xff"],
    [1.0, 2.5],
    [Decimal("1.10"), Decimal(2)],
    [Timestamp(1), Timestamp(2**63)],
    [[1, "a"], [1, "b"], []],
    [{"a": 1}, {"a": True}, {}],
]
VALUES = [value for values in CLASSES for value in values]


@pytest.mark.parametrize("at", range(len(VALUES)), ids=lambda at: repr(VALUES[at]))
def test_values_are_equal_in_their_class_only(at: int) -> None:
    """`"1"` is not 1, true is not 1, a time stamp is no integer, 1.0 is not 1."""
    for other, value in enumerate(VALUES):
        assert hits({"a": VALUES[at]}, {"a": value}) is (at == other), value


def test_decimals_are_equal_by_value() -> None:
    assert hits({"a": Decimal("1.10")}, {"a": Decimal("1.1")})


@pytest.mark.parametrize("mode", ["none", "ALL", "", 1, None, True])
def test_another_x_match_is_refused(mode: object) -> None:
    with pytest.raises(Refused, match="x-match") as caught:
        pattern_text({"x-match": mode})
    assert caught.value.reason is Reason.BAD_ARGUMENT


def test_a_binding_has_a_bounded_number_of_arguments() -> None:
    with pytest.raises(Refused, match="at most"):
        pattern_text({f"h{number}": 1 for number in range(257)})


ARGUMENTS = st.dictionaries(
    st.sampled_from(["a", "b", "x-c"]), st.sampled_from([1, "1", True, None, 2.0]), max_size=3
)


@given(ARGUMENTS, st.sampled_from(["all", "any", "all-with-x", "any-with-x"]))
def test_the_text_is_the_pattern(arguments: dict[str, Any], mode: str) -> None:
    """Whatever the order of the arguments; no text of another kind of exchange looks like one."""
    there = {"x-match": mode, **arguments}
    back = dict(reversed(list(there.items())))
    assert pattern_text(there) == pattern_text(back)
    assert is_pattern(pattern_text(there))
    assert not is_pattern(repr(sorted(arguments.items(), key=lambda item: item[0])))


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text() | st.binary() | st.floats(0, 1),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=5,
    )
)
def test_a_value_comes_back_from_its_class(value: Any) -> None:
    """Operators see the arguments of a binding, and unbind by them."""
    assert untagged(tagged(value)) == value
    assert tagged(untagged(tagged(value))) == tagged(value)


def test_a_time_stamp_stays_one() -> None:
    assert tagged(untagged(["T", 5])) == ["T", 5]
    assert untagged(tagged(Decimal("1.50"))) == Decimal("1.5")
