"""Logs with everything in them, and their bytes as a master sends them."""

from __future__ import annotations

from random import Random

from polymq.core_log.queue_index import widen
from polymq.core_log.record import RecordParts
from polymq.core_log.store import Store
from tests.harness.broker import batch_of
from tests.harness.stores import OWN, PRIVATE, TEMPLATE


def fill(store: Store, random: Random, count: int, *, batches: bool = True) -> None:
    """Runs, atomic batches and large records, over some segments."""
    queues = [store.index(OWN, 20), *(store.index(number, 32) for number in PRIVATE)]
    for _ in range(count):
        bodies = [random.randbytes(random.randrange(1, 900)) for _ in range(random.randrange(1, 4))]
        targets = [(queue.number, queue.end_offset) for queue in queues]
        if batches and random.random() < 0.3:
            spans = store.log.append_atomic(
                [
                    RecordParts(
                        template=TEMPLATE,
                        body=body,
                        targets=[(number, offset + at) for number, offset in targets],
                    )
                    for at, body in enumerate(bodies)
                ],
                store_ms=2,
            )
        else:
            spans = store.log.append_run(
                TEMPLATE, batch_of(*bodies), 0, len(bodies), targets=targets, born_ms=1, store_ms=2
            )
        for span in spans:
            queues[0].append(span.entries)
            for queue in queues[1:]:
                queue.append(widen(span.entries, 2, 0, 0))
        store.log.write()


def stream(store: Store, position: int, random: Random | None = None) -> bytes:
    """All that the log has from a position on, as a master sends it: without what is behind blank
    records."""
    parts: list[bytes] = []
    while True:
        hot = store.log.tail_range(position)
        cold = hot is None or (random is not None and position < store.log.written)
        if cold and position < store.log.written:
            size_max = 200 if random is None else random.choice((1, 300, 100_000))
            start, data = store.range_of_history(position, size_max)
        else:
            assert hot is not None
            start, data = hot
        if not data:
            return b"".join(parts)
        parts.append(data)
        position = store.position_behind(start, data)
