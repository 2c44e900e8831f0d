"""Who follows whom, and promotions."""

from __future__ import annotations

from typing import Literal

import msgspec

from polymq.admin.operations import Call, Given, Group, Operation, Value
from polymq.broker.accounts import audit
from polymq.broker.port import Reason, Refused
from polymq.errors import Failure
from polymq.replicating import Replication


class Replica(Value):
    """A slave that is connected to this master.

    Attributes:
        address: where it connects from.
        flushed: up to which position of the log its disk has it.
        lag_bytes: bytes of the log that its disk does not have yet.
        lag_seconds: since when it does not have the whole log on its disk. 0: it has.
    """

    address: str
    flushed: int
    lag_bytes: int
    lag_seconds: float


class Divergence(Value):
    """What a slave has and its master lacks.

    Attributes:
        position: where it begins.
        end: where it ends.
        messages: how many messages there are.
        changes: how many changes of state there are.
        promised: how many of both may have been acknowledged.
        promised_from: the position of the first of those; -1: there is none.
        first_ms: when the first message was stored, in milliseconds since the epoch; 0: there is
            none.
        last_ms: when the last message was stored; 0: there is none.
    """

    position: int
    end: int
    messages: int
    changes: int
    promised: int
    promised_from: int
    first_ms: int
    last_ms: int


class GivenUp(Divergence):
    """What a slave gives up to follow its master.

    Attributes:
        stored_in: the file with a copy of it.
    """

    stored_in: str


class ReplicationState(Value, omit_defaults=True):
    """A broker's part in its group. Fields that do not concern its role are left out.

    Attributes:
        role: master, slave, or fenced: a master that was replaced.
        name: by which a master knows this broker as a slave.
        epoch: of the log.
        term: the part of the epoch that grows with each promotion.
        flushed: up to which position the log is on this disk.
        led_in_term: of a fenced broker: the term in which it led.
        reason: of a fenced broker: why it accepts nothing.
        master: of a slave: the address of its master.
        following: of a slave: whether its master sends to it.
        lag_bytes: of a slave: bytes of the master's log that are not on its disk yet.
        lag_seconds: of a slave: since when its disk does not have the whole log.
        heard_ms: of a slave: when it last heard of its master, in milliseconds since the epoch.
        diverged: of a slave: what it has and its master lacks.
        replicas: of a master that accepts slaves: those that are connected, by their names.
    """

    role: Literal["master", "slave", "fenced"]
    name: str
    epoch: int
    term: int
    flushed: int
    led_in_term: int | None = None
    reason: str | None = None
    master: str | None = None
    following: bool | None = None
    lag_bytes: int | None = None
    lag_seconds: float | None = None
    heard_ms: int | None = None
    diverged: Divergence | None = None
    replicas: dict[str, Replica] | None = None


class Forced(Given):
    """How much is asked before it is done.

    Attributes:
        force: whether it is done even if something is lost.
    """

    force: bool = False


class Promoted(Value):
    """A broker that was promoted.

    Attributes:
        role: master.
        epoch: that it began.
        term: the part of the epoch that grows with each promotion.
        flushed: where its log ended then.
    """

    role: Literal["master"]
    epoch: int
    term: int
    flushed: int


class ReplicationHandlers:
    """Carries out the operations on replication."""

    def __init__(self, replication: Replication) -> None:
        self._replication = replication

    def group(self) -> Group:
        """The operations."""
        return Group(
            name="replication",
            about="The master of a group of brokers, and the slaves that follow it.",
            operations=[
                Operation(
                    method="GET",
                    path="/replication",
                    name="getReplication",
                    summary="Show the role of this broker, and who follows whom",
                    right="monitor",
                    handler=self._show,
                    answer=ReplicationState,
                ),
                Operation(
                    method="POST",
                    path="/replication/promote",
                    name="promote",
                    summary="Make this slave the master",
                    about="It is refused with 409 if something might be lost, or another broker "
                    "leads or has more, unless it is forced. The answer comes when the log is "
                    "open in its new role.",
                    right="admin",
                    handler=self._promote,
                    body=Forced,
                    answer=Promoted,
                ),
                Operation(
                    method="POST",
                    path="/replication/follow",
                    name="follow",
                    summary="Let this slave give up what its master lacks, and follow it",
                    about="Without force it is refused with 409, and the refusal says what would "
                    "be given up. A copy of it is stored first.",
                    right="admin",
                    handler=self._follow,
                    body=Forced,
                    answer=GivenUp,
                    status=202,
                ),
            ],
        )

    async def _show(self, _call: Call[Given]) -> ReplicationState:
        return msgspec.convert(self._replication.value(), ReplicationState)

    async def _promote(self, call: Call[Given]) -> Promoted:
        """Answers when the log is open in its new role, or says why it is not."""
        body: Forced = call.body
        try:
            turned = await self._replication.promote(force=body.force)
        except Failure as failure:
            raise Refused(Reason.DIFFERENT, failure.text) from failure
        audit.note("broker promoted", forced=body.force, by=call.caller)
        try:
            return msgspec.convert(await turned, Promoted)
        except Failure as failure:
            raise Refused(Reason.READ_ONLY, f"the promotion failed: {failure.text}") from failure

    async def _follow(self, call: Call[Given]) -> GivenUp:
        body: Forced = call.body
        try:
            given_up = self._replication.follow(force=body.force)
        except Failure as failure:
            raise Refused(Reason.DIFFERENT, failure.text) from failure
        audit.note("part of the log given up", messages=given_up["messages"], by=call.caller)
        return msgspec.convert(given_up, GivenUp)
