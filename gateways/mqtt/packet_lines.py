"""What packets say, for an operator who traces a connection. Pure: bytes in, values out.

Rules:

* Passwords and authentication data are never in what is returned; payloads only if they are asked
  for, and cut.
* Memory is bounded: of a packet that is not whole yet, its beginning is kept, and the size of the
  rest is counted down.
* Packets that break the protocol are for the connection to answer: here they end the trace of their
  direction.
* Neighbouring packets that say the same but for their packet ids are one line with a count.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

NAMES: Final = (
    *("RESERVED", "CONNECT", "CONNACK", "PUBLISH", "PUBACK", "PUBREC", "PUBREL", "PUBCOMP"),
    *("SUBSCRIBE", "SUBACK", "UNSUBSCRIBE", "UNSUBACK", "PINGREQ", "PINGRESP", "DISCONNECT"),
    "AUTH",
)
HEAD_BYTES: Final = 2048
"""Of a packet's beginning, beside its payload: longer topic names are cut."""
TOPIC_CHARACTERS: Final = 500
FILTERS_MAX: Final = 20
"""Filters of one packet that are shown."""
ALIASES_MAX: Final = 64
"""Topic Aliases of one direction that are remembered."""
PAYLOAD_MAX: Final = 4096
_ANSWERS: Final = frozenset({"PUBACK", "PUBREC", "PUBREL", "PUBCOMP"})


class Broken(Exception):
    """The bytes are no packets."""


class Splitter:
    """The packets of one direction of a connection.

    Args:
        head_max: how many bytes of a packet are returned at most.
    """

    def __init__(self, head_max: int) -> None:
        self._head_max = head_max
        self._head = b""  # of a packet that is not whole
        self._size = 0  # of that packet; 0: not known yet
        self._left = 0  # bytes of it that have not come

    def feed(self, data: bytes) -> Iterator[tuple[bytes, int]]:
        """The beginning and the size of each packet that is whole now. Raises Broken."""
        if self._size:
            taken = min(self._left, len(data))
            room = self._head_max - len(self._head)
            self._head += data[: min(room, taken)]
            self._left -= taken
            if self._left:
                return
            yield self._head, self._size
            at = taken
        else:
            data = self._head + data
            at = 0
        self._head, self._size = b"", 0
        while at < len(data):
            size = _packet_size(data, at)
            if size is None:
                self._head = data[at:]
                return
            head = data[at : at + min(size, self._head_max)]
            if at + size > len(data):
                self._head, self._size = head, size
                self._left = at + size - len(data)
                return
            yield head, size
            at += size


def _packet_size(data: bytes, at: int) -> int | None:
    size = shift = 0
    for index in range(at + 1, min(at + 5, len(data))):
        size |= (data[index] & 0x7F) << shift
        shift += 7
        if data[index] < 0x80:
            return index + 1 - at + size
    if len(data) >= at + 5:
        raise Broken
    return None


