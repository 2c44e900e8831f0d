"""Deliveries of other protocols' messages to clients of MQTT 5: each with the properties that its
own became (`docs/properties.md`).

It takes some 20 us a message, so the engine is told which runs these are (`is_translated`), and
hands out few of them at a time.
"""

from __future__ import annotations

from typing import Final

from polymq.broker.port import (
    Delivery,
    RecordRun,
    RunMeta,
    expiry_seconds_left,
    mqtt_block,
)
from polymq.core_log.kernels.batch import RECORD_SIZE_AT
from polymq.gateways.mqtt.kernels.codes import IDENTIFIER_MAX
from polymq.gateways.mqtt.kernels.publishes import encode_publishes_5

ORIGIN_PROPERTY: Final = "PMQ_PROTO"
OWN_ORIGINS: Final = frozenset({"mqtt", "mqtt5"})
"""Whose messages have the properties of MQTT 5 as they came, or none."""


def is_translated(meta: RunMeta) -> bool:
    """Whether such messages came by another protocol. See `broker.port.TakesApart`."""
    return meta.properties.get(ORIGIN_PROPERTY) not in OWN_ORIGINS


def encode_translated(
    run: RecordRun,
    topic: bytes,
    first_byte: int,
    first_packet_id: int,
    more: bytes,
    now_ms: int,
    size_max: int,
    again: bytes,
) -> tuple[bytes, int]:
    """The packets of a run, and how many are left out: as `encode_publishes_5`."""
    packets: list[bytes] = []
    dropped = 0
    at = run.start
    packet_id = first_packet_id
    for message in Delivery((run,), 0, run.count, redelivered=False).messages():
        size = int.from_bytes(run.memory[at + RECORD_SIZE_AT : at + RECORD_SIZE_AT + 4], "big")
        left = expiry_seconds_left(message.properties, max(0, now_ms - message.store_ms))
        packet, is_dropped = encode_publishes_5(
            run.memory,
            at,
            at + size,
            topic,
            first_byte,
            packet_id,
            run.meta.prefix_size,
            mqtt_block(message.properties, expiry_seconds=left),
            more,
            now_ms,
            size_max,
        )
        packets.append(packet)
        dropped += is_dropped
        if not is_dropped:
            topic = again
        at += size
        packet_id = packet_id % IDENTIFIER_MAX + 1
    return b"".join(packets), dropped
