"""`$SYS/broker/...`: values that say how the server is doing.

Rules:

* Nothing is computed and no timer runs while nobody subscribes to a topic that there is.
* A value is sent when it has changed since the receiver got it. A receiver that reads slowly misses
  values, and gets the latest when it has room.
* A receiver gets a change once, however many of its subscriptions match, with the Subscription
  Identifiers of all of them, as with the messages of the log [MQTT-3.3.4-2].
* The values that a new subscription gets have RETAIN, and its own identifier only: what is there
  already is sent to each subscription by itself. A change has RETAIN where a subscription that
  matches is with Retain As Published.
* Packets are made once for all receivers that get the same, and sent in turns with the other work
  of the loop (`net/turns.py`): ten thousand receivers do not stop it.
* At each sending the session is asked whether it still has the subscription.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Final

from polymq.broker.port import ONE_LEVEL, REST, Address, SubscriptionOptions
from polymq.gateways.mqtt.fields import encode_field
from polymq.gateways.mqtt.kernels.codes import FLAG_RETAIN
from polymq.gateways.mqtt.sys_figures import NAMES, PREFIX, Figures, Means, texts
from polymq.gateways.mqtt.sys_topics import Receiver, encode_publish
from polymq.net.connection import Context
from polymq.net.turns import Chore

FRAMES_MAX: Final = 256
"""Packets that are kept for further receivers. Receivers that lag, and subscription identifiers,
need some of their own."""
BRIDGE_STATE: Final = "connection/{}/state"
"""The name of the topic that says whether a bridge is connected, as mosquitto has it."""


class _Filter:
    """One filter, and those who are subscribed to it.

    Attributes:
        matched: which topics match; at least one.
    """

    __slots__ = ("matched", "watchers")

    def __init__(self, matched: tuple[int, ...]) -> None:
        self.matched = matched
        self.watchers: dict[_Watcher, _Member] = {}


class _Member:
    """One subscription of one connection.

    Attributes:
        seen: the round whose values it has; NOTHING: it gets those that there are, as retained.
    """

    __slots__ = ("address", "filter", "options", "seen")

    def __init__(
        self, address: Address, options: SubscriptionOptions, found: _Filter, seen: int
    ) -> None:
        self.address = address
        self.options = options
        self.filter = found
        self.seen = seen

    @property
    def key(self) -> _Key:
        """On what its packets depend."""
        options = self.options
        return self.address, self.seen, options.retain_as_published, options.identifier


class _Watcher:
    """One connection with its subscriptions. No more than 95 filters match a topic of six levels,
    so it has few thousand at most.

    Attributes:
        waits: it is in the queue.
    """

    __slots__ = ("members", "receiver", "waits")

    def __init__(self, receiver: Receiver) -> None:
        self.receiver = receiver
        self.members: dict[Address, _Member] = {}
        self.waits = False


_Key = tuple[Address, int, bool, int]
NOTHING: Final = -1


class SysValues:
    """These topics, for all MQTT listeners of a server: a `SysPart`.

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
        self._watchers: dict[Receiver, _Watcher] = {}
        self._queue: deque[_Watcher] = deque()
        self._frames: dict[tuple[object, ...], tuple[bytes, int]] = {}
        self._chore = Chore(context.turns, self._steps)
        self._timed = False

    def every(self, seconds: float) -> None:
        """Make the values so often at most, from the next time on."""
        self._interval = seconds

    # --- who gets values --------------------------------------------------------------------

    def came(self) -> None:
        """See `SysPart`."""
        self._clients_max = max(self._clients_max, self._connected())

    def subscribed(
        self, receiver: Receiver, address: Address, options: SubscriptionOptions, *, replay: bool
    ) -> None:
        """See `SysPart`."""
        found = self._filters.get(address)
        if found is None:
            matched = tuple(i for i, topic in enumerate(self._topics) if _matches(address, topic))
            if not matched:
                return
            found = self._filters[address] = _Filter(matched)
        watcher = self._watchers.get(receiver)
        if watcher is None:
            watcher = self._watchers[receiver] = _Watcher(receiver)
        member = watcher.members.get(address)
        if member is None:
            member = _Member(address, options, found, self._round)
            watcher.members[address] = found.watchers[watcher] = member
        member.options = options
        if replay:
            member.seen = NOTHING
            self._wait(watcher)
        if replay or not self._timed:
            self._chore.wake()

    def unsubscribed(self, receiver: Receiver, address: Address) -> None:
        """See `SysPart`."""
        watcher = self._watchers.get(receiver)
        if watcher is not None and address in watcher.members:
            self._forget(watcher, address)
            if not watcher.members:
                del self._watchers[receiver]

    def left(self, receiver: Receiver) -> None:
        """See `SysPart`."""
        watcher = self._watchers.pop(receiver, None)
        if watcher is not None:
            for address in list(watcher.members):
                self._forget(watcher, address)

    def _forget(self, watcher: _Watcher, address: Address) -> None:
        found = watcher.members.pop(address).filter
        del found.watchers[watcher]
        if not found.watchers:
            del self._filters[address]

    # --- turns ------------------------------------------------------------------------------

    def _wait(self, watcher: _Watcher) -> None:
        if not watcher.waits:
            watcher.waits = True
            self._queue.append(watcher)

    def _time_is_up(self) -> None:
        self._timed = False
        if self._watchers:
            self._chore.wake()

    def _steps(self) -> Iterator[None]:
        now = self._context.now()
        if now >= self._due and self._watchers:
            self._due = now + self._interval
            figures = yield from self._figures()
            self._take(figures, now)
            for found in list(self._filters.values()):
                newest = max(self._versions[topic] for topic in found.matched)
                for watcher, member in found.watchers.items():
                    if member.seen < newest:
                        self._wait(watcher)
                yield
        while self._queue:
            watcher = self._queue.popleft()
            watcher.waits = False
            self._send(watcher)
            yield
        if self._watchers and not self._timed:
            self._timed = True
            self._context.call_later(max(0.0, self._due - self._context.now()), self._time_is_up)

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

    def _send(self, watcher: _Watcher) -> None:
        """What the receiver has not got yet: to its new subscriptions all values, then changes."""
        receiver = watcher.receiver
        session = receiver.session
        for address in list(watcher.members):
            if session is None or not session.is_subscribed(address):
                self.unsubscribed(receiver, address)
        if not watcher.members or receiver.credit() <= 0:
            return  # it gets what it misses with the next values
        old = []
        for member in watcher.members.values():
            if member.seen == NOTHING:
                self._send_values(receiver, (member.key,), retain=True)
            else:
                old.append(member.key)
            member.seen = self._round
        if old:
            self._send_values(receiver, tuple(old), retain=False)

    def _send_values(self, receiver: Receiver, keys: tuple[_Key, ...], *, retain: bool) -> None:
        key = keys, retain, receiver.five, min(receiver.sent_bytes_max, 1024)
        made = self._frames.get(key)
        if made is None:
            made = self._packets(keys, receiver, retain=retain)
            if len(self._frames) >= FRAMES_MAX:
                self._frames.clear()
            self._frames[key] = made
        data, count = made
        if count:
            receiver.send_encoded(data, count)

    def _packets(
        self, keys: tuple[_Key, ...], receiver: Receiver, *, retain: bool
    ) -> tuple[bytes, int]:
        """PUBLISH packets, one for each value that a subscription has not seen, and how many."""
        identifiers: dict[int, set[int]] = {}
        retained = set(range(len(self._fields))) if retain else set()
        for address, seen, as_published, identifier in keys:
            for topic in self._filters[address].matched:
                if self._versions[topic] > seen:
                    identifiers.setdefault(topic, set()).add(identifier)
                    if as_published:
                        retained.add(topic)
        packets = []
        for topic in sorted(identifiers):
            packet = encode_publish(
                self._fields[topic],
                self._bodies[topic],
                five=receiver.five,
                identifiers=identifiers[topic],
                flags=FLAG_RETAIN if topic in retained else 0,
            )
            if len(packet) <= receiver.sent_bytes_max:  # [MQTT-3.1.2-24]
                packets.append(packet)
        return b"".join(packets), len(packets)


def _matches(pattern: Address, topic: tuple[str, ...]) -> bool:
    """Whether a filter matches a topic; its first level is no wildcard [MQTT-4.7.2-1]."""
    for index, level in enumerate(pattern):
        if level == REST:
            return index == len(pattern) - 1
        if index >= len(topic) or level not in (topic[index], ONE_LEVEL):
            return False
    return len(pattern) == len(topic)
