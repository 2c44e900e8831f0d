"""A client from CONNECT to CONNACK: the part of a connection that finds out who is there.

Rules:

* Who the client is may take a while to find out. Until then nothing more of what it sends is
  looked at; from then on it speaks to its own port, which checks what it may do.
* What a client sends before its login is known is kept for it within bounds: `limits` has what all
  such clients of a listener may have sent together.
* With an authentication method it takes more packets to find that out (`authenticating.py`). The
  same exchange on a running connection changes nothing but how sure it is who is there: who proves
  to be another user is closed.
* Where a service decides what the client may do, it is asked about the will and about automatic
  subscriptions before the client is let in (`asking.py`): until then it is not known who is there.
* CONNACK leaves when the session is committed.

How a CONNECT is answered is in `login.py`; what the client does afterwards in `connection.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from polymq.broker.port import AskedAs, ConnectedClient, Reason, Refused, Session
from polymq.broker.port import Will as StoredWill
from polymq.gateways.mqtt.aliases import OutgoingAliases
from polymq.gateways.mqtt.asking import about_filters, about_will
from polymq.gateways.mqtt.authenticating import Authentication
from polymq.gateways.mqtt.auto_subscribing import filters_of, subscribe_client
from polymq.gateways.mqtt.kernels.fast_path import FastPath
from polymq.gateways.mqtt.login import ANONYMOUS, Login, authenticate
from polymq.gateways.mqtt.mapping import broker_name, is_ignored
from polymq.gateways.mqtt.packets import MQTT_5, Authenticate, Connect, Will
from polymq.gateways.mqtt.properties import Property
from polymq.gateways.mqtt.protocol import Protocol, State
from polymq.gateways.mqtt.reason_codes import ReasonCode
from polymq.gateways.mqtt.receive_quota import ReceiveQuota
from polymq.gateways.mqtt.shared import Shared
from polymq.gateways.mqtt.subscribing import Outcome
from polymq.gateways.mqtt.translating import is_translated
from polymq.net.connection import SocketConnection
from polymq.net.flow import LOGIN, Flow

log = logging.getLogger(__name__)


class Connecting(SocketConnection):
    """What `Connection` is until CONNACK is sent."""

    protocol = "mqtt"
    fast_path: FastPath
    """Of the connection, the `SessionLink` of its session. `Connection` makes it."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared.context)
        self._shared = shared
        self._port = shared.port
        self._limits = shared.limits
        self._mapping = shared.mapping
        self._counters = shared.counted
        self._core = Protocol(limits=shared.limits, inbox=shared.inbox)
        self._core.counts = shared.counted.reasons
        self._session: Session | None = None  # from CONNECT until the connection ends
        self._client_id = ""  # for log lines
        self._is_bridge = False  # another broker's, and says so
        self._login: Login | None = None  # from CONNECT to CONNACK
        self._announced: ConnectedClient | None = None  # from CONNACK to the end
        self._keep_alive = 0.0  # seconds without a packet that are too many; 0: never
        self._principal = ""  # who logged in
        self._authentication: Authentication | None = None  # while AUTH packets are exchanged
        self._withdraw: Callable[[], None] | None = None  # what is asked, when the client goes
        self._ahead = 0  # bytes that came behind CONNECT before that was known
        self._early = 0  # of those before that was known: what counts
        self._leave: Callable[[], None] | None = None  # takes it off the list of its user
        self._left: Callable[[], None] | None = None  # takes it off the list of connected clients
        self._flow = Flow()

    # --- for `Connection` to implement ------------------------------------------------------

    def expelled(self, why: str) -> None:
        """The client may not be here any more."""
        raise NotImplementedError

    def end(self, why: str) -> None:
        """An operator wants the connection to end."""
        raise NotImplementedError

    def leave_if_done(self) -> None:
        """End the connection if the server stops and no answer waits."""
        raise NotImplementedError

    def write_answer(self, data: bytes) -> None:
        """An answer that may leave now."""
        raise NotImplementedError

    def _finish(self, reason: ReasonCode | None = None, text: str = "") -> None:
        """End the connection."""
        raise NotImplementedError

    def _regulate(self) -> None:
        """Read on while there is nothing to wait for."""
        raise NotImplementedError

    def _answer_subscribed(self, answer: bytes, outcome: Outcome) -> None:
        """What was subscribed to is answered when it is committed."""
        raise NotImplementedError

    def _name_publisher(self) -> None:
        """From now on the client's messages say that they are its own (No Local)."""
        raise NotImplementedError

    @property
    def user(self) -> str:
        """The name of the user that logged in; empty if it is nobody's."""
        return "" if self._principal == ANONYMOUS else self._principal

    @property
    def _noted_max(self) -> int:
        """How many filters of one packet are worth noting."""
        events = self._shared.client_events
        return 0 if events is None else events.noted_max

    @property
    def client_name(self) -> str:
        """Its client identifier."""
        return self._client_id

    # --- before the login is known ----------------------------------------------------------

    @property
    def asking(self) -> bool:
        """Whether it is not known yet who the client is: nothing is handled until then."""
        return bool(self._flow.waits & LOGIN)

    def _keep_ahead(self, at: int, end: int) -> int:
        """What came behind CONNECT waits for the login. The socket is read on for a little, so that
        its end is noticed."""
        self._ahead = end - at
        early = self._keep_early(at, end)
        self._regulate()
        return early

    def _keep_early(self, at: int, end: int) -> int:
        """What came before the login waits for it, if there is room for that."""
        shared, limits = self._shared, self._limits
        connect_bytes = 0 if self._login is None else self._login.early_bytes
        early = max(0, end - at + connect_bytes - limits.small_connect_bytes_max)
        shared.early_bytes += early - self._early
        self._early = early
        if not early or shared.early_bytes <= limits.early_bytes_max:
            return at
        log.warning(
            "closing %s (%s): it sent too much before its login", self.peer, self._client_id
        )
        self._finish(reason=ReasonCode.QUOTA_EXCEEDED)
        return end

    def _forget_login(self) -> None:
        """The connection ends: nothing of its login goes on."""
        self._forget_early()
        self._login = None
        authentication, self._authentication = self._authentication, None
        if authentication is not None:
            authentication.end()
        if self._withdraw is not None:
            self._withdraw()
            self._withdraw = None
        for leave in (self._leave, self._left):
            if leave is not None:
                leave()
        self._leave = self._left = None

    def _forget_early(self) -> None:
        self._shared.early_bytes -= self._early
        self._early = 0

    # --- from CONNECT to CONNACK ------------------------------------------------------------

    def _connect(self, packet: Connect) -> None:
        login = self._login = Login(packet, self._shared.new_client_id, self._shared.rules)
        if packet.level == MQTT_5:
            self.fast_path.five = True
            self.fast_path.aliases = {}
            self.fast_path.takes_apart = is_translated
            if packet.is_bridge:
                self.fast_path.more = self._shared.marker
            alias_max = min(packet.alias_max, self._limits.topic_aliases_out_max)
            if alias_max:
                self.fast_path.aliases_out = OutgoingAliases(alias_max)
        self._client_id = login.client_id
        self._is_bridge = packet.is_bridge
        try:
            login.check(self._limits, self._shared.rules)
            self._port.admission.check_connection(login.client_id, packet.user, self.address)
        except Refused as error:
            self._refuse(login.reason_of(error), error.text)
            return
        size_max = packet.packet_bytes_max
        if size_max is not None and size_max < login.answer_size_min:
            self._refuse(ReasonCode.PACKET_TOO_LARGE, "no CONNACK is as small as it wants")
            return
        if packet.method is not None:
            self._begin_authentication(packet.method, packet.data or b"")
            return
        self.spoke()
        self._flow.begin(LOGIN)
        withdraw = authenticate(
            packet,
            self._shared.rules,
            self._port,
            self,
            partial(self._known, login),
            login.own_id,
        )
        if self.asking:
            self._withdraw = self._withdraw or withdraw
            self.shortcut = None  # it would handle what comes behind CONNECT

    # --- enhanced authentication ------------------------------------------------------------

    def _begin_authentication(self, method: str, data: bytes) -> None:
        """CONNECT with a method, or AUTH to authenticate again, and the data that came with it."""
        admission = self._shared.port.admission
        if not admission.offers(method):
            # [MQTT-4.12.0-1]; on a running connection the method is CONNECT's.
            self._refuse(
                ReasonCode.BAD_AUTHENTICATION_METHOD, f"there is no method {method[:64]!r}"
            )
            return
        until = self.context.now() + self._limits.auth_seconds_max
        self._authentication = Authentication(admission, method, self.address, until=until)
        if self._core.state is State.AUTHENTICATING:
            self.spoke()
        else:
            self.deadline(self._next_deadline(self.context.now()))
        self._take_step(data)

    def _authenticate(self, packet: Authenticate) -> None:
        """AUTH, where the protocol allows it."""
        if packet.reason == ReasonCode.RE_AUTHENTICATE:
            self._begin_authentication(packet.method, packet.data)
        else:
            self._take_step(packet.data)

    def _take_step(self, data: bytes) -> None:
        authentication = self._authentication
        assert authentication is not None
        connects = self._core.state is State.AUTHENTICATING
        if connects:
            self._flow.begin(LOGIN)
        try:
            challenge = authentication.take(data, partial(self._exchanged, authentication))
        except Refused as error:
            self._exchanged(authentication, error)
            return
        if challenge is not None:
            self._flow.end(LOGIN)
            self._send_auth(self._core.challenge(challenge))
        elif connects and self.asking:
            self._withdraw = self._withdraw or authentication.end
            self.shortcut = None

    def _exchanged(self, authentication: Authentication, principal: str | Refused) -> None:
        """What came of the exchange."""
        if authentication is not self._authentication:
            return  # the connection has ended
        self._authentication = None
        authentication.end()
        if self._core.state is not State.AUTHENTICATING:
            self._authenticated_again(principal, authentication.proof)
            return
        login = self._login
        assert login is not None
        if not isinstance(principal, Refused):
            principal = self._unless_another(login, principal)
        if not isinstance(principal, Refused):
            login.proof = authentication.proof
            self._core.authenticated(login.proof)
        self._known(login, principal)

    def _unless_another(self, login: Login, principal: str) -> str | Refused:
        """The principal, unless CONNECT or the client's certificate names another."""
        if login.packet.user not in (None, principal):
            return Refused(Reason.NOT_AUTHENTICATED, "CONNECT names another user")
        user_of = self._shared.rules.user_of
        try:
            certified = None if user_of is None else user_of(self)
        except Refused as error:
            return error
        if certified not in (None, principal):
            return Refused(Reason.NOT_AUTHENTICATED, "its certificate names another user")
        return principal

    def _authenticated_again(self, principal: str | Refused, proof: bytes) -> None:
        if principal == self._principal:
            self._send_auth(self._core.authenticated(proof))
            return
        text, reason = "it authenticated again as another user", ReasonCode.NOT_AUTHORIZED
        if isinstance(principal, Refused):
            text = principal.text
            if principal.reason is Reason.LIMIT:
                reason = ReasonCode.SERVER_BUSY
        log.info("closing %s (%s): %s", self.peer, self._client_id, text)
        self._finish(reason=reason)  # [MQTT-4.12.1-2]

    def _send_auth(self, data: bytes) -> None:
        login = self._login
        size_max = self.fast_path.sent_bytes_max if login is None else login.packet.packet_bytes_max
        if size_max is not None and len(data) > size_max:
            text = "no AUTH is as small as it wants"
            if self._core.state is State.AUTHENTICATING:
                self._refuse(ReasonCode.PACKET_TOO_LARGE, text)
            else:
                log.info("closing %s (%s): %s", self.peer, self._client_id, text)
                self._finish(reason=ReasonCode.PACKET_TOO_LARGE)
        elif self._core.state is State.AUTHENTICATING:
            self.write(data)
        else:
            self.write_answer(data)

    def _authenticates_too_long(self, now: float) -> bool:
        """Whether an authentication on this running connection should be over: then it ends."""
        if self._authentication is None or self._authentication.until > now:
            return False
        text = "it did not finish its authentication in time"
        log.info("closing %s (%s): %s", self.peer, self._client_id, text)
        self._finish(reason=ReasonCode.NOT_AUTHORIZED, text=text)
        return True

    def _next_deadline(self, now: float) -> float | None:
        """When a running connection has to have said something; None: it need not."""
        at = None if self._authentication is None else self._authentication.until
        if not self._keep_alive:
            return at
        # What the client says may wait in the kernel's buffers.
        silent_at = (self.heard_at if self._flow.is_reading else now) + self._keep_alive
        return silent_at if at is None else min(at, silent_at)

    # --- who it is --------------------------------------------------------------------------

    def _known(self, login: Login, principal: str | Refused) -> None:
        """The answer to who the client is; it may come in the call that asked."""
        try:
            if self._asks_first(login, principal):
                return
        except Refused as error:
            self._end_login()
            self._refuse(login.reason_of(error), error.text)
            return
        waited = self._end_login()
        if self._core.state not in (State.ACCEPTING, State.AUTHENTICATING):
            return  # it did not wait
        if isinstance(principal, Refused):
            reason = login.reason_of(principal)
            if principal.reason is Reason.LIMIT:  # it was not checked, and may be right
                reason = ReasonCode.SERVER_BUSY
            self._refuse(reason, principal.text)
            return
        try:
            session = self._log_in(login, principal)
        except Refused as error:
            self._refuse(login.reason_of(error), error.text)
            return
        finally:
            self._port.principal.know(None)
        self._connected(login, session)
        if waited:
            self._regulate()
            self.consume_again()

    def _end_login(self) -> bool:
        """It is known who the client is. Returns whether that was waited for."""
        self._flow.end(LOGIN)
        waited, self._withdraw = self._withdraw is not None, None
        self.shortcut = self.fast_path
        self._forget_early()
        return waited

    def _asks_first(self, login: Login, principal: str | Refused) -> bool:
        """Whether a service has to be asked what the client may do, before it is let in: then its
        answer is waited for like the login. Raises Refused."""
        is_waiting = self._core.state in (State.ACCEPTING, State.AUTHENTICATING)
        if isinstance(principal, Refused) or not is_waiting or login.answers is not None:
            return False
        self._open_port(login, principal)
        own = self._port.principal
        if not own.asks:
            return False
        autos = filters_of(self._shared.auto_subscriptions, login.own_id, self.user)
        wanted = [
            *about_will(login.packet.will, self._mapping, own),
            *about_filters((name for _, name in autos), self._mapping, own),
        ]
        return self._waits_for_rights(login, principal, wanted)

    def _waits_for_rights(self, login: Login, principal: str, wanted: Sequence[object]) -> bool:
        """Ask. Returns whether the answers have to be waited for."""
        before, self._withdraw = self._withdraw, None
        answered = partial(self._rights_known, login, principal)
        take_back = self._port.principal.ask(wanted, answered)
        if login.answers is not None:
            self._withdraw = before
            return False
        self._withdraw = take_back
        self.shortcut = None
        return True

    def _rights_known(self, login: Login, principal: str, answers: Any) -> None:
        login.answers = answers
        if self._withdraw is not None:
            self.context.turns.wait(partial(self._known, login, principal))

    def _open_port(self, login: Login, principal: str) -> None:
        """From now on the client's own port, and it may be told to go. Raises Refused."""
        self._principal = principal
        self._port = self._shared.port.admission.for_principal(
            principal,
            login.own_id,
            asked_as=AskedAs(
                user=self.user,
                client_id=login.own_id,
                address=self.address,
                mount_point=self._shared.rules.mount_point,
                name_of=broker_name,
            ),
        )
        self._mapping = self._mapping.of(self._port, login.own_id, self.user)
        self._leave = self._port.principal.enter(self.expelled)

    def _log_in(self, login: Login, principal: str) -> Session:
        """Let the client in. Raises Refused."""
        packet = login.packet
        self.fast_path.log_in(self._port, self._mapping)
        self._port.principal.know(login.answers)
        if packet.packet_bytes_max is not None:
            self.fast_path.sent_bytes_max = packet.packet_bytes_max
        will = None if packet.will is None else self._will_of(packet.will)
        session = self._port.sessions.connect(
            login.client_id,
            clean=packet.clean,
            expiry_seconds=packet.expiry_seconds,
            link=self.fast_path,
            principal=principal,
            inflight_max=min(self._limits.inflight_max, packet.receive_max),
        )
        if will is not None:
            try:
                session.set_will(will)
            except Refused:
                session.disconnect()
                raise
        return session

    def _will_of(self, will: Will) -> StoredWill | None:
        """A will as the engine has it, if it may be published. Raises Refused."""
        if is_ignored(will.topic.encode()):
            self._counters.publishes_ignored += 1
            return None
        topic, tag = self._mapping.topic_and_tag(self._mapping.publishable(will.topic))
        self._port.principal.check_publish(topic, tag)
        return StoredWill(
            topic=topic,
            tag=tag,
            body=will.body,
            qos=will.qos,
            retain=will.retain,
            properties=will.properties,
            ttl_ms=None if will.expiry_seconds is None else 1000 * will.expiry_seconds,
            delay_seconds=will.delay_seconds,
        )

    def _connected(self, login: Login, session: Session) -> None:
        self._session = session
        client = login.client(self, self._principal, self.end)
        self._left = self._port.admission.client_came(client)
        no_local = any(options.no_local for _, options in session.options())
        if no_local or self._limits.names_publishers:
            self._name_publisher()
        self.proven()
        self._keep_alive = login.silence_max()
        self.heard_at = self.context.now()
        self.deadline(self.heard_at + self._keep_alive if self._keep_alive else None)
        self.fast_path.waiting += 1
        durability = self._port.state_durability
        self._port.when_committed(session.position, durability, self._accepted, session, client)

    def _refuse(self, reason: ReasonCode, text: str) -> None:
        """Nothing that comes after is looked at [MQTT-3.1.4-5]; there is no will to publish."""
        self._counters.connects_refused += 1
        log.info("refused %s (%s) with %s: %s", self.peer, self._client_id, reason.name, text)
        answer = self._core.refuse(reason)
        login = self._login
        size_max = None if login is None else login.packet.packet_bytes_max
        if answer and (size_max is None or len(answer) <= size_max):
            self.write(answer)
        self._finish()

    def _accepted(self, session: Session, client: ConnectedClient) -> None:
        self.fast_path.waiting -= 1
        login, self._login = self._login, None
        if self._session is not session or login is None:
            return  # the connection ended meanwhile
        self._counters.connections += 1
        properties = login.properties(session, self._limits, self.user)
        if Property.RECEIVE_MAXIMUM in properties:
            self.fast_path.quota = ReceiveQuota(self._limits.receive_max)
        self.write(self._core.accept(present=session.present, properties=properties))
        self.fast_path.session = session if self._core.is_steady else None
        self._announced = client
        events = self._shared.client_events
        if events is not None:
            events.connected(
                client, clean=login.packet.clean, expiry_seconds=session.expiry_seconds
            )
        self._shared.sys_topics.came(self.fast_path, self._port.principal.check_read)
        before = self._port.principal.know(login.answers)
        outcome = subscribe_client(
            self._shared.auto_subscriptions,
            session,
            self._mapping,
            self._limits.features,
            login.own_id,
            self.user,
            self._noted_max,
        )
        self._port.principal.know(before)
        if outcome is not None:
            self._answer_subscribed(b"", outcome)
        if not self.fast_path.leaving:
            session.resume()
        self.leave_if_done()
