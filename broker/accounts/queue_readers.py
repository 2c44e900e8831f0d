"""Consumers of principals whose rights are checked, so that they can be ended when those change.

An entry goes when its consumer was cancelled and somebody looks: at the next consumer of the same
queue, at a change, or when the table has doubled since it was last tidied.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from polymq.broker.port.queues import Consumer, QueueConsumer

TIDY_COUNT_MIN: Final = 256
"""Queues in the table before it is worth tidying."""


class Guard(Protocol):
    """Whose rights count."""

    @property
    def principal(self) -> str:
        """Its name."""

    def may_consume(self, queue: str) -> bool:
        """Whether it may have what the queue collects."""


class Reading(QueueConsumer, Protocol):
    """A consumer's hold on a queue, which knows whether it goes on."""

    @property
    def active(self) -> bool:
        """False once it was cancelled, or its queue deleted."""


@dataclass(slots=True)
class Reader:
    """One consumer of a queue."""

    guard: Guard
    consumer: Consumer
    reading: Reading


class QueueReaders:
    """Who consumes from which queue."""

    def __init__(self) -> None:
        self._readers: dict[str, list[Reader]] = {}
        self._tidy_at = TIDY_COUNT_MIN

    def add(self, queue: str, reader: Reader) -> None:
        """A consumer began."""
        if len(self._readers) >= self._tidy_at:
            for name in list(self._readers):
                self._tidy(name)
            self._tidy_at = max(TIDY_COUNT_MIN, 2 * len(self._readers))
        self._tidy(queue)
        self._readers.setdefault(queue, []).append(reader)

    def check(self, concerned: Callable[[Guard], bool]) -> None:
        """Rights changed: end the consumers that have lost theirs."""
        for queue in list(self._readers):
            self.check_queue(queue, concerned)

    def check_queue(self, queue: str, concerned: Callable[[Guard], bool]) -> None:
        """The same for one queue."""
        for reader in list(self._readers.get(queue, ())):
            lost = reader.reading.active and concerned(reader.guard)
            if lost and not reader.guard.may_consume(queue):
                # First, so that nothing which the consumer gives back comes to it again.
                reader.reading.cancel()
                reader.consumer.cancelled()
        self._tidy(queue)

    def _tidy(self, queue: str) -> None:
        left = [reader for reader in self._readers.get(queue, ()) if reader.reading.active]
        if left:
            self._readers[queue] = left
        else:
            self._readers.pop(queue, None)
