"""What a consumer does: which queues are its, where it begins, what it pulls and commits. Pure.

`keep` is everything that a consumer does as long as it lives: a driver that awaits carries it out
(`awaiting.consume`). Who polls (`driver_blocking.PollingConsumer`) uses its parts. Rules:

* *Clustering*: the members of a group share the queues of a topic, by who is there (38). A broker
  says when that changes (40), and every `share_seconds` it is looked at anyway. Where nobody says
  who is there, everything stays as it is. Who finds itself missing says first that it is there.
* *Broadcasting*: every member reads all queues. Its offsets are its own: `offsets` is where the
  caller keeps them.
* A queue is read from what the group has committed; where it has not, from `begin`.
* The next messages of a queue are pulled when those before them are handled, so a slow handler
  holds one pull for each queue, and all queues together hold no more than the settings say.
* What was handled is committed every `commit_seconds`, when a queue is lost, and at the end. What
  was pulled and not handled is read again by whoever gets the queue: handling is at least once.
* A queue that is lost ends its pull, but not its handler: what is being handled is handled to its
  end, committed, and only then unlocked. A queue that comes back meanwhile waits for that.
* A message that was handled in vain goes back to the broker (36), which sends it again later, to
  the topic `%RETRY%group`, and at last to the dead letters. That topic is read, too; handlers see
  the message under the topic that it was sent to. When a message cannot be sent back either, it is
  tried again from its place. A broadcasting consumer passes over what it handled in vain, as
  RocketMQ's do: no broker keeps track of it.
* *In order*: see `ordering`. A message that is handled in vain is tried again in its place.
* Bodies come decompressed. A message whose body cannot be is one that was handled in vain.
* Tags are compared here once more: brokers filter by hash.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Never

import msgspec

from polymq.remoting.codes import RequestCode, ResponseCode
from polymq.remoting.compression import Decompressors
from polymq.remoting.consumer_settings import ConsumerSettings, Model
from polymq.remoting.errors import (
    BadBody,
    BadFields,
    CallFailed,
    RemoteProtocolError,
    RequestFailed,
    Unreachable,
)
from polymq.remoting.frames import Command
from polymq.remoting.group_bodies import ConsumerData, MessageQueue, SubscriptionData
from polymq.remoting.group_calls import DEAD_LETTER, GroupCalls
from polymq.remoting.headers import PullAnswer, read_fields
from polymq.remoting.link import Reply
from polymq.remoting.messages import RETRY_PREFIX, RETRY_TOPIC, TAGS, hash_code
from polymq.remoting.ordering import QueueLocks
from polymq.remoting.presence import Presence
from polymq.remoting.records import (
    Record,
    decompressed,
    iterate_records,
    message_name,
    parse_properties,
)
from polymq.remoting.routes import Routes, queues_to_read
from polymq.remoting.sharing import share_evenly
from polymq.remoting.steps import Address, Invoke, Pause, Signal, Start, Steps

ALL_TAGS: Final = "*"
_FAILURES: Final = (CallFailed, RequestFailed, BadFields, Unreachable, RemoteProtocolError)
_HELD_SECONDS: Final = 1.0
"""How often is looked whether there is room again, should nobody say so."""


@dataclass(slots=True)
class _Reading:
    """One queue that is read.

    Attributes:
        next: offset to pull from; None: not known yet.
        handled: one past the last that was handled.
        committed: what the group has at the broker, as far as we know.
        lost: given once, when the queue is somebody else's, or nobody's.
        is_read: an operation reads it, and lets go of it at its end.
    """

    next: int | None = None
    handled: int | None = None
    committed: int | None = None
    lost: Signal = field(default_factory=Signal)
    is_read: bool = False

    def is_lost(self) -> bool:
        """Whether the queue is somebody else's now."""
        return self.lost.count > 0


