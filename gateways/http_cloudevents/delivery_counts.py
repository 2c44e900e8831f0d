"""How often events of pull subscriptions were received, kept over a stop in order.

The queue itself remembers of each event only that it was delivered before. Without this, an event
that was received three times would come as the second time after a restart, and one that no
consumer takes would never become a dead letter where the server restarts often.

One document for each subscription, written when the server stops. It stays until the next stop:
offsets of a queue never come again, and after a crash an older count is nearer than none.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from polymq.broker.port import BrokerError, BrokerPort

DOCUMENT_KIND: Final = "pull-counts"
RUNS_MAX: Final = 1_500
"""Of one document, of about 40 bytes each; the engine takes 64 KiB."""

logger = logging.getLogger(__name__)


class DeliveryCounts:
    """The documents of all pull subscriptions."""

    def __init__(self, port: BrokerPort) -> None:
        self._port = port

    def get(self, name: str) -> dict[int, int]:
        """Counts by offset, as far as they were kept."""
        document = self._port.documents.of_kind(DOCUMENT_KIND).get(name)
        runs = [] if document is None else document["runs"]
        return {
            offset: count
            for first, length, count in runs
            for offset in range(first, first + length)
        }

    def put(self, name: str, counts: Mapping[int, int]) -> None:
        """Keep the counts of what comes again; of the first events, where they are too many."""
        runs = _runs(counts)[:RUNS_MAX]
        if runs or name in self._port.documents.of_kind(DOCUMENT_KIND):
            self._write(name, {"runs": runs} if runs else None)

    def forget(self, name: str) -> None:
        """The subscription is deleted; another of this name begins with offset 0."""
        if name in self._port.documents.of_kind(DOCUMENT_KIND):
            self._write(name, None)

    def _write(self, name: str, document: dict[str, list[list[int]]] | None) -> None:
        try:
            self._port.documents.put(DOCUMENT_KIND, name, document)
        except BrokerError as error:
            logger.warning(
                "subscription %s: its delivery counts could not be stored: %s", name, error
            )


def _runs(counts: Mapping[int, int]) -> list[list[int]]:
    """First offset, number of offsets and count, of consecutive offsets with one count. A count
    of 1 is left out: the queue remembers it."""
    runs: list[list[int]] = []
    for offset, count in sorted(counts.items()):
        if count < 2:
            continue
        if runs and runs[-1][0] + runs[-1][1] == offset and runs[-1][2] == count:
            runs[-1][1] += 1
        else:
            runs.append([offset, 1, count])
    return runs
