"""What a client's acknowledgements do: a run, or a few packet ids, at a time; and which messages
count as acknowledged though they were never sent."""

from __future__ import annotations

from array import array
from collections.abc import Generator
from typing import Final

from polymq.broker.port import Position, Session
from polymq.gateways.mqtt.fields import read_length
from polymq.gateways.mqtt.kernels import codes
from polymq.gateways.mqtt.kernels.frames import encode_ids
from polymq.gateways.mqtt.reason_counts import ReasonCounts

_PUBCOMP: Final = 0x70
_TYPE_OF_PACKET: Final = 0x0F
"""Of the types that `kernels.parse` gives: the packet's own."""


def acknowledge(
    acks: array[int], ack_count: int, session: Session, counts: ReasonCounts | None = None
) -> Generator[None, None, tuple[Position, bytes, int]]:
    """Take acknowledgements of all kinds, in so many runs of `kernels.parse`. What the window has
    room for then is sent at the end: after each one, it would be one message for each.

    Args:
        counts: where reason codes are counted, of MQTT 5.

    Returns:
        The position that PUBCOMPs wait for, these, and how many there are.
    """
    completed = 0
    completions: list[bytes] = []
    position = session.position
    for at in range(0, codes.ACK_COLUMNS * ack_count, codes.ACK_COLUMNS):
        kind, first, count = acks[at] & codes.ACK_TYPE, acks[at + 1], acks[at + 2]
        if counts is not None:
            counts.received(kind & _TYPE_OF_PACKET, acks[at] >> codes.ACK_REASON_SHIFT, count)
        if kind == codes.TYPE_PUBACK:
            session.acknowledged(first, count, True)
        elif kind == codes.TYPE_PUBREC:
            session.received(first, count)
        elif kind == codes.TYPE_PUBREC_ERROR:
            session.rejected(first, count)
        elif kind == codes.TYPE_PUBCOMP:
            session.completed(first, count, True)
        else:  # PUBREL: answered also if the id is not known
            position = max(position, session.released(first, count))
            completions.append(encode_ids(_PUBCOMP, first, count))
            completed += count
            if counts is not None:
                counts.sent(_PUBCOMP >> 4, 0, count)
        yield
    session.resume_if_starved()
    return position, b"".join(completions), completed


def missing_ids(data: bytes, count: int, first_packet_id: int) -> list[int]:
    """Which of `count` consecutive packet ids the PUBLISH packets in `data` lack."""
    sent = set()
    at = 0
    while at < len(data):
        found = read_length(data, at + 1, len(data), is_minimal=True)
        assert found is not None
        length, content = found
        packet_id = content + 2 + int.from_bytes(data[content : content + 2], "big")
        sent.add(int.from_bytes(data[packet_id : packet_id + 2], "big"))
        at = content + length
    ids = ((first_packet_id - 1 + n) % codes.IDENTIFIER_MAX + 1 for n in range(count))
    return [packet_id for packet_id in ids if packet_id not in sent]
