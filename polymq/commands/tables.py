"""Lists of the commands: tables for people, pages, times and durations."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import click

from polymq.admin.client import AdminClient, api_path
from polymq.commands.find import UNITS
from polymq.terminal import echo, printable

Command = TypeVar("Command", bound=Callable[..., Any])

PAGE_COUNT: Final = 100
"""Rows that a list has by default."""
ROWS_AT_ONCE: Final = 500
"""Rows that one request asks for, at most."""

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


def page_options(command: Command) -> Command:
    """`--limit` and `--after`."""
    command = click.option(
        "--after", metavar="NAME", help="Begin behind this entry, as the last line of a list says."
    )(command)
    return click.option(
        "--limit",
        type=click.IntRange(min=0),
        default=PAGE_COUNT,
        show_default=True,
        help="Maximum number of entries. 0: all.",
    )(command)


def fetch_items(
    client: AdminClient, path: Sequence[str], query: Mapping[str, object], limit: int
) -> dict[str, Any]:
    """A list of the API of at most `limit` entries (0: all), page by page: the last answer, with
    all entries. Raises Failure."""
    rows: list[dict[str, Any]] = []
    after = query.get("after")
    while True:
        left = limit - len(rows) if limit else ROWS_AT_ONCE
        asked = {**query, "limit": min(ROWS_AT_ONCE, left), "after": after}
        answer = client.ask("GET", api_path(*path, query=asked))
        rows += answer["items"]
        after = answer["next"]
        if after is None or len(rows) == limit:
            return {**answer, "items": rows}


def show_items(
    answer: dict[str, Any], columns: Mapping[str, Callable[[dict[str, Any]], object]]
) -> None:
    """Print a list of the API as a table, and how to go on if there is more.

    Args:
        columns: the heading of each column, and its value for an entry.
    """
    rows = [[f(row) for f in columns.values()] for row in answer["items"]]
    for line in table(list(columns), rows):
        echo(line)
    if answer["next"] is not None:
        echo(
            f"These are {len(rows):,} of {answer['total']:,}: use --after {answer['next']!r}, or "
            "--limit 0 for all.",
            err=True,
        )


def print_list(
    answer: dict[str, Any],
    columns: Mapping[str, Callable[[dict[str, Any]], object]],
    *,
    as_json: bool,
    nothing: str,
) -> None:
    """Print a list of the API as `--json` says.

    Args:
        nothing: what is said of an empty list.
    """
    if as_json:
        show_json(answer)
    elif not answer["items"]:
        echo(nothing, err=True)
    else:
        show_items(answer, columns)


def show_table(headings: Sequence[str], rows: Sequence[Sequence[object]], indent: str = "") -> None:
    """Print a table; nothing if it has no rows."""
    if rows:
        for line in table(headings, rows):
            echo(indent + line)


def show_fields(fields: Mapping[str, object]) -> None:
    """Print fields with their names, one a line; those that are None are left out."""
    shown = {name: value for name, value in fields.items() if value is not None}
    width = max(map(len, shown)) + 1
    for name, value in shown.items():
        echo(f"{name + ':':<{width}} {value}")


def show_json(value: object) -> None:
    """Print a value as one JSON document."""
    echo(json.dumps(value, ensure_ascii=False))


def table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterator[str]:
    """The lines of a table. Numbers stand at the right end of their column."""
    texts = [[printable(_text(value)) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(headings, *texts, strict=True)]
    numeric = [
        bool(rows) and all(isinstance(row[at], int | None) for row in rows)
        for at in range(len(headings))
    ]
    for line in [list(headings), *texts]:
        cells = [
            f"{cell:>{width}}" if right else f"{cell:<{width}}"
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ]
        yield "  ".join(cells).rstrip()


def _text(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


def shown_time(ms: int | None) -> str | None:
    """A time in milliseconds since 1970, in UTC to the second."""
    if ms is None:
        return None
    try:
        return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S}Z"
    except (ValueError, OverflowError, OSError):
        return "after the year 9999"


def shown_expiry(seconds: int | None) -> str:
    """How long a session outlives its connection."""
    return "never" if seconds is None else f"{seconds:,} s"


class Duration(click.ParamType[int]):
    """A duration such as `90s`, `15m`, `2h` or `7d`: in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Raises BadParameter."""
        found = re.fullmatch(r"([0-9]{1,9})([smhd])", str(value))
        if found is None or not int(found[1]):
            self.fail(f"{value!r} is not a duration: use 90s, 15m, 2h or 7d", param, ctx)
        return int(found[1]) * UNITS[found[2]]
