"""What a headers exchange compares: a binding's arguments with a message's headers. Pure.

A binding says in `x-match` how: `all` (as without it) or `any` of its arguments have to be among
the message's headers. These two pass over arguments whose names begin with `x-`; `all-with-x` and
`any-with-x` compare them, too. `x-match` itself is never compared. An argument without a value
(void) asks only whether there is such a header.

Values are compared by class and value: integers of any width are one class, and so are the two
floats; `"1"` is not `1`, and `true` is not `1`. A time stamp is an integer with a class of its own.

Source: RabbitMQ's documentation of the headers exchange and of what AMQP 0-9-1, 3.1.3.4, leaves
open.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

from polymq.broker.errors import Reason, Refused

MATCH: Final = "x-match"
MODES: Final = ("all", "any", "all-with-x", "any-with-x")
VALUES_MAX: Final = 256
"""Arguments of one binding: it is looked through for each new table of headers."""

_PREFIX: Final = "match:"
_VOID: Final = ["V"]

Tagged = list[Any]
"""A value of a table as JSON that is equal for equal values: its class, and the value."""


def tagged(value: object) -> Tagged:
    """The value with its class. A subclass of int that is no bool is a time stamp."""
    match value:
        case None:
            return ["V"]
        case bool():
            return ["t", value]
        case int():
            return ["i" if type(value) is int else "T", int(value)]
        case float():
            return ["d", value]
        case Decimal():
            return ["D", str(value.normalize())]
        case str():
            return ["S", value]
        case bytes() | bytearray():
            return ["x", base64.b64encode(value).decode("ascii")]
        case Mapping():
            return ["F", sorted([str(name), tagged(item)] for name, item in value.items())]
        case list() | tuple():
            return ["A", [tagged(item) for item in value]]
    raise ValueError(f"{type(value).__name__} has no class in a table")


class Moment(int):
    """A time stamp, which is no other number: seconds since the epoch."""

    __slots__ = ()


def untagged(value: Tagged) -> Any:
    """The value that `tagged` was given: equal to it, and of the same class."""
    kind, *rest = value
    match kind:
        case "V":
            return None
        case "T":
            return Moment(rest[0])
        case "D":
            return Decimal(rest[0])
        case "x":
            return base64.b64decode(rest[0])
        case "F":
            return {name: untagged(item) for name, item in rest[0]}
        case "A":
            return [untagged(item) for item in rest[0]]
    return rest[0]


class HeaderPattern:
    """The arguments of one binding to a headers exchange.

    Args:
        wanted: the arguments by name, as `tagged` has them, without `x-match`.

    Attributes:
        needs_all: whether all of `wanted` have to be there, or any of it.
        wanted: the arguments that are compared.
    """

    __slots__ = ("mode", "needs_all", "wanted")

    def __init__(self, mode: str, wanted: Mapping[str, Tagged]) -> None:
        self.mode = mode
        self.needs_all = mode.startswith("all")
        with_x = mode.endswith("-with-x")
        self.wanted = {
            name: value for name, value in wanted.items() if with_x or not name.startswith("x-")
        }

    def matches(self, headers: Mapping[str, Tagged]) -> bool:
        """Whether a message with these headers (values as `tagged` has them) matches.

        `all` without arguments matches every message, `any` without arguments none.
        """
        needs_all = self.needs_all
        for name, value in self.wanted.items():
            there = headers.get(name)
            if (there is not None and value in (there, _VOID)) is not needs_all:
                return not needs_all
        return needs_all


def pattern_text(arguments: Mapping[str, Any]) -> str:
    """Arguments of a binding as text, which is equal for equal arguments: its key, and what it is
    kept as.

    Raises:
        Refused: BAD_ARGUMENT: an unknown `x-match`, or more arguments than anybody compares.
    """
    mode = arguments.get(MATCH, "all")
    if mode not in MODES:
        raise Refused(
            Reason.BAD_ARGUMENT, f"invalid x-match {mode!r}: use one of {', '.join(MODES)}"
        )
    if len(arguments) > VALUES_MAX:
        raise Refused(
            Reason.BAD_ARGUMENT,
            f"a headers binding has at most {VALUES_MAX} arguments, this one {len(arguments)}",
        )
    wanted = sorted([name, tagged(item)] for name, item in arguments.items() if name != MATCH)
    return _PREFIX + json.dumps([mode, wanted], separators=(",", ":"))


def is_pattern(text: str) -> bool:
    """Whether `pattern_text` made the text, and not another kind of exchange."""
    return text.startswith(_PREFIX)


def pattern_of(text: str) -> HeaderPattern:
    """The pattern that `pattern_text` made the text of."""
    mode, wanted = json.loads(text.removeprefix(_PREFIX))
    return HeaderPattern(mode, dict(wanted))


def tag_headers(headers: Mapping[str, object]) -> dict[str, Tagged]:
    """A message's headers, ready to be compared."""
    return {name: tagged(value) for name, value in headers.items()}
