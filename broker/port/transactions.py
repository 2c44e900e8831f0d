"""Transactions: atomic batches, and RocketMQ's half messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from polymq.broker.errors import Refused
from polymq.broker.port.publishing import Publishing, Template
from polymq.broker.port.queues import QueueConsumer, Settlement
from polymq.broker.port.values import Position
from polymq.core_log.kernels.batch import Batch


class Prepared(NamedTuple):
    """A half message that was stored.

    Attributes:
        offset: in the queue of half messages; with `record_position` its name.
        record_position: the byte position of its record in the log.
        position: what the answer to the producer waits for (flushed).
    """

    offset: int
    record_position: int
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfMessage:
    """A half message whose producer has to be asked.

    Attributes:
        offset, record_position: as in `Prepared`.
        check_count: how often it was asked for, this time included.
        topic, tag, body, properties, born_ms, flag, system_flag: of the message, as it was
            prepared.
        owner: the user who prepared it (`PrincipalPort.as_owner`); empty if the broker had no
            users.
    """

    offset: int
    record_position: int
    check_count: int
    topic: str
    tag: str | None
    body: bytes
    properties: Mapping[str, str]
    born_ms: int
    flag: int = 0
    system_flag: int = 0
    owner: str = ""


class TransactionPort(Protocol):
    """Several changes in one."""

    def commit(
        self, publishes: Sequence[Publishing], settlements: Sequence[Settlement]
    ) -> Position:
        """Store all of the publishes and settle all of the settlements, or nothing: also after a
        crash. Templates that are not valid any more have to be built again before.

        Raises:
            Refused: as `BrokerPort.publish`; TOO_LARGE also for a batch of more than 65,535
                records, or of more bytes than a segment has; LIMIT also for several messages that
                go to too many queues (`Limits.batch_targets_max`).
        """

    def publish_settling(
        self,
        template: Template,
        batch: Batch,
        row: int,
        consumer: QueueConsumer,
        offset: int,
        *,
        position: int = 0,
    ) -> Position:
        """One message that replaces another (dead letter): stored together with the settlement of
        `offset` in the consumer's queue, so that a crash keeps exactly one of the two.

        Args:
            position: of the message that is replaced; 0: that is not known.
        """


class HalfMessagePort(Protocol):
    """The operations on half messages."""

    def prepare(
        self, template: Template, batch: Batch, row: int, *, check_after_ms: int = 0
    ) -> Prepared:
        """Store one message that nobody sees before it is committed.

        Args:
            check_after_ms: when its producer is asked for the first time; 0 for the usual time.

        Raises:
            Refused: as `BrokerPort.publish`; LIMIT for too many that wait.
        """

    def end(
        self,
        offset: int,
        record_position: int,
        *,
        producer: str,
        commit: bool,
        callback: Callable[[int | Refused], None],
    ) -> None:
        """Commit a half message, which publishes it to its topic, or roll it back.

        The first decision counts, also after a restart: the same one again is answered in the same
        way, the other one is refused. `callback(position)` says what the answer waits for, and
        comes when as many replicas have the message as its topic asks for; `callback(refused)`:
        NOT_FOUND (no such half message, or its topic is gone), FORBIDDEN (another producer's or
        another user's, or the right to publish is gone), DIFFERENT (it was ended otherwise), or
        what `BrokerPort.publish` refuses, and then it waits on.

        Args:
            producer: the producer group; it has to be the message's property `PGROUP`.
        """

    def may_end(self, owner: str) -> bool:
        """Whether half messages of this owner may be ended, and so be shown."""

    def when_unresolved(self, callback: Callable[[HalfMessage], None]) -> None:
        """Call back for a half message that was not ended in time, to ask its producer: again
        and again, until it is ended or was asked for too often. One callback for the engine."""
