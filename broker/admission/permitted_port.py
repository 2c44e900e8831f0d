"""The port of a principal whose rights are checked. See `permitted.py` for the rules.

A gateway gets one of these when a client has logged in (`AdmissionPort.for_principal`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from polymq.broker.admission.permitted import Permitted
from polymq.broker.admission.permitted_amqp import PermittedExchanges, PermittedQueues
from polymq.broker.admission.permitted_publishing import (
    PermittedDelays,
    PermittedHalfMessages,
    PermittedTopics,
    PermittedTransactions,
)
from polymq.broker.admission.permitted_reading import PermittedGroups, PermittedQueries
from polymq.broker.admission.permitted_sessions import PermittedSessions
from polymq.broker.admission.principal import Principal
from polymq.broker.durability import Durability
from polymq.broker.port.documents import DocumentPort
from polymq.broker.port.principals import AdmissionPort
from polymq.broker.port.publishing import Template
from polymq.broker.port.storage import StoragePort
from polymq.broker.port.values import Position
from polymq.core_log.kernels.batch import Batch

if TYPE_CHECKING:
    from polymq.broker.open_port import OpenPort


class PermittedPort(Permitted):
    """`port.BrokerPort` for one principal. There may be one for each connection, so it is small."""

    __slots__ = ("__weakref__", "committed", "when_committed")

    def __init__(self, parts: OpenPort, principal: Principal) -> None:
        super().__init__(parts, principal)
        self.when_committed = parts.when_committed
        self.committed = parts.committed

    def publish(self, template: Template, batch: Batch, first: int, last: int, /) -> Position:
        """See `port.Publish`."""
        inner = self._allowed(template)
        if not self._principal.pace.limited:
            return self._parts.publish(inner, batch, first, last)
        before = self._parts.storage.log.appended
        position = self._parts.publish(inner, batch, first, last)
        self._spent(last - first, before)
        return position

    def overloaded(self, resume: Callable[[], None]) -> bool:
        """See `BrokerPort.overloaded`: here also while the user is ahead of its rates."""
        principal = self._principal
        principal.refresh()
        if principal.pace.limited:
            seconds = principal.pace.pause_seconds(principal.now())
            if seconds > 0:
                self._parts.storage.scheduler.call_later(seconds, resume)
                return True
        return self._parts.overloaded(resume)

    @property
    def state_durability(self) -> Durability:
        """See `BrokerPort.state_durability`."""
        return self._parts.state_durability

    @property
    def principal(self) -> Principal:
        """See `BrokerPort.principal`."""
        return self._principal

    # --- checked ----------------------------------------------------------------------------

    @property
    def topics(self) -> PermittedTopics:
        """See `BrokerPort.topics`."""
        return PermittedTopics(self._parts, self._principal)

    @property
    def exchanges(self) -> PermittedExchanges:
        """See `BrokerPort.exchanges`."""
        return PermittedExchanges(self._parts, self._principal)

    @property
    def queues(self) -> PermittedQueues:
        """See `BrokerPort.queues`."""
        return PermittedQueues(self._parts, self._principal)

    @property
    def sessions(self) -> PermittedSessions:
        """See `BrokerPort.sessions`."""
        return PermittedSessions(self._parts, self._principal)

    @property
    def delays(self) -> PermittedDelays:
        """See `BrokerPort.delays`."""
        return PermittedDelays(self._parts, self._principal)

    @property
    def transactions(self) -> PermittedTransactions:
        """See `BrokerPort.transactions`."""
        return PermittedTransactions(self._parts, self._principal)

    @property
    def half_messages(self) -> PermittedHalfMessages:
        """See `BrokerPort.half_messages`."""
        return PermittedHalfMessages(self._parts, self._principal)

    @property
    def queries(self) -> PermittedQueries:
        """See `BrokerPort.queries`."""
        return PermittedQueries(self._parts, self._principal)

    @property
    def groups(self) -> PermittedGroups:
        """See `BrokerPort.groups`."""
        return PermittedGroups(self._parts, self._principal)

    # --- handed on by choice ----------------------------------------------------------------

    @property
    def documents(self) -> DocumentPort:
        """See `BrokerPort.documents`: the gateway's own, which it shows to whom it may."""
        return self._parts.documents

    @property
    def storage(self) -> StoragePort:
        """See `BrokerPort.storage`."""
        return self._parts.storage

    @property
    def admission(self) -> AdmissionPort:
        """See `BrokerPort.admission`."""
        return self._parts.admission
