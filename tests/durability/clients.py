"""Clients that say exactly what a test wants to say, and wait for nothing that it did not ask for.

Every read has a deadline. Whether "nothing came" is told by what comes later on the same
connection: each client has a marker that the server answers without waiting for the disk.
"""

from __future__ import annotations

import base64
import http.client
import json
import select
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue
from types import TracebackType
from typing import Any, Self

import pika
from pika.frame import Body, Header, Method, ProtocolHeader, decode_frame

from polymq.admin.client import MessageReader
from polymq.broker.pacing.unhurried import PASSED_COUNT
from polymq.ports import Ports
from tests.durability import mqtt_packets as mqtt

SECONDS_MAX = 20.0
HOST = "127.0.0.1"
MQTT_PUBLISH = 3
FRAME_OVERHEAD = 8
"""Of an AMQP frame around its payload (AMQP 4.2.3)."""


class Wire:
    """A socket and what was read from it and not yet taken."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection((HOST, port), timeout=SECONDS_MAX)
        self.rest = b""

    def receive(self) -> bool:
        """Read more. False when the server has closed."""
        try:
            data = self.socket.recv(1 << 20)
        except ConnectionError:
            return False
        self.rest += data
        return bool(data)

    def has_bytes(self) -> bool:
        """Whether something has come that was not taken."""
        return bool(self.rest) or bool(select.select([self.socket], [], [], 0)[0])

    def close(self) -> None:
        """Close without a goodbye."""
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class MqttWire(Wire):
    """MQTT 3.1.1, packet by packet."""

    def __init__(self, port: int, client_id: str, *, clean: bool = True) -> None:
        super().__init__(port)
        self.send(mqtt.connect(client_id, clean=clean))

    @classmethod
    def connected(cls, port: int, client_id: str, *, clean: bool = True) -> Self:
        """Connected: CONNACK has come, whether or not there was a session."""
        client = cls(port, client_id, clean=clean)
        assert client.read() in (mqtt.connack(), mqtt.connack(present=True))
        return client

    def send(self, *packets: bytes) -> None:
        """Send packets."""
        self.socket.sendall(b"".join(packets))

    def read(self) -> bytes | None:
        """The next packet; None when the server has closed."""
        while True:
            size = _packet_size(self.rest)
            if size is not None and len(self.rest) >= size:
                found, self.rest = self.rest[:size], self.rest[size:]
                return found
            if not self.receive():
                return None

    def expect(self, *packets: bytes) -> None:
        """These packets come next."""
        for packet in packets:
            assert self.read() == packet

    def came(self) -> list[bytes]:
        """What has come up to now, with the first step of long work that was begun: all before the
        answers to some PINGREQs. Such work (retained messages, a session that comes back) lets
        iterations of the loop pass first, and each PINGREQ takes at least one."""
        found: list[bytes] = []
        for _ in range(PASSED_COUNT + 2):
            self.send(mqtt.PINGREQ)
            while (packet := self.read()) != mqtt.PINGRESP:
                assert packet is not None, f"closed after {found}"
                found.append(packet)
        return found

    def came_before_close(self) -> list[bytes]:
        """All that comes until the server closes."""
        return list(iter(self.read, None))


def _packet_size(data: bytes) -> int | None:
    """The size of the packet that begins here, as soon as its head says so."""
    size = 0
    for index in range(1, min(len(data), 5)):
        size |= (data[index] & 127) << 7 * (index - 1)
        if data[index] < 128:
            return size + index + 1
    return None


def body_of(publish: bytes) -> bytes:
    """The body of a PUBLISH."""
    head = publish.index(next(byte for byte in publish[1:5] if byte < 128), 1) + 1
    topic_end = head + 2 + int.from_bytes(publish[head : head + 2], "big")
    return publish[topic_end + 2 * bool(publish[0] & 6) :]


def bodies_of(packets: list[bytes]) -> list[bytes]:
    """Bodies of the PUBLISH packets among these."""
    return [body_of(packet) for packet in packets if packet[0] >> 4 == MQTT_PUBLISH]


class Message:
    """What basic.deliver or basic.get-ok brought."""

    def __init__(self, method: Any, body: bytes) -> None:
        self.method = method
        self.body = body


class AmqpWire(Wire):
    """AMQP 0-9-1, method by method, in the encoding of pika. One channel, number 1."""

    def __init__(self, port: int, *, confirms: bool = False, wants_blocked: bool = False) -> None:
        super().__init__(port)
        spec = pika.spec
        capabilities = {"connection.blocked": True} if wants_blocked else {}
        properties = {"capabilities": capabilities}
        self.socket.sendall(ProtocolHeader().marshal())
        self.expect(spec.Connection.Start)
        start_ok = spec.Connection.StartOk(client_properties=properties, response="\0guest\0guest")
        self.send(start_ok, channel=0)
        tune = self.expect(spec.Connection.Tune)
        self.frame_max = tune.frame_max
        self.send(spec.Connection.TuneOk(tune.channel_max, tune.frame_max, 0), channel=0)
        self.ask(spec.Connection.Open(), spec.Connection.OpenOk, channel=0)
        self.ask(spec.Channel.Open(), spec.Channel.OpenOk)
        if confirms:
            self.ask(spec.Confirm.Select(), spec.Confirm.SelectOk)

    def send(self, *methods: Any, channel: int = 1) -> None:
        """Send methods."""
        self.socket.sendall(b"".join(Method(channel, method).marshal() for method in methods))

    def publish(
        self,
        exchange: str,
        key: str,
        body: bytes,
        *,
        persistent: bool = True,
        headers: dict[str, object] | None = None,
    ) -> None:
        """basic.publish with its content."""
        method = pika.spec.Basic.Publish(exchange=exchange, routing_key=key)
        properties = pika.BasicProperties(delivery_mode=2 if persistent else 1, headers=headers)
        frames = [Method(1, method), Header(1, len(body), properties)]
        step = self.frame_max - FRAME_OVERHEAD
        frames += [Body(1, body[at : at + step]) for at in range(0, len(body), step)]
        self.socket.sendall(b"".join(frame.marshal() for frame in frames))

    def read(self) -> Any:
        """The next method, or message; None when the server has closed."""
        frame = self._frame()
        if frame is None:
            return None
        method = frame.method
        if not pika.spec.has_content(method.INDEX):
            return method
        size = self._frame().body_size
        body = b""
        while len(body) < size:
            body += self._frame().fragment
        return Message(method, body)

    def _frame(self) -> Any:
        while True:
            used, frame = decode_frame(self.rest)
            if frame is not None:
                self.rest = self.rest[used:]
                return frame
            if not self.receive():
                return None

    def expect(self, kind: Any) -> Any:
        """The next method is of this kind."""
        found = self.read()
        assert isinstance(found, kind), f"{found}, and not {kind}"
        return found

    def ask(self, method: Any, answer: Any, *, channel: int = 1) -> Any:
        """Send a method and get its answer."""
        self.send(method, channel=channel)
        return self.expect(answer)

    def consume(self, queue: str, *, prefetch: int = 0) -> None:
        """Begin to consume."""
        spec = pika.spec
        if prefetch:
            self.ask(spec.Basic.Qos(prefetch_count=prefetch), spec.Basic.QosOk)
        self.ask(spec.Basic.Consume(queue=queue), spec.Basic.ConsumeOk)

    def message(self) -> Message:
        """The next thing is a message."""
        found = self.read()
        assert isinstance(found, Message), found
        return found

    def came_before_close(self) -> list[Any]:
        """All that comes until the server closes, connection.close answered."""
        found = []
        while (method := self.read()) is not None:
            found.append(method)
            if isinstance(method, pika.spec.Connection.Close):
                self.send(pika.spec.Connection.CloseOk(), channel=0)
        return found


class HttpWire:
    """One HTTP connection. Questions and answers are two steps."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection(HOST, port, timeout=SECONDS_MAX)

    def send(self, method: str, path: str, value: object = None, **headers: str) -> None:
        """Send a request: bytes as they are, everything else as JSON."""
        fields = {name.replace("_", "-"): text for name, text in headers.items()}
        body = value if isinstance(value, bytes) else None
        if value is not None and body is None:
            body = json.dumps(value).encode()
            fields["Content-Type"] = "application/json"
        self._connection.request(method, path, body, fields)

    def answer(self) -> tuple[int, Any]:
        """Status and content, parsed if it is JSON."""
        answer = self._connection.getresponse()
        content = answer.read()
        return answer.status, json.loads(content) if content[:1] in (b"{", b"[") else content

    def ask(self, method: str, path: str, value: object = None, **headers: str) -> tuple[int, Any]:
        """Send a request and get its answer."""
        self.send(method, path, value, **headers)
        return self.answer()

    @property
    def socket(self) -> socket.socket:
        """The connection's."""
        if self._connection.sock is None:
            self._connection.connect()
        return self._connection.sock

    def has_answer(self) -> bool:
        """Whether a byte of an answer is there."""
        return bool(select.select([self.socket], [], [], 0)[0])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._connection.close()


