"""Who asks, and what they may do here.

Rules:

* Callers are the broker's users, with HTTP Basic, as in RabbitMQ.
* What they may see follows from their rights and roles (`tags.py`): their `Rank`. What they change
  goes through their own port, so their permissions decide, as they do in AMQP. Who has the right
  `operate` may also purge and delete queues, and close connections, of others.
* While there are no users, whoever reaches the listener on loopback is an administrator. Another
  listener lets nobody in then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from polymq.admin.access import basic_login, logged_in
from polymq.broker.accounts.permissions import EVERYTHING, Action, RuleSet
from polymq.broker.engine import Engine
from polymq.broker.errors import Reason, Refused
from polymq.broker.exchanges.entities import NamedQueue
from polymq.broker.port import BrokerPort
from polymq.management.errors import LOGIN_FAILED, NOT_AUTHORIZED, Problem
from polymq.management.tags import (
    ADMINISTRATOR,
    MANAGEMENT,
    MANAGEMENT_ROLES,
    MONITORING,
    POLICYMAKER,
    tags_of,
)

GUEST: Final = "guest"


class Rank(IntEnum):
    """What a caller may see and do. Each includes those before it."""

    MANAGEMENT = 1
    """To see and change what its permissions allow."""
    MONITORING = 2
    """To see everything but users and permissions: the right `monitor`."""
    OPERATING = 3
    """To act on queues and connections of others: the right `operate`."""
    ADMINISTRATOR = 4
    """Users, permissions and definitions: the right `admin`."""


_RIGHTS: Final = (
    (Rank.ADMINISTRATOR, Action.ADMIN),
    (Rank.OPERATING, Action.OPERATE),
    (Rank.MONITORING, Action.MONITOR),
)
_TAGS: Final = {
    Rank.ADMINISTRATOR: [ADMINISTRATOR],
    Rank.OPERATING: [MONITORING, POLICYMAKER],
    Rank.MONITORING: [MONITORING],
    Rank.MANAGEMENT: [MANAGEMENT],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who asks.

    Attributes:
        port: what it may do as a client.
        rules: its permissions; None while there are no users.
        tags: RabbitMQ's.
    """

    name: str
    rank: Rank
    port: BrokerPort
    rules: RuleSet | None
    tags: Sequence[str]

    @property
    def sees_all(self) -> bool:
        """Whether nothing is hidden from it."""
        return self.rank >= Rank.MONITORING

    @property
    def operates(self) -> bool:
        """Whether it may act on what is others'."""
        return self.rank >= Rank.OPERATING

    def need(self, rank: Rank) -> None:
        """Raises Problem: its rank is lower."""
        if self.rank < rank:
            raise Problem(NOT_AUTHORIZED, f"Not {_TAGS[rank][0]} user")

    def may_know(self, topic: str) -> bool:
        """Whether it may know that a topic, an exchange or a queue of this name is there."""
        return self.sees_all or self.rules is None or self.rules.speaks_of(topic)

    def may_see(self, engine: Engine, queue: NamedQueue) -> bool:
        """Whether it may know of a queue: it declared it, may publish to it or read all that it
        collects."""
        if self.rules is None or self.may_know(queue.name):
            return True
        if queue.terms.maker and queue.terms.maker == self.port.principal.as_owner:
            return True
        filters = engine.exchanges.collected(queue.name)
        decide, read = self.rules.decide_filter, Action.SUBSCRIBE
        return bool(filters) and all(decide(read, address).allowed for address in filters)


class Callers:
    """Lets requests in, or says why not.

    Args:
        is_local: the listener is on loopback.
    """

    def __init__(self, engine: Engine, *, is_local: bool) -> None:
        self._engine = engine
        self.is_local = is_local

    @property
    def is_open(self) -> bool:
        """Whether everybody is an administrator: there are no users."""
        return self.is_local and not self._engine.users.closed

    async def caller(self, authorization: str, address: str) -> Caller:
        """Who asks. Raises Problem, Refused.

        Args:
            authorization: the header; empty if there is none.
            address: the client's without its port.
        """
        if self.is_open:
            name = basic_login(authorization)[0] or GUEST
            tags, rank = [ADMINISTRATOR], Rank.ADMINISTRATOR
            return Caller(name=name, rank=rank, port=self._engine.port, rules=None, tags=tags)
        if not self._engine.users.closed:
            raise Problem(
                NOT_AUTHORIZED,
                "this listener lets nobody in before there is a user: `polymq user add NAME` on "
                "the server's machine makes one",
            )
        user, password = basic_login(authorization)
        if not user:
            raise Problem(NOT_AUTHORIZED, LOGIN_FAILED)
        principal = await self._principal(user, password, address)
        port = self._engine.port.admission.for_principal(principal)
        return self._ranked(principal, port)

    def _ranked(self, principal: str, port: BrokerPort) -> Caller:
        user = self._engine.users.users.get(principal)
        roles = () if user is None else user.roles
        rules = self._engine.admission.rules_of(principal)
        for rank, right in _RIGHTS:
            if rules.decide_filter(right, EVERYTHING).allowed:
                tags = list(dict.fromkeys([*_TAGS[rank], *tags_of(roles)]))
                return Caller(name=principal, rank=rank, port=port, rules=rules, tags=tags)
        if MANAGEMENT_ROLES.intersection(roles):
            rank, tags = Rank.MANAGEMENT, tags_of(roles)
            return Caller(name=principal, rank=rank, port=port, rules=rules, tags=tags)
        raise Problem(
            NOT_AUTHORIZED,
            "Not management user: give the user the role management, reader, operator or admin",
        )

    async def _principal(self, user: str, password: bytes | None, address: str) -> str:
        try:
            return await logged_in(self._engine.port, user, password, address)
        except Refused as error:
            if error.reason is Reason.NOT_AUTHENTICATED:
                raise Problem(NOT_AUTHORIZED, LOGIN_FAILED) from None
            raise
