"""What a group is called by people: the name of its queue, or of the client whose session it is.

Slow on purpose: nothing is kept for it, and it is asked when an operator wants to know.
"""

from __future__ import annotations

from broker.exchanges import Exchanges
from broker.queues import Group
from broker.sessions import Sessions


def name_of(group: Group, exchanges: Exchanges, sessions: Sessions) -> tuple[str, str]:
    """Kind (`queue`, `session`, `group`) and name."""
    for name, found in exchanges.queues.items():
        if group in found.group.all_groups():
            return "queue", name
    for client_id, session in sessions.by_client.items():
        for subscription in session.subscriptions.values():
            if subscription.group is group:
                return "session", client_id
    return "group", str(group.number)
