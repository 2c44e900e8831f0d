"""What of MQTT an operator switches off, bounds or adds, on one listener.

The defaults are all that the standard has. CONNACK tells a client of MQTT 5 what is switched off
(5.0 part 3.2.2.3), and a client that uses it nevertheless is answered as that part says. The older
versions have no such words: see each attribute.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from polymq.broker.port import Reason, Refused
from polymq.gateways.mqtt.reason_codes import ReasonCode

CLIENT_ID: Final = "{client_id}"
USER: Final = "{user}"
"""What stands in `Features.response_information` for the two."""


class NotOffered(Refused):
    """A will or a topic filter asks for what this listener does not have.

    Attributes:
        code: what MQTT 5 calls it.
    """

    def __init__(self, code: ReasonCode, text: str) -> None:
        super().__init__(Reason.BAD_ARGUMENT, text)
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """The settings of one listener."""

    keep_alive_seconds_max: int = 0
    """The longest keep alive; 0: any, and none as well. Clients of MQTT 5 are told another one in
    CONNACK, and have to use it [MQTT-3.2.2-21]. Those of the older versions cannot be told, so what
    they say themselves holds."""
    qos_max: int = 2
    """The highest QoS of publishes and wills, 0 to 2. Subscriptions are granted no more. A client
    of an older version that publishes with a higher one is closed."""
    retain: bool = True
    """Whether messages may be retained. If not, a client that asks for it is closed."""
    wildcards: bool = True
    """Whether topic filters may have wildcards. If not, MQTT 5 closes; 3.1.1 refuses the filter."""
    shared_subscriptions: bool = True
    """Whether clients may share subscriptions. If not, filters `$share/...` and `$queue/...` are
    refused."""
    subscription_identifiers: bool = True
    """Whether SUBSCRIBE may have one. Only MQTT 5 has them."""
    payload_format_checked: bool = False
    """Whether a payload that is said to be UTF-8 text has to be that (5.0 part 3.3.2.3.2)."""
    response_information: str = ""
    """What Response Information is made of (5.0 part 3.2.2.3.15): text in which `CLIENT_ID` and
    `USER` are replaced. Empty: none is sent."""
    server_reference: str = ""
    """Where clients of MQTT 5 are sent when this server stops or cannot serve them: one or more
    hosts with or without a port (5.0 part 4.11). Empty: nowhere."""

    def response_information_for(self, client_id: str, user: str) -> str:
        """The Response Information of one client; empty where none is sent, or where it would be
        nothing that a topic name can begin with."""
        text = self.response_information
        if USER in text and not user:
            return ""
        found = text.replace(CLIENT_ID, client_id).replace(USER, user)
        return "" if {"+", "#"} & set(found) else found
