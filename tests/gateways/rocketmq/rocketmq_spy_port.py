"""A small engine for the RocketMQ listener: topics in memory, pulls answered at once or later."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

from polymq.broker.port import BrokerPort, GroupInfo, Reason, Refused, TopicInfo
from polymq.remoting.records import iterate_records
from tests.harness import spy_port
from tests.harness.spy_port import operation
from tests.remoting.record_builder import build_record


@dataclass(slots=True)
class SpyQueue:
    first: int = 0
    records: list[bytes] = field(default_factory=list)


@dataclass(slots=True)
class SpyTopic:
    incarnation: int
    queues: list[SpyQueue]


@dataclass(slots=True)
class SpyPort(spy_port.SpyPort):
    """Only what the listener calls."""

    answers_at_once: bool = True
    topic_by_name: dict[str, SpyTopic] = field(default_factory=dict)
    waiting: list[Callable[[], None]] = field(default_factory=list)
    """Pulls that were not answered yet, if `answers_at_once` is False."""
    watched: list[Callable[[], None]] = field(default_factory=list)
    """To be called when a queue grows; a test calls them, or the listener looks by itself."""
    asked: list[tuple[str, int, int, int, int]] = field(default_factory=list)
    """(topic, queue id, offset, count_max, bytes_max) of every pull."""
    group_settings: dict[str, dict[str, object]] = field(default_factory=dict)
    """Settings by name."""
    paused: set[tuple[str, str]] = field(default_factory=set)
    """Groups and topics."""
    asked_tags: list[frozenset[str] | None] = field(default_factory=list)

    def as_port(self) -> BrokerPort:
        return cast(BrokerPort, self)

    def create(self, name: str, *, queues: int = 1, incarnation: int = 1) -> None:
        self.topic_by_name[name] = SpyTopic(incarnation, [SpyQueue() for _ in range(queues)])

    def append(self, name: str, *bodies: bytes, queue_id: int = 0) -> None:
        queue = self.topic_by_name[name].queues[queue_id]
        for body in bodies:
            offset = queue.first + len(queue.records)
            record = build_record(topic=name, queue_id=queue_id, queue_offset=offset, body=body)
            queue.records.append(record)

    def expire(self, name: str, count: int, *, queue_id: int = 0) -> None:
        """Retention takes the first `count` records."""
        queue = self.topic_by_name[name].queues[queue_id]
        queue.first += count
        del queue.records[:count]

    # --- BrokerPort -----------------------------------------------------------------------

    @operation("queries.when_grown")
    def when_grown(self, topic: str, queue_id: int, callback: Callable[[], None]) -> None:
        self.watched.append(callback)

    def overloaded(self, resume: Callable[[], None]) -> bool:
        return False

    @operation("groups.info")
    def group(self, name: str) -> GroupInfo | None:
        settings = self.group_settings.get(name)
        return None if settings is None else GroupInfo(name=name, settings=settings)

    @operation("groups.is_paused")
    def is_paused(self, name: str, topic: str) -> bool:
        return (name, topic) in self.paused

    @operation("topics.infos")
    def topic_infos(self) -> Sequence[TopicInfo]:
        return [info for name in self.topic_by_name if (info := self.topic(name)) is not None]

    @operation("topics.info")
    def topic(self, name: str) -> TopicInfo | None:
        topic = self.topic_by_name.get(name)
        if topic is None:
            return None
        return TopicInfo(
            name=name,
            min_offsets=tuple(queue.first for queue in topic.queues),
            max_offsets=tuple(queue.first + len(queue.records) for queue in topic.queues),
            incarnation=topic.incarnation,
        )

    @operation("queries.by_time")
    def offset_by_time(
        self, topic: str, queue_id: int, time_ms: int, callback: Callable[[int | None], None]
    ) -> None:
        queue = self.topic_by_name[topic].queues[queue_id]
        times = [one.store_ms for one in iterate_records(b"".join(queue.records))]
        callback(queue.first + sum(at < time_ms for at in times))

    @operation("queries.pull")
    def pull(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        count_max: int,
        bytes_max: int,
        callback: Callable[[bytes, int], None],
        tags: frozenset[str] | None = None,
    ) -> None:
        self.asked_tags.append(tags)
        self.asked.append((topic, queue_id, offset, count_max, bytes_max))
        queue = self.topic_by_name[topic].queues[queue_id]
        if offset < queue.first:
            raise Refused(Reason.BAD_ARGUMENT, "the offset is below the minimum")
        index = offset - queue.first
        taken = queue.records[index : index + count_max]
        end = offset + len(taken)
        if tags is not None:  # here the body is the tag
            taken = [
                r for r in taken if any(one.body.decode() in tags for one in iterate_records(r))
            ]
        while len(taken) > 1 and sum(map(len, taken)) > bytes_max:
            taken.pop()
            end -= 1

        def finish() -> None:
            callback(b"".join(taken), end)

        if self.answers_at_once:
            finish()
        else:
            self.waiting.append(finish)
