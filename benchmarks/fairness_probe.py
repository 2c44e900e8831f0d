"""Paced clients, one in each protocol: how long a small request takes while others load the server.

A process of its own, so that the load does not delay what measures it. Each client sends twenty
requests a second, one at a time, and counts each from the moment when it was due: a server that
stops for a second makes twenty requests late, not one.

What this process itself is late does not count where that can be seen: a request that it sends late
although the answer before it was there counts from when it was sent. It asks for the processor
before everybody else. How late its timers were nevertheless is reported as the client `own`:
answers wait as long to be seen, so where that is much, the machine was measured and not the server.

The clients are an MQTT PINGREQ, which asks for nothing but a turn of the server's loop, and a
message with an acknowledgement in each protocol, which waits for the disk as well.

Protocol with the parent: it writes a line whenever a case begins or ends, and gets the figures
since the last line as JSON. The end of standard input ends the process.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import sys
import time
from collections.abc import Callable
from typing import Final

from benchmarks.fairness_wire import (
    AmqpSpeaker,
    amqp_publish,
    mqtt_connect,
    mqtt_publish,
    rocketmq_send,
)
from benchmarks.machine import HOST

PER_SECOND: Final = 20
ANSWER_SECONDS_MAX: Final = 60.0
RECEIVE_BYTES: Final = 65536
BODY: Final = b"x" * 100
TOPIC: Final = "fairness-probe"


class Paced:
    """One client: sends a request when it is due and the one before is answered.

    Args:
        opened: a connected socket.
        request: makes the next request.
        answered: whether these bytes hold the answer to it.
    """

    def __init__(
        self,
        opened: socket.socket,
        request: Callable[[int], bytes],
        answered: Callable[[bytes], bool],
        due: float,
    ) -> None:
        self._socket = opened
        opened.setblocking(False)
        self._request = request
        self._answered = answered
        self._due = due  # of the request that is open, or of the next one
        self._since = due  # what the open request counts from
        self._open = False
        self._answered_late = False  # the one before, so that the next one was due already
        self._got = b""
        self._count = 0
        self.seconds: list[float] = []

    def fileno(self) -> int:
        """For `select`."""
        return self._socket.fileno()

    def send_if_due(self, now: float) -> float:
        """Returns how long to wait until the next look."""
        if self._open:
            return 1.0
        if self._due <= now:
            self._count += 1
            self._open = True
            self._got = b""
            self._since = self._due if self._answered_late else now
            self._socket.send(self._request(self._count))
            return 1.0
        return self._due - now

    def receive(self, now: float) -> None:
        """Bytes are there."""
        data = self._socket.recv(RECEIVE_BYTES)
        if not data:
            raise ConnectionError("the server closed the connection of a paced client")
        self._got += data
        if self._open and self._answered(self._got):
            self._open = False
            self.seconds.append(now - self._since)
            self._due += 1 / PER_SECOND
            self._answered_late = self._due < now

    def waiting(self, now: float) -> float:
        """How long the request that is open has been due."""
        return now - self._since if self._open else 0.0


def make_client(kind: str, port: int, due: float) -> Paced:
    """A paced client of this kind, connected."""
    opened = socket.create_connection((HOST, port), timeout=ANSWER_SECONDS_MAX)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if kind == "ping":
        mqtt_connect(opened, "fairness-ping")
        return Paced(opened, lambda _: b"\xc0\x00", lambda got: got == b"\xd0\x00", due)
    if kind == "mqtt":
        mqtt_connect(opened, "fairness-probe")
        return Paced(
            opened,
            lambda count: mqtt_publish(f"{TOPIC}/mqtt", BODY, packet_id=count & 0x7FFF | 1),
            lambda got: len(got) >= 4,
            due,
        )
    if kind == "amqp":
        speaker = AmqpSpeaker(opened)
        # Short, so that the log's oldest files are not kept for it.
        speaker.declare(TOPIC, durable=True, arguments={"x-max-length": 10})
        speaker.confirm()
        message = amqp_publish("", TOPIC, BODY, persistent=True)
        return Paced(opened, lambda _: message, lambda got: got.endswith(b"\xce"), due)
    if kind == "http":
        head = (
            f"POST /topics/{TOPIC} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: text/plain\r\n"
            f"ce-id: 1\r\nce-source: /bench\r\nce-type: probe\r\nce-specversion: 1.0\r\n"
            f"Content-Length: {len(BODY)}\r\n\r\n"
        )
        request = head.encode() + BODY
        return Paced(opened, lambda _: request, _is_http_success, due)
    assert kind == "rocketmq"
    return Paced(opened, lambda count: rocketmq_send(TOPIC, BODY, count), _is_frame, due)


def _is_http_success(got: bytes) -> bool:
    if b"\r\n\r\n" not in got:
        return False
    if not got.startswith(b"HTTP/1.1 204"):
        raise ConnectionError(f"the server answered {got[:200]!r}")
    return True


def _is_frame(got: bytes) -> bool:
    if len(got) < 4 or len(got) < 4 + int.from_bytes(got[:4], "big"):
        return False
    if b'"code":0' not in got:
        raise ConnectionError(f"the server answered {got[:300]!r}")
    return True


def figures(seconds: list[float]) -> dict[str, float]:
    """Milliseconds."""
    ordered = sorted(seconds) or [0.0]
    last = len(ordered) - 1
    return {
        "count": len(seconds),
        "p50_ms": ordered[last // 2] * 1000,
        "p99_ms": ordered[round(last * 0.99)] * 1000,
        "worst_ms": ordered[last] * 1000,
    }


def main(arguments: list[str]) -> None:
    """Arguments: `kind=port` for each client."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except OSError:  # not allowed: `own` says what that comes to
        with contextlib.suppress(OSError):
            os.nice(-10)
    began = time.perf_counter()
    clients: dict[str, Paced] = {}
    for index, argument in enumerate(arguments):
        kind, _, port = argument.partition("=")
        due = began + 0.5 + index / len(arguments) / PER_SECOND
        clients[kind] = make_client(kind, int(port), due)
    print("ready", flush=True)
    poller = select.poll()
    poller.register(0, select.POLLIN)
    by_descriptor = {client.fileno(): client for client in clients.values()}
    for descriptor in by_descriptor:
        poller.register(descriptor, select.POLLIN)
    own: list[float] = []
    while True:
        now = time.perf_counter()
        wait = min(client.send_if_due(now) for client in clients.values())
        ready = poller.poll(wait * 1000)
        if not ready:
            own.append(max(0.0, time.perf_counter() - now - wait))
        for descriptor, _ in ready:
            now = time.perf_counter()
            if descriptor:
                by_descriptor[descriptor].receive(now)
                continue
            if not os.read(0, RECEIVE_BYTES):
                return
            found = {}
            for kind, client in clients.items():
                late = client.waiting(now)
                found[kind] = figures(client.seconds + ([late] if late > 0.05 else []))
                client.seconds = []
            found["own"] = figures(own)
            own = []
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
