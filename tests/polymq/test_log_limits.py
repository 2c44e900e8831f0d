"""Lines of the log that repeat: clients cause them, and they end after some a minute."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from polymq.broker.accounts import audit
from polymq.log_limits import KINDS_MAX, LAST, LINES_PER_MINUTE, LineLimit
from polymq.logs import configure_logs, logger, suppressed_lines
from polymq.settings import LogSettings

FLOOD = 3 * LINES_PER_MINUTE


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def limit(clock: Clock) -> LineLimit:
    return LineLimit(exempt=frozenset({"bounded"}), now=clock)


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    found = io.StringIO()
    configure_logs(LogSettings(format="json"), found)
    yield found
    structlog.reset_defaults()


def line(text: str, *values: object, name: str = "polymq.gateways.mqtt") -> logging.LogRecord:
    return logging.LogRecord(name, logging.INFO, __file__, 1, text, values, None)


def events(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(text) for text in stream.getvalue().splitlines()]


def test_lines_that_differ_in_their_values_are_of_one_kind(limit: LineLimit) -> None:
    written = [limit.filter(line("closing %s", number)) for number in range(FLOOD)]
    assert written == [True] * LINES_PER_MINUTE + [False] * (FLOOD - LINES_PER_MINUTE)
    assert limit.suppressed_count == FLOOD - LINES_PER_MINUTE


def test_other_kinds_are_counted_by_themselves(limit: LineLimit) -> None:
    for number in range(FLOOD):
        limit.filter(line("closing %s", number))
    assert limit.filter(line("refused %s", 1))
    assert limit.filter(line("closing %s", 1, name="polymq.gateways.rocketmq"))


def test_the_next_minute_is_a_new_one(limit: LineLimit, clock: Clock) -> None:
    for number in range(FLOOD):
        limit.filter(line("closing %s", number))
    clock.now += 59.9
    assert not limit.filter(line("closing %s", 1))
    clock.now += 0.1
    assert limit.filter(line("closing %s", 2))


def test_a_logger_that_bounds_its_lines_itself_is_left_alone(limit: LineLimit) -> None:
    assert all(limit.filter(line("login refused", name="bounded")) for _ in range(FLOOD))


def test_texts_that_are_composed_have_a_limit_too(limit: LineLimit) -> None:
    """And take no memory without a bound."""
    texts = [f"composed {number}" for number in range(KINDS_MAX + FLOOD)]
    assert sum(limit.filter(line(text)) for text in texts) == KINDS_MAX + LINES_PER_MINUTE
    assert limit.filter(line(texts[0])), "it was there before"


@pytest.mark.parametrize("is_ours", [True, False])
def test_the_last_line_says_that_it_is_the_last(stream: io.StringIO, is_ours: bool) -> None:
    """The program's own lines, and those of the folders below."""
    before = suppressed_lines()
    for number in range(FLOOD):
        if is_ours:
            logger("polymq.test").info("broker joined", number=number)
        else:
            logging.getLogger("polymq.gateways.mqtt").info("closing %d", number)
    found = events(stream)
    assert len(found) == LINES_PER_MINUTE
    assert found[-1].pop("more") == LAST
    assert not any("more" in event for event in found)
    assert suppressed_lines() - before == FLOOD - LINES_PER_MINUTE


def test_refusals_of_one_user_do_not_hide_those_of_others(stream: io.StringIO) -> None:
    """A client that connects again and again is refused each time."""
    before = suppressed_lines()
    for number in range(FLOOD):
        audit.warn(audit.REFUSED, user="greedy", what="connection", reason=f"quota {number}")
    audit.warn(audit.REFUSED, user="other", what="publish", resource="t")
    users = [event["user"] for event in events(stream)]
    assert users == ["greedy"] * LINES_PER_MINUTE + ["other"]
    assert events(stream)[LINES_PER_MINUTE - 1]["more"] == LAST
    assert suppressed_lines() - before == FLOOD - LINES_PER_MINUTE


def test_the_audit_log_has_limits_of_its_own(stream: io.StringIO) -> None:
    for number in range(FLOOD):
        audit.note("user changed", user=f"u{number}")
    assert [event["user"] for event in events(stream)] == [f"u{number}" for number in range(FLOOD)]
