"""From CONNECT to CONNACK: who the client is, and how its CONNECT is answered.

Rules:

* A refused CONNECT is answered with a reason (`mapping.CONNECT_REASONS`), before MQTT 5 with the
  return code that comes nearest (`reason_codes.CONNECT_CODES_3`). Why in words goes to the log
  only: it may say more than a stranger should know. The client is told what the reason code means
  (`explaining.py`).
* A client that names an authentication method [MQTT-4.12.0-5] gets that method in CONNACK, and with
  it the proof that the server is the one that it takes it for.
* Whether a client may come at all is asked in this order: the version and the limits, then the
  certificate, where the listener takes users from it, then the password.
* CONNACK says what differs from what the client asked for: the client id that it was given, the
  session expiry and the keep alive where the server has a bound [MQTT-3.1.2-21], [MQTT-3.2.2-16].
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from polymq.broker.port import BrokerPort, ConnectedClient, Origin, Reason, Refused, Session
from polymq.gateways.mqtt.features import Features, NotOffered
from polymq.gateways.mqtt.limits import Limits
from polymq.gateways.mqtt.mapping import CONNECT_REASONS
from polymq.gateways.mqtt.packets import MQTT_5, NEVER, RECEIVE_MAX, Connect, Will, encode_connack
from polymq.gateways.mqtt.properties import Property
from polymq.gateways.mqtt.reason_codes import ReasonCode
from polymq.gateways.mqtt.rules import Rules
from polymq.gateways.mqtt.tracing import trace_connection
from polymq.net.connection import SocketConnection
from polymq.net.kernels.streams import clock_ms

CONNACK_SIZE_MIN: Final = 5
"""Of MQTT 5, without properties."""
PROOF_SIZE_MAX: Final = 64
"""Of what proves the server: SCRAM-SHA-256 has 46 bytes."""
VERSIONS: Final = {3: "3.1", 4: "3.1.1", 5: "5.0"}
"""Of the protocol, by its level."""
KEEP_ALIVE_FACTOR: Final = 1.5
"""How many keep-alive periods may pass without a packet [MQTT-3.1.2-22] (5.0)."""

ANONYMOUS: Final = "anonymous"
"""The principal of a client that names no user."""


class WrongVersion(Refused):
    """The listener does not accept this version of MQTT [MQTT-3.1.2-2]."""


class Login:
    """What one CONNECT asks for.

    Attributes:
        packet: the CONNECT.
        own_id: the client's id, or the one that the server gave.
        client_id: the id of its session: the same behind the listener's mount point.
        early_bytes: about how much the packet keeps until it is known who sent it.
        proof: Authentication Data of CONNACK, where CONNECT has an authentication method.
        answers: of the service that was asked what the client may do, before it is let in
            (`PrincipalPort.ask`); None: it was not asked.
    """

    __slots__ = (
        "_is_given",
        "_keep_alive_seconds",
        "answers",
        "client_id",
        "early_bytes",
        "own_id",
        "packet",
        "proof",
    )

    def __init__(self, packet: Connect, new_client_id: Callable[[], str], rules: Rules) -> None:
        self.packet = packet
        self._keep_alive_seconds = packet.keep_alive_seconds
        self._is_given = not packet.client_id
        self.own_id = packet.client_id or new_client_id()  # [MQTT-3.1.3-6]
        self.client_id = rules.mount_point + self.own_id
        self.early_bytes = _large_fields(packet)
        self.proof = b""
        self.answers: Any = None

    def check(self, limits: Limits, rules: Rules) -> None:
        """Whether the CONNECT can be carried out at all, whoever sends it. Raises Refused."""
        if self.packet.level not in rules.levels:
            text = f"this listener does not accept protocol level {self.packet.level}"
            raise WrongVersion(Reason.BAD_ARGUMENT, text)
        if len(self.client_id.encode()) > limits.client_id_bytes_max:
            raise Refused(Reason.BAD_NAME, "the client id is too long")
        if rules.is_foreign(self.client_id):
            text = "the client id begins as those of another listener or of bridges"
            raise Refused(Reason.BAD_NAME, text)
        features = limits.features
        self._bound_keep_alive(features.keep_alive_seconds_max)
        if self.packet.will is not None:
            _check_will(self.packet.will, features)

    def _bound_keep_alive(self, seconds_max: int) -> None:
        asked = self.packet.keep_alive_seconds
        if self.packet.level == MQTT_5 and seconds_max and not 0 < asked <= seconds_max:
            self._keep_alive_seconds = seconds_max

    def reason_of(self, error: Refused) -> ReasonCode:
        """The reason that the client is told."""
        if isinstance(error, WrongVersion):
            return ReasonCode.UNSUPPORTED_PROTOCOL_VERSION
        if isinstance(error, NotOffered):
            return error.code
        reason = CONNECT_REASONS[error.reason]
        has_none = self.packet.user is None and self.packet.password is None
        is_without = has_none or self.packet.method is not None
        if reason is ReasonCode.BAD_USER_NAME_OR_PASSWORD and is_without:
            return ReasonCode.NOT_AUTHORIZED  # there were no such credentials to be bad
        return reason

    @property
    def answer_size_min(self) -> int:
        """Bytes of the smallest CONNACK: a client that does not take it cannot be answered."""
        size = 3 + len(self.own_id.encode()) if self._is_given else 0
        if self.packet.method is not None:
            size += 3 + len(self.packet.method.encode()) + 3 + PROOF_SIZE_MAX
        if self._keep_alive_seconds != self.packet.keep_alive_seconds:
            size += 3
        return CONNACK_SIZE_MIN + size

    def silence_max(self) -> float:
        """Seconds without a packet after which the client is lost; 0: it need not say anything."""
        return KEEP_ALIVE_FACTOR * self._keep_alive_seconds

    def client(
        self, connection: SocketConnection, principal: str, end: Callable[[str], None]
    ) -> ConnectedClient:
        """What operators see of the client that has logged in."""
        roster = connection.roster
        return ConnectedClient(
            client_id=self.client_id,
            user=principal,
            peer=connection.peer,
            address=connection.address,
            listener="" if roster is None else roster.where,
            version=VERSIONS[self.packet.level],
            keep_alive_seconds=self._keep_alive_seconds,
            connected_ms=clock_ms(),
            end=end,
            trace=partial(trace_connection, connection),
        )

    def properties(self, session: Session, limits: Limits, user: str) -> dict[Property, Any]:
        """The properties of CONNACK (5.0 part 3.2.2.3), to a client that logged in as this user;
        empty: as nobody's."""
        if self.packet.level < MQTT_5:
            return {}
        found: dict[Property, Any] = {}
        if self.packet.method is not None:
            found[Property.AUTHENTICATION_METHOD] = self.packet.method
            found[Property.AUTHENTICATION_DATA] = self.proof
        if self._keep_alive_seconds != self.packet.keep_alive_seconds:  # [MQTT-3.1.2-21]
            found[Property.SERVER_KEEP_ALIVE] = self._keep_alive_seconds
        granted = session.expiry_seconds
        if granted != self.packet.expiry_seconds:
            found[Property.SESSION_EXPIRY_INTERVAL] = NEVER if granted is None else granted
        if self._is_given:
            found[Property.ASSIGNED_CLIENT_IDENTIFIER] = self.own_id
        features = limits.features
        if features.qos_max < 2:  # [MQTT-3.2.2-9]
            found[Property.MAXIMUM_QOS] = features.qos_max
        if not features.retain:
            found[Property.RETAIN_AVAILABLE] = 0
        if not features.wildcards:
            found[Property.WILDCARD_SUBSCRIPTION_AVAILABLE] = 0
        if not features.subscription_identifiers:
            found[Property.SUBSCRIPTION_IDENTIFIER_AVAILABLE] = 0
        if not features.shared_subscriptions:
            found[Property.SHARED_SUBSCRIPTION_AVAILABLE] = 0
        if limits.receive_max < RECEIVE_MAX:
            found[Property.RECEIVE_MAXIMUM] = limits.receive_max
        found[Property.MAXIMUM_PACKET_SIZE] = limits.packet_bytes_max
        found[Property.TOPIC_ALIAS_MAXIMUM] = limits.topic_aliases_max
        if self.packet.wants_response_information:  # [MQTT-3.1.2-28]
            information = features.response_information_for(self.own_id, user)
            if information:
                found[Property.RESPONSE_INFORMATION] = information
        size_max = self.packet.packet_bytes_max
        while size_max is not None and _connack_size(found) > size_max:
            found.popitem()  # the last matter least [MQTT-3.1.2-24]
        return found


