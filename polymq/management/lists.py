"""Lists: filtered, sorted, cut into pages and encoded, in steps between which the loop goes on.

Theory. A list may have a hundred thousand entries, and a client may ask for all of them at once, as
RabbitMQ lets it. So a list is never a list of rows: it is names, of which rows are made as they are
written, and a slow client makes the rest of them wait. Sorting by a field makes each row twice:
once for its key, of which a few bytes stay, and once to be shown.

Rules:

* A number that many lists are sorted by is asked of the entry (`Items.key`), without its row.
* Names are taken when the request comes. What goes meanwhile is left out of the rows.
* Names are sorted in stretches, and merged as they are used: no step sorts more than STEP_ENTRIES.
* `name`, `use_regex`, `page`, `page_size`, `pagination`, `sort`, `sort_reverse` and `columns` are
  RabbitMQ's.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from typing import Any, Final

from polymq.admin.written_answers import Steps
from polymq.management.errors import bad
from polymq.management.filters import Matcher, matcher_of
from polymq.management.json_values import encode

STEP_ENTRIES: Final = 1_000
"""Names that are looked at in one step."""
STEP_KEYS: Final = 200
"""Entries whose numbers are looked at in one step."""
STEP_ROWS: Final = 20
"""Rows that are made in one step: below a millisecond."""
PAGE_SIZE_DEFAULT: Final = 100
PAGE_SIZE_MAX: Final = 500

_FIRST: Final = itemgetter(0)

Row = Mapping[str, Any]
Entry = Any
"""What stands for a row: its name, or whatever `Items.row` knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Items:
    """A list.

    Attributes:
        entries: what there is; looked at in steps, so it may be a generator, which says None where
            it needs a pause and has found nothing.
        row: the row of an entry; None: it is gone.
        name: of an entry, for filters; without it there is no order but the one of `entries`.
        wants: whether the caller may see the entry; None: it sees all.
        key: what the list is sorted by, if that is known without the row; None: the entry is gone.
    """

    entries: Iterable[Entry]
    row: Callable[[Entry], Row | None]
    name: Callable[[Entry], str] | None = None
    wants: Callable[[Entry], bool] | None = None
    key: Callable[[Entry], float | None] | None = None


def itself(row: Row) -> Row:
    """The row of an entry that is one."""
    return row


NOTHING: Final = Items(entries=(), row=itself)
"""An empty list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a request wants of a list.

    Attributes:
        page: from 1 on; None: the whole list, without RabbitMQ's envelope of a page.
        matches: whether a name passes the filter; None: all do.
        sort: the path of the field to sort by; None: by name.
        columns: paths of fields that are shown; None: all.
    """

    page: int | None = None
    page_size: int = PAGE_SIZE_DEFAULT
    matches: Matcher | None = None
    sort: Sequence[str] | None = None
    reverse: bool = False
    columns: Sequence[Sequence[str]] | None = None


def wanted_of(query: Mapping[str, str]) -> Wanted:
    """What the parameters say. Raises Problem."""
    page: int | None = None
    if "page" in query or query.get("pagination") == "true" or "page_size" in query:
        page = _number(query, "page", 1)
    columns = query.get("columns")
    sort = query.get("sort")
    return Wanted(
        page=page,
        page_size=min(_number(query, "page_size", PAGE_SIZE_DEFAULT), PAGE_SIZE_MAX),
        matches=matcher_of(query.get("name", ""), is_regex=query.get("use_regex") == "true"),
        sort=sort.split(".") if sort else None,
        reverse=query.get("sort_reverse") == "true",
        columns=[one.split(".") for one in columns.split(",") if one] if columns else None,
    )


def _number(query: Mapping[str, str], name: str, default: int) -> int:
    text = query.get(name, str(default))
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text) > 0):
        raise bad(f"{name} has to be a number from 1 on, not {text!r}")
    return int(text)


