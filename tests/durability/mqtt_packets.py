"""The few packets of MQTT 3.1.1 that these tests say and hear, written from the standard."""

from __future__ import annotations


def packet(first_byte: int, content: bytes = b"") -> bytes:
    """A whole packet; its size takes one to four bytes (3.1.1, part 2.2.3)."""
    size, length = len(content), bytearray()
    while size > 127:
        length.append(size % 128 + 128)
        size //= 128
    length.append(size)
    return bytes([first_byte]) + bytes(length) + content


def _field(text: str) -> bytes:
    raw = text.encode()
    return len(raw).to_bytes(2, "big") + raw


def _numbered(first_byte: int, packet_id: int, content: bytes = b"") -> bytes:
    return packet(first_byte, packet_id.to_bytes(2, "big") + content)


def connect(client_id: str, *, clean: bool) -> bytes:
    return packet(0x10, _field("MQTT") + bytes([4, 2 * clean, 0, 0]) + _field(client_id))


def publish(
    topic: str, body: bytes = b"", *, qos: int = 0, packet_id: int = 0, retain: bool = False
) -> bytes:
    identifier = packet_id.to_bytes(2, "big") if qos else b""
    return packet(0x30 | qos << 1 | retain, _field(topic) + identifier + body)


def subscribe(packet_id: int, *filters: tuple[str, int]) -> bytes:
    content = b"".join(_field(pattern) + bytes([qos]) for pattern, qos in filters)
    return _numbered(0x82, packet_id, content)


def unsubscribe(packet_id: int, *filters: str) -> bytes:
    return _numbered(0xA2, packet_id, b"".join(map(_field, filters)))


def connack(code: int = 0, *, present: bool = False) -> bytes:
    return packet(0x20, bytes([present, code]))


def puback(packet_id: int) -> bytes:
    return _numbered(0x40, packet_id)


def pubrec(packet_id: int) -> bytes:
    return _numbered(0x50, packet_id)


def pubrel(packet_id: int) -> bytes:
    return _numbered(0x62, packet_id)


def pubcomp(packet_id: int) -> bytes:
    return _numbered(0x70, packet_id)


def suback(packet_id: int, *codes: int) -> bytes:
    return _numbered(0x90, packet_id, bytes(codes))


def unsuback(packet_id: int) -> bytes:
    return _numbered(0xB0, packet_id)


PINGREQ = packet(0xC0)
PINGRESP = packet(0xD0)
