"""What all clients of a run have in common: a thread that works, loses its server, and goes on."""

from __future__ import annotations

import http.client
import random
import threading
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass

import pika.exceptions

from interop_tests.ledger.bodies import Corrupt, make_body, read_body
from interop_tests.model.ledger import Got, Ledger, Reader, Sent

TOPIC = "model"
PAUSE_SECONDS = 0.02
"""Between two pieces of work, and between attempts to reach a server that is not there."""
LOST: tuple[type[BaseException], ...] = (
    OSError,
    EOFError,
    http.client.HTTPException,
    pika.exceptions.AMQPError,
)
"""How the end of a connection shows."""


class ServerGone(EOFError):
    """The server closed the connection."""


@dataclass(frozen=True, slots=True)
class Ports:
    """Where the server is, over all restarts."""

    mqtt: int
    amqp: int
    http: int
    rocketmq: int


class Client(ABC):
    """A client of one protocol, in a thread of its own.

    Args:
        name: of the client; a publisher's messages begin with it.
        chance: its choices.
    """

    def __init__(self, name: str, ports: Ports, ledger: Ledger, chance: random.Random) -> None:
        self.name = name
        self.ports = ports
        self.ledger = ledger
        self.chance = chance
        self.resting = threading.Event()
        """Set: begin nothing new; publishers wait for what is under way."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._broken: BaseException | None = None

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def end(self) -> None:
        """End after the piece of work under way. Raises what went wrong in the thread."""
        self._ended.set()
        self._thread.join(60)
        if self._thread.is_alive():
            self.ledger.fault(f"{self.name} hangs")
        if self._broken is not None:
            raise AssertionError(f"{self.name} failed") from self._broken

    def _run(self) -> None:
        try:
            while not self._ended.is_set():
                try:
                    self.connect()
                    while not self._ended.is_set():
                        self.work()
                        self.pause()
                except LOST as error:
                    self.ledger.note(f"connections lost by {self.name.rstrip('0123456789')}")
                    self.lost(error)
                    self.pause()
            self.close()
        except BaseException as error:  # noqa: BLE001  (raised by `end`)
            self._broken = error
            self.ledger.fault(f"{self.name}: {error!r}")

    def pause(self) -> None:
        """Let others go on."""
        self._ended.wait(PAUSE_SECONDS)

    @abstractmethod
    def connect(self) -> None:
        """Connect, and make sure that what is needed is there. Raises one of LOST."""

    @abstractmethod
    def work(self) -> None:
        """One piece of work. Raises one of LOST."""

    def lost(self, error: BaseException) -> None:  # noqa: B027  (most have nothing to do)
        """The connection ended."""

    def close(self) -> None:  # noqa: B027
        """Close the connection in order."""


class Publisher(Client):
    """A client that publishes."""

    def __init__(self, name: str, ports: Ports, ledger: Ledger, chance: random.Random) -> None:
        super().__init__(name, ports, ledger, chance)
        self._number = 0
        self.idle = threading.Event()
        """Set while it rests and nothing of it is under way."""

    def work(self) -> None:
        """Publish some, unless it rests."""
        if self.resting.is_set():
            self.idle.set()
            return
        self.idle.clear()
        self.publish()

    def lost(self, error: BaseException) -> None:
        if self.resting.is_set():
            self.idle.set()

    @abstractmethod
    def publish(self) -> None:
        """Publish some messages and wait for their answers. Raises one of LOST."""

    def message(
        self, *, unit: str = "", once: bool = False, due: float = 0.0, expires: float = 0.0
    ) -> tuple[Sent, bytes]:
        """A new message, which stands in the ledger, and its body."""
        number = self._number
        self._number += 1
        sent = Sent(self.name, number, unit=unit, once=once, due=due, expires=expires)
        self.ledger.send(sent)
        return sent, make_body(self.name, number, self.chance)


def take(
    ledger: Ledger, reader: Reader, body: bytes, *, again: bool, once: bool = False, note: str = ""
) -> None:
    """A reader got this body. The arguments are those of `Got`."""
    try:
        publisher, number = read_body(body)
    except (Corrupt, ValueError) as error:
        reader.faults.append(f"corrupt: {error}")
        return
    ledger.got(reader, Got(f"{publisher}:{number}", time.time(), again, once, note))
