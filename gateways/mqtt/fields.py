"""The fields of which packets consist: numbers, text, topic names and filters.

Text is strict: what is not well-formed UTF-8 [MQTT-1.5.3-1] or contains U+0000 [MQTT-1.5.3-2]
closes the connection. So do the other control characters in what names something (topics, filters,
client ids, users), which the standard allows a receiver to refuse (3.1.1 part 1.5.3, 5.0 part
1.5.4): U+0001 and U+0002 separate properties in the log, the rest only hurts consoles. A byte order
mark is a character like others [MQTT-1.5.3-3].
"""

from __future__ import annotations

import re
from typing import Final

from polymq.gateways.mqtt.errors import LocalProtocolError, RemoteProtocolError, malformed
from polymq.gateways.mqtt.kernels.codes import REMAINING_LENGTH_MAX
from polymq.gateways.mqtt.reason_codes import ReasonCode

Buffer = bytes | bytearray | memoryview

_CONTROL_CHARACTERS: Final = re.compile("[\x01-\x1f\x7f-\x9f]")

# --- numbers ---------------------------------------------------------------------------------


def read_length(buffer: Buffer, at: int, end: int, *, is_minimal: bool) -> tuple[int, int] | None:
    """The Variable Byte Integer at `at`, as Remaining Length is one: its value and what is behind
    it; None if it is cut off.

    Args:
        is_minimal: it must not take more bytes than it needs, which only MQTT 5 demands.
    """
    value = 0
    for index in range(4):
        if at + index >= end:
            return None
        byte = buffer[at + index]
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            if is_minimal and index and byte == 0:
                raise malformed("MQTT-1.5.5-1", "a number takes more bytes than it needs")
            return value, at + index + 1
    raise malformed("3.1.1 part 2.2.3", "the Remaining Length goes on after four bytes")


def encode_length(size: int) -> bytes:
    """A Variable Byte Integer (3.1.1 part 2.2.3, 5.0 part 1.5.5)."""
    if not 0 <= size <= REMAINING_LENGTH_MAX:
        raise LocalProtocolError(f"a packet of {size} bytes does not exist in MQTT")
    out = bytearray()
    while size > 0x7F:
        out.append(size & 0x7F | 0x80)
        size >>= 7
    out.append(size)
    return bytes(out)


def encode_field(data: bytes) -> bytes:
    """Bytes or text with its size in front (5.0 parts 1.5.4, 1.5.6)."""
    return len(data).to_bytes(2, "big") + data


# --- text ------------------------------------------------------------------------------------


def decode_text(raw: bytes, what: str, *, is_name: bool = True) -> str:
    """UTF-8 text of a packet. `what` names it in the error.

    Args:
        is_name: it names something, so that control characters are refused as well.
    """
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise malformed("MQTT-1.5.3-1", f"{what} is not well-formed UTF-8") from error
    if "\x00" in text:
        raise malformed("MQTT-1.5.3-2", f"{what} contains U+0000")
    if is_name and _CONTROL_CHARACTERS.search(text):
        raise malformed("3.1.1 part 1.5.3", f"{what} contains a control character")
    return text


def decode_topic(raw: bytes, what: str = "the topic name") -> str:
    """A topic name: text, not empty, without wildcards."""
    if not raw:
        raise RemoteProtocolError("MQTT-4.7.3-1", f"{what} is empty")
    text = decode_text(raw, what)
    if "+" in text or "#" in text:
        raise RemoteProtocolError(
            "MQTT-3.3.2-2", f"{what} contains a wildcard", ReasonCode.TOPIC_NAME_INVALID
        )
    return text


def decode_filter(raw: bytes) -> str:
    """A topic filter: text, not empty, `+` alone in its level, `#` alone in the last one."""
    if not raw:
        raise malformed("MQTT-4.7.3-1", "a topic filter is empty")
    text = decode_text(raw, "a topic filter")
    invalid = ReasonCode.TOPIC_FILTER_INVALID
    if "#" in text and (text.index("#") != len(text) - 1 or text[-2:-1] not in ("", "/")):
        raise RemoteProtocolError(
            "MQTT-4.7.1-2", "`#` is not alone in the last level of a filter", invalid
        )
    if "+" in text and any("+" in level and level != "+" for level in text.split("/")):
        raise RemoteProtocolError(
            "MQTT-4.7.1-3", "`+` is not alone in its level of a filter", invalid
        )
    return text


# --- reading ---------------------------------------------------------------------------------


class Content:
    """What follows the fixed header, read from the front. Each method raises RemoteProtocolError
    where the bytes end too early.

    Args:
        name: of the packet, for errors.
    """

    __slots__ = ("_at", "_data", "name")

    def __init__(self, data: bytes, name: str) -> None:
        self._data = data
        self._at = 0
        self.name = name

    @property
    def left(self) -> int:
        """Bytes that were not read yet."""
        return len(self._data) - self._at

    def take(self, size: int) -> bytes:
        """The next bytes."""
        if size > self.left:
            raise malformed("3.1.1 part 2.2.3", f"{self.name} ends within a field")
        data = self._data[self._at : self._at + size]
        self._at += size
        return data

    def number(self, size: int) -> int:
        """A big-endian number of so many bytes."""
        return int.from_bytes(self.take(size), "big")

    def byte(self) -> int:
        """The next byte."""
        return self.take(1)[0]

    def length(self) -> int:
        """A Variable Byte Integer."""
        found = read_length(self._data, self._at, len(self._data), is_minimal=True)
        if found is None:
            raise malformed("MQTT-1.5.5-1", f"{self.name} ends within a length")
        value, self._at = found
        return value

    def field(self) -> bytes:
        """Bytes with their size in front."""
        return self.take(self.number(2))

    def packet_id(self) -> int:
        """A packet id, which is never 0."""
        packet_id = self.number(2)
        if packet_id == 0:
            raise RemoteProtocolError("MQTT-2.3.1-1", f"{self.name} has packet id 0")
        return packet_id

    def part(self, size: int) -> Content:
        """The next bytes as a content of their own."""
        return Content(self.take(size), self.name)

    def rest(self) -> bytes:
        """All that was not read yet."""
        return self.take(self.left)

    def finish(self) -> None:
        """Nothing may be left."""
        if self.left:
            raise malformed("3.1.1 part 2.2.3", f"{self.name} goes on after its end")
