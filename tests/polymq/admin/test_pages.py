"""Pages of long lists: what is on a page, and in how many steps it is made. How long the steps take
is measured, not tested: it is the machine's."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from operator import attrgetter
from typing import Any, NamedTuple

import pytest

from polymq.admin.pages import STEP_ENTRIES, Listing, Page, PageQuery, each, page_of
from polymq.broker.port import Reason, Refused
from polymq.steps import stretches

COUNT = 7_000


def table() -> dict[str, int]:
    """Names in no order, and numbers of which many are equal."""
    return {f"q{n * 1009 % COUNT:04}": n % 10 for n in range(COUNT)}


def finished(steps: Generator[Any, Any, Page[str]]) -> tuple[Page[str], int]:
    """What the steps lead to, and how many there were."""
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value, count
        count += 1


def page(
    entries: dict[str, int], query: PageQuery, *, by_number: bool = False, **filters: Any
) -> tuple[Page[str], int]:
    numbers = each(float) if by_number else None
    listing = Listing(
        names=entries, find=entries.get, row=lambda name, _: name, numbers=numbers, **filters
    )
    return finished(page_of(listing, query))


class Entry(NamedTuple):
    """What a list of entries has, of which each knows its name."""

    name: str
    number: float


def page_of_entries(
    entries: list[Entry], query: PageQuery, *, by_number: bool, **filters: Any
) -> tuple[Page[str], int]:
    """The same where entries are looked at, in stretches, and no name is looked up."""
    listing: Listing[Entry, str] = Listing(
        entries=stretches(entries, STEP_ENTRIES),
        names_of=lambda some: [entry.name for entry in some],
        row=lambda name, entry: f"{name} {entry.number}",
        numbers=each(attrgetter("number")) if by_number else None,
        **filters,
    )
    return finished(page_of(listing, query))


def all_pages(turn: Callable[[str | None], Page[str]]) -> list[str]:
    """What is on all pages."""
    shown: list[str] = []
    after = None
    while len(shown) <= COUNT:  # a page that goes back would have no end
        got = turn(after)
        shown += got.items
        after = got.next
        if after is None:
            break
    return shown


@pytest.mark.parametrize("by_number", [False, True])
@pytest.mark.parametrize("equal", [False, True])
def test_pages_of_entries(by_number: bool, equal: bool) -> None:
    """Each comes once, also where all have the same number, as idle queues have."""
    entries = [Entry(name, 0 if equal else number) for name, number in table().items()]
    in_order = sorted(entries, key=lambda entry: (-entry.number if by_number else 0, entry.name))
    for wanted in (in_order, [entry for entry in in_order if entry.name.endswith("7")]):
        wants = None if wanted is in_order else lambda entry: entry.name.endswith("7")

        def turn(after: str | None, wants: Any = wants, wanted: list[Entry] = wanted) -> Page[str]:
            query = PageQuery(limit=300, after=after)
            got, steps = page_of_entries(entries, query, by_number=by_number, wants=wants)
            assert (got.total, steps >= COUNT // STEP_ENTRIES) == (len(wanted), True)
            return got

        assert all_pages(turn) == [f"{entry.name} {entry.number}" for entry in wanted]
    got, _ = page_of_entries(entries, PageQuery(limit=2, prefix="q000"), by_number=by_number)
    assert got.total == 10


@pytest.mark.parametrize("by_number", [False, True])
def test_all_pages_show_each_entry_once(by_number: bool) -> None:
    entries = table()

    def turn(after: str | None) -> Page[str]:
        got, steps = page(entries, PageQuery(limit=500, after=after), by_number=by_number)
        assert got.total == COUNT
        assert steps >= COUNT // STEP_ENTRIES, "no step looks at very many"
        return got

    expected = sorted(entries)
    if by_number:
        expected = sorted(entries, key=lambda name: (-entries[name], name))
    assert all_pages(turn) == expected


def test_filters_come_before_the_page() -> None:
    """The total is that of what passes them."""
    entries = table()
    got, _ = page(entries, PageQuery(limit=2, prefix="q000"))
    assert (got.items, got.next, got.total) == (["q0000", "q0001"], "q0001", 10)
    got, _ = page(entries, PageQuery(limit=2), wants_name=lambda name: name.endswith("99"))
    assert (got.items, got.total) == (["q0099", "q0199"], 70)
    got, _ = page(entries, PageQuery(limit=1), wants=lambda number: number == 3, by_number=True)
    assert (got.total, got.next) == (700, f"3.0 {got.items[0]}")


def test_entries_that_go_meanwhile_are_left_out() -> None:
    entries = {"a1": 1, "a2": 1, "a3": 1}
    steps = page_of(
        Listing(names=entries, find=entries.get, row=lambda name, _: name), PageQuery(limit=2)
    )
    next(steps)  # all are looked at, and none is shown yet
    entries.clear()
    got, _ = finished(steps)
    assert (got.items, got.next) == ([], "a2")


@pytest.mark.parametrize("after", ["", "q", "x q", "1"])
def test_a_wrong_place(after: str) -> None:
    with pytest.raises(Refused, match="`next` of a page") as refused:
        page(table(), PageQuery(after=after), by_number=True)
    assert refused.value.reason is Reason.BAD_ARGUMENT


def test_a_table_in_order_is_looked_at_for_the_page_only() -> None:
    """Its pages are those of any other table; the names that begin with a text are counted."""
    entries = table()
    in_order = sorted(entries)
    looked_at: list[str] = []

    def walk(prefix: str, behind: str | None) -> Iterator[str]:
        for name in in_order:
            if name.startswith(prefix) and (behind is None or name > behind):
                looked_at.append(name)
                yield name

    for query in (
        PageQuery(limit=3),
        PageQuery(limit=3, after="q0500"),
        PageQuery(limit=3, after="q0500x"),
        PageQuery(limit=500, after="q6900"),
        PageQuery(limit=3, prefix="q07", after="q0797"),
        PageQuery(limit=3, prefix="x"),
    ):
        looked_at.clear()
        got, _ = page(entries, query, walk=walk)
        assert len(looked_at) <= query.limit + 1 or query.prefix
        assert got == page(entries, query)[0]
    by_number = page(entries, PageQuery(limit=3), by_number=True, walk=walk)[0]
    assert by_number == page(entries, PageQuery(limit=3), by_number=True)[0]
    some = page(entries, PageQuery(limit=3), wants=lambda number: number == 3, walk=walk)[0]
    assert some.total == COUNT / 10
