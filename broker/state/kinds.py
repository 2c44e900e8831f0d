"""What the state of an engine consists of: kinds of rows, each said by the part that owns it.

A row is an entity as a JSON value, under a kind and a key. `state.db` and the snapshots in the log
hold rows; `recovery/fold.py` makes them and loads them. A part of the engine adds a kind by one
more entry in what its `state_kinds` returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class StateKind:
    """One kind of rows.

    Attributes:
        name: what rows of this kind are stored under.
        row: the row of a key; None if there is no such entity any more.
        load: takes all rows (key, value) of this kind at a start. Kinds that they refer to were
            loaded before.
    """

    name: str
    row: Callable[[str], object]
    load: Callable[[Iterable[tuple[str, Any]]], None]


def each(load: Callable[[str, Any], None]) -> Callable[[Iterable[tuple[str, Any]]], None]:
    """`StateKind.load` by a function that takes one row."""

    def load_all(rows: Iterable[tuple[str, Any]]) -> None:
        for key, value in rows:
            load(key, value)

    return load_all


def single(
    name: str, row: Callable[[], object], load: Callable[[Any], None]
) -> tuple[StateKind, ...]:
    """The kind of a part that has one row, whatever its key."""
    return (StateKind(name, lambda _: row(), each(lambda _, value: load(value))),)
