"""Pages of lines of the log."""

from __future__ import annotations

import logging
from collections.abc import Generator
from typing import Any

import pytest

from polymq.admin.log_lines import AuditQuery, LogHandlers, LogLine, page_of_lines
from polymq.admin.pages import Page
from polymq.broker.errors import Refused
from polymq.recent_lines import RecentLines
from tests.polymq.admin.operation_calls import call

LINES = (
    ("user added", {"user": "ann", "by": "root"}, "INFO"),
    ("login failed", {"user": "ann", "address": "192.0.2.7"}, "WARNING"),
    ("topic deleted", {"topic": "Orders", "by": "ann"}, "INFO"),
    ("refused", {"user": "annette"}, "ERROR"),
)


def some_lines(name: str = "polymq.audit") -> RecentLines:
    recent = RecentLines(0)
    for event, values, level in LINES:
        record = {"name": name, "msg": event, "levelname": level}
        recent.keep(logging.makeLogRecord({**record, **values}))
    return recent


def run_steps(steps: Generator[None, None, Page[LogLine]]) -> Page[LogLine]:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            page: Page[LogLine] = end.value
            return page


def events(page: Page[LogLine]) -> list[str]:
    return [line.event for line in page.items]


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ({}, ["refused", "topic deleted", "login failed", "user added"]),
        ({"user": "ann"}, ["topic deleted", "login failed", "user added"]),
        ({"user": "root"}, ["user added"]),
        ({"text": "orders"}, ["topic deleted"]),
        ({"text": "ADDRESS=192.0.2"}, ["login failed"]),
        ({"text": "ann", "user": "annette"}, ["refused"]),
        ({"since": 2}, ["refused", "topic deleted"]),
        ({"since": 4}, []),
        ({"text": "not there"}, []),
    ],
)
def test_filters(query: dict[str, Any], wanted: list[str]) -> None:
    page = run_steps(page_of_lines(some_lines().audit(), AuditQuery(**query)))
    assert events(page) == wanted
    assert page.total == len(wanted)
    assert page.next is None


def test_pages_go_back_in_time() -> None:
    """Each line comes once, also if new ones come meanwhile."""
    recent = some_lines()
    seen: list[str] = []
    query = AuditQuery(limit=3)
    page = run_steps(page_of_lines(recent.audit(), query))
    seen += events(page)
    assert page.next == "2"
    recent.keep(logging.makeLogRecord({"name": "polymq.audit", "msg": "new"}))
    page = run_steps(page_of_lines(recent.audit(), AuditQuery(limit=3, after=page.next)))
    assert seen + events(page) == [event for event, _, _ in reversed(LINES)]
    assert page.next is None


@pytest.mark.parametrize("after", ["", "x", "-1", "9" * 30, "\u0663"])
def test_a_wrong_place(after: str) -> None:
    with pytest.raises(Refused, match="after has to be"):
        run_steps(page_of_lines(some_lines().audit(), AuditQuery(after=after)))


@pytest.mark.parametrize(("level", "count"), [("debug", 4), ("warning", 2), ("error", 1)])
def test_levels(level: str, count: int) -> None:
    """The named one and those above it."""
    groups = [LogHandlers(lambda: some_lines("polymq")).group()]
    assert call(groups, "listLog", level=level).total == count
    assert call(groups, "listAudit").total == 0
