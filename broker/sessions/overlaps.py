"""Which subscriptions of one session match a message, where its filters overlap.

A session gets one copy of a message, however many of its filters match [MQTT-3.3.4-2]. What the
copy looks like is found here: it has the highest QoS of the subscriptions that count, the
Subscription Identifiers of all of them, and RETAIN as published if one of them wants that. A
subscription with No Local does not count for what its client published. Shared subscriptions are
deliveries of their own, and never here.

Which subscription sends the copy:

* If a durable one has the message in its queue, a durable one does (`log_order.py`), and no live
  one.
* Else the oldest live one. A run is offered to all live subscriptions that there were when it was
  published, so the oldest of those that there are is among them, if any is. Before a connection
  has all its subscriptions attached (`MqttSession.attached`), and where a durable one has taken the
  place of a live one, it is the first that is offered the run.

A session has this only if two of its filters may match the same topic. With few filters that is
compared; with many it is enough that one has a wildcard. Other sessions have nothing of it, and
their messages take the short way (`LiveEnd.special`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import combinations
from typing import Any, Final, Generic, Protocol, TypeVar

from polymq.broker.accounts.permissions import overlaps
from polymq.broker.bounded_cache import BoundedCache, SizedCache
from polymq.broker.core import Core
from polymq.broker.kernels.delivery import publish_qos
from polymq.broker.kernels.path import Committed
from polymq.broker.messages.runs import RunMeta
from polymq.broker.port.sessions import PUBLISHER_PROPERTY, SubscriptionOptions
from polymq.broker.port.values import ONE_LEVEL, REST, Address
from polymq.broker.queues.cursor import NO_STOP
from polymq.broker.queues.queue import Group, Registration
from polymq.broker.routing.patterns import Patterns, is_exact
from polymq.broker.routing.trie import address_of
from polymq.broker.sessions.log_order import LogOrder
from polymq.broker.topics.retained import RETAIN_PROPERTY

COMPARED_MAX: Final = 16
"""Subscriptions of a session whose filters are compared with each other: up to 120 pairs, some 5 us
each."""
FOUND_MAX: Final = 32
"""Topics for which a session remembers which subscriptions match; about 0.5 KiB each."""
FOUND_SIZE_MAX: Final = 16 * 1024
"""Characters of these topics: a tag may have 32,000."""
TAKEN_MAX: Final = 4
"""Runs that may be on their way to live subscriptions at the same time: one for each commit
point."""


class Overlapping(Protocol):
    """A subscription, as far as it matters here: see `subscription.Subscription`."""

    address: Address
    options: SubscriptionOptions
    qos: int
    special: bool
    registration: Registration | None

    @property
    def is_shared(self) -> bool:
        """Whether other sessions have a part in it."""

    @property
    def durable(self) -> bool:
        """Whether messages wait for it while the client is away."""

    @property
    def group(self) -> Group | None:
        """Its cursor."""


S = TypeVar("S", bound=Overlapping)


class Matching(Generic[S]):
    """The subscriptions of a session that count for a message.

    Attributes:
        durable, live: those, the oldest first.
        qos: the highest of the live ones.
        identifiers: the Subscription Identifiers, in ascending order, each once.
    """

    __slots__ = ("_retains", "durable", "identifiers", "live", "qos")

    def __init__(self, subscriptions: Sequence[S]) -> None:
        self.durable = tuple(one for one in subscriptions if one.durable)
        self.live = tuple(one for one in subscriptions if not one.durable)
        self.qos = max((one.qos for one in self.live), default=0)
        found = {one.options.identifier for one in subscriptions}
        self.identifiers = tuple(sorted(found - {0}))
        self._retains = any(one.options.retain_as_published for one in subscriptions)

    def __bool__(self) -> bool:
        return bool(self.durable or self.live)

    def sends_retain(self, meta: RunMeta) -> bool:
        """Whether such messages are sent with RETAIN, though they are new."""
        return self._retains and RETAIN_PROPERTY in meta.properties


class Copy:
    """How a run is sent for several subscriptions.

    Attributes:
        qos: the highest that they ask for.
        also: where else the messages stand: other groups of the session, with the offset there of
            the first one.
    """

    __slots__ = ("also", "identifiers", "qos", "retain")

    def __init__(self, qos: int, matching: Matching[Any], meta: RunMeta) -> None:
        self.qos = qos
        self.retain = matching.sends_retain(meta)
        self.identifiers = matching.identifiers
        self.also: Sequence[tuple[Group, int]] = ()


class Overlaps(Generic[S]):
    """The subscriptions of one session whose filters may overlap.

    Attributes:
        log_order: which of the durable ones sends what.
    """

    def __init__(
        self, core: Core, client_id: str, subscriptions: Iterable[S], *, keeps_qos_0: bool
    ) -> None:
        self.log_order: LogOrder[S] = LogOrder(core)
        self._client_id = client_id
        self._keeps_qos_0 = keeps_qos_0
        self._patterns: Patterns[S] = Patterns()
        self._ages: dict[S, int] = {}
        self._added_count = 0
        self._begins: dict[Group, int] = {}
        """Where in the log the durable subscriptions begin that were made beside others."""
        self._found: SizedCache[Address, tuple[Matching[S], Matching[S]]] | None = None
        self._taken: BoundedCache[int, S] | None = None
        self._live_qos: int | None = None
        for subscription in subscriptions:
            self.add(subscription)

    # --- changes ------------------------------------------------------------------------------

    def add(self, subscription: S) -> None:
        """The session has one more."""
        if subscription.is_shared:
            return
        subscription.special = True
        self._patterns.add(subscription.address, subscription)
        self._added_count += 1
        self._ages[subscription] = self._added_count
        self.changed()

    def remove(self, subscription: S) -> None:
        """One is none of the session's any more. It stays special: it may be offered runs that were
        published before."""
        if self._ages.pop(subscription, None) is None:
            return
        self._patterns.remove(subscription.address, subscription)
        if subscription.group is not None:
            self._begins.pop(subscription.group, None)
            self.log_order.forget(subscription.group)
        self.changed()

    def begins(self, group: Group, position: int) -> None:
        """A durable subscription has this group now. Its queue has for it what stands behind the
        position."""
        self._begins[group] = position
        self.changed()

    def changed(self) -> None:
        """Something is different of a subscription."""
        self._found = None
        self._live_qos = None

    def end(self) -> None:
        """The session has ended, or its filters do not overlap any more."""
        self.log_order.clear()
        self._begins.clear()

    # --- which match --------------------------------------------------------------------------

    def matching(self, meta: RunMeta) -> Matching[S]:
        """Those that count for messages of this kind."""
        address = address_of(meta.topic, meta.tag)
        found = None if self._found is None else self._found.get(address)
        if found is None:
            found = self._find(address)
        is_own = meta.properties.get(PUBLISHER_PROPERTY) == self._client_id
        return found[1] if is_own else found[0]

    def _find(self, address: Address) -> tuple[Matching[S], Matching[S]]:
        if self._found is None:
            self._found = SizedCache(FOUND_MAX, FOUND_SIZE_MAX, _size_of)
        there = sorted(self._patterns.match(address), key=self._ages.__getitem__)
        everybodys = Matching(there)
        own = everybodys
        if any(one.options.no_local for one in there):
            own = Matching([one for one in there if not one.options.no_local])
        self._found.add(address, (everybodys, own))
        return everybodys, own

    @property
    def live_qos(self) -> int:
        """The highest QoS of all live subscriptions."""
        if self._live_qos is None:
            self._live_qos = max((one.qos for one in self._ages if not one.durable), default=0)
        return self._live_qos

    # --- which sends --------------------------------------------------------------------------

    def sends(
        self, subscription: S, run: Committed, raised: Sequence[S], *, attached: bool
    ) -> bool:
        """Whether a live subscription, which is offered a run, is the one that sends it.

        Args:
            raised: live ones that durable ones have taken the place of: what was published before
                that is theirs.
            attached: all subscriptions of the session are connected.
        """
        matching = self.matching(run.meta)
        position = run.spans[0].position
        if any(self._has(durable, run, position) for durable in matching.durable):
            return False
        there = {one.address for one in matching.durable}
        candidates = [one for one in raised if one.address in there]
        if subscription not in matching.live and subscription not in candidates:
            return False
        if attached and not candidates:
            return matching.live[0] is subscription
        if self._taken is None:
            self._taken = BoundedCache(TAKEN_MAX)
        if position not in self._taken:
            self._taken.add(position, subscription)
        return self._taken[position] is subscription

    def _has(self, durable: S, run: Committed, position: int) -> bool:
        """Whether a run that became visible waits in the queue of a durable subscription, or has
        left by it."""
        group = durable.group
        if group is None or group.cursor.stop != NO_STOP:
            return False  # its session is full
        if self._begins.get(group, 0) > position:
            return False
        waits = self._keeps_qos_0 or min(publish_qos(run), durable.qos) > 0
        return waits or durable.registration is not None


def _size_of(address: Address) -> int:
    return sum(map(len, address))


def may_overlap(first: Address, second: Address) -> bool:
    """Whether a topic may match two different filters."""
    if is_exact(first) and is_exact(second):
        return False
    for one, other in ((first, second), (second, first)):
        if one[0] in (ONE_LEVEL, REST) and other[0].startswith("$"):
            return False  # [MQTT-4.7.2-1]
    return overlaps(first, second)


def begins_to_overlap(subscriptions: Collection[Overlapping], added: Overlapping) -> bool:
    """Whether filters may overlap of which none did before the last one was added.

    Args:
        subscriptions: all of the session, with the new one.
    """
    if len(subscriptions) > COMPARED_MAX + 1:  # none of the others has a wildcard
        return not added.is_shared and not is_exact(added.address)
    if len(subscriptions) > COMPARED_MAX:
        return any_overlap(subscriptions)
    if added.is_shared:
        return False
    return any(
        may_overlap(one.address, added.address)
        for one in subscriptions
        if one is not added and not one.is_shared
    )


def any_overlap(subscriptions: Collection[Overlapping]) -> bool:
    """Whether some filters of these may overlap."""
    addresses = [one.address for one in subscriptions if not one.is_shared]
    if len(subscriptions) > COMPARED_MAX:
        return len(addresses) > 1 and not all(map(is_exact, addresses))
    return any(may_overlap(first, second) for first, second in combinations(addresses, 2))
