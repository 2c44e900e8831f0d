"""Whose port it is: `port.PrincipalPort`, of a broker without users and of one with users."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from polymq.broker.accounts.granting import GrantedPrincipal
from polymq.broker.accounts.permissions import (
    DEAD_LETTER_PREFIX,
    MANAGING,
    RETRY_PREFIX,
    Action,
    Decision,
    group_address,
)
from polymq.broker.admission.asking import Asker
from polymq.broker.admission.rights import Rights, RightsSource
from polymq.broker.errors import Refused
from polymq.broker.port.broker import BrokerPort
from polymq.broker.port.principals import Managing
from polymq.broker.port.publishing import Route
from polymq.broker.port.values import REST, Address
from polymq.broker.routing.trie import address_of

if TYPE_CHECKING:
    from polymq.broker.open_port import OpenPort


class Entrance(RightsSource, Protocol):
    """Where principals come in. Implemented by `Admission`."""

    port: OpenPort
    """What is behind the checks."""

    def enter(
        self,
        principal: str | None,
        expelled: Callable[[str], None],
        access_key: str | None,
        address: str,
    ) -> Callable[[], None]:
        """See `PrincipalPort.enter`. None: it came in while the broker was open."""

    def for_group(self, principal: str, group: str) -> BrokerPort:
        """See `PrincipalPort.for_group`."""


class Anybody:
    """Who came in while the broker had no users, and may do everything."""

    as_owner = ""
    """See `PrincipalPort.as_owner`: what it leaves behind belongs to nobody."""

    asks = False
    """See `PrincipalPort.asks`."""

    def __init__(self, admission: Entrance) -> None:
        self._entrance = admission

    def enter(
        self,
        expelled: Callable[[str], None],
        *,
        access_key: str | None = None,
        address: str = "",
    ) -> Callable[[], None]:
        """See `PrincipalPort.enter`."""
        return self._entrance.enter(None, expelled, access_key, address)

    def check_publish(self, topic: str, tag: str | None, *, every_tag: bool = False) -> None:
        """See `PrincipalPort.check_publish`."""

    def check_read(self, address: Address) -> None:
        """See `PrincipalPort.check_read`."""

    def check_known(self, topic: str) -> None:
        """See `PrincipalPort.check_known`."""

    def check_admin(self, address: Address) -> None:
        """See `PrincipalPort.check_admin`."""

    def check_managing(self, least: Managing) -> None:
        """See `PrincipalPort.check_managing`."""

    def may_manage(self, least: Managing) -> bool:
        """See `PrincipalPort.may_manage`."""
        return True

    def check_admitted(self) -> None:
        """See `PrincipalPort.check_admitted`."""

    def check_group(self, name: str) -> None:
        """See `PrincipalPort.check_group`."""

    def wanted_read(self, address: Address) -> object | None:
        """See `PrincipalPort.wanted_read`."""
        return None

    def wanted_publish(self, topic: str, tag: str | None) -> object | None:
        """See `PrincipalPort.wanted_publish`."""
        return None

    def ask(self, wanted: Iterable[Any], answered: Callable[[Any], None]) -> Callable[[], None]:
        """See `PrincipalPort.ask`."""
        answered(None)
        return _nothing

    def know(self, answers: Any) -> Any:
        """See `PrincipalPort.know`."""
        return None

    @property
    def lasting(self) -> Anybody:
        """See `PrincipalPort.lasting`."""
        return self

    def for_group(self, name: str) -> BrokerPort:
        """See `PrincipalPort.for_group`."""
        return self._entrance.port


class Principal(Rights):
    """A principal of a broker with users, and its rights.

    Args:
        parts: what is behind the checks.
        client_id: of an MQTT connection, for rules that name it.
        asker: asks a service about what no rule speaks of; None: that is refused.
    """

    __slots__ = ("_parts",)

    _admission: Entrance

    def __init__(
        self,
        *,
        parts: OpenPort,
        admission: Entrance,
        name: str,
        client_id: str | None = None,
        asker: Asker | None = None,
    ) -> None:
        super().__init__(
            admission=admission,
            clock_ms=parts.storage.clock_ms,
            name=name,
            client_id=client_id,
            asker=asker,
        )
        self._parts = parts

    @property
    def as_owner(self) -> str:
        """See `PrincipalPort.as_owner`."""
        return self._parts.owners.of(self.name)

    def enter(
        self,
        expelled: Callable[[str], None],
        *,
        access_key: str | None = None,
        address: str = "",
    ) -> Callable[[], None]:
        """See `PrincipalPort.enter`."""
        return self._admission.enter(self.name, expelled, access_key, address)

    def check_publish(self, topic: str, tag: str | None, *, every_tag: bool = False) -> None:
        """See `PrincipalPort.check_publish`."""
        if every_tag:
            self.check_filter((topic, REST), Action.PUBLISH)
            return
        address = address_of(topic, tag)
        self.check(Action.PUBLISH, address)
        if not self._parts.exchanges.is_made(topic):
            self.check(Action.CREATE, address)

    def check_read(self, address: Address) -> None:
        """See `PrincipalPort.check_read`."""
        self.check_filter(address)

    def check_known(self, topic: str) -> None:
        """See `PrincipalPort.check_known`."""
        if not self.may_know(topic):
            self.check_filter((topic, REST))

    def check_admin(self, address: Address) -> None:
        """See `PrincipalPort.check_admin`."""
        self.check_filter(address, Action.ADMIN)

    def check_managing(self, least: Managing) -> None:
        """See `PrincipalPort.check_managing`."""
        if not self.may_manage(least):
            self.check_filter((REST,), Action(least))

    def may_manage(self, least: Managing) -> bool:
        """See `PrincipalPort.may_manage`."""
        enough = MANAGING[MANAGING.index(Action(least)) :]
        return any(self.decide_all(one, (REST,)).allowed for one in enough)

    def check_group(self, name: str) -> None:
        """See `PrincipalPort.check_group`."""
        self.check_filter(group_address(name))

    def for_group(self, name: str) -> BrokerPort:
        """See `PrincipalPort.for_group`."""
        self.check_group(name)
        return self._admission.for_group(self.name, name)

    @property
    def lasting(self) -> Principal:
        """See `PrincipalPort.lasting`."""
        if not isinstance(self.name, GrantedPrincipal):
            return self
        return _Lasting(
            parts=self._parts,
            admission=self._admission,
            name=str(self.name),
            client_id=self._client_id,
        )

    # --- a service that is asked --------------------------------------------------------------

    @property
    def asks(self) -> bool:
        """See `PrincipalPort.asks`."""
        return self._asker is not None

    @property
    def asker(self) -> Asker | None:
        """What asks for it, if a service is asked."""
        return self._asker

    def wanted_read(self, address: Address) -> object | None:
        """See `PrincipalPort.wanted_read`."""
        if self._asker is None or not self.decide_read(address).is_open:
            return None
        return self._asker.wanted(Action.SUBSCRIBE, address)

    def wanted_publish(self, topic: str, tag: str | None) -> object | None:
        """See `PrincipalPort.wanted_publish`."""
        address = address_of(topic, tag)
        if self._asker is None:
            return None
        decision = self.decide(Action.PUBLISH, address)
        if decision.allowed and not self._parts.exchanges.is_made(topic):
            decision = self.decide(Action.CREATE, address)
        return self._asker.wanted(Action.PUBLISH, address) if decision.is_open else None

    def ask(self, wanted: Iterable[Any], answered: Callable[[Any], None]) -> Callable[[], None]:
        """See `PrincipalPort.ask`."""
        assert self._asker is not None
        return self._asker.ask(wanted, answered)

    def know(self, answers: Any) -> Any:
        """See `PrincipalPort.know`."""
        return None if self._asker is None else self._asker.know(answers)

    # --- half messages: `half_messages.Decider` ---------------------------------------------

    def may_end(self, owner: str) -> bool:
        """Whether it may decide about half messages of this owner: its own, or as an
        administrator."""
        return owner == self.as_owner or self.is_admin()

    def check_commit(self, route: Route) -> None:
        """Whether it may publish there. Raises Refused: FORBIDDEN."""
        self.check(Action.PUBLISH, address_of(route.topic, route.tag))


class _Lasting(Principal):
    """See `Principal.lasting`."""

    __slots__ = ()

    def _require(self, action: Action, address: Address, decision: Decision) -> float:
        try:
            return super()._require(action, address, decision)
        except Refused as error:
            text = f"{error.text} when its client has gone: that needs a user and rules stored here"
            raise Refused(error.reason, text) from None


class GroupMember(Principal):
    """A member of a consumer group, for what it gives back (`PrincipalPort.for_group`).

    A group's retry topic and its dead-letter topic are closed to everybody, so that nobody forges a
    retry for others. The server itself puts into them what a member of the group gives back, or a
    member's own library sends there: for who has the right to the group, and at that user's rates.

    Args:
        group: the right to it is asked for at each operation, as all rights are.
    """

    __slots__ = ("_group", "_topics")

    def __init__(self, *, parts: OpenPort, admission: Entrance, name: str, group: str) -> None:
        super().__init__(parts=parts, admission=admission, name=name)
        self._group = group
        self._topics = {RETRY_PREFIX + group, DEAD_LETTER_PREFIX + group}

    def check(self, action: Action, address: Address) -> float:
        """About one place. Raises Refused: FORBIDDEN."""
        if action in (Action.PUBLISH, Action.CREATE) and address[0] in self._topics:
            return self.check_filter(group_address(self._group))
        return super().check(action, address)


def _nothing() -> None:
    """Nobody was asked."""
