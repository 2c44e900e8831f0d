"""What systemd is told of the process, by its notification protocol (sd_notify(3)).

The protocol is a datagram with lines of `NAME=value`, to the socket that NOTIFY_SOCKET names. Where
the variable is not set, nothing is sent and nothing is paid.

Rules:

* A server is never held up by this. What the socket does not take at once is sent later, except for
  beats, which are worth nothing later.
* The watchdog is fed by whoever runs the event loop, and from nowhere else: a loop that hangs sends
  nothing, and systemd ends the process.
"""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping, MutableMapping
from typing import Final

from polymq.logs import logger

SOCKET: Final = "NOTIFY_SOCKET"
WATCHDOG_MICROSECONDS: Final = "WATCHDOG_USEC"
WATCHDOG_PROCESS: Final = "WATCHDOG_PID"
BEATS_PER_TIMEOUT: Final = 3
"""How often the watchdog is fed within the time in which it has to be: systemd recommends two."""
TEXT_CHARACTERS_MAX: Final = 500
WAITING_MAX: Final = 16
"""Messages that wait for room in the socket."""
AGAIN_SECONDS: Final = 0.1

Later = Callable[[float, Callable[[], None]], object]
"""Calls after some seconds."""


class ServiceManager:
    """The service manager of this process, or nobody.

    Args:
        environment: of the process. What is found there is taken out: it is not for children.
        now_ns: the monotonic clock of the system.

    Attributes:
        watchdog_seconds: how often `beat` has to be called; 0: nobody watches.
        serving: what a server that is ready does, for people.
    """

    def __init__(
        self,
        environment: MutableMapping[str, str],
        *,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        address = environment.pop(SOCKET, "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._now_ns = now_ns
        self._socket: socket.socket | None = None
        self._waiting: deque[str] = deque(maxlen=WAITING_MAX)  # the oldest gives way
        self._later: Later | None = None
        self._is_called = False
        self._has_failed = False
        self.serving = "serving"
        self.watchdog_seconds = _watchdog_seconds(environment)
        for name in (WATCHDOG_MICROSECONDS, WATCHDOG_PROCESS):
            environment.pop(name, None)
        if self._address[:1] not in ("/", "\0"):
            if self._address:
                self._failed(f"{SOCKET} is {address!r}, which is no Unix socket")
            self._address = ""
            self.watchdog_seconds = 0.0
            return
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)

    def call_with(self, later: Later) -> None:
        """Send what waits with this timer, of the event loop that runs."""
        self._later = later

    def ready(self, status: str = "") -> None:
        """Clients can connect; or a reload is over."""
        self._send(f"READY=1\nSTATUS={_one_line(status or self.serving)}")

    def status(self, text: str) -> None:
        """What the process does, for people."""
        self._send(f"STATUS={_one_line(text)}")

    def reloading(self) -> None:
        """A reload begins. `ready` ends it."""
        microseconds = self._now_ns() // 1000
        self._send(f"RELOADING=1\nMONOTONIC_USEC={microseconds}\nSTATUS=reloading")

    def stopping(self) -> None:
        """The process ends."""
        self._send("STOPPING=1\nSTATUS=stopping")

    def beat(self) -> None:
        """The event loop runs."""
        self._send("WATCHDOG=1", may_wait=False)

    def close(self) -> None:
        """Send nothing more."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, text: str, *, may_wait: bool = True) -> None:
        if self._socket is None:
            return
        self.send_waiting()
        if not self._waiting and self._is_sent(text):
            return
        if may_wait:
            self._waiting.append(text)
            self._send_later()

    def send_waiting(self) -> None:
        """Send what the socket had no room for."""
        while self._waiting and self._is_sent(self._waiting[0]):
            self._waiting.popleft()

    def _send_later(self) -> None:
        if self._later is not None and not self._is_called:
            self._is_called = True
            self._later(AGAIN_SECONDS, self._again)

    def _again(self) -> None:
        self._is_called = False
        self.send_waiting()
        if self._waiting:
            self._send_later()

    def _is_sent(self, text: str) -> bool:
        """Whether it need not be sent again."""
        if self._socket is None:
            return True
        try:
            self._socket.sendto(text.encode("utf-8", "replace"), self._address)
        except BlockingIOError:
            return False
        except OSError as error:
            self._failed(error.strerror or str(error))
        return True

    def _failed(self, reason: str) -> None:
        """Say once that the manager does not hear of this server."""
        if not self._has_failed:
            self._has_failed = True
            logger("polymq").warning("the service manager cannot be told anything", reason=reason)


def _watchdog_seconds(environment: Mapping[str, str]) -> float:
    """How often the watchdog is to be fed; 0 if it is not for this process."""
    text = environment.get(WATCHDOG_MICROSECONDS, "")
    process = environment.get(WATCHDOG_PROCESS, str(os.getpid()))
    if not (text.isascii() and text.isdecimal()) or process != str(os.getpid()):
        return 0.0
    return int(text) / 1_000_000 / BEATS_PER_TIMEOUT


def _one_line(text: str) -> str:
    return " ".join(text.split())[:TEXT_CHARACTERS_MAX]
