"""What the core tells whoever drives it.

`Traffic` and its parts are made for every read, so they are plain slotted values: freezing them
would cost as much as the rest of a small read. They point into the bytes of that read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polymq.core_log.kernels.batch import Batch
from polymq.gateways.amqp.spec import Method


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderReceived:
    """The protocol header is one of ours: send connection.start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderRefused:
    """Not a protocol that we speak: write `reply` and close (AMQP 4.2.2)."""

    reply: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodReceived:
    """A legal method without content."""

    channel: int
    method: Method


@dataclass(slots=True)
class Run:
    """Rows [first, last) of a batch: equal address, equal flags, one channel."""

    channel: int
    flags: int
    first: int
    last: int


@dataclass(slots=True)
class Settlement:
    """Acks (or nacks) of `count` tags from `first_tag` on; with `multiple`, of all up to it."""

    channel: int
    first_tag: int
    count: int
    bits: int
    rows: int
    """How many rows of the batch came before its first tag."""


@dataclass(slots=True)
class Traffic:
    """Publishes and settlements of one read, in their order of arrival."""

    batch: Batch
    runs: Sequence[Run]
    settlements: Sequence[Settlement]


Event = HeaderReceived | HeaderRefused | MethodReceived | Traffic
