"""The listeners for clients: where they can connect."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from polymq.admin.node import ShownNode
from polymq.admin.operations import Call, Group, Operation, Value
from polymq.admin.pages import Listing, Page, PageQuery, page_of
from polymq.steps import in_steps

PROTOCOLS = ("mqtt", "amqp", "http", "rocketmq")
"""Each has a listener of this name, and one with TLS whose name ends in `s`."""
WEBSOCKETS = ("mqtt_ws", "mqtt_wss")


class Listener(Value):
    """A listener.

    Attributes:
        name: such as mqtt, or mqtts with TLS; mqtt_ws is for MQTT over WebSocket. That of a further
            MQTT listener begins with `mqtt-`, as in metrics.
        protocol: mqtt, amqp, http or rocketmq.
        transport: `tcp`, `websocket` or `unix`.
        tls: whether connections have to use TLS.
        host: the address that it is bound to, as the setting names it; 0.0.0.0 and :: are all
            addresses of the machine. Empty for a Unix socket.
        port: on which it listens; null for a Unix socket.
        path: of the Unix socket; null for the others.
    """

    name: str
    protocol: str
    transport: Literal["tcp", "websocket", "unix"]
    tls: bool
    host: str
    port: int | None
    path: str | None


class ListenerHandlers:
    """Carries out the operation on listeners."""

    def __init__(self, node: ShownNode) -> None:
        self._node = node

    def group(self) -> Group:
        """The operations."""
        return Group(
            name="listeners",
            about="Where clients can connect.",
            operations=[
                Operation(
                    method="GET",
                    path="/listeners",
                    name="listListeners",
                    summary="List the listeners for clients, with their ports",
                    right="monitor",
                    handler=self._list,
                    query=PageQuery,
                    answer=Page[Listener],
                ),
            ],
        )

    async def _list(self, call: Call[PageQuery]) -> Page[Listener]:
        found = {one.name: one for one in self._listeners()}
        listing = Listing(names=found, find=found.get, row=lambda _name, one: one)
        return await in_steps(page_of(listing, call.query))

    def _listeners(self) -> list[Listener]:
        node = self._node
        names = [*PROTOCOLS, *(f"{name}s" for name in PROTOCOLS), *WEBSOCKETS]
        ports = node.ports()
        return [
            *(
                Listener(
                    name=name,
                    protocol=next(one for one in PROTOCOLS if name.startswith(one)),
                    transport="websocket" if name in WEBSOCKETS else "tcp",
                    tls=name.endswith("s") and name != "mqtt_ws",
                    host=node.settings.server.host,
                    port=port,
                    path=None,
                )
                for name in names
                if (port := ports.get(name)) is not None
            ),
            *self._further(),
        ]

    def _further(self) -> Iterator[Listener]:
        """Those of `[[mqtt.listeners]]`."""
        settings, opened = self._node.settings, self._node.mqtt_listeners()
        for listener in settings.mqtt.listeners:
            at = opened.get(listener.name)
            if at is not None:
                yield Listener(
                    name=listener.label,
                    protocol="mqtt",
                    transport=listener.type,
                    tls=listener.tls,
                    host="" if listener.type == "unix" else listener.host or settings.server.host,
                    port=None if isinstance(at, str) else at,
                    path=at if isinstance(at, str) else None,
                )
