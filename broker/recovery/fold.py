"""The state of one engine as a whole: its rows, and how a start gets it back.

Each part of the engine knows the rows of its own entities (`state/kinds.py`), applies its own ops,
and takes what messages say that change its state; here they are put together. A start takes
`state.db` if the log has its position and epoch, else the newest snapshot that the log has, folds
what the log has beyond it, and gives back to the queues what no connection holds any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from polymq.broker.core import SYSTEM_FLAG_STATE, Core
from polymq.broker.errors import UnknownChange
from polymq.broker.messages.records import TAGS
from polymq.broker.queues.store import QueueStore
from polymq.broker.recovery.recovered import wait_for_replicas_again
from polymq.broker.state.database import Folded, StateDb
from polymq.broker.state.journal import OP_TAG, STATE_TOPIC, Touched
from polymq.broker.state.kinds import StateKind
from polymq.broker.state.snapshot import need_snapshot
from polymq.broker.topics.topics import Topics
from polymq.core_log.record import Record


class Fold:
    """The folded state of an engine.

    Args:
        kinds: all kinds of rows, each behind those that it refers to.
        messages: take a message that changes state, if it changes theirs, and say which rows.
        numbers: gives the numbers of queues that have an index, of no topic, and maybe no group.
        reopen: called at the end of a start that leads, in this order: no connection survived.

    Attributes:
        count: records that the start folded: what `state.db` did not have.
    """

    def __init__(
        self,
        core: Core,
        queue_store: QueueStore,
        topics: Topics,
        state_db: StateDb | None,
        *,
        kinds: Iterable[StateKind],
        messages: Sequence[Callable[[Record], Touched]],
        numbers: Callable[[], Iterable[int]],
        reopen: Sequence[Callable[[], None]],
    ) -> None:
        self._core: Final = core
        self._queue_store: Final = queue_store
        self._topics: Final = topics
        self._state_db = state_db
        self._kinds: Final = {kind.name: kind for kind in kinds}
        self._messages: Final = messages
        self._numbers: Final = numbers
        self._parts_reopen: Final = reopen
        self.count = 0

    def row(self, kind: str, key: str) -> object:
        """An entity as a JSON value, some of it the engine's own; None if it is gone."""
        return self._kinds[kind].row(key)

    def restore(self) -> None:
        """Load the cached state if the log has its place, then fold the rest of the log."""
        store = self._core.store
        position = 0
        folded = self._state_db.load() if self._state_db is not None else None
        if folded is not None and store.is_record_boundary(folded.position, folded.epoch):
            position = folded.position
            self._load(folded)
        else:
            if self._state_db is not None:
                self._state_db.discard()
            if store.log.start > 0:
                position = self._restore_from_log()
        for record in store.replay(position, SYSTEM_FLAG_STATE):
            self.apply(record)
            self.count += 1
        self._core.sweeper.finish()
        if self._core.follows:
            self._stand_by()
        else:
            self._reopen()

    def _restore_from_log(self) -> int:
        """Load the newest snapshot of the state that the log has; the position from which the log
        has to be folded on. Raises StoreCorrupt."""
        snapshot = need_snapshot(self._core.store)
        folded = snapshot.folded()
        for kind, rows in folded.rows.items():  # all of it belongs in the new `state.db`
            if kind != "number":
                self._core.journal.dirty.update((kind, key) for key, _ in rows)
        self._load(folded)
        return snapshot.position

    def _load(self, folded: Folded) -> None:
        """Take the snapshot's rows, each kind after those it refers to. Raises UnknownChange."""
        unknown = sorted(set(folded.rows).difference(self._kinds))
        if unknown:
            raise UnknownChange(f"rows of the kind {unknown[0]!r}")
        for name, kind in self._kinds.items():
            kind.load(folded.take(name))

    def apply(self, record: Record) -> None:
        """Apply one record of the log: an op, or a message that changes state."""
        if record.topic == STATE_TOPIC.encode():
            if record.properties.get(TAGS) == OP_TAG:
                self._core.journal.replay(record.body)
        elif record.system_flag & SYSTEM_FLAG_STATE:
            for take in self._messages:
                self._core.journal.dirty.update(take(record))

    def _stand_by(self) -> None:
        """Whoever held something holds it at the master: nothing is given back, and no timer
        starts."""
        self._topics.reopen()
        for queue in dict.fromkeys(group.queue for group in self._queue_store.groups.values()):
            queue.index.begin_at(min(group.cursor.floor for group in queue.groups))
            queue.flushed = queue.visible = queue.index.end_offset

    def _reopen(self) -> None:
        """No connection survived: cursors give back what is held, and fit their queues' ends."""
        core = self._core
        self._topics.reopen()
        for queue in dict.fromkeys([group.queue for group in self._queue_store.groups.values()]):
            index, groups = queue.index, queue.groups
            floor = groups[0].cursor.floor
            if len(groups) > 1:
                floor = min([group.cursor.floor for group in groups])
            # What all have settled may have left the log, and the index with it.
            if floor > index.first_offset:
                index.begin_at(floor)
            first, end = index.first_offset, index.end_offset
            queue.flushed = queue.visible = end
            for group in groups:
                group.cursor.clamp(first, end)
        wait_for_replicas_again(core, self._queue_store, self._topics)
        for reopen in self._parts_reopen:
            reopen()
        self._drop_indexes()

    def _drop_indexes(self) -> None:
        """Those of queues that are gone."""
        core = self._core
        topics = self._topics.topics.values()
        known = {*self._queue_store.groups, *self._numbers()}
        known.update(queue.number for topic in topics for queue in topic.queues)
        for number in [n for n in core.store.index_numbers() if n not in known]:
            core.store.drop_index(number)
