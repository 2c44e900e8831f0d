"""What a consumer does: which queues are its, where it begins, what it pulls and commits. Pure.

A consumer is a set of operations that a driver runs beside each other (`driver_trio.consume`,
`driver_asyncio.consume`): its presence, its sharing of queues, its commits, and one pull for each
queue that it has. Rules:

* *Clustering*: the members of a group share the queues of a topic, by who is there (38). A broker
  says when that changes (40), and every `share_seconds` it is looked at anyway. Where nobody says
  who is there, everything stays as it is.
* *Broadcasting*: every member reads all queues. Its offsets are its own: `offsets` is where the
  caller keeps them.
* A queue is read from what the group has committed; where it has not, from `begin`.
* What was handled is committed every `commit_seconds`, when a queue is lost, and at the end. What
  was pulled and not handled is read again by whoever gets the queue: handling is at least once.
* A message that was handled in vain goes back to the broker (36), which sends it again later, to
  the topic `%RETRY%group`, and at last to the dead letters. That topic is read, too. When a message
  cannot be sent back either, it is tried again from its place. A broadcasting consumer passes over
  what it handled in vain, as RocketMQ's do: no broker keeps track of it.
* Tags are compared here once more: brokers filter by hash.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Never

import msgspec

from remoting.broker_fields import (
    CommitFields,
    GroupFields,
    GroupOffsetFields,
    SearchFields,
    SendBackFields,
)
from remoting.codes import (
    PULL_SUBSCRIPTION,
    PULL_SUSPEND,
    RequestCode,
    ResponseCode,
)
from remoting.errors import (
    BadFields,
    CallFailed,
    RemoteProtocolError,
    RequestFailed,
    Unreachable,
)
from remoting.frames import Command
from remoting.group_bodies import ConsumerData, ConsumerList, MessageQueue, SubscriptionData
from remoting.headers import (
    Fields,
    OffsetAnswer,
    PullAnswer,
    PullFields,
    QueueFields,
    read_fields,
    write_fields,
)
from remoting.link import Reply
from remoting.messages import RETRY_PREFIX, TAGS, hash_code
from remoting.presence import Presence
from remoting.records import Record, iterate_records, parse_properties
from remoting.routes import Routes, master_of, queues_to_read
from remoting.sharing import share_evenly
from remoting.steps import Address, Call, Pause, Signal, Steps

ALL_TAGS: Final = "*"


class Begin(enum.Enum):
    """Where a group reads a queue from that it has never committed in."""

    LAST = "CONSUME_FROM_LAST_OFFSET"
    FIRST = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class Model(enum.Enum):
    """Whether the members of a group share queues."""

    CLUSTERING = "CLUSTERING"
    BROADCASTING = "BROADCASTING"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """How often, how much, how patient; RocketMQ's defaults unless said."""

    model: Model = Model.CLUSTERING
    begin: Begin = Begin.LAST
    begin_ms: int = 0
    """For TIMESTAMP: messages that were stored then or later."""
    share_seconds: float = 20.0
    look_seconds: float = 1.0
    """While a topic that is to be read is nowhere: how often is looked for it."""
    commit_seconds: float = 5.0
    call_seconds: float = 3.0
    hold_seconds: float = 15.0
    """How long a broker holds a pull that finds nothing; 0: it answers at once."""
    pull_seconds: float = 30.0
    pull_count_max: int = 32
    pause_seconds: float = 3.0
    """After a pull that failed."""


