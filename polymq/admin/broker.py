"""The broker as a whole: what a console shows first."""

from __future__ import annotations

from collections.abc import Generator
from typing import Literal

from polymq import program_version
from polymq.admin.node import ShownNode
from polymq.admin.operations import Call, Given, Group, Operation, Value
from polymq.broker.named_queues.named_queues import SUBSCRIPTION_PREFIX
from polymq.kernel_forms import kernel_forms
from polymq.steps import in_steps

NAMES_AT_ONCE = 1_000
"""Names of queues that one step looks at."""


class Broker(Value):
    """A broker. Of figures that only grow, two answers and the time between them give a rate.

    Attributes:
        version: of PolyMQ.
        name: the setting names.broker.
        cluster: the setting names.cluster.
        role: master, slave, or fenced: a master that was replaced.
        status: ok, or what is wrong, in words.
        epoch: of the log; it grows with each start.
        kernels: the form of the inner loops, compiled or pure, by package.
        started_ms: when the server started, in milliseconds since the epoch.
        time_ms: now, by the server's clock, in milliseconds since the epoch.
        topics: how many there are.
        exchanges: exchanges of AMQP that were declared.
        queues: queues of AMQP.
        subscriptions: named subscriptions that applications pull over HTTP.
        sessions: MQTT sessions, those of connected clients included.
        retained: retained MQTT messages.
        connections: of clients, by protocol.
        users: how many there are; with 0, clients need not log in.
        messages_stored: in all topics since they were created. It grows, except that a topic that
            is deleted takes its part away.
        log_appended_bytes: the end of the log in memory. It only grows.
        log_flushed_bytes: the end of the log on the disk, which acknowledgements wait for. It only
            grows.
        login_failures: logins with a wrong user or password since the start. It only grows.
    """

    version: str
    name: str
    cluster: str
    role: Literal["master", "slave", "fenced"]
    status: str
    epoch: int
    kernels: dict[str, str]
    started_ms: int
    time_ms: int
    topics: int
    exchanges: int
    queues: int
    subscriptions: int
    sessions: int
    retained: int
    connections: dict[str, int]
    users: int
    messages_stored: int
    log_appended_bytes: int
    log_flushed_bytes: int
    login_failures: int


class BrokerHandlers:
    """Carries out the operations on the broker."""

    def __init__(self, node: ShownNode) -> None:
        self._node = node

    def group(self) -> Group:
        """The operations."""
        return Group(
            name="broker",
            about="The broker as a whole.",
            operations=[
                Operation(
                    method="GET",
                    path="/broker",
                    name="getBroker",
                    summary="Show the version, state and totals of the broker",
                    right="monitor",
                    handler=self._show,
                    answer=Broker,
                ),
            ],
        )

    async def _show(self, _call: Call[Given]) -> Broker:
        subscriptions = await in_steps(self._count_subscriptions())
        node, engine, log = self._node, self._node.engine, self._node.store.log
        return Broker(
            version=program_version(),
            name=node.settings.names.broker,
            cluster=node.settings.names.cluster,
            role=node.replication.role,
            status=node.status(),
            epoch=node.store.epoch,
            kernels=kernel_forms(),
            started_ms=node.started_ms,
            time_ms=engine.core.clock_ms(),
            topics=engine.topics.shown_count,
            exchanges=len(engine.exchanges.exchanges),
            queues=max(0, len(engine.named_queues.queues) - subscriptions),
            subscriptions=subscriptions,
            sessions=len(engine.sessions.by_client),
            retained=engine.retained.count,
            connections=dict(node.connections()),
            users=len(engine.users.users),
            messages_stored=engine.topics.stored_count,
            log_appended_bytes=log.appended,
            log_flushed_bytes=log.flushed,
            login_failures=engine.logins.failed_count,
        )

    def _count_subscriptions(self) -> Generator[None, None, int]:
        names = list(self._node.engine.named_queues.queues)
        count = 0
        for first in range(0, len(names), NAMES_AT_ONCE):
            some = names[first : first + NAMES_AT_ONCE]
            count += sum(name.startswith(SUBSCRIPTION_PREFIX) for name in some)
            yield
        return count
