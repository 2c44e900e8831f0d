"""Moving what waits in a queue to another queue: each message in one step, as dead letters are sent
on (`redriving.py`)."""

from __future__ import annotations

from typing import Annotated

import msgspec

from polymq.admin.commits import Committed
from polymq.admin.dead_letter_values import Target
from polymq.admin.messages import check_queue
from polymq.admin.operations import Call, Given, Operation, Value
from polymq.admin.redriving import SCAN_MAX, QueueLocation, Sender
from polymq.broker.accounts import audit
from polymq.broker.engine import Engine
from polymq.broker.errors import Reason, Refused
from polymq.broker.named_queues.named_queues import SUBSCRIPTION_PREFIX


class MoveBody(Given):
    """What is moved, and where.

    Attributes:
        to: the name of a queue of AMQP.
        count: at most so many, from the head on.
        dry_run: only count them.
    """

    to: str
    count: Annotated[int, msgspec.Meta(ge=1, le=SCAN_MAX)] = 1_000
    dry_run: bool = False


class MovedMessages(Value):
    """What became of the messages.

    Attributes:
        name: of the queue that they were in.
        to: the queue that they are in now.
        messages: that were moved; in a dry run, that would be tried.
        failed: that were not, and are where they were, by the reason.
        complete: false: the queue has more that are ready.
        dry_run: nothing has happened.
    """

    name: str
    to: str
    messages: int
    failed: dict[str, int]
    complete: bool
    dry_run: bool


class QueueMoveHandlers:
    """Carries out moves.

    Args:
        committed: waits until a change is on the disk.
    """

    def __init__(self, engine: Engine, committed: Committed) -> None:
        self._engine = engine
        self._committed = committed
        self._busy: set[str] = set()  # queues that messages are being moved from

    def operation(self) -> Operation:
        """The operation."""
        return Operation(
            method="POST",
            path="/queues/{name}/move",
            name="moveMessages",
            summary="Move the messages of a queue that are ready to another queue",
            about="Each is stored anew and leaves its queue in one step, also over a crash. For "
            "callers who may subscribe to what the queue collects, and publish to the other.",
            right="operate",
            handler=self._move,
            body=MoveBody,
            answer=MovedMessages,
            path_about={"name": "the queue"},
        )

    async def _move(self, call: Call[Given]) -> MovedMessages:
        wanted: MoveBody = call.body
        location = QueueLocation(self._engine, call.path["name"])
        check_queue(call.port, location.name)
        self._check_target(location.name, wanted.to)
        target = Target(exchange="", routing_key=wanted.to)
        sender = Sender(self._engine, call.port, target, location.name, is_dead=False)
        sender.check_target(target)
        ready = location.count()
        if wanted.dry_run:
            count = min(ready, wanted.count)
            return _answer(location.name, wanted, count, complete=count == ready)
        if location.name in self._busy:
            raise Refused(
                Reason.LOCKED, f"messages of queue {location.name!r} are being moved: try later"
            )
        self._engine.core.check_writable()
        self._busy.add(location.name)
        try:
            outcome = await location.move(lambda _one: True, sender, wanted.count)
        finally:
            self._busy.discard(location.name)
        audit.note(
            "messages moved",
            queue=location.name,
            to=wanted.to,
            messages=outcome.moved,
            failed=sum(outcome.failed.values()),
            by=call.caller,
        )
        await self._committed(outcome.position)
        answer = _answer(location.name, wanted, outcome.moved, complete=outcome.complete)
        answer.failed = outcome.failed
        return answer

    def _check_target(self, name: str, to: str) -> None:
        """Raises Refused: BAD_ARGUMENT, NOT_FOUND, LOCKED."""
        if to == name:
            raise Refused(Reason.BAD_ARGUMENT, "to is the queue itself: name another one")
        if to.startswith(SUBSCRIPTION_PREFIX):
            raise Refused(
                Reason.LOCKED, "a subscription takes what is published to its topic, and no moves"
            )
        if to not in self._engine.named_queues.queues:
            raise Refused(Reason.NOT_FOUND, f"there is no queue {to!r} to move to")


def _answer(name: str, wanted: MoveBody, count: int, *, complete: bool) -> MovedMessages:
    return MovedMessages(
        name=name,
        to=wanted.to,
        messages=count,
        failed={},
        complete=complete,
        dry_run=wanted.dry_run,
    )
