"""Definitions, read one after the other: RabbitMQ's, and our own (`definitions/`). Pure.

A file may have a hundred thousand definitions. Parsed as a whole it would stop the loop, so the
text is walked through, and each definition is parsed by itself, when its turn has come. Until then
it is a text: as many objects would keep the garbage collector busy for longer than anything else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterator, Sequence
from typing import Any, Final

from polymq.management.errors import bad

SECTIONS: Final = (
    "users",
    "vhosts",
    "permissions",
    "topic_permissions",
    "parameters",
    "global_parameters",
    "policies",
    "exchanges",
    "queues",
    "bindings",
)
"""In the order in which they are applied."""
STEP_DEFINITIONS: Final = 100
"""Definitions that are parsed in one step."""

Definitions = dict[str, list[str]]
"""The text of each definition, by section."""

_DECODER: Final = json.JSONDecoder()
_BLANKS: Final = re.compile(r"[ \t\r\n]*")


def read_definitions(
    content: bytes, sections: Sequence[str] = SECTIONS, others: dict[str, Any] | None = None
) -> Generator[None, None, Definitions]:
    """The definitions by section, in steps. Raises Problem: it is no such file.

    Args:
        sections: the lists that are wanted.
        others: gets the values of all other members.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise bad("the definitions have to be JSON in UTF-8") from None
    found: Definitions = {}
    try:
        yield from _read_object(text, found, sections, {} if others is None else others)
    except IndexError:
        raise bad("the definitions have to be a JSON object, and this one has no end") from None
    except RecursionError:
        raise bad("the definitions have to be JSON that is nested less deeply") from None
    except ValueError as error:
        raise bad(f"the definitions have to be a JSON object: {error}") from None
    return found


def value_of(text: str) -> Any:
    """The value of one definition. Raises Problem: its text cannot be stored."""
    value = json.loads(text)
    try:
        # An escape may be half a character, which UTF-8 does not have.
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        shown = text if len(text) <= 100 else f"{text[:100]}..."
        raise bad(f"{shown}: it has an escape that is half a surrogate pair") from None
    return value


def definitions_of(found: Definitions) -> Iterator[tuple[str, Any]]:
    """Section and value of each definition, in the order in which they are applied."""
    for section in SECTIONS:
        for text in found.get(section, ()):
            yield section, value_of(text)


def _read_object(
    text: str, found: Definitions, sections: Sequence[str], others: dict[str, Any]
) -> Generator[None, None, None]:
    at = _expect(text, 0, "{")
    at = _after(text, at)
    while text[at] != "}":
        name, at = _DECODER.raw_decode(text, at)
        at = _after(text, _expect(text, at, ":"))
        if text[at] == "[" and name in sections:
            at = yield from _read_list(text, at, found.setdefault(name, []))
        elif name in sections:
            raise ValueError(f"{name} has to be a list")
        else:
            others[name], at = _DECODER.raw_decode(text, at)
        at = _after(text, at)
        if text[at] == ",":
            at = _after(text, at + 1)
        elif text[at] != "}":
            raise ValueError(f"a comma is missing at character {at}")


def _read_list(text: str, at: int, found: list[str]) -> Generator[None, None, int]:
    at = _after(text, at + 1)
    while text[at] != "]":
        begin = at
        _, at = _DECODER.raw_decode(text, begin)
        found.append(text[begin:at])
        at = _after(text, at)
        if text[at] == ",":
            at = _after(text, at + 1)
        elif text[at] != "]":
            raise ValueError(f"a comma is missing at character {at}")
        if len(found) % STEP_DEFINITIONS == 0:
            yield
    return at + 1


def _after(text: str, at: int) -> int:
    """Where the blanks end."""
    match = _BLANKS.match(text, at)
    assert match is not None
    return match.end()


def _expect(text: str, at: int, letter: str) -> int:
    at = _after(text, at)
    if text[at] != letter:
        raise ValueError(f"{letter} is missing at character {at}")
    return at + 1
