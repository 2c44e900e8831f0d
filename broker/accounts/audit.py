"""The audit log: who was let in or not, what was refused, who changed what.

One line an event, under the logger `polymq.audit`, as keyword values. Rules: no secret is ever
handed to this file, and what users chose (names, topics) is escaped and cut, so that nobody writes
lines of his own into the log.
"""

from __future__ import annotations

import logging
from typing import Final

from polymq.broker import notices
from polymq.broker.notices import escaped, printable

__all__ = ["LOGGER", "REFUSED", "Throttle", "note", "printable", "warn"]

LOGGER: Final = "polymq.audit"
REFUSED: Final = "refused"
"""A user may not do something, or has as much as its quota gives."""

_log = logging.getLogger(LOGGER)


def note(event: str, **values: object) -> None:
    """Something that was done."""
    _log.info(event, extra=escaped(values))


def warn(event: str, **values: object) -> None:
    """Something that was refused."""
    _log.warning(event, extra=escaped(values))


class Throttle(notices.Throttle):
    """Lines that strangers can cause, at a bounded rate for each address."""

    def warn(self, event: str, address: str, **values: object) -> None:
        """As `warn`, unless the address has had its lines of this minute."""
        more = self.admit(address)
        if more is not None:
            warn(event, address=address, **values, **more)
