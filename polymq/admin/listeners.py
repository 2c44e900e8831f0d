"""The listeners for clients: where they can connect."""

from __future__ import annotations

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
        name: such as mqtt, or mqtts with TLS; mqtt_ws is for MQTT over WebSocket.
        protocol: mqtt, amqp, http or rocketmq.
        tls: whether connections have to use TLS.
        host: the address that it is bound to, as the setting names it; 0.0.0.0 and :: are all
            addresses of the machine.
        port: on which it listens.
    """

    name: str
    protocol: str
    tls: bool
    host: str
    port: int


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
                    about="Further MQTT listeners (`[[mqtt.listeners]]`) are not in the list.",
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
            Listener(
                name=name,
                protocol=next(one for one in PROTOCOLS if name.startswith(one)),
                tls=name.endswith("s") and name != "mqtt_ws",
                host=node.settings.server.host,
                port=port,
            )
            for name in names
            if (port := ports.get(name)) is not None
        ]
