"""Gives named queues what their arguments ask for: rules, a lease, levels.

A queue is built from its op or its snapshot's row, both of which hold the arguments and what was
learned since: that messages with a time to live came (`expiring`), which priorities were used
(`level`). Both are ops that are written before the first such message, so a restart knows them
without looking at messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from polymq.broker.core import Core
from polymq.broker.exchanges.entities import NamedQueue, Terms, canonical
from polymq.broker.moves.dead_letters import DeadLetters
from polymq.broker.named_queues.rules import QueueRules
from polymq.broker.port.values import Position
from polymq.broker.queues.cursor import Cursor
from polymq.broker.queues.leases import Lease
from polymq.broker.queues.priorities import Levels
from polymq.broker.queues.queue import Group, Queue
from polymq.broker.queues.settings import DROP_HEAD, PLAIN
from polymq.broker.queues.store import QueueStore
from polymq.broker.state.journal import Op, Touched
from polymq.core_log.kernels.layout import PRIVATE_ENTRY_SIZE

TERMS_MAX: Final = 1_000
"""Different terms that are kept for queues to share. Beyond that each new queue has its own, about
0.3 KiB: clients that give every queue other arguments leave nothing here that grows."""
TERMS_TEXT_MAX: Final = 1_000
"""Characters of the arguments of shared terms: what is kept is a megabyte or two at most."""


class Write(Protocol):
    """What writes ops."""

    def __call__(self, op: Op, *, durable: bool) -> Position:
        """Write the op, or only apply it if what it is about goes with the process."""


class QueueFeatures:
    """What the named queues of one engine can do.

    Args:
        queues: all of them by name; whoever owns them changes it.
        write: see `Write`.
        end: deletes a queue whose lease has ended. May raise Refused.
    """

    def __init__(
        self,
        core: Core,
        queue_store: QueueStore,
        dead_letters: DeadLetters,
        *,
        queues: Mapping[str, NamedQueue],
        write: Write,
        end: Callable[[NamedQueue], None],
    ) -> None:
        self._core = core
        self._queue_store = queue_store
        self._dead_letters = dead_letters
        self._queues = queues
        self._write = write
        self._end = end
        self._restored = False  # the start's fold has ended
        self._terms: dict[tuple[bool, bool, bool, str, str | None, str], Terms] = {}
        self._on_expiring = self.start_expiring  # one object for all queues
        core.journal.handle("expiring", self._apply_expiring)
        core.journal.handle("level", self._apply_level)

    # --- building ---------------------------------------------------------------------------

    def build(self, name: str, value: Mapping[str, Any]) -> NamedQueue:
        """A queue from its op or its row."""
        number = value["n"]
        queue = self._queue(number)
        queue.name = name
        queue.on_expiring = self._on_expiring
        terms = self._terms_of(name, value)
        settings = terms.settings
        if settings.priority_max:
            levels = Levels(
                self._queue_store, settings.priority_max, lambda p: self._make_level(name, p)
            )
            levels.add_level(0, queue)
            queue.levels = levels
            found = NamedQueue(queue, levels, terms)
            for priority, number in value.get("levels", ()):
                levels.add_level(priority, self._queue(number))
        else:
            cursor = Cursor(queue.index.first_offset)
            found = NamedQueue(queue, self._queue_store.group(queue, cursor, number=number), terms)
        expiring = value.get("expiring", False)
        if settings is not PLAIN or expiring:
            self._equip(found, expiring=expiring)
        return found

    def _terms_of(self, name: str, value: Mapping[str, Any]) -> Terms:
        """The terms of the queue `name`, the same object for queues that were declared alike."""
        key = (
            value["durable"],
            value["exclusive"],
            value["auto_delete"],
            value.get("u", ""),
            value.get("by"),
            canonical(value["arguments"]),
        )
        terms = self._terms.get(key)
        if terms is None:
            terms = Terms.of(name, value)
            if len(self._terms) < TERMS_MAX and len(key[-1]) <= TERMS_TEXT_MAX:
                self._terms[key] = terms
        return terms

    def _queue(self, number: int) -> Queue:
        core = self._core
        if number:
            return self._queue_store.durable_queue(number, own=False)
        return self._queue_store.volatile_queue(core.limits.volatile_count_max, PRIVATE_ENTRY_SIZE)

    def _equip(self, found: NamedQueue, *, expiring: bool) -> None:
        """The queue is more than a plain one."""
        found.queue.expiring = expiring
        for group in found.group.all_groups():
            self._add_rules(found, group)
        settings = found.terms.settings
        if settings.expires_ms is not None and found.lease is None:
            found.lease = Lease(
                self._core.timers,
                self._core.clock_ms,
                duration_ms=settings.expires_ms,
                in_use=lambda: bool(found.group.registrations),
                end=lambda: self._end(found),
            )

    def _add_rules(self, found: NamedQueue, group: Group) -> None:
        settings, rules = found.terms.settings, group.rules
        if rules is None:
            rules = QueueRules(
                self._dead_letters, found.name, settings, group, found.group.all_groups
            )
            group.rules = rules
            if rules.lengths is not None and settings.overflow != DROP_HEAD:
                found.queue.gate = rules
            if self._restored:
                rules.start()
        if found.queue.expiring or settings.ttl_ms is not None:
            rules.start_expiring(group)

    def drop(self, found: NamedQueue) -> Touched:
        """The queue is gone, its op applied."""
        if found.lease is not None:
            found.lease.close()
        touched = [("queue", found.name)]
        for group in found.group.all_groups():
            self._queue_store.drop_group(group)
            if group.rules is not None:
                group.rules.close()
                group.rules = None  # they know their group
            if group.queue.durable:
                self._core.store.drop_index(group.queue.number)
            touched.append(("group", str(group.number)))
        return touched

    def reopen(self) -> None:
        """The start's fold has ended: no connection holds anything."""
        self._restored = True
        for found in self._queues.values():
            for group in found.group.all_groups():
                group.cursor.reopen()
                if group.rules is not None:
                    group.rules.start()

    # --- what is learned from messages --------------------------------------------------------

    def start_expiring(self, queue: Queue) -> None:
        """The first message with a time to live of its own is on its way to the queue."""
        self._write({"op": "expiring", "queue": queue.name}, durable=queue.durable)

    def _apply_expiring(self, op: Op) -> Touched:
        found = self._queues.get(op["queue"])
        if found is None:
            return []
        self._equip(found, expiring=True)
        return [("queue", found.name)]

    def _make_level(self, name: str, priority: int) -> None:
        """The first message of this priority is on its way to the queue."""
        durable = self._queues[name].queue.durable
        number = self._core.take_number() if durable else 0
        self._write({"op": "level", "queue": name, "p": priority, "n": number}, durable=durable)

    def _apply_level(self, op: Op) -> Touched:
        found = self._queues.get(op["queue"])
        if found is None or found.queue.levels is None:
            return []
        group = found.queue.levels.add_level(op["p"], self._queue(op["n"]))
        if found.terms.settings is not PLAIN or found.queue.expiring:
            self._add_rules(found, group)
        found.queue.levels.admit_consumers(group)
        return [("queue", found.name), ("group", str(group.number))]
