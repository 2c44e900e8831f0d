"""The RocketMQ door: a listener, what its connections share, and the way it stops."""

from __future__ import annotations

import ssl

from broker.port import BrokerPort
from gateways.rocketmq.client import RocketmqConnection
from gateways.rocketmq.limits import RocketmqLimits
from gateways.rocketmq.mapping import Identity
from gateways.rocketmq.shared import Shared
from gateways.rocketmq.transactions import ask_producers
from net.connection import Context
from net.listener import Listener, listen


class RocketmqServer:
    """The door: listens, and owns what its connections share.

    Args:
        advertise: `host:port` that routes name; by default each client is told the address that
            it connected to, which is wrong only behind a translation of addresses.
        user: whose rights all clients of this door have; empty for nobody's.
    """

    def __init__(
        self,
        *,
        port: BrokerPort,
        context: Context,
        limits: RocketmqLimits | None = None,
        cluster: str = "DefaultCluster",
        broker_name: str = "broker-a",
        advertise: str | None = None,
        user: str = "",
    ) -> None:
        self._shared = Shared(
            port=port,
            context=context,
            limits=limits or RocketmqLimits(),
            identity=Identity(cluster=cluster, broker_name=broker_name),
            advertised=advertise,
        )
        self._user = user
        self._listener: Listener | None = None

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Listen; returns the bound port. Raises `net.listener.CannotListen`."""
        shared = self._shared
        self._listener = await listen(
            shared.context,
            lambda: RocketmqConnection(shared, self._user),
            host=host,
            port=port,
            tls=tls,
            connections_max=shared.limits.connections_max,
        )
        shared.start()
        shared.port.when_half_unresolved(lambda half: ask_producers(shared, half))
        return self._listener.port

    async def stop(self, drain_seconds: float) -> None:
        """Stop accepting, answer what was asked, then close; abort what takes longer."""
        if self._listener is None:
            return
        self._listener.stop_accepting()
        for connection in list(self._listener.connections):
            if isinstance(connection, RocketmqConnection):
                connection.drain()
        await self._listener.wait_empty(drain_seconds)
        await self._listener.close()
        self._shared.stop()

    @property
    def connection_count(self) -> int:
        """Clients that are connected now."""
        return len(self._listener.connections) if self._listener is not None else 0

    @property
    def protocol_error_count(self) -> int:
        """Connections that were closed because of what they sent."""
        return self._shared.protocol_error_count

    @property
    def held_count(self) -> int:
        """Pulls that wait for messages."""
        return len(self._shared.holds)
