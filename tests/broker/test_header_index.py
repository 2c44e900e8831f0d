"""Headers bindings of an exchange: found by a message's headers as by looking at each of them."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymq.broker.routing.header_index import HeaderIndex
from polymq.broker.routing.header_match import HeaderPattern, pattern_of, pattern_text, tag_headers

name = st.sampled_from(["a", "b", "x-c"])
value = st.one_of(
    st.sampled_from([None, True, 1, 0.0, -0.0, 1.0, "1", b"1"]),
    st.lists(st.integers(0, 1), max_size=2),
    st.dictionaries(name, st.integers(0, 1), max_size=1),
)
table = st.dictionaries(name, value, max_size=3)
mode = st.sampled_from(["all", "any", "all-with-x", "any-with-x"])


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 5), mode, table), max_size=20),
    st.lists(table, min_size=1, max_size=5),
)
def test_an_index_finds_what_matches(
    changes: list[tuple[bool, int, str, dict[str, Any]]], messages: list[dict[str, Any]]
) -> None:
    index: HeaderIndex[int] = HeaderIndex()
    live: dict[int, Any] = {}
    for adds, key, how, wanted in changes:
        pattern = pattern_of(pattern_text({"x-match": how, **wanted}))
        if adds:
            index.add(key, pattern)
            live.setdefault(key, pattern)
        else:
            assert index.remove(key) is (live.pop(key, None) is not None)
    assert len(index) == len(live)
    for headers in messages:
        tagged = tag_headers(headers)
        assert index.match(tagged) == [key for key in live if live[key].matches(tagged)]


def test_a_message_is_compared_with_few_of_many_bindings() -> None:
    """Ten thousand queues, each for another customer, in one country."""
    index: HeaderIndex[int] = HeaderIndex()
    for number in range(10_000):
        wanted = {"country": "nl", "customer": number}
        index.add(number, pattern_of(pattern_text(wanted)))
    before = time.process_time()
    for number in range(1_000):
        headers = tag_headers({"country": "nl", "customer": number})
        assert index.match(headers) == [number]
    assert time.process_time() - before < 1.0


def test_bindings_that_match_where_they_are_found_are_not_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those that need any argument, and those that have one. Tables and lists are compared."""
    compared: list[HeaderPattern] = []
    matches = HeaderPattern.matches

    def noting(pattern: HeaderPattern, headers: dict[str, list[object]]) -> bool:
        compared.append(pattern)
        return matches(pattern, headers)

    monkeypatch.setattr(HeaderPattern, "matches", noting)
    index: HeaderIndex[int] = HeaderIndex()
    for key in range(100):
        index.add(key, HeaderPattern("any", tag_headers({"a": 1, "b": key})))
        index.add(100 + key, HeaderPattern("all", tag_headers({"a": None})))
    index.add(200, HeaderPattern("any", tag_headers({"a": [1]})))
    index.add(201, HeaderPattern("all", tag_headers({"a": 1, "b": 3})))
    assert len(index.match(tag_headers({"a": 1}))) == 200
    assert len(compared) <= 1
    assert set(index.match(tag_headers({"a": [1], "c": 1}))) == {*range(100, 200), 200}
    assert set(index.match(tag_headers({"a": [2]}))) == {*range(100, 200)}
    assert set(index.match(tag_headers({"b": 3, "a": 1}))) == {*range(200), 201}
