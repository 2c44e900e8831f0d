"""`$SYS/broker/...`: what the server publishes of itself to whoever subscribes.

The values are not messages of the log: they would fill disks and replicas with noise. They are made
when they are due, and sent with QoS 0 to those who are connected.

Rules:

* Nothing is computed and no timer runs while nobody subscribes to a topic that there is.
* A value is sent when it has changed since the receiver got it. A receiver that reads slowly misses
  values, and gets the latest when it has room.
* The values that a new subscription gets have RETAIN; others have it where the subscription is with
  Retain As Published.
* Packets are made once for all receivers that get the same, and sent in turns with the other work
  of the loop (`net/turns.py`): ten thousand receivers do not stop it.
* A subscription is the session's like any other, in the log and as to rights. Here is what is
  connected: at each sending the session is asked whether it still has the subscription.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Final, Protocol

from polymq.broker.port import (
    ONE_LEVEL,
    REST,
    SYS_TOPIC,
    Address,
    Refused,
    Session,
    SubscriptionOptions,
)
from polymq.gateways.mqtt.fields import encode_field, encode_length
from polymq.gateways.mqtt.kernels.codes import FLAG_RETAIN, SUBSCRIPTION_IDENTIFIER
from polymq.gateways.mqtt.sys_figures import NAMES, PREFIX, Figures, Means, texts
from polymq.net.connection import Context

FRAMES_MAX: Final = 256
"""Packets that are kept for further receivers. Receivers that lag, and subscription identifiers,
need some of their own."""
BRIDGE_STATE: Final = "connection/{}/state"
"""The name of the topic that says whether a bridge is connected, as mosquitto has it."""
_PUBLISH: Final = 0x30


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


class _Filter:
    """One filter, and those who are subscribed to it.

    Attributes:
        matched: which topics match; at least one.
    """

    __slots__ = ("matched", "members")

    def __init__(self, matched: tuple[int, ...]) -> None:
        self.matched = matched
        self.members: dict[Receiver, _Member] = {}


class _Member:
    """One subscription of one connection.

    Attributes:
        seen: the round whose values it has; NOTHING: it gets those that there are, as retained.
        waits: it is in the queue.
    """

    __slots__ = ("address", "filter", "options", "receiver", "seen", "waits")

    def __init__(
        self, receiver: Receiver, address: Address, options: SubscriptionOptions, found: _Filter
    ) -> None:
        self.receiver = receiver
        self.address = address
        self.options = options
        self.filter = found
        self.seen = NOTHING
        self.waits = False


NOTHING: Final = -1


class NoSysTopics:
    """What there is where these topics are switched off."""

    def came(self, receiver: Receiver, check_read: Callable[[Address], None]) -> None:
        """A client is connected, with the subscriptions that its session has.

        Args:
            check_read: whether it may have a subscription yet. Raises Refused.
        """

    def subscribed(
        self, receiver: Receiver, address: Address, options: SubscriptionOptions, *, replay: bool
    ) -> None:
        """A client has subscribed to what may be one of these topics.

        Args:
            replay: it gets the values that there are (Retain Handling).
        """

    def subscribed_all(
        self, receiver: Receiver, found: Mapping[Address, tuple[SubscriptionOptions, bool]]
    ) -> None:
        """`subscribed`, with what it takes, for some filters."""
        for address, (options, replay) in found.items():
            self.subscribed(receiver, address, options, replay=replay)

    def unsubscribed(self, receiver: Receiver, address: Address) -> None:
        """The client has no such subscription any more; nothing if it had none."""

    def left(self, receiver: Receiver) -> None:
        """The connection has ended."""

    def every(self, seconds: float) -> None:
        """Make the values so often at most, from the next time on. 0 is no interval."""


class SysTopics(NoSysTopics):
    """These topics, for all MQTT listeners of a server.

    Args:
        figures: collects the figures in steps; every step is short.
        connected: how many clients are connected now.
        interval_seconds: how often the values are made, at most.
        bridges: by name, whether each bridge is connected; the names stay the same.
    """

    def __init__(
        self,
        *,
        context: Context,
        figures: Callable[[], Generator[None, None, Figures]],
        connected: Callable[[], int],
        interval_seconds: float,
        bridges: Callable[[], Mapping[str, bool]] = dict,
    ) -> None:
        self._context = context
        self._bridges = bridges
        names = [*NAMES, *(BRIDGE_STATE.format(name) for name in bridges())]
        self._topics = [tuple(f"{PREFIX}{name}".split("/")) for name in names]
        self._fields = [encode_field(f"{PREFIX}{name}".encode()) for name in names]
        self._figures = figures
        self._connected = connected
        self._interval = interval_seconds
        self._begun = context.now()
        self._means = Means()
        self._clients_max = 0
        self._bodies = [b""] * len(names)
        self._versions = [0] * len(names)  # the round in which each value changed last
        self._round = 0
        self._due = self._begun
        self._filters: dict[Address, _Filter] = {}
        self._of_receiver: dict[Receiver, dict[Address, _Member]] = {}
        self._queue: deque[_Member] = deque()
        self._frames: dict[tuple[object, ...], tuple[bytes, int]] = {}
        self._work: Iterator[None] | None = None
        self._timed = False

    # --- who gets values --------------------------------------------------------------------

    def every(self, seconds: float) -> None:
        if seconds:
            self._interval = seconds

    def came(self, receiver: Receiver, check_read: Callable[[Address], None]) -> None:
        """See `NoSysTopics`."""
        self._clients_max = max(self._clients_max, self._connected())
        session = receiver.session
        if session is None or not session.present:
            return  # what a new one has it has just asked for: SUBACK is on its way
        for address, options in session.options():
            if address[0] == SYS_TOPIC:
                with contextlib.suppress(Refused):  # the session is about to lose it
                    check_read(address)
                    self.subscribed(receiver, address, options, replay=False)

    def subscribed(
        self, receiver: Receiver, address: Address, options: SubscriptionOptions, *, replay: bool
    ) -> None:
        """See `NoSysTopics`."""
        found = self._filters.get(address)
        if found is None:
            matched = tuple(i for i, topic in enumerate(self._topics) if _matches(address, topic))
            if not matched:
                return
            found = self._filters[address] = _Filter(matched)
        member = found.members.get(receiver)
        if member is None:
            member = found.members[receiver] = _Member(receiver, address, options, found)
            member.seen = self._round
            self._of_receiver.setdefault(receiver, {})[address] = member
        member.options = options
        if replay:
            member.seen = NOTHING
            self._wait(member)
        if replay or not self._timed:
            self._wake()

    def unsubscribed(self, receiver: Receiver, address: Address) -> None:
        """See `NoSysTopics`."""
        members = self._of_receiver.get(receiver)
        member = None if members is None else members.pop(address, None)
        if member is not None:
            self._forget(member)
            if not members:
                del self._of_receiver[receiver]

    def left(self, receiver: Receiver) -> None:
        """See `NoSysTopics`."""
        for member in self._of_receiver.pop(receiver, {}).values():
            self._forget(member)

    def _forget(self, member: _Member) -> None:
        found = member.filter
        found.members.pop(member.receiver, None)
        if not found.members and self._filters.get(member.address) is found:
            del self._filters[member.address]

    # --- turns ------------------------------------------------------------------------------

    def _wait(self, member: _Member) -> None:
        if not member.waits:
            member.waits = True
            self._queue.append(member)

    def _wake(self) -> None:
        if self._work is None:
            self._work = self._steps()
            self._context.turns.wait(self._take_turn)

    def _take_turn(self) -> None:
        turns, work = self._context.turns, self._work
        assert work is not None
        turns.begin()
        is_done = True
        try:
            is_done = turns.go_on(work)
        finally:
            self._work = None if is_done else work
        if not is_done:
            turns.wait(self._take_turn)
            return
        if self._of_receiver and not self._timed:
            self._timed = True
            self._context.call_later(max(0.0, self._due - self._context.now()), self._time_is_up)

    def _time_is_up(self) -> None:
        self._timed = False
        if self._of_receiver:
            self._wake()

    def _steps(self) -> Iterator[None]:
        now = self._context.now()
        if now >= self._due and self._of_receiver:
            self._due = now + self._interval
            figures = yield from self._figures()
            self._take(figures, now)
            for found in list(self._filters.values()):
                newest = max(self._versions[topic] for topic in found.matched)
                for member in list(found.members.values()):
                    if member.seen < newest:
                        self._wait(member)
                yield
        while self._queue:
            member = self._queue.popleft()
            member.waits = False
            self._send(member)
            yield

    # --- values -----------------------------------------------------------------------------

    def _take(self, figures: Figures, now: float) -> None:
        """New values are there."""
        self._round += 1
        self._frames.clear()
        means = self._means.take(figures, now - self._begun)
        found = texts(figures, means, uptime=now - self._begun, clients_max=self._clients_max)
        states = [str(int(connected)) for connected in self._bridges().values()]
        for index, text in enumerate([*found.values(), *states]):
            body = text.encode()
            if body != self._bodies[index]:
                self._bodies[index] = body
                self._versions[index] = self._round

    def _send(self, member: _Member) -> None:
        receiver = member.receiver
        session = receiver.session
        found = member.filter
        if found.members.get(receiver) is not member:
            return
        if session is None or not session.is_subscribed(member.address):
            self.unsubscribed(receiver, member.address)
            return
        if receiver.credit() <= 0:
            return  # it gets what it misses with the next values
        retain = member.seen == NOTHING or member.options.retain_as_published
        data, count = self._packets(
            member.address,
            member.seen,
            retain=retain,
            five=receiver.five,
            identifier=member.options.identifier,
            size_max=receiver.sent_bytes_max,
        )
        member.seen = self._round
        if count:
            receiver.send_encoded(data, count)

    def _packets(
        self,
        address: Address,
        seen: int,
        *,
        retain: bool,
        five: bool,
        identifier: int,
        size_max: int,
    ) -> tuple[bytes, int]:
        """PUBLISH packets of what changed after the round `seen`, and how many they are."""
        key = (address, seen, retain, five, identifier, min(size_max, 1024))
        made = self._frames.get(key)
        if made is None:
            first_byte = bytes((_PUBLISH | (FLAG_RETAIN if retain else 0),))
            more = _property_block(identifier) if five else b""
            packets = []
            for topic in self._filters[address].matched:
                if self._versions[topic] > seen:
                    content = self._fields[topic] + more + self._bodies[topic]
                    packet = first_byte + encode_length(len(content)) + content
                    if len(packet) <= size_max:  # [MQTT-3.1.2-24]
                        packets.append(packet)
            made = b"".join(packets), len(packets)
            if len(self._frames) >= FRAMES_MAX:
                self._frames.clear()
            self._frames[key] = made
        return made


def _property_block(identifier: int) -> bytes:
    """The properties of a PUBLISH of MQTT 5: a Subscription Identifier, if there is one."""
    if not identifier:
        return b"\x00"
    found = bytes((SUBSCRIPTION_IDENTIFIER,)) + encode_length(identifier)
    return encode_length(len(found)) + found


def _matches(pattern: Address, topic: tuple[str, ...]) -> bool:
    """Whether a filter matches a topic; its first level is no wildcard [MQTT-4.7.2-1]."""
    for index, level in enumerate(pattern):
        if level == REST:
            return index == len(pattern) - 1
        if index >= len(topic) or level not in (topic[index], ONE_LEVEL):
            return False
    return len(pattern) == len(topic)
