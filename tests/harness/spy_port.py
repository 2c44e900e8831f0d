"""What the spies of the gateways' tests share: a `BrokerPort` whose operations a test writes.

A spy is one class for all parts of the port, because its operations share what they recorded.
`@operation("topics.info")` says which operation of which part a method stands for; a name that the
port does not have is an error when the class is made, so no spy answers what nobody asks any more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, TypeVar

from polymq.broker.port import (
    Address,
    AdmissionPort,
    DelayPort,
    DocumentPort,
    Durability,
    ExchangePort,
    GroupPort,
    HalfMessagePort,
    PrincipalPort,
    QueryPort,
    QueuePort,
    Reason,
    Refused,
    SessionPort,
    StoragePort,
    TopicPort,
    TransactionPort,
)
from polymq.broker.port.principals import Managing

PARTS: Final[Mapping[str, type]] = {
    "topics": TopicPort,
    "exchanges": ExchangePort,
    "queues": QueuePort,
    "sessions": SessionPort,
    "delays": DelayPort,
    "transactions": TransactionPort,
    "half_messages": HalfMessagePort,
    "queries": QueryPort,
    "groups": GroupPort,
    "documents": DocumentPort,
    "storage": StoragePort,
    "admission": AdmissionPort,
    "principal": PrincipalPort,
}

Method = TypeVar("Method", bound=Callable[..., Any])


def operation(name: str) -> Callable[[Method], Method]:
    """The method is this operation of this part: `part.operation`."""
    part, _, operation_name = name.partition(".")
    assert operation_name in vars(PARTS[part]), f"the port has no {name}"

    def mark(method: Method) -> Method:
        method.__dict__["operation"] = name
        return method

    return mark


class SpyPart:
    """One part of a spy."""

    as_owner = ""
    """Of the part `principal`."""
    asks = False
    """Likewise."""

    def __init__(self, spy: SpyPort, name: str) -> None:
        self._spy = spy
        self._name = name

    @property
    def lasting(self) -> SpyPart:
        """Of the part `principal`."""
        return self

    def __getattr__(self, name: str) -> Any:
        method = self._spy.operations.get(f"{self._name}.{name}")
        if method is None:
            raise AttributeError(f"the spy has no {self._name}.{name}")
        return getattr(self._spy, method)


class SpyPort:
    """Lets everybody in, who may do everything. The rest is for the spy to say."""

    state_durability = Durability.FLUSHED
    operations: ClassVar[dict[str, str]] = {}
    """The method of each operation."""
    __slots__ = ()

    def __getattr__(self, name: str) -> SpyPart:
        if name not in PARTS:
            raise AttributeError(f"the spy has no {name}")
        return SpyPart(self, name)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.operations = {
            vars(method)["operation"]: name
            for part in reversed(cls.__mro__)
            for name, method in vars(part).items()
            if callable(method) and "operation" in getattr(method, "__dict__", {})
        }

    @operation("admission.authenticate")
    def authenticate(
        self,
        user: str | None,
        password: bytes | None,
        address: str,
        answer: Callable[[Any], None],
        origin: object = None,
    ) -> Callable[[], None]:
        answer(user or "anonymous")
        return _nothing

    @operation("admission.offers")
    def offers(self, method: str) -> bool:
        return False

    @operation("admission.certified")
    def certified(self, user: str, address: str) -> str:
        if user == "nobody":
            raise Refused(Reason.NOT_AUTHENTICATED, "no such user")
        return user

    @operation("admission.listener_principal")
    def listener_principal(self, user: str) -> str:
        return user or "anonymous"

    @operation("admission.for_principal")
    def for_principal(
        self, principal: str, client_id: str | None = None, *, asked_as: object = None
    ) -> SpyPort:
        return self

    @operation("admission.for_owner")
    def for_owner(self, owner: str) -> SpyPort:
        return self

    @operation("admission.when_rights_change")
    def when_rights_change(self, callback: Callable[..., None]) -> None:
        pass

    @operation("half_messages.when_unresolved")
    def when_unresolved(self, callback: Callable[..., None]) -> None:
        pass

    @operation("principal.enter")
    def enter(
        self,
        expelled: Callable[[str], None],
        *,
        access_key: str | None = None,
        address: str = "",
    ) -> Callable[[], None]:
        return _nothing

    @operation("principal.check_publish")
    def check_publish(self, topic: str, tag: str | None, *, every_tag: bool = False) -> None:
        pass

    @operation("principal.know")
    def know(self, answers: Any) -> Any:
        return None

    @operation("principal.check_read")
    def check_read(self, address: Address) -> None:
        pass

    @operation("principal.check_admin")
    def check_admin(self, address: Address) -> None:
        pass

    @operation("principal.check_managing")
    def check_managing(self, least: Managing) -> None:
        pass

    def may_manage(self, least: Managing) -> bool:
        """Everybody may."""
        return True

    @operation("principal.check_known")
    def check_known(self, topic: str) -> None:
        pass

    @operation("principal.check_admitted")
    def check_admitted(self) -> None:
        pass

    @operation("principal.check_group")
    def check_group(self, name: str) -> None:
        pass


def _nothing() -> None:
    """There is nothing to withdraw, and nothing to leave."""
