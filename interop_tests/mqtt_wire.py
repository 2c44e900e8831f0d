"""MQTT 3.1.1 packets as bytes, written from the standard alone.

It shares nothing with the server's codec on purpose: a mistake there must not hide here.
"""

from __future__ import annotations


def remaining_length(size: int) -> bytes:
    out = bytearray()
    while size > 127:
        out.append(size % 128 + 128)
        size //= 128
    out.append(size)
    return bytes(out)


def packet(first_byte: int, content: bytes) -> bytes:
    return bytes([first_byte]) + remaining_length(len(content)) + content


def field(data: bytes | str) -> bytes:
    raw = data.encode() if isinstance(data, str) else data
    return len(raw).to_bytes(2, "big") + raw


def connect(
    client_id: bytes | str = "client",
    *,
    clean: bool = True,
    keep_alive: int = 0,
    will: tuple[str, bytes, int, bool] | None = None,
    user: bytes | str | None = None,
    password: bytes | None = None,
    name: str = "MQTT",
    level: int = 4,
) -> bytes:
    flags = 2 * clean
    payload = field(client_id)
    if will is not None:
        topic, message, qos, retain = will
        flags |= 4 | qos << 3 | 32 * retain
        payload += field(topic) + field(message)
    if user is not None:
        flags |= 128
        payload += field(user)
    if password is not None:
        flags |= 64
        payload += field(password)
    head = field(name) + bytes([level, flags]) + keep_alive.to_bytes(2, "big")
    return packet(0x10, head + payload)


def publish(
    topic: bytes | str,
    body: bytes = b"",
    *,
    qos: int = 0,
    packet_id: int = 0,
    retain: bool = False,
    duplicate: bool = False,
) -> bytes:
    content = field(topic)
    if qos:
        content += packet_id.to_bytes(2, "big")
    return packet(0x30 | duplicate << 3 | qos << 1 | retain, content + body)


def puback(packet_id: int) -> bytes:
    return packet(0x40, packet_id.to_bytes(2, "big"))


def pubrec(packet_id: int) -> bytes:
    return packet(0x50, packet_id.to_bytes(2, "big"))


def pubrel(packet_id: int) -> bytes:
    return packet(0x62, packet_id.to_bytes(2, "big"))


def pubcomp(packet_id: int) -> bytes:
    return packet(0x70, packet_id.to_bytes(2, "big"))


def subscribe(packet_id: int, *filters: tuple[bytes | str, int]) -> bytes:
    content = packet_id.to_bytes(2, "big")
    for pattern, qos in filters:
        content += field(pattern) + bytes([qos])
    return packet(0x82, content)


def unsubscribe(packet_id: int, *filters: bytes | str) -> bytes:
    return packet(0xA2, packet_id.to_bytes(2, "big") + b"".join(field(f) for f in filters))


PINGREQ = packet(0xC0, b"")
DISCONNECT = packet(0xE0, b"")

# --- what the server sends -------------------------------------------------------------------


def connack(code: int = 0, *, present: bool = False) -> bytes:
    return packet(0x20, bytes([present, code]))


def suback(packet_id: int, *codes: int) -> bytes:
    return packet(0x90, packet_id.to_bytes(2, "big") + bytes(codes))


def unsuback(packet_id: int) -> bytes:
    return packet(0xB0, packet_id.to_bytes(2, "big"))


PINGRESP = packet(0xD0, b"")


def split_packets(data: bytes) -> list[bytes]:
    """The whole packets of a stream."""
    packets = []
    at = 0
    while at < len(data):
        size, shift, body = 0, 0, at + 1
        while True:
            byte = data[body]
            body += 1
            size |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        assert body + size <= len(data), "a packet is cut off"
        packets.append(data[at : body + size])
        at = body + size
    return packets
