"""A server under load, and what the loads of all protocols share."""

from __future__ import annotations

import contextlib
import select
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from benchmarks.fairness_wire import RECEIVE_BYTES, AmqpSpeaker, mqtt_connect
from benchmarks.generators import BUILT
from benchmarks.machine import HOST, pinned
from benchmarks.scenarios import Protocol

SECONDS_MAX: Final = 60.0
"""How long a client waits for an answer. A load that waits longer is not done, and what the paced
clients met until then counts."""
LARGE_BYTES: Final = 16 * 1024 * 1024
"""The largest body that all protocols take."""
LARGE_COUNT: Final = 20


class Stage:
    """A server that is under load.

    Args:
        ports: of the server, by protocol.
        scale: what the sizes are divided by.
    """

    def __init__(self, ports: Mapping[Protocol, int], *, scale: int, seconds: float) -> None:
        self.ports = ports
        self.scale = scale
        self.seconds = seconds
        self._stack = contextlib.ExitStack()

    def close(self) -> None:
        """Close what the case has opened."""
        self._stack.close()

    def sized(self, count: int) -> int:
        """A number of the case, at this scale."""
        return max(1, count // self.scale)

    def connect(self, protocol: Protocol) -> socket.socket:
        """A socket that is closed at the end of the case."""
        opened = socket.create_connection((HOST, self.ports[protocol]), timeout=SECONDS_MAX)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self._stack.enter_context(opened)

    def mqtt(self, client_id: str, *, clean: bool = True) -> socket.socket:
        """A connected MQTT client."""
        opened = self.connect("mqtt")
        mqtt_connect(opened, client_id, clean=clean)
        return opened

    def amqp(self) -> AmqpSpeaker:
        """An AMQP client with a channel."""
        return AmqpSpeaker(self.connect("amqp"))

    def generate(self, name: str, protocol: Protocol, *options: str) -> subprocess.Popen[bytes]:
        """Start a generator."""
        command = [*pinned("generator"), "nice", "-n", "5", str(BUILT / name)]
        started = subprocess.Popen(
            [*command, "-p", str(self.ports[protocol]), "-s", str(self.seconds), *options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._stack.callback(started.wait)
        self._stack.callback(started.terminate)
        return started

    def wait(self, generator: subprocess.Popen[bytes]) -> None:
        """Until a generator has ended. Raises TimeoutError."""
        try:
            generator.wait(SECONDS_MAX)
        except subprocess.TimeoutExpired:
            raise TimeoutError("the generator waits for messages") from None


Measured = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Case:
    """One line of the report.

    Attributes:
        protocol: what the load speaks; `all` where it speaks nothing. Servers that do not speak it
            are not measured.
        prepare: makes what the case needs, and returns the part that is measured.
        settings: of our server.
        counted: a metric of our server that has to grow meanwhile, because the load makes it do
            this; empty for none.
    """

    name: str
    title: str
    protocol: Protocol | Literal["all"]
    prepare: Callable[[Stage], Measured]
    settings: Mapping[str, str] = field(default_factory=dict)
    counted: str = ""


def read_until(sockets: Sequence[socket.socket], sizes: Sequence[int]) -> None:
    """Until each socket has got so many bytes."""
    left = {opened.fileno(): (opened, size) for opened, size in zip(sockets, sizes, strict=True)}
    poller = select.epoll()
    for descriptor in left:
        poller.register(descriptor, select.EPOLLIN)
    until = time.monotonic() + SECONDS_MAX
    while left:
        events = poller.poll(1.0)
        if not events and time.monotonic() > until:
            raise TimeoutError(f"{len(left)} clients wait for messages")
        for descriptor, _ in events:
            opened, size = left[descriptor]
            size -= len(opened.recv(RECEIVE_BYTES))
            if size > 0:
                left[descriptor] = opened, size
            else:
                poller.unregister(descriptor)
                del left[descriptor]
    poller.close()
