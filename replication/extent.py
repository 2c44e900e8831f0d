"""What a store has, as a peer has to know it."""

from __future__ import annotations

from polymq.core_log.store import Store
from polymq.replication.common import LogExtent
from polymq.replication.limits import EPOCHS_MAX


def extent_of(store: Store) -> LogExtent:
    """The log's ends and its newest epochs."""
    return LogExtent(
        start=store.log.start,
        end=store.log.written,
        flushed=store.log.flushed,
        epochs=[
            (epoch, start, store.epoch_mark(epoch, start))
            for epoch, start in store.epochs[-EPOCHS_MAX:]
        ],
    )
