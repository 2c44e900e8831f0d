"""Which trace a message belongs to, by its properties."""

from __future__ import annotations

import pytest

from polymq.telemetry.trace_context import STATE_CHARACTERS_MAX, parse_parent, trace_context_of
from tests.gateways.property_readers import (
    Sent,
    content_of,
    event_of,
    packed_of,
    posted,
    sent_by_rocketmq,
)

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"
PAIRS = {"traceparent": PARENT, "tracestate": "a=1"}


@pytest.mark.parametrize(
    "sent",
    [
        packed_of(UserProperty=list(PAIRS.items())),
        content_of(headers=PAIRS),
        posted(**PAIRS),
        event_of(*PAIRS.items()),
        sent_by_rocketmq(**PAIRS),
    ],
    ids=["mqtt5", "amqp", "http", "event-over-mqtt5", "rocketmq"],
)
def test_it_is_found_where_each_protocol_has_it(sent: Sent) -> None:
    found = trace_context_of(sent)
    assert found is not None
    assert (found.trace_id.hex(), found.span_id.hex(), found.state) == (TRACE, SPAN, "a=1")


@pytest.mark.parametrize(
    "sent", [{}, packed_of(), content_of(headers={"colour": "red"}), {"traceparent": ""}]
)
def test_most_messages_belong_to_none(sent: Sent) -> None:
    assert trace_context_of(sent) is None


@pytest.mark.parametrize(
    "text",
    [
        f"00-{TRACE}-{SPAN}-00",  # not sampled
        f"00-{TRACE}-{SPAN}-02",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-01-more",  # of this version nothing follows
        f"ff-{TRACE}-{SPAN}-01",
        f"0-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01\n",
    ],
)
def test_what_is_wrong_or_not_sampled_is_none(text: str) -> None:
    assert parse_parent(text) is None


def test_later_versions_may_say_more() -> None:
    assert parse_parent(f"01-{TRACE}-{SPAN}-01") == parse_parent(f"cc-{TRACE}-{SPAN}-03-more")


def test_a_state_that_is_too_long_is_left_out() -> None:
    longest = "a" * STATE_CHARACTERS_MAX
    for state, expected in ((longest, longest), (longest + "a", "")):
        found = parse_parent(PARENT, state)
        assert found is not None
        assert found.state == expected
