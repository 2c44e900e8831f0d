"""What a named queue can do beyond first in, first out: its arguments as checked values.

Arguments go by RabbitMQ's names (`x-message-ttl`), because AMQP applications bring them; they hold
for a queue whoever declares and reads it. They are checked when the queue is declared, and a wrong
one is refused in RabbitMQ's words. After that nothing here can fail, also not at a restart.

Arguments that change nothing here (`x-queue-type`, `x-queue-mode`, `x-dead-letter-strategy`) are
checked and compared like all others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from polymq.broker.errors import Reason, Refused

MILLISECONDS_MAX: Final = 0xFFFF_FFFF - 1
"""49 days: what an index entry holds, and one less than RabbitMQ's bound."""
LENGTH_MAX: Final = 1 << 48
"""Offsets end there."""
DELIVERY_LIMIT_MAX: Final = 254
"""Deliveries are counted in a byte. RabbitMQ's default is 20."""
PRIORITY_MAX: Final = 255
DEAD_LETTER_EXCHANGE: Final = "x-dead-letter-exchange"
DEAD_LETTER_KEY: Final = "x-dead-letter-routing-key"
DROP_HEAD: Final = "drop-head"
REJECT_PUBLISH: Final = "reject-publish"
REJECT_PUBLISH_DLX: Final = "reject-publish-dlx"
OVERFLOWS: Final = (DROP_HEAD, REJECT_PUBLISH, REJECT_PUBLISH_DLX)
MODES: Final = ("default", "lazy")
STRATEGIES: Final = ("at-most-once", "at-least-once")

ARGUMENTS: Final[Mapping[str, Any]] = {
    "x-consumer-timeout": None,
    "x-dead-letter-exchange": None,
    "x-dead-letter-routing-key": None,
    "x-dead-letter-strategy": STRATEGIES[0],
    "x-delivery-limit": None,
    "x-expires": None,
    "x-max-length": None,
    "x-max-length-bytes": None,
    "x-max-priority": None,
    "x-message-ttl": None,
    "x-overflow": DROP_HEAD,
    "x-queue-mode": MODES[0],
    "x-queue-type": "classic",
    "x-single-active-consumer": False,
}
"""Arguments that mean something here, with what is meant without them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """The checked arguments of a queue. None: not set.

    Attributes:
        ttl_ms: how long a message waits before it expires; 0: it is delivered at once or not.
        expires_ms: how long the queue may be unused before it is deleted.
        length_max, bytes_max: messages that are ready, and their bytes as they are stored.
        overflow: what gives way when there are more (one of `OVERFLOWS`).
        dead_letter_exchange: where messages go that the queue gives up; the default exchange is
            the empty name.
        dead_letter_key: the routing key they get there, instead of their own.
        delivery_limit: how often a message is delivered again before the queue gives it up.
        single_active: one consumer at a time gets messages.
        consumer_timeout_ms: how long a consumer may keep a message without acknowledging it.
        priority_max: messages with a higher priority come first, up to this one; 0: all are equal.
    """

    ttl_ms: int | None = None
    expires_ms: int | None = None
    length_max: int | None = None
    bytes_max: int | None = None
    overflow: str = DROP_HEAD
    dead_letter_exchange: str | None = None
    dead_letter_key: str | None = None
    delivery_limit: int | None = None
    single_active: bool = False
    consumer_timeout_ms: int | None = None
    priority_max: int = 0

    @property
    def bounded(self) -> bool:
        """Whether the queue has a length that it may not pass."""
        return self.length_max is not None or self.bytes_max is not None


PLAIN: Final = QueueSettings()
"""A queue without arguments. Shared."""


def settings_of(name: str, arguments: Mapping[str, Any]) -> QueueSettings:
    """The settings that a queue's arguments ask for.

    Raises:
        Refused: BAD_ARGUMENT; the sentence names the argument and what it may be.
    """
    if not arguments:
        return PLAIN
    read = _Arguments(name, arguments)
    read.choice("x-queue-mode", MODES)
    read.choice("x-dead-letter-strategy", STRATEGIES)
    settings = QueueSettings(
        ttl_ms=read.number("x-message-ttl", 0, MILLISECONDS_MAX),
        expires_ms=read.number("x-expires", 1, MILLISECONDS_MAX),
        length_max=read.number("x-max-length", 0, LENGTH_MAX),
        bytes_max=read.number("x-max-length-bytes", 0, LENGTH_MAX),
        overflow=read.choice("x-overflow", OVERFLOWS),
        dead_letter_exchange=read.text(DEAD_LETTER_EXCHANGE),
        dead_letter_key=read.text(DEAD_LETTER_KEY),
        delivery_limit=read.delivery_limit(),
        single_active=read.flag("x-single-active-consumer"),
        consumer_timeout_ms=read.number("x-consumer-timeout", 1, MILLISECONDS_MAX),
        priority_max=read.number("x-max-priority", 0, PRIORITY_MAX) or 0,
    )
    if settings.dead_letter_key is not None and settings.dead_letter_exchange is None:
        raise read.wrong(DEAD_LETTER_KEY, f"it needs {DEAD_LETTER_EXCHANGE}")
    return PLAIN if settings == PLAIN else settings


class _Arguments:
    """Reads arguments by name, each with its type."""

    def __init__(self, queue: str, arguments: Mapping[str, Any]) -> None:
        self._queue = queue
        self._arguments = arguments

    def wrong(self, name: str, why: str) -> Refused:
        """The refusal of an argument."""
        return Refused(
            Reason.BAD_ARGUMENT,
            f"invalid arg '{name}' for queue '{self._queue}' in vhost '/': {why}",
        )

    def number(self, name: str, low: int, high: int) -> int | None:
        """A whole number within bounds, or None where it is absent."""
        value = self._arguments.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong(name, f"expected a whole number, not {value!r}")
        if not low <= value <= high:
            raise self.wrong(name, f"expected {low} to {high}, not {value}")
        return value

    def text(self, name: str) -> str | None:
        """A text, or None where it is absent."""
        value = self._arguments.get(name)
        if value is not None and not isinstance(value, str):
            raise self.wrong(name, f"expected a text, not {value!r}")
        return value

    def flag(self, name: str) -> bool:
        """True or false; false where it is absent."""
        value = self._arguments.get(name, False)
        if not isinstance(value, bool):
            raise self.wrong(name, f"expected true or false, not {value!r}")
        return value

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """One of some texts; the first where it is absent."""
        value = self._arguments.get(name, choices[0])
        if value not in choices:
            raise self.wrong(name, f"expected one of {', '.join(choices)}, not {value!r}")
        return str(value)

    def delivery_limit(self) -> int | None:
        """The limit; -1 is none, as in RabbitMQ 4."""
        name = "x-delivery-limit"
        if self._arguments.get(name) == -1:
            return None
        return self.number(name, 0, DELIVERY_LIMIT_MAX)
