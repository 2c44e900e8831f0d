"""What a client knows of where topics live, and whom it asks. Pure.

Rules:

* A name server is chosen by chance and kept as long as it answers, so that the clients of a cluster
  spread over its name servers. When it fails, the next in the list is asked; also when it does not
  know a topic, because one that has just started knows none.
* Routes are asked for anew every `refresh_seconds`. What cannot be learned changes nothing: while
  all name servers are away, or back and still without brokers, the old route holds.
* `changed` is given when a route differs from the one that was known.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Never

from polymq.remoting.bodies import TopicRoute, decode_route
from polymq.remoting.codes import (
    MASTER_ID,
    PERMISSION_READ,
    PERMISSION_WRITE,
    RequestCode,
    ResponseCode,
)
from polymq.remoting.errors import (
    BadFields,
    CallFailed,
    LocalProtocolError,
    RequestFailed,
    Unreachable,
)
from polymq.remoting.group_bodies import MessageQueue
from polymq.remoting.headers import TopicFields, write_fields
from polymq.remoting.steps import Address, Call, Fetch, Pause, Signal, Steps, ask

ADDRESSES_VARIABLE: Final = "NAMESRV_ADDR"
"""RocketMQ's environment variable: `host:port;host:port`."""
TOPICS_COUNT_MAX: Final = 10_000
"""Routes that a client keeps fresh; beyond, the one that was learned first is forgotten."""


LIST_SECONDS: Final = 120.0
"""How often an address server is asked for the name servers, as by RocketMQ's clients."""


def parse_name_servers(text: str | None, environ: Mapping[str, str]) -> tuple[Address, ...]:
    """`host:port` between `;` or `,`: from an option, else from `NAMESRV_ADDR`.

    Raises:
        LocalProtocolError: neither names any, or what is there is no address.
    """
    given = text or environ.get(ADDRESSES_VARIABLE) or ""
    addresses = tuple(
        Address.parse(part) for part in given.replace(",", ";").split(";") if part.strip()
    )
    if not addresses:
        raise LocalProtocolError(f"no name server is given: name one, or set {ADDRESSES_VARIABLE}")
    return addresses


@dataclass(slots=True)
class NameServers:
    """Which name server to ask.

    Args:
        choose: a number below its argument, by chance.
    """

    addresses: Sequence[Address]
    choose: Callable[[int], int]
    _current: Address | None = None

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.addresses)

    def current(self) -> Address:
        """The one to ask now."""
        if self._current is None:
            self._current = self.addresses[self.choose(len(self.addresses))]
        return self._current

    def failed(self, address: Address) -> None:
        """It did not answer: ask the next."""
        if address == self._current:
            index = (list(self.addresses).index(address) + 1) % len(self.addresses)
            self._current = self.addresses[index]

    def replace(self, addresses: Sequence[Address]) -> None:
        """The list is another now; the one in use stays in use if it is on it."""
        self.addresses = tuple(addresses)
        if self._current not in self.addresses:
            self._current = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteSettings:
    """How patient, and how often."""

    call_seconds: float = 3.0
    """RocketMQ's default."""
    refresh_seconds: float = 30.0
    """RocketMQ's `pollNameServerInterval`."""


