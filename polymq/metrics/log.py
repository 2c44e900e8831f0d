"""The commit log and its disk, and how long messages wait for them: as metrics."""

from __future__ import annotations

from polymq.broker.engine import Engine
from polymq.core_log.store import Store
from polymq.metrics.registry import Probe, counter, histogram


def log_probes(engine: Engine, store: Store) -> list[Probe]:
    """How far the log is, and what time that took."""
    core, log = engine.core, store.log
    return [
        counter(
            "polymq_log_appended_bytes",
            "End position of the commit log in memory.",
            lambda: log.appended,
        ),
        counter(
            "polymq_log_flushed_bytes",
            "End position of what is on the disk. Acknowledgements wait for it.",
            lambda: log.flushed,
        ),
        histogram(
            "polymq_log_flush_seconds",
            "Duration of the syncs (fdatasync) of the log.",
            store.flusher.durations,
        ),
        histogram(
            "polymq_commit_seconds",
            "Time until messages and changes of state were on the disk of this broker, from the "
            "end of the event loop's iteration that appended them.",
            core.commit_times.durations,
        ),
        histogram(
            "polymq_delivery_seconds",
            "Time from when messages were stored until they were handed to a consumer, of up to "
            "100 batches a second.",
            core.reading.delivery_times.durations,
        ),
        counter(
            "polymq_read_errors",
            "Records that could not be read from the disk.",
            lambda: core.read_errors_count,
        ),
    ]
