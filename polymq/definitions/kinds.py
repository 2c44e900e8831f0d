"""What is done with one kind of definitions, as data: where they are, what of them can change, and
how one is made.

How a definition is compared is the same for all kinds. The definition that says what there is has
the same type as the wanted one, and both are compared member by member. Members of LEFT_ALONE that
the wanted one has not are not compared (`models.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from polymq.broker.port import Position
from polymq.definitions.models import LEFT_ALONE, Definition

D = TypeVar("D", bound=Definition)


class Need(NamedTuple):
    """Something that a definition refers to.

    Attributes:
        topic: the topic of the document that is as good as it; None: no topic is.
    """

    section: str
    name: str
    topic: str | None = None


def nothing(_definition: object) -> Iterable[Need]:
    """The definition refers to nothing."""
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind(Generic[D]):
    """One section of a document.

    Attributes:
        model: the type of its definitions.
        name: what a definition is called, also where others refer to it.
        everything: all that there are, in an order that does not depend on how they came; None
            where it needs a pause.
        find: the definition of what is there under the name of this one; None: nothing is.
        check: whether there can be such a thing; returns the definition as `find` would give it:
            with defaults filled in, and lists in their order. Raises Refused.
        put: makes it, or lets what is there (the second argument) become so. Raises Refused.
        changing: members that `put` can change.
        needs: what it refers to.
        exists: whether something of this name is there, for those that refer to it.
    """

    section: str
    model: type[D]
    name: Callable[[D], str]
    everything: Callable[[], Iterator[D | None]]
    find: Callable[[D], D | None]
    check: Callable[[D], D]
    put: Callable[[D, D | None], Awaitable[Position]]
    changing: frozenset[str] = frozenset()
    needs: Callable[[D], Iterable[Need]] = nothing
    exists: Callable[[str], bool] = lambda name: False


AnyKind = Kind[Any]


def differing(wanted: Definition, current: Definition) -> list[str]:
    """The members that are others in the wanted definition."""
    if wanted == current:
        return []
    return [
        name
        for name in wanted.__struct_fields__
        if (value := getattr(wanted, name)) != getattr(current, name)
        and not (value is None and name in LEFT_ALONE)
    ]
