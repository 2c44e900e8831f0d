"""Connections, channels and consumers: their rows, and closing connections.

Clients of MQTT are listed as RabbitMQ's plugin lists them, as connections without channels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from polymq.broker.accounts import audit
from polymq.broker.port import ConnectedClient
from polymq.gateways.amqp.channel import Channel
from polymq.gateways.amqp.inspection import (
    ConnectionInfo,
    ConsumerInfo,
    channel_info,
    connection_info,
    consumer_infos,
)
from polymq.management.callers import Caller, Rank
from polymq.management.consumers import channel_details, consumer_row
from polymq.management.context import Context
from polymq.management.errors import NOT_AUTHORIZED, Problem, missing
from polymq.management.json_values import plain
from polymq.management.lists import Items
from polymq.management.names import channel_name, connection_name, host_and_port
from polymq.management.routing import VHOST, Call, Route

CLOSED_BY_OPERATOR: Final = "Closed via management plugin"
"""Why, if nobody says more: RabbitMQ's words."""
STEP_CONNECTIONS: Final = 100
"""Connections that are looked at in one step."""
REASON_CHARACTERS_MAX: Final = 200

Client = ConnectionInfo | ConnectedClient


class _OpenChannel(NamedTuple):
    """A channel, and the connection that it is on."""

    connection: ConnectionInfo
    channel: Channel

    @property
    def name(self) -> str:
        return channel_name(_name(self.connection), self.channel.number)


