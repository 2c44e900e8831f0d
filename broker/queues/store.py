"""The queues and groups of one engine: how they are made, and what groups have settled.

A group that survives a restart has a number. What its consumers settled gathers for a moment, and
becomes one record of the log for all groups (the op `acks`). Nobody waits for that record: what a
crash takes of it is delivered once more.

The same record says why messages were settled that no consumer acknowledged (`say_why`), for people
who ask what became of one. Nothing is folded of that, and what is too much to be said is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from polymq.broker.core import Core
from polymq.broker.errors import Refused
from polymq.broker.queues.cursor import Cursor
from polymq.broker.queues.queue import Group, Queue
from polymq.broker.state.journal import Op, Touched
from polymq.core_log.kernels.layout import ENTRY_SIZE, PRIVATE_ENTRY_SIZE
from polymq.core_log.queue_index import Index, MemoryIndex

Acks = tuple[int, int, list[list[int]]]
"""Of one group: its number, its `next`, (first, count) stretches that were settled."""


REASONS_MAX: Final = 256
"""Stretches of one record of acks whose reasons it says."""


class QueueStore:
    """All queues and groups of one engine.

    Attributes:
        groups: those that survive a restart, by number.
        volatile_groups: all others: they hold the log, too, as long as they live.
        before_acks: told which groups the log is about to say of how far they are.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self.groups: dict[int, Group] = {}
        self.volatile_groups: set[Group] = set()
        self.before_acks: Callable[..., None] | None = None
        self._acks_scheduled = False
        # In the order of their first move, so that equal runs write equal logs.
        self._moved: dict[Group, None] = {}
        self._recounted: dict[Group, None] = {}
        self._reasons: list[tuple[Group, int, int, str]] = []  # (group, first, count, why)
        self._note_moved = self._group_moved  # one method object for all groups
        core.gatherers.append(self.write_acks)
        core.reading.say_why = self.say_why
        core.journal.handle("acks", self._apply_acks)

    # --- queues and groups ----------------------------------------------------------------

    def durable_queue(self, number: int, *, own: bool) -> Queue:
        """A queue whose index is on disk, by a number that an op or a row says.

        Args:
            own: it is a topic's own queue (RocketMQ's entries).
        """
        self._core.saw_number(number)
        entry_size = ENTRY_SIZE if own else PRIVATE_ENTRY_SIZE
        return Queue(number, self._core.store.index(number, entry_size))

    def volatile_queue(self, count_max: int, entry_size: int = ENTRY_SIZE) -> Queue:
        """A queue in memory, which loses its oldest entries beyond its limit."""
        index: Index = MemoryIndex(entry_size, count_max)
        return Queue(0, index)

    def group(
        self, queue: Queue, cursor: Cursor, *, number: int = 0, kind: type[Group] = Group
    ) -> Group:
        """A group on the queue; with a number it survives restarts."""
        moved = self._note_moved if number else _trim_memory
        group = kind(queue, cursor, number=number, reading=self._core.reading, moved=moved)
        if number:
            self.groups[number] = group
        else:
            self.volatile_groups.add(group)
        return group

    def drop_group(self, group: Group) -> None:
        """The group is gone."""
        group.leave()
        self.groups.pop(group.number, None)
        self.volatile_groups.discard(group)
        self._moved.pop(group, None)
        self._recounted.pop(group, None)

    # --- acks gather ----------------------------------------------------------------------

    def _group_moved(self, group: Group) -> None:
        self._moved[group] = None
        if not self._acks_scheduled:
            self._acks_scheduled = True
            self._core.scheduler.call_later(self._core.limits.ack_delay_seconds, self.write_acks)

    def passed_over(self, group: Group) -> None:
        """A group let go of messages that nobody waits for. It is noted with the next acks, or when
        the state is saved: lost by a crash, it happens once more."""
        self._moved[group] = None

    def recounted(self, group: Group) -> None:
        """Messages of a group with a delivery limit were given back: note it with the acks."""
        if group.number:
            self._recounted[group] = None
            self._group_moved(group)

    def say_why(self, group: Group, first: int, count: int, why: str) -> None:
        """Messages are settled that no consumer has acknowledged: the next record of acks says the
        reason, if it is the one that says that they are settled."""
        if not group.number or count <= 0:
            return
        if self._reasons:
            last, start, length, said = self._reasons[-1]
            if last is group and said == why and start + length == first:
                self._reasons[-1] = (group, start, length + count, why)
                return
        if len(self._reasons) < REASONS_MAX:
            self._reasons.append((group, first, count, why))

    def write_acks(self) -> None:
        """One record for all that was delivered and settled since the last. Nobody waits for it;
        what the log does not take now gathers on."""
        self._acks_scheduled = False
        moved, self._moved = self._moved, {}
        if not moved or self._core.failure is not None:
            return
        groups = [group for group in moved if group.number in self.groups]
        if not groups:
            return
        if self.before_acks is not None:
            self.before_acks(*groups)
        acks = self.take_acks(groups)
        op: Op = {"op": "acks", "g": acks}
        counts = self._take_counts()
        if counts:
            op["c"] = counts
        reasons, self._reasons = self._reasons, []
        if reasons:
            op["w"] = [[group.number, first, count, why] for group, first, count, why in reasons]
        try:
            self._core.journal.write(op)
        except Refused:
            self.keep_acks(groups, acks)
            self._reasons = reasons
            for number, stretches in counts:
                group = self.groups[number]
                if group.rules is not None and group.rules.delivery_counts is not None:
                    group.rules.delivery_counts.keep_changes(stretches)
                    self._recounted[group] = None

    def _take_counts(self) -> list[tuple[int, list[list[int]]]]:
        """What the next record of acks has to say of deliveries that were given back."""
        counts = [
            (group.number, group.rules.delivery_counts.take_changes())
            for group in self._recounted
            if group.rules is not None and group.rules.delivery_counts is not None
        ]
        self._recounted.clear()
        return counts

    def take_acks(self, groups: Iterable[Group]) -> list[Acks]:
        """What the next record of acks has to say of these groups. Whoever takes it writes it."""
        acks: list[Acks] = []
        for group in groups:
            self._moved.pop(group, None)
            acks.append((group.number, group.cursor.next, group.cursor.take_settled()))
        return acks

    def keep_acks(self, groups: Iterable[Group], acks: Iterable[Acks]) -> None:
        """The log did not take them: they gather on, to be written a little later."""
        for group, (_, _, settled) in zip(groups, acks, strict=True):
            group.cursor.give_back_settled(settled)
            self._moved[group] = None
        if self._moved and not self._acks_scheduled:
            self._acks_scheduled = True
            self._core.scheduler.call_later(self._core.limits.lazy_flush_seconds, self.write_acks)

    def _apply_acks(self, op: Op) -> Touched:
        touched: list[tuple[str, str]] = []
        for number, next_offset, settled in op["g"]:
            group = self.groups.get(number)
            if group is None:
                continue
            touched.append(("group", str(number)))
            if group.cursor.next < next_offset:
                group.cursor.delivered_to(next_offset)
            for first, count in settled:
                group.cursor.settle(first, count)
            group.cursor.forget_settled()
        for number, stretches in op.get("c", ()):
            self.load_counts(number, stretches)
        return touched

    def forget_settled(self) -> None:
        """What a start has folded is in the log: no record of acks says it again."""
        for group in self.groups.values():
            group.cursor.forget_settled()

    def group_row(self, group: Group) -> dict[str, object]:
        """The group as a JSON value for the snapshot."""
        row: dict[str, object] = {"q": group.queue.number, **group.cursor.snapshot()}
        if group.rules is not None and group.rules.delivery_counts is not None:
            row["times"] = list(group.rules.delivery_counts.stretches(group.cursor.floor))
        return row

    def load_counts(self, number: int, stretches: Iterable[list[int]]) -> None:
        """How often messages of a group were given back, as the log or the snapshot has it."""
        group = self.groups.get(number)
        if (
            group is not None
            and group.rules is not None
            and group.rules.delivery_counts is not None
        ):
            for first, count, times in stretches:
                group.rules.delivery_counts.load(first, count, times, group.cursor.floor)


def _trim_memory(group: Group) -> None:
    group.cursor.forget_settled()  # nobody writes a record of these acks
    group.queue.trim()
