"""The bindings of a queue, kept in little room.

Nearly every queue is bound to the default exchange by its name, and to nothing else: that binding
is a flag at the queue, and costs no tuples, no dictionary and no object. Whoever asks for the
bindings of a queue gets a view that looks like a dictionary of all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from typing import Protocol

from polymq.broker.port.values import Address

BindingKey = tuple[str, str, str]
"""Exchange, routing key, arguments as canonical text (`entities.binding_key`)."""


class Bound(Protocol):
    """What has bindings. Only `Bindings` looks at these.

    Attributes:
        bound_by_name: whether it is bound to the default exchange by its name.
        bound_more: all its other bindings; None for none.
    """

    bound_by_name: bool
    bound_more: dict[BindingKey, Address] | None

    @property
    def name(self) -> str:
        """The queue's name."""


class Bindings(MutableMapping[BindingKey, Address]):
    """The bindings of one queue, seen as a dictionary: their patterns by key, the one by its name
    first, the others in the order of their making."""

    __slots__ = ("_of",)

    def __init__(self, of: Bound) -> None:
        self._of = of

    def _is_default(self, key: BindingKey, address: Address | None = None) -> bool:
        name = self._of.name
        return key == ("", name, "{}") and address in (None, (name,))

    def __getitem__(self, key: BindingKey) -> Address:
        of = self._of
        if of.bound_by_name and self._is_default(key):
            return (of.name,)
        if of.bound_more is None:
            raise KeyError(key)
        return of.bound_more[key]

    def __setitem__(self, key: BindingKey, address: Address) -> None:
        of = self._of
        if self._is_default(key, address):
            of.bound_by_name = True
            if of.bound_more is not None:
                of.bound_more.pop(key, None)
            return
        if self._is_default(key):  # a named subscription's pattern
            of.bound_by_name = False
        if of.bound_more is None:
            of.bound_more = {}
        of.bound_more[key] = address

    def __delitem__(self, key: BindingKey) -> None:
        of = self._of
        if of.bound_by_name and self._is_default(key):
            of.bound_by_name = False
            return
        if of.bound_more is None:
            raise KeyError(key)
        del of.bound_more[key]

    def __iter__(self) -> Iterator[BindingKey]:
        if self._of.bound_by_name:
            yield ("", self._of.name, "{}")
        yield from self._of.bound_more or ()

    def __len__(self) -> int:
        return self._of.bound_by_name + len(self._of.bound_more or ())

    def pairs(self) -> list[tuple[BindingKey, Address]]:
        """All keys with their patterns, as a list of this moment: the binding by its name first."""
        pairs = list((self._of.bound_more or {}).items())
        if self._of.bound_by_name:
            pairs.insert(0, (("", self._of.name, "{}"), (self._of.name,)))
        return pairs

    @property
    def by_name(self) -> bool:
        """Whether the queue is bound to the default exchange by its name."""
        return self._of.bound_by_name

    def chosen(self) -> Sequence[BindingKey]:
        """The keys of those that somebody chose: all but the one to the default exchange."""
        return tuple(key for key in self._of.bound_more or () if key[0])
