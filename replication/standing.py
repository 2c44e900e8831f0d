"""What a store has, as a peer has to know it."""

from __future__ import annotations

from zlib import crc32

from core_log.errors import CorruptRecord
from core_log.store import Store
from replication.common import Epoch, Standing
from replication.limits import EPOCHS_MAX


def standing_of(store: Store) -> Standing:
    """The log's ends and its newest epochs. Reads the records that begin them from the disk."""
    return Standing(
        start=store.log.start,
        end=store.log.written,
        epochs=[_named(store, *epoch) for epoch in store.epochs[-EPOCHS_MAX:]],
    )


def _named(store: Store, epoch: int, start: int) -> Epoch:
    try:
        record = store.find_record(start) if start >= store.log.start else None
    except CorruptRecord:
        record = None
    return epoch, start, 0 if record is None else crc32(record.raw)
