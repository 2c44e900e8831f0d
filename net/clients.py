"""What operators see of the clients of all protocols, and do to them.

A gateway's connection says who is there (`ClientConnection`), so that one list has the clients of
all gateways and none of these knows another. Nothing here is computed unless somebody asks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from polymq.net.flow import STOP_READING, Flow

State = Literal["connecting", "running", "waiting", "blocked", "closing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientInfo:
    """A connection at one moment.

    Attributes:
        listener: address and port that it came to, or the path of a Unix socket.
        tls: whether the server ends its TLS.
        state: see `state_of`.
        waits_for: what its reading or handling waits for, in words.
        channels: of AMQP; None in other protocols.
        consumers: consumers of AMQP, subscriptions of MQTT, groups of RocketMQ; None: HTTP has
            none.
        sent_bytes: since it began; None: not counted.
    """

    listener: str
    tls: bool
    state: State
    waits_for: tuple[str, ...] = ()
    channels: int | None = None
    consumers: int | None = None
    sent_bytes: int | None = None


class ClientConnection(Protocol):
    """A connection of a gateway, as operators see it."""

    @property
    def protocol(self) -> str:
        """`mqtt`, `amqp`, `http` or `rocketmq`."""

    @property
    def began_ms(self) -> int:
        """When it was accepted, in milliseconds since the epoch."""

    @property
    def number(self) -> int:
        """Which one it is of the connections that began since the server's start."""

    @property
    def peer(self) -> str:
        """Remote address with its port; the path of a Unix socket."""

    @property
    def address(self) -> str:
        """Remote address without its port."""

    @property
    def user(self) -> str:
        """Who logged in; empty: nobody, or not yet."""

    @property
    def client_name(self) -> str:
        """What the client calls itself; empty: it has not said."""

    @property
    def has_socket(self) -> bool:
        """Whether the socket is connected (TLS included)."""

    def describe(self) -> ClientInfo:
        """The rest, while it is open."""

    def end(self, why: str) -> None:
        """An operator wants the connection to end: tell the client, as far as its protocol can,
        and close. Safe to call again."""


def state_of(flow: Flow | None, *, proven: bool, closing: bool) -> State:
    """In one word how a connection is.

    Returns:
        `closing`; or `connecting`, before the login or the first valid request; or `blocked`, while
        its socket is not read; or `waiting`, while it is read and not all of that is handled; or
        `running`.
    """
    if closing:
        return "closing"
    if not proven:
        return "connecting"
    if flow is None or not flow.waits:
        return "running"
    return "blocked" if flow.waits & STOP_READING else "waiting"


def identity(connection: ClientConnection) -> str:
    """The id of a connection: unique, also over restarts. Ids sort by age, until the milliseconds
    since the epoch have more than 13 digits, in the year 2286."""
    return f"{connection.began_ms:013}-{connection.number:09}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerInfo:
    """One consumer of a queue, or member of a group, at one moment.

    Attributes:
        name: consumer tag of AMQP, client id of RocketMQ.
        connection: its id; empty if it is not known.
        user: who it is; empty for nobody.
        prefetch: messages that it may have without acknowledging them; 0: any number; None: its
            protocol has no such bound.
        unacknowledged: messages that it has; None: that is not known.
        reads: topics with the tags that it takes, for a member of a group.
    """

    name: str
    connection: str = ""
    user: str = ""
    prefetch: int | None = None
    unacknowledged: int | None = None
    reads: tuple[str, ...] = ()


@runtime_checkable
class ListsUnacknowledged(Protocol):
    """A consumer that can say which messages it has."""

    def held(self) -> Iterator[Sequence[tuple[int, int]]]:
        """(first offset, count) stretches that it has got and not settled, in parts of at most a
        thousand. Others may change them between two parts: then some may be missing."""


@runtime_checkable
class DescribesItself(Protocol):
    """A consumer that a gateway gave to the engine, and that operators can see."""

    def describe(self) -> ConsumerInfo:
        """How it is now."""
