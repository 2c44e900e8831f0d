"""What a message costs in each kernel, in both forms, without sockets, loop and engine.

A stage is one call of a kernel over a batch of messages as one read would hold them. The time is
the thread's processor time, the figure the median of several samples.
"""

from __future__ import annotations

import importlib
import statistics
import time
from array import array
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

from polymq.core_log.kernels.batch import CAPACITY, EXTRA_BASE64, EXTRA_NONE, Batch
from polymq.core_log.record import RecordTemplate
from polymq.kernel_forms import FORM, plain_form

MESSAGES: Final = 500
"""In a batch: about what a 64 KiB read of small publishes holds."""
BODY_SIZES: Final = (100, 1024)
SAMPLES: Final = 7
SAMPLE_NS: Final = 20_000_000
PACKET_BYTES_MAX: Final = 1 << 24
FRAME_BYTES_MAX: Final = 131_072
HOSTS: Final = bytes(8)
NOW_MS: Final = 1_700_000_000_000
NO_BATCH: Final = (-1, 0, 0)
FORMS: Final = ("pure", "compiled")
MQTT_TOPIC: Final = b"bench/0"
AMQP_QUEUE: Final = b"bench-0"


KERNELS: Final = (
    "core_log.kernels.writing",
    "core_log.kernels.walking",
    "gateways.mqtt.kernels.frames",
    "gateways.mqtt.kernels.publishes",
    "gateways.amqp.kernels.frames",
)


@dataclass(frozen=True, slots=True)
class Kernels:
    """The kernels of one form."""

    store: ModuleType
    walk: ModuleType
    mqtt: ModuleType
    publishes: ModuleType
    amqp: ModuleType


Stage = tuple[str, Callable[[], object]]


def measure_stages() -> list[dict[str, Any]]:
    """Nanoseconds per message: a row per stage and body size, a column per form."""
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    for form, kernels in _forms():
        for size in BODY_SIZES:
            for title, call in (*_mqtt(kernels, size), *_amqp(kernels, size)):
                row = rows.setdefault((title, size), {"stage": title, "body_bytes": size})
                row[form] = _nanoseconds(call) / MESSAGES
    return sorted(rows.values(), key=lambda row: row["stage"])


def stage_lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The rows as a table."""
    yield f"ns per message, batches of {MESSAGES}"
    head = f"{'stage':46} {'body':>6}"
    yield head + "".join(f"{form:>10}" for form in FORMS) + f"{'ratio':>8}"
    for row in rows:
        line = f"{row['stage']:46} {row['body_bytes']:6}"
        line += "".join(f"{row[form]:10.1f}" if form in row else f"{'-':>10}" for form in FORMS)
        if all(form in row for form in FORMS):
            line += f"{row['pure'] / max(row['compiled'], 1e-9):7.0f}x"
        yield line


def path_lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The figures of `benchmarks.path` as a table."""
    yield "ns per message through gateway, engine and log, without sockets and disk (MQTT QoS 1)"
    yield f"{'messages in a read':53}" + "".join(f"{form:>10}" for form in FORMS)
    for row in rows:
        line = f"{row['messages_per_read']:53}"
        yield line + "".join(f"{row[f]:10.0f}" if f in row else f"{'-':>10}" for f in FORMS)