@dataclass(slots=True)
class Consumer:
    """Reads for one group.

    Args:
        subscriptions: topic -> `*`, or tags between `||`.
        started_ms: the wall clock at the start: the version of the subscriptions.
        offsets: of a broadcasting consumer: what it has handled, as the caller kept it.
    """

    group: str
    client_id: str
    routes: Routes
    subscriptions: Mapping[str, str]
    started_ms: int
    settings: ConsumerSettings = field(default_factory=ConsumerSettings)
    offsets: dict[MessageQueue, int] = field(default_factory=dict)
    presence: Presence = field(init=False)
    members_changed: Signal = field(default_factory=Signal)
    _topics: dict[str, str] = field(init=False)
    _found: set[str] = field(default_factory=set)  # topics whose brokers were told
    _mine: set[MessageQueue] = field(default_factory=set)
    _next: dict[MessageQueue, int] = field(default_factory=dict)  # to pull from
    _handled: dict[MessageQueue, int] = field(default_factory=dict)  # one past the last
    _committed: dict[MessageQueue, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._topics = dict(self.subscriptions)
        if self._clusters:
            self._topics[RETRY_PREFIX + self.group] = ALL_TAGS
        self.presence = Presence(
            client_id=self.client_id,
            routes=self.routes,
            topics=lambda: tuple(self._topics),
            consumers=lambda: (self._data(),),
        )

    @property
    def queues(self) -> frozenset[MessageQueue]:
        """The queues that are this consumer's now."""
        return frozenset(self._mine)

    def asked(self, _broker: Address, command: Command) -> Reply | None:
        """A `link.Handler`: what brokers ask of a consumer."""
        if command.code != RequestCode.NOTIFY_CONSUMERS_CHANGED:
            return None
        if command.fields.get("consumerGroup") == self.group:
            self.members_changed.give()
        return Reply()

    # --- whose queues ---------------------------------------------------------------------

    def share(self) -> Steps[frozenset[MessageQueue]]:
        """Look who is there, and take what is this consumer's. What it loses is committed."""
        yield from self._find_topics()
        for topic in self._topics:
            route = self.routes.known(topic)
            if route is None:
                continue
            queues = queues_to_read(topic, route)
            if self._clusters:
                members = yield from self._members(topic)
                if members is None:
                    continue
                queues = share_evenly(members, self.client_id, queues)
            yield from self._take(topic, set(queues))
        return self.queues

    def wait_to_share(self, seen: int) -> Steps[None]:
        """Until it is time to look again, or a broker said that the members have changed."""
        seconds = self.settings.share_seconds
        if not self._found.issuperset(self.subscriptions):
            seconds = min(seconds, self.settings.look_seconds)
        yield Pause(seconds=seconds, signal=self.members_changed, seen=seen)

    def _find_topics(self) -> Steps[None]:
        """Learn the routes that are not known. Brokers that were not known are told at once that
        this consumer is there, because only who is there has a share."""
        found = set(self._found)
        for topic in sorted(self._topics.keys() - found):
            try:
                yield from self.routes.get(topic)
            except (RequestFailed, Unreachable):
                continue  # such as a retry topic that was never needed
            found.add(topic)
        if found != self._found:
            self._found = found
            yield from self.presence.beat()

    def _take(self, topic: str, queues: set[MessageQueue]) -> Steps[None]:
        before = {queue for queue in self._mine if queue.topic == topic}
        for queue in sorted(before - queues):
            yield from self._commit(queue)
            self._mine.discard(queue)
            for table in (self._next, self._handled, self._committed):
                table.pop(queue, None)
        self._mine |= queues

    def _members(self, topic: str) -> Steps[list[str] | None]:
        route = self.routes.known(topic)
        for data in route.broker_datas if route is not None else ():
            fields = GroupFields(consumer_group=self.group)
            queue = MessageQueue(topic=topic, broker_name=data.broker_name, queue_id=0)
            try:
                answer = yield from self._ask(queue, RequestCode.GET_CONSUMER_LIST, fields)
                return msgspec.json.decode(answer.body, type=ConsumerList).consumer_id_list
            except (CallFailed, RequestFailed, msgspec.DecodeError):
                continue
        return None

    # --- reading --------------------------------------------------------------------------

    def pull(self, queue: MessageQueue) -> Steps[list[Record]]:
        """The next messages of a queue; none if there are none for now. Never raises for what a
        broker or the network does: it pauses instead, and looks for a new route."""
        try:
            offset = self._next.get(queue)
            if offset is None:
                offset = self._next[queue] = yield from self._begin(queue)
            answer = yield from self._pull(queue, offset)
            bounds = read_fields(PullAnswer, answer.fields)
            records = list(iterate_records(answer.body)) if answer.code == 0 else []
        except (CallFailed, RequestFailed, BadFields, Unreachable, RemoteProtocolError):
            yield Pause(seconds=self.settings.pause_seconds)
            yield from self.routes.refresh(queue.topic)
            return []
        wanted = [record for record in records if self._wants(record)]
        if queue in self._mine:
            self._next[queue] = bounds.next_offset
            if not wanted:
                self._handled[queue] = bounds.next_offset
        return wanted

    def handled(self, queue: MessageQueue) -> None:
        """All that the last pull of this queue gave was handled."""
        if queue in self._next:
            self._handled[queue] = self._next[queue]

    def handled_in_vain(self, queue: MessageQueue, record: Record) -> Steps[bool]:
        """The broker shall send a message again later. False if that failed, too: then it and those
        behind it are pulled anew, so the rest of what was pulled is not to be handled."""
        if not self._clusters or (yield from self._send_back(queue, record)):
            return True
        if queue in self._next:
            self._next[queue] = self._handled[queue] = record.queue_offset
        yield Pause(seconds=self.settings.pause_seconds)
        return False

    def _send_back(self, queue: MessageQueue, record: Record) -> Steps[bool]:
        properties = parse_properties(record.properties)
        fields = SendBackFields(
            offset=record.position,
            group=self.group,
            origin_msg_id=properties.get("ORIGIN_MESSAGE_ID", record.offset_message_id),
            origin_topic=record.topic,
        )
        try:
            yield from self._ask(queue, RequestCode.CONSUMER_SEND_BACK, fields)
        except (CallFailed, RequestFailed):
            return False
        return True

    def _pull(self, queue: MessageQueue, offset: int) -> Steps[Command]:
        fields = PullFields(
            topic=queue.topic,
            group=self.group,
            queue_id=queue.queue_id,
            queue_offset=offset,
            count_max=self.settings.pull_count_max,
            system_flag=PULL_SUBSCRIPTION | (PULL_SUSPEND if self.settings.hold_seconds else 0),
            suspend_ms=int(self.settings.hold_seconds * 1000),
            subscription=self._topics[queue.topic],
            subscription_version=self.started_ms,
            expression_type="TAG",
        )
        good = (
            ResponseCode.SUCCESS,
            ResponseCode.PULL_NOT_FOUND,
            ResponseCode.PULL_RETRY_IMMEDIATELY,
            ResponseCode.PULL_OFFSET_MOVED,
        )
        return (
            yield from self._ask(
                queue, RequestCode.PULL_MESSAGE, fields, self.settings.pull_seconds, good
            )
        )

    def _begin(self, queue: MessageQueue) -> Steps[int]:
        if not self._clusters:
            known = self.offsets.get(queue)
        else:
            known = yield from self._committed_offset(queue)
        if known is not None:
            return known
        place = QueueFields(topic=queue.topic, queue_id=queue.queue_id)
        begin = self.settings.begin
        if begin is Begin.FIRST or queue.topic.startswith(RETRY_PREFIX):
            answer = yield from self._ask(queue, RequestCode.GET_MIN_OFFSET, place)
        elif begin is Begin.LAST:
            answer = yield from self._ask(queue, RequestCode.GET_MAX_OFFSET, place)
        else:
            search = SearchFields(
                topic=queue.topic, queue_id=queue.queue_id, timestamp=self.settings.begin_ms
            )
            answer = yield from self._ask(queue, RequestCode.SEARCH_OFFSET, search)
        return read_fields(OffsetAnswer, answer.fields).offset

    def _committed_offset(self, queue: MessageQueue) -> Steps[int | None]:
        fields = GroupOffsetFields(
            consumer_group=self.group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            set_zero_if_not_found=False,
        )
        good = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)
        answer = yield from self._ask(
            queue, RequestCode.QUERY_CONSUMER_OFFSET, fields, self.settings.call_seconds, good
        )
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        offset = read_fields(OffsetAnswer, answer.fields).offset
        self._committed[queue] = offset
        return offset

    def _wants(self, record: Record) -> bool:
        tags = _tags(self._topics.get(record.topic, ALL_TAGS))
        return not tags or parse_properties(record.properties).get(TAGS) in tags

    # --- committing -----------------------------------------------------------------------

    def commit(self) -> Steps[None]:
        """Tell the brokers (or, broadcasting, the caller) what was handled."""
        for queue in sorted(self._mine):
            yield from self._commit(queue)

    def keep_committed(self) -> Steps[Never]:
        """Commit every few seconds."""
        while True:
            yield Pause(seconds=self.settings.commit_seconds)
            yield from self.commit()

    def leave(self) -> Steps[None]:
        """Commit, and tell the brokers, so that the other members take over at once."""
        yield from self.commit()
        yield from self.presence.leave(self.group)

    def _commit(self, queue: MessageQueue) -> Steps[None]:
        handled = self._handled.get(queue)
        if handled is None or handled == self._committed.get(queue):
            return
        if not self._clusters:
            self.offsets[queue] = self._committed[queue] = handled
            return
        fields = CommitFields(
            consumer_group=self.group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            commit_offset=handled,
        )
        try:
            yield from self._ask(queue, RequestCode.UPDATE_CONSUMER_OFFSET, fields)
        except (CallFailed, RequestFailed):
            return  # with the next one, or what was handled comes again
        self._committed[queue] = handled

    # --- parts ----------------------------------------------------------------------------

    @property
    def _clusters(self) -> bool:
        return self.settings.model is Model.CLUSTERING

    def _data(self) -> ConsumerData:
        return ConsumerData(
            group_name=self.group,
            consume_type="CONSUME_PASSIVELY",
            message_model=self.settings.model.value,
            consume_from_where=self.settings.begin.value,
            subscription_data_set=[
                SubscriptionData(
                    topic=topic,
                    sub_string=expression,
                    tags_set=_tags(expression),
                    code_set=[hash_code(tag) for tag in _tags(expression)],
                    sub_version=self.started_ms,
                )
                for topic, expression in self._topics.items()
            ],
        )

    def _ask(
        self,
        queue: MessageQueue,
        code: int,
        fields: Fields,
        seconds: float | None = None,
        good: Sequence[int] = (ResponseCode.SUCCESS,),
    ) -> Steps[Command]:
        route = yield from self.routes.get(queue.topic)
        address = master_of(route, queue.broker_name)
        if address is None:
            raise CallFailed(f"broker {queue.broker_name} has no master")
        answer = yield Call(
            address=address,
            code=code,
            fields=write_fields(fields),
            seconds=self.settings.call_seconds if seconds is None else seconds,
        )
        assert answer is not None, "a driver answers a Call with a Command"
        if answer.code not in good:
            raise RequestFailed(answer.code, answer.remark or "", address=str(address))
        return answer


def _tags(expression: str) -> list[str]:
    """The tags of an expression; none for all."""
    if expression.strip() in (ALL_TAGS, ""):
        return []
    return [part.strip() for part in expression.split("||")]
