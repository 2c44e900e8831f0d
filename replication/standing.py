"""What a store has, as a peer has to know it."""

from __future__ import annotations

from polymq.core_log.store import Store
from polymq.replication.common import Standing
from polymq.replication.limits import EPOCHS_MAX


def standing_of(store: Store) -> Standing:
    """The log's ends and its newest epochs."""
    return Standing(
        start=store.log.start,
        end=store.log.written,
        flushed=store.log.flushed,
        epochs=[
            (epoch, start, store.epoch_mark(epoch, start))
            for epoch, start in store.epochs[-EPOCHS_MAX:]
        ],
    )
