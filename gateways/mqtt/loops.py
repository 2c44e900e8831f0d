"""Messages that come back to the broker that they were at before, by way of bridges. Pure.

What goes from one broker to another over a bridge of MQTT 5 gets a User Property that names the
broker that sends it: a bridge adds it to what it sends, and a server to what it sends to a client
that says in CONNECT that it is a bridge. Brokers leave User Properties as they are
[MQTT-3.3.2-17], so what comes in with this broker's name has been here: it is acknowledged and
dropped. The name is looked for in the bytes of a whole run, and only if it is there in those of
each message.
"""

from __future__ import annotations

from typing import Final

from polymq.core_log.kernels.batch import COLUMNS, EXTRA_SIZE, EXTRA_START, FLAGS, Batch
from polymq.gateways.mqtt.kernels.codes import REFUSED_BASE, REFUSED_SHIFT
from polymq.gateways.mqtt.properties import Property, encode_block
from polymq.gateways.mqtt.reason_codes import ReasonCode

VIA: Final = "polymq-via"
"""The name of the property; its value names a broker."""
LOOPED: Final = ReasonCode.IMPLEMENTATION_ERROR - REFUSED_BASE
"""How such rows are marked until they are acknowledged."""
REFUSED: Final = 0xFF << REFUSED_SHIFT


def marker_of(broker: str) -> bytes:
    """The property, as it stands in a packet."""
    return encode_block({Property.USER_PROPERTY: [(VIA, broker)]})


def mark_looped(batch: Batch, first: int, last: int, marker: bytes) -> int:
    """Mark those of rows [first, last), which have properties, that have the marker among them, but
    for those that are refused already. Returns how many they are."""
    buffer, rows = batch.buffer, batch.rows
    assert not isinstance(buffer, memoryview)
    begin = rows[first * COLUMNS + EXTRA_START]
    at = (last - 1) * COLUMNS
    end = rows[at + EXTRA_START] + rows[at + EXTRA_SIZE]
    if buffer.find(marker, begin, end) < 0:
        return 0
    count = 0
    for at in range(first * COLUMNS, last * COLUMNS, COLUMNS):
        start = rows[at + EXTRA_START]
        is_there = buffer.find(marker, start, start + rows[at + EXTRA_SIZE]) >= 0
        if is_there and not rows[at + FLAGS] & REFUSED:
            rows[at + FLAGS] |= LOOPED << REFUSED_SHIFT
            count += 1
    return count


def unmark_looped(batch: Batch, first: int, last: int) -> int:
    """Let those rows of [first, last) that `mark_looped` marked be acknowledged as if they were
    stored. Returns how many they are."""
    rows = batch.rows
    count = 0
    for at in range(first * COLUMNS + FLAGS, last * COLUMNS, COLUMNS):
        if (rows[at] & REFUSED) >> REFUSED_SHIFT == LOOPED:
            rows[at] &= ~REFUSED
            count += 1
    return count
