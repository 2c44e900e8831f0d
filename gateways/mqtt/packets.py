"""The control packets of MQTT 3.1.1 as values, and their codec.

PUBLISH and the acknowledgements don't come here: they go through the kernels in batches. The
decoder takes one whole packet and gives a value, or raises `RemoteProtocolError` naming the rule of
the standard that was broken. Nothing here knows topics' meaning, sockets or clocks.

Text is strict: what is not well-formed UTF-8 [MQTT-1.5.3-1] or contains U+0000 [MQTT-1.5.3-2]
closes the connection. So do the other control characters, which 3.1.1 allows a receiver to refuse
(part 1.5.3): U+0001 and U+0002 separate properties in the log, the rest only hurts consoles.
A byte order mark is a character like others [MQTT-1.5.3-3].
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from polymq.gateways.mqtt.kernels.codes import REMAINING_LENGTH_MAX

Buffer = bytes | bytearray | memoryview


class ProtocolError(Exception):
    """Base of the two; never raised itself."""


class LocalProtocolError(ProtocolError):
    """We tried to do what the protocol forbids: our bug."""


class RemoteProtocolError(ProtocolError):
    """The client broke the protocol: its connection has to be closed [MQTT-4.8.0-1].

    Args:
        rule: the normative statement or the part of 3.1.1 that was broken.
        text: one sentence for the log.
        answer: what to send before closing, where the standard has an answer.
    """

    def __init__(self, rule: str, text: str, *, answer: bytes = b"") -> None:
        super().__init__(f"{text} [{rule}]")
        self.rule = rule
        self.answer = answer


class PacketType(enum.IntEnum):
    """The high half of a packet's first byte (3.1.1 part 2.2.1); 0 and 15 are reserved."""

    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14


class ConnectCode(enum.IntEnum):
    """CONNACK return codes (3.1.1 table 3.1)."""

    ACCEPTED = 0
    UNACCEPTABLE_LEVEL = 1
    IDENTIFIER_REJECTED = 2
    SERVER_UNAVAILABLE = 3
    BAD_CREDENTIALS = 4
    NOT_AUTHORIZED = 5


SUBSCRIBE_FAILURE: Final = 0x80
"""SUBACK return code of a filter that is refused [MQTT-3.9.3-2]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Will:
    topic: str
    body: bytes
    qos: int
    retain: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Connect:
    level: int
    """4 for MQTT 3.1.1, 3 for 3.1."""
    client_id: str
    """Empty: the server makes one up (clean session only)."""
    clean: bool
    keep_alive_seconds: int
    """0: the client need not say anything."""
    will: Will | None = None
    user: str | None = None
    password: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscribe:
    packet_id: int
    payload: bytes
    """The filters as they came. A large packet may have millions of them, so they are decoded one
    at a time (`filters`)."""

    def filters(self) -> Iterator[tuple[str, int]]:
        """Topic filter and requested QoS, in the client's order.

        Raises:
            RemoteProtocolError: at the first filter that breaks a rule.
        """
        content = _Content(self.payload, "SUBSCRIBE")
        while content.left:
            pattern = decode_filter(content.field())
            qos = content.byte()
            if qos > 2:
                raise RemoteProtocolError("MQTT-3-8.3-4", "a requested QoS is not 0, 1 or 2")
            yield pattern, qos


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsubscribe:
    packet_id: int
    payload: bytes
    """See `Subscribe`."""

    def filters(self) -> Iterator[str]:
        """Topic filters, in the client's order. Raises as those of `Subscribe`."""
        content = _Content(self.payload, "UNSUBSCRIBE")
        while content.left:
            yield decode_filter(content.field())


@dataclass(frozen=True, slots=True, kw_only=True)
class PingRequest:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Disconnect:
    pass


Packet = Connect | Subscribe | Unsubscribe | PingRequest | Disconnect

# --- fixed header ----------------------------------------------------------------------------

FIXED_FLAGS: Final[Mapping[PacketType, int]] = {
    PacketType.CONNECT: 0,
    PacketType.SUBSCRIBE: 0b0010,  # [MQTT-3.8.1-1]
    PacketType.UNSUBSCRIBE: 0b0010,  # [MQTT-3.10.1-1]
    PacketType.PINGREQ: 0,
    PacketType.DISCONNECT: 0,  # [MQTT-3.14.1-1]
}
"""Low half of the first byte of the packets that the codec reads (3.1.1 table 2.2)."""


