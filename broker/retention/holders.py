"""What a group is called by people: the name of its queue, of the client whose session
it is, or of a shared subscription.

Slow on purpose: nothing is kept for it, and it is asked when an operator wants to know.
"""

from __future__ import annotations

from polymq.broker.exchanges.exchanges import Exchanges
from polymq.broker.port.values import share_name_of
from polymq.broker.queues.queue import Group
from polymq.broker.sessions.flights import SessionGroup
from polymq.broker.sessions.shares import ShareGroup
from polymq.core_log.kernels.layout import ENTRY_SIZE


def is_ours(group: Group) -> bool:
    """Whether the broker itself keeps messages there until their time: in a topic's own queue."""
    return bool(group.number) and group.queue.index.entry_size == ENTRY_SIZE


def name_of(group: Group, exchanges: Exchanges) -> tuple[str, str]:
    """Kind (`queue`, `session`, `share`, `system`, `group`) and name."""
    if is_ours(group):
        return "system", "delayed and half messages"
    for name, found in exchanges.queues.items():
        if group in found.group.all_groups():
            return "queue", name
    if isinstance(group, ShareGroup):
        return "share", share_name_of(group.address)
    if isinstance(group, SessionGroup) and group.session is not None:
        return "session", group.session.client_id
    return "group", str(group.number)
