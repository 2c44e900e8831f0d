"""What the server publishes of itself below `$SYS/broker/`: names, and how values are written.

The names and forms are mosquitto's, so that its monitoring tools can be used. Pure: the figures
come from the composition root, which collects them for `/metrics` as well.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

PREFIX: Final = "$SYS/broker/"
MEAN_MINUTES: Final = (1, 5, 15)
"""Of the means below `load/`: in this time the weight of what was decreases to 1/e."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """How things are with the MQTT part of a server. Counters count since its start.

    Attributes:
        version: of the program.
        clients_connected: those that have logged in and are connected, over all MQTT listeners.
        sessions: sessions that there are, with and without a connection.
        sessions_expired: persistent sessions that ended because their clients stayed away.
        subscriptions: those of all sessions.
        shared_subscriptions: those of them that are shared with other sessions.
        retained: retained messages.
        connects: CONNECT packets that were accepted.
        sockets: connections that were accepted by the listeners' sockets.
        packets_received, packets_sent: MQTT packets of all types.
        publishes_received, publishes_sent: PUBLISH packets among them.
        publishes_dropped: messages that clients did not get, or that clients could not publish.
        publish_bytes_received, publish_bytes_sent: bytes of these packets.
        bytes_received, bytes_sent: bytes of the connections, without TLS.
        stored: messages that were stored in the topics.
        events_omitted: events of clients that were left out, because they were too many.
        log_bytes: of the commit log.
        memory_bytes, memory_bytes_max: of the process, now and at most; 0 where unknown.
    """

    version: str = ""
    clients_connected: int = 0
    sessions: int = 0
    sessions_expired: int = 0
    subscriptions: int = 0
    shared_subscriptions: int = 0
    retained: int = 0
    connects: int = 0
    sockets: int = 0
    packets_received: int = 0
    packets_sent: int = 0
    publishes_received: int = 0
    publishes_sent: int = 0
    publishes_dropped: int = 0
    publish_bytes_received: int = 0
    publish_bytes_sent: int = 0
    bytes_received: int = 0
    bytes_sent: int = 0
    stored: int = 0
    events_omitted: int = 0
    log_bytes: int = 0
    memory_bytes: int = 0
    memory_bytes_max: int = 0


_LOADS: Final[Mapping[str, str]] = {
    "connections": "connects",
    "sockets": "sockets",
    "messages/received": "packets_received",
    "messages/sent": "packets_sent",
    "publish/received": "publishes_received",
    "publish/sent": "publishes_sent",
    "publish/dropped": "publishes_dropped",
    "bytes/received": "bytes_received",
    "bytes/sent": "bytes_sent",
}
"""Of which counters there are means, by their names below `load/`."""
_MEAN_NAMES: Final = tuple(
    (counter, minutes, f"load/{name}/{minutes}min")
    for name, counter in _LOADS.items()
    for minutes in MEAN_MINUTES
)


class Means:
    """Exponential means of what the counters increase by in a minute. Not computed while nobody
    asks: the first value after that is the mean over the pause, if the pause was long."""

    def __init__(self) -> None:
        self._values = dict.fromkeys((name for _, _, name in _MEAN_NAMES), 0.0)
        self._counted = dict.fromkeys(_LOADS.values(), 0)
        self._uptime = 0.0

    def take(self, figures: Figures, uptime: float) -> Mapping[str, float]:
        """The means by their names, so many seconds after the server's start."""
        passed = uptime - self._uptime
        if passed <= 0:
            return self._values
        self._uptime = uptime
        rates = {}
        for counter, before in self._counted.items():
            now: int = getattr(figures, counter)
            rates[counter] = 60 * (now - before) / passed
            self._counted[counter] = now
        for counter, minutes, name in _MEAN_NAMES:
            weight = math.exp(-passed / (60 * minutes))
            self._values[name] = rates[counter] + weight * (self._values[name] - rates[counter])
        return self._values


def texts(
    figures: Figures, means: Mapping[str, float], *, uptime: float, clients_max: int
) -> dict[str, str]:
    """Each value as it is published, by its name below `$SYS/broker/`. Always the same names, in
    the same order.

    Args:
        uptime: seconds since the server's start.
        clients_max: the most clients that were connected at a time.
    """
    total = max(figures.sessions, figures.clients_connected)
    numbers: dict[str, int] = {
        "clients/total": total,
        "clients/connected": figures.clients_connected,
        "clients/disconnected": total - figures.clients_connected,
        "clients/maximum": max(clients_max, figures.clients_connected),
        "clients/expired": figures.sessions_expired,
        "messages/received": figures.packets_received,
        "messages/sent": figures.packets_sent,
        "messages/stored": figures.stored,
        "publish/messages/received": figures.publishes_received,
        "publish/messages/sent": figures.publishes_sent,
        "publish/messages/dropped": figures.publishes_dropped,
        "publish/bytes/received": figures.publish_bytes_received,
        "publish/bytes/sent": figures.publish_bytes_sent,
        "bytes/received": figures.bytes_received,
        "bytes/sent": figures.bytes_sent,
        "subscriptions/count": figures.subscriptions,
        "shared_subscriptions/count": figures.shared_subscriptions,
        "retained messages/count": figures.retained,
        "store/messages/count": figures.stored,
        "store/messages/bytes": figures.log_bytes,
        "events/omitted": figures.events_omitted,
        "heap/current": figures.memory_bytes,
        "heap/maximum": figures.memory_bytes_max,
    }
    found = {
        "version": f"polymq version {figures.version}",
        "uptime": f"{int(uptime)} seconds",
    }
    found |= {name: str(number) for name, number in numbers.items()}
    found |= {name: f"{value:.2f}" for name, value in means.items()}
    return found


NAMES: Final = tuple(texts(Figures(), Means().take(Figures(), 0), uptime=0, clients_max=0))
"""The names below `$SYS/broker/`."""
