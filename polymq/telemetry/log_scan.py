"""Looking through the log for messages of sampled traces, and for what consumers have settled.

Rules:

* It runs in a thread, behind what is on the disk, and touches nothing of the loop's. The kernel
  that looks at the records holds no lock of the interpreter and makes no object of a record that
  is not wanted.
* One scan has a bound in bytes, in messages, and in records of acknowledgements.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from polymq.broker.messages.records import parse_properties, properties_span
from polymq.broker.state.journal import STATE_TOPIC
from polymq.core_log.kernels import traced, walking
from polymq.core_log.kernels.batch import DISPATCH_TARGET_SIZE, PROPERTY_DISPATCH
from polymq.core_log.reader import Walk
from polymq.core_log.record import HEADER
from polymq.telemetry.trace_context import TraceContext, trace_context_of

SCAN_BYTES: Final = 16 << 20
"""Of the log, about, that one scan looks at."""
OP_BYTES_MAX: Final = 64 * 1024
"""Of a record of acknowledgements: what is larger is not looked at."""
OPS_MAX: Final = 256
"""Records of acknowledgements in one scan; five seconds of a busy server."""
_SYSTEM: Final = STATE_TOPIC.encode()
_ACKS: Final = b'{"op":"acks"'
_COMMITTED: Final = b'{"op":"committed"'


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedMessage:
    """A message of a sampled trace, as its record says.

    Attributes:
        topic: the stored name of its topic.
        body_bytes: as they are stored.
        targets: (queue number, offset) of the queues that it went to, the topic's own first.
        sender: address of who published it; empty if the record has none.
    """

    context: TraceContext
    properties: dict[str, str]
    topic: bytes
    queue_id: int
    queue_offset: int
    position: int
    store_ms: int
    body_bytes: int
    targets: tuple[tuple[int, int], ...]
    sender: str


@dataclass(slots=True, kw_only=True)
class Scan:
    """What was found.

    Attributes:
        end: where the next scan goes on.
        dropped_count: messages of sampled traces beyond the bound.
        ops: what consumers have settled: when it was stored, and the op, in the order of the log.
    """

    end: int
    messages: list[TracedMessage] = field(default_factory=list)
    dropped_count: int = 0
    ops: list[tuple[int, dict[str, Any]]] = field(default_factory=list)


def scan_log(walk: Walk, end: int, room: int, *, wants_ops: bool) -> Scan:
    """Look through the log, at most to `end`, which is on the disk.

    Args:
        walk: begins where the last scan has ended.
        room: how many messages are wanted.
        wants_ops: whether acknowledgements are, also if no message is found.

    Raises:
        CorruptRecord: the disk cannot read it.
        StorageShort: the process has no descriptor or memory for it now.
    """
    found = Scan(end=end)
    start = walk.position
    for memory, size, position in walk.stretches():
        size = min(size, end - position)
        starts = traced.find_sampled(memory, 0, size)
        taken = starts[: room - len(found.messages)]
        found.messages += filter(None, (_message_at(memory, at) for at in taken))
        found.dropped_count += len(starts) - len(taken)
        if wants_ops or found.messages:
            found.ops += _ops_in(memory, size, OPS_MAX - len(found.ops))
        if position + size >= end:
            return found
        if position + size - start >= SCAN_BYTES:
            found.end = position + size
            return found
    return found


def _message_at(memory: bytes, at: int) -> TracedMessage | None:
    fields = HEADER.unpack_from(memory, at)
    topic_start, topic_end, properties_start, properties_end = properties_span(memory, at)
    properties = parse_properties(memory[properties_start:properties_end])
    context = trace_context_of(properties)
    if context is None:
        return None
    return TracedMessage(
        context=context,
        properties=properties,
        topic=memory[topic_start:topic_end],
        queue_id=fields[3],
        queue_offset=fields[5],
        position=fields[6],
        store_ms=fields[10],
        body_bytes=fields[14],
        targets=_targets_of(properties),
        sender=_address_of(fields[9]),
    )


def _targets_of(properties: dict[str, str]) -> tuple[tuple[int, int], ...]:
    text = properties.get(PROPERTY_DISPATCH.decode(), "")
    return tuple(
        (int(text[at : at + 8], 16), int(text[at + 8 : at + DISPATCH_TARGET_SIZE], 16))
        for at in range(0, len(text), DISPATCH_TARGET_SIZE)
    )


def _address_of(host: bytes) -> str:
    return ".".join(map(str, host[:4])) if any(host[:4]) else ""


def _ops_in(memory: bytes, size: int, most: int) -> Iterator[tuple[int, dict[str, Any]]]:
    for at in walking.find_system(memory, 0, size, _SYSTEM, b"TAGS")[:most]:
        body_size = HEADER.unpack_from(memory, at)[14]
        start = at + HEADER.size
        if body_size <= OP_BYTES_MAX and memory.startswith((_ACKS, _COMMITTED), start):
            yield HEADER.unpack_from(memory, at)[10], json.loads(memory[start : start + body_size])
