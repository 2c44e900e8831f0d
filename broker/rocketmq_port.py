"""The part of the port that is for RocketMQ: where messages were stored, and consumer groups.

See `port.py`, of which it is a part. Reading by offset stands there: Spark needs it as well. Who
is in a group at the moment, which queues each member has and which are locked is the gateway's to
know: it ends with the connections.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from polymq.core_log.kernels.batch import Batch

if TYPE_CHECKING:
    from polymq.broker.port import BrokerPort, Position, Template


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupInfo:
    """A consumer group.

    Attributes:
        settings: RocketMQ's `SubscriptionGroupConfig` by its JSON names; what is left out has
            RocketMQ's default.
    """

    name: str
    settings: Mapping[str, Any]


class Placed(NamedTuple):
    """Where a run of messages was stored.

    Attributes:
        position: what the ack waits for, with the template's durability.
        offset: of the first in the topic's own queue; the others follow.
        places: the byte position of each record.
    """

    position: Position
    offset: int
    places: tuple[int, ...]


class RocketmqPort(Protocol):
    """The operations."""

    @property
    def store_host(self) -> bytes:
        """Address and port that records have as their store host, 8 bytes: message ids begin with
        it."""

    def publish_placed(
        self, template: Template, batch: Batch, first: int, last: int, *, born_ms: int
    ) -> Placed:
        """As `BrokerPort.publish`, and says where the messages are.

        Args:
            born_ms: when their sender made them.
        """

    def when_grown(self, topic: str, queue_id: int, callback: Callable[[], None]) -> None:
        """Call back once when readers by offset see more of the queue than now: for pulls that
        wait at its end. Never, if the topic is deleted.

        Raises:
            Refused: NOT_FOUND (topic or queue id).
        """

    def when_rights_change(self, callback: Callable[[Callable[[str], bool]], None]) -> None:
        """Call back after users or rules have changed, with a function that says whether the
        change may be one for a principal. For what a gateway keeps that needs a right to stay."""

    def check_group(self, name: str) -> None:
        """Whether the principal may be a member of a consumer group, which is to subscribe to all
        of the group's retry topic. Raises Refused: FORBIDDEN."""

    def for_group(self, name: str) -> BrokerPort:
        """The engine, as the server uses it for what a member of the group gives back: it may
        also make and publish to the group's retry topic and its dead-letter topic, which are
        closed to everybody. Raises Refused: FORBIDDEN, as `check_group`."""

    def group(self, name: str) -> GroupInfo | None:
        """One consumer group."""

    def groups(self) -> Sequence[GroupInfo]:
        """All consumer groups that the principal may be a member of."""

    def put_group(self, name: str, settings: Mapping[str, Any]) -> Position:
        """Make a group, or set it anew. Raises Refused: LIMIT, FORBIDDEN (a new group needs the
        right to create its retry topic)."""

    def delete_group(self, name: str) -> Position:
        """Delete a group with its offsets. Raises Refused: NOT_FOUND."""

    def group_offset(self, name: str, topic: str, queue_id: int) -> int | None:
        """The offset that the group committed last; None for none in this topic."""

    def group_offsets(self, name: str) -> Mapping[tuple[str, int], int]:
        """All offsets of a group, by topic and queue id."""

    def commit_group_offset(self, name: str, topic: str, queue_id: int, offset: int) -> None:
        """Where the group goes on. Kept within the next moments: a crash before repeats messages.

        Raises:
            Refused: NOT_FOUND (group, topic or queue id), BAD_ARGUMENT (a negative offset).
        """
