"""From decoded events to the log, and the wait for their commit.

Rules:

* What can be refused is refused before the first event is stored: routes, templates and sizes come
  first. After that only the disk, a delivery time that is too far away, and a change of rights or
  of the topic meanwhile can stop a request; the answer then says how many events were stored.
* Both parts are done in turns with the work of other clients (`work.py`). Once something of a
  request is stored, the rest follows whether or not its client waits for the answer.
* A success is answered when the last position is flushed (fdatasync), never before; where
  `page_cache` was chosen, when the operating system has it. If the log directory fails, every
  request that waits is told so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from polymq.broker.port import (
    TTL_PROPERTY,
    BoundedCache,
    BrokerPort,
    Durability,
    Position,
    Refused,
    StorageFailed,
    Template,
    ttl_property,
)
from polymq.core_log.kernels.batch import (
    BODY_SIZE,
    COLUMNS,
    EXTRA_SIZE,
    EXTRA_VERBATIM,
    Batch,
)
from polymq.gateways.http_cloudevents.codec import Event
from polymq.gateways.http_cloudevents.errors import STATUS_OF_REASON, Problem
from polymq.gateways.http_cloudevents.limits import Limits
from polymq.gateways.http_cloudevents.mapping import (
    CONSTANT_PROPERTIES,
    Run,
    row_of_raw,
    rows_of,
    ttl_ms,
)
from polymq.gateways.http_cloudevents.responses import storage_problem
from polymq.gateways.http_cloudevents.work import Work

TEMPLATES_MAX: Final = 4_096
"""Templates kept: kinds of messages (topic, type, shard) in use at one time."""


BYTES_AT_ONCE: Final = 1024 * 1024
"""Stored by one call of the engine, unless one event alone is larger: some 2 ms."""
DELAYED_AT_ONCE: Final = 64
"""Events that are delivered later, which the engine takes one by one, likewise."""


class Prepared(NamedTuple):
    """The events of one request, all of which may be stored.

    Attributes:
        templates: of the runs.
        delay_ms: how long to keep those that don't say themselves when they are due.
    """

    topic: str
    batch: Batch
    runs: Sequence[Run]
    templates: Sequence[Template]
    delay_ms: int


class Stored(NamedTuple):
    """What the answer to a publish waits for."""

    position: Position
    durability: Durability


class Commits:
    """Requests that wait for a position to be committed.

    Args:
        seconds_max: after this a request is told that the outcome is unknown.
    """

    def __init__(self, port: BrokerPort, *, seconds_max: float) -> None:
        self._port = port
        self._seconds_max = seconds_max
        self._waiting: set[asyncio.Future[None]] = set()
        self.failed = False
        port.storage.when_failed(self._fail)

    async def wait(self, position: Position, durability: Durability | None = None) -> None:
        """Return when the position is committed; by default as a change of state has to be.

        Raises:
            Problem: 503.
        """
        if durability is None:
            durability = self._port.state_durability
        if self.failed:
            raise storage_problem()
        if self._port.committed(position, durability):
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        self._port.when_committed(position, durability, _resolve, future)
        try:
            async with asyncio.timeout(self._seconds_max):
                await future
        except TimeoutError:
            raise Problem(
                503,
                "Commit took too long",
                f"the disk or a replica did not answer for {self._seconds_max:g} seconds; whether "
                "this request was stored is unknown",
            ) from None
        finally:
            self._waiting.discard(future)

    def _fail(self, error: StorageFailed) -> None:
        self.failed = True
        for future in self._waiting:
            if not future.done():
                future.set_exception(storage_problem())


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():  # The client may have gone, or the wait been too long.
        future.set_result(None)


class Publisher:
    """Stores events. One per port, which is one for each user.

    Args:
        clock_seconds: the time of day, by which events expire.
    """

    def __init__(
        self, port: BrokerPort, limits: Limits, clock_seconds: Callable[[], float]
    ) -> None:
        self._port = port
        self._limits = limits
        self._clock_seconds = clock_seconds
        self._templates: BoundedCache[tuple[str, str | None, str, str], Template] = BoundedCache(
            TEMPLATES_MAX
        )

    def prepare(self, topic: str, events: Sequence[Event], *, delay_ms: int = 0) -> Work[Prepared]:
        """Look at all that the engine may refuse. Nothing is stored.

        Args:
            delay_ms: how long to keep those that don't say themselves when they are due.

        Raises:
            Refused: the engine refuses.
            Problem: an event is too large: 413, 431.
        """
        info = self._port.topics.info(topic)
        sharded = info is not None and len(info.max_offsets) > 1
        batch, runs = yield from rows_of(events, sharded=sharded)
        return (yield from self._prepared(topic, batch, runs, delay_ms))

    def prepare_raw(
        self,
        topic: str,
        tag: str | None,
        body: bytes,
        content_type: str | None,
        *,
        delay_ms: int = 0,
    ) -> Work[Prepared]:
        """Likewise, for a body that is no CloudEvent. Raises Refused, Problem."""
        batch = row_of_raw(body, content_type)
        run = Run(tag=tag, sharding="", first=0, last=1)
        return (yield from self._prepared(topic, batch, [run], delay_ms))

    def _prepared(
        self, topic: str, batch: Batch, runs: Sequence[Run], delay_ms: int
    ) -> Work[Prepared]:
        templates: list[Template] = []
        for run in runs:
            self._check_sizes(batch, run)
            yield
        for run in runs:
            templates.append(self._template(topic, run.tag, run.sharding, self._ttl(run, delay_ms)))
            yield
        return Prepared(topic, batch, runs, templates, delay_ms)

    def store(self, prepared: Prepared) -> Work[Stored]:
        """Store what is prepared; its answer waits for the position.

        Raises:
            Refused: the engine refuses; nothing was stored.
            Problem: it refused in the middle.
        """
        stored = Stored(Position(0), Durability.APPENDED)
        for run, template in zip(prepared.runs, prepared.templates, strict=True):
            first = run.first
            while first < run.last:
                try:
                    if not template.valid:  # its topic was changed since
                        ttl = self._ttl(run, prepared.delay_ms)
                        template = self._template(prepared.topic, run.tag, run.sharding, ttl)
                    last = _portion(
                        prepared.batch, first, run, template, delayed=prepared.delay_ms > 0
                    )
                    position = self._store(template, prepared, run, first, last)
                except Refused as refused:
                    if first:
                        raise _stored_partly(refused, first, prepared.runs[-1].last) from refused
                    raise
                stored = Stored(position, max(template.durability, stored.durability))
                first = last
                yield
        return stored

    def _ttl(self, run: Run, delay_ms: int) -> str:
        """The property that says how long the events of a run live; empty for ever."""
        if not run.expires_ms:
            return ""
        now_ms = int(self._clock_seconds() * 1000)
        visible_ms = max(now_ms, run.deliver_ms or now_ms + delay_ms)
        return ttl_property(ttl_ms(run.expires_ms, visible_ms), 0)

    def _store(
        self, template: Template, prepared: Prepared, run: Run, first: int, last: int
    ) -> Position:
        if run.deliver_ms or prepared.delay_ms:
            return self._port.delays.publish_later(
                template,
                prepared.batch,
                first,
                last,
                delay_ms=prepared.delay_ms,
                deliver_ms=run.deliver_ms,
            )
        return self._port.publish(template, prepared.batch, first, last)

    def _template(self, topic: str, tag: str | None, sharding: str, ttl: str = "") -> Template:
        key = topic, tag, sharding, ttl
        template = self._templates.get(key)
        if template is None or not template.valid:
            template = self._port.topics.template(
                self._port.topics.route(topic, tag),
                properties={**CONSTANT_PROPERTIES, TTL_PROPERTY: ttl}
                if ttl
                else CONSTANT_PROPERTIES,
                extra_kind=EXTRA_VERBATIM,
                sharding=sharding,
            )
            self._templates.pop(key, None)
            self._templates.add(key, template)
        return template

    def _check_sizes(self, batch: Batch, run: Run) -> None:
        body_max = self._limits.message_bytes_max
        rows = batch.rows
        extra_max = self._limits.attributes_bytes_max - len(
            (run.tag or "").encode("utf-8", "surrogateescape")
        )
        for index in range(run.first, run.last):
            at = index * COLUMNS
            if rows[at + BODY_SIZE] > body_max:
                raise Problem(
                    413,
                    "Event too large",
                    f"event {index} has {rows[at + BODY_SIZE]} bytes of data and the limit is "
                    f"{body_max}; nothing was stored",
                    members={"index": index},
                )
            if rows[at + EXTRA_SIZE] > extra_max:
                raise Problem(
                    431,
                    "Attributes too large",
                    f"the attributes of event {index} need {rows[at + EXTRA_SIZE]} bytes and "
                    f"{extra_max} are left for them; nothing was stored",
                    members={"index": index},
                )


def _portion(batch: Batch, first: int, run: Run, template: Template, *, delayed: bool) -> int:
    """Up to which row of a run one call of the engine stores."""
    count = template.rows_at_once
    if run.deliver_ms or delayed:
        count = min(count, DELAYED_AT_ONCE)
    last = min(run.last, first + count)
    rows = batch.rows
    size = 0
    for index in range(first, last):
        at = index * COLUMNS
        size += rows[at + BODY_SIZE] + rows[at + EXTRA_SIZE]
        if size > BYTES_AT_ONCE and index > first:
            return index
    return last


def _stored_partly(refused: Refused, stored: int, count: int) -> Problem:
    return Problem(
        STATUS_OF_REASON[refused.reason],
        refused.reason.value.capitalize(),
        f"{refused.text}; the first {stored} of {count} events were stored",
        members={"stored": stored},
    )
