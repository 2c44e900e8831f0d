"""Patterns: what matches, by the definition, and what a match costs at most."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymq.broker.port import ONE_LEVEL, REST, Address
from polymq.broker.routing.patterns import BLOCK_BITS, Patterns, is_complex, matches, normal_form

SECONDS_MAX = 0.25
"""Processor time of what has to be done in 50 ms: the machine may be slow and busy."""

level = st.sampled_from(["a", "b", "", "$x"])
message = st.lists(level, min_size=1, max_size=6).map(tuple)
pattern = st.lists(
    st.one_of(level, st.just(ONE_LEVEL), st.just(REST), st.just(REST)), min_size=1, max_size=8
).map(tuple)


def defined(pattern: Address, address: Address) -> bool:
    """Whether a message matches, as MQTT and AMQP define it."""

    @cache
    def from_here(at: int, index: int) -> bool:
        if at == len(pattern):
            return index == len(address)
        if pattern[at] == REST:
            return from_here(at + 1, index) or (index < len(address) and from_here(at, index + 1))
        one = index < len(address) and pattern[at] in (ONE_LEVEL, address[index])
        return one and from_here(at + 1, index + 1)

    hidden = address[0].startswith("$") and pattern[0] in (ONE_LEVEL, REST)
    return not hidden and from_here(0, 0)


@given(pattern, message)
def test_a_match_is_what_the_definition_says(pattern: Address, address: Address) -> None:
    assert matches(pattern, address) is defined(pattern, address)


@given(pattern, message)
def test_a_normal_form_matches_the_same(pattern: Address, address: Address) -> None:
    """It has one order of wildcards, and no `#` before another wildcard."""
    form = normal_form(pattern)
    assert defined(form, address) is defined(pattern, address)
    assert normal_form(form) == form
    assert all(
        after not in (ONE_LEVEL, REST)
        for before, after in itertools.pairwise(form)
        if before == REST
    )


@given(st.lists(st.tuples(st.booleans(), pattern, st.integers(0, 2)), max_size=40), message)
def test_patterns_come_and_go(changes: list[tuple[bool, Address, int]], address: Address) -> None:
    """Whatever was added and removed, a match finds each target once for each pattern."""
    patterns: Patterns[int] = Patterns()
    live: set[tuple[Address, int]] = set()
    for adds, pattern, target in changes:
        known = (normal_form(pattern), target)
        if adds:
            assert patterns.add(pattern, target) is (known not in live)
            live.add(known)
        else:
            assert patterns.remove(pattern, target) is (known in live)
            live.discard(known)
    expected = sorted(target for pattern, target in live if defined(pattern, address))
    assert sorted(patterns.match(address)) == expected
    left = {pattern for pattern, _ in live if is_complex(pattern)}
    assert patterns.complex_levels == sum(len(pattern) for pattern in left)


def test_patterns_fill_and_leave_many_blocks() -> None:
    """Room of removed patterns is used again, and what stays is found all the time."""
    patterns: Patterns[int] = Patterns()
    made = [("t", REST, str(number), ONE_LEVEL, REST, "z") for number in range(2_000)]
    chosen = random.Random(1)
    for number, pattern in enumerate(made):
        assert patterns.add(pattern, number)
    blocks = len(patterns._blocks)
    assert blocks == -(-len(made) * 7 // BLOCK_BITS)
    order = chosen.sample(range(2_000), 2_000)
    for number in order[:1_900]:
        assert patterns.remove(made[number], number)
    assert len(patterns._blocks) <= 3
    for number in range(2_000):
        found = list(patterns.match(("t", "x", str(number), "y", "z")))
        assert found == ([number] if number in order[1_900:] else [])
    for number in order[1_900:]:
        assert patterns.remove(made[number], number)
    assert patterns.complex_levels == len(patterns._blocks) == 0


def many_rests(number: int) -> Address:
    """Sixty `#` in one pattern."""
    address = [level for at in range(60) for level in (REST, "a" if at % 2 else ONE_LEVEL)]
    return ("x", *address, str(number))


def a_long_tail(number: int) -> Address:
    """One `#`; behind it each word of the message may be each of the pattern's."""
    return ("x", REST, *("a" if number >> at & 1 else ONE_LEVEL for at in range(120)), "b")


def many_one_levels(number: int) -> Address:
    return ("x", *(ONE_LEVEL if number >> at & 1 else "a" for at in range(14)), REST)


@pytest.mark.parametrize("make", [many_rests, a_long_tail, many_one_levels])
def test_no_patterns_make_a_match_slow(make: Callable[[int], Address]) -> None:
    """One routing key against a thousand patterns that were chosen to be costly."""
    patterns: Patterns[int] = Patterns()
    for number in range(1_000):
        patterns.add(make(number), number)
    key = ("x", *["a"] * 127)
    before = time.process_time()
    list(patterns.match(key))
    assert time.process_time() - before < SECONDS_MAX


def test_a_pattern_alone_is_matched_quickly() -> None:
    """A change of a subscription is replayed by each route, pattern by pattern."""
    key = ("x", *["a"] * 127)
    before = time.process_time()
    for number in range(100):
        matches(a_long_tail(number), key)
        matches(many_rests(number), key)
    assert time.process_time() - before < SECONDS_MAX
