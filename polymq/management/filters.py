"""The filter of lists by name: a part of the name, or a regular expression. Pure.

A regular expression of a client may take for ever on a name that it does not match, because
Python tries every way in which its parts could share the name. So the ways are counted before:

* What may repeat without end may stand in it twice, and what repeats has neither alternatives nor
  repetitions in it. Groups may not be referred to, and nothing may look around.
* All other alternatives and repetitions multiply the ways, whatever the name is.
* Of a long name as much is compared as keeps the ways below WAYS_MAX. That is some ten
  milliseconds. An expression of which this would be too little is refused.
"""

from __future__ import annotations

import math
import re
from typing import Any, Final, NamedTuple

from polymq.management.errors import bad

PATTERN_CHARACTERS_MAX: Final = 1_000
REPEATS_MAX: Final = 2
"""What may be repeated without a small bound."""
SMALL_REPEAT: Final = 8
"""Repetitions up to this number are alternatives: each of them is a way."""
WAYS_MAX: Final = 700_000
"""Ways in which the parts of an expression may share one name, at most."""
COMPARED_MAX: Final = 4_096
"""Characters of a name that are compared, at most."""
COMPARED_MIN: Final = 64
"""Characters that have to be."""

# The module that `re` itself parses with has no public name.
_parser: Any = vars(re)["_parser"]
_constants: Any = vars(re)["_constants"]
_REPEATS: Final = {"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"}
_REFUSED: Final = {"GROUPREF", "GROUPREF_EXISTS", "ASSERT", "ASSERT_NOT"}


class Matcher:
    """Whether a name passes.

    Args:
        compared: so many characters of a name are compared with the expression.

    Attributes:
        is_slow: one name may take a good part of a step.
    """

    def __init__(self, text: str, pattern: re.Pattern[str] | None, compared: int = 0) -> None:
        self._text = text
        self._pattern = pattern
        self._compared = compared
        self.is_slow = pattern is not None

    def __call__(self, name: str) -> bool:
        if self._pattern is not None:
            return self._pattern.search(name, 0, self._compared) is not None
        return self._text in name.lower()


def matcher_of(text: str, *, is_regex: bool) -> Matcher | None:
    """The filter of a request; None: everything passes. Raises Problem."""
    if not text:
        return None
    if not is_regex:
        return Matcher(text.lower(), None)
    if len(text) > PATTERN_CHARACTERS_MAX:
        raise bad(f"a regular expression has at most {PATTERN_CHARACTERS_MAX} characters")
    try:
        parsed = _parser.parse(text, re.IGNORECASE)
        pattern = re.compile(text, re.IGNORECASE)
    except (re.error, OverflowError, RecursionError) as error:
        raise bad(f"{text!r} is not a regular expression: {error}") from None
    cost = _cost_of(parsed)
    compared = _compared(cost, is_anchored=_is_anchored(parsed))
    if cost.repeats > REPEATS_MAX or compared < COMPARED_MIN:
        raise bad(
            f"the regular expression {text!r} could take too long: use *, + and {{n,}} at most "
            f"{REPEATS_MAX} times, and fewer alternatives"
        )
    return Matcher("", pattern, compared)


class _Cost(NamedTuple):
    """What an expression may cost at one character of a name.

    Attributes:
        repeats: parts that may be repeated without a small bound.
        ways: in which all others may match.
    """

    repeats: int
    ways: int


def _compared(cost: _Cost, *, is_anchored: bool) -> int:
    """How many characters of a name can be compared within WAYS_MAX: each repetition may end at
    any of them, in this order, and so may what stands before the first."""
    choices = cost.repeats + (not is_anchored)
    most = WAYS_MAX * math.factorial(choices) / cost.ways
    return min(COMPARED_MAX, int(most ** (1 / choices) if choices else most))


def _is_anchored(parsed: Any) -> bool:
    """Whether an expression can match at the beginning of a name only."""
    operation, argument = parsed[0] if len(parsed) else ("", "")
    return str(operation) == "AT" and str(argument) in ("AT_BEGINNING", "AT_BEGINNING_STRING")


def _cost_of(parsed: Any) -> _Cost:
    """What an expression may cost. Raises Problem: it could take for ever."""
    repeats, ways = 0, 1
    for operation, argument in parsed:
        name = str(operation)
        if name in _REFUSED:
            raise bad("a regular expression may not refer to its groups, nor look around")
        inner = [_cost_of(one) for one in _inside(name, argument)]
        if name in _REPEATS:
            if inner != [_Cost(0, 1)]:
                raise bad(
                    "a regular expression may not repeat what has alternatives or repetitions"
                )
            least, most = argument[0], argument[1]
            is_large = most > SMALL_REPEAT
            inner = [_Cost(1, 1) if is_large else _Cost(0, most - least + 1)]
        repeats += sum(one.repeats for one in inner)
        ways *= sum(one.ways for one in inner) or 1
    return _Cost(repeats, min(ways, WAYS_MAX + 1))


def _inside(name: str, argument: Any) -> list[Any]:
    """The parts of an operation that are expressions themselves."""
    if name in _REPEATS:
        return [argument[2]]
    if name == "SUBPATTERN":
        return [argument[3]]
    if name == "ATOMIC_GROUP":
        return [argument]
    if name == "BRANCH":
        return list(argument[1])
    return []
