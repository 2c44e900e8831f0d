"""The state of one engine as a whole: its rows, and how a start gets it back.

Each part of the engine knows the rows of its own entities and applies its own ops; here they are
put together. A start takes `state.db` if the log has its position and epoch, else the newest
snapshot that the log has, folds what the log has beyond it, and gives back to the queues what no
connection holds any more.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from polymq.broker.core import SYSTEM_FLAG_STATE
from polymq.broker.journal import OP_TAG, STATE_TOPIC
from polymq.broker.moves import QOS2_PROPERTY, settled_by
from polymq.broker.records import TAGS
from polymq.broker.recovered import hold_recovered
from polymq.broker.state_db import Folded, StateDb
from polymq.broker.state_kinds import StateKind
from polymq.broker.state_snapshot import need_snapshot
from polymq.broker.topics import RETAIN_PROPERTY
from polymq.core_log.record import Record

if TYPE_CHECKING:
    from polymq.broker.engine import Engine


class Fold:
    """The folded state of an engine.

    Args:
        kinds: all kinds of rows, each behind those that it refers to.

    Attributes:
        count: records that the start folded: what `state.db` did not have.
    """

    def __init__(
        self, engine: Engine, state_db: StateDb | None, kinds: Iterable[StateKind]
    ) -> None:
        self._engine: Final = engine
        self._kinds: Final = {kind.name: kind for kind in kinds}
        self._state_db = state_db
        self.count = 0

    def row(self, kind: str, key: str) -> object:
        """An entity as a JSON value, some of it the engine's own; None if it is gone."""
        return self._kinds[kind].row(key)

    def restore(self) -> None:
        """Load the cached state if the log has its place, then fold the rest of the log."""
        engine = self._engine
        position = 0
        folded = self._state_db.load() if self._state_db is not None else None
        if folded is not None and engine.core.store.is_record_boundary(
            folded.position, folded.epoch
        ):
            position = folded.position
            self._load(folded)
        else:
            if self._state_db is not None:
                self._state_db.discard()
            if engine.core.store.log.start > 0:
                position = self._restore_from_log()
        for record in engine.core.store.replay(position, SYSTEM_FLAG_STATE):
            self.apply(record)
            self.count += 1
        engine.core.sweeper.finish()
        if engine.core.follows:
            self._stand_by()
            return
        self._reopen()
        engine.delays.reopen()
        engine.half_messages.reopen()
        engine.sessions.backlogs.start()
        if engine.sessions.expiry is not None:
            engine.sessions.expiry.start()

    def _restore_from_log(self) -> int:
        """Load the newest snapshot of the state that the log has; the position from which the log
        has to be folded on. Raises StoreCorrupt."""
        engine = self._engine
        snapshot = need_snapshot(engine.core.store)
        folded = snapshot.folded()
        for kind, rows in folded.rows.items():  # all of it belongs in the new `state.db`
            if kind != "number":
                engine.core.journal.dirty.update((kind, key) for key, _ in rows)
        self._load(folded)
        return snapshot.position

    def _load(self, folded: Folded) -> None:
        """Take the snapshot's rows, each kind after those it refers to."""
        for name, kind in self._kinds.items():
            kind.load(folded.take(name))

    def apply(self, record: Record) -> None:
        """Apply one record of the log: an op, or a message that changes state."""
        engine = self._engine
        if record.topic == STATE_TOPIC.encode():
            if record.properties.get(TAGS) == OP_TAG:
                engine.core.journal.replay(record.body)
            return
        if not record.system_flag & SYSTEM_FLAG_STATE:
            return
        if RETAIN_PROPERTY in record.properties:
            key = engine.retained.fold(record, engine.core.metas)
            engine.core.journal.dirty.add(("retained", key))
        if QOS2_PROPERTY in record.properties:
            number, _, packet = record.properties[QOS2_PROPERTY].partition(".")
            engine.sessions.state.took_inbound(int(number, 16), int(packet, 16))
        replaced = settled_by(record.properties)
        if replaced is not None and replaced[0] in engine.core.groups:
            group_number, settled = replaced
            engine.core.groups[group_number].cursor.settle(settled, 1)
            engine.core.journal.dirty.add(("group", str(group_number)))

    def _stand_by(self) -> None:
        """Whoever held something holds it at the master: nothing is given back, and no timer
        starts."""
        engine = self._engine
        engine.topics_.reopen()
        for queue in dict.fromkeys(group.queue for group in engine.core.groups.values()):
            queue.index.begin_at(min(group.cursor.floor for group in queue.groups))
            queue.flushed = queue.visible = queue.index.end_offset

    def _reopen(self) -> None:
        """No connection survived: cursors give back what is held, and fit their queues' ends."""
        engine = self._engine
        engine.retention.forget_drops()
        engine.topics_.reopen()
        for queue in dict.fromkeys([group.queue for group in engine.core.groups.values()]):
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
        hold_recovered(engine.core, engine.topics_)
        engine.named_queues.reopen()
        engine.exchanges.reopen()
        engine.sessions.state.reopen()
        for group in engine.core.groups.values():
            group.cursor.forget_settled()
        known = set(engine.core.groups)
        known |= {
            queue.number for topic in engine.topics_.topics.values() for queue in topic.queues
        }
        known |= {found.queue.number for found in engine.sessions.filters.values()}
        for number in [n for n in engine.core.store.index_numbers() if n not in known]:
            engine.core.store.drop_index(number)
