"""What the dialogs about topics send, and how many lines of a trace are kept."""

from __future__ import annotations

import json
from typing import Any

import pytest

from polymq.console.topic_dialogs import changes
from polymq.console.traces import LINE_CHARACTERS_MAX, LINES_AT_ONCE, Tail

TOPIC: dict[str, Any] = {
    "settings": {"durability": "fsync", "retention_seconds": 7200, "min_in_sync": 1},
    "own_settings": ["retention_seconds"],
}


@pytest.mark.parametrize(
    ("typed", "sent"),
    [
        ({"durability": "", "retention_seconds": "7200", "min_in_sync": ""}, {}),
        ({"durability": " ", "retention_seconds": " 7200 "}, {}),
        ({"retention_seconds": ""}, {"retention_seconds": "default"}),
        ({"durability": "fsync"}, {"durability": "fsync"}),
        (
            {"min_in_sync": "2", "retention_seconds": "1"},
            {"min_in_sync": "2", "retention_seconds": "1"},
        ),
    ],
)
def test_only_what_was_changed_is_sent(typed: dict[str, str], sent: dict[str, str]) -> None:
    """An empty field means the broker's default; a default that is typed becomes the topic's own
    setting, which later changes of the default do not concern."""
    assert changes(TOPIC, typed) == sent


def line(**values: object) -> bytes:
    head = {"time_ms": 0, "client_id": "c", "direction": "in", "packet": "PUBLISH"}
    return json.dumps({**head, **values}).encode()


def test_lines_of_a_trace_are_bounded() -> None:
    """In number and in length; what is lost on either side of the API is counted."""
    tail = Tail()
    tail.add(line(topic="x" * 5_000))
    (text,) = tail.take()
    assert len(text) < LINE_CHARACTERS_MAX + 10
    assert tail.take() == []
    for number in range(LINES_AT_ONCE + 7):
        tail.add(line(topic=str(number)))
    tail.add(b'{"dropped": 5}')
    assert tail.count == LINES_AT_ONCE + 8
    assert tail.left_out == 12
    lines = tail.take()
    assert len(lines) == LINES_AT_ONCE
    assert str(LINES_AT_ONCE + 6) in lines[-1]


def test_a_packet_is_one_line() -> None:
    """Whatever its payload has."""
    tail = Tail()
    tail.add(line(reason=0, user="a\nb"))
    assert "\n" not in tail.take()[0]
