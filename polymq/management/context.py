"""What the handlers of this API share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from polymq.admin.commits import Commits
from polymq.broker.engine import Engine
from polymq.broker.exchanges.entities import NamedQueue
from polymq.management.errors import missing
from polymq.management.figures import Rates
from polymq.management.routing import Call

RABBITMQ_VERSION: Final = "3.13.7"
"""The version of RabbitMQ whose API this is. Clients decide by it what they ask for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """An open port.

    Attributes:
        protocol: in RabbitMQ's words, such as `amqp/ssl`.
    """

    protocol: str
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """This broker, as RabbitMQ's tools see one.

    Attributes:
        name: of the node.
        cluster: the name of the cluster.
        version: of the program.
        data_directory: where it keeps its messages.
        started_ms: when, in milliseconds since the epoch.
        listeners: those that are open.
        health: `ok`, or what is wrong.
        connections: all connections of the listeners for clients.
        certificate: the file with the server's certificate; empty: there is none.
        descriptors: how many connections there may be.
    """

    name: str
    cluster: str
    version: str
    data_directory: str
    started_ms: int
    listeners: Callable[[], Iterable[Listener]]
    health: Callable[[], str]
    connections: Callable[[], Iterable[Any]]
    certificate: str = ""
    descriptors: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """The broker that is changed."""

    engine: Engine
    commits: Commits

    @property
    def committed(self) -> Callable[[Any], Awaitable[None]]:
        """Waits until a change at a position is on the disk."""
        return self.commits.committed

    async def pause(self) -> None:
        """Let others have their turn."""
        await asyncio.sleep(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context(Broker):
    """The broker, and what is remembered of it here."""

    rates: Rates
    node: Node

    def queue(self, call: Call) -> NamedQueue:
        """The queue that a path names. Raises Problem: there is none that the caller may see."""
        found = self.engine.named_queues.queues.get(call.names["queue"])
        if found is None or not call.caller.may_see(self.engine, found):
            raise missing()
        return found
