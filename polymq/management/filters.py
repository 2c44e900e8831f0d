"""The filter of lists by name: a part of the name, or a regular expression. Pure.

A regular expression of a client may take for ever on a name that it does not match. So what may
repeat without end may stand in it twice, not within each other, and groups may not be referred to.
That is enough for what people look for, and keeps one name below some milliseconds.
"""

from __future__ import annotations

import re
from typing import Any, Final

from polymq.management.errors import bad

PATTERN_CHARACTERS_MAX: Final = 1_000
REPEATS_MAX: Final = 2
"""What may be repeated without a small bound."""
SMALL_REPEAT: Final = 8
"""Repetitions up to this number cost little."""

# The module that `re` itself parses with has no public name.
_parser: Any = vars(re)["_parser"]
_constants: Any = vars(re)["_constants"]
_REPEATS: Final = {"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"}
_REFUSED: Final = {"GROUPREF", "GROUPREF_EXISTS", "ASSERT", "ASSERT_NOT"}


class Matcher:
    """Whether a name passes.

    Attributes:
        is_slow: one name may take a good part of a step.
    """

    def __init__(self, text: str, pattern: re.Pattern[str] | None) -> None:
        self._text = text
        self._pattern = pattern
        self.is_slow = pattern is not None

    def __call__(self, name: str) -> bool:
        if self._pattern is not None:
            return self._pattern.search(name) is not None
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
    if _repeats(parsed, within=False) > REPEATS_MAX:
        raise bad(
            f"the regular expression {text!r} could take too long: use *, + and {{n,}} at most "
            f"{REPEATS_MAX} times"
        )
    return Matcher("", pattern)


def _repeats(parsed: Any, *, within: bool) -> int:
    """How many parts may be repeated without a small bound. Raises Problem: one is in another, or
    something is used that can take long."""
    count = 0
    for operation, argument in parsed:
        name = str(operation)
        if name in _REFUSED:
            raise bad("a regular expression may not refer to its groups, nor look around")
        is_repeat = name in _REPEATS
        is_large = is_repeat and argument[1] > SMALL_REPEAT
        if is_repeat and within:
            raise bad("a regular expression may not repeat what is repeated already")
        count += is_large
        for inner in _inside(name, argument):
            count += _repeats(inner, within=within or is_repeat)
    return count


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
