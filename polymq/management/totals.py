"""The numbers of all queues and topics together, counted in steps.

Beside many queues a total is remembered for a while, as RabbitMQ's are: a monitor that asks for it
every second does not have a hundred thousand queues counted each time.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Generator, Mapping
from itertools import islice
from typing import Final

from polymq.broker.engine import Engine
from polymq.management.figures import COUNTERS, GAUGES
from polymq.management.queues import counts_of

STEP_QUEUES: Final = 100
FEW_QUEUES: Final = 2_000
"""So many are counted each time."""
REMEMBERED_SECONDS: Final = 5.0

NAMES: Final = (*GAUGES, *COUNTERS)


class Totals:
    """Counts."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._counted: Mapping[str, int] = {}
        self._counted_at = 0.0

    def count(self) -> Generator[None, None, Mapping[str, int]]:
        """The totals by RabbitMQ's names, in steps. `publish` counts messages once, however many
        queues they went to."""
        queues, now = self._engine.named_queues.queues, time.monotonic()
        is_fresh = self._counted and now - self._counted_at < REMEMBERED_SECONDS
        if is_fresh and len(queues) > FEW_QUEUES:
            return self._counted
        totals: Counter[str] = Counter(dict.fromkeys(NAMES, 0))
        names = iter(list(queues))
        while some := list(islice(names, STEP_QUEUES)):
            for name in some:
                found = queues.get(name)
                if found is not None:
                    totals.update(counts_of(found))
            yield
        totals["publish"] = yield from self._stored()
        self._counted, self._counted_at = totals, now
        return totals

    def _stored(self) -> Generator[None, None, int]:
        stored = 0
        topics = iter(list(self._engine.topics.topics.values()))
        while some := list(islice(topics, STEP_QUEUES)):
            stored += sum(queue.flushed for topic in some for queue in topic.queues)
            yield
        return stored