class ClientHandlers:
    """The answers below `/connections`, `/channels` and `/consumers`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._engine = context.engine
        self._node = context.node.name

    def routes(self) -> list[Route]:
        """For the table."""
        rank = Rank.MANAGEMENT
        return [
            Route("GET", "/connections", rank, self._connections),
            Route("GET", "/connections/{name}", rank, self._connection),
            Route("DELETE", "/connections/{name}", rank, self._close),
            Route("GET", "/connections/{name}/channels", rank, self._channels_of),
            Route("GET", "/connections/username/{user}", rank, self._connections_of),
            Route("DELETE", "/connections/username/{user}", rank, self._close_all),
            Route("GET", "/vhosts/{vhost}/connections", rank, self._connections),
            Route("GET", "/vhosts/{vhost}/channels", rank, self._channels),
            Route("GET", "/channels", rank, self._channels),
            Route("GET", "/channels/{name}", rank, self._channel),
            Route("GET", "/consumers", rank, self._consumers),
            Route("GET", "/consumers/{vhost}", rank, self._consumers),
        ]

    # --- who is there ---------------------------------------------------------------------

    def _amqp(self, caller: Caller) -> Iterator[ConnectionInfo | None]:
        """AMQP's connections that the caller may see; None for each other one."""
        for connection in list(self._context.node.connections()):
            info = connection_info(connection)
            sees = info is not None and (caller.sees_all or info.user == caller.name)
            yield info if sees else None

    def _mqtt(self, caller: Caller) -> Iterator[ConnectedClient | None]:
        for client in list(self._engine.connections.clients.values()):
            yield client if caller.sees_all or client.user == caller.name else None

    def _clients(self, caller: Caller) -> Iterator[Client | None]:
        yield from self._amqp(caller)
        yield from self._mqtt(caller)

    def _open_channels(self, caller: Caller) -> Iterator[_OpenChannel | None]:
        for info in self._amqp(caller):
            yield None
            if info is not None:
                for channel in list(info.channels.values()):
                    yield _OpenChannel(info, channel)

    # --- connections ----------------------------------------------------------------------

    async def _connections(self, call: Call) -> Items:
        return Items(entries=self._clients(call.caller), row=self._row, name=_name)

    async def _connections_of(self, call: Call) -> Items:
        user = call.names["user"]
        entries = (
            client if client is not None and client.user == user else None
            for client in self._clients(call.caller)
        )
        return Items(entries=entries, row=self._row, name=_name)

    async def _connection(self, call: Call) -> Mapping[str, Any]:
        return self._row(await self._find(call))

    async def _find(self, call: Call) -> Client:
        """The connection that a path names. Raises Problem."""
        name = call.names["name"]
        for number, client in enumerate(self._clients(call.caller)):
            if client is not None and _name(client) == name:
                return client
            if number % STEP_CONNECTIONS == 0:
                await self._context.pause()
        raise missing()

    def _row(self, client: Client) -> Mapping[str, Any]:
        if isinstance(client, ConnectedClient):
            return self._mqtt_row(client)
        host, port = host_and_port(client.listener)
        peer_host, peer_port = host_and_port(client.peer)
        name = _name(client)
        counts = {"send_oct": client.written_bytes, "recv_oct": 0}
        return {
            **self._common(name, client.user, client.opened_ms),
            "host": host,
            "port": port,
            "peer_host": peer_host,
            "peer_port": peer_port,
            "protocol": "AMQP 0-9-1",
            "auth_mechanism": client.mechanism,
            "ssl": client.is_secure,
            "peer_cert_subject": client.certificate or None,
            "channels": len(client.channels),
            "channel_max": 0,
            "frame_max": client.frame_max,
            "timeout": client.heartbeat_seconds,
            "client_properties": plain(client.properties),
            "user_provided_name": plain(client.properties.get("connection_name")),
            **self._context.rates.with_rates(("connection", name, client.opened_ms), counts),
        }

    def _mqtt_row(self, client: ConnectedClient) -> Mapping[str, Any]:
        host, port = host_and_port(client.listener)
        peer_host, peer_port = host_and_port(client.peer)
        return {
            **self._common(_name(client), client.user, client.connected_ms),
            "host": host,
            "port": port,
            "peer_host": peer_host,
            "peer_port": peer_port,
            "protocol": f"MQTT {client.version.replace('.', '-')}",
            "auth_mechanism": "none",
            "ssl": False,
            "channels": 0,
            "channel_max": 0,
            "frame_max": 0,
            "timeout": client.keep_alive_seconds,
            "client_properties": {"client_id": client.client_id, "product": "MQTT client"},
            "variable_map": {"client_id": client.client_id},
        }

    def _common(self, name: str, user: str, since_ms: int) -> dict[str, Any]:
        return {
            "name": name,
            "node": self._node,
            "type": "network",
            "state": "running",
            "user": user,
            "user_who_performed_action": user,
            "vhost": VHOST,
            "connected_at": since_ms,
        }

    async def _close(self, call: Call) -> None:
        self._end(await self._find(call), call)

    async def _close_all(self, call: Call) -> None:
        user = call.names["user"]
        for number, client in enumerate(self._clients(call.caller)):
            if client is not None and client.user == user:
                self._end(client, call)
            if number % STEP_CONNECTIONS == 0:
                await self._context.pause()

    def _end(self, client: Client, call: Call) -> None:
        caller = call.caller
        if not caller.operates and client.user != caller.name:
            raise Problem(NOT_AUTHORIZED, "Not administrator user")
        why = call.headers.get("X-Reason", "")[:REASON_CHARACTERS_MAX] or CLOSED_BY_OPERATOR
        audit.note("connection closed", connection=_name(client), reason=why, by=caller.name)
        client.end(why)

    # --- channels -------------------------------------------------------------------------

    async def _channels(self, call: Call) -> Items:
        return Items(
            entries=self._open_channels(call.caller),
            row=self._channel_row,
            name=lambda one: one.name,
        )

    async def _channels_of(self, call: Call) -> Items:
        client = await self._find(call)
        entries: list[_OpenChannel] = []
        if isinstance(client, ConnectionInfo):
            entries = [_OpenChannel(client, channel) for channel in client.channels.values()]
        return Items(entries=entries, row=self._channel_row, name=lambda one: one.name)

    async def _channel(self, call: Call) -> Mapping[str, Any]:
        name = call.names["name"]
        for number, found in enumerate(self._open_channels(call.caller)):
            if number % STEP_CONNECTIONS == 0:
                await self._context.pause()
            if found is not None and found.name == name:
                shown = self._channel_row(found)
                infos = consumer_infos(found.connection, found.channel)
                rows = [consumer_row(info, self._node) for info in infos]
                return {**shown, "consumer_details": rows}
        raise missing()

    def _channel_row(self, found: _OpenChannel) -> Mapping[str, Any]:
        connection, info = found.connection, channel_info(found.channel)
        details = channel_details(
            connection.peer, connection.listener, info.number, node=self._node, user=""
        )
        return {
            "name": details["name"],
            "number": info.number,
            "node": self._node,
            "vhost": VHOST,
            "user": connection.user,
            "user_who_performed_action": connection.user,
            "state": "running",
            "connection_details": {
                "name": details["connection_name"],
                "peer_host": details["peer_host"],
                "peer_port": details["peer_port"],
            },
            "prefetch_count": info.prefetch,
            "global_prefetch_count": info.prefetch_shared,
            "consumer_count": info.consumer_count,
            "messages_unacknowledged": info.unacked_count,
            "messages_unconfirmed": 0,
            "messages_uncommitted": info.deferred_count,
            "acks_uncommitted": info.deferred_acks,
            "pending_raft_commands": 0,
            "confirm": info.confirming,
            "transactional": info.transactional,
        }

    # --- consumers ------------------------------------------------------------------------

    async def _consumers(self, call: Call) -> Items:
        def entries() -> Iterator[ConsumerInfo | None]:
            for found in self._open_channels(call.caller):
                yield None
                if found is not None:
                    yield from consumer_infos(found.connection, found.channel)

        def row(info: ConsumerInfo) -> Mapping[str, Any]:
            return consumer_row(info, self._node)

        return Items(entries=entries(), row=row)


def _name(client: Client) -> str:
    return connection_name(client.peer, client.listener)
