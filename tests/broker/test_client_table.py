"""Sessions by client identifier: a dictionary that can be walked in order while it changes."""

from __future__ import annotations

import random

from polymq.broker.sessions.client_table import ClientTable


def filled(count: int) -> ClientTable[int]:
    table: ClientTable[int] = ClientTable()
    numbers = list(range(count))
    random.Random(1).shuffle(numbers)
    for number in numbers:
        table[f"c{number:05}"] = number
    return table


def walked(table: ClientTable[int], prefix: str = "", behind: str | None = None) -> list[int]:
    """The values on the way."""
    return [table[client_id] for client_id in table.walk(prefix, behind)]


def test_a_walk_is_in_order_and_begins_where_the_last_one_ended() -> None:
    table = filled(2_000)
    assert walked(table) == list(range(2_000))
    assert walked(table, behind="c00997") == list(range(998, 2_000))
    assert walked(table, behind="c00997x") == list(range(998, 2_000))
    assert walked(table, "c0099") == list(range(990, 1_000))
    assert walked(table, "c0099", "c00995") == [996, 997, 998, 999]
    assert walked(table, "d") == []
    assert walked(table, "c01", "c00995") == list(range(1_000, 2_000))


def test_it_changes_during_a_walk() -> None:
    """What is there all the time is met once, and what has gone is not met."""
    table = filled(1_000)
    met = []
    for client_id in table.walk():
        value = table[client_id]
        met.append(value)
        if value % 3 == 0 and value + 1 < 1_000:
            del table[f"c{value + 1:05}"]
        table[f"c{value:05}x"] = -1
    assert [value for value in met if value >= 0] == [n for n in range(1_000) if n % 3 != 1]


def test_a_value_is_replaced_and_all_are_removed() -> None:
    table = filled(3)
    table["c00001"] = 7
    assert walked(table) == [0, 7, 2]
    table.clear()
    assert walked(table) == []
    table["c"] = 1
    assert walked(table) == [1]
