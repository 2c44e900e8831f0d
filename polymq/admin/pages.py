"""Lists that come in pages, filtered and sorted here and not at the client.

Theory of a page: all candidates are looked at in steps, with the loop's other work in between, and
only the best of them are remembered, one more than a page has. A page ends with the key of its last
entry, as a text (`next`). The following page has what sorts behind
that key. Nothing is stored between two requests, so a list that changes meanwhile is never wrong by
more than what changed: an entry whose number changed may be seen twice or not at all, one that is
sorted by name neither.

Costs: a step looks at STEP_ENTRIES names. Names are compared before anything else is looked up, and
a list by name without filters compares texts only. Of a table that keeps its names in order
(`walk`), it looks at those of the page only.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence, Sized
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
        walk: the names in their order, that begin with a text and sort behind another one; for
            tables that keep this order. A list by name without filters then looks at no more than
            it shows, and `names` has a length.
    """

    names: Iterable[str]
    find: Callable[[str], Entry | None]
    row: Callable[[str, Entry], Row | Generator[Any, Any, Row]]
    number: Callable[[Entry], float] | None = None
    wants_name: Callable[[str], bool] | None = None
    wants: Callable[[Entry], bool] | None = None
    step: int | None = None
    walk: Callable[[str, str | None], Iterator[str]] | None = None


def page_of(listing: Listing[Entry, Row], query: PageQuery) -> Generator[Any, Any, Page[Row]]:
    """Make a page, in steps. Raises Refused: BAD_ARGUMENT."""
    is_plain = listing.number is None and listing.wants is None and listing.wants_name is None
    if listing.walk is not None and is_plain:
        best, total = yield from _walked(listing.walk, listing.names, query)
    else:
        best, total = yield from _looked_at(listing, query)
    rows: list[Row] = []
    for key in best[: query.limit]:
        entry = listing.find(key[-1])
        if entry is not None:  # else it went meanwhile
            row = listing.row(key[-1], entry)
            rows.append((yield from row) if isinstance(row, Generator) else row)
        yield None
    more = len(best) > query.limit
    return Page(items=rows, next=_text_of(best[query.limit - 1]) if more else None, total=total)


def _walked(
    walk: Callable[[str, str | None], Iterator[str]], names: Iterable[str], query: PageQuery
) -> Generator[Any, Any, tuple[list[Key], int]]:
    """The keys of the page and of one entry more, and the number of all, from a table in order."""
    best: list[Key] = [(name,) for name in islice(walk(query.prefix, query.after), query.limit + 1)]
    if not query.prefix:
        assert isinstance(names, Sized)
        return best, len(names)
    total = 0
    matching = walk(query.prefix, None)
    while count := sum(1 for _ in islice(matching, STEP_ENTRIES)):
        total += count
        yield None
    return best, total


def _looked_at(
    listing: Listing[Entry, Row], query: PageQuery
) -> Generator[Any, Any, tuple[list[Key], int]]:
    """The same, from all entries."""
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
    return best, total


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
    there = [entry for entry in map(find, names) if entry is not None]
    if len(there) < len(names):  # some went meanwhile
        names = [name for name in names if find(name) is not None]
    numbers = map(number, there)
    keys: list[Key]
    if bound is None:
        keys = [(-value, name) for value, name in zip(numbers, names, strict=True)]
    else:
        least = -bound[0]  # most numbers are smaller: they cost no tuple
        keys = [
            (-value, name) for value, name in zip(numbers, names, strict=True) if value >= least
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
