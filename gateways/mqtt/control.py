"""`$CONTROL/dynamic-security/v1`: administration over MQTT, as mosquitto has it.

A client publishes a request there, and gets the answer at `RESPONSES`. Neither is a message of the
log: the request goes to an `Administrator`, and the answer to the client that asked, and to nobody
else, if it is subscribed. What is in them only the administrator knows.

Rules:

* An acknowledgement says that the request has come. What came of it is in the answer.
* Requests have QoS 0 or 1: one that is sent again after a lost connection is carried out again.
* Answers have QoS 0. A client that does not take one loses it; what it asked for is done.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Final, Protocol

from polymq.broker.port import (
    CONTROL_TOPIC,
    ONE_LEVEL,
    REST,
    Address,
    BrokerPort,
    Reason,
    Refused,
    SubscriptionOptions,
)
from polymq.gateways.mqtt.fields import encode_field
from polymq.gateways.mqtt.sys_topics import Receiver, encode_publish

REQUESTS: Final = b"$CONTROL/dynamic-security/v1"
RESPONSES: Final[Address] = (CONTROL_TOPIC, "dynamic-security", "v1", "response")
REQUEST_BYTES_MAX: Final = 64 * 1024
"""As much as a request of the admin API may have."""


def _filters() -> frozenset[Address]:
    """The filters that match RESPONSES. The first level of one is no wildcard [MQTT-4.7.2-1]."""
    found: set[Address] = set()
    for size in range(1, len(RESPONSES) + 1):
        for levels in product(*((level, ONE_LEVEL) for level in RESPONSES[1:size])):
            whole = (CONTROL_TOPIC, *levels)
            found.add((*whole, REST))
            if size == len(RESPONSES):
                found.add(whole)
    return frozenset(found)


FILTERS: Final = _filters()


class Administrator(Protocol):
    """Carries out requests."""

    def take(
        self, request: bytes, *, user: str, port: BrokerPort, answer: Callable[[bytes], None]
    ) -> None:
        """Begin with a request. `answer` is called later, once.

        Args:
            user: who asks, for the audit log.
            port: what that user may do.

        Raises:
            Refused: the user may not administrate, or too many requests wait.
        """


class ControlTopics:
    """These topics, for all MQTT listeners of a server that have them: a `SysPart`."""

    def __init__(self, administrator: Administrator) -> None:
        self._administrator = administrator
        self._subscribed: dict[Receiver, dict[Address, int]] = {}
        """Who gets answers: the filters of each, with their Subscription Identifiers."""
        self._field = encode_field("/".join(RESPONSES).encode())

    # --- who gets answers -------------------------------------------------------------------

    def came(self) -> None:
        """See `SysPart`."""

    def subscribed(
        self, receiver: Receiver, address: Address, options: SubscriptionOptions, *, replay: bool
    ) -> None:
        """See `SysPart`."""
        if address in FILTERS:
            self._subscribed.setdefault(receiver, {})[address] = options.identifier

    def unsubscribed(self, receiver: Receiver, address: Address) -> None:
        """See `SysPart`."""
        filters = self._subscribed.get(receiver, {})
        if filters.pop(address, None) is not None and not filters:
            del self._subscribed[receiver]

    def left(self, receiver: Receiver) -> None:
        """See `SysPart`."""
        self._subscribed.pop(receiver, None)

    # --- requests ---------------------------------------------------------------------------

    def take(
        self, receiver: Receiver, request: bytes, *, qos: int, user: str, port: BrokerPort
    ) -> None:
        """A client has published a request. Raises Refused."""
        if qos > 1:
            raise Refused(
                Reason.BAD_ARGUMENT, "requests are published with QoS 0 or 1, not with QoS 2"
            )
        if len(request) > REQUEST_BYTES_MAX:
            raise Refused(
                Reason.TOO_LARGE,
                f"a request has at most {REQUEST_BYTES_MAX} bytes: send fewer commands at a time",
            )

        def answer(body: bytes) -> None:
            self._answer(receiver, body)

        self._administrator.take(request, user=user, port=port, answer=answer)

    def _answer(self, receiver: Receiver, body: bytes) -> None:
        session = receiver.session
        for address in list(self._subscribed.get(receiver, ())):
            if session is None or not session.is_subscribed(address):
                self.unsubscribed(receiver, address)
        filters = self._subscribed.get(receiver)
        if not filters or receiver.credit() <= 0:
            return
        packet = encode_publish(
            self._field, body, five=receiver.five, identifiers=set(filters.values())
        )
        if len(packet) <= receiver.sent_bytes_max:  # [MQTT-3.1.2-24]
            receiver.send_encoded(packet, 1)
