"""MQTT clients that are connected."""

from __future__ import annotations

from collections.abc import Generator
from ipaddress import IPv4Network, IPv6Network
from typing import Any

from polymq.admin.mqtt_names import MqttNames
from polymq.admin.mqtt_sessions import (
    MqttSubscription,
    SessionFigures,
    figure_fields,
    subscription_fields,
)
from polymq.admin.operations import Call, Given, Group, Operation, Value
from polymq.admin.pages import Listing, Page, PageQuery, page_of
from polymq.broker.accounts import audit
from polymq.broker.accounts.bans import parse_address, parse_network
from polymq.broker.engine import Engine
from polymq.broker.errors import Reason, Refused
from polymq.broker.port import ConnectedClient
from polymq.steps import in_steps


class MqttClient(SessionFigures, kw_only=True):
    """A connected MQTT client, with the numbers of its session.

    Attributes:
        client_id: its client identifier.
        user: who it logged in as.
        address: its address and port.
        listener: address and port that it connected to.
        version: of the protocol: 3.1, 3.1.1 or 5.0.
        keep_alive_seconds: what it said in CONNECT; 0: none.
        connected_ms: when it logged in, in milliseconds since the epoch.
    """

    client_id: str
    user: str
    address: str
    listener: str
    version: str
    keep_alive_seconds: int
    connected_ms: int


class MqttClientDetails(MqttClient, kw_only=True):
    """A connected MQTT client with its subscriptions.

    Attributes:
        subscription_list: in the order of their topics.
        queued_bytes: of all messages that wait, as they are in the log.
        queued_bytes_complete: whether all of them were counted; false for very long queues.
    """

    subscription_list: list[MqttSubscription]
    queued_bytes: int
    queued_bytes_complete: bool


class DisconnectedClient(Value):
    """A client that was disconnected.

    Attributes:
        client_id: its client identifier.
        address: its address and port.
    """

    client_id: str
    address: str


class MqttClientsQuery(PageQuery):
    """Which clients.

    Attributes:
        user: only clients of this user.
        address: only clients from this address or network, such as 10.1.0.0/16.
    """

    user: str | None = None
    address: str | None = None


class MqttClientHandlers:
    """Carries out the operations on MQTT clients.

    Args:
        names: of the MQTT listeners.
    """

    def __init__(self, engine: Engine, names: MqttNames) -> None:
        self._engine = engine
        self._clients = engine.connections.clients
        self._names = names

    def group(self) -> Group:
        """The operations."""
        named = {"client_id": "the client identifier"}
        return Group(
            name="clients",
            about="MQTT clients that are connected.",
            operations=[
                Operation(
                    method="GET",
                    path="/mqtt/clients",
                    name="listMqttClients",
                    summary="List connected MQTT clients in the order of their identifiers",
                    right="monitor",
                    handler=self._list,
                    query=MqttClientsQuery,
                    answer=Page[MqttClient],
                ),
                Operation(
                    method="GET",
                    path="/mqtt/clients/{client_id}",
                    name="getMqttClient",
                    summary="Show a connected MQTT client with its subscriptions",
                    right="monitor",
                    handler=self._show,
                    answer=MqttClientDetails,
                    path_about=named,
                ),
                Operation(
                    method="DELETE",
                    path="/mqtt/clients/{client_id}",
                    name="disconnectMqttClient",
                    summary="Disconnect an MQTT client",
                    about="It may connect again. Its will is published, and its session stays as "
                    "if the connection had been lost.",
                    right="operate",
                    handler=self._disconnect,
                    answer=DisconnectedClient,
                    path_about=named,
                ),
            ],
        )

    async def _list(self, call: Call[MqttClientsQuery]) -> Page[MqttClient]:
        user, address = call.query.user, call.query.address
        network = None if address is None else parse_network(address)

        def wants(client: ConnectedClient) -> bool:
            if user is not None and client.user != user:
                return False
            return network is None or is_within(client.address, network)

        listing: Listing[ConnectedClient, MqttClient] = Listing(
            names=self._clients,
            find=self._clients.get,
            row=lambda _, client: self._row(client),
            wants=None if user is None and network is None else wants,
            walk=self._clients.walk,
        )
        return await in_steps(page_of(listing, call.query))

    def _row(self, client: ConnectedClient) -> Generator[None, None, MqttClient]:
        return MqttClient(**(yield from self._fields(client)))

    def _fields(self, client: ConnectedClient) -> Generator[None, None, dict[str, Any]]:
        session = self._engine.sessions.by_client.get(client.client_id)
        figures = yield from figure_fields(session)
        return {
            "client_id": client.client_id,
            "user": client.user,
            "address": client.peer,
            "listener": client.listener,
            "version": client.version,
            "keep_alive_seconds": client.keep_alive_seconds,
            "connected_ms": client.connected_ms,
            **figures,
        }

    def _client(self, call: Call[Given]) -> ConnectedClient:
        name = call.path["client_id"]
        client = self._clients.get(name)
        if client is None:
            raise Refused(Reason.NOT_FOUND, f"no client {name!r} is connected")
        return client

    async def _show(self, call: Call[Given]) -> MqttClientDetails:
        client = self._client(call)
        row = await in_steps(self._fields(client))
        session = self._engine.sessions.by_client.get(client.client_id)
        return MqttClientDetails(
            **row, **await subscription_fields(self._engine, session, self._names)
        )

    async def _disconnect(self, call: Call[Given]) -> DisconnectedClient:
        client = self._client(call)
        audit.note("client disconnected", client_id=client.client_id, by=call.caller)
        client.end("disconnected by an operator")
        return DisconnectedClient(client_id=client.client_id, address=client.peer)


def is_within(address: str, network: IPv4Network | IPv6Network) -> bool:
    """Whether the address of a socket is in a network."""
    found = parse_address(address)
    return found is not None and found.version == network.version and found in network
