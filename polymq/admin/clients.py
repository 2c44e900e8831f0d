"""The connections of clients: all protocols in one list, and their ends."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Annotated, Final, Literal

import msgspec

from polymq.admin.mqtt_clients import is_within
from polymq.admin.operations import Call, Given, Group, Operation, Value
from polymq.admin.pages import STEP_ENTRIES, Listing, Page, PageQuery, each, page_of
from polymq.broker.accounts import audit
from polymq.broker.accounts.bans import parse_network
from polymq.broker.errors import Reason, Refused
from polymq.net.clients import ClientConnection, State, identity
from polymq.steps import in_steps

CLOSED_AT_ONCE: Final = 16
"""Connections that are ended in one step, some 50 us each: a session may have much to give back."""
REASON_DEFAULT: Final = "closed by an operator"
Protocol = Literal["mqtt", "amqp", "http", "rocketmq"]
ReasonText = Annotated[str, msgspec.Meta(max_length=200)]


class Connection(Value):
    """A connection of a client.

    Attributes:
        id: unique, also over restarts of the broker. Ids sort by the time when they began.
        protocol: of the listener. MQTT over WebSocket is mqtt.
        listener: address and port that it came to, or the path of a Unix socket.
        tls: whether the broker ends its TLS.
        peer: remote address and port; behind a proxy, what the proxy says.
        user: who logged in; empty for nobody. Of HTTP and RocketMQ, who sent the last request.
        client: client identifier of MQTT and RocketMQ, or the name that an AMQP connection has
            given itself; empty if it has none.
        connected_ms: since when, in milliseconds since the epoch.
        state: `connecting` until its login or first valid request; `running`; `waiting` while it is
            read and what came is not handled; `blocked` while its socket is not read; `closing`.
        waits_for: what it waits for, in words.
        channels: of AMQP; null in other protocols.
        consumers: consumers of AMQP, subscriptions of MQTT, groups of RocketMQ; null for HTTP.
        sent_bytes: that were sent to it; null for HTTP. What is received is counted for each
            protocol only.
    """

    id: str
    protocol: Protocol
    listener: str
    tls: bool
    peer: str
    user: str
    client: str
    connected_ms: int
    state: State
    waits_for: list[str]
    channels: int | None
    consumers: int | None
    sent_bytes: int | None


class ConnectionsQuery(PageQuery):
    """Which connections.

    Attributes:
        sort: the oldest first, or the newest.
        prefix: only those whose client identifier or name begins with this text.
        protocol: only connections of this protocol.
        user: only those of this user.
        address: only those from this address or network, such as 10.1.0.0/16.
    """

    sort: Literal["oldest", "newest"] = "oldest"
    protocol: Protocol | Literal["all"] = "all"
    user: str | None = None
    address: str | None = None


class CloseQuery(Given):
    """Why a connection is closed.

    Attributes:
        reason: what the client is told, where its protocol has a way: the close of AMQP, and the
            DISCONNECT of MQTT 5. At most 200 characters.
    """

    reason: ReasonText = REASON_DEFAULT


class CloseMany(Given):
    """Which connections are closed. At least one of user, address and prefix is needed.

    Attributes:
        user: those of this user.
        address: those from this address or network.
        prefix: those whose client identifier or name begins with this text.
        protocol: only those of this protocol.
        reason: what the clients are told.
        dry_run: only count them.
    """

    user: str | None = None
    address: str | None = None
    prefix: str = ""
    protocol: Protocol | Literal["all"] = "all"
    reason: ReasonText = REASON_DEFAULT
    dry_run: bool = False


class Closed(Value):
    """How many connections were closed.

    Attributes:
        connections: their number.
    """

    connections: int


class ConnectionHandlers:
    """Carries out the operations on connections.

    Args:
        connections: all of the listeners for clients.
    """

    def __init__(self, connections: Callable[[], Iterable[ClientConnection]]) -> None:
        self._connections = connections

    def group(self) -> Group:
        """The operations."""
        named = {"id": "of the connection, from the list"}
        return Group(
            name="connections",
            about="Connections of clients of all protocols.",
            operations=[
                Operation(
                    method="GET",
                    path="/connections",
                    name="listConnections",
                    summary="List the connections of clients",
                    right="monitor",
                    handler=self._list,
                    query=ConnectionsQuery,
                    answer=Page[Connection],
                ),
                Operation(
                    method="GET",
                    path="/connections/{id}",
                    name="getConnection",
                    summary="Show a connection",
                    right="monitor",
                    handler=self._show,
                    answer=Connection,
                    path_about=named,
                ),
                Operation(
                    method="DELETE",
                    path="/connections/{id}",
                    name="closeConnection",
                    summary="Close a connection",
                    about="Its client may connect again: a ban keeps it out.",
                    right="operate",
                    handler=self._close,
                    query=CloseQuery,
                    path_about=named,
                ),
                Operation(
                    method="POST",
                    path="/connections/close",
                    name="closeConnections",
                    summary="Close all connections of a user, an address or a kind of client",
                    right="operate",
                    handler=self._close_many,
                    body=CloseMany,
                    answer=Closed,
                ),
            ],
        )

    async def _list(self, call: Call[ConnectionsQuery]) -> Page[Connection]:
        return await in_steps(self._page(call.query))

    def _page(self, query: ConnectionsQuery) -> Generator[None, None, Page[Connection]]:
        wants = _filter(query)
        found: dict[str, ClientConnection] = {}
        for number, connection in enumerate(list(self._connections())):
            if number % STEP_ENTRIES == 0:
                yield
            if connection.has_socket and wants(connection):
                found[identity(connection)] = connection

        def find(name: str) -> ClientConnection | None:
            return found[name] if found[name].has_socket else None

        listing = Listing(
            names=found,
            find=find,
            row=lambda name, connection: _row(name, connection),
            numbers=each(_newest) if query.sort == "newest" else None,
        )
        plain = PageQuery(limit=query.limit, after=query.after)
        return (yield from page_of(listing, plain))

    async def _show(self, call: Call[Given]) -> Connection:
        name = call.path["id"]
        return _row(name, await in_steps(self._find(name)))

    def _find(self, name: str) -> Generator[None, None, ClientConnection]:
        for at, connection in enumerate(list(self._connections())):
            if at % STEP_ENTRIES == 0:
                yield
            if identity(connection) == name and connection.has_socket:
                return connection
        raise Refused(Reason.NOT_FOUND, f"there is no connection {name!r}")

    async def _close(self, call: Call[CloseQuery]) -> None:
        connection = await in_steps(self._find(call.path["id"]))
        why = call.query.reason
        audit.note(
            "connection closed",
            protocol=connection.protocol,
            address=connection.peer,
            user=connection.user,
            client_id=connection.client_name,
            reason=why,
            by=call.caller,
        )
        connection.end(why)

    async def _close_many(self, call: Call[Given]) -> Closed:
        wanted: CloseMany = call.body
        if wanted.user is None and wanted.address is None and not wanted.prefix:
            raise Refused(Reason.BAD_ARGUMENT, "name a user, an address or a prefix")
        count = await in_steps(self._end(_filter(wanted), wanted.reason, dry=wanted.dry_run))
        if not wanted.dry_run:
            audit.note(
                "connections closed",
                connections=count,
                user=wanted.user,
                address=wanted.address,
                prefix=wanted.prefix,
                protocol=wanted.protocol,
                reason=wanted.reason,
                by=call.caller,
            )
        return Closed(connections=count)

    def _end(
        self, wants: Callable[[ClientConnection], bool], why: str, *, dry: bool
    ) -> Generator[None, None, int]:
        count = 0
        for number, connection in enumerate(list(self._connections())):
            if number % STEP_ENTRIES == 0:
                yield
            if not connection.has_socket or not wants(connection):
                continue
            count += 1
            if not dry:
                connection.end(why)
                if count % CLOSED_AT_ONCE == 0:
                    yield
        return count


def _newest(connection: ClientConnection) -> float:
    return connection.began_ms


def _row(name: str, connection: ClientConnection) -> Connection:
    info = connection.describe()
    return Connection(
        id=name,
        protocol=connection.protocol,  # type: ignore[arg-type]
        listener=info.listener,
        tls=info.tls,
        peer=connection.peer,
        user=connection.user,
        client=connection.client_name,
        connected_ms=connection.began_ms,
        state=info.state,
        waits_for=list(info.waits_for),
        channels=info.channels,
        consumers=info.consumers,
        sent_bytes=info.sent_bytes,
    )


def _filter(wanted: ConnectionsQuery | CloseMany) -> Callable[[ClientConnection], bool]:
    """Whether a connection passes. Raises Refused: BAD_ARGUMENT."""
    network = None if wanted.address is None else parse_network(wanted.address)
    protocol = None if wanted.protocol == "all" else wanted.protocol
    user, prefix = wanted.user, wanted.prefix

    def passes(connection: ClientConnection) -> bool:
        return (
            (protocol is None or connection.protocol == protocol)
            and (user is None or connection.user == user)
            and (not prefix or connection.client_name.startswith(prefix))
            and (network is None or is_within(connection.address, network))
        )

    return passes
