"""MQTT over WebSocket (3.1.1 part 6): what is offered to those who open one.

The rest is `net/websocket_layer.py`, between the socket and a `Connection` that has the same bytes
from it as from TCP.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from polymq.gateways.mqtt.connection import Connection
from polymq.gateways.mqtt.shared import Shared
from polymq.net.websocket_handshake import Offer
from polymq.net.websocket_layer import WebSocketLayer

log = logging.getLogger(__name__)

SUBPROTOCOLS: Final = frozenset({"mqtt", "mqttv3.1"})
"""The second is what clients of MQTT 3.1 call it."""
ROOT: Final = "/"
"""Where clients go that were given no path."""


def make_offer(*, path: str, origins: Iterable[str] = (), packet_bytes_max: int) -> Offer:
    """What a listener offers.

    Args:
        path: of its URL, beside the root.
        origins: of the pages that may connect; empty: all.
        packet_bytes_max: of the largest packet, and so of a frame: nobody has a reason to send a
            longer one, and the server keeps nothing of either until they are whole.
    """
    return Offer(
        what="MQTT",
        paths=frozenset({path, ROOT}),
        subprotocols=SUBPROTOCOLS,
        origins=frozenset(origin.lower() for origin in origins),
        frame_bytes_max=packet_bytes_max,
    )


class MqttLayer(WebSocketLayer):
    """The WebSocket below an MQTT connection."""

    def __init__(self, connection: Connection, offer: Offer, shared: Shared) -> None:
        super().__init__(connection, offer)
        self._shared = shared

    def failed(self, peer: str, text: str) -> None:
        self._shared.counted.protocol_errors += 1
        log.info("closing %s: WebSocket: %s", peer, text)


def make_connection(shared: Shared, offer: Offer | None) -> Connection:
    """A connection for a new socket; None: it is MQTT from the first byte on."""
    connection = Connection(shared)
    if offer is not None:
        connection.layer = MqttLayer(connection, offer, shared)
    return connection
