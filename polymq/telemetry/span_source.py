"""Spans of the messages that the log gets, made behind what is on the disk.

The log is read once more, in a thread (`log_scan.py`). So no publish and no delivery waits for a
span or makes one, and a server that is not asked for spans does nothing for them. What cannot be
done in time is dropped, and counted:

* spans beyond so many a second;
* spans that wait for the collector, beyond `WAITING_SPANS_MAX`;
* the log itself, where the reader is far behind.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator
from functools import partial
from typing import Final

from polymq.broker.engine import Engine
from polymq.core_log.errors import StoreError
from polymq.core_log.store import Store
from polymq.logs import logger
from polymq.steps import in_steps
from polymq.telemetry.deliveries import Deliveries
from polymq.telemetry.log_scan import Scan, scan_log
from polymq.telemetry.spans import Span, destination_of, publish_span
from polymq.workers import Workers

WAITING_SPANS_MAX: Final = 4_096
"""Spans that wait for the collector: some megabytes."""
BEHIND_BYTES_MAX: Final = 128 << 20
"""Of the log that the reader may be behind: some seconds of a disk."""


class SpanSource:
    """Reads the log from its present end on, and makes spans.

    Args:
        threads: has a thread for this alone.
        per_second_max: how many spans are made a second.
        now: seconds, of a clock that does not go back.

    Attributes:
        dropped: spans that were not made or not sent, by reason (a metric).
        passed_bytes: of the log that was not looked at (a metric).
    """

    def __init__(
        self,
        engine: Engine,
        store: Store,
        threads: Workers,
        per_second_max: int,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._store = store
        self._threads = threads
        self._now = now
        self._position = store.log.flushed
        self._deliveries = Deliveries(engine)
        self._spans: deque[Span] = deque()
        self._second = 0  # the one that `_made_count` is of
        self._made_count = 0
        self._has_failed = False
        self.per_second_max = per_second_max
        self.dropped = {"rate": 0, "waiting": 0, "refused": 0}
        self.passed_bytes = 0

    @property
    def waiting_count(self) -> int:
        """Spans that are to be sent."""
        return len(self._spans)

    @property
    def forgotten_count(self) -> int:
        """Messages whose deliveries are not waited for any more."""
        return self._deliveries.forgotten_count

    def take(self, most: int) -> list[Span]:
        """The oldest spans, which do not wait any more."""
        return [self._spans.popleft() for _ in range(min(most, len(self._spans)))]

    def refused(self, count: int) -> None:
        """The collector does not take so many."""
        self.dropped["refused"] += count

    async def read(self) -> bool:
        """Look at what came to the log. Returns whether there is more already."""
        end = self._store.log.flushed
        if self._engine.core.follows or self._engine.core.failure is not None:
            self._position = end  # its master makes the spans
            return False
        if end - self._position > BEHIND_BYTES_MAX:
            self.passed_bytes += end - self._position
            self._position = end
        if end == self._position:
            return False
        try:
            scan = await self._threads.run(
                partial(
                    scan_log,
                    self._store.walk(self._position),
                    end,
                    self._room(),
                    wants_ops=len(self._deliveries) > 0,
                )
            )
        except (StoreError, OSError) as error:
            self._fail(error, end)
            return False
        self._has_failed = False
        self._position = scan.end
        await in_steps(self._take_in(scan))
        return scan.end < self._store.log.flushed

    def _fail(self, error: Exception, end: int) -> None:
        """What cannot be read is passed over; it is said once."""
        if not self._has_failed:
            logger("polymq.telemetry").warning("the log cannot be read for spans", error=str(error))
        self._has_failed = True
        self.passed_bytes += end - self._position
        self._position = end

    def _take_in(self, scan: Scan) -> Generator[None, None, None]:
        """Make the spans of what was found, in steps."""
        self.dropped["rate"] += scan.dropped_count
        for message in scan.messages:
            topic = self._engine.core.metas.user_name(message.topic)
            destination = destination_of(message, topic)
            if destination is not None:
                self._add(publish_span(message, destination))
                self._deliveries.add(message, destination, topic)
            yield
        for stored_ms, op in scan.ops:
            for span in (yield from self._deliveries.settled(op, stored_ms)):
                self._add(span)

    def _room(self) -> int:
        """How many spans may still be made in this second."""
        second = int(self._now())
        if second != self._second:
            self._second, self._made_count = second, 0
        return max(0, self.per_second_max - self._made_count)

    def _add(self, span: Span) -> None:
        if not self._room():
            self.dropped["rate"] += 1
            return
        self._made_count += 1
        if len(self._spans) == WAITING_SPANS_MAX:
            self._spans.popleft()
            self.dropped["waiting"] += 1
        self._spans.append(span)