def authenticate(
    packet: Connect,
    rules: Rules,
    port: BrokerPort,
    connection: SocketConnection,
    answer: Callable[[str | Refused], None],
    client_id: str,
) -> Callable[[], None]:
    """Who sent a CONNECT? See `AdmissionPort.authenticate`."""
    admission = port.admission
    try:
        certified = None if rules.user_of is None else rules.user_of(connection)
        if certified is not None:
            answer(admission.certified(certified, connection.address))
            return _nothing
        if not rules.allow_anonymous:
            if admission.for_principal(ANONYMOUS) is port:
                raise Refused(Reason.NOT_AUTHENTICATED, "there are no users who could log in")
            if packet.user is None:
                raise Refused(Reason.NOT_AUTHENTICATED, "name a user and its password")
    except Refused as error:
        answer(error)
        return _nothing
    origin = Origin(
        protocol="mqtt",
        client_id=client_id,
        mount_point=rules.mount_point,
        certificate=connection.certificate_subject,
    )
    return admission.authenticate(packet.user, packet.password, connection.address, answer, origin)


def _nothing() -> None:
    """There is nothing to withdraw."""


def _check_will(will: Will, features: Features) -> None:
    """Raises NotOffered."""
    if will.qos > features.qos_max:  # [MQTT-3.2.2-12]
        raise NotOffered(ReasonCode.QOS_NOT_SUPPORTED, "the will's QoS is too high here")
    if will.retain and not features.retain:  # [MQTT-3.2.2-13]
        raise NotOffered(ReasonCode.RETAIN_NOT_SUPPORTED, "the will is to be retained")
    if will.is_text and features.payload_format_checked:
        try:
            will.body.decode()
        except UnicodeDecodeError:
            raise NotOffered(
                ReasonCode.PAYLOAD_FORMAT_INVALID, "the will is not the text that it is said to be"
            ) from None


def _connack_size(properties: dict[Property, Any]) -> int:
    return len(encode_connack(MQTT_5, ReasonCode.SUCCESS, properties=properties))


def _large_fields(packet: Connect) -> int:
    """About how many bytes a CONNECT keeps until it is known who sent it."""
    size = len(packet.password or b"") + len(packet.user or "") + len(packet.data or b"")
    if packet.will is None:
        return size
    return size + len(packet.will.topic) + len(packet.will.body) + len(packet.will.properties)
