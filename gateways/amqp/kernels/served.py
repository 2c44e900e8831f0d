"""The client of a connection, as far as the short way (`fast_path.py`) knows of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from polymq.broker.port import BrokerPort
    from polymq.gateways.amqp.answers import Answers
    from polymq.gateways.amqp.batch_path import BatchPath
    from polymq.gateways.amqp.channel import Channel
    from polymq.gateways.amqp.limits import Limits


class Served(Protocol):
    """A client whose single messages and acks go the short way (`client.Client` implements it).

    Attributes:
        unread_bytes: of answers, since the socket was full.
        asks_always: its port counts what it publishes, and has to be asked after each read.
    """

    channels: dict[int, Channel]
    limits: Limits
    publisher: BatchPath
    answers: Answers
    port: BrokerPort
    unread_bytes: int
    asks_always: bool

    def check_pressure(self) -> None:
        """Stop reading where too much waits to be sent, and go on where it does not."""

    def keeps_up(self) -> bool:
        """Whether the disk keeps up with what is published."""
