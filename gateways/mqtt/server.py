"""The MQTT server: a listener, what its connections share, and the way it stops."""

from __future__ import annotations

import logging
import secrets
import socket
from collections.abc import Callable, Sequence
from dataclasses import fields

from polymq.broker.port import BrokerPort, StorageFailed
from polymq.gateways.mqtt.auto_subscribing import AutoSubscription
from polymq.gateways.mqtt.client_events import ClientEvents
from polymq.gateways.mqtt.connection import Connection
from polymq.gateways.mqtt.control import ControlTopics
from polymq.gateways.mqtt.limits import Limits
from polymq.gateways.mqtt.mapping import NO_REWRITING, TopicMapping
from polymq.gateways.mqtt.reason_counts import ReasonCounts
from polymq.gateways.mqtt.rewriting import Rewriting
from polymq.gateways.mqtt.rules import Rules
from polymq.gateways.mqtt.shared import Counters, Shared
from polymq.gateways.mqtt.sys_topics import SysTopics
from polymq.gateways.mqtt.websocket import make_connection
from polymq.net.connection import Context, SocketConnection
from polymq.net.listener import BACKLOG, CannotListen, Listener, listen
from polymq.net.message_counts import TrafficCounts
from polymq.net.proxied import Proxies
from polymq.net.roster import Roster
from polymq.net.tls_source import TlsSource
from polymq.net.unix_socket import PathTaken, UnixAddress, bind_unix, file_number, remove_unix
from polymq.net.websocket import GOING_AWAY, SERVER_ERROR
from polymq.net.websocket_handshake import Offer
from polymq.net.websocket_layer import WebSocketLayer

log = logging.getLogger(__name__)


def random_client_id() -> str:
    """An id that nobody guesses: who knows it could take the session over."""
    return f"auto-{secrets.token_hex(16)}"


