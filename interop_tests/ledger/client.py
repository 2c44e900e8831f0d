"""What the client processes have in common: their arguments, and how they are asked to stop."""

from __future__ import annotations

import argparse
import signal
import threading
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

RETRY_SECONDS = 0.03
"""Between attempts to connect to a server that is not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a client process is told.

    Attributes:
        port: of the server, on 127.0.0.1.
        book: the path of its book.
        name: of the publisher, or of the consumer's session, queue or subscription.
        topic: where messages go, or come from.
        window: unanswered publishes that it keeps under way.
        seed: of the bodies.
        declare_only: a consumer makes its queue or subscription and ends.
    """

    port: int
    book: Path
    name: str
    topic: str
    window: int
    seed: int
    declare_only: bool


def read_options() -> Options:
    """Options from the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--book", type=Path, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--window", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--declare-only", action="store_true")
    return Options(**vars(parser.parse_args()))


class Stop:
    """Set by SIGTERM: a publisher waits for its last acks and ends, a consumer ends."""

    def __init__(self) -> None:
        self._asked = threading.Event()
        signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self._asked.set()

    @property
    def asked(self) -> bool:
        """Whether to stop."""
        return self._asked.is_set()

    def pause(self) -> None:
        """Wait a moment before the next attempt."""
        self._asked.wait(RETRY_SECONDS)