def path_stage_lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The figures of `benchmarks.path_stages` as a table."""
    yield "the same by stage; the clocks are part of the figures"
    for form in FORMS:
        tables = {row["messages_per_read"]: row[form] for row in rows if form in row}
        if not tables:
            continue
        yield f"{form + ', messages in a read':46}" + "".join(f"{count:10}" for count in tables)
        for stage in next(iter(tables.values())):
            yield f"{stage:46}" + "".join(f"{table[stage]:10.0f}" for table in tables.values())


def _forms() -> Iterator[tuple[str, Kernels]]:
    """The forms that are here: the column of another says that it is not."""
    names = [f"polymq.{name}" for name in KERNELS]
    yield "pure", Kernels(*map(plain_form, names))
    if FORM == "compiled":
        yield FORM, Kernels(*map(importlib.import_module, names))


def _nanoseconds(call: Callable[[], object]) -> float:
    """Processor time of one call: the median of samples that are long enough to be exact."""
    call()
    start = time.thread_time_ns()
    call()
    count = max(1, SAMPLE_NS // max(time.thread_time_ns() - start, 1))
    samples = []
    for _ in range(SAMPLES):
        start = time.thread_time_ns()
        for _ in range(count):
            call()
        samples.append((time.thread_time_ns() - start) / count)
    return statistics.median(samples)


# --- MQTT -----------------------------------------------------------------------------------


def _mqtt(kernels: Kernels, size: int) -> Iterator[Stage]:
    mqtt = kernels.mqtt
    packet = _mqtt_publish(size)
    buffer = bytearray(b"".join(packet(identifier) for identifier in range(1, MESSAGES + 1)))
    batch, runs, acks = Batch(), array("q", bytes(8 * CAPACITY)), array("q", bytes(8 * 3072))

    def parse(source: bytearray) -> Any:
        batch.buffer = source
        return mqtt.parse(source, 0, len(source), batch, runs, acks, PACKET_BYTES_MAX)

    pubacks = bytearray(b"".join(b"\x40\x02" + i.to_bytes(2, "big") for i in range(1, 501)))
    if size == BODY_SIZES[0]:
        yield "MQTT: parse PUBACKs", lambda: parse(pubacks)
    yield "MQTT: parse PUBLISH, QoS 1", lambda: parse(buffer)
    parse(buffer)
    assert batch.count == MESSAGES
    memory, end, entries = yield from _store(kernels, batch, EXTRA_NONE, "MQTT")
    if size == BODY_SIZES[0]:
        yield "MQTT: encode PUBACKs", lambda: mqtt.encode_acks(batch, 0, MESSAGES)
        yield "store: entries of a private queue", lambda: kernels.store.widen(entries, 0, 0, 0)
    topic = len(MQTT_TOPIC).to_bytes(2, "big") + MQTT_TOPIC
    yield (
        "MQTT: encode PUBLISH from the log, QoS 1",
        lambda: kernels.publishes.encode_publishes(memory, 0, end, topic, 0x32, 1),
    )
    yield "store: check records (recovery)", lambda: kernels.walk.scan(memory, 0, end, 0, NO_BATCH)
    yield (
        "store: gather records (catching up, in memory)",
        lambda: kernels.walk.gather(entries, 20, 0, memory, 0, end, False),
    )


def _mqtt_publish(size: int) -> Callable[[int], bytes]:
    body = len(MQTT_TOPIC).to_bytes(2, "big") + MQTT_TOPIC
    length = len(body) + 2 + size
    head = bytes((0x32, length & 0x7F | 0x80, length >> 7)) + body
    return lambda identifier: head + identifier.to_bytes(2, "big") + b"x" * size


# --- the store ------------------------------------------------------------------------------


def _store(
    kernels: Kernels, batch: Batch, extra_kind: int, protocol: str
) -> Generator[Stage, None, tuple[bytearray, int, bytes]]:
    """Stages of an append; returns the memory, where the records end, and their entries."""
    store = kernels.store
    form = RecordTemplate(
        topic=b"bench",
        queue_id=0,
        properties=b"TAGS\x010\x02PMQ_QOS\x011\x02",
        tag_hash=48,
        extra_kind=extra_kind,
        extra_name=b"PMQ_AMQP" if extra_kind else b"",
    ).form
    targets = ((7, 1000),) if protocol == "MQTT" else ((7, 1000), (8, 1000))
    total = store.run_size(batch, 0, MESSAGES, form, len(targets), 0)[0]
    memory = bytearray(total)

    def append() -> Any:
        store.run_size(batch, 0, MESSAGES, form, len(targets), 0)
        return store.append_run(
            memory, 0, total, 0, form, HOSTS, b"", targets, 0, batch, 0, MESSAGES, NOW_MS, NOW_MS
        )

    yield f"store: append {protocol}'s, {len(targets)} queues, checksums", append
    count, end, entries = append()
    assert (count, end) == (MESSAGES, total)
    return memory, end, entries


# --- AMQP -----------------------------------------------------------------------------------


def _amqp(kernels: Kernels, size: int) -> Iterator[Stage]:
    amqp = kernels.amqp
    buffer = bytearray(_amqp_publish(size) * MESSAGES)
    method = b"\x00\x3c\x00\x50"
    acks = bytearray(
        b"".join(_frame(1, method + tag.to_bytes(8, "big") + b"\x00") for tag in range(1, 501))
    )
    batch, runs = Batch(), array("q", bytes(8 * CAPACITY))
    settlements = array("q", bytes(8 * 5 * CAPACITY))

    def parse(source: bytearray) -> Any:
        return amqp.parse(
            source, 0, len(source), FRAME_BYTES_MAX, PACKET_BYTES_MAX, batch, runs, settlements
        )

    if size == BODY_SIZES[0]:
        yield "AMQP: parse basic.ack", lambda: parse(acks)
    yield "AMQP: parse basic.publish", lambda: parse(buffer)
    parse(buffer)
    assert batch.count == MESSAGES
    memory, end, _ = yield from _store(kernels, batch, EXTRA_BASE64, "AMQP")
    prefix_size = len(b"TAGS\x010\x02PMQ_QOS\x011\x02")
    head = b"\x00\x3c\x00\x3c\x01c"
    tail = b"\x00" + bytes((len(AMQP_QUEUE),)) + AMQP_QUEUE
    yield (
        "AMQP: encode basic.deliver from the log",
        lambda: amqp.encode_deliveries(
            memory, 0, end, 1, FRAME_BYTES_MAX, head, 1, False, tail, prefix_size, b"\x00\x00"
        ),
    )


def _amqp_publish(size: int) -> bytes:
    method = b"\x00\x3c\x00\x28\x00\x00\x00" + bytes((len(AMQP_QUEUE),)) + AMQP_QUEUE + b"\x00"
    header = b"\x00\x3c\x00\x00" + size.to_bytes(8, "big") + b"\x10\x00\x02"
    return _frame(1, method) + _frame(2, header) + _frame(3, b"x" * size)


def _frame(kind: int, payload: bytes) -> bytes:
    return bytes((kind, 0, 1)) + len(payload).to_bytes(4, "big") + payload + b"\xce"
