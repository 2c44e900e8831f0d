"""The RocketMQ listener: a listener, what its connections share, and the way it stops."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence

from polymq.broker.port import BrokerPort
from polymq.gateways.rocketmq.connection import Connection
from polymq.gateways.rocketmq.limits import Limits
from polymq.gateways.rocketmq.mapping import Identity
from polymq.gateways.rocketmq.shared import Shared
from polymq.gateways.rocketmq.transactions import ask_producers
from polymq.net.clients import ConsumerInfo, identity
from polymq.net.connection import Context, SocketConnection
from polymq.net.listener import Listener, listen
from polymq.net.message_counts import TrafficCounts
from polymq.net.roster import Roster
from polymq.net.tls_source import TlsSource


class Server:
    """The listener: listens, and owns what its connections share.

    Args:
        advertise: `host:port` that routes name; by default each client is told the address that
            it connected to, which is wrong only behind a translation of addresses. Clients of a
            further port are told that host, and the port that they came to.
        user: whose rights all clients of this listener have; empty for nobody's.
    """

    def __init__(
        self,
        *,
        port: BrokerPort,
        context: Context,
        limits: Limits | None = None,
        cluster: str = "DefaultCluster",
        broker_name: str = "broker-a",
        advertise: str | None = None,
        user: str = "",
    ) -> None:
        self._shared = Shared(
            port=port,
            context=context,
            limits=limits or Limits(),
            identity=Identity(cluster=cluster, broker_name=broker_name),
        )
        self._user = user
        self._advertise = advertise
        self._listeners: list[Listener] = []

    async def start(
        self,
        host: str,
        port: int,
        tls: TlsSource | None = None,
        sockets: Sequence[socket.socket] = (),
    ) -> int:
        """Listen, on sockets that listen already if there are any; returns the bound port. Raises
        `net.listener.CannotListen`."""
        bound = await self._listen(host, port, tls, self._advertise, sockets)
        shared = self._shared
        shared.start()
        shared.port.half_messages.when_unresolved(lambda half: ask_producers(shared, half))
        shared.port.admission.when_rights_change(shared.rights_changed)
        return bound

    async def listen_too(
        self, host: str, port: int, tls: TlsSource, sockets: Sequence[socket.socket] = ()
    ) -> int:
        """Listen on one more port, after `start`, for clients that share all else with the others.
        Returns it. Raises CannotListen."""
        advertised = None
        if self._advertise is not None:
            advertised = self._advertise.rpartition(":")[0]
        return await self._listen(host, port, tls, advertised, sockets)

    async def _listen(
        self,
        host: str,
        port: int,
        tls: TlsSource | None,
        advertised: str | None,
        sockets: Sequence[socket.socket],
    ) -> int:
        """Listen on one port, whose clients are told to come to an address, or to a host."""
        shared = self._shared
        listener = await listen(
            shared.context,
            lambda: Connection(shared, self._user, advertised),
            host=host,
            port=port,
            tls=tls,
            sockets=sockets,
            connections_max=shared.limits.connections_max,
        )
        self._listeners.append(listener)
        return listener.port

    def change(self, *, connections_max: int) -> None:
        """Accept so many connections from now on."""
        for listener in self._listeners:
            listener.change(connections_max=connections_max)

    async def stop(self, drain_seconds: float) -> None:
        """Stop accepting, answer what was asked, then close; abort what takes longer."""
        for listener in self._listeners:
            listener.stop_accepting()
        for connection in self._connections():
            if isinstance(connection, Connection):
                connection.drain()
        await asyncio.gather(*(listener.wait_empty(drain_seconds) for listener in self._listeners))
        await asyncio.gather(*(listener.close() for listener in self._listeners))
        if self._listeners:
            self._shared.stop()

    def _connections(self) -> list[SocketConnection]:
        return [one for listener in self._listeners for one in listener.connections]

    @property
    def connection_count(self) -> int:
        """Clients that are connected now."""
        return len(self._connections())

    @property
    def rosters(self) -> Sequence[Roster[SocketConnection]]:
        """For metrics."""
        return [listener.roster for listener in self._listeners]

    def members_of(self, group: str) -> list[ConsumerInfo]:
        """The members of a consumer group that are connected; none of one that is unknown."""
        found = self._shared.members.consumers.get(group)
        members = [] if found is None else list(found.members.values())
        return [
            ConsumerInfo(
                name=member.client_id,
                connection=identity(member.channel),
                user=member.owner,
                reads=tuple(
                    f"{one.topic} {one.sub_string}" for one in member.data.subscription_data_set
                ),
            )
            for member in members
        ]

    def moved(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """A group goes on somewhere else in a queue: its members are told, if it has some."""
        if group in self._shared.members.consumers:
            self._shared.reset(group, topic, queue_id, offset)

    @property
    def protocol_error_count(self) -> int:
        """Connections that were closed because of what they sent."""
        return self._shared.protocol_error_count

    def traffic(self) -> TrafficCounts:
        """Messages and bytes since the start. What a filter of tags skipped in a queue counts as
        sent."""
        shared = self._shared
        return TrafficCounts(
            messages_received=shared.counts.received,
            messages_sent=shared.counts.sent,
            bytes_received=shared.bytes.received,
            bytes_sent=shared.bytes.sent,
        )

    @property
    def held_count(self) -> int:
        """Pulls that wait for messages."""
        return len(self._shared.long_polls)
