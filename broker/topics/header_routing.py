"""Publishing to routes that depend on the messages' headers.

A headers exchange looks at each message. Rows of a batch that are next to each other and go the
same way are published together, on a *branch* of the route (`exchanges/graph.py`); what each table
of headers leads to is remembered at the template, so that messages with equal headers are looked at
once.

Headers are what AMQP's consumers would see as the message's `headers`, whatever protocol it came
by. How they stand in a record is the AMQP gateway's business; it gives the engine a `HeaderReader`.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final, Protocol

from polymq.broker.errors import Refused
from polymq.broker.messages.long_properties import IN_FRONT_SIZE, size_in_front
from polymq.broker.messages.records import parse_properties
from polymq.broker.port.values import Position
from polymq.broker.routing.header_match import tag_headers
from polymq.broker.topics.gated import publish_gated
from polymq.core_log.kernels.batch import (
    BODY_START,
    COLUMNS,
    EXTRA_BASE64,
    EXTRA_NONE,
    EXTRA_SIZE,
    EXTRA_START,
    Batch,
)
from polymq.core_log.record import RecordTemplate

if TYPE_CHECKING:
    from polymq.broker.topics.routes import TopicRoute
    from polymq.broker.topics.topic import TopicTemplate
    from polymq.broker.topics.topics import Topics

TABLES_MAX: Final = 1_024
"""Tables of headers that one template remembers, a few hundred bytes each. Beyond that all are
forgotten: what has a header of its own in each message (an id, a time) is looked at anew."""
TABLES_BYTES_MAX: Final = 1024 * 1024
"""The same for their bytes: a table may have 128 KiB."""


class TemplateBranches:
    """Where the messages of one template go by their headers.

    Attributes:
        tables: by headers as they stand in a row.
        bytes: of those.
        templates: by the branch of the route.
    """

    __slots__ = ("bytes", "tables", "templates")

    def __init__(self) -> None:
        self.tables: dict[bytes, TopicTemplate] = {}
        self.bytes = 0
        self.templates: dict[TopicRoute, TopicTemplate] = {}


class HeaderReader(Protocol):
    """Finds the headers of messages."""

    @property
    def extra_name(self) -> str:
        """The per-message property that has AMQP's properties as they came."""

    def table(self, raw: bytes) -> bytes:
        """The part of well-formed AMQP properties that holds the headers."""

    def decode(self, table: bytes) -> Mapping[str, object]:
        """Its headers."""

    def of_properties(self, properties: Mapping[str, str]) -> Mapping[str, object]:
        """The headers of a message with these properties, by RocketMQ's names."""


class PlainHeaders:
    """A reader for an engine without an AMQP gateway: every property that is not the broker's own
    is a header."""

    extra_name = ""

    def table(self, raw: bytes) -> bytes:
        """See `HeaderReader`."""
        return raw

    def decode(self, table: bytes) -> Mapping[str, object]:
        """See `HeaderReader`."""
        return self.of_properties(parse_properties(table))

    def of_properties(self, properties: Mapping[str, str]) -> Mapping[str, object]:
        """See `HeaderReader`."""
        return {name: value for name, value in properties.items() if not name.startswith("PMQ_")}


def publish_by_headers(
    topics: Topics,
    template: TopicTemplate,
    batch: Batch,
    first: int,
    last: int,
    record: RecordTemplate | None,
    born_ms: int | None,
) -> Position:
    """`Topics.publish` for a route that depends on headers. Raises Refused: then rows before the
    one at fault are stored (`Refused.stored`)."""
    position = Position(0)
    refused: list[tuple[int, int]] = []
    for start, stop, used in by_branch(topics, template, batch, first, last, record):
        try:
            used.refresh(topics.router)
            if used.gates:
                position = publish_gated(topics, used, batch, start, stop, record, born_ms)
                refused += used.refused
            else:
                position = topics.append(used, batch, start, stop, record, born_ms)
        except Refused as error:
            error.stored += start - first
            raise
    template.set_refused(refused)
    return position


def by_branch(
    topics: Topics,
    template: TopicTemplate,
    batch: Batch,
    first: int,
    last: int,
    record: RecordTemplate | None = None,
) -> Iterator[tuple[int, int, TopicTemplate]]:
    """Rows [first, last) in stretches that go the same way, each with the template to use.

    Args:
        record: replaces the template's.
    """
    start = first
    used: TopicTemplate | None = None
    for row in range(first, last):
        found = _branch_of(topics, template, batch, row, record or template.record)
        if used is not None and found is not used:
            yield start, row, used
            start = row
        used = found
    if used is not None:
        yield start, last, used


def is_routed(topics: Topics, template: TopicTemplate, batch: Batch, row: int) -> bool:
    """See `ExchangePort.is_routed`."""
    if template.branches is None:
        return template.route.routed
    return _branch_of(topics, template, batch, row, template.record).route.routed


def _branch_of(
    topics: Topics, template: TopicTemplate, batch: Batch, row: int, record: RecordTemplate
) -> TopicTemplate:
    reader = topics.header_reader
    extra = b""
    is_raw = False
    packed_name = ""
    at = row * COLUMNS
    if template.meta.long:
        start = batch.rows[at + BODY_START]
        extra = bytes(batch.buffer[start : start + size_in_front(batch.buffer, start)])
        extra = reader.table(extra[IN_FRONT_SIZE:])
        is_raw = True
    elif record.extra_kind != EXTRA_NONE:
        start = batch.rows[at + EXTRA_START]
        extra = bytes(batch.buffer[start : start + batch.rows[at + EXTRA_SIZE]])
        if record.extra_kind == EXTRA_BASE64:
            packed_name = record.extra_name.decode()
            is_raw = packed_name == reader.extra_name
        if is_raw:
            extra = reader.table(extra)
    key = b"%d %b" % (is_raw, extra)
    branches = template.branches
    assert branches is not None
    known = branches.tables.get(key)
    if known is not None:
        return known
    if is_raw:
        headers = reader.decode(extra)
    elif packed_name:  # of another protocol, which keeps its properties raw as well
        packed = b2a_base64(extra, newline=False).decode()
        headers = reader.of_properties({packed_name: packed, **template.meta.properties})
    else:
        headers = reader.of_properties({**parse_properties(extra), **template.meta.properties})
    route = topics.branch(template.route, tag_headers(headers))
    found = branches.templates.get(route)
    branches.bytes += len(key)
    if len(branches.tables) >= TABLES_MAX or branches.bytes > TABLES_BYTES_MAX:
        branches.bytes = len(key)
        branches.tables.clear()
        branches.templates.clear()
    if found is None:
        found = branches.templates[route] = topics.rerouted(template, route)
    branches.tables[key] = found
    return found
