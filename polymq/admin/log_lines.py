"""The last lines of the audit log and of the server's log, newest first."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Annotated, Final, Literal

import msgspec

from polymq.admin.operations import Call, Given, Group, Operation, Value
from polymq.admin.pages import PAGE_DEFAULT, PAGE_MAX, Page
from polymq.broker.errors import Reason, Refused
from polymq.recent_lines import RecentLine, RecentLines
from polymq.steps import in_steps

TEXT_MAX: Final = 200
"""Characters of a filter."""
STEP_LINES: Final = 100
"""That are looked at in one step: below a millisecond."""
LEVELS: Final = ("debug", "info", "warning", "error")
"""From the lowest on. Every other one counts as higher."""
PERSONS: Final = ("user", "by")
"""Values that name a user: the one that a line is about, and the one who did it."""


class LogLine(Value):
    """A line.

    Attributes:
        number: grows from line to line, over restarts of the server, too.
        time_ms: when it was logged, in milliseconds since the epoch.
        level: debug, info, warning, error or critical.
        logger: the part of the server that logged it.
        event: what happened.
        values: what more is known, by name.
    """

    number: int
    time_ms: int
    level: str
    logger: str
    event: str
    values: dict[str, str]


class AuditQuery(Given):
    """Which lines.

    Attributes:
        limit: how many lines, at most 500.
        after: `next` of the page before; without it, the newest lines.
        since: only lines with a larger number: those that came since one was asked for.
        user: only lines about this user, or about what it did.
        text: only lines that have this text somewhere; upper and lower case are the same.
    """

    limit: Annotated[int, msgspec.Meta(ge=1, le=PAGE_MAX)] = PAGE_DEFAULT
    after: str | None = None
    since: int = 0
    user: Annotated[str, msgspec.Meta(max_length=TEXT_MAX)] = ""
    text: Annotated[str, msgspec.Meta(max_length=TEXT_MAX)] = ""


class LogQuery(AuditQuery):
    """Which lines.

    Attributes:
        level: the lowest severity.
    """

    level: Literal["debug", "info", "warning", "error"] = "debug"


class LogHandlers:
    """Carries out the operations on lines.

    Args:
        recent: the lines that there are.
    """

    def __init__(self, recent: Callable[[], RecentLines]) -> None:
        self._recent = recent

    def group(self) -> Group:
        """The operations."""
        return Group(
            name="log",
            about="The last lines that the server has logged since its start, in memory.",
            operations=[
                Operation(
                    method="GET",
                    path="/audit",
                    name="listAudit",
                    summary="List the last lines of the audit log, newest first",
                    about="The server keeps 2,000 lines in memory. Older ones are on its stderr "
                    "only.",
                    right="monitor",
                    handler=self._list_audit,
                    query=AuditQuery,
                    answer=Page[LogLine],
                ),
                Operation(
                    method="GET",
                    path="/log",
                    name="listLog",
                    summary="List the last other lines that the server has logged, newest first",
                    about="The server keeps 2,000 lines in memory. Of errors it keeps their names; "
                    "their texts and stacks are on its stderr only.",
                    right="monitor",
                    handler=self._list_log,
                    query=LogQuery,
                    answer=Page[LogLine],
                ),
            ],
        )

    async def _list_audit(self, call: Call[AuditQuery]) -> Page[LogLine]:
        return await in_steps(page_of_lines(self._recent().audit(), call.query))

    async def _list_log(self, call: Call[LogQuery]) -> Page[LogLine]:
        below = LEVELS[: LEVELS.index(call.query.level)]
        lines = [line for line in self._recent().others() if line.level not in below]
        return await in_steps(page_of_lines(lines, call.query))


def page_of_lines(
    lines: Iterable[RecentLine], query: AuditQuery
) -> Generator[None, None, Page[LogLine]]:
    """Make a page, in steps. Raises Refused: BAD_ARGUMENT."""
    below = _number(query.after)
    text = query.text.lower()
    items: list[LogLine] = []
    total = left = 0
    for at, line in enumerate(lines, 1):
        if at % STEP_LINES == 0:
            yield
        if line.number <= query.since:
            break
        if not _is_about(line, query.user) or (text and text not in line.text.lower()):
            continue
        total += 1
        if below is not None and line.number >= below:
            continue
        if len(items) < query.limit:
            items.append(_shown(line))
        else:
            left += 1
    return Page(items=items, next=str(items[-1].number) if left else None, total=total)


def _is_about(line: RecentLine, user: str) -> bool:
    return not user or any(line.values.get(name) == user for name in PERSONS)


def _shown(line: RecentLine) -> LogLine:
    return LogLine(
        number=line.number,
        time_ms=line.time_ms,
        level=line.level,
        logger=line.logger,
        event=line.event,
        values=dict(line.values),
    )


def _number(after: str | None) -> int | None:
    if after is None:
        return None
    if not (after.isascii() and after.isdecimal()) or len(after) > 20:
        text = "after has to be the text `next` of a page of this list"
        raise Refused(Reason.BAD_ARGUMENT, text)
    return int(after)
