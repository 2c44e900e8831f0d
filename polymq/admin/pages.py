"""Lists that come in pages, filtered and sorted here and not at the client.

Theory of a page: all candidates are looked at in steps, with the loop's other work in between, and
only the best of them are remembered, one more than a page has. A page ends with the key of its last
entry, as a text (`next`). The following page has what sorts behind
that key. Nothing is stored between two requests, so a list that changes meanwhile is never wrong by
more than what changed: an entry whose number changed may be seen twice or not at all, one that is
sorted by name neither.

Costs: a step looks at STEP_ENTRIES names. Names are compared before anything else is looked up, and
a list by name without filters compares texts only.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any, Final, Generic, TypeVar

import msgspec

from polymq.admin.operations import Given, Value
from polymq.broker.errors import Reason, Refused

PAGE_DEFAULT: Final = 100
PAGE_MAX: Final = 500
STEP_ENTRIES: Final = 1_000
"""Entries that are looked at in one step: below a millisecond for names, some for numbers."""

Key = tuple[Any, ...]
Entry = TypeVar("Entry")
Row = TypeVar("Row")


class PageQuery(Given):
    """Which page of a list.

    Attributes:
        limit: how many entries, at most 500.
        after: `next` of the page before; without it, the first page.
        prefix: only entries whose names begin with this text.
    """

    limit: Annotated[int, msgspec.Meta(ge=1, le=PAGE_MAX)] = PAGE_DEFAULT
    after: str | None = None
    prefix: str = ""


class Page(Value, Generic[Row]):
    """A page of a list.

    Attributes:
        items: the entries.
        next: what `after` has to be for the following page; null: this is the last one.
        total: how many entries pass the filters, on all pages.
    """

    items: list[Row]
    next: str | None
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing(Generic[Entry, Row]):
    """How a list is put together.

    Attributes:
        names: all names, as they are when the list is asked for.
        find: the entry of a name; None: it went meanwhile.
        row: what is shown of it; may be a generator that returns it, whose steps are made.
        number: by which the list is sorted, the largest first; None: by name.
        wants_name: whether a name passes the filters; None: all do.
        wants: whether an entry passes the filters; None: all do.
        step: how many entries are looked at in one step; None: STEP_ENTRIES.
    """

    names: Iterable[str]
    find: Callable[[str], Entry | None]
    row: Callable[[str, Entry], Row | Generator[Any, Any, Row]]
    number: Callable[[Entry], float] | None = None
    wants_name: Callable[[str], bool] | None = None
    wants: Callable[[Entry], bool] | None = None
    step: int | None = None


def page_of(listing: Listing[Entry, Row], query: PageQuery) -> Generator[Any, Any, Page[Row]]:
    """Make a page, in steps. Raises Refused: BAD_ARGUMENT."""
    by_name = listing.number is None
    after = None if query.after is None else _key_from(query.after, by_name=by_name)
    best: list[Key] = []
    bound: Key | None = None  # what comes behind it is not on the page
    total = 0
    names = iter(list(listing.names))  # milliseconds for a hundred thousand: a step of its own
    yield None
    while some := list(islice(names, listing.step or STEP_ENTRIES)):
        found, count = _keys(listing, some, query.prefix, after, bound)
        total += count
        if found:
            best = sorted(best + found)[: query.limit + 1]
            if len(best) > query.limit:
                bound = best[-1]
        yield None
    rows: list[Row] = []
    for key in best[: query.limit]:
        entry = listing.find(key[-1])
        if entry is not None:  # else it went meanwhile
            row = listing.row(key[-1], entry)
            rows.append((yield from row) if isinstance(row, Generator) else row)
        yield None
    more = len(best) > query.limit
    return Page(items=rows, next=_text_of(best[query.limit - 1]) if more else None, total=total)


def _keys(
    listing: Listing[Entry, Row],
    names: Sequence[str],
    prefix: str,
    after: Key | None,
    bound: Key | None,
) -> tuple[list[Key], int]:
    """Keys of what may be on the page, and how many names pass the filters."""
    if prefix:
        names = [name for name in names if name.startswith(prefix)]
    if listing.wants_name is not None:
        names = [name for name in names if listing.wants_name(name)]
    find, wants, number = listing.find, listing.wants, listing.number
    if wants is not None:
        names = [name for name in names if (it := find(name)) is not None and wants(it)]
    count = len(names)
    if number is None:
        if after is not None:
            least = after[0]
            names = [name for name in names if name > least]
        if bound is not None:
            most = bound[0]
            names = [name for name in names if name < most]
        return [(name,) for name in names], count
    keys: list[Key]
    if bound is None:
        keys = [(-number(it), name) for name in names if (it := find(name)) is not None]
    else:
        worst = bound[0]  # most numbers are worse: they cost no tuple
        keys = [
            (least, name)
            for name in names
            if (found := find(name)) is not None and (least := -number(found)) <= worst
        ]
        keys = [key for key in keys if key < bound]
    if after is not None:
        keys = [key for key in keys if key > after]
    return keys, count


def _text_of(key: Key) -> str:
    return " ".join([*(f"{-number!r}" for number in key[:-1]), key[-1]])


def _key_from(text: str, *, by_name: bool) -> Key:
    if by_name:
        return (text,)
    number, space, name = text.partition(" ")
    try:
        if space:
            return (-float(number), name)
    except ValueError:
        pass
    raise Refused(Reason.BAD_ARGUMENT, "after has to be the text `next` of a page of this list")
