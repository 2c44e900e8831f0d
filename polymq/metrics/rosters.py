"""Who is let in to the listeners: as metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from polymq.metrics.registry import Probe, Value
from polymq.net.roster import Roster

Rosters = Mapping[str, Sequence[Roster[Any]]]


def roster_probes(rosters: Callable[[], Rosters]) -> list[Probe]:
    """The metrics of all listeners.

    Args:
        rosters: the connections of the listeners that are open, by protocol.
    """

    def probe(
        name: str, kind: Literal["gauge", "counter"], text: str, read: Callable[[Roster[Any]], int]
    ) -> Probe:
        def value() -> Value:
            return {label: sum(map(read, found)) for label, found in rosters().items()}

        return Probe(kind, name, text, value, label="protocol")

    return [
        probe(
            "polymq_newcomers",
            "gauge",
            "Connections that have not logged in or made a valid request yet.",
            lambda roster: roster.newcomers_count,
        ),
        probe(
            "polymq_newcomers_closed",
            "counter",
            "Such connections that were closed to make room for new ones.",
            lambda roster: roster.crowded_out_count,
        ),
        probe(
            "polymq_connections_refused",
            "counter",
            "Connections that were closed at once, because there were too many.",
            lambda roster: roster.refused_count,
        ),
    ]
