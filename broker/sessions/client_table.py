"""Sessions by client identifier, which can be walked in the order of these while they change.

Theory. An operator pages through ten thousand sessions while clients come and go. A page begins
behind the last identifier of the page before it, so it needs the identifiers in order. They are
kept in order (`topics/sorted_names.py`). That costs a client that comes or goes three microseconds;
to sort them for each page would stop the loop for milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from polymq.broker.topics.sorted_names import SortedNames

Value = TypeVar("Value")


class ClientTable(dict[str, Value]):
    """A dictionary by client identifier.

    Only the ways of changing it that are defined here keep the order: use no others.
    """

    def __init__(self) -> None:
        super().__init__()
        self._names: SortedNames[str] = SortedNames()

    def __setitem__(self, client_id: str, value: Value) -> None:
        if client_id not in self:
            self._names.add(client_id)
        super().__setitem__(client_id, value)

    def __delitem__(self, client_id: str) -> None:
        super().__delitem__(client_id)
        self._names.remove(client_id)

    def clear(self) -> None:
        """Remove all."""
        super().clear()
        self._names = SortedNames()

    def walk(self, prefix: str = "", behind: str | None = None) -> Iterator[str]:
        """The identifiers in their order, by code points.

        The table may change meanwhile. One that is there all the time is met exactly once.

        Args:
            prefix: only of identifiers that begin with it.
            behind: begin with the first identifier greater than this one, which need not be there.
        """
        for client_id in self._names.below(prefix, behind):
            if client_id in self:
                yield client_id
