"""The steps of the engine that every run of messages takes, in the form that the store's kernels
have: each is one source, plain Python or compiled."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Final

from polymq.core_log import index_end, log_end

_PARTS: Final = ("routes", "path", "unacked", "delivery")


def _choose() -> str:
    """Which form runs: all parts are compiled, and the store's end of the log, or none is."""
    if log_end.LogEnd.__module__ != "polymq.core_log.kernels.fast_log_end":
        return "pure"
    if index_end.IndexEnd.__module__ != "polymq.core_log.kernels.fast_index_end":
        return "pure"
    try:
        for name in _PARTS:
            importlib.import_module(f"polymq.broker.kernels.fast_{name}")
    except ImportError:
        if os.environ.get("POLYMQ_KERNELS") == "compiled":
            raise
        return "pure"
    return "compiled"


FORM: Final = _choose()
"""Which form runs: "compiled" or "pure"."""

if TYPE_CHECKING or FORM == "pure":
    from polymq.broker.kernels.delivery import (
        EXACTLY_ONCE,
        LiveEnd,
        LiveFlight,
        SessionEnd,
        publish_qos,
    )
    from polymq.broker.kernels.path import (
        CommitPoints,
        Committed,
        CoreEnd,
        PlainTemplate,
        Publisher,
        QueueEnd,
        RecordRun,
        Waiting,
    )
    from polymq.broker.kernels.routes import RouteEnd, RouterEnd
    from polymq.broker.kernels.unacked import UnackedRuns
else:
    from polymq.broker.kernels.fast_delivery import (
        EXACTLY_ONCE,
        LiveEnd,
        LiveFlight,
        SessionEnd,
        publish_qos,
    )
    from polymq.broker.kernels.fast_path import (
        CommitPoints,
        Committed,
        CoreEnd,
        PlainTemplate,
        Publisher,
        QueueEnd,
        RecordRun,
        Waiting,
    )
    from polymq.broker.kernels.fast_routes import RouteEnd, RouterEnd
    from polymq.broker.kernels.fast_unacked import UnackedRuns

__all__ = [
    "EXACTLY_ONCE",
    "FORM",
    "CommitPoints",
    "Committed",
    "CoreEnd",
    "LiveEnd",
    "LiveFlight",
    "PlainTemplate",
    "Publisher",
    "QueueEnd",
    "RecordRun",
    "RouteEnd",
    "RouterEnd",
    "SessionEnd",
    "UnackedRuns",
    "Waiting",
    "publish_qos",
]
