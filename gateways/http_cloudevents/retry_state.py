"""How often the message at the head of a webhook subscription has failed, kept over a restart.

Without it a restart would begin to count anew: a sink that is down would be called at once, and a
message that no sink takes would never become a dead letter where the server restarts often. Only
the head of a subscription can have failed, so there is one small document for each that fails. It
is not waited for: a crash may forget the last failure.
"""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from typing import Final

from polymq.broker.port import BrokerPort, Refused

DOCUMENT_KIND: Final = "webhook-retry"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryState:
    """What `Webhook` knows of its head.

    Attributes:
        offset: of the first message of the head, in the subscription's queue.
        attempts: how often it failed.
        alone: so many messages from the head on are sent one at a time.
        last_chance: each of them gets one attempt.
    """

    offset: int
    attempts: int
    alone: int
    last_chance: bool


class RetryStates:
    """The documents of all webhook subscriptions."""

    def __init__(self, port: BrokerPort) -> None:
        self._port = port

    def get(self, name: str) -> RetryState | None:
        """What was kept of a subscription."""
        document = self._port.documents.of_kind(DOCUMENT_KIND).get(name)
        return None if document is None else RetryState(**document)

    def put(self, name: str, state: RetryState) -> None:
        """Keep it; where the log takes nothing, the next failure does."""
        self._write(name, state)

    def forget(self, name: str) -> None:
        """The head is another now, or the subscription is."""
        if name in self._port.documents.of_kind(DOCUMENT_KIND):
            self._write(name, None)

    def _write(self, name: str, state: RetryState | None) -> None:
        try:
            self._port.documents.put(DOCUMENT_KIND, name, None if state is None else asdict(state))
        except Refused as refused:
            logger.warning("webhook %s: its retries could not be stored: %s", name, refused)