def read_length(buffer: Buffer, at: int, end: int) -> tuple[int, int] | None:
    """The Remaining Length at `at`: its value and where the content starts; None if cut off."""
    value = 0
    for index in range(4):
        if at + index >= end:
            return None
        byte = buffer[at + index]
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, at + index + 1
    raise RemoteProtocolError("3.1.1 part 2.2.3", "the Remaining Length goes on after four bytes")


# --- text ------------------------------------------------------------------------------------

_CONTROL_CHARACTERS: Final = re.compile("[\x01-\x1f\x7f-\x9f]")


def decode_text(raw: bytes, what: str) -> str:
    """UTF-8 text of a packet. `what` names it in the error."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RemoteProtocolError("MQTT-1.5.3-1", f"{what} is not well-formed UTF-8") from error
    if "\x00" in text:
        raise RemoteProtocolError("MQTT-1.5.3-2", f"{what} contains U+0000")
    if _CONTROL_CHARACTERS.search(text):
        raise RemoteProtocolError("3.1.1 part 1.5.3", f"{what} contains a control character")
    return text


def decode_topic(raw: bytes, what: str = "the topic name") -> str:
    """A topic name: text, not empty, without wildcards."""
    if not raw:
        raise RemoteProtocolError("MQTT-4.7.3-1", f"{what} is empty")
    text = decode_text(raw, what)
    if "+" in text or "#" in text:
        raise RemoteProtocolError("MQTT-3.3.2-2", f"{what} contains a wildcard")
    return text


def decode_filter(raw: bytes) -> str:
    """A topic filter: text, not empty, `+` alone in its level, `#` alone in the last one."""
    if not raw:
        raise RemoteProtocolError("MQTT-4.7.3-1", "a topic filter is empty")
    text = decode_text(raw, "a topic filter")
    if "#" in text and (text.index("#") != len(text) - 1 or text[-2:-1] not in ("", "/")):
        raise RemoteProtocolError("MQTT-4.7.1-2", "`#` is not alone in the last level of a filter")
    if "+" in text and any("+" in level and level != "+" for level in text.split("/")):
        raise RemoteProtocolError("MQTT-4.7.1-3", "`+` is not alone in its level of a filter")
    return text


class _Content:
    """What follows the fixed header, read from the front."""

    __slots__ = ("_at", "_data", "_name")

    def __init__(self, data: bytes, name: str) -> None:
        self._data = data
        self._at = 0
        self._name = name

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, size: int) -> bytes:
        if size > self.left:
            raise RemoteProtocolError("3.1.1 part 2.2.3", f"{self._name} ends within a field")
        data = self._data[self._at : self._at + size]
        self._at += size
        return data

    def byte(self) -> int:
        return self.take(1)[0]

    def two_bytes(self) -> int:
        return int.from_bytes(self.take(2), "big")

    def field(self) -> bytes:
        return self.take(self.two_bytes())

    def packet_id(self) -> int:
        packet_id = self.two_bytes()
        if packet_id == 0:
            raise RemoteProtocolError("MQTT-2.3.1-1", f"{self._name} has packet id 0")
        return packet_id

    def rest(self) -> bytes:
        return self.take(self.left)

    def finish(self) -> None:
        if self.left:
            raise RemoteProtocolError("3.1.1 part 2.2.3", f"{self._name} goes on after its end")


# --- decoding --------------------------------------------------------------------------------

_LEVELS: Final[Mapping[bytes, int]] = {b"MQTT": 4, b"MQIsdp": 3}

_CLEAN: Final = 0x02
_WILL: Final = 0x04
_WILL_QOS: Final = 0x18
_WILL_RETAIN: Final = 0x20
_PASSWORD: Final = 0x40
_USER: Final = 0x80


def decode_packet(kind: PacketType, data: bytes) -> Packet:
    """One packet from a client, without its fixed header. The filters of SUBSCRIBE and UNSUBSCRIBE
    are not looked at yet.

    Raises:
        RemoteProtocolError: with the rule that it breaks.
    """
    content = _Content(data, kind.name)
    packet = _DECODERS[kind](content)
    content.finish()
    return packet


def _decode_connect(content: _Content) -> Connect:
    name = content.field()
    if name not in _LEVELS:
        raise RemoteProtocolError("MQTT-3.1.2-1", "the protocol name is neither MQTT nor MQIsdp")
    level = content.byte()
    if level != _LEVELS[name]:
        raise RemoteProtocolError(
            "MQTT-3.1.2-2",
            f"protocol level {level} of {name.decode()} is not supported",
            answer=encode_connack(ConnectCode.UNACCEPTABLE_LEVEL),
        )
    flags = content.byte()
    _check_connect_flags(flags)
    keep_alive_seconds = content.two_bytes()
    client_id = decode_text(content.field(), "the client id")
    clean = bool(flags & _CLEAN)
    if not client_id and (not clean or level == 3):
        raise RemoteProtocolError(
            "MQTT-3.1.3-8",
            "an empty client id without a clean session",
            answer=encode_connack(ConnectCode.IDENTIFIER_REJECTED),
        )
    will = None
    if flags & _WILL:
        will = Will(
            topic=decode_topic(content.field(), "the will topic"),
            body=content.field(),
            qos=(flags & _WILL_QOS) >> 3,
            retain=bool(flags & _WILL_RETAIN),
        )
    return Connect(
        level=level,
        client_id=client_id,
        clean=clean,
        keep_alive_seconds=keep_alive_seconds,
        will=will,
        user=decode_text(content.field(), "the user name") if flags & _USER else None,
        password=content.field() if flags & _PASSWORD else None,
    )


def _check_connect_flags(flags: int) -> None:
    if flags & 0x01:
        raise RemoteProtocolError("MQTT-3.1.2-3", "the reserved connect flag is set")
    if flags & _WILL_QOS == _WILL_QOS:
        raise RemoteProtocolError("MQTT-3.1.2-14", "the will's QoS is 3")
    if not flags & _WILL and flags & _WILL_QOS:
        raise RemoteProtocolError("MQTT-3.1.2-13", "a will's QoS without a will")
    if not flags & _WILL and flags & _WILL_RETAIN:
        raise RemoteProtocolError("MQTT-3.1.2-15", "a will's RETAIN without a will")
    if not flags & _USER and flags & _PASSWORD:
        raise RemoteProtocolError("MQTT-3.1.2-22", "a password without a user name")


def _decode_subscribe(content: _Content) -> Subscribe:
    packet_id = content.packet_id()
    if not content.left:
        raise RemoteProtocolError("MQTT-3.8.3-3", "SUBSCRIBE has no topic filter")
    return Subscribe(packet_id=packet_id, payload=content.rest())


def _decode_unsubscribe(content: _Content) -> Unsubscribe:
    packet_id = content.packet_id()
    if not content.left:
        raise RemoteProtocolError("MQTT-3.10.3-2", "UNSUBSCRIBE has no topic filter")
    return Unsubscribe(packet_id=packet_id, payload=content.rest())


_DECODERS: Final[Mapping[PacketType, Callable[[_Content], Packet]]] = {
    PacketType.CONNECT: _decode_connect,
    PacketType.SUBSCRIBE: _decode_subscribe,
    PacketType.UNSUBSCRIBE: _decode_unsubscribe,
    PacketType.PINGREQ: lambda _content: PingRequest(),
    PacketType.DISCONNECT: lambda _content: Disconnect(),
}

# --- encoding --------------------------------------------------------------------------------


def encode_length(size: int) -> bytes:
    """A Remaining Length (3.1.1 part 2.2.3)."""
    if not 0 <= size <= REMAINING_LENGTH_MAX:
        raise LocalProtocolError(f"a packet of {size} bytes does not exist in MQTT")
    out = bytearray()
    while size > 0x7F:
        out.append(size & 0x7F | 0x80)
        size >>= 7
    out.append(size)
    return bytes(out)


def encode_connack(code: ConnectCode, *, present: bool = False) -> bytes:
    """CONNACK. Session Present is 0 in a refusal [MQTT-3.2.2-4]."""
    if present and code is not ConnectCode.ACCEPTED:
        raise LocalProtocolError("a refused CONNECT has no session")
    return bytes((PacketType.CONNACK << 4, 2, present, code))


def encode_suback(packet_id: int, codes: Sequence[int]) -> bytes:
    """SUBACK: one code per filter, in the filters' order [MQTT-3.8.4-5]."""
    content = packet_id.to_bytes(2, "big") + bytes(codes)
    return bytes((PacketType.SUBACK << 4,)) + encode_length(len(content)) + content


def encode_unsuback(packet_id: int) -> bytes:
    """UNSUBACK, with the packet id of its UNSUBSCRIBE [MQTT-3.10.4-4]."""
    return bytes((PacketType.UNSUBACK << 4, 2)) + packet_id.to_bytes(2, "big")


PING_RESPONSE: Final = bytes((PacketType.PINGRESP << 4, 0))
