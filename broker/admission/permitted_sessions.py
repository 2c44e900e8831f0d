"""MQTT's sessions, as one principal may use them. See `permitted.py`."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from polymq.broker.accounts import audit
from polymq.broker.accounts.granting import publisher_of
from polymq.broker.accounts.permissions import Action, format_pattern
from polymq.broker.accounts.service_permissions import Said
from polymq.broker.admission.asking import Answers
from polymq.broker.admission.permitted import Permitted
from polymq.broker.errors import Reason, Refused
from polymq.broker.port.principals import RIGHTS_UNKNOWN
from polymq.broker.port.publishing import Template
from polymq.broker.port.sessions import Session, SessionLink, Will
from polymq.broker.port.values import Address, Position, pattern_of
from polymq.broker.routing.trie import address_of
from polymq.broker.sessions.session import MqttSession
from polymq.core_log.kernels.batch import Batch

if TYPE_CHECKING:
    from polymq.broker.admission.principal import Principal
    from polymq.broker.open_port import OpenPort

RESUMED_AT_ONCE: Final = 64
"""Subscriptions of a resumed session that are looked at in one step, some 30 us each."""
FORGOTTEN_MAX: Final = 64
"""Subscriptions that have ended, and whose right is remembered still."""


class PermittedSessions(Permitted):
    """`port.SessionPort` for one principal, and the guard of each session that it connects.

    What a service has allowed to be subscribed to stays allowed while the connection lasts, unless
    a rule denies it: so no delivery is checked, and none ends because the service is slow.
    """

    __slots__ = ("_by_service", "_take_back")

    def __init__(self, parts: OpenPort, principal: Principal) -> None:
        super().__init__(parts, principal)
        self._by_service: set[Address] = set()  # subscriptions that it has allowed
        self._take_back: Callable[[], None] | None = None  # what is asked for a resumed session

    def connect(
        self,
        client_id: str,
        *,
        clean: bool,
        expiry_seconds: int | None,
        link: SessionLink,
        principal: str,
        inflight_max: int | None = None,
        one_copy: bool = True,
    ) -> Session:
        """See `SessionPort.connect`. When the session is resumed, it loses the subscriptions that
        are not allowed any more (`end_forbidden`)."""
        user = self._principal.name
        sessions = self._parts.sessions
        quotas = self._principal.quotas
        existing = sessions.by_client.get(client_id)
        if expiry_seconds != 0 and (existing is None or existing.clean):
            count = sessions.counts.get(user, 0)
            self._principal.check_quota("sessions", count, quotas.sessions)
        if quotas.inflight is not None:
            inflight_max = min(quotas.inflight, inflight_max or quotas.inflight)
        try:
            session = sessions.connect(
                client_id,
                clean=clean,
                expiry_seconds=expiry_seconds,
                link=link,
                principal=user,
                inflight_max=inflight_max,
                one_copy=one_copy,
            )
        except Refused as error:
            if error.reason is Reason.FORBIDDEN:
                audit.warn(audit.REFUSED, user=user, what="session", client_id=client_id, rule="")
            raise
        session.guard = self
        return session

    def publish_once(
        self,
        template: Template,
        batch: Batch,
        first: int,
        last: int,
        session: Session,
        packet_ids: Sequence[int],
        *,
        delay_ms: int = 0,
    ) -> Position:
        """See `SessionPort.publish_once`."""
        inner = self._allowed(template)
        before = self._parts.storage.log.appended
        position = self._parts.sessions.publish_once(
            inner, batch, first, last, session, packet_ids, delay_ms=delay_ms
        )
        self._spent(last - first, before)
        return position

    # --- what a session asks: `session.Guard` -----------------------------------------------

    def may_read(self, address: Address) -> bool:
        """Whether everything that the filter matches may be read."""
        decision = self._principal.decide_read(pattern_of(address))
        return decision.allowed or (decision.is_open and address in self._by_service)

    def end_forbidden(self, session: MqttSession, address: Address) -> bool:
        """End a subscription that is not allowed any more, with all that waits for it or is in
        flight. Returns whether it was one. Raises Refused: the log takes nothing."""
        if address not in session.subscriptions or self.may_read(address):
            return False
        if self._principal.is_new("subscription", address):
            audit.warn(
                "subscription ended",
                user=self._principal.name,
                client_id=session.client_id,
                resource=format_pattern(pattern_of(address)),
            )
        self._parts.sessions.unsubscribe(session, address, forget=True)
        return True

    def check_subscribe(self, session: MqttSession, address: Address) -> None:
        """Before it subscribes. Raises Refused: FORBIDDEN, LIMIT."""
        principal = self._principal
        until = principal.check_filter(pattern_of(address))
        if address not in session.subscriptions:
            count = self._parts.sessions.subscription_counts.get(principal.name, 0)
            principal.check_quota("subscriptions", count, principal.quotas.subscriptions)
        if until == math.inf:
            self._by_service.discard(address)
        else:
            if len(self._by_service) > len(session.subscriptions) + FORGOTTEN_MAX:
                self._by_service.intersection_update(session.subscriptions)
            self._by_service.add(address)

    def testator(self, will: Will) -> str:
        """In whose name its client's will is published. What the service has allowed stays the
        will's right. Raises Refused: FORBIDDEN."""
        principal, address = self._principal, address_of(will.topic, will.tag)
        if principal.asker is None or principal.check(Action.PUBLISH, address) == math.inf:
            return principal.name
        return publisher_of(principal.name, address)

    def find_rights(self, session: MqttSession, found: Callable[[], None]) -> None:
        """Ask the service, where there is one, about the subscriptions that no rule speaks of; call
        `found`, unless the connection ends before that: because the client has gone, or because the
        service did not say it. Nothing of the session is lost then."""
        if self._principal.asker is None:
            found()
            return
        self._find_some(session, deque(session.subscriptions), found)

    def _find_some(
        self, session: MqttSession, left: deque[Address], found: Callable[[], None]
    ) -> None:
        if session.guard is not self:
            return  # the connection has ended
        principal = self._principal
        wanted: dict[Address, object] = {}
        for _ in range(min(RESUMED_AT_ONCE, len(left))):
            address = left.popleft()
            one = principal.wanted_read(pattern_of(address))
            if one is not None and address not in self._by_service:
                wanted[address] = one

        if wanted:
            answered = partial(self._found_some, session, wanted, left, found)
            self._take_back = principal.ask(wanted.values(), answered)
        else:
            self._find_more(session, left, found)

    def _found_some(
        self,
        session: MqttSession,
        wanted: Mapping[Address, Any],
        left: deque[Address],
        found: Callable[[], None],
        answers: Answers,
    ) -> None:
        for address, one in wanted.items():
            said = answers[one].said
            if said is Said.UNKNOWN:
                if session.link is not None:
                    session.link.expelled(RIGHTS_UNKNOWN)
                return
            if said is Said.ALLOWED:
                self._by_service.add(address)
        self._find_more(session, left, found)

    def _find_more(
        self, session: MqttSession, left: deque[Address], found: Callable[[], None]
    ) -> None:
        if left:
            more = partial(self._find_some, session, left, found)
            self._parts.storage.scheduler.call_soon(more)
        else:
            found()

    def left(self) -> None:
        """The connection has ended."""
        take_back, self._take_back = self._take_back, None
        if take_back is not None:
            take_back()
