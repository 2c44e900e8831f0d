"""The protocol of a connection whose other end is the server: bytes in, events out.

It is `protocol.py` with the roles exchanged. PUBLISH and the acknowledgements are the same in both
directions, so the kernel reads them as it does from clients. Here the first packet to come is
CONNACK, and what else comes is answers: SUBACK, UNSUBACK, PINGRESP, and DISCONNECT of MQTT 5.

Theory. WAIT_CONNECT is the state in which CONNECT was sent and CONNACK did not come; then the
connection is OPEN, whatever CONNACK says: who gets a refusal closes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from polymq.gateways.mqtt.bridging.packets import GOODBYE
from polymq.gateways.mqtt.errors import RemoteProtocolError, malformed
from polymq.gateways.mqtt.fields import read_length
from polymq.gateways.mqtt.limits import Limits
from polymq.gateways.mqtt.packets import (
    DISCONNECT_REASONS,
    MQTT_5,
    Answer,
    PacketType,
    encode_disconnect,
)
from polymq.gateways.mqtt.protocol import NEED_DATA, Event, Inbox, Protocol, State
from polymq.gateways.mqtt.reason_codes import ReasonCode

ANSWERS: Final[Mapping[tuple[State, PacketType], State]] = {
    (State.WAIT_CONNECT, PacketType.CONNACK): State.OPEN,
    (State.OPEN, PacketType.SUBACK): State.OPEN,
    (State.OPEN, PacketType.UNSUBACK): State.OPEN,
    (State.OPEN, PacketType.PINGRESP): State.OPEN,
    (State.OPEN, PacketType.DISCONNECT): State.CLOSED,
}
ANSWER_BYTES_MAX: Final = 256 * 1024
"""Of these packets: properties of two kinds, and a code for each filter."""
_FORMER: Final = {ReasonCode.SERVER_SHUTTING_DOWN, ReasonCode.SUCCESS}
"""Why a connection ends with a DISCONNECT without a reason."""


class RemoteCore(Protocol):
    """The protocol state of one connection to a server.

    Args:
        level: of the protocol, as CONNECT says it but for the bridge bit.
    """

    __slots__ = ()

    def __init__(self, *, limits: Limits, inbox: Inbox, level: int) -> None:
        super().__init__(limits=limits, inbox=inbox)
        self.level = level

    def _next_packet(self, buffer: bytearray | bytes, start: int, end: int) -> Event:
        if start == end:
            return NEED_DATA
        first = buffer[start]
        kind, state = self._transition(first >> 4)
        if first & 0x0F:
            raise malformed("MQTT-2.2.2-2", f"the flags of {kind.name} are wrong")
        found = read_length(buffer, start + 1, end, is_minimal=self.level == MQTT_5)
        if found is None:
            return NEED_DATA
        length, content = found
        if length > ANSWER_BYTES_MAX:
            raise RemoteProtocolError(
                "our limit", f"{kind.name} is too large", ReasonCode.PACKET_TOO_LARGE
            )
        if length > end - content:
            return NEED_DATA
        self.at = content + length
        self._enter(state)
        return Answer(kind=kind, data=bytes(buffer[content : self.at]))

    def _transition(self, number: int) -> tuple[PacketType, State]:
        try:
            kind = PacketType(number)
        except ValueError as error:
            raise malformed(self._part_of_types, f"packet type {number} is reserved") from error
        state = ANSWERS.get((self.state, kind))
        if state is None or (kind is PacketType.DISCONNECT and self.level < MQTT_5):
            if self.state is State.WAIT_CONNECT:
                raise RemoteProtocolError("MQTT-3.2.0-1", f"{kind.name} came before CONNACK")
            if kind is PacketType.AUTH and self.level == MQTT_5:
                text = "AUTH came, and CONNECT had no authentication method"
                raise RemoteProtocolError("MQTT-4.12.0-6", text)
            raise RemoteProtocolError(self._part_of_types, f"a server does not send {kind.name}")
        return kind, state

    @property
    def _part_of_types(self) -> str:
        """Of the standard: which packets there are, and who sends them."""
        return "5.0 part 2.1.2" if self.level == MQTT_5 else "3.1.1 part 2.2.1"

    def say_goodbye(self, reason: ReasonCode, text: str = "") -> bytes:
        """What the server is told before the connection is closed. A connection of MQTT 3.1.1 that
        fails ends without DISCONNECT, so that the will is published."""
        state = self.state
        self.close()
        if state is not State.OPEN:
            return b""
        if reason in _FORMER:
            return GOODBYE
        if self.level < MQTT_5:
            return b""
        known = reason in DISCONNECT_REASONS
        return encode_disconnect(reason if known else ReasonCode.UNSPECIFIED_ERROR)