class Server:
    """One MQTT listener.

    Args:
        fixed_topic: keep whole topic names in the tag of this one topic (see `mapping.py`).
        new_client_id: makes ids for clients that send none [MQTT-3.1.3-6].
        websocket: what is offered to clients that open a WebSocket, where this listener is for
            them; None: it is for MQTT over TCP.
        rules: what it asks of its clients; by default nothing.
        proxies: behind which its clients are; None: they connect by themselves.
        sys_topics: what clients get of `$SYS/...`; None: nothing.
        client_events: told what they do; None: nobody wants to know.
        control: what they administrate the server by; None: they cannot.
        rewriting: where clients publish and subscribe instead of where they ask for.
        auto_subscriptions: what each client is subscribed to when it connects.
    """

    def __init__(
        self,
        *,
        port: BrokerPort,
        context: Context,
        limits: Limits | None = None,
        fixed_topic: str | None = None,
        new_client_id: Callable[[], str] = random_client_id,
        websocket: Offer | None = None,
        rules: Rules | None = None,
        proxies: Proxies | None = None,
        sys_topics: SysTopics | None = None,
        client_events: ClientEvents | None = None,
        control: ControlTopics | None = None,
        rewriting: Rewriting = NO_REWRITING,
        auto_subscriptions: Sequence[AutoSubscription] = (),
    ) -> None:
        limits = limits if limits is not None else Limits()
        rules = rules if rules is not None else Rules()
        self._shared = Shared(
            port=port,
            context=context,
            limits=limits,
            mapping=TopicMapping(
                port=port,
                limits=limits,
                fixed_topic=fixed_topic,
                mount_point=rules.mount_point,
                rewriting=rewriting,
            ),
            new_client_id=new_client_id,
            rules=rules,
            sys_topics=sys_topics or SysTopics(),
            client_events=client_events,
            control=control,
            auto_subscriptions=auto_subscriptions,
        )
        self._proxies = proxies
        self._unix: tuple[str, int | None] | None = None  # path and number of the socket's file
        self._websocket = websocket
        self._listener: Listener | None = None
        port.storage.when_failed(self._storage_failed)

    async def start(
        self,
        host: str,
        port: int,
        tls: TlsSource | None = None,
        sockets: Sequence[socket.socket] = (),
    ) -> int:
        """Listen, on sockets that listen already if there are any; returns the bound port. Raises
        net.listener.CannotListen."""
        shared = self._shared
        self._listener = await listen(
            shared.context,
            self._new_connection,
            host=host,
            port=port,
            tls=tls,
            sockets=sockets,
            connections_max=shared.limits.connections_max,
            rate_max=shared.limits.connection_rate_max,
            proxies=self._proxies,
        )
        return self._listener.port

    async def start_unix(self, address: UnixAddress, sockets: Sequence[socket.socket] = ()) -> None:
        """Listen on a Unix socket, on those that listen already if there are any: their files stay
        when the server stops. Raises net.listener.CannotListen."""
        shared = self._shared
        try:
            listening = sockets or [bind_unix(address, BACKLOG)]
        except PathTaken as error:
            raise CannotListen(str(error)) from error
        if not sockets:
            self._unix = address.path, file_number(address.path)
        self._listener = await listen(
            shared.context,
            self._new_connection,
            host="",
            port=0,
            sockets=listening,
            peer=address.path,
            connections_max=shared.limits.connections_max,
            rate_max=shared.limits.connection_rate_max,
        )

    def _new_connection(self) -> Connection:
        return make_connection(self._shared, self._websocket)

    def change(
        self,
        *,
        limits: Limits,
        rules: Rules,
        rewriting: Rewriting,
        auto_subscriptions: Sequence[AutoSubscription],
        websocket: Offer | None,
    ) -> None:
        """What holds from now on: the limits of the listener at once, all else for new connections.
        The arguments are those of the server; the mount point stays the same."""
        self._shared.change(
            limits=limits,
            rules=rules,
            rewriting=rewriting,
            auto_subscriptions=auto_subscriptions,
        )
        self._websocket = websocket
        if self._listener is not None:
            self._listener.change(
                connections_max=limits.connections_max, rate_max=limits.connection_rate_max
            )

    async def stop(self, drain_seconds: float) -> None:
        """Stop accepting, let the acks of what was published leave, close.

        No wills: the clients did not go away, the server did, and they will come back to it.
        """
        if self._listener is None:
            return
        self._listener.stop_accepting()
        if self._unix is not None:
            remove_unix(*self._unix)
        for connection in self._connections():
            _goes_away(connection, GOING_AWAY)
            connection.leave()
        if not await self._listener.wait_empty(drain_seconds):
            for connection in self._connections():
                connection.abort()
            await self._listener.wait_empty(self._shared.limits.close_seconds_max)

    def drop_looped(self, marker: bytes) -> None:
        """See `Shared`: there are bridges at this server."""
        self._shared.drop_looped(marker)

    @property
    def connection_count(self) -> int:
        """Sockets that are open now."""
        return 0 if self._listener is None else len(self._listener.connections)

    @property
    def rosters(self) -> Sequence[Roster[SocketConnection]]:
        """For metrics."""
        return () if self._listener is None else (self._listener.roster,)

    def statistics(self) -> dict[str, int]:
        """The counters by name, those of bytes and of packets of all types among them, and what
        there is now: `connections_now`, `clients_now` (those that have logged in), `uploads_bytes`,
        `uploads_waiting` (`uploads.py`), `proxy_failures`."""
        counters, paths = self._shared.counters, self._shared.paths
        names = [field.name for field in fields(Counters) if field.name != "reasons"]
        counted = {name: getattr(counters, name) for name in names}
        uploads = self._shared.uploads
        return {
            **counted,
            "packets_received": counters.publishes_received + paths.others_received,
            "packets_sent": counters.publishes_sent + paths.others_sent,
            "publish_bytes_received": paths.received_bytes,
            "publish_bytes_sent": paths.sent_bytes,
            "bytes_received": self._shared.traffic.received,
            "bytes_sent": self._shared.traffic.sent,
            "sockets": sum(roster.accepted_count for roster in self.rosters),
            "connections_now": self.connection_count,
            "clients_now": sum(roster.proven_count for roster in self.rosters),
            "uploads_bytes": uploads.bytes,
            "uploads_waiting": uploads.waiting_count,
            "proxy_failures": 0 if self._proxies is None else self._proxies.failed_count,
        }

    def traffic(self) -> TrafficCounts:
        """PUBLISH packets and bytes since the start."""
        counters, traffic = self._shared.counters, self._shared.traffic
        return TrafficCounts(
            messages_received=counters.publishes_received,
            messages_sent=counters.publishes_sent,
            bytes_received=traffic.received,
            bytes_sent=traffic.sent,
        )

    @property
    def reason_counts(self) -> ReasonCounts:
        """How often which reason code was sent and received."""
        return self._shared.counters.reasons

    def _connections(self) -> list[Connection]:
        if self._listener is None:
            return []
        return [c for c in self._listener.connections if isinstance(c, Connection)]

    def _storage_failed(self, error: StorageFailed) -> None:
        connections = self._connections()
        log.error("closing %d MQTT connections: %s", len(connections), error)
        for connection in connections:
            _goes_away(connection, SERVER_ERROR)
            connection.storage_failed()


def _goes_away(connection: Connection, code: int) -> None:
    """That the server ends it: over WebSocket the client learns that."""
    if isinstance(connection.layer, WebSocketLayer):
        connection.layer.goes_away(code)
