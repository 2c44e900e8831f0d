"""Rows of publishes (`core_log.kernels.batch`): what is said of those that are stored alike, and
rows over bytes of their own.

A row's topic is its *address*: exchange and routing key as two short strings. Its extra property is
AMQP's content properties as they came.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from polymq.broker.port import Copies, Durability
from polymq.core_log.kernels.batch import (
    BODY_SIZE,
    BODY_START,
    COLUMNS,
    EXTRA_SIZE,
    EXTRA_START,
    Batch,
)
from polymq.gateways.amqp.kernels import codes
from polymq.gateways.amqp.kernels.codes import LONG_BYTES


@dataclass(slots=True)
class Rows:
    """Rows [first, last) of a batch: of one address, and stored alike.

    Attributes:
        flags: what their publisher asked for (`kernels.codes`).
        durability: what they wait for, as far as their publisher says.
        ttl: how long they live (`port.ttl_property`); empty: for ever.
        copies: routing keys besides their own.
    """

    batch: Batch
    first: int
    last: int
    flags: int
    durability: Durability
    ttl: bytes = b""
    copies: Copies | None = None

    @property
    def count(self) -> int:
        """How many there are."""
        return self.last - self.first

    @property
    def address(self) -> bytes:
        """Exchange and routing key, as two short strings."""
        return self.batch.topic(self.first)

    @property
    def mandatory(self) -> bool:
        """Whether they are returned if they reach nothing."""
        return bool(self.flags & codes.MANDATORY)

    @property
    def keyed(self) -> bool:
        """Whether they may have message ids."""
        return bool(self.flags & codes.KEYED)

    @property
    def is_long(self) -> bool:
        """Whether their properties have to stand in front of their bodies. Such rows are stored one
        by one."""
        return is_long(self.batch, self.first)

    def part(self, first: int, last: int, ttl: bytes | None = None) -> Rows:
        """Some of them, or others of the same read: rows [first, last) of the batch."""
        ttl = self.ttl if ttl is None else ttl
        return Rows(self.batch, first, last, self.flags, self.durability, ttl, self.copies)

    def over(self, batch: Batch) -> Rows:
        """The same, as all rows of another batch."""
        return Rows(batch, 0, batch.count, self.flags, self.durability, self.ttl, self.copies)

    def contents(self) -> list[tuple[bytes, bytes]]:
        """Properties and body of each."""
        return [content_of(self.batch, row) for row in range(self.first, self.last)]

    def copied(self) -> Rows:
        """The same over bytes of their own: they outlive the read."""
        return self.over(batch_of(self.address, self.contents()))


def is_long(batch: Batch, row: int) -> bool:
    """Whether a row's properties have to stand in front of its body (`long_properties.py`)."""
    return batch.rows[row * COLUMNS + EXTRA_SIZE] > LONG_BYTES


def properties_of(batch: Batch, row: int) -> bytes:
    """A row's properties as they came."""
    at = row * COLUMNS
    start = batch.rows[at + EXTRA_START]
    return bytes(batch.buffer[start : start + batch.rows[at + EXTRA_SIZE]])


def content_of(batch: Batch, row: int) -> tuple[bytes, bytes]:
    """A row's properties and its body."""
    at = row * COLUMNS
    start = batch.rows[at + BODY_START]
    body = bytes(batch.buffer[start : start + batch.rows[at + BODY_SIZE]])
    return properties_of(batch, row), body


def batch_of(address: bytes, contents: Iterable[tuple[bytes, bytes]]) -> Batch:
    """Rows of (properties, body) to one address, over bytes of their own."""
    contents = list(contents)
    batch = Batch(len(contents))
    parts = [address]
    at = len(address)
    for properties, body in contents:
        parts += (properties, body)
        body_at = at + len(properties)
        batch.add((0, len(address)), (body_at, len(body)), (at, len(properties)))
        at = body_at + len(body)
    batch.buffer = b"".join(parts)
    return batch