def write_list(items: Items, wanted: Wanted) -> Steps:
    """The JSON text of a list, or of a page of it, in parts. Raises Problem before the first
    part."""
    if wanted.page is None:
        chosen = yield from _ordered(items, wanted, [])
        yield b"["
        yield from _write_rows(items, chosen, wanted.columns)
        yield b"]"
        return
    counts = [0, 0]  # all, and those that pass the filter
    ordered = yield from _ordered(items, wanted, counts)
    size, page = wanted.page_size, wanted.page
    last = max(1, -(-counts[1] // size))
    if page > last:
        raise bad(f"page_out_of_range: page {page}, len {counts[1]}, page size {size}")
    yield from _skip(ordered, (page - 1) * size)
    shown = list(islice(ordered, size))
    head = {
        "filtered_count": counts[1],
        "item_count": len(shown),
        "page": page,
        "page_count": last,
        "page_size": size,
        "total_count": counts[0],
    }
    yield encode(head)[:-1] + b',"items":['
    yield from _write_rows(items, iter(shown), wanted.columns)
    yield b"]}"


@dataclass(frozen=True, slots=True)
class Sections:
    """A JSON object with values and lists.

    Attributes:
        head: the values by name.
        lists: the lists by name.
    """

    head: Row
    lists: Mapping[str, Items]


def write_sections(sections: Sections) -> Steps:
    """The JSON text of an object with lists, in parts."""
    yield encode(sections.head)[:-1]
    separator = b"," if sections.head else b""
    for name, items in sections.lists.items():
        yield separator + encode(name) + b":"
        yield from write_list(items, Wanted())
        separator = b","
    yield b"}"


def _skip(entries: Iterator[Entry], count: int) -> Generator[None, None, None]:
    while count > 0:
        for _ in islice(entries, min(count, STEP_ENTRIES)):
            pass
        count -= STEP_ENTRIES
        yield


def _ordered(
    items: Items, wanted: Wanted, counts: list[int]
) -> Generator[None, None, Iterator[Entry]]:
    """The entries that pass the filter, in order.

    Args:
        counts: if it is not empty, all entries are looked at now, and are counted in it.
    """
    name, sort = items.name, wanted.sort
    if name is not None and sort == ["name"]:
        sort = None
    if name is None and sort is None and items.wants is None and not counts:
        return iter(items.entries)
    stretches: list[list[Any]] = []
    entries = iter(items.entries)
    while some := list(islice(entries, STEP_ENTRIES)):
        seen = yield from _passing(some, items.wants)
        found = seen
        if name is not None and wanted.matches is not None:
            found = yield from _matching(seen, name, wanted.matches)
        if counts:
            counts[0] += len(seen)
            counts[1] += len(found)
        if sort is not None:
            keyed = yield from _keyed(items, found, sort)
            stretches.append(sorted(keyed, key=_FIRST, reverse=wanted.reverse))
        elif name is not None:
            stretches.append(sorted(found, key=name, reverse=wanted.reverse))
        else:
            stretches.append(found)
        yield
    if sort is not None:
        merged = heapq.merge(*stretches, key=_FIRST, reverse=wanted.reverse)
        return (entry for _, entry in merged)
    if name is not None:
        return iter(heapq.merge(*stretches, key=name, reverse=wanted.reverse))
    return (entry for stretch in stretches for entry in stretch)


def _passing(
    entries: Sequence[Entry], wants: Callable[[Entry], bool] | None
) -> Generator[None, None, list[Entry]]:
    """The entries that the caller may see."""
    if wants is None:
        return [entry for entry in entries if entry is not None]
    found: list[Entry] = []
    for index, entry in enumerate(entries, 1):
        if entry is not None and wants(entry):
            found.append(entry)
        if index % STEP_ROWS == 0:
            yield
    return found


def _matching(
    entries: Sequence[Entry], name: Callable[[Entry], str], matches: Matcher
) -> Generator[None, None, list[Entry]]:
    """The entries whose names pass the filter."""
    found: list[Entry] = []
    for entry in entries:
        if matches(name(entry)):
            found.append(entry)
        if matches.is_slow:
            yield
    return found


def _keyed(
    items: Items, entries: Sequence[Entry], path: Sequence[str]
) -> Generator[None, None, list[tuple[Any, Entry]]]:
    keyed: list[tuple[Any, Entry]] = []
    if items.key is not None:
        for begin in range(0, len(entries), STEP_KEYS):
            some = entries[begin : begin + STEP_KEYS]
            numbers = zip(map(items.key, some), some, strict=True)
            keyed += [(number, entry) for number, entry in numbers if number is not None]
            yield
        return keyed
    for index, entry in enumerate(entries, 1):
        row = items.row(entry)
        if row is not None:
            keyed.append((sort_key(_field(row, path)), entry))
        if index % STEP_ROWS == 0:
            yield
    return keyed


def sort_key(value: object) -> tuple[int, Any]:
    """A key by which values of different kinds can be compared: nothing first, then numbers, then
    texts."""
    match value:
        case bool() | int() | float():
            return (1, value)
        case str():
            return (2, value)
    return (0, 0)


def _write_rows(
    items: Items, entries: Iterator[Entry], columns: Sequence[Sequence[str]] | None
) -> Steps:
    separator = b""
    rows: list[Row] = []
    for index, entry in enumerate(entries, 1):
        row = None if entry is None else items.row(entry)
        if row is not None:
            rows.append(row if columns is None else chosen(row, columns))
        if index % STEP_ROWS == 0:
            if rows:
                yield separator + encode(rows)[1:-1]
                separator, rows = b",", []
            else:
                yield None
    if rows:
        yield separator + encode(rows)[1:-1]


def chosen(row: Row, columns: Sequence[Sequence[str]]) -> Row:
    """The fields of a row that are wanted."""
    found: dict[str, Any] = {}
    for path in columns:
        _take(row, path, found)
    return found


def _take(row: Row, path: Sequence[str], found: dict[str, Any]) -> None:
    name = path[0]
    if name not in row:
        return
    value = row[name]
    if len(path) == 1:
        found[name] = value
    elif isinstance(value, Mapping):
        inner = found.setdefault(name, {})
        if isinstance(inner, dict):
            _take(value, path[1:], inner)


def _field(row: Row, path: Sequence[str]) -> object:
    value: object = row
    for name in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(name)
    return value
