"""The audit log: who was let in or not, what was refused, who changed what.

One line an event, under the logger `polymq.audit`, as keyword values. Rules: no secret is ever
handed to this file, and what users chose (names, topics) is escaped and cut, so that nobody writes
lines of his own into the log.
"""

from __future__ import annotations

import logging
from typing import Final

LOGGER: Final = "polymq.audit"
TEXT_MAX: Final = 200
"""Characters of one value: a topic's name fits, a flood does not."""

_log = logging.getLogger(LOGGER)


def note(event: str, **values: object) -> None:
    """Something that was done."""
    _log.info(event, extra=_escaped(values))


def warn(event: str, **values: object) -> None:
    """Something that was refused."""
    _log.warning(event, extra=_escaped(values))


def printable(text: str) -> str:
    """User text as one harmless line."""
    cut = text if len(text) <= TEXT_MAX else text[:TEXT_MAX] + "..."
    return cut.encode("unicode_escape", "surrogatepass").decode("ascii")


def _escaped(values: dict[str, object]) -> dict[str, object]:
    return {
        name: printable(value) if isinstance(value, str) else value
        for name, value in values.items()
    }
