"""Queues that have a name: AMQP's, and the named subscriptions of HTTP, which are queues bound to a
pattern.

A queue that is durable has its index on disk and its place in every record; one that is not lives
in memory and goes with the process. What is bound to what is in `exchanges/exchanges.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from polymq.broker.core import Core
from polymq.broker.errors import Reason, Refused
from polymq.broker.exchanges.entities import (
    NamedQueue,
    check_equal,
    locked,
    need_queue,
    position_of,
    write_op,
)
from polymq.broker.exchanges.exchanges import Exchanges
from polymq.broker.messages.message import Delivery
from polymq.broker.messages.runs import TakesApart
from polymq.broker.moves.dead_letters import DeadLetters
from polymq.broker.moves.moves import Moves
from polymq.broker.moves.set_aside import SetAside
from polymq.broker.named_queues.features import QueueFeatures
from polymq.broker.named_queues.pausing import QueuePausing
from polymq.broker.names import SERVER_NAMED, check_amqp_name
from polymq.broker.port.infos import QueueInfo
from polymq.broker.port.queues import Consumer, QueueConsumer
from polymq.broker.port.values import Address, Position
from polymq.broker.queues.priorities import Levels
from polymq.broker.queues.queue import Group, Registration
from polymq.broker.queues.settings import ARGUMENTS, DEAD_LETTER_EXCHANGE, settings_of
from polymq.broker.queues.store import QueueStore
from polymq.broker.routing.patterns import normal_form
from polymq.broker.state.journal import Entity, Op, Touched
from polymq.broker.state.kinds import StateKind, each
from polymq.broker.topics.topics import Topics

SUBSCRIPTION_PREFIX: Final = "%SUB%"
"""Queue names of named subscriptions. AMQP clients may not declare them."""


@dataclass(slots=True)
class _AutoDeleting:
    """A hold whose cancelling may delete its queue: the `QueueConsumer` of the port."""

    queues: NamedQueues
    queue: NamedQueue
    registration: Registration = field(repr=False)

    @property
    def paused(self) -> bool:
        return self.registration.paused

    def settle(self, first_offset: int, count: int) -> None:
        self.registration.settle(first_offset, count)

    def requeue(self, first_offset: int, count: int) -> None:
        self.registration.requeue(first_offset, count)

    def reject(self, first_offset: int, count: int) -> None:
        self.registration.reject(first_offset, count)

    def ready(self) -> None:
        self.registration.ready()

    def cancel(self) -> None:
        self.registration.cancel()
        self.queues.consumer_left(self.queue, self.registration)

    @property
    def active(self) -> bool:
        """Whether messages may still come."""
        return self.registration.active

    @property
    def group(self) -> Group | Levels:
        """What it holds messages of (for moves)."""
        return self.registration.group


class NamedQueues:
    """All queues of AMQP, and the named subscriptions.

    Args:
        queues: where they are kept, by name; `exchanges` has the same.
        new_name: makes up the random part of a server-named queue.
    """

    def __init__(
        self,
        core: Core,
        queue_store: QueueStore,
        topics: Topics,
        moves: Moves,
        exchanges: Exchanges,
        aside: SetAside,
        *,
        queues: dict[str, NamedQueue],
        new_name: Callable[[], str],
    ) -> None:
        self.core = core
        self.queue_store = queue_store
        self.topics = topics
        self.exchanges = exchanges
        self.queues = queues
        self.new_name = new_name
        self.dead_letters = DeadLetters(core, queue_store, topics, moves, exchanges, aside)
        self.features = QueueFeatures(
            core,
            queue_store,
            self.dead_letters,
            queues=queues,
            write=self._write,
            end=self._end_queue,
        )
        self.pausing = QueuePausing(core, queues=queues, write=self._write)
        self.counts: dict[str, int] = {}
        """Queues by the owner that declared them; owners without one are not in it."""
        core.journal.handle("queue+", self._apply_queue)
        core.journal.handle("queue-", self._apply_queue_end)

    # --- queues ---------------------------------------------------------------------------

    def info(self, name: str, *, owner: object) -> QueueInfo:
        """See `QueuePort.info`."""
        return self.need_queue(name, owner).info()

    def need_queue(self, name: str, owner: object) -> NamedQueue:
        """The queue, or Refused NOT_FOUND or LOCKED."""
        return need_queue(self.queues, name, owner)

    def declare(
        self,
        name: str,
        *,
        durable: bool,
        exclusive: bool,
        auto_delete: bool,
        arguments: Mapping[str, Any],
        owner: object,
        user: str = "",
    ) -> tuple[QueueInfo, Position]:
        """See `QueuePort.declare`. `user`: whose it is, and whose quota it counts for. If
        it exists, and its owner is gone, its dead letters are the user's from now on."""
        self.core.check_leads()
        value = {
            "durable": durable,
            "exclusive": exclusive,
            "auto_delete": auto_delete,
            "arguments": dict(arguments),
        }
        settings_of(name, arguments)
        if not name:
            name = f"{SERVER_NAMED}{self.new_name()}"
        elif name in self.queues:
            existing = self.need_queue(name, owner)
            if existing.terms.exclusive != exclusive:
                raise locked(name)
            check_equal("queue", name, existing.value(), value, ARGUMENTS)
            if DEAD_LETTER_EXCHANGE in arguments and self._owner_is_gone(existing):
                by = self.exchanges.owners.of(user)
                op = {"op": "own", "queue": name, "by": by}
                self._write(op, durable=existing.queue.durable)
            return existing.info(), position_of(self.core, durable=existing.queue.durable)
        elif name.startswith(("amq.", SUBSCRIPTION_PREFIX)):
            raise Refused(Reason.FORBIDDEN, f"queue name '{name}' contains a reserved prefix")
        check_amqp_name("a queue", name)
        if user:
            value["u"] = self.exchanges.owners.of(user)
        position = self._create_queue(name, value, owner, (name,))
        return self.queues[name].info(), max(position, position_of(self.core, durable=durable))

    def restore(
        self, name: str, *, auto_delete: bool, arguments: Mapping[str, Any], maker: str, by: str
    ) -> Position:
        """Make a durable queue again, as it was elsewhere.

        Args:
            maker, by: owners, see `Terms`.

        Raises:
            Refused: it is there, or cannot be.
        """
        self.check_new(name, arguments)
        value: dict[str, Any] = {
            "durable": True,
            "exclusive": False,
            "auto_delete": auto_delete,
            "arguments": dict(arguments),
        }
        if maker:
            value["u"] = maker
        if by != maker:
            value["by"] = by
        return self._create_queue(name, value, None, (name,))

    def check_new(self, name: str, arguments: Mapping[str, Any]) -> None:
        """Whether there can be such a queue. Raises Refused."""
        if not name or name.startswith(("amq.", SUBSCRIPTION_PREFIX)):
            raise Refused(Reason.FORBIDDEN, f"queue name '{name}' contains a reserved prefix")
        if name in self.queues:
            raise Refused(Reason.DIFFERENT, f"queue '{name}' exists")
        check_amqp_name("a queue", name)
        settings_of(name, arguments)

    def _create_queue(
        self, name: str, value: Mapping[str, Any], owner: object, address: Address
    ) -> Position:
        """With its binding by its own name, to `address`, in the same record: a crash in between
        would leave a queue that nothing reaches."""
        if len(self.queues) >= self.core.limits.queues_max:
            raise Refused(
                Reason.LIMIT,
                f"there are {len(self.queues)} queues, which is the limit: delete some",
            )
        # An exclusive queue goes with its connection, so it leaves nothing in the log.
        durable = value["durable"] and not value["exclusive"]
        bindings = [[["", name, "{}"], list(address)]]
        op: Op = {"op": "queue+", "name": name, "n": 0, **value, "bindings": bindings}
        if durable:
            self.core.check_writable()
            op["n"] = self.core.take_number()
        position = self._write(op, durable=durable)
        self.queues[name].owner = owner if value["exclusive"] else None
        return position

    def delete(
        self, name: str, *, if_unused: bool, if_empty: bool, owner: object
    ) -> tuple[int, Position]:
        """See `QueuePort.delete`."""
        if name not in self.queues:
            return 0, Position(0)
        found = self.need_queue(name, owner)
        if if_unused and found.group.registrations:
            raise Refused(Reason.IN_USE, f"queue '{name}' in vhost '/' in use")
        if if_empty and found.group.ready_count:
            raise Refused(Reason.NOT_EMPTY, f"queue '{name}' in vhost '/' is not empty")
        return self._delete(found)

    def _delete(self, found: NamedQueue) -> tuple[int, Position]:
        count = found.group.ready_count
        registrations = list(found.group.registrations)
        ends = self.exchanges.ends
        more = ends.without(key for key, _ in self.exchanges.bindings_of(found) if key[0])
        op: Op = {"op": "queue-", "name": found.name, **more}
        try:
            position = self._write(op, durable=found.queue.durable or ends.are_durable(more))
        except Refused:  # the log takes nothing
            if found.queue.durable:
                raise
            position = self._write({"op": "queue-", "name": found.name}, durable=False)
        for registration in registrations:
            registration.end()
        return count, position

    def _end_queue(self, found: NamedQueue) -> None:
        """Its lease has ended."""
        if self.queues.get(found.name) is found:
            self._delete(found)

    def _apply_queue(self, op: Op) -> Touched:
        self.load_queue(op["name"], op)
        return [("queue", op["name"])]

    def _apply_queue_end(self, op: Op) -> Touched:
        touched: list[Entity] = []
        found = self.queues.pop(op["name"], None)
        if found is not None:  # else it was not durable, and an exchange that went with it is
            self.exchanges.forget_queue(found)
            self._count(found.terms.maker, -1)
            self.pausing.forget(found)
            touched += self.features.drop(found)
        if "x" in op:
            touched += self.exchanges.end(op["x"], op.get("at", 0))
        return touched

    def purge(self, name: str, *, owner: object) -> tuple[int, Position]:
        """See `QueuePort.purge`."""
        found = self.need_queue(name, owner)
        if found.queue.durable:
            self.core.check_writable(frees=True)
            self.queue_store.write_acks()  # the next ones are purged
        for group in found.group.all_groups():
            first = group.cursor.floor
            self.queue_store.say_why(group, first, group.queue.visible - first, "purged")
        count = found.group.purge()
        if found.queue.durable:
            self.queue_store.write_acks()
        return count, position_of(self.core, durable=found.queue.durable)

    # --- consuming ------------------------------------------------------------------------

    def consume(
        self,
        queue: str,
        consumer: Consumer,
        *,
        exclusive: bool,
        owner: object,
        priority: int = 0,
        reads_long: bool = False,
        takes_apart: TakesApart | None = None,
    ) -> _AutoDeleting:
        """See `QueuePort.consume`."""
        self.core.check_leads()
        found = self.need_queue(queue, owner)
        if exclusive and found.terms.settings.single_active:
            raise Refused(
                Reason.FORBIDDEN,
                f"queue '{queue}' in vhost '/' has a single active consumer: "
                "an exclusive one is not possible",
            )
        if found.exclusive_registration is not None or (exclusive and found.group.registrations):
            raise Refused(Reason.FORBIDDEN, f"queue '{queue}' in vhost '/' in exclusive use")
        registration = found.group.add(
            consumer, priority, reads_long=reads_long, takes_apart=takes_apart
        )
        if exclusive:
            found.exclusive_registration = registration
        return _AutoDeleting(self, found, registration)

    def consumer_left(self, found: NamedQueue, registration: Registration) -> None:
        """A consumer was cancelled: an auto-delete queue goes with its last."""
        if found.exclusive_registration is registration:
            found.exclusive_registration = None
        if found.lease is not None:
            found.lease.touch()
        unused = not found.group.registrations
        if found.terms.auto_delete and unused and self.queues.get(found.name) is found:
            self._delete(found)

    def get(
        self,
        queue: str,
        callback: Callable[[Delivery | None, QueueConsumer, int], None],
        *,
        owner: object,
    ) -> None:
        """See `QueuePort.get`."""
        self.core.check_leads()
        found = self.need_queue(queue, owner)
        if found.terms.settings.single_active:
            raise Refused(
                Reason.LOCKED,
                f"queue '{queue}' in vhost '/' has a single active consumer: use basic.consume",
            )
        getter = _Getter(callback)
        registration = Registration(found.group, getter, reads_long=True)
        getter.registration = registration
        found.group.give_one(registration)

    def release_owner(self, owner: object) -> Iterator[None]:
        """See `QueuePort.release_owner`."""
        for found in [q for q in self.queues.values() if q.terms.exclusive and q.owner is owner]:
            self._end_queue(found)
            yield

    # --- named subscriptions ----------------------------------------------------------------

    def declare_subscription(self, name: str, address: Address) -> Position:
        """See `QueuePort.declare_subscription`."""
        address = normal_form(address)
        queue_name = self.subscription_queue(name)
        existing = self.queues.get(queue_name)
        if existing is not None:
            if list(existing.bindings.values()) != [address]:
                raise Refused(Reason.DIFFERENT, f"subscription '{name}' exists with another filter")
            return Position(self.core.log.appended)
        self.exchanges.topics.router.check_room(address)
        value = {"durable": True, "exclusive": False, "auto_delete": False, "arguments": {}}
        self._create_queue(queue_name, value, None, address)
        return Position(self.core.log.appended)

    def delete_subscription(self, name: str) -> Position:
        """See `QueuePort.delete_subscription`."""
        found = self.queues.get(self.subscription_queue(name))
        return Position(0) if found is None else self._delete(found)[1]

    def subscription_queue(self, name: str) -> str:
        """See `QueuePort.subscription_queue`."""
        return SUBSCRIPTION_PREFIX + name

    # --- snapshot -------------------------------------------------------------------------

    def state_kinds(self) -> tuple[StateKind, ...]:
        """See `state/kinds.py`."""
        return (StateKind("queue", self.row_queue, each(self.load_queue)),)

    def load_queue(self, name: str, value: Mapping[str, Any]) -> None:
        """Take a queue from its op or its snapshot."""
        found = self.queues[name] = self.features.build(name, value)
        self._count(found.terms.maker, 1)
        if "pause" in value:
            self.pausing.load(found, value["pause"])
        if value.get("by_name", False):
            self.exchanges.load_binding_by_name(found)
        for key, address in value.get("bindings", ()):
            self.exchanges.load_binding(found, tuple(key), tuple(address))

    def row_queue(self, name: str) -> Mapping[str, Any] | None:
        """The queue and its bindings as a JSON value for the snapshot."""
        found = self.queues.get(name)
        if found is None or not found.queue.durable:
            return None
        row = {**found.value(), "n": found.queue.number}
        bindings = list(self.exchanges.bindings_of(found))
        if found.bindings.by_name:  # the first of them
            row["by_name"] = True
            del bindings[0]
        if bindings:
            row["bindings"] = [[list(key), list(address)] for key, address in bindings]
        if found.queue.expiring:
            row["expiring"] = True
        if found.pause is not None:
            row["pause"] = [found.pause.since_ms, found.pause.by]
        if found.queue.levels is not None:
            row["levels"] = found.queue.levels.rows()
        if found.terms.maker:
            row["u"] = found.terms.maker
        if found.terms.by != found.terms.maker:
            row["by"] = found.terms.by
        return row

    def _owner_is_gone(self, found: NamedQueue) -> bool:
        """Whether the owner may not publish the queue's dead letters, wherever they go."""
        settings = found.terms.settings
        exchange, key = settings.dead_letter_exchange, settings.dead_letter_key
        assert exchange is not None
        if key is not None:
            return not self.exchanges.may_dead_letter(found.name, exchange, key)
        return not self.exchanges.owners.exists(found.terms.by)

    def _count(self, maker: str, change: int) -> None:
        if maker:
            count = self.counts.get(maker, 0) + change
            if count:
                self.counts[maker] = count
            else:
                del self.counts[maker]

    def reopen(self) -> None:
        """After a restart: requeue what connections held."""
        self.features.reopen()

    def _write(self, op: Op, *, durable: bool) -> Position:
        return write_op(self.core, op, durable=durable)


class _Getter:
    """The consumer of one `get`."""

    def __init__(self, callback: Callable[[Delivery | None, QueueConsumer, int], None]) -> None:
        self._callback = callback
        self.registration: Registration | None = None

    def credit(self) -> int:
        return 1

    def deliver(self, delivery: Delivery | None) -> None:
        # It has this as its consumer: without a cycle it is free.
        registration, self.registration = self.registration, None
        assert registration is not None
        self._callback(delivery, registration, registration.group.ready_count)

    def cancelled(self) -> None:
        """A get is over before its queue can go."""
