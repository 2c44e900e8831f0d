"""Exclusive subscriptions: a filter that one session at a time may hold as its own.

A session asks for it with the subscription. While it has that, no other session may hold the same
filter exclusively; those that subscribe to it without that are not affected. That a subscription is
exclusive is one of its options, so it is in the log with them, and who holds what follows from the
sessions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

from polymq.broker.errors import Reason, Refused
from polymq.broker.port.values import Address

S = TypeVar("S")
"""A session."""


class ExclusiveFilters(Generic[S]):
    """Which session holds which filter. No more than there are subscriptions."""

    def __init__(self) -> None:
        self._holders: dict[Address, S] = {}
        self._held: dict[S, set[Address]] = {}

    def check(self, session: S, address: Address) -> None:
        """Whether the session may hold the filter. Raises Refused: LIMIT: another one does."""
        holder = self._holders.get(address)
        if holder is not None and holder is not session:
            raise Refused(Reason.LIMIT, "another session has this exclusive subscription")

    def changed(self, session: S, address: Address, *, exclusive: bool) -> None:
        """A subscription has come, or has other options."""
        if exclusive:
            self._holders[address] = session
            self._held.setdefault(session, set()).add(address)
        else:
            self.ended(session, (address,))

    def ended(self, session: S, addresses: Iterable[Address]) -> None:
        """The session has these subscriptions no more."""
        held = self._held.get(session)
        if held is None:
            return
        for address in addresses:
            if address in held:
                held.discard(address)
                del self._holders[address]
        if not held:
            del self._held[session]