@dataclass(slots=True)
class Consumer:
    """Reads for one group.

    Args:
        subscriptions: topic -> `*`, or tags between `||`.
        started_ms: the wall clock at the start: the version of the subscriptions.
        clock: seconds that do not go back; for locks.
        offsets: of a broadcasting consumer: what it has handled, as the caller kept it.
        decompressors: for bodies that were not compressed with zlib.
        report: gets what went wrong, in words.
    """

    group: str
    client_id: str
    routes: Routes
    subscriptions: Mapping[str, str]
    started_ms: int
    clock: Callable[[], float] = lambda: 0.0
    settings: ConsumerSettings = field(default_factory=ConsumerSettings)
    offsets: dict[MessageQueue, int] = field(default_factory=dict)
    decompressors: Decompressors = field(default_factory=dict)
    report: Callable[[str], None] = lambda _text: None
    presence: Presence = field(init=False)
    members_changed: Signal = field(default_factory=Signal)
    _calls: GroupCalls = field(init=False)
    _locks: QueueLocks = field(init=False)
    _topics: dict[str, str] = field(init=False)
    _found: set[str] = field(default_factory=set)  # topics whose brokers were told
    _mine: dict[MessageQueue, _Reading] = field(default_factory=dict)
    _leaving: dict[MessageQueue, _Reading] = field(default_factory=dict)  # lost, and still handled
    _held_count: int = 0  # pulled and not handled
    _held_bytes: int = 0
    _freed: Signal = field(default_factory=Signal)
    _closing: bool = False
    _closed: bool = False
    _ended: Signal = field(default_factory=Signal)  # a queue was let go of, or all were

    def __post_init__(self) -> None:
        self._topics = dict(self.subscriptions)
        if self._clusters:
            self._topics[RETRY_PREFIX + self.group] = ALL_TAGS
        self._calls = GroupCalls(self.group, self.client_id, self.routes, self.settings)
        self.routes.changed.listen(self.members_changed.give)
        self._locks = QueueLocks(self._calls, self.clock, self.report)
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

    @property
    def held_count(self) -> int:
        """Messages that were pulled and are not handled yet."""
        return self._held_count

    def asked(self, _broker: Address, command: Command) -> Reply | None:
        """A `link.Handler`: what brokers ask of a consumer."""
        if command.code != RequestCode.NOTIFY_CONSUMERS_CHANGED:
            return None
        if command.fields.get("consumerGroup") == self.group:
            self.members_changed.give()
        return Reply()

    def connection_lost(self, _broker: Address) -> None:
        """For drivers: a broker whose connection broke has forgotten who is there."""
        self.presence.wake.give()

    # --- all of it ------------------------------------------------------------------------

    def keep(self, handle: Callable[[Record], object]) -> Steps[None]:
        """Everything, until `close`, and until what is being handled then is handled."""
        for steps in (self.presence.keep(), self.keep_committed(), self.routes.keep_fresh()):
            yield Start(steps)
        if self._is_ordered:
            yield Start(self._locks.keep(self.settings.lock_seconds))
        while not self._closing:
            seen = self.members_changed.count
            yield from self.share()
            for queue, reading in sorted(self._mine.items(), key=lambda at: at[0]):
                if not reading.is_read and not self._closing:
                    reading.is_read = True
                    yield Start(self._read(queue, reading, handle))
            yield from self.wait_to_share(seen)
        for queue in list(self._mine):
            yield from self._lose(queue)
        while self._leaving:
            yield Pause(seconds=_HELD_SECONDS, signal=self._ended, seen=self._ended.count)
        self._closed = True
        self._ended.give()

    def close(self) -> None:
        """End `keep` soon: nothing more is pulled, nor handled but what is being handled."""
        self._closing = True
        for queue, reading in list(self._mine.items()):
            if reading.is_read:
                self._part_with(queue)
        self.members_changed.give()

    def wait_closed(self) -> Steps[None]:
        """Until `keep` has ended."""
        while not self._closed:
            yield Pause(seconds=_HELD_SECONDS, signal=self._ended, seen=self._ended.count)

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
        """Until it is time to look again, or the members or a route have changed."""
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

    def _members(self, topic: str) -> Steps[list[str] | None]:
        """Who is there. A broker that has restarted may not know of this consumer yet: it is told
        then, rather than everything given away until the next heartbeat."""
        members = yield from self._calls.members(topic)
        if members is not None and self.client_id not in members and not self._closing:
            yield from self.presence.beat()
            members = yield from self._calls.members(topic)
        return members

    def _take(self, topic: str, queues: set[MessageQueue]) -> Steps[None]:
        for queue in sorted(queue for queue in self._mine if queue.topic == topic):
            if queue not in queues:
                yield from self._lose(queue)
        for queue in queues:
            if queue not in self._mine and queue not in self._leaving:
                self._mine[queue] = _Reading()

    def _lose(self, queue: MessageQueue) -> Steps[None]:
        reading = self._part_with(queue)
        if not reading.is_read:
            yield from self._let_go(queue, reading)

    def _part_with(self, queue: MessageQueue) -> _Reading:
        """The queue is not ours any more. If an operation reads it, that notices, and lets go."""
        reading = self._mine.pop(queue)
        if reading.is_read:
            self._leaving[queue] = reading
        reading.lost.give()
        return reading

    def _let_go(self, queue: MessageQueue, reading: _Reading) -> Steps[None]:
        yield from self._commit(queue, reading)
        if self._is_ordered:
            yield from self._locks.give_back(queue)
        self._leaving.pop(queue, None)
        self._ended.give()
        self.members_changed.give()  # it may be ours again by now

    # --- reading --------------------------------------------------------------------------

    def pull(self, queue: MessageQueue) -> Steps[list[Record]]:
        """The next messages of a queue that is this consumer's; none if there are none for now.
        Never raises for what a broker or the network does: it pauses instead, and looks for a new
        route. What cannot be decompressed is sent back."""
        reading = self._mine.get(queue)
        if reading is None:
            return []
        plain: list[Record] = []
        records = yield from self._pull(queue, reading)
        for record in records:
            try:
                plain.append(decompressed(record, self.decompressors))
            except BadBody as error:
                self.report(str(error))
                if not (yield from self._failed(queue, reading, record)):
                    return plain
        if records and not plain:
            reading.handled = reading.next
        return plain

    def handled(self, queue: MessageQueue) -> None:
        """All that the last pull of this queue gave was handled."""
        reading = self._mine.get(queue)
        if reading is not None:
            reading.handled = reading.next

    def handled_in_vain(self, queue: MessageQueue, record: Record) -> Steps[bool]:
        """The broker shall send a message again later. False if that failed, too: then it and those
        behind it are pulled anew, so the rest of what was pulled is not to be handled."""
        reading = self._mine.get(queue)
        return reading is None or (yield from self._failed(queue, reading, record))

    def _read(
        self, queue: MessageQueue, reading: _Reading, handle: Callable[[Record], object]
    ) -> Steps[None]:
        """Read a queue until it is lost."""
        while not reading.is_lost():
            yield from self._wait_for_room(reading)
            if self._is_ordered and not (yield from self._lock(queue, reading)):
                continue
            records = yield from self._pull(queue, reading)
            held_bytes = sum(len(record.body) for record in records)
            self._count_held(len(records), held_bytes)
            try:
                whole = True
                for record in records:
                    whole = not reading.is_lost() and (
                        yield from self._handle(queue, reading, record, handle)
                    )
                    if not whole:
                        break
                    reading.handled = record.queue_offset + 1
                if whole and records:
                    reading.handled = reading.next  # with what the tags passed over
            finally:
                self._count_held(-len(records), -held_bytes)
        yield from self._let_go(queue, reading)

    def _count_held(self, count: int, size: int) -> None:
        self._held_count += count
        self._held_bytes += size
        if count < 0:
            self._freed.give()

    def _wait_for_room(self, reading: _Reading) -> Steps[None]:
        settings = self.settings
        while not reading.is_lost() and (
            self._held_count >= settings.held_count_max
            or self._held_bytes >= settings.held_bytes_max
        ):
            yield Pause(seconds=_HELD_SECONDS, signal=self._freed, seen=self._freed.count)

    def _lock(self, queue: MessageQueue, reading: _Reading) -> Steps[bool]:
        """Have the lock of a queue; False after a while without it. Who had to take it anew reads
        from what is committed: another member may have had it meanwhile."""
        if self._locks.has(queue):
            return True
        yield from self._commit(queue, reading)
        if not (yield from self._locks.take(queue)):
            seconds = self.settings.lock_retry_seconds
            if not reading.is_lost():
                yield Pause(seconds=seconds, signal=reading.lost, seen=0)
            return False
        reading.next = reading.handled = reading.committed = None
        return True

    def _handle(
        self,
        queue: MessageQueue,
        reading: _Reading,
        record: Record,
        handle: Callable[[Record], object],
    ) -> Steps[bool]:
        """Handle one message. False: it and those behind it are to be pulled anew."""
        attempt = record.reconsume_count
        while True:
            if self._is_ordered and not self._locks.has(queue):
                return False
            failure = yield from self._attempt(record, attempt, handle)
            if failure is None:
                return True
            self.report(failure)
            if not self._is_ordered:
                return (yield from self._failed(queue, reading, record))
            attempt += 1
            most = self.settings.retries_max
            if most is not None and attempt > most:
                return (yield from self._failed(queue, reading, record, DEAD_LETTER))
            if not reading.is_lost():
                seconds = self.settings.suspend_seconds
                yield Pause(seconds=seconds, signal=reading.lost, seen=0)
            if reading.is_lost():
                return False

    def _attempt(
        self, record: Record, attempt: int, handle: Callable[[Record], object]
    ) -> Steps[str | None]:
        """Hand a message to the handler; returns what went wrong, in words."""
        try:
            plain = decompressed(record, self.decompressors)
        except BadBody as error:
            return str(error)
        topic = parse_properties(record.properties).get(RETRY_TOPIC, record.topic)
        shown = msgspec.structs.replace(plain, topic=topic, reconsume_count=attempt)
        invoke = Invoke(handle, (shown,))
        yield invoke
        if invoke.failure is None:
            return None
        trace = "".join(traceback.format_exception(invoke.failure))
        return f"{message_name(record)}: its handler raised\n{trace}"

    def _failed(
        self,
        queue: MessageQueue,
        reading: _Reading,
        record: Record,
        level: int | None = None,
    ) -> Steps[bool]:
        """A message was handled in vain: send it back. False: it is to be pulled anew."""
        if not self._clusters:
            return True
        if level is None:
            level = self.settings.retry_level
        try:
            yield from self._calls.send_back(queue, record, level)
        except _FAILURES as error:
            self.report(f"{message_name(record)} cannot be sent back, and is tried again: {error}")
        else:
            return True
        reading.next = reading.handled = record.queue_offset
        if not reading.is_lost():
            seconds = self.settings.pause_seconds
            yield Pause(seconds=seconds, signal=reading.lost, seen=0)
        return False

    def _pull(self, queue: MessageQueue, reading: _Reading) -> Steps[list[Record]]:
        try:
            if reading.next is None:
                reading.next = yield from self._begin(queue, reading)
            subscription = self._topics[queue.topic]
            answer = yield from self._calls.pull(
                queue, reading.next, subscription, self.started_ms, reading.lost
            )
            bounds = read_fields(PullAnswer, answer.fields)
            records = list(iterate_records(answer.body)) if answer.code == 0 else []
        except _FAILURES as error:
            if not reading.is_lost():
                self.report(
                    f"{queue.topic}, queue {queue.queue_id} of {queue.broker_name}: {error}"
                )
                seconds = self.settings.pause_seconds
                yield Pause(seconds=seconds, signal=reading.lost, seen=0)
                yield from self.routes.refresh(queue.topic)
            return []
        if reading.is_lost():
            return []
        if answer.code == ResponseCode.PULL_OFFSET_MOVED:
            self.report(
                f"{queue.topic}, queue {queue.queue_id} of {queue.broker_name}: there is no "
                f"offset {reading.next}; reading goes on at {bounds.next_offset}"
            )
        wanted = [record for record in records if self._wants(record)]
        reading.next = bounds.next_offset
        if not wanted:
            reading.handled = bounds.next_offset
        return wanted

    def _begin(self, queue: MessageQueue, reading: _Reading) -> Steps[int]:
        if self._clusters:
            known = reading.committed = yield from self._calls.committed(queue)
        else:
            known = self.offsets.get(queue)
        return known if known is not None else (yield from self._calls.begin(queue))

    def _wants(self, record: Record) -> bool:
        tags = _tags(self._topics.get(record.topic, ALL_TAGS))
        return not tags or parse_properties(record.properties).get(TAGS) in tags

    # --- committing -----------------------------------------------------------------------

    def commit(self) -> Steps[None]:
        """Tell the brokers (or, broadcasting, the caller) what was handled."""
        for queue, reading in sorted((self._leaving | self._mine).items(), key=lambda at: at[0]):
            yield from self._commit(queue, reading)

    def keep_committed(self) -> Steps[Never]:
        """Commit every few seconds."""
        while True:
            yield Pause(seconds=self.settings.commit_seconds)
            yield from self.commit()

    def leave(self) -> Steps[None]:
        """Commit, and tell the brokers, so that the other members take over at once."""
        self._closing = True
        yield from self.commit()
        if self._is_ordered:
            yield from self._locks.give_all_back()
        yield from self.presence.leave(self.group)

    def _commit(self, queue: MessageQueue, reading: _Reading) -> Steps[None]:
        handled = reading.handled
        if handled is None or handled == reading.committed:
            return
        if not self._clusters:
            self.offsets[queue] = reading.committed = handled
            return
        try:
            yield from self._calls.commit(queue, handled)
        except _FAILURES:
            return  # with the next one, or what was handled comes again
        reading.committed = handled

    # --- parts ----------------------------------------------------------------------------

    @property
    def _clusters(self) -> bool:
        return self.settings.model is Model.CLUSTERING

    @property
    def _is_ordered(self) -> bool:
        return self.settings.ordered and self._clusters

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


def _tags(expression: str) -> list[str]:
    """The tags of an expression; none for all."""
    if expression.strip() in (ALL_TAGS, ""):
        return []
    return [part.strip() for part in expression.split("||")]
