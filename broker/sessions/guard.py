"""What a session asks about the rights of its client.

Sessions know no users. A session whose client may do everything has no guard.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from polymq.broker.port.sessions import Will
from polymq.broker.port.values import Address

if TYPE_CHECKING:
    from polymq.broker.sessions.session import MqttSession


class Guard(Protocol):
    """Whose rights a session's subscriptions need (`admission/permitted_sessions.py`)."""

    def may_read(self, address: Address) -> bool:
        """Whether everything that the filter matches may be read."""

    def find_rights(self, session: MqttSession, found: Callable[[], None]) -> None:
        """The session is resumed: find out what it may have of its subscriptions, and call `found`,
        maybe in this call. Where nobody says it, the connection ends instead."""

    def testator(self, will: Will) -> str:
        """In whose name its client's will is published. Raises Refused: FORBIDDEN."""

    def left(self) -> None:
        """The connection has ended."""

    def check_subscribe(self, session: MqttSession, address: Address) -> None:
        """Before it subscribes. Raises Refused: FORBIDDEN, LIMIT."""

    def end_forbidden(self, session: MqttSession, address: Address) -> bool:
        """End a subscription that is not allowed any more. Returns whether it was one. Raises
        Refused: the log takes nothing."""
