"""What one listener asks of its clients, beside the limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from polymq.gateways.mqtt.packets import MQTT_3_1, MQTT_3_1_1, MQTT_5
from polymq.net.connection import SocketConnection

UserOf = Callable[[SocketConnection], str | None]
"""The user that a connection proves to be without a password, for example by its certificate; None:
it proves nothing, and logs in with a password. Raises Refused: what it has names no user."""
BRIDGE_PREFIX: Final = "$bridge/"
"""Of the client ids of the server's own bridges (`bridging/`): no client may have one."""
LEVELS: Final = frozenset({MQTT_3_1, MQTT_3_1_1, MQTT_5})


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What one listener asks of its clients."""

    levels: frozenset[int] = LEVELS
    """The protocol levels that it accepts."""
    allow_anonymous: bool = True
    """Whether a client may come without a user name. If false, it must have logged in."""
    user_of: UserOf | None = None
    """Asked before the password is; None: clients have nothing but passwords."""
    mount_point: str = ""
    """What is put before the topics of its clients, and before their client ids: a session belongs
    to the mount point that it began in. Empty, or ends with `/`."""
    other_mount_points: tuple[str, ...] = ()
    """Those of the other listeners. Client ids that would reach a session there are refused."""

    def is_foreign(self, client_id: str) -> bool:
        """Whether a session with this id, mount point included, would be one of another mount
        point, of one below this one, or of a bridge."""
        return client_id.startswith(BRIDGE_PREFIX) or any(
            client_id.startswith(other)
            for other in self.other_mount_points
            if len(other) > len(self.mount_point)
        )
