"""The last lines of the log: what is kept of them, and what is not."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest
import structlog

from polymq.broker.accounts import audit
from polymq.logs import configure_logs, logger, recent_lines
from polymq.recent_lines import LINES_MAX, VALUES_MAX, RecentLines
from polymq.settings import LogSettings


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """What goes to stderr."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    stream = io.StringIO()
    configure_logs(LogSettings(format="json"), stream)
    yield stream
    root.handlers[:] = before
    root.setLevel(level)
    structlog.reset_defaults()


def test_lines_of_all_kinds(written: io.StringIO) -> None:
    """The audit log's are apart. The numbers of all grow."""
    audit.note("user added", user="ann", by="root")
    logging.getLogger("polymq.broker").warning("no room for %s", "ann", extra={"free_bytes": 7})
    logger("polymq").info("the server runs", port=1883)
    (line,) = recent_lines().audit()
    assert (line.level, line.event, line.values) == (
        "info",
        "user added",
        {"user": "ann", "by": "root"},
    )
    newest, oldest = recent_lines().others()
    assert (newest.event, newest.values) == ("the server runs", {"port": "1883"})
    assert (oldest.event, oldest.values) == ("no room for ann", {"free_bytes": "7"})
    assert line.number < oldest.number < newest.number
    assert written.getvalue().count("\n") == 3


def test_what_is_not_written_is_not_kept(written: io.StringIO) -> None:
    """Lines below the level, and those that are too many of their kind."""
    logger("polymq").debug("a detail")
    for number in range(100):
        logger("polymq").info("again", number=number)
    assert len(recent_lines().others()) == written.getvalue().count("\n") == 60


def test_nothing_secret_is_kept(written: io.StringIO) -> None:
    """No value that is called like a secret, and of an error neither text nor stack: it may quote
    a message."""
    logger("polymq").info("asked", service_password="hunter2", token="abc")
    try:
        raise ValueError("body of a message")
    except ValueError:
        logging.getLogger("x").exception("it went wrong")
        logger("polymq").exception("it went wrong, too")
    remaining = recent_lines().others()
    assert [line.values.get("error") for line in remaining] == ["ValueError", "ValueError", None]
    assert "body of a message" in written.getvalue()
    for line in remaining:
        assert not any(text in line.text for text in ("hunter2", "abc", "body of", "Traceback"))


def test_memory_is_bounded() -> None:
    """In lines, in values, and in the length of each; and a flood leaves the audit log alone."""
    recent = RecentLines(1_000)
    values = {f"v{number}": "x" * 10_000 for number in range(100)}
    recent.keep(logging.makeLogRecord({"name": audit.LOGGER, "msg": "y" * 10_000, **values}))
    (line,) = recent.audit()
    assert len(line.text) < (VALUES_MAX + 1) * 250
    for number in range(LINES_MAX + 10):
        recent.keep(logging.makeLogRecord({"name": "polymq", "msg": f"line {number}"}))
    assert len(recent.others()) == LINES_MAX
    assert recent.others()[0].event == f"line {LINES_MAX + 9}"
    assert len(recent.audit()) == 1


def test_numbers_grow_over_a_restart() -> None:
    """Who follows the log goes on with the lines of the next start."""
    first = RecentLines(1_000)
    for _ in range(LINES_MAX):
        first.keep(logging.makeLogRecord({"name": "x", "msg": "y"}))
    second = RecentLines(1_010)
    second.keep(logging.makeLogRecord({"name": "x", "msg": "y"}))
    assert second.others()[0].number > first.others()[0].number


def test_without_logs_there_are_no_lines() -> None:
    """As in tests and in programs that use parts of a server."""
    assert recent_lines().audit() == recent_lines().others() == []
