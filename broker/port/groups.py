"""RocketMQ's consumer groups.

Who is in a group at the moment, which queues each member has and which are locked is the gateway's
to know: it ends with the connections.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from polymq.broker.port.values import Position


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
    """The operations on consumer groups."""

    def info(self, name: str) -> GroupInfo | None:
        """One consumer group."""

    def infos(self) -> Sequence[GroupInfo]:
        """All consumer groups that the principal may be a member of."""

    def put(self, name: str, settings: Mapping[str, Any]) -> Position:
        """Make a group, or set it anew. Raises Refused: LIMIT, FORBIDDEN (a new group needs the
        right to create its retry topic)."""

    def delete(self, name: str) -> Position:
        """Delete a group with its offsets. Raises Refused: NOT_FOUND."""

    def is_paused(self, name: str, topic: str) -> bool:
        """Whether an operator wants the group to have nothing more of the topic."""

    def offset(self, name: str, topic: str, queue_id: int) -> int | None:
        """The offset that the group committed last; None for none in this topic."""

    def offsets(self, name: str) -> Mapping[tuple[str, int], int]:
        """All offsets of a group, by topic and queue id."""

    def commit(self, name: str, topic: str, queue_id: int, offset: int) -> None:
        """Where the group goes on. Kept within the next moments: a crash before repeats messages.

        Raises:
            Refused: NOT_FOUND (group, topic or queue id), BAD_ARGUMENT (a negative offset).
        """
