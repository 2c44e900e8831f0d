"""The part of the port that is for RocketMQ's consumer groups: settings and committed offsets.

See `port.py`, of which it is a part. Who is in a group at the moment, which queues each member has
and which are locked is the gateway's to know: it ends with the connections.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from broker.port import Position


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupInfo:
    """A consumer group.

    Attributes:
        settings: RocketMQ's `SubscriptionGroupConfig` by its JSON names; what is left out has
            RocketMQ's default.
    """

    name: str
    settings: Mapping[str, Any]


class GroupPort(Protocol):
    """The operations."""

    def group(self, name: str) -> GroupInfo | None:
        """One consumer group."""

    def groups(self) -> Sequence[GroupInfo]:
        """All consumer groups."""

    def put_group(self, name: str, settings: Mapping[str, Any]) -> Position:
        """Make a group, or set it anew. Raises Refused: LIMIT."""

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
