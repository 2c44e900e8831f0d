"""How often which reason code was sent and received in which packet: of MQTT 5, whose answers have
them (5.0 part 2.4).

There are as many counters as packets have reason codes in the standard, whatever clients send:
packets with other codes are refused before they come here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

Counts = Mapping[tuple[int, int], int]
"""By packet type and reason code."""
_DISCONNECT: Final = 14
_CONNACK: Final = 2


class ReasonCounts:
    """The counters of one listener. Successes come here by the run."""

    __slots__ = ("_received", "_sent")

    def __init__(self) -> None:
        self._sent: dict[tuple[int, int], int] = {}
        self._received: dict[tuple[int, int], int] = {}

    @property
    def all_sent(self) -> Counts:
        """Of packets to clients."""
        return self._sent

    @property
    def all_received(self) -> Counts:
        """Of packets from clients."""
        return self._received

    def sent(self, kind: int, code: int, count: int = 1) -> None:
        """So many packets of this type with this code are sent; of SUBACK and UNSUBACK, so many
        codes."""
        if count:
            self._sent[kind, code] = self._sent.get((kind, code), 0) + count

    def received(self, kind: int, code: int, count: int = 1) -> None:
        """The same of packets that were received."""
        if count:
            self._received[kind, code] = self._received.get((kind, code), 0) + count

    def sent_codes(self, kind: int, codes: bytes | bytearray) -> None:
        """One packet is sent with a code for each topic filter."""
        for code in set(codes):
            self.sent(kind, code, codes.count(code))

    def sent_packet(self, packet: bytes) -> None:
        """A CONNACK or DISCONNECT of MQTT 5 with less than 128 bytes is sent."""
        kind = packet[0] >> 4
        if kind == _CONNACK:
            self.sent(kind, packet[3])
        elif kind == _DISCONNECT:
            self.sent(kind, packet[2])
