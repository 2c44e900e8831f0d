"""What clients do leaves no cycles in memory, in a whole server: the garbage collector looks only
at what is new, and a client may do it as often as it likes (see `polymq/pauses.py`)."""

from __future__ import annotations

import gc
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from polymq.gateways.amqp import spec
from polymq.settings import Settings, load_settings
from tests.gateways.amqp import amqp_wire as amqp
from tests.polymq.test_serve import serve_until

TIMES = 40
EVENT = b"ce-id: 1\r\nce-source: /x\r\nce-type: t\r\nce-specversion: 1.0\r\n"
JSON = b"Content-Type: application/cloudevents+json\r\n"
BATCH = b"Content-Type: application/cloudevents-batch+json\r\n"
ADMIN = b"X-PolyMQ-Admin: test\r\n"
Ready = dict[str, Any]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    flags: dict[str, dict[str, Any]] = {
        section: {"port": 0} for section in ("mqtt", "amqp", "http", "rocketmq", "admin", "names")
    }
    flags["server"] = {"data_directory": tmp_path / "data", "drain_seconds": 0.2}
    flags["storage"] = {"segment_bytes": 1024 * 1024}
    return load_settings(flags=flags)


@pytest.fixture(autouse=True)
def _with_collector_after() -> Iterator[None]:
    yield
    gc.enable()


def exchange(port: int, data: bytes) -> None:
    """Send, and leave when nothing more comes."""
    client = socket.create_connection(("127.0.0.1", port), timeout=20)
    with client, suppress(ConnectionError):  # the server closes before it has read all of it
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        while client.recv(65_536):
            pass


