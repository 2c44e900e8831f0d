"""`$SYS/...`: topics that the server itself publishes to whoever subscribes.

What is published there are no messages of the log: they would fill disks and replicas with noise.
They are sent with QoS 0 to those who are connected. A subscription is the session's like any other,
in the log and as to rights; here is who is connected, and has which of them.

There are two kinds, each a part of `SysTopics`: values that are sent when they change
(`sys_values.py`), and what clients do (`client_events.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, Protocol

from polymq.broker.port import SERVER_TOPICS, Address, Refused, Session, SubscriptionOptions
from polymq.gateways.mqtt.fields import encode_length
from polymq.gateways.mqtt.kernels.codes import SUBSCRIPTION_IDENTIFIER

PUBLISH: Final = 0x30
"""The first byte of a PUBLISH with QoS 0."""


class Receiver(Protocol):
    """A client's connection: its `FastPath`."""

    session: Session | None
    """None before CONNACK, and when the connection has ended."""
    five: bool
    sent_bytes_max: int

    def credit(self) -> int:
        """How many messages the transport takes now."""

    def send_encoded(self, data: bytes, count: int) -> None:
        """Send so many PUBLISH packets."""


class SysPart(Protocol):
    """Some of these topics. A session may lose a subscription without a word: whoever sends asks it
    first."""

    def came(self) -> None:
        """One more client is connected."""

    def subscribed(
        self, receiver: Receiver, address: Address, options: SubscriptionOptions, *, replay: bool
    ) -> None:
        """A client has subscribed to what may be one of these topics.

        Args:
            replay: it gets the values that there are (Retain Handling).
        """

    def unsubscribed(self, receiver: Receiver, address: Address) -> None:
        """The client has no such subscription any more; nothing if it had none."""

    def left(self, receiver: Receiver) -> None:
        """The connection has ended."""


class SysTopics:
    """These topics, for MQTT listeners of a server that have the same parts.

    Args:
        parts: without any, there are no such topics.
    """

    def __init__(self, parts: Sequence[SysPart] = ()) -> None:
        self._parts = tuple(parts)

    def came(self, receiver: Receiver, check_read: Callable[[Address], None]) -> None:
        """A client is connected, with the subscriptions that its session has.

        Args:
            check_read: whether it may have a subscription yet. Raises Refused.
        """
        for part in self._parts:
            part.came()
        session = receiver.session
        if not self._parts or session is None or not session.present:
            return  # what a new one has it has just asked for: SUBACK is on its way
        for address, options in session.options():
            if address[0] in SERVER_TOPICS:
                with contextlib.suppress(Refused):  # the session is about to lose it
                    check_read(address)
                    self._subscribed(receiver, address, options, replay=False)

    def subscribed(
        self, receiver: Receiver, found: Mapping[Address, tuple[SubscriptionOptions, bool]]
    ) -> None:
        """A client has subscribed to filters, and gets the values that there are, or does not."""
        for address, (options, replay) in found.items():
            self._subscribed(receiver, address, options, replay=replay)

    def _subscribed(
        self, receiver: Receiver, address: Address, options: SubscriptionOptions, *, replay: bool
    ) -> None:
        for part in self._parts:
            part.subscribed(receiver, address, options, replay=replay)

    def unsubscribed(self, receiver: Receiver, address: Address) -> None:
        """The client has no such subscription any more."""
        for part in self._parts:
            part.unsubscribed(receiver, address)

    def left(self, receiver: Receiver) -> None:
        """The connection has ended."""
        for part in self._parts:
            part.left(receiver)


def encode_publish(
    topic_field: bytes, body: bytes, *, five: bool, identifiers: Collection[int], flags: int = 0
) -> bytes:
    """A PUBLISH with QoS 0.

    Args:
        topic_field: its topic name, with its size.
        five: of MQTT 5: with the Subscription Identifiers, in ascending order.
        flags: of the first byte.
    """
    name = bytes((SUBSCRIPTION_IDENTIFIER,))
    found = b"".join(name + encode_length(one) for one in sorted(identifiers) if one)
    more = encode_length(len(found)) + found if five else b""
    content = topic_field + more + body
    return bytes((PUBLISH | flags,)) + encode_length(len(content)) + content
