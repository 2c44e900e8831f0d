"""A document of definitions as text: written with one definition a line, and read one definition
after the other.

A line for each makes documents good to keep under version control. The order depends on nothing but
the definitions, so two documents with the same definitions are equal to the byte.

A document that is read is never a value as a whole: a hundred thousand definitions as objects would
keep the garbage collector busy for longer than anything else. Each is a text until its turn comes.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Final

import msgspec

from polymq.admin.api import explain
from polymq.admin.written_answers import Steps
from polymq.broker.errors import Reason, Refused
from polymq.definitions.kinds import AnyKind, D, Kind
from polymq.definitions.models import FORMAT, SECTIONS, VERSION
from polymq.management.definitions_file import Definitions, read_definitions, value_of
from polymq.management.errors import Problem
from polymq.management.json_values import encode

STEP_LINES: Final = 20
"""Lines that are made in one step: about a tenth of a millisecond."""


def write_document(kinds: Sequence[AnyKind]) -> Steps:
    """The text of all definitions, in parts."""
    yield f'{{\n"format": "{FORMAT}",\n"version": {VERSION}'.encode()
    for kind in kinds:
        yield f',\n"{kind.section}": ['.encode()
        separator = b"\n"
        lines: list[bytes] = []
        for definition in kind.everything():
            if definition is None:
                yield None
                continue
            lines += separator, encode(msgspec.to_builtins(definition))
            separator = b",\n"
            if len(lines) >= 2 * STEP_LINES:
                yield b"".join(lines)
                lines.clear()
        yield b"".join((*lines, b"]" if separator == b"\n" else b"\n]"))
    yield b"\n}\n"


def read_document(content: bytes) -> Generator[None, None, Definitions]:
    """The text of each definition, by section, in steps. Raises Refused: BAD_ARGUMENT."""
    head: dict[str, Any] = {}
    try:
        found = yield from read_definitions(content, SECTIONS, head)
    except Problem as problem:
        raise Refused(Reason.BAD_ARGUMENT, problem.reason) from None
    _check_head(head)
    return found


def _check_head(head: dict[str, Any]) -> None:
    """What is not a list of definitions. Raises Refused."""
    if head.pop("format", None) != FORMAT:
        text = f'this is no document of definitions: its member format has to be "{FORMAT}"'
        raise Refused(
            Reason.BAD_ARGUMENT,
            f"{text} (for a file of RabbitMQ, use `polymq config import rabbitmq-definitions`)",
        )
    version = head.pop("version", None)
    if type(version) is not int or version < 1:
        raise Refused(Reason.BAD_ARGUMENT, "version has to be the number of the format's version")
    if version > VERSION:
        raise Refused(
            Reason.BAD_ARGUMENT,
            f"a newer PolyMQ wrote this document: its version is {version}, and this server reads "
            f"versions up to {VERSION}. Update the server, or export from an older one",
        )
    for name in head:
        if name in SECTIONS:
            raise Refused(Reason.BAD_ARGUMENT, f"{name} has to be a list of definitions")
        known = ", ".join(SECTIONS)
        raise Refused(Reason.BAD_ARGUMENT, f"there is no section {name!r}: use {known}")


def definition_of(kind: Kind[D], text: str) -> D:
    """One definition. Raises Refused: BAD_ARGUMENT."""
    try:
        value = value_of(text)
    except Problem as problem:
        raise Refused(Reason.BAD_ARGUMENT, f"{kind.section}: {problem.reason}") from None
    try:
        return msgspec.convert(value, kind.model)
    except msgspec.ValidationError as error:
        given = value if isinstance(value, dict) else {}
        why = explain(error, kind.model, "member", given)
        shown = text if len(text) <= 100 else f"{text[:100]}..."
        raise Refused(Reason.BAD_ARGUMENT, f"{kind.section}: {shown}: {why}") from None
