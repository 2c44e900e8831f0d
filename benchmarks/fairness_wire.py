"""What the clients of the fairness benchmark say, byte by byte: a library in between would be
slower than the server, and would not send a thousand requests in one piece."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from typing import Any, Final

from benchmarks.errors import BenchmarkFailed
from polymq.gateways.amqp import spec
from polymq.gateways.amqp.methods import PROTOCOL_HEADER, encode_method, frame, method_frame
from polymq.remoting.codes import RequestCode
from polymq.remoting.frames import Command, encode_frame

RECEIVE_BYTES: Final = 256 * 1024
FRAME_MAX: Final = 131_072
PERSISTENT: Final = b"\x10\x00\x02"
"""Property flags and the property: delivery mode 2."""
CONTENT_HEADER, CONTENT_BODY = 2, 3


# --- MQTT -----------------------------------------------------------------------------------


def mqtt_string(text: bytes | str) -> bytes:
    """A string with its size."""
    data = text.encode() if isinstance(text, str) else text
    return len(data).to_bytes(2, "big") + data


def mqtt_packet(first: int, content: bytes) -> bytes:
    """A packet of any length."""
    size = len(content)
    length = bytearray()
    while True:
        size, seven = divmod(size, 128)
        length.append(seven | (0x80 if size else 0))
        if not size:
            return bytes((first,)) + bytes(length) + content


def mqtt_connect(opened: socket.socket, client_id: str, *, clean: bool = True) -> None:
    """Connect, and wait for CONNACK."""
    flags = b"\x02" if clean else b"\x00"
    opened.sendall(
        mqtt_packet(0x10, b"\x00\x04MQTT\x04" + flags + b"\x00\x00" + mqtt_string(client_id))
    )
    expect(opened, 4)


def mqtt_publish(topic: str, body: bytes, *, packet_id: int = 0, retain: bool = False) -> bytes:
    """PUBLISH, of QoS 1 if it has a packet id."""
    first = 0x30 | (0x02 if packet_id else 0) | retain
    identifier = packet_id.to_bytes(2, "big") if packet_id else b""
    return mqtt_packet(first, mqtt_string(topic) + identifier + body)


def mqtt_subscribe(filters: Sequence[str], qos: int = 0) -> bytes:
    """SUBSCRIBE with packet id 1."""
    return mqtt_packet(
        0x82, b"\x00\x01" + b"".join(mqtt_string(each) + bytes((qos,)) for each in filters)
    )


def mqtt_unsubscribe(filters: Sequence[str]) -> bytes:
    """UNSUBSCRIBE with packet id 2."""
    return mqtt_packet(0xA2, b"\x00\x02" + b"".join(mqtt_string(each) for each in filters))


def expect(opened: socket.socket, size: int) -> bytes:
    """So many bytes."""
    got = bytearray()
    while len(got) < size:
        data = opened.recv(min(size - len(got), RECEIVE_BYTES))
        if not data:
            raise BenchmarkFailed("the server closed a connection of the load")
        got += data
    return bytes(got)


# --- AMQP -----------------------------------------------------------------------------------


def amqp_publish(
    exchange: str,
    routing_key: str,
    body: bytes,
    *,
    persistent: bool = False,
    headers: bytes = b"",
) -> bytes:
    """A publish on channel 1, with its content."""
    method = encode_method(spec.BasicPublish(exchange=exchange, routing_key=routing_key))
    properties = PERSISTENT if persistent else b"\x00\x00"
    if headers:
        properties = b"\x20\x00" + headers
    head = b"\x00\x3c\x00\x00" + len(body).to_bytes(8, "big") + properties
    step = FRAME_MAX - 8
    bodies = [frame(CONTENT_BODY, 1, body[at : at + step]) for at in range(0, len(body), step)]
    return frame(1, 1, method) + frame(CONTENT_HEADER, 1, head) + b"".join(bodies)


class AmqpSpeaker:
    """A blocking AMQP client with one channel."""

    def __init__(self, opened: socket.socket) -> None:
        self.socket = opened
        self._got = b""
        self._confirmed = 0  # the highest tag
        opened.sendall(PROTOCOL_HEADER)
        self.methods(1)
        start = spec.ConnectionStartOk(mechanism="PLAIN", response=b"\x00guest\x00guest")
        self.socket.sendall(method_frame(0, start))
        self.methods(1)
        tune = spec.ConnectionTuneOk(channel_max=10, frame_max=FRAME_MAX)
        self.socket.sendall(
            method_frame(0, tune) + method_frame(0, spec.ConnectionOpen(virtual_host="/"))
        )
        self.methods(1)
        self.call(spec.ChannelOpen())

    def call(self, *requests: spec.Method) -> None:
        """Send the requests in one piece, and wait for as many answers."""
        self.socket.sendall(b"".join(method_frame(1, each) for each in requests))
        self.methods(len(requests))

    def methods(self, count: int) -> None:
        """Take so many frames of methods, and drop them."""
        while True:
            at = 0
            while count and len(self._got) - at >= 7:
                size = int.from_bytes(self._got[at + 3 : at + 7], "big") + 8
                if len(self._got) - at < size:
                    break
                if self._got[at] == 1:
                    count -= 1
                    if self._got[at + 7 : at + 11] in (b"\x00\x14\x00\x28", b"\x00\x0a\x00\x32"):
                        raise BenchmarkFailed(f"the server closed: {self._got[at : at + size]!r}")
                at += size
            self._got = self._got[at:]
            if not count:
                return
            data = self.socket.recv(RECEIVE_BYTES)
            if not data:
                raise BenchmarkFailed("the server closed an AMQP connection of the load")
            self._got += data

    def receive(self, count: int, body: bytes) -> None:
        """Take so many deliveries of small messages with this body, and drop them."""
        mark = body[-2:] + b"\xce"  # the end of the body, and of its frame
        got = self._got
        self._got = b""
        while (count := count - got.count(mark)) > 0:
            data = self.socket.recv(RECEIVE_BYTES)
            if not data:
                raise BenchmarkFailed("the server closed an AMQP connection of the load")
            got = got[1 - len(mark) :] + data

    def declare(
        self, *names: str, durable: bool = False, arguments: Mapping[str, Any] | None = None
    ) -> None:
        """Declare queues."""
        self.call(
            *(
                spec.QueueDeclare(queue=name, durable=durable, arguments=arguments or {})
                for name in names
            )
        )

    def confirm(self) -> None:
        """Ask for confirms from now on."""
        self.call(spec.ConfirmSelect())

    def confirmed(self, count: int) -> None:
        """Wait until the publish with this tag is confirmed."""
        while self._confirmed < count:
            while len(self._got) < 7 or len(self._got) < (
                size := int.from_bytes(self._got[3:7], "big") + 8
            ):
                data = self.socket.recv(RECEIVE_BYTES)
                if not data:
                    raise BenchmarkFailed("the server closed an AMQP connection of the load")
                self._got += data
            one, self._got = self._got[:size], self._got[size:]
            if one[7:11] not in (b"\x00\x3c\x00\x50", b"\x00\x3c\x00\x78"):
                raise BenchmarkFailed(f"the server sent {one[:200]!r} instead of a confirm")
            self._confirmed = max(self._confirmed, int.from_bytes(one[11:19], "big"))


# --- RocketMQ -------------------------------------------------------------------------------


def rocketmq_send(topic: str, body: bytes, opaque: int) -> bytes:
    """SEND_MESSAGE."""
    fields = {
        "producerGroup": "bench",
        "topic": topic,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "1",
        "queueId": "0",
        "sysFlag": "0",
        "bornTimestamp": "1700000000000",
        "flag": "0",
        "properties": "",
        "reconsumeTimes": "0",
        "unitMode": "false",
        "batch": "false",
    }
    return encode_frame(
        Command(code=RequestCode.SEND_MESSAGE, opaque=opaque, fields=fields, body=body)
    )
