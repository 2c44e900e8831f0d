"""What members of a consumer group give back, stored in the name of who gives it back.

A group's retry topic and its dead-letter topic are closed to everybody, so that nobody forges a
retry for others. The server itself puts into them what a member of the group gives back, or a
member's own library sends there: for who has the right to the group, and at that user's rates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from polymq.broker.access.permissions import DEAD_LETTER_PREFIX, RETRY_PREFIX, Action
from polymq.broker.access.permitted import Permitted
from polymq.broker.port import Words

if TYPE_CHECKING:
    from polymq.broker.access.admission import Admission
    from polymq.broker.engine import Engine


class PermittedReturns(Permitted):
    """See `RocketmqPort.for_group`.

    Args:
        group: the right to it is asked for at each operation, as all rights are.
    """

    __slots__ = ("_group", "_places")

    def __init__(self, *, engine: Engine, admission: Admission, principal: str, group: str) -> None:
        super().__init__(engine=engine, admission=admission, principal=principal, client_id=None)
        self._group = group
        self._places = {RETRY_PREFIX + group, DEAD_LETTER_PREFIX + group}

    def _check(self, action: Action, words: Words) -> None:
        if action in (Action.PUBLISH, Action.CREATE) and words[0] in self._places:
            self.check_group(self._group)
        else:
            super()._check(action, words)