EVENT = {
    "ce_specversion": "1.0",
    "ce_id": "1",
    "ce_source": "/tests",
    "Content_Type": "application/octet-stream",
}
"""Headers of an event, but its type."""


def post(client: HttpWire, topic: str, tag: str, body: bytes) -> None:
    """Send an event, and do not wait for its answer."""
    client.send("POST", f"/topics/{topic}", body, **EVENT, ce_type=tag)


def received_bodies(answer: Any) -> list[bytes]:
    """Bodies of the events in an answer to `:receive`."""
    events = [received["event"] for received in answer["value"]]
    return [
        base64.b64decode(event["data_base64"]) if "data_base64" in event else event["data"].encode()
        for event in events
    ]


def pull(ports: Ports, topic: str) -> list[bytes]:
    """All that a reader by offset sees of a topic."""
    reader = MessageReader(ports, topic)
    return [stored.body for stored in reader.read(queue=None, start="first", follow=False)]


class Sink:
    """A webhook's receiver. `bodies` has what was delivered."""

    def __init__(self) -> None:
        self.bodies: Queue[bytes] = Queue()
        bodies = self.bodies

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                bodies.put(self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *args: object) -> None:
                """Nothing to say."""

        self._server = ThreadingHTTPServer((HOST, 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="sink")
        self._thread.start()
        self.url = f"http://{HOST}:{self._server.server_port}/"

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
