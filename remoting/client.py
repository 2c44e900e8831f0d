"""What a client does, without doing it.

Every operation is a generator of steps (`remoting.steps`), which a driver carries out.

Theory of failover:

* The addresses that the user gives are asked for routes, in turn, beginning with the one that
  answered last. RocketMQ clients do the same with name servers; PolyMQ's brokers answer route
  questions too, so either may be given.
* Data is asked for at the master that the route names. When it does not answer, the route is
  asked for again before the next attempt: after a failover it names another.
* Everything here only reads, so an attempt whose outcome is unknown is simply made again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from polymq.remoting.bodies import BrokerData, TopicRoute, decode_route, decode_topic_list
from polymq.remoting.codes import PERMISSION_READ, RequestCode, ResponseCode
from polymq.remoting.errors import CallFailed, LocalProtocolError, RequestFailed, Unreachable
from polymq.remoting.frames import Command
from polymq.remoting.headers import (
    READER_GROUP,
    Fields,
    OffsetAnswer,
    PullAnswer,
    PullFields,
    QueueFields,
    RouteAnswer,
    SearchFields,
    TopicFields,
    read_fields,
    write_fields,
)
from polymq.remoting.steps import Address, Call, Pause, Steps, ask

_MASTER_ID: Final = "0"
_BUSY: Final = frozenset((ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE))
_GOOD: Final = (ResponseCode.SUCCESS,)
_PULL_CODES: Final = frozenset(
    (
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    )
)
ROUTES_COUNT_MAX: Final = 10_000
"""Routes that a client remembers; beyond it forgets all and asks again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """How patient a client is.

    The defaults outlast a broker's restart: eight attempts with pauses of 0.1, 0.2, ... 5 seconds
    are about sixteen seconds of refused connections, and eight times as long as a call may take
    if the network swallows packets.
    """

    call_seconds: float = 3.0
    """RocketMQ's default for everything but pulls."""
    pull_seconds: float = 30.0
    attempts_max: int = 8
    pause_first_seconds: float = 0.1
    pause_seconds_max: float = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicName:
    """A topic's two names.

    Attributes:
        stored: in RocketMQ's character set.
        user: what the other operations take; None where it is no Unicode text. Servers that are
            not PolyMQ have one name only.
    """

    stored: str
    user: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerQueues:
    """The readable queues of a topic on one broker group: ids 0 to `queue_count - 1`."""

    broker: str
    address: Address
    queue_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Where a topic can be read.

    Attributes:
        incarnation: None where the server is not PolyMQ.
    """

    topic: str
    brokers: tuple[BrokerQueues, ...]
    incarnation: int | None

    def broker(self, name: str) -> BrokerQueues:
        """One of the brokers by name; CallFailed if the topic is not there (now)."""
        for broker in self.brokers:
            if broker.broker == name:
                return broker
        raise CallFailed(f"topic {self.topic!r} has no readable queue on broker {name!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueBounds:
    """What a queue holds: offsets `first` to `end - 1`."""

    first: int
    end: int
    incarnation: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulled:
    """The answer to a pull.

    Attributes:
        code: SUCCESS, PULL_NOT_FOUND, PULL_RETRY_IMMEDIATELY or PULL_OFFSET_MOVED.
        records: commit-log records (`remoting.records`); empty unless SUCCESS.
    """

    code: int
    records: bytes
    next_offset: int
    min_offset: int
    max_offset: int
    incarnation: int | None


@dataclass(slots=True)
class ClientCore:
    """The operations of a client. Make one per driver; it is not for several threads."""

    addresses: Sequence[Address]
    settings: ClientSettings = field(default_factory=ClientSettings)
    _current: int = 0  # of the addresses: which is asked next, because it answered last
    _routes: dict[str, Route] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        if not self.addresses:
            raise LocalProtocolError("a client needs at least one address")

    # --- operations -----------------------------------------------------------------------

    def topics(self) -> Steps[list[TopicName]]:
        """The names of all topics."""
        answer = yield from self._ask_any(RequestCode.GET_ALL_TOPICS, {})
        listed = decode_topic_list(answer.body)
        users = listed.topic_list if listed.pmq_topic_list is None else listed.pmq_topic_list
        return [
            TopicName(stored=stored, user=user)
            for stored, user in zip(listed.topic_list, users, strict=True)
        ]

    def route(self, topic: str) -> Steps[Route]:
        """Where the topic lives, asked for anew. RequestFailed with TOPIC_NOT_EXIST if nowhere."""
        fields = write_fields(TopicFields(topic=topic, user_topic=topic))
        answer = yield from self._ask_any(RequestCode.GET_ROUTE, fields)
        route = _readable(topic, decode_route(answer.body), read_fields(RouteAnswer, answer.fields))
        if len(self._routes) >= ROUTES_COUNT_MAX:
            self._routes.clear()
        self._routes[topic] = route
        return route

    def bounds(self, topic: str, broker: str, queue_id: int) -> Steps[QueueBounds]:
        """The first offset of a queue and one past its last."""
        question = QueueFields(topic=topic, user_topic=topic, queue_id=queue_id)
        low = yield from self._ask_broker(topic, broker, RequestCode.GET_MIN_OFFSET, question)
        high = yield from self._ask_broker(topic, broker, RequestCode.GET_MAX_OFFSET, question)
        first, end = read_fields(OffsetAnswer, low.fields), read_fields(OffsetAnswer, high.fields)
        return QueueBounds(first=first.offset, end=end.offset, incarnation=end.incarnation)

    def offset_at(self, topic: str, broker: str, queue_id: int, time_ms: int) -> Steps[int]:
        """The first offset whose message was stored at a time (milliseconds since the epoch) or
        later; the queue's end if there is none."""
        question = SearchFields(topic=topic, user_topic=topic, queue_id=queue_id, timestamp=time_ms)
        answer = yield from self._ask_broker(topic, broker, RequestCode.SEARCH_OFFSET, question)
        return read_fields(OffsetAnswer, answer.fields).offset

    def pull(
        self,
        topic: str,
        broker: str,
        queue_id: int,
        offset: int,
        *,
        count_max: int,
        bytes_max: int,
        whole: bool = False,
        stored: bool = False,
    ) -> Steps[Pulled]:
        """Records from `offset` on. Does not wait for any to come.

        Args:
            whole: also AMQP properties that stand in front of the body, for who takes records
                apart with `remoting.records.message_of`.
            stored: records as they are in the log, for who reads all forms of properties: without
                what a broker adds to messages of AMQP and MQTT 5 in RocketMQ's words. Implies
                `whole`.
        """
        question = PullFields(
            topic=topic,
            user_topic=topic,
            group=READER_GROUP,
            queue_id=queue_id,
            queue_offset=offset,
            count_max=count_max,
            bytes_max=bytes_max,
            whole=whole or stored or None,
            stored=stored or None,
        )
        answer = yield from self._ask_broker(topic, broker, RequestCode.PULL_MESSAGE, question)
        bounds = read_fields(PullAnswer, answer.fields)
        return Pulled(
            code=answer.code,
            records=answer.body,
            next_offset=bounds.next_offset,
            min_offset=bounds.min_offset,
            max_offset=bounds.max_offset,
            incarnation=bounds.incarnation,
        )

    # --- attempts -------------------------------------------------------------------------

    def _ask_any(self, code: RequestCode, fields: dict[str, str]) -> Steps[Command]:
        """Ask the user's addresses in turn until one answers."""
        count = len(self.addresses)
        failure: Exception | None = None
        for attempt in range(self.settings.attempts_max * count):
            if attempt and attempt % count == 0:
                yield self._pause(attempt // count)
            address, seconds = self.addresses[self._current], self.settings.call_seconds
            try:
                return (
                    yield from ask(Call(address=address, code=code, fields=fields, seconds=seconds))
                )
            except (CallFailed, RequestFailed) as error:
                failure = _passing(error)
            self._current = (self._current + 1) % count
        listed = ", ".join(map(str, self.addresses))
        raise Unreachable(f"no answer from {listed}: {failure}") from failure

    def _ask_broker(
        self, topic: str, broker: str, code: RequestCode, question: Fields
    ) -> Steps[Command]:
        """Ask the master of a broker group; look for it again after each failure."""
        pulling = code == RequestCode.PULL_MESSAGE
        failure: Exception | None = None
        for attempt in range(self.settings.attempts_max):
            if attempt:
                yield self._pause(attempt)
            route = self._routes.get(topic) or (yield from self.route(topic))
            try:
                call = Call(
                    address=route.broker(broker).address,
                    code=code,
                    fields=write_fields(question),
                    seconds=self.settings.pull_seconds if pulling else self.settings.call_seconds,
                )
                return (yield from ask(call, _PULL_CODES if pulling else _GOOD))
            except (CallFailed, RequestFailed) as error:
                failure = _passing(error)
            self._routes.pop(topic, None)
        raise Unreachable(f"no answer from broker {broker!r}: {failure}") from failure

    def _pause(self, attempt: int) -> Pause:
        seconds = self.settings.pause_first_seconds * 2 ** min(attempt - 1, 30)
        return Pause(seconds=min(seconds, self.settings.pause_seconds_max))


def _passing(error: CallFailed | RequestFailed) -> Exception:
    """The error of an attempt after which another one makes sense; any other is raised."""
    if isinstance(error, RequestFailed) and error.code not in _BUSY:
        raise error
    return error


def _readable(topic: str, route: TopicRoute, answer: RouteAnswer) -> Route:
    masters = {data.broker_name: _master(data) for data in route.broker_datas}
    brokers = [
        BrokerQueues(broker=queues.broker_name, address=master, queue_count=queues.read_queue_nums)
        for queues in route.queue_datas
        if queues.perm & PERMISSION_READ and (master := masters.get(queues.broker_name)) is not None
    ]
    return Route(
        topic=topic,
        brokers=tuple(sorted(brokers, key=lambda queues: queues.broker)),
        incarnation=answer.incarnation,
    )


def _master(data: BrokerData) -> Address | None:
    text = data.broker_addrs.get(_MASTER_ID)
    return None if text is None else Address.parse(text)
