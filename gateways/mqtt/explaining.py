"""Why a request was refused, in words, as the Reason String of MQTT 5 (5.0 part 3.2.2.3.9 and
others): what is wrong and what to do.

Rules:

* A client that does not want to hear it (Request Problem Information 0) is told codes only
  [MQTT-3.1.2-29]. The standard would allow the string in CONNACK and DISCONNECT.
* A string that would make a packet larger than the client takes is left out [MQTT-3.2.2-19].
* Who is not logged in learns what the code says and no more: why a login failed is in the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from polymq.gateways.mqtt.kernels.codes import REMAINING_LENGTH_MAX
from polymq.gateways.mqtt.packets import Connect
from polymq.gateways.mqtt.properties import Property
from polymq.gateways.mqtt.reason_codes import ReasonCode

TEXT_BYTES_MAX: Final = 250
"""Of a reason string. Texts with long topic names are cut."""
ROOM: Final = 6
"""Bytes that a string takes beside its own, at most: its identifier and size, and longer lengths of
properties and packet."""
REFUSALS_EXPLAINED: Final = 16
"""Of the refused publishes of one read, those that are answered with a text. Others that are
refused beside them mostly have the same reason, and a text is larger than what it answers."""

TEXTS: Final[Mapping[ReasonCode, str]] = {
    ReasonCode.CLIENT_IDENTIFIER_NOT_VALID: "the client identifier is too long or not allowed: "
    "choose another one",
    ReasonCode.BAD_USER_NAME_OR_PASSWORD: "user name or password is wrong",
    ReasonCode.NOT_AUTHORIZED: "not allowed: log in as a user with the permission, or ask the "
    "operator for it",
    ReasonCode.SERVER_UNAVAILABLE: "the server does not accept clients now, for example because it "
    "is a follower or its disk is full: connect to another server, or later",
    ReasonCode.SERVER_BUSY: "the server is busy: connect again later",
    ReasonCode.SERVER_SHUTTING_DOWN: "the server is being stopped: connect again later",
    ReasonCode.USE_ANOTHER_SERVER: "this server does not serve clients now: use the server that "
    "the Server Reference names",
    ReasonCode.BANNED: "the client is banned, maybe for a time: ask the operator",
    ReasonCode.CONNECTION_RATE_EXCEEDED: "too many clients connect at once: connect again later",
    ReasonCode.UNSUPPORTED_PROTOCOL_VERSION: "this listener does not accept this version of MQTT",
    ReasonCode.ADMINISTRATIVE_ACTION: "an operator ended the connection",
    ReasonCode.BAD_AUTHENTICATION_METHOD: "the server does not have this authentication method: "
    "use SCRAM-SHA-256, or user name and password",
    ReasonCode.KEEP_ALIVE_TIMEOUT: "nothing was received for one and a half times the keep alive: "
    "send PINGREQ in time",
    ReasonCode.MAXIMUM_CONNECT_TIME: "the login has expired: log in again, with a new token "
    "if it was by one",
    ReasonCode.SESSION_TAKEN_OVER: "another connection uses the same client identifier",
    ReasonCode.QUOTA_EXCEEDED: "a limit or quota is reached: use less, or ask the operator to "
    "raise it",
    ReasonCode.PACKET_TOO_LARGE: "a packet is larger than the server takes, or than the client "
    "takes: send less, or raise Maximum Packet Size",
    ReasonCode.PAYLOAD_FORMAT_INVALID: "the payload is not UTF-8 text, though its Payload Format "
    "Indicator says so",
    ReasonCode.RETAIN_NOT_SUPPORTED: "messages cannot be retained here: set RETAIN to 0",
    ReasonCode.QOS_NOT_SUPPORTED: "the QoS is higher than the Maximum QoS of CONNACK: use a lower "
    "one",
    ReasonCode.UNSPECIFIED_ERROR: "the server had to give up: its log says why",
}
"""Where the code alone has to explain it."""


class Explainer:
    """What one client may be told in words.

    Attributes:
        packet_bytes_max: the largest packet that it takes.
    """

    __slots__ = ("_is_asked", "packet_bytes_max")

    def __init__(self) -> None:
        self._is_asked = False
        self.packet_bytes_max = REMAINING_LENGTH_MAX + 5

    def connected(self, packet: Connect) -> None:
        """The client's CONNECT, of MQTT 5, is here."""
        self._is_asked = packet.wants_problem_information
        if packet.packet_bytes_max is not None:
            self.packet_bytes_max = packet.packet_bytes_max

    def explained(self, text: str, size: int) -> dict[Property, Any]:
        """The properties that explain what a packet says, which has so many bytes without them:
        the text as Reason String, or nothing."""
        if not text or not self._is_asked:
            return {}
        raw = text.encode("utf-8", "replace")[:TEXT_BYTES_MAX]
        if size + ROOM + len(raw) > self.packet_bytes_max:
            return {}
        shown = raw.decode("utf-8", "ignore")
        if not shown.isprintable():
            shown = "".join(each if each.isprintable() else "?" for each in shown)
        return {Property.REASON_STRING: shown}
