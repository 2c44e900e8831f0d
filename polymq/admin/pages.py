"""Lists that come in pages, filtered and sorted here and not at the client.

Theory of a page: all candidates are looked at in steps, with the loop's other work in between, and
only the best of them are remembered, one more than a page has. A page ends with the key of its last
entry, as a text (`next`). The following page has what sorts behind
that key. Nothing is stored between two requests, so a list that changes meanwhile is never wrong by
more than what changed: an entry whose number changed may be seen twice or not at all, one that is
sorted by name neither.

Costs: a step looks at STEP_ENTRIES names or entries. A list by name without filters compares texts
only. Of a table that keeps its names in order (`walk`), it looks at those of the page only. A list
by number or with filters looks at the entries themselves, and makes names of those alone that may
be on the page: looking up a hundred thousand names costs more than all numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from itertools import compress, islice
from operator import itemgetter
from typing import Annotated, Any, Final, Generic, TypeVar

import msgspec

from polymq.admin.operations import Given, Value
from polymq.broker.errors import Reason, Refused
from polymq.steps import stretches

PAGE_DEFAULT: Final = 100
PAGE_MAX: Final = 500
STEP_ENTRIES: Final = 1_000
"""Entries that are looked at in one step: below a millisecond for names, some for numbers."""

Key = tuple[Any, ...]
Entry = TypeVar("Entry")
Row = TypeVar("Row")
Candidate = tuple[Key, Any]
"""What may be on the page: its key, and its entry if that has been looked at."""
Numbers = Callable[[Sequence[Entry]], Generator[Any, Any, Sequence[float]]]


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
        names: all names, as they are when the list is asked for. With `entries`, only lists by name
            without filters need them.
        find: the entry of a name; None: it went meanwhile. A list without `find` shows its entries
            as they are.
        row: what is shown of it; may be a generator that returns it, whose steps are made.
        entries: all entries, in stretches of which each is looked at in one step.
        names_of: the names of some of these.
        numbers: of some entries, in steps: by them the list is sorted, the largest first. None: it
            is sorted by name.
        wants_name: whether a name passes the filters; None: all do.
        wants: whether an entry passes the filters; None: all do.
        walk: the names in their order, that begin with a text and sort behind another one; for
            tables that keep this order. A list by name without filters then looks at no more than
            it shows, and `names` has a length.
    """

    row: Callable[[str, Entry], Row | Generator[Any, Any, Row]]
    names: Iterable[str] = ()
    find: Callable[[str], Entry | None] | None = None
    entries: Iterable[Sequence[Entry]] | None = None
    names_of: Callable[[Sequence[Entry]], Sequence[str]] | None = None
    numbers: Numbers[Entry] | None = None
    wants_name: Callable[[str], bool] | None = None
    wants: Callable[[Entry], bool] | None = None
    walk: Callable[[str, str | None], Iterator[str]] | None = None


def each(number: Callable[[Entry], float]) -> Numbers[Entry]:
    """The numbers of a stretch, where each costs less than a microsecond."""

    def numbers(entries: Sequence[Entry]) -> Generator[None, None, Sequence[float]]:
        found = list(map(number, entries))
        yield
        return found

    return numbers


def values_of(table: Mapping[str, Entry]) -> Iterator[Sequence[Entry]]:
    """The entries of a table, in stretches."""
    yield from stretches(list(table.values()), STEP_ENTRIES)


def page_of(listing: Listing[Entry, Row], query: PageQuery) -> Generator[Any, Any, Page[Row]]:
    """Make a page, in steps. Raises Refused: BAD_ARGUMENT."""
    by_name = listing.numbers is None and listing.wants is None and listing.wants_name is None
    if listing.walk is not None and by_name:
        best, total = yield from _walked(listing.walk, listing.names, query)
    else:
        best, total = yield from _looked_at(listing, query)
    rows: list[Row] = []
    for key, entry in best[: query.limit]:
        if listing.find is not None:
            entry = listing.find(key[-1])
        if entry is not None:  # else it went meanwhile
            row = listing.row(key[-1], entry)
            rows.append((yield from row) if isinstance(row, Generator) else row)
        yield None
    more = len(best) > query.limit
    return Page(items=rows, next=_text_of(best[query.limit - 1][0]) if more else None, total=total)


