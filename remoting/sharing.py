"""Which queues of a topic are whose: every member of a group computes the same. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from polymq.remoting.group_bodies import MessageQueue


def share_evenly(
    members: Sequence[str], member: str, queues: Sequence[MessageQueue]
) -> list[MessageQueue]:
    """RocketMQ's default: queues in order, cut into pieces that differ by one at most; the first
    members get the larger ones. None for who is no member.

    Members and queues are sorted here, so that all who know the same get the same.
    """
    ordered, pieces = sorted(queues), sorted(set(members))
    if member not in pieces:
        return []
    index = pieces.index(member)
    size, more = divmod(len(ordered), len(pieces))
    start = index * size + min(index, more)
    return ordered[start : start + size + (index < more)]
