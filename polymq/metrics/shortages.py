"""Metrics of what is short or saved: open files, room, connections, lines of the log."""

from __future__ import annotations

from collections.abc import Callable

from polymq.logs import suppressed_lines
from polymq.metrics.registry import Probe, counter, gauge
from polymq.net.budget import Budget
from polymq.upkeep import Upkeep


def shortage_probes(upkeep: Callable[[], Upkeep], budget: Budget) -> list[Probe]:
    """The metrics.

    Args:
        upkeep: of the node; asked for when somebody looks.
    """
    return [
        counter(
            "polymq_shortages",
            "Calls of the file system that failed because the process had no file "
            "descriptor or memory left. They are repeated until they succeed.",
            lambda: upkeep().short_count,
        ),
        counter(
            "polymq_saves",
            "How many times state, indexes and keys were saved.",
            lambda: upkeep().saved_count,
        ),
        counter(
            "polymq_save_failures",
            "Failed attempts to save state, indexes or keys. They are repeated.",
            lambda: upkeep().failures_count,
        ),
        gauge(
            "polymq_connections_max",
            "Connections that all listeners together accept, as limited by open files.",
            lambda: budget.total,
        ),
        counter(
            "polymq_logging_suppressed_lines",
            "Lines that were not logged, because there were too many of the same kind.",
            suppressed_lines,
        ),
    ]
