"""What the answers of services have in common. Pure.

An answer is a JSON object whose `result` is `allow`, `deny`, or `ignore`.

Rule: an answer that is not exactly what it should be decides nothing, and so does one with a field
that is not known: it may be a misspelt one.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Collection
from typing import Any, Final

_SHOWN_MAX: Final = 60


class Result(enum.Enum):
    """What a service decides."""

    ALLOW = "allow"
    DENY = "deny"
    IGNORE = "ignore"


class BadAnswer(ValueError):
    """Not an answer; the text says what is wrong, for the log."""


def parse_result(content: bytes, fields: Collection[str]) -> tuple[Result, dict[str, Any]]:
    """The result of an answer, and all of it.

    Args:
        fields: those that it may have beside `result`.

    Raises:
        BadAnswer: it is none.
    """
    try:
        value = json.loads(content.decode("utf-8"), object_pairs_hook=_object)
    except BadAnswer:
        raise
    except (ValueError, RecursionError) as error:
        raise BadAnswer("it is not JSON in UTF-8") from error
    if not isinstance(value, dict):
        raise BadAnswer("it is no object")
    unknown = value.keys() - {"result", *fields}
    if unknown:
        raise BadAnswer(f"it has a field {shown(min(unknown))}, which is not known")
    try:
        return Result(value.get("result")), value
    except ValueError:
        text = shown(value.get("result"))
        raise BadAnswer(f"result is one of allow, deny and ignore, and not {text}") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object. Raises BadAnswer: which of two fields of a name counts is anybody's guess."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise BadAnswer(f"it has a field {shown(name)} twice")
        found[name] = value
    return found


def shown(value: Any) -> str:
    """A value of an answer, cut to what a line of the log has room for."""
    text = repr(value)
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}..."
