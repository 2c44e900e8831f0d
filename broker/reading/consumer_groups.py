"""RocketMQ's consumer groups: what each is set to, and how far it has come in each queue.

A group of RocketMQ's reads topics by offset and commits offsets; the broker only keeps them. What
holds an AMQP queue's or an MQTT session's messages (a cursor, `queues/cursor.py`) is something
else: these groups hold nothing, and retention takes what is due whether they have read it or not.

Rules:

* Groups and their offsets are state: the ops `group=` and `committed`. A group is made by an op
  before the first offset of it is kept.
* Commits gather for a moment into one op, as acknowledgements do: each client commits all of its
  queues every five seconds. What was committed last counts, also if it is lower: that is how
  offsets are reset. A crash may lose the commits of that moment, and messages are read again.
* At a slave commits stay in memory: they are for consumers that read there while the master is
  away, and what the master's log says of the same place replaces them.
* What an operator has paused (`group_pauses.py`) is state, too.
* An offset belongs to the topic's incarnation, so that a topic that was deleted and made again
  begins without any.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from polymq.broker.core import Core
from polymq.broker.errors import Reason, Refused
from polymq.broker.port.groups import GroupInfo
from polymq.broker.port.infos import Pause
from polymq.broker.port.values import Position
from polymq.broker.queues.queue import Queue
from polymq.broker.reading.group_pauses import PAUSES_MAX, GroupPauses
from polymq.broker.state.journal import Op, Touched
from polymq.broker.state.kinds import StateKind, each
from polymq.broker.topics.topic import Topic
from polymq.broker.topics.topics import Topics

TopicQueue = tuple[str, int]
"""A topic and a queue id."""


class ConsumerGroup:
    """One group: its settings, and by place the topic's incarnation and the offset."""

    __slots__ = ("name", "offsets", "settings")

    def __init__(self, name: str, settings: Mapping[str, Any]) -> None:
        self.name = name
        self.settings = settings
        self.offsets: dict[TopicQueue, tuple[int, int]] = {}