def connections(port: int) -> float:
    """How many there are, of clients."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answer = b"".join(iter(partial(client.recv, 65_536), b""))
    lines = [line for line in answer.splitlines() if line.startswith(b"polymq_connections{")]
    assert lines
    return sum(float(line.rpartition(b" ")[2]) for line in lines)


def leave_cycles(
    settings: Settings, tmp_path: Path, deeds: dict[str, Callable[[Ready], None]]
) -> dict[str, int]:
    """Do each of the deeds many times. Returns how many objects those left that left any each
    time."""
    found: dict[str, int] = {}

    def beside(ready: Ready) -> None:
        pause = threading.Event()
        for name, deed in deeds.items():
            deed(ready)  # the first time makes what every later one uses
            gc.collect()
            gc.disable()
            for _ in range(TIMES):
                deed(ready)
            for _ in range(500):
                if connections(ready["admin"]) == 0:
                    break
                pause.wait(0.01)
            count = gc.collect()
            gc.enable()
            if count >= TIMES:
                found[name] = count

    assert serve_until(settings, tmp_path, beside) == 0
    return found


def request(method: bytes, path: bytes, head: bytes = b"", body: bytes = b"") -> bytes:
    return b"%s %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n%s\r\n%s" % (
        *(method, path, len(body), head, body),
    )


HTTP = {
    "an event": request(b"POST", b"/topics/t", EVENT, b"x"),
    "an unknown path": request(b"GET", b"/nowhere"),
    "a method that the path does not have": request(b"PATCH", b"/topics/t"),
    "an attribute that is missing": request(b"POST", b"/topics/t", b"ce-id: 1\r\n", b"x"),
    "JSON that is none": request(b"POST", b"/topics/t", JSON, b"{bad"),
    "a batch of what are no events": request(b"POST", b"/topics/t", BATCH, b"[1,2]"),
    "a wrong password": request(
        b"POST", b"/topics/t", b"Authorization: Basic eDp5\r\n" + EVENT, b"x"
    ),
    "no HTTP": b"GARBAGE\r\n\r\n",
    "a length that is no number": b"POST /topics/t HTTP/1.1\r\nContent-Length: a\r\n\r\n",
    "a header without end": b"GET / HTTP/1.1\r\nX: " + b"a" * 70_000 + b"\r\n\r\n",
    "a body that is not compressed": request(
        b"POST", b"/topics/t", b"Content-Encoding: gzip\r\n" + EVENT, b"x"
    ),
    "a body that is too long": b"POST /topics/t HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n",
    "an unknown subscription": request(b"POST", b"/topics/t/subscriptions/none:receive"),
    "a bad subscription": request(b"PUT", b"/subscriptions/a", b"", b'{"x":1}'),
}


def test_http(settings: Settings, tmp_path: Path) -> None:
    def deed(data: bytes) -> Callable[[Ready], None]:
        return lambda ready: exchange(ready["http"], data)

    assert leave_cycles(settings, tmp_path, {name: deed(data) for name, data in HTTP.items()}) == {}


def test_the_admin_listener(settings: Settings, tmp_path: Path) -> None:
    deeds: dict[str, Callable[[Ready], None]] = {
        name: partial(lambda data, ready: exchange(ready["admin"], data), data)
        for name, data in {
            "metrics": request(b"GET", b"/metrics"),
            "an unknown path": request(b"GET", b"/nowhere"),
            "a method that the path does not have": request(b"DELETE", b"/metrics", ADMIN),
            "an unknown topic": request(b"GET", b"/api/v1/topics/none"),
            "all topics": request(b"GET", b"/api/v1/topics"),
            "a parameter that is not there": request(b"GET", b"/api/v1/topics?a=b"),
            "a body that is wrong": request(b"PUT", b"/api/v1/topics/t", JSON, b'{"queues": 0}'),
            "no HTTP": b"GARBAGE\r\n\r\n",
        }.items()
    }
    assert leave_cycles(settings, tmp_path, deeds) == {}


def string(data: bytes) -> bytes:
    return struct.pack(">H", len(data)) + data


def packet(first: int, body: bytes) -> bytes:
    return bytes((first, len(body))) + body


CLEAN = packet(0x10, string(b"MQTT") + b"\x04\x02\x00\x0a" + string(b"clean"))
STORED = packet(0x10, string(b"MQTT") + b"\x04\x00\x00\x0a" + string(b"kept"))
SUBSCRIBE = packet(0x82, b"\x00\x01" + string(b"a/#") + b"\x01")
PUBLISH = string(b"a/b") + b"\x00\x02hi"
MQTT = {
    "nothing": b"",
    "no MQTT": b"GET / HTTP/1.1\r\n\r\n",
    "an orderly visit": CLEAN + SUBSCRIBE + packet(0x32, PUBLISH) + b"\xe0\x00",
    "a session that is kept": STORED + SUBSCRIBE + packet(0x32, PUBLISH),
    "QoS 2 that is not completed": STORED + packet(0x34, PUBLISH),
    "a retained message": CLEAN + packet(0x33, PUBLISH) + SUBSCRIBE,
    "a filter that is none": CLEAN + packet(0x82, b"\x00\x01" + string(b"a/#/b") + b"\x01"),
    "an unknown packet": CLEAN + b"\xf0\x00",
}


def test_mqtt(settings: Settings, tmp_path: Path) -> None:
    deeds: dict[str, Callable[[Ready], None]] = {
        name: partial(lambda data, ready: exchange(ready["mqtt"], data), data)
        for name, data in MQTT.items()
    }
    assert leave_cycles(settings, tmp_path, deeds) == {}


def remoting(code: int, fields: dict[str, str] | None = None, body: bytes = b"") -> bytes:
    header = {"code": code, "language": "JAVA", "version": 401, "opaque": 1, "flag": 0}
    head = json.dumps({**header, "extFields": fields or {}}).encode()
    return struct.pack(">II", 4 + len(head) + len(body), len(head)) + head + body


PULL = {
    "consumerGroup": "g",
    "topic": "t",
    "queueId": "0",
    "queueOffset": "0",
    "maxMsgNums": "1",
    "sysFlag": "2",
    "commitOffset": "0",
    "suspendTimeoutMillis": "100",
    "subscription": "*",
    "subVersion": "0",
}
SEND = {
    "a": "g",
    "b": "t",
    "c": "TBW102",
    "d": "4",
    "e": "0",
    "f": "0",
    "g": "1",
    "h": "0",
    "i": "",
    "j": "0",
}
REMOTING = {
    "an unknown code": remoting(9999),
    "a frame that is none": b"garbage!garbage!",
    "a body that is none": remoting(34, {}, b"{"),
    "a send": remoting(310, SEND, b"x"),
    "a pull": remoting(11, PULL),
}


@pytest.mark.parametrize("listener", ["rocketmq", "names"])
def test_remoting(settings: Settings, tmp_path: Path, listener: str) -> None:
    deeds: dict[str, Callable[[Ready], None]] = {
        name: partial(lambda data, ready: exchange(ready[listener], data), data)
        for name, data in REMOTING.items()
    }
    assert leave_cycles(settings, tmp_path, deeds) == {}


OPENED = b"AMQP\x00\x00\x09\x01" + b"".join(
    amqp.method(channel, method)
    for channel, method in (
        (0, spec.ConnectionStartOk(mechanism="PLAIN", response=b"\x00guest\x00guest")),
        (0, spec.ConnectionTuneOk(channel_max=9, frame_max=131_072, heartbeat=0)),
        (0, spec.ConnectionOpen(virtual_host="/")),
        (1, spec.ChannelOpen()),
        (1, spec.QueueDeclare(queue="q", durable=True)),
    )
)
SENT = amqp.publish(1, "", "q", b"x") * 3
AMQP: dict[str, Sequence[spec.Method]] = {
    "messages that are got": [spec.BasicGet(queue="q"), spec.BasicGet(queue="q", no_ack=True)],
    "nothing to be got": [spec.QueuePurge(queue="q"), spec.BasicGet(queue="q")],
    "a message that is given back": [
        spec.BasicConsume(queue="q", consumer_tag="c"),
        spec.BasicNack(delivery_tag=1, requeue=True),
    ],
    "a message that is rejected": [
        spec.BasicConsume(queue="q", consumer_tag="c"),
        spec.BasicNack(delivery_tag=1),
    ],
    "a tag that was never given": [spec.BasicAck(delivery_tag=99)],
    "a queue that is not there": [spec.QueueDeclare(queue="none", passive=True)],
    "an exchange that is not there": [spec.QueueBind(queue="q", exchange="none")],
    "a transaction": [spec.TxSelect(), spec.BasicPublish(exchange="none", routing_key="q")],
    "what comes and goes": [
        spec.QueueDeclare(queue="own", exclusive=True),
        spec.ExchangeDeclare(exchange="e", type="topic", auto_delete=True),
        spec.QueueBind(queue="own", exchange="e", routing_key="a.#"),
        spec.BasicConsume(queue="own", consumer_tag="c"),
        spec.BasicCancel(consumer_tag="c"),
        spec.ExchangeDelete(exchange="e"),
        spec.ConfirmSelect(),
    ],
}


def test_amqp(settings: Settings, tmp_path: Path) -> None:
    """Each client breaks off, with whatever it holds then."""
    deeds: dict[str, Callable[[Ready], None]] = {"no AMQP": partial(_amqp, b"GET / HTTP/1.1")}
    for name, methods in AMQP.items():
        data = b"".join(amqp.method(1, method) for method in methods)
        deeds[name] = partial(_amqp, OPENED + SENT + data)
    assert leave_cycles(settings, tmp_path, deeds) == {}


def _amqp(data: bytes, ready: Ready) -> None:
    exchange(ready["amqp"], data)
