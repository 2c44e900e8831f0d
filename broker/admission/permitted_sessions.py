"""MQTT's sessions, as one principal may use them. See `permitted.py`."""

from __future__ import annotations

from collections.abc import Sequence

from polymq.broker.accounts import audit
from polymq.broker.accounts.permissions import format_pattern
from polymq.broker.admission.permitted import Permitted
from polymq.broker.errors import Reason, Refused
from polymq.broker.port.publishing import Template
from polymq.broker.port.sessions import Session, SessionLink
from polymq.broker.port.values import Address, Position, pattern_of
from polymq.broker.sessions.session import MqttSession
from polymq.core_log.kernels.batch import Batch


class PermittedSessions(Permitted):
    """`port.SessionPort` for one principal, and the guard of each session that it connects."""

    __slots__ = ()

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
        return self._principal.may_read(pattern_of(address))

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
        principal.check_filter(pattern_of(address))
        if address not in session.subscriptions:
            count = self._parts.sessions.subscription_counts.get(principal.name, 0)
            principal.check_quota("subscriptions", count, principal.quotas.subscriptions)
