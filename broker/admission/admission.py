"""Who comes in, and what becomes of them when their rights change.

A broker without users is *open*: a client is who it says it is and may do everything, if the
broker's listeners can be reached from its own machine only (or the operator wants it so); otherwise
nobody is let in. With the first user it is *closed*: every client names a user and its password,
or is `anonymous`, if a rule for that role exists. It is always closed where others than stored
users may log in, or a service decides what they may do (`Users.outsiders`).

Rules:

* A connection gets the port of its principal once, after it has logged in. While the broker is
  open those are the parts themselves, so nothing is checked and nothing costs anything.
* Every connection registers (`enter`), so that it can be told to go: when its user is deleted,
  disabled or gets another password, when the access key that it came with is removed, and all that
  came in while the broker was open when it closes.
* A connection ends when what it logged in with does, such as a token (`expiries.py`).
* When rights change, those who live on them are looked at, at once: connected sessions and
  consumers that may no longer have what they wait for end, and so do members of consumer groups,
  of which a gateway knows (`when_rights_change`). So no delivery is checked.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakValueDictionary

from polymq.broker.accounts import audit
from polymq.broker.accounts.bans import USER, Ban, Bans
from polymq.broker.accounts.granting import GrantedPrincipal
from polymq.broker.accounts.login_lines import Answer
from polymq.broker.accounts.logins import WRONG, Logins
from polymq.broker.accounts.permissions import ADMIN_RULES, ANONYMOUS, RuleSet
from polymq.broker.accounts.quotas import DEFAULT, Pace, Quotas
from polymq.broker.accounts.scram import METHOD as SCRAM_SHA_256
from polymq.broker.accounts.scram_logins import ScramLogins
from polymq.broker.accounts.service_logins import ServiceLogins
from polymq.broker.accounts.service_permissions import ServicePermissions
from polymq.broker.accounts.token_logins import TokenLogins
from polymq.broker.accounts.users import Change, Users
from polymq.broker.admission.asking import Asker
from polymq.broker.admission.connections import Connections
from polymq.broker.admission.expiries import Expiries
from polymq.broker.admission.permitted_port import PermittedPort
from polymq.broker.admission.principal import GroupMember, Principal
from polymq.broker.bounded_cache import BoundedCache
from polymq.broker.errors import Reason, Refused
from polymq.broker.port.broker import BrokerPort
from polymq.broker.port.principals import (
    LOGIN_EXPIRED,
    UNKNOWN_ORIGIN,
    AskedAs,
    LoginExchange,
    Origin,
)

if TYPE_CHECKING:
    from polymq.broker.open_port import OpenPort
    from polymq.broker.sessions.session import Guard, MqttSession

Expelled = Callable[[str], None]
"""Told to end a connection, and why, in words."""

_NO_USERS: str = (
    "this server has no users yet, so it accepts only clients of its own machine: create a user "
    "with `polymq user add NAME`, or set server.allow_insecure = true"
)
_NO_USERS_TO_PROVE: str = (
    "this server has no users yet, so nobody can prove to be one: create a user with `polymq user "
    "add NAME`, or connect without an authentication method"
)
_OPEN_RULES: RuleSet = RuleSet(ADMIN_RULES, user=None)


class _Inside(NamedTuple):
    """A connection."""

    principal: str | None  # None: came in while open
    access_key: str | None
    expelled: Expelled


class Admission:
    """See the head of this file.

    Args:
        strangers: whether clients are let in while there are no users.
        ports_cached_max: how many ports of principals are kept for those who come again.

    Attributes:
        port: what is behind the checks. The engine sets it, once it has all of its parts.
    """

    def __init__(
        self,
        users: Users,
        logins: Logins,
        scram_logins: ScramLogins,
        token_logins: TokenLogins | None,
        service_logins: ServiceLogins | None,
        permissions: ServicePermissions | None,
        expiries: Expiries,
        bans: Bans,
        connections: Connections,
        *,
        strangers: bool,
        ports_cached_max: int,
    ) -> None:
        self.port: OpenPort
        self.check_connection = connections.check
        self.client_came = connections.came
        self._bans = bans
        self.users = users
        self._logins = logins
        self._scram_logins = scram_logins
        self._token_logins = token_logins
        self._service_logins = service_logins
        self._permissions = permissions
        self._expiries = expiries
        self._strangers = strangers
        self._ports: WeakValueDictionary[str, PermittedPort] = WeakValueDictionary()
        # Keeps ports of those who come for one request.
        self._recent: BoundedCache[str, PermittedPort] = BoundedCache(ports_cached_max)
        self._granted: BoundedCache[int, tuple[GrantedPrincipal, PermittedPort]] = BoundedCache(
            ports_cached_max
        )
        self._paces: dict[str, Pace] = {}
        self._serial = 0
        self._inside: dict[int, _Inside] = {}
        self._counts: dict[str, int] = {}  # connections by principal
        self._watchers: list[Callable[[Callable[[str], bool]], None]] = []
        users.on_change = self._changed
        bans.on_ban = self._banned

    # --- coming in ------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether everybody is who they say, and may do everything."""
        return self._strangers and not self.users.closed

    def authenticate(
        self,
        user: str | None,
        password: bytes | None,
        address: str,
        answer: Answer,
        origin: Origin = UNKNOWN_ORIGIN,
    ) -> Callable[[], None]:
        """See `AdmissionPort.authenticate`."""
        if user is not None:
            try:
                self._bans.check(USER, user)
            except Refused as error:
                self._logins.strangers.warn(
                    "login failed", address, user=user, reason="the user is banned"
                )
                answer(error)
                return _nothing
        answer = self._unless_banned(answer)
        if not self.users.closed:
            if self._strangers:
                answer(user or ANONYMOUS)
                return _nothing
            self._logins.strangers.warn(
                "login failed", address, user=user or "", reason="no users yet"
            )
            answer(Refused(Reason.NOT_AUTHENTICATED, _NO_USERS))
        elif password and self._token_logins is not None and self._token_logins.accepts(password):
            return self._token_logins.check(user, password, address, answer)
        elif user is not None and self._service_logins is not None:
            return self._service_logins.check(user, password or b"", address, answer, origin)
        elif user is not None:
            return self._logins.check(user, password or b"", address, answer)
        elif password and self._token_logins is not None:
            self._logins.strangers.warn("login failed", address, user="", reason="no token")
            answer(Refused(Reason.NOT_AUTHENTICATED, "the password is no token, and has no user"))
        elif self.users.rule_set(ANONYMOUS).is_empty:
            self._logins.strangers.warn("login failed", address, user="", reason="no user named")
            answer(Refused(Reason.NOT_AUTHENTICATED, "name a user and its password"))
        else:
            answer(ANONYMOUS)
        return _nothing

    def offers(self, method: str) -> bool:
        """See `AdmissionPort.offers`."""
        return method == SCRAM_SHA_256 and self._scram_logins.is_offered

    def begin_exchange(self, method: str, first: bytes, address: str) -> LoginExchange:
        """See `AdmissionPort.begin_exchange`."""
        assert self.offers(method)
        if not self.users.closed:
            self._logins.strangers.warn("login failed", address, user="", reason="no users yet")
            raise Refused(Reason.NOT_AUTHENTICATED, _NO_USERS_TO_PROVE)
        exchange = self._scram_logins.begin(first, self._unless_banned)
        try:
            self._bans.check(USER, exchange.user)
        except Refused:
            exchange.end()
            raise
        return exchange

    def _unless_banned(self, answer: Answer) -> Answer:
        """Who has logged in may be another than was named, or banned since."""

        def known(principal: str | Refused) -> None:
            if not isinstance(principal, Refused):
                try:
                    self._bans.check(USER, principal)
                except Refused as error:
                    principal = error
            answer(principal)

        return known

    def certified(self, user: str, address: str) -> str:
        """See `AdmissionPort.certified`."""
        self._bans.check(USER, user)
        found = self.users.users.get(user)
        if found is None and self.is_open:
            return user
        if found is None or found.disabled:
            self._logins.failed_count += 1
            reason = "no such user, or disabled"
            self._logins.strangers.warn("login failed", address, certificate=user, reason=reason)
            raise Refused(
                Reason.NOT_AUTHENTICATED,
                f"its certificate or key is for {user!r}: no user that may log in",
            )
        audit.note("login", user=user, certificate=True, address=address)
        return user

    def check_signature(self, access_key: str, content: bytes, digest: bytes, address: str) -> str:
        """See `AdmissionPort.check_signature`."""
        if self.users.closed:
            user = self._logins.check_signature(access_key, content, digest, address)
            self._bans.check(USER, user)
            return user
        if self._strangers:
            return ANONYMOUS
        reason = "no users yet"
        self._logins.strangers.warn("login failed", address, access_key=access_key, reason=reason)
        raise Refused(Reason.NOT_AUTHENTICATED, _NO_USERS)

    def for_principal(
        self, principal: str, client_id: str | None = None, *, asked_as: AskedAs | None = None
    ) -> BrokerPort:
        """See `AdmissionPort.for_principal`."""
        if self.is_open:
            return self.port
        if client_id is not None:
            return self._made(principal, client_id, asked_as)
        if isinstance(principal, GrantedPrincipal):
            return self._granted_port(principal)
        return self._shared(principal)

    def check_publish(self, principal: str, client_id: str, topic: str, tag: str | None) -> None:
        """Whether a principal may publish there now, with this client id. Raises Refused."""
        self.for_principal(principal, client_id).principal.check_publish(topic, tag)

    def for_owner(self, owner: str) -> PermittedPort:
        """See `AdmissionPort.for_owner`."""
        return self._shared(self.port.owners.principal_of(owner))

    def _shared(self, principal: str) -> PermittedPort:
        found = self._ports.get(principal)
        if found is None:
            found = self._ports[principal] = self._made(principal)
        self._recent.pop(principal, None)
        self._recent.add(principal, found)
        return found

    def _granted_port(self, principal: GrantedPrincipal) -> PermittedPort:
        """Of this login: of another one of the same name it may be another."""
        found = self._granted.pop(id(principal), None)
        if found is None or found[0] is not principal:
            found = principal, self._made(principal)
        self._granted.add(id(principal), found)
        return found[1]

    def for_group(self, principal: str, group: str) -> PermittedPort:
        """See `PrincipalPort.for_group`."""
        member = GroupMember(parts=self.port, admission=self, name=principal, group=group)
        return PermittedPort(self.port, member)

    def listener_principal(self, user: str) -> str:
        """See `AdmissionPort.listener_principal`."""
        return user or ANONYMOUS

    def _made(
        self, principal: str, client_id: str | None = None, asked_as: AskedAs | None = None
    ) -> PermittedPort:
        asker = None
        if asked_as is not None and self._permissions is not None:
            asker = Asker(self._permissions, asked_as)
        checked = Principal(
            parts=self.port, admission=self, name=principal, client_id=client_id, asker=asker
        )
        return PermittedPort(self.port, checked)

    def rules_of(self, principal: str) -> RuleSet:
        """What a principal may do now."""
        if self.is_open:
            return _OPEN_RULES
        if isinstance(principal, GrantedPrincipal):
            return self.users.granted_rule_set(principal)
        return self.users.rule_set(principal)

    # --- connections ----------------------------------------------------------------------

    def enter(
        self, principal: str | None, expelled: Expelled, access_key: str | None, address: str
    ) -> Callable[[], None]:
        """See `PrincipalPort.enter`. None: whoever it is came in while the broker was open."""
        if principal is not None:
            most = self.quotas_of(principal).connections
            count = self._counts.get(principal, 0)
            if most is not None and count >= most:
                audit.warn(audit.REFUSED, user=principal, what="connection", reason="quota")
                raise Refused(
                    Reason.LIMIT, f"user {principal!r} has {count} connections, and may have {most}"
                )
            self._counts[str(principal)] = count + 1
        self._serial += 1
        serial = self._serial
        self._inside[serial] = _Inside(principal, access_key, expelled)
        if isinstance(principal, GrantedPrincipal) and principal.expires_at < math.inf:
            self._expiries.add(serial, principal.expires_at, partial(expelled, LOGIN_EXPIRED))
        if principal is not None and access_key is not None:
            audit.note("login", user=principal, access_key=access_key, address=address)

        def leave() -> None:
            self._expiries.remove(serial)
            if self._inside.pop(serial, None) is not None and principal is not None:
                left = self._counts[principal] - 1
                if left:
                    self._counts[principal] = left
                else:
                    del self._counts[principal]

        return leave

    def quotas_of(self, principal: str) -> Quotas:
        """The quotas of a principal; who has no name has the defaults."""
        user = self.users.users.get(principal)
        return DEFAULT if user is None else user.quotas

    def pace_of(self, principal: str, now: float) -> Pace:
        """The rates of a principal, one for all its connections."""
        pace = self._paces.get(principal)
        if pace is None and principal not in self.users.users:
            return Pace(DEFAULT, now)  # without rates: there is nothing to remember of it
        if pace is None:
            pace = self._paces[str(principal)] = Pace(self.quotas_of(principal), now)
        return pace

    # --- changes --------------------------------------------------------------------------

    def when_rights_change(self, callback: Callable[[Callable[[str], bool]], None]) -> None:
        """See `AdmissionPort.when_rights_change`."""
        self._watchers.append(callback)

    def _changed(self, change: Change) -> None:
        self._paces.pop(change.subject, None)
        for inside in list(self._inside.values()):
            if inside.principal is None and not self.is_open:
                inside.expelled("this server has users from now on: log in")
            elif (
                change.expels is not None
                and inside.principal == change.subject
                and change.access_key in (None, inside.access_key)
            ):
                inside.expelled(change.expels)
        for session in self.port.sessions.connected():
            guard = session.guard
            if guard is not None and self.users.concerns(change, session.principal):
                self._check_session(session, guard)
        self.port.exchanges.graph.rights_changed(change)
        self.port.readers.check(lambda guard: self.users.concerns(change, guard.principal))
        for watcher in self._watchers:
            watcher(lambda principal: self.users.concerns(change, principal))
        if change.ended:
            self._end_sessions(change.subject)

    def _banned(self, ban: Ban) -> None:
        """Connections of a user that is banned now end, whatever their protocol is. (Those of a
        client identifier or an address are known to who lists them.)"""
        if ban.kind == USER:
            for inside in list(self._inside.values()):
                if inside.principal == ban.value:
                    inside.expelled("the user was banned")

    def _end_sessions(self, principal: str) -> None:
        """Last, because it writes: everybody is out by then, whatever the disk does."""
        try:
            self.port.sessions.end_sessions_of(principal)
        except Refused as error:
            audit.warn("sessions of a deleted user stay", user=principal, reason=error.text)

    def _check_session(self, session: MqttSession, guard: Guard) -> None:
        if session.link is None or all(
            guard.may_read(address) for address in session.subscriptions
        ):
            return
        session.link.expelled("it may no longer read what it subscribed to")


def _nothing() -> None:
    """There is nothing to withdraw."""


__all__ = ["WRONG", "Admission", "Expelled"]