class ConsumerGroups:
    """All of them. The operations are those of `GroupPort`."""

    def __init__(self, core: Core, topics: Topics) -> None:
        self._core = core
        self._topics = topics
        self._groups: dict[str, ConsumerGroup] = {}
        self._gathered: dict[tuple[str, str, int], tuple[int, int]] = {}  # not yet written
        self._scheduled = False
        self.pauses = GroupPauses(self._incarnation_of)
        core.gatherers.append(self.write)
        core.journal.handle("group=", self._apply_group)
        core.journal.handle("committed", self._apply_committed)
        core.journal.handle("group-pause+", self._apply_pause)
        core.journal.handle("group-pause-", self._apply_resume)

    # --- groups ---------------------------------------------------------------------------------

    def info(self, name: str) -> GroupInfo | None:
        """See `GroupPort.info`."""
        group = self._groups.get(name)
        return None if group is None else GroupInfo(name=name, settings=group.settings)

    def infos(self) -> list[GroupInfo]:
        """See `GroupPort.infos`."""
        return [GroupInfo(name=g.name, settings=g.settings) for g in self._groups.values()]

    def put(self, name: str, settings: Mapping[str, Any]) -> Position:
        """See `GroupPort.put`."""
        core = self._core
        core.check_writable()
        if name not in self._groups and len(self._groups) >= core.limits.consumer_groups_max:
            raise Refused(
                Reason.LIMIT,
                f"there are {core.limits.consumer_groups_max} consumer groups, which is the "
                "limit: delete some",
            )
        return core.journal.write({"op": "group=", "name": name, "set": dict(settings)})

    def delete(self, name: str) -> Position:
        """See `GroupPort.delete`."""
        if name not in self._groups:
            raise Refused(Reason.NOT_FOUND, f"there is no consumer group {name!r}")
        self._gathered = {key: at for key, at in self._gathered.items() if key[0] != name}
        return self._core.journal.write({"op": "group=", "name": name, "set": None})

    def _apply_group(self, op: Op) -> Touched:
        name = op["name"]
        group = self._groups.get(name)
        if op["set"] is None:
            self._groups.pop(name, None)
            self.pauses.forget(name)
        elif group is None:
            self._groups[name] = ConsumerGroup(name, op["set"])
        else:
            group.settings = op["set"]
        return [("consumers", name)]

    # --- pauses ---------------------------------------------------------------------------------

    def is_paused(self, name: str, topic: str) -> bool:
        """See `GroupPort.is_paused`."""
        return self.pauses.is_paused(name, topic)

    def pause(self, name: str, topic: str, *, by: str) -> Position:
        """Let a group have nothing more of a topic until it is resumed. Where it is paused it stays
        so, by whom it was. Raises Refused: NOT_FOUND, LIMIT, READ_ONLY, STORAGE_FULL."""
        core = self._core
        incarnation = self._incarnation_of(topic)
        if name not in self._groups:
            raise Refused(Reason.NOT_FOUND, f"there is no consumer group {name!r}")
        if incarnation is None:
            raise Refused(Reason.NOT_FOUND, f"there is no topic {topic!r}")
        if self.pauses.is_paused(name, topic):
            return Position(core.log.appended)
        if self.pauses.is_full(name):
            raise Refused(
                Reason.LIMIT,
                f"consumer group {name!r} is paused in {PAUSES_MAX} topics, which is the limit: "
                "resume some",
            )
        core.check_writable()
        op: Op = {"op": "group-pause+", "name": name, "topic": topic, "i": incarnation}
        return core.journal.write({**op, "ms": core.clock_ms(), "by": by})

    def resume(self, name: str, topic: str) -> Position:
        """Let it have the topic again. No error if it was not paused. Raises Refused: NOT_FOUND,
        READ_ONLY."""
        if name not in self._groups:
            raise Refused(Reason.NOT_FOUND, f"there is no consumer group {name!r}")
        if not self.pauses.is_paused(name, topic):
            return Position(self._core.log.appended)
        self._core.check_writable(frees=True)
        return self._core.journal.write({"op": "group-pause-", "name": name, "topic": topic})

    def _incarnation_of(self, topic: str) -> int | None:
        found = self._topics.topics.get(topic)
        return None if found is None else found.incarnation

    def _apply_pause(self, op: Op) -> Touched:
        name = op["name"]
        if name in self._groups:
            pause = Pause(since_ms=op["ms"], by=op["by"])
            self.pauses.put(name, op["topic"], op["i"], pause)
        return [("consumers", name)]

    def _apply_resume(self, op: Op) -> Touched:
        self.pauses.remove(op["name"], op["topic"])
        return [("consumers", op["name"])]

    # --- offsets --------------------------------------------------------------------------------

    def offset(self, name: str, topic: str, queue_id: int) -> int | None:
        """See `GroupPort.offset`."""
        found = self._topics.topics.get(topic)
        if found is None:
            return None
        entry = self._gathered.get((name, topic, queue_id))
        if entry is None:
            group = self._groups.get(name)
            entry = None if group is None else group.offsets.get((topic, queue_id))
        return entry[1] if entry is not None and entry[0] == found.incarnation else None

    def offsets(self, name: str) -> dict[TopicQueue, int]:
        """See `GroupPort.offsets`."""
        group = self._groups.get(name)
        queues = set() if group is None else set(group.offsets)
        queues |= {(topic, queue_id) for key, topic, queue_id in self._gathered if key == name}
        found = {queue: self.offset(name, *queue) for queue in sorted(queues)}
        return {queue: offset for queue, offset in found.items() if offset is not None}

    def names(self) -> list[str]:
        """The names of all groups."""
        return list(self._groups)

    def progress(self, name: str) -> Iterator[tuple[str, int, Queue, int]]:
        """For operators: each queue that a group has committed an offset in, by its topic and its
        number there. Groups and topics may come and go meanwhile."""
        group = self._groups.get(name)
        for topic, queue_id in [] if group is None else list(group.offsets):
            offset = self.offset(name, topic, queue_id)
            found = self._topics.topics.get(topic)
            if offset is not None and found is not None and queue_id < len(found.queues):
                yield topic, queue_id, found.queues[queue_id], offset

    def commit(self, name: str, topic: str, queue_id: int, offset: int) -> None:
        """See `GroupPort.commit`."""
        found = self._queue_of(topic, queue_id)
        if name not in self._groups:
            raise Refused(Reason.NOT_FOUND, f"there is no consumer group {name!r}")
        if offset < 0:
            raise Refused(Reason.BAD_ARGUMENT, f"an offset must not be negative, as {offset} is")
        if self.offset(name, topic, queue_id) == offset:
            return  # each client says all of its offsets every five seconds
        self._gathered[name, topic, queue_id] = found.incarnation, offset
        self._schedule(self._core.limits.ack_delay_seconds)

    def _queue_of(self, topic: str, queue_id: int) -> Topic:
        found = self._topics.topics.get(topic)
        if found is None:
            raise Refused(Reason.NOT_FOUND, f"there is no topic {topic!r}")
        if not 0 <= queue_id < len(found.queues):
            raise Refused(
                Reason.NOT_FOUND,
                f"topic {topic!r} has {len(found.queues)} queues, and no queue {queue_id}",
            )
        return found

    def _schedule(self, seconds: float) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._core.scheduler.call_later(seconds, self.write)

    def write(self) -> None:
        """One op for all that was committed since the last one. Nobody waits for it; what the log
        does not take now gathers on."""
        self._scheduled = False
        if not self._gathered or self._core.has_failed() or self._core.follows:
            return
        try:
            self._core.journal.write({"op": "committed", "o": list(self._gathered_rows())})
        except Refused:
            self._schedule(self._core.limits.lazy_flush_seconds)
        else:
            self._gathered.clear()

    def _gathered_rows(self) -> Iterator[list[object]]:
        for (name, topic, queue_id), (incarnation, offset) in self._gathered.items():
            yield [name, topic, queue_id, incarnation, offset]

    def _apply_committed(self, op: Op) -> Touched:
        touched = []
        for name, topic, queue_id, incarnation, offset in op["o"]:
            self._gathered.pop((name, topic, queue_id), None)
            group = self._groups.get(name)
            if group is not None:
                group.offsets[topic, queue_id] = incarnation, offset
                touched.append(("consumers", name))
        return touched

    # --- the snapshot ---------------------------------------------------------------------------

    def state_kinds(self) -> tuple[StateKind, ...]:
        """See `state/kinds.py`."""
        return (StateKind("consumers", self.row, each(self.load)),)

    def row(self, name: str) -> Mapping[str, Any] | None:
        """The group as a JSON value for the snapshot: without offsets in topics that are gone."""
        group = self._groups.get(name)
        if group is None:
            return None
        offsets = [
            [topic, queue_id, incarnation, offset]
            for (topic, queue_id), (incarnation, offset) in group.offsets.items()
            if topic in self._topics.topics
            and self._topics.topics[topic].incarnation == incarnation
        ]
        row: dict[str, Any] = {"set": group.settings, "o": offsets}
        pauses = self.pauses.rows(name)
        if pauses:
            row["pauses"] = pauses
        return row

    def load(self, name: str, value: Mapping[str, Any]) -> None:
        """Take a group from its snapshot."""
        group = self._groups[name] = ConsumerGroup(name, value["set"])
        self.pauses.load(name, value.get("pauses", ()))
        for topic, queue_id, incarnation, offset in value["o"]:
            group.offsets[topic, queue_id] = incarnation, offset
