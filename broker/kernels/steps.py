"""Showing a run to very many in steps (`path.py` has the way of those for few).

It is plain Python in both forms of the kernels: a step is long beside what the calls cost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from polymq.broker.pacing.costs import LIVE_BYTES_SHIFT, LIVE_COST, QUEUE_COST, SHOWN_AT_ONCE

if TYPE_CHECKING:
    from polymq.broker.kernels.path import QueueEnd, Waiting


def release_part(run: Waiting, unflushed: set[QueueEnd]) -> bool:
    """`Waiting.release`, for as many as one step may cost, in order. Returns whether it is done."""
    if run.shown == 0 and run.groups is None and run.own:
        run.release_to_readers(unflushed)
    queues = len(run.queues)
    everybody = queues + len(run.live)
    each = LIVE_COST + (run.end - run.start >> LIVE_BYTES_SHIFT)
    room = SHOWN_AT_ONCE
    while room > 0 and run.shown < everybody:
        at = run.shown
        if at >= queues:
            run.shown = at + 1
            run.live[at - queues].offer(run)
            room -= each
        elif run.groups is None and (left := run.release_to_queues(room)) < room:
            room = left
        else:
            room -= _commit_to_groups(run, run.queues[at], room)
    if run.shown < everybody:
        return False
    if run.on_shown is not None:
        run.on_shown(run)
    return True


def _commit_to_groups(run: Waiting, queue: QueueEnd, room: int) -> int:
    """`QueueEnd.commit`, to as many groups of it as there is room for. Returns the cost."""
    if run.groups is None:
        run.groups = tuple(queue.groups)  # they may come and go between two steps
        run.inside = 0
        run.first = queue.visible
        queue.visible = run.first + run.count
    cost = QUEUE_COST
    while run.inside < len(run.groups) and cost < room:
        group = run.groups[run.inside]
        run.inside += 1
        if not group.has_left:
            cost += group.arrival_cost()
            group.arrived(run, run.first)
    if run.inside == len(run.groups):
        run.groups = None
        run.shown += 1
    return cost