@dataclass(slots=True)
class Routes:
    """The routes that a client knows.

    Args:
        endpoint: URL of an address server, which says who the name servers are; `names` may then
            begin without any. Empty: they stay the same.
    """

    names: NameServers
    settings: RouteSettings = field(default_factory=RouteSettings)
    changed: Signal = field(default_factory=Signal)
    endpoint: str = ""
    _known: OrderedDict[str, TopicRoute] = field(default_factory=OrderedDict)

    def known(self, topic: str) -> TopicRoute | None:
        """What is known of a topic, without asking."""
        return self._known.get(topic)

    def get(self, topic: str) -> Steps[TopicRoute]:
        """What is known of a topic, else what a name server knows. Raises as `fetch`."""
        known = self._known.get(topic)
        return known if known is not None else (yield from self.fetch(topic))

    def fetch(self, topic: str) -> Steps[TopicRoute]:
        """Ask the name servers, each once, until one knows.

        Raises:
            RequestFailed: those that answered say that there is no such topic.
            Unreachable: none answered.
        """
        if not self.names.addresses:
            yield from self.list_name_servers()
        failure: Exception | None = None
        unknown: RequestFailed | None = None
        for _ in range(self.names.count):
            address = self.names.current()
            try:
                route = yield from self._ask(address, topic)
            except RequestFailed as error:
                if error.code == ResponseCode.TOPIC_NOT_EXIST:
                    unknown = error
                failure = error
            except (CallFailed, BadFields) as error:
                failure = error
            else:
                self._learn(topic, route)
                return route
            self.names.failed(address)
        if unknown is not None:
            raise unknown
        raise Unreachable(f"no name server answers: {failure}") from failure

    def refresh(self, topic: str) -> Steps[TopicRoute | None]:
        """Ask, and stay with what is known if nothing can be learned."""
        try:
            return (yield from self.fetch(topic))
        except (RequestFailed, Unreachable):
            return self._known.get(topic)

    def list_name_servers(self) -> Steps[bool]:
        """Ask the address server. False if it does not say: then the list stays as it is."""
        try:
            answer = yield Fetch(url=self.endpoint, seconds=self.settings.call_seconds)
            assert answer is not None, "a driver answers a Fetch with a Command"
            text = answer.body.decode("ascii", "replace").strip()
            self.names.replace(parse_name_servers(text or ";", {}))
        except (CallFailed, LocalProtocolError):
            return False
        return True

    def keep_fresh(self) -> Steps[Never]:
        """Ask again and again for all topics that are known."""
        listed_seconds = 0.0
        while True:
            yield Pause(seconds=self.settings.refresh_seconds)
            listed_seconds += self.settings.refresh_seconds
            if self.endpoint and listed_seconds >= LIST_SECONDS:
                listed_seconds = 0.0
                yield from self.list_name_servers()
            for topic in tuple(self._known):
                yield from self.refresh(topic)

    def _ask(self, address: Address, topic: str) -> Steps[TopicRoute]:
        call = Call(
            address=address,
            code=RequestCode.GET_ROUTE,
            fields=write_fields(TopicFields(topic=topic)),
            seconds=self.settings.call_seconds,
        )
        return decode_route((yield from ask(call)).body)

    def _learn(self, topic: str, route: TopicRoute) -> None:
        before = self._known.get(topic)
        if before is None and len(self._known) >= TOPICS_COUNT_MAX:
            self._known.popitem(last=False)
        self._known[topic] = route
        if before != route:
            self.changed.give()


# --- reading a route --------------------------------------------------------------------------


def master_of(route: TopicRoute, broker: str) -> Address | None:
    """Where a broker group's master is; None if it has none, or its address is none."""
    for data in route.broker_datas:
        if data.broker_name == broker:
            text = data.broker_addrs.get(str(MASTER_ID))
            try:
                return None if text is None else Address.parse(text)
            except LocalProtocolError:
                return None
    return None


def queues_to_write(topic: str, route: TopicRoute) -> list[MessageQueue]:
    """The queues that take messages: those with the permission, of groups with a master. In the
    order that the route gives, which for an ordered topic is the administrator's."""
    counts = {
        data.broker_name: data.write_queue_nums
        for data in sorted(route.queue_datas, key=lambda data: data.broker_name)
        if data.perm & PERMISSION_WRITE and master_of(route, data.broker_name) is not None
    }
    if route.order_topic_conf:
        counts = _ordered(route.order_topic_conf, counts)
    return _queues(topic, counts)


def queues_to_read(topic: str, route: TopicRoute) -> list[MessageQueue]:
    """The queues that messages can be read from."""
    counts = {
        data.broker_name: data.read_queue_nums
        for data in sorted(route.queue_datas, key=lambda data: data.broker_name)
        if data.perm & PERMISSION_READ
    }
    return _queues(topic, counts)


def _ordered(order: str, counts: Mapping[str, int]) -> dict[str, int]:
    """`broker-a:8;broker-b:8`; brokers that cannot be written to are left out."""
    found: dict[str, int] = {}
    for part in order.split(";"):
        name, _, count = part.partition(":")
        if name in counts and count.isdecimal():
            found[name] = int(count)
    return found


def _queues(topic: str, counts: Mapping[str, int]) -> list[MessageQueue]:
    return [
        MessageQueue(topic=topic, broker_name=name, queue_id=queue_id)
        for name, count in counts.items()
        for queue_id in range(count)
    ]