def _walked(
    walk: Callable[[str, str | None], Iterator[str]], names: Iterable[str], query: PageQuery
) -> Generator[Any, Any, tuple[list[Candidate], int]]:
    """What is on the page and one entry more, and the number of all, from a table in order."""
    first = islice(walk(query.prefix, query.after), query.limit + 1)
    best: list[Candidate] = [((name,), None) for name in first]
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
) -> Generator[Any, Any, tuple[list[Candidate], int]]:
    """The same, from all entries."""
    by_name = listing.numbers is None
    after = None if query.after is None else _key_from(query.after, by_name=by_name)
    best: list[Candidate] = []
    bound: Key | None = None  # what comes behind it is not on the page
    total = 0
    for names, entries in _passing(listing, query.prefix):
        yield None
        total += len(entries if names is None else names)
        found: list[Candidate]
        if listing.numbers is None:
            found = _by_name(listing, names, entries, after, bound)
        else:
            numbers = yield from listing.numbers(entries)
            found = _by_number(listing, numbers, names, entries, after, bound)
        if found:
            best = sorted(best + found, key=itemgetter(0))[: query.limit + 1]
            if len(best) > query.limit:
                bound = best[-1][0]
    yield None
    return best, total


def _passing(
    listing: Listing[Entry, Row], prefix: str
) -> Iterator[tuple[Sequence[str] | None, Sequence[Entry]]]:
    """The names and entries that pass the filters, in stretches. Names are None where nobody has
    asked for them yet; entries are left out where only names are looked at."""
    needs_entries = listing.numbers is not None or listing.wants is not None
    find, wants, names_of = listing.find, listing.wants, listing.names_of
    if listing.entries is not None and (needs_entries or find is None):
        for entries in listing.entries:
            if prefix or listing.wants_name is not None:
                assert names_of is not None
                named = zip(names_of(entries), entries, strict=True)
                entries = [one for name, one in named if _wants_name(listing, name, prefix)]
            yield None, entries if wants is None else [one for one in entries if wants(one)]
        return
    assert find is not None
    # The list of a hundred thousand names takes milliseconds: who asks makes it a step of its own.
    for names in stretches(list(listing.names), STEP_ENTRIES):
        if prefix or listing.wants_name is not None:
            names = [name for name in names if _wants_name(listing, name, prefix)]
        if not needs_entries:
            yield names, ()
            continue
        pairs = [
            (name, entry)
            for name in names
            if (entry := find(name)) is not None and (wants is None or wants(entry))
        ]
        yield [name for name, _ in pairs], [entry for _, entry in pairs]


def _wants_name(listing: Listing[Entry, Row], name: str, prefix: str) -> bool:
    return name.startswith(prefix) and (listing.wants_name is None or listing.wants_name(name))


def _by_name(
    listing: Listing[Entry, Row],
    names: Sequence[str] | None,
    entries: Sequence[Entry],
    after: Key | None,
    bound: Key | None,
) -> list[Candidate]:
    """What of a stretch may be on a page that is sorted by name."""
    least, most = "" if after is None else after[0], None if bound is None else bound[0]
    if names is None:
        assert listing.names_of is not None
        named = zip(listing.names_of(entries), entries, strict=True)
        return [
            ((name,), entry)
            for name, entry in named
            if (after is None or name > least) and (most is None or name < most)
        ]
    if after is not None:
        names = [name for name in names if name > least]
    if most is not None:
        names = [name for name in names if name < most]
    return [((name,), None) for name in names]


def _by_number(
    listing: Listing[Entry, Row],
    numbers: Sequence[float],
    names: Sequence[str] | None,
    entries: Sequence[Entry],
    after: Key | None,
    bound: Key | None,
) -> list[Candidate]:
    """The same of one that is sorted by a number, the largest first. Where very many have the same
    number, their names decide, so nothing is made of an entry before its name is compared."""
    least, last = (None, "") if bound is None else (-bound[0], bound[1])
    most, first = (None, "") if after is None else (-after[0], after[1])
    chosen: list[bool] | None = None
    if numbers and least is not None and min(numbers) < least:
        chosen = [number >= least for number in numbers]
    elif numbers and most is not None and max(numbers) > most:
        chosen = [number <= most for number in numbers]
    if chosen is not None:
        numbers, entries = list(compress(numbers, chosen)), list(compress(entries, chosen))
        names = None if names is None else list(compress(names, chosen))
    if names is None:
        assert listing.names_of is not None
        names = listing.names_of(entries)
    return [
        ((-number, name), entry)
        for number, name, entry in zip(numbers, names, entries, strict=True)
        if (least is None or number > least or (name < last and number == least))
        and (most is None or number < most or (name > first and number == most))
    ]


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
