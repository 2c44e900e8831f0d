"""Retained MQTT messages.

Many are cleared in steps. Each step is a record of the log, so a list of a million does not stop
the loop, and a crash in between leaves the rest.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Annotated, Final

import msgspec
from aiohttp import web

from polymq.admin.commits import Committed
from polymq.admin.mqtt_names import MqttNames
from polymq.admin.operations import Call, Given, Group, Operation, Value
from polymq.admin.pages import PAGE_DEFAULT, PAGE_MAX
from polymq.admin.records import RECORDS, fetch_record
from polymq.broker.accounts import audit
from polymq.broker.engine import Engine
from polymq.broker.errors import Reason, Refused
from polymq.broker.port import Address, Position
from polymq.broker.topics.retained import position_of, size_of
from polymq.steps import in_steps

CLEARED_AT_ONCE: Final = 256
"""Retained messages that one record of the log clears."""
CLEARED_CHARACTERS: Final = 64 * 1024
"""Of their names: a topic name may have 64 KiB."""


class RetainedMessage(Value):
    """A retained message.

    Attributes:
        topic: its topic name.
        bytes: of its record in the log.
        position: of its record in the log.
    """

    topic: str
    bytes: int
    position: int


class RetainedPage(Value):
    """A page of retained messages.

    Attributes:
        items: in the order of their topics.
        next: what `after` has to be for the following page; null: this is the last one.
        total: all retained messages, whatever the filter.
        total_bytes: of their records in the log.
    """

    items: list[RetainedMessage]
    next: str | None
    total: int
    total_bytes: int


class RetainedQuery(Given):
    """Which retained messages.

    Attributes:
        filter: an MQTT topic filter.
        limit: how many entries, at most 500.
        after: `next` of the page before; without it, the first page.
    """

    filter: str = "#"
    limit: Annotated[int, msgspec.Meta(ge=1, le=PAGE_MAX)] = PAGE_DEFAULT
    after: str | None = None


class RetainedToClear(Given):
    """Which retained messages are cleared.

    Attributes:
        filter: an MQTT topic filter.
        dry_run: whether they are only counted.
    """

    filter: str
    dry_run: bool = False


class ClearedMessages(Value):
    """How many retained messages were cleared.

    Attributes:
        count: how many.
        bytes: of their records in the log.
    """

    count: int
    bytes: int


class RetainedHandlers:
    """Carries out the operations on retained messages.

    Args:
        committed: waits until a change is on the disk.
        names: of the MQTT listeners.
    """

    def __init__(self, engine: Engine, committed: Committed, names: MqttNames) -> None:
        self._engine = engine
        self._retained = engine.retained
        self._committed = committed
        self._names = names

    def group(self) -> Group:
        """The operations."""
        named = {"topic": "the topic name"}
        return Group(
            name="retained",
            about="Retained MQTT messages, which new subscribers get first.",
            operations=[
                Operation(
                    method="GET",
                    path="/mqtt/retained",
                    name="listRetained",
                    summary="List retained messages in the order of their topics",
                    right="monitor",
                    handler=self._list,
                    query=RetainedQuery,
                    answer=RetainedPage,
                ),
                Operation(
                    method="GET",
                    path="/mqtt/retained/{topic}",
                    name="getRetained",
                    summary="Show the size and the position of a retained message",
                    right="monitor",
                    handler=self._show,
                    answer=RetainedMessage,
                    path_about=named,
                ),
                Operation(
                    method="GET",
                    path="/mqtt/retained/{topic}/record",
                    name="getRetainedRecord",
                    summary="Get the record of a retained message, as it is in the log",
                    about="The caller has to have the right to subscribe to the topic, too.",
                    right="monitor",
                    handler=self._record,
                    media_type=RECORDS,
                    path_about=named,
                ),
                Operation(
                    method="POST",
                    path="/mqtt/retained/clear",
                    name="clearRetained",
                    summary="Clear the retained messages whose topics match a filter",
                    about="Clients that are subscribed are not told. The messages stay in the log "
                    "until retention deletes them.",
                    right="operate",
                    handler=self._clear,
                    body=RetainedToClear,
                    answer=ClearedMessages,
                ),
            ],
        )

    async def _list(self, call: Call[RetainedQuery]) -> RetainedPage:
        query = call.query
        pattern = self._names.pattern(query.filter)
        behind = None if query.after is None else self._names.address(query.after)
        rows, more = await in_steps(self._rows(pattern, behind, query.limit))
        return RetainedPage(
            items=rows,
            next=rows[-1].topic if more else None,
            total=self._retained.count,
            total_bytes=self._retained.bytes,
        )

    def _rows(
        self, pattern: Address, behind: Address | None, limit: int
    ) -> Generator[None, None, tuple[list[RetainedMessage], bool]]:
        """At most `limit` of them, and whether there are more."""
        rows: list[RetainedMessage] = []
        for found in self._retained.match(pattern, behind):
            yield
            if found is None:
                continue
            if len(rows) == limit:
                return rows, True
            rows.append(self._row(*found))
        return rows, False

    def _row(self, address: Address, entry: bytes) -> RetainedMessage:
        return RetainedMessage(
            topic=self._names.name(address), bytes=size_of(entry), position=position_of(entry)
        )

    def _found(self, call: Call[Given]) -> tuple[Address, bytes]:
        name = call.path["topic"]
        address = self._names.address(name)
        entry = self._retained.get(address)
        if entry is None:
            raise Refused(Reason.NOT_FOUND, f"there is no retained message at {name!r}")
        return address, entry

    async def _show(self, call: Call[Given]) -> RetainedMessage:
        return self._row(*self._found(call))

    async def _record(self, call: Call[Given]) -> web.Response:
        call.port.principal.check_read(self._names.address(call.path["topic"]))
        _, entry = self._found(call)
        record = await fetch_record(self._engine.port, position_of(entry))
        return web.Response(body=record, content_type=RECORDS)

    async def _clear(self, call: Call[Given]) -> ClearedMessages:
        body: RetainedToClear = call.body
        pattern = self._names.pattern(body.filter)
        count, size, position = await in_steps(self._clearing(pattern, dry=body.dry_run))
        if not body.dry_run:
            audit.note("retained cleared", filter=body.filter, count=count, by=call.caller)
            await self._committed(position)
        return ClearedMessages(count=count, bytes=size)

    def _clearing(
        self, pattern: Address, *, dry: bool
    ) -> Generator[None, None, tuple[int, int, Position]]:
        """How many there were, their bytes, and what the answer waits for."""
        core, count, size, position = self._engine.core, 0, 0, Position(0)
        cleared: list[Address] = []
        characters = 0

        def write() -> Position:
            core.check_writable(frees=True)
            return core.journal.write({"op": "retained-", "w": [list(one) for one in cleared]})

        for found in self._retained.match(pattern):
            yield
            if found is None:
                continue
            address, entry = found
            count, size = count + 1, size + size_of(entry)
            if dry:
                continue
            cleared.append(address)
            characters += sum(map(len, address))
            if len(cleared) >= CLEARED_AT_ONCE or characters >= CLEARED_CHARACTERS:
                position, characters = write(), 0
                cleared.clear()
        if cleared:
            position = write()
        return count, size, position