class PacketLines:
    """Lines about one direction of a connection.

    Args:
        is_five: the client speaks MQTT 5.
        payload_max: bytes of a payload that are shown; 0: none.
    """

    def __init__(self, *, is_five: bool, payload_max: int = 0) -> None:
        self._is_five = is_five
        self._payload_max = min(payload_max, PAYLOAD_MAX)
        self._splitter = Splitter(HEAD_BYTES + self._payload_max)
        self._aliases: dict[int, str] = {}
        self._is_broken = False

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """What the packets say that are whole now: `packet`, `count`, `bytes`, and what belongs to
        the type."""
        if self._is_broken:
            return
        last: dict[str, Any] | None = None
        try:
            for head, size in self._splitter.feed(data):
                line = self._line(head, size)
                if last is not None and _alike(last, line):
                    last["count"] += 1
                    last["bytes"] += size
                    continue
                if last is not None:
                    yield last
                last = line
        except Broken:
            self._is_broken = True
        if last is not None:
            yield last

    def _line(self, head: bytes, size: int) -> dict[str, Any]:
        name = NAMES[head[0] >> 4]
        line: dict[str, Any] = {"packet": name, "count": 1, "bytes": size}
        at = 1
        while at < len(head) and head[at] >= 0x80:
            at += 1
        body = _Fields(head, at + 1)
        if name == "PUBLISH":
            self._publish(line, head[0], body)
        elif name in _ANSWERS:
            line["packet_id"] = body.number(2)
            line["reason"] = body.number(1) if body.left else 0
        elif name in ("SUBSCRIBE", "UNSUBSCRIBE"):
            line["packet_id"] = body.number(2)
            self._skip_properties(body)
            line["filters"] = list(_filters(body, with_options=name == "SUBSCRIBE"))
        elif name in ("SUBACK", "UNSUBACK"):
            line["packet_id"] = body.number(2)
            self._skip_properties(body)
            line["codes"] = list(body.rest()[:FILTERS_MAX])
        elif name == "CONNACK":
            line["present"] = bool(body.number(1) & 1)
            line["reason"] = body.number(1)
        elif name in ("DISCONNECT", "AUTH"):
            line["reason"] = body.number(1) if body.left else 0
        return line

    def _publish(self, line: dict[str, Any], first: int, body: _Fields) -> None:
        topic = body.text()
        qos = first >> 1 & 3
        packet_id = body.number(2) if qos else None
        if self._is_five:
            topic = self._topic_of(topic, self._skip_properties(body))
        line |= {
            "topic": topic[:TOPIC_CHARACTERS],
            "qos": qos,
            "retain": bool(first & 1),
            "duplicate": bool(first & 8),
        }
        if packet_id is not None:
            line["packet_id"] = packet_id
        if self._payload_max:
            payload = body.rest()[: self._payload_max]
            line["payload"] = payload.decode("utf-8", "backslashreplace")

    def _topic_of(self, topic: str, properties: bytes) -> str:
        alias = _alias(properties)
        if alias is None:
            return topic
        if not topic:
            return self._aliases.get(alias, f"(topic alias {alias})")
        if alias in self._aliases or len(self._aliases) < ALIASES_MAX:
            self._aliases[alias] = topic
        return topic

    def _skip_properties(self, body: _Fields) -> bytes:
        return body.take(body.length()) if self._is_five else b""


def _alike(last: dict[str, Any], line: dict[str, Any]) -> bool:
    """Whether two packets say the same but for packet ids and sizes."""
    own = ("count", "bytes", "packet_id")
    return len(last) == len(line) and all(
        last.get(key) == value for key, value in line.items() if key not in own
    )


class _Fields:
    """The fields of a packet of which only the beginning may be there: what is missing is empty."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at

    @property
    def left(self) -> bool:
        return self._at < len(self._data)

    def take(self, size: int) -> bytes:
        found = self._data[self._at : self._at + size]
        self._at += size
        return found

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def length(self) -> int:
        size = shift = 0
        while self.left and shift < 28:
            byte = self.number(1)
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        return size

    def text(self) -> str:
        return self.take(self.number(2)).decode("utf-8", "backslashreplace")

    def rest(self) -> bytes:
        return self._data[self._at :]


def _filters(body: _Fields, *, with_options: bool) -> Iterator[str]:
    for _ in range(FILTERS_MAX):
        if not body.left:
            return
        name = body.text()[:TOPIC_CHARACTERS]
        yield f"{name} (qos {body.number(1) & 3})" if with_options else name


_TOPIC_ALIAS: Final = 0x23
_SIZES: Final = {0x01: 1, 0x02: 4, _TOPIC_ALIAS: 2}
_TEXTS: Final = frozenset({0x03, 0x08, 0x09})


def _alias(properties: bytes) -> int | None:
    """The Topic Alias among the properties of PUBLISH (5.0 part 3.3.2.3), if there is one."""
    body = _Fields(properties, 0)
    while body.left:
        identifier = body.number(1)
        if identifier == _TOPIC_ALIAS:
            return body.number(2)
        if identifier in _SIZES:
            body.take(_SIZES[identifier])
        elif identifier in _TEXTS:
            body.take(body.number(2))
        elif identifier == 0x26:
            body.take(body.number(2))
            body.take(body.number(2))
        elif identifier == 0x0B:
            body.length()
        else:
            return None
    return None
