"""What the listeners of all protocols count alike: connections, messages, bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Protocol, runtime_checkable

from polymq.metrics.registry import Probe, Value, counter, gauge
from polymq.net.message_counts import TrafficCounts

DIRECTIONS = ("received", "sent")


class HasConnections(Protocol):
    """A server of any protocol."""

    @property
    def connection_count(self) -> int:
        """Clients that are connected now."""


@runtime_checkable
class HasTraffic(Protocol):
    """A server that counts messages and bytes."""

    def traffic(self) -> TrafficCounts:
        """Since the start."""


def protocol_probes(servers: Callable[[], Mapping[str, HasConnections]]) -> list[Probe]:
    """The metrics of the listeners.

    Args:
        servers: those of all protocols that are made so far, by label.
    """

    def total(unit: str) -> Callable[[], Value]:
        def read() -> Value:
            found: Counter[tuple[str, ...]] = Counter()
            for label, server in servers().items():
                if isinstance(server, HasTraffic):
                    counts = server.traffic()
                    for direction in DIRECTIONS:
                        found[label, direction] += getattr(counts, f"{unit}_{direction}")
            return found

        return read

    labels = ("protocol", "direction")
    return [
        gauge(
            "polymq_connections",
            "Connected clients.",
            lambda: {name: server.connection_count for name, server in servers().items()},
            label="protocol",
        ),
        counter(
            "polymq_protocol_messages",
            "Messages that clients published (received) and that were sent to clients.",
            total("messages"),
            labels=labels,
        ),
        counter(
            "polymq_protocol_bytes",
            "Bytes received from clients and sent to them, without what TLS adds.",
            total("bytes"),
            labels=labels,
        ),
    ]
