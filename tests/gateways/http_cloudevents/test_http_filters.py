"""The filter dialects of the Subscriptions API."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymq.gateways.http_cloudevents.errors import Problem
from polymq.gateways.http_cloudevents.filters import Predicate, compile_filters
from polymq.gateways.http_cloudevents.mapping import address_of
from tests.gateways.http_cloudevents.http_spy_port import matches

EVENT = {"specversion": "1.0", "id": "1", "source": "/shop", "type": "order.created", "n": "5"}


def compiled(filters: object) -> Predicate:
    return compile_filters(filters, depth_max=4, count_max=20)


@pytest.mark.parametrize(
    ("filters", "passes"),
    [
        ([], True),
        ([{"exact": {"type": "order.created"}}], True),
        ([{"exact": {"type": "Order.created"}}], False),
        ([{"exact": {"type": "order.created", "source": "/shop"}}], True),
        ([{"exact": {"type": "order.created", "source": "/x"}}], False),
        ([{"exact": {"missing": "x"}}], False),
        ([{"exact": {"n": "5"}}], True),
        ([{"prefix": {"type": "order."}}], True),
        ([{"prefix": {"type": "rder"}}], False),
        ([{"prefix": {"missing": "x"}}], False),
        ([{"suffix": {"type": ".created"}}], True),
        ([{"suffix": {"type": ".deleted"}}], False),
        ([{"prefix": {"type": "order."}}, {"suffix": {"type": ".created"}}], True),
        ([{"prefix": {"type": "order."}}, {"suffix": {"type": ".deleted"}}], False),
        ([{"any": [{"exact": {"type": "x"}}, {"exact": {"n": "5"}}]}], True),
        ([{"any": [{"exact": {"type": "x"}}, {"exact": {"n": "6"}}]}], False),
        ([{"all": [{"prefix": {"type": "order"}}, {"exact": {"n": "5"}}]}], True),
        ([{"all": [{"prefix": {"type": "order"}}, {"exact": {"n": "6"}}]}], False),
        ([{"not": {"exact": {"type": "x"}}}], True),
        ([{"not": {"exact": {"missing": "x"}}}], True),
        ([{"not": {"any": [{"exact": {"n": "5"}}]}}], False),
    ],
)
def test_dialects(filters: list[Any], passes: bool) -> None:
    assert compiled(filters)(EVENT) is passes


@pytest.mark.parametrize(
    ("filters", "names"),
    [
        ({}, "filters"),
        ("exact", "filters"),
        ([1], "filters[0]"),
        ([{}], "filters[0]"),
        ([{"exact": {"a": "b"}, "prefix": {"a": "b"}}], "filters[0]"),
        ([{"sql": "1=1"}], "filters[0].sql"),
        ([{"exact": {}}], "filters[0].exact"),
        ([{"exact": []}], "filters[0].exact"),
        ([{"exact": {"a": 1}}], "filters[0].exact.a"),
        ([{"exact": {"a": ""}}], "filters[0].exact.a"),
        ([{"prefix": {"A": "x"}}], "filters[0].prefix.A"),
        ([{"any": []}], "filters[0].any"),
        ([{"all": {"exact": {"a": "b"}}}], "filters[0].all"),
        ([{"any": [{"exact": {"a": "b"}}, {"nope": 1}]}], "filters[0].any[1].nope"),
        ([{"not": [{"exact": {"a": "b"}}]}], "filters[0].not[0]"),
        ([{"not": {"not": {"not": {"not": {"exact": {"a": "b"}}}}}}], "nested"),
        ([{"exact": {"a": "b"}}] * 21, "filters[20]"),
    ],
)
def test_bad_filters_are_named(filters: object, names: str) -> None:
    with pytest.raises(Problem) as raised:
        compiled(filters)
    assert raised.value.status == 400
    assert names in raised.value.detail


types = st.lists(st.sampled_from(["a", "b", "order", ""]), min_size=1, max_size=4).map(".".join)
simple = st.builds(
    lambda dialect, kind: {dialect: {"type": kind}},
    st.sampled_from(["exact", "prefix", "suffix"]),
    types.filter(bool),
)


@given(st.lists(simple, max_size=3), types.filter(bool))
def test_words_never_lose_an_event_that_passes(filters: list[Any], kind: str) -> None:
    """The queue collects by words, the function decides: what passes must have been collected."""
    if compiled(filters)({"type": kind}):
        assert matches(address_of("t", filters), ("t", *kind.split(".")))
