"""Pages of long lists: what is on a page, and in how many steps it is made. How long the steps take
is measured, not tested: it is the machine's."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest

from polymq.admin.pages import STEP_ENTRIES, Listing, Page, PageQuery, page_of
from polymq.broker.port import Reason, Refused

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
    number: Callable[[int], float] | None = float if by_number else None
    listing = Listing(
        names=entries, find=entries.get, row=lambda name, _: name, number=number, **filters
    )
    return finished(page_of(listing, query))


@pytest.mark.parametrize("by_number", [False, True])
def test_all_pages_show_each_entry_once(by_number: bool) -> None:
    entries = table()
    shown: list[str] = []
    after = None
    while True:
        got, steps = page(entries, PageQuery(limit=500, after=after), by_number=by_number)
        assert got.total == COUNT
        assert steps >= COUNT // STEP_ENTRIES, "no step looks at very many"
        shown += got.items
        after = got.next
        if after is None:
            break
    expected = sorted(entries)
    if by_number:
        expected = sorted(entries, key=lambda name: (-entries[name], name))
    assert shown == expected


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
