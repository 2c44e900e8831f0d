"""Messages that come back to the broker that they began at, by way of others. Pure.

What a bridge of MQTT 5 sends has a User Property that names this broker. Brokers leave User
Properties as they are [MQTT-3.3.2-17], so a message that comes in with this broker's name has been
here before: it is acknowledged and dropped. The name is looked for in the bytes of a whole run,
and only if it is there in those of each message.
"""

from __future__ import annotations

from typing import Final

from polymq.core_log.kernels.batch import COLUMNS, EXTRA_SIZE, EXTRA_START, FLAGS, Batch
from polymq.gateways.mqtt.kernels.codes import REFUSED_BASE, REFUSED_SHIFT
from polymq.gateways.mqtt.properties import Property, encode_block
from polymq.gateways.mqtt.reason_codes import ReasonCode

USER_PROPERTY: Final = "polymq-via"
"""Its name; its value is the name of a broker."""


def marker_of(broker: str) -> bytes:
    """The property, as it stands in a packet."""
    return encode_block({Property.USER_PROPERTY: [(USER_PROPERTY, broker)]})


def mark_looped(batch: Batch, first: int, last: int, marker: bytes) -> int:
    """Mark those of rows [first, last), which have properties, that have the marker among them as
    refused. Returns how many they are."""
    buffer, rows = batch.buffer, batch.rows
    assert not isinstance(buffer, memoryview)
    begin = rows[first * COLUMNS + EXTRA_START]
    at = (last - 1) * COLUMNS
    end = rows[at + EXTRA_START] + rows[at + EXTRA_SIZE]
    if buffer.find(marker, begin, end) < 0:
        return 0
    bits = ReasonCode.IMPLEMENTATION_ERROR - REFUSED_BASE << REFUSED_SHIFT
    count = 0
    for at in range(first * COLUMNS, last * COLUMNS, COLUMNS):
        start = rows[at + EXTRA_START]
        if buffer.find(marker, start, start + rows[at + EXTRA_SIZE]) >= 0:
            rows[at + FLAGS] |= bits
            count += 1
    return count
